"""The laws of the design as checks of a log: what must hold of any run, whatever happened to it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from itertools import pairwise

from detent.core import events as e
from detent.core.budget import NOTHING, Usage
from detent.core.codec import read_log, read_record
from detent.core.fold import evolve, fold
from detent.core.records import Record
from detent.core.settle import REASONS
from detent.core.state import LEGAL_PASS, LEGAL_RUN, RunState
from detent.running.states import dump_state, load_state


def check_laws(lines: Sequence[bytes], *, live: Sequence[RunState] = (), every: int = 1) -> RunState:
    """Check a log against every law that can be seen in it; return its state.

    `live` are states that engines had while they worked; `every` thins out the checks that cost the square of the length.
    """
    run_id = read_record(lines[0]).envelope.run
    records = list(read_log(run_id, lines))
    states = check_fold(run_id, lines, records, every=every)
    for state in live:
        assert state == states[state.seq - 1], f"the live state after record {state.seq} is not the fold of the log"
    check_transitions(states)
    check_exits(records)
    check_once(records)
    check_order(states[-1])
    check_usage(records, states[-1])
    return states[-1]


def check_fold(run_id: str, lines: Sequence[bytes], records: Sequence[Record], *, every: int = 1) -> list[RunState]:
    """Law 1: every prefix folds to the same state, at once, step by step, on a branch, and from a snapshot of any prefix."""
    states: list[RunState] = []
    for record in records:
        states.append(evolve(states[-1] if states else RunState(run_id=run_id), record))
    for k in range(1, len(records) + 1):
        if k % every and k != len(records):
            continue
        assert fold(read_log(run_id, lines[:k])) == states[k - 1], f"the fold of {k} records differs from folding step by step"
        kept = load_state(dump_state(states[k - 1]), RunState)
        assert kept == states[k - 1], f"the state after {k} records does not survive serialisation"
        if k < len(records):
            assert evolve(states[k - 1], records[k]) == states[k], f"record {k + 1} gives another state on a branch"
            assert fold(records[k:], kept) == states[-1], f"a snapshot after {k} records leads to another state"
    return states


def check_transitions(states: Sequence[RunState]) -> None:
    """Only legal moves of the status, of the run and of each of its passes."""
    before = ""
    for state in states:
        assert state.status == before or state.status in LEGAL_RUN[before], f"{before} -> {state.status}"
        before = state.status
    for earlier, later in pairwise(states):
        assert later.seq == earlier.seq + 1
        for scope, now in later.passes.items():
            was = earlier.passes.get(scope)
            if was is not None and was.status != now.status:
                reopened = was.status in ("done", "failed")
                assert now.status in LEGAL_PASS[was.status] or (reopened and later.openings > earlier.openings), (
                    f"{was.status} -> {now.status}"
                )
            if was is not None:
                assert now.iteration in (was.iteration, was.iteration + 1)
                assert list(now.steps)[: len(was.steps)] == list(was.steps), "the transcript only grows"


def check_exits(records: Sequence[Record]) -> None:
    """Law 6: one exit an opening, nothing but the allowed after it, an output exactly when completed, a reason of the closed list."""
    after = (
        e.RunReopened,
        e.AnswerRefused,
        e.ToolReconciled,
        e.Erased,
        e.MemoryProposed,
        e.MemoryWritten,
        e.MemorySuperseded,
        e.MemoryTombstoned,
    )
    finished = False
    for record in records:
        event = record.event
        if finished:
            assert isinstance(event, after), f"{type(event).__name__} after RunFinished"
        if isinstance(event, e.RunFinished):
            finished = True
            assert REASONS[event.reason] == event.status
            if event.status == "completed":
                assert event.output is not None
                assert not isinstance(event.output, str) or event.output.strip()
                assert not event.error
            else:
                assert event.output is None
        if isinstance(event, e.RunReopened):
            finished = False


def check_once(records: Sequence[Record]) -> None:
    """Laws 2, 3 and 7: one outcome a call, none run again after it, none run that was not allowed, one key and digest over attempts."""
    outcome: set[str] = set()
    allowed: set[str] = set()
    keys: dict[str, tuple[str, str]] = {}
    attempts: dict[str, int] = {}
    for record in records:
        match record.event:
            case e.PolicyDecided(call=call, decision=decision):
                assert call not in outcome
                allowed.discard(call)
                if decision == "allow":
                    allowed.add(call)
            case e.ApprovalResolved(call=call, decision="approved"):
                allowed.add(call)
            case e.ApprovalEdited(call=call):
                allowed.discard(call)
            case e.ToolStarted(call=call, key=key, digest=digest, attempt=attempt) as event:
                assert call not in outcome, f"{call} is run again after its outcome"
                assert call in allowed, f"{call} runs without having been allowed"
                assert keys.setdefault(call, (key, digest)) == (key, digest), f"{call} changed its idempotency key"
                assert attempt == attempts.get(call, 0) + 1 or (attempt == 2 and event.previous is not None and effect_free(event))
                attempts[call] = attempt
            case e.ToolFinished(call=call) as event:
                assert not event.digest or call in allowed, f"{call} ran without having been allowed"
                assert call not in outcome, f"{call} has two outcomes"
                outcome.add(call)
            case e.ToolReconciled(call=call, outcome=what, source=source) if source != "late_worker" and what != "again":
                assert call not in outcome, f"{call} has two outcomes"
                outcome.add(call)
            case e.ToolReconciled(call=call, source="late_worker"):
                outcome.add(call)
            case _:
                pass


def check_order(state: RunState) -> None:
    """Results stand in the order of their indices, each call once."""
    for one in state.passes.values():
        places = [(item.iteration, int(item.call_id.rsplit(".", 1)[1])) for item in one.results]
        assert places == sorted(places), "results are not in the order of call indices"
        assert len(set(places)) == len(places), "a call has two results"
        assert [i for i in one.steps if i.kind == "tool"] == list(one.results)


def check_usage(records: Sequence[Record], state: RunState) -> None:
    """What the run used is the sum of what its records say."""
    told, begun, metered, reserved = NOTHING, frozenset[str](), frozenset[str](), dict[str, Usage]()
    for record in records:
        event = record.event
        if isinstance(event, e.TurnStarted):
            told = told.plus(Usage(iterations=1))
        elif isinstance(event, e.ToolStarted) or (isinstance(event, e.ToolFinished) and event.digest):
            told, begun = told.plus(Usage(tool_calls=event.call not in begun)), begun | {event.call}
        if isinstance(event, e.ModelCallStarted):
            reserved[event.call] = event.reserved
            metered |= {record.envelope.scope} if event.call and event.purpose == "plan" else frozenset()
        elif isinstance(event, e.ModelCallFinished | e.ModelCallFailed):
            del reserved[event.call]
        elif isinstance(event, e.RunResumed | e.RunFinished):  # what a crash left open
            told, reserved = reduce(Usage.plus, reserved.values(), told), {}
        elif isinstance(event, e.TurnStarted):
            metered -= {record.envelope.scope}
        if isinstance(event, e.Planned | e.PlanRejected):
            told = told if record.envelope.scope in metered else told.plus(event.usage)
            metered -= {record.envelope.scope}
        elif isinstance(event, e.ModelCallFinished | e.ModelCallFailed | e.ContextCompacted | e.EffectRecorded | e.SubagentJoined):
            told = told.plus(event.usage)
    used = state.usage
    for field in ("iterations", "tool_calls", "input_tokens", "output_tokens", "cached_tokens", "reasoning_tokens"):
        assert getattr(used, field) == getattr(told, field), f"{field}: used {getattr(used, field)}, records say {getattr(told, field)}"
    failures = sum(1 for r in records if isinstance(r.event, e.PlanRejected))
    failures += sum(
        1 for r in records if isinstance(r.event, e.ToolFinished) and r.event.error is not None and r.event.error.code != "not_run"
    )
    failures += sum(
        1
        for r in records
        if isinstance(r.event, e.ToolReconciled) and r.event.source != "late_worker" and r.event.outcome in ("told", "not_happened")
    )
    failures += sum(
        1
        for r in records
        if isinstance(r.event, e.ToolReconciled)
        and r.event.source != "late_worker"
        and r.event.outcome == "happened"
        and r.event.error is not None
    )
    assert used.failures == failures, f"failures: used {used.failures}, records say {failures}"
    assert sum(p.usage.total_tokens for p in state.passes.values()) == used.total_tokens


def effect_free(event: e.ToolStarted) -> bool:
    """Whether the call only reads, so that its first attempt has no record."""
    return event.side_effect in ("none", "read")
