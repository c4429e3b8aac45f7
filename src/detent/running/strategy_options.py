"""What a strategy declares about itself: its options, which are checked before a run starts, and its version."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from detent.config.tables import take
from detent.core.agent import AgentSpec
from detent.core.errors import ConfigError
from detent.ports import OptionsT, Strategy


def check_options(strategy: Strategy, agent: AgentSpec) -> None:
    """Raise `ConfigError` for an option that the strategy does not have, a value that does not fit it, an agent that it cannot serve."""
    kind: type[msgspec.Struct] | None = getattr(strategy, "options", None)
    if kind is not None:
        check: Callable[[AgentSpec], None] = getattr(options_of(agent, kind), "check", lambda agent: None)
        check(agent)
    elif agent.strategy_options:
        raise ConfigError(f"agent {agent.name!r}: strategy_options: the strategy {agent.strategy!r} takes none; leave them out")


def options_of(agent: AgentSpec, kind: type[OptionsT]) -> OptionsT:
    """Return the agent's options for its strategy as a `kind`; raise `ConfigError` naming the option that does not fit."""
    try:
        return take(agent.strategy_options, kind, f"agent {agent.name!r}: strategy_options")
    except ValueError as error:
        raise ConfigError(f"agent {agent.name!r}: strategy_options: {error}") from None


def version_of(strategy: Strategy) -> int:
    """Return the version of a strategy: its attribute `version`, 1 without one."""
    return int(getattr(strategy, "version", 1))
