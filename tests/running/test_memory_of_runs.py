"""What a run in progress holds in memory: its state and what it is doing, and nothing of what it was made of."""

from __future__ import annotations

import asyncio
import copy
import gc
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from amounts import in_check
from detent import Agent, Engine, FinalAnswer, Host, Plan, ToolCall, View, tool
from kernel.runs import run_async

OBJECTS_A_RUN, BYTES_A_RUN = 139, 17_000
"""What a run may hold, a tenth above what it does: after seconds of waiting, a timer more. `benchmarks/overhead.py` measures the whole process."""


class Asking:
    """Asks for the tool in so many turns, and answers; `agents` are the specifications that it was shown."""

    def __init__(self, turns: int) -> None:
        self.turns, self.agents = turns, dict[str, Any]()

    async def plan(self, view: View) -> Plan:
        """Return the plan of this iteration."""
        self.agents[view.run_id] = view.agent
        if view.iteration > self.turns:
            return Plan(actions=(FinalAnswer(content="done"),))
        return Plan(actions=(ToolCall(tool="wait", args={"turn": view.iteration}),))


class Gate:
    """A tool's gate: in the turn `last`, calls wait until it is opened; `full` is set once so many wait."""

    def __init__(self, last: int, runs: int) -> None:
        self.last, self.runs, self.waiting = last, runs, 0
        self.full, self.open = asyncio.Event(), asyncio.Event()

    async def wait(self, turn: int) -> int:
        """Wait in the last turn until the gate is opened."""
        if turn == self.last:
            self.waiting += 1
            if self.waiting == self.runs:
                self.full.set()
            await self.open.wait()
        return turn


def engine_with(gate: Gate, planner: Any, store: str) -> Engine:
    @tool(side_effect="read")
    async def wait(turn: int) -> int:
        """Wait."""
        return await gate.wait(turn)

    return Engine(store=store, planner=planner, tools=[wait])


def weight() -> tuple[int, int]:
    """Return how many objects the collector knows, and their bytes."""
    gc.collect()
    things = gc.get_objects()
    return len(things), sum(map(sys.getsizeof, things))


@in_check
def test_a_run_in_progress_fits_into_what_is_promised(tmp_path: Path) -> None:
    """In its third turn, in a tool, what is known to the collector (most of the 30 KB of the target) is no more than this."""

    async def main() -> tuple[float, float]:
        runs = 100
        gate = Gate(3, runs)
        async with engine_with(gate, Asking(3), f"sqlite:///{tmp_path / 'runs.db'}") as engine:
            agent = Agent(name="a", tools=["wait"])
            gate.open.set()
            await engine.run(agent, "warm up", run_id="warm")
            gate.open.clear()
            gate.waiting, before = 0, weight()
            going = [asyncio.create_task(engine.run(agent, f"goal {i}", run_id=f"run-{i}")) for i in range(runs)]
            await gate.full.wait()
            held = weight()
            gate.open.set()
            assert {result.status for result in await asyncio.gather(*going)} == {"completed"}
        return (held[0] - before[0]) / runs, (held[1] - before[1]) / runs

    objects, size = run_async(main)
    assert objects < OBJECTS_A_RUN and size < BYTES_A_RUN, f"{objects:.0f} objects, {size:.0f} bytes"


def test_a_run_in_progress_keeps_nothing_of_its_start() -> None:
    """Neither what it was started with nor a specification of its own: what came from the log is held, once for all runs that are alike."""

    async def main() -> None:
        gate, planner, marker = Gate(1, 4), Asking(1), [1]
        given = {"marker": marker}
        async with engine_with(gate, planner, "ram:") as engine:
            ones = Agent(name="a", tools=["wait"], meta={"team": "x"})
            runs = {"one": (ones, "t"), "two": (ones, "t"), "other": (ones, "u"), "b": (Agent(name="b", tools=["wait"]), "t")}
            going = [
                asyncio.create_task(engine.run(agent, name, run_id=name, host=Host(tenant=tenant), variables=given))
                for name, (agent, tenant) in runs.items()
            ]
            await gate.full.wait()
            gc.collect()
            holders = [one for one in gc.get_referrers(marker) if isinstance(one, dict)]
            agents = {kept.partition("@")[0]: agent for kept, agent in planner.agents.items()}
            gate.open.set()
            await asyncio.gather(*going)
        assert len(holders) == 1 and holders[0] is given
        assert agents["one"] is agents["two"] is not agents["other"]
        assert agents["other"] == agents["one"] and agents["b"].name == "b"

    run_async(main)


def test_what_runs_share_is_for_reading() -> None:
    """Who writes to a specification, however deep or empty the place, is told to copy it; the copy can be changed, and the log has what it had."""

    async def main() -> None:
        planner = Asking(0)
        async with engine_with(Gate(0, 0), planner, "ram:") as engine:
            await engine.run(Agent(name="a", tools=["wait"], meta={"teams": [{"name": "x"}]}), "go", run_id="r")
            agent, read = planner.agents["r"], (await engine.load("r")).agent
        writes: list[Callable[[], Any]] = [
            lambda: agent.meta["teams"].append(1),
            lambda: agent.meta["teams"][0].update(name="y"),
            lambda: agent.model_settings.setdefault("seed", 1),
            lambda: agent.profile.__ior__({"tier": "local"}),
        ]
        for write in writes:
            with pytest.raises(TypeError, match="read-only"):
                write()
        own = copy.deepcopy(agent.meta)
        own["teams"][0]["name"] = "y"
        assert agent == read and agent.meta == {"teams": [{"name": "x"}]} != own

    run_async(main)
