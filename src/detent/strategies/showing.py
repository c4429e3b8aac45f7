"""What came before, as a prompt shows it: previews with keys, never whole results, and never more than the model's window has room for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from detent.core.state import Item
from detent.expressions.previews import shown_result
from detent.ports import ResultCompression, StrategyRun

CHARS_A_TOKEN = 4
SHARES = 4
"""Into how many parts the window is divided: results, the answer so far and what a task refers to take one each at most."""
BESIDE, LEAST = 400, 200
"""Characters that an entry of a list needs beside its value, and that its value gets at least; where all do not fit, the latest are shown."""
ARGS = 200
"""Of the arguments of a call, so many characters are shown."""


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that was found out: `title` stands before it, `key` says where it is kept whole, `result` whether a tool gave it."""

    title: str
    value: Any
    key: str = ""
    result: bool = False


def shown(value: Any) -> str:
    """Return a value as text: text as it is, the rest as JSON."""
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def room(run: StrategyRun) -> int:
    """Return how many characters one share of a prompt may have."""
    return run.profile.window_tokens * CHARS_A_TOKEN // SHARES


def part(run: StrategyRun, value: Any, *, most: int, key: str = "", recalls: bool = False) -> str:
    """Return a value as text: whole up to `most` characters, else its beginning, how much is missing, and the key under which it is kept.

    `recalls`: whether it is for a pass that has the agent's tools, where `recall` may be among them.
    """
    text = shown(value)
    cut = shown_result(text, ResultCompression(budget_chars=most, preview_items=run.profile.preview_items))
    if cut is text or not key:
        return cut
    how = f'recall with key "{key}" gives the rest' if recalls and "recall" in run.agent.tools else f'kept under the key "{key}"'
    return f"{cut}\n[{how}]"


def gathered(run: StrategyRun, entries: Sequence[Entry], *, recalls: bool = False) -> str:
    """Return what was found out, one entry a line, in at most one share of the window; "" for nothing.

    What a tool gave is shown as far as the agent's profile says (`tool_result_max_chars`), what a model wrote as far as there is room.
    """
    if not entries:
        return ""
    kept = entries[-max(1, room(run) // (BESIDE + LEAST)) :]
    most = max(LEAST, room(run) // len(kept) - BESIDE)
    left_out = [f"[{len(entries) - len(kept)} earlier ones are left out]"] if len(kept) < len(entries) else []
    lines = [
        f"{entry.title} "
        + part(
            run, entry.value, most=min(most, run.profile.tool_result_max_chars) if entry.result else most, key=entry.key, recalls=recalls
        )
        for entry in kept
    ]
    return "\n".join([*left_out, *lines])


def observed(run: StrategyRun, results: Sequence[Item], *, recalls: bool = False) -> str:
    """Return what the calls of earlier passes gave, as `gathered`; "" when none succeeded."""
    return gathered(
        run,
        [Entry(title=f"{_call(item)} ->", value=item.content, key=item.call_id, result=True) for item in results if item.ok],
        recalls=recalls,
    )


def _call(item: Item) -> str:
    args = shown(item.args)
    return f"{item.tool}({args if len(args) <= ARGS else f'{args[:ARGS]}…'})"
