"""A bus: handlers for the classes of events that they care about, and for what the kernel's hooks say.

As an observer it publishes every event of the log, with the run's state after it. With `Engine(hooks=bus_hooks(bus))` it also publishes
`ReasoningStepCompleted`, `ToolCallCompleted` and `FinalAnswerProduced`, with the state of the pass.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

import msgspec

from detent.core.codec import encode
from detent.core.events import Event
from detent.core.records import Record
from detent.core.state import CallState, KernelState, RunState
from detent.kernel.hooks import KernelHooks
from detent.observers.notifications import FinalAnswerProduced, Notification, ReasoningStepCompleted, ToolCallCompleted
from detent.observers.reporting import Reporter
from detent.ports import Chunk

Handler: TypeAlias = Callable[[Any, Any], Any]
"""`(event, RunState)` for an event of the log, `(notification, KernelState)` for a notification; plain or a coroutine function."""
