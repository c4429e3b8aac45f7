"""Creates an engine's parts from a configuration, in the order of `_PARTS`, the store first.

An error names the part: "failed to create store: ...". Parts that the caller gives replace the created ones. `Planners` creates the planners of
agents when they are needed.
"""  # rows T7, T8

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from detent.config.engines import DEFAULTS, Config, WorkspaceConfig, is_code
from detent.config.groups import DRAIN_S, Bounds, ChildBounds, Models
from detent.config.imports import absolute_import, add_import_roots, load_object, load_part, load_tool
from detent.config.loading import load_agent, load_config, operators_config, path_of_agent, subagent_files
from detent.config.names import check_parts, entry_points, plugged
from detent.config.protocols import Protocols
from detent.config.remembering import MemorySettings
from detent.core.budget import CEILING
from detent.core.errors import ConfigError, UnknownName

if TYPE_CHECKING:
    from detent.config.trust import Trust


def engine_options(config: str | Path | Config | None, given: Mapping[str, Any], *, trust: bool = False) -> dict[str, Any]:
    """Return the keyword arguments of `Engine` from `config`, overridden by `given`. Raise `ConfigError`, which names the failed part.

    A file counts if its directory is trusted (`detent.config.trust`), or if the program allows it (`trust`).
    """
    if config is None:
        config = Config()
    elif not isinstance(config, Config):
        allowed = None if trust else need_trust(Path(config))
        config = load_config(config)
        if allowed is not None and "agents" not in given:
            agents = config.agents or {}
            for path in map(path_of_agent, agents.values()):
                for file in (path, *subagent_files(path, agents)):
                    allowed.need_agent(file)
    config = config.over(DEFAULTS)
    if config.tools or config.planner or config.observers or isinstance(config.policy, str) or config.agents or _names_code(config):
        add_import_roots(config.import_roots or ())
    made: dict[str, Any] = {}
    for part, make in _PARTS.items():
        if part == "agents" and part in given:
            continue
        try:
            made[part] = make(config)
        except Exception as error:  # foreign code: a plugin's class may raise anything
            said = str(error) if isinstance(error, ConfigError) else f"{type(error).__name__}: {error}"
            raise ConfigError(f"failed to create {part}: {said}") from error
    if "workspace" in given:
        made["workspace"] = []
    if "tools" in given:
        made["tools"] = list(given["tools"])
    made["tools"] = [*made.pop("workspace"), *made["tools"]]
    limits, models = config.limits, config.models
    made |= {
        "ceiling": limits.ceiling if limits.ceiling is not None else CEILING,
        "bounds": Bounds(
            budget=config.budget,
            max_concurrent_runs=limits.max_concurrent_runs,
            max_active_per_key=limits.max_active_per_key,
            drain_s=limits.drain_s if limits.drain_s is not None else DRAIN_S,
            goal_words_in_ids=config.goal_words_in_ids is not False,
            retention=config.retention,
            children=limits.children or ChildBounds(),
            max_versions=limits.max_versions,
        ),
        "models": Models(
            limits=models.limits,
            retries=models.retries,
            titles=bool(models.titles),
            embedder=models.embedder,
            transcriber=models.transcriber,
        ),
        "version": config.worker.version or "",
        "model_prices": models.prices,
        "mcp": {name: server for name, server in (config.mcp or {}).items() if not server.adds},
        "tenant_budgets": config.tenants or {},
        "redact": config.redact or (),
        "grants": config.grants or (),
    }
    said = {name: value for name, value in given.items() if name != "tools"}
    if isinstance(said.get("workspace"), (str, Path)):
        filed = config.workspace
        said["workspace"] = WorkspaceConfig(
            root=str(said["workspace"]), sandbox=filed.sandbox, protected=filed.protected, unprotected=filed.unprotected
        )
    return {**made, **said}


def _names_code(config: Config) -> bool:
    return any(is_code(url or "") for url in (config.store.url, config.memory.url, *(config.memory.stores or {}).values()))


def need_trust(file: Path) -> Trust:
    """Return the trust by which a program uses a configuration file: its directory is trusted, and the operator names its variables."""
    from detent.config.demands import config_demands
    from detent.config.trust import Trust

    demands, found = config_demands(file), Trust(environment=operators_config(file.parent).environment or ())
    if demands:
        found.need_config(file, demands)
    return found


def store_at(url: str, **options: Any) -> Any:
    """Return the store for `url`, not opened yet: a built-in store, a store from a file, or a store of a plug-in package for the scheme."""
    from detent.stores.urls import FORMS, open_store

    if is_code(url):
        return _own_store(url, options)
    scheme, colon, _ = url.partition(":")
    found = plugged("store", scheme) if colon and scheme not in (*FORMS, "postgres") else None
    return open_store(url, **options) if found is None else found(url, **options)


def open_memory(url: str, **options: Any) -> Any:
    """Return the memory for `url`, which opens itself on first use: a built-in one, one from a file, or one of a plug-in package for the scheme.

    Raise `ConfigError` for an unknown URL or option.
    """
    from detent.memories import urls

    if is_code(url):
        found = load_object(absolute_import(url, Path.cwd()), "memory")
        made = found(**options) if callable(found) else found
        check_parts(approver=None, ceiling=1, memory=made)
        return made
    scheme, colon, _ = url.partition(":")
    plugin = plugged("memory", scheme) if colon and scheme not in (*urls.FORMS, "postgres") else None
    return plugin(url, **options) if plugin is not None else urls.open_memory(url, postgres_memory=_postgres_memory, **options)


def _postgres_memory(url: str, *, connections: int = 4, busy_timeout_s: float = 10.0, **options: Any) -> Any:
    """Return a memory with connections as those of a store."""
    try:
        from detent.memories.postgres.memory import PostgresMemory
        from detent.stores.postgres.connections import Connections, target_of
    except ImportError as error:
        raise ConfigError(
            f"a postgresql:// memory needs psycopg, which is not installed ({error}); run: pip install 'detent[postgres]'"
        ) from error
    from detent.memories.urls import checked

    target = target_of(url)
    return PostgresMemory(
        Connections(target, most=connections, patience_s=busy_timeout_s), **checked(PostgresMemory, target.shown, options)
    )


def memory_opener(models: Models, protocols: Protocols) -> Callable[[str], Any]:
    """Return what opens the memories of an engine by their URLs. Those in databases search by meaning too, if the engine has an embedder."""

    def opened(url: str) -> Any:
        by_meaning = models.embedder is not None and url.startswith(("sqlite:", "postgres"))
        return open_memory(url, embedder=protocols.embedder()) if by_meaning else open_memory(url)

    return opened


def _memory(config: Config) -> MemorySettings | None:
    said = {name: value for name, value in msgspec.structs.asdict(config.memory).items() if value is not None}
    return MemorySettings(**said) if said else None


def _own_store(path: str, options: Mapping[str, Any]) -> Any:
    """Return the store that an import path names. A class or function is called without arguments."""
    if options:
        raise ConfigError(
            f"store {path!r}: {', '.join(options)}: a store from an import path takes its options in its own code; leave them out here"
        )
    found = load_object(absolute_import(path, Path.cwd()), "store")
    made = found() if callable(found) else found
    check_parts(approver=None, ceiling=1, store=made)
    return made


def _store(config: Config) -> Any:
    said = msgspec.structs.asdict(config.store)
    url, options = said.pop("url"), {name: value for name, value in said.items() if value is not None}
    if url is not None:
        return store_at(url, **options)
    from detent.config.own_store import own_store

    return own_store(**options)


def _workspace(config: Config) -> list[Any]:
    if config.workspace.root is None:
        return []
    return made_workspace(config.workspace.root, config.workspace)


def made_workspace(root: str, said: WorkspaceConfig, *, sandbox: str | None = None) -> list[Any]:
    """Return the workspace tools of `root` as configured. The stricter of `said` and the agent's own `sandbox` applies."""
    from detent.config.trust import govern_trusted
    from detent.tools.workspace.sandbox import Sandbox, SandboxLimits, stricter
    from detent.tools.workspace.tools import workspace_tools

    govern_trusted(root)
    bounds = {"memory_bytes": said.sandbox_memory_bytes, "processes": said.sandbox_processes}
    options = Sandbox(
        network=said.sandbox_network or False,
        allow_private=said.sandbox_allow_private or (),
        readable=said.sandbox_readable or (),
        limits=SandboxLimits(**{name: bound for name, bound in bounds.items() if bound is not None}),
    )
    wishes: list[Any] = [wish for wish in (said.sandbox, sandbox) if wish is not None]
    mode: Any = stricter(*wishes) if len(wishes) == 2 else wishes[0] if wishes else "auto"
    return list(
        workspace_tools(
            root,
            allow_delete=bool(said.allow_delete),
            protected=said.protected or (),
            unprotected=said.unprotected or (),
            sandbox_mode=mode,
            sandbox_options=options,
        )
    )


def _tools(config: Config) -> list[Any]:
    return [*_http(config), *(load_tool(path, "tools") for path in config.tools or ())]


def _http(config: Config) -> list[Any]:
    said = {name: value for name, value in msgspec.structs.asdict(config.http).items() if value is not None}
    if not said:
        return []
    from detent.tools.web.fetch import fetch_tool, http_request_tool

    allow, methods = said.pop("allow", ()), said.pop("methods", ())
    return [fetch_tool(allow, **said), *([http_request_tool(allow, methods=methods, **said)] if methods else [])]


def _planner(config: Config) -> Any:
    return _fitting("planner", _part(config.planner, "planner"), config.planner) if config.planner else None


def _part(name: str, kind: str) -> Any:
    """Return the part that an import path names, or a plug-in's part with this plain name. A class is called without arguments."""
    if ":" in name:
        return load_part(name, kind)
    found = plugged(kind, name)
    if found is None:
        raise UnknownName(kind, name, entry_points(kind))
    return found() if isinstance(found, type) else found


def _policy(config: Config) -> Any:
    if not config.policy:
        return None
    if isinstance(config.policy, str) and not config.policy.endswith(".toml"):
        if ":" not in config.policy and Path(config.policy).suffix and plugged("policy", config.policy) is None:
            raise ConfigError(f"policy {config.policy!r}: the name of a policy file ends in .toml")
        return _fitting("policy", _part(config.policy, "policy"), config.policy)
    from detent.policies.documents import DocumentPolicy, load_policy, policy_document

    if isinstance(config.policy, str):
        return load_policy(config.policy)
    return DocumentPolicy(policy_document(config.policy)).compile()


def _agents(config: Config) -> list[Any]:
    agents = config.agents or {}
    return [load_agent(path_of_agent(path), agents=agents) for path in agents.values()]


def _observers(config: Config) -> tuple[Any, ...]:
    return tuple(_fitting("observer", load_part(path, "observers"), path) for path in config.observers or ())


def _fitting(kind: str, part: Any, path: str) -> Any:
    """Return the part. Raise `ConfigError` if it lacks something that its seam needs (see `detent.extend`)."""
    try:
        check_parts(approver=None, ceiling=1, **{kind: part})
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None
    return part


def _secrets(config: Config) -> Any:
    from detent.capabilities.secrets import read_secrets

    return read_secrets(config.secrets or {})


def _worker_host(config: Config) -> Any:
    from detent.workers.taking import Patience

    told = {name: value for name, value in msgspec.structs.asdict(config.worker).items() if value is not None and name != "version"}
    name, served = told.pop("host", "in_process"), told.pop("restate")
    if name == "restate":
        from detent.workers.restate import RestateHost

        told.pop("poll_s", None)
        host: Any = RestateHost(**told, **{key: value for key, value in msgspec.structs.asdict(served).items() if value is not None})
    elif name == "in_process":
        from detent.workers.in_process import InProcessHost

        host = InProcessHost(**told)
    else:
        if (host := plugged("worker_host", name)) is None:
            raise UnknownName("worker_host", name, ["in_process", "restate", *entry_points("worker_host")])
        host = _fitting("worker_host", host() if isinstance(host, type) else host, name)
    if isinstance(host, Patience):
        host.concurrency = min(host.concurrency, config.limits.max_concurrent_runs or host.concurrency)
    return host


def _scheduler(config: Config) -> Any:
    most, most_of = config.limits.max_concurrent_calls, config.limits.max_concurrent_calls_of or {}
    if most is None and not most_of:
        return None
    from detent.tools.functions.bounded import Bounded

    for name, bound in (("max_concurrent_calls", most), *((f"max_concurrent_calls_of.{tool}", n) for tool, n in most_of.items())):
        if bound is not None and bound < 1:
            raise ConfigError(f"limits.{name} is {bound}; give at least 1, or leave it out")
    return Bounded(most, per_tool=most_of)


_PARTS: dict[str, Callable[[Config], Any]] = {
    "store": _store,
    "workspace": _workspace,
    "tools": _tools,
    "memory": _memory,
    "planner": _planner,
    "policy": _policy,
    "observers": _observers,
    "agents": _agents,
    "secrets": _secrets,
    "scheduler": _scheduler,
    "worker_host": _worker_host,
}
