"""What an engine gives to the runs that it advances, and what a run finds by name there: tools, kernels, strategies, guards."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import msgspec

from detent.config.adapters import Tracing
from detent.config.compaction import profile_of
from detent.config.groups import DRAIN_S, GRACE_S
from detent.config.names import Names
from detent.config.profile import compression_for
from detent.config.remembering import Memories
from detent.core.agent import AgentSpec, Host
from detent.core.budget import Budget
from detent.core.codec import digest_of
from detent.core.errors import ToolsMissing, UnknownName
from detent.core.state import RunState
from detent.kernel.context import Run, World
from detent.kernel.kernel import Kernel
from detent.metering.accounts import Accounts
from detent.metering.gateway import Traffic
from detent.metering.tenants import Tenants
from detent.ports import (
    Capabilities,
    Clock,
    EventStore,
    Guard,
    Ids,
    KernelHooks,
    MetaTool,
    Planner,
    Policy,
    Scheduler,
    SecretSource,
    Strategy,
    Tool,
    Toolbox,
    ToolSpec,
    noop_hooks,
)
from detent.ports.compacting import Compactor
from detent.ports.delegation import Children
from detent.ports.governance import PolicyOf, guarding
from detent.ports.heads import CODE
from detent.running.alike import Alike
from detent.running.controls import control
from detent.running.declarations import held
from detent.running.endings import objection
from detent.running.estimating import ESTIMATOR
from detent.running.foreign import record_changes
from detent.running.healing import heal
from detent.running.overseeing import tool_of
from detent.running.verifying import Answers
from detent.running.views import Views
from detent.running.watcher import Watcher


class Parts(msgspec.Struct, frozen=True, kw_only=True):
    """What an engine gives to the runs that it advances.

    `policy` is the engine's own; `policy_of` returns an agent's combined with it, `guards_of` the guards of an agent after the kernel's, `answers`
    decides whether answers count. `ended` is called
    when a run has ended. `affordable` raises `ConfigError` if cost is bounded and a model has no price. `planner_of_pass` does so too, and
    returns the planner of a pass with a model of its own. `sees` has the functions that choose what children see of their parents.
    """

    store: EventStore
    tools: Toolbox
    policy: Policy
    policy_of: PolicyOf
    guards_of: Callable[[AgentSpec, Sequence[Guard], dict[str, Tool]], Sequence[Guard]]
    answers: Answers
    kernel: Kernel
    kernels: Names[Kernel]
    strategies: Names[Strategy]
    compactors: Names[Compactor]
    clock: Clock
    ids: Ids
    watcher: Watcher
    hooks: KernelHooks = noop_hooks
    redact: tuple[str, ...] = ()
    grants: tuple[dict[str, Any], ...] = ()
    secrets: SecretSource | None = None
    capabilities: Capabilities | None = None
    worker: str = ""
    version: str = ""
    grace_s: float = GRACE_S
    drain_s: float = DRAIN_S
    max_active_per_key: int | None = None
    traffic: Traffic | None = None
    titles: bool = False
    tenants: Tenants | None = None
    scheduler: Scheduler | None = None
    affordable: Callable[[AgentSpec, Budget, Host], None] = lambda agent, budget, host: None
    planner_of_pass: Callable[[AgentSpec, Budget, Host], Planner] | None = None
    memories: Memories = msgspec.field(default_factory=Memories)
    ended: Callable[[RunState], None] = lambda state: None
    children: Children | None = None
    tracing: Tracing = msgspec.field(default_factory=Tracing)
    sees: dict[str, Callable[..., Any]] = msgspec.field(default_factory=dict[str, Callable[..., Any]])
    digest: Callable[[ToolSpec], str] = lambda spec: digest_of([spec.name, spec.input_schema])
    alike: Alike = msgspec.field(default_factory=Alike)

    @property
    def accounts(self) -> Accounts:
        """What is held in the store."""
        return self.watcher.accounts


def tools_of(state: RunState, parts: Parts, *, missing_ok: bool = False) -> dict[str, Tool]:
    """Return the tools that the run's agent lists. Raise `ToolsMissing` naming those that are not here, unless that is allowed.

    A name that neither the agent's kernel nor the engine's tools have may be a meta-tool of another kernel (`make_run`).
    """
    found: dict[str, Tool] = {}
    missing: list[str] = []
    usual = _usual(state.agent, parts) if state.agent.tools else {}
    for name in state.agent.tools:
        if (tool := _everywhere(name, state.agent, parts, usual) or meta_tool_of_some_kernel(name, parts)) is not None:
            found[name] = tool
        else:
            missing.append(name)
    if missing and not missing_ok:
        raise ToolsMissing(state.run_id, missing)
    return found


def _usual(agent: AgentSpec, parts: Parts) -> dict[str, Tool]:
    return {tool.spec.name: tool for tool in reversed(kernel_of(agent, parts).meta_tools)}


def _everywhere(name: str, agent: AgentSpec, parts: Parts, usual: Mapping[str, Tool]) -> Tool | None:
    """Return the tool that this name refers to in every pass, whatever its kernel; None if there is none. `usual`: the meta-tools of the agent's kernel."""
    if (delegates := (tool_of(name, agent, parts.store) if agent.subagents else None) or usual.get(name)) is not None:
        return delegates
    try:
        return parts.tools.get(name)
    except UnknownName:
        return None


def meta_tool_of_some_kernel(name: str, parts: Parts) -> MetaTool | None:
    """Return the meta-tool of this name that some kernel of the engine has; only passes with that kernel have it."""
    kernels = map(parts.kernels.get, parts.kernels.names())
    return next((tool for kernel in kernels for tool in kernel.meta_tools if tool.spec.name == name), None)


def nameless(name: str, agent: AgentSpec, parts: Parts) -> bool:
    """Whether the name is neither that of a tool by which the agent starts others, nor of a meta-tool of some kernel, nor of a tool found when it is used."""
    with suppress(UnknownName):
        return not parts.tools.get(name)
    return tool_of(name, agent, None) is None and meta_tool_of_some_kernel(name, parts) is None


def digests_of(tools: dict[str, Tool], parts: Parts, capabilities: dict[str, str], *, compacts: bool = False) -> dict[str, str]:
    """Return the digests that a later resume compares: policy, kernel, each tool's schema, each capability's descriptor, the version of the code if
    it has one, and the version of the estimator of prompts if the run `compacts`.
    """
    named = {f"tool:{name}": parts.digest(tool.spec)[:16] for name, tool in tools.items()}
    described = {f"capability:{name}": digest for name, digest in capabilities.items()}
    sized = {"estimator": ESTIMATOR} if compacts else {}
    sized |= {CODE: parts.version} if parts.version else {}
    return {"policy": parts.policy.version, "kernel": f"{parts.kernel.name}-{parts.kernel.version}", **named, **described, **sized}


def ways_of(state: RunState, parts: Parts) -> tuple[Strategy, Callable[[str], Kernel]]:
    """Return the strategy that the run began with, and the kernels by name ("": the agent's, else the engine's own). Raise `UnknownName`."""
    usual = kernel_of(state.agent, parts)
    return parts.strategies.get(state.agent.strategy), partial(kernel_named, usual, parts.kernels)


def links_of(state: RunState) -> Sequence[dict[str, Any]]:
    """Return the policies of the runs above, which are asked for every call of this one."""
    return () if state.delegated is None else state.delegated.policies


def kernel_named(usual: Kernel, kernels: Names[Kernel], name: str) -> Kernel:
    """Return the kernel of this name, "": the default one. Raise `UnknownName`."""
    return kernels.get(name) if name else usual


def kernel_of(agent: AgentSpec, parts: Parts) -> Kernel:
    """Return the kernel that the agent names, else the engine's own; raise `UnknownName`."""
    return parts.kernels.get(agent.kernel) if agent.kernel else parts.kernel


def make_run(journal: Any, world: World, parts: Parts, tools: dict[str, Tool], *, links: Sequence[dict[str, Any]] | None = None) -> Run:
    """Assemble what the passes of a run share: `tools` without those that only passes with another kernel have. `links`: see `links_of`."""
    agent: AgentSpec = journal.state.agent
    tools = held(tools, journal.state.levels)
    usual = _usual(agent, parts)
    tools = {n: tool for n, tool in tools.items() if not isinstance(tool, MetaTool) or _everywhere(n, agent, parts, usual) is not None}
    profile = profile_of(agent)
    return Run(
        journal=journal,
        world=world,
        tools=tools,
        policy=parts.policy_of(agent, links_of(journal.state) if links is None else links),
        guards_with=PassGuards(agent, parts, tools),
        hooks=parts.hooks,
        profile=profile,
        compression=compression_for(profile),
        objection=objection,
        answers=parts.answers,
        view=Views(),
        changed=record_changes,
        heal=heal if agent.healing else None,
        control=control,
    )


class PassGuards:
    """The guards of a run's passes (`Run.guards_with`): the engine's, the agent's, and those of the pass; each once."""

    __slots__ = ("_agent", "_house", "_parts", "_tools", "_usual")

    def __init__(self, agent: AgentSpec, parts: Parts, tools: dict[str, Tool]) -> None:
        self._agent, self._parts, self._tools = agent, parts, tools
        self._house = (*parts.kernel.guards, *kernel_of(agent, parts).guards)
        self._usual = self._found((), ())

    def __call__(self, more: Sequence[Guard], names: Sequence[str]) -> tuple[Guard, ...]:
        """Return the guards of a pass. `more` are those of its kernel; its strategy gives these names."""
        return self._usual if not names and all(guard in self._house for guard in more) else self._found(more, names)

    def _found(self, more: Sequence[Guard], names: Sequence[str]) -> tuple[Guard, ...]:
        named = msgspec.structs.replace(self._agent, guards=(*self._agent.guards, *names)) if names else self._agent
        return tuple(map(guarding, self._parts.guards_of(named, (*self._house, *more), self._tools)))
