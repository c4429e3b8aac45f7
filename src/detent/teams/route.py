"""Route: a goal goes to the one agent that suits it."""  # row T65

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import msgspec

from detent.core.agent import AgentSpec
from detent.core.errors import PassFailed
from detent.ports import AgentResult, Passed, StrategyRun, strategy
from detent.ports.options import check_fields
from detent.teams.members import check_members, failure, members, record, section, without_answer


async def route(run: StrategyRun, name: str, routes: Mapping[str, str], *, default: str = "", goal: str = "") -> AgentResult:
    """Let the agent of the route `name` work on the goal ("": the run's), or the agent `default` if there is no such route."""
    agent = routes.get(name, default)
    if not agent:
        known = ", ".join(routes) or "none"
        return AgentResult(
            label=name, agent="", outcome="refused", error=f"route {name!r} was not found, and there is no default (known: {known})"
        )
    return await run.agent("route", agent, goal or run.goal, output_schema=run.output_schema)


async def chosen(run: StrategyRun, names: tuple[str, ...]) -> str:
    """Return which of these agents suits the goal best, as the model says; "" if it names none."""
    kinds = "\n".join(f"- {name}: {_about(run.agent, name)}" for name in names)
    try:
        said = await run.ask(
            "choose", f"Which agent fits this goal best?\n{kinds}{section('Goal', run.goal)}", record(agent={"enum": list(names)})
        )
    except PassFailed:
        return ""
    name: Any = cast("dict[str, Any]", said).get("agent") if isinstance(said, dict) else said
    return name if name in names else ""


def _about(agent: AgentSpec, name: str) -> str:
    known: Any = agent.subagents[name]
    return str(cast("dict[str, Any]", known).get("instructions", "")) if isinstance(known, dict) and "agent" not in known else name


class RouteOptions(msgspec.Struct, frozen=True, kw_only=True):
    """`agents`: who may get the goal (all subagents). `default`: who gets it if the model names none of them ("": the run fails)."""

    agents: tuple[str, ...] = ()
    default: str = ""

    __post_init__ = check_fields

    def check(self, agent: AgentSpec) -> None:
        """Raise `ConfigError` for an agent that is not declared."""
        check_members(agent, *self.agents, self.default)


@strategy(options=RouteOptions)
async def ready(run: StrategyRun) -> Passed | Any:
    """Ask the model who suits the goal, and answer with that agent's answer."""
    options = run.options(RouteOptions)
    names = members(run.agent, options.agents)
    done = await route(run, await chosen(run, names), {name: name for name in names}, default=options.default)
    return done.output if done.ok else without_answer(failure([done]))
