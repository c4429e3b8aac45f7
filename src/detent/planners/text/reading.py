"""What a model's text asks for: tolerant of how it is written, strict about what is executed (DESIGN law 2).

Tolerated: code fences, prose around, think blocks, broken JSON, a tool's name where the type should be, other names for the same field,
arguments as text, several calls. Never: a call from text that is not complete or only mentions one, a tool that is not offered, another
tool's arguments. What was mended must fit the tool's schema; what was sound JSON is left to the kernel to refuse.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import msgspec

from detent.core.actions import (
    Abstain,
    AnyAction,
    AskUser,
    CompleteGoal,
    FinalAnswer,
    PushGoal,
    Schedule,
    Stop,
    Thought,
    ToolCall,
    is_blank,
    snake,
)
from detent.expressions.markup import clean
from detent.planners.text.json_objects import NOISE, Found, objects_in, plain_json, whole_json
from detent.planners.text.think_blocks import split_thinking
from detent.ports import ToolSpec, read_json

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

_SYNONYMS = {
    "final_answer": ("content", "answer", "final_answer", "output", "text", "result", "response", "action_input"),
    "ask_user": ("question", "content", "text", "message"),
    "stop": ("reason", "content", "message"),
    "thought": ("content", "thought", "text"),
    "abstain": ("missing", "content"),
    "push_goal": ("goal", "content"),
    "complete_goal": ("outcome", "content"),
    "schedule": ("at", "content"),
}
_TOOL = ("tool", "name", "tool_name", "function", "action")
_ARGS = ("args", "arguments", "parameters", "input", "params", "tool_input", "action_input")
_CALLS = ("tool_call", "function_call", "call", "function", "tool_use", "tool", "action")
_LISTS = ("actions", "tool_calls", "calls")
_ASIDE = {"id", "reason", "thought", "thoughts", "reasoning", "explanation", "createdAt", "created_at", "step"}

_BEGUN = re.compile(r"""\[?\s*\{\s*["'“]?(?:type|tool|tool_name|name|action|function|actions|tool_calls)["'”]?\s*:""")
"""How an action begins that cannot be read."""

_ENDS = ("</s>", "<|im_end|>", "<|eot_id|>", "<|end|>", "<|endoftext|>")
"""How chat templates mark the end of a message."""

Check = Callable[[dict[str, Any], str], str]


class Offer(msgspec.Struct, frozen=True, kw_only=True):
    """What a model may answer with: the offered tools by name, the control actions, and the schema of the answer where there is one.

    `problem_of(args, tool)` returns why arguments do not fit the tool's schema, "" when they do; `answer_problem` the same for an answer.
    `native`: the model's provider marks its calls, and so its text is its answer; a typed one is given by calling `answer_tool`.
    """

    tools: Mapping[str, ToolSpec]
    actions: tuple[str, ...] = DEFAULT_ACTIONS
    output_schema: dict[str, Any] | None = None
    problem_of: Check = lambda _args, _tool: ""
    answer_problem: Callable[[Any], str] = lambda _answer: ""
    prose: bool = True
    native: bool = False
    answer_tool: str = ""


class Reading(msgspec.Struct, frozen=True, kw_only=True):
    """What a text came to: actions, or the problem that the model is to be told. `thinking` stands apart from `said`.

    `unfit`: the actions are sound, but a tool or its arguments are not as offered; where nothing better comes they go to the kernel, which
    refuses them and says so. `cut`: the text ends before it is complete.
    """

    actions: tuple[AnyAction, ...] = ()
    problem: str = ""
    thinking: str = ""
    said: str = ""
    mended: bool = False
    unfit: tuple[AnyAction, ...] = ()
    cut: bool = False


def read(text: str, offer: Offer, *, finish: str = "") -> Reading:
    """Return what `text` asks for. `finish="length"`: it was cut off by a limit."""
    thinking, said = split_thinking(text)
    said = said.strip()
    if offer.native:
        return msgspec.structs.replace(_native_answer(text, offer), thinking=thinking, said=said)
    cut = finish == "length"
    if not said:
        problem = "the thinking took all the room, and no action came" if cut else "there was no action"
        return Reading(problem=problem, thinking=thinking, cut=cut)
    found = objects_in(said)
    reading = _from_objects(said, found, offer, cut=cut) if found else None
    if reading is None and not cut and len(found) == 1:
        reading = _typed_in_prose(found[0], offer)
    if reading is None:
        reading = _prose(said, offer, cut=cut)
    return msgspec.structs.replace(reading, thinking=thinking, said=said)


def _native_answer(text: str, offer: Offer) -> Reading:
    """Return the answer that the text of a model with native calls is, as it stands: where a type is wanted, the text must be JSON of it."""
    if offer.output_schema is None:
        return Reading(actions=(FinalAnswer(content=text),))
    is_json, value = whole_json(text)
    problem = offer.answer_problem(value) if is_json else f"the answer must be given by calling {offer.answer_tool}"
    return Reading(problem=problem) if problem else Reading(actions=(FinalAnswer(content=value),))


def _prose(said: str, offer: Offer, *, cut: bool) -> Reading:
    """Text without an action is the answer, unless it was cut off or an answer of another shape is wanted."""
    if cut:
        return Reading(problem="the text was cut off before it was complete", cut=True)
    if "final_answer" not in offer.actions or not offer.prose:
        return Reading(problem="there is no JSON object with an action in it")
    answer = _without_end(re.sub(r"^(final answer|answer)\s*:\s*", "", said, flags=re.IGNORECASE)).strip() or said
    if not clean(answer):
        return Reading(problem="there is only markup, no action and no answer")
    if offer.output_schema is not None and (problem := offer.answer_problem(answer)):
        return Reading(problem=f"the answer does not fit the output schema: {problem}")
    return Reading(actions=(FinalAnswer(content=answer),))


def _without_end(said: str) -> str:
    """Return a text without what marks its end, nor white space there."""
    end = len(said)
    while end:
        kept = end
        while end and said[end - 1].isspace():
            end -= 1
        mark = next((mark for mark in _ENDS if said.endswith(mark, 0, end)), "")
        end -= len(mark)
        if end == kept:
            break
    return said[:end]


def _typed_in_prose(one: Found, offer: Offer) -> Reading | None:
    """Return the answer that an output schema asks for, where it is the one object in a text, stands alone and fits as it is; else None."""
    if offer.output_schema is None or "final_answer" not in offer.actions or one.stands != "alone" or one.mended or not one.whole:
        return None
    if one.value is None or not plain_json(one.value) or offer.answer_problem(one.value):
        return None
    return Reading(actions=(FinalAnswer(content=one.value),))


def _from_objects(said: str, found: Sequence[Found], offer: Offer, *, cut: bool) -> Reading | None:
    """Return what the objects come to, None where they are only part of an answer in prose."""
    first = next((i for i, one in enumerate(found) if _meant(said, one, offer)), None)
    if first is None:
        return None
    group = [found[first]]
    for one in found[first + 1 :]:
        if NOISE.fullmatch(said, group[-1].end, one.start) is None:
            break
        group.append(one)
    if any(not one.whole for one in group):
        return Reading(problem="the JSON object is not complete: it is never closed", cut=True)
    if cut and group[-1].end < len(said) and group[-1] is found[-1] and said.endswith(","):
        return Reading(problem="the list of actions was cut off before it was complete", cut=True)
    if group[0].stands == "unclear":
        return Reading(problem="the action stands at the end of a sentence; if it is meant, send it alone")
    return _read_group(group, offer)


def _meant(said: str, one: Found, offer: Offer) -> bool:
    """Whether an object is to be taken as what the model does, not as part of what it says."""
    if one.stands == "mentioned":
        return False
    if NOISE.fullmatch(said, 0, one.start) is not None:
        return True
    if one.value is None:
        return _BEGUN.match(said, one.start) is not None
    return _looks_like_action(one.value, offer)


def _looks_like_action(value: Any, offer: Offer) -> bool:
    values = cast("list[Any]", value) if isinstance(value, list) else [value]
    for item in values:
        if not isinstance(item, dict):
            continue
        keys = set(cast("dict[str, Any]", item))
        if keys & {"type", "tool", "tool_name", "action", "function", *_LISTS} or ("name" in keys and keys & set(_ARGS)):
            return True
        if len(keys) == 1 and keys & {*offer.tools, *CONTROLS}:
            return True
    return False


def _read_group(group: Sequence[Found], offer: Offer) -> Reading:
    objects: list[Any] = []
    mended = False
    for one in group:
        if one.problem:
            return Reading(problem=one.problem)
        mended = mended or one.mended
        objects += _unfolded(one.value, offer)
    if not objects:
        return Reading(problem="the list of actions is empty")
    actions: list[AnyAction] = []
    problems: list[str] = []
    for value in objects:
        try:
            action = _action(value, offer)
        except _NoAction as error:
            return Reading(problem=str(error), mended=mended)
        problem = _unsound(action, offer)
        if problem and not isinstance(action, ToolCall):
            return Reading(problem=problem, mended=mended)
        problems += [problem] if problem else []
        actions.append(action)
    controls = [a for a in actions if not isinstance(a, ToolCall)]
    if len(controls) > 1:
        names = ", ".join(snake(type(a).__name__) for a in controls)
        return Reading(problem=f"there are {len(controls)} control actions ({names}); one is allowed", mended=mended)
    if problems:
        keep = not mended and all(plain_json(a.args) for a in actions if isinstance(a, ToolCall))
        return Reading(problem="; ".join(problems), mended=mended, unfit=tuple(actions) if keep else ())
    return Reading(actions=tuple(actions), mended=mended)


def _unfolded(value: Any, offer: Offer) -> list[Any]:
    """Return the actions of a list, of `{"actions": [...]}` or of a single object."""
    if isinstance(value, list):
        return cast("list[Any]", value)
    if isinstance(value, dict):
        fields = cast("dict[str, Any]", value)
        for name in _LISTS:
            inner: Any = fields.get(name)
            if isinstance(inner, list) and name not in offer.tools:
                return cast("list[Any]", inner)
    return [value]


class _NoAction(Exception):
    """The object is no action; the message is for the model."""


def _action(value: Any, offer: Offer) -> AnyAction:
    if not isinstance(value, dict):
        raise _NoAction(f"an action is a JSON object, not {type(value).__name__}")
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
    raise _NoAction('the object has no "type"')


def _typed(kind: str, fields: dict[str, Any], offer: Offer) -> AnyAction:
    control = kind if kind in CONTROLS or kind in offer.tools or kind in _CALLS else _control_name(kind)
    if control in CONTROLS and (control in offer.actions or kind not in offer.tools):
        if control not in offer.actions:
            raise _NoAction(f'"{control}" is not possible here; possible: {", ".join(offer.actions)}')
        return _control(control, fields)
    if "tool_call" not in offer.actions:
        raise _NoAction(f'"{kind[:60]}" is not possible here; possible: {", ".join(offer.actions)}')
    if kind in offer.tools:
        return ToolCall(tool=kind, args=_arguments_beside(kind, fields, offer), reason=_reason(fields))
    if kind in _CALLS:
        if call := _untyped_call(fields, offer):
            return call
        raise _NoAction('a tool_call needs "tool", the name of a tool, and "args", an object')
    raise _NoAction(
        f'"{kind[:60]}" is no action and no tool; tools: {", ".join(offer.tools) or "none"}; actions: {", ".join(offer.actions)}'
    )


def _control_name(name: str) -> str:
    """Return a control action's name as it is written here: `Final Answer` and `FinalAnswer` are `final_answer`."""
    if name in CONTROLS:
        return name
    return re.sub(r"[\s-]+", "_", snake(name.strip()) if " " not in name.strip() else name.strip().lower())


def _untyped_call(fields: dict[str, Any], offer: Offer) -> AnyAction | None:
    """Return the call of `{"tool": ..., "args": ...}` in its spellings, None where it is none; raise `_NoAction` for arguments of a wrong kind."""
    for spelling in _TOOL:
        name: Any = fields.get(spelling)
        if isinstance(name, dict) and spelling in ("function", "tool"):
            return _untyped_call(cast("dict[str, Any]", name), offer)
        if not isinstance(name, str):
            continue
        control = _control_name(name)
        if spelling == "action" and control in CONTROLS and control in offer.actions and name not in offer.tools:
            return _control(control, fields)
        given = [key for key in _ARGS if key in fields]
        if spelling == "name" and not given and name not in offer.tools:
            continue
        if "tool_call" not in offer.actions:
            raise _NoAction(f"tool calls are not possible here; possible: {', '.join(offer.actions)}")
        return ToolCall(tool=name, args=_as_object(fields[given[0]]) if given else {}, reason=_reason(fields))
    return None


def _arguments_beside(tool: str, fields: dict[str, Any], offer: Offer) -> dict[str, Any]:
    """Return the arguments that stand beside the tool's name, or under `args` where the tool has no argument of that name."""
    rest = {name: value for name, value in fields.items() if name != "type"}
    known: dict[str, Any] = offer.tools[tool].input_schema.get("properties") or {}
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
            args = read_json(args or "{}")
        except (msgspec.DecodeError, RecursionError):
            raise _NoAction("the arguments are text that is not JSON; send an object") from None
    if not isinstance(args, dict):
        raise _NoAction(f"the arguments must be a JSON object, not {type(args).__name__}")
    return cast("dict[str, Any]", args)


def _reason(fields: dict[str, Any]) -> str:
    reason = fields.get("reason")
    return reason if isinstance(reason, str) else ""


def _control(name: str, fields: dict[str, Any]) -> AnyAction:
    """Return a control action; raise `_NoAction` where its fields are missing or of the wrong kind."""
    kind, main = CONTROLS[name]
    value = next((fields[key] for key in _SYNONYMS[name] if fields.get(key) is not None), None)
    given: dict[str, Any] = {key: fields[key] for key in kind.__struct_fields__ if fields.get(key) is not None}
    if value is not None:
        given[main] = value
    if name == "abstain" and isinstance(given.get("missing"), str):
        given["missing"] = [given["missing"]]
    if not plain_json(given):
        raise _NoAction(f"the {name} holds a number or a text that JSON cannot keep")
    try:
        return msgspec.convert(given, kind, strict=True)
    except msgspec.ValidationError as error:
        raise _NoAction(f'a {name} needs "{main}": {error}') from None


def _unsound(action: AnyAction, offer: Offer) -> str:
    """Return what is wrong with a sound-looking action, "" when nothing is."""
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
            if offer.output_schema is not None and (problem := offer.answer_problem(content)):
                return f"the answer does not fit the output schema: {problem}"
        case AskUser(question=said) | Thought(content=said) | PushGoal(goal=said):
            if is_blank(said):
                return f"the {snake(type(action).__name__)} is blank"
        case _:
            pass
    return ""
