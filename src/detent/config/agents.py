"""Agents as data: the options that a program or a file gives.

This module reads no file and creates no part: `loading` does the first, `assembly` the second.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, Literal, cast

import msgspec

from detent.config.compaction import OFF, RECALLS, compaction_table
from detent.config.output_types import OutputT, OutputType, refuse_unusable
from detent.config.profile import sized
from detent.config.remembering import memory_use
from detent.config.verifying import entries_of, tools_in
from detent.core.agent import AgentOptions, AgentSpec
from detent.core.brief import brief
from detent.core.budget import Budget
from detent.core.durations import PATTERN, Seconds, seconds, usually
from detent.core.errors import ConfigError, Explained
from detent.ports.options import check_fields, check_is, shown
from detent.ports.verifying import Verifier
from detent.tools.mcp.settings import McpServer

PREFIX = "agent_"
"""The beginning of the name of a tool that starts a subagent. A tool's name has at most 64 characters."""
STATUS = "agent_status"
"""The tool that reports on children."""
ENTRY = ("on_parent_end", "auto_background")
"""The options of an entry of `subagents`."""
_STARTED = re.compile(r"[A-Za-z0-9_-]{1,58}")


def function_name(function: Callable[..., Any]) -> str:
    """Return the name of a function in a log."""
    return f"{getattr(function, '__module__', '')}:{getattr(function, '__qualname__', type(function).__qualname__)}"


class Subagent(msgspec.Struct, metaclass=Explained, frozen=True):
    """An entry of `subagents` with options: the defaults of the calls that start this agent.

    `agent` is an `Agent`, or the name of one that the engine knows. `on_parent_end` says what happens to a child that is open when the run ends: `cancel`
    it, `wait` for it, or `leave` it to itself. A call that waits for the child longer than `auto_background` seconds returns, and the child continues.
    """

    agent: Agent[Any] | str
    on_parent_end: Literal["cancel", "wait", "leave"] = "cancel"
    auto_background: Seconds[float | None] = usually(None)

    def __post_init__(self) -> None:
        check_fields(self)
        lasts = seconds(cast("Any", self.auto_background), "auto_background")
        if lasts is not None and (isinstance(lasts, bool) or not isinstance(lasts, int | float) or not lasts > 0):
            raise ConfigError(f"auto_background is {lasts!r}; write seconds above 0, or text such as '2m'")
        msgspec.structs.force_setattr(self, "auto_background", lasts)

    @property
    def options(self) -> dict[str, Any]:
        """The options that are given."""
        said = {name: getattr(self, name) for name in ENTRY}
        return {name: value for name, value in said.items() if value not in ("cancel", None)}


class ProgramOptions(AgentOptions, frozen=True, kw_only=True):
    """The options that exist in programs and agent files but not in the recorded `AgentSpec`."""

    variables: dict[str, Any] = msgspec.field(default_factory=dict[str, Any])
    """The values that rules and planners read as `variables`; `--var K=V` overrides them."""
    mcp: dict[str, Any] = msgspec.field(default_factory=dict[str, Any])
    """MCP servers by name: `NAME__tool` and `NAME__*` in `tools` list their tools."""


class Agent(ProgramOptions, Generic[OutputT], frozen=True, kw_only=True):
    """An agent works on a goal. `core.agent.AgentOptions` explains each option.

    `output_type` is the Python type of its answers, instead of `output_schema`: a pydantic model, dataclass, msgspec struct, typed dict, union or
    plain type. An answer that does not fit is refused with the reasons. `result.output` is an instance of the type. The log keeps JSON.

    `tools` are names or tools. Tools are registered with the engine that runs the agent. `policy` is a list of rules or a whole document of
    `policies.documents`. The servers of `mcp` are not recorded.
    """

    rules: Sequence[dict[str, Any]] = ()
    policy: Sequence[Any] | dict[str, Any] = ()
    sees: str | Callable[..., Any] = "goal"  # pyright: ignore[reportIncompatibleVariableOverride] - the log has the name of a function
    mcp: dict[str, McpServer] = msgspec.field(default_factory=dict[str, McpServer])
    output_type: type[OutputT] | None = None

    __repr__ = brief

    def __post_init__(self) -> None:
        _check_named(self)
        check_fields(self)
        if not self.name.strip():
            raise ConfigError("an agent needs a name; give Agent(name=...)")
        if isinstance(self.tools, str):
            raise ConfigError(f"agent {self.name!r}: tools must be a list, not the text {self.tools!r}; write tools=[{self.tools!r}]")
        if isinstance(self.actions, str):
            raise ConfigError(
                f"agent {self.name!r}: actions must be a list, not the text {self.actions!r}; write actions=[{self.actions!r}]"
            )
        check_is(Budget, budget=self.budget)
        _check_subagents(self)
        for item in self.tools:
            if not isinstance(item, str) and (isinstance(item, type) or not hasattr(item, "spec")):
                what = f"the function {item.__name__!r}" if hasattr(item, "__code__") else shown(item)
                raise ConfigError(f"agent {self.name!r}: tools has {what}; expected names of tools, or functions with the decorator @tool")
        _check_raw_text(self)
        check_ending(self, entries_of(self.verify, f"agent {self.name!r}")[0])
        if self.output_type is not None and self.output_schema is not None:
            raise ConfigError(f"agent {self.name!r}: output_type brings its own schema; leave output_schema out")
        self.answers_as()
        if self.output_schema is not None:
            refuse_unusable(self.output_schema, f"agent {self.name!r}: output_schema")
        try:
            memory_use(self.memory)
        except ConfigError as error:
            raise ConfigError(f"agent {self.name!r}: {error}") from None
        if self.max_corrections < 0:
            raise ConfigError(f"agent {self.name!r}: max_corrections is {self.max_corrections}; give 0 or more")
        if compaction_table(self.compaction).get("use", OFF if self.rules or not self.compaction else "") != OFF and self.rules:
            raise ConfigError(f"agent {self.name!r}: compaction: rules read the whole transcript; leave compaction out")
        if self.rules:
            from detent.planners.rules.files import build_rules

            build_rules(self.rules, source=f"agent {self.name!r}: rules")
        if self.model_settings or self.actions:
            from detent.planners.model.control_tools import offered
            from detent.planners.settings import read_settings

            settings = read_settings(self.model_settings, f"agent {self.name!r}: model_settings")
            if "@" in settings.base_url.partition("://")[2].partition("/")[0]:
                raise ConfigError(
                    f"agent {self.name!r}: model_settings: a user or password in base_url would be recorded in the log; leave it out, and name the "
                    "variable that holds a key with api_key_env (--api-key-env)"
                )
            try:
                offered(self.actions, self.tool_names())
            except ConfigError as error:
                raise ConfigError(f"agent {self.name!r}: {error}") from None

    def tool_names(self) -> tuple[str, ...]:
        """Return the names of the listed tools, each once. An agent that asks for compaction can read again what was dropped."""
        asked = compaction_table(self.compaction).get("use", "") != OFF if self.compaction else False
        starts = (f"{PREFIX}{name}" for name in self.subagents)
        return tuple(dict.fromkeys((*(t if isinstance(t, str) else t.name for t in self.tools), *starts, *((RECALLS,) if asked else ()))))

    def answers_as(self) -> OutputType[OutputT] | None:
        """Return the reader for `output_type`, or None without one. Raise `ConfigError`."""
        return None if self.output_type is None else OutputType(self.output_type, f"agent {self.name!r}")

    def verifiers(self) -> dict[str, Verifier]:
        """Return the functions in `verify`, by the names that the log uses for them."""
        return entries_of(self.verify, f"agent {self.name!r}")[1]

    def _policy(self) -> dict[str, Any]:
        if not self.policy:
            return {}
        from detent.policies.combining import policy_of_agent

        return policy_of_agent(self.policy, self.name)

    def _subagents(self) -> dict[str, Any]:
        """Return who it may start: the data of an agent with its variables, or the name of one that the engine knows."""
        said: dict[str, Any] = {}
        for name, one in starts_of(self.subagents).items():
            variables = {"variables": one.variables} if isinstance(one, Agent) and one.variables else {}
            options = options_of(self.subagents, name)
            plain = {"agent": one} if isinstance(one, str) else {**msgspec.to_builtins(one.spec()), **variables}
            said[name] = one if isinstance(one, str) and not options else {**plain, **options}
        return said

    def spec(self) -> AgentSpec:
        """Return the agent as the data that the log records."""
        said = {name: getattr(self, name) for name in AgentSpec.__struct_fields__}
        said |= {"tools": self.tool_names(), "profile": sized(self.profile, self.model), "policy": self._policy()}
        said |= {"compaction": compaction_table(self.compaction), "subagents": self._subagents()}
        said |= {name: str(getattr(self, name)) for name in ("strategy", "kernel")}  # only the text of an import path is recorded
        said["sees"] = self.sees if isinstance(self.sees, str) else function_name(self.sees)
        said["guards"] = tuple(str(name) for name in self.guards)
        said |= {name: _numbers(getattr(self, name)) for name in ("model_settings", "strategy_options")}
        said["healing"] = bool(self.model) if self.healing is None else self.healing
        said["plain_answers"] = self.plain_answers is not False
        said["verify"] = tuple(entries_of(self.verify, f"agent {self.name!r}")[0])
        if (typed := self.answers_as()) is not None:
            said["output_schema"] = typed.schema
            said["verify"] += (typed.entry,)
        return AgentSpec(**said)


def starts_of(subagents: Mapping[str, Any] | Sequence[str]) -> dict[str, Agent[Any] | str]:
    """Return the agents that an option `subagents` has, by the names that tools have for them."""
    listed: Mapping[str, Any] = subagents if isinstance(subagents, Mapping) else {name: name for name in subagents}
    return {name: one.agent if isinstance(one, Subagent) else one for name, one in listed.items()}


def options_of(subagents: Any, name: str) -> dict[str, Any]:
    """Return the options of an entry of `subagents`."""
    one = cast("Mapping[str, Any]", subagents)[name] if isinstance(subagents, Mapping) else name
    return one.options if isinstance(one, Subagent) else {}


def with_starts(agent: Agent[OutputT], starts: Mapping[str, Agent[Any] | str]) -> Agent[OutputT]:
    """Return the agent with these in place of those that it may start; the options of their entries stay."""
    made = {name: Subagent(one, **said) if (said := options_of(agent.subagents, name)) else one for name, one in starts.items()}
    return msgspec.structs.replace(agent, subagents=made)


def entry_of(said: Any) -> tuple[Any, dict[str, Any]]:
    """Return what an entry of `subagents`, as data, starts (the data of an agent, or a name), and its options."""
    if not isinstance(said, Mapping):
        return said, {}
    known = cast("Mapping[str, Any]", said)
    options = {name: known[name] for name in ENTRY if name in known}
    return known.get("agent") or {name: value for name, value in known.items() if name not in ENTRY}, options


def _check_subagents(agent: Agent[Any]) -> None:
    """Raise `ConfigError` for a subagent that no tool can start."""
    where, said = f"agent {agent.name!r}: subagents", cast("Any", agent.subagents)
    if not isinstance(said, Mapping) and not all(isinstance(one, str) for one in said):
        raise ConfigError(
            f"{where}: a list has only names of agents that the engine knows; give an Agent by name: {{'researcher': Agent(...)}}"
        )
    own = [item.name for item in agent.tools if not isinstance(item, str) and hasattr(item, "name")]
    declared: dict[str, Any] = {**starts_of(agent.subagents)}
    late = [name for name in declared if "auto_background" in options_of(agent.subagents, name)]
    if late and "join_agent" not in [item for item in agent.tools if isinstance(item, str)]:
        raise ConfigError(f"{where}: {late[0]!r} has auto_background, and nothing would collect its result; add 'join_agent' to tools")
    for name, one in declared.items():
        if not _STARTED.fullmatch(name):
            raise ConfigError(
                f"{where}: {name!r} cannot be part of a tool's name: use 1 to 58 letters, digits, '_' or '-'; another name for it is a key: "
                f"subagents={{'helper': {name!r}}}"
            )
        if not isinstance(one, (str, Agent)):
            raise ConfigError(
                f"{where}: {name!r} is {shown(one)}; give an Agent(...), a Subagent(...), or the name of an agent that the engine knows"
            )
        if f"{PREFIX}{name}" == STATUS:
            raise ConfigError(
                f"{where}: {name!r} would be started with the tool {STATUS!r}, which reports on children; give the entry another name: "
                f"subagents={{'helper': ...}}"
            )
        if one == agent.name:
            raise ConfigError(f"{where}: it would start itself ({agent.name!r}); name another agent")
        if f"{PREFIX}{name}" in own:
            raise ConfigError(
                f"{where}: {name!r} is started with the tool '{PREFIX}{name}', and tools has another one of this name; rename one of them"
            )


def _check_named(agent: Agent[Any]) -> None:
    """Raise `ConfigError` for an object in an option that takes a name or data: the log records an agent as data, without code."""
    guards = agent.guards if isinstance(agent.guards, (list, tuple)) else ()
    named = [
        ("strategy", "strategies", agent.strategy),
        ("kernel", "kernels", agent.kernel),
        *(("guards", "guards", one) for one in guards),
    ]
    for option, table, value in named:
        if not isinstance(cast("Any", value), str):
            raise ConfigError(
                f"agent {agent.name!r}: {option} has {shown(value)}; expected a name: give Engine({table}={{NAME: ...}}), and the name here"
            )
    policy: Any = agent.policy
    if not isinstance(policy, (Sequence, Mapping)):
        raise ConfigError(
            f"agent {agent.name!r}: policy is {shown(policy)}; expected rules or a document: pass a policy object as Engine(policy=...)"
        )


def _numbers(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options with text durations converted to the numbers that the log records."""
    written = {name: value for name, value in options.items() if name.endswith("_s") and isinstance(value, str)}
    return {**options, **{name: seconds(value, name) for name, value in written.items() if re.fullmatch(PATTERN, value)}}


def check_ending(agent: Agent, checks: Sequence[Mapping[str, Any]]) -> None:
    """Raise `ConfigError` for a required tool (also of `checks`) that the agent does not list, and for an invalid deliverable."""
    names = agent.tool_names()
    wanted = [("required_tools", tool) for tool in agent.required_tools]
    wanted += [(f"verify {number}", tool) for number, entry in enumerate(checks, 1) for tool in tools_in(entry)]
    for option, tool in wanted:
        if tool not in names and not any(name.endswith("__*") and tool.startswith(name[:-1]) for name in names):
            raise ConfigError(f"agent {agent.name!r}: {option}: the agent does not list {tool!r}; add it to tools, or leave it out")
    for tool, count in agent.required_tools.items():
        if count < 1:
            raise ConfigError(f"agent {agent.name!r}: required_tools: {tool} = {count}; give at least 1")
    for said in agent.deliverables:
        if len(said) != 1 or next(iter(said)) not in ("file", "section") or not next(iter(said.values())).strip():
            raise ConfigError(
                f"agent {agent.name!r}: deliverables: {said!r} is not a deliverable; write {{'file': PATH}} or {{'section': HEADING}}"
            )


def _check_raw_text(agent: Agent) -> None:
    """Raise `ConfigError` for an unknown planner, and for options that fit only another planner."""
    if agent.planner not in ("", "on-device"):
        raise ConfigError(f'agent {agent.name!r}: planner is {agent.planner!r}; leave it out, or write "on-device"')
    if agent.planner and not agent.model:
        raise ConfigError(f'agent {agent.name!r}: planner = "on-device" needs a model, such as model = "ollama:qwen3:4b"')
    if agent.planner and agent.output_mode in ("native", "tool"):
        raise ConfigError(
            f'agent {agent.name!r}: output_mode is {agent.output_mode!r}, but planner = "on-device" asks the model for plain text, with the '
            'schema in the prompt; use output_mode = "prompted", or leave it out'
        )
    text = not agent.planner and agent.model_settings.get("tool_calls") == "text"
    if not (agent.planner or text) and "on_device" in agent.model_settings:
        raise ConfigError(
            f'agent {agent.name!r}: model_settings: on_device applies only with planner = "on-device" or tool_calls = "text"; set one, or leave it out'
        )
    said: Any = agent.model_settings.get("on_device")
    if text and isinstance(said, dict) and "constrain" in said:
        raise ConfigError(
            f'agent {agent.name!r}: model_settings: on_device: constrain has no effect with tool_calls = "text"; leave it out'
        )
