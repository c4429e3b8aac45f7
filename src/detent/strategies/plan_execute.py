"""Plan and execute: one call plans, the steps run in waves, one call reviews the results, one gives the answer.

Model calls: a plan, a reflection and a synthesis, one for each analysis and k for each step of work; a step that only calls a tool costs none. If the
only step is an analysis, it gives the answer. Completed steps never run again: a patch (one call) replaces the failed steps and those that waited
for them.
"""

from __future__ import annotations

import msgspec

from detent.core.errors import PassFailed
from detent.ports import Passed, StrategyRun, strategy
from detent.strategies.wording import CRITIC, VERDICT, concluded, section, verdict
from detent.strategies.work import PlanExecuteOptions, Work


@strategy(options=PlanExecuteOptions)
async def plan_execute(run: StrategyRun) -> Passed:
    """Plan, execute, reflect, answer."""
    return await carry_through(run, run.options(PlanExecuteOptions))


async def carry_through(run: StrategyRun, options: PlanExecuteOptions) -> Passed:
    """Work with these options."""
    work = Work(run, options, await run.offered())
    unplanned = await work.plan("plan", f"Make a plan for this goal.{section('Goal', run.goal)}")
    if unplanned is not None:
        return unplanned
    alone = len(work.todo) == 1 and work.todo[0].kind == "analysis" and run.output_schema is None
    for left in range(options.refinements, -1, -1):
        await work.carry_out()
        if alone and work.last is not None and work.done and not work.lacking():
            return work.last
        alone = False
        remark = work.problems() or await _reflect(run, work)
        if not remark or not left or await work.plan("patch", patch_prompt(run, work, remark)) is not None:
            break
    if not work.done:
        nothing = Passed(
            label="steps", scope="", status="failed", reason="failure_threshold", error=f"no step succeeded: {work.problems()}"
        )
        return msgspec.structs.replace(nothing, results=tuple(work.results))
    found = f"{section('What was found out', work.report())}{section('What did not work', work.problems())}"
    return await concluded(run, found, work.results)


async def _reflect(run: StrategyRun, work: Work) -> str:
    """Return what is missing for the goal, or "". If the reflection fails, nothing counts as missing."""
    prompt = f"Is this enough to achieve the goal?{section('Goal', run.goal)}{section('What the steps gave', work.report())}\n\n{VERDICT}"
    try:
        satisfied, remark = verdict(await run.ask("reflect", prompt, instructions=CRITIC, **work.options.judge.said()))
    except PassFailed:
        return ""
    return "" if satisfied else remark or "it is not enough"


def patch_prompt(run: StrategyRun, work: Work, remark: str) -> str:
    """Return the prompt that asks for steps in place of those that failed."""
    return (
        "The plan needs a patch. Give only the steps that are still to be done, in place of those that failed; steps that are done stay as "
        "they are, are not run again, and can be referred to. Take new ids."
        f"{section('Goal', run.goal)}{section('Done', work.report())}{section('What is wrong', remark)}"
    )
