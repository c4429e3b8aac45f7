"""What a planner may ask for: a closed tagged union. An action is a request. It does not mean that anything happened."""

from __future__ import annotations

import re
from typing import Any, Literal

import msgspec

from detent.core.durations import Seconds, in_seconds, usually
from detent.core.errors import Explained

type_tag = "type"


def snake(name: str) -> str:
    """Return the wire tag of a class name: `ToolCall` becomes `tool_call`."""
    return "".join(f"_{c.lower()}" if c.isupper() and i else c.lower() for i, c in enumerate(name))


_SEEN = re.compile(
    "[^\\s\\x00-\\x1f\\x7f-\\x9f\\xad\\u034f\\u061c\\u115f\\u1160\\u17b4\\u17b5\\u180b-\\u180f\\u200b-\\u200f\\u2028-\\u202e\\u2060-\\u206f\\u2800\\u3164"
    "\\ufe00-\\ufe0f\\ufeff\\uffa0\\ufff0-\\ufffb\\U0001bca0-\\U0001bca3\\U0001d173-\\U0001d17a\\U000e0000-\\U000e0fff]"
)
"""A visible character. The others are spaces, controls and Unicode's default ignorables; the list is the same on every Python."""


def is_blank(answer: Any) -> bool:
    """Whether an answer is empty: None, or a text without a visible character (zero-width characters do not count)."""
    return answer is None or (isinstance(answer, str) and _SEEN.search(answer) is None)


class Action(msgspec.Struct, metaclass=Explained, frozen=True, kw_only=True, omit_defaults=True, gc=False, tag_field=type_tag, tag=snake):
    """The root of all actions; `reason` is the planner's own explanation, for people."""

    reason: str = ""


class ToolCall(Action, frozen=True, kw_only=True):
    """Run the tool `tool` with `args`: a JSON object, or text that must parse as one.

    `provider_id` is the id that a model gave the call; the kernel makes its own call ids. If the call was read from a text with broken JSON,
    `written` is that text and `mends` lists what was wrong.
    """

    tool: str
    args: Any = msgspec.field(default_factory=dict[str, Any])
    provider_id: str = ""
    written: str = ""
    mends: tuple[str, ...] = ()


class FinalAnswer(Action, frozen=True, kw_only=True):
    """End the pass with `content` as its output: text, or JSON if there is an output schema."""

    content: Any


class AskUser(Action, frozen=True, kw_only=True):
    """Wait for a reply; `expected` is a JSON Schema that a person's reply must satisfy. `to` may be the run that started this one."""

    question: str
    expected: dict[str, Any] | None = None
    to: Literal["user", "parent"] = "user"


class Stop(Action, frozen=True, kw_only=True):
    """End the run without an output; `reason` says why."""


class Abstain(Action, frozen=True, kw_only=True):
    """End the run because an honest answer is not possible; `missing` says what would be needed."""

    missing: tuple[str, ...] = ()


class Thought(Action, frozen=True, kw_only=True):
    """Record `content` and continue. Uses an iteration."""

    content: str


class PushGoal(Action, frozen=True, kw_only=True):
    """Open a sub-goal below the current one."""

    goal: str


class CompleteGoal(Action, frozen=True, kw_only=True):
    """Close the open sub-goal `goal_id` (empty: the innermost one)."""

    goal_id: str = ""
    outcome: str = ""


class Schedule(Action, frozen=True, kw_only=True):
    """Wait until `at` (ISO 8601) or for `delay_s` seconds, which may be text such as `"10m"`."""

    at: str = ""
    delay_s: Seconds[float | None] = usually(None)

    def __post_init__(self) -> None:
        in_seconds(self, "Schedule: ")


class SpawnSubagent(Action, frozen=True, kw_only=True):
    """Start `agent` on `goal` as a child run; `join` says whether to wait for it now, `on_parent_end` what happens to it when this run ends first.

    If it is not waited for, the agent must list the tool `spawn_agent`.
    """

    agent: str
    goal: str
    join: bool = True
    budget: dict[str, Any] | None = None
    on_parent_end: Literal["cancel", "wait", "leave"] | None = None


class JoinSubagent(Action, frozen=True, kw_only=True):
    """Wait for the child run `child`."""

    child: str


class CancelSubagent(Action, frozen=True, kw_only=True):
    """Cancel the child run `child`; `wait`: for nothing, until the child has read that, or until it has ended."""

    child: str
    why: str = ""
    wait: Literal["none", "accepted", "ended"] = "none"


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
