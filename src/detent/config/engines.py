"""An engine as data: the tables of `detent.toml`. This module reads no file and creates no part."""

from __future__ import annotations

from typing import Any, Literal, TypeVar

import msgspec

from detent.config.groups import ChildBounds
from detent.config.protocols import EmbedderSettings, TranscriberSettings
from detent.config.retention import Retention
from detent.core.budget import CEILING, Budget
from detent.core.durations import Seconds, usually
from detent.core.errors import Explained
from detent.metering.pricing import ModelPrice
from detent.metering.provider_limits import ModelLimits, ModelRetries
from detent.metering.tenants import TenantBudget
from detent.ports.options import check_fields
from detent.tools.mcp.settings import McpServer


def is_code(url: str) -> bool:
    """Whether a store is named by the import path of a file, `./file.py:attribute`, instead of a URL."""
    return ".py:" in url and not url.startswith(("sqlite:", "file:", "postgres"))


class StoreConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Where runs are kept. The other fields are options of the stores that support them."""

    url: str | None = None
    """Where runs are kept: `sqlite:///PATH` (four slashes for an absolute path), `postgresql://HOST/DATABASE`, `file:DIR`, `ram:`;
    default: `runs.db` in the state directory (`detent where`). Or the import path of your own store, `./file.py:attribute`.
    """
    busy_timeout_s: Seconds[float | None] = usually(None)
    """How long to wait for a locked file or database, in seconds; default 30."""
    refused_s: Seconds[float | None] = usually(None)
    """How long opening a PostgreSQL store keeps trying while no server listens at the address, in seconds; default 2 for commands,
    `busy_timeout_s` for programs.
    """
    lease_s: Seconds[float | None] = usually(None)
    """A worker that shows no sign of life for this many seconds loses its runs; default 30."""
    stuck_s: Seconds[float | None] = usually(None)
    """How long an event loop may be blocked before it loses its runs, in seconds; default 300."""

    __post_init__ = check_fields


class WorkspaceConfig(msgspec.Struct, metaclass=Explained, frozen=True, kw_only=True):
    """The directory of the workspace tools that agents may list, and what its programs may do."""

    root: str | None = None
    """The directory that confines the workspace tools; on the command line the default is the current directory."""
    allow_delete: bool | None = None
    """Allow `apply_patch` to remove and move files. It is then destructive."""
    protected: tuple[str, ...] | None = None
    """More paths that tools must not write, as patterns: `infra/**`. The patterns of all files are combined."""
    unprotected: tuple[str, ...] | None = None
    """Governing paths that tools may write anyway, as patterns: `tools/*.py`. Each write asks a person. Only the operator may set this."""
    sandbox: Literal["auto", "require", "off"] | None = None
    """Whether `exec` runs programs in a sandbox: `auto` (default) if the system allows one, `require` always, `off` never."""
    sandbox_network: bool | tuple[str, ...] | None = None
    """Give sandboxed programs this machine's network, or only these hosts, through a proxy: `["pypi.org", "*.example.com", "host:8443"]`."""
    sandbox_allow_private: tuple[str, ...] | None = None
    """Private address ranges that those hosts may resolve to, such as `10.1.2.3/32`."""
    sandbox_readable: tuple[str, ...] | None = None
    """More paths that sandboxed programs may read."""
    sandbox_memory_bytes: int | None = None
    """Memory limit of a sandboxed program and all its processes; default 1 GiB."""
    sandbox_processes: int | None = None
    """Maximum number of processes of a sandboxed program; default 128."""

    __post_init__ = check_fields


class HttpConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The hosts that agents with `fetch` or `http_request` may reach."""

    allow: tuple[str, ...] | None = None
    """The hosts that `fetch` and `http_request` may reach; default: none."""
    allow_private: tuple[str, ...] | None = None
    """Private address ranges that are allowed, such as `10.1.2.3/32`."""
    methods: tuple[Literal["POST", "PUT", "PATCH", "DELETE"], ...] | None = None
    """Create the tool `http_request`, with these methods."""
    max_bytes: int | None = None
    """Maximum size of an answer after decompression, in bytes; default 5,000,000."""
    timeout_s: Seconds[float | None] = usually(None)
    """Time limit of one call including redirects, in seconds; default 30."""

    __post_init__ = check_fields


class LimitsConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of an engine."""

    ceiling: int | None = None
    """The maximum number of iterations that any budget may allow."""
    max_concurrent_runs: int | None = None
    """How many runs an engine advances at once; default: no limit."""
    max_active_per_key: int | None = None
    """How many runs of one key (the tenant, or `fair_key` of `submit`) all workers of the store advance at once; default: no limit."""
    children: ChildBounds | None = None
    """How large teams may become, `[limits.children]`: `depth` (levels below the root), `per_run` (children a run may start), `at_once` (how many of
    them advance at the same time); default 8, 64, 8.
    """
    max_versions: int | None = None
    """On how many versions of the code there may be unfinished runs at once: a worker with one more does not start, and one more is neither rolled out
    nor submitted; default: no limit.
    """
    max_concurrent_calls: int | None = None
    """How many tool calls run at once, over all runs and all processes of the store; default: no limit."""
    max_concurrent_calls_of: dict[str, int] | None = None
    """The same limit for single tools: `[limits.max_concurrent_calls_of]`, tool = number."""
    drain_s: Seconds[float | None] = usually(None)
    """How long calls with an effect may take to finish when Detent stops (Ctrl-C, SIGTERM), in seconds; default 25. 0 cancels them at once."""

    __post_init__ = check_fields


class ModelsConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Settings for all model calls of an engine: limits, prices, retries."""

    limits: dict[str, ModelLimits] | None = None
    """`[models.limits.PROVIDER]`: `concurrent`, `requests_per_minute`, `tokens_per_minute`, for all runs of all processes of the store together."""
    prices: dict[str, ModelPrice] | None = None
    """`[models.prices."PROVIDER:MODEL"]`: `input_usd`, `output_usd`, `cached_usd` per million tokens, `minute_usd` for audio. They override the
    price list.
    """
    retries: ModelRetries | None = None
    """How failed model calls are retried: `retries`, `base_s`, `max_s`, `retry_after_s`, `total_wait_s`."""
    titles: bool | None = None
    """Whether one call to the agent's `small_model` gives each run a title for lists."""
    embedder: str | EmbedderSettings | None = None
    """The model that embeds texts: `"openai:text-embedding-3-small"`, or a table `[models.embedder]` with `model`, `base_url`, `api_key_env`, `dimensions`,
    `query_prefix`, `document_prefix`, `batch`, `timeout_s`. With it the tool `find` searches by meaning.
    """
    transcriber: str | TranscriberSettings | None = None
    """The model that transcribes speech: `"openai:whisper-1"`, or a table `[models.transcriber]` with `model`, `base_url`, `api_key_env`, `endpoint`,
    `timeout_s`. With it agents may list the tool `transcribe`.
    """

    __post_init__ = check_fields


class RestateConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Where a Restate server is, and where it finds workers: `[worker.restate]`."""

    ingress: str | None = None
    """Where runs are passed to Restate; default http://127.0.0.1:8080."""
    admin: str | None = None
    """Its admin API, where workers register and search runs without a tick; default http://127.0.0.1:9070."""
    bind: str | None = None
    """Where this worker listens; default 127.0.0.1:9080. Workers of one machine may share it."""
    url: str | None = None
    """Where Restate reaches the workers, if that is not `bind`, such as the URL of a load balancer."""
    service: str | None = None
    """The name of the virtual object; default "detent". Give each store its own, and its own `bind`."""
    identity_keys: tuple[str, ...] | None = None
    """The public keys of the Restate servers that may call workers (`publickeyv1_...`); default: whoever reaches `bind`."""
    tls_certificate: str | None = None
    """A file with the certificate of this worker, for https."""
    tls_key: str | None = None
    """The file with its key."""
    tick_s: Seconds[float | None] = usually(None)
    """How long one tick lasts at most, in seconds; default 30. A run that takes longer continues in its worker."""
    sweep_s: Seconds[float | None] = usually(None)
    """How often a worker searches runs without a tick, in seconds; default 10."""

    __post_init__ = check_fields


class WorkerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """How `detent worker` and `Engine.work` advance runs."""

    host: str | None = None
    """Who says which worker advances which run: `in_process` (default), where workers ask the store, `restate`, where a Restate server pushes runs to
    them, or the name of a plug-in (entry points `detent.worker_hosts`).
    """
    version: str | None = None
    """The version of the code here, such as a release or a commit: workers take only runs that need it, or none; default: none."""
    restate: RestateConfig = RestateConfig()
    """Options of the host `restate`: `[worker.restate]`."""
    concurrency: int | None = None
    """How many runs a worker advances at once, at most `limits.max_concurrent_runs`; default 4."""
    max_attempts: int | None = None
    """How many attempts a run gets that fails or makes no progress, before it is given up; default 5."""
    retry_pause_s: Seconds[float | None] = usually(None)
    """The pause before the second attempt, in seconds; each later pause is twice as long, at most 300; default 1."""
    poll_s: Seconds[float | None] = usually(None)
    """How often a worker checks for runs of dead workers while other workers have some, in seconds; default 0.5. An idle worker checks ten times less
    often, and is woken by what is submitted, answered or due.
    """

    __post_init__ = check_fields


class MemoryConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What outlives runs: `[memory]`. Agents use it with a table `memory` of their own."""

    url: str | None = None
    """Where agents keep what they remember: `sqlite:///PATH`, `postgresql://HOST/DATABASE`, `file:DIR`, `ram:`, or the import path of your own memory."""
    stores: dict[str, str] | None = None
    """More memories by name, as URLs: `[memory.stores]`, name = URL. An agent names one with `use`."""
    policies: dict[str, Literal["read_only", "proposal_only", "human_approved", "agent_write"]] | None = None
    """What agents may write, by scope: `[memory.policies]`, `"acme/shared"` = `"proposal_only"`. It holds for all scopes below. The strictest counts.
    Only in the operator's file.
    """
    admit: tuple[dict[str, Any], ...] | None = None
    """Which sources may enter a memory: `{ source = "web_fetch*", admit = false }`; for each source the first match counts. Only in the operator's file."""
    max_bytes: int | None = None
    """How large an item may be; default 8,000 bytes."""

    __post_init__ = check_fields


class OutputConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What the command line shows of a run in progress."""

    verbosity: int | None = None
    """How much is shown of a run in progress: 0 one line per call, 1 input and output too, 2 every record."""
    progress: bool | None = None
    """Whether anything is shown while a run is in progress."""

    __post_init__ = check_fields


PartT = TypeVar("PartT", bound=msgspec.Struct)

PARTS = (
    StoreConfig,
    WorkspaceConfig,
    HttpConfig,
    LimitsConfig,
    ModelsConfig,
    WorkerConfig,
    RestateConfig,
    MemoryConfig,
    Retention,
    OutputConfig,
    Budget,
)


def over(part: PartT, base: PartT) -> PartT:
    """Return `part` with its None fields filled from `base`. Nested parts are merged the same way. 0 and false are kept."""
    merged: dict[str, Any] = {}
    for name in part.__struct_fields__:
        mine, theirs = getattr(part, name), getattr(base, name)
        if name == "protected":  # a path is protected if either side protects it
            merged[name] = tuple(dict.fromkeys((*(theirs or ()), *(mine or ())))) or None
        else:
            merged[name] = over(mine, theirs) if isinstance(mine, PARTS) else theirs if mine is None else mine
    return type(part)(**merged)


def servers_over(servers: dict[str, McpServer], base: dict[str, McpServer]) -> dict[str, McpServer]:
    """Return the servers of both. If both have a server, the entry in `servers` overrides the one in `base` or is added to it."""
    return {**base, **{name: server.over(base[name]) if name in base else server for name, server in servers.items()}}


class Config(msgspec.Struct, frozen=True, kw_only=True):
    """The configuration of an engine as data. None means "not set here"; an explicit 0 or false is kept (`over`).

    `planner` and `policy` may also be the name of a plug-in (entry points `detent.planners`, `detent.policies`).
    """

    store: StoreConfig = StoreConfig()
    """Where runs are kept."""
    workspace: WorkspaceConfig = WorkspaceConfig()
    """The directory of the workspace tools, and the rights of its programs."""
    http: HttpConfig = HttpConfig()
    """The hosts that `fetch` and `http_request` may reach."""
    limits: LimitsConfig = LimitsConfig()
    """Limits of an engine."""
    models: ModelsConfig = ModelsConfig()
    """Limits, prices and retries of model calls."""
    budget: Budget = Budget()
    """Limits of every run."""
    memory: MemoryConfig = MemoryConfig()
    """What outlives runs."""
    worker: WorkerConfig = WorkerConfig()
    """How a worker advances runs."""
    retention: Retention = Retention()
    """How long runs are kept; only in the operator's file."""
    output: OutputConfig = OutputConfig()
    """What the command line shows of a run in progress."""
    agent: str | None = None
    """The agent of `detent run`: a file, or a name in `[agents]`."""
    agents: dict[str, str] | None = None
    """Agents by name: a table of agent files (`tidy = "agents/tidy.toml"`), a folder of them (`agents = "agents"`), or `[agents.NAME]` with the keys
    of an agent file.
    """
    import_roots: tuple[str, ...] | None = None
    """Directories to import modules from, after all installed packages: `["src"]` for tool files that import others."""
    tools: tuple[str, ...] | None = None
    """Tools for every agent, as import paths: `module:attribute` or `./file.py:attribute`."""
    planner: str | None = None
    """Import path of a planner for agents without rules. A class is called without arguments."""
    policy: str | dict[str, Any] | None = None
    """Path of a policy file, import path of a policy, or its rules as `[[policy]]`; default: the tiers."""
    observers: tuple[str, ...] | None = None
    """Import paths of observers."""
    mcp: dict[str, McpServer] | None = None
    """MCP servers; one table `[mcp.NAME]` for each."""
    redact: tuple[str, ...] | None = None
    """Regular expressions for text that must not appear in any log."""
    grants: tuple[dict[str, Any], ...] | None = None
    """Which arguments of a tool may use values from which tool's output, for every agent. Only in the operator's file."""
    secrets: dict[str, str] | None = None
    """Where secrets are kept: name = `env:VARIABLE` or `file:PATH`."""
    goal_words_in_ids: bool | None = None
    """Whether generated run ids contain words of the goal; default true. The ids stay when a run is erased. Set false if goals may contain
    personal data or if tenants share a store.
    """
    environment: tuple[str, ...] | None = None
    """The environment variables that agent files and a project's `detent.toml` may read. Only in the operator's file."""
    tenants: dict[str, TenantBudget] | None = None
    """For each tenant, what all its runs together may use in a window: `window` ("day" or "month"), `max_runs`, `max_model_calls`, `max_tool_calls`,
    `max_total_tokens`, `max_cost_usd`; `"*"` for each tenant that is not named.
    """

    __post_init__ = check_fields

    def over(self, base: Config) -> Config:
        """Return this configuration with unset values filled from `base`, part by part and field by field."""
        merged = over(self, base)
        return merged if not (self.mcp and base.mcp) else msgspec.structs.replace(merged, mcp=servers_over(self.mcp, base.mcp))


def allowed_servers(servers: dict[str, McpServer], config: Config) -> dict[str, McpServer]:
    """Return the servers of an agent file, with the permissions that the operator gives to servers of the same name."""
    said = config.mcp or {}
    return {name: said[name].allowing(server) if name in said else server for name, server in servers.items()}


OPERATORS_KEYS: tuple[str, ...] = ("environment", "grants", "memory.admit", "memory.policies", "retention", "workspace.unprotected")
"""The keys, or keys of a table, that only the operator's file may have. A file that tools can write must not set them."""


DEFAULTS = Config(
    limits=LimitsConfig(ceiling=CEILING),
    output=OutputConfig(verbosity=0, progress=True),
)
"""The defaults without any file, variable or option. The budget is `core.budget.DEFAULT`, and the store is in the state directory."""
