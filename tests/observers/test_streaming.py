"""Both tracks as one stream: in order, in batches, bounded, ending by itself, and harmless to leave."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from detent import Agent, Engine, FinalAnswer, Result, ToolCall, ToolContext, tool
from detent.config.groups import Bounds
from detent.core import events as e
from detent.core.records import Envelope, Record
from detent.core.state import RunState
from detent.observers import Gap, StreamingObserver
from detent.observers.streaming import follow
from detent.ports import Chunk
from detent.testing import ScriptedPlanner

AGENT = Agent(name="s", tools=["work", "gate"])


def record(seq: int, event: Any = None, *, run: str = "r", goal: str = "") -> Record:
    envelope = Envelope(run=run, seq=seq, at=None, goal=goal)  # type: ignore[arg-type]
    return Record(envelope, event or e.TurnStarted(iteration=seq), "")


def text(content: str, *, run: str = "r", goal: str = "r", kind: Any = "text", iteration: int = 1) -> Chunk:
    return Chunk(kind=kind, run_id=run, goal_id=goal, agent="s", scope="main", iteration=iteration, content=content)


STATE = RunState(run_id="r")
FINISHED = e.RunFinished(status="completed", reason="final_answer", output="x")


async def drained(stream: StreamingObserver) -> list[Any]:
    return [item async for item in stream]


def shown(items: list[Any]) -> list[Any]:
    """Return records as their numbers, chunks as their content and gaps as they are."""
    return [i.envelope.seq if isinstance(i, Record) else i.content if isinstance(i, Chunk) else i for i in items]


def test_text_is_handed_over_in_tens_and_before_the_next_record() -> None:
    """A batch holds text of one source; its parts in order (row K99)."""

    async def main() -> list[Any]:
        stream = StreamingObserver()
        stream.on_record(record(1), STATE)
        for i in range(13):
            stream.on_chunk(text(f"{i},"))
        stream.on_record(record(2), STATE)
        stream.on_chunk(text("a", kind="thinking"))
        stream.on_chunk(text("b"))
        stream.on_chunk(text("c", iteration=2))
        stream.on_record(record(3, FINISHED), STATE)
        stream.on_chunk(text("too late"))
        return await drained(stream)

    assert shown(asyncio.run(main())) == [1, "0,1,2,3,4,5,6,7,8,9,", "10,11,12,", 2, "a", "b", "c", 3]


def test_text_does_not_wait_for_ten() -> None:
    """After a while a batch is handed over as it is; the reader needs nothing else to happen."""

    async def main() -> Any:
        stream = StreamingObserver(flush_s=0.001)
        stream.on_chunk(text("a"))
        stream.on_chunk(text("b"))
        return await anext(stream)

    assert asyncio.run(main()).content == "ab"


def test_progress_is_immediate_and_keeps_its_place() -> None:
    """It is no text: text before it is handed over first."""

    async def main() -> list[Any]:
        stream = StreamingObserver()
        stream.on_chunk(text("a"))
        stream.on_chunk(text({"done": 1}, kind="progress"))  # type: ignore[arg-type]
        stream.close()
        return await drained(stream)

    assert shown(asyncio.run(main())) == ["a", {"done": 1}]


def test_it_follows_one_run_and_its_children() -> None:
    """Children have the same goal; another run's records and chunks are not shown, and a child's end does not end the stream."""

    async def main() -> list[Any]:
        stream = StreamingObserver()
        stream.on_chunk(text("mine"))
        stream.on_record(record(1), STATE)
        stream.on_record(record(10, run="other"), RunState(run_id="other"))
        stream.on_chunk(text("not mine", run="other", goal="other"))
        stream.on_record(record(20, FINISHED, run="child", goal="r"), RunState(run_id="child"))
        stream.on_record(record(2, FINISHED), STATE)
        return await drained(stream)

    assert shown(asyncio.run(main())) == ["mine", 1, 20, 2]


@pytest.mark.parametrize(("through_waits", "expected"), [(False, [1]), (True, [1, 2])])
def test_a_wait_ends_the_stream_unless_it_is_to_stay(through_waits: bool, expected: list[int]) -> None:
    """A run that waits may wait for weeks."""

    async def main() -> list[Any]:
        stream = StreamingObserver(through_waits=through_waits)
        stream.on_record(record(1, e.RunWaiting(status="waiting_for_user")), STATE)
        stream.on_record(record(2, FINISHED), STATE)
        return await drained(stream)

    assert shown(asyncio.run(main())) == expected


def test_a_slow_reader_costs_bounded_memory_and_learns_what_it_missed() -> None:
    """Chunks beyond the limit are dropped and counted, records become a gap; after it the stream goes on."""

    async def main() -> list[Any]:
        stream = StreamingObserver(limit=3)
        for seq in range(1, 1001):
            stream.on_record(record(seq), STATE)
            stream.on_chunk(text({"n": seq}, kind="progress"))  # type: ignore[arg-type]
        assert len(stream._items) == 3
        assert stream.dropped_chunks == 999
        first = [await anext(stream) for _ in range(4)]
        stream.on_record(record(1001, FINISHED), STATE)
        return first + await drained(stream)

    assert shown(asyncio.run(main())) == [1, {"n": 1}, 2, Gap(run_id="r", first=3, last=1000), 1001]


def test_what_is_read_shares_nothing_with_the_run() -> None:
    """A reader may change what it got."""

    async def main() -> None:
        stream = StreamingObserver()
        event = e.StateChanged(phase=1, meta={"x": [1]})
        stream.on_record(record(1, event), STATE)
        got = await anext(stream)
        assert isinstance(got, Record)
        assert got.event == event
        got.event.meta["x"].append(2)  # type: ignore[union-attr]
        assert event.meta == {"x": [1]}

    asyncio.run(main())


def test_a_second_reader_is_refused() -> None:
    """Two would each get half."""

    async def main() -> None:
        stream = StreamingObserver()
        first = asyncio.ensure_future(anext(stream))
        await asyncio.sleep(0)
        with pytest.raises(RuntimeError, match="already has a reader"):
            await anext(stream)
        stream.close()
        with pytest.raises(StopAsyncIteration):
            await first

    asyncio.run(main())


# Engine.stream ----------------------------------------------------------------------------------------------------------------


class Gated:
    """A tool that tells when it was entered and goes on when it is let."""

    def __init__(self) -> None:
        self.entered, self.open, self.ran = asyncio.Event(), asyncio.Event(), 0

        @tool(name="gate", side_effect="write")
        async def gate() -> str:
            """Wait at the gate."""
            self.entered.set()
            await self.open.wait()
            self.ran += 1
            return "through"

        self.tool = gate


@tool(side_effect="read")
async def work(n: int, context: ToolContext) -> int:
    """Work and say how far it is."""
    for i in range(n):
        context.progress(i)
        await asyncio.sleep(0)
    return n


def engine_of(script: list[Any], gated: Gated | None = None, **options: Any) -> Engine:
    return Engine(planner=ScriptedPlanner(script), tools=[work, (gated or Gated()).tool], **options)


def test_a_stream_has_every_record_and_chunk_in_order_and_the_result_last() -> None:
    """Begin first, progress while the call runs, end last, then the result."""

    async def main() -> None:
        async with engine_of([ToolCall(tool="work", args={"n": 3}), FinalAnswer(content="ok")]) as engine:
            items = [item async for item in engine.stream(AGENT, "go")]
            result = items[-1]
            assert isinstance(result, Result)
            assert result.status == "completed"
            records = [i for i in items if isinstance(i, Record)]
            assert [r.envelope.seq for r in records] == list(range(1, result.state.seq + 1))
            assert isinstance(records[0].event, e.RunStarted)
            assert isinstance(records[-1].event, e.RunFinished)
            assert [(i.kind, i.content) for i in items if isinstance(i, Chunk)] == [
                ("tool", {"tool": "work", "args": {"n": 3}, "attempt": 1}),
                *(("progress", done) for done in range(3)),
            ]
            finished = next(n for n, i in enumerate(items) if isinstance(i, Record) and isinstance(i.event, e.ToolFinished))
            assert all(n < finished for n, i in enumerate(items) if isinstance(i, Chunk))

    asyncio.run(main())


def test_leaving_a_stream_early_does_not_touch_the_run() -> None:
    """The effect that is in progress is finished, once, and so is the run."""

    async def main() -> None:
        gated = Gated()
        async with engine_of([ToolCall(tool="gate"), FinalAnswer(content="ok")], gated) as engine:
            stream = engine.stream(AGENT, "go", run_id="r")
            async for item in stream:
                if isinstance(item, Record) and isinstance(item.event, e.ToolStarted):
                    break
            await stream.aclose()
            await gated.entered.wait()
            gated.open.set()
            while engine.runtime.underway.tasks:
                await asyncio.wait(engine.runtime.underway.tasks)
            state = await engine.load("r")
            assert (state.status, state.in_doubt, gated.ran) == ("completed", (), 1)

    asyncio.run(main())


def test_a_closing_engine_suspends_a_run_whose_stream_was_left() -> None:
    """Nothing is left running behind it."""

    async def main() -> None:
        gated = Gated()
        async with engine_of([ToolCall(tool="gate")], gated, bounds=Bounds(drain_s=0)) as engine:
            stream = engine.stream(AGENT, "go", run_id="r")
            await anext(stream)
            await stream.aclose()
            await gated.entered.wait()
        assert not engine.runtime.underway.tasks
        assert gated.ran == 0
        assert len(asyncio.all_tasks()) == 1

    asyncio.run(main())


def test_cancelling_the_reader_cancels_the_run() -> None:
    """As it would without a stream; the run stays resumable."""

    async def main() -> None:
        gated = Gated()
        async with engine_of([ToolCall(tool="gate")], gated, bounds=Bounds(drain_s=0)) as engine:

            async def read() -> None:
                async for _ in engine.stream(AGENT, "go", run_id="r"):
                    pass

            task = asyncio.create_task(read())
            await gated.entered.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert (await engine.load("r")).status == "running"
            await engine.store.claim("r")

    asyncio.run(main())


def test_what_the_run_raises_comes_out_of_the_stream() -> None:
    """After what was told before."""

    async def main() -> None:
        async with engine_of([]) as engine:
            with pytest.raises(Exception, match="the goal is empty"):
                [item async for item in engine.stream(AGENT, " ")]

    asyncio.run(main())


def test_a_gap_is_filled_from_the_log() -> None:
    """However slow the reader, it gets every record once, in order."""

    async def main() -> None:
        script = [*(ToolCall(tool="work", args={"n": n}) for n in range(1, 6)), FinalAnswer(content="ok")]
        async with engine_of(script) as engine:

            async def read(run_id: str, after: int, limit: int) -> list[bytes]:
                return await engine.store.read(run_id, after=after, limit=limit)

            items = [i async for i in follow(lambda o: engine.run(AGENT, "go", observers=[o]), read, limit=2)]
            result = items[-1]
            assert isinstance(result, Result)
            assert [i.envelope.seq for i in items if isinstance(i, Record)] == list(range(1, result.state.seq + 1))

    asyncio.run(main())
