"""A network that can be cut: a proxy on loopback before the socket of a server."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable
from typing import Literal

Loss = Literal["request", "reply"]


class Proxy:
    """Passes bytes on between clients and the server until it is told otherwise. Use as `with Proxy(socket) as proxy:`."""

    def __init__(self, server: str | tuple[str, int]) -> None:
        """`server`: the path of its socket, or its address."""
        self._server = server
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._open = threading.Event()
        self._open.set()
        self._refusing = False
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._armed: tuple[bytes, Loss, Callable[[], None]] | None = None
        self.lost = 0
        self._passing: list[threading.Thread] = []
        self._thread = threading.Thread(target=self._accept, daemon=True)

    def __enter__(self) -> Proxy:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._refusing = True
        self._open.set()
        with self._listener:
            self._listener.shutdown(socket.SHUT_RDWR)  # closing alone would not wake who waits in accept()
            self._thread.join()
        self.hang_up()
        for thread in self._passing:
            thread.join()
        for pair in self._pairs:
            for end in pair:
                end.close()

    def url(self, database_url: str, **options: str) -> str:
        """Return the URL of the same database through this proxy."""
        database = database_url.partition("?")[0].rpartition("/")[2]
        query = "&".join(f"{name}={value}" for name, value in options.items())
        return f"postgresql://detent@127.0.0.1:{self.port}/{database}" + (f"?{query}" if query else "")

    def cut(self) -> None:
        """From now on nothing passes, and nobody is told."""
        self._open.clear()

    def heal(self) -> None:
        """What was held up passes, and everything after it."""
        self._refusing = False
        self._open.set()

    def hang_up(self) -> None:
        """Close every connection."""
        for pair in self._pairs:
            for end in pair:
                with contextlib.suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)

    def refuse(self) -> None:
        """Close every connection, and new ones at once."""
        self._refusing = True
        self.hang_up()

    def lose(self, marker: bytes, what: Loss, then: Callable[[], None] = lambda: None) -> None:
        """Of the next message that holds `marker`, lose the request, or only the reply; then do `then`, and close its connection."""
        self._armed = marker, what, then

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            if self._refusing:
                client.close()
                continue
            server = socket.socket(socket.AF_UNIX if isinstance(self._server, str) else socket.AF_INET)
            try:
                self._open.wait()
                server.connect(self._server)
            except OSError:
                client.close()
                server.close()
                continue
            self._pairs.append((client, server))
            losing = threading.Event()
            for source, target, to_server in ((client, server, True), (server, client, False)):
                thread = threading.Thread(target=self._pass, args=(source, target, losing, to_server), daemon=True)
                self._passing.append(thread)
                thread.start()

    def _pass(self, source: socket.socket, target: socket.socket, losing: threading.Event, to_server: bool) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                self._open.wait()
                armed = self._armed
                if to_server and armed is not None and armed[0] in data:
                    if armed[1] == "reply":
                        losing.set()
                    else:
                        self._lose(armed[2])
                        break
                if not to_server and losing.is_set() and armed is not None:
                    self._lose(armed[2])
                    break
                target.sendall(data)
        for end in (source, target):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def _lose(self, then: Callable[[], None]) -> None:
        self._armed = None
        self.lost += 1
        then()
