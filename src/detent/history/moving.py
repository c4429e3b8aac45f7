"""Moves runs from store to store, into archives and back, byte for byte.

A run moves as its stored lines, with its artifacts, its waiting signals and its listing entry. A fork takes along what it refers to in its ancestors.
Before a run is removed, its forks in this store get what they refer to in it. The digest chain is checked before and after, and the lines that
arrived are compared with those that left. Nothing is overwritten: a target that holds another log under that id is refused, and a target that holds
the beginning of this log is continued. So an interrupted move is simply repeated.

An unfinished run can be advanced wherever it is, and two copies would each have their effects. So it is moved, not copied.

An archive is one gzip file of JSON lines: a manifest, then the record lines, then a line for each artifact in base64. Only its owner can read it
(mode 0600). It leaves out what was hidden from the log: the values, and the key of their placeholders. Reading an archive is bounded, whatever its
manifest says.
"""

from __future__ import annotations

import base64
import contextlib
import gzip
import os
import stat
import zlib
from collections.abc import AsyncGenerator, Iterable, Sequence
from datetime import datetime
from hashlib import sha256
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import quote, unquote

import msgspec

from detent.core.codec import read_log
from detent.core.errors import ConfigError, CorruptLog, DetentError, NewerVersion, NotAllowedNow, RunBusy, RunErased, RunNotFound
from detent.core.records import RunHead
from detent.core.state import TERMINAL
from detent.history.families import Known, belongs_above, together
from detent.history.later_runs import hand_on
from detent.history.listed import Said
from detent.history.trees import is_below
from detent.ports import EventStore, RunQuery, Signal, give_back
from detent.ports.private_files import private_file
from detent.running import lineage
from detent.running.artifacts import hidden_in, read_whole, refuse_damaged
from detent.running.hiding import KEY_BLOB

ARCHIVE_VERSION = 1
SUFFIX = ".jsonl.gz"
OF_ONE_RUN = (NotAllowedNow, RunBusy, RunNotFound, CorruptLog, NewerVersion)
"""Errors that keep one run from being moved while others still can be."""

MOST_BYTES = 1 << 30
"""The most bytes that an archive may unpack to, unless the reader gives another number."""
MOST_TIMES, UNSUSPECTED = 200, 1 << 26
"""The most times its own size that a file may unpack to, and a number of bytes that is always allowed."""
_PIECE = 1 << 20

replace = msgspec.structs.replace


class Moved(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome for one run: it now has `records` and `blobs` there, of which `added` records are new. `digest` ends the log.

    `missing`: the number of hidden values that the records have placeholders for and that are not there.
    """

    run_id: str
    records: int
    added: int
    blobs: int
    digest: str
    bytes: int = 0
    missing: int = 0
    removed: bool = False
    place: str = ""
    children: int = 0
    """How many runs below it went along."""


class Held(msgspec.Struct, frozen=True, kw_only=True):
    """A whole run in memory, with all its parts. `consumed` has the ids of signals that its log has picked up."""

    head: RunHead
    lines: tuple[bytes, ...]
    blobs: dict[str, bytes]
    signals: tuple[Signal, ...] = ()
    consumed: tuple[str, ...] = ()
    digest: str = ""

    @property
    def run_id(self) -> str:
        """The id of the run."""
        return self.head.run_id


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """The first line of an archive. `records_sha256` is over the record lines, each with its newline; `blobs` maps keys to (bytes, sha256)."""

    detent_archive: int
    head: RunHead
    records: int
    digest: str
    records_sha256: str
    blobs: dict[str, tuple[int, str]]
    signals: tuple[Signal, ...] = ()


# Reading and writing one run ------------------------------------------------------------------------------------------------------------


def checked(run_id: str, lines: Sequence[bytes], said: Said | None = None) -> tuple[str, tuple[str, ...]]:
    """Check every digest. Return the last one and the ids of the signals that the log picked up. `said` gets the records. Raise `CorruptLog`,
    `NewerVersion`.
    """
    digest, consumed = "", list[str]()
    for record in read_log(run_id, lines):
        digest = record.digest
        if said is not None:
            said.hear(record)
        signal: str = getattr(record.event, "signal", "")
        if signal:
            consumed.append(signal)
    return digest, tuple(consumed)


async def take(store: EventStore, run_id: str) -> Held:
    """Return the run of a store, checked; a fork comes with the parts it uses of its ancestors. Raise `RunNotFound`, `CorruptLog`, `NewerVersion`."""
    head, lines = await store.head(run_id), await read_whole(store, run_id)
    if head is None or not lines:
        raise RunNotFound(run_id, store.url)
    digest, consumed = checked(run_id, lines)
    await refuse_damaged(store, run_id, lines)
    blobs: dict[str, bytes] = {}
    for key in await store.list_blobs(run_id):
        data = await store.get_blob(run_id, key) if key != lineage.LEAVING else None
        if data is not None:
            blobs[key] = data
    with contextlib.suppress(RunErased):  # of an ancestor: there is nothing left to take along
        blobs |= await lineage.carried(store, run_id, lines, finished=head.status in TERMINAL)
    signals = (await store.signals([run_id])).get(run_id, [])
    return Held(head=head, lines=tuple(lines), blobs=blobs, signals=tuple(signals), consumed=consumed, digest=digest)


async def put(store: EventStore, held: Held, *, claim: int) -> Moved:
    """Write a claimed run, or its missing parts, into a store, and check what has arrived.

    Raise `NotAllowedNow` if the store holds another log under this id; nothing was changed then.
    """
    run_id = held.run_id
    there = await store.read(run_id)
    shared = min(len(there), len(held.lines))
    if tuple(there[:shared]) != held.lines[:shared]:
        at = next(i for i, (a, b) in enumerate(zip(there, held.lines, strict=False), 1) if a != b)
        raise NotAllowedNow(
            run_id,
            f"{store.url} holds another run under the id {run_id!r}: they differ from record {at}. Nothing was changed there; "
            "delete that run first, or leave this one in its store",
            reason_code="another_log",
        )
    blobs = await _put_blobs(store, held)
    if len(there) < len(held.lines):  # in one append: nobody must be able to resume half a log
        missing = held.lines[len(there) :]
        head = replace(held.head, digest=held.digest)
        await store.append(run_id, len(there), missing, head=head, durable=True, consumed=held.consumed, claim=claim)
    known = set(held.consumed)
    for signal in held.signals:
        if signal.id not in known:
            await store.post(run_id, signal)
    arrived = await store.read(run_id)
    if tuple(arrived[: len(held.lines)]) != held.lines:
        raise CorruptLog(run_id, len(arrived), f"{store.url} does not return what was written to it; check the store (`detent doctor`)")
    digest, _ = checked(run_id, arrived)
    await refuse_damaged(store, run_id, arrived)
    missing = await _missing(store, run_id, arrived)
    added = max(0, len(held.lines) - len(there))
    return Moved(run_id=run_id, records=len(arrived), added=added, blobs=blobs, digest=digest, missing=missing, place=store.url)


async def _missing(store: EventStore, run_id: str, lines: Sequence[bytes]) -> int:
    """Return how many of the hidden values that the records name are neither with the run nor with an ancestor."""
    named = hidden_in(lines)
    if not named:
        return 0
    with contextlib.suppress(RunErased):
        above = await lineage.segments(store, run_id, lines)
        for one in (run_id, *(one.run_id for one in above)):
            named -= set(await store.list_blobs(one))
    return len(named)


async def _put_blobs(store: EventStore, held: Held) -> int:
    """Write what is missing, before the records that name it. Return how many of them there are."""
    for key, data in held.blobs.items():
        try:
            there = await store.get_blob(held.run_id, key)
        except CorruptLog:  # it is repaired
            there = None
        if there != data:
            await store.put_blob(held.run_id, key, data)
    return len(held.blobs)


@contextlib.asynccontextmanager
async def _claimed(run_id: str, *stores: EventStore) -> AsyncGenerator[int]:
    """Hold the run in each store. Raise `RunBusy` while somebody advances it. Yields the number of the last claim."""
    claim = 0
    async with contextlib.AsyncExitStack() as stack:
        for store in stores:
            claim = await store.claim(run_id)
            stack.push_async_callback(give_back, store, run_id)
        yield claim


# From store to store --------------------------------------------------------------------------------------------------------------------


async def copy(source: EventStore, target: EventStore, run_id: str, *, move: bool = False) -> Moved:
    """Copy a run into another store. With `move`, remove it from the first once the other has been checked.

    Raise `NotAllowedNow` for an unfinished run without `move`, `RunBusy` while somebody advances it, `RunNotFound`, `CorruptLog`.
    """
    if source is target or (source.url == target.url and source.url != "ram:"):
        raise ConfigError(f"{source.url} cannot be copied to itself; give another store")
    async with together(source, run_id, "copied", lambda one: _claimed(one, source, target)) as claims:
        for one in claims if not move else ():
            if (head := await source.head(one)) is not None and head.status not in TERMINAL:
                raise NotAllowedNow(
                    one,
                    f"run {one!r} is {head.status}: a copy could be advanced too, and both would have their effects. "
                    "Move it (`detent copy --move`), or finish or cancel it first",
                    reason_code="not_finished",
                )
        moved = [await put(target, await take(source, one), claim=claims[one]) for one in reversed(claims)]
        for one in reversed(claims) if move else ():  # an interrupted move is repeated: the parent is removed last
            await hand_on(source, one)
            await lineage.remove(source, one)
        return replace(moved[-1], removed=move, children=len(moved) - 1)


# Archives ---------------------------------------------------------------------------------------------------------------------------------


def archive_path(directory: Path, run_id: str) -> Path:
    """Return the file for the archive of a run."""
    return directory / f"{quote(run_id, safe='')}{SUFFIX}"


async def archive(store: EventStore, directory: Path, run_id: str) -> Moved:
    """Write a finished run into an archive in `directory`, check the file, and remove the run and its hidden values from the store.

    An existing archive is kept if it holds this log, and replaced if it holds the beginning of this log. Raise `NotAllowedNow` for an unfinished run,
    or if the archive holds another log; `RunBusy`, `RunNotFound`, `CorruptLog`.
    """
    async with together(store, run_id, "archived", lambda one: _claimed(one, store)) as claims:
        for one in claims:
            if (head := await store.head(one)) is not None and head.status not in TERMINAL:
                raise NotAllowedNow(one, f"run {one!r} is {head.status}; only a finished run is archived", reason_code="not_finished")
        moved = [await _archived(store, directory, one) for one in reversed(claims)]
        for one in reversed(claims):
            await hand_on(store, one)
            await lineage.remove(store, one)
    return replace(moved[-1], children=len(moved) - 1)


async def _archived(store: EventStore, directory: Path, run_id: str) -> Moved:
    """Write one run into an archive, and check the file."""
    held, path = await take(store, run_id), archive_path(directory, run_id)
    if path.exists():
        _check_beginning(path, held)
    open_part = without_hidden(held)
    write_archive(path, open_part)
    if read_archive(path, most_bytes=None) != open_part:
        raise CorruptLog(run_id, 0, f"{str(path)!r} does not return what was written to it; the run was not removed")
    return Moved(
        run_id=run_id,
        records=len(held.lines),
        added=len(held.lines),
        blobs=len(open_part.blobs),
        missing=len(hidden_in(held.lines)),
        digest=held.digest,
        bytes=path.stat().st_size,
        removed=True,
        place=str(path),
    )


def without_hidden(held: Held) -> Held:
    """Return the parts of a run that an archive may hold: no hidden values, and not the key of the placeholders."""
    return replace(held, blobs={key: data for key, data in held.blobs.items() if key != KEY_BLOB and not key.startswith(lineage.SECRET)})


def _check_beginning(path: Path, held: Held) -> None:
    there = read_archive(path, most_bytes=None)
    if held.lines[: len(there.lines)] != there.lines:
        raise NotAllowedNow(
            held.run_id, f"{str(path)!r} holds another run under the id {held.run_id!r}; give another directory", reason_code="another_log"
        )


async def archive_before(
    store: EventStore, directory: Path, before: datetime, *, tenant: str | None = None
) -> AsyncGenerator[Moved | DetentError]:
    """Archive every finished run that was last changed before a time, oldest first; yield the outcome of each.

    A run that cannot be archived (it may not be removed, somebody holds it, it is damaged) stays in the store, and the reason is yielded.
    """
    for head in reversed(await finished_before(store, before, tenant=tenant)):
        try:
            yield await archive(store, directory, head.run_id)
        except OF_ONE_RUN as error:
            yield error


async def finished_before(store: EventStore, before: datetime, *, tenant: str | None = None) -> list[RunHead]:
    """Return the finished runs that were last changed before a time, newest first."""
    heads, known = await store.list_runs(RunQuery(status=tuple(TERMINAL), tenant=tenant, until=before)), Known()
    return [head for head in heads if head.updated_at < before and not await belongs_above(store, head, known)]


def write_archive(path: Path, held: Held) -> None:
    """Write an archive completely or not at all, durably. Raise `ConfigError` if the file cannot be written."""
    if any(b"\n" in line for line in held.lines):
        raise CorruptLog(held.run_id, 0, "a record has more than one line, which an archive cannot hold")
    manifest = Manifest(
        detent_archive=ARCHIVE_VERSION,
        head=held.head,
        records=len(held.lines),
        digest=held.digest,
        records_sha256=sha256(b"".join(line + b"\n" for line in held.lines)).hexdigest(),
        blobs={key: (len(data), sha256(data).hexdigest()) for key, data in held.blobs.items()},
        signals=held.signals,
    )
    blobs = (msgspec.json.encode({"key": key, "data": base64.b64encode(data).decode()}) for key, data in held.blobs.items())
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with private_file(path) as raw, gzip.GzipFile(filename="", mode="wb", fileobj=raw, mtime=0) as out:
            for line in (msgspec.json.encode(manifest), *held.lines, *blobs):
                out.write(line + b"\n")
    except OSError as error:
        raise ConfigError(
            f"{str(path)!r} cannot be written ({error.strerror}); give a directory that you may write to, with enough space"
        ) from error


def read_archive(path: Path, *, most_bytes: int | None = 0) -> Held:
    """Return the run in an archive, checked. Raise `ConfigError` for a file that is not an archive, `CorruptLog`, `NewerVersion`.

    `most_bytes`: how many bytes it may unpack to, None for any number. Default: `MOST_BYTES`, and `MOST_TIMES` the size of the file.
    """
    try:
        lines = _unpacked(path, most_bytes)
    except FileNotFoundError:
        raise ConfigError(f"there is no archive {str(path)!r}") from None
    except (OSError, EOFError, zlib.error) as error:
        raise ConfigError(f"{str(path)!r} is not an archive, or is damaged ({error})") from error
    manifest = _manifest(path, lines[0])
    records = tuple(lines[1 : manifest.records + 1])
    if (
        sha256(b"".join(line + b"\n" for line in records)).hexdigest() != manifest.records_sha256
        or not 0 < len(records) == manifest.records
    ):
        raise CorruptLog(manifest.head.run_id, 0, f"the records in {str(path)!r} are not those that its manifest names")
    said = Said()
    digest, consumed = checked(manifest.head.run_id, records, said)
    if problem := said.differs(manifest.head):
        raise CorruptLog(manifest.head.run_id, 0, f"{str(path)!r}: {problem}")
    blobs = _blobs(path, manifest, lines[manifest.records + 1 : -1])
    if digest != manifest.digest:
        raise CorruptLog(manifest.head.run_id, len(records), f"the log in {str(path)!r} does not end with the digest of its manifest")
    return Held(head=manifest.head, lines=records, blobs=blobs, signals=manifest.signals, consumed=consumed, digest=digest)


def head_in(path: Path) -> RunHead:
    """Return the listing entry in an archive. Nothing else is read or checked. Raise `ConfigError`, `NewerVersion`."""
    try:
        with _file(path) as raw, gzip.GzipFile(fileobj=raw) as packed:
            return _manifest(path, packed.readline(_PIECE)).head
    except (OSError, EOFError, zlib.error) as error:
        raise ConfigError(f"{str(path)!r} is not an archive, or is damaged ({error})") from error


def _file(path: Path) -> BinaryIO:
    """Open an archive. Raise `ConfigError` for anything but a regular file; a pipe is not waited for."""
    raw = open(path, "rb", opener=lambda name, flags: os.open(name, flags | getattr(os, "O_NONBLOCK", 0)))  # noqa: SIM115 - has an opener
    if not stat.S_ISREG(os.fstat(raw.fileno()).st_mode):
        raw.close()
        raise ConfigError(f"{str(path)!r} is not a regular file, so it was not read; name the file that `detent export` wrote")
    return raw


def _unpacked(path: Path, most_bytes: int | None) -> list[bytes]:
    """Return the lines in an archive, including an unfinished last one. Memory never holds more than the archive may unpack to."""
    lines, parts, total = list[bytes](), list[bytes](), 0
    with _file(path) as raw, gzip.GzipFile(fileobj=raw) as packed:
        while piece := packed.readline(_PIECE):
            total += len(piece)
            most = min(MOST_BYTES, max(UNSUSPECTED, MOST_TIMES * raw.tell())) if most_bytes == 0 else most_bytes
            if most is not None and total > most:
                raise ConfigError(
                    f"{str(path)!r} was not read to its end: {path.stat().st_size:,} bytes unpack to more than {most:,}, as in a file that is "
                    "made to fill memory. Nothing was imported. If you know that the archive is this large, pass `--max-bytes N`"
                )
            parts.append(piece)
            if piece.endswith(b"\n"):
                lines.append(b"".join(parts)[:-1])
                parts = []
    return [*lines, b"".join(parts)]


def _manifest(path: Path, line: bytes) -> Manifest:
    try:
        version: Any = msgspec.json.decode(line)["detent_archive"]
        if version < 1:
            raise TypeError(f"archive version {version} does not exist")
        if version > ARCHIVE_VERSION:
            raise NewerVersion(
                f"{str(path)!r} was written by a newer Detent (archive version {version}, this one reads up to {ARCHIVE_VERSION}); "
                "upgrade to read it"
            )
        return msgspec.json.decode(line, type=Manifest)
    except (msgspec.MsgspecError, KeyError, TypeError, RecursionError) as error:
        raise ConfigError(f"{str(path)!r} is not an archive of a run: its first line is not a manifest ({error})") from error


def _blobs(path: Path, manifest: Manifest, lines: Iterable[bytes]) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    try:
        for line in lines:
            entry = msgspec.json.decode(line, type=dict[str, str])
            found[entry["key"]] = base64.b64decode(entry["data"])
    except (RecursionError, ValueError, KeyError) as error:
        raise CorruptLog(manifest.head.run_id, 0, f"the artifacts in {str(path)!r} cannot be read ({error})") from error
    if {key: (len(data), sha256(data).hexdigest()) for key, data in found.items()} != manifest.blobs:
        raise CorruptLog(manifest.head.run_id, 0, f"the artifacts in {str(path)!r} are not those that its manifest names")
    return found


async def bring_back(store: EventStore, path: Path, *, most_bytes: int | None = 0) -> Moved:
    """Write the run in an archive into a store. Raise `RunBusy`, and what `read_archive` raises, which gets `most_bytes`.

    Raise `NotAllowedNow` if another log is there, or if the run is not finished: it may still continue where the file was made.
    """
    held = read_archive(path, most_bytes=most_bytes)
    if held.head.status not in TERMINAL:
        raise NotAllowedNow(
            held.run_id,
            f"{str(path)!r} holds run {held.run_id!r}, which is {held.head.status}: only a finished run can be imported, "
            "because two copies of this one would each have their effects. Nothing was imported; move it from its store (`detent copy --move`)",
            reason_code="not_finished",
        )
    async with _claimed(held.run_id, store) as claim:
        return await put(store, held, claim=claim)


def archives_in(place: Path) -> list[Path]:
    """Return the archives that a path names: a file with those of the runs below it beside it, or all in a directory. Raise `ConfigError` for none."""
    directory = place if place.is_dir() else place.parent
    found = sorted(directory.glob(f"*{SUFFIX}"))
    if place != directory:
        run_id = unquote(place.name.removesuffix(SUFFIX))
        found = [place, *[path for path in found if is_below(unquote(path.name.removesuffix(SUFFIX)), run_id)]]
    if not found:
        raise ConfigError(f"there is no archive (*{SUFFIX}) in {str(place)!r}")
    return found
