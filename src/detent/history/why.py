"""`engine.why`: why a run does not move now, from what the store has. Nothing is changed.

Each reason is found by one function of `FACTS`. To say one more thing, add a function there: it gets the `Case` and yields `Reason`s.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from datetime import datetime
from typing import Literal

import msgspec

from detent.core.agent import Host
from detent.core.errors import Explained, RunBusy
from detent.core.records import RunHead
from detent.core.state import RunState
from detent.metering.accounts import held_by
from detent.ports import DueQuery, DueRuns, Fleets, Signal, give_back, wakes
from detent.ports.holding import kept_holds
from detent.ports.options import check_fields
from detent.running.attempts import tries_of
from detent.running.cards import WorkerCard
from detent.running.fleet import cards_of
from detent.running.left_runs import left_by
from detent.running.overseeing import waits_of
from detent.running.runtime import Runtime
from detent.running.versions import code_of, shares_in

Code = Literal[
    "ended",
    "claimed",
    "dead_letter",
    "held",
    "waits",
    "answered",
    "not_due",
    "version",
    "no_worker",
    "left",
    "attempts",
    "key_full",
    "behind",
    "nobody",
]
"""What a reason is about. `held`: its agent, tenant or tool is paused, or its provider's account is closed. `no_worker`: none with its version is there.
`left`: a worker left it because something is missing there. `behind`: other runs of its key come first.
"""
PAGE = 1_000


class Reason(msgspec.Struct, metaclass=Explained, frozen=True, kw_only=True):
    """One reason why a run does not move. `command` are the words of the `detent` command that changes it, if one does."""

    code: Code
    what: str
    command: tuple[str, ...] = ()

    __post_init__ = check_fields


class Why(msgspec.Struct, metaclass=Explained, frozen=True, kw_only=True):
    """Why a run does not move now: the reasons, the most important first."""

    run_id: str
    status: str
    reasons: tuple[Reason, ...]

    __post_init__ = check_fields


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """The facts about one run: its state and listing entry, its waiting signals, who has claimed it ("": nobody), and what is due in the store."""

    runtime: Runtime
    state: RunState
    head: RunHead
    now: datetime
    signals: Sequence[Signal]
    claimed_by: str
    due: DueRuns
    host: Host | None = None

    @property
    def is_due(self) -> bool:
        """Whether a worker may take the run now: it can move by itself, or has a signal that wakes it."""
        return (self.head.wake_at is not None and self.head.wake_at <= self.now) or self.is_told

    @property
    def is_free(self) -> bool:
        """Whether nobody has it, and it neither has ended nor was given up."""
        return not self.claimed_by and not self.state.terminal and not self.state.dead_letter

    @property
    def is_told(self) -> bool:
        """Whether a signal waits that lets it move."""
        return any(wakes(signal) > bool(self.state.dead_letter) for signal in self.signals)


Fact = Callable[[Case], AsyncGenerator[Reason]]


async def why(runtime: Runtime, run_id: str, *, host: Host | None = None) -> Why:
    """Return why a run does not move now: who has it, what it waits for, what its workers lack, what comes first. Raise as `load`.

    To see who has a run, its claim is taken for a moment and given back.
    """
    state = await runtime.standing(run_id, host)
    head = await runtime.store.head(state.run_id)
    assert head is not None  # noqa: S101 - it has a state
    now = runtime.parts.clock.now()
    case = Case(
        runtime=runtime,
        state=state,
        head=head,
        now=now,
        signals=(await runtime.store.signals([state.run_id])).get(state.run_id, ()),
        claimed_by="" if state.terminal else await _holder(runtime, state.run_id),
        due=await runtime.store.due(DueQuery(now=now, tenant=host.tenant if host else None, limit=PAGE, counts=True)),
        host=host,
    )
    reasons = [reason for fact in FACTS async for reason in fact(case)]
    return Why(run_id=state.run_id, status=state.status, reasons=tuple(reasons))


async def _holder(runtime: Runtime, run_id: str) -> str:
    """Return who has claimed a run, "" if nobody has."""
    if runtime.parts.watcher.control(run_id) is not None:
        return f"this process ({runtime.parts.worker})"
    try:
        await runtime.store.claim(run_id)
    except RunBusy as busy:
        return busy.holder
    await give_back(runtime.store, run_id)
    return ""


async def _ended(case: Case) -> AsyncGenerator[Reason]:
    state = case.state
    if state.terminal:
        child = state.delegated is not None and not state.delegated.left
        again = () if child or state.status == "completed" else ("reopen", state.run_id)
        yield Reason(code="ended", what=f"it has ended: {state.status} ({state.reason})", command=again)


async def _claimed(case: Case) -> AsyncGenerator[Reason]:
    if case.claimed_by:
        since = f"its last record is from {_at(case.head.updated_at)}"
        lost = "if that process or its host is gone, the claim ends by itself, and another worker takes the run"
        yield Reason(
            code="claimed", what=f"{case.claimed_by} has claimed it and advances it; {since}; {lost}", command=("tail", case.state.run_id)
        )


async def _dead(case: Case) -> AsyncGenerator[Reason]:
    if case.state.dead_letter and not case.state.terminal:
        yield Reason(code="dead_letter", what=f"its workers gave it up: {case.state.dead_letter}", command=("reopen", case.state.run_id))


async def _held(case: Case) -> AsyncGenerator[Reason]:
    hold = held_by(case.state, await kept_holds(case.runtime.store, case.now), case.now)
    if hold is not None:
        at = "until then no call of it is begun" if hold.until is not None else "until somebody resumes it, nothing of it is begun"
        yield Reason(code="held", what=f"{(hold if case.host is None else hold.unsigned).said}; {at}", command=("resume", hold.what))


async def _waits(case: Case) -> AsyncGenerator[Reason]:
    if case.state.dead_letter:
        return
    for wait in await waits_of(case.runtime.store, case.state):
        below = "" if wait.run_id == case.state.run_id else f", in run {wait.run_id} below it"
        yield Reason(code="waits", what=f"it waits for {wait.what}{below}", command=("why", wait.run_id) if below else ())
    if case.is_told and not case.state.terminal:
        senders = ", ".join(sorted({signal.by for signal in case.signals if signal.by})) or "another run"
        yield Reason(code="answered", what=f"an answer by {senders} is in its inbox, and the run has not continued since")


async def _not_due(case: Case) -> AsyncGenerator[Reason]:
    at = case.head.wake_at
    if at is not None and at > case.now and not case.is_told:
        debounced = case.state.queued is not None and case.state.queued.not_before == at
        yield Reason(code="not_due", what=f"it {'begins' if debounced else 'can move'} at {_at(at)}, not before")


async def _version(case: Case) -> AsyncGenerator[Reason]:
    if not (version := code_of(case.state)) or case.state.terminal or case.claimed_by:
        return
    share = (await shares_in(case.runtime.store)).of.get(version)
    yield Reason(
        code="version", what=f"only workers with version {version} of the code take it{_of_share(case.state, share)}", command=("versions",)
    )


def _of_share(state: RunState, share: int | None) -> str:
    if share is None or share:
        return ""
    stays = "is pinned, so it stays there" if state.agent.upgrade == "pinned" else "moves to another version if it can continue with it"
    return f"; that version is drained, and this run {stays}"


async def _no_worker(case: Case) -> AsyncGenerator[Reason]:
    version = code_of(case.state)
    there = await _workers(case) if case.is_due and version and case.is_free else None
    if there is not None and not any(worker.version == version for worker in there):
        others = ", ".join(sorted({repr(worker.version) if worker.version else "none" for worker in there})[:10])
        so = f"the {len(there)} that are there have {others}" if there else "there is no worker at all"
        yield Reason(code="no_worker", what=f"no worker with version {version!r} is there: {so}", command=("top",))


async def _workers(case: Case) -> list[WorkerCard] | None:
    """Return the workers that are there and take runs, None if the store does not know. They say so themselves: it is passed on and decides nothing."""
    if not isinstance(case.runtime.store, Fleets):
        return None
    return [worker for worker in await cards_of(case.runtime.store) if not worker.silent and not worker.stopping]


async def _left(case: Case) -> AsyncGenerator[Reason]:
    left = await left_by(case.runtime.store, case.state.run_id)
    if left is not None and left.at >= case.head.updated_at and not case.state.terminal and not case.claimed_by:
        on = f" (version {left.version})" if left.version else ""
        yield Reason(code="left", what=f"worker {left.worker}{on} left it at {_at(left.at)}: {left.why}")


async def _attempts(case: Case) -> AsyncGenerator[Reason]:
    tries, _ = await tries_of(case.runtime.store, case.state.run_id)
    if tries.count and not case.state.terminal and not case.state.dead_letter and not case.claimed_by:
        last = f", the last by {tries.worker} at {_at(tries.last)}" if tries.last else ""
        yield Reason(
            code="attempts", what=f"{tries.count} attempts made no progress{last}: the next one follows after a pause, which grows"
        )


async def _key(case: Case) -> AsyncGenerator[Reason]:
    if not case.is_due or case.claimed_by or case.state.terminal:
        return
    key, most = key_of(case.head), case.runtime.parts.max_active_per_key
    active = case.due.active.get(key, 0)
    if most is not None and active >= most:
        yield Reason(code="key_full", what=f"{active} runs of its key {key!r} are active, and max_active_per_key is {most}")
    first = [head for head in case.due.runs if key_of(head) == key and _comes_before(head, case.head)]
    if first:
        more = "at least " if case.due.more else ""
        yield Reason(code="behind", what=f"{more}{len(first)} due runs of its key {key!r} come before it, the first is {first[0].run_id}")


async def _nobody(case: Case) -> AsyncGenerator[Reason]:
    if not case.is_due or not case.is_free:
        return
    active, there = sum(case.due.active.values()), await _workers(case)
    busy = f"the workers of this store have {active} runs in progress" if active else "no worker has a run now"
    if there is not None and not there:
        busy = f"no worker is there{f', and {active} runs are in progress' if active else ''}"
    elif there and all(0 < worker.concurrency <= worker.active for worker in there):
        busy = f"the {len(there)} workers that are there have as many runs as they take"
    yield Reason(code="nobody", what=f"it is due since {_at(_since(case))}, and nobody has taken it: {busy}", command=("worker",))


FACTS: tuple[Fact, ...] = (_ended, _dead, _claimed, _held, _waits, _not_due, _version, _no_worker, _left, _attempts, _key, _nobody)
"""What is looked at, in the order in which it is told."""


def key_of(head: RunHead) -> str:
    """Return the key with which a run takes turns."""
    return (head.queued.fair_key if head.queued is not None else "") or head.tenant


def _comes_before(one: RunHead, other: RunHead) -> bool:
    priority, others = [0 if head.queued is None else head.queued.priority for head in (one, other)]
    if one.run_id == other.run_id or one.wake_at is None or other.wake_at is None:
        return False
    return (priority, one.wake_at, one.run_id) < (others, other.wake_at, other.run_id)


def _since(case: Case) -> datetime:
    at = case.head.wake_at
    return at if at is not None and at <= case.now else case.head.updated_at


def _at(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M:%S} UTC"
