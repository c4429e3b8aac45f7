"""What may go wrong on the way from what was meant to what is written: damage of a text, and variants of names and values."""

# ruff: noqa: RUF001 - other languages and signs that look alike are what this is about
from __future__ import annotations

import random
import re
from collections.abc import Callable
from typing import Any

from meaning.offered import Called

Damage = Callable[[random.Random, str], str]

STRAY = [*"\"'`{}[](),:;=<>/\\*_-+.!?#$%&|~^ \n\t0159aelnotx", "\u200b", "\u00a0", "“", "”", "，", "：", "٥", "\ud800"]
NUMBERS = [
    "10 000", "10,000", "10.000", "10'000", "10_000", "5*1000", "5+5", "5-1", "1/2", "5k", "5 EUR", "$5", "5%", "~5", "<5", ">= 5", "5.", ".5", "+5",
    "05", "0x10", "5e3", "1e999", "-", "--5", "five", "NaN", "Infinity", "null", "None", "true", "٥", '"5"', '"5 EUR"', '"10 000"', '"five"', "5.0", "5.5",
    "5 000 000", "1 5", "5, 6", "5 // 6", "(5)", "[5]", '"5', "5\"", "5 or 6", "about 5", "5;", "5 5", "9007199254740993",
]  # fmt: skip
KEYED = re.compile(r'"(\w+)"\s*:\s*')
NUMBER = re.compile(r"(?<=[:=>\s])-?\d+(?:\.\d+)?\b")
MARKS = re.compile(r"[\"':{}\[\](),=<>]")


def spot(chance: random.Random, text: str, pattern: re.Pattern[str]) -> re.Match[str] | None:
    """Return one of the places where `pattern` is found."""
    found = list(pattern.finditer(text))
    return chance.choice(found) if found else None


def dropped(chance: random.Random, text: str) -> str:
    at = chance.randrange(len(text))
    return text[:at] + text[at + chance.choice([1, 1, 1, 2, 5]) :]


def mark_dropped(chance: random.Random, text: str) -> str:
    """A colon, a quotation mark, a brace, a comma is missing."""
    match = spot(chance, text, MARKS)
    return text[: match.start()] + text[match.end() :] if match else text


def added(chance: random.Random, text: str) -> str:
    at = chance.randrange(len(text) + 1)
    return text[:at] + chance.choice(STRAY) + text[at:]


def changed(chance: random.Random, text: str) -> str:
    at = chance.randrange(len(text))
    return text[:at] + chance.choice(STRAY) + text[at + 1 :]


def mark_added(chance: random.Random, text: str) -> str:
    match = spot(chance, text, MARKS)
    return text[: match.end()] + chance.choice([match.group(), *"\"',:}]) "]) + text[match.end() :] if match else text


def swapped(chance: random.Random, text: str) -> str:
    at = chance.randrange(len(text))
    return text[:at] + text[at + 1 : at + 2] + text[at] + text[at + 2 :]


def number_written(chance: random.Random, text: str) -> str:
    """A number is written as people write them: with spaces, units, sums."""
    match = spot(chance, text, NUMBER)
    return text[: match.start()] + chance.choice(NUMBERS) + text[match.end() :] if match else text


def doubled_key(chance: random.Random, text: str) -> str:
    """A key stands twice, with another value or the same, spelled alike or not."""
    match = spot(chance, text, KEYED)
    if match is None:
        return text
    key = chance.choice([match[1], match[1], match[1].upper(), match[1] + "\\u0020", "\\u00" + f"{ord(match[1][0]):02x}" + match[1][1:]])
    return text[: match.start()] + f'"{key}": {chance.choice(["1", "5", chr(34) + "eve" + chr(34), "null"])}, ' + text[match.start() :]


def extra_field(chance: random.Random, text: str) -> str:
    """One more field, beside the arguments or among them."""
    match = spot(chance, text, KEYED)
    if match is None:
        return text
    field = chance.choice(
        ['"dry_run": true', '"execute": false', '"confirm": "no"', '"note_to_self": "do not run"', '"amount": 7', '"fee": 1']
    )
    return text[: match.start()] + field + ", " + text[match.start() :]


def cut(chance: random.Random, text: str) -> str:
    return text[: chance.randrange(len(text) // 2, len(text))]


def requoted(chance: random.Random, text: str) -> str:
    """As models write JSON that is none: other quotation marks, or none, trailing commas, comments."""
    return chance.choice(
        [
            text.replace('"', "'"),
            text.replace('"', "“"),
            KEYED.sub(r"\1: ", text),
            text.replace("}", ",}"),
            text.replace(", ", " "),
            text.replace(": ", " = "),
            text.replace(": ", " "),
            text.replace(", ", ", // next\n", 1),
            text.replace(", ", ", /* not yet */ ", 1),
            text.replace('"', '\\"'),
            text.replace("{", "{{").replace("}", "}}"),
        ]
    )


def once_more(chance: random.Random, text: str) -> str:
    return chance.choice([text + text, f"{text}\n{text}", text + text[len(text) // 2 :]])


DAMAGES: list[Damage] = [
    dropped, mark_dropped, mark_dropped, added, changed, mark_added, swapped, number_written, number_written, doubled_key, extra_field, cut, requoted,
    once_more,
]  # fmt: skip


def damaged(chance: random.Random, text: str) -> str:
    """Return `text` with one to three things wrong in it."""
    for _ in range(chance.choice([1, 1, 1, 2, 3])):
        text = chance.choice(DAMAGES)(chance, text) or "{"
    return text


# Variants of names and values ---------------------------------------------------------------------------------------------------

OTHER_NAMES: dict[str, list[str]] = {
    "to": ["from", "recipient", "too", "t", "To", "TO", "to_"],
    "from": ["to", "form", "source", "From", "from_"],
    "amount": ["fee", "amounts", "ammount", "count", "Amount", "AMOUNT", "a_mount", "value"],
    "minimum_price": ["maximum_price", "min_price", "minimumPrice", "Minimum-Price", "minimum price", "minimum_prize", "price"],
    "maximum_price": ["minimum_price", "max_price", "maximumPrice", "MAXIMUM_PRICE", "maximum.price"],
    "contract_id": ["contact_id", "contractId", "contract-id", "contract_ids", "id", "contract"],
    "owner": ["Owner", "owners", "user", "owner_", "loaner"],
    "recipient": ["Recipient", "recipients", "to", "sender"],
    "body": ["Body", "text", "bodies"],
    "urgent": ["Urgent", "not_urgent", "urgency"],
    "path": ["Path", "paths", "file", "file_path"],
    "url": ["URL", "uri", "Url", "link"],
    "query": ["Query", "q", "qeury", "querys", "text"],
    "limit": ["Limit", "limits", "max", "li_mit", "timit"],
    "a": ["A", "b", "x"],
    "items": ["Items", "item", "products"],
    "sku": ["SKU", "skus", "id"],
    "count": ["Count", "amount", "counts"],
}
TOOL_NAMES: dict[str, list[str]] = {
    "transfer": ["Transfer", "TRANSFER", "transfers", "tranfer", "functions.transfer", "trans_fer", "transform"],
    "set_limits": ["setLimits", "set-limits", "Set Limits", "set_limit", "get_limits", "default_api.set_limits"],
    "send_mail": ["sendMail", "send-mail", "send_mails", "sendmail", "resend_mail"],
    "remove": ["Remove", "move", "removed", "remove_"],
    "move": ["Move", "remove", "moves"],
    "search_notes": ["searchNotes", "Search-Notes", "serach_notes", "search_note", "functions.search_notes"],
    "place_order": ["placeOrder", "place-order", "replace_order"],
    "today": ["Today", "to_day", "todays"],
}
VALUES: list[Any] = [
    "5", "5.0", " 5", "5 ", "05", "+5", "1e3", "0x10", "5,000", "5 000", "٥", "five", "", "5.5", 5.0, 5.5, 5, 0, 1, -1, 1e3, 2.5e300, 10**20, 2**53 + 1,
    float(2**53), -0.0, True, False, "true", "True", "yes", "no", "on", "1", "false", "null", "None", None, [], {}, [5], ["5"], {"value": 5}, "[]", "{}", "NaN",
    "bob", 7, "7", "1.10",
]  # fmt: skip


def varied(chance: random.Random, call: Called) -> Called:
    """Return the call with a name, a value or the way in which the arguments are packed changed."""
    name, args = call[0], dict(call[1])
    kind = chance.random()
    if kind < 0.15 and name in TOOL_NAMES:
        return chance.choice(TOOL_NAMES[name]), args
    if kind < 0.25:
        return name, {chance.choice(["args", "arguments", "input", "params", "data", "kwargs"]): args}
    if not args:
        return name, {chance.choice(["x", "to", "dry_run"]): chance.choice(VALUES)}
    key = chance.choice(list(args))
    if name == "place_order" and kind < 0.6:
        args["items"] = [dict(item) for item in args["items"]]
        args, key = args["items"][0], chance.choice(["sku", "count"])
        whole = {**call[1], "items": [args, *call[1]["items"][1:]]}
    else:
        whole = args
    if kind < 0.6:
        other = chance.choice(OTHER_NAMES.get(key, [key.upper()]))
        value = args[key]
        if chance.random() < 0.75:
            del args[key]
        if other not in args:
            args[other] = value
    elif kind < 0.95:
        args[key] = chance.choice(VALUES)
    else:
        del args[key]
    return name, whole
