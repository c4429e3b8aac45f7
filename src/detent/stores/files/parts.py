"""The files beside the logs of a file store: atomically replaced files, inboxes, claims."""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, suppress
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote, unquote

import msgspec

from detent.core.errors import ConfigError, RunBusy
from detent.ports import Signal, read_signal
from detent.ports.stores import is_written_signal, refuse_behind_cancel, refuse_overfull, refuse_without_claim, written_signal
from detent.stores.heartbeat import new_number
from detent.stores.locks import Holder, lock_file, unlock

TEMPORARY = ".tmp-"


def write_all(fd: int, data: bytes, offset: int) -> None:
    """Write all of `data` at `offset`. If the disk is full, cut the file back to `offset` and raise."""
    view = memoryview(data)
    try:
        done = os.pwrite(fd, view, offset)
        while done < len(view):
            done += os.pwrite(fd, view[done:], offset + done)
    except OSError:
        os.ftruncate(fd, offset)
        raise


def sync_directory(path: Path) -> None:
    """Make names in a directory survive power loss."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def replace_file(path: Path, data: bytes, *, durable: bool) -> None:
    """Replace the content of `path` atomically: after a crash it has the new content or the old."""
    temporary = path.parent / f"{TEMPORARY}{os.getpid()}-{secrets.token_hex(6)}"
    fd = lock_file(temporary)
    try:
        write_all(fd, data, 0)
        if durable:
            os.fsync(fd)
        temporary.rename(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    finally:
        unlock(fd)
    if durable:
        sync_directory(path.parent)


def temporary(directory: Path) -> list[Path]:
    """Return the files that are being written or were left half written."""
    return [*directory.glob(f"{TEMPORARY}*"), *directory.glob(f"*.blobs/{TEMPORARY}*")]


def remove_temporary(directory: Path) -> int:
    """Remove half-written files of dead processes (a living process locks its own); return the bytes freed."""
    freed = 0
    for path in temporary(directory):
        try:
            fd = lock_file(path, create=False)
        except (BlockingIOError, FileNotFoundError):
            continue
        freed += os.fstat(fd).st_size
        path.unlink(missing_ok=True)
        unlock(fd)
    return freed


def blob_name(key: str) -> str:
    """Return the file name for a key: the key itself if it is a plain name. Raise `ConfigError` if the name is too long."""
    name = quote(key, safe="@+=,") or "%"
    if name.startswith("."):
        name = f"%2E{name[1:]}"
    if len(name) > 240:
        raise ConfigError(f"blob key {key[:40]!r}... is too long for a file name ({len(name)} characters, at most 240); use a digest")
    return name


def blob_key(name: str) -> str:
    """Return the key for a file name."""
    return "" if name == "%" else unquote(name)


Recorded = tuple[str, int, str]
"""A record of a log: the run, the record's number and its `fingerprint`."""


def fingerprint(line: bytes) -> str:
    """Return what tells a record from any other that could have its number."""
    return blake2b(line, digest_size=12).hexdigest()


class _Line(NamedTuple):
    """A line of an inbox. With `after`, its signal counts once that record of another run's log is there: one append of that run causes both."""

    signal: Signal
    after: Recorded | None = None


class Inboxes:
    """Inboxes: one file per run with one signal per line. The run's log knows which ones were consumed (`consumed`).

    A signal that an append of another run causes is written before that append, behind the record that it waits for (`@SEQ FINGERPRINT RUN SIGNAL`).
    If the append never happens, it never counts.
    """

    def __init__(
        self,
        directory: Path,
        consumed: Callable[[str], frozenset[str]],
        on_disk: Callable[[str], frozenset[str]],
        has: Callable[[str, int, str], bool | None],
    ) -> None:
        """`consumed` returns what the log has consumed, `on_disk` what of it survives power loss; it raises `BlockingIOError` during an append.

        `has` says whether another log has a record, None if it does not reach that far.
        """
        self.directory, self._consumed, self._on_disk, self._has = directory, consumed, on_disk, has

    def path(self, run_id: str) -> Path:
        """Return the path of a run's inbox."""
        return self.directory / f"{run_id}.jsonl"

    def names(self) -> set[str]:
        """Return the runs that have an inbox file."""
        try:
            return {path.name[: -len(".jsonl")] for path in self.directory.iterdir()}
        except FileNotFoundError:
            return set()

    def remove(self, run_id: str, wait_s: float) -> None:
        """Remove the inbox of a run once nobody is posting to it."""
        with suppress(FileNotFoundError):
            fd = lock_file(self.path(run_id), wait_s=wait_s, create=False)
            self.path(run_id).unlink(missing_ok=True)
            unlock(fd)

    def post(self, run_id: str, signal: Signal, wait_s: float, check: Callable[[], None], after: Recorded | None = None) -> None:
        """Add a signal durably, unless its id is present or was consumed. `check` is called under the inbox's lock and may raise.

        `after`: the record that causes it, which is not written yet.
        """
        if not self.directory.exists():
            self.directory.mkdir(exist_ok=True, mode=0o700)
            sync_directory(self.directory.parent)
        fd = lock_file(self.path(run_id), wait_s=wait_s)
        try:
            check()
            there, end = _signals(fd)
            consumed = self._consumed(run_id)
            if signal.id in consumed or any(signal.id == other.signal.id for other in there if other.after == after or self._counts(other)):
                return
            if after is None:
                refuse_overfull(run_id, signal, (one.signal for one in there if one.signal.id not in consumed and self._counts(one)))
            if os.fstat(fd).st_size > end:
                os.ftruncate(fd, end)
            line = _before(after) + written_signal(signal) + b"\n"
            write_all(
                fd, b"\n" + line if end else line, max(0, end - 1)
            )  # also overwrites the end of the previous line, which may be damaged
            os.fsync(fd)
            if end == 0:
                sync_directory(self.directory)
        finally:
            if os.fstat(fd).st_size == 0:
                self.path(run_id).unlink(missing_ok=True)
            unlock(fd)

    def waiting(self, run_id: str, *, tidy: bool = True) -> list[Signal]:
        """Return the unconsumed signals. If there is none and tidying is requested, remove the file."""
        try:
            fd = os.open(self.path(run_id), os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return []
        try:
            there, _ = _signals(fd)
        finally:
            os.close(fd)
        consumed = self._consumed(run_id)
        left = [one for one in there if one.signal.id not in consumed and self._has_cause(one) is not False]
        if tidy and there and not left:
            self._tidy(run_id)
        return list({one.signal.id: one.signal for one in left if self._counts(one)}.values())

    def _has_cause(self, line: _Line) -> bool | None:
        return line.after is None or self._has(*line.after)

    def _counts(self, line: _Line) -> bool:
        return self._has_cause(line) is True

    def refuse_behind_cancel(self, run_id: str, consumed: Sequence[str]) -> None:
        """Raise `CancelWaits` if a cancellation waits that is not among `consumed`.

        Called under the log's lock without the inbox's lock: posting a cancellation waits for the log's lock before it returns.
        """
        refuse_behind_cancel(run_id, self.waiting(run_id, tidy=False), consumed)

    def _tidy(self, run_id: str) -> None:
        """Remove an inbox if appends on disk have consumed all of its signals.

        If somebody is using it, the next read removes it. On a read-only disk it stays.
        """
        try:
            fd = lock_file(self.path(run_id), create=False)
        except OSError:
            return
        try:
            consumed = self._on_disk(run_id)
            if all(one.signal.id in consumed or self._has_cause(one) is False for one in _signals(fd)[0]):
                self.path(run_id).unlink(missing_ok=True)
        except OSError:
            return
        finally:
            unlock(fd)


def _signals(fd: int) -> tuple[list[_Line], int]:
    """Return the signals in an inbox file and where the last complete line ends."""
    data = os.pread(fd, os.fstat(fd).st_size, 0)
    end = data.rfind(b"\n") + 1
    if is_written_signal(_CAUSED.sub(b"", data[end:-1], count=1)):  # no crash leaves the whole line without its end: this is damage
        data, end = data[:-1] + b"\n", len(data)
    return [_line(line) for line in data[:end].split(b"\n")[:-1]], end


_CAUSED = re.compile(rb"@([1-9]\d{0,15}) ([0-9a-f]{24}) (\S+) ")


def _before(after: Recorded | None) -> bytes:
    return b"" if after is None else b"@%d %b %b " % (after[1], after[2].encode(), after[0].encode())


def _line(line: bytes) -> _Line:
    found = _CAUSED.match(line)
    if found is None:
        return _Line(read_signal(line))
    return _Line(read_signal(line[found.end() :]), (found[3].decode(errors="replace"), int(found[1]), found[2].decode()))


class Claims:
    """Claims: one file per claimed run with the holder and the claim's number. The holder's lock file says until when it counts as alive."""

    def __init__(self, holder: Holder) -> None:
        self.holder, self._place = holder, str(holder.directory)

    def path(self, run_id: str) -> Path:
        """Return the path of a run's claim."""
        return self.holder.directory / f"{run_id}.claim"

    def take(self, run_id: str, wait_s: float, log_lock: Callable[[], AbstractContextManager[Any]]) -> int:
        """Claim a run and return the claim's number; raise `RunBusy` while another living holder has it.

        A takeover holds `log_lock`. Appends check the claim under the same lock, so none of the former holder is running then.
        """
        self.holder.take()
        with ExitStack() as stack:
            if self.number(run_id) and not self.held(run_id):
                self._refuse_taken(run_id, *self._read(run_id)[:2])
                stack.enter_context(log_lock())
            fd = lock_file(self.path(run_id), wait_s=wait_s)
            stack.callback(unlock, fd)
            name, host, number = _claimant(fd)
            self._refuse_taken(run_id, name, host)
            if name != self.holder.name or not number:
                self.holder.taken_over += name not in ("", self.holder.name)
                number = new_number()
                entry = msgspec.json.encode((self.holder.name, self.holder.host, number))
                write_all(fd, entry, 0)
                os.ftruncate(fd, len(entry))
            return number

    def _refuse_taken(self, run_id: str, name: str, host: str) -> None:
        if name not in ("", self.holder.name) and self.holder.lives(name, host):
            raise RunBusy(run_id, name)

    def refuse_without(self, run_id: str, number: int) -> None:
        """Raise `ClaimLost` if the claim of a run has another number; called under the log's lock."""
        refuse_without_claim(run_id, number, self.number(run_id))

    def number(self, run_id: str) -> int:
        """Return the number of the claim of a run, 0 if it has none."""
        return self._read(run_id)[2]

    def release(self, run_id: str, wait_s: float) -> None:
        """Release a claim if it is held here."""
        self._remove(run_id, wait_s, lambda name, _host, _number: name == self.holder.name)

    def remove(self, run_id: str, wait_s: float) -> None:
        """Remove the claim on a run, whoever holds it."""
        self._remove(run_id, wait_s, lambda _name, _host, _number: True)

    def dead(self) -> list[Path]:
        """Return the claims of dead holders."""
        found: list[Path] = []
        for path in sorted(self.holder.directory.glob("*.claim")):
            with suppress(FileNotFoundError):
                fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
                try:
                    name, host, _ = _claimant(fd)
                finally:
                    os.close(fd)
                found += [] if name == self.holder.name or self.holder.lives(name, host) else [path]
        return found

    def others(self) -> dict[str, bool]:
        """Return the claimed runs, and whether their holders live. A run of this holder is left out if its event loop is closed."""
        alive: dict[str, bool] = {}
        found: dict[str, bool] = {}
        with suppress(FileNotFoundError):
            for entry in os.scandir(self.holder.directory):
                run_id = entry.name[: -len(".claim")]
                if not entry.name.endswith(".claim"):
                    continue
                name, host, _ = self._read(run_id)
                if name == self.holder.name:
                    if (taken := self.holder.runs.get(run_id)) is not None and not taken.stranded:
                        found[run_id] = True
                elif name:
                    if name not in alive:
                        alive[name] = self.holder.lives(name, host)
                    found[run_id] = alive[name]
        return found

    def remove_dead(self) -> int:
        """Remove the claims of dead holders; return the bytes freed."""
        freed = 0
        for path in self.holder.directory.glob("*.claim"):
            try:
                freed += self._remove(
                    path.name[: -len(".claim")],
                    0.0,
                    lambda name, host, _number: name != self.holder.name and not self.holder.lives(name, host),
                )
            except BlockingIOError:
                continue
        return freed

    def held(self, run_id: str) -> bool:
        """Whether the claim file names this holder."""
        return self._read(run_id)[0] == self.holder.name

    def _read(self, run_id: str) -> tuple[str, str, int]:
        try:
            fd = os.open(
                f"{self._place}/{run_id}.claim", os.O_RDONLY | os.O_CLOEXEC
            )  # runs in every append, and a Path costs as much as the rest
        except FileNotFoundError:
            return _NOBODY
        try:
            return _claimant(fd)
        finally:
            os.close(fd)

    def wrong(self, run_id: str, wait_s: float) -> str:
        """Return the fault of the claim file of a run, or "". An empty file was begun by a process that died."""
        try:
            fd = lock_file(self.path(run_id), wait_s=wait_s, shared=True)
        except FileNotFoundError:
            return ""
        try:
            data = os.pread(fd, 4096, 0)
        finally:
            unlock(fd)
        if not data:
            return ""
        try:
            name, host, number = _decoded(data)
        except ValueError:
            return "its claim cannot be read: two processes may believe that they hold the run"
        return self.holder.strange(name, host, number)

    def _remove(self, run_id: str, wait_s: float, wanted: Callable[[str, str, int], bool]) -> int:
        try:
            fd = lock_file(self.path(run_id), wait_s=wait_s, create=False)
        except FileNotFoundError:
            return 0
        try:
            if not wanted(*_claimant(fd)):
                return 0
            self.path(run_id).unlink(missing_ok=True)
            return os.fstat(fd).st_size
        finally:
            unlock(fd)


_NOBODY = "", "", 0
_FORMER = 1
"""The number of a claim that was taken by a version without numbers."""


def _claimant(fd: int) -> tuple[str, str, int]:
    """Return name and host of the holder in a claim file, and the claim's number. Empty if the file has none, as after a crash during the write."""
    data = os.pread(fd, 4096, 0)
    try:
        return _decoded(data)
    except ValueError:
        return _NOBODY


def _decoded(data: bytes) -> tuple[str, str, int]:
    """Return the content of a claim file; raise `ValueError` if it cannot be read."""
    try:
        return _decode_claim(data)
    except msgspec.ValidationError:
        return *_decode_former(data), _FORMER


_decode_claim = msgspec.json.Decoder(tuple[str, str, int]).decode
_decode_former = msgspec.json.Decoder(tuple[str, str]).decode
