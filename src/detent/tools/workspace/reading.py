"""Reads files: read_file and stat_file.

A file is streamed once from one descriptor: hash, line count, UTF-8 check and the wanted lines come from the same bytes, those that the file had when
it was opened (bytes appended meanwhile are not read). Memory use is one chunk and the caller's `max_bytes`, for any file size. If a file is too large
to be edited, reading stops after the blocks with the wanted lines: the first line of 20 GB costs one block. The hash and the number of lines are then
not known.
"""

from __future__ import annotations

import codecs
import hashlib
import os
import stat
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from detent.core.errors import ToolFailed
from detent.tools.failures import failed, refused_argument, shown, stop_if
from detent.tools.workspace.confine import Workspace

if TYPE_CHECKING:
    from detent.ports import Cancellation

CHUNK_BYTES = 1_048_576
BLOCK_BYTES = 65_536

Kind = Literal["dir", "file", "symlink", "other"]


class FileText(msgspec.Struct, frozen=True, kw_only=True):
    """Text of a file, and the identity of the version that was read: `hash` is the SHA-256 of the whole file in hex.

    `start_line` and `end_line` are the lines (1-based, inclusive) in `content`. If `truncated`, the first or last may be incomplete. Both are 0 if
    there are none. `truncated` is true only if the chosen lines are longer than the limit. `hash` and `total_lines` are None if the file is too
    large to be edited and was not read to its end; so are the line numbers of its `tail`.
    """

    path: str
    content: str
    hash: str | None
    mtime_unix_ms: int
    size_bytes: int
    total_lines: int | None
    start_line: int | None
    end_line: int | None
    truncated: bool

    @property
    def lines(self) -> int:
        """The number of lines in `content`."""
        return _lines(self.content.encode())


class FileStat(msgspec.Struct, frozen=True, kw_only=True):
    """The facts about one directory entry; links are not followed. A missing entry has `exists` false and the rest None."""

    path: str
    exists: bool
    kind: Kind | None = None
    size_bytes: int | None = None
    modified_unix_ms: int | None = None


def read_file(
    workspace: Workspace,
    path: str,
    *,
    start: int | None = None,
    end: int | None = None,
    head: int | None = None,
    tail: int | None = None,
    max_bytes: int | None = None,
    cancelled: Cancellation | None = None,
) -> FileText:
    """Return the text of a UTF-8 file: all of it, lines `start` to `end` (1-based, inclusive), the first `head` or the last `tail` lines.

    At most `max_bytes` bytes of text are returned (default and maximum: the workspace's limit): the beginning of the chosen lines, with `tail`
    their end. Lines end with a line feed and are returned unchanged. A range past the end is empty, not an error. Raise `ToolFailed` with
    `not_found`, `is_a_directory`, `not_a_regular_file`, `not_text`, `outside_workspace`, `invalid_arguments`, ...
    """
    cap = _cap(max_bytes, workspace.limits.read_bytes)
    wanted = _selection(start, end, head, tail, cap)
    with workspace.reading(path) as descriptor:
        found = os.fstat(descriptor)
        large = found.st_size > workspace.limits.edit_bytes
        if large and isinstance(wanted, _Tail):
            data, truncated = _end(descriptor, found.st_size, wanted, path, cancelled)
            return _text(path, data, found, truncated=truncated)
        digest, decoder, left = hashlib.sha256(), codecs.getincrementaldecoder("utf-8")(), found.st_size
        while left > 0 and (chunk := os.read(descriptor, min(BLOCK_BYTES if large else CHUNK_BYTES, left))):
            stop_if(cancelled, doing=f"reading {shown(path)}")
            left -= len(chunk)
            if not large:
                digest.update(chunk)
            require_text(decoder, chunk, path, found.st_size)
            wanted.feed(chunk)
            if large and wanted.complete:
                data, first, truncated = wanted.result()
                return _text(path, data, found, first=first, truncated=truncated)
        require_text(decoder, b"", path, found.st_size, final=True)
    data, first, truncated = wanted.result()
    whole = {"hash": None if large else digest.hexdigest(), "size_bytes": found.st_size - left, "total_lines": wanted.total_lines}
    return _text(path, data, found, first=first, truncated=truncated, **whole)


def _text(path: str, data: bytes, found: os.stat_result, *, truncated: bool, first: int | None = None, **known: Any) -> FileText:
    """Return the result. `known` has the known facts about the whole file."""
    numbers = (0, 0) if not data else (None, None) if first is None else (first, first + _lines(data) - 1)
    told: dict[str, Any] = {"hash": None, "size_bytes": found.st_size, "total_lines": None, **known}
    return FileText(
        path=path,
        content=data.decode(),
        mtime_unix_ms=found.st_mtime_ns // 1_000_000,
        start_line=numbers[0],
        end_line=numbers[1],
        truncated=truncated,
        **told,
    )


def _end(descriptor: int, size: int, wanted: _Tail, path: str, cancelled: Cancellation | None) -> tuple[bytes, bool]:
    """Return the last lines of a large file, read backwards block by block, and whether the limit cut them."""
    data = b""
    while len(data) <= wanted.cap and data.count(b"\n", 0, -1) < wanted.count:
        stop_if(cancelled, doing=f"reading {shown(path)}")
        begin = max(0, size - len(data) - BLOCK_BYTES)
        block = os.pread(descriptor, size - len(data) - begin, begin)
        if not block:
            break  # it became shorter
        data = block + data
    wanted.feed(data)
    wanted.size = size
    chosen, _, truncated = wanted.result()
    require_text(codecs.getincrementaldecoder("utf-8")(), chosen, path, size, final=True)
    return chosen, truncated


def stat_file(workspace: Workspace, path: str) -> FileStat:
    """Return kind, size in bytes and time of change of an entry. A missing entry is an answer (`exists` false), not an error."""
    try:
        with workspace.place(path, follow=False) as place:
            found = os.stat(place.name, dir_fd=place.directory, follow_symlinks=False) if place.name else os.fstat(place.directory)
    except ToolFailed as error:
        if error.error_code in ("not_found", "not_a_directory"):
            return FileStat(path=path, exists=False)
        raise
    return FileStat(path=path, exists=True, kind=kind_of(found), size_bytes=found.st_size, modified_unix_ms=found.st_mtime_ns // 1_000_000)


def kind_of(found: os.stat_result) -> Kind:
    """Return which kind of entry `found` describes."""
    mode = found.st_mode
    if stat.S_ISDIR(mode):
        return "dir"
    return "file" if stat.S_ISREG(mode) else "symlink" if stat.S_ISLNK(mode) else "other"


def require_text(decoder: codecs.IncrementalDecoder, chunk: bytes, path: str, size_bytes: int, *, final: bool = False) -> None:
    """Raise `ToolFailed` (`not_text`) if the bytes so far are not UTF-8."""
    try:
        decoder.decode(chunk, final)
    except UnicodeDecodeError as error:
        message = (
            f"{shown(path)} ({size_bytes} bytes) is not UTF-8 text; stat_file shows its size, exec can run a program that understands it"
        )
        raise failed("not_text", message, path=path, size_bytes=size_bytes) from error


def _cap(asked: int | None, ceiling: int) -> int:
    if asked is None:
        return ceiling
    if not 1 <= asked <= ceiling:
        raise refused_argument(f"max_bytes is {asked}; it must be from 1 to {ceiling}")
    return asked


def _selection(start: int | None, end: int | None, head: int | None, tail: int | None, cap: int) -> _Range | _Tail:
    ways = [start is not None or end is not None, head is not None, tail is not None]
    if sum(ways) > 1:
        raise refused_argument("give only one of: start and end, head, tail")
    if head is not None and head < 1:
        raise refused_argument(f"head is {head}; it must be at least 1")
    if start is not None and start < 1:
        raise refused_argument(f"start is {start}; lines are counted from 1")
    if end is not None and end < (start or 1):
        raise refused_argument(f"end is {end}, before start ({start or 1}); end is the last wanted line, and lines are counted from 1")
    if tail is not None:
        if tail < 1:
            raise refused_argument(f"tail is {tail}; it must be at least 1")
        return _Tail(tail, cap)
    return _Range(start or 1, head if head is not None else end, cap)


def _lines(data: bytes | bytearray) -> int:
    """Return the number of lines in `data`. A last line without a line feed counts."""
    return data.count(b"\n") + (not data.endswith(b"\n")) if data else 0


class _Range:
    """Collects lines `first` to `last` (None: to the end) from a stream of chunks, at most `cap` bytes of them."""

    def __init__(self, first: int, last: int | None, cap: int) -> None:
        self.first, self.last, self.cap = first, last, cap
        self.kept = bytearray()
        self.newlines = 0
        self.open_line = False

    @property
    def total_lines(self) -> int:
        return self.newlines + self.open_line

    @property
    def complete(self) -> bool:
        """Whether the rest cannot belong to the wanted lines, or the cap is exceeded."""
        return (self.last is not None and self.newlines >= self.last) or len(self.kept) > self.cap

    def feed(self, chunk: bytes) -> None:
        """Add the next bytes of the file."""
        before, count = self.newlines, chunk.count(b"\n")
        self.newlines += count
        self.open_line = not chunk.endswith(b"\n")
        if before + count + 1 < self.first or (self.last is not None and before >= self.last) or len(self.kept) > self.cap:
            return
        begin = _after_newline(chunk, self.first - 1 - before)
        stop = len(chunk) if self.last is None or before + count < self.last else _after_newline(chunk, self.last - before)
        self.kept += chunk[begin : min(stop, begin + self.cap + 1 - len(self.kept))]

    def result(self) -> tuple[bytes, int, bool]:
        """Return the bytes, the number of their first line, and whether the cap cut them."""
        truncated = len(self.kept) > self.cap
        return (_whole_characters(bytes(self.kept[: self.cap])) if truncated else bytes(self.kept)), self.first, truncated


class _Tail:
    """Collects the last `count` lines from a stream of chunks, at most the last `cap` bytes of them."""

    complete = False

    def __init__(self, count: int, cap: int) -> None:
        self.count, self.cap = count, cap
        self.kept = bytearray()
        self.size = 0
        self.newlines = 0

    @property
    def total_lines(self) -> int:
        return self.newlines + (self.size > 0 and not self.kept.endswith(b"\n"))

    def feed(self, chunk: bytes) -> None:
        """Add the next bytes of the file. One byte more than the cap is kept, to see where a line begins."""
        self.newlines += chunk.count(b"\n")
        self.size += len(chunk)
        self.kept += chunk
        del self.kept[: max(0, len(self.kept) - self.cap - 1)]

    def result(self) -> tuple[bytes, int, bool]:
        """Return the bytes, the number of their first line, and whether the cap cut them."""
        data = bytes(self.kept)
        begin, position = 0, len(data) - data.endswith(b"\n")
        for _ in range(self.count):
            position = data.rfind(b"\n", 0, max(position, 0))
            if position < 0:
                break
        else:
            begin = position + 1
        truncated = begin == 0 and self.size > self.cap
        if truncated:
            begin = len(data) - self.cap
            while begin < len(data) and data[begin] & 0xC0 == 0x80:
                begin += 1
        chosen = data[begin:]
        return chosen, self.total_lines - _lines(chosen) + 1, truncated


def _after_newline(chunk: bytes, count: int) -> int:
    """Return the offset after the `count`-th line feed of `chunk`. It is 0 for none, and the length of `chunk` if it has fewer."""
    position = 0
    for _ in range(count):
        position = chunk.find(b"\n", position) + 1
        if not position:
            return len(chunk)
    return position


def _whole_characters(data: bytes) -> bytes:
    """Return `data` without an incomplete character at its end."""
    return codecs.getincrementaldecoder("utf-8")().decode(data).encode()
