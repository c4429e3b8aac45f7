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


class ContextProfile(msgspec.Struct, metaclass=Explained, frozen=True, kw_only=True):
    """Thresholds by model size. `window_tokens` is the model's context; characters count what one result may show inline."""

    tier: str = "mid"
    tool_result_max_chars: _Positive = 1200
    preview_items: _Positive = 5
    schema_detail: Literal["names", "names-and-types", "full"] = "full"
    temperature: Annotated[float, msgspec.Meta(ge=0)] = 0.5
    window_tokens: _Positive = 32_768

    __post_init__ = check_fields


class ResultCompression(msgspec.Struct, metaclass=Explained, frozen=True, kw_only=True):
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


class ModelAnswer(msgspec.Struct, metaclass=Explained, frozen=True, kw_only=True):
    """What one model call gave: `value` is the adapter's own; `model` the name that the provider reports.

    `finish` is why the model stopped: `stop`, `length`, `tool_call`, `content_filter` or `error`. An unknown `usage.cost_usd` is filled
    in by the gateway from the price list.
    """

    value: Any
    usage: Usage = NOTHING
    model: str = ""
    request_id: str = ""
    finish: str = ""


class Models(Protocol):
    """The run's gateway to models (DESIGN 7): every model call of a run passes through it and stands in the log."""

    async def call(
        self,
        model: str,
        send: Callable[[int | None], Awaitable[ModelAnswer]],
        *,
        provider: str = "",
        purpose: str = "plan",
        input_tokens: int = 0,
        max_output_tokens: int | None = None,
    ) -> ModelAnswer:
        """Make one model call and return its answer; retryable failures are tried again with backoff, each attempt on record.

        `send(limit)` makes one request; `limit` is the most output tokens that it may ask for: `max_output_tokens` clamped to what the
        run's budget leaves (None: no limit; where none is named and tokens or cost are bounded, a usual one). It raises `ModelCallFailure`
        for what the provider refused or broke. `input_tokens` is an estimate of the prompt's size, for the reservation. `provider` names
        what concurrency and rate limits are shared by (else what stands before the colon of `model`). `purpose` says what the call is for;
        usage that a plan reports is charged only where no call with the purpose `plan` came before it. Raises `ModelCallFailure` when
        attempts are used up or the failure is not retryable, `BoundReached` where no budget is left.
        """
        ...

    def emit(self, kind: Literal["text", "thinking"], content: str) -> None:
        """Stream a piece of what the model says to observers: at once, best effort, never stored."""
        ...


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
