"""Stored data about servers, out of reach of the tools in a directory: a user's tokens, and the declarations that were pinned for a directory.

Files have mode 0600, their folders 0700, and are replaced as a whole. A token's file is named after its URL, so a server under another URL never finds
it, even with the same name.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncGenerator, Callable
from hashlib import sha256
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from detent.core.errors import ConfigError
from detent.ports.private_files import private_file
from detent.tools.mcp.settings import McpServer

T = TypeVar("T")
LOCK_POLL_S = 0.05
LOCK_S = 30.0


class Authorisation(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The result of a login: tokens (`expires_at`: in seconds since 1970), and where to get new ones. `wanted`: the scope that was missing."""

    url: str
    tokens: dict[str, Any] | None = None
    expires_at: float | None = None
    client: dict[str, Any] | None = None
    issuer_metadata: dict[str, Any] | None = None
    resource_metadata: dict[str, Any] | None = None
    wanted: str = ""


class Pinned(msgspec.Struct, frozen=True, kw_only=True):
    """The declarations of a server's tools, by name, as a person accepted them. `where`: how it was reached then."""

    where: str
    tools: dict[str, dict[str, Any]]


class Kept:
    """The files. Both places may raise `ConfigError` if there is no home directory; then nothing is stored."""

    def __init__(self, home: Callable[[], Path] | None = None, directory: Callable[[], Path] | None = None) -> None:
        self._home, self._directory = home, directory

    def pins(self, name: str) -> Pinned | None:
        """Return the pins of the server with that name. Raise `ConfigError` if the file cannot be read."""
        return self._read(self._directory, f"{name}.json", Pinned)

    def pin(self, name: str, pinned: Pinned) -> Path:
        """Store these declarations and return where. Raise `ConfigError` if that is not possible."""
        return _write(_place(self._directory) / f"{name}.json", pinned)

    def authorisation(self, server: McpServer, url: str) -> Authorisation | None:
        """Return the stored login at this URL."""
        found = self._read(self._home, f"{_digest(server, url)}.json", Authorisation)
        return found if found is not None and found.url == url else None

    def authorise(self, server: McpServer, authorisation: Authorisation) -> Path:
        """Store the result of a login and return where. Raise `ConfigError` if that is not possible."""
        return _write(_place(self._home) / f"{_digest(server, authorisation.url)}.json", authorisation)

    def forget(self, server: McpServer, url: str) -> bool:
        """Remove the stored login. Return whether there was one."""
        path = _place(self._home) / f"{_digest(server, url)}.json"
        there = path.exists()
        path.unlink(missing_ok=True)
        return there

    @contextlib.asynccontextmanager
    async def alone(self, server: McpServer, url: str) -> AsyncGenerator[None]:
        """Keep all other processes of this user from changing the data for this URL. Raise `TimeoutError`."""
        import fcntl

        path = _place(self._home) / f"{_digest(server, url)}.lock"
        _folder(path.parent)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            async with asyncio.timeout(LOCK_S):
                while True:
                    try:
                        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                        break
                    except BlockingIOError:  # polled: a blocking flock cannot be cancelled
                        await asyncio.sleep(LOCK_POLL_S)
            yield
        finally:
            os.close(descriptor)

    def _read(self, place: Callable[[], Path] | None, name: str, kind: type[T]) -> T | None:
        try:
            path = _place(place) / name
        except ConfigError:
            return None
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            return None
        try:
            return msgspec.json.decode(data, type=kind)
        except msgspec.DecodeError as error:
            raise ConfigError(f"{path}: it cannot be read ({error}); remove it, then pin or log in again") from None


def _place(place: Callable[[], Path] | None) -> Path:
    if place is None:
        raise ConfigError("there is no directory to store data about MCP servers")
    return place() / "mcp"


def _digest(server: McpServer, url: str) -> str:
    client = server.oauth.client_id if server.oauth is not None else ""
    return sha256(f"{url}\n{client}".encode()).hexdigest()[:32]


def _folder(path: Path) -> None:
    path.mkdir(parents=True, exist_ok=True)
    path.chmod(0o700)


def _write(path: Path, value: Any) -> Path:
    _folder(path.parent)
    with private_file(path) as file:
        file.write(msgspec.json.format(msgspec.json.encode(value, order="sorted"), indent=2))
    return path
