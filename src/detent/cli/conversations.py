"""Conversations as text and data: their export as Markdown and JSON, and what their messages used.

Rule: what people, models and tools wrote is quoted line by line, so no message can look like another one, or like a heading of the export.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from detent.cli.model_calls import spent
from detent.cli.output import as_json, as_text, clean, counted, shortened
from detent.core.budget import Usage
from detent.core.state import Item
from detent.ports.conversing import Message

ROLES = {"user": "You", "model": "Agent", "tool": "Tool", "note": "Note"}


def used(usage: Usage) -> str:
    """Return what was used in a few characters: the cost if it is known, else the tokens, "" without model calls."""
    if usage.cost_usd is not None:
        return f"{usage.cost_usd:.4f} USD"
    return f"{usage.total_tokens:,} tokens" if usage.total_tokens else ""


def effect_lines(effects: Sequence[Item]) -> list[str]:
    """Return a line for each call whose effect stays when a session continues from an earlier message."""
    calls = [f"  {clean(item.tool)} {shortened(as_text(item.args), 100)}  (call {item.call_id})" for item in effects]
    return [f"{counted(len(calls), 'effect')} after that message {'stays' if len(calls) == 1 else 'stay'}:", *calls] if calls else []


def markdown_of(session: str, messages: Sequence[Message], *, about: str = "") -> str:
    """Return a conversation as Markdown: a heading for each entry, and its text quoted."""
    parts = [f"# Session {clean(session)}", *([clean(about)] if about else [])]
    for message in messages:
        parts += [f"## {_heading(message)}", "\n".join(_quoted(message))]
    return "\n\n".join(parts) + "\n"


def _heading(message: Message) -> str:
    number = f"{message.number}. " if message.number else ""
    if message.kind == "tool":
        return f"{number}Tool {clean(message.tool)}{'' if message.ok is not False else ' failed'}"
    return f"{number}{ROLES[message.kind]}"


def _quoted(message: Message) -> Iterator[str]:
    text = message.text
    if message.kind == "tool":
        text = f"{as_json(message.args, indent=None)}\n\n{as_text(message.content)}"
    for line in clean(text, lines=True).split("\n"):
        yield f"> {line}".rstrip()
    for attached in message.attachments:
        yield f"> [{clean(str(getattr(attached, 'media_type', '') or 'attachment'))}]"
