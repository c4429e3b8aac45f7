"""The connections of a server: what is answered is sent at once."""

from __future__ import annotations

import asyncio
import socket

from detent.server import ServerSettings, app
from detent.server.listening import Listener
from server.serving import EVERYBODY, Client, engine_of


def test_the_body_of_an_answer_does_not_wait_until_its_head_is_acknowledged() -> None:
    """Readers acknowledge late, after 40 ms on Linux; with TCP_NODELAY nothing waits for that."""

    async def run() -> None:
        settings = ServerSettings(grace_s=1)
        server = Listener(app(engine_of("ram:"), tokens=EVERYBODY, settings=settings), settings)
        with socket.create_server(("127.0.0.1", 0)) as listening:
            async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
                tasks.create_task(server.on(listening))
                async with Client(f"http://127.0.0.1:{listening.getsockname()[1]}", "ann") as client:
                    assert (await client.get("/runs")).status_code == 200
                    (connection,) = server.server_state.connections
                    end = connection.transport.get_extra_info("socket")
                    assert end.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
                server.stop()

    asyncio.run(run())
