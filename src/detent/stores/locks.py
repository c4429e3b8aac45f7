"""Locks of the operating system: who holds a claim, and whether that holder still lives.

A store instance is one holder. The store keeps its name beside the claims. The holder keeps a lock file flocked from its first claim until it
closes. The operating system drops such a lock the moment the process ends, however it ends, so another process of the same host sees at once that
a holder is dead. A process that exists may still hang. So the lock file also says until when the holder counts as alive: by the monotonic clock
for processes of this host, by the wall clock for other hosts, which cannot see the lock.
"""

from __future__ import annotations

import fcntl
import os
import re
import secrets
import socket
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache
from hashlib import sha256
from pathlib import Path

from detent.core.errors import StoreBusy
from detent.ports.processes import renew_in_children
from detent.stores.heartbeat import HEARTBEAT, LEASE_S, STUCK_S, Leased

BUSY_TIMEOUT_S = 30.0
"""How long to wait for a lock that another process holds."""


@cache
def host_identity() -> str:
    """Return what identifies this boot of this machine: its name and, if there is one, the system's boot id."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        boot = ""
    return f"{socket.gethostname()}/{boot}"


def lock_file(path: str | Path, *, wait_s: float = 0.0, create: bool = True, shared: bool = False) -> int:
    """Open and lock `path`, and return the descriptor; close it with `unlock`. No forked child keeps it.

    `shared`: take a read lock on an existing file, even if nothing can be written; nobody can lock it for writing meanwhile.

    The locked file is the one that has the name afterwards, even if another process replaces or removes it meanwhile. Raise `BlockingIOError`
    if it is still locked after `wait_s` seconds, `FileNotFoundError` if it is missing and `create` is false.
    """
    flags = os.O_CLOEXEC | (os.O_RDONLY if shared else os.O_RDWR | (os.O_CREAT if create else 0))
    how = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
    deadline = time.monotonic() + wait_s
    pause = 0.0005
    while True:
        fd = os.open(path, flags, 0o600)
        try:
            fcntl.flock(fd, how | fcntl.LOCK_NB)
            if still_named(fd, path):
                _locked.add(fd)
                return fd
            os.close(fd)
        except BlockingIOError:
            os.close(fd)
            if time.monotonic() >= deadline:
                raise
            time.sleep(pause)  # polls the lock file, until the deadline
            pause = min(pause * 1.5, 0.02)
        except BaseException:
            os.close(fd)
            raise


_locked: set[int] = set()
"""Descriptors of this process that hold locks."""


def unlock(fd: int) -> None:
    """Close a descriptor of `lock_file`. This unlocks the file even if a forked child has the descriptor, too."""
    _locked.discard(fd)
    try:
        fcntl.flock(fd, fcntl.LOCK_UN)
    finally:
        os.close(fd)


def still_named(fd: int, path: str | Path) -> bool:
    """Whether `path` names the open file `fd`."""
    try:
        named = os.stat(path)  # noqa: PTH116 - on the path of every append
    except FileNotFoundError:
        return False
    mine = os.fstat(fd)
    return named.st_ino == mine.st_ino and named.st_dev == mine.st_dev


def is_dead(path: str | Path) -> bool:
    """Whether nobody holds this lock file. A missing file means a dead holder."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return True
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(fd)
    return True


class Holder(Leased):
    """One store instance as a holder of claims.

    `name` is `host:pid:token`. Holders with the same `host` can see each other's locks. The lock file is
    `<directory>/<host digest>-<pid>-<token>.lock`. After a fork the child is another holder without claims.
    """

    def __init__(
        self,
        directory: Path,
        *,
        host: str | None = None,
        lease_s: float = LEASE_S,
        stuck_s: float = STUCK_S,
        now: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(lease_s=lease_s, stuck_s=stuck_s, monotonic=monotonic, beats=now is time.time and monotonic is time.monotonic)
        self.directory, self.host, self.now = directory, host or host_identity(), now
        self._signing = threading.Lock()
        self._fd: int | None = None
        self._rename()
        renew_in_children(self)

    def _rename(self) -> None:
        self.name = f"{self.host.partition('/')[0]}:{os.getpid()}:{secrets.token_hex(6)}"

    @property
    def path(self) -> Path:
        """The lock file."""
        return lock_path(self.directory, self.name, self.host)

    @property
    def active(self) -> bool:
        """Whether the lock file is held."""
        return self._fd is not None

    def take(self) -> None:
        """Lock the lock file, again if someone removed it, and renew the lease. Raise `StoreBusy` if another process has it."""
        with self._signing:
            self._take()
            self._write()

    def sign(self) -> None:
        """Renew the lease if there is a claim."""
        with self._signing:
            if self._fd is not None and self.runs:
                self._take()
                self._write()

    def has_taken(self, run_id: str, number: int) -> None:
        """See `Leased.has_taken`."""
        super().has_taken(run_id, number)
        if self._fd is None:  # the holder came to rest during this claim
            self.take()

    def rest(self) -> None:
        """Appear dead to others if all loops with claims are closed. The claims stay noted: the next sign of life releases them."""
        with self._signing:
            if self.runs and not self.loops():
                self._let_go()

    def renewed(self) -> None:
        """Renew the lease if the thread does not."""
        if not self.beats or self.due:
            self.take()

    def _write(self) -> None:
        """Write into the lock file until when this holder counts as alive. The length is fixed, so nobody reads a partial line."""
        if self._fd is not None:
            now = self.monotonic()
            os.pwrite(self._fd, b"%020.3f %020.3f\n" % (self.now() + self.lease_s, now + self.lease_s), 0)
            self.signed = now

    def _take(self) -> None:
        if self._fd is not None:
            if still_named(self._fd, self.path):
                return
            unlock(self._fd)
            self._fd = None
        self.directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        try:
            self._fd = lock_file(self.path, wait_s=BUSY_TIMEOUT_S)
        except BlockingIOError:
            raise StoreBusy(f"lock file {str(self.path)!r} is locked by another process; remove it if that process is not Detent") from None

    def drop(self) -> None:
        """Unlock and remove the lock file."""
        HEARTBEAT.leave(self)
        with self._signing:
            self._let_go()
            self.runs.clear()

    def _let_go(self) -> None:
        if self._fd is not None:
            self.path.unlink(missing_ok=True)
            unlock(self._fd)
            self._fd = None

    def lives(self, name: str, host: str) -> bool:
        """Whether another holder still lives: its lease has not run out, and on this host its lock is held.

        A holder that is just starting has no lease yet; then only its lock counts.
        """
        path = lock_path(self.directory, name, host)
        until, until_here = _signed(path)
        if host != self.host:
            return until is not None and until > self.now()
        if is_dead(path) or not (_exists(int(name.rsplit(":", 2)[1])) or not _dies_soon(path)):
            return False
        return until_here is None or until_here > self.monotonic()

    def strange(self, name: object, host: object, number: object) -> str:
        """Return what is implausible in a claim, or in the lease of its holder's lock file; see the function."""
        said = b""
        if isinstance(name, str) and isinstance(host, str):
            with suppress(FileNotFoundError):
                said = lock_path(self.directory, name, host).read_bytes()
        try:
            ends = [float(word) for word in said.split()]
        except ValueError:
            return strange(name, host, number) or f"the lease of {name!r}, which holds the claim, cannot be read"
        nows = (self.now(), self.monotonic()) if host == self.host else (self.now(),)
        return strange(name, host, number, tuple(zip(ends, nows, strict=False)))

    def forked(self) -> None:
        """Become another holder in a forked child; the lock still belongs to the parent."""
        self._fd, self.runs, self._signing = None, {}, threading.Lock()
        self._rename()


def _signed(path: Path) -> tuple[float | None, float | None]:
    """Return the end of the lease in a lock file: by the wall clock, and by the monotonic clock of its host."""
    try:
        said = [float(word) for word in path.read_bytes().split()]
    except (OSError, ValueError):
        return None, None
    return said[0] if said else None, said[1] if len(said) > 1 else None


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _dies_soon(path: Path) -> bool:
    """Whether the lock of a process that no longer exists becomes free within 20 ms.

    A program that the process was just starting also has the lock between fork and exec. A process in another process namespace of this host
    is only invisible and keeps its lock.
    """
    for _ in range(20):
        time.sleep(0.001)  # polls the lock of an ending process
        if is_dead(path):
            return True
    return False


def lock_path(directory: Path, name: str, host: str) -> Path:
    """Return the lock file of the holder `name` on `host`."""
    return directory / f"{_digest(host)}-{'-'.join(name.rsplit(':', 2)[1:])}.lock"


def _digest(host: str) -> str:
    return sha256(host.encode()).hexdigest()[:8]


def lock_paths(directory: Path, host: str) -> list[Path]:
    """Return the lock files of the holders on a host."""
    return sorted(directory.glob(f"{_digest(host)}-*.lock"))


LONGEST_LEASE_S = 366 * 86_400.0
"""The longest plausible lease. A lease that ends later would block the run for everybody else."""


def strange(name: object, host: object, number: object = 1, ends: Sequence[tuple[object, float]] = ()) -> str:
    """Return what is implausible in a claim, or ""; a `host` of None is unknown.

    `name` and `host` are those of its holder, `number` is that of the claim. `ends` has for each clock the end of the lease and the current time.
    """
    parts = name.rsplit(":", 2) if isinstance(name, str) else []
    if not (len(parts) == 3 and re.fullmatch(r"[1-9][0-9]{0,9}", parts[1]) and re.fullmatch(r"[0-9a-f]{12}", parts[2])):
        return f"the claim is held by {str(name)[:80]!r}, which is not a process name"
    if host is not None and (not isinstance(host, str) or host.partition("/")[0] != parts[0]):
        return f"the claim is held by {name!r}, but it names the host {str(host)[:80]!r}"
    if not isinstance(number, int) or number < 1:
        return f"the claim of {name!r} has the number {str(number)[:40]!r}, which no process writes"
    for until, now in ends:
        if not (isinstance(until, (int, float)) and 0 <= until <= now + LONGEST_LEASE_S):
            return f"the lease of {name!r}, which holds the claim, ends at {str(until)[:40]!r}, which no process writes"
    return ""


def remove_dead(directory: Path, host: str) -> int:
    """Remove the lock files of dead holders of this host; return the bytes freed."""
    freed = 0
    for path in lock_paths(directory, host):
        try:
            fd = lock_file(path, create=False)
        except (BlockingIOError, FileNotFoundError):
            continue
        try:
            freed += os.fstat(fd).st_size
            path.unlink(missing_ok=True)
        finally:
            unlock(fd)
    return freed


def _close_all() -> None:
    """Close in a forked child what the parent has locked; otherwise the locks would outlive the parent."""
    while _locked:
        os.close(_locked.pop())


os.register_at_fork(after_in_child=_close_all)
