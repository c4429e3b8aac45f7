"""Strategies: when a kernel runs, how often and how configured."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Literal, Protocol, TypeVar

import msgspec

from detent.core.actions import AskUser, ToolCall
from detent.core.agent import AgentSpec
from detent.core.budget import NOTHING, Budget, Usage
from detent.core.errors import ConfigError, Explained
from detent.core.state import Item
from detent.ports.options import check_fields
from detent.ports.planning import ContextProfile
from detent.ports.tools import ToolSpec


class OwnModel(msgspec.Struct, metaclass=Explained, frozen=True, kw_only=True, omit_defaults=True):
    """Which model a strategy asks for part of its work, as an option of the strategy; the agent's own where `model` is "".

    The fields are those of `Branch`. Where a model is reached is not said here: `settings` name no `base_url` and no `api_key_env`.
    """

    model: str = ""
    planner: Literal["", "on-device"] = ""
    settings: dict[str, Any] = {}

    def __post_init__(self) -> None:
        check_fields(self)
        if elsewhere := [name for name in ("base_url", "api_key_env") if name in self.settings]:
            raise ConfigError(
                f"settings: {elsewhere[0]} cannot be an option of a strategy; a strategy of your own names it in Branch(settings=)"
            )

    def said(self) -> dict[str, Any]:
        """Return the fields of a `Branch` that this is."""
        return {"model": self.model, "planner": self.planner, "settings": self.settings}


class Branch(msgspec.Struct, metaclass=Explained, frozen=True, kw_only=True, omit_defaults=True):
    """One pass as a strategy asks for it. What is not said is as the agent and the run have it.

    `task` is what the pass is to do in words ("": the run's goal), `instructions` who works on it, `kernel` the name of a kernel, `limits`
    bounds below the run's own, `tools` the names of the tools that it may use (() for none), `guards` names of guards beside the run's,
    `guidance` what the planner is told in every turn, `output_schema` what the answer must satisfy ({}: nothing), `small` whether the small
    model will do, `meta` the strategy's own data.

    `model` is a model of the pass's own, as "provider:name", and `planner` how it is asked, both as an agent has them. `settings` are those of
    that model alone; without a `model` they go over the agent's `model_settings` (`temperature`, `max_tokens`, ...).

    With `calls` no planner is asked: the pass carries these calls out as one batch and is `done` when all of them succeeded, without an
    output; its `results` are theirs, in this order, and that of a call that asks the user is the reply. With `question` no planner is asked
    either: the user is, and the reply is the output.
    """

    label: str
    task: str = ""
    instructions: str | None = None
    kernel: str = ""
    limits: Budget = Budget()
    tools: tuple[str, ...] | None = None
    guards: tuple[str, ...] = ()
    guidance: tuple[str, ...] = ()
    output_schema: dict[str, Any] | None = None
    small: bool = False
    meta: dict[str, Any] = {}
    calls: tuple[ToolCall, ...] = ()
    question: AskUser | None = None
    model: str = ""
    planner: Literal["", "on-device"] = ""
    settings: dict[str, Any] = {}

    __post_init__ = check_fields


class Passed(msgspec.Struct, frozen=True, kw_only=True):
    """What came of a pass: `done` with an output, or `failed` with the reason (`core.settle.REASONS`), an error and the best text so far.

    `text` is what the planner said beside its last calls, `results` are the observations of the pass.
    """

    label: str
    scope: str
    status: Literal["done", "failed"]
    reason: str
    output: Any = None
    error: str = ""
    partial: str = ""
    text: str = ""
    usage: Usage = NOTHING
    tools_used: frozenset[str] = frozenset()
    results: Sequence[Item] = ()
    bound: Any = None


OptionsT = TypeVar("OptionsT", bound=msgspec.Struct)


class StrategyRun(Protocol):
    """What a strategy works with: passes and recorded values, memoised by parent scope, label and occurrence (DESIGN 6).

    A strategy reads nothing else that may differ the next time: no clock, no random source, no environment.
    """

    @property
    def goal(self) -> str: ...

    @property
    def agent(self) -> AgentSpec: ...

    @property
    def variables(self) -> dict[str, Any]: ...

    @property
    def output_schema(self) -> dict[str, Any] | None: ...

    @property
    def tools(self) -> tuple[ToolSpec, ...]: ...

    @property
    def budget_remaining(self) -> Budget: ...

    @property
    def profile(self) -> ContextProfile: ...

    async def kernel(self, label: str, **options: Any) -> Passed:
        """Run one pass; `options` are the fields of `Branch`. A pass that has ended is not run again."""
        ...

    def options(self, kind: type[OptionsT]) -> OptionsT:
        """Return the agent's `strategy_options` as a `kind`; raise `ConfigError` naming the option that does not fit."""
        ...

    async def ask(self, label: str, prompt: str, schema: dict[str, Any] | None = None, *, small: bool = True, **options: Any) -> Any:
        """Make one model call (`small`: the small model's, where there is one) and return its answer; raise `PassFailed`.

        `options` are other fields of `Branch`: `instructions`, `model`, `settings`.
        """
        ...

    async def ask_user(self, label: str, question: str, expected: dict[str, Any] | None = None) -> Any:
        """Ask the user, wait for the reply in no memory and in any process, and return it; raise `PassFailed` where there will be none.

        `expected` is a JSON Schema: a reply that does not fit it is refused to whoever gives it. Without one the reply is text.
        """
        ...

    async def offered(self) -> tuple[ToolSpec, ...]:
        """Return those of `tools` that a planner is shown, as it was when this was first asked: what a prompt may speak of."""
        ...

    async def full(self, item: Item) -> Any:
        """Return the whole value of a tool item, also where its `content` is only a preview."""
        ...

    async def parallel(self, *branches: Branch) -> tuple[Passed, ...]:
        """Run passes side by side, each with an equal share of what is left of the budget; return their results in order."""
        ...

    async def effect(self, label: str, make: Callable[[], Awaitable[Any]]) -> Any:
        """Return the recorded JSON value, or make and record it; raise `EffectFailed`, live and in a replay, where that raised."""
        ...

    async def now(self) -> float: ...

    async def random(self) -> float: ...

    async def sleep(self, seconds: float | str) -> None:
        """Wait so many seconds, or as long as text such as "1h30m" says."""
        ...

    async def switch(self, name: str, why: str = "") -> None:
        """Put on record that the strategy `name` takes over."""
        ...


Strategy = Callable[[StrategyRun], Awaitable[Any]]
"""An async function that decides which passes run; it returns a `Passed`, or the run's output. See `strategy`."""


def strategy(*, options: type[msgspec.Struct] | None = None, version: int = 1) -> Callable[[Strategy], Strategy]:
    """Declare what options a strategy takes (none) and its version (1), which stands in the log; a decorator.

    `options` is a struct whose fields all have defaults: agents give them as `strategy_options`, and they are checked before a run starts.
    A method `check(agent)` of the struct is called then, too, to raise `ConfigError` for an agent that cannot be served.
    """

    def declared(function: Strategy) -> Strategy:
        vars(function).update(options=options, version=version)
        return function

    return declared
