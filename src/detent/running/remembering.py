"""What a run writes to its memory: by the calls of its tools, under the strictest policy of agent, scope and items.

An item's id is made from run and call. So a call that is made again after a crash writes one item. The log has what was written, superseded, forgotten
or proposed, beside the outcome of the call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from hashlib import sha256
from typing import Any, cast

import msgspec

from detent.config.adapters import default_governor, origin_of
from detent.config.remembering import Memories, MemorySettings, MemoryUse, memory_use, scope_for, stricter
from detent.core.errors import ItemConflict, ItemNotFound, ItemRefused, ToolFailed
from detent.core.events import AnyEvent, MemoryProposed, MemorySuperseded, MemoryTombstoned, MemoryWritten
from detent.kernel.journal import Journal
from detent.ports import Clock, Models, ToolContext
from detent.ports.copies import ours
from detent.ports.remembering import Found, Governor, Kind, Memory, MemoryItem, WritePolicy, key_of, unproven
from detent.secrecy.redact import PLACEHOLDER, Redactor

MOST_RETIRED = 3
"""How many items the writes of a run may retire. A write that would retire more becomes a proposal."""
TRANSIENT = timedelta(days=7)
"""How long a transient item is current, unless it says so itself."""
FORGETS = "forget"
"""The metadata of a proposal to forget: the keys of the items."""

replace = msgspec.structs.replace


class Remembering:
    """The memory of one run, to write to."""

    def __init__(
        self,
        name: str,
        memory: Memory,
        use: MemoryUse,
        settings: MemorySettings,
        *,
        governor: Governor,
        journal: Journal,
        clock: Clock,
        conversation: Callable[[], Sequence[Any]],
    ) -> None:
        state = journal.state
        self.name, self.memory, self.use, self.settings, self.governor = name, memory, use, settings, governor
        self.journal, self.clock, self.conversation = journal, clock, conversation
        self.scope = scope_for(use, state.agent, state.host)
        self.policy: WritePolicy = stricter(use.write_policy, settings.policy_for(self.scope))

    def of_call(self, context: ToolContext) -> OfCall:
        """Return the memory for one call."""
        memory = cast("Memory", Charged(self.memory, lambda: context.models))
        return OfCall(self, memory, context.call_id, context.approved_by)

    def policies(self, items: Sequence[MemoryItem]) -> list[WritePolicy]:
        """Return the policies for a change of these items: their own, and those of the scopes that they are in."""
        return [stricter(item.write_policy, self.settings.policy_for(item.scope)) for item in items]


class Charged:
    """A memory whose model calls go through a gateway, which counts, prices and limits them."""

    def __init__(self, memory: Memory, models: Callable[[], Models | None]) -> None:
        self._memory, self._models = memory, models

    def __getattr__(self, name: str) -> Any:
        return getattr(self._memory, name)

    async def search(self, query: str, **options: Any) -> list[Found]:
        """See `Memory.search`."""
        options["models"] = self._models()
        return await self._memory.search(query, **options)

    async def write(self, item: MemoryItem, **options: Any) -> MemoryItem:
        """See `Memory.write`."""
        options["models"] = self._models()
        return await self._memory.write(item, **options)


class OfCall:
    """What one call may write (`ports.remembering.RunMemory`)."""

    def __init__(self, run: Remembering, memory: Memory, call_id: str, approved_by: tuple[str, ...]) -> None:
        self._run, self._memory, self._call, self._approved = run, memory, call_id, bool(approved_by)

    async def remember(self, content: str, *, kind: Kind = "fact", held_from: str = "", held_until: str = "") -> dict[str, Any]:
        """See `RunMemory.remember`."""
        return await self._write(content, kind=kind, held_from=_time(held_from, "held_from"), held_until=_time(held_until, "held_until"))

    async def correct(self, items: Sequence[str], content: str, *, why: str = "", held_from: str = "") -> dict[str, Any]:
        """See `RunMemory.correct`."""
        old = await self._items(items)
        return await self._write(content, old, kind=old[0].kind, why=why, held_from=_time(held_from, "held_from"))

    async def forget(self, items: Sequence[str], *, why: str = "") -> dict[str, Any]:
        """See `RunMemory.forget`."""
        run, old = self._run, await self._items(items)
        may, keys = self._may_write(old), [key_of(item) for item in old]
        made = self._item(f"Forget {', '.join(item.id for item in old)}. {why}".strip(), kind="transient", why=why)
        made = replace(made, metadata={FORGETS: keys}, expires_at=None, proposed=not may)
        await self._governed(made)
        if not may:
            return await self._propose(made)
        with _refusing():
            await self._memory.tombstone(*keys, why=why or "forgotten by the agent", at=run.clock.now(), host=run.scope)
        self._record(*(MemoryTombstoned(item_id=item.id, why=why, memory=run.name, call=self._call) for item in old))
        return {"status": "forgotten", "items": [item.id for item in old]}

    async def _write(self, content: str, old: Sequence[MemoryItem] = (), **fields: Any) -> dict[str, Any]:
        run = self._run
        may = self._may_write(old)
        policy = stricter(run.policy, *run.policies(old))
        item = replace(self._item(content, **fields), supersedes=tuple(key_of(item) for item in old), write_policy=policy)
        if any(not one.origin.trusted for one in old):  # a correction of what nobody vouched for does not vouch for itself
            item = replace(item, origin=unproven(item.origin, "untrusted"))
        if kept_out := run.settings.admits(item.origin):
            raise ToolFailed(f"nothing was written: {kept_out}", error_code="memory_refused")
        item = replace(item, proposed=not may)
        await self._governed(item)
        if not may:
            return await self._propose(item)
        with _refusing():
            await self._memory.write(item, host=run.scope)
        replaced = [MemorySuperseded(item_id=one.id, by_id=item.id, why=item.why, memory=run.name, call=self._call) for one in old]
        self._record(MemoryWritten(item_id=item.id, memory=run.name, call=self._call), *replaced)
        return {"status": "written", "id": item.id}

    async def _governed(self, item: MemoryItem) -> None:
        """Raise `ToolFailed` if the governor refuses an item; the log has that."""
        run = self._run
        if why := await run.governor.refuses(item, self._memory, host=run.scope):
            self._record(MemoryProposed(item_id=item.id, item=_shown(item), memory=run.name, call=self._call, refused=why))
            raise ToolFailed(
                f"nothing was written: {why if ours(run.governor) else 'the governor refused it'}", error_code="memory_refused"
            )

    async def _propose(self, item: MemoryItem) -> dict[str, Any]:
        run = self._run
        with _refusing():
            await self._memory.write(item, host=run.scope)
        self._record(MemoryProposed(item_id=item.id, item=_shown(item), memory=run.name, call=self._call))
        return {"status": "proposed", "id": item.id, "note": "a person decides on it; until then nothing has changed"}

    def _may_write(self, old: Sequence[MemoryItem]) -> bool:
        """Whether this may be written now; if not, it is proposed. Raise `ToolFailed` if not even that is allowed."""
        run = self._run
        policy = stricter(run.policy, *run.policies(old))
        if policy == "read_only":
            raise ToolFailed("nothing was written: this memory is read-only here", error_code="memory_read_only")
        retired = sum(became in ("superseded", "tombstoned") for became in run.journal.state.memories.values())
        return len(old) + (retired if old else 0) <= MOST_RETIRED and (
            policy == "agent_write" or (policy == "human_approved" and self._approved)
        )

    async def _items(self, names: Sequence[str]) -> list[MemoryItem]:
        """Return the items of these names in the agent's scope. Raise `ToolFailed`."""
        run, found = self._run, list[MemoryItem]()
        if not names:
            raise ToolFailed("name at least one item by its id", error_code="memory_not_found")
        for name in dict.fromkeys(names):
            with _refusing():
                item = await self._memory.get(name, host=run.scope)
            if item is None:
                raise ToolFailed(f"there is no item {name[:80]!r} in this memory", error_code="memory_not_found")
            found.append(item)
        return found

    def _item(
        self, content: str, *, kind: Kind, why: str = "", held_from: datetime | None = None, held_until: datetime | None = None
    ) -> MemoryItem:
        run, state = self._run, self._run.journal.state
        now = run.clock.now()
        return MemoryItem(
            id=item_id(state.run_id, self._call),
            scope=run.scope,
            kind=kind,
            content=content,
            origin=origin_of(state, self._call, content, run.conversation()),
            visibility=run.use.visibility,
            created_at=now,
            held_from=held_from,
            held_until=held_until,
            expires_at=now + TRANSIENT if kind == "transient" and held_until is None else None,
            why=why,
            write_policy=run.policy,
        )

    def _record(self, *events: AnyEvent) -> None:
        self._run.journal.record(*events, scope=self._call.rsplit(".", 2)[0])


class _refusing:  # noqa: N801 - used like a function
    """Turns the errors of a memory into outcomes of the call."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None:
        codes = {ItemNotFound: "memory_not_found", ItemConflict: "memory_conflict", ItemRefused: "memory_refused"}
        if kind in codes:
            raise ToolFailed(f"nothing was written: {error}", error_code=codes[kind]) from error


def remembering_of(
    memories: Memories, journal: Journal, *, clock: Clock, patterns: Sequence[str], conversation: Callable[[], Sequence[Any]]
) -> Remembering | None:
    """Return what a run writes to; None for one whose agent has no memory. Raise `ConfigError` if it is not here."""
    use = memory_use(journal.state.agent.memory)
    if use is None:
        return None
    name, memory = memories.named(use.use)
    governor = governor_of(memories.settings, patterns)
    return Remembering(name, memory, use, memories.settings, governor=governor, journal=journal, clock=clock, conversation=conversation)


def governor_of(settings: MemorySettings, patterns: Sequence[str]) -> Governor:
    """Return the governor that decides on the proposals of a run with these redaction patterns."""
    return settings.governor or default_governor(max_bytes=settings.max_bytes, hides=partial(_hidden, Redactor(patterns, b"")))


def _hidden(redactor: Redactor, text: str) -> bool:
    return PLACEHOLDER.search(text) is not None or redactor.without(text) != text


def item_id(run_id: str, call_id: str) -> str:
    """Return the id of the item that a call writes: the same whenever the call is made again."""
    return f"m{sha256(f'{run_id} {call_id}'.encode()).hexdigest()[:20]}"


def _shown(item: MemoryItem) -> dict[str, Any]:
    return msgspec.to_builtins(item)


def _time(said: str, name: str) -> datetime | None:
    """Return a time that a model wrote; UTC unless it says another zone. Raise `ToolFailed`."""
    if not said:
        return None
    try:
        at = datetime.fromisoformat(said)
    except ValueError:
        raise ToolFailed(
            f"{name} is not a date or time; write it like 2026-01-31 or 2026-01-31T12:00:00Z", error_code="invalid_time"
        ) from None
    return at if at.tzinfo is not None else at.replace(tzinfo=UTC)
