"""Debate: agents argue in rounds, each with what the others said last, and a judge decides."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from detent.core.agent import AgentSpec
from detent.core.errors import ConfigError
from detent.ports import AgentResult, AgentTask, Passed, StrategyRun, strategy
from detent.ports.options import check_fields
from detent.teams.members import check_members, check_number, failure, members, section, told, without_answer


class Debated(msgspec.Struct, frozen=True, kw_only=True):
    """The judge's decision, and the words of each round."""

    decision: AgentResult
    rounds: tuple[tuple[AgentResult, ...], ...]


async def debate(run: StrategyRun, sides: Sequence[str], judge: str, *, rounds: int = 2) -> Debated:
    """Let the sides argue, and the judge decide. A side that fails in a round says nothing in it."""
    said: list[tuple[AgentResult, ...]] = []
    for _ in range(rounds):
        last = said[-1] if said else ()
        tasks = [AgentTask(agent=side, goal=_argue(run.goal, number, last), label=side) for number, side in enumerate(sides)]
        said.append(await run.agents(*tasks, label="round"))
    whole = "\n\n".join(f"Round {number}\n{told(results)}" for number, results in enumerate(said, 1))
    goal = f"{run.goal}{section('The words of a debate about it; decide, and give the answer', whole)}"
    return Debated(decision=await run.agent("judge", judge, goal, output_schema=run.output_schema), rounds=tuple(said))


def _argue(goal: str, number: int, last: Sequence[AgentResult]) -> str:
    others = [one for at, one in enumerate(last) if at != number and one.ok]
    mine = [one for at, one in enumerate(last) if at == number and one.ok]
    before = section("What you said last", told(mine)) + section(
        "What the others said last; agree, or say where they are wrong", told(others)
    )
    return f"{goal}{before}\n\nGive your answer and your reasons."


class DebateOptions(msgspec.Struct, frozen=True, kw_only=True):
    """`judge`: who decides. `sides`: who argues (all other subagents). `rounds`: how often each side speaks."""

    judge: str
    sides: tuple[str, ...] = ()
    rounds: int = 2

    def __post_init__(self) -> None:
        check_fields(self)
        check_number(1, rounds=self.rounds)

    def check(self, agent: AgentSpec) -> None:
        """Raise `ConfigError` for an agent that is not declared, and for a debate with one side."""
        check_members(agent, self.judge, *self.sides)
        if len(self.parties(agent)) < 2:
            raise ConfigError(
                "strategy_options: a debate needs at least two sides beside the judge; declare them in subagents, or list sides twice"
            )

    def parties(self, agent: AgentSpec) -> tuple[str, ...]:
        """Return who argues."""
        return self.sides or tuple(name for name in members(agent) if name != self.judge)


@strategy(options=DebateOptions)
async def ready(run: StrategyRun) -> Passed | Any:
    """Let the sides argue about the goal, and answer as the judge decides."""
    options = run.options(DebateOptions)
    done = await debate(run, options.parties(run.agent), options.judge, rounds=options.rounds)
    return done.decision.output if done.decision.ok else without_answer(failure([done.decision]))
