"""Random scripts through the whole engine on every store: whatever is planned, however tools end, the laws hold of the log."""

from __future__ import annotations

import asyncio
import random
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings

from amounts import in_check, times
from detent.core.state import RunState
from detent.testing.clocks import FakeClock, SequentialIds
from laws.checks import check_laws
from laws.places import KINDS, Place, Told, engine_on
from properties.crashes import one_round
from properties.scripts import CautiousPolicy, Example, drive, examples, make_tools, planner_for


async def one(place: Place, example: Example) -> RunState:
    """Drive one example in one engine, and check everything."""
    told, clock = Told(), FakeClock(tick_s=0.001)
    engine = engine_on(
        place.store(), planner_for(example), make_tools(), policy=CautiousPolicy(), observers=[told], clock=clock, ids=SequentialIds()
    )
    async with engine:
        result = await drive(engine, example, clock)
        again = await engine.replay("run")
        assert again.identical, again.divergence
    lines = await place.lines("run")
    state = check_laws(lines, live=told.states, every=5)
    assert result.state == state
    assert [s.seq for s in told.states] == list(range(1, len(lines) + 1)), "an observer is told every record, once, in order"
    assert result.state.terminal, f"the run still is {result.status}"
    return state


def run_one(kind: str, example: Example) -> None:
    """Do it in a directory of its own."""
    directory = Path(tempfile.mkdtemp())
    place = Place(kind, directory)

    async def main() -> None:
        try:
            await one(place, example)
        finally:
            await place.close()

    try:
        asyncio.run(main())
    finally:
        shutil.rmtree(directory)


@settings(max_examples=times(60, soak=2_000))
@given(examples)
def test_any_script_keeps_the_laws_in_memory(example: Example) -> None:
    """The log folds to the live state at every record, replays identically, moves legally, exits once, counts what it used."""
    run_one("ram", example)


@pytest.mark.parametrize("kind", KINDS[1:])
@settings(max_examples=times(15, soak=400))
@given(example=examples)
def test_any_script_keeps_the_laws_on_disk(kind: str, example: Example) -> None:
    """The same on files and in SQLite."""
    run_one(kind, example)


@in_check
def test_random_runs_survive_random_deaths(tmp_path: Path) -> None:
    """What `scripts/soak` does for minutes, for a few rounds: workers die at random writes and in tools, and every law holds."""
    for seed in range(12):
        directory = tmp_path / str(seed)
        directory.mkdir()
        try:
            asyncio.run(one_round(random.Random(seed), directory))
        except BaseException as error:
            error.add_note(f"scripts/soak --seed {seed}")
            raise
