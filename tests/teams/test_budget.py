"""The budget is a tree: no bound of any run is exceeded at any record, in the order in which the records of all runs were committed."""

from __future__ import annotations

import asyncio
from collections import Counter
from random import Random
from typing import Any

import pytest

from amounts import thinned, times
from detent import Agent, Engine, FinalAnswer, Host, Plan, ToolCall, tool
from detent.core import events as e
from detent.core.budget import Budget
from detent.core.codec import read_record
from detent.core.errors import UnknownName
from detent.core.fold import evolve
from detent.core.settle import charged
from detent.core.state import RunState
from detent.metering.tenants import TenantBudget
from detent.ports import Branch, ModelAnswer, StrategyRun
from detent.running.delegating import portion, sums_of
from detent.stores.ram import RamStore
from metering.providers import MODEL, PRICES, answer, used
from teams.bounds import Prefix
from teams.family import Family, call, start

pytestmark = thinned


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
            tree = Prefix()
            for _, lines in store.commits:
                for record in map(read_record, lines):
                    tree.add(record)
            states = tree.states
            assert states[done.run_id].usage == done.usage
            made = Counter(item.tool for one in states.values() for known in one.passes.values() for item in known.results if item.executed)
            assert all(made[name] <= most for name, most in dict(budget.max_calls_of or ()).items()), (made, budget)

    asyncio.run(main())


class Greedy(Wild):
    """Asks a model before each plan, which uses all that it may. Passes that are side by side start agents only."""

    async def plan(self, view: Any) -> Any:
        """Return a batch for this run, pass and turn."""
        random = Random(f"{self.seed} {view.goal} {view.scope} {view.iteration}")

        async def send(limit: int | None) -> ModelAnswer:
            for _ in range(random.randrange(5)):
                await asyncio.sleep(0)
            return answer(usage=used(10, limit or 0))

        await view.models.call(MODEL, send, input_tokens=10, max_output_tokens=random.randint(1, 60))
        if not view.scope.startswith("side"):
            return await super().plan(view)
        if random.random() < 0.3:
            return FinalAnswer(content="done")
        return Plan(actions=tuple([start("next", goal=f"{view.scope}/{view.iteration}.{n}") for n in range(random.randint(1, 2))]))


async def wide(run: StrategyRun) -> Any:
    """Let three passes start agents side by side."""
    return [one.output or one.reason for one in await run.parallel(*(Branch(label=f"side{n}", task=f"part {n}") for n in range(3)))]


@pytest.mark.parametrize("strategy", ["reactive", "wide"])
@pytest.mark.parametrize("seed", range(times(40)))
def test_models_never_exceed_a_bound_of_the_tree(seed: int, strategy: str) -> None:
    """What is reserved for children, and for calls of models that are in progress, is not there for a call or for another child."""
    random, store, agent = Random(seed), Kept(), three_levels()
    tokens = {"max_total_tokens": random.choice([None, 500, 2000]), "max_output_tokens": random.choice([None, 300, 900])}
    tokens |= {"max_input_tokens": random.choice([None, 200, 800])}
    cost, calls = random.choice([None, 2.0, 8.0]), random.choice([5, 20, 60])
    budget = Budget(max_iterations=60, max_tool_calls=100, max_cost_usd=cost, max_model_calls=calls, **tokens)
    if strategy == "wide":
        agent = Agent(name="top", subagents=agent.subagents, strategy="wide")

    async def main() -> None:
        options: dict[str, Any] = {"model_prices": PRICES, "strategies": {"wide": wide}}
        async with Engine(store=store, planner=Greedy(seed), approver="caller", **options) as engine:
            await engine.run(agent, "top", budget=budget)
            tree = Prefix()
            for _, lines in store.commits:
                for record in map(read_record, lines):
                    tree.add(record)
            for run_id in tree.states:
                again = await engine.replay(run_id)
                assert again.identical, (run_id, again.divergence)

    asyncio.run(main())


@pytest.mark.parametrize(
    ("asked", "given"),
    [
        ({"max_total_tokens": 100}, (0, 100)),
        ({"max_total_tokens": 100, "max_output_tokens": 30}, (70, 30)),
        ({"max_total_tokens": 100, "max_input_tokens": 300}, (100, 0)),
        ({"max_total_tokens": 100, "max_input_tokens": 300, "max_output_tokens": 100}, (75, 25)),
        ({"max_total_tokens": 100, "max_input_tokens": 30, "max_output_tokens": 40}, (30, 40)),
        ({"max_input_tokens": 30, "max_output_tokens": 40}, (30, 40)),
    ],
)
def test_a_reservation_covers_whatever_tokens_its_bounds_allow(asked: dict[str, int], given: tuple[int, int]) -> None:
    """Input, output and total are three bounds, and a reservation has two numbers: the bounds of a child are made to fit these."""
    bounds = portion(Budget(), Budget(), Budget(**asked), 1)  # pyright: ignore[reportArgumentType] - integers
    held = sums_of(bounds)
    assert (held.input_tokens, held.output_tokens) == given
    for bound, reserved in ((bounds.max_input_tokens, given[0]), (bounds.max_output_tokens, given[1])):
        assert bound is None or bound <= reserved


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


def test_a_reading_of_the_account_while_a_child_works_counts_the_child_once() -> None:
    """The reading has what the child has used so far. Added again when the child is joined, it would end a run whose tenant has enough left."""
    paid, read = asyncio.Event(), asyncio.Event()
    worker = Agent(name="worker", tools=[pay])
    boss = Agent(name="boss", tools=[pay, "spawn_agent", "join_agent"], subagents={"worker": worker})

    class Pays:
        async def plan(self, view: Any) -> Any:
            if view.agent.name == "worker":
                if len(view.results) < 2:
                    return call("pay", cents=1)
                paid.set()
                await read.wait()
                return FinalAnswer(content="paid")
            match len(view.results):
                case 0:
                    return call("spawn_agent", agent="worker", goal="pay")
                case 1:
                    await paid.wait()
                    return call("pay", cents=3)
                case 2:
                    read.set()
                    return call("join_agent", child=view.results[0].content["child"])
                case _:
                    return FinalAnswer(content="done")

    async def main() -> None:
        for most in (6, 5):
            paid.clear()
            read.clear()
            async with Engine(planner=Pays(), approver="caller", tenant_budgets={"acme": TenantBudget(max_tool_calls=most)}) as engine:
                done = await engine.run(boss, "pay", host=Host(tenant="acme"))
                assert done.usage.tool_calls == (await engine.tenants.spent("acme")).tool_calls == 5, (done.error, done.usage)
                assert (done.output, done.reason) == (("done", "final_answer") if most == 6 else (None, "budget_exhausted")), done.error
                state = RunState(run_id=done.run_id)
                for line in await engine.store.read(done.run_id):
                    state = evolve(state, read_record(line))
                    for known in [known for known in state.passes.values() if known.balance is not None]:
                        assert charged(state, known, known.balance).tool_calls <= 5

    asyncio.run(main())


def test_a_bound_may_name_what_an_agent_below_calls() -> None:
    """The bounds of the first run hold for its whole tree, so they name the tools of any agent in it, and no others."""
    leaf = Agent(name="leaf")
    middle = Agent(name="middle", subagents={"leaf": leaf, "other": "known"})
    boss = Agent(name="boss", subagents={"middle": middle})

    async def main() -> None:
        calls = {"boss": [start("middle")], "middle": [start("leaf"), start("leaf")], "leaf": []}
        async with Engine(agents=[Agent(name="known", subagents={"far": leaf})], planner=Family(**calls), approver="caller") as engine:
            named = {"agent_middle": 2, "agent_leaf": 2, "agent_far": 1, "spawn_agent": 1}
            done = await engine.run(boss, "go", budget=Budget(max_calls_of=named))
            assert done.usage.tool_calls == 2 and next(iter(done.state.children.values())).status == "bound_reached"
            with pytest.raises(UnknownName, match=r"agent_lead.*agent_leaf"):
                await engine.run(boss, "go", budget=Budget(max_calls_of={"agent_lead": 1}))

    asyncio.run(main())
