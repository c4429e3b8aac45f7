"""Shared by the strategies: one model call as a branch, the answer of a critic, the answer of the run."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from detent.core.budget import Budget
from detent.core.errors import ConfigError
from detent.core.state import Item
from detent.ports import Branch, Passed, StrategyRun
from detent.strategies.showing import shown

CRITIC = "You check work against what was asked for. You are exact and fair, and you make nothing up."
VERDICT = (
    "Answer in this form. The first line is SATISFIED: or UNSATISFIED: with the reason in one sentence. After UNSATISFIED: say in a few lines "
    "what is wrong or missing, most important first."
)
GIVEN_UP = ("max_iterations", "no_progress", "failure_threshold")
"""End reasons of a pass that tried but did not finish; another pass may finish."""

_VERDICT = re.compile(r"\W*(UNSATISFIED|SATISFIED)\b[:\s*]*(.*)", re.DOTALL)


def trivial(goal: str) -> bool:
    """Whether a goal is too short for a strategy to help: at most 12 words and 80 characters."""
    return len(goal) <= 80 and len(goal.split()) <= 12


def asking(label: str, prompt: str, schema: dict[str, Any] | None = None, **options: Any) -> Branch:
    """Return a branch with one model call without tools, for `run.parallel`. `options` are other fields of a `Branch`."""
    limits = Budget(max_iterations=1)
    return Branch(label=label, task=prompt, kernel="ask", tools=(), output_schema=schema or {}, limits=limits, **options)


def verdict(said: Any) -> tuple[bool, str]:
    """Return whether a critic is satisfied, and its text. A critic without a clear verdict is not satisfied."""
    found = _VERDICT.match(shown(said))
    return (found[1] == "SATISFIED", found[2].strip()) if found else (False, shown(said).strip())


def required(wanted: Mapping[str, int], results: Sequence[Item] = ()) -> str:
    """Return the required tools that have not succeeded often enough, and how often they still must; "" if none."""
    done = Counter(item.tool for item in results if item.ok and item.executed)
    return ", ".join(f"{tool} ({count - done[tool]} more)" for tool, count in wanted.items() if done[tool] < count)


async def concluded(run: StrategyRun, found: str, results: Sequence[Item], *, rest: str = "") -> Passed:
    """Answer the goal from the findings, with one call without tools.

    If required tools of the agent have not succeeded often enough, an ordinary pass runs instead. It must use them, and ends like any other
    pass (`endings`).
    """
    lacking = required(run.agent.required_tools, results)
    if lacking:
        task = f"{run.goal}{found}{section('Tools that must succeed before you answer', lacking)}"
        passed = await run.kernel("answer", task=task, guards=("side_effect_once",))
    else:
        task = f"{run.goal}{found}\n\nGive the answer now, from this alone{rest}."
        passed = await run.kernel("answer", task=task, kernel="ask", tools=(), limits=Budget(max_iterations=1))
    return msgspec.structs.replace(passed, results=(*results, *passed.results))


def section(title: str, text: str) -> str:
    """Return a titled part of a prompt, "" without a text."""
    return f"\n\n{title}:\n{text}" if text.strip() else ""


def at_least(least: float, **given: float | None) -> None:
    """Raise `ConfigError` for an option below `least`."""
    for name, value in given.items():
        if value is not None and not value >= least:
            raise ConfigError(f"strategy_options: {name} is {value}; give at least {least:g}")
