"""Agents and engines as data: what a program or a file says, with defaults and merge.

Nothing here reads a file or makes a part: `loading` does the first, `assembly` the second.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, TypeVar

import msgspec

from detent.config.profile import sized
from detent.core.agent import AgentSpec
from detent.core.budget import CEILING, Budget
from detent.core.errors import ConfigError
from detent.metering.model_limits import ModelLimits, ModelRetries
from detent.metering.pricing import ModelPrice
from detent.metering.tenants import TenantBudget
from detent.tools.mcp.settings import McpServer


class Agent(msgspec.Struct, frozen=True, kw_only=True):
    """Who works on a goal. `tools` are names, or tools, which are then registered with the engine that runs the agent.

    Only the listed tools are offered. `model` is "provider:name", `small_model` one for titles, critiques and classifications,
    `model_settings` how they are asked (`planners.settings.ModelSettings`), `planner` "on-device" that they are raw-text models of a server
    of one's own (`planners.raw_text`); `actions` are the control actions that a model may take: `ask_user`, `stop`, `abstain`, `push_goal`
    (with `complete_goal`), `schedule`. `strategy` says when and how often the kernel runs (`detent.strategies`), `strategy_options` are its
    options. `rules` (entries of a rule file) make the agent plan without a model. `wrap_up` grants one turn without tools to answer when a
    bound of work is reached. `mcp` are MCP servers by name: `NAME__tool` and `NAME__*` list their tools. They stand in no log. `policy` is
    its own policy as data (rules, or a whole document of `policies.documents`), `guards` the names of its guards (`policies.guards`).
    `required_tools`: how often which tool must have succeeded before an answer counts; `deliverables`: what the work is to produce, each
    `{"file": PATH}` or `{"section": HEADING}` of the answer. `profile`: how much a model of a size is shown
    (`detent.config.profile`). `healing`: whether calls with a wrong name, shape or type are repaired before they are checked (None: for agents
    with a model).
    """

    name: str
    instructions: str = ""
    model: str = ""
    small_model: str = ""
    planner: Literal["", "on-device"] = ""
    model_settings: dict[str, Any] = {}
    actions: Sequence[str] = ()
    strategy: str = "reactive"
    strategy_options: dict[str, Any] = {}
    kernel: str = ""
    tools: Sequence[Any] = ()
    capabilities: Sequence[str] = ()
    rules: Sequence[dict[str, Any]] = ()
    budget: Budget = Budget()
    variables: dict[str, Any] = {}
    on_deny: Literal["observe", "fail"] = "observe"
    on_reject: Literal["observe", "stop"] = "observe"
    on_unknown: Literal["wait", "tell"] = "wait"
    wrap_up: bool = False
    profile: dict[str, Any] = {}
    redact: Sequence[str] = ()
    grants: Sequence[dict[str, Any]] = ()
    policy: Sequence[Any] | dict[str, Any] = ()
    guards: Sequence[str] = ()
    required_tools: dict[str, int] = {}
    deliverables: Sequence[dict[str, str]] = ()
    healing: bool | None = None
    output_schema: dict[str, Any] | None = None
    mcp: dict[str, McpServer] = {}
    meta: dict[str, Any] = {}

    def __post_init__(self) -> None:
        if not self.name.strip():
            raise ConfigError("an agent needs a name; give Agent(name=...)")
        if isinstance(self.tools, str):
            raise ConfigError(f"agent {self.name!r}: tools must be a list, not the text {self.tools!r}; write tools=[{self.tools!r}]")
        if isinstance(self.actions, str):
            raise ConfigError(
                f"agent {self.name!r}: actions must be a list, not the text {self.actions!r}; write actions=[{self.actions!r}]"
            )
        _check_raw_text(self)
        check_ending(self)
        if self.model_settings or self.actions:
            from detent.planners.model.control_tools import offered
            from detent.planners.settings import read_settings

            settings = read_settings(self.model_settings, f"agent {self.name!r}: model_settings")
            if "@" in settings.base_url.partition("://")[2].partition("/")[0]:
                raise ConfigError(
                    f"agent {self.name!r}: model_settings: a user or password in base_url would stand on the log; leave it out, and name the "
                    "variable of a key with api_key_env (--api-key-env)"
                )
            try:
                offered(self.actions, self.tool_names())
            except ConfigError as error:
                raise ConfigError(f"agent {self.name!r}: {error}") from None

    def tool_names(self) -> tuple[str, ...]:
        """Return the names of the listed tools, each once."""
        return tuple(dict.fromkeys(t if isinstance(t, str) else t.name for t in self.tools))

    def _policy(self) -> dict[str, Any]:
        if not self.policy:
            return {}
        from detent.policies.combining import policy_of_agent

        return policy_of_agent(self.policy, self.name)

    def spec(self) -> AgentSpec:
        """Return the agent as the data that stands in the log."""
        return AgentSpec(
            name=self.name,
            instructions=self.instructions,
            model=self.model,
            small_model=self.small_model,
            planner=self.planner,
            model_settings=self.model_settings,
            actions=tuple(self.actions),
            strategy=self.strategy,
            strategy_options=self.strategy_options,
            kernel=self.kernel,
            tools=self.tool_names(),
            capabilities=tuple(self.capabilities),
            rules=tuple(self.rules),
            budget=self.budget,
            on_deny=self.on_deny,
            on_reject=self.on_reject,
            on_unknown=self.on_unknown,
            wrap_up=self.wrap_up,
            profile=sized(self.profile, self.model),
            redact=tuple(self.redact),
            grants=tuple(self.grants),
            policy=self._policy(),
            guards=tuple(self.guards),
            required_tools=self.required_tools,
            deliverables=tuple(self.deliverables),
            healing=bool(self.model) if self.healing is None else self.healing,
            output_schema=self.output_schema,
            meta=self.meta,
        )


def check_ending(agent: Agent) -> None:
    """Raise `ConfigError` for required tools that the agent does not list, and for a deliverable that is none."""
    names = agent.tool_names()
    for tool, count in agent.required_tools.items():
        if tool not in names and not any(name.endswith("__*") and tool.startswith(name[:-1]) for name in names):
            raise ConfigError(f"agent {agent.name!r}: required_tools: the agent does not list {tool!r}; add it to tools, or leave it out")
        if count < 1:
            raise ConfigError(f"agent {agent.name!r}: required_tools: {tool} = {count}; give at least 1")
    for said in agent.deliverables:
        if len(said) != 1 or next(iter(said)) not in ("file", "section") or not next(iter(said.values())).strip():
            raise ConfigError(f"agent {agent.name!r}: deliverables: {said!r} is none; write {{'file': PATH}} or {{'section': HEADING}}")


def _check_raw_text(agent: Agent) -> None:
    """Raise `ConfigError` for a planner that there is not, and for what fits only to another one."""
    if agent.planner not in ("", "on-device"):
        raise ConfigError(f'agent {agent.name!r}: planner is {agent.planner!r}; leave it out, or write "on-device"')
    if agent.planner and not agent.model:
        raise ConfigError(f'agent {agent.name!r}: planner = "on-device" needs a model, such as model = "ollama:qwen3:4b"')
    text = not agent.planner and agent.model_settings.get("tool_calls") == "text"
    if not (agent.planner or text) and "on_device" in agent.model_settings:
        raise ConfigError(
            f'agent {agent.name!r}: model_settings: on_device holds for planner = "on-device" and tool_calls = "text"; set one, or leave it out'
        )
    said: Any = agent.model_settings.get("on_device")
    if text and isinstance(said, dict) and "constrain" in said:
        raise ConfigError(
            f'agent {agent.name!r}: model_settings: on_device: constrain has no effect with tool_calls = "text"; leave it out'
        )


# The engine -------------------------------------------------------------------------------------------------------------------


class StoreConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Where runs are kept. The other fields are options of the stores that have them."""

    url: str | None = None
    busy_timeout_s: float | None = None
    refused_s: float | None = None
    lease_s: float | None = None


class WorkspaceConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The directory whose workspace tools agents may list; `allow_delete` lets apply_patch remove and move files, and makes it destructive.

    `sandbox` says whether exec runs programs in a sandbox: where one can be made ("auto"), or not at all without one ("require"), or never
    ("off"); the other fields what the sandbox allows: the network, further paths to read, and bounds on memory and processes.
    """

    root: str | None = None
    allow_delete: bool | None = None
    sandbox: Literal["auto", "require", "off"] | None = None
    sandbox_network: bool | None = None
    sandbox_readable: tuple[str, ...] | None = None
    sandbox_memory_bytes: int | None = None
    sandbox_processes: int | None = None


class HttpConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Where agents that list `fetch` or `http_request` may go: patterns such as "https://api.example.com/*"; nowhere without any.

    `methods` makes the tool http_request, with these methods; `allow_private` are ranges of addresses, such as "127.0.0.1/32", that may be
    used although they are not public.
    """

    allow: tuple[str, ...] | None = None
    allow_private: tuple[str, ...] | None = None
    methods: tuple[Literal["POST", "PUT", "PATCH", "DELETE"], ...] | None = None
    max_bytes: int | None = None
    timeout_s: float | None = None


class LimitsConfig(msgspec.Struct, frozen=True, kw_only=True):
    """`ceiling`: the most iterations that a budget may ask for; `max_concurrent_runs`: how many runs an engine advances at once.

    `max_concurrent_calls`: how many calls of tools run at once, over all runs of the engine; `max_concurrent_calls_of`: of single tools.
    """

    ceiling: int | None = None
    max_concurrent_runs: int | None = None
    max_concurrent_calls: int | None = None
    max_concurrent_calls_of: dict[str, int] | None = None


class ModelsConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What holds for all model calls of an engine: limits by provider, prices by "provider:name", how failed calls are tried again.

    `titles`: ask the agent's small model what each run is called in lists.
    """

    limits: dict[str, ModelLimits] | None = None
    prices: dict[str, ModelPrice] | None = None
    retries: ModelRetries | None = None
    titles: bool | None = None


class WorkerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """How `detent worker` and `Engine.work` advance runs: `concurrency` of them at once; `poll_s` is how often they look for what is due.

    A run whose attempt failed is tried again after `retry_pause_s`, then after twice as long and so on, and given up after `max_attempts`.
    """

    concurrency: int | None = None
    max_attempts: int | None = None
    retry_pause_s: float | None = None
    poll_s: float | None = None


class OutputConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What the command line shows of a run in progress: `verbosity` 0 (a line a call), 1 (its input and output), 2 (every record)."""

    verbosity: int | None = None
    progress: bool | None = None


class Config(msgspec.Struct, frozen=True, kw_only=True):
    """What an engine is made of, as data. None means "not said here"; an explicit 0 or false is kept (`over`).

    `agent` is an agent file, or a name in `agents` (name -> agent file). `planner`, `policy`, `observers` and `tools` are import paths:
    "module:attribute" or "./file.py:attribute"; a class is called without arguments. `planner` and `policy` may be the name of a plug-in's
    (entry points `detent.planners`, `detent.policies`). `policy` may also be the path of a policy file (.toml), or what would stand in it.
    `mcp` are MCP servers for every agent, by name. `secrets`: name -> "env:VARIABLE" or "file:PATH", what tools that declare the name may
    be given. `tenants`: what all runs of a tenant may use in a day or a month; "*" for each that is not named.
    """

    store: StoreConfig = StoreConfig()
    workspace: WorkspaceConfig = WorkspaceConfig()
    http: HttpConfig = HttpConfig()
    limits: LimitsConfig = LimitsConfig()
    models: ModelsConfig = ModelsConfig()
    budget: Budget = Budget()
    worker: WorkerConfig = WorkerConfig()
    output: OutputConfig = OutputConfig()
    agent: str | None = None
    agents: dict[str, str] | None = None
    tools: tuple[str, ...] | None = None
    planner: str | None = None
    policy: str | dict[str, Any] | None = None
    observers: tuple[str, ...] | None = None
    mcp: dict[str, McpServer] | None = None
    redact: tuple[str, ...] | None = None
    secrets: dict[str, str] | None = None
    tenants: dict[str, TenantBudget] | None = None

    def over(self, base: Config) -> Config:
        """Return this configuration with everything that it does not say taken from `base`, part by part and field by field."""
        return over(self, base)


PartT = TypeVar("PartT", bound=msgspec.Struct)

PARTS = (StoreConfig, WorkspaceConfig, HttpConfig, LimitsConfig, ModelsConfig, WorkerConfig, OutputConfig, Budget)

DEFAULTS = Config(
    store=StoreConfig(url="sqlite:///.detent/runs.db"),
    limits=LimitsConfig(ceiling=CEILING),
    output=OutputConfig(verbosity=0, progress=True),
)
"""What holds without any file, variable or option; bounds are those of `core.budget.DEFAULT`."""


def over(part: PartT, base: PartT) -> PartT:
    """Return `part` with every field that is None taken from `base`; parts inside are merged in the same way. 0 and false are kept."""
    merged: dict[str, Any] = {}
    for name in part.__struct_fields__:
        mine, theirs = getattr(part, name), getattr(base, name)
        merged[name] = over(mine, theirs) if isinstance(mine, PARTS) else theirs if mine is None else mine
    return type(part)(**merged)
