"""Every way that a model call can go, from the HTTP request to the log and back: nothing is unpaid, nothing runs twice, each log replays."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from email.utils import formatdate
from time import time
from typing import Any

import pytest

from amounts import crossed, stride, thinned
from detent import Agent, Budget, Engine, Result, tool
from detent.config.groups import Models
from detent.core import events as e
from detent.core.errors import Suspended
from detent.metering.accounts import MOST_CLOSED_S
from detent.metering.provider_limits import ModelRetries
from detent.planners.fallback import FallbackPlanner
from detent.planners.model.planner import ModelPlanner
from detent.testing.clocks import FakeClock
from planners.model.chat_server import HANGS_UP, Answer, ChatServer, Entry, fails, says, streamed

pytestmark = [crossed, thinned]

CALL, DONE = ("c1", "put", {"x": 7}), says("done")
PAGE: Answer = {"status": 200, "body": "<!doctype html><title>Sign in</title>", "headers": {"Content-Type": "text/html; charset=utf-8"}}
TYPED = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"], "additionalProperties": False}
FAST = ModelRetries(retries=2, base_s=0.0)
both = pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])


class Ran:
    """A run against a script: its result, the events of its log, what was asked of the server, and what the tool `put` did.

    With a clock, a run that is suspended is resumed twice: at once, and when its time has come. `stops` has what it was suspended with, and how
    many requests there were then.
    """

    def __init__(
        self, script: Sequence[Entry], *, budget: Budget | None = None, stream: bool = True, clock: FakeClock | None = None, **agent: Any
    ) -> None:
        self.done: list[int] = []
        self.clock, self.stops = clock, list[tuple[Suspended, int]]()
        with ChatServer(script) as server:
            asyncio.run(self._run(server, budget, agent, stream=stream))
        self.requests = server.requests
        self.events = [record.event for record in self.records]
        assert well_formed(self.requests) == []
        self._counted()

    async def _run(self, server: ChatServer, budget: Budget | None, agent: dict[str, Any], *, stream: bool) -> None:
        @tool(side_effect="write")
        def put(x: int) -> int:
            """Put x."""
            self.done.append(x)
            return x

        planner = ModelPlanner("openai:served", settings={"base_url": server.url, "stream": stream})
        async with Engine(store="ram:", planner=planner, models=Models(retries=FAST), clock=self.clock) as engine:
            self.result = await self._ended(server, engine.run(Agent(name="a", tools=[put], **agent), "go", budget=budget), engine)
            self.records = await engine.records(self.result.run_id)
            asked = len(server.requests), list(self.done)
            again = await engine.replay(self.result.run_id)
            assert again.identical, again.divergence
            assert (len(server.requests), self.done) == asked, "a replay asks nobody and does nothing"
        await planner.close()

    async def _ended(self, server: ChatServer, going: Awaitable[Result], engine: Engine) -> Result:
        try:
            return await going
        except Suspended as stopped:
            if self.clock is None:
                raise
            self.stops.append((stopped, len(server.requests)))
            if len(self.stops) > 1 and stopped.until is not None:
                self.clock.advance((stopped.until - self.clock.now()).total_seconds())
            return await self._ended(server, engine.resume(stopped.run_id), engine)

    def _counted(self) -> None:
        """Check that each request is on record as one call, and that what the calls used is what the run used."""
        ended = self.of(e.ModelCallFinished, e.ModelCallFailed)
        assert len(self.requests) == len(self.of(e.ModelCallStarted)) == len(ended) == self.result.usage.model_calls
        for field in ("input_tokens", "output_tokens", "cached_tokens"):
            assert sum(getattr(event.usage, field) for event in ended) == getattr(self.result.usage, field), field

    def of(self, *kinds: type) -> list[Any]:
        """Return the events of these kinds."""
        return [event for event in self.events if isinstance(event, kinds)]

    @property
    def how(self) -> tuple[str, str, int, list[int]]:
        """Return how it ended: status, reason, requests, and what the tool did."""
        return self.result.status, self.result.reason, len(self.requests), self.done


def well_formed(requests: Sequence[dict[str, Any]]) -> list[str]:
    """Return what a provider would refuse in the messages: an id that two calls share, a call without one result, a wrong name."""
    wrong: list[str] = []
    for number, request in enumerate(requests):
        open_calls: list[str] = []
        for message in request["messages"]:
            if message["role"] == "tool":
                if message["tool_call_id"] not in open_calls:
                    wrong.append(f"request {number}: a result of {message['tool_call_id']!r}, which is not open")
                else:
                    open_calls.remove(message["tool_call_id"])
                continue
            if open_calls:
                wrong.append(f"request {number}: no result of {open_calls}")
            open_calls = [call["id"] for call in message.get("tool_calls") or ()]
            names = [call["function"]["name"] for call in message.get("tool_calls") or ()]
            wrong += [f"request {number}: a call of {name!r}" for name in names if not re.fullmatch("[a-zA-Z0-9_-]{1,64}", name)]
            if len(set(open_calls)) != len(open_calls):
                wrong.append(f"request {number}: two calls are called {open_calls}")
    return wrong


# Every branch ------------------------------------------------------------------------------------------------------------------

BRANCHES: dict[str, tuple[list[Entry], dict[str, Any], tuple[str, str, int, list[int]]]] = {
    "a call and an answer": ([says("", CALL), DONE], {}, ("completed", "final_answer", 2, [7])),
    "retried": ([fails(503), says("", CALL), fails(429), DONE], {}, ("completed", "final_answer", 4, [7])),
    "given up": ([says("", CALL), fails(500)], {}, ("failed", "planner_error", 4, [7])),
    "hung up": ([HANGS_UP, says("", CALL), HANGS_UP, DONE], {}, ("completed", "final_answer", 4, [7])),
    "a page": ([PAGE, DONE], {}, ("completed", "final_answer", 2, [])),
    "only pages": ([PAGE], {}, ("failed", "planner_error", 3, [])),
    "refused": ([says("", CALL), says(None, refusal="No.")], {}, ("failed", "model_refused", 2, [7])),
    "filtered": ([says("Beg", finish="content_filter")], {}, ("failed", "model_refused", 1, [])),
    "empty": ([says(""), says(None), says("", CALL), says(" "), DONE], {}, ("completed", "final_answer", 5, [7])),
    "always empty": ([says("")], {}, ("failed", "planner_error", 3, [])),
    "cut off": ([says("", CALL, finish="length"), says("", CALL), DONE], {}, ("completed", "final_answer", 3, [7])),
    "always cut off": ([says("", CALL, finish="length")], {}, ("failed", "malformed_plan", 10, [])),
    "no key": ([fails(401)], {}, ("failed", "planner_error", 1, [])),
    "too long": ([fails(400, "maximum context length")], {}, ("failed", "context_overflow", 1, [])),
    "no JSON": ([says("", ("c1", "put", '{"x": ')), says("", CALL), DONE], {}, ("completed", "final_answer", 3, [7])),
    "wrong type": ([says("", ("c1", "put", {"x": "7"})), DONE], {}, ("completed", "final_answer", 2, [])),
    "no such tool": ([says("", ("c1", "rm", {"x": 7})), DONE], {}, ("completed", "final_answer", 2, [])),
    "no tool": ([says("", ("c1", "", {"x": 7})), DONE], {}, ("completed", "final_answer", 2, [])),
    "typed": ([says("", ("f", "final_result", {"n": 1}))], {"output_schema": TYPED}, ("completed", "final_answer", 1, [])),
    "typed again": (
        [says("", ("f", "final_result", {"n": "x"})), says("hm"), says("", ("f", "final_result", {"n": 1}))],
        {"output_schema": TYPED},
        ("completed", "final_answer", 3, []),
    ),
    "never typed": ([says("hm")], {"output_schema": TYPED}, ("failed", "output_schema_failed", 3, [])),
    "typed and a call": (
        [says("", CALL, ("f", "final_result", {"n": "x"})), says("", CALL), says("", ("f", "final_result", {"n": 1}))],
        {"output_schema": TYPED},
        ("completed", "final_answer", 3, [7]),
    ),
    "a control action that says nothing": (
        [says("", ("q", "stop", {})), says("", ("q", "stop", {"reason": "enough"}))],
        {"actions": ["stop"]},
        ("stopped", "stop_action", 2, []),
    ),
}


@both
@pytest.mark.parametrize("name", list(BRANCHES))
def test_each_way_that_a_call_can_go_is_paid_once_and_replays(name: str, *, stream: bool) -> None:
    """The log replays without a request; calls, tokens and requests agree; a tool runs as often as a good plan says."""
    script, agent, expected = BRANCHES[name]
    assert Ran(script, stream=stream, **agent).how[:4] == expected


@both
def test_a_run_in_which_models_take_over_from_each_other_replays(*, stream: bool) -> None:
    """Each failed call is on record beside the answer of the next model."""

    async def go(first: ChatServer, second: ChatServer) -> Any:
        planners = [ModelPlanner(f"openai:{n}", settings={"base_url": s.url, "stream": stream}) for n, s in (("a", first), ("b", second))]
        async with Engine(store="ram:", planner=FallbackPlanner(planners), models=Models(retries=FAST)) as engine:
            result = await engine.run(Agent(name="a"), "go")
            again = await engine.replay(result.run_id)
            assert again.identical, again.divergence
            events = [record.event for record in await engine.records(result.run_id)]
        for planner in planners:
            await planner.close()
        return result, events

    with ChatServer([fails(503)]) as first, ChatServer([says("from b")]) as second:
        result, events = asyncio.run(go(first, second))
    assert (result.output, len(first.requests), len(second.requests)) == ("from b", 3, 1)
    started = [event.model for event in events if isinstance(event, e.ModelCallStarted)]
    assert started == ["openai:a"] * 3 + ["openai:b"] and result.usage.model_calls == 4


# What a provider asks one to wait for ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "after",
    ["0", "-5", "-1e9", "soon", "", "nan", "0x10", "1e-9", "Wed, 21 Oct 2015 07:28:00 GMT", "Wed, 99 Xyz 2015 07:28:00 GMT", "9" * 400],
)
@both
def test_a_wish_to_wait_that_makes_no_sense_is_no_wish(after: str, *, stream: bool) -> None:
    """The call is tried again at once here; a number beyond all measure is no time at all, or one that nobody waits for."""
    ran = Ran([fails(429, "slow down", Retry_After=after), DONE], stream=stream)
    assert ran.result.status == "completed" or (after == "9" * 400 and len(ran.requests) == 1)


@both
@pytest.mark.parametrize("after", ["99999", "1000000000000", "tomorrow"])
def test_a_wish_to_wait_for_longer_than_allowed_suspends_the_run_at_once(after: str, *, stream: bool) -> None:
    """Nobody hangs for a day, and nothing is lost: until its time, an hour at most, the run asks nobody; then it continues where it was."""
    said = formatdate(time() + 86_400, usegmt=True) if after == "tomorrow" else after
    clock = FakeClock()
    opens = clock.now() + timedelta(seconds=MOST_CLOSED_S)
    ran = Ran([says("", CALL), fails(429, "slow down", Retry_After=said), DONE], stream=stream, clock=clock)
    assert [(stopped.until, requests) for stopped, requests in ran.stops] == [(opens, 2)] * 2
    assert all("is closed until" in stopped.why and "rate_limited: it asked for" in stopped.why for stopped, _ in ran.stops)
    (failed,) = ran.of(e.ModelCallFailed)
    assert "slow down" in failed.error and failed.closed_until == opens
    assert ran.how == ("completed", "final_answer", 3, [7]) and clock.now() >= opens


# Where a stream may end -----------------------------------------------------------------------------------------------------------

WRITTEN = says("I put it.", ("c1", "put", {"x": 1234567}), reasoning_content="Höre, ü")
LENGTH = len(streamed(WRITTEN))
FINISHED = streamed(WRITTEN).index(b'"finish_reason": "tool_calls"')


@pytest.mark.parametrize("cut", [*range(0, LENGTH, stride(249, many=83)), FINISHED, FINISHED + 29, LENGTH - 15, LENGTH - 3])
def test_a_stream_that_is_cut_at_any_byte_runs_a_call_whole_or_not_at_all(cut: int) -> None:
    """Between two events, in the middle of one, of a number or of a character. What was cut is asked for again, whole."""
    ran = Ran([{**WRITTEN, "cut_at": cut}, lambda asked: DONE if asked["messages"][-1]["role"] == "tool" else WRITTEN])
    assert ran.result.output == "done" and ran.done == [1234567]
    failed = [event.kind for event in ran.of(e.ModelCallFailed)]
    assert failed in ([], ["connection"], ["server"]) and len(ran.requests) == 2 + len(failed)
    assert failed or cut > FINISHED


# Ids of calls ---------------------------------------------------------------------------------------------------------------------

IDS: list[Callable[[], list[tuple[Any, str, Any]]]] = [
    lambda: [("c", "put", {"x": 1}), ("c", "put", {"x": 2})],
    lambda: [("call_1_1", "put", {"x": 1}), ("call_1_1", "put", {"x": 2})],
    lambda: [("", "put", {"x": 1}), ("", "put", {"x": 2})],
    lambda: [("call_1_2", "put", {"x": 1}), ("c", "put", {"x": 2}), ("c", "put", {"x": 3})],
    lambda: [("call_1_1", "put", {"x": 1}), ("call_1_1", "put", {"x": 2}), ("call_1_1", "put", {"x": 3})],
    lambda: [("c" * 300, "put", {"x": 1}), ("ü 🙂\n", "put", {"x": 2})],
]


@both
@pytest.mark.parametrize("ids", range(len(IDS)))
def test_calls_that_share_an_id_are_told_apart(ids: int, *, stream: bool) -> None:
    """Each runs once, and each has its own result under an id of its own in the next request."""
    calls = IDS[ids]()
    ran = Ran([says("", *calls), says("", *calls), DONE], stream=stream)
    assert ran.done == [call[2]["x"] for call in calls] * 2
    told = [[m["content"] for m in request["messages"] if m["role"] == "tool"] for request in ran.requests]
    results = [str(call[2]["x"]) for call in calls]
    assert told == [[], results, results * 2]


HALF = "\ud83d"
NAMES = ["functions.put", "put ", "läuft", "p" * 100_000, "put\n", f"p{HALF}", "{}", "put;rm -rf /"]


@both
@pytest.mark.parametrize("name", NAMES, ids=range(len(NAMES)))
def test_a_tool_that_is_none_by_a_name_that_is_none_fails_and_the_run_goes_on(name: str, *, stream: bool) -> None:
    """Nothing is guessed from it; the provider gets a name back that it takes, and the observation tells the one that was called."""
    for more in ({}, {"reasoning_content": "Hm."}):  # with something to give back, the answer is rebuilt as it came
        ran = Ran([says("", ("c", name, {"x": 1}), CALL, **more), DONE], stream=stream)
        assert ran.how == ("completed", "final_answer", 2, [7])
    assert "there is no tool" in next(m for m in ran.requests[1]["messages"] if m["role"] == "tool")["content"]


@both
def test_half_a_character_in_an_id_or_a_name_costs_no_answer(*, stream: bool) -> None:
    """Nor does it when a typed answer is asked for again."""
    assert Ran([says("", (f"c{HALF}", "put", {"x": 1})), DONE], stream=stream).how == ("completed", "final_answer", 2, [1])
    for wrong in ([(f"c{HALF}", "final_result", {"n": "x"})], [("c", "final_result", {"n": "x"}), ("d", f"p{HALF}", {"x": 1})]):
        ran = Ran([says("", *wrong), says("", ("f", "final_result", {"n": 1}))], stream=stream, output_schema=TYPED)
        assert ran.how == ("completed", "final_answer", 2, [])


@both
def test_a_control_action_with_the_id_of_a_call_is_told_apart(*, stream: bool) -> None:
    """In the answer that the next one follows, each has a result."""
    both_ = says("", ("c", "put", {"x": 1}), ("c", "push_goal", {"goal": "find it"}))
    ran = Ran([both_, says("", CALL), DONE, DONE, DONE], stream=stream, actions=["push_goal"], budget=Budget(max_iterations=6))
    assert ran.result.state.terminal


@both
def test_a_typed_answer_with_the_id_of_a_call_is_told_apart(*, stream: bool) -> None:
    """It is shown its problem, the call that it was not run."""
    wrong = says("", ("c", "put", {"x": 1}), ("c", "final_result", {"n": "x"}))
    ran = Ran([wrong, says("", ("c", "final_result", {"n": 1}))], stream=stream, output_schema=TYPED)
    assert ran.result.output == {"n": 1} and ran.done == []
    assert json.dumps(ran.requests[1]).count("Not run.") == 1
