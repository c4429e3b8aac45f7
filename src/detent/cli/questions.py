"""Asks the person at the terminal the questions of a run, with a prompt for the kind of reply that each expects.

Rule: a question is untrusted data, so each of its lines begins with a bar. A typed reply counts only if it matches what is expected.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from typing import Any, cast

import msgspec

from detent.cli.approving import BAR
from detent.cli.output import Output, as_json, as_text, broken, clean, room_of, shortened
from detent.core.errors import NotAllowedNow
from detent.core.state import Ask
from detent.running.admission import fitting_reply

MOST_CHOICES = 100
"""For a longer list, the reply is typed as JSON."""
LINE = 200
"""How many characters are shown of a choice, or of a field's description."""
LATER = "later"
"""The meaning of an empty line, unless a prompt says otherwise."""


class Later(Exception):
    """The person postpones the question."""


def reply_to(output: Output, run_id: str, ask: Ask) -> Any:
    """Show a question and return a typed reply that fits it. Raise `Later` if the person postpones it."""
    output.say("\nthe run asks:", "bold")
    if not output.page(_barred(ask.question)):
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


def _barred(text: str) -> list[str]:
    columns = room_of(sys.stderr)
    lines = clean(text, lines=True).expandtabs().split("\n")
    return [f"{BAR}{row}" for line in lines for row in (broken(line, columns - len(BAR)) if columns else [line])]


def _asked(output: Output, expected: Mapping[str, Any] | None, *, enter: str = LATER) -> Any:
    """Return the typed reply, or field of a reply, of this kind. Raise `Later`."""
    kind = (expected or {}).get("type", "string" if not expected else None)
    choices = _choices(expected or {})
    if choices:
        return choose(output, choices, enter=enter)
    if kind == "object" and (fields := _fields(expected or {})):
        required = (expected or {}).get("required")
        return _form(output, fields, cast("list[str]", required) if isinstance(required, list) else [])
    if kind == "boolean":
        return _yes(output, enter=enter)
    if kind == "string":
        return typed(output, "reply", enter=enter)
    if kind in ("integer", "number"):
        return _number(output, "a whole number" if kind == "integer" else "a number", enter=enter)
    output.page(_barred(f"JSON that fits {as_json(expected)}"))
    return _json(typed(output, "JSON", enter=enter))


def typed(output: Output, what: str, *, enter: str) -> str:
    """Return one typed line; raise `Later` for an empty one."""
    if not (line := output.ask(f"{what} (Enter: {enter}): ")):
        output.say()
    if not line.strip():
        raise Later
    return line.strip()


def _json(text: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        return text


def _yes(output: Output, *, enter: str) -> bool:
    while True:
        match typed(output, "yes/no", enter=enter).lower():
            case "y" | "yes" | "true":
                return True
            case "n" | "no" | "false":
                return False
            case _:
                output.say("  yes or no")


def _number(output: Output, what: str, *, enter: str) -> int | float:
    while True:
        said = _json(typed(output, what, enter=enter))
        if isinstance(said, (int, float)) and not isinstance(said, bool):
            return said
        output.say(f"  {what}, such as 7")


def _choices(expected: Mapping[str, Any]) -> list[Any]:
    """Return the possible values of a reply; empty if other values are possible, too."""
    found = expected.get("enum")
    return cast("list[Any]", found) if isinstance(found, list) and 0 < len(cast("list[Any]", found)) <= MOST_CHOICES else []


def choose(output: Output, choices: Sequence[Any], *, about: Sequence[str] = (), enter: str = LATER) -> Any:
    """Show a list and return the choice whose number or words were typed; `about` describes each choice. Raise `Later` for an empty line.

    Numbers are shown only if no choice looks like a number.
    """
    words = [as_text(choice) for choice in choices]
    numbered = not any(re.fullmatch(r"\s*\d+\s*", word) for word in words)
    shown = [f"{word:<{max(map(len, words))}}  {more}" for word, more in zip(words, about, strict=True)] if about else words
    output.page([f"  {f'{number}  ' if numbered else ''}{shortened(line, LINE)}" for number, line in enumerate(shown, 1)])
    while True:
        said = typed(output, "the number or the words" if numbered else "one of these", enter=enter)
        if said in words:
            return choices[words.index(said)]
        if numbered and said.isascii() and said.isdigit() and 1 <= int(said) <= len(choices):
            return choices[int(said) - 1]
        near = [choice for choice, word in zip(choices, words, strict=True) if word.strip().lower() == said.lower()]
        if len(near) == 1:
            return near[0]
        output.say(f"  1 to {len(choices)}, or the words" if numbered else "  one of the list, written as it is there")


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
