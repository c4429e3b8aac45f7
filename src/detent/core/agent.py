"""The recorded data about who works on a goal and who asks for it.

`AgentOptions` defines all options of an agent in one place. The recorded `AgentSpec`, `config.agents.Agent` for programs and
`config.loading.AgentFile` for files derive from it, and so do the JSON Schema for editors and the table in docs/reference/configuration.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, cast

import msgspec

from detent.core.brief import brief
from detent.core.budget import Budget
from detent.core.errors import ConfigError, Explained


class Host(msgspec.Struct, metaclass=Explained, frozen=True, kw_only=True, omit_defaults=True):
    """Who asks: a tenant, a workspace, a principal and the scopes granted to this call.

    `credential_refs` name credentials but never contain them.
    """  # rows K81, K138

    tenant: str = ""
    workspace: str = ""
    principal: str = ""
    scopes: tuple[str, ...] = ()
    credential_refs: tuple[str, ...] = ()
    trace_id: str = ""

    __repr__ = brief

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            said: Any = getattr(self, name)
            kinds = (tuple, list, set, frozenset) if name in ("scopes", "credential_refs") else (str,)
            if not issubclass(type(said), kinds) or (str not in kinds and not all(isinstance(item, str) for item in said)):
                raise ConfigError(f"Host: {name} must be a {'text' if str in kinds else 'list of texts'}, not {said!r}")


class AgentOptions(msgspec.Struct, metaclass=Explained, frozen=True, kw_only=True):
    """The options of an agent, each with its type, its default and one line of documentation. To add an option, add it here.

    Editors and docs/reference/configuration.md show the line below an option. If a type is a union, the derived classes narrow it to what they
    hold.
    """

    name: str
    """Required; recorded in the log."""
    instructions: str = ""
    """Instructions for the planner; rules do not read them."""
    model: str = ""
    """The model that plans, as `provider:name`; rules and a planner in the configuration take precedence."""
    small_model: str = ""
    """A cheaper model for titles, critiques and classifications; the default is `model`."""
    planner: Literal["", "on-device"] = ""
    """`on-device`: the model only writes text, and Detent reads actions from it."""
    model_settings: dict[str, Any] = {}
    """Settings of the model call: `temperature`, `max_tokens`, `base_url`, ..."""
    actions: Sequence[str] = ()
    """What a model may do besides calling tools: `ask_user`, `stop`, `abstain`, `push_goal` (with `complete_goal`), `schedule`."""
    strategy: str = "reactive"
    """When and how often the kernel runs: `direct`, `reactive`, `plan-execute`, `reflexion`, ...; in a file also an import path of your own."""
    strategy_options: dict[str, Any] = {}
    """The options of the strategy."""
    kernel: str = ""
    """A kernel by name; the default is the engine's kernel; in a file also an import path of your own."""
    tools: Sequence[Any] = ()
    """The tools that the planner may use, by name. It gets no others."""
    subagents: dict[str, Any] | Sequence[str] = ()
    """The agents that it may start, as tools `agent_NAME`: agents by name, or names of agents that the engine knows."""
    sees: str = "goal"
    """What it sees of the run that starts it: `goal`, `messages`, `last(N)` messages, or in a program a function; `messages(tools)` has tool results, too."""
    capabilities: Sequence[str] = ()
    """The capabilities that the agent needs: `id`, or `id@version`."""
    budget: Budget = Budget()
    """The limits of a run."""
    on_deny: Literal["observe", "fail"] = "observe"
    """What happens after a denied call: the planner is told, or the run ends."""
    on_reject: Literal["observe", "stop"] = "observe"
    """What happens after a person rejects a call: the planner is told, or the run ends."""
    on_unknown: Literal["wait", "tell"] = "wait"
    """What happens with a call that may or may not have happened because its worker died: wait for a person, or tell the planner."""
    upgrade: Literal["auto", "pinned"] = "auto"
    """What happens to a run when its version of the code is drained: it moves to another one with which it can continue, or it stays until it ends."""
    wrap_up: bool = False
    """Whether a run that reaches a limit of iterations, calls or failures gets one last turn without tools, to answer with what it has."""
    profile: dict[str, Any] = {}
    """How much context the model gets: `tier` (`local`, `mid`, `large`, `frontier`, or `auto`: from the model's name), and fields that override it."""
    memory: dict[str, Any] | None = None
    """What the agent recalls from the engine's memory, and what it may write there. An empty table takes the defaults; without one nothing is recalled."""
    compaction: dict[str, Any] | str = {}
    """How a long run is compacted: a compactor (`extractive`, `summary`, `none`), or a table with `use`, `at`, `to`, `turns`, `keep_turns`, `pins`, ..."""
    conversation: Literal["answers", "calls"] = "answers"
    """What the planner sees of earlier messages of a session: `answers`: user messages and answers; `calls`: also tool calls with their results."""
    rules: str | Sequence[dict[str, Any]] = ()
    """The entries of a rule file; the agent then plans without a model."""
    redact: Sequence[str] = ()
    """Regular expressions; text that matches is kept out of the log."""
    grants: Sequence[dict[str, Any]] = ()
    """Which arguments may take their values from which tool's output."""
    policy: str | Sequence[Any] | dict[str, Any] = {}
    """The agent's own policy as data, rules or a whole document; it can only tighten the engine's policy."""
    guards: Sequence[str] = ()
    """Guards against doing the same thing twice: `duplicate`, `side_effect_once`, `repetition`, ...; in a file also import paths of your own."""
    required_tools: dict[str, int] = {}
    """How often each tool must have succeeded before an answer counts."""
    deliverables: Sequence[dict[str, str]] = ()
    """What the run must produce: `{file = "report.md"}`, `{section = "Risks"}`."""
    verify: Sequence[Any] = ()
    """Checks of the answer before it counts: `{grounded = true}`, `{expression = "size(answer) < 500"}`, `{command = ["make", "test"]}`, ..."""
    max_corrections: int = 2
    """How often the agent may correct an answer that `verify` refuses; after that the run fails as `answer_refused`."""
    plain_answers: bool | None = None
    """Whether to refuse, once, an answer that only announces work ("I will now search ...") or is only markup; on by default."""
    healing: bool | None = None
    """Whether to repair calls that do not match the tool's declaration, before they are checked; the default is yes for agents with a model."""
    output_schema: dict[str, Any] | None = None
    """JSON Schema of the answer. A model's answer must satisfy it; rules and your own planners only receive it. `output_type` binds them too."""
    output_mode: Literal["auto", "native", "tool", "prompted"] = "auto"
    """How the model gets the schema of the answer: `native` (the provider enforces it), `tool` (as a tool to call), `prompted` (in the prompt)."""
    meta: dict[str, Any] = {}
    """Data of your own; recorded in the log."""


class AgentSpec(AgentOptions, frozen=True, kw_only=True, omit_defaults=True):
    """The recorded specification of an agent: only names and numbers, so that it can be stored, compared and resumed."""

    tools: Sequence[str] = ()
    rules: Sequence[dict[str, Any]] = ()
    policy: dict[str, Any] = {}
    subagents: dict[str, Any] = {}
    compaction: dict[str, Any] = {}
    healing: bool = False
    verify: Sequence[dict[str, Any]] = ()
    plain_answers: bool = False
    budget: Budget = Budget()  # not the object above: defaults are omitted from the JSON, but logs have always contained the agent's budget

    __repr__ = brief

    def __post_init__(self) -> None:
        for name in LISTS:
            if isinstance(value := getattr(self, name), list):
                msgspec.structs.force_setattr(self, name, tuple(cast("list[Any]", value)))


LISTS = tuple(field.name for field in msgspec.structs.fields(AgentSpec) if field.default == ())
"""The options that are lists. They are recorded as tuples, so that they can be compared and do not change."""
