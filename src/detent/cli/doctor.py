"""`detent doctor`: reports what is available to run agents, what is wrong, and what to do next."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from detent.cli import options as o
from detent.cli import surroundings
from detent.cli.invocation import Invocation
from detent.cli.output import FAILED, Output, clean
from detent.cli.store_report import examine_store
from detent.cli.surroundings import Extra, Program, Provider, Server
from detent.config.agents import Agent
from detent.config.engines import Config
from detent.config.imports import add_import_roots
from detent.config.loading import AGENT_FILE, CONFIG_FILE, find_config, load_agent, path_of_agent, subagent_files
from detent.config.trust import Trust
from detent.core.errors import ConfigError, DetentError
from detent.expressions.display import shortened
from detent.memories.sqlite.vectors import way_here
from detent.ports import RunQuery, look_at
from detent.ports.passwords import without_password

STORE_S = 5.0
"""How long a store may take to answer."""


class File(msgspec.Struct, frozen=True, kw_only=True):
    """A configuration or agent file; `plans_by` is what plans for an agent: a model's name, or "rules"."""

    path: str
    kind: str
    plans_by: str = ""
    problem: str = ""


class StoreCheck(msgspec.Struct, frozen=True, kw_only=True):
    """The store that commands use here; `exists` is false if the first run will create it."""

    url: str
    exists: bool
    problem: str = ""


class HostCheck(msgspec.Struct, frozen=True, kw_only=True):
    """The worker host that is configured here, and what its server says; a host without one says nothing."""

    name: str
    says: str = ""
    problem: str = ""


class Findings(msgspec.Struct, frozen=True, kw_only=True):
    """All findings; `ok` if a run can start and nothing is broken. `memory` says how a memory in SQLite searches here."""

    ok: bool
    version: str
    providers: list[Provider]
    servers: list[Server]
    extras: list[Extra]
    programs: list[Program]
    memory: str
    files: list[File]
    store: StoreCheck
    worker_host: HostCheck = HostCheck(name="in_process")
    next: list[str]


def doctor(
    *,
    agent: o.AgentFile = None,
    store: o.Store = None,
    config: o.ConfigFile = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Also list each provider without a key and each server that is not running.")
    ] = False,
    repair: Annotated[
        bool, typer.Option("--repair", help="With --store: repair what can be repaired. Lists the changes first, and asks.")
    ] = False,
    yes: o.Yes = False,
    json_wanted: o.Json = False,
) -> int:
    """Report which models you can use here, what is installed, whether files and store are sound, and what to do next.

    Exits with 0 if a run can start and nothing is broken, else with 1. Keys are found by the names of their environment variables; no value is
    shown. The only requests go to model servers on this machine, and ask for their models.

    With --store URL, examine that whole store instead: pages and indexes, every record, artifact, listing entry and inbox, and leftovers.
    Exits with 0 if nothing is damaged, else with 1; nothing is changed. --repair rebuilds what can be rebuilt from sound logs, and removes
    leftovers. It changes no record: a damaged log stays as it is.
    """
    if store is not None:
        return examine_store(store=store, config=config, repair=repair, yes=yes, json_wanted=json_wanted)
    if repair:
        raise ConfigError("--repair changes a store; name it with --store URL (`detent where` shows the store of this directory)")
    found = examine(agent=agent, config=config)
    output = Output(json_wanted=json_wanted)
    output.document(found)
    if not json_wanted:
        _show(found, output, everything=everything)
    return 0 if found.ok else FAILED


def examine(*, agent: str | None, config: Path | None) -> Findings:
    """Check everything and return the findings. Problems are part of the findings and never raised."""
    environment = dict(os.environ)
    extras = surroundings.extras()
    providers = surroundings.providers(environment, extras)
    servers = surroundings.servers(surroundings.places(environment))
    invocation, files = _files(agent, config)
    unread = StoreCheck(url=without_password(environment.get("DETENT_STORE", "")), exists=False, problem="not checked")
    checked = _store(invocation) if invocation is not None else unread
    host = _worker_host(invocation) if invocation is not None else HostCheck(name="")
    usable = [f for f in files if f.kind == "agent" and not f.problem]
    broken = [f for f in files if f.problem]
    planned = invocation is not None and invocation.config.planner is not None
    can_run = any(p.usable for p in providers) or any(s.answers and s.models for s in servers) or planned or any(f.plans_by for f in usable)
    return Findings(
        ok=can_run and not broken and not (checked.problem and invocation is not None) and not host.problem,
        version=surroundings.version_of_this(),
        providers=providers,
        servers=servers,
        extras=extras,
        programs=surroundings.programs(),
        memory=way_here(),
        files=files,
        store=checked,
        worker_host=host,
        next=[*_next(providers, servers, extras, files, checked), *_private(invocation)],
    )


# Files and store --------------------------------------------------------------------------------------------------------------------


def _files(agent: str | None, config: Path | None) -> tuple[Invocation | None, list[File]]:
    """Return the invocation for these options and files, if they are valid, and the findings about each file."""
    named = config or (Path(os.environ["DETENT_CONFIG"]) if os.environ.get("DETENT_CONFIG") else find_config())
    files: list[File] = []
    try:
        invocation = Invocation(o.Setup(config=config), agent=agent, asks=False)
        add_import_roots(invocation.config.import_roots or ())
    except DetentError as error:
        return None, [File(path=str(named or CONFIG_FILE), kind="config", problem=str(error))]
    if named is not None:
        files.append(File(path=str(named), kind="config"))
    agents = dict(invocation.config.agents or {})
    if invocation.config.agent is not None:
        agents.setdefault(invocation.config.agent, invocation.config.agent)
    elif Path(AGENT_FILE).is_file():
        agents.setdefault(AGENT_FILE, AGENT_FILE)
    files += [_agent(path, invocation.trust, invocation.config) for path in dict.fromkeys(agents.values())]
    return invocation, files


def _agent(named: str, trust: Trust, config: Config) -> File:
    path = path_of_agent(named)
    try:
        trust.need_agent(path)
        agents = config.agents or {}
        for file in subagent_files(path, agents):
            trust.need_agent(file)
        loaded = load_agent(path, agents=agents)
        problem = _unaskable(loaded)
    except DetentError as error:
        return File(path=str(path), kind="agent", problem=str(error))
    plans_by = "rules" if loaded.rules else "" if problem else loaded.model
    return File(path=str(path), kind="agent", plans_by=plans_by, problem=problem)


def _unaskable(agent: Agent) -> str:
    """Return why the agent's model cannot be used here, or ""."""
    if agent.rules or not agent.model:
        return ""
    try:
        if agent.planner:
            from detent.planners.raw_text.by_name import RawTextModels

            RawTextModels().check(agent.spec())
        else:
            from detent.planners.model.planner import ModelPlanner

            ModelPlanner().check(agent.spec())
    except ConfigError as error:
        return str(error)
    return ""


def _store(invocation: Invocation) -> StoreCheck:
    store = invocation.engine.store
    url = without_password(store.url)

    async def look() -> bool:
        try:
            there = await look_at(store)
            if there:
                await store.list_runs(RunQuery(limit=1))
            return there
        finally:
            await store.close()

    try:
        there = asyncio.run(asyncio.wait_for(look(), STORE_S))
    except TimeoutError:
        return StoreCheck(url=url, exists=False, problem=f"it did not answer within {STORE_S:g} s")
    except Exception as error:  # noqa: BLE001 - foreign code: a driver may raise anything, and here it is a finding
        return StoreCheck(url=url, exists=False, problem=without_password(str(error)) or type(error).__name__)
    return StoreCheck(url=url, exists=there)


def _worker_host(invocation: Invocation) -> HostCheck:
    name, check = invocation.config.worker.host or "in_process", getattr(invocation.engine.worker_host, "check", None)
    if check is None:
        return HostCheck(name=name)

    async def look() -> str:
        try:
            return await check()
        finally:
            await invocation.engine.close()

    try:
        return HostCheck(name=name, says=asyncio.run(asyncio.wait_for(look(), STORE_S)))
    except TimeoutError:
        return HostCheck(name=name, problem=f"it did not answer within {STORE_S:g} s")
    except Exception as error:  # noqa: BLE001 - foreign code: a host may raise anything, and here it is a finding
        return HostCheck(name=name, problem=without_password(str(error)) or type(error).__name__)


def _private(invocation: Invocation | None) -> list[str]:
    """Return a recommendation if goals may contain text that should disappear when a run is erased."""
    config = invocation.config if invocation is not None else Config()
    if config.goal_words_in_ids is False or not (config.tenants or config.redact):
        return []
    why = "[tenants]" if config.tenants else "redact"
    return [
        f"set goal_words_in_ids = false in detent.toml, because it has {why}: ids contain words of the goal and stay when a run is erased"
    ]


# What to do -------------------------------------------------------------------------------------------------------------------------


def _next(providers: list[Provider], servers: list[Server], extras: list[Extra], files: list[File], store: StoreCheck) -> list[str]:
    """Return what to do, the most useful first: fix what is broken, then run."""
    steps = [f"fix {file.path}: {file.problem.splitlines()[0]}" for file in files if file.problem]
    if store.problem and store.url:
        steps.append(f"the store {store.url} cannot be used: {store.problem.splitlines()[0]}; name another one with --store URL")
    ready = [provider for provider in providers if provider.usable]
    local = [server for server in servers if server.answers and server.models]
    agents = [file for file in files if file.plans_by]
    if agents:
        steps.append(f"run the agent: detent run --agent {agents[0].path} GOAL")
    if ready:
        steps.append(f"use a model: detent run --model {ready[0].model} GOAL")
    if local:
        steps.append(f"use a model of this machine: detent run --model {local[0].name}:{local[0].models[0]} GOAL")
        there = {extra.name for extra in extras if extra.version}
        steps += [] if "openai" in there else ['its client is missing: pip install "detent[openai]"']
    for provider in providers:
        if provider.found and not provider.installed:
            steps.append(f'{provider.name} has a key but no client: pip install "detent[{provider.name}]"')
    if not (ready or local or agents):
        steps.append("set the key of a provider, such as OPENAI_API_KEY, or start a local server, such as `ollama serve`")
        steps.append("without a model: `detent init` writes an agent that plans by rules")
    return steps


# Showing ----------------------------------------------------------------------------------------------------------------------------


def _show(found: Findings, output: Output, *, everything: bool) -> None:
    output.show(found.version)
    _part(output, "Models", [*_providers(found.providers, everything=everything), *_servers(found.servers, everything=everything)])
    _part(output, "Installed", [*_extras(found.extras), ("memory", found.memory, True)])
    _part(output, "Programs", [(p.name, p.found or p.problem, not p.problem) for p in found.programs])
    store = found.store
    said = "not used" if not store.url else store.problem or ("exists" if store.exists else "does not exist yet; the first run creates it")
    files = [(f.path, f.problem or (f"plans by {f.plans_by}" if f.plans_by else "valid"), not f.problem) for f in found.files]
    nothing = [(f"{CONFIG_FILE}, {AGENT_FILE}", "none here", True)]
    host = found.worker_host
    hosts = [(f"worker host {host.name}", host.problem or host.says, not host.problem)] if host.problem or host.says else []
    _part(output, "Files and store", [*(files or nothing), (store.url or "store", said, not store.problem), *hosts])
    output.show()
    for line in found.next:
        output.show(f"next: {shortened(line, None)}", "" if found.ok else "yellow")


def _providers(providers: Sequence[Provider], *, everything: bool) -> list[tuple[str, str, bool]]:
    rows: list[tuple[str, str, bool]] = []
    for provider in providers:
        if provider.found:
            client = "" if provider.installed else f'; its client is missing: pip install "detent[{provider.name}]"'
            rows.append((provider.name, f"key in {', '.join(provider.found)}{client}", provider.usable))
        elif everything:
            rows.append((provider.name, f"no key ({' or '.join(provider.variables)})", True))
    without = [provider.name for provider in providers if not provider.found]
    return rows if everything or not without else [*rows, ("no key", ", ".join(without), True)]


def _servers(servers: Sequence[Server], *, everything: bool) -> list[tuple[str, str, bool]]:
    rows: list[tuple[str, str, bool]] = []
    for server in servers:
        if server.answers:
            models = shortened(", ".join(server.models), 100) or "no model is loaded"
            rows.append((server.name, f"{server.url} answers: {models}", bool(server.models)))
        elif everything or server.problem:
            rows.append((server.name, f"{server.url}: {clean(server.problem) or 'nothing listens there'}", True))
    silent = [server.name for server in servers if not server.answers and not server.problem]
    return rows if everything or not silent else [*rows, ("not running", ", ".join(silent), True)]


def _extras(extras: Sequence[Extra]) -> list[tuple[str, str, bool]]:
    there = [f"{extra.name} {extra.version}" for extra in extras if extra.version]
    missing = [extra for extra in extras if not extra.version]
    return [("extras", ", ".join(there) or "none", True), *((extra.name, f"missing: {extra.install}", True) for extra in missing)]


def _part(output: Output, title: str, rows: Sequence[tuple[str, Any, bool]]) -> None:
    width = max(len(name) for name, _, _ in rows) if rows else 0
    output.show()
    output.show(title, "bold")
    for name, said, good in rows:
        output.show(f"  {clean(name):<{width}}  {clean(str(said).splitlines()[0]) if said else ''}", "" if good else "yellow")
