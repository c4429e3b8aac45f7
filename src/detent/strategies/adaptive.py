"""Adaptive: choose a strategy for the goal, by plain signs where there are some, else by one call, and fall back to ReAct once.

What the choice, the chosen strategy and the fallback use is on one log and in one sum. Model calls: 0 or 1, and those of the strategies.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, cast

import msgspec

from detent.core.errors import PassFailed
from detent.ports import Passed, StrategyRun, strategy
from detent.ports.options import check_fields
from detent.strategies.heuristics import chosen, tier_of
from detent.strategies.plan_execute import PlanExecuteOptions, carry_through
from detent.strategies.reflexion import ReflexionOptions, reflect
from detent.strategies.showing import observed
from detent.strategies.tree_of_thought import TreeOptions, explore
from detent.strategies.wording import GIVEN_UP, section

USUAL = "reactive"
KINDS = {
    USUAL: "one thing to find or do, with or without tools",
    "plan-execute": "several steps, some of which do not depend on each other",
    "tree-of-thought": "a hard choice or puzzle with many possible ways",
    "reflexion": "a text or result whose quality matters and that gains from revision",
}
FORM: dict[str, Any] = {"type": "object", "properties": {"strategy": {"enum": list(KINDS)}}, "required": ["strategy"]}
FALLS_BACK = (*GIVEN_UP, "output_schema_failed", "malformed_plan")


class AdaptiveOptions(msgspec.Struct, frozen=True, kw_only=True):
    """`classify`: whether a model may be asked which strategy fits; `fall_back`: whether ReAct takes over from one that came to no end.

    The other three are the options of the strategies that may be chosen.
    """

    classify: bool = True
    fall_back: bool = True
    plan_execute: PlanExecuteOptions = PlanExecuteOptions()
    reflexion: ReflexionOptions = ReflexionOptions()
    tree_of_thought: TreeOptions = TreeOptions()

    __post_init__ = check_fields


@strategy(options=AdaptiveOptions)
async def adaptive(run: StrategyRun) -> Passed:
    """Choose, run what was chosen, fall back."""
    options = run.options(AdaptiveOptions)
    name, why = chosen(run.goal, tools=len(run.tools), tier=tier_of(run.agent))
    if not name and options.classify:
        name, why = await _classified(run), "the model chose it"
    name = name or USUAL
    await run.switch(name, why or "nothing speaks for another")
    ways: dict[str, Callable[[], Awaitable[Passed]]] = {
        USUAL: lambda: run.kernel("main"),
        "plan-execute": lambda: carry_through(run, options.plan_execute),
        "tree-of-thought": lambda: explore(run, options.tree_of_thought),
        "reflexion": lambda: reflect(run, options.reflexion),
    }
    passed = await ways[name]()
    if passed.status == "done" or name == USUAL or not options.fall_back or passed.reason not in FALLS_BACK:
        return passed
    await run.switch(USUAL, f"{name} ended with {passed.reason}: {passed.error}")
    found = section("What the tools gave in an earlier attempt; do not ask for it again", observed(run, passed.results, recalls=True))
    return await run.kernel("main", task=f"{run.goal}{found}", guards=("side_effect_once",))


async def _classified(run: StrategyRun) -> str:
    """Return the strategy that the model names, "" when it names none."""
    kinds = "\n".join(f"- {name}: {what}" for name, what in KINDS.items())
    try:
        said = await run.ask("classify", f"Which way of working fits this goal best?\n{kinds}{section('Goal', run.goal)}", FORM)
    except PassFailed:
        return ""
    named: Any = cast("dict[str, Any]", said).get("strategy") if isinstance(said, dict) else said
    return named if isinstance(named, str) and named in KINDS else ""
