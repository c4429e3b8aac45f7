"""Changes files: preconditions, locks and atomic replacement.

A file is replaced in four steps: write a temporary file next to it (exclusive create), sync it, rename it over the target, and sync the directory. A
reader sees either the old or the new content, and any failure before the rename leaves the old one. The check and the rename happen under an exclusive
`flock` on a descriptor of the *directory*: it stays the same when the file is replaced, leaves no file behind, and is released when its holder dies. All
workspace tools of all processes take this lock; a program that does not can still write between check and rename. The temporary name is a function of
the target's name, so the next writer, which holds the lock, removes the file of a killed one. Permission bits are kept, and the owner if the system
allows it. A hard link of the old file keeps the old content.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import msgspec
from typing_extensions import TypedDict

from detent.core.errors import NotExecuted
from detent.tools.failures import failed, refused_argument, shown, stop_if, translated
from detent.tools.workspace.confine import READ_FLAGS, Place, Workspace, require_regular

if TYPE_CHECKING:
    from detent.ports import Cancellation

CHUNK_BYTES = 1_048_576
LOCK_POLL_S = 0.01


class Precondition(TypedDict, total=False):
    """The required state of a file before a change. Every given field is compared, and one mismatch refuses the change.

    The values are those that read_file returned: SHA-256 of the whole file in hex, time of change in milliseconds since 1970, size in bytes.
    """

    __pydantic_config__ = {"extra": "forbid"}  # type: ignore[misc]  # noqa: RUF012

    expected_hash: str | None
    expected_mtime_unix_ms: int | None
    expected_size_bytes: int | None


class Version(msgspec.Struct, frozen=True, kw_only=True):
    """A file under the lock. `found` is None if there is no file, `data` is None if it was not requested."""

    data: bytes | None = None
    found: Any = None


class Written(msgspec.Struct, frozen=True, kw_only=True):
    """A file after writing. `hash` and the other fields fit the next call's precondition."""

    path: str
    hash: str
    mtime_unix_ms: int
    size_bytes: int
    created: bool


def encoded(workspace: Workspace, content: str, path: str) -> bytes:
    """Return `content` as UTF-8. Raise `ToolFailed` if it is not valid Unicode or over the limit."""
    try:
        data = content.encode()
    except UnicodeEncodeError as error:
        raise refused_argument(
            f"content for {shown(path)} has half a surrogate pair at character {error.start}; send valid Unicode text"
        ) from error
    if len(data) > workspace.limits.edit_bytes:
        message = (
            f"content for {shown(path)} has {len(data)} bytes, more than {workspace.limits.edit_bytes}; write it in parts with append_file"
        )
        raise failed("too_large", message, path=path)
    return data


@contextmanager
def locked(workspace: Workspace, places: Sequence[Place], cancelled: Cancellation | None) -> Generator[None, None, None]:
    """Hold the locks of all directories of `places`. All processes take them in the same order.

    Raise `NotExecuted` (`busy`) if a lock is not free in time or the call was cancelled; then nothing was changed.
    """
    directories = {place.key[:2]: place for place in places}
    held: list[int] = []
    try:
        for key in sorted(directories):
            place = directories[key]
            workspace.before("lock", place.path)
            descriptor = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=place.directory)
            held.append(descriptor)
            _lock(descriptor, place, workspace.limits.lock_wait_s, cancelled)
        yield
    finally:
        for descriptor in reversed(held):
            with suppress(OSError):
                fcntl.flock(descriptor, fcntl.LOCK_UN)
            os.close(descriptor)


def _lock(descriptor: int, place: Place, wait_s: float, cancelled: Cancellation | None) -> None:
    """Take the lock with a descriptor of its own. A lock belongs to its open file, so threads of one process exclude each other too."""
    give_up = time.monotonic() + wait_s
    while True:
        stop_if(cancelled, doing=f"waiting to change {shown(place.asked)}")
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= give_up:
                message = f"{shown(place.asked)} was not changed: another writer held its directory for {wait_s:g} s; the same call may succeed later"
                raise NotExecuted(message, error_code="busy", details={"path": place.asked}) from None
            time.sleep(LOCK_POLL_S)  # polls the lock: a blocking flock cannot be given up at a deadline
        except OSError as error:
            if error.errno in (errno.EBADF, errno.ENOTSUP, errno.ENOSYS, errno.EINVAL, errno.ENOLCK):
                message = (
                    f"{shown(place.asked)} was not changed: its file system cannot lock directories; use a workspace on a local file system"
                )
                raise failed("lock_unsupported", message, path=place.asked) from error
            raise
        else:
            return


def current(workspace: Workspace, place: Place, *, need_data: bool = True) -> Version:
    """Return the file's present version, with its content if `need_data`. Raise `ToolFailed` for other kinds, and then also over the limit."""
    try:
        require_regular(os.stat(place.name, dir_fd=place.directory, follow_symlinks=False), place.asked)
        descriptor = os.open(place.name, READ_FLAGS, dir_fd=place.directory)
    except FileNotFoundError:
        return Version()
    try:
        found = os.fstat(descriptor)
        require_regular(found, place.asked)
        if not need_data:
            return Version(found=found)
        if found.st_size > workspace.limits.edit_bytes:
            limit = workspace.limits.edit_bytes
            raise failed(
                "too_large", f"{shown(place.asked)} has {found.st_size} bytes, more than {limit}; edit it with exec", path=place.asked
            )
        return Version(data=b"".join(_chunks(descriptor)), found=found)
    finally:
        os.close(descriptor)


def _chunks(descriptor: int) -> Iterator[bytes]:
    while chunk := os.read(descriptor, CHUNK_BYTES):
        yield chunk


def checked_precondition(precondition: Precondition | None) -> dict[str, Any]:
    """Return the given fields. Raise `ToolFailed` for unknown fields, and for an empty precondition."""
    if precondition is None:
        return {}
    unknown = sorted(set(precondition) - set(Precondition.__annotations__))
    if unknown:
        raise refused_argument(f"precondition has unknown fields {unknown}; known: {', '.join(Precondition.__annotations__)}")
    given = {name: value for name, value in precondition.items() if value is not None}
    if not given:
        raise refused_argument(
            f"precondition is empty and would protect nothing; give one or more of {', '.join(Precondition.__annotations__)}, or leave it out"
        )
    return given


def require(place: Place, given: dict[str, Any]) -> None:
    """Compare the file with a checked precondition. Raise `ToolFailed` (`precondition_failed`) with path, expected and actual."""
    if not given:
        return
    actual = _identity(place)
    expected = {name.removeprefix("expected_"): value for name, value in given.items()}
    same = actual["exists"] and all(
        value.lower() == actual[name] if isinstance(value, str) else value == actual[name] for name, value in expected.items()
    )
    if not same:
        message = f"{shown(place.asked)} is not the version that the call expects; nothing was written. Read it again and decide anew"
        raise failed("precondition_failed", message, path=place.asked, expected=expected, actual=actual)


def _identity(place: Place) -> dict[str, Any]:
    try:
        require_regular(os.stat(place.name, dir_fd=place.directory, follow_symlinks=False), place.asked)
        descriptor = os.open(place.name, READ_FLAGS, dir_fd=place.directory)
    except FileNotFoundError:
        return {"exists": False}
    try:
        found, digest = os.fstat(descriptor), hashlib.sha256()
        require_regular(found, place.asked)
        for chunk in _chunks(descriptor):
            digest.update(chunk)
    finally:
        os.close(descriptor)
    return {"exists": True, "hash": digest.hexdigest(), "mtime_unix_ms": found.st_mtime_ns // 1_000_000, "size_bytes": found.st_size}


def temporary(place: Place, suffix: str = "tmp") -> str:
    """Return the name of the temporary file for a target. It has a fixed length and is the same for the same target."""
    return f".detent-{hashlib.sha256(os.fsencode(place.name)).hexdigest()[:24]}.{suffix}"


def stage(workspace: Workspace, place: Place, data: bytes, old: Version) -> str:
    """Write `data` into the target's temporary file, synced and with the old file's permissions. Return its name. Needs the lock."""
    name = temporary(place)
    with suppress(FileNotFoundError):
        os.unlink(name, dir_fd=place.directory)
    mode = 0o666 if old.found is None else 0o600
    descriptor = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode, dir_fd=place.directory)
    try:
        try:
            workspace.before("stage", place.path)
            write_all(descriptor, data)
            if old.found is not None:
                _keep_owner_and_mode(descriptor, old.found)
            workspace.before("sync", place.path)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except BaseException:
        discard(place, name)
        raise
    return name


def _keep_owner_and_mode(descriptor: int, found: os.stat_result) -> None:
    mine = os.fstat(descriptor)
    if (mine.st_uid, mine.st_gid) != (found.st_uid, found.st_gid):
        with suppress(PermissionError):
            os.fchown(descriptor, found.st_uid, found.st_gid)
    os.fchmod(descriptor, found.st_mode & 0o777)


def write_all(descriptor: int, data: bytes) -> None:
    """Write all of `data`, continuing after short writes."""
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def discard(place: Place, name: str) -> None:
    """Remove a temporary file, if it exists."""
    with suppress(OSError):
        os.unlink(name, dir_fd=place.directory)


def replace(workspace: Workspace, place: Place, data: bytes, old: Version, cancelled: Cancellation | None = None) -> Written:
    """Replace the old version with `data`, atomically. Needs the lock. A new file never replaces one that appeared meanwhile."""
    name = stage(workspace, place, data, old)
    try:
        stop_if(cancelled, doing=f"writing {shown(place.asked)}")
        result = _written(place, name, data, created=old.found is None)
        workspace.before("rename", place.path)
        put(place, name, new=old.found is None)
    except BaseException:
        discard(place, name)
        raise
    sync_directories(workspace, [place])
    return result


def put(place: Place, name: str, *, new: bool) -> None:
    """Rename the temporary file to the target. With `new`, raise `FileExistsError` instead of replacing a file."""
    if new:
        try:
            os.link(name, place.name, src_dir_fd=place.directory, dst_dir_fd=place.directory, follow_symlinks=False)
        except FileExistsError:
            raise
        except OSError:
            # A file system without hard links: checking first, under the lock, is the best that is possible.
            if _is_there(place):
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST)) from None
        else:
            discard(place, name)
            return
    os.rename(name, place.name, src_dir_fd=place.directory, dst_dir_fd=place.directory)


def _is_there(place: Place) -> bool:
    try:
        os.stat(place.name, dir_fd=place.directory, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


def _written(place: Place, name: str, data: bytes, *, created: bool) -> Written:
    found = os.stat(name, dir_fd=place.directory, follow_symlinks=False)
    return written(place, data, found, created=created)


def written(place: Place, data: bytes, found: os.stat_result, *, created: bool) -> Written:
    """Describe the new version."""
    return Written(
        path=place.asked,
        hash=hashlib.sha256(data).hexdigest(),
        mtime_unix_ms=found.st_mtime_ns // 1_000_000,
        size_bytes=len(data),
        created=created,
    )


def sync_directories(workspace: Workspace, places: Sequence[Place]) -> None:
    """Make renames durable. Raise `ToolFailed` (`not_durable`) if the system cannot guarantee it; the change is then in place."""
    synced: set[tuple[int, int]] = set()
    for place in places:
        for directory in (place.directory, *(parent for parent, _ in place.made)):
            found = os.fstat(directory)
            if (found.st_dev, found.st_ino) in synced:
                continue
            synced.add((found.st_dev, found.st_ino))
            try:
                workspace.before("sync_directory", place.path)
                os.fsync(directory)
            except OSError as error:
                if error.errno in (errno.EINVAL, errno.ENOTSUP):
                    continue
                says = translated(error, place.asked)
                message = f"{shown(place.asked)} was changed, but may be lost if the power fails now: {says}"
                raise failed("not_durable", message, path=place.asked) from error
