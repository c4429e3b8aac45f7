"""Locks of the operating system: who holds a claim, and whether that holder still lives.

A store instance is one holder. Its name goes into the store beside the claims; its life shows in a lock file that it keeps flocked from its
first claim until it closes. The kernel drops such a lock the moment the process ends, however it ends, so another process of the same host
sees at once that a holder is dead. From other hosts a lock cannot be seen: there a holder lives until its lease has run out.
"""

from __future__ import annotations

import fcntl
import os
import re
import secrets
import socket
import time
from collections.abc import Callable
from functools import cache
from hashlib import sha256
from pathlib import Path

from detent.core.errors import ConfigError, StoreBusy
from detent.ports.processes import renew_in_children

LEASE_S = 30.0
"""How long a holder on another host is believed to live after its last sign of life."""

BUSY_TIMEOUT_S = 30.0
"""How long to wait for a lock that another process has."""


@cache
def host_identity() -> str:
    """Return what tells this boot of this machine from all others: its name and the kernel's boot id, where there is one."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        boot = ""
    return f"{socket.gethostname()}/{boot}"


def lock_file(path: str | Path, *, wait_s: float = 0.0, create: bool = True) -> int:
    """Open `path` and lock it for this descriptor alone; return the descriptor, to be closed with `unlock`. No forked child keeps it.

    The file that is locked is the one that has the name afterwards, even when another process replaced or removed it meanwhile. Raise
    `BlockingIOError` when it is still locked after `wait_s` seconds, `FileNotFoundError` when it is missing and `create` is false.
    """
    flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0)
    deadline = time.monotonic() + wait_s
    pause = 0.0005
    while True:
        fd = os.open(path, flags, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
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
"""Descriptors of this process that have locks."""


def unlock(fd: int) -> None:
    """Close what `lock_file` returned; also where a forked child has it, too, it is unlocked."""
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
    """Whether nobody has the lock of this lock file; a missing file is a dead holder."""
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


class Holder:
    """One store instance as a holder of claims.

    `name` is `host:pid:token`; `host` is compared with other holders' to know whether their locks can be seen. The lock file is
    `<directory>/<host digest>-<pid>-<token>.lock`. After a fork the child is another holder, with nothing claimed.
    """

    def __init__(self, directory: Path, *, host: str | None = None, lease_s: float = LEASE_S, now: Callable[[], float] = time.time) -> None:
        if not lease_s > 0:
            raise ConfigError(f"lease_s is {lease_s!r}; a lease lasts some seconds (above 0)")
        self.directory, self.host, self.lease_s, self.now = directory, host or host_identity(), lease_s, now
        self.runs: set[str] = set()
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

    def expires(self) -> float:
        """Return until when, in seconds of the wall clock, other hosts shall believe that this holder lives."""
        return self.now() + self.lease_s

    def take(self) -> None:
        """Hold the lock file; again when someone removed it. Raise `StoreBusy` if it cannot be had."""
        if self._fd is not None:
            if still_named(self._fd, self.path):
                return
            unlock(self._fd)
            self._fd = None
        self.directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        try:
            self._fd = lock_file(self.path, wait_s=BUSY_TIMEOUT_S)
        except BlockingIOError:
            raise StoreBusy(f"lock file {str(self.path)!r} is locked by another process; remove it if that is none of Detent's") from None

    def write(self, content: bytes) -> None:
        """Write into the lock file that is held, for other hosts to read; always the same length."""
        if self._fd is not None:
            os.pwrite(self._fd, content, 0)

    def drop(self) -> None:
        """Give the lock file up and remove it."""
        if self._fd is not None:
            self.path.unlink(missing_ok=True)
            unlock(self._fd)
            self._fd = None
        self.runs.clear()

    def lives(self, name: str, host: str, expires: float) -> bool:
        """Whether another holder still lives: by its lock on this host, by its lease on another."""
        if host != self.host:
            return expires > self.now()
        path = lock_path(self.directory, name, host)
        return not is_dead(path) and (_exists(int(name.rsplit(":", 2)[1])) or not _dies_soon(path))

    def forked(self) -> None:
        """Become another holder, in a forked child: the parent's lock stays the parent's."""
        self._fd, self.runs = None, set()
        self._rename()


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _dies_soon(path: Path) -> bool:
    """Whether the lock of a process that is gone comes free within 20 ms.

    A program that it was just starting has the lock too, between fork and exec. A process that is only invisible, in another process
    namespace of this host, keeps it.
    """
    for _ in range(20):
        time.sleep(0.001)  # polls the lock of a process that is ending
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
"""No lease lasts longer: until a time that is further off, nobody else could have the run."""


def strange(name: object, host: object, expires: object = None, *, now: float = 0.0) -> str:
    """Return what of a claim (its holder's `name`, `host`, end of its lease) no holder can have written, "" where all may be; None: not known."""
    parts = name.rsplit(":", 2) if isinstance(name, str) else []
    if not (len(parts) == 3 and re.fullmatch(r"[1-9][0-9]{0,9}", parts[1]) and re.fullmatch(r"[0-9a-f]{12}", parts[2])):
        return f"the claim is held by {str(name)[:80]!r}, which is no name of a process"
    if host is not None and (not isinstance(host, str) or host.partition("/")[0] != parts[0]):
        return f"the claim is held by {name!r}, and that is said to be on host {str(host)[:80]!r}"
    if expires is not None and not (isinstance(expires, (int, float)) and 0 <= expires <= now + LONGEST_LEASE_S):
        return f"the lease of {name!r}, which holds the claim, ends at {str(expires)[:40]!r}, which no process has written"
    return ""


def remove_dead(directory: Path, host: str) -> int:
    """Remove the lock files of this host's dead holders; return the bytes freed."""
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
    """Close, in a forked child, what its parent has locked: else the locks would outlive that."""
    while _locked:
        os.close(_locked.pop())


os.register_at_fork(after_in_child=_close_all)
