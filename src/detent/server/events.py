"""The events of a run as a stream (SSE): its records in order, each once, and the chunks of what it writes between them.

Rule: records are reliable, chunks are best effort. A record's event id is its sequence (of many runs: a cursor over all of them), so a client that
comes back with `Last-Event-ID`, at any server of the store, misses no record and gets none twice.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, AsyncIterator, Generator, Iterable, Sequence
from typing import Any

from sse_starlette import EventSourceResponse
from starlette.types import Receive, Scope, Send

from detent.core.codec import encode, read_log
from detent.core.errors import DetentError, RunNotFound
from detent.core.records import Record
from detent.core.state import TERMINAL, WAITING
from detent.ports import Chunk
from detent.running.results import Result
from detent.running.snapshots import load_run
from detent.server.below import Asking, asking_below
from detent.server.cursors import Cursor
from detent.server.many import Following, OfTenant, OfTree, Runs, ends_of
from detent.server.operations import Call, Operation, token_of
from detent.server.problems import Problem, Refused, told
from detent.server.served import BELOW, Below, Reader
from detent.server.shapes import Strict, run_of

LOOK_S = 0.5
"""How often the runs below one are looked at, where another process may advance them, for what they ask people."""
TOGETHER_BYTES = 65_536
"""So much of what comes together is sent at once."""


class ReadEvents(Strict, frozen=True, kw_only=True):
    """`tree`: also the runs below. `chunks`: also what models write, as they write it. `after`: begin behind this event id, as `Last-Event-ID`."""

    tree: bool = False
    chunks: bool = True
    after: str = ""


class ReadAllEvents(Strict, frozen=True, kw_only=True):
    """`chunks` and `after` as for one run. `new`: without an event id, begin with what happens from now on, not with the first record of all."""

    chunks: bool = True
    after: str = ""
    new: bool = False


async def stream(call: Call) -> Any:
    """Follow a run until it has ended."""
    query: ReadEvents = call.query
    served, run_id, host = call.served, call.path["run_id"], call.caller.host
    given = call.request.headers.get("last-event-id", "") or query.after
    if query.tree:
        served.refuse_full(call.caller)
        state = (await served.engine.load(run_id, host=host)).state
        cursor = Cursor(served.engine.store, "tree", state.run_id)
        if given:
            await cursor.read(given)
        items = _many(call, OfTree(served.engine.store, state.run_id), cursor, ("tree", state.goal_id), chunks=query.chunks)
        return sse(call, items, state.run_id)
    if given and not (given.isascii() and given.isdigit() and len(given) < 16):
        raise Refused(400, "bad_event_id", f"{given[:80]!r} is not an event id of this stream; leave it out to begin with the first record")
    served.refuse_full(call.caller)
    loaded = await served.engine.load(run_id, host=host)  # a problem is answered as one, not in the stream

    async def body() -> AsyncGenerator[bytes]:
        async with contextlib.aclosing(_told(call, loaded.run_id, int(given or 0))) as batches:
            async for batch in batches:
                together, size = list[bytes](), 0
                for item in batch:
                    if query.chunks or not isinstance(item, Chunk):
                        together.append(one := _framed(item))
                        if (size := size + len(one)) > TOGETHER_BYTES:
                            yield b"".join(together)
                            together, size = [], 0
                yield b"".join(together)

    return sse(call, body(), loaded.run_id)


async def stream_all(call: Call) -> Any:
    """Follow all runs of the caller's tenant, without end."""
    query: ReadAllEvents = call.query
    served, tenant = call.served, call.caller.tenant
    given = call.request.headers.get("last-event-id", "") or query.after
    served.refuse_full(call.caller)
    served.refuse_many(tenant)
    store = served.engine.store
    cursor = Cursor(store, "tenant", tenant)
    if given:
        await cursor.read(given)
    new = query.new and not given
    return sse(call, _many(call, OfTenant(store, tenant), cursor, ("tenant", tenant), chunks=query.chunks, new=new), "")


def event(data: Any, name: str = "", event_id: str = "") -> bytes:
    """Return an event of a stream: its data as JSON, which has no line ends. The parser of @ag-ui/client knows no other end of a line than this one."""
    head = (f"id: {event_id}\n" if event_id else "") + (f"event: {name}\n" if name else "")
    return b"%bdata: %b\n\n" % (head.encode(), encode(data))


def _framed(item: Any) -> bytes:
    """Return what happens in one run as an event."""
    if isinstance(item, Record):
        return event(item, "record", str(item.envelope.seq))
    if isinstance(item, Chunk):
        return event(item, "chunk")
    return event(run_of(item), "end") if isinstance(item, Result) else _stopped_early(item)


async def _many(
    call: Call, runs: Runs, cursor: Cursor, topic: tuple[str, str], *, chunks: bool, new: bool = False
) -> AsyncGenerator[bytes]:
    """Yield the events of many runs."""
    store = call.served.engine.store
    whole = contextlib.nullcontext() if runs.top else call.served.following_all(call.caller.tenant)
    with whole, call.served.hub.reading(*topic) as reader, _stops(call, reader):
        if new:
            cursor.begin_at(await ends_of(runs))
            yield event({}, "begin", await cursor.event_id())
        async with contextlib.aclosing(Following(store, runs, cursor, reader).items()) as items:
            try:
                async for item in items:
                    if isinstance(item, Record):
                        yield event(item, "record", await cursor.moved(item.envelope.run, item.envelope.seq))
                    elif isinstance(item, Chunk):
                        if chunks:
                            yield event(item, "chunk")
                    elif isinstance(item, Problem):
                        yield event(item, "problem")
                    elif item:
                        yield _stopped_early(item)
                    else:
                        result = await call.served.rested(runs.top, call.caller.host)
                        yield event(run_of(result), "end")
            except DetentError as error:
                yield _stopped_early(told(str(error), store.url))


def _stopped_early(why: str) -> bytes:
    return event({"why": why}, "stopped")


class Stream(EventSourceResponse):
    """A stream of events that holds a place while it is answered, also if its reader has gone before the first event."""

    def __init__(self, call: Call, events: AsyncGenerator[bytes], run_id: str) -> None:
        settings = call.served.settings
        headers = {"Cache-Control": "no-store"} | ({"X-Detent-Run": run_id} if run_id else {})
        EventSourceResponse.__init__(  # pyright: ignore[reportUnknownMemberType] - the package's own types are partial
            self, _allowed(call, events), sep="\n", ping=settings.heartbeat_s, send_timeout=settings.send_s, headers=headers
        )
        self._give_back = call.served.take_stream(call.caller)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the events."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._give_back()


async def _allowed(call: Call, events: AsyncGenerator[bytes]) -> AsyncIterator[bytes]:
    """Yield the events for as long as the caller's token is good: one that has expired, or was removed, ends the stream."""
    served, looked = call.served, time.monotonic()
    async with contextlib.aclosing(events) as items:
        async for one in items:
            if (now := time.monotonic()) - looked > served.settings.heartbeat_s:
                looked = now
                try:
                    await served.caller(token_of(call.request))
                except Refused as refused:
                    yield f": {refused}\n\n".encode()
                    return
            yield one


def sse(call: Call, events: AsyncGenerator[bytes], run_id: str) -> EventSourceResponse:
    """Return a stream of events about a run; raise `Refused` (503) if there is no place for it."""
    return Stream(call, events, run_id)


async def merged(
    call: Call, run_id: str, after: int, *, chunks: bool = True, waits: bool = True, asks: bool = False
) -> AsyncGenerator[Record | Chunk | Result | Asking | str]:
    """Yield the records of a run, and between them the chunks of this process; a text at the end says why the stream stops early.

    With `waits` it continues while the run waits, until it has ended; without, until the run waits and nothing below it continues. With `asks` it also
    yields what runs below ask people, while the run waits for them.
    """
    async with contextlib.aclosing(_told(call, run_id, after, waits=waits, asks=asks)) as batches:
        async for batch in batches:
            for item in batch:
                if chunks or not isinstance(item, Chunk):
                    yield item


@contextlib.contextmanager
def _stops(call: Call, reader: Reader) -> Generator[None]:
    """Tell a reader when the server stops."""

    async def stopped() -> None:
        await call.served.stopping.wait()
        reader.tell("the server stops; come back with the last event id")

    stopper = asyncio.create_task(stopped())
    try:
        yield
    finally:
        stopper.cancel()


async def _told(
    call: Call, run_id: str, after: int, *, waits: bool = True, asks: bool = False
) -> AsyncGenerator[Sequence[Record | Chunk | Result | Asking | str]]:
    """Yield what happens in one run, together what comes together: what the store has, then what the hub tells. See `merged`."""
    hub, head = call.served.hub, await call.served.engine.store.head(run_id) if asks or not waits else None
    with hub.reading("run", run_id) as reader, _stops(call, reader), contextlib.ExitStack() as tree:
        if head is not None:
            tree.enter_context(hub.reading("tree", head.goal_id, reader=Below(reader, run_id)))
        async with contextlib.aclosing(_of_run(call, run_id, after, reader, waits=waits, asks=asks)) as batches:
            async for batch in batches:
                yield batch


async def _of_run(
    call: Call, run_id: str, after: int, reader: Reader, *, waits: bool, asks: bool
) -> AsyncGenerator[Sequence[Record | Chunk | Result | Asking | str]]:
    store, seen, digest, rests = call.served.engine.store, 0, "", ""
    told: Sequence[Any] = (None,)
    while True:
        batch, looked, status = list[Record | Chunk | Result | Asking | str](), False, ""
        for item in told:
            if item is None or (isinstance(item, Record) and item.envelope.seq > seen + 1):
                lines, looked = await store.read(run_id, after=seen), True
                if not lines and await store.head(run_id) is None:
                    raise RunNotFound(run_id, "this server")
                news: Iterable[Record] = read_log(run_id, lines, previous=digest, after=seen)
            elif isinstance(item, Record):
                news = [item] if item.envelope.seq > seen else []
            else:
                batch.append(item)
                continue
            for record in news:
                seen, digest, status = record.envelope.seq, record.digest, record.envelope.status
                if seen > after:
                    batch.append(record)
        if batch:
            yield batch
        if any(isinstance(item, str) for item in batch):
            return
        rests, below = status or rests, (status or rests) == BELOW
        rest = status in TERMINAL or (not waits and rests in WAITING and not below)
        if not rest and below and (looked or status):
            if asks and (asking := await asking_below(call.served, run_id, call.caller.host)):
                yield [asking]
            rest = not waits and not await call.served.moves_below(await load_run(store, run_id))
        if rest:
            yield [await call.served.rested(run_id, call.caller.host)]
            return
        told = await reader.take(LOOK_S if below and (asks or not waits) else None) or (None,)


OPERATIONS = (
    Operation(
        name="streamEvents", method="GET", path="/runs/{run_id}/events", role="see", summary="The events of a run as they happen (SSE)",
        handle=stream, query=ReadEvents, answer=str, media="text/event-stream",
    ),
    Operation(
        name="streamAllEvents", method="GET", path="/events", role="see", summary="The events of all runs of the tenant as they happen (SSE)",
        handle=stream_all, query=ReadAllEvents, answer=str, media="text/event-stream",
    ),
)  # fmt: skip
