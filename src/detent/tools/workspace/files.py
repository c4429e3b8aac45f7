"""Tools that change one file: write_file, create_file, append_file, replace_in_file.

Each takes the directory's lock, checks the precondition, and only then writes. Missing parent directories are created. `writing` explains what
atomic means here. Only append_file writes in place and is not atomic.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from detent.core.errors import ToolFailed
from detent.tools.failures import failed, refused_argument, shown, stop_if, translated, translating
from detent.tools.workspace.confine import Place, Workspace, require_regular
from detent.tools.workspace.writing import (
    Precondition,
    Version,
    Written,
    checked_precondition,
    current,
    encoded,
    locked,
    replace,
    require,
    sync_directories,
    write_all,
    written,
)

if TYPE_CHECKING:
    from detent.ports import Cancellation

PLACEHOLDERS = (
    "...existing code...",
    "... existing code ...",
    "... omitted ...",
    "omitted for brevity",
    "// omitted",
    "/* omitted",
    "todo: add rest",
)
KEPT_TENTHS = 6


class Appended(msgspec.Struct, frozen=True, kw_only=True):
    """The result of append_file; `size_bytes` and `mtime_unix_ms` are those of the file afterwards."""

    path: str
    appended_bytes: int
    size_bytes: int
    mtime_unix_ms: int
    created: bool


class Replaced(msgspec.Struct, frozen=True, kw_only=True):
    """The result of replace_in_file; the other fields describe the file's new version."""

    path: str
    replacements: int
    hash: str
    mtime_unix_ms: int
    size_bytes: int


def write_file(
    workspace: Workspace,
    path: str,
    content: str,
    *,
    mode: Literal["overwrite", "create"] = "overwrite",
    precondition: Precondition | None = None,
    force: bool = False,
    again: bool = False,
    cancelled: Cancellation | None = None,
) -> Written:
    """Write the whole file atomically. `create` refuses (`already_exists`) if the file exists.

    Without `force`, refuse content with a placeholder for left-out text (`placeholder_found`) and content under 60 % of the size of a non-empty
    file (`shrink_refused`). `again` marks the repetition of a call with an unknown outcome: if the file has exactly this content, that is a
    success. Other content is a failure (`changed_meanwhile`) and is never overwritten, because it may be newer.
    """
    data = encoded(workspace, content, path)
    given = checked_precondition(precondition)
    if mode not in ("overwrite", "create"):
        raise refused_argument(f"mode is {mode!r}; it must be 'overwrite' or 'create' (append_file appends)")
    if not force:
        _refuse_placeholder(content, path)
    with _target(workspace, path, given, cancelled) as place:
        old = current(workspace, place, need_data=False)
        if again and old.found is not None:
            return _settled(workspace, place, data, old)
        require(place, given)
        if mode == "create" and old.found is not None:
            raise _exists(path)
        if not force and old.found is not None:
            _refuse_shrink(path, old.found.st_size, len(data))
        return replace(workspace, place, data, old, cancelled)


def create_file(
    workspace: Workspace,
    path: str,
    content: str = "",
    *,
    precondition: Precondition | None = None,
    again: bool = False,
    cancelled: Cancellation | None = None,
) -> Written:
    """Create a file with `content`. Raise `ToolFailed` (`already_exists`) if anything has that name. `again` is as in `write_file`.

    A precondition describes an existing file, so a call with one always fails: with `precondition_failed` or `already_exists`.
    """
    return write_file(workspace, path, content, mode="create", precondition=precondition, force=True, again=again, cancelled=cancelled)


def append_file(
    workspace: Workspace,
    path: str,
    content: str,
    *,
    precondition: Precondition | None = None,
    cancelled: Cancellation | None = None,
) -> Appended:
    """Add `content` to the end of a file. A missing file is created.

    Not atomic: a reader may see a part of it, and only a part may be written if the process dies or the power fails. After an error the file has
    its old length again.
    """
    data = encoded(workspace, content, path)
    given = checked_precondition(precondition)
    with _target(workspace, path, given, cancelled) as place:
        old = current(workspace, place, need_data=False)
        require(place, given)
        if old.found is None:
            new = replace(workspace, place, data, old, cancelled)
            return Appended(path=path, appended_bytes=len(data), size_bytes=new.size_bytes, mtime_unix_ms=new.mtime_unix_ms, created=True)
        stop_if(cancelled, doing=f"appending to {shown(path)}")
        found = _append(workspace, place, data)
        return Appended(
            path=path, appended_bytes=len(data), size_bytes=found.st_size, mtime_unix_ms=found.st_mtime_ns // 1_000_000, created=False
        )


def replace_in_file(
    workspace: Workspace,
    path: str,
    old: str,
    new: str,
    *,
    expected_matches: int = 1,
    precondition: Precondition | None = None,
    cancelled: Cancellation | None = None,
) -> Replaced:
    """Replace each occurrence of the exact text `old`. If it does not occur `expected_matches` times, write nothing.

    Raise `ToolFailed` with `unexpected_match_count` (and expected_matches, actual_matches, lines), `not_text`, `too_large`, ...
    """
    before, after = encoded(workspace, old, path), encoded(workspace, new, path)
    given = checked_precondition(precondition)
    if not old or old == new:
        raise refused_argument("old is empty; give the exact text to replace" if not old else "old and new are equal; nothing would change")
    if expected_matches < 1:
        raise refused_argument(f"expected_matches is {expected_matches}; it must be at least 1")
    with _target(workspace, path, given, cancelled, make_parents=False) as place:
        version = current(workspace, place)
        require(place, given)
        if version.data is None:
            raise translated(FileNotFoundError(errno.ENOENT, ""), path)
        _require_utf8(version.data, path)
        count = version.data.count(before)
        if count != expected_matches:
            raise _miscounted(path, version.data, before, expected_matches, count)
        data = version.data.replace(before, after)
        if len(data) > workspace.limits.edit_bytes:
            raise failed("too_large", f"{shown(path)} would have {len(data)} bytes, more than {workspace.limits.edit_bytes}", path=path)
        result = replace(workspace, place, data, version, cancelled)
    return Replaced(path=path, replacements=count, hash=result.hash, mtime_unix_ms=result.mtime_unix_ms, size_bytes=result.size_bytes)


@contextmanager
def _target(
    workspace: Workspace, path: str, given: dict[str, Any], cancelled: Cancellation | None, *, make_parents: bool = True
) -> Generator[Place, None, None]:
    """Hold the file's place under its lock. With a precondition no directory is created, because no file in it could meet the precondition."""
    if given:
        _require_parent(workspace, path, given)
    with workspace.place(path, make_parents=make_parents and not given, writing=True) as place:
        if not place.name:
            raise failed("is_a_directory", f"{shown(path)} is the workspace root, not a file; name a file in it", path=path)
        with translating(path), locked(workspace, [place], cancelled):
            yield place


def _require_parent(workspace: Workspace, path: str, given: dict[str, Any]) -> None:
    """Raise `precondition_failed` if the file's directory does not exist."""
    try:
        with workspace.place(path, writing=True):
            return
    except ToolFailed as error:
        if error.error_code != "not_found":
            raise
    expected = {name.removeprefix("expected_"): value for name, value in given.items()}
    message = f"{shown(path)} does not exist, but the call expects a version of it; nothing was written"
    raise failed("precondition_failed", message, path=path, expected=expected, actual={"exists": False})


def _settled(workspace: Workspace, place: Place, data: bytes, old: Version) -> Written:
    """Answer a repeated call from the existing file: the same content is a success, other content a failure."""
    if old.found.st_size == len(data) and current(workspace, place).data == data:
        sync_directories(workspace, [place])
        return written(place, data, old.found, created=False)
    message = (
        f"an earlier attempt to write {shown(place.asked)} was interrupted, and the file has other content now (older, or changed since): "
        "nothing was written over. Read it, then write again if that is still wanted"
    )
    raise failed("changed_meanwhile", message, path=place.asked)


def _refuse_placeholder(content: str, path: str) -> None:
    lowered = content.lower()
    for marker in PLACEHOLDERS:
        if marker in lowered:
            line = lowered[: lowered.index(marker)].count("\n") + 1
            message = f"content for {shown(path)} holds the placeholder {marker!r} in line {line}; send the whole text, or force=true if it is meant so"
            raise failed("placeholder_found", message, path=path, line=line)


def _refuse_shrink(path: str, old_bytes: int, new_bytes: int) -> None:
    if new_bytes * 10 < old_bytes * KEPT_TENTHS:
        message = f"{shown(path)} would shrink from {old_bytes} to {new_bytes} bytes, under 60 %; send the whole text, or force=true if it is meant so"
        raise failed("shrink_refused", message, path=path, old_bytes=old_bytes, new_bytes=new_bytes)


def _exists(path: str) -> Exception:
    return translated(FileExistsError(errno.EEXIST, ""), path)


def _append(workspace: Workspace, place: Place, data: bytes) -> os.stat_result:
    """Write at the end and sync. On an error, cut the file back to its old length."""
    flags = os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    descriptor = os.open(place.name, flags, dir_fd=place.directory)
    try:
        found = os.fstat(descriptor)
        require_regular(found, place.asked)
        _require_single(found, place)
        try:
            workspace.before("append", place.path)
            write_all(descriptor, data)
            workspace.before("sync", place.path)
            os.fsync(descriptor)
        except BaseException:
            os.ftruncate(descriptor, found.st_size)
            raise
        return os.fstat(descriptor)
    finally:
        os.close(descriptor)


def _require_single(found: os.stat_result, place: Place) -> None:
    """Raise `ToolFailed` (`hard_linked`) for a file with other names: one of them may be outside, or be the name of a governing file."""
    if found.st_nlink > 1:
        message = (
            f"{shown(place.asked)} has {found.st_nlink} names (hard links), and all of them would change; "
            "write it with write_file, which changes this one only"
        )
        raise failed("hard_linked", message, path=place.asked)


def _require_utf8(data: bytes, path: str) -> None:
    try:
        data.decode()
    except UnicodeDecodeError as error:
        raise failed(
            "not_text", f"{shown(path)} ({len(data)} bytes) is not UTF-8 text; edit it with exec", path=path, size_bytes=len(data)
        ) from error


def _miscounted(path: str, data: bytes, old: bytes, expected: int, actual: int) -> Exception:
    lines: list[int] = []
    position = data.find(old)
    while position >= 0 and len(lines) < 10:
        lines.append(data.count(b"\n", 0, position) + 1)
        position = data.find(old, position + len(old))
    if actual == 0 and b"\n" in old and data.count(old.replace(b"\n", b"\r\n")):
        hint = "its lines end with CR LF: give old and new with them"
    elif actual == 0:
        hint = "read it again and copy the text exactly, with its spaces"
    else:
        hint = f"give more of the text around it, or expected_matches={actual}"
    message = f"{shown(path)} holds the text {actual} times, not {expected}; nothing was written; {hint}"
    return failed("unexpected_match_count", message, path=path, expected_matches=expected, actual_matches=actual, lines=lines)
