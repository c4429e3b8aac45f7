"""Runs that are due: the line in which each waits for a worker, and the page of a store that has too many of them for one answer.

A line is a key and a priority. A page has the first runs of each line, so that no key hides another one, however many runs it has.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from datetime import UTC, datetime, timedelta

from detent.core.records import RunHead
from detent.core.state import TERMINAL
from detent.ports import DueQuery, DueRuns, Signal, wakes

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)

LINES = 64
"""How many lines a page of due runs has at most, if not all due runs fit."""
_ENDS = "\x1f"
"""Ends the key in a line; no key contains it, and it sorts before a blank."""


def microseconds(at: datetime) -> int:
    """Return a time as exact whole microseconds since 1970."""
    return (at - _EPOCH) // _MICROSECOND


def wake_of(head: RunHead) -> int | None:
    """Return `wake_at` in microseconds since 1970."""
    return None if head.wake_at is None else microseconds(head.wake_at)


def line_of(head: RunHead) -> str:
    """Return the line in which a run waits for a worker: its key and its priority, as text that sorts by both."""
    queued = head.queued
    if queued is None:
        return f"{head.tenant}{_ENDS}{1 << 31:010}"
    return f"{queued.fair_key or head.tenant}{_ENDS}{queued.priority + (1 << 31):010}"


def asked_for(head: RunHead, query: DueQuery) -> bool:
    """Whether a query asks for a run like this one, if it is due; for stores that hold entries in memory."""
    return (
        query.tenant in (None, head.tenant)
        and not (query.waiting and head.status == "running")
        and (query.version is None or head.version in ("", query.version))
    )


GIVEN_UP = "waiting_for_operator"
"""The status of a dead letter: only a cancellation makes it due."""


def key_of(line: str) -> str:
    """Return the key of a line."""
    return line.partition(_ENDS)[0]


def dedupe_of(head: RunHead) -> str:
    """Return the key that a run was submitted with to be found again, or ""."""
    return head.queued.dedupe_key if head.queued is not None else ""


Waiting = tuple[str, int, str]
"""A run that is due: its line, when it woke, its id."""


def page_of(found: list[Waiting], query: DueQuery) -> tuple[list[Waiting], str]:
    """Return the due runs of a page and its `more`: all of them if they fit, else the first ones of each line; for stores that hold them in memory."""
    if len(found) <= query.limit:
        return sorted(found, key=_woke), ""
    lines: dict[str, list[Waiting]] = {}
    for one in sorted(found, key=_woke):
        lines.setdefault(one[0], []).append(one)
    names = sorted(name for name in lines if name > query.after)[:LINES] or sorted(lines)[:LINES]
    each = max(1, query.limit // len(names))
    return in_lines([one for name in names for one in lines[name][:each]], each, last=names[-1])


def in_lines(found: list[Waiting], each: int, *, last: str) -> tuple[list[Waiting], str]:
    """Return what counts of a page with at most `each` runs of a line: nothing behind a line of the same key that was cut. And where to continue.

    `last` is the last line that the page was made from, also if it has no run for whoever asks.
    """
    counts: dict[str, int] = {}
    kept: list[Waiting] = []
    key, cut = "", False
    for one in found:
        this = key_of(one[0])
        if this != key or not kept:
            key, cut = this, False
        if cut and counts.get(one[0], 0) == 0:
            continue
        kept.append(one)
        counts[one[0]] = counts.get(one[0], 0) + 1
        cut = cut or counts[one[0]] >= each
    return kept, f"{key_of(last)} "  # sorts behind the lines of the key, and before those of the next


def is_told(head: RunHead, inbox: Iterable[Signal], *, held: bool = False) -> bool:
    """Whether a run has a signal that makes it due. Of a dead letter and of a run that is `held`, only a cancellation does."""
    return head.status not in TERMINAL and any(wakes(signal) > (held or head.status == GIVEN_UP) for signal in inbox)


def due_among(
    runs: Iterable[tuple[RunHead, Collection[Signal]]], query: DueQuery, *, claimed: Collection[str] = (), held: int = 0
) -> DueRuns:
    """Return what `EventStore.due` answers, for a store that reads all its runs to find those that are due.

    `runs` has each run's listing entry and inbox; `claimed` the runs that living holders have claimed; `held` see `DueRuns`.
    """
    now = microseconds(query.now)
    found: list[Waiting] = []
    told: list[RunHead] = []
    later: list[int] = []
    active: Counter[str] = Counter()
    heads: dict[str, RunHead] = {}
    for head, inbox in runs:
        at = wake_of(head)
        if at is not None and at > now:
            later.append(at)
        if head.run_id in claimed:
            active[key_of(line_of(head))] += 1
        elif asked_for(head, query):
            heads[head.run_id] = head
            if at is not None and at <= now and not query.holds(head):
                found.append((line_of(head), at, head.run_id))
            elif is_told(head, inbox, held=query.holds(head)):
                told.append(head)
    page, more = page_of(found, query)
    return DueRuns(
        runs=(*told, *(heads[run_id] for _, _, run_id in page)),
        next_s=(min(later) - now) / 1e6 if later else None,
        held=held,
        more=more,
        active=dict(active),
    )


def _woke(one: Waiting) -> tuple[int, str]:
    return one[1], one[2]
