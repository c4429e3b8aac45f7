"""Plan, then execute: for small models. One call lists steps in words, then each step is a small task of its own, and one call answers.

A small model gets lost in a long transcript. Here it sees one step at a time, with the list and the results of the earlier steps.
Model calls: 1 + the turns of each step + 1. If the list has one step, that step gives the answer.
"""

from __future__ import annotations

import re
from typing import Any, cast

import msgspec

from detent.core.budget import Budget
from detent.core.errors import PassFailed
from detent.core.state import Item
from detent.ports import Passed, StrategyRun, read_json, strategy
from detent.ports.options import check_fields
from detent.strategies.showing import Entry, gathered
from detent.strategies.wording import at_least, concluded, required, section

FORM: dict[str, Any] = {
    "type": "object",
    "properties": {"steps": {"type": "array", "items": {"type": "string"}, "minItems": 1}},
    "required": ["steps"],
}

_NUMBERED = re.compile(r"^\s*(?:\d+[.)]|[-*])\s+(\S.*)$", re.MULTILINE)


class StepsOptions(msgspec.Struct, frozen=True, kw_only=True):
    """`steps`: the maximum number of steps. `turns`: the maximum for one step."""

    steps: int = 8
    turns: int = 3

    def __post_init__(self) -> None:
        check_fields(self)
        at_least(1, steps=self.steps, turns=self.turns)


@strategy(options=StepsOptions)
async def plan_then_execute(run: StrategyRun) -> Passed:
    """List the steps, execute them in order, and answer."""
    options = run.options(StepsOptions)
    steps = await _steps(run, options)
    if len(steps) < 2:
        return await run.kernel("main")
    gave: list[Entry] = []
    passes: list[Passed] = []
    results: list[Item] = []
    for number, step in enumerate(steps, 1):
        task = (
            f"Step {number} of {len(steps)} towards a goal. Do this step and no other, then report the result.\n\nStep:\n{step}"
            f"{section('Goal', run.goal)}{section('What the steps before gave', gathered(run, gave))}"
        )
        marks = ["done" if n < number else "now" if n == number else "later" for n in range(1, len(steps) + 1)]
        plan = "Your plan:\n" + "\n".join(f"{n}. {text} ({mark})" for n, (text, mark) in enumerate(zip(steps, marks, strict=True), 1))
        limits = Budget(max_iterations=options.turns)
        guards = ("side_effect_once",) if number > 1 else ()
        passed = await run.kernel(f"step-{number}", task=task, guidance=(plan,), guards=guards, limits=limits, output_schema={})
        passes.append(passed)
        results += passed.results
        came = passed.output if passed.status == "done" else f"FAILED: {passed.error or passed.reason}"
        gave.append(Entry(title=f"{number}. {step}:", value=came))
    if all(passed.status == "failed" for passed in passes):
        return msgspec.structs.replace(passes[-1], results=tuple(results))
    return await concluded(run, section("What the steps gave", gathered(run, gave)), results, rest="; say what failed")


async def _steps(run: StrategyRun, options: StepsOptions) -> list[str]:
    """Return the steps that the model lists. If it lists none, the goal is worked on as a whole."""
    names = ", ".join(spec.name for spec in await run.offered() if not spec.ends_turn)
    prompt = (
        f"Do not act yet. List the steps that this goal needs, one short sentence for each, in order, at most {options.steps}."
        f"{section('Goal', run.goal)}{section('Tools that the steps can use', names)}{section('Tools that must succeed', required(run.agent.required_tools))}"
    )
    try:
        said = await run.ask("plan", prompt, FORM, small=False)
    except PassFailed:
        return []
    return listed(said)[: options.steps]


def listed(said: Any) -> list[str]:
    """Return the steps in a model's answer: in the requested form, as a bare list, or as numbered lines."""
    if isinstance(said, str):
        try:
            said = read_json(said)
        except (msgspec.DecodeError, RecursionError, UnicodeEncodeError):
            return [found.strip() for found in _NUMBERED.findall(said)]
    steps: Any = cast("dict[str, Any]", said).get("steps") if isinstance(said, dict) else said
    return [step.strip() for step in cast("list[Any]", steps) if isinstance(step, str) and step.strip()] if isinstance(steps, list) else []
