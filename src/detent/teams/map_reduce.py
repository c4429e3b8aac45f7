"""Map and reduce: one agent works on each item, and the results are combined: by a function, or by another agent."""  # row K111

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import msgspec

from detent.core.agent import AgentSpec
from detent.ports import AgentResult, AgentTask, Passed, StrategyRun, strategy
from detent.ports.options import check_fields
from detent.teams.members import TEXT, as_data, check_members, check_number, failure, listing, record, section, shown, told, without_answer

ITEMS = record(items=listing(TEXT))


async def map_reduce(
    run: StrategyRun,
    items: Sequence[Any],
    reduce: Callable[[Sequence[AgentResult]], Any],
    *,
    mapper: str,
    goal: Callable[[Any], str] = shown,
    concurrency: int | None = None,
) -> Any:
    """Return `reduce` of the results, which are in the order of the items. `goal` makes an item a goal for `mapper`.

    `reduce` gets failed results too, and must return the same for the same results.
    """
    tasks = [AgentTask(agent=mapper, goal=goal(item), label=f"item {number}") for number, item in enumerate(items, 1)]
    return reduce(await run.agents(*tasks, label="map", concurrency=concurrency))


class MapReduceOptions(msgspec.Struct, frozen=True, kw_only=True):
    """`mapper` works on each item. `reducer` combines the results ("": they are the answer). `concurrency`: how many items at a time (8).

    The items are the run's variable `items`. `splitter` makes them from the goal if there is no such variable.
    """

    mapper: str
    reducer: str = ""
    splitter: str = ""
    items: str = "items"
    concurrency: int | None = None

    def __post_init__(self) -> None:
        check_fields(self)
        check_number(1, concurrency=self.concurrency)

    def check(self, agent: AgentSpec) -> None:
        """Raise `ConfigError` for an agent that is not declared."""
        check_members(agent, self.mapper, self.reducer, self.splitter)


@strategy(options=MapReduceOptions)
async def ready(run: StrategyRun) -> Any:
    """Work on each item, then combine."""
    options = run.options(MapReduceOptions)
    items = run.variables.get(options.items)
    if items is None and options.splitter:
        split = await run.agent("split", options.splitter, f"{run.goal}\n\nList the items to work on, one by one.", output_schema=ITEMS)
        if not split.ok:
            return without_answer(failure([split]))
        items = split.output["items"]
    if not isinstance(items, list) or not items:
        return without_answer(f"there are no items: give the run a variable {options.items!r} with a list, or the option splitter")
    each = cast("list[Any]", items)
    results: Sequence[AgentResult] = await map_reduce(
        run,
        each,
        lambda results: results,
        mapper=options.mapper,
        goal=lambda item: f"{run.goal}{section('Work on this item', shown(item))}",
        concurrency=options.concurrency,
    )
    if not any(one.ok for one in results):
        return without_answer(failure(results))
    return await _reduced(run, options, results)


async def _reduced(run: StrategyRun, options: MapReduceOptions, results: Sequence[AgentResult]) -> Passed | Any:
    if not options.reducer:
        return [as_data(one) for one in results]
    goal = f"{run.goal}{section('What was found for each item; combine it into one answer', told(results))}"
    reduced = await run.agent("reduce", options.reducer, goal, output_schema=run.output_schema)
    return reduced.output if reduced.ok else without_answer(failure([reduced]))
