"""Memory: what outlives a run. Items, the seam that keeps and finds them, and the governor that decides on proposals.

Rule: an item is never rewritten. A correction is another item that names the ones it replaces, and forgetting leaves a tombstone without content, so
the history of what was believed stays readable.
"""

from __future__ import annotations

import re
from base64 import urlsafe_b64encode
from collections.abc import Collection, Iterable, Iterator, Sequence
from datetime import datetime
from fnmatch import fnmatchcase
from functools import lru_cache
from hashlib import sha256
from typing import Any, Literal, Protocol
from urllib.parse import quote

import msgspec

from detent.core.codec import digest_of
from detent.core.errors import Explained
from detent.core.events import Hop, Origin, Source
from detent.ports.models import Models
from detent.ports.options import check_fields

Kind = Literal["preference", "fact", "summary", "lesson", "artifact", "transient"]
Visibility = Literal["private", "project", "team"]
WritePolicy = Literal["read_only", "proposal_only", "agent_write", "human_approved"]
Standing = Literal["current", "upcoming", "proposed", "superseded", "expired", "tombstoned", "refused"]
"""What an item is now. Only a current item is recalled without `as_of`; proposed, refused and tombstoned ones never are. An upcoming one holds later."""

_TEXT = re.compile(r'"((?:[^"\\]|\\.)*)"?(:?)')
"""A text in JSON that may be cut off; a colon follows the name of an argument."""
_THROUGH = ("run:", "person:", "memory:")
"""How the names begin of what content came through."""
_WILD = re.compile(r"[*?\[]")
DIGITS = 8
"""How many characters the digest of a name has in `Origin.also`: enough that two names are never alike by chance."""
ITEM_BYTES = 8_000
"""How large the content of an item may be."""
NOBODY = "-"
"""The tenant in the scopes of runs without a tenant."""


def sealed(origin: Origin, content: Any) -> Origin:
    """Return the origin with the seal of this content."""
    return msgspec.structs.replace(origin, seal=_seal(origin, content))


def fits(origin: Origin, content: Any) -> bool:
    """Return whether this is the content that the origin was made for. White space may differ, because editors and files change it."""
    return bool(origin.seal) and origin.seal == _seal(origin, content)


def _seal(origin: Origin, content: Any) -> str:
    said = " ".join(content.split()) if isinstance(content, str) else content
    beyond = [origin.also, origin.more] if origin.also or origin.more else []
    return digest_of([said, origin.labels, origin.trusted, origin.sources, *beyond])


def unproven(origin: Origin, label: str = "") -> Origin:
    """Return an origin that proves nothing, for content that anybody may have written or changed. Its sources stay readable; `label` is added."""
    sources = tuple([msgspec.structs.replace(source, whole=False, values=()) for source in origin.sources])
    labels = tuple(dict.fromkeys((*origin.labels, label))) if label else origin.labels
    return msgspec.structs.replace(origin, labels=labels, trusted=False, sources=sources, seal="")


def told(source: Source) -> list[str]:
    """Return the chain of a source as lines for a person: where it is now first, the run where it was seen first last."""
    what = f"{source.tool} {source.said}".strip() or source.origin or "an unknown source"
    where = [text for text in (f"call {source.origin}" if source.tool else "", f"run {source.run_id}" if source.run_id else "") if text]
    return [*map(_hop, source.via), f"{source.label}: {what}" + (f" ({' of '.join(where)})" if where else "")]


_VERBS = {"memory": "remembered", "child": "returned", "parent": "given"}


def _hop(hop: Hop) -> str:
    verb = f"{hop.item}, " + _VERBS.get(hop.item.partition(":")[0], "said")
    by = f", call {hop.call_id}" if hop.call_id else ""
    at = f", record {hop.sequence}, digest {hop.digest[:12]}" if hop.sequence else ""
    return f"{verb} in run {hop.run_id or 'unknown'}{by}{at}"


def names_of(origin: Origin) -> tuple[str, ...]:
    """Return the names by which the sources of some content are kept out, or forgotten, as far as they can be read.

    Each label; `run:ID`, `person:NAME` and `memory:ID` (of an item); and the names of each source. They include what the content came from in earlier
    runs. `came_from` also knows the names that can only be compared.
    """
    names = [*origin.labels, *(f"memory:{item}" for item in origin.items), *(name for name in origin.also if "#" not in name)]
    names += [f"run:{origin.run_id}"] if origin.run_id else []
    names += [f"person:{origin.person}"] if origin.person else []
    return tuple(dict.fromkeys([*names, *(name for source in origin.sources for name in names_in(source))]))


def names_in(source: Source) -> list[str]:
    """Return the names of one source: its label, its tool, the runs and items that it came through, and `TOOL:ARGUMENT` for each text among its
    arguments, such as `web_fetch:https://example.com/`.
    """
    names = [name for name in (source.label, source.tool) if name]
    names += [f"run:{run}" for run in (source.run_id, *(hop.run_id for hop in source.via)) if run]
    names += [hop.item for hop in source.via if hop.item.startswith("memory:")]
    return [*names, *_texts(source.tool, source.said)]


@lru_cache(maxsize=1_024)
def _texts(tool: str, said: str) -> tuple[str, ...]:
    """Return `TOOL:ARGUMENT` for each text among the arguments of a call."""
    return tuple([f"{tool}:{_read(text)}" for text, colon in _TEXT.findall(said) if not colon])


def came_from(origin: Origin, name: str, *, pattern: bool = False) -> bool | None:
    """Return whether content came from a source with this name; None: perhaps, because not all names of its sources are known.

    With `pattern`, the name may have `*`.
    """
    known, beyond = names_of(origin), unpacked(origin.also)
    if name in known or coded(name) in beyond or (pattern and any(fnmatchcase(one, name) for one in known)):
        return True
    begins = _WILD.split(name, maxsplit=1)[0]
    kinds = {one.partition("#")[0] + ":" for one in beyond if "#" in one} if pattern and begins != name else set[str]()
    return None if origin.more or any(kind.startswith(begins) or begins.startswith(kind) for kind in kinds) else False


def each_source(origin: Origin) -> Iterator[tuple[Origin, bool]]:
    """Yield each source of some content as an origin of its own, and then each run, person and item that it came through; the bool says which.

    A call is yielded once for each text among its arguments, and a source that `Origin.sources` has no room for once for each of its names.
    """
    tools = {source.tool for source in origin.sources}
    through = {name: Origin(labels=(name,)) for name in names_of(origin) if name.startswith(_THROUGH)}
    through |= {name: Origin(also=(name,)) for name in unpacked(origin.also) if f"{name.partition('#')[0]}:" in _THROUGH}
    hidden = [name for name in unpacked(origin.also) if name not in through or name.partition("#")[0] in tools]
    shown = [] if hidden or origin.more else [source.label for source in origin.sources]
    apart = [Origin(labels=(one.label,), sources=(one,)) for source in origin.sources for one in _each_text(source)]
    apart += [Origin(labels=(label,)) for label in origin.labels if label not in shown]
    apart += [Origin(also=(name, name.partition("#")[0])) for name in hidden]
    apart += [Origin(more=True)] if origin.more else []
    yield from ((one, False) for one in apart or [origin])
    yield from ((one, True) for one in through.values())


def _each_text(source: Source) -> list[Source]:
    texts = [text for text, colon in _TEXT.findall(source.said) if not colon]
    return [msgspec.structs.replace(source, said=f'"{text}"') for text in texts] or [source]


def coded(name: str) -> str:
    """Return a short form of a name that can be compared: `KIND#` and a digest for `KIND:REST`, else the name as it is."""
    kind, colon, _ = name.partition(":")
    return f"{kind}#{_digest(name)}" if colon else name


def packed(names: Iterable[str], most_bytes: int) -> tuple[tuple[str, ...], bool]:
    """Return coded names as `Origin.also` keeps them, those of a kind in one text, and whether some had no room."""
    kinds, size = dict[str, list[str]](), 0
    for name in names:
        kind, mark, digest = name.partition("#")
        size += len(digest) if kind in kinds else len(name) + 3
        if size > most_bytes:
            return _in_kinds(kinds), True
        kinds.setdefault(kind + mark, []).append(digest)
    return _in_kinds(kinds), False


def _in_kinds(kinds: dict[str, list[str]]) -> tuple[str, ...]:
    return tuple([kind + "".join(digests) for kind, digests in kinds.items()])


def unpacked(also: Sequence[str]) -> set[str]:
    """Return the coded names in `Origin.also`."""
    parts = [one.partition("#") for one in also]
    return {kind + mark + digests[at : at + DIGITS] for kind, mark, digests in parts for at in range(0, max(1, len(digests)), DIGITS)}


@lru_cache(maxsize=8_192)
def _digest(name: str) -> str:
    return urlsafe_b64encode(sha256(name.encode(errors="surrogatepass")).digest()[: DIGITS * 3 // 4]).decode()


def _read(text: str) -> str:
    try:
        return msgspec.json.decode(f'"{text}"', type=str)
    except msgspec.DecodeError:  # cut off in an escape
        return text


class MemoryItem(msgspec.Struct, metaclass=Explained, frozen=True, kw_only=True, omit_defaults=True):
    """Something that is remembered.

    `scope` is `tenant/[workspace/][agent]`, as `scope_of` writes it; `id` is unique in its scope and has no slash. `context` are words that help to
    find the item and are not shown, such as the sentence before it. `metadata` is JSON data of the writer's own.

    `held_from` and `held_until` say when the fact held; `created_at` and `superseded_at` say when it was learnt and when it was replaced.
    `supersedes` names the items that this one replaces (ids in its scope, else keys). `proposed`: it waits for a review; `refused`: why it was
    not accepted. `why` is the reason of the last change.
    """

    id: str
    scope: str
    kind: Kind = "fact"
    content: str
    context: str = ""
    metadata: dict[str, Any] = {}
    origin: Origin = Origin()
    visibility: Visibility = "private"
    confidence: float | None = None
    write_policy: WritePolicy = "agent_write"
    supersedes: tuple[str, ...] = ()
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
    """An item that a search found, its score (higher is better) and the reasons, such as "words: payee, invoice" or "meaning 0.81"."""

    item: MemoryItem
    score: float
    reasons: tuple[str, ...] = ()


class Explanation(msgspec.Struct, metaclass=Explained, frozen=True, kw_only=True):
    """What is known of an item: the item (a tombstone has no content), what it is now, and its predecessors and sources, nearest first."""

    item: MemoryItem
    standing: Standing
    chain: tuple[MemoryItem, ...] = ()


class Memory(Protocol):
    """Keeps items and finds them. It opens itself on first use, and can be used again after `close`.

    `host` is the prefix of scopes that the caller may see: `tenant` or `tenant/workspace`; "" is the operator, who sees all. No method shows, changes
    or counts an item outside of it, and none tells whether one exists. `scope` narrows further: an item is visible if its scope equals or is below
    both. An `item_id` is the item's id or its key (`key_of`); a bare id that several visible items have raises `ItemConflict`. `models` is the gateway
    of the run that asks, for a memory that embeds texts. `now` is the time that decides what has expired; None: the clock's.

    Raises `ItemNotFound`, `ItemConflict`, `ItemRefused` for an item that cannot be kept, and `StoreError`.
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
        without: Collection[str] = (),
        models: Models | None = None,
    ) -> list[Found]:
        """Return the current items that fit `query` best, best first; with `as_of` those that held at that time. `without`: not those with these keys.

        Preferences are included even if no word fits, in at most half of the places. An empty query returns the newest items.
        """
        ...

    async def get(self, item_id: str, *, host: str) -> MemoryItem | None:
        """Return the item, whatever it is now; None if no visible item has this id."""
        ...

    async def list(
        self,
        prefix: str = "",
        *,
        host: str,
        standings: Sequence[Standing] = (),
        limit: int = 100,
        after: str = "",
        now: datetime | None = None,
    ) -> list[MemoryItem]:
        """Return the items whose scope equals or is below `prefix`, by key; `after` is the key of the last one seen. `standings`: only these."""
        ...

    async def write(self, item: MemoryItem, *, host: str, models: Models | None = None) -> MemoryItem:
        """Keep the item durably and return it. The items that it `supersedes` are retired, unless it is only `proposed`.

        If the id exists in its scope with the same kind and content, or as a tombstone, change nothing and return what is there. With another
        content raise `ItemConflict`. Also raised if an item that it supersedes is not one that can be replaced.
        """
        ...

    async def supersede(self, item_id: str, replacement: MemoryItem, *, why: str, host: str, models: Models | None = None) -> MemoryItem:
        """Write `replacement` as the successor of the item (and of those that it already names), and return it."""
        ...

    async def review(self, item_id: str, *, refused: str = "", at: datetime, host: str) -> MemoryItem:
        """Accept a proposal, or refuse it with a reason, and return it. Accepting retires what it supersedes. Deciding the same again changes nothing."""
        ...

    async def tombstone(self, *item_ids: str, why: str, at: datetime, host: str) -> list[MemoryItem]:
        """Remove the content of these items everywhere, in one transaction, and return their tombstones. A tombstone stays as it is."""
        ...

    async def explain(self, item_id: str, *, host: str, now: datetime | None = None) -> Explanation:
        """Return what is known of an item, whatever it is now. Predecessors and sources outside of `host` are left out."""
        ...

    async def lineage(
        self,
        *,
        host: str,
        run_id: str = "",
        label: str = "",
        person: str = "",
        item_ids: Sequence[str] = (),
        corrections: bool = True,
    ) -> list[MemoryItem]:
        """Return the items that came from this run, source, person or these items, also through earlier runs, and all that was derived from them.

        An item that replaces one of them is derived from it; without `corrections` not if a person wrote it (`origin.run_id` is empty).
        `label` is a name as in `came_from`, or a pattern with `*`. Any one of the given sources is enough. Ordered by key.
        Proposals and superseded items count; tombstones are left out, and items that only perhaps came from there.
        """
        ...

    async def export(self, *, host: str, scope: str = "") -> list[MemoryItem]:
        """Return all items at or below `scope` with their history, by key."""
        ...

    async def import_(self, items: Sequence[MemoryItem], *, host: str, vouched: bool = False, models: Models | None = None) -> int:
        """Keep exported items with their history, all or none, and return how many were new. An id that exists keeps what is there.

        Their content counts as untrusted unless the caller vouches for it. Raises `ItemRefused` if one is outside of `host`.
        """
        ...

    async def close(self) -> None: ...


class RunMemory(Protocol):
    """The memory of one call, for the tools that write. Each method returns the outcome: `status` (`written`, `proposed`), and the `id`.

    Raises `ToolFailed` (`memory_read_only`, `memory_refused`, `memory_not_found`, `memory_conflict`): nothing was written then.
    """

    async def remember(self, content: str, *, kind: Kind = "fact", held_from: str = "", held_until: str = "") -> dict[str, Any]:
        """Write an item. Its id is made from run and call, so that writing again after a crash gives one item."""
        ...

    async def correct(self, items: Sequence[str], content: str, *, why: str = "", held_from: str = "") -> dict[str, Any]:
        """Write an item that replaces others."""
        ...

    async def forget(self, items: Sequence[str], *, why: str = "") -> dict[str, Any]:
        """Remove the content of items."""
        ...


class Governor(Protocol):
    """Decides on a proposal: "" accepts it, any other text is the reason why it is refused."""

    async def refuses(self, proposal: MemoryItem, memory: Memory, *, host: str) -> str: ...


def scope_of(tenant: str = "", workspace: str = "", agent: str = "") -> str:
    """Return the scope, or the prefix of scopes, for these names. Each name becomes one part, whatever characters it has."""
    return "/".join([_part(tenant) or NOBODY, *filter(None, (_part(workspace), _part(agent)))])


def _part(name: str) -> str:
    quoted = quote(name, safe="", errors="surrogatepass")
    return quoted.replace(".", "%2E", 1) if quoted.startswith(".") else "%2D" if quoted == NOBODY else quoted


def key_of(item: MemoryItem) -> str:
    """Return the name of an item that no other item of its memory has: scope and id."""
    return f"{item.scope}/{item.id}"


def below(scope: str, prefix: str) -> bool:
    """Whether a scope equals a prefix or is below it; every scope is below ""."""
    return not prefix or scope == prefix or scope.startswith(f"{prefix}/")


def narrowed(host: str, scope: str) -> str | None:
    """Return the prefix of the scopes that are below both; None if there are none."""
    return scope if below(scope, host) else host if below(host, scope) else None


def standing_of(item: MemoryItem, now: datetime) -> Standing:
    """Return what an item is at the time `now`. One whose successor holds only from later on is not superseded until then."""
    if item.tombstoned_at is not None:
        return "tombstoned"
    if item.refused:
        return "refused"
    if item.proposed:
        return "proposed"
    if item.superseded_at is not None and (item.held_until is None or item.held_until <= now):
        return "superseded"
    if any(end <= now for end in (item.expires_at, item.held_until) if end is not None):
        return "expired"
    return "upcoming" if item.held_from is not None and item.held_from > now else "current"


def held(item: MemoryItem, at: datetime) -> bool:
    """Whether an item held at a time: between `held_from` (else when it was learnt) and `held_until`, before it expired.

    Proposed, refused and tombstoned items never held.
    """
    if item.tombstoned_at is not None or item.refused or item.proposed:
        return False
    begins = item.held_from or item.created_at
    ends = [end for end in (item.expires_at, item.held_until) if end is not None]
    return (begins is None or begins <= at) and all(at < end for end in ends)
