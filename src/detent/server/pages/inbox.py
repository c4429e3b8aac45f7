"""What waits for a person: calls to approve, questions to answer, calls in doubt to settle; and the outcome of each answer.

Rule: nothing is optimistic. An answer is shown as counting when the log says so; until then it is posted, and somebody else may have been first.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, cast

import msgspec
from starlette.responses import Response

from detent.core.errors import DetentError
from detent.core.state import RunState
from detent.ports import RunQuery
from detent.running.results import Answered
from detent.server import answers
from detent.server.operations import Call
from detent.server.pages.visits import Page, Visit
from detent.server.problems import Refused
from detent.server.shapes import Approve, Cancel, Deny, Reconcile, Reply, Run

MOST_QUESTIONS = 200


class Asking(msgspec.Struct, frozen=True, kw_only=True):
    """A question of a run that waits for its user."""

    run_id: str
    ask_id: str
    question: str
    agent: str
    goal: str
    choices: tuple[str, ...] = ()


async def inbox(visit: Visit) -> Response:
    """Show everything that waits for a person, the oldest first; with `run=` only what that run waits for, as the link in a webhook says."""
    engine, host, only = visit.served.engine, visit.caller.host, visit.asked.get("run") or None
    approvals = list(await engine.approvals(run_id=only, host=host))
    doubts = list(await engine.doubts(run_id=only, host=host))
    questions = [one for one in await _questions(visit) if only in (None, one.run_id)]
    goals = {one.run_id: await _goal(visit, one.run_id) for one in (*approvals, *doubts)}
    part = visit.request.headers.get("hx-request") == "true"
    shown: dict[str, Any] = {"approvals": approvals, "doubts": doubts, "questions": questions, "goals": goals, "roles": visit.caller.roles}
    shown["only"] = only
    return visit.page("inbox_items.html" if part else "inbox.html", **shown)


async def _goal(visit: Visit, run_id: str) -> str:
    head = await visit.served.engine.store.head(run_id)
    return "" if head is None else head.title or head.goal


async def _questions(visit: Visit) -> list[Asking]:
    engine, host = visit.served.engine, visit.caller.host
    query = RunQuery(status=("waiting_for_user",), tenant=visit.caller.tenant, limit=MOST_QUESTIONS)
    found: list[Asking] = []
    for head in await engine.list_runs(query, host=host):
        try:
            state: RunState = (await engine.load(head.run_id, host=host)).state
        except DetentError:  # damaged or gone: its own page says so
            continue
        for ask in state.asks.values():
            if ask.to == "user":
                said: Any = (ask.expected or {}).get("enum", ())
                choices: Sequence[Any] = cast("list[Any]", said) if isinstance(said, list) else ()
                few = tuple(choices) if all(isinstance(one, str) for one in choices) and len(choices) <= 12 else ()
                found.append(
                    Asking(
                        run_id=head.run_id,
                        ask_id=ask.ask_id,
                        question=ask.question,
                        agent=head.agent,
                        goal=head.title or head.goal,
                        choices=few,
                    )
                )
    return found


async def _answered(visit: Visit, send: Callable[[Call], Awaitable[Any]], body: Any, *, what: str) -> Response:
    """Send an answer as the API does, and show its outcome."""
    call = Call(served=visit.served, caller=visit.caller, path=visit.path, body=body, request=visit.request)
    run: Run = await send(call)
    answered = run.answered or Answered(signal="", outcome="accepted")
    values: dict[str, Any] = {"answered": answered, "what": what, "run": run}
    part = visit.request.headers.get("hx-request") == "true"
    return visit.page("answered.html" if part else "answered_page.html", **values)


async def approve(visit: Visit) -> Response:
    """Approve the call that was shown, as it is or as it was edited."""
    fields = await visit.form()
    edited, shown = fields.get("args", ""), fields.get("shown", "")
    args = None
    if edited.strip() and edited != shown:
        try:
            args = msgspec.json.decode(edited, type=dict[str, Any])
        except msgspec.DecodeError as error:
            raise Refused(
                422, "bad_arguments", f"the edited arguments are not a JSON object: {error}; nothing was decided, go back and mend them"
            ) from error
    body = Approve(call_id=fields.get("call_id", ""), digest=_digest(fields), args=args)
    return await _answered(visit, answers.approve, body, what="approved with other arguments" if args is not None else "approved")


async def deny(visit: Visit) -> Response:
    """Refuse the call that was shown; the planner gets the reason."""
    fields = await visit.form()
    body = Deny(call_id=fields.get("call_id", ""), digest=_digest(fields), reason=fields.get("reason", "").strip())
    return await _answered(visit, answers.deny, body, what="denied")


def _digest(fields: dict[str, str]) -> str:
    if not fields.get("digest"):
        raise Refused(422, "no_digest", "the form does not say which call was shown; reload the page")
    return fields["digest"]


async def reply(visit: Visit) -> Response:
    """Answer a question."""
    fields = await visit.form()
    if not fields.get("reply", "").strip():
        raise Refused(422, "no_reply", "the reply is empty; go back and write one")
    return await _answered(visit, answers.reply, Reply(reply=fields["reply"], ask_id=fields.get("ask_id", "")), what="replied")


async def reconcile(visit: Visit) -> Response:
    """Settle a call in doubt."""
    fields = await visit.form()
    if fields.get("happened") not in ("yes", "no"):
        raise Refused(422, "no_answer", "say whether it happened: yes or no; nothing was settled")
    happened = fields["happened"] == "yes"
    result: Any = None
    if happened and fields.get("result", "").strip():
        try:
            result = msgspec.json.decode(fields["result"])
        except msgspec.DecodeError:
            result = fields["result"]
    body = Reconcile(call_id=fields.get("call_id", ""), happened=happened, result=result)
    return await _answered(visit, answers.reconcile, body, what="settled: it happened" if happened else "settled: it did not happen")


async def cancel(visit: Visit) -> Response:
    """End a run."""
    fields = await visit.form()
    body = Cancel(why=fields.get("why", "").strip(), tree=fields.get("tree") == "yes")
    return await _answered(visit, answers.cancel, body, what="cancelled")


PAGES = (
    Page(path="/ui/inbox", handle=inbox),
    Page(path="/ui/runs/{run_id}/approve", handle=approve, role="approve", method="POST"),
    Page(path="/ui/runs/{run_id}/deny", handle=deny, role="approve", method="POST"),
    Page(path="/ui/runs/{run_id}/reply", handle=reply, role="run", method="POST"),
    Page(path="/ui/runs/{run_id}/reconcile", handle=reconcile, role="operate", method="POST"),
    Page(path="/ui/runs/{run_id}/cancel", handle=cancel, role="run", method="POST"),
)
