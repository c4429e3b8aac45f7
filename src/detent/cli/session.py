"""One command's configuration, engine and store: built-in < detent.toml < agent file < environment < options.

A run that is taken on again needs its tools: which ones, in which workspace and imported from where stands in the log
(`AgentSpec.meta`), so that `detent resume RUN` alone is enough.
"""

from __future__ import annotations

import asyncio
import contextlib
import difflib
import getpass
import os
import shlex
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Iterable, Mapping, Sequence
from pathlib import Path
from types import EllipsisType
from typing import Any, TypeVar

import msgspec

from detent.cli.asked import IMPLICIT, Asked
from detent.cli.options import Setup
from detent.cli.output import Output
from detent.config.agents import Agent
from detent.config.assembly import made_workspace
from detent.config.engines import DEFAULTS, Config, OutputConfig, StoreConfig, WorkspaceConfig
from detent.config.environment import config_from_environment
from detent.config.imports import load_skills, load_tool
from detent.config.loading import find_config, load_agent, load_config
from detent.config.mcp_tables import load_servers
from detent.core.budget import Budget
from detent.core.errors import ConfigError, CorruptLog, RunContextMismatch, RunNotFound, Suspended, UnknownName
from detent.core.records import RunHead
from detent.core.state import RunState
from detent.engine import Engine
from detent.ports import RunQuery, ToolSpec, look_at
from detent.running.interrupts import on_signals
from detent.running.results import Result, result_of
from detent.stores.passwords import without_password
from detent.tools.mcp.offered import ServerTool
from detent.tools.mcp.settings import McpServer

T = TypeVar("T")
replace = msgspec.structs.replace
AGENT_FILE = "agent.toml"
NOT_ASKED = Asked()
REFUSED_S = 2.0
"""So long a command tries an address where no server listens."""
SLOW_S = 3.0
"""After so long it is said that a store has not answered yet."""
DECIDING = ("planner", "policy", "tools", "mcp", "http")
"""The keys of the configuration that only what plans or executes needs."""


class Session:
    """What one command works with. Raises `ConfigError` for wrong files, variables and options.

    One that only looks leaves a store of an earlier version as it is; one that `changes` runs brings it up to date; one that sets `creates`
    makes it where it is missing, one that `begins` a run only once the engine has refused nothing. One that is `bare` decides nothing: it makes
    no planner, no policy and no tools, and a fault in them does not stop it. One that is `patient` waits for a database server that is still
    to be started, as long as any program does. `there` says whether the store is there, once it was driven. `lent` are parts of the engine
    that it shares with that of another session.
    """

    def __init__(
        self,
        setup: Setup,
        *,
        agent: str | None = None,
        changes: bool = False,
        bare: bool = False,
        patient: bool = False,
        lent: Mapping[str, Any] | None = None,
    ) -> None:
        self.output = Output(json_wanted=setup.json_wanted)
        self.suffix = _suffix(setup.store, setup.config)
        environment = config_from_environment(os.environ)
        found = setup.config or _config_of_environment() or find_config()
        self.filed = load_config(found, without=DECIDING if bare else ()) if found is not None else Config()
        given = Config(
            store=StoreConfig(url=setup.store or None),
            workspace=WorkspaceConfig(root=str(setup.workspace) if setup.workspace is not None else None),
            agent=agent or None,
            output=OutputConfig(verbosity=setup.verbose or None),
        )
        self.said = given.over(environment)
        asked = self.said.over(self.filed).over(DEFAULTS)
        self.config = asked if patient else asked.over(Config(store=StoreConfig(**impatient(asked.store.url or ""))))
        self.run_id = ""
        self.stopped = ""
        self.changes, self.creates, self.begins, self.there = changes, False, False, True
        self.bare = bare
        if str(Path.cwd()) not in sys.path:
            sys.path.insert(0, str(Path.cwd()))
        self.engine = Engine.from_config(replace(self.config, workspace=WorkspaceConfig(), budget=self.filed.budget), **(lent or {}))

    # Engine -----------------------------------------------------------------------------------------------------------------------

    def drive(self, work: Callable[[Engine], Awaitable[T]], *, missing: T | EllipsisType = ...) -> T:
        """Do `work` with the open engine, and close it. Ctrl-C and SIGTERM suspend: raise `Suspended`.

        Where there is no store, and none is to be made, return `missing`; without it the work is done all the same, and finds no run.
        """
        return asyncio.run(self._drive(work, missing))

    async def _drive(self, work: Callable[[Engine], Awaitable[T]], missing: T | EllipsisType) -> T:
        task = asyncio.current_task()
        results: list[T] = []

        def stop(name: str) -> None:
            self.stopped = self.stopped or name
            self.engine.suspend(name)
            if task is not None:
                task.cancel()

        try:
            with on_signals(stop):
                with self._said_when_slow():
                    self.there = self.creates or self.begins or await look_at(self.engine.store, upgrade=self.changes)
                if not self.there and not isinstance(missing, EllipsisType):
                    return missing
                async with self._at_work():
                    results.append(await work(self.engine))
        except Suspended as error:
            error.add_note(self.command("resume", error.run_id))
            raise
        except asyncio.CancelledError:
            if not self.stopped:
                raise
            if not results:
                raise Suspended("", self.stopped) from None
        return results[0]

    @contextlib.asynccontextmanager
    async def _at_work(self) -> AsyncGenerator[None]:
        """Open the engine, unless there is nothing to open or it opens itself, and close it."""
        if self.there and not self.begins:
            async with contextlib.AsyncExitStack() as opened:
                with self._said_when_slow():
                    await opened.enter_async_context(self.engine)
                yield
            return
        try:
            yield
        finally:
            await self.engine.close()

    @contextlib.contextmanager
    def _said_when_slow(self) -> Generator[None]:
        """Say that the store has not answered yet where it takes long."""
        said = f"{self.engine.store.url} has not answered for {SLOW_S:g} s; waiting for it, Ctrl-C stops"
        timer = asyncio.get_running_loop().call_later(SLOW_S, self.output.say, said, "dim")
        try:
            yield
        finally:
            timer.cancel()

    def command(self, *words: str) -> str:
        """Return the exact command line that does this next, in the same store."""
        return " ".join(["detent", *(shlex.quote(word) for word in words)]) + self.suffix

    # Runs -------------------------------------------------------------------------------------------------------------------------

    async def find(self, asked: str) -> str:
        """Return the id of the run that `asked` names: an id, a unique beginning of one, or `last`. Raise `RunNotFound`, `ConfigError`."""
        self.run_id = await self._find(asked)
        return self.run_id

    async def _find(self, asked: str) -> str:
        store = self.engine.store
        if not self.there:
            raise RunNotFound(
                asked, f"{store.url}: there is no store yet, and looking makes none (is the URL right? the first run makes it)"
            )
        if any("\ud800" <= c <= "\udfff" for c in asked):  # bytes that are no text: no run is called so
            raise RunNotFound(asked, store.url)
        if asked == "last":
            newest = await store.list_runs(RunQuery(limit=1))
            if not newest:
                raise RunNotFound(asked, store.url)
            return newest[0].run_id
        if await self._known(asked):
            return asked
        found = [head.run_id for head in await store.list_runs(RunQuery()) if head.run_id.startswith(asked)] if asked else []
        if not found:
            raise RunNotFound(asked, store.url)
        if len(found) > 1:
            more = f", and {len(found) - 5} more" if len(found) > 5 else ""
            raise ConfigError(f"{asked!r} is the beginning of {len(found)} run ids: {', '.join(found[:5])}{more}; write more of it")
        return found[0]

    async def _known(self, run_id: str) -> bool:
        try:
            return await self.engine.store.head(run_id) is not None
        except CorruptLog:
            return True

    async def heads(self, query: RunQuery) -> list[RunHead]:
        """Return the runs that the query asks for; none where there is no store yet."""
        return await self.engine.list_runs(query) if self.there else []

    async def state(self, asked: str) -> RunState:
        """Return the state of the run that `asked` names."""
        return await self.engine.load(await self.find(asked))

    async def result(self, run_id: str) -> Result:
        """Return how a run stands."""
        return result_of(await self.engine.load(run_id))

    async def outfit(self, asked: str, *, agent_file: str | None = None) -> RunState:
        """Find the run and register the tools that its log names, where anything is executed; with `agent_file`, those of that file.

        Raise `ConfigError`.
        """
        state = await self.state(asked)
        if not self.bare:
            self.equip(state, agent_file=agent_file)
        return state

    def equip(self, state: RunState, *, agent_file: str | None = None) -> None:
        """Register the tools that a run's log names, or those of an agent file. Raise `ConfigError`, `RunContextMismatch`."""
        meta: dict[str, Any] = state.agent.meta
        imports: Sequence[Any] = meta.get("tool_imports", ())
        if agent_file is not None:
            agent = load_agent(self._agent_path(agent_file))
            if agent.name != state.agent.name:
                raise RunContextMismatch(state.run_id, [{"field": "agent", "expected": state.agent.name, "received": agent.name}])
            meta = agent.meta
            self._register(tool for tool in agent.tools if not isinstance(tool, str))
        else:
            self._register(load_tool(path, f"run {state.run_id!r}") for path in imports)
            if (skills := meta.get("skills")) and "activate_skill" not in self.engine.tools:
                self._register([load_skills(skills, f"run {state.run_id!r}")])
        root = self.said.workspace.root or meta.get("workspace") or self.config.workspace.root or "."
        self._add_workspace(state.agent.tools, root, f"run {state.run_id!r} works in", sandbox=meta.get("sandbox"))
        if any(name not in self.engine.tools for name in state.agent.tools):
            self._add_remembered_servers(Path(meta.get("agent_file", "")), root)

    def _add_remembered_servers(self, agent_file: Path, root: str) -> None:
        """Add the MCP servers of the agent file that a run was started from, where it is still there."""
        if agent_file.is_file():
            self._add_servers(load_servers(agent_file), root)

    def _add_servers(self, servers: dict[str, McpServer], root: str) -> None:
        self.engine.servers.work_in(root)
        self.engine.servers.add(servers, over=True)

    def _add_workspace(self, names: Iterable[str], root: str, who: str, *, sandbox: str | None) -> None:
        missing = [name for name in names if name not in self.engine.tools]
        if not missing:
            return
        if not Path(root).expanduser().is_dir():
            raise ConfigError(f"{who} the workspace {root!r}, which is no directory; create it, or name another one with --workspace DIR")
        tools = made_workspace(root, self.config.workspace, sandbox=sandbox)
        self._register(tool for tool in tools if tool.name in missing)

    def _register(self, tools: Iterable[Any]) -> None:
        self.engine.tools.add_all(list(tools))

    # Agents -----------------------------------------------------------------------------------------------------------------------

    def _agent_path(self, named: str) -> Path:
        agents = self.config.agents or {}
        path = Path(agents.get(named, named)).expanduser()
        path = path / AGENT_FILE if path.is_dir() else path
        if not path.exists() and named not in agents:
            near = difflib.get_close_matches(named, agents, n=1)
            hint = f"; did you mean the agent {near[0]!r}?" if near else ""
            raise ConfigError(f"there is no agent file {named!r}{hint} (`detent init` writes one to begin with)")
        return path

    def agent(self, asked: Asked = NOT_ASKED) -> Agent:
        """Return the agent to run, its tools registered, its workspace recorded; raise `ConfigError`.

        It is that of the agent file with what the options ask in its place, and without a file one of the options alone.
        """
        named = self.config.agent or (AGENT_FILE if Path(AGENT_FILE).is_file() else None)
        if asked.model is not None and self.engine.planner is not None:
            raise ConfigError(
                f"--model {asked.model}: the configuration names a planner ({self.config.planner}), which plans for every agent; take it out"
            )
        if named is not None:
            path: Path | str = self._agent_path(named)
            agent = asked.over(load_agent(path))
        elif asked.model is not None:
            path, agent = "options", asked.agent(self.said.workspace.root)
        else:
            raise ConfigError(_no_agent())
        root = self.said.workspace.root or agent.meta.get("workspace") or self.config.workspace.root or "."
        try:
            self._register(tool for tool in agent.tools if not isinstance(tool, str))
        except ConfigError as error:
            raise ConfigError(f"{path}: tools: {error}") from None
        self._add_workspace(agent.tool_names(), root, f"{path}: agent {agent.name!r} works in", sandbox=agent.meta.get("sandbox"))
        self._add_servers(agent.mcp, root)
        for name in agent.tool_names():
            with contextlib.suppress(UnknownName):  # said below, with everything that is there
                self.engine.tools.get(name)  # a meta-tool, or that of a plug-in package
            if name not in self.engine.tools and not self.engine.servers.claims(name):
                raise ConfigError(f"{path}: tools: {UnknownName('tool', name, self._known_tools())}")
        self._check_planner(agent, path)
        if agent.name == IMPLICIT and named is None and not agent.tools:
            return agent
        return msgspec.structs.replace(agent, meta={**agent.meta, "workspace": str(Path(root).expanduser().resolve())})

    def tool_specs(self) -> list[ToolSpec]:
        """Return what is declared of each tool at hand: the workspace's, the configuration's, those of the agent file if there is one."""
        root = self.config.workspace.root or "."
        if self.config.agent is not None or Path(AGENT_FILE).is_file():
            agent = load_agent(self._agent_path(self.config.agent or AGENT_FILE))
            self._register(tool for tool in agent.tools if not isinstance(tool, str))
            self.engine.servers.add(agent.mcp, over=True)
        self.engine.servers.work_in(root)
        offered = made_workspace(root, self.config.workspace)
        self._register(tool for tool in offered if tool.name not in self.engine.tools)
        return self.engine.tools.list()

    def server_tools(self) -> tuple[list[ServerTool], dict[str, str]]:
        """Return the tools of the MCP servers, each of which is started for that, and what is wrong with those that are not offered."""

        async def survey(engine: Engine) -> tuple[list[ServerTool], dict[str, str]]:
            try:
                return await engine.servers.survey()
            finally:
                await engine.servers.close()

        return self.drive(survey) if self.engine.servers else ([], {})

    def _known_tools(self) -> list[str]:
        from detent.tools.workspace.tools import workspace_tools

        return sorted({*self.engine.tools.names(), *(tool.name for tool in workspace_tools("."))})

    def _check_planner(self, agent: Agent, path: Path | str) -> None:
        if agent.rules or agent.model or self.engine.planner is not None:
            return
        raise ConfigError(
            f"{path}: agent {agent.name!r} has neither a model nor rules, so nothing decides what it does\n"
            'give it model = "openai:gpt-5" (`detent doctor` shows what is at hand), or rules = "rules.yaml" (`detent init` writes an example)'
        )

    @property
    def budget(self) -> Budget:
        """The bounds that the environment says; options come over them."""
        return self.said.budget

    @property
    def verbosity(self) -> int:
        """How much is shown of a run in progress."""
        return self.config.output.verbosity or 0


def _suffix(store: str | None, config: Path | None) -> str:
    said = ["--store", without_password(store)] if store else []
    said += ["--config", str(config)] if config is not None else []
    return "".join(f" {shlex.quote(word)}" for word in said)


def _config_of_environment() -> Path | None:
    named = os.environ.get("DETENT_CONFIG")
    return Path(named) if named else None


def _no_agent() -> str:
    """Return the two lines for a `run` that says neither who works nor which model."""
    from detent.planners.providers import SUGGESTED, providers_with_key

    ready = providers_with_key()
    what = f"no agent was given, there is no {AGENT_FILE} here, and no --model"
    if ready:
        model = SUGGESTED[ready[0]]
        return (
            f"{what}\na key is set, so: detent run --model {model} GOAL; without a model: rules, see `detent init`; more: `detent doctor`"
        )
    return (
        f"{what}; no key of a provider is set either\n"
        "without a key: rules plan (`detent init` writes an example), or a local model does; `detent doctor` shows what is at hand and what to do"
    )


def impatient(url: str) -> dict[str, Any]:
    """Return the options of a store that a person waits for: where no server listens, that is said soon."""
    return {"refused_s": REFUSED_S} if url.startswith(("postgresql:", "postgres:")) else {}


def operator() -> str:
    """Return who is at this command line, for the log."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "operator"
