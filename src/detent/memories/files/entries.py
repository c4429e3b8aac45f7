"""Text files by key: a key is a path below one directory, with slashes (rows T24 to T26). Nothing is remembered between calls.

The first part of a key is its namespace by convention: `memory/`, `skills/` or `agents/`. Names that begin with a dot are skipped. No symbolic link is
followed, neither in a key nor in the directory tree, so no key reaches a file outside of the directory.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
from collections.abc import Generator, Iterable, Iterator
from pathlib import Path

import msgspec

from detent.core.errors import ItemNotFound, ItemRefused, StoreError, StoreFull
from detent.memories.lifecycle import bad_name

MEMORY, SKILLS, AGENTS = "memory/", "skills/", "agents/"
MOST_BYTES = 64 << 10
"""How large a file may be; a larger one is left out."""
MOST_NAME = 250
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class Entry(msgspec.Struct, frozen=True):
    """A file: its key and its text."""

    key: str
    text: str


class Stamp(msgspec.Struct, frozen=True):
    """What tells whether a file changed."""

    inode: int
    size: int
    changed_ns: int
    modified_ns: int


class FileEntries:
    """The text files of one directory, which need not exist yet."""

    def __init__(self, directory: str | Path) -> None:
        self.directory = Path(directory).absolute()

    def list(self) -> list[str]:
        """Return all keys, sorted; none if there is no directory."""
        return sorted(self.stamps())

    def stamps(self, namespace: str = "") -> dict[str, Stamp]:
        """Return all keys of a namespace ("": of all), each with what tells whether its file changed."""
        found: dict[str, Stamp] = {}
        with contextlib.suppress(FileNotFoundError, NotADirectoryError), self._directory(_parts(namespace), create=False) as fd:
            found.update(_walk(fd, namespace))
        return found

    def load(self, keys: Iterable[str]) -> list[Entry]:
        """Return the entries with these keys. Raise `ItemNotFound` for a key without a file, `ItemRefused` for one that is not text."""
        return [self._load(key) for key in keys]

    def save(self, entries: Iterable[Entry], *, new: bool = False) -> None:
        """Write the entries durably, each at once or not at all. `new`: raise `FileExistsError` for a file that exists. Raise `ItemRefused`, `StoreError`."""
        for entry in entries:
            *parents, name = _checked(entry.key)
            with self._translated(), self._directory(parents, create=True) as fd:
                partly = f".{secrets.token_hex(8)}.part"
                try:
                    with os.fdopen(os.open(partly, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=fd), "wb") as raw:
                        raw.write(entry.text.encode())
                        raw.flush()
                        os.fsync(raw.fileno())
                    if new:
                        os.link(partly, name, src_dir_fd=fd, dst_dir_fd=fd, follow_symlinks=False)
                    else:
                        os.replace(partly, name, src_dir_fd=fd, dst_dir_fd=fd)
                        partly = ""
                finally:
                    if partly:
                        with contextlib.suppress(OSError):
                            os.unlink(partly, dir_fd=fd)
                os.fsync(fd)

    def delete(self, keys: Iterable[str]) -> None:
        """Remove the files with these keys, and directories that are empty then. A key without a file is ignored."""
        for key in keys:
            *parents, name = _checked(key)
            with contextlib.suppress(FileNotFoundError, NotADirectoryError), self._directory(parents, create=False) as fd:
                os.unlink(name, dir_fd=fd)
                os.fsync(fd)
            while parents:
                *above, last = parents
                try:
                    with self._directory(above, create=False) as fd:
                        os.rmdir(last, dir_fd=fd)
                except OSError:  # something is in it
                    break
                parents = above

    def _load(self, key: str) -> Entry:
        *parents, name = _checked(key)
        try:
            with self._directory(parents, create=False) as fd:
                raw_fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=fd)
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
                raise ItemNotFound(key) from None
            raise StoreError(f"{self.directory / key} cannot be read ({error.strerror})") from error
        if not stat.S_ISREG(os.fstat(raw_fd).st_mode):
            os.close(raw_fd)
            raise ItemNotFound(key)
        with os.fdopen(raw_fd, "rb") as raw:
            data = raw.read(MOST_BYTES + 1)
        if len(data) > MOST_BYTES:
            raise ItemRefused(f"{self.directory / key} has more than {MOST_BYTES:,} bytes; split it into several files")
        try:
            return Entry(key, data.decode())
        except UnicodeDecodeError:
            raise ItemRefused(f"{self.directory / key} is not UTF-8 text") from None

    @contextlib.contextmanager
    def _translated(self) -> Generator[None]:
        try:
            yield
        except FileExistsError:
            raise
        except OSError as error:
            if error.errno in _FULL:
                raise StoreFull(f"no room left for {self.directory} ({error.strerror}); nothing was written. Free some space") from error
            if error.errno in (errno.ELOOP, errno.ENOTDIR, errno.ENAMETOOLONG):
                raise ItemRefused(f"a part of the path in {self.directory} is a link, a file or too long ({error.filename})") from error
            raise StoreError(f"{self.directory} cannot be written ({error.strerror})") from error

    @contextlib.contextmanager
    def _directory(self, parts: Iterable[str], *, create: bool) -> Generator[int]:
        """Open a directory below this one, part by part, without following links."""
        if create:
            self.directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        fd = os.open(self.directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            for part in parts:
                if create:
                    with contextlib.suppress(FileExistsError):
                        os.mkdir(part, 0o700, dir_fd=fd)
                        os.fsync(fd)
                inner = os.open(part, _DIRECTORY, dir_fd=fd)
                os.close(fd)
                fd = inner
            yield fd
        finally:
            os.close(fd)


def _walk(fd: int, prefix: str) -> Iterator[tuple[str, Stamp]]:
    """Yield the keys below an open directory."""
    with os.scandir(fd) as found:
        entries = [entry for entry in found if not entry.name.startswith(".")]
    for entry in entries:
        with contextlib.suppress(OSError):  # removed meanwhile
            there = entry.stat(follow_symlinks=False)
            if stat.S_ISDIR(there.st_mode):
                inner = os.open(entry.name, _DIRECTORY, dir_fd=fd)
                try:
                    yield from _walk(inner, f"{prefix}{entry.name}/")
                finally:
                    os.close(inner)
            elif stat.S_ISREG(there.st_mode):
                yield f"{prefix}{entry.name}", Stamp(there.st_ino, there.st_size, there.st_ctime_ns, there.st_mtime_ns)


def _parts(namespace: str) -> list[str]:
    return [part for part in namespace.split("/") if part]


def _checked(key: str) -> list[str]:
    """Return the parts of a key. Raise `ItemRefused` for one that is not a path below a directory."""
    parts = key.split("/")
    for part in parts:
        if bad := bad_name(part, MOST_NAME):
            raise ItemRefused(f"key {key[:80]!r}: the part {part[:80]!r} {bad}")
    return parts
