"""One session with one server, in its own task.

The task that enters the SDK's scopes must also leave them, and a broken wire cancels the task inside. So one task enters everything, waits, and leaves
everything. All others only send requests and read the results:

    open()    start the task; it connects, does the handshake and lists the tools
    call()    one `tools/call`, in its own task so that it can be cancelled: that sends `notifications/cancelled`
    close()   ask the task to leave; every step of that has a time limit

If the server dies, the task leaves by itself, `ended` is set and every open call fails at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, cast

import httpx2
from mcp import types
from mcp.client.client import Client
from mcp.client.session import ClientRequestContext
from mcp.client.subscriptions import SubscriptionLost
from mcp.shared.exceptions import MCPError
from mcp.types.version import MODERN_PROTOCOL_VERSIONS

from detent.core.errors import NotExecuted, ToolFailed
from detent.expressions.json_schema import UnusableSchema, check_schema, errors_of
from detent.ports import ToolContext
from detent.tools.mcp.authorisation import authorisation_of, need_of_the_sdk
from detent.tools.mcp.elicitation import decline, give_defaults
from detent.tools.mcp.kept import Kept
from detent.tools.mcp.secrets import Resolved, Secrets
from detent.tools.mcp.settings import McpServer
from detent.tools.mcp.transport import UNREADABLE_ANSWER, Wire, transport

log = logging.getLogger("detent.mcp")

POLL_S = 0.1
"""How often a running call checks whether its run was cancelled, in seconds. This is a flag that cannot be awaited."""
CLOSE_S = 10.0
"""How long leaving may take: a program gets 2 s to end by itself and 2 s after SIGTERM."""
GIVE_UP_S = 1.0
RELIST_S = 30.0
RELISTEN_S = 1.0
RESTS_S = (1.0, 60.0)
"""The minimum time before a tool list is read again, in seconds. It doubles each time the list changes meanwhile, up to the second number."""
MOST_PAGES = 100
MOST_TOOLS = 1_000
MOST_BYTES = 4_000_000
"""Limits of a server's tool list."""
SHOWN_STDERR = 1_500
_UNREADABLE = (types.INVALID_REQUEST, types.PARSE_ERROR)
"""The SDK's error over HTTP if a server accepted a call but sent no result. The call may have been executed."""
_NOT_SENT = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout, httpx2.InvalidURL, httpx2.UnsupportedProtocol)


class Unreachable(Exception):
    """A server cannot be used. The message names the server, the reason and what to do, without secrets. `short` leaves out its address."""

    def __init__(self, message: str, short: str = "") -> None:
        self.short = short or message
        super().__init__(message)


class ConnectionLost(Exception):
    """The connection ended during a call. The call may or may not have been executed."""


class SessionGone(Exception):
    """The server no longer knows this session. The call was not executed; a new session may work."""


class Connection:
    """A session. `tools` are the server's current tools. `on_tools` is called when the server reports a change."""

    def __init__(
        self,
        name: str,
        server: McpServer,
        *,
        workspace: Path | None,
        on_tools: Callable[[Connection], None],
        kept: Kept,
        auth: httpx2.Auth | None = None,
    ) -> None:
        """`auth` authorises a login. Without it, the stored result of the last login is used."""
        self.name, self._server, self._on_tools = name, server, on_tools
        self._workspace = workspace if server.roots else None
        self._kept, self._auth = kept, auth
        self.secrets = Secrets()
        self.tools: tuple[Any, ...] = ()
        self.ended = False
        self.loop = asyncio.get_running_loop()
        self._leave, self._changed = asyncio.Event(), asyncio.Event()
        self._wire = Wire(self._end, self._changed)
        self._client: Client | None = None
        self._task: asyncio.Task[None] | None = None
        self._calls: set[asyncio.Task[Any]] = set()
        self._failure: BaseException | None = None

    def _end(self) -> None:
        self.ended = True
        self._leave.set()

    # Opening and closing ----------------------------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Connect, do the handshake and list the tools, within the server's `start_timeout_s`. Raise `Unreachable`, `ConfigError`."""
        resolved = Resolved(self.name, self._server)
        self.secrets = resolved.secrets
        self._auth = self._auth or authorisation_of(self._server, resolved, self._kept)
        ready: asyncio.Future[None] = self.loop.create_future()
        self._task = asyncio.create_task(self._live(resolved, ready), name=f"mcp {self.name}")
        limit = self._server.start_timeout_s
        try:
            await asyncio.wait({self._task, ready}, timeout=limit, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            self._task.cancel()
            raise
        if ready.done() and not self.ended:
            return
        hung = not self._task.done()
        await self.close()
        why = f"it did not answer within {limit:g} s" if hung else self._reason(self._failure)
        hint = "raise its start_timeout_s if it is only slow" if hung else self._hint(self._failure)
        said = await self._explained(why, hung=hung)
        named = f"MCP server {self.name!r}"
        raise Unreachable(f"{named} ({self._server.where}){said.removeprefix(named)}; {hint}", said)

    async def close(self) -> None:
        """Leave the session and end the program. Return when that is done, or after a time limit of some seconds."""
        task, self.ended = self._task, True
        if task is None:
            return
        self._leave.set()
        if self._client is None:
            task.cancel()  # still in the handshake, which does not check `_leave`
        for _ in range(2):
            await asyncio.wait({task}, timeout=CLOSE_S)
            if task.done():
                return
            task.cancel()
        log.warning("MCP server %s: its connection could not be closed within %s s", self.name, 2 * CLOSE_S)

    async def _live(self, resolved: Resolved, ready: asyncio.Future[None]) -> None:
        """Be inside the session from beginning to end."""
        try:
            async with Client(
                transport(self._server, resolved, self._wire, self._auth),
                mode=self._server.protocol,
                cache=None,
                client_info=types.Implementation(name="detent", version=_version()),
                list_roots_callback=self._roots if self._workspace is not None else None,
                elicitation_callback=decline if self._server.elicitation == "decline" else give_defaults,
                message_handler=self._notified,
            ) as client:
                need_of_the_sdk(type(client.session), "validate_tool_result")
                client.session.validate_tool_result = partial(_check_result, self)  # the SDK's has no limits
                self.tools = self._cleaned(await _listed(client))
                self._client = client
                if not ready.done():
                    ready.set_result(None)
                await self._stay(client)
        except (Exception, BaseExceptionGroup, asyncio.CancelledError) as error:  # noqa: BLE001 - whatever the SDK or the wire raises is why the connection ended
            self._failure = error
        finally:
            self._client = None
            self._end()

    async def _stay(self, client: Client) -> None:
        """Wait until the session must end. Read the tools again whenever they changed."""
        listening = asyncio.create_task(self._listen(client)) if client.protocol_version in MODERN_PROTOCOL_VERSIONS else None
        rest = RESTS_S[0]
        try:
            while not self._leave.is_set():
                waits = {asyncio.create_task(self._leave.wait()), asyncio.create_task(self._changed.wait())}
                try:
                    await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    for wait in waits:
                        wait.cancel()
                if self._changed.is_set() and not self._leave.is_set():
                    self._changed.clear()
                    await self._relist(client)
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(self._leave.wait(), rest)
                    rest = min(2 * rest, RESTS_S[1]) if self._changed.is_set() else RESTS_S[0]
        finally:
            if listening is not None:
                listening.cancel()
                await asyncio.wait({listening}, timeout=GIVE_UP_S)

    async def _relist(self, client: Client) -> None:
        try:
            async with asyncio.timeout(RELIST_S):
                self.tools = self._cleaned(await _listed(client))
        except Exception as error:  # noqa: BLE001 - a server that cannot list its tools keeps those that it had
            log.warning("MCP server %s: it reported that its tools changed, and could not list them: %s", self.name, self._reason(error))
            return
        self._on_tools(self)

    def _cleaned(self, tools: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return the listed tools without secrets, because they are recorded and shown to the model."""
        plain: list[Any] = [tool.model_dump(mode="json", by_alias=True, exclude_none=True) for tool in tools]
        clean = self.secrets.data(plain)
        return tools if clean == plain else tuple(types.Tool.model_validate(tool) for tool in clean)

    async def _listen(self, client: Client) -> None:
        """Listen for changes of the tool list, if the protocol has a stream for them."""
        while not self._leave.is_set():
            try:
                async with client.listen(tools_list_changed=True) as events:
                    self._changed.set()  # earlier changes are not reported again
                    async for _ in events:
                        self._changed.set()
            except Exception as error:  # noqa: BLE001 - not every server has such a stream, and it may break
                log.debug("MCP server %s: no stream of changes: %s", self.name, self._reason(error))
                if not isinstance(error, SubscriptionLost):
                    return
            await asyncio.sleep(RELISTEN_S)

    # Calls ------------------------------------------------------------------------------------------------------------------------

    async def call(self, tool: str, args: dict[str, Any], context: ToolContext) -> Any:
        """Make one `tools/call` and return its `CallToolResult`.

        Raise `ToolFailed` and `NotExecuted` for known outcomes, `SessionGone`, and `ConnectionLost` if the call is in doubt. If the run
        or the caller is cancelled, the call is cancelled and the server is notified.
        """
        client, task = self._client, self._task
        if client is None or task is None or self.ended:
            raise SessionGone(f"the connection to MCP server {self.name!r} has ended")
        refused = len(self._wire.refusals)
        alone = not self._calls
        meta: Any = {"traceparent": context.traceparent}
        calling = client.call_tool(tool, args, progress_callback=self._reporter(context), meta=meta)
        call = asyncio.create_task(calling, name=f"mcp {self.name} {tool}")
        self._calls.add(call)
        call.add_done_callback(self._over)
        try:
            while not call.done():
                await asyncio.wait({call, task}, timeout=POLL_S, return_when=asyncio.FIRST_COMPLETED)
                if task.done() and not call.done():
                    await asyncio.wait({call}, timeout=GIVE_UP_S)
                    break
                if context.cancelled and not call.done():
                    raise ConnectionLost(f"given up: {context.cancelled.why}")
        finally:
            if not call.done():
                call.cancel()
                await asyncio.wait({call}, timeout=GIVE_UP_S)
        try:
            return call.result()
        except asyncio.CancelledError:
            raise ConnectionLost(await self._explained("its connection broke in the middle of the call")) from None
        except Exception as error:  # noqa: BLE001 - the SDK's errors, translated
            raise await self._translated(error, tool, refused=refused, alone=alone) from None

    def _over(self, call: asyncio.Task[Any]) -> None:
        self._calls.discard(call)
        if not call.cancelled():
            call.exception()  # retrieved, so that asyncio does not report the exception of a cancelled call

    def _reporter(self, context: ToolContext) -> Any:
        async def report(progress: float, total: float | None, message: str | None) -> None:
            said = {"progress": progress, "total": total, "message": self.secrets.text(message[:1000]) if message else None}
            context.progress({key: value for key, value in said.items() if value is not None})

        return report

    async def _translated(self, error: Exception, tool: str, *, refused: int, alone: bool) -> Exception:
        """Return the error of the call for an error of the SDK."""
        statuses = self._wire.refusals[refused:]
        if isinstance(error, MCPError) and error.code not in (types.CONNECTION_CLOSED, types.REQUEST_TIMEOUT):
            if not statuses:
                return self._answered(error, tool)
            if set(statuses) == {404}:
                return SessionGone(f"MCP server {self.name!r} answered HTTP 404: it does not know this session")
            if max(statuses) < 500:
                return NotExecuted(await self._explained(self._refusal(max(statuses))), error_code="server_refused")
            return ConnectionLost(await self._explained(self._refusal(max(statuses))))
        if isinstance(error, ToolFailed):
            return error
        if type(error).__name__ == "ValidationError" and not self.ended:
            return ToolFailed(f"{tool} ran, but its answer is not an MCP result", error_code="result_not_serializable")
        if self._task is not None:
            await asyncio.wait({self._task}, timeout=GIVE_UP_S)
        if alone and isinstance(_cause(self._failure), _NOT_SENT):
            return SessionGone(await self._explained(self._reason(self._failure)))
        return ConnectionLost(await self._explained("it ended, or its connection broke, in the middle of the call"))

    def _answered(self, error: MCPError, tool: str) -> Exception:
        """Return the failure that the server itself reported."""
        said = self.secrets.text(error.message)[:2000] or "no reason given"
        if error.code in _UNREADABLE and (self._server.url or error.message == UNREADABLE_ANSWER):
            return ConnectionLost(f"MCP server {self.name!r} gave no answer that can be read: {said}")
        code = {types.INVALID_PARAMS: "invalid_arguments", types.METHOD_NOT_FOUND: "tool_not_found"}.get(error.code, "server_error")
        return ToolFailed(f"MCP server {self.name!r} refused {tool}: {said} (code {error.code})", error_code=code)

    # What the server says by itself -------------------------------------------------------------------------------------------------

    async def _notified(self, message: Any) -> None:
        if isinstance(message, types.LoggingMessageNotification):
            log.debug("MCP server %s: %s", self.name, self.secrets.data(message.params.data))

    async def _roots(self, context: ClientRequestContext) -> types.ListRootsResult:
        assert self._workspace is not None  # noqa: S101 - only given to the SDK when it is set
        root = types.Root(uri=self._workspace.as_uri(), name=self._workspace.name)  # pyright: ignore[reportArgumentType] - text
        return types.ListRootsResult(roots=[root])

    # Words ------------------------------------------------------------------------------------------------------------------------

    def _reason(self, error: BaseException | None) -> str:
        """Return in a few words why the connection ended."""
        match cause := _cause(error):
            case FileNotFoundError():
                gone = self._server.cwd is not None and not Path(self._server.cwd).is_dir()
                return f"there is no directory {self._server.cwd!r}" if gone else f"there is no program {self._server.command!r}"
            case PermissionError():
                return f"{self._server.command!r} may not be executed"
            case httpx2.ConnectError() | httpx2.ConnectTimeout():
                return "nothing answers there"
            case MCPError() if self._wire.refusals:
                return self._refusal(self._wire.refusals[-1])
            case None | MCPError(code=types.CONNECTION_CLOSED) | asyncio.CancelledError():
                return "it ended"
            case _:
                said = self.secrets.text(str(cause).splitlines()[0])[:300] if str(cause) else ""
                return f"{type(cause).__name__}: {said}" if said else type(cause).__name__

    def _refusal(self, status: int) -> str:
        """Return in a few words how a request was refused, and what to do if it was not authorised."""
        if status not in (401, 403):
            return f"it answered HTTP {status}"
        said = self._server
        wanted = f" and wants the scope {self._wire.wanted!r}" if status == 403 and self._wire.wanted else ""
        if any(name.lower() == "authorization" for name in said.headers):
            return f"it answered HTTP {status}{wanted}, check the credentials in its headers"
        if said.oauth is not None and said.oauth.grant != "authorization_code":
            return f"it answered HTTP {status}{wanted}, check its oauth settings"
        return f"it answered HTTP {status}{wanted}: log in with `detent mcp login {self.name}`"

    def _hint(self, error: BaseException | None) -> str:
        """Return what to do about a server that cannot be started or reached."""
        match _cause(error):
            case FileNotFoundError() | PermissionError():
                return "install it, or correct command and cwd"
            case httpx2.TransportError():
                return "start the server, or correct url"
            case MCPError() if self._wire.refusals and self._wire.refusals[-1] in (401, 403):
                return "then start again"
            case _ if self._server.url:
                return "correct url and headers, or look at what the server logs"
            case _:
                return "run the command by hand to see what is wrong"

    async def _explained(self, why: str, *, hung: bool = False) -> str:
        """Return the name of the server, why it cannot be used, and its output."""
        parts = [f"MCP server {self.name!r}: {why}"]
        stderr = self._wire.stderr
        if stderr is not None:
            await asyncio.to_thread(stderr.wait, GIVE_UP_S)
            said = self.secrets.text(stderr.text)[-SHOWN_STDERR:]
            if said or not hung:
                parts.append(f"on stderr it said: {said}" if said else "it printed nothing on stderr")
        if self._wire.garbage:
            shown = self.secrets.text(self._wire.first_garbage)
            parts.append(f"{self._wire.garbage} line(s) of its stdout are not JSON-RPC, the first: {shown!r}")
        return "; ".join(parts)


async def _listed(client: Client) -> tuple[Any, ...]:
    """Return all tools that the server lists. Raise `MCPError`, and `Unreachable` for an endless list."""
    if client.server_capabilities.tools is None:
        return ()
    tools: list[Any] = []
    size = 0
    cursor: str | None = None
    for _ in range(MOST_PAGES):
        page = await client.list_tools(cursor=cursor)
        tools += page.tools
        size += sum(len(tool.model_dump_json()) for tool in page.tools[:MOST_TOOLS])
        if len(tools) > MOST_TOOLS or size > MOST_BYTES:
            raise Unreachable(f"it lists more than {MOST_TOOLS:,} tools, or {MOST_BYTES:,} bytes of them; let it offer fewer")
        cursor = page.next_cursor
        if cursor is None:
            return tuple(tools)
    raise Unreachable(f"its list of tools has more than {MOST_PAGES} pages")


async def _check_result(connection: Connection, name: str, result: types.CallToolResult) -> None:
    """Raise `ToolFailed` for a result that does not fit the server's declared schema, or that cannot be checked in time."""
    schema = next((tool.output_schema for tool in connection.tools if tool.name == name), None)
    if schema is None:
        return
    said = "there is no structured content"
    if "structured_content" in result.model_fields_set:
        try:
            said = await asyncio.to_thread(_misfit, result.structured_content, schema)
        except UnusableSchema as unusable:
            said = f"that {unusable}"
    if said:
        said = connection.secrets.text(said.splitlines()[0])[:500]
        raise ToolFailed(
            f"{name} ran, but its result does not fit the schema that the server declares: {said}", error_code="output_schema_failed"
        )


def _misfit(value: Any, schema: dict[str, Any]) -> str:
    """Return the problem of structured content, or "". Raise `UnusableSchema`."""
    check_schema(schema, foreign=True)
    error = next(errors_of(schema, foreign=True)(value), None)
    return "" if error is None else f"structured content: {error.message}"


def _cause(error: BaseException | None) -> BaseException | None:
    """Return the first error inside nested groups that is not a cancellation."""
    if isinstance(error, BaseExceptionGroup):
        group = cast("BaseExceptionGroup[BaseException]", error)
        found: Sequence[BaseException | None] = [_cause(part) for part in group.exceptions]
        return next((part for part in found if part is not None and not isinstance(part, asyncio.CancelledError)), None)
    return error


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    with contextlib.suppress(PackageNotFoundError):
        return version("detent")
    return "0"
