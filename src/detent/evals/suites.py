"""Suites as data: what is tried, with which agents, how often, and how it is graded. From `suite.toml`, or from Python.

name = "invoices"
trials = 5
cases = "cases.jsonl"                     # or [[cases]] in the file; also .yaml, .json, .csv, .toml
faults = ["kill", "timeout"]              # each is one more column of the matrix, beside the undisturbed one
[[graders]]
kind = "contains"
expected = "paid"
[variants.today]
agent = "agent.toml"
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal, cast

import msgspec

from detent.core.budget import Budget
from detent.core.codec import digest_of
from detent.core.errors import ConfigError, Explained
from detent.evals.attacks import ATTACKS
from detent.evals.case_files import plain, read_data, rows_from, rows_in, texts_in
from detent.expressions.display import shortened

MOST_TRIALS, MOST_MESSAGES = 10_000, 200


class User(msgspec.Struct, metaclass=Explained, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A simulated user. They open with the case's goal, and answer and ask on until they are satisfied or give up, with at most `most` messages.

    `model` (`provider:name`) plays them: what they want (`goal`, by default the case's), how they are (`persona`), and all that they know (`knows`). With
    `script` instead, they say its lines in turn, each after the agent asked or answered.
    """

    goal: str = ""
    persona: str = ""
    knows: Any = {}
    model: str = ""
    script: tuple[str, ...] = ()
    most: int = 20

    def __post_init__(self) -> None:
        if bool(self.model) == bool(self.script):
            raise ConfigError('a user is played by a model or by a script; give one of them: model = "provider:name", or script = ["..."]')
        if not all(line.strip() for line in self.script):
            raise ConfigError("the script of a user has a blank line; each line is a message")
        if not 1 <= self.most <= MOST_MESSAGES:
            raise ConfigError(f"a user sends at most {self.most} messages; give 1 to {MOST_MESSAGES}")


class Case(msgspec.Struct, metaclass=Explained, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """One thing to try: a goal, what it comes with, and what is expected of it.

    `files` are written into the fresh workspace of each trial, by path. `graders` are its own, beside those of the suite. `cluster` names cases that
    resemble each other, for the statistics; by default each case is one of its own. `metadata` is for graders; the agent does not see it. With a `user`,
    a trial is a talk over a session.
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
    metadata: dict[str, Any] = {}
    user: User | None = None

    def __post_init__(self) -> None:
        if isinstance(self.user, dict):
            try:
                msgspec.structs.force_setattr(self, "user", msgspec.convert(self.user, User))
            except msgspec.ValidationError as error:
                raise ConfigError(f"case {self.id!r}: user: {error}") from None
        if not self.id or len(self.id) > 100 or not self.id.isprintable():
            raise ConfigError(f"the id of a case is {self.id[:40]!r}; give 1 to 100 printable characters")
        if not self.goal.strip():
            raise ConfigError(f"case {self.id!r} has no goal; say what the agent is asked")
        folders = {str(folder) for path in self.files for folder in Path(path).parents}
        for path in self.files:
            if Path(path).is_absolute() or ".." in Path(path).parts:
                raise ConfigError(f"case {self.id!r} has the file {path!r}, which is outside the workspace; give a path inside it")
            if "\0" in path or str(Path(path)) in folders | {"."}:
                raise ConfigError(
                    f"case {self.id!r} has the file {path!r}, which cannot be one, or is the folder of another; name it otherwise"
                )


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

    def __post_init__(self) -> None:
        if not 0 <= self.rate <= 1:
            raise ConfigError(f"rate is {self.rate}; give 0 to 1, how likely a fault strikes at a place")


class Suite(msgspec.Struct, metaclass=Explained, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """What is tried. `trials` of each case with each variant; `max_cost_usd` is what all of it may cost; `seed` decides what chance decides.

    `require` is what every variant must reach, as `detent eval --require`. With `stop = "decided"` no trial is begun that cannot change whether it is.
    Each of `faults` adds a column to every variant without faults, in which it strikes with `fault_rate` at each place. `attacks` are the texts that the
    fault `injection` puts into results; `{tool}` and `{args}` in them become a tool of the agent and arguments for it.
    `cluster` says which cases resemble each other, for the statistics: `variables.NAME` those with the same value, `tags` those with the same tags; by
    default each case is one of its own. A case's own `cluster` comes first.
    """

    name: str
    cases: tuple[Case, ...] = ()
    graders: tuple[dict[str, Any], ...] = ()
    variants: dict[str, Variant] = msgspec.field(default_factory=lambda: {"": Variant()})
    trials: int = 1
    max_cost_usd: float | None = None
    seed: int = 0
    require: str = ""
    stop: Literal["", "decided"] = ""
    faults: tuple[str, ...] = ()
    fault_rate: float = 0.2
    attacks: tuple[str, ...] = ATTACKS
    cluster: str = ""

    def __post_init__(self) -> None:
        if self.cluster:
            msgspec.structs.force_setattr(self, "cases", tuple(clustered(case, self.cluster) for case in self.cases))
        if not self.name.strip():
            raise ConfigError('the suite has no name; give it one: name = "..."')
        if not 1 <= self.trials <= MOST_TRIALS:
            raise ConfigError(f"trials is {self.trials}; give 1 to {MOST_TRIALS}")
        if not self.variants:
            raise ConfigError("the suite has no variants; leave them out for the only agent as it is")
        if self.max_cost_usd is not None and not 0 <= self.max_cost_usd < math.inf:
            raise ConfigError(f"max_cost_usd is {self.max_cost_usd}; give what all of it may cost, from 0")
        if self.stop and not self.require:
            raise ConfigError('stop = "decided" needs what is to be decided: add require = "pass_hat(3) >= 0.9", or --require')
        if not 0 <= self.fault_rate <= 1:
            raise ConfigError(f"fault_rate is {self.fault_rate}; give 0 to 1, how likely a fault strikes at a place")
        if not self.attacks or not all(attack.strip() for attack in self.attacks):
            raise ConfigError("attacks has no text; give at least one, or leave it out for those that are built in")
        seen: set[str] = set()
        for case in self.cases:
            if case.id in seen:
                raise ConfigError(f"two cases have the id {case.id!r}; trials are told apart by it, so give each its own")
            seen.add(case.id)

    @property
    def digest(self) -> str:
        """What the suite says, as a digest."""
        return digest_of(msgspec.to_builtins(self))[:16]

    def with_faults(self) -> Suite:
        """Return the suite with the columns that its faults add. Raise `ConfigError` for one that has such a name already."""
        made: dict[str, Variant] = {}
        for name, variant in self.variants.items():
            made[name] = variant
            for fault in () if variant.faults else dict.fromkeys(self.faults):
                column = f"{name}, {fault}" if name else fault
                if column in self.variants:
                    raise ConfigError(f"the variant {column!r} has the name of the column for the fault {fault!r}; name it otherwise")
                made[column] = msgspec.structs.replace(variant, faults=(fault,), rate=self.fault_rate)
        return msgspec.structs.replace(self, variants=made, faults=())

    def undisturbed(self, name: str) -> str | None:
        """Return the variant that this one would be without its faults; None if the suite has none, or it has no faults."""
        variant = self.variants[name]
        plain = msgspec.structs.replace(variant, faults=(), rate=Variant().rate)
        same = (other for other, one in self.variants.items() if msgspec.structs.replace(one, rate=plain.rate) == plain)
        return next(same, None) if variant.faults else None

    def only(
        self, *, limit: int | None = None, tags: Sequence[str] = (), ids: Sequence[str] | None = None, sample: int | None = None
    ) -> Suite:
        """Return the suite with fewer cases: of those with one of these tags, and these ids, the first `limit`, and of these `sample` drawn by the seed.

        A case is drawn by its id, so the same seed draws the same ones, whatever their order, and most of them again when others are added.
        """
        kept = [c for c in self.cases if (not tags or set(tags) & set(c.tags)) and (ids is None or c.id in ids)][:limit]
        drawn = {c.id for c in sorted(kept, key=lambda c: sha256(f"{self.seed} {c.id}".encode()).digest())[:sample]}
        return msgspec.structs.replace(self, cases=tuple(c for c in kept if c.id in drawn))


def clustered(case: Case, key: str) -> Case:
    """Return a case with the cluster that a key gives it, unless it has one. Raise `ConfigError` for a wrong key, or a case without the variable."""
    if case.cluster or not key:
        return case
    name = key.removeprefix("variables.")
    if key == "tags":
        value: Any = sorted(case.tags)
    elif name == key or not name:
        raise ConfigError(f"cluster is {key!r}; give variables.NAME or tags")
    elif name in case.variables:
        value = case.variables[name]
    else:
        raise ConfigError(f"case {case.id!r} has no variable {name!r}, by which the suite clusters; give it one, or a `cluster` of its own")
    return msgspec.structs.replace(case, cluster=f"{key} {msgspec.json.encode(value, order='deterministic').decode()}")


def load_suite(path: str | Path, *, cases: bool = True) -> Suite:
    """Read a suite file. Without `cases` it need not have any. Raise `ConfigError` with the file and what is wrong."""
    place = Path(path)
    data: Any = plain(read_data(place), str(place))
    if not isinstance(data, dict):
        raise ConfigError(f"{place}: a suite is a table with name, cases and graders")
    table = cast("dict[str, Any]", data)
    given: Any = table.get("cases")
    if isinstance(given, str):
        table["cases"] = load_cases(place.parent / given) if cases else ()
    elif isinstance(given, list):
        table["cases"] = _cases(cast("list[Any]", given), path)
    if isinstance(attacks := table.get("attacks"), str):
        table["attacks"] = texts_in(place.parent / attacks)
    try:
        suite = msgspec.convert(table, Suite)
    except (msgspec.ValidationError, ConfigError) as error:
        raise ConfigError(f"{place}: {error}") from error
    for grader in (*suite.graders, *(one for case in suite.cases for one in case.graders)):
        if isinstance(labels := grader.get("labels"), str):
            grader["labels"] = str(place.parent / labels)
    if cases and not suite.cases:
        raise ConfigError(f'{place}: the suite has no cases; add [[cases]], or cases = "cases.jsonl"')
    return suite


def load_cases(path: str | Path) -> tuple[Case, ...]:
    """Return the cases in a file: JSON, JSONL, YAML, TOML (`[[cases]]`), CSV; also a dump with `rows` as Hugging Face writes it, samples of Inspect, and
    a data set of pydantic-evals.

    A row needs a goal (`goal`, `input`, `inputs`, `question` or `prompt`); `expected`, `target`, `answer` or `expected_output` is what is expected, `id`
    or `name` its id. Fields that a case does not have become variables. Raises `ConfigError` with the file, the row, and why.
    """
    return _cases(rows_in(Path(path)), str(path))


def cases_of(dataset: Any) -> tuple[Case, ...]:
    """Return the cases of a data set of Inspect (`Dataset`, samples) or pydantic-evals (`Dataset`), or of rows as `load_cases` reads them.

    The evaluators `EqualsExpected`, `Equals` and `Contains` become graders; any other keeps its name, which `evaluate(graders=...)` must then know.
    Raises `ConfigError` for what a trial would not do, such as a sample's sandbox.
    """
    return _cases(rows_from(dataset, "the data set"), "the data set")


def _cases(rows: Sequence[Any], where: str | Path) -> tuple[Case, ...]:
    found: list[Case] = []
    for number, row in enumerate(rows, 1):
        try:
            found.append(msgspec.convert(row, Case))
        except (msgspec.ValidationError, ConfigError) as error:
            named = cast("dict[str, Any]", row).get("id") if isinstance(row, dict) else None
            raise ConfigError(
                f"{where}: case {number}{f' ({shortened(str(named), 40)!r})' if named and str(named) != str(number) else ''}: {error}"
            ) from error
    return tuple(found)
