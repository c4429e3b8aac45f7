"""The worker host over a real Restate server keeps the contract of worker hosts."""

from __future__ import annotations

import secrets

import pytest

from amounts import thinned
from detent.ports import WorkerHost
from detent.testing.conformance.worker_host import WorkerHostContract, WorkerHostMaker
from detent.workers.restate import RestateHost
from workers.restate_server import RestateServer, free_ports


class RestateMaker(WorkerHostMaker):
    """Hosts of one virtual object on one server, at one address."""

    def __init__(self, server: RestateServer) -> None:
        super().__init__()
        self._server, self._service = server, f"t{secrets.token_hex(6)}"
        self._bind = f"127.0.0.1:{free_ports(1)[0]}"

    def host(self, *, concurrency: int = 4, max_attempts: int = 3, retry_pause_s: float = 60.0) -> WorkerHost:
        return RestateHost(
            ingress=self._server.ingress,
            admin=self._server.admin,
            bind=self._bind,
            service=self._service,
            sweep_s=0.05,
            concurrency=concurrency,
            max_attempts=max_attempts,
            retry_pause_s=retry_pause_s,
        )


@thinned
class TestRestateHost(WorkerHostContract):
    @pytest.fixture
    def maker(self, restate: RestateServer) -> WorkerHostMaker:
        return RestateMaker(restate)
