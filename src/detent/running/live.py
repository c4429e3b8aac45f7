"""The live world: a planner that is asked, tools that run, clocks that tick, an inbox that fills."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from contextvars import ContextVar
from typing import Any, Literal

import msgspec

from detent.core.actions import Action, FinalAnswer, ToolCall
from detent.core.agent import AgentSpec
from detent.core.budget import exhausted
from detent.core.codec import digest_of
from detent.core.errors import ConfigError, DetentError, Divergence, MalformedPlan, PlannerFailed, StoreError, Suspended, ToolFailed
from detent.core.events import FAILED, ToolReconciled
from detent.core.state import CallState, RunState
from detent.kernel.context import KernelContext, Run
from detent.kernel.execution import finished, key_of
from detent.kernel.journal import Journal
from detent.metering.gateway import Gateway, Room, Traffic
from detent.metering.tenants import Tenants
from detent.ports import (
    Cancellation,
    Chunk,
    Clock,
    EventStore,
    Plan,
    Planner,
    SecretSource,
    Tool,
    ToolContext,
    ToolOutcome,
    View,
    json_problem,
    refuse_failed,
    written,
)
from detent.ports.copies import copied
from detent.ports.outside import Begin, BoundReached, Hold, Interrupted, time_left
from detent.running.control import Control
from detent.running.hiding import Values
from detent.running.inbox import take
from detent.running.lineage import Recorded, recorded, stub
from detent.running.patience import attended
from detent.running.rules import early
from detent.secrecy.redact import hidden
from detent.secrecy.vault import Vault

log = logging.getLogger("detent")

SETTLE_S = 60.0
"""How long the `reconcile` of a tool without a timeout of its own is waited for."""
_CHANGED = "not run: somebody wrote to the arguments in the run's state after the call was decided; state is for reading"


MAKING: ContextVar[str] = ContextVar("detent_making", default="")
"""The label of the effect that the current task is making, "" outside of one."""


def refuse_inside_effect(what: str) -> None:
    """Raise `ConfigError` where an effect is being made: nothing that has records of its own can be part of one."""
    if outer := MAKING.get():
        raise ConfigError(
            f"{what} was begun inside of the effect {outer!r}, whose value is made once and then taken from the log with nothing in it done "
            "again; do it before, and use what it gave"
        )


class LiveWorld(Values):
    """What a live run reaches the world through."""

    scheduled: bool = False

    __slots__ = (
        "_base_ms",
        "_chunk",
        "_clock",
        "_planner",
        "_planner_of",
        "_planners",
        "_recorded",
        "_room",
        "_since",
        "_sleep",
        "_source",
        "_tenants",
        "_traffic",
        "_vault",
        "cancelled",
        "control",
    )

    def __init__(
        self,
        *,
        journal: Journal,
        planner: Planner,
        store: EventStore,
        clock: Clock,
        control: Control,
        redact: Sequence[str] = (),
        chunk: Callable[[Chunk], None] | None = None,
        secrets: SecretSource | None = None,
        traffic: Traffic | None = None,
        tenants: Tenants | None = None,
        planner_of: Callable[[AgentSpec], Planner] | None = None,
    ) -> None:
        """`planner_of` says who plans a pass with a model of its own, and raises `ConfigError` where it cannot be asked from here."""
        self._planner_of, self._planners = planner_of, dict[bytes, Planner]()
        self._traffic, self._room, self._tenants = traffic or Traffic(), Room(), tenants
        self._source = secrets
        self._vault: Vault | None = None
        super().__init__(journal, store, redact)
        self._planner, self._clock = planner, clock
        self.control, self.cancelled = control, control.cancelled
        self._chunk = chunk
        self._base_ms = journal.state.running_ms
        self._since = clock.monotonic()
        self._sleep: Callable[[float], Awaitable[None]] = getattr(clock, "sleep", asyncio.sleep)
        self._recorded: Recorded | None = None
        if self._time_left() is not None:
            control.time_left, control.late = self._time_left, self._late

    def _time_left(self) -> float | None:
        return time_left(self._journal.state, self.running_ms)

    def _late(self) -> BoundReached | None:
        """Return the bound of time that is used up, to be raised."""
        state, running_s = self._journal.state, self.running_ms() / 1000
        total_s = running_s + state.away_ms / 1000
        bound = exhausted(state.budget, state.usage, running_s=running_s, total_s=total_s, only=("running_s", "total_s"))
        return None if bound is None else BoundReached(bound)

    def proceed(self) -> None:
        """Stop here when the run is being suspended, also where a tool has swallowed the cancellation."""
        if self.control.stop:
            raise asyncio.CancelledError

    def running_ms(self) -> float:
        """How long the run has been advanced, here and before, without waits and downtime."""
        return int(self._base_ms * 1000 + (self._clock.monotonic() - self._since) * 1_000_000 + 0.5) / 1000

    async def attend(self, work: Awaitable[Any], hold: Hold) -> Any:
        """Await a phase, a strategy or a meta-tool; see `ports.outside.World.attend`."""
        return await attended(self.control, work, hold)

    async def effect(self, make: Callable[[], Awaitable[Any]], label: str, occurrence: int, phase: int) -> Any:
        """Make a value that the log cannot give; a cancellation ends that. What it raises is a value, too (`ports.outside.made`).

        Raise `ConfigError` for one that is no JSON data, and inside of another effect: a replay takes that as it was recorded, makes nothing,
        and so does not come by here.
        """
        refuse_inside_effect(f"the effect {label!r}")
        token = MAKING.set(label)
        try:
            value = await attended(self.control, _made(make), who=make)
        except (BoundReached, ConfigError, Divergence, Interrupted, StoreError, Suspended):
            raise
        except Exception as error:  # foreign code: what makes an effect may raise anything
            log.info("run %s: the effect %r failed", self._run().run_id, label, exc_info=error)
            said = str(error) if isinstance(error, DetentError) else f"{type(error).__name__}: {error}"
            return {FAILED: await self.scrub(said)}
        finally:
            MAKING.reset(token)
        if problem := json_problem(value, escaping=True):
            raise ConfigError(f"the effect {label!r} came to what is no JSON data, which the log cannot keep: {problem}")
        return value

    async def reading(self, what: Literal["now", "random"]) -> float:
        """Return the time in seconds since 1970, or a random number in [0, 1); the caller records it."""
        return self._clock.now().timestamp() if what == "now" else random.random()

    async def breathe(self) -> None:
        """Give the event loop its turn."""
        await asyncio.sleep(0)

    async def pause(self, seconds: float) -> None:
        """Sleep between two attempts, as the clock does where it has a `sleep` of its own; a cancellation ends the sleep."""
        with self.control.during(0):
            try:
                await self._sleep(seconds)
            except asyncio.CancelledError:
                if not self.control.interrupted():
                    raise

    @property
    def quiet(self) -> bool:
        """Whether no signal came and the run's tenant has no account that is to be read: asked several times a turn."""
        return not (self.control.waiting or self._tenants)

    async def weigh(self, context: KernelContext, calls: Sequence[CallState] = ()) -> AbstractAsyncContextManager[None] | None:
        """Read what the run's tenant has used, where that is bounded; `calls` of tools are about to begin."""
        if not self._tenants or (calls and all(call.attempt for call in calls)):
            return None
        return await self._tenants.weigh(context, calls)

    async def absorb(self, run: Run, *, fresh: bool) -> bool:
        """Put the signals that came on record; `fresh` reads the inbox instead of relying on the watcher."""
        if fresh:
            run_id = self._run().run_id
            self.control.deliver((await self._store.signals([run_id])).get(run_id, []))
        state = run.state
        came = self.control.take(lambda signal: early(signal, state, state.updated_at))
        for signal in came:
            await take(signal, run)
        return bool(came)

    def models(self, context: KernelContext) -> Gateway:
        """Return the way to models for the pass of `context`."""
        return Gateway(context, self._traffic, self._room, self._chunk, tenants=self._tenants, patterns=self._patterns)

    async def plan(self, view: View, deadline_s: float | None) -> Plan:
        """Ask the planner, for at most the time that is left."""
        started = self._clock.monotonic()
        with self.control.during(0):
            try:
                return await (self._asked(view) if deadline_s is None else _within(deadline_s, self._asked(view)))
            except TimeoutError:
                if deadline_s is None or self._clock.monotonic() < started + deadline_s:
                    raise
                raise Interrupted from None  # the next turn finds that the time is up
            except asyncio.CancelledError:
                if self.control.interrupted():
                    raise Interrupted from None
                if (task := asyncio.current_task()) is not None and not task.cancelling():
                    raise PlannerFailed("the planner was cancelled from inside; nobody cancelled the run") from None
                if isinstance(view.models, Gateway):
                    with contextlib.suppress(StoreError):
                        await view.models.flush()
                raise

    async def _asked(self, view: View) -> Plan:
        """Ask the planner; what it leaves open of its model calls is closed with its answer. Raise `MalformedPlan` for what no JSON can say."""
        try:
            answer = await self._planner_for(view).plan(view)
        finally:
            if isinstance(view.models, Gateway):
                view.models.close()
        if problem := _unsayable(answer):
            raise MalformedPlan(problem, raw=written(answer), usage=answer.usage)
        return answer

    def _planner_for(self, view: View) -> Planner:
        """Return who plans a pass: the run's planner, or that of a model of the pass's own. Raise `Suspended` where it cannot be asked from here."""
        own, usual = view.agent, self._run().agent
        if self._planner_of is None or (own.model, own.planner, own.rules) == (usual.model, usual.planner, usual.rules):
            return self._planner
        key = msgspec.json.encode([own.model, own.planner, own.model_settings])
        if key not in self._planners:
            try:
                self._planners[key] = self._planner_of(own)
            except ConfigError as error:  # another process, or this one later, may have what is missing: the pass has not failed
                raise Suspended(view.run_id, f"pass {view.scope!r} cannot be planned here: {error}") from error
        return self._planners[key]

    async def together(self, calls: Sequence[tuple[CallState, Begin]], context: KernelContext) -> None:
        """Run calls at the same time; a cancellation of the run reaches each of them, which puts it on record."""
        refuse_failed(await asyncio.gather(*(begin() for _, begin in calls), return_exceptions=True))

    async def attempt(self, tool: Tool, call: CallState, deadline_s: float | None) -> ToolOutcome:
        """Run a tool once; an interruption leaves an effect in doubt."""
        if self._journal.state.fork_effects and (answered := await self._not_executed(tool, call)) is not None:
            return answered
        if call.digest and digest_of([call.tool, call.args]) != call.digest:
            return ToolOutcome(kind="not_executed", error_code="arguments_changed", message=_CHANGED, final=True)
        context = self._context(tool, call, deadline_s)
        raw = msgspec.json.encode(call.args)
        try:
            args = msgspec.json.decode(raw) if b"<secret:" not in raw else await self._resolved(tool.spec, call.args)  # its own copy
        except ToolFailed as refused:
            return ToolOutcome(kind="not_executed", error_code=refused.error_code, message=str(refused), final=True)
        if self._chunk is not None:
            self._chunk(_piece("tool", call, self._run(), {"tool": call.tool, "args": copied(call.args), "attempt": context.attempt}))
        started = self._clock.monotonic()
        with self.control.during():
            try:
                outcome = await tool.run(args, context)
            except asyncio.CancelledError:
                if not self.control.interrupted():
                    raise
                known = tool.spec.read_only or tool.spec.idempotent
                outcome = ToolOutcome(
                    kind="failed" if known else "in_doubt", error_code="aborted", message="interrupted: the run was cancelled"
                )
        outcome = self.vault.outcome(outcome)
        return msgspec.structs.replace(outcome, latency_ms=round((self._clock.monotonic() - started) * 1000, 3))

    async def _not_executed(self, tool: Tool, call: CallState) -> ToolOutcome | None:
        """Return how a call of a fork ends without being executed; None where it is to be executed."""
        state = self._run()
        if state.fork_effects not in ("dry_run", "reuse") or tool.spec.read_only:
            return None
        self._recorded = self._recorded or await recorded(self._store, state)
        return self._recorded.outcome(call) or (stub(call.tool) if state.fork_effects == "dry_run" else None)

    async def settle(self, tool: Tool, call: CallState) -> ToolReconciled | None:
        """Ask the tool what became of an earlier attempt; a cancellation ends that after the grace of a call, as does the end of the run's time."""
        if await self._not_executed(tool, call) is not None:
            return ToolReconciled(call=call.call_id, outcome="again", source="reconcile")
        with self.control.during():
            try:
                known = await tool.settle(self._context(tool, call, self._settle_s(tool)))
            except asyncio.CancelledError:
                if not self.control.interrupted():
                    raise
                return None
        if known is None:
            return None
        if known.kind == "not_executed":
            return ToolReconciled(call=call.call_id, outcome="again", source="reconcile")
        done = finished(call.call_id, await self.keep(call.call_id, self.vault.outcome(known)))
        return ToolReconciled(call=call.call_id, outcome="happened", source="reconcile", result=done.result, error=done.error)

    def _settle_s(self, tool: Tool) -> float | None:
        """Return how long `reconcile` may take beside the tool's own limit: the time that the run has left, and the grace in any case."""
        left = self._time_left()
        limits = [SETTLE_S] if tool.spec.timeout_s is None else []
        return min([*limits, *([] if left is None else [max(left, self.control.grace_s)])], default=None)

    @property
    def vault(self) -> Vault:
        """The run's secrets."""
        if self._vault is None:
            self._vault = Vault(self._source, self._run().host)
        return self._vault

    def _context(self, tool: Tool, call: CallState, deadline_s: float | None) -> ToolContext:
        state = self._journal.state
        return ToolContext(
            run_id=state.run_id,
            call_id=call.call_id,
            tool=tool.spec,
            host=state.host,
            idempotency_key=call.key or (lambda: key_of(state.run_id, call.call_id, digest_of([call.tool, call.args]))),
            attempt=max(1, call.attempt),
            deadline=None if deadline_s is None else asyncio.get_running_loop().time() + deadline_s,
            cancelled=Cancellation(self.control.cancelled),
            progress=self._progress(call, state) if self._chunk is not None else None,
            secrets=self.vault,
            results=self._result,
        )

    async def _result(self, call_id: str) -> Any:
        """Return the whole result of an earlier call of the run; raise `ToolFailed`."""
        items = [item for state in self._run().passes.values() for item in state.results if item.ok and not item.meta]
        for item in items:
            if item.call_id == call_id:
                return await self.full(item)
        known = ", ".join(item.call_id for item in items[-10:]) or "none yet"
        raise ToolFailed(f"no result is kept under {call_id!r}; the latest: {known}", error_code="result_not_found")

    def _progress(self, call: CallState, state: RunState) -> Callable[[Any], None]:
        loop, emit = asyncio.get_running_loop(), self._chunk
        assert emit is not None  # noqa: S101 - only called where it is set

        def progress(event: Any) -> None:
            loop.call_soon_threadsafe(emit, _piece("progress", call, state, hidden(event, self._patterns) if self._patterns else event))

        return progress


def _unsayable(answer: Any) -> str:
    """Return what of a plan's actions would become null on record, or cannot be written at all, "" where all of it can be kept."""
    if not isinstance(answer, Plan):
        return ""
    # what can be gone through once would be empty when it is recorded
    if not isinstance(answer.actions, (tuple, list)):  # pyright: ignore[reportUnnecessaryIsInstance]
        return f"its actions are a {type(answer.actions).__name__}, not a tuple"
    for action in answer.actions:
        if isinstance(action, ToolCall):  # asked first: every turn has one
            if not isinstance(action.tool, str):  # pyright: ignore[reportUnnecessaryIsInstance]
                return f"a tool call names a {type(action.tool).__name__}, not a tool"
            said, problem = action.tool, json_problem(action)
        elif isinstance(action, FinalAnswer):
            said, problem = "the final answer", not isinstance(action.content, str) and json_problem(action.content, escaping=True)
        else:  # what is no action is told apart with the plan's form
            said, problem = type(action).__name__, isinstance(action, Action) and json_problem(action)  # pyright: ignore[reportUnnecessaryIsInstance]
        if problem:
            return f"{said} is not JSON data: {problem}"
    return ""


def _piece(kind: Literal["tool", "progress"], call: CallState, state: RunState, content: Any) -> Chunk:
    """Return what observers are told of a call while it runs."""
    scope, iteration, _ = call.call_id.rsplit(".", 2)
    return Chunk(
        kind=kind,
        run_id=state.run_id,
        goal_id=state.goal_id,
        agent=state.agent.name,
        scope=scope,
        iteration=int(iteration),
        content=content,
        call_id=call.call_id,
        parent=state.parent,
    )


async def _made(make: Callable[[], Awaitable[Any]]) -> Any:
    return await make()


async def _within(seconds: float, work: Awaitable[Any]) -> Any:
    """Await `work`, for at most `seconds`; raise `TimeoutError`."""
    async with asyncio.timeout(seconds):
        return await work
