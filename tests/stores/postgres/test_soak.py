"""The short version of the soak; `tests/faults/soak_postgres.py` is the long one."""

from __future__ import annotations

from pathlib import Path

import pytest

from amounts import in_check
from stores.postgres.cluster import Cluster
from stores.postgres.soak import soak


@in_check
@pytest.mark.timeout(280)
def test_processes_that_are_killed_and_a_server_that_crashes_lose_and_repeat_nothing(own_postgres: Cluster, tmp_path: Path) -> None:
    """Every run ends, no effect happens twice, every acknowledged record is there, chains verify and replays are identical."""
    outcome = soak(own_postgres, tmp_path, runs=60, processes=8, seed=7)
    assert (outcome.runs, outcome.effects) == (60, 360)
    assert outcome.killed + outcome.restarts > 0
