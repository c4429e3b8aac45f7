"""Suites as data: what is tried, with which agents, how often, and how it is graded. From `suite.toml`, or from Python.

name = "invoices"
trials = 5
cases = "cases.jsonl"                     # or [[cases]] in the file; also .yaml, .json, .csv, .toml
[[graders]]
kind = "contains"
expected = "paid"
[variants.today]
agent = "agent.toml"
"""

from __future__ import annotations

import csv
import json
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import msgspec

from detent.core.budget import Budget
from detent.core.codec import digest_of
from detent.core.errors import ConfigError, Explained

MOST_CASES, MOST_TRIALS = 100_000, 10_000
_FIELDS = ("goal", "variables", "files", "attachments", "expected", "graders", "tags", "user")


class Case(msgspec.Struct, metaclass=Explained, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """One thing to try: a goal, what it comes with, and what is expected of it.

    `files` are written into the fresh workspace of each trial, by path. `graders` are its own, beside those of the suite. `cluster` names cases that
    resemble each other, for the statistics; by default each case is one of its own. `user` answers the agent's questions (`Simulated`).
    """

    id: str
    goal: str
    variables: dict[str, Any] = {}
    attachments: tuple[Any, ...] = ()
    files: dict[str, str] = {}
    expected: Any = None
    graders: tuple[dict[str, Any], ...] = ()
    tags: tuple[str, ...] = ()
    cluster: str = ""
    user: dict[str, Any] = {}

    def __post_init__(self) -> None:
        if not self.id or len(self.id) > 100 or not self.id.isprintable():
            raise ConfigError(f"the id of a case is {self.id[:40]!r}; give 1 to 100 printable characters")
        if not self.goal.strip():
            raise ConfigError(f"case {self.id!r} has no goal; say what the agent is asked")
        for path in self.files:
            if Path(path).is_absolute() or ".." in Path(path).parts:
                raise ConfigError(f"case {self.id!r} has the file {path!r}, which is outside the workspace; give a path inside it")


class Variant(msgspec.Struct, metaclass=Explained, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """One column of the matrix: an agent, with another model, strategy or policy where these are given. `faults`: what is done to its trials."""

    agent: str = ""
    model: str = ""
    strategy: str = ""
    policy: dict[str, Any] = {}
    budget: Budget | None = None
    faults: tuple[str, ...] = ()
    rate: float = 0.2
    """How likely a fault strikes at a place."""


class Suite(msgspec.Struct, metaclass=Explained, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """What is tried. `trials` of each case with each variant; `budget` is what all of it may cost, in USD; `seed` decides what chance decides."""

    name: str
    cases: tuple[Case, ...] = ()
    graders: tuple[dict[str, Any], ...] = ()
    variants: dict[str, Variant] = msgspec.field(default_factory=lambda: {"": Variant()})
    trials: int = 1
    max_cost_usd: float | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.name.strip():
            raise ConfigError('the suite has no name; give it one: name = "..."')
        if not 1 <= self.trials <= MOST_TRIALS:
            raise ConfigError(f"trials is {self.trials}; give 1 to {MOST_TRIALS}")
        seen: set[str] = set()
        for case in self.cases:
            if case.id in seen:
                raise ConfigError(f"two cases have the id {case.id!r}; trials are told apart by it, so give each its own")
            seen.add(case.id)

    @property
    def digest(self) -> str:
        """What the suite says, as a digest."""
        return digest_of(msgspec.to_builtins(self))[:16]

    def only(self, *, limit: int | None = None, tags: Sequence[str] = (), ids: Sequence[str] | None = None) -> Suite:
        """Return the suite with fewer cases: the first `limit` of those with one of these tags, and these ids."""
        kept = [c for c in self.cases if (not tags or set(tags) & set(c.tags)) and (ids is None or c.id in ids)]
        return msgspec.structs.replace(self, cases=tuple(kept[:limit]))


def load_suite(path: str | Path) -> Suite:
    """Read a suite file. Raise `ConfigError` with the file and what is wrong."""
    place = Path(path)
    data = cast("dict[str, Any]", _read(place))
    if not isinstance(data, dict):  # pyright: ignore[reportUnnecessaryIsInstance]  (a file may say anything)
        raise ConfigError(f"{place}: a suite is a table with name, cases and graders")
    if isinstance(cases := data.get("cases"), str):
        data["cases"] = load_cases(place.parent / cases)
    try:
        suite = msgspec.convert(data, Suite)
    except (msgspec.ValidationError, ConfigError) as error:
        raise ConfigError(f"{place}: {error}") from error
    if not suite.cases:
        raise ConfigError(f'{place}: the suite has no cases; add [[cases]], or cases = "cases.jsonl"')
    return suite


def load_cases(path: Path) -> list[dict[str, Any]]:
    """Return the cases in a file: JSON, JSONL, YAML, TOML (`[[cases]]`), CSV, or a dump with `rows` as Hugging Face writes it.

    A row needs a goal (`goal`, `input`, `question` or `prompt`); `expected`, `target`, `answer` or `expected_output` is what is expected, `id` its name.
    Fields that a case does not have become variables. Raises `ConfigError`.
    """
    data = _read(path)
    if isinstance(data, dict):
        given = cast("dict[str, Any]", data)
        data = given.get("cases", given.get("rows", given.get("data")))
    if not isinstance(data, list) or len(cast("list[Any]", data)) > MOST_CASES:
        raise ConfigError(f"{path}: give a list of cases, at most {MOST_CASES:,}")
    return [case_of(row, number, path) for number, row in enumerate(cast("list[Any]", data), 1)]


def case_of(row: Any, number: int, path: Path | str) -> dict[str, Any]:
    """Return a row of a data set as a case."""
    if isinstance(row, dict) and isinstance(inner := cast("dict[str, Any]", row).get("row"), dict):
        row = cast("Any", inner)
    if not isinstance(row, dict):
        raise ConfigError(f"{path}: case {number} is {row!r:.60}; give a table with a goal")
    given = dict(cast("dict[str, Any]", row))
    case: dict[str, Any] = {"id": str(given.pop("id", given.pop("name", number)))}
    for field, names in (
        ("goal", ("goal", "input", "inputs", "question", "prompt")),
        ("expected", ("expected", "target", "answer", "expected_output")),
    ):
        known = next((name for name in names if name in given), None)
        if known is not None:
            case[field] = given.pop(known)
    if not isinstance(case.get("goal"), str):
        raise ConfigError(f"{path}: case {number} has no goal; name it goal, input, question or prompt")
    for field in (*_FIELDS[1:], "cluster"):
        if field in given:
            value = given.pop(field)
            case[field] = value.split() if field == "tags" and isinstance(value, str) else value
    if given:
        case["variables"] = {**given, **case.get("variables", {})}
    return case


def _read(path: Path) -> Any:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
    try:
        match path.suffix.lower():
            case ".toml":
                return tomllib.loads(text)
            case ".json":
                return json.loads(text)
            case ".jsonl":
                return [json.loads(line) for line in text.splitlines() if line.strip()]
            case ".csv":
                return [dict(row) for row in csv.DictReader(text.splitlines())]
            case ".yaml" | ".yml":
                import yaml

                return yaml.safe_load(text)
            case _:
                raise ConfigError(f"{path}: give a file that ends in .toml, .json, .jsonl, .csv or .yaml")
    except ImportError as error:
        raise ConfigError(f"{path}: reading YAML needs the extra: pip install 'detent[evals]'") from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: not {path.suffix[1:].upper()}: {error}") from error
    except Exception as error:  # the YAML library raises its own
        raise ConfigError(f"{path}: not YAML: {error}") from error


def from_mapping(cases: Sequence[Mapping[str, Any]], **options: Any) -> Suite:
    """Return a suite of rows as `load_cases` reads them."""
    made = [msgspec.convert(case_of(row, number, "the cases"), Case) for number, row in enumerate(cases, 1)]
    return Suite(cases=tuple(made), **options)
