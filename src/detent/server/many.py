"""Streams over many runs: those of a tree, or all of a tenant, record by record as they are committed.

What this process commits comes through the hub, at once. What others commit is read when the store tells of it, or when it is looked at. Rule: what
goes out is decided by how far the reader has come in each run (`Cursor`), so no record is left out and none comes twice, whoever wrote it.
"""

from __future__ import annotations

import asyncio
import heapq
import time
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Sequence
from typing import Any, Protocol

import msgspec

from detent.core.codec import read_log, read_record
from detent.core.errors import CorruptLog, NewerVersion, RunNotFound
from detent.core.records import Record, RunHead
from detent.core.state import TERMINAL
from detent.history.trees import is_below, tree_at
from detent.ports import Chunk, EventStore, RunQuery, wait_for_news
from detent.ports.observing import placed
from detent.server.cursors import Cursor
from detent.server.problems import Problem, problem_of
from detent.server.served import Reader

LOOK_S = 0.2
"""How often a store that cannot tell of records is looked at."""
WHOLE_S = 30.0
"""How often all runs of a tenant are looked at, beside those that are new or running."""
LISTED, READ, TOGETHER = 200, 500, 16
"""How many listing entries and records are read at a time, and of how many runs the records are put in the order of their times."""
MOST_RUNS, ATTEMPTS = 200_000, 5


class Runs(Protocol):
    """Which runs a stream is about. With a run at the `top`, the stream ends when that is `over`."""

    top: str
    over: bool

    def has(self, run_id: str) -> bool:
        """Whether a run of which the hub tells belongs to it."""
        ...

    def heads(self, *, whole: bool) -> AsyncIterator[Sequence[RunHead]]:
        """Yield the runs that may have new records, page by page; with `whole` all of them."""
        ...


class OfTree:
    """A run and all runs below it."""

    def __init__(self, store: EventStore, top: str) -> None:
        self._store, self.top, self.over = store, top, False

    def has(self, run_id: str) -> bool:
        """Whether a run is the first one, or below it."""
        return run_id == self.top or is_below(run_id, self.top)

    async def heads(self, *, whole: bool) -> AsyncGenerator[Sequence[RunHead]]:
        """Yield all of them; raise `RunNotFound` if the first is gone."""
        if (head := await self._store.head(self.top)) is None:
            raise RunNotFound(self.top, "this server")
        self.over = head.status in TERMINAL
        yield [one.head for one in (await tree_at(self._store, self.top)).runs]


class OfTenant:
    """All runs of a tenant."""

    top, over = "", False

    def __init__(self, store: EventStore, tenant: str) -> None:
        self._store, self._tenant = store, tenant

    def has(self, run_id: str) -> bool:
        """Whether a run is one of them: the hub tells of no other."""
        return True

    async def heads(self, *, whole: bool) -> AsyncGenerator[Sequence[RunHead]]:
        """Yield the running and the newest runs, or all, oldest first."""
        if not whole:
            running = await self._store.list_runs(RunQuery(tenant=self._tenant, status=("running",), limit=5 * LISTED))
            newest = await self._store.list_runs(RunQuery(tenant=self._tenant, limit=LISTED))
            yield list({head.run_id: head for head in (*reversed(running), *reversed(newest))}.values())
            return
        for page in reversed(await self._pages()):
            yield page[::-1]

    async def _pages(self) -> list[list[RunHead]]:
        """Return all entries, without what is long in them, newest first; again from the first page if a page began behind a run that was deleted."""
        for left in range(ATTEMPTS, 0, -1):
            pages, query = list[list[RunHead]](), RunQuery(tenant=self._tenant, limit=LISTED)
            try:
                while page := await self._store.list_runs(query):
                    pages.append([msgspec.structs.replace(head, goal="", title="", queued=None) for head in page])
                    query = msgspec.structs.replace(query, after=page[-1].run_id)
                return pages
            except RunNotFound:
                if left == 1:
                    raise
        return []


async def ends_of(runs: Runs) -> dict[str, int]:
    """Return how many records each run has now."""
    return {head.run_id: head.records async for page in runs.heads(whole=True) for head in page}


class Following:
    """One stream over many runs."""

    def __init__(self, store: EventStore, runs: Runs, cursor: Cursor, reader: Reader) -> None:
        self._store, self._runs, self._cursor, self._reader = store, runs, cursor, reader
        self._digests: dict[str, str] = {}
        self._damaged: set[str] = set()
        self._looked_s = 0.0

    async def items(self) -> AsyncGenerator[Record | Chunk | Problem | str]:
        """Yield records, chunks, what is wrong with a log that cannot be read, and at the end why the stream stops; "" if its first run has ended."""
        watch = asyncio.create_task(self._watch())
        whole_at, over = 0.0, False
        try:
            while True:
                began = time.monotonic()
                whole = began >= whole_at
                async for item in self._looked(whole=whole):
                    yield item
                self._looked_s = time.monotonic() - began
                if whole:
                    whole_at = time.monotonic() + max(WHOLE_S, 20 * self._looked_s)
                if over:
                    yield ""
                    return
                if len(self._cursor.reached) > MOST_RUNS:
                    yield f"there are more than {MOST_RUNS:,} runs, which is the most of one stream; read the runs or their trees one by one"
                    return
                over = self._runs.over
                if not over:
                    async for item in self._told():
                        yield item
                        if isinstance(item, str):
                            return
        finally:
            watch.cancel()
            await asyncio.gather(watch, return_exceptions=True)

    async def _watch(self) -> None:
        while True:
            await wait_for_news(self._store, LOOK_S, records=True, looked_s=self._looked_s)
            self._reader.look()

    async def _told(self) -> AsyncGenerator[Record | Chunk | Problem | str]:
        """Yield what the hub tells, until it is time to look at the store."""
        told: Sequence[Any] = ()
        while None not in told:
            told = await self._reader.take()
            for item in told:
                if isinstance(item, Record):
                    run_id, seq = item.envelope.run, item.envelope.seq
                    reached = self._cursor.reached.get(run_id, 0)
                    if seq <= reached or run_id in self._damaged or not self._runs.has(run_id):
                        continue
                    if seq == reached + 1:
                        yield self._note(item)
                    elif (head := await self._store.head(run_id)) is not None:
                        async for one in self._read([head]):
                            yield one
                    if item.envelope.status in TERMINAL and run_id == self._runs.top:
                        return
                elif isinstance(item, str) or (isinstance(item, Chunk) and self._runs.has(item.run_id)):
                    yield item

    async def _looked(self, *, whole: bool) -> AsyncGenerator[Record | Problem]:
        """Yield what the store has and the reader does not."""
        missed, self._reader.missed = self._reader.missed, set()
        left = [head for run_id in missed if self._runs.has(run_id) and (head := await self._store.head(run_id)) is not None]
        async for page in self._runs.heads(whole=whole):
            left += [head for head in page if head.records > self._cursor.reached.get(head.run_id, 0)]
            for at in range(0, len(left), TOGETHER):
                async for item in self._read(left[at : at + TOGETHER]):
                    yield item
            left = []

    async def _read(self, heads: Iterable[RunHead]) -> AsyncGenerator[Record | Problem]:
        """Yield the new records of these runs, each log in its order, and all in the order of their times as far as they are read together."""
        left = {head.run_id: head for head in heads if head.run_id not in self._damaged}
        while left:
            found: list[list[Record]] = []
            for run_id, head in tuple(left.items()):
                try:
                    new = await self._new(run_id)
                except (CorruptLog, NewerVersion) as error:
                    new = []
                    self._damaged.add(run_id)
                    if (problem := problem_of(error, self._store.url)) is not None:
                        yield problem
                found.append([placed(record, head.agent, head.parent) for record in new])
                if len(new) < READ:
                    del left[run_id]
            for record in heapq.merge(*found, key=lambda one: one.envelope.at):
                yield self._note(record)

    async def _new(self, run_id: str) -> list[Record]:
        """Return verified records behind the last one that the reader has."""
        seq = self._cursor.reached.get(run_id, 0)
        digest = self._digests.get(run_id, "")
        if seq and not digest:
            there = await self._store.read(run_id, after=seq - 1, limit=1)
            if not there:
                return []
            try:
                digest = read_record(there[0]).digest
            except (ValueError, LookupError, TypeError) as error:  # msgspec's errors are ValueErrors
                raise CorruptLog(run_id, seq, f"it cannot be read ({error})") from error
        return list(read_log(run_id, await self._store.read(run_id, after=seq, limit=READ), previous=digest, after=seq))

    def _note(self, record: Record) -> Record:
        run_id = record.envelope.run
        self._cursor.reached[run_id] = record.envelope.seq
        if record.envelope.status in TERMINAL:
            self._digests.pop(run_id, None)
        else:
            self._digests[run_id] = record.digest
        return record
