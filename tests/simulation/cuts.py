"""Faults put in on purpose: each takes one guard out of the engine, or of a store, for as long as the `with` lasts.

`scripts/schedules --cuts` says after how many schedules each is found. What no schedule finds, the simulation does not see.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Generator
from typing import Any

import msgspec

from detent.core import events as e
from detent.core import fold
from detent.core.errors import Conflict, StoreError
from detent.history import upkeep
from detent.kernel import deciding, execution, journal
from detent.kernel.context import KernelContext
from detent.kernel.journal import Journal
from detent.metering import prepaid
from detent.ports import Reservation, Verdict
from detent.running import advancing, children, delegating, driving, family, hiding, inbox, late, remembering, reopening, rules, snapshots
from detent.running.advancing import Advancing
from detent.running.snapshots import SnapshotJournal
from simulation.disks import DiskStore
from simulation.families import DiskMemory
from simulation.schedule import Outcome, Setting, run_schedule, tidy

replace = msgspec.structs.replace
Cut = Callable[[], list[tuple[Any, str, Any]]]
CUTS: dict[str, Cut] = {}
WIDE: set[str] = set()
"""Those that only a tree of runs, or a memory, meets."""


def cut(make: Cut) -> Cut:
    """Enter a fault: a function that returns what is to be put in whose place."""
    CUTS[make.__name__] = make
    return make


def wide(make: Cut) -> Cut:
    """Enter a fault of trees of runs, or of the memory."""
    WIDE.add(make.__name__)
    return cut(make)


def setting_of(name: str) -> Setting:
    """Return the setting that may find a fault."""
    return "wide" if name in WIDE else "whole"


@contextlib.contextmanager
def applied(name: str) -> Generator[None]:
    """Put a fault in."""
    before: list[tuple[Any, str, Any]] = []
    try:
        for where, what, instead in CUTS[name]():
            before.append((where, what, where.__dict__[what]))
            setattr(where, what, instead)
        yield
    finally:
        for where, what, known in reversed(before):
            setattr(where, what, known)


def found_by(name: str, *, first: int = 0, most: int = 10_000) -> tuple[int, Outcome | None]:
    """Return the first seed whose schedule finds a fault that the same schedule does not meet without it, and what it says."""
    for seed in range(first, first + most):
        tidy(seed)
        outcome = with_fault(name, seed)
        if outcome.promise and not run_schedule(seed, setting=setting_of(name)).promise:
            return seed, outcome
    return first + most, None


def with_fault(name: str, seed: int) -> Outcome:
    """Run one schedule with a fault; raise `AssertionError` where the fault breaks no promise but Python: it names what is there no more."""
    with applied(name):
        outcome = run_schedule(seed, setting=setting_of(name))
    fits = not any(f"{error.__name__}: " in outcome.what for error in (TypeError, AttributeError, NameError))
    assert fits, f"{name} does not fit the engine any more: {outcome.what}"
    return outcome


def _nothing(*_: Any, **__: Any) -> None:
    return None


async def _nothing_async(*_: Any, **__: Any) -> None:
    return None


async def _no_forks(*_: Any) -> dict[str, int]:
    return {}


# Journal ------------------------------------------------------------------------------------------------------------------------


def _last_is(self: Journal, kind: bytes) -> bool:
    return bool(self._lines) and b'"type":"%b"' % kind in self._lines[-1]


@cut
def an_intent_is_not_committed() -> list[Any]:
    known = Journal.commit

    async def commit(self: Journal, **options: Any) -> None:
        if not _last_is(self, b"tool_started"):
            await known(self, **options)

    return [(Journal, "commit", commit)]


@cut
def an_intent_is_not_durable() -> list[Any]:
    known = Journal.commit

    async def commit(self: Journal, *, durable: bool = False, intent: bool = False) -> None:
        await known(self, durable=durable and not intent, intent=intent)

    return [(Journal, "commit", commit)]


@cut
def an_end_is_not_durable() -> list[Any]:
    known = Journal.commit

    async def commit(self: Journal, *, durable: bool = False, intent: bool = False) -> None:
        await known(self, durable=durable and not (_last_is(self, b"run_finished") or _last_is(self, b"run_waiting")), intent=intent)

    return [(Journal, "commit", commit)]


@cut
def an_intent_is_left_out() -> list[Any]:
    return [(execution, "begins_quietly", lambda _spec: True)]


@cut
def a_conflict_is_swallowed() -> list[Any]:
    known = DiskStore.append

    async def append(self: DiskStore, *args: Any, **options: Any) -> None:
        with contextlib.suppress(Conflict):
            await known(self, *args, **options)

    return [(DiskStore, "append", append)]


@cut
def an_append_is_not_fenced() -> list[Any]:
    known = DiskStore._append

    def append(self: DiskStore, run_id: str, expected: int, *others: Any) -> None:
        run = self.disk.runs.get(run_id)
        known(self, run_id, len(run.records) if run is not None else 0, *others)

    return [(DiskStore, "_append", append)]


@cut
def a_busy_store_counts_as_done() -> list[Any]:
    known = Journal.commit

    async def commit(self: Journal, **options: Any) -> None:
        with contextlib.suppress(StoreError):
            await known(self, **options)

    return [(Journal, "commit", commit)]


@cut
def the_chain_forgets_what_was_before() -> list[Any]:
    known = journal.seal
    return [
        (journal, "seal", lambda env, body, *, previous, salt: known(env, body, previous="" if env.seq % 5 == 0 else previous, salt=salt))
    ]


@cut
def a_late_outcome_is_not_recorded() -> list[Any]:
    return [(advancing, "record_late", _nothing_async)]


@cut
def a_late_outcome_is_of_any_attempt() -> list[Any]:
    known = late.append_late
    return [(late, "append_late", lambda run_id, outcome, *others: known(run_id, replace(outcome, attempt=0), *others))]


# Claims -------------------------------------------------------------------------------------------------------------------------


@cut
def a_claim_is_not_taken() -> list[Any]:
    return [(DiskStore, "claim", _nothing_async)]


@cut
def a_claim_is_taken_from_the_living() -> list[Any]:
    return [(DiskStore, "lives", lambda *_: False)]


@cut
def an_append_is_not_fenced_by_its_claim() -> list[Any]:
    return [(DiskStore, "refuse_without_claim", _nothing)]


@cut
def an_erasure_needs_no_claim() -> list[Any]:
    known = DiskStore.erase

    async def erase(self: DiskStore, run_id: str, tombstone: Any, *, head: Any, claim: int | None = None) -> None:
        await known(self, run_id, tombstone, head=head)

    return [(DiskStore, "erase", erase), (upkeep, "_held_forks", _no_forks)]


@cut
def a_claim_is_never_given_back() -> list[Any]:
    return [(advancing, "give_back", _nothing_async)]


@cut
def a_claim_is_given_back_at_once() -> list[Any]:
    known = Advancing.__aenter__

    async def enter(self: Advancing) -> Advancing:
        entered = await known(self)
        await self.parts.store.release(self.run_id)
        entered._claim = None  # else each of its appends is refused
        return entered

    return [(Advancing, "__aenter__", enter)]


# Inbox --------------------------------------------------------------------------------------------------------------------------


@cut
def an_answer_is_consumed_and_not_recorded() -> list[Any]:
    known = inbox.take

    async def take(signal: Any, run: Any, *others: Any) -> None:
        if signal.kind == "reply":
            run.journal.consume(signal.id)
        else:
            await known(signal, run, *others)

    from detent.running import live

    return [(live, "take", take)]


@cut
def an_answer_is_recorded_and_not_consumed() -> list[Any]:
    return [(Journal, "consume", _nothing)]


@cut
def an_answer_is_not_posted() -> list[Any]:
    return [(DiskStore, "post", _nothing_async)]


@cut
def a_denial_counts_as_consent() -> list[Any]:
    known = inbox.event_of

    def event_of(signal: Any, state: Any) -> Any:
        event = known(signal, state)
        return replace(event, decision="approved") if isinstance(event, e.ApprovalResolved) else event

    return [(inbox, "event_of", event_of)]


@cut
def one_person_is_enough_for_two() -> list[Any]:
    decide, request = deciding.verdict_on, deciding.request_of

    def verdict_on(frozen: Any, call: Any, policy: Any, state: Any) -> Verdict:
        verdict = decide(frozen, call, policy, state)
        return replace(verdict, decision="allow") if call.approved_by else verdict

    return [
        (deciding, "verdict_on", verdict_on),
        (deciding, "request_of", lambda *args, **more: replace(request(*args, **more), approvers=1)),
    ]


@cut
def a_cancellation_is_moot() -> list[Any]:
    known = rules.moot
    return [(rules, "moot", lambda signal, state: signal.kind == "cancel" or known(signal, state))]


@cut
def a_name_is_lost() -> list[Any]:
    known = inbox.event_of
    return [(inbox, "event_of", lambda signal, state: known(replace(signal, by="somebody"), state))]


# Settle -------------------------------------------------------------------------------------------------------------------------


def _settles(make: Callable[[Any], e.ToolReconciled | None]) -> list[Any]:
    async def settle_(call: Any, context: KernelContext) -> None:
        if (event := make(call)) is not None:
            context.run.record(context.scope, event)
            await context.commit(durable=True)

    return [(execution, "_settle", settle_)]


@cut
def a_doubt_is_tried_again() -> list[Any]:
    return _settles(lambda call: e.ToolReconciled(call=call.call_id, outcome="again", source="retry"))


@cut
def a_doubt_counts_as_done() -> list[Any]:
    done = msgspec.Raw(b'"done"')
    return _settles(lambda call: e.ToolReconciled(call=call.call_id, outcome="happened", source="reconcile", result=done))


@cut
def a_doubt_counts_as_not_done() -> list[Any]:
    return _settles(lambda call: e.ToolReconciled(call=call.call_id, outcome="again", source="reconcile"))


@cut
def a_doubt_is_passed_over() -> list[Any]:
    return _settles(lambda call: None)


@cut
def a_key_is_another_each_time() -> list[Any]:
    count = itertools.count()
    known = execution.key_of
    return [(execution, "key_of", lambda run, call, digest: known(run, call, f"{digest}{next(count)}"))]


@cut
def open_doubts_are_not_listed() -> list[Any]:
    known = driving.finish

    def close(run: Any, settled: Any) -> None:
        settled = driving.honest(run.state, settled)
        for scope in run.state.passes:
            driving.end_pass(run, scope, settled)
        run.journal.record(replace(known(run.state, settled), in_doubt=()))

    return [(driving, "_close", close)]


@cut
def people_are_not_asked() -> list[Any]:
    from simulation.inputs import Policy

    known = Policy.decide

    def decide(self: Any, call: Any, state: Any) -> Verdict:
        verdict = known(self, call, state)
        return replace(verdict, decision="allow") if verdict.decision == "require_approval" else verdict

    return [(Policy, "decide", decide)]


@cut
def a_cancelled_run_goes_on() -> list[Any]:
    known = fold._apply

    def apply(state: Any, event: Any, envelope: Any) -> Any:
        return state if isinstance(event, e.CancelRequested) else known(state, event, envelope)

    return [(fold, "_apply", apply)]


# Reservations and bounds ----------------------------------------------------------------------------------------------------------


@cut
def a_bound_is_not_looked_at() -> list[Any]:
    from detent.kernel import runner

    return [(KernelContext, "refuse_past_bound", _nothing), *([(runner, "reached", _nothing)] if "reached" in runner.__dict__ else [])]


@cut
def every_reservation_is_granted() -> list[Any]:
    known = Reservation.balance
    return [(Reservation, "balance", lambda self, spent, held: replace(known(self, spent, held), granted=True))]


@cut
def what_is_reserved_is_kept() -> list[Any]:
    return [(Journal, "release", _nothing), (prepaid.Prepaid, "left", _nothing), (prepaid.Prepaid, "give_back", _nothing_async)]


@cut
def nobody_is_charged() -> list[Any]:
    known = SnapshotJournal._beside

    def beside(self: Any, charged: Any, state: Any, lines: Any) -> Any:
        return {name: part for name, part in known(self, charged, state, lines).items() if name != "spent"}

    return [(SnapshotJournal, "_beside", beside)]


@cut
def everything_is_charged_again() -> list[Any]:
    known = SnapshotJournal._beside

    def beside(self: Any, before: Any, state: Any, lines: Any) -> Any:
        return known(self, replace(before, usage=replace(before.usage, tool_calls=0)), state, lines)

    return [(SnapshotJournal, "_beside", beside)]


# Snapshots ------------------------------------------------------------------------------------------------------------------------


@cut
def a_snapshot_has_no_results() -> list[Any]:
    return [(snapshots.Histories, "finished", _nothing)]


@cut
def what_follows_a_snapshot_is_not_read() -> list[Any]:
    known = snapshots.state_of

    def state_of(run_id: str, lines: Any, snapshot: Any, base: Any = None) -> Any:
        state = snapshots.restored(run_id, lines, *snapshot) if snapshot is not None else None
        return state or known(run_id, lines, snapshot, base)

    return [(snapshots, "state_of", state_of)]


@cut
def a_snapshot_of_another_log_counts() -> list[Any]:
    known = snapshots.restored

    def restored(run_id: str, lines: Any, seq: int, data: bytes) -> Any:
        if not 0 < seq <= len(lines):
            return None
        ended = lines[seq - 1]
        state = snapshots.load_state(data, snapshots.RunState)
        forged = [*lines[: seq - 1], ended[: ended.rindex(b'"digest":')] + b'"digest":"%b"}' % state.digest.encode(), *lines[seq:]]
        links = snapshots.links
        snapshots.links = lambda _run, _lines: links(run_id, lines[:seq])  # type: ignore[assignment]
        try:
            return known(run_id, forged, seq, data)
        finally:
            snapshots.links = links

    return [(snapshots, "restored", restored)]


# Reopening ------------------------------------------------------------------------------------------------------------------------


@cut
def reopening_forgets_what_was_used() -> list[Any]:
    known = fold._reopened

    def reopened(state: Any, event: Any) -> Any:
        return replace(known(state, event), usage=type(state.usage)())

    return [(fold, "_reopened", reopened)]


@cut
def any_run_is_reopened() -> list[Any]:
    return [(reopening, "refuse_reopening", _nothing)]


# Artifacts ------------------------------------------------------------------------------------------------------------------------


@cut
def an_artifact_is_not_kept() -> list[Any]:
    return [(DiskStore, "put_blob", _nothing_async)]


@cut
def an_artifact_is_cut_short() -> list[Any]:
    known = DiskStore.put_blob
    return [(DiskStore, "put_blob", lambda self, run_id, key, data: known(self, run_id, key, data[:-1]))]


@cut
def an_artifact_is_kept_after_its_record() -> list[Any]:
    known, commit = DiskStore.put_blob, Journal.commit
    later: list[Any] = []

    async def put_blob(self: DiskStore, run_id: str, key: str, data: bytes) -> None:
        later.append((self, run_id, key, data))

    async def committed(self: Journal, **options: Any) -> None:
        await commit(self, **options)
        while later:
            await known(*later.pop())

    return [(DiskStore, "put_blob", put_blob), (Journal, "commit", committed)]


@cut
def an_artifact_has_the_key_of_its_preview() -> list[Any]:
    known = hiding.sha256
    return [(hiding, "sha256", lambda data: known(data[:10]))]


# Children -------------------------------------------------------------------------------------------------------------------------


async def _no_ends(*_: Any) -> list[Any]:
    return []


@wide
def a_join_is_lost() -> list[Any]:
    return [(snapshots, "posts_of", lambda *_: []), (advancing, "ended_children", _no_ends)]


@wide
def a_child_is_another_each_time() -> list[Any]:
    count = itertools.count()
    known = delegating.child_id
    return [(delegating, "child_id", lambda run_id, call: f"{known(run_id, call)}{next(count)}")]


@wide
def a_child_begins_before_its_parent_says_so() -> list[Any]:
    async def begins(*_: Any) -> bool:
        return True

    return [(family, "begins", begins)]


@wide
def a_child_that_is_there_is_begun_again() -> list[Any]:
    known = children.ChildrenHere._begun

    async def begun(self: Any, advancing_: Any, *, starts: Any, alone: bool) -> Any:
        run = self._runtime.store.disk.runs.get(advancing_.run_id)
        if run is not None:
            run.records.clear()
        return await known(self, advancing_, starts=starts, alone=alone)

    async def nothing(*_: Any) -> None:
        return None

    return [(children.ChildrenHere, "_begun", begun), (DiskStore, "head", nothing)]


@wide
def nothing_is_reserved_for_a_child() -> list[Any]:
    from detent.core.budget import NOTHING

    return [(delegating, "sums_of", lambda _budget: NOTHING)]


@wide
def a_reservation_is_given_back_early() -> list[Any]:
    from detent.core.budget import NOTHING

    known = fold._apply

    def apply(state: Any, event: Any, envelope: Any) -> Any:
        after = known(state, event, envelope)
        return replace(after, held=NOTHING) if isinstance(event, e.RunWaiting) else after

    return [(fold, "_apply", apply)]


@wide
def a_child_has_the_bounds_of_its_parent() -> list[Any]:
    return [(delegating, "portion", lambda first, *_, **__: first)]


@wide
def what_a_child_used_is_not_charged() -> list[Any]:
    from detent.core.budget import NOTHING

    known = inbox.joins

    async def joins(*args: Any, **options: Any) -> Any:
        joined = await known(*args, **options)
        return None if joined is None else replace(joined, usage=NOTHING)

    return [(inbox, "joins", joins)]


@wide
def a_parent_ends_before_its_children() -> list[Any]:
    return [(driving, "waited_for", lambda _state: []), (driving, "departures", lambda _state: [])]


@wide
def a_join_names_another_end() -> list[Any]:
    known = inbox.joins

    async def joins(*args: Any, **options: Any) -> Any:
        joined = await known(*args, **options)
        return None if joined is None else replace(joined, sequence=max(1, joined.sequence - 1))

    return [(inbox, "joins", joins)]


# Memory ---------------------------------------------------------------------------------------------------------------------------


@wide
def an_item_is_not_kept() -> list[Any]:
    async def change(self: DiskMemory, steps: Any, vectors: Any = None) -> Any:
        return await self._look(steps)

    return [(DiskMemory, "_change", change)]


@wide
def an_item_is_another_each_time() -> list[Any]:
    count = itertools.count()
    known = remembering.item_id
    return [(remembering, "item_id", lambda run_id, call: known(run_id, f"{call}{next(count)}"))]
