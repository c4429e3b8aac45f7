"""Who is told what happens in a run: nothing here can fail one, and nothing here decides anything.

`NoopObserver`, `InMemoryObserver`, `ConsoleObserver`, `StreamingObserver`, `EventBus` (with `bus_hooks` for the five kernel hooks) and
`CompositeObserver`. Give them to `Engine(observers=...)`, or to one run with `run(observers=...)`.
"""

from detent.observers.bus import EventBus, bus_hooks
from detent.observers.composite import CompositeObserver
from detent.observers.console import ConsoleObserver
from detent.observers.in_memory import InMemoryObserver
from detent.observers.noop import NoopObserver
from detent.observers.notifications import FinalAnswerProduced, Notification, ReasoningStepCompleted, ToolCallCompleted
from detent.observers.streaming import Gap, StreamingObserver

__all__ = [
    "CompositeObserver",
    "ConsoleObserver",
    "EventBus",
    "FinalAnswerProduced",
    "Gap",
    "InMemoryObserver",
    "NoopObserver",
    "Notification",
    "ReasoningStepCompleted",
    "StreamingObserver",
    "ToolCallCompleted",
    "bus_hooks",
]
