"""Delegation is a decision: how many, how deep, who, with what; and the approvals of a child have their place in the one list."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from detent import Agent, Engine
from detent.core.budget import Budget
from detent.policies import BasicPolicy, DelegationLimits
from teams.family import SENT, Family, below, call, keep, start, wipe


def boss(**options: Any) -> Agent:
    """Return a boss with two agents."""
    worker = Agent(name="worker", tools=[keep], budget=Budget(max_tool_calls=3))
    other = Agent(name="other", tools=[wipe])
    return Agent(name="boss", subagents={"worker": worker, "other": other}, **options)


HELP = {"worker": [call("keep", text="a")], "other": [call("keep", text="a")]}


@pytest.mark.parametrize(
    ("limits", "calls", "said"),
    [
        ({"max_children": 2}, [start("worker")] * 3, [["a"], ["a"], "policy_denied"]),
        ({"agents": ("work*",)}, [start("worker"), start("other")], [["a"], "policy_denied"]),
        ({"tools": ("keep",)}, [start("worker"), start("other")], [["a"], "policy_denied"]),
        ({"tools": ("keep",)}, [start("other", tools=[])], [["tool_not_found"]]),
        ({"max_budget": Budget(max_tool_calls=3)}, [start("worker"), start("other")], [["a"], "policy_denied"]),
        ({"max_budget": Budget(max_tool_calls=3)}, [start("worker", budget={"max_tool_calls": 4})], ["policy_denied"]),
    ],
)
def test_the_limits_of_a_policy_hold_for_the_calls_that_start_agents(limits: dict[str, Any], calls: list[Any], said: list[Any]) -> None:
    """A batch is decided before one of its children exists: its calls count too. What a call leaves out is what the agent declares."""

    async def main() -> None:
        policy = BasicPolicy(delegation=DelegationLimits(**limits))
        async with Engine(planner=Family(boss=calls, **HELP), policy=policy, approver="caller") as engine:
            done = await engine.run(boss(), "share")
            assert done.output == said
            assert len(await below(engine, done.run_id)) == sum(one != "policy_denied" for one in said)
            assert (await engine.replay(done.run_id)).identical

    asyncio.run(main())


def test_an_agents_policy_limits_how_deep_its_tree_grows() -> None:
    """The root's policy is asked in the child too, and the child's place in the tree counts, whatever its variables say."""
    worker = Agent(name="worker", tools=[keep])
    middle = Agent(name="middle", subagents={"worker": worker})
    top = Agent(name="boss", subagents={"middle": middle}, policy={"default": "tiers", "delegation": {"max_depth": 1}})
    planner = Family(boss=[start("middle", variables={"delegation_depth": 0})], middle=[start("worker")], worker=[])

    async def main() -> None:
        async with Engine(planner=planner, approver="caller") as engine:
            assert (await engine.run(top, "share")).output == [["policy_denied"]]

    asyncio.run(main())


def test_a_tool_that_starts_an_agent_who_may_not_be_started_is_not_offered() -> None:
    """A planner is not shown a tool whose every call is refused."""
    shown: list[list[str]] = []

    class Looks(Family):
        async def plan(self, view: Any) -> Any:
            shown.append([one.name for one in view.tools])
            return await super().plan(view)

    async def main() -> None:
        policy = BasicPolicy(delegation=DelegationLimits(agents=("worker",)))
        async with Engine(planner=Looks(boss=[start("worker")], **HELP), policy=policy, approver="caller") as engine:
            await engine.run(boss(), "share")
            assert shown[0] == ["agent_worker"]

    asyncio.run(main())


def test_a_delegation_that_needs_approval_waits_before_its_child_exists() -> None:
    """It is a call like any other: asked for, approved, and then begun once."""

    async def main() -> None:
        policy = BasicPolicy(delegation=DelegationLimits(require_approval=True))
        async with Engine(planner=Family(boss=[start("worker")], **HELP), policy=policy, approver="caller") as engine:
            waits = await engine.run(boss(), "share")
            assert waits.status == "waiting_for_approval" and not await below(engine, waits.run_id)
            (asked,) = await engine.approvals()
            assert asked.tool == "agent_worker" and asked.path == ("boss",) and asked.root == waits.run_id
            done = await engine.approve(asked.run_id, asked.call_id, by="ann")
            assert done.output == [["a"]]

    asyncio.run(main())


def tree() -> tuple[Agent, Family]:
    """Return a root whose grandchild needs an approval, and their planner."""
    worker = Agent(name="worker", tools=[wipe])
    middle = Agent(name="middle", subagents={"worker": worker})
    top = Agent(name="boss", subagents={"middle": middle})
    return top, Family(boss=[start("middle")], middle=[start("worker")], worker=[call("wipe", place="home")])


def test_an_approval_of_a_grandchild_is_in_the_one_list_with_its_path(tmp_path: Path) -> None:
    """It is found from the root, and from each run between; answered in the one way, after a restart of everything, it wakes them all."""
    store = f"sqlite:///{tmp_path}/runs.db"
    top, planner = tree()

    async def main() -> None:
        async with Engine(store=store, planner=planner, approver="caller") as engine:
            waits = await engine.run(top, "share")
            assert waits.status == "waiting_for_subagent"
            (middle,) = await below(engine, waits.run_id)
        async with Engine(store=store, planner=planner, tools=[wipe], approver="caller") as engine:
            (asked,) = await engine.approvals()
            assert asked.path == ("boss", "middle", "worker") and asked.root == waits.run_id != asked.run_id
            assert [asked] == await engine.approvals(run_id=waits.run_id) == await engine.approvals(run_id=middle.run_id)
            await engine.approve(asked.run_id, asked.call_id, by="ann", digest=asked.digest)
            assert SENT == ["home"]
            assert (await engine.resume(middle.run_id)).output == [["home"]]
            assert (await engine.resume(waits.run_id)).output == [[["home"]]]
            assert await engine.approvals() == []

    asyncio.run(main())


def test_the_approver_of_a_program_is_asked_for_a_grandchild() -> None:
    """Nobody else would be: the run would wait for ever."""
    asked: list[tuple[str, ...]] = []
    top, planner = tree()

    def approver(request: Any) -> bool:
        asked.append(request.path)
        return True

    async def main() -> None:
        async with Engine(planner=planner, approver=approver) as engine:
            assert (await engine.run(top, "share")).output == [[["home"]]]
            assert asked == [("boss", "middle", "worker")]

    asyncio.run(main())
