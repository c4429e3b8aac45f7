"""Commands that remove: erase, delete, gc."""

from __future__ import annotations

import sys

from detent.cli import options as o
from detent.cli.session import Session, operator
from detent.core.errors import ConfigError
from detent.engine import Engine


def erase(
    run: o.RunArgument,
    *,
    why: o.Why = "",
    by: o.By = None,
    yes: o.Yes = False,
    setup: o.Looking,
) -> int:
    """Remove the content of a finished or waiting run for good; its chain of digests stays and can be verified."""
    session = Session(setup, changes=True, bare=True)
    run_id = session.drive(lambda _: session.find(run))
    confirm(session, f"Remove everything that run {run_id} holds, and keep its digests?", yes=yes)

    async def work(engine: Engine) -> None:
        await engine.erase(run_id, by=by or operator(), why=why)

    session.drive(work)
    session.output.document({"run_id": run_id, "erased": True})
    session.output.say(f"erased run {run_id}; `{session.command('verify', run_id)}` still checks its chain")
    return 0


def delete(run: o.RunArgument, *, yes: o.Yes = False, setup: o.Looking) -> int:
    """Remove a run with all that belongs to it."""
    session = Session(setup, changes=True, bare=True)
    run_id = session.drive(lambda _: session.find(run))
    confirm(session, f"Remove run {run_id} with its whole log?", yes=yes)

    async def work(engine: Engine) -> None:
        await engine.delete(run_id)

    session.drive(work)
    session.output.document({"run_id": run_id, "deleted": True})
    session.output.say(f"deleted run {run_id}")
    return 0


def gc(*, setup: o.Looking) -> int:
    """Drop artifacts that no record names, and give unused space back."""
    session = Session(setup, changes=True, bare=True)

    async def work(engine: Engine) -> int:
        return await engine.gc()

    freed = session.drive(work, missing=0)
    session.output.document({"freed_bytes": freed})
    session.output.say(f"freed {freed} bytes")
    return 0


def confirm(session: Session, question: str, *, yes: bool) -> None:
    """Ask on a terminal; go on without asking in a pipe, where nobody could answer. Raise `ConfigError` when the answer is no."""
    if yes or session.output.json or not sys.stdin.isatty():
        return
    sys.stderr.write(f"{question} [y/N]: ")
    sys.stderr.flush()
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise ConfigError("nothing was removed")
