"""Sessions that have no message yet: for which agent they were created, and the context that comes before the first message (row T68).

Rule: an opening is kept in the store, so every server of the store knows it. It goes with the first message, whose run then has its context.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterable, Sequence
from hashlib import sha256

import msgspec

from detent.config.agents import Agent
from detent.core.agent import Host
from detent.engine import Engine
from detent.history.sessions import entry_texts
from detent.ports.stores import RESERVED
from detent.running.starting import known_agent
from detent.secrecy.redact import hidden
from detent.server.problems import Refused

_OPENING, _CONTEXT = "opening", "context-"
MOST_CONTEXT = 100
"""How often context may be put in before the first message."""


class Opening(msgspec.Struct, frozen=True, kw_only=True):
    """A session that was created: its agent ("" where the first message names it), by whom, and the digest of what was asked for."""

    agent: str
    by: str
    request: str = ""


class Openings:
    """The openings of one tenant's session."""

    def __init__(self, engine: Engine, host: Host, session_id: str) -> None:
        self._engine, self._store = engine, engine.store
        self._place = f"{RESERVED}opening-{sha256(f'{host.tenant} {session_id}'.encode()).hexdigest()[:32]}"

    async def get(self) -> Opening | None:
        """Return the opening, None if there is none."""
        data = await self._store.get_blob(self._place, _OPENING)
        return None if data is None else msgspec.json.decode(data, type=Opening)

    async def begin(self, opening: Opening, entries: Iterable[object]) -> Opening:
        """Keep an opening with its context, or return the one that is there. Raise `ConfigError` for an unknown agent."""
        agent: Agent[object] | None = known_agent(self._engine.runtime, opening.agent) if opening.agent else None
        if (there := await self.get()) is not None:
            return there
        if texts := self._hidden(entries, agent):
            await self._store.put_blob(self._place, f"{_CONTEXT}{0:020}-begin", msgspec.json.encode(texts))
        await self._store.put_blob(self._place, _OPENING, msgspec.json.encode(opening))  # last: an opening that exists is complete
        return opening

    async def put(self, opening: Opening, entries: Iterable[object], *, request: str = "") -> None:
        """Add context; once for a `request`."""
        there = await self._contexts()
        if not opening.agent:
            raise Refused(
                409,
                "no_agent",
                "this conversation has no agent yet, whose rules hide what is secret; give the context with its first message",
            )
        if request and any(key.endswith(request) for key in there):
            return
        if len(there) >= MOST_CONTEXT:
            raise Refused(
                409,
                "too_much_context",
                f"context was put in {MOST_CONTEXT} times before the first message, which is the most; send a message",
            )
        texts = self._hidden(entries, known_agent(self._engine.runtime, opening.agent))
        key = f"{_CONTEXT}{time.time_ns():020}-{request or secrets.token_hex(8)}"
        await self._store.put_blob(self._place, key, msgspec.json.encode(texts))

    async def requests(self) -> Sequence[bytes]:
        """Return the names of what was put in, which contain the ids of the requests."""
        return [key.encode() for key in await self._contexts()]

    async def context(self) -> tuple[str, ...]:
        """Return the context, the oldest first."""
        found: list[str] = []
        for key in await self._contexts():
            if (data := await self._store.get_blob(self._place, key)) is not None:
                found += msgspec.json.decode(data, type=list[str])
        return tuple(found)

    async def forget(self) -> None:
        """Remove the opening with its context."""
        for key in [_OPENING, *await self._contexts()]:
            await self._store.delete_blob(self._place, key)

    async def _contexts(self) -> Sequence[str]:
        return sorted(key for key in await self._store.list_blobs(self._place) if key.startswith(_CONTEXT))

    def _hidden(self, entries: Iterable[object], agent: Agent[object] | None) -> list[str]:
        patterns = (*self._engine.runtime.parts.redact, *(agent.redact if agent is not None else ()))
        return [hidden(text, patterns) for text in entry_texts(entries)]
