"""What a strategy declares about itself: its options, which are checked before a run starts, and its version."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec

from detent.config.tables import take
from detent.core.agent import AgentSpec
from detent.core.errors import ConfigError
from detent.ports import OptionsT, OwnModel, Strategy
from detent.running.pass_context import own_agent, refuse_unusable


def check_options(strategy: Strategy, agent: AgentSpec) -> None:
    """Raise `ConfigError` for an unknown option, an invalid value, or an agent that the strategy does not support."""
    if getattr(strategy, "options", None) is None and agent.strategy_options:
        raise ConfigError(f"agent {agent.name!r}: strategy_options: the strategy {agent.strategy!r} takes none; leave them out")
    check_usable(strategy, agent)


def check_usable(strategy: Strategy, agent: AgentSpec) -> None:
    """Raise `ConfigError` if the strategy cannot work for the agent here; also asked before a run is resumed, perhaps on another machine."""
    kind: type[msgspec.Struct] | None = getattr(strategy, "options", None)
    if kind is not None:
        check: Callable[[AgentSpec], None] = getattr(options_of(agent, kind), "check", lambda agent: None)
        try:
            check(agent)
        except ConfigError as error:
            raise _named(agent, error) from None


def models_of(strategy: Strategy, agent: AgentSpec) -> list[AgentSpec]:
    """Return, as agents, the models that a strategy's options name for parts of its work. Raise `ConfigError` for their settings."""
    kind: type[msgspec.Struct] | None = getattr(strategy, "options", None)
    found = [] if kind is None else list(_own_models(options_of(agent, kind)))
    for own in found:
        refuse_unusable(agent, own, f"agent {agent.name!r}: strategy_options")
    return [own_agent(agent, own) for own in found if own.model or own.planner]


def _own_models(options: msgspec.Struct) -> Iterator[OwnModel]:
    for name in options.__struct_fields__:
        value = getattr(options, name)
        if isinstance(value, OwnModel):
            yield value
        elif isinstance(value, msgspec.Struct):
            yield from _own_models(value)


def options_of(agent: AgentSpec, kind: type[OptionsT]) -> OptionsT:
    """Return the agent's options for its strategy as a `kind`. Raise `ConfigError` naming the invalid option."""
    try:
        return take(agent.strategy_options, kind, f"agent {agent.name!r}: strategy_options")
    except ConfigError as error:
        raise _named(agent, error) from None
    except ValueError as error:
        raise ConfigError(f"agent {agent.name!r}: strategy_options: {error}") from None


def _named(agent: AgentSpec, error: ConfigError) -> ConfigError:
    """Return the error with the agent's name in front, if it has no name yet."""
    return error if type(error) is not ConfigError or str(error).startswith("agent ") else ConfigError(f"agent {agent.name!r}: {error}")


def version_of(strategy: Strategy) -> int:
    """Return the version of a strategy: its attribute `version`, 1 without one."""
    return int(getattr(strategy, "version", 1))
