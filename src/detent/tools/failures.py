"""Errors of the workspace tools: every refusal and every operating system error becomes one of Detent's typed errors.

`ToolFailed` means that the call failed in a known way. `NotExecuted` means that nothing happened and the same call may succeed later (too many
open files, a busy lock). No `OSError` leaves a workspace tool.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from detent.core.errors import NotExecuted, ToolFailed, ToolRaised

if TYPE_CHECKING:
    from detent.ports import Cancellation

SHOWN_CHARS = 200

_KNOWN: dict[int, tuple[str, str]] = {
    errno.ENOENT: ("not_found", "does not exist; list_dir or find_files shows what is there"),
    errno.EISDIR: ("is_a_directory", "is a directory, not a file; use list_dir or find_files for it"),
    errno.ENOTDIR: ("not_a_directory", "is not a directory, or a part of the path is a file; stat_file shows what it is"),
    errno.EEXIST: ("already_exists", "exists already; choose another path, or change it with write_file or replace_in_file"),
    errno.ENOTEMPTY: ("not_empty", "is a directory that is not empty"),
    errno.EACCES: ("permission_denied", "may not be accessed by this process; ask a person to change its permissions, or use another path"),
    errno.EPERM: ("permission_denied", "may not be changed by this process; ask a person to change its permissions, or use another path"),
    errno.EROFS: ("read_only", "is on a read-only file system; use another path, or ask a person"),
    errno.ENOSPC: ("no_space", "could not be written: the disk is full; free some space, then repeat the call"),
    errno.EDQUOT: ("no_space", "could not be written: the disk quota is used up; free some space, then repeat the call"),
    errno.EFBIG: ("too_large", "would become larger than the file system or a process limit allows; split it"),
    errno.E2BIG: ("too_large", "is given more arguments or environment than the system allows; pass the data through stdin or a file"),
    errno.ENAMETOOLONG: ("name_too_long", "has a name that is too long for the file system; shorten it"),
    errno.ELOOP: ("symlink_loop", "goes through too many symbolic links, or became one while it was opened; use the path of the real file"),
    errno.ENXIO: ("not_a_regular_file", "is a device, pipe or socket; only regular files and directories can be used"),
    errno.ENODEV: ("not_a_regular_file", "is a device, pipe or socket; only regular files and directories can be used"),
    errno.ENOEXEC: ("not_executable", "is not a program that the system can start; start it through its interpreter"),
    errno.EXDEV: ("other_filesystem", "is on another file system than the place it should move to; write a new file there instead"),
    errno.EIO: ("io_error", "could not be read or written: the disk reports an error; nothing more can be done from here, tell a person"),
}
_PASSING: dict[int, str] = {
    errno.EMFILE: "too many files are open in this process",
    errno.ENFILE: "too many files are open on this machine",
    errno.ENOMEM: "there is not enough memory",
    errno.EAGAIN: "the system is short of resources",
    errno.EBUSY: "it is in use",
    errno.ETXTBSY: "it is a program that is running",
    errno.EINTR: "the system call was interrupted",
    errno.ESTALE: "the network file system lost it for the moment",
    errno.ETIMEDOUT: "the file system did not answer in time",
}


def shown(text: str) -> str:
    """Return `text` quoted for a message, cut to 200 characters."""
    return repr(text) if len(text) <= SHOWN_CHARS else f"{text[:SHOWN_CHARS]!r}... ({len(text)} characters)"


def failed(error_code: str, message: str, **details: Any) -> ToolFailed:
    """Return the error for a known failure. `details` become the observation's data."""
    return ToolFailed(message, error_code=error_code, details=details or None)


def refused_argument(message: str) -> ToolFailed:
    """Return the error for an invalid argument."""
    return failed("invalid_arguments", message)


def translated(error: OSError, path: str) -> ToolRaised:
    """Return the typed error for a system error about `path`."""
    number = error.errno or 0
    name = errno.errorcode.get(number, "unknown error")
    if number in _PASSING:
        message = f"{shown(path)} was not touched: {_PASSING[number]} ({name}); the same call may succeed later"
        return NotExecuted(message, error_code="busy", details={"path": path[:SHOWN_CHARS], "errno": name})
    code, says = _KNOWN.get(number, ("io_error", f"could not be used: {error.strerror or os.strerror(number)}"))
    return failed(code, f"{shown(path)} {says} ({name})", path=path[:SHOWN_CHARS], errno=name)


@contextmanager
def translating(path: str) -> Generator[None, None, None]:
    """Turn each `OSError` raised inside into the typed error that names `path`."""
    try:
        yield
    except OSError as error:
        raise translated(error, path) from error


def stop_if(cancelled: Cancellation | None, *, doing: str) -> None:
    """Raise `NotExecuted` if the call was cancelled or its deadline has passed. Call it only while nothing has happened yet."""
    if cancelled:
        raise NotExecuted(f"stopped while {doing} ({cancelled.why}); nothing was changed", error_code="cancelled")
