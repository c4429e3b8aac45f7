"""A planner that follows a script, for tests, demonstrations and benchmarks without a model."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, cast, get_args

from detent.core.actions import AnyAction
from detent.core.agent import AgentSpec
from detent.core.errors import PlannerFailed
from detent.ports import Plan, View

Answer = Plan | AnyAction | tuple[AnyAction, ...] | list[AnyAction]
Entry = Answer | Callable[[View], Answer | Awaitable[Answer]]

_ACTIONS: tuple[type, ...] = get_args(AnyAction)


class ScriptedPlanner:
    """A planner that returns its entries, one for each `plan` call, including retries of a rejected plan.

    An entry is a Plan, an action, a tuple (or list) of actions, or a function of the view that returns one of these; the function may
    be a coroutine function and may raise. Each run and scope has its own place in the script. The script restarts when an engine starts or resumes
    the run (`begin_run`); an approval by the engine's own approver does not restart it. After the last entry `plan` raises `PlannerFailed`.
    """

    def __init__(self, entries: Iterable[Entry]) -> None:
        self.entries = tuple(entries)
        self._next: dict[tuple[str, str], int] = {}
        for number, entry in enumerate(self.entries, 1):
            if not callable(entry):
                _as_plan(entry, number)

    def models_asked(self, agent: AgentSpec) -> tuple[tuple[str, str], ...]:
        """Return nothing: a script calls no model, even if its agent names one; see `ports.models_asked`."""
        return ()

    def begin_run(self, run_id: str) -> None:
        """Restart the script for this run in all scopes; called by an engine that starts or resumes the run."""
        for key in [key for key in self._next if key[0] == run_id]:
            del self._next[key]

    def reset(self, run_id: str) -> None:
        """Do the same as `begin_run`, for tests that drive the planner by hand."""
        self.begin_run(run_id)

    def go_on(self, run_id: str, scope: str, *, after: int) -> None:
        """Continue after the first `after` entries in this run and scope: the log of a resumed run already has those."""
        self._next[run_id, scope] = after

    async def plan(self, view: View) -> Plan:
        """Return the next entry as a plan. Raise `PlannerFailed` if there is none, or whatever a function entry raises."""
        key = (view.run_id, view.scope)
        position = self._next.get(key, 0)
        if position >= len(self.entries):
            size = "1 entry" if len(self.entries) == 1 else f"{len(self.entries)} entries"
            raise PlannerFailed(
                f"the script of {size} is used up: iteration {view.iteration} of pass {view.scope!r} asked for entry {position + 1}; "
                "add one, or end the script with an answer"
            )
        self._next[key] = position + 1
        entry: Any = self.entries[position]
        if callable(entry):
            entry = entry(view)
            if inspect.isawaitable(entry):
                entry = await entry
        return _as_plan(entry, position + 1)


def _as_plan(entry: Any, number: int) -> Plan:
    if isinstance(entry, Plan):
        return entry
    if isinstance(entry, _ACTIONS):
        return Plan(actions=(entry,))
    if isinstance(entry, tuple | list):
        actions = tuple(cast("list[Any]", entry))
        if all(isinstance(action, _ACTIONS) for action in actions):
            return Plan(actions=actions)
    raise TypeError(
        f"entry {number} of the script is {entry!r}; it must be a Plan, an action, a tuple of actions, or a function of the view giving one"
    )
