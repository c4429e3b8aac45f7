"""The artifacts that a log names: whether each of them is there and is what was stored, and reading one.

An artifact is kept under the SHA-256 of its content and named by that in the log, so the digest chain covers it. Every read of a store compares
the two (`ports.stores.intact`). A run is not resumed, forked, replayed, copied or archived while one that it names is missing or altered.
"""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Iterable, Iterator, Sequence

from detent.core.codec import read_record
from detent.core.errors import CorruptLog, RunErased
from detent.core.events import AnyEvent, Planned, ToolFinished
from detent.core.state import RunState
from detent.ports import EventStore
from detent.running.lineage import SECRET, Segment, ends_with, find_blob, segments

_PLACEHOLDER = re.compile(rb"<secret:([0-9a-f]{24})>")
_NAMES = (b'"artifact":{', b'"files":[{')
"""One of these stands in each line that names an artifact, and in some others."""


async def artifact(store: EventStore, state: RunState, key: str) -> bytes:
    """Return an artifact that the run's log names; raise `CorruptLog` where it is missing or altered."""
    data = await find_blob(store, state, key)
    if data is None:
        raise CorruptLog(state.run_id, 0, _missing(key))
    return data


async def read_whole(store: EventStore, run_id: str) -> list[bytes]:
    """Return a run's log; raise `CorruptLog` where it does not have all that is known to have been durable."""
    sealed = await store.sealed(run_id)
    lines = await store.read(run_id)
    if problem := cut(lines, sealed):
        raise CorruptLog(run_id, len(lines), problem)
    return lines


def cut(lines: Sequence[bytes], sealed: tuple[int, str] | None) -> str:
    """Return how a log contradicts what was sealed before it was read, "" where it does not."""
    records, digest = sealed or (0, "")
    if len(lines) < records:
        return f"its log has {len(lines)} records, and {records} were durable: the end was cut off"
    if digest and not ends_with(lines[records - 1], digest):
        return f"its record {records} has another digest than the one that was durable: {digest}"
    return ""


async def refuse_damaged(store: EventStore, run_id: str, lines: Sequence[bytes]) -> None:
    """Raise `CorruptLog` for the first artifact of these lines, or of what a fork goes on from, that is missing or altered."""
    async for problem in damaged(store, run_id, lines):
        raise problem


async def damaged(store: EventStore, run_id: str, lines: Sequence[bytes]) -> AsyncGenerator[CorruptLog]:
    """Yield what is wrong with each artifact that the lines of a run name, or those that a fork goes on from; every byte is read."""
    try:
        above = await segments(store, run_id, lines)
        complete = True
    except RunErased:  # what an erased ancestor had is gone on purpose
        above, complete = [], False
    places = [run_id, *(one.run_id for one in reversed(above))]
    known: set[str] = set()
    for one in [*above, Segment(run_id, lines, len(lines))]:
        for sequence, key in named_in(one.lines[: one.used]):
            if key not in known:
                known.add(key)
                try:
                    there = await _is_there(store, places, key)
                except CorruptLog as error:
                    yield CorruptLog(run_id, sequence, error.why)
                    continue
                if not there and complete:
                    yield CorruptLog(run_id, sequence, _missing(key))


async def _is_there(store: EventStore, places: Sequence[str], key: str) -> bool:
    for place in places:
        if await store.get_blob(place, key) is not None:
            return True
    return False


def _missing(key: str) -> str:
    return f"artifact {key} is missing"


def named_in(lines: Sequence[bytes]) -> Iterator[tuple[int, str]]:
    """Yield the artifacts that these lines name, with the number of the line."""
    for number, line in enumerate(lines, 1):
        if any(name in line for name in _NAMES):
            for key in _named_by(read_record(line).event):
                yield number, key


def _named_by(event: AnyEvent | None) -> Iterator[str]:
    """Yield the keys that an event names: of a result that was too large, and of the files that a model made."""
    if isinstance(event, ToolFinished) and event.artifact is not None:
        yield event.artifact.key
    elif isinstance(event, Planned):
        yield from [file.key for file in event.files]


def hidden_in(lines: Iterable[bytes]) -> set[str]:
    """Return the keys of the hidden values that these lines have placeholders for."""
    return {SECRET + name.decode() for line in lines for name in _PLACEHOLDER.findall(line)}
