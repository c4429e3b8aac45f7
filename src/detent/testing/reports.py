"""The findings of `simulate`, as plain data and as text: one line per fault point, then every problem with its reason and advice."""

from __future__ import annotations

import textwrap
from collections import Counter
from typing import Any, Literal

import msgspec

from detent.core.codec import read_log
from detent.core.records import Record
from detent.testing.ledgers import short

Kind = Literal["repeated", "lost", "answer", "stuck", "error", "replay", "not_reached", "in_doubt", "unproven", "changed"]
PROBLEMS: tuple[Kind, ...] = ("repeated", "lost", "answer", "stuck", "error", "replay", "not_reached")
"""The kinds that are always problems. The other kinds are for information."""
RUN = "simulated"
"""The id of every simulated run, so that keys, call ids and records are the same in every trial."""
WIDTH = 120
"""The width of the explanations in columns."""
PLACES = 3
"""The maximum number of named places of one finding."""
_WORDS: dict[Kind, str] = {
    "repeated": "REPEATED EFFECT",
    "lost": "LOST EFFECT",
    "answer": "DIFFERENT ANSWER",
    "stuck": "STUCK",
    "error": "ERROR",
    "replay": "REPLAYS DIFFERENTLY",
    "not_reached": "NOT REACHED",
    "in_doubt": "in doubt",
    "unproven": "unproven",
    "changed": "another course",
}


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One finding at a fault point.

    `kind`: an effect that happened more often than undisturbed (`repeated`), or less often although the run claims otherwise (`lost`); another
    `answer` or end; a run that did not finish (`stuck`); an exception, or a run that failed because of one (`error`); a replay that gives another log
    (`replay`); a place that was not reached (`not_reached`). Not a problem by themselves: a call `in_doubt`, which somebody had to settle; an
    `unproven` claim of a tool; a run that took another course after a fault that the agent was told of (`changed`).

    `record` is the number of the record that shows it, or 0. `why` is the reason, `next` what to do.
    """

    kind: Kind
    what: str
    why: str = ""
    next: str = ""
    tool: str = ""
    call_id: str = ""
    key: str = ""
    record: int = 0

    @property
    def is_problem(self) -> bool:
        """Whether this is a problem."""
        return self.kind in PROBLEMS


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """One run of the agent: undisturbed (`fault` is ""), or with one fault at one place.

    `how` is the variant of the fault, `place` is where it struck, `workers` is the number of engines used. `effects` has the count of each effect.
    `log` has the stored lines of the run.
    """

    fault: str
    how: str = ""
    place: str = ""
    status: str = ""
    reason: str = ""
    output: Any = None
    error: str = ""
    same_answer: bool = True
    injected: bool = True
    workers: int = 1
    effects: dict[str, int] = {}
    findings: tuple[Finding, ...] = ()
    log: tuple[bytes, ...] = ()

    @property
    def records(self) -> tuple[Record, ...]:
        """The records of the run, including those that findings name."""
        return tuple(read_log(RUN, self.log))

    @property
    def problems(self) -> tuple[Finding, ...]:
        """The findings that are problems."""
        return tuple(finding for finding in self.findings if finding.is_problem)

    @property
    def ended(self) -> str:
        """How the run ended, in a few words."""
        if self.status == "completed":
            return f"completed ({self.reason}): {short(msgspec.json.encode(self.output).decode())}"
        return f"{self.status} ({self.reason})" if self.reason else self.status or "not started"

    def line(self) -> str:
        """Return the trial as one line."""
        counted: Counter[Kind] = Counter(finding.kind for finding in self.findings)
        said = [f"{_WORDS[kind]} {number}" if number > 1 else _WORDS[kind] for kind, number in counted.items()]
        answer = "same answer" if self.same_answer else self.ended
        return f"{self.fault:<16} {self.place}: {answer}{''.join(f'; {one}' for one in said)}"


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a simulation. `print(report)` shows it; `raise_for_problems` fails a test.

    `undisturbed` is the run without a fault, `trials` are those with one fault each. `notes` say what was left out and why.
    """

    agent: str
    goal: str
    undisturbed: Trial
    trials: tuple[Trial, ...]
    notes: tuple[str, ...] = ()

    def of(self, kind: Kind) -> tuple[Finding, ...]:
        """Return the findings of one kind, in order."""
        return tuple(finding for trial in self.trials for finding in trial.findings if finding.kind == kind)

    @property
    def problems(self) -> tuple[Finding, ...]:
        """All problems."""
        return tuple(finding for trial in self.trials for finding in trial.problems)

    @property
    def repeated(self) -> tuple[Finding, ...]:
        """The effects that happened more often than in the undisturbed run."""
        return self.of("repeated")

    @property
    def lost(self) -> tuple[Finding, ...]:
        """The effects that did not happen although the run claims success."""
        return self.of("lost")

    @property
    def in_doubt(self) -> tuple[Finding, ...]:
        """The calls that may or may not have happened as far as the run could know."""
        return self.of("in_doubt")

    def raise_for_problems(self, *, in_doubt: bool = False) -> None:
        """Raise `AssertionError` with the report if there is a problem; with `in_doubt`, also if a person had to settle a call."""
        __tracebackhide__ = True
        if self.problems or (in_doubt and self.in_doubt):
            raise AssertionError(f"\n{self}")

    def __str__(self) -> str:
        doubtful = sum(any(finding.kind == "in_doubt" for finding in trial.findings) for trial in self.trials)
        doubts = f"a call in doubt at {_count(doubtful, 'point')}" if doubtful else "no call in doubt"
        head = f"{_count(len(self.trials), 'fault point')}, {_count(len(self.problems), 'problem')}, {doubts}"
        whole = self.undisturbed
        effects = "; ".join(what if times == 1 else f"{what}, {times} times" for what, times in whole.effects.items()) or "none"
        lines = [
            f"agent {self.agent!r}, goal {short(self.goal)!r}: {head}",
            f"undisturbed: {whole.ended}; effects: {effects}",
            *(f"note: {note}" for note in self.notes),
            "",
            *(f"  {trial.line()}" for trial in self.trials),
        ]
        for title, problems in (("Problems", True), ("To know", False)):
            groups = _grouped(self.trials, problems=problems)
            lines += ["", f"{title}:"] if groups else []
            for number, (finding, places) in enumerate(groups, 1):
                lines += _told(number, finding, places)
        return "\n".join(lines)


def _count(number: int, word: str) -> str:
    return f"{number} {word}" if number == 1 else f"{number} {word}s"


def _grouped(trials: tuple[Trial, ...], *, problems: bool) -> list[tuple[Finding, list[str]]]:
    """Return the findings, equal ones merged, each with its places."""
    found: dict[tuple[str, str, str], tuple[Finding, list[str]]] = {}
    for trial in trials:
        for finding in trial.findings:
            if finding.is_problem is problems:
                key = (finding.kind, finding.what, finding.next)
                places = found.setdefault(key, (finding, []))[1]
                place = f"{trial.fault} {trial.place}"
                if place not in places:
                    places.append(place)
    return list(found.values())


def _told(number: int, finding: Finding, places: list[str]) -> list[str]:
    """Return a finding in full."""
    more = len(places) - PLACES
    where = "; ".join(places[:PLACES]) + (f"; and at {_count(more, 'other point')}" if more > 0 else "")
    facts = [
        *([f"call {finding.call_id}"] if finding.call_id else []),
        *([f"key {finding.key}"] if finding.key else []),
        *([f"record {finding.record}"] if finding.record else []),
    ]
    said = {"where": where, "which": ", ".join(facts), "why": finding.why, "next": finding.next}
    lines = _wrapped(f"  {number}. ", f"{_WORDS[finding.kind]}: {finding.what}", indent=5)
    for name, text in said.items():
        lines += _wrapped(f"     {name + ':':<7}", text, indent=12) if text else []
    return lines


def _wrapped(head: str, text: str, *, indent: int) -> list[str]:
    return textwrap.wrap(text, WIDTH, initial_indent=head, subsequent_indent=" " * indent, break_long_words=False, break_on_hyphens=False)
