"""Who holds a run, and what others are told who want it in the same moment."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from detent import Agent, Engine, FinalAnswer, Stop, ToolCall, View, tool
from detent.core.errors import NotAllowedNow, RunBusy
from detent.core.events import RunFinished
from detent.core.records import Record
from detent.core.state import RunState
from detent.observers.noop import NoopObserver
from detent.stores.ram import RamStore
from detent.testing import ScriptedPlanner


class Meddled(RamStore):
    """A store behind whose operations somebody does something else."""

    behind: dict[str, Callable[[str], Awaitable[None]]]

    def __init__(self) -> None:
        super().__init__()
        self.behind = {}

    async def append(self, run_id: str, *args: Any, **options: Any) -> None:
        """See `EventStore.append`."""
        await super().append(run_id, *args, **options)
        if (then := self.behind.pop(f"append {run_id}", None)) is not None:
            await then(run_id)

    async def erase(self, run_id: str, *args: Any, **options: Any) -> None:
        """See `EventStore.erase`."""
        if (then := self.behind.pop("erase", None)) is not None:
            await then(run_id)
        await super().erase(run_id, *args, **options)


def planned(view: View) -> Any:
    """Work, and answer."""
    return ToolCall(tool="work") if view.iteration == 1 else FinalAnswer(content="done")


def test_no_worker_takes_up_a_fork_before_who_makes_it_goes_on_with_it() -> None:
    """A worker that saw the fork's first record had the run, and `fork` raised `RunBusy`, without a word of the id; and gave the worker's claim back."""
    begun, gate, told = asyncio.Event(), asyncio.Event(), list[BaseException | Any]()

    @tool(side_effect="write", timeout_s=None)
    async def work() -> str:
        """Work until let go."""
        begun.set()
        await gate.wait()
        return "ok"

    async def main() -> None:
        store = Meddled()
        engine = Engine(store=store, planner=ScriptedPlanner([planned] * 9), tools=[work])

        async def worker(child: str) -> None:
            taken = asyncio.create_task(engine.resume(child))
            waiting = asyncio.create_task(begun.wait())
            await asyncio.wait({taken, waiting}, return_when=asyncio.FIRST_COMPLETED)
            waiting.cancel()
            told.extend(await asyncio.gather(taken, return_exceptions=True) if taken.done() else [taken])

        gate.set()
        await engine.run(Agent(name="w", tools=["work"]), "go", run_id="r")
        begun.clear()
        store.behind["append fork"] = worker
        fork = await engine.fork("r", at=1, child_id="fork", effects="redo")
        assert (fork.run_id, fork.status) == ("fork", "completed")
        assert [type(one) for one in told] == [RunBusy] and "advanced by this engine" in str(told[0])

    asyncio.run(asyncio.wait_for(main(), 20))


def test_a_fork_under_an_id_that_is_taken_changes_nothing_there() -> None:
    """What is hidden of its edits is not put beside the other run, whose own hidden values could not be read any more."""

    async def main() -> None:
        store = RamStore()
        engine = Engine(store=store, planner=ScriptedPlanner([FinalAnswer(content="done")] * 2), redact=["s3cret-[a-z]"])
        for run_id in ("r", "other"):
            await engine.run(Agent(name="w", tools=[]), f"go with s3cret-{run_id[0]}", run_id=run_id)
        there = {key: await store.get_blob("other", key) for key in await store.list_blobs("other")}
        with pytest.raises(NotAllowedNow, match="already"):
            await engine.fork("r", at=1, child_id="other", edits={"goal": "s3cret-z"})
        assert {key: await store.get_blob("other", key) for key in await store.list_blobs("other")} == there

    asyncio.run(main())


def test_a_run_that_has_just_ended_is_reopened_once_it_is_let_go() -> None:
    """Its end is on record before its observers have heard it, and until then it is held: who opened it again then was told `RunBusy`."""

    async def main() -> None:
        ended, gate, place = asyncio.Event(), asyncio.Event(), RamStore()

        class Slow(NoopObserver):
            """Hears the end of the run late."""

            async def on_record(self, record: Record, state: RunState) -> None:  # type: ignore[override] - the seam takes both
                """See `Observer.on_record`."""
                if isinstance(record.event, RunFinished):
                    ended.set()
                    await gate.wait()

        other = place.sibling()
        claim = other.claim

        async def refused(run_id: str) -> None:
            try:
                await claim(run_id)
            except RunBusy:
                gate.set()
                raise

        other.claim = refused  # type: ignore[method-assign]
        first = Engine(store=place, planner=ScriptedPlanner([Stop(reason="enough")]), observers=[Slow()])
        second = Engine(store=other, planner=ScriptedPlanner([FinalAnswer(content="done")]))
        running = asyncio.create_task(first.run(Agent(name="w", tools=[]), "go", run_id="r"))
        await ended.wait()
        assert (await second.reopen("r", by="ann")).output == "done"
        assert (await running).status == "stopped" and gate.is_set()

    asyncio.run(asyncio.wait_for(main(), 20))


def test_who_meets_a_run_that_is_held_for_something_else_is_told_for_what() -> None:
    """`RunBusy` said that it was being advanced, and to cancel it, when it was being erased."""

    async def main() -> None:
        store, told = Meddled(), list[BaseException | Any]()
        engine = Engine(store=store, planner=ScriptedPlanner([FinalAnswer(content="done")]))

        async def meddle(run_id: str) -> None:
            told.extend(await asyncio.gather(engine.resume(run_id), return_exceptions=True))

        await engine.run(Agent(name="w", tools=[]), "go", run_id="r")
        store.behind["erase"] = meddle
        await engine.erase("r", by="ann")
        assert str(told[0]) == "run 'r' is being erased by this engine; nothing was done here. Wait for it"

    asyncio.run(main())
