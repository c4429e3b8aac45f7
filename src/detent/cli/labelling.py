"""eval label: shows a person one trial after another, and keeps what they say of it.

Rule: everything of a trial is untrusted text, so each of its lines begins with a bar. What graders and judges said is not shown: a person judges by themselves.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from detent.cli.invocation import Invocation, operator
from detent.cli.output import clean
from detent.cli.questions import barred
from detent.core.errors import ConfigError
from detent.core.state import TERMINAL
from detent.engine import Engine
from detent.expressions.compiled import nearest
from detent.expressions.display import counted, shortened
from detent.ports import RunQuery

if TYPE_CHECKING:
    from detent.evals import Evaluation
    from detent.evals.grades import Verdict
    from detent.evals.transcripts import Transcript

WORDS: dict[str, Verdict] = {
    **dict.fromkeys(("p", "pass", "passed", "y", "yes"), "passed"),
    **dict.fromkeys(("f", "fail", "failed", "n", "no"), "failed"),
    **dict.fromkeys(("u", "unsure", "?"), "unknown"),
}
ASKED = "pass, fail or unsure, and why (Enter: later, q: stop): "


class _Item(msgspec.Struct, frozen=True, kw_only=True):
    """One trial to label: its run, what to judge it by, and the answer if the run is not in the store."""

    run_id: str
    question: str = ""
    answer: Any = None


class Labelling(msgspec.Struct, frozen=True, kw_only=True):
    """What is labelled: the trials of a result, or stored runs; for which grader; by whom; and where labels are kept."""

    result: Path | None
    query: RunQuery
    only: Callable[[str], bool]
    grader: str
    by: str
    labels: Path


def label(wanted: Labelling, invocation: Invocation) -> int:
    """Ask about each trial that nobody has labelled yet. Return the exit code."""
    from detent.evals import Evaluation

    known = None if wanted.result is None else Evaluation.read(wanted.result)
    grader = _checked(wanted.grader, known) or _only_grader(known)
    asking = _Asking(msgspec.structs.replace(wanted, grader=grader), known, invocation)
    invocation.drive(asking.work, missing=None)
    if wanted.result is not None:
        _update(wanted.result, wanted.labels)
    output = invocation.output
    output.document({"labelled": asking.count, "left": asking.left, "grader": grader, "labels": str(wanted.labels)})
    output.show(f"{counted(asking.count, 'trial')} labelled for {clean(grader)}, {asking.left} left; kept in {clean(str(wanted.labels))}")
    return 0


class _Asking:
    """One person at work. `count` trials are labelled by them now, `left` are not labelled by anybody."""

    def __init__(self, wanted: Labelling, known: Evaluation | None, invocation: Invocation) -> None:
        self._wanted, self._known, self._invocation = wanted, known, invocation
        self.count = self.left = 0

    async def work(self, engine: Engine) -> None:
        """Ask, one trial after the other."""
        from detent.evals.transcripts import Transcript, bounded

        items = await self._items(engine)
        stopped = False
        for place, item in enumerate(items, 1):
            told, goal, answer = await _told(engine, item)
            if self._labelled(item.run_id, answer):
                continue
            if stopped:
                self.left += 1
                continue
            whole = Transcript(run_id=item.run_id, goal="", steps=(), answer=bounded(answer)) if told is None else told
            given = self._asked(f"{place} of {len(items)}", item, whole, there=told is not None)
            stopped = given is None
            self.left += not given
            if given:
                self._keep(item.run_id, goal, answer, *given)

    def _asked(self, place: str, item: _Item, told: Transcript, *, there: bool) -> tuple[Verdict, str] | tuple[()] | None:
        """Show a trial, and return the verdict with its reason; nothing for later, None to stop."""
        output = self._invocation.output
        output.say(f"\n{place}: {item.run_id}", "bold")
        for name, text in (("judge", item.question), ("goal", told.goal)):
            if text:
                output.say(f"{name}:")
                output.page(barred(text))
        if not there:
            output.say("its run is not in this store: only the answer is shown", "yellow")
        if told.steps:
            output.say("calls:")
        for number, step in enumerate(told.steps):
            if told.left_out and number == len(told.steps) // 2:
                output.say(f"({told.left_out} further calls)")
            output.page(barred(f"{step.tool} {step.args}\n{step.outcome}: {step.result}"))
        output.say("answer:")
        output.page(barred(told.answer or "(none)"))
        while True:
            line = output.ask(ASKED)
            word, _, reason = line.strip().partition(" ")
            if not line:
                output.say()
            if not line or word.lower() == "q":
                return None
            if not word:
                return ()
            if (verdict := WORDS.get(word.lower().rstrip(":,;"))) is not None:
                return verdict, reason.strip()
            output.say(
                f"{shortened(word, 40)} is not an answer; type pass, fail or unsure, and then why, such as: fail it is too curt", "yellow"
            )

    def _keep(self, run_id: str, goal: str, answer: str, verdict: Verdict, reason: str) -> None:
        from detent.evals import Label, add_label

        wanted = self._wanted
        said = Label(
            run=run_id,
            grader=wanted.grader,
            verdict=verdict,
            reason=reason,
            by=wanted.by or operator(),
            at=datetime.now(UTC),
            goal=goal,
            answer=answer,
        )
        add_label(wanted.labels, said)
        self.count += 1

    def _labelled(self, run_id: str, answer: str) -> bool:
        """Whether a trial has a label by now: somebody else may be at work too."""
        from detent.evals import read_labels
        from detent.evals.labels import labels_for

        return any(one.answer == answer for one in labels_for(read_labels(self._wanted.labels), self._wanted.grader, run=run_id))

    async def _items(self, engine: Engine) -> list[_Item]:
        from detent.evals.trials import is_ours

        if self._known is None:
            heads = await engine.list_runs(self._wanted.query)
            return [
                _Item(run_id=one.run_id)
                for one in heads
                if one.status in TERMINAL and self._wanted.only(one.run_id) and not is_ours(one.run_id)
            ]
        found: list[_Item] = []
        every = [trial for trial in self._known.trials if trial.standing in ("passed", "failed", "unknown")]
        has = any(grade.grader == self._wanted.grader for trial in every for grade in trial.grades)
        for trial in every:
            mine = next((grade for grade in trial.grades if grade.grader == self._wanted.grader), None)
            if mine is not None or not has:
                found.append(_Item(run_id=trial.run_id, question=mine.question if mine is not None else "", answer=trial.output))
        return found


async def _told(engine: Engine, item: _Item) -> tuple[Transcript | None, str, str]:
    """Return what a run did, its goal and its whole answer, as far as the store has it."""
    from detent.evals.grades import written
    from detent.evals.transcripts import answer_of, told_of

    if (told := await told_of(engine.store, item.run_id)) is not None:
        return told[0], told[1].goal, written(answer_of(told[1]))
    return None, "", written(item.answer)


def _checked(grader: str, known: Evaluation | None) -> str:
    """Return the grader that was named. Raise `ConfigError` if a result has none that is called so."""
    names = dict.fromkeys(grade.grader for trial in (known.trials if known is not None else ()) for grade in trial.grades)
    if grader and names and grader not in names:
        raise ConfigError(f"--grader {grader!r}: the result has no such grader{nearest(grader, names)}; it has {', '.join(names)}")
    return grader


def _only_grader(known: Evaluation | None) -> str:
    """Return the grader of a result that people or judges rate. Raise `ConfigError` for several."""
    trials = () if known is None else known.trials
    names = dict.fromkeys(grade.grader for trial in trials for grade in trial.grades if grade.rater)
    if len(names) > 1:
        raise ConfigError(f"people or judges rate {', '.join(names)}; choose one: --grader NAME")
    return next(iter(names), "person")


def _update(path: Path, labels: Path) -> None:
    """Let a result have what people say by now, with its figures. Nobody labels meanwhile, so no label is lost from it."""
    from detent.evals import Evaluation, read_labels
    from detent.evals.labels import held
    from detent.evals.reports import relabelled

    with held(labels):
        known = Evaluation.read(path)
        if (now := relabelled(known, read_labels(labels))) != known:
            now.write(path)
