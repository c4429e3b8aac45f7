"""A small store over a connection: a client, and a server on loopback that keeps everything in memory. For tests of the contract itself."""

from __future__ import annotations

import asyncio
import contextlib
import pickle
import secrets
import socket
import struct
import threading
from collections.abc import Callable, Sequence
from typing import Any

from detent.core.errors import RunNotFound, StoreBusy, StoreError
from detent.core.records import RunHead
from detent.ports import EventStore
from detent.stores.ram import RamStore
from detent.testing.conformance.store import Place


class Server:
    """Serves requests, each a call of a store's method in one piece; every holder has a store of its own."""

    def __init__(self) -> None:
        self._ram = RamStore()
        self._holders: dict[str, RamStore] = {}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._tasks: set[asyncio.Task[None]] = set()

    def __enter__(self) -> Server:
        self._thread.start()
        self._server = asyncio.run_coroutine_threadsafe(asyncio.start_server(self._serve, "127.0.0.1", 0), self._loop).result()
        self.address: tuple[str, int] = self._server.sockets[0].getsockname()
        return self

    def __exit__(self, *_: object) -> None:
        async def end() -> None:
            self._server.close()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

        asyncio.run_coroutine_threadsafe(end(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            while True:
                (size,) = struct.unpack("!I", await reader.readexactly(4))
                holder, name, args, options = pickle.loads(await reader.readexactly(size))  # noqa: S301 - our own test
                store = self._holders.setdefault(holder, self._ram.sibling())
                try:
                    answer: tuple[bool, Any] = True, await self._do(store, name, args, options)
                except Exception as error:  # noqa: BLE001 - goes to the client
                    answer = False, (type(error), str(error), vars(error))
                raw = pickle.dumps(answer)
                writer.write(struct.pack("!I", len(raw)) + raw)
                await writer.drain()
        writer.close()
        self._tasks.discard(task)

    async def _do(self, store: RamStore, name: str, args: Any, options: Any) -> Any:
        if name == "erase":
            run_id, tombs, head = args
            return await store.erase(run_id, lambda line: tombs[line], head=head, **options)
        if name == "half_erase":
            run = store._run(args[0])
            run.records[0] = b"{}"
            return None
        if name == "half_delete":
            store._run(args[0]).records.clear()
            return None
        return await getattr(store, name)(*args, **options)


class RemoteStore:
    """The client: a sound one. What is cut off is `StoreBusy`, and the next call connects anew."""

    url = "remote:"

    def __init__(self, host: str, port: int) -> None:
        self._where = host, port
        self._holder = secrets.token_hex(8)
        self._pipe: socket.socket | None = None  # bound to no event loop: the next one may close it
        self._lock = asyncio.Lock()
        self._closed = True
        self._owed: asyncio.Task[None] | None = None

    async def open(self) -> None:
        if self._closed:
            self._closed = False
            await self._call("open")

    async def close(self) -> None:
        if self._owed is not None:
            self._owed.cancel()
        if not self._closed:
            with contextlib.suppress(StoreError):
                await self._call("close")
            self._hang_up()
        self._closed = True

    def _hang_up(self) -> None:
        if self._pipe is not None:
            self._pipe.close()
        self._pipe = None

    async def _call(self, name: str, *args: Any, **options: Any) -> Any:
        """Make one request; raise what the server raised, `StoreBusy` where nobody knows what became of it."""
        async with self._lock:
            if self._closed:
                raise StoreError("the store is closed")
            try:
                well, answer = await self._exchange((self._holder, name, args, options))
            except OSError as lost:
                self._hang_up()
                return self._lost(lost)
            except asyncio.CancelledError:
                self._hang_up()  # the answer that is still to come is nobody's
                raise
        if well:
            return answer
        kind, said, fields = answer
        error = kind.__new__(kind, said)
        error.__dict__.update(fields)
        raise error

    def _lost(self, error: Exception) -> Any:
        raise StoreBusy(f"remote: the connection is gone ({error}); what was under way may or may not be recorded") from error

    async def _exchange(self, request: Any) -> tuple[bool, Any]:
        loop = asyncio.get_running_loop()
        if self._pipe is None:
            self._pipe = socket.socket()
            self._pipe.setblocking(False)
            await loop.sock_connect(self._pipe, self._where)
        pipe, raw = self._pipe, pickle.dumps(request)

        async def exactly(size: int) -> bytes:
            data = b""
            while len(data) < size:
                if not (more := await loop.sock_recv(pipe, size - len(data))):
                    raise ConnectionError("the server hung up")
                data += more
            return data

        await loop.sock_sendall(pipe, struct.pack("!I", len(raw)) + raw)
        (size,) = struct.unpack("!I", await exactly(4))
        return pickle.loads(await exactly(size))  # noqa: S301 - our own test

    async def append(self, run_id: str, expected_seq: int, records: Sequence[bytes], **options: Any) -> None:
        await self._call("append", run_id, expected_seq, list(records), **options)

    async def release(self, run_id: str) -> None:
        try:
            await self._call("release", run_id)
        except StoreBusy:
            self._owed = asyncio.create_task(self._release_later(run_id))
            raise

    async def _release_later(self, run_id: str) -> None:
        while True:
            with contextlib.suppress(StoreBusy):
                return await self._call("release", run_id)

    async def erase(self, run_id: str, tombstone: Callable[[bytes], bytes], *, head: RunHead, claim: int | None = None) -> None:
        lines = await self._call("read", run_id)
        if not lines:
            raise RunNotFound(run_id)
        await self._call("erase", run_id, {line: tombstone(line) for line in lines}, head, claim=claim)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or not hasattr(EventStore, name):  # what else a store may have the server's has not
            raise AttributeError(name)

        async def call(*args: Any, **options: Any) -> Any:
            return await self._call(name, *args, **options)

        return call


class RemotePlace(Place):
    """Stores of one kind at one server."""

    persistent = False
    patience_s = 60.0

    def __init__(self, server: Server, kind: type[RemoteStore] = RemoteStore) -> None:
        self.server = server.address
        self._kind = kind

    def store(
        self, *, now: Callable[[], float] | None = None, host: str | None = None, monotonic: Callable[[], float] | None = None
    ) -> EventStore:
        return RemoteStore(*self.server)  # type: ignore[misc,return-value]

    def through(self, host: str, port: int) -> EventStore:
        return self._kind(host, port)  # type: ignore[return-value]
