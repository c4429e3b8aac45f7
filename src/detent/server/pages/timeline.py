"""Where the spans of a run lie on a line of a fixed width. Time in which nothing happens is folded to a mark."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

import msgspec

from detent.server.pages.spans import Span

WIDTH, FOLDED, LEAST = 1000.0, 24.0, 1.5
"""The width of the line, of a fold in it, and of the smallest bar, in units of the drawing."""
MOST_BARS = 500
LANES = ("turn", "model", "tool", "wait", "pass")


class Bar(msgspec.Struct, frozen=True, kw_only=True):
    """A span as it is drawn."""

    x: float
    width: float
    lane: int
    span: Span
    seconds: float | None


class Fold(msgspec.Struct, frozen=True, kw_only=True):
    """A stretch that is not drawn in its length: where it is, how long it was, and what the run waited for in it ("" if unknown)."""

    x: float
    seconds: float
    why: str = ""


class Timeline(msgspec.Struct, frozen=True, kw_only=True):
    """A run over time."""

    bars: Sequence[Bar]
    folds: Sequence[Fold]
    seconds: float
    hidden: int = 0
    """So many of the shortest spans are not drawn."""


def drawn(spans: Sequence[Span], now: datetime) -> Timeline:
    """Return the line of these spans; those that last are drawn until now."""
    if not spans:
        return Timeline(bars=(), folds=(), seconds=0.0)
    shown = spans
    if len(spans) > MOST_BARS:
        longest = sorted(spans, key=lambda s: (s.end or now) - s.start, reverse=True)[:MOST_BARS]
        shown = sorted(longest, key=lambda s: s.start)
    first = min(s.start for s in spans)

    def since(at: datetime) -> float:
        return (at - first).total_seconds()

    busy = _busy([(since(s.start), since(s.end or now)) for s in spans if s.kind != "wait"])
    waits = [(since(s.start), since(s.end or now), s.label) for s in spans if s.kind == "wait"]
    last = max(since(s.end or now) for s in spans)
    axis = _Axis(busy, last)
    bars: list[Bar] = []
    for s in shown:
        x, to = axis.at(since(s.start)), axis.at(since(s.end or now))
        seconds = None if s.end is None else (s.end - s.start).total_seconds()
        bars.append(Bar(x=round(x, 2), width=round(max(LEAST, to - x), 2), lane=LANES.index(s.kind), span=s, seconds=seconds))
    folds = [
        Fold(x=round(axis.at(a), 2), seconds=b - a, why=next((label for start, end, label in waits if start <= a + 1 and end >= b - 1), ""))
        for a, b in axis.folded
    ]
    return Timeline(bars=bars, folds=folds, seconds=last, hidden=len(spans) - len(shown))


def _busy(spans: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return the stretches in which something happens, in their order, without overlaps."""
    merged: list[tuple[float, float]] = []
    for start, end in sorted(spans):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((start, end))
    return merged


class _Axis:
    """Maps seconds to places: in proportion, but for pauses that are long beside all work, which are folds."""

    def __init__(self, busy: list[tuple[float, float]], last: float) -> None:
        worked = sum(end - start for start, end in busy)
        longest = max(5.0, worked / 4)
        edges = [0.0, *(edge for stretch in busy for edge in stretch), max(last, busy[-1][1] if busy else last)]
        self.folded = [(a, b) for a, b in zip(edges[::2], edges[1::2], strict=True) if b - a > longest]
        left = max(1e-9, edges[-1] - sum(b - a for a, b in self.folded))
        scale = max(WIDTH - FOLDED * len(self.folded), WIDTH / 4) / left
        at, x = 0.0, 0.0
        self._places: list[tuple[float, float]] = [(0.0, 0.0)]
        for a, b in self.folded:
            x += (a - at) * scale
            self._places += [(a, x), (b, x + FOLDED)]
            at, x = b, x + FOLDED
        self._places.append((edges[-1], x + (edges[-1] - at) * scale))
        self._shrink = min(1.0, WIDTH / max(self._places[-1][1], 1e-9))

    def at(self, second: float) -> float:
        """Return the place of a second."""
        for (a, xa), (b, xb) in zip(self._places, self._places[1:], strict=False):
            if second <= b:
                share = (second - a) / (b - a) if b > a else 0.0
                return (xa + share * (xb - xa)) * self._shrink
        return self._places[-1][1] * self._shrink
