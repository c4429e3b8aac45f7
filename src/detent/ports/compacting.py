"""Compaction: what a planner is no longer shown of a long run. Everything else still sees it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Annotated, Protocol

import msgspec

from detent.core.errors import Explained
from detent.core.state import Item
from detent.ports.options import check_fields

_Share = Annotated[float, msgspec.Meta(gt=0, le=1)]
_Count = Annotated[int, msgspec.Meta(ge=0)]


class CompactionOptions(msgspec.Struct, metaclass=Explained, frozen=True, kw_only=True):
    """When a run is compacted, and to what.

    `use` names the compactor. A prompt over the share `at` of the window is reduced to the share `to`. `turns`: compact also after so many turns
    since the last time (0: never), if at least `min_items` items can be dropped. The last `keep_turns` turns are never dropped, nor are results of the
    tools in `pins`. After `max_failures` failures of the compactor in a row it is not called again. `window_tokens` overrides the profile.
    """

    use: str = "extractive"
    at: _Share = 0.8
    to: _Share = 0.5
    turns: _Count = 0
    min_items: _Count = 20
    keep_turns: Annotated[int, msgspec.Meta(ge=1)] = 3
    pins: tuple[str, ...] = ()
    max_summary_bytes: Annotated[int, msgspec.Meta(ge=200)] = 12_000
    max_failures: Annotated[int, msgspec.Meta(ge=1)] = 3
    window_tokens: _Count = 0

    __post_init__ = check_fields


class Measured(msgspec.Struct, metaclass=Explained, frozen=True, kw_only=True, gc=False):
    """What is known of a run's prompt before a plan. All of it follows from the log.

    `tokens` is the prompt's estimated size, `window` the model's context (0: unknown). `turns` have begun since the last compaction, `droppable`
    items could be dropped.
    """

    tokens: int
    window: int
    turns: int
    droppable: int
    options: CompactionOptions


class Dropped(msgspec.Struct, metaclass=Explained, frozen=True, kw_only=True):
    """What a compactor is to replace: these items of the transcript, the summary of what was dropped before, and its bound in bytes.

    A prompt of more than `ask_bytes` may be too long for the model behind `ask`.
    """

    items: Sequence[Item]
    before: str = ""
    max_bytes: int = 12_000
    goal: str = ""
    ask_bytes: int = 32_000


Ask = Callable[[str], Awaitable[str]]
"""Calls the agent's small model through the run's gateway, and returns its text."""


class Compactor(Protocol):
    """Decides when a run is compacted, and writes the summary that stands for what is dropped.

    `due` returns why a compaction is due, "" if none is. It reads nothing but its argument: the same log gives the same answer. `compact` returns the
    summary of `dropped`, which includes `dropped.before`; at most `dropped.max_bytes` of it are used. A blank summary is a failure, like an
    exception: the run then uses `ExtractiveCompactor`. `ask` calls a model, None if the run has none.
    """

    @property
    def name(self) -> str: ...

    def due(self, measured: Measured) -> str: ...

    async def compact(self, dropped: Dropped, *, ask: Ask | None) -> str: ...


def due_by_size(measured: Measured) -> str:
    """Return "tokens" if the prompt is over its share of the window, "turns" if enough turns have begun and enough items can go, else ""."""
    options = measured.options
    if measured.window and measured.tokens > options.at * measured.window:
        return "tokens"
    return "turns" if 0 < options.turns <= measured.turns and measured.droppable >= max(1, options.min_items) else ""
