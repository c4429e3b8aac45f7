"""Blueprint: one call plans all calls of tools, with slots for their results; they are made as planned, and one call answers.

No model is called between the steps. A plan that cannot be executed, or one whose steps all fail, is left, and ReAct works on the goal. Model calls: a
plan and an answer, one more if steps failed; if the plan has one step, its result is the answer.
"""  # section 16 of the catalogue

from __future__ import annotations

import msgspec

from detent.ports import Passed, StrategyRun, strategy
from detent.ports.options import check_fields
from detent.strategies.plan_execute import patch_prompt
from detent.strategies.wording import at_least, concluded, required, section
from detent.strategies.work import PlanExecuteOptions, Work

PARALLEL = {"local": 2}


class BlueprintOptions(msgspec.Struct, frozen=True, kw_only=True):
    """`patches`: how often a new plan replaces failed steps. `retries`: of a failed step. `parallel`: steps at once (4; 2 for the tier `local`)."""

    patches: int = 1
    retries: int = 1
    parallel: int | None = None

    def __post_init__(self) -> None:
        check_fields(self)
        at_least(0, patches=self.patches, retries=self.retries)
        at_least(1, parallel=self.parallel)


@strategy(options=BlueprintOptions)
async def blueprint(run: StrategyRun) -> Passed:
    """Plan all calls, make them, answer."""
    options = run.options(BlueprintOptions)
    parallel = options.parallel or PARALLEL.get(run.profile.tier, 4)
    work = Work(run, PlanExecuteOptions(retries=options.retries, parallel=parallel), await run.offered())
    if await work.plan("plan", f"Plan all calls that this goal needs.{section('Goal', run.goal)}", calls=True) is not None:
        return await run.kernel("main")
    planned = [step.tool for step in work.todo]
    if any(planned.count(tool) < count for tool, count in run.agent.required_tools.items()):
        return await run.kernel("main")
    alone = len(work.todo) == 1 and run.output_schema is None
    await work.carry_out()
    for _ in range(options.patches):
        if not (remark := work.problems()) or await work.plan("patch", patch_prompt(run, work, remark), calls=True) is not None:
            break
        await work.carry_out()
    if not work.done:
        tried = section("What did not work", work.problems())
        return await run.kernel("main", task=f"{run.goal}{tried}", guards=("side_effect_once",))
    if alone and not work.problems() and not required(run.agent.required_tools, work.results):
        (output,) = work.done.values()
        return Passed(label="plan", scope="plan", status="done", reason="final_answer", output=output, results=tuple(work.results))
    found = f"{section('What was found out', work.report())}{section('What did not work', work.problems())}"
    return await concluded(run, found, work.results)
