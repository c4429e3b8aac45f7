"""What a fork takes from the runs that it was branched from: their records up to that point, their artifacts, and the outcomes of their calls.

A fork's log does not repeat earlier records: they are read from its ancestors. Before an ancestor is removed, its records and artifacts are copied
into its forks (`remove`), and a fork that moves to another store takes such a copy along (`carried`). A copy is one blob: a line of JSON that says
whose lines follow and how many of them the fork begins with, then the lines, the first ancestor's first.

No lock keeps a run from being forked while it is removed or erased. Each side writes first and checks afterwards: the remover marks the run
(`LEAVING`), then looks for forks; the forker writes the fork, then looks for the mark (`refuse_gone`). One of the two sees the other, and a fork that
sees the mark is undone.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Iterator, Sequence
from typing import Any, Literal

import msgspec

from detent.core.codec import digest_of, read_log, read_record
from detent.core.errors import CorruptLog, NotAllowedNow, RunBusy, RunErased, RunNotFound, StoreError
from detent.core.events import Forked, ToolFinished, ToolReconciled, ToolStarted
from detent.core.records import Record, RunHead
from detent.core.state import TERMINAL, CallState, Item, RunState
from detent.ports import ARTIFACT_KEY_LENGTH, ERASED, PARENT_ERASED, EventStore, RunQuery, ToolOutcome, give_back

PREFIX_BLOB = "fork-prefix"
"""The key of the copy; it is shorter than an artifact's."""
LEAVING = "leaving"
"""The key of the mark on a run that is being removed or erased. The mark of a dead process keeps the run from being forked until `gc` removes it."""
SECRET = "secret-"
_FORKED = b'","body":{"type":"forked"'
"""Appears in a line only where its body begins: inside a JSON string the quotes would be escaped."""


class Segment(msgspec.Struct, frozen=True):
    """The lines of one ancestor; the fork below it begins with the first `used`."""

    run_id: str
    lines: Sequence[bytes]
    used: int


class _Part(msgspec.Struct, frozen=True):
    run: str
    records: int
    used: int


# Ancestors --------------------------------------------------------------------------------------------------------------------------------


def forked_of(line: bytes) -> Forked | None:
    """Return the event by which a log begins as a fork; None for any other first line, including an erased one."""
    if _FORKED not in line:
        return None
    event = read_record(line).event
    return event if isinstance(event, Forked) else None


def body_of(line: bytes) -> bytes:
    """Return the bytes from the body on, unchecked; empty for an erased record."""
    return line.partition(b'","body":')[2]


def ends_with(line: bytes, digest: str) -> bool:
    """Whether the line carries this digest."""
    return line.endswith(b'"digest":"%b"}' % digest.encode())


async def segments(store: EventStore, run_id: str, lines: Sequence[bytes], *, whole: bool = False) -> list[Segment]:
    """Return the lines that the log `lines` of a run continues from, the first ancestor first; nothing if it is not a fork.

    `whole`: include the ancestors' later records, as far as they are known. Raise `CorruptLog` if the ancestors are missing or are not what the fork
    was branched from; `RunErased` if their content is gone.
    """
    forked = forked_of(lines[0]) if lines else None
    if forked is None:
        return []
    kept = await store.get_blob(run_id, PREFIX_BLOB)
    if kept is not None:
        found = unpacked(run_id, kept)
    else:
        above = await store.read(forked.parent, limit=None if whole else forked.sequence)
        found = [*await segments(store, forked.parent, above, whole=whole), Segment(forked.parent, above, forked.sequence)]
    last = found[-1] if found else None
    if last is None or last.run_id != forked.parent or not 0 < forked.sequence <= len(last.lines):
        raise CorruptLog(
            run_id,
            1,
            f"it continues from record {forked.sequence} of run {forked.parent!r}, which is not in {store.url}; copy or import that run into it",
        )
    if not ends_with(last.lines[forked.sequence - 1], forked.digest):
        raise CorruptLog(run_id, 1, f"record {forked.sequence} of run {forked.parent!r} is not the one that it was branched from")
    if not body_of(last.lines[forked.sequence - 1]):
        raise RunErased(run_id, parent=forked.parent)
    return found


def packed(found: Sequence[Segment]) -> bytes:
    """Return segments as one blob."""
    head = msgspec.json.encode([_Part(one.run_id, len(one.lines), one.used) for one in found])
    return b"\n".join([head, *(line for one in found for line in one.lines)])


def unpacked(run_id: str, data: bytes) -> list[Segment]:
    """Return the segments that `packed` wrote; raise `CorruptLog`."""
    head, *lines = data.split(b"\n")
    try:
        parts = msgspec.json.decode(head, type=list[_Part])
    except ValueError as error:  # msgspec's errors are ValueErrors
        raise CorruptLog(run_id, 1, f"the copy of its ancestors' records cannot be read ({error})") from error
    found: list[Segment] = []
    for part in parts:
        found.append(Segment(part.run, lines[: part.records], part.used))
        lines = lines[part.records :]
    return found


async def history(store: EventStore, run_id: str) -> list[Record]:
    """Return the records that make up a run's state, those of its ancestors first; empty for an unknown run.

    Each is checked in the chain of its own log.
    """
    lines = await store.read(run_id)
    records: list[Record] = []
    for one in await segments(store, run_id, lines):
        records += read_log(one.run_id, one.lines[: one.used])
    return [*records, *read_log(run_id, lines)]


async def forks_of(store: EventStore, run_id: str) -> list[str]:
    """Return the ids of the runs in this store that were branched from this one."""
    found: list[str] = []
    for head in await store.list_runs(RunQuery()):
        if head.parent == run_id:
            lines = await store.read(head.run_id, limit=1)
            found += [head.run_id] if lines and forked_of(lines[0]) is not None else []
    return found


# What belongs to them ---------------------------------------------------------------------------------------------------------------------


async def find_blob(store: EventStore, state: RunState, key: str) -> bytes | None:
    """Return a blob of the run, else of its nearest ancestor that has it."""
    for run_id in (state.run_id, *state.ancestors):
        data = await store.get_blob(run_id, key)
        if data is not None:
            return data
    return None


async def carried(store: EventStore, run_id: str, lines: Sequence[bytes], *, finished: bool) -> dict[str, bytes]:
    """Return the blobs that make a fork independent of its ancestors, without those that it has; nothing if the run is not a fork.

    An unfinished fork also gets the ancestors' records from after the branch: its calls may be answered from them.
    """
    found = await segments(store, run_id, lines, whole=not finished)
    if not found:
        return {}
    copy = packed(found)
    there, named = set(await store.list_blobs(run_id)), b"\n".join([copy, *lines])
    blobs: dict[str, bytes] = {} if PREFIX_BLOB in there else {PREFIX_BLOB: copy}
    for ancestor in reversed([one.run_id for one in found]):
        for key in await store.list_blobs(ancestor):
            if (
                key in (PREFIX_BLOB, LEAVING)
                or key in there
                or key in blobs
                or (len(key) == ARTIFACT_KEY_LENGTH and key.encode() not in named)
            ):
                continue
            data = await store.get_blob(ancestor, key)
            if data is not None:
                blobs[key] = data
    return blobs


async def remove(store: EventStore, run_id: str) -> None:
    """Remove a run that is held by a claim. Its forks first get what they refer to in it and its ancestors."""
    async with unforked(store, run_id):
        await _preserve(store, run_id)
        await store.delete(run_id)


@contextlib.asynccontextmanager
async def unforked(store: EventStore, run_id: str) -> AsyncGenerator[None]:
    """Keep a run from being forked in the block, which removes or erases it: it has no forks except those found there."""
    await store.put_blob(run_id, LEAVING, b"")
    try:
        yield
    except BaseException:
        with contextlib.suppress(Exception):  # the obstacle was reported, and `gc` removes the mark
            await store.delete_blob(run_id, LEAVING)
        raise


async def _above(store: EventStore, run_id: str) -> AsyncGenerator[RunHead]:
    """Yield the listing entries of a run and of the runs that it reads records from, the nearest first."""
    while (head := await store.head(run_id)) is not None:
        yield head
        lines = await store.read(run_id, limit=1)
        forked = forked_of(lines[0]) if lines else None
        if forked is None or PREFIX_BLOB in await store.list_blobs(run_id):
            return
        run_id = forked.parent


async def erased_above(store: EventStore, run_id: str) -> str:
    """Return the nearest erased run among a run's ancestors, "" if there is none."""
    async for head in _above(store, run_id):
        if head.run_id != run_id and head.reason == ERASED:
            return head.run_id
    return ""


async def refuse_gone(store: EventStore, child_id: str, run_id: str) -> None:
    """Raise for a fork that was just written, if one of its ancestors is being removed or was erased. The caller undoes it, and nobody has seen it yet.

    `RunNotFound`, `NotAllowedNow` (`being_removed`), or `RunErased`.
    """
    above = [head async for head in _above(store, child_id)][1:]
    for head in above:
        if head.reason == ERASED:
            raise RunErased(child_id, parent=head.run_id)
        if await store.get_blob(head.run_id, LEAVING) is not None:
            why = f"run {head.run_id!r} is being deleted, erased, moved or archived; if the process that did it has died, do it again, or run `detent gc`"
            raise NotAllowedNow(run_id, why, reason_code="being_removed")
    if not above or await store.head(run_id) is None:
        raise RunNotFound(run_id, store.url)


async def _preserve(store: EventStore, run_id: str) -> None:
    for fork in await forks_of(store, run_id):
        head = await store.head(fork)
        try:
            blobs = await carried(store, fork, await store.read(fork), finished=head is not None and head.status in TERMINAL)
        except RunErased:  # there is nothing left to give
            continue
        try:
            for key, data in blobs.items():
                await store.put_blob(fork, key, data)
        except StoreError:
            if await store.head(fork) is not None:
                raise
        if blobs and await store.head(fork) is None:
            await _clear(store, fork)


async def _clear(store: EventStore, fork: str) -> None:
    """Remove what was given to a fork that was undone meanwhile. A new run under its id has the claim, and is left alone."""
    with contextlib.suppress(RunBusy, RunNotFound):
        await store.claim(fork)
        try:
            if await store.head(fork) is None:
                await store.delete(fork)
        finally:
            await give_back(store, fork)


async def forget(store: EventStore, fork: str, claim: int) -> None:
    """Remove from a fork the content of an erased ancestor, and the words of a goal that is not its own. Nobody can read the fork any more.

    Its own records stay, and its listing entry says why (`PARENT_ERASED`).
    """
    head, lines = await store.head(fork), await store.read(fork)
    forked = forked_of(lines[0]) if lines else None
    if head is None or forked is None:  # it was erased itself
        return
    own, blobs = b"\n".join(lines), dict[str, bytes]()
    for key in await store.list_blobs(fork):
        copied = len(key) == ARTIFACT_KEY_LENGTH or key.startswith(SECRET)
        if key not in (PREFIX_BLOB, LEAVING) and not (copied and key.removeprefix(SECRET).encode() not in own):
            with contextlib.suppress(CorruptLog):  # its run is damaged with or without it
                blobs[key] = await store.get_blob(fork, key) or b""
    words = {} if "goal" in forked.edits else {"goal": "", "title": ""}
    head = msgspec.structs.replace(head, reason=PARENT_ERASED, digest=read_record(lines[-1]).digest, **words)
    await store.erase(fork, lambda line: line, head=head, claim=claim)
    for key, data in blobs.items():
        await store.put_blob(fork, key, data)


# The outcomes of their calls -----------------------------------------------------------------------------------------------------------------


class Recorded:
    """The outcomes of the ancestors' calls, by tool and digest of the arguments, in the order in which the calls began.

    The n-th equal call of a fork, counted from the beginning of its history, gets the n-th outcome of the nearest ancestor that has one.
    """

    def __init__(self, logs: Sequence[Sequence[bytes]], state: RunState) -> None:
        self._outcomes = [_outcomes(lines) for lines in logs]
        self._numbers: dict[str, tuple[tuple[str, str], int]] = {}
        self._counts: dict[tuple[str, str], int] = {}
        for item in _executed(state):
            self._number(item.call_id, (item.tool, digest_of([item.tool, item.args])))

    def _number(self, call_id: str, key: tuple[str, str]) -> int:
        known = self._numbers.get(call_id)
        if known is None or known[0] != key:
            known = self._numbers[call_id] = key, self._counts.get(key, 0)
            self._counts[key] = known[1] + 1
        return known[1]

    def outcome(self, call: CallState) -> ToolOutcome | None:
        """Return the earlier outcome of this call; None if none is recorded."""
        key = call.tool, digest_of([call.tool, call.args])
        number = self._number(call.call_id, key)
        for outcomes in self._outcomes:
            known = outcomes.get(key, ())
            if number < len(known) and (found := known[number]) is not None:
                return found
        return None


def _executed(state: RunState) -> Iterator[Item]:
    """Yield the observations of calls that had begun, pass by pass, including those that wait for the outcome of an earlier call."""
    for known in state.passes.values():
        yield from (item for item in known.results if item.executed)
        yield from (c.item for c in list(known.calls.values())[known.observed :] if c.item is not None and c.item.executed)


def _outcomes(lines: Sequence[bytes]) -> dict[tuple[str, str], list[ToolOutcome | None]]:
    """Return the outcomes of a log's calls that have a record of their beginning; None for a call without an outcome."""
    found: dict[tuple[str, str], list[ToolOutcome | None]] = {}
    places: dict[str, tuple[list[ToolOutcome | None], int]] = {}
    for line in lines:
        if not body_of(line).startswith((b'{"type":"tool_started"', b'{"type":"tool_finished"', b'{"type":"tool_reconciled"')):
            continue
        match read_record(line).event:
            case ToolStarted(attempt=1) as event:
                outcomes = found.setdefault((event.tool, event.digest), [])
                places[event.call] = outcomes, len(outcomes)
                outcomes.append(None)
            case (ToolFinished() | ToolReconciled(outcome="happened")) as event if event.call in places:
                outcomes, index = places[event.call]
                outcomes[index] = outcomes[index] or _outcome(event)
            case _:
                pass
    return found


def _outcome(event: ToolFinished | ToolReconciled) -> ToolOutcome:
    finished = isinstance(event, ToolFinished)
    source: Literal["recorded", "stub"] = "stub" if finished and event.source == "stub" else "recorded"
    if event.error is not None:
        kind: Any = "fatal" if finished and event.fatal else "failed"
        error = event.error
        return ToolOutcome(kind=kind, error_code=error.code, message=error.message, details=error.details, final=True, source=source)
    artifact = event.artifact if finished else None
    return ToolOutcome(kind="ok", result=bytes(event.result), artifact=artifact, final=True, source=source)


def stub(tool: str) -> ToolOutcome:
    """Return the stub outcome of a call that is not executed and has no earlier outcome."""
    said = {"dry_run": f"{tool} was not executed: this run is a fork without effects, and no outcome of such a call is recorded"}
    return ToolOutcome(kind="ok", result=msgspec.json.encode(said), final=True, source="stub")


async def recorded(store: EventStore, state: RunState) -> Recorded:
    """Return the outcomes of the calls of the run's ancestors."""
    found = await segments(store, state.run_id, await store.read(state.run_id, limit=1), whole=True)
    logs = [[line for above in found[:index] for line in above.lines[: above.used]] + list(one.lines) for index, one in enumerate(found)]
    return Recorded(logs[::-1], state)
