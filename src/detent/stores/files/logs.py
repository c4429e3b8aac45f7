"""The log files of a file store: opening, locking, appending, reading. Code here waits only for locks and disks."""

from __future__ import annotations

import fcntl
import functools
import logging
import os
from collections import OrderedDict
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from detent.core.errors import Conflict, CorruptLog, NewerVersion, RunNotFound
from detent.core.records import RunHead
from detent.ports import Spent
from detent.stores.files.log import Tail, commit_line, consumed_ids, header_line, last_commit, parse, read_tail
from detent.stores.files.parts import fingerprint, replace_file, sync_directory, write_all
from detent.stores.files.sealed import Seals
from detent.stores.files.spent import Ledger
from detent.stores.files.waking import Wakes
from detent.stores.locks import lock_file, still_named, unlock

log = logging.getLogger("detent.stores.files.store")

_Stamp = tuple[int, int, int]
"""The inode, size and time of a log file: it has not changed as long as they are the same."""

_OPEN_FILES = 128
_REMEMBERED = 10_000


class _Log:
    """An open log file and its last known end. `named`: its name is known to survive power loss.

    `slot` is the slot of its next seal, None if unknown. `ours`: its last append was made here.
    """

    __slots__ = ("fd", "named", "ours", "size", "slot", "tail")

    def __init__(self, fd: int) -> None:
        self.fd, self.named, self.ours, self.size = fd, False, False, -1
        self.slot: int | None = None
        self.tail: Tail | None = None


class Logs:
    """The logs in one directory. One thread at a time uses a run's log; `wait_s` is how long to wait for another process."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.ledger = Ledger(directory / ".spent")
        self.seals = Seals(directory)
        self.wakes = Wakes(directory / ".wake", self.head)
        self._open: OrderedDict[str, _Log] = OrderedDict()
        self.entries: dict[str, tuple[_Stamp, RunHead | None]] = {}
        self._seen: dict[str, tuple[int, int, frozenset[str]]] = {}
        self._reported: set[str] = set()
        self._has: dict[tuple[str, int, str], bool] = {}

    def path(self, run_id: str) -> Path:
        """Return the path of a run's log."""
        return self.directory / f"{run_id}.jsonl"

    def forked(self) -> None:
        """Start without open files: a forked child closes them (`locks`), because they and their locks belong to the parent."""
        self._open.clear()
        self.ledger.forked()

    def close(self) -> None:
        """Close the files kept open."""
        while self._open:
            unlock(self._open.popitem()[1].fd)

    @contextmanager
    def locked(self, run_id: str, wait_s: float, *, create: bool) -> Generator[_Log | None, None, None]:
        """Lock the run's log and find its end; None if there is no log and `create` is false."""
        path = self.path(run_id)
        entry = self._open.pop(run_id, None)
        keep = False
        try:
            if entry is None or not _relock(entry.fd, path):
                if entry is not None:
                    unlock(entry.fd)
                    entry = None
                if create or path.exists():
                    entry = self._opened(path, wait_s, create=create)
            if entry is None:
                yield None
                return
            size = os.fstat(entry.fd).st_size
            if size != entry.size:
                entry.tail = read_tail(entry.fd, size, run_id)
                entry.size, entry.slot, entry.ours = size, None, False
            yield entry
            keep = True
        finally:
            if entry is not None:
                if keep and entry.size:
                    fcntl.flock(entry.fd, fcntl.LOCK_UN)
                    self._open[run_id] = entry
                    while len(self._open) > _OPEN_FILES:
                        unlock(self._open.popitem(last=False)[1].fd)
                else:
                    unlock(entry.fd)

    def _opened(self, path: Path, wait_s: float, *, create: bool) -> _Log | None:
        try:
            return _Log(lock_file(path, wait_s=wait_s, create=create))
        except FileNotFoundError:
            if create:
                raise
            return None

    def append(
        self,
        run_id: str,
        expected: int,
        records: Sequence[bytes],
        *,
        head: RunHead,
        durable: bool,
        consumed: Sequence[str],
        wait_s: float,
        spent: Spent | None = None,
        held: Callable[[], None] | None = None,
        check: Callable[[], None] | None = None,
    ) -> None:
        """Add records and their commit line in one write; raise `Conflict`.

        `held` is called before the check for a conflict, `check` after it, both under the log's lock; both may raise. On any failure the log stays
        unchanged.
        """
        if held is not None and expected == 0:
            held()  # before a file exists
        with self.locked(run_id, wait_s, create=expected == 0) as entry:
            tail = entry.tail if entry is not None else None
            count = tail.seq if tail is not None else 0
            if held is not None:
                held()
            if entry is None or count != expected:
                raise Conflict(run_id, expected, count)
            if tail is None:
                self._refuse_lost(run_id)
            if check is not None:
                check()
            try:
                if durable and self.seals.prepare(run_id):
                    entry.named, entry.slot = False, None
                end = tail.end if tail is not None else 0
                if entry.size > end:
                    self._set_aside(run_id, entry, end)
                base = tail.base if tail is not None else head
                seq = expected + len(records)
                start = header_line(head) if tail is None else b""
                data = start + b"\n".join([*records, commit_line(seq, base, head, consumed)])
                if spent is not None:
                    self.ledger.add(head, expected, spent, durable=durable)
                elif expected and not entry.ours:
                    self.ledger.take_back(head, expected, durable=durable)
                self.wakes.before(tail.head if tail is not None else None, head)
                write_all(entry.fd, data, end)
                if durable:
                    self._sync(entry, end)
                self.wakes.after(tail.head if tail is not None else None, head)
            except BaseException:
                entry.size = -1
                if tail is None and os.fstat(entry.fd).st_size == 0:
                    self.seals.remove(run_id)
                    self.path(run_id).unlink(missing_ok=True)
                raise
            entry.size, entry.ours = end + len(data), True
            entry.tail = Tail(seq, entry.size, base, head)
            if durable:
                self._seal(run_id, entry, seq, head.digest)

    def _seal(self, run_id: str, entry: _Log, seq: int, digest: str) -> None:
        """Write the length of the log into its seal. The append is durable without it, and an older seal does not contradict the log."""
        slot, entry.slot = entry.slot, None
        try:
            entry.slot = self.seals.write(run_id, (seq, digest), over=slot)
        except OSError as error:
            log.warning(
                "run %r: %s.sealed is not up to date (%s): a log that is cut after this would not be noticed", run_id, run_id, error
            )

    def _refuse_lost(self, run_id: str) -> None:
        """Raise `CorruptLog` if there is no log but there was one."""
        if (seal := self.seals.read(run_id)) is not None:
            raise CorruptLog(run_id, 0, f"its log is empty or missing, but had {seal[0]} durable records")

    @contextmanager
    def still(self, run_id: str, wait_s: float, *, shared: bool = False) -> Generator[None]:
        """Lock the log against appends of all processes. Earlier appends are on disk or have not happened. `shared`: for reading only."""
        fd = None
        with suppress(FileNotFoundError):
            fd = lock_file(self.path(run_id), wait_s=wait_s, create=False, shared=shared)
        try:
            yield
        finally:
            if fd is not None:
                unlock(fd)

    def _sync(self, entry: _Log, end: int) -> None:
        """Make the data after `end` survive power loss, or take it back."""
        try:
            os.fsync(entry.fd)
            if not entry.named:
                sync_directory(self.directory)
                entry.named = True
        except OSError:
            os.ftruncate(entry.fd, end)
            raise

    def _set_aside(self, run_id: str, entry: _Log, end: int) -> None:
        """Move the bytes of an unfinished append after `end` to `<run>.torn`; called under the lock."""
        torn = os.pread(entry.fd, entry.size - end, end)
        self._report(run_id, len(torn))
        with open(self.directory / f"{run_id}.torn", "ab", opener=functools.partial(os.open, mode=0o600)) as file:
            file.write(torn)
        os.ftruncate(entry.fd, end)
        entry.size = end
        self._reported.discard(run_id)

    def _report(self, run_id: str, length: int) -> None:
        if run_id not in self._reported:
            self._reported.add(run_id)
            log.warning(
                "run %r: %d bytes after the last commit were never committed (a process died while writing them); they are ignored, "
                "and moved to %s.torn by the next append",
                run_id,
                length,
                run_id,
            )

    def read(self, run_id: str, wait_s: float) -> list[bytes]:
        """Return all committed lines; report a torn end. Raise `CorruptLog`, `NewerVersion`."""
        try:
            data = self.path(run_id).read_bytes()
            lines, end = parse(data, run_id)
            if end < len(data):
                with self.still(run_id, wait_s, shared=True):
                    data = self.path(run_id).read_bytes()
                lines, end = parse(data, run_id)
        except FileNotFoundError:
            return []
        if end < len(data):
            self._report(run_id, len(data) - end)
        return lines

    def has(self, run_id: str, seq: int, mark: str) -> bool | None:
        """Whether the record `seq` of a log is the one with this fingerprint; None if the log does not reach that far."""
        known = (run_id, seq, mark)
        if known not in self._has:
            lines: list[bytes] = []
            with suppress(FileNotFoundError, CorruptLog, NewerVersion):  # whoever reads that log reports what is wrong with it
                head = self.head(run_id)
                lines = parse(self.path(run_id).read_bytes(), run_id)[0] if head is not None and head.records >= seq else []
            if len(lines) < seq:
                return None
            if len(self._has) >= _REMEMBERED:
                self._has.clear()
            self._has[known] = fingerprint(lines[seq - 1]) == mark
        return self._has[known]

    def head(self, run_id: str) -> RunHead | None:
        """Return the listing entry from the first line and the last commit."""
        try:
            fd = os.open(self.path(run_id), os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            self.entries.pop(run_id, None)
            self._refuse_lost(run_id)
            return None
        try:
            stat = os.fstat(fd)
            stamp = stat.st_ino, stat.st_size, stat.st_mtime_ns
            known = self.entries.get(run_id)
            if known is not None and known[0] == stamp:
                return known[1]
            tail = read_tail(fd, stat.st_size, run_id)
        finally:
            os.close(fd)
        head = tail.head if tail is not None else None
        self.entries[run_id] = stamp, head
        return head

    def consumed(self, run_id: str) -> frozenset[str]:
        """Return the ids of the signals that the run's log consumed; reads only what was added since the last call."""
        try:
            fd = os.open(self.path(run_id), os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            self._seen.pop(run_id, None)
            return frozenset()
        try:
            stat = os.fstat(fd)
            nothing: tuple[int, int, frozenset[str]] = (stat.st_ino, 0, frozenset())
            inode, offset, ids = self._seen.get(run_id, nothing)
            if inode != stat.st_ino or offset > stat.st_size:
                _, offset, ids = nothing
            data = os.pread(fd, stat.st_size - offset, offset)
        finally:
            os.close(fd)
        found = last_commit(b"\n" + data)
        if found is not None:
            end = found[1] - 1
            ids = ids | consumed_ids(data[:end])
            self._seen[run_id] = stat.st_ino, offset + end, ids
        return ids

    def consumed_on_disk(self, run_id: str) -> frozenset[str]:
        """Return the result of `consumed` once all of it survives power loss; raise `BlockingIOError` during an append."""
        try:
            fd = lock_file(self.path(run_id), create=False)
        except FileNotFoundError:
            return frozenset()
        try:
            os.fsync(fd)  # also for a process that died before it synced
            self._seen.pop(run_id, None)  # also those of an append that was taken back
            return self.consumed(run_id)
        finally:
            unlock(fd)

    def erase(
        self,
        run_id: str,
        tombstone: Callable[[bytes], bytes],
        head: RunHead,
        *,
        spent: set[str],
        wait_s: float,
        held: Callable[[], None] | None = None,
    ) -> None:
        """Replace the log atomically by one of tombstones. The signals `spent` count as consumed. Raise `RunNotFound`, or what `held` raises."""
        with self.locked(run_id, wait_s, create=False) as entry:
            if held is not None:
                held()
            if entry is None or entry.tail is None:
                raise RunNotFound(run_id)
            data = os.pread(entry.fd, entry.tail.end, 0)
            lines = [tombstone(line) for line in parse(data, run_id)[0]]
            erased = [header_line(head)[:-1], *lines, commit_line(len(lines), head, head, sorted(consumed_ids(data) | spent))]
            self.wakes.before(entry.tail.head, head)
            replace_file(self.path(run_id), b"\n".join(erased), durable=True)
            self.wakes.after(entry.tail.head, head)


def heads_of(logs: Logs) -> Generator[RunHead]:
    """Yield the listing entries of all runs. Only logs that have changed since the last look are read; unreadable ones are left out."""
    with os.scandir(logs.directory) as entries:
        for entry in entries:
            if not entry.name.endswith(".jsonl") or entry.name.startswith("."):
                continue
            run_id = entry.name[: -len(".jsonl")]
            with suppress(FileNotFoundError, CorruptLog, NewerVersion):
                stat, known = entry.stat(), logs.entries.get(run_id)
                same = known is not None and known[0] == (stat.st_ino, stat.st_size, stat.st_mtime_ns)
                head = known[1] if known is not None and same else logs.head(run_id)
                if head is not None:
                    yield head


def _relock(fd: int, path: Path) -> bool:
    """Lock a file that is still open; false if it must be opened again, or another process has it."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return still_named(fd, path)
