"""When runs can move by themselves, as empty files: looking for work lists the names of what is due, and opens no log of a run that waits.

    .wake/lines/<line>/<hour>/<second>/<microsecond>-<line>-<run id>     can move since it was created: queued, or in progress
    .wake/<hour>/<second>/<microsecond>-<line>-<run id>                  can move at some later time

Hour, second and microsecond since 1970. A line is a key and a version as digests, with the priority between them. The first runs of a line are in the
first of its directories, so however many wait, few names are listed.

An append writes the name before its records and removes the former one after them, under the lock of the log. So whatever dies in between, each run
with a `wake_at` has its name. A name may be left over: it is compared with the log when it is due. Names are not synced. After the machine has
started again, and in a directory of an earlier version, they are made anew from the logs.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from hashlib import blake2b
from itertools import chain
from pathlib import Path

from detent.core.errors import CorruptLog, NewerVersion
from detent.core.records import RunHead
from detent.core.state import TERMINAL
from detent.stores.due import GIVEN_UP, Waiting, line_of, microseconds, wake_of
from detent.stores.files.parts import replace_file
from detent.stores.locks import host_identity

_SECOND, _HOUR = 1_000_000, 3_600_000_000
_KNOWN = "made-on"
"""The file that says how the names are arranged, and on which start of the machine they were made."""
_ARRANGED = "2 "
_ENDS = "\x1f"
"""Separates the parts of a line."""


class Wakes:
    """The names in one directory, which is beside the logs. `head` returns the listing entry of a run."""

    def __init__(self, directory: Path, head: Callable[[str], RunHead | None]) -> None:
        self._directory, self._head = directory, head
        self._place = str(directory)
        self.made = self._begun = False
        self._earlier: bool | None = None  # whether there are names of an earlier version

    def _name(self, head: RunHead, at: int) -> str:
        """Return the name of a run. It is the same for each listing entry with the same time and version."""
        line = "-".join(_line(head))
        lines = f"lines/{line}/" if 0 < at <= microseconds(head.created_at) else ""
        return f"{self._place}/{lines}{at // _HOUR:09}/{at // _SECOND:012}/{at:017}-{line}-{head.run_id}"

    def before(self, was: RunHead | None, head: RunHead) -> None:
        """Write the name of a listing entry that is about to be recorded over `was`."""
        at = wake_of(head)
        if was is None and not self._begun:
            self._begun = os.path.exists(self._place)  # noqa: PTH110 - in appends, a Path costs as much as the rest
            if not self._begun and len(self._runs()) <= 1:  # the first run: there is no earlier one to find
                self._note()
        if at is None or (was is not None and was.wake_at == head.wake_at and was.version == head.version):
            return
        self._write(self._name(head, max(0, at)))

    def after(self, was: RunHead | None, head: RunHead) -> None:
        """Remove the name of the listing entry `was`, which is not the run's any more."""
        if self._earlier is None:
            self._earlier = os.path.exists(f"{self._place}/{0:09}")  # noqa: PTH110 - in appends
        if was is not None and self._earlier:
            self._remove(self._name(was, 0))
        if was is not None and was.wake_at is not None and (was.wake_at != head.wake_at or was.version != head.version):
            self._remove(self._name(was, max(0, microseconds(was.wake_at))))

    def all_due(self, now: int) -> Iterator[Waiting]:
        """Yield all runs that are due, in no order."""
        lines = (one for line in self.lines() for one in self.of_line(line, now))
        return (one for one in chain(self.timed(now)[0], lines) if one[1] <= now)

    def lines(self) -> list[str]:
        """Return the lines in which runs can move since they were created, sorted."""
        self._make()
        return sorted(name.replace("-", _ENDS) for name in self._listed(f"{self._place}/lines"))

    def of_line(self, line: str, now: int) -> Iterator[Waiting]:
        """Yield the runs of one of these lines, the longest waiting first, also those that are due after `now`."""
        place = f"{self._place}/lines/{line.replace(_ENDS, '-')}"
        hours = sorted(self._listed(place))
        for hour in hours:
            yield from self._of_hour(f"{place}/{hour}", now)
        if not hours:
            self._clear(place)

    def timed(self, now: int) -> tuple[list[Waiting], int | None]:
        """Return the other runs that are due, and when the next one of them is."""
        self._make()
        found: list[Waiting] = []
        for hour in sorted(self._listed(self._place)):
            if not hour.isdigit():
                continue
            for one in self._of_hour(f"{self._place}/{hour}", now):
                if one[1] > now:
                    return found, one[1]
                found.append(one)
        return found, None

    def _of_hour(self, place: str, now: int) -> Iterator[Waiting]:
        """Yield the runs of an hour in order. Directories of the past without names are removed."""
        seconds = sorted(self._listed(place))
        for second in seconds:
            if not second.isdigit():  # the name of a run, as it was before they were arranged like this
                self._remove(f"{place}/{second}")
                continue
            names = sorted(self._listed(f"{place}/{second}"))
            if not names and int(second) < now // _SECOND:
                self._clear(f"{place}/{second}")
            for name in names:
                at, key, priority, version, run_id = name.split("-", 4)
                yield _ENDS.join((key, priority, version)), int(at), run_id
        if not seconds and int(place[-9:]) < now // _HOUR:
            self._clear(place)

    def still(self, one: Waiting, head: RunHead | None) -> bool:
        """Whether a run is due as its name says. A name of an earlier version (0) counts until an append says when the run can move."""
        if head is None or head.status in TERMINAL or one[0] != _ENDS.join(_line(head)):
            return False
        at = wake_of(head)
        return at == one[1] or (at is None and one[1] == 0 and head.status != GIVEN_UP)

    def drop(self, one: Waiting) -> None:
        """Remove a name that is left over; called under the lock of the log."""
        line, at, run_id = one
        line = line.replace(_ENDS, "-")
        name = f"{at // _HOUR:09}/{at // _SECOND:012}/{at:017}-{line}-{run_id}"
        self._remove(f"{self._place}/{name}")
        self._remove(f"{self._place}/lines/{line}/{name}")

    def _remove(self, name: str) -> None:
        with suppress(FileNotFoundError):
            os.unlink(name)  # noqa: PTH108 - in appends

    def _clear(self, place: str) -> None:
        with suppress(OSError):  # somebody has just written a name
            os.rmdir(place)  # noqa: PTH106 - beside the others

    def _listed(self, place: str) -> list[str]:
        try:
            return os.listdir(place)  # noqa: PTH208 - names are enough
        except FileNotFoundError:
            return []

    def _make(self) -> None:
        """Make the names from the logs, unless somebody has since the machine was started. Waiting runs of an earlier version are due once."""
        if self.made:
            return
        known = self._directory / _KNOWN
        made_on = known.read_text() if known.exists() else ""
        if made_on != _ARRANGED + host_identity():
            for run_id in self._runs():
                with suppress(CorruptLog, NewerVersion):  # whoever reads the run reports that
                    head = self._head(run_id)
                    if head is None or head.status in TERMINAL or head.status == GIVEN_UP:
                        continue
                    at = wake_of(head)
                    if at is None and head.status == "running":
                        at = microseconds(head.created_at)
                    if at is None and not made_on:
                        at, self._earlier = 0, True
                    if at is not None:
                        self._write(self._name(head, max(0, at)))
            self._note()
        self.made = True

    def _write(self, name: str) -> None:
        while True:
            try:
                os.close(os.open(name, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o600))
            except FileNotFoundError:
                self._directory.mkdir(exist_ok=True, mode=0o700)
                os.makedirs(os.path.dirname(name), mode=0o700, exist_ok=True)  # noqa: PTH103, PTH120 - in appends
            else:
                return

    def _runs(self) -> list[str]:
        """Return the ids of all runs."""
        return [name[: -len(".jsonl")] for name in self._listed(str(self._directory.parent)) if name.endswith(".jsonl")]

    def _note(self) -> None:
        """Write down that the names are made."""
        self._directory.mkdir(exist_ok=True, mode=0o700)
        replace_file(self._directory / _KNOWN, (_ARRANGED + host_identity()).encode(), durable=False)


def _line(head: RunHead) -> tuple[str, str, str]:
    """Return the line of a run in names: the digest of its key, its priority, the mark of the version that it needs."""
    key, _, priority = line_of(head).partition(_ENDS)
    return _digest(key), priority, mark_of(head.version)


def mark_of(version: str) -> str:
    """Return how a version is written in a line, "" for none."""
    return _digest(version) if version else ""


def _digest(text: str) -> str:
    return blake2b(text.encode(errors="surrogatepass"), digest_size=8).hexdigest()
