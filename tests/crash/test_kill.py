"""A real SIGKILL at fixed places, and a fresh process that goes on."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path
from typing import Any

import pytest

from amounts import crossed, thinned
from crash.processes import answer_of, end, start
from crash.workload import EXPECTED, RUN, open_calls, story, work, worker
from detent.core import events as e
from laws.checks import check_laws
from laws.places import Effects, Place

pytestmark = crossed

DEATHS: list[tuple[Any, ...]] = [
    ("planner", 1),
    ("planner", 6),
    ("before", "put", 2),
    ("after", "put", 7),
    ("after", "set", 5),
    ("after", "file", 6),
    ("before", "wipe", 10),
    ("unrecorded", "put", 11),
    ("recorded", "put", 2),
]


async def whole_story(directory: Path) -> list[bytes]:
    """Return the story of a run to which nothing happened."""
    place, effects = Place("ram", directory), Effects(directory / "effects-of-the-whole")
    async with worker(place.store(), effects) as engine:
        await work(engine, effects)
    return story(await place.records(RUN))


@thinned
@pytest.mark.parametrize("death", DEATHS, ids=lambda d: "-".join(map(str, d)))
@pytest.mark.parametrize("kind", ["file", "sqlite"])
def test_a_killed_process_is_succeeded_by_another_at_once(kind: str, death: tuple[Any, ...], tmp_path: Path) -> None:
    """The claim of the dead is free, the answer is the same, nothing was done twice, and what nobody knows was reported."""
    place, effects = Place(kind, tmp_path), Effects(tmp_path / "effects")
    killed = start(place.url, tmp_path, do="work", die=death)
    assert killed.wait(60) == -signal.SIGKILL
    end(killed)
    left = asyncio.run(place.lines(RUN))
    doubtful = open_calls(asyncio.run(place.records(RUN))) if left else []
    fresh = start(place.url, tmp_path, do="work")
    answer = answer_of(fresh)
    end(fresh)
    assert (answer["status"], answer["output"]) == ("completed", EXPECTED)
    assert answer["reported"] == doubtful
    assert bool(doubtful) == (death[0] in ("before", "after", "unrecorded") and death[1] in ("put", "wipe"))
    happened = effects.all()
    assert len(set(happened)) == 6
    assert [line for line in happened if happened.count(line) > 1 and not line.startswith("set:")] == []
    records = asyncio.run(place.records(RUN))
    check_laws(asyncio.run(place.lines(RUN)), every=9)
    assert story(records) == asyncio.run(whole_story(tmp_path))
    assert len([r for r in records if isinstance(r.event, e.RunFinished)]) == 1
