"""What the store keeps of an evaluation, so that any process can find it, join it, and control it.

- `_detent.evaluations` has one blob for each evaluation: what it is (`Begun`).
- `_detent.evaluation-ID` has what happened: the trials that ended, written by each process under names of its own, and the orders of people (`Order`).
- The claim on `_detent.evaluation-ID-TRIAL` is the right to work on a trial. It becomes free when its process dies, like that on a run.

Rule: a trial that has ended is kept before its claim is given up, and whoever gets a claim reads what was kept before it does anything. So no trial is run
twice, and its attempts are counted across processes.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from datetime import datetime
from hashlib import sha256
from typing import Any, Literal
from weakref import WeakKeyDictionary

import msgspec

from detent.config.adapters import inlined
from detent.core.errors import ConfigError, CorruptLog, Explained, RunBusy
from detent.engine import Engine
from detent.evals.suites import Suite
from detent.evals.trials import Trial, trial_id, trial_of_run
from detent.ports import EventStore, give_back
from detent.ports.stores import RESERVED
from detent.running.people import me

INDEX = f"{RESERVED}evaluations"
_ID = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,119}")
_TRIALS, _ORDER = "trials-", "order-"
_MOST_BYTES = 32_768
"""What was kept one after the other is put together into one blob when it is this long."""

Key = tuple[str, str, int]
"""A trial: its case, its variant, and its number."""
_CLAIMED: WeakKeyDictionary[EventStore, set[str]] = WeakKeyDictionary()
"""The trials that this process works on, by store: engines that share a store object are one holder of claims."""


class Begun(msgspec.Struct, metaclass=Explained, frozen=True, kw_only=True):
    """An evaluation: its suite as it was, the files of its agents where it was begun from a command line, by whom, and when it began and ended."""

    id: str
    suite: Suite
    at: datetime
    by: str = ""
    agents: tuple[str, ...] = ()
    retries: int = 2
    ended: datetime | None = None

    def __post_init__(self) -> None:
        if not _ID.fullmatch(self.id):
            raise ConfigError(f"the id of an evaluation is {self.id[:140]!r}; give 1 to 120 letters, digits, '.', '_' and '-'")

    @property
    def keys(self) -> list[Key]:
        """Its trials, in the order in which they are begun."""
        suite = self.suite
        return [(case.id, name, number) for number in range(1, suite.trials + 1) for case in suite.cases for name in suite.variants]


class Order(msgspec.Struct, metaclass=Explained, frozen=True, kw_only=True):
    """What a person wants of an evaluation, or of one of its trials. `attempt` is the last one that it concerns; `suite` has graders for `regrade`."""

    kind: Literal["requeue", "cancel", "regrade"]
    at: datetime
    by: str = ""
    trial: Key | None = None
    attempt: int = 0
    suite: Suite | None = None


class Kept(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An attempt at a trial that has ended. `revision` counts how often it was graded, `graders` how many orders to regrade the whole its graders obey.

    `continues`: its run did not end, so the next attempt resumes it instead of beginning another one.
    """

    trial: Trial
    revision: int = 0
    graders: int = 0
    continues: bool = False


async def begin(
    engine: Engine, suite: Suite, id: str, *, agents: Sequence[str] = (), retries: int = 2  # noqa: A002 - as everywhere
) -> Begun:  # fmt: skip
    """Return the evaluation with this id; begin it if there is none. Raise `ConfigError` for another suite under this id."""
    suite = _carried(suite)
    begun = Begun(id=id, suite=suite, at=engine.runtime.parts.clock.now(), by=me(), agents=tuple(agents), retries=retries)
    await engine.runtime.open()
    if (data := await engine.store.get_blob(INDEX, id)) is None:
        _written(suite)
        await put(engine.store, begun)
        return begun
    begun = read_begun(data, id)
    if msgspec.json.encode(begun.suite) != _written(suite):
        raise ConfigError(f"evaluation {id!r} is of another suite ({begun.suite.name!r}, or it changed since); give this one another id")
    return begun


def _carried(suite: Suite) -> Suite:
    """Return the suite with the content of the files that its cases attach: another host has other files."""
    cases = [
        msgspec.structs.replace(case, attachments=tuple(map(inlined, case.attachments))) if case.attachments else case
        for case in suite.cases
    ]
    return msgspec.structs.replace(suite, cases=tuple(cases))


def _written(suite: Suite) -> bytes:
    try:
        return msgspec.json.encode(suite)
    except (TypeError, ValueError, RecursionError) as error:
        raise ConfigError(
            f"suite {suite.name!r} cannot be kept, so nobody could resume it: {error}; give cases of data that JSON can say"
        ) from error


async def put(store: EventStore, begun: Begun) -> None:
    """Keep what an evaluation is."""
    await store.put_blob(INDEX, begun.id, msgspec.json.encode(begun))


def place_of(id: str) -> str:  # noqa: A002 - as everywhere
    """Return where the store keeps what happened in an evaluation."""
    return f"{RESERVED}evaluation-{id}"


class Book:
    """What happened in an evaluation so far, as one process knows it; `refresh` reads what others have written since."""

    def __init__(self, engine: Engine, begun: Begun, *, told: Callable[[Trial], Any] | None = None) -> None:
        """`told` is called with each trial that ended, whoever ran it."""
        parts, self._told = engine.runtime.parts, told
        self.begun, self.store, self._place = begun, engine.store, place_of(begun.id)
        self._mine, self._clock = parts.ids.token(8), parts.clock
        self._read: set[str] = set()
        self._pending, self._number = list[Kept](), 0
        self._small, self._alone, self._size = list[str](), list[Kept](), 0
        self._writing = asyncio.Lock()
        self._best = dict[Key, Kept]()
        self._costs, self._judging = dict[str, float](), dict[tuple[str, str], float]()
        self._orders = dict[str, Order]()
        self._base, self._cancelled = dict[Key, int](), set[Key]()
        self.suites: list[Suite] = [begun.suite]
        """The suite, and each that an order gave for grading, the last one counts."""
        self.cancelled = False
        self.changes, self.ordered = 0, False
        """How often something changed that is known here, and whether a person wanted something since the last time that somebody looked."""

    # Reading ----------------------------------------------------------------------------------------------------------------------

    async def refresh(self) -> None:
        """Read what others have written since the last time."""
        orders, moved = len(self._orders), True
        while moved:
            moved = False
            for key in await self.store.list_blobs(self._place):
                if key in self._read or not key.startswith((_TRIALS, _ORDER)):
                    continue
                data = await self.store.get_blob(self._place, key)
                if data is None:  # put together with others meanwhile: the next listing has them
                    moved = True
                    continue
                if key.startswith(_TRIALS):
                    for kept in _read(data, tuple[Kept, ...], self.begun.id):
                        if self._fold(kept):
                            self.tell(kept.trial)
                else:
                    self._orders[key] = _read(data, Order, self.begun.id)
                self._read.add(key)
        if len(self._orders) > orders:
            self._obey()

    def tell(self, trial: Trial) -> None:
        """Tell the program what a trial is now."""
        if self._told is not None:
            self._told(trial)

    def _fold(self, kept: Kept) -> bool:
        """Count an attempt; return whether it is the one that counts now."""
        key = kept.trial.case, kept.trial.variant, kept.trial.number
        self._costs[trial_of_run(kept.trial.run_id)] = kept.trial.all_cost_usd
        for grade in kept.trial.grades:
            self._judging |= {("", vote.run_id): vote.cost_usd for vote in grade.votes}
            self._judging |= {(grade.grader, judge.judge): judge.cost_usd for judge in grade.measured}
        known = self._best.get(key)
        if known is None or (kept.trial.attempts, kept.revision) > (known.trial.attempts, known.revision):
            self._best[key] = kept
            self.changes += 1
            return True
        return False

    def _obey(self) -> None:
        """Read all orders in their sequence."""
        self._base.clear()
        self._cancelled.clear()
        self.cancelled = False
        self.changes, self.ordered = self.changes + 1, True
        self.suites = [self.begun.suite]
        for _, order in sorted(self._orders.items()):
            match order.kind, order.trial:
                case "requeue", (case, variant, number):
                    self._base[case, variant, number] = max(order.attempt, self._base.get((case, variant, number), 0))
                    self._cancelled.discard((case, variant, number))
                case "cancel", (case, variant, number):
                    self._cancelled.add((case, variant, number))
                case "cancel", None:
                    self.cancelled = True
                    self._cancelled.update(self.begun.keys)
                case "regrade", None:
                    self.suites.append(order.suite or self.suites[-1])
                case _:
                    pass

    def kept(self, key: Key) -> Kept | None:
        """Return the attempt that counts, if one has ended since the trial was last requeued."""
        best = self._best.get(key)
        return best if best is not None and best.trial.attempts > self._base.get(key, 0) else None

    def is_cancelled(self, key: Key) -> bool:
        """Whether the trial was cancelled, and not requeued since."""
        return key in self._cancelled

    def stale(self, kept: Kept) -> bool:
        """Whether an attempt was graded by graders that no longer count."""
        return kept.graders < len(self.suites) - 1 and kept.trial.standing not in ("machinery", "cancelled")

    def done(self, key: Key) -> bool:
        """Whether nothing is left to do for a trial."""
        kept = self.kept(key)
        if kept is None or self._to_retry(key, kept):
            return self.is_cancelled(key)
        return not self.stale(kept)

    def _to_retry(self, key: Key, kept: Kept) -> bool:
        return kept.trial.standing == "machinery" and kept.trial.attempts - self._base.get(key, 0) <= self.begun.retries

    def next(self, key: Key) -> tuple[int, str]:
        """Return the number of the next attempt, from 1, and the id of its run."""
        case, variant, number = key
        best, kept = self._best.get(key), self.kept(key)
        attempt = max(self._base.get(key, 0), best.trial.attempts if best is not None else 0) + 1
        run_id = trial_id(self.begun.id, variant, case, number, attempt - 1)
        return attempt, kept.trial.run_id if kept is not None and kept.continues else run_id

    def spent(self, costs: Mapping[str, float]) -> float:
        """Return what all attempts cost, with their users and judges, in USD; `costs` are those of runs: an attempt that failed may not know them.

        A verdict counts once. One that also served to measure its judge counts in that, too.
        """
        known = dict[str, float]()
        for run_id, cost in costs.items():
            known[trial_of_run(run_id)] = known.get(trial_of_run(run_id), 0.0) + cost
        attempts = sum(max(known.get(run_id, 0.0), self._costs.get(run_id, 0.0)) for run_id in {**known, **self._costs})
        return attempts + sum(self._judging.values())

    # Writing ----------------------------------------------------------------------------------------------------------------------

    async def keep(self, kept: Kept, *, together_s: float = 0.0) -> None:
        """Keep an attempt that has ended, durably; it counts here at once. What several tasks keep within that time is written together."""
        self._fold(kept)
        self._pending.append(kept)
        await asyncio.sleep(together_s)
        async with self._writing:
            if not any(one is kept for one in self._pending):  # another task has written it
                return
            batch, self._pending = self._pending, list[Kept]()
            try:
                await self._write(batch)
            except BaseException:
                self._pending[:0] = batch
                raise

    async def _write(self, batch: list[Kept]) -> None:
        self._small.append(await self._put(data := msgspec.json.encode(batch)))
        self._alone += batch
        self._size += len(data)
        for kept in batch:
            if self._best[kept.trial.case, kept.trial.variant, kept.trial.number] is kept:
                self.tell(kept.trial)
        if self._size >= _MOST_BYTES:
            await self._put(msgspec.json.encode(self._alone))
            small, self._small, self._alone, self._size = self._small, list[str](), list[Kept](), 0
            await asyncio.gather(*(self.store.delete_blob(self._place, key) for key in small))

    async def _put(self, data: bytes) -> str:
        key = f"{_TRIALS}{self._mine}-{self._number:06}"
        await self.store.put_blob(self._place, key, data)
        self._read.add(key)
        self._number += 1
        return key

    async def order(self, order: Order) -> None:
        """Keep what a person wants."""
        key = f"{_ORDER}{int(order.at.timestamp() * 1e6):020}-{self._mine}-{len(self._orders):06}"
        await self.store.put_blob(self._place, key, msgspec.json.encode(order))
        await self.refresh()

    async def end(self, *, ended: bool) -> None:
        """Keep that the evaluation has ended, or that it has not any more."""
        if ended != (self.begun.ended is not None):
            self.begun = msgspec.structs.replace(self.begun, ended=self._clock.now() if ended else None)
            await put(self.store, self.begun)

    @contextlib.asynccontextmanager
    async def claimed(self, key: Key) -> AsyncGenerator[None]:
        """Have a trial alone, and know what was kept of it. Raise `RunBusy` while another process or task works on it."""
        name = f"{self._place}-{sha256(msgspec.json.encode(key)).hexdigest()[:24]}"
        here = set[str]()
        with contextlib.suppress(TypeError):  # a store without weak references: only one engine may use it
            here = _CLAIMED.setdefault(self.store, here)
        if name in here:
            raise RunBusy(name, "this process")
        here.add(name)
        try:
            await self.store.claim(name)
            try:
                await self.refresh()
                yield
            finally:
                await asyncio.shield(give_back(self.store, name))
        finally:
            here.discard(name)


def read_begun(data: bytes | None, name: str) -> Begun:
    """Return the evaluation that the store keeps under a name. Raise `CorruptLog` for anything else."""
    begun: Begun = _read(data, Begun, name)
    if begun.id != name:
        raise CorruptLog(INDEX, 0, f"what the store keeps as evaluation {name!r} is {begun.id!r} by its own words; begin another one")
    return begun


def _read(data: bytes | None, kind: Any, id: str) -> Any:  # noqa: A002 - as everywhere
    try:
        return msgspec.json.decode(data or b"", type=kind)
    except (ValueError, TypeError, RecursionError) as error:  # msgspec's errors are ValueErrors
        why = f"what the store keeps of evaluation {id!r} cannot be read ({error}); its runs are not affected: begin another one"
        raise CorruptLog(place_of(id), 0, why) from error
