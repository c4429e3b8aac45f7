"""A provider that asks for a pause closes its account for all workers until then: nobody sends a request, nobody spends an attempt."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from detent import Agent, Budget, Engine, FinalAnswer, View
from detent.config.groups import Models
from detent.core import events as e
from detent.core.errors import ModelCallFailure, Suspended
from detent.metering.accounts import MOST_CLOSED_S
from detent.metering.provider_limits import ModelRetries
from detent.planners.fallback import FallbackPlanner
from detent.running.attempts import tries_of
from detent.stores.ram import RamStore
from detent.testing.clocks import FakeClock
from detent.workers import InProcessHost
from metering.providers import AGENT, Caller, Planning, Provider, answer, engine, events_of, failure, of

ONCE = ModelRetries(retries=3, base_s=0.0, retry_after_s=10.0)
BOUNDS = {"max_total_s": Budget(max_total_s=20.0), "max_running_s": Budget(max_running_s=20.0)}


def asks_for(seconds: float, kind: Any = "rate_limited") -> ModelCallFailure:
    """Return the failure of a provider that asks for a pause."""
    return failure(kind, "slow down", retry_after_s=seconds)


def worker(store: RamStore, provider: Provider, clock: FakeClock, **options: Any) -> Engine:
    """Return a worker that calls the provider."""
    host = InProcessHost(max_attempts=2, poll_s=0.005, retry_pause_s=0.001)
    planner = options.pop("planner", None) or Caller(provider)
    return engine(planner, store=store.sibling(), clock=clock, worker_host=host, models=Models(retries=ONCE), **options)


@pytest.mark.parametrize("kind", ["rate_limited", "server"])
def test_every_worker_waits_until_the_provider_may_be_asked_again(kind: Any) -> None:
    """One request was refused; no worker sends another before the time, the run that met it has it on its log, and all runs end."""

    async def main() -> None:
        store, clock = RamStore(), FakeClock()
        began = clock.now()
        provider = Provider(asks_for(120.0, kind), answer(), answer(), answer())
        async with worker(store, provider, clock) as one, worker(store, provider, clock) as two:
            await one.submit(AGENT, "go", run_id="a")
            await one.work(until_idle=True)
            for number in range(2):
                await two.submit(AGENT, "go", run_id=f"b{number}")
            for moved_s in (0, 50, 69):
                clock.advance(moved_s)
                for each in (one, two):
                    await each.work(until_idle=True)
                assert len(provider.limits) == 1, "somebody has asked a closed account"
            (failed,) = of(await events_of(store, "a"), e.ModelCallFailed)
            assert failed.closed_until == began + timedelta(seconds=120)
            (hold,) = await two.holds()
            assert (hold.what, hold.by, hold.until) == ("provider:fake", "run a", failed.closed_until)
            assert [head.wake_at for head in await one.list_runs()] == [failed.closed_until] * 3
            held = await two.held("b0")
            assert held is None, "its agent names no model; its planner does"
            for run_id in ("b0", "b1"):
                assert (await tries_of(store, run_id))[0].count == 0
            clock.advance(2)
            await two.work(until_idle=True)
            assert {head.run_id: head.status for head in await one.list_runs()} == dict.fromkeys(("a", "b0", "b1"), "completed")
            assert len(provider.limits) == 4 and await one.holds() == ()

    asyncio.run(main())


@pytest.mark.parametrize("bound", BOUNDS)
def test_the_total_time_of_a_run_ends_while_it_waits_but_its_running_time_does_not(bound: str) -> None:
    """A run that is released until its provider may be asked is due when its total time is up, and ends then; waiting as rows is no running time."""

    async def main() -> None:
        store, clock = RamStore(), FakeClock()
        began, provider = clock.now(), Provider(asks_for(600.0), answer())
        async with worker(store, provider, clock) as made:
            await made.submit(AGENT, "go", run_id="r", budget=BOUNDS[bound])
            await made.work(until_idle=True)
            (head,) = await made.list_runs()
            assert head.wake_at is not None
            due_s = (head.wake_at - began).total_seconds()
            assert due_s == pytest.approx(20.0 if bound == "max_total_s" else 600.0, abs=0.01)
            clock.advance(due_s)
            await made.work(until_idle=True)
            state = await made.load("r")
        ends = {"max_total_s": ("stopped", "budget_exhausted", 1), "max_running_s": ("completed", "final_answer", 2)}
        assert (state.status, state.reason, len(provider.limits)) == ends[bound]

    asyncio.run(main())


def test_a_short_pause_is_waited_for_in_place() -> None:
    """And by the calls of other engines too."""

    async def main() -> None:
        store, clock = RamStore(), FakeClock()
        slept: list[float] = []

        async def sleep(seconds: float) -> None:
            slept.append(seconds)
            clock.advance(seconds)
            await asyncio.sleep(0)

        clock.sleep = sleep  # type: ignore[attr-defined]
        provider = Provider(asks_for(5.0), answer(), answer())
        async with worker(store, provider, clock) as one, worker(store, provider, clock) as two:
            assert (await one.run(AGENT, "go")).status == "completed"
            assert sum(slept) >= 5.0
            slept.clear()
            await one.runtime.parts.accounts.close("fake", asks_for(7.0), by="somebody")
            assert (await two.run(AGENT, "go")).status == "completed"
            assert 7.0 <= sum(slept) <= 8.0, "it waited for the account, and then asked at once"

    asyncio.run(main())


def test_a_planner_with_another_model_does_not_wait() -> None:
    """The next candidate is asked while the first one's account is closed."""

    async def main() -> None:
        store, clock = RamStore(), FakeClock()
        closed, other = Provider(asks_for(500.0)), Provider(answer(), answer())
        planner = FallbackPlanner([Caller(closed), Caller(other, "other:model")])
        async with engine(planner, store=store, clock=clock, models=Models(retries=ONCE), model_prices={}) as made:
            for _ in range(2):
                assert (await made.run(AGENT, "go")).status == "completed"
        assert (len(closed.limits), len(other.limits)) == (1, 2)

    asyncio.run(main())


def test_a_provider_cannot_close_its_account_for_ever() -> None:
    """After an hour somebody asks again, whatever it said; and a wish that comes with another failure closes nothing."""

    async def main() -> None:
        store, clock = RamStore(), FakeClock()
        provider = Provider(asks_for(1e12), failure("bad_request", retry_after_s=100.0))
        async with worker(store, provider, clock) as made:
            began = clock.now()
            with pytest.raises(Suspended) as stopped:
                await made.run(AGENT, "go", run_id="r")
            assert stopped.value.until == began + timedelta(seconds=MOST_CLOSED_S)
            clock.advance(MOST_CLOSED_S + 1)
            assert (await made.resume("r")).status == "failed" and await made.holds() == ()

    asyncio.run(main())


def test_a_shorter_wish_does_not_open_an_account_earlier() -> None:
    """Two workers close one account at once: the later time counts, whoever wrote last."""

    async def main() -> None:
        store, clock = RamStore(), FakeClock()
        async with worker(store, Provider(), clock) as one, worker(store, Provider(), clock) as two:
            for seconds, each in ((300.0, one), (20.0, two)):
                await each.runtime.parts.accounts.close("fake", asks_for(seconds), by="somebody")
            await one.runtime.parts.accounts.read()
            hold = one.runtime.parts.accounts.on("provider", "fake")
            assert hold is not None and hold.left_s(clock.now()) == 300.0
            assert len(await one.unpause("provider:fake", by="bob")) == 2

    asyncio.run(main())


def test_a_run_of_a_paused_provider_waits_as_rows() -> None:
    """No worker counts attempts, and the run ends after the pause."""

    async def main() -> None:
        store, clock = RamStore(), FakeClock()
        provider = Provider(answer())
        async with worker(store, provider, clock) as made:
            await made.pause("provider:fake", by="ann", why="the bill")
            await made.submit(Agent(name="asker", model="fake:one"), "go", run_id="r")
            for _ in range(6):
                await made.work(until_idle=True)
                clock.advance(301)
            assert provider.limits == [] and (await made.load("r")).status == "running"
            assert not of(await events_of(store, "r"), e.ModelCallStarted, e.DeadLettered)
            held = await made.held("r")
            assert held is not None and "paused by ann (the bill)" in held.said
            await made.unpause("provider:fake", by="bob")
            await made.work(until_idle=True)
            assert (await made.load("r")).status == "completed"

    asyncio.run(main())


def test_an_account_is_closed_although_the_store_cannot_be_told() -> None:
    """Here nobody asks before the time; elsewhere whoever asks closes it there."""

    class Deaf(RamStore):
        async def put_blob(self, run_id: str, key: str, data: bytes) -> None:
            from detent.core.errors import StoreFull

            raise StoreFull("no room")

    async def main() -> None:
        provider = Provider(asks_for(100.0))

        async def plan(view: View) -> Any:
            assert view.models is not None
            with pytest.raises(ModelCallFailure):
                await view.models.call("fake:one", provider.send)
            with pytest.raises(ModelCallFailure, match="is closed until"):
                await view.models.call("fake:one", provider.send)
            return FinalAnswer(content="neither")

        async with engine(Planning(plan), store=Deaf(), clock=FakeClock(), models=Models(retries=ONCE)) as made:
            assert (await made.run(AGENT, "go")).output == "neither" and len(provider.limits) == 1

    asyncio.run(main())
