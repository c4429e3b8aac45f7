"""Pipeline: agents work one after the other, each on the result of the one before. The first that fails ends it."""  # row T62

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from detent.core.agent import AgentSpec
from detent.ports import AgentResult, Passed, StrategyRun, strategy
from detent.ports.options import check_fields
from detent.teams.members import check_members, members, section, shown, without_answer


class Piped(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of a pipeline: the last state, the results so far, and the stage that failed (None: none did)."""

    output: Any
    results: tuple[AgentResult, ...] = ()
    failed_at: int | None = None

    @property
    def error(self) -> str:
        """Which stage failed, and why; "" if none did."""
        if self.failed_at is None:
            return ""
        failed = self.results[self.failed_at]
        return f"stage {self.failed_at + 1} ({failed.agent}): {failed.error or failed.outcome}"


def usual(goal: str, state: Any, number: int) -> str:
    """Return the goal of a stage: the whole goal, and the result of the stage before."""
    return goal if number == 0 else f"{goal}{section('Continue from this result', shown(state))}"


async def pipeline(run: StrategyRun, stages: Sequence[str], initial: Any = None, *, goal: Callable[[str, Any, int], str] = usual) -> Piped:
    """Let each agent work on the state that the one before returned. `goal` makes a goal of the run's goal, the state and the stage's number (from 0).

    Without stages the output is `initial`.
    """
    state, results = initial, list[AgentResult]()
    for number, name in enumerate(stages):
        schema = run.output_schema if number == len(stages) - 1 else None
        results.append(await run.agent(f"stage-{number + 1}", name, goal(run.goal, state, number), output_schema=schema))
        if not results[-1].ok:
            return Piped(output=state, results=tuple(results), failed_at=number)
        state = results[-1].output
    return Piped(output=state, results=tuple(results))


class PipelineOptions(msgspec.Struct, frozen=True, kw_only=True):
    """`stages`: the agents in order (all subagents)."""

    stages: tuple[str, ...] = ()

    __post_init__ = check_fields

    def check(self, agent: AgentSpec) -> None:
        """Raise `ConfigError` for an agent that is not declared."""
        check_members(agent, *self.stages)


@strategy(options=PipelineOptions)
async def ready(run: StrategyRun) -> Passed | Any:
    """Let the stages work, and answer with the result of the last one."""
    done = await pipeline(run, members(run.agent, run.options(PipelineOptions).stages))
    return without_answer(done.error) if done.failed_at is not None else done.output
