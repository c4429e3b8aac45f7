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
from detent.ports.models import Models
from detent.ports.options import check_fields
from detent.ports.tools import ToolSpec


class MadeFile(msgspec.Struct, metaclass=Explained, frozen=True, kw_only=True):
    """A file that a model made: its bytes and what they are."""

    data: bytes
    media_type: str = "application/octet-stream"

    @property
    def told(self) -> dict[str, Any]:
        """What an answer says of it: its type, and the key under which its bytes are kept as an artifact."""
        ref = {"key": sha256(self.data).hexdigest(), "size_bytes": len(self.data)}
        return {"type": kind_of(self.media_type), "media_type": self.media_type, "artifact": ref}


def kind_of(media_type: str) -> str:
    """Return the type of an attachment."""
    kind = media_type.partition("/")[0]
    return kind if kind in ("image", "audio", "video") else "file"


def with_files(action: AnyAction, files: Sequence[MadeFile]) -> AnyAction:
    """Return an answer in words with the files that the model made beside it; any other action as it is."""
    if not files or not isinstance(action, FinalAnswer):
        return action
    return FinalAnswer(content={"text": action.content, "attachments": [file.told for file in files]}, reason=action.reason)


class Plan(msgspec.Struct, metaclass=Explained, frozen=True, kw_only=True):
    """What a planner answers: one control action, or a batch of tool calls.

    `thinking` is kept apart from the answer; `provider_data` is what a provider needs back, stored and returned unchanged. `files` are what a
    model made: they are stored as artifacts of the run before the plan is recorded, which names them by the SHA-256 of their bytes.
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


class ContextProfile(msgspec.Struct, frozen=True, kw_only=True):
    """Thresholds by model size. `window_tokens` is the model's context; characters count what one result may show inline."""

    tier: str = "mid"
    tool_result_max_chars: _Positive = 1200
    preview_items: _Positive = 5
    schema_detail: Literal["names", "names-and-types", "full"] = "full"
    temperature: Annotated[float, msgspec.Meta(ge=0)] = 0.5
    window_tokens: _Positive = 32_768

    __post_init__ = check_fields


class ResultCompression(msgspec.Struct, frozen=True, kw_only=True):
    """How a large result is shown: at most `budget_chars`, the first `preview_items` of a list; the full value stays in the log."""

    budget_chars: int = 1200
    preview_items: int = 5


class View(msgspec.Struct, frozen=True, kw_only=True):
    """What a planner sees, built anew for each plan. Nothing in it is shared with the run: changing it changes nothing.

    `transcript` items have `kind` (`user`, `model`, `tool`, `note`); a tool item has `call_id`, `tool`, `args`, `ok`, `content`, `error`.
    `results` are all tool items of the pass, never compacted. `await full(item)` gives the whole value of a tool item whose `content` is
    only a preview.
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

    Raise `MalformedPlan` for an answer that is no plan (it is retried twice) and `PlannerFailed` when there is none.
    """

    async def plan(self, view: View) -> Plan: ...


def asks_only_its_own(planner: Planner) -> bool:
    """Whether `planner` asks its own model, or none, whatever a pass names: what a strategy gives a model of its own is then planned by name.

    A planner says so with an attribute of this name, which is optional; one without it plans every pass, and finds the model in `view.agent`.
    """
    return bool(getattr(planner, "asks_only_its_own", False))


def models_asked(planner: Planner, agent: AgentSpec) -> tuple[tuple[str, str], ...]:
    """Return the models that `planner` may ask for `agent`: (model, provider) pairs, as it hands them to `Models.call`.

    A planner says so with a method `models_asked(agent)`, which is optional and returns such pairs; one without it is taken to ask the
    models that the agent names. A run whose cost is bounded starts only where all of them have a price.
    """
    told = getattr(planner, "models_asked", None)
    named = ((agent.model, ""), (agent.small_model, "")) if told is None else told(agent)
    return tuple(dict.fromkeys((model, provider) for model, provider in named if model))
