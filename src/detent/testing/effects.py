"""Finds repeated and lost effects of a trial, with reason and advice: compares its tool ledger with that of the undisturbed run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from detent.core import events as e
from detent.core.records import Record
from detent.testing.ends import ended, must_be_the_same, past, same_end
from detent.testing.ledgers import Doing, Effect, short
from detent.testing.reports import Finding
from detent.testing.trials import Attempt


def effects_of(attempt: Attempt, whole: Attempt, seen: frozenset[str], *, steady: bool) -> list[Finding]:
    """Return findings for effects that happened more or less often than undisturbed. `seen` are the tools whose effects the world shows."""
    mine, theirs = attempt.ledger.effects(seen), whole.ledger.effects(seen)
    more = [what for what, effect in mine.items() if what not in theirs or effect.times > theirs[what].times]
    less = [what for what, effect in theirs.items() if what not in mine or mine[what].times < effect.times]
    new = [mine[what] for what in more if what not in theirs and mine[what].in_world]
    gone = [theirs[what] for what in less if what not in mine and theirs[what].in_world]
    if new and gone:
        return _another_world(attempt, whole, new, gone, seen, steady=steady)
    found: list[Finding] = []
    for what in more:
        known = what in theirs or must_be_the_same(attempt)
        found.append(_repeated(attempt, mine[what], theirs.get(what)) if known and steady else _other(mine[what]))
    for what in less:
        found += _missing(attempt, whole, theirs[what], mine.get(what), steady=steady)
    return found


def _another_world(
    attempt: Attempt, whole: Attempt, new: Sequence[Effect], gone: Sequence[Effect], seen: frozenset[str], *, steady: bool
) -> list[Finding]:
    """Return the findings for an effect with other content, such as a changed file."""
    if attempt.state is None or not attempt.state.terminal:
        return []
    what = f"the world has {'; '.join(one.what for one in new)} instead of {'; '.join(one.what for one in gone)}"
    what = f"{what}, and the run {past(ended(attempt))}"
    if not steady or (not must_be_the_same(attempt) and not same_end(attempt, whole)):
        return [Finding(kind="changed", what=what, why="the agent was told of the fault and continued from there")]
    now, then = (Counter(doing.what for doing in one.ledger.doings if one.ledger.happened(doing, seen)) for one in (attempt, whole))
    last = new[-1].by[-1] if new[-1].by else None
    repeated, missing = list(now - then), list(then - now)
    why = f"{missing[-1]} was not done" if missing else "it was done differently than undisturbed"
    return [
        Finding(
            kind="repeated" if repeated else "lost",
            what=what,
            why=f"{repeated[-1]} was done more often than undisturbed" if repeated else why,
            next="check the calls of that tool in the log of the trial, `report.trials[...].records`",
            tool=last.tool.name if last else "",
            call_id=last.call_id if last else "",
            key=last.key if last else "",
            record=_record_of(attempt.records, last) if last else 0,
        )
    ]


def _times(count: int) -> str:
    return {0: "not at all", 1: "once", 2: "twice"}.get(count, f"{count} times")


def _other(effect: Effect) -> Finding:
    return Finding(
        kind="changed", what=f"{effect.what} happened, but not in the undisturbed run", tool=effect.by[-1].tool.name if effect.by else ""
    )


def _repeated(attempt: Attempt, effect: Effect, then: Effect | None) -> Finding:
    what = f"{effect.what} happened {_times(effect.times)}, undisturbed {_times(then.times if then else 0)}"
    if not effect.by:
        return Finding(kind="repeated", what=what, why="it happened outside of any tool call", next="find out who else did it")
    last = effect.by[-1]
    again = [doing for doing in effect.by if doing.key == last.key]
    if len(effect.by) == 1:
        why = f"{_by(last)}, and that one call did it" + ("" if then is None else f" {_times(effect.times)}")
        way_out = f"check {last.tool.name}: its effect must depend only on its arguments"
    else:
        why, way_out = _one_key(attempt, again) if len(again) > 1 else _several_keys(attempt, effect)
    return Finding(
        kind="repeated",
        what=what,
        why=why,
        next=way_out,
        tool=last.tool.name,
        call_id=last.call_id,
        key=last.key,
        record=_record_of(attempt.records, last),
    )


def _one_key(attempt: Attempt, again: Sequence[Doing]) -> tuple[str, str]:
    """Return why a call was made more than once with one key, and what to do."""
    first, last = again[0], again[-1]
    tool = last.tool
    made = f"{_by(first)} and {_by(last)}, both with the key {last.key[:8]}…"
    if tool.idempotent:
        looked = "" if last.key_read else " and never looked at the key"
        return (
            f"{made}. {tool.name} is declared idempotent, so a call with an unknown outcome is repeated; it did its work again{looked}",
            f"let {tool.name} check context.idempotency_key before it acts, or declare it idempotent=False and give it a reconcile",
        )
    settled = [
        record.event
        for record in attempt.records
        if isinstance(record.event, e.ToolReconciled) and record.event.call == last.call_id and record.event.outcome == "again"
    ]
    if settled and settled[-1].source == "reconcile":
        return (
            f"{made}. The reconcile of {tool.name} reported that the first had not happened, but it had",
            f"let the reconcile of {tool.name} return NotHappened only if it is sure, and None if it does not know",
        )
    if first.real is not None and first.real.kind == "not_executed":
        return (
            f"{made}. {tool.name} raised NotExecuted after its effect, which means that a retry is safe",
            "raise NotExecuted only before anything has happened; any other exception leaves the call in doubt",
        )
    return f"{made}", f"find out who else called {tool.name}"


def _several_keys(attempt: Attempt, effect: Effect) -> tuple[str, str]:
    """Return why an effect happened with more than one key, and what to do."""
    calls = list({doing.key: doing for doing in effect.by}.values())
    made, tool = " and ".join(_by(doing) for doing in calls[-2:]), calls[-1].tool
    told = {r.event.call for r in attempt.records if isinstance(r.event, e.ToolReconciled) and r.event.outcome == "told"}
    if any(doing.call_id in told for doing in calls[:-1]):
        return (
            f"{made}: two calls, two keys. The planner was told that the first may or may not have happened, and called again",
            f'let the planner look before it asks again, give {tool.name} a reconcile, or let the agent wait for a person (on_unknown="wait")',
        )
    if any(doing.told is not None for doing in calls[:-1]):
        retry = ", or give it retries=1: a retry has the same key" if tool.idempotent else ""
        return (
            f"{made}: two calls, two keys. The first timed out although it had its effect, and the planner called again",
            f"let {tool.name} recognise the same work by its arguments (an order number){retry}",
        )
    return (
        f"{made}: two calls with the same arguments, each with its own key",
        'give the agent guards=["side_effect_once"], or let the planner look at what was done before it asks',
    )


def _by(doing: Doing) -> str:
    told = "" if doing.told is None else f", the run was told {doing.told.error_code}"
    return f"worker {doing.life} made call {doing.call_id} (attempt {doing.attempt}; {doing.answered}{told})"


def _missing(attempt: Attempt, whole: Attempt, then: Effect, now: Effect | None, *, steady: bool) -> list[Finding]:
    """Return the finding for a missing effect; None if the run does not claim that it happened."""
    if attempt.state is None or not attempt.state.terminal:
        return []  # it is not finished yet
    known = then.by[-1] if then.by else None
    tool = known.tool.name if known is not None else ""
    what = f"{then.what} happened {_times(now.times if now else 0)}, undisturbed {_times(then.times)}"
    honest = not must_be_the_same(attempt) and not same_end(attempt, whole)
    if honest or not steady:
        return [Finding(kind="changed", what=what, why=f"the run ended differently: it {past(ended(attempt))}", tool=tool)]
    record, call, why = _why_missing(attempt, known)
    return [
        Finding(
            kind="lost",
            what=f"{what}, and the run {past(ended(attempt))}",
            why=why,
            next="let the answer depend on the outcome of the call, or name the tool in `required_tools` of the agent",
            tool=tool,
            call_id=call,
            record=record,
        )
    ]


def _why_missing(attempt: Attempt, known: Doing | None) -> tuple[int, str, str]:
    """Return the record and the call that explain a missing effect, and the explanation in words."""
    if known is None:
        return 0, "", ""
    for record in reversed(attempt.records):
        match record.event:
            case e.ToolReconciled(call=call, outcome="happened", source="reconcile") if call == known.call_id:
                return record.envelope.seq, call, f"the reconcile of {known.tool.name} reported that it had happened, but it had not"
            case e.ToolReconciled(call=call, outcome="not_happened" | "told" as outcome, source=source) if call == known.call_id:
                said = f"{source} answered that it had not happened" if outcome == "not_happened" else "it may or may not have happened"
                return record.envelope.seq, call, f"{said}, the planner was told so, and continued as if it had"
            case e.ToolFinished(call=call, error=error) if call == known.call_id and error is not None:
                return (
                    record.envelope.seq,
                    call,
                    f"its call failed ({error.code}: {short(error.message)}), and the planner continued as if it had not",
                )
            case _:
                pass
    return 0, known.call_id, "the planner did not ask for it"


def _record_of(records: Sequence[Record], doing: Doing) -> int:
    """Return the number of the record that began a call's attempt, 0 if there is none."""
    began = [r.envelope.seq for r in records if isinstance(r.event, e.ToolStarted) and r.event.call == doing.call_id]
    return began[-1] if began else 0
