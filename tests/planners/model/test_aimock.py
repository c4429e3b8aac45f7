"""Real wire traffic of OpenAI's chat and responses, Anthropic and Gemini, against aimock: an agent's run comes out the same over each."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from amounts import in_check, thinned
from cli.desk import Done, ended
from detent import Agent, Engine, tool
from detent.config.groups import Models
from detent.core import events as e
from detent.metering.provider_limits import ModelRetries
from detent.observers.in_memory import InMemoryObserver
from forked import asking, fork
from planners.model.aimock import MODELS, Mock, aimock, calls, when
from planners.model.model_child import put

CHILD = Path(__file__).with_name("model_child.py")
BOTH = calls(("look", {"x": 1}), ("look", {"x": 2}), content="I will look twice.")
SAID = {"content": "They are 2 and 4, which is what was asked for."}
LIMITED = {"error": {"message": "slow down", "type": "rate_limit_error"}, "status": 429, "retryAfter": 0}
OVERLOADED = {"error": {"message": "try again", "type": "server_error"}, "status": 503}
PUT = calls(("put", {"x": 7}))


def conversation(goal: str, first: dict[str, Any], *begin: dict[str, Any], **more: Any) -> list[dict[str, Any]]:
    """Return fixtures of a run: `begin` are the answers that fail, `first` has calls, then comes the answer.

    How often a fixture was used is counted over all requests, so where something fails each protocol has fixtures of its own.
    """
    fixtures: list[dict[str, Any]] = []
    for protocol in MODELS if begin else [""]:
        asked = f"{goal} over {protocol}" if protocol else goal
        fixtures += [when(asked, response, nth=n, **more) for n, response in enumerate(begin)]
        fixtures += [when(asked, first), when(asked, SAID, after_tools=True)]
    return fixtures


FIXTURES = [
    *conversation("plain goal", BOTH),
    *conversation("limited goal", BOTH, LIMITED, OVERLOADED),
    *conversation("garbled goal", BOTH, SAID, chaos={"malformedRate": 1}),
    *conversation("broken goal", BOTH, BOTH, truncateAfterChunks=3, chunkSize=4),
    *conversation("late goal", BOTH, BOTH, chaos={"latencyMs": 30000}),
    when("unreadable goal", calls(("look", '{"x": '))),
    when("unreadable goal", {"content": "I could not call it."}, after_tools=True),
    when("refused key", {"error": {"message": "bad key", "type": "authentication_error"}, "status": 401}),
    when("stream goal", PUT),
    when("stream goal", SAID, after_tools=True, streamingProfile={"ttft": 1, "tps": 20}, chunkSize=5),
    *conversation("plan goal", PUT),
]


@pytest.fixture(scope="module")
def mock(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mock]:
    """The server with all fixtures; a goal's answers are counted apart from those of others."""
    with aimock(FIXTURES, tmp_path_factory.mktemp("aimock")) as running:
        yield running


@pytest.fixture(autouse=True)
def _addresses(mock: Mock, monkeypatch: pytest.MonkeyPatch) -> None:
    """The vendors' clients find the server."""
    for name, value in mock.environment.items():
        monkeypatch.setenv(name, value)


pytestmark = [
    thinned,
    pytest.mark.filterwarnings("ignore:FUNCTION_CALL is not a valid FinishReason"),  # the server's word, which Gemini has not
]
protocols = pytest.mark.parametrize("protocol", list(MODELS))
costly = pytest.mark.parametrize("protocol", [pytest.param(name, marks=in_check if n else ()) for n, name in enumerate(MODELS)])
"""As `protocols`, where each starts a process: one by default."""


@tool(side_effect="read")
def look(x: int) -> int:
    """Look at x."""
    return x * 2


class Ran(msgspec.Struct):
    """How a run came out: its result, its events, what observers heard, and how many requests it made."""

    result: Any
    events: list[Any]
    heard: InMemoryObserver
    requests: int

    def of(self, kind: type) -> list[Any]:
        """Return the events of one kind."""
        return [event for event in self.events if isinstance(event, kind)]


def run(mock: Mock, protocol: str, goal: str, **settings: Any) -> Ran:
    """Run an agent whose only tool is `look`."""
    asked = f"{goal} over {protocol}"
    heard = InMemoryObserver()

    async def go() -> tuple[Any, list[Any]]:
        agent = Agent(name="looker", model=MODELS[protocol], model_settings=settings, tools=[look])
        async with Engine(store="ram:", models=Models(retries=ModelRetries(base_s=0.001))) as engine:
            result = await engine.run(agent, asked, observers=[heard])
            return result, [record.event for record in await engine.records(result.run_id)]

    result, events = asyncio.run(go())
    return Ran(result, events, heard, len(mock.requests(asked)))


@costly
def test_calls_at_once_and_an_answer_come_over_the_wire_as_they_were_meant(protocol: str, mock: Mock) -> None:
    """Two calls of one answer are one batch, text is streamed in pieces, and a turn is one request."""
    ran = run(mock, protocol, "plain goal")
    assert (ran.result.status, ran.result.output) == ("completed", SAID["content"]), ran.result.error
    assert [(call.tool, call.args, call.content) for call in ran.result.tool_calls] == [("look", {"x": 1}, 2), ("look", {"x": 2}, 4)]
    assert [len(plan.actions) for plan in ran.of(e.Planned)] == [2, 1]
    assert ran.of(e.Planned)[0].text == "I will look twice."
    said = [chunk.content for chunk in ran.heard.chunks if chunk.kind == "text"]
    assert "".join(said) == "I will look twice." + SAID["content"]
    assert len(said) > 2
    assert ran.requests == ran.result.usage.model_calls == 2


@in_check
@protocols
def test_an_answer_taken_whole_gives_the_same_run(protocol: str, mock: Mock) -> None:
    """Without streaming the plans are equal; the text is heard at once."""
    whole = run(mock, protocol, "plain goal", stream=False)
    assert (whole.result.status, whole.result.output) == ("completed", SAID["content"]), whole.result.error
    assert [len(plan.actions) for plan in whole.of(e.Planned)] == [2, 1]
    assert SAID["content"] in [chunk.content for chunk in whole.heard.chunks if chunk.kind == "text"]


@protocols
def test_limits_and_overload_are_tried_again_and_each_attempt_is_on_record(protocol: str, mock: Mock) -> None:
    """429, then 503, then the answer: four requests, of which two failed in their classes."""
    ran = run(mock, protocol, "limited goal")
    assert ran.result.status == "completed", ran.result.error
    assert [failed.kind for failed in ran.of(e.ModelCallFailed)] == ["rate_limited", "server"]
    assert (ran.requests, ran.result.usage.model_calls) == (4, 4)


@protocols
def test_a_body_that_is_no_json_is_asked_for_again(protocol: str, mock: Mock) -> None:
    """Whatever broke it, the answer after it counts."""
    ran = run(mock, protocol, "garbled goal", stream=False)
    assert ran.result.output == SAID["content"], ran.result.error
    assert len(ran.of(e.ModelCallFailed)) == 1


@protocols
def test_a_stream_that_breaks_off_is_asked_for_again_and_none_of_it_runs(protocol: str, mock: Mock) -> None:
    """Half an answer is no plan; the calls run once."""
    ran = run(mock, protocol, "broken goal")
    assert ran.result.output == SAID["content"], ran.result.error
    assert [failed.kind for failed in ran.of(e.ModelCallFailed)] == ["connection"]
    assert len(ran.result.tool_calls) == 2


@protocols
def test_a_server_that_is_silent_for_too_long_is_given_up(protocol: str, mock: Mock) -> None:
    """It would answer after half a minute. The time is that of the whole request: nothing is tried again after it."""
    ran = run(mock, protocol, "late goal", timeout_s=0.7)
    assert (ran.result.reason, ran.result.error.count("no whole answer within 0.7 s")) == ("planner_error", 1)
    assert [failed.kind for failed in ran.of(e.ModelCallFailed)] == ["timeout"]


@in_check
@pytest.mark.parametrize("protocol", ["openai-chat", "openai-responses"])
def test_arguments_that_are_no_json_run_nothing_and_are_told_to_the_model(protocol: str, mock: Mock) -> None:
    """The call becomes a failed observation; the model answers that."""
    ran = run(mock, protocol, "unreadable goal")
    (call,) = ran.result.tool_calls
    assert not call.ok and not call.executed
    assert ran.result.output == "I could not call it.", ran.result.error


@protocols
def test_a_refused_key_ends_the_run_and_names_its_variable(protocol: str, mock: Mock) -> None:
    """One request, a failed run that can be opened again, and no key in the message."""
    ran = run(mock, protocol, "refused key")
    assert (ran.result.status, ran.requests) == ("failed", 1)
    assert "_API_KEY" in ran.result.error
    assert "no-key" not in ran.result.error


# Killed -------------------------------------------------------------------------------------------------------------------------


def killed(home: Path, where: str, goal: str, protocol: str) -> str:
    """Start a worker that is killed at `where`; return the URL of its store."""
    store = f"sqlite:///{home}/runs.db"
    paths = os.pathsep.join([str(CHILD.parents[3] / "src"), str(CHILD.parents[2])])
    words = [str(CHILD), store, MODELS[protocol], where, goal]
    worker = fork(words, cwd=home, env={**os.environ, "PYTHONPATH": paths}, imports=asking(protocol.partition("-")[0]))
    assert worker.stdout is not None
    try:
        told = worker.stdout.readline()
    finally:
        worker.kill()
        worker.stdout.close()
    assert worker.wait(60) == -signal.SIGKILL
    assert told == ("streaming\n" if where == "stream" else "")
    return store


@pytest.mark.parametrize("where", ["stream", pytest.param("plan", marks=in_check)])
@costly
def test_after_a_kill_no_token_of_a_recorded_plan_is_paid_twice(
    where: str, protocol: str, mock: Mock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed while its second answer comes in, or between its plan and the tool: the server is asked once for each recorded plan.

    Only the answer that never became a plan is asked for again, its first request is charged at the reservation; the tool ran once.
    """
    goal = f"{where} goal over {protocol}"
    store = killed(tmp_path, where, goal, protocol)
    assert len(mock.requests(goal)) == (2 if where == "stream" else 1)

    async def go_on() -> Any:
        async with Engine(store=store, tools=[put]) as engine:
            result = await engine.resume("r")
            return result, await engine.replay("r")

    monkeypatch.chdir(tmp_path)
    result, replay = asyncio.run(go_on())
    assert (result.status, result.output) == ("completed", SAID["content"]), result.error
    assert (tmp_path / "calls.txt").read_text() == "7\n"
    assert len(mock.requests(goal)) == (3 if where == "stream" else 2)
    assert result.usage.model_calls == len(mock.requests(goal))
    assert result.usage.estimated or where == "plan"
    assert replay.identical, replay.divergence


# The command line ---------------------------------------------------------------------------------------------------------------


@costly
def test_the_command_line_asks_the_model_that_it_is_told(protocol: str, mock: Mock, tmp_path: Path) -> None:
    """No file is needed: `--model` and `--tools` are an agent; another process verifies what it left."""
    (tmp_path / "tools.py").write_text(
        'from detent import tool\n\n@tool(side_effect="read")\ndef look(x: int) -> int:\n    """Look."""\n    return x * 2\n'
    )

    def detent(*words: str) -> Done:
        env = {**os.environ, "DETENT_TRUST": str(tmp_path)}
        return ended(
            fork(["-m", "detent", *words], cwd=tmp_path, env=env, stderr=subprocess.PIPE, imports=asking(protocol.partition("-")[0]))
        )

    done = detent("run", "--model", MODELS[protocol], "--tools", "./tools.py:look", "--json", "plain goal from the shell")
    assert done.code == 0, done.err
    said = done.json
    assert (said["output"], said["usage"]["tool_calls"], said["usage"]["model_calls"]) == (SAID["content"], 2, 2)
    again = detent("replay", "last")
    assert again.out.startswith("identical"), again.out + again.err
