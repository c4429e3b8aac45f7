"""Compaction: what a planner is no longer shown of a long run. Everything else still sees it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec

from detent.core.budget import NOTHING, Usage
from detent.core.errors import Explained
from detent.core.state import Item
from detent.ports.models import Models


class Dropped(msgspec.Struct, metaclass=Explained, frozen=True, kw_only=True):
    """What a compactor is to replace: these items of the transcript, the summary of what was dropped before, and its bound in bytes."""

    items: Sequence[Item]
    before: str = ""
    max_bytes: int = 12_000
    goal: str = ""


class Compacted(msgspec.Struct, metaclass=Explained, frozen=True, kw_only=True):
    """The text that stands for dropped items. An empty summary is a failure."""

    summary: str
    usage: Usage = NOTHING


class Compactor(Protocol):
    """Turns dropped items into a summary. `models` is the run's gateway. `name` is recorded. A failure is raised; the run keeps its transcript."""

    @property
    def name(self) -> str: ...

    async def compact(self, dropped: Dropped, *, models: Models | None) -> Compacted: ...
