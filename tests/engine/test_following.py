"""Following a run that exists (`engine.follow`), and the calls in doubt of all runs (`engine.doubts`)."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from detent import Agent, Engine, FinalAnswer, Host, NotExecuted, Result, ToolCall, tool
from detent.core.errors import RunErased, RunNotFound
from detent.core.events import RunFinished, RunWaiting
from detent.extend import AnyEvent, Record
from kernel.runs import Script

AGENT = Agent(name="a", tools=["pay"])


@tool(side_effect="write")
def pay(n: int, happens: bool = True) -> str:
    """Pay n; the connection breaks."""
    raise ConnectionResetError(f"no answer about {n}") if happens else NotExecuted("never sent")


@tool(side_effect="destructive")
def wipe() -> str:
    """Wipe."""
    return "wiped"


def engine_of(store: Any, *plans: Any) -> Engine:
    """Return an engine whose planner has these plans."""
    return Engine(store=store, planner=Script([*plans, FinalAnswer(content="done")]), tools=[pay, wipe], approver="caller")


async def followed(engine: Engine, run_id: str, **options: Any) -> tuple[list[int], list[AnyEvent | None], Result]:
    """Return the sequences, the events and the result of following a run to the end of the stream."""
    *records, result = [item async for item in engine.follow(run_id, **options)]
    assert isinstance(result, Result)
    kept = [record for record in records if isinstance(record, Record)]
    assert len(kept) == len(records)
    return [record.envelope.seq for record in kept], [record.event for record in kept], result


def test_a_finished_run_is_read_from_any_record_to_its_end() -> None:
    """All records, or those after one; the `Result` is last, as with `stream`."""

    async def main() -> None:
        async with engine_of("ram:") as engine:
            await engine.run(Agent(name="a"), "go", run_id="r")
            records = await engine.records("r")
            sequences, events, result = await followed(engine, "r")
            assert events == [record.event for record in records] and sequences == [*range(1, len(records) + 1)]
            assert (result.run_id, result.status, result.output) == ("r", "completed", "done")
            assert (await followed(engine, "r", after=len(records) - 2))[0] == sequences[-2:]
            assert (await followed(engine, "r", after=99))[0] == []

    asyncio.run(main())


def test_a_waiting_run_ends_the_stream_and_through_waits_it_continues(tmp_path: Path) -> None:
    """Another engine, as another process has one, sees what the first commits: to the wait, or through it to the end, without a gap."""

    async def main() -> None:
        url = f"sqlite:///{tmp_path / 'runs.db'}"
        async with engine_of(url, ToolCall(tool="wipe")) as mine, Engine(store=url) as theirs:
            await mine.run(Agent(name="a", tools=["wipe"]), "go", run_id="r")
            seen, events, result = await followed(theirs, "r")
            assert isinstance(events[-1], RunWaiting) and result.status == "waiting_for_approval"
            stream = theirs.follow("r", after=seen[-1], through_waits=True)
            first = asyncio.ensure_future(anext(stream))
            (asked,) = await mine.approvals()
            await mine.approve("r", asked.call_id, by="ann")
            *more, last = [await first, *[item async for item in stream]]
            assert [item.envelope.seq for item in more if isinstance(item, Record)] == [*range(seen[-1] + 1, seen[-1] + 1 + len(more))]
            assert isinstance(more[-1], Record) and isinstance(more[-1].event, RunFinished)
            assert isinstance(last, Result) and last.status == "completed"

    asyncio.run(main())


def test_leaving_early_changes_nothing_and_only_what_may_be_read_is_followed() -> None:
    """The run still waits after its reader has left. Another tenant's run does not exist, and an erased one has nothing to yield."""

    async def main() -> None:
        async with engine_of("ram:", ToolCall(tool="wipe")) as engine:
            await engine.run(Agent(name="a", tools=["wipe"]), "go", run_id="r")
            stream = engine.follow("r", through_waits=True)
            await anext(stream)
            await stream.aclose()
            assert (await engine.load("r")).status == "waiting_for_approval"
            with pytest.raises(RunNotFound):
                await anext(engine.follow("r", host=Host(tenant="other")))
            await engine.cancel("r")
            await engine.erase("r")
            with pytest.raises(RunErased):
                await anext(engine.follow("r"))

    asyncio.run(main())


def test_a_deleted_run_ends_the_stream() -> None:
    """Whoever reads through a wait hears that there is nothing left to wait for."""

    async def main() -> None:
        async with engine_of("ram:", ToolCall(tool="wipe")) as engine:
            await engine.run(Agent(name="a", tools=["wipe"]), "go", run_id="r")
            length = (await engine.load("r")).seq
            gone = asyncio.ensure_future(anext(engine.follow("r", after=length, through_waits=True)))
            await asyncio.sleep(0)
            await engine.delete("r")
            with pytest.raises(RunNotFound):
                await gone

    asyncio.run(main())


def test_a_fork_has_records_of_its_own() -> None:
    """Following a fork yields what `records` has, and ends with its own result."""

    async def main() -> None:
        async with engine_of("ram:", ToolCall(tool="wipe")) as engine:
            await engine.run(Agent(name="a", tools=["wipe"]), "go", run_id="r")
            fork = await engine.fork("r")
            assert (await followed(engine, fork.run_id))[0] == [record.envelope.seq for record in await engine.records(fork.run_id)]

    asyncio.run(main())


def test_every_call_in_doubt_that_waits_for_a_person_is_listed() -> None:
    """Oldest run first, with what to look up (tool, arguments, key) and why; an answer is named until the run continues, and then it is gone."""

    async def main() -> None:
        async with engine_of("ram:", lambda view: ToolCall(tool="pay", args={"n": len(view.goal)})) as engine:
            ran = [await engine.run(AGENT, "1", run_id="first"), await engine.run(AGENT, "22", run_id="second", host=Host(tenant="t"))]
            assert [result.status for result in ran] == ["waiting_for_reconciliation"] * 2
            one, two = await engine.doubts()
            assert [(doubt.run_id, doubt.tool, doubt.args, doubt.attempt) for doubt in (one, two)] == [
                ("first", "pay", {"n": 1}, 1),
                (ran[1].run_id, "pay", {"n": 2}, 1),
            ]
            assert "no answer about 1" in one.why and one.key and one.answered_by == ()
            assert await engine.doubts(host=Host(tenant="t")) == [two] == await engine.doubts(run_id="second", host=Host(tenant="t"))
            with pytest.raises(RunNotFound):
                await engine.doubts(run_id="first", host=Host(tenant="t"))
            await engine.reconcile("first", one.call_id, happened=True, result="paid", by="ann", resume=False)
            assert (await engine.doubts())[0].answered_by == ("ann",)
            await engine.resume("first")
            assert await engine.doubts() == [two]

    asyncio.run(main())


def test_an_ended_run_still_names_what_it_left_in_doubt() -> None:
    """The list has only runs that wait; by its id an ended run is asked too, because its doubt can still be settled."""

    async def main() -> None:
        async with engine_of("ram:", ToolCall(tool="pay", args={"n": 1})) as engine:
            await engine.run(AGENT, "go", run_id="r")
            await engine.cancel("r")
            assert await engine.doubts() == []
            (doubt,) = await engine.doubts(run_id="r")
            await engine.reconcile("r", doubt.call_id, happened=False, by="ann")
            assert await engine.doubts(run_id="r") == []

    asyncio.run(main())
