"""What a phase may do: record, plan, execute, note, remember an effect.

`KernelContext` is frozen and built once per pass; every kernel step gets the same object (rows S0-8, S0-10). Its fields are what the pass works
with. Its methods are the only way to the journal, the planner and the tools. `plan` and `execute` refuse past a bound (DESIGN law 4), whoever
calls them. Called again in the same turn, they return the recorded result instead of doing the work twice.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec

from detent.core import events as e
from detent.core.agent import AgentSpec
from detent.core.budget import Exhausted
from detent.core.errors import UnrecordedChange
from detent.core.events import AnyEvent, CallHealed, EffectRecorded, Planned
from detent.core.settle import reached
from detent.core.state import CallState, KernelState, RunState
from detent.kernel.journal import Journal
from detent.ports import (
    ContextProfile,
    Guard,
    KernelHooks,
    Policy,
    ResultCompression,
    Tool,
    ToolSpec,
    View,
    json_problem,
)
from detent.ports.gates import Gate
from detent.ports.outside import BoundReached, World, made, time_left, too_dear
from detent.ports.phases import KernelInput
from detent.ports.verifying import Answers

PHASE_EVENTS = (e.NoteWritten, e.AnswerObjected, e.ContextCompacted, e.MemoryRecalled, e.MemoryProposed, EffectRecorded)
"""The events that a phase may record itself. All others come from `plan` and `execute`."""


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """One opening of a run in this process: the journal and what the run was given. Shared by its passes.

    `guards_with(guards, names)` returns the guards of a pass: those of the run, of the pass's kernel, and those that its strategy names.
    `objection(action, context)` is a pure function that returns why an answer or abstention is not accepted yet, or "". `answers` then decides
    on the answer. `changed(number, returned, context)` records what a phase changed of its own fields. `heal(call, context)` is a pure function that
    returns the repaired call, or None if there is nothing to repair. `control(action, context)` carries out a control action that does not end the pass.
    """

    journal: Journal
    world: World
    tools: dict[str, Tool]
    policy: Policy
    guards_with: Callable[[Sequence[Guard], Sequence[str]], tuple[Guard, ...]]
    hooks: KernelHooks
    profile: ContextProfile
    compression: ResultCompression
    objection: Callable[[Any, Any], str]
    answers: Answers
    view: Callable[[Any], View]
    changed: Callable[[int, Any, Any], None]
    heal: Callable[[Any, Any], CallHealed | None] | None
    control: Callable[[Any, Any], Awaitable[None]]

    @property
    def state(self) -> RunState:
        """The current state of the run."""
        return self.journal.state

    def record(self, scope: str, *events: AnyEvent) -> None:
        """Record events of the pass `scope`."""
        self.journal.record(*events, scope=scope)

    async def effect(
        self, scope: str, label: str, make: Callable[[], Awaitable[Any]], *, occurrence: int = 0, phase: int = -1, commit: bool = False
    ) -> Any:
        """Return the value recorded under scope ("": of the run), phase, label and occurrence, or make and record it now.

        A failure is recorded like a value, and `outside.made` raises it. `World.effect` makes values; in a replay it reads them from the log.
        `commit`: commit the earlier records first, and then the value.
        """
        key = f"{phase}:{label}:{occurrence}"
        if key not in (self.state.passes[scope] if scope else self.state).effects:
            if commit:
                await self.journal.commit()
            value = await self.world.effect(make, label, occurrence, phase)
            self.record(scope, EffectRecorded(label=label, occurrence=occurrence, phase=phase, value=value))
            if commit:
                await self.journal.commit()
        return (self.state.passes[scope] if scope else self.state).effects[key]


class KernelContext(msgspec.Struct, frozen=True, kw_only=True):
    """What one pass works with, and what its phases may do. `specs` has the offered tools, `known` all existing ones.

    `propose` and `carry_out` are the two steps behind `plan` and `execute`; `make_context` passes them in.
    """

    input: KernelInput
    agent: AgentSpec
    profile: ContextProfile
    compression: ResultCompression
    tools: dict[str, Tool]
    hooks: KernelHooks
    guards: tuple[Guard, ...]
    run: Run
    scope: str
    specs: tuple[ToolSpec, ...]
    known: dict[str, ToolSpec]
    propose: Callable[[KernelContext], Awaitable[Planned | None]]
    carry_out: Callable[[KernelContext], Awaitable[None]]
    gate: Gate = msgspec.field(default_factory=Gate)

    @property
    def state(self) -> KernelState:
        """The current state of this pass."""
        return self.run.journal.state.passes[self.scope]

    def record(self, *events: AnyEvent) -> None:
        """Record a phase's own events in this pass. Raise `UnrecordedChange` for an event that only the kernel may record."""
        for event in events:
            if not isinstance(event, PHASE_EVENTS):
                allowed = ", ".join(kind.__name__ for kind in PHASE_EVENTS)
                raise UnrecordedChange(self.run.state.run_id, f"only the kernel may record {type(event).__name__}; phases record {allowed}")
            if problem := json_problem(event, escaping=True):
                why = f"a phase recorded {type(event).__name__} with a value that is not JSON data: {problem}"
                raise UnrecordedChange(self.run.state.run_id, why)
        self.run.record(self.scope, *events)

    async def commit(self, *, durable: bool = False, intent: bool = False) -> None:
        """Commit what was recorded; see `Journal.commit`."""
        await self.run.journal.commit(durable=durable, intent=intent)

    async def plan(self) -> Planned | None:
        """Return this turn's plan. If there is none, call the planner; None if the turn gets no plan. Raise `BoundReached`."""
        self.gate.closed = not self.gate.closed or await self.gate.turn()
        try:
            return await self.propose(self)
        finally:
            self.gate.leave()

    async def execute(self) -> None:
        """Execute this turn's plan as far as possible now. This is the single path to any tool. Raise `BoundReached`."""
        self.gate.closed = not self.gate.closed or await self.gate.turn()
        try:
            await self.carry_out(self)
        finally:
            self.gate.leave()

    def refuse_past_bound(self, *dimensions: str, begun: int = 0, cost: float | None = None) -> None:
        """Raise `BoundReached` if one of these dimensions is used up, or `cost` is more than is left. `begun` calls are running and not counted yet."""
        self.run.world.proceed()
        if (bound := self.past_bound(*dimensions, begun=begun, cost=cost)) is not None:
            raise BoundReached(bound)

    def past_bound(self, *dimensions: str, begun: int = 0, cost: float | None = None) -> Exhausted | None:
        """Return the bound for which `refuse_past_bound` raises."""
        state = self.run.journal.state
        return reached(state, state.passes[self.scope], only=dimensions, begun=begun) or too_dear(state, cost)

    def refuse_past_calls_of(self, tool: str, *, begun: list[tuple[CallState, str]]) -> None:
        """Raise `BoundReached` if the tool has been called as often as allowed. Calls in `begun` with a digest are not counted yet."""
        state = self.run.journal.state
        limit = state.budget.calls_of(tool)
        used = state.calls_of.get(tool, 0) + sum(1 for c, digest in begun if digest and c.tool == tool)
        if limit is not None and used >= limit:
            raise BoundReached(Exhausted(f"tool_calls:{tool}", limit, used))

    def time_left(self) -> float | None:
        """The seconds left: the smaller of running time and total time. None without such a bound."""
        return time_left(self.run.journal.state, self.run.world.running_ms)

    async def effect(self, phase: int, label: str, make: Callable[[], Awaitable[Any]], *, occurrence: int = 0) -> Any:
        """Return the value recorded in this turn under (phase, label, occurrence), or make and record it now. Raise `EffectFailed`."""
        return made(await self.run.effect(self.scope, label, make, occurrence=occurrence, phase=phase))

    def view(self) -> View:
        """Return what a planner would see now, made from the state alone (`running.views`)."""
        return self.run.view(self)
