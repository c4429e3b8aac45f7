"""A proxy on loopback between a store and its server that cuts the connection at a chosen message, as a network or a failover does."""

from __future__ import annotations

import contextlib
import socket
import threading
from typing import Literal

Loss = Literal["request", "reply"]

Address = tuple[str, int] | str
"""Where a server listens: host and port, or the path of a socket."""


class FaultProxy:
    """Forwards bytes between clients and the server. Use as `with FaultProxy(address) as proxy:`; clients connect to 127.0.0.1:`port`.

    `cut_at(n, loss)` closes the connection of the n-th message that clients send from now on: before the server gets it (`request`), or when
    the server answers it (`reply`). Later connections pass. `cuts` counts what was cut.
    """

    def __init__(self, server: Address) -> None:
        self._server = server
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.cuts = 0
        self._lock = threading.Lock()
        self._armed: tuple[int, Loss] | None = None
        self._pairs: list[tuple[socket.socket, socket.socket]] = []

    def __enter__(self) -> FaultProxy:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for pair in self._pairs:
            _end(*pair)

    def cut_at(self, message: int, loss: Loss) -> None:
        """Cut the connection of the message of this number (from 1) that clients send from now on."""
        with self._lock:
            self._armed = message, loss

    def pass_all(self) -> bool:
        """Stop cutting; return whether a planned cut did not happen."""
        with self._lock:
            left, self._armed = self._armed is not None, None
        return left

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = socket.socket(socket.AF_UNIX if isinstance(self._server, str) else socket.AF_INET)
            try:
                server.connect(self._server)
            except OSError:
                _end(client, server)
                continue
            self._pairs.append((client, server))
            losing = threading.Event()
            threading.Thread(target=self._requests, args=(client, server, losing), daemon=True).start()
            threading.Thread(target=self._replies, args=(client, server, losing), daemon=True).start()

    def _requests(self, client: socket.socket, server: socket.socket, losing: threading.Event) -> None:
        with contextlib.suppress(OSError):
            while data := client.recv(1 << 20):
                loss = self._counted()
                if loss == "request":
                    break
                if loss == "reply":
                    losing.set()
                server.sendall(data)
        _end(client, server)

    def _replies(self, client: socket.socket, server: socket.socket, losing: threading.Event) -> None:
        with contextlib.suppress(OSError):
            while (data := server.recv(1 << 20)) and not losing.is_set():
                client.sendall(data)
        _end(client, server)

    def _counted(self) -> Loss | None:
        """Count a message; return which part of it to lose."""
        with self._lock:
            if self._armed is None:
                return None
            left, loss = self._armed[0] - 1, self._armed[1]
            self._armed = (left, loss) if left else None
            self.cuts += not left
            return None if left else loss


def _end(*sockets: socket.socket) -> None:
    for one in sockets:
        with contextlib.suppress(OSError):
            one.shutdown(socket.SHUT_RDWR)
        one.close()
