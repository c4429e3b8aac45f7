"""Listening: the connections of a server. Each has a bound in time, so that whoever sends or reads slowly takes no place from others.

Rule: the head of a request comes within `receive_s`, and what was answered is read within `send_s`. `doors` bounds bodies and how many requests are open,
and streams have their own bounds.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Generator
from typing import Any

import uvicorn
from starlette.types import ASGIApp

from detent.server.settings import ServerSettings

LOOK_S = 1.0


class Listener(uvicorn.Server):
    """Serves an application on one socket until `stop`. Signals are the program's own."""

    def __init__(self, app: ASGIApp, settings: ServerSettings) -> None:
        grace_s = max(1, int(settings.grace_s))
        super().__init__(uvicorn.Config(app, log_level="warning", lifespan="on", timeout_graceful_shutdown=grace_s))
        self._settings = settings

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None]:
        """Leave signals to the program."""
        yield

    def stop(self) -> None:
        """Serve nothing more."""
        self.should_exit = True

    async def on(self, listening: socket.socket) -> None:
        """Serve until `stop`."""
        more_files()
        # Connections inherit it. Without it the body of an answer waits until its head is acknowledged, which takes many readers 40 ms.
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        watch = asyncio.create_task(self._watch())
        try:
            await self.serve(sockets=[listening])
        finally:
            watch.cancel()

    async def _watch(self) -> None:
        """Cut off who is too slow."""
        slow = Slow(head_s=self._settings.receive_s, read_s=self._settings.send_s)
        while True:
            await asyncio.sleep(LOOK_S)
            for connection in slow.look(self.server_state.connections, asyncio.get_running_loop().time()):
                connection.transport.abort()


class Slow:
    """Tells which connections take too long for the head of a request, or read nothing of what is sent to them."""

    def __init__(self, *, head_s: float, read_s: float) -> None:
        self._within = {"head": head_s, "read": read_s}
        self._known: dict[Any, tuple[str, int, float]] = {}

    def look(self, connections: Any, now: float) -> list[Any]:
        """Return those that have shown no progress for too long."""
        known, late = dict[Any, tuple[str, int, float]](), list[Any]()
        for one in connections:
            unread = one.transport.get_write_buffer_size() if one.transport is not None else 0
            waits = one.cycle is None or one.cycle.response_complete
            if not unread and not waits:
                continue
            kind, mark = ("read", unread) if unread else ("head", id(one.cycle))
            before, had, since = self._known.get(one, ("", 0, now))
            since = since if (before, had) == (kind, mark) else now
            known[one] = kind, mark, since
            if now - since >= self._within[kind]:
                late.append(one)
        self._known = known
        return late


def more_files() -> None:
    """Allow this process as many open files as the system lets it have: each connection is one."""
    try:
        import resource
    except ImportError:  # Windows has no such limit
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        if soft < hard:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
