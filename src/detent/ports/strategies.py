"""Strategies: they decide when a kernel runs, how often, and with which configuration."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Literal, Protocol, TypeVar

import msgspec

from detent.core.actions import AskUser, ToolCall
from detent.core.budget import NOTHING, Budget, Usage
from detent.core.errors import ConfigError, Explained
from detent.core.state import Item
from detent.ports.delegation import AgentResult, AgentTask, OwnAgent
from detent.ports.interpreting import ProgramAnswer, ProgramLimits, ProgramMove
from detent.ports.options import check_fields
from detent.ports.planning import ContextProfile
from detent.ports.tools import ToolSpec


class OwnModel(msgspec.Struct, metaclass=Explained, frozen=True, kw_only=True, omit_defaults=True):
    """The model that a strategy uses for part of its work, as an option of the strategy; if `model` is "", the agent's model.

    The fields are the same as in `Branch`. `settings` must not contain `base_url` or `api_key_env`: a strategy option cannot say where a model is.
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
        """Return these options as fields of a `Branch`."""
        return {"model": self.model, "planner": self.planner, "settings": self.settings}


class Branch(msgspec.Struct, metaclass=Explained, frozen=True, kw_only=True, omit_defaults=True):
    """One pass that a strategy asks for. Options that are not set come from the agent and the run.

    - `task`: what the pass must do, in words ("": the run's goal)
    - `instructions`: instructions for the planner
    - `kernel`: the name of a kernel
    - `limits`: bounds below those of the run
    - `tools`: the names of the tools that it may use (() for none)
    - `guards`: names of guards in addition to those of the run
    - `guidance`: a text for the planner in every turn
    - `output_schema`: the schema that the answer must satisfy ({}: none)
    - `small`: whether the small model is enough
    - `meta`: data of the strategy
    - `model`, `planner`: a model for this pass, as "provider:name", and how to call it, both as in an agent
    - `settings`: the settings of that model; without `model` they override the agent's `model_settings` (`temperature`, `max_tokens`, ...)

    With `calls` the planner is not called: the pass executes these calls as one batch and is `done`, without an output, when all of them have
    succeeded. Its `results` are their results in this order; the result of a call that asks the user is the reply. `provenance` marks that a program
    of a model makes the calls: policies see that. With `question` the planner is not called either: the user is asked, and the reply is the output.
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
    provenance: Literal["planner", "program"] = "planner"
    question: AskUser | None = None
    model: str = ""
    planner: Literal["", "on-device"] = ""
    settings: dict[str, Any] = {}

    __post_init__ = check_fields


class Passed(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of a pass: `done` with an output, or `failed` with the reason (`core.settle.REASONS`), an error and the best text so far.

    `text` is the planner's text next to its last calls, `results` are the observations of the pass.
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
    """What a strategy may use: passes and recorded values, memoised by parent scope, label and occurrence.

    A strategy must not read anything else that may differ next time: no clock, no random source, no environment.
    """  # DESIGN 6

    @property
    def goal(self) -> str: ...

    @property
    def agent(self) -> OwnAgent:
        """The agent of the run. Called, it lets one of its `subagents` work: `await run.agent(label, agent, goal)`."""
        ...

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
        """Make one model call (`small`: to the small model, if there is one) and return its answer; raise `PassFailed`.

        `options` are other fields of `Branch`: `instructions`, `guidance`, `limits`, `meta`, `model`, `planner`, `settings`.
        """
        ...

    async def ask_user(self, label: str, question: str, expected: dict[str, Any] | None = None) -> Any:
        """Ask the user and return the reply; raise `PassFailed` if there will be none. The wait uses no memory, and any process can continue after it.

        `expected` is a JSON Schema: a reply that does not match it is refused. Without a schema the reply is text.
        """
        ...

    async def offered(self) -> tuple[ToolSpec, ...]:
        """Return the names in `tools` that a planner is shown, so that a prompt may mention them. The first answer is kept."""
        ...

    async def full(self, item: Item) -> Any:
        """Return the whole value of a tool item, even if its `content` is only a preview."""
        ...

    async def parallel(self, *branches: Branch) -> tuple[Passed, ...]:
        """Run passes side by side, each with an equal share of the remaining budget; return their results in order."""
        ...

    async def agents(
        self,
        *tasks: AgentTask | AgentResult,
        label: str = "agents",
        concurrency: int | None = None,
        join: Literal["all", "any"] | int = "all",
        deadline: float | str | None = None,
        rest: Literal["let", "cancel"] = "let",
    ) -> tuple[AgentResult, ...]:
        """Let agents work side by side, and return the outcome of each task, in this order.

        At most `concurrency` of them (8) are open at a time. It returns when all have ended, any one, or that many (`join`), or after `deadline` seconds
        (or "1h30m"). The rest then continues, with the outcome `open`, or is cancelled. A result that is `open` can be given again to wait for it.
        """
        ...

    async def effect(self, label: str, make: Callable[[], Awaitable[Any]]) -> Any:
        """Return the recorded JSON value, or produce and record it. If that raises, raise `EffectFailed`, both live and in a replay."""
        ...

    async def program(
        self,
        label: str,
        text: str,
        functions: Sequence[str],
        answer: Callable[[ProgramMove], Awaitable[ProgramAnswer]],
        limits: ProgramLimits = ...,
    ) -> ProgramMove:
        """Run a Python program in a sandbox to its end, and return that. `functions` are the names that it may call; `answer` makes each call.

        Where it came to is recorded. After a restart it runs again from its top and must come to the same, else this raises `Divergence`.
        """
        ...

    async def now(self) -> float: ...

    async def random(self) -> float: ...

    async def sleep(self, seconds: float | str) -> None:
        """Wait that many seconds, or for a duration such as "1h30m"."""
        ...

    async def switch(self, name: str, why: str = "") -> None:
        """Record that the strategy `name` takes over."""
        ...


Strategy = Callable[[StrategyRun], Awaitable[Any]]
"""An async function that decides which passes run; it returns a `Passed`, or the run's output. See `strategy`."""


def strategy(*, options: type[msgspec.Struct] | None = None, version: int = 1) -> Callable[[Strategy], Strategy]:
    """Declare the options of a strategy (default: none) and its version (default: 1), which is recorded in the log; a decorator.

    `options` is a struct whose fields all have defaults. Agents set them as `strategy_options`, and they are checked before a run starts.
    A method `check(agent)` of the struct is called then, too, and may raise `ConfigError` for an agent that does not fit.
    """

    def declared(function: Strategy) -> Strategy:
        vars(function).update(options=options, version=version)
        return function

    return declared


def shared(budget: Budget, parts: int, number: int = 0) -> Budget:
    """Return the share of `budget` for pass `number` of `parts` passes side by side; time passes for all of them alike.

    If less than one is left for each, the first ones get one, and the others none: together they never have more than `budget`.
    """
    countable = ("iterations", "model_calls", "tool_calls", "failures", "input_tokens", "output_tokens", "total_tokens")
    limits = {f"max_{d}": limit for d in countable if (limit := getattr(budget, f"max_{d}")) is not None}
    shares: dict[str, float] = {name: limit // parts or int(number < limit) for name, limit in limits.items()}
    if budget.max_cost_usd is not None:
        shares["max_cost_usd"] = budget.max_cost_usd / parts or 1e-9
    return Budget(**shares)  # pyright: ignore[reportArgumentType] - each field gets a number of its own kind
