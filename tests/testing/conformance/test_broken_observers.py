"""The contract of observers can fail: each observer here breaks one promise, and the suite says which."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import pytest

from amounts import thinned
from detent.core.records import Record
from detent.core.state import RunState
from detent.ports import Chunk, Observer
from detent.testing.conformance.observer import ObserverContract, ObserverMaker
from testing.conformance.rejecting import checks_of, failing

pytestmark = thinned


class Sound:
    """Keeps where each record stands."""

    def __init__(self) -> None:
        self.told: list[tuple[str, int]] = []

    def on_record(self, record: Record, state: RunState) -> Any:
        self.told.append((record.envelope.run, record.envelope.seq))

    def on_chunk(self, chunk: Chunk) -> None:
        return


class StumblesOverErasedRecords(Sound):
    def on_record(self, record: Record, state: RunState) -> Any:
        super().on_record(record, state)
        assert record.event is not None
        return None


class KnowsSomeEventsOnly(Sound):
    def on_record(self, record: Record, state: RunState) -> Any:
        super().on_record(record, state)
        names = {"Forked": "a fork"}
        return None if type(record.event).__name__ != "DeadLettered" else print(names["DeadLettered"])


class NeverEnds(Sound):
    async def on_record(self, record: Record, state: RunState) -> Any:
        super().on_record(record, state)
        await asyncio.Event().wait()


class WritesAscii(Sound):
    def on_chunk(self, chunk: Chunk) -> None:
        json.dumps(chunk.content, ensure_ascii=False).encode("ascii")


class WantsTextInChunks(Sound):
    def on_chunk(self, chunk: Chunk) -> None:
        assert chunk.content.strip is not None


class IsAwaitedForChunks(Sound):
    async def on_chunk(self, chunk: Chunk) -> None:  # type: ignore[override]
        return


class SaysHowManyItTook(Sound):
    def on_chunk(self, chunk: Chunk) -> Any:
        return 1


class TidiesChunks(Sound):
    def on_chunk(self, chunk: Chunk) -> None:
        if isinstance(chunk.content, dict):
            chunk.content.clear()


class TidiesEvents(Sound):
    def on_record(self, record: Record, state: RunState) -> Any:
        super().on_record(record, state)
        output = getattr(record.event, "output", None)
        if isinstance(output, dict):
            output.clear()


class LeavesNotesInTheState(Sound):
    def on_record(self, record: Record, state: RunState) -> Any:
        super().on_record(record, state)
        if record.envelope.scope == "":
            state.variables["watched"] = True


class LosesRecords(Sound):
    def on_record(self, record: Record, state: RunState) -> Any:
        if record.envelope.seq != 4:
            super().on_record(record, state)


class TellsTwice(Sound):
    def on_record(self, record: Record, state: RunState) -> Any:
        super().on_record(record, state)
        if record.envelope.seq == 4:
            super().on_record(record, state)


class MixesRuns(Sound):
    """Takes all records for those of the first run."""

    def on_record(self, record: Record, state: RunState) -> Any:
        super().on_record(record, state)
        self.told[-1] = (self.told[0][0], record.envelope.seq)


class ChangesOrder(Sound):
    def on_record(self, record: Record, state: RunState) -> Any:
        super().on_record(record, state)
        self.told.sort(key=lambda one: one[1] % 3)


class BindsToItsFirstLoop(Sound):
    loop: Any = None

    async def on_record(self, record: Record, state: RunState) -> Any:
        super().on_record(record, state)
        self.loop = self.loop or asyncio.get_running_loop()
        if self.loop is not asyncio.get_running_loop():
            raise RuntimeError("bound to a different event loop")


class Makers(ObserverMaker):
    patience_s = 0.3

    def __init__(self, kind: type[Sound]) -> None:
        self._kind = kind
        self.patience_s = 0.05 if kind is NeverEnds else 60.0

    def observer(self) -> Observer:
        return self._kind()

    def told(self, observer: Any) -> Sequence[tuple[str, int]]:
        return observer.told


TAKEN = "test_every_event_of_the_log_is_taken"
CHUNKS = "test_every_kind_of_chunk_is_taken_at_once"
STAYS = "test_what_it_is_told_stays_as_it_was"
ORDER = "test_records_of_several_runs_stay_in_order"
SAME = "test_a_run_is_the_same_with_and_without_it"
LOOPS = "test_one_event_loop_after_another_is_served"

REJECTED: dict[type[Sound], set[str]] = {
    StumblesOverErasedRecords: {TAKEN, STAYS},
    KnowsSomeEventsOnly: {TAKEN, STAYS},
    NeverEnds: {TAKEN, STAYS, ORDER, SAME, LOOPS},
    WritesAscii: {CHUNKS, STAYS},
    WantsTextInChunks: {CHUNKS, STAYS},
    IsAwaitedForChunks: {CHUNKS},
    SaysHowManyItTook: {CHUNKS},
    TidiesChunks: {STAYS},
    TidiesEvents: {STAYS},
    LeavesNotesInTheState: {STAYS},
    LosesRecords: {ORDER, SAME},
    TellsTwice: {ORDER, SAME},
    MixesRuns: {ORDER},
    ChangesOrder: {ORDER, SAME},
    BindsToItsFirstLoop: {LOOPS},
}


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited")
@pytest.mark.parametrize("kind", REJECTED)
def test_the_suite_rejects_an_observer_that_is_broken(kind: type[Sound]) -> None:
    """The checks about the broken promise fail, and no other."""
    assert failing(ObserverContract, lambda: Makers(kind)) == REJECTED[kind]


def test_the_suite_accepts_an_observer_that_is_sound() -> None:
    """What rejects the broken observers is what was broken in them."""
    assert failing(ObserverContract, lambda: Makers(Sound)) == set()


def test_every_check_of_observers_rejects_something() -> None:
    """No check of the suite is there for nothing."""
    assert set(checks_of(ObserverContract)) - set().union(*REJECTED.values()) == set()
