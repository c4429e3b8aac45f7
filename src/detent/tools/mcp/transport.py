"""The wire below a session: a program's stdin and stdout, or streamable HTTP, observed so that its end is noticed and can be explained.

The transports are the SDK's. `Wire` collects what they do not report: the end of the stream, the program's stderr, lines on stdout that are not
JSON-RPC, and how a server answered a POST.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import re
import threading
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Any, cast

import httpx2
from mcp.client.auth.utils import extract_scope_from_www_auth
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.message import SessionMessage
from mcp.types import PARSE_ERROR, ErrorData, JSONRPCError

from detent.tools.mcp.patterns import keep_quick_patterns
from detent.tools.mcp.secrets import Resolved
from detent.tools.mcp.settings import McpServer

STDERR_BYTES = 8_192
CONNECT_S = 10.0
WRITE_S = 30.0
GOODBYE_S = 2.0
"""How long a server may take to answer the request that ends an HTTP session, in seconds."""

UNREADABLE_ANSWER = "the answer is not a JSON-RPC message"
"""Replaces an answer of which only the id is readable. Its call ends at once and is in doubt."""
_REFUSED = "detent.refused"
_ID = re.compile(r'"id"\s*:\s*(\d{1,18})\b')

Streams = tuple[Any, Any]

for _name in ("mcp", "client"):  # the SDK's loggers: they write to stderr only if the program sets a handler
    logging.getLogger(_name).addHandler(logging.NullHandler())


class Stderr:
    """The end of a program's stderr, read by its own thread so that a full pipe never blocks the program."""

    def __init__(self) -> None:
        self._tail = bytearray()
        reading, writing = os.pipe()
        self.file = os.fdopen(writing, "w")
        self._thread = threading.Thread(target=self._drain, args=(reading,), name="detent-mcp-stderr", daemon=True)
        self._thread.start()

    def _drain(self, descriptor: int) -> None:
        with os.fdopen(descriptor, "rb", buffering=0) as pipe, contextlib.suppress(OSError):
            while chunk := pipe.read(4_096):
                self._tail += chunk
                del self._tail[:-STDERR_BYTES]

    def close(self) -> None:
        """Close this process's end. The thread ends when the program's end is closed too."""
        with contextlib.suppress(OSError):
            self.file.close()

    def wait(self, seconds: float) -> None:
        """Wait until the program's end is closed, or for `seconds`."""
        self._thread.join(seconds)

    @property
    def text(self) -> str:
        """The last output."""
        return bytes(self._tail).decode("utf-8", "replace").strip()


class Wire:
    """The state of a connection's wire. `ended` is called once, when no more messages can come.

    `changed` is set when the server reports a change of its tools. More such reports are ignored while it is set.
    """

    def __init__(self, ended: Callable[[], None], changed: asyncio.Event) -> None:
        self._ended, self._changed = ended, changed
        self.stderr: Stderr | None = None
        self.garbage = 0
        self.first_garbage = ""
        self.refusals: list[int] = []
        self.wanted = ""

    def end(self) -> None:
        """Note that no more messages can come."""
        self._ended()

    def known(self, message: Any) -> bool:
        """Note a change of the tools if the message reports one. Return whether it reports only that and the change was already noted."""
        if getattr(message, "method", "") != "notifications/tools/list_changed":
            return False
        before = self._changed.is_set()
        self._changed.set()
        return before

    def broken_line(self, error: Exception) -> None:
        """Note a message that could not be read."""
        self.garbage += 1
        if not self.first_garbage:
            details = getattr(error, "errors", None)
            said: Any = details()[0].get("input", "") if details else error
            self.first_garbage = str(said)[:200]

    def answered(self, response: httpx2.Response) -> None:
        """Note the answer to a POST if it was an error. If the POST is sent again with authorisation, the last answer counts."""
        request = response.request
        if request.method != "POST":
            return
        if (before := request.extensions.pop(_REFUSED, None)) in self.refusals:
            self.refusals.remove(before)
        if response.status_code >= 400:
            self.refusals.append(response.status_code)
            request.extensions[_REFUSED] = response.status_code
            if response.status_code in (401, 403):
                self.wanted = extract_scope_from_www_auth(response) or ""


class WatchedStream:
    """The stream of incoming messages. It reports its end and unreadable messages."""

    def __init__(self, inner: Any, wire: Wire) -> None:
        self._inner, self._wire = inner, wire

    @property
    def last_context(self) -> Any:
        """The context variables of the sender, where the transport keeps them."""
        return getattr(self._inner, "last_context", None)

    async def receive(self) -> Any:
        """Return the next message."""
        while True:
            try:
                item = await self._inner.receive()
            except Exception:
                self._wire.end()
                raise
            if not self._wire.known(getattr(item, "message", None)):
                break
        if isinstance(item, Exception):
            self._wire.broken_line(item)
            return _answer_in(item) or item
        keep_quick_patterns(getattr(item, "message", None))
        return item

    def __aiter__(self) -> WatchedStream:
        return self

    async def __anext__(self) -> Any:
        import anyio

        try:
            return await self.receive()
        except anyio.EndOfStream:
            raise StopAsyncIteration from None

    async def aclose(self) -> None:
        """Close the stream."""
        self._wire.end()
        await self._inner.aclose()

    async def __aenter__(self) -> WatchedStream:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.aclose()


def _answer_in(error: Exception) -> SessionMessage | None:
    """Return the failure for the request that an unreadable line seems to answer, or None if it is not an answer."""
    details: Any = getattr(error, "errors", None)
    inputs: list[Any] = [found.get("input") for found in details()] if details else []
    number: Any = None
    for read in inputs:
        if isinstance(read, dict):
            fields = cast("dict[str, Any]", read)
            number = fields.get("id") if "method" not in fields else None
        elif isinstance(read, str) and '"method"' not in read and (found := _ID.search(read)):
            number = int(found[1])
        break
    if type(number) is not int:
        return None
    return SessionMessage(JSONRPCError(jsonrpc="2.0", id=number, error=ErrorData(code=PARSE_ERROR, message=UNREADABLE_ANSWER)))


@asynccontextmanager
async def transport(server: McpServer, resolved: Resolved, wire: Wire, auth: httpx2.Auth | None = None) -> AsyncGenerator[Streams]:
    """Open the wire to a server and close it, with the program or the HTTP session behind it, at the end."""
    opened = _http(resolved, wire, auth) if server.url else _program(server, resolved, wire)
    async with opened as (reading, writing):
        yield WatchedStream(reading, wire), writing


WITHOUT_DIRECTORY = {"PYTHONSAFEPATH": "1"}
"""Default environment of a program, which its `env` can override: Python does not import modules from the working directory or the script's folder,
where agents may write."""


@asynccontextmanager
async def _program(server: McpServer, resolved: Resolved, wire: Wire) -> AsyncGenerator[Streams]:
    parameters = StdioServerParameters(
        command=server.command,
        args=resolved.args,
        env={**WITHOUT_DIRECTORY, **resolved.env},
        cwd=server.cwd,
        encoding_error_handler="replace",
    )
    stderr = Stderr()
    try:
        async with stdio_client(parameters, errlog=stderr.file) as streams:
            stderr.close()
            wire.stderr = stderr
            yield streams
    finally:
        stderr.close()


@asynccontextmanager
async def _http(resolved: Resolved, wire: Wire, auth: httpx2.Auth | None) -> AsyncGenerator[Streams]:
    async def hurry(request: httpx2.Request) -> None:
        if request.method == "DELETE":
            request.extensions["timeout"] = dict.fromkeys(("connect", "read", "write", "pool"), GOODBYE_S)

    # No read timeout: each call has its own time limit, and a timeout that ends the wire would end all its calls.
    limits = httpx2.Timeout(connect=CONNECT_S, read=None, write=WRITE_S, pool=CONNECT_S)

    async def answered(response: httpx2.Response) -> None:
        if response.request.url == httpx2.URL(resolved.url):  # and not those of the authorisation
            wire.answered(response)

    hooks = {"request": [hurry], "response": [answered]}
    async with (
        httpx2.AsyncClient(headers=resolved.headers, timeout=limits, event_hooks=hooks, auth=auth) as client,
        streamable_http_client(resolved.url, http_client=client) as streams,
    ):
        yield streams
