"""Adaptive: one call to the small model chooses a strategy for the goal. If that strategy does not finish, ReAct takes over once.

The words of the goal choose nothing: only a model knows that a "pension plan" does not mean a plan to execute. The choice, the chosen strategy and
the fallback share one log and one usage total. Model calls: 0 or 1, plus those of the strategies.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from typing import Any, cast

import msgspec

from detent.core.errors import PassFailed
from detent.ports import Passed, StrategyRun, strategy
from detent.ports.options import check_fields
from detent.strategies.plan_execute import PlanExecuteOptions, carry_through
from detent.strategies.reflexion import ReflexionOptions, reflect
from detent.strategies.showing import part
from detent.strategies.switching import STUCK, handed_on, spare
from detent.strategies.tree_of_thought import TreeOptions, explore
from detent.strategies.wording import section, trivial

USUAL = "reactive"
KINDS = {
    USUAL: "one thing to find or do, with or without tools",
    "plan-execute": "several steps, some of which do not depend on each other",
    "tree-of-thought": "a hard choice or puzzle with many possible ways",
    "reflexion": "a text or result whose quality matters and that gains from revision",
}
FORM: dict[str, Any] = {"type": "object", "properties": {"strategy": {"enum": list(KINDS)}}, "required": ["strategy"]}
SHOWN_GOAL = 4_000
"""How much of a long goal the choosing model sees, in characters."""


class AdaptiveOptions(msgspec.Struct, frozen=True, kw_only=True):
    """`classify`: whether the small model chooses the strategy (otherwise ReAct is used). `fall_back`: whether ReAct takes over if the chosen
    strategy does not finish.

    The other three are the options of the strategies to choose from.
    """

    classify: bool = True
    fall_back: bool = True
    plan_execute: PlanExecuteOptions = PlanExecuteOptions()
    reflexion: ReflexionOptions = ReflexionOptions()
    tree_of_thought: TreeOptions = TreeOptions()

    __post_init__ = check_fields


@strategy(options=AdaptiveOptions)
async def adaptive(run: StrategyRun) -> Passed:
    """Choose a strategy, run it, and fall back to ReAct if needed."""
    options = run.options(AdaptiveOptions)
    name, why = await _chosen(run, ask=options.classify)
    await run.switch(name, why)
    ways: dict[str, Callable[[], Awaitable[Passed]]] = {
        USUAL: lambda: run.kernel("main"),
        "plan-execute": lambda: carry_through(run, options.plan_execute),
        "tree-of-thought": lambda: explore(run, options.tree_of_thought),
        "reflexion": lambda: reflect(run, options.reflexion),
    }
    passed = await ways[name]()
    if passed.status == "done" or name == USUAL or not options.fall_back or passed.reason not in STUCK:
        return passed
    await run.switch(USUAL, f"{name} ended with {passed.reason}: {passed.error}")
    return await run.kernel("main", task=f"{run.goal}{handed_on(run, passed.results)}", guards=("side_effect_once",))


async def _chosen(run: StrategyRun, *, ask: bool) -> tuple[str, str]:
    """Return the strategy for the goal, and why: the model's choice, or ReAct if it gives none or is not called."""
    if run.profile.tier == "local":
        return USUAL, "the model is small"
    if trivial(run.goal):
        return USUAL, "it is short"
    if not ask:
        return USUAL, "no model is to be asked"
    if not await spare(run):
        return USUAL, "the budget has no call to spare for a choice"
    kinds = "\n".join(f"- {name}: {what}" for name, what in KINDS.items())
    goal = part(run, run.goal, most=SHOWN_GOAL)
    try:
        said = await run.ask("classify", f"Which way of working fits this goal best?\n{kinds}{section('Goal', goal)}", FORM)
    except PassFailed as failed:
        return USUAL, f"the model gave no answer: {failed.passed.reason}"
    name = named(said)
    return (name, "the model chose it") if name else (USUAL, "the model named no strategy")


def named(said: Any) -> str:
    """Return the strategy that an answer names, in any spelling, or "" for any other answer, such as a text about strategies."""
    value: Any = cast("dict[str, Any]", said).get("strategy") if isinstance(said, dict) else said
    plain = re.sub(r"[\W_]+", "-", value).strip("-").lower() if isinstance(value, str) else ""
    return plain if plain in KINDS else ""
