"""Why a run does not move: what the store has is enough to say it, and asking changes nothing."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from detent import Agent, AskUser, Bounds, Engine, FinalAnswer, Host, Plan, ToolCall, View, tool
from detent.core.actions import Schedule
from detent.core.errors import RunNotFound
from detent.history.why import Why
from detent.ports import Signal, posted_to
from detent.ports.holding import Hold, keep_hold
from detent.running.cards import WorkerCard
from detent.running.left_runs import PLACE
from detent.stores.ram import RamStore
from detent.stores.urls import open_store
from detent.testing import FakeClock
from detent.workers import InProcessHost

ACME = Host(tenant="acme")
CLERK = Agent(name="clerk", tools=("put",), actions=("ask_user", "schedule"))


class Clerk:
    """Asks, waits or fails where the goal says so, puts it down, and answers."""

    def begin_run(self, run_id: str) -> None:
        if "broken" in run_id:
            raise RuntimeError("no ink")

    async def plan(self, view: View) -> Plan:
        if view.goal == "ask" and view.iteration == 1:
            return Plan(actions=(AskUser(question="Where?"),))
        if view.goal == "later" and view.iteration == 1:
            return Plan(actions=(Schedule(delay_s=3600),))
        if not view.results:
            return Plan(actions=(ToolCall(tool="put", args={"text": view.goal}),))
        return Plan(actions=(FinalAnswer(content="done"),))


@tool(side_effect="write")
async def put(text: str) -> str:
    """Put it down."""
    return "put"


def engine(store: Any, **options: Any) -> Engine:
    options = {"tools": [put], "planner": Clerk(), **options}
    return Engine(store=store, approver="caller", worker_host=InProcessHost(max_attempts=1), **options)


def codes(found: Why) -> list[str]:
    return [reason.code for reason in found.reasons]


def what(found: Why, code: str) -> str:
    (said,) = [reason.what for reason in found.reasons if reason.code == code]
    return said


def test_who_has_it_what_it_waits_for_and_when_it_is_due() -> None:
    """A person, an answer that was only posted, a time, nobody, another process."""

    async def main() -> None:
        store = RamStore()
        async with engine(store) as office:
            asks, later = [(await office.run(CLERK, goal)).run_id for goal in ("ask", "later")]
            found = await office.why(asks)
            assert (codes(found), found.status) == (["waits"], "waiting_for_user")
            assert "an answer: Where?" in what(found, "waits")
            records = len(await office.records(asks))
            await office.reply(asks, "here", by="ann", resume=False)
            found = await office.why(asks)
            assert codes(found) == ["waits", "answered", "nobody"] and "ann" in what(found, "answered")
            found = await office.why(later)
            assert codes(found) == ["waits", "not_due"]
            assert len(await office.records(asks)) == records, "asking changed the run"
            free = await office.submit(CLERK, "free")
            found = await office.why(free)
            assert codes(found) == ["nobody"] and found.reasons[0].command == ("worker",)
            debounced = await office.submit(CLERK, "free", dedupe_key="k", debounce=60)
            assert "it begins at" in what(await office.why(debounced), "not_due")
            await office.work(until_idle=True)
            assert codes(await office.why(free)) == ["ended"]
            with pytest.raises(RunNotFound):
                await office.why("nothing")

    asyncio.run(main())


def test_a_run_of_another_process_names_it(tmp_path: Any) -> None:
    """It says how old its last record is, and that a lost host gives the run up by itself."""

    async def main() -> None:
        url = f"sqlite:///{tmp_path}/runs.db"
        other = open_store(url)
        async with engine(url) as office:
            run_id = await office.submit(CLERK, "free")
            await other.open()
            await other.claim(run_id)
            found = await office.why(run_id)
            assert codes(found) == ["claimed"] and "has claimed it" in what(found, "claimed")
            await other.close()
            assert codes(await office.why(run_id)) == ["nobody"]

    asyncio.run(main())


def test_what_its_workers_lack_its_attempts_and_a_dead_letter_with_the_reason() -> None:
    """A worker without the tool leaves a note in the store; a later record makes it void."""

    async def main() -> None:
        store = RamStore()
        async with engine(store) as office, engine(store, tools=[]) as bare:
            run_id = await office.submit(CLERK, "free")
            await bare.work(until_idle=True)
            found = await office.why(run_id)
            assert codes(found) == ["left", "nobody"] and "put" in what(found, "left")
            broken = await office.submit(CLERK, "free", run_id="broken")
            await office.work(until_idle=True)
            assert codes(await office.why(run_id)) == ["ended"]
            found = await office.why(broken)
            assert codes(found) == ["dead_letter"] and "no ink" in what(found, "dead_letter")
            assert found.reasons[0].command == ("reopen", broken)
            assert await store.list_blobs(PLACE) == [run_id]
            office.wrap(clock=FakeClock(start=office.runtime.parts.clock.now() + timedelta(days=2)))
            await office.gc()
            assert await store.list_blobs(PLACE) == [], "old notes are collected"

    asyncio.run(main())


def test_a_bound_of_its_key_and_the_runs_before_it() -> None:
    """Both are about runs of its key only."""

    async def main() -> None:
        store = RamStore()
        async with engine(store, bounds=Bounds(max_active_per_key=1)) as office:
            first, second, third = [await office.submit(CLERK, goal, fair_key="bulk") for goal in ("a", "b", "c")]
            other = await office.submit(CLERK, "d", fair_key="other")
            await store.claim(first)
            found = await office.why(third)
            assert "max_active_per_key is 1" in what(found, "key_full")
            assert f"1 due runs of its key 'bulk' come before it, the first is {second}" in what(found, "behind")
            assert codes(await office.why(other)) == ["nobody"]

    asyncio.run(main())


def test_the_version_of_the_code_that_it_needs() -> None:
    """Drained: a pinned run stays, another one moves."""

    async def main() -> None:
        store = RamStore()
        async with engine(store, version="1") as one, engine(store, version="2") as two:
            pinned = Agent(name="pinned", tools=("put",), actions=("ask_user",), upgrade="pinned")
            runs = [(await one.run(agent, "ask")).run_id for agent in (CLERK, pinned)]
            assert "only workers with version 1" in what(await two.why(runs[0]), "version")
            await two.roll_out({"2": 100}, by="ann")
            said = [what(await two.why(run_id), "version") for run_id in runs]
            assert "moves to another version" in said[0] and "is pinned" in said[1]

    asyncio.run(main())


def test_a_cancellation_reaches_even_a_dead_letter() -> None:
    """So it is due again, and said to be."""

    async def main() -> None:
        store = RamStore()
        async with engine(store) as office:
            run_id = await office.submit(CLERK, "free", run_id="broken")
            await office.work(until_idle=True)
            await store.post(run_id, posted_to(run_id, Signal(id="c", kind="cancel", by="ann")))
            assert codes(await office.why(run_id)) == ["dead_letter"]

    asyncio.run(main())


def test_what_holds_it_is_named_with_whom_and_how_to_end_it() -> None:
    """A pause of its agent, tenant or tool, and a provider's account that is closed; a tenant does not see who and why."""

    async def main() -> None:
        store = RamStore()
        async with engine(store, agents=[CLERK]) as office:
            run_id = await office.submit(CLERK, "free", host=ACME)
            for held in ("agent:clerk", "tenant:acme"):
                await office.pause(held, by="ann", why="wrong prices for other@tenant")
                found = await office.why(run_id)
                assert codes(found) == ["held", "nobody"]
                assert "paused by ann (wrong prices for other@tenant)" in what(found, "held")
                assert found.reasons[0].command == ("resume", held)
                theirs = await office.why(run_id, host=ACME)
                assert "is paused by the operator since" in what(theirs, "held")
                assert "ann" not in what(theirs, "held") and "other@tenant" not in what(theirs, "held")
                hold = await office.held(run_id, host=ACME)
                assert hold is not None and (hold.by, hold.why) == ("the operator", "")
                await office.unpause(held, by="bob")
                assert codes(await office.why(run_id)) == ["nobody"]
            asks = await office.submit(Agent(name="asker", model="acme:one"), "free")
            now = office.runtime.parts.clock.now()
            closed = Hold(of="provider", name="acme", by="run x@other", why="rate_limited: 60 s", at=now, until=now + timedelta(seconds=60))
            await keep_hold(store, closed)
            found = await office.why(asks)
            assert "'acme' is closed until" in what(found, "held") and "met by run x@other" in what(found, "held")

    asyncio.run(main())


def test_which_workers_are_there_is_told_from_what_they_say() -> None:
    """None, one with another version, one that is full, one that stops, one that is silent."""

    async def main() -> None:
        store = RamStore()
        async with engine(store, version="v2") as office:
            run_id = await office.submit(CLERK, "free")
            found = await office.why(run_id)
            assert "no worker with version 'v2' is there: there is no worker at all" in what(found, "no_worker")
            assert "nobody has taken it: no worker is there" in what(found, "nobody")

            async def says(**fields: Any) -> None:
                await store.announce("w", msgspec.json.encode(WorkerCard(name="w", **fields)))

            await says(version="v1", concurrency=4)
            found = await office.why(run_id)
            assert "no worker with version 'v2' is there: the 1 that are there have 'v1'" in what(found, "no_worker")
            await says(version="v2", concurrency=4, active=4)
            found = await office.why(run_id)
            assert "no_worker" not in codes(found) and "have as many runs as they take" in what(found, "nobody")
            await says(version="v2", concurrency=4, stopping="a deploy")
            assert "no_worker" in codes(await office.why(run_id))
            await store.announce("w", b"nonsense")
            assert "no_worker" in codes(await office.why(run_id))

    asyncio.run(main())
