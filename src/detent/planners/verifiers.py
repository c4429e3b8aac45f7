"""Checks of a final answer before it is believed (row K126): what a small model most often gets wrong, found without a model.

A verifier takes the answer and the view and returns what is wrong with it, "" when nothing is; it may be a coroutine function. It should
be a function of these two alone, so that a resumed run decides the same.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from detent.core.errors import ConfigError
from detent.core.state import Item
from detent.expressions.patterns import BadPattern, compiled
from detent.ports import View

Verifier = Callable[[Any, View], str | Awaitable[str]]

_NUMBER = re.compile(r"(?<![\w.])[-+]?\d+(?:[,_'\u202f\u00a0 ]\d{3}(?!\d))*(?:\.\d+)?(?:[eE][-+]?\d+)?")
_SEPARATOR = r"[,_'\u202f\u00a0 ]"
_INTEGER = re.compile(r"[-+]?\d+")


async def verify(verifier: Verifier, answer: Any, view: View) -> str:
    """Return what `verifier` says."""
    said = verifier(answer, view)
    return await said if inspect.isawaitable(said) else said


def grounded() -> Verifier:
    """Every number of the answer must occur in an observation, the goal, a reply or the variables."""

    async def check(answer: Any, view: View) -> str:
        numbers = {match[0]: _readings(match[0]) for match in _NUMBER.finditer(_text(answer))}
        if not numbers:
            return ""
        known = _numbers(view.goal) | _numbers(_text(view.variables))
        for item in view.transcript:
            known |= _numbers(item.text) if item.kind == "user" else set()
        for item in view.results:
            if item.ok:
                known |= _numbers(_text(await _whole(item, view)))
        strange = [said for said, readings in numbers.items() if not any(reading <= known for reading in readings)]
        return f"these numbers occur in no observation: {', '.join(strange[:5])}" if strange else ""

    return check


def require_tool_used(*tools: str) -> Verifier:
    """Each of these tools (without any: some tool) must have been used successfully before the answer."""

    def check(_answer: Any, view: View) -> str:
        used = {item.tool for item in view.results if item.ok}
        missing = [tool for tool in tools if tool not in used]
        if missing:
            return f"it was given without using {', '.join(missing)}; use it first"
        return "" if tools or used else "it was given without using any tool; use one first"

    return check


def answer_equals_tool_result(tool: str) -> Verifier:
    """The answer must be the latest result of this tool: the same value, or the same text apart from space around it."""

    async def check(answer: Any, view: View) -> str:
        results = [item for item in view.results if item.tool == tool and item.ok]
        if not results:
            return f"there is no result of {tool} yet; use it first"
        value = await _whole(results[-1], view)
        if answer == value or _text(answer).strip() == _text(value).strip():
            return ""
        return f"it must be exactly the last result of {tool}"

    return check


def answer_is_integer() -> Verifier:
    """The answer must be a whole number and nothing else."""

    def check(answer: Any, _view: View) -> str:
        fits = isinstance(answer, int) and not isinstance(answer, bool)
        return (
            "" if fits or (isinstance(answer, str) and _INTEGER.fullmatch(answer.strip())) else "it must be a whole number and nothing else"
        )

    return check


def answer_matches(pattern: str) -> Verifier:
    """The whole answer, without space around it, must match this regular expression. Raises `ConfigError` for one that is none."""
    try:
        matching = compiled(pattern)
    except BadPattern as error:
        raise ConfigError(f"answer_matches: {error}") from error

    def check(answer: Any, _view: View) -> str:
        return "" if matching.fullmatch(_text(answer).strip()) else f"it must match {pattern}"

    return check


def all_verifiers(*verifiers: Verifier) -> Verifier:
    """Every one of `verifiers` must be content; all that is wrong is said at once."""

    async def check(answer: Any, view: View) -> str:
        said = [await verify(verifier, answer, view) for verifier in verifiers]
        return "; ".join(problem for problem in said if problem)

    return check


async def _whole(item: Item, view: View) -> Any:
    """Return the whole result, also where the transcript shows a preview."""
    return await view.full(item) if item.artifact is not None and view.full is not None else item.content


def _text(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def _numbers(text: str) -> set[float]:
    """Return the numbers of a text, in every way in which they can be read."""
    return {number for match in _NUMBER.finditer(text) for reading in _readings(match[0]) for number in reading}


def _readings(said: str) -> list[set[float]]:
    """Return how a number can be read: `12,345` is one number, or two."""
    whole = re.sub(_SEPARATOR, "", said)
    return [{float(whole)}, {float(part) for part in re.split(_SEPARATOR, said)}]
