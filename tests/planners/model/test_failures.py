"""What a model's provider may do wrong, over real HTTP: each class of failure has one meaning, streamed or not."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from amounts import crossed, thinned
from detent import Agent, Engine, tool
from detent.config.groups import Models
from detent.core.actions import FinalAnswer, ToolCall
from detent.core.agent import AgentSpec
from detent.core.errors import ConfigError, MalformedPlan, ModelCallFailure
from detent.core.events import ModelCallFinished, PlanRejected
from detent.core.state import Item
from detent.metering.provider_limits import ModelRetries
from detent.planners.model.planner import ModelPlanner
from detent.ports import Plan, ToolSpec, View
from planners.gateways import KeepingGateway
from planners.model.chat_server import HANGS_UP, ChatServer, Entry, fails, says

pytestmark = [crossed, thinned]

LOOK = ToolSpec(name="look", input_schema={"type": "object", "properties": {"x": {"type": "integer"}}}, side_effect="read")


def view(gateway: KeepingGateway | None, **fields: Any) -> View:
    """Return a first view of a run with one tool."""
    return View(
        goal="g",
        agent=AgentSpec(name="a"),
        iteration=1,
        variables={},
        transcript=[Item(kind="user", text="g")],
        results=[],
        models=gateway,
        **{"tools": (LOOK,), "run_id": "r", **fields},
    )


@asynccontextmanager
async def planner(server: ChatServer, *, model: str = "openai:served", **settings: Any) -> AsyncIterator[ModelPlanner]:
    """Yield a planner that asks the server."""
    made = ModelPlanner(model, settings={"base_url": server.url, **settings})
    try:
        yield made
    finally:
        await made.close()


def ask(script: list[Entry], gateway: KeepingGateway | None = None, *, stream: bool = True, **more: Any) -> Plan:
    """Plan once against a server with this script."""
    return asked(script, gateway, stream=stream, **more)[0]


def asked(
    script: list[Entry], gateway: KeepingGateway | None = None, *, fields: dict[str, Any] | None = None, **settings: Any
) -> tuple[Plan, ChatServer]:
    """Return the plan and the server; an error has the server on it."""

    async def go(server: ChatServer) -> Plan:
        async with planner(server, **settings) as made:
            return await made.plan(view(gateway, **(fields or {})))

    with ChatServer(script) as server:
        try:
            return asyncio.run(go(server)), server
        except Exception as error:
            error.server = server  # type: ignore[attr-defined]
            raise


both = pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])

FAILURES: list[tuple[str, Entry, str, bool]] = [
    ("rate limit", fails(429, "slow down", Retry_After="7"), "rate_limited", True),
    ("quota", fails(429, "You exceeded your current quota", code="insufficient_quota"), "quota", False),
    ("payment", fails(402, "pay first"), "quota", False),
    ("request timeout", fails(408), "timeout", True),
    ("gateway timeout", fails(504), "timeout", True),
    ("server error", fails(500), "server", True),
    ("context, as a server error", fails(500, "the prompt is too long: 9000 tokens"), "context_overflow", False),
    ("bad gateway", fails(502), "server", True),
    ("unavailable", fails(503), "server", True),
    ("overloaded", fails(529, "overloaded"), "server", True),
    ("bad key", fails(401, "Incorect API key: sk-abcdefghijkl"), "auth", False),
    ("forbidden", fails(403), "auth", False),
    ("unknown model", fails(404, "no such model", code="model_not_found"), "unknown_model", False),
    ("bad request", fails(400, "temperature is not supported"), "bad_request", False),
    ("context", fails(400, "maximum context length is 8192 tokens", code="context_length_exceeded"), "context_overflow", False),
    ("too large", fails(413, "payload too large"), "context_overflow", False),
    ("content filter", fails(400, "filtered", code="content_filter"), "content_filter", False),
    ("hang up", HANGS_UP, "connection", True),
]


@both
@pytest.mark.parametrize(("entry", "kind", "retryable"), [f[1:] for f in FAILURES], ids=[f[0] for f in FAILURES])
def test_each_failure_of_a_provider_has_one_class(entry: Entry, kind: str, *, retryable: bool, stream: bool) -> None:
    """The class decides whether the gateway tries again; the request was sent once: no client retries by itself."""
    with pytest.raises(ModelCallFailure) as caught:
        ask([entry], KeepingGateway(), stream=stream)
    assert (caught.value.kind, caught.value.retryable) == (kind, retryable)
    assert len(caught.value.server.requests) == 1  # type: ignore[attr-defined]


@both
def test_the_wait_that_a_provider_asks_for_reaches_the_gateway(*, stream: bool) -> None:
    """Retry-After is handed on in seconds."""
    with pytest.raises(ModelCallFailure) as caught:
        ask([fails(429, Retry_After="7")], stream=stream)
    assert caught.value.retry_after_s == 7.0


def test_a_refused_key_names_the_variable_and_never_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """The message says which variable to look at; what the provider echoed of the key is not repeated."""

    async def go() -> None:
        made = ModelPlanner("openai-chat:gpt-4o")
        try:
            await made.plan(view(None))
        finally:
            await made.close()

    monkeypatch.setenv("OPENAI_API_KEY", "sk-abcdefghijklmnop")
    with ChatServer([fails(401, "Incorrect API key provided: sk-abcdefghijklmnop")]) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.url)
        with pytest.raises(ModelCallFailure) as caught:
            asyncio.run(go())
    assert "OPENAI_API_KEY" in str(caught.value)
    assert "sk-abc" not in str(caught.value)


@pytest.mark.parametrize("key", ["sk-abcdefghijklmnop", "Bearer abcdefghijklmnop", "AIzaSyAbcdefghijklmnop"])
def test_what_looks_like_a_key_is_left_out_of_any_message(key: str) -> None:
    """Whatever the class of the failure: what a provider says ends up in the log."""
    with pytest.raises(ModelCallFailure, match=r"\[key\]") as caught:
        ask([fails(400, f"cannot use {key} for this")])
    assert "klmnop" not in str(caught.value)


def test_an_unknown_model_is_answered_with_near_names() -> None:
    """A name that the provider does not know is a message with names that it may have been."""
    with pytest.raises(ModelCallFailure, match=r"'openai:gpt-5\.6-sol'"):
        asked([fails(404, code="model_not_found")], model="openai:gpt-5.6-sool")


@both
def test_a_retryable_failure_is_followed_by_the_answer(*, stream: bool) -> None:
    """The gateway sends the same request again, and the plan is the second answer."""
    gateway = KeepingGateway(attempts=2)
    plan, server = asked([fails(503), says("here")], gateway, stream=stream)
    assert plan.actions == (FinalAnswer(content="here"),)
    assert server.requests[0] == server.requests[1]
    assert [f.kind for f in gateway.failures] == ["server"]


@pytest.mark.parametrize("after", [0, 1, 2, 4])
def test_a_stream_that_breaks_is_sent_again_whole_and_its_text_is_no_plan(after: int) -> None:
    """Wherever a stream ends too early, nothing of it is used: neither its text nor its half call."""
    broken = {**says("Half of it", ("c1", "look", {"x": 12345})), "break_after": after}
    gateway = KeepingGateway(attempts=2)
    plan, server = asked([broken, says("whole")], gateway)
    assert plan.actions == (FinalAnswer(content="whole"),)
    assert plan.text == "whole"
    assert [f.retryable for f in gateway.failures] == [True]
    assert len(server.requests) == 2


def test_a_stream_that_always_breaks_gives_no_plan() -> None:
    """A half call in a broken stream never becomes a tool call."""
    broken = {**says(None, ("c1", "look", {"x": 12345})), "break_after": 3}
    with pytest.raises(ModelCallFailure) as caught:
        ask([broken], KeepingGateway(attempts=3))
    assert caught.value.retryable


@both
def test_a_refusal_ends_the_run_as_refused_and_is_paid_for(*, stream: bool) -> None:
    """A refusal is no answer: its reason is `model_refused`, its tokens are on the failure."""
    gateway = KeepingGateway()
    with pytest.raises(ModelCallFailure) as caught:
        ask([says(None, refusal="I cannot help with that.")], gateway, stream=stream)
    assert (caught.value.kind, caught.value.reason) == ("refused", "model_refused")
    assert caught.value.usage.input_tokens == 100
    assert "I cannot help" in str(caught.value)


@both
def test_an_answer_that_a_filter_ended_is_not_used(*, stream: bool) -> None:
    """What a content filter cut short is no answer either."""
    with pytest.raises(ModelCallFailure) as caught:
        ask([says("Begin", finish="content_filter")], stream=stream)
    assert (caught.value.kind, caught.value.reason) == ("content_filter", "model_refused")


@both
def test_an_answer_that_was_cut_off_is_asked_for_once_more_with_a_higher_limit(*, stream: bool) -> None:
    """The second request asks for more output; its answer is the plan."""
    plan, server = asked([says("It beg", finish="length"), says("It began.")], max_tokens=50, stream=stream)
    assert plan.actions == (FinalAnswer(content="It began."),)
    assert [r.get("max_completion_tokens") or r.get("max_tokens") for r in server.requests] == [50, 200]


def test_an_answer_that_is_cut_off_again_is_told_to_the_model() -> None:
    """No limit is used twice for the same prompt: after the second time the plan is rejected, with the reason for the model."""
    with pytest.raises(MalformedPlan, match="cut off at 200 tokens") as caught:
        ask([says("It beg", finish="length")], max_tokens=50)
    assert caught.value.usage.output_tokens == 20
    assert len(caught.value.server.requests) == 2  # type: ignore[attr-defined]


def test_a_budget_that_leaves_no_more_output_is_told_at_once() -> None:
    """Where the gateway clamps the limit, asking again could only be cut off again."""
    gateway = KeepingGateway(cap=20)
    with pytest.raises(MalformedPlan, match="cut off at 20 tokens"):
        ask([says("It beg", finish="length")], gateway, max_tokens=50)
    assert [c["limit"] for c in gateway.calls] == [20]


def test_a_call_in_an_answer_that_was_cut_off_is_never_a_plan() -> None:
    """Arguments that parse may still be half of what was meant."""
    cut = says(None, ("c1", "look", {"x": 1}), finish="length")
    with pytest.raises(MalformedPlan):
        ask([cut], max_tokens=50)


@both
def test_empty_answers_are_asked_for_twice_more_with_a_hint(*, stream: bool) -> None:
    """The hint stands in the requests that follow an empty answer and nowhere else."""
    plan, server = asked([says(""), says("  "), says("Found.")], stream=stream)
    assert plan.actions == (FinalAnswer(content="Found."),)
    hints = [any("Your last answer was empty" in str(m["content"]) for m in r["messages"]) for r in server.requests]
    assert hints == [False, True, True]


def test_a_third_empty_answer_in_a_row_is_the_end() -> None:
    """Three requests were made, and all are paid for."""
    with pytest.raises(ModelCallFailure, match="3 empty answers") as caught:
        ask([says("")])
    assert (caught.value.kind, caught.value.usage.input_tokens) == ("empty", 300)


@both
def test_arguments_that_do_not_parse_stay_the_text_that_was_sent(*, stream: bool) -> None:
    """They are for `act` to refuse as a failed observation; nothing is guessed here."""
    plan = ask([says(None, ("c1", "look", '{"x": 1'), ("c2", "look", "[1]"), ("c3", "nope", ""))], stream=stream)
    calls = [a for a in plan.actions if isinstance(a, ToolCall)]
    assert [(c.tool, c.args) for c in calls] == [("look", '{"x": 1'), ("look", "[1]"), ("nope", {})]


@both
def test_a_body_that_is_no_json_is_the_providers_failure(*, stream: bool) -> None:
    """A proxy's page in place of an answer may be gone the next time."""
    page = {"status": 200, "body": "<html>", "headers": {"Content-Type": "application/json"}}
    with pytest.raises(ModelCallFailure) as caught:
        ask([page], stream=stream)
    assert caught.value.retryable


def test_no_key_of_another_provider_is_sent_to_a_base_url(monkeypatch: pytest.MonkeyPatch) -> None:
    """The key that goes to a base URL is the one whose variable the settings name, and no other."""
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    monkeypatch.setenv("MY_KEY", "mine")
    _, server = asked([says("x")])
    assert "sk-secret" not in str(server.headers)
    _, server = asked([says("x")], api_key_env="MY_KEY")
    assert server.headers[0]["authorization"] == "Bearer mine"


def test_a_key_variable_that_is_not_set_is_named() -> None:
    """The message names the variable."""
    with pytest.raises(ConfigError, match="'MY_MISSING_KEY', which is not set"):
        ask([says("x")], api_key_env="MY_MISSING_KEY")


@both
def test_usage_counts_cached_and_reasoning_tokens_apart(*, stream: bool) -> None:
    """They are parts of input and output tokens, and stand beside them."""
    usage = {
        "prompt_tokens": 100,
        "completion_tokens": 30,
        "total_tokens": 130,
        "prompt_tokens_details": {"cached_tokens": 64},
        "completion_tokens_details": {"reasoning_tokens": 20},
    }
    gateway = KeepingGateway()
    plan = ask([says("x", usage=usage)], gateway, stream=stream)
    used = gateway.answers[0].usage
    assert (used.input_tokens, used.output_tokens, used.cached_tokens, used.reasoning_tokens) == (100, 30, 64, 20)
    assert plan.usage.total_tokens == 0, "the gateway has counted it"
    assert gateway.answers[0].request_id == "cmpl-1"


def test_without_a_gateway_the_plan_carries_what_all_its_requests_cost() -> None:
    """An empty answer is paid for as well."""
    plan = ask([says(""), says("x")])
    assert (plan.usage.input_tokens, plan.usage.output_tokens) == (200, 20)


def test_text_and_thinking_are_streamed_apart() -> None:
    """Observers hear both as they come; the plan keeps thinking out of its text."""
    gateway = KeepingGateway()
    plan = ask([says("The answer.", reasoning_content="Let me think.")], gateway)
    assert (gateway.heard("text"), gateway.heard("thinking")) == ("The answer.", "Let me think.")
    assert (plan.text, plan.thinking) == ("The answer.", "Let me think.")
    assert len([k for k, _ in gateway.emitted if k == "text"]) > 1


# Through an engine ------------------------------------------------------------------------------------------------------------


def run(
    script: list[Entry], *, store: str = "ram:", agent: dict[str, Any] | None = None, **options: Any
) -> tuple[Any, list[Any], ChatServer]:
    """Run an agent whose model is served by the script; return the result, the events of the log and the server."""

    @tool(side_effect="write")
    def put(x: int) -> int:
        """Put x."""
        put_calls.append(x)
        return x

    put_calls: list[int] = []

    async def go(server: ChatServer) -> tuple[Any, list[Any]]:
        made = Agent(name="a", model="openai:served", model_settings={"base_url": server.url}, tools=[put], **(agent or {}))
        async with Engine(store=store, models=Models(retries=ModelRetries(base_s=0.001)), **options) as engine:
            result = await engine.run(made, "g")
            events = [record.event for record in await engine.records(result.run_id)]
            return result, [put_calls, *events]

    with ChatServer(script) as server:
        result, events = asyncio.run(go(server))
    return result, events, server


def test_an_engine_asks_the_model_that_its_agent_names() -> None:
    """No planner was given: the agent's model is the planner, every request is on the log, and their sum is the run's usage."""
    script: list[Entry] = [fails(503), says(None, ("c1", "put", {"x": 1})), says(""), says("done")]
    result, events, server = run(script)
    assert (result.status, result.output) == ("completed", "done")
    assert [type(e).__name__ for e in events].count("ModelCallStarted") == len(server.requests) == 4
    finished = [e for e in events if isinstance(e, ModelCallFinished)]
    assert result.usage.model_calls == 4
    assert result.usage.input_tokens == sum(e.usage.input_tokens for e in finished) == 300
    assert result.usage.cached_tokens == 120


def test_a_cut_off_answer_is_told_to_the_model_and_then_counts() -> None:
    """The plan is rejected with the reason, and the model's shorter answer is the next plan."""
    cut = says("So long", finish="length")
    result, events, server = run([cut, cut, says("short")], agent={})
    assert result.output == "short"
    (rejected,) = [e for e in events if isinstance(e, PlanRejected)]
    assert "cut off" in rejected.problem
    assert "cut off" in server.requests[2]["messages"][-1]["content"]


@pytest.mark.parametrize(
    ("entry", "reason"),
    [
        (fails(401), "planner_error"),
        (fails(400, code="context_length_exceeded"), "context_overflow"),
        (says(None, refusal="No."), "model_refused"),
        (fails(429, code="insufficient_quota"), "planner_error"),
        (says(""), "planner_error"),
    ],
)
def test_a_failure_that_stays_ends_the_run_with_its_reason(entry: Entry, reason: str) -> None:
    """And with a message; no tool ran."""
    result, events, _ = run([entry])
    assert (result.status, result.reason) == ("failed", reason)
    assert result.error
    assert events[0] == []


def test_a_run_that_a_refused_key_ended_goes_on_when_it_is_mended() -> None:
    """What was planned before is not asked for again."""

    @tool(side_effect="write")
    def put(x: int) -> int:
        """Put x."""
        return x

    async def go(server: ChatServer) -> tuple[Any, Any]:
        agent = Agent(name="a", model="openai:served", model_settings={"base_url": server.url}, tools=[put])
        async with Engine(store="ram:", tools=[put]) as engine:
            failed = await engine.run(agent, "g")
            return failed, await engine.reopen(failed.run_id, why="the key was renewed")

    with ChatServer([says(None, ("c1", "put", {"x": 1})), fails(401), says("done")]) as server:
        failed, result = asyncio.run(go(server))
    assert (failed.status, failed.reason) == ("failed", "planner_error")
    assert (result.status, result.output) == ("completed", "done")
    assert (len(server.requests), len(result.tool_calls), result.usage.model_calls) == (3, 1, 3)


def test_a_stream_that_breaks_runs_no_tool() -> None:
    """Half a call is nothing; the same call whole is run once."""
    broken = {**says(None, ("c1", "put", {"x": 12345})), "break_after": 3}
    result, events, _ = run([broken, says(None, ("c1", "put", {"x": 12345})), says("done")])
    assert (result.output, events[0]) == ("done", [12345])


def test_a_model_that_cannot_be_asked_is_refused_before_anything_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A missing key is an error of the caller, in two lines."""
    monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)

    async def go() -> None:
        async with Engine(store="ram:") as engine:
            with pytest.raises(ConfigError, match=r"needs a key: set ANTHROPIC_API_KEY\nwithout a key: ") as caught:
                await engine.run(Agent(name="a", model="anthropic:claude-opus-5-5"), "g")
            assert str(caught.value).count("\n") == 1
            assert await engine.list_runs() == []

    asyncio.run(go())
