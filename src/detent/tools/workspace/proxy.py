"""The way from a sandbox to some hosts: an HTTP proxy in this process, whose listening socket is in the sandbox's own network namespace.

The namespace has only its loopback, so this socket is the only way out. A helper process enters the namespace, opens the socket there and passes it
here (`setns(2)`; this process cannot, because it has threads). The proxy supports `CONNECT` (https, and anything else that uses it) and plain http. It
compares the host with the list, resolves the name itself, refuses addresses that are not public, and connects to the address that it checked. Each
program has its own proxy, which is closed with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
import sys
from asyncio import StreamReader, StreamWriter
from collections.abc import Sequence
from urllib.parse import SplitResult

import msgspec

from detent.core.errors import ConfigError, NotExecuted, ToolFailed
from detent.tools.failures import failed, shown
from detent.tools.web.addresses import PORTS, Network, networks, parse_url, resolve

PORT = 3128
"""The port that the proxy listens on inside. The namespace is empty, so the port is free."""

MAX_CONNECTIONS = 64
MAX_HEAD = 16_384
WAIT_S = 30.0
CHUNK = 65_536
KEPT = 20
_NUMBER = re.compile(r"0x[0-9a-f]*|[0-9]+")
_ENTRY = re.compile(r"(?P<name>(\*\.)?[a-z0-9_-]+(\.[a-z0-9_-]+)*)(:(?P<port>[0-9]{1,5}))?")

_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_LINE = re.compile(_TOKEN.pattern + r":[\t\x20-\x7e\x80-\xff]*")
"""A header on one line: its name is a token without a space before the colon, and its value has no control characters, such as a lone CR or LF."""

_LISTEN = """
import ctypes, fcntl, os, socket, sys
net = os.open(f"/proc/{sys.argv[1]}/ns/net", os.O_RDONLY)
owner = fcntl.ioctl(net, 0xB701)  # NS_GET_USERNS, ioctl_ns(2)
libc = ctypes.CDLL(None, use_errno=True)
for space in (owner, net):
    if libc.setns(space, 0):
        raise SystemExit("setns: " + os.strerror(ctypes.get_errno()))
with socket.socket() as server:
    server.bind(("0.0.0.0", int(sys.argv[3])))
    server.listen(64)
    socket.send_fds(socket.socket(fileno=int(sys.argv[2])), [b"x"], [server.fileno()])
"""


class Hosts(msgspec.Struct, frozen=True):
    """An allow-list: `name`, or `*.name` for all names below it, with `:port` for a port other than 80 and 443. Raise `ConfigError`."""

    entries: tuple[tuple[str, int | None], ...]
    private: tuple[Network, ...]

    @classmethod
    def of(cls, texts: Sequence[str], allow_private: Sequence[str] = ()) -> Hosts:
        """Return the list for these texts. Addresses in the ranges `allow_private` are allowed although they are not public."""
        entries: list[tuple[str, int | None]] = []
        for text in texts:
            match = _ENTRY.fullmatch(text)
            if match is not None and _NUMBER.fullmatch(match["name"].rpartition(".")[2]):
                raise ConfigError(f"sandbox_network: {text!r} is an address; write a host name, which the proxy resolves and checks")
            if match is None or not 0 < int(match["port"] or 1) < 65_536:
                raise ConfigError(
                    f"sandbox_network: {text!r} is not a host; write 'pypi.org', '*.example.com' or 'pypi.org:8443', in lower case"
                )
            entries.append((match["name"], int(match["port"]) if match["port"] else None))
        return cls(tuple(entries), networks(allow_private))

    def allow(self, host: str, port: int) -> bool:
        """Whether a program may connect to a port of a host."""
        return any(
            (name == host or (name.startswith("*.") and host.endswith(name[1:]) and len(host) > len(name) - 1))
            and (port == wanted if wanted is not None else port in PORTS.values())
            for name, wanted in self.entries
        )


class Proxy:
    """The proxy of one program. `connections` counts the connections made. `refused` are the first refused hosts."""

    def __init__(self, hosts: Hosts) -> None:
        self._hosts = hosts
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self.connections = 0
        self.refused: list[str] = []

    async def open(self, process: int) -> None:
        """Listen in the network namespace of a process. Raise `NotExecuted` if that is not possible."""
        mine, theirs = socket.socketpair()
        with mine, theirs:
            helper = await asyncio.create_subprocess_exec(
                *(sys.executable, "-I", "-S", "-c", _LISTEN, str(process), str(theirs.fileno()), str(PORT)),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.PIPE,
                pass_fds=(theirs.fileno(),),
                env={},
                start_new_session=True,  # Ctrl-C at a terminal is for this process
            )
            _, said = await helper.communicate()
            if helper.returncode != 0:
                why = (said.decode(errors="replace").strip().splitlines() or [f"code {helper.returncode}"])[-1]
                raise NotExecuted(f"nothing was started: the sandbox's way to the network failed ({why})", error_code="sandbox_failed")
            _, descriptors, _, _ = socket.recv_fds(mine, 1, 1)
        listening = socket.socket(fileno=descriptors[0])
        listening.setblocking(False)
        self._server = await asyncio.start_server(self._accept, sock=listening, limit=MAX_HEAD)

    async def close(self) -> None:
        """Close everything."""
        if self._server is not None:
            self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _accept(self, reader: StreamReader, writer: StreamWriter) -> None:
        task = asyncio.current_task()
        if task is None or len(self._tasks) >= MAX_CONNECTIONS:
            writer.close()
            return
        self._tasks.add(task)
        try:
            await self._serve(reader, writer)
        except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # one side is gone, or never sent a request
        finally:
            self._tasks.discard(task)
            writer.close()

    async def _serve(self, reader: StreamReader, writer: StreamWriter) -> None:
        async with asyncio.timeout(WAIT_S):
            head = await reader.readuntil(b"\r\n\r\n")
        try:
            method, target, version, lines = _head(head[:-4].decode("latin-1"))
            tunnel = method == "CONNECT"
            url, host = parse_url(f"https://{target}/" if tunnel else target)
            if not tunnel and url.scheme != "http":
                raise failed("not_allowed", f"{shown(target)}: https goes through CONNECT")
            port = url.port or PORTS[url.scheme]
            if not tunnel:
                _length(lines)
            if not self._hosts.allow(host, port):
                self.refused += [f"{host}:{port}"] if len(self.refused) < KEPT and f"{host}:{port}" not in self.refused else []
                raise failed("not_allowed", f"{host}:{port} is not in sandbox_network")
            addresses = await resolve(host, port, self._hosts.private)
        except ValueError:
            await _answer(writer, 400, "no request of a client to its proxy")
            return
        except ToolFailed as error:
            await _answer(writer, 403, str(error))
            return
        there = await _connected(addresses, port)
        if there is None:
            await _answer(writer, 502, f"{host}:{port} does not answer")
            return
        self.connections += 1
        answer, ask = there
        try:
            if tunnel:
                writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
            else:
                ask.write(_request(method, url, version, lines))
            body = None if tunnel else _length(lines)
            await asyncio.gather(_relay(reader, ask, body), _relay(answer, writer))
        finally:
            ask.close()


async def _connected(addresses: Sequence[str], port: int) -> tuple[StreamReader, StreamWriter] | None:
    """Return a connection to the first of the checked addresses that answers."""
    for address in addresses:
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(WAIT_S):
                return await asyncio.open_connection(address, port)
    return None


def _request(method: str, url: SplitResult, version: str, lines: Sequence[str]) -> bytes:
    """Return the head of a plain request for the server: only for this host, and the last on its connection."""
    kept = [line for line in lines if not line.lower().startswith(("host:", "connection:", "keep-alive:", "proxy-"))]
    path = (url.path or "/") + (f"?{url.query}" if url.query else "")
    return "\r\n".join([f"{method} {path} {version}", f"Host: {url.netloc}", *kept, "Connection: close", "", ""]).encode("latin-1")


def _head(text: str) -> tuple[str, str, str, list[str]]:
    """Return the method, target, version and header lines of a request. Raise `ValueError` for a request that servers could read in two ways."""
    first, *lines = text.split("\r\n")
    method, target, version = first.split(" ")
    if not _TOKEN.fullmatch(method) or version not in ("HTTP/1.0", "HTTP/1.1") or not all(map(_LINE.fullmatch, lines)):
        raise ValueError(first)
    return method, target, version, lines


def _length(lines: Sequence[str]) -> int:
    """Return the length of a plain request's body in bytes. Raise `ValueError` unless it is given exactly once, in digits."""
    said: dict[str, list[str]] = {}
    for name, _, value in (line.partition(":") for line in lines):
        said.setdefault(name.lower(), []).append(value.strip(" \t"))
    lengths = said.get("content-length", ["0"])
    if "transfer-encoding" in said or "upgrade" in said or len(lengths) > 1 or not re.fullmatch("[0-9]{1,15}", lengths[0]):
        raise ValueError("one body, with a Content-Length")
    return int(lengths[0])


async def _relay(reader: StreamReader, writer: StreamWriter, most: int | None = None) -> None:
    """Forward the bytes of one side until its end, or up to `most` bytes."""
    while chunk := await reader.read(CHUNK if most is None else min(CHUNK, most)):
        most = None if most is None else most - len(chunk)
        writer.write(chunk)
        await writer.drain()
    if most != 0 and writer.can_write_eof():
        writer.write_eof()


async def _answer(writer: StreamWriter, status: int, why: str) -> None:
    text = f"{why}\n".encode()
    writer.write(
        f"HTTP/1.1 {status} Refused\r\nContent-Type: text/plain\r\nContent-Length: {len(text)}\r\nConnection: close\r\n\r\n".encode() + text
    )
    await writer.drain()
