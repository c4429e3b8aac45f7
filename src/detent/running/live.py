"""The live world: it calls planners and tools, reads clocks and the inbox."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from contextvars import ContextVar
from datetime import datetime, timedelta
from types import CoroutineType, MappingProxyType
from typing import Any, Literal, cast

import msgspec

from detent.config.remembering import Memories
from detent.core.actions import Action, AnyAction, FinalAnswer, ToolCall
from detent.core.agent import AgentSpec, Host
from detent.core.budget import Budget, exhausted
from detent.core.errors import AccountClosed, ConfigError, Divergence, MalformedPlan, PlannerFailed, StoreError, Suspended, UnknownModel
from detent.core.events import CANCELLED, FAILED, STOOD, EffectRecorded, ToolReconciled
from detent.core.state import CLOSED, CallState, RunState
from detent.kernel.context import KernelContext, Run
from detent.kernel.journal import Journal
from detent.metering.accounts import Accounts
from detent.metering.gateway import Gateway, Room, Traffic
from detent.metering.tenants import Tenants
from detent.ports import (
    Chunk,
    Clock,
    EventStore,
    Plan,
    Planner,
    SecretSource,
    ToolOutcome,
    View,
    json_problem,
    refuse_failed,
    written,
)
from detent.ports.conversing import Message
from detent.ports.delegation import Children
from detent.ports.gates import Gate
from detent.ports.outside import BRANCH, Begin, BoundReached, Hold, Interrupted, time_left
from detent.ports.raised import raised_by
from detent.running.control import Control
from detent.running.delegating import as_calls
from detent.running.family import Family
from detent.running.inbox import begins, take
from detent.running.patience import attended
from detent.running.people import poster
from detent.running.preparing import Preparing
from detent.running.remembering import remembering_of
from detent.running.rules import early

log = logging.getLogger("detent")

_NOT_BEGUN = ToolOutcome(
    kind="not_executed", error_code="not_run", message="not run: the run was cancelled before the call began", final=True
)


_NO_PLANNERS: Mapping[bytes, Planner] = MappingProxyType({})
"""Shared by all runs whose passes have no models of their own: a run's dictionary is never changed, but replaced."""

MAKING: ContextVar[str] = ContextVar("detent_making", default="")
"""The label of the effect that the current task is making, "" outside of one."""


def refuse_inside_effect(what: str) -> None:
    """Raise `ConfigError` inside an effect: nothing with its own records can be part of one."""
    if outer := MAKING.get():
        raise ConfigError(
            f"{what} was begun inside the effect {outer!r}. A replay takes the effect's value from the log and runs nothing inside it "
            "again. Do this before the effect, and use the result in it"
        )


def sooner(until: datetime, state: RunState, running_ms: float, now: datetime) -> datetime:
    """Return this time, or when the run's total time is up if that is sooner: then it is due, and ends."""
    if (most := state.budget.max_total_s) is None:
        return until
    left_s = max(0.0, most - (running_ms + state.away_ms) / 1000 + 0.001)
    return until if (until - now).total_seconds() <= left_s else now + timedelta(seconds=left_s)


class LiveWorld(Family):
    """The connection of a live run to the outside."""

    scheduled: bool = False
    stays: bool = False

    __slots__ = (
        "_base_ms",
        "_inbox",
        "_planner",
        "_planner_of",
        "_planners",
        "_room",
        "_sleep",
        "_tenants",
        "_traffic",
        "cancelled",
        "conversation",
        "preparing",
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
        planner_of: Callable[[AgentSpec, Budget, Host], Planner] | None = None,
        preparing: Preparing | None = None,
        memories: Memories | None = None,
        children: Children | None = None,
        conversation: Sequence[Message] = (),
    ) -> None:
        """Set up the world. `planner_of` returns the planner of a pass with its own model, and raises `ConfigError` if it is unavailable here."""
        self._planner_of, self._planners = planner_of, _NO_PLANNERS
        self.preparing, self.conversation = preparing, conversation
        self._traffic, self._room, self._tenants = traffic or Traffic(), Room(), tenants
        super().__init__(journal, store, redact, clock=clock, control=control, chunk=chunk, secrets=secrets)
        if memories and journal.state.agent.memory is not None:
            self.remembering = remembering_of(memories, journal, clock=clock, patterns=redact, conversation=lambda: self.conversation)
        self._planner, self.cancelled, self._inbox = planner, control.cancelled, Gate()
        self._base_ms, self._children, self._looked = journal.state.running_ms, children, None
        self._since = clock.monotonic()
        self._sleep: Callable[[float], Awaitable[None]] = getattr(clock, "sleep", asyncio.sleep)
        if self._time_left() is not None:
            control.time_left, control.late = self._time_left, self._late

    def _time_left(self) -> float | None:
        return time_left(self._journal.state, self.running_ms)

    def _late(self) -> BoundReached | None:
        """Return the error of the used-up time bound, for the caller to raise."""
        state, running_s = self._journal.state, self.running_ms() / 1000
        total_s = running_s + state.away_ms / 1000
        bound = exhausted(state.budget, state.usage, running_s=running_s, total_s=total_s, only=("running_s", "total_s"))
        return None if bound is None else BoundReached(bound)

    def proceed(self) -> None:
        """Stop here if the run stops or was found damaged, even if a tool has swallowed the cancellation."""
        if self.control.stop:
            raise asyncio.CancelledError
        if self.damage is not None:
            raise self.damage

    def running_ms(self) -> float:
        """The time that the run has been advanced, here and before, without waits and downtime."""
        return int(self._base_ms * 1000 + (self._clock.monotonic() - self._since) * 1_000_000 + 0.5) / 1000

    async def attend(self, work: Awaitable[Any], hold: Hold) -> Any:
        """Await a phase, a strategy or a meta-tool; see `ports.outside.World.attend`."""
        if self.control.stop and (close := getattr(work, "close", None)) is not None:
            close()  # it is not begun any more
        self.proceed()
        try:
            return await attended(self.control, work, hold)
        except Interrupted:
            await self.cancels("phase")
            raise

    async def effect(self, make: Callable[[], Awaitable[Any]], label: str, occurrence: int, phase: int) -> Any:
        """Make a value that is not in the log; a cancellation ends that. An exception is recorded as a value too (`ports.outside.made`).

        Raise `ConfigError` for a value that is not JSON data, and inside another effect: a replay takes that effect from the log, makes nothing, and
        so never gets here.
        """
        refuse_inside_effect(f"the effect {label!r}")
        self.proceed()
        token = MAKING.set(label)
        try:
            value = await attended(self.control, _made(make), who=make)
        except Interrupted:
            await self.cancels(f"effect {label}")
            raise
        except (BoundReached, ConfigError, Divergence, StoreError, Suspended):
            raise
        except Exception as error:  # noqa: BLE001 - foreign code: what makes an effect may raise anything
            return {FAILED: await self.scrub(raised_by(error, f"the effect {label!r}"))}
        finally:
            MAKING.reset(token)
        if problem := json_problem(value, escaping=True):
            raise ConfigError(f"the effect {label!r} returned a value that is not JSON data, so the log cannot keep it: {problem}")
        return value

    async def reading(self, what: Literal["now", "random"]) -> float:
        """Return the time in seconds since 1970, or a random number in [0, 1); the caller records it."""
        return self._clock.now().timestamp() if what == "now" else random.random()

    async def breathe(self) -> None:
        """Give the event loop its turn."""
        await asyncio.sleep(0)

    async def pause(self, seconds: float, call: CallState | None = None) -> None:
        """Sleep between two attempts, with the clock's own `sleep` if it has one; a cancellation ends the sleep.

        If the run stops, record that the call may run again: its last attempt did not happen, so nothing is in doubt.
        """
        try:
            if call is not None:
                self.control.effects.not_executed()
            self.proceed()
            with self.control.during(0):
                await self._sleep(seconds)
        except asyncio.CancelledError:
            if self.control.interrupted():
                return
            if call is not None and self.control.stop and not (call.read_only or call.idempotent):
                again = ToolReconciled(call=call.call_id, outcome="again", source="retry", via=poster(), attempt=call.attempt)
                self._journal.record(again, scope=call.call_id.rsplit(".", 2)[0])
                await self._journal.commit(durable=True)
            raise

    @property
    def quiet(self) -> bool:
        """Whether no signal came, nothing is held, and no account of the run's tenant is to be read: called several times a turn."""
        holds = self._traffic.accounts is not None and self._traffic.accounts.holds
        return not (self.control.waiting or self.control.put_off or self._tenants or holds or (BRANCH.get() and self._is_cancelled))

    @property
    def _is_cancelled(self) -> bool:
        return bool(self.cancelled) or self._journal.state.cancel is not None

    async def cancels(self, at: str) -> bool:
        """Return whether the run is cancelled; a pass that runs beside others records that it found it, once."""
        if not (scope := BRANCH.get()):
            return bool(self.cancelled)
        known = self._journal.state.passes[scope]
        if not known.marks:
            return bool(self.cancelled)  # it was begun by 0.1.0
        if CANCELLED not in known.effects and self._is_cancelled and known.status not in CLOSED:
            self._journal.record(EffectRecorded(label="cancelled", phase=STOOD, value=at), scope=scope)
        return self._is_cancelled

    async def weigh(self, context: KernelContext, calls: Sequence[CallState] = ()) -> AbstractAsyncContextManager[None] | None:
        """Read the usage of the run's tenant, if that is bounded; `calls` of tools are about to begin. Raise `Suspended` if somebody holds the run."""
        if self._traffic.accounts is not None and self._traffic.accounts.holds:
            await self._refuse_held(self._traffic.accounts, context, calls)
        if not self._tenants or (calls and all(call.attempt for call in calls)):
            return None
        return await self._tenants.weigh(context, calls)

    async def _refuse_held(self, accounts: Accounts, context: KernelContext, calls: Sequence[CallState]) -> None:
        """Raise `Suspended` if the run's agent or tenant, or the tool of a call that is about to begin, is held. What is recorded so far is kept."""
        hold = None if self._is_cancelled else accounts.stops(self._run(), [call.tool for call in calls])
        if hold is not None:
            await context.commit()
            raise Suspended(self._run().run_id, hold.said, until=accounts.again(hold))

    async def absorb(self, run: Run, *, fresh: bool) -> bool:
        """Record the signals that arrived, in the store's order; `fresh` reads the inbox instead of relying on the watcher."""
        self._inbox.closed = not self._inbox.closed or await self._inbox.turn()  # no pass decides on a signal before an earlier one
        try:
            if fresh or self.control.put_off:
                run_id = self._run().run_id
                self.control.deliver((await self._store.signals([run_id])).get(run_id, []))
            state = run.state
            came = self.control.take(lambda signal: early(signal, state, self._looked or state.updated_at))
            for signal in came:
                await take(signal, run, self._store, self.control)
        finally:
            self._inbox.leave()
        if BRANCH.get():
            await self.cancels("turn")
        return bool(came)

    @property
    def prepares(self) -> bool:
        """See `World.prepares`."""
        return bool(self.preparing)

    async def prepare(self, context: KernelContext) -> None:
        """See `World.prepare`. Without memory and compaction there is nothing to do."""
        if self.preparing is not None:
            self.proceed()
            await self._attended(self.preparing.prepare(context))

    async def makes_room(self, context: KernelContext, error: Exception) -> Exception | None:
        """See `World.makes_room`."""
        return error if self.preparing is None else await self._attended(self.preparing.makes_room(context, error))

    async def _attended(self, work: Awaitable[Any]) -> Any:
        try:
            return await attended(self.control, work)
        except Interrupted:
            await self.cancels("planner")
            raise

    def models(self, context: KernelContext) -> Gateway:
        """Return the access to models for the pass of `context`."""
        return Gateway(context, self._traffic, self._room, self._chunk, tenants=self._tenants, patterns=self._patterns)

    async def plan(self, view: View, deadline_s: float | None) -> Plan:
        """Call the planner, for at most the time that is left."""
        self.proceed()
        started = self._clock.monotonic()
        with self.control.during(0):
            try:
                return await (self._asked(view) if deadline_s is None else _within(deadline_s, self._asked(view)))
            except TimeoutError:
                if deadline_s is None or self._clock.monotonic() < started + deadline_s:
                    raise
                raise Interrupted from None  # the next turn finds that the time is up
            except AccountClosed as closed:  # no candidate was left that may be called now
                raise Suspended(
                    view.run_id, str(closed), until=sooner(closed.until, self._journal.state, self.running_ms(), self._clock.now())
                ) from closed
            except asyncio.CancelledError:
                if self.control.interrupted():
                    await self.cancels("planner")
                    raise Interrupted from None
                if (task := asyncio.current_task()) is not None and not task.cancelling():
                    raise PlannerFailed("the planner was cancelled from inside; nobody cancelled the run") from None
                if isinstance(view.models, Gateway):
                    with contextlib.suppress(StoreError):
                        await view.models.flush()
                raise

    async def _asked(self, view: View) -> Plan:
        """Call the planner. Its model calls that are still open are closed with its answer. Raise `MalformedPlan` for what JSON cannot express."""
        try:
            planner = self._planner_for(view)
            asked = planner.plan(view)
            if type(asked) is not CoroutineType and not inspect.isawaitable(asked):
                raise PlannerFailed(f"{type(planner).__name__}.plan cannot be awaited; write `async def plan(self, view)`")
            answer: Any = await asked
            if isinstance(answer, Action):  # it means the plan with that one action
                answer = Plan(actions=cast("tuple[AnyAction, ...]", (answer,)))
            if isinstance(answer, Plan):
                answer = as_calls(answer, self._run().agent)
        finally:
            if isinstance(view.models, Gateway):
                view.models.close()
        if problem := _unsayable(answer):
            raise MalformedPlan(problem, raw=written(answer), usage=answer.usage)
        return answer

    def _planner_for(self, view: View) -> Planner:
        """Return the planner of a pass: the run's, or that of the pass's own model. Raise `Suspended` if it is unavailable here.

        A name that no provider takes raises `PlannerFailed`.
        """
        own, state = view.agent, self._run()
        usual = state.agent
        if self._planner_of is None or (own.model, own.planner, own.rules) == (usual.model, usual.planner, usual.rules):
            return self._planner
        key = msgspec.json.encode([own.model, own.planner, own.model_settings])
        if key not in self._planners:
            try:
                self._planners = {**self._planners, key: self._planner_of(own, state.budget, state.host)}
            except UnknownModel as error:  # no process can call it: the pass fails as if a provider refused the name
                raise PlannerFailed(str(error)) from error
            except ConfigError as error:  # another process, or this one later, may have what is missing: the pass has not failed
                raise Suspended(view.run_id, f"pass {view.scope!r} cannot be planned here: {error}") from error
        return self._planners[key]

    async def together(self, calls: Sequence[tuple[CallState, Begin]], context: KernelContext) -> None:
        """Run calls at the same time. A cancellation of the run reaches each of them, and each records it."""
        refuse_failed(await asyncio.gather(*(begin() for _, begin in calls), return_exceptions=True))

    async def intend(self, context: KernelContext, call: CallState) -> ToolOutcome | None:
        """See `World.intend`. A cancellation that is posted before the intent is recorded keeps the call from beginning."""
        if call.read_only:
            return None if await begins(context.run, self.control, self._store) else _NOT_BEGUN
        effect = self.control.effects.intends(call)
        effect.begun = await begins(context.run, self.control, self._store)
        if effect.begun:
            return None
        self.control.effects.not_executed()
        return _NOT_BEGUN


def _unsayable(answer: Any) -> str:
    """Return which part of a plan's actions would become null in the log, or cannot be written at all; "" if all of it can be kept."""
    if not isinstance(answer, Plan):
        return ""
    # an iterator would be empty by the time it is recorded
    if not isinstance(answer.actions, (tuple, list)):  # pyright: ignore[reportUnnecessaryIsInstance]
        return f"its actions are a {type(answer.actions).__name__}, not a tuple"
    for action in answer.actions:
        if isinstance(action, ToolCall):  # checked first: every turn has one
            if not isinstance(action.tool, str):  # pyright: ignore[reportUnnecessaryIsInstance]
                return f"a tool call names a {type(action.tool).__name__}, not a tool"
            said, problem = action.tool, json_problem(action)
        elif isinstance(action, FinalAnswer):
            said, problem = "the final answer", not isinstance(action.content, str) and json_problem(action.content, escaping=True)
        else:  # the check of the plan's form reports anything that is not an action
            said, problem = type(action).__name__, isinstance(action, Action) and json_problem(action)  # pyright: ignore[reportUnnecessaryIsInstance]
        if problem:
            return f"{said} is not JSON data: {problem}"
    return ""


async def _made(make: Callable[[], Awaitable[Any]]) -> Any:
    return await make()


async def _within(seconds: float, work: Awaitable[Any]) -> Any:
    """Await `work`, for at most `seconds`; raise `TimeoutError`."""
    async with asyncio.timeout(seconds):
        return await work
