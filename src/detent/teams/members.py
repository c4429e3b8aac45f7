"""What the teams share: who is in a team, how results are shown to the next agent, and how a team ends that has no answer."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from typing import Any

from detent.core.agent import AgentSpec
from detent.core.errors import ConfigError
from detent.ports import AgentResult, Passed

TEXT: dict[str, Any] = {"type": "string"}


def record(**fields: dict[str, Any]) -> dict[str, Any]:
    """Return the JSON Schema of an object with exactly these fields."""
    return {"type": "object", "properties": fields, "required": list(fields), "additionalProperties": False}


def listing(entries: dict[str, Any], *, least: int = 0) -> dict[str, Any]:
    """Return the JSON Schema of a list."""
    return {"type": "array", "items": entries, "minItems": least}


def members(agent: AgentSpec, names: Sequence[str] = ()) -> tuple[str, ...]:
    """Return these agents, or all that `agent` may start, in the order in which it declares them."""
    return tuple(names) or tuple(agent.subagents)


def check_members(agent: AgentSpec, *names: str, least: int = 1) -> None:
    """Raise `ConfigError` for a name that is not among the agent's `subagents`, and if fewer than `least` are declared."""
    if unknown := [name for name in names if name and name not in agent.subagents]:
        known = ", ".join(agent.subagents) or "none"
        raise ConfigError(f"strategy_options: {unknown[0]!r} is not among the agent's subagents ({known}); declare it there")
    if len(agent.subagents) < least:
        raise ConfigError(f"a team needs at least {least} agents, and {len(agent.subagents)} are declared; add some to subagents")


def check_number(least: float, **given: float | None) -> None:
    """Raise `ConfigError` for an option below `least`."""
    for name, value in given.items():
        if value is not None and not value >= least:
            raise ConfigError(f"strategy_options: {name} is {value}; give at least {least:g}")


def shown(value: Any) -> str:
    """Return a value as text for the next agent."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def section(title: str, text: str) -> str:
    """Return a titled part of a goal, "" without a text."""
    return f"\n\n{title}:\n{text}" if text.strip() else ""


def told(results: Sequence[AgentResult]) -> str:
    """Return what agents have found, or why they have not, for the next agent."""
    return "\n\n".join(f"{one.label}: {shown(one.output) if one.ok else f'({one.outcome}) {one.error}'}" for one in results)


def as_data(result: AgentResult) -> dict[str, Any]:
    """Return a result as the JSON that a ready strategy gives back."""
    said: dict[str, Any] = {"label": result.label, "agent": result.agent, "outcome": result.outcome}
    return {**said, "output": result.output} if result.ok else {**said, "error": result.error, "partial": result.partial}


def failure(results: Sequence[AgentResult]) -> str:
    """Return in one line why agents have failed: equal errors once, the most frequent first."""
    errors = Counter(one.error or one.outcome for one in results if not one.ok)
    if len(results) == 1:
        return f"{results[0].label}: {next(iter(errors), '')}"
    kinds = ", ".join(f"{error!r} ({count})" for error, count in errors.most_common())
    return f"{errors.total()} of {len(results)} agents have no result: {kinds}"


def without_answer(error: str) -> Passed:
    """Return the end of a team that has no answer."""
    return Passed(label="team", scope="team", status="failed", reason="failure_threshold", error=error)
