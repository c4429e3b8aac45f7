"""Direct: one model call, whose answer is the run's answer."""

from __future__ import annotations

import msgspec

from detent.core.agent import AgentSpec
from detent.core.budget import Budget
from detent.core.errors import ConfigError
from detent.ports import Passed, StrategyRun, strategy
from detent.ports.options import check_fields

MOST_TURNS = 3


class DirectOptions(msgspec.Struct, frozen=True, kw_only=True):
    """`turns`: the maximum number of model calls, up to 3. With one, no tool is offered, because nothing could read its result."""

    turns: int = 1

    def __post_init__(self) -> None:
        check_fields(self)
        if not 1 <= self.turns <= MOST_TURNS:
            raise ConfigError(f"strategy_options: turns is {self.turns}; direct allows 1 to {MOST_TURNS}; for more, use reactive")

    def check(self, agent: AgentSpec) -> None:
        """Raise `ConfigError` if the agent has required tools that a single turn cannot call."""
        if agent.required_tools and self.turns == 1:
            wanted = ", ".join(agent.required_tools)
            raise ConfigError(
                f"agent {agent.name!r} requires {wanted}, and direct with one turn offers no tool; give strategy_options turns = 2 or 3, or use reactive"
            )


@strategy(options=DirectOptions)
async def direct(run: StrategyRun) -> Passed:
    """Ask once."""
    turns = run.options(DirectOptions).turns
    return await run.kernel("main", tools=() if turns == 1 else None, limits=Budget(max_iterations=turns))
