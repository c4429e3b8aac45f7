"""Concurrency and rate limits of a provider hold over all runs of an engine; who waits is first come, first served, and can be interrupted."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from detent import Agent, Engine
from detent.config.groups import Models
from detent.config.loading import load_config
from detent.core import events as e
from detent.core.errors import ConfigError
from detent.metering.pricing import ModelPrice
from detent.metering.provider_limits import WINDOW_S, ModelLimits, ModelRetries, ProviderLimits
from detent.ports import View
from detent.stores.ram import RamStore
from detent.testing.clocks import FakeClock
from metering.providers import MODEL, Caller, Planning, Provider, answer, engine, events_of, of, used


class Sleeper:
    """A clock, and a sleep that moves it."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.slept: list[float] = []

    async def sleep(self, seconds: float) -> None:
        """Let the time go by."""
        self.slept.append(seconds)
        self.clock.advance(seconds)
        await asyncio.sleep(0)

    def limits(self, **limits: int) -> ProviderLimits:
        """Return limits of one provider that go by this clock."""
        return ProviderLimits({"fake": ModelLimits(**limits)}, now=self.clock.monotonic, sleep=self.sleep)


def test_never_more_calls_are_open_than_allowed_over_all_runs() -> None:
    """Ten runs at once, two calls at once."""

    async def main() -> None:
        open_now, most = 0, 0

        async def send(limit: int | None) -> Any:
            nonlocal open_now, most
            open_now += 1
            most = max(most, open_now)
            for _ in range(3):
                await asyncio.sleep(0)
            open_now -= 1
            return answer()

        async def plan(view: View) -> Any:
            assert view.models is not None
            return (await view.models.call(MODEL, send)).value

        async with engine(Planning(plan), models=Models(limits={"fake": ModelLimits(concurrent=2)})) as made:
            results = await asyncio.gather(*(made.run(Agent(name="a"), f"go {n}") for n in range(10)))
        assert [r.status for r in results] == ["completed"] * 10 and most == 2

    asyncio.run(main())


def test_a_provider_without_limits_waits_for_nobody() -> None:
    """Limits are by provider: what stands before the colon, or what the call names."""

    async def main() -> None:
        limits = ProviderLimits({"fake": ModelLimits(concurrent=1)})
        first = await limits.enter("fake", 1)
        assert (await limits.enter("other", 1)).tokens == 1
        second = asyncio.create_task(limits.enter("fake", 1))
        await asyncio.sleep(0)
        assert not second.done()
        first.leave()
        assert (await second).open

    asyncio.run(main())


@given(st.lists(st.tuples(st.integers(1, 60), st.integers(0, 40)), min_size=1, max_size=30), st.integers(1, 5), st.integers(40, 100))
def test_no_minute_holds_more_calls_or_tokens_than_allowed(calls: list[tuple[int, int]], most: int, tokens: int) -> None:
    """Whatever comes when; a call that is larger than a minute allows goes alone."""

    async def main() -> None:
        sleeper = Sleeper()
        limits = sleeper.limits(requests_per_minute=most, tokens_per_minute=tokens)
        begun: list[tuple[float, int]] = []
        for size, gap in calls:
            sleeper.clock.advance(gap)
            (await limits.enter("fake", size)).leave()
            begun.append((sleeper.clock.monotonic(), size))
        for at, _ in begun:
            minute = [size for then, size in begun if at - WINDOW_S + 1e-6 < then <= at]
            assert len(minute) <= most
            assert sum(minute) <= tokens or len(minute) == 1

    asyncio.run(main())


def test_nobody_waits_longer_than_needed() -> None:
    """The pause ends when the oldest call leaves the minute, and what was used counts instead of what was reserved."""

    async def main() -> None:
        sleeper = Sleeper()
        limits = sleeper.limits(tokens_per_minute=100)
        (await limits.enter("fake", 80)).leave(30)
        sleeper.clock.advance(10)
        (await limits.enter("fake", 70)).leave()
        assert sleeper.slept == []
        await limits.enter("fake", 20)
        assert sleeper.slept == [50.0]

    asyncio.run(main())


def test_the_first_to_come_is_the_first_to_go() -> None:
    """Also when one in the middle of the line gives up."""

    async def main() -> None:
        limits = ProviderLimits({"fake": ModelLimits(concurrent=1)})
        order: list[int] = []
        first = await limits.enter("fake", 0)

        async def one(n: int) -> None:
            entry = await limits.enter("fake", 0)
            order.append(n)
            entry.leave()
            entry.leave()

        tasks = [asyncio.create_task(one(n)) for n in range(5)]
        await asyncio.sleep(0)
        tasks[0].cancel()
        tasks[2].cancel()
        first.leave()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert order == [1, 3, 4]
        (await limits.enter("fake", 0)).leave()

    asyncio.run(main())


def test_a_cancel_ends_the_wait_for_a_provider() -> None:
    """No call was made, none is on record, and its place in the line is free."""

    async def main() -> None:
        store, sent = RamStore(), asyncio.Event()
        finish = asyncio.Event()

        async def slow(limit: int | None) -> Any:
            sent.set()
            await finish.wait()
            return answer()

        async def plan(view: View) -> Any:
            assert view.models is not None
            return (await view.models.call(MODEL, slow)).value

        async with engine(Planning(plan), store=store, models=Models(limits={"fake": ModelLimits(concurrent=1)})) as made:
            first = asyncio.create_task(made.run(Agent(name="a"), "one", run_id="one"))
            await sent.wait()
            second = asyncio.create_task(made.run(Agent(name="a"), "two", run_id="two"))
            while not await events_of(store, "two"):
                await asyncio.sleep(0)
            await made.cancel("two")
            result = await second
            assert (result.status, result.reason, result.usage.model_calls) == ("stopped", "cancelled", 0)
            third = asyncio.create_task(made.run(Agent(name="a"), "three"))
            finish.set()
            assert (await first).status == (await third).status == "completed"
            assert of(await events_of(store, "two"), e.ModelCallStarted) == []

    asyncio.run(main())


def test_engines_may_share_one_object_and_one_engine_may_see_several_loops() -> None:
    """A line belongs to the loop it stands in."""
    shared = ProviderLimits({"fake": ModelLimits(concurrent=1)})
    engines = [Engine(planner=Caller(Provider(answer())), models=Models(limits=shared)) for _ in range(2)]
    assert all(made.runtime.parts.traffic.limits is shared for made in engines)  # type: ignore[union-attr]
    assert [made.run_sync(Agent(name="a"), "go").status for made in engines] == ["completed"] * 2


@pytest.mark.parametrize("field", ["concurrent", "requests_per_minute", "tokens_per_minute"])
def test_a_limit_of_nothing_is_refused(field: str) -> None:
    """It would wait for ever."""
    with pytest.raises(ConfigError, match=f"{field} is 0"):
        ModelLimits(**{field: 0})


def test_the_configuration_file_says_the_same(tmp_path: Any) -> None:
    """Limits, prices and retries of `[models]` reach the engine."""
    file = tmp_path / "detent.toml"
    file.write_text(
        'store = "ram:"\n[models.limits.openai]\nconcurrent = 8\ntokens_per_minute = 1000\n[models.prices."fake:one"]\ninput_usd = 1\noutput_usd = 2.5\n'
        "[models.retries]\nretries = 2\n"
    )
    config = load_config(file)
    assert config.models.limits == {"openai": ModelLimits(concurrent=8, tokens_per_minute=1000)}
    assert config.models.prices == {"fake:one": ModelPrice(input_usd=1.0, output_usd=2.5)}
    made = Engine.from_config(config, planner=Caller(Provider()))
    traffic = made.runtime.parts.traffic
    assert traffic is not None and traffic.retries == ModelRetries(retries=2) and traffic.limits.limits == config.models.limits
    assert traffic.prices.cost("fake:one", "", used(1_000_000, 0)) == 1.0


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[models]\nlimit = 1", r"models.limit: unknown key; did you mean 'limits'"),
        ("[models.limits]\nopenai = 8", r"models.limits.openai: expected a table"),
        ("[models.limits.openai]\nconcurent = 8", r"models.limits.openai.concurent: unknown key; did you mean 'concurrent'"),
        ("[models.limits.openai]\nconcurrent = 0", r"models.limits.openai: concurrent is 0"),
        ("[models.limits.openai]\nconcurrent = 'x'", r"models.limits.openai.concurrent: expected a whole number"),
        ("[models.prices.m]\ninput_usd = 1", r"models.prices.m.output_usd: missing"),
        ("[models.prices.m]\ninput_usd = -1\noutput_usd = 1", r"models.prices.m: input_usd is -1"),
        ("[models.retries]\nretry = 1", r"models.retries.retry: unknown key; did you mean 'retries'"),
        ("models = 1", r"models: expected a table"),
    ],
)
def test_a_mistake_there_names_file_and_key(text: str, said: str, tmp_path: Any) -> None:
    """And the nearest thing that is right."""
    file = tmp_path / "detent.toml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=said) as caught:
        load_config(file)
    assert str(caught.value).startswith(str(file))
