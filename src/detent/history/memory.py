"""`engine.memory`: what a person or a program can do with what agents remember: search, review, correct, forget, move.

Forgetting follows the lineage: the items of a source, and all that was made from them. It is shown first (`preview`), and its receipt says what was
removed and what remains, such as the logs of the runs that wrote or recalled it.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, cast

import msgspec

from detent.config.remembering import memory_use, prefix_of, stricter
from detent.core.agent import Host
from detent.core.errors import ConfigError, ItemNotFound, ItemRefused, NotAllowedNow
from detent.core.events import Origin, Source
from detent.history.forgetting import Holding, places_of
from detent.ports.options import check_is
from detent.ports.remembering import (
    Explanation,
    Found,
    Kind,
    Memory,
    MemoryItem,
    Standing,
    Visibility,
    WritePolicy,
    below,
    came_from,
    key_of,
    sealed,
    unproven,
)
from detent.running.extracting import Extracting
from detent.running.people import poster
from detent.running.receipts import who
from detent.running.remembering import FORGETS, governor_of

if TYPE_CHECKING:
    from detent.running.runtime import Runtime


class Forgetting(msgspec.Struct, frozen=True, kw_only=True):
    """What is forgotten with an item, a source, a run or a person: a preview, or the receipt.

    `items` are the items with what they say, their proposals and summaries included; `removed` are the keys whose content, index entries and vectors are
    gone, `left` those that are not. `unsure` are items that perhaps came from there, because not all of their sources are known; they stay unless you name
    them.

    `runs` are the runs and archives that still have words of the items, or may. `elsewhere` are the runs that they came from and that were not found:
    copies of them still have the words. `searched` and `not_searched` are the places where somebody looked, and where nobody did. `done` is false for a
    preview.
    """

    memory: str
    items: tuple[MemoryItem, ...] = ()
    removed: tuple[str, ...] = ()
    left: tuple[str, ...] = ()
    unsure: tuple[MemoryItem, ...] = ()
    runs: tuple[Holding, ...] = ()
    elsewhere: tuple[str, ...] = ()
    searched: tuple[str, ...] = ()
    not_searched: tuple[str, ...] = ()
    done: bool = False
    by: str = ""
    why: str = ""
    at: datetime | None = None


class EngineMemory:
    """The memories of an engine, for people and programs. `name` is which of several; `host` is who asks, and without it the operator does.

    A host sees and touches only its own items; another tenant's item is not found. Each method raises `ConfigError` where the engine has no memory,
    `ItemNotFound`, `ItemConflict` and `ItemRefused`.
    """

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    def __bool__(self) -> bool:
        return bool(self._runtime.parts.memories)

    def names(self) -> Sequence[str]:
        """Return the names of the engine's memories."""
        return self._runtime.parts.memories.names()

    # Read -----------------------------------------------------------------------------------------------------------------------

    async def search(
        self,
        query: str,
        *,
        scope: str = "",
        kinds: Sequence[Kind] = (),
        limit: int = 10,
        as_of: datetime | None = None,
        name: str = "",
        host: Host | None = None,
    ) -> Sequence[Found]:
        """Return the items that fit a query best; with `as_of` those that held at that time."""
        memory = self._memory(name)
        return await memory.search(query, host=_prefix(host), scope=scope, kinds=kinds, limit=limit, as_of=as_of)

    async def list(
        self,
        prefix: str = "",
        *,
        standings: Sequence[Standing] = (),
        limit: int = 100,
        after: str = "",
        name: str = "",
        host: Host | None = None,
    ) -> Sequence[MemoryItem]:
        """Return the items at or below a scope, by key, whatever they are now: also superseded ones, and tombstones without content.

        `standings=("current",)` returns only those that hold. `after` is the key (`key_of`) of the last one seen.
        """
        return await self._memory(name).list(prefix, host=_prefix(host), standings=standings, limit=limit, after=after)

    async def get(self, item_id: str, *, name: str = "", host: Host | None = None) -> MemoryItem:
        """Return the item with this id or key, whatever it is now."""
        return await _item(self._memory(name), item_id, host)

    async def explain(self, item_id: str, *, name: str = "", host: Host | None = None) -> Explanation:
        """Return what is known of an item: what it is now, where it came from, what it replaced and what it was made from."""
        return await self._memory(name).explain(item_id, host=_prefix(host), now=self._now())

    async def proposals(self, *, scope: str = "", limit: int = 100, name: str = "", host: Host | None = None) -> Sequence[MemoryItem]:
        """Return the proposals that wait for a review."""
        return await self.list(scope, standings=("proposed",), limit=limit, name=name, host=host)

    # Write ----------------------------------------------------------------------------------------------------------------------

    async def add(
        self,
        content: str,
        *,
        scope: str = "",
        kind: Kind = "fact",
        held_from: datetime | None = None,
        held_until: datetime | None = None,
        visibility: Visibility = "project",
        write_policy: WritePolicy = "agent_write",
        trusted: bool = False,
        item_id: str = "",
        by: str = "",
        name: str = "",
        host: Host | None = None,
    ) -> MemoryItem:
        """Write an item for a person. `scope` is below the host's (the operator's: any scope). Writing it again with its `item_id` changes nothing.

        `trusted`: `by` vouches for the content. Only the operator, who gives no host, may: else `NotAllowedNow` is raised.
        """
        _may_vouch(host, trusted=trusted)
        memory, prefix = self._memory(name), _prefix(host)
        where = scope if host is None or below(scope, prefix) else "/".join(filter(None, (prefix, scope)))
        if not where:
            raise ConfigError("scope is empty; say where the item belongs, such as scope_of(tenant, workspace, agent)")
        item = MemoryItem(
            id=item_id or f"m{self._runtime.parts.ids.token(20).lower()}",
            scope=where,
            kind=kind,
            content=content,
            origin=_said_by(by, content, trusted=trusted),
            visibility=visibility,
            write_policy=write_policy,
            created_at=self._now(),
            held_from=held_from,
            held_until=held_until,
        )
        return await self._written(memory, item, host)

    async def correct(
        self,
        item_id: str,
        content: str,
        *,
        why: str = "",
        held_from: datetime | None = None,
        trusted: bool = False,
        new_id: str = "",
        by: str = "",
        name: str = "",
        host: Host | None = None,
    ) -> MemoryItem:
        """Replace an item for a person, and return its successor, which gets `new_id`. Both stay, with the times at which each held.

        `trusted` is as in `add`.
        """
        _may_vouch(host, trusted=trusted)
        memory = self._memory(name)
        old = await _item(memory, item_id, host)
        item = MemoryItem(
            id=new_id or f"m{self._runtime.parts.ids.token(20).lower()}",
            scope=old.scope,
            kind=old.kind,
            content=content,
            origin=_said_by(by, content, trusted=trusted),
            visibility=old.visibility,
            write_policy=old.write_policy,
            supersedes=(key_of(old),),
            created_at=self._now(),
            held_from=held_from,
            why=why,
        )
        return await self._written(memory, item, host)

    async def review(
        self, item_id: str, *, accept: bool, by: str = "", why: str = "", name: str = "", host: Host | None = None
    ) -> MemoryItem:
        """Accept or refuse a proposal, and return it. Accepting never changes its origin. An accepted proposal to forget forgets."""
        memory, prefix = self._memory(name), _prefix(host)
        item = await _item(memory, item_id, host)
        if accept and item.proposed and FORGETS in item.metadata:
            keys = [*_texts(item.metadata[FORGETS]), key_of(item)]  # only below the proposal's own scope, whoever accepts it
            gone = await memory.tombstone(*keys, why=_why(by, why or item.why), at=self._now(), host=item.scope)
            return gone[-1]
        refused = "" if accept else _why(by, why or "refused by a review")
        return await memory.review(key_of(item), refused=refused, at=self._now(), host=prefix)

    async def propose(self, run_id: str, *, host: Host | None = None) -> Sequence[MemoryItem]:
        """Propose what to remember of a completed run now, and return it. A run that has proposed already returns nothing.

        A run whose agent has the option `memory.extract` does that by itself when it ends; one that was killed then does not.
        """
        state = await self._runtime.standing(run_id, host)
        use = memory_use(state.agent.memory)
        if use is None or not use.extract:
            raise ConfigError(f'agent {state.agent.name!r} proposes nothing: give it memory = {{extract = "rule"}} or "model"')
        if state.status != "completed":
            raise NotAllowedNow(run_id, f"run {run_id!r} is {state.status}; only a completed run proposes", reason_code="not_completed")
        return await Extracting(self._runtime).propose(state, use)

    async def _written(self, memory: Memory, item: MemoryItem, host: Host | None) -> MemoryItem:
        parts, settings = self._runtime.parts, self._runtime.parts.memories.settings
        if host is not None and stricter(settings.policy_for(item.scope), item.write_policy) == "read_only":
            raise ItemRefused(f"the memory at {item.scope!r} is read-only")
        if kept_out := settings.admits(item.origin):
            raise ItemRefused(f"nothing was written: {kept_out}")
        governor = governor_of(settings, parts.redact)
        proposal = item if not item.supersedes else msgspec.structs.replace(item, origin=unproven(item.origin))  # a person may raise trust
        if why := await governor.refuses(proposal, memory, host=item.scope):
            raise ItemRefused(f"nothing was written: {why}")
        return await memory.write(item, host=_prefix(host))

    # Forget ---------------------------------------------------------------------------------------------------------------------

    async def forget(
        self,
        *item_ids: str,
        source: str = "",
        run: str = "",
        person: str = "",
        preview: bool = False,
        keep_corrections: bool = False,
        by: str = "",
        why: str = "",
        name: str = "",
        host: Host | None = None,
    ) -> Forgetting:
        """Remove the content of items, of everything from a source, a run or a person, and of all that was made from it.

        What replaced such an item goes with it. `keep_corrections` keeps what a person wrote to replace one: their own words may be what holds, and worth
        keeping. What a named item replaced goes too: otherwise its older wording would stay. `preview` only returns what would be forgotten.
        Anything that fits one of the given criteria counts.
        """
        if not (item_ids or source or run or person):
            raise ConfigError("forget: say what to forget: ids of items, source=, run= or person=")
        memory, prefix = self._memory(name), _prefix(host)
        called = self._runtime.parts.memories.named(name)[0]
        item_ids = await _with_replaced(memory, item_ids, host)
        kept = await self._runtime.kept_as(run, host) if run else ""
        wanted = [one for one in (source, kept and f"run:{kept}", person and f"person:{person}") if one]
        follow: dict[str, Any] = {"run_id": kept, "label": source, "person": person, "host": prefix, "corrections": not keep_corrections}
        items = await memory.lineage(**follow, item_ids=item_ids)
        unsure = await _unsure(memory, wanted, {key_of(item) for item in items}, host) if wanted else ()
        places = msgspec.structs.asdict(await places_of(self._runtime, items, host))
        made = Forgetting(memory=called, items=tuple(items), unsure=unsure, **places, by=by, why=why, at=self._now())
        if preview or not items:
            return made
        keys = [key_of(item) for item in items]
        await memory.tombstone(*keys, why=_why(by, why), at=self._now(), host=prefix)
        left = [one for one in await memory.lineage(**follow, item_ids=keys) if one.content]
        there = {key_of(one) for one in left}
        return msgspec.structs.replace(
            made,
            items=tuple(msgspec.structs.replace(item, content="", context="", metadata={}) for item in items),
            removed=tuple(key for key in keys if key not in there),
            left=tuple(sorted(there)),
            done=True,
        )

    # Move -----------------------------------------------------------------------------------------------------------------------

    async def export(self, *, scope: str = "", name: str = "", host: Host | None = None) -> Sequence[MemoryItem]:
        """Return all items at or below a scope with their history; `import_` takes them."""
        return await self._memory(name).export(host=_prefix(host), scope=scope)

    async def import_(self, items: Sequence[MemoryItem], *, vouched: bool = False, name: str = "", host: Host | None = None) -> int:
        """Keep exported items, all or none, and return how many were new. They prove nothing, unless the caller vouches for them.

        A host may not vouch. Items from a source that is not admitted raise `ItemRefused`.
        """
        _may_vouch(host, trusted=vouched)
        settings = self._runtime.parts.memories.settings
        for item in items:
            check_is(MemoryItem, items=item)
            if kept_out := settings.admits(item.origin):
                raise ItemRefused(f"item {item.id!r}: {kept_out}; nothing was imported")
            if host is not None and settings.policy_for(item.scope) == "read_only":
                raise ItemRefused(f"the memory at {item.scope!r} is read-only; nothing was imported")
        return await self._memory(name).import_(items, host=_prefix(host), vouched=vouched)

    def _memory(self, name: str) -> Memory:
        return self._runtime.parts.memories.named(name)[1]

    def _now(self) -> datetime:
        return self._runtime.parts.clock.now()


async def _item(memory: Memory, item_id: str, host: Host | None) -> MemoryItem:
    item = await memory.get(item_id, host=_prefix(host))
    if item is None:
        raise ItemNotFound(item_id)
    return item


async def _unsure(memory: Memory, wanted: Sequence[str], certain: set[str], host: Host | None) -> tuple[MemoryItem, ...]:
    """Return the items that perhaps came from one of these sources, without those that certainly did."""
    items = [item for item in await memory.export(host=_prefix(host)) if item.content and key_of(item) not in certain]
    return tuple(item for item in items if any(came_from(item.origin, name, pattern=True) is None for name in wanted))


async def _with_replaced(memory: Memory, item_ids: Sequence[str], host: Host | None) -> tuple[str, ...]:
    """Return the keys of these items and of those that they replaced, directly or not. Raise `ItemNotFound`."""
    found: dict[str, None] = {}
    near = [await _item(memory, item_id, host) for item_id in item_ids]
    while near:
        item = near.pop()
        if key_of(item) in found:
            continue
        found[key_of(item)] = None
        for name in item.supersedes:
            key = name if "/" in name else f"{item.scope}/{name}"
            near += filter(None, [await memory.get(key, host=_prefix(host))])
    return tuple(found)


def _prefix(host: Host | None) -> str:
    """Return the prefix of the scopes that a caller may see; "" is the operator's."""
    check_is(Host, host=host)
    return "" if host is None else prefix_of(host)


def _may_vouch(host: Host | None, *, trusted: bool) -> None:
    """Raise `NotAllowedNow` if a host vouches for content: every agent of the tenant would believe it."""
    if trusted and host is not None:
        why = "only the operator may vouch for content: call without host, or leave out trusted (vouched, --vouch)"
        raise NotAllowedNow("", why, reason_code="not_the_operator")


def _texts(value: Any) -> list[str]:
    return [one for one in cast("list[Any]", value) if isinstance(one, str)] if isinstance(value, list) else []


def _why(by: str, why: str) -> str:
    return " ".join(filter(None, (why, f"(by {by})" if by else "")))


def _said_by(by: str, content: str, *, trusted: bool) -> Origin:
    """Return the origin of what a person wrote by hand."""
    if not trusted:
        return Origin(person=by)
    source = Source(label="approver", origin=who(by or "the operator", poster()), whole=True)
    return sealed(Origin(labels=("approver",), trusted=True, person=by, sources=(source,)), content)


async def remembered_of(runtime: Runtime, run_id: str, *, forget: bool, by: str, why: str, host: Host | None) -> tuple[str, ...]:
    """Return the keys of the items, in all memories, that came from an erased run and still have their content; with `forget` remove it first."""
    left: list[str] = []
    for name in runtime.parts.memories.names():
        memory = runtime.parts.memories.named(name)[1]
        keys = [key_of(item) for item in await memory.lineage(host=_prefix(host), run_id=run_id)]
        if forget and keys:
            await memory.tombstone(*keys, why=_why(by, why or f"run {run_id} was erased"), at=runtime.parts.clock.now(), host=_prefix(host))
            keys = [key_of(item) for item in await memory.lineage(host=_prefix(host), run_id=run_id)]
        left += keys
    return tuple(left)
