"""Calls in a text that were not made as calls. They are found however they are written, so that no call is taken for an answer.

Rule: what is found here never runs. A tool's name counts only with arguments beside it; the name alone is a word.
"""

from __future__ import annotations

import re
from bisect import bisect
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from detent.core.state import Item
from detent.planners.text.offers import CONTROLS, Offer, properties_of
from detent.planners.text.python_calls import closes_at
from detent.ports.embedded_calls import IN_A_FENCE
from detent.ports.lead_ins import NOT_A_LEAD_IN, doubt_about

_FENCED = re.compile(r"^[ \t]*(?P<fence>`{3,}|~{3,})[^\n]*\n.*?^[ \t]*(?P=fence)|```[^`\n]+```", re.DOTALL | re.MULTILINE)
_FENCE = re.compile(r"`{3,}|~{3,}")
_ARGUMENTS = r"args|arguments|parameters|params|input|tool_input|action_input|kwargs"
_SURELY = "tool|tool_name|function|function_name|action|recipient_name|tool_call|function_call"
_PERHAPS = "name|type|command|call"
_VALUE = re.compile(
    r"""\s*(?:(?:\*\*)?[{\["']|[bfruBFRU]{1,2}["']|-?\d|true\b|false\b|null\b|True\b|False\b|None\b|[A-Za-z_][\w.-]*\s*=(?!=))"""
)
_BEFORE_NAMES = (
    r"""<[\w:|｜-]*(?:function=|invoke\s+name=)["']?"""  # noqa: RUF001 - as DeepSeek writes it
    r"|\[TOOL_CALLS\]\s*|\bto=|>>>\s*|<tool_call>\s*|✿FUNCTION✿:\s*|<\|(?:recipient|tool_call_begin)\|>\s*"
    r"|<[|｜]tool[▁_ ](?:sep|call[▁_ ]begin)[|｜]>\s*"  # noqa: RUF001 - as DeepSeek writes them
    r"|Action:[ \t]*(?=[^\n]+\n\s*Action Input:)"
)
_LABELS = r"""^[ \t*_`-]*(?P<label>action|tool|function|tool_name|name)\W{0,3}:[ \t]*[`"'*]*"""
_DEFINED = re.compile(r"\b(?:def|class|fn|func|function)[ \t]{1,8}\Z")
_LONGEST = 4000
"""Characters after a name that are searched for its arguments."""


ALONE_IN_A_FENCE = "it stands in a code block"
_MARKS_BEFORE = re.compile(r"(?:<[^<>\n]{1,80}>|\[/?[A-Z_]+\]|functools|Action:|```[\w-]*|[\s\[{(])+\Z")
_MARKS_AFTER = re.compile(r"\A(?:<[^<>\n]{1,80}>|\[/?[A-Z_]+\]|```|[\s\])}])+")
"""Text around a call that belongs to it."""


class Mention:
    """A call in a text: the tool's name as written, from `start` to `end`."""

    __slots__ = ("end", "start", "tool")

    def __init__(self, tool: str, start: int, end: int) -> None:
        self.tool, self.start, self.end = tool, start, end


def mention_in(text: str, offer: Offer) -> Mention | None:
    """Return the first call of an offered tool in a text, or None."""
    controls = () if offer.native else tuple(name for name in CONTROLS if name in offer.actions and name not in offer.tools)
    names = _patterns(tuple(offer.tools), controls)
    if names.any.search(text) is None:
        return None
    found = [one for look in (_in_parentheses, _in_objects, _in_forms) for one in [look(text, names, offer)] if one is not None]
    return min(found, key=lambda one: one.start, default=None)


def in_fences(text: str, offer: Offer) -> bool:
    """Whether every call in a text is inside a code fence."""
    return mention_in(_FENCED.sub("\n", text), offer) is None


def is_explained(text: str, offer: Offer) -> bool:
    """Whether there are words after the code fence of the first call in a text."""
    mention = mention_in(text, offer)
    closing = _FENCE.search(text, mention.end) if mention is not None and _is_fenced(text, mention.start) else None
    return closing is not None and re.search(r"\w", text[closing.end() :]) is not None


def was_told(transcript: Sequence[Item], repairs: Sequence[str] = ()) -> bool:
    """Whether the model was last told why a call in its text did not run, and how to show one: in `repairs`, or in notes."""
    for item in reversed(transcript):
        if item.kind == "memory":
            continue
        if item.kind != "note":
            break
        repairs = (*repairs, item.text)
    return any(IN_A_FENCE in said for said in repairs)


def why_not(text: str, mention: Mention) -> str:
    """Return why a call in a text is not made."""
    before, after = text[: mention.start], text[mention.end :]
    fenced = _is_fenced(text, mention.start)
    before, after = _MARKS_BEFORE.sub("", before).strip(" \t\r\n`*"), _MARKS_AFTER.sub("", after).strip(" \t\r\n.`*")
    if fenced:
        return "it stands in a code block within an explanation" if before or after else ALONE_IN_A_FENCE
    if doubt := doubt_about(before):
        return doubt
    if re.search(r"\w", after):
        return "there are words after it"
    if doubt := doubt_about(after):
        return doubt
    if before:
        return NOT_A_LEAD_IN
    return "it is not written as a call that can be read"


class _Names:
    """How calls of certain tools are found: by their names, also with other separators, and as calls in other letter cases."""

    def __init__(self, names: tuple[str, ...], controls: tuple[str, ...]) -> None:
        self._own = {spelled: name for name in names for spelled in (_folded(name), name)}
        one = "|".join(_spelled(name) for name in sorted(names, key=len, reverse=True)) or r"(?!)"
        api = r"(?:(?:functions|default_api|tools)\.)?"
        cased, name = rf"{api}(?P<tool>{one})", rf"{api}(?P<tool>(?ai:{one}))"
        self.any = re.compile("|".join([f"(?ai:{one})", *controls]))
        self.control = re.compile(rf"""["'“]type["'”]\s*:\s*["'“](?P<tool>{"|".join(controls) or "(?!)"})["'”]""")
        self.called = re.compile(rf"(?<![\w.])(?<!\w-){name}(?:\.call)?(?P<space>\s*)\(")
        self.named = re.compile(rf"""["'“]?\b(?:{_SURELY})["'”]?\s*[:=]\s*["'“]{name}["'”]""")
        self.perhaps = re.compile(rf"""["'“]?\b(?:{_PERHAPS})["'”]?\s*[:=]\s*["'“]{cased}["'”]""")
        self.keyed = re.compile(rf"""\{{\s*["'“]?{cased}["'”]?\s*:\s*\{{""")
        self.form = re.compile(rf"(?:{_BEFORE_NAMES}|{_LABELS}){name}(?![\w.-])", re.MULTILINE | re.IGNORECASE)
        self.tagged = re.compile(rf"<{cased}>(?P<body>.*?)</(?P=tool)>", re.DOTALL)
        self.beside = re.compile(rf"(?<![\w./-]){cased}(?:[`*\"']*:?\s*(?:```\w*\s*)?(?=\{{)|[ \t]+(?=--?\w|[\w.-]+=[^\s=]))")

    def own(self, said: str) -> str:
        """Return the tool's own name."""
        return self._own.get(said) or self._own[_folded(said)]


_patterns = lru_cache(_Names)


def _folded(name: str) -> str:
    return re.sub(r"[-_.]", "", name).lower()


def _spelled(name: str) -> str:
    """Return a pattern for a name with any separators."""
    return "|".join(filter(None, (re.escape(name), "[-_.]*".join(map(re.escape, re.sub(r"[-_.]", "", name))))))


def _is_fenced(text: str, at: int) -> bool:
    """Whether a place in a text is in a code fence."""
    return len(_FENCE.findall(text, 0, at)) % 2 == 1


def _in_parentheses(text: str, names: _Names, offer: Offer) -> Mention | None:
    """Find `name(...)`: with values in it, or in code, or alone on a line, or at the end of the text."""
    fences = [fence.start() for fence in _FENCE.finditer(text)]
    for found in names.called.finditer(text):
        opening = found.end() - 1
        end = closes_at(text, opening)
        after = text[end:] if end > 0 else ""
        if re.search(r"\w", text[text.rfind("\n", 0, found.start()) + 1 : found.start()].replace("print", "")) is None:
            after = after.split("\n", 1)[0]
        last = end > 0 and re.search(r"\w", after) is None
        code = bisect(fences, opening) % 2 == 1 and not _DEFINED.search(text[max(found.start() - 20, 0) : found.start()])
        valued = _VALUE.match(text, found.end(), end if end > 0 else opening + _LONGEST) is not None
        if ((last or code) and not found["space"]) or (valued and (not found["space"] or found["tool"] in offer.tools)):
            closes = _FENCE.search(text, opening) if code else None
            return Mention(found["tool"], found.start(), end if end > 0 else closes.start() if closes else len(text))
    return None


def _in_objects(text: str, names: _Names, offer: Offer) -> Mention | None:
    """Find objects, valid or not, that name a tool and have arguments, or whose type is a tool."""
    for found in names.control.finditer(text):
        begin = max(text.rfind("{", None, found.start()), 0)
        return Mention(found["tool"], begin, max(closes_at(text, begin), found.end()))
    objects = [*names.named.finditer(text), *names.perhaps.finditer(text), *names.keyed.finditer(text)]
    for found in sorted(objects, key=lambda one: one.start()):
        known = _parameters(found, names, offer)
        begin = max(text.rfind("{", 0, found.start() + 1), 0)
        fields = "|".join([_ARGUMENTS, *map(re.escape, known)])
        near = text[begin : found.end() + _LONGEST]
        bare = not known and re.fullmatch(r"\{\s*", text[begin : found.start()]) and text[found.end() :].lstrip()[:1] == "}"
        sure = found.re is not names.perhaps
        if sure or bare or re.search(rf"""(?:["'“]|\b)(?:{fields})["'”]?\s*[:=]""", near.replace(found[0], "", 1)):
            return Mention(found["tool"], begin, max(closes_at(text, begin), found.end()))
    return None


def _parameters(found: re.Match[str], names: _Names, offer: Offer) -> dict[str, Any]:
    return properties_of(offer.tools[names.own(found["tool"])])


def _in_forms(text: str, names: _Names, offer: Offer) -> Mention | None:
    """Find a tool's name in the position of a form of calls, with its parameters as tags or beside it."""
    for found in names.form.finditer(text):
        label = found["label"]
        if (
            label is None
            or label.lower() == "action"
            or re.match(rf"\W*\n\W*(?:Action Input|{_ARGUMENTS})\W{{0,3}}:", text[found.end() :], re.IGNORECASE)
        ):
            return Mention(found["tool"], found.start(), _form_ends(text, found.end()))
    for found in names.tagged.finditer(text):
        known = _parameters(found, names, offer)
        if any(f"<{name}>" in found["body"] for name in known) or not (known or found["body"].strip()):
            return Mention(found["tool"], found.start(), found.end())
    for found in names.beside.finditer(text):
        known = _parameters(found, names, offer)
        end = closes_at(text, found.end())
        beside = text[found.end() : end if end > 0 else found.end() + _LONGEST]
        if any(re.match(rf"""\{{\s*["'“]?{re.escape(name)}["'”]?\s*[:=]|-{{0,2}}{re.escape(name)}[= ]""", beside) for name in known):
            return Mention(found["tool"], found.start(), end if end > 0 else len(text))
        if not known and re.match(r"\{\s*\}", beside):
            return Mention(found["tool"], found.start(), end)
    return None


def _form_ends(text: str, after_name: int) -> int:
    """Return where an unread form ends: after its object, its last tag, or its line."""
    return closes_at(text, text.find("{", after_name, after_name + 120)) or max(text.rfind(">", after_name) + 1, after_name)
