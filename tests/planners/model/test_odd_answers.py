"""What no provider should send and some do: half characters, bottomless arguments, calls of nothing, usage that is none. Over real HTTP."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from amounts import crossed, in_check, thinned
from detent import Agent, Budget, Engine, Result, tool
from detent.config.groups import Models
from detent.core.errors import ConfigError, MalformedPlan
from detent.metering.pricing import ModelPrice
from detent.metering.provider_limits import ModelRetries
from detent.observers.in_memory import InMemoryObserver
from detent.planners.model import control_tools
from detent.planners.model.failures import failure_of
from detent.planners.model.planner import ModelPlanner
from detent.planners.model.typed_answers import DEEPEST, TOO_DEEP, read_arguments
from detent.planners.providers import ModelRef, make_model
from detent.planners.text.json_objects import whole_json
from detent.ports import MOST_NESTED
from planners.model.chat_server import HANGS_UP, Answer, ChatServer, Entry, fails, says

pytestmark = [crossed, thinned]

DONE = says("done")
HIGH, LOW = "\ud83d", "\ude00"
both = pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])


class Desk:
    """A tool that notes what it was called with."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def look(self) -> Any:
        @tool(side_effect="read")
        def look(s: str = "", deep: list[Any] | None = None) -> str:
            """Look."""
            self.seen.append(s)
            return "seen"

        return look


def run(
    script: Sequence[Entry], desk: Desk | None = None, *, stream: bool = True, budget: Budget | None = None, **agent: Any
) -> tuple[Result, ChatServer]:
    """Run an agent with the tool `look` against a server with this script, on a store in a file; check that its log replays."""
    observers, more = agent.pop("observers", ()), agent.pop("more", ())

    async def go(server: ChatServer) -> Result:
        look = (desk or Desk()).look()
        url = server.url.replace("//", f"//{agent.pop('userinfo', '')}")
        planner = ModelPlanner("openai:served", settings={"base_url": url, "stream": stream, **agent.pop("settings", {})})
        retries = ModelRetries(retries=1, base_s=0.0)
        prices = {"openai:served": ModelPrice(input_usd=1.0, output_usd=10.0)}
        async with Engine(store="ram:", planner=planner, models=Models(retries=retries), model_prices=prices) as engine:
            result = await engine.run(Agent(name="a", tools=[look, *more], **agent), "go", budget=budget, observers=observers)
            again = await engine.replay(result.run_id)
            assert again.identical, again.divergence
        await planner.close()
        return result

    with ChatServer(script) as server:
        return asyncio.run(go(server)), server


def served(*, streamed: bool, **fields: Any) -> Answer:
    """Return a good answer, "hello", with some fields of its envelope replaced."""
    said = {"role": "assistant", "content": "hello"}
    choice = {"index": 0, "finish_reason": "stop", "delta" if streamed else "message": said}
    body = {"id": "x", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice], **fields}
    text = f"data: {json.dumps(body)}\n\ndata: [DONE]\n\n" if streamed else json.dumps(body)
    return {"status": 200, "body": text, "headers": {"Content-Type": "text/event-stream" if streamed else "application/json"}}


# What is no text ----------------------------------------------------------------------------------------------------------------


@both
@pytest.mark.parametrize(("sent", "said"), [(f"abc{HIGH}{LOW}!", "abc😀!"), (f"abc{HIGH} and", "abc\ufffd and")])
def test_a_character_that_was_cut_in_two_is_whole_and_a_half_is_marked(sent: str, said: str, *, stream: bool) -> None:
    """A stream may cut a surrogate pair between two pieces: that costs no answer."""
    result, server = run([says(sent, reasoning_content=f"hm {HIGH}")], stream=stream)
    assert result.output == said and len(server.requests) == 1


@both
def test_arguments_with_half_a_character_are_invalid_and_run_nothing(*, stream: bool) -> None:
    """They are not mended: what a tool gets is what the model wrote. Two halves side by side are what it wrote."""
    desk = Desk()
    result, server = run([says("", ("c", "look", f'{{"s": "{HIGH}"}}')), DONE], desk, stream=stream)
    assert (result.status, desk.seen, len(server.requests)) == ("completed", [], 2)
    for spaces in ("", "  "):  # with two of them the stream's pieces end between the halves
        run([says("", ("c", "look", f'{{"s":{spaces} "{HIGH}{LOW}"}}')), DONE], desk, stream=stream)
    assert desk.seen == ["😀", "😀"]


@both
@pytest.mark.parametrize("args", ['{"s": "a", "s": "b"}', '{"s": "a", "\\u0073": "a"}', '{"s": "a", "deep": [{"x": 1, "x": 2}]}'])
def test_arguments_with_a_name_given_twice_run_nothing(args: str, *, stream: bool) -> None:
    """However the name is written and wherever it is: the model is told which, as it is for calls in text."""
    desk = Desk()
    result, server = run([says("", ("c", "look", args)), DONE], desk, stream=stream)
    assert (result.output, desk.seen, len(server.requests)) == ("done", [], 2)
    assert "is given twice in one object" in json.dumps(server.requests[1])
    assert read_arguments(args) == args and whole_json(args) == (False, None)


@both
def test_a_control_action_with_half_a_character_is_no_plan(*, stream: bool) -> None:
    """The plan is refused, and the model asked again."""
    result, server = run([says("", ("c", "ask_user", f'{{"question": "{HIGH}"}}')), DONE], stream=stream, actions=["ask_user"])
    assert result.output == "done" and len(server.requests) == 2


@both
def test_observers_hear_only_what_can_be_written_down(*, stream: bool) -> None:
    """A piece of a stream that ends in the middle of a character is marked, and the rest is heard as it came."""
    heard = InMemoryObserver()
    run([says(f"abc{HIGH}{LOW}!", reasoning_content=f"hmm{HIGH}")], stream=stream, observers=[heard])
    said = {kind: "".join(chunk.content for chunk in heard.chunks if chunk.kind == kind) for kind in ("text", "thinking")}
    assert said["text"].encode() and said["text"].startswith("abc") and said["text"].endswith("!")
    assert said["thinking"].encode() and said["thinking"].startswith("hmm")


@both
def test_a_typed_answer_with_half_a_character_is_given_again(*, stream: bool) -> None:
    """The answer is shown to the model as far as it can be written, with the problem."""
    bad, good = says("", ("f", "final_result", f'{{"n": "{HIGH}"}}')), says("", ("f", "final_result", {"n": 5}))
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    result, server = run([bad, good], stream=stream, output_schema=schema)
    assert result.output == {"n": 5} and len(server.requests) == 2


@pytest.mark.parametrize("fields", [{"model": f"m{HIGH}"}, {"id": f"x{HIGH}"}, {"id": 7}], ids=["model", "id", "number"])
def test_names_that_cannot_be_written_down_cost_no_answer(fields: dict[str, Any]) -> None:
    """The provider's name of the model and of the request go into the log as far as they are text."""
    result, server = run([served(streamed=True, **fields)])
    assert result.output == "hello" and len(server.requests) == 1


# What is no call ----------------------------------------------------------------------------------------------------------------


@both
def test_a_call_that_names_no_tool_is_no_answer(*, stream: bool) -> None:
    """Its arguments never become the output: the plan is refused and the model asked again."""
    result, server = run([says("", ("c", "", {"x": 1})), DONE], stream=stream)
    assert result.output == "done" and len(server.requests) == 2


@both
@pytest.mark.parametrize("depth", [DEEPEST + 50, 900, 5_000])
def test_arguments_without_bottom_are_refused_and_the_run_goes_on(depth: int, *, stream: bool) -> None:
    """They go back to the model as the text that they are: nothing recurses over them."""
    desk = Desk()
    deep = '{"s": ' + "[" * depth + "]" * depth + "}"
    result, server = run([says("", ("c", "look", deep)), DONE], desk, stream=stream)
    assert (result.output, desk.seen, len(server.requests)) == ("done", [], 2)


@in_check
@both
def test_a_text_that_looks_like_a_call_without_bottom_is_corrected(*, stream: bool) -> None:
    """Nothing of it is run, nothing falls over it, and it is not taken for an answer."""
    desk = Desk()
    text = 'look({"s": ' + "[" * 3_000 + "]" * 3_000 + "})"
    result, server = run([says(text), DONE], desk, stream=stream)
    assert (result.output, desk.seen, len(server.requests)) == ("done", [], 2)


def test_a_tool_that_wants_deep_arguments_gets_them() -> None:
    """Text that is a JSON object is read once more where the call is checked."""
    desk = Desk()
    deep = '{"s": "ok", "deep": ' + "[" * 150 + "]" * 150 + "}"
    result, _ = run([says("", ("c", "look", deep)), DONE], desk)
    assert result.output == "done" and desk.seen == ["ok"]


def test_arguments_that_came_as_data_are_measured_too() -> None:
    """Some providers send objects, not text."""
    deep: Any = 1
    for _ in range(DEEPEST + 1):
        deep = [deep]
    assert read_arguments({"x": deep}) == json.dumps({"x": deep}, separators=(",", ":"))
    assert read_arguments({"x": [1]}) == {"x": [1]}
    text = '{"x": ' + "[" * DEEPEST + "]" * DEEPEST + "}"
    assert read_arguments(text) == text


def test_of_what_no_reader_can_read_the_model_is_shown_the_beginning() -> None:
    """Text, data and lists alike: a reader with more on its stack than this one is given nothing that it could fall over."""
    for text in ('{"s": ' + "[" * 5_000 + "]" * 5_000 + "}", "[" * (MOST_NESTED + 1) + "]" * (MOST_NESTED + 1)):
        assert read_arguments(text) == f"{text[:200]}... {TOO_DEEP}"
    deep: Any = {}
    for _ in range(3_000):
        deep = [deep]
    assert read_arguments(deep) == TOO_DEEP
    assert whole_json("[" * 5_000) == (False, None)
    assert whole_json(f'["{HIGH}"]') == (False, None)
    with pytest.raises(MalformedPlan, match="no JSON"):
        control_tools.action_of("stop", '{"reason": ' + "[" * 5_000)


@in_check
@both
def test_a_typed_answer_without_bottom_is_given_again(*, stream: bool) -> None:
    """In the tool of the answer and in plain text."""
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    deep = '{"n": ' + "[" * 5_000 + "]" * 5_000 + "}"
    for bad in (says("", ("f", "final_result", deep)), says(deep)):
        result, server = run([bad, says("", ("f", "final_result", {"n": 5}))], stream=stream, output_schema=schema)
        assert result.output == {"n": 5} and len(server.requests) == 2


@pytest.mark.parametrize("args", [f'{{"s": "{HIGH}"}}', '{"s": ' + "[" * 300 + "]" * 300 + "}", '{"s": "'])
def test_unreadable_arguments_of_a_tool_with_secrets_run_nothing(args: str) -> None:
    """What cannot be read may hold the secret: the log has a placeholder, and the run goes on."""
    seen: list[str] = []

    @tool(side_effect="read", sensitive=["s"])
    def sign(s: str) -> str:
        """Sign."""
        seen.append(s)
        return "signed"

    result, server = run([says("", ("c", "sign", args)), DONE], more=[sign])
    assert (result.output, seen, len(server.requests)) == ("done", [], 2)


@both
def test_an_answer_that_only_thinks_aloud_is_empty(*, stream: bool) -> None:
    """Local models write their thinking into the text; with nothing after it there is no answer, and the model is asked again."""
    result, server = run([says("<think>hm, what now</think>\n\u200b"), DONE], stream=stream)
    assert result.output == "done" and len(server.requests) == 2
    assert "Your last answer was empty" in json.dumps(server.requests[1])


@both
def test_thinking_that_is_never_closed_is_thinking(*, stream: bool) -> None:
    """pydantic-ai drops the tag of a whole answer, and what the model said to itself became the answer; observers of a stream heard it as text."""
    heard = InMemoryObserver()
    result, server = run([says("<think>hm, I could say Paris"), DONE], stream=stream, observers=[heard])
    assert result.output == "done" and len(server.requests) == 2
    said = {kind: "".join(chunk.content for chunk in heard.chunks if chunk.kind == kind) for kind in ("text", "thinking")}
    assert said == {"text": "done", "thinking": "hm, I could say Paris"}
    result, _ = run([says("<think>a</think><think>b"), DONE], stream=stream)
    assert result.output == "done"
    result, _ = run([says("Paris.\n<think>or not")], stream=stream)
    assert result.output.strip() == "Paris." and result.steps[-1].plan.thinking.strip() == "or not"


# What is no account -------------------------------------------------------------------------------------------------------------


@both
@pytest.mark.parametrize("tokens", [2**62, 2**70])
def test_usage_beyond_all_measure_breaks_no_store(tokens: int, stream: bool, tmp_path: Path) -> None:
    """Stores hold 64 bits: a count that cannot be is cut and marked as an estimate."""
    usage = {"prompt_tokens": tokens, "completion_tokens": tokens, "total_tokens": tokens * 2}

    async def go(server: ChatServer) -> Result:
        planner = ModelPlanner("openai:served", settings={"base_url": server.url, "stream": stream})
        async with Engine(store=f"sqlite:///{tmp_path}/runs.db", planner=planner) as engine:
            result = await engine.run(Agent(name="a"), "go")
        await planner.close()
        return result

    with ChatServer([says("ok", usage=usage)]) as server:
        result = asyncio.run(go(server))
    assert result.output == "ok" and result.usage.estimated and result.usage.input_tokens == 10**12


def test_an_answer_without_choices_is_the_providers_failure() -> None:
    """It is tried again, like any other body that is no answer."""
    result, server = run([served(streamed=False, choices=[]), DONE], stream=False)
    assert result.output == "done" and len(server.requests) == 2


@both
def test_an_answer_of_which_a_field_is_no_value_is_the_providers_failure(*, stream: bool) -> None:
    """A client that checks what it reads gives up on it; the next answer counts."""
    result, server = run([served(streamed=stream, created="x" if stream else 10**18), DONE], stream=stream)
    assert result.output == "done" and len(server.requests) == 2


@pytest.mark.filterwarnings("ignore")  # pydantic and pydantic-ai warn of it, and these tests make errors of warnings
@pytest.mark.parametrize(
    "usage", [{"prompt_tokens": 1.5, "completion_tokens": 2.25}, {"prompt_tokens": -5, "completion_tokens": -7}, [1, 2]]
)
def test_usage_that_is_no_count_ends_no_run(usage: Any) -> None:
    """What streams is checked by nobody: parts of a token are whole ones, and an answer whose usage is no usage at all is asked for again."""
    result, _ = run([served(streamed=True, usage=usage), DONE])
    assert result.status == "completed" and result.usage.input_tokens in (0, 2, 100)


@pytest.mark.parametrize("args", [["hi"], 42])
def test_a_streamed_call_with_a_number_for_an_id_and_arguments_that_are_no_text(args: Any) -> None:
    """The call fails with its arguments, nothing is run, and what the model is shown of it can be sent."""
    desk = Desk()
    call = {"index": 0, "id": 5, "type": "function", "function": {"name": "look", "arguments": args}}
    choice = {"index": 0, "finish_reason": "tool_calls", "delta": {"role": "assistant", "tool_calls": [call]}}
    result, server = run([served(streamed=True, choices=[choice]), DONE], desk)
    assert (result.output, desk.seen) == ("done", [])
    assert [item.error.code for item in result.tool_calls if item.error] == ["schema_validation_failed"]
    (sent,) = [m for m in server.requests[1]["messages"] if m.get("tool_calls")]
    assert (sent["tool_calls"][0]["id"], sent["tool_calls"][0]["function"]["name"]) == ("5", "look")


# Where it is asked ------------------------------------------------------------------------------------------------------------


@both
@pytest.mark.parametrize(
    "entry",
    [
        {"status": 200, "body": "<html>log in</html>", "headers": {"Content-Type": "text/html"}},
        {"status": 200, "body": "<html>log in</html>"},
        {"status": 307, "body": "", "headers": {"Location": "http://127.0.0.1:1/v1"}},
        {"status": 404, "body": "<html>nginx</html>"},
        HANGS_UP,
    ],
    ids=["page", "page as JSON", "elsewhere", "not found", "hangs up"],
)
def test_what_is_no_answer_of_an_api_says_to_look_at_the_base_url(entry: Entry, *, stream: bool) -> None:
    """Without the name and the password in it, which stand in no message."""
    result, server = run([entry], stream=stream, userinfo="ann:hush-hush@")
    told = str(result.error)
    assert f"check base_url: {server.url} must be where" in told and "hush" not in told


def test_a_failed_connection_says_what_the_network_said() -> None:
    """Clients say no more than that it failed."""
    from openai import APIConnectionError

    try:
        try:
            raise ConnectionRefusedError("refused, said the network")
        except OSError as error:
            raise APIConnectionError(request=None) from error  # type: ignore[arg-type]
    except APIConnectionError as error:
        told = str(failure_of(error, model="openai:m"))
    assert "Connection error (ConnectionRefusedError: refused, said the network)" in told


@pytest.mark.parametrize("url", ["http://exa mple/v1", "http://127.0.0.1\n:80/v1", "http://\u202ehost/v1"])
def test_a_base_url_with_what_no_url_has_is_refused(url: str) -> None:
    """As a mistake of the caller, not as something that should not happen."""
    with pytest.raises(ConfigError, match="is not a URL"):
        make_model(ModelRef(name="m", base_url=url))


@pytest.mark.parametrize("url", ["http://ann:hush@127.0.0.1:1/v1", "https://hush@host/v1?x=@"])
def test_an_agent_whose_base_url_holds_a_password_is_refused_and_it_is_not_repeated(url: str) -> None:
    """It would stand on the log."""
    with pytest.raises(ConfigError, match="api_key_env") as refused:
        Agent(name="a", model="m", model_settings={"base_url": url})
    assert "hush" not in str(refused.value)
    assert Agent(name="a", model="m", model_settings={"base_url": "http://host/v1/@x"}).model_settings["base_url"] == "http://host/v1/@x"


@pytest.mark.parametrize("key", ["good\n", " good", "go\r\nX-Evil: 1", "schl\u00fcssel", " "])
@pytest.mark.parametrize("ref", [ModelRef(name="m", base_url="http://127.0.0.1:1/v1", api_key_env="KEY_OF_MINE"), ModelRef(name="groq:m")])
def test_a_key_that_no_request_can_carry_is_refused_and_not_repeated(ref: ModelRef, key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client would say that the connection failed."""
    variable = ref.api_key_env or "GROQ_API_KEY"
    monkeypatch.setenv(variable, key)
    with pytest.raises(ConfigError, match=variable) as caught:
        make_model(ref)
    assert not key.strip() or key.strip() not in str(caught.value)


def test_what_a_vendors_client_refuses_is_a_mistake_of_the_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a URL of one's own in the environment and an empty key the client refuses to be made."""
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:1/v1")
    monkeypatch.setenv("OPENAI_API_KEY", "")
    with pytest.raises(ConfigError, match=r"cannot be used: .*OPENAI_API_KEY"):
        make_model(ModelRef(name="openai:m"))


# What is asked for under a bound ------------------------------------------------------------------------------------------------


def test_under_a_bound_a_model_is_asked_for_no_more_than_it_can_give() -> None:
    """A large budget is no reason to ask for an answer that providers refuse to give: without a limit of its own it asks for a usual one."""
    _, server = run([DONE], budget=Budget(max_total_tokens=1_000_000, max_cost_usd=100.0))
    assert server.requests[0]["max_completion_tokens"] == 8192
    _, server = run([DONE], budget=Budget(max_total_tokens=1_000_000), settings={"max_tokens": 20_000})
    assert server.requests[0]["max_completion_tokens"] == 20_000
    _, server = run([says("half", finish="length"), DONE], budget=Budget(max_total_tokens=1_000_000))
    assert [asked["max_completion_tokens"] for asked in server.requests] == [8192, 4 * 8192]
    _, server = run([DONE])
    assert "max_completion_tokens" not in server.requests[0]


@pytest.mark.parametrize(
    ("settings", "told"),
    [({}, "model_settings.api_key_env"), ({"api_key_env": "KEY_OF_MY_SERVER"}, "check that KEY_OF_MY_SERVER holds a valid key")],
)
def test_a_key_that_a_server_of_ones_own_refused_is_not_that_of_a_provider(
    settings: dict[str, Any], told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a base URL the provider's own key is never sent, so its variable is not what to look at."""
    monkeypatch.setenv("KEY_OF_MY_SERVER", "x")
    result, _ = run([fails(401)], settings=settings)
    assert result.status == "failed" and told in str(result.error) and "OPENAI_API_KEY" not in str(result.error)


def test_a_refused_key_is_told_without_what_stands_before_the_host() -> None:
    """A name and password in the URL are nobody's business; a failure in a group of one is that failure."""
    from pydantic_ai.exceptions import ModelHTTPError

    result, _ = run([fails(401)], userinfo="ann:hush-hush@")
    assert result.status == "failed" and "127.0.0.1" in str(result.error) and "hush" not in str(result.error) + repr(result.state)
    refused = ExceptionGroup("all failed", [ModelHTTPError(401, "m")])
    assert "look in the safe" in str(failure_of(refused, model="openai:m", key="look in the safe"))


@pytest.mark.parametrize(
    ("status", "kind"), [(401, "auth"), (402, "quota"), (403, "auth"), (404, "unknown_model"), (429, "rate_limited"), (400, "bad_request")]
)
def test_a_model_of_somebody_elses_that_tells_a_status_alone_is_understood(status: int, kind: str) -> None:
    """The library's own models tell a class with it; others need not."""
    from pydantic_ai.exceptions import ModelHTTPError

    assert failure_of(ModelHTTPError(status, "m"), model="openai:m").kind == kind
