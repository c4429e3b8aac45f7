"""What a response of OpenAI's API is of a run: a stretch of its log, as items and as numbered events. Pure.

A stretch begins behind record `begin` and ends where the run ends, asks its user, or continues after an approval that came through this API. Its events
follow from its records, so every server of the store numbers them alike; pieces of text between two records are best effort and have numbers of
their own in between.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from detent.core import events as e
from detent.core.actions import ToolCall
from detent.core.budget import NOTHING, Usage
from detent.core.codec import encode
from detent.core.fold import evolve
from detent.core.records import Record
from detent.core.state import RunState
from detent.history.trees import less
from detent.running.results import approvals_of

EACH, PIECES = 100_000, 1_000
"""The numbers of a record's events, and the first of those for the pieces of text behind it."""
ANSWERED = "resp-"
"""What the ids of signals begin with that came through this API."""
LABEL = "detent"


def id_of(run_id: str, begin: int) -> str:
    """Return the id of a response."""
    return f"resp_{run_id}" + (f"~{begin}" if begin else "")


def read_id(response_id: str) -> tuple[str, int]:
    """Return the run of a response, and behind which record it begins; ("", 0) for an id that is none."""
    run_id, _, begin = response_id.removeprefix("resp_").partition("~")
    counts = not begin or (begin.isascii() and begin.isdigit() and len(begin) < 10)
    return (run_id, int(begin or 0)) if response_id.startswith("resp_") and counts else ("", 0)


def answered_in(records: Iterable[Record], begins: tuple[str, ...]) -> tuple[str, int] | None:
    """Return the first signal of a run whose id begins like this, and behind which record the stretch begins that it began; None if there is none."""
    waited = 0
    for record in records:
        signal = getattr(record.event, "signal", "")
        if signal.startswith(begins):
            return signal, waited or record.envelope.seq - 1
        if isinstance(record.event, e.RunWaiting):
            waited = record.envelope.seq
    return None


def stretch_of(records: Iterable[Record], begin: int, ends: Iterable[int] = ()) -> Stretch:
    """Return the stretch of a run's records that begins behind record `begin`; `ends` as there."""
    made = Stretch(begin, ends)
    for record in records:
        made.read(record)
    return made


class Stretch:
    """A response, as far as its records were read: its items, its status, and its numbered events.

    `ends` are the records behind which answers to runs below began other stretches.
    """

    def __init__(self, begin: int, ends: Iterable[int] = ()) -> None:
        self.status, self.items, self.error = "in_progress", list[dict[str, Any]](), None
        self.events: list[tuple[int, str, dict[str, Any]]] = []
        self.seq = self._begin = begin
        self._end = min((end for end in ends if end > begin), default=0)
        self._waited, self._over, self._turn = False, False, 0
        self._calls: dict[str, ToolCall] = {}
        self._state, self._before = RunState(run_id=""), NOTHING

    @property
    def usage(self) -> Usage:
        """What the stretch has used."""
        return less(self._state.usage, self._before)

    @property
    def rests(self) -> bool:
        """Whether nothing follows, or not before somebody answers."""
        return self._over or self._resting

    _resting = False

    def read(self, record: Record) -> None:
        """Take the next record of the run, in its order. Raise `RunErased`."""
        if self._over:
            return
        self._state = evolve(self._state if self._state.run_id else RunState(run_id=record.envelope.run), record)
        if record.envelope.seq <= self._begin:
            self._before = self._state.usage
            self.note(record)
            return
        self._resting = isinstance(record.event, e.RunWaiting) and record.event.status != "waiting_for_subagent"
        self._over = not self._take(record)
        if record.envelope.seq == self._end:
            self.status, self._over = "completed", True

    def note(self, record: Record) -> None:
        """Know the calls of a record before the stretch."""
        event = record.event
        if isinstance(event, e.Planned):
            self._turn = record.envelope.iteration
            for index, action in enumerate(event.actions):
                if isinstance(action, ToolCall):
                    self._calls[f"{record.envelope.scope}.{record.envelope.iteration}.{index}"] = action

    def _take(self, record: Record) -> bool:
        """Take a record; return False if it is behind the stretch."""
        event, seq = record.event, record.envelope.seq
        if isinstance(event, e.ApprovalResolved) and self._waited and event.signal.startswith(ANSWERED):
            self.status = "completed"
            return False
        self.note(record)
        self.seq = seq
        match event:
            case e.Planned(text=text) if text and any(isinstance(action, ToolCall) for action in event.actions):
                self._add(seq, message_item(record.envelope.run, turn(self._turn), text))
            case e.ApprovalRequested():
                self._add(seq, self._asked(event))
            case e.ToolFinished():
                self._add(seq, self._called(event))
            case e.UserAsked(to="user"):
                self._add(seq, message_item(record.envelope.run, f"ask{seq}", event.question))
            case e.RunWaiting(status=status):
                self._waited = True
                if status == "waiting_for_user":
                    self.status = "completed"
                    return self._closed(seq)
            case e.RunFinished():
                return self._finished(record, event)
            case _:
                pass
        return True

    def _closed(self, seq: int) -> bool:
        self.events.append((seq * EACH + PIECES - 1, f"response.{self.status}", {}))
        return False

    def _finished(self, record: Record, event: e.RunFinished) -> bool:
        seq = record.envelope.seq
        if event.status == "completed":
            text = event.output if isinstance(event.output, str) else encode(event.output).decode()
            self._add(seq, message_item(record.envelope.run, turn(self._turn), text))
            self.status = "completed"
        elif event.reason == "cancelled":
            self.status = "cancelled"
            return False
        else:
            self.status, self.error = "failed", {"code": "server_error", "message": event.error or f"{event.status}: {event.reason}"}
        return self._closed(seq)

    def _asked(self, event: e.ApprovalRequested) -> dict[str, Any]:
        call = self._calls.get(event.call)
        args: Any = call.args if call is not None else {}
        return _request(self._state.run_id, event.call, event.digest, tool=event.tool, args=args)

    def _called(self, event: e.ToolFinished) -> dict[str, Any]:
        call = self._calls.get(event.call)
        result: Any = plain(event.result)
        output = None if result is None else result if isinstance(result, str) else encode(result).decode()
        return {
            "type": "mcp_call", "id": f"mcp_{event.call}", "name": call.tool if call is not None else "", "server_label": LABEL,
            "arguments": encode(call.args if call is not None else {}).decode(), "output": output,
            "error": None if event.error is None else event.error.message, "status": "completed" if event.error is None else "failed",
        }  # fmt: skip

    def _add(self, seq: int, item: dict[str, Any]) -> None:
        index = len(self.items)
        self.items.append(item)
        last = self.events[-1][0] + 1 if self.events else 0
        number = max(seq * EACH, last)
        for offset, (kind, data) in enumerate(item_events(index, item)):
            self.events.append((number + offset, kind, data))


def _request(run_id: str, call: str, digest: str, *, tool: str, args: Any, label: str = LABEL) -> dict[str, Any]:
    return {
        "type": "mcp_approval_request", "id": f"mcpr_{run_id}~{call}:{digest}", "name": tool, "arguments": encode(args).decode(), "server_label": label,
    }  # fmt: skip


def requests_of(asking: Iterable[RunState]) -> Iterator[dict[str, Any]]:
    """Yield the approval requests of runs below. The label has the agents from the top to the one that asks."""
    for one in (one for state in asking for one in approvals_of(state)):
        yield _request(one.run_id, one.call_id, one.digest, tool=one.tool, args=one.args or {}, label="/".join((LABEL, *one.path)))


def item_events(index: int, item: dict[str, Any], *, opened: bool = False, rest: str | None = None) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the events of one item; those of its beginning are left out if it was `opened` before, with `rest` as the last piece of its text."""
    at = {"output_index": index}
    if item["type"] != "message":
        yield "response.output_item.added", at | {"item": item}
        yield "response.output_item.done", at | {"item": item}
        return
    part = item["content"][0]
    at_part = at | {"item_id": item["id"], "content_index": 0}
    if not opened:
        yield "response.output_item.added", at | {"item": item | {"content": [], "status": "in_progress"}}
        yield "response.content_part.added", at_part | {"part": part | {"text": ""}}
    text = part["text"] if rest is None else rest
    if text:
        yield "response.output_text.delta", at_part | {"delta": text, "logprobs": []}
    yield "response.output_text.done", at_part | {"text": part["text"], "logprobs": []}
    yield "response.content_part.done", at_part | {"part": part}
    yield "response.output_item.done", at | {"item": item}


def plain(value: Any) -> Any:
    """Return a value of the log as plain JSON data."""
    data = encode(value)
    return msgspec.json.decode(data) if data else None  # a call that failed has no result


def turn(iteration: int) -> str:
    """Return the name of the message of a turn."""
    return f"t{iteration}"


def message_item(run_id: str, name: str, text: str, *, status: str = "completed") -> dict[str, Any]:
    """Return a message of the assistant."""
    content: list[dict[str, Any]] = [{"type": "output_text", "text": text, "annotations": [], "logprobs": []}]
    return {"type": "message", "id": f"msg_{run_id}_{name}", "role": "assistant", "status": status, "content": content}
