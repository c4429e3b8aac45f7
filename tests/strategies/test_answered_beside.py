"""Passes side by side, and what comes for one while another acts: it wakes, or it rests, and the log comes out again."""

from __future__ import annotations

import asyncio
import contextlib
from functools import partial
from typing import Any

import msgspec
import pytest

from detent import Agent, FatalToolError, FinalAnswer, Plan, ToolCall, View, tool
from detent.core import events as e
from detent.core.errors import Conflict
from detent.core.state import KernelState
from detent.kernel.act import act as act_phase
from detent.kernel.context import KernelContext
from detent.kernel.journal import Journal
from detent.kernel.kernel import make_kernel
from detent.kernel.think import think
from detent.running.late import append_late
from detent.stores.ram import RamStore
from detent.testing.clocks import FakeClock, SequentialIds
from detent.testing.faults import Crash, CrashingStore
from metering.providers import Planning, engine, events_of, of
from strategies.test_side_by_side import Cancels, both, put, replays


def test_a_pass_whose_approval_was_taken_up_by_the_one_beside_it_goes_on() -> None:
    """It had come to rest by then: the run waited for an approval that was there, and nothing that anybody did moved it again."""

    async def plan(view: View) -> Any:
        return FinalAnswer(content=view.scope) if view.results else ToolCall(tool="wipe", args={"of": view.scope})

    async def main() -> None:
        @tool(side_effect="destructive")
        async def wipe(of: str) -> str:
            """Wipe it; while one is at it, the other one is approved."""
            if of == "a":
                for _ in range(9):
                    await asyncio.sleep(0)
                await made.approve("r", "b.1.0", by="bob", resume=False)
            return of

        async with engine(Planning(plan), wipe, strategies={"mine": both}, approver="caller") as made:
            agent = Agent(name="a", strategy="mine", tools=["wipe"])
            assert (await made.run(agent, "go", run_id="r")).status == "waiting_for_approval"
            result = await made.approve("r", "a.1.0", by="ann")
            assert (result.status, result.output) == ("completed", ["a", "b"])
            assert len(of(await events_of(made.store, "r"), e.RunWaiting)) == 1
            await replays(made)

    asyncio.run(asyncio.wait_for(main(), 60))


def test_a_denial_that_stops_the_run_stops_it_though_the_pass_beside_waits() -> None:
    """The pass beside it picked the denial up and asked for an approval itself: the run waited for that one, and its replay ended at the denial."""

    async def plan(view: View) -> Any:
        return ToolCall(tool="wipe", args={"of": view.scope})

    async def main() -> None:
        @tool(side_effect="destructive")
        async def wipe(of: str) -> str:
            """Wipe it; while one is at it, the other one is denied."""
            for _ in range(9):
                await asyncio.sleep(0)
            await made.deny("r", "b.1.0", by="bob", reason="no", resume=False)
            return of

        async with engine(Planning(plan), wipe, strategies={"mine": both}, approver="caller") as made:
            agent = Agent(name="a", strategy="mine", tools=["wipe"], on_reject="stop")
            assert (await made.run(agent, "go", run_id="r")).status == "waiting_for_approval"
            result = await made.approve("r", "a.1.0", by="ann")
            assert (result.status, result.reason) == ("stopped", "approval_rejected")
            assert len(of(await events_of(made.store, "r"), e.RunWaiting, e.ApprovalRequested)) == 4  # a asked once more
            await replays(made)

    asyncio.run(asyncio.wait_for(main(), 60))


def test_a_call_that_is_approved_while_those_before_it_run_is_decided_before_it_begins() -> None:
    """The pass beside it picked the approval up: the call began without the decision that follows every approval, under arguments nobody had judged."""

    async def plan(view: View) -> Any:
        if view.results:
            return FinalAnswer(content=view.scope)
        if view.scope == "b":
            return ToolCall(tool="approves", args={})
        return Plan(actions=(ToolCall(tool="slow", args={}), ToolCall(tool="wipe", args={"n": 1})))

    async def main() -> None:
        approved = asyncio.Event()

        @tool(side_effect="write")
        async def slow() -> int:
            """Run until the call behind it is approved."""
            try:
                await asyncio.wait_for(approved.wait(), 25)
            finally:
                for x in await events_of(made.store, "r"):
                    print(repr(x)[:200])
            return 1

        @tool(side_effect="read")
        async def approves() -> int:
            """Approve the call of the other pass, with another argument."""
            await made.approve("r", "a.1.1", by="bob", args={"n": 2}, resume=False)
            return 1

        @tool(side_effect="destructive")
        async def wipe(n: int) -> int:
            """Wipe it."""
            return n

        class Hears:
            """Lets the first call end when the approval is in the log."""

            async def on_record(self, record: Any, state: Any) -> None:
                if isinstance(record.event, e.ApprovalEdited):
                    approved.set()

            def on_chunk(self, chunk: Any) -> None:
                """Not told."""

        async with engine(Planning(plan), slow, approves, wipe, strategies={"mine": both}, approver="caller", observers=[Hears()]) as made:
            agent = Agent(name="a", strategy="mine", tools=["slow", "approves", "wipe"])
            assert (await made.run(agent, "go", run_id="r")).status == "completed"
            found = of(await events_of(made.store, "r"), e.ApprovalEdited, e.PolicyDecided, e.ToolStarted)
            about = [type(one) for one in found if one.call == "a.1.1"]
            assert about == [e.PolicyDecided, e.ApprovalEdited, e.PolicyDecided, e.ToolStarted]
            await replays(made)

    asyncio.run(asyncio.wait_for(main(), 60))


class DiesAtTheCancellation(RamStore):
    """A store whose worker dies with the first commit that has the cancellation in it."""

    died = False

    async def append(self, run_id: str, expected_seq: int, records: Any, **options: Any) -> None:
        """See `EventStore.append`."""
        if not self.died and any(b'"cancel_requested"' in line for line in records):
            self.died = True
            raise Crash
        await super().append(run_id, expected_seq, records, **options)


def test_a_worker_that_dies_between_what_a_pass_found_and_the_cancellation_itself_is_replayed() -> None:
    """The log has that a pass found the cancellation, and the next worker recorded the cancellation: the replay went round for ever in between."""

    async def plan(view: View) -> Any:
        return FinalAnswer(content="done") if view.results else Plan(actions=tuple(ToolCall(tool="put", args={"n": n}) for n in (1, 2)))

    async def main() -> None:
        store = DiesAtTheCancellation()
        cancels = Cancels(lambda record: isinstance(record.event, e.ToolStarted) and record.envelope.scope == "b")
        async with engine(Planning(plan), put, store=store, strategies={"mine": both}, observers=[cancels]) as made:
            cancels.made, agent = made, Agent(name="a", strategy="mine", tools=["put"])
            with contextlib.suppress(Crash):
                await made.run(agent, "go", run_id="r")
            assert (await made.resume("r")).status == "stopped"
            kinds = [type(one) for one in of(await events_of(store, "r"), e.EffectRecorded, e.RunResumed, e.CancelRequested)]
            assert kinds[:3] == [e.EffectRecorded, e.RunResumed, e.CancelRequested]
            await replays(made)

    asyncio.run(asyncio.wait_for(main(), 30))


def test_a_pass_that_was_answered_while_another_one_ended_the_run_rests_in_the_replay_too() -> None:
    """It had come to rest before the answer was taken up, and no log says when it looked: it makes no record any more but that of its end."""

    async def plan(view: View) -> Any:
        return ToolCall(tool="ends", args={}) if view.results else ToolCall(tool="wipe", args={"of": view.scope})

    async def main() -> None:
        @tool(side_effect="destructive")
        async def wipe(of: str) -> str:
            """Wipe it; while one is at it, the other one is approved."""
            for _ in range(9):
                await asyncio.sleep(0)
            await made.approve("r", "b.1.0", by="bob", resume=False)
            return of

        @tool(side_effect="read")
        async def ends() -> str:
            """End the run."""
            raise FatalToolError("the end")

        async with engine(Planning(plan), wipe, ends, strategies={"mine": both}, approver="caller") as made:
            agent = Agent(name="a", strategy="mine", tools=["wipe", "ends"])
            await made.run(agent, "go", run_id="r")
            assert (await made.approve("r", "a.1.0", by="ann")).reason == "fatal_tool_error"
            kinds = [type(one) for one in of(await events_of(made.store, "r"), e.ApprovalResolved, e.PassFinished, e.ToolFinished)]
            assert kinds == [e.ApprovalResolved, e.ToolFinished, e.ApprovalResolved, e.ToolFinished, e.PassFinished, e.PassFinished]
            await replays(made)

    asyncio.run(asyncio.wait_for(main(), 60))


class Later(RamStore):
    """A store in which a worker that had lost the run puts its outcome on the log as soon as somebody else has settled the call."""

    outcome: e.ToolFinished | None = None

    async def append(self, run_id: str, expected_seq: int, records: Any, **options: Any) -> None:
        """See `EventStore.append`."""
        await super().append(run_id, expected_seq, records, **options)
        if self.outcome is not None and any(b'"outcome":"told"' in line for line in records):
            outcome, self.outcome = self.outcome, None
            late = e.ToolReconciled(call=outcome.call, outcome="happened", source="late_worker", result=outcome.result)
            await append_late(run_id, late, self, partial(Journal, self, clock=FakeClock(), ids=SequentialIds()))


def test_an_outcome_that_comes_late_amid_the_calls_of_a_turn_replays() -> None:
    """It stands where the next call would have begun: the one who has the run could not append that, and began again behind it."""

    async def plan(view: View) -> Any:
        calls = (ToolCall(tool="put", args={"n": 1}), ToolCall(tool="put", args={"n": 2}))
        return FinalAnswer(content="done") if view.results else Plan(actions=calls)

    async def main() -> None:
        inner, agent = Later(), Agent(name="a", tools=["put"], on_unknown="tell")
        store = CrashingStore(inner, at=3, when="before", operations=("append",))
        with contextlib.suppress(Crash):
            await engine(Planning(plan), put, store=store).run(agent, "go", run_id="r")
        await inner.release("r")
        inner.outcome = e.ToolFinished(call="main.1.0", result=msgspec.Raw(b"1"))
        async with engine(Planning(plan), put, store=inner) as made:
            with pytest.raises(Conflict):
                await made.resume("r")
            assert (await made.resume("r")).status == "completed"
            found = of(await events_of(inner, "r"), e.ToolReconciled, e.RunResumed)
            assert [getattr(one, "source", "resumed") for one in found] == ["resumed", "agent", "late_worker", "resumed"]
            await replays(made)

    asyncio.run(asyncio.wait_for(main(), 60))


def test_a_phase_that_waits_where_an_outcome_came_late_is_left_in_the_replay_as_it_was() -> None:
    """What follows the late outcome says that the run was begun again: what the phase waits for is not there any more, and it would wait for ever."""
    calls: list[bool] = []
    replaying = False

    async def rests(state: KernelState, context: KernelContext) -> KernelState:
        calls.append(replaying)
        if calls.count(True) == 1 and replaying:
            await asyncio.Event().wait()
        await asyncio.sleep(0)
        return state

    async def plan(view: View) -> Any:
        return FinalAnswer(content="done") if view.results else ToolCall(tool="put", args={"n": 1})

    async def main() -> None:
        nonlocal replaying
        inner, agent = Later(), Agent(name="a", tools=["put"], on_unknown="tell")
        options: dict[str, Any] = {"kernel": make_kernel((think, act_phase, rests))}
        store = CrashingStore(inner, at=3, when="before", operations=("append",))
        with contextlib.suppress(Crash):
            await engine(Planning(plan), put, store=store, **options).run(agent, "go", run_id="r")
        await inner.release("r")
        inner.outcome = e.ToolFinished(call="main.1.0", result=msgspec.Raw(b"1"))
        async with engine(Planning(plan), put, store=inner, **options) as made:
            with pytest.raises(Conflict):
                await made.resume("r")
            assert (await made.resume("r")).status == "completed"
            found = of(await events_of(inner, "r"), e.ToolReconciled, e.RunResumed)
            assert [getattr(one, "source", "resumed") for one in found] == ["resumed", "agent", "late_worker", "resumed"]
            replaying = True
            await replays(made)

    asyncio.run(asyncio.wait_for(main(), 30))
