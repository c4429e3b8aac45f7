"""A task graph as data: tasks with their needs, changes, and the outcome of each task so far."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from detent.core.budget import Budget
from detent.ports import AgentResult, AgentTask
from detent.teams.members import section, told


class GraphTask(msgspec.Struct, frozen=True, kw_only=True):
    """A task for an agent. It begins when the tasks in `needs` are completed, and is shown what they have found."""

    id: str
    agent: str
    goal: str
    needs: tuple[str, ...] = ()
    variables: dict[str, Any] = {}
    budget: Budget = Budget()
    output_schema: dict[str, Any] | None = None


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """A change of a graph in progress: tasks to add, to cancel, and failed ones to resume in a new run. What does not fit is ignored."""

    add: tuple[GraphTask, ...] = ()
    cancel: tuple[str, ...] = ()
    resume: tuple[str, ...] = ()


class Graph:
    """A graph in progress. `handovers` only grows: each end of a task, in the order in which they were noticed, also of resumed tasks."""

    def __init__(self, tasks: Sequence[GraphTask] = ()) -> None:
        self.tasks: dict[str, GraphTask] = {}
        self.results: dict[str, AgentResult] = {}
        self.open: dict[str, AgentResult] = {}
        self.handovers: list[AgentResult] = []
        self.add(tasks)

    def add(self, tasks: Sequence[GraphTask]) -> None:
        """Add tasks whose ids are new."""
        for task in tasks:
            self.tasks.setdefault(task.id, task)

    def lacks(self, task: GraphTask) -> list[str]:
        """Return the needs of a task that are not completed."""
        return [need for need in task.needs if need not in self.results or not self.results[need].ok]

    def waiting(self) -> list[GraphTask]:
        """Return the tasks that have not begun."""
        return [task for name, task in self.tasks.items() if name not in self.results and name not in self.open]

    def ready(self) -> list[AgentTask]:
        """Return the tasks that can begin, with what their needs have found."""
        return [self._given(task) for task in self.waiting() if not self.lacks(task)]

    def _given(self, task: GraphTask) -> AgentTask:
        found = section("What the tasks before it gave", told([self.results[need] for need in task.needs]))
        said = {name: getattr(task, name) for name in ("agent", "variables", "budget", "output_schema")}
        return AgentTask(label=task.id, goal=f"{task.goal}{found}", **said)

    def note(self, result: AgentResult) -> None:
        """Note the outcome of a task."""
        self.open.pop(result.label, None)
        if result.outcome == "open":
            self.open[result.label] = result
        elif result.outcome != "not_run":
            self.results[result.label] = result
            self.handovers.append(result)

    def resume(self, name: str) -> None:
        """Let a task that did not succeed be done again, in a new run that is shown how far the last one came."""
        if name in self.results and not self.results[name].ok:
            last, task = self.results.pop(name), self.tasks[name]
            came = f"{last.error}\n{last.partial}"
            self.tasks[name] = msgspec.structs.replace(task, goal=f"{task.goal}{section('An earlier attempt failed', came)}")
