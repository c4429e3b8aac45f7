"""What a trial shows, held against the undisturbed run: effects repeated, lost or in doubt, another answer, an end that is none.

The ledger says what happened, the log says what the run knows; each finding names the record and the call that show it, why it came
about as far as that can be seen, and what to do.
"""

from __future__ import annotations

from collections.abc import Sequence

from detent.core import events as e
from detent.core.records import Record
from detent.testing.effects import effects_of
from detent.testing.ends import ended, must_be_the_same, out_of_time, past, same_end
from detent.testing.ledgers import Doing, short
from detent.testing.reports import Finding
from detent.testing.stories import story
from detent.testing.trials import Attempt, where_raised

FOREIGN = ("planner_error", "kernel_error")
"""Reasons of a run's end that an exception of a user's code leads to."""


def findings_of(attempt: Attempt, whole: Attempt, *, seen: frozenset[str], steady: bool) -> tuple[Finding, ...]:
    """Return what is found in `attempt`; `whole` is the undisturbed one. `steady`: whether undisturbed runs come to the same each time."""
    if not attempt.disturbance.struck:
        return (_not_reached(attempt),)
    found = [*_ends(attempt, whole), *effects_of(attempt, whole, seen, steady=steady), *_doubts(attempt)]
    if not any(finding.kind in ("error", "stuck", "repeated", "lost", "changed") for finding in found):  # another answer follows from those
        found += _answer(attempt, whole, steady=steady)
    if attempt.divergence is not None:
        found.append(
            Finding(
                kind="replay",
                what=f"the log has {short(attempt.divergence.expected, 200)}, this code gives {short(attempt.divergence.actual, 200)}",
                why="a phase, a strategy, a guard or a policy reads something that is not on record",
                next="take time and chance from the context (`run.now()`, `run.random()`), and make what else it reads part of the state",
                record=attempt.divergence.sequence,
            )
        )
    found += [_unproven(one, again) for one, again in attempt.ledger.unproven(seen)]
    return tuple(found)


def _not_reached(attempt: Attempt) -> Finding:
    return Finding(
        kind="not_reached",
        what=f"the run did not come to {attempt.fault.place}; it ended {ended(attempt)}",
        why="it does not do the same each time",
        next="give reset= so that the world begins anew with each run, and let tools and planner depend on nothing else",
    )


# How it ended -------------------------------------------------------------------------------------------------------------------


def _ends(attempt: Attempt, whole: Attempt) -> list[Finding]:
    """Return what kept the run from an end, or ended it by an exception."""
    state = attempt.state
    last = attempt.records[-1].envelope.seq if attempt.records else 0
    if attempt.error is not None:
        error = attempt.error
        at = where_raised(error)
        what = f"{type(error).__name__}: {short(str(error), 300)}{f' (raised at {at})' if at else ''}"
        return [
            Finding(
                kind="error",
                what=what,
                record=last,
                why="the engine raised it to its caller",
                next="catch it where it is raised, or report it",
            )
        ]
    if state is None or not state.terminal:
        return [
            Finding(
                kind="stuck",
                what=f"the run does not finish: {attempt.problem or 'nothing takes it on'}",
                record=last,
                why=f"it is {state.status} after its last record" if state is not None else "nothing of it is on record",
                next=_way_out(attempt),
            )
        ]
    if state.reason in FOREIGN and (whole.state is None or whole.state.reason != state.reason):
        return [
            Finding(
                kind="error",
                what=f"the run failed ({state.reason}): {short(state.error, 300)}",
                record=last,
                why="code of the agent's raised where the undisturbed run did not",
                next=_bear(attempt),
            )
        ]
    return []


def _bear(attempt: Attempt) -> str:
    if attempt.fault.kind == "slow_model":
        return "let failed requests be tried again: Engine(models=Models(retries=ModelRetries(...))), or a FallbackPlanner"
    return "let it bear what it gets here: a failed call has no content, and `item.ok` says so"


def _way_out(attempt: Attempt) -> str:
    state = attempt.state
    if state is not None and state.status == "waiting_for_reconciliation":
        return "let the tool raise ToolFailed or NotExecuted where it knows, give it a `reconcile`, or give effects= so that it can be looked up"
    return "`detent show` on such a run says what it waits for"


def _answer(attempt: Attempt, whole: Attempt, *, steady: bool) -> list[Finding]:
    """Return the finding that another end is."""
    if same_end(attempt, whole):
        return []
    what = f"it {past(ended(attempt))}, undisturbed it {past(ended(whole))}"
    if not steady or not must_be_the_same(attempt):
        why = "the agent was told of the fault, and went on from there" if steady else "it does not do the same each time anyway"
        why = "a bound of time ended it" if out_of_time(attempt) else why
        return [Finding(kind="changed", what=what, why=why)]
    parting, record = _parting(attempt.records, whole.records)
    return [
        Finding(
            kind="answer",
            what=what,
            why=parting,
            record=record,
            next="let planner and tools depend on the view and their arguments alone: what is kept in the process is gone after a crash",
        )
    ]


def _parting(records: Sequence[Record], whole: Sequence[Record]) -> tuple[str, int]:
    """Return in words where two logs part, and the number of the record of the first one."""
    mine, theirs = story(records), story(whole)
    for (seq, one), (_, other) in zip(mine, theirs, strict=False):
        if one != other:
            return f"the logs part at record {seq}: {short(one.decode(), 200)}; undisturbed: {short(other.decode(), 200)}", seq
    shorter = min(len(mine), len(theirs))
    seq = mine[shorter][0] if shorter < len(mine) else (mine[-1][0] if mine else 0)
    return f"the logs are the same up to record {seq}", seq


# Doubts -------------------------------------------------------------------------------------------------------------------------


def _doubts(attempt: Attempt) -> list[Finding]:
    """Return the calls that were in doubt, by the records that say so."""
    found: list[Finding] = []
    for record in attempt.records:
        event = record.event
        if not isinstance(event, e.ToolInDoubt):
            continue
        made = [doing for doing in attempt.ledger.doings if doing.call_id == event.call]
        what = made[-1].what if made else attempt.disturbance.tools.get(event.call, event.call)
        tool = made[-1].tool.name if made else attempt.disturbance.tools.get(event.call, "")
        found.append(
            Finding(
                kind="in_doubt",
                what=f"{what}: the run cannot know whether it happened, {_settled(attempt.records, event.call)}",
                why=event.why,
                next=f"a reconcile of {tool or 'the tool'} that looks the key up, or idempotent=True where that is so, saves asking a person",
                tool=tool,
                call_id=event.call,
                key=made[-1].key if made else "",
                record=record.envelope.seq,
            )
        )
    return found


def _settled(records: Sequence[Record], call: str) -> str:
    for record in records:
        match record.event:
            case e.ToolReconciled(call=one, outcome=outcome, source=source) if one == call and source != "late_worker":
                done = {
                    "again": "it had not happened",
                    "happened": "it had happened",
                    "not_happened": "it had not happened, and the planner was told so",
                    "told": "the planner was told so",
                }
                return f"{'a person said' if source == 'person' else source}: {done.get(outcome, outcome)}"
            case _:
                pass
    return "and it was not settled"


def _unproven(one: Doing, again: Doing) -> Finding:
    tool = one.tool.name
    return Finding(
        kind="unproven",
        what=f"{one.what} ran twice under one key, with the same result, and never looked at the key",
        why=f"{tool} is declared idempotent; whether its effect is there once or twice cannot be seen from its results",
        next="give simulate(effects=...), a function that returns what happened in the world",
        tool=tool,
        call_id=again.call_id,
        key=again.key,
    )
