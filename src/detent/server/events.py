"""The events of a run as a stream (SSE): its records in order, each once, and the chunks of what it writes between them.

Rule: records are reliable, chunks are best effort. A record's event id is its sequence (of many runs: a cursor over all of them), so a client that
comes back with `Last-Event-ID`, at any server of the store, misses no record and gets none twice.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, AsyncIterator, Generator
from typing import Any

from sse_starlette import EventSourceResponse, ServerSentEvent
from starlette.types import Receive, Scope, Send

from detent.core.codec import encode, read_log
from detent.core.errors import DetentError, RunNotFound
from detent.core.records import Record
from detent.core.state import TERMINAL, WAITING
from detent.engine import Engine
from detent.ports import Chunk
from detent.running.results import Result
from detent.server.below import Asking, asking_below
from detent.server.cursors import Cursor
from detent.server.many import Following, OfTenant, OfTree, Runs, ends_of
from detent.server.operations import Call, Operation, token_of
from detent.server.problems import Problem, Refused, told
from detent.server.served import Reader
from detent.server.shapes import Strict, run_of

LOOK_S, LONGEST_LOOK_S = 0.2, 2.0
"""How soon the store is looked at for records of other processes; the longer nothing happens, the less often."""


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

    async def body() -> AsyncGenerator[ServerSentEvent]:
        async with contextlib.aclosing(merged(call, loaded.run_id, int(given or 0), chunks=query.chunks)) as items:
            async for item in items:
                if isinstance(item, Record):
                    yield ServerSentEvent(encode(item).decode(), id=str(item.envelope.seq), event="record")
                elif isinstance(item, Chunk):
                    yield ServerSentEvent(encode(item).decode(), event="chunk")
                elif isinstance(item, Result):
                    yield ServerSentEvent(encode(run_of(item)).decode(), event="end")
                elif isinstance(item, str):
                    yield _stopped_early(item)

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


async def _many(
    call: Call, runs: Runs, cursor: Cursor, topic: tuple[str, str], *, chunks: bool, new: bool = False
) -> AsyncGenerator[ServerSentEvent]:
    """Yield the events of many runs."""
    store = call.served.engine.store
    whole = contextlib.nullcontext() if runs.top else call.served.following_all(call.caller.tenant)
    with whole, call.served.hub.reading(*topic) as reader, _stops(call, reader):
        if new:
            cursor.begin_at(await ends_of(runs))
            yield ServerSentEvent("{}", id=await cursor.event_id(), event="begin")
        async with contextlib.aclosing(Following(store, runs, cursor, reader).items()) as items:
            try:
                async for item in items:
                    if isinstance(item, Record):
                        name = await cursor.moved(item.envelope.run, item.envelope.seq)
                        yield ServerSentEvent(encode(item).decode(), id=name, event="record")
                    elif isinstance(item, Chunk):
                        if chunks:
                            yield ServerSentEvent(encode(item).decode(), event="chunk")
                    elif isinstance(item, Problem):
                        yield ServerSentEvent(encode(item).decode(), event="problem")
                    elif item:
                        yield _stopped_early(item)
                    else:
                        result = await call.served.rested(runs.top, call.caller.host)
                        yield ServerSentEvent(encode(run_of(result)).decode(), event="end")
            except DetentError as error:
                yield _stopped_early(told(str(error), store.url))


def _stopped_early(why: str) -> ServerSentEvent:
    return ServerSentEvent(encode({"why": why}).decode(), event="stopped")


class Stream(EventSourceResponse):
    """A stream of events that holds a place while it is answered, also if its reader has gone before the first event."""

    def __init__(self, call: Call, events: AsyncGenerator[ServerSentEvent], run_id: str) -> None:
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


async def _allowed(call: Call, events: AsyncGenerator[ServerSentEvent]) -> AsyncIterator[ServerSentEvent]:
    """Yield the events for as long as the caller's token is good: one that has expired, or was removed, ends the stream."""
    served, looked = call.served, time.monotonic()
    async with contextlib.aclosing(events) as items:
        async for one in items:
            if (now := time.monotonic()) - looked > served.settings.heartbeat_s:
                looked = now
                try:
                    await served.caller(token_of(call.request))
                except Refused as refused:
                    yield ServerSentEvent(comment=str(refused))
                    return
            yield ServerSentEvent(
                one.data, id=one.id, event=one.event, sep="\n"
            )  # the parser of @ag-ui/client knows no other end of a line


def sse(call: Call, events: AsyncGenerator[ServerSentEvent], run_id: str) -> EventSourceResponse:
    """Return a stream of events about a run; raise `Refused` (503) if there is no place for it."""
    return Stream(call, events, run_id)


async def merged(
    call: Call, run_id: str, after: int, *, chunks: bool = True, waits: bool = True, asks: bool = False
) -> AsyncGenerator[Record | Chunk | Result | Asking | str]:
    """Yield the records of a run, and between them the chunks of this process; a text at the end says why the stream stops early.

    With `waits` it continues while the run waits, until it has ended. With `asks` it also yields what runs below ask people, while the run waits for them.
    """
    hub, head = call.served.hub, await call.served.engine.store.head(run_id) if asks else None
    with hub.reading("run", run_id) as reader, _stops(call, reader), contextlib.ExitStack() as tree:
        if head is not None:
            tree.enter_context(hub.reading("tree", head.goal_id, reader=_Below(reader, run_id)))
        async with contextlib.aclosing(_of_run(call, run_id, after, reader.queue, waits=waits, asks=asks)) as items:
            async for item in items:
                if chunks or not isinstance(item, Chunk):
                    yield item


class _Below(Reader):
    """Has the reader of a run look again, for which None stands, when another run of its tree comes to rest: that one may ask somebody."""

    def __init__(self, reader: Reader, run_id: str) -> None:
        super().__init__()
        self._reader, self._run_id = reader, run_id

    def put(self, item: Any, run_id: str = "") -> None:
        """Take an item of the tree."""
        if isinstance(item, Record) and run_id != self._run_id and item.envelope.status in WAITING:
            self._reader.put(None)


@contextlib.contextmanager
def _stops(call: Call, reader: Reader) -> Generator[None]:
    """Tell a reader when the server stops."""

    async def stopped() -> None:
        await call.served.stopping.wait()
        reader.queue.put_nowait("the server stops; come back with the last event id")

    stopper = asyncio.create_task(stopped())
    try:
        yield
    finally:
        stopper.cancel()


async def _of_run(
    call: Call, run_id: str, after: int, queue: asyncio.Queue[Any], *, waits: bool, asks: bool
) -> AsyncGenerator[Record | Chunk | Result | Asking | str]:
    """Yield what happens in one run: what the store has, then what this process commits, and what others do as the store tells."""
    engine: Engine = call.served.engine
    store, seen, pause_s, digest, rests = engine.store, 0, LOOK_S, "", ""
    while True:
        lines = await store.read(run_id, after=seen)
        if not lines and await store.head(run_id) is None:
            raise RunNotFound(run_id, "this server")
        news, looked = list(read_log(run_id, lines, previous=digest, after=seen)), True
        pause_s = LOOK_S if news else min(2 * pause_s, LONGEST_LOOK_S)
        while True:
            for record in news:
                seen, digest = record.envelope.seq, record.digest
                if seen > after:
                    yield record
            status = news[-1].envelope.status if news else ""
            if status in TERMINAL or (status in WAITING and not waits):
                yield await call.served.rested(run_id, call.caller.host)
                return
            rests = status or rests
            if asks and rests == "waiting_for_subagent" and (looked or news) and (asking := await asking_below(call, run_id)):
                yield asking
            try:
                item = await asyncio.wait_for(queue.get(), pause_s)
            except TimeoutError:
                break
            if isinstance(item, Chunk | str):
                yield item
                if isinstance(item, str):
                    return
            news, looked = [], False
            if item is None or (isinstance(item, Record) and item.envelope.seq > seen + 1):
                break
            if isinstance(item, Record) and item.envelope.seq > seen:
                news, pause_s = [item], LOOK_S


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
