"""What a planner may ask for: a closed tagged union. Actions are requests; nothing here says that anything happened."""

from __future__ import annotations

from typing import Any

import msgspec

type_tag = "type"


def snake(name: str) -> str:
    """Return the wire tag of a class name: `ToolCall` becomes `tool_call`."""
    return "".join(f"_{c.lower()}" if c.isupper() and i else c.lower() for i, c in enumerate(name))


class Action(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False, tag_field=type_tag, tag=snake):
    """The root of all actions; `reason` is the planner's own explanation, for people."""

    reason: str = ""


class ToolCall(Action, frozen=True, kw_only=True):
    """Run the tool `tool` with `args`: a JSON object, or text that must parse as one.

    `provider_id` is the id that a model gave the call; the kernel mints its own call ids.
    """

    tool: str
    args: Any = msgspec.field(default_factory=dict[str, Any])
    provider_id: str = ""


class FinalAnswer(Action, frozen=True, kw_only=True):
    """End the pass with `content` as its output: text, or JSON where an output schema is given."""

    content: Any


class AskUser(Action, frozen=True, kw_only=True):
    """Wait for a reply; `expected` is a JSON Schema that the reply must satisfy."""

    question: str
    expected: dict[str, Any] | None = None


class Stop(Action, frozen=True, kw_only=True):
    """End the run without an output; `reason` says why."""


class Abstain(Action, frozen=True, kw_only=True):
    """End the run because an honest answer is not possible; `missing` says what would be needed."""

    missing: tuple[str, ...] = ()


class Thought(Action, frozen=True, kw_only=True):
    """Put `content` on record and go on; uses an iteration."""

    content: str


class PushGoal(Action, frozen=True, kw_only=True):
    """Open a sub-goal below the current one."""

    goal: str


class CompleteGoal(Action, frozen=True, kw_only=True):
    """Close the open sub-goal `goal_id` (empty: the innermost one)."""

    goal_id: str = ""
    outcome: str = ""


class Schedule(Action, frozen=True, kw_only=True):
    """Wait until `at` (ISO 8601) or for `delay_s` seconds."""

    at: str = ""
    delay_s: float | None = None


class SpawnSubagent(Action, frozen=True, kw_only=True):
    """Start `agent` on `goal` as a child run; `join` says whether to wait for it now."""

    agent: str
    goal: str
    join: bool = True
    budget: dict[str, Any] | None = None


class JoinSubagent(Action, frozen=True, kw_only=True):
    """Wait for the child run `child`."""

    child: str


class CancelSubagent(Action, frozen=True, kw_only=True):
    """Cancel the child run `child`."""

    child: str


AnyAction = (
    ToolCall
    | FinalAnswer
    | AskUser
    | Stop
    | Abstain
    | Thought
    | PushGoal
    | CompleteGoal
    | Schedule
    | SpawnSubagent
    | JoinSubagent
    | CancelSubagent
)
