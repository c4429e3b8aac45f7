"""How a pass is configured, its share of the budget, and the one place that assembles its context."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Literal

import msgspec

from detent.config.compaction import profile_of
from detent.config.planners import check_settings
from detent.config.profile import compression_for, tier_for
from detent.core.agent import AgentSpec
from detent.core.errors import ConfigError
from detent.kernel.context import KernelContext, Run
from detent.kernel.execution import carry_out
from detent.kernel.kernel import Kernel
from detent.kernel.planning import propose
from detent.ports import OwnModel, Tool, offered
from detent.ports.phases import KernelInput
from detent.running.foreign import answering


class Pass(msgspec.Struct, frozen=True, kw_only=True):
    """How a strategy configures one pass; None means the setting of the agent and the run.

    `guards` are names of guards that are checked in addition to those of the run and of the pass's kernel, `guidance` is shown in every turn of the
    pass, `small` selects the small model. An empty `output_schema` means that any answer will do. `model`, `planner` and `settings` are explained at
    `ports.Branch`.
    """

    task: str = ""
    instructions: str | None = None
    tools: tuple[str, ...] | None = None
    guards: tuple[str, ...] = ()
    guidance: tuple[str, ...] = ()
    output_schema: dict[str, Any] | None = None
    small: bool = False
    model: str = ""
    planner: Literal["", "on-device"] = ""
    settings: dict[str, Any] = {}


def own_agent(agent: AgentSpec, given: Pass | OwnModel) -> AgentSpec:
    """Return the agent for a pass with its own model, planner or settings: rules plan no such pass, and the tier is that model's."""
    settings = given.settings if given.model else {**agent.model_settings, **given.settings}
    if not (given.model or given.planner):
        return msgspec.structs.replace(agent, model_settings=settings) if given.settings else agent
    own = msgspec.structs.replace(agent, planner=given.planner, model_settings=settings, rules=())
    if not given.model:
        return own
    profile = {**agent.profile, "tier": tier_for(given.model)} if agent.profile else {}
    return msgspec.structs.replace(own, model=given.model, small_model="", profile=profile)


def refuse_unusable(agent: AgentSpec, given: Pass | OwnModel, where: str) -> None:
    """Raise `ConfigError` for settings that no model has, and for a planner that needs a model if there is none."""
    if given.settings:
        check_settings(given.settings, f"{where}: settings")
    if given.planner and not (given.model or agent.model):
        raise ConfigError(f"{where}: planner {given.planner!r} needs a model, and agent {agent.name!r} has none; name one (model=)")


def make_context(run: Run, scope: str, kernel: Kernel, given: Pass = Pass()) -> KernelContext:  # noqa: B008 - frozen
    """Assemble the one context of a pass. The parts of every strategy and every pass are put together only here."""
    state = run.state
    agent = own_agent(state.agent, given)
    profile = run.profile if agent.profile == state.agent.profile else profile_of(agent)
    agent = agent if given.instructions is None else msgspec.structs.replace(agent, instructions=given.instructions)
    own = meta_tools_of(kernel, agent.tools if given.tools is None else given.tools)
    known = {**run.tools, **own} if own else run.tools
    tools = known if given.tools is None else {name: tool for name, tool in known.items() if name in given.tools}
    return KernelContext(
        input=KernelInput(
            task=given.task or state.goal,
            instructions=agent.instructions,
            variables=state.variables,
            limits=state.passes[scope].limits,
            guidance=given.guidance,
            output_schema=state.output_schema if given.output_schema is None else given.output_schema or None,
            small=given.small,
        ),
        agent=agent,
        profile=profile,
        compression=run.compression if profile is run.profile else compression_for(profile),
        tools=answering(tools),
        hooks=run.hooks,
        guards=run.guards_with(kernel.guards, given.guards),
        run=run,
        scope=scope,
        specs=tuple(tool.spec for tool in tools.values() if offered(run.policy, tool.spec, state)),
        known={name: tool.spec for name, tool in known.items()},
        propose=propose,
        carry_out=carry_out,
    )


def meta_tools_of(kernel: Kernel, names: Collection[str]) -> dict[str, Tool]:
    """Return the meta-tools that a kernel adds to a pass with tools of these names."""
    return {tool.spec.name: tool for tool in kernel.meta_tools if tool.spec.name in names}
