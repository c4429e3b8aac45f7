"""What a model may answer with: the offered tools and control actions, and how arguments and answers are checked."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

import msgspec

from detent.core.actions import Abstain, AskUser, CompleteGoal, FinalAnswer, PushGoal, Schedule, Stop, Thought
from detent.ports import ToolSpec

CONTROLS: dict[str, tuple[type[Any], str]] = {
    "final_answer": (FinalAnswer, "content"),
    "ask_user": (AskUser, "question"),
    "stop": (Stop, "reason"),
    "thought": (Thought, "content"),
    "abstain": (Abstain, "missing"),
    "push_goal": (PushGoal, "goal"),
    "complete_goal": (CompleteGoal, "outcome"),
    "schedule": (Schedule, "at"),
}
"""The control actions that a raw-text model may be offered, each with its main field."""

DEFAULT_ACTIONS = ("tool_call", "final_answer", "ask_user", "stop", "thought")
ACTIONS = ("tool_call", *CONTROLS)

Check = Callable[[dict[str, Any], str], str]


class Offer(msgspec.Struct, frozen=True, kw_only=True):
    """What a model may answer with: the offered tools by name, the control actions, and the schema of the answer where there is one.

    `problem_of(args, tool)` returns why arguments do not fit the tool's schema, "" when they do; `answer_problem` the same for an answer.
    `stop`: where a model that goes on talking makes up what others say; an answer ends there.
    `native`: the model's provider marks its calls, and so its text is its answer; a typed one is given by calling `answer_tool`, or as text where
    that is "". `answer_of` returns the answer in the JSON of such a text.
    """

    tools: Mapping[str, ToolSpec]
    actions: tuple[str, ...] = DEFAULT_ACTIONS
    output_schema: dict[str, Any] | None = None
    problem_of: Check = lambda _args, _tool: ""
    answer_problem: Callable[[Any], str] = lambda _answer: ""
    prose: bool = True
    stop: tuple[str, ...] = ()
    native: bool = False
    answer_tool: str = ""
    answer_of: Callable[[Any], Any] = lambda answer: answer


class Unreadable(Exception):
    """What a model wrote is not a call or action that can be carried out; the message is for the model."""


def properties_of(spec: ToolSpec) -> dict[str, Any]:
    """Return the parameters of a tool by name, with the schema of each."""
    found: Any = spec.input_schema.get("properties")
    return cast("dict[str, Any]", found) if isinstance(found, dict) else {}
