"""Trees of runs whose processes are killed (SIGKILL): a sample. `scripts/soak --teams` kills trees of up to 200 runs for as long as you let it."""

from __future__ import annotations

from pathlib import Path

import pytest

from amounts import PROFILE, crossed, in_check, sampled
from laws.places import Place
from teams.soak import hold, killed_at
from teams.trees import TEAMS, Tree

pytestmark = crossed

TRIED = ("sqlite", "file", pytest.param("postgres", marks=in_check))
WORKERS = (0, 3)
"""One process at a time, or three workers beside each other."""
SIZE, DEATHS = (6, 3) if PROFILE == "default" else (40, 20)


def place_for(kind: str, directory: Path, request: pytest.FixtureRequest) -> Place:
    """Return a new, empty place; skips the test where there is no PostgreSQL."""
    return Place(kind, directory, database=request.getfixturevalue("postgres_url") if kind == "postgres" else "")


@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize("kind", TRIED)
def test_a_tree_whose_processes_are_killed_is_the_tree_that_was_planned(
    kind: str, workers: int, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Each tool and each child once, usage that adds up, no bound exceeded at any record, the same replays: else somebody pays twice."""
    outcome = hold(place_for(kind, tmp_path, request), Tree(kind="exact", seed=5, size=SIZE), workers=workers, deaths=DEATHS, seed=5)
    assert (outcome.runs, outcome.joined) == (SIZE, SIZE - 1) and outcome.killed > 0


@pytest.mark.parametrize("kind", TRIED)
@pytest.mark.parametrize("team", TEAMS)
def test_each_element_of_a_team_is_done_once_though_its_workers_die(
    team: str, kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """A vote would count a voter twice, and a task that others need would be done again."""
    outcome = hold(place_for(kind, tmp_path, request), Tree(kind=team, seed=1, size=SIZE), workers=3, deaths=DEATHS, seed=1)
    assert outcome.runs == SIZE + 1 and outcome.killed > 0


@in_check
@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize("kind", TRIED)
def test_a_death_at_a_write_of_a_tree_repeats_nothing(kind: str, workers: int, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """Some of its writes, before or after them; `scripts/soak --teams` tries them all."""
    for number, write in enumerate(sampled(range(4, 45), few=2)):
        (directory := tmp_path / str(write)).mkdir()
        place, when = place_for(kind, directory, request), "before" if number % 2 else "after"
        assert killed_at(place, Tree(kind="exact", seed=2, size=4), workers=workers, write=write, when=when) is not None
