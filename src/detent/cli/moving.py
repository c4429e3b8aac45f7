"""Commands that move runs: copy, archive, import."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Annotated, TypeVar

import typer

from detent.cli import options as o
from detent.cli.invocation import Invocation, impatient
from detent.cli.operations import Where, over_many
from detent.cli.removing import confirm
from detent.config.assembly import store_at
from detent.core.errors import ConfigError, DetentError
from detent.engine import Engine
from detent.expressions.display import counted
from detent.history import moving
from detent.history.families import Known, belongs_above
from detent.history.selecting import since_of
from detent.ports import EventStore, RunQuery

T = TypeVar("T")
Target = Annotated[str, typer.Option("--to", metavar="URL", help="The store to copy to, such as postgresql://HOST/DATABASE.")]


def copy(
    runs: Annotated[list[str] | None, typer.Argument(metavar="RUN...", help="Run ids, unique prefixes of ids, or `last`.")] = None,
    *,
    to: Target,
    everything: Annotated[bool, typer.Option("--all", help="Copy every run of the store; unfinished runs only with --move.")] = False,
    move: Annotated[
        bool, typer.Option("--move", help="Remove each run here once its copy is checked. Unfinished runs can only be moved.")
    ] = False,
    yes: o.Yes = False,
    setup: o.Looking,
) -> int:
    """Copy runs into another store, byte for byte. If interrupted, run it again: it continues where it stopped."""
    if bool(runs) == everything:
        raise ConfigError("name the runs to copy, or give --all for every run of the store")
    invocation = Invocation(setup, changes=True, bare=True)
    target = store_at(to, **impatient(to))
    if move:
        confirm(f"Move {'every run' if everything else counted(len(runs or ()), 'run')} to {target.url} and remove them here?", yes=yes)

    async def work(engine: Engine) -> tuple[list[moving.Moved], int]:
        asked = [await invocation.find(run) for run in runs or ()]
        await target.open()
        try:
            return await _copy(invocation, engine.store, target, asked, move=move)
        finally:
            await target.close()

    done, left = invocation.drive(work, missing=([], 0)) if everything else invocation.drive(work)
    invocation.output.document(done)
    invocation.output.say(f"{'moved' if move else 'copied'} {counted(len(done), 'run')} to {target.url}{_left(left)}")
    return 1 if left else 0


async def _copy(
    invocation: Invocation, source: EventStore, target: EventStore, asked: list[str], *, move: bool
) -> tuple[list[moving.Moved], int]:
    """Copy the given runs, or all runs if none are given. Of several, report and count each that cannot be copied."""
    run_ids = asked
    if not asked:
        known = Known()
        heads = [head for head in await source.list_runs(RunQuery()) if not await belongs_above(source, head, known)]
        run_ids = [head.run_id for head in reversed(heads) if move or head.status in moving.TERMINAL]
        if len(run_ids) < len(heads):
            stay = counted(len(heads) - len(run_ids), "unfinished run")
            invocation.output.say(f"not copied: {stay}, because both copies could then be advanced; --move moves them too", "yellow")
    return await _each(invocation, run_ids, lambda run_id: moving.copy(source, target, run_id, move=move), moving.OF_ONE_RUN)


async def _each(
    invocation: Invocation, asked: Sequence[T], work: Callable[[T], Awaitable[moving.Moved]], left: tuple[type[DetentError], ...]
) -> tuple[list[moving.Moved], int]:
    """Do the work for each and report it. Of several, report and count each that fails with such an error, and continue."""
    done: list[moving.Moved] = []
    failed = 0
    for one in asked:
        try:
            done.append(await work(one))
        except left as error:
            if len(asked) == 1:
                raise
            failed += 1
            invocation.output.say(str(error), "yellow")
        else:
            invocation.output.say(_said(done[-1]))
    return done, failed


def _left(count: int) -> str:
    return f", left {count}" if count else ""


def archive(
    *,
    before: Annotated[
        str | None, typer.Option("--before", metavar="WHEN", help="Only runs last changed before: 30d, 12h, or a date (UTC).")
    ] = None,
    where: Where = None,
    to: Annotated[Path, typer.Option("--to", metavar="DIR", help="The directory for the archives; created if it does not exist.")],
    tenant: Annotated[str | None, typer.Option("--tenant", metavar="NAME", help="Only runs of this tenant.")] = None,
    dry: Annotated[bool, typer.Option("--dry-run", help="Only list the runs.")] = False,
    yes: o.Yes = False,
    setup: o.Looking,
) -> int:
    """Write finished runs into compressed files, one per run, and remove them from the store. `detent import` brings them back.

    With --where, it archives every finished run that matches. `detent operations` lists what was done, and resumes it.
    """
    if (before is None) == (not where):
        raise ConfigError("give --before WHEN, or --where KEY=VALUE for every finished run that matches")
    invocation = Invocation(setup, changes=True, bare=True)
    if before is None:
        if tenant is not None or dry:
            raise ConfigError(
                "--tenant and --dry-run are for --before: write --where tenant=NAME; with --where the runs are shown before it asks"
            )
        return over_many(invocation, "archive", where or (), yes=yes, to=to)
    moment = since_of(before, option="--before")
    heads = invocation.drive(lambda engine: moving.finished_before(engine.store, moment, tenant=tenant), missing=[])
    if dry or not heads:
        invocation.output.document(heads)
        for head in reversed(heads):
            invocation.output.show(head.run_id)
        invocation.output.say(f"{len(heads)} finished runs were last changed before {moment:%Y-%m-%d %H:%M} UTC")
        return 0
    confirm(
        f"Write {counted(len(heads), 'run')} to {to} and remove them, and their hidden values, from {invocation.engine.store.url}?", yes=yes
    )

    async def work(engine: Engine) -> tuple[list[moving.Moved], int]:
        done: list[moving.Moved] = []
        left = 0
        async for result in moving.archive_before(engine.store, to, moment, tenant=tenant):
            if isinstance(result, moving.Moved):
                done.append(result)
                invocation.output.say(_said(result))
            else:
                left += 1
                invocation.output.say(str(result), "yellow")
        return done, left

    done, left = invocation.drive(work)
    invocation.output.document(done)
    invocation.output.say(f"archived {counted(len(done), 'run')} in {to}{_left(left)}")
    return 1 if left else 0


def bring_back(
    paths: Annotated[list[Path], typer.Argument(metavar="PATH...", help="Archive files, or directories of them.", show_default=False)],
    *,
    most: Annotated[
        int,
        typer.Option(
            "--max-bytes", metavar="N", min=0, help="The most bytes that one archive may unpack to. 0: 200 times its size, at most 1 GiB."
        ),
    ] = 0,
    setup: o.Looking,
) -> int:
    """Bring archived runs back into the store. A run that exists already stays as it is. Exits with 1 if an archive could not be imported."""
    invocation = Invocation(setup, bare=True)
    invocation.creates = True
    archives = [archive for path in paths for archive in moving.archives_in(path)]

    async def work(engine: Engine) -> tuple[list[moving.Moved], int]:
        left = (*moving.OF_ONE_RUN, ConfigError)
        return await _each(invocation, archives, lambda path: moving.bring_back(engine.store, path, most_bytes=most), left)

    done, left = invocation.drive(work)
    invocation.output.document(done)
    invocation.output.say(f"imported {counted(len(done), 'run')} into {invocation.engine.store.url}{_left(left)}")
    return 1 if left else 0


def _said(moved: moving.Moved) -> str:
    new = f"{moved.added} of {moved.records} records" if moved.added else f"its {moved.records} records existed already"
    new += f" and {counted(moved.children, 'child run')}" if moved.children else ""
    said = f"  {moved.run_id}: {new}, {moved.blobs} artifacts, {'removed here, ' if moved.removed else ''}digest {moved.digest[:16]}"
    if not moved.missing:
        return said
    hidden = counted(moved.missing, "hidden value")
    return f"{said}; {hidden} missing (archives hold none): a call that needs one, in this run or a fork of it, gets only the placeholder"
