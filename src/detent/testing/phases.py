"""Tests a phase, or the handler of a meta-tool, without a run: its records are folded into a state by the same rules as in a run.

context = fake_context(plans=[ToolCall(tool="look")], results={"look": "seen"})
state = await run_phase(count, context)
assert state.meta == {"turns": 1}
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import msgspec

from detent.config.agents import Agent
from detent.core import events as e
from detent.core.agent import AgentSpec
from detent.core.budget import Budget
from detent.core.codec import encode
from detent.core.durations import seconds
from detent.core.errors import ConfigError, UnrecordedChange
from detent.core.events import AnyEvent, EffectRecorded, Planned
from detent.core.fold import evolve
from detent.core.history import Seq
from detent.core.records import Envelope, Record
from detent.core.state import Item, KernelState, RunState
from detent.kernel.context import PHASE_EVENTS
from detent.kernel.kernel import Phase
from detent.ports import ContextProfile, Models, ResultCompression, ToolSpec, View
from detent.ports.copies import copied
from detent.ports.outside import made
from detent.ports.phases import KernelInput, PhaseContext, SeenRun, SeenWorld
from detent.ports.raised import raised_by
from detent.running.foreign import Given, record_changes
from detent.testing.clocks import EPOCH
from detent.testing.scripted import Entry, ScriptedPlanner

RUN_ID = "fake-run"
SCOPE = "main"


class FakeContext(PhaseContext, frozen=True, kw_only=True):
    """The result of `fake_context`: a phase's context. `recorded` has the events that the phase recorded, in order."""

    recorded: list[AnyEvent]
    given: Given
    put: Callable[[AnyEvent], None]


def fake_context(
    state: KernelState | None = None,
    *,
    goal: str = "test the phase",
    agent: Agent[Any] | None = None,
    variables: Mapping[str, Any] | None = None,
    tools: Sequence[Any] = (),
    plans: Sequence[Entry] = (),
    results: Mapping[str, Any] | None = None,
    models: Models | None = None,
    time_left_s: float | str | None = None,
) -> FakeContext:
    """Return the context of a fresh turn, or of the current turn of `state`.

    `plans` are the results of `context.plan()`, as for `ScriptedPlanner`. `results` has for each tool the result of `context.execute()`: a value, an
    exception, or a function of the arguments. `tools` are the offered tools.
    """
    spec = AgentSpec(name="tester") if agent is None else agent.spec()
    begun = state or KernelState(iteration=1, steps=Seq([Item(kind="user", text=goal)]))
    run = RunState(run_id=RUN_ID, goal=goal, agent=spec, variables=dict(variables or {}), passes={SCOPE: begun})
    now, recorded, script = [run], list[AnyEvent](), ScriptedPlanner(plans)
    specs: dict[str, ToolSpec] = {tool.spec.name: tool.spec for tool in tools}
    given = Given(lambda: now[0].passes[SCOPE], RUN_ID)
    left = seconds(time_left_s, "time_left_s")

    def put(event: AnyEvent) -> None:
        envelope = Envelope(run=RUN_ID, seq=now[0].seq + 1, at=EPOCH, scope=SCOPE, iteration=now[0].passes[SCOPE].iteration)
        now[0] = evolve(now[0], Record(envelope, event, ""))
        recorded.append(event)

    def record(*events: AnyEvent) -> None:
        for event in events:
            if not isinstance(event, PHASE_EVENTS):
                allowed = ", ".join(kind.__name__ for kind in PHASE_EVENTS)
                raise UnrecordedChange(RUN_ID, f"only the kernel may record {type(event).__name__}; phases record {allowed}")
            put(event)

    async def plan() -> Planned | None:
        if now[0].passes[SCOPE].plan is None:
            planned = await script.plan(view())
            put(Planned(actions=planned.actions, text=planned.text, thinking=planned.thinking, usage=planned.usage, model=planned.model))
        return copied(now[0].passes[SCOPE].plan)

    async def execute() -> None:
        for call in tuple(now[0].passes[SCOPE].calls.values()):
            if call.status != "finished":
                put(await _finished(call.call_id, call.tool, call.args, results or {}))

    async def effect(phase: int, label: str, make: Callable[[], Awaitable[Any]], *, occurrence: int = 0) -> Any:
        key = f"{phase}:{label}:{occurrence}"
        if key not in now[0].passes[SCOPE].effects:
            try:
                value = await make()
            except Exception as error:  # noqa: BLE001 - the phase's own code: in a run its failure is a recorded value, too
                value = {e.FAILED: raised_by(error, f"the effect {label!r}")}
            put(EffectRecorded(label=label, occurrence=occurrence, phase=phase, value=value))
        return made(copied(now[0].passes[SCOPE].effects[key]))

    async def commit(*, durable: bool = False) -> None:
        return None

    async def full(item: Item) -> Any:
        return item.content

    def view() -> View:
        known = now[0].passes[SCOPE]
        return copied(
            View(
                goal=goal,
                task=goal,
                agent=spec,
                iteration=known.iteration,
                variables=run.variables,
                transcript=tuple(known.steps),
                results=tuple(known.results),
                tools=tuple(specs.values()),
                memory=known.memory,
                scratchpad=known.scratchpad,
                guidance=known.guidance,
                run_id=RUN_ID,
                scope=SCOPE,
                full=full,
                models=models,
            )
        )

    return FakeContext(
        input=KernelInput(task=goal, instructions=spec.instructions, variables=run.variables, limits=Budget()),
        agent=spec,
        profile=ContextProfile(),
        compression=ResultCompression(),
        tools=specs,
        guards=(),
        specs=tuple(specs.values()),
        scope=SCOPE,
        run=SeenRun(now=lambda: given.copy(now[0]), world=SeenWorld(full=full, models=lambda _: models)),
        now=lambda: given.copy(now[0].passes[SCOPE]),
        plan=plan,
        execute=execute,
        record=record,
        effect=effect,
        commit=commit,
        time_left=lambda: left,
        view=view,
        recorded=recorded,
        given=given,
        put=put,
    )


async def _finished(call_id: str, tool: str, args: Any, results: Mapping[str, Any]) -> e.ToolFinished:
    if tool not in results:
        raise ConfigError(f"fake_context: the phase executes a call of {tool!r}, and results has none; give results={{{tool!r}: ...}}")
    result: Any = results[tool]
    try:
        value = result(**args) if callable(result) else result
        if isinstance(value, Exception):
            raise value
    except Exception as error:  # noqa: BLE001 - what the test wants the tool to raise
        code = getattr(error, "error_code", "handler_error")
        return e.ToolFinished(call=call_id, digest="fake", error=e.ToolError(code=code, message=str(error)))
    return e.ToolFinished(call=call_id, digest="fake", result=msgspec.Raw(encode(value)))


async def run_phase(phase: Phase, context: FakeContext | KernelState | None = None, *, number: int = 0, **options: Any) -> KernelState:
    """Run a phase once and return the resulting state. Raise `UnrecordedChange` if a run would end with `kernel_error`.

    `context` is a result of `fake_context`, which has the recorded events afterwards. It may also be a state or nothing; `options` are then those of
    `fake_context`. `number` is the phase's place in its kernel.
    """
    if not isinstance(context, FakeContext):
        context = fake_context(context, **options)
    elif options:
        raise ConfigError(f"run_phase: {', '.join(options)}: the context has these already; give them to fake_context")
    returned = context.given.came_to(await phase(context.given.begin(), context), f"phase {number}")

    def record(_scope: str, event: AnyEvent) -> None:
        context.put(event)

    run = SimpleNamespace(record=record, state=SimpleNamespace(run_id=RUN_ID))
    seen: Any = SimpleNamespace(state=context.now(), scope=SCOPE, run=run)
    record_changes(number, returned, seen)
    return context.now()
