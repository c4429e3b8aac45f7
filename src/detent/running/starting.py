"""Starts runs and resumes them: what is checked before anything is recorded, and what is recorded first."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar, cast

import msgspec

from detent.config.adapters import inlined, one_of
from detent.config.agents import PREFIX, STATUS, Agent, function_name, starts_of, with_starts
from detent.config.compaction import compactor_in, compacts
from detent.config.names import Imported, Names
from detent.config.output_types import OutputT, OutputType, refuse_unusable
from detent.core.agent import AgentSpec, Host
from detent.core.budget import Budget
from detent.core.errors import ConfigError, Conflict, NotAllowedNow, StoreError, Suspended, UnknownName
from detent.core.events import AnyEvent, BudgetChanged, LevelsAccepted, Queued, RunStarted, SideEffect
from detent.core.state import RunState
from detent.kernel.journal import Journal
from detent.kernel.think import think
from detent.ports import Observer, SecretSource, Tool
from detent.ports.copies import ours
from detent.ports.options import check_is, checked
from detent.running import admission
from detent.running.admission import new_run_id
from detent.running.advancing import Advancing
from detent.running.declarations import declared_of, kept_policy, levels_of, one_level
from detent.running.delegating import MANAGING, names_below
from detent.running.hiding import KEY_BLOB, blob_of
from detent.running.interrupts import on_signals
from detent.running.joining import refuse_unreserved
from detent.running.overseeing import tool_of
from detent.running.parts import digests_of, kernel_of, meta_tool_of_some_kernel, tools_of
from detent.running.people import me, poster
from detent.running.results import Result
from detent.running.rules import named
from detent.running.runtime import Runtime
from detent.running.seeing import refuse_unknown
from detent.running.snapshots import load_run
from detent.running.strategy_options import check_options, models_of, version_of
from detent.secrecy.placing import kept_of
from detent.secrecy.redact import Redactor, redacted_start

T = TypeVar("T")


async def admitted(
    runtime: Runtime,
    agent: Agent[Any] | str,
    goal: str,
    *,
    host: Host | None,
    budget: Budget | None,
    variables: dict[str, Any] | None,
    seed_memory: Sequence[Any] = (),
    attachments: Sequence[Any] = (),
    output_schema: dict[str, Any] | None = None,
    strategy: str | None = None,
    turns: int | None = None,
) -> RunStarted:
    """Return the first record of a run that may start. Nothing is recorded, and the store is not opened. Raise as `run` does."""
    check_is(Host, host=host)
    check_is(Budget, budget=budget)
    check_is(dict, variables=variables)
    if turns is not None and (type(turns) is not int or turns < 0):
        raise ConfigError(f"turns is {turns!r}; give a whole number, 0 to start the run only, or leave it out")
    if output_schema is not None:
        refuse_unusable(output_schema, "output_schema")
    agent = await _with_servers(runtime, known_agent(runtime, agent))
    if strategy and strategy != agent.strategy:
        agent = msgspec.structs.replace(agent, strategy=strategy)  # which checks the whole agent again
    spec = admit(runtime, agent, goal)
    children = [admit(runtime, await _with_servers(runtime, one), goal) for one in _declared(runtime, agent, {agent.name})]
    spec = runtime.parts.memories.bound(spec, host or Host())
    started = RunStarted(
        goal=goal,
        agent=spec,
        budget=admission.merged_budget(budget, spec.budget, runtime.budget, ceiling=runtime.ceiling),
        host=host or Host(credential_refs=_all_secrets(runtime.parts.secrets)),
        variables={**agent.variables, **(variables or {})},
        seed_memory=tuple(seed_memory),
        attachments=tuple(inlined(one) for one in attachments),
        output_schema=output_schema or spec.output_schema,
        strategy=spec.strategy,
        strategy_version=version_of(runtime.parts.strategies.get(spec.strategy)),
    )
    admission.refuse_bounds_of_unknown((budget or Budget()).over(spec.budget), [*names_below(spec, runtime.agents), *runtime.tools.names()])
    admission.refuse_unstorable(**{"agent.name": spec.name, "host.tenant": started.host.tenant})
    admission.refuse_shared(started.host.tenant)
    admission.refuse_what_is_not_json(
        goal=goal,
        agent=spec,
        host=started.host,
        variables=started.variables,
        seed_memory=started.seed_memory,
        attachments=started.attachments,
        output_schema=started.output_schema,
    )
    if turns != 0 and started.attachments:
        runtime.planners.refuse_attachments(spec, started.attachments)
    for one in (spec, *children):
        tools = _refuse_unable(runtime, one, started, advanced=turns != 0)
        if one is not spec:  # a child never gets more than its parent has
            admission.usable(one, started.host, tools, secrets=runtime.parts.secrets, capabilities=runtime.parts.capabilities)
    return started


def _refuse_unable(runtime: Runtime, spec: AgentSpec, started: RunStarted, *, advanced: bool) -> dict[str, Tool]:
    """Raise `ConfigError` if an agent could not work in this run, or a child of it: its planner, models, prices, verifiers or tools. Return its tools."""
    runtime.refuse_unpriced(spec, started.budget, started.host)
    strategy = runtime.parts.strategies.get(spec.strategy)
    for own in models_of(strategy, spec):
        runtime.planner_of_pass(own, started.budget, started.host, check=advanced)
    runtime.verifiers.check(spec, models=advanced)
    runtime.protocols.check(spec.tools, models=advanced)
    runtime.planners.of(spec, check=advanced)  # refuse unreadable rules before anything is recorded
    if advanced and ours(strategy) and think in kernel_of(spec, runtime.parts).phases:
        runtime.planners.needed(spec)
    tools = tools_of(RunState(run_id="", agent=spec), runtime.parts)
    admission.refuse_control_in_reach(runtime.store, runtime.parts.secrets, spec, tools)
    return tools


async def run(
    runtime: Runtime,
    agent: Agent[OutputT] | str,
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
    queued: Queued | None = None,
) -> Result[OutputT]:
    """Work on `goal` until the run finishes or waits, and return its result. `agent` may be the name of one of `Engine(agents=[...])`.

    If a run with this id, agent, goal and host exists, it is resumed instead of started. An id belongs to the tenant of its host: its run is stored,
    and named in the result, as `ID@TENANT`; the tenant may use either. `turns`: at most this many turns now; with 0 the run is durably started, but
    not advanced. `queued`: see `submit`. Raises `ConfigError` and `BudgetRefused` before anything is recorded, `RunContextMismatch`, `RunBusy`,
    `Suspended`, `Conflict`.
    """
    given: dict[str, Any] = {"host": host, "budget": budget, "variables": variables, "seed_memory": seed_memory, "attachments": attachments}
    started = await admitted(runtime, agent, goal, **given, output_schema=output_schema, strategy=strategy, turns=turns)
    started = msgspec.structs.replace(started, queued=queued)
    spec = started.agent
    admission.checked_run_id(run_id and run_id.partition("@")[0])
    await runtime.open()  # this creates the store: a refusal leaves nothing behind
    asked, run_id = run_id, run_id and await runtime.kept_as(run_id, host)
    if run_id is not None and await runtime.store.head(run_id) is not None:
        await admission.same_context(runtime.store, run_id, started, (*runtime.parts.redact, *spec.redact))
        if turns == 0:
            return runtime.result(await load_run(runtime.store, run_id))
        return await runtime.go_on(run_id, turns=turns, observers=observers)
    admission.checked_run_id(asked, run_id)
    await runtime.tenants.refuse_start(started.host.tenant)
    hidden = Redactor((*runtime.parts.redact, *spec.redact), b"").without(goal)  # every record has the id
    run_id = run_id or new_run_id(hidden if runtime.goal_words_in_ids else None, runtime.parts.clock.now(), runtime.parts.ids.token(6))
    observers = one_of(observers)
    task = runtime.take_on(run_id, partial(record_start, runtime, started=started, turns=turns), observers, turns=turns, slot=turns != 0)
    del agent, spec, started  # a run in progress needs its state, not its inputs
    try:
        return await runtime.answered(await runtime.reached(task), observers, turns=turns)
    except Suspended as error:
        with contextlib.suppress(StoreError):  # the store is closed already
            if await runtime.store.head(run_id) is None:  # it waited for its turn among `max_concurrent_runs`, or for its claim
                error.args = (f"run {run_id!r} was stopped before it began ({error.why}): nothing is recorded, so start it again",)
        raise


async def record_start(runtime: Runtime, advancing: Advancing, *, started: RunStarted, turns: int | None) -> Journal | RunState:
    """Record `started`. Return the journal to continue the run with, or its state if it is not to be continued."""
    patterns = (*runtime.parts.redact, *started.agent.redact)
    tools = tools_of(RunState(run_id=advancing.run_id, agent=started.agent), runtime.parts)
    usable = admission.usable(started.agent, started.host, tools, secrets=runtime.parts.secrets, capabilities=runtime.parts.capabilities)
    root = "" if started.delegated is None else started.delegated.root
    journal = advancing.journal(RunState(run_id=advancing.run_id, goal_id=root))
    started = msgspec.structs.replace(started, declared=declared_of(tools))
    async with runtime.tenants.starting(started.host.tenant, counts=not started.parent) as counted:
        if patterns:
            started = await _redacted(runtime, started, advancing.run_id, patterns)
        compacted = compacts(started.agent, runtime.planners.of(started.agent, check=False)) is not None
        digests, policy = digests_of(tools, runtime.parts, usable, compacts=compacted), kept_policy(runtime.parts.policy, patterns)
        if turns == 0 and started.delegated is None:  # a worker begins it
            digests = {**digests, **await runtime.routing.of_new(advancing.run_id)}
        declared = msgspec.structs.replace(started, digests=digests, levels=started.levels or levels_of(tools), policy=policy)
        journal.record(declared)
        if counted:
            await journal.commit()
    if turns == 0 or started.session is not None or not ours(runtime.parts.strategies.get(started.strategy)):
        # the run exists before the first line of its strategy; Detent's strategies begin with a pass or a value, which is committed first. A run of a
        # session exists before the claim on the run before it is released
        await journal.commit(durable=turns == 0)
    return journal.state if turns == 0 else journal


async def _redacted(runtime: Runtime, started: RunStarted, run_id: str, patterns: Sequence[str]) -> RunStarted:
    there = await runtime.store.head(run_id)
    if there is not None:  # somebody started it since the check; its key is not ours to replace
        raise Conflict(run_id, 0, there.records)
    key = os.urandom(32)
    await runtime.store.put_blob(run_id, KEY_BLOB, key)
    redactor = Redactor(patterns, key)
    hidden = redacted_start(started, redactor)
    for name, kept in kept_of(redactor).items():
        await runtime.store.put_blob(run_id, blob_of(name), msgspec.json.encode(kept))
    return hidden


def admit(runtime: Runtime, agent: Agent, goal: str) -> AgentSpec:
    """Register the agent's own tools and check that the run could do its work. Raise `ConfigError`, which names the agent's file if it has one."""
    try:
        return _admitted(runtime, agent, goal)
    except UnknownName as error:
        if not (file := agent.meta.get("agent_file")):
            raise
        raise UnknownName(error.kind, error.name, error.known, where=file) from None


def _admitted(runtime: Runtime, agent: Agent, goal: str) -> AgentSpec:
    runtime.tools.add_all(t for t in agent.tools if not isinstance(t, str))
    add_imported(runtime, agent)
    if not isinstance(agent.sees, str):
        runtime.parts.sees[function_name(agent.sees)] = agent.sees
    kernel = runtime.parts.kernels.get(agent.kernel) if agent.kernel else runtime.parts.kernel
    strategy = runtime.parts.strategies.get(agent.strategy)
    meta = [tool.spec.name for tool in kernel.meta_tools]
    spec = agent.spec()
    meta += _delegating(runtime, spec)
    for name in [name for name in agent.tool_names() if name not in runtime.tools and name not in meta]:
        with contextlib.suppress(UnknownName):  # reported below, with all available names
            runtime.tools.get(name)  # a plug-in package may have it
        if name not in runtime.tools and meta_tool_of_some_kernel(name, runtime.parts) is not None:
            meta.append(name)
    runtime.parts.memories.check(agent)
    refuse_unknown(spec, runtime.parts.sees)
    runtime.protocols.refuse_unasked([name for name in agent.tool_names() if name not in runtime.tools and name not in meta])
    spec = admission.checked_spec(agent, goal, [*runtime.tools.names(), *meta])
    if (compaction := compacts(spec)) is not None:
        runtime.parts.compactors.get(compaction.use)
    check_options(strategy, spec)
    spec = msgspec.structs.replace(spec, grants=(*spec.grants, *runtime.parts.grants))
    policy = runtime.parts.policy_of(spec)
    runtime.verifiers.add(agent.verifiers())
    runtime.verifiers.add_type(agent.answers_as())
    runtime.parts.guards_of(spec, (), {})  # refuse what cannot be read or found before anything is recorded
    if runtime.approver is None and runtime.store.url == "ram:" and not sys.stdin.isatty():
        admission.refuse_unanswerable(spec, runtime.tools, policy)
    return spec


def _delegating(runtime: Runtime, spec: AgentSpec) -> list[str]:
    """Return the tools by which the agent starts, awaits or ends children. Raise `ConfigError` for one whose name another tool has."""
    found = [name for name in spec.tools if tool_of(name, spec, None) is not None]
    for name in spec.subagents:
        if (taken := f"{PREFIX}{name}") in runtime.tools:
            why = f"{name!r} is started with the tool {taken!r}, and there is another tool of this name; rename one of them"
            raise ConfigError(f"agent {spec.name!r}: subagents: {why}")
    for name in (*MANAGING, STATUS):
        if name in spec.tools and not spec.subagents and name not in runtime.tools:
            raise ConfigError(
                f"agent {spec.name!r}: tools: {name!r} is for agents that it may start, and it may start none; give subagents"
            )
        if spec.subagents and name in spec.tools and name in runtime.tools:
            raise ConfigError(f"agent {spec.name!r} has subagents, and there is another tool with the name {name!r}; rename that tool")
    return found


def _declared(runtime: Runtime, agent: Agent[Any], known: set[str]) -> list[Agent[Any]]:
    """Return every agent that a run of this one may start, at any depth; one that the engine knows once. Raise `UnknownName`, `ConfigError`."""
    found: list[Agent[Any]] = []
    for name, said in starts_of(agent.subagents).items():
        if isinstance(said, str) and said in known:
            continue
        known.add(said if isinstance(said, str) else "")
        try:
            one = known_agent(runtime, said)
        except ConfigError as error:
            raise ConfigError(f"agent {agent.name!r}: subagents: {name!r}: {error}") from None
        found += [one, *_declared(runtime, one, known)]
    return found


def know(runtime: Runtime, agents: Iterable[Agent]) -> None:
    """Register agents by their names, with what their runs that were started elsewhere need. Raise `ConfigError`."""
    for agent in agents:
        known_agent(runtime, agent)
        if agent.name in runtime.agents:
            raise ConfigError(f"agents has two called {agent.name!r}; give one of them another name")
        runtime.agents[agent.name] = agent
        equip(runtime, agent)


def equip(runtime: Runtime, agent: Agent) -> None:
    """Register what the runs of an agent need that were started elsewhere."""
    runtime.servers.add(agent.mcp)
    runtime.tools.add_all(t for t in agent.tools if not isinstance(t, str))
    add_imported(runtime, agent)
    if not isinstance(agent.sees, str):
        runtime.parts.sees[function_name(agent.sees)] = agent.sees
    runtime.verifiers.add(agent.verifiers())
    runtime.verifiers.add_type(agent.answers_as())
    for one in starts_of(agent.subagents).values():
        if isinstance(one, Agent):
            equip(runtime, one)


def known_agent(runtime: Runtime, agent: Agent[OutputT] | str) -> Agent[OutputT]:
    """Return the agent, found by its name if one is given. Raise `UnknownName`, which names the nearest, or `ConfigError`."""
    found: Any = agent
    if isinstance(agent, str):
        if agent not in runtime.agents and (made := runtime.find_agent(agent)) is not None:
            know(runtime, [made])
        if not runtime.agents:
            give = "give Engine(agents=[...]), [agents] in detent.toml, or an Agent(...)"
            raise ConfigError(f"agent is the name {agent!r}, and this engine knows no agents; {give}")
        if agent not in runtime.agents:
            raise UnknownName("agent", agent, runtime.agents)
        found = runtime.agents[agent]
    if not isinstance(found, Agent):
        raise ConfigError(f"agent is {_shown(found)}; give an Agent(...), or the name of one in Engine(agents=[...])")
    return cast("Agent[OutputT]", found)


def _shown(thing: Any) -> str:
    return f"the class {thing.__name__}" if isinstance(thing, type) else repr(thing)


def add_imported(runtime: Runtime, agent: Agent) -> None:
    """Register what the file of an agent names by import path."""
    parts, compactor = runtime.parts, compactor_in(agent.compaction)
    of_kind: list[tuple[Names[Any], Sequence[str]]] = [(runtime.guards, agent.guards), (parts.kernels, [agent.kernel])]
    for names, said in (*of_kind, (parts.strategies, [agent.strategy]), (parts.compactors, [compactor])):
        for name in said:
            if isinstance(name, Imported) and name not in names:
                names.register(str(name), name.part)


def _all_secrets(secrets: SecretSource | None) -> tuple[str, ...]:
    """Return what a run without a host gets: it is the operator's."""
    return tuple(secrets.names()) if secrets is not None else ()


async def _with_servers(runtime: Runtime, agent: Agent) -> Agent:
    """Return the agent with the tools of its MCP servers by name, and connect these. Raise `ConfigError`."""
    runtime.servers.add(agent.mcp)
    if agent.subagents:
        starts = {
            name: one if isinstance(one, str) else await _with_servers(runtime, one) for name, one in starts_of(agent.subagents).items()
        }
        agent = with_starts(agent, starts)
    if not runtime.servers:
        return agent
    own = [tool for tool in agent.tools if not isinstance(tool, str)]
    named = await runtime.servers.prepare([tool for tool in agent.tools if isinstance(tool, str)])
    return msgspec.structs.replace(agent, tools=(*named, *own))


async def step(
    runtime: Runtime,
    agent: Agent | str | None = None,
    goal: str | None = None,
    *,
    run_id: str | None = None,
    host: Host | None = None,
    observers: Sequence[Observer] = (),
    **options: Any,
) -> Result:
    """Do one turn: of a new run of `agent` on `goal` (`options` as for `run`), or of the run `run_id`."""
    if agent is not None and goal is not None:
        return await run(runtime, agent, goal, run_id=run_id, host=host, observers=observers, turns=1, **options)
    if run_id is None or options:
        raise ConfigError(f"step needs an agent and a goal, or the id of a run and nothing else (got {', '.join(options) or 'neither'})")
    run_id = await runtime.same_host(run_id, host)
    return await runtime.go_on(run_id, turns=1, observers=observers)


async def resume(
    runtime: Runtime,
    run_id: str,
    *,
    budget: Budget | None = None,
    accept_levels: Mapping[str, SideEffect] | None = None,
    output_type: type[OutputT] | None = None,
    upgrade: bool = False,
    by: str = "",
    request: str = "",
    host: Host | None = None,
    observers: Sequence[Observer] = (),
) -> Result[OutputT]:
    """Continue a run from the end of its log. A finished or waiting run without news is returned unchanged.

    `budget` changes the bounds that it names from here on, recorded as changed `by` somebody (the user of this process), in the request with the id
    `request`; what was used stays used.
    `accept_levels` names tools that declare a lower side-effect level than the run holds them to, each with that level, which applies from here on.
    `output_type` is that of the answers, if no agent given here has it. `upgrade` moves a run that needs another version of the code to that of this
    engine, also a pinned one; raises `ConfigError` if `check_upgrade` finds that it cannot continue with it. Raises `NotAllowedNow` for a finished run
    (`reopen` takes a budget).

    With a host, only the host that started the run can resume it: raises `RunNotFound` for another tenant, `RunContextMismatch` for another workspace
    or principal.
    """
    run_id = await runtime.same_host(run_id, host)
    admission.refuse_what_is_not_json(by=by)
    runtime.verifiers.add_type(None if output_type is None else OutputType(output_type, "resume"))
    if upgrade:
        await runtime.move(runtime, run_id, pinned=True, must=True)
    if budget is None and not accept_levels:
        result = await runtime.go_on(run_id, observers=observers)
        if runtime.parts.children is not None:
            await runtime.parts.children.woken(result.state)
        return result
    check_is(Budget, budget=budget)
    bounds = checked(budget, ceiling=runtime.ceiling) if budget else None
    if (state := await load_run(runtime.store, run_id)).terminal:
        why = f"run {run_id!r} is {state.status}: its bounds change when it is opened again, `detent reopen {run_id} --budget ...`"
        raise NotAllowedNow(run_id, why, reason_code="run_finished")
    who, events = named(by or me(), run_id, what="a change"), list[AnyEvent]()
    if accept_levels:
        levels: dict[str, SideEffect] = {name: one_level(level, name) for name, level in accept_levels.items()}
        events.append(LevelsAccepted(levels=levels, by=who, via=poster()))
    if bounds is not None:
        admission.refuse_bounds_of_unknown(bounds, [*names_below(state.agent, runtime.agents), *runtime.tools.names()])
        await refuse_unreserved(runtime.store, state, bounds)
        events.append(BudgetChanged(budget=bounds, by=who, via=poster(), request=request))
    return await runtime.go_on(run_id, *events, observers=observers)


def call_sync(runtime: Runtime, call: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run one coroutine of this engine to its end in a new event loop, and close the engine."""
    with contextlib.suppress(RuntimeError):
        asyncio.get_running_loop()
        raise ConfigError(
            "run_sync needs a thread without a running event loop, and this one has one, as in a notebook; write `await engine.run(...)`"
        )

    async def main() -> T:
        task = asyncio.current_task()

        def stop(name: str) -> None:
            if not runtime.suspend(name) and task is not None:
                task.cancel()

        with on_signals(stop):
            try:
                return await call()
            finally:
                await runtime.close()

    try:
        return asyncio.run(main())
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None  # a signal came before or after the run, when there was nothing to suspend
