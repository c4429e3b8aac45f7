"""Labels: what people say of answers, a line each in one file. They grade trials, and measure judges.

Rule: a label is about one answer. It is never changed: a later one of the same person counts instead. Several people may write to the file at once.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Generator, Iterable, Sequence
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from typing import IO, Any

import msgspec

from detent.core.errors import ConfigError
from detent.evals.grades import LABELS, Grade, Graded, Grader, Verdict, cut, unsaid, written


class Label(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a person says of an answer; `unknown` if they are unsure. Without `grader` it counts for each.

    `run` is the run that gave the answer, "" if none did. `reference` is what a pairwise judge compares the answer with.
    """

    verdict: Verdict
    answer: str
    goal: str = ""
    grader: str = ""
    run: str = ""
    reason: str = ""
    by: str = ""
    at: datetime | None = None
    reference: str = ""


def read_labels(path: str | Path) -> tuple[Label, ...]:
    """Return the labels in a file, those that count: of each person the last one of each answer. None if there is no file. Raise `ConfigError`."""
    try:
        found = Path(path).stat()
    except FileNotFoundError:
        return ()
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
    return _read(str(Path(path).resolve()), found.st_mtime_ns, found.st_size)


@lru_cache(maxsize=8)
def _read(path: str, _changed: int, _size: int) -> tuple[Label, ...]:
    try:
        lines = Path(path).read_bytes().split(b"\n")
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
    last: dict[tuple[str, ...], Label] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            one = msgspec.json.decode(line, type=Label)
        except (msgspec.DecodeError, RecursionError) as error:
            if number == len(lines):
                continue  # somebody's process died while it wrote the end of the file
            raise ConfigError(f"{path}, line {number}: not a label: {error}") from error
        last[one.run, one.grader, one.by, one.goal, one.answer, one.reference] = one
    return tuple(last.values())


def add_label(path: str | Path, label: Label) -> None:
    """Add a label to a file, durably. Raise `ConfigError` if it cannot be written."""
    with held(path) as file:
        end = file.seek(0, os.SEEK_END)
        if end:
            file.seek(end - 1)
            torn = file.read(1) != b"\n"
            file.write(b"\n" if torn else b"")
        file.write(msgspec.json.encode(label) + b"\n")
        file.flush()
        os.fsync(file.fileno())


@contextlib.contextmanager
def held(path: str | Path) -> Generator[IO[bytes]]:
    """Open a file of labels and keep others from writing to it meanwhile. Raise `ConfigError` if it cannot be written."""
    place = Path(path)
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        with place.open("a+b") as file:
            _lock(file.fileno())
            yield file
    except OSError as error:
        raise ConfigError(f"{place} cannot be written: {error}") from error


def _lock(descriptor: int) -> None:
    """Keep others from the file until it is closed, where the system can."""
    try:
        import fcntl
    except ImportError:
        return
    fcntl.flock(descriptor, fcntl.LOCK_EX)


def labels_for(labels: Iterable[Label], grader: str, *, run: str = "") -> list[Label]:
    """Return the labels that count for a grader; with `run` only those of that run."""
    return [one for one in labels if one.grader in ("", grader) and (not run or one.run == run)]


def person(grader: Grader, of: Graded) -> Grade:
    """What people say of the answer (`detent eval label`); unknown until somebody has labelled it, and where they disagree."""
    return said_by_people(grader, read_labels(grader.labels or LABELS), of.state.run_id, written(of.answer))


def said_by_people(grader: Grader, labels: Iterable[Label], run: str, answer: str) -> Grade:
    """Return the grade of people for one answer of one run."""
    given = labels_for(labels, grader.label, run=run)
    facts: dict[str, Any] = {"rater": "person", "question": written(grader.expected)}
    if not given:
        return unsaid(grader, "nobody has labelled it yet: `detent eval label`", **facts)
    if not (about := [one for one in given if one.answer == answer]):
        return unsaid(grader, "the answer has changed since it was labelled: `detent eval label`", **facts)
    verdict = agreed(about)
    told = "; ".join(f"{one.by or 'somebody'}: {one.reason or one.verdict}" for one in about)
    if verdict == "unknown":
        why = "people disagree" if len({one.verdict for one in about} - {"unknown"}) > 1 else "unsure"
        return unsaid(grader, f"{why}: {told}", **facts)
    score = 1.0 if verdict == "passed" else 0.0
    return Grade(
        grader=grader.label, verdict=verdict, score=score, reason=cut(told), excerpt=cut(answer), required=grader.required, **facts
    )


def agreed(labels: Sequence[Label]) -> Verdict:
    """Return the verdict of all who are not unsure; unknown where they disagree, or nobody is sure."""
    sure: set[Verdict] = {one.verdict for one in labels if one.verdict != "unknown"}
    return sure.pop() if len(sure) == 1 else "unknown"
