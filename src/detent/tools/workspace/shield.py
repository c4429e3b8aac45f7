"""Protects governing files from a sandboxed program: they are mounted read-only over the workspace, which it may write.

    bound   read-only: every existing protected file and directory, at any depth (not in node_modules, where everything is code), the other names
            of a protected file (hard links), and the config, hooks and other running or redirecting files of a repository
    pinned  the directories on the way, mounted over themselves: a mount point cannot be renamed or removed, so no other directory can replace it
    held    a missing `detent.toml`: a file with a comment takes its name and is removed afterwards; and a memory that nobody has open: it is
            opened, because SQLite applies a log or a journal that it finds beside a closed file
    swept   new governing names at the top of the workspace or in its repository, the targets of links and git configurations, and registered files
            that were missing: when the program has ended, they are renamed to NAME.refused, and a changed link with such a name is restored

Files are opened without following links and passed as descriptors, so only checked files are mounted.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import stat
from collections.abc import Generator, Iterator
from pathlib import Path

from detent.core.errors import DetentError, NotExecuted
from detent.ports.governing_files import hold_in, missing_in
from detent.tools.workspace.confine import DIRECTORY_FLAGS, MAX_DEPTH, Workspace
from detent.tools.workspace.protection import GIT, GIT_FILES, HEAD, VENV_MARKS, VENV_PARTS, fold, is_bare, name_governs
from detent.tools.workspace.redirections import UNSEARCHED

GIT_REDIRECTS = ("config.worktree", "commondir")
"""Repository files that take effect as soon as they exist (gitrepository-layout)."""

HELD_FILE = "detent.toml"
HELD_TEXT = b"# Held by Detent while a sandboxed program runs, so that the program cannot write it; removed afterwards.\n"
MAX_MOUNTS = 400
MAX_NAME = 255

_PATH_FLAGS = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC if hasattr(os, "O_PATH") else 0


class Shield:
    """The protected files of a workspace while one program runs: `options` for bwrap, which gets the `descriptors`.

    Create and close it in a thread, because it searches the whole workspace. Raise `NotExecuted` if there is more than can be mounted.
    """

    def __init__(self, workspace: Workspace) -> None:
        self._root, self._protection = workspace.root, workspace.protection
        try:
            hold_in(self._root)
        except (DetentError, OSError) as error:
            raise NotExecuted(
                f"nothing was started: a memory in the workspace cannot be held: {error}", error_code="sandbox_failed"
            ) from error
        self._in_use = self._protection.in_use()
        self._bound: set[str] = set()
        self._repositories: set[str] = set()
        self._links: dict[str, str] = {}
        self._governing: set[int] = set()
        self._others: dict[int, str] = {}
        self.descriptors: list[int] = []
        self.options: list[str] = []
        self._before: set[str] | None = None
        self._mode = Path(self._root).stat().st_mode
        not_there = {path for path in self._protection.led_to() if not os.path.lexists(f"{self._root}/{path}")}
        self._missing = {path: self._first_missing(path) for path in not_there | missing_in(self._root)}
        self._bare = is_bare(Path(self._root))
        self._held = _hold(self._root)
        try:
            self._before = self._names()
            top = os.open(self._root, DIRECTORY_FLAGS)
            try:
                self._look(top, "", "", 0)
                self._bound |= {self._others[inode] for inode in self._governing & self._others.keys()}
                self._mount(top)
            finally:
                os.close(top)
        except BaseException:
            self.close()
            raise

    # Looking ----------------------------------------------------------------------------------------------------------------------

    def _look(self, directory: int, path: str, folded_path: str, depth: int) -> None:
        """Find what is protected in an open directory and below it."""
        with os.scandir(directory) as entries:
            found = list(entries)
        if path and any(entry.name in VENV_MARKS for entry in found):
            self._bound.add(path)
            self._collect(directory, depth)
            return
        bare = any(entry.name == "HEAD" and not entry.is_dir(follow_symlinks=False) for entry in found)
        environment = not path and any(entry.name in VENV_MARKS for entry in found)
        for entry in found:
            folded = fold(entry.name)
            below, folded_below = (f"{path}/{entry.name}", f"{folded_path}/{folded}") if path else (entry.name, folded)
            is_folder = entry.is_dir(follow_symlinks=False)
            if folded in GIT and is_folder:
                self._repositories.add(below)
                self._repository(directory, entry.name, below)
            elif self._governs(folded, folded_below) or (environment and folded in VENV_PARTS) or (bare and folded in (HEAD, *GIT_FILES)):
                self._take(directory, entry, below, depth)
            elif is_folder:
                if folded not in UNSEARCHED and depth < MAX_DEPTH:
                    with _opened(entry.name, directory) as inner:
                        if inner is not None:
                            self._look(inner, below, folded_below, depth + 1)
            elif not entry.is_symlink():
                self._others[entry.inode()] = below

    def _governs(self, folded: str, folded_path: str) -> bool:
        return bool(name_governs(folded)) or folded_path in self._in_use or self._protection.is_protected_by_pattern(folded_path)

    def _take(self, directory: int, entry: os.DirEntry[str], path: str, depth: int) -> None:
        """Bind a protected entry. For a link, the target is bound if it is inside, and the link itself is restored afterwards."""
        if entry.is_symlink():
            with contextlib.suppress(OSError):
                self._links[path] = os.readlink(entry.name, dir_fd=directory)
                real = os.path.realpath(Path(self._root, path))
                if real.startswith(self._root.rstrip("/") + "/") and os.path.lexists(real):
                    self._bound.add(real[len(self._root.rstrip("/")) + 1 :])
            return
        self._bound.add(path)
        self._governing.add(entry.inode())
        if entry.is_dir(follow_symlinks=False):
            with _opened(entry.name, directory) as inner:
                if inner is not None:
                    self._collect(inner, depth)

    def _collect(self, directory: int, depth: int) -> None:
        """Note the files below a protected directory, because they may have other names elsewhere."""
        with os.scandir(directory) as entries:
            found = list(entries)
        for entry in found:
            if not entry.is_dir(follow_symlinks=False):
                self._governing.add(entry.inode())
            elif depth < MAX_DEPTH:
                with _opened(entry.name, directory) as inner:
                    if inner is not None:
                        self._collect(inner, depth + 1)

    def _repository(self, directory: int, name: str, path: str) -> None:
        """Bind the governing entries of a repository. A missing hooks folder is created so that it can be bound."""
        with _opened(name, directory) as inner:
            if inner is None:
                return
            with contextlib.suppress(OSError):
                os.mkdir("hooks", dir_fd=inner)
            with os.scandir(inner) as entries:
                found = [entry for entry in entries if fold(entry.name) in GIT_FILES]
            for entry in found:
                self._take(inner, entry, f"{path}/{entry.name}", 0)

    # Mounting ---------------------------------------------------------------------------------------------------------------------

    def _mount(self, top: int) -> None:
        """Open the bound and pinned entries and build bwrap's options, each directory before its content."""
        bound = {path for path in self._bound if not any(parent in self._bound for parent in _parents(path))}
        pinned = {parent for path in (*bound, *self._links) for parent in _parents(path)} | self._repositories
        pinned -= {path for path in pinned if any(place in bound for place in (path, *_parents(path)))}
        if len(bound) + len(pinned) > MAX_MOUNTS:
            raise NotExecuted(
                f"nothing was started: the workspace has more than {MAX_MOUNTS} governing files and directories (the first: {min(bound)!r}), "
                "more than can be mounted read-only; choose a smaller directory as the workspace",
                error_code="sandbox_failed",
            )
        for path in sorted({*bound, *pinned}, key=lambda path: (path.count("/"), path)):
            descriptor = _descend(top, path)
            if descriptor is None:
                continue  # gone meanwhile
            self.descriptors.append(descriptor)
            self.options += ["--ro-bind-fd" if path in bound else "--bind-fd", str(descriptor), f"{self._root}/{path}"]

    def release(self) -> None:
        """Close the descriptors. bwrap has its own copies."""
        while self.descriptors:
            os.close(self.descriptors.pop())

    # Afterwards -------------------------------------------------------------------------------------------------------------------

    def close(self) -> tuple[str, ...]:
        """Release everything, and rename the governing files that the program created to NAME.refused. Return their names.

        A name that could not be changed is returned with the reason after it.
        """
        self.release()
        with contextlib.suppress(OSError):
            if Path(self._root).stat().st_mode != self._mode:
                Path(self._root).chmod(stat.S_IMODE(self._mode))  # otherwise its files could be hidden, or impossible to rename
        refused: list[str] = []
        new = self._names() - self._before if self._before is not None else set[str]()
        refused += [path + _aside(self._root, path) for path in sorted(new) if os.path.lexists(f"{self._root}/{path}")]
        for path, target in self._links.items():
            place = Path(self._root, path)
            with contextlib.suppress(OSError):
                if place.is_symlink() and str(place.readlink()) == target:
                    continue
            why = _aside(self._root, path) if os.path.lexists(place) else ""
            try:
                if not why:
                    place.symlink_to(target)
            except OSError as error:
                why = f" (not put back: {error.strerror})"
            refused.append(path + why)
        _let_go(self._root, self._held)
        self._held = None
        return tuple(refused)

    def _names(self) -> set[str]:
        """Return the entries at the top of the workspace that govern by name, and the redirections of its repositories."""
        try:
            names = os.listdir(self._root)  # noqa: PTH208 - names, not paths
        except OSError:
            return set()
        top = {name for name in names if name_governs(fold(name)) or self._protection.is_protected_by_pattern(fold(name))}
        if self._bare:
            top |= {name for name in names if fold(name) in GIT_FILES}
        else:
            top |= {name for name in names if fold(name) == HEAD and is_bare(Path(self._root), name)}
        inner = {f"{git}/{name}" for git in (".git", *self._repositories) for name in GIT_REDIRECTS}
        top |= {first for path, first in self._missing.items() if os.path.lexists(f"{self._root}/{path}")}
        return top | {path for path in inner if os.path.lexists(f"{self._root}/{path}")}

    def _first_missing(self, path: str) -> str:
        """Return the first part of the path that a program would have to create."""
        return next((place for place in reversed(list(_parents(path))) if not os.path.lexists(f"{self._root}/{place}")), path)


def _parents(path: str) -> Iterator[str]:
    """Return the parent directories of a path, the nearest first."""
    while path := path.rpartition("/")[0]:
        yield path


@contextlib.contextmanager
def _opened(name: str, directory: int) -> Generator[int | None]:
    """Hold a directory open, or None if it cannot be read or became something else."""
    try:
        descriptor = os.open(name, DIRECTORY_FLAGS, dir_fd=directory)
    except OSError:
        yield None
        return
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _descend(top: int, path: str) -> int | None:
    """Open a path below `top` without following any link. None if it does not exist, or is a link now."""
    here, descriptor = top, -1
    try:
        for name in path.split("/"):
            descriptor = os.open(name, _PATH_FLAGS, dir_fd=here)
            if here != top:
                os.close(here)
            here = descriptor
    except FileNotFoundError:
        if here != top:
            os.close(here)
        return None
    if stat.S_ISLNK(os.fstat(here).st_mode):
        os.close(here)
        return None
    return here


def _aside(root: str, path: str) -> str:
    """Give a file or directory a name under which it governs nothing. Return "", or why that failed."""
    place = Path(root, path)
    if os.path.realpath(place.parent) != str(place.parent):
        return " (not renamed: a link leads there)"
    refused = place.with_name(f"{place.name}.refused")
    if os.path.lexists(refused) or len(os.fsencode(refused.name)) > MAX_NAME:
        refused = place.with_name(f"{place.name[:40]}.refused-{secrets.token_hex(8)}")
    try:
        if not os.access(place.parent, os.W_OK | os.X_OK):
            place.parent.chmod(stat.S_IMODE(place.parent.stat().st_mode) | stat.S_IRWXU)
        place.rename(refused)
    except OSError as error:
        return f" (not renamed: {error.strerror})"
    return ""


def _hold(root: str) -> int | None:
    """Create the placeholder of a missing detent.toml, or share that of another program. Return its lock, or None if there is a real file."""
    path = Path(root, HELD_FILE)
    while True:
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
            os.write(descriptor, HELD_TEXT)
        except FileExistsError:
            try:
                descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
            except OSError:
                return None
        except OSError:
            return None  # where this process cannot write, the program cannot either
        try:
            held = stat.S_ISREG(os.fstat(descriptor).st_mode) and os.pread(descriptor, len(HELD_TEXT) + 1, 0) == HELD_TEXT
            if held:
                fcntl.flock(descriptor, fcntl.LOCK_SH)  # waits only while another program's placeholder is being removed
        except OSError:
            held = False
        if held and _is(path, descriptor):
            return descriptor
        os.close(descriptor)
        if not held:
            return None


def _is(path: Path, descriptor: int) -> bool:
    """Whether the path still leads to the open file."""
    try:
        there, mine = path.lstat(), os.fstat(descriptor)
    except OSError:
        return False
    return (there.st_dev, there.st_ino) == (mine.st_dev, mine.st_ino)


def _let_go(root: str, descriptor: int | None) -> None:
    """Remove the placeholder, unless another program still needs it or somebody has written it."""
    if descriptor is None:
        return
    path = Path(root, HELD_FILE)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if _is(path, descriptor) and os.pread(descriptor, len(HELD_TEXT) + 1, 0) == HELD_TEXT:
            path.unlink()
    except OSError:
        pass  # another program holds it, or it is gone
    finally:
        os.close(descriptor)
