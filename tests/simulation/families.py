"""Trees of runs that share a memory: what a wide schedule runs, and what must hold of a tree and of a memory.

at each commit   a child begins once, after its parent has said so and before its parent has ended; its end is joined once, as its log has it; what
a run has used, with all that its open children have used, is within its bounds, and so is what is reserved; what is written to the memory is there
at the end       each child has a parent that names it, no open child outlives its parent, nothing stays reserved, and the memory has no item of a
call that no log knows
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any

import msgspec

from detent import Agent, Budget, FinalAnswer, Plan, ToolCall, Usage, View
from detent.core import events as e
from detent.core.actions import AskUser, Schedule
from detent.core.budget import NOTHING
from detent.core.state import RunState
from detent.memories.ram import RamMemory
from detent.running.remembering import item_id
from simulation.choices import Choices
from simulation.inputs import NAMES, PLAIN, Task

MANAGING = ("spawn_agent", "join_agent", "cancel_agent")
REMEMBERING = ("remember", "correct", "forget")
MOST_RUNS, DEEPEST = 6, 2
DIMENSIONS = ("iterations", "model_calls", "tool_calls")


def without_ledger(tool: str) -> bool:
    """Whether the effect of a tool is in no ledger: it is a run, or a memory item."""
    return tool.startswith("agent_") or tool in MANAGING or tool in REMEMBERING


# What runs ------------------------------------------------------------------------------------------------------------------------


class Scripts:
    """What the runs of a tree do, by their goals: drawn from the top down."""

    def __init__(self, choices: Choices) -> None:
        self._choices = choices
        self.turns: dict[str, tuple[Any, ...]] = {}
        self.remembers = choices.chance(0.4)

    def draw(self, depth: int = 0) -> str:
        """Draw one more run, and return its goal."""
        goal = f"goal {len(self.turns)}"
        self.turns[goal] = ()
        self.turns[goal] = tuple(self._turn(depth) for _ in range(self._choices.below(2) + (depth == 0)))
        return goal

    def _turn(self, depth: int) -> Any:
        kind = self._choices.below(12)
        if kind < 10:
            return tuple(self._call(depth) for _ in range(1 + self._choices.below(3)))
        return AskUser(question="well?") if kind == 10 else Schedule(delay_s=7.0)

    def _call(self, depth: int) -> ToolCall:
        below, number = self._choices.below, self._choices.below(12)
        kind = below(8)
        if depth < DEEPEST and kind < 5:
            started = len(self.turns) < MOST_RUNS and kind < 3
            more: dict[str, Any] = {"on_parent_end": ("cancel", "wait", "leave")[below(3)], "budget": ({}, {"max_tool_calls": 2})[below(2)]}
            match kind:
                case 0 | 1 if started:
                    return ToolCall(tool="agent_helper", args={"goal": self.draw(depth + 1), **more})
                case 2 if started:
                    return ToolCall(tool="spawn_agent", args={"agent": "helper", "goal": self.draw(depth + 1), **more})
                case 3:
                    return ToolCall(tool="cancel_agent", args={"child": str(number), "wait": ("none", "accepted", "ended")[below(3)]})
                case _:
                    return ToolCall(tool="join_agent", args={"child": str(number)})
        if self.remembers and kind == 5:
            return ToolCall(tool="remember", args={"content": f"fact {number}"})
        if self.remembers and kind == 6:
            return ToolCall(tool="correct", args={"items": [str(number)], "content": f"right {number}"})
        return ToolCall(tool=PLAIN[below(len(PLAIN))], args={"n": number})


def family_of(choices: Choices) -> Task:
    """Draw a tree of at most `MOST_RUNS` runs, as the task of its root."""
    scripts = Scripts(choices)
    goal = scripts.draw()
    most = choices.one_of(
        [Budget(), Budget(max_tool_calls=6), Budget(max_tool_calls=3), Budget(max_iterations=5), Budget(max_model_calls=5)]
    )
    options: dict[str, Any] = {"on_unknown": "tell", "on_reject": choices.one_of(["observe", "stop"])}
    options["budget"] = Budget(max_failed_turns=30, max_non_progress=30)
    memory: dict[str, Any] | None = {"scope": ""} if scripts.remembers else None
    own = [*NAMES, *(REMEMBERING if scripts.remembers else ())]
    agent = Agent(name="helper", tools=own, memory=memory, **options)
    for name in ("helper", "agent"):
        agent = Agent(name=name, tools=[*own, *MANAGING], memory=memory, subagents={"helper": agent}, **options)
    usage = choices.one_of([Usage(), Usage(input_tokens=3, model_calls=1)])
    return Task(run_id="run-0", agent=agent, goal=goal, turns=(), scripts=scripts.turns, usage=usage, budget=most)


class FamilyPlans:
    """Plans for all runs of a tree, by their goals, so that every process plans the same."""

    def __init__(self, task: Task, breathe: Callable[[], Awaitable[None]]) -> None:
        self._task, self._breathe = task, breathe

    async def plan(self, view: View) -> Plan:
        """Return the plan of a turn. What joins, cancels or corrects has the child or the item that is there, if there is one."""
        await self._breathe()
        turns = self._task.scripts[view.goal]
        if view.iteration > len(turns):
            said = [item.content if item.ok and item.artifact is None else item.tool for item in view.results]
            return Plan(actions=(FinalAnswer(content=said or "done"),), usage=self._task.usage)
        given = turns[view.iteration - 1]
        children = [item.content["child"] for item in view.results if item.tool == "spawn_agent" and item.ok]
        items = [item.content["id"] for item in view.results if item.tool in REMEMBERING and item.ok]
        actions = given if isinstance(given, tuple) else (given,)
        return Plan(actions=tuple([_named(action, children, items) for action in actions]), usage=self._task.usage)


def _named(action: Any, children: Sequence[str], items: Sequence[str]) -> Any:
    if isinstance(action, ToolCall) and "child" in action.args and children:
        return msgspec.structs.replace(action, args={**action.args, "child": children[int(action.args["child"]) % len(children)]})
    if isinstance(action, ToolCall) and "items" in action.args and items:
        return msgspec.structs.replace(action, args={**action.args, "items": [items[int(action.args["items"][0]) % len(items)]]})
    return action


# The memory -----------------------------------------------------------------------------------------------------------------------


class DiskMemory(RamMemory):
    """A memory on a virtual disk, as one process has it: each change is durable."""

    url = "disk:"

    def __init__(self, kept: dict[str, Any], by_id: dict[str, set[str]], around: Any) -> None:
        super().__init__()
        self._items, self._by_id, self._around = kept, by_id, around

    async def _change(self, steps: Any, vectors: Any = None) -> Any:
        await self._around.before("memory", writes=True)
        changed = await super()._change(steps, vectors)
        await self._around.after("memory")
        return changed

    async def _look(self, steps: Any) -> Any:
        await self._around.before("memory", writes=False)
        return await super()._look(steps)

    async def _search(self, asked: Any) -> Any:
        await self._around.before("memory", writes=False)
        return await super()._search(asked)


# What must hold -------------------------------------------------------------------------------------------------------------------


class Families:
    """What the reference model says of trees and of the memory."""

    def __init__(self, reference: Any, demand: Callable[[object, str, str], None]) -> None:
        self._of, self._demand = reference, demand
        self._begun: dict[tuple[str, str], str] = {}
        self._joined: dict[str, dict[str, Usage]] = {}

    def hear(self, run_id: str, before: RunState, state: RunState, events: Sequence[Any]) -> None:
        """Check a commit that leads a run from one state to another."""
        for event in events:
            match event:
                case e.RunStarted(delegated=e.Delegated() as by, parent=parent):
                    self._begins(run_id, parent, by, state)
                case e.SubagentSpawned(child=child, call=call):
                    self._once(run_id, call, child)
                case e.SubagentJoined():
                    self._joins(run_id, event, before, state)
                case e.MemoryWritten(item_id=item) | e.MemoryProposed(item_id=item, refused=""):
                    there = not item or item in self._of.disk.item_keys
                    self._demand(there, "what is remembered is kept", f"{run_id} has written {item}, and the memory does not have it")
                case _:
                    pass
        above: str = run_id
        while above and above in self._of.states | {run_id: state}:
            now = state if above == run_id else self._of.states[above]
            self._within(now, run_id, state)
            above = now.parent if now.delegated is not None and not now.delegated.left else ""

    def _once(self, parent: str, call: str, child: str) -> None:
        known = self._begun.setdefault((parent, call), child)
        self._demand(known == child, "each child once", f"call {call} of {parent} starts {child} after {known}")

    def _begins(self, child: str, parent: str, by: e.Delegated, state: RunState) -> None:
        if parent in self._of.damaged or parent in self._of.erased:
            return
        self._once(parent, by.call, child)
        above = self._of.state(parent)
        known = above.children.get(child)
        what = f"{child} begins, and {parent}"
        self._demand(
            known is not None and known.spawned.call == by.call, "a child begins after its parent has said so", f"{what} does not know it"
        )
        self._demand(known is not None and known.status == "open" and not above.terminal, "no child begins for a run that has ended", what)
        for name in DIMENSIONS:
            own, most = (getattr(budget, f"max_{name}") for budget in (state.budget, known.spawned.budget))
            self._demand(
                most is None or (own is not None and own <= most), "no bound is exceeded", f"{child} may use {own} {name}, not {most}"
            )

    def _joins(self, run_id: str, event: e.SubagentJoined, before: RunState, state: RunState) -> None:
        """A join has the end of the child as the child's log has it."""
        child, joined = event.child, self._joined.setdefault(run_id, {})
        open_yet = child not in before.children or before.children[child].status == "open"
        self._demand(open_yet, "a child is joined once", f"{run_id} joins {child}, which it had joined")
        joined[child] = event.usage
        if event.outcome == "left" or child in self._of.damaged or child in self._of.erased:
            return
        kept = self._of.disk.runs.get(child)
        if not event.sequence:
            self._demand(kept is None, "a join has the end of the child", f"{run_id} says that {child} never began")
            return
        line = b"" if kept is None or len(kept.records) < event.sequence else kept.records[event.sequence - 1]
        same = line.endswith(b'"digest":"%b"}' % event.digest.encode())
        self._demand(same, "a join has the end of the child", f"{run_id} joins {child} at record {event.sequence}, which is another")
        ended = self._of.state(child)
        self._demand(
            ended.terminal or ended.dead_letter, "a join has the end of the child", f"{run_id} joins {child}, which is {ended.status}"
        )
        if ended.seq == event.sequence and event.outcome != "lost":
            self._demand(
                event.usage == ended.counted, "a join has the end of the child", f"{child} used {ended.counted}, not {event.usage}"
            )

    def _within(self, state: RunState, changed: str, after: RunState) -> None:
        """No bound of a run is exceeded by what it and the runs below it have used, nor by what it counts."""
        used = self._below(state, changed, after)
        for at, name in enumerate(DIMENSIONS):
            bound = getattr(state.budget, f"max_{name}")
            if bound is not None:
                what = f"{name} of {bound}, after a record of {changed}"
                self._demand(used[at] <= bound, "no bound is exceeded", f"{state.run_id} and below: {used[at]} {what}")
                counted = getattr(state.counted, name)
                self._demand(counted <= bound, "no bound is exceeded", f"{state.run_id} counts {counted} {what}")

    def _below(self, state: RunState, changed: str, after: RunState) -> list[int]:
        """Return what a run and all runs below it have really used, joined or not."""
        joined = self._joined.get(state.run_id, {})
        found = [getattr(state.usage, name) for name in DIMENSIONS]
        for child in state.children.values():
            own = after if child.child == changed else self._of.states.get(child.child)
            if child.status != "open" and child.child in joined:
                given = joined[child.child]
                own = None if child.status in ("left", "lost") or own is None or own.seq == 0 else own
                found = found if own is None else [n - getattr(given, name) for n, name in zip(found, DIMENSIONS, strict=True)]
            if own is not None:
                found = [n + m for n, m in zip(found, self._below(own, changed, after), strict=True)]
        return found

    def ends(self, run_id: str, state: RunState) -> None:
        """Check a run that has finished, at the end of the schedule."""
        left = [child.child for child in state.children.values() if child.status == "open"]
        self._demand(not left, "no child outlives its parent unseen", f"{run_id} has ended, and {left} are open")
        self._demand(state.held == NOTHING, "what is reserved is given back", f"{run_id} has ended, and {state.held} is reserved")

    def survive(self) -> None:
        """Check what is on the disk: each child has a parent that names it, and each item of the memory a call."""
        for run_id, state in self._of.states.items():
            if state.delegated is None or state.parent in self._of.damaged or state.parent in self._of.erased:
                continue
            known = self._of.state(state.parent).children
            self._demand(run_id in known, "a child has a parent that names it", f"{state.parent} knows nothing of {run_id}")
        if self._of.damaged or self._of.erased:
            return
        intended = {item_id(run_id, call) for run_id, calls in self._of.calls.items() for call in calls.tool}
        for item in self._of.disk.item_keys:
            self._demand(item in intended, "intent before effect", f"the memory has {item}, and no log has a call that wrote it")


def members(names: Sequence[str], root: str) -> Iterator[str]:
    """Yield the runs of a tree that are there, the root first; its forks are not among them."""
    yield root
    yield from (name for name in names if name.startswith(f"{root}.c") and "-fork" not in name)
