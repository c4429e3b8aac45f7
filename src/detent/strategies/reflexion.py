"""Reflexion: generate, let a critic review, improve. Calls that had an effect are not repeated.

Model calls: k + n·(1 + k) for n rounds and k turns a pass. A round in which the critic is satisfied has only the critic's call. If the critic
fails, the finished draft is kept. A later pass sees the earlier ones in less than half of the window: the draft, the critique and the results, each
with how much of it is not shown.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from detent.core.budget import Budget
from detent.core.errors import PassFailed
from detent.core.state import Item
from detent.ports import OwnModel, Passed, StrategyRun, strategy
from detent.ports.options import check_fields
from detent.strategies.showing import observed, part, room
from detent.strategies.wording import CRITIC, GIVEN_UP, VERDICT, at_least, section, verdict

SAME = 0.8
"""How far the beginnings of two critiques must agree to count as the same. Another round would then change nothing."""


class ReflexionOptions(msgspec.Struct, frozen=True, kw_only=True):
    """`rounds`: the maximum of critique and improvement. `turns`: the maximum of one pass. `judge`: the model for critique, instead of the small one.

    `block`: what a later pass may not repeat. "tools": a tool that is not idempotent and had an effect is not called again with any arguments.
    "calls": only the same call is not repeated, so another recipient can still be served.
    """

    rounds: int = 3
    turns: int = 3
    block: Literal["tools", "calls"] = "tools"
    judge: OwnModel = OwnModel()

    def __post_init__(self) -> None:
        check_fields(self)
        at_least(1, rounds=self.rounds, turns=self.turns)


@strategy(options=ReflexionOptions)
async def reflexion(run: StrategyRun) -> Passed:
    """Generate, critique, improve."""
    return await reflect(run, run.options(ReflexionOptions))


async def reflect(run: StrategyRun, options: ReflexionOptions) -> Passed:
    """Work with these options. The result is the last pass that had an answer."""
    last = await run.kernel("generate", limits=Budget(max_iterations=options.turns))
    answer = last if last.status == "done" else None
    results, critique = list(last.results), ""
    for _ in range(options.rounds):
        if answer is None:
            if last.reason not in GIVEN_UP:
                break
            remark = f"There is no answer yet: {last.error or last.reason}."
        else:
            satisfied, remark = await _critique(run, options, answer, results)
            if satisfied or same(critique, remark):
                break
        critique = remark
        last = await _improve(run, options, answer, critique, results)
        results += last.results
        answer = last if last.status == "done" else answer
    return msgspec.structs.replace(answer or last, results=tuple(results))


async def _critique(run: StrategyRun, options: ReflexionOptions, answer: Passed, results: list[Item]) -> tuple[bool, str]:
    prompt = (
        f"Is this answer what was asked for: complete, correct, and backed by what the tools gave?\n\nAsked for:\n{run.goal}"
        f"{section('Answer', part(run, answer.output, most=room(run)))}{section('What the tools gave', observed(run, results))}\n\n{VERDICT}"
    )
    try:
        return verdict(await run.ask("critique", prompt, instructions=CRITIC, **options.judge.said()))
    except PassFailed:
        return True, "[critique skipped]"


async def _improve(run: StrategyRun, options: ReflexionOptions, answer: Passed | None, critique: str, results: list[Item]) -> Passed:
    effects = {spec.name for spec in run.tools if not (spec.read_only or spec.idempotent)}
    done = sorted({item.tool for item in results if item.ok and item.executed and item.tool in effects})
    meta: dict[str, Any] = {"blocked_tools": done} if done and options.block == "tools" else {}
    draft = "" if answer is None else part(run, answer.output, most=room(run) // 2)
    task = (
        f"{run.goal}{section('Your earlier answer', draft)}{section('What is wrong with it', part(run, critique, most=room(run) // 4))}"
        f"{section('What the tools gave; do not ask for it again', observed(run, results, recalls=True))}\n\n"
        "Give the whole answer again, with this put right."
    )
    limits = Budget(max_iterations=options.turns)
    return await run.kernel("improve", task=task, limits=limits, guards=("blocked", "side_effect_once"), meta=meta)


def same(before: str, now: str) -> bool:
    """Whether a critique repeats the one before: equal, or alike over 80 % of the longer one's beginning."""
    longest = max(len(before), len(now))
    agreeing = next((i for i, (a, b) in enumerate(zip(before, now, strict=False)) if a != b), min(len(before), len(now)))
    return bool(before) and agreeing >= SAME * longest
