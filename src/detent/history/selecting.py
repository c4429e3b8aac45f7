"""Which runs a person means: the words of a filter, a status or a time as people write them, as the query of a store."""

from __future__ import annotations

import contextlib
import difflib
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from detent.core.durations import seconds
from detent.core.errors import ConfigError, UnknownName
from detent.core.records import RunHead
from detent.core.state import TERMINAL, WAITING
from detent.ports import RunQuery

STATUSES = ("running", *WAITING, *TERMINAL)
KEYS = ("status", "agent", "tenant", "goal", "since", "until", "version", "dedupe_key")
"""What a filter may name, as `KEY=VALUE`."""


def query_of(where: Sequence[str], *, option: str = "--where") -> tuple[RunQuery, Callable[[RunHead], bool]]:
    """Return the query of `KEY=VALUE` texts, and what a store cannot select: a text in the goal. Raise `ConfigError`, naming `option`."""
    said: dict[str, list[str]] = {}
    for pair in where:
        key, equals, value = pair.partition("=")
        if key.strip() not in KEYS:
            raise UnknownName(f"key of {option}", key.strip(), KEYS)
        if not equals or not value.strip():
            raise ConfigError(f"{option} {pair!r}: write it as KEY=VALUE, such as status=failed")
        said.setdefault(key.strip(), []).append(value.strip())
    if several := [key for key, values in said.items() if len(values) > 1 and key != "status"]:
        raise ConfigError(f"{option} has {several[0]} more than once; only status may be repeated")
    one: dict[str, Any] = {key: values[0] for key, values in said.items() if key not in ("status", "goal")}
    one |= {key: since_of(one[key], option=f"{option} {key}") for key in ("since", "until") if key in one}
    goal = said.get("goal", [""])[0]

    def only(head: RunHead) -> bool:
        return not goal or head.goal_id == goal or goal.lower() in f"{head.goal}\n{head.title}".lower()

    return RunQuery(status=statuses_of(said.get("status", [])), **one), only


def statuses_of(asked: list[str]) -> tuple[str, ...]:
    """Return the statuses for these words (`waiting`: all waiting ones); raise `ConfigError`."""
    found: list[str] = []
    for name in asked:
        if name == "waiting":
            found += WAITING
        elif name in STATUSES:
            found.append(name)
        else:
            near = difflib.get_close_matches(name, ["waiting", *STATUSES], n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"known: waiting, {', '.join(STATUSES)}"
            raise ConfigError(f"{name!r} is not a run status; {hint}")
    return tuple(found)


def since_of(text: str, *, option: str = "--since") -> datetime:
    """Return the time that `30m`, `12h`, `7d` or an ISO date means; a date without a zone is UTC. Errors name `option`."""
    with contextlib.suppress(ConfigError, OverflowError):
        return datetime.now(UTC) - timedelta(seconds=seconds(text.strip(), option))
    try:
        moment = datetime.fromisoformat(text.strip())
    except ValueError:
        raise ConfigError(
            f"{option} {text!r} is not a time; write 30m, 12h, 7d, or a date such as 2026-01-31 or 2026-01-31T08:00"
        ) from None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
