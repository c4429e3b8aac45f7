"""What an agent of the command line needs: its file, its planner, and the parts that its file or its log names."""

from __future__ import annotations

import contextlib
import difflib
from pathlib import Path
from typing import Any

import msgspec

from detent.config.agents import Agent, starts_of, with_starts
from detent.config.engines import Config, allowed_servers
from detent.config.imports import load_tool
from detent.config.loading import AGENT_FILE, IMPORTS, path_of_agent
from detent.config.names import Names, load_named, load_phases
from detent.config.tables import place_of
from detent.core.agent import AgentSpec
from detent.core.errors import ConfigError, UnknownName
from detent.core.state import RunState
from detent.engine import Engine
from detent.ports.verifying import Stated
from detent.running.delegating import subagents_of
from detent.running.overseeing import tool_of

replace = msgspec.structs.replace


def import_parts(engine: Engine, meta: dict[str, Any], where: str) -> None:
    """Import the parts of a log's `meta` that count. Raise `ConfigError`."""
    engine.tools.add_all([load_tool(path, where) for path in meta[IMPORTS["tool"]]])
    engine.verifiers.add({path: Stated({"function": path}, load_named("verifier", path, where)) for path in meta[IMPORTS["verify"]]})
    registries: dict[str, Names[Any]] = {"guard": engine.guards, "strategy": engine.strategies, "kernel": engine.kernels}
    registries["compactor"] = engine.runtime.parts.compactors
    for kind, names in registries.items():
        for path in meta[IMPORTS[kind]]:
            if path not in names:
                names.register(path, load_named(kind, path, where))
    if phases := meta[IMPORTS["phase"]]:
        kernel = load_phases(phases, where)
        if kernel.name not in engine.kernels:
            engine.kernels.register(kernel.name, kernel)


def with_allowed_servers(agent: Agent, config: Config) -> Agent:
    """Return the agent, and those that it may start, with what the operator allows their servers."""
    starts = {name: one if isinstance(one, str) else with_allowed_servers(one, config) for name, one in starts_of(agent.subagents).items()}
    return with_starts(replace(agent, mcp=allowed_servers(agent.mcp, config)), starts)


def states_below(state: RunState) -> list[RunState]:
    """Return a state for each agent that the run may start, as its log has it; they work where the run does."""
    found = [one for one in subagents_of(state.agent).values() if isinstance(one, AgentSpec)]
    place = {"workspace": state.agent.meta["workspace"]} if "workspace" in state.agent.meta else {}
    return [RunState(run_id=state.run_id, agent=replace(one, meta={**place, **one.meta})) for one in found]


def refuse_unknown_tools(engine: Engine, agent: Agent, path: Path | str) -> None:
    """Raise `ConfigError` for a tool that is neither here nor a server's; one of a plug-in package is registered."""
    kernel = engine.kernels.get(agent.kernel) if agent.kernel else engine.runtime.parts.kernel
    spec = agent.spec()
    for name in {name for name in agent.tool_names() if tool_of(name, spec, None) is None} - {tool.name for tool in kernel.meta_tools}:
        with contextlib.suppress(UnknownName):  # reported below, with all known names
            engine.tools.get(name)  # a meta-tool, or a tool of a plug-in package
        if name not in engine.tools and not engine.servers.claims(name):
            engine.protocols.refuse_unasked([name])
            raise ConfigError(f"{path}: tools: {UnknownName('tool', name, _known_tools(engine))}")


def _known_tools(engine: Engine) -> list[str]:
    from detent.tools.workspace.tools import workspace_tools

    return sorted({*engine.tools.names(), *(tool.name for tool in workspace_tools("."))})


def check_planner(engine: Engine, agent: Agent, path: Path | str) -> None:
    """Raise `ConfigError` if nothing decides what an agent does."""
    if agent.rules or agent.model or engine.planner is not None:
        return
    raise ConfigError(
        f"{path}: agent {agent.name!r} has neither a model nor rules, so nothing decides what it does\n"
        'give it model = "openai:gpt-5" (`detent doctor` shows what is available), or rules = "rules.yaml" (`detent init` writes an example)'
    )


def agent_path(config: Config, named: str) -> Path:
    """Return the agent file for a path, or a name in `[agents]`. Raise `ConfigError`."""
    agents = config.agents or {}
    path = path_of_agent(agents.get(named, named))
    if not place_of(path)[0].exists() and named not in agents:
        near = difflib.get_close_matches(named, agents, n=1)
        hint = f"; did you mean the agent {near[0]!r}?" if near else ""
        raise ConfigError(f"there is no agent file {named!r}{hint} (`detent init` writes an example)")
    return path


def no_agent() -> str:
    """Return the two-line error for a `run` with neither an agent nor a model."""
    from detent.planners.providers import SUGGESTED, providers_with_key

    ready = providers_with_key()
    what = f"no agent was given, there is no {AGENT_FILE} here, and no --model"
    if ready:
        model = SUGGESTED[ready[0]]
        return (
            f"{what}\na key is set, so: detent run --model {model} GOAL; without a model, use rules: `detent init`; more: `detent doctor`"
        )
    return (
        f"{what}; no provider key is set either\n"
        "without a key, use rules (`detent init` writes an example) or a local model; `detent doctor` shows what is available and what to do"
    )


def refuse_logged(state: RunState, engine: Engine) -> None:
    """Raise `ConfigError` for tools whose import path only the run's log has."""
    missing = [name for name in state.agent.tools if not (_has(engine, name) or engine.servers.claims(name))]
    if missing and state.agent.meta.get("tool_imports"):
        raise ConfigError(
            f"run {state.run_id!r} of agent {state.agent.name!r} needs {', '.join(missing)}: imports are not taken from logs; "
            "name its agent file in [agents] of this worker's detent.toml, or its tools in tools"
        )


def _has(engine: Engine, name: str) -> bool:
    try:
        engine.tools.get(name)
    except UnknownName:
        return False
    return True
