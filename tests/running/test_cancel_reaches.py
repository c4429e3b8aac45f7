"""A cancellation that another engine of this host sends: it reaches the run at once, and no call with an effect begins once it was sent."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from detent import Agent, Budget, Engine, Plan, ToolCall, tool
from detent.core import events as e
from detent.core.errors import CancelWaits
from detent.kernel.journal import Journal
from detent.ports import EventStore, Signal, ToolContext, View
from detent.running import answering, watcher
from detent.stores import open_store
from detent.stores.ram import RamStore
from detent.testing.clocks import FakeClock, SequentialIds

AGENT = Agent(name="clerk", tools=["put"])


class Stores:
    """Stores at one place, each another holder."""

    def __init__(self, kind: str, path: Path, postgres_url: str = "") -> None:
        self.first = RamStore() if kind == "ram" else None
        self.url = {"file": f"file:{path}/runs", "sqlite": f"sqlite:///{path}/runs.db", "postgres": postgres_url}.get(kind, "")

    def store(self) -> EventStore:
        """Return another one."""
        return self.first.sibling() if self.first else open_store(self.url)


@pytest.fixture(params=["ram", "file", "sqlite"])
def stores(request: pytest.FixtureRequest, tmp_path: Path) -> Stores:
    """Stores at one place."""
    return Stores(request.param, tmp_path)


class Putting:
    """Puts and puts."""

    async def plan(self, view: View) -> Plan:
        """See `Planner.plan`."""
        return Plan(actions=(ToolCall(tool="put", args={"n": view.iteration}),))


def test_a_cancellation_wakes_the_run_that_another_engine_advances(stores: Stores, monkeypatch: pytest.MonkeyPatch) -> None:
    """The inbox is not polled here: without a notification the call would run on for an hour."""
    monkeypatch.setattr(watcher, "POLL_S", 3600.0)

    async def main() -> None:
        begun = asyncio.Event()

        @tool(side_effect="write", timeout_s=None)
        async def put(n: int, context: ToolContext) -> str:
            """Put it."""
            begun.set()
            while not context.cancelled:
                await asyncio.sleep(0.001)
            return "put"

        async with Engine(store=stores.store(), planner=Putting(), tools=[put]) as engine, Engine(store=stores.store()) as other:
            for run_id in ("r", "s"):
                begun.clear()
                running = asyncio.create_task(engine.run(AGENT, "put", run_id=run_id))
                await begun.wait()
                told = (await other.cancel(run_id, by="ann")).answered
                assert told is not None and told.outcome == "accepted"
                assert (await running).reason == "cancelled" and (await engine.replay(run_id)).identical

    asyncio.run(asyncio.wait_for(main(), 120))


@pytest.mark.parametrize("polled", [False, True])
def test_no_effect_begins_once_a_cancellation_was_sent(stores: Stores, monkeypatch: pytest.MonkeyPatch, *, polled: bool) -> None:
    """The process that advances the run has not heard of it (`polled`: it may have); the store refuses the intent, and the call is not run."""
    monkeypatch.setattr(answering, "HEARD_S", 0.0)
    if not polled:

        async def never(*_: Any, **__: Any) -> None:
            await asyncio.Event().wait()

        monkeypatch.setattr(watcher, "wait_for_news", never)

    async def main() -> None:
        ran: list[str] = []
        begun = asyncio.Event()

        @tool(side_effect="write")
        async def put(n: int, context: ToolContext) -> str:
            """Put it."""
            ran.append(context.idempotency_key)
            if len(ran) == 3:
                begun.set()
            return f"put {n}"

        async with Engine(store=stores.store(), planner=Putting(), tools=[put]) as engine, Engine(store=stores.store()) as other:
            running = asyncio.create_task(engine.run(AGENT, "put", run_id="r", budget=Budget(max_iterations=1000)))
            await begun.wait()
            await other.cancel("r", by="ann")
            sent = {r.event.key for r in await other.records("r") if isinstance(r.event, e.ToolStarted)}
            assert (await running).reason == "cancelled"
            assert len(ran) >= 3 and set(ran) <= sent, "an effect began after the cancellation was sent"
            records = await engine.records("r")
            assert [type(r.event) for r in records[-2:]] == [e.PassFinished, e.RunFinished] and (await engine.replay("r")).identical

    asyncio.run(asyncio.wait_for(main(), 120))


def test_nobodys_cancellation_keeps_no_call_from_beginning(stores: Stores) -> None:
    """It names nobody: it is refused on the log where it is met, also in the middle of a call, and the run goes on and replays."""

    async def main() -> None:
        ran: list[int] = []

        @tool(side_effect="write")
        async def put(n: int) -> str:
            """Put it."""
            ran.append(n)
            await beside.store.post("r", Signal(id=f"{n}", kind="cancel"))
            return f"put {n}"

        async with Engine(store=stores.store(), planner=Putting(), tools=[put]) as engine, Engine(store=stores.store()) as beside:
            result = await engine.run(AGENT, "put", run_id="r", budget=Budget(max_iterations=4))
            assert (result.reason, ran) == ("max_iterations", [1, 2, 3, 4])
            refused = [r.event.code for r in await engine.records("r") if isinstance(r.event, e.AnswerRefused)]
            assert set(refused) <= {"approver_missing", "run_finished"} and len(refused) == 4
            assert (await engine.replay("r")).identical and await engine.store.signals(["r"]) == {}

    asyncio.run(asyncio.wait_for(main(), 120))


def test_an_intent_that_another_pass_took_along_is_made_good(stores: Stores) -> None:
    """Passes share the buffer: an ordinary commit of one took the intent of the other's call along, whose own commit had nothing left to append.

    The effect then began with an intent that power loss takes, and also where a cancellation had been sent before.
    """

    async def main() -> None:
        async with Engine(store=stores.store(), planner=Putting(), tools=[], approver="caller") as engine:
            await engine.run(Agent(name="a"), "put", run_id="r", turns=1)
            store = stores.store()
            await store.open()
            await store.claim("r")
            journal = Journal(store, await engine.load("r"), clock=FakeClock(), ids=SequentialIds(7))
            journal.record(e.RunResumed(worker="w"))
            await journal.commit()
            await journal.commit(durable=True, intent=True)
            assert (await store.sealed("r") or (0, ""))[0] == journal.state.seq
            journal.record(e.RunResumed(worker="w"))
            await journal.commit()
            await store.post("r", Signal(id="c", kind="cancel", by="ann"))
            with pytest.raises(CancelWaits):
                await journal.commit(durable=True, intent=True)
            await store.close()

    asyncio.run(asyncio.wait_for(main(), 120))
