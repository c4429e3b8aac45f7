"""A small HTTP listener for a worker's health: it answers `GET PATH`, and nothing a caller does costs more than a little.

A supervisor must reach it while the worker is busy, and the worker must not notice whoever else reaches it. So a caller has `CALL_S` for everything,
a request has at most `MOST_BYTES`, nothing is read behind its head, and of more than `MOST_CALLS` connections the oldest is cut off: a caller that
holds many connections keeps nobody else out. There is no keep-alive.
"""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from http import HTTPStatus
from types import TracebackType
from typing import Protocol

from detent.core.errors import ConfigError

CALL_S = 15.0
"""How long one call may take, from its connection to the last byte of its answer."""
READ_S = 5.0
"""How long its request may take of that."""
MOST_BYTES = 8_192
"""How long a request may be."""
MOST_CALLS = 32
"""How many connections are open at once."""

log = logging.getLogger("detent")


class Answer(Protocol):
    """What is answered."""

    @property
    def status(self) -> int: ...

    @property
    def content_type(self) -> str: ...

    @property
    def text(self) -> str: ...


class HealthListener:
    """Use as `async with HealthListener("127.0.0.1:9464", answer) as listener:`. `answer` gets a path without its query.

    An address without a host listens on loopback. Port 0 is a free one; `listener.url` says which.
    """

    def __init__(self, address: str, answer: Callable[[str], Awaitable[Answer]]) -> None:
        self._host, self._port = place_of(address)
        self._answer = answer
        self._calls: dict[asyncio.StreamWriter, asyncio.Task[None]] = {}
        self._server: asyncio.Server | None = None
        self.url = ""

    async def __aenter__(self) -> HealthListener:
        try:
            self._server = await asyncio.start_server(self._called, self._host, self._port, limit=MOST_BYTES)
        except OSError as error:
            why = "another process listens there" if error.errno == errno.EADDRINUSE else error.strerror or str(error)
            raise ConfigError(
                f"--health {self._host}:{self._port} cannot be used ({why}); give another address, or port 0 for a free one"
            ) from None
        host, port = self._server.sockets[0].getsockname()[:2]
        self.url = f"http://{f'[{host}]' if ':' in host else host}:{port}"
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._server is not None:
            self._server.close()
        calls = list(self._calls.values())
        for task in calls:
            task.cancel()
        await asyncio.gather(*calls, return_exceptions=True)

    def _called(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Begin to answer a caller; with too many of them, cut the oldest off."""
        if len(self._calls) >= MOST_CALLS:
            self._end(next(iter(self._calls)))
        task = self._calls[writer] = asyncio.create_task(self._serve(reader, writer))
        task.add_done_callback(lambda _: self._calls.pop(writer, None))

    def _end(self, writer: asyncio.StreamWriter) -> None:
        task = self._calls.pop(writer, None)
        writer.transport.abort()
        if task is not None:
            task.cancel()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with suppress(OSError, TimeoutError):
                async with asyncio.timeout(CALL_S):
                    writer.write(await self._answered(reader))
                    await writer.drain()
                    writer.close()
                    await writer.wait_closed()
        except Exception:  # whatever an answer meets, the listener answers the next caller
            log.exception("a question about the worker's health could not be answered")
        finally:
            writer.transport.abort()

    async def _answered(self, reader: asyncio.StreamReader) -> bytes:
        """Return the whole answer to the request that the reader gives."""
        try:
            async with asyncio.timeout(READ_S):
                head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.LimitOverrunError:
            return _response(431, "the request is too large\n")
        except asyncio.IncompleteReadError:
            return _response(400, "the request is not complete\n")
        except TimeoutError:
            return _response(408, "the request took too long\n")
        words = head.split(b"\r\n", 1)[0].split(b" ")
        if len(words) != 3 or not words[2].startswith(b"HTTP/1."):
            return _response(400, "this is not a request of HTTP/1.1\n")
        if words[0] not in (b"GET", b"HEAD"):
            return _response(405, "only GET and HEAD are answered\n", more="Allow: GET, HEAD\r\n")
        answer = await self._answer(words[1].partition(b"?")[0].decode("latin-1"))
        return _response(answer.status, answer.text, kind=answer.content_type, body=words[0] == b"GET")


def place_of(address: str) -> tuple[str, int]:
    """Return host and port of `HOST:PORT`, `:PORT` or `PORT`; raise `ConfigError`."""
    host, colon, port = address.rpartition(":")
    host = host.removeprefix("[").removesuffix("]") if colon else ""
    if not (port.isascii() and port.isdigit() and int(port) <= 65_535):
        raise ConfigError(f"--health {address!r} is not an address; write HOST:PORT, such as 127.0.0.1:9464")
    return host or "127.0.0.1", int(port)


def _response(status: int, text: str, *, kind: str = "text/plain; charset=utf-8", body: bool = True, more: str = "") -> bytes:
    data = text.encode()
    head = f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\nContent-Type: {kind}\r\nContent-Length: {len(data)}\r\n{more}"
    head += "Cache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\nConnection: close\r\n\r\n"
    return head.encode() + (data if body else b"")


__all__ = ["HealthListener"]
