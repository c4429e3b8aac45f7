"""What a stretch of a run is for an AG-UI client: events in the protocol's order, and the messages so far.

Rule: ids follow from the log, so every server of the store gives the same message, call and step the same name.
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
from detent.ports import Chunk
from detent.ports.delegation import has_parent
from detent.running.overseeing import path_of
from detent.running.results import approvals_of

Data = dict[str, Any]


class Telling:
    """Turns the records and chunks of a stretch into events; it knows the messages so far, and what is open.

    The stretch begins behind record `begin`. `state` is the run as of the last record that was read.
    """

    def __init__(self, run_id: str, begin: int) -> None:
        self.state, self.messages, self.differs = RunState(run_id=run_id), list[Data](), False
        self._begin, self._before = begin, NOTHING
        self._step = ""
        self._text = self._thinking = ""
        self._written: dict[str, str] = {}
        self._turn = 0
        self._calls: dict[str, ToolCall] = {}
        self._answered: set[str] = set()
        self._below: dict[str, None] = {}
        self._models: dict[str, None] = {}

    def of_chunk(self, chunk: Chunk) -> Iterator[Data]:
        """Yield the events of a piece that a model writes now."""
        if not isinstance(chunk.content, str) or not chunk.content:
            return
        if chunk.kind == "thinking":
            yield from self._think(f"{chunk.run_id}-r{chunk.iteration}", chunk.content)
        elif chunk.kind == "text":
            yield from self._say(f"{chunk.run_id}-t{chunk.iteration}", chunk.content)

    def of_record(self, record: Record) -> Iterator[Data]:
        """Take the next record of the run, and yield its events if it belongs to the stretch. Raise `RunErased`."""
        first = record.envelope.seq == self._begin + 1
        opening = list(self._children()) if first else []
        self.state = evolve(self.state, record)
        events = [*opening, *self._told(record)]
        if record.envelope.seq > self._begin:
            yield from events
            return
        self._before, self._step, self._models = self.state.usage, "", {}
        self._text = self._thinking = ""
        self._below.clear()

    def _told(self, record: Record) -> Iterator[Data]:
        event = record.event
        match event:
            case e.RunStarted(goal=goal):
                self.messages.append({"id": f"{record.envelope.run}-goal", "role": "user", "content": goal})
            case e.UserReplied(reply=reply, ask_id=ask_id):
                self.messages.append({"id": f"{ask_id}-reply", "role": "user", "content": plain(reply)})
            case e.UserAsked(to="user"):
                self.messages.append({"id": f"{event.ask_id}-asked", "role": "assistant", "content": event.question})
            case e.ModelCallStarted(model=model):
                self._models[model] = None
            case e.TurnStarted(iteration=iteration):
                yield from self.close()
                self._step = f"turn {iteration}"
                yield {"type": "STEP_STARTED", "stepName": self._step}
            case e.Planned():
                yield from self._planned(record, event)
            case e.ToolFinished(call=call):
                yield from self._result(call, plain(event.result) if event.error is None else event.error.message)
            case e.SubagentSpawned():
                self._below[event.child] = None
                started = {"type": "SUBAGENT_STARTED", "subagentRunId": event.child, "name": event.agent, "description": event.goal}
                yield started | ({"parentToolCallId": event.call} if event.call else {})
            case e.SubagentJoined():
                yield from self._joined(event)
            case e.RunFinished(status="completed"):
                yield from self._text_of(f"{record.envelope.run}-t{self._turn}", plain(event.output))
            case _:
                return

    def _joined(self, event: e.SubagentJoined) -> Iterator[Data]:
        if event.child not in self._below:
            pass  # it was finished in the eyes of the client
        elif event.outcome in ("", "completed"):
            yield {"type": "SUBAGENT_FINISHED", "subagentRunId": event.child, "outcome": {"type": "success"}}
        else:
            why = event.reason or event.outcome
            yield {"type": "SUBAGENT_ERROR", "subagentRunId": event.child, "message": why, "code": event.outcome}
        self._below.pop(event.child, None)
        if event.call in self._calls:
            yield from self._result(
                event.call, plain(event.output) if event.outcome in ("", "completed") else event.reason or event.outcome
            )

    def _planned(self, record: Record, event: e.Planned) -> Iterator[Data]:
        run_id, turn = record.envelope.run, record.envelope.iteration
        self._turn = turn
        if event.thinking:
            yield from self._think(f"{run_id}-r{turn}", self._rest(f"{run_id}-r{turn}", event.thinking))
        calls = [(index, action) for index, action in enumerate(event.actions) if isinstance(action, ToolCall)]
        if event.text and calls:
            yield from self._text_of(f"{run_id}-t{turn}", event.text)
        for index, call in calls:
            yield from self._end_writing()
            call_id = f"{record.envelope.scope}.{turn}.{index}"
            self._calls[call_id] = call
            arguments = encode(call.args).decode()
            shown = {"id": call_id, "type": "function", "function": {"name": call.tool, "arguments": arguments}}
            self.messages.append({"id": call_id, "role": "assistant", "toolCalls": [shown]})
            yield {"type": "TOOL_CALL_START", "toolCallId": call_id, "toolCallName": call.tool}
            yield {"type": "TOOL_CALL_ARGS", "toolCallId": call_id, "delta": arguments}
            yield {"type": "TOOL_CALL_END", "toolCallId": call_id}

    def _result(self, call: str, content: str) -> Iterator[Data]:
        if call in self._answered or call not in self._calls:
            return
        self._answered.add(call)
        about = {"toolCallId": call, "content": content, "role": "tool"}
        self.messages.append({"id": f"{call}-result", **about})
        yield {"type": "TOOL_CALL_RESULT", "messageId": f"{call}-result", **about}

    def _text_of(self, name: str, text: str) -> Iterator[Data]:
        self.messages.append({"id": name, "role": "assistant", "content": text})
        yield from self._say(name, self._rest(name, text))

    def _rest(self, name: str, text: str) -> str:
        """Return what was not written yet of a text. What was written of another one is put right at the end."""
        said = self._written.get(name, "")
        if text.startswith(said):
            return text.removeprefix(said)
        self.differs = True
        return ""

    def _say(self, name: str, text: str) -> Iterator[Data]:
        if not text:
            return
        if self._text != name:
            yield from self._end_writing()
            self._text = name
            yield {"type": "TEXT_MESSAGE_START", "messageId": name, "role": "assistant"}
        self._written[name] = self._written.get(name, "") + text
        yield {"type": "TEXT_MESSAGE_CONTENT", "messageId": name, "delta": text}

    def _think(self, name: str, text: str) -> Iterator[Data]:
        if not text:
            return
        if self._thinking != name:
            yield from self._end_writing()
            self._thinking = name
            yield {"type": "REASONING_START", "messageId": name}
            yield {"type": "REASONING_MESSAGE_START", "messageId": name, "role": "reasoning"}
        self._written[name] = self._written.get(name, "") + text
        yield {"type": "REASONING_MESSAGE_CONTENT", "messageId": name, "delta": text}

    def _end_writing(self) -> Iterator[Data]:
        if self._text:
            yield {"type": "TEXT_MESSAGE_END", "messageId": self._text}
            self._text = ""
        if self._thinking:
            yield {"type": "REASONING_MESSAGE_END", "messageId": self._thinking}
            yield {"type": "REASONING_END", "messageId": self._thinking}
            self._thinking = ""

    def close(self) -> Iterator[Data]:
        """End what is open."""
        yield from self._end_writing()
        if self._step:
            yield {"type": "STEP_FINISHED", "stepName": self._step}
            self._step = ""

    def open_again(self) -> Iterator[Data]:
        """Yield a START for whatever is open, to a client that has just got the messages so far."""
        self._text = self._thinking = ""
        self._written.clear()
        if self._step:
            yield {"type": "STEP_STARTED", "stepName": self._step}
        for call_id, call in self._calls.items():
            if call_id not in self._answered:
                yield {"type": "TOOL_CALL_START", "toolCallId": call_id, "toolCallName": call.tool}
                yield {"type": "TOOL_CALL_END", "toolCallId": call_id}
        self._below.clear()
        yield from self._children()

    def _children(self) -> Iterator[Data]:
        """Yield the beginning of the sub-agents that are at work."""
        for child in self.state.children.values():
            if child.status == "open":
                self._below[child.child] = None
                yield {"type": "SUBAGENT_STARTED", "subagentRunId": child.child, "name": child.agent}

    def rests(self, record: Record) -> bool:
        """Whether the stretch ends with a record: the run has ended, or people have to decide."""
        if record.envelope.seq <= self._begin or not isinstance(record.event, e.RunWaiting | e.RunFinished):
            return False
        return self.state.terminal or self.state.status == "waiting_for_operator" or any(interrupts(self.state))

    def end(self, said: Data, asking: Iterable[RunState] = ()) -> Iterator[Data]:
        """Yield the end of the stretch; `said` names thread and run as the client does, `asking` are the runs below that ask people."""
        state = self.state
        yield from self.close()
        for child in self._below:
            yield {"type": "SUBAGENT_FINISHED", "subagentRunId": child, "outcome": {"type": "suspended"}}
        yield {"type": "STATE_SNAPSHOT", "snapshot": {"runId": state.run_id, "status": state.status, "iterations": state.usage.iterations}}
        usage = {"usage": [used]} if (used := self._used(less(state.usage, self._before))) else {}
        if state.status in ("failed", "waiting_for_operator") or (state.status == "stopped" and state.reason != "cancelled"):
            yield {
                "type": "RUN_ERROR",
                "message": state.error or state.reason or state.status,
                "code": state.reason or state.status,
                **usage,
            }
            return
        finished = {"type": "RUN_FINISHED", **said, "result": {"runId": state.run_id, "output": state.output}, **usage}
        if state.status == "completed":
            outcome: Data = {"type": "success"}
        elif state.reason == "cancelled":
            outcome = {"type": "cancelled"}
        else:
            outcome = {"type": "interrupt", "interrupts": [found for one in (state, *asking) for found in interrupts(one)]}
        yield finished | {"outcome": outcome}

    def _used(self, usage: Usage) -> Data:
        """Return the tokens of the stretch as the protocol counts them, {} for none."""
        counts = {
            "inputTokens": usage.input_tokens, "outputTokens": usage.output_tokens, "totalTokens": usage.total_tokens,
            "reasoningTokens": usage.reasoning_tokens, "cachedInputTokens": usage.cached_tokens,
        }  # fmt: skip
        if not usage.total_tokens:
            return {}
        return {name: count for name, count in counts.items() if count > 0} | (
            {"model": next(iter(self._models))} if len(self._models) == 1 else {}
        )


def plain(value: Any) -> str:
    """Return a value of the log as a text: a text as it is, anything else as JSON."""
    found: Any = msgspec.json.decode(written := encode(value))
    return found if isinstance(found, str) else written.decode()


def interrupts(state: RunState) -> Iterator[dict[str, Any]]:
    """Yield what a waiting run asks of people. What a run below asks names that run, and its agent with those above."""
    child = has_parent(state)
    of, who = (f"~{state.run_id}", f"{' / '.join(path_of(state))}: ") if child else ("", "")
    for one in approvals_of(state):
        found: dict[str, Any] = {
            "id": f"approval{of}:{one.call_id}:{one.digest}", "reason": "approval", "message": f"{who}{one.tool}: {one.reason}",
            **({} if child else {"toolCallId": one.call_id}),
            "responseSchema": {
                "type": "object", "properties": {"approved": {"type": "boolean"}, "args": {"type": "object"}, "reason": {"type": "string"}},
                "required": ["approved"],
            },
            "metadata": {"tool": one.tool, "args": one.args} | ({"runId": state.run_id, "path": one.path} if child else {}),
        }  # fmt: skip
        yield found | ({"expiresAt": one.expires_at.isoformat()} if one.expires_at is not None else {})
    for ask in state.asks.values():
        schema = {"type": "object", "properties": {"reply": {"type": "string"}}, "required": ["reply"]}
        yield {"id": f"ask{of}:{ask.ask_id}", "reason": "question", "message": f"{who}{ask.question}", "responseSchema": schema}
