"""Servers that are killed while clients read, and a database that crashes under them. `scripts/soak --server` does it with 200 streams."""

from __future__ import annotations

from pathlib import Path

import pytest

from amounts import in_check
from server.storm import stormed
from stores.postgres.cluster import new_cluster

pytestmark = [in_check, pytest.mark.timeout(300)]


def test_clients_of_a_killed_server_continue_at_another_one_and_see_each_record_once(tmp_path: Path) -> None:
    """SIGKILL with streams open and runs in progress: ours by `Last-Event-ID`, the SDK's by `starting_after`, AG-UI's by joining."""
    told = stormed(f"sqlite:///{tmp_path}/runs.db", runs=6, turns=12, pace_s=0.1, kills=2, seed=1)
    assert set(told["came back"]) == {"ours", "openai", "agui"}, "no client of a kind was cut off: the trial says nothing of it"
    assert told["taken over"] > 0


def test_clients_continue_when_the_database_has_crashed() -> None:
    """PostgreSQL is killed and started again under load: every run ends, and every client sees its end, and each record once."""
    cluster = new_cluster()
    try:
        stormed(cluster.database(), runs=6, turns=12, pace_s=0.1, kills=1, seed=1, disturb=cluster.restart)
    finally:
        cluster.remove()
