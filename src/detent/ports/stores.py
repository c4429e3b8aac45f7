"""Stores: where the log is kept, and what reaches a run from outside."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from hashlib import sha256
from typing import Any, Literal, Protocol, runtime_checkable

import msgspec

from detent.core.codec import digest_of
from detent.core.errors import CancelWaits, ClaimLost, CorruptLog, Explained, NotAllowedNow, RunErased, StoreError
from detent.core.records import RunHead
from detent.ports.options import check_fields


class Signal(msgspec.Struct, metaclass=Explained, frozen=True, kw_only=True, omit_defaults=True):
    """A message from outside to a run, kept in its inbox until the record that takes it up is committed. Posting an id twice is one signal.

    `by` is who says it. `via` is what the process that posts it says about itself; `Engine.signal` fills it in. `unreadable` is the kind of
    what is in an inbox and is no signal: it is refused when it is taken up. `digest` is over all that it says and the id of its run, as it was
    posted (`posted_to`): one that was altered in its inbox is refused, too. "" is a digest that is not known.
    """

    id: str
    kind: Literal["approval", "reply", "cancel", "timer", "child", "reconcile", "unreadable"]
    by: str = ""
    payload: dict[str, Any] = {}
    via: str = ""
    digest: str = ""

    __post_init__ = check_fields


def written_signal(signal: Signal) -> bytes:
    """Return a signal as a store keeps it: one object of JSON, whose last member is a digest of the others."""
    data = msgspec.json.encode(signal)
    return b'%b,"check":"%b"}' % (data[:-1], _check(data))


def _check(data: bytes) -> bytes:
    return sha256(data).hexdigest()[:16].encode()


def _altered(data: bytes) -> bool | None:
    """Whether a signal is another one than was written; None where that is not known, as of one of an earlier version."""
    found = _CHECKED.search(data)
    return None if found is None else _check(data[: found.start()] + b"}") != found[1]


_CHECKED = re.compile(rb',"check":"([0-9a-f]{16})"}\Z')


def is_written_signal(data: bytes) -> bool:
    """Whether these bytes are what `written_signal` returned."""
    return _altered(data) is False


def posted_to(run_id: str, signal: Signal) -> Signal:
    """Return the signal as it is posted to a run: with the digest by which the run sees that nobody has altered it."""
    return msgspec.structs.replace(signal, digest=_digest_of(run_id, signal))


def altered(run_id: str, signal: Signal) -> bool:
    """Whether a signal is not what was posted to the run; one without a digest may be anything."""
    return bool(signal.digest) and signal.digest != _digest_of(run_id, signal)


def _digest_of(run_id: str, signal: Signal) -> str:
    return digest_of([run_id, signal.id, signal.kind, signal.by, signal.payload, signal.via])


def read_signal(data: bytes, kept_as: str = "") -> Signal:
    """Return the signal that a store has kept, under the id that it was `kept_as`; what is none, or was altered, is one of kind `unreadable`.

    No inbox is blocked by what somebody has put into it. One that was altered and has a digest is returned: its run sees it by that (`altered`),
    and refuses it under its own id.
    """
    try:
        changed = _altered(data)
        signal = msgspec.json.decode(data, type=Signal)
        if not signal.digest and (changed or (changed is False and signal.id != (kept_as or signal.id))):
            raise ValueError("altered")  # with a digest of its own, its run sees that, and its sender is told
    except (ValueError, TypeError, RecursionError):  # msgspec's errors are ValueErrors
        signal = Signal(id=f"unreadable-{sha256(repr(data).encode()).hexdigest()[:32]}", kind="unreadable")
    return signal if signal.id == (kept_as or signal.id) else msgspec.structs.replace(signal, id=kept_as)


MOST_UNDECIDED = 100
"""How many signals may wait in an inbox; timers and cancellations do not count, and find room all the same."""


def refuse_overfull(run_id: str, signal: Signal, waiting: Iterable[Signal]) -> None:
    """Raise `NotAllowedNow` (`inbox_full`) for a signal for which there is no room beside those that wait; for stores to call."""
    if signal.kind not in UNCOUNTED and sum(one.kind not in UNCOUNTED for one in waiting) >= MOST_UNDECIDED:
        raise no_room(run_id)


UNCOUNTED = ("cancel", "timer")
"""Kinds of signals that always find room: ending a run is never refused, and a time that is still to come waits for long."""


def refuse_behind_cancel(run_id: str, waiting: Iterable[Signal], consumed: Sequence[str]) -> None:
    """Raise `CancelWaits` where one of these signals is a cancellation that is not consumed; for stores to call."""
    if any(signal.kind == "cancel" and signal.id not in consumed for signal in waiting):
        raise CancelWaits(run_id)


def refuse_without_claim(run_id: str, claim: int | None, there: int | None) -> None:
    """Raise `ClaimLost` for an append with the number `claim` where the claim that is there has another, or there is none; for stores to call."""
    if claim is not None and claim != there:
        raise ClaimLost(run_id)


ERASED = "erased"
"""The `reason` in the listing entry of a run that was erased."""
PARENT_ERASED = "parent_erased"
"""That of a fork whose content is gone because it goes on from a run that was erased."""


def refuse_erased(head: RunHead) -> None:
    """Raise `RunErased` for a signal to a run whose listing entry says that it was erased, or a run above it; for stores to call in `post`."""
    if head.reason in (ERASED, PARENT_ERASED):
        raise RunErased(head.run_id, parent=head.parent if head.reason == PARENT_ERASED else "")


def no_room(run_id: str) -> NotAllowedNow:
    """Return what is raised for a signal that finds no room."""
    why = f"{MOST_UNDECIDED} signals wait in the inbox of run {run_id!r}, and nobody has decided on them: `detent resume {run_id}` does"
    return NotAllowedNow(run_id, why, reason_code="inbox_full")


class Spent(msgspec.Struct, metaclass=Explained, frozen=True, kw_only=True, omit_defaults=True):
    """What a tenant has used on a `day` (such as 2026-03-01, UTC), or since then; `tokens` are those of input and output."""

    tenant: str
    day: str
    runs: int = 0
    model_calls: int = 0
    tool_calls: int = 0
    tokens: int = 0
    cost_usd: float = 0.0

    def plus(self, other: Spent) -> Spent:
        """Return the sum, for the tenant and day of this one."""
        return Spent(
            tenant=self.tenant,
            day=self.day,
            runs=self.runs + other.runs,
            model_calls=self.model_calls + other.model_calls,
            tool_calls=self.tool_calls + other.tool_calls,
            tokens=self.tokens + other.tokens,
            cost_usd=self.cost_usd + other.cost_usd,
        )


class Balance(msgspec.Struct, metaclass=Explained, frozen=True, kw_only=True):
    """What a tenant's account says: what was used since a day, what other runs have reserved, and whether a reservation was made."""

    granted: bool
    spent: Spent
    others: Spent


class Reservation(msgspec.Struct, metaclass=Explained, frozen=True, kw_only=True):
    """What is to be kept free for a run in its tenant's account, each amount under a name that is the run's own.

    `limits` bound dimensions of `Spent`, such as `{"tokens": 10_000}`, from the day `since` (UTC) on. It lapses after `lasts_s` seconds.
    """

    run_id: str
    tenant: str
    since: str
    amounts: dict[str, Spent]
    limits: dict[str, float]
    lasts_s: float

    def balance(self, spent: Spent, held: Iterable[tuple[str, str, Spent]]) -> Balance:
        """Return what the account says, and whether the amounts fit: `held` is what is reserved there, with its run and name."""
        wanted = others = mine = Spent(tenant=self.tenant, day=self.since)
        for run_id, name, amount in held:
            if run_id != self.run_id:
                others = others.plus(amount)
            elif name not in self.amounts:
                mine = mine.plus(amount)
        for amount in self.amounts.values():
            wanted = wanted.plus(amount)
        after = spent.plus(others).plus(mine).plus(wanted)
        granted = all(getattr(after, of) <= limit + _ROUNDING or not getattr(wanted, of) for of, limit in self.limits.items())
        return Balance(granted=granted, spent=spent, others=others)


_ROUNDING = 1e-9
"""Sums of money differ by as much with the order in which they are added up."""


class RunQuery(msgspec.Struct, metaclass=Explained, frozen=True, kw_only=True):
    """Which runs to list, newest first. `after` is the run id that ended the previous page.

    `starts_with`: only runs whose id begins with one of these texts; a database answers it from its index of ids. `ends_with`: only runs
    whose id ends with one of these; with both, either is enough.
    """

    status: tuple[str, ...] = ()
    starts_with: tuple[str, ...] = ()
    ends_with: tuple[str, ...] = ()
    tenant: str | None = None
    goal_id: str | None = None
    agent: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    limit: int | None = None
    after: str | None = None

    __post_init__ = check_fields


ARTIFACT_KEY_LENGTH = 64
"""Artifacts are kept under the SHA-256 of their content, in hex; other blobs have shorter keys."""


def intact(run_id: str, key: str, data: bytes | None) -> bytes | None:
    """Return a blob that was read; raise `CorruptLog` where it was kept under the SHA-256 of other bytes. A store asks it on every read."""
    if data is not None and len(key) == ARTIFACT_KEY_LENGTH and sha256(data).hexdigest() != key:
        raise CorruptLog(run_id, 0, f"artifact {key} is not what was stored: these {len(data)} bytes have another digest")
    return data


class EventStore(Protocol):
    """Keeps logs as bytes, and what goes with them: claims, inboxes, blobs, snapshots.

    Records are opaque lines (see `core.records`); their order and number are the store's promise. Errors: `Conflict`, `RunBusy`,
    `RunNotFound`, `StoreBusy`, `StoreFull`, `CorruptLog` (a stored line that cannot be read).

    In a process that is forked a store is another holder, which has nothing and is closed until it is opened there (`ports.processes`). It may be
    closed in another event loop than it was opened in.
    """

    url: str

    async def open(self) -> None: ...

    async def close(self) -> None: ...

    async def append(
        self,
        run_id: str,
        expected_seq: int,
        records: Sequence[bytes],
        *,
        head: RunHead,
        durable: bool = False,
        consumed: Sequence[str] = (),
        spent: Spent | None = None,
        released: Sequence[str] | None = (),
        intent: bool = False,
        claim: int | None = None,
    ) -> None:
        """Add `records` after `expected_seq` records, and drop the signals `consumed`, in one transaction.

        In the same transaction `spent` is added to what its tenant has used on its day, and the run gives back what it has reserved under
        the names `released`, or with None all that it has reserved. `head` is the run's listing entry from now on.
        `durable` survives power loss, otherwise process death. Raise `Conflict` when the run does not have exactly `expected_seq` records
        (0 creates it). `intent`: the records say that a call with an effect begins; raise `CancelWaits` where a cancellation waits in the
        inbox that is not among `consumed`. Such an append and the posting of a cancellation exclude each other: once `post` has returned,
        none happens. `claim` is the number of the claim under which the run is advanced; raise `ClaimLost` where the run's claim has another
        number now, or it has none: once a claim was taken over, nothing is appended under the former one. None: whoever has the claim.
        """
        ...

    async def spent(self, tenant: str, since: str) -> Spent:
        """Return what the appends of all runs have added for the tenant on the day `since` (UTC) and later; it is there also for deleted runs."""
        ...

    async def reserve(self, asked: Reservation) -> Balance:
        """Keep the amounts free where they fit beside what was spent and what is reserved, all or none; return what the account says.

        No other `reserve` of the tenant, in any process, decides in between. Amounts replace those that the run has reserved under the same
        names. They count until an append gives them back, or until they lapse by the store's clock. The run need not exist yet.
        """
        ...

    async def read(self, run_id: str, *, after: int = 0, limit: int | None = None) -> list[bytes]:
        """Return the lines of records `after + 1`, `after + 2`, ...; empty for an unknown run."""
        ...

    async def head(self, run_id: str) -> RunHead | None: ...

    async def sealed(self, run_id: str) -> tuple[int, str] | None:
        """Return number of records and `head.digest` of the last durable append, or of a later one, kept outside the log; None: not known.

        A log that is shorter, or has another digest there, is damaged. In a database they change in the transaction of the append; else they
        are written after the log. "" is a digest that is not known.
        """
        ...

    async def list_runs(self, query: RunQuery) -> list[RunHead]: ...

    async def claim(self, run_id: str) -> int:
        """Take the right to advance the run for this store instance, and return the claim's number; raise `RunBusy` while another holder has it.

        No two claims of a run have the same number. It is free when the former holder released it, is dead (same host, at once), or its lease
        expired: on the same host by the monotonic clock, on others by a clock that they share. Idempotent for the holder, which keeps its number.
        The run need not exist yet.
        """
        ...

    async def release(self, run_id: str) -> None:
        """Give the claim up; nothing happens if it is not held.

        Where it raises, the claim goes as soon as the store can: nobody is kept from a run by one who does not advance it.
        """
        ...

    async def renew(self) -> list[str]:
        """Extend the leases of all claims held here; return the runs whose claim was lost.

        It is called from time to time while the event loop turns. A blocked loop must not lose its runs, so a store also renews in a thread
        (see `heartbeats`), unless nobody else can take its claims.
        """
        ...

    async def post(self, run_id: str, signal: Signal) -> None:
        """Put a signal into the run's inbox, behind those that are there.

        Raise `RunNotFound` for an unknown run, `RunErased` for one that was erased (`refuse_erased`), and `NotAllowedNow` (`inbox_full`) where
        `MOST_UNDECIDED` others wait, timers and cancellations not counted: these are never refused for that. Posting an id twice is one signal,
        also where the inbox is full. Posting and erasing or deleting the run exclude each other: nothing waits in its inbox afterwards.
        """
        ...

    async def signals(self, run_ids: Sequence[str]) -> dict[str, list[Signal]]:
        """Return the waiting signals of these runs, oldest first; runs without any are left out. Cheap: it is polled."""
        ...

    async def put_blob(self, run_id: str, key: str, data: bytes) -> None:
        """Keep `data` under (run, key), durably; writing the same key again replaces it."""
        ...

    async def get_blob(self, run_id: str, key: str) -> bytes | None:
        """Return a blob, None where there is none; raise `CorruptLog` where its key is the SHA-256 of other bytes (see `intact`)."""
        ...

    async def list_blobs(self, run_id: str) -> list[str]: ...

    async def delete_blob(self, run_id: str, key: str) -> None: ...

    async def put_snapshot(self, run_id: str, seq: int, data: bytes) -> None:
        """Keep one snapshot a run, the latest; an optimisation that may be lost."""
        ...

    async def get_snapshot(self, run_id: str) -> tuple[int, bytes] | None: ...

    async def erase(self, run_id: str, tombstone: Callable[[bytes], bytes], *, head: RunHead, claim: int | None = None) -> None:
        """Replace every line by `tombstone(line)` and remove blobs, snapshot and inbox, in one transaction.

        Raise `RunNotFound`, and with `claim` what `append` raises for it.
        """
        ...

    async def delete(self, run_id: str) -> None:
        """Remove the run with all that belongs to it; raise `RunNotFound`.

        Its blobs are there as long as its listing entry is: who finds a blob missing and then the entry there knows that it was not being deleted.
        """
        ...

    async def gc(self) -> int:
        """Give unused space back and drop leftovers of dead holders; return the bytes freed, as far as known."""
        ...


@runtime_checkable
class Wakes(Protocol):
    """What a store may have beside the `EventStore`: it wakes who waits for news. Without it, and beside it, the store is polled."""

    async def changed(self, timeout_s: float, *, records: bool = False) -> None:
        """Return when a signal was posted by anyone (`records`: when anything was recorded), at the latest after so many seconds.

        A hint: it may come without cause or be missed. Raise `StoreError` where it cannot wait.
        """
        ...


@runtime_checkable
class Looks(Protocol):
    """What a store may have beside the `EventStore`: it can be opened without being made. Without it a command that only looks calls `open`."""

    async def look(self, *, upgrade: bool = False) -> bool:
        """Open the store if it is there and return whether it is; nothing is created.

        One of an earlier version is read as it is, unless `upgrade`: then it is brought to this version, as by `open`.
        """
        ...


@runtime_checkable
class ReadsClaims(Protocol):
    """What a store may have beside the `EventStore`: it can say of a claim that no process can have written it. Without it none is looked at."""

    async def wrong_with_claim(self, run_id: str) -> str:
        """Return what is wrong with what is kept as the claim on a run, "" where nothing is, or nobody has one.

        A claim whose holder died is in order.
        """
        ...


async def look_at(store: EventStore, *, upgrade: bool = False) -> bool:
    """Open the store if it is there, creating nothing where it can tell; return whether it is."""
    if isinstance(store, Looks):
        return await store.look(upgrade=upgrade)
    await store.open()
    return True


async def wait_for_news(store: EventStore, timeout_s: float, *, records: bool = False) -> None:
    """Wait until the store says that there may be news, at the latest so many seconds; one that cannot say so lets the time pass."""
    if isinstance(store, Wakes):
        try:
            await store.changed(timeout_s, records=records)
            return
        except StoreError:  # polling goes on, and says what is wrong
            pass
    await asyncio.sleep(timeout_s)


async def give_back(store: EventStore, run_id: str) -> None:
    """Release a claim whose work is done. Where the store cannot do that now, what came of the work is said all the same: see `release`."""
    try:
        await store.release(run_id)
    except StoreError as error:
        logging.getLogger("detent").info("the claim of run %s is not given back yet: %s", run_id, error)
