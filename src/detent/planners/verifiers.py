"""Checks of an answer that need no model: common mistakes of models, and requirements of an agent's author.

Each is a verifier (`ports.verifying`) that can be written as data: `Agent(verify=[grounded()])` and `verify = [{grounded = true}]` are the same.
"""  # rows K126

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from typing import Any

import msgspec

from detent.core.budget import Usage
from detent.core.errors import ConfigError
from detent.core.state import Item
from detent.expressions.compiled import ExpressionFailed, Names, compile_expression, evaluate
from detent.expressions.json_schema import UnusableSchema, check_schema, misfit
from detent.expressions.patterns import BadPattern, compiled
from detent.ports import UNREADABLE, View, read_json
from detent.ports.verifying import AnswerView, Stated, Verifier, verify

__all__ = [
    "Verifier",
    "all_verifiers",
    "answer_equals_tool_result",
    "answer_is_integer",
    "answer_matches",
    "calls_required",
    "expression",
    "grounded",
    "require_tool_used",
    "schema",
    "verify",
]

USAGE = (*(field for field in Usage.__struct_fields__ if field != "estimated"), "total_tokens", "running_s")
NAMES = Names(variables=("answer", "results", "usage", "goal", "variables"), members={"usage": USAGE}, open=("variables",))
"""The names that an expression may use. `results` has for each call its `tool`, `args`, `ok`, `result` and `error`."""

_NUMBER = re.compile(r"(?<![\w.])[-+]?\d+(?:[,_'\u202f\u00a0 ]\d{3}(?!\d))*(?:\.\d+)?(?:[eE][-+]?\d+)?")
_SEPARATOR = r"[,_'\u202f\u00a0 ]"
_INTEGER = re.compile(r"[-+]?\d+")


def grounded() -> Verifier:
    """Every number of the answer must occur in an observation, the goal, a reply or the variables."""

    async def check(answer: Any, view: View) -> str:
        numbers = {match[0]: _readings(match[0]) for match in _NUMBER.finditer(_text(_said(answer)))}
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

    return Stated({"grounded": True}, check)


def require_tool_used(*tools: str) -> Verifier:
    """Each of these tools (without any: some tool) must have been used successfully before the answer."""

    def check(_answer: Any, view: View) -> str:
        used = {item.tool for item in view.results if item.ok}
        missing = [tool for tool in tools if tool not in used]
        if missing:
            return f"it was given without using {', '.join(missing)}; use it first"
        return "" if tools or used else "it was given without using any tool; use one first"

    return Stated({"require_tool_used": list(tools)}, check)


def answer_equals_tool_result(tool: str) -> Verifier:
    """The answer must be the latest result of this tool: the same value, or the same text apart from surrounding space."""

    async def check(answer: Any, view: View) -> str:
        results = [item for item in view.results if item.tool == tool and item.ok]
        if not results:
            return f"there is no result of {tool} yet; use it first"
        value = await _whole(results[-1], view)
        if answer == value or _text(answer).strip() == _text(value).strip():
            return ""
        return f"it must be exactly the last result of {tool}"

    return Stated({"answer_equals_tool_result": tool}, check)


def answer_is_integer() -> Verifier:
    """The answer must be a whole number and nothing else."""

    def check(answer: Any, _view: View) -> str:
        answer = _said(answer)
        fits = isinstance(answer, int) and not isinstance(answer, bool)
        return (
            "" if fits or (isinstance(answer, str) and _INTEGER.fullmatch(answer.strip())) else "it must be a whole number and nothing else"
        )

    return Stated({"answer_is_integer": True}, check)


def answer_matches(pattern: str) -> Verifier:
    """The whole answer, without surrounding space, must match this regular expression. Raises `ConfigError` for an invalid one."""
    try:
        matching = compiled(pattern)
    except BadPattern as error:
        raise ConfigError(f"answer_matches: {error}") from error

    def check(answer: Any, _view: View) -> str:
        return "" if matching.fullmatch(_text(_said(answer)).strip()) else f"it must match {pattern}"

    return Stated({"answer_matches": pattern}, check)


def all_verifiers(*verifiers: Verifier) -> Verifier:
    """Every one of `verifiers` must accept; all objections are reported together."""

    async def check(answer: Any, view: View) -> str:
        said = [await verify(verifier, answer, view) for verifier in verifiers]
        return "; ".join(problem for problem in said if problem)

    return Stated({"all": list(verifiers)}, check)


def calls_required(calls: Mapping[str, int]) -> Verifier:
    """Each of these tools must have succeeded this often in the run, in any pass. Raises `ConfigError` for a number below 1."""
    for tool, count in calls.items():
        if type(count) is not int or count < 1:
            raise ConfigError(f"calls_required: {tool} = {count!r}; give a whole number, at least 1")

    def check(_answer: Any, view: View) -> str:
        done = Counter(item.tool for item in view.results if item.ok and item.executed)
        missing = [f"{tool} ({count - done[tool]} more)" for tool, count in calls.items() if done[tool] < count]
        return f"it needs calls that were not made, or did not succeed: {', '.join(missing)}" if missing else ""

    return Stated({"calls_required": dict(calls)}, check)


def schema(wanted: dict[str, Any]) -> Verifier:
    """The answer, or the JSON in its text, must satisfy this JSON Schema. Raises `ConfigError` for an invalid one."""
    try:
        check_schema(wanted)
    except UnusableSchema as error:
        raise ConfigError(f"schema {error}") from error

    def check(answer: Any, _view: View) -> str:
        problem = misfit(answer, wanted)
        if not problem or not isinstance(answer, str):
            return problem
        try:
            return misfit(read_json(answer), wanted)
        except UNREADABLE:
            return problem

    return Stated({"schema": wanted}, check)


def expression(source: str, *, says: str = "") -> Verifier:
    """This CEL expression over `answer`, `results`, `usage`, `goal` and `variables` must be true. `says` is the objection if not.

    Raises `ConfigError` for an invalid expression, or one with unknown names.
    """
    compiled_source = compile_expression(source, where="verify", names=NAMES)

    async def check(answer: Any, view: AnswerView) -> str:
        known: dict[str, Any] = {"answer": answer, "goal": view.goal, "variables": view.variables}
        if "results" in compiled_source.reads:
            known["results"] = [await _shown(item, view) for item in view.results]
        if "usage" in compiled_source.reads:
            known["usage"] = {name: view.running_s if name == "running_s" else getattr(view.usage, name) or 0 for name in USAGE}
        try:
            holds = evaluate(compiled_source, lambda name, _members: known[name])
        except ExpressionFailed as error:
            return says or str(error)
        if not isinstance(holds, bool):
            raise TypeError(f"the expression {source!r} is {type(holds).__name__}; it must be true or false")
        return "" if holds else says or f"this does not hold: {source}"

    return Stated({"expression": source, **({"says": says} if says else {})}, check)


async def _shown(item: Item, view: View) -> dict[str, Any]:
    error = "" if item.error is None else item.error.code
    return {"tool": item.tool, "args": item.args, "ok": item.ok, "result": await _whole(item, view) if item.ok else None, "error": error}


async def _whole(item: Item, view: View) -> Any:
    """Return the whole result, even if the transcript has only a preview."""
    return await view.full(item) if item.artifact is not None and view.full is not None else item.content


def _said(answer: Any) -> Any:
    """Return an answer without the files that its model made beside its text."""
    match answer:
        case {"text": str() as text, "attachments": [{"artifact": _}, *_], **rest} if not rest:
            return text
        case _:
            return answer


def _text(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def _numbers(text: str) -> set[float]:
    """Return the numbers of a text, in every possible reading."""
    return {number for match in _NUMBER.finditer(text) for reading in _readings(match[0]) for number in reading}


def _readings(said: str) -> list[set[float]]:
    """Return the readings of a number: `12,345` is one number, or two."""
    whole = re.sub(_SEPARATOR, "", said)
    return [{float(whole)}, {float(part) for part in re.split(_SEPARATOR, said)}]
