"""A worker in a process of its own: `python child.py URL DIRECTORY`, then one JSON command a line on its standard input.

    {"do": "work", "die": ["after", "put", 2]}      take the workload to its end, or die there by SIGKILL
    {"do": "resume", "run": "r1"}                   take up a run of the race: a tool that waits for its gate, then an answer
    {"do": "start", "run": "r1", "gate": "...", "tool": "hold", "sync": true}
    {"do": "cancel", "run": "r1"}

    {"do": "run", ...} or {"do": "asyncio", ...}    the same with `run_sync`, or with `asyncio.run`, until a signal stops it

Answers are JSON lines on standard output.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from crash.workload import Inside, make_tools, plan, work
from detent import Engine, FinalAnswer, Tool, ToolCall, View, tool
from detent.config.groups import Bounds
from detent.core.errors import DetentError, Suspended
from detent.stores.urls import open_store
from detent.testing.faults import CrashingStore
from laws.places import Effects, PurePlanner, agent_of, engine_on


def say(**answer: Any) -> None:
    """Print one answer."""
    print(json.dumps(answer), flush=True)


def die() -> None:
    """End this process as a power failure would."""
    os.kill(os.getpid(), signal.SIGKILL)


class Kills(Inside):
    """Kills the process inside a tool's body."""

    def __init__(self, when: str, name: str, n: int) -> None:
        self.where = (when, name, n)

    def before(self, name: str, n: int) -> None:
        """Before the effect."""
        if self.where == ("before", name, n):
            die()

    def after(self, name: str, n: int) -> None:
        """After the effect."""
        if self.where == ("after", name, n):
            die()


class KillingStore(CrashingStore):
    """Kills the process at the append of the outcome of `tool(n)`: "unrecorded" before it took effect, "recorded" after."""

    def __init__(self, inner: Any, when: str, name: str, n: int) -> None:
        super().__init__(inner)
        self.where, self.mark = when, f'"{name} {n}"'.encode()

    async def append(
        self,
        run_id: str,
        expected_seq: int,
        records: Sequence[bytes],
        **options: Any,
    ) -> None:
        """Append, and die there."""
        here = any(b'"tool_finished"' in line and self.mark in line for line in records)
        if here and self.where == "unrecorded":
            die()
        await super().append(run_id, expected_seq, records, **options)
        if here and self.where == "recorded":
            die()


def killing_plan(turn: int) -> Any:
    """Return the plan of the workload that kills the process when it is asked for this turn."""

    def planned(view: View) -> Any:
        if view.iteration == turn:
            die()
        return plan(view)

    return PurePlanner(planned)


async def do_work(url: str, effects: Effects, place: Sequence[Any] | None) -> None:
    """Take the workload on; the place of death is (when, tool, n), or ("planner", turn)."""
    store: Any = open_store(url)
    planner: Any = PurePlanner(plan)
    inside = Inside()
    if place and place[0] == "planner":
        planner = killing_plan(place[1])
    elif place and place[0] in ("before", "after"):
        inside = Kills(*place)
    elif place:
        store = KillingStore(store, *place)
    async with engine_on(store, planner, make_tools(effects, inside)) as engine:
        outcome = await work(engine, effects)
        say(status=outcome.state.status, output=outcome.state.output, reported=outcome.reported)


def race_plan(view: View) -> Any:
    """Return one call of the tool that the run's variables name, then the answer."""
    if not view.results:
        return ToolCall(tool=view.variables["tool"], args={"gate": view.variables["gate"]})
    last = view.results[-1]
    return FinalAnswer(content=last.content if last.ok else last.error.code)


def race_tools(effects: Effects) -> list[Tool[..., Any]]:
    """Return tools that say when they run, wait for their gate (a named pipe) to be opened, and then have their effect."""

    def hold_until(gate: str, name: str) -> str:
        say(running=name)
        if gate:
            Path(gate).read_bytes()
        effects.add(f"{name}:{gate}")
        return "done"

    @tool(side_effect="write")
    def hold(gate: str) -> str:
        """Hold until the gate opens."""
        return hold_until(gate, "hold")

    @tool(side_effect="write", idempotent=True)
    def keep(gate: str) -> str:
        """The same, but it may be done again."""
        return hold_until(gate, "keep")

    @tool(side_effect="read")
    def gaze(gate: str) -> str:
        """The same, and nothing but reading."""
        return hold_until(gate, "gaze")

    return [hold, keep, gaze]


def race_engine(url: str, effects: Effects, **options: Any) -> Engine:
    """Return an engine for the races."""
    return engine_on(url, race_plan, race_tools(effects), **options)


RACER = agent_of("hold", "keep", "gaze")


async def answer(engine: Engine, command: dict[str, Any]) -> None:
    """Carry out one command of a race and say how it ended."""
    run = command["run"]
    try:
        match command["do"]:
            case "start":
                variables = {"tool": command["tool"], "gate": command.get("gate", "")}
                result = await engine.run(RACER, "race", run_id=run, variables=variables)
            case "cancel":
                result = await engine.cancel(run, why="from outside")
            case _:
                result = await engine.resume(run)
        say(run=run, status=result.status, reason=result.reason, output=result.output)
    except DetentError as error:
        say(run=run, error=error.code, message=str(error))


async def race(url: str, effects: Effects) -> None:
    """Carry out commands, one after another, until there are no more."""
    loop = asyncio.get_running_loop()
    async with race_engine(url, effects) as engine:
        say(ready=True)
        while line := await loop.run_in_executor(None, sys.stdin.readline):
            await answer(engine, json.loads(line))


def main() -> None:
    """Work, or race, or run one agent as a program would."""
    url, directory, how = sys.argv[1], Path(sys.argv[2]), json.loads(sys.argv[3])
    effects = Effects(directory / "effects")
    if how["do"] == "work":
        asyncio.run(do_work(url, effects, how.get("die")))
    elif how["do"] == "race":
        asyncio.run(race(url, effects))
    else:
        engine = race_engine(url, effects, bounds=Bounds(drain_s=how.get("drain_s", 60)))
        variables = {"tool": how["tool"], "gate": how["gate"]}

        async def plainly() -> Any:
            async with engine:
                return await engine.run(RACER, "race", run_id=how["run"], variables=variables)

        try:
            if how["do"] == "asyncio":
                result = asyncio.run(plainly())
            else:
                result = engine.run_sync(RACER, "race", run_id=how["run"], variables=variables)
            say(status=result.status, output=result.output)
        except Suspended as stop:
            say(suspended=stop.why, message=str(stop))
            sys.exit(5)
        except KeyboardInterrupt:
            say(suspended="SIGINT", message="interrupted")
            sys.exit(5)


if __name__ == "__main__":
    main()
