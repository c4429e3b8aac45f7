"""The MCP servers of one engine: finds the servers that an agent's tool names need, and registers their tools with the engine.

An agent lists `PREFIX__tool`, or `PREFIX__*` for all tools of the servers with that prefix. Servers are connected when a run with such names starts or
resumes. The tools of a run stay as they were at its start: the log records the names, and the run keeps the declarations.
"""

from __future__ import annotations

import asyncio
import difflib
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path

from detent.core.errors import ConfigError, UnknownName
from detent.tools.functions.schema import schema_digest
from detent.tools.mcp.declarations import pinned_of
from detent.tools.mcp.kept import Kept, Pinned
from detent.tools.mcp.offered import ServerTool, full_name, gone_tool
from detent.tools.mcp.server import Server
from detent.tools.mcp.settings import EVERY, SEPARATOR, McpServer, checked_servers
from detent.tools.registry import Registry

log = logging.getLogger("detent.mcp")


class Servers:
    """MCP servers by name. A server is connected only when it is needed."""

    def __init__(
        self,
        registry: Registry,
        servers: Mapping[str, McpServer] | None = None,
        *,
        workspace: str | Path | None = None,
        kept: Kept | None = None,
    ) -> None:
        """`workspace` is the answer for servers that may ask for roots. `kept` has their pins and logins."""
        self.kept = kept or Kept()
        self.workspace = Path(workspace).expanduser().resolve() if workspace is not None else None
        self._registry = registry
        self._servers: dict[str, Server] = {}
        self._owned: dict[str, str] = {}
        self._registered: set[str] = set()
        self.add(servers or {})

    def __bool__(self) -> bool:
        return bool(self._servers)

    def names(self) -> list[str]:
        """Return the names of the servers."""
        return list(self._servers)

    def add(self, servers: Mapping[str, McpServer], *, over: bool = False) -> None:
        """Add servers. Adding the same server again changes nothing.

        Another server with an existing name is a `ConfigError`. With `over` it replaces the existing one, unless that was already connected.
        """
        for name, settings in checked_servers(servers).items():
            there = self._servers.get(name)
            if there is not None and there.settings == settings:
                continue
            if there is not None and (not over or there.connected or there.offer.tools):
                raise ConfigError(f"an MCP server named {name!r} already exists with other settings; give one of them another name")
            self._servers[name] = Server(name, settings, workspace=self.workspace, kept=self.kept, relisted=self._take_up)

    def work_in(self, workspace: str | Path) -> None:
        """Set the directory for servers that ask for roots. Connected servers keep the earlier answer."""
        self.workspace = Path(workspace).expanduser().resolve()
        for server in self._servers.values():
            server.workspace = self.workspace

    def claims(self, name: str) -> bool:
        """Return whether `name`, as an agent lists it, may be a tool of one of the servers."""
        return bool(self._needed([name]))

    async def prepare(self, names: Sequence[str], *, resuming: bool = False) -> tuple[str, ...]:
        """Connect the servers that `names` need, register their tools, and return the names with every `PREFIX__*` written out.

        Raise `ConfigError` for an unreachable server, a name that two servers have, and pins for a missing tool. Raise `UnknownName` for a tool
        that its server does not offer; a resumed run (`resuming`) gets a failing replacement instead.
        """
        needed = self._needed(names)
        failures = await asyncio.gather(*(server.start() for server in needed), return_exceptions=True)
        for failure in failures:
            if isinstance(failure, BaseException):
                raise failure
        for server in needed:
            self._register(server, strict=True)
            if not resuming:
                _refuse_unknown_pins(server)
        written: dict[str, None] = {}
        for name in names:
            written.update(dict.fromkeys(self._written_out(name, needed, resuming=resuming)))
        return tuple(written)

    async def close(self) -> None:
        """End all connections and their programs."""
        await asyncio.gather(*(server.close() for server in self._servers.values()))

    async def survey(self) -> tuple[list[ServerTool], dict[str, str]]:
        """Connect every server. Return the offered tools, and the problems by server or `server.tool`."""
        problems: dict[str, str] = {}
        found: list[ServerTool] = []
        servers = list(self._servers.values())
        failures = await asyncio.gather(*(server.start() for server in servers), return_exceptions=True)
        for server, failure in zip(servers, failures, strict=True):
            if isinstance(failure, ConfigError):
                problems[server.name] = str(failure)
                continue
            if isinstance(failure, BaseException):
                raise failure
            problems.update({f"{server.name}.{tool}": said for tool, said in server.offer.problems.items()})
            try:
                self._register(server, strict=True)
                _refuse_unknown_pins(server)
            except ConfigError as error:
                problems[server.name] = str(error)
            found += server.offer.tools.values()
        return found, problems

    async def pin(self, name: str) -> tuple[Pinned | None, Pinned]:
        """Connect a server and pin its listed tools. Return the old and the new pins. Raise `ConfigError`."""
        server = self.named(name)
        await server.start()
        before, now = self.kept.pins(name), pinned_of(server.settings, server.listed)
        self.kept.pin(name, now)
        return before, now

    def named(self, name: str) -> Server:
        """Return the server with that name. Raise `UnknownName`."""
        if name not in self._servers:
            raise UnknownName("MCP server", name, self._servers)
        return self._servers[name]

    # Names ------------------------------------------------------------------------------------------------------------------------

    def _needed(self, names: Sequence[str]) -> list[Server]:
        """Return the servers that may have one of the tools."""
        own = [n for n in names if self._owned.get(n) is not None or n not in self._registry]
        prefixed = [s for s in self._servers.values() if s.prefix and any(n.startswith(s.prefix + SEPARATOR) for n in own)]
        starts = tuple(s.prefix + SEPARATOR for s in prefixed)
        bare = [n for n in own if not (starts and n.startswith(starts))]
        return [*prefixed, *(s for s in self._servers.values() if not s.prefix and bare)]

    def _written_out(self, name: str, needed: Sequence[Server], *, resuming: bool) -> list[str]:
        if name.endswith(SEPARATOR + EVERY):
            prefix = name.removesuffix(SEPARATOR + EVERY)
            servers = [server for server in needed if server.prefix == prefix]
            found = [tool for server in servers for tool in server.offer.tools]
            if not servers:
                raise UnknownName("prefix of MCP servers", prefix, [server.prefix for server in self._servers.values()])
            if not found:
                raise ConfigError(f"{name}: MCP server {servers[0].name!r} offers no tool that its `tools` allow")
            return found
        offered = {tool: server for server in needed for tool in server.offer.tools}
        if name in offered:
            return [name]
        owner = self._owner(name, needed)
        if owner is None:
            return [name]  # not a server's tool: one of the engine, or unknown, which the admission of the run reports
        if not resuming:
            _refuse_missing(owner, name)
        if not isinstance(self._known(name), ServerTool) or name not in self._owned:
            self._put(owner, name, gone_tool(owner.name, name, why=_problem(owner, name)))
        return [name]

    def _owner(self, name: str, needed: Sequence[Server]) -> Server | None:
        """Return the server that the name `name` points to."""
        if name in self._owned:
            return self._servers.get(self._owned[name])
        if name in self._registry:
            return None
        return next((s for s in needed if s.prefix and name.startswith(s.prefix + SEPARATOR)), None)

    # Registry ---------------------------------------------------------------------------------------------------------------------

    def _take_up(self, server: Server) -> None:
        """Replace the old tools of a server with the new ones. Called when it connects and when its list changes.

        If two servers offer the same name, the order in which they were given decides, not the order in which they connect.
        """
        if server.name in self._registered:
            self._register(server, strict=False)

    def _register(self, server: Server, *, strict: bool) -> None:
        for name, tool in server.offer.tools.items():
            owner = self._owned.get(name)
            if owner != server.name and name in self._registry:
                said = _clash(server, tool, owner)
                if strict:
                    raise ConfigError(said)
                log.warning("%s", said)
                continue
            known = self._known(name)
            if known is None or not isinstance(known, ServerTool) or _changed(known, tool):
                self._put(server, name, tool)
        self._registered.add(server.name)

    def _put(self, server: Server, name: str, tool: object) -> None:
        if name in self._registry:
            self._registry.replace(tool)  # pyright: ignore[reportArgumentType] - a tool of ours
        else:
            self._registry.register(tool)  # pyright: ignore[reportArgumentType] - a tool of ours
        self._owned[name] = server.name

    def _known(self, name: str) -> object | None:
        if name not in self._registry:
            return None
        held = self._registry.get(name)
        return getattr(held, "tool", held)


def _changed(one: ServerTool, other: ServerTool) -> bool:
    return one.spec.description != other.spec.description or schema_digest(one.spec) != schema_digest(other.spec)


def _clash(server: Server, tool: ServerTool, owner: str | None) -> str:
    who = f"MCP server {owner!r}" if owner is not None else "this engine"
    return (
        f"MCP server {server.name!r} offers {tool.own_name!r} under the name {tool.name!r}, which a tool of {who} has already; "
        f"give the server another prefix = ..., or leave the tool out of its tools"
    )


def _refuse_missing(server: Server, name: str) -> None:
    """Raise for a tool that the agent lists but the server does not offer, with the reason if one is known."""
    if said := _problem(server, name):
        raise ConfigError(f"MCP server {server.name!r}: {name!r} cannot be offered: {said}")
    raise UnknownName(f"tool of MCP server {server.name!r}", name, server.offer.tools)


def _problem(server: Server, name: str) -> str:
    """Return why a tool with that name is left out, if that is known."""
    return next((said for own, said in server.offer.problems.items() if full_name(server.prefix, own) == name), "")


def _refuse_unknown_pins(server: Server) -> None:
    """Raise `ConfigError` if the settings name a tool that the server does not have: its pins would have no effect."""
    there = {*server.own_names, *server.offer.problems}
    for name in server.settings.named():
        if name not in there:
            near = difflib.get_close_matches(name, there, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"it has: {', '.join(sorted(there)) or 'none'}"
            raise ConfigError(f"MCP server {server.name!r}: tools: there is no tool {name!r}; {hint}")
