"""Records and chunks of a run as one async iterator: records after their commit, chunks at once.

    stream = StreamingObserver()
    task = asyncio.create_task(engine.run(agent, goal, observers=[stream]))
    async for item in stream: ...            # Record | Chunk | Gap

It never delays a run and never grows without limit. Text comes in batches: ten chunks, or the text of half a second, and always before the next
record. If the reader is slower than the run, chunks beyond the limit are dropped, and records are replaced by a `Gap` that names the
missing ones. They are still in the log; `Engine.stream` reads them from there.
"""  # row K99

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from typing import Any, TypeAlias, TypeVar

import msgspec

from detent.core.codec import decode_event, encode, read_record
from detent.core.events import DeadLettered, RunFinished, RunWaiting
from detent.core.records import Record
from detent.core.state import RunState
from detent.ports import Chunk
from detent.ports.observing import placed

T = TypeVar("T")

log = logging.getLogger("detent")

BATCH = 10
FLUSH_S = 0.5
LIMIT = 10_000

_ENDS = (RunFinished,)
_STOPS = (RunFinished, RunWaiting, DeadLettered)


class Gap(msgspec.Struct, frozen=True, kw_only=True):
    """Records `first` to `last` of a run are missing because the reader was too slow. `store.read` still returns them."""

    run_id: str
    first: int
    last: int
    agent: str = ""
    parent: str = ""


Streamed: TypeAlias = Record | Chunk | Gap


class StreamingObserver:
    """One run, with its children, as an async iterator that ends with the run.

    It follows `run_id`, or the first run that it sees, and every run on the same goal; it ignores other runs. It ends when that run
    finishes or begins to wait (with `through_waits=True` only when it finishes), or with `close()`. Unread items can still be read then. It has one
    reader. You can stop reading at any time; `close()` frees the queue.
    """  # row K102

    only_reads = True

    def __init__(
        self,
        *,
        run_id: str | None = None,
        through_waits: bool = False,
        batch: int = BATCH,
        flush_s: float = FLUSH_S,
        limit: int = LIMIT,
    ) -> None:
        if batch < 1 or limit < 1:
            raise ValueError(f"batch is {batch} and limit is {limit}; both must be at least 1")
        self.dropped_chunks = 0
        self._run_id, self._goal_id = run_id, ""
        self._through_waits, self._batch, self._flush_s, self._limit = through_waits, batch, flush_s, limit
        self._items: deque[Streamed] = deque()
        self._gaps: dict[str, Gap] = {}
        self._text: list[Chunk] = []
        self._timer: asyncio.TimerHandle | None = None
        self._reader: asyncio.Future[None] | None = None
        self._closed = False

    # The run's side -------------------------------------------------------------------------------------------------------------

    def on_record(self, record: Record, state: RunState) -> None:
        """Queue the record after the text before it. Close at the end of the run."""
        envelope = record.envelope
        if self._closed or not self._follows(envelope.run, envelope.goal_id):
            return
        self._flush()
        if self._full():
            before = self._gaps.get(envelope.run)
            first = before.first if before else envelope.seq
            self._gaps[envelope.run] = Gap(run_id=envelope.run, first=first, last=envelope.seq, agent=state.agent.name, parent=state.parent)
        else:
            self._put(placed(_own(record), state.agent.name, state.parent))
        ends = _ENDS if self._through_waits else _STOPS
        if envelope.run == self._run_id and isinstance(record.event, ends):
            self.close()

    def on_chunk(self, chunk: Chunk) -> None:
        """Queue the chunk. Text is collected into batches first."""
        if self._closed or not self._follows(chunk.run_id, chunk.goal_id):
            return
        if chunk.kind == "progress" or not isinstance(chunk.content, str):
            self._flush()
            self._put_chunk(chunk)
            return
        if self._text and _source(self._text[0]) != _source(chunk):
            self._flush()
        self._text.append(chunk)
        if len(self._text) >= self._batch:
            self._flush()
        elif self._timer is None:
            self._timer = _later(self._flush_s, self._flush)

    def close(self) -> None:
        """End the stream: queued items can still be read, and nothing more is accepted."""
        if not self._closed:
            self._flush()
            self._closed = True
            self._wake()

    async def aclose(self) -> None:
        """Stop reading: end the stream and forget what is queued."""
        self.close()
        self._items.clear()
        self._gaps.clear()

    def _follows(self, run_id: str, goal_id: str) -> bool:
        if self._run_id is None:
            self._run_id = run_id
        if run_id == self._run_id:
            self._goal_id = goal_id
            return True
        return goal_id in (self._goal_id, self._run_id)

    def _full(self) -> bool:
        return bool(self._gaps) or len(self._items) >= self._limit

    def _put(self, item: Streamed) -> None:
        self._items.append(item)
        self._wake()

    def _put_chunk(self, chunk: Chunk) -> None:
        if self._full():
            self.dropped_chunks += 1
        else:
            self._put(chunk)

    def _flush(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._text:
            first, whole = self._text[0], "".join(str(chunk.content) for chunk in self._text)
            self._text = []
            self._put_chunk(msgspec.structs.replace(first, content=whole))

    def _wake(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)

    # The reader's side ----------------------------------------------------------------------------------------------------------

    def __aiter__(self) -> StreamingObserver:
        return self

    async def __anext__(self) -> Streamed:
        if self._reader is not None:
            raise RuntimeError("this stream already has a reader; give each reader its own StreamingObserver")
        while not self._items:
            if self._gaps:
                self._items.extend(self._gaps.values())
                self._gaps.clear()
                continue
            if self._closed:
                raise StopAsyncIteration
            self._reader = asyncio.get_running_loop().create_future()
            try:
                await self._reader
            finally:
                self._reader = None
        return self._items.popleft()


async def follow(
    run: Callable[[StreamingObserver], Coroutine[Any, Any, T]],
    read: Callable[[str, int, int], Awaitable[list[bytes]]],
    *,
    own: Callable[[asyncio.Task[T]], None] = lambda _: None,
    limit: int = LIMIT,
) -> AsyncGenerator[Record | Chunk | T]:
    """Yield all items of `run(observer)`, every record without gaps (`read(run_id, after, limit)` fills them), and finally its result.

    If the reader stops reading, the run continues (`own` gets its task), because a cancelled effect would be in doubt. Cancelling the reader's task
    cancels the run, as it would without a stream.
    """
    observer = StreamingObserver(through_waits=True, limit=limit)
    task = asyncio.create_task(run(observer))
    own(task)
    task.add_done_callback(lambda _: observer.close())
    try:
        async for item in observer:
            if isinstance(item, Gap):
                for line in await read(item.run_id, item.first - 1, item.last - item.first + 1):
                    yield placed(read_record(line), item.agent, item.parent)
            else:
                yield item
        yield await task
    except asyncio.CancelledError:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        raise
    finally:
        await observer.aclose()
        task.add_done_callback(_report)


def _report(task: asyncio.Task[Any]) -> None:
    """Log how a run ended if nobody watched it any more. A caller that awaited it already knows."""
    if not task.cancelled() and task.exception() is not None:
        log.info("a run that was streamed ended with %r", task.exception())


def _source(chunk: Chunk) -> tuple[str, str, str, int, str]:
    return chunk.kind, chunk.run_id, chunk.scope, chunk.iteration, chunk.call_id


def _own(record: Record) -> Record:
    """Return the record with an event that shares nothing with the run's state, because foreign code may read it at any time."""
    return record if record.event is None else Record(record.envelope, decode_event(encode(record.event)), record.digest)


def _later(seconds: float, call: Callable[[], None]) -> asyncio.TimerHandle | None:
    """Call it after a delay. Outside an event loop do nothing: the next record or the close does it then."""
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        return None
    return loop.call_later(seconds, call)
