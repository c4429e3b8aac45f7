"""Detent's own worker host keeps the contract of worker hosts, over each kind of store."""

from __future__ import annotations

from pathlib import Path

import pytest

from amounts import thinned
from detent.ports import EventStore, WorkerHost
from detent.stores import open_store
from detent.testing.conformance.worker_host import PullingHostContract, WorkerHostMaker
from detent.testing.conformance.worker_runs import RunsContract
from detent.workers import InProcessHost


class InProcessMaker(WorkerHostMaker):
    """Hosts that have nothing but the store."""

    def host(self, *, concurrency: int = 4, max_attempts: int = 3, retry_pause_s: float = 60.0) -> WorkerHost:
        return InProcessHost(concurrency=concurrency, max_attempts=max_attempts, retry_pause_s=retry_pause_s, poll_s=0.005)


class FiledMaker(InProcessMaker):
    """The same, on stores that open a URL."""

    def __init__(self, url: str) -> None:
        super().__init__()
        self.url = url

    def store(self) -> EventStore:
        return open_store(self.url)


class TestInProcessHost(PullingHostContract):
    @pytest.fixture
    def maker(self) -> WorkerHostMaker:
        return InProcessMaker()


@thinned
class TestOverFiles(RunsContract):
    @pytest.fixture(params=["sqlite", "file"])
    def maker(self, request: pytest.FixtureRequest, tmp_path: Path) -> WorkerHostMaker:
        return FiledMaker(f"sqlite:///{tmp_path}/runs.db" if request.param == "sqlite" else f"file:{tmp_path}/runs")


@thinned
class TestOverPostgres(RunsContract):
    @pytest.fixture
    def maker(self, postgres_url: str) -> WorkerHostMaker:
        return FiledMaker(postgres_url)
