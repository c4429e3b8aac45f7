"""Random runs whose workers die at random places again and again; what must hold of them is what holds of a run that nothing happens to."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

from crash.workload import open_calls_of
from detent import Budget, FinalAnswer, Plan, Thought, Tool, ToolCall, ToolContext, Usage, View, tool
from detent.core import events as e
from detent.core.actions import AskUser, CompleteGoal, PushGoal, Schedule
from detent.core.errors import MalformedPlan, NotExecuted, ToolFailed
from detent.core.state import RunState
from detent.kernel.execution import key_of
from detent.testing.clocks import FakeClock
from detent.testing.faults import Crash, CrashingStore
from laws.checks import check_laws
from laws.places import KINDS, Effects, Place, Told, agent_of, engine_on

RUN = "run"
WRITES = ("append", "claim", "put_blob", "post", "release")


def random_turns(rng: random.Random) -> list[Any]:
    """Return what is planned in each turn: pure data, so that every worker plans the same."""

    def call() -> ToolCall:
        name = rng.choice(["look", "look", "big", "put", "put", "set", "file", "wipe", "shaky", "nowhere"])
        return ToolCall(tool=name, args={"n": rng.randrange(10**6)} if rng.random() < 0.95 else {"m": 1})

    def turn() -> Any:
        kind = rng.random()
        if kind < 0.7:
            return tuple(call() for _ in range(rng.randint(1, 5)))
        if kind < 0.75:
            return "malformed"
        controls = [Thought(content="hm"), PushGoal(goal="deeper"), CompleteGoal(), AskUser(question="well?"), Schedule(delay_s=10.0)]
        return rng.choice(controls)

    return [turn() for _ in range(rng.randint(1, 7))]


def planner_of(turns: list[Any], usage: Usage) -> Any:
    """Return a pure plan function over `turns`."""

    def plan(view: View) -> Any:
        if view.iteration > len(turns):
            return Plan(actions=(FinalAnswer(content=[i.content if i.ok else i.error.code for i in view.results] or "done"),), usage=usage)
        given = turns[view.iteration - 1]
        if given == "malformed":
            if view.attempt == 1:
                raise MalformedPlan("no plan", usage=usage)
            given = Thought(content="now a plan")
        return Plan(actions=given if isinstance(given, tuple) else (given,), usage=usage)

    return plan


class Deaths:
    """Decides when a tool's body dies, and counts what it did."""

    def __init__(self, rng: random.Random, effects: Effects) -> None:
        self.rng, self.effects, self.likely = rng, effects, 0.0

    def effect(self, name: str, n: int, context: ToolContext) -> str:
        """Have the effect, and perhaps die before or after it."""
        if self.rng.random() < self.likely:
            raise Crash
        self.effects.add(f"{name}:{context.idempotency_key}:{context.attempt}")
        if self.rng.random() < self.likely:
            raise Crash
        return f"{name} {n}"


def tools_of(deaths: Deaths) -> list[Tool[..., Any]]:
    """Return the tools, each of its own kind."""
    from detent.tools.functions.settlement import Happened, NotHappened

    def make(name: str, **options: Any) -> Tool[..., Any]:
        async def function(n: int, context: ToolContext) -> Any:
            if name == "shaky" and context.attempt == 1 and n % 2:
                raise NotExecuted("not now") if n % 3 else ToolFailed("no")
            if options["side_effect"] == "read":
                return [name] * 50 if name == "big" else f"{name} {n}"
            return deaths.effect(name, n, context)

        function.__doc__ = "Do it."
        return tool(function, name=name, **options)

    def recorded(key: str) -> Any:
        return Happened("it did") if any(f":{key}:" in line for line in deaths.effects.all()) else NotHappened()

    return [
        make("look", side_effect="read"),
        make("big", side_effect="read", max_result_bytes=100),
        make("put", side_effect="write"),
        make("set", side_effect="write", idempotent=True),
        make("file", side_effect="write", reconcile=recorded),
        make("wipe", side_effect="destructive"),
        make("shaky", side_effect="write", retries=1),
    ]


async def one_round(rng: random.Random, directory: Path) -> str:
    """Take one random run to its end through deaths at random; check it; return "DEATHS deaths ..." in words."""
    kind = rng.choice(KINDS)
    place, effects, clock = Place(kind, directory), Effects(directory / "effects"), FakeClock()
    deaths = Deaths(rng, effects)
    turns = random_turns(rng)
    plan = planner_of(turns, rng.choice([Usage(), Usage(input_tokens=3, model_calls=1)]))
    died, told = 0, Told()
    while True:
        last = died >= 20
        deaths.likely = 0.0 if last else 0.15
        store = CrashingStore(place.store(), at=0 if last else rng.randint(1, 25), when=rng.choice(["before", "after"]), operations=WRITES)
        told = Told()
        engine = engine_on(store, plan, tools_of(deaths), clock=clock, observers=[told])
        try:
            state = await until_the_end(engine, rng, effects, clock)
            await engine.close()
            break
        except Crash:
            died += 1
            await place.close()
    lines = await place.lines(RUN)
    end = check_laws(lines, live=told.states, every=7)
    assert end == state
    check_effects(await place.records(RUN), effects, end)
    async with engine_on(place.store(), plan, tools_of(deaths), clock=clock) as engine:
        again = await engine.replay(RUN)
        assert again.identical, again.divergence
    await place.close()
    return f"{died} deaths on {kind}, {len(lines)} records, {end.status} ({end.reason})"


async def until_the_end(engine: Any, rng: random.Random, effects: Effects, clock: FakeClock) -> RunState:
    """Take the run on and answer at random what it waits for, the truth about doubts."""
    await engine.store.open()
    agent = agent_of("look", "big", "put", "set", "file", "wipe", "shaky", budget=Budget(max_failed_turns=30, max_non_progress=30))
    if await engine.store.head(RUN) is None:
        await engine.run(agent, "soak", run_id=RUN)
    else:
        await engine.resume(RUN)
    while True:
        state: RunState = await engine.load(RUN)
        match state.status:
            case "completed" | "failed" | "stopped":
                return state
            case "running":
                await engine.resume(RUN)
            case "waiting_for_approval":
                call = rng.choice(list(state.approvals))
                if rng.random() < 0.7:
                    await engine.approve(RUN, call, by="ann")
                else:
                    await engine.deny(RUN, call, by="ann", reason="no")
            case "waiting_for_reconciliation":
                call = state.in_doubt[0]
                doubt = state.call(call)
                assert doubt is not None
                happened = any(f":{doubt.key}:" in line for line in effects.all())
                await engine.reconcile(RUN, call, happened=happened, result="it did" if happened else None, by="ann")
            case "waiting_for_user":
                await engine.reply(RUN, "well")
            case "waiting_for_schedule":
                clock.advance(10)
                await engine.resume(RUN)
            case _:
                raise AssertionError(f"the run is {state.status}")


def check_effects(records: Any, effects: Effects, end: RunState) -> None:
    """No tool that is not idempotent had its effect twice; what the log calls done was done, and the other way round."""
    did = Counter((line.split(":")[0], line.split(":")[1]) for line in effects.all())
    keys: dict[str, tuple[str, str]] = {}
    good: set[tuple[str, str]] = set()
    for record in records:
        match record.event:
            case e.ToolStarted(call=call, tool=name, key=key):
                keys[call] = (name, key)
            case e.ToolFinished(call=call, error=None, digest=digest) if digest:
                good.add(("look", key_of(RUN, call, digest)))
            case e.ToolFinished(call=call, error=None) | e.ToolReconciled(call=call, outcome="happened", error=None):
                good.add(keys[call])
            case _:
                pass
    for (name, key), times in did.items():
        assert times == 1 or name == "set", f"{name} had its effect {times} times"
        assert (name, key) in good, f"{name} had an effect that the log does not know"
    for name, key in good:
        assert name in ("look", "big") or (name, key) in did, f"the log says that {name} was done, and it was not"
    assert not open_calls_of(records, ("put", "wipe", "shaky"))
    assert end.status == "completed"
