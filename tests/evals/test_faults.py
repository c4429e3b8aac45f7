"""Trials under faults: nothing is doubled or lost, the same seed goes wrong the same way, and an injection is seen by whoever looks."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from detent import Agent, Engine, FinalAnswer, ToolCall, tool
from detent.core.errors import ConfigError
from detent.evals import Case, Suite, Variant, evaluate, summarised
from detent.evals.faults import FAULTS
from detent.testing import ScriptedPlanner

PAID: list[str] = []


@tool(side_effect="read")
def balance(account: str) -> int:
    """Look up a balance."""
    return 40


@tool(side_effect="write", idempotent=True)
def pay(key: str) -> str:
    """Pay once for each key."""
    if key not in PAID:
        PAID.append(key)
    return f"paid {key}"


class Clerk:
    """Looks, pays, answers; tries again what failed."""

    async def plan(self, view: Any) -> Any:
        """Return the next step."""
        done = [result.tool for result in view.results if result.ok]
        step: Any = FinalAnswer(content="paid")
        if "balance" not in done:
            step = ToolCall(tool="balance", args={"account": f"a{len(view.results)}"})
        elif "pay" not in done:
            step = ToolCall(tool="pay", args={"key": view.goal})
        return await ScriptedPlanner([step]).plan(view)


CLERK = Agent(name="clerk", tools=[balance, pay])


def made(store: Any) -> Engine:
    """Return an engine on a store."""
    return Engine(store=store, agents=[CLERK], planner=Clerk())


def suite_of(*faults: str, rate: float = 0.25) -> Suite:
    """Return a suite of payments under faults."""
    cases = tuple(Case(id=str(n), goal=f"invoice {n}", expected="paid") for n in range(8))
    return Suite(
        name="payments",
        cases=cases,
        graders=({"kind": "exact"}, {"kind": "no_repeats"}),
        trials=2,
        variants={"bad": Variant(faults=faults, rate=rate)},
    )


@pytest.mark.parametrize("fault", FAULTS)
def test_under_each_fault_nothing_is_doubled_or_lost(tmp_path: Path, fault: str) -> None:
    async def run() -> tuple[list[Any], set[str]]:
        PAID.clear()
        async with made(f"sqlite:///{tmp_path}/{len(list(tmp_path.iterdir()))}.db") as engine:
            trials = await evaluate(engine, suite_of(fault), id="x", make_engine=made, concurrency=4)
        assert {trial.grades[1].verdict for trial in trials if trial.grades} <= {"passed"}
        assert any(fault in trial.struck for trial in trials), "it struck nobody"
        if fault in ("kill", "injection"):
            assert {trial.standing for trial in trials} == {"passed"}
            assert sorted(PAID) == sorted({f"invoice {n}" for n in range(8)})
        assert summarised("payments", "x", trials).figures["bad"].machinery == 0
        return [(trial.case, trial.number, trial.standing, trial.struck) for trial in trials], set(PAID)

    first, again = asyncio.run(run()), asyncio.run(run())
    if fault != "kill":  # at which of several trials a process dies is a race
        assert first == again


def test_a_fault_that_does_not_exist_is_named_and_one_without_engines_too() -> None:
    async def run() -> None:
        async with made("ram:") as engine:
            with pytest.raises(ConfigError, match=r"no fault 'kil'.*kill"):
                await evaluate(engine, suite_of("kil"), make_engine=made)
            with pytest.raises(ConfigError, match="make_engine"):
                await evaluate(engine, suite_of("tool_error"))
            with pytest.raises((ConfigError, ExceptionGroup)):
                await evaluate(engine, suite_of("kill"), make_engine=made)

    asyncio.run(run())
