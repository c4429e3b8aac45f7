"""What an engine shares among all its runs, and how it continues one of them.

`Engine` is a thin front: its methods are functions of `starting`, `answering`, `working` and the room `history`, which get this object.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
import os
import socket
from collections.abc import Callable, Coroutine, Sequence
from contextvars import Context, ContextVar, copy_context
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from detent.config.adapters import fan_out, one_of
from detent.config.groups import Bounds
from detent.config.names import Names
from detent.config.planners import Planners
from detent.config.protocols import Protocols
from detent.config.verifying import Verifiers
from detent.core.agent import AgentSpec, Host
from detent.core.budget import Budget
from detent.core.errors import DetentError, RunBusy, RunNotFound, UnknownName
from detent.core.state import RunState
from detent.kernel.journal import Journal
from detent.kernel.think import think
from detent.metering.pricing import Prices
from detent.metering.tenants import Tenants
from detent.ports import Guard, Observer, Planner, Signal, WorkerHost, give_back, posted_to, unstorable
from detent.ports.copies import ours
from detent.ports.passwords import without_password
from detent.ports.processes import renew_in_children
from detent.running import admission
from detent.running.advancing import ADVANCED, Advancing, due
from detent.running.parts import Parts, kernel_of, nameless
from detent.running.people import poster
from detent.running.phase_hooks import apart
from detent.running.results import Approval, Result, approvals_of, result_of
from detent.running.rules import cancels
from detent.running.snapshots import load_run
from detent.running.stopping import Underway
from detent.running.versions import Routing

if TYPE_CHECKING:
    from detent.config.adapters import Registry, Servers

log = logging.getLogger("detent")

Approver = Callable[[Approval], Any]
Begin = Callable[[Advancing], Coroutine[Any, Any, Journal | RunState]]
"""The first step with a run under its claim. It returns the journal to continue the run with, or the run's state if it is not continued."""
UNLIMITED = contextlib.nullcontext()


_LOOK_S = 0.05
"""How often to check whether another event loop still runs."""


def worker_name() -> str:
    """Return this process's name in the records of resumptions."""
    return f"{socket.gethostname()}:{os.getpid()}"


WATCHED: ContextVar[Sequence[Observer]] = ContextVar("detent_watched", default=())
"""The observers that were given for the run that this task advances; its children get them too."""


def watched_by(observers: Sequence[Observer]) -> Context:
    """Return the context of a task that advances a run for these observers."""
    context = copy_context()
    context.run(WATCHED.set, observers)
    return context


class Runtime:
    """What the runs of one engine share. It holds no state of a run, only the tasks that now advance some."""

    def __init__(
        self,
        *,
        tools: Registry,
        servers: Servers,
        planners: Planners,
        verifiers: Verifiers,
        guards: Names[Guard],
        approver: Literal["caller"] | Approver | None,
        ceiling: int,
        budget: Budget,
        bounds: Bounds,
        observers: Sequence[Observer],
        prices: Prices,
        tenants: Tenants,
        worker_host: WorkerHost,
        owns_store: bool,
        keep: Callable[..., Coroutine[Any, Any, Any]],
        move: Callable[..., Coroutine[Any, Any, Any]],
        fire: Callable[..., Coroutine[Any, Any, None]],
        protocols: Protocols,
        **shared: Any,
    ) -> None:
        """Set up; `shared` has the other `Parts`. `keep` applies the retention rules, `move` moves a run to this version, `fire` fires schedules."""
        self.tools, self.servers, self.planners, self.prices, self.tenants = tools, servers, planners, prices, tenants
        self.approver: Literal["caller"] | Approver | None = approver
        self.verifiers, self.protocols, self.guards = verifiers, protocols, guards
        self.agents, self.session_ends, self.find_agent = dict[str, Any](), dict[str, int](), _nobody
        self.ceiling, self.budget, self.worker_host, self.retention = ceiling, budget, worker_host, bounds.retention
        self.goal_words_in_ids, self.keep, self.move, self.fire = bounds.goal_words_in_ids, keep, move, fire
        self.parts = Parts(
            tools=tools,
            tenants=tenants,
            grace_s=bounds.grace_s,
            drain_s=bounds.drain_s,
            max_active_per_key=bounds.max_active_per_key,
            affordable=self.refuse_unpriced,
            planner_of_pass=self.planner_of_pass,
            **shared,
        )
        self.store, self.owns_store, self._opened = self.parts.store, owns_store, False
        self.routing, self.max_versions = Routing(self.store, self.parts.version, bounds.max_versions), bounds.max_versions
        self._observers, self._most = one_of(observers), bounds.max_concurrent_runs
        self._limit = asyncio.Semaphore(self._most) if self._most else None
        self.underway = Underway(self.parts.watcher)
        self._loop: asyncio.AbstractEventLoop | None = None
        renew_in_children(self)

    def forked(self) -> None:
        """Be closed, and advance nothing: in a forked child, the runs in progress belong to its parent."""
        self.underway.forked()
        self._opened, self._loop = False, None
        self._limit = asyncio.Semaphore(self._most) if self._most else None
        self.parts = msgspec.structs.replace(self.parts, worker=worker_name())
        self.parts.watcher.forked()

    # Lifetime -----------------------------------------------------------------------------------------------------------------------
    async def open(self) -> None:
        """Make the store usable. Give up what was left behind with a closed event loop."""
        here = asyncio.get_running_loop()
        if self._loop is not here:
            self._loop = here
            if self._opened:
                await self.store.open()
                await self._give_up(self.parts.watcher.left())
        if not self._opened:
            await self.store.open()
            self._opened = True

    async def close(self) -> None:
        """Stop workers, suspend runs in progress, then close the store. Calls with an effect may finish first (`Bounds.drain_s`).

        If the caller is cancelled meanwhile, these calls are cut off, and the rest is closed anyway. All of it happens in the event loop that used
        the engine last, if that runs. What belongs to a loop that does not run is given up.
        """
        here, last = asyncio.get_running_loop(), self._loop
        if last is not None and last is not here and last.is_running():
            there = asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self.close(), last))
            while last.is_running() and not there.done():
                await asyncio.wait([there], timeout=_LOOK_S)  # it may stop running in between
            if there.done():
                await there
                return
        try:
            await self.underway.end("the engine is closing")
        finally:
            await self._close()

    async def _close(self) -> None:
        await self._give_up(self.parts.watcher.left(stopped=True))
        await self.parts.watcher.close()
        self.tools.rest()
        for part in (self.servers, self.planners, self.parts.memories, self.worker_host, self.parts.traffic):
            await getattr(part, "close", _nothing)()
        if self._opened:
            self._opened = False
            if self.owns_store:
                await self.store.close()

    async def _give_up(self, runs: Sequence[str]) -> None:
        """Release the claims of runs that nobody continues."""
        self.underway.forget_closed_loops()
        if self._opened:
            for run_id in runs:
                await give_back(self.store, run_id)

    def suspend(self, why: str, *, drain_s: float | None = None) -> int:
        """Stop advancing every run here. All of them can be resumed; `run` and `resume` raise `Suspended`. Workers end: `work` returns.

        Calls with an effect that are in progress may finish first, for at most `drain_s` seconds (None: `Bounds.drain_s`). Reads and model calls are
        cut off at once, and nothing more begins. A second call cuts off the remaining calls too; they are in doubt. Returns how many runs and workers
        it stops.
        """
        return self.underway.suspend(why, drain_s)

    # Continuing a run ------------------------------------------------------------------------------------------------------------
    async def go_on(
        self,
        run_id: str,
        *events: Any,
        turns: int | None = None,
        advance: bool = True,
        slot: bool = True,
        observers: Sequence[Observer] = (),
        planner_for: Callable[[AgentSpec], Planner] | None = None,
        inline: bool = False,
    ) -> Result:
        """Record `events` of an existing run and continue it as far as `turns` and `advance` allow; `inline` is explained at `Advancing`."""
        if advance:
            await self.reach_servers(run_id, news=bool(events))

        def begin(advancing: Advancing) -> Coroutine[Any, Any, RunState]:
            return advancing.resume(*events, turns=turns, advance=advance)

        observers = one_of(observers)
        task = self.take_on(run_id, begin, observers, turns=turns, slot=slot and advance, planner_for=planner_for, inline=inline)
        return await self.answered(await self.reached(task), observers, turns=turns)

    def reached(self, task: asyncio.Task[RunState]) -> Coroutine[Any, Any, RunState]:
        """Return the state that a run reaches; `task` comes from `take_on`."""
        return self.underway.reached(task, ADVANCED.get())

    def take_on(
        self,
        run_id: str,
        begin: Begin,
        observers: Sequence[Observer],
        *,
        turns: int | None = None,
        slot: bool = True,
        planner_for: Callable[[AgentSpec], Planner] | None = None,
        inline: bool = False,
    ) -> asyncio.Task[RunState]:
        """Advance a run under its claim, in its own task, with this engine's observers and its limit; its awaiter then forgets it."""
        self.parts.watcher.refuse_held(run_id)
        told = fan_out((*self._observers, *observers)) if observers or self._observers else None
        sinks, chunk = ([told.on_record if told.only_reads else apart(told.on_record)], told.on_chunk) if told else ([], None)
        advancing = Advancing(self.parts, run_id, planner_for or self.planner_of_run, sinks=sinks, chunk=chunk, inline=inline)
        work = self._under_claim(advancing, begin, turns, (slot and self._limit) or UNLIMITED)
        task = asyncio.create_task(work, name=run_id, context=watched_by(observers))
        self.underway.tasks[task] = advancing.control
        return task

    async def _under_claim(
        self, advancing: Advancing, begin: Begin, turns: int | None, limit: contextlib.AbstractAsyncContextManager[None]
    ) -> RunState:
        self.underway.queued.add(advancing.control)  # a suspension reaches it while it waits for its turn
        try:
            async with limit:
                self.underway.queued.discard(advancing.control)
                async with advancing:
                    begun = await begin(advancing)
                    del begin  # it holds the run's parts
                    state = begun if isinstance(begun, RunState) else await advancing.go(begun, turns=turns)
                return state if turns is not None else await _looked_again(advancing, state)
        finally:
            self.underway.queued.discard(advancing.control)

    def result(self, state: RunState) -> Result[Any]:
        """Return the state of a run; its output is an instance if the type of its answers is known here."""
        result = result_of(state, without_password(self.store.url))
        output = self.verifiers.made(state.output, state.agent)
        return result if output is state.output else msgspec.structs.replace(result, output=output)

    async def answered(self, state: RunState, observers: Sequence[Observer], *, turns: int | None) -> Result:
        """Return the result. If the run waits for approvals and this program has an approver, call that first."""
        if callable(self.approver) and state.status == "waiting_for_approval":
            return await self._ask_approver(state, self.approver, observers, turns=None if turns is None else 0)
        return self.result(state)

    async def _ask_approver(self, state: RunState, approver: Approver, observers: Sequence[Observer], *, turns: int | None) -> Result:
        answered = False
        for request in approvals_of(state):
            try:
                answer = approver(request)
                approved = bool(await answer if inspect.isawaitable(answer) else answer)
            except Exception:  # foreign code: an approver that fails has not decided
                log.exception("the approver failed on call %s of run %s; the call still waits", request.call_id, state.run_id)
                return self.result(state)
            if approved and "approver" in request.approved_by:
                continue  # it has approved already: somebody else must approve too
            answered = True
            payload = {"call": request.call_id, "decision": "approved" if approved else "denied", "digest": request.digest}
            await self.store.post(state.run_id, posted_to(state.run_id, self.signal("approval", payload, by="approver")))
        if not answered:
            return self.result(state)
        return await self.go_on(state.run_id, turns=turns, observers=observers, inline=True)

    def signal(self, kind: Any, payload: dict[str, Any], *, by: str) -> Signal:
        """Return a new signal. Raise `ConfigError` for data that JSON cannot express."""
        admission.refuse_what_is_not_json(**payload, by=by)
        return Signal(id=self.parts.ids.token(16), kind=kind, payload=payload, by=by, via=poster())

    # Checks ---------------------------------------------------------------------------------------------------------------------
    async def kept_as(self, run_id: str, host: Host | None) -> str:
        """Return the stored id of the run that a host calls `run_id`, whether or not the run exists.

        That is `run_id` itself if the run belongs to the host's tenant, else the tenant's own id (`tenants_id`): another tenant's run with this id
        has no effect on the answer. The operator uses the stored ids.
        """  # DESIGN 8
        await self.open()
        if host is None or unstorable(run_id):
            return run_id
        head = await self.store.head(run_id)
        mine = not host.tenant if head is None else head.tenant == host.tenant
        return run_id if mine else admission.tenants_id(run_id, host.tenant)

    async def visible(self, run_id: str, host: Host | None) -> str:
        """Return the stored id of a run. Raise `RunNotFound` if the operator, or the tenant that asks, has no such run."""
        kept = await self.kept_as(run_id, host)
        head = None if unstorable(kept) else await self.store.head(kept)
        if head is None or (host is not None and head.tenant != host.tenant):
            raise RunNotFound(run_id, self.store.url)
        return kept

    async def same_host(self, run_id: str, host: Host | None) -> str:
        """Return and raise as `visible` does. Raise `RunContextMismatch` if another host started the run."""  # row K8
        kept = await self.visible(run_id, host)
        if host is not None:
            admission.same_host(kept, (await load_run(self.store, kept)).host, host)
        return kept

    async def standing(self, run_id: str, host: Host | None) -> RunState:
        """Return the state of a visible run. Raise `RunErased`, `CorruptLog`."""
        return await load_run(self.store, await self.visible(run_id, host))

    def refuse_unusable(self, spec: AgentSpec) -> None:
        """Raise `ConfigError` for an agent, changed for a fork, that names something unknown here."""
        kernel = self.parts.kernels.get(spec.kernel) if spec.kernel else self.parts.kernel
        self.parts.strategies.get(spec.strategy)
        known = [*self.tools.names(), *(tool.spec.name for tool in kernel.meta_tools)]
        for name in spec.tools:
            if name not in known and not self.servers.claims(name) and nameless(name, spec, self.parts):
                raise UnknownName("tool", name, known)
        self.parts.policy_of(spec)
        self.parts.guards_of(spec, (), {})
        self.verifiers.check(spec)
        self.planners.of(spec)

    def planner_of_run(self, spec: AgentSpec, *, check: bool = True) -> Planner:
        """Return the agent's planner; raise `ConfigError` if there is none and its strategy needs one. A strategy of your own may need none."""
        plans = think in kernel_of(spec, self.parts).phases and ours(self.parts.strategies.get(spec.strategy))
        return self.planners.needed(spec, check=check) if plans else self.planners.of(spec, check=check)

    def planner_of_pass(self, spec: AgentSpec, budget: Budget, host: Host, *, check: bool = True) -> Planner:
        """Return the planner of a pass whose model `spec` names. Raise `ConfigError` if it is unavailable here, or has no price."""
        planner = self.planners.of_pass(spec, check=check)
        self.refuse_unpriced(spec, budget, host, planner)
        return planner

    def refuse_unpriced(self, spec: AgentSpec, budget: Budget, host: Host, planner: Planner | None = None) -> None:
        """Raise `ConfigError` if the cost of the run, or of all runs of its tenant, is bounded and a model has no price."""
        tenant = self.tenants.budget_of(host.tenant)
        if budget.max_cost_usd is not None:
            bounded = f"agent {spec.name!r}"
        elif tenant is not None and tenant.max_cost_usd is not None:
            bounded = f"agent {spec.name!r} runs for tenant {host.tenant!r}, which"
        else:
            return
        planner = planner or self.planners.of(spec, check=False)
        admission.refuse_unpriced(spec, planner, self.prices, self.protocols.models_asked(spec.tools), bounded=bounded)

    async def reach_servers(self, run_id: str, *, news: bool) -> None:
        """Connect the MCP servers that a run needs to continue; a run that has nothing to do, or is to be cancelled, needs none."""
        if not self.servers:
            return
        state = await load_run(self.store, run_id)
        left = (await self.store.signals([run_id])).get(run_id, [])
        if any(cancels(signal, run_id) for signal in left):
            return
        if news or left or state.status == "running" or due(state, self.parts.clock):
            await self.servers.prepare(state.agent.tools, resuming=True)

    def wrap(self, *, planner: Callable[[Planner], Planner] | None, **others: Any) -> None:
        """Wrap every planner, and replace `Parts`."""
        self.planners.around = planner or self.planners.around
        self.parts = msgspec.structs.replace(self.parts, **others)


async def _looked_again(advancing: Advancing, state: RunState) -> RunState:
    """Pick up what arrived between the last reading of the inbox and the release of the claim: its sender was told that somebody has the run."""
    with contextlib.suppress(DetentError if state.terminal else RunBusy):  # its present owner, or the next reader, decides
        while await advancing.missed(state):
            async with advancing:
                state = await advancing.resume()
    return state


def _nobody(name: str) -> Any:
    """Find an agent that the engine does not know yet; None for none. A command sets what reads its configuration."""
    return None


async def _nothing() -> None:
    """What a part without connections does when it is closed."""


async def pass_on(runtime: Runtime, run_id: str) -> None:
    """Pass a run that can move to the workers, unless this engine advances it. Why it can move is durable, so a failure only delays it."""
    if runtime.parts.watcher.control(run_id) is not None:
        return
    try:
        await runtime.worker_host.submit(run_id)
    except DetentError as error:
        log.warning("run %s can continue, and no worker could be told: %s. A worker finds it when it next checks", run_id, error)
