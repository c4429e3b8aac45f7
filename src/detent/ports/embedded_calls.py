"""Calls that stand in the text of an answer: `tool({...})`, as the whole answer or its last line (row S0-11)."""

from __future__ import annotations

import re
from collections.abc import Container, Iterator, Mapping
from typing import Any

import msgspec

from detent.core.actions import ToolCall
from detent.core.errors import InvalidArguments
from detent.ports.json_data import read_json
from detent.ports.tools import Tool

UNREADABLE = (msgspec.DecodeError, RecursionError, UnicodeEncodeError)
"""What text raises that is no JSON: malformed, nested without end, or half a surrogate pair."""

_CALL = re.compile(r"(?P<tool>[A-Za-z0-9_-]{1,64})\s*\(\s*(?P<args>\{.*\})\s*\)", re.DOTALL)


def calls_in(answer: Any, tools: Container[str]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yield what could be a bare call of one of `tools` in an answer: its text, the tool, the arguments."""
    text = answer.strip() if isinstance(answer, str) else ""
    for candidate in dict.fromkeys((text, text.rpartition("\n")[2].strip())):
        match = _CALL.fullmatch(candidate)
        if match is None or match["tool"] not in tools:
            continue
        try:
            yield candidate, match["tool"], read_json(match["args"])
        except UNREADABLE:
            continue


def embedded_call(answer: Any, tools: Mapping[str, Tool]) -> ToolCall | None:
    """Return the call that an answer consists of (whole, or its last line), when the tool is offered and the arguments fit."""
    for _, tool, args in calls_in(answer, tools):
        try:
            tools[tool].check(args)
        except InvalidArguments:
            continue
        return ToolCall(tool=tool, args=args)
    return None
