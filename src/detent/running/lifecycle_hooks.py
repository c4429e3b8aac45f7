"""Which record fires which of the five lifecycle hooks (`ports.KernelHooks`): one place, after the commit (rows S0-12 to S0-14).

A hook is a plain or a coroutine function; what it raises is reported and never fails the run. How long one is awaited is said in `patience`.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from typing import Any

from detent.core import events as e
from detent.core.records import Record
from detent.core.state import CallState, KernelState, RunState
from detent.ports import PATIENCE, KernelHooks
from detent.running.patience import from_inside


def fire(hooks: KernelHooks, record: Record, state: RunState) -> Any:
    """Call the hook that `record` stands for, if any; return what must be awaited, if anything."""
    event = record.event
    pass_state = state.passes.get(record.envelope.scope)
    match event:
        case e.Planned(text=text):
            return asked(hooks.on_thought, pass_state, text)
        case e.ToolStarted():
            return _begun(hooks, event, pass_state)
        case e.ToolFinished() | e.ToolReconciled():
            return _observed(hooks, event, pass_state, state.call(event.call))
        case e.PassFinished(status="done"):
            return asked(hooks.on_done, pass_state)
        case e.PassFinished(error=error):
            return asked(hooks.on_error, pass_state, error)
        case _:
            return None


def asked(hook: Callable[..., Any], *args: Any) -> Any:
    """Call a hook; return what it returned, which is to be awaited where it can be. A cancellation of its own is an ordinary error."""
    try:
        answer = hook(*args)
    except asyncio.CancelledError as error:
        raise from_inside(hook) from error
    return PATIENCE.get()(answer) if inspect.isawaitable(answer) else answer


async def _begun(hooks: KernelHooks, event: e.ToolStarted, pass_state: KernelState | None) -> None:
    """Tell of an attempt, and before it of one that has no record."""
    for _ in range(1 + event.untold):
        await _done(hooks.on_action, pass_state, event.tool, event.call)


async def _observed(
    hooks: KernelHooks, event: e.ToolFinished | e.ToolReconciled, pass_state: KernelState | None, call: CallState | None
) -> None:
    """Tell of an outcome, and of the action before it where nothing has told of that."""
    item = call.item if call is not None and _gave_outcome(event, call) else None
    if call is None or item is None:
        return
    shown = item.error.message if item.error else bytes(item.result).decode()
    try:
        if isinstance(event, e.ToolFinished) and event.digest:  # its begin has no record
            await _done(hooks.on_action, pass_state, call.tool, call.call_id)
    finally:
        await _done(hooks.on_observation, pass_state, shown, item.error is None, call)


async def _done(hook: Callable[..., Any], *args: Any) -> None:
    answer = asked(hook, *args)
    if inspect.isawaitable(answer):
        await answer


def _gave_outcome(event: e.ToolFinished | e.ToolReconciled, call: CallState) -> bool:
    """Whether the outcome that `call` has came with this event: a late worker's word about a settled call changes nothing."""
    item = call.item
    if item is None or isinstance(event, e.ToolFinished):
        return item is not None
    if event.source == "late_worker":
        return item.result is event.result if event.error is None else item.error is event.error
    return event.outcome != "again"
