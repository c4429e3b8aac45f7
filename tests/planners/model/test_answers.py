"""How an answer becomes a plan: batches of calls, control actions where the agent allows them, typed answers, several models."""

from __future__ import annotations

import asyncio
import base64
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic_ai.messages import BinaryContent, ModelResponse, TextPart, ThinkingPart, ToolCallPart
from pydantic_ai.models.function import DeltaThinkingPart, DeltaToolCall, FunctionModel
from pydantic_ai.models.test import TestModel

from amounts import thinned
from detent.core import actions as a
from detent.core.agent import AgentSpec
from detent.core.budget import Budget
from detent.core.errors import ConfigError, MalformedPlan, ModelCallFailure, PlannerFailed
from detent.planners.fallback import Candidate, FallbackPlanner
from detent.planners.model.control_tools import ACTIONS
from detent.planners.model.planner import ModelPlanner
from detent.planners.model.transcription import transcribe
from detent.planners.providers import EXTRAS, VARIABLES, ModelRef, make_model, near_misses
from detent.ports import Plan, View
from planners.gateways import KeepingGateway
from planners.model.function_models import LOOK, Asked, a_view, calls

pytestmark = thinned


def planned(answer: Any, **fields: Any) -> Plan:
    """Return the plan that one answer becomes."""
    return asyncio.run(ModelPlanner(Asked([answer]).model).plan(a_view(**{"tools": (LOOK,), **fields})))


def allowing(*names: str) -> AgentSpec:
    return AgentSpec(name="a", actions=names)


# Calls ------------------------------------------------------------------------------------------------------------------------


def test_parallel_calls_are_one_batch_in_their_order() -> None:
    """With the ids that the provider gave, and the text beside them."""
    plan = planned(calls(("look", {"x": 1}), ("look", '{"x": 2}'), ("nope", {}), text="Both."))
    assert plan.actions == (
        a.ToolCall(tool="look", args={"x": 1}, provider_id="c0"),
        a.ToolCall(tool="look", args={"x": 2}, provider_id="c1"),
        a.ToolCall(tool="nope", args={}, provider_id="c2"),
    )
    assert plan.text == "Both."


@pytest.mark.parametrize("text", ['look({"x": 1})', "<tool>look</tool>", "I called look() twice.", '{"tools": ["look"]}'])
def test_text_is_an_answer_and_the_kernel_says_whether_it_makes_a_call(text: str) -> None:
    """Only what the provider marked as a call is one of the planner's."""
    assert planned(text).actions == (a.FinalAnswer(content=text),)


@given(st.text(max_size=60) | st.sampled_from(['{"x":', '{"x": 1e999}', "null", "[]", '"{}"', "{" * 3000, '{"x": NaN}', '{"x":1}{"x":2}']))
def test_arguments_are_an_object_or_the_text_that_was_sent(args: str) -> None:
    """Nothing is repaired, guessed or dropped here: `act` refuses what does not parse."""
    (call,) = planned(calls(("look", args))).actions
    assert isinstance(call, a.ToolCall)
    assert isinstance(call.args, dict) or call.args == args


def test_streamed_calls_are_put_together_from_their_pieces() -> None:
    """Names and arguments arrive in fragments, of several calls, with thinking before them."""

    async def stream(messages: Any, info: Any) -> Any:
        yield {0: DeltaThinkingPart(content="Hm. ")}
        yield {0: DeltaThinkingPart(content="Yes.")}
        yield {1: DeltaToolCall(name="look", json_args='{"x"', tool_call_id="a")}
        yield {1: DeltaToolCall(json_args=": 1}")}
        yield {2: DeltaToolCall(name="look", json_args='{"x": 2}', tool_call_id="b")}

    gateway = KeepingGateway()
    view = a_view(tools=(LOOK,), models=gateway)
    plan = asyncio.run(ModelPlanner(FunctionModel(stream_function=stream)).plan(view))
    assert [(c.args, c.provider_id) for c in plan.actions if isinstance(c, a.ToolCall)] == [({"x": 1}, "a"), ({"x": 2}, "b")]
    assert (plan.thinking, plan.text, gateway.heard("thinking")) == ("Hm. Yes.", "", "Hm. Yes.")


def test_a_model_that_cannot_stream_is_asked_for_the_whole_and_heard_all_the_same() -> None:
    """Observers see the text when it is there."""
    gateway = KeepingGateway()
    answer = ModelResponse(parts=[ThinkingPart("hm"), TextPart("done")])
    plan = asyncio.run(ModelPlanner(Asked([answer]).model).plan(a_view(models=gateway)))
    assert (gateway.heard("thinking"), gateway.heard("text"), plan.thinking) == ("hm", "done", "hm")


@pytest.mark.parametrize("streams", [True, False])
def test_what_may_be_the_beginning_of_a_tag_is_heard_in_the_end(streams: bool) -> None:
    """An answer that ends in `<thi` was heard without it, and what was heard was not what is recorded."""
    gateway = KeepingGateway()

    async def stream(messages: Any, info: Any) -> Any:
        for piece in ("a < b ", "<thi"):
            yield piece

    model = FunctionModel(stream_function=stream) if streams else Asked(["a < b <thi"]).model
    asyncio.run(ModelPlanner(model, settings={"stream": streams}).plan(a_view(models=gateway)))
    assert gateway.heard("text") == "a < b <thi"


def test_thinking_in_the_text_of_a_stream_is_heard_as_thinking() -> None:
    """In whatever tags a model writes it, and however they are cut: an observer showed a draft as the answer."""
    gateway = KeepingGateway()

    async def stream(messages: Any, info: Any) -> Any:
        for piece in ("<reaso", "ning>hm</reason", "ing>yes"):
            yield piece

    asyncio.run(ModelPlanner(FunctionModel(stream_function=stream)).plan(a_view(models=gateway)))
    assert (gateway.heard("thinking"), gateway.heard("text")) == ("hm", "yes")


def test_the_library_s_test_model_plans() -> None:
    """It calls each tool; with a typed answer it gives one that fits."""
    plan = asyncio.run(ModelPlanner(TestModel()).plan(a_view(tools=(LOOK,))))
    assert [type(x).__name__ for x in plan.actions] == ["ToolCall"]


# Control actions --------------------------------------------------------------------------------------------------------------

ASKS: list[tuple[str, dict[str, Any], a.AnyAction]] = [
    ("ask_user", {"question": "Which?"}, a.AskUser(question="Which?")),
    ("stop", {"reason": "no door"}, a.Stop(reason="no door")),
    ("abstain", {"reason": "no data", "missing": ["figures"]}, a.Abstain(reason="no data", missing=("figures",))),
    ("push_goal", {"goal": "find the key"}, a.PushGoal(goal="find the key")),
    ("schedule", {"delay_s": 60}, a.Schedule(delay_s=60.0)),
    ("schedule", {"at": "2030-01-01T00:00:00Z"}, a.Schedule(at="2030-01-01T00:00:00Z")),
]


@pytest.mark.parametrize(("name", "args", "action"), ASKS, ids=[f"{n}-{i}" for i, (n, _, _) in enumerate(ASKS)])
def test_a_control_action_is_offered_only_where_the_agent_allows_it(name: str, args: dict[str, Any], action: a.AnyAction) -> None:
    """Allowed, a call of it is that action; else it is a call of a tool that does not exist."""
    assert planned(calls((name, args)), agent=allowing(name)).actions == (action,)
    (call,) = planned(calls((name, args))).actions
    assert isinstance(call, a.ToolCall)
    asked = Asked(["x"])
    asyncio.run(ModelPlanner(asked.model).plan(a_view(agent=allowing(name))))
    assert name in [t.name for t in asked.infos[0].function_tools]


def test_sub_goals_are_closed_where_they_may_be_opened() -> None:
    """`push_goal` brings `complete_goal`."""
    plan = planned(calls(("complete_goal", {"outcome": "found"})), agent=allowing("push_goal"))
    assert plan.actions == (a.CompleteGoal(outcome="found"),)


def test_a_control_action_beside_calls_stands_with_them_in_the_plan() -> None:
    """The kernel lets the control action win and records the calls as not run."""
    plan = planned(calls(("look", {"x": 1}), ("stop", {"reason": "enough"})), agent=allowing("stop"))
    assert [type(x).__name__ for x in plan.actions] == ["ToolCall", "Stop"]


@pytest.mark.parametrize(
    ("name", "args"), [("ask_user", {}), ("ask_user", {"question": " "}), ("stop", "no json"), ("push_goal", {"goal": 3}), ("schedule", {})]
)
def test_a_control_action_that_says_nothing_is_no_plan(name: str, args: Any) -> None:
    """The model is told what is missing."""
    with pytest.raises(MalformedPlan, match=name):
        planned(calls((name, args)), agent=allowing(name))


def test_an_action_that_does_not_exist_or_is_a_tool_s_name_is_refused() -> None:
    """By the agent already, with what there is."""
    from detent import Agent

    with pytest.raises(ConfigError, match=f"unknown action 'ask'; known: {', '.join(ACTIONS)}"):
        Agent(name="a", actions=["ask"])
    with pytest.raises(ConfigError, match="'stop' is also the name of a tool"):
        Agent(name="a", tools=["stop"], actions=["stop"])


# Typed answers ----------------------------------------------------------------------------------------------------------------

CITY = {"type": "object", "properties": {"city": {"type": "string"}, "n": {"type": "integer"}}, "required": ["city"]}


def test_a_typed_answer_is_data_that_fits() -> None:
    """Given by the tool for it, or as JSON text, fenced or not."""
    for answer in (calls(("final_result", {"city": "Rome", "n": 1})), '{"city":"Rome","n":1}', '```json\n{"city":"Rome","n":1}\n```'):
        assert planned(answer, output_schema=CITY).actions == (a.FinalAnswer(content={"city": "Rome", "n": 1}),)


@pytest.mark.parametrize(
    "schema", [{"type": "integer"}, {"type": "array", "items": {"$ref": "#/$defs/i"}, "$defs": {"i": {"type": "integer"}}}]
)
def test_an_answer_that_is_no_object_is_wrapped_for_the_provider_and_unwrapped_for_the_run(schema: dict[str, Any]) -> None:
    """Providers take objects only."""
    value = 3 if schema["type"] == "integer" else [3]
    asked = Asked([calls(("final_result", {"answer": value}))])
    plan = asyncio.run(ModelPlanner(asked.model).plan(a_view(output_schema=schema)))
    assert plan.actions == (a.FinalAnswer(content=value),)
    (output,) = asked.infos[0].output_tools
    assert output.parameters_json_schema["type"] == "object"


def test_a_schema_whose_root_is_a_reference_is_asked_for_as_the_object_that_it_names() -> None:
    """As `msgspec.json.schema` writes a struct; it was wrapped in an object with the key `answer`, of which nobody had told."""

    class Verdict(msgspec.Struct):
        score: int

    asked = Asked([calls(("final_result", {"score": 7}))])
    plan = asyncio.run(ModelPlanner(asked.model).plan(a_view(output_schema=msgspec.json.schema(Verdict))))
    assert plan.actions == (a.FinalAnswer(content={"score": 7}),) and len(asked.infos) == 1
    assert list(asked.infos[0].output_tools[0].parameters_json_schema["properties"]) == ["score"]


def test_the_key_of_a_wrapped_answer_is_named_where_it_is_missing() -> None:
    """The model is told what to write, not that null does not fit."""
    asked = Asked([calls(("final_result", {"value": 3})), calls(("final_result", {"answer": 3}))])
    plan = asyncio.run(ModelPlanner(asked.model).plan(a_view(output_schema={"type": "integer"})))
    assert plan.actions == (a.FinalAnswer(content=3),)
    assert "the arguments have no 'answer', which must hold the answer (given: value)" in asked.said(1)


def test_an_answer_that_does_not_fit_is_given_again_with_the_problem_shown() -> None:
    """The model sees its own answer, and what is wrong with it, as the result of its call."""
    asked = Asked([calls(("final_result", {"n": 1})), "Rome", calls(("final_result", {"city": "Rome"}))])
    plan = asyncio.run(ModelPlanner(asked.model).plan(a_view(output_schema=CITY)))
    assert plan.actions == (a.FinalAnswer(content={"city": "Rome"}),)
    assert "'city' is a required property" in asked.said(1)
    assert "must be given by calling final_result" in asked.said(2)
    assert "This is not accepted" not in asked.said(0)


def test_a_typed_answer_that_never_fits_ends_the_run_with_its_reason() -> None:
    """After three tries."""
    asked = Asked([calls(("final_result", {"n": "x"}))])
    with pytest.raises(PlannerFailed, match="3 tries") as caught:
        asyncio.run(ModelPlanner(asked.model).plan(a_view(output_schema=CITY)))
    assert (caught.value.reason, len(asked.messages)) == ("output_schema_failed", 3)


def test_the_tool_of_the_answer_gives_way_to_a_tool_of_that_name() -> None:
    """A tool that an agent lists is the agent's."""
    tool = type(LOOK)(name="final_result", side_effect="read")
    plan = planned(calls(("final_result", {})), tools=(tool,), output_schema=CITY)
    assert plan.actions == (a.ToolCall(tool="final_result", args={}, provider_id="c0"),)


def test_a_schema_that_refers_elsewhere_is_never_fetched() -> None:
    """It says so instead."""
    with pytest.raises(ConfigError, match="never fetched"):
        planned('{"x": 1}', output_schema={"type": "object", "properties": {"x": {"$ref": "http://127.0.0.1:1/s.json"}}})


# Several models ---------------------------------------------------------------------------------------------------------------


class Failing:
    """A planner that fails in one way, and counts how often it was asked."""

    def __init__(self, kind: Any) -> None:
        self.kind, self.asked, self.closed, self.begun = kind, 0, False, ""

    def begin_run(self, run_id: str) -> None:
        self.begun = run_id

    async def close(self) -> None:
        self.closed = True

    async def plan(self, view: View) -> Plan:
        self.asked += 1
        raise ModelCallFailure("no", kind=self.kind)


def answering(text: str) -> ModelPlanner:
    return ModelPlanner(Asked([text]).model)


@pytest.mark.parametrize("kind", ["rate_limited", "timeout", "connection", "server", "auth", "unknown_model", "quota", "context_overflow"])
def test_where_one_model_cannot_the_next_one_plans(kind: str) -> None:
    """In the order in which they were given."""
    first, second = Failing(kind), Failing("server")
    plan = asyncio.run(FallbackPlanner([first, second, answering("third")]).plan(a_view()))
    assert plan.actions == (a.FinalAnswer(content="third"),)
    assert (first.asked, second.asked) == (1, 1)


def test_a_refusal_is_an_answer_and_the_last_failure_is_the_run_s() -> None:
    """No other model is asked to do what one refused, unless a candidate says so."""
    with pytest.raises(ModelCallFailure) as caught:
        asyncio.run(FallbackPlanner([Failing("refused"), answering("yes")]).plan(a_view()))
    assert caught.value.kind == "refused"
    chosen = FallbackPlanner([Candidate(planner=Failing("refused"), on=("refused",)), answering("yes")])
    assert asyncio.run(chosen.plan(a_view())).text == "yes"
    with pytest.raises(ModelCallFailure) as caught:
        asyncio.run(FallbackPlanner([Failing("server"), Failing("quota")]).plan(a_view()))
    assert caught.value.kind == "quota"


def test_a_dear_model_plans_while_there_is_money_for_it() -> None:
    """With little left the next one plans; without a bound there is always enough."""
    planner = FallbackPlanner([Candidate(planner=answering("dear"), while_left=Budget(max_cost_usd=0.5)), answering("cheap")])
    for left, text in ((Budget(max_cost_usd=0.6), "dear"), (Budget(max_cost_usd=0.4), "cheap"), (Budget(), "dear")):
        assert asyncio.run(planner.plan(a_view(budget_remaining=left))).text == text


def test_a_fallback_hands_on_what_an_engine_says_to_a_planner() -> None:
    """Runs that begin, and the end."""
    first = Failing("server")
    planner = FallbackPlanner([first, answering("x")])
    planner.begin_run("r1")
    asyncio.run(planner.close())
    assert (first.begun, first.closed) == ("r1", True)


def test_a_fallback_that_cannot_work_is_refused() -> None:
    """No candidates, no planners, unknown classes."""
    for wrong in ([], ["openai:gpt-5"]):
        with pytest.raises(ConfigError, match="FallbackPlanner"):
            FallbackPlanner(wrong)
    with pytest.raises(ConfigError, match="on has 'never'"):
        Candidate(planner=Failing("x"), on=("never",))  # type: ignore[arg-type]


# Names ------------------------------------------------------------------------------------------------------------------------


@pytest.fixture
def _no_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for variables in VARIABLES.values():
        for variable in variables:
            monkeypatch.delenv(variable, raising=False)


@pytest.mark.usefixtures("_no_keys")
@pytest.mark.parametrize("provider", [p for p in VARIABLES if p != "bedrock"])
def test_a_missing_key_is_named_by_its_variable(provider: str) -> None:
    """Before anything is sent, and before a client is made."""
    with pytest.raises(ConfigError, match=VARIABLES[provider][0]):
        make_model(ModelRef(name=f"{provider}:some-model"))


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("opnai:gpt-5", "'openai:gpt-5'"),
        ("gpt-5", "'openai:gpt-5'"),
        ("claude-opus-5-5", "'anthropic:claude-opus-5-5'"),
        ("zzz", "providers: "),
    ],
)
def test_a_name_that_means_nothing_is_answered_with_what_was_meant(name: str, near: str) -> None:
    """The provider, or the whole name."""
    with pytest.raises(ConfigError) as caught:
        make_model(ModelRef(name=name))
    assert near in str(caught.value)


def test_each_provider_of_an_extra_gives_a_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """With its key set, and without asking anybody."""
    for variables in VARIABLES.values():
        monkeypatch.setenv(variables[0], "k")
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    for provider in EXTRAS:
        if provider != "google-cloud":  # asks for the machine's credentials
            assert make_model(ModelRef(name=f"{provider}:some/model")).model_name == "some/model"


def test_a_base_url_takes_any_name_and_must_be_one() -> None:
    """Names of local models have colons of their own."""
    assert make_model(ModelRef(name="llama3:8b", base_url="http://127.0.0.1:1/v1")).model_name == "llama3:8b"
    assert make_model(ModelRef(name="openai:served", base_url="http://127.0.0.1:1/v1")).model_name == "served"
    with pytest.raises(ConfigError, match="is not a URL"):
        make_model(ModelRef(name="m", base_url="localhost:8080"))


def test_near_names_are_other_names() -> None:
    """A known name has no need of a hint to itself."""
    assert "anthropic:claude-opus-5-5" not in near_misses("anthropic:claude-opus-5-5")


# Transcription ----------------------------------------------------------------------------------------------------------------

SPEECH = {"type": "audio", "media_type": "audio/wav", "data": base64.b64encode(b"RIFF....WAVE").decode()}


def test_speech_is_written_down_by_a_model_that_hears_through_the_gateway() -> None:
    """The model gets the audio, the gateway the call, and no observer hears it as the agent's words."""
    asked, gateway = Asked(["  Hello there. "]), KeepingGateway()
    said = asyncio.run(transcribe(SPEECH, model=asked.model, models=gateway, hint="doors"))
    assert said.text == "Hello there."
    content = asked.messages[0][0].parts[0].content
    assert "doors" in content[0]
    assert isinstance(content[1], BinaryContent)
    assert (content[1].is_audio, gateway.calls[0]["purpose"], gateway.emitted) == (True, "transcribe", [])


def test_what_is_no_speech_is_not_sent() -> None:
    """A picture, a broken recording, a recording of nothing."""
    asked = Asked([""])
    with pytest.raises(ConfigError, match="not an attachment"):
        asyncio.run(transcribe({"type": "sound"}, model=asked.model))
    for wrong in ({**SPEECH, "type": "image", "media_type": "image/png"}, {**SPEECH, "data": "%"}):
        with pytest.raises(ModelCallFailure, match="no audio"):
            asyncio.run(transcribe(wrong, model=asked.model))
    assert asked.messages == []
    with pytest.raises(ModelCallFailure, match="no transcript"):
        asyncio.run(transcribe(SPEECH, model=asked.model))


def test_a_call_that_fails_in_the_model_s_own_code_is_a_failure_of_the_call() -> None:
    """An exception of the adapter has a class too, and says what it was."""

    def broken(messages: Any, info: Any) -> ModelResponse:
        raise ZeroDivisionError("bug")

    with pytest.raises(ModelCallFailure, match="ZeroDivisionError: bug") as caught:
        asyncio.run(ModelPlanner(FunctionModel(broken)).plan(a_view()))
    assert caught.value.kind == "bad_request"


def test_a_call_id_that_a_provider_leaves_out_is_made_up_once() -> None:
    """The plan has ids for all calls, so that results find their calls."""
    answer = ModelResponse(parts=[ToolCallPart("look", {"x": 1}), ToolCallPart("look", {"x": 2})])
    ids = [c.provider_id for c in planned(answer).actions if isinstance(c, a.ToolCall)]
    assert all(ids) and len(set(ids)) == 2
