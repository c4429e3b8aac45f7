"""Advances one run in this process: claim, load, journal, world, loop, release.

This process holds the claim (the lock that lets one process advance a run) while it advances the run, and always releases it. After a crash the store
finds out that the holder is dead. A suspended run stays `running` and can be resumed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from contextvars import ContextVar
from datetime import datetime
from functools import partial
from typing import Any

import msgspec

from detent.config.compaction import compacts
from detent.config.planners import NoPlanner
from detent.core.agent import AgentSpec
from detent.core.budget import Budget
from detent.core.codec import read_log
from detent.core.errors import Conflict, DetentError, RunBusy, RunNotFound, StoreBusy, StoreFull, Suspended, UnknownName
from detent.core.events import AnyEvent, BudgetChanged, Forked, LevelsAccepted, RunReopened, RunResumed, ToolReconciled
from detent.core.records import Record
from detent.core.state import RunState
from detent.kernel.context import Run
from detent.kernel.journal import Journal, Sink
from detent.metering.accounts import FRESH_S, Accounts
from detent.ports import (
    PATIENCE,
    Chunk,
    Clock,
    DueQuery,
    EventStore,
    Planner,
    Signal,
    awaited,
    give_back,
    noop_hooks,
    wake_workers,
)
from detent.ports.conversing import Conversation
from detent.ports.heads import head_of, wakes_at
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
from detent.running.posting import asked_parent
from detent.running.preparing import preparing_of
from detent.running.scheduling import ScheduledWorld
from detent.running.snapshots import SnapshotJournal, load_run
from detent.running.strategy_options import check_usable
from detent.running.titles import Titling
from detent.running.tracebacks import Keeper
from detent.running.versions import is_other, refuse_other
from detent.running.watcher import LOST

ADVANCED: ContextVar[str] = ContextVar("detent_advanced", default="")
"""The run that the current task advances, "" outside of one. Code inside a run that answers that run must not wait for it."""


PER_KEY: ContextVar[bool] = ContextVar("detent_per_key", default=False)
"""Whether the bound on active runs of a key holds for the run that the current task resumes: a worker resumes it, and not a person."""


async def _entitled(parts: Parts, run_id: str) -> RunState:
    """Return the state of a claimed run. Raise `RunBusy` if more runs of its key are claimed than may be active.

    Whoever claims one more sees it, because it is claimed already. Of several that do so at once, all may give way and try again.
    """
    state = await load_run(parts.store, run_id, artifacts=True)
    if (most := parts.max_active_per_key) is not None and PER_KEY.get():
        PER_KEY.set(False)  # what the run itself starts is not a worker's
        key = (state.queued.fair_key if state.queued is not None else "") or state.host.tenant
        found = await parts.store.due(DueQuery(now=parts.clock.now(), limit=0, counts=True))
        if found.active.get(key, 0) > most:
            raise RunBusy(run_id, f"nobody: {most} other runs of the key {key!r} are active (max_active_per_key)", doing="held back")
    return state


async def _tell_workers(store: EventStore, written: Journal | None) -> None:
    """Wake the workers if the run whose claim was released can move: they may advance it now, or sleep until later than it can."""
    if written is not None and wakes_at(written.state) is not None:
        await wake_workers(store)


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
        "_written",
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
        self.parts, self.run_id, self._planner_for, self._inline = parts, run_id, planner_for, inline
        self._journal: Journal | None = None
        self._claim: int | None = None
        self.conversation: Conversation | None = None  # what its artifact holds, where that was just made
        self.control = Control(run_id, grace_s=parts.grace_s, drain_s=parts.drain_s)
        self._sinks, self._chunk, self._decides, self._written = sinks, chunk, False, None

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
            if isinstance(error, Suspended) and error.until is not None and not self.control.stop:
                await self._say_stopped(error.why)  # somebody holds the run: that it was tried is no failed attempt
                await put_off(self.parts.store, self._written, error.until, self._claim)
            lost = isinstance(error, Conflict) or self.control.stop.startswith(LOST)
            await asyncio.shield(self._give_back(lost=lost, unheard=isinstance(error, (StoreBusy, StoreFull)) or bool(self.control.stop)))
        if isinstance(error, asyncio.CancelledError) and self.control.stop and not self.control.stop.startswith(CALLER_GONE):
            raise Suspended(self.run_id, self.control.stop) from None
        if isinstance(error, (StoreBusy, StoreFull)):
            raise Suspended(self.run_id, str(error)) from error

    async def _give_back(self, *, lost: bool, unheard: bool) -> None:
        """Release the claim. Outcomes that could not be committed are recorded late: the run is `lost`, or an append failed, or was refused while the run
        stopped (`unheard`).
        """
        if self._journal is not None:
            self._journal.dropped()
        if (lost or unheard) and (journal := self._journal) is not None:
            self._claim = None
            if lost:
                self._journal = None
            await record_late(journal, self.parts.store, self.journal)
        if not self.parts.watcher.holds(self.run_id, self.control):
            return  # the run was resumed since: the claim is not this one's any more
        try:
            await give_back(self.parts.store, self.run_id)
        finally:
            self.parts.watcher.free(self.run_id, self.control)
        await _tell_workers(self.parts.store, self._written)

    async def _say_stopped(self, why: str = "") -> None:
        """Record that the run was opened and closed in good order without progress: it is not a failed attempt.

        Nothing is recorded if another process has resumed the run since.
        """
        with suppress(DetentError):  # then it counts as one
            tries, _ = await tries_of(self.parts.store, self.run_id)
            if tries.count and tries.worker == self.parts.worker and not self.control.stop.startswith(LOST):
                state = await load_run(self.parts.store, self.run_id)
                journal = self.journal(state)
                journal.record(RunResumed(worker=self.parts.worker, running_ms=state.running_ms, stopped=why or self.control.stop))
                await journal.commit()

    def journal(self, state: RunState, *, told: bool = True) -> Journal:
        """Return a journal that continues after `state`. If it is not `told`, no observer and no hook gets its records."""
        parts, sinks = self.parts, [*self._sinks] if told else []
        if told and parts.hooks is not noop_hooks:
            sinks.append(LifecycleHooks(parts.hooks).on_record)
        make = partial(SnapshotJournal, parts.store, state, self.control.effects, clock=parts.clock, ids=parts.ids)
        self._written = make(sinks=sinks, claim=self._claim, tenants=parts.tenants)
        return self._written

    async def go(self, journal: Journal, *, turns: int | None = None) -> RunState:
        """Advance the run until it finishes, waits, or `turns` are done. Return its state. Raise `Suspended` if somebody holds it."""
        parts, journal.state = self.parts, self.parts.alike.shared(journal.state)
        self._journal = journal
        await refuse_held(self.parts.accounts, self.control, journal)
        for outer in (BRANCH, MAKING):  # of this task: a tool of a pass, or an effect, may have begun the run
            if outer.get():
                outer.set("")
        ADVANCED.set(self.run_id)
        self._decides = self.control.ready = True  # later signals are in the inbox, which is read first
        run, ended = await self._run(journal), journal.state.terminal
        if journal.state.children and parts.children is not None:
            parts.children.begin(journal.kept)
        KEEP.set(Keeper(journal, (*parts.redact, *journal.state.agent.redact), run.tools.values()).keep)
        try:
            await drive(run, *ways_of(journal.state, parts), turns=turns)
        finally:
            KEEP.set(tell)
        if journal.state.terminal:
            await self._refuse_late(run)
        if journal.state.terminal and not ended:
            parts.ended(journal.state)
        if parts.children is not None and ((journal.state.terminal and not ended) or asked_parent(journal.state) is not None):
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

        A run that has nothing to do is left as it is. To be cancelled, or opened for a worker, it needs none of its tools.
        A finished run that is opened again starts without the leftover signals; a run that was given up picks them up.
        """
        parts = self.parts
        state = await _entitled(parts, self.run_id)
        now = parts.clock.now()
        left = [s for s in (await parts.store.signals([self.run_id])).get(self.run_id, []) if not rules.early(s, state, now)]
        reopened = state.terminal and any(isinstance(event, RunReopened) for event in events)
        if reopened:
            self.control.drop(left)
        else:
            there = [signal.payload for signal in left]
            more = (*due(state, parts.clock), *await ended_children(parts.store, state))
            left += [s for s in more if s.payload not in there]  # an answer that was given in time wins over the expiry
            self.control.deliver(left)
        settled = await self._settled(state, left) if state.in_doubt and advance and not reopened else []
        news = events or settled or any(counts(signal, state) for signal in left)
        here = advance and parts.children is not None and not parts.children.submits
        if (state.terminal or state.status != "running") and not (news or (here and await can_move(parts.store, state))):
            return await self._stands(state, left)
        bare = bool(self.control.cancelled) or (not advance and bool(events) and all(isinstance(event, RunReopened) for event in events))
        if advance and not bare and (reopened or not state.terminal):
            refuse_other(state, parts.version)
        tools = tools_of(state, parts, missing_ok=bare)
        usable: dict[str, str] = {}
        if not bare:
            admission.refuse_control_in_reach(parts.store, parts.secrets, state.agent, tools)
            usable = admission.usable(state.agent, state.host, tools, secrets=parts.secrets, capabilities=parts.capabilities)
            _refuse_unavailable(parts, state.agent)
            if reopened or not state.terminal:
                parts.affordable(state.agent, bounds_after(state.budget, events), state.host)
        digests, levels = (  # ending it, or opening it for a worker, uses none of the code
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
            journal.release()  # leftovers of a worker that died; the records charge it now
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
        for call_id in () if self.control.cancelled or is_other(state, self.parts.version) else state.in_doubt:
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


async def refuse_held(accounts: Accounts, control: Control, journal: Journal) -> None:
    """Raise `Suspended` if somebody holds the run. A new run is kept; nothing else is recorded, so it is not an attempt."""
    if not await accounts.read(fresh_s=FRESH_S) or control.cancelled:
        return
    hold = accounts.stops(journal.state) if control.waiting else accounts.holding(journal.state)
    if hold is not None:
        if not journal.kept.seq:
            await journal.commit(durable=True)
        raise Suspended(journal.state.run_id, hold.said, until=accounts.again(hold))


async def put_off(store: EventStore, written: Journal | None, until: datetime, claim: int | None) -> None:
    """Write into the listing entry of a claimed run when it is worth another look. If that fails, a worker checks earlier."""
    if written is not None and (kept := written.kept).seq:
        with suppress(DetentError):
            await store.append(kept.run_id, kept.seq, [], head=msgspec.structs.replace(head_of(kept), wake_at=until), claim=claim)


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


def _refuse_unavailable(parts: Parts, agent: AgentSpec) -> None:
    """Raise `UnknownName` or `ConfigError`, before anything is recorded, if a check of the agent is not available here or its strategy cannot work here."""
    for entry in agent.verify:
        parts.answers.verifier_of(agent, entry)
    check_usable(parts.strategies.get(agent.strategy), agent)
