"""Agents as tools of an MCP server, over stdio and streamable HTTP: for hosts of both eras of the protocol.

A call is a run. Its turns are progress, a cancelled request cancels it, and the agent's questions go to the host's user: by elicitation (2025-11-25), or
as a result that asks for input (2026-07-28). What a client sends back as `requestState` is sealed, and says only which run it continues: who may do that
is decided by the caller's token, as everywhere. Runs, their logs and artifacts are resources.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import re
import secrets
from collections.abc import Callable
from importlib.metadata import version
from typing import Any, cast

import mcp_types as t
from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import AccessToken
from mcp.server.lowlevel.server import Server
from mcp.server.request_state import RequestStateBoundary, RequestStateSecurity
from mcp.server.stdio import stdio_server
from mcp.server.streamable_http_manager import StreamableHTTPASGIApp, StreamableHTTPSessionManager
from mcp.shared.exceptions import MCPError
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from detent.core import events as e
from detent.core.codec import encode
from detent.core.errors import DetentError
from detent.core.records import Record
from detent.core.state import Ask, RunState
from detent.ports import Signal, wait_for_news, wakes
from detent.running.results import Answered, Result
from detent.server.below import waits_for
from detent.server.callers import Caller
from detent.server.mcp_changes import Changes
from detent.server.mcp_tasks import OpenAsk, Tasks, open_asks, takes_tasks
from detent.server.operations import token_of
from detent.server.problems import Refused, answer, told
from detent.server.served import Served
from detent.server.shapes import run_of, shown

CALLER = "detent.caller"
MOST_LISTED = 50
MOST_READ_BYTES = 8 * 1024 * 1024
REPLY = {"type": "object", "properties": {"reply": {"type": "string", "description": "Your answer"}}, "required": ["reply"]}
GOAL = {
    "type": "object",
    "properties": {
        "goal": {"type": "string", "description": "What the agent should achieve, in your own words."},
        "variables": {"type": "object", "description": "Data for the agent."},
    },
    "required": ["goal"],
    "additionalProperties": False,
}
_RUN_URI = re.compile(r"detent://runs/([^/]+)(?:/(log|artifacts/([^/]+)))?")


def server_of(served: Served, caller_of: Callable[[Any], Caller], *, keys: list[bytes] | None = None) -> Server[Any]:
    """Return the MCP server over an engine. `caller_of` tells who sends a request; `keys` seal `requestState`, the first one seals.

    Servers of one store that share their keys continue each other's requests.
    """
    tools = _Tools(served, caller_of)
    made: Server[Any] = Server(
        "detent",
        version=version("detent"),
        instructions="Each tool is an agent: give it a goal. A run that waits for an approval names the page where people decide.",
        on_list_tools=tools.listed,
        on_call_tool=tools.call,
        on_list_resources=tools.resources,
        on_list_resource_templates=tools.templates,
        on_read_resource=tools.read,
        on_subscriptions_listen=Changes(served, tools.caller).listen,
    )
    tools.tasks.serve(made)

    def principal(ctx: Any) -> str:
        caller = caller_of(ctx)
        return f"{caller.tenant}\0{caller.principal}"

    security = RequestStateSecurity(keys=keys or [secrets.token_bytes(32)], bind_principal=principal, ttl=7 * 86_400.0)
    made.middleware.append(RequestStateBoundary(security, default_audience="detent"))
    return made


class _Tools:
    """The handlers of one server."""

    def __init__(self, served: Served, caller_of: Callable[[Any], Caller]) -> None:
        self._served, self._caller_of = served, caller_of
        self.tasks = Tasks(served, self.caller, asked=_asked, answered=self._answer, shown=_result)

    def caller(self, ctx: Any, role: Any) -> Caller:
        """Return who sends a request; raise `MCPError` if it may not do that."""
        caller = self._caller_of(ctx)
        if role not in caller.roles:
            raise MCPError(t.INVALID_PARAMS, f"this needs the role {role!r}; this token has: {', '.join(caller.roles) or 'none'}")
        return caller

    async def listed(self, ctx: Any, params: Any) -> t.ListToolsResult:
        """List the agents."""
        self.caller(ctx, "see")
        found: list[t.Tool] = []
        for name, agent in sorted(self._served.engine.agents.items()):
            said = shown(name, agent.spec()).description or f"The agent {name}."
            found.append(
                t.Tool(
                    name=name,
                    description=said,
                    input_schema=GOAL,
                    annotations=t.ToolAnnotations(destructive_hint=True, open_world_hint=True),
                )
            )
        return t.ListToolsResult(tools=found)

    async def call(self, ctx: Any, params: t.CallToolRequestParams) -> t.CallToolResult | t.InputRequiredResult:
        """Run an agent, or continue the run that asked for input. A client that knows tasks gets one at once."""
        caller, engine = self.caller(ctx, "run"), self._served.engine
        try:
            if params.request_state is not None:
                run_id = await self._continued(caller, params)
            else:
                run_id = await self._started(caller, params)
                if takes_tasks(ctx):
                    return cast("Any", await self.tasks.created(caller, run_id))
        except DetentError as error:
            return _failed(told(str(error), engine.store.url))
        try:
            with self._served.streaming(caller):
                return await self._unless_cancelled(ctx, caller, run_id)
        except Refused as refused:
            raise MCPError(
                t.INTERNAL_ERROR, f"{refused}; run {run_id} continues, the resource detent://runs/{run_id} has its status"
            ) from refused

    async def _unless_cancelled(self, ctx: Any, caller: Caller, run_id: str) -> t.CallToolResult | t.InputRequiredResult:
        """Answer with what the run gives; a request that is cancelled cancels it, unless that is because the server stops."""
        try:
            return await self._followed(ctx, caller, run_id)
        except asyncio.CancelledError:
            if not self._served.stopping.is_set():
                with contextlib.suppress(DetentError):
                    await asyncio.shield(
                        self._served.engine.cancel(
                            run_id, by=caller.principal, why="the MCP client cancelled its request", host=caller.host
                        )
                    )
            raise

    async def _followed(self, ctx: Any, caller: Caller, run_id: str) -> t.CallToolResult | t.InputRequiredResult:
        """Wait until a run has ended, or waits for people, and ask the host's user what it asks."""
        while True:
            result = await self._rested(ctx, caller, run_id)
            state: RunState = result.state
            asked = next(iter(await open_asks(self._served, state, caller.host)), None)
            if asked is not None and ctx.protocol_version in MODERN_PROTOCOL_VERSIONS:
                return _asks(state.run_id, asked)
            if asked is None or not await self._elicited(ctx, caller, state.run_id, asked):
                return _result(result, "" if state.terminal else await waits_for(self._served, state, caller.host))

    async def _started(self, caller: Caller, params: t.CallToolRequestParams) -> str:
        said: dict[str, Any] = params.arguments or {}
        if params.name not in self._served.engine.agents:
            raise MCPError(t.INVALID_PARAMS, f"there is no agent {params.name!r}; tools/list has all")
        goal, variables = said.get("goal"), cast("Any", said.get("variables") or {})
        if not isinstance(goal, str) or not goal.strip() or not isinstance(variables, dict) or set(said) - {"goal", "variables"}:
            raise MCPError(t.INVALID_PARAMS, "arguments are a goal (a text) and, if you like, variables (an object)")
        return await self._served.engine.submit(params.name, goal, variables=variables, host=caller.host)

    async def _continued(self, caller: Caller, params: t.CallToolRequestParams) -> str:
        """Give the run the reply that a client sends with its state, if it still asks; without a reply it asks again."""
        run_id, ask_id, asker = f"{params.request_state or ''}\n\n".split("\n")[:3]
        responses = cast("dict[str, Any]", params.input_responses or {})
        said: Any = responses.get("reply")
        loaded = await self._served.engine.load(run_id, host=caller.host)
        asks = await self._served.engine.load(asker, host=caller.host) if asker else loaded
        ask = asks.state.asks.get(ask_id)
        if ask is not None and isinstance(said, t.ElicitResult):
            await self._answer(caller, loaded.run_id, (asks.run_id, ask), said, f"mcp-{secrets.token_hex(16)}")
        return loaded.run_id

    async def _answer(self, caller: Caller, run_id: str, asked: OpenAsk, said: t.ElicitResult, name: str) -> Answered | None:
        """Reply to a question of a run, or of one below it; end the run if its user does not want to."""
        engine, host = self._served.engine, caller.host
        if said.action != "accept":
            await engine.cancel(run_id, by=caller.principal, why="the user did not answer", host=host)
            return None
        reply = (said.content or {}).get("reply")
        return await engine.signal(
            asked[0], Signal(id=name, kind="reply", by=caller.principal, payload={"ask_id": asked[1].ask_id, "reply": reply}), host=host
        )

    async def _elicited(self, ctx: Any, caller: Caller, run_id: str, asked: OpenAsk) -> bool:
        """Ask the host's user, and pass the answer on. Return False if the host cannot ask, or the answer does not fit."""
        capabilities = ctx.session.client_capabilities
        if capabilities is None or capabilities.elicitation is None:
            return False
        said: t.ElicitResult = await ctx.session.elicit_form(asked[1].question, cast("Any", REPLY), related_request_id=ctx.request_id)
        answered = await self._answer(caller, run_id, asked, said, f"mcp-{secrets.token_hex(16)}")
        return answered is None or answered.outcome != "refused"

    async def _rested(self, ctx: Any, caller: Caller, run_id: str) -> Result[Any]:
        """Follow the run until it has ended or waits, and report its turns. An answer that was given and is not recorded yet is waited for."""
        engine, seen = self._served.engine, 0

        async def report(*, through_waits: bool) -> None:
            nonlocal seen
            async for item in engine.follow(run_id, after=seen, through_waits=through_waits, host=caller.host):
                if isinstance(item, Record):
                    if isinstance(item.event, e.TurnStarted):
                        await ctx.session.report_progress(float(item.event.iteration), None, f"turn {item.event.iteration}")
                    seen = item.envelope.seq

        while True:
            reporting, ended = asyncio.create_task(report(through_waits=True)), False
            try:
                result = await self._served.rested(run_id, caller.host)
                ended = result.state.terminal
            finally:
                if not ended:  # else it ends by itself, with the last turn
                    reporting.cancel()
                await asyncio.gather(reporting, return_exceptions=True)
            if not ended:
                await report(through_waits=False)
            waiting = (await engine.store.signals([result.state.run_id])).get(result.state.run_id, ())
            if result.state.terminal or not any(wakes(signal) for signal in waiting):
                return result
            await wait_for_news(engine.store, 0.05, records=True)

    async def resources(self, ctx: Any, params: Any) -> t.ListResourcesResult:
        """List the newest runs."""
        caller = self.caller(ctx, "see")
        heads = await self._served.engine.list_runs(tenant=caller.tenant, limit=MOST_LISTED, host=caller.host)
        found = [
            t.Resource(
                uri=f"detent://runs/{head.run_id}", name=head.run_id, title=f"{head.agent}: {head.status}", mime_type="application/json"
            )
            for head in heads
        ]
        return t.ListResourcesResult(resources=found)

    async def templates(self, ctx: Any, params: Any) -> t.ListResourceTemplatesResult:
        """List what can be read of a run."""
        self.caller(ctx, "see")
        rows = (("run", "", "A run as it stands"), ("log", "/log", "Its records"), ("artifact", "/artifacts/{key}", "A file that it made"))
        return t.ListResourceTemplatesResult(
            resource_templates=[
                t.ResourceTemplate(uri_template=f"detent://runs/{{run_id}}{path}", name=name, description=said) for name, path, said in rows
            ]
        )

    async def read(self, ctx: Any, params: t.ReadResourceRequestParams) -> t.ReadResourceResult:
        """Return a run, its log, or an artifact."""
        caller, engine = self.caller(ctx, "see"), self._served.engine
        if (named := _RUN_URI.fullmatch(str(params.uri))) is None:
            raise MCPError(
                t.INVALID_PARAMS,
                f"{str(params.uri)[:200]!r} is not a resource of this server; resources/templates/list says which there are",
            )
        run_id, part, key = named.groups()
        try:
            if key:
                data = await engine.artifact(run_id, key, host=caller.host)
                _refuse_large(params.uri, len(data))
                blob = t.BlobResourceContents(uri=params.uri, blob=base64.b64encode(data).decode(), mime_type="application/octet-stream")
                return t.ReadResourceResult(contents=[blob])
            if part:
                lines = [encode(record) for record in await engine.records(run_id, host=caller.host)]
                _refuse_large(params.uri, sum(map(len, lines)))
                text = b"\n".join(lines).decode()
                return t.ReadResourceResult(contents=[t.TextResourceContents(uri=params.uri, text=text, mime_type="application/x-ndjson")])
            run = encode(run_of(await engine.load(run_id, host=caller.host))).decode()
            return t.ReadResourceResult(contents=[t.TextResourceContents(uri=params.uri, text=run, mime_type="application/json")])
        except DetentError as error:
            raise MCPError(t.INVALID_PARAMS, told(str(error), engine.store.url)) from error


def _refuse_large(uri: Any, size: int) -> None:
    """Raise `MCPError` for a resource that is not for one answer."""
    if size > MOST_READ_BYTES:
        why = f"{uri} has {size:,} bytes, more than the {MOST_READ_BYTES:,} of one answer; read it over HTTP: /runs/RUN/records page by page, /artifacts/KEY"
        raise MCPError(t.INVALID_PARAMS, why)


def _asked(ask: Ask) -> t.ElicitRequest:
    return t.ElicitRequest(params=t.ElicitRequestFormParams(message=ask.question, requested_schema=REPLY))


def _asks(run_id: str, asked: OpenAsk) -> t.InputRequiredResult:
    asker, ask = asked
    state = f"{run_id}\n{ask.ask_id}" + (f"\n{asker}" if asker != run_id else "")
    return t.InputRequiredResult(input_requests={"reply": _asked(ask)}, request_state=state)


def _result(result: Result[Any], waits: str = "") -> t.CallToolResult:
    """Return a run as the result of a call; `waits` says what one waits for that has not ended."""
    state: RunState = result.state
    about = {"run_id": result.run_id, "status": result.status, "reason": result.reason, "output": result.output}
    if result.status == "completed":
        output: Any = result.output
        text = output if isinstance(output, str) else encode(output).decode()
        return t.CallToolResult(content=[t.TextContent(text=text)], structured_content=about)
    if state.terminal:
        return _failed(f"run {result.run_id} {result.status}: {result.error or result.reason}", about)
    text = f"run {result.run_id} waits for {waits}. It continues when somebody decides; the resource detent://runs/{result.run_id} has its status"
    return t.CallToolResult(content=[t.TextContent(text=text)], structured_content=about)


def _failed(text: str, about: dict[str, Any] | None = None) -> t.CallToolResult:
    return t.CallToolResult(content=[t.TextContent(text=text)], structured_content=about, is_error=True)


async def serve_stdio(served: Served, caller: Caller) -> None:
    """Serve the host that started this process, over its standard streams, until it closes them; it acts as `caller`."""
    made = server_of(served, lambda _: caller)
    async with served.lifespan(None), stdio_server() as (reading, writing):
        await made.run(reading, writing, made.create_initialization_options())


class McpDoor:
    """The endpoint over HTTP: each request carries a token, as all others do."""

    def __init__(self, served: Served) -> None:
        self._served = served
        self._manager = StreamableHTTPSessionManager(
            server_of(served, _caller_in, keys=[served.settings.secret.encode()] if served.settings.secret else None),
            max_request_body_size=served.settings.body_bytes,
            max_sessions=served.settings.streams,
        )
        self._app: ASGIApp = StreamableHTTPASGIApp(self._manager)

    def running(self) -> contextlib.AbstractAsyncContextManager[None]:
        """Hold the sessions of this endpoint."""
        return self._manager.run()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        request = Request(scope)
        try:
            caller = await self._served.caller(token_of(request))
            self._served.rates.take(f"{caller.tenant}\0{caller.principal}")
        except Refused as refused:
            await answer(refused.problem, refused.headers)(scope, receive, send)
            return
        scope[CALLER] = caller
        owner = AccessToken(token="", client_id=f"{caller.tenant}\0{caller.principal}", scopes=[])
        scope["user"] = AuthenticatedUser(owner)  # a session is of whoever began it: another one's does not exist
        await self._app(scope, receive, send)


def _caller_in(ctx: Any) -> Caller:
    caller = ctx.request.scope.get(CALLER) if ctx.request is not None else None
    if not isinstance(caller, Caller):
        raise MCPError(t.INVALID_PARAMS, "this request has no caller")
    return caller
