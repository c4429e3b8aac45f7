"""The command verify."""

from __future__ import annotations

from typing import Annotated

import typer

from detent.cli import options as o
from detent.cli.invocation import Invocation
from detent.engine import Engine
from detent.expressions.display import counted, shortened
from detent.history.tree_checks import verify_tree
from detent.running.results import Verification


def verify(
    run: o.RunArgument,
    *,
    head: Annotated[
        str, typer.Option("--head", metavar="DIGEST", help="The digest that the log must end with, from a copy that you kept elsewhere.")
    ] = "",
    tree: Annotated[
        bool, typer.Option("--tree", help="Also check every run below it, and that each log has what the others recorded of it.")
    ] = False,
    setup: o.Looking,
) -> int:
    """Check a run: each digest of its log, its artifacts and hidden values, its listing entry (tenant, status, ...) and its inbox."""
    invocation = Invocation(setup, bare=True)

    async def work(engine: Engine) -> list[Verification]:
        run_id = await invocation.find(run)
        return await verify_tree(engine.runtime, run_id, head=head) if tree else [await engine.verify(run_id, head=head)]

    every = invocation.drive(work)
    invocation.output.document(every if tree else every[0])
    for one in every[1:] if tree else ():
        if not one.ok:
            invocation.output.show(f"child {one.run_id}:")
            _verified(invocation, one)
    code = _verified(invocation, every[0])
    bad = sum(not one.ok for one in every)
    if tree:
        gone = f", {erased} erased" if (erased := sum(one.erased for one in every)) else ""
        invocation.output.show(
            f"{counted(len(every), 'run')} in the tree: {f'{bad} not sound' if bad else 'all sound'}{gone}", "red" if bad else "green"
        )
    return 1 if bad else code


def _verified(invocation: Invocation, found: Verification) -> int:
    """Write the outcome for one run."""
    if found.ok:
        kept = ", content erased" if found.erased else ""
        invocation.output.show(f"sound: {found.records} records{kept}, head {found.digest}", "green")
        if found.parent_erased:
            invocation.output.show(
                f"it continues from run {found.parent_erased}, which was erased: it can neither be read nor resumed", "yellow"
            )
            invocation.output.say(f"`{invocation.command('erase', found.run_id)}` removes its own records")
        if found.missing:
            invocation.output.show(f"{found.missing} hidden values are missing (an archive holds none); calls that need them will fail")
        return 0
    where = f" at record {found.sequence}" if found.sequence is not None else ""
    invocation.output.show(f"not sound{where}: {shortened(found.problem, None)}", "red")
    for problem in found.further:
        invocation.output.show(f"not sound: {shortened(problem, None)}", "red")
    invocation.output.show(f"sound before that: {found.records} records, head {found.digest or 'none'}")
    invocation.output.say(f"`{invocation.command('export', found.run_id)}` saves what can be read")
    return 1
