"""What a phase or a meta-tool gets: facts to read, and the few things that it may do. It does not reach the log, the store or a tool.

This facade keeps honest code honest: none of its attributes, private ones included, leads to the run's journal. It is not a security boundary:
code that walks frames or closures can reach anything in its process. Do not put untrusted code into a kernel.
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
from detent.ports.planning import ContextProfile, Models, ResultCompression, View
from detent.ports.tools import ToolSpec


class KernelInput(msgspec.Struct, frozen=True, kw_only=True):
    """The input of a pass: the task in words, and what every strategy passes on unchanged (lesson L9)."""

    task: str
    instructions: str = ""
    variables: dict[str, Any] = {}
    limits: Budget = Budget()
    guidance: tuple[str, ...] = ()
    output_schema: dict[str, Any] | None = None
    small: bool = False


class SeenWorld(msgspec.Struct, frozen=True, kw_only=True):
    """What a phase can reach outside: `full(item)` returns the whole value of a tool item, `models(context)` the run's gateway to models."""

    full: Callable[[Item], Awaitable[Any]]
    models: Callable[[Any], Models | None]


class SeenRun(msgspec.Struct, frozen=True, kw_only=True):
    """The run, read-only. `now` makes the copy that `state` returns."""

    now: Callable[[], RunState]
    world: SeenWorld

    @property
    def state(self) -> RunState:
        """A copy of the run's current state."""
        return self.now()


class PhaseContext(msgspec.Struct, frozen=True, kw_only=True):
    """What the phases of one pass and its meta-tools can read and do. Each phase of a pass gets the same object.

    `specs` has the tools that the policy offers, `tools` all tools of the pass by name. `plan()` returns this turn's plan; if there is none, it
    calls the planner. `execute()` runs the plan. Both raise `BoundReached`. `record(*events)` takes a phase's own events and raises
    `UnrecordedChange` for others. `effect(phase, label, make, occurrence=0)` returns the value recorded in this turn, or makes and records it;
    it raises `EffectFailed`. `commit(durable=False)` stores what was recorded. `time_left()` is in seconds, None without a bound. `view()` is
    what a planner would see now.
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
    view: Callable[[], View]

    @property
    def state(self) -> KernelState:
        """A copy of this pass's current state. Changes count only if the phase returns it."""
        return self.now()
