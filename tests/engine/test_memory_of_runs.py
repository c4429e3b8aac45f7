"""What a run in progress holds in memory: its state and what it is doing, and nothing of what it was made of."""

from __future__ import annotations

import asyncio
import gc
import tracemalloc
from pathlib import Path
from typing import Any

from detent import Agent, Engine, FinalAnswer, Host, Plan, ToolCall, View, tool
from detent.core.events import RunStarted
from kernel.runs import run_async

KB_A_RUN = 1
"""What 10,000 runs of ten iterations may hold each; the benchmark measures the process, which has its own part in the 30 of the target."""


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


def test_a_run_in_progress_fits_into_what_is_promised(tmp_path: Path) -> None:
    """In its ninth turn it holds its transcript of eight turns and what waits, in less than the bound (the target is 30 KB a run)."""

    async def main() -> None:
        runs = 200
        gate = Gate(9, runs)
        async with engine_with(gate, Asking(9), f"sqlite:///{tmp_path / 'runs.db'}") as engine:
            agent = Agent(name="a", tools=["wait"])
            gate.open.set()
            await engine.run(agent, "warm up", run_id="warm")
            gate.open.clear()
            gate.waiting = 0
            tracemalloc.start()
            try:
                going = [asyncio.create_task(engine.run(agent, f"goal {i}", run_id=f"run-{i}")) for i in range(runs)]
                await gate.full.wait()
                gc.collect()
                held, _ = tracemalloc.get_traced_memory()
            finally:
                tracemalloc.stop()
            gate.open.set()
            assert {result.status for result in await asyncio.gather(*going)} == {"completed"}
        assert held / runs / 1024 < KB_A_RUN, f"{held / runs / 1024:.1f} KB a run"

    run_async(main)


def test_a_run_in_progress_keeps_nothing_of_its_start() -> None:
    """Neither the record of the start nor a specification of its own: what came from the log is held, once for all runs that are alike."""

    async def main() -> None:
        gate, planner = Gate(1, 4), Asking(1)
        async with engine_with(gate, planner, "ram:") as engine:
            agent = Agent(name="a", tools=["wait"], meta={"team": "x"})
            hosts = {"one": Host(tenant="t"), "two": Host(tenant="t"), "other": Host(tenant="u")}
            going = [asyncio.create_task(engine.run(agent, name, run_id=name, host=host)) for name, host in hosts.items()]
            going.append(asyncio.create_task(engine.run(Agent(name="b", tools=["wait"]), "b", run_id="b", host=hosts["one"])))
            await gate.full.wait()
            gc.collect()
            assert not [one for one in gc.get_objects() if isinstance(one, RunStarted) and one.goal in (*hosts, "b")]
            assert planner.agents["one"] is planner.agents["two"]
            assert planner.agents["one"] is not planner.agents["other"] and planner.agents["b"].name == "b"
            gate.open.set()
            await asyncio.gather(*going)

    run_async(main)


def test_what_somebody_writes_to_a_specification_reaches_no_later_run() -> None:
    """It is for reading; a planner that writes to it all the same changes no run that begins afterwards."""

    async def main() -> None:
        planner = Asking(0)
        async with engine_with(Gate(0, 0), planner, "ram:") as engine:
            agent = Agent(name="a", tools=["wait"], meta={"team": "x"})
            await engine.run(agent, "first", run_id="first")
            planner.agents["first"].meta["team"] = "changed"
            await engine.run(agent, "second", run_id="second")
            assert planner.agents["second"].meta == {"team": "x"}

    run_async(main)
