"""Retryable failures are tried again, with growing random pauses, as often as allowed; cancel, suspension and bounds end that at once."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import virtual_time
from detent import Agent, Budget
from detent.config.groups import Models
from detent.core import events as e
from detent.core.errors import ConfigError, ModelCallFailure, Suspended
from detent.metering.provider_limits import ModelRetries
from detent.stores.ram import RamStore
from metering.providers import MODEL, Caller, Provider, answer, check, engine, events_of, failure, of, run, used

PATIENT = ModelRetries(base_s=1000.0, max_s=1000.0, retry_after_s=1000.0, total_wait_s=10_000.0)
"""Pauses so long that only an interruption ends a test."""


@pytest.mark.parametrize("kind", ["rate_limited", "timeout", "connection", "server"])
def test_a_retryable_failure_is_tried_again_and_each_attempt_is_on_record(kind: str) -> None:
    """What a failed attempt cost is charged; the plan comes from the one that succeeds."""
    provider = Provider(failure(kind, usage=used(3, 1)), failure(kind), answer())
    result, events = virtual_time.run(run(Caller(provider)))
    assert [f.kind for f in of(events, e.ModelCallFailed)] == [kind, kind]
    assert [s.attempt for s in of(events, e.ModelCallStarted)] == [1, 2, 3]
    assert (result.status, result.usage.input_tokens, result.usage.model_calls) == ("completed", 13, 3)


@pytest.mark.parametrize(
    "kind",
    ["auth", "unknown_model", "quota", "refused", "content_filter", "context_overflow", "truncated", "empty", "malformed", "bad_request"],
)
def test_any_other_failure_is_not(kind: str) -> None:
    """It would fail in the same way."""
    provider = Provider(failure(kind), answer())
    result, _ = virtual_time.run(run(Caller(provider)))
    assert result.status == "failed" and len(provider.limits) == 1


def test_after_the_last_retry_the_run_fails_and_can_be_opened_again() -> None:
    """Four retries unless told otherwise; the reason is the failure's own."""

    async def main() -> None:
        provider = Provider(*[failure("rate_limited", "slow down")] * 5, answer())
        async with engine(Caller(provider)) as made:
            result = await made.run(Agent(name="a"), "go")
            assert (result.status, result.reason, len(provider.limits)) == ("failed", "planner_error", 5)
            assert "slow down (given up after 5 attempts)" in result.state.error
            await check(made, result)
            again = await made.reopen(result.run_id)
            assert again.status == "completed"
            await check(made, again)

    virtual_time.run(main())


def test_no_retries_is_a_choice() -> None:
    """Then the first failure ends the call."""
    provider = Provider(failure("server"), answer())
    result, _ = virtual_time.run(run(Caller(provider), models=Models(retries=ModelRetries(retries=0))))
    assert result.status == "failed" and len(provider.limits) == 1


@given(st.integers(1, 60), st.floats(0, 1))
def test_the_pause_is_drawn_from_a_range_that_doubles_to_a_cap(attempt: int, chance: float) -> None:
    """Full jitter: anything from nothing to the whole range."""
    retries = ModelRetries(retries=100, base_s=0.5, max_s=8.0, total_wait_s=1000.0)
    pause = retries.pause(failure("server"), attempt, 0.0, lambda: chance)
    assert pause == chance * min(8.0, 0.5 * 2 ** (attempt - 1))


@pytest.mark.parametrize(
    ("asked", "waited", "expected"),
    [(None, 0.0, 1.0), (5.0, 0.0, 5.0), (0.5, 0.0, 1.0), (30.0, 0.0, 30.0), (31.0, 0.0, None), (30.0, 70.0, 30.0), (30.0, 71.0, None)],
)
def test_the_providers_own_wish_is_kept_up_to_a_cap(asked: float | None, waited: float, expected: float | None) -> None:
    """At least as long as Retry-After says; not at all where that is too long, or where all pauses together would be."""
    retries = ModelRetries(base_s=1.0, retry_after_s=30.0, total_wait_s=100.0)
    assert retries.pause(failure("rate_limited", retry_after_s=asked), 1, waited, lambda: 1.0) == expected


def test_a_pause_that_outlasts_the_run_is_not_begun() -> None:
    """The run is released at once, until the provider may be asked again: waiting as rows is no running time."""
    provider = Provider(failure("rate_limited", retry_after_s=50.0), answer())
    with pytest.raises(Suspended, match="provider 'fake' is closed until") as stopped:
        virtual_time.run(run(Caller(provider), budget=Budget(max_running_s=20.0), models=Models(retries=PATIENT)))
    assert stopped.value.until is not None and len(provider.limits) == 1


@pytest.mark.parametrize("value", [-1, float("inf"), float("nan")])
def test_retries_that_make_no_sense_are_refused(value: float) -> None:
    """The option is named."""
    with pytest.raises(ConfigError, match="max_s is"):
        ModelRetries(max_s=value)


def test_a_cancel_ends_a_pause_at_once() -> None:
    """The run is stopped, and no further attempt is made."""

    async def main() -> None:
        store, failed = RamStore(), asyncio.Event()

        def fail(most: int | None) -> ModelCallFailure:
            failed.set()
            return failure("server")

        provider = Provider(fail, answer())
        async with engine(Caller(provider), store=store, models=Models(retries=PATIENT)) as made:
            running = asyncio.create_task(made.run(Agent(name="a"), "go", run_id="r"))
            await failed.wait()
            await made.cancel("r", by="ann", why="enough")
            result = await running
            assert (result.status, result.reason, len(provider.limits)) == ("stopped", "cancelled", 1)
            await check(made, result)

    virtual_time.run(main())


def test_a_cancel_ends_a_call_at_once_and_charges_its_reservation() -> None:
    """What the provider has charged for it nobody knows."""

    async def main() -> None:
        store, sent = RamStore(), asyncio.Event()

        async def hang(most: int | None) -> Any:
            sent.set()
            await asyncio.Event().wait()

        async with engine(Caller(Provider(hang), input_tokens=7, max_output_tokens=3), store=store) as made:
            running = asyncio.create_task(made.run(Agent(name="a"), "go", run_id="r"))
            await sent.wait()
            await made.cancel("r", why="enough")
            result = await running
            assert (result.status, result.reason) == ("stopped", "cancelled")
            assert (result.usage.total_tokens, result.usage.estimated, result.usage.model_calls) == (10, True, 1)
            assert [f.kind for f in of(await events_of(store, "r"), e.ModelCallFailed)] == ["cancelled"]
            await check(made, result)

    virtual_time.run(main())


@pytest.mark.parametrize("where", ["call", "pause"])
def test_a_suspension_leaves_the_run_resumable_and_forgets_no_token(where: str) -> None:
    """The call in progress is charged at its reservation; whoever resumes asks again."""

    async def main() -> None:
        store, reached = RamStore(), asyncio.Event()

        async def act(most: int | None) -> Any:
            reached.set()
            if where == "pause":
                raise failure("server")
            await asyncio.Event().wait()

        provider = Provider(act, answer())
        async with engine(Caller(provider, input_tokens=7, max_output_tokens=3), store=store, models=Models(retries=PATIENT)) as made:
            running = asyncio.create_task(made.run(Agent(name="a"), "go", run_id="r"))
            await reached.wait()
            assert made.suspend("closing time") == 1
            with pytest.raises(Suspended):
                await running
            assert len(of(await events_of(store, "r"), e.ModelCallFailed)) == 1
            result = await made.resume("r")
            assert result.status == "completed" and result.usage.model_calls == 2
            assert result.usage.total_tokens == (25 if where == "call" else 15)
            await check(made, result)

    virtual_time.run(main())


def test_the_end_of_the_runs_time_ends_a_call() -> None:
    """The run stops for its time, not for a failure of the planner."""

    async def hang(most: int | None) -> Any:
        await asyncio.Event().wait()

    async def main() -> None:
        async with engine(Caller(Provider(hang), input_tokens=7), clock=virtual_time.LoopClock()) as made:
            result = await made.run(Agent(name="a"), "go", budget=Budget(max_running_s=0.05))
            assert (result.status, result.reason, result.state.dimension) == ("stopped", "budget_exhausted", "running_s")
            assert result.usage.input_tokens == 7 and result.usage.estimated
            await check(made, result)

    virtual_time.run(main())


def test_another_model_may_take_over_after_the_first_has_failed() -> None:
    """Each failure is on record; the plan is that of the second model."""

    async def main() -> None:
        from metering.providers import Planning

        async def plan(view: Any) -> Any:
            try:
                given_ = await view.models.call(MODEL, Provider(failure("quota")).send)
            except ModelCallFailure:
                given_ = await view.models.call("fake:two", Provider(answer()).send)
            return given_.value

        result, events = await run(Planning(plan))
        assert result.status == "completed" and [s.model for s in of(events, e.ModelCallStarted)] == [MODEL, "fake:two"]

    virtual_time.run(main())
