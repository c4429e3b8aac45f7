"""Who an agent may start is declared, and checked before anything is recorded."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from detent import Agent, Engine, FinalAnswer, Plan, ToolCall, tool
from detent.core.errors import ConfigError
from detent.ports import RunQuery


@tool(side_effect="read")
def look(place: str) -> str:
    """Look at a place."""
    return place


@tool(name="agent_scout", side_effect="read")
def scout(place: str) -> str:
    """Have a name that only a subagent may have."""
    return place


@tool(name="spawn_agent", side_effect="read")
def spawn(place: str) -> str:
    """Have a name of Detent's."""
    return place


class Asks:
    """An agent with subagents asks the first one; any other answers."""

    async def plan(self, view: Any) -> Any:
        """Delegate once, then answer."""
        if view.agent.subagents and not view.results:
            return Plan(actions=(ToolCall(tool=f"agent_{next(iter(view.agent.subagents))}", args={"goal": "go"}),))
        return FinalAnswer(
            content=[f"{view.agent.name} {view.variables.get('tone', '')}".strip(), *(item.content for item in view.results)]
        )


SCOUT = Agent(name="scout", tools=[look])


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ({"subagents": "scout"}, "write subagents=['scout']"),
        ({"subagents": [SCOUT]}, "a list has only names"),
        ({"subagents": {"scout": 3}}, "'scout' is an int"),
        ({"subagents": ["head of research"]}, "cannot be part of a tool's name"),
        ({"subagents": {"s" * 59: SCOUT}}, "1 to 58 letters"),
        ({"subagents": ["boss"]}, "it would start itself"),
        ({"subagents": {"scout": SCOUT}, "tools": [scout]}, "'agent_scout', and tools has another one"),
    ],
)
def test_a_subagent_that_no_tool_can_start_is_refused(said: dict[str, Any], told: str) -> None:
    """Otherwise the model would be offered a tool with a name that its provider refuses, or that means something else."""
    with pytest.raises(ConfigError) as refused:
        Agent(name="boss", **said)
    assert told in str(refused.value)


@pytest.mark.parametrize(
    ("boss", "told"),
    [
        (lambda: Agent(name="boss", subagents=["scuot"]), "did you mean 'scout'"),
        (lambda: Agent(name="boss", subagents={"helper": Agent(name="h", subagents=["nobody"])}), "unknown agent 'nobody'"),
        (lambda: Agent(name="boss", subagents={"helper": Agent(name="h", tools=["loook"])}), "unknown tool 'loook'"),
        (lambda: Agent(name="boss", subagents=["lost"]), "unknown tool 'missing'"),
        (lambda: Agent(name="boss", subagents=["scout"], tools=["join_agnet"]), "unknown tool 'join_agnet'"),
        (lambda: Agent(name="boss", tools=["join_agent"]), "may start none"),
        (lambda: Agent(name="boss", subagents={"scout": SCOUT}), ""),
        (lambda: Agent(name="boss", subagents=["scout"]), ""),
    ],
)
def test_every_agent_below_is_admitted_before_anything_is_recorded(boss: Callable[[], Agent], told: str) -> None:
    """Otherwise a run would spend its budget before it finds that its second helper cannot work."""

    async def main() -> None:
        lost = Agent(name="lost", subagents={"one": Agent(name="one", tools=["missing"])})
        async with Engine(agents=[SCOUT, lost], planner=Asks(), approver="caller") as engine:
            if not told:
                assert (await engine.run(boss(), "go")).output == ["boss", ["scout"]]
                return
            with pytest.raises(ConfigError, match=told):
                await engine.run(boss(), "go")
            assert await engine.store.list_runs(RunQuery()) == []

    asyncio.run(main())


@pytest.mark.parametrize("taken", [scout, spawn])
def test_a_tool_of_the_engine_cannot_take_the_name_of_one_that_starts_an_agent(taken: Any) -> None:
    """Otherwise the call that the policy has decided would be carried out by something else."""

    async def main() -> None:
        async with Engine(tools=[taken], planner=Asks(), approver="caller") as engine:
            with pytest.raises(ConfigError, match="another"):
                await engine.run(Agent(name="boss", subagents={"scout": SCOUT}, tools=["spawn_agent"]), "go")

    asyncio.run(main())


def test_two_known_agents_may_start_each_other() -> None:
    """The depth of a tree has a bound; admission looks at each agent once."""

    async def main() -> None:
        one, other = Agent(name="one", subagents=["other"]), Agent(name="other", subagents=["one"])
        async with Engine(agents=[one, other], planner=Asks(), approver="caller") as engine:
            done = await engine.run("one", "go")
            assert done.status == "completed" and len(await engine.store.list_runs(RunQuery())) > 2

    asyncio.run(main())


def test_a_subagent_has_its_own_variables() -> None:
    """They are recorded with it, so any process starts it with them."""

    async def main() -> None:
        async with Engine(planner=Asks(), approver="caller") as engine:
            boss = Agent(name="boss", subagents={"scout": Agent(name="scout", variables={"tone": "dry"})})
            assert (await engine.run(boss, "go")).output == ["boss", ["scout dry"]]

    asyncio.run(main())
