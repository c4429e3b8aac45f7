"""Calls inside the text of an answer: `tool({...})` as the whole answer, or as its end after a lead-in.

Rule: such an answer contains the call and nothing else. An answer that ends in any other call of an offered tool is refused, and its planner is
told why.
"""  # row S0-11

from __future__ import annotations

import re
from collections.abc import Container, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from detent.core.actions import Action, FinalAnswer, ToolCall, is_blank
from detent.core.errors import InvalidArguments
from detent.ports.json_data import read_json
from detent.ports.lead_ins import NOT_A_LEAD_IN, before_calls, leads_in
from detent.ports.tools import Tool

UNREADABLE = (msgspec.DecodeError, UnicodeEncodeError)
"""The errors that `read_json` raises for text that is not JSON or contains half a surrogate pair."""

IN_A_FENCE = "to show it without running it, send the same text again with the call in a code fence"
"""Part of the message of every problem with a call in a text. A planner that has read it may show the call."""

_CALL = re.compile(r"(?P<tool>[A-Za-z0-9_.-]{1,64})\s*\(\s*(?P<args>\{.*\})\s*\)", re.DOTALL)
_ENDING = re.compile(r"^[ \t]*(?P<tool>[A-Za-z0-9_.-]{1,64})\(.*\)\Z", re.MULTILINE | re.DOTALL)


def call_in(answer: str, tools: Container[str]) -> tuple[str, re.Match[str]] | None:
    """Return the text before a call of one of `tools` at the end of an answer, and the call itself. None if the answer ends in no call."""
    text = answer.strip()
    for start in before_calls(text):
        match = _CALL.fullmatch(text, start)
        if match is not None and match["tool"] in tools:
            return text[:start].strip(), match
    return None


def calls_in(answer: Any, tools: Container[str]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yield each possible bare call of one of `tools` in an answer, executed or not: its text, the tool, the arguments."""
    text = answer.strip() if isinstance(answer, str) else ""
    found = call_in(text, tools)
    match = found[1] if found is not None else _CALL.fullmatch(text, text.rfind("\n") + 1)
    if match is None or match["tool"] not in tools:
        return
    try:
        yield match[0], match["tool"], read_json(match["args"])
    except UNREADABLE:
        return


def embedded_call(controls: Sequence[Action], tools: Mapping[str, Tool]) -> ToolCall | str | None:
    """Return the call that an answer makes, None if it makes none, or the problem if it is not a valid answer.

    A blank answer is not valid. Nor is one that ends in a call that is not executed.
    """
    match controls:
        case [FinalAnswer(content=answer), *_]:
            pass
        case _:
            return None
    if is_blank(answer):
        return "the final answer is blank"
    if not isinstance(answer, str):
        return None
    found = call_in(answer, tools)
    if found is None:
        ending = _ENDING.search(answer.rstrip())
        return _not_made(ending["tool"], "it is not alone, or not written so") if ending is not None and ending["tool"] in tools else None
    lead, call = found
    name = call["tool"]
    if lead and not leads_in(lead, (name,), call[0]):
        return _not_made(name, NOT_A_LEAD_IN)
    if lead and not tools[name].spec.read_only:
        return _not_made(name, "only a tool that reads is called so after other words")
    try:
        args = read_json(call["args"])
        tools[name].check(args)
    except (*UNREADABLE, InvalidArguments) as error:
        return _not_made(name, str(error))
    return ToolCall(tool=name, args=args)


def _not_made(tool: str, why: str) -> str:
    return f"the text holds a call of {tool!r} that was not made: {why}; to make it, call the tool; {IN_A_FENCE}"
