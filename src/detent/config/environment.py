"""Reads values that people write as text: `DETENT_*` variables and `--budget K=V`."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal, cast, get_args, get_origin

import msgspec

from detent.config.engines import Config
from detent.config.tables import expected, nearest, take
from detent.core.budget import FIELDS, Budget
from detent.core.durations import seconds
from detent.core.errors import BudgetRefused, ConfigError
from detent.ports.options import checked

ENVIRONMENT: dict[str, tuple[str, ...]] = {
    "DETENT_STORE": ("store", "url"),
    "DETENT_WORKSPACE": ("workspace", "root"),
    "DETENT_SANDBOX": ("workspace", "sandbox"),
    "DETENT_AGENT": ("agent",),
    "DETENT_CEILING": ("limits", "ceiling"),
    "DETENT_MAX_CONCURRENT_RUNS": ("limits", "max_concurrent_runs"),
    "DETENT_MAX_CONCURRENT_CALLS": ("limits", "max_concurrent_calls"),
    "DETENT_DRAIN_S": ("limits", "drain_s"),
    "DETENT_TITLES": ("models", "titles"),
    "DETENT_VERSION": ("worker", "version"),
    "DETENT_VERBOSITY": ("output", "verbosity"),
    "DETENT_PROGRESS": ("output", "progress"),
    **{f"DETENT_{field.upper()}": ("budget", field) for field in FIELDS},
}
"""The environment variables that the command line reads, each with its key of `detent.toml`."""


OTHERS = ("DETENT_CONFIG", "DETENT_DEBUG", "DETENT_SERVER_SECRET", "DETENT_TRUST")
"""Read beside the configuration: which file to read, whether to show tracebacks, what seals links, and which directories are trusted."""


def config_from_environment(environment: Mapping[str, str]) -> Config:
    """Return the configuration in the `DETENT_*` variables. An empty variable is ignored. Raise `ConfigError` for a wrong value or a misspelt name."""
    table: dict[str, Any] = {}
    for name, text in environment.items():
        if not name.startswith("DETENT_") or not text or name in OTHERS:
            continue
        if name not in ENVIRONMENT:
            near = difflib.get_close_matches(name, [*ENVIRONMENT, *OTHERS], n=1, cutoff=0.85)
            if near:
                raise ConfigError(f"environment: {name}: unknown variable; did you mean {near[0]!r}?")
            continue
        *outer, key = ENVIRONMENT[name]
        part: dict[str, Any] = table.setdefault(outer[0], {}) if outer else table
        part[key] = parse_text(text, _field_type(outer, key), f"environment: {name}")
    config = take(table, Config, "environment")
    check_budget(config.budget, "environment")
    return config


def _field_type(outer: list[str], key: str) -> Any:
    kind: Any = cast("Any", type(getattr(Config(), outer[0]))) if outer else Config
    return next(f.type for f in msgspec.structs.fields(kind) if f.name == key)


def parse_text(text: str, kind: Any, where: str) -> Any:
    """Return `text` as a value of type `kind`: text, number, duration or truth value. Raise `ConfigError`, which names `where`."""
    kinds = [k for k in (get_args(kind) or (kind,)) if k is not type(None)]
    if str in kinds or any(get_origin(k) is Literal for k in kinds):
        return text
    if bool in kinds:
        value = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}.get(text.lower())
        if value is None:
            raise ConfigError(f"{where}: expected true or false, found {text!r}")
        return value
    try:
        return int(text) if int in kinds else float(text)
    except ValueError:
        if any(get_origin(one) is Annotated for one in kinds):
            return seconds(cast("float | str", text), where)
        raise ConfigError(f"{where}: expected {expected(kind)}, found {text!r}") from None


def parse_budget(pairs: Iterable[str], where: str = "--budget") -> Budget:
    """Return the budget of `K=V` texts: `max_iterations=20`, or without `max_`; `max_calls_of.TOOL=5`. Raise `ConfigError`, `BudgetRefused`."""
    types = {f.name: f.type for f in msgspec.structs.fields(Budget)}
    said: dict[str, Any] = {}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        of, dot, tool = key.strip().partition(".")
        if dot and tool and of.replace("-", "_") in ("max_calls_of", "calls_of"):
            said.setdefault("max_calls_of", {})[tool] = parse_text(text.strip(), int, f"{where} {key.strip()}")
            continue
        name = key.strip().replace("-", "_")
        name = name if name in types else f"max_{name}"
        if not equals or name not in types:
            raise ConfigError(f"{where}: {pair!r}: unknown bound; {nearest(name, types)} Write it as max_tool_calls=20")
        said[name] = parse_text(text.strip(), types[name], f"{where} {name}")
    try:
        budget = Budget(**said)
    except BudgetRefused as error:
        raise BudgetRefused(f"{where}: {error}") from None
    check_budget(budget, where)
    return budget


def check_budget(budget: Budget, where: str) -> None:
    """Raise `BudgetRefused`, beginning with `where`, for an invalid bound."""
    try:
        checked(budget, ceiling=sys.maxsize)
    except BudgetRefused as error:
        raise BudgetRefused(f"{where}: {error}") from None
