"""Runs phases and meta-tools from outside Detent with a facade and copies; their changes to these are recorded or refused.

A phase may change `meta`, `scratchpad` and `guidance` of the state that it returns, in place or by `transition`. Every other field is a fact that
only events change. If it writes into a state that it was given and does not return, the change would be lost, so it is refused.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from types import CoroutineType
from typing import Any, Literal, TypeVar

import msgspec

from detent.core.errors import UnrecordedChange
from detent.core.events import AnyEvent, EffectRecorded, Planned, StateChanged
from detent.core.state import Item, KernelState
from detent.kernel.context import KernelContext
from detent.kernel.kernel import FACTS, OWNED, Kernel, Phase
from detent.ports import Answer, MetaTool, ModelAnswer, Models, Tool, View, json_problem
from detent.ports.copies import copied, ours
from detent.ports.outside import Hold
from detent.ports.phases import PhaseContext, SeenRun, SeenWorld

T = TypeVar("T")


def sheltered(kernel: Kernel) -> Kernel:
    """Return the kernel for one pass. Its foreign phases get a facade of the pass's context and copies of its state."""
    if all(map(ours, kernel.phases)):
        return kernel
    handed: list[Handed] = []
    phases = tuple(phase if ours(phase) else _apart(phase, number, handed) for number, phase in enumerate(kernel.phases))
    return msgspec.structs.replace(kernel, phases=phases)


def _apart(phase: Phase, number: int, shared: list[Handed]) -> Phase:
    async def apart(state: KernelState, context: KernelContext) -> KernelState:
        if not shared:
            shared.append(Handed(context))  # all phases of a pass get the same object
        handed = shared[0]
        given = handed.begin()
        returned = await context.run.world.attend(phase(given, handed.context), handed.hold)
        return handed.came_to(returned, f"phase {number}")

    apart.__name__ = getattr(phase, "__name__", type(phase).__name__)
    return apart


def answering(tools: dict[str, Tool]) -> dict[str, Tool]:
    """Return the tools of a pass: handlers of foreign meta-tools get a facade and copies."""
    foreign = {name: tool for name, tool in tools.items() if isinstance(tool, MetaTool) and not ours(tool.handler)}
    return {**tools, **{name: _answering(tool) for name, tool in foreign.items()}} if foreign else tools


def _answering(tool: MetaTool) -> MetaTool:
    async def handler(args: dict[str, Any], state: KernelState, context: KernelContext) -> Answer:
        handed = Handed(context)
        answer = await context.run.world.attend(tool.handler(args, handed.begin(), handed.context), handed.hold)
        handed.refuse_changes(f"the meta-tool {tool.name!r}")
        return answer

    return msgspec.structs.replace(tool, handler=handler)


class Given:
    """The states that foreign code was given, each with its original; `now` returns the state of its pass."""

    def __init__(self, now: Callable[[], KernelState], run_id: str) -> None:
        self._now, self._run_id = now, run_id
        self._given: list[tuple[Any, Any]] = []

    def begin(self) -> KernelState:
        """Return the copy of the state that a phase begins with. Earlier copies are forgotten."""
        self._given.clear()
        return self.copy(self._now())

    def came_to(self, returned: Any, who: str) -> KernelState:
        """Return the state that a phase leaves behind. Raise `UnrecordedChange` if it changed fields it does not own, or lost a change."""
        now, run_id = self._now(), self._run_id
        if not isinstance(returned, KernelState):
            why = f"{who} returned {type(returned).__name__}, not a KernelState; return `context.state` or a transition of it"
            raise UnrecordedChange(run_id, why)
        if (field := _differing(FACTS, returned, now)) is not None:
            raise UnrecordedChange(
                run_id,
                f"{who} changed {field!r} without an event: only {', '.join(OWNED)} belong to phases. "
                "Use context.plan, context.record or the default phases, and return a transition of context.state",
            )
        self.refuse_changes(who, returned)
        return msgspec.structs.replace(now, **{field: getattr(returned, field) for field in OWNED})

    def refuse_changes(self, who: str, returned: KernelState | None = None) -> None:
        """Raise `UnrecordedChange` for a change to a copied state that is not part of the one that is `returned`."""
        for given, origin in self._given:
            fields = [field for field in given.__struct_fields__ if getattr(given, field) is not getattr(returned, field, _NOWHERE)]
            if (field := _differing(fields, given, origin)) is not None:
                raise UnrecordedChange(
                    self._run_id,
                    f"{who} wrote into {field!r} of a {type(given).__name__} that it was given, where the change is lost: return the state that "
                    "you change, or transition(context.state, meta=...)",
                )

    def copy(self, origin: T) -> T:
        """Return the existing copy of a state, else a new one."""
        for given, known in self._given:
            if known is origin:
                return given
        self._given.append((copied(origin), origin))
        return self._given[-1][0]


class Handed(Given):
    """What foreign code of one pass gets: its facade, and the states that it asked for."""

    def __init__(self, context: KernelContext) -> None:
        super().__init__(lambda: context.state, context.run.state.run_id)
        self._context, self.hold = context, Hold()
        self.context = self._facade(context)

    def _facade(self, context: KernelContext) -> PhaseContext:
        """Return the facade. Its functions are plain: a bound method would expose its object as an attribute."""
        run, world, hold, stranger = context.run, context.run.world, self.hold, self._refuse_stranger
        copy_of, planned = self.copy, list[tuple[Planned, Planned]]()

        async def plan() -> Planned | None:
            with hold:
                made = await context.plan()
            if made is None:
                return None
            if not planned or planned[-1][0] is not made:
                planned[:] = [(made, copied(made))]
            return planned[-1][1]

        async def execute() -> None:
            with hold:
                await context.execute()

        def record(*events: AnyEvent) -> None:
            for event in events:
                if isinstance(event, EffectRecorded):
                    stranger(event.phase)
            context.record(*events)

        async def effect(phase: int, label: str, make: Callable[[], Awaitable[Any]], *, occurrence: int = 0) -> Any:
            stranger(phase)
            with hold:
                return copied(await context.effect(phase, label, make, occurrence=occurrence))

        async def commit(*, durable: bool = False) -> None:
            with hold:
                await context.commit(durable=durable)

        def time_left() -> float | None:
            return context.time_left()

        def view() -> View:
            return copied(context.view())

        async def full(item: Item) -> Any:
            with hold:
                return await world.full(item)

        def models(_: Any = None) -> Models | None:
            made = world.models(context)
            return None if made is None else _models(made)

        return PhaseContext(
            input=copied(context.input),
            agent=copied(context.agent),
            profile=context.profile,
            compression=context.compression,
            tools={name: copied(tool.spec) for name, tool in context.tools.items()},
            guards=context.guards,
            specs=copied(context.specs),
            scope=context.scope,
            run=SeenRun(now=lambda: copy_of(run.state), world=SeenWorld(full=full, models=models)),
            now=lambda: copy_of(context.state),
            plan=plan,
            execute=execute,
            record=record,
            effect=effect,
            commit=commit,
            time_left=time_left,
            view=view,
        )

    def _refuse_stranger(self, phase: int) -> None:
        if phase < 0:
            why = f"phase {phase} is reserved: only hooks and the run itself record effects there; give the phase's number"
            raise UnrecordedChange(self._context.run.state.run_id, why)


class _Models(msgspec.Struct, frozen=True):
    """Gives access to the run's models (`ports.Models`) and to nothing else."""

    call: Callable[..., CoroutineType[Any, Any, ModelAnswer]]
    emit: Callable[..., None]


def _models(models: Models) -> Models:
    async def call(*args: Any, **options: Any) -> ModelAnswer:
        return await models.call(*args, **options)

    def emit(kind: Literal["text", "thinking"], content: str) -> None:
        models.emit(kind, content)

    return _Models(call=call, emit=emit)


_NOWHERE = object()


def _differing(fields: Any, one: Any, other: Any) -> str | None:
    return next((field for field in fields if getattr(one, field) != getattr(other, field)), None)


def record_changes(number: int, returned: KernelState, context: KernelContext) -> None:
    """Record a phase's own changes. Raise `UnrecordedChange` if they are not JSON data. `running.foreign` checks the kernel facts."""
    now = context.state
    changes: dict[str, Any] = {}
    for field in ("meta", "scratchpad"):
        before, after = getattr(now, field), getattr(returned, field)
        changes[field] = {k: v for k, v in after.items() if k not in before or before[k] != v}
        changes[f"removed_{field}"] = tuple(k for k in before if k not in after)
    if returned.guidance != now.guidance:
        changes["guidance"] = returned.guidance
    if any(changes.values()) or "guidance" in changes:
        if problem := json_problem(changes, escaping=True):
            why = f"phase {number} changed its state to a value that is not JSON data, which the log cannot keep: {problem}"
            raise UnrecordedChange(context.run.state.run_id, why)
        context.run.record(context.scope, StateChanged(phase=number, **changes))
