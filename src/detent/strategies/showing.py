"""Shows earlier results in a prompt: previews with keys, never whole results, and never more than fits in the model's window."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from detent.core.state import Item
from detent.expressions.previews import shown_result
from detent.ports import ResultCompression, StrategyRun

CHARS_A_TOKEN = 4
SHARES = 4
"""The number of shares of the window: results, the answer so far, and the references of a task get at most one share each."""
BESIDE, LEAST = 400, 200
"""Characters that a list entry needs besides its value, and the minimum for its value. If not all entries fit, the latest are shown."""
ARGS = 200
"""How much of the arguments of a call is shown, in characters."""


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """One finding. `title` is shown before it, `key` tells where the whole value is kept, `result` whether a tool returned it."""

    title: str
    value: Any
    key: str = ""
    result: bool = False


def shown(value: Any) -> str:
    """Return a value as text: text unchanged, everything else as JSON."""
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def room(run: StrategyRun) -> int:
    """Return the maximum length of one share of a prompt, in characters."""
    return run.profile.window_tokens * CHARS_A_TOKEN // SHARES


def part(run: StrategyRun, value: Any, *, most: int, key: str = "", recalls: bool = False) -> str:
    """Return a value as text: whole up to `most` characters, else its beginning, the missing length, and the key of the whole value.

    `recalls`: whether the text is for a pass with the agent's tools, which may include `recall`.
    """
    text = shown(value)
    cut = shown_result(text, ResultCompression(budget_chars=most, preview_items=run.profile.preview_items))
    if cut is text or not key:
        return cut
    how = f'recall with key "{key}" gives the rest' if recalls and "recall" in run.agent.tools else f'kept under the key "{key}"'
    return f"{cut}\n[{how}]"


def gathered(run: StrategyRun, entries: Sequence[Entry], *, recalls: bool = False) -> str:
    """Return the findings, one per line, in at most one share of the window; "" if there are none.

    Tool results are cut at the limit of the agent's profile (`tool_result_max_chars`). Text of a model is cut only if it does not fit.
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
    """Return the results of earlier passes' calls, in the form of `gathered`; "" if none succeeded."""
    return gathered(
        run,
        [Entry(title=f"{_call(item)} ->", value=item.content, key=item.call_id, result=True) for item in results if item.ok],
        recalls=recalls,
    )


def _call(item: Item) -> str:
    args = shown(item.args)
    return f"{item.tool}({args if len(args) <= ARGS else f'{args[:ARGS]}…'})"
