"""The format of one run's log file, and its reader.

    ["detent",1,{...}]                     header: format version, listing entry of the first append
    {...}                                  records, one per line
    ["commit",2,{...}]                     end of an append: number of records so far, differences to the header's listing entry
    ["commit",5,["signal id"],{...}]       the same, for an append that consumed signals

An append is one write of its records and their commit line. A record is a JSON object, so no record looks like a commit line. Anything after the
last complete commit line was never committed: a process or machine died while writing it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import msgspec

from detent.core.errors import CorruptLog, NewerVersion
from detent.core.records import RunHead

FORMAT_VERSION = 1
COMMIT = b'["commit",'

_encode = msgspec.json.Encoder().encode
_FIELDS = tuple(name for name in RunHead.__struct_fields__ if name not in ("records", "digest"))
_CONSUMING = re.compile(rb'^\["commit",\d+,(\[.*?\]),\{.*\}\]$', re.MULTILINE)
_TAIL_BYTES = 4096


class Tail(msgspec.Struct, frozen=True):
    """The end of a log: number of records, offset after the last commit line, listing entries of the header and of the last commit."""

    seq: int
    end: int
    base: RunHead
    head: RunHead


def header_line(head: RunHead) -> bytes:
    """Return the first line of a log."""
    return b'["detent",%d,%b]\n' % (
        FORMAT_VERSION,
        _encode(msgspec.structs.replace(head, digest="")),
    )  # without the fields that later appends change


def commit_line(seq: int, base: RunHead, head: RunHead, consumed: Sequence[str] = ()) -> bytes:
    """Return the line that ends an append."""
    changes: dict[str, Any] = {name: value for name in _FIELDS if (value := getattr(head, name)) != getattr(base, name)}
    if head.records != seq:
        changes["records"] = head.records
    if consumed:
        return b'["commit",%d,%b,%b]\n' % (seq, _encode(list(consumed)), _encode(changes))
    return b'["commit",%d,%b]\n' % (seq, _encode(changes))


def read_tail(fd: int, size: int, run_id: str) -> Tail | None:
    """Find the end of a log without reading all of it; None if nothing was ever committed."""
    length = min(size, _TAIL_BYTES)
    while length:
        data = os.pread(fd, length, size - length)
        found = last_commit(data)
        if found is not None:
            start, end = found
            base = read_header(fd, size, run_id)
            seq, head = _parse_commit(data[start:end], base, run_id)
            return Tail(seq, size - length + end, base, head)
        if length == size:
            return None
        length = min(size, length * 8)
    return None


def last_commit(data: bytes) -> tuple[int, int] | None:
    """Return start and end of the last complete commit line, including its newline."""
    start = len(data)
    while (start := data.rfind(b"\n" + COMMIT, 0, start)) >= 0:
        end = data.find(b"\n", start + 1)
        if end >= 0:
            return start + 1, end + 1
    return None


def read_header(fd: int, size: int, run_id: str) -> RunHead:
    """Return the listing entry in the first line; raise `NewerVersion`, `CorruptLog`."""
    length = _TAIL_BYTES
    data = os.pread(fd, length, 0)
    while b"\n" not in data and length < size:
        length *= 8
        data = os.pread(fd, length, 0)
    return parse_header(data.partition(b"\n")[0], run_id)


def parse_header(line: bytes, run_id: str) -> RunHead:
    """Return the listing entry of a header line; raise `NewerVersion`, `CorruptLog`."""
    try:
        word, version, entry = msgspec.json.decode(line, type=tuple[str, int, msgspec.Raw])
        if word != "detent":
            raise ValueError(f"it begins with {word!r}")
        if version > FORMAT_VERSION:
            raise NewerVersion(
                f"the log of run {run_id!r} was written by a newer Detent (format {version}, this one knows {FORMAT_VERSION}); install that"
            )
        return msgspec.json.decode(entry, type=RunHead)
    except ValueError as error:
        raise CorruptLog(run_id, 0, f"its first line is not a log header ({error})") from error


def _parse_commit(line: bytes, base: RunHead, run_id: str) -> tuple[int, RunHead]:
    try:
        parts = msgspec.json.decode(line, type=list[Any])
        seq, changes = parts[1], parts[-1]
        entry = msgspec.to_builtins(base)
        entry.update({"records": seq, **changes})
        return seq, msgspec.convert(entry, RunHead)
    except (ValueError, TypeError, IndexError) as error:
        raise CorruptLog(run_id, 0, f"its last commit line {line[:80]!r} cannot be read ({error})") from error


def parse(data: bytes, run_id: str) -> tuple[list[bytes], int]:
    """Return the committed record lines and the offset where they end. Raise `CorruptLog` if lines and commits do not agree."""
    found = last_commit(data)
    start, end = found or (0, 0)
    torn = data[end:].split(b"\n")[:-1]
    if any(line[:1] == b"[" for line in (torn if end else torn[1:])):
        raise CorruptLog(
            run_id,
            0 if found is None else len(parse(data[:end], run_id)[0]),
            "a line after its last commit is neither a record nor a commit",
        )
    if found is None:
        return [], 0
    seq, _ = _parse_commit(data[start:end], parse_header(data[: data.index(b"\n")], run_id), run_id)
    lines = data[: end - 1].split(b"\n")
    records = [line for line in lines if line[:1] == b"{"]
    others = len(lines) - len(records)
    if len(records) != seq or others != 1 + data.count(b"\n" + COMMIT, 0, end):
        raise _disagreement(lines, run_id)
    return records, end


def _disagreement(lines: list[bytes], run_id: str) -> CorruptLog:
    """Return the error for the first place where lines and commit lines disagree."""
    count = 0
    for number, line in enumerate(lines[1:], start=2):
        if line[:1] == b"{":
            count += 1
            continue
        try:
            said = msgspec.json.decode(line, type=list[Any])[1] if line.startswith(COMMIT) else None
        except (ValueError, IndexError):
            said = None
        if said is None:
            return CorruptLog(run_id, count + 1, f"line {number} of its file is neither a record nor a commit")
        if said != count:
            return CorruptLog(run_id, count, f"the commit in line {number} of its file counts {said} records, {count} are there")
    return CorruptLog(run_id, count, "its lines and its commits do not agree")


def consumed_ids(data: bytes) -> set[str]:
    """Return the ids of all signals consumed by the appends in `data`."""
    found: set[str] = set()
    for match in _CONSUMING.finditer(data):
        with suppress(ValueError):  # damaged: `verify` names consumed signals that are still there
            found.update(msgspec.json.decode(match[1], type=list[str]))
    return found
