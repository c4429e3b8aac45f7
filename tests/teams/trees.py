"""Random trees of runs, three levels deep, and the processes that advance them.

`python trees.py URL DIRECTORY HOW` is one of these processes. It runs the tree, submits it, or is a worker, and dies at a write of the store or in a
tool, as HOW says. What a run does follows from the seed and the run's goal alone, so every process plans the same.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from detent import Agent, Bounds, Budget, ChildBounds, Engine, FinalAnswer, Host, Plan, ToolCall, ToolContext, Usage, tool
from detent.core.errors import DetentError, RunBusy
from detent.metering.tenants import TenantBudget
from detent.stores.urls import open_store
from detent.testing.faults import CrashingStore
from detent.tools.functions.settlement import Happened, NotHappened
from detent.workers.in_process import InProcessHost
from laws.places import Effects

TOP = "root"
"""The id that the root is given, its goal, and its path."""
ROOT = "root@acme"
"""What its store calls it."""
WRITES = ("append", "claim", "put_blob", "post", "release")
USAGE = Usage(model_calls=1, input_tokens=3, output_tokens=2)
PRICE = 0.01


class Tree(msgspec.Struct, frozen=True, kw_only=True):
    """What a tree's processes have to know. `kind`: "exact" (every call is planned beforehand), "wild", or the name of a team."""

    kind: str
    seed: int
    size: int

    @property
    def agent(self) -> Agent:
        """The agent at the top."""
        if self.kind in TEAMS:
            return team(self.kind, self.size)
        own = ["put", "mark", "look"]
        last = Agent(name="next", tools=own)
        managing = [*own, "spawn_agent", "join_agent", *(["cancel_agent"] if self.kind == "wild" else [])]
        middle = Agent(name="next", tools=managing, subagents={"next": last})
        return Agent(name="top", tools=managing, subagents={"next": middle})

    @property
    def budget(self) -> Budget:
        """The bounds of the root."""
        if self.kind == "exact":
            return msgspec.convert(needs(TOP, shape(self.seed, self.size)), Budget)
        if self.kind in TEAMS:
            many = 20 * self.size + 20
            return Budget(max_iterations=many, max_tool_calls=many, max_model_calls=many, max_failures=many)
        return Budget(max_iterations=5 * self.size, max_tool_calls=12 * self.size, max_failures=9, max_cost_usd=self.size * 2 * PRICE)


Turn = tuple[tuple[str, str], ...]


@cache
def shape(seed: int, size: int) -> dict[str, tuple[Turn, ...]]:
    """Return the turns of each of `size` runs by path: calls of tools, children that are waited for, and some that are joined later."""
    rng = random.Random(f"{seed} {size}")
    children: dict[str, list[str]] = {TOP: []}
    middles = [f"{TOP}/{n}" for n in range(rng.randint(1, max(1, min(size - 1, 12))))] if size > 1 else []
    children |= {one: [] for one in middles}
    children[TOP] = list(middles)
    for n in range(size - 1 - len(middles)):
        above = rng.choice([TOP, *middles, *middles])
        children[above].append(f"{above}/x{n}")
        children[f"{above}/x{n}"] = []
    return {path: _turns(path, below, rng) for path, below in children.items()}


def _turns(path: str, below: list[str], rng: random.Random) -> tuple[Turn, ...]:
    left, turns, spawned, number = list(below), list[Turn](), list[str](), 0
    rng.shuffle(left)

    def own(most: int) -> list[tuple[str, str]]:
        nonlocal number
        made: list[tuple[str, str]] = []
        for _ in range(rng.randint(0, most)):
            made.append((rng.choice(("put", "put", "mark", "look")), f"{path}.{number}"))
            number += 1
        return made

    while left or spawned or not turns or rng.random() < 0.3:
        part = [left.pop() for _ in range(min(len(left), rng.randint(0, 20)))]
        later = [one for one in part if rng.random() < 0.3]
        turn = [*own(2), *[("agent_next", one) for one in part if one not in later], *own(2), *[("spawn_agent", one) for one in later]]
        turn += [("join_agent", spawned.pop()) for _ in range(rng.randint(0, len(spawned)))]
        spawned += later
        if turn:
            turns.append(tuple(turn))
    return tuple(turns)


def below(path: str, runs: dict[str, tuple[Turn, ...]]) -> list[str]:
    """Return the paths of a run and of all runs below it."""
    return [one for one in runs if one == path or one.startswith(f"{path}/")]


def calls(path: str, runs: dict[str, tuple[Turn, ...]], *tools: str) -> list[str]:
    """Return what the calls of these tools concern in a run and all runs below it; of all tools if none is named."""
    return [what for one in below(path, runs) for turn in runs[one] for name, what in turn if not tools or name in tools]


def needs(path: str, runs: dict[str, tuple[Turn, ...]]) -> dict[str, Any]:
    """Return the bounds of a run: what it and all runs below it need, and one more for each of these, because a bound that is reached ends a run."""
    many = len(family := below(path, runs))
    turns, made, paid = sum(len(runs[one]) + 2 for one in family), len(calls(path, runs)), len(calls(path, runs, "put"))
    tokens = {"max_input_tokens": turns * USAGE.input_tokens, "max_output_tokens": turns * USAGE.output_tokens}
    sums = {"max_iterations": turns, "max_model_calls": turns, "max_tool_calls": made + many, "max_failures": many}
    return {**sums, **tokens, "max_cost_usd": round((paid + 30 * many) * PRICE, 2)}  # an attempt that was cut off is paid


TEAMS = ("vote", "map-reduce", "task-graph")


def team(name: str, size: int) -> Agent:
    """Return a ready team of `size` elements; each element puts something, and answers."""
    worker = Agent(name="worker", tools=["put"])
    if name == "vote":
        return Agent(name="boss", strategy="vote", strategy_options={"votes": size, "concurrency": 4}, subagents={"worker": worker})
    if name == "map-reduce":
        return Agent(
            name="boss", strategy="map-reduce", strategy_options={"mapper": "worker", "concurrency": 4}, subagents={"worker": worker}
        )
    tasks = [
        {"id": f"t{n}", "agent": "worker", "goal": f"t{n}", "needs": [f"t{n // 2}", f"t{n - 1}"][: 1 if n % 3 else 2] if n else []}
        for n in range(size)
    ]
    return Agent(name="boss", strategy="task-graph", strategy_options={"tasks": tasks}, subagents={"worker": worker})


class Planner:
    """Plans what the tree wants of a run."""

    def __init__(self, tree: Tree) -> None:
        self.tree = tree

    async def plan(self, view: Any) -> Plan:
        """Return the calls of this turn, or the answer."""
        made = self._exact(view) if self.tree.kind == "exact" else self._wild(view) if self.tree.kind == "wild" else self._worker(view)
        return Plan(actions=tuple(made), usage=USAGE)

    def _exact(self, view: Any) -> list[Any]:
        runs = shape(self.tree.seed, self.tree.size)
        path, turns = view.goal, runs[view.goal]
        if view.iteration > len(turns):
            good = all(item.ok for item in view.results)
            return [FinalAnswer(content=len(calls(path, runs, "put", "mark", "look")) if good else str(view.results)[-2000:])]
        started = iter(item.content["child"] for item in view.results if item.tool == "spawn_agent")
        ids = dict(zip((what for turn in turns for name, what in turn if name == "spawn_agent"), started, strict=False))

        def call(name: str, what: str) -> ToolCall:
            if name == "join_agent":
                return ToolCall(tool=name, args={"child": ids[what]})
            if name in ("put", "mark", "look"):
                return ToolCall(tool=name, args={"what": what})
            args = {"goal": what, "budget": needs(what, runs)}
            return ToolCall(tool=name, args=args | ({"agent": "next"} if name == "spawn_agent" else {}))

        return [call(name, what) for name, what in turns[view.iteration - 1]]

    def _wild(self, view: Any) -> list[Any]:
        """Do what the seed says: put, start agents side by side, join and cancel some, and answer at some time."""
        rng = random.Random(f"{self.tree.seed} {view.goal} {view.iteration}")
        started = [item.content["child"] for item in view.results if item.tool == "spawn_agent" and item.ok]
        if rng.random() < 0.2:
            return [FinalAnswer(content="done")]
        batch: list[ToolCall] = []
        for number in range(rng.randint(1, 4)):
            goal = f"{view.goal}/{view.iteration}.{number}"
            match rng.randint(0, 6):
                case 0 | 1 | 2:
                    batch.append(ToolCall(tool=rng.choice(("put", "mark", "look")), args={"what": goal}))
                case 3 if started:
                    batch.append(ToolCall(tool=rng.choice(("join_agent", "cancel_agent")), args={"child": rng.choice(started)}))
                case 4:
                    end = rng.choice(("cancel", "wait", "leave"))
                    batch.append(ToolCall(tool="spawn_agent", args={"agent": "next", "goal": goal, "on_parent_end": end}))
                case _:
                    asked: dict[str, Any] = rng.choice([{}, {}, {"max_tool_calls": rng.randint(1, 9)}, {"max_cost_usd": 0.02}])
                    batch.append(ToolCall(tool="agent_next", args={"goal": goal, "budget": asked}))
        return batch

    def _worker(self, view: Any) -> list[Any]:
        """Be an element of a team. Those of a vote have one goal, and are told apart by the keys of their calls."""
        if not view.results:
            return [ToolCall(tool="put", args={"what": view.goal.split()[0] if self.tree.kind == "task-graph" else view.goal})]
        return [FinalAnswer(content="yes")]


class Doomed:
    """The tools. The process dies at their call number `call` (0: never), before or after it."""

    def __init__(self, effects: Effects, call: int = 0, when: str = "before") -> None:
        self.effects, self.call, self.when, self.calls = effects, call, when, 0

    async def _done(self, name: str, what: str, context: ToolContext) -> str:
        self.calls += 1
        if self.calls == self.call and self.when == "before":
            die()
        await asyncio.sleep(0)
        self.effects.add(f"{name}|{what.replace(' ', '_')}|{context.idempotency_key}".replace("\n", "_"))
        if self.calls == self.call:
            die()
        return what

    def _recorded(self, key: str) -> Happened | NotHappened:
        found = next((line for line in self.effects.all() if line.endswith(f"|{key}")), None)
        return NotHappened() if found is None else Happened(found.split("|")[1])

    def tools(self) -> list[Any]:
        """Return a tool that can be asked whether it was done, one that may be done twice, and one that reads."""

        @tool(side_effect="write", reconcile=self._recorded, cost_usd=PRICE)
        async def put(what: str, context: ToolContext) -> str:
            """Put something."""
            return await self._done("put", what, context)

        @tool(side_effect="write", idempotent=True)
        async def mark(what: str, context: ToolContext) -> str:
            """Mark something."""
            return await self._done("mark", what, context)

        @tool(side_effect="read")
        async def look(what: str) -> str:
            """Look at something."""
            await asyncio.sleep(0)
            return what

        return [put, mark, look]


def die() -> BaseException:
    """End this process as a power failure would."""
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("still alive")


def engine_on(store: Any, tree: Tree, doomed: Doomed, *, workers: bool = False) -> Engine:
    """Return an engine that advances such a tree; with `workers`, its children are left to them."""
    host = InProcessHost(concurrency=8, poll_s=0.05, retry_pause_s=0.001, max_attempts=10_000)
    return Engine(
        store=store,
        planner=Planner(tree),
        tools=doomed.tools(),
        approver="caller",
        ceiling=10**6,
        bounds=Bounds(children=ChildBounds(per_run=300)),
        tenant_budgets={"acme": TenantBudget(max_tool_calls=10**6)},
        **({"worker_host": host} if workers else {}),
    )


async def ended(store: Any) -> bool:
    """Whether the tree's root has ended."""
    head = await store.head(ROOT)
    return head is not None and head.status in ("completed", "failed", "stopped")


async def advance(url: str, directory: Path, tree: Tree, *, do: str, write: int = 0, call: int = 0, when: Any = "before") -> None:
    """Run the tree to its end in this process, submit it, or be one of its workers until it has ended."""
    doomed = Doomed(Effects(directory / "effects"), call, when)
    store = CrashingStore(open_store(url), at=write, when=when, operations=WRITES, error=die)
    variables = {"items": [f"item{n}" for n in range(tree.size)]} if tree.kind == "map-reduce" else {}
    start: Callable[..., Any]
    async with engine_on(store, tree, doomed, workers=do != "run") as engine:
        await store.open()
        for _ in range(1_000):
            try:
                if do == "work":
                    await engine.work(until_idle=True)
                else:
                    start = engine.submit if do == "submit" else engine.run
                    await start(tree.agent, TOP, run_id=TOP, budget=tree.budget, variables=variables, host=Host(tenant="acme"))
                if do == "submit" or await ended(store):
                    return
            except RunBusy:
                pass  # its store has not noticed yet that a process has died
            except DetentError as error:
                print(f"{type(error).__name__}: {error}", file=sys.stderr)
            await asyncio.sleep(0.02)
        raise AssertionError("the tree does not come to an end")


if __name__ == "__main__":
    how = json.loads(sys.argv[3])
    asyncio.run(advance(sys.argv[1], Path(sys.argv[2]), msgspec.convert(how.pop("tree"), Tree), **how))
