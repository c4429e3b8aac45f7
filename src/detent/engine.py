"""What a program calls: start runs, resume them, answer them, inspect them.

An engine owns its tools, its planner, its policy and one store. It holds no state of a run: everything is read from the log, and a waiting run is
only rows in a store and uses no memory. Each method only passes its arguments to a function; that function documents what it does and which arguments
it takes.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import sys
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable, Mapping, Sequence
from functools import partial, wraps
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Concatenate, Literal, ParamSpec, TypeVar

import msgspec

from detent.clock import RandomIds, SystemClock
from detent.config.adapters import governing, own_compactors, policy_at
from detent.config.agents import Agent
from detent.config.checking import check_engine
from detent.config.engines import Config, WorkspaceConfig
from detent.config.groups import Bounds, Models
from detent.config.names import Names, plugged
from detent.config.output_types import OutputT
from detent.config.planners import Planners
from detent.config.protocols import Protocols
from detent.config.remembering import Memories, MemorySettings
from detent.config.state_directory import state_directory, state_home
from detent.config.verifying import Verifiers
from detent.core.budget import CEILING
from detent.core.records import Record
from detent.history import forking, looking, retention, session_list, sessions, trees, upgrading, upkeep
from detent.history import versions as code_versions
from detent.history import why as reasons
from detent.history.operations import Operations
from detent.kernel.kernel import Kernel, make_kernel
from detent.metering.accounts import Accounts
from detent.metering.gateway import Traffic
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
    Memory,
    Observer,
    Planner,
    Policy,
    Scheduler,
    SecretSource,
    Strategy,
    Together,
    Toolbox,
    WorkerHost,
    noop_hooks,
)
from detent.ports.compacting import Compactor
from detent.ports.options import checked, checked_options, refuse_unknown
from detent.ports.verifying import Verifier
from detent.running import answering, fleet, health, holding, protocols, reopening, starting, submitting, working
from detent.running.children import ChildrenHere
from detent.running.extracting import Extracting
from detent.running.phase_hooks import check_hooks
from detent.running.results import Result
from detent.running.runtime import Approver, Runtime, worker_name
from detent.running.verifying import Answers
from detent.running.versions import checked_version
from detent.running.watcher import Watcher
from detent.schedules.door import Schedules
from detent.schedules.firing import keep_on
from detent.tools.mcp.settings import McpServer

if TYPE_CHECKING:
    from detent.config.adapters import Registry
    from detent.history.memory import EngineMemory

P = ParamSpec("P")
R = TypeVar("R")


def opens(room: Callable[Concatenate[Runtime, P], R]) -> Callable[Concatenate[Engine, P], R]:
    """Return the method that calls this function with the runtime of its engine."""

    @wraps(room)
    def door(engine: Engine, *args: P.args, **options: P.kwargs) -> R:
        try:
            return room(engine.runtime, *args, **options)
        except TypeError:
            refuse_unknown(room, options)
            raise

    made: Any = door
    signature = inspect.signature(room)
    first, *others = signature.parameters.values()
    made.__signature__ = signature.replace(parameters=[first.replace(name="self", annotation="Engine"), *others])
    made.__module__, made.__qualname__ = __name__, f"Engine.{room.__name__}"
    if inspect.iscoroutinefunction(room):  # a method here would add one frame to each run in progress
        if sys.version_info >= (3, 12):
            inspect.markcoroutinefunction(made)
        else:
            coroutines: Any = asyncio.coroutines
            made._is_coroutine = coroutines._is_coroutine
    return made


_MODELS, _BOUNDS = Models(), Bounds()
"""How models are called and what bounds runs, in an engine that says nothing about it."""


def workspace_root(tools: Registry) -> str:
    """Return the directory that confines the engine's workspace tools, "" without one."""
    return tools.get("read_file").spec.writes_in if "read_file" in tools else ""


class Engine:
    """Runs agents on goals. Use as `async with Engine(...) as engine:`, or call `run_sync`.

    `agents`: the agents that it knows. `run("name", goal)` finds them, and their runs that were started elsewhere are continued with their settings.
    `store`: a URL (`ram:`, `file:DIR`, `sqlite:///PATH`), or a store, which the caller closes. `planner`: any object with `plan(view)`; an agent with
    rules brings its own. `policy`: a policy, or the path of a policy file. Without one: the agent's own, else the tiers. `approver`: who answers requests
    for approval in this program: "caller" (it calls `approve`), or a sync or async function that takes an `Approval` and returns whether it is approved.
    `workspace`: a directory whose workspace tools agents may list, alone or with what they may do there. `mcp`: MCP servers by name, whose tools agents
    list as `NAME__tool` or `NAME__*`. They are connected when a run needs them. `ceiling`: the most iterations that a budget may ask for. `kernel`: the
    kernel of runs whose agent names none. `kernels`, `strategies`, `guards`, `verifiers`, `compactors`: more of them, by the names that agents use.
    `secrets`: where credentials are kept. A run that is started without a host gets all of them. `capabilities`: what agents may rely on. `models`: how
    models are called. `model_prices`: prices by "provider:name"; they override the price list. `bounds`: the bounds of every run. `tenant_budgets`: what
    all runs of a tenant together may use in a day or a month, by tenant; "*" for each tenant that is not named. `scheduler`: when the calls of all runs
    begin, such as `detent.tools.Bounded(8)`; without one, as soon as they may. `worker_host`: how `submit` passes runs to workers, and how `work` acts as
    one. Without one: `InProcessHost`, over the store alone. `grants`: which arguments may take their values from which tool's output, for every agent.
    `memory`: what outlives runs, for agents with a table `memory`: a URL, a `Memory`, several by name, or `MemorySettings`. `version`: that of this
    program's code, such as a release or commit: only runs that need it, or none, are advanced here.
    """

    @checked_options
    def __init__(
        self,
        *,
        agents: Iterable[Agent[Any]] = (),
        store: str | EventStore = "ram:",
        planner: Planner | None = None,
        tools: Iterable[Any] = (),
        policy: Policy | str | Path | None = None,
        approver: Literal["caller"] | Approver | None = None,
        observers: Sequence[Observer] = (),
        workspace: str | Path | WorkspaceConfig | None = None,
        mcp: Mapping[str, McpServer] | None = None,
        ceiling: int = CEILING,
        clock: Clock | None = None,
        ids: Ids | None = None,
        kernel: Kernel | None = None,
        kernels: Mapping[str, Kernel] | None = None,
        strategies: Mapping[str, Strategy] | None = None,
        guards: Mapping[str, Guard] | None = None,
        verifiers: Mapping[str, Verifier] | None = None,
        compactors: Mapping[str, Compactor] | None = None,
        hooks: KernelHooks = noop_hooks,
        redact: Sequence[str] = (),
        grants: Sequence[dict[str, Any]] = (),
        secrets: SecretSource | None = None,
        capabilities: Capabilities | None = None,
        models: Models | None = None,
        model_prices: Mapping[str, ModelPrice] | None = None,
        bounds: Bounds | None = None,
        tenant_budgets: Mapping[str, TenantBudget] | None = None,
        scheduler: Scheduler | None = None,
        worker_host: WorkerHost | None = None,
        memory: str | Memory | Mapping[str, str | Memory] | MemorySettings | None = None,
        version: str = "",
    ) -> None:
        check_engine(locals())
        from detent.config.assembly import made_workspace, memory_opener, store_at
        from detent.meta_tools import BUILT_IN as BUILT_IN_META_TOOLS
        from detent.policies.combining import guards_for
        from detent.policies.guards import GUARDS
        from detent.policies.tiers import TieredPolicy
        from detent.strategies import BUILT_IN
        from detent.teams import READY
        from detent.tools.functions.schema import schema_digest
        from detent.tools.mcp.kept import Kept
        from detent.tools.mcp.servers import Servers
        from detent.tools.registry import Registry
        from detent.workers.in_process import InProcessHost

        self.store: EventStore = store_at(store) if isinstance(store, str) else store
        house, clock, models, bounds = policy_at(policy), clock or SystemClock(), models or _MODELS, bounds or _BOUNDS
        self.protocols = Protocols(
            embedder=models.embedder, transcriber=models.transcriber, root=lambda: workspace_root(self.tools), state=state_directory
        )
        memories = Memories(memory, memory_opener(models, self.protocols))
        makers = (self.protocols.tool, memories.tool, BUILT_IN_META_TOOLS.get, partial(plugged, "tool"))
        self.tools = Registry(tools, more=lambda name: next(filter(None, (make(name) for make in makers)), None))
        work_in = WorkspaceConfig(root=str(workspace)) if isinstance(workspace, (str, Path)) else workspace or WorkspaceConfig()
        if work_in.root is not None:
            self.tools.add_all(made for made in made_workspace(work_in.root, work_in) if made.name not in self.tools)
        self.servers = Servers(self.tools, mcp, workspace=work_in.root, kept=Kept(state_home, state_directory))
        self.prices, self.ceiling, self.worker_host = Prices(model_prices), ceiling, worker_host or InProcessHost()
        self.budget, self.tenants = checked(bounds.budget, ceiling=ceiling), Tenants(tenant_budgets or {}, store=self.store, clock=clock)
        self.kernels: Names[Kernel] = Names("kernel", kernels, built_in={"react": (react := make_kernel())})
        check_hooks(hooks, {"react": kernel or react, "ask": react, **(kernels or {})})
        self.strategies: Names[Strategy] = Names("strategy", strategies, built_in={**BUILT_IN, **READY})
        self.guards: Names[Guard] = Names("guard", guards, built_in=GUARDS)
        self.verifiers = Verifiers(planners := Planners(planner), self.tools)
        self.verifiers.add(verifiers or {})
        self.runtime = Runtime(
            store=self.store,
            owns_store=isinstance(store, str),
            tools=self.tools,
            servers=self.servers,
            planners=planners,
            verifiers=self.verifiers,
            protocols=self.protocols,
            guards=self.guards,
            approver=approver,
            ceiling=ceiling,
            budget=self.budget,
            bounds=bounds,
            observers=observers,
            prices=self.prices,
            tenants=self.tenants,
            worker_host=self.worker_host,
            keep=retention.retain,
            move=upgrading.move,
            fire=keep_on,
            version=checked_version(version),
            policy=house or TieredPolicy(),
            policy_of=governing(house),
            guards_of=partial(guards_for, named=self.guards.get),
            answers=Answers(self.verifiers.of),
            kernel=kernel or react,
            kernels=self.kernels,
            strategies=self.strategies,
            compactors=Names("compactor", compactors, others=own_compactors),
            clock=clock,
            ids=ids or RandomIds(),
            watcher=Watcher(self.store, held := Accounts(self.store, clock)),
            hooks=hooks,
            redact=tuple(redact),
            grants=tuple(grants),
            secrets=secrets,
            capabilities=capabilities,
            worker=worker_name(),
            digest=schema_digest,
            traffic=Traffic(prices=self.prices, limits=models.limits, retries=models.retries, accounts=held, shares=self.tenants.shares),
            titles=models.titles,
            scheduler=None if type(scheduler) is Together else scheduler,
            memories=memories,
        )
        self.extracting = Extracting(self.runtime)
        self.children = ChildrenHere(self.runtime, bounds.children, submits=worker_host is not None)
        self.runtime.parts = msgspec.structs.replace(self.runtime.parts, ended=self.extracting.begin, children=self.children)
        starting.know(self.runtime, agents)

    @classmethod
    def from_config(cls, config: str | Path | Config | None = None, *, trust: bool = False, **overrides: Any) -> Engine:
        """Create an engine from a `Config` or a `detent.toml`; `overrides` (arguments of `Engine`) replace the created parts.

        What the file imports, starts or sends needs a trusted directory (`detent trust`, `DETENT_TRUST`), or `trust`. Raises `ConfigError`.
        """
        from detent.config.assembly import engine_options

        made = cls(**engine_options(config, overrides, trust=trust))
        made.runtime.owns_store = made.runtime.owns_store or "store" not in overrides
        made.children.own_host = "worker_host" in overrides  # a file says how a worker works, not that there is one
        return made

    @property
    def agents(self) -> Mapping[str, Agent[Any]]:
        """The agents that the engine knows, by name."""
        return MappingProxyType(self.runtime.agents)

    @property
    def planner(self) -> Planner | None:
        """The planner of this engine. Setting another one takes effect at the next run or resume."""
        return self.runtime.planners.own

    @planner.setter
    def planner(self, planner: Planner | None) -> None:
        self.runtime.planners.own = planner

    @property
    def approver(self) -> Literal["caller"] | Approver | None:
        """Who answers requests for approval in this program."""
        return self.runtime.approver

    @approver.setter
    def approver(self, approver: Literal["caller"] | Approver | None) -> None:
        self.runtime.approver = approver

    def wrap(
        self,
        *,
        planner: Callable[[Planner], Planner] | None = None,
        tools: Callable[[Toolbox], Toolbox] | None = None,
        clock: Clock | None = None,
        ids: Ids | None = None,
    ) -> None:
        """Wrap every planner and the tools of the runs started here, and replace the clock and the names; for tests, before the engine is used."""
        there = self.runtime.parts
        clock = there.accounts.clock = clock or there.clock
        self.runtime.wrap(planner=planner, tools=tools(there.tools) if tools else there.tools, clock=clock, ids=ids or there.ids)

    @property
    def memory(self) -> EngineMemory:
        """The memories of this engine, for people and programs; agents use them in their runs."""
        from detent.history.memory import EngineMemory

        return EngineMemory(self.runtime)

    @property
    def operations(self) -> Operations:
        """One action over many runs: cancel, reopen, resume, replay or archive those that match a query."""
        return Operations(self.runtime)

    @property
    def schedules(self) -> Schedules:
        """Runs that workers start at the times of cron expressions or intervals."""
        return Schedules(self.runtime)

    # Lifetime -----------------------------------------------------------------------------------------------------------------------
    async def __aenter__(self) -> Engine:
        await self.runtime.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    close = opens(Runtime.close)
    suspend = opens(Runtime.suspend)

    # Run, or ask models without a run -------------------------------------------------------------------------------------------
    run = opens(starting.run)
    step = opens(starting.step)
    resume = opens(starting.resume)
    reopen = opens(reopening.reopen)
    fork = opens(forking.fork)
    session = opens(sessions.session)
    sessions = opens(session_list.sessions)
    embed = opens(protocols.embed)
    transcribe = opens(protocols.transcribe)

    def run_sync(self, agent: Agent[OutputT] | str, goal: str, **options: Any) -> Result[OutputT]:
        """`run` for programs without an event loop. Ctrl-C and SIGTERM suspend the run: `Suspended` is raised, and it can be resumed."""

        async def run() -> Result[OutputT]:
            result = await self.run(agent, goal, **options)
            self.extracting.leave()  # nobody waits for what a model thinks worth remembering
            return result

        return self.call_sync(run)

    def call_sync(self, call: Callable[[], Coroutine[Any, Any, R]]) -> R:
        """Run one coroutine of this engine to its end in a new event loop, and close the engine."""
        return starting.call_sync(self.runtime, call)

    async def stream(self, agent: Agent | str, goal: str, **options: Any) -> AsyncGenerator[Record | Chunk | Result]:
        """Run, and yield records (after their commit) and chunks (at once) as they come; the `Result` is last.

        Leaving early is harmless: the run continues until it ends, is cancelled (`cancel`) or this engine closes.
        """
        from detent.observers.streaming import StreamingObserver, follow

        others: tuple[Observer, ...] = tuple(options.pop("observers", ()))

        def run(observer: StreamingObserver) -> Coroutine[Any, Any, Result]:
            return self.run(agent, goal, observers=(*others, observer), **options)

        async with contextlib.aclosing(follow(run, partial(_read, self.store), own=self.runtime.underway.hold)) as items:
            async for item in items:
                yield item

    # Work -----------------------------------------------------------------------------------------------------------------------
    submit = opens(submitting.submit)
    work = opens(working.work)
    hand = opens(working.hand)
    fleet = opens(fleet.fleet)
    health = opens(health.health)
    pause = opens(holding.pause)
    unpause = opens(holding.unpause)
    holds = opens(holding.holds)
    held = opens(holding.held)

    # Answer ---------------------------------------------------------------------------------------------------------------------
    approvals = opens(answering.approvals)
    doubts = opens(answering.doubts)
    approve = opens(answering.approve)
    deny = opens(answering.deny)
    reply = opens(answering.reply)
    reconcile = opens(answering.reconcile)
    cancel = opens(answering.cancel)
    signal = opens(answering.signal)
    decided = opens(answering.decided)

    # Inspect and remove -------------------------------------------------------------------------------------------------------------
    load = opens(looking.load)
    records = opens(looking.records)
    follow = opens(looking.follow)
    artifact = opens(looking.artifact)
    list_runs = opens(looking.list_runs)
    replay = opens(looking.replay)
    plans = opens(looking.plans)
    backtest = opens(looking.backtest)
    diff = opens(looking.diff)
    bisect = opens(looking.bisect)
    check_upgrade = opens(looking.check_upgrade)
    versions = opens(code_versions.versions)
    roll_out = opens(code_versions.roll_out)
    verify = opens(upkeep.verify)
    tree = opens(trees.tree)
    waits = opens(looking.waits)
    why = opens(reasons.why)
    erase = opens(upkeep.erase)
    delete = opens(upkeep.delete)
    retain = opens(retention.retain)
    gc = opens(retention.gc)


def _read(store: EventStore, run_id: str, after: int, limit: int) -> Coroutine[Any, Any, list[bytes]]:
    return store.read(run_id, after=after, limit=limit)
