"""The settings of MCP servers: how to reach each one, which of its tools may be offered, and their pins.

    McpServer(command="npx", args=("-y", "@modelcontextprotocol/server-filesystem", "."), tools={"read_text_file": ToolPins(side_effect="read")})
    McpServer(url="https://tools.example.com/mcp", headers={"Authorization": "Bearer ${TOOLS_TOKEN}"})

A secret is written as a reference, `${NAME}`, to an environment variable. It is resolved when the server is started or connected.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal, cast
from urllib.parse import urlsplit, urlunsplit

import msgspec

from detent.core.durations import Seconds, usually
from detent.core.errors import ConfigError, Explained, UnknownName
from detent.core.events import SideEffect
from detent.ports.options import check_fields
from detent.tools.functions.options import read_options

SERVER_NAME = re.compile(r"[A-Za-z0-9_-]{1,32}")
SEPARATOR = "__"
EVERY = "*"
OPERATORS_KEYS = ("trust_hints", "roots")
"""The keys that only the operator may set, never a file that tools can write."""
ADDED = (*OPERATORS_KEYS, "tools", "oauth")
"""The settings that may extend a server described elsewhere."""


class ToolPins(msgspec.Struct, metaclass=Explained, frozen=True, kw_only=True, omit_defaults=True):
    """Options of a server's tool that override the server's declaration. None leaves an option unchanged. The options are those of `tool`."""

    side_effect: SideEffect | None = None
    idempotent: bool | None = None
    trust: Literal["trusted", "untrusted"] | None = None
    timeout_s: Seconds[float | None] = usually(None)
    retries: int | None = None
    scopes: tuple[str, ...] | None = None
    sensitive: tuple[str, ...] | None = None
    volatile: bool | None = None
    max_result_bytes: int | None = None

    __post_init__ = check_fields

    def over(self, others: ToolPins) -> ToolPins:
        """Return these pins with unset options filled from `others`."""
        mine, theirs = msgspec.structs.asdict(self), msgspec.structs.asdict(others)
        return ToolPins(**{name: theirs[name] if value is None else value for name, value in mine.items()})


class OAuth(msgspec.Struct, metaclass=Explained, frozen=True, kw_only=True, omit_defaults=True):
    """OAuth settings for a server over HTTP, if discovery is not enough. Secrets are references, `${NAME}`.

    - `grant`: "authorization_code" (a person logs in once: `detent mcp login NAME`), "client_credentials" (this program is the client),
      or "identity_assertion" (an identity provider vouches for a person, by `id_token`).
    - `client_id`, `client_secret`: those of a registered client; without them a login registers one. `client_metadata_url`: the
      https URL of a document that describes the client, for servers that accept one instead of a registration.
    - `private_key`: a PEM that signs for the client, instead of `client_secret` ("client_credentials").
    - `issuer`: the authorisation server that `client_id` belongs to; nothing is sent to another one. Both machine grants need it.
    - `scope`: the requested scopes, separated by spaces; default: those that the server names. `redirect_port`: the port on 127.0.0.1 that a
      login returns to, if the client is registered with one.
    - `id_token`, `id_token_endpoint`, `id_client_id`: the token from a person's identity provider, and where and for which client to exchange it.
    """

    grant: Literal["authorization_code", "client_credentials", "identity_assertion"] = "authorization_code"
    client_id: str = ""
    client_secret: str = ""
    client_metadata_url: str = ""
    private_key: str = ""
    issuer: str = ""
    scope: str = ""
    redirect_port: int = 0
    id_token: str = ""
    id_token_endpoint: str = ""
    id_client_id: str = ""

    def problem(self) -> str:
        """Return in words which settings contradict each other, or ""."""
        needed: dict[str, tuple[str, ...]] = {
            "client_credentials": ("client_id", "issuer"),
            "identity_assertion": ("client_id", "client_secret", "issuer", "id_token", "id_token_endpoint", "id_client_id"),
        }
        missing = [name for name in needed.get(self.grant, ()) if not getattr(self, name)]
        if missing:
            return f"oauth: grant = {self.grant!r} needs {', '.join(missing)}"
        if self.grant == "client_credentials" and bool(self.client_secret) == bool(self.private_key):
            return "oauth: grant = 'client_credentials' needs either client_secret or private_key"
        if self.private_key and self.grant != "client_credentials":
            return "oauth: private_key is for grant = 'client_credentials'; leave it out"
        return ""


class McpServer(msgspec.Struct, metaclass=Explained, frozen=True, kw_only=True, omit_defaults=True):
    """How to reach one MCP server, and which of its tools may be used. Raise `ConfigError` for contradictory settings.

    - `command`, `args`, `env`, `cwd`: a program that is started and used over stdin and stdout. It gets HOME, LOGNAME, PATH, SHELL, TERM and
      USER of this process, and `env`; nothing else of the environment.
    - `url`, `headers`: a server over streamable HTTP. `${NAME}` in `env`, `headers`, `args` and `url` refers to an environment variable.
    - `tools`: the tools that may be offered: their names, or a mapping of names to pins (`ToolPins`, or a dictionary of its options). "*" in a
      mapping means all others. None: all.
    - `prefix`: the tools are named `PREFIX__tool`; None: the server's name; "": the bare name.
    - `start_timeout_s`: seconds for starting, handshake and tool list. `protocol`: "legacy" leaves out the probe for newer protocol
      versions, for a server that fails on it.
    - `elicitation`: the answer to a server that wants to ask the user something: "decline", or "defaults". With "defaults" a form is accepted
      with its declared defaults, if every required field has one and they fit; a URL is never accepted.
    - `trust_hints`: its annotations may lower the level of its tools; otherwise they only raise it. `roots`: a server that asks for roots gets
      the workspace. Only programs and the operator's file may set these two.
    - `oauth`: how requests to a server over HTTP are authorised.

    A server with neither `command` nor `url` only adds `trust_hints`, `roots`, `tools` and `oauth` to a server that is described elsewhere.
    """

    command: str = ""
    args: Sequence[str] = ()
    env: Mapping[str, str] = {}
    cwd: str | None = None
    url: str = ""
    headers: Mapping[str, str] = {}
    tools: Sequence[str] | Mapping[str, ToolPins | Mapping[str, Any]] | None = None
    prefix: str | None = None
    start_timeout_s: Seconds[float] = usually(30.0)
    protocol: Literal["auto", "legacy"] = "auto"
    elicitation: Literal["decline", "defaults"] = "decline"
    trust_hints: bool = False
    roots: bool = False
    oauth: OAuth | None = None

    def __post_init__(self) -> None:
        check_fields(self)
        problem = self._problem()
        if problem:
            raise ConfigError(problem)
        if isinstance(self.tools, Mapping):
            pinned = {tool: _read_pins(pins, tool) for tool, pins in self.tools.items()}
            msgspec.structs.force_setattr(self, "tools", pinned)

    def _problem(self) -> str:
        adds = any(getattr(self, name) for name in ADDED)
        if (self.command and self.url) or not (self.command or self.url or adds):
            return "an MCP server is either a program (command = ...) or a URL (url = ...); give exactly one of them"
        if self.url and not self.url.startswith(("http://", "https://")):
            return "url: only http:// and https:// are spoken; for a program give command = ..."
        foreign = [name for name in _foreign(self) if getattr(self, name)]
        if foreign:
            kind = "url" if self.url else "command" if self.command else "neither command nor url"
            return f"{foreign[0]}: it means nothing for a server with {kind}; leave it out"
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
        for name in OPERATORS_KEYS:
            if not isinstance(getattr(self, name), bool):
                return f"{name}: {getattr(self, name)!r}: write true or false"
        return self.oauth.problem() if self.oauth is not None else ""

    @property
    def adds(self) -> bool:
        """Whether this only extends a server that is described elsewhere."""
        return not (self.command or self.url)

    def over(self, base: McpServer) -> McpServer:
        """Return the server that this and `base` describe together: this one, or `base` with the additions of this one."""
        if not self.adds:
            return self
        return msgspec.structs.replace(base, **{name: value for name in ADDED if (value := getattr(self, name))})

    def allowing(self, other: McpServer) -> McpServer:
        """Return another server of this name with the permissions from this one: all its additions, or only those that only the operator may set."""
        if self.adds:
            return self.over(other)
        return msgspec.structs.replace(other, **{name: getattr(self, name) for name in OPERATORS_KEYS})

    @property
    def where(self) -> str:
        """How the server is reached, in words: references unresolved, a URL without user and query."""
        if self.command:
            return " ".join((self.command, *self.args))
        parts = urlsplit(self.url)
        return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))

    def pins(self, tool: str) -> ToolPins | None:
        """Return the pins of the server's tool `tool`, or None if it may not be offered."""
        if self.tools is None:
            return ToolPins()
        if not isinstance(self.tools, Mapping):
            return ToolPins() if tool in self.tools or EVERY in self.tools else None
        others, own = self._pinned(EVERY), self._pinned(tool)
        if own is None:
            return others
        return own if others is None else own.over(others)

    def levelled(self, tool: str) -> bool:
        """Return whether the level is pinned for exactly this tool, and not only for all others."""
        own = self._pinned(tool)
        return own is not None and own.side_effect is not None

    def _pinned(self, tool: str) -> ToolPins | None:
        """Return the pins under exactly this name. Dictionaries were converted to pins when this was created."""
        return cast("Mapping[str, ToolPins]", self.tools).get(tool) if isinstance(self.tools, Mapping) else None

    def named(self) -> list[str]:
        """Return the names of tools that the configuration names."""
        return [name for name in self.tools or () if name != EVERY]


def _foreign(server: McpServer) -> tuple[str, ...]:
    """Return the names of the settings that have no effect for a server of this kind."""
    if server.url:
        return ("args", "env", "cwd")
    return ("headers", "oauth") if server.command else ("args", "env", "cwd", "headers")


def _read_pins(said: Any, tool: str) -> ToolPins:
    """Return the settings of a tool as pins. Raise `ConfigError` for invalid ones."""
    where = f"tools[{tool!r}]"
    if not isinstance(said, (ToolPins, Mapping)):
        raise ConfigError(f"{where} is {said!r}; write ToolPins(side_effect=...), or a dictionary of its options")
    try:
        if isinstance(said, Mapping):
            given = dict(cast("Mapping[str, Any]", said))
            for name in given:
                if name not in ToolPins.__struct_fields__:
                    raise UnknownName("option", str(name), ToolPins.__struct_fields__)
            said = msgspec.convert(given, ToolPins)
        pinned: Any = {name: value for name, value in msgspec.structs.asdict(said).items() if value is not None}
        read_options(pinned, tool=tool)
    except (ConfigError, msgspec.ValidationError) as error:
        raise ConfigError(f"{where}: {error}") from None
    return said


def checked_servers(servers: Mapping[str, Any]) -> dict[str, McpServer]:
    """Return the servers by name. Raise `ConfigError` for a name that cannot be part of a tool name, or a value that is not an `McpServer`."""
    for name, server in servers.items():
        if not SERVER_NAME.fullmatch(name):
            raise ConfigError(f"MCP server {name!r}: use 1 to 32 letters, digits, '_' and '-' for its name")
        if not isinstance(server, McpServer):
            raise ConfigError(f"MCP server {name!r} is a {type(server).__name__}; give an McpServer(command=...) or McpServer(url=...)")
        if server.adds:
            raise ConfigError(f"MCP server {name!r}: it has neither command nor url; give it command = ... or url = ...")
    return cast("dict[str, McpServer]", dict(servers))
