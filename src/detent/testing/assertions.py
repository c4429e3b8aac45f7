"""Assertions on runs and traces: each raises `AssertionError` and shows what the run did instead.

A run is a `Result`, or a `RunState` (`engine.load`). A trace is what `engine.records` returns, or the events of a `CapturingBus`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, cast

from detent.core.codec import encode
from detent.core.events import Event
from detent.core.records import Record
from detent.core.state import Item, RunState
from detent.observers.notifications import Notification
from detent.running.results import Result
from detent.testing.ledgers import short, shown_args

Trace = Iterable[Record | Event | Notification]
"""What happened in a run, in order: `await engine.records(run_id)`, or the events that a `CapturingBus` has."""
ANY = object()
"""Matches any output."""


def assert_completed(run: Result | RunState, output: Any = ANY) -> None:
    """Assert that the run completed, with this output if one is given."""
    __tracebackhide__ = True
    if run.status != "completed":
        raise AssertionError(f"run {run.run_id} did not complete: {_ended(run)}")
    if output is not ANY and run.output != output:
        raise AssertionError(f"run {run.run_id} completed with {run.output!r}, not with {output!r}")


def assert_ended(run: Result | RunState, status: str, reason: str = "") -> None:
    """Assert that the run has this status, for this reason if one is given."""
    __tracebackhide__ = True
    if run.status != status or (reason and run.reason != reason):
        wanted = f"{status} ({reason})" if reason else status
        raise AssertionError(f"run {run.run_id} is not {wanted}: {_ended(run)}")


def assert_tool_called(
    run: Result | RunState,
    tool: str,
    *,
    times: int | None = None,
    at_least: int = 1,
    at_most: int | None = None,
    args: dict[str, Any] | None = None,
) -> None:
    """Assert that the tool was executed: exactly `times`, or at least and at most so often. With `args`, only calls with these arguments count.

    `args` may be a part of the arguments. Refused calls do not count, failed ones do.
    """
    __tracebackhide__ = True
    made = [item for item in _calls(run) if item.tool == tool and item.executed and _has(item, args or {})]
    least, most = (at_least, at_most) if times is None else (times, times)
    if len(made) < least or (most is not None and len(made) > most):
        wanted = f"{times} times" if times is not None else f"at least {least} times" + ("" if most is None else f" and at most {most}")
        named = f"{tool}({shown_args(args)})" if args else tool
        raise AssertionError(f"run {run.run_id}: {named} should have been called {wanted}, it was {len(made)} times; calls: {_listed(run)}")


def assert_tool_not_called(run: Result | RunState, tool: str, *, args: dict[str, Any] | None = None) -> None:
    """Assert that the tool was never executed (with arguments that include `args`)."""
    __tracebackhide__ = True
    assert_tool_called(run, tool, times=0, args=args)


def assert_tool_order(run: Result | RunState, *tools: str) -> None:
    """Assert that the tools were executed in this order; others may be in between."""
    __tracebackhide__ = True
    made = [item.tool for item in _calls(run) if item.executed]
    if not _in_order(tools, made):
        raise AssertionError(f"run {run.run_id}: the order should be {', '.join(tools)}; calls: {_listed(run)}")


def assert_within(
    run: Result | RunState,
    *,
    iterations: int | None = None,
    model_calls: int | None = None,
    tool_calls: int | None = None,
    tokens: int | None = None,
    cost_usd: float | None = None,
) -> None:
    """Assert that the run used no more than this."""
    __tracebackhide__ = True
    used, over = run.usage, list[str]()
    limits: dict[str, tuple[float | None, float | None]] = {
        "iterations": (used.iterations, iterations),
        "model_calls": (used.model_calls, model_calls),
        "tool_calls": (used.tool_calls, tool_calls),
        "tokens": (used.total_tokens, tokens),
        "cost_usd": (used.cost_usd, cost_usd),
    }
    for name, (spent, limit) in limits.items():
        if limit is None:
            continue
        if spent is None:
            if used.model_calls:
                over.append(f"{name} is not known (no price for the model), the limit is {limit:g}")
        elif spent > limit:
            over.append(f"{name} {spent:g}, the limit is {limit:g}")
    if over:
        raise AssertionError(f"run {run.run_id} used more than it should: {'; '.join(over)}")


def assert_events(trace: Trace, *kinds: type[Event | Notification]) -> None:
    """Assert that the trace has events of these classes in this order; others may be in between."""
    __tracebackhide__ = True
    there = [type(event) for event in _events(trace)]
    if not _in_order(kinds, there):
        raise AssertionError(
            f"the trace should have {', '.join(k.__name__ for k in kinds)} in this order; it has {', '.join(k.__name__ for k in there) or 'nothing'}"
        )


def assert_no_event(trace: Trace, kind: type[Event | Notification]) -> None:
    """Assert that the trace has no event of this class."""
    __tracebackhide__ = True
    there = [event for event in _events(trace) if isinstance(event, kind)]
    if there:
        raise AssertionError(f"the trace has {len(there)} {kind.__name__}, the first is {short(encode(there[0]).decode(), 200)}")


def assert_each_call_once(trace: Trace) -> None:
    """Assert that no call has two outcomes and none was begun again after its outcome: no recorded outcome was produced twice."""
    __tracebackhide__ = True
    from detent.core import events as e

    over: set[str] = set()
    for event in _events(trace):
        match event:
            case e.ToolStarted(call=call) if call in over:
                raise AssertionError(f"call {call} of {event.tool} was begun again (attempt {event.attempt}) after its outcome")
            case (
                e.ToolFinished(call=call)
                | e.ToolReconciled(
                    call=call, outcome="happened" | "not_happened" | "told", source="reconcile" | "person" | "agent" | "retry"
                )
            ):
                if call in over:
                    raise AssertionError(f"call {call} has two outcomes")
                over.add(call)
            case _:
                pass


def _events(trace: Trace) -> list[Event | Notification]:
    if not isinstance(trace, Iterable):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"a trace is the records or events of a run (`await engine.records(run_id)`), not {type(trace).__name__}")
    found: list[Event | Notification] = []
    for one in trace:
        event = one.event if isinstance(one, Record) else one
        if event is not None:
            found.append(event)
    return found


def _calls(run: Result | RunState) -> list[Item]:
    state = run.state if isinstance(run, Result) else run
    return [item for one in state.passes.values() for item in one.results if not item.meta]


def _has(item: Item, args: dict[str, Any]) -> bool:
    given = _args(item)
    return all(name in given and given[name] == value for name, value in args.items())


def _args(item: Item) -> dict[str, Any]:
    """Return a call's arguments; empty if they were not a JSON object."""
    given: Any = item.args
    return cast("dict[str, Any]", given) if isinstance(given, dict) else {}


def _in_order(wanted: Sequence[Any], there: Sequence[Any]) -> bool:
    left = iter(there)
    return all(any(one == other for other in left) for one in wanted)


def _listed(run: Result | RunState) -> str:
    return ", ".join(f"{item.tool}({short(shown_args(_args(item)))}){_how(item)}" for item in _calls(run)) or "none"


def _how(item: Item) -> str:
    return "" if item.error is None else f" [{item.error.code}]"


def _ended(run: Result | RunState) -> str:
    said = f"{run.status} ({run.reason})" if run.reason else str(run.status)
    return f"{said}: {run.error}" if run.error else said
