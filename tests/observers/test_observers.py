"""What every observer keeps to: told in order, after the commit, in copies; and none of them can fail a run."""

from __future__ import annotations

import asyncio
import io
import json
import logging
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from detent import Agent, Engine, FinalAnswer, Plan, ToolCall, ToolContext, tool
from detent.core import events as e
from detent.core.agent import AgentSpec
from detent.core.errors import ConfigError
from detent.core.fold import evolve
from detent.core.records import Record
from detent.core.state import RunState
from detent.observers import CompositeObserver, ConsoleObserver, InMemoryObserver, NoopObserver
from detent.ports import Chunk
from detent.testing import ScriptedPlanner

AGENT = Agent(name="adder", tools=["add"])


@tool(side_effect="read")
async def add(a: int, b: int, context: ToolContext) -> dict[str, Any]:
    """Add two numbers.

    Args:
        a: the first
        b: the second
    """
    context.progress({"done": [a]})
    await asyncio.sleep(0)
    return {"sum": a + b}


SCRIPT = (Plan(actions=(ToolCall(tool="add", args={"a": 1, "b": 2}),), text="first add"), FinalAnswer(content="three"))


def run(work: Callable[[Engine], Coroutine[Any, Any, Any]], **options: Any) -> Any:
    """Do `work` with an engine in memory that follows the script."""

    async def main() -> Any:
        async with Engine(planner=ScriptedPlanner(SCRIPT), tools=[add], **options) as engine:
            return await work(engine)

    return asyncio.run(main())


class Failing:
    """Raises at everything that it is told, and counts."""

    def __init__(self, error: type[BaseException] = RuntimeError) -> None:
        self.error, self.told = error, 0

    def on_record(self, record: Record, state: RunState) -> None:
        self.told += 1
        raise self.error("broken observer")

    def on_chunk(self, chunk: Chunk) -> None:
        self.told += 1
        raise self.error("broken observer")


class FailingLater(Failing):
    """Raises only when what it returned is awaited."""

    async def on_record(self, record: Record, state: RunState) -> None:  # type: ignore[override]
        self.told += 1
        await asyncio.sleep(0)
        raise self.error("broken observer")


def test_records_come_in_order_after_their_commit_with_the_state_after_them() -> None:
    """What is told is in the store already, and each state is the fold of the records so far."""

    class Checking(NoopObserver):
        def __init__(self) -> None:
            self.state: RunState | None = None
            self.stored: list[bool] = []

        async def on_record(self, record: Record, state: RunState) -> None:  # type: ignore[override]
            self.state = evolve(self.state or RunState(run_id=record.envelope.run), record)
            assert self.state == state
            self.stored.append(len(await checking_engine[0].store.read(record.envelope.run)) >= record.envelope.seq)

    checking, checking_engine = Checking(), []

    async def work(engine: Engine) -> None:
        checking_engine.append(engine)
        result = await engine.run(AGENT, "add", observers=[checking])
        assert checking.state == result.state

    run(work)
    assert len(checking.stored) > 5
    assert all(checking.stored)


def test_in_memory_gives_copies() -> None:
    """Changing what it gave back changes neither what it remembers nor the run."""
    seen = InMemoryObserver()
    result = run(lambda engine: engine.run(AGENT, "add", variables={"x": [1]}, observers=[seen]))
    assert [r.envelope.seq for r in seen.records] == list(range(1, result.state.seq + 1))
    (started,), (begun, chunk) = seen.of(e.RunStarted), seen.chunks
    started.variables["x"].append(2)
    chunk.content["done"].append(2)
    assert seen.of(e.RunStarted)[0].variables == {"x": [1]} == result.state.variables
    assert seen.chunks[1].content == {"done": [1]}
    assert (begun.kind, begun.content["tool"], begun.call_id) == ("tool", result.tool_calls[0].tool, "main.1.0")
    assert (chunk.run_id, chunk.agent, chunk.scope, chunk.iteration, chunk.call_id) == (result.run_id, "adder", "main", 1, "main.1.0")
    with pytest.raises(AttributeError):
        chunk.content = 1  # type: ignore[misc]
    seen.clear()
    assert (seen.records, seen.chunks, seen.events) == ((), (), ())


class Kept(InMemoryObserver):
    """One of a program, made from ours."""


@pytest.mark.parametrize("way", ["a class of its own", "a method of its own", "ours", "ours beside another"])
def test_only_what_is_ours_as_it_is_gets_the_originals(way: str) -> None:
    """A program that makes its own of one of ours can spoil nothing with it; ours itself spares the copies."""

    def spoil(record: Record, state: RunState) -> None:
        if isinstance(record.event, e.Planned) and isinstance(record.event.actions[0], ToolCall):
            record.event.actions[0].args["a"] = 40

    class Spoils:
        def on_record(self, record: Record, state: RunState) -> None:
            spoil(record, state)

        def on_chunk(self, chunk: Chunk) -> None: ...

    class OfOurs(Kept):
        def on_record(self, record: Record, state: RunState) -> None:
            spoil(record, state)

    replaced = InMemoryObserver()
    replaced.on_record = spoil  # type: ignore[method-assign]
    observers = {
        "a class of its own": [OfOurs()],
        "a method of its own": [replaced],
        "ours": [InMemoryObserver()],
        "ours beside another": [InMemoryObserver(), Spoils()],
    }[way]

    async def work(engine: Engine) -> Any:
        result = await engine.run(AGENT, "go")
        return [call.args for call in result.tool_calls], [bytes(call.result) for call in result.tool_calls]

    assert run(work, observers=observers) == ([{"a": 1, "b": 2}], [b'{"sum":3}'])
    assert CompositeObserver(*observers).only_reads == (way == "ours")


def test_in_memory_can_be_bounded() -> None:
    """With a limit only the latest are kept."""
    seen = InMemoryObserver(limit=2)
    run(lambda engine: engine.run(AGENT, "add", observers=[seen]))
    assert [type(event) for event in seen.events] == [e.PassFinished, e.RunFinished]


@pytest.mark.parametrize("broken", [Failing(), FailingLater(), Failing(asyncio.CancelledError), FailingLater(asyncio.CancelledError)])
def test_a_failing_observer_is_reported_once_and_fails_nothing(broken: Failing, caplog: pytest.LogCaptureFixture) -> None:
    """Neither on records nor on chunks, plain or asynchronous; who comes after it is told everything. Over two runs, one report."""
    after, alone = InMemoryObserver(), InMemoryObserver()
    run(lambda engine: engine.run(AGENT, "add", observers=[alone]))

    async def both(engine: Engine) -> list[str]:
        return [(await engine.run(AGENT, "add", run_id=name)).status for name in ("one", "two")]

    with caplog.at_level(logging.ERROR, logger="detent"):
        assert run(both, observers=[broken, after]) == ["completed", "completed"]
    assert broken.told == 2 * (len(alone.records) + len(alone.chunks))
    assert [type(event) for event in after.events] == [type(event) for event in alone.events] * 2
    (report,) = caplog.records
    assert type(broken).__name__ in report.getMessage()
    assert report.exc_info is not None


def test_a_failing_observer_of_one_run_is_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    """The same for observers that are given to `run`."""
    with caplog.at_level(logging.ERROR, logger="detent"):
        assert run(lambda engine: engine.run(AGENT, "add", observers=[Failing()])).status == "completed"
    assert len(caplog.records) == 1


def test_a_run_that_goes_on_after_an_approval_reports_no_second_time(caplog: pytest.LogCaptureFixture) -> None:
    """For the observer it is one run, whatever the engine does in between."""

    @tool(side_effect="destructive")
    async def wipe() -> str:
        """Remove something."""
        return "gone"

    async def main() -> str:
        planner = ScriptedPlanner([ToolCall(tool="wipe"), FinalAnswer(content="wiped")])
        async with Engine(planner=planner, tools=[wipe], approver=lambda request: True) as engine:
            planner.begin_run = lambda run_id: None  # type: ignore[method-assign]
            return (await engine.run(Agent(name="w", tools=["wipe"]), "wipe", observers=[Failing()])).status

    with caplog.at_level(logging.ERROR, logger="detent"):
        assert asyncio.run(main()) == "completed"
    assert len(caplog.records) == 1


def test_cancelling_the_run_while_an_observer_works_still_cancels() -> None:
    """A cancellation that comes from outside is nobody's failure."""
    entered = asyncio.Event()

    class Slow(NoopObserver):
        async def on_record(self, record: Record, state: RunState) -> None:  # type: ignore[override]
            entered.set()
            await asyncio.Event().wait()

    async def work(engine: Engine) -> None:
        task = asyncio.create_task(engine.run(AGENT, "add", run_id="r", observers=[Slow()]))
        await entered.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (await engine.load("r")).status == "running"

    run(work)


def test_two_runs_do_not_see_each_other() -> None:
    """Observers given to `run` are told of that run only; those of the engine are told of all (row K102)."""
    every, mine = InMemoryObserver(), [InMemoryObserver(), InMemoryObserver()]

    async def work(engine: Engine) -> None:
        await asyncio.gather(*(engine.run(AGENT, f"add {i}", run_id=f"run-{i}", observers=[mine[i]]) for i in range(2)))

    run(work, observers=[every])
    for i in range(2):
        assert {r.envelope.run for r in mine[i].records} == {c.run_id for c in mine[i].chunks} == {f"run-{i}"}
    assert len(every.records) == sum(len(m.records) for m in mine)


def test_a_composite_leaves_none_out_and_refuses_what_is_no_observer() -> None:
    """Nil-safe fan-out; something else than an observer is named at once, before anything runs."""
    seen = InMemoryObserver()
    both = CompositeObserver(None, seen, NoopObserver())
    assert len(both.observers) == 2
    run(lambda engine: engine.run(AGENT, "add", observers=[both]))
    assert seen.records
    with pytest.raises(ConfigError, match="no on_chunk"):
        Engine(observers=[type("Half", (), {"on_record": print})()])

    async def nothing_recorded(engine: Engine) -> None:
        with pytest.raises(ConfigError, match="an observer is"):
            await engine.run(AGENT, "add", observers=["console"])  # type: ignore[list-item]
        assert await engine.list_runs() == []

    run(nothing_recorded)


def lines_of(**options: Any) -> list[str]:
    out = io.StringIO()
    run(
        lambda engine: engine.run(
            AGENT, "add 1 and 2\x1b[31m", run_id="20250101-000000-add-abc123", observers=[ConsoleObserver(out, **options)]
        )
    )
    return out.getvalue().splitlines()


def test_the_console_shows_what_matters_first() -> None:
    """At `info` begin and end; at `verbose` every record and chunk; control characters never reach the terminal."""
    brief, long = lines_of(), lines_of(level="verbose")
    assert [line.split(" ", 3)[1:3] for line in brief] == [["info", ""]] * 2
    assert "run started: adder works on" in brief[0]
    assert "run completed (final_answer): three" in brief[1]
    assert lines_of(level="warning") == []
    assert len(long) > len(brief)
    assert max(map(len, lines_of(level="verbose", width=60))) == 60
    text = "\n".join(long)
    assert "\x1b" not in text
    for said in (
        'planned add({"a":1,"b":2}): first add',
        'call main.1.0 gave {"sum":3}',
        "progress main.1.0",
    ):
        assert said in text
    assert all("abc123" in line for line in long)


def test_the_console_sends_no_control_characters() -> None:
    """What a model or a tool says cannot clear the screen, recolour it or begin a line of its own."""
    out = io.StringIO()
    text = "one\x1b[2J\r\ntwo\x07\u202e"
    ConsoleObserver(out, level="verbose").on_chunk(
        Chunk(kind="text", run_id="r-abc", goal_id="r", agent="a", scope="main", iteration=1, content=text)
    )
    (line,) = out.getvalue().splitlines()
    assert line.endswith(r"abc main.1 text: one\u001b[2J\r two\u0007\u202e")


def test_the_console_can_write_json_lines() -> None:
    """One object a line, with the ids that say where it belongs (row K100) and the severity number of its level."""
    lines = [json.loads(line) for line in lines_of(json=True, level="verbose")]
    assert [line["type"] for line in lines if line["seq"]][:4] == ["run_started", "pass_started", "turn_started", "planned"]
    assert [line["type"] for line in lines if not line["seq"]] == ["tool_chunk", "progress_chunk"]
    for line in lines:
        assert {
            "time",
            "level",
            "severity",
            "type",
            "source",
            "run",
            "goal",
            "parent",
            "agent",
            "scope",
            "iteration",
            "seq",
            "data",
        } == line.keys()
        assert (line["run"], line["goal"], line["agent"]) == ("20250101-000000-add-abc123", "20250101-000000-add-abc123", "adder")
        assert line["severity"] == {"verbose": 5, "info": 9, "warning": 13, "error": 17}[line["level"]]
    assert (lines[-1]["type"], lines[-1]["severity"], lines[-1]["data"]["output"]) == ("run_finished", 9, "three")


@pytest.mark.parametrize(
    ("event", "level"),
    [
        (e.RunFinished(status="completed", reason="final_answer", output="x"), "info"),
        (e.RunFinished(status="stopped", reason="max_iterations"), "warning"),
        (e.RunFinished(status="failed", reason="planner_error"), "error"),
        (e.TurnStarted(iteration=1), "verbose"),
        (e.ToolFinished(call="main.1.0"), "verbose"),
        (e.ToolFinished(call="main.1.0", error=e.ToolError(code="timeout", message="late")), "warning"),
        (e.PolicyDecided(call="main.1.0", decision="deny"), "warning"),
        (e.PolicyDecided(call="main.1.0", decision="allow"), "verbose"),
        (e.ToolInDoubt(call="main.1.0", why="?"), "warning"),
        (None, "verbose"),
    ],
)
def test_each_event_has_a_level(event: Any, level: str) -> None:
    """Trouble is louder than progress."""
    from detent.observers.console import level_of

    assert level_of(event) == level


def test_every_event_can_be_told_on_one_line() -> None:
    """No event of the union makes the console stumble."""
    from typing import get_args

    import msgspec

    from detent.observers.console import told

    needs: dict[str, Any] = {
        "output": "x",
        "status": "running",
        "decision": "allow",
        "outcome": "again",
        "source": "retry",
        "actions": (),
        "due": None,
        "agent": AgentSpec(name="x"),
    }
    for kind in get_args(e.AnyEvent):
        fields = {f.name: needs.get(f.name, "x") for f in msgspec.structs.fields(kind) if f.required}
        assert told(kind(**fields))


def test_an_unknown_level_is_refused() -> None:
    """With the levels that there are."""
    with pytest.raises(ConfigError, match="level is 'loud'; known: 'verbose', 'info', 'warning', 'error'"):
        ConsoleObserver(level="loud")  # type: ignore[arg-type]


def test_the_console_writes_to_standard_error_as_it_is_now(capsys: pytest.CaptureFixture[str]) -> None:
    """Without a stream; so that redirecting it later is seen."""
    observer = ConsoleObserver()
    run(lambda engine: engine.run(AGENT, "add", observers=[observer]))
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "run completed" in captured.err
