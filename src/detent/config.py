"""Agents and engines as data: what a program or a file says, with defaults and merge."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from detent.core.agent import AgentSpec
from detent.core.budget import Budget
from detent.core.errors import ConfigError


class Agent(msgspec.Struct, frozen=True, kw_only=True):
    """Who works on a goal. `tools` are names, or tools, which are then registered with the engine that runs the agent.

    Only the listed tools are offered. `rules` (entries of a rule file) make the agent plan without a model.
    """

    name: str
    instructions: str = ""
    model: str = ""
    small_model: str = ""
    strategy: str = "reactive"
    tools: Sequence[Any] = ()
    rules: Sequence[dict[str, Any]] = ()
    budget: Budget = Budget()
    variables: dict[str, Any] = {}
    on_deny: Literal["observe", "fail"] = "observe"
    on_reject: Literal["observe", "stop"] = "observe"
    on_unknown: Literal["wait", "tell"] = "wait"
    profile: dict[str, Any] = {}
    redact: Sequence[str] = ()
    output_schema: dict[str, Any] | None = None
    meta: dict[str, Any] = {}

    def __post_init__(self) -> None:
        if not self.name.strip():
            raise ConfigError("an agent needs a name; give Agent(name=...)")
        if isinstance(self.tools, str):
            raise ConfigError(f"agent {self.name!r}: tools must be a list, not the text {self.tools!r}; write tools=[{self.tools!r}]")

    def tool_names(self) -> tuple[str, ...]:
        """Return the names of the listed tools, each once."""
        return tuple(dict.fromkeys(t if isinstance(t, str) else t.name for t in self.tools))

    def spec(self) -> AgentSpec:
        """Return the agent as the data that stands in the log."""
        return AgentSpec(
            name=self.name,
            instructions=self.instructions,
            model=self.model,
            small_model=self.small_model,
            strategy=self.strategy,
            tools=self.tool_names(),
            rules=tuple(self.rules),
            budget=self.budget,
            on_deny=self.on_deny,
            on_reject=self.on_reject,
            on_unknown=self.on_unknown,
            profile=self.profile,
            redact=tuple(self.redact),
            output_schema=self.output_schema,
            meta=self.meta,
        )
