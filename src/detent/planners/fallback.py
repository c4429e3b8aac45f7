"""`FallbackPlanner`: several planners in order of preference. The next one plans if one fails in a way that another may not.

You can also reserve a candidate for runs with budget to spare: the expensive model first, the cheap one when little is left.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from detent.core.agent import AgentSpec
from detent.core.budget import Budget
from detent.core.errors import ConfigError, Explained, ModelCallFailure, ModelFailureKind
from detent.core.state import Item
from detent.ports import Plan, Planner, View, asks_only_its_own, models_asked, prompt_limits
from detent.ports.options import check_fields, checked_options

FALLS_BACK: tuple[ModelFailureKind, ...] = (
    "rate_limited", "timeout", "connection", "server", "auth", "unknown_model", "quota", "context_overflow", "empty", "queued",
)  # fmt: skip
"""The classes of failure after which the next planner is called. A refusal is an answer, so it is not among them."""


class Candidate(msgspec.Struct, metaclass=Explained, frozen=True, kw_only=True):
    """A planner and when it is used. `while_left` is the least that must be left of each bound (unset: any amount).

    `on` are the classes of its failures after which the next candidate is called (None: `FALLS_BACK`).
    """

    planner: Any
    while_left: Budget = Budget()
    on: tuple[ModelFailureKind, ...] | None = None

    __post_init__ = check_fields

    def affordable(self, left: Budget) -> bool:
        """Whether enough is left of every bound that this candidate names. A bound that the run does not have always passes."""
        for field in Budget.__struct_fields__:
            needed, there = getattr(self.while_left, field), getattr(left, field)
            if needed is not None and there is not None and there < needed:
                return False
        return True


class FallbackPlanner:
    """Calls its candidates in order and returns the first plan. The last candidate is called whatever is left of the budget.

    `candidates`: planners, or `Candidate`s. A candidate that was skipped in one turn is tried again in the next.
    """

    @checked_options
    def __init__(self, candidates: Sequence[Any]) -> None:
        self.candidates = tuple(c if isinstance(c, Candidate) else Candidate(planner=c) for c in candidates)
        if not self.candidates:
            raise ConfigError("FallbackPlanner needs at least one planner; give them in order of preference")
        for candidate in self.candidates:
            if not hasattr(candidate.planner, "plan"):
                raise ConfigError(f"FallbackPlanner: {candidate.planner!r} is not a planner: it has no method plan(view)")

    def begin_run(self, run_id: str) -> None:
        """Tell the candidates that a run begins or resumes."""
        for candidate in self.candidates:
            begin = getattr(candidate.planner, "begin_run", None)
            if begin is not None:
                begin(run_id)

    @property
    def asks_only_its_own(self) -> bool:
        """Whether any candidate asks its own model alone; see `ports.asks_only_its_own`."""
        return any(asks_only_its_own(candidate.planner) for candidate in self.candidates)

    def models_asked(self, agent: AgentSpec) -> list[tuple[str, str]]:
        """Return the models that any candidate may call; see `ports.models_asked`."""
        return [model for candidate in self.candidates for model in models_asked(candidate.planner, agent)]

    def prompt_limits(self, agent: AgentSpec) -> tuple[int, Callable[[Item], int] | None]:
        """Return the smallest known window of the candidates, and the largest count if all of them count; see `ports.prompt_limits`."""
        said = [prompt_limits(candidate.planner, agent) for candidate in self.candidates]
        counts = [count for _, count in said if count is not None]
        window = min((window for window, _ in said if window), default=0)
        return window, (lambda item: max(count(item) for count in counts)) if len(counts) == len(said) else None

    async def close(self) -> None:
        """Close the candidates that can be closed."""
        for candidate in self.candidates:
            close = getattr(candidate.planner, "close", None)
            if close is not None:
                await close()

    async def plan(self, view: View) -> Plan:
        """Return the first plan of a candidate. Raise the last candidate's failure, or at once a failure that no other candidate would avoid."""
        usable = [c for c in self.candidates[:-1] if c.affordable(view.budget_remaining)]
        for candidate in usable:
            planner: Planner = candidate.planner
            try:
                return await planner.plan(view)
            except ModelCallFailure as failure:
                if failure.kind not in (FALLS_BACK if candidate.on is None else candidate.on):
                    raise
        last: Planner = self.candidates[-1].planner
        return await last.plan(view)
