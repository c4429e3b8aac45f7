"""What a phase or a meta-tool is given: facts to read, and the few things that it may do. It cannot reach the log, the store or a tool by it.

A facade in one process keeps honest code honest: it has no attribute, private ones included, that leads to the run's journal. It is no wall:
code that walks frames or closures gets anywhere in its process. What is not trusted does not belong into a kernel.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from detent.core.agent import AgentSpec
from detent.core.budget import Budget
from detent.core.events import Planned
from detent.core.state import Item, KernelState, RunState
from detent.ports.governance import Guard
from detent.ports.planning import ContextProfile, Models, ResultCompression
from detent.ports.tools import ToolSpec


class KernelInput(msgspec.Struct, frozen=True, kw_only=True):
    """What a pass is to do: the task in words, and what every strategy hands on unchanged (lesson L9)."""

    task: str
    instructions: str = ""
    variables: dict[str, Any] = {}
    limits: Budget = Budget()
    guidance: tuple[str, ...] = ()
    output_schema: dict[str, Any] | None = None
    small: bool = False


class SeenWorld(msgspec.Struct, frozen=True, kw_only=True):
    """What a phase reaches outside: `full(item)` gives the whole value of a tool item, `models(context)` the run's way to models."""

    full: Callable[[Item], Awaitable[Any]]
    models: Callable[[Any], Models | None]


class SeenRun(msgspec.Struct, frozen=True, kw_only=True):
    """The run, for reading; `now` makes the copy that `state` is."""

    now: Callable[[], RunState]
    world: SeenWorld

    @property
    def state(self) -> RunState:
        """The state of the run now: a copy."""
        return self.now()


class PhaseContext(msgspec.Struct, frozen=True, kw_only=True):
    """What the phases of one pass, and its meta-tools, read and may do; each phase of a pass is given the same object.

    `specs` are the tools that the policy lets be offered, `tools` all of the pass, by name. `plan()` gives this turn's plan and asks the planner
    when there is none, `execute()` carries it out; both raise `BoundReached`. `record(*events)` takes a phase's own events and raises
    `UnrecordedChange` for others. `effect(phase, label, make, occurrence=0)` gives the value recorded in this turn, or makes and records it;
    it raises `EffectFailed`. `commit(durable=False)` makes what was recorded last. `time_left()` is in seconds, None without a bound.
    """

    input: KernelInput
    agent: AgentSpec
    profile: ContextProfile
    compression: ResultCompression
    tools: dict[str, ToolSpec]
    guards: tuple[Guard, ...]
    specs: tuple[ToolSpec, ...]
    scope: str
    run: SeenRun
    now: Callable[[], KernelState]
    plan: Callable[[], Awaitable[Planned | None]]
    execute: Callable[[], Awaitable[None]]
    record: Callable[..., None]
    effect: Callable[..., Awaitable[Any]]
    commit: Callable[..., Awaitable[None]]
    time_left: Callable[[], float | None]

    @property
    def state(self) -> KernelState:
        """The state of this pass now: a copy. What is written into it counts when the phase returns it, and is refused otherwise."""
        return self.now()
