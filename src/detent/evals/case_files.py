"""Files and data sets of others as tables of cases: JSON, JSONL, YAML, TOML and CSV; rows of Hugging Face, Inspect and pydantic-evals.

Rule: a file may say anything. What cannot be read, what is ambiguous, and what a trial would not do is refused, with the file, the row and the reason;
nothing is dropped silently.
"""

from __future__ import annotations

import csv
import io
import json
import stat
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import msgspec

from detent.core.errors import ConfigError
from detent.expressions.display import shortened
from detent.ports import MOST_NESTED, json_problem, nests_too_deep
from detent.ports.json_data import strict_json

MOST_BYTES, MOST_CASES, MOST_VALUES = 64 * 1024**2, 100_000, 5_000_000
"""The largest file; the most cases in it; the most values that a YAML file may have once its aliases are written out."""
GOALS, EXPECTED = ("goal", "input", "inputs", "question", "prompt"), ("expected", "target", "answer", "expected_output")
FIELDS = ("variables", "attachments", "files", "graders", "tags", "cluster", "user", "metadata")
TABLES = ("variables", "attachments", "files", "graders", "user", "metadata", "evaluators")
"""The fields that a cell of a CSV file gives as JSON."""
NOT_DONE = {
    "sandbox": "runs in a sandbox of its own; a trial has a fresh workspace, and its tools run as the engine says",
    "setup": "has a script that prepares its sandbox, which no trial would run; put what it makes into `files`",
    "checkpoint": "has checkpoints of Inspect; every run has its log instead",
}
"""What rows of Inspect may ask for, and a trial does not do."""


# Files ----------------------------------------------------------------------------------------------------------------------------------


def read_data(path: Path) -> Any:
    """Return what a file says. Raise `ConfigError` with the file, and the line where the format has lines."""
    text = _text(path)
    if path.suffix.lower() in (".json", ".jsonl") and nests_too_deep(text.encode()):
        raise _too_deep(path)
    try:
        match path.suffix.lower():
            case ".toml":
                found: Any = tomllib.loads(text)
            case ".json":
                found = strict_json.decode(text)
            case ".jsonl":
                found = [_line(line, f"{path}, line {n}") for n, line in enumerate(text.split("\n"), 1) if line.strip()]
            case ".csv":
                found = _csv(text, path)
            case ".yaml" | ".yml":
                found = _yaml(text, path)
            case _:
                raise ConfigError(f"{path}: give a file that ends in .toml, .json, .jsonl, .csv or .yaml")
    except RecursionError:
        raise _too_deep(path) from None
    except ValueError as error:  # TOML's and JSON's errors are ValueErrors, and so is that of a date or number that does not exist
        raise ConfigError(f"{path}: not {path.suffix[1:].upper()}: {error}") from None
    return found


def _too_deep(path: Path) -> ConfigError:
    return ConfigError(f"{path}: it nests deeper than {MOST_NESTED} levels; cases are tables in a list")


def texts_in(path: Path) -> Any:
    """Return the texts in a file: a list in JSON or YAML, else each line that is not empty. Raise `ConfigError`."""
    if path.suffix.lower() in (".json", ".yaml", ".yml"):
        return read_data(path)
    return [line for line in _text(path).splitlines() if line.strip()]


def plain(value: Any, where: str) -> Any:
    """Return data of a file as JSON data: a date becomes text. Raise `ConfigError` for what JSON cannot say."""
    if problem := json_problem(value):
        raise ConfigError(f"{where}: {shortened(problem, 300)}; write JSON data, because a log records it")
    return msgspec.to_builtins(value, str_keys=True)


def _text(path: Path) -> str:
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise ConfigError(f"{path} is not a file; name the file with the cases")
        with path.open("rb") as file:
            data = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror or error}") from None
    if len(data) > MOST_BYTES:
        raise ConfigError(
            f"{path} has more than {MOST_BYTES // 1024**2} MiB; make several suites of it, or give Suite(cases=...) what is needed"
        )
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not UTF-8 text: byte {error.start} cannot be read; save it as UTF-8") from None


def _line(line: str, where: str) -> Any:
    try:
        return strict_json.decode(line.strip())
    except ValueError as error:
        raise ConfigError(f"{where}: not JSON: {error}") from None


def _csv(text: str, path: Path) -> list[dict[str, Any]]:
    """Return the rows of a table with a head. An empty cell has no value. A cell may hold line breaks."""
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    found: list[dict[str, Any]] = []
    try:
        head = [name.strip() for name in next(reader, list[str]())]
        for twice in {name for name in head if head.count(name) > 1 or not name}:
            raise ConfigError(f"{path}, line 1: the head has {'a column without a name' if not twice else f'two columns {twice!r}'}")
        for cells in reader:
            if len(cells) > len(head):
                raise ConfigError(
                    f"{path}, line {reader.line_num}: {len(cells)} cells, and the head has {len(head)}; put a text with commas in quotes"
                )
            if any(cells):
                found.append({name: cell for name, cell in zip(head, cells, strict=False) if cell})
    except csv.Error as error:
        raise ConfigError(f"{path}, line {reader.line_num}: not CSV: {error}") from None
    for number, row in enumerate(found, 1):
        for name in TABLES:
            if name in row:
                row[name] = _line(row[name], f"{path}: case {number}, column {name}")
    return found


def _yaml(text: str, path: Path) -> Any:
    import yaml

    loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)(text)
    try:
        node: Any = loader.get_single_node()
        if node is None:
            return None
        _check_nodes(node, path, lambda text: loader.resolve(yaml.ScalarNode, text, (True, False)))
        return loader.construct_document(node)
    except yaml.YAMLError as error:
        mark: Any = getattr(error, "problem_mark", None)
        place = f", line {mark.line + 1}" if mark is not None else ""
        raise ConfigError(f"{path}{place}: not YAML: {getattr(error, 'problem', None) or error}") from None
    finally:
        loader.dispose()


_PLAIN = {"scalar": "tag:yaml.org,2002:str", "sequence": "tag:yaml.org,2002:seq", "mapping": "tag:yaml.org,2002:map"}


def _check_nodes(root: Any, path: Path, implied: Callable[[str], str]) -> None:
    """Refuse keys that are given twice, tags, and aliases that grow to more values than anybody wrote."""
    sizes: dict[int, int] = {}
    pending: list[tuple[Any, bool]] = [(root, False)]
    within: set[int] = set()
    while pending:
        node, done = pending.pop()
        parts = _parts(node)
        if done:
            within.discard(id(node))
            sizes[id(node)] = 1 + sum(sizes[id(part)] for part in parts)
            if sizes[id(node)] > MOST_VALUES:
                raise ConfigError(
                    f"{path}, line {node.start_mark.line + 1}: with its aliases written out it has more than {MOST_VALUES:,} values"
                )
        elif id(node) not in sizes:
            within.add(id(node))
            if node.tag != _PLAIN[node.id] and not (node.id == "scalar" and node.tag == implied(node.value)):
                raise ConfigError(f"{path}, line {node.start_mark.line + 1}: the tag {node.tag!r}; leave tags out, data needs none")
            if node.id == "mapping":
                _refuse_twice(node, path)
            if any(id(part) in within for part in parts):
                raise ConfigError(f"{path}, line {node.start_mark.line + 1}: it contains itself, by an alias")
            pending.append((node, True))
            pending += [(part, False) for part in parts if id(part) not in sizes]


def _parts(node: Any) -> list[Any]:
    if node.id == "mapping":
        return [part for pair in node.value for part in pair]
    return list(node.value) if node.id == "sequence" else []


def _refuse_twice(node: Any, path: Path) -> None:
    seen: set[tuple[str, str]] = set()
    for key, _ in node.value:
        if key.id == "scalar":
            if (key.tag, key.value) in seen:
                raise ConfigError(f"{path}, line {key.start_mark.line + 1}: {shortened(key.value, 80)!r} is given twice in one table")
            seen.add((key.tag, key.value))


def _table(value: Any) -> dict[str, Any] | None:
    """Return a table, None for anything else."""
    return cast("dict[str, Any]", value) if isinstance(value, dict) else None


def _list(value: Any) -> list[Any] | None:
    """Return a list, None for anything else."""
    return cast("list[Any]", value) if isinstance(value, list) else None


# Rows -----------------------------------------------------------------------------------------------------------------------------------


def rows_in(path: Path) -> list[dict[str, Any]]:
    """Return the cases in a file as tables, in the fields of `suites.Case`. Raise `ConfigError`."""
    found = read_data(path)
    graders: Sequence[Any] = ()
    if (table := _table(found)) is not None:
        found = next((table[name] for name in ("cases", "rows", "data", "samples") if name in table), None)
        graders = _evaluators(plain({name: table.get(name) for name in _JUDGES}, str(path)), str(path))
    return rows_of(found, str(path), graders=graders)


def rows_of(rows: Any, where: str, *, graders: Sequence[Any] = ()) -> list[dict[str, Any]]:
    """Return rows as tables of cases; `graders` are added to each. Raise `ConfigError`."""
    listed = _list(rows)
    if listed is None or len(listed) > MOST_CASES:
        raise ConfigError(f"{where}: give a list of cases, at most {MOST_CASES:,}")
    found: list[dict[str, Any]] = []
    first: dict[str, int] = {}
    for number, row in enumerate(listed, 1):
        case = row_of(plain(row, f"{where}: case {number}"), number, where)
        if graders:
            case["graders"] = [*case.get("graders", ()), *graders]
        if (before := first.setdefault(case["id"], number)) != number:
            told = f"cases {before} and {number} have the id {shortened(case['id'], 80)!r}"
            raise ConfigError(f"{where}: {told}; trials are told apart by it, so give each its own")
        found.append(case)
    return found


def row_of(row: Any, number: int, where: str) -> dict[str, Any]:
    """Return a row of a data set as the table of a case. Raise `ConfigError`.

    The goal is `goal`, `input`, `inputs`, `question` or `prompt`, what is expected `expected`, `target`, `answer` or `expected_output`. Fields that a
    case does not have become variables.
    """
    table = _table(row)
    table = table if table is None else _table(table.get("row")) or table
    where = f"{where}: case {number}"
    if table is None:
        raise ConfigError(f"{where} is {shortened(repr(row), 60)}; give a table with a goal")
    given = {name: value for name, value in table.items() if value is not None}
    named = next((name for name in ("id", "name") if name in given), "")
    case: dict[str, Any] = {"id": str(given.pop(named, number))}
    where = f"{where} ({shortened(case['id'], 40)!r})" if named else where
    spelt = _one_of(given, GOALS, where)
    if not spelt:
        raise ConfigError(f"{where} has no goal; name it {', '.join(GOALS[:-1])} or {GOALS[-1]}")
    case["goal"], variables = _goal(given.pop(spelt), spelt, where)
    if spelt == "input":
        _of_inspect(case, given, where)
    if answer := _one_of(given, EXPECTED, where):
        value = given.pop(answer)
        case |= {} if answer == "target" and value == "" else {"expected": _target(value, where) if answer == "target" else value}
    graders = _evaluators(given, where)
    case |= {field: given.pop(field) for field in FIELDS if field in given}
    if isinstance(tags := case.get("tags"), str):
        case["tags"] = tags.split()
    if graders:
        case["graders"] = [*case.get("graders", ()), *graders]
    if given or variables:
        case["variables"] = {**variables, **given, **case.get("variables", {})}
    return case


def _one_of(given: Mapping[str, Any], names: Sequence[str], where: str) -> str:
    """Return which of these fields a row has, "" if none. Two of them could mean anything."""
    known = [name for name in names if name in given]
    if len(known) > 1:
        raise ConfigError(f"{where} has {' and '.join(known)}, which mean the same; keep one of them")
    return known[0] if known else ""


def _goal(value: Any, spelt: str, where: str) -> tuple[str, dict[str, Any]]:
    """Return the goal, and the variables that come with it. Other inputs than a text are the goal as JSON."""
    if isinstance(value, str):
        return value, {}
    if spelt == "inputs":
        return json.dumps(value, ensure_ascii=False), _table(value) or {}
    said = _list(value) or []
    only = (_table(said[0]) or {}) if len(said) == 1 else {}
    if only.get("role") == "user" and isinstance(text := only.get("content"), str):
        return text, {}
    if said:
        raise ConfigError(f"{where} begins with {len(said)} messages; a trial begins with one text of the user. Write it as one")
    raise ConfigError(f"{where} has the goal {shortened(repr(value), 60)}; write it as text")


def _of_inspect(case: dict[str, Any], given: dict[str, Any], where: str) -> None:
    """Put the choices of a sample of Inspect into its goal, by letters, which its target names. Raise `ConfigError` for what no trial does."""
    for field, why in NOT_DONE.items():
        if given.pop(field, ""):
            raise ConfigError(f"{where} {why}. Leave `{field}` out to try it without")
    choices = given.pop("choices", None)
    if choices is not None:
        listed = _list(choices)
        if not listed or len(listed) > 26:
            raise ConfigError(f"{where} has the choices {shortened(repr(choices), 60)}; give a list of at most 26")
        case["goal"] += "\n\n" + "\n".join(f"{chr(65 + n)}) {choice}" for n, choice in enumerate(listed))
    for name, text in (_table(given.get("files")) or {}).items():
        short = isinstance(text, str) and len(text) < 1000 and "\n" not in text
        if short and (
            text.startswith("data:") or ("/" in text and not text.endswith("/") and " " not in text)
        ):  # Inspect reads these elsewhere
            raise ConfigError(f"{where}: the file {name!r} is {shortened(text, 60)!r}; write the text of the file itself")


def _target(target: Any, where: str) -> Any:
    several = _list(target)
    if several is not None and len(several) != 1:
        told = "of which any counts in Inspect; keep one, or name the list `expected`: `contains` needs each of it"
        raise ConfigError(f"{where} has {len(several)} targets, {told}")
    return target if several is None else several[0]


_JUDGES = ("evaluators", "report_evaluators")


def _evaluators(table: dict[str, Any], where: str) -> list[dict[str, Any]]:
    """Return the evaluators of pydantic-evals as graders, and take them out. One that has no grader of ours keeps its name: `evaluate` refuses it by that,
    unless `graders=` has it.
    """
    if table.pop("report_evaluators", None):
        raise ConfigError(f"{where}: report_evaluators judge a report of pydantic-evals; leave them out, and see `--require`")
    said = table.pop("evaluators", None)
    if said and _list(said) is None:
        raise ConfigError(f"{where}: evaluators is {shortened(repr(said), 60)}; give a list")
    return [_grader(one, where) for one in said or ()]


def _grader(said: Any, where: str) -> dict[str, Any]:
    table = {said: None} if isinstance(said, str) else _table(said) or {}
    if set(table) == {"name", "arguments"}:
        table = {str(table["name"]): table["arguments"]}
    if len(table) != 1:
        raise ConfigError(f"{where}: the evaluator {shortened(repr(said), 60)} is neither a name nor a table with one name")
    ((name, options),) = table.items()
    known: dict[str, Any] = _table(options) or ({} if options is None else {"value": options})
    label = {"name": known["evaluation_name"]} if known.get("evaluation_name") else {}
    match name:
        case "EqualsExpected" if set(known) <= {"evaluation_name"}:
            return {"kind": "exact", **label}
        case "Equals" if "value" in known and set(known) <= {"value", "evaluation_name"}:
            return {"kind": "exact", "expected": known["value"], **label}
        case "Contains" if "value" in known and set(known) <= {"value", "evaluation_name", "case_sensitive", "as_strings"}:
            return {"kind": "contains", "expected": known["value"], "ignore_case": known.get("case_sensitive") is False, **label}
        case _:
            return {"kind": name, "expected": options, **label}


# Data sets of others --------------------------------------------------------------------------------------------------------------------

_SAMPLE = ("id", "input", "target", "choices", "metadata", "files", *NOT_DONE)
_CASE = ("name", "inputs", "expected_output", "metadata")


def rows_from(dataset: Any, where: str) -> list[dict[str, Any]]:
    """Return the cases of a data set: of Inspect, of pydantic-evals, or rows as `row_of` reads them. Neither library is imported."""
    cases: Any = getattr(dataset, "cases", dataset)
    if isinstance(cases, dict | str) or not isinstance(cases, Iterable):
        raise ConfigError(f"{where} is a {type(cases).__name__}; give a data set of Inspect or pydantic-evals, or a list of tables")  # pyright: ignore[reportUnknownArgumentType]
    table = {name: _specs(found) for name in _JUDGES if (found := getattr(dataset, name, None))}
    return rows_of([_row(one) for one in cast("Iterable[Any]", cases)], where, graders=_evaluators(table, where))


def _row(one: Any) -> Any:
    if hasattr(one, "input") and hasattr(one, "target"):
        return {name: value for name in _SAMPLE if (value := _json_of(getattr(one, name, None))) not in (None, "")}
    if hasattr(one, "inputs") and hasattr(one, "expected_output"):
        row = {name: value for name in _CASE if (value := _json_of(getattr(one, name, None))) is not None}
        return row | ({"evaluators": _specs(one.evaluators)} if getattr(one, "evaluators", None) else {})
    return _json_of(one)


def _specs(evaluators: Iterable[Any]) -> list[Any]:
    """Return evaluators as their files have them."""
    return [{"name": spec.name, "arguments": _json_of(_argument(spec.arguments))} for spec in (one.as_spec() for one in evaluators)]


def _argument(arguments: Any) -> Any:
    return arguments[0] if isinstance(arguments, tuple) else arguments  # pyright: ignore[reportUnknownVariableType]


def _json_of(value: Any) -> Any:
    """Return objects, such as models of pydantic, as JSON data."""
    from pydantic_core import PydanticSerializationError, to_jsonable_python

    try:
        return to_jsonable_python(value)
    except PydanticSerializationError as error:
        raise ConfigError(f"a value of the data set is not JSON data: {error}") from None
