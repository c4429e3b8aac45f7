"""One attempt: what each way of ending means, within which time, and what becomes of the result."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import re
import threading
from datetime import date
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

import virtual_time
from amounts import crossed
from detent.core.errors import ConfigError, FatalToolError, InvalidArguments, NotExecuted, ToolFailed
from detent.ports import ToolContext, ToolOutcome
from detent.tools import Happened, NotHappened, ThreadPool, Tool, tool
from detent.tools.functions.results import preview
from tool_calls import attempt, context_for

pytestmark = crossed

KINDS: list[tuple[dict[str, Any], str]] = [
    ({"side_effect": "none"}, "failed"),
    ({"side_effect": "read"}, "failed"),
    ({"side_effect": "write"}, "in_doubt"),
    ({"side_effect": "destructive"}, "in_doubt"),
    ({"side_effect": "write", "idempotent": True}, "failed"),
    ({"side_effect": "destructive", "idempotent": True}, "failed"),
]
"""Options, and what it means when nobody saw the end."""


def raising(error: BaseException, *, sync: bool = False, **options: Any) -> Tool[..., Any]:
    """Return a tool that raises `error`."""

    async def waits() -> None:
        raise error

    def blocks() -> None:
        raise error

    return tool(blocks if sync else waits, **options)


def returning(value: Any, *, sync: bool = False, **options: Any) -> Tool[..., Any]:
    """Return a read-only tool (unless told otherwise) that returns `value`."""

    async def waits() -> Any:
        return value

    def blocks() -> Any:
        return value

    return tool(blocks if sync else waits, **{"side_effect": "read", **options})


def test_what_an_attempt_does_to_its_arguments_is_not_seen_by_the_next() -> None:
    """Both get what was checked and decided on."""
    seen: list[list[int]] = []

    @tool(side_effect="read")
    async def sort(numbers: list[int]) -> int:
        seen.append(list(numbers))
        numbers.clear()
        return 0

    args = sort.check({"numbers": [2, 1]})
    assert [attempt(sort, args).kind for _ in range(2)] == ["ok", "ok"]
    assert seen == [[2, 1], [2, 1]]


both = pytest.mark.parametrize("sync", [False, True], ids=["async", "sync"])


@both
def test_a_returned_value_is_ok(sync: bool) -> None:
    """As JSON bytes, with the time it took."""
    outcome = attempt(returning({"a": [1, None, "é"]}, sync=sync))
    assert (outcome.kind, outcome.error_code, outcome.full) == ("ok", "", None)
    assert json.loads(outcome.result) == {"a": [1, None, "é"]}
    assert outcome.latency_ms > 0


def test_a_sync_tool_runs_in_a_thread_and_an_async_one_on_the_loop() -> None:
    """The loop stays free while a sync function blocks."""
    threads: list[threading.Thread] = []

    def note() -> None:
        threads.append(threading.current_thread())

    async def note_here() -> None:
        note()

    attempt(tool(note, side_effect="none"))
    attempt(tool(note_here, side_effect="none"))
    assert threads[0] is not threading.main_thread()
    assert threads[0].daemon
    assert threads[1] is threading.main_thread()


def test_a_plain_function_may_return_something_to_await() -> None:
    """Such as a plain function around an async function; it is awaited on the loop."""

    async def inner() -> str:
        return threading.current_thread().name

    def outer() -> Any:
        return inner()

    outcome = attempt(tool(outer, side_effect="none"))
    assert json.loads(outcome.result) == threading.main_thread().name


@both
@pytest.mark.parametrize(
    ("error", "kind", "code"),
    [
        (NotExecuted("no route"), "not_executed", "not_executed"),
        (NotExecuted("no route", error_code="offline"), "not_executed", "offline"),
        (ToolFailed("disk full", error_code="disk_full", details={"free": 0}), "failed", "disk_full"),
        (InvalidArguments("no such host"), "failed", "schema_validation_failed"),
        (FatalToolError("broken"), "fatal", "fatal_tool_error"),
        (FatalToolError("broken", error_code="mine"), "fatal", "mine"),
    ],
    ids=repr,
)
def test_a_typed_error_states_its_outcome_at_every_level(sync: bool, error: Any, kind: str, code: str) -> None:
    """A tool that knows what happened is believed, whatever its side effects."""
    for options, _ in KINDS:
        outcome = attempt(raising(error, sync=sync, **options))
        assert (outcome.kind, outcome.error_code, outcome.message, outcome.details) == (kind, code, str(error), error.details)


@both
@pytest.mark.parametrize(("options", "kind"), KINDS, ids=str)
@pytest.mark.parametrize(
    "error", [ValueError("boom"), TimeoutError("boom"), asyncio.CancelledError("boom"), SystemExit("boom"), StopIteration("boom")], ids=repr
)
def test_any_other_exception_leaves_an_effect_in_doubt(sync: bool, options: dict[str, Any], kind: str, error: BaseException) -> None:
    """Harmless where the call can be made again; the message names the exception. One's own timeouts and cancellations count here."""
    outcome = attempt(raising(error, sync=sync, **options))
    assert (outcome.kind, outcome.error_code) == (kind, "handler_error")
    if not isinstance(error, StopIteration):  # Python itself makes a RuntimeError of it
        assert outcome.message.startswith(f"{type(error).__name__}: boom")
    assert ("not known" in outcome.message) == (kind == "in_doubt")


def test_a_huge_message_is_cut() -> None:
    """A dump in an exception does not fill the log."""
    for error in (ValueError("x" * 100_000), ToolFailed("x" * 100_000)):
        assert len(attempt(raising(error, side_effect="read")).message) < 5000


def test_details_of_an_error_are_plain_data_within_the_cap() -> None:
    """What is no JSON is said to be none; what is too large becomes a preview."""
    unreadable = attempt(raising(ToolFailed("x", details={"a": object()}), side_effect="read"))
    assert list(unreadable.details or {}) == ["unreadable"]
    large = attempt(raising(ToolFailed("x", details={"a": "y" * 5000}), side_effect="read", max_result_bytes=300))
    assert (large.details or {})["truncated"] is True


@both
@pytest.mark.parametrize(("options", "kind"), KINDS, ids=str)
def test_a_timeout_marks_the_context_and_leaves_an_effect_in_doubt(sync: bool, options: dict[str, Any], kind: str) -> None:
    """Message and code are the same everywhere; what it means depends on the level."""
    release = threading.Event()

    async def waits() -> None:
        await asyncio.Event().wait()

    def blocks() -> None:
        release.wait(60)

    made = tool(blocks if sync else waits, timeout_s=0.02, **options)
    context = context_for(made)
    outcome = attempt(made, context=context)
    release.set()
    assert (outcome.kind, outcome.error_code, outcome.message) == (kind, "timeout", "Tool timed out after 0.02 s")
    assert context.cancelled.why == "timeout"
    assert outcome.latency_ms >= 19 or not sync


def test_the_deadline_of_the_run_ends_a_call_too() -> None:
    """Whichever is first; the tool sees the nearer one while it runs, and the context has its own again afterwards."""
    seen: list[float | None] = []

    async def waits(context: ToolContext) -> None:
        seen.append(context.remaining_s())
        await asyncio.Event().wait()

    made = tool(waits, side_effect="read", timeout_s=60)

    async def main() -> ToolOutcome:
        context = context_for(made)  # builds the declaration, which takes its time
        deadline = context.deadline = asyncio.get_running_loop().time() + 0.05
        outcome = await made.run({}, context)
        assert context.deadline == deadline
        return outcome

    outcome = virtual_time.run(main())
    assert outcome.error_code == "timeout"
    assert re.fullmatch(r"Tool timed out after 0\.0\d+ s, the rest of the run's time", outcome.message)
    assert seen[0] is not None
    assert seen[0] <= 0.05


def test_the_tools_own_limit_is_the_deadline_that_it_sees() -> None:
    """Where the run has none."""
    seen: list[float | None] = []

    async def looks(context: ToolContext) -> None:
        seen.append(context.remaining_s())

    limited = tool(looks, side_effect="read", timeout_s=5)
    context = context_for(limited)
    attempt(limited, context=context)
    assert context.deadline is None
    attempt(tool(looks, side_effect="read", timeout_s=None))
    assert seen[0] is not None
    assert 0 < seen[0] <= 5
    assert seen[1] is None


def test_nothing_starts_after_the_deadline() -> None:
    """It did not happen, and that is known."""
    ran: list[int] = []

    async def late() -> None:
        ran.append(1)

    made = tool(late, side_effect="write")

    async def main() -> ToolOutcome:
        return await made.run({}, context_for(made, deadline=asyncio.get_running_loop().time() - 1))

    outcome = virtual_time.run(main())
    assert (outcome.kind, outcome.error_code, ran) == ("not_executed", "timeout", [])


def test_a_tool_that_cleans_up_at_its_deadline_is_believed() -> None:
    """The flag is set before the cancellation arrives, and a typed error states what happened."""

    async def tidy(context: ToolContext) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise NotExecuted(f"rolled back: {context.cancelled.why}") from None

    outcome = attempt(tool(tidy, side_effect="write", timeout_s=0.01))
    assert (outcome.kind, outcome.message) == ("not_executed", "rolled back: timeout")


def test_a_late_result_is_ignored() -> None:
    """A tool that swallows the cancellation and returns has timed out all the same."""

    async def stubborn() -> str:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        return "late"

    outcome = attempt(tool(stubborn, side_effect="write", timeout_s=0.01))
    assert (outcome.kind, outcome.error_code, outcome.result) == ("in_doubt", "timeout", b"null")


def test_after_a_timeout_the_task_is_as_it_was() -> None:
    """Our own cancellation is taken back, so that the caller's next await works."""
    made = tool(asyncio.Event().wait, name="wait", side_effect="read", timeout_s=0.01)

    async def main() -> int:
        await made.run({}, context_for(made))
        await asyncio.sleep(0)
        task = asyncio.current_task()
        assert task is not None
        return task.cancelling()

    assert virtual_time.run(main()) == 0


@both
def test_a_cancellation_from_outside_goes_on(sync: bool) -> None:
    """The kernel decides what it means; a tool that answers it with a typed error or a result is heard first."""
    started, release = threading.Event(), threading.Event()

    async def waits() -> None:
        started.set()
        await asyncio.Event().wait()

    def blocks() -> None:
        started.set()
        release.wait(60)

    made = tool(blocks if sync else waits, side_effect="write")

    async def main() -> None:
        task = asyncio.create_task(made.run({}, context_for(made)))
        await asyncio.to_thread(started.wait, 20)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    virtual_time.run(main())
    release.set()


def test_a_cancellation_together_with_a_timeout_goes_on() -> None:
    """Who cancels from outside is never mistaken for the timer."""
    made = tool(asyncio.Event().wait, name="wait", side_effect="read", timeout_s=0.01)

    async def main() -> None:
        context = context_for(made)
        task = asyncio.create_task(made.run({}, context))
        await asyncio.sleep(0)
        asyncio.get_running_loop().call_later(0.01, task.cancel)  # in the same moment
        with pytest.raises(asyncio.CancelledError):
            await task

    virtual_time.run(main())


def test_progress_reaches_the_observer_from_loop_and_thread() -> None:
    """Passed through as it is."""
    told: list[Any] = []

    async def waits(context: ToolContext) -> None:
        context.progress({"done": 1})

    def blocks(context: ToolContext) -> None:
        context.progress({"done": 2})

    for function in (waits, blocks):
        made = tool(function, side_effect="none")
        attempt(made, context=context_for(made, progress=told.append))
    assert told == [{"done": 1}, {"done": 2}]


def test_arguments_that_no_longer_fit_fail_without_running() -> None:
    """Such as those of an old log and a changed function."""
    ran: list[int] = []

    @tool(side_effect="write")
    async def take(x: int) -> None:
        ran.append(x)

    outcome = attempt(take, {"x": "1"})
    assert (outcome.kind, outcome.error_code, ran) == ("failed", "schema_validation_failed", [])


class Pair(BaseModel):
    """A pydantic result."""

    a: int
    b: date


@dataclasses.dataclass
class Data:
    """A dataclass result, with a model in it."""

    pair: Pair


class Struct(msgspec.Struct):
    """A msgspec result."""

    a: int


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, None),
        (Pair(a=1, b=date(2026, 1, 2)), {"a": 1, "b": "2026-01-02"}),
        (Data(Pair(a=1, b=date(2026, 1, 2))), {"pair": {"a": 1, "b": "2026-01-02"}}),
        (Struct(2), {"a": 2}),
        ((1, 2), [1, 2]),
        ({1: "a"}, {"1": "a"}),
        ("null", "null"),
        ({"a": None, "b": 1.5}, {"a": None, "b": 1.5}),
        (2**70, 2**70),
    ],
    ids=repr,
)
def test_results_may_be_anything_with_a_json_form(value: Any, expected: Any) -> None:
    """Plain values, dataclasses, Structs, models, and models inside of others."""
    outcome = attempt(returning(value))
    assert outcome.kind == "ok"
    assert json.loads(outcome.result) == expected


def cyclic() -> list[Any]:
    """Return a list that contains itself."""
    around: list[Any] = []
    around.append(around)
    return around


class Nan(BaseModel):
    """A model that holds what JSON cannot."""

    x: float = float("nan")


class Hostile(BaseModel):
    """A model whose dump raises."""

    def model_dump(self, **options: Any) -> Any:
        raise OSError("no dump")


@pytest.mark.parametrize("level", ["read", "destructive"])
@pytest.mark.parametrize(
    "value",
    [
        object(),
        float("nan"),
        float("inf"),
        {"a": [1, None, float("-inf")]},
        {None: 1},
        "\ud800",
        Pair,
        cyclic(),
        (i for i in ()),
        Nan(),
        Hostile(),
    ],
    ids=lambda v: type(v).__name__,
)
def test_a_result_without_json_form_is_a_known_failure(value: Any, level: Any) -> None:
    """Never null in silence; a tool with effects says that they happened."""
    outcome = attempt(returning(value, side_effect=level))
    assert (outcome.kind, outcome.error_code) == ("failed", "result_not_serializable")
    assert ("effects happened" in outcome.message) == (level == "destructive")


@pytest.mark.parametrize("level", ["read", "destructive"])
@pytest.mark.parametrize(
    ("schema", "good", "bad", "said"),
    [
        ({"type": "object", "required": ["n"], "properties": {"n": {"type": "integer"}}}, {"n": 1}, {"n": "x"}, "'n': expected integer"),
        ({"type": "object", "required": ["n"]}, {"n": 1}, {}, "field 'n' is missing"),
        (int, 5, "5", "valid integer"),
        (Pair, Pair(a=1, b=date(2026, 1, 2)), {"a": 1}, "field 'b'"),
        (list[int], [1], [1, "2"], "field '1'"),
    ],
    ids=str,
)
def test_a_result_must_satisfy_its_schema(schema: Any, good: Any, bad: Any, said: str, level: Any) -> None:
    """A JSON Schema or a type; what does not fit is a known failure."""
    assert attempt(returning(good, result_schema=schema)).kind == "ok"
    outcome = attempt(returning(bad, result_schema=schema, side_effect=level))
    assert (outcome.kind, outcome.error_code) == ("failed", "output_schema_failed")
    assert said in outcome.message
    assert ("effects happened" in outcome.message) == (level == "destructive")


def test_a_type_as_result_schema_stands_as_json_schema_in_the_declaration() -> None:
    """Planners read JSON Schema; a type that pydantic does not know is refused at first use."""
    assert returning(1, result_schema=int).spec.result_schema == {"type": "integer"}
    with pytest.raises(ConfigError, match="neither a JSON Schema nor a type"):
        _ = returning(1, result_schema=threading.Lock()).spec


def test_a_result_that_reports_failure_is_a_failure() -> None:
    """`success: false` with its error as the code; the result is kept, and neither the schema nor `after` speaks."""
    touched: list[Any] = []
    value = {"success": False, "error": "not_found", "message": "No such row.", "tried": [1]}
    outcome = attempt(returning(value, result_schema={"type": "string"}, after=lambda r, c: touched.append(r)))
    assert (outcome.kind, outcome.error_code, outcome.message, outcome.details) == ("failed", "not_found", "No such row.", value)
    assert touched == []
    bare = attempt(returning({"success": False}))
    assert (bare.kind, bare.result) == ("ok", b'{"success":false}'), "without an error it is plain data, such as a program's exit"


@pytest.mark.parametrize("value", [{"success": True}, {"a": {"success": False}}, [{"success": False}], '{"success":false}', {"success": 0}])
def test_only_a_plain_false_at_the_top_reports_failure(value: Any) -> None:
    """What looks like it deeper down, or in a text, is content."""
    assert attempt(returning(value)).kind == "ok"


def test_hooks_run_around_the_call_in_order() -> None:
    """before, the function, after; sync and async hooks alike; `after` may replace the result."""
    order: list[Any] = []

    def before(args: dict[str, Any], context: ToolContext) -> None:
        order.append(("before", dict(args), context.call_id))
        args.clear()

    async def after(result: Any, context: ToolContext) -> Any:
        order.append(("after", result))
        return {"wrapped": result}

    @tool(side_effect="none", before=before, after=after)
    async def take(x: int) -> tuple[int, ...]:
        order.append(("run", x))
        return (x,)

    given = {"x": 1}
    outcome = attempt(take, given)
    assert given == {"x": 1}
    assert json.loads(outcome.result) == {"wrapped": [1]}
    assert order == [("before", {"x": 1}, "main.1.0"), ("run", 1), ("after", [1])]


def test_after_that_returns_nothing_keeps_the_result_and_its_own_result_is_checked() -> None:
    """It sees plain data; what it returns must be JSON within the cap like any result."""
    assert attempt(returning([1], after=lambda result, context: None)).result == b"[1]"
    assert attempt(returning([1], after=lambda result, context: object())).error_code == "result_not_serializable"
    assert attempt(returning([1], max_result_bytes=60, after=lambda result, context: "x" * 100)).full is not None
    assert attempt(returning([1], after=lambda result, context: {"success": False, "error": "empty"})).error_code == "empty"


def failing(error: Exception) -> Any:
    """Return a hook that raises `error`."""

    def hook(*args: Any) -> Any:
        raise error

    return hook


def test_a_failing_before_hook_means_that_nothing_was_executed() -> None:
    """Also for a destructive tool: nothing is in doubt."""
    ran: list[int] = []
    made = tool(lambda: ran.append(1), name="wipe", before=failing(OSError("no lock")))
    outcome = attempt(made)
    assert (outcome.kind, outcome.error_code, ran) == ("not_executed", "not_executed", [])
    assert "no lock" in outcome.message
    typed = attempt(tool(lambda: ran.append(1), name="wipe", before=failing(ToolFailed("closed", error_code="closed"))))
    assert (typed.kind, typed.error_code, ran) == ("failed", "closed", [])


def test_a_failing_after_hook_is_a_known_failure() -> None:
    """The call did run, and the message says so."""
    outcome = attempt(returning(1, side_effect="write", after=failing(OSError("no disk"))))
    assert (outcome.kind, outcome.error_code) == ("failed", "handler_error")
    assert "its effects happened" in outcome.message
    assert attempt(returning(1, after=failing(FatalToolError("end")))).kind == "fatal"


def test_on_error_may_say_what_an_exception_means() -> None:
    """By returning or raising a typed error, sync or async; otherwise the exception stays what it was."""

    async def returns(error: Exception, context: ToolContext) -> NotExecuted:
        return NotExecuted(f"refused: {error}", error_code="refused")

    def raises(error: Exception, context: ToolContext) -> None:
        raise ToolFailed("known", error_code="known")

    boom = OSError("boom")
    outcome = attempt(raising(boom, on_error=returns))
    assert (outcome.kind, outcome.error_code, outcome.message) == ("not_executed", "refused", "refused: boom")
    assert attempt(raising(boom, on_error=raises)).error_code == "known"
    for hook in (lambda e, c: None, failing(KeyError("hook")), failing(boom), lambda e, c: "what"):
        outcome = attempt(raising(boom, on_error=hook))
        assert (outcome.kind, outcome.error_code) == ("in_doubt", "handler_error")
        assert outcome.message.startswith("OSError: boom")


def test_on_error_is_not_asked_about_typed_errors_and_timeouts() -> None:
    """Those say what they mean already."""
    asked: list[Any] = []
    attempt(raising(ToolFailed("x"), side_effect="read", on_error=lambda e, c: asked.append(e)))
    attempt(tool(asyncio.Event().wait, name="wait", side_effect="read", timeout_s=0.01, on_error=lambda e, c: asked.append(e)))
    assert asked == []


@pytest.mark.parametrize("limit", [31, 40, 100, 1000])
@pytest.mark.parametrize("unit", ["x", "é", "𝄞", '"', "\n", "\\", "\x00"])
def test_a_result_is_cut_only_above_its_cap(limit: int, unit: str) -> None:
    """At the cap it is whole; one byte above it is a preview within the cap, and the whole is kept."""
    size = len(msgspec.json.encode(unit)) - 2
    fill = (limit - 2) // size
    whole = unit * fill + "x" * (limit - 2 - fill * size)
    assert len(msgspec.json.encode(whole)) == limit

    exact = attempt(returning(whole, max_result_bytes=limit))
    assert (exact.result, exact.full) == (msgspec.json.encode(whole), None)

    below = attempt(returning(whole[:-1], max_result_bytes=limit))
    assert (below.result, below.full) == (msgspec.json.encode(whole[:-1]), None)

    over = attempt(returning(whole + "x", max_result_bytes=limit))
    assert over.kind == "ok"
    assert over.full == msgspec.json.encode(whole + "x")
    assert len(over.result) <= limit
    shown = json.loads(over.result)
    assert shown["truncated"] is True
    assert (whole + "x").startswith(shown["preview"])
    if limit >= 100:
        assert (shown["original_bytes"], shown["limit_bytes"]) == (limit + 1, limit)
        assert len(over.result) > limit - 6


@given(
    value=st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)
    )
)
def test_a_preview_is_valid_and_within_its_limit(value: Any) -> None:
    """For any JSON value and any limit that holds an empty preview; the text is a prefix of the value's."""
    raw = msgspec.json.encode(value)
    text = value if isinstance(value, str) else raw.decode()
    for limit in range(31, max(32, len(raw))):
        cut = preview(raw, limit_bytes=limit)
        assert len(cut) <= limit
        assert text.startswith(json.loads(cut)["preview"])


def reconciled(reconcile: Any, **options: Any) -> ToolOutcome | None:
    """Return what `settle` gives for a tool with that `reconcile`."""
    made = tool(lambda: None, name="pay", reconcile=reconcile, **options)
    pool = ThreadPool(1)

    async def main() -> ToolOutcome | None:
        return await made.settle(context_for(made, key="key-7"), pool=pool)

    try:
        return virtual_time.run(main())
    finally:
        pool.close()


def test_settle_asks_reconcile_by_key() -> None:
    """Sync or async, with the key or with key and context."""
    asked: list[Any] = []

    def sync(key: str) -> Happened:
        asked.append(key)
        return Happened({"receipt": 1})

    async def waits(key: str, context: ToolContext) -> NotHappened:
        asked.append((key, context.host.tenant))
        return NotHappened("no such key")

    outcome = reconciled(sync)
    assert outcome is not None
    assert (outcome.kind, outcome.result) == ("ok", b'{"receipt":1}')
    outcome = reconciled(waits)
    assert outcome is not None
    assert (outcome.kind, outcome.message) == ("not_executed", "no such key")
    assert asked == ["key-7", ("key-7", "acme")]


def test_what_reconcile_does_not_know_stays_in_doubt() -> None:
    """None, a failure, a wrong answer and a timeout all mean: not known."""
    hung = threading.Event()
    assert reconciled(None) is None
    assert reconciled(lambda key: None) is None
    assert reconciled(failing(OSError("offline"))) is None
    assert reconciled(lambda key: True) is None
    assert reconciled(lambda key: hung.wait(60), timeout_s=0.02) is None
    hung.set()


def test_reconcile_may_state_a_failure_by_its_typed_error() -> None:
    """NotExecuted and ToolFailed say what became of the call."""
    not_executed, failed = reconciled(failing(NotExecuted("no"))), reconciled(failing(ToolFailed("bounced", error_code="bounced")))
    assert not_executed is not None
    assert failed is not None
    assert (not_executed.kind, failed.kind, failed.error_code) == ("not_executed", "failed", "bounced")
