"""`reconcile` is asked whenever a call is or becomes in doubt, and again by resumes and workers, until it knows or a person settles it. DESIGN 5."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from detent import Agent, Budget, FinalAnswer, tool
from detent.config.groups import Bounds
from detent.core import events as e
from detent.core.errors import NotAllowedNow
from detent.ports import DueQuery, Signal
from detent.running.working import LONGEST_S
from detent.stores.ram import RamStore
from detent.testing.clocks import FakeClock
from detent.testing.faults import Crash, CrashingStore
from detent.tools import Happened, NotHappened
from kernel.runs import END, Script, call, engine_for, records_of, run_async

Ends = Callable[[], Any]


class Bank:
    """Pays, and nobody sees the end of it; `knows` is what its `reconcile` answers, `asked` by which keys it was asked."""

    def __init__(self, ends: str = "raises", knows: Any = None) -> None:
        self.paid: list[int] = []
        self.asked: list[str] = []
        self.knows, self.ends, self.inside = knows, ends, asyncio.Event()

        async def settled(key: str) -> Any:
            self.asked.append(key)
            self.inside.set()
            return await asyncio.Event().wait() if self.knows == "hangs" else self.knows

        @tool(side_effect="write", reconcile=settled, timeout_s=0.01 if ends == "times out" else 30)
        async def pay(n: int = 1) -> str:
            """Pay n."""
            self.paid.append(n)
            self.inside.set()
            if self.ends == "raises":
                raise ConnectionResetError("line dead")
            if self.ends != "returns":
                await asyncio.Event().wait()
            return f"paid {n}"

        self.tool = pay

    def engine(self, *, script: Any = None, store: Any = None, **options: Any) -> Any:
        """Return an engine with the tool."""
        options = {"clock": None} | options
        return engine_for(
            script or Script([call("pay", n=5), FinalAnswer(content="done")]), self.tool, store=store or RamStore(), **options
        )


AGENT = Agent(name="w", tools=["pay"])


def settled(records: list[Any]) -> list[tuple[str, str]]:
    """Return what became of calls in doubt, and by whom."""
    return [(r.event.outcome, r.event.source) for r in records if isinstance(r.event, e.ToolReconciled)]


@pytest.mark.parametrize("ends", ["raises", "times out"])
@pytest.mark.parametrize(
    ("knows", "outcome", "content", "code"),
    [(Happened("receipt 7"), "happened", "receipt 7", ""), (NotHappened(), "not_happened", None, "not_executed")],
)
def test_a_call_that_becomes_in_doubt_is_reconciled_at_once(ends: str, knows: Any, outcome: str, content: Any, code: str) -> None:
    """A timeout or an exception needs no person where the tool knows; what did not happen is told to the planner, never retried unasked."""

    async def main() -> None:
        bank, store = Bank(ends, knows), RamStore()
        async with bank.engine(store=store) as engine:
            result = await engine.run(AGENT, "go", run_id="r")
            assert (result.status, result.output, bank.paid, len(bank.asked)) == ("completed", "done", [5], 1)
            (item,) = result.tool_calls
            assert (item.content, item.error.code if item.error else "") == (content, code)
            assert settled(await records_of(store, "r")) == [(outcome, "reconcile")]
            assert (await engine.replay("r")).identical

    run_async(main)


def test_a_cancelled_call_is_reconciled_before_its_run_ends() -> None:
    """Who cancels is told what became of it, not that nobody knows."""

    async def main() -> None:
        bank = Bank("hangs", Happened("receipt 7"))
        async with bank.engine(bounds=Bounds(grace_s=0.05)) as engine:
            running = asyncio.ensure_future(engine.run(AGENT, "go", run_id="r"))
            await bank.inside.wait()
            await engine.cancel("r", by="ann")
            result = await running
            assert (result.reason, result.state.in_doubt, len(bank.asked)) == ("cancelled", (), 1)
            assert (await engine.replay("r")).identical

    run_async(main)


def test_a_reconcile_that_hangs_is_ended_by_a_cancellation() -> None:
    """The call stays in doubt, the run ends, and who cancels does not wait while the tool is asked again."""

    async def main() -> None:
        bank = Bank("raises", "hangs")
        async with bank.engine(bounds=Bounds(grace_s=0.05)) as engine:
            running = asyncio.ensure_future(engine.run(AGENT, "go", run_id="r"))
            await bank.inside.wait()
            await engine.cancel("r", by="ann")
            result = await running
            assert (result.reason, result.state.in_doubt, len(bank.asked)) == ("cancelled", ("main.1.0",), 1)
            assert (await engine.replay("r")).identical

    run_async(main)


def test_a_reconcile_that_hangs_has_no_more_time_than_its_run() -> None:
    """It would hold a run of one second for as long as its own limit, which is a minute for a tool without one; the grace is given in any case."""

    async def main() -> None:
        bank = Bank(knows="hangs")
        agent = Agent(name="w", tools=["pay"], budget=Budget(max_running_s=0.1))
        async with bank.engine(bounds=Bounds(grace_s=0.2)) as engine:
            result = await asyncio.wait_for(engine.run(agent, "go", run_id="r"), 10)
            assert (result.status, len(bank.asked)) == ("waiting_for_reconciliation", 1)
            assert (await engine.replay("r")).identical

    run_async(main)


def test_every_resume_asks_again_until_it_is_known_and_leaves_no_trace_before_that() -> None:
    """A run that waits is not made longer by asking; once the answer is there it goes on, and its log replays."""

    async def main() -> None:
        bank, store = Bank("raises"), RamStore()
        async with bank.engine(store=store) as engine:
            assert (await engine.run(AGENT, "go", run_id="r")).status == "waiting_for_reconciliation"
            length = len(await store.read("r"))
            for times in (2, 3):
                assert (await engine.resume("r")).status == "waiting_for_reconciliation"
                assert len(bank.asked) == times and len(await store.read("r")) == length
        bank.knows = Happened("receipt 7")
        async with bank.engine(script=Script([FinalAnswer(content="done")]), store=store) as engine:
            result = await engine.resume("r")
            assert (result.status, result.output, [item.content for item in result.tool_calls]) == ("completed", "done", ["receipt 7"])
            assert settled(await records_of(store, "r")) == [("happened", "reconcile")] and len(set(bank.asked)) == 1 and bank.paid == [5]
            replay = await engine.replay("r")
            assert replay.identical, replay.divergence

    run_async(main)


def test_what_is_known_later_not_to_have_happened_runs_then_with_the_same_key() -> None:
    """As when a person says so."""

    async def main() -> None:
        bank, store = Bank("raises"), RamStore()
        async with bank.engine(store=store) as engine:
            await engine.run(AGENT, "go", run_id="r")
        bank.knows, bank.ends = NotHappened(), "returns"
        async with bank.engine(script=Script([END]), store=store) as engine:
            result = await engine.resume("r")
            assert (result.status, bank.paid, [item.content for item in result.tool_calls]) == ("completed", [5, 5], ["paid 5"])
            started = [r.event.key for r in await records_of(store, "r") if isinstance(r.event, e.ToolStarted)]
            assert len(started) == 2 and len({*started, *bank.asked}) == 1
            assert (await engine.replay("r")).identical

    run_async(main)


def test_a_call_that_a_person_has_settled_is_not_asked_about_any_more() -> None:
    """Neither when the person's word is taken up, nor later; and what reconcile says after that changes nothing."""

    async def main() -> None:
        bank, store = Bank("raises"), RamStore()
        async with bank.engine(store=store) as engine:
            await engine.run(AGENT, "go", run_id="r")
            await engine.reconcile("r", "main.1.0", happened=True, result="by hand", by="ann", resume=False)
            bank.knows = Happened("receipt 7")
            result = await engine.resume("r")
            assert [item.content for item in result.tool_calls] == ["by hand"] and len(bank.asked) == 1
            await engine.resume("r")
            assert len(bank.asked) == 1 and settled(await records_of(store, "r")) == [("happened", "person")]
            with pytest.raises(NotAllowedNow):
                await engine.reconcile("r", "main.1.0", happened=False, by="ann")

    run_async(main)


def test_a_finished_run_learns_what_became_of_its_call_when_it_is_resumed() -> None:
    """It has ended and stays so; what was in doubt is known from then on."""

    async def main() -> None:
        bank, store = Bank("raises", "hangs"), RamStore()
        async with bank.engine(store=store, bounds=Bounds(grace_s=0.05)) as engine:
            running = asyncio.ensure_future(engine.run(AGENT, "go", run_id="r"))
            await bank.inside.wait()
            await engine.cancel("r", by="ann")
            assert (await running).state.in_doubt == ("main.1.0",)
            bank.knows = NotHappened()
            result = await engine.resume("r")
            assert (result.reason, result.state.in_doubt, bank.paid) == ("cancelled", (), [5])
            assert settled(await records_of(store, "r")) == [("not_happened", "reconcile")] and (await engine.replay("r")).identical

    run_async(main)


@pytest.mark.parametrize("at", [4, 5])
def test_a_worker_that_dies_between_the_doubt_and_the_answer_leaves_a_call_that_is_asked_about(at: int) -> None:
    """The answer is given once, whoever asks for it."""

    async def main() -> None:
        bank, store = Bank("raises", Happened("receipt 7")), RamStore()
        with pytest.raises(Crash):
            await bank.engine(store=CrashingStore(store, at=at, operations=("append",))).run(AGENT, "go", run_id="r")
        await store.release("r")
        async with bank.engine(script=Script([END, END]), store=store) as engine:
            result = await engine.resume("r")
            assert (result.status, bank.paid) == ("completed", [5])
            assert settled(await records_of(store, "r")) == [("happened", "reconcile")] and (await engine.replay("r")).identical

    run_async(main)


def test_a_worker_asks_again_with_growing_pauses() -> None:
    """Twice as long each time, at most five minutes; a run whose tool can say nothing is left alone."""

    async def main() -> None:
        @tool(side_effect="write")
        async def post() -> None:
            """Post, and nobody knows."""
            raise ConnectionResetError("line dead")

        bank, store, clock = Bank("raises"), RamStore(), FakeClock()
        async with bank.engine(store=store, clock=clock) as engine:
            await engine.run(AGENT, "go", run_id="r")
            engine.planner = Script([call("post"), END])
            await engine.run(Agent(name="p", tools=[post]), "go", run_id="mute")
            times, begin = list[float](), clock.now()
            while (clock.now() - begin) < timedelta(seconds=1500):
                found = await store.due(DueQuery(now=clock.now()))
                times += [(clock.now() - begin).total_seconds() for head in found.runs if head.run_id == "r"]
                await engine.work(until_idle=True)
                clock.advance((await store.due(DueQuery(now=clock.now()))).next_s or LONGEST_S)
            mute = await store.head("mute")
            assert mute is not None and mute.wake_at is None
        assert times[:5] == [1, 3, 7, 15, 31] and times[-1] - times[-2] == LONGEST_S

    run_async(main)


def test_a_worker_takes_a_run_on_as_soon_as_the_tool_knows() -> None:
    """No resume and no person: looking is enough, and it is no failed attempt."""

    async def main() -> None:
        bank, store, clock = Bank("raises"), RamStore(), FakeClock()
        async with bank.engine(store=store, clock=clock) as engine:
            await engine.run(AGENT, "go", run_id="r")
            length = len(await store.read("r"))
            clock.advance(2)
            worked = await engine.work(until_idle=True)
            assert (len(bank.asked), worked.came_to, worked.dead_letters, len(await store.read("r"))) == (2, {}, {}, length)
            bank.knows = Happened("receipt 7")
            engine.planner = Script([END])
            clock.advance(3)
            worked = await engine.work(until_idle=True)
            assert worked.came_to == {"completed": 1} and len(bank.asked) == 3
            assert (await engine.replay("r")).identical

    run_async(main)


def test_what_was_said_of_an_attempt_does_not_count_for_the_next_one() -> None:
    """The first `not_happened` has it run again, and that one is in doubt, too: the second, which was about the first attempt, began a third."""

    async def main() -> None:
        bank, store = Bank(), RamStore()

        async def posted(by: str, **more: Any) -> str:
            payload = {"call": "main.1.0", "outcome": "not_happened", **more}
            await store.post("r", Signal(id=by, kind="reconcile", by=by, payload=payload))
            return (await engine.resume("r")).status

        async with bank.engine(store=store) as engine:
            assert (await engine.run(AGENT, "go", run_id="r")).status == "waiting_for_reconciliation"
            assert await posted("ann", attempt=1) == "waiting_for_reconciliation" and bank.paid == [5, 5]
            assert await posted("bob", attempt=1) == "waiting_for_reconciliation" and bank.paid == [5, 5]
            refused = [r.event for r in await records_of(store, "r") if isinstance(r.event, e.AnswerRefused)]
            assert [(event.by, event.code) for event in refused] == [("bob", "attempt_changed")]
            assert await posted("cid") == "waiting_for_reconciliation" and bank.paid == [5, 5, 5], "0.1.0 did not say which"
            result = await engine.reconcile("r", "main.1.0", happened=True, result="yes", by="dan")
            assert result.status == "completed" and (await engine.replay("r")).identical
            assert [r.event.attempt for r in await records_of(store, "r") if isinstance(r.event, e.ToolReconciled)] == [1, 0, 3]

    run_async(main)
