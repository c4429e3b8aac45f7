"""Who works on a goal and who asks for it, as data that is recorded.

`AgentOptions` is the one definition of what can be said of an agent. The recorded `AgentSpec`, `config.agents.Agent` for programs and
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
    """Who asks: a tenant, a workspace, a principal and the scopes that this call was given (rows K81, K138).

    `credential_refs` name credentials and never hold them.
    """

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
            if not issubclass(type(said), kinds) or not all(isinstance(item, str) for item in said):
                raise ConfigError(f"Host: {name} must be a {'text' if str in kinds else 'list of texts'}, not {said!r}")


class AgentOptions(msgspec.Struct, metaclass=Explained, frozen=True, kw_only=True):
    """The options of an agent, each with its type, its default and one line of documentation. To add an option, add it here.

    The line below an option is what editors and docs/reference/configuration.md show. Where a type is a union, the classes derived from this one
    narrow it to what they hold.
    """

    name: str
    """Required; recorded in the log."""
    instructions: str = ""
    """What the planner is told about its work; rules do not read it."""
    model: str = ""
    """Who plans, as `provider:name`; rules and a planner of the configuration take precedence."""
    small_model: str = ""
    """A model for passes that need no more: titles, critiques, classifications; `model` where there is none."""
    planner: Literal["", "on-device"] = ""
    """`on-device`: the model only writes text, and actions are read from it."""
    model_settings: dict[str, Any] = {}
    """How the model is asked: `temperature`, `max_tokens`, `base_url`, ..."""
    actions: Sequence[str] = ()
    """What a model may do besides calling tools: `ask_user`, `stop`, `abstain`, `push_goal` (with `complete_goal`), `schedule`."""
    strategy: str = "reactive"
    """When and how often the kernel runs: `direct`, `reactive`, `plan-execute`, `reflexion`, ...; in a file also an import path of your own."""
    strategy_options: dict[str, Any] = {}
    """The options of the strategy."""
    kernel: str = ""
    """A kernel by name; the engine's own without it; in a file also an import path of your own."""
    tools: Sequence[Any] = ()
    """The tools that are offered, by name. Nothing else is offered."""
    capabilities: Sequence[str] = ()
    """The capabilities that the agent relies on: `id`, or `id@version`."""
    budget: Budget = Budget()
    """The limits of a run."""
    on_deny: Literal["observe", "fail"] = "observe"
    """A denied call: reported to the planner, or the end of the run."""
    on_reject: Literal["observe", "stop"] = "observe"
    """A call that a person rejected: reported to the planner, or the end of the run."""
    on_unknown: Literal["wait", "tell"] = "wait"
    """A call that was open when its worker died and may have happened: wait for a person, or tell the planner."""
    wrap_up: bool = False
    """Whether a run that reaches a limit of work (iterations, calls, failures) gets one last turn without tools, to answer with what it has."""
    profile: dict[str, Any] = {}
    """How much a model of a size is shown: `tier` (`local`, `mid`, `large`, `frontier`, or `auto`: by the model's name), and fields that override it."""
    rules: str | Sequence[dict[str, Any]] = ()
    """The entries of a rule file: the agent plans without a model."""
    redact: Sequence[str] = ()
    """Regular expressions of what stays out of the log."""
    grants: Sequence[dict[str, Any]] = ()
    """Which arguments may take their values from which tool's output."""
    policy: str | Sequence[Any] | dict[str, Any] = {}
    """The agent's own policy as data, rules or a whole document; next to a policy of the engine it only tightens."""
    guards: Sequence[str] = ()
    """Guards against doing the same thing twice: `duplicate`, `side_effect_once`, `repetition`, ...; in a file also import paths of your own."""
    required_tools: dict[str, int] = {}
    """How often which tool must have succeeded before an answer counts."""
    deliverables: Sequence[dict[str, str]] = ()
    """What the work is to produce: `{file = "report.md"}`, `{section = "Risks"}`."""
    verify: Sequence[Any] = ()
    """Checks of the answer before it counts: `{grounded = true}`, `{expression = "size(answer) < 500"}`, `{command = ["make", "test"]}`, ..."""
    max_corrections: int = 2
    """How often an answer that `verify` refuses may be corrected; after that the run fails as `answer_refused`."""
    plain_answers: bool | None = None
    """Whether an answer that only announces work ("I will now search ...") or is only markup is refused once; on unless false."""
    healing: bool | None = None
    """Whether calls that are written differently from what tools declare are repaired before they are checked; without it, for agents with a model."""
    output_schema: dict[str, Any] | None = None
    """JSON Schema of the answer: a model's answer must satisfy it; rules and planners of your own are only given it. `output_type` binds them too."""
    output_mode: Literal["auto", "native", "tool", "prompted"] = "auto"
    """How a model is given the schema of the answer: `native` (the provider holds it to the schema), `tool` (a tool to call), `prompted` (in words)."""
    meta: dict[str, Any] = {}
    """Data of your own; recorded in the log."""


class AgentSpec(AgentOptions, frozen=True, kw_only=True, omit_defaults=True):
    """The specification of an agent as it is recorded: names and numbers only, so that it can be stored, compared and resumed."""

    tools: Sequence[str] = ()
    rules: Sequence[dict[str, Any]] = ()
    policy: dict[str, Any] = {}
    healing: bool = False
    verify: Sequence[dict[str, Any]] = ()
    plain_answers: bool = False
    budget: Budget = Budget()  # not the object above: a default is left out of the JSON, and the log has always had the budget of an agent

    __repr__ = brief

    def __post_init__(self) -> None:
        for name in LISTS:
            if isinstance(value := getattr(self, name), list):
                msgspec.structs.force_setattr(self, name, tuple(cast("list[Any]", value)))


LISTS = tuple(field.name for field in msgspec.structs.fields(AgentSpec) if field.default == ())
"""The options that are lists: tuples once they are recorded, so that they can be compared and do not change."""
