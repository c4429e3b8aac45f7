"""What a grader is given and what it says: `Grader` is its data, `Graded` the trial that it looks at, `Grade` its verdict with a reason and an excerpt."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import msgspec

from detent.core.errors import ConfigError, Explained
from detent.core.records import Record
from detent.core.state import RunState
from detent.evals.folding import Ended
from detent.evals.suites import Case
from detent.expressions.display import as_text, clean
from detent.history.traces import Call, Trace, Tracer

Verdict = Literal["passed", "failed", "unknown"]
MOST_SHOWN = 300
LABELS = "evals/labels.jsonl"
"""Where `detent eval label` keeps what people say, unless it is told otherwise."""
JUDGES = ("judge", "pairwise")
"""The kinds of graders that ask a model."""


class Vote(msgspec.Struct, frozen=True, kw_only=True):
    """One verdict of one judge, which is a run of its own: `share` is 0 or 1, or 0.5 where a pairwise judge finds both answers alike."""

    judge: str
    share: float
    run_id: str
    cost_usd: float = 0.0
    tokens: int = 0


class Agreement(msgspec.Struct, frozen=True, kw_only=True):
    """How far two raters agree: the share, Cohen's kappa (None where chance alone explains everything), and how often the first one says yes."""

    share: float
    kappa: float | None
    base_rate: float
    count: int


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """How well a judge does on answers that people have labelled: its agreement with them, with itself (from two samples), and what that has cost."""

    judge: str
    people: Agreement | None = None
    itself: Agreement | None = None
    cost_usd: float = 0.0


class Grade(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a grader says of a trial: the verdict, a score from 0 to 1, why, and the place in the trial that shows it.

    `question` is what a judge or a person was asked, `votes` what each judge said, `measured` how good the judges are. Their cost is not the agent's.
    """

    grader: str
    verdict: Verdict
    score: float | None = None
    reason: str = ""
    excerpt: str = ""
    required: bool = True
    rater: Literal["", "person", "judge"] = ""
    question: str = ""
    votes: tuple[Vote, ...] = ()
    measured: tuple[Measured, ...] = ()


class Graded(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """What a grader looks at: the case, the run's records and state, what it did as it was `read`, and its workspace if it had one."""

    case: Case
    records: Sequence[Record]
    state: RunState
    read: Tracer | Ended
    workspace: Path | None = None

    @property
    def answer(self) -> Any:
        """The answer of the run, or the text that it had so far."""
        return self.state.output if self.state.output is not None else self.state.partial

    @cached_property
    def trace(self) -> Trace:
        """What it did, with the state after each turn."""
        return self.read.trace()

    @property
    def calls(self) -> list[Call]:
        """Its calls, in their order."""
        return [call for turn in self.read.iterations for call in turn.calls]


class Grader(msgspec.Struct, metaclass=Explained, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A grader as data. `kind` is one of `GRADERS`, or a name that `graders=` gives; the other fields are its options.

    `required`: the trial fails with it. `tolerance` is absolute, `relative` a share of what is expected. `at_least` is the lowest score that passes.
    For judges `expected` is the rubric and `model` who judges: "provider:name" or the name of a known agent, or several of them. Each gives `samples`
    verdicts. `labels` is a file of what people say: a judge that agrees with them, or with itself, less than `min_kappa` refuses to grade, and so does one
    without labels. With `min_kappa = 0` it counts unmeasured.
    """

    kind: str
    name: str = ""
    expected: Any = None
    path: str = ""
    tolerance: float = 0.0
    relative: float = 0.0
    at_least: float = 1.0
    ignore_case: bool = True
    most: int | None = None
    command: tuple[str, ...] = ()
    timeout_s: float = 30.0
    required: bool = True
    model: str | tuple[str, ...] = ()
    samples: int = 1
    min_kappa: float = 0.6
    labels: str = ""

    def __post_init__(self) -> None:
        if not 1 <= self.samples <= 99 or not -1 <= self.min_kappa <= 1:
            raise ConfigError(f"grader {self.label}: samples are 1 to 99 and min_kappa is -1 to 1, not {self.samples} and {self.min_kappa}")
        if self.tolerance < 0 or self.relative < 0:
            raise ConfigError(f"grader {self.label}: a tolerance is 0 or more")

    @property
    def label(self) -> str:
        """How reports name it."""
        return self.name or self.kind

    @property
    def judges(self) -> tuple[str, ...]:
        """Who judges."""
        return (self.model,) if isinstance(self.model, str) else self.model


Judge = Callable[[Grader, Graded], "Grade | Awaitable[Grade]"]


def said(grader: Grader, passed: bool, reason: str, excerpt: Any = "", *, score: float | None = None) -> Grade:
    """Return a grade."""
    score = (1.0 if passed else 0.0) if score is None else score
    return Grade(
        grader=grader.label,
        verdict="passed" if passed else "failed",
        score=score,
        reason=cut(reason),
        excerpt=cut(excerpt if isinstance(excerpt, str) else as_text(excerpt)),
        required=grader.required,
    )


def unsaid(grader: Grader, reason: str, **facts: Any) -> Grade:
    """Return a grade that does not know."""
    return Grade(grader=grader.label, verdict="unknown", reason=cut(reason), required=grader.required, **facts)


def cut(text: str) -> str:
    """Return a text cleaned, of at most `MOST_SHOWN` characters."""
    shown = clean(text[: MOST_SHOWN + 1], lines=True)
    return shown if len(shown) <= MOST_SHOWN else f"{shown[:MOST_SHOWN]}…"


def wanted_of(grader: Grader, of: Graded) -> Any:
    """Return what is expected: by the grader, else by the case. Raise `ConfigError` where neither expects anything."""
    wanted = grader.expected if grader.expected is not None else of.case.expected
    if wanted is None:
        raise ConfigError(f"grader {grader.label} expects nothing, and case {of.case.id!r} does not either; give one of them `expected`")
    return wanted


def written(value: Any) -> str:
    """Return a value as the text that graders compare: text as it is, nothing as "", anything else as JSON."""
    return value if isinstance(value, str) else "" if value is None else json.dumps(value, ensure_ascii=False, sort_keys=True)
