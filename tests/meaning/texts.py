"""Texts as models write them, in order: the same number gives the same text. What each was made of stands beside it."""

from __future__ import annotations

import json
import random
from typing import Literal, NamedTuple

from meaning.dialects import EVERY, ISSUE, JSON, NAME_AND_OBJECT, OTHER, Written, dumped
from meaning.mentions import FOREIGN_LEAD_INS, LEAD_INS, MENTIONS, THINKING
from meaning.offered import Called, wanted
from meaning.spoiling import damaged, varied

Stack = Literal["on device", "text dialect", "native text", "native call"]
Kind = Literal["plain", "mention", "damaged", "varied"]


class Text(NamedTuple):
    """What a model answers: `said` (of a native call: its arguments, and `tool`), and what it was made of.

    `way`: the dialect; `mention`: how it shows that the call is not asked for; `spoiled`: a mention that was damaged too.
    """

    number: int
    stack: Stack
    kind: Kind
    way: str
    said: str
    calls: tuple[Called, ...]
    tool: str = ""
    mention: str = ""
    spoiled: bool = False
    cut: bool = False
    lead_in: bool = False


def a_dialect(chance: random.Random) -> tuple[str, Written]:
    """Return a dialect: the plain ones as often as all others."""
    group = chance.choice([JSON, JSON, ISSUE, ISSUE, {"name({...})": NAME_AND_OBJECT}, OTHER])
    name = chance.choice(list(group))
    return name, EVERY[name]


def text(number: int) -> Text:
    """Return the text of this number."""
    chance = random.Random(number)
    stack: Stack = chance.choice(["on device"] * 5 + ["text dialect"] + ["native text"] * 3 + ["native call"])
    kind: Kind = chance.choice(["plain"] * 6 + ["mention"] * 5 + ["damaged"] * 5 + ["varied"] * 4)
    calls = tuple(wanted(chance) for _ in range(chance.choice([1, 1, 1, 1, 1, 2])))
    if stack == "native call":
        return a_native_call(number, chance, kind, calls[0])
    name, write = a_dialect(chance)
    if kind == "varied":
        calls = (varied(chance, calls[0]), *calls[1:])
    said = write(calls)
    if kind == "mention":
        spoiled = chance.random() < 0.1  # the call, for the words around it must stay
        way, said = mentioned(chance, damaged(chance, said) if spoiled else said)
        return Text(number, stack, kind, name, said, calls, mention=way, spoiled=spoiled)
    lead_in = chance.random() < 0.25
    if kind == "damaged":
        said = damaged(chance, said)
    if lead_in:
        said = chance.choice(FOREIGN_LEAD_INS if chance.random() < 0.1 else LEAD_INS) + chance.choice(["\n", "\n", "\n\n", " "]) + said
    if chance.random() < 0.1:
        said = chance.choice(THINKING) + said
    return Text(number, stack, kind, name, said, calls, cut=chance.random() < 0.03, lead_in=lead_in)


def a_native_call(number: int, chance: random.Random, kind: Kind, call: Called) -> Text:
    """Return a call as a provider hands it on; a mention has no such form."""
    if kind == "mention":
        kind = "varied"
    name, args = varied(chance, call) if kind == "varied" else call
    said = json.dumps(args, ensure_ascii=chance.random() < 0.5)
    if kind == "damaged":
        said = damaged(chance, said)
    return Text(number, "native call", kind, "native", said, (call,), tool=name)


def mentioned(chance: random.Random, said: str) -> tuple[str, str]:
    """Return in which way a call is not asked for, and a text in which it stands so."""
    way = chance.choice([*MENTIONS, "in an answer", "in another object"])
    if way == "in an answer":
        told = chance.choice(["The page says: {}", "Never send {}", "{}\nis what it says", "Here is what the page wants:\n\n> {}"])
        return way, dumped({"type": "final_answer", "content": told.replace("{}", said)})
    if way == "in another object":
        return way, chance.choice([dumped({"example": said}), dumped({"page": {"text": said}}), dumped([said])])
    return way, chance.choice(MENTIONS[way]).replace("{}", said)
