"""What compaction costs: the decision of each turn, and a turn at the end of a long run beside one at its start.

    python benchmarks/compaction.py [--turns 10000] [--window 8000] [--quick] [--json]

`decision` is what a turn pays to find that no compaction is due; its floor is the call of an empty function in its place, and the target is 5 µs.
Then a run with a window is compacted again and again: the processor time of a turn in its first and in its last tenth (medians of groups of 50
turns), the largest prompt that its planner was shown, and as the floor the same run without compaction. Nothing is asserted; the targets are that
no prompt is larger than the window, and that the last tenth costs what the first one does.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

HERE = Path(__file__).resolve()
sys.path.insert(0, str(HERE.parent.parent / "src"))

from detent import Agent, Budget, Engine, FinalAnswer, Plan, ToolCall, View, tool  # noqa: E402 - the checkout comes first
from detent.config.names import Names  # noqa: E402
from detent.core.events import Planned  # noqa: E402
from detent.core.history import Seq  # noqa: E402
from detent.core.state import Item, KernelState  # noqa: E402
from detent.memories.compactors import BUILT_IN  # noqa: E402
from detent.ports import CompactionOptions, ResultCompression  # noqa: E402
from detent.running.compacting import Compacting  # noqa: E402
from detent.running.estimating import tokens_of_item  # noqa: E402

TARGET_US = 5.0
GROUP = 50
"""Turns of which one time is taken: processor time, so other programs on the machine do not count."""
TEXT = "the quick brown fox jumps over the lazy dog " * 20


@tool(side_effect="read")
def page(n: int) -> str:
    """Read page n."""
    return f"page {n}: {TEXT}"


class Reads:
    """Reads a page a turn, and notes the time of each turn and the largest prompt."""

    def __init__(self, turns: int) -> None:
        self.turns, self.times, self.largest = turns, list[float](), 0

    async def plan(self, view: View) -> Plan:
        """Return the next call."""
        self.times.append(time.process_time())
        if view.iteration % 7 == 0 and view.agent.compaction.get("use") != "none":
            self.largest = max(self.largest, sum(tokens_of_item(item) for item in view.transcript))
        action = FinalAnswer(content="done") if view.iteration >= self.turns else ToolCall(tool="page", args={"n": view.iteration})
        return Plan(actions=(action,), text=f"page {view.iteration}")


async def a_run(turns: int, compaction: Any) -> Reads:
    """Run with these options."""
    planner = Reads(turns)
    budget = Budget(max_iterations=turns + 1, max_tool_calls=turns + 1)
    agent = Agent(name="reader", tools=[page], budget=budget, compaction=compaction)
    async with Engine(planner=planner, ceiling=turns + 1) as engine:
        result = await engine.run(agent, "Read every page.")
        if result.status != "completed":
            raise SystemExit(f"the run ended as {result.status}: {result.error}")
    return planner


def per_turn_us(planner: Reads) -> tuple[float, float]:
    """Return the microseconds of a turn in the first and the last tenth of a run."""
    groups = [(b - a) / GROUP * 1e6 for a, b in zip(planner.times[::GROUP], planner.times[GROUP::GROUP], strict=False)]
    tenth = max(1, len(groups) // 10)
    return statistics.median(groups[:tenth]), statistics.median(groups[-tenth:])


async def decision_us(turns: int) -> tuple[float, float]:
    """Return the microseconds of a decision, and those of an empty function in its place."""
    items = Seq[Item]([Item(kind="user", text="Read.")])
    states: list[KernelState] = []
    for n in range(1, turns + 1):
        call = ToolCall(tool="page", args={"n": n})
        items = items.append(Item(kind="model", iteration=n, text="page", plan=Planned(actions=(call,))))
        items = items.append(Item(kind="tool", iteration=n, call_id=f"main.{n}.0", tool="page", arguments=call.args, ok=True))
        states.append(KernelState(steps=items, iteration=n + 1, prompt=(1000 + 24 * n, len(items) - 2)))
    run = SimpleNamespace(state=SimpleNamespace(goals=(), attachments=()), world=SimpleNamespace(conversation=()))
    agent = SimpleNamespace(profile={}, instructions="", model="")
    context = SimpleNamespace(scope="main", run=run, agent=agent, specs=(), compression=ResultCompression(), state=states[0])
    context.input = SimpleNamespace(guidance=(), variables={}, output_schema=None)
    compacting = Compacting(CompactionOptions(), Names("compactor", BUILT_IN), None, window=10**9)  # type: ignore[arg-type]

    async def nothing(context: Any) -> None:
        return

    async def timed(what: Any) -> float:
        began = time.process_time()
        for context.state in states:
            await what(context)
        return (time.process_time() - began) / turns * 1e6

    return min([await timed(compacting.compact_if_due) for _ in range(5)]), min([await timed(nothing) for _ in range(5)])


async def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=10_000)
    parser.add_argument("--window", type=int, default=8_000)
    parser.add_argument("--quick", action="store_true", help="500 turns, to see that it works")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    turns = 500 if given.quick else given.turns
    due, floor = await decision_us(min(turns, 2000))
    planner = await a_run(turns, {"window_tokens": given.window})
    plain = await a_run(turns, "none")
    (first, last), (plain_first, plain_last) = per_turn_us(planner), per_turn_us(plain)
    told = {
        "decision_us": round(due, 2),
        "decision_floor_us": round(floor, 2),
        "turns": turns,
        "window": given.window,
        "largest_prompt": planner.largest,
        "turn_us": [round(first), round(last)],
        "turn_floor_us": [round(plain_first), round(plain_last)],
    }
    if given.json:
        print(json.dumps(told))
        return
    print(f"decision when not due: {due:.2f} µs (target {TARGET_US:g}; an empty function {floor:.2f})")
    print(f"{turns:,} turns, a window of {given.window:,}: the largest prompt has {planner.largest:,} tokens")
    print(f"a turn: {first:.0f} µs in the first tenth, {last:.0f} in the last (without compaction {plain_first:.0f} and {plain_last:.0f})")


if __name__ == "__main__":
    asyncio.run(main())
