"""Planning: what a planner sees, what it answers, and how it reaches models."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from hashlib import sha256
from typing import Annotated, Any, Literal, Protocol, runtime_checkable

import msgspec

from detent.core.actions import AnyAction, FinalAnswer
from detent.core.agent import AgentSpec, Host
from detent.core.brief import brief
from detent.core.budget import NOTHING, Budget, Usage
from detent.core.errors import Explained
from detent.core.events import ArtifactRef
from detent.core.state import Item
from detent.ports.conversing import Message
from detent.ports.models import Models
from detent.ports.options import check_fields
from detent.ports.tools import ToolSpec


class MadeFile(msgspec.Struct, metaclass=Explained, frozen=True, kw_only=True):
    """A file that a model made: its bytes and their media type."""

    data: bytes
    media_type: str = "application/octet-stream"

    @property
    def told(self) -> dict[str, Any]:
        """Its form in an answer: the type, and the key of the artifact that holds its bytes."""
        ref = {"key": sha256(self.data).hexdigest(), "size_bytes": len(self.data)}
        return {"type": kind_of(self.media_type), "media_type": self.media_type, "artifact": ref}


def kind_of(media_type: str) -> str:
    """Return the type of an attachment."""
    kind = media_type.partition("/")[0]
    return kind if kind in ("image", "audio", "video") else "file"


def with_files(action: AnyAction, files: Sequence[MadeFile]) -> AnyAction:
    """Return a text answer together with the files that the model made; any other action unchanged."""
    if not files or not isinstance(action, FinalAnswer):
        return action
    return FinalAnswer(content={"text": action.content, "attachments": [file.told for file in files]}, reason=action.reason)


class Plan(msgspec.Struct, metaclass=Explained, frozen=True, kw_only=True):
    """A planner's answer: one control action, or a batch of tool calls.

    `thinking` is kept apart from the answer. `provider_data` is stored and sent back to the provider unchanged. `files` are files that the model
    made. They are stored as artifacts of the run before the plan is recorded; the plan names them by the SHA-256 of their bytes.
    """

    actions: tuple[AnyAction, ...]
    text: str = ""
    thinking: str = ""
    usage: Usage = NOTHING
    model: str = ""
    provider_data: Any = None
    files: tuple[MadeFile | ArtifactRef, ...] = ()

    __repr__ = brief


_Positive = Annotated[int, msgspec.Meta(ge=1)]


class ContextProfile(msgspec.Struct, metaclass=Explained, frozen=True, kw_only=True):
    """Thresholds by model size. `window_tokens` is the model's context. The character counts limit what one result may show inline."""

    tier: str = "mid"
    tool_result_max_chars: _Positive = 1200
    preview_items: _Positive = 5
    schema_detail: Literal["names", "names-and-types", "full"] = "full"
    temperature: Annotated[float, msgspec.Meta(ge=0)] = 0.5
    window_tokens: _Positive = 32_768

    __post_init__ = check_fields


class ResultCompression(msgspec.Struct, metaclass=Explained, frozen=True, kw_only=True):
    """How a large result is shown: at most `budget_chars`, and the first `preview_items` of a list. The log keeps the full value."""

    budget_chars: int = 1200
    preview_items: int = 5


class View(msgspec.Struct, frozen=True, kw_only=True):
    """What a planner sees. It is built anew for each plan and shares nothing with the run, so changing it has no effect.

    `transcript` items have a `kind` (`user`, `model`, `tool`, `note`). A tool item has `call_id`, `tool`, `args`, `ok`, `content`, `error`.
    `results` has all tool items of the pass, never compacted. `await full(item)` returns the whole value of a tool item whose `content` is only
    a preview. `conversation` has the earlier messages of the run's session, which come before the goal.
    """

    goal: str
    agent: AgentSpec
    task: str = ""
    iteration: int
    variables: dict[str, Any]
    transcript: Sequence[Item]
    results: Sequence[Item]
    tools: tuple[ToolSpec, ...]
    memory: tuple[Any, ...] = ()
    budget_remaining: Budget = Budget()
    scratchpad: Mapping[str, str] = msgspec.field(default_factory=dict[str, str])
    guidance: tuple[str, ...] = ()
    attachments: tuple[Any, ...] = ()
    conversation: Sequence[Message] = ()
    output_schema: dict[str, Any] | None = None
    goals: tuple[tuple[str, str], ...] = ()
    host: Host = Host()
    run_id: str = ""
    scope: str = "main"
    attempt: int = 1
    small: bool = False
    profile: ContextProfile = ContextProfile()
    compression: ResultCompression = ResultCompression()
    full: Callable[[Item], Awaitable[Any]] | None = None
    models: Models | None = None

    __repr__ = brief


@runtime_checkable
class Planner(Protocol):
    """Proposes what to do next.

    Raise `MalformedPlan` for an answer that is not a plan (it is retried twice) and `PlannerFailed` when there is no answer.
    """

    async def plan(self, view: View) -> Plan: ...


def asks_only_its_own(planner: Planner) -> bool:
    """Whether `planner` always uses its own model, or none, whatever model a pass names. A pass with a model of its own then gets a planner by name.

    It is an optional attribute of a planner. A planner without it plans every pass and finds the model in `view.agent`.
    """
    return bool(getattr(planner, "asks_only_its_own", False))


def prompt_limits(planner: Planner, agent: AgentSpec) -> tuple[int, Callable[[Item], int] | None]:
    """Return how many tokens the agent's model takes, 0 if that is not known, and how the planner counts the tokens of an item, None if it does not.

    They come from the planner's optional method `prompt_limits(agent)`. A planner that counts each prompt, and refuses one that is too long, needs to
    name no tokens.
    """
    told = getattr(planner, "prompt_limits", None)
    return (0, None) if told is None else told(agent)


def models_asked(planner: Planner, agent: AgentSpec) -> tuple[tuple[str, str], ...]:
    """Return the models that `planner` may call for `agent`, as the (model, provider) pairs that it passes to `Models.call`.

    They come from the planner's optional method `models_asked(agent)`. A planner without it is assumed to call the models that the agent names.
    A run with a cost limit starts only if all of them have a price.
    """
    told = getattr(planner, "models_asked", None)
    named = ((agent.model, ""), (agent.small_model, "")) if told is None else told(agent)
    return tuple(dict.fromkeys((model, provider) for model, provider in named if model))
