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

from detent.core.durations import Seconds, usually
from detent.core.errors import ConfigError, Explained, UnknownName
from detent.core.events import SideEffect
from detent.ports.options import check_fields
from detent.tools.functions.options import read_options

SERVER_NAME = re.compile(r"[A-Za-z0-9_-]{1,32}")
SEPARATOR = "__"
EVERY = "*"
OPERATORS_KEYS = ("trust_hints", "roots")
"""The keys that only the operator may say: no file that tools can write."""
ADDED = (*OPERATORS_KEYS, "tools", "oauth")
"""What may be said of a server apart from how it is reached."""


class ToolPins(msgspec.Struct, metaclass=Explained, frozen=True, kw_only=True, omit_defaults=True):
    """What an agent says about a server's tool, whatever the server says of it; None leaves it as it would be. Options as for `tool`."""

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
        """Return these pins with everything that they leave open taken from `others`."""
        mine, theirs = msgspec.structs.asdict(self), msgspec.structs.asdict(others)
        return ToolPins(**{name: theirs[name] if value is None else value for name, value in mine.items()})


class OAuth(msgspec.Struct, metaclass=Explained, frozen=True, kw_only=True, omit_defaults=True):
    """How a server over HTTP is told who calls, where its own questions are not enough. Secrets are references, `${NAME}`.

    - `grant`: "authorization_code" (a person logs in once: `detent mcp login NAME`), "client_credentials" (this program is the client),
      or "identity_assertion" (an identity provider vouches for a person, by `id_token`).
    - `client_id`, `client_secret`: of a client that is registered already; without them a login registers one. `client_metadata_url`: the
      https URL of a document that describes the client, for servers that accept one in place of a registration.
    - `private_key`: a PEM that signs for the client, instead of `client_secret` ("client_credentials").
    - `issuer`: the authorisation server that `client_id` belongs to; nothing is sent to another one. Both machine grants need it.
    - `scope`: what is asked for, separated by spaces; without it what the server names. `redirect_port`: the port on 127.0.0.1 that a login
      comes back to, where a client is registered with one.
    - `id_token`, `id_token_endpoint`, `id_client_id`: what a person's identity provider issued, and where and for whom it is exchanged.
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
        """Return what does not fit together, in words, or nothing."""
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
    """How to reach one MCP server, and what of it may be used. Raises `ConfigError` for what does not fit together.

    - `command`, `args`, `env`, `cwd`: a program that is started and spoken to over stdin and stdout. It gets HOME, LOGNAME, PATH, SHELL,
      TERM and USER of this process, and `env`; nothing else of the environment.
    - `url`, `headers`: a server over streamable HTTP. `${NAME}` in `env`, `headers`, `args` and `url` refers to an environment variable.
    - `tools`: the tools that may be offered: their names, or a mapping of names to pins (`ToolPins`, or a dictionary of its options); "*" in a
      mapping stands for all others. None: all.
    - `prefix`: the tools are called `PREFIX__tool`; None: the server's name; "": the bare name.
    - `start_timeout_s`: seconds for starting, handshake and tool list. `protocol`: "legacy" leaves out the probe for newer protocol
      versions, for a server that cannot bear it.
    - `elicitation`: what a server is answered that wants to ask the user something: "decline", or "defaults": a form is accepted with the
      defaults that it declares, where every required field has one and they fit; a URL never is.
    - `trust_hints`: its annotations may lower the level of its tools; without it they only raise it. `roots`: a server that asks is told the
      workspace. Both are the operator's to say: a program may, and in files only the operator's.
    - `oauth`: how a server over HTTP is told who calls.

    One with neither `command` nor `url` only adds `trust_hints`, `roots`, `tools` and `oauth` to a server that is described elsewhere.
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
        """Whether this is no server of its own, and only adds to one that is described elsewhere."""
        return not (self.command or self.url)

    def over(self, base: McpServer) -> McpServer:
        """Return the server that this and `base` describe together: this one, or `base` with what this one adds."""
        if not self.adds:
            return self
        return msgspec.structs.replace(base, **{name: value for name in ADDED if (value := getattr(self, name))})

    def allowing(self, other: McpServer) -> McpServer:
        """Return another server of this name, with what this one allows it: all that this one adds, or only what the operator alone may say."""
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
        """Return what is pinned about the server's tool `tool`; None when it may not be offered."""
        if self.tools is None:
            return ToolPins()
        if not isinstance(self.tools, Mapping):
            return ToolPins() if tool in self.tools or EVERY in self.tools else None
        others, own = self._pinned(EVERY), self._pinned(tool)
        if own is None:
            return others
        return own if others is None else own.over(others)

    def levelled(self, tool: str) -> bool:
        """Return whether the level of this very tool is pinned, and not only that of all others."""
        own = self._pinned(tool)
        return own is not None and own.side_effect is not None

    def _pinned(self, tool: str) -> ToolPins | None:
        """Return what is pinned under this very name; dictionaries became pins when this was made."""
        return cast("Mapping[str, ToolPins]", self.tools).get(tool) if isinstance(self.tools, Mapping) else None

    def named(self) -> list[str]:
        """Return the names of tools that the configuration names."""
        return [name for name in self.tools or () if name != EVERY]


def _foreign(server: McpServer) -> tuple[str, ...]:
    """Return the names of the settings that mean nothing for a server of this kind."""
    if server.url:
        return ("args", "env", "cwd")
    return ("headers", "oauth") if server.command else ("args", "env", "cwd", "headers")


def _read_pins(said: Any, tool: str) -> ToolPins:
    """Return what is said about a tool as pins; raise `ConfigError` for what no tool can have."""
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
    """Return the servers by name; raise `ConfigError` for a name that no tool could be called by, or a value that is no `McpServer`."""
    for name, server in servers.items():
        if not SERVER_NAME.fullmatch(name):
            raise ConfigError(f"MCP server {name!r}: use 1 to 32 letters, digits, '_' and '-' for its name")
        if not isinstance(server, McpServer):
            raise ConfigError(f"MCP server {name!r} is a {type(server).__name__}; give an McpServer(command=...) or McpServer(url=...)")
        if server.adds:
            raise ConfigError(f"MCP server {name!r}: nothing says how to reach it; give it command = ... or url = ...")
    return cast("dict[str, McpServer]", dict(servers))
