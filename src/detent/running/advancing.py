"""Advances one run in this process: claim, load, journal, world, loop, release.

This process holds the claim (the lock that lets one process advance a run) while it advances the run, and always releases it. After a crash the store
finds out that the holder is dead. A suspended run stays `running` and can be resumed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from contextvars import ContextVar
from functools import partial
from typing import Any

import msgspec

from detent.config.compaction import compacts
from detent.config.planners import NoPlanner
from detent.core.agent import AgentSpec
from detent.core.budget import Budget
from detent.core.codec import read_log
from detent.core.errors import Conflict, DetentError, RunNotFound, StoreBusy, StoreFull, Suspended, UnknownName
from detent.core.events import AnyEvent, BudgetChanged, Forked, LevelsAccepted, RunReopened, RunResumed, ToolReconciled
from detent.core.records import Record
from detent.core.state import RunState
from detent.kernel.context import Run
from detent.kernel.journal import Journal, Sink
from detent.ports import (
    PATIENCE,
    Chunk,
    Clock,
    EventStore,
    Planner,
    Signal,
    awaited,
    give_back,
    noop_hooks,
)
from detent.ports.conversing import Conversation
from detent.ports.outside import BRANCH
from detent.ports.raised import KEEP, tell
from detent.running import admission, rules
from detent.running.attempts import tries_of
from detent.running.control import CALLER_GONE, Control
from detent.running.conversing import conversation_of, shown
from detent.running.declarations import declared_of, kept_policy, levels_of, refuse_unfounded, resumption
from detent.running.driving import drive
from detent.running.inbox import counts, drop
from detent.running.joining import can_move, ended_children
from detent.running.late import record_late
from detent.running.lifecycle_hooks import LifecycleHooks
from detent.running.live import MAKING, LiveWorld
from detent.running.parts import Parts, digests_of, links_of, make_run, tools_of, ways_of
from detent.running.patience import patience_of
from detent.running.people import poster
from detent.running.phase_hooks import apart
from detent.running.preparing import preparing_of
from detent.running.scheduling import ScheduledWorld
from detent.running.snapshots import SnapshotJournal, load_run
from detent.running.titles import Titling
from detent.running.tracebacks import Keeper
from detent.running.watcher import LOST

ADVANCED: ContextVar[str] = ContextVar("detent_advanced", default="")
"""The run that the current task advances, "" outside of one. Code inside a run that answers that run must not wait for it."""


async def load(store: EventStore, run_id: str) -> list[Record]:
    """Return the verified records of a run; raise `RunNotFound`, `CorruptLog`, `NewerVersion`."""
    lines = await store.read(run_id)
    if not lines:
        raise RunNotFound(run_id, store.url)
    return list(read_log(run_id, lines))


class Advancing:
    """One run while this process has its claim. Use as `async with Advancing(...) as run:`."""

    __slots__ = (
        "_chunk",
        "_claim",
        "_decides",
        "_inline",
        "_journal",
        "_planner_for",
        "_sinks",
        "control",
        "conversation",
        "parts",
        "run_id",
    )

    def __init__(
        self,
        parts: Parts,
        run_id: str,
        planner_for: Callable[[AgentSpec], Planner],
        *,
        sinks: Sequence[Sink] = (),
        chunk: Callable[[Chunk], None] | None = None,
        inline: bool = False,
    ) -> None:
        """Set up the run. `inline`: a call of the engine that already has the run continues with it; its planner is not told that the run begins."""
        self.parts, self.run_id = parts, run_id
        self._planner_for, self._inline = planner_for, inline
        self._journal: Journal | None = None
        self._claim: int | None = None
        self._decides = False
        self.conversation: Conversation | None = None  # what its artifact holds, where that was just made
        self.control = Control(run_id, grace_s=parts.grace_s, drain_s=parts.drain_s)
        self._sinks, self._chunk = sinks, chunk

    async def __aenter__(self) -> Advancing:
        """Take the claim. Raise `RunBusy`, also if another engine with this store object advances the run, and `Suspended`."""
        if self.control.stop:
            raise Suspended(self.run_id, self.control.stop)
        self.parts.watcher.add(self.run_id, self.control)
        self.control.attach()
        if self._sinks or self.parts.hooks is not noop_hooks:
            PATIENCE.set(patience_of(self.control))
        try:
            self._claim = await self.parts.store.claim(self.run_id)
        except BaseException as error:
            PATIENCE.set(awaited)
            self.parts.watcher.remove(self.run_id)
            self.parts.watcher.free(self.run_id, self.control)
            if isinstance(error, asyncio.CancelledError) and self.control.stop:
                raise Suspended(self.run_id, self.control.stop) from None
            raise
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None:
        """Release the claim. Turn anything that only stops the worker into `Suspended`."""
        if kind is GeneratorExit:
            return  # left behind with its event loop, where nothing can be awaited: see `Watcher.left`
        try:
            if isinstance(error, asyncio.CancelledError) and self.control.stop:
                await self._say_stopped()
        finally:
            if self._sinks or self.parts.hooks is not noop_hooks:
                PATIENCE.set(awaited)  # the context variable holds the control, which holds the task, whose context holds the variable
            self.control.detach()  # the function for the time left holds the control
            self.parts.watcher.remove(self.run_id)
            if self.parts.children is not None:
                self.parts.children.left(self.run_id, self.control.stop or ("its parent was stopped" if error is not None else ""))
            lost = isinstance(error, Conflict) or self.control.stop.startswith(LOST)
            await asyncio.shield(self._give_back(lost=lost))
        if isinstance(error, asyncio.CancelledError) and self.control.stop and not self.control.stop.startswith(CALLER_GONE):
            raise Suspended(self.run_id, self.control.stop) from None
        if isinstance(error, (StoreBusy, StoreFull)):
            raise Suspended(self.run_id, str(error)) from error

    async def _give_back(self, *, lost: bool) -> None:
        if lost and self._journal is not None:
            journal, self._journal, self._claim = self._journal, None, None  # the new owner of the run releases what it had reserved
            await record_late(journal, self.parts.store, self.journal)
        if not self.parts.watcher.holds(self.run_id, self.control):
            return  # the run was resumed since: the claim is not this one's any more
        try:
            if self.parts.tenants and self._journal is not None:
                await self.parts.tenants.give_back(self.run_id, self._journal.state.host.tenant, self._journal.unreleased)
            if self.parts.watcher.holds(self.run_id, self.control):  # the run may have been resumed meanwhile
                await give_back(self.parts.store, self.run_id)
        finally:
            self.parts.watcher.free(self.run_id, self.control)

    async def _say_stopped(self) -> None:
        """Record that the run was opened and closed in good order without progress: it is not a failed attempt.

        Nothing is recorded if another process has resumed the run since.
        """
        with suppress(DetentError):  # then it counts as one
            tries, _ = await tries_of(self.parts.store, self.run_id)
            if tries.count and tries.worker == self.parts.worker and not self.control.stop.startswith(LOST):
                state = await load_run(self.parts.store, self.run_id)
                journal = self.journal(state)
                journal.record(RunResumed(worker=self.parts.worker, running_ms=state.running_ms, stopped=self.control.stop))
                await journal.commit()

    def journal(self, state: RunState, *, told: bool = True) -> Journal:
        """Return a journal that continues after `state`. If it is not `told`, no observer and no hook gets its records."""
        parts, sinks = self.parts, [apart(sink) for sink in self._sinks] if told else []
        if told and parts.hooks is not noop_hooks:
            sinks.append(LifecycleHooks(parts.hooks).on_record)
        make = partial(SnapshotJournal, parts.store, state, self.control.effects, clock=parts.clock, ids=parts.ids)
        return make(sinks=sinks, claim=self._claim, charges_all=bool(parts.tenants))

    async def go(self, journal: Journal, *, turns: int | None = None) -> RunState:
        """Advance the run until it finishes, waits, or `turns` are done. Return its state."""
        parts, journal.state = self.parts, self.parts.alike.shared(journal.state)
        self._journal = journal
        for outer in (BRANCH, MAKING):  # of this task: a tool of a pass, or an effect, may have begun the run
            if outer.get():
                outer.set("")
        ADVANCED.set(self.run_id)
        self._decides = self.control.ready = True  # later signals are in the inbox, which is read first
        run, ended = await self._run(journal), journal.state.terminal
        if journal.state.children and parts.children is not None:
            parts.children.begin(journal.state)
        KEEP.set(Keeper(journal, (*parts.redact, *journal.state.agent.redact), run.tools.values()).keep)
        try:
            await drive(run, *ways_of(journal.state, parts), turns=turns)
        finally:
            KEEP.set(tell)
        if journal.state.terminal:
            await self._refuse_late(run)
        if parts.tenants:
            await journal.commit()  # release what the run still has reserved
        if journal.state.terminal and not ended:
            parts.ended(journal.state)
            if parts.children is not None:
                parts.children.ended(journal.state)
        return journal.state

    async def _refuse_late(self, run: Run) -> None:
        """Read the inbox once more, as after `RunWaiting`: signals from before the recorded end do not count, and their senders are told."""
        with suppress(DetentError):  # otherwise the next reader refuses them: the run itself has ended
            if await run.world.absorb(run, fresh=True):
                await run.journal.commit()

    async def _run(self, journal: Journal) -> Run:
        """Assemble what the run works with. Raise `ToolsMissing`, `UnknownName`, `ConfigError`."""
        parts = self.parts
        spec = journal.state.agent
        planner = NoPlanner(spec) if self.control.cancelled or journal.state.terminal else self._planner_for(spec)
        begin = getattr(planner, "begin_run", None)
        if begin is not None and not self._inline:
            begin(self.run_id)
        if parts.titles:
            planner = Titling(planner, journal, (*parts.redact, *journal.state.agent.redact))
        world = self._world(journal, planner)
        if journal.state.session is not None or journal.state.delegated is not None:
            earlier = await conversation_of(parts.store, journal.state) if self.conversation is None else self.conversation
            world.conversation = shown(earlier)
            if earlier.leaving and world.preparing is not None:
                from detent.running.condensing import Condensing

                world.preparing.condensing = Condensing(parts.store, earlier)
        ends = self.control.cancelled or journal.state.terminal  # no call is decided then, so no policy is missing
        links = () if ends else links_of(journal.state)
        return make_run(journal, world, parts, tools_of(journal.state, parts, missing_ok=bool(self.control.cancelled)), links=links)

    def _world(self, journal: Journal, planner: Planner) -> LiveWorld:
        parts = self.parts
        make_world = LiveWorld if parts.scheduler is None else partial(ScheduledWorld, scheduler=parts.scheduler)
        plans = not (self.control.cancelled or journal.state.terminal)  # ending a run needs neither its memory nor its compactor
        return make_world(
            journal=journal,
            planner=planner,
            store=parts.store,
            clock=parts.clock,
            control=self.control,
            redact=(*parts.redact, *journal.state.agent.redact),
            chunk=self._chunk,
            secrets=parts.secrets,
            traffic=parts.traffic,
            tenants=parts.tenants,
            planner_of=parts.planner_of_pass,
            preparing=preparing_of(parts.memories, parts.compactors, journal.state, planner) if plans else None,
            memories=parts.memories if plans else None,
            children=parts.children,
        )

    async def resume(self, *events: AnyEvent, turns: int | None = None, advance: bool = True) -> RunState:
        """Load the run and continue it. `events` (inputs) are recorded first, and nothing else if `advance` is false.

        A run that has nothing to do is left as it is. A run that is to be cancelled needs none of its tools.

        A finished run that is opened again starts without the leftover signals; a run that was given up picks them up.
        """
        parts = self.parts
        state = await load_run(parts.store, self.run_id, artifacts=True)
        now = parts.clock.now()
        left = [s for s in (await parts.store.signals([self.run_id])).get(self.run_id, []) if not rules.early(s, state, now)]
        reopened = state.terminal and any(isinstance(event, RunReopened) for event in events)
        if reopened:
            self.control.drop(left)
        else:
            there = [signal.payload for signal in left]
            left += [
                s for s in (*due(state, parts.clock), *await ended_children(parts.store, state)) if s.payload not in there
            ]  # an answer that was given in time wins over the expiry
            self.control.deliver(left)
        settled = await self._settled(state, left) if state.in_doubt and advance and not reopened else []
        news = events or settled or any(counts(signal, state) for signal in left)
        here = advance and parts.children is not None and not parts.children.submits
        if (state.terminal or state.status != "running") and not (news or (here and await can_move(parts.store, state))):
            return await self._stands(state, left)
        tools = tools_of(state, parts, missing_ok=bool(self.control.cancelled))
        usable: dict[str, str] = {}
        if not self.control.cancelled:
            admission.refuse_control_in_reach(parts.store, parts.secrets, state.agent, tools)
            usable = admission.usable(state.agent, state.host, tools, secrets=parts.secrets, capabilities=parts.capabilities)
            for entry in state.agent.verify:  # if a check is not available here, refuse before anything is recorded
                parts.answers.verifier_of(state.agent, entry)
            if reopened or not state.terminal:
                parts.affordable(state.agent, bounds_after(state.budget, events), state.host)
        bare = bool(self.control.cancelled)  # ending it uses none of the code
        digests, levels = (
            (state.digests, state.levels)
            if bare
            else (
                digests_of(tools, parts, usable, compacts="estimator" in state.digests or compacts(state.agent) is not None),
                levels_of(tools),
            )
        )
        for event in events:
            if isinstance(event, LevelsAccepted):
                refuse_unfounded(event, state, levels)
        journal = self.journal(state)
        if reopened:
            drop(left, journal, (*parts.redact, *state.agent.redact))
        if not state.terminal:
            resumed = resumption(state, digests, levels, worker=parts.worker)
            declared = declared_of({name: tool for name, tool in tools.items() if f"tool:{name}" in resumed.changed})
            policy = kept_policy(parts.policy, (*parts.redact, *state.agent.redact)) if "policy" in resumed.changed else {}
            journal.record(msgspec.structs.replace(resumed, declared=declared, policy=policy))
        for event in settled:
            journal.record(event, scope=event.call.rsplit(".", 2)[0])
        journal.record(*events)
        if parts.tenants:
            journal.release(None)  # leftovers of a worker that died; the records charge it now
        if not advance:
            await journal.commit(durable=True)
            return journal.state
        return await self.go(journal, turns=turns)

    async def missed(self, state: RunState) -> bool:
        """Whether a signal waits for the run, which came to rest at `state`: it arrived when the claim was about to be released.

        The caller then continues inline and starts with the present inbox.
        """
        if not self._decides or state.status == "running":
            return False
        self._inline, self.control.ready = True, False
        waiting: Sequence[Signal] = ()
        with suppress(DetentError):  # otherwise the next reader decides
            waiting = (await self.parts.store.signals([self.run_id])).get(self.run_id, ())
        return any(not rules.early(signal, state, self.parts.clock.now()) for signal in waiting)

    async def _settled(self, state: RunState, left: Sequence[Signal]) -> list[ToolReconciled]:
        """Ask the tools about calls in doubt. Return what they know now. A call that a person has settled is not asked about again."""
        told = [signal.payload.get("call") for signal in left if signal.kind == "reconcile"]
        try:
            tools = tools_of(state, self.parts, missing_ok=True)
        except UnknownName:  # without its kernel the run cannot continue, whatever happened to the call
            return []
        world = self._world(self.journal(state), NoPlanner(state.agent))
        found: list[ToolReconciled] = []
        for call_id in () if self.control.cancelled else state.in_doubt:
            call = state.call(call_id)
            tool = tools.get(call.tool) if call is not None else None
            known = await world.settle(tool, call) if tool is not None and call is not None and call_id not in told else None
            if known is not None:
                outcome = "not_happened" if known.outcome == "again" and state.terminal else known.outcome
                found.append(msgspec.structs.replace(known, outcome=outcome, via=poster()))
        return found

    async def _stands(self, state: RunState, left: Sequence[Signal]) -> RunState:
        """Leave the run as it is. Drop the signals that do not count, and record that."""
        self._decides = True
        self.control.drop(left)
        if not left:
            return state
        journal = self.journal(state)
        drop(left, journal, (*self.parts.redact, *state.agent.redact))
        await journal.commit()
        return journal.state


def bounds_after(budget: Budget, events: Iterable[AnyEvent | None]) -> Budget:
    """Return the bounds of a run after these events."""
    for event in events:
        if isinstance(event, (BudgetChanged, RunReopened)) and event.budget is not None:
            budget = event.budget.over(budget)
        elif isinstance(event, Forked) and event.edits.get("budget"):
            budget = msgspec.convert(event.edits["budget"], Budget).over(budget)
    return budget


def due(state: RunState, clock: Clock) -> list[Signal]:
    """Return the timers and approval expiries that are due."""
    now = clock.now()
    if state.terminal:
        return []
    over = rules.fired(state, now)
    for call, asked in state.approvals.items():
        if asked.expires_at is not None and asked.expires_at <= now:
            over.append(Signal(id=f"expired:{call}", kind="approval", payload={"call": call, "decision": "expired"}))
    return over
