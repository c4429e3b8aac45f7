"""The life of a child and its end: whatever happens to a parent or a child, each of them hears of the other."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

import virtual_time
from detent import Agent, Bounds, Budget, ChildBounds, Engine, FinalAnswer, Plan, Suspended, ToolCall, tool
from detent.core import events as e
from detent.core.codec import read_log
from detent.ports import RunQuery, View
from detent.stores.ram import RamStore
from detent.testing import CrashingStore
from detent.workers.in_process import InProcessHost


class Team:
    """What the runs of a test do: the agent `boss` makes `calls` and answers with what came back, each other agent follows its goal.

    `keep N`: keep N with a tool. `ask N`: the same, which a person must approve. `hang`: wait until the test lets go. `loop`: never end.
    """

    def __init__(self, *calls: ToolCall, answers: bool = True) -> None:
        self.calls, self.answers = calls, answers
        self.kept: list[str] = []
        self.go, self.hangs = asyncio.Event(), asyncio.Event()

        @tool(side_effect="write", idempotent=True)
        async def keep(what: str) -> str:
            """Keep something."""
            self.kept.append(what)
            return what

        @tool(side_effect="destructive")
        async def dangerous(what: str) -> str:
            """Keep something; a person must approve."""
            self.kept.append(what)
            return what

        @tool(side_effect="read")
        async def hang() -> str:
            """Wait."""
            self.hangs.set()
            await self.go.wait()
            return "went on"

        self.tools = [keep, dangerous, hang]
        self.worker = Agent(name="worker", tools=["keep", "dangerous", "hang"])
        self.middle = Agent(name="middle", subagents={"worker": self.worker})
        self.boss = Agent(
            name="boss", subagents={"worker": self.worker, "middle": self.middle}, tools=["spawn_agent", "join_agent", "cancel_agent"]
        )

    async def plan(self, view: View) -> Any:
        """See the class."""
        if view.agent.name == "boss":
            if not view.results:
                return Plan(actions=self.calls)
            return FinalAnswer(content=[item.content if item.ok else item.error.code for item in view.results])
        if view.results:
            return FinalAnswer(
                content=f"{view.agent.name}: {view.results[-1].content if view.results[-1].ok else view.results[-1].error.code}"
            )
        what, _, rest = view.goal.partition(" ")
        if view.agent.name == "middle":
            return ToolCall(tool="agent_worker", args={"goal": view.goal})
        if what == "hang":
            return ToolCall(tool="hang", args={})
        if what == "fail":
            raise ValueError("no")
        return ToolCall(tool="keep" if what == "keep" else "dangerous", args={"what": rest})

    def engine(self, store: Any, **options: Any) -> Engine:
        """Return an engine on this store."""
        return Engine(store=store, planner=self, tools=self.tools, approver="caller", **options)


def start(goal: str, agent: str = "worker", **more: Any) -> ToolCall:
    """Return the call that starts a child and waits for it."""
    return ToolCall(tool=f"agent_{agent}", args={"goal": goal, **more})


def spawn(goal: str, agent: str = "worker", **more: Any) -> ToolCall:
    """Return the call that starts a child and continues."""
    return ToolCall(tool="spawn_agent", args={"agent": agent, "goal": goal, **more})


async def events_of(engine: Engine, run_id: str, kind: type[Any]) -> list[Any]:
    """Return the events of one kind in a run's log."""
    return [record.event for record in read_log(run_id, await engine.store.read(run_id)) if isinstance(record.event, kind)]


async def children_of(engine: Engine, run_id: str) -> list[str]:
    """Return the ids of a run's children."""
    return [head.run_id for head in await engine.store.list_runs(RunQuery()) if head.parent == run_id]


async def same_again(engine: Engine, run_id: str) -> None:
    """Check that each run of a tree replays as it was."""
    for head in await engine.store.list_runs(RunQuery(goal_id=run_id)):
        assert (again := await engine.replay(head.run_id)).identical, (head.run_id, again.divergence)


def test_an_answer_to_a_grandchild_continues_the_runs_above_it(tmp_path: Path) -> None:
    """All of them are rows; whoever answers, in another process, would have to resume three runs by hand."""

    async def main() -> None:
        team = Team(start("ask 1", "middle"))
        url = f"sqlite:///{tmp_path}/runs.db"
        async with team.engine(url) as engine:
            waits = await engine.run(team.boss, "share", run_id="root")
            assert waits.status == "waiting_for_subagent"
        async with team.engine(url) as engine:
            (asked,) = await engine.approvals()
            await engine.approve(asked.run_id, asked.call_id, by="ann")
            done = await engine.resume("root")
            head = await engine.store.head("root")
            assert head is not None and head.status == "completed"
            assert done.output == ["middle: worker: 1"] and team.kept == ["1"]
            await same_again(engine, "root")
            assert len(await events_of(engine, "root", e.RunResumed)) == 1  # by the end of the child; `resume` found it done

    asyncio.run(main())


def test_a_worker_continues_a_parent_whose_child_has_ended() -> None:
    """The answer is only posted; workers advance the child, and its end makes the parent due."""

    async def main() -> None:
        team, store = Team(start("ask 1", "middle")), RamStore()
        async with team.engine(store) as engine:
            await engine.run(team.boss, "share", run_id="root")
            (asked,) = await engine.approvals()
            await engine.approve(asked.run_id, asked.call_id, by="ann", resume=False)
            worked = await engine.work(until_idle=True)
            assert worked.came_to.get("completed") == 3 and not worked.failed, worked
            assert (await engine.load("root")).output == ["middle: worker: 1"]
            await same_again(engine, "root")

    virtual_time.run(main())


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("at", range(1, 40))
def test_a_parent_that_dies_starts_no_child_again_and_joins_each_once(at: int, when: Any) -> None:
    """The store dies at each of its writes in turn; a second engine continues. Whatever is there twice would be paid twice."""

    async def main() -> None:
        team, inner = Team(*(start(f"keep {n}") for n in range(3))), RamStore()
        store = CrashingStore(inner, at=at, when=when)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("logging.Logger.exception", lambda *_, **__: None)
            try:
                async with team.engine(store) as engine:
                    await engine.run(team.boss, "share", run_id="root")
            except BaseException:  # foreign code: the store, which is dead
                if not store.crashed:
                    raise
        async with team.engine(inner.sibling()) as engine:
            for claimed in list(inner._shelf.claims):
                del inner._shelf.claims[claimed]
            done = await engine.run(team.boss, "share", run_id="root")
            assert done.output == ["worker: 0", "worker: 1", "worker: 2"], done
            assert len(await events_of(engine, "root", e.SubagentSpawned)) == 3
            joined = await events_of(engine, "root", e.SubagentJoined)
            assert sorted(one.child for one in joined) == sorted(await children_of(engine, "root"))
            assert sorted(set(team.kept)) == ["0", "1", "2"]
            assert done.usage.tool_calls in (6, 7)  # one was cut off, and asked again under the same key
            await same_again(engine, "root")

    virtual_time.run(main())


@pytest.mark.parametrize(("on_end", "outcome"), [("cancel", "cancelled"), ("wait", "completed"), ("leave", "left")])
def test_an_open_child_ends_as_its_call_says_when_its_parent_answers(on_end: str, outcome: str) -> None:
    """The default cancels it; `wait` holds the answer; `leave` splits off what was reserved for it."""

    async def main() -> None:
        team, store = Team(spawn("hang", on_parent_end=on_end)), RamStore()
        async with team.engine(store) as engine:
            running = asyncio.create_task(engine.run(team.boss, "share", run_id="root"))
            await asyncio.wait([running, asyncio.create_task(team.hangs.wait())], return_when=asyncio.FIRST_COMPLETED)
            if on_end == "wait":
                for _ in range(50):
                    await asyncio.sleep(0)
                assert not running.done() and not (await engine.load("root")).terminal
                team.go.set()
            done = await running
            assert done.status == "completed", done
            (joined,) = await events_of(engine, "root", e.SubagentJoined)
            assert joined.outcome == outcome
            state = await engine.load("root")
            spawned = state.children[joined.child].spawned
            assert not state.held.iterations and (state.usage.iterations >= spawned.reserved.iterations) is (on_end == "leave")
            team.go.set()
            if on_end == "leave":
                child = await engine.resume(joined.child) if not engine.runtime.parts.watcher.control(joined.child) else None
                assert child is None or child.status == "completed"
            else:
                assert (await engine.load(joined.child)).reason == ("cancelled" if on_end == "cancel" else "final_answer")
            await same_again(engine, "root")

    virtual_time.run(main())


def test_a_cancelled_parent_takes_its_tree_with_it() -> None:
    """Three levels: the worker hangs, the root is cancelled, and nothing of the tree runs on."""

    async def main() -> None:
        team, store = Team(start("hang", "middle")), RamStore()
        async with team.engine(store) as engine:
            running = asyncio.create_task(engine.run(team.boss, "share", run_id="root"))
            await team.hangs.wait()
            await engine.cancel("root", by="ann")
            done = await running
            assert (done.status, done.reason) == ("stopped", "cancelled")
            heads = await engine.store.list_runs(RunQuery())
            assert len(heads) == 3 and {(head.status, head.reason) for head in heads} == {("stopped", "cancelled")}
            (joined,) = await events_of(engine, "root", e.SubagentJoined)
            assert joined.outcome == "cancelled"
            await same_again(engine, "root")

    virtual_time.run(main())


def test_a_suspended_parent_suspends_its_children_and_both_continue() -> None:
    """Its caller is cancelled. A child that ran on alone would use what nobody waits for."""

    async def main() -> None:
        team, store = Team(start("hang", "middle")), RamStore()
        async with team.engine(store) as engine:
            running = asyncio.create_task(engine.run(team.boss, "share", run_id="root"))
            await team.hangs.wait()
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running
            while engine.runtime.underway.tasks:
                await asyncio.wait(engine.runtime.underway.tasks)
            assert {head.status for head in await engine.store.list_runs(RunQuery())} == {"running"}
            team.go.set()
            done = await engine.resume("root")
            assert done.output == ["middle: worker: went on"]
            await same_again(engine, "root")

    virtual_time.run(main())


def test_a_child_that_was_given_up_is_lost_and_gives_nothing_back() -> None:
    """Its end may be recorded later; what it was given counts as used, because nobody knows what it will use."""

    async def main() -> None:
        team, store = Team(start("hang"), start("keep 1")), RamStore()
        async with team.engine(store) as engine:
            running = asyncio.create_task(engine.run(team.boss, "share", run_id="root"))
            await team.hangs.wait()
            engine.suspend("the machine goes down", drain_s=0)
            with pytest.raises(Suspended):
                await running
        async with team.engine(store) as engine:
            state = await engine.load("root")
            child = next(one for one in state.children.values() if one.goal == "hang")
            await engine.runtime.go_on(child.child, e.DeadLettered(why="it fails again and again", attempts=3), advance=False)
            assert [signal.kind for signal in (await store.signals(["root"]))["root"]][-1:] == ["child"]
            done = await engine.resume("root")
            assert done.output == ["child_lost", "worker: 1"], done
            lost = next(one for one in await events_of(engine, "root", e.SubagentJoined) if one.child == child.child)
            assert (lost.outcome, lost.reason, lost.usage) == ("lost", "it fails again and again", child.held)
            again = await engine.resume(child.child)
            assert (again.status, again.reason) == ("stopped", "cancelled")  # only its end is recorded
            await same_again(engine, "root")

    virtual_time.run(main())


def test_a_run_with_the_id_of_a_child_is_not_its_end() -> None:
    """Whoever starts a run with that id first would else answer in the child's place, in the parent's name and budget."""

    async def main() -> None:
        team, store = Team(start("keep 1")), RamStore()
        async with team.engine(store) as engine:
            from detent.running.delegating import child_id

            await engine.run(team.worker, "keep mine", run_id=child_id("root", "p.1.0"))
            first = await engine.run(team.boss, "share", run_id="root")
            (spawned,) = await events_of(engine, "root", e.SubagentSpawned)
            if spawned.child == child_id("root", "p.1.0"):
                assert first.output == ["child_lost"]
            else:
                team.kept.clear()
                await engine.run(team.worker, "keep mine", run_id=child_id("other", spawned.call))
                assert (await engine.run(team.boss, "share", run_id="other")).output == ["child_lost"]
                assert team.kept == ["mine"]

    virtual_time.run(main())


@pytest.mark.parametrize("on_end", ["cancel", "wait", "leave"])
@pytest.mark.parametrize("tree", [False, True])
def test_a_cancellation_of_a_tree_ends_children_that_would_be_waited_for_or_left(on_end: str, tree: bool) -> None:
    """A plain cancellation does what each child was started with."""

    async def main() -> None:
        team, store = Team(spawn("hang", on_parent_end=on_end), start("hang", "middle")), RamStore()
        async with team.engine(store) as engine:
            running = asyncio.create_task(engine.run(team.boss, "share", run_id="root"))
            await team.hangs.wait()
            while len(await store.list_runs(RunQuery())) < 4:
                await asyncio.sleep(0)
            cancelling = asyncio.create_task(engine.cancel("root", by="ann", tree=tree))
            if on_end == "wait" and not tree:
                while not (await engine.load("root")).cancel:
                    await asyncio.sleep(0.1)
                await asyncio.sleep(20)
                assert not (await engine.load("root")).terminal
                team.go.set()
            done = await running
            await cancelling
            assert (done.status, done.reason) == ("stopped", "cancelled")
            outcomes = {
                one.on_parent_end: (await engine.load("root")).children[one.child].status
                for one in await events_of(engine, "root", e.SubagentSpawned)
            }
            expected = "cancelled" if tree else {"cancel": "cancelled", "wait": "completed", "leave": "left"}[on_end]
            assert outcomes[on_end] == expected
            team.go.set()
            await same_again(engine, "root")

    virtual_time.run(main())


@pytest.mark.parametrize("wait", ["none", "accepted", "ended"])
def test_cancelling_a_child_waits_as_long_as_the_call_says(wait: str) -> None:
    """`accepted`: until the child has recorded it; `ended`: the call has the child's end, with what it had so far."""

    async def main() -> None:
        team, store = Team(spawn("hang")), RamStore()
        seen: list[str | None] = []

        async def plan(view: View) -> Any:
            if view.agent.name == "boss" and len(view.results) == 1:
                await team.hangs.wait()
                return ToolCall(tool="cancel_agent", args={"child": view.results[0].content["child"], "why": "enough", "wait": wait})
            if view.agent.name == "boss" and len(view.results) == 2:
                child = await engine.load(view.results[0].content["child"])
                seen.append("ended" if child.terminal else "accepted" if child.cancel else "none")
                item = view.results[1]
                return FinalAnswer(content=item.content["status"] if item.ok else item.error.code)
            return await Team.plan(team, view)

        team.plan = plan  # type: ignore[method-assign]
        async with team.engine(store) as engine:
            done = await engine.run(team.boss, "share", run_id="root")
            assert done.status == "completed"
            assert done.output == ("child_cancelled" if wait == "ended" else "cancelling")
            assert wait == "none" or seen[0] in (wait, "ended")
            (joined,) = await events_of(engine, "root", e.SubagentJoined)
            assert (joined.outcome, (await engine.load(joined.child)).error) == ("cancelled", "enough")
            await same_again(engine, "root")

    virtual_time.run(main())


@pytest.mark.parametrize(
    ("bounds", "goal", "agent", "output"),
    [
        ({}, "keep 1", "worker", ["worker: 0", "worker: 1", "worker: 2"]),
        ({"per_run": 2}, "keep 1", "worker", ["worker: 0", "worker: 1", "too_many_children"]),
        ({"depth": 1}, "keep 1", "middle", ["middle: too_deep"] * 3),
        ({"depth": 0}, "keep 1", "worker", ["too_deep"] * 3),
    ],
)
def test_only_the_engine_sets_how_large_a_team_may_become(bounds: Any, goal: str, agent: str, output: list[str]) -> None:
    """The log has limits that are not the usual ones, so an engine with others replays the same refusals."""

    async def main() -> None:
        team, store = Team(*(start(f"keep {n}", agent) for n in range(3))), RamStore()
        async with team.engine(store, bounds=Bounds(children=ChildBounds(**bounds))) as engine:
            assert (await engine.run(team.boss, "share", run_id="root")).output == output
        async with team.engine(store) as engine:
            await same_again(engine, "root")

    virtual_time.run(main())


def test_more_than_the_usual_number_of_children_is_the_engines_to_allow() -> None:
    """65 children, and never more than three at once; the others queue."""
    running = [0, 0]

    class Counting(Team):
        async def plan(self, view: View) -> Any:
            if view.agent.name == "worker":
                running[0] += 1
                running[1] = max(running)
                await asyncio.sleep(1)
                running[0] -= 1
                return FinalAnswer(content=view.goal)
            return await super().plan(view)

    async def main() -> None:
        team, store = Counting(*(start(f"{n}") for n in range(65))), RamStore()
        async with team.engine(store, bounds=Bounds(children=ChildBounds(per_run=65, at_once=3))) as engine:
            done = await engine.run(team.boss, "share", run_id="root", budget=Budget(max_iterations=900))
            assert done.output == [f"{n}" for n in range(65)] and running[1] == 3

    virtual_time.run(main())


def test_with_a_worker_host_children_are_submitted_and_other_workers_run_them() -> None:
    """The program that starts the team advances no child; its parent waits as rows; two workers do the rest, and each child runs once."""

    async def main() -> None:
        team, store = Team(*(start(f"keep {n}", "middle") for n in range(10))), RamStore()
        async with team.engine(store, worker_host=InProcessHost()) as engine:
            waits = await engine.run(team.boss, "share", run_id="root", budget=Budget(max_iterations=900))
            assert waits.status == "waiting_for_subagent" and team.kept == []
            assert len(await store.list_runs(RunQuery(status=("running",)))) == 8  # the others are started as these end
        async with team.engine(store.sibling()) as first, team.engine(store.sibling()) as second:
            await asyncio.gather(first.work(until_idle=True), second.work(until_idle=True))
            done = await first.load("root")
            assert done.output == [f"middle: worker: {n}" for n in range(10)]
            assert sorted(team.kept) == sorted(f"{n}" for n in range(10))
            assert len(await store.list_runs(RunQuery())) == 21
            await same_again(first, "root")

    virtual_time.run(main())
