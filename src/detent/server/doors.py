"""What a request passes before anything of it is read: the name of the host, the origin of the page, and the size and pace of its body.

Browsers send a page's origin with each request that could change something; one that is neither this server's own nor listed is refused. Host names
are compared, so a page that makes its own name point here (DNS rebinding) is refused. A header that decides who asks, or for what, comes once: of two,
a proxy might have checked the other one.
"""

from __future__ import annotations

import asyncio
import contextlib
import re

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from detent.server.problems import Refused, answer
from detent.server.settings import ServerSettings

OTHERS = 1_000
"""How many requests are answered at once beside the streams."""
ONCE = (b"host", b"origin", b"authorization", b"content-length", b"content-type", b"idempotency-key", b"last-event-id", b"traceparent")
DISCARDED_BYTES, DISCARDED_S = 256 * 1024 * 1024, 10.0
"""How much of a body that is refused is read, and for how long, so that its sender reads the answer and not a broken connection."""
_HOST = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::\d{1,5})?")


class Doors:
    """The application behind it gets requests that may be read, and bodies that end in time and within their size."""

    def __init__(self, app: ASGIApp, *, settings: ServerSettings) -> None:
        self._app, self._settings, self._open = app, settings, 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        try:
            headers = self._checked(scope)
        except Refused as refused:
            await answer(refused.problem)(scope, receive, send)
            return
        body = _Body(receive, self._settings)
        said = headers.get(b"content-length", b"0")
        if not said.isdigit() or int(said) > self._settings.body_bytes:
            await body.discard()
            await answer(body.too_large.problem, {"Connection": "close"})(scope, receive, send)
            return
        if self._open >= self._settings.streams + OTHERS:
            full = Refused(503, "too_many_requests_open", f"{self._open:,} requests are open, which is the most; try again later")
            await answer(full.problem, {"Retry-After": "1"})(scope, receive, send)
            return
        answered = False

        async def sent(message: Message) -> None:
            nonlocal answered
            answered = True
            await send(message)

        self._open += 1
        try:
            await self._app(scope, body.receive, sent)
        except Refused as refused:  # of the body, raised in an application that does not know it, as the one for MCP
            if answered:
                raise
            await answer(refused.problem, refused.headers)(scope, receive, send)
        finally:
            self._open -= 1

    def _checked(self, scope: Scope) -> dict[bytes, bytes]:
        """Return the headers of a request; raise `Refused` for one that is not answered here."""
        headers: dict[bytes, bytes] = {}
        for name, value in scope["headers"]:
            if name in headers and name in ONCE:
                raise Refused(400, "repeated_header", f"the header {name.decode('latin-1')} is given twice; give it once")
            headers[name] = value
        host = headers.get(b"host", b"").decode("latin-1")
        named = _HOST.fullmatch(host)
        if named is None or (named[1].lower() not in self._settings.hosts and "*" not in self._settings.hosts):
            raise Refused(421, "wrong_host", f"this server is not {host[:80]!r}; start it with that name (--name) if it is reached so")
        origin = headers.get(b"origin", b"").decode("latin-1")
        if origin and origin not in (f"http://{host}", f"https://{host}", *self._settings.origins):
            raise Refused(
                403, "wrong_origin", f"pages of {origin[:80]} may not call this server; list the origin (--origin) if they should"
            )
        return headers


class _Body:
    """The body of one request, as it comes."""

    def __init__(self, receive: Receive, settings: ServerSettings) -> None:
        self._receive, self._most, self._within_s = receive, settings.body_bytes, settings.receive_s
        self._taken, self._until, self._more = 0, 0.0, True
        self.too_large = Refused(413, "too_large", f"the body is larger than {self._most:,} bytes, the most that this server takes")

    async def receive(self) -> Message:
        """Return the next piece; raise `Refused` if the body is too large, or takes too long. What follows it may take as long as it likes."""
        if not self._more:
            return await self._receive()
        self._until = self._until or asyncio.get_running_loop().time() + self._within_s
        try:
            async with asyncio.timeout_at(self._until):
                message = await self._receive()
        except TimeoutError:
            self._more = False
            why = f"the body did not come within {self._within_s:g} s; send it again"
            raise Refused(408, "too_slow", why, headers={"Connection": "close"}) from None
        self._taken += len(message.get("body", b""))
        self._more = bool(message.get("more_body"))
        if self._taken > self._most:
            if self._more:
                await self.discard()
            raise self.too_large
        return message

    async def discard(self) -> None:
        """Read the rest of a body that nobody wants, within bounds."""
        left, self._more = DISCARDED_BYTES, False
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(DISCARDED_S):
                while left > 0 and (message := await self._receive()).get("more_body") and message["type"] == "http.request":
                    left -= len(message.get("body", b""))
