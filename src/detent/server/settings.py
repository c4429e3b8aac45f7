"""What a server allows: sizes, rates, streams and times."""

from __future__ import annotations

import msgspec

from detent.core.errors import ConfigError, Explained
from detent.server.webhooks import Webhook


class ServerSettings(msgspec.Struct, metaclass=Explained, frozen=True, kw_only=True):
    """The bounds of a server; a request past one is told which (413, 429, 503).

    `rate` is how many requests a second each caller may send, `burst` how many at once. `streams` is how many event streams are open at once;
    one caller may have half of them.
    `origins` are the web pages (`https://host`) that may call it from a browser; by default only its own. `hosts` are the names under which it is
    reached; requests to another name are refused, so that a web page cannot reach it under a name of its own (DNS rebinding).
    """

    body_bytes: int = 4 * 1024 * 1024
    rate: float = 100.0
    burst: int = 200
    streams: int = 1_000
    heartbeat_s: float = 15.0
    receive_s: float = 30.0
    """How long the head of a request may take, and its body."""
    send_s: float = 10.0
    """A reader that takes nothing for this long is disconnected."""
    wait_s: float = 60.0
    """The longest time that a request may wait for the end of a run."""
    grace_s: float = 25.0
    secret: str = ""
    """Seals what MCP clients carry between requests and the inspector's links, at least 32 characters; servers of one store that share it continue each
    other's. "": one of this process."""
    webhooks: tuple[Webhook, ...] = ()
    """Who is told what happens to runs."""
    origins: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ("127.0.0.1", "localhost", "[::1]")

    def __post_init__(self) -> None:
        for name in ("body_bytes", "rate", "burst", "streams", "heartbeat_s", "receive_s", "send_s", "wait_s", "grace_s"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"{name} of the server is {getattr(self, name)!r}; give more than 0")
        if self.secret and len(self.secret.encode()) < 32:
            raise ConfigError("secret of the server is shorter than 32 characters; make one with `openssl rand -hex 32`")
        if wrong := [origin for origin in self.origins if "://" not in origin]:
            raise ConfigError(
                f"origin {wrong[0]!r} of the server is not scheme://host; write it as a browser sends it, https://example.org"
            )
