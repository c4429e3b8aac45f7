"""A model's possible answers: the offered tools and control actions, and how arguments and answers are checked."""

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
    """A model's possible answers: the offered tools by name, the control actions, and the schema of the answer if there is one.

    `problem_of(args, tool)` returns why arguments do not fit the tool's schema, "" if they do; `answer_problem` the same for an answer.
    `stop`: texts at which a model that does not stop begins to invent what others say; an answer ends there.
    `native`: the model's provider marks its calls, so its text is its answer. A typed answer is given by calling `answer_tool`, or as text if
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
    """The model's text is not a call or action that can be executed; the message is for the model."""


def properties_of(spec: ToolSpec) -> dict[str, Any]:
    """Return the parameters of a tool by name, with the schema of each."""
    found: Any = spec.input_schema.get("properties")
    return cast("dict[str, Any]", found) if isinstance(found, dict) else {}
