"""What a compaction takes out of a transcript: pure functions of the transcript, of what was taken out before, and of the options.

The tiers, cheapest first: results that were read again or are old are cleared (a handle stays), one part that is larger than the rest may be is
cut, and whole turns go into a summary. A turn is an item of kind `model` and everything up to the next one, so a call and its result stay together.
Positions are indices into the pass's whole transcript.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

import msgspec

from detent.config.adapters import is_instruction
from detent.core.events import ContextCompacted
from detent.core.history import Seq
from detent.core.state import Item
from detent.ports.compacting import CompactionOptions
from detent.running.estimating import BYTES_PER_TOKEN, holds_files, json_size, text_size, tokens_in

LOADED = ("activate_skill",)
"""The tools whose results are instructions: they stay in the prompt, word for word."""
RECALLS = ("recall", "recall_turn", "find")
HANDLE = 40
"""The tokens of what stands for a cleared result."""
WORDS = 0.15
"""The share of the window that the user's replies may have. Older ones go into the summary."""
FILES = 0.15
"""The share of the window that instruction files may have, such as an AGENTS.md that the agent has read."""
LARGEST = 6
"""How many parts are named if a prompt does not fit."""


class Reduction(msgspec.Struct, kw_only=True):
    """What a compaction takes out, as far as it is decided. `freed` are the tokens that it saves."""

    items: int
    kept: list[int]
    cleared: list[str]
    cut: dict[int, int]
    earlier: int = 0
    freed: int = 0
    tier: str = ""


class Shown:
    """What a planner is shown of a transcript now, with the sizes of its items. `first` is the first position behind the summary."""

    def __init__(
        self, steps: Seq[Item], told: ContextCompacted | None, start: int, options: CompactionOptions, size: Callable[[Item], int]
    ) -> None:
        self.steps, self.told, self.options, self._size = steps, told, options, size
        self.first = max(1, start)
        self.cleared = frozenset(told.cleared) if told is not None else frozenset[str]()
        self.cut = dict(told.cut) if told is not None else {}
        self.kept, self.earlier = (list(told.kept), told.earlier) if told is not None else ([], 0)
        self.boundary = self._boundary()

    def tokens(self, position: int) -> int:
        """Return the tokens of an item as it is shown."""
        item = self.steps[position]
        if item.call_id and item.call_id in self.cleared:
            return HANDLE
        if position in self.cut:
            return self.cut[position] // BYTES_PER_TOKEN + HANDLE
        return self._size(item)

    def total(self) -> int:
        """Return the tokens of all that is shown."""
        summary = tokens_in(text_size(self.told.summary)) if self.told is not None else 0
        return summary + sum(self.tokens(position) for position in (0, *self.kept, *range(self.first, len(self.steps))))

    def _boundary(self) -> int:
        """Return the position from which on nothing is dropped: where the last turns begin."""
        turns, boundary = 0, self.first
        for position in range(len(self.steps) - 1, self.first - 1, -1):
            if self.steps[position].kind == "model":
                turns += 1
                if turns == self.options.keep_turns:
                    boundary = position
                    break
        return boundary

    def pinned(self, item: Item) -> bool:
        """Whether the results of this call stay as they are."""
        return item.tool in LOADED or item.tool in self.options.pins

    def cuttable(self, position: int) -> bool | None:
        """Whether an item that may be cut is a result; None for what may not: failures, files, what is pinned, what was recalled."""
        item = self.steps[position]
        if item.kind == "tool":
            return True if item.ok and not self.pinned(item) else None
        return None if item.kind == "memory" or holds_files(item) else False

    def clearable(self) -> Iterator[int]:
        """Yield the positions of results that may be cleared: those that were read again later first, then from the oldest on."""
        seen: set[tuple[str, bytes]] = set()
        again: list[int] = []
        once: list[int] = []
        for position in range(len(self.steps) - 1, self.first - 1, -1):
            item = self.steps[position]
            if item.kind != "tool" or not item.ok:
                continue
            what = read_of(item)
            if position < self.boundary and not self.pinned(item) and not instructs(item) and self.tokens(position) > 2 * HANDLE:
                (again if what in seen else once).append(position)
            seen.add(what)
        yield from reversed(again)
        yield from reversed(once)

    def largest(self) -> list[tuple[int, str]]:
        """Return the largest parts that are shown now, the largest first: tokens and what it is."""
        sizes = [(self.tokens(p), _named(self.steps[p], p)) for p in (0, *self.kept, *range(self.first, len(self.steps)))]
        return sorted(sizes, key=lambda part: -part[0])[:LARGEST]


def read_of(item: Item) -> tuple[str, bytes]:
    """Return what was read: the tool and its arguments."""
    return item.tool, msgspec.json.encode(item.arguments, order="sorted")


def instructs(item: Item) -> bool:
    """Whether a call has read a file that tells agents how to work."""
    args: Any = item.arguments
    path: Any = cast("dict[str, Any]", args).get("path") if isinstance(args, dict) else None
    return item.kind == "tool" and item.ok is True and not item.changes and isinstance(path, str) and is_instruction(path)


def clear(shown: Shown, wanted: int) -> Reduction:
    """Clear results until `wanted` tokens are free: repeated reads, then the oldest. The rest of the transcript stays."""
    kept = [*shown.cleared]
    made = Reduction(
        items=shown.first if shown.first > 1 else 0,
        kept=shown.kept,
        cleared=kept,
        cut=dict(shown.cut),
        earlier=shown.earlier,
    )
    for position in shown.clearable():
        if made.freed >= wanted:
            break
        item = shown.steps[position]
        made.freed += shown.tokens(position) - HANDLE
        kept.append(item.call_id)
        made.cut.pop(position, None)
        made.tier = "clear"
    return made


def left_of(shown: Shown, made: Reduction, position: int) -> int:
    """Return the tokens of an item after what is decided so far."""
    if shown.steps[position].call_id in made.cleared:
        return HANDLE
    return made.cut[position] // BYTES_PER_TOKEN + HANDLE if position in made.cut else shown.tokens(position)


def clamp(shown: Shown, made: Reduction, most: int, wanted: int, *, results: bool) -> None:
    """Cut what has more than `most` tokens until `wanted` tokens are free.

    Either `results`, from the oldest on, or else plans, then words, and last the goal, to twice that.
    """
    positions = [position for position in (*made.kept, *range(max(1, made.items), len(shown.steps))) if shown.cuttable(position) is results]
    positions.sort(key=lambda position: shown.steps[position].kind == "user")
    for position in positions if results else (*positions, 0):
        if made.freed >= wanted:
            return
        share = most if position else 2 * most
        before = left_of(shown, made, position)
        if before > share + HANDLE:
            made.cut[position] = share * BYTES_PER_TOKEN
            made.freed += before - share - HANDLE
            made.tier = "clamp"


def drop(shown: Shown, made: Reduction, window: int) -> list[int]:
    """Drop all turns but the last ones. Return the positions that a summary is to stand for.

    What the user said and what instructs the agent stays: the newest within its share of the window, everything that is pinned.
    """
    dropped = range(shown.first, shown.boundary)
    if not dropped:
        return []
    candidates, kept, room, files = [*shown.kept, *dropped], list[int](), int(window * WORDS), int(window * FILES)
    instructed: set[tuple[str, bytes]] = set()
    for position in reversed(candidates):
        item = shown.steps[position]
        said = [position, position - 1] if shown.steps[position - 1].questions else [position]  # a reply says little without its question
        if item.kind == "user":
            size, half = sum(map(shown.tokens, said)), room // 2
            less = shown.tokens(position) - half - HANDLE if size > room and not holds_files(item) else 0
            if size - max(0, less) <= room:
                room -= size - max(0, less)
                kept += said
                if less > 0:
                    made.cut[position] = half * BYTES_PER_TOKEN
                    made.freed += less
        elif item.kind == "tool" and item.ok and read_of(item) not in instructed:
            if not shown.pinned(item) and (not instructs(item) or (files := files - shown.tokens(position)) < 0):
                continue
            instructed.add(read_of(item))
            kept.append(position)
    kept.reverse()
    gone = [position for position in candidates if position not in kept]
    made.freed += sum(left_of(shown, made, position) for position in gone)
    here = {shown.steps[position].call_id for position in range(shown.boundary, len(shown.steps))} - {""}
    made.items, made.kept = shown.boundary, kept
    made.cleared = [call for call in made.cleared if call in here]
    made.cut = {position: size for position, size in made.cut.items() if not position or position >= shown.boundary or position in kept}
    return gone


def said_by(item: Item) -> tuple[str, bytes, int]:
    """Return what was read and what it said: a call that says something new reads nothing again."""
    return *read_of(item), hash(bytes(item.result)) if item.error is None else hash(item.error.message)


def only_read_again(steps: Sequence[Item], hidden: Callable[[Item], bool]) -> bool:
    """Whether everything that was done in these items was to read again what was hidden before."""
    calls = [item for item in steps if item.kind == "tool"]
    return bool(calls) and all(item.tool in RECALLS or hidden(item) for item in calls)


def _named(item: Item, position: int) -> str:
    match item.kind:
        case "tool":
            return f"the result of {item.tool} ({item.call_id})"
        case "model":
            return f"the plan of turn {item.iteration}" + (f" ({json_size(list(item.plan.actions)):,} bytes)" if item.plan else "")
        case "user":
            return "the goal" if position == 0 else f"what the user said in turn {item.iteration}"
        case _:
            return f"a note of turn {item.iteration}"
