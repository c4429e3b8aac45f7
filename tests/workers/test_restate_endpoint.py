"""The server of one worker that Restate calls: what it answers, to whom, and how it ends."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import secrets
import signal
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest

from amounts import sampled
from detent.core.errors import ConfigError
from detent.testing.conformance.worker_backlog import Pile
from detent.workers.restate import RestateHost
from detent.workers.restate.endpoint import Endpoint, Next, Ticks
from workers.restate_server import RestateServer, free_ports

NOBODY = Path(__file__).parent.parent / "nobody.pem"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"identity_keys": ["nobody"]}, r"identity_keys are \['nobody'\] \(.*publickeyv1_.*give public keys"),
        ({"tls_certificate": "/no.pem", "tls_key": "/no.key"}, "cannot be used: .*No such file"),
        ({"tls_certificate": str(NOBODY), "tls_key": str(NOBODY)}, "cannot be used"),
        ({"bind": "127.0.0.1:99999"}, "bind is '127.0.0.1:99999'"),
    ],
)
def test_a_worker_that_cannot_serve_says_which_option_is_wrong(options: dict[str, Any], said: str) -> None:
    """Before it registers anywhere."""
    with pytest.raises(ConfigError, match=said):
        asyncio.run(RestateHost(**{"bind": "127.0.0.1:0", **options}).work(Pile(), until_idle=True))


def test_with_identity_keys_a_worker_answers_only_restate_servers_that_hold_them() -> None:
    """Whoever else reaches it is refused, and no run moves."""

    async def main() -> None:
        ticked: list[str] = []

        async def ticks(run_id: str, crowded: int) -> None:
            ticked.append(run_id)

        key = "publickeyv1_w7YHemBctH5Ck2nQRQ47iBBqhNHy4FV7t2Usbye2A6f"
        endpoint = Endpoint("detent", ticks, tick_s=1, bind="127.0.0.1:0", identity_keys=(key,), tls=None)
        endpoint.start()
        try:
            async with httpx2.AsyncClient(base_url=f"http://127.0.0.1:{endpoint.socket.getsockname()[1]}", trust_env=False) as client:
                answers = [await client.get("/discover"), await client.post("/invoke/detent/tick", content=b"")]
        finally:
            await endpoint.stop()
        assert ([answer.status_code for answer in answers], ticked) == ([401, 401], [])

    asyncio.run(main())


async def with_endpoint(server: RestateServer, ticks: Ticks, work: Callable[[RestateHost], Awaitable[None]]) -> Endpoint:
    """Do the work beside an endpoint that the server knows, and return it when it has stopped."""
    host = RestateHost(ingress=server.ingress, admin=server.admin, bind=f"127.0.0.1:{free_ports(1)[0]}", service=f"t{secrets.token_hex(6)}")
    endpoint = Endpoint(host.service, ticks, tick_s=0.1, bind=host.bind, identity_keys=(), tls=None)
    endpoint.start()
    try:
        await host.served.register(host.url)
        await work(host)
    finally:
        await endpoint.stop()
        await host.close()
    return endpoint


def test_a_tick_is_one_request(restate: RestateServer) -> None:
    """Restate says over it that the outcome is journaled, instead of calling again."""

    async def nothing(run_id: str, crowded: int) -> Next:
        return None

    async def work(host: RestateHost) -> None:
        assert await host.served.tick("a run", through=True)

    endpoint = asyncio.run(with_endpoint(restate, nothing, work))
    assert endpoint._server.server_state.total_requests == 2, "one is the discovery"


def test_a_worker_that_is_silent_for_longer_than_a_tick_is_called_again(restate: RestateServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """After the time that a tick takes at most, and not after the minute that Restate gives everybody."""
    monkeypatch.setattr("detent.workers.restate.endpoint.WORKS_S", 0.1)
    called: list[str] = []

    async def hangs_once(run_id: str, crowded: int) -> Next:
        called.append(run_id)
        if len(called) == 1:
            await asyncio.Event().wait()
        return None

    async def work(host: RestateHost) -> None:
        async with asyncio.timeout(45):
            assert await host.served.tick("a run", through=True)

    asyncio.run(with_endpoint(restate, hangs_once, work))
    assert called == ["a run", "a run"]


def test_a_worker_that_stops_waits_for_no_restate_that_hangs(own_restate: RestateServer, caplog: pytest.LogCaptureFixture) -> None:
    """Its ticks are answered; that nobody says whether their outcomes are journaled is no error of the worker."""
    begun, go = asyncio.Event(), asyncio.Event()

    async def waits(run_id: str, crowded: int) -> Next:
        begun.set()
        await go.wait()
        return None

    async def work(host: RestateHost) -> None:
        await host.served.tick("a run")
        await begun.wait()
        own_restate.process.send_signal(signal.SIGSTOP)
        go.set()

    try:
        asyncio.run(with_endpoint(own_restate, waits, work))
    finally:
        own_restate.process.send_signal(signal.SIGCONT)
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR] == []


@pytest.mark.parametrize("turn", sampled(range(6), few=3))
def test_a_connection_that_arrives_while_a_worker_stops_is_closed(turn: int) -> None:
    """So many turns of the loop after the server was told to end. Whoever called knows at once, and nothing is left to the garbage collector."""

    async def nothing(run_id: str, crowded: int) -> Next:
        return None

    async def main() -> socket.socket | None:
        endpoint = Endpoint("t", nothing, tick_s=1, bind="127.0.0.1:0", identity_keys=(), tls=None)
        endpoint.start()
        place, callers = endpoint.socket.getsockname(), list[socket.socket]()
        async with httpx2.AsyncClient(base_url=f"http://127.0.0.1:{place[1]}", trust_env=False) as client:
            await client.get("/discover")  # it serves from here on
        server: Any = endpoint._server

        async def arrive() -> None:
            if not turn:
                callers.append(socket.create_connection(place))
            server.end()
            for _ in range(turn):
                await asyncio.sleep(0)
            if turn:
                with contextlib.suppress(ConnectionRefusedError):  # it listens no more
                    callers.append(socket.create_connection(place))

        await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(arrive(), server._wanted[0]))
        await endpoint.stop()
        return callers[0] if callers else None

    if (caller := asyncio.run(main())) is not None:
        with caller, contextlib.suppress(ConnectionResetError):
            caller.settimeout(20)
            assert caller.recv(1) == b"", "it was answered"
    gc.collect()  # what is left open is told now
