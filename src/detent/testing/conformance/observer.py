"""The contract of an `Observer`, as tests.

A project with an observer writes an `ObserverMaker`, which creates it and reports what it has passed on, and a class with one fixture:

    class TestMyObserver(ObserverContract):
        @pytest.fixture
        def maker(self):
            return MyObserverMaker()
"""

# ruff: noqa: S101 - these are tests

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, get_args

import msgspec
import msgspec.inspect
import pytest

from detent.config.agents import Agent
from detent.core import events as e
from detent.core.actions import FinalAnswer, ToolCall
from detent.core.agent import AgentSpec, Host
from detent.core.budget import Usage
from detent.core.codec import encode
from detent.core.records import Envelope, Record
from detent.core.state import RunState
from detent.engine import Engine
from detent.ports import Chunk, Observer, Plan, ToolContext
from detent.running.results import Result
from detent.testing.clocks import FakeClock, SequentialIds
from detent.testing.conformance.promises import Maker, as_bytes, documented, soon
from detent.testing.scripted import ScriptedPlanner
from detent.tools.functions.function import Tool

__all__ = ["ObserverContract", "ObserverMaker"]

START = datetime(2026, 3, 1, 12, 0, 0, 5, tzinfo=UTC)
ODD = 'odd \x00\x1b[31m\u202e\u2028 \U0001f600 ñ\r\n{"' + "x" * 100_000
CHUNKS: tuple[tuple[Any, Any], ...] = (
    ("text", "some text"),
    ("text", ""),
    ("thinking", ODD),
    ("model", {"model": "m", "attempt": 1, "purpose": "plan"}),
    ("tool", {"tool": "look", "args": {"x": [1, None, {"a": "b"}]}, "attempt": 1}),
    ("progress", {"done": [1, 2.5, True]}),
    ("progress", None),
    ("progress", [ODD]),
)


class ObserverMaker(Maker):
    """Makes observers. `one_run`: each of them follows one run only."""

    one_run: bool = False

    def observer(self) -> Observer:
        """Return a new observer."""
        raise NotImplementedError

    def told(self, observer: Observer) -> Sequence[tuple[str, int]] | None:
        """Return run id and sequence of every record that `observer` has passed on or kept, in order; None if unknown."""
        return None


def _events() -> list[e.AnyEvent | None]:
    """Return an event of every class of the log, with odd contents, and None for an erased one."""
    made: list[Any] = [None, *(_sample(msgspec.inspect.type_info(kind)) for kind in get_args(e.AnyEvent))]
    result = msgspec.Raw(msgspec.json.encode({"text": ODD, "n": [1, 2.5, None]}))
    made += [
        e.ToolFinished(call="main.1.0", result=result),
        e.ToolFinished(call="main.1.0", error=e.ToolError(code="timeout", message=ODD, details={"a": [1]})),
        e.RunFinished(status="completed", reason="final_answer", output={"a": [1, "x"]}),
        e.RunFinished(status="failed", reason="planner_error", error=ODD),
        e.Planned(actions=(ToolCall(tool="look", args={"x": 1}),), text=ODD, thinking="hm", usage=Usage(input_tokens=3, cost_usd=0.5)),
    ]
    return made


def _sample(kind: msgspec.inspect.Type) -> Any:  # noqa: PLR0911 - one case a type
    """Return a value of a type: odd texts, and structs with only their required fields."""
    match kind:
        case msgspec.inspect.StructType(cls=cls, fields=fields):
            return cls(**{field.name: _sample(field.type) for field in fields if field.required})
        case msgspec.inspect.UnionType(types=types):
            return _sample(next(one for one in types if not isinstance(one, msgspec.inspect.NoneType)))
        case msgspec.inspect.LiteralType(values=values):
            return values[0]
        case msgspec.inspect.VarTupleType(item_type=item):
            return (_sample(item),)
        case msgspec.inspect.DictType(value_type=msgspec.inspect.LiteralType() as value):
            return {ODD[:40]: _sample(value)}
        case msgspec.inspect.DictType():
            return {ODD[:40]: [1, 2.5, None, {"a": "b"}]}
        case msgspec.inspect.DateTimeType():
            return START
        case msgspec.inspect.BoolType():
            return True
        case msgspec.inspect.IntType() | msgspec.inspect.FloatType():
            return 3
        case msgspec.inspect.StrType():
            return ODD
        case _:
            return {"text": ODD, "more": [1, None]}


def _record(event: e.AnyEvent | None, seq: int, run: str = "20260301-120000-tidy-up-aaaaaa") -> Record:
    envelope = Envelope(run=run, seq=seq, at=START + timedelta(seconds=seq), scope="main" if seq > 1 else "", iteration=min(seq - 1, 9))
    return Record(envelope, event, f"{seq:064x}")


def _state(run: str = "20260301-120000-tidy-up-aaaaaa") -> RunState:
    return RunState(run_id=run, goal_id=run, goal="tidy up", agent=AgentSpec(name="desk"), host=Host(tenant="acme"))


def _chunk(kind: Any, content: Any) -> Chunk:
    copied = msgspec.json.decode(msgspec.json.encode(content))
    run = "20260301-120000-tidy-up-aaaaaa"
    return Chunk(kind=kind, run_id=run, goal_id=run, agent="desk", scope="main", iteration=1, content=copied, call_id="main.1.0")


async def _tell(observer: Observer, record: Record, state: RunState, maker: Maker) -> None:
    """Call the observer as an engine does, and await the result if it is awaitable."""
    what = "erased record" if record.event is None else type(record.event).__name__
    try:
        answer = observer.on_record(record, state)
        if inspect.isawaitable(answer):
            await soon(answer, maker, f"on_record of {what}")
    except Exception as error:  # noqa: BLE001 - what an observer raises is what is looked at
        pytest.fail(f"`on_record` raised {type(error).__name__} on {what}: {error}; users of this observer miss it from now on")


async def _ran(observers: Sequence[Observer]) -> tuple[list[bytes], Any]:
    """Run an agent deterministically with these observers; return the log and the result."""

    async def look(args: dict[str, Any], context: ToolContext) -> dict[str, Any]:
        context.progress({"done": 1})
        return {"saw": args["x"]}

    schema = {"type": "object", "properties": {"x": {"type": "integer"}}}
    tool = Tool.from_schema(name="look", description="Look.", input_schema=schema, execute=look, side_effect="write")
    plans = [
        Plan(
            actions=(ToolCall(tool="look", args={"x": 1}), ToolCall(tool="none")), text="I look", usage=Usage(model_calls=1, input_tokens=5)
        ),
        FinalAnswer(content="it is one"),
    ]
    options: dict[str, Any] = {"clock": FakeClock(tick_s=0.5), "ids": SequentialIds(), "planner": ScriptedPlanner(plans)}
    async with Engine(observers=observers, **options) as engine:
        result = await engine.run(Agent(name="desk", tools=(tool,)), "look at it")
        return [_timeless(line) for line in await engine.store.read(result.run_id)], result


def _outcome(result: Result) -> Any:
    """Return the result of a run from its state."""
    state = result.state
    calls = [(item.tool, item.args, item.ok, item.content) for item in result.tool_calls]
    return result.status, result.output, result.usage, calls, state.goal, state.variables, state.agent


def _timeless(line: bytes) -> bytes:
    """Return a stored record without digests and latencies, which a real clock measures."""
    found: dict[str, Any] = msgspec.json.decode(line)
    found.pop("digest", None)
    found.get("body", {}).pop("latency_ms", None)
    return msgspec.json.encode(found)


@documented(page="howto/extend/conformance.md#an-observer", port="Observer")
class ObserverContract:
    """The promises of an `Observer`. A subclass gives the fixture `maker`."""

    async def test_every_event_of_the_log_is_taken(self, maker: ObserverMaker) -> None:
        """Each class of event, an erased record, texts of any length and with any character: none of them makes it raise."""
        observer = maker.observer()
        for seq, event in enumerate(_events(), start=1):
            await _tell(observer, _record(event, seq), _state(), maker)

    async def test_every_kind_of_chunk_is_taken_at_once(self, maker: ObserverMaker) -> None:
        """`on_chunk` is a plain function, takes any JSON content, and returns nothing: it is called while a model or a tool is at work."""
        observer = maker.observer()
        for kind, content in CHUNKS:
            try:
                answer: Any = observer.on_chunk(_chunk(kind, content))
            except Exception as error:  # noqa: BLE001 - what an observer raises is what is looked at
                pytest.fail(f"`on_chunk` raised {type(error).__name__} on a chunk of the kind {kind}: {error}")
            if inspect.iscoroutine(answer):
                answer.close()
            assert answer is None, f"`on_chunk` returned {answer!r}, which nobody awaits or reads"

    async def test_what_it_is_told_stays_as_it_was(self, maker: ObserverMaker) -> None:
        """Records, states and chunks are shared with the run and all other observers: the observer does not change them."""
        observer = maker.observer()
        for seq, event in enumerate(_events(), start=1):
            record, state = _record(event, seq), _state()
            before = encode(record), as_bytes(state)
            await _tell(observer, record, state, maker)
            assert (encode(record), as_bytes(state)) == before, f"the record of {type(event).__name__}, or the state after it, was changed"
        for kind, content in CHUNKS:
            chunk = _chunk(kind, content)
            observer.on_chunk(chunk)
            assert chunk.content == content, f"the content of a chunk of the kind {kind} was changed to {chunk.content!r}"

    async def test_records_of_several_runs_stay_in_order(self, maker: ObserverMaker) -> None:
        """Called for several runs in turn, it passes on every record once, in the order of the calls, each for its own run."""
        observer = maker.observer()
        order = [(f"20260301-120000-tidy-up-{name * 6}", seq) for seq in range(1, 8) for name in ("a" if maker.one_run else "ab")]
        for run, seq in order:
            await _tell(observer, _record(e.NoteWritten(text=f"{run} {seq}", author="a"), seq, run), _state(run), maker)
        told = maker.told(observer)
        if told is None:
            pytest.skip("nobody can tell what this observer has passed on")
        assert list(told) == order, f"it was told of {order}, and passed on {list(told)}"

    async def test_a_run_is_the_same_with_and_without_it(self, maker: ObserverMaker) -> None:
        """The log and the result are the same as without it, and every record of the run was passed on."""
        observer = maker.observer()
        log, result = await soon(_ran([observer]), maker, "a run with the observer")
        plain, expected = await _ran([])
        assert log == plain, "the log with the observer is another than without"
        assert _outcome(result) == _outcome(expected), "the result with the observer is another than without"
        told = maker.told(observer)
        if told is not None:
            assert [seq for _, seq in told] == list(range(1, len(log) + 1)), f"the run has {len(log)} records, passed on were {list(told)}"

    def test_one_event_loop_after_another_is_served(self, maker: ObserverMaker) -> None:
        """An observer is kept between runs, and each `run_sync` has an event loop of its own."""
        observer = maker.observer()

        async def once(seq: int) -> None:
            await maker.open()
            try:
                await _tell(observer, _record(e.NoteWritten(text="a", author="a"), seq), _state(), maker)
                observer.on_chunk(_chunk("text", "a"))
            finally:
                await maker.close()

        for seq in (1, 2):
            asyncio.run(once(seq))
