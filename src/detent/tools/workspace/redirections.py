"""Finds files that govern because a governing entry leads to them: a link with a protected name, or git's configuration.

The whole workspace is searched, without unprotected folders (`node_modules`). The findings for a directory are cached with its change time, which nobody
can set (`st_ctime`), so the next search only checks these times.
"""

from __future__ import annotations

import os
import re
import stat
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

UNSEARCHED = frozenset({"node_modules"})
MAX_FOLDERS = 20_000
"""The maximum number of searched directories, those near the top first."""

MAX_HOPS = 40
MAX_FILES = 20
MAX_BYTES = 262_144
SETTLED_NS = 2_000_000_000
"""A directory that changed in the last two seconds may change again with the same time, because file systems have coarse times."""

_SECTION = re.compile(r'\[([A-Za-z0-9.-]+)[ \t]*(?:"(?:[^"\\\n]|\\.)*")?[ \t]*\]')
_KEY = re.compile(r'([A-Za-z][A-Za-z0-9-]*)[ \t]*(?:=((?:"(?:[^"\\\n]|\\(?:\r\n|[\s\S]))*"|\\(?:\r\n|[\s\S])|[^"\\#;\n])*))?')
_OTHER = re.compile(r"\s+|[#;][^\n]*")
_ESCAPED = re.compile(r'\\(\r?\n|[\s\S])|"')


class _Folder(msgspec.Struct, frozen=True):
    stamp: tuple[int, int, int]
    folders: tuple[str, ...]
    links: tuple[str, ...]
    repository: bool


class Redirections:
    """The redirections in the directory `root`. `is_governing` tells whether a name governs."""

    def __init__(self, root: str, is_governing: Callable[[str], bool]) -> None:
        self._root, self._is_governing = root.rstrip("/"), is_governing
        self._kept: dict[str, _Folder] = {}

    def found(self) -> set[str]:
        """Return the targets inside the root, relative to it, with the links on the way."""
        places: list[str] = []
        waiting = deque([(self._root, False)])
        kept: dict[str, _Folder] = {}
        while waiting and len(kept) < MAX_FOLDERS:
            path, governs = waiting.popleft()
            folder = self._folder(path)
            if folder is None:
                continue
            kept[path] = folder
            for name in folder.links:
                if governs or self._is_governing(name):
                    places += _way(f"{path}/{name}")
            if folder.repository:
                places += _of_git(path)
            waiting += ((f"{path}/{name}", governs or self._is_governing(name)) for name in folder.folders)
        self._kept = kept
        prefix = f"{self._root}/"
        return {place[len(prefix) :] for place in places if place.startswith(prefix)}

    def _folder(self, path: str) -> _Folder | None:
        try:
            info = os.lstat(path)
            if not stat.S_ISDIR(info.st_mode):
                return None
            stamp = (info.st_dev, info.st_ino, info.st_ctime_ns)
            known = self._kept.get(path)
            if known is not None and known.stamp == stamp:
                return known
            folders: list[str] = []
            links: list[str] = []
            repository = False
            with os.scandir(path) as entries:
                for entry in entries:
                    repository = repository or entry.name == ".git"
                    if entry.is_symlink():
                        links.append(entry.name)
                    elif entry.is_dir(follow_symlinks=False) and entry.name not in UNSEARCHED:
                        folders.append(entry.name)
        except OSError:
            return None
        settled = time.time_ns() - info.st_ctime_ns > SETTLED_NS
        return _Folder(stamp if settled else (0, 0, 0), tuple(folders), tuple(links), repository)


def _way(path: str) -> list[str]:
    """Return where a path leads, including the links on the way."""
    found: list[str] = []
    for _ in range(MAX_HOPS):
        directory, name = os.path.split(path)
        path = _joined(os.path.realpath(directory), name)
        found.append(path)
        try:
            path = _joined(os.path.realpath(directory), str(Path(path).readlink()))
        except OSError:
            break
    return [*found[1:], os.path.realpath(path)]


def _joined(directory: str, path: str) -> str:
    """Return the target of a path relative to a directory, as text. It need not exist."""
    return os.path.normpath(os.path.join(directory, path))  # noqa: PTH118 - text, and much faster


# Git ----------------------------------------------------------------------------------------------------------------------------------


def _of_git(worktree: str) -> list[str]:
    """Return what the repository of a worktree leads to: another location of itself, the files it includes, and its hooks folder."""
    found: list[str] = []
    repository = f"{worktree}/.git"
    said = _text(os.path.realpath(repository))
    if said.startswith("gitdir:"):
        repository = _joined(worktree, said[len("gitdir:") :].strip())
        found += _way(repository)
    common = _text(f"{repository}/commondir").strip()
    if common:
        common = _joined(repository, common)
        found += _way(common)
    waiting = deque(f"{place}/{name}" for place in (repository, common) if place for name in ("config", "config.worktree"))
    read: set[str] = set()
    while waiting and len(read) < MAX_FILES:
        file = waiting.popleft()
        if file in read:
            continue
        read.add(file)
        for key, value in settings(_text(os.path.realpath(file))):
            if not value or "\0" in value:
                continue
            place = str(Path(value).expanduser()) if value.startswith("~/") else value
            if key == "core.hookspath":
                found += _way(_joined(worktree, place))
            elif key in ("include.path", "includeif.path"):
                included = _joined(file.rpartition("/")[0], place)
                found += _way(included)
                waiting.append(included)
    return found


def settings(text: str) -> Iterator[tuple[str, str]]:
    """Yield the settings in a git configuration text (git-config, "Syntax"): section and key in lower case, without the subsection."""
    section, at = "", 0
    while at < len(text):
        if match := _SECTION.match(text, at):
            section = match[1].lower().partition(".")[0]
        elif match := _KEY.match(text, at):
            yield f"{section}.{match[1].lower()}", _ESCAPED.sub(_unescaped, match[2] or "").strip()
        else:
            match = _OTHER.match(text, at)
        at = match.end() if match and match.end() > at else at + 1


def _unescaped(match: re.Match[str]) -> str:
    said = match[1] or ""
    return "" if said.endswith("\n") else {"n": "\n", "t": "\t", "b": "\b"}.get(said, said)


def _text(path: str) -> str:
    """Return the content of a regular file, up to a limit, or nothing if there is none. It does not wait for a pipe."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return ""
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return ""
        return os.read(descriptor, MAX_BYTES).decode("utf-8", "surrogateescape").removeprefix("\ufeff")
    except OSError:
        return ""
    finally:
        os.close(descriptor)
