"""Commands that remove: erase, delete, gc."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from detent.cli import options as o
from detent.cli.invocation import Invocation, operator
from detent.cli.output import Output
from detent.core.errors import ConfigError
from detent.core.records import RunHead
from detent.engine import Engine
from detent.expressions.display import counted
from detent.history.retention import Retained
from detent.running.results import Erasure


def erase(
    run: o.RunArgument,
    *,
    keep_later: Annotated[
        bool, typer.Option("--keep-later", help="Leave the run's words in the conversations of later runs of its session.")
    ] = False,
    memory: Annotated[
        bool, typer.Option("--memory", help="Also forget what was remembered from the run. Default: ask at a terminal.")
    ] = False,
    why: o.Why = "",
    by: o.By = None,
    yes: o.Yes = False,
    setup: o.Looking,
) -> int:
    """Remove the content of a finished or waiting run for good. Its chain of digests stays and can be verified.

    Later runs of its session lose its words, too. Open ones must end first, unless you give --keep-later.
    """
    invocation = Invocation(setup, changes=True, bare=True)

    async def find(engine: Engine) -> tuple[str, dict[str, int]]:
        run_id = await invocation.find(run)
        previews = {name: await engine.memory.forget(run=run_id, preview=True, name=name) for name in engine.memory.names()}
        return run_id, {name: len(one.items) for name, one in previews.items() if one.items}

    run_id, remembered = invocation.drive(find)
    items = counted(sum(remembered.values()), "item")
    confirm(f"Remove everything that run {run_id} holds, and keep its digests?", yes=yes)
    forget = memory or (bool(remembered) and not yes and _agreed(f"Also forget {items} of memory that came from it?"))

    async def work(engine: Engine) -> Erasure:
        return await engine.erase(run_id, by=by or operator(), why=why, keep_later=keep_later, memory=forget)

    erased = invocation.drive(work)
    named = erased.ids_with_goal_words
    document = {"run_id": run_id, "erased": True, "ids_with_goal_words": named, "later": erased.later, "remembered": erased.remembered}
    invocation.output.document(document)
    invocation.output.say(f"erased run {invocation.short(run_id)}; `{invocation.command('verify', run_id)}` still checks its chain")
    if named:
        why = "ids stay because the chain covers them; set `goal_words_in_ids = false` in detent.toml to get ids without them"
        invocation.output.say(f"words of its goal are left in {', '.join(named)}: {why}", "yellow")
    if erased.later:
        invocation.output.say(f"its words are removed from the conversations of {', '.join(map(invocation.short, erased.later))}, too")
    if remembered and forget:
        invocation.output.say(f"forgot {items} of memory that came from it")
    elif remembered:
        invocation.output.say(f"memory still has {items} that came from it", "yellow")
        for name in remembered:
            which = ["--memory", name] if len(remembered) > 1 else []
            invocation.output.say(f"  next: {invocation.command('memory', 'forget', '--run', run_id, *which)}")
    return 0


def delete(run: o.RunArgument, *, yes: o.Yes = False, setup: o.Looking) -> int:
    """Remove a run and everything that belongs to it."""
    invocation = Invocation(setup, changes=True, bare=True)
    run_id = invocation.drive(lambda _: invocation.find(run))
    confirm(f"Remove run {run_id} with its whole log?", yes=yes)

    async def work(engine: Engine) -> RunHead | None:
        await engine.delete(run_id)
        return await engine.store.head(run_id)

    kept = invocation.drive(work)
    invocation.output.document({"run_id": run_id, "deleted": kept is None})
    if kept is None:
        invocation.output.say(f"deleted run {invocation.short(run_id)}")
        return 0
    invocation.output.say(f"erased run {invocation.short(run_id)}: it was started by run {kept.parent}, whose log names its digests")
    invocation.output.say(f"`{invocation.command('delete', kept.parent)}` removes them together", "yellow")
    return 0


def gc(*, yes: o.Yes = False, setup: o.Looking) -> int:
    """Erase or archive runs whose `retention` has expired, delete artifacts that no record names, and free unused space."""
    invocation = Invocation(setup, changes=True, bare=True)
    due = invocation.drive(lambda engine: engine.retain(dry=True), missing=Retained())
    old = (
        f"erase {counted(len(due.erased), 'run')} and archive {len(due.archived)} whose retention has expired, and "
        if due != Retained()
        else ""
    )
    confirm(f"In {invocation.engine.store.url}, {old}remove every artifact that no record names?", yes=yes)

    async def work(engine: Engine) -> tuple[Retained, int]:
        return await engine.retain(), await engine.gc()

    done, freed = invocation.drive(work, missing=(Retained(), 0))
    invocation.output.document({"freed_bytes": freed, "erased": done.erased, "archived": done.archived, "left": done.left})
    for run_id, why in done.left.items():
        invocation.output.say(f"  left: run {run_id}: {why}", "yellow")
    if due != Retained():
        invocation.output.say(f"erased {counted(len(done.erased), 'run')}, archived {len(done.archived)}")
    invocation.output.say(f"freed {freed} bytes")
    return 1 if done.left else 0


def confirm(question: str, *, yes: bool, undone: str = "nothing was removed") -> None:
    """Ask at a terminal; `yes` skips the question. Raise `ConfigError` if the answer is no, or if there is no terminal."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise ConfigError(f"{question} There is no terminal to ask: {undone}. To do it, add --yes")
    if not _agreed(question):
        raise ConfigError(undone)


def _agreed(question: str) -> bool:
    return Output().ask(f"{question} [y/N]: ").strip().lower() in ("y", "yes")
