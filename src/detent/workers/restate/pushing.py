"""Passes ticks to Restate's ingress over connections that are kept: a general HTTP client takes longer for one than the server does.

Rule: a request that failed on a kept connection is made again on another one, because the server may have closed it meanwhile. A tick may be passed
twice.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import NamedTuple
from urllib.parse import urlsplit

import h11

MOST_IDLE = 64
"""How many connections are kept at most."""
MOST_BYTES = 1 << 16
"""How much of an answer is read at most."""


class Answer(NamedTuple):
    """What the server answered."""

    status_code: int
    text: str


class _Kept(NamedTuple):
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    protocol: h11.Connection


class Pushing:
    """The connections of one event loop to an `http://` URL."""

    def __init__(self, url: str) -> None:
        place = urlsplit(url)
        self._host, self._port, self._base, self._name = place.hostname or "", place.port or 80, place.path, place.netloc
        self._idle: list[_Kept] = []

    async def post(self, path: str, body: bytes) -> Answer:
        """Return the answer to JSON. Raise `OSError`, `h11.RemoteProtocolError`."""
        while self._idle:
            with suppress(OSError, h11.RemoteProtocolError):
                return await self._asked(self._idle.pop(), path, body)
        reader, writer = await asyncio.open_connection(self._host, self._port)
        return await self._asked(_Kept(reader, writer, h11.Connection(our_role=h11.CLIENT)), path, body)

    async def close(self) -> None:
        """Close all connections."""
        while self._idle:
            writer = self._idle.pop().writer
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()

    async def _asked(self, kept: _Kept, path: str, body: bytes) -> Answer:
        """Ask over a connection; keep it, if the server does."""
        keeps = False
        try:
            answer = await _exchanged(kept, f"{self._base}{path}", self._name, body)
            keeps = len(self._idle) < MOST_IDLE and kept.protocol.our_state is h11.DONE and kept.protocol.their_state is h11.DONE
        finally:
            if not keeps:
                kept.writer.close()
        if keeps:
            kept.protocol.start_next_cycle()
            self._idle.append(kept)
        return answer


async def _exchanged(kept: _Kept, target: str, host: str, body: bytes) -> Answer:
    reader, writer, protocol = kept
    headers = [("host", host), ("content-type", "application/json"), ("content-length", str(len(body)))]
    parts = [h11.Request(method="POST", target=target, headers=headers), h11.Data(data=body), h11.EndOfMessage()]
    writer.write(b"".join(protocol.send(part) or b"" for part in parts))
    status, said = 0, bytearray()
    while True:
        event = protocol.next_event()
        if event is h11.NEED_DATA:
            protocol.receive_data(await reader.read(MOST_BYTES))
        elif isinstance(event, h11.Response):
            status = event.status_code
        elif isinstance(event, h11.Data):
            said += event.data
            if len(said) > MOST_BYTES:
                raise h11.RemoteProtocolError(f"its answer is longer than {MOST_BYTES:,} bytes")
        elif isinstance(event, h11.EndOfMessage):
            return Answer(status, said.decode(errors="replace"))
        elif isinstance(event, h11.ConnectionClosed):
            raise h11.RemoteProtocolError("it closed the connection without an answer")
