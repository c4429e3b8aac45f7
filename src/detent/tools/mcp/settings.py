"""What is said about MCP servers: how each is reached, which of its tools may be offered, and what is pinned about them.

    McpServer(command="npx", args=("-y", "@modelcontextprotocol/server-filesystem", "."), tools={"read_text_file": ToolPins(side_effect="read")})
    McpServer(url="https://tools.example.com/mcp", headers={"Authorization": "Bearer ${TOOLS_TOKEN}"})

A secret is written as a reference, `${NAME}`, to an environment variable; it is resolved when the server is started or connected to.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal, cast
from urllib.parse import urlsplit, urlunsplit

import msgspec

from detent.core.errors import ConfigError
from detent.core.events import SideEffect

SERVER_NAME = re.compile(r"[A-Za-z0-9_-]{1,32}")
SEPARATOR = "__"
EVERY = "*"


class ToolPins(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What an agent says about a server's tool, whatever the server says of it; None leaves it as it would be. Options as for `tool`."""

    side_effect: SideEffect | None = None
    idempotent: bool | None = None
    trust: Literal["trusted", "untrusted"] | None = None
    timeout_s: float | None = None
    retries: int | None = None
    scopes: tuple[str, ...] | None = None
    sensitive: tuple[str, ...] | None = None
    volatile: bool | None = None
    max_result_bytes: int | None = None

    def over(self, others: ToolPins) -> ToolPins:
        """Return these pins with everything that they leave open taken from `others`."""
        mine, theirs = msgspec.structs.asdict(self), msgspec.structs.asdict(others)
        return ToolPins(**{name: theirs[name] if value is None else value for name, value in mine.items()})


class McpServer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How to reach one MCP server, and what of it may be used. Raises `ConfigError` for what does not fit together.

    - `command`, `args`, `env`, `cwd`: a program that is started and spoken to over stdin and stdout. It gets HOME, LOGNAME, PATH, SHELL,
      TERM and USER of this process, and `env`; nothing else of the environment.
    - `url`, `headers`: a server over streamable HTTP. `${NAME}` in `env`, `headers`, `args` and `url` refers to an environment variable.
    - `tools`: the tools that may be offered: their names, or a mapping of names to pins; "*" in a mapping stands for all others. None: all.
    - `prefix`: the tools are called `PREFIX__tool`; None: the server's name; "": the bare name.
    - `start_timeout_s`: seconds for starting, handshake and tool list. `protocol`: "legacy" leaves out the probe for newer protocol
      versions, for a server that cannot bear it.
    - `elicitation`: what a server is answered that wants to ask the user something: "decline", or "defaults": a form is accepted with the
      defaults that it declares, where every required field has one and they fit; a URL never is.
    """

    command: str = ""
    args: Sequence[str] = ()
    env: Mapping[str, str] = {}
    cwd: str | None = None
    url: str = ""
    headers: Mapping[str, str] = {}
    tools: Sequence[str] | Mapping[str, ToolPins] | None = None
    prefix: str | None = None
    start_timeout_s: float = 30.0
    protocol: Literal["auto", "legacy"] = "auto"
    elicitation: Literal["decline", "defaults"] = "decline"

    def __post_init__(self) -> None:
        problem = self._problem()
        if problem:
            raise ConfigError(problem)

    def _problem(self) -> str:
        if bool(self.command) == bool(self.url):
            return "an MCP server is either a program (command = ...) or a URL (url = ...); give exactly one of them"
        if self.url and not self.url.startswith(("http://", "https://")):
            return "url: only http:// and https:// are spoken; for a program give command = ..."
        foreign = [name for name in (("args", "env", "cwd") if self.url else ("headers",)) if getattr(self, name)]
        if foreign:
            return f"{foreign[0]}: it means nothing for a server with {'url' if self.url else 'command'}; leave it out"
        if isinstance(self.args, str) or isinstance(self.tools, str):
            return "args and tools are lists of texts, not a text"
        if self.prefix and not SERVER_NAME.fullmatch(self.prefix):
            return f"prefix: {self.prefix!r}: use 1 to 32 letters, digits, '_' and '-', or \"\" for bare names"
        if type(self.start_timeout_s) not in (int, float) or not 0 < self.start_timeout_s < float("inf"):
            return f"start_timeout_s: {self.start_timeout_s!r}: give seconds, above 0"
        if self.protocol not in ("auto", "legacy"):
            return f"protocol: {self.protocol!r}: choose 'auto' or 'legacy'"
        if self.elicitation not in ("decline", "defaults"):
            return f"elicitation: {self.elicitation!r}: choose 'decline' or 'defaults'"
        return ""

    @property
    def where(self) -> str:
        """How the server is reached, in words: references unresolved, a URL without user and query."""
        if self.command:
            return " ".join((self.command, *self.args))
        parts = urlsplit(self.url)
        return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))

    def pins(self, tool: str) -> ToolPins | None:
        """Return what is pinned about the server's tool `tool`; None when it may not be offered."""
        if self.tools is None:
            return ToolPins()
        if not isinstance(self.tools, Mapping):
            return ToolPins() if tool in self.tools or EVERY in self.tools else None
        others = self.tools.get(EVERY)
        own = self.tools.get(tool)
        if own is None:
            return others
        return own if others is None else own.over(others)

    def named(self) -> list[str]:
        """Return the names of tools that the configuration names."""
        return [name for name in self.tools or () if name != EVERY]


def checked_servers(servers: Mapping[str, Any]) -> dict[str, McpServer]:
    """Return the servers by name; raise `ConfigError` for a name that no tool could be called by, or a value that is no `McpServer`."""
    for name, server in servers.items():
        if not SERVER_NAME.fullmatch(name):
            raise ConfigError(f"MCP server {name!r}: use 1 to 32 letters, digits, '_' and '-' for its name")
        if not isinstance(server, McpServer):
            raise ConfigError(f"MCP server {name!r} is a {type(server).__name__}; give an McpServer(command=...) or McpServer(url=...)")
    return cast("dict[str, McpServer]", dict(servers))
