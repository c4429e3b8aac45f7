"""An event bus: handlers subscribe to classes of events, and to notifications of the kernel's hooks.

As an observer it publishes every event of the log, with the run's state after it. With `Engine(hooks=bus_hooks(bus))` it also publishes
`ReasoningStepCompleted`, `ToolCallCompleted` and `FinalAnswerProduced`, with the state of the pass. Handlers are called one after the other, in the
order of their subscription. A failing handler is reported once and does not disturb the others.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

from detent.core.codec import encode
from detent.core.events import Event
from detent.core.records import Record
from detent.core.state import CallState, KernelState, RunState
from detent.observers.notifications import FinalAnswerProduced, Notification, ReasoningStepCompleted, ToolCallCompleted
from detent.ports import Chunk, KernelHooks, noop_hooks
from detent.ports.telling import Fan, Listener

Handler: TypeAlias = Callable[[Any, Any], Any]
"""`(event, RunState)` for an event of the log, `(notification, KernelState)` for a notification; plain or a coroutine function."""


class _Subscription(Listener):
    __slots__ = ("kinds",)

    def __init__(self, handler: Handler, kinds: tuple[type, ...]) -> None:
        super().__init__(handler)
        self.kinds = kinds


class EventBus(Fan):
    """Passes events and notifications to subscribed handlers. Use it as an observer, for its hooks, or both."""

    def __init__(self) -> None:
        super().__init__()
        self._subscriptions: tuple[_Subscription, ...] = ()
        self._wanted: dict[type, tuple[_Subscription, ...]] = {}

    def on(self, event_type: type, handler: Handler) -> Callable[[], None]:
        """Call `handler` for events or notifications of this class. Return a function that unsubscribes it.

        `Event` and `Notification` subscribe to all their subclasses. Raise `TypeError` for a class that is never published.
        """
        if not (isinstance(event_type, type) and issubclass(event_type, (Event, Notification))):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(
                f"{event_type!r} is never published; give a class of detent.core.events, or one of "
                "ReasoningStepCompleted, ToolCallCompleted, FinalAnswerProduced"
            )
        return self._add(handler, (event_type,))

    def subscribe(self, handler: Handler) -> Callable[[], None]:
        """Call `handler` for everything that is published. Return a function that unsubscribes it."""
        return self._add(handler, (Event, Notification))

    def _add(self, handler: Handler, kinds: tuple[type, ...]) -> Callable[[], None]:
        if not callable(handler):
            raise TypeError(f"a handler must be callable with (event, state), got {handler!r}")
        added = _Subscription(handler, kinds)
        self._subscriptions = (*self._subscriptions, added)
        self._wanted.clear()

        def unsubscribe() -> None:
            self.forget(added)
            self._subscriptions = tuple(s for s in self._subscriptions if s is not added)
            self._wanted.clear()

        return unsubscribe

    def publish(self, event: Event | Notification, state: Any) -> Awaitable[None] | None:
        """Call the handlers of this event. If this returns an awaitable (some handler is asynchronous), you must await it."""
        kind = type(event)
        wanted = self._wanted.get(kind)
        if wanted is None:
            wanted = self._wanted[kind] = tuple(s for s in self._subscriptions if issubclass(kind, s.kinds))
        return self.tell(wanted, event, state) if wanted else None

    def on_record(self, record: Record, state: RunState) -> Awaitable[None] | None:
        """Publish the record's event."""
        return None if record.event is None else self.publish(record.event, state)

    def on_chunk(self, chunk: Chunk) -> None:
        """Chunks are not published; `StreamingObserver` has them."""


def bus_hooks(bus: EventBus | None) -> KernelHooks:
    """Return hooks that publish on `bus`. Without a bus they do nothing.

    thought, action and observation each become a `ReasoningStepCompleted`. The observation of an executed call also becomes its only
    `ToolCallCompleted`. done becomes `FinalAnswerProduced`. error publishes nothing.
    """  # row S0-14; row S0-13
    if bus is None:
        return noop_hooks

    def on_thought(state: KernelState, text: str) -> Any:
        return bus.publish(ReasoningStepCompleted(**_where(state), thought=text), state)

    def on_action(state: KernelState, tool: str, call_id: str) -> Any:
        call = state.calls.get(call_id)
        action = encode({"tool": tool, "args": call.args if call else None}).decode()
        return bus.publish(ReasoningStepCompleted(**_where(state), action=action), state)

    async def on_observation(state: KernelState, text: str, _success: bool, call: CallState | None = None) -> None:
        for notification in (ReasoningStepCompleted(**_where(state), observation=text), _completed(state, call)):
            answer = bus.publish(notification, state) if notification is not None else None
            if answer is not None:
                await answer

    def on_done(state: KernelState) -> Any:
        return bus.publish(FinalAnswerProduced(**_where(state), answer=state.output, total_tokens=state.tokens), state)

    return KernelHooks(on_thought=on_thought, on_action=on_action, on_observation=on_observation, on_done=on_done)


def _where(state: KernelState) -> dict[str, Any]:
    return {
        "run_id": state.task_id,
        "strategy": state.strategy,
        "scope": state.scope,
        "iteration": state.iteration,
        "step": len(state.steps),
    }


def _completed(state: KernelState, call: CallState | None) -> ToolCallCompleted | None:
    """Return the notification for an executed call; None for a refused call, which reached no tool."""
    if call is None or call.item is None or not call.item.executed:
        return None
    item = call.item
    return ToolCallCompleted(
        **_where(state),
        call_id=call.call_id,
        tool=call.tool,
        args=item.args,
        success=bool(item.ok),
        result=bytes(item.result).decode() if item.result else None,
        error_code=item.error.code if item.error else "",
        error=item.error.message if item.error else "",
        latency_ms=item.latency_ms,
    )
