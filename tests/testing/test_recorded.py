"""A recorded run as a test: the same plans for today's agent, strictly or in order, and the first thing that is different."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from cli.desk import Desk
from detent import Agent, AskUser, Engine, FinalAnswer, ToolCall, tool
from detent.config.state_directory import store_url
from detent.core.errors import ConfigError, MalformedPlan
from detent.ports import Plan, View
from detent.testing import RecordedPlanner, ScriptedPlanner
from detent.testing.recorded import Script, difference, record_script

PEOPLE = {"Paris": 2_100_000, "Lyon": 520_000}


@tool(side_effect="read")
def population(city: str) -> int:
    """How many people live in `city`."""
    return PEOPLE[city]


@tool(side_effect="write")
def publish(text: str) -> str:
    """Publish a text."""
    return f"published {text}"


AGENT = Agent(name="census", instructions="Count.", tools=[population, publish])


class Recorder:
    """Plans by turn and attempt, as a model would after a resume."""

    async def plan(self, view: View) -> Plan:
        match (view.iteration, view.attempt):
            case (1, _):
                return Plan(actions=tuple(ToolCall(tool="population", args={"city": city}) for city in PEOPLE))
            case (2, 1):
                raise MalformedPlan("it is only half", raw="{half")
            case (2, _):
                return Plan(actions=(ToolCall(tool="publish", args={"text": "2.6 million"}),), text="I publish it.", thinking="Added up.")
            case (3, _):
                return Plan(actions=(AskUser(question="Is that all?"),))
            case _:
                return Plan(actions=(FinalAnswer(content="done"),))


def in_engine(planner: Any, work: Callable[[Engine], Awaitable[Any]], **options: Any) -> Any:
    """Do `work` with an engine of this planner."""

    async def go() -> Any:
        async with Engine(store="ram:", planner=planner, **options) as engine:
            return await work(engine)

    return asyncio.run(go())


async def whole(engine: Engine, agent: Agent = AGENT, goal: str = "Count them") -> Any:
    """Run the agent to its end, with a reply to its question."""
    result = await engine.run(agent, goal, variables={"cities": list(PEOPLE)})
    return await engine.reply(result.run_id, "yes") if result.status == "waiting_for_user" else result


def recorded(*, by_sequence: bool = False) -> Script:
    """Return the script of a run with a batch, a rejected plan, a write, a question and an answer."""

    async def record(engine: Engine) -> Script:
        result = await whole(engine)
        assert result.status == "completed"
        return await record_script(engine, result.run_id, by_sequence=by_sequence)

    return in_engine(Recorder(), record)


@pytest.fixture
def script(tmp_path: Path) -> Path:
    """The file of a strict script."""
    path = tmp_path / "run.json"
    path.write_bytes(recorded().to_json())
    return path


@pytest.mark.parametrize("by_sequence", [False, True])
def test_a_recorded_run_comes_out_again_with_the_real_tools(by_sequence: bool, tmp_path: Path) -> None:
    """Same calls, same answer, the rejected plan rejected again; also after the wait, where an engine takes the run up anew."""
    (tmp_path / "run.json").write_bytes(recorded(by_sequence=by_sequence).to_json())
    planner = RecordedPlanner.from_file(tmp_path / "run.json")
    assert planner.by_sequence == by_sequence
    result = in_engine(planner, whole)
    planner.done()
    assert (result.status, result.output) == ("completed", "done"), result.error
    assert [(call.tool, call.content) for call in result.tool_calls] == [
        ("population", 2_100_000),
        ("population", 520_000),
        ("publish", "published 2.6 million"),
    ]
    assert planner.script.goal == "Count them"
    assert len(planner.script.entries) == 5


def changed_tool() -> Any:
    """Return `population` with another description."""

    @tool(side_effect="read")
    def population(city: str) -> int:
        """How many souls live in `city`."""
        return PEOPLE[city]

    return population


def wrong_result() -> Any:
    """Return `population` with another figure."""

    @tool(side_effect="read")
    def population(city: str) -> int:
        """How many people live in `city`."""
        return PEOPLE[city] + 1

    return population


@pytest.mark.parametrize(
    ("agent", "goal", "said"),
    [
        (AGENT, "Count all", 'turn 1 .*goal: recorded "Count them", now "Count all"'),
        (msgspec.structs.replace(AGENT, instructions="Count well."), "Count them", 'turn 1 .*instructions: recorded "Count."'),
        (msgspec.structs.replace(AGENT, tools=[population]), "Count them", r"turn 1 .*tools\[1\]: recorded .*, now nothing"),
        (msgspec.structs.replace(AGENT, tools=[changed_tool(), publish]), "Count them", r"turn 1 .*tools\[0\].description: .*souls"),
        (
            msgspec.structs.replace(AGENT, tools=[wrong_result(), publish]),
            "Count them",
            r"turn 2 .*transcript\[2\].content: recorded 2100000, now 2100001",
        ),
    ],
)
def test_a_strict_script_names_the_first_difference(agent: Agent, goal: str, said: str, script: Path) -> None:
    """The run fails with it, and so does `done`; by sequence nobody looks."""
    planner = RecordedPlanner.from_file(script)
    result = in_engine(planner, lambda engine: whole(engine, agent, goal))
    assert (result.status, result.reason) == ("failed", "planner_error")
    with pytest.raises(AssertionError, match=said):
        planner.done()
    easy = RecordedPlanner.from_file(script, by_sequence=True)
    if agent.tool_names() == AGENT.tool_names():
        assert in_engine(easy, lambda engine: whole(engine, agent, goal)).status == "completed"
        easy.done()


def test_what_a_script_lacks_and_what_is_left_over_is_said(script: Path) -> None:
    """A run that goes on for longer than the recording fails; one that ends sooner is found by `done`."""
    planner = RecordedPlanner.from_file(script)
    with pytest.raises(AssertionError, match="5 of 5 recorded plans were not used, the first is that of turn 1 of pass 'main'"):
        planner.done()
    short = msgspec.structs.replace(recorded(by_sequence=True), entries=recorded(by_sequence=True).entries[:1])
    result = in_engine(RecordedPlanner(short), whole)
    assert (result.status, result.reason) == ("failed", "planner_error")
    assert "has no plan for turn 2 of pass 'main', attempt 1: 1 plans of that pass were recorded" in result.error


def test_a_script_without_what_was_shown_is_not_followed_strictly() -> None:
    """It could only seem to compare."""
    with pytest.raises(ConfigError, match="made with --by-sequence"):
        RecordedPlanner(recorded(by_sequence=True), by_sequence=False)


@pytest.mark.parametrize("text", ["", "{", '{"format": "other", "run_id": "r", "agent": "a", "goal": "g", "entries": []}', "[]"])
def test_a_file_that_is_no_script_is_refused(text: str, tmp_path: Path) -> None:
    """With the command that makes one."""
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(ConfigError, match="detent export --script"):
        RecordedPlanner.from_file(tmp_path / "x.json")
    with pytest.raises(ConfigError, match="cannot read the script"):
        RecordedPlanner.from_file(tmp_path / "none.json")


def test_secrets_differ_from_run_to_run_and_are_not_compared() -> None:
    """A placeholder is made with a key of the run."""
    hidden = msgspec.structs.replace(AGENT, redact=[r"\d{4} people"])

    async def record(engine: Engine) -> Script:
        result = await whole(engine, hidden, "Count 2000 people")
        return await record_script(engine, result.run_id)

    made = in_engine(Recorder(), record)
    assert b"2000 people" not in made.to_json()
    planner = RecordedPlanner(made)
    assert in_engine(planner, lambda engine: whole(engine, hidden, "Count 2000 people")).status == "completed"
    planner.done()


@pytest.mark.parametrize(
    ("expected", "actual", "said"),
    [
        ({"a": [1, 2]}, {"a": [1, 2]}, ""),
        ({"a": [1, 2]}, {"a": [1, 3]}, "a[1]: recorded 2, now 3"),
        ({"a": [1]}, {"a": [1, 3]}, "a[1]: recorded nothing, now 3"),
        ({"a": {"b": 1}}, {"a": {}}, "a.b: recorded 1, now nothing"),
        ({}, {"c": None}, "c: recorded nothing, now null"),
        ({"a": 1}, {"a": True}, "a: recorded 1, now true"),
    ],
)
def test_a_difference_is_named_by_its_place(expected: Any, actual: Any, said: str) -> None:
    """The first one, from the outside in."""
    assert difference(expected, actual) == said


def test_the_command_line_writes_scripts(tmp_path: Path) -> None:
    """To stdout or a file; what it wrote is followed by a program that has the agent's tools."""
    desk = Desk(tmp_path)
    assert desk.detent("run", "write a note").code == 0
    printed = desk.detent("export", "--script", "last")
    wrote = desk.detent("export", "--script", "last", "--output", "note.json", "--by-sequence")
    assert (printed.code, wrote.code, wrote.err) == (0, 0, "wrote 2 plans to note.json\n"), printed.err
    strict = msgspec.json.decode(printed.out, type=Script)
    assert [entry.actions[0].__class__.__name__ for entry in strict.entries] == ["ToolCall", "FinalAnswer"]
    assert [tool["name"] for tool in strict.entries[0].shown["tools"]][:1] == ["note"]
    assert RecordedPlanner.from_file(tmp_path / "note.json").by_sequence
    Engine(store=store_url(tmp_path), planner=ScriptedPlanner([FinalAnswer(content="hi")])).run_sync(
        Agent(name="tester"), "hi", run_id="one"
    )
    assert desk.detent("export", "--script", "one", "--output", "one.json", "--by-sequence").err == "wrote 1 plan to one.json\n"
    assert desk.detent("export", "last", "--by-sequence").code == 2
