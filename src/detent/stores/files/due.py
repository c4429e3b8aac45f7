"""Finds the runs that are due in a file store."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime
from heapq import merge
from itertools import chain, islice, takewhile

from detent.core.errors import CorruptLog, NewerVersion
from detent.core.records import RunHead
from detent.ports import DueQuery, DueRuns
from detent.ports.fleet import Tally
from detent.stores.due import LINES, Waiting, asked_for, in_lines, is_told, key_of, line_of, microseconds, page_of, wake_of
from detent.stores.files.directory import StoreDirectory
from detent.stores.files.logs import heads_of
from detent.stores.files.waking import mark_of
from detent.stores.fleet import Cards, counted, tallied


class FileDue(StoreDirectory):
    """Finds work. See `FileStore`."""

    async def due(self, query: DueQuery) -> DueRuns:
        """Return the runs that somebody may advance now; see `EventStore.due`. They are compared by the clock of whoever asks."""
        self._file("_", "")
        return await self._do("_", lambda _wait_s: self._due(query), threaded=not self._logs.wakes.made)

    def _due(self, query: DueQuery) -> DueRuns:
        now, claimed = microseconds(query.now), self._claims.others()
        timed, following = self._logs.wakes.timed(now)
        page, more = self._page(query, now, timed, claimed)
        runs = [head for one in page if (head := self._entry(one)) is not None]
        told = [run_id for run_id in self._inboxes.names() if not claimed.get(run_id)]
        runs[:0] = [head for run_id in told if (head := self._head(run_id)) is not None and self._is_told(head, query, now)]
        mine = self._claims.holder.runs
        return DueRuns(
            runs=tuple(runs),
            next_s=None if following is None else (following - now) / 1e6,
            held=sum(run_id not in mine for run_id in claimed),
            more=more,
            active=self._active([run_id for run_id, alive in claimed.items() if alive]) if query.counts else {},
        )

    def _is_told(self, head: RunHead, query: DueQuery, now: int) -> bool:
        """Whether a run that is not due by its time is due by a signal."""
        at, held = wake_of(head), query.holds(head)
        if not asked_for(head, query) or (at is not None and at <= now and not held):
            return False
        return is_told(head, self._inboxes.waiting(head.run_id), held=held)

    def _page(self, query: DueQuery, now: int, timed: list[Waiting], claimed: dict[str, bool]) -> tuple[list[Waiting], str]:
        """Return the due runs of a page and its `more`. If not all fit, only the first names of each line are read."""
        wakes, marks = self._logs.wakes, None if query.version is None else {"", mark_of(query.version)}
        looks = query.tenant is not None or query.waiting or query.holds_some

        def is_wanted(line: str) -> bool:
            return marks is None or line.rpartition("\x1f")[2] in marks

        def takes(one: Waiting) -> bool:
            if claimed.get(one[2]):
                return False
            head = self._head(one[2]) if looks else None
            return not looks or (head is not None and asked_for(head, query) and not query.holds(head))

        def of_line(line: str) -> Iterator[Waiting]:
            named = takewhile(lambda one: one[1] <= now, wakes.of_line(line, now))
            return filter(takes, named)

        by_line: dict[str, list[Waiting]] = {}
        for one in timed:
            if is_wanted(one[0]) and takes(one):
                by_line.setdefault(one[0], []).append(one)
        lines = list(filter(is_wanted, wakes.lines()))
        found = list(islice(chain(*by_line.values(), chain.from_iterable(map(of_line, lines))), query.limit + 1))
        if len(found) <= query.limit:
            return page_of(found, query)
        names = sorted({*lines, *by_line})
        names = [name for name in names if name > query.after][:LINES] or names[:LINES]
        each = max(1, query.limit // len(names))
        return in_lines([one for name in names for one in islice(merge(by_line.get(name, ()), of_line(name)), each)], each, last=names[-1])

    def _active(self, run_ids: list[str]) -> dict[str, int]:
        """Return how many of these runs each key has."""
        return dict(Counter(key_of(line_of(head)) for run_id in run_ids if (head := self._head(run_id)) is not None))

    def _head(self, run_id: str) -> RunHead | None:
        with suppress(CorruptLog, NewerVersion):  # whoever reads the run reports that
            return self._logs.head(run_id)
        return None

    def _entry(self, one: Waiting) -> RunHead | None:
        """Return the listing entry of a run whose name is due; None for a name that is left over, which is removed."""
        head, wakes = self._head(one[2]), self._logs.wakes
        if wakes.still(one, head):
            return head
        with suppress(BlockingIOError), self._logs.still(one[2], 0.0):  # else an append has just written it
            head = self._head(one[2])
            if not wakes.still(one, head):
                wakes.drop(one)
                return None
        return head

    @property
    def taken_over(self) -> int:
        """How many claims this store took from holders that had died."""
        return self._claims.holder.taken_over

    async def tally(self, now: datetime) -> Tally:
        """Return how much work there is; see `Fleets.tally`. It looks at every log file, in a thread, and reads those that have changed."""
        self._file("_", "")
        return await self._do("_", lambda _wait_s: self._tally(microseconds(now)), threaded=True)

    def _tally(self, now: int) -> Tally:
        heads = {head.run_id: head for head in heads_of(self._logs)}
        due = {one[2]: one[1] for one in self._logs.wakes.all_due(now) if self._logs.wakes.still(one, heads.get(one[2]))}
        claimed = {run_id: lives for run_id, lives in self._claims.others().items() if run_id in heads}
        told = {name for name in self._inboxes.names() if name in heads and is_told(heads[name], self._inboxes.waiting(name))}
        return tallied(
            now,
            counts=counted(heads.values()),
            due=len(due),
            first=min((wake for run_id, wake in due.items() if run_id not in claimed), default=None),
            told=len(told - due.keys() - claimed.keys()),
            claims=[(lives, due.get(run_id), run_id in told) for run_id, lives in claimed.items()],
        )

    async def announce(self, worker: str, card: bytes | None) -> None:
        """Keep what a worker says about itself; see `Fleets.announce`."""
        self._file("_", "")
        with self._errors():
            Cards(self.path / ".workers").put(worker, card)

    async def announced(self) -> list[tuple[bytes, float]]:
        """Return what workers said about themselves, the latest first."""
        self._file("_", "")
        with self._errors():
            return Cards(self.path / ".workers").all()

    async def wake(self) -> None:
        """Wake everybody who waits for a signal, in every process of this host."""
        self._file("_", "")
        self._bell.ring()
