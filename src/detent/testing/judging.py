"""Judges a trial against the undisturbed run: repeated, lost or doubtful effects, another answer, a run that does not finish.

The ledger has what happened, the log has what the run knows. Each finding names the record and the call that show it, the reason if it is visible,
and what to do.
"""

from __future__ import annotations

from collections.abc import Sequence

from detent.core import events as e
from detent.core.budget import Exhausted
from detent.core.records import Record
from detent.testing.effects import effects_of
from detent.testing.ends import ended, must_be_the_same, out_of_time, past, same_end
from detent.testing.ledgers import Doing, short
from detent.testing.reports import Finding
from detent.testing.stories import story
from detent.testing.trials import Attempt, where_raised

FOREIGN = ("planner_error", "kernel_error")
"""The reasons of runs that an exception of the user's code ended."""


def findings_of(attempt: Attempt, whole: Attempt, *, seen: frozenset[str], steady: bool) -> tuple[Finding, ...]:
    """Return the findings of `attempt`; `whole` is the undisturbed run. `steady`: undisturbed runs give the same result each time."""
    if not attempt.disturbance.struck:
        return (_not_reached(attempt),)
    found = [*_ends(attempt, whole), *effects_of(attempt, whole, seen, steady=steady), *_doubts(attempt)]
    if not any(finding.kind in ("error", "stuck", "repeated", "lost", "changed") for finding in found):  # these explain another answer
        found += _answer(attempt, whole, steady=steady)
    if attempt.divergence is not None:
        found.append(
            Finding(
                kind="replay",
                what=f"the log has {short(attempt.divergence.expected, 200)}, this code gives {short(attempt.divergence.actual, 200)}",
                why="a phase, a strategy, a guard or a policy reads something that is not recorded",
                next="take time and chance from the context (`run.now()`, `run.random()`), and make everything else that it reads part of the state",
                record=attempt.divergence.sequence,
            )
        )
    found += [_unproven(one, again) for one, again in attempt.ledger.unproven(seen)]
    return tuple(found)


def _not_reached(attempt: Attempt) -> Finding:
    return Finding(
        kind="not_reached",
        what=f"the run did not reach {attempt.fault.place}; it ended {ended(attempt)}",
        why="it does not behave the same each time",
        next="give reset= to restore the world before each run, and let tools and planner depend on nothing else",
    )


# How it ended -------------------------------------------------------------------------------------------------------------------


def _ends(attempt: Attempt, whole: Attempt) -> list[Finding]:
    """Return what kept the run from finishing, or the exception that ended it."""
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
                what=f"the run does not finish: {attempt.problem or 'nothing resumes it'}",
                record=last,
                why=f"it is {state.status} after its last record" if state is not None else "it has no records",
                next=_way_out(attempt),
            )
        ]
    if state.reason in FOREIGN and (whole.state is None or whole.state.reason != state.reason):
        return [
            Finding(
                kind="error",
                what=f"the run failed ({state.reason}): {short(state.error, 300)}",
                record=last,
                why="the agent's code raised an exception that the undisturbed run does not raise",
                next=_bear(attempt),
            )
        ]
    return []


def _bear(attempt: Attempt) -> str:
    if attempt.fault.kind == "slow_model":
        return "retry failed requests: Engine(models=Models(retries=ModelRetries(...))), or a FallbackPlanner"
    return "let it handle its input here: a failed call has no content, and `item.ok` is false"


def _way_out(attempt: Attempt) -> str:
    state = attempt.state
    if state is not None and state.status == "waiting_for_reconciliation":
        return "let the tool raise ToolFailed or NotExecuted if it knows, give it a `reconcile`, or give effects= so that the simulation can check"
    return "`detent show` on such a run shows what it waits for"


def _answer(attempt: Attempt, whole: Attempt, *, steady: bool) -> list[Finding]:
    """Return the finding for a different end."""
    if same_end(attempt, whole):
        return []
    what = f"it {past(ended(attempt))}, undisturbed it {past(ended(whole))}"
    if not steady or not must_be_the_same(attempt):
        why = "the agent was told of the fault and continued from there" if steady else "it does not behave the same each time anyway"
        why = "a time limit ended it" if out_of_time(attempt) else why
        return [Finding(kind="changed", what=what, why=why)]
    parting, record = _parting(attempt.records, whole.records)
    depends = "let planner and tools depend only on the view and their arguments: anything kept in the process is gone after a crash"
    why, next_step = _exhausted(attempt) or (parting, depends)
    return [Finding(kind="answer", what=what, why=why, record=record, next=next_step)]


def _exhausted(attempt: Attempt) -> tuple[str, str] | None:
    """Return the bound that ended the run, and how to leave room for what a crash repeats; None if no bound did."""
    state = attempt.state
    if state is None or not state.dimension:
        return None
    bound = Exhausted(state.dimension, state.limit or 0, state.used or 0)
    room = f"raise {bound.option} (of the run, or of the pass that has it) so that the repeated work fits"
    if "tokens" in bound.dimension or "cost" in bound.dimension:
        reserved = "a model call that dies with its process is charged with all that it had reserved"
        room = f"give the agent `max_tokens` in model_settings, so that one call reserves less; or {room}"
        return f"{bound.said}: {reserved}", room
    return f"{bound.said}: what a crash repeats counts again", room


def _parting(records: Sequence[Record], whole: Sequence[Record]) -> tuple[str, int]:
    """Describe where two logs differ, and return the number of the record in the first one."""
    mine, theirs = story(records), story(whole)
    for (seq, one), (_, other) in zip(mine, theirs, strict=False):
        if one != other:
            return f"the logs differ at record {seq}: {short(one.decode(), 200)}; undisturbed: {short(other.decode(), 200)}", seq
    shorter = min(len(mine), len(theirs))
    seq = mine[shorter][0] if shorter < len(mine) else (mine[-1][0] if mine else 0)
    return f"the logs are the same up to record {seq}", seq


# Doubts -------------------------------------------------------------------------------------------------------------------------


def _doubts(attempt: Attempt) -> list[Finding]:
    """Return the findings for calls in doubt, by their records."""
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
                next=f"give {tool or 'the tool'} a reconcile that checks the key, or idempotent=True if it is; then no person has to answer",
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
        what=f"{one.what} ran twice with one key and the same result, and never looked at the key",
        why=f"{tool} is declared idempotent; its results do not show whether its effect happened once or twice",
        next="give simulate(effects=...), a function that returns what happened in the world",
        tool=tool,
        call_id=again.call_id,
        key=again.key,
    )
