"""Approvals, questions and schedules survive the end of any process at any write: asked once, decided once, carried out once."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from amounts import crossed, in_check, stride
from crash.workload import RUN
from detent.core import events as e
from detent.testing.clocks import FakeClock
from detent.testing.faults import Crash, CrashingStore
from forked import fork
from laws.checks import check_laws
from laws.places import KINDS, Effects, Place
from running.waits import DECISIONS, EFFECTS, EXPECTED, WRITES, decisions, engine_of, work

pytestmark = crossed

HERE = Path(__file__).resolve().parent


async def check(place: Place, effects: Effects, status: str, output: Any) -> None:
    """Everything that must hold however often a process died on the way."""
    records = await place.records(RUN)
    assert (status, output) == ("completed", EXPECTED)
    assert [line.rsplit(":", 1)[0] for line in effects.all()] == EFFECTS, "each effect once, in order, with the approved arguments"
    assert decisions(records) == DECISIONS, "each decision stands in the log once"
    counts = Counter(type(record.event) for record in records)
    once = {e.UserAsked: 1, e.UserReplied: 1, e.ScheduleSet: 1, e.ScheduleFired: 1, e.ApprovalRequested: 5, e.Planned: 6, e.RunFinished: 1}
    assert {kind: counts[kind] for kind in once} == once
    check_laws(await place.lines(RUN), every=11)
    store = place.store()
    await store.open()
    assert await store.signals([RUN]) == {}, "every answer was taken up with the record that it became"
    await store.close()
    place.opened.remove(store)


async def whole(place: Place, effects: Effects, store: Any) -> Any:
    clock = FakeClock()
    return await work(engine_of(store, effects, clock), effects, clock)


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("kind", KINDS[1:])  # in memory the simulation tries it
def test_a_crash_at_any_write_of_a_waiting_run_loses_and_repeats_nothing(kind: str, when: Any, tmp_path: Path) -> None:
    """Also at the write of the answer itself: the person is asked again, or the answer is found. Not every write by default (`amounts`)."""

    async def main() -> None:
        at, step = 0, stride(23, many=3)
        while True:
            at += step
            directory = tmp_path / str(at)
            directory.mkdir()
            place, effects = Place(kind, directory), Effects(directory / "effects")
            store = CrashingStore(place.store(), at=at, when=when, operations=WRITES)
            try:
                state = await whole(place, effects, store)
                over = True
            except Crash:
                over = False
                await place.close()
                made = engine_of(place.store(), effects, clock := FakeClock())
                state = await work(made, effects, clock)
                again = await made.replay(RUN)
                assert again.identical, again.divergence
            try:
                await check(place, effects, state.status, state.output)
            except BaseException as error:
                error.add_note(f"crash {when} write {at}: {store.done}")
                raise
            await place.close()
            if over:
                assert at > 40
                return

    asyncio.run(main())


def start(url: str, directory: Path, write: int, when: str) -> Any:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE.parent), os.environ.get("PYTHONPATH", "")])}
    return fork([str(HERE / "waits.py"), url, str(directory), str(write), when], env=environment, imports=["crash.workload", "laws.places"])


@pytest.mark.parametrize("kind", [pytest.param("file", marks=in_check), "sqlite"])
def test_processes_that_are_killed_one_after_another_take_a_waiting_run_to_its_end(kind: str, tmp_path: Path) -> None:
    """A real SIGKILL a few writes into each of them, before and after by turns: every process gets a bit further, and the end is the same."""
    place, effects = Place(kind, tmp_path), Effects(tmp_path / "effects")
    deaths = 0
    while True:
        child = start(place.url, tmp_path, 7, "before" if deaths % 2 else "after")
        out, _ = child.communicate(timeout=60)
        if child.returncode == 0:
            break
        assert child.returncode == -signal.SIGKILL
        deaths += 1
        assert deaths < 40, "no process gets further"
    said = json.loads(out)
    assert deaths >= 4
    asyncio.run(check(place, effects, said["status"], said["output"]))


@in_check
def test_a_process_that_is_killed_at_a_write_is_succeeded_by_one_that_ends_the_run_the_same() -> None:
    """A real SIGKILL before and after some writes, on disk (`amounts`); `tests/faults/kill_waits.py` does it at each, on PostgreSQL, too."""
    script = HERE.parent / "faults" / "kill_waits.py"
    ran = subprocess.run(
        [sys.executable, str(script), "--stores", "file", "sqlite", "--every", str(stride(13, many=13))],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert [line.split()[0] for line in ran.stdout.splitlines()] == ["file:", "sqlite:"]
    assert all(int(line.split()[1]) >= 4 for line in ran.stdout.splitlines()), ran.stdout
