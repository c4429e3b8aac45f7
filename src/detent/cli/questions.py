"""Asks the person at the terminal the questions of a run, with a prompt for the kind of reply that each expects.

Rule: a question is untrusted data, so each of its lines begins with a bar. A typed reply counts only if it matches what is expected.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, cast

import msgspec

from detent.cli.approving import BAR
from detent.cli.output import Output, as_json, broken, clean, room_of
from detent.core.errors import NotAllowedNow
from detent.core.state import Ask
from detent.expressions.display import as_text, shortened
from detent.running.admission import fitting_reply

MOST_CHOICES = 100
"""For a longer list, the reply is typed as JSON."""
LINE = 200
"""How many characters are shown of a choice, or of a field's description."""
LATER = "later"
"""The meaning of an empty line, unless a prompt says otherwise."""


WHAT = {"string": "reply", "boolean": "yes/no", "integer": "a whole number", "number": "a number"}
"""What is typed, by the kind of reply; JSON for any other."""
YES_NO = {"y": True, "yes": True, "true": True, "n": False, "no": False, "false": False}


class Later(Exception):
    """The person postpones the question."""


class Unfit(Exception):
    """The typed line is not the kind of reply that is expected; the text says what is."""


def reply_to(output: Output, run_id: str, ask: Ask) -> Any:
    """Show a question and return a typed reply that fits it. Raise `Later` if the person postpones it."""
    output.say("\nthe run asks:", "bold")
    if not output.page(question_lines(ask)):
        raise Later
    while True:
        said = _asked(output, ask.expected)
        try:
            return fitting_reply(run_id, said, ask.expected)
        except NotAllowedNow as error:
            if error.reason_code == "unusable_schema":
                output.say(f"  {clean(str(error))}", "yellow")
                raise Later from None
            output.say(f"  {shortened(str(error), None)}", "yellow")


def question_lines(ask: Ask) -> list[str]:
    """Return the question behind bars, wrapped for a terminal."""
    return barred(ask.question)


def barred(text: str) -> list[str]:
    """Return untrusted text behind bars, wrapped for a terminal."""
    columns = room_of(sys.stderr)
    lines = clean(text, lines=True).expandtabs().split("\n")
    return [f"{BAR}{row}" for line in lines for row in (broken(line, columns - len(BAR)) if columns else [line])]


def _asked(output: Output, expected: Mapping[str, Any] | None, *, enter: str = LATER) -> Any:
    """Return the typed reply, or field of a reply, of this kind. Raise `Later`."""
    if _kind(expected) == "object" and (fields := _fields(expected or {})):
        required = (expected or {}).get("required")
        return _form(output, fields, cast("list[str]", required) if isinstance(required, list) else [])
    output.page(offered(expected))
    return _until_it_fits(output, what(expected), partial(meant, expected), enter=enter)


def _until_it_fits(output: Output, asked: str, read: Callable[[str], Any], *, enter: str) -> Any:
    while True:
        try:
            return read(typed(output, asked, enter=enter))
        except Unfit as error:
            output.say(f"  {error}")


def typed(output: Output, what: str, *, enter: str) -> str:
    """Return one typed line; raise `Later` for an empty one."""
    if not (line := output.ask(f"{what} (Enter: {enter}): ")):
        output.say()
    if not line.strip():
        raise Later
    return line.strip()


# A reply of one line ------------------------------------------------------------------------------------------------------------


def offered(expected: Mapping[str, Any] | None) -> list[str]:
    """Return what is shown below a question before its reply is typed: the choices, or the form of the JSON."""
    if choices := _choices(expected or {}):
        return _listed(choices)
    return barred(f"JSON that fits {as_json(expected)}") if what(expected) == "JSON" else []


def what(expected: Mapping[str, Any] | None) -> str:
    """Return in a few words what is typed."""
    if choices := _choices(expected or {}):
        return _one_of(choices)
    return WHAT.get(_kind(expected), "JSON")


def meant(expected: Mapping[str, Any] | None, said: str) -> Any:
    """Return the reply that a typed line means; raise `Unfit` if it is not of the expected kind."""
    kind = _kind(expected)
    if choices := _choices(expected or {}):
        return _chosen(choices, said)
    if kind == "boolean":
        if (word := said.lower()) not in YES_NO:
            raise Unfit("yes or no")
        return YES_NO[word]
    if kind in ("integer", "number"):
        number = _json(said)
        if not isinstance(number, (int, float)) or isinstance(number, bool):
            raise Unfit(f"{what(expected)}, such as 7")
        return number
    return said if kind == "string" else _json(said)


def _kind(expected: Mapping[str, Any] | None) -> str:
    """Return the one type that the reply has, "" if there is no such type."""
    kind = expected.get("type") if expected else "string"
    return kind if isinstance(kind, str) else ""


def _json(text: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        return text


def _choices(expected: Mapping[str, Any]) -> list[Any]:
    """Return the possible values of a reply; empty if other values are possible, too."""
    found = expected.get("enum")
    return cast("list[Any]", found) if isinstance(found, list) and 0 < len(cast("list[Any]", found)) <= MOST_CHOICES else []


def choose(output: Output, choices: Sequence[Any], *, about: Sequence[str] = (), enter: str = LATER) -> Any:
    """Show a list and return the choice whose number or words were typed; `about` describes each choice. Raise `Later` for an empty line.

    Numbers are shown only if no choice looks like a number.
    """
    output.page(_listed(choices, about))
    return _until_it_fits(output, _one_of(choices), partial(_chosen, choices), enter=enter)


def _numbered(choices: Sequence[Any]) -> bool:
    return not any(re.fullmatch(r"\s*\d+\s*", as_text(choice)) for choice in choices)


def _one_of(choices: Sequence[Any]) -> str:
    return "the number or the words" if _numbered(choices) else "one of these"


def _listed(choices: Sequence[Any], about: Sequence[str] = ()) -> list[str]:
    words, numbered = [as_text(choice) for choice in choices], _numbered(choices)
    shown = [f"{word:<{max(map(len, words))}}  {more}" for word, more in zip(words, about, strict=True)] if about else words
    return [f"  {f'{number}  ' if numbered else ''}{shortened(line, LINE)}" for number, line in enumerate(shown, 1)]


def _chosen(choices: Sequence[Any], said: str) -> Any:
    words, numbered = [as_text(choice) for choice in choices], _numbered(choices)
    if said in words:
        return choices[words.index(said)]
    if numbered and said.isascii() and said.isdigit() and 1 <= int(said) <= len(choices):
        return choices[int(said) - 1]
    near = [choice for choice, word in zip(choices, words, strict=True) if word.strip().lower() == said.lower()]
    if len(near) != 1:
        raise Unfit(f"1 to {len(choices)}, or the words" if numbered else "one of the list, written as it is there")
    return near[0]


# A form -------------------------------------------------------------------------------------------------------------------------


def _fields(expected: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the fields of a form by name; empty if one of them is nested."""
    try:
        fields = msgspec.convert(expected.get("properties"), dict[str, dict[str, Any]])
    except msgspec.ValidationError:
        return {}
    plain = all(field.get("type") in ("string", "boolean", "integer", "number") or _choices(field) for field in fields.values())
    return fields if plain and len(fields) <= MOST_CHOICES else {}


def _form(output: Output, fields: Mapping[str, Mapping[str, Any]], required: Sequence[str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, field in fields.items():
        optional = name not in required
        about = shortened(str(field.get("description") or field.get("title") or ""), LINE)
        output.say(f"  {clean(name)}{f': {about}' if about else ''}", "bold")
        try:
            found[name] = _asked(output, field, enter="leave it out" if optional else LATER)
        except Later:
            if not optional:
                raise
    return found
