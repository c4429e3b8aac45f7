"""What `ModelPlanner` costs a call beside the model and beside what pydantic-ai itself spends, at 20 and at 1,000 turns with 20 tools.

    python benchmarks/planner.py [--turns 20 1000] [--tools 20] [--calls 300] [--cold] [--quick] [--json]

The floor is pydantic-ai's own work inside the same call: preparing the messages for the model and asking a `FunctionModel`. It is measured
where the planner calls it, so that what is left is the planner's own. Each call is on a transcript that is one turn longer than the last,
as in a run.
`alone` is the same work with a model that does nothing: beside a library that walks through thousands of messages the processor's caches are
cold, and even what does not grow takes longer. `--cold` adds a planner that has rendered nothing of the run yet, as after a resume. Nothing
is asserted; see README.md for what each line means.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve()
sys.path.insert(0, str(HERE.parent.parent / "src"))

TARGET_US, GROWTH = 400.0, 1.3


def make_model() -> Any:
    """Return a model that answers at once with one call."""
    from pydantic_ai.messages import ModelResponse, ToolCallPart
    from pydantic_ai.models.function import FunctionModel
    from pydantic_ai.usage import RequestUsage

    async def answer(messages: Any, info: Any) -> ModelResponse:
        return ModelResponse(
            parts=[ToolCallPart("tool_0", {"x": 1, "text": "some"}, "c0")], usage=RequestUsage(input_tokens=10, output_tokens=5)
        )

    return FunctionModel(answer)


def make_tools(count: int) -> tuple[Any, ...]:
    """Return tools with schemas of ordinary size."""
    from detent.ports import ToolSpec

    properties = {name: {"type": "string", "description": f"What {name} is about, in a few words."} for name in ("text", "where", "how")}
    schema = {"type": "object", "properties": {"x": {"type": "integer"}, **properties}, "required": ["x"]}
    return tuple(ToolSpec(name=f"tool_{i}", description=f"Do thing number {i}.", input_schema=schema) for i in range(count))


def a_turn(iteration: int) -> list[Any]:
    """Return the items of a turn: a plan with one call, and what came of it."""
    import msgspec

    from detent.core.actions import ToolCall
    from detent.core.events import Planned
    from detent.core.state import Item

    args = {"x": iteration, "text": f"the {iteration}th"}
    plan = Planned(actions=(ToolCall(tool="tool_0", args=args, provider_id=f"c{iteration}"),), text="I look further.")
    result = msgspec.Raw(msgspec.json.encode({"found": [iteration, "and some text about it " * 4]}))
    call = f"main.{iteration}.0"
    return [
        Item(kind="model", iteration=iteration, text=plan.text, plan=plan),
        Item(kind="tool", iteration=iteration, call_id=call, tool="tool_0", arguments=args, ok=True, result=result),
    ]


class Run:
    """A run by hand: `view` is what its planner sees, `grow` takes another turn."""

    def __init__(self, turns: int, tools: tuple[Any, ...]) -> None:
        from detent.core.history import Seq
        from detent.core.state import Item

        self.tools, self.turns = tools, 0
        self.transcript: Any = Seq([Item(kind="user", text="Find it.")])
        for _ in range(turns):
            self.grow()

    def grow(self) -> None:
        """Take one more turn."""
        self.turns += 1
        for item in a_turn(self.turns):
            self.transcript = self.transcript.append(item)

    def view(self) -> Any:
        """Return the view of the next turn."""
        from detent.core.agent import AgentSpec
        from detent.core.budget import Budget
        from detent.ports import View

        return View(
            goal="Find it.",
            agent=AgentSpec(name="a", instructions="Look for it."),
            iteration=self.turns + 1,
            variables={},
            transcript=self.transcript,
            results=(),
            tools=self.tools,
            budget_remaining=Budget(max_iterations=1000),
            run_id="r",
        )


class Clocked:
    """A model that adds up the time that is spent in it."""

    def __init__(self, model: Any) -> None:
        self.model, self.spent = model, 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.model, name)

    async def __aenter__(self) -> Any:
        return await self.model.__aenter__()

    async def __aexit__(self, *error: Any) -> None:
        await self.model.__aexit__(*error)

    def prepare_messages(self, *args: Any) -> Any:
        """Prepare, and count the time."""
        began = time.perf_counter()
        try:
            return self.model.prepare_messages(*args)
        finally:
            self.spent += time.perf_counter() - began

    async def request(self, *args: Any) -> Any:
        """Ask, and count the time."""
        began = time.perf_counter()
        try:
            return await self.model.request(*args)
        finally:
            self.spent += time.perf_counter() - began


class Idle(Clocked):
    """A model that gives a ready answer and looks at nothing."""

    def prepare_messages(self, *args: Any) -> Any:
        """Return the messages as they are."""
        return args[0]

    async def request(self, *args: Any) -> Any:
        """Return the ready answer."""
        from pydantic_ai.messages import ModelResponse, ToolCallPart

        return ModelResponse(parts=[ToolCallPart("tool_0", {"x": 1, "text": "some"}, "c0")])


async def measure(turns: int, tools: tuple[Any, ...], calls: int, kind: type[Clocked] = Clocked) -> tuple[float, float, float]:
    """Return the medians in microseconds: the planner's own work in a call, the floor, and its own work when it has rendered nothing."""
    from detent.planners.model.planner import ModelPlanner

    model = kind(make_model())
    planner, run = ModelPlanner(model), Run(turns, tools)
    mine, floor, cold = [], [], []
    for number in range(calls + 20):
        run.grow()
        view, model.spent = run.view(), 0.0
        began = time.perf_counter()
        await planner.plan(view)
        took = time.perf_counter() - began
        if number >= 20:
            mine.append(took - model.spent)
            floor.append(model.spent)
    for _ in range(5):
        fresh, view, model.spent = ModelPlanner(model), run.view(), 0.0
        began = time.perf_counter()
        await fresh.plan(view)
        cold.append(time.perf_counter() - began - model.spent)
    own, library, first = (statistics.median(times) * 1e6 for times in (mine, floor, cold))
    return own, library, first


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--turns", type=int, nargs="+", default=[20, 1000])
    parser.add_argument("--tools", type=int, default=20)
    parser.add_argument("--calls", type=int, default=300)
    parser.add_argument("--cold", action="store_true")
    parser.add_argument("--quick", action="store_true", help="small numbers, to see that everything works")
    parser.add_argument("--json", action="store_true")
    said = parser.parse_args()
    if said.quick:
        said.turns, said.tools, said.calls = [2, 10], 3, 5
    gc.disable()
    rows: list[dict[str, Any]] = []
    for turns in said.turns:
        mine, floor, cold = asyncio.run(measure(turns, make_tools(said.tools), said.calls))
        alone, _, _ = asyncio.run(measure(turns, make_tools(said.tools), said.calls, Idle))
        row = {"turns": turns, "overhead_us": mine, "floor_us": floor, "of_floor": mine / floor, "alone_us": alone, "cold_us": cold}
        rows.append({name: round(value, 3) for name, value in row.items()})
        gc.collect()
    if said.json:
        print(json.dumps(rows))
        return
    first = rows[0]["overhead_us"]
    for row in rows:
        grown = row["overhead_us"] / first
        ok = row["overhead_us"] <= TARGET_US * (1 if row is rows[0] else GROWTH)
        print(
            f"{row['turns']:>6} turns: overhead {row['overhead_us']:6.0f} µs, floor {row['floor_us']:8.0f} µs "
            f"({row['of_floor']:.3f} of the floor, {grown:.2f} of that at {rows[0]['turns']} turns), alone {row['alone_us']:.0f} µs  {'ok' if ok else 'miss'}"
            + (f"  cold {row['cold_us']:.0f} µs" if said.cold else "")
        )


if __name__ == "__main__":
    main()
