"""The contract of a `Scheduler`, as tests.

A project with a scheduler writes a `SchedulerMaker`, which creates it, and a class with one fixture:

    class TestMyScheduler(SchedulerContract):
        @pytest.fixture
        def maker(self):
            return MySchedulerMaker()
"""

# ruff: noqa: S101 - these are tests

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from contextvars import ContextVar
from typing import Any

from detent.config.agents import Agent
from detent.core.actions import FinalAnswer, ToolCall
from detent.engine import Engine
from detent.ports import Job, Scheduler, ToolSpec
from detent.stores.ram import RamStore
from detent.testing.conformance.promises import Maker, documented, made, soon, until
from detent.testing.scripted import ScriptedPlanner
from detent.tools.functions.function import tool

__all__ = ["SchedulerContract", "SchedulerMaker"]

WHO: ContextVar[str] = ContextVar("who", default="nobody")


class SchedulerMaker(Maker):
    """Makes schedulers."""

    def scheduler(self) -> Scheduler:
        """Return a new scheduler."""
        raise NotImplementedError

    def one_at_a_time(self) -> Scheduler | None:
        """Return a new scheduler that runs one call at a time, whoever asks; None if there is none."""
        return None


def job(name: str, start: Callable[[], Awaitable[Any]], *, tool: str = "look") -> Job:
    """Return a job with a name."""
    return Job(run_id="run-1", call_id=name, tool=ToolSpec(name=tool, side_effect="read", concurrency_safe=True), start=start)


class Work:
    """Jobs that note when they begin and end; those named in `held` end when they are released."""

    def __init__(self, *held: str) -> None:
        self.begun: list[str] = []
        self.ended: list[str] = []
        self.most = 0
        self._held = {name: asyncio.Event() for name in held}

    @property
    def running(self) -> set[str]:
        """The names of the jobs that have begun and not ended."""
        return {name for name in self.begun if name not in self.ended}

    def let_go(self, *names: str) -> None:
        """Let these end."""
        for name in names:
            self._held[name].set()

    def job(self, name: str, *, error: Exception | None = None, tool: str = "look", slow_to_stop: int = 0) -> Job:
        """Return a job that returns its name or raises `error`. If cancelled, it ends after `slow_to_stop` more turns of the loop."""

        async def start() -> str:
            self.begun.append(name)
            self.most = max(self.most, len(self.running))
            try:
                await (self._held[name].wait() if name in self._held else asyncio.sleep(0))
                if error is not None:
                    raise error
                return name
            except asyncio.CancelledError:
                for _ in range(slow_to_stop):
                    await asyncio.sleep(0)
                raise
            finally:
                self.ended.append(name)

        return job(name, start, tool=tool)


def _came_to(found: Sequence[Any]) -> list[Any]:
    """Return the results of a group, with texts in place of exceptions."""
    return [f"{type(one).__name__}: {one}" if isinstance(one, BaseException) else one for one in found]


@documented(page="howto/tools/write-a-tool.md#how-many-at-once", port="Scheduler")
class SchedulerContract:
    """The promises of a `Scheduler`. A subclass gives the fixture `maker`."""

    async def test_every_job_begins_once(self, maker: SchedulerMaker) -> None:
        """Any number of jobs, also a single one or none."""
        scheduler = maker.scheduler()
        for count in (0, 1, 2, 7, 40):
            work, names = Work(), [f"c{n}" for n in range(count)]
            found = await soon(scheduler.run([work.job(name) for name in names]), maker, f"a group of {count}")
            assert sorted(work.begun) == sorted(names), f"of {names} these have begun: {work.begun}"
            assert list(found) == names, f"jobs that gave {names} came to {list(found)}"

    async def test_results_stand_in_the_order_of_the_jobs(self, maker: SchedulerMaker) -> None:
        """Results keep the order of the jobs, in whatever order they begin and end, also if they end from the last to the first."""
        work, names = Work("c0", "c1", "c2", "c3"), ["c0", "c1", "c2", "c3"]
        running = asyncio.ensure_future(maker.scheduler().run([work.job(name) for name in names]))
        await until(lambda: len(work.begun) == len(names), _brief(maker))
        for name in reversed(names):
            work.let_go(name)
            await until(lambda name=name: name in work.ended, _brief(maker))
        assert list(await soon(running, maker, "a group that was let go")) == names

    async def test_what_one_job_raises_ends_no_other(self, maker: SchedulerMaker) -> None:
        """The exception has its place among the results, and the other jobs run to their end."""
        work = Work("last")
        jobs = [work.job("c0", error=ValueError("no")), work.job("c1"), work.job("c2", error=TimeoutError("late")), work.job("last")]
        running = asyncio.ensure_future(maker.scheduler().run(jobs))
        await until(lambda: "last" in work.begun or running.done(), maker)
        work.let_go("last")
        try:
            found = await soon(running, maker, "a group of which two jobs fail")
        except (ValueError, TimeoutError) as error:
            raise AssertionError(f"the group raised what one of its jobs raised: {error!r}; it belongs among the results") from error
        assert _came_to(found) == ["ValueError: no", "c1", "TimeoutError: late", "last"]

    async def test_a_cancellation_reaches_every_job_and_is_waited_for(self, maker: SchedulerMaker) -> None:
        """It is raised after all begun jobs have ended, however long they take to stop; none begins after it."""
        work, names = Work("c0", "c1", "c2"), ["c0", "c1", "c2"]
        running = asyncio.ensure_future(maker.scheduler().run([work.job(name, slow_to_stop=50) for name in names]))
        await until(lambda: len(work.begun) == len(names), _brief(maker))
        begun = list(work.begun)
        assert begun, "no job has begun"
        running.cancel()
        await soon(asyncio.wait((running,)), maker, "a group that was cancelled")
        assert running.cancelled(), "the cancellation was not raised"
        assert work.running == set(), f"the group has ended, and these run on: {sorted(work.running)}"
        await until(lambda: True, maker)
        assert work.begun == begun, f"these began after the cancellation: {work.begun[len(begun) :]}"

    async def test_two_groups_at_once_stay_apart(self, maker: SchedulerMaker) -> None:
        """Each group gets its own results; cancelling one, or a failed job in it, does not affect the other."""
        scheduler, work, other = maker.scheduler(), Work(), Work("held")
        cancelled = asyncio.ensure_future(scheduler.run([other.job("held"), other.job("more", error=ValueError("no"))]))
        groups = [asyncio.ensure_future(scheduler.run([work.job(f"{group}{n}") for n in range(6)])) for group in "abc"]
        await until(lambda: "held" in other.begun, _brief(maker))
        cancelled.cancel()
        found = await soon(asyncio.gather(*groups), maker, "three groups beside one that was cancelled")
        assert [list(group) for group in found] == [[f"{group}{n}" for n in range(6)] for group in "abc"]
        with contextlib.suppress(asyncio.CancelledError):
            await soon(cancelled, maker, "a group that was cancelled")

    async def test_a_job_may_have_a_group_of_its_own(self, maker: SchedulerMaker) -> None:
        """A tool that runs an agent waits for calls of the same scheduler, even with one place, four levels deep, and for one tool."""
        for make in (maker.scheduler, maker.one_at_a_time):
            scheduler = make()
            if scheduler is None:
                continue

            def nested(name: str, depth: int, scheduler: Scheduler = scheduler) -> Job:
                async def start() -> Any:
                    jobs = [nested(f"{name}.{n}", depth - 1) for n in range(2)] if depth else []
                    return [name, *await scheduler.run(jobs)]

                return job(name, start)

            groups = [scheduler.run([nested(f"{group}{n}", 3) for n in range(3)]) for group in "ab"]
            found = await soon(asyncio.gather(*groups), maker, "groups inside of groups")
            assert [[one[0] for one in group] for group in found] == [["a0", "a1", "a2"], ["b0", "b1", "b2"]]
            assert found[0][1][2][0] == "a1.1", f"the results of inner groups are mixed up: {found[0][1]}"

    async def test_jobs_run_in_the_context_of_who_gave_them(self, maker: SchedulerMaker) -> None:
        """Jobs see the context variables of the caller, which identify their pass; what one job sets, no other sees."""
        scheduler, seen = maker.scheduler(), list[str]()

        async def start() -> None:
            seen.append(WHO.get())
            WHO.set("another job")
            await asyncio.sleep(0)

        async def group(who: str) -> None:
            WHO.set(who)
            await scheduler.run([job(f"{who}{n}", start) for n in range(3)])
            seen.append(WHO.get())

        await soon(asyncio.gather(*(asyncio.ensure_future(group(who)) for who in ("ann", "bob"))), maker, "two groups")
        assert sorted(seen) == ["ann"] * 4 + ["bob"] * 4, f"the jobs of ann and bob, three each, and they themselves saw {sorted(seen)}"

    async def test_what_was_cancelled_or_failed_leaves_its_place(self, maker: SchedulerMaker) -> None:
        """After a hundred groups that failed, or were cancelled while they ran or waited, as much can run as before."""
        scheduler = maker.scheduler()
        for turn in range(100):
            work = Work("held", "held too")
            jobs = [work.job("fails", error=ValueError("no")), work.job("held"), work.job("held too")]
            running = asyncio.ensure_future(scheduler.run(jobs))
            for _ in range(turn % 5):
                await asyncio.sleep(0)
            running.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await soon(running, maker, "a group that was cancelled")
        work = Work()
        found = await soon(scheduler.run([work.job(f"c{n}") for n in range(20)]), maker, "a group after a hundred that were cancelled")
        assert list(found) == [f"c{n}" for n in range(20)]

    async def test_what_waits_for_its_turn_can_be_cancelled(self, maker: SchedulerMaker) -> None:
        """It never begins, nobody waits for it, and those queued after it get their turn."""
        scheduler, work = made(maker.one_at_a_time(), "lets one call run at a time"), Work("first", "second")
        first = asyncio.ensure_future(scheduler.run([work.job("first")]))
        await until(lambda: work.begun, maker)
        second = asyncio.ensure_future(scheduler.run([work.job("second")]))
        third = asyncio.ensure_future(scheduler.run([work.job("third"), work.job("fourth")]))
        await until(lambda: True, maker)
        assert work.begun == ["first"], f"one at a time, and these run: {work.begun}"
        second.cancel()
        await soon(asyncio.wait((second,)), maker, "a group that was cancelled while it waited")
        assert second.cancelled(), "the cancellation was not raised"
        work.let_go("first")
        assert list(await soon(asyncio.gather(first, third), maker, "the groups that were not cancelled")) == [
            ["first"],
            ["third", "fourth"],
        ]
        assert "second" not in work.begun, "a call began after it was cancelled"
        assert work.most == 1, f"one at a time, and {work.most} ran"

    def test_one_event_loop_after_another_is_served(self, maker: SchedulerMaker) -> None:
        """Each `run_sync` of a program has its own loop; one that ended in the middle of a call leaves nothing behind."""
        scheduler = maker.scheduler()

        async def leaves() -> None:
            work = Work("held")
            task = asyncio.ensure_future(scheduler.run([work.job("held"), work.job("other")]))
            await until(lambda: work.begun, maker)
            assert not task.done()

        async def works() -> list[Any]:
            work = Work()
            groups = [scheduler.run([work.job(f"{group}{n}") for n in range(20)]) for group in "ab"]
            return await soon(asyncio.gather(*groups), maker, "a group on another event loop")

        for _ in range(2):
            asyncio.run(leaves())
            assert [one for group in asyncio.run(works()) for one in group] == [f"{group}{n}" for group in "ab" for n in range(20)]

    async def test_a_run_is_the_same_with_and_without_it(self, maker: SchedulerMaker) -> None:
        """The observations and their order are the same, and an engine without it replays the log: it only decides timing."""
        ran: list[Any] = []
        for scheduler in (maker.scheduler(), None):

            @tool(side_effect="read")
            async def look(x: int) -> int:
                """Look, and take longer the earlier the call came."""
                for _ in range(5 - x):
                    await asyncio.sleep(0)
                if x == 2:
                    raise ValueError("no")
                return x

            @tool(side_effect="write")
            async def put(x: int) -> int:
                """Put."""
                return x

            calls = tuple(ToolCall(tool="put" if x == 4 else "look", args={"x": x}) for x in range(6))
            store = RamStore()
            planner = ScriptedPlanner([calls, FinalAnswer(content="seen")])
            async with Engine(store=store, planner=planner, scheduler=scheduler) as engine:
                work = engine.run(Agent(name="a", tools=[look, put]), "look")
                result = await soon(work, maker, "a run")
            async with Engine(store=store, tools=[look, put]) as engine:
                replayed = await engine.replay(result.run_id)
            assert replayed.identical, f"its log does not replay: {replayed.divergence}"
            ran.append([(item.tool, item.content, item.error and item.error.code) for item in result.tool_calls])
        assert ran[0] == ran[1], f"with the scheduler {ran[0]}, without one {ran[1]}"

    def test_bounds_hold_over_groups(self, maker: SchedulerMaker) -> None:
        """One at a time means one of all groups, including those created inside a call."""

        async def main() -> int:
            scheduler, work = made(maker.one_at_a_time(), "lets one call run at a time"), Work()

            async def start() -> Any:
                return await scheduler.run([work.job(f"inner{n}") for n in range(4)])

            groups = [scheduler.run([job(f"outer{n}", start), *(work.job(f"{n}{m}") for m in range(4))]) for n in range(3)]
            await soon(asyncio.gather(*groups), maker, "three groups")
            return work.most

        most = asyncio.run(main())
        assert most == 1, f"one at a time, and {most} ran"


class _Brief(Maker):
    """Waits a little for optional behaviour: a scheduler may run fewer calls at once than there are."""

    patience_s = 0.05


def _brief(maker: Maker) -> Maker:
    brief = _Brief()
    brief.patience_s = min(brief.patience_s, maker.patience_s)
    return brief
