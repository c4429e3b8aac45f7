"""Memory: what outlives a run. Items, the seam that keeps and finds them, and the governor that decides on proposals."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Literal, Protocol

import msgspec

from detent.core.codec import digest_of
from detent.core.errors import Explained
from detent.core.events import Origin
from detent.ports.options import check_fields

Kind = Literal["preference", "fact", "summary", "lesson", "artifact", "transient"]
Visibility = Literal["private", "project", "team"]
WritePolicy = Literal["read_only", "proposal_only", "agent_write", "human_approved"]
Standing = Literal["current", "proposed", "superseded", "expired", "tombstoned", "refused"]
"""What an item is now. Only a current item is recalled without `as_of`; a tombstoned one never is."""


def sealed(origin: Origin, content: Any) -> Origin:
    """Return the origin with the seal of this content."""
    return msgspec.structs.replace(origin, seal=_seal(origin, content))


def fits(origin: Origin, content: Any) -> bool:
    """Return whether this is the content that the origin was made for. White space may differ, because editors and files change it."""
    return bool(origin.seal) and origin.seal == _seal(origin, content)


def _seal(origin: Origin, content: Any) -> str:
    said = " ".join(content.split()) if isinstance(content, str) else content
    return digest_of([said, origin.labels, origin.trusted, origin.sources])


def unproven(origin: Origin, label: str = "") -> Origin:
    """Return an origin that proves nothing, for content that anybody may have written or changed. Its sources stay readable; `label` is added."""
    sources = tuple([msgspec.structs.replace(source, whole=False, values=()) for source in origin.sources])
    labels = tuple(dict.fromkeys((*origin.labels, label))) if label else origin.labels
    return msgspec.structs.replace(origin, labels=labels, trusted=False, sources=sources, seal="")


class MemoryItem(msgspec.Struct, metaclass=Explained, frozen=True, kw_only=True, omit_defaults=True):
    """Something that is remembered.

    `scope` is `tenant/[workspace/][agent]`, its parts escaped by the caller (`scope_of`). `held_from` and `held_until` say when the fact held, the
    other times when it was learnt, superseded, withdrawn. An item is never changed: a correction is another item that `supersedes` it, so both keep
    their times. `metadata` is JSON data of the writer's own.
    """

    id: str
    scope: str
    kind: Kind = "fact"
    content: str
    metadata: dict[str, Any] = {}
    origin: Origin = Origin()
    visibility: Visibility = "private"
    confidence: float | None = None
    write_policy: WritePolicy = "agent_write"
    supersedes: str = ""
    superseded_by: str = ""
    created_at: datetime | None = None
    held_from: datetime | None = None
    held_until: datetime | None = None
    superseded_at: datetime | None = None
    expires_at: datetime | None = None
    tombstoned_at: datetime | None = None
    why: str = ""
    proposed: bool = False
    refused: str = ""

    __post_init__ = check_fields


class Found(msgspec.Struct, metaclass=Explained, frozen=True, kw_only=True):
    """An item that a search found, its score (higher is better) and the reasons, such as "2 words" or "meaning 0.81"."""

    item: MemoryItem
    score: float
    reasons: tuple[str, ...] = ()


class Explanation(msgspec.Struct, metaclass=Explained, frozen=True, kw_only=True):
    """What is known of an item: the item (its content is gone once tombstoned), what it is now, and its chain of predecessors and sources."""

    item: MemoryItem
    standing: Standing
    chain: tuple[MemoryItem, ...] = ()


class Memory(Protocol):
    """Keeps items and finds them (rows K66 to K76).

    `host` is the prefix that the caller may see: `tenant` or `tenant/workspace`; "" is the operator, who sees all. No method shows, changes or counts
    an item outside of it, and none tells whether one exists. `scope` narrows a search further: an item is visible if its scope equals or is below
    both. Writing an item whose id exists with the same content changes nothing and returns the item that is there.
    """

    @property
    def url(self) -> str: ...

    async def search(
        self,
        query: str,
        *,
        host: str,
        scope: str = "",
        kinds: Sequence[Kind] = (),
        limit: int = 10,
        as_of: datetime | None = None,
        now: datetime | None = None,
    ) -> list[Found]: ...

    async def get(self, item_id: str, *, host: str) -> MemoryItem | None: ...

    async def list(self, prefix: str = "", *, host: str, limit: int = 100, after: str = "") -> list[MemoryItem]: ...

    async def write(self, item: MemoryItem, *, host: str) -> MemoryItem: ...

    async def supersede(self, item_id: str, replacement: MemoryItem, *, why: str, host: str) -> MemoryItem: ...

    async def tombstone(self, item_id: str, *, why: str, at: datetime, host: str) -> None: ...

    async def explain(self, item_id: str, *, host: str) -> Explanation: ...

    async def export(self, *, host: str, scope: str = "") -> list[MemoryItem]: ...

    async def import_(self, items: Sequence[MemoryItem], *, host: str) -> int: ...

    async def close(self) -> None: ...


class Governor(Protocol):
    """Decides on a proposal: "" accepts it, any other text is the reason why it is refused."""

    async def refuses(self, proposal: MemoryItem, memory: Memory, *, host: str) -> str: ...
