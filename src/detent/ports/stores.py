"""Stores: they keep logs, and the signals that reach a run from outside."""

from __future__ import annotations

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
from detent.ports.due import DueQuery, DueRuns
from detent.ports.options import check_fields


class Signal(msgspec.Struct, metaclass=Explained, frozen=True, kw_only=True, omit_defaults=True):
    """A message from outside to a run. It stays in the run's inbox until the record that consumes it is committed. Posting an id twice is one signal.

    `by` is the sender. `via` is what the posting process states about itself; `Engine.signal` fills it in. The kind `unreadable` marks inbox
    content that is not a signal; the run refuses it. `digest` covers the whole signal and the id of its run, as posted (`posted_to`). A signal
    that was altered in its inbox is refused, too. "" means that the digest is not known.
    """

    id: str
    kind: Literal["approval", "reply", "cancel", "timer", "child", "reconcile", "message", "unreadable"]
    by: str = ""
    payload: dict[str, Any] = {}
    via: str = ""
    digest: str = ""

    __post_init__ = check_fields


def written_signal(signal: Signal) -> bytes:
    """Return a signal as a store keeps it: one JSON object whose last member is a digest of the others.

    `Signal.digest` binds a posted signal to its run, in every store. This digest covers the rest: signals that a program posts without one, a
    damaged `digest` that reads as empty, and the end of a line in a file.
    """
    data = msgspec.json.encode(signal)
    return b'%b,"check":"%b"}' % (data[:-1], _check(data))


def _check(data: bytes) -> bytes:
    return sha256(data).hexdigest()[:16].encode()


def _altered(data: bytes) -> bool | None:
    """Whether a signal differs from what was written; None if that is not known, for example for a signal of an earlier version."""
    found = _CHECKED.search(data)
    return None if found is None else _check(data[: found.start()] + b"}") != found[1]


_CHECKED = re.compile(rb',"check":"([0-9a-f]{16})"}\Z')


def is_written_signal(data: bytes) -> bool:
    """Whether these bytes are what `written_signal` returned."""
    return _altered(data) is False


def posted_to(run_id: str, signal: Signal) -> Signal:
    """Return the signal as it is posted to a run: with the digest that lets the run detect alterations."""
    return msgspec.structs.replace(signal, digest=_digest_of(run_id, signal))


def altered(run_id: str, signal: Signal) -> bool:
    """Whether a signal is not what was posted to the run; one without a digest may be anything."""
    return bool(signal.digest) and signal.digest != _digest_of(run_id, signal)


def _digest_of(run_id: str, signal: Signal) -> str:
    return digest_of([run_id, signal.id, signal.kind, signal.by, signal.payload, signal.via])


def read_signal(data: bytes, kept_as: str = "") -> Signal:
    """Return the signal that a store has kept under the id `kept_as`. Content that is not a signal, or was altered, becomes one of kind `unreadable`.

    So nobody can block an inbox with bad content. An altered signal that has a digest is returned: its run detects it (`altered`) and refuses it
    under its own id.
    """
    try:
        changed = _altered(data)
        signal = msgspec.json.decode(data, type=Signal)
        if not signal.digest and (changed or (changed is False and signal.id != (kept_as or signal.id))):
            raise ValueError("altered")  # with a digest of its own, its run detects that and tells the sender
    except (ValueError, TypeError, RecursionError):  # msgspec's errors are ValueErrors
        signal = Signal(id=f"unreadable-{sha256(repr(data).encode()).hexdigest()[:32]}", kind="unreadable")
    return signal if signal.id == (kept_as or signal.id) else msgspec.structs.replace(signal, id=kept_as)


MOST_UNDECIDED = 100
"""How many signals may wait in an inbox. Timers and cancellations do not count and are always accepted."""


def refuse_overfull(run_id: str, signal: Signal, waiting: Iterable[Signal]) -> None:
    """Raise `NotAllowedNow` (`inbox_full`) if the inbox has no room for a signal; for stores to call."""
    if signal.kind not in UNCOUNTED and sum(one.kind not in UNCOUNTED for one in waiting) >= MOST_UNDECIDED:
        raise no_room(run_id)


UNCOUNTED = ("cancel", "timer", "child")
"""Kinds of signals that are always accepted: ending a run is never refused, and a timer may wait for long."""


def refuse_behind_cancel(run_id: str, waiting: Iterable[Signal], consumed: Sequence[str]) -> None:
    """Raise `CancelWaits` if one of these signals is an unconsumed cancellation; for stores to call."""
    if any(signal.kind == "cancel" and signal.id not in consumed for signal in waiting):
        raise CancelWaits(run_id)


def refuse_without_claim(run_id: str, claim: int | None, there: int | None) -> None:
    """Raise `ClaimLost` for an append with the number `claim` if the current claim has another number, or there is no claim; for stores to call."""
    if claim is not None and claim != there:
        raise ClaimLost(run_id)


ERASED = "erased"
"""The `reason` in the listing entry of a run that was erased."""
PARENT_ERASED = "parent_erased"
"""The `reason` in the listing entry of a fork whose content is gone because its parent run was erased."""


def is_erased(head: RunHead) -> bool:
    """Whether a run was erased, or its ancestor was, according to its listing entry."""
    return head.reason in (ERASED, PARENT_ERASED)


def refuse_erased(head: RunHead) -> None:
    """Raise `RunErased` for a signal to a run that was erased, or whose ancestor was, according to its listing entry; for stores to call in `post`."""
    if is_erased(head):
        raise RunErased(head.run_id, parent=head.parent if head.reason == PARENT_ERASED else "")


def no_room(run_id: str) -> NotAllowedNow:
    """Return the error for a signal that does not fit."""
    why = f"{MOST_UNDECIDED} signals wait in the inbox of run {run_id!r}, and nobody has decided on them: `detent resume {run_id}` does"
    return NotAllowedNow(run_id, why, reason_code="inbox_full")


Posts = Sequence[tuple[str, Signal]]
"""Signals to other runs, each with the id of the run that gets it."""


class Spent(msgspec.Struct, metaclass=Explained, frozen=True, kw_only=True, omit_defaults=True):
    """What a tenant has used on a `day` (such as 2026-03-01, UTC), or since that day; `tokens` counts input and output."""

    tenant: str
    day: str
    runs: int = 0
    model_calls: int = 0
    tool_calls: int = 0
    tokens: int = 0
    cost_usd: float = 0.0

    def plus(self, other: Spent) -> Spent:
        """Return the sum, with the tenant and day of this object."""
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
    """The state of a tenant's account: usage since a day, reservations of other runs, and whether a reservation was made."""

    granted: bool
    spent: Spent
    others: Spent


class Reservation(msgspec.Struct, metaclass=Explained, frozen=True, kw_only=True):
    """The amounts to reserve for a run in its tenant's account, each under a name that is unique within the run.

    `limits` bound dimensions of `Spent`, such as `{"tokens": 10_000}`, from the day `since` (UTC) on. The reservation lapses after `lasts_s` seconds.
    """

    run_id: str
    tenant: str
    since: str
    amounts: dict[str, Spent]
    limits: dict[str, float]
    lasts_s: float

    def balance(self, spent: Spent, held: Iterable[tuple[str, str, Spent]]) -> Balance:
        """Return the balance of the account, and whether the amounts fit. `held` are its current reservations, with run and name."""
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
"""Sums of money may differ by this much, depending on the order of addition."""


class RunQuery(msgspec.Struct, metaclass=Explained, frozen=True, kw_only=True):
    """Which runs to list, newest first. `after` is the run id that ended the previous page.

    `starts_with`: only runs whose id begins with one of these texts; a database answers that from its index of ids. `ends_with`: only runs
    whose id ends with one of these; with both, either is enough. `dedupe_key`: only runs that were submitted with it. `version`: only runs that need
    this version of the code; "" for those that need none. `rested_since`: only runs that wait or have ended, and whose last record is not older.
    """

    status: tuple[str, ...] = ()
    starts_with: tuple[str, ...] = ()
    ends_with: tuple[str, ...] = ()
    tenant: str | None = None
    goal_id: str | None = None
    agent: str | None = None
    dedupe_key: str | None = None
    version: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    rested_since: datetime | None = None
    limit: int | None = None
    after: str | None = None

    __post_init__ = check_fields


def wakes(signal: Signal) -> int:
    """Return whether a signal makes a waiting run due: 1, or 2 for a cancellation, which even a dead letter obeys.

    0: it only announces that a time has come. A waiting run then continues by itself (`wake_at`), and not before.
    """
    match signal.kind, signal.payload:
        case ("timer", _) | ("approval", {"decision": "expired"}):
            return 0
        case _:
            return 2 if signal.kind == "cancel" else 1


RESERVED = "_detent."
"""Blobs under ids that begin like this belong to the store, not to a run: no run can have such an id."""

ARTIFACT_KEY_LENGTH = 64
"""Artifacts are kept under the SHA-256 of their content, in hex; other blobs have shorter keys."""


def intact(run_id: str, key: str, data: bytes | None) -> bytes | None:
    """Return a blob that was read; raise `CorruptLog` if its key is a SHA-256 and not that of `data`. Stores call it on every read."""
    if data is not None and len(key) == ARTIFACT_KEY_LENGTH and sha256(data).hexdigest() != key:
        raise CorruptLog(run_id, 0, f"artifact {key} is not what was stored: these {len(data)} bytes have another digest")
    return data


class EventStore(Protocol):
    """Keeps logs as bytes, together with their claims, inboxes, blobs and snapshots. A claim is the lock that lets one process advance a run.

    Records are opaque lines (see `core.records`); the store guarantees their order and number. Errors: `Conflict`, `RunBusy`,
    `RunNotFound`, `StoreBusy`, `StoreFull`, `CorruptLog` (a stored line that cannot be read).

    In a forked process a store is another holder: it holds nothing and is closed until it is opened there (`ports.processes`). You may close a
    store in another event loop than you opened it in.
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
        reserved: Reservation | None = None,
        intent: bool = False,
        claim: int | None = None,
        posts: Posts = (),
    ) -> None:
        """Add `records` after `expected_seq` records, and drop the signals `consumed`, in one transaction.

        The same transaction adds `spent` to its tenant's usage of its day, and gives back the run's reservations under the names `released`
        (None: all of them). It also makes the reservations `reserved` for the run, whatever their account holds: their maker has reserved as much under
        another name. `head` becomes the run's listing entry. With `durable` the records survive power loss, otherwise process death.
        Raise `Conflict` if the run does not have exactly `expected_seq` records (0 creates it).

        `intent`: the records state that a call with a side effect begins. Raise `CancelWaits` if the inbox has a cancellation that is not among
        `consumed`. Such an append and the posting of a cancellation exclude each other: once `post` has returned, no such append happens.

        `claim` is the number of the claim under which the run is advanced. Raise `ClaimLost` if the run's claim has another number now, or if
        there is none: once a claim was taken over, nothing is appended under the former one. None skips this check.

        `posts` are signals to other runs that these records cause: each is in its run's inbox if and only if the records are in the log, also after
        a crash. What `post` promises about ids and cancellations holds for them. No inbox is too full for them, and a run that does not exist or
        was erased gets none. They come with at least one record.
        """
        ...

    async def spent(self, tenant: str, since: str) -> Spent:
        """Return what the appends of all runs have added for the tenant on the day `since` (UTC) and later; deleted runs count, too."""
        ...

    async def reserve(self, asked: Reservation) -> Balance:
        """Reserve the amounts, all or none, if they fit beside what was spent and reserved; return the balance of the account.

        This is atomic with every other `reserve` of the tenant, in any process. An amount replaces the run's earlier reservation of the same name.
        It counts until an append gives it back, or until it lapses by the store's clock. The run need not exist yet.
        """
        ...

    async def read(self, run_id: str, *, after: int = 0, limit: int | None = None) -> list[bytes]:
        """Return the lines of records `after + 1`, `after + 2`, ...; empty for an unknown run."""
        ...

    async def head(self, run_id: str) -> RunHead | None: ...

    async def sealed(self, run_id: str) -> tuple[int, str] | None:
        """Return the number of records and `head.digest` of the last durable append, or of a later one, kept outside the log. None if not known.

        A log that is shorter, or has another digest at that record, is damaged. A database changes both in the transaction of the append; other
        stores write them after the log. "" means that the digest is not known.
        """
        ...

    async def list_runs(self, query: RunQuery) -> list[RunHead]: ...

    async def due(self, query: DueQuery) -> DueRuns:
        """Return the runs that somebody may advance now; see `DueQuery`, `DueRuns`.

        An append sets `wake_at` with its records, and a posted signal counts from the moment when it is in the inbox. The cost depends on how many runs
        are due and have a signal, never on how many wait. A run that is not due may be among them, as in a store of an earlier version.
        """
        ...

    async def claim(self, run_id: str) -> int:
        """Take the right to advance the run for this store instance, and return the claim's number; raise `RunBusy` while another holder has it.

        No two claims of a run have the same number. A claim becomes free when its holder releases it or dies (detected at once on the same host),
        or when its lease expires: by the monotonic clock on the same host, by a shared clock on other hosts. The holder may claim again and keeps
        its number. The run need not exist yet.
        """
        ...

    async def release(self, run_id: str) -> None:
        """Give the claim up; does nothing if it is not held.

        If it raises, the store gives the claim up as soon as it can, so that it does not keep others from the run.
        """
        ...

    async def renew(self) -> list[str]:
        """Extend the leases of all claims held here; return the runs whose claim was lost.

        The engine calls it from time to time in the event loop. A blocked loop must not lose its runs, so a store also renews in a thread (see
        `heartbeats`), unless nobody else can take its claims.
        """
        ...

    async def post(self, run_id: str, signal: Signal) -> None:
        """Put a signal at the end of the run's inbox.

        Raise `RunNotFound` for an unknown run, `RunErased` for an erased one (`refuse_erased`), and `NotAllowedNow` (`inbox_full`) if
        `MOST_UNDECIDED` others wait. Timers and cancellations do not count and are never refused for that. Posting an id twice is one signal,
        even if the inbox is full. Posting and erasing or deleting the run exclude each other: nothing waits in its inbox afterwards.
        """
        ...

    async def signals(self, run_ids: Sequence[str]) -> dict[str, list[Signal]]:
        """Return the waiting signals of these runs, oldest first; runs without signals are left out. Must be cheap, because it is polled."""
        ...

    async def put_blob(self, run_id: str, key: str, data: bytes) -> None:
        """Keep `data` under (run, key), durably; writing the same key again replaces it."""
        ...

    async def get_blob(self, run_id: str, key: str) -> bytes | None:
        """Return a blob, or None if there is none; raise `CorruptLog` if its key is a SHA-256 and not that of the bytes (see `intact`)."""
        ...

    async def list_blobs(self, run_id: str) -> list[str]: ...

    async def delete_blob(self, run_id: str, key: str) -> None: ...

    async def put_snapshot(self, run_id: str, seq: int, data: bytes) -> None:
        """Keep one snapshot per run, the latest. It is an optimisation and may be lost."""
        ...

    async def get_snapshot(self, run_id: str) -> tuple[int, bytes] | None: ...

    async def erase(self, run_id: str, tombstone: Callable[[bytes], bytes], *, head: RunHead, claim: int | None = None) -> None:
        """Replace every line by `tombstone(line)` and remove blobs, snapshot and inbox, in one transaction.

        Raise `RunNotFound`, and for `claim` the same as `append`.
        """
        ...

    async def delete(self, run_id: str) -> None:
        """Remove the run with everything that belongs to it; raise `RunNotFound`.

        Its blobs exist as long as its listing entry does. So if a blob is missing and the entry still exists afterwards, the run is not being deleted.
        """
        ...

    async def gc(self) -> int:
        """Free unused space and remove leftovers of dead holders; return the freed bytes, as far as known."""
        ...


@runtime_checkable
class Wakes(Protocol):
    """An optional part of a store: it wakes whoever waits for news. Waiters always poll the store, with or without it."""

    async def changed(self, timeout_s: float, *, records: bool = False) -> None:
        """Return when anyone has posted a signal (`records`: when anything was recorded), at the latest after that many seconds.

        This is a hint: it may return without cause or miss news. Raise `StoreError` if it cannot wait.
        """
        ...

    async def wake(self) -> None:
        """Wake everybody who waits for a signal, in every process: a run can be advanced now, or later than is known yet."""
        ...


@runtime_checkable
class Looks(Protocol):
    """An optional part of a store: opening it without creating it. Without this, read-only commands call `open`."""

    async def look(self, *, upgrade: bool = False) -> bool:
        """Open the store if it exists and return whether it does; nothing is created.

        A store of an earlier version is read as it is, unless `upgrade` is set: then it is upgraded to this version, as by `open`.
        """
        ...


@runtime_checkable
class ReadsClaims(Protocol):
    """An optional part of a store: it can detect a claim that no process can have written. Without it claims are not examined."""

    async def wrong_with_claim(self, run_id: str) -> str:
        """Return what is wrong with the stored claim on a run, "" if it is valid or there is none.

        A claim whose holder died is valid.
        """
        ...


async def look_at(store: EventStore, *, upgrade: bool = False) -> bool:
    """Open the store if it exists, without creating it if the store supports that; return whether it exists."""
    if isinstance(store, Looks):
        return await store.look(upgrade=upgrade)
    await store.open()
    return True


async def give_back(store: EventStore, run_id: str) -> None:
    """Release a claim whose work is done. If the store cannot do that now, the result of the work is still returned: see `release`."""
    try:
        await store.release(run_id)
    except StoreError as error:
        logging.getLogger("detent").info("the claim of run %s is not given back yet: %s", run_id, error)
