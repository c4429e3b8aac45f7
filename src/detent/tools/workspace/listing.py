"""Finds files: list_dir, find_files, glob.

Results are sorted by code point and are the same for the same tree. `truncated` is true only if there is more; `next_cursor` then continues after
the last entry. Symbolic links are shown, never entered. A name that is not UTF-8 is shown with replacement characters and cannot be opened.
`not_searched` names directories that cannot be read or are deeper than 128 levels.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator
from contextlib import closing
from itertools import islice
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from detent.tools.failures import failed, refused_argument, stop_if
from detent.tools.workspace.confine import DIRECTORY_FLAGS, MAX_DEPTH, Workspace
from detent.tools.workspace.globbing import Glob
from detent.tools.workspace.reading import Kind, kind_of

if TYPE_CHECKING:
    from detent.ports import Cancellation

KIND_ORDER: dict[str, int] = {"dir": 0, "file": 1, "symlink": 2, "other": 3}
DEFAULT_ENTRIES = 256
SHOWN_UNSEARCHED = 20


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """One child of a directory; size in bytes, time in milliseconds since 1970."""

    name: str
    kind: Kind
    size_bytes: int
    modified_unix_ms: int


class DirectoryEntries(msgspec.Struct, frozen=True, kw_only=True):
    """A page of a directory: directories, files, links, others; by name within each."""

    path: str
    entries: tuple[Entry, ...]
    truncated: bool
    next_cursor: str | None


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """A page of paths relative to the workspace root, sorted as if directories ended with `/`.

    If there are more, `next_cursor` is the last path (with that slash).
    """

    paths: tuple[str, ...]
    truncated: bool
    next_cursor: str | None
    not_searched: tuple[str, ...]


def list_dir(
    workspace: Workspace,
    path: str = ".",
    *,
    include_hidden: bool = False,
    limit: int = DEFAULT_ENTRIES,
    cursor: str | None = None,
    cancelled: Cancellation | None = None,
) -> DirectoryEntries:
    """Return at most `limit` direct children of a directory, after `cursor` (the `next_cursor` of the page before)."""
    _check_limit("limit", limit, workspace.limits.entries)
    after = _kind_cursor(cursor)
    entries: list[Entry] = []
    with workspace.directory(path) as place, os.scandir(place.directory) as scan:
        for item in scan:
            stop_if(cancelled, doing=f"listing {path!r}")
            if item.name.startswith(".") and not include_hidden:
                continue
            try:
                found = item.stat(follow_symlinks=False)
            except FileNotFoundError:
                continue
            entry = Entry(
                name=_text(item.name), kind=kind_of(found), size_bytes=found.st_size, modified_unix_ms=found.st_mtime_ns // 1_000_000
            )
            if after is None or _entry_key(entry) > after:
                entries.append(entry)
    entries.sort(key=_entry_key)
    more = len(entries) > limit
    page = tuple(entries[:limit])
    return DirectoryEntries(path=path, entries=page, truncated=more, next_cursor=f"{page[-1].kind}:{page[-1].name}" if more else None)


def find_files(
    workspace: Workspace,
    path: str = ".",
    *,
    name_contains: str = "",
    path_contains: str = "",
    extensions: tuple[str, ...] | list[str] = (),
    exclude_dirs: tuple[str, ...] | list[str] = (),
    max_depth: int | None = None,
    include_hidden: bool = False,
    limit: int = DEFAULT_ENTRIES,
    cursor: str | None = None,
    cancelled: Cancellation | None = None,
) -> Found:
    """Return the matching regular files under a directory, by path.

    `name_contains` and `path_contains` ignore case. `extensions` are name endings with or without the dot, ignoring case. `exclude_dirs` are names of
    directories that are not entered. Depth 1 means only the directory's own files.
    """
    _check_limit("limit", limit, workspace.limits.entries)
    if max_depth is not None and max_depth < 1:
        raise refused_argument(f"max_depth is {max_depth}; 1 is the directory's own files")
    endings = tuple("." + ending.lower().lstrip(".") for ending in extensions)
    name_part, path_part, skipped = name_contains.lower(), path_contains.lower(), frozenset(exclude_dirs)

    def wanted(name: str, relative: str, kind: Kind, _: Any) -> bool:
        lowered = name.lower()
        fits = name_part in lowered and path_part in relative.lower() and (not endings or lowered.endswith(endings))
        return fits and kind == "file"

    def enter(name: str, depth: int) -> bool:
        return name not in skipped and (max_depth is None or depth < max_depth)

    tree = _Tree(wanted, lambda name, depth, _: 0 if enter(name, depth) else None, include_hidden=include_hidden, cancelled=cancelled)
    return tree.page(workspace, path, limit, cursor)


def glob(
    workspace: Workspace,
    pattern: str,
    path: str = ".",
    *,
    kind: Literal["file", "dir", "symlink", "any"] = "any",
    include_hidden: bool = False,
    max_results: int = DEFAULT_ENTRIES,
    cursor: str | None = None,
    cancelled: Cancellation | None = None,
) -> Found:
    """Return the entries under `path` that match `pattern`: `*` and `?` stay within a name, `**` is any number of directories.

    The pattern is relative to `path`, the results are relative to the workspace root; a `**` at the end is everything below.
    `[a-z]` and `[!a-z]` match one character. Hidden entries match only a part that begins with a dot, unless `include_hidden`. Raises `ToolFailed`
    with `invalid_pattern`.
    """
    _check_limit("max_results", max_results, workspace.limits.entries)
    if kind not in ("file", "dir", "symlink", "any"):
        raise refused_argument(f"kind is {kind!r}; it must be file, dir, symlink or any")
    matcher = Glob(pattern, include_hidden=include_hidden)

    def wanted(name: str, _: str, found: Kind, state: Any) -> bool:
        return kind in ("any", found) and matcher.matches(matcher.step(state, name))

    def enter(name: str, _: int, state: Any) -> Any:
        after = matcher.step(state, name)
        return after if matcher.goes_on(after) else None

    tree = _Tree(wanted, enter, include_hidden=True, cancelled=cancelled, state=matcher.start)
    return tree.page(workspace, path, max_results, cursor)


class _Tree:
    """A walk over a directory tree in the order of the paths.

    Names are sorted as if directories ended with `/`. Then depth-first order is the order of the paths as strings, a page can stop early, and
    a cursor skips whole directories. `wanted` chooses entries. `enter` returns the state for a directory, or None to skip it.
    """

    def __init__(
        self,
        wanted: Callable[[str, str, Kind, Any], bool],
        enter: Callable[[str, int, Any], Any],
        *,
        include_hidden: bool,
        cancelled: Cancellation | None,
        state: Any = 0,
    ) -> None:
        self.wanted, self.enter, self.include_hidden, self.cancelled, self.state = wanted, enter, include_hidden, cancelled, state
        self.unsearched: list[str] = []

    def page(self, workspace: Workspace, path: str, limit: int, cursor: str | None) -> Found:
        """Return at most `limit` paths after `cursor`."""
        with workspace.directory(path) as place:
            prefix = place.path + "/" if place.path else ""
            with closing(self._below(place.directory, prefix, 1, cursor or "", self.state)) as found:
                keys = list(islice(found, limit + 1))
        more = len(keys) > limit
        page = keys[:limit]
        return Found(
            paths=tuple(key.removesuffix("/") for key in page),
            truncated=more,
            next_cursor=page[-1] if more else None,
            not_searched=tuple(self.unsearched[:SHOWN_UNSEARCHED]),
        )

    def _below(self, directory: int, prefix: str, depth: int, after: str, state: Any) -> Generator[str, None, None]:
        """Yield the keys of the wanted entries: paths, with a slash at the end for directories."""
        for name, kind in self._children(directory):
            stop_if(self.cancelled, doing=f"searching {prefix or '.'!r}")
            relative = prefix + _text(name)
            key = relative + "/" if kind == "dir" else relative
            if key > after and self.wanted(name, relative, kind, state):
                yield key
            if kind != "dir" or (key < after and not after.startswith(key)):
                continue
            below = self.enter(name, depth, state)
            if below is not None:
                yield from self._enter(directory, name, key, depth=depth + 1, after=after, state=below)

    def _enter(self, directory: int, name: str, prefix: str, *, depth: int, after: str, state: Any) -> Generator[str, None, None]:
        if depth > MAX_DEPTH:
            self.unsearched.append(prefix)
            return
        try:
            descriptor = os.open(name, DIRECTORY_FLAGS, dir_fd=directory)
        except FileNotFoundError:
            return
        except OSError:
            self.unsearched.append(prefix)
            return
        try:
            yield from self._below(descriptor, prefix, depth, after, state)
        finally:
            os.close(descriptor)

    def _children(self, directory: int) -> list[tuple[str, Kind]]:
        """Return name and kind of the children, sorted. Hidden ones are left out unless they are wanted."""
        with os.scandir(directory) as scan:
            found: list[tuple[str, Kind]] = [
                (item.name, _entry_kind(item)) for item in scan if self.include_hidden or not item.name.startswith(".")
            ]
        return sorted(found, key=lambda child: _text(child[0]) + ("/" if child[1] == "dir" else ""))


def _entry_kind(item: os.DirEntry[str]) -> Kind:
    if item.is_symlink():
        return "symlink"
    return "dir" if item.is_dir(follow_symlinks=False) else "file" if item.is_file(follow_symlinks=False) else "other"


def _text(name: str) -> str:
    """Return a file name as valid Unicode. Bytes that are not UTF-8 become replacement characters."""
    return name if name.isascii() else os.fsencode(name).decode("utf-8", "replace")


def _entry_key(entry: Entry) -> tuple[int, str]:
    return KIND_ORDER[entry.kind], entry.name


def _kind_cursor(cursor: str | None) -> tuple[int, str] | None:
    if not cursor:
        return None
    kind, colon, name = cursor.partition(":")
    if not colon or kind not in KIND_ORDER:
        raise failed("invalid_cursor", f"cursor {cursor[:200]!r} is not a cursor that list_dir returned; leave it out to begin again")
    return KIND_ORDER[kind], name


def _check_limit(name: str, value: int, ceiling: int) -> None:
    if not 1 <= value <= ceiling:
        raise refused_argument(f"{name} is {value}; it must be from 1 to {ceiling}")
