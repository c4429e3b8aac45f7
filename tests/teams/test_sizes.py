"""How large a team may become, and who advances its runs."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import Any

import pytest

import virtual_time
from amounts import in_check
from detent import Bounds, Budget, ChildBounds, Engine, FinalAnswer, Host
from detent.core.errors import ConfigError
from detent.metering.tenants import TenantBudget
from detent.ports import RunQuery, View
from detent.stores.ram import RamStore
from detent.workers.in_process import InProcessHost
from teams.living import Team, same_again, start


@pytest.mark.parametrize(
    ("bounds", "goal", "agent", "output"),
    [
        ({}, "keep 1", "worker", ["worker: 0", "worker: 1", "worker: 2"]),
        ({"per_run": 2}, "keep 1", "worker", ["worker: 0", "worker: 1", "too_many_children"]),
        ({"depth": 1}, "keep 1", "middle", ["middle: too_deep"] * 3),
        ({"depth": 0}, "keep 1", "worker", ["too_deep"] * 3),
    ],
)
def test_only_the_engine_sets_how_large_a_team_may_become(bounds: Any, goal: str, agent: str, output: list[str]) -> None:
    """The log has limits that are not the usual ones, so an engine with others replays the same refusals."""

    async def main() -> None:
        team, store = Team(*(start(f"keep {n}", agent) for n in range(3))), RamStore()
        async with team.engine(store, bounds=Bounds(children=ChildBounds(**bounds))) as engine:
            assert (await engine.run(team.boss, "share", run_id="root")).output == output
        async with team.engine(store) as engine:
            await same_again(engine, "root")

    virtual_time.run(main())


def test_a_file_sets_how_large_a_team_may_become(tmp_path: Path) -> None:
    """A misspelt limit must not be ignored: the team would be as large as it likes."""
    file = tmp_path / "detent.toml"

    async def output() -> Any:
        team = Team(*(start(f"keep {n}") for n in range(3)))
        async with Engine.from_config(file, store=RamStore(), planner=team, tools=team.tools, approver="caller") as engine:
            return (await engine.run(team.boss, "share")).output

    file.write_text("[limits.children]\nper_run = 2\nat_once = 1\n")
    assert virtual_time.run(output()) == ["worker: 0", "worker: 1", "too_many_children"]
    for table, why in (
        ("dept = 1", r"detent\.toml: limits\.children\.dept: unknown key; did you mean 'depth'"),
        ("depth = -1", r"detent\.toml: limits: children\.depth is -1; give at least 0"),
        ("depth = '8'", r"limits\.children\.depth: expected a whole number, found the text '8'"),
    ):
        file.write_text(f"[limits.children]\n{table}\n")
        with pytest.raises(ConfigError, match=why):
            Engine.from_config(file)


def test_more_than_the_usual_number_of_children_is_the_engines_to_allow() -> None:
    """65 children, and never more than three at once; the others queue."""
    running = [0, 0]

    class Counting(Team):
        async def plan(self, view: View) -> Any:
            if view.agent.name == "worker":
                running[0] += 1
                running[1] = max(running)
                await asyncio.sleep(1)
                running[0] -= 1
                return FinalAnswer(content=view.goal)
            return await super().plan(view)

    async def main() -> None:
        team, store = Counting(*(start(f"{n}") for n in range(65))), RamStore()
        async with team.engine(store, bounds=Bounds(children=ChildBounds(per_run=65, at_once=3))) as engine:
            done = await engine.run(team.boss, "share", run_id="root", budget=Budget(max_iterations=900))
            assert done.output == [f"{n}" for n in range(65)] and running[1] == 3

    virtual_time.run(main())


def test_with_a_worker_host_children_are_submitted_and_other_workers_run_them() -> None:
    """The program that starts the team advances no child; its parent waits as rows; two workers do the rest, and each child runs once."""

    async def main() -> None:
        team, store = Team(*(start(f"keep {n}", "middle") for n in range(10))), RamStore()
        async with team.engine(store, worker_host=InProcessHost()) as engine:
            waits = await engine.run(team.boss, "share", run_id="root", budget=Budget(max_iterations=900))
            assert waits.status == "waiting_for_subagent" and team.kept == []
            assert len(await store.list_runs(RunQuery(status=("running",)))) == 8  # the others are started as these end
        async with team.engine(store.sibling()) as first, team.engine(store.sibling()) as second:
            await asyncio.gather(first.work(until_idle=True), second.work(until_idle=True))
            done = await first.load("root")
            assert done.output == [f"middle: worker: {n}" for n in range(10)]
            assert sorted(team.kept) == sorted(f"{n}" for n in range(10))
            assert len(await store.list_runs(RunQuery())) == 21
            await same_again(first, "root")

    virtual_time.run(main())


@in_check
def test_the_bound_of_a_tenant_holds_over_trees_on_three_workers() -> None:
    """Runs of one tenant, each advanced by whoever is free, use no call too many, none twice, and the other tenant pays for none of them."""

    async def main() -> None:
        team, store = Team(*(start(f"keep {n}", "middle") for n in range(6))), RamStore()
        budgets = {"small": TenantBudget(max_tool_calls=17), "large": TenantBudget(max_tool_calls=1000)}
        trees = {"a": "small", "b": "small", "c": "large"}
        async with contextlib.AsyncExitStack() as stack:
            workers = [await stack.enter_async_context(team.engine(store.sibling(), tenant_budgets=budgets)) for _ in range(3)]
            roots = {
                await workers[0].submit(team.boss, "share", host=Host(tenant=tenant), run_id=name): name for name, tenant in trees.items()
            }
            await asyncio.gather(*(worker.work(until_idle=True) for worker in workers))
            used = {name: (await workers[0].load(run)).usage.tool_calls for run, name in roots.items()}
            spent = {name: (await workers[0].tenants.spent(name)).tool_calls for name in budgets}
            assert used["c"] == spent["large"] == 18 and used["a"] + used["b"] == spent["small"] == 17
            assert {head.status for head in await store.list_runs(RunQuery())} == {"completed", "stopped"}
            assert set(team.kept) == {f"{n}" for n in range(6)}
            for run in roots:
                await same_again(workers[0], run)

    virtual_time.run(main())
