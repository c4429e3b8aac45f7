"""Prints what happens in a run, as lines for people or as JSON lines for machines.

Levels are the severity numbers of OpenTelemetry: verbose 5, info 9, warning 13, error 17. `info` shows the start of a run, what it
waits for, its answers and its end. `verbose` also shows every turn, call, plan and chunk.
"""  # rows T21, T46

from __future__ import annotations

import sys
from datetime import datetime
from typing import Any, Literal, TextIO

import msgspec

from detent.core import events as e
from detent.core.codec import encode
from detent.core.records import Record
from detent.core.state import RunState
from detent.expressions.display import clean
from detent.ports import Chunk
from detent.ports.options import checked_options

Level = Literal["verbose", "info", "warning", "error"]

SEVERITY: dict[str, int] = {"verbose": 5, "info": 9, "warning": 13, "error": 17}

_INFO = (
    e.RunStarted,
    e.RunResumed,
    e.RunReopened,
    e.RunWaiting,
    e.Forked,
    e.Erased,
    e.BudgetChanged,
    e.ApprovalRequested,
    e.ApprovalResolved,
)
_INFO_TOO = (
    e.LevelsAccepted,
    e.ApprovalEdited,
    e.UserAsked,
    e.UserReplied,
    e.ScheduleSet,
    e.ScheduleFired,
    e.SubagentSpawned,
    e.SubagentJoined,
)
_WARNING = (
    e.CancelRequested,
    e.AnswerRefused,
    e.ToolInDoubt,
    e.PlanRejected,
    e.GuardBlocked,
    e.Reflected,
    e.ApprovalExpired,
    e.ModelCallFailed,
)


class ConsoleObserver:
    """Writes a line for each record and chunk of at least `level` to `stream` (default: the current standard error).

    With `json=True` a line is one object: time, level, severity, type, source, run, goal, parent, agent, scope, iteration, seq, data.
    Readable lines are cut to `width` characters. All output is cleaned (`detent.expressions.display`).
    """

    @checked_options
    def __init__(self, stream: TextIO | None = None, *, json: bool = False, level: Level = "info", width: int = 160) -> None:
        self._stream, self._json, self._width = stream, json, width
        self._least = SEVERITY[level]

    def on_record(self, record: Record, state: RunState) -> None:
        """Write the record's line."""
        level = level_of(record.event)
        if SEVERITY[level] < self._least:
            return
        envelope = record.envelope
        if not self._json:
            self._write(_line(envelope.at, level, envelope.run, (envelope.scope, envelope.iteration), told(record.event)))
            return
        self._write_json(
            time=envelope.at,
            level=level,
            type="erased" if record.event is None else str(record.event.__struct_config__.tag),
            run=envelope.run,
            goal=envelope.goal_id,
            parent=state.parent,
            agent=state.agent.name,
            scope=envelope.scope,
            iteration=envelope.iteration,
            seq=envelope.seq,
            data=record.event,
        )

    def on_chunk(self, chunk: Chunk) -> None:
        """Write the chunk's line. Chunks have the level verbose."""
        if SEVERITY["verbose"] < self._least:
            return
        if not self._json:
            said = chunk.content if isinstance(chunk.content, str) else _json(chunk.content)
            call = f" {chunk.call_id}" if chunk.call_id else ""
            self._write(_line(None, "verbose", chunk.run_id, (chunk.scope, chunk.iteration), f"{chunk.kind}{call}: {said}"))
            return
        self._write_json(
            time=None,
            level="verbose",
            type=f"{chunk.kind}_chunk",
            run=chunk.run_id,
            goal=chunk.goal_id,
            parent=chunk.parent,
            agent=chunk.agent,
            scope=chunk.scope,
            iteration=chunk.iteration,
            seq=None,
            data={"content": chunk.content, "call": chunk.call_id},
        )

    def _write_json(self, *, time: datetime | None, level: str, type: str, **fields: Any) -> None:  # noqa: A002 - the key of the line
        head = {"time": time, "level": level, "severity": SEVERITY[level], "type": type, "source": "detent"}
        self._write(encode({**head, **fields}).decode(), cut=False)

    def _write(self, line: str, *, cut: bool = True) -> None:
        if cut:
            line = line[: self._width + 1].replace("\n", " ").replace("\t", " ")  # on one line, and cut to what is shown
        line = clean(line)
        if cut:
            line = line if len(line) <= self._width else line[: self._width - 1] + "…"
        stream = self._stream or sys.stderr
        stream.write(line + "\n")
        stream.flush()


def level_of(event: e.AnyEvent | None) -> Level:
    """Return the level of an event."""
    match event:
        case e.RunFinished(status="completed"):
            return "info"
        case e.RunFinished(status="stopped") | e.DeadLettered():
            return "warning"
        case e.RunFinished():
            return "error"
        case e.ToolFinished(error=error) if error is not None:
            return "warning"
        case e.PolicyDecided(decision="deny" | "stop"):
            return "warning"
        case _ if isinstance(event, _WARNING):
            return "warning"
        case _ if isinstance(event, (*_INFO, *_INFO_TOO)):
            return "info"
        case _:
            return "verbose"


def told(event: e.AnyEvent | None) -> str:  # noqa: PLR0911 - one sentence an event
    """Return one line that describes an event in words."""
    match event:
        case None:
            return "erased"
        case e.RunStarted(goal=goal, agent=agent):
            return f"run started: {agent.name} works on {goal!r}"
        case e.RunWaiting(status=status):
            return status.replace("_", " ")
        case e.RunFinished(status="completed", output=output, reason=reason):
            return f"run completed ({reason}): {output if isinstance(output, str) else _json(output)}"
        case e.RunFinished(status=status, reason=reason, error=error):
            return f"run {status} ({reason}): {error}" if error else f"run {status} ({reason})"
        case e.TurnStarted(iteration=iteration):
            return f"turn {iteration}"
        case e.Planned(actions=actions, text=text):
            return f"planned {', '.join(_action(a) for a in actions)}" + (f": {text}" if text else "")
        case e.ModelCallStarted() | e.ModelCallFinished() | e.ModelCallFailed():
            return _model_call(event)
        case e.ToolStarted(tool=tool, call=call, attempt=attempt):
            return f"tool {tool} begins ({call}" + (f", attempt {attempt})" if attempt > 1 else ")")
        case e.ToolFinished(call=call, error=error) if error is not None:
            return f"call {call} failed: {error.code}: {error.message}"
        case e.ToolFinished(call=call, result=result, latency_ms=ms):
            return f"call {call} gave {bytes(result).decode()} in {ms:.1f} ms"
        case _:
            return _plain(event)


def _model_call(event: e.ModelCallStarted | e.ModelCallFinished | e.ModelCallFailed) -> str:
    """Return the description of a model call, with tokens and cost."""
    if isinstance(event, e.ModelCallStarted):
        return f"model {event.model} is asked ({event.call}" + (f", attempt {event.attempt})" if event.attempt > 1 else ")")
    used = event.usage
    spent = f"{used.input_tokens} tokens in, {used.output_tokens} out" + ("" if used.cost_usd is None else f", {used.cost_usd:.4f} USD")
    if isinstance(event, e.ModelCallFailed):
        return f"model call {event.call} failed: {event.kind}: {event.error}" + (f" ({spent})" if used.total_tokens else "")
    return f"model {event.model} answered {event.call}: {spent} in {event.latency_ms:.0f} ms"


def _plain(event: e.AnyEvent) -> str:
    """Return any other event as its name and its fields."""
    fields: dict[str, Any] = msgspec.to_builtins(event)
    name = str(fields.pop("type")).replace("_", " ")
    return " ".join([name, *(f"{k}={v if isinstance(v, str) else _json(v)}" for k, v in fields.items())])


def _action(action: Any) -> str:
    if hasattr(action, "tool"):
        return f"{action.tool}({action.args if isinstance(action.args, str) else _json(action.args)})"
    return type(action).__name__


def _line(at: datetime | None, level: str, run: str, where: tuple[str, int], said: str) -> str:
    """Return `time level run pass.turn what`. Of the run id it shows the random part, which tells runs apart."""
    time = f"{at:%H:%M:%S}" if at else " " * 8
    turn = f" {where[0]}.{where[1]}" if where[0] else ""
    return f"{time} {level:<7} {run.rsplit('-', 1)[-1]}{turn} {said}"


def _json(value: Any) -> str:
    return encode(value).decode()
