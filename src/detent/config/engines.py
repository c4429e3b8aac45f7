"""An engine as data: the tables of `detent.toml`. Nothing here reads a file or makes a part."""

from __future__ import annotations

from typing import Any, Literal, TypeVar

import msgspec

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
    """Whether a store is named by the import path of a file, `./file.py:attribute`, in place of a URL."""
    return ".py:" in url and not url.startswith(("sqlite:", "file:", "postgres"))


class StoreConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Where runs are kept; the fields besides `url` are options of the stores that have them."""

    url: str | None = None
    """Where runs are kept: `sqlite:///PATH` (four slashes for an absolute path), `postgresql://HOST/DATABASE`, `file:DIR`, `ram:`;
    without it `runs.db` in the state directory (`detent where`). Or the import path of a store of your own, `./file.py:attribute`.
    """
    busy_timeout_s: Seconds[float | None] = usually(None)
    """How long to wait for a locked file or database, in seconds; default 30."""
    refused_s: Seconds[float | None] = usually(None)
    """How long a store of PostgreSQL that is opened tries an address where no server listens, in seconds; default 2 for commands,
    `busy_timeout_s` for programs.
    """
    lease_s: Seconds[float | None] = usually(None)
    """After how many seconds without a sign of life a worker loses its runs; default 30."""
    stuck_s: Seconds[float | None] = usually(None)
    """How long an event loop may stand still before its runs are not kept any more, in seconds; default 300."""

    __post_init__ = check_fields


class WorkspaceConfig(msgspec.Struct, metaclass=Explained, frozen=True, kw_only=True):
    """The directory whose workspace tools agents may list, and what its programs may do."""

    root: str | None = None
    """The directory that workspace tools are confined to; on the command line the current one without it."""
    allow_delete: bool | None = None
    """Lets `apply_patch` remove and move files, and makes it destructive."""
    protected: tuple[str, ...] | None = None
    """Further paths that tools do not write, as patterns: `infra/**`; those of all files are added up."""
    unprotected: tuple[str, ...] | None = None
    """Paths that govern and may be written all the same, as patterns: `tools/*.py`; each write asks. Only the operator may say it."""
    sandbox: Literal["auto", "require", "off"] | None = None
    """Whether `exec` runs programs in a sandbox: where one can be made (the default), not at all without one, never."""
    sandbox_network: bool | tuple[str, ...] | None = None
    """Leaves sandboxed programs this machine's network, or these hosts alone, through a proxy: `["pypi.org", "*.example.com", "host:8443"]`."""
    sandbox_allow_private: tuple[str, ...] | None = None
    """Ranges of addresses that are not public and that those hosts may have all the same, such as `10.1.2.3/32`."""
    sandbox_readable: tuple[str, ...] | None = None
    """Further paths that sandboxed programs may read."""
    sandbox_memory_bytes: int | None = None
    """Memory of a sandboxed program with all that it starts; default 1 GiB."""
    sandbox_processes: int | None = None
    """Processes of a sandboxed program; default 128."""

    __post_init__ = check_fields


class HttpConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Where agents that list `fetch` or `http_request` may go."""

    allow: tuple[str, ...] | None = None
    """Where `fetch` and `http_request` may go; nowhere without any."""
    allow_private: tuple[str, ...] | None = None
    """Ranges of addresses that are not public and may be used all the same, such as `10.1.2.3/32`."""
    methods: tuple[Literal["POST", "PUT", "PATCH", "DELETE"], ...] | None = None
    """Makes the tool `http_request`, with these methods."""
    max_bytes: int | None = None
    """The largest answer, after decompression; default 5,000,000."""
    timeout_s: Seconds[float | None] = usually(None)
    """For one call with its redirects, in seconds; default 30."""

    __post_init__ = check_fields


class LimitsConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What an engine does at most."""

    ceiling: int | None = None
    """The most iterations that any budget may ask for."""
    max_concurrent_runs: int | None = None
    """How many runs an engine advances at once; no limit without it."""
    max_concurrent_calls: int | None = None
    """How many calls of tools run at once, over all runs; no limit without it."""
    max_concurrent_calls_of: dict[str, int] | None = None
    """The same of single tools: `[limits.max_concurrent_calls_of]`, tool = number."""
    drain_s: Seconds[float | None] = usually(None)
    """How long calls with an effect may take to finish once Detent is stopped (Ctrl-C, SIGTERM), in seconds; default 25. 0 cuts them off at once."""

    __post_init__ = check_fields


class ModelsConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What holds for all model calls of an engine: limits, prices, retries."""

    limits: dict[str, ModelLimits] | None = None
    """`[models.limits.PROVIDER]`: `concurrent`, `requests_per_minute`, `tokens_per_minute` of all runs together."""
    prices: dict[str, ModelPrice] | None = None
    """`[models.prices."PROVIDER:MODEL"]`: `input_usd`, `output_usd`, `cached_usd` for a million tokens, `minute_usd` of audio; they go before the
    price list.
    """
    retries: ModelRetries | None = None
    """How failed model calls are tried again: `retries`, `base_s`, `max_s`, `retry_after_s`, `total_wait_s`."""
    titles: bool | None = None
    """Whether the agent's `small_model` is asked once what a run is called in lists."""
    embedder: str | EmbedderSettings | None = None
    """Which model embeds texts: `"openai:text-embedding-3-small"`, or a table `[models.embedder]` with `model`, `base_url`, `api_key_env`, `dimensions`,
    `query_prefix`, `document_prefix`, `batch`, `timeout_s`. With it the tool `find` searches by meaning.
    """
    transcriber: str | TranscriberSettings | None = None
    """Which model writes speech down: `"openai:whisper-1"`, or a table `[models.transcriber]` with `model`, `base_url`, `api_key_env`, `endpoint`,
    `timeout_s`. With it agents may list the tool `transcribe`.
    """

    __post_init__ = check_fields


class WorkerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """How `detent worker` and `Engine.work` advance runs."""

    concurrency: int | None = None
    """How many runs a worker advances at once, at most `limits.max_concurrent_runs`; default 4."""
    max_attempts: int | None = None
    """How often a run is taken up that fails or gets no further, before it is given up; default 5."""
    retry_pause_s: Seconds[float | None] = usually(None)
    """Before the second attempt, in seconds; each later pause is twice as long, at most 300; default 1."""
    poll_s: Seconds[float | None] = usually(None)
    """How often a worker looks for what is due, in seconds; default 0.5."""

    __post_init__ = check_fields


class OutputConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What the command line shows of a run in progress."""

    verbosity: int | None = None
    """What is shown of a run in progress: 0 a line a call, 1 input and output too, 2 every record."""
    progress: bool | None = None
    """Whether anything is shown while a run is in progress."""

    __post_init__ = check_fields


PartT = TypeVar("PartT", bound=msgspec.Struct)

PARTS = (StoreConfig, WorkspaceConfig, HttpConfig, LimitsConfig, ModelsConfig, WorkerConfig, Retention, OutputConfig, Budget)


def over(part: PartT, base: PartT) -> PartT:
    """Return `part` with every field that is None taken from `base`; parts inside are merged in the same way. 0 and false are kept."""
    merged: dict[str, Any] = {}
    for name in part.__struct_fields__:
        mine, theirs = getattr(part, name), getattr(base, name)
        if name == "protected":  # whoever protects something, it is protected
            merged[name] = tuple(dict.fromkeys((*(theirs or ()), *(mine or ())))) or None
        else:
            merged[name] = over(mine, theirs) if isinstance(mine, PARTS) else theirs if mine is None else mine
    return type(part)(**merged)


def servers_over(servers: dict[str, McpServer], base: dict[str, McpServer]) -> dict[str, McpServer]:
    """Return all servers of both: what `servers` says of one that `base` has too goes before it, or is added to it."""
    return {**base, **{name: server.over(base[name]) if name in base else server for name, server in servers.items()}}


class Config(msgspec.Struct, frozen=True, kw_only=True):
    """What an engine is made of, as data. None means "not said here"; an explicit 0 or false is kept (`over`).

    `planner` and `policy` may also be the name of a plug-in's (entry points `detent.planners`, `detent.policies`).
    """

    store: StoreConfig = StoreConfig()
    """Where runs are kept."""
    workspace: WorkspaceConfig = WorkspaceConfig()
    """The directory of the workspace tools, and what its programs may do."""
    http: HttpConfig = HttpConfig()
    """Where `fetch` and `http_request` may go."""
    limits: LimitsConfig = LimitsConfig()
    """What an engine does at most."""
    models: ModelsConfig = ModelsConfig()
    """Limits, prices and retries of model calls."""
    budget: Budget = Budget()
    """Limits of every run."""
    worker: WorkerConfig = WorkerConfig()
    """How a worker advances runs."""
    retention: Retention = Retention()
    """How long runs are kept; only in the operator's file."""
    output: OutputConfig = OutputConfig()
    """What the command line shows of a run in progress."""
    agent: str | None = None
    """The agent of `detent run`: a file, or a name in `[agents]`."""
    agents: dict[str, str] | None = None
    """Names of agent files: `tidy = "agents/tidy.toml"`."""
    import_roots: tuple[str, ...] | None = None
    """Directories that modules may be imported from, behind all that is installed: `["src"]` for tool files that import others."""
    tools: tuple[str, ...] | None = None
    """Tools for every agent, as import paths: `module:attribute` or `./file.py:attribute`."""
    planner: str | None = None
    """Import path of a planner, for agents without rules; a class is called without arguments."""
    policy: str | dict[str, Any] | None = None
    """Path of a policy file or import path of a policy; or its rules, as `[[policy]]`; without it the tiers."""
    observers: tuple[str, ...] | None = None
    """Import paths of observers."""
    mcp: dict[str, McpServer] | None = None
    """MCP servers, each a table `[mcp.NAME]`."""
    redact: tuple[str, ...] | None = None
    """Regular expressions of what stays out of every log."""
    grants: tuple[dict[str, Any], ...] | None = None
    """Which arguments of a tool may take their values from which tool's output, for every agent; only in the operator's file."""
    secrets: dict[str, str] | None = None
    """Where secrets are kept: name = `env:VARIABLE` or `file:PATH`."""
    goal_words_in_ids: bool | None = None
    """Whether ids that are made for runs hold words of the goal (the default); they stay when a run is erased. Say false where goals may hold
    personal data, or tenants share a store.
    """
    environment: tuple[str, ...] | None = None
    """Only in the operator's file: the environment variables that agent files and a project's `detent.toml` may read."""
    tenants: dict[str, TenantBudget] | None = None
    """By tenant, what all its runs may use in a window: `window` ("day" or "month"), `max_runs`, `max_model_calls`, `max_tool_calls`,
    `max_total_tokens`, `max_cost_usd`; `"*"` for each that is not named.
    """

    __post_init__ = check_fields

    def over(self, base: Config) -> Config:
        """Return this configuration with everything that it does not say taken from `base`, part by part and field by field."""
        merged = over(self, base)
        return merged if not (self.mcp and base.mcp) else msgspec.structs.replace(merged, mcp=servers_over(self.mcp, base.mcp))


def allowed_servers(servers: dict[str, McpServer], config: Config) -> dict[str, McpServer]:
    """Return the servers of an agent file with what the operator allows those of their names."""
    said = config.mcp or {}
    return {name: said[name].allowing(server) if name in said else server for name, server in servers.items()}


OPERATORS_KEYS: tuple[str, ...] = ("environment", "grants", "retention", "workspace.unprotected")
"""The keys, or keys of a table, that only the operator's file may have: what tools can write must not say them."""


DEFAULTS = Config(
    limits=LimitsConfig(ceiling=CEILING),
    output=OutputConfig(verbosity=0, progress=True),
)
"""What holds without any file, variable or option; bounds are those of `core.budget.DEFAULT`, and the store is in the state directory."""
