"""Every model call stands on the log: what was reserved, what it used and cost, how it ended; and the sum is the run's usage."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from detent import Agent, Budget, FinalAnswer, Plan, Thought, Usage, View
from detent.core import events as e
from detent.core.errors import MalformedPlan, ModelCallFailure, PlannerFailed
from detent.ports import Chunk
from detent.stores.ram import RamStore
from kernel.runs import Desk
from metering.providers import END, MODEL, Caller, Planning, Provider, answer, check, engine, events_of, failure, look, of, run, total, used


def test_a_call_is_recorded_before_and_after_with_what_it_used() -> None:
    """The reservation stands there before; model, tokens, cost, request id and finish after; a plan of it charges nothing more."""
    provider = Provider(answer(model="one-2026", request_id="r-7", finish="stop", usage=used(10, 5, cached_tokens=4, reasoning_tokens=2)))
    result, events = asyncio.run(run(Caller(provider, input_tokens=12, max_output_tokens=100)))
    (started,), (finished,) = of(events, e.ModelCallStarted), of(events, e.ModelCallFinished)
    assert (started.call, started.model, started.attempt, started.purpose) == ("main.1.m1", MODEL, 1, "plan")
    assert started.reserved == Usage(input_tokens=12, output_tokens=100, cost_usd=pytest.approx(1.012))
    assert (finished.call, finished.model, finished.request_id, finished.finish) == ("main.1.m1", "one-2026", "r-7", "stop")
    assert finished.usage == Usage(input_tokens=10, output_tokens=5, cached_tokens=4, reasoning_tokens=2, cost_usd=pytest.approx(0.06))
    assert of(events, e.Planned)[0].usage.output_tokens == 5
    assert result.usage.output_tokens == 5 and result.usage.model_calls == 1
    assert provider.limits == [100]


def test_what_a_rejected_plan_used_is_charged_once() -> None:
    """The rejection names what it used, and the call before it has charged that."""
    provider = Provider(answer(value=None), answer(value=Thought(content="hm")), answer())
    result, events = asyncio.run(run(Caller(provider)))
    assert len(of(events, e.PlanRejected)) == 1 and of(events, e.PlanRejected)[0].usage.input_tokens == 10
    assert (result.usage.model_calls, result.usage.input_tokens, result.usage.failures) == (3, 30, 1)


def test_a_plan_that_is_malformed_after_several_calls_charges_each() -> None:
    """Whatever the planner makes of the answers, each call is charged when it ends."""
    provider = Provider(answer(), answer(), answer())

    async def plan(view: View) -> Any:
        assert view.models is not None
        given = await view.models.call(MODEL, provider.send)
        if view.attempt == 1:
            await view.models.call(MODEL, provider.send, purpose="critique")
            raise MalformedPlan("not that", raw="x", usage=used(20, 10))
        return given.value

    result, events = asyncio.run(run(Planning(plan)))
    assert [s.purpose for s in of(events, e.ModelCallStarted)] == ["plan", "critique", "plan"]
    assert (result.usage.input_tokens, result.usage.output_tokens) == (30, 15)


def test_a_planner_without_the_gateway_is_charged_by_its_plan() -> None:
    """Also where other calls of the turn went through the gateway, and in the turn after one that did."""
    provider = Provider(answer(), answer())

    async def plan(view: View) -> Any:
        assert view.models is not None
        if view.iteration == 1:
            await view.models.call(MODEL, provider.send)
            return Thought(content="one")
        await view.models.call(MODEL, provider.send, purpose="ask")
        return Plan(actions=(END,), usage=used(100, 50), model="own")

    async def main() -> Usage:
        async with engine(Planning(plan)) as made:
            return (await made.run(Agent(name="a"), "go")).usage

    usage = asyncio.run(main())
    assert (usage.model_calls, usage.input_tokens, usage.output_tokens) == (3, 120, 60)


def test_a_fatal_failure_ends_the_pass_and_the_run_can_be_opened_again() -> None:
    """Nothing is tried again; what it cost is charged; after the cause is gone the same turn is planned."""
    provider = Provider(failure("auth", "no key: set FAKE_KEY", usage=used(3, 0)), answer())

    async def main() -> None:
        store = RamStore()
        async with engine(Caller(provider), store=store) as made:
            result = await made.run(Agent(name="a"), "go")
            assert (result.status, result.reason) == ("failed", "planner_error") and "FAKE_KEY" in result.state.error
            await check(made, result)
            again = await made.reopen(result.run_id)
            assert again.status == "completed" and again.usage.input_tokens == 13
            await check(made, again)

    asyncio.run(main())


@pytest.mark.parametrize(
    ("kind", "reason"), [("refused", "model_refused"), ("content_filter", "model_refused"), ("context_overflow", "context_overflow")]
)
def test_a_failure_gives_the_run_its_reason(kind: str, reason: str) -> None:
    """Refusals and overflows have reasons of their own."""
    result, events = asyncio.run(run(Caller(Provider(failure(kind)))))
    assert (result.status, result.reason) == ("failed", reason)
    assert [f.kind for f in of(events, e.ModelCallFailed)] == [kind]


def test_an_adapter_that_breaks_is_charged_at_the_reservation() -> None:
    """Nobody knows what the provider has charged: the estimate stands, and says that it is one."""
    result, events = asyncio.run(run(Caller(Provider(KeyError("choices")), input_tokens=7, max_output_tokens=3)))
    (failed,) = of(events, e.ModelCallFailed)
    assert (failed.kind, failed.usage.input_tokens, failed.usage.output_tokens, failed.usage.estimated) == ("error", 7, 3, True)
    assert (result.status, result.reason) == ("failed", "planner_error") and "KeyError" in failed.error


def test_a_call_that_nobody_waits_for_is_given_up_with_the_plan() -> None:
    """It is charged at its reservation, its outcome is not recorded later, and the planner gets no further calls of that view."""
    late: list[Any] = []

    async def main() -> None:
        gate = asyncio.Event()

        async def slow(limit: int | None) -> Any:
            await gate.wait()
            return answer()

        async def plan(view: View) -> Any:
            models = view.models
            assert models is not None
            if view.iteration == 1:
                late.append(asyncio.create_task(models.call(MODEL, slow, input_tokens=8, max_output_tokens=2)))
                late.append(models)
                await asyncio.sleep(0)
                return Thought(content="on my own")
            gate.set()
            await asyncio.gather(late[0], return_exceptions=True)
            with pytest.raises(PlannerFailed, match="no further calls"):
                await late[1].call(MODEL, slow)
            return END

        store = RamStore()
        async with engine(Planning(plan), store=store) as made:
            result = await made.run(Agent(name="a"), "go")
            await check(made, result)
            events = await events_of(store, result.run_id)
        (failed,) = of(events, e.ModelCallFailed)
        assert (failed.kind, failed.usage.total_tokens, failed.usage.estimated) == ("abandoned", 10, True)
        assert of(events, e.ModelCallFinished) == [] and late[0].cancelled()

    asyncio.run(main())


def test_calls_at_once_have_names_of_their_own() -> None:
    """A planner may ask two models at the same time; each call has its reservation, its outcome and its id."""

    async def main() -> None:
        both = asyncio.Barrier(2)

        async def send(limit: int | None) -> Any:
            await both.wait()
            return answer()

        async def plan(view: View) -> Any:
            models = view.models
            assert models is not None
            given = await asyncio.gather(*(models.call(MODEL, send, max_output_tokens=9, input_tokens=9) for _ in range(2)))
            return given[0].value

        result, events = await run(Planning(plan), budget=Budget(max_total_tokens=1000))
        assert [type(x).__name__[9:] for x in of(events, e.ModelCallStarted, e.ModelCallFinished)] == [
            "Started",
            "Started",
            "Finished",
            "Finished",
        ]
        assert len({s.call for s in of(events, e.ModelCallStarted)}) == 2
        assert result.usage.total_tokens == 30

    asyncio.run(main())


def test_streamed_pieces_reach_observers_and_not_the_log() -> None:
    """At once, with run, agent, pass and turn; blank pieces are left out."""
    seen: list[Chunk] = []

    class Watching:
        def on_record(self, record: Any, state: Any) -> None:
            """Not looked at."""

        def on_chunk(self, chunk: Chunk) -> None:
            """Keep it."""
            seen.append(chunk)

    async def plan(view: View) -> Any:
        assert view.models is not None
        for kind, text in (("thinking", "let me see"), ("text", "so"), ("text", "")):
            view.models.emit(kind, text)  # type: ignore[arg-type]
        return END

    result, events = asyncio.run(run(Planning(plan), observers=[Watching()]))
    assert [(c.kind, c.content, c.run_id, c.agent, c.scope, c.iteration) for c in seen] == [
        ("thinking", "let me see", result.run_id, "asker", "main", 1),
        ("text", "so", result.run_id, "asker", "main", 1),
    ]
    assert "let me see" not in repr(events)


def test_what_was_said_of_a_failure_is_redacted() -> None:
    """A provider may quote the prompt in its error."""
    result, events = asyncio.run(run(Caller(Provider(failure("bad_request", "cannot read sk-12345678 here"))), redact=["sk-[0-9]+"]))
    assert "sk-12345678" not in repr(events) and "<secret:" in of(events, e.ModelCallFailed)[0].error
    assert "sk-12345678" not in result.state.error


def test_tokens_are_counted_over_turns_with_tools() -> None:
    """Three turns, three calls, one sum; `of` the log and of the run."""
    provider = Provider(answer(look(1)), answer((look(2), look(3))), answer(FinalAnswer(content="done")))
    result, events = asyncio.run(run(Caller(provider), Desk().look))
    assert result.status == "completed" and [s.call for s in of(events, e.ModelCallStarted)] == ["main.1.m1", "main.2.m2", "main.3.m3"]
    assert total(of(events, e.ModelCallFinished)).total_tokens == 45 == result.usage.total_tokens


def test_a_failure_after_retries_says_how_often_it_was_tried() -> None:
    """The last failure is what the planner gets."""
    caught: list[ModelCallFailure] = []

    async def plan(view: View) -> Any:
        assert view.models is not None
        try:
            await view.models.call(MODEL, Provider(*[failure("server") for _ in range(5)]).send)
        except ModelCallFailure as error:
            caught.append(error)
        return END

    result, events = asyncio.run(run(Planning(plan)))
    assert caught[0].kind == "server" and "after 5 attempts" in str(caught[0])
    assert [s.attempt for s in of(events, e.ModelCallStarted)] == [1, 2, 3, 4, 5] and len(
        {s.call for s in of(events, e.ModelCallStarted)}
    ) == 1
    assert result.usage.model_calls == 5 and result.status == "completed"
