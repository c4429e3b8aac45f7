"""`detent stats`: rates, durations and cost, by agent and by day, from the listing alone."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from cli.desk import Desk
from detent import Agent, Engine, FinalAnswer, Plan, Usage
from detent.cli.stats import tallied
from detent.config.state_directory import store_url
from detent.core.records import RunHead
from detent.history.listed import Said
from detent.ports import RunQuery

START = datetime(2026, 3, 1, 23, 59, tzinfo=UTC)


class Paid:
    """A planner that answers at once, for a quarter of a dollar."""

    async def plan(self, view: Any) -> Plan:
        return Plan(actions=(FinalAnswer(content="done"),), usage=Usage(input_tokens=5, cost_usd=0.25), model="m")


def head(n: int, status: str, *, agent: str = "a", lasts: float = 1.0, cost: float = 0.0) -> RunHead:
    """Return a listing entry."""
    begun = START + timedelta(minutes=n)
    return RunHead(
        run_id=f"run-{n}",
        goal_id=f"run-{n}",
        agent=agent,
        status=status,
        iterations=2,
        cost_usd=cost,
        created_at=begun,
        updated_at=begun + timedelta(seconds=lasts),
    )


def test_figures_are_of_each_agent_each_day_and_all() -> None:
    """Success and durations are those of runs that have ended; a day is one of UTC."""
    heads = [
        head(0, "completed", lasts=2, cost=0.5),
        head(1, "failed", lasts=4, cost=0.25),
        head(2, "waiting_for_user", lasts=999),
        head(3, "completed", agent="b", lasts=6),
    ]
    whole, agents, days = tallied(heads)
    assert (whole["runs"], whole["completed"], whole["failed"], whole["stopped"], whole["open"]) == (4, 2, 1, 0, 1)
    assert (whole["success"], whole["median_s"], whole["p95_s"], whole["turns"], whole["cost_usd"]) == (2 / 3, 4, 6, 8, 0.75)
    assert {name: (told["runs"], told["success"], told["cost_usd"]) for name, told in agents.items()} == {
        "a": (3, 0.5, 0.75),
        "b": (1, 1.0, 0.0),
    }
    assert {day: told["runs"] for day, told in days.items()} == {"2026-03-02": 3, "2026-03-01": 1}
    assert list(days) == ["2026-03-02", "2026-03-01"]
    assert tallied([head(0, "running")])[0]["success"] is None


def test_the_command_has_the_figures_of_the_store_as_a_table_and_as_json(tmp_path: Path) -> None:
    """What models cost is in the listing, so that no log is read; filters leave runs out."""
    desk = Desk(tmp_path)
    assert desk.detent("stats").code == 0
    desk.steps("explode")
    desk.detent("run", "Go")

    async def pay() -> None:
        async with Engine(store=store_url(tmp_path), planner=Paid()) as engine:
            await engine.run(Agent(name="payer"), "go")

    asyncio.run(pay())
    told = desk.detent("stats", "--json").json
    assert {name: (one["completed"], one["failed"], one["cost_usd"]) for name, one in told["by_agent"].items()} == {
        "payer": (1, 0, 0.25),
        "tester": (0, 1, 0.0),
    }
    assert told["all"]["success"] == 0.5
    lines = desk.detent("stats").out.splitlines()
    assert lines[0].split()[:2] == ["AGENT", "RUNS"] and lines[1].split()[-1] == "0.2500" and lines[3].startswith("all")
    assert desk.detent("stats", "--agent", "tester", "--json").json["all"]["runs"] == 1
    assert desk.detent("stats", "--since", "2999-01-01", "--json").json["all"]["runs"] == 0
    assert desk.detent("stats", "--since", "never").code == 2


@pytest.mark.parametrize("store", ["ram:", "file:{}", "sqlite:///{}/runs.db"])
def test_the_cost_in_the_listing_is_that_of_the_log(tmp_path: Path, store: str) -> None:
    """And `verify` names an entry that says another; one of an earlier version, which has none, is sound."""

    async def main() -> None:
        async with Engine(store=store.format(tmp_path), planner=Paid()) as engine:
            await engine.run(Agent(name="payer"), "go", run_id="run")
            (entry,) = await engine.store.list_runs(RunQuery())
            assert entry.cost_usd == 0.25 and (await engine.verify("run")).ok
            said = Said()
            for record in await engine.records("run"):
                said.hear(record)
            assert said.differs(entry) == "" == said.differs(msgspec.structs.replace(entry, cost_usd=0.0))
            assert "cost_usd 0.1, and the log says 0.25" in said.differs(msgspec.structs.replace(entry, cost_usd=0.1))

    asyncio.run(main())
