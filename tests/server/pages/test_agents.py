"""The agents' pages: what is configured, with tiers, scopes, trust, policy and bounds, as a run would record it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from detent import Agent, Engine, FinalAnswer, tool
from detent.config.groups import Bounds
from detent.core.budget import Budget
from detent.core.state import RunState
from detent.policies.tiers import TieredPolicy
from detent.ports import Call, ToolSpec, Verdict
from detent.testing import ScriptedPlanner
from server.pages.visiting import EVIL, Visitor, visited, words


@tool(side_effect="read", trust="trusted")
def look(what: str) -> str:
    """Look something up."""
    return what


@tool(side_effect="destructive", scopes=["payments:write"], timeout_s=30, sinks=["iban"])
def pay(iban: str) -> str:
    """Pay somebody."""
    return iban


RULE: dict[str, Any] = {"id": "large", "tool": "pay", "when": "size(args.iban) > 40", "decision": "deny", "reason": f"long {EVIL}"}
CLERK = Agent(
    name=f"clerk {EVIL}"[:60],
    instructions=f"Pay what is owed. {EVIL}",
    tools=[look, pay, "far__away"],
    policy={"default": "tiers", "rules": [RULE]},
    budget=Budget(max_iterations=12, max_cost_usd=2.5),
    subagents=["plain"],
)
PLAIN = Agent(name="plain")


def office(**options: Any) -> Engine:
    bounds = Bounds(budget=Budget(max_tool_calls=77))
    return Engine(agents=[CLERK, PLAIN], planner=ScriptedPlanner([FinalAnswer(content="x")]), bounds=bounds, **options)


def test_an_agents_tools_policy_and_bounds_are_shown() -> None:
    """Each tool with its tier, whether it may need an approval, its scopes and how far its output is trusted."""

    async def body(engine: Engine, visitor: Callable[[str], Visitor]) -> None:
        bob = visitor("bob")
        page = await bob.see("/ui/agents")
        said = words(page)
        assert "clerk <script>" in said and "plain" in said and "pay" in said
        path = next(part.partition('"')[0] for part in page.split('href="')[1:] if part.startswith("/ui/agents/clerk"))
        said = words(await bob.see(path))
        assert "Pay what is owed. <script>" in said
        assert "look Look something up. read not needed none trusted" in said, said
        assert "pay Pay somebody. destructive may need one payments:write untrusted harm through iban at most 30.0 s" in said
        assert "far__away declared when a run begins" in said and "agent_plain" in said
        assert "Of the engine" in said and "By side effect: none allow , read allow , write allow , destructive require approval" in said
        assert "deny large for pay when size(args.iban) > 40 : long <script>" in said
        assert "iterations 12" in said and "cost usd 2.5" in said and "tool calls 77" in said
        assert "subagents" in said
        await bob.see("/ui/agents/nobody", status=404)

    visited(office(), body)


class Night(TieredPolicy):
    """A policy that is a function."""

    version = "night-3"

    def __init__(self) -> None:
        super().__init__()
        self.version = "night-3"

    def decide(self, call: Call, state: RunState) -> Verdict:
        """Deny everything."""
        return Verdict(decision="deny", rule="night")

    def may_ask(self, tool: ToolSpec) -> bool:
        """Nothing is asked."""
        return False


def test_a_policy_that_is_a_function_is_named_and_not_guessed() -> None:
    """Its data, which it inherits, are not what decides."""

    async def body(engine: Engine, visitor: Callable[[str], Visitor]) -> None:
        said = words(await visitor("bob").see("/ui/agents/plain"))
        assert "night-3 A function decides" in said and "By side effect" not in said

    visited(office(policy=Night()), body)
