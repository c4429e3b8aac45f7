"""Grades recorded runs as they would have been decided: with another policy, guard or budget, up to the first call that would be decided otherwise.

Rule: nothing is executed, and nobody guesses. A grade of the part that is the same counts only where nothing after it could change it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import takewhile

from detent.core.records import Record
from detent.core.state import RunState
from detent.evals.folding import folded
from detent.evals.graders import grade_by
from detent.evals.grades import Grade, Graded, Grader, Judge, Verdict, unsaid
from detent.evals.suites import Case
from detent.history.backtest import REFUSING, Change

STANDS: dict[str, Verdict] = {
    "forbidden": "failed", "at_most": "failed", "no_repeats": "failed", "no_violations": "failed",
    "tools_used": "passed", "order": "passed", "arguments": "passed",
}  # fmt: skip
"""The verdict that more calls cannot change, by kind of grader."""


def changes_in(records: Sequence[Record], changed: Mapping[tuple[str, int], Change]) -> list[Change]:
    """Return the changes of decisions, by run and sequence, that these records have: those of a fork's ancestors count for it, too."""
    places = ((one.envelope.run, one.envelope.seq) for one in records)
    return [changed[place] for place in places if place in changed]


async def replayed(
    case: Case, records: Sequence[Record], graders: Sequence[tuple[Grader, Judge]], changes: Sequence[Change]
) -> tuple[tuple[Grade, ...], RunState]:
    """Return the grades of a run with these changes, in their order, and its state before the first; graders see that call as it would have been decided."""
    first = changes[0]
    same = list(takewhile(lambda one: (one.envelope.run, one.envelope.seq) != (first.run_id, first.sequence), records))
    tracer = folded(same)
    of = Graded(case=case, records=same, state=tracer.state, read=tracer)
    for call in of.calls:
        if call.call_id == first.call_id:
            call.decision, call.rule, call.decided = first.new, first.new_rule, first.reason
            call.attempts = int(first.new == "allow" and first.old in REFUSING)
    grades: list[Grade] = []
    beyond = f"{first.tool} ({first.call_id}) would be decided otherwise: {first.old} -> {first.new}; what would come after it is unknown"
    for grader, judge in graders:
        grade = await grade_by(grader, judge, of) if grader.kind in STANDS else unsaid(grader, beyond)
        grades.append(grade if grade.verdict == STANDS.get(grader.kind) else unsaid(grader, beyond))
    return tuple(grades), tracer.state
