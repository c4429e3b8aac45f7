"""The option `compaction` of an agent: a compactor's name, or a table of `CompactionOptions`.

An agent with a model that says nothing is compacted with the defaults: against `profile.window_tokens` if that is set, else against the window that its
planner knows of the model, and otherwise only after a prompt was refused as too long. The windows of the tiers are guesses; only an agent that asks for
compaction is measured against one. An agent with rules is never compacted, because rules read the whole transcript.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import msgspec

from detent.config.profile import make_profile
from detent.core.agent import AgentSpec
from detent.core.errors import ConfigError, UnknownName
from detent.ports import ContextProfile, Planner, models_asked
from detent.ports.compacting import CompactionOptions

OFF = "none"
RECALLS = "recall_turn"
"""The tool that reads dropped turns again. An agent that asks for compaction gets it."""


def compaction_table(given: Any) -> dict[str, Any]:
    """Return the option as the log records it. Raise `ConfigError`, `UnknownName`."""
    if isinstance(given, str):
        return {"use": str(given)} if given else {}
    if not isinstance(given, Mapping):
        raise ConfigError(f"compaction is {given!r}; give the name of a compactor, or a table such as {{'at': 0.7, 'use': 'summary'}}")
    if not given:
        return {}
    table = dict(cast("Mapping[str, Any]", given))
    if isinstance(use := table.get("use"), str):
        table["use"] = str(use)  # only the text of an import path is recorded
    make_compaction(table)
    return table


def compactor_in(given: Any) -> str:
    """Return the name of the compactor that the option asks for, "" if it asks for none; anything else is refused later."""
    said: Any = cast("Mapping[str, Any]", given).get("use") if isinstance(given, Mapping) else given
    return said if isinstance(said, str) else ""


def make_compaction(given: dict[str, Any]) -> CompactionOptions:
    """Return the options in a table, over the defaults. Raise `UnknownName` for an unknown key, `ConfigError` for an invalid value."""
    for field in given:
        if field not in CompactionOptions.__struct_fields__:
            raise UnknownName("compaction option", field, CompactionOptions.__struct_fields__)
    try:
        options = msgspec.convert(msgspec.to_builtins(given), CompactionOptions)
    except msgspec.ValidationError as error:
        why, _, field = str(error).removesuffix("`").partition(" - at `$.")
        raise ConfigError(f"compaction.{field}: {given.get(field)!r} does not fit: {why}") from None
    if options.to >= options.at:
        raise ConfigError(
            f"compaction.to is {options.to} and compaction.at {options.at}; a compaction must make the prompt smaller: to < at"
        )
    return options


def compacts(agent: AgentSpec, planner: Planner | None = None) -> CompactionOptions | None:
    """Return how runs of the agent are compacted, None if they are not. The engine's `planner` may have a model where the agent names none."""
    asked = agent.model or (planner is not None and models_asked(planner, agent))
    if not agent.compaction and (agent.rules or not asked):
        return None
    options = make_compaction(agent.compaction)
    return None if options.use == OFF else options


def profile_of(agent: AgentSpec) -> ContextProfile:
    """Return the agent's profile. Its window, of which a conversation and a strategy's findings get shares, is a smaller one that compaction is set to."""
    options, profile = compacts(agent), make_profile(agent.profile)
    if options is None or not 0 < options.window_tokens < profile.window_tokens:
        return profile
    return msgspec.structs.replace(profile, window_tokens=options.window_tokens)


def window_of(agent: AgentSpec, options: CompactionOptions, known: int) -> int:
    """Return the window against which prompts are measured, 0 if it is not known. `known` is what the planner knows of its model."""
    if options.window_tokens:
        return options.window_tokens
    given = make_profile(agent.profile).window_tokens
    return given if "window_tokens" in agent.profile else known or (given if agent.compaction else 0)
