"""Planner, workers, critic: one agent divides the goal, others do the parts side by side, the planner combines, and a critic checks."""  # row K113

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from detent.core.agent import AgentSpec
from detent.ports import AgentResult, AgentTask, Passed, StrategyRun, strategy
from detent.ports.options import check_fields
from detent.teams.members import TEXT, check_members, check_number, failure, listing, record, section, shown, told, without_answer

VERDICT = record(satisfied={"type": "boolean"}, remarks=TEXT)


class Teamwork(msgspec.Struct, frozen=True, kw_only=True):
    """The last combined result, whether the critic was satisfied with it, the critic's last remarks, and the results of all parts."""

    result: AgentResult
    satisfied: bool
    remarks: str = ""
    parts: tuple[AgentResult, ...] = ()


def steps_of(workers: Sequence[str]) -> dict[str, Any]:
    """Return the schema of a plan: parts of the goal, and who works on each."""
    return record(steps=listing(record(agent={"enum": list(workers)}, goal=TEXT), least=1))


async def planner_worker_critic(
    run: StrategyRun, *, planner: str, workers: Sequence[str], critic: str = "", rounds: int = 2, concurrency: int | None = None
) -> Teamwork:
    """Plan, work, combine and check, until the critic is satisfied, at most `rounds` times. Without a critic, once.

    A part that fails is shown to the planner as such. The team ends early if the planner fails; a critic that fails is not satisfied.
    """
    remarks, parts, last = "", list[AgentResult](), None
    for _ in range(rounds if critic else 1):
        known = section("Results so far", told(parts)) + section("A critic was not satisfied, and says", remarks)
        goal = f"{run.goal}{known}\n\nDivide what is to be done into parts that do not need each other ({', '.join(workers)} can work on them)."
        plan = await run.agent("plan", planner, goal, output_schema=steps_of(workers))
        if not plan.ok:
            return Teamwork(result=last or plan, satisfied=False, remarks=remarks, parts=tuple(parts))
        tasks = [
            AgentTask(agent=step["agent"], goal=f"{step['goal']}{section('It is a part of', run.goal)}", label=step["goal"][:80])
            for step in plan.output["steps"]
        ]
        parts += await run.agents(*tasks, label="work", concurrency=concurrency)
        goal = f"{run.goal}{section('What the parts gave; combine them into one answer', told(parts))}"
        last = await run.agent("combine", planner, goal, output_schema=run.output_schema)
        if not last.ok or not critic:
            return Teamwork(result=last, satisfied=last.ok, remarks=remarks, parts=tuple(parts))
        goal = f"Check this answer against what was asked for.{section('Asked for', run.goal)}{section('Answer', shown(last.output))}"
        verdict = await run.agent("check", critic, goal, output_schema=VERDICT)
        if verdict.ok and verdict.output["satisfied"]:
            return Teamwork(result=last, satisfied=True, remarks=verdict.output["remarks"], parts=tuple(parts))
        remarks = verdict.output["remarks"] if verdict.ok else failure([verdict])
    assert last is not None  # noqa: S101 - there is at least one round
    return Teamwork(result=last, satisfied=False, remarks=remarks, parts=tuple(parts))


class PlannerWorkerCriticOptions(msgspec.Struct, frozen=True, kw_only=True):
    """`planner` divides and combines. `critic` checks ("": nobody). `workers`: who does the parts (all other subagents).

    `rounds`: how often at most. `concurrency`: how many parts at a time (8). `strict`: the run fails if the critic was never satisfied.
    """

    planner: str
    critic: str = ""
    workers: tuple[str, ...] = ()
    rounds: int = 2
    concurrency: int | None = None
    strict: bool = False

    def __post_init__(self) -> None:
        check_fields(self)
        check_number(1, rounds=self.rounds, concurrency=self.concurrency)

    def check(self, agent: AgentSpec) -> None:
        """Raise `ConfigError` for an agent that is not declared, and for a team without workers."""
        check_members(
            agent, self.planner, self.critic, *self.workers, least=1 + len({self.planner, self.critic} - {""}) - bool(self.workers)
        )

    def hands(self, agent: AgentSpec) -> tuple[str, ...]:
        """Return who does the parts."""
        return self.workers or tuple(name for name in agent.subagents if name not in (self.planner, self.critic))


@strategy(options=PlannerWorkerCriticOptions)
async def ready(run: StrategyRun) -> Passed | Any:
    """Divide the goal, work, combine and check; answer with the combined result."""
    options = run.options(PlannerWorkerCriticOptions)
    done = await planner_worker_critic(
        run,
        planner=options.planner,
        workers=options.hands(run.agent),
        critic=options.critic,
        rounds=options.rounds,
        concurrency=options.concurrency,
    )
    if not done.result.ok:
        return without_answer(failure([done.result]))
    return without_answer(f"the critic is not satisfied: {done.remarks}") if options.strict and not done.satisfied else done.result.output
