"""What may become of an item: written, superseded, reviewed, forgotten, imported (rows K72 and K73).

Each change is a generator: it yields the ids whose items it must see, is sent those items, and returns a `Change`. A memory runs it inside of one
transaction (`driven`) and saves what changed. So the rules are here once, for memories that wait and for those that do not.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from datetime import UTC, datetime
from typing import Generic, TypeAlias, TypeVar

import msgspec
from msgspec.structs import replace

from detent.core.codec import encode
from detent.core.errors import ItemConflict, ItemNotFound, ItemRefused
from detent.ports.json_data import json_problem, unstorable
from detent.ports.remembering import (
    ITEM_BYTES,
    Explanation,
    MemoryItem,
    below,
    key_of,
    narrowed,
    standing_of,
    unproven,
)

T = TypeVar("T")

MOST_CONTEXT_BYTES = 8_000
MOST_METADATA_BYTES = 16_000
MOST_ID = 200
MOST_SCOPE = 600


class Change(msgspec.Struct, Generic[T], frozen=True):
    """The result of an operation and the items that it changes."""

    result: T
    items: tuple[MemoryItem, ...] = ()


Steps: TypeAlias = Generator[Sequence[str], list[MemoryItem], Change[T]]
"""An operation that yields ids (without scopes), and is sent all items with one of them, in any scope."""


def driven(steps: Steps[T], load: Callable[[Sequence[str]], list[MemoryItem]]) -> Change[T]:
    """Run an operation with a function that loads items, and return its change."""
    try:
        wanted = next(steps)
        while True:
            wanted = steps.send(load(wanted))
    except StopIteration as ended:
        change: Change[T] = ended.value
        return change


# The operations ---------------------------------------------------------------------------------------------------------------------


def writing(item: MemoryItem, host: str, *, now: datetime) -> Steps[MemoryItem]:
    """Keep a new item that was checked (`check`), and retire what it supersedes. See `Memory.write`."""
    if item.superseded_by or item.superseded_at or item.tombstoned_at or item.refused:
        raise ItemRefused(f"memory item {item.id!r} has a history already; write a new item, or import it")
    there = yield _ids((item.id, *item.supersedes))
    if (known := _exactly(there, key_of(item))) is not None:
        return Change(_same(known, item))
    made = item if item.created_at is not None else replace(item, created_at=now)
    return Change(made, (made, *(() if made.proposed else _retired(made, there, host, made.why, now))))


def reviewing(item_id: str, host: str, *, refused: str, at: datetime) -> Steps[MemoryItem]:
    """Accept or refuse a proposal. See `Memory.review`."""
    _check_time("at", at)
    _check_text("reason", refused)
    item = find((yield _ids((item_id,))), item_id, host)
    if not item.proposed:
        if item.tombstoned_at is None and item.refused == refused:
            return Change(item)
        raise ItemConflict(f"memory item {item.id!r} is not a proposal that waits for a review; it is {standing_of(item, at)}")
    if refused:
        decided = replace(item, proposed=False, refused=refused)
        return Change(decided, (decided,))
    decided = replace(item, proposed=False)
    there = (yield _ids(decided.supersedes)) if decided.supersedes else []
    return Change(decided, (decided, *_retired(decided, there, host, decided.why, at)))


def forgetting(item_ids: Sequence[str], host: str, *, why: str, at: datetime) -> Steps[list[MemoryItem]]:
    """Replace items by their tombstones. See `Memory.tombstone`."""
    _check_time("at", at)
    _check_text("reason", why)
    there = yield _ids(item_ids)
    found = {key_of(item): item for item in (find(there, item_id, host) for item_id in item_ids)}
    gone = [item if item.tombstoned_at is not None else tombstone_of(item, why, at) for item in found.values()]
    return Change(gone, tuple(tomb for tomb, item in zip(gone, found.values(), strict=True) if tomb is not item))


def explaining(item_id: str, host: str, *, now: datetime) -> Steps[Explanation]:
    """Follow predecessors and sources. See `Memory.explain`."""
    item = find((yield _ids((item_id,))), item_id, host)
    chain: dict[str, MemoryItem] = {key_of(item): item}
    near: list[MemoryItem] = [item]
    while near:
        named = [(one.scope, name) for one in near for name in (*one.supersedes, *one.origin.items)]
        there = (yield _ids([name for _, name in named])) if named else []
        near = list[MemoryItem]()
        for scope, name in named:
            for one in _named(there, name, host, scope)[:1]:
                if key_of(one) not in chain:
                    chain[key_of(one)] = one
                    near.append(one)
    return Change(Explanation(item=item, standing=standing_of(item, now), chain=tuple(chain.values())[1:]))


def getting(item_id: str, host: str) -> Steps[MemoryItem | None]:
    """Return the visible item, or None."""
    there = yield _ids((item_id,))
    return Change(find(there, item_id, host) if _named(there, item_id, host) else None)


def importing(items: Sequence[MemoryItem], host: str, *, vouched: bool, most_bytes: int = ITEM_BYTES) -> Steps[int]:
    """Keep exported items. See `Memory.import_`."""
    for item in items:
        check(item, host, most_bytes, imported=True)
        if outside := next((name for name in item.supersedes if "/" in name and not below(name, host)), ""):
            raise ItemRefused(f"memory item {item.id!r}: it replaces {outside[:80]!r}, which is outside of {host!r}")
    known = {key_of(item) for item in (yield _ids([item.id for item in items]))}
    new: dict[str, MemoryItem] = {}
    for item in items:
        if key_of(item) not in known:
            kept = item if vouched else replace(item, origin=unproven(item.origin, "imported"))
            new.setdefault(key_of(item), kept)
    return Change(len(new), tuple(new.values()))


# Their parts ------------------------------------------------------------------------------------------------------------------------


def tombstone_of(item: MemoryItem, why: str, at: datetime) -> MemoryItem:
    """Return what stays of a forgotten item: its names, times and record, without content, metadata and person."""
    sources = tuple([replace(one, said="", values=(), origin="" if one.label == "approver" else one.origin) for one in item.origin.sources])
    origin = replace(item.origin, person="", sources=sources, also=(), more=item.origin.more or bool(item.origin.also), seal="")
    return replace(item, content="", context="", metadata={}, origin=origin, proposed=False, refused="", tombstoned_at=at, why=why)


def find(there: Iterable[MemoryItem], item_id: str, host: str) -> MemoryItem:
    """Return the visible item with this id or key. Raise `ItemNotFound`, or `ItemConflict` if there are several."""
    found = _named(there, item_id, host)
    if not found:
        raise ItemNotFound(item_id)
    if len(found) > 1:
        keys = ", ".join(sorted(key_of(item) for item in found)[:5])
        raise ItemConflict(f"several memory items have the id {item_id!r}: {keys}; give one of these")
    return found[0]


def _named(there: Iterable[MemoryItem], name: str, host: str, near: str | None = None) -> list[MemoryItem]:
    """Return the visible items with this id or key; of those with the id the one in the scope `near`, if it is there."""
    visible = [item for item in there if below(item.scope, host)]
    if "/" in name:
        return [item for item in visible if key_of(item) == name]
    named = [item for item in visible if item.id == name]
    return [item for item in named if item.scope == near] or named


def _exactly(there: Iterable[MemoryItem], key: str) -> MemoryItem | None:
    return next((item for item in there if key_of(item) == key), None)


def _ids(names: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(name.rpartition("/")[2] for name in names))


def _same(known: MemoryItem, item: MemoryItem) -> MemoryItem:
    """Return what is there if `item` is it, written again. Raise `ItemConflict`."""
    if known.tombstoned_at is None and (known.kind, known.content, known.supersedes) != (item.kind, item.content, item.supersedes):
        raise ItemConflict(f"memory item {item.id!r} exists in {item.scope!r} with another content; give the new one another id")
    return known


def _retired(item: MemoryItem, there: Sequence[MemoryItem], host: str, why: str, now: datetime) -> list[MemoryItem]:
    """Return the predecessors of an item as they are once it holds. Raise `ItemNotFound` or `ItemConflict`."""
    gone: dict[str, MemoryItem] = {}
    at = item.created_at or now
    host = narrowed(host, _tenant(item)) or host
    for name in item.supersedes:
        found = _named(there, name, host, item.scope)
        old = found[0] if len(found) == 1 else find(found, name, host)
        if old.superseded_at is not None or standing_of(old, now) in ("tombstoned", "proposed", "refused"):
            now_is = f"superseded by {old.superseded_by!r}" if old.superseded_at is not None else standing_of(old, now)
            raise ItemConflict(f"memory item {old.id!r} cannot be superseded by {item.id!r}: it is {now_is} already")
        if key_of(old) == key_of(item):
            raise ItemConflict(f"memory item {item.id!r} cannot supersede itself")
        gone[key_of(old)] = _after(old, item, at, why)
    return list(gone.values())


def retired(item: MemoryItem, there: Iterable[MemoryItem]) -> list[MemoryItem]:
    """Return the predecessors of an item that nobody has retired yet, as they are once it holds: a crash came in between."""
    found = [old for name in item.supersedes for old in _named(there, name, _tenant(item), item.scope)[:1]]
    return [
        _after(old, item, item.created_at or utcnow(), item.why)
        for old in found
        if key_of(old) != key_of(item) and old.superseded_at is None and old.tombstoned_at is None
    ]


def _tenant(item: MemoryItem) -> str:
    """Return the tenant of an item: whoever reviews it, it replaces no other tenant's items."""
    return item.scope.partition("/")[0]


def _after(old: MemoryItem, item: MemoryItem, at: datetime, why: str) -> MemoryItem:
    until = item.held_from or at
    ends = until if old.held_until is None else min(old.held_until, until)
    name = item.id if old.scope == item.scope else key_of(item)
    return replace(old, superseded_by=name, superseded_at=at, held_until=ends, why=why)


def check(item: MemoryItem, host: str, most_bytes: int = ITEM_BYTES, *, imported: bool = False) -> None:
    """Raise `ItemRefused` for an item that cannot be kept, or is outside of `host`."""
    if problem := _problem(item, most_bytes, imported=imported):
        raise ItemRefused(f"memory item {item.id[:80]!r}: {problem}")
    if not below(item.scope, host):
        raise ItemRefused(f"memory item {item.id!r}: its scope {item.scope!r} is outside of {host!r}")


def _problem(item: MemoryItem, most_bytes: int, *, imported: bool) -> str:
    return _bad_names(item) or _bad_texts(item, most_bytes, imported=imported) or _bad_data(item) or _bad_times(item, imported=imported)


def _bad_names(item: MemoryItem) -> str:
    if bad := bad_name(item.id, MOST_ID):
        return f"its id {bad}"
    if len(item.scope) > MOST_SCOPE:
        return f"its scope is longer than {MOST_SCOPE} characters"
    bad = next(filter(None, (bad_name(part, MOST_SCOPE) for part in item.scope.split("/"))), "")
    return f"a part of its scope {item.scope[:80]!r} {bad}; write scopes with scope_of(tenant, workspace, agent)" if bad else ""


def _bad_texts(item: MemoryItem, most_bytes: int, *, imported: bool) -> str:
    if not item.content.strip() and not (imported and item.tombstoned_at):
        return "it has no content"
    for name, text in (("content", item.content), ("context", item.context), ("why", item.why), ("refused", item.refused)):
        if not text:
            continue
        if bad := unstorable(text):
            return f"its {name} {bad}"
        most = most_bytes if name == "content" else MOST_CONTEXT_BYTES
        if (size := len(text.encode())) > most:
            return f"its {name} has {size:,} bytes; at most {most:,} are kept. Shorten it, or keep it elsewhere and remember where"
    return ""


def _bad_data(item: MemoryItem) -> str:
    data = {"metadata": item.metadata, "origin": item.origin, "supersedes": item.supersedes}
    if bad := json_problem(data):
        return bad
    raw = encode(data)
    if b"\\u0000" in raw:
        return "its metadata or origin holds a NUL; leave it out"
    if len(raw) > MOST_METADATA_BYTES:
        return f"its metadata and origin have {len(raw):,} bytes; at most {MOST_METADATA_BYTES:,} are kept"
    return ""


def _bad_times(item: MemoryItem, *, imported: bool) -> str:
    for name in ("created_at", "held_from", "held_until", "superseded_at", "expires_at", "tombstoned_at"):
        at: datetime | None = getattr(item, name)
        if at is not None and at.tzinfo is None:
            return f"{name} has no time zone; give one, such as datetime.now(UTC)"
    if item.held_from is not None and item.held_until is not None and item.held_until < item.held_from and not imported:
        return "held_until is before held_from"
    return ""


def bad_name(name: str, most: int) -> str:
    """Return why a text cannot be an id or a part of a scope; "" if it can."""
    if not name or len(name.encode("utf-8", "surrogatepass")) > most:
        return f"must have 1 to {most} bytes"
    if bad := unstorable(name):
        return bad
    if name.startswith(".") or "/" in name or "\\" in name or not name.isprintable():
        return "must not begin with a dot, and must not have slashes or characters that cannot be shown"
    return ""


def _check_text(name: str, text: str) -> None:
    if bad := unstorable(text):
        raise ItemRefused(f"the {name} {bad}")
    if (size := len(text.encode())) > MOST_CONTEXT_BYTES:
        raise ItemRefused(f"the {name} has {size:,} bytes; at most {MOST_CONTEXT_BYTES:,} are kept. Shorten it")


def _check_time(name: str, at: datetime) -> None:
    if at.tzinfo is None:
        raise ItemRefused(f"{name} has no time zone; give one, such as datetime.now(UTC)")


def utcnow() -> datetime:
    """Return the clock's time, for callers that give none."""
    return datetime.now(UTC)
