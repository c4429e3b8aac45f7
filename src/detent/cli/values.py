"""Values on the command line: variables, results, arguments."""

from __future__ import annotations

import difflib
import json
import re
from typing import Any, cast

import msgspec

from detent.config.agents import Agent
from detent.core.durations import seconds
from detent.core.errors import ConfigError


def parse_variables(pairs: list[str], agent: Agent) -> dict[str, Any]:
    """Return the variables in `K=V` texts; raise `ConfigError`.

    A variable that the agent file declares as text stays text. Any other value is JSON if it is written exactly as JSON writes it
    (3, true, [1, 2]), else text: 007 and 1.10 stay as they are.
    """
    found: dict[str, Any] = {}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        if not equals or not key:
            raise ConfigError(f"--var {pair!r}: write it as NAME=VALUE")
        if key not in agent.variables and (near := difflib.get_close_matches(key, agent.variables, n=1)):
            raise ConfigError(f"--var {key}: agent {agent.name!r} declares no such variable; did you mean {near[0]!r}?")
        found[key] = text if isinstance(agent.variables.get(key), str) else _value(text)
    return found


def duration(text: str, option: str) -> float:
    """Return the seconds in a text such as `90` or `1m30s`. Raise `ConfigError`."""
    return float(text) if re.fullmatch(r"\d{1,9}(\.\d+)?", text) else seconds(text, option)


def _value(text: str) -> Any:
    try:
        value = json.loads(text)
    except ValueError:
        return text
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return value if json.dumps(value) == text else text
    return value


def json_or_text(text: str) -> Any:
    """Return the value of a JSON text, and any other text unchanged."""
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        return text


def json_object(text: str, where: str) -> dict[str, Any]:
    """Return the JSON object in a text; raise `ConfigError` beginning with `where`."""
    try:
        value = msgspec.json.decode(text)
    except msgspec.DecodeError as error:
        raise ConfigError(f'{where} is not JSON: {error}; give the arguments as one object, such as \'{{"path": "a.txt"}}\'') from None
    if not isinstance(value, dict):
        raise ConfigError(f"{where} must be a JSON object with the arguments of the call, not {text}")
    return cast("dict[str, Any]", value)
