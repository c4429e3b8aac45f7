"""Observers: they see what happens in a run, after each record is committed.

Rule: an observer cannot fail a run and decides nothing; all are called through `ports.telling`.
Start with `in_memory`, the smallest. `console` prints, `streaming` yields records and chunks, `bus` publishes events to handlers (`bus_hooks` does it
for the kernel's hooks), `composite` calls several. Pass them to `Engine(observers=...)`, or for one run to `run(observers=...)`.
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
