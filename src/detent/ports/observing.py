"""Observation: who is told what happens, and hooks."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextvars import ContextVar
from typing import Any, Literal, Protocol

import msgspec

from detent.core.errors import Explained
from detent.core.records import Record
from detent.core.state import KernelState, RunState


class Chunk(msgspec.Struct, frozen=True, kw_only=True):
    """Something streamed while it happens: immediate, best effort, never stored.

    `text` and `thinking` of a model, `progress` of a call as the tool tells it. `tool` when an attempt of a call begins (content: `tool`,
    `args`, `attempt`; a reading call's start stands in no record), `model` when a model is asked (`model`, `attempt`, `purpose`; the record
    of that is often committed with the answer).
    """

    kind: Literal["text", "thinking", "model", "tool", "progress"]
    run_id: str
    goal_id: str
    agent: str
    scope: str
    iteration: int
    content: Any
    call_id: str = ""
    parent: str = ""


class Observer(Protocol):
    """Is told what happened. Called in order, after the commit of each record; it can never fail a run."""

    def on_record(self, record: Record, state: RunState) -> Any:
        """Take a committed record and the state after it; may be a coroutine function."""
        ...

    def on_chunk(self, chunk: Chunk) -> None:
        """Take a streamed chunk."""
        ...


def _nothing(*_: Any) -> None:
    return None


class Skip(msgspec.Struct, metaclass=Explained, frozen=True):
    """What a hook before a phase answers to leave the phase out; calls that `act` would have run, or the answer, are refused for this reason."""

    reason: str


class Abort(msgspec.Struct, metaclass=Explained, frozen=True):
    """What a hook before or after a phase answers to stop the run (`policy_stopped`)."""

    reason: str


PhaseHook = Callable[[KernelState], Any]
"""A plain or coroutine function of a copy of the state; it returns None, `Skip` (before a phase only) or `Abort`."""


class KernelHooks(msgspec.Struct, metaclass=Explained, frozen=True, kw_only=True):
    """The lifecycle hooks of a kernel; each does nothing unless given, and what it raises is reported and fails no run.

    on_thought      a plan was recorded                      (state, text)
    on_action       an attempt of a tool call begins         (state, tool, call id)
    on_observation  a call has an outcome                    (state, result as JSON text or error, success, call)
    on_done         the pass ended well                      (state)
    on_error        the pass ended badly                     (state, error)

    `state` is the `KernelState` after the record. A hook is a plain or a coroutine function.

    `before` and `after` are hooks of phases by name (`think`, `act`, those of one's own kernel); `before` may also have `answer`, which is asked
    about an answer to the goal before it counts (`state.output`). What they decide stands in the log: a
    resumed turn or a replay does not ask again. They see copies: arguments can be refused and never changed. Where the hook before `act`
    fails, the calls are refused, and where the one before `answer` does, the answer.
    """

    on_thought: Callable[..., Any] = _nothing
    on_action: Callable[..., Any] = _nothing
    on_observation: Callable[..., Any] = _nothing
    on_done: Callable[..., Any] = _nothing
    on_error: Callable[..., Any] = _nothing
    before: Mapping[str, PhaseHook] = {}
    after: Mapping[str, PhaseHook] = {}


noop_hooks = KernelHooks()
"""Hooks that do nothing (row S0-14)."""


async def awaited(answer: Awaitable[Any]) -> Any:
    """Await it, however long that takes."""
    return await answer


PATIENCE: ContextVar[Callable[[Awaitable[Any]], Awaitable[Any]]] = ContextVar("detent_patience", default=awaited)
"""Awaits each hook and observer: a run that is to stop waits for none without end (`TimeoutError`)."""
