"""Stores that fail on purpose, to test how runs survive it.

inner = open_store("sqlite:///runs.db")
engine = Engine(store=CrashingStore(inner, at=3, when="after"), ...)   # dies after its third write has taken effect
...
await inner.close()                                                   # the dead process releases its locks
await Engine(store=open_store("sqlite:///runs.db"), ...).resume(run_id)
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Literal, TypeVar

from detent.core.records import RunHead
from detent.ports import Balance, DueQuery, DueRuns, EventStore, Reservation, RunQuery, Signal, Spent
from detent.ports.stores import Posts

T = TypeVar("T")
When = Literal["before", "after"]

WRITES = ("append", "claim", "put_blob")
"""The operations that a `CrashingStore` counts by default."""


class Crash(BaseException):
    """The process is dead. It is not an `Exception`, so that no handler for foreign code treats it as a failure that it can survive."""


class CrashingStore:
    """A store around another one. It raises at operation number `at` (from 1) of the kinds `operations`.

    `when` says whether the operation takes effect first. It raises `error()`. A crashed store is dead: every later call raises the same error and does
    nothing, as after the end of its process. With `once` it works again, as after a passing failure. `at=0` only counts and never crashes. `done`
    lists the counted operations that took effect. A dead store does not close the inner store: close it when the process would have ended.
    """

    def __init__(
        self,
        inner: EventStore,
        *,
        at: int = 0,
        when: When = "before",
        operations: Sequence[str] = WRITES,
        error: Callable[[], BaseException] = Crash,
        once: bool = False,
    ) -> None:
        for operation in operations:
            if not callable(getattr(inner, operation, None)):
                raise ValueError(f"a store has no operation {operation!r}; name methods of EventStore")  # noqa: TRY004 - a wrong name
        self.inner, self.at, self.when, self.once = inner, at, when, once
        self.url = inner.url
        self.operations = frozenset(operations)
        self.calls = 0
        self.done: list[str] = []
        self.crashed = False
        self._error = error

    @property
    def dead(self) -> bool:
        """Whether the store crashed for good."""
        return self.crashed and not self.once

    async def _do(self, operation: str, call: Callable[[], Awaitable[T]]) -> T:
        if self.dead:
            raise self._error()
        if operation not in self.operations:
            return await call()
        self.calls += 1
        now = self.calls == self.at
        if now and self.when == "before":
            self.crashed = True
            raise self._error()
        answer = await call()
        self.done.append(operation)
        if now:
            self.crashed = True
            raise self._error()
        return answer

    async def open(self) -> None:
        """Open the inner store."""
        await self._do("open", self.inner.open)

    async def close(self) -> None:
        """Close the inner store; a dead store does nothing."""
        if not self.dead:
            await self._do("close", self.inner.close)

    async def append(
        self,
        run_id: str,
        expected_seq: int,
        records: Sequence[bytes],
        *,
        head: RunHead,
        durable: bool = False,
        consumed: Sequence[str] = (),
        spent: Spent | None = None,
        released: Sequence[str] | None = (),
        reserved: Reservation | None = None,
        intent: bool = False,
        claim: int | None = None,
        posts: Posts = (),
    ) -> None:
        """See `EventStore.append`."""
        more: dict[str, Any] = (
            ({"intent": True} if intent else {}) | ({} if claim is None else {"claim": claim}) | ({"posts": posts} if posts else {})
        )
        more |= {} if reserved is None else {"reserved": reserved}

        def append() -> Awaitable[None]:
            return self.inner.append(
                run_id,
                expected_seq,
                records,
                head=head,
                durable=durable,
                consumed=consumed,
                spent=spent,
                released=released,
                **more,
            )

        await self._do("append", append)

    async def spent(self, tenant: str, since: str) -> Spent:
        """See `EventStore.spent`."""
        return await self._do("spent", lambda: self.inner.spent(tenant, since))

    async def reserve(self, asked: Reservation) -> Balance:
        """See `EventStore.reserve`."""
        return await self._do("reserve", lambda: self.inner.reserve(asked))

    async def read(self, run_id: str, *, after: int = 0, limit: int | None = None) -> list[bytes]:
        """See `EventStore.read`."""
        return await self._do("read", lambda: self.inner.read(run_id, after=after, limit=limit))

    async def head(self, run_id: str) -> RunHead | None:
        """See `EventStore.head`."""
        return await self._do("head", lambda: self.inner.head(run_id))

    async def sealed(self, run_id: str) -> tuple[int, str] | None:
        """See `EventStore.sealed`."""
        return await self._do("sealed", lambda: self.inner.sealed(run_id))

    async def list_runs(self, query: RunQuery) -> list[RunHead]:
        """See `EventStore.list_runs`."""
        return await self._do("list_runs", lambda: self.inner.list_runs(query))

    async def due(self, query: DueQuery) -> DueRuns:
        """See `EventStore.due`."""
        return await self._do("due", lambda: self.inner.due(query))

    async def claim(self, run_id: str) -> int:
        """See `EventStore.claim`."""
        return await self._do("claim", lambda: self.inner.claim(run_id))

    async def release(self, run_id: str) -> None:
        """See `EventStore.release`."""
        await self._do("release", lambda: self.inner.release(run_id))

    async def renew(self) -> list[str]:
        """See `EventStore.renew`."""
        return await self._do("renew", self.inner.renew)

    async def post(self, run_id: str, signal: Signal) -> None:
        """See `EventStore.post`."""
        await self._do("post", lambda: self.inner.post(run_id, signal))

    async def signals(self, run_ids: Sequence[str]) -> dict[str, list[Signal]]:
        """See `EventStore.signals`."""
        return await self._do("signals", lambda: self.inner.signals(run_ids))

    async def put_blob(self, run_id: str, key: str, data: bytes) -> None:
        """See `EventStore.put_blob`."""
        await self._do("put_blob", lambda: self.inner.put_blob(run_id, key, data))

    async def get_blob(self, run_id: str, key: str) -> bytes | None:
        """See `EventStore.get_blob`."""
        return await self._do("get_blob", lambda: self.inner.get_blob(run_id, key))

    async def list_blobs(self, run_id: str) -> list[str]:
        """See `EventStore.list_blobs`."""
        return await self._do("list_blobs", lambda: self.inner.list_blobs(run_id))

    async def delete_blob(self, run_id: str, key: str) -> None:
        """See `EventStore.delete_blob`."""
        await self._do("delete_blob", lambda: self.inner.delete_blob(run_id, key))

    async def put_snapshot(self, run_id: str, seq: int, data: bytes) -> None:
        """See `EventStore.put_snapshot`."""
        await self._do("put_snapshot", lambda: self.inner.put_snapshot(run_id, seq, data))

    async def get_snapshot(self, run_id: str) -> tuple[int, bytes] | None:
        """See `EventStore.get_snapshot`."""
        return await self._do("get_snapshot", lambda: self.inner.get_snapshot(run_id))

    async def erase(self, run_id: str, tombstone: Callable[[bytes], bytes], *, head: RunHead, claim: int | None = None) -> None:
        """See `EventStore.erase`."""
        more: dict[str, Any] = {} if claim is None else {"claim": claim}
        await self._do("erase", lambda: self.inner.erase(run_id, tombstone, head=head, **more))

    async def delete(self, run_id: str) -> None:
        """See `EventStore.delete`."""
        await self._do("delete", lambda: self.inner.delete(run_id))

    async def gc(self) -> int:
        """See `EventStore.gc`."""
        return await self._do("gc", self.inner.gc)
