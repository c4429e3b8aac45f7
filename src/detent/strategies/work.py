"""A plan in progress: gets a plan, runs its steps in waves, and keeps the result of each."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import msgspec

from detent.core.actions import ToolCall
from detent.core.budget import Budget
from detent.core.errors import PassFailed
from detent.core.state import Item
from detent.ports import Branch, OwnModel, Passed, StrategyRun, ToolSpec
from detent.ports.options import check_fields
from detent.strategies.calls import CALLS_FORM, CALLS_RULES
from detent.strategies.plans import FORM, RULES, Step, Unresolved, listed, read_plan, resolved, told
from detent.strategies.showing import Entry, gathered, part, room
from detent.strategies.wording import asking, at_least, required, section

REPAIRS = 2
"""How often a new plan is requested if a plan cannot be executed."""
UNTOUCHED = ("timeout", "handler_error", "not_executed")
"""Tool failures after which the same call may be repeated once, if that is harmless."""


class PlanExecuteOptions(msgspec.Struct, frozen=True, kw_only=True):
    """`refinements`: the maximum of plan changes. `turns`: the maximum of a step of work. `retries`: those of a failed step. `parallel`: steps at once.

    `judge`: the model that reviews the results of the steps, instead of the small one.
    """

    refinements: int = 2
    turns: int = 3
    retries: int = 1
    parallel: int = 4
    judge: OwnModel = OwnModel()

    def __post_init__(self) -> None:
        check_fields(self)
        at_least(0, refinements=self.refinements, retries=self.retries)
        at_least(1, turns=self.turns, parallel=self.parallel)


class Work:
    """A plan in progress: the steps `todo`, the results of the `done` steps, why others `failed`, and all tool `results` so far."""

    def __init__(self, run: StrategyRun, options: PlanExecuteOptions, tools: Sequence[ToolSpec]) -> None:
        self.run, self.options = run, options
        self.todo: tuple[Step, ...] = ()
        self.done: dict[str, Any] = {}
        self.failed: dict[str, str] = {}
        self.results: list[Item] = []
        self.last: Passed | None = None
        self._tries: dict[str, int] = {}
        self._calls: dict[str, str] = {}
        self._tools = {spec.name: spec for spec in tools if not spec.ends_turn}

    async def plan(self, label: str, prompt: str, *, calls: bool = False) -> Passed | None:
        """Get the steps to execute from here on. If there is no plan, return the failure. `calls`: a plan of calls alone, requested once."""
        problem, form, rules = "", CALLS_FORM if calls else FORM, CALLS_RULES if calls else RULES
        known = section("Tools", listed(tuple(self._tools.values()))) + section("Tools that must succeed", self.lacking())
        for _ in range(1 if calls else 1 + REPAIRS):
            told = f"\n\nYour last plan cannot be carried out: {problem}. Give the whole plan again." if problem else ""
            try:
                said = await self.run.ask(label, f"{prompt}{known}\n\n{rules}{told}", form, small=False)
            except PassFailed as failed:
                return failed.passed
            steps, problem = read_plan(said, tools=self._tools, known=self.done, calls=calls)
            if not problem:
                self.todo, self.failed, self._tries = steps, {}, {}
                return None
        return Passed(label=label, scope=label, status="failed", reason="output_schema_failed", error=f"no plan: {problem}")

    async def carry_out(self) -> None:
        """Run the steps in waves until no step can run."""
        for _ in range(len(self.todo) * (1 + self.options.retries)):
            ready = [step for step in self.todo if step.id not in self.failed and step.needs <= self.done.keys()]
            if not ready:
                break
            for first in range(0, len(ready), self.options.parallel):
                await self._wave(ready[first : first + self.options.parallel])
            self.todo = tuple(step for step in self.todo if step.id not in self.done)

    async def _wave(self, steps: Sequence[Step]) -> None:
        """Run steps concurrently. Steps that only call a tool form one batch, in which writing calls keep their order."""
        batch: list[tuple[Step, ToolCall]] = []
        thinking: list[tuple[Step, Branch]] = []
        for step in steps:
            try:
                if step.kind == "tool":
                    batch.append((step, ToolCall(tool=step.tool, args=resolved(step.args, self.done), reason=step.task)))
                else:
                    thinking.append((step, self._branch(step)))
            except Unresolved as error:
                self.failed[step.id] = f"a reference of it leads nowhere: {error}"
        branches = [branch for _, branch in thinking]
        if batch:
            branches.insert(0, Branch(label="tools", task="; ".join(s.id for s, _ in batch), calls=tuple(call for _, call in batch)))
        passes = list(await self.run.parallel(*branches)) if len(branches) > 1 else [await self.run.kernel(**_fields(b)) for b in branches]
        self.results += [item for one in passes for item in one.results]
        if batch:
            items = passes.pop(0).results
            for (step, _), item in zip(batch, items, strict=False):
                await self._called(step, item)
        for (step, _), one in zip(thinking, passes, strict=True):
            self._thought(step, one)

    def _branch(self, step: Step) -> Branch:
        works = step.kind == "work"

        def show(value: Any, name: str, count: int) -> str:
            return part(self.run, value, most=room(self.run) // count, key=self._key(name), recalls=works)

        context = section("What earlier steps gave", self.report(step.after, recalls=works))
        task = f"{told(step.task, self.done, show)}{context}{section('It is a step towards', self.run.goal)}"
        if step.kind == "analysis":
            return asking(f"step-{step.id}", task)
        again = ("side_effect_once",) if self._tries.get(step.id) else ()
        return Branch(label=f"step-{step.id}", task=task, guards=again, limits=Budget(max_iterations=self.options.turns), output_schema={})

    async def _called(self, step: Step, item: Item) -> None:
        if item.error is None:
            self.done[step.id], self._calls[step.id] = await self.run.full(item), item.call_id
            return
        spec = self._tools[step.tool]
        harmless = item.error.code == "not_executed" or (item.error.code in UNTOUCHED and (spec.read_only or spec.idempotent))
        self._not_done(step, f"{item.error.code}: {item.error.message}", again=harmless)

    def _thought(self, step: Step, passed: Passed) -> None:
        self.last = passed
        if passed.status == "done":
            self.done[step.id] = passed.output
        else:
            self._not_done(step, passed.error or passed.reason, again=True)

    def _not_done(self, step: Step, why: str, *, again: bool) -> None:
        self._tries[step.id] = self._tries.get(step.id, 0) + 1
        if not again or self._tries[step.id] > self.options.retries:
            self.failed[step.id] = why

    def report(self, names: Collection[str] | None = None, *, recalls: bool = False) -> str:
        """Return the results of the completed steps (or those in `names`), in the form of `gathered`."""
        done = [(name, self.done[name]) for name in (self.done if names is None else names)]
        entries = [Entry(title=f"{name}:", value=value, key=self._key(name), result=name in self._calls) for name, value in done]
        return gathered(self.run, entries, recalls=recalls)

    def _key(self, name: str) -> str:
        """Return the key of a step's result: the id of its call, or the reference that plans use."""
        return self._calls.get(name, f"{{{{{name}}}}}")

    def problems(self) -> str:
        """Return the steps that failed or could not start, and why; "" if all are done."""
        waiting = [f"{step.id}: not begun, it needs what failed" for step in self.todo if step.id not in self.failed]
        lacking = [f"required, and not done: {lacking}" for lacking in [self.lacking()] if lacking]
        most = self.run.profile.tool_result_max_chars
        failed = [f"{name}: {part(self.run, why, most=most)}" for name, why in self.failed.items()]
        return "\n".join([*failed, *waiting, *lacking])

    def lacking(self) -> str:
        """Return the required tools that have not succeeded often enough in the steps, or ""."""
        return required(self.run.agent.required_tools, self.results)


def _fields(branch: Branch) -> dict[str, Any]:
    return {name: getattr(branch, name) for name in branch.__struct_fields__}
