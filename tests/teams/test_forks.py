"""Forks of parents: what a joined child gave is inherited; an open child stays its parent's, and is started again only where effects are."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from detent import Agent, Engine, FinalAnswer
from detent.core import events as e
from teams.family import SENT, below, call, keep, records_of, start, wipe

MANAGES = ("spawn_agent", "join_agent")


class Boss:
    """The boss starts one worker and waits for it, then spawns another one, and joins it."""

    def __init__(self, second: str) -> None:
        self.second = second

    async def plan(self, view: Any) -> Any:
        if view.agent.name in ("worker", "waiter"):
            done = [item.content for item in view.results]
            tool = "keep" if view.agent.name == "worker" else "wipe"
            return FinalAnswer(content=done[0]) if done else call(tool, **{"text" if tool == "keep" else "place": view.goal})
        match len(view.results):
            case 0:
                return start("worker", goal="one")
            case 1 if self.second == "waits":
                return start("waiter", goal="two")
            case 1:
                return call("spawn_agent", agent="waiter", goal="two")
            case 2 if self.second == "spawned":
                return call("join_agent", child=view.results[1].content["child"])
            case _:
                return FinalAnswer(content=[item.content if item.ok else item.error.code for item in view.results])


def boss() -> Agent:
    """Return a boss; the waiter's call needs approval, so that child stays open."""
    worker, waiter = Agent(name="worker", tools=[keep]), Agent(name="waiter", tools=[wipe])
    return Agent(name="boss", tools=MANAGES, subagents={"worker": worker, "waiter": waiter})


@pytest.mark.parametrize("second", ["waits", "spawned"])
@pytest.mark.parametrize("effects", ["dry_run", "reuse", "redo"])
def test_a_fork_inherits_what_was_joined_and_no_open_child(second: str, effects: Any) -> None:
    """Its join gives `not_inherited` in a fork without effects; else a child of the fork's own is started, once."""

    async def main() -> None:
        async with Engine(planner=Boss(second), approver="caller") as engine:
            waits = await engine.run(boss(), "share")
            assert waits.status == "waiting_for_subagent" and SENT == ["one"]
            fork = await engine.fork(waits.run_id, effects=effects)
            assert SENT == ["one"], "what was joined is not done again"
            own = await below(engine, fork.run_id)
            if effects == "dry_run":
                assert fork.status == "completed" and fork.output[0] == "one" and fork.output[-1] == "not_inherited" and not own
            else:
                assert fork.status == "waiting_for_subagent" and [one.agent.name for one in own] == ["waiter"]
                (asked,) = await engine.approvals(run_id=fork.run_id)
                await engine.approve(asked.run_id, asked.call_id, by="ann")
                done = await engine.resume(fork.run_id)
                assert done.output[0] == "one" and done.output[-1] == "two" and SENT == ["one", "two"]
                assert len(await below(engine, fork.run_id)) == 1
            ended = await engine.load(fork.run_id)
            assert ended.usage.tool_calls <= 4 and ended.counted == ended.usage, "the parent's reservations are the parent's"
            for run_id in (fork.run_id, waits.run_id):
                assert (await engine.replay(run_id)).identical
            parent = await engine.load(waits.run_id)
            assert parent.status == "waiting_for_subagent" and sum(child.status == "open" for child in parent.children.values()) == 1

    asyncio.run(main())


def test_a_fork_can_be_made_after_a_child_was_joined() -> None:
    """The call that waited for it has its outcome; it is no open effect."""

    async def main() -> None:
        async with Engine(planner=Boss("none"), approver="caller") as engine:
            worker = Agent(name="worker", tools=[keep])
            done = await engine.run(Agent(name="boss", subagents={"worker": worker}), "share", turns=1)
            assert done.status == "running" and SENT == ["one"]
            fork = await engine.fork(done.run_id, effects="redo", resume=False)
            known = (await engine.load(fork.run_id)).children
            assert [child.status for child in known.values()] == ["completed"]

    asyncio.run(main())


def test_a_fork_of_a_child_is_no_child() -> None:
    """Its end says nothing to the run above: that one has its own child. The policies of the runs above still hold."""
    top = Agent(
        name="boss",
        subagents={"waiter": Agent(name="waiter", tools=[wipe])},
        policy={"default": "tiers", "rules": [{"id": "asks", "tool": "wipe", "decision": "require_approval", "approvers": 2}]},
    )

    class Once(Boss):
        async def plan(self, view: Any) -> Any:
            if view.agent.name == "boss":
                return start("waiter", goal="two") if not view.results else FinalAnswer(content="done")
            return await super().plan(view)

    async def main() -> None:
        async with Engine(planner=Once(""), approver="caller") as engine:
            waits = await engine.run(top, "share")
            (child,) = await below(engine, waits.run_id)
            fork = await engine.fork(child.run_id, effects="redo")
            (asked,) = await engine.approvals(run_id=fork.run_id)
            assert asked.approvers == 2 and [one.run_id for one in await engine.approvals(run_id=waits.run_id)] == [child.run_id]
            before = (await engine.load(waits.run_id)).seq
            for who in ("ann", "bo"):
                await engine.approve(asked.run_id, asked.call_id, by=who)
            assert (await engine.load(fork.run_id)).status == "completed"
            assert (await engine.resume(waits.run_id)).status == "waiting_for_subagent"
            said = await records_of(engine, waits.run_id)
            assert not [event for event in said if isinstance(event, (e.SubagentJoined, e.AnswerRefused))] and len(said) == before

    asyncio.run(main())
