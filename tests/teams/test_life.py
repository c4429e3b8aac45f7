"""The life of a child and its end: whatever happens to a parent or a child, each of them hears of the other."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

import virtual_time
from amounts import sampled, thinned
from detent import Bounds, Budget, CancelSubagent, ChildBounds, FinalAnswer, SpawnSubagent, Stop, Suspended, ToolCall, tool
from detent.core import events as e
from detent.core.errors import ConfigError, FatalToolError, NotAllowedNow, StoreBusy
from detent.history.tree_checks import verify_tree
from detent.ports import Passed, RunQuery, Signal, StrategyRun, View
from detent.running.delegating import child_id
from detent.running.working import StoreBacklog, hand
from detent.stores.ram import RamStore
from detent.testing import CrashingStore
from detent.testing.faults import Crash
from teams.living import Team, children_of, events_of, same_again, spawn, start

pytestmark = thinned


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


@pytest.mark.parametrize(("at", "when"), sampled([(at, when) for at in range(1, 40) for when in ("before", "after")], few=12))
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


def test_a_child_names_a_record_of_its_parent_that_is_committed() -> None:
    """It begins when another one has ended. If its parent dies before that end is committed, the child would name a record that no log has."""
    begun: list[str] = []
    second = asyncio.Event()

    class Late(RamStore):
        """Dies when the first end of a child is to be committed, and lets the next child begin before."""

        dies = True

        async def append(self, run_id: str, expected_seq: int, records: Any, **options: Any) -> None:
            if self.dies and run_id == "root" and any(b'"subagent_joined"' in line for line in records):
                await asyncio.wait([asyncio.create_task(second.wait())], timeout=5)
                raise Crash
            await super().append(run_id, expected_seq, records, **options)
            begun.extend([run_id] if expected_seq == 0 and run_id != "root" else [])
            if len(begun) == 2:
                second.set()

    async def main() -> None:
        team, store = Team(start("keep 1"), start("keep 2")), Late()
        engine = team.engine(store, bounds=Bounds(children=ChildBounds(at_once=1)))
        with pytest.raises(Crash):
            await engine.run(team.boss, "share", run_id="root")
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
        inner = store.sibling()
        inner.dies = False  # type: ignore[attr-defined]
        store._shelf.claims.clear()
        async with team.engine(inner) as engine:
            assert (await engine.resume("root")).output == ["worker: 1", "worker: 2"]
            assert all(one.ok for one in await verify_tree(engine.runtime, "root"))

    virtual_time.run(main())


@pytest.mark.parametrize("by", ["call", "action"])
@pytest.mark.parametrize(("on_end", "outcome"), [("cancel", "cancelled"), ("wait", "completed"), ("leave", "left")])
def test_an_open_child_ends_as_its_call_says_when_its_parent_answers(on_end: Any, outcome: str, by: str) -> None:
    """The default cancels it; `wait` holds the answer; `leave` splits off what was reserved for it."""

    async def main() -> None:
        action = SpawnSubagent(agent="worker", goal="hang", join=False, on_parent_end=on_end)
        team, store = Team(action if by == "action" else spawn("hang", on_parent_end=on_end)), RamStore()
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
                while not (child := await engine.load(joined.child)).terminal:
                    await asyncio.sleep(0.1)
                assert child.status == "completed" and child.delegated is not None and child.delegated.left
                head = await store.head(joined.child)
                assert head is not None and (head.parent, child.delegated.root) == ("", "root")  # a root that names its origin
                await same_again(engine, joined.child)
                assert (await engine.verify(joined.child)).ok
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
            with pytest.raises(NotAllowedNow, match="counts on how it ended"):
                await engine.reopen(child.child, by="ann")
            await same_again(engine, "root")

    virtual_time.run(main())


class Between(RamStore):
    """A store that stops before a join is recorded, and whose run `away` cannot be read."""

    def __init__(self) -> None:
        super().__init__()
        self.reached, self.go, self.away = asyncio.Event(), asyncio.Event(), ""

    async def append(self, run_id: str, expected_seq: int, records: Any, **options: Any) -> Any:
        """Append; a join only when the test lets it."""
        if any(b'"type":"subagent_joined"' in line for line in records):
            self.reached.set()
            await self.go.wait()
        return await super().append(run_id, expected_seq, records, **options)

    async def read(self, run_id: str, *args: Any, **options: Any) -> Any:
        """Read, unless the run is away."""
        if run_id == self.away:
            raise StoreBusy("the store is busy")
        return await super().read(run_id, *args, **options)


def test_a_child_is_given_no_more_than_its_parent_has_reserved() -> None:
    """Its parent counts the reservation, so with more of anything the tree could exceed the bound of its root. One that was left is a root itself."""

    async def main(how: str) -> None:
        team, store = Team(spawn("ask 1", budget={"max_tool_calls": 2}, on_parent_end="leave" if how == "left" else "wait")), Between()
        async with team.engine(store) as engine:
            if how == "left":
                store.go.set()
            await engine.run(team.boss, "share", run_id="root", budget=Budget(max_tool_calls=4, max_calls_of={"keep": 3}))
            (child,) = await children_of(engine, "root")
            if how in ("given_up", "lost"):
                await StoreBacklog(hand(engine.runtime)).give_up(child, "it fails again and again", 5)
            if how == "lost":
                running = asyncio.create_task(engine.resume("root"))
                await store.reached.wait()
                store.away = child  # nobody records its end yet
                store.go.set()
                await running
                store.away = ""
            assert (await engine.load("root")).children[child].status == (how if how in ("lost", "left") else "open")
            change = partial(engine.reopen, by="ann", resume=False) if how in ("given_up", "lost") else engine.resume
            more = [Budget(max_tool_calls=3), Budget(max_calls_of={"keep": 2}), Budget(max_iterations=60)]
            for budget in more if how != "left" else ():
                with pytest.raises(NotAllowedNow) as refused:
                    await change(child, budget=budget)
                assert refused.value.reason_code == "not_reserved" and str(refused.value).count(", not ") == 1
            allowed = Budget(max_tool_calls=2, max_failures=1) if how != "left" else Budget(max_tool_calls=300)
            await change(child, budget=allowed)
            assert (await engine.load(child)).budget.max_tool_calls == allowed.max_tool_calls

    for how in ("open", "given_up", "lost", "left"):
        virtual_time.run(main(how))


def test_a_child_that_has_ended_is_not_opened_again_before_its_parent_has_recorded_that() -> None:
    """The parent has read its end, and gives the rest of the reservation back, whatever the child would use now."""

    async def main() -> None:
        team, store = Team(start("fail")), Between()
        async with team.engine(store) as engine, team.engine(store) as other:
            running = asyncio.create_task(engine.run(team.boss, "share", run_id="root"))
            await store.reached.wait()
            (child,) = await children_of(engine, "root")
            with pytest.raises(NotAllowedNow) as refused:
                await other.reopen(child, by="ann", resume=False)
            assert refused.value.reason_code == "joined_child"
            store.away = "root"
            with pytest.raises(StoreBusy):  # nobody knows then what its parent has recorded
                await other.reopen(child, by="ann", resume=False)
            store.away = ""
            store.go.set()
            assert (await running).output == ["child_failed"]
            assert (await engine.load(child)).status == "failed"
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


@pytest.mark.parametrize("wait", ["accepted", "ended"])
def test_a_child_that_has_ended_takes_no_cancellation_and_is_not_waited_for(wait: Any) -> None:
    """Its parent decided to cancel it before it heard of the end."""

    async def main() -> None:
        team, store = Team(spawn("keep 1")), RamStore()

        async def plan(view: View) -> Any:
            if view.agent.name == "boss" and len(view.results) == 1:
                child = view.results[0].content["child"]
                while (head := await store.head(child)) is None or head.status != "completed":
                    await asyncio.sleep(0.01)
                return CancelSubagent(child=child, why="enough", wait=wait)
            if view.agent.name == "boss" and len(view.results) == 2:
                return FinalAnswer(content="done")
            return await Team.plan(team, view)

        team.plan = plan  # type: ignore[method-assign]
        async with team.engine(store) as engine:
            assert (await engine.run(team.boss, "share", run_id="root")).output == "done" and team.kept == ["1"]
            (joined,) = await events_of(engine, "root", e.SubagentJoined)
            assert joined.outcome == "completed"
            await same_again(engine, "root")

    virtual_time.run(main())


@pytest.mark.parametrize("wait", ["none", "accepted", "ended"])
def test_cancelling_a_child_waits_as_long_as_the_call_says(wait: Any) -> None:
    """`accepted`: until the child has recorded it; `ended`: the call has the child's end, with what it had so far. It is told twice at most."""
    posted: list[str] = []

    class Counting(RamStore):
        async def post(self, run_id: str, signal: Signal) -> None:
            posted.append(run_id)
            await super().post(run_id, signal)

    async def main() -> None:
        team, store = Team(spawn("hang")), Counting()
        seen: list[str | None] = []

        async def plan(view: View) -> Any:
            if view.agent.name == "boss" and len(view.results) == 1:
                await team.hangs.wait()
                return CancelSubagent(child=view.results[0].content["child"], why="enough", wait=wait)
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


@pytest.mark.parametrize("how", ["fails", "bound", "stops", "given up"])
def test_whatever_ends_a_parent_ends_its_open_child(how: str) -> None:
    """A child of a parent that failed, reached a bound or was given up would work for nobody."""

    async def main() -> None:
        team, store = Team(spawn("hang")), RamStore()

        async def plan(view: View) -> Any:
            if view.agent.name == "boss" and view.results:
                if how == "bound":
                    return ToolCall(tool="join_agent", args={"child": "nobody"})
                await team.hangs.wait()
                if how == "given up":
                    raise Suspended("root", "its worker dies")
                if how == "stops":
                    return Stop(reason="enough")
                raise ValueError("the planner fails")
            return await Team.plan(team, view)

        team.plan = plan  # type: ignore[method-assign]
        async with team.engine(store) as engine:
            if how == "given up":
                with pytest.raises(Suspended):
                    await engine.run(team.boss, "share", run_id="root")
                await StoreBacklog(hand(engine.runtime)).give_up("root", "it fails again and again", 5)
                assert (await engine.load("root")).status == "waiting_for_operator"
                (child,) = await children_of(engine, "root")
                await engine.work(until_idle=True)
                assert (await engine.load(child)).reason == "cancelled"
                return
            done = await engine.run(team.boss, "share", run_id="root", budget=Budget(max_iterations=3) if how == "bound" else None)
            reason = {"fails": "planner_error", "bound": "max_iterations", "stops": "stop_action"}[how]
            assert done.reason == reason, done
            (joined,) = await events_of(engine, "root", e.SubagentJoined)
            assert (joined.outcome, (await engine.load(joined.child)).reason) == ("cancelled", "cancelled")
            await same_again(engine, "root")

    virtual_time.run(main())


@pytest.mark.parametrize(("on_end", "outcome"), [("wait", "open"), ("leave", "left")])
def test_a_parent_that_is_given_up_keeps_or_leaves_its_child(on_end: Any, outcome: str) -> None:
    """A child that is waited for stays its child, and is joined when somebody has redriven the parent. One that is left is a root at once."""

    async def main() -> None:
        team, store = Team(spawn("hang", on_parent_end=on_end)), RamStore()
        redriven = False

        async def plan(view: View) -> Any:
            if view.agent.name == "boss" and view.results:
                if redriven:
                    return FinalAnswer(content="at last")
                await team.hangs.wait()
                raise Suspended("root", "its worker dies")
            return await Team.plan(team, view)

        team.plan = plan  # type: ignore[method-assign]
        async with team.engine(store) as engine:
            with pytest.raises(Suspended):
                await engine.run(team.boss, "share", run_id="root")
            (child,) = await children_of(engine, "root")
            await StoreBacklog(hand(engine.runtime)).give_up("root", "it fails again and again", 5)
            assert (await engine.load("root")).children[child].status == outcome
            team.go.set()
            await engine.work(until_idle=True)
            state = await engine.load(child)
            assert (state.status, state.delegated is not None and state.delegated.left) == ("completed", on_end == "leave")
            redriven = True
            assert (await engine.reopen("root", by="ann")).output == "at last"
            (joined,) = await events_of(engine, "root", e.SubagentJoined)
            assert joined.outcome == ("completed" if on_end == "wait" else "left")
            assert all(one.ok for one in await verify_tree(engine.runtime, "root"))
            await same_again(engine, "root")

    virtual_time.run(main())


def test_a_held_answer_is_the_one_that_was_given_whatever_happens_meanwhile() -> None:
    """The parent waits with its answer for a child; its process dies; the other one may not ask the planner for another answer."""

    async def main() -> None:
        team, store = Team(spawn("ask 1", on_parent_end="wait")), RamStore()
        answers = iter(["the first", "another"])

        async def plan(view: View) -> Any:
            if view.agent.name == "boss" and view.results:
                return FinalAnswer(content=next(answers))
            return await Team.plan(team, view)

        team.plan = plan  # type: ignore[method-assign]
        async with team.engine(store) as engine:
            assert (await engine.run(team.boss, "share", run_id="root")).status == "waiting_for_subagent"
        async with team.engine(store.sibling()) as engine:
            (asked,) = await engine.approvals()
            await engine.approve(asked.run_id, asked.call_id, by="ann")
            state = await engine.load("root")
            assert (state.output, state.usage.iterations, team.kept) == ("the first", 4, ["1"])
            await same_again(engine, "root")

    virtual_time.run(main())


@pytest.mark.parametrize("status", ["waiting", "queued", "suspended"])
def test_a_child_in_any_state_is_cancelled_with_its_parent(status: str) -> None:
    """It waits for a person, has not begun, or was left open by a process that stopped."""

    async def main() -> None:
        goals = {"waiting": ["ask 1"], "queued": ["ask 1", "hang", "keep 2"], "suspended": ["hang"]}[status]
        team, store = Team(*(start(goal) for goal in goals)), RamStore()
        async with team.engine(store, bounds=Bounds(children=ChildBounds(at_once=1 if status == "queued" else 8))) as engine:
            running = asyncio.create_task(engine.run(team.boss, "share", run_id="root"))
            if status != "waiting":
                await team.hangs.wait()
            if status == "suspended":
                engine.suspend("the machine goes down", drain_s=0)
                with pytest.raises(Suspended):
                    await running
            elif status == "waiting":
                await running
            done = await engine.cancel("root", by="ann")
            if status == "queued":
                done = await running
            assert (done.status, done.reason) == ("stopped", "cancelled")
            heads = await store.list_runs(RunQuery())
            assert len(heads) == len(goals) + 1 and {head.reason for head in heads} == {"cancelled"}, heads
            assert team.kept == []
            assert not (await engine.load("root")).held.iterations
            await same_again(engine, "root")

    virtual_time.run(main())


def test_a_strategy_does_not_work_on_while_the_end_of_its_run_is_held() -> None:
    """A fatal tool ended the run; it waits for its child's end; a strategy that tries something else on failure would begin that."""

    async def twice(run: StrategyRun) -> Passed:
        first = await run.kernel("first")
        return first if first.reason == "final_answer" else await run.kernel("second", task="try again")

    @tool(side_effect="write")
    async def explode() -> str:
        """Fail for good."""
        raise FatalToolError("no")

    async def main() -> None:
        team, store = Team(spawn("hang"), ToolCall(tool="explode", args={})), RamStore()
        team.tools.append(explode)
        boss = msgspec.structs.replace(team.boss, tools=(*team.boss.tools, "explode"), strategy="twice")
        async with team.engine(store, strategies={"twice": twice}) as engine:
            done = await engine.run(boss, "share", run_id="root")
            assert (done.reason, list((await engine.load("root")).passes)) == ("fatal_tool_error", ["first"])
            assert [one.outcome for one in await events_of(engine, "root", e.SubagentJoined)] == ["cancelled"]
            await same_again(engine, "root")

    virtual_time.run(main())


def test_a_child_that_is_left_before_it_began_begins() -> None:
    """It queued behind another one. Its parent has paid for it, and nobody would start it afterwards."""

    async def main() -> None:
        team, store = Team(spawn("hang"), spawn("keep 1", on_parent_end="leave")), RamStore()
        async with team.engine(store, bounds=Bounds(children=ChildBounds(at_once=1))) as engine:
            assert (await engine.run(team.boss, "share", run_id="root")).status == "completed"
            (left,) = [one.child for one in await events_of(engine, "root", e.SubagentJoined) if one.outcome == "left"]
            while not (await engine.load(left)).terminal:
                await asyncio.sleep(0.1)
            assert team.kept == ["1"]

    virtual_time.run(main())


@pytest.mark.parametrize("gone", ["erase", "delete"])
def test_a_child_that_was_left_outlives_a_parent_that_is_gone(gone: str) -> None:
    """The process died before the child had heard that it was left, and the parent's log can no longer say so."""

    async def main() -> None:
        team, store = Team(spawn("hang", on_parent_end="leave")), RamStore()
        async with team.engine(store) as engine:
            running = asyncio.create_task(engine.run(team.boss, "share", run_id="root"))
            await team.hangs.wait()
            assert (await running).status == "completed"
        (left,) = [head.run_id for head in await store.list_runs(RunQuery()) if head.run_id != "root"]
        assert [signal.id for signal in (await store.signals([left]))[left]] == ["parent:left"]
        team.go.set()
        async with team.engine(store) as engine:
            await (engine.erase("root", by="ann", why="asked for") if gone == "erase" else engine.delete("root"))
            assert (await engine.resume(left)).status == "completed"
            state = await engine.load(left)
            assert state.delegated is not None and state.delegated.left

    virtual_time.run(main())


def test_a_child_that_cannot_be_started_is_an_observation_of_its_parent() -> None:
    """What it sees of its parent cannot be made. A parent that waits for it would wait for ever."""

    def broken(messages: Any) -> Any:
        raise ConfigError("there is nothing to see")

    async def main() -> None:
        team, store = Team(start("keep 1")), RamStore()
        needy = msgspec.structs.replace(team.worker, sees=broken)
        async with team.engine(store) as engine:
            done = await engine.run(msgspec.structs.replace(team.boss, subagents={"worker": needy}), "share", run_id="root")
            assert done.output == ["child_failed"] and await children_of(engine, "root") == []
            (joined,) = await events_of(engine, "root", e.SubagentJoined)
            assert joined.reason == "not_started" and "nothing to see" in joined.error.message
            await same_again(engine, "root")

    virtual_time.run(main())


class Nobody:
    """A worker host that never works."""

    async def submit(self, run_id: str) -> None:
        """Forget it."""

    async def work(self, backlog: Any, *, until_idle: bool = False) -> None:
        """Do nothing."""


def test_resuming_a_parent_continues_children_that_nobody_advances() -> None:
    """Otherwise a tree whose children were left in the middle would wait for them for ever, and so would its cancellation."""

    async def main() -> None:
        team, store = Team(start("keep 1")), RamStore()
        async with team.engine(store, worker_host=Nobody()) as engine:
            assert (await engine.run(team.boss, "share", run_id="root")).status == "waiting_for_subagent"
        async with team.engine(store.sibling()) as engine:
            assert (await engine.resume("root")).output == ["worker: 1"]
            await same_again(engine, "root")

    virtual_time.run(main())


@pytest.mark.parametrize("cancels", [False, True], ids=["waits", "cancels"])
def test_a_child_that_another_process_took_and_did_not_begin_is_begun_later(cancels: bool) -> None:
    """That process stopped before the child's first record. As a row, the parent would wait for ever, also for the end of a child it has cancelled."""

    async def main() -> None:
        team, store = Team(spawn("keep 1") if cancels else start("keep 1")), RamStore()

        async def plan(view: View) -> Any:
            if cancels and view.agent.name == "boss" and len(view.results) == 1:
                return CancelSubagent(child=view.results[0].content["child"], why="enough", wait="ended")
            return await Team.plan(team, view)

        team.plan = plan  # type: ignore[method-assign]
        other, child = store.sibling(), child_id("root", "main.1.0")
        await other.claim(child)
        async with team.engine(store, clock=virtual_time.LoopClock()) as engine:
            await engine.submit(team.boss, "share", run_id="root")
            for _ in range(8):
                await engine.work(until_idle=True)
                assert (await engine.load("root")).status == "running"  # so that a worker finds it
                await asyncio.sleep(10)
            assert await store.head(child) is None
            await other.release(child)
            await engine.work(until_idle=True)
            assert (await engine.load("root")).output[-1] == ("child_cancelled" if cancels else "worker: 1")
            assert [one.outcome for one in await events_of(engine, "root", e.SubagentJoined)] == ["cancelled" if cancels else "completed"]
            assert team.kept == ([] if cancels else ["1"])
            await same_again(engine, "root")

    virtual_time.run(main())
