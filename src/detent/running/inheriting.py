"""What a child run gets from its parent: never more than its parent has.

Tenant, workspace and principal are the parent's. Scopes, credentials and tools are at most what the parent has or declares for this agent. The policies
of all runs above are recorded in the child's first record, and each call of the child is decided by them too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from detent.config.agents import PREFIX
from detent.core.agent import AgentSpec, Host
from detent.core.errors import UnknownName
from detent.core.events import Delegated, RunStarted, SideEffect
from detent.core.state import Child, RunState
from detent.ports import Toolbox
from detent.ports.governance import data_of
from detent.running import admission, starting
from detent.running.conversing import encoded, shown_of
from detent.running.declarations import rank
from detent.running.delegating import depth_of, subagents_of
from detent.running.parts import tools_of
from detent.running.runtime import Runtime
from detent.running.seeing import seen_by
from detent.running.strategy_options import version_of
from detent.secrecy.redact import hidden

replace = msgspec.structs.replace


async def started(runtime: Runtime, state: RunState, child: Child) -> RunStarted:
    """Return the first record of a child, as its parent's log wants it. Raise `ConfigError`, `ToolsMissing` if it cannot run here."""
    said, declared = subagents_of(state.agent)[child.agent], state.agent.subagents[child.agent]
    variables: dict[str, Any] = {} if isinstance(said, str) else declared.get("variables", {})
    if isinstance(said, str):
        known = starting.known_agent(runtime, said)
        said, variables = known.spec(), known.variables
    if runtime.servers:
        said = replace(said, tools=await runtime.servers.prepare(said.tools, resuming=True))
    spec = narrowed(said, child, state)
    runtime.refuse_unusable(spec)
    host = narrowed_host(state.host, spec, child, runtime.tools)
    spec = runtime.parts.memories.bound(spec, host)
    budget = child.spawned.budget.over(runtime.budget)
    runtime.refuse_unpriced(spec, budget, host)
    tools = tools_of(RunState(run_id=child.child, agent=spec), runtime.parts)
    admission.refuse_control_in_reach(runtime.store, runtime.parts.secrets, spec, tools)
    above, patterns = state.delegated, (*runtime.parts.redact, *state.agent.redact)
    data = data_of(runtime.parts.policy)
    link = runtime.parts.policy_of.link(state.agent, whole=not patterns or hidden(data, patterns) == data)
    variables = {**variables, **child.spawned.variables}
    conversation, sees = await shown_of(runtime.store, state), None
    if (seen := seen_by(spec, state, conversation, runtime.parts.sees)) is not None:
        data, sees = encoded(seen)
        await runtime.store.put_blob(child.child, sees.key, data)
    given = {"goal": child.goal, **({"variables": variables} if variables else {})}
    return RunStarted(
        goal=child.goal,
        agent=spec,
        budget=budget,
        host=host,
        variables=variables,
        output_schema=spec.output_schema if (own := child.spawned.output_schema) is None else own or None,
        strategy=spec.strategy,
        strategy_version=version_of(runtime.parts.strategies.get(spec.strategy)),
        parent=state.run_id,
        queued=None if state.queued is None else replace(state.queued, dedupe_key="", not_before=None),
        levels=strict_levels(state.levels, {name: tool.spec.side_effect for name, tool in tools.items()}),
        delegated=Delegated(
            root=state.goal_id,
            call=child.spawned.call,
            sequence=state.seq,
            digest=state.digest,
            depth=depth_of(state) + 1,
            path=(*(above.path if above else (state.agent.name,)), child.agent),
            conversation=sees,
            origin=runtime.parts.tracing.origin_of(state, child.spawned.call, given, conversation),
            policies=(*(above.policies if above else ()), link),
        ),
    )


def narrowed(said: AgentSpec, child: Child, state: RunState) -> AgentSpec:
    """Return the agent of a child: only with the tools that its call named, and with what its parent keeps out of logs and runs in a sandbox."""
    redact = tuple(dict.fromkeys((*state.agent.redact, *said.redact)))
    meta = {**said.meta, "sandbox": "require"} if state.agent.meta.get("sandbox") == "require" else said.meta
    spec = replace(said, redact=redact, meta=meta)
    if (only := child.spawned.tools) is None:
        return spec
    left = {name: one for name, one in spec.subagents.items() if f"{PREFIX}{name}" in only}
    return replace(spec, tools=tuple(name for name in spec.tools if name in only), subagents=left)


def narrowed_host(host: Host, spec: AgentSpec, child: Child, toolbox: Toolbox) -> Host:
    """Return who asks in a child's name: its parent's host, with the scopes that the call named, and the credentials that some tool below needs."""
    only = child.spawned.scopes
    scopes = host.scopes if only is None else tuple(scope for scope in host.scopes if scope in only)
    needed = None if not host.credential_refs else _credentials(spec, toolbox)
    refs = host.credential_refs if needed is None else tuple(name for name in host.credential_refs if name in needed)
    return replace(host, scopes=scopes, credential_refs=refs)


def _credentials(spec: AgentSpec, toolbox: Toolbox) -> set[str] | None:
    """Return what the tools of an agent and of those that it may start need; None if one of these is only known by its name."""
    found: set[str] = set()
    for one in subagents_of(spec).values():
        below = None if isinstance(one, str) else _credentials(one, toolbox)
        if below is None:
            return None
        found |= below
    for name in spec.tools:
        try:
            found |= set(toolbox.get(name).spec.credentials)
        except UnknownName:  # a meta-tool, or a tool that starts an agent
            continue
    return found


def strict_levels(held: Mapping[str, SideEffect], declared: Mapping[str, SideEffect]) -> dict[str, SideEffect]:
    """Return the side-effect levels of a child: a tool is held to the level of its parent if that is stricter than what it declares."""
    return {name: max(level, held.get(name, level), key=rank) for name, level in declared.items()}
