"""What is held: agents, tenants and tools that somebody paused, and providers whose account is paused or closed for a time.

Holds are kept in the store, beside the runs, so that every worker of the store obeys them: each one is a blob of `HELD_AS`, which is not a run.
A hold that cannot be read holds: what somebody stopped must not continue because of damage.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, Literal, get_args

import msgspec

from detent.core.errors import ConfigError, Explained
from detent.ports.json_data import unstorable
from detent.ports.options import check_fields
from detent.ports.stores import EventStore

HELD_AS = "_holds@"
"""The name under which a store keeps holds: no run has it, because nothing but a tenant follows the "@" in the id of a run."""
HeldKind = Literal["agent", "tenant", "tool", "provider"]
HELD_KINDS: tuple[HeldKind, ...] = get_args(HeldKind)
_KINDS: dict[str, HeldKind] = {kind: kind for kind in HELD_KINDS}
_LONGEST = 500
_ENDED = "ended "
MOST_ENDED = 100
"""How many holds that somebody has ended a store remembers."""
_DIGITS = 12
_EPOCH = datetime.fromtimestamp(0, UTC)


class Ended(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Who has ended a hold, when and why."""

    by: str
    why: str = ""
    at: datetime


class Hold(msgspec.Struct, metaclass=Explained, frozen=True, kw_only=True, omit_defaults=True):
    """Nobody uses `name`, which is an agent, a tenant, a tool or a provider; `by` whom and `why` this is so, and since when.

    `until` is when it ends by itself: a provider has asked for a pause. None: somebody paused it, and it lasts until somebody resumes it.
    `ended` says who did; what has ended holds nothing any more.
    """

    of: HeldKind
    name: str
    by: str
    why: str = ""
    at: datetime
    until: datetime | None = None
    ended: Ended | None = None

    __post_init__ = check_fields

    @property
    def what(self) -> str:
        """What is held, as commands name it: `agent:NAME`."""
        return f"{self.of}:{self.name}"

    @property
    def said(self) -> str:
        """The hold in words."""
        if self.ended is not None:
            end = self.ended
            was = msgspec.structs.replace(self, ended=None).said
            return f"{was}; ended by {end.by}{f' ({end.why})' if end.why else ''} at {end.at:%Y-%m-%d %H:%M:%S} UTC"
        if self.until is not None:
            return f"{self.of} {self.name!r} is closed until {self.until:%Y-%m-%d %H:%M:%S} UTC ({self.why}; met by {self.by})"
        return f"{self.of} {self.name!r} is paused by {self.by}{f' ({self.why})' if self.why else ''} since {self.at:%Y-%m-%d %H:%M:%S} UTC"

    @property
    def unsigned(self) -> Hold:
        """The hold as a tenant may see it: without who did it and why, which may name other tenants' runs."""
        return msgspec.structs.replace(
            self, by="the operator" if self.until is None else "a run", why="" if self.until is None else "it asked for a pause"
        )

    def left_s(self, now: datetime) -> float:
        """Return the seconds that are left, 0 if the hold is over; infinite for a pause."""
        return math.inf if self.until is None else max(0.0, (self.until - now).total_seconds())


def held_name(what: str) -> tuple[HeldKind, str] | None:
    """Return kind and name of `agent:NAME`, `tenant:NAME`, `tool:NAME` or `provider:NAME`; None for anything else, such as the id of a run."""
    of, colon, name = what.partition(":")
    kind = _KINDS.get(of)
    return (kind, name) if colon and kind else None


def named(what: str) -> tuple[HeldKind, str]:
    """Return what `held_name` does. Raise `ConfigError` for what cannot be held."""
    found = held_name(what)
    if found is None or (not found[1].strip() and found[0] != "tenant"):
        raise ConfigError(f"{what!r} cannot be paused; write agent:NAME, tenant:NAME, tool:NAME or provider:NAME")
    if problem := unstorable(what):
        raise ConfigError(f"the name {what[:80]!r} {problem}")
    return found


async def keep_hold(store: EventStore, hold: Hold) -> Hold:
    """Keep a hold, durably. A pause replaces the one before it, a closed account is closed until the latest time. Return what is kept."""
    short = msgspec.structs.replace(hold, by=hold.by[:_LONGEST], why=hold.why[:_LONGEST])
    await store.put_blob(HELD_AS, _key(short), msgspec.json.encode(short))
    return short


async def lift_holds(store: EventStore, holds: Iterable[Hold]) -> None:
    """Remove holds."""
    for hold in holds:
        await store.delete_blob(HELD_AS, _key(hold))


async def end_holds(store: EventStore, holds: Iterable[Hold], ended: Ended) -> tuple[Hold, ...]:
    """End holds, and keep who did and why, of the latest `MOST_ENDED`. Return them as they are kept."""
    short = msgspec.structs.replace(ended, by=ended.by[:_LONGEST], why=ended.why[:_LONGEST])
    done = tuple(msgspec.structs.replace(hold, ended=short) for hold in holds)
    for hold in done:
        await store.put_blob(HELD_AS, f"{_ENDED}{ended.at.timestamp():020.6f} {_key(hold)}", msgspec.json.encode(hold))
    await lift_holds(store, done)
    if done:
        for key in [key for key in await store.list_blobs(HELD_AS) if key.startswith(_ENDED)][:-MOST_ENDED]:
            await store.delete_blob(HELD_AS, key)
    return done


async def ended_holds(store: EventStore) -> tuple[Hold, ...]:
    """Return the latest holds that somebody has ended, the last one first."""
    found: list[Hold] = []
    for key in reversed(await store.list_blobs(HELD_AS)):
        if key.startswith(_ENDED) and (data := await store.get_blob(HELD_AS, key)) is not None:
            with suppress(ValueError, TypeError, RecursionError):  # a damaged one tells nothing
                found.append(msgspec.json.decode(data, type=Hold))
    return tuple(found)


async def kept_holds(store: EventStore, now: datetime, *, tidy: bool = False) -> tuple[Hold, ...]:
    """Return everything that is held now, pauses first. With `tidy`, holds that are over are removed."""
    found: list[Hold] = []
    over: list[Hold] = []
    for key in await store.list_blobs(HELD_AS):
        if (
            not key.startswith(_ENDED)
            and (data := await store.get_blob(HELD_AS, key)) is not None
            and (hold := _read(key, data)) is not None
        ):
            (found if hold.left_s(now) else over).append(hold)
    if tidy:
        await lift_holds(store, over)
    return tuple(sorted(found, key=lambda hold: (-hold.left_s(now), hold.what)))


def _key(hold: Hold) -> str:
    """Return the key of a hold. Closing twice is two holds, so that two workers who do it at once cannot shorten each other's."""
    return hold.what if hold.until is None else f"{math.ceil(hold.until.timestamp())} {hold.what}"


def _read(key: str, data: bytes) -> Hold | None:
    """Return the hold under a key. Of one that cannot be read, the key says what it holds; None if it does not either."""
    try:
        hold = msgspec.json.decode(data, type=Hold)
        if _key(hold) == key:
            return hold
    except (ValueError, TypeError, RecursionError):  # msgspec's errors are ValueErrors
        pass
    until, _, closed = key.partition(" ")
    ends = int(until) if until.isdecimal() and len(until) < _DIGITS else None
    what = held_name(key if ends is None else closed)
    if what is None:
        return None
    fields: dict[str, Any] = {"of": what[0], "name": what[1], "by": "somebody", "why": "the entry in the store is damaged", "at": _EPOCH}
    return Hold(**fields, until=None if ends is None else datetime.fromtimestamp(ends, UTC))
