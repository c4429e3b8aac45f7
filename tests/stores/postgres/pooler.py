"""A pooler on loopback before the socket of a server, in statement, transaction or session mode."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from typing import Literal

Mode = Literal["statement", "transaction", "session"]
NO_TRANSACTIONS = b"SERROR\0C08P01\0Mtransaction blocks not allowed in statement pooling mode\0\0"


class Pooler:
    """Lends each client a session of the server, for one statement or transaction or for as long as it is connected. Use as `with Pooler(...) as pooler:`.

    At most `sessions` are open; the one that came back last is lent first. Clients are told the key of no session. Users need no password.
    """

    def __init__(self, server: str, database: str, *, mode: Mode, sessions: int = 10) -> None:
        self._server, self._database, self._mode = server, database, mode
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"postgresql://detent@127.0.0.1:{self._listener.getsockname()[1]}/{database}"
        self._free: list[_Session] = []
        self._open: list[socket.socket] = []
        self._places = threading.Semaphore(sessions)
        self._accepting = threading.Thread(target=self._accept, daemon=True)
        self._serving: list[threading.Thread] = []

    def __enter__(self) -> Pooler:
        self._accepting.start()
        return self

    def __exit__(self, *_: object) -> None:
        with self._listener:
            self._listener.shutdown(socket.SHUT_RDWR)  # closing alone would not wake who waits in accept()
            self._accepting.join()
        while any(thread.is_alive() for thread in self._serving):
            self._places.release()  # who still waits for a session finds its client gone
            for end in self._open:
                with contextlib.suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)
            for thread in self._serving:
                thread.join(0.01)
        for end in self._open:
            end.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self._open.append(client)
            self._serving.append(threading.Thread(target=self._serve, args=(client,), daemon=True))
            self._serving[-1].start()

    def _lend(self) -> _Session:
        self._places.acquire()
        if self._free:
            return self._free.pop()
        end = socket.socket(socket.AF_UNIX)
        self._open.append(end)
        end.connect(self._server)
        return _Session(end, self._database)

    def _serve(self, client: socket.socket) -> None:
        session: _Session | None = None
        with contextlib.suppress(OSError, EOFError):
            while int.from_bytes(_begin(client)[:4], "big") != 196608:  # neither encryption nor a cancellation
                client.sendall(b"N")
            session = self._lend()
            client.sendall(session.greeting)
            while True:
                if self._mode != "session" and session is not None and session.idle:
                    self._give_back(session)
                    session = None
                kind, body = _message(client)
                if kind == b"X":
                    break
                if self._mode == "statement" and b"BEGIN" in body:
                    client.sendall(_framed(b"E", NO_TRANSACTIONS))
                    break
                session = session or self._lend()
                session.pass_on(kind, body, client)
        if session is not None:
            self._give_back(session)
        client.close()

    def _give_back(self, session: _Session) -> None:
        self._free.append(session)
        self._places.release()


class _Session:
    """A connection to the server, and whether it is outside of any transaction."""

    def __init__(self, end: socket.socket, database: str) -> None:
        self.end = end
        said = b"".join(part.encode() + b"\0" for part in ("user", "detent", "database", database, ""))
        self.end.sendall(struct.pack(">II", 8 + len(said), 196608) + said)
        self.greeting, self.idle = b"", True
        for kind, body in self._answers():
            key = struct.pack(">II", 4_000_000, 1)
            self.greeting += _framed(kind, key if kind == b"K" else body)

    def pass_on(self, kind: bytes, body: bytes, client: socket.socket) -> None:
        """Give the server a message of the client, and the client all answers where the message asks for them."""
        self.idle = False
        self.end.sendall(_framed(kind, body))
        if kind in (b"S", b"Q"):
            for answer in self._answers():
                client.sendall(_framed(*answer))

    def _answers(self) -> list[tuple[bytes, bytes]]:
        answers = [_message(self.end)]
        while answers[-1][0] != b"Z":
            answers.append(_message(self.end))
        self.idle = answers[-1][1] == b"I"
        return answers


def _framed(kind: bytes, body: bytes) -> bytes:
    return kind + struct.pack(">I", 4 + len(body)) + body


def _begin(end: socket.socket) -> bytes:
    return _exactly(end, int.from_bytes(_exactly(end, 4), "big") - 4)


def _message(end: socket.socket) -> tuple[bytes, bytes]:
    return _exactly(end, 1), _begin(end)


def _exactly(end: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        if not (more := end.recv(count - len(data))):
            raise EOFError
        data += more
    return data
