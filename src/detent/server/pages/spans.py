"""What took time in a run: passes, turns, calls of models and tools, and waits."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

import msgspec

from detent.core import events as e
from detent.core.records import Record
from detent.history.traces import Call


class Span(msgspec.Struct, kw_only=True):
    """A stretch of time in a run: a model call, a tool call, a turn or a wait. `end` is None while it lasts; `outcome` is "" then."""

    kind: str
    label: str
    start: datetime
    end: datetime | None = None
    sequence: int
    outcome: str = ""


MOST_MS = 366 * 86_400_000.0
"""A call lasts a year at most; a log that says more is not believed."""


class Spans:
    """Reads the records of a run, each once, and notes what begins and ends with them."""

    def __init__(self) -> None:
        self.all: list[Span] = []
        self._open: dict[str, Span] = {}

    def read(self, record: Record, calls: Mapping[str, Call]) -> None:
        """Take in the next record. `calls` are those of the run, by id."""
        at, scope, event = record.envelope.at, record.envelope.scope, record.event
        if (waited := self._open.pop("wait", None)) is not None:
            waited.end = at
        if (begun := _begun(event, scope)) is not None:
            self._begin(begun[0], Span(kind=begun[1], label=begun[2], start=at, sequence=record.envelope.seq))
        if (
            isinstance(event, e.ToolFinished) and f"tool {event.call}" not in self._open
        ):  # one that only reads is recorded when it has ended
            tool = known.tool if (known := calls.get(event.call)) else ""
            start = at - timedelta(milliseconds=min(max(0.0, event.latency_ms), MOST_MS))
            self._begin(f"tool {event.call}", Span(kind="tool", label=tool, start=start, sequence=record.envelope.seq))
        if (ended := _ended(event, scope)) is not None:
            self._end(ended[0], at, ended[1])
        if isinstance(event, e.RunFinished):
            for name in list(self._open):
                self._end(name, at, "ok" if name.startswith("turn") else "cut off")
        for name, span in self._open.items():  # a turn reaches to its last record
            if name.startswith("turn"):
                span.end = at

    def _begin(self, name: str, span: Span) -> None:
        self._open[name] = span
        self.all.append(span)

    def _end(self, name: str, at: datetime, outcome: str) -> None:
        if (span := self._open.pop(name, None)) is not None:
            span.end, span.outcome = at, outcome


def _begun(event: Any, scope: str) -> tuple[str, str, str] | None:
    """Return the name, kind and label of what begins with an event."""
    match event:
        case e.TurnStarted(iteration=number):
            return f"turn {scope}", "turn", f"turn {number}"
        case e.PassStarted(kernel=kernel) if scope not in ("", "main"):
            return f"pass {scope}", "pass", f"{scope} ({kernel})"
        case e.ModelCallStarted(call=call, model=model):
            return f"model {call}", "model", model
        case e.ToolStarted(call=call, tool=tool):
            return f"tool {call}", "tool", tool
        case e.RunWaiting(status=status):
            return "wait", "wait", status
        case _:
            return None


def _ended(event: Any, scope: str) -> tuple[str, str] | None:
    """Return the name and outcome of what ends with an event."""
    match event:
        case e.PassFinished(status=status):
            return f"pass {scope}", "ok" if status == "done" else "failed"
        case e.ModelCallFinished(call=call):
            return f"model {call}", "ok"
        case e.ModelCallFailed(call=call):
            return f"model {call}", "failed"
        case e.ToolFinished(call=call, error=error):
            return f"tool {call}", "ok" if error is None else "failed"
        case e.ToolInDoubt(call=call):
            return f"tool {call}", "in doubt"
        case _:
            return None
