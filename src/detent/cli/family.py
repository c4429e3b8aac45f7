"""Commands about a run and its children: tree, cost."""

from __future__ import annotations

import contextlib
import shutil
import sys
from typing import Annotated, Any

import typer

from detent.cli import options as o
from detent.cli.invocation import Invocation
from detent.cli.output import clean, coloured, style_of
from detent.core.budget import NOTHING, Usage
from detent.engine import Engine
from detent.expressions.display import counted, plain
from detent.history import trees
from detent.history.model_calls import reserved
from detent.history.trees import Branch, Cost, Tree


def tree(
    run: o.RunArgument,
    *,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Show it again whenever it changes, until all its runs have ended.")
    ] = False,
    setup: o.Looking,
) -> int:
    """Show a run and the runs that its agents started: agent, status, turns and cost of each."""
    invocation = Invocation(setup, bare=True)
    shown = _Shown(invocation)

    async def work(engine: Engine) -> Tree:
        run_id = await invocation.find(run)
        if not follow:
            return await engine.tree(run_id)
        last = await engine.tree(run_id)
        async with contextlib.aclosing(trees.grows(engine.runtime, run_id)) as found:
            async for last in found:
                shown.show(last)
        return last

    now = invocation.drive(work)
    if invocation.output.json:
        invocation.output.document({"root": now.root, "runs": [_document(one, now.root) for one in now.runs]})
    elif not follow:
        shown.show(now)
    return 0


def _document(one: Branch, root: str) -> dict[str, Any]:
    return {"root": root, **{name: value for name, value in plain(one).items() if name != "head"}, "tenant": one.head.tenant}


class _Shown:
    """A tree on stdout. On a terminal it is drawn again in place, in a pipe each change is a line."""

    def __init__(self, invocation: Invocation) -> None:
        self._invocation, self._drawn, self._before = invocation, 0, dict[str, Branch]()

    def show(self, now: Tree) -> None:
        """Show the tree, or what has changed in it since."""
        out, again = self._invocation.output, bool(self._before)
        if out.json:
            return
        before, self._before = self._before, {one.run_id: one for one in now.runs}
        if again and not (coloured(sys.stdout) and self._drawn < shutil.get_terminal_size().lines):
            for one in now.runs:
                if one != before.get(one.run_id):
                    what = "began" if one.run_id not in before else _status(one)
                    out.show(f"  {clean(one.agent)}  {what}  {counted(one.iterations, 'turn')}  {one.run_id}", style_of(one.status))
            return
        if again:
            sys.stdout.write(f"\x1b[{self._drawn}F\x1b[J")
        elif now.root != now.runs[0].run_id:
            out.say(f"part of the tree of run {now.root}")
        rows = [
            (f"{line}{_name(one)}", clean(one.agent), _status(one), str(one.iterations), _cost(one), one.goal) for line, one in _lines(now)
        ]
        out.table(("RUN", "AGENT", "STATUS", "TURNS", "COST (USD)", "GOAL"), rows, [style_of(one.status) for one in now.runs])
        self._drawn = len(rows) + 1


def _name(one: Branch) -> str:
    """Return the id of the top run, and of a child the part that its parent's id does not have."""
    return one.run_id if not one.depth else one.run_id.partition("@")[0].rpartition(".")[2]


def _status(one: Branch) -> str:
    reason = one.reason if one.status in ("failed", "stopped") else ""
    return f"{one.status}: {reason}" if reason else one.status


def _cost(one: Branch) -> str:
    return f"{one.cost_usd:.4f}" if one.cost_usd else "-"


def _lines(now: Tree) -> list[tuple[str, Branch]]:
    """Return each run with the lines that connect it to its parent."""
    found: list[tuple[str, Branch]] = []
    last: dict[int, bool] = {}  # whether the run at this depth above has no later sibling
    open_at: set[int] = set()
    for one in reversed(now.runs):  # from the end, a run at a depth that was seen already has a later sibling
        last[one.depth] = one.depth not in open_at
        bars = "".join("│  " if depth in open_at else "   " for depth in range(1, one.depth))
        found.append((f"{bars}{'└─ ' if last[one.depth] else '├─ '}" if one.depth else "", one))
        open_at = {depth for depth in open_at if depth < one.depth} | {one.depth}
    return found[::-1]


def cost(
    run: o.RunArgument,
    *,
    tree: Annotated[bool, typer.Option("--tree", help="Also list each run below it, with what it used itself.")] = False,
    setup: o.Looking,
) -> int:
    """Show what a run used, with its children, and what it holds for children that have not ended."""
    invocation = Invocation(setup, bare=True)

    async def work(engine: Engine) -> list[Cost]:
        found = await trees.costs(engine.runtime, await invocation.find(run))
        return found if tree else found[:1]

    found = invocation.drive(work)
    invocation.output.document(found)
    rows = [(f"{'  ' * one.depth}{one.agent}", *_amounts(one.own), one.run_id) for one in found]
    if not tree and found[0].own != found[0].whole:
        rows.append(("  its children", *_amounts(trees.less(found[0].whole, found[0].own)), ""))
    total = NOTHING
    for one in found:
        total = total.plus(one.own if tree else one.whole)
    if len(rows) > 1:
        rows.append(("all", *_amounts(total), ""))
    invocation.output.table(("AGENT", "TURNS", "CALLS", "MODEL CALLS", "TOKENS", "COST (USD)", "RUN"), rows)
    if held := reserved(found[0].reserved):
        invocation.output.say(f"reserved for children that have not ended: {held}")
    return 0


def _amounts(used: Usage) -> tuple[str, ...]:
    money = "-" if used.cost_usd is None else f"{used.cost_usd:.4f}"
    return str(used.iterations), str(used.tool_calls), str(used.model_calls), f"{used.total_tokens:,}", money
