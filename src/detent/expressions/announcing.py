"""Recognises answers that only announce: "Sure. I will now search the archive for it:". Pure and careful: a possible answer is never matched."""

from __future__ import annotations

import re
from functools import cache

LONGEST = 300
"""A longer text is more than an announcement."""

_LEAD_WORDS = (
    "ok(?:ay)?|sure|great|alright|all right|certainly|of course|absolutely|got it|understood|thanks|hold on|one moment|first|next|then|now"
)
_LEADS = rf"(?:(?:{_LEAD_WORDS})\b[\s,.!:;\u2013\u2014-]*)*"
_BE = r"['\u2019]m going to| am going to"
_WILL = rf"i(?:['\u2019]ll| will| shall|{_BE}| need to| have to| must)|let me|let['\u2019]s|let us"
_SOON = r"(?: (?:now|first|next|then|also|just|quickly|start by|begin by|go ahead and|try to|proceed to))*,?"
_WORK = (
    "search|look|check|find|fetch|get|read|open|load|list|query|call|run|invoke|try|start|begin|proceed|continue|go ahead|inspect|examine|"
    "analy[sz]e|review|gather|collect|retrieve|compute|calculate|browse|scan|explore|investigate|verify|test|execute|write|create|update|edit|do|"
    "use (?:the|a|an) [\\w`'. -]{1,40}(?:tool|function|command)"
)
_END = r"(?:[.!\u2026:]+|$)"
_WAIT = r"(?:please wait|one moment(?: please)?|just a (?:moment|second)|this (?:may|might|will) take a (?:moment|while))?"


@cache
def _announcement() -> re.Pattern[str]:
    return re.compile(rf"{_LEADS}(?:{_WILL}){_SOON} (?:{_WORK})(?:ing)?\b[^.!?:\u2026\n]*{_END}", re.IGNORECASE)


@cache
def _filler() -> re.Pattern[str]:
    return re.compile(rf"{_LEADS}{_WAIT}[\s.!\u2026:]*", re.IGNORECASE)


def announces(text: str) -> bool:
    """Whether a text only announces its author's next step."""
    text = text.strip().strip("*_ ")
    if len(text) > LONGEST:
        return False
    found, place = False, 0
    while place < len(text):
        said = _announcement().match(text, place)
        step = said or _filler().match(text, place)
        if step is None or step.end() == place:
            return False
        found, place = found or said is not None, step.end()
        while place < len(text) and text[place].isspace():
            place += 1
    return found
