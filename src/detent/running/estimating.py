"""How many tokens a prompt has, estimated from its parts. The same parts give the same number in every process.

A provider's own count replaces the estimate wherever the log has one; then only what came after it is estimated.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import msgspec

from detent.config.adapters import is_attachment
from detent.core.actions import FinalAnswer, ToolCall
from detent.core.state import Item
from detent.kernel.context import KernelContext
from detent.ports.conversing import Message

ESTIMATOR = "bytes-4.2"
"""The version of these rules. `RunStarted` has it."""
BYTES_PER_TOKEN = 4
PER_ITEM = 8
"""Tokens around each item: its role and its separators."""
OF_A_FILE = 1_000
"""The tokens of an image or another file in a result."""
_FILE = b'"media_type"'
_WHOLE = 1 << 62


def tokens_in(size: int) -> int:
    """Return the tokens of so many bytes, rounded up."""
    return (size + BYTES_PER_TOKEN - 1) // BYTES_PER_TOKEN


def text_size(text: str) -> int:
    """Return the bytes of a text."""
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))


def json_size(value: Any) -> int:
    """Return the bytes of JSON data."""
    return len(msgspec.json.encode(value)) if value else 0


def tokens_of_item(item: Item, most: int = _WHOLE) -> int:
    """Return the tokens of a transcript item. Results are shown up to `most` bytes."""
    if item.kind == "tool":
        if item.error is not None:
            return tokens_in(text_size(item.error.message)) + PER_ITEM
        size = len(item.result)
        if size > most and not item.meta:
            size = most
        elif size > BYTES_PER_TOKEN * OF_A_FILE and _FILE in bytes(item.result):
            size = BYTES_PER_TOKEN * OF_A_FILE
        return tokens_in(size) + PER_ITEM
    size = text_size(item.text) + (json_size(item.arguments) if item.kind == "memory" else 0)
    if item.plan is not None:
        for action in (*item.plan.actions, *item.plan.dropped) if item.plan.dropped else item.plan.actions:
            if type(action) is ToolCall:
                size += len(action.tool) + json_size(action.args) + 24
            elif type(action) is not FinalAnswer or action.content != item.text:
                size += json_size(action)
    return tokens_in(min(size, BYTES_PER_TOKEN * OF_A_FILE) if holds_files(item) else size) + PER_ITEM


def holds_files(item: Item) -> bool:
    """Whether a reply has files in it: they are not text, and cannot be cut."""
    text = item.text
    if item.kind != "user" or len(text) <= BYTES_PER_TOKEN * OF_A_FILE or text[0] not in "{[" or '"type"' not in text:
        return False
    try:
        said: Any = msgspec.json.decode(text)
    except msgspec.DecodeError:
        return False
    if isinstance(said, dict):
        said = cast("dict[str, Any]", said).get("attachments", [said])
    return isinstance(said, list) and all(map(is_attachment, cast("list[Any]", said)))


def earlier_of(context: KernelContext) -> Sequence[Message]:
    """Return the messages of the session's earlier runs that are still shown."""
    told, messages = context.state.compaction, context.run.world.conversation
    return messages[told.earlier :] if told is not None and told.earlier else messages


def size_of_message(message: Message) -> int:
    """Return the bytes of a message of an earlier run."""
    return text_size(message.text) + json_size(message.args) + json_size(message.content) + PER_ITEM * BYTES_PER_TOKEN


def tokens_around(context: KernelContext) -> int:
    """Return the tokens of the parts of a prompt that stay."""
    return tokens_in(sum(size for size, _ in parts_around(context)))


def parts_around(context: KernelContext) -> list[tuple[int, str]]:
    """Return the parts of a prompt that stay, in bytes: instructions, tools, variables, attachments, the conversation."""
    return [
        (text_size(context.agent.instructions) + sum(map(text_size, context.input.guidance)) + 400, "the instructions"),
        (
            sum(text_size(spec.description) + len(spec.name) + json_size(spec.input_schema) for spec in context.specs),
            "the descriptions of the tools",
        ),
        (json_size(context.input.variables) + json_size(context.input.output_schema), "the variables and the schema of the answer"),
        (BYTES_PER_TOKEN * sum(min(OF_A_FILE, tokens_in(json_size(one))) for one in context.run.state.attachments), "the attachments"),
        (sum(map(size_of_message, earlier_of(context))), "the earlier conversation"),
    ]


def tokens_of_the_turn(context: KernelContext) -> int:
    """Return the tokens of the parts of a prompt that change from turn to turn: memory, notes, goals, guidance."""
    state, goals = context.state, context.run.state.goals
    if not (state.memory or state.scratchpad or state.guidance or goals):
        return 0
    size = json_size(state.memory) + sum(text_size(text) + len(key) for key, text in state.scratchpad.items())
    return tokens_in(size + sum(text_size(goal.goal) for goal in goals) + sum(map(text_size, state.guidance)))
