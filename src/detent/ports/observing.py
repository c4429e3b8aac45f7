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
    """A streamed piece: immediate, best effort, never stored.

    The kinds: `text` and `thinking` of a model; `progress` of a call, as its tool reports it; `tool` when an attempt of a call begins (content:
    `tool`, `args`, `attempt`; the start of a reading call is not recorded); `model` when a model is called (`model`, `attempt`, `purpose`; the
    record of it is often committed together with the answer); `retry` before a failed model call is tried again (`call`, `attempt`, `of`,
    `in_s`; `ModelCallFailed` has the reason).
    """

    kind: Literal["text", "thinking", "model", "retry", "tool", "progress"]
    run_id: str
    goal_id: str
    agent: str
    scope: str
    iteration: int
    content: Any
    call_id: str = ""
    parent: str = ""


class Observer(Protocol):
    """Receives what happened. It is called in order, after the commit of each record, and can never fail a run."""

    def on_record(self, record: Record, state: RunState) -> Any:
        """Receive a committed record and the state after it. May be a coroutine function."""
        ...

    def on_chunk(self, chunk: Chunk) -> None:
        """Receive a streamed chunk."""
        ...


def placed(record: Record, agent: str, parent: str) -> Record:
    """Return the record with the agent and the parent of its run in its envelope, where only a first record has them stored."""
    return Record(msgspec.structs.replace(record.envelope, agent=agent, parent=parent), record.event, record.digest)


def _nothing(*_: Any) -> None:
    return None


class Skip(msgspec.Struct, metaclass=Explained, frozen=True):
    """Return it from a hook before a phase to skip the phase. The calls that `act` would have run, or the answer, are refused for this reason."""

    reason: str


class Abort(msgspec.Struct, metaclass=Explained, frozen=True):
    """Return it from a hook before or after a phase to stop the run (`policy_stopped`)."""

    reason: str


PhaseHook = Callable[[KernelState], Any]
"""A plain or coroutine function of a copy of the state. It returns None, `Skip` (only before a phase) or `Abort`."""


class KernelHooks(msgspec.Struct, metaclass=Explained, frozen=True, kw_only=True):
    """The lifecycle hooks of a kernel. Each is optional. An exception in one is reported and does not fail the run.

    on_thought      a plan was recorded                      (state, text)
    on_action       an attempt of a tool call begins         (state, tool, call id)
    on_observation  a call has an outcome                    (state, result as JSON text or error, success, call)
    on_done         the pass ended well                      (state)
    on_error        the pass ended badly                     (state, error)

    `state` is the `KernelState` after the record. A hook is a plain or a coroutine function.

    `before` and `after` have hooks of phases by name (`think`, `act`, or those of your own kernel). `before` may also have `answer`, which is
    called with an answer to the goal before it counts (`state.output`). The log records their decisions, so a resumed turn or a replay does not
    call them again. They get copies, so they can refuse arguments but never change them. If the hook before `act` raises, the calls are refused;
    if the hook before `answer` raises, the answer is refused.
    """

    on_thought: Callable[..., Any] = _nothing
    on_action: Callable[..., Any] = _nothing
    on_observation: Callable[..., Any] = _nothing
    on_done: Callable[..., Any] = _nothing
    on_error: Callable[..., Any] = _nothing
    before: Mapping[str, PhaseHook] = {}
    after: Mapping[str, PhaseHook] = {}


noop_hooks = KernelHooks()
"""Hooks that do nothing."""  # row S0-14


async def awaited(answer: Awaitable[Any]) -> Any:
    """Await it without a time limit."""
    return await answer


PATIENCE: ContextVar[Callable[[Awaitable[Any]], Awaitable[Any]]] = ContextVar("detent_patience", default=awaited)
"""Awaits each hook and observer. A run that is stopping does not wait for one without end (`TimeoutError`)."""
