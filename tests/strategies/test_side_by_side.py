"""Passes side by side when a run is cancelled, waits or crashes: each goes by its own affairs, and the log comes out again."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest

from amounts import in_check
from detent import Agent, Budget, FinalAnswer, Plan, ToolCall, View, tool
from detent.core import events as e
from detent.core.actions import AskUser, Schedule, Thought
from detent.core.errors import EffectFailed, Suspended
from detent.ports import Branch, Signal, StrategyRun
from detent.stores.ram import RamStore
from detent.testing.clocks import FakeClock
from detent.testing.faults import Crash, CrashingStore
from metering.providers import Planning, engine, events_of, of

AGENT = Agent(name="a", strategy="mine", tools=["put", "look"], on_unknown="tell", budget=Budget(max_iterations=20))


@tool(side_effect="write")
async def put(n: int) -> int:
    """Put."""
    await asyncio.sleep(0)
    return n


@tool(side_effect="read")
async def look(n: int) -> int:
    """Look."""
    return n


async def both(run: StrategyRun) -> Any:
    """Run a and b side by side."""
    return [passed.output for passed in await run.parallel(Branch(label="a"), Branch(label="b"))]


async def replays(made: Any) -> None:
    again = await made.replay("r")
    assert again.identical, again.divergence


class Cancels:
    """Cancels the run from outside, once the pass has gone on that has made the record that `when` looks for."""

    def __init__(self, when: Any) -> None:
        self.made: Any = None
        self.when, self.task = when, None

    async def on_record(self, record: Any, state: Any) -> None:
        """Cancel once."""
        if self.task is None and self.when(record):
            self.task = asyncio.ensure_future(self.made.cancel("r", by="ann", why="enough"))

    def on_chunk(self, chunk: Any) -> None:
        """Not told."""


def answered(record: Any) -> bool:
    return isinstance(record.event, e.Planned) and record.envelope.scope == "b"


async def answers(view: View) -> Any:
    """Answer at once."""
    return FinalAnswer(content=view.scope)


def test_a_cancellation_that_comes_after_the_last_pass_is_on_record_before_the_strategy_goes_on() -> None:
    """It came in the steps of the event loop between the end of the passes and what awaits them, where no pass can see it."""

    async def mine(run: StrategyRun) -> Any:
        await both(run)
        return await run.kernel("last")

    async def main() -> None:
        cancels = Cancels(answered)
        async with engine(Planning(answers), put, look, strategies={"mine": mine}, observers=[cancels]) as made:
            cancels.made = made
            result = await made.run(AGENT, "go", run_id="r")
            assert (result.status, result.reason) == ("stopped", "cancelled")
            events = of(await events_of(made.store, "r"), e.CancelRequested, e.PassFinished, e.PassStarted, e.TurnStarted)
            kinds = [type(event).__name__ for event in events if getattr(event, "key", "") not in ("a", "b")]
            assert kinds == ["TurnStarted", "PassFinished"] * 2 + ["CancelRequested", "PassStarted", "PassFinished"]
            await replays(made)

    asyncio.run(asyncio.wait_for(main(), 60))


def test_a_run_that_is_cancelled_while_its_passes_come_to_rest_does_not_wait_for_what_they_wait_for() -> None:
    """The end by a cancellation is before any wait: nobody has to answer, and no timer has to fire, for it."""

    async def later(view: View) -> Any:
        return Schedule(delay_s=60.0)

    async def main() -> None:
        cancels = Cancels(lambda record: isinstance(record.event, e.ScheduleSet) and record.envelope.scope == "b")
        async with engine(Planning(later), put, look, strategies={"mine": both}, observers=[cancels]) as made:
            cancels.made = made
            result = await made.run(AGENT, "go", run_id="r")
            assert (result.status, result.reason, result.error) == ("stopped", "cancelled", "enough")
            assert of(await events_of(made.store, "r"), e.RunWaiting) == []
            await replays(made)

    asyncio.run(asyncio.wait_for(main(), 60))


@pytest.mark.parametrize("asked", [Schedule(delay_s=60.0), AskUser(question="well?")])
def test_a_pass_is_not_held_back_by_what_the_one_beside_it_waits_for(asked: Any) -> None:
    """A run waits only when none of its passes can move: `b` goes on to its end."""
    set_up = asyncio.Event()

    async def uneven(view: View) -> Any:
        if view.scope == "a":
            set_up.set()
            return asked
        await set_up.wait()
        return FinalAnswer(content="b") if view.results else ToolCall(tool="put", args={"n": 1})

    async def main() -> None:
        async with engine(Planning(uneven), put, look, strategies={"mine": both}) as made:
            result = await made.run(AGENT, "go", run_id="r")
            assert result.status.startswith("waiting_for_") and result.state.passes["b"].status == "done"
            await replays(made)

    asyncio.run(asyncio.wait_for(main(), 60))


def test_a_pass_that_finds_the_cancellation_that_another_has_put_on_record_replays() -> None:
    """`b` was interrupted and recorded it; `a`, whose call ran on to its end, begins no further one, live and in the replay."""
    asked, given_up = asyncio.Event(), asyncio.Event()

    async def plan(view: View) -> Any:
        if view.scope == "a":
            return Plan(actions=(ToolCall(tool="held", args={}), ToolCall(tool="put", args={"n": 1})))
        asked.set()
        try:
            return await asyncio.Event().wait()
        finally:
            given_up.set()

    async def main() -> None:
        @tool(side_effect="write")
        async def held() -> str:
            """Cancel the run and end in good order."""
            await asked.wait()
            await made.cancel("r", by="ann", why="enough")
            await given_up.wait()
            for _ in range(9):
                await asyncio.sleep(0)
            return "held"

        async with engine(Planning(plan), put, look, held, strategies={"mine": both}) as made:
            result = await made.run(Agent(name="a", strategy="mine", tools=["held", "put"]), "go", run_id="r")
            assert (result.status, result.reason) == ("stopped", "cancelled")
            events = await events_of(made.store, "r")
            assert [started.tool for started in of(events, e.ToolStarted)] == ["held"]
            assert [type(one) for one in of(events, e.CancelRequested, e.ToolFinished)] == [e.CancelRequested, e.ToolFinished]
            await replays(made)

    asyncio.run(asyncio.wait_for(main(), 60))


class Uneven(RamStore):
    """A store that lets others go on while it writes, now shorter, now longer."""

    def __init__(self) -> None:
        super().__init__()
        self.appends = 0

    async def append(self, *args: Any, **options: Any) -> None:
        """See `EventStore.append`."""
        self.appends += 1
        for _ in range(self.appends * 7 % 5):
            await asyncio.sleep(0)
        await super().append(*args, **options)


async def uneven(view: View) -> Any:
    """Act, then wait a while, then answer: `a` and `b` take turns in another order each time."""
    for _ in range(3 * view.iteration if view.scope == "a" else 1):
        await asyncio.sleep(0)
    if view.iteration == 1:
        return Plan(actions=(ToolCall(tool="put", args={"n": 1}), ToolCall(tool="look", args={"n": 2})))
    if view.iteration == 2 and view.scope == "a":
        return Schedule(delay_s=5.0)
    return FinalAnswer(content=view.scope)


@in_check
@pytest.mark.parametrize("cancelled", [False, True])
def test_the_log_of_passes_that_were_cut_off_anywhere_comes_out_again(cancelled: bool) -> None:
    """Before or after each write, also when the run is cancelled then: whoever resumes it leaves a log that replays."""

    async def main(at: int, when: Any) -> bool:
        inner, clock = Uneven(), FakeClock()
        store = CrashingStore(inner, at=at, when=when, operations=("append",))
        first = engine(Planning(uneven), put, look, store=store, clock=clock, strategies={"mine": both})
        with contextlib.suppress(Crash):
            await first.run(AGENT, "go", run_id="r")
        await inner.release("r")
        if not await inner.read("r"):
            return True
        async with engine(Planning(uneven), put, look, store=inner, clock=clock, strategies={"mine": both}) as made:
            await (made.cancel("r", by="ann") if cancelled else made.resume("r"))
            clock.advance(10)
            if not (await made.load("r")).terminal:
                await made.resume("r")
            assert (await made.load("r")).terminal
            await replays(made)
        return store.crashed

    for when in ("before", "after"):
        at = 1
        while asyncio.run(main(at, when)):
            at += 1
        assert at > 10


class Died(BaseException):
    """A process that ends, as no handler for foreign code sees it."""


def test_what_stops_a_pass_amid_its_work_weighs_more_than_the_wait_of_another() -> None:
    """Nothing is put on record as if all had come to rest while the outcome of a call is unknown; whoever resumes finds that."""
    dead: list[bool] = []

    @tool(side_effect="write")
    async def dies() -> str:
        """Die once."""
        if not dead:
            dead.append(True)
            raise Died
        return "did"

    async def plan(view: View) -> Any:
        if view.results:
            return FinalAnswer(content=view.scope)
        return AskUser(question="well?") if view.scope == "a" else ToolCall(tool="dies", args={})

    async def main() -> None:
        store, agent = RamStore(), Agent(name="a", strategy="mine", tools=["dies"], on_unknown="tell")
        async with engine(Planning(plan), dies, store=store, strategies={"mine": both}) as made:
            with pytest.raises(Died):
                await made.run(agent, "go", run_id="r")
            assert of(await events_of(store, "r"), e.RunWaiting) == []
            assert (await made.resume("r")).status == "waiting_for_user"
            await replays(made)

    asyncio.run(asyncio.wait_for(main(), 60))


def test_a_run_that_one_pass_ends_while_the_others_wait_replays() -> None:
    """The passes that wait are closed with it, in the order in which they began and not by themselves."""

    async def plan(view: View) -> Any:
        if view.scope != "c":
            return AskUser(question="well?")
        for _ in range(20):
            await asyncio.sleep(0)
        return Thought(content="hm")

    async def three(run: StrategyRun) -> Any:
        return [passed.output for passed in await run.parallel(*(Branch(label=label) for label in "abc"))]

    async def main() -> None:
        async with engine(Planning(plan), put, look, strategies={"mine": three}) as made:
            result = await made.run(AGENT, "go", run_id="r", budget=Budget(max_iterations=3))
            assert (result.status, result.reason) == ("stopped", "max_iterations")
            await replays(made)

    asyncio.run(asyncio.wait_for(main(), 60))


@pytest.mark.parametrize("resumed", [False, True])
@pytest.mark.parametrize("stubborn", ["a", "b"])
def test_what_a_pass_answers_after_a_cancellation_was_recorded_beside_it_replays(resumed: bool, stubborn: str) -> None:
    """Its planner answered in the very step in which it was to be interrupted: that is on record, and a replay asks for it; also where the run
    had only just been resumed, with no record between.
    """
    answered, asked, suspends = asyncio.Event(), asyncio.Semaphore(0), resumed

    async def plan(view: View) -> Any:
        asked.release()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            if suspends or view.scope != stubborn:
                raise
            for _ in range(9):  # what swallows its cancellation is given its end
                await asyncio.sleep(0)
            answered.set()
        return ToolCall(tool="put", args={"n": 1})

    async def all_asked() -> None:
        await asked.acquire()
        await asked.acquire()

    async def main() -> None:
        nonlocal suspends
        store = RamStore()
        if resumed:
            async with engine(Planning(plan), put, look, store=store, strategies={"mine": both}) as made:
                task = asyncio.create_task(made.run(AGENT, "go", run_id="r"))
                await all_asked()
                made.suspend("later")
                with pytest.raises(Suspended):
                    await task
            suspends = False
        async with engine(Planning(plan), put, look, store=store, strategies={"mine": both}) as made:
            task = asyncio.create_task(made.resume("r") if resumed else made.run(AGENT, "go", run_id="r"))
            await all_asked()
            await made.cancel("r", by="ann")
            assert (await task).status == "stopped" and answered.is_set()
            events = await events_of(store, "r")
            kinds = [type(one) for one in of(events, e.RunResumed, e.CancelRequested, e.Planned)]
            assert kinds == [e.RunResumed] * resumed + [e.CancelRequested, e.Planned]
            await replays(made)

    asyncio.run(asyncio.wait_for(main(), 60))


def test_a_pass_that_waits_goes_on_waiting_when_the_one_beside_it_uses_up_a_bound_of_the_run() -> None:
    """When it came to rest the bound was not reached; no log says when that was, so no verdict may depend on it."""

    async def plan(view: View) -> Any:
        if view.scope == "a":
            return AskUser(question="well?") if view.iteration == 1 else FinalAnswer(content="a")
        return FinalAnswer(content="b") if view.iteration == 3 else Plan(actions=(Thought(content="hm"),))

    async def main() -> None:
        agent = Agent(name="a", strategy="mine", on_unknown="tell", wrap_up=True)
        async with engine(Planning(plan), strategies={"mine": both}) as made:
            result = await made.run(agent, "go", run_id="r", budget=Budget(max_iterations=4))
            assert result.status == "waiting_for_user"
            await replays(made)
            result = await made.reply("r", "it is well")
            assert (result.status, result.iterations) == ("completed", 5)  # the answer was heard in one last turn
            await replays(made)

    asyncio.run(asyncio.wait_for(main(), 60))


def test_a_cancellation_that_is_recorded_when_a_bound_would_end_the_run_wins() -> None:
    """`b` had reached the bound, and `a` had come to rest before: the run is cancelled all the same, and the log comes out again."""
    runs: list[Any] = []

    async def mine(run: Any) -> Any:
        runs.append(run._run)
        passed = await run.parallel(Branch(label="a"), Branch(label="b", limits=Budget(max_iterations=9)))
        return [one.output for one in passed]

    def look() -> None:
        if runs[-1].state.passes["b"].status != "failed":
            asyncio.get_running_loop().call_soon(look)
        else:
            made.runtime.parts.watcher.control("r").deliver([Signal(id="s", kind="cancel", payload={"why": "enough"}, by="ann")])

    async def plan(view: View) -> Any:
        if view.scope == "a":
            return AskUser(question="well?")
        if view.iteration == 2:
            look()
        return Plan(actions=(Thought(content="hm"),))

    async def main() -> None:
        async with made:
            result = await made.run(Agent(name="a", strategy="mine"), "go", run_id="r", budget=Budget(max_iterations=3))
            assert result.reason == "cancelled" and len(of(await events_of(made.store, "r"), e.CancelRequested)) == 1
            await replays(made)

    made: Any = engine(Planning(plan), strategies={"mine": mine})
    asyncio.run(asyncio.wait_for(main(), 60))


def test_a_pass_that_had_ended_and_goes_on_when_the_run_is_opened_again_replays() -> None:
    """What it does then is no reason to wait for it while the first opening is gone through."""
    failing = ["b", "last"]

    async def mine(run: StrategyRun) -> Any:
        await both(run)
        return await run.kernel("last")

    async def plan(view: View) -> Any:
        if view.scope == "last" and view.iteration == 1:
            return AskUser(question="well?")
        if view.scope in failing:
            raise ValueError(view.scope)
        return FinalAnswer(content=view.scope)

    async def main() -> None:
        async with engine(Planning(plan), strategies={"mine": mine}) as made:
            await made.run(Agent(name="a", strategy="mine"), "go", run_id="r")
            assert (await made.reply("r", "it is well")).status == "failed"
            failing.clear()
            assert (await made.reopen("r", by="ann")).status == "completed"
            await replays(made)

    asyncio.run(asyncio.wait_for(main(), 60))


@pytest.mark.parametrize(("labels", "bound"), [("a", "max_total_s"), ("ab", "max_total_s"), ("ab", "max_running_s")])
def test_a_call_that_is_approved_when_the_time_is_over_does_not_begin(labels: str, bound: str) -> None:
    """It would begin with no time left, and be in doubt at once: the run ends instead, and the log says why."""
    done: list[int] = []

    @tool(side_effect="destructive")
    async def wipe(n: int) -> int:
        """Wipe."""
        done.append(n)
        await asyncio.sleep(0)
        return n

    async def mine(run: StrategyRun) -> Any:
        if len(labels) > 1:
            return [passed.output for passed in await run.parallel(*(Branch(label=label) for label in labels))]
        return await run.kernel("a")

    late, clock = 0, FakeClock()

    async def plan(view: View) -> Any:
        if view.scope == "b" and bound == "max_running_s":
            clock.advance(late)
        return ToolCall(tool="wipe", args={"n": 1}) if view.scope == "a" and not view.results else FinalAnswer(content="done")

    async def main() -> None:
        nonlocal late
        agent = Agent(name="a", strategy="mine", tools=["wipe"], budget=Budget(**{bound: 60}))  # pyright: ignore[reportArgumentType]
        async with engine(Planning(plan), wipe, strategies={"mine": mine}, clock=clock, approver="caller") as made:
            for run_id, late in (("in-time", 50), ("r", 60)):
                assert (await made.run(agent, "go", run_id=run_id)).status == "waiting_for_approval"
                clock.advance(late if bound == "max_total_s" else 0)
                result = await made.approve(run_id, "a.1.0", by="ann")
                assert result.status == ("completed" if late < 60 else "stopped") and done == [1]
            assert (result.reason, result.state.dimension, result.usage.tool_calls) == ("budget_exhausted", bound[4:], 0)
            await replays(made)

    asyncio.run(asyncio.wait_for(main(), 60))


def test_effects_that_fail_beside_each_other_are_both_on_record() -> None:
    """The second does not take the place of the first: whoever resumes the run, or replays it, finds that both failed, and makes neither again."""

    async def fails() -> int:
        await asyncio.sleep(0)
        raise OSError("broken")

    async def mine(run: StrategyRun) -> Any:
        failed = await asyncio.gather(run.effect("one", fails), run.effect("two", fails), return_exceptions=True)
        assert all(isinstance(one, EffectFailed) for one in failed)
        return "done"

    async def main() -> None:
        async with engine(Planning(answers), put, look, strategies={"mine": mine}) as made:
            assert (await made.run(AGENT, "go", run_id="r")).output == "done"
            assert [effect.label for effect in of(await events_of(made.store, "r"), e.EffectRecorded) if effect.phase != e.ASIDE] == [
                "one",
                "two",
            ]
            await replays(made)

    asyncio.run(asyncio.wait_for(main(), 60))


def test_a_run_that_a_tool_of_a_pass_begins_or_replays_is_none_of_its_passes() -> None:
    """It ends at its bound though it waits, as any run with one pass, and its log comes out again where it is looked at."""

    async def plan(view: View) -> Any:
        if view.run_id == "inner":
            return AskUser(question="well?") if view.scope in ("a", "main") else FinalAnswer(content="b")
        return FinalAnswer(content=view.scope) if view.results or view.scope == "b" else ToolCall(tool="begin", args={})

    async def main() -> None:
        @tool(side_effect="write")
        async def begin() -> str:
            """Begin another run, and replay it."""
            inner = await made.run(Agent(name="i", strategy="reactive"), "go", run_id="inner", budget=Budget(max_iterations=1))
            await replays_of("inner")
            return inner.reason

        async def replays_of(run_id: str) -> None:
            assert (await made.replay(run_id)).identical

        async with engine(Planning(plan), begin, strategies={"mine": both}) as made:
            result = await made.run(Agent(name="a", strategy="mine", tools=["begin"]), "go", run_id="r")
            assert result.status == "completed"
            assert [item.content for item in result.tool_calls] == ["max_iterations"]
            await replays(made)

    asyncio.run(asyncio.wait_for(main(), 60))
