"""Trees whose process dies at one write; another process resumes them, and what must hold is what holds of a tree that nothing happens to."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

from amounts import sampled
from detent import Agent, Engine, Result
from detent.core import events as e
from detent.core.codec import read_log
from detent.history.tree_checks import verify_tree
from detent.ports import RunQuery
from detent.stores.ram import RamStore
from detent.testing.faults import Crash, CrashingStore

RUN = "run"


class Planning:
    """Plans by a function of the view; the same in every process."""

    def __init__(self, function: Callable[[Any], Any]) -> None:
        self.function = function

    async def plan(self, view: Any) -> Any:
        """Plan a turn."""
        await asyncio.sleep(0)
        return self.function(view)


async def run_and_check(engine: Engine, agent: Agent, goal: str) -> Result:
    """Run the agent, check its tree, and return the result."""
    result = await engine.run(agent, goal, run_id=RUN)
    await check_tree(engine)
    return result


async def check_tree(engine: Engine) -> None:
    """The tree verifies, each run replays, and each child was started and joined once, at the end of its log."""
    wrong = [one for one in await verify_tree(engine.runtime, RUN) if not one.ok]
    assert not wrong, wrong
    for head in await engine.store.list_runs(RunQuery()):
        events = [record.event for record in read_log(head.run_id, await engine.store.read(head.run_id))]
        assert sum(isinstance(event, e.RunStarted) for event in events) == 1
        joined = [event for event in events if isinstance(event, e.SubagentJoined)]
        assert len({event.child for event in joined}) == len(joined)
        again = await engine.replay(head.run_id)
        assert again.identical, (head.run_id, again.divergence)
        for event in joined:
            child = await engine.load(event.child)
            assert (event.sequence, event.digest) == (child.seq, child.digest)


def survives(agent: Agent, plan: Callable[[Any], Any], goal: str = "go", *, few: int = 5, **engine: Any) -> Any:
    """Run the agent; let its process die before and after some of its writes, resume it, and compare. Return the output."""

    async def whole(store: Any) -> Result:
        async with Engine(store=store, planner=Planning(plan), **engine) as made:
            return await run_and_check(made, agent, goal)

    async def first(store: Any) -> None:
        made = Engine(store=store, planner=Planning(plan), **engine)
        with contextlib.suppress(Crash):
            await made.run(agent, goal, run_id=RUN)
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()

    async def second(store: Any) -> Result | None:
        for head in await store.list_runs(RunQuery()):
            await store.release(head.run_id)
        if not await store.read(RUN):
            return None
        async with Engine(store=store, planner=Planning(plan), **engine) as made:
            result = await made.resume(RUN)
            await check_tree(made)
            return result

    counting = CrashingStore(RamStore(), operations=("append",))
    wanted = asyncio.run(asyncio.wait_for(whole(counting), 60))
    for at in sampled(range(2, counting.calls), few=few):
        for when in ("before", "after"):
            inner = RamStore()
            asyncio.run(asyncio.wait_for(first(CrashingStore(inner, at=at, when=when, operations=("append",))), 60))
            result = asyncio.run(asyncio.wait_for(second(inner), 60))
            if result is not None:
                known = (result.status, result.reason, result.error, result.output)
                assert known == (wanted.status, wanted.reason, wanted.error, wanted.output), (at, when)
    return wanted.output
