"""The earlier messages of a session in a prompt: real messages of user and model, before the goal, and the same bytes in every turn.

What is not somebody's words (calls, context, how a run ended) is the user's side of the conversation, marked and as JSON: text in it cannot pass for
another message.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Literal

import msgspec

from detent.expressions.previews import shown_result
from detent.ports import ResultCompression
from detent.ports.conversing import Message


def spoken(messages: Sequence[Message], compression: ResultCompression) -> Iterator[tuple[Literal["user", "model"], list[str]]]:
    """Yield the sides of a conversation in turn, each with its texts."""
    for model, said in groupby(messages, key=lambda message: message.kind == "model"):
        yield ("model" if model else "user"), [text_of(message, compression) for message in said]


def text_of(message: Message, compression: ResultCompression) -> str:
    """Return a message as a text."""
    match message.kind:
        case "tool":
            how = "" if message.ok else " failed"
            shown = shown_result(_json(message.content), compression)
            return f"[earlier call] {message.tool}({_json(message.args)}){how}: {shown}"
        case "note":
            return f"[note] {_json(message.text)}"
        case _:
            files = "".join(f"\n[attachment] {_json(one)}" for one in message.attachments)
            return f"{message.text}{files}"


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()
