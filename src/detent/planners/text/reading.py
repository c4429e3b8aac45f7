"""The meaning of a model's text: tolerant of how a call is written, strict about what is one (DESIGN law 2).

    text = [thinking] [one lead-in sentence that ends in a colon] call+ [noise]

Only a text of this form makes calls. A text that was cut off makes none. Any other text that contains a call of an offered tool is a
quotation, an explanation or a mistake: nothing runs, and the model is told why. Once it was told, the same text is an answer if its calls are
in code fences. The rules for a model with native calls are stricter: its text makes at most one call, without a lead-in, in a form that is
unmistakably one; the kernel treats it as found in text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import msgspec

from detent.core.actions import AnyAction, FinalAnswer, ToolCall, snake
from detent.core.state import Item
from detent.expressions.markup import clean
from detent.planners.text.actions import action_of, looks_like_action, problem_with, unfolded
from detent.planners.text.dialects import Written, written
from detent.planners.text.json_objects import Found, objects_in, plain_json, whole_json
from detent.planners.text.mentions import ALONE_IN_A_FENCE, in_fences, is_explained, mention_in, why_not
from detent.planners.text.offers import Offer, Unreadable
from detent.planners.text.surrogates import whole_text
from detent.planners.text.think_blocks import split_thinking
from detent.ports.embedded_calls import IN_A_FENCE, call_in
from detent.ports.lead_ins import before_calls, doubt_about, leads_in

_BEGUN = re.compile(r"""\[?\s*\{\s*["'“]?(?:type|tool|tool_name|name|action|function|actions|tool_calls)["'”]?\s*:""")
"""The beginning of an action that cannot be read."""
_ENDS = ("</s>", "<|im_end|>", "<|eot_id|>", "<|end|>", "<|endoftext|>")
"""The marks of chat templates for the end of a message."""
_THOUGHT = re.compile(r"(?:Thought|Reasoning):[^\n]*\n")
_NO_ACTION = "there is no JSON object with an action in it"
_QUOTED = "it stands, letter for letter, in the result of a tool"
_LOST = "it holds U+FFFD, which stands for a character that was lost; where it is meant, write \\ufffd"
_GIVEN = re.compile(r"(?:^|:|<(?:answer|json|output)>)[ \t`*]*\Z", re.MULTILINE | re.IGNORECASE)
"""The end of a text before an object that is passed, and not only mentioned."""
_FENCE = re.compile(r"```[^\n]*\n(?:(?!^```).)*^```", re.DOTALL | re.MULTILINE)


class Reading(msgspec.Struct, frozen=True, kw_only=True):
    """The result of reading a text: actions, or the problem to tell the model. `said` does not include `thinking`.

    `unfit`: the actions are valid, but a tool or its arguments are not as offered. If nothing better comes, they go to the kernel, which
    refuses them with a reason. `cut`: a limit cut the text off.
    """

    actions: tuple[AnyAction, ...] = ()
    problem: str = ""
    thinking: str = ""
    said: str = ""
    mended: bool = False
    unfit: tuple[AnyAction, ...] = ()
    cut: bool = False


def read(text: str, offer: Offer, *, finish: str = "", told: bool = False, results: Sequence[Item] = ()) -> Reading:
    """Return the content of `text`.

    `finish="length"`: a limit cut it off. `told`: the model knows how to show a call. `results`: the outputs of tools, which a model
    with native calls may quote.
    """
    thinking, said = split_thinking(text)
    said = said.strip()
    if offer.native:
        reading = _native(text, said, offer, told=told, results=results)
    elif not said:
        reading = Reading(problem="there was no action")
    else:
        reading = _read(said, offer, told=told)
    if finish == "length" and not _is_answer(said, reading):
        lost = "the text was cut off before it was complete" if said else "the thinking took all the room, and no action came"
        reading = Reading(problem=lost, cut=True)
    return msgspec.structs.replace(reading, thinking=thinking, said=said)


def _read(said: str, offer: Offer, *, told: bool) -> Reading:
    """Return the content of a text from a model that has no other way to call tools."""
    reading = _asked(said, offer) or _mentioned(said, offer, told=told) or _broken(said) or _prose(said, offer)
    for action in reading.actions:
        if isinstance(action, FinalAnswer) and isinstance(action.content, str):
            reading = _mentioned(action.content, offer, told=told) or reading
    return _prose(said, offer) if told and reading.problem and not reading.unfit and _FENCE.fullmatch(said) else reading


def _is_answer(said: str, reading: Reading) -> bool:
    """Whether a text is a complete JSON answer, so nothing is lost if a limit cuts off the rest."""
    match reading.actions:
        case (FinalAnswer(content=content),):
            return said.startswith(("{", "`")) and said.endswith(("}", "`")) and content != said
        case _:
            return False


def _native(text: str, said: str, offer: Offer, *, told: bool, results: Sequence[Item]) -> Reading:
    """Return the answer in the text of a model with native calls, unchanged. If a type is required, the text must be JSON of it.

    A call that it makes is an answer of the form `name({...})`, which the kernel searches for.
    """
    if offer.output_schema is not None:
        is_json, given = whole_json(text if offer.answer_tool else said)
        value = offer.answer_of(given)
        how = f"given by calling {offer.answer_tool}" if offer.answer_tool else "JSON of the form that was asked for, and nothing else"
        problem = offer.answer_problem(value) if is_json else f"the answer must be {how}"
        return Reading(problem=problem) if problem else Reading(actions=(FinalAnswer(content=value),))
    lead, call = call_in(said, offer.tools) or ("", None)
    why = _QUOTED if _quoted(said if call is None else call[0], results) else _LOST if "\ufffd" in said else ""
    if call is not None and not why and (not lead or leads_in(lead, (call["tool"],), call[0])):
        return Reading(actions=(FinalAnswer(content=said),))
    try:
        whole = written(said, offer)
        sound = whole.objects if whole is not None and whole.marked and not whole.mended else []
        calls = [action_of(one, offer) for value in sound for one in unfolded(value, offer)]
    except Unreadable:
        calls = []
    match calls:
        case [ToolCall(tool=tool, args=args)] if tool in offer.tools and not why and plain_json(args):
            return Reading(actions=(FinalAnswer(content=f"{tool}({msgspec.json.encode(args).decode()})"),))
        case _:
            return _mentioned(said, offer, told=told, why=why) or Reading(actions=(FinalAnswer(content=text),))


def _quoted(call: str, results: Sequence[Item]) -> bool:
    """Whether a call occurs, letter for letter, in the output of a tool."""
    escaped = msgspec.json.encode(whole_text(call))[1:-1]
    return any(escaped in bytes(item.result) for item in results)


def _asked(said: str, offer: Offer) -> Reading | None:
    """Return the content of a text with only calls or actions and a lead-in; None if it is anything else."""
    for before, rest in _parted(said):
        lead = before.strip()
        try:
            found = written(rest, offer, lead=lead)
            if found is not None and (not lead or _announces(lead, rest, offer)):
                return _read_group(found, offer, lost="\ufffd" in rest)
        except Unreadable as error:
            if (not lead or _announces(lead, rest, offer)) and not is_explained(said, offer):
                return Reading(problem=str(error))
    return None


def _parted(said: str) -> Iterator[tuple[str, str]]:
    """Yield a text split into the part before its calls and the rest, in every allowed way."""
    for start in before_calls(said):
        yield said[:start], said[start:]
    if (thought := _THOUGHT.match(said)) is not None:
        yield said[: thought.end()], said[thought.end() :]


def _announces(lead: str, rest: str, offer: Offer) -> bool:
    named = [name for name in offer.tools if name in rest]
    return leads_in(lead, named, rest) or (_THOUGHT.fullmatch(f"{lead}\n") is not None and not doubt_about(lead))


def _broken(said: str) -> Reading | None:
    """Return the problem of a text with the beginning of an unreadable action; None without one."""
    for one in objects_in(said):
        if one.value is None and _BEGUN.match(said, one.start) is not None:
            return Reading(problem=one.problem if one.whole else f"{one.problem}: it is never closed")
    return None


def _mentioned(said: str, offer: Offer, *, told: bool, why: str = "") -> Reading | None:
    """Return the problem of a text with a call that is not made; None without one, or if it may be shown."""
    mention = mention_in(said, offer)
    if mention is None or (told and in_fences(said, offer)):
        return None
    make = "call the tool" if offer.native else "send the call alone"
    why = why or why_not(said, mention)
    show = "to explain it, write about it" if why == ALONE_IN_A_FENCE else IN_A_FENCE  # the fence alone does not show its purpose
    return Reading(problem=f"the text holds a call of {mention.tool!r} that was not made: {why}; to make it, {make}; {show}")


def _prose(said: str, offer: Offer) -> Reading:
    """Read text without an action as the answer, unless another form is required."""
    if "final_answer" not in offer.actions:
        return Reading(problem=_NO_ACTION)
    if offer.output_schema is not None:
        match objects_in(said):
            case [Found(start=start, value=value, problem="", mended=False)] if _GIVEN.search(said[:start]) and plain_json(value):
                if not offer.answer_problem(value):
                    return Reading(actions=(FinalAnswer(content=value),))
            case _:
                pass
    if not offer.prose:
        return Reading(problem=_NO_ACTION)
    before = said
    for mark in () if _FENCE.fullmatch(said) else offer.stop:
        before = before.partition(mark)[0]
    answer = _without_end(re.sub(r"^(final answer|answer)\s*:\s*", "", before, flags=re.IGNORECASE)) or said
    if not clean(answer) or not _without_end(said):
        return Reading(problem="there is only markup, no action and no answer")
    if offer.output_schema is not None and (problem := offer.answer_problem(answer)):
        return Reading(problem=f"the answer does not fit the output schema: {problem}")
    return Reading(actions=(FinalAnswer(content=answer),))


def _without_end(said: str) -> str:
    """Return a text without end marks and the white space around them."""
    end = len(said)
    while end:
        kept = end
        while said[end - 1 : end].isspace():
            end -= 1
        mark = next((mark for mark in _ENDS if said.endswith(mark, 0, end)), "")
        end -= len(mark)
        if end == kept:
            break
    return said[:end]


def _read_group(found: Written, offer: Offer, *, lost: bool) -> Reading:
    """Return the actions of a text, or their problem; if a character was `lost`, it makes no calls."""
    mended = found.mended
    how = "" if any(looks_like_action(value, offer) for value in found.objects) else f"; {IN_A_FENCE}"
    actions: list[AnyAction] = []
    problems: list[str] = []
    for value in [one for group in found.objects for one in unfolded(group, offer)]:
        try:
            action = action_of(value, offer)
        except Unreadable as error:
            return Reading(problem=f"{error}{how}", mended=mended)
        problem = problem_with(action, offer)
        if problem and not isinstance(action, ToolCall):
            return Reading(problem=problem, mended=mended)
        problems += [problem] if problem else []
        actions.append(action)
    controls = [a for a in actions if not isinstance(a, ToolCall)]
    if not actions:
        return Reading(problem="the list of actions is empty")
    if lost and len(controls) < len(actions):
        return Reading(problem=f"the text cannot be read: {_LOST}", mended=mended)
    if len(controls) > 1:
        names = ", ".join(snake(type(a).__name__) for a in controls)
        return Reading(problem=f"there are {len(controls)} control actions ({names}); one is allowed", mended=mended)
    if problems:
        keep = not mended and all(plain_json(a.args) for a in actions if isinstance(a, ToolCall))
        return Reading(problem="; ".join(problems), mended=mended, unfit=tuple(actions) if keep else ())
    return Reading(actions=tuple(actions), mended=mended)
