"""Reads a TOML table into a struct. Every mistake is a `ConfigError` that names the file, the key and the nearest valid choice."""

from __future__ import annotations

import difflib
import math
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, cast, get_args, get_origin

import msgspec

from detent.core.durations import PATTERN, WRITTEN, seconds
from detent.core.errors import BudgetRefused, ConfigError

T = TypeVar("T", bound=msgspec.Struct)


def read_toml(path: Path, what: str) -> dict[str, Any]:
    """Return the content of a TOML file. Raise `ConfigError`, which names the file."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"failed to read {what} {str(path)!r}: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"failed to parse {what} {str(path)!r}: byte {error.start} is not UTF-8 text") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"failed to parse {what} {str(path)!r}: not TOML: {error}") from None


def place_of(path: Path) -> tuple[Path, str]:
    """Return the file of an agent, and NAME if it is the table `[agents.NAME]` of that file: `detent.toml#NAME`."""
    file, mark, name = str(path).rpartition(".toml#")
    return (Path(f"{file}.toml"), name) if mark and "/" not in name and not path.exists() else (path, "")


def read_agent(path: Path) -> dict[str, Any]:
    """Return the keys of an agent file, or of a table `[agents.NAME]`, whose name is NAME unless it has another. Raise `ConfigError`."""
    file, name = place_of(path)
    table = read_toml(file, "agent file")
    if not name:
        return {"name": "", **table}
    agents: Any = table.get("agents")
    if not isinstance(agents, dict) or not isinstance(said := cast("dict[str, Any]", agents).get(name), dict):
        raise ConfigError(f"{file}: agents.{name}: there is no such table")
    return {"name": name, **cast("dict[str, Any]", said)}


def take(table: Mapping[str, Any], kind: type[T], where: str, prefix: str = "") -> T:
    """Return `table` as a `kind`. Raise `ConfigError` for an unknown key (with the nearest known one) and for a value of another type."""
    fields: dict[str, Any] = {f.name: f.type for f in msgspec.structs.fields(kind)}
    values: dict[str, Any] = {}
    for key, value in table.items():
        if key not in fields:
            raise ConfigError(f"{where}: {prefix}{key}: unknown key; {nearest(key, fields)}")
        wanted = fields[key]
        if (part := _part(wanted)) is not None:
            if not isinstance(value, dict):
                raise ConfigError(f"{where}: {prefix}{key}: expected a table, found {_found(value)}")
            values[key] = take(cast("dict[str, Any]", value), part, where, f"{prefix}{key}.")
            continue
        if isinstance(value, str) and expected(wanted) == WRITTEN:
            values[key] = seconds(value, f"{where}: {prefix}{key}")
            continue
        try:
            values[key] = msgspec.convert(value, wanted)
        except msgspec.ValidationError:
            raise ConfigError(f"{where}: {prefix}{key}: expected {expected(wanted)}, found {_found(value)}") from None
    try:
        return kind(**values)
    except BudgetRefused as error:
        raise BudgetRefused(f"{where}: {error}") from None
    except ConfigError as error:
        above, _, last = prefix.removesuffix(".").rpartition(".")
        named = above if str(error).startswith(f"{last}.") else prefix.removesuffix(".")  # some name their table themselves
        raise ConfigError(": ".join(filter(None, (where, named, str(error))))) from None


def _is_part(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, msgspec.Struct)


def _part(kind: Any) -> type[msgspec.Struct] | None:
    """Return the struct that a table is read into, which may be left out (`kind | None`); None for any other value."""
    kinds = [one for one in get_args(kind) if one is not type(None)] if get_origin(kind) is UnionType else [kind]
    return kinds[0] if len(kinds) == 1 and _is_part(kinds[0]) else None


def nearest(name: str, known: Iterable[str]) -> str:
    """Return a hint for a message: the nearest known name, or all of them."""
    names = sorted(known)
    near = difflib.get_close_matches(name, names, n=1)
    return f"did you mean {near[0]!r}?" if near else f"known: {', '.join(names) or 'none'}"


def expected(kind: Any) -> str:
    """Return a description of this type in words."""
    origin = get_origin(kind)
    if origin is Annotated:
        inner, *metas = get_args(kind)
        return " ".join([expected(inner), *filter(None, (_bounds(meta) for meta in metas if isinstance(meta, msgspec.Meta)))])
    if origin in (Union, UnionType):
        if any(getattr(meta, "extra_json_schema", None) == {"pattern": PATTERN} for one in get_args(kind) for meta in get_args(one)):
            return WRITTEN
        return " or ".join(expected(k) for k in get_args(kind) if k is not type(None))
    if origin is Literal:
        return "one of " + ", ".join(repr(value) for value in get_args(kind))
    if origin in (tuple, list, Sequence):
        inner = get_args(kind)[0]
        if get_origin(inner) is dict or _is_part(inner):
            return "a list of tables"
        return "a list of texts" if inner is str else f"a list, each {expected(inner)}"
    if origin is dict:
        return {str: "a table of texts", int: "a table of whole numbers"}.get(get_args(kind)[1], "a table")
    return {str: "text", int: "a whole number", float: "a number", bool: "true or false"}.get(kind, str(kind))


def _bounds(meta: msgspec.Meta) -> str:
    """Return what a constraint asks for, in words; "" if nothing is bounded."""
    if meta.ge is not None and meta.le is not None:
        return f"from {meta.ge} to {meta.le}"
    words = {
        "ge": "of at least",
        "gt": "above",
        "le": "of at most",
        "lt": "below",
        "multiple_of": "that is a multiple of",
        "min_length": "of at least this length:",
        "max_length": "of at most this length:",
        "pattern": "that matches",
    }
    return " and ".join(f"{said} {bound}" for name, said in words.items() if (bound := getattr(meta, name)) is not None)


def _found(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (dict, list)):
        return f"{'a table' if isinstance(value, dict) else 'a list'}: {str(cast(Any, value))[:60]}"
    return f"the text {value!r}" if isinstance(value, str) else f"{value!s}"


def check_json(value: Any, where: str) -> None:
    """Raise `ConfigError` for a value that JSON does not have: a date, inf, nan. The error names its place."""
    if isinstance(value, dict):
        for key, item in cast("dict[str, Any]", value).items():
            check_json(item, f"{where}.{key}")
    elif isinstance(value, list):
        for index, item in enumerate(cast("list[Any]", value)):
            check_json(item, f"{where}[{index}]")
    elif isinstance(value, float) and not math.isfinite(value):
        raise ConfigError(f"{where}: {value} is not JSON; give a finite number, or text in quotes")
    elif value is not None and not isinstance(value, (str, int, float, bool)):
        raise ConfigError(f"{where}: a {type(value).__name__} is not JSON; put it in quotes: {str(value)!r}")
