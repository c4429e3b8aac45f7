"""A workspace: a root directory that no path leaves.

Paths are relative, with `/`. Absolute paths, `..`, NUL and lone surrogates are refused. A path is walked one component at a time from a descriptor of
the root; each component is opened with `O_NOFOLLOW` relative to the directory before it (`dir_fd`). This module reads and follows symbolic links
itself, the system never does: a link that leads outside is refused, a link that stays inside is followed, and a component that is swapped for a link
between check and use is not followed. The code holds descriptors, not names, so a directory that is renamed while in use is still the directory that
was checked (even if it was moved out of the root meanwhile: that race remains).
Only regular files and directories are opened. Devices, pipes and sockets are refused without opening them, and so are the files of a SQLite store
that is open in this process (`ports.store_files`). Governing files are not written (`protection`). A hard link looks the same as the file, so nothing
is written in place to a file with several names.
"""

from __future__ import annotations

import errno
import os
import stat
from collections import deque
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from detent.core.errors import ConfigError
from detent.ports.store_files import is_store_file
from detent.tools.failures import failed, refused_argument, shown, translating
from detent.tools.workspace.protection import Protection, plain

MAX_PATH_CHARS = 4_096
MAX_DEPTH = 128
MAX_LINKS = 40

DIRECTORY_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
READ_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of the workspace tools: sizes in bytes, times in seconds. A value equal to the limit is allowed."""

    read_bytes: int = 262_144
    edit_bytes: int = 16_777_216
    entries: int = 1_000
    matches: int = 200
    line_chars: int = 1_000
    line_bytes: int = 1_048_576
    lock_wait_s: float = 10.0
    pattern_s: float = 10.0
    stdout_bytes: int = 32_768
    stderr_bytes: int = 16_384
    exec_timeout_s: float = 600.0


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """The target of a path: `name` in the open directory `directory`. `path` is the real path from the root, `asked` the requested one.

    `name` is empty if the path is the root itself. `made` lists the directories that were created on the way: (parent, name).
    """

    directory: int
    name: str
    path: str
    asked: str
    made: tuple[tuple[int, str], ...] = ()

    @property
    def key(self) -> tuple[int, int, str]:
        """A key that is the same for every path to this entry."""
        found = os.fstat(self.directory)
        return found.st_dev, found.st_ino, self.name


def _nothing(step: str, path: str) -> None:
    """Do nothing before a step."""


class Workspace:
    """A root directory and the limits of the tools that work in it.

    `allow_delete` lets apply_patch remove and move files. Governing files are not written (see `protection`): `protected` adds patterns of paths,
    `unprotected` opens paths, and each write to an opened path asks. `before(step, path)` is called before each step that changes something
    (`lock`, `stage`, `sync`, `keep`, `rename`, `remove`, `append`, `sync_directory`); an `OSError` from it is treated like one of the system.
    Raise `ConfigError` if `root` is not a directory or the system cannot open files relative to a directory.
    """

    def __init__(
        self,
        root: str | Path,
        *,
        limits: Limits | None = None,
        allow_delete: bool = False,
        protected: Sequence[str] = (),
        unprotected: Sequence[str] = (),
        before: Callable[[str, str], None] = _nothing,
    ) -> None:
        if os.open not in os.supports_dir_fd:
            raise ConfigError(
                "workspace tools need a system that opens files relative to a directory (Linux, macOS, BSD); this one does not"
            )
        real = os.path.realpath(root)
        if not Path(real).is_dir():
            raise ConfigError(f"workspace root {str(root)!r} is not a directory; create it first, or name another one")
        self.root = real
        self.limits = limits or Limits()
        self.allow_delete = allow_delete
        self.protection = Protection(real, protected=protected, unprotected=unprotected)
        self.before = before

    @contextmanager
    def place(self, path: str, *, make_parents: bool = False, follow: bool = True, writing: bool = False) -> Generator[Place, None, None]:
        """Hold the entry that `path` leads to. It need not exist, but its directory must, unless `make_parents` creates it.

        Without `follow`, a link as the last component is the entry itself. With `writing`, a protected entry is refused (`protected_path`).
        If the block raises, created directories that are empty are removed again.
        """
        parts = split(path)
        if writing:
            self.protection.check(path, plain(path))
        with translating(path), _Walk(self.root, path, make_parents=make_parents) as walk:
            name = walk.to_entry(parts, follow=follow)
            place = Place(
                directory=walk.here,
                name=name,
                path="/".join([*walk.names, name] if name else walk.names),
                asked=path,
                made=tuple(walk.made),
            )
            try:
                if is_store_file(f"{self.root.rstrip('/')}/{place.path}"):
                    raise _store_file(path)
                if writing and place.path != plain(path):
                    self.protection.check(path, place.path)
                yield place
            except BaseException:
                walk.unmake()
                raise

    @contextmanager
    def directory(self, path: str) -> Generator[Place, None, None]:
        """Hold the directory that `path` leads to. The `name` of the place is empty."""
        parts = split(path)
        with translating(path), _Walk(self.root, path) as walk:
            walk.into(parts)
            yield Place(directory=walk.here, name="", path="/".join(walk.names), asked=path)

    @contextmanager
    def reading(self, path: str) -> Generator[int, None, None]:
        """Hold a descriptor of the regular file `path`, open for reading."""
        with self.place(path) as place:
            descriptor = open_regular(place)
            try:
                yield descriptor
            finally:
                os.close(descriptor)


def _store_file(path: str) -> Exception:
    message = (
        f"{shown(path)} belongs to the store of runs that is open here: reading it would take its locks away, writing to it would damage it"
    )
    return failed("store_file", f"{message}; leave it alone (`detent export RUN` gives a run's log as a file of its own)", path=path)


def split(path: str) -> list[str]:
    """Return the components of a relative path. Raise `ToolFailed` for a component that could leave the root or cannot be a file name."""
    if "\0" in path:
        raise failed("invalid_path", f"path {shown(path)} contains a NUL character, which no file name can; remove it")
    if any("\ud800" <= c <= "\udfff" for c in path):
        raise failed("invalid_path", f"path {shown(path)} contains half a surrogate pair; give it as valid Unicode text")
    if len(path) > MAX_PATH_CHARS:
        raise failed("name_too_long", f"path {shown(path)} is longer than {MAX_PATH_CHARS} characters; shorten it")
    if path.startswith("/"):
        raise failed(
            "outside_workspace", f"path must be relative: {shown(path)} is absolute; give it relative to the workspace root", path=path
        )
    parts = [part for part in path.split("/") if part not in ("", ".")]
    if ".." in parts:
        raise failed(
            "outside_workspace", f"parent path '..' is not allowed: {shown(path)}; give the path from the workspace root", path=path
        )
    if not path:
        raise refused_argument("path is empty; '.' is the workspace root")
    if len(parts) > MAX_DEPTH:
        raise failed("name_too_long", f"path {shown(path)} has {len(parts)} components, more than {MAX_DEPTH}; shorten it")
    return parts


def open_regular(place: Place) -> int:
    """Open the place's file for reading and return the descriptor. Raise `ToolFailed` if it is not a regular file.

    The kind is checked before opening, because opening a device can have effects, and again afterwards, because the file may have been swapped.
    """
    if not place.name:
        raise failed("is_a_directory", f"{shown(place.asked)} is the workspace root, not a file; use list_dir or find_files for it")
    require_regular(os.stat(place.name, dir_fd=place.directory, follow_symlinks=False), place.asked)
    descriptor = os.open(place.name, READ_FLAGS, dir_fd=place.directory)
    try:
        require_regular(os.fstat(descriptor), place.asked)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def require_regular(found: os.stat_result, path: str) -> None:
    """Raise `ToolFailed` unless `found` describes a regular file."""
    if stat.S_ISREG(found.st_mode):
        return
    if stat.S_ISDIR(found.st_mode):
        raise failed("is_a_directory", f"{shown(path)} is a directory, not a file; use list_dir or find_files for it", path=path)
    if stat.S_ISLNK(found.st_mode):
        raise failed(
            "is_a_symlink", f"{shown(path)} is a symbolic link, or became one while it was opened; name the file itself", path=path
        )
    raise failed("not_a_regular_file", f"{shown(path)} is a device, pipe or socket; only regular files can be used", path=path)


class _Walk:
    """A walk from the root that holds a descriptor for every directory on the way, so `..` in a link pops one instead of asking the system."""

    def __init__(self, root: str, asked: str, *, make_parents: bool = False) -> None:
        self.root, self.asked, self.make_parents = root, asked, make_parents
        self.open: list[int] = []
        self.stack: list[int] = []
        self.names: list[str] = []
        self.made: list[tuple[int, str]] = []
        self.links = 0

    def __enter__(self) -> _Walk:
        self._enter(os.open(self.root, DIRECTORY_FLAGS))
        return self

    def __exit__(self, *_: object) -> None:
        for descriptor in self.open:
            os.close(descriptor)

    @property
    def here(self) -> int:
        """The descriptor of the walk's current directory."""
        return self.stack[-1]

    def _enter(self, descriptor: int) -> None:
        self.open.append(descriptor)
        self.stack.append(descriptor)

    def unmake(self) -> None:
        """Remove the empty directories that this walk created."""
        for parent, name in reversed(self.made):
            with suppress(OSError):
                os.rmdir(name, dir_fd=parent)

    def to_entry(self, parts: list[str], *, follow: bool) -> str:
        """Walk to the directory of the last component, following links. Return the name of that component, or "" for the root itself."""
        rest = deque(parts)
        try:
            while rest:
                name = rest.popleft()
                if rest or name == "..":
                    self._down(name, rest)
                elif follow and (target := self._link(name)) is not None:
                    self._follow(target, rest)
                else:
                    return name
        except BaseException:
            self.unmake()
            raise
        if not self.names:
            return ""
        self.stack.pop()
        return self.names.pop()

    def into(self, parts: list[str]) -> None:
        """Walk into the directory that `parts` lead to."""
        rest = deque(parts)
        while rest:
            self._down(rest.popleft(), rest)

    def _down(self, name: str, rest: deque[str]) -> None:
        """Enter the directory `name`. If it is a link, put its target before `rest` instead."""
        if name == "..":
            if not self.names:
                raise self._outside()
            self.stack.pop()
            self.names.pop()
            return
        try:
            descriptor = os.open(name, DIRECTORY_FLAGS, dir_fd=self.here)
        except OSError as error:
            if error.errno == errno.ENOENT and self.make_parents:
                descriptor = self._make(name)
            elif error.errno in (errno.ENOTDIR, errno.ELOOP) and (target := self._link(name)) is not None:
                self._follow(target, rest)
                return
            else:
                raise
        self._enter(descriptor)
        self.names.append(name)

    def _make(self, name: str) -> int:
        with suppress(FileExistsError):
            os.mkdir(name, dir_fd=self.here)
            self.made.append((self.here, name))
        return os.open(name, DIRECTORY_FLAGS, dir_fd=self.here)

    def _link(self, name: str) -> str | None:
        """Return the target of the link `name`, or None if it is not a link or does not exist."""
        try:
            return os.readlink(name, dir_fd=self.here)
        except OSError as error:
            if error.errno in (errno.EINVAL, errno.ENOENT):
                return None
            raise

    def _follow(self, target: str, rest: deque[str]) -> None:
        """Continue at the link's target: from here, or from the root if it is absolute and inside."""
        self.links += 1
        if self.links > MAX_LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
        if target.startswith("/"):
            real = os.path.realpath(target)
            if real != self.root and not real.startswith(self.root.rstrip("/") + "/"):
                raise self._outside()
            del self.stack[1:]
            self.names.clear()
            target = real[len(self.root) :]
        rest.extendleft(reversed([part for part in target.split("/") if part not in ("", ".")]))

    def _outside(self) -> Exception:
        where = "/".join(self.names) or "."
        return failed(
            "outside_workspace",
            f"{shown(self.asked)} goes through a symbolic link (in {shown(where)}) that leads outside the workspace; use a path that stays inside",
            path=self.asked,
        )
