"""Try it another way: fork a run with something changed, compare two runs side by side, judge past decisions by another policy, replay."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import quote

import msgspec
from starlette.responses import Response

from detent.config.environment import parse_budget
from detent.core.agent import Host
from detent.core.errors import ConfigError, DetentError, Divergence, UnknownName
from detent.core.state import TERMINAL, WAITING
from detent.history.backtest import Backtest
from detent.history.comparing import Diff, Side, SideTurn
from detent.ports import RunQuery
from detent.running.lineage import history
from detent.running.runtime import pass_on
from detent.server.pages.rendering import at_run
from detent.server.pages.run import reading_of
from detent.server.pages.visits import Page, Visit
from detent.server.problems import Refused, problem_of

EFFECTS = (
    ("dry_run", "Nothing happens in the world", "A call with an effect is answered with its recorded outcome, or else with a stub."),
    ("reuse", "What happened is not repeated", "A call that was made is answered with its recorded outcome; a new call is carried out."),
    ("redo", "Everything happens again", "Every call with an effect is carried out again, also those that were."),
)
"""The rules for calls with side effects in a fork, in plain words."""
TEXTS = ("goal", "instruction", "model", "bounds", "call", "result", "ask", "reply", "rest")
MOST_RUNS = 1_000
ALIGNED = 400
"""So many turns are shown side by side; the differences are complete."""


async def fork_form(visit: Visit) -> Response:
    """Show what can be changed in a fork."""
    return await _form(visit, dict.fromkeys(TEXTS, "") | {"at": visit.asked.get("at", ""), "effects": "dry_run"})


async def _form(visit: Visit, fields: Mapping[str, str], *, problem: str = "", status: int = 200) -> Response:
    reading = await reading_of(visit)
    calls = [(call.call_id, call.tool) for call in reading.tracer.calls.values()][-500:]
    values = {"run": reading.state, "calls": calls, "asks": reading.asks, "effects": EFFECTS, "fields": fields, "problem": problem}
    return visit.page("fork.html", status=status, **values)


async def fork(visit: Visit) -> Response:
    """Make the fork, leave it to a worker, and compare it with the run."""
    fields = dict.fromkeys(TEXTS, "") | {"at": "", "effects": "dry_run"} | await visit.form()
    engine = visit.served.engine
    try:
        edits = edits_of(fields)
        at = _place(fields["at"].strip())
        effects: Any = fields["effects"]
        whose, by = await _host(visit), visit.caller.principal
        made = await engine.fork(visit.path["run_id"], at=at, edits=edits, effects=effects, by=by, host=whose, resume=False)
    except DetentError as error:
        problem = problem_of(error, engine.store.url)
        return await _form(visit, fields, problem=str(error), status=problem.status if problem else 409)
    await pass_on(engine.runtime, made.run_id)
    return visit.go(f"/ui/compare?a={quote(visit.path['run_id'], safe='')}&b={quote(made.run_id, safe='')}")


def _place(text: str) -> int | None:
    """Return the record to fork at; None for no text. Raise `ConfigError` for something else."""
    if text and not (text.isascii() and text.isdigit() and len(text) < 16):
        raise ConfigError(f"the record to fork at is {text[:40]!r}; give its number, or leave it out")
    return int(text) if text else None


async def _host(visit: Visit) -> Host:
    """Return whose run the fork is: as the run, the same person's. Raise `Refused` if that is somebody else and the visitor does not operate."""
    theirs = (await visit.served.engine.load(visit.path["run_id"], host=visit.caller.host)).state.host
    if theirs.principal != visit.caller.principal:
        visit.need("operate")
    return theirs


def edits_of(fields: Mapping[str, str]) -> dict[str, Any]:
    """Return the changes that a form asks for; an empty field changes nothing. Raise `ConfigError`."""
    edits: dict[str, Any] = {name: fields[name].strip() for name in ("goal", "instruction", "model") if fields[name].strip()}
    if bounds := fields["bounds"].split():
        edits["budget"] = msgspec.to_builtins(parse_budget(bounds, "the budget"))
    if fields["call"] and fields["result"].strip():
        edits["results"] = {fields["call"]: _json_or_text(fields["result"])}
    if fields["ask"] and fields["reply"].strip():
        edits["replies"] = {fields["ask"]: fields["reply"]}
    if fields["rest"].strip():
        try:
            edits |= msgspec.json.decode(fields["rest"], type=dict[str, Any])
        except msgspec.DecodeError as error:
            raise ConfigError(f'the other changes are not a JSON object ({error}); write for example {{"policy": {{...}}}}') from error
    return edits


def _json_or_text(text: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        return text


# Side by side -----------------------------------------------------------------------------------------------------------------------------


class Pair(msgspec.Struct, frozen=True, kw_only=True):
    """One turn of two runs; a run that has no such turn has None. `differs`: they are not the same; `first`: nothing differs before."""

    scope: str
    iteration: int
    a: SideTurn | None
    b: SideTurn | None
    differs: bool
    first: bool = False


async def compare(visit: Visit) -> Response:
    """Show two runs side by side, turn by turn, with the first difference marked."""
    a, b = visit.asked.get("a", "").strip(), visit.asked.get("b", "").strip()
    if not (a and b):
        return visit.page("compare.html", found=None, pairs=[], a=a, b=b, more=0)
    engine, host = visit.served.engine, visit.caller.host
    found: Diff = await engine.diff(a, b, host=host)
    one, other = [Side(await history(engine.store, await engine.runtime.visible(run_id, host))) for run_id in (a, b)]
    pairs = _pairs(one, other, found)
    first = next((number for number, pair in enumerate(pairs) if pair.first), 0)
    start = max(0, first - 5) if len(pairs) > ALIGNED else 0
    return visit.page(
        "compare.html", found=found, pairs=pairs[start : start + ALIGNED], a=found.a, b=found.b, more=max(0, len(pairs) - ALIGNED)
    )


def _pairs(a: Side, b: Side, found: Diff) -> list[Pair]:
    differing = {(one.scope, one.iteration) for one in found.differences if one.iteration}
    pairs: list[Pair] = []
    marked = False
    for key in dict.fromkeys((*a.turns, *b.turns)):
        differs = key in differing
        pairs.append(
            Pair(scope=key[0], iteration=key[1], a=a.turns.get(key), b=b.turns.get(key), differs=differs, first=differs and not marked)
        )
        marked = marked or differs
    return pairs


# Another policy ---------------------------------------------------------------------------------------------------------------------------


async def backtest_form(visit: Visit) -> Response:
    """Ask for a policy, and the runs to judge by it."""
    return visit.page(
        "backtest.html", found=None, policy="", query={"agent": visit.asked.get("agent", ""), "status": "", "bounds": ""}, problem=""
    )


async def backtest(visit: Visit) -> Response:
    """Judge recorded decisions by a policy. Nothing is executed."""
    fields = await visit.form()
    text, query = fields.get("policy", ""), {name: fields.get(name, "") for name in ("agent", "status", "bounds")}
    try:
        found = await _judged(visit, text, query)
    except DetentError as error:
        said = re.sub(r"\S*/(?=policy\.toml)", "", str(error))
        return visit.page("backtest.html", found=None, policy=text, query=query, problem=said, status=422)
    return visit.page("backtest.html", found=found, policy=text, query=query, problem="")


async def _judged(visit: Visit, text: str, query: Mapping[str, str]) -> Backtest:
    if query["status"] and query["status"] not in ("running", *WAITING, *TERMINAL):
        raise UnknownName("status", query["status"], ("running", *WAITING, *TERMINAL))
    wanted = RunQuery(agent=query["agent"] or None, status=(query["status"],) if query["status"] else (), limit=MOST_RUNS)
    bounds = query["bounds"].split()
    engine, host = visit.served.engine, visit.caller.host
    budget = parse_budget(bounds, "the budget") if bounds else None
    if not text.strip():
        return await engine.backtest(budget=budget, query=wanted, host=host)
    with TemporaryDirectory() as place:
        file = Path(place) / "policy.toml"
        file.write_text(text, encoding="utf-8")
        return await engine.backtest(file, budget=budget, query=wanted, host=host)


async def replay(visit: Visit) -> Response:
    """Execute a log again with the installed code, and show the verdict."""
    run_id = visit.path["run_id"]
    try:
        found = await visit.served.engine.replay(run_id, host=visit.caller.host)
    except Divergence as error:
        raise Refused(409, "divergence", str(error)) from error
    return visit.page("replayed.html", run_id=run_id, found=found, address=at_run(run_id))


PAGES = (
    Page(path="/ui/runs/{run_id}/fork", handle=fork_form),
    Page(path="/ui/runs/{run_id}/fork", handle=fork, role="run", method="POST"),
    Page(path="/ui/runs/{run_id}/replay", handle=replay),
    Page(path="/ui/compare", handle=compare),
    Page(path="/ui/backtest", handle=backtest_form),
    Page(path="/ui/backtest", handle=backtest, role="operate", method="POST"),
)
