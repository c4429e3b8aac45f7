"""The budget is a tree: no bound of any run is exceeded at any record, in the order in which the records of all runs were committed."""

from __future__ import annotations

import asyncio
from collections import Counter
from random import Random
from typing import Any

import pytest

from amounts import times
from detent import Agent, Engine, FinalAnswer, Host, Plan, ToolCall, tool
from detent.core import events as e
from detent.core.budget import Budget, Usage
from detent.core.codec import read_record
from detent.core.fold import evolve
from detent.core.state import RunState
from detent.metering.tenants import TenantBudget
from detent.running.delegating import SUMS
from detent.stores.ram import RamStore
from teams.family import Family, call, start


@tool(side_effect="write", cost_usd=0.01)
def pay(cents: int) -> int:
    """Pay."""
    return cents


@tool(side_effect="read")
def fails() -> int:
    """Fail."""
    raise ValueError("it fails")


class Kept(RamStore):
    """A store that remembers the order of its commits."""

    def __init__(self) -> None:
        super().__init__()
        self.commits: list[tuple[str, list[bytes]]] = []

    async def append(self, run_id: str, expected_seq: int, records: Any, **options: Any) -> Any:
        """Append, and remember it."""
        said = await super().append(run_id, expected_seq, records, **options)
        self.commits.append((run_id, list(records)))
        return said


class Wild:
    """A planner that does what a seed says: it pays, fails, starts agents side by side, joins and cancels some, and answers at some time."""

    def __init__(self, seed: int) -> None:
        self.seed = seed

    async def plan(self, view: Any) -> Any:
        """Return a batch for this run and turn."""
        random = Random(f"{self.seed} {view.goal} {view.iteration}")
        started = [item.content["child"] for item in view.results if item.tool == "spawn_agent" and item.ok]
        if random.random() < 0.2:
            return FinalAnswer(content="done")
        batch: list[ToolCall] = []
        for number in range(random.randint(1, 4)):
            match random.randint(0, 6):
                case 0 | 1:
                    batch.append(call("pay", cents=random.randint(0, 10**6)))
                case 2:
                    batch.append(call("fails"))
                case 3 if started:
                    batch.append(call(random.choice(["join_agent", "cancel_agent"]), child=random.choice(started)))
                case 4:
                    end = random.choice(["cancel", "wait", "leave"])
                    batch.append(call("spawn_agent", agent="next", goal=f"{view.goal}/{view.iteration}.{number}", on_parent_end=end))
                case _:
                    asked = random.choice([{}, {}, {"max_tool_calls": random.randint(1, 9)}, {"max_cost_usd": 0.02}])
                    batch.append(start("next", goal=f"{view.goal}/{view.iteration}.{number}", budget=asked))
        return Plan(actions=tuple(batch))


def three_levels() -> Agent:
    """Return an agent with agents below it, three levels deep."""
    last = Agent(name="next", tools=[pay, fails])
    middle = Agent(name="next", tools=[pay, fails, "spawn_agent", "join_agent", "cancel_agent"], subagents={"next": last})
    return Agent(name="top", tools=[pay, fails, "spawn_agent", "join_agent", "cancel_agent"], subagents={"next": middle})


def used_below(run_id: str, states: dict[str, RunState], own: dict[str, Usage]) -> Usage:
    """Return what a run and all runs below it have really used, joined or not."""
    found = own[run_id]
    for child in states[run_id].children:
        if child in states:
            found = found.plus(used_below(child, states, own))
    return found


def minus(used: Usage, before: Usage) -> Usage:
    """Return the sums that were used since."""
    since = {name: (getattr(used, name) or 0) - (getattr(before, name) or 0) for name in SUMS if name != "total_tokens"}
    return Usage(**since)


def over(used: Usage, bounds: Budget) -> list[str]:
    """Return the sums that are above their bounds. Failures are not among them: a batch whose calls all fail is known only when it is over."""
    return [
        f"{name}: {value} of {bound}"
        for name in SUMS
        if name != "failures"
        if (bound := getattr(bounds, f"max_{name}")) is not None and (value := getattr(used, name) or 0) > bound + 1e-9
    ]


@pytest.mark.parametrize("seed", range(times(40)))
def test_no_bound_of_the_tree_is_exceeded_at_any_record(seed: int) -> None:
    """Whatever is cut off when: what a run has used, with what its open children used, is never above its bound; nor is what it counts."""
    random = Random(seed)
    budget = Budget(
        max_iterations=random.randint(3, 60),
        max_tool_calls=random.randint(3, 120),
        max_failures=random.randint(4, 40),
        max_cost_usd=random.choice([None, 0.05, 0.2]),
        max_calls_of=random.choice([None, {"pay": 5}, {"pay": 20, "fails": 3}]),
    )
    store = Kept()

    async def main() -> None:
        async with Engine(store=store, planner=Wild(seed), approver="caller") as engine:
            done = await engine.run(three_levels(), "top", budget=budget, host=Host(tenant="acme"))
            states: dict[str, RunState] = {}
            own: dict[str, Usage] = {}
            for run_id, lines in store.commits:
                for record in map(read_record, lines):
                    before = states.get(run_id, RunState(run_id=run_id))
                    states[run_id] = evolve(before, record)
                    if not isinstance(record.event, e.SubagentJoined):
                        own[run_id] = own.get(run_id, Usage()).plus(minus(states[run_id].usage, before.usage))
                    for one in states.values():
                        assert not (wrong := over(one.counted, one.budget)), (run_id, record.envelope.seq, one.run_id, wrong)
                        below = used_below(one.run_id, states, own)
                        assert not (wrong := over(below, one.budget)), (run_id, record.envelope.seq, one.run_id, wrong)
            assert states[done.run_id].usage == done.usage
            made = Counter(item.tool for one in states.values() for known in one.passes.values() for item in known.results if item.executed)
            assert all(made[name] <= most for name, most in dict(budget.max_calls_of or ()).items()), (made, budget)

    asyncio.run(main())


def test_a_tenants_account_has_what_children_used_once() -> None:
    """Each run pays for itself: what is reserved for a child is no use, and what it used is not paid again by its parent."""
    worker = Agent(name="worker", tools=[pay])
    boss = Agent(name="boss", tools=[pay, "spawn_agent", "join_agent"], subagents={"worker": worker})

    class Pays:
        async def plan(self, view: Any) -> Any:
            if view.agent.name == "worker":
                return FinalAnswer(content="paid") if view.results else Plan(actions=(call("pay", cents=1), call("pay", cents=2)))
            match len(view.results):
                case 0:
                    return Plan(actions=(start("worker"), start("worker")))
                case 2:
                    return call("spawn_agent", agent="worker", goal="pay too")
                case 3:
                    return call("pay", cents=3)
                case 4:
                    return call("join_agent", child=view.results[2].content["child"])
                case _:
                    return FinalAnswer(content="done")

    async def main() -> None:
        budgets = {"acme": TenantBudget(max_tool_calls=12, max_runs=1)}
        async with Engine(planner=Pays(), approver="caller", tenant_budgets=budgets) as engine:
            done = await engine.run(boss, "pay", host=Host(tenant="acme"))
            assert done.output == "done" and done.usage.tool_calls == 11, done.error
            spent = await engine.tenants.spent("acme")
            assert (spent.tool_calls, spent.runs) == (11, 1) and spent.cost_usd == pytest.approx(0.07)

    asyncio.run(main())


def test_children_of_one_batch_share_what_is_left() -> None:
    """What the first one asks for is not there for the second; the others get their part of what was left when the batch began."""
    boss = Agent(name="boss", subagents={"worker": Agent(name="worker", tools=[pay])})
    batch = [start("worker", budget={"max_tool_calls": 12}), start("worker", budget={"max_tool_calls": 12}), start("worker")]

    async def main() -> None:
        async with Engine(planner=Family(boss=batch, worker=[call("pay", cents=1)]), approver="caller") as engine:
            done = await engine.run(boss, "pay", budget=Budget(max_tool_calls=23))
            bounds = [child.spawned.budget.max_tool_calls for child in done.state.children.values()]
            assert bounds == [12, 8] and done.output == [[1], [1], "budget_exhausted"]

    asyncio.run(main())


def test_calls_of_one_tool_are_reserved_as_well() -> None:
    """A tool that may be called four times is called four times in the whole tree, whoever calls it first."""
    worker = Agent(name="worker", tools=[pay])
    boss = Agent(name="boss", tools=[pay], subagents={"worker": worker})

    class Greedy:
        async def plan(self, view: Any) -> Any:
            if view.agent.name == "boss" and not view.results:
                return Plan(actions=(start("worker", budget={"max_calls_of": {"pay": 3}}), start("worker")))
            return call("pay", cents=1)

    store = Kept()

    async def main() -> None:
        async with Engine(store=store, planner=Greedy(), approver="caller") as engine:
            done = await engine.run(boss, "pay", budget=Budget(max_calls_of={"pay": 4}))
            paid = [run for run, lines in store.commits for line in lines if b'"tool_started"' in line and b"pay" in line]
            assert done.state.calls_of["pay"] == 4 and done.reason == "budget_exhausted"
            assert (
                sum(
                    record.event.cost_usd == 0.01
                    for _, lines in store.commits
                    for record in map(read_record, lines)
                    if isinstance(record.event, e.ToolStarted)
                )
                == 4
            ), paid

    asyncio.run(main())


def test_a_call_that_costs_more_than_is_left_is_not_begun() -> None:
    """Its price is known before it begins, so the bound of cost is never exceeded by it."""

    class Pays:
        async def plan(self, view: Any) -> Any:
            return call("pay", cents=1)

    async def main() -> None:
        async with Engine(planner=Pays(), approver="caller") as engine:
            done = await engine.run(Agent(name="one", tools=[pay]), "pay", budget=Budget(max_cost_usd=0.025))
            assert done.reason == "budget_exhausted" and done.usage.cost_usd == pytest.approx(0.02)

    asyncio.run(main())
