"""Switching: when a way of working gets stuck, the next one takes over with what was found, at most twice.

Only the log decides: the reason for which a pass ended, and which calls failed in it. No model is asked. All ways share the log, the usage and the
bounds of the run. Model calls: those of the ways.
"""  # section 5 of the catalogue

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec

from detent.core.budget import Budget
from detent.core.errors import ConfigError
from detent.core.state import Item
from detent.ports import Branch, Passed, StrategyRun, strategy
from detent.ports.options import check_fields
from detent.strategies.plan_execute import PlanExecuteOptions, carry_through
from detent.strategies.reflexion import ReflexionOptions, reflect
from detent.strategies.showing import observed, part, room
from detent.strategies.tree_of_thought import TreeOptions, explore
from detent.strategies.wording import GIVEN_UP, at_least, section

WAYS = ("reactive", "plan-execute", "reflexion", "tree-of-thought")
MOST = 2
"""How often a run may switch."""
STUCK = (*GIVEN_UP, "output_schema_failed", "malformed_plan")
"""End reasons after which another way takes over. All others are honest ends, or concern the run."""
REFLECTIONS = 1
"""How often a planner that brings nothing new is told so, before the next way takes over."""
AGAIN = 2
"""After so many equal failures of a tool, the next way is told of them."""


class SwitchingOptions(msgspec.Struct, frozen=True, kw_only=True):
    """`first`: the way to begin with. `then`: what takes over, in this order, at most two. `turns`: of ReAct before another takes over.

    The ways are `reactive`, `plan-execute`, `reflexion` and `tree-of-thought`; the other three options are theirs.
    """

    first: str = "reactive"
    then: tuple[str, ...] = ("plan-execute", "reactive")
    turns: int = 10
    plan_execute: PlanExecuteOptions = PlanExecuteOptions()
    reflexion: ReflexionOptions = ReflexionOptions()
    tree_of_thought: TreeOptions = TreeOptions()

    def __post_init__(self) -> None:
        check_fields(self)
        at_least(1, turns=self.turns)
        if unknown := [name for name in (self.first, *self.then) if name not in WAYS]:
            raise ConfigError(f"strategy_options: switching cannot use {unknown[0]!r}; it can use {', '.join(WAYS)}")
        if len(self.then) > MOST:
            raise ConfigError(f"strategy_options: then names {len(self.then)} strategies; a run switches at most {MOST} times")


class Continued:
    """What a strategy works with that takes over: its goal also says what was found, and no effect of the earlier passes is repeated."""

    def __init__(self, run: StrategyRun, found: str) -> None:
        self._run = run
        self.goal = f"{run.goal}{found}"

    def __getattr__(self, name: str) -> Any:
        return getattr(self._run, name)

    async def kernel(self, label: str, **options: Any) -> Passed:
        """Run one pass; see `ports.StrategyRun.kernel`."""
        return await self._run.kernel(**_fields(self._careful(Branch(label=label, **options))))

    async def parallel(self, *branches: Branch) -> tuple[Passed, ...]:
        """Run passes side by side; see `ports.StrategyRun.parallel`."""
        return await self._run.parallel(*(self._careful(branch) for branch in branches))

    def _careful(self, branch: Branch) -> Branch:
        guards = tuple(dict.fromkeys((*branch.guards, "side_effect_once")))
        task = branch.task or ("" if branch.calls or branch.question is not None else self.goal)
        return branch if branch.kernel == "ask" else msgspec.structs.replace(branch, task=task, guards=guards)


@strategy(options=SwitchingOptions)
async def switching(run: StrategyRun) -> Passed:
    """Work in the first way, and switch where it is stuck."""
    options = run.options(SwitchingOptions)
    passed = await _worked(run, options, options.first)
    results = list(passed.results)
    for name in options.then:
        if passed.status == "done" or passed.reason not in STUCK or not await spare(run):
            break
        await run.switch(name, "; ".join([f"{passed.reason}: {passed.error}", *failures(passed.results)]))
        far = section("How far it got", part(run, passed.partial, most=room(run) // 4))
        passed = await _worked(Continued(run, f"{handed_on(run, results)}{far}"), options, name)  # type: ignore[arg-type]
        results += passed.results
    return msgspec.structs.replace(passed, results=tuple(results))


async def _worked(run: StrategyRun, options: SwitchingOptions, name: str) -> Passed:
    ways: dict[str, Callable[[], Awaitable[Passed]]] = {
        "reactive": lambda: run.kernel("main", limits=Budget(max_iterations=options.turns, max_reflections=REFLECTIONS)),
        "plan-execute": lambda: carry_through(run, options.plan_execute),
        "reflexion": lambda: reflect(run, options.reflexion),
        "tree-of-thought": lambda: explore(run, options.tree_of_thought),
    }
    return await ways[name]()


def handed_on(run: StrategyRun, results: Sequence[Item]) -> str:
    """Return what the next way is told of the earlier ones: what the tools gave, and which of them fail."""
    found = section("What the tools gave in an earlier attempt; do not ask for it again", observed(run, results, recalls=True))
    return found + section("What failed in it", "\n".join(failures(results)))


def failures(results: Sequence[Item]) -> list[str]:
    """Return the tools that failed in the same way more than once, the most frequent first."""
    counts = Counter((item.tool, item.error.code) for item in results if item.error is not None)
    return [f"{tool} failed {count} times ({code})" for (tool, code), count in counts.most_common() if count >= AGAIN]


async def spare(run: StrategyRun) -> bool:
    """Whether more than one turn and model call is left, as it was when this was first asked."""
    left = run.budget_remaining

    async def read() -> bool:
        return all(bound is None or bound > 1 for bound in (left.max_iterations, left.max_model_calls))

    return await run.effect("spare", read)


def _fields(branch: Branch) -> dict[str, Any]:
    return {name: getattr(branch, name) for name in branch.__struct_fields__}
