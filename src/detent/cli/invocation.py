"""One command's configuration, engine and store: built-in < detent.toml < agent file < environment < options.

To continue a run, a command needs the run's tools. The log records which tools, in which workspace and imported from where
(`AgentSpec.meta`), so `detent resume RUN` needs no further options.
"""

from __future__ import annotations

import asyncio
import contextlib
import getpass
import os
import shlex
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Iterable, Mapping, Sequence
from copy import copy
from functools import partial
from pathlib import Path
from types import EllipsisType
from typing import Any, TypeVar

import msgspec

from detent.cli.agent_parts import (
    agent_path,
    check_planner,
    import_parts,
    no_agent,
    refuse_logged,
    refuse_unknown_tools,
    states_below,
    with_allowed_servers,
)
from detent.cli.asked import IMPLICIT, Asked
from detent.cli.ids import find_run, short_names
from detent.cli.logged import Word, own_agents
from detent.cli.options import Setup
from detent.cli.output import Output
from detent.cli.stopping import Stops
from detent.cli.surroundings import unused_stores
from detent.cli.trusting import ask, attended
from detent.config.agents import Agent, starts_of, with_starts
from detent.config.assembly import made_workspace
from detent.config.demands import config_demands, govern
from detent.config.engines import DEFAULTS, Config, LimitsConfig, OutputConfig, StoreConfig, WorkerConfig, WorkspaceConfig, allowed_servers
from detent.config.environment import config_from_environment
from detent.config.imports import add_import_roots, load_skills
from detent.config.loading import (
    AGENT_FILE,
    find_config,
    is_operators,
    load_agent,
    load_config,
    operators_config,
    recorded,
    subagent_files,
)
from detent.config.mcp_tables import load_servers
from detent.config.trust import Trust
from detent.config.verifying import names_in_workspace
from detent.core.budget import Budget
from detent.core.errors import ConfigError, RunContextMismatch, Suspended
from detent.core.records import RunHead
from detent.core.state import RunState
from detent.engine import Engine
from detent.ports import EventStore, RunQuery, ToolSpec, look_at
from detent.ports.passwords import without_password
from detent.running.interrupts import on_signals
from detent.running.overseeing import Wait
from detent.running.results import Result, result_of
from detent.running.starting import add_imported, know
from detent.tools.mcp.offered import ServerTool
from detent.tools.mcp.settings import McpServer

T = TypeVar("T")
replace = msgspec.structs.replace
NOT_ASKED = Asked()
REFUSED_S = 2.0
"""How long a command tries an address where no server listens."""
SLOW_S = 3.0
"""After this time, a message warns that the store has not answered yet."""
DECIDING = ("planner", "policy", "tools", "mcp", "http", "observers", "secrets", "import_roots")
"""The keys of the configuration that are needed only to plan or execute. A read-only command imports and starts nothing."""


class Invocation:
    """The configuration, engine and store of one command. Raises `ConfigError` for wrong files, variables and options.

    - `changes`: the command changes runs, so a store of an earlier version is upgraded; otherwise it stays as it is
    - `creates`: create the store if it is missing; `begins`: create it only after the engine has checked the run that starts
    - `bare`: the command decides nothing; no planner, policy, tools or observers are made, and a fault in them does not stop it
    - `patient`: wait for a database server that has not started yet, as long as any program does
    - `asks`: the command may ask the person at the terminal for trust
    - `there`: whether the store exists, once the invocation was driven
    - `lent`: parts of the engine that are shared with another invocation
    """

    def __init__(
        self,
        setup: Setup,
        *,
        agent: str | None = None,
        changes: bool = False,
        bare: bool = False,
        patient: bool = False,
        asks: bool = True,
        lent: Mapping[str, Any] | None = None,
        drain_s: float | None = None,
        worker_host: str | None = None,
    ) -> None:
        self.output = Output(json_wanted=setup.json_wanted)
        self.suffix = _suffix(setup.store, setup.config)
        environment = config_from_environment(os.environ)
        root = setup.workspace or environment.workspace.root
        self.filed, project = _filed(setup.config or _config_of_environment(), root, without=DECIDING if bare else ())
        asked = partial(ask, self.output) if asks and attended(self.output) else None
        self.trust = Trust(environment=self.filed.environment or (), vouched=setup.trust, ask=asked)
        if project is not None:
            unused = ("store",) if setup.store or environment.store.url else ()
            passed = (*DECIDING, "workspace", *unused) if bare else unused
            self.trust.need_config(project, config_demands(project, without=(*passed, "agents")))  # an agent that is used is asked about
        given = Config(
            store=StoreConfig(url=setup.store or None),
            workspace=WorkspaceConfig(root=str(setup.workspace) if setup.workspace is not None else None),
            agent=agent or None,
            output=OutputConfig(verbosity=setup.verbose or None),
            limits=LimitsConfig(drain_s=drain_s),
            worker=WorkerConfig(host=worker_host),
        )
        self.said = given.over(environment)
        wanted = self.said.over(self.filed).over(DEFAULTS)
        self.config = wanted if patient else wanted.over(Config(store=StoreConfig(**impatient(wanted.store.url or ""))))
        self.run_id, self.waits = "", list[Wait]()
        self._names: dict[str, str] = {}
        self.changes, self.creates, self.begins, self.there, self.bare = changes, False, False, True, bare
        for line in unused_stores(Path.cwd()) if self.config.store.url is None else ():
            self.output.say(line, "yellow")
        self.engine = _engine(self, **(lent or {}))
        self.stops = Stops(self.output, self.engine)

    # Engine -----------------------------------------------------------------------------------------------------------------------

    def drive(self, work: Callable[[Engine], Awaitable[T]], *, missing: T | EllipsisType = ...) -> T:
        """Do `work` with the open engine, and close it. Ctrl-C, SIGTERM and the end of the terminal suspend: raise `Suspended`.

        The first signal lets calls with an effect finish, the second cuts them off. If the store does not exist and is not created, return
        `missing`; without `missing`, do the work anyway, which then finds no run.
        """
        return asyncio.run(self._drive(work, missing))

    async def _drive(self, work: Callable[[Engine], Awaitable[T]], missing: T | EllipsisType) -> T:
        task, results = asyncio.current_task(), list[T]()
        assert task is not None  # noqa: S101 - `asyncio.run` has made one
        try:
            with on_signals(lambda name: self.stops.hear(name, task), hangup=True):
                with self._said_when_slow():
                    self.there = self.creates or self.begins or await look_at(self.engine.store, upgrade=self.changes)
                if not self.there and not isinstance(missing, EllipsisType):
                    return missing
                async with self._at_work():
                    results.append(await work(self.engine))
                    await self.name(self.run_id)
        except Suspended as error:
            error.add_note(self.command("resume", error.run_id))
            raise
        except asyncio.CancelledError:
            if not self.stops.by:
                raise
            if not results:
                raise Suspended("", self.stops.by) from None
        return results[0]

    @contextlib.asynccontextmanager
    async def _at_work(self) -> AsyncGenerator[None]:
        """Open the engine, unless there is no store or the engine opens itself, and close it."""
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
        """Print a message if the store does not answer for long."""
        said = f"{self.engine.store.url} has not answered for {SLOW_S:g} s; waiting for it, Ctrl-C stops"
        timer = asyncio.get_running_loop().call_later(SLOW_S, self.output.say, said, "dim")
        try:
            yield
        finally:
            timer.cancel()

    def command(self, *words: str) -> str:
        """Return the exact command line with these words for the same store; runs among the words get their short names."""
        return " ".join(["detent", *(shlex.quote(self.short(word)) for word in words)]) + self.suffix

    # Runs -------------------------------------------------------------------------------------------------------------------------

    async def find(self, asked: str) -> str:
        """Return the id of the run that `asked` names (`ids.find_run`). Raise `RunNotFound`, `ConfigError`."""
        self.run_id = await find_run(self.engine.store, asked, there=self.there)
        await self.name(self.run_id)
        return self.run_id

    async def name(self, *run_ids: str) -> None:
        """Find the short names of these runs, which `short` and `command` then print."""
        missing = [run_id for run_id in run_ids if run_id and run_id not in self._names]
        if not self.output.json:
            self._names |= await short_names(self.engine.store, missing)

    def short(self, run_id: str) -> str:
        """Return the printed name of a run: short if `name` has found one, else the whole id."""
        return self._names.get(run_id, run_id)

    async def heads(self, query: RunQuery) -> list[RunHead]:
        """Return the runs that match the query; none if there is no store yet."""
        return await self.engine.list_runs(query) if self.there else []

    async def state(self, asked: str) -> RunState:
        """Return the state of the run that `asked` names."""
        return await self.engine.load(await self.find(asked))

    async def result(self, run_id: str) -> Result:
        """Return the status and result of a run."""
        return result_of(await self.engine.load(run_id))

    async def outfit(self, asked: str, *, agent_file: str | None = None) -> RunState:
        """Find the run and, unless the invocation is bare, register the tools that its log or `agent_file` names. Raise `ConfigError`."""
        state = await self.state(asked)
        if not self.bare:
            self.equip(state, agent_file=agent_file)
        return state

    def equip(self, state: RunState, *, agent_file: str | None = None, own: bool = False) -> None:
        """Register the tools of a run: those of an agent file, else those that its log names, as far as the log counts (`logged`).

        With `own` only the configuration here counts. Raise `ConfigError`, `RunContextMismatch`.
        """
        for below in states_below(state):
            self.equip(below, own=own)
        word = Word(state, self.config, self.trust, own=own)
        if agent_file is not None:
            word.check_key()
            agent = self._load_agent(agent_file)[1]
            if agent.name != state.agent.name:
                raise RunContextMismatch(state.run_id, [{"field": "agent", "expected": state.agent.name, "received": agent.name}])
            meta: dict[str, Any] = agent.meta
            self._register(tool for tool in agent.tools if not isinstance(tool, str))
            add_imported(self.engine.runtime, agent)
            self.engine.verifiers.add(agent.verifiers())
            word.need_commands([list(entry["command"]) for entry in agent.spec().verify if "command" in entry])
        else:
            meta = word.counts()
            govern(*(Path(file) for file in [meta.get("agent_file")] if file))
            add_import_roots(self.config.import_roots or ())
            import_parts(self.engine, meta, f"run {state.run_id!r}")
            if meta["skills"] and "activate_skill" not in self.engine.tools:
                self._register([load_skills(meta["skills"], f"run {state.run_id!r}")])
        root = self.said.workspace.root or meta.get("workspace") or self.config.workspace.root or "."
        self._add_workspace(
            names_in_workspace(state.agent.tools, state.agent.verify), root, f"run {state.run_id!r} works in", sandbox=meta.get("sandbox")
        )
        if any(name not in self.engine.tools for name in state.agent.tools):
            file = Path(meta.get("agent_file", ""))
            self._add_servers(allowed_servers(load_servers(file), self.config) if file.is_file() else {}, root)
        if own:
            refuse_logged(state, self.engine)

    def _add_servers(self, servers: dict[str, McpServer], root: str) -> None:
        self.engine.servers.work_in(root)
        self.engine.servers.add(servers, over=True)

    def add_agents_servers(self) -> None:
        """Add the MCP servers of the agent file, if there is one."""
        if self.config.agent is not None or Path(AGENT_FILE).is_file():
            path = agent_path(self.config, self.config.agent or AGENT_FILE)
            self.trust.need_agent(path)
            self._add_servers(allowed_servers(load_servers(path), self.config), self.config.workspace.root or ".")

    def _add_workspace(self, names: Iterable[str], root: str, who: str, *, sandbox: str | None) -> None:
        missing = [name for name in names if name not in self.engine.tools]
        if not missing:
            return
        if not Path(root).expanduser().is_dir():
            raise ConfigError(
                f"{who} the workspace {root!r}, which is not a directory; create it, or name another one with --workspace DIR"
            )
        tools = made_workspace(root, self.config.workspace, sandbox=sandbox)
        self._register(tool for tool in tools if tool.name in missing)

    def _register(self, tools: Iterable[Any]) -> None:
        self.engine.tools.add_all(list(tools))

    # Agents -----------------------------------------------------------------------------------------------------------------------

    def _load_agent(self, named: str) -> tuple[Path, Agent]:
        """Return the path of an agent file and its agent, if the file is trusted."""
        path = agent_path(self.config, named)
        agents = self.config.agents or {}
        for file in (path, *subagent_files(path, agents)):
            self.trust.need_agent(file)
        add_import_roots(self.config.import_roots or ())
        return path, with_allowed_servers(load_agent(path, agents=agents), self.config)

    def agent(self, asked: Asked = NOT_ASKED, named: str | None = None) -> Agent:
        """Return the agent to run, with its tools registered and its workspace recorded; raise `ConfigError`.

        It is the agent of the agent file (`named`, or that of the configuration), overridden by the options; without a file, one of the options alone.
        """
        named = named or self.config.agent or (AGENT_FILE if Path(AGENT_FILE).is_file() else None)
        if asked.model is not None and self.engine.planner is not None:
            raise ConfigError(
                f"--model {asked.model}: the configuration names a planner ({self.config.planner}), which plans for every agent; remove it from there"
            )
        if named is not None:
            path: Path | str
            path, agent = self._load_agent(named)
            agent = asked.over(agent)
        elif asked.model is not None:
            add_import_roots(self.config.import_roots or ())
            path, agent = "options", asked.agent(self.said.workspace.root)
        else:
            raise ConfigError(no_agent())
        root = self.said.workspace.root or agent.meta.get("workspace") or self.config.workspace.root or "."
        return self.furnished(agent, path, root)

    def furnished(self, agent: Agent, path: Path | str, root: str) -> Agent:
        """Return the agent with all that it and those that it may start need registered; raise `ConfigError`."""
        below = starts_of(agent.subagents).items()
        starts = {name: one if isinstance(one, str) else self.furnished(one, one.meta.get("agent_file", path), root) for name, one in below}
        agent = with_starts(agent, starts)
        try:
            self._register(tool for tool in agent.tools if not isinstance(tool, str))
        except ConfigError as error:
            raise ConfigError(f"{path}: tools: {error}") from None
        names, who = names_in_workspace(agent.tool_names(), agent.spec().verify), f"{path}: agent {agent.name!r} works in"
        self._add_workspace(names, root, who, sandbox=agent.meta.get("sandbox"))
        self._add_servers(agent.mcp, root)
        add_imported(self.engine.runtime, agent)
        refuse_unknown_tools(self.engine, agent, path)
        check_planner(self.engine, agent, path)
        if agent.name == IMPLICIT and path == "options" and not agent.tools:
            return agent
        return replace(agent, meta={**agent.meta, "workspace": str(Path(root).expanduser().resolve())})

    def tool_specs(self) -> list[ToolSpec]:
        """Return the declarations of the available tools: of the workspace, the configuration, and the agent file if there is one."""
        root = self.config.workspace.root or "."
        if self.config.agent is not None or Path(AGENT_FILE).is_file():
            _, agent = self._load_agent(self.config.agent or AGENT_FILE)
            self._register(tool for tool in agent.tools if not isinstance(tool, str))
            self.engine.servers.add(agent.mcp, over=True)
        self.engine.servers.work_in(root)
        offered = made_workspace(root, self.config.workspace)
        self._register(tool for tool in offered if tool.name not in self.engine.tools)
        return self.engine.tools.list()

    def server_tools(self) -> tuple[list[ServerTool], dict[str, str]]:
        """Start the MCP servers and return their tools, and the problems of tools that are not offered."""

        async def survey(engine: Engine) -> tuple[list[ServerTool], dict[str, str]]:
            try:
                return await engine.servers.survey()
            finally:
                await engine.servers.close()

        return self.drive(survey) if self.engine.servers else ([], {})

    @property
    def budget(self) -> Budget:
        """The bounds from the environment; options override them."""
        return self.said.budget

    @property
    def verbosity(self) -> int:
        """How much is shown of a run in progress."""
        return self.config.output.verbosity or 0


def _engine(of: Invocation, **lent: Any) -> Engine:
    return Engine.from_config(replace(of.config, workspace=WorkspaceConfig(), budget=of.filed.budget), agents=(), **lent)


def engine_on(of: Invocation, store: EventStore, agents: Iterable[Agent], *, root: str | None = None) -> Engine:
    """Return another engine of an invocation's configuration, on a store, with all that these agents need. They come from `agent`.

    Their workspace is `root`, if it is given.
    """
    other = copy(of)
    other.engine = _engine(of, store=store)
    know(other.engine.runtime, [other.furnished(one, "options", root or one.meta.get("workspace", ".")) for one in agents])
    return other.engine


def _suffix(store: str | None, config: Path | None) -> str:
    said = ["--store", without_password(store)] if store else []
    said += ["--config", str(config)] if config is not None else []
    return "".join(f" {shlex.quote(word)}" for word in said)


def _filed(named: Path | None, root: str | Path | None, *, without: Iterable[str]) -> tuple[Config, Path | None]:
    """Return the configuration in the files, and the path of the project's file, None if there is none or it is the operator's.

    The operator's file overrides the project's file, which is the named one or the one in the working directory.
    """
    found = named or find_config()
    if found is None:
        return operators_config(without=without), None
    operators = named is not None and is_operators(named, root)
    said = load_config(found, without=without, operators=operators)
    if operators and not all(is_operators(found, place) for place in _workspaces(said)):
        operators, said = False, load_config(found, without=without)
    return operators_config(without=without).over(said), None if operators else found


def _workspaces(config: Config) -> list[str]:
    """Return the directories that a configuration, or an agent file that it names, lets tools write to."""
    found = [config.workspace.root] if config.workspace.root is not None else []
    for file in own_agents(config):
        with contextlib.suppress(ConfigError):  # refused when it is used
            found += filter(None, [recorded(file).get("workspace")])
    return found


def _config_of_environment() -> Path | None:
    named = os.environ.get("DETENT_CONFIG")
    return Path(named) if named else None


def impatient(url: str) -> dict[str, Any]:
    """Return the options of a store that a person waits for: it fails soon if no server listens."""
    return {"refused_s": REFUSED_S} if url.startswith(("postgresql:", "postgres:")) else {}


def operator() -> str:
    """Return the name of the user of this command line, for the log."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "operator"


def know_agents(invocation: Invocation, files: Sequence[str] = (), *, needed: bool = True) -> None:
    """Register the agents of the configuration, and these files. Raise `ConfigError` if one is needed and there is none."""
    names = [*(invocation.config.agents or {}), *files]
    if not names and invocation.config.agent is None and not Path("agent.toml").is_file():
        if not needed:
            return
        raise ConfigError("there is no agent to serve; give --agent FILE, or list agents in detent.toml (`detent init` writes one)")
    know(invocation.engine.runtime, [invocation.agent(named=name) for name in names] or [invocation.agent()])
