"""The artifacts that a log names: checks that each one exists and is what was stored, and reads them.

An artifact is stored and named in the log by the SHA-256 of its content, so the digest chain covers it. Every read of a store compares the two
(`ports.stores.intact`). A run is not resumed, forked, replayed, copied or archived while one of its artifacts is missing or altered.
"""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Iterable, Iterator, Sequence

from detent.core.codec import read_record
from detent.core.errors import CorruptLog, RunErased
from detent.core.events import AnyEvent, ConversationCompacted, ConversationErased, Planned, RunStarted, ToolFinished
from detent.core.state import RunState
from detent.ports import EventStore
from detent.running.lineage import SECRET, Segment, ends_with, find_blob, segments

_PLACEHOLDER = re.compile(rb"<secret:([0-9a-f]{24})>")
_NAMES = (b'"artifact":{', b'"files":[{', b'"conversation":{', b'"kept":{')
"""Each line that names an artifact contains one of these; some other lines do too."""
_KEPT = b'"body":{"type":"conversation_erased"'
_FORMER = (_KEPT, b'"body":{"type":"conversation_compacted"', b'"body":{"type":"run_started"')


async def artifact(store: EventStore, state: RunState, key: str) -> bytes:
    """Return an artifact that the run's log names. Raise `CorruptLog` if it is missing or altered."""
    data = await find_blob(store, state, key)
    if data is None:
        raise CorruptLog(state.run_id, 0, _missing(key))
    return data


async def read_whole(store: EventStore, run_id: str) -> list[bytes]:
    """Return a run's log. Raise `CorruptLog` if it lacks records that are known to have been durable."""
    sealed = await store.sealed(run_id)
    lines = await store.read(run_id)
    if problem := cut(lines, sealed):
        raise CorruptLog(run_id, len(lines), problem)
    return lines


def cut(lines: Sequence[bytes], sealed: tuple[int, str] | None) -> str:
    """Return how a log contradicts what was sealed before it was read, "" if it does not."""
    records, digest = sealed or (0, "")
    if len(lines) < records:
        return f"its log has {len(lines)} records, and {records} were durable: the end was cut off"
    if digest and not ends_with(lines[records - 1], digest):
        return f"the digest of its record {records} is not the durable one: {digest}"
    return ""


async def refuse_damaged(store: EventStore, run_id: str, lines: Sequence[bytes]) -> None:
    """Raise `CorruptLog` for the first missing or altered artifact of these lines, or of the records that a fork continues from."""
    async for problem in damaged(store, run_id, lines):
        raise problem


async def damaged(store: EventStore, run_id: str, lines: Sequence[bytes]) -> AsyncGenerator[CorruptLog]:
    """Yield the fault of each artifact that a run's lines name, or the records that a fork continues from; every byte is read."""
    try:
        above = await segments(store, run_id, lines)
        complete = True
    except RunErased:  # an erased ancestor's artifacts are gone on purpose
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
    """Yield the artifacts that these lines name, with the number of the line. A conversation from which words were erased does not count."""
    whole = b"\n".join(lines)  # to look through all of it at once is faster than through each line
    artifact, files, conversation, kept = _NAMES
    if not (artifact in whole or files in whole or conversation in whole or kept in whole):  # `any` takes three times as long
        return
    last = max((number for number, line in enumerate(lines, 1) if _KEPT in line), default=0) if _KEPT in whole else 0
    for number, line in enumerate(lines, 1):
        if number < last and any(former in line for former in _FORMER):
            continue
        if artifact in line or files in line or conversation in line or kept in line:
            for key in _named_by(read_record(line).event):
                yield number, key


def _named_by(event: AnyEvent | None) -> Iterator[str]:
    """Yield the keys that an event names: of results that were too large, of files that a model created, of a conversation."""
    if isinstance(event, ToolFinished) and event.artifact is not None:
        yield event.artifact.key
    elif isinstance(event, Planned):
        yield from [file.key for file in event.files]
    elif isinstance(event, RunStarted):
        yield from [
            place.conversation.key for place in (event.session, event.delegated) if place is not None and place.conversation is not None
        ]
    elif isinstance(event, ConversationErased | ConversationCompacted) and event.kept is not None:
        yield event.kept.key


def hidden_in(lines: Iterable[bytes]) -> set[str]:
    """Return the keys of the hidden values that these lines have placeholders for."""
    return {SECRET + name.decode() for line in lines for name in _PLACEHOLDER.findall(line)}
