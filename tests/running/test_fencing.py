"""Every append of whoever advances or changes a run names the number of its claim; only a late outcome names none."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from detent import Agent, AskUser, Engine, FinalAnswer, ToolCall, ToolContext, tool
from detent.core import events as e
from detent.core.codec import read_log
from detent.core.errors import ClaimLost, StoreBusy, Suspended
from detent.history import moving
from detent.ports import Branch, StrategyRun, View
from detent.running import watcher
from detent.stores.ram import RamStore
from detent.testing import ScriptedPlanner


class Noting(RamStore):
    """Notes the claim that each append names, and the one that is held then."""

    def __init__(self) -> None:
        super().__init__()
        self.named: list[tuple[str, int | None, int | None]] = []

    async def append(self, run_id: str, expected_seq: int, records: Sequence[bytes], *, claim: int | None = None, **options: Any) -> None:
        self.named.append((run_id, claim, self._shelf.claims[run_id][0] if run_id in self._shelf.claims else None))
        await super().append(run_id, expected_seq, records, claim=claim, **options)


@tool(side_effect="write")
async def act() -> str:
    """Act."""
    return "done"


def test_a_late_outcome_is_recorded_and_replayed_where_nobody_has_recorded_anything_since() -> None:
    """The run was taken over, and the log is still as the former worker knows it: fenced by the sequence alone, its append would count."""
    began, go = asyncio.Event(), asyncio.Event()

    @tool(side_effect="write")
    async def pay() -> str:
        """Pay."""
        began.set()
        await go.wait()
        return "paid"

    def plan(view: View) -> FinalAnswer | ToolCall:
        return FinalAnswer(content=view.results[-1].content) if view.results else ToolCall(tool="pay", args={})

    def engine_on(store: RamStore) -> Engine:
        return Engine(store=store, planner=ScriptedPlanner([plan] * 9), tools=[pay], approver="caller")

    async def main() -> None:
        store = RamStore()
        other = store.sibling()
        first, second = engine_on(store), engine_on(other)
        running = asyncio.ensure_future(first.run(Agent(name="payer", tools=("pay",)), "Pay", run_id="r"))
        await began.wait()
        del store._shelf.claims["r"]  # its lease has run out
        await other.claim("r")
        go.set()
        with pytest.raises(ClaimLost):
            await running
        await other.release("r")
        result = await second.resume("r")
        assert (result.status, result.output) == ("completed", "paid")
        events = [record.event for record in read_log("r", await other.read("r"))]
        late = [event for event in events if isinstance(event, e.ToolReconciled)]
        assert [(event.source, event.attempt) for event in late] == [("late_worker", 1)]
        assert not any(isinstance(event, e.ToolFinished) for event in events)
        assert (await second.replay("r")).identical
        for engine in (first, second):
            await engine.close()

    asyncio.run(main())


class Stalls(RamStore):
    """Does not come back from the append of an outcome, and says then that the run is lost."""

    lost: tuple[str, ...] = ()

    async def renew(self) -> list[str]:
        return [*self.lost]

    async def append(self, run_id: str, expected_seq: int, records: Sequence[bytes], **options: Any) -> None:
        if any(b'"tool_finished"' in line for line in records):
            self.lost = (run_id,)
            await asyncio.Event().wait()
        await super().append(run_id, expected_seq, records, **options)


def test_an_outcome_is_recorded_late_where_the_loss_is_heard_of_while_it_is_being_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The renewal of the claim stopped the worker before its append was refused: nothing said that the call had been made."""
    monkeypatch.setattr(watcher, "RENEW_S", 0.0)

    async def main() -> None:
        store = Stalls()
        other = store.sibling()
        script = [ToolCall(tool="pay", args={}), FinalAnswer(content="done")]

        @tool(side_effect="write")
        async def pay() -> str:
            """Pay, while another worker takes the run over."""
            del store._shelf.claims["r"]  # its lease has run out
            await other.claim("r")
            return "paid"

        async with Engine(store=store, planner=ScriptedPlanner(script), tools=[pay], approver="caller") as engine:
            with pytest.raises(Suspended, match="lost"):
                await engine.run(Agent(name="payer", tools=("pay",)), "Pay", run_id="r")
        events = [record.event for record in read_log("r", await other.read("r"))]
        late = [event for event in events if isinstance(event, e.ToolReconciled)]
        assert [(event.source, event.attempt, bytes(event.result)) for event in late] == [("late_worker", 1, b'"paid"')]

    asyncio.run(main())


class Slow(RamStore):
    """Takes its time for the append of an outcome."""

    def __init__(self) -> None:
        super().__init__()
        self.asked, self.go = asyncio.Event(), asyncio.Event()

    async def append(self, run_id: str, expected_seq: int, records: Sequence[bytes], **options: Any) -> None:
        if any(b'"tool_finished"' in line for line in records):
            self.asked.set()
            await self.go.wait()
        await super().append(run_id, expected_seq, records, **options)


def test_an_outcome_is_recorded_late_where_the_worker_stopped_before_its_append_was_refused() -> None:
    """A deploy came between: the worker ended as one that stops, and not as one that had lost its run."""

    async def main() -> None:
        store = Slow()
        other = store.sibling()
        script = [ToolCall(tool="act", args={}), FinalAnswer(content="done")]
        async with Engine(store=store, planner=ScriptedPlanner(script), tools=[act], approver="caller") as engine:
            running = asyncio.ensure_future(engine.run(Agent(name="actor", tools=("act",)), "Act", run_id="r"))
            await store.asked.wait()
            del store._shelf.claims["r"]  # its lease has run out
            await other.claim("r")
            engine.suspend("a deploy", drain_s=0.0)
            for _ in range(20):
                await asyncio.sleep(0)  # it stops meanwhile
            store.go.set()
            with pytest.raises(Suspended, match="a deploy"):
                await running
        events = [record.event for record in read_log("r", await other.read("r"))]
        late = [event for event in events if isinstance(event, e.ToolReconciled)]
        assert [(event.source, event.attempt, bytes(event.result)) for event in late] == [("late_worker", 1, b'"done"')]

    asyncio.run(main())


class Unheard(RamStore):
    """Does the append of the first outcome, and does not answer until the other pass has ended its call, and then not either."""

    def __init__(self) -> None:
        super().__init__()
        self.appended, self.ended = asyncio.Event(), asyncio.Event()

    async def append(self, run_id: str, expected_seq: int, records: Sequence[bytes], **options: Any) -> None:
        await super().append(run_id, expected_seq, records, **options)
        if any(b'"tool_finished"' in line for line in records) and not self.appended.is_set():
            self.appended.set()
            await self.ended.wait()
            for _ in range(20):
                await asyncio.sleep(0)  # its outcome is recorded by then, behind this append
            raise StoreBusy("the connection is gone")


async def two_passes(run: StrategyRun) -> str:
    """Pay twice, side by side."""
    await run.parallel(Branch(label="left"), Branch(label="right"))
    return "done"


def test_what_ended_behind_an_append_that_nobody_heard_of_is_recorded_late() -> None:
    """The append was done, so what followed it could not be recorded, and only the first outcome was there: the second call was in doubt."""

    async def main() -> None:
        store, both = Unheard(), asyncio.Event()
        paid: list[str] = []

        @tool(side_effect="write")
        async def pay(context: ToolContext) -> str:
            """Pay."""
            paid.append(context.call_id)
            if context.call_id.startswith("left"):
                await both.wait()
            else:
                both.set()
                await store.appended.wait()
                store.ended.set()
            return "paid"

        def plan(view: View) -> FinalAnswer | ToolCall:
            return FinalAnswer(content="done") if view.results else ToolCall(tool="pay", args={})

        async with Engine(
            store=store, planner=ScriptedPlanner([plan] * 9), tools=[pay], strategies={"two_passes": two_passes}, approver="caller"
        ) as engine:
            with pytest.raises(Suspended, match="gone"):
                await engine.run(Agent(name="payer", tools=("pay",), strategy="two_passes"), "Pay", run_id="r")
            events = [record.event for record in read_log("r", await store.read("r"))]
            assert [event.call for event in events if isinstance(event, e.ToolFinished)] == ["left.1.0"]
            late = [event for event in events if isinstance(event, e.ToolReconciled)]
            assert [(event.source, event.call) for event in late] == [("late_worker", "right.1.0")]
            assert (await engine.resume("r")).status == "completed"
            assert len(paid) == 2
            assert (await engine.replay("r")).identical

    asyncio.run(main())


def test_every_append_names_the_claim_that_it_is_made_under(tmp_path: Path) -> None:
    """Of an append that names none nobody knows whether its run was taken over: it would count."""

    async def main() -> None:
        store, target = Noting(), Noting()
        script = [ToolCall(tool="act", args={}), AskUser(question="Well?")]
        async with Engine(store=store, planner=ScriptedPlanner(script), tools=[act], approver="caller") as engine:
            await engine.run(Agent(name="a", tools=("act",)), "Act", run_id="r")
            await engine.reply("r", "go on")
            await engine.fork("r", child_id="f", resume=False)
            await engine.cancel("f")
            await moving.archive(store, tmp_path, "f")
            await moving.bring_back(store, moving.archive_path(tmp_path, "f"))
            await engine.erase("f")
            await moving.copy(store, target, "r", move=True)
        for kept, least in ((store, 8), (target, 1)):
            assert len(kept.named) >= least
            assert [one for one in kept.named if one[1] is None or one[1] != one[2]] == []

    asyncio.run(main())
