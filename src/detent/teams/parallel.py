"""Parallel: agents work on goals side by side; the results come back in the order of the goals."""  # row K110

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from detent.core.agent import AgentSpec
from detent.core.durations import Seconds, usually
from detent.ports import AgentResult, AgentTask, Passed, StrategyRun, strategy
from detent.ports.options import check_fields
from detent.teams.members import as_data, check_members, check_number, failure, members, without_answer


async def parallel(
    run: StrategyRun,
    tasks: Sequence[AgentTask],
    *,
    concurrency: int | None = None,
    join: Literal["all", "any"] | int = "all",
    deadline: float | str | None = None,
    rest: Literal["let", "cancel"] = "cancel",
) -> tuple[AgentResult, ...]:
    """Return the outcome of each task. A task that fails is a result, too."""
    return await run.agents(*tasks, label="parallel", concurrency=concurrency, join=join, deadline=deadline, rest=rest)


class ParallelOptions(msgspec.Struct, frozen=True, kw_only=True):
    """`agents`: who works on the goal (all subagents). `concurrency`: how many at a time (8). `join`: how many results are enough. `deadline`: seconds."""

    agents: tuple[str, ...] = ()
    concurrency: int | None = None
    join: Literal["all", "any"] | int = "all"
    deadline: Seconds[float | None] = usually(None)

    def __post_init__(self) -> None:
        check_fields(self)
        check_number(1, concurrency=self.concurrency)

    def check(self, agent: AgentSpec) -> None:
        """Raise `ConfigError` for an agent that is not declared."""
        check_members(agent, *self.agents)


@strategy(options=ParallelOptions)
async def ready(run: StrategyRun) -> Passed | list[dict[str, Any]]:
    """Give each agent the run's goal, and answer with all their results."""
    options = run.options(ParallelOptions)
    tasks = [AgentTask(agent=name, goal=run.goal) for name in members(run.agent, options.agents)]
    results = await parallel(run, tasks, concurrency=options.concurrency, join=options.join, deadline=options.deadline)
    return [as_data(one) for one in results] if any(one.ok for one in results) else without_answer(failure(results))
