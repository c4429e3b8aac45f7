"""Sessions as conversations: messages and calls, what waits, and a box for the next message.

Rule: a message is shown once it is recorded. Sending answers when that is so, and sending the same form again sends nothing twice.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Sequence
from typing import Any, get_args
from urllib.parse import quote

from starlette.responses import Response

from detent.core.errors import RunNotFound
from detent.core.records import RunHead
from detent.core.state import TERMINAL
from detent.history.sessions import Session
from detent.ports import wait_for_news
from detent.ports.conversing import Message, Rule
from detent.server.pages.visits import HEADERS, Page, Visit
from detent.server.problems import Refused

LISTED, MESSAGES = 100, 200
"""So many sessions are listed, and so many of the latest messages are shown unless all are asked for."""
LOOK_S = 0.1
"""How soon it is looked again whether a message is recorded."""
RULES: dict[Rule, str] = {
    "reject": "do not send it",
    "enqueue": "send it after that",
    "steer": "tell the run in progress",
    "interrupt": "cancel the run, then send it",
    "rollback": "cancel the run and leave it out",
}
"""What the sender may choose for a message that arrives while a run is in progress."""


async def sessions_page(visit: Visit) -> Response:
    """List the sessions, the one with the newest message first."""
    begins = visit.asked.get("find", "").strip()
    found = await visit.served.engine.sessions(host=visit.caller.host, starts_with=begins, limit=LISTED + 1)
    return visit.page(
        "sessions.html",
        found=found[:LISTED],
        more=len(found) > LISTED,
        at_session=at_session,
        agents=sorted(visit.served.engine.agents),
        session_id=f"s-{secrets.token_hex(8)}",
        message_id=secrets.token_hex(12),
    )


async def session_page(visit: Visit) -> Response:
    """Show a conversation. The part with the messages is fetched again while it is looked at; it is empty if nothing has changed."""
    session, runs = await _known(visit)
    posted = await session.posted()
    seen = ".".join([str(len(runs)), str(runs[-1].records), runs[-1].status, str(len(posted))])
    part = visit.request.headers.get("hx-request") == "true"
    if part and visit.asked.get("seen") == seen:
        return Response(status_code=204, headers=HEADERS)
    last, everything = runs[-1], bool(visit.asked.get("all"))
    messages = _shown(await session.messages(), last)
    waits = [] if last.status in TERMINAL else await visit.served.engine.waits(last.run_id, host=visit.caller.host)
    return visit.page(
        "session_talk.html" if part else "session.html",
        session=session,
        runs=runs,
        last=last,
        messages=messages if everything else messages[-MESSAGES:],
        hidden=0 if everything else max(0, len(messages) - MESSAGES),
        waits=waits,
        posted=posted,
        owner=part or (await visit.served.engine.load(last.run_id, host=visit.caller.host)).state.host.principal,
        over=last.status in TERMINAL,
        ended=session.status == "completed",
        cost=sum(one.cost_usd for one in runs),
        rules=RULES,
        seen=seen,
        everything=everything,
        at_session=at_session,
        agents=sorted(visit.served.engine.agents),
        message_id=secrets.token_hex(12),
    )


def _shown(messages: Sequence[Message], last: RunHead) -> Sequence[Message]:
    """Return the messages without the note that a run has no answer, if it can still give one."""
    if last.status in TERMINAL or not messages or messages[-1].kind != "note" or messages[-1].run_id != last.run_id:
        return messages
    return messages[:-1]


async def begin(visit: Visit) -> Response:
    """Start a session with its first message."""
    form = await visit.form()
    agent, session_id = form.get("agent", ""), form.get("session", "")
    if agent not in visit.served.engine.agents:
        raise Refused(422, "no_such_agent", f"there is no agent {agent[:80]!r} here; choose one of those that are listed")
    session = visit.served.engine.session(agent, session_id, visit.caller.host)
    return await _send(visit, session, form)


async def say(visit: Visit) -> Response:
    """Send the next message of a session."""
    form = await visit.form()
    await _known(visit)
    return await _send(visit, visit.served.engine.session(form.get("agent") or None, visit.path["id"], visit.caller.host), form)


async def _send(visit: Visit, session: Session, form: dict[str, str]) -> Response:
    """Send a message, and show the session once it is recorded. Raise what kept it from being recorded."""
    rule: Any = form.get("rule", "reject")
    if rule not in get_args(Rule):
        raise Refused(422, "no_such_rule", f"{rule[:40]!r} does not say what happens while a run is in progress; choose {', '.join(RULES)}")
    served, message_id = visit.served, form.get("message", "") or secrets.token_hex(12)
    text = form.get("text", "")
    work = served.begin(
        session.send(text, message_id=message_id, rule=rule, by=visit.caller.principal, observers=[served.hub]),
        name=f"a message of session {session.id}",
    )
    reader = served.engine.session(None, session.id)
    async with asyncio.timeout(served.settings.wait_s):
        while not work.done() and not await reader.has(message_id):
            await wait_for_news(served.engine.store, LOOK_S)
    if work.done():
        work.result()
    return visit.go(f"{at_session(session.id)}#end")


async def _known(visit: Visit) -> tuple[Session, Sequence[RunHead]]:
    """Return a session of the visitor's tenant, to read it, and its runs. Raise `RunNotFound`.

    A session is read as the operator does, because its messages may be those of another principal of the tenant; sending is for its own.
    """
    engine = visit.served.engine
    theirs = engine.session(None, visit.path["id"], visit.caller.host)
    if not (runs := await theirs.runs()):
        raise RunNotFound(visit.path["id"], "the sessions of this server")
    return engine.session(None, theirs.id), runs


def at_session(session_id: str) -> str:
    """Return the address of a session's page."""
    return f"/ui/sessions/{quote(session_id, safe='@')}"


PAGES = (
    Page(path="/ui/sessions", handle=sessions_page),
    Page(path="/ui/sessions", handle=begin, role="run", method="POST"),
    Page(path="/ui/sessions/{id}", handle=session_page),
    Page(path="/ui/sessions/{id}", handle=say, role="run", method="POST"),
)
