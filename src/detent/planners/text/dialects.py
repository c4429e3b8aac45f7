"""The ways in which models write calls. Each is read if the whole text is calls, and in no other case.

    a call is   a JSON object, bare, in a fence or between a model's own marks       {"name": ..., "arguments": {...}}
                a form: the text before a name, the name, its arguments              <function=NAME>{...}</function>
                Python: name(key=value), in a list, in a `tool_code` fence or alone  [name(path="a")]

To add another: a line in `_FORMS` (or a mark in `_CALLING`), and an example in the tests, from which the table in the docs is made.
"""

from __future__ import annotations

import re
from typing import Any, Literal, NamedTuple

import msgspec

from detent.planners.text.actions import looks_like_action, object_in
from detent.planners.text.elements import read_elements, value_of
from detent.planners.text.json_objects import Found, objects_in
from detent.planners.text.offers import Offer, Unreadable, properties_of
from detent.planners.text.python_calls import closes_at, literal, read_arguments, split_arguments
from detent.ports import ToolSpec
from detent.ports.lead_ins import doubt_about

MOST_CALLS = 64
_BAR, _DASH = "[|｜]", "[▁_ ]"  # noqa: RUF001 - as DeepSeek writes them
_CALLING = re.compile(
    rf"<(?P<closing>/?)(?P<tag>(?:[\w-]+:|{_BAR}DSML{_BAR})?(?:tool_calls?|function_calls?|toolcall|tool_use|actions?))>|\[/?TOOL_CALLS\]"
    r"|<\|/?(?:python_tag|python_start|python_end|tool_call|tool_call_start|tool_call_end|START_ACTION|END_ACTION|action_start|plugin|action_end)\|>"
    rf"|<{_BAR}tool{_DASH}calls?{_DASH}(?:section{_DASH})?(?:begin|end){_BAR}>|functools\b|Action:(?=\s*(?:```|\Z))",
    re.IGNORECASE,
)
"""Marks with only calls between them. Answers may also contain tags and words; models write the other marks for nothing else."""
_TOOL_CODE = ("tool_code", "tool_call", "tool_calls", "function_call")
_FENCE = re.compile(rf"```(?P<info>(?:json[5cl]?|xml|{'|'.join(_TOOL_CODE)})\b)?[ \t]*(?![^\s{{\[<`])", re.IGNORECASE)
"""Fences around calls; a fence of another language is something else, for example a program's output."""
_NOISE = re.compile(
    rf"\s+|</?(?:answer|json|output)>|</s>|<\|(?:im_end|eot_id|eom_id|eot|eom|end|endoftext|stop|call|return|END_OF_TURN_TOKEN)\|>|<{_BAR}end{_DASH}of{_DASH}sentence{_BAR}>"
    r"|<(?:end_of_turn|eos)>|\.\s*\Z",
    re.IGNORECASE,
)
"""What may be around and between calls without any meaning."""
_THOUGHT = re.compile(
    r"(?:<\|start\|>assistant)?<\|channel\|>analysis<\|message\|>.*?<\|end\|>|<\|START_THINKING\|>.*?<\|END_THINKING\|>", re.DOTALL
)
_NAME = r"(?P<name>[\w./-]{1,128})"
_CALL = re.compile(rf"{_NAME}[ \t]*\(")

Kind = Literal["object", "elements", "pairs", "input"]


class Form(NamedTuple):
    """A way to write a call: the text before its arguments, their notation, and the text after them."""

    head: re.Pattern[str]
    kind: Kind
    tail: re.Pattern[str]


def _form(head: str, kind: Kind, tail: str = "") -> Form:
    return Form(re.compile(head.replace("NAME", _NAME), re.DOTALL), kind, re.compile(tail, re.DOTALL))


_FORMS = (
    _form(r"<function=NAME>\s*(?=\{)", "object", r"\s*(?:</function>|\Z|(?=<\|))"),
    _form(r"<function=NAME>", "elements", "</function>"),
    _form(
        rf"""<(?:[\w-]+:|{_BAR}DSML{_BAR})?invoke\s+name=(?P<quote>["'])NAME(?P=quote)\s*>""",
        "elements",
        rf"</(?:[\w-]+:|{_BAR}DSML{_BAR})?invoke>",
    ),
    _form(r"<tool_call>\s*NAME\s*(?=<arg_key>|</tool_call>)", "pairs", "</tool_call>"),
    _form(r"\[TOOL_CALLS\]\s*NAME\s*(?:\[CALL_ID\]\s*\w+\s*)?(?:\[ARGS\]\s*)?(?=\{)", "object"),
    _form(r">>>\s*NAME\n\s*", "object"),
    _form(r"(?:<\|from\|>assistant\n)?<\|recipient\|>\s*NAME\n<\|content\|>\s*", "object"),
    _form(
        r"(?:<\|start\|>assistant)?(?:<\|channel\|>(?:commentary|analysis))?\s*to=(?:functions\.)?NAME\s*(?:<\|channel\|>(?:commentary|analysis)\s*)?"
        r"(?:(?:<\|constrain\|>)?json)?<\|message\|>\s*",
        "object",
    ),
    _form(
        rf"<{_BAR}tool{_DASH}call{_DASH}begin{_BAR}>(?:function<{_BAR}tool{_DASH}sep{_BAR}>)?NAME(?:<{_BAR}tool{_DASH}sep{_BAR}>|\n)\s*(?:```json\s*)?",
        "object",
        rf"\s*(?:```\s*)?<{_BAR}tool{_DASH}call{_DASH}end{_BAR}>",
    ),
    _form(r"<\|tool_call_begin\|>\s*(?:functions\.)?NAME:\d+\s*<\|tool_call_argument_begin\|>\s*", "object", r"\s*<\|tool_call_end\|>"),
    _form(
        r"(?:Thought:(?P<thought>[^\n]*)\n)?Action:[ \t]*NAME[ \t]*\n\s*Action Input:[ \t]*(?:```json\s*)?(?=\s*\{)\s*",
        "object",
        r"(?:\s*```)?",
    ),
    _form(r"(?:Thought:(?P<thought>[^\n]*)\n)?Action:[ \t]*NAME[ \t]*\n\s*Action Input:", "input", r"(?=\n|\Z)"),
    _form(r"✿FUNCTION✿:[ \t]*NAME[ \t]*\n\s*✿ARGS✿:\s*", "object", r"(?:\s*✿RESULT✿:?\s*\Z)?"),
    _form(r"NAME[ \t]*\n\s*(?=\{)", "object"),
)


class Written(msgspec.Struct, frozen=True, kw_only=True):
    """A text that is only calls (or actions): each as an object, and whether one had to be mended.

    `marked`: a model's own marks, or a form of calls, show that it makes them; JSON and Python alone may also be an answer.
    """

    objects: list[Any]
    marked: bool
    mended: bool = False


def written(text: str, offer: Offer, *, lead: str = "") -> Written | None:
    """Return the calls of a text that is only calls, None if it is anything else. Raise `Unreadable` if it is a call that cannot be read.

    `lead`: the text before it. If there is one, plain data is not an action.
    """
    thought = _THOUGHT.match(text)
    rest = text[thought.end() :] if thought is not None else text
    found = objects_in(rest)
    if found and (marks := _around(rest, found)) is not None:
        return _of_json(found, offer, marked=marks.own, lead=lead)
    return _of_forms(rest, offer)


class _Marks:
    """The marks and noise of a text, in order. `own`: a model's own mark occurred; `fence`: the language of the open fence.

    A mark at the end of the text may be missing, because a model may stop at it. After an opening mark, and after a comma, a call must follow.
    """

    def __init__(self) -> None:
        self.own = False
        self.fence: str | None = None
        self._open: list[str] = []
        self._seen = self._due = False

    def passed(self, text: str, at: int, end: int) -> int | None:
        """Return the end of the mark at this place. None if there is none, or if it closes something that was not opened."""
        if (mark := _CALLING.match(text, at, end)) is not None:
            tag = (mark["tag"] or "").lower()
            if mark["closing"]:
                last = self._open.pop() if self._open else "" if ":" in tag else tag  # a template may have opened it
                return mark.end() if last == tag else None
            self._open += [tag] if tag else []
            self._due = self._due or bool(tag)
            self.own = self.own or not (tag or mark[0].startswith("Action"))
            return mark.end()
        if (mark := _FENCE.match(text, at, end)) is not None:
            if self.fence is not None and mark["info"]:
                return None
            self.fence = (mark["info"] or "") if self.fence is None else None
            self.own, self._due = self.own or self.fence in _TOOL_CODE, self._due or self.fence is not None
            return mark.end()
        if text[at] in ",;":
            between, self._due = self._seen and not self._due, True
            return at + 1 if between else None
        mark = _NOISE.match(text, at)
        return None if mark is None else mark.end()

    def called(self) -> None:
        """Note that there is a call here."""
        self._seen, self._due = True, False

    def whole(self) -> bool:
        """Whether no call has to follow."""
        return not self._due


def _of_json(found: list[Found], offer: Offer, *, marked: bool, lead: str) -> Written | None:
    if lead and not (marked or any(looks_like_action(one.value, offer) for one in found)):
        return None
    objects: list[Any] = []
    for one in found:
        if one.problem:
            raise Unreadable("the JSON object is not complete: it is never closed" if not one.whole else one.problem)
        objects.append(one.value)
    return Written(objects=objects, marked=marked, mended=any(one.mended for one in found))


def _around(text: str, found: list[Found]) -> _Marks | None:
    """Return the marks around objects; None if there is anything else between them."""
    marks = _Marks()
    at: int | None = 0
    for start, after in [*((one.start, one.end) for one in found), (len(text), len(text))]:
        while at is not None and at < start:
            at = marks.passed(text, at, start)
        if at is None:
            return None
        at = after
        if start < len(text):
            marks.called()
    return marks if marks.whole() else None


class _Some(NamedTuple):
    """The calls at some place in a text, and where they end."""

    objects: list[Any]
    end: int
    marked: bool
    mended: bool = False


def _of_forms(text: str, offer: Offer) -> Written | None:
    """Return the calls of a text that is a sequence of forms, or of calls in Python."""
    objects: list[Any] = []
    marks = _Marks()
    mended = False
    at: int | None = 0
    while at is not None and at < len(text):
        code = marks.fence in _TOOL_CODE
        found = _form_at(text, at, offer) or (_python_at(text, at, offer, code=code) if code or marks.fence is None else None)
        if found is None:
            at = marks.passed(text, at, len(text))
            continue
        marks.called()
        objects += found.objects
        marks.own, mended, at = marks.own or found.marked, mended or found.mended, found.end
        if len(objects) > MOST_CALLS:
            raise Unreadable(f"there are more than {MOST_CALLS} calls")
    return Written(objects=objects, marked=marks.own, mended=mended) if objects and at is not None and marks.whole() else None


def _form_at(text: str, at: int, offer: Offer) -> _Some | None:
    """Return the call of the first form that begins here."""
    for form in _FORMS:
        head = form.head.match(text, at)
        if head is None or (form is _FORMS[-1] and head["name"] not in offer.tools):
            continue
        if "thought" in form.head.groupindex and (doubt := doubt_about(head["thought"] or "")):
            raise Unreadable(f"{doubt} (in the thought before it)")
        name = head["name"]
        spec = offer.tools.get(name, ToolSpec(name=name))
        mended = False
        if form.kind == "object":
            end = closes_at(text, head.end())
            if not end:
                raise Unreadable(f"the arguments of {name[:60]} are not one whole JSON object")
            args, mended = object_in(text[head.end() : end])
            tail = form.tail.match(text, end)
        else:
            tail = form.tail.search(text, head.end())
            body = text[head.end() : tail.start()] if tail is not None else ""
            args = _input(body.strip(), spec) if form.kind == "input" else read_elements(body, spec, pairs=form.kind == "pairs")
        if tail is None:
            raise Unreadable(f"the call of {name[:60]} is not closed")
        return _Some([_object(name, args)], tail.end(), marked=True, mended=mended)
    return None


def _input(text: str, spec: ToolSpec) -> dict[str, Any]:
    """Return the arguments of an input line: an object, nothing, or the value of the only parameter."""
    if not text:
        return {}
    known = list(properties_of(spec).items())
    if len(known) != 1 or (text[0] not in "\"'" and re.search(r"[{}\"]", text)):  # broken JSON is not plain text
        raise Unreadable(f"the input of {spec.name[:60]} is not a JSON object")
    ((name, schema),) = known
    return {name: literal(text) if text[0] in "\"'" else value_of(name, text, schema, spec)}


def _python_at(text: str, at: int, offer: Offer, *, code: bool) -> _Some | None:
    """Return the Python calls that begin here: one, a list of them, or (in a block of `code`) one that is printed."""
    listed, printed = text[at] == "[", code and text.startswith("print(", at)
    before = "[" if listed else "print(" if printed else ""
    head = _called(text[at + len(before) :], offer, code=code)
    if head is None:
        return None
    opening = at + (len(before) or head.end()) - 1
    end = closes_at(text, opening)
    if not end:
        raise Unreadable(f"the call of {head['name']} cannot be read to its end: it is not closed, or its texts are not in quotation marks")
    inner = text[opening + 1 : end - 1].strip()
    if re.match(r"[ \t]*(?:\Z|[\n;<`|])", text[end:]) is None:  # two calls with nothing between them are a mistake, or something else
        return None
    parts = split_arguments(inner) if listed else [inner if printed else text[at:end]]
    return _Some([_one_call(part, offer, code=code) for part in parts], end, marked=listed)


def _called(text: str, offer: Offer, *, code: bool) -> re.Match[str] | None:
    """Return the head of a Python call of an offered tool at the start of a text. In a block of `code` an API name may come before it."""
    head = re.compile(rf"\s*{r'(?:default_api[.])?' if code else ''}{_CALL.pattern}").match(text)
    return head if head is not None and head["name"] in offer.tools else None


def _one_call(text: str, offer: Offer, *, code: bool) -> Any:
    """Return the call in a Python text. Raise `Unreadable`."""
    head = _called(text, offer, code=code)
    if head is None or closes_at(text, head.end() - 1) != len(text):
        raise Unreadable(f"{text[:60]!r} is not one call of an offered tool")
    return _object(head["name"], read_arguments(text[head.end() : -1], offer.tools[head["name"]]))


def _object(name: str, args: dict[str, Any]) -> dict[str, Any]:
    return {"tool": name, "args": args}
