"""Logs made by hand: events in, sealed lines and the fold out, without kernel, engine or clock."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import msgspec

from detent.core import events as e
from detent.core.actions import Thought, ToolCall
from detent.core.agent import AgentSpec
from detent.core.budget import DEFAULT, Budget
from detent.core.codec import decode_event, encode, seal
from detent.core.fold import evolve
from detent.core.records import Envelope, Record
from detent.core.settle import Verdict, settle
from detent.core.state import KernelState, RunState
from detent.testing.clocks import EPOCH


class Log:
    """A log that grows by `add`; `state` is the fold of `lines`. Record n is stamped n seconds after the start."""

    def __init__(self, run_id: str = "run") -> None:
        self.state = RunState(run_id=run_id)
        self.lines: list[bytes] = []
        self.states: list[RunState] = []
        self.events: list[e.AnyEvent] = []

    def add(self, *events: e.AnyEvent, scope: str = "main") -> Log:
        """Append `events`; raise `IllegalEvent` for one that cannot follow, and then the log stays as it was."""
        for event in events:
            seq = self.state.seq + 1
            body = encode(event)
            at = EPOCH + timedelta(seconds=seq)
            envelope = Envelope(run=self.state.run_id, seq=seq, at=at, scope="" if isinstance(event, RUN_WIDE) else scope)
            line, digest = seal(envelope, body, previous=self.state.digest, salt=f"{seq:016d}")
            self.state = evolve(self.state, Record(envelope, decode_event(body), digest))
            self.lines.append(line)
            self.states.append(self.state)
            self.events.append(event)
        return self

    @property
    def main(self) -> KernelState:
        """The pass `main`."""
        return self.state.passes["main"]


RUN_WIDE = (
    e.RunStarted,
    e.RunResumed,
    e.LevelsAccepted,
    e.AnswerRefused,
    e.RunReopened,
    e.RunWaiting,
    e.RunFinished,
    e.DeadLettered,
    e.Forked,
    e.Erased,
    e.BudgetChanged,
    e.PassStarted,
    e.StrategySwitched,
    e.CancelRequested,
    e.MessageReceived,
    e.SessionEnded,
    e.ConversationErased,
    e.MemoryProposed,
    e.MemoryWritten,
    e.MemorySuperseded,
    e.MemoryTombstoned,
)


def raw(value: Any) -> msgspec.Raw:
    """Return a result as it stands in an event."""
    return msgspec.Raw(encode(value))


def started(**agent: Any) -> e.RunStarted:
    """Return the first event of a run of an agent with these options."""
    budget = agent.pop("budget", DEFAULT)
    return e.RunStarted(goal="count", agent=AgentSpec(name="worker", **agent), budget=budget)


def opened(**agent: Any) -> Log:
    """Return a log in which the pass `main` is about to begin its first turn."""
    return Log().add(started(**agent), e.PassStarted(key="main", kernel="react"))


def turn(log: Log) -> Log:
    """Begin the next turn."""
    return log.add(e.TurnStarted(iteration=log.main.iteration + 1))


def planned(*actions: Any, **fields: Any) -> e.Planned:
    """Return a plan of these actions."""
    return e.Planned(actions=actions, **fields)


def calls(*numbers: int, tool: str = "look") -> e.Planned:
    """Return a plan of one call a number."""
    return planned(*(ToolCall(tool=tool, args={"n": n}) for n in numbers))


def begun(call: str = "main.1.0", *, attempt: int = 1, tool: str = "look", digest: str = "d", **fields: Any) -> e.ToolStarted:
    """Return the start of an attempt of a call."""
    return e.ToolStarted(call=call, tool=tool, key=f"key-{call}", digest=digest, attempt=attempt, **{"side_effect": "read", **fields})


def ended(call: str = "main.1.0", result: Any = 1, **fields: Any) -> e.ToolFinished:
    """Return the good end of a call."""
    return e.ToolFinished(call=call, result=raw(result), **fields)


def failed(call: str = "main.1.0", code: str = "handler_error", **fields: Any) -> e.ToolFinished:
    """Return the bad end of a call."""
    return e.ToolFinished(call=call, error=e.ToolError(code=code, message=f"no: {code}"), **fields)


def worked(log: Log, result: Any, *, ok: bool = True, **fields: Any) -> Log:
    """Go through a turn of one call that gives `result`, or fails."""
    turn(log).add(calls(0))
    call = f"main.{log.main.iteration}.0"
    return log.add(begun(call, **fields), ended(call, result) if ok else failed(call))


def decide(log: Log, *, turn_over: bool = True, running_s: float = 0.0, **also: Any) -> Verdict:
    """Ask how the run goes on."""
    return settle(log.state, log.main, running_s=running_s, total_s=also.get("total_s", 0.0), turn_over=turn_over)


def bounded(**limits: Any) -> Log:
    """Return an opened run with these bounds over the defaults."""
    return opened(budget=Budget(**limits).over(DEFAULT))


def rejected(log: Log) -> Log:
    """Go through a turn without a valid plan."""
    return turn(log).add(*(e.PlanRejected(problem="text", attempt=n) for n in (1, 2, 3)))


def stalled(turns: int, *, base: int = 3, reflections: int = 3) -> Log:
    """Return a run that thinks and thinks."""
    log = bounded(max_non_progress=base)
    for _ in range(reflections):
        log.add(e.Reflected(message="look again"))
    for _ in range(turns):
        turn(log).add(planned(Thought(content="hm")))
    return log


def started_call() -> Log:
    """Return a run whose first call is running."""
    return turn(opened()).add(calls(0, 1), begun())


def finished_call() -> Log:
    """Return a run whose first of two calls has its outcome."""
    return started_call().add(ended())


def in_doubt() -> Log:
    """Return a run whose first call is in doubt."""
    return started_call().add(e.ToolInDoubt(call="main.1.0", why="crash"))


def stopped() -> Log:
    """Return a run that is stopped."""
    return turn(opened()).add(e.RunFinished(status="stopped", reason="cancelled"))


def settled(source: Any, outcome: Any = "happened", *, attempt: int = 0) -> e.ToolReconciled:
    """Return the settlement of the first call."""
    return e.ToolReconciled(call="main.1.0", outcome=outcome, source=source, result=raw("r"), attempt=attempt)
