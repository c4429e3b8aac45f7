"""Task graph: tasks as data, each with what it needs. A task begins as soon as its needs are done; nothing waits for a whole wave."""  # row K109

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec

from detent.core.agent import AgentSpec
from detent.core.budget import Budget
from detent.ports import AgentResult, AgentTask, Passed, StrategyRun, strategy
from detent.ports.options import check_fields
from detent.teams.changing import asking_planner
from detent.teams.members import as_data, check_members, check_number, failure, section, told, without_answer


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
    """A change of a graph that is in progress: tasks to add, to cancel, and to do again. A name that does not fit is ignored."""

    add: tuple[GraphTask, ...] = ()
    cancel: tuple[str, ...] = ()
    again: tuple[str, ...] = ()


class Graph:
    """A graph in progress. `handovers` only grows: each end of a task, in the order in which they were noticed, those of repeated tasks too."""

    def __init__(self, tasks: Sequence[GraphTask] = ()) -> None:
        self.tasks: dict[str, GraphTask] = {}
        self.results: dict[str, AgentResult] = {}
        self.open: dict[str, AgentResult] = {}
        self.handovers: list[AgentResult] = []
        self.add(tasks)

    def add(self, tasks: Sequence[GraphTask]) -> None:
        """Add tasks whose ids are new."""
        self.tasks.update({task.id: task for task in tasks if task.id not in self.tasks})

    def ready(self) -> list[GraphTask]:
        """Return the tasks that can begin."""
        todo = [task for name, task in self.tasks.items() if name not in self.results and name not in self.open]
        return [task for task in todo if all(need in self.results and self.results[need].ok for need in task.needs)]

    def noted(self, result: AgentResult) -> None:
        """Note what became of a task."""
        self.open.pop(result.label, None)
        if result.outcome == "open":
            self.open[result.label] = result
        elif result.outcome != "not_run":
            self.results[result.label] = result
            self.handovers.append(result)

    def again(self, name: str) -> None:
        """Let a task that did not succeed be done again, in a new run that is shown how far the last one came."""
        if name in self.results and not self.results[name].ok:
            last, task = self.results.pop(name), self.tasks[name]
            came = section("An earlier attempt failed", f"{last.error}\n{last.partial}")
            self.tasks[name] = msgspec.structs.replace(task, goal=f"{task.goal}{came}")

    def as_task(self, task: GraphTask) -> AgentTask:
        """Return a task that can begin, with what its needs have found."""
        found = section("What the tasks before it gave", told([self.results[need] for need in task.needs]))
        said = {name: getattr(task, name) for name in ("agent", "variables", "budget", "output_schema")}
        return AgentTask(label=task.id, goal=f"{task.goal}{found}", **said)

    def left(self) -> list[AgentResult]:
        """Return a result for each task that never began."""
        lacking = {task.id: [need for need in task.needs if not (need in self.results and self.results[need].ok)] for task in self.tasks.values()}
        return [
            AgentResult(label=name, agent=task.agent, outcome="not_run", error=f"it needs what was not done: {', '.join(lacking[name])}")
            for name, task in self.tasks.items()
            if name not in self.results and name not in self.open
        ]


Decide = Callable[[Graph], Awaitable[Change | None]]


async def task_graph(run: StrategyRun, tasks: Sequence[GraphTask], *, concurrency: int | None = None, decide: Decide | None = None) -> Graph:
    """Do the tasks and return the graph, with a result for each task.

    `decide` is called whenever a task has ended, and may change the graph. It uses nothing but the graph and the run.
    """
    graph = Graph(tasks)
    while ready := [graph.as_task(task) for task in graph.ready()] + list(graph.open.values()):
        for result in await run.agents(*ready, label="tasks", join="any", concurrency=concurrency):
            graph.noted(result)
        change = None if decide is None else await decide(graph)
        if change is not None:
            await _changed(run, graph, change)
    for result in graph.left():
        graph.noted(msgspec.structs.replace(result, outcome="blocked"))
    return graph


async def _changed(run: StrategyRun, graph: Graph, change: Change) -> None:
    graph.add(change.add)
    for name in change.again:
        graph.again(name)
    for name in change.cancel:
        if name in graph.open:  # it needs nobody to end, so it ends at once, and cancels
            graph.noted((await run.agents(graph.open[name], label="cancel", join=0, rest="cancel"))[0])
        elif name in graph.tasks and name not in graph.results:
            graph.noted(AgentResult(label=name, agent=graph.tasks[name].agent, outcome="cancelled", error="cancelled before it began"))


class TaskGraphOptions(msgspec.Struct, frozen=True, kw_only=True):
    """`tasks`: the graph. `planner`: who makes it from the goal if there are none, and changes it, at most `changes` times. `concurrency`: tasks at a time (8)."""

    tasks: tuple[GraphTask, ...] = ()
    planner: str = ""
    changes: int = 2
    concurrency: int | None = None

    def __post_init__(self) -> None:
        check_fields(self)
        check_number(0, changes=self.changes)

    def check(self, agent: AgentSpec) -> None:
        """Raise `ConfigError` for an agent that is not declared."""
        check_members(agent, self.planner, *(task.agent for task in self.tasks))


@strategy(options=TaskGraphOptions)
async def ready(run: StrategyRun) -> Passed | list[dict[str, Any]]:
    """Do the tasks, and answer with all their results."""
    options = run.options(TaskGraphOptions)
    ...
