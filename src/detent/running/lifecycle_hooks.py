"""Which record fires which of the five lifecycle hooks (`ports.KernelHooks`): in one place, after the commit.

The state itself shows which call an outcome belongs to; hooks get copies of it.
"""  # rows S0-12 to S0-14

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from detent.core import events as e
from detent.core.records import Record
from detent.core.state import CallState, KernelState, RunState
from detent.ports import KernelHooks, noop_hooks
from detent.ports.copies import Copier, copied
from detent.ports.telling import Fan, Listener


class LifecycleHooks(Fan):
    """Calls the hooks of a kernel with what was recorded, as observers are called; each failing hook is reported once."""

    def __init__(self, hooks: KernelHooks) -> None:
        super().__init__()
        self._copier = Copier()
        self._thought = _listeners(hooks.on_thought)
        self._action = _listeners(hooks.on_action)
        self._observation = _listeners(hooks.on_observation)
        self._done = _listeners(hooks.on_done)
        self._error = _listeners(hooks.on_error)

    def on_record(self, record: Record, state: RunState) -> Awaitable[None] | None:
        """Call the hook for `record`, if there is one; if so, the caller must await the answer."""
        event = record.event
        pass_state = state.passes.get(record.envelope.scope)
        match event:
            case e.Planned(text=text):
                return self._tell(self._thought, pass_state, text)
            case e.ToolStarted():  # and before it the attempts that have no record
                return self._tell(self._action * (1 + event.untold), pass_state, event.tool, event.call)
            case e.ToolFinished() | e.ToolReconciled():
                return self._outcome(event, pass_state, state.call(event.call))
            case e.PassFinished(status="done"):
                return self._tell(self._done, pass_state)
            case e.PassFinished(error=error):
                return self._tell(self._error, pass_state, error)
            case _:
                return None

    def _outcome(
        self, event: e.ToolFinished | e.ToolReconciled, pass_state: KernelState | None, call: CallState | None
    ) -> Awaitable[None] | None:
        """Call the hooks for an outcome, and first for its action if the call's beginning has no record."""
        item = call.item if call is not None and _gave_outcome(event, call) else None
        if call is None or item is None:
            return None
        began = self._action if isinstance(event, e.ToolFinished) and event.digest else ()
        shown = item.error.message if item.error else bytes(item.result).decode()
        return self._both(self._tell(began, pass_state, call.tool, call.call_id), pass_state, shown, item.error is None, call)

    def _both(self, before: Awaitable[None] | None, state: KernelState | None, *told: Any) -> Awaitable[None] | None:
        async def both(before: Awaitable[None]) -> None:
            await before
            after = self._tell(self._observation, state, *told)
            if after is not None:
                await after

        return self._tell(self._observation, state, *told) if before is None else both(before)

    def _tell(self, listeners: Sequence[Listener], state: KernelState | None, *args: Any) -> Awaitable[None] | None:
        """Call each with copies, which are made only if there is a hook."""
        if not listeners:
            return None
        shown = None if state is None else self._copier.copied(state, state.scope)
        return self.tell(listeners, shown, *map(copied, args))


def _listeners(hook: Callable[..., Any]) -> tuple[Listener, ...]:
    return () if hook is noop_hooks.on_done else (Listener(hook),)


def _gave_outcome(event: e.ToolFinished | e.ToolReconciled, call: CallState) -> bool:
    """Whether this event brought the outcome of `call`: a late worker's report about a settled call changes nothing."""
    item = call.item
    if item is None or isinstance(event, e.ToolFinished):
        return item is not None
    if event.source == "late_worker":
        return item.result is event.result if event.error is None else item.error is event.error
    return event.outcome != "again"
