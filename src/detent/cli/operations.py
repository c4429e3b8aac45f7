"""`--where` of the commands that act on many runs, and `detent operations`: list, show, stop, resume and remove such operations."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from detent.cli import options as o
from detent.cli.invocation import Invocation, know_agents, operator
from detent.cli.removing import confirm
from detent.core.budget import Budget
from detent.core.errors import ConfigError
from detent.engine import Engine
from detent.expressions.display import counted, plain, shortened
from detent.history.acting import Action
from detent.history.operations import Entry, Operation
from detent.history.selecting import query_of

Where = Annotated[
    list[str] | None,
    typer.Option(
        "--where",
        metavar="KEY=VALUE",
        help="All runs that match. Keys: status, agent, tenant, goal, since, until, version, dedupe_key. Repeatable.",
    ),
]
RunOrWhere = Annotated[str | None, typer.Argument(metavar="[RUN]", help=o.RUN_HELP, show_default=False, autocompletion=o.complete_run)]
HERE: tuple[Action, ...] = ("cancel", "reopen", "archive")
"""The actions that need none of the runs' code, so that any process with the store can do them."""


def with_code(setup: o.Setup) -> Invocation:
    """Return an invocation that has the agents of this directory, as `detent serve` has them, for actions that need the code of the runs."""
    invocation = Invocation(setup, changes=True)
    know_agents(invocation, needed=False)
    return invocation


def refuse_both(run: str | None, where: Sequence[str] | None) -> None:
    """Raise `ConfigError` unless exactly one of a run and a filter is given."""
    if (run is None) == (not where):
        both = f"run {run!r} and --where were given; " if where else ""
        raise ConfigError(f"{both}name one run, or give --where KEY=VALUE for every run that matches")


def over_many(
    invocation: Invocation,
    action: Action,
    where: Sequence[str],
    *,
    yes: bool,
    why: str = "",
    by: str | None = None,
    budget: Budget | None = None,
    to: Path | None = None,
) -> int:
    """Prepare an operation, show the number of its runs and some of them, ask, and do it. Return the exit code."""
    query, only = query_of(where)
    said = " ".join(where)

    async def prepare(engine: Engine) -> Operation:
        return await engine.operations.prepare(action, query, only=only, by=by or operator(), why=why, where=said, budget=budget, to=to)

    operation = invocation.drive(prepare, missing=None)
    if operation is None or not operation.runs:
        if operation is not None:
            invocation.drive(lambda engine: engine.operations.remove(operation.id))
        invocation.output.document(operation)
        invocation.output.say(f"no run to {action} matches {said}")
        return 0
    for head in operation.examples:
        invocation.output.say(f"  {head.run_id}  {head.status}  {shortened(head.title or head.goal, 80)}")
    if operation.runs > len(operation.examples):
        invocation.output.say(f"  and {operation.runs - len(operation.examples)} more")
    try:
        confirm(f"{action.capitalize()} {counted(operation.runs, 'run')}?", yes=yes, undone="nothing was done")
    except ConfigError:
        invocation.drive(lambda engine: engine.operations.remove(operation.id))
        raise
    return _advance(invocation, operation, by)


def _advance(invocation: Invocation, operation: Operation, by: str | None) -> int:
    resume = invocation.command("operations", "resume", operation.id)
    invocation.output.say(f"operation {operation.id}; if it is interrupted, continue it with: {resume}")

    def told(now: Operation) -> None:
        before = operation.runs - last[0]
        if now.left == 0 or before // _step(operation.runs) != (operation.runs - now.left) // _step(operation.runs):
            invocation.output.say(f"  {operation.runs - now.left} of {operation.runs}: {_counts(now)}", "dim")
        last[0] = now.left

    last = [operation.left]

    async def work(engine: Engine) -> tuple[Operation, list[Entry]]:
        now = await engine.operations.advance(operation.id, by=by or operator(), told=told)
        return now, list(await engine.operations.entries(operation.id))

    now, entries = invocation.drive(work)
    invocation.output.document({**plain(now), "entries": entries})
    for entry in entries:
        if entry.result != "done" or entry.what.startswith("diverges"):
            invocation.output.say(f"  {entry.result} {entry.run_id}: {entry.what}", "yellow" if entry.result == "failed" else "")
    stopped = f"; {now.stopped_by} stopped it, {now.left} left: {resume}" if now.stopped_by else ""
    invocation.output.say(f"{now.action}: {_counts(now)}{stopped}")
    return 1 if now.failed or now.left or any(entry.what.startswith("diverges") for entry in entries) else 0


def _step(runs: int) -> int:
    """How many runs lie between two lines of progress."""
    return max(1, runs // 20)


def _counts(now: Operation) -> str:
    return f"{now.done} done, {now.skipped} skipped, {now.failed} failed"


class Verb(StrEnum):
    """What to do with operations."""

    LIST = "list"
    SHOW = "show"
    RESUME = "resume"
    STOP = "stop"
    REMOVE = "remove"


def operations(
    verb: Annotated[Verb, typer.Argument(metavar="[ACTION]", help="list, show, resume, stop or remove.", show_default=False)] = Verb.LIST,
    operation: Annotated[str | None, typer.Argument(metavar="[ID]", help="The id of an operation, or its beginning.")] = None,
    *,
    by: o.By = None,
    setup: o.Looking,
) -> int:
    """List operations over many runs (cancel, resume, reopen, replay, archive --where), newest first; show, resume, stop or remove one.

    An operation has one entry for each of its runs: the outcome, by whom, when. The set of its runs was frozen when it began. `resume` continues an
    operation that was stopped or whose process died; nothing is done twice. `remove` removes the entries and leaves the runs as they are.
    """
    invocation = Invocation(setup, changes=verb not in (Verb.LIST, Verb.SHOW), bare=True)
    if verb == Verb.LIST:
        found = invocation.drive(lambda engine: engine.operations.list(), missing=[])
        invocation.output.document([{**plain(one), "status": one.status, "left": one.left} for one in found])
        if not found:
            invocation.output.say(f"no operations in {invocation.engine.store.url}")
            return 0
        rows = [(one.id, one.action, one.status, str(one.runs), _counts(one), one.by, _at(one.at), one.where or one.why) for one in found]
        head = ("ID", "ACTION", "STATUS", "RUNS", "ENTRIES", "BY", "AT (UTC)", "WHERE")
        invocation.output.table(head, rows, spare=("AT (UTC)", "BY"))
        return 0
    if operation is None:
        raise ConfigError(f"name the operation: detent operations {verb.value} ID; `detent operations` lists them")
    wanted = operation
    if verb == Verb.SHOW:
        return _show(invocation, wanted)
    if verb == Verb.RESUME:
        one = invocation.drive(lambda engine: engine.operations.get(wanted))
        return _advance(invocation if one.action in HERE else with_code(setup), one, by)
    if verb == Verb.STOP:
        now = invocation.drive(lambda engine: engine.operations.stop(wanted, by=by or operator()))
        invocation.output.document(now)
        invocation.output.say(f"operation {now.id} is {now.status}: {_counts(now)}, {now.left} left")
        return 0
    invocation.drive(lambda engine: engine.operations.remove(wanted))
    invocation.output.document({"id": wanted, "removed": True})
    invocation.output.say(f"removed operation {wanted}; its runs stay as they are")
    return 0


def _show(invocation: Invocation, wanted: str) -> int:
    async def work(engine: Engine) -> tuple[Operation, Sequence[Entry]]:
        return await engine.operations.get(wanted), await engine.operations.entries(wanted)

    one, entries = invocation.drive(work)
    invocation.output.document({**plain(one), "status": one.status, "left": one.left, "entries": entries})
    why = f", because {one.why}" if one.why else ""
    invocation.output.say(f"{one.action} {one.where} by {one.by} at {_at(one.at)} UTC{why}: {one.status}, {_counts(one)}, {one.left} left")
    rows = [(entry.run_id, entry.result, _at(entry.at), entry.by, entry.what) for entry in entries]
    invocation.output.table(("RUN", "RESULT", "AT (UTC)", "BY", "OUTCOME"), rows, spare=("AT (UTC)", "BY"))
    return 0


def _at(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M:%S}"
