"""What a program calls: start runs, take them on, answer them, look at them.

An engine owns its tools, its planner, its policy and one store. It holds no state of a run: everything is read from the log, and a run
that waits is rows in a store and no memory anywhere.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
import os
import socket
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec

from detent.clock import RandomIds, SystemClock
from detent.config.agents import Agent, Config
from detent.config.names import Names, plugged
from detent.core.agent import AgentSpec, Host
from detent.core.budget import CEILING, Budget, checked
from detent.core.errors import (
    ConfigError,
    Conflict,
    DetentError,
    NotAllowedNow,
    RunBusy,
    RunErased,
    RunError,
    RunNotFound,
    Suspended,
    UnknownName,
)
from detent.core.events import BudgetChanged, RunReopened, RunStarted
from detent.core.records import Record, RunHead
from detent.core.state import WAITING, RunState
from detent.history import comparing, forking, upgrading, upkeep
from detent.history.backtest import Backtest, backtest
from detent.history.comparing import Diff, Parting
from detent.history.replaying import Answer, plans_of, replay
from detent.history.upgrading import Upgrade, Upgraded
from detent.kernel.journal import Journal, Sink
from detent.kernel.kernel import Kernel, make_kernel
from detent.metering.gateway import Traffic
from detent.metering.model_limits import ModelLimits, ModelRetries, ProviderLimits, limits_of
from detent.metering.pricing import ModelPrice, Prices
from detent.metering.tenants import TenantBudget, Tenants
from detent.ports import (
    Capabilities,
    Chunk,
    Clock,
    EventStore,
    Guard,
    Ids,
    KernelHooks,
    Observer,
    Planner,
    Policy,
    RunQuery,
    Scheduler,
    SecretSource,
    Signal,
    Strategy,
    Together,
    Toolbox,
    View,
    WorkerHost,
    noop_hooks,
    unstorable,
)
from detent.running import admission
from detent.running.admission import new_run_id
from detent.running.advancing import Advancing, Parts, digests_of, due, load, tools_of
from detent.running.answering import approval_payload, reconcile_payload, refuse_reopening, reply_payload
from detent.running.interrupts import on_signals
from detent.running.lineage import history, preserve
from detent.running.live import GRACE_S, KEY_BLOB, blob_of
from detent.running.passes import check_options, version_of
from detent.running.phase_hooks import check_hooks
from detent.running.results import Approval, Replay, Result, Verification, approvals_of, result_of
from detent.running.snapshots import load_run
from detent.running.watcher import Watcher
from detent.running.working import Hand, Shift, StoreBacklog, Wakeups, Worked
from detent.secrecy.redact import Redactor, redacted_start
from detent.tools.mcp.settings import McpServer

T = TypeVar("T")
log = logging.getLogger("detent")

Approver = Callable[[Approval], Any]
Begin = Callable[[Advancing], Coroutine[Any, Any, Journal | RunState]]
"""What is done first with a run under its claim; returns the journal to take it on with, or the state that it has come to."""
UNLIMITED = contextlib.nullcontext()


class Engine:
    """Runs agents on goals. Use as `async with Engine(...) as engine:`, or call `run_sync`.

    `store`: a URL (`ram:`, `file:DIR`, `sqlite:///PATH`), or a store, which its giver closes. `planner`: any object with `plan(view)`; an
    agent with rules brings its own. `policy`: a policy, or the path of a policy file (none: the agent's own, else the tiers). `approver`:
    who answers requests for approval in this program: "caller" (it calls `approve`), or a function of an `Approval` that returns whether it
    is approved (sync or async). `workspace`: a directory whose workspace tools agents may list; `sandbox`: whether its exec tool runs
    programs in a sandbox, see `workspace_tools`. `ceiling`: the highest number of iterations that a budget may ask for. `kernels`,
    `strategies`, `guards`: more of them, by the names that agents use. `grace_s`: how long a running call may take to stop once its run is
    cancelled. `secrets`: where credentials are kept; a run that is started without a host is given all of them. `capabilities`: what agents
    may rely on. `mcp`: MCP servers by name, whose tools agents list as `NAME__tool` or `NAME__*`; they are connected when a run needs them,
    and closed with the engine. `model_limits`: how many calls and tokens a provider gets (an object shared by engines, or limits by
    provider); `model_prices`: prices by "provider:name" that go before the price list; `model_retries`: how failed calls are tried again.
    `tenant_budgets`: what all runs of a tenant may use in a day or a month, by tenant; "*" for each that is not named. `scheduler`: when the
    calls of all runs begin, such as `detent.tools.Bounded(8)`; without one, as soon as they may. `worker_host`: how
    `submit` hands runs to workers, and how `work` is one (none: an `InProcessHost`, for which the store is the queue). `titles`:
    whether an agent's small model is asked once what its run is called in lists.
    """

    def __init__(
        self,
        *,
        store: str | EventStore = "ram:",
        planner: Planner | None = None,
        tools: Iterable[Any] = (),
        policy: Policy | str | Path | None = None,
        approver: Literal["caller"] | Approver | None = None,
        observers: Sequence[Observer] = (),
        workspace: str | Path | None = None,
        sandbox: Literal["auto", "require", "off"] = "auto",
        mcp: Mapping[str, McpServer] | None = None,
        ceiling: int = CEILING,
        max_concurrent_runs: int | None = None,
        clock: Clock | None = None,
        ids: Ids | None = None,
        kernel: Kernel | None = None,
        kernels: Mapping[str, Kernel] | None = None,
        strategies: Mapping[str, Strategy] | None = None,
        guards: Mapping[str, Guard] | None = None,
        hooks: KernelHooks = noop_hooks,
        redact: Sequence[str] = (),
        secrets: SecretSource | None = None,
        capabilities: Capabilities | None = None,
        budget: Budget | None = None,
        grace_s: float = GRACE_S,
        model_limits: Mapping[str, ModelLimits] | ProviderLimits | None = None,
        model_prices: Mapping[str, ModelPrice] | None = None,
        model_retries: ModelRetries | None = None,
        titles: bool = False,
        tenant_budgets: Mapping[str, TenantBudget] | None = None,
        scheduler: Scheduler | None = None,
        worker_host: WorkerHost | None = None,
    ) -> None:
        from detent.config.assembly import store_at
        from detent.config.planners import Planners
        from detent.meta_tools import BUILT_IN as BUILT_IN_META_TOOLS
        from detent.policies.combining import governance, guards_for
        from detent.policies.documents import load_policy
        from detent.policies.guards import GUARDS
        from detent.policies.tiers import TieredPolicy
        from detent.strategies import BUILT_IN
        from detent.tools.functions.schema import schema_digest
        from detent.tools.mcp.servers import Servers
        from detent.tools.registry import Registry
        from detent.workers.in_process import InProcessHost

        if max_concurrent_runs is not None and max_concurrent_runs < 1:
            raise ConfigError(f"max_concurrent_runs is {max_concurrent_runs}; give at least 1, or leave it out")
        Redactor(redact, b"")
        self.store: EventStore = store_at(store) if isinstance(store, str) else store
        self._owns_store = isinstance(store, str)
        house = load_policy(policy) if isinstance(policy, (str, Path)) else policy
        self.tools = Registry(tools, more=lambda name: BUILT_IN_META_TOOLS.get(name) or plugged("tool", name))
        self.approver, self.ceiling = approver, ceiling
        self._planners = Planners(planner)
        if workspace is not None:
            from detent.tools.workspace.tools import workspace_tools

            made: list[Any] = workspace_tools(workspace, sandbox_mode=sandbox)
            self.tools.add_all(t for t in made if t.name not in self.tools)
        self.prices = Prices(model_prices)
        self.servers = Servers(self.tools, mcp, workspace=workspace)
        self.budget = checked(budget or Budget(), ceiling=ceiling)
        self.tenants = Tenants(tenant_budgets or {}, store=self.store, clock=clock or SystemClock())
        self._observers = one_of(observers)
        self._limit = asyncio.Semaphore(max_concurrent_runs) if max_concurrent_runs else None
        self.kernels = Names("kernel", {"react": make_kernel(), **(kernels or {})})
        check_hooks(hooks, {"react": kernel or make_kernel(), "ask": make_kernel(), **(kernels or {})})
        self.strategies = Names("strategy", {**BUILT_IN, **(strategies or {})})
        self.guards = Names[Guard]("guard", {**GUARDS, **(guards or {})})
        self._parts = Parts(
            store=self.store,
            tools=self.tools,
            policy=house or TieredPolicy(),
            policy_of=governance(house),
            guards_of=partial(guards_for, named=self.guards.get),
            kernel=kernel or make_kernel(),
            kernels=self.kernels,
            strategies=self.strategies,
            clock=clock or SystemClock(),
            ids=ids or RandomIds(),
            watcher=Watcher(self.store),
            hooks=hooks,
            redact=tuple(redact),
            secrets=secrets,
            capabilities=capabilities,
            grace_s=grace_s,
            worker=f"{socket.gethostname()}:{os.getpid()}",
            digest=schema_digest,
            tenants=self.tenants,
            traffic=Traffic(prices=self.prices, limits=limits_of(model_limits), retries=model_retries),
            affordable=self._refuse_unpriced,
            titles=titles,
            scheduler=None if type(scheduler) is Together else scheduler,
        )
        self.worker_host: WorkerHost = worker_host or InProcessHost()
        self._shifts: set[Shift] = set()
        self._advancing: set[asyncio.Task[Any]] = set()
        self._queued: set[Advancing] = set()
        self._opened = False

    @classmethod
    def from_config(cls, config: str | Path | Config | None = None, **overrides: Any) -> Engine:
        """Make an engine from a `Config` or a `detent.toml`; `overrides` (arguments of `Engine`) replace the parts that were made.

        Raises `ConfigError` naming the part that could not be made.
        """
        from detent.config.assembly import engine_options

        made = cls(**engine_options(config, overrides))
        made._owns_store = made._owns_store or "store" not in overrides
        return made

    @property
    def planner(self) -> Planner | None:
        """The planner that it was given; another one plans from the next run or resume on."""
        return self._planners.own

    @planner.setter
    def planner(self, planner: Planner | None) -> None:
        self._planners.own = planner

    def wrap(
        self,
        *,
        planner: Callable[[Planner], Planner] | None = None,
        tools: Callable[[Toolbox], Toolbox] | None = None,
        clock: Clock | None = None,
        ids: Ids | None = None,
    ) -> None:
        """Put something around every planner and around the tools that runs are given here, and another clock and names in; for tests.

        Call it before the engine is used, as `detent.testing.simulate` does with the engines that it is given.
        """
        there = self._parts
        self._planners.around = planner or self._planners.around
        self._parts = msgspec.structs.replace(
            there, tools=tools(there.tools) if tools else there.tools, clock=clock or there.clock, ids=ids or there.ids
        )

    # Life -----------------------------------------------------------------------------------------------------------------------

    async def __aenter__(self) -> Engine:
        await self._open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _open(self) -> None:
        if not self._opened:
            await self.store.open()
            self._opened = True

    async def close(self) -> None:
        """Stop watching and close the store; workers are stopped and runs in progress suspended first."""
        await asyncio.gather(*(shift.stop() for shift in self._shifts))
        self.suspend("the engine is closing")
        await asyncio.gather(*self._advancing, return_exceptions=True)
        await self._parts.watcher.close()
        await self.servers.close()
        await self._planners.close()
        if self._opened:
            self._opened = False
            if self._owns_store:
                await self.store.close()

    def suspend(self, why: str) -> int:
        """Stop advancing every run here, now: nothing is finished, all are resumable; `run` and `resume` raise `Suspended`.

        Workers end: `work` returns. Returns how many runs and workers that were.
        """
        for shift in self._shifts:
            shift.end()
        for advancing in self._queued:
            advancing.control.stop = f"{why}; it waited for its turn"
        return len(self._shifts) + len(self._queued) + self._parts.watcher.suspend(why)

    # Run ------------------------------------------------------------------------------------------------------------------------

    async def run(
        self,
        agent: Agent,
        goal: str,
        *,
        host: Host | None = None,
        run_id: str | None = None,
        budget: Budget | None = None,
        variables: dict[str, Any] | None = None,
        seed_memory: Sequence[Any] = (),
        attachments: Sequence[Any] = (),
        output_schema: dict[str, Any] | None = None,
        strategy: str | None = None,
        observers: Sequence[Observer] = (),
        turns: int | None = None,
    ) -> Result:
        """Work on `goal` until the run finishes or waits, and return how it stands.

        With the id of a run that exists, with the same agent, goal and host, it is taken on instead of started. `turns`: at most so many
        turns now; with 0 it is started, durably, and not taken on. Raises `ConfigError` and `BudgetRefused` before anything is recorded,
        `RunContextMismatch`, `RunBusy`, `Suspended`, `Conflict`.
        """
        agent = await self._with_servers(agent)
        spec = self._admit(msgspec.structs.replace(agent, strategy=strategy or agent.strategy), goal)
        from detent.planners.model.attachments import inlined

        started = RunStarted(
            goal=goal,
            agent=spec,
            budget=admission.merged_budget(budget, spec.budget, self.budget, ceiling=self.ceiling),
            host=host or Host(credential_refs=self._all_secrets()),
            variables={**agent.variables, **(variables or {})},
            seed_memory=tuple(seed_memory),
            attachments=tuple(inlined(one) for one in attachments),
            output_schema=output_schema or spec.output_schema,
            strategy=spec.strategy,
            strategy_version=version_of(self.strategies.get(spec.strategy)),
        )
        self._refuse_unpriced(spec, started.budget, started.host)
        admission.refuse_bounds_of_unknown((budget or Budget()).over(spec.budget), [*spec.tools, *self.tools.names()])
        admission.refuse_unstorable(**{"agent.name": spec.name, "host.tenant": started.host.tenant})
        admission.refuse_what_is_not_json(
            goal=goal,
            agent=spec,
            host=started.host,
            variables=started.variables,
            seed_memory=started.seed_memory,
            attachments=started.attachments,
            output_schema=started.output_schema,
        )
        self._planners.of(spec, check=turns != 0)  # rules that cannot be read are refused before anything is recorded
        admission.checked_run_id(run_id)
        await self._open()  # makes the store: nothing is left behind by what is refused
        if run_id is not None and await self.store.head(run_id) is not None:
            await admission.same_context(self.store, run_id, started, (*self._parts.redact, *spec.redact))
            if turns == 0:
                return result_of(await self.load(run_id))
            return await self._resume(run_id, turns=turns, observers=observers)
        await self.tenants.refuse_start(started.host.tenant)
        hidden = Redactor((*self._parts.redact, *spec.redact), b"").without(goal)  # the id stands in every record
        run_id = run_id or new_run_id(hidden, self._parts.clock.now(), self._parts.ids.token(6))
        observers = one_of(observers)
        task = self._take_on(run_id, partial(self._start, started=started, turns=turns), observers, turns=turns, slot=turns != 0)
        del agent, spec, started  # a run in progress needs its state, not what it was made of
        try:
            state = await task
        finally:
            self._advancing.discard(task)
        return await self._answered(state, observers, turns=turns)

    async def _start(self, advancing: Advancing, *, started: RunStarted, turns: int | None) -> Journal | RunState:
        """Record `started`; return the journal to take the run on with, or its state where it is not to be taken on."""
        patterns = (*self._parts.redact, *started.agent.redact)
        tools = tools_of(RunState(run_id=advancing.run_id, agent=started.agent), self._parts)
        usable = admission.usable(started.agent, started.host, tools, secrets=self._parts.secrets, capabilities=self._parts.capabilities)
        journal = advancing.journal(RunState(run_id=advancing.run_id))
        async with self.tenants.starting(advancing.run_id, started.host.tenant) as reserved:
            if patterns:
                started = await self._redacted(started, advancing.run_id, patterns)
            journal.record(msgspec.structs.replace(started, digests=digests_of(tools, self._parts, usable)))
            if reserved:
                journal.release(reserved)
                await journal.commit()
        if turns != 0:
            return journal
        await journal.commit(durable=True)
        return journal.state

    async def _redacted(self, started: RunStarted, run_id: str, patterns: Sequence[str]) -> RunStarted:
        there = await self.store.head(run_id)
        if there is not None:  # somebody started it since we looked; its key is not ours to replace
            raise Conflict(run_id, 0, there.records)
        key = os.urandom(32)
        await self.store.put_blob(run_id, KEY_BLOB, key)
        redactor = Redactor(patterns, key)
        hidden = redacted_start(started, redactor)
        for name, value in redactor.found.items():
            await self.store.put_blob(run_id, blob_of(name), msgspec.json.encode(value))
        return hidden

    def run_sync(self, agent: Agent, goal: str, **options: Any) -> Result:
        """`run` for programs without an event loop. Ctrl-C and SIGTERM suspend the run: `Suspended` is raised, and it can be resumed."""
        return self.call_sync(lambda: self.run(agent, goal, **options))

    def call_sync(self, call: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run one coroutine of this engine to its end in a new event loop, and close the engine."""

        async def main() -> T:
            task = asyncio.current_task()

            def stop(name: str) -> None:
                if not self.suspend(name) and task is not None:
                    task.cancel()

            with on_signals(stop):
                try:
                    return await call()
                finally:
                    await self.close()

        try:
            return asyncio.run(main())
        except asyncio.CancelledError:
            raise KeyboardInterrupt from None  # a signal came before or after the run, when there was nothing to suspend

    async def step(
        self,
        agent: Agent | None = None,
        goal: str | None = None,
        *,
        run_id: str | None = None,
        host: Host | None = None,
        observers: Sequence[Observer] = (),
        **options: Any,
    ) -> Result:
        """Do one turn: of a new run of `agent` on `goal` (`options` as for `run`), or of the run `run_id`."""
        if agent is not None and goal is not None:
            return await self.run(agent, goal, run_id=run_id, host=host, observers=observers, turns=1, **options)
        if run_id is None or options:
            raise ConfigError(
                f"step needs an agent and a goal, or the id of a run and nothing else (got {', '.join(options) or 'neither'})"
            )
        await self._open()
        await self._same_host(run_id, host)
        return await self._resume(run_id, turns=1, observers=observers)

    async def stream(self, agent: Agent, goal: str, **options: Any) -> AsyncGenerator[Record | Chunk | Result]:
        """Run, and yield records (after their commit) and chunks (at once) as they come; the `Result` is last.

        To leave early is harmless: the run goes on, until it ends, is cancelled (`cancel`) or this engine closes.
        """
        from detent.observers.streaming import StreamingObserver, follow

        others: tuple[Observer, ...] = tuple(options.pop("observers", ()))

        def run(observer: StreamingObserver) -> Coroutine[Any, Any, Result]:
            return self.run(agent, goal, observers=(*others, observer), **options)

        def read(run_id: str, after: int, limit: int) -> Coroutine[Any, Any, list[bytes]]:
            return self.store.read(run_id, after=after, limit=limit)

        async with contextlib.aclosing(follow(run, read, own=self._hold)) as items:
            async for item in items:
                yield item

    async def submit(self, agent: Agent, goal: str, **options: Any) -> str:
        """Start a run durably, leave it to a worker (`work`, `detent worker`) and return its id; `options` as for `run`, but observers, turns.

        Its model is asked by the worker alone, which needs the key. With the id of a run that exists, nothing is started. Raises as `run`.
        """
        if wrong := options.keys() & {"observers", "turns"}:
            raise ConfigError(f"submit takes no {' and no '.join(sorted(wrong))}: a worker advances the run; observers are given to `work`")
        run_id = (await self.run(agent, goal, turns=0, **options)).run_id
        await self.worker_host.submit(run_id)
        return run_id

    async def work(
        self,
        *,
        until_idle: bool = False,
        host: Host | None = None,
        observers: Sequence[Observer] = (),
        hand_for: Callable[[str], Awaitable[Hand]] | None = None,
    ) -> Worked:
        """Be a worker: advance what is due in the store until cancelled, or (`until_idle`) until nothing can be advanced now.

        Due are runs that were submitted, whose worker died or was stopped, and waiting ones that can move. A failing run is tried again after
        a pause, and in the end given up (`waiting_for_operator`; `reopen` lets it go on). With a host, runs of that tenant only. `hand_for`
        says by id which engine takes a run on, where it is not this one. Cancelled, it suspends what is in progress; it returns what it did
        when it is idle, or after `suspend`.
        """
        await self._open()
        shift = Shift(self.worker_host, StoreBacklog(self.hand(observers), hand_for=hand_for, tenant=host.tenant if host else None))
        self._shifts.add(shift)
        try:
            return await shift.work(until_idle=until_idle)
        finally:
            self._shifts.discard(shift)

    def hand(self, observers: Sequence[Observer] = ()) -> Hand:
        """Return what a worker takes runs on with, told to these observers too; raise `TypeError` for one that is none."""
        return Hand(parts=self._parts, resume=partial(self._resume, observers=one_of(observers), planner_for=self._planners.needed))

    def _hold(self, task: asyncio.Task[Any]) -> None:
        """Keep a task until it is done; closing the engine waits for it."""
        self._advancing.add(task)
        task.add_done_callback(self._advancing.discard)

    async def resume(
        self,
        run_id: str,
        *,
        budget: Budget | None = None,
        by: str = "",
        host: Host | None = None,
        observers: Sequence[Observer] = (),
    ) -> Result:
        """Take a run on from where its log ends; a finished or waiting run without news is returned as it stands.

        `budget` changes the bounds that it names from here on, recorded as changed `by` somebody; what was used stays used. Raises
        `NotAllowedNow` for a run that has finished (`reopen` takes a budget).

        With a host it is taken on only as who started it: raises `RunNotFound` for another tenant, `RunContextMismatch` for another
        workspace or principal.
        """
        await self._open()
        await self._same_host(run_id, host)
        admission.refuse_what_is_not_json(by=by)
        if budget is None:
            return await self._resume(run_id, observers=observers)
        bounds = checked(budget, ceiling=self.ceiling)
        if (state := await self.load(run_id)).terminal:
            why = f"run {run_id!r} is {state.status}: its bounds change when it is opened again, `detent reopen {run_id} --budget ...`"
            raise NotAllowedNow(run_id, why, reason_code="run_finished")
        admission.refuse_bounds_of_unknown(bounds, [*state.agent.tools, *self.tools.names()])
        return await self._resume(run_id, BudgetChanged(budget=bounds, by=by), observers=observers)

    async def due(self, *, host: Host | None = None) -> list[str]:
        """Return the waiting runs that can move: a timer or an approval's time is over, or an answer is there. Oldest first."""
        await self._open()
        heads = await self.store.list_runs(RunQuery(status=WAITING, tenant=host.tenant if host else None))
        return [head.run_id for head in await Wakeups().due(self._parts, heads[::-1])]

    async def wake(self, *, host: Host | None = None, observers: Sequence[Observer] = ()) -> list[Result]:
        """Take on every waiting run that can move (`due`), one after the other; one that another worker has is left to it.

        One that cannot go on here (such as for a missing tool) is logged, and the others go on.
        """
        results: list[Result] = []
        for run_id in await self.due(host=host):
            try:
                results.append(await self._resume(run_id, observers=observers))
            except RunBusy:
                continue
            except (ConfigError, RunError) as error:
                if isinstance(error, Suspended):
                    raise
                log.warning("run %s is due and cannot be taken on: %s", run_id, error)
        return results

    async def reopen(
        self,
        run_id: str,
        *,
        by: str = "",
        why: str = "",
        budget: Budget | None = None,
        resume: bool = True,
        host: Host | None = None,
        observers: Sequence[Observer] = (),
    ) -> Result:
        """Open a failed, stopped or given up (`waiting_for_operator`) run again.

        Refused while a bound is still exhausted; the message names the option that raises it.
        """
        await self._open()
        await self._same_host(run_id, host)
        admission.refuse_what_is_not_json(by=by, why=why)
        state = await self.load(run_id)
        refuse_reopening(state, budget or Budget(), self._parts.clock.now(), ceiling=self.ceiling)
        admission.refuse_bounds_of_unknown(budget or Budget(), [*state.agent.tools, *self.tools.names()])
        event = RunReopened(by=by, why=why, budget=budget)
        return await self._resume(run_id, event, advance=resume, observers=observers)

    async def fork(
        self,
        run_id: str,
        *,
        at: int | None = None,
        edits: Mapping[str, Any] | None = None,
        effects: Literal["dry_run", "reuse", "redo"] = "dry_run",
        child_id: str | None = None,
        host: Host | None = None,
        resume: bool = True,
        observers: Sequence[Observer] = (),
    ) -> Result:
        """Begin a run that goes on from record `at` of another, and take it on unless `resume` is false.

        Without `at`: from the end of a run that is not finished, from before the last turn of one that is. `edits` name what is different:
        parts of the agent by their names, `goal`, `budget`, `variables`, `results` ({call id: value, or {"error": ...}}) and `replies`
        ({question id: reply}). `effects` says what becomes of a call that is not read-only: `dry_run` answers it with the outcome that an
        equal call has on record, else with a stub; `reuse` with that outcome, else it is executed; `redo` executes it. What the parent used
        is shown (`state.inherited`) and not charged; what it waits for is not inherited. Raises `NotAllowedNow` naming the call where an
        effect is open at `at`, `ConfigError` for a record, an edit or an agent that does not fit, `RunErased`, `RunNotFound`.
        """
        await self._open()
        await self._visible(run_id, host)
        child = await forking.fork(
            self._parts,
            run_id,
            at=at,
            edits=edits,
            effects=effects,
            child_id=child_id,
            host=host,
            ceiling=self.ceiling,
            usable=self._refuse_unusable,
        )
        return await self._resume(child, observers=observers) if resume else result_of(await self.load(child))

    async def _resume(
        self,
        run_id: str,
        *events: Any,
        turns: int | None = None,
        advance: bool = True,
        slot: bool = True,
        observers: Sequence[Observer] = (),
        planner_for: Callable[[AgentSpec], Planner] | None = None,
    ) -> Result:
        if self.servers and advance:
            await self._reach_servers(run_id, news=bool(events))

        def work(advancing: Advancing) -> Coroutine[Any, Any, RunState]:
            return advancing.resume(*events, turns=turns, advance=advance)

        observers = one_of(observers)
        task = self._take_on(run_id, work, observers, turns=turns, slot=slot and advance, planner_for=planner_for)
        try:
            state = await task
        finally:
            self._advancing.discard(task)
        return await self._answered(state, observers, turns=turns)

    def _take_on(
        self,
        run_id: str,
        begin: Begin,
        observers: Sequence[Observer],
        *,
        turns: int | None = None,
        slot: bool = True,
        planner_for: Callable[[AgentSpec], Planner] | None = None,
    ) -> asyncio.Task[RunState]:
        """Advance a run under its claim, in a task of its own, with this engine's observers and its limit; who awaits it forgets it then."""
        if self._parts.watcher.control(run_id) is not None:
            raise RunBusy(run_id, "this engine")
        told = fan_out((*self._observers, *observers)) if observers or self._observers else None
        sinks: list[Sink] = [told.on_record] if told else []
        advancing = Advancing(self._parts, run_id, planner_for or self._planners.of, sinks=sinks, chunk=told.on_chunk if told else None)
        task = asyncio.create_task(self._under_claim(advancing, begin, turns, (slot and self._limit) or UNLIMITED), name=run_id)
        self._advancing.add(task)
        return task

    async def _under_claim(
        self, advancing: Advancing, begin: Begin, turns: int | None, limit: contextlib.AbstractAsyncContextManager[None]
    ) -> RunState:
        self._queued.add(advancing)  # a suspension reaches it while it waits for its turn
        try:
            async with limit:
                self._queued.discard(advancing)
                async with advancing:
                    begun = await begin(advancing)
                    del begin  # it holds what the run was made of
                    return begun if isinstance(begun, RunState) else await advancing.go(begun, turns=turns)
        finally:
            self._queued.discard(advancing)

    async def _answered(self, state: RunState, observers: Sequence[Observer], *, turns: int | None) -> Result:
        """Return the result; where the run waits for approvals and this program has an approver, that is asked first."""
        if callable(self.approver) and state.status == "waiting_for_approval":
            return await self._ask_approver(state, self.approver, observers, turns=None if turns is None else 0)
        return result_of(state)

    async def _ask_approver(self, state: RunState, approver: Approver, observers: Sequence[Observer], *, turns: int | None) -> Result:
        answered = False
        for request in approvals_of(state):
            try:
                answer = approver(request)
                approved = bool(await answer if inspect.isawaitable(answer) else answer)
            except Exception:  # foreign code: an approver that fails has not decided
                log.exception("the approver failed on call %s of run %s; the call still waits", request.call_id, state.run_id)
                return result_of(state)
            if approved and "approver" in request.approved_by:
                continue  # it has approved already: somebody else must, too
            answered = True
            payload = {"call": request.call_id, "decision": "approved" if approved else "denied", "digest": request.digest}
            await self.store.post(state.run_id, self._signal("approval", payload, by="approver"))
        if not answered:
            return result_of(state)
        return await self._resume(state.run_id, turns=turns, observers=observers)

    # Answers --------------------------------------------------------------------------------------------------------------------

    async def approvals(self, *, run_id: str | None = None, host: Host | None = None) -> list[Approval]:
        """Return the calls that wait for a person, oldest run first."""
        await self._open()
        tenant = host.tenant if host else None
        if run_id is not None:
            await self._visible(run_id, host)
            return approvals_of(await self.load(run_id))
        heads = await self.store.list_runs(RunQuery(status=("waiting_for_approval",), tenant=tenant))
        found: list[Approval] = []
        for head in reversed(heads):
            with contextlib.suppress(RunErased):
                found += approvals_of(await self.load(head.run_id))
        return found

    async def approve(
        self,
        run_id: str,
        call_id: str,
        *,
        by: str,
        args: dict[str, Any] | None = None,
        digest: str = "",
        resume: bool = True,
        host: Host | None = None,
    ) -> Result:
        """Approve exactly the stored call, or the call with other `args`; the run goes on unless `resume` is false.

        The current policy decides once more before the call runs: its deny or stop wins, else the approval holds. `digest` is that of the
        arguments that you saw (`Approval.digest`). Raises `NotAllowedNow` with a reason code of its own for a call that waits for nobody,
        is unknown, was decided already (also by the same person), has changed, or whose request has expired.
        """
        answer: dict[str, Any] = {"decision": "approved"}
        if args is not None:
            answer["args"] = args
        return await self._answer_approval(run_id, call_id, answer, by=by, digest=digest, resume=resume, host=host)

    async def deny(
        self, run_id: str, call_id: str, *, by: str, reason: str = "", digest: str = "", resume: bool = True, host: Host | None = None
    ) -> Result:
        """Refuse the call; the reason is told to the planner, or the run stops (`on_reject` of the rule, else of the agent)."""
        answer = {"decision": "denied", "reason": reason}
        return await self._answer_approval(run_id, call_id, answer, by=by, digest=digest, resume=resume, host=host)

    async def _answer_approval(
        self, run_id: str, call_id: str, answer: dict[str, Any], *, by: str, digest: str, resume: bool, host: Host | None
    ) -> Result:
        await self._open()
        await self._visible(run_id, host)
        state = await self.load(run_id)
        left = (await self.store.signals([run_id])).get(run_id, [])
        payload = approval_payload(state, left, call_id, answer, by=by, digest=digest, now=self._parts.clock.now())
        return await self._deliver(run_id, self._signal("approval", payload, by=by), resume=resume)

    async def reply(
        self, run_id: str, reply: Any, *, by: str = "", ask_id: str = "", resume: bool = True, host: Host | None = None
    ) -> Result:
        """Answer the question that a run asked its user (the only open one unless `ask_id` is given)."""
        await self._open()
        await self._visible(run_id, host)
        state = await self.load(run_id)
        left = (await self.store.signals([run_id])).get(run_id, [])
        payload = reply_payload(state, left, reply, ask_id, by=by)
        return await self._deliver(run_id, self._signal("reply", payload, by=by), resume=resume)

    async def reconcile(
        self,
        run_id: str,
        call_id: str,
        *,
        happened: bool,
        result: Any = None,
        by: str = "",
        resume: bool = True,
        host: Host | None = None,
    ) -> Result:
        """Settle a call in doubt: it happened with `result`, or it did not (it is then run, with the same key)."""
        await self._open()
        await self._visible(run_id, host)
        payload = reconcile_payload(await self.load(run_id), call_id, happened=happened, result=result)
        return await self._deliver(run_id, self._signal("reconcile", payload, by=by), resume=resume)

    async def cancel(self, run_id: str, *, by: str = "", why: str = "", host: Host | None = None) -> Result:
        """End a run: the call in progress is asked to stop, then interrupted; a waiting or suspended run ends at once."""
        await self._open()
        await self._visible(run_id, host)
        state, signal = await self.load(run_id), self._signal("cancel", {"why": why}, by=by)
        if state.terminal:
            if (control := self._parts.watcher.control(run_id)) is not None:  # it has ended; a hook or an observer may hold it yet
                control.deliver([signal])
            return result_of(state)
        return await self._deliver(run_id, signal, resume=True)

    async def signal(self, run_id: str, signal: Signal, *, host: Host | None = None) -> None:
        """Put a signal into the run's inbox; whoever advances the run takes it up."""
        await self._open()
        await self._visible(run_id, host)
        admission.refuse_unstorable(**{"signal.id": signal.id})
        admission.refuse_what_is_not_json(signal=signal)
        await self.store.post(run_id, signal)

    async def _deliver(self, run_id: str, signal: Signal, *, resume: bool) -> Result:
        """Post a signal; take the run on unless somebody else does."""
        await self.store.post(run_id, signal)
        control = self._parts.watcher.control(run_id)
        if control is not None:
            control.deliver([signal])
        elif resume:
            with contextlib.suppress(RunBusy):
                return await self._resume(run_id, slot=signal.kind != "cancel")  # ending a run waits for no other
        return result_of(await self.load(run_id))

    def _signal(self, kind: Any, payload: dict[str, Any], *, by: str) -> Signal:
        admission.refuse_what_is_not_json(**payload, by=by)
        return Signal(id=self._parts.ids.token(16), kind=kind, payload=payload, by=by)

    # Look -----------------------------------------------------------------------------------------------------------------------

    async def load(self, run_id: str, *, host: Host | None = None) -> RunState:
        """Return the state of a run; raise `RunNotFound`, `RunErased`, `CorruptLog`."""
        await self._open()
        await self._visible(run_id, host)
        return await load_run(self.store, run_id)

    async def records(self, run_id: str, *, host: Host | None = None) -> list[Record]:
        """Return the verified records of a run."""
        await self._open()
        await self._visible(run_id, host)
        return await load(self.store, run_id)

    async def list_runs(self, query: RunQuery | None = None, *, host: Host | None = None, **filters: Any) -> list[RunHead]:
        """Return runs, newest first; filters as in `RunQuery`: status, tenant, goal_id, agent, since, until, limit, after."""
        await self._open()
        query = query or RunQuery(**filters)
        return await self.store.list_runs(msgspec.structs.replace(query, tenant=host.tenant) if host else query)

    async def replay(self, run_id: str, *, host: Host | None = None) -> Replay:
        """Re-execute a run's log with the code and tools at hand: identical, or the first divergence. No planner and no tool is called."""
        records = await self.records(run_id, host=host)
        if self.servers:
            await self.servers.prepare((await self.load(run_id)).agent.tools, resuming=True)
        return await replay(records, self._parts)

    async def plans(self, run_id: str, *, host: Host | None = None) -> list[tuple[View, Answer]]:
        """Return each view that the run's planner had, in order, with the plan (or the `MalformedPlan`) that it answered.

        As a re-execution of its log gives them; raises `Divergence` where this code does not come to the same.
        """
        records = await self.records(run_id, host=host)
        if self.servers:
            await self.servers.prepare((await self.load(run_id)).agent.tools, resuming=True)
        return await plans_of(records, self._parts)

    async def backtest(
        self,
        policy: Policy | str | Path | None = None,
        *,
        budget: Budget | None = None,
        query: RunQuery | None = None,
        only: Callable[[str], bool] = lambda run_id: True,
        host: Host | None = None,
    ) -> Backtest:
        """Ask a candidate policy (or policy file; None: this engine's policy) and budget about every recorded decision; nothing is executed.

        It is combined with each run's own agent's policy, as an engine with that policy would. `query` and `only` (of an id) say which
        runs.
        """
        from detent.policies.combining import governance
        from detent.policies.documents import load_policy

        await self._open()
        candidate = load_policy(policy) if isinstance(policy, (str, Path)) else policy
        wanted = query or RunQuery()
        return await backtest(
            self.store,
            self._parts.policy_of if candidate is None else governance(candidate),
            version=(candidate or self._parts.policy).version,
            tools={spec.name: spec for spec in self.tools.list()},
            budget=budget,
            query=msgspec.structs.replace(wanted, tenant=host.tenant) if host else wanted,
            only=only,
        )

    async def diff(self, a: str, b: str, *, host: Host | None = None) -> Diff:
        """Return what differs between two runs, side by side by pass and iteration; nothing for runs that did the same."""
        one, other = [(await self._history(run_id, host), await self.load(run_id)) for run_id in (a, b)]
        return comparing.diff(one[0], other[0], one[1], other[1])

    async def bisect(self, a: str, b: str, *, host: Host | None = None) -> Parting | None:
        """Return the first step from which two runs part; None where they do the same all the way."""
        return comparing.bisect(await self._history(a, host), await self._history(b, host))

    async def _history(self, run_id: str, host: Host | None) -> list[Record]:
        await self._open()
        await self._visible(run_id, host)
        records = await history(self.store, run_id)
        if any(record.event is None for record in records):
            raise RunErased(run_id)
        return records

    async def check_upgrade(self, run_id: str | None = None, *, host: Host | None = None) -> Upgrade:
        """Fold and re-execute every run that is not finished (or this one) with the code at hand, and say which would not go on.

        Nothing is recorded, and no planner or tool is called.
        """
        await self._open()
        if run_id is not None:
            await self._visible(run_id, host)
        wanted = [run_id] if run_id is not None else await upgrading.open_runs(self.store, tenant=host.tenant if host else None)
        found: list[Upgraded] = []
        for name in wanted:
            if self.servers:
                with contextlib.suppress(DetentError):  # what cannot be read or reached is said by the check
                    await self.servers.prepare((await self.load(name)).agent.tools, resuming=True)
            found.append(await upgrading.check_run(self._parts, name))
        return Upgrade(runs=tuple(found))

    async def verify(self, run_id: str, *, head: str = "", host: Host | None = None) -> Verification:
        """Check every digest of a log, and that it ends with the digest `head` when one is given."""
        await self._open()
        await self._visible(run_id, host)
        return await upkeep.verify(self.store, run_id, head=head)

    # Remove ---------------------------------------------------------------------------------------------------------------------

    async def erase(self, run_id: str, *, by: str = "", why: str = "", host: Host | None = None) -> None:
        """Remove a run's content for good and keep its chain of hashes; only a finished or waiting run can be erased."""
        admission.refuse_what_is_not_json(by=by, why=why)
        async with self._claimed(run_id, host):
            await upkeep.erase(self._parts, await self.load(run_id), by=by, why=why)

    async def delete(self, run_id: str, *, host: Host | None = None) -> None:
        """Remove a run with all that belongs to it; its forks are given what they refer to first."""
        async with self._claimed(run_id, host):
            await preserve(self.store, run_id)
            await self.store.delete(run_id)

    async def gc(self) -> int:
        """Drop artifacts that no record names, and give unused space back; return the bytes freed, as far as known."""
        await self._open()
        return await upkeep.collect(self._parts)

    @contextlib.asynccontextmanager
    async def _claimed(self, run_id: str, host: Host | None) -> AsyncGenerator[None]:
        await self._open()
        await self._visible(run_id, host)
        async with upkeep.held(self._parts, run_id):
            yield

    # Checks ---------------------------------------------------------------------------------------------------------------------

    async def _visible(self, run_id: str, host: Host | None) -> None:
        """Raise `RunNotFound` for an unknown run, and for another tenant's when a host asks (DESIGN 8)."""
        head = None if unstorable(run_id) else await self.store.head(run_id)
        if head is None or (host is not None and head.tenant != host.tenant):
            raise RunNotFound(run_id, self.store.url)

    async def _same_host(self, run_id: str, host: Host | None) -> None:
        """Raise as `_visible`, and `RunContextMismatch` when a host asks that did not start the run (row K8)."""
        await self._visible(run_id, host)
        if host is not None:
            admission.same_host(run_id, (await self.load(run_id)).host, host)

    def _all_secrets(self) -> tuple[str, ...]:
        """Return what a run that is started without a host is given: it is the operator's."""
        return tuple(self._parts.secrets.names()) if self._parts.secrets is not None else ()

    def _admit(self, agent: Agent, goal: str) -> AgentSpec:
        """Register the agent's own tools and check that the run could do its work; raise `ConfigError`."""
        self.tools.add_all(t for t in agent.tools if not isinstance(t, str))
        kernel = self.kernels.get(agent.kernel) if agent.kernel else self._parts.kernel
        strategy = self.strategies.get(agent.strategy)
        meta = [tool.spec.name for tool in kernel.meta_tools]
        for name in [name for name in agent.tool_names() if name not in self.tools and name not in meta]:
            with contextlib.suppress(UnknownName):  # said below, with everything that is there
                self.tools.get(name)  # a plug-in package may have it
        spec = admission.checked_spec(agent, goal, [*self.tools.names(), *meta])
        check_options(strategy, spec)
        policy = self._parts.policy_of(spec)
        self._parts.guards_of(spec, (), {})  # what cannot be read or found is refused before anything is recorded
        if self.approver is None and self.store.url == "ram:" and not sys.stdin.isatty():
            admission.refuse_unanswerable(spec, self.tools, policy)
        return spec

    def _refuse_unusable(self, spec: AgentSpec) -> None:
        """Raise `ConfigError` for an agent, changed for a fork, that names what is not here."""
        kernel = self.kernels.get(spec.kernel) if spec.kernel else self._parts.kernel
        self.strategies.get(spec.strategy)
        known = [*self.tools.names(), *(tool.spec.name for tool in kernel.meta_tools)]
        for name in spec.tools:
            if name not in known and not self.servers.claims(name):
                raise UnknownName("tool", name, known)
        self._parts.policy_of(spec)
        self._parts.guards_of(spec, (), {})
        self._planners.of(spec)

    def _refuse_unpriced(self, spec: AgentSpec, budget: Budget, host: Host) -> None:
        """Raise `ConfigError` where the cost of the run, or of all runs of its tenant, is bounded and a model has no price."""
        tenant = self.tenants.budget_of(host.tenant)
        if budget.max_cost_usd is not None:
            bounded = f"agent {spec.name!r}"
        elif tenant is not None and tenant.max_cost_usd is not None:
            bounded = f"agent {spec.name!r} runs for tenant {host.tenant!r}, which"
        else:
            return
        admission.refuse_unpriced(spec, self._planners.of(spec, check=False), self.prices, bounded=bounded)

    async def _with_servers(self, agent: Agent) -> Agent:
        """Return the agent with the tools of its MCP servers by name, these connected; raise `ConfigError`."""
        self.servers.add(agent.mcp)
        if not self.servers:
            return agent
        own = [tool for tool in agent.tools if not isinstance(tool, str)]
        named = await self.servers.prepare([tool for tool in agent.tools if isinstance(tool, str)])
        return msgspec.structs.replace(agent, tools=(*named, *own))

    async def _reach_servers(self, run_id: str, *, news: bool) -> None:
        """Connect the MCP servers that a run needs to go on; one that has nothing to do, or is to be cancelled, needs none."""
        state = await load_run(self.store, run_id)
        left = (await self.store.signals([run_id])).get(run_id, [])
        if any(signal.kind == "cancel" for signal in left):
            return
        if news or left or state.status == "running" or due(state, self._parts.clock):
            await self.servers.prepare(state.agent.tools, resuming=True)


def one_of(observers: Sequence[Observer]) -> tuple[Observer, ...]:
    """Return the observer that tells them all, alone; nothing where there are none."""
    return (fan_out(observers),) if observers else ()


def fan_out(observers: Sequence[Observer]) -> Observer:
    """Return one observer that tells them all; one that fails is reported once and fails nothing. Raise `TypeError` for what is none."""
    from detent.observers.composite import CompositeObserver

    return CompositeObserver(*observers)
