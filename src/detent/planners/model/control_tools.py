"""Control actions as tools that a model may call if its agent allows them: asking the user, stopping, goals, waiting, abstaining.

If a model calls one next to other tools, the control action counts; the other calls are recorded as not run.
"""  # DESIGN 4

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from detent.core import actions as a
from detent.core.errors import ConfigError, MalformedPlan
from detent.ports import UNREADABLE, read_json

ANSWER_TOOL = "final_result"
"""The tool for giving a typed answer."""


def _object(required: Sequence[str], **properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(required), "additionalProperties": False}


def _text(description: str) -> dict[str, Any]:
    return {"type": "string", "description": description}


_MISSING = {"type": "array", "items": {"type": "string"}, "description": "What would be needed."}
_TOOLS: dict[str, tuple[str, dict[str, Any]]] = {
    "ask_user": (
        "Ask the user a question and wait for the reply. Only for what no tool can tell you.",
        _object(["question"], question=_text("One clear question.")),
    ),
    "stop": ("End the work without a result.", _object(["reason"], reason=_text("Why the goal cannot or should not be reached."))),
    "abstain": ("End the work because an honest answer is not possible.", _object(["reason"], reason=_text("Why."), missing=_MISSING)),
    "push_goal": ("Open a sub-goal below the current goal.", _object(["goal"], goal=_text("What is to be achieved."))),
    "complete_goal": (
        "Close a sub-goal that is achieved.",
        _object(["outcome"], outcome=_text("What came of it."), goal_id=_text("Which; the innermost open one when left out.")),
    ),
    "schedule": (
        "Wait until a time, or for a number of seconds, and go on then.",
        _object([], at=_text("ISO 8601 with a time zone."), delay_s={"type": "number", "exclusiveMinimum": 0, "description": "Seconds."}),
    ),
}
ACTIONS = tuple(name for name in _TOOLS if name != "complete_goal")
"""What `AgentSpec.actions` may list; `push_goal` brings `complete_goal`."""

RETURNS = {
    "ask_user": "The question was put to the user; the reply follows.",
    "push_goal": "The sub-goal is open.",
    "complete_goal": "Noted.",
    "schedule": "The wait is set; you go on when it is over.",
    "stop": "Noted.",
    "abstain": "Noted.",
    ANSWER_TOOL: "Noted.",
}
"""The result of each, as the model reads it."""


def offered(allowed: Sequence[str], tools: Sequence[str]) -> tuple[str, ...]:
    """Return the names of the control tools that an agent allows. Raise `ConfigError` for an unknown one, or one with the name of a tool."""
    names: list[str] = []
    for name in allowed:
        if name not in ACTIONS:
            raise ConfigError(f"actions: unknown action {name!r}; known: {', '.join(ACTIONS)}")
        names += [name, "complete_goal"] if name == "push_goal" else [name]
    for name in names:
        if name in tools:
            raise ConfigError(f"actions: {name!r} is also the name of a tool of this agent; rename the tool, or leave the action out")
    return tuple(dict.fromkeys(names))


def definition(name: str) -> tuple[str, dict[str, Any]]:
    """Return the description and the input schema of a control tool."""
    return _TOOLS[name]


def action_of(name: str, args: Any) -> a.AnyAction:
    """Return the action of a control tool's call. Raise `MalformedPlan` for arguments that do not fit."""
    if isinstance(args, str):
        try:
            args = read_json(args or "{}")
        except UNREADABLE as error:
            raise MalformedPlan(f"{name}: its arguments are no JSON ({error})", raw=args) from None
    if not isinstance(args, dict):
        raise MalformedPlan(f"{name}: its arguments must be an object", raw=str(args))
    given = cast("dict[str, Any]", args)
    match name:
        case "ask_user":
            return a.AskUser(question=_said(name, given, "question"))
        case "stop":
            return a.Stop(reason=_said(name, given, "reason"))
        case "abstain":
            missing: Any = given.get("missing") or []
            listed = cast("list[Any]", missing) if isinstance(missing, list) else [missing]
            return a.Abstain(reason=_said(name, given, "reason"), missing=tuple(str(m) for m in listed))
        case "push_goal":
            return a.PushGoal(goal=_said(name, given, "goal"))
        case "complete_goal":
            return a.CompleteGoal(goal_id=str(given.get("goal_id") or ""), outcome=str(given.get("outcome") or ""))
        case "schedule":
            return _schedule(given)
        case _:
            raise AssertionError(f"{name!r} is not a control tool")


def _schedule(given: dict[str, Any]) -> a.Schedule:
    at, delay = given.get("at") or "", given.get("delay_s")
    if isinstance(at, str) and at:
        return a.Schedule(at=at)
    if isinstance(delay, int | float) and not isinstance(delay, bool) and delay > 0:
        return a.Schedule(delay_s=float(delay))
    raise MalformedPlan("schedule: give `at` (a time) or `delay_s` (a number of seconds above 0)", raw=str(given))


def _said(name: str, given: dict[str, Any], key: str) -> str:
    value = given.get(key)
    if not isinstance(value, str) or not value.strip():
        raise MalformedPlan(f"{name}: `{key}` must be a text that says something", raw=str(given))
    return value


def portable(action: Any) -> tuple[str, dict[str, Any]] | None:
    """Return the control tool and arguments for an action of any planner. None if there is none for it."""
    match action:
        case a.AskUser(question=question):
            return "ask_user", {"question": question}
        case a.Stop(reason=reason):
            return "stop", {"reason": reason}
        case a.Abstain(reason=reason, missing=missing):
            return "abstain", {"reason": reason, "missing": list(missing)}
        case a.PushGoal(goal=goal):
            return "push_goal", {"goal": goal}
        case a.CompleteGoal(goal_id=goal_id, outcome=outcome):
            return "complete_goal", {"outcome": outcome, "goal_id": goal_id}
        case a.Schedule(at=at, delay_s=delay):
            return "schedule", {"at": at} if at else {"delay_s": delay}
        case _:
            return None
