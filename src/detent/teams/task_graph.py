"""Task graph: tasks as data, each with what it needs. A task begins as soon as its needs are done; nothing waits for a whole wave."""  # row K109

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec

from detent.core.agent import AgentSpec
from detent.ports import AgentResult, Passed, StrategyRun, strategy
from detent.ports.options import check_fields
from detent.teams.graph import Change, Graph, GraphTask
from detent.teams.members import (
    TEXT,
    as_data,
    check_members,
    check_number,
    failure,
    listing,
    members,
    record,
    section,
    told,
    without_answer,
)

Decide = Callable[[Graph], Awaitable[Change]]


async def task_graph(
    run: StrategyRun,
    tasks: Sequence[GraphTask],
    *,
    concurrency: int | None = None,
    decide: Decide | None = None,
    every: float | str | None = None,
) -> Graph:
    """Do the tasks and return the graph, with a result for each.

    `decide` is called whenever a task has ended, and `every` so often (seconds, or "10m") while none has; it may change the graph. It depends on nothing
    but the graph and the run: what it reads elsewhere goes through `run.effect`.
    """
    graph = Graph(tasks)
    while todo := [*graph.open.values(), *graph.ready()]:
        for result in await run.agents(*todo, label="tasks", join="any", concurrency=concurrency, deadline=every):
            graph.note(result)
        if decide is not None:
            await _change(run, graph, await decide(graph))
    for task in graph.waiting():
        why = f"it needs what was not completed: {', '.join(graph.lacks(task))}"
        graph.note(AgentResult(label=task.id, agent=task.agent, outcome="blocked", error=why))
    return graph


async def _change(run: StrategyRun, graph: Graph, change: Change) -> None:
    graph.add(change.add)
    for name in change.resume:
        graph.resume(name)
    for name in change.cancel:
        if name in graph.open:  # none of it has to end first
            graph.note((await run.agents(graph.open[name], label="cancel", join=0, rest="cancel"))[0])
        elif name in graph.tasks and name not in graph.results:
            graph.note(AgentResult(label=name, agent=graph.tasks[name].agent, outcome="cancelled", error="cancelled before it began"))


class TaskGraphOptions(msgspec.Struct, frozen=True, kw_only=True):
    """`tasks`: the graph. `planner`: who makes it if there are none, and changes it when a task failed or all are done, `changes` times at most."""

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
    options, left = run.options(TaskGraphOptions), run.options(TaskGraphOptions).changes
    workers = [name for name in members(run.agent) if name != options.planner]
    form = record(id=TEXT, agent={"enum": workers}, goal=TEXT, needs=listing(TEXT))

    async def planned(graph: Graph) -> Change:
        known = section("The tasks so far", told([*graph.results.values(), *graph.open.values()]))
        goal = f"{run.goal}{known}\n\nAdd tasks, cancel some, or resume failed ones. Leave the lists empty if nothing is to be done."
        plan = await run.agent(
            "plan", options.planner, goal, output_schema=record(add=listing(form), cancel=listing(TEXT), resume=listing(TEXT))
        )
        return msgspec.convert(plan.output, Change) if plan.ok else Change()

    async def decide(graph: Graph) -> Change:
        nonlocal left
        if not (options.planner and left) or (graph.handovers[-1].ok and (graph.open or graph.ready())):
            return Change()
        left -= 1
        return await planned(graph)

    tasks = options.tasks or ((await planned(Graph())).add if options.planner else ())
    done = await task_graph(run, tasks, concurrency=options.concurrency, decide=decide)
    results = [done.results[name] for name in done.tasks]
    return (
        [as_data(one) for one in results]
        if any(one.ok for one in results)
        else without_answer(failure(results) if results else "there are no tasks")
    )
