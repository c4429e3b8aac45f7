"""Vote: several agents answer the same question, and the most frequent answer wins."""  # row K112

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from detent.core.agent import AgentSpec
from detent.expressions.agreeing import plain, plurality
from detent.ports import AgentResult, AgentTask, Passed, StrategyRun, strategy
from detent.ports.options import check_fields
from detent.teams.members import check_members, check_number, failure, members, without_answer


class Vote(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of a vote: the first result with the winning answer, its key, the share of all voters that gave it, and all results.

    `result` is None if nobody has answered.
    """

    result: AgentResult | None
    key: str
    agreement: float
    results: tuple[AgentResult, ...]


async def vote(
    run: StrategyRun,
    tasks: Sequence[AgentTask],
    *,
    answer_key: Callable[[Any], str] = plain,
    concurrency: int | None = None,
    label: str = "vote",
) -> Vote:
    """Let all tasks be done and count their answers by key. If two are equally frequent, the one wins that gets there first, in the order of the tasks.

    The agreement is recorded, and the run's receipt has it.
    """
    results = await run.agents(*tasks, label=label, concurrency=concurrency)
    keys = [answer_key(one.output) if one.ok else None for one in results]
    place, most = plurality(keys)
    agreement = most / len(results) if results else 0.0

    async def found() -> float:
        return agreement

    await run.effect("agreement", found)
    if place is None:
        return Vote(result=None, key="", agreement=agreement, results=results)
    return Vote(result=results[place], key=keys[place] or "", agreement=agreement, results=results)


class VoteOptions(msgspec.Struct, frozen=True, kw_only=True):
    """`agents`: who votes (all subagents). `votes`: how often each of them does. `concurrency`: how many at a time (8)."""

    agents: tuple[str, ...] = ()
    votes: int = 1
    concurrency: int | None = None

    def __post_init__(self) -> None:
        check_fields(self)
        check_number(1, votes=self.votes, concurrency=self.concurrency)

    def check(self, agent: AgentSpec) -> None:
        """Raise `ConfigError` for an agent that is not declared."""
        check_members(agent, *self.agents)


@strategy(options=VoteOptions)
async def ready(run: StrategyRun) -> Passed | Any:
    """Give each agent the run's goal, and answer with the most frequent answer."""
    options = run.options(VoteOptions)
    tasks = [
        AgentTask(agent=name, goal=run.goal, label=f"{name} {number}", output_schema=run.output_schema)
        for name in members(run.agent, options.agents)
        for number in range(1, options.votes + 1)
    ]
    voted = await vote(run, tasks, concurrency=options.concurrency)
    return without_answer(failure(voted.results)) if voted.result is None else voted.result.output
