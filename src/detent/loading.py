"""Reading what people write: `detent.toml`, agent files, `DETENT_*` variables, import paths.

Every mistake is a `ConfigError` that names the file, the key, what is wrong with it and the nearest thing that is right.
"""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import math
import sys
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from types import ModuleType, UnionType
from typing import Any, Literal, TypeVar, Union, cast, get_args, get_origin

import msgspec

from detent.config import Agent, Config
from detent.core.budget import FIELDS, Budget, checked
from detent.core.errors import BudgetRefused, ConfigError
from detent.names import Names
from detent.profile import sized
from detent.redact import Redactor

T = TypeVar("T", bound=msgspec.Struct)

CONFIG_FILE = "detent.toml"


# Files ------------------------------------------------------------------------------------------------------------------------


def load_config(path: str | Path, *, without: Iterable[str] = ()) -> Config:
    """Return what a `detent.toml` says; paths in it are relative to it; the keys `without` are not looked at. Raise `ConfigError`."""
    from detent.mcp_tables import take_servers
    from detent.model_tables import take_models, take_tenants

    file = Path(path)
    table = {key: value for key, value in read_toml(file, "config file").items() if key not in without}
    if "name" in table and ("instructions" in table or "rules" in table):
        raise ConfigError(f"{path}: this is an agent file; give it with --agent {path}, or name it in {CONFIG_FILE}: agent = {str(path)!r}")
    for key, field in (("store", "url"), ("workspace", "root")):
        if isinstance(table.get(key), str):
            table[key] = {field: table[key]}
    if isinstance(table.get("policy"), (list, dict)):
        from detent.policies.combining import policy_in_file

        table["policy"] = policy_in_file(table["policy"], file)
    servers = take_servers(table.pop("mcp", {}), str(path), file.parent)
    models = take_models(table.pop("models", {}), str(path))
    tenants = take_tenants(table.pop("tenants", {}), str(path))
    config = take(table, Config, str(path))
    _check_budget(config.budget, str(path))
    return msgspec.structs.replace(_located(config, file.parent), mcp=servers or None, models=models, tenants=tenants or None)


def find_config(directory: str | Path = ".") -> Path | None:
    """Return the `detent.toml` of a directory, if there is one."""
    path = Path(directory, CONFIG_FILE)
    return path if path.is_file() else None


class AgentFile(msgspec.Struct, frozen=True, kw_only=True):
    """The keys of an agent file. `rules`: the path of a rule file, or its entries; `workspace`: a directory; both relative to the file.

    `policy`: the path of a policy file, its rules, or a table like it. `sandbox` says whether exec runs programs in a sandbox; where the
    engine's configuration says it too, the stricter of the two holds.
    """

    name: str = ""
    instructions: str = ""
    model: str = ""
    small_model: str = ""
    planner: Literal["", "on-device"] = ""
    model_settings: dict[str, Any] = {}
    actions: tuple[str, ...] = ()
    strategy: str = "reactive"
    strategy_options: dict[str, Any] = {}
    kernel: str = ""
    tools: tuple[str, ...] = ()
    capabilities: tuple[str, ...] = ()
    skills: tuple[str, ...] = ()
    rules: str | list[dict[str, Any]] = ""
    workspace: str | None = None
    sandbox: Literal["auto", "require", "off"] | None = None
    budget: Budget = Budget()
    variables: dict[str, Any] = {}
    on_deny: Literal["observe", "fail"] = "observe"
    on_reject: Literal["observe", "stop"] = "observe"
    on_unknown: Literal["wait", "tell"] = "wait"
    wrap_up: bool = False
    profile: dict[str, Any] = {}
    redact: tuple[str, ...] = ()
    grants: tuple[dict[str, Any], ...] = ()
    policy: str | list[dict[str, Any]] | dict[str, Any] = ""
    guards: tuple[str, ...] = ()
    required_tools: dict[str, int] = {}
    deliverables: tuple[dict[str, str], ...] = ()
    healing: bool | None = None
    output_schema: dict[str, Any] | None = None
    mcp: dict[str, Any] = {}
    meta: dict[str, Any] = {}


def load_agent(path: str | Path) -> Agent:
    """Return the agent that an agent file describes; its imported tools are loaded, its rules checked. Raise `ConfigError`.

    `meta` records what a later process needs to take a run of this agent on: `agent_file`, `workspace`, `sandbox`, `skills` and `tool_imports`.
    """
    from detent.mcp_tables import take_servers
    from detent.policies.combining import check_guards, policy_in_file
    from detent.policies.guards import GUARDS

    file = Path(path)
    said = take(read_toml(file, "agent file"), AgentFile, str(path))
    where, home = str(path), file.resolve().parent
    if not said.name.strip():
        raise ConfigError(f"{where}: name: missing; an agent needs a name, such as name = {home.name!r}")
    _check_budget(said.budget, where)
    for key in ("variables", "profile", "meta", "output_schema", "model_settings", "strategy_options"):
        _check_json(getattr(said, key), f"{where}: {key}")
    try:
        Redactor(said.redact, b"")
    except ConfigError as error:
        raise ConfigError(f"{where}: redact: {error}") from None
    try:
        sized(said.profile, said.model)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None
    _check_grants(said.grants, where)
    _check_strategy(said.strategy, where)
    imports = [absolute_import(entry, home) for entry in said.tools if ":" in entry]
    tools = [load_tool(absolute_import(entry, home), f"{where}: tools") if ":" in entry else entry for entry in said.tools]
    meta = {**said.meta, "agent_file": str(file.resolve())}
    if imports:
        meta["tool_imports"] = imports
    if said.skills:
        meta["skills"] = [str((home / place).resolve()) for place in said.skills]
        tools.append(load_skills(meta["skills"], where))
    if said.workspace is not None:
        meta["workspace"] = str((home / said.workspace).resolve())
    if said.sandbox is not None:
        meta["sandbox"] = said.sandbox
    same = {
        f: getattr(said, f)
        for f in AgentFile.__struct_fields__
        if f not in ("tools", "skills", "rules", "workspace", "sandbox", "mcp", "meta")
    }
    mcp = take_servers(said.mcp, where, home)
    same["policy"] = policy_in_file(said.policy, _shown_path(file))
    check_guards(said.guards, where, named=Names("guard", GUARDS).get)
    rules = _rules(said.rules, home, where)
    try:
        agent = Agent(**same, tools=tools, rules=rules, mcp=mcp, meta=meta)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None
    _check_called_tools(agent, where)
    return agent


def _rules(said: str | list[dict[str, Any]], home: Path, where: str) -> list[dict[str, Any]]:
    from detent.planners.rule_files import build_rules, load_rules

    if not said:
        return []
    if isinstance(said, str):
        return load_rules(_shown_path(home / said))
    _check_json(said, f"{where}: rules")
    build_rules(said, source=f"{where}: rules")
    return said


def _check_grants(grants: Iterable[dict[str, Any]], where: str) -> None:
    from detent.policies.grants import read_grant

    for index, said in enumerate(grants):
        _check_json(said, f"{where}: grants[{index}]")
        try:
            read_grant(said)
        except ConfigError as error:
            raise ConfigError(f"{where}: grants[{index}]: {error}") from None


def _check_strategy(name: str, where: str) -> None:
    """Raise `ConfigError` for a strategy that is nearly one of those known here; the engine that runs the agent may know others."""
    from detent.strategies import BUILT_IN

    known = Names("strategy", BUILT_IN)
    if name not in BUILT_IN and name not in known and (near := difflib.get_close_matches(name, known.names(), n=1)):
        raise ConfigError(f"{where}: strategy: unknown strategy {name!r}; did you mean {near[0]!r}?")


def _check_called_tools(agent: Agent, where: str) -> None:
    """Raise `ConfigError` when a rule calls a tool that the agent does not list: that call could only fail."""
    listed = agent.tool_names()
    for rule in agent.rules:
        call = rule.get("call")
        name = cast("dict[str, Any]", call).get("tool") if isinstance(call, dict) else None
        every = [entry[:-1] for entry in listed if entry.endswith("__*")]  # `files__*` lists whatever that server offers
        if isinstance(name, str) and "${" not in name and name not in listed and not name.startswith(tuple(every)):
            near = difflib.get_close_matches(name, listed, n=1)
            what = f"it lists {near[0]!r}; write the same name in both" if near else f"add it there (listed: {', '.join(listed) or 'none'})"
            raise ConfigError(f"{where}: tools: rule {rule.get('name')!r} calls {name!r}, which the agent does not list; {what}")


def read_toml(path: Path, what: str) -> dict[str, Any]:
    """Return what stands in a TOML file; raise `ConfigError` naming it."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"failed to read {what} {str(path)!r}: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"failed to parse {what} {str(path)!r}: byte {error.start} is not UTF-8 text") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"failed to parse {what} {str(path)!r}: not TOML: {error}") from None


def _located(config: Config, home: Path) -> Config:
    """Return the configuration with its relative paths seen from the working directory."""
    if home.resolve() == Path.cwd():
        return config
    replace = msgspec.structs.replace
    store, workspace = config.store, config.workspace
    if store.url is not None:
        store = replace(store, url=_located_url(store.url, home))
    if workspace.root is not None:
        workspace = replace(workspace, root=str(home / Path(workspace.root).expanduser()))
    if workspace.sandbox_readable:
        readable = tuple(str((home / Path(path).expanduser()).absolute()) for path in workspace.sandbox_readable)
        workspace = replace(workspace, sandbox_readable=readable)
    agents = config.agents and {name: str(home / file) for name, file in config.agents.items()}
    agent = config.agent if config.agent is None or config.agent in (agents or {}) else str(home / config.agent)
    changes: dict[str, Any] = {"store": store, "workspace": workspace, "agents": agents, "agent": agent}
    for key in ("planner", "policy"):
        value = getattr(config, key)
        changes[key] = absolute_import(value, home) if isinstance(value, str) else value
    if isinstance(config.policy, str) and config.policy.endswith(".toml"):
        changes["policy"] = str(home / Path(config.policy).expanduser())
    for key in ("tools", "observers"):
        values: tuple[str, ...] | None = getattr(config, key)
        changes[key] = values and tuple(absolute_import(value, home) for value in values)
    return replace(config, **changes)


def _located_url(url: str, home: Path) -> str:
    for prefix in ("sqlite:///", "file:"):
        rest = url.removeprefix(prefix)
        if rest != url and rest and not rest.startswith("/"):
            return f"{prefix}{home / rest}"
    return url


def _shown_path(path: Path) -> Path:
    """Return the path as seen from the working directory where it is below it: short, for messages."""
    try:
        return path.relative_to(Path.cwd())
    except ValueError:
        return path


# Tables -----------------------------------------------------------------------------------------------------------------------


def take(table: Mapping[str, Any], kind: type[T], where: str, prefix: str = "") -> T:
    """Return `table` as a `kind`; raise `ConfigError` for an unknown key (naming the nearest) and for a value of another type."""
    fields: dict[str, Any] = {f.name: f.type for f in msgspec.structs.fields(kind)}
    values: dict[str, Any] = {}
    for key, value in table.items():
        if key not in fields:
            raise ConfigError(f"{where}: {prefix}{key}: unknown key; {_nearest(key, fields)}")
        wanted = fields[key]
        if _is_part(wanted):
            if not isinstance(value, dict):
                raise ConfigError(f"{where}: {prefix}{key}: expected a table, found {_found(value)}")
            values[key] = take(cast("dict[str, Any]", value), wanted, where, f"{prefix}{key}.")
            continue
        try:
            values[key] = msgspec.convert(value, wanted)
        except msgspec.ValidationError:
            raise ConfigError(f"{where}: {prefix}{key}: expected {_expected(wanted)}, found {_found(value)}") from None
    return kind(**values)


def _is_part(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, msgspec.Struct)


def _nearest(name: str, known: Iterable[str]) -> str:
    names = sorted(known)
    near = difflib.get_close_matches(name, names, n=1)
    return f"did you mean {near[0]!r}?" if near else f"known: {', '.join(names) or 'none'}"


def _expected(kind: Any) -> str:
    origin = get_origin(kind)
    if origin in (Union, UnionType):
        return " or ".join(_expected(k) for k in get_args(kind) if k is not type(None))
    if origin is Literal:
        return "one of " + ", ".join(repr(value) for value in get_args(kind))
    if origin in (tuple, list):
        inner = get_args(kind)[0]
        return "a list of tables" if get_origin(inner) is dict else "a list of texts"
    if origin is dict:
        return {str: "a table of texts", int: "a table of whole numbers"}.get(get_args(kind)[1], "a table")
    return {str: "text", int: "a whole number", float: "a number", bool: "true or false"}.get(kind, str(kind))


def _found(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (dict, list)):
        return f"{'a table' if isinstance(value, dict) else 'a list'}: {str(cast(Any, value))[:60]}"
    return f"the text {value!r}" if isinstance(value, str) else f"{value!s}"


def _check_budget(budget: Budget, where: str) -> None:
    try:
        checked(budget, ceiling=sys.maxsize)
    except BudgetRefused as error:
        raise BudgetRefused(f"{where}: {error}") from None


def _check_json(value: Any, where: str) -> None:
    """Raise `ConfigError` naming the place of a value that JSON does not have: a date, inf, nan."""
    if isinstance(value, dict):
        for key, item in cast("dict[str, Any]", value).items():
            _check_json(item, f"{where}.{key}")
    elif isinstance(value, list):
        for index, item in enumerate(cast("list[Any]", value)):
            _check_json(item, f"{where}[{index}]")
    elif isinstance(value, float) and not math.isfinite(value):
        raise ConfigError(f"{where}: {value} is not JSON; give a finite number, or text in quotes")
    elif value is not None and not isinstance(value, (str, int, float, bool)):
        raise ConfigError(f"{where}: a {type(value).__name__} is not JSON; put it in quotes: {str(value)!r}")


# Environment ------------------------------------------------------------------------------------------------------------------

ENVIRONMENT: dict[str, tuple[str, ...]] = {
    "DETENT_STORE": ("store", "url"),
    "DETENT_WORKSPACE": ("workspace", "root"),
    "DETENT_SANDBOX": ("workspace", "sandbox"),
    "DETENT_AGENT": ("agent",),
    "DETENT_CEILING": ("limits", "ceiling"),
    "DETENT_MAX_CONCURRENT_RUNS": ("limits", "max_concurrent_runs"),
    "DETENT_MAX_CONCURRENT_CALLS": ("limits", "max_concurrent_calls"),
    "DETENT_TITLES": ("models", "titles"),
    "DETENT_VERBOSITY": ("output", "verbosity"),
    "DETENT_PROGRESS": ("output", "progress"),
    **{f"DETENT_{field.upper()}": ("budget", field) for field in FIELDS},
}
"""The environment variables that the command line reads, each with the key of `detent.toml` that it stands for."""
OTHERS = ("DETENT_CONFIG", "DETENT_DEBUG")
"""Read before there is a configuration: which file to read, and whether to show tracebacks."""


def config_from_environment(environment: Mapping[str, str]) -> Config:
    """Return what the `DETENT_*` variables say; an empty one says nothing. Raise `ConfigError` for a wrong value or a misspelt name."""
    table: dict[str, Any] = {}
    for name, text in environment.items():
        if not name.startswith("DETENT_") or not text or name in OTHERS:
            continue
        if name not in ENVIRONMENT:
            near = difflib.get_close_matches(name, [*ENVIRONMENT, *OTHERS], n=1, cutoff=0.85)
            if near:
                raise ConfigError(f"environment: {name}: unknown variable; did you mean {near[0]!r}?")
            continue
        *outer, key = ENVIRONMENT[name]
        part: dict[str, Any] = table.setdefault(outer[0], {}) if outer else table
        part[key] = parse_text(text, _field_type(outer, key), f"environment: {name}")
    config = take(table, Config, "environment")
    _check_budget(config.budget, "environment")
    return config


def _field_type(outer: list[str], key: str) -> Any:
    kind: Any = cast("Any", type(getattr(Config(), outer[0]))) if outer else Config
    return next(f.type for f in msgspec.structs.fields(kind) if f.name == key)


def parse_text(text: str, kind: Any, where: str) -> Any:
    """Return `text` as a value of type `kind`: text, number or truth value; raise `ConfigError` naming `where`."""
    kinds = [k for k in (get_args(kind) or (kind,)) if k is not type(None)]
    if str in kinds or any(get_origin(k) is Literal for k in kinds):
        return text
    if bool in kinds:
        value = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}.get(text.lower())
        if value is None:
            raise ConfigError(f"{where}: expected true or false, found {text!r}")
        return value
    try:
        return int(text) if int in kinds else float(text)
    except ValueError:
        raise ConfigError(f"{where}: expected {_expected(kind)}, found {text!r}") from None


def parse_budget(pairs: Iterable[str], where: str = "--budget") -> Budget:
    """Return the budget that `K=V` texts say: `max_iterations=20`, or without `max_`; `max_calls_of.TOOL=5`. Raise `ConfigError`, `BudgetRefused`."""
    types = {f.name: f.type for f in msgspec.structs.fields(Budget)}
    said: dict[str, Any] = {}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        of, dot, tool = key.strip().partition(".")
        if dot and tool and of.replace("-", "_") in ("max_calls_of", "calls_of"):
            said.setdefault("max_calls_of", {})[tool] = parse_text(text.strip(), int, f"{where} {key.strip()}")
            continue
        name = key.strip().replace("-", "_")
        name = name if name in types else f"max_{name}"
        if not equals or name not in types:
            raise ConfigError(f"{where}: {pair!r}: unknown bound; {_nearest(name, types)} Write it as max_tool_calls=20")
        said[name] = parse_text(text.strip(), types[name], f"{where} {name}")
    budget = Budget(**said)
    _check_budget(budget, where)
    return budget


# Import paths -----------------------------------------------------------------------------------------------------------------


def absolute_import(path: str, home: Path) -> str:
    """Return an import path that means the same from everywhere: "./file.py:attribute" becomes absolute, "module:attribute" stays."""
    module, _, attribute = path.rpartition(":")
    return f"{(home / module).resolve()}:{attribute}" if module.endswith(".py") else path


def load_object(path: str, where: str) -> Any:
    """Return what "module:attribute" or "/dir/file.py:attribute" names; raise `ConfigError` beginning with `where`."""
    name, _, attribute = path.rpartition(":")
    if not name or not attribute:
        raise ConfigError(f"{where}: {path!r} is no import path; write 'module:attribute' or './file.py:attribute'")
    try:
        module = _module_of_file(Path(name), where) if name.endswith(".py") else importlib.import_module(name)
    except ConfigError:
        raise
    except ModuleNotFoundError as error:
        raise ConfigError(f"{where}: {path!r}: {error}; install it, or write './file.py:{attribute}'") from error
    except Exception as error:  # foreign code: a module may raise anything while it is imported
        raise ConfigError(f"{where}: {path!r} cannot be imported: {type(error).__name__}: {error}") from error
    found: Any = module
    for part in attribute.split("."):
        if not hasattr(found, part):
            names = [n for n in dir(found) if not n.startswith("_")]
            raise ConfigError(f"{where}: {path!r}: there is no {part!r} in {name}; {_nearest(part, names)}")
        found = getattr(found, part)
    return found


def _module_of_file(path: Path, where: str) -> ModuleType:
    """Import a file once a process, under a name of its own."""
    path = path.resolve()
    name = f"detent_file_{path.stem}_{sha256(str(path).encode()).hexdigest()[:12]}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    if not path.is_file() or spec is None or spec.loader is None:
        raise ConfigError(f"{where}: there is no file {str(path)!r}")
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def load_tool(path: str, where: str) -> Any:
    """Return the tool that an import path names; raise `ConfigError` when it is none."""
    found = load_object(path, where)
    if all(hasattr(found, part) for part in ("spec", "check", "run", "settle")) and not isinstance(found, type):
        return found
    what = f"the function {found.__name__!r}" if hasattr(found, "__code__") else f"a {type(found).__name__}"
    raise ConfigError(f"{where}: {path!r} is {what}, not a tool; decorate it with @tool(side_effect=...)")


def load_skills(places: Sequence[str], where: str) -> Any:
    """Return the tool `activate_skill` for the skills in these folders; raise `ConfigError`."""
    from detent.tools.skills import skill_tool

    try:
        return skill_tool(*places)
    except ConfigError as error:
        raise ConfigError(f"{where}: skills: {error}") from None


def load_part(path: str, where: str) -> Any:
    """Return the object that an import path names; a class is called without arguments."""
    found = load_object(path, where)
    return found() if isinstance(found, type) else found
