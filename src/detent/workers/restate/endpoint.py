"""What Restate's server calls: a virtual object whose key is a run's id, with one handler that ticks the run.

Theory of operation: Restate calls `tick` for one run at a time, on any worker at the URL. The handler advances the run within `ctx.run`, so Restate
journals the outcome, and only this outcome decides what follows: nothing, or another tick after a delay. Whatever goes wrong with a run is an
outcome too. An exception leaves the handler only if this worker itself is in trouble; Restate then calls another one.

One request is one tick: Restate says on its open body that the outcome is journaled. Over a body that ends first it would have to call once more.

The endpoint has an event loop and a thread of its own: Restate's library handles SIGTERM of the main thread otherwise, and answers late whenever a
tool blocks the engine's loop.
"""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any, cast
from urllib.parse import urlsplit

import restate
import uvicorn
from restate.retry_policy import InvocationRetryPolicy

from detent.core.errors import ConfigError

Next = tuple[float, str, int] | None
"""When the next tick of a run is due: after so many seconds, under that token, and how many ticks of it made no progress. A token has one tick at most.

None: no further tick.
"""
Ticks = Callable[[str, int], Awaitable[Next]]

RETRIES = InvocationRetryPolicy(
    initial_interval=timedelta(milliseconds=50),
    exponentiation_factor=2.0,
    max_interval=timedelta(seconds=2),
    max_attempts=1_000_000,
    on_max_attempts="kill",  # one that is paused instead blocks all later ticks of its run
)
"""How Restate repeats a tick whose worker died: attempts at a run are not its business."""
OPTIONS = restate.RunOptions[dict[str, Any]](type_hint=dict)
"""The type of an outcome: the library would work it out for each tick."""
KEPT = timedelta(seconds=30)
"""How long Restate keeps the token of a tick that is over."""
WORKS_S = 10.0
"""What a tick takes beside advancing its run, at most. A worker that is silent for longer hangs, or is cut off."""
ABORT_S = 1.0
"""How long such a worker may take to suspend its tick; Restate then calls another one."""
STOP_S, LAST_S = 5, 1.0
"""How long a worker that stops, whose ticks are answered, lets their requests take at most, and after how long it closes what Restate leaves open."""


class Endpoint:
    """The server of one worker, from `start` to `stop`. Workers on one machine may share an address: each call goes to one of them."""

    def __init__(
        self, service: str, ticks: Ticks, *, tick_s: float, bind: str, identity_keys: tuple[str, ...], tls: tuple[str, str] | None
    ) -> None:
        """Listen at `bind`. A tick advances its run for `tick_s` seconds, or twice as long if the run had another worker that died."""
        self._loop, self._over = asyncio.get_running_loop(), asyncio.Event()
        tick = restate.VirtualObject(
            service,
            invocation_retry_policy=RETRIES,
            idempotency_retention=KEPT,
            journal_retention=timedelta(0),
            inactivity_timeout=timedelta(seconds=2 * tick_s + WORKS_S),
            abort_timeout=timedelta(seconds=ABORT_S),
        )

        async def advance(run_id: str, crowded: int) -> dict[str, Any]:
            return {"next": await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(_told(ticks(run_id, crowded)), self._loop))}

        @tick.handler("tick")
        async def handler(ctx: restate.ObjectContext, asked: Any) -> None:
            came_to = await ctx.run_typed("advance", advance, OPTIONS, ctx.key(), crowded_of(asked))
            if came_to["next"] is not None:
                after_s, token, crowded = came_to["next"]
                more = {"crowded": crowded}
                ctx.object_send(handler, ctx.key(), more, send_delay=timedelta(seconds=after_s), idempotency_key=token)

        try:
            app: Any = restate.app([tick], protocol="bidi", identity_keys=list(identity_keys))
        except Exception as error:  # whatever the library raises about a key
            raise ConfigError(
                f"[worker.restate] identity_keys are {list(identity_keys)!r} ({error}); give public keys of Restate"
            ) from error
        options: dict[str, Any] = {"ssl_certfile": tls[0], "ssl_keyfile": tls[1]} if tls else {}
        config = uvicorn.Config(
            app, lifespan="off", log_config=None, log_level="warning", access_log=False, timeout_graceful_shutdown=STOP_S, **options
        )
        try:
            config.load()
        except OSError as error:  # ssl.SSLError is one
            raise ConfigError(f"[worker.restate] tls_certificate and tls_key, {tls}, cannot be used: {error}") from error
        self.socket = _listening(bind)
        self._server = _Server(config)
        self._thread = threading.Thread(target=self._serve, name="detent-restate", daemon=True)

    def start(self) -> None:
        """Begin to answer."""
        self._thread.start()

    async def stop(self) -> None:
        """Take no more calls, answer those in progress, and end."""
        self._server.end()
        if self._thread.ident is not None:
            await self._over.wait()
            self._thread.join()
        self.socket.close()

    def _serve(self) -> None:
        try:
            asyncio.run(self._server.serve([self.socket]))
        finally:
            self._loop.call_soon_threadsafe(self._over.set)


class _Server(uvicorn.Server):
    """Ends at once, where uvicorn's own looks ten times a second whether it should."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._wanted: tuple[asyncio.AbstractEventLoop, asyncio.Event] | None = None

    async def main_loop(self) -> None:
        """Wait for the end."""
        self._wanted = asyncio.get_running_loop(), asyncio.Event()
        if not self.should_exit:
            await self._wanted[1].wait()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End, and leave no connection open.

        One that was just accepted is known to the loop and not yet to uvicorn, which would wait for it for ever: the caller keeps it for later. To a
        server that is closed meanwhile, asyncio cannot add it, and leaves it open. So accepting ends first, and the server is closed after that.
        """
        loop = asyncio.get_running_loop()
        for server in self.servers:
            for one in server.sockets:
                loop.remove_reader(one)
        for _ in range(3):  # the turns in which the loop makes it known
            await asyncio.sleep(0)
        late = loop.call_later(LAST_S, self._abort)
        await super().shutdown(sockets)
        late.cancel()
        self._abort()
        await asyncio.sleep(0)

    def _abort(self) -> None:
        for connection in list(self.server_state.connections):
            connection.transport.abort()

    def end(self) -> None:
        """Ask the server, in its thread, to end."""
        self.should_exit = True
        if self._wanted is not None:
            self._wanted[0].call_soon_threadsafe(self._wanted[1].set)


def crowded_of(asked: Any) -> int:
    """Return how many ticks made no progress. Whoever reaches the ingress may ask for a tick, and say anything: that is 0, and no failure to repeat."""
    said = cast("dict[str, Any]", asked).get("crowded") if isinstance(asked, dict) else 0
    return said if type(said) is int and said > 0 else 0


async def _told(tick: Awaitable[Next]) -> Next:
    return await tick


def _listening(bind: str) -> socket.socket:
    """Return a socket that listens at HOST:PORT, together with those of other workers of this machine. Raise `ConfigError`."""
    try:
        place = urlsplit(f"//{bind}")
        host, port = place.hostname or "127.0.0.1", place.port or 0
    except ValueError as error:
        raise ConfigError(f"[worker.restate] bind is {bind!r} ({error}); give HOST:PORT, such as 127.0.0.1:9080") from error
    found = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    try:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if hasattr(socket, "SO_REUSEPORT"):
            found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        found.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # connections inherit both
        found.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)  # a tick's stays open while Restate's machine may vanish
        found.bind((host, port))
        found.listen(512)
        os.set_inheritable(found.fileno(), False)
    except OSError as error:
        found.close()
        raise ConfigError(f"a worker cannot listen at {bind} ({error.strerror or error}); set [worker.restate] bind") from error
    return found
