"""What watching a fleet needs of every store: counting claims into a tally, and cards of workers as files."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Iterable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from hashlib import blake2b
from pathlib import Path

from detent.core.records import RunHead
from detent.core.state import TERMINAL, WAITING
from detent.ports.fleet import KEPT_S, MOST_CARD_BYTES, MOST_CARDS, Tally
from detent.stores.due import microseconds

OPEN = ("running", *WAITING)
"""The statuses of unfinished runs."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

Claimed = tuple[bool, int | None, bool]
"""A claim: whether its holder lives, when its run can move by itself, and whether the run has a signal that makes it due."""


def tallied(
    now: int,
    *,
    counts: Iterable[tuple[str, int, int]],
    due: int,
    first: int | None,
    told: int,
    claims: Iterable[Claimed],
) -> Tally:
    """Return the tally of a store at a time in microseconds since 1970.

    `counts` has status, number of runs, and when the oldest one was created. `due`: how many runs can move by themselves, claimed or not; `first`:
    since when the first one without a claim can. `told`: how many runs without a claim are due only because of a signal.
    """
    active, queued, since = 0, due + told, [] if first is None else [first]
    statuses, oldest = dict[str, int](), dict[str, datetime]()
    for status, count, created in counts:
        statuses[status], oldest[status] = count, _EPOCH + timedelta(microseconds=created)
    for lives, wake, is_told in claims:
        moves = wake is not None and wake <= now
        active += lives
        queued += (not lives and is_told and not moves) - (lives and moves)
        since += [] if lives or wake is None or not moves else [wake]
    waited_s = max(0.0, (now - min(since)) / 1e6) if since else None
    return Tally(statuses=statuses, oldest=oldest, active=active, queued=max(0, queued), queued_s=waited_s)


def counted(heads: Iterable[RunHead]) -> list[tuple[str, int, int]]:
    """Return `counts` for `tallied` from the listing entries of a store that holds them in memory."""
    found: dict[str, tuple[int, datetime]] = {}
    for head in heads:
        if head.status not in TERMINAL:
            count, created = found.get(head.status, (0, head.created_at))
            found[head.status] = count + 1, min(created, head.created_at)
    return [(status, count, microseconds(created)) for status, (count, created) in found.items()]


class Cards:
    """What workers say about themselves, each in a file of one directory. They are not synced: after a crash nobody is there."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def put(self, worker: str, card: bytes | None) -> None:
        """Write a worker's card, or remove it; remove the cards of workers that said nothing for long."""
        path = self._directory / f"{blake2b(worker.encode(), digest_size=12).hexdigest()}.card"
        if card is None:
            path.unlink(missing_ok=True)
            return
        self._directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        half = self._directory / f"{path.name}.{secrets.token_hex(4)}"
        with suppress(FileExistsError), open(half, "xb", opener=_private) as file:
            file.write(card)
        half.replace(path)
        for age_s, name in self._ages():
            if age_s > KEPT_S:
                (self._directory / name).unlink(missing_ok=True)

    def all(self) -> list[tuple[bytes, float]]:
        """Return the cards and their ages in seconds, the latest first."""
        found: list[tuple[bytes, float]] = []
        for age_s, name in sorted(one for one in self._ages() if one[1].endswith(".card"))[:MOST_CARDS]:
            with suppress(FileNotFoundError), (self._directory / name).open("rb") as file:
                found.append((file.read(MOST_CARD_BYTES + 1), age_s))
        return found

    def _ages(self) -> list[tuple[float, str]]:
        now, found = time.time(), list[tuple[float, str]]()
        with suppress(FileNotFoundError), os.scandir(self._directory) as entries:
            for entry in entries:
                if ".card" in entry.name:
                    with suppress(FileNotFoundError):
                        found.append((max(0.0, now - entry.stat(follow_symlinks=False).st_mtime), entry.name))
        return found


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_CLOEXEC, 0o600)
