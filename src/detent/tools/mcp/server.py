"""One server as its tools see it: connected when needed, reconnected when it died, and never waited for endlessly.

A call to a server that is down tries to reach it at once and then after each of `DELAYS_S`. If that fails, the call was not executed, and calls in the
next `REST_S` seconds are refused without trying.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from detent.core.errors import ConfigError, NotExecuted, ToolFailed
from detent.ports import ToolContext
from detent.ports.processes import keep, renew_in_children
from detent.tools.mcp.declarations import digest_of
from detent.tools.mcp.kept import Kept
from detent.tools.mcp.offered import Offer, offer_of
from detent.tools.mcp.settings import McpServer

if TYPE_CHECKING:
    from detent.tools.mcp.connection import Connection

log = logging.getLogger("detent.mcp")

DELAYS_S = (0.5, 1.0, 2.0)
REST_S = 5.0


class Server:
    """A server with its settings, its connection if it has one, and its current tools."""

    def __init__(
        self,
        name: str,
        settings: McpServer,
        *,
        workspace: Path | None,
        kept: Kept,
        relisted: Callable[[Server], None],
    ) -> None:
        self.name, self.settings = name, settings
        self.offer = Offer(tools={}, problems={})
        self.workspace, self._relisted, self._delays_s = workspace, relisted, DELAYS_S
        self._kept = kept
        self._connection: Connection | None = None
        self._connecting: asyncio.Task[Connection] | None = None
        self._resting: tuple[float, str] | None = None
        self.own_names: frozenset[str] = frozenset()
        self._told: dict[str, str] = {}
        renew_in_children(self)

    def forked(self) -> None:
        """Start without a connection. In a forked child the session and its program belong to the parent."""
        keep(self._connection, self._connecting)
        self._connection = self._connecting = self._resting = None

    @property
    def prefix(self) -> str:
        """The prefix of its tool names, "" for bare names."""
        return self.name if self.settings.prefix is None else self.settings.prefix

    @property
    def connected(self) -> bool:
        """Whether it has a connection that has not ended."""
        return self._connection is not None and not self._connection.ended

    # Life -------------------------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Connect if needed. Raise `ConfigError` if the server cannot be reached in one attempt."""
        await self._connected(())

    async def close(self) -> None:
        """End the connection and its program. The next call starts it again."""
        connecting, self._connecting = self._connecting, None
        if self._connection is not None and self._connection.loop is not asyncio.get_running_loop():
            self._connection = None  # a stopped loop cannot close the session
        if connecting is not None and not connecting.done() and connecting.get_loop() is asyncio.get_running_loop():
            connecting.cancel()
            await asyncio.wait({connecting})
        connection, self._connection = self._connection, None
        self._resting = None
        if connection is not None:
            await connection.close()

    async def _connected(self, delays_s: Sequence[float]) -> Connection:
        """Return the connection; the first caller creates it. Raise `ConfigError`."""
        if self._connection is not None and self._connection.loop is not asyncio.get_running_loop():
            self._connection = self._connecting = None  # that loop has ended, and with it all its tasks
        if self._connection is not None and not self._connection.ended:
            return self._connection
        if self._connecting is None or self._connecting.done():
            self._connecting = asyncio.create_task(self._connect(delays_s), name=f"connect mcp {self.name}")
            self._connecting.add_done_callback(lambda task: task.cancelled() or task.exception())
        return await asyncio.shield(self._connecting)

    async def _connect(self, delays_s: Sequence[float]) -> Connection:
        connection_module = _connection_module(self.name)
        if self._connection is not None:
            await self._connection.close()
            self._connection = None
        for delay in (*delays_s, None):
            connection = connection_module.Connection(
                self.name, self.settings, workspace=self.workspace, on_tools=self._take, kept=self._kept
            )
            try:
                await connection.open()
            except connection_module.Unreachable as error:
                if delay is None:
                    self._resting = (self._now() + REST_S, error.short)
                    refused = ConfigError(str(error))
                    refused.retryable = True
                    raise refused from None
                await asyncio.sleep(delay)
                continue
            except asyncio.CancelledError:
                await connection.close()
                raise
            self._connection, self._resting = connection, None
            self._take(connection)
            return connection
        raise AssertionError  # the last delay is None, which raises or returns

    def _take(self, connection: Connection) -> None:
        """Update the offer to the server's current tools."""
        pinned = self._kept.pins(self.name)
        self._told = {tool.name: digest_of(tool) for tool in connection.tools}
        self.own_names = frozenset(self._told)
        self.offer = offer_of(self.name, self.settings, connection.tools, self.call, pinned=pinned)
        for tool, problem in self.offer.problems.items() if pinned is not None else ():
            log.warning("MCP server %s: %s is not offered: %s", self.name, tool, problem)
        self._relisted(self)

    @property
    def listed(self) -> tuple[Any, ...]:
        """The tools that the server lists, as the SDK's `Tool`s; empty if it is not connected."""
        return self._connection.tools if self._connection is not None else ()

    # Calls ------------------------------------------------------------------------------------------------------------------------

    async def call(self, tool: str, declared: str, args: dict[str, Any], context: ToolContext) -> Any:
        """Call the server's tool `tool` and return its result as JSON, if its declaration is still the `declared` one.

        Raise `ToolFailed` and `NotExecuted` for known outcomes. Any other exception means that the call is in doubt.
        """
        from detent.tools.mcp.connection import SessionGone
        from detent.tools.mcp.content import result_of

        for again in (True, False):
            connection = await self._reached(context)
            if tool not in self.own_names:
                raise ToolFailed(
                    f"MCP server {self.name!r} no longer offers {tool!r}; continue without it, or tell the user",
                    error_code="tool_not_found",
                )
            if self._told[tool] != declared or tool in self.offer.problems:
                raise ToolFailed(
                    f"MCP server {self.name!r} has changed its declaration of {tool!r} since it was offered; nothing was sent to it; "
                    + self.offer.problems.get(tool, "a run that starts or resumes now gets the new declaration"),
                    error_code="tool_changed",
                )
            try:
                result = await connection.call(tool, args, context)
            except SessionGone as error:
                await connection.close()
                if not again:
                    raise NotExecuted(str(error), error_code="server_unavailable") from None
                continue
            try:
                return connection.secrets.data(result_of(result, connection.secrets.text))
            except ToolFailed as error:
                said, details = connection.secrets.text(str(error)), connection.secrets.data(error.details)
                raise ToolFailed(said, error_code=error.error_code, details=details) from None
        raise AssertionError  # the second round returns or raises

    async def _reached(self, context: ToolContext) -> Connection:
        """Return a working connection. Raise `NotExecuted` if none can be made."""
        if self._resting is not None and self._now() < self._resting[0] and not self.connected:
            raise NotExecuted(self._resting[1], error_code="server_unavailable")
        try:
            return await self._connected(self._delays_s)
        except ConfigError as error:
            said = str(error) if self._resting is None else self._resting[1]
            raise NotExecuted(said, error_code="server_unavailable") from None
        except asyncio.CancelledError:
            if context.cancelled.why != "timeout" or context.remaining_s() != 0:
                raise
            said = f"MCP server {self.name!r} could not be reached in time; nothing was sent to it"
            raise NotExecuted(said, error_code="timeout") from None

    def _now(self) -> float:
        return asyncio.get_running_loop().time()


def _connection_module(name: str) -> Any:
    """Return the module that talks to servers. Raise `ConfigError` with the install command if the SDK is missing."""
    try:
        from detent.tools.mcp import connection
    except ModuleNotFoundError as error:
        if error.name not in ("mcp", "mcp_types", "httpx2"):
            raise
        raise ConfigError(f"MCP server {name!r} needs the MCP SDK, which is not installed; pip install 'detent[mcp]'") from None
    return connection
