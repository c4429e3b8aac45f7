"""Reads configuration that people write: `detent.toml`, agent files, `DETENT_*` variables, import paths.

Every mistake is a `ConfigError` that names the file, the key, the problem and the nearest valid choice.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, cast

import msgspec

from detent.config.agents import ENTRY, Agent, ProgramOptions, Subagent, entry_of
from detent.config.compaction import compactor_in
from detent.config.demands import govern
from detent.config.engines import OPERATORS_KEYS, Config, is_code
from detent.config.environment import check_budget
from detent.config.imports import absolute_import, load_skills, load_tool
from detent.config.mcp_tables import take_servers
from detent.config.model_tables import take_models, take_tenants
from detent.config.names import Imported, Names, load_named, load_phases
from detent.config.profile import sized
from detent.config.state_directory import OPERATORS_FILE, state_directory
from detent.config.tables import check_json, read_agent, read_toml, take
from detent.core.errors import ConfigError
from detent.expressions.grants import check_grants
from detent.ports.options import checked_options
from detent.ports.verifying import Stated
from detent.secrecy.redact import Redactor

CONFIG_FILE, AGENT_FILE = "detent.toml", "agent.toml"


# Files ------------------------------------------------------------------------------------------------------------------------


@checked_options
def load_config(path: str | Path, *, without: Iterable[str] = (), operators: bool = False) -> Config:
    """Return the configuration in a `detent.toml`. Its paths are relative to it. The keys `without` are ignored.

    Only the operator's file (`operators`) may have the keys `OPERATORS_KEYS`. Raise `ConfigError`.
    """
    file = Path(path)
    table = {key: value for key, value in read_toml(file, "config file").items() if key not in without}
    for key in () if operators else OPERATORS_KEYS:
        part, _, inner = key.partition(".")
        if part in table and (not inner or (isinstance(table[part], dict) and inner in table[part])):
            raise ConfigError(
                f"{path}: {key}: only the operator may set this, in a file that no tool can write: "
                f"{state_directory(file.parent) / OPERATORS_FILE}, or one outside of the workspace that --config names"
            )
    if "name" in table and ("instructions" in table or "rules" in table):
        raise ConfigError(f"{path}: this is an agent file; pass it with --agent {path}, or name it in {CONFIG_FILE}: agent = {str(path)!r}")
    for key, field in (("store", "url"), ("memory", "url"), ("workspace", "root")):
        if isinstance(table.get(key), str):
            table[key] = {field: table[key]}
    if isinstance(table.get("policy"), (list, dict)):
        from detent.policies.combining import policy_in_file

        table["policy"] = policy_in_file(table["policy"], file)
    table["agents"] = _agents_in(table.get("agents"), file)
    servers = take_servers(table.pop("mcp", {}), str(path), file.parent, operators=operators)
    models = take_models(table.pop("models", {}), str(path))
    tenants = take_tenants(table.pop("tenants", {}), str(path))
    config = take(table, Config, str(path))
    check_budget(config.budget, str(path))
    agents = config.agents or {}
    named = [file.parent / agent for agent in (*agents.values(), agents.get(config.agent or "", config.agent)) if agent]
    govern(file, *(path / "agent.toml" if path.is_dir() else path for path in named))
    check_grants(config.grants or (), f"{path}: grants")
    return msgspec.structs.replace(_located(config, file.parent), mcp=servers or None, models=models, tenants=tenants or None)


def _agents_in(said: Any, file: Path) -> Any:
    """Return `agents` as names of agent files: those of a folder, and tables `[agents.NAME]` by their places."""
    if isinstance(said, str):
        folder = file.parent / Path(said).expanduser()
        if not folder.is_dir():
            raise ConfigError(f"{file}: agents: {said!r} is not a folder of agent files; write a table: name = agent file")
        inner = sorted(path for path in folder.glob(f"*/{AGENT_FILE}"))
        found = {**{path.parent.name: path for path in inner}, **{path.stem: path for path in sorted(folder.glob("*.toml"))}}
        return {name: str(path.relative_to(file.parent) if path.is_relative_to(file.parent) else path) for name, path in found.items()}
    if not isinstance(said, dict):
        return said
    return {name: f"{file.name}#{name}" if isinstance(one, dict) else one for name, one in cast("dict[str, Any]", said).items()}


def path_of_agent(named: str | Path) -> Path:
    """Return the agent file for a path; for a directory, the `agent.toml` in it."""
    path = Path(named).expanduser()
    return path / AGENT_FILE if path.is_dir() else path


def find_config(directory: str | Path = ".") -> Path | None:
    """Return the `detent.toml` of a directory, if there is one."""
    path = Path(directory, CONFIG_FILE)
    return path if path.is_file() else None


def is_operators(path: str | Path, root: str | Path | None) -> bool:
    """Whether a configuration file is the operator's: it is outside `root`, where workspace tools may write (None: the working directory)."""
    return not Path(path).resolve().is_relative_to(Path(root or ".").expanduser().resolve())


def operators_config(directory: str | Path = ".", *, without: Iterable[str] = ()) -> Config:
    """Return the configuration in the operator's file of a directory's state directory; an empty one without a file. Raise `ConfigError`."""
    try:
        file = state_directory(directory) / OPERATORS_FILE
    except ConfigError:  # no home directory, so there is no operator's file
        return Config()
    if file.parent.resolve().is_relative_to(Path(directory).resolve()):  # it may have come with the directory, or been written by its tools
        if file.is_file():
            raise ConfigError(
                f"{file} would be the operator's file, but it is inside the directory that it governs, where tools can write; "
                "set XDG_STATE_HOME to a directory outside of it"
            )
        return Config()
    return load_config(file, without=without, operators=True) if file.is_file() else Config()


class AgentFile(ProgramOptions, frozen=True, kw_only=True):
    """The keys of an agent file: the options of an agent, and keys that only a file has. Paths are relative to the file."""

    tools: Sequence[str] = ()
    """The tools of the agent: names, or import paths of tools and meta-tools: `module:attribute` or `./file.py:attribute`. It gets no others."""
    skills: Sequence[str] = ()
    """Skills, or folders of skills. The agent then gets the tool `activate_skill`."""
    verify: Sequence[dict[str, Any]] = ()
    """Checks that an answer must pass. Each is one `[[verify]]` with one kind of check: `grounded = true`, `command = ["make", "test"]`, ..."""
    rules: str | list[dict[str, Any]] = ""
    """A rule file, or the rules themselves. The agent then plans without a model."""
    phases: Sequence[str] = ()
    """The phases of one turn, in order: `think`, `act`, and import paths of your own phases. Use it instead of `kernel`."""
    workspace: str | None = None
    """The directory that confines the workspace tools."""
    sandbox: Literal["auto", "require", "off"] | None = None
    """Like `workspace.sandbox` of detent.toml; if both are set, the stricter one applies."""
    subagents: dict[str, str | dict[str, Any]] | Sequence[str] = ()
    """The agents that it may start: names in `[agents]` of detent.toml, or a table: name = agent file, or `[subagents.NAME]` with the keys of one.

    Such a table may have `on_parent_end` and `auto_background`; with `agent = "FILE or NAME"` it needs no other keys."""
    policy: str | list[dict[str, Any]] | dict[str, Any] = ""
    """The agent's own policy: path of a policy file, or its rules as `[[policy]]`. It can only tighten the engine's policy."""


IMPORTS = {kind: f"{kind}_imports" for kind in ("tool", "verify", "guard", "strategy", "kernel", "phase", "compactor")}
"""The keys of `meta` that record import paths, by the kind of part."""
OF_ENGINES = {
    "planner": "your own planner serves every agent",
    "policy": "your own policy governs every agent",
    "observers": "observers see every run",
    "store": "all runs are in one store",
}
"""The keys of `detent.toml` that an agent file does not have, or not with an import path, and why."""
RECORDED = ("agent_file", "workspace", "sandbox", "skills", *IMPORTS.values())
"""The keys of an agent's `meta` that a later process needs to continue its runs."""


def load_agent(path: str | Path, *, agents: Mapping[str, str] | None = None) -> Agent:
    """Return the agent that an agent file describes. Its tools are imported and its rules are checked. Raise `ConfigError`.

    Its subagents are loaded too. `agents` has more agent files by name, as `Config.agents`; other names stay, for the engine to know.

    `meta` records what a later process needs to resume a run of this agent (`RECORDED`). A caller names the file and so trusts it; the command
    line asks first (`detent.config.trust`).
    """
    return _load(Path(path), agents or {}, ())


def _load(path: Path, agents: Mapping[str, str], above: tuple[Path, ...]) -> Agent:
    govern(path)
    real = path.resolve()
    if real in above:
        raise ConfigError(f"{path}: it would start itself: {' -> '.join(one.name for one in (*above[above.index(real) :], real))}")
    return _agent_in(read_agent(path), path, str(path), agents, (*above, real))


def _agent_in(table: dict[str, Any], file: Path, path: str, agents: Mapping[str, str], above: tuple[Path, ...]) -> Agent:
    """Return the agent of a file, or of a table in it; `path` is its place for messages. `above`: the files of those that may start it."""
    from detent.policies.combining import check_guards, policy_in_file
    from detent.policies.guards import GUARDS

    if "grants" in table:
        raise ConfigError(
            f"{path}: grants: only the operator may set which values a tool may take from another, in a file that no tool can write: [[grants]] of "
            f"{state_directory('.') / OPERATORS_FILE}, or of one outside of the workspace that --config names"
        )
    for key, what in OF_ENGINES.items():
        given = table.get(key)
        imported = isinstance(given, str) and ":" in given and not (file.parent / given).exists()
        if imported or (given is not None and key not in AgentFile.__struct_fields__):
            raise ConfigError(f"{path}: {key}: {what}, so set it in {CONFIG_FILE}: {key} = {given!r}")
    said = take(table, AgentFile, path)
    where, home = path, file.resolve().parent
    for key in RECORDED:
        if key in said.meta:
            raise ConfigError(f"{where}: meta.{key}: Detent records this itself, from other keys of the file; give it another name")
    if not said.name.strip():
        raise ConfigError(f"{where}: name: missing; an agent needs a name, such as name = {home.name!r}")
    check_budget(said.budget, where)
    for key in ("variables", "profile", "meta", "output_schema", "model_settings", "strategy_options"):
        check_json(getattr(said, key), f"{where}: {key}")
    try:
        Redactor(said.redact, b"")
    except ConfigError as error:
        raise ConfigError(f"{where}: redact: {error}") from None
    try:
        sized(said.profile, said.model)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None
    if ":" not in said.strategy:
        _check_strategy(said.strategy, where)
    meta = {**said.meta, **_recorded(said, file)}
    tools = [load_tool(absolute_import(entry, home), f"{where}: tools") if ":" in entry else entry for entry in said.tools]
    if said.skills:
        tools.append(load_skills(meta["skills"], where))
    taken: dict[str, Any] = {name: getattr(said, name) for name in ProgramOptions.__struct_fields__}
    same: dict[str, Any] = {name: tuple(cast("list[Any]", value)) if isinstance(value, list) else value for name, value in taken.items()}
    same |= {"tools": tools, "meta": meta, "mcp": take_servers(said.mcp, where, home)}
    same["verify"] = [_verifier(entry, home, f"{where}: verify {number}") for number, entry in enumerate(said.verify, 1)]
    same["policy"] = policy_in_file(said.policy, _shown_path(file))
    check_guards([name for name in said.guards if ":" not in name], where, named=Names("guard", GUARDS).get)
    same |= _imported(said, home, where)
    same["subagents"] = _subagents(said, file, where, agents, above)
    same["rules"] = _rules(said.rules, home, where)
    try:
        agent = Agent(**same)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None
    _check_called_tools(agent, where)
    return agent


def _subagents(said: AgentFile, file: Path, where: str, agents: Mapping[str, str], above: tuple[Path, ...]) -> dict[str, Any]:
    """Return the agents that an agent may start, with the options of their entries. Raise `ConfigError`.

    A name that is neither a file's nor in `agents` stays a name.
    """
    found: dict[str, Agent | str] = {}
    listed = said.subagents if isinstance(said.subagents, Mapping) else {name: name for name in said.subagents}
    options: dict[str, dict[str, Any]] = {}
    for name, entry in listed.items():
        one, options[name] = entry_of(entry)
        if not isinstance(one, (str, Mapping)):
            raise ConfigError(f"{where}: subagents.{name}: agent is {one!r}; write the path of an agent file, or a name")
        if isinstance(entry, Mapping) and "agent" in entry and (other := sorted({*entry} - {"agent", *ENTRY})):
            raise ConfigError(f"{where}: subagents.{name} names another agent with 'agent'; leave out {', '.join(other)}")
        if isinstance(one, Mapping):
            found[name] = _agent_in({"name": name, **one}, file, f"{where}: subagents.{name}", agents, above)
        elif one.endswith(".toml") or one in agents:
            place = Path(agents[one]) if one in agents else _shown_path(file.resolve().parent / Path(one).expanduser())
            found[name] = _load(path_of_agent(place), agents, above)
        else:
            found[name] = one
        below = found[name]
        mine, theirs = said.workspace, below.meta.get("workspace") if isinstance(below, Agent) else None
        if theirs is not None and (mine is None or Path(theirs) != (file.resolve().parent / mine).resolve()):
            raise ConfigError(
                f"{where}: subagents.{name} works in the workspace {theirs!r}, and this agent does not; a team works in one: "
                "name it in both files, or leave it out in the other one"
            )
    return {name: _with_options(one, options[name], f"{where}: subagents.{name}") for name, one in found.items()}


def _with_options(one: Agent | str, options: Mapping[str, Any], where: str) -> Agent | str | Subagent:
    try:
        return Subagent(one, **options) if options else one
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None


def subagent_files(path: Path, agents: Mapping[str, str]) -> list[Path]:
    """Return the agent files that agents below an agent file are in, without importing anything. Raise `ConfigError`."""
    found: list[Path] = []

    def look(table: Mapping[str, Any], file: Path) -> None:
        said: Any = table.get("subagents") or {}
        for one, _ in map(entry_of, cast("dict[str, Any]", said).values() if isinstance(said, dict) else cast("list[Any]", said)):
            if isinstance(one, dict):
                look(cast("dict[str, Any]", one), file)
            elif isinstance(one, str) and (one.endswith(".toml") or one in agents):
                place = path_of_agent(agents[one] if one in agents else file.resolve().parent / Path(one).expanduser())
                if place.resolve() not in [other.resolve() for other in found]:
                    found.append(place)
                    look(read_agent(place), place)

    look(read_agent(path), path)
    return found


def _imported(said: AgentFile, home: Path, where: str) -> dict[str, Any]:
    """Return the options that name a part by import path, with the imported part."""

    def part(kind: str, name: str, key: str) -> str:
        path = absolute_import(name, home)
        return Imported(path, load_named(kind, path, f"{where}: {key}")) if ":" in name else name

    found: dict[str, Any] = {"guards": tuple(part("guard", name, "guards") for name in said.guards)}
    found["strategy"], found["kernel"] = part("strategy", said.strategy, "strategy"), part("kernel", said.kernel, "kernel")
    if name := compactor_in(said.compaction):
        table = said.compaction if isinstance(said.compaction, dict) else {}
        found["compaction"] = {**table, "use": part("compactor", name, "compaction")}
    if said.phases:
        if said.kernel:
            raise ConfigError(f"{where}: phases: kernel is {said.kernel!r}, which has its own phases; leave one of the two out")
        kernel = load_phases([absolute_import(name, home) for name in said.phases], where)
        found["kernel"] = Imported(kernel.name, kernel)
    return found


def recorded(path: str | Path) -> dict[str, Any]:
    """Return the name of an agent file's agent, the commands of its checks, and its `RECORDED` entries of `meta`.

    Nothing is imported. Raise `ConfigError`.
    """
    return _recorded_in(read_agent(Path(path)), Path(path), str(path))


def _recorded_in(table: dict[str, Any], file: Path, where: str) -> dict[str, Any]:
    said = take(table, AgentFile, where)
    commands = [list(entry["command"]) for entry in said.verify if isinstance(entry.get("command"), list)]
    found = {"name": said.name, "verify_commands": commands, **_recorded(said, file)}
    for name, entry in said.subagents.items() if isinstance(said.subagents, Mapping) else ():
        one = entry_of(entry)[0]
        below = _recorded_in({"name": name, **one}, file, f"{where}: subagents.{name}") if isinstance(one, Mapping) else {}
        for key, values in below.items():
            if isinstance(values, list):
                found[key] = [*found.get(key, ()), *cast("list[Any]", values)]
    return found


def _recorded(said: AgentFile, file: Path) -> dict[str, Any]:
    home = file.resolve().parent
    found: dict[str, Any] = {"agent_file": str(file.resolve())}
    named = {"tool": said.tools, "verify": [str(entry.get("function", "")) for entry in said.verify], "guard": said.guards}
    named |= {"strategy": [said.strategy], "kernel": [said.kernel], "compactor": [compactor_in(said.compaction)]}
    for kind, names in named.items():
        if imports := [absolute_import(name, home) for name in names if ":" in name]:
            found[IMPORTS[kind]] = imports
    if said.phases:
        found[IMPORTS["phase"]] = [absolute_import(name, home) for name in said.phases]
    if said.skills:
        found["skills"] = [str((home / place).resolve()) for place in said.skills]
    if said.workspace is not None:
        found["workspace"] = str((home / said.workspace).resolve())
    if said.sandbox is not None:
        found["sandbox"] = said.sandbox
    return found


def _verifier(entry: dict[str, Any], home: Path, where: str) -> Any:
    """Return an entry of `verify` with its function imported."""
    path = entry.get("function")
    if not isinstance(path, str) or ":" not in path:
        return entry
    path = absolute_import(path, home)
    return Stated({**entry, "function": path}, load_named("verifier", path, where))


def _rules(said: str | list[dict[str, Any]], home: Path, where: str) -> list[dict[str, Any]]:
    from detent.planners.rules.files import build_rules, load_rules

    if not said:
        return []
    if isinstance(said, str):
        return load_rules(_shown_path(home / said))
    check_json(said, f"{where}: rules")
    build_rules(said, source=f"{where}: rules")
    return said


def _check_strategy(name: str, where: str) -> None:
    """Raise `ConfigError` if a strategy looks like a misspelt known one. The engine that runs the agent may know other strategies."""
    from detent.strategies import BUILT_IN
    from detent.teams import READY

    known = Names("strategy", {**BUILT_IN, **READY})
    if name not in known and (near := difflib.get_close_matches(name, known.names(), n=1)):
        raise ConfigError(f"{where}: strategy: unknown strategy {name!r}; did you mean {near[0]!r}?")


def _check_called_tools(agent: Agent, where: str) -> None:
    """Raise `ConfigError` if a rule calls a tool that the agent does not list, because that call could only fail."""
    listed = agent.tool_names()
    for rule in agent.rules:
        call = rule.get("call")
        name = cast("dict[str, Any]", call).get("tool") if isinstance(call, dict) else None
        every = [entry[:-1] for entry in listed if entry.endswith("__*")]  # `files__*` lists every tool of that server
        if isinstance(name, str) and "${" not in name and name not in listed and not name.startswith(tuple(every)):
            near = difflib.get_close_matches(name, listed, n=1)
            what = f"it lists {near[0]!r}; write the same name in both" if near else f"add it there (listed: {', '.join(listed) or 'none'})"
            raise ConfigError(f"{where}: tools: rule {rule.get('name')!r} calls {name!r}, which the agent does not list; {what}")


def _located(config: Config, home: Path) -> Config:
    """Return the configuration with its relative paths rewritten relative to the working directory."""
    if home.resolve() == Path.cwd():
        return config
    replace = msgspec.structs.replace
    store, workspace = config.store, config.workspace
    if store.url is not None:
        store = replace(store, url=_located_url(store.url, home))
    memory = config.memory
    if memory.url is not None or memory.stores:
        stores = memory.stores and {name: _located_url(url, home) for name, url in memory.stores.items()}
        memory = replace(memory, url=memory.url and _located_url(memory.url, home), stores=stores)
    if workspace.root is not None:
        workspace = replace(workspace, root=str(home / Path(workspace.root).expanduser()))
    if workspace.sandbox_readable:
        readable = tuple(str((home / Path(path).expanduser()).absolute()) for path in workspace.sandbox_readable)
        workspace = replace(workspace, sandbox_readable=readable)
    if (archives := config.retention.archive_to) is not None:
        config = replace(config, retention=replace(config.retention, archive_to=str(home / Path(archives).expanduser())))
    agents = config.agents and {name: str(home / file) for name, file in config.agents.items()}
    agent = config.agent if config.agent is None or config.agent in (agents or {}) else str(home / config.agent)
    changes: dict[str, Any] = {"store": store, "memory": memory, "workspace": workspace, "agents": agents, "agent": agent}
    for key in ("planner", "policy"):
        value = getattr(config, key)
        changes[key] = absolute_import(value, home) if isinstance(value, str) else value
    if isinstance(config.policy, str) and config.policy.endswith(".toml"):
        changes["policy"] = str(home / Path(config.policy).expanduser())
    if config.import_roots:
        changes["import_roots"] = tuple(str(home / Path(root).expanduser()) for root in config.import_roots)
    for key in ("tools", "observers"):
        values: tuple[str, ...] | None = getattr(config, key)
        changes[key] = values and tuple(absolute_import(value, home) for value in values)
    return replace(config, **changes)


def _located_url(url: str, home: Path) -> str:
    if is_code(url):
        return absolute_import(url, home)
    for prefix in ("sqlite:///", "file:"):
        rest = url.removeprefix(prefix)
        if rest != url and rest and not rest.startswith("/"):
            return f"{prefix}{home / rest}"
    return url


def _shown_path(path: Path) -> Path:
    """Return the path relative to the working directory if it is below it. This is shorter in messages."""
    try:
        return path.relative_to(Path.cwd())
    except ValueError:
        return path
