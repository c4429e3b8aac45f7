"""The agents: what each is configured to do, with which tools, under which policy and within which bounds. As a run that begins now records it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import msgspec
from starlette.responses import Response

from detent.core.agent import AgentSpec
from detent.core.errors import DetentError
from detent.engine import Engine
from detent.policies.tiers import TIERS
from detent.ports import Policy, ToolSpec
from detent.ports.governance import data_of
from detent.running.overseeing import tool_of
from detent.server.pages.visits import Page, Visit
from detent.server.problems import Refused

SHOWN = ("name", "instructions", "tools", "policy", "budget")
"""The options that have a place of their own on the page; the others are listed if they are not as usual."""


class Tool(msgspec.Struct, frozen=True, kw_only=True):
    """A tool that an agent lists; `spec` is None for one that is declared only when a run begins, `asks` whether a call may need approval."""

    name: str
    spec: ToolSpec | None
    asks: bool | None = None


class Stage(msgspec.Struct, frozen=True, kw_only=True):
    """A part of the policy: whose it is, its tiers and rules, and all of it as data ({} if a function decides)."""

    whose: str
    name: str
    tiers: Mapping[str, str] = {}
    rules: Sequence[Mapping[str, Any]] = ()
    data: Mapping[str, Any] = {}


async def agents_page(visit: Visit) -> Response:
    """List the agents."""
    engine = visit.served.engine
    found = [(name, agent.spec()) for name, agent in sorted(engine.agents.items())]
    rows = [(name, spec, [one for one in tools_of(engine, spec) if one.asks]) for name, spec in found]
    return visit.page("agents.html", rows=rows)


async def agent_page(visit: Visit) -> Response:
    """Show an agent."""
    engine, name = visit.served.engine, visit.path["name"]
    if name not in engine.agents:
        raise Refused(404, "not_found", f"there is no agent {name[:80]!r} here; there are: {', '.join(sorted(engine.agents)) or 'none'}")
    agent = engine.agents[name]
    spec = agent.spec()
    usual = AgentSpec(name="")
    others = {
        one: value for one in AgentSpec.__struct_fields__ if one not in SHOWN and (value := getattr(spec, one)) != getattr(usual, one)
    }
    return visit.page(
        "agent.html",
        name=name,
        spec=spec,
        tools=tools_of(engine, spec),
        stages=stages_of(engine, spec),
        bounds=spec.budget.over(engine.budget).said(),
        ceiling=engine.ceiling,
        others=others,
        servers=sorted(agent.mcp),
    )


def tools_of(engine: Engine, spec: AgentSpec) -> Sequence[Tool]:
    """Return the tools of an agent."""
    try:
        policy: Policy | None = engine.runtime.parts.policy_of(spec)
    except DetentError:
        policy = None
    return [_tool(engine, spec, name, policy) for name in spec.tools]


def _tool(engine: Engine, spec: AgentSpec, name: str, policy: Policy | None) -> Tool:
    try:
        found = (tool_of(name, spec, engine.store) or engine.tools.get(name)).spec
    except DetentError:  # of a server that is connected when a run needs it
        return Tool(name=name, spec=None)
    return Tool(name=name, spec=found, asks=None if policy is None else policy.may_ask(found))


def stages_of(engine: Engine, spec: AgentSpec) -> Sequence[Stage]:
    """Return the parts of the policy that decides on an agent's calls; the strictest verdict counts."""
    house = engine.runtime.parts.policy
    data = data_of(house)
    document = cast("Mapping[str, Any]", data.get("document", data))
    kind = "tiers" if data.get("kind") == "tiers" else ""
    found = [_stage("engine", house.version, document, kind)]
    return [*found, _stage("agent", spec.policy.get("version", ""), spec.policy)] if spec.policy else found


def _stage(whose: str, name: str, data: Mapping[str, Any], kind: str = "") -> Stage:
    """Return a part of the policy. Its tiers are those that it names, and the usual ones where it leaves a call to them."""
    named = cast("Mapping[str, str]", data.get("tiers") or {})
    tiers = (
        {**TIERS, **{level: named[level] for level in TIERS if level in named}} if kind or named or data.get("default") == "tiers" else {}
    )
    return Stage(whose=whose, name=name, tiers=tiers, rules=data.get("rules", ()), data=data)


PAGES = (
    Page(path="/ui/agents", handle=agents_page),
    Page(path="/ui/agents/{name:path}", handle=agent_page),
)
