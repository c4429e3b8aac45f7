"""An object as an action: the spellings in which models write calls and control actions as JSON.

Rule: nothing in the object is ignored. A field that is neither the tool's name, nor its arguments, nor a note of the model to
itself may change the meaning, so the object is refused. So is one that names the tool or the arguments twice.
"""

from __future__ import annotations

import re
from collections.abc import Container
from typing import Any, cast

import msgspec

from detent.core.actions import AnyAction, AskUser, FinalAnswer, PushGoal, Thought, ToolCall, is_blank, snake
from detent.expressions.markup import clean
from detent.planners.text.json_objects import Found, objects_in, plain_json
from detent.planners.text.offers import CONTROLS, Offer, Unreadable, properties_of
from detent.ports.lead_ins import negates

_SYNONYMS = {
    "final_answer": ("answer", "final_answer", "output", "text", "result", "response", "action_input"),
    "ask_user": ("content", "text", "message"),
    "stop": ("content", "message"),
    "thought": ("thought", "text"),
    "abstain": ("content",),
    "push_goal": ("content",),
    "complete_goal": ("content",),
    "schedule": ("content",),
}
_TOOL = ("tool", "name", "tool_name", "function", "action")
_ARGS = ("args", "arguments", "parameters", "input", "params", "tool_input", "action_input")
_CALLS = ("tool_call", "function_call", "call", "function", "tool_use", "tool", "action")
_LISTS = ("actions", "tool_calls", "calls")
_THOUGHTS = ("reason", "thought", "thoughts", "thinking", "reasoning", "explanation", "step")
_ASIDE = {"id", "call_id", "tool_call_id", "index", "createdAt", "created_at", *_THOUGHTS}
"""Notes of a model to itself, which do not change the action. A thought beside a call must not contain a negation."""


def object_in(text: str) -> tuple[dict[str, Any], bool]:
    """Return the object of a text, and whether it had to be mended. Raise `Unreadable` if the text is anything else, or more."""
    bare = text.strip()
    match objects_in(bare):
        case [Found(start=0, end=end, value=value, mended=mended)] if end == len(bare) and isinstance(value, dict):
            return cast("dict[str, Any]", value), mended
        case [Found(problem=problem), *_] if problem:
            raise Unreadable(problem)
        case _:
            raise Unreadable("the arguments are not one JSON object")


def looks_like_action(value: Any, offer: Offer) -> bool:
    """Whether data is meant as one or several actions, and not as an answer of another form."""
    values = cast("list[Any]", value) if isinstance(value, list) else [value]
    for item in values:
        if not isinstance(item, dict):
            continue
        keys = set(cast("dict[str, Any]", item))
        if keys & {"type", "tool", "tool_name", "action", "function", *_LISTS} or ("name" in keys and keys & set(_ARGS)):
            return True
        if len(keys) == 1 and keys & {*offer.tools, *CONTROLS, *_CALLS}:
            return True
    return False


def unfolded(value: Any, offer: Offer) -> list[Any]:
    """Return the actions of a list, of `{"actions": [...]}` or of a single object. Raise `Unreadable` for a list with other content."""
    if isinstance(value, list):
        return cast("list[Any]", value)
    if isinstance(value, dict):
        fields = cast("dict[str, Any]", value)
        for name in _LISTS:
            inner: Any = fields.get(name)
            if isinstance(inner, list) and not any(tool in (name, fields.get("type")) for tool in offer.tools):
                _nothing_beside(fields, {name})
                if not all(
                    isinstance(one, dict) and cast("dict[str, Any]", one).get("type") in CONTROLS for one in cast("list[Any]", inner)
                ):
                    _nothing_negated(fields)
                return cast("list[Any]", inner)
    return [value]


def _nothing_beside(fields: dict[str, Any], read: set[str]) -> None:
    """Raise `Unreadable` if an object has other fields than those in `read`, and notes."""
    typed = {"type"} if fields.get("type") in (None, *_CALLS, *_LISTS) else set[str]()
    if more := sorted(fields.keys() - read - _ASIDE - typed):
        raise Unreadable(f'{", ".join(repr(name[:40]) for name in more[:3])} has no meaning beside a call; arguments stand in "args"')


def _nothing_negated(fields: dict[str, Any], known: Container[str] = ()) -> None:
    """Raise `Unreadable` if a thought beside a call, not one of its `known` arguments, may mean that the call is not to be made."""
    for name in _THOUGHTS:
        if name not in known and isinstance(fields.get(name), str) and negates(fields[name]):
            raise Unreadable(f'there is a negation in its "{name}"; to make the call, leave that out')


def action_of(value: Any, offer: Offer) -> AnyAction:
    """Return the action of an object. Raise `Unreadable`."""
    if not isinstance(value, dict):
        raise Unreadable(f"an action is a JSON object, not {type(value).__name__}")
    fields = cast("dict[str, Any]", value)
    kind: Any = fields.get("type")
    if isinstance(kind, str):
        return _typed(kind, fields, offer)
    if call := _untyped_call(fields, offer):
        return call
    if len(fields) == 1:
        ((name, inner),) = fields.items()
        if name in offer.tools and isinstance(inner, dict) and "tool_call" in offer.actions:
            return ToolCall(tool=name, args=inner)
        if name in _CALLS and isinstance(inner, dict) and (call := _untyped_call(cast("dict[str, Any]", inner), offer)):
            return call
        control = _control_name(name)
        if control in CONTROLS and control in offer.actions:
            return _control(control, cast("dict[str, Any]", inner) if isinstance(inner, dict) else {CONTROLS[control][1]: inner})
    if "final_answer" in offer.actions and offer.output_schema is not None and plain_json(fields) and not offer.answer_problem(fields):
        return FinalAnswer(content=fields)
    raise Unreadable('the object has no "type"')


def _typed(kind: str, fields: dict[str, Any], offer: Offer) -> AnyAction:
    control = kind if kind in offer.tools else _control_name(kind)
    if control in CONTROLS and (control in offer.actions or kind not in offer.tools):
        if control not in offer.actions:
            raise Unreadable(f'"{control}" is not possible here; possible: {", ".join(offer.actions)}')
        return _control(control, fields)
    if "tool_call" not in offer.actions:
        raise Unreadable(f'"{kind[:60]}" is not possible here; possible: {", ".join(offer.actions)}')
    if kind in offer.tools:
        return ToolCall(tool=kind, args=_arguments_beside(kind, fields, offer), reason=_reason(fields))
    if kind in _CALLS:
        if call := _untyped_call(fields, offer):
            return call
        raise Unreadable('a tool_call needs "tool", the name of a tool, and "args", an object')
    raise Unreadable(
        f'"{kind[:60]}" is no action and no tool; tools: {", ".join(offer.tools) or "none"}; actions: {", ".join(offer.actions)}'
    )


def _control_name(name: str) -> str:
    """Return a control action's name in its canonical form: `Final Answer` and `FinalAnswer` become `final_answer`."""
    said = name.strip()
    return re.sub(r"[\s-]+", "_", said.lower() if " " in said else snake(said))


def _untyped_call(fields: dict[str, Any], offer: Offer) -> AnyAction | None:
    """Return the call of `{"tool": ..., "args": ...}` in its spellings, None if it is not one. Raise `Unreadable` for arguments of a wrong kind."""
    for spelling in _TOOL:
        name: Any = fields.get(spelling)
        if isinstance(name, dict) and spelling in _CALLS:
            _nothing_beside(fields, {spelling})
            _nothing_negated(fields)
            return _untyped_call(cast("dict[str, Any]", name), offer)
        if not isinstance(name, str):
            continue
        control = _control_name(name)
        if spelling == "action" and control in CONTROLS and control in offer.actions and name not in offer.tools:
            return _control(control, fields)
        given = [key for key in _ARGS if key in fields][:1]
        if spelling == "name" and not given and name not in offer.tools:
            continue
        if "tool_call" not in offer.actions:
            raise Unreadable(f"tool calls are not possible here; possible: {', '.join(offer.actions)}")
        doing = {"action"} if fields.get("action") in _CALLS else set[str]()
        _nothing_beside(fields, {spelling, *given, *doing})
        _nothing_negated(fields)
        return ToolCall(tool=name, args=_as_object(next((fields[key] for key in given), None)), reason=_reason(fields))
    return None


def _arguments_beside(tool: str, fields: dict[str, Any], offer: Offer) -> dict[str, Any]:
    """Return the arguments beside the tool's name, or under `args` if the tool has no argument of that name."""
    rest = {name: value for name, value in fields.items() if name != "type"}
    known = properties_of(offer.tools[tool])
    _nothing_negated(fields, known)
    for spelling in _ARGS:
        if spelling in rest and spelling not in known and rest.keys() <= {spelling, *_ASIDE}:
            return _as_object(rest[spelling])
    return {name: value for name, value in rest.items() if name in known or name not in _ASIDE}


def _as_object(args: Any) -> dict[str, Any]:
    """Return arguments as an object; text must be JSON."""
    if args is None:
        return {}
    if isinstance(args, str):
        try:
            args, mended = object_in(args or "{}")
        except Unreadable:
            mended = True
        if mended:
            raise Unreadable("the arguments are text that is not JSON; send an object")
    if not isinstance(args, dict):
        raise Unreadable(f"the arguments must be a JSON object, not {type(args).__name__}")
    return cast("dict[str, Any]", args)


def _reason(fields: dict[str, Any]) -> str:
    reason = fields.get("reason")
    return reason if isinstance(reason, str) else ""


def _control(name: str, fields: dict[str, Any]) -> AnyAction:
    """Return a control action. Raise `Unreadable` if its fields are missing or of the wrong kind."""
    kind, main = CONTROLS[name]
    value = next((fields[key] for key in (main, *_SYNONYMS[name]) if fields.get(key) is not None), None)
    given: dict[str, Any] = {key: fields[key] for key in kind.__struct_fields__ if fields.get(key) is not None}
    if value is not None:
        given[main] = value
    if isinstance(given.get("missing"), str):
        given["missing"] = [given["missing"]]
    if not plain_json(given):
        raise Unreadable(f"the {name} holds a number or a text that JSON cannot keep")
    try:
        return msgspec.convert(given, kind, strict=True)
    except msgspec.ValidationError as error:
        raise Unreadable(f'a {name} needs "{main}": {error}') from None


def problem_with(action: AnyAction, offer: Offer) -> str:
    """Return the problem of an action, "" if there is none."""
    match action:
        case ToolCall(tool=tool, args=args):
            if tool not in offer.tools:
                return f"there is no tool {tool[:60]!r}; tools: {', '.join(offer.tools) or 'none'}"
            if not plain_json(args):
                return f"the arguments of {tool} hold a number or a text that JSON cannot keep"
            problem = offer.problem_of(args, tool)
            return f"the arguments of {tool} do not fit: {problem}" if problem else ""
        case FinalAnswer(content=content):
            if is_blank(clean(content)):
                return "the final answer is blank"
            if problem := offer.answer_problem(content):
                return f"the answer does not fit the output schema: {problem}"
        case AskUser(question=said) | Thought(content=said) | PushGoal(goal=said):
            if is_blank(said):
                return f"the {snake(type(action).__name__)} is blank"
        case _:
            pass
    return ""
