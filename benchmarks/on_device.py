"""What the planner for raw-text models costs beside generation, next to the raw floor measured in the same run.

    python benchmarks/on_device.py [--turns 20 100 1000] [--quick] [--json]

Each measured call plans one turn more than the one before, as a run does: render what is new, put the prompt together, read the answer,
check it. The floor is what nobody can leave out: await the generator, join the prompt's ready parts, decode the answer, check its arguments
against the tool's schema. Nothing is asserted.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve()
sys.path.insert(0, str(HERE.parent.parent / "src"))

TARGET_US = 60.0
TARGET_TURNS = 100
ANSWER = '{"type": "tool_call", "tool": "tool_3", "args": {"path": "a.txt", "n": 5}}'
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"path": {"type": "string"}, "n": {"type": "integer"}},
    "required": ["path"],
    "additionalProperties": False,
}


async def answer(_: Any) -> str:
    """Generate at no cost."""
    return ANSWER


class History:
    """Views of a run, one turn longer each time."""

    def __init__(self) -> None:
        from detent.core.agent import AgentSpec
        from detent.core.history import Seq
        from detent.core.state import Item
        from detent.ports import ToolSpec

        self.items: Any = Seq((Item(kind="user", text="tidy the files"),))
        self.turns = 0
        self.agent = AgentSpec(name="bench", instructions="Be brief.")
        self.tools = tuple(ToolSpec(name=f"tool_{i}", description="Do a thing to a file.", input_schema=SCHEMA) for i in range(10))

    def view(self) -> Any:
        """Return what a planner sees after another turn."""
        import msgspec

        from detent.core.actions import ToolCall
        from detent.core.events import Planned
        from detent.core.state import Item
        from detent.ports import View

        self.turns += 1
        plan = Planned(actions=(ToolCall(tool="tool_1", args={"path": f"f{self.turns}.txt", "n": self.turns}),))
        result = msgspec.Raw(b'{"content": "' + b"x" * 120 + b'"}')
        call = {"call_id": f"main.{self.turns}.0", "tool": "tool_1", "arguments": {"path": f"f{self.turns}.txt"}}
        self.items = self.items.append(Item(kind="model", iteration=self.turns, plan=plan))
        self.items = self.items.append(Item(kind="tool", iteration=self.turns, ok=True, result=result, **call))
        return View(
            goal="tidy the files",
            agent=self.agent,
            iteration=self.turns + 1,
            variables={},
            transcript=self.items,
            results=(),
            tools=self.tools,
            run_id="bench",
        )


async def planned(turns: int, calls: int) -> float:
    """Return the median time of a plan in µs, over the `calls` plans around turn `turns`."""
    from detent.planners.raw_text.planner import OnDevicePlanner

    planner, history = OnDevicePlanner(answer, max_prompt_tokens=1_000_000), History()
    times: list[float] = []
    for turn in range(1, turns + calls // 2 + 1):
        view = history.view()
        begun = time.perf_counter()
        await planner.plan(view)
        if turn > turns - calls // 2:
            times.append((time.perf_counter() - begun) * 1e6)
    return statistics.median(times)


async def floor(turns: int, calls: int) -> float:
    """Return the median time of the bare work in µs."""
    from jsonschema import Draft202012Validator

    errors = Draft202012Validator(SCHEMA).iter_errors
    parts = [f"turn {i} " + "x" * 150 for i in range(2 * turns)]
    times: list[float] = []
    for _ in range(calls):
        begun = time.perf_counter()
        prompt = (*parts, "the last")
        said = json.loads(await answer(prompt))
        assert not list(errors(said["args"]))
        times.append((time.perf_counter() - begun) * 1e6)
    return statistics.median(times)


def measure(turns: int, *, quick: bool) -> list[dict[str, Any]]:
    """Return the rows for one length of history."""
    calls, rounds = (10, 1) if quick else (40, 7)
    pairs = [(asyncio.run(planned(turns, calls)), asyncio.run(floor(turns, calls * 5))) for _ in range(rounds)]
    ours, bare = min(p for p, _ in pairs), min(f for _, f in pairs)
    target = TARGET_US if turns == TARGET_TURNS else None
    return [
        {"what": f"bare work at {turns} turns", "value": round(bare, 1), "unit": "µs", "target": None, "ok": None},
        {
            "what": f"a plan at {turns} turns",
            "value": round(ours, 1),
            "unit": "µs",
            "target": target,
            "ok": None if target is None else ours <= target,
        },
        {"what": f"times the bare work at {turns} turns", "value": round(ours / bare, 2), "unit": "x", "target": None, "ok": None},
    ]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--turns", type=int, nargs="+", default=[20, TARGET_TURNS, 1000])
    parser.add_argument("--quick", action="store_true", help="few rounds: whether it runs, not how fast")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    rows = [row for turns in given.turns for row in measure(turns, quick=given.quick)]
    if given.json:
        print(json.dumps({"rows": rows}))
        return
    for row in rows:
        goal = "" if row["target"] is None else f"  target {row['target']:g}: {'met' if row['ok'] else 'missed'}"
        print(f"{row['what']:<36}{row['value']:>10} {row['unit']}{goal}")


if __name__ == "__main__":
    main()
