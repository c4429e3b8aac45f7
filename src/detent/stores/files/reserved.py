"""The reservations of runs in the accounts of tenants: one file beside the logs of a file store, replaced under a lock.

An append that returns a reservation takes the lock before it writes the log. So another reserver sees the reservation, or the charge that replaced
it. A process that dies between the two writes leaves both, until its run is resumed or the reservation lapses.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec

from detent.ports import Balance, Reservation, Spent
from detent.stores.files.parts import replace_file, sync_directory
from detent.stores.locks import lock_file, unlock

log = logging.getLogger("detent.stores.files.store")

_Row = tuple[str, str, float, Spent]
"""Run, name, time of lapse, and amount."""
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(list[_Row]).decode


class Reserved:
    """The file in `directory`. `now` is the wall clock; `wait_s` how long to wait for another process. Used by any thread."""

    def __init__(self, directory: Path, *, now: Callable[[], float]) -> None:
        self.directory, self._now = directory, now
        self._path = directory / "reserved.json"

    def reserve(self, asked: Reservation, spent: Callable[[str, str], Spent], wait_s: float) -> Balance:
        """Reserve amounts if they fit. `spent` is called for the used amounts after the reserved ones were read."""
        self._create()
        with self._locked(wait_s):
            now, rows = self._now(), self._read()
            left = [row for row in rows if row[2] > now]
            held = [(run_id, name, amount) for run_id, name, _, amount in left if amount.tenant == asked.tenant]
            balance = asked.balance(spent(asked.tenant, asked.since), held)
            if balance.granted:
                left = _with(left, asked.run_id, asked, now)
            if left != rows:
                self._write(left)
        return balance

    def _create(self) -> None:
        if not self.directory.exists():
            self.directory.mkdir(exist_ok=True, mode=0o700)
            sync_directory(self.directory.parent)

    @contextmanager
    def changing(self, run_id: str, names: Sequence[str] | None, wait_s: float, made: Reservation | None = None) -> Generator[None]:
        """Return the run's reservations under these names, or all of them, and make those of `made`, if the block ends without an error."""
        if made is None and ((names is not None and not names) or not self._path.exists()):
            yield
            return
        self._create()
        with self._locked(wait_s):
            yield
            try:
                rows = self._read()
                left = [row for row in rows if row[0] != run_id or (names is not None and row[1] not in names)]
                left = left if made is None else _with(left, run_id, made, self._now())
                if left != rows:
                    self._write(left)
            except Exception as error:  # noqa: BLE001 - what the block did is done
                log.warning("the reservations of run %r could not be changed: those that are left lapse later (%s)", run_id, error)

    @contextmanager
    def _locked(self, wait_s: float) -> Generator[None]:
        fd = lock_file(self.directory / "lock", wait_s=wait_s)
        try:
            yield
        finally:
            unlock(fd)

    def _read(self) -> list[_Row]:
        """Return the reservations. A file that is unreadable after a power cut is dropped: its reservations would lapse anyway."""
        try:
            return _decode(self._path.read_bytes())
        except FileNotFoundError:
            return []
        except ValueError as error:  # msgspec's errors are ValueErrors
            log.warning("%s cannot be read and is dropped: its reservations are free for other runs (%s)", self._path, error)
            self._path.unlink(missing_ok=True)
            return []

    def _write(self, rows: list[_Row]) -> None:
        if rows:
            replace_file(self._path, _encode(rows), durable=False)
        else:
            self._path.unlink(missing_ok=True)


def _with(rows: list[_Row], run_id: str, made: Reservation, now: float) -> list[_Row]:
    """Return the rows with the reservations `made` for a run."""
    left = [row for row in rows if row[0] != run_id or row[1] not in made.amounts]
    return left + [(run_id, name, now + made.lasts_s, amount) for name, amount in made.amounts.items()]
