"""`subscriptions/listen` (2026-07-28): a client is told that runs changed, and reads them again if it cares. Nothing is sent twice after a gap: it asks anew.

Rule: a client hears of its own tenant's runs only.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Any, Literal

import mcp_types as t
from mcp.server.subscriptions import InMemorySubscriptionBus, ListenHandler, ResourcesListChanged, ResourceUpdated
from mcp.shared.exceptions import MCPError

from detent.core.errors import DetentError
from detent.core.records import Record, RunHead
from detent.ports import EventStore, RunQuery
from detent.server.callers import Caller
from detent.server.cursors import Cursor
from detent.server.many import Following, OfTenant, Runs, ends_of
from detent.server.problems import Refused
from detent.server.served import Reader, Served

MOST_NAMED, MOST_RUNNING = 64, 1_000
_RUN_URI = re.compile(r"detent://runs/([^/]+)(?:/log)?")


class _OfSome:
    """Some runs of a tenant. Between looks at each of them, those that run, or ran at the last look, are looked at."""

    over, top = False, ""

    def __init__(self, store: EventStore, tenant: str, run_ids: Sequence[str]) -> None:
        self._store, self._tenant, self._run_ids = store, tenant, frozenset(run_ids)
        self._running: set[str] = set()

    def has(self, run_id: str) -> bool:
        """Whether it is one of them."""
        return run_id in self._run_ids

    async def heads(self, *, whole: bool) -> AsyncGenerator[Sequence[RunHead]]:
        """Yield those that exist, and may have changed."""
        running: set[str] = set()
        if not whole and self._run_ids:
            query = RunQuery(tenant=self._tenant, status=("running",), limit=MOST_RUNNING)
            running = {head.run_id for head in await self._store.list_runs(query)} & self._run_ids
        looked, self._running = self._run_ids if whole else running | self._running, running
        yield [head for run_id in looked if (head := await self._store.head(run_id)) is not None]


class Changes:
    """The method `subscriptions/listen` of one server."""

    def __init__(self, served: Served, caller_of: Callable[[Any, Literal["see"]], Caller]) -> None:
        self._served, self._caller_of = served, caller_of

    async def listen(self, ctx: Any, params: t.SubscriptionsListenRequestParams) -> t.SubscriptionsListenResult:
        """Tell of new runs (the list of resources), and of records of the runs that are named, until the client goes."""
        caller, served = self._caller_of(ctx, "see"), self._served
        try:
            served.refuse_full(caller)
            if params.notifications.resources_list_changed:
                served.refuse_many(caller.tenant)
        except Refused as refused:
            raise MCPError(t.INTERNAL_ERROR, str(refused)) from refused
        named: dict[str, list[str]] = {}
        wanted = params.notifications.resource_subscriptions or ()
        if len(wanted) > MOST_NAMED:
            raise MCPError(t.INVALID_PARAMS, f"{len(wanted)} resources are named; name at most {MOST_NAMED}, or listen to the list of them")
        for uri in wanted:
            if found := _RUN_URI.fullmatch(uri):
                with contextlib.suppress(DetentError):  # a resource that does not exist never changes
                    named.setdefault((await served.engine.load(found[1], host=caller.host)).run_id, []).append(uri)
        store = served.engine.store
        every = bool(params.notifications.resources_list_changed)
        runs: Runs = OfTenant(store, caller.tenant) if every else _OfSome(store, caller.tenant, tuple(named))
        whole = served.following_all(caller.tenant) if every else contextlib.nullcontext()
        bus = InMemorySubscriptionBus()
        handler = ListenHandler(bus)
        with whole, served.streaming(caller), served.hub.reading("tenant", caller.tenant) as reader:
            cursor = Cursor(store)
            cursor.begin_at(await ends_of(runs))
            telling = asyncio.create_task(self._tell(Following(store, runs, cursor, reader), bus, named, handler))
            stopping = asyncio.create_task(self._stops(reader))
            try:
                return await handler(ctx, params)
            finally:
                for task in (telling, stopping):
                    task.cancel()
                await asyncio.gather(telling, stopping, return_exceptions=True)

    async def _tell(self, following: Following, bus: InMemorySubscriptionBus, named: dict[str, list[str]], handler: ListenHandler) -> None:
        try:
            async with contextlib.aclosing(following.items()) as items:
                async for item in items:
                    if isinstance(item, Record):
                        if item.envelope.seq == 1:
                            await bus.publish(ResourcesListChanged())
                        for uri in named.get(item.envelope.run, ()):
                            await bus.publish(ResourceUpdated(uri=uri))
                    elif isinstance(item, str):
                        return
        finally:
            handler.close()

    async def _stops(self, reader: Reader) -> None:
        await self._served.stopping.wait()
        reader.tell("the server stops")
