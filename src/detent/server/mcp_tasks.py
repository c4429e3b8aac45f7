"""Calls that a client does not wait for: the tasks extension of 2026-07-28. A task is a run, and its id is the run's.

A client that says it knows tasks gets one instead of the answer. Rule: a task's id gives nobody anything. Who may look at it, answer it and end it is
decided by the caller's token, and another tenant's task does not exist.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import mcp_types as t
from mcp.server.lowlevel.server import Server
from mcp.shared.exceptions import MCPError
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from detent.core.agent import Host
from detent.core.errors import DetentError, NotAllowedNow
from detent.core.state import Ask, RunState
from detent.running.results import Answered
from detent.server.below import asking_below, waits_for
from detent.server.callers import Caller
from detent.server.keys import digest_of
from detent.server.problems import told
from detent.server.served import BELOW, Served

EXTENSION = "io.modelcontextprotocol/tasks"
OpenAsk = tuple[str, Ask]
"""The id of a run that asks its user something, and the question."""
POLL_MS = 1_000
MOST_ANSWERS = 100


class TaskParams(t.RequestParams):
    """Which task."""

    task_id: str


class UpdateParams(TaskParams):
    """Answers to what a task asked, by the keys of its requests."""

    input_responses: dict[str, t.ElicitResult]


def takes_tasks(ctx: Any) -> bool:
    """Whether the sender of a request declares that it knows tasks."""
    said = ctx.session.client_capabilities
    return ctx.protocol_version in MODERN_PROTOCOL_VERSIONS and said is not None and EXTENSION in (said.extensions or {})


class Tasks:
    """The methods of the extension. `asked` makes a request of a question, `answered` gives a run a reply, `shown` makes an answer of a run."""

    def __init__(
        self,
        served: Served,
        caller_of: Callable[[Any, Any], Caller],
        *,
        asked: Callable[[Ask], t.ElicitRequest],
        answered: Callable[[Caller, str, OpenAsk, t.ElicitResult, str], Awaitable[Answered | None]],
        shown: Callable[[Any], t.CallToolResult],
    ) -> None:
        self._served, self._caller_of = served, caller_of
        self._asked, self._answered, self._shown = asked, answered, shown

    def serve(self, server: Server[Any]) -> None:
        """Add the methods to a server, and say so."""
        server.extensions[EXTENSION] = {}
        server.add_request_handler("tasks/get", TaskParams, self.get)
        server.add_request_handler("tasks/update", UpdateParams, self.update)
        server.add_request_handler("tasks/cancel", TaskParams, self.cancel)

    async def created(self, caller: Caller, run_id: str) -> dict[str, Any]:
        """Return what is answered to a call instead of its result."""
        state = (await self._served.engine.load(run_id, host=caller.host)).state
        return await self._about(state, caller, bool(await open_asks(self._served, state, caller.host))) | {"resultType": "task"}

    async def get(self, ctx: Any, params: TaskParams) -> dict[str, Any]:
        """Return a task as it stands: what it asks for, or its result."""
        loaded, caller = await self._loaded(ctx, params, "see"), self._caller_of(ctx, "see")
        state: RunState = loaded.state
        asks = await open_asks(self._served, state, caller.host)
        found = await self._about(state, caller, bool(asks)) | {"resultType": "complete"}
        if asks:
            found["inputRequests"] = {_key(state, one): _dumped(self._asked(one[1])) for one in asks}
        elif found["status"] == "completed":
            found["result"] = _dumped(self._shown(loaded))
        return found

    async def update(self, ctx: Any, params: UpdateParams) -> dict[str, Any]:
        """Answer what a task asks. What it does not ask, or no longer, is left out; an answer that does not fit is refused."""
        caller = self._caller_of(ctx, "run")
        loaded = await self._loaded(ctx, params, "run")
        if len(params.input_responses) > MOST_ANSWERS:
            raise MCPError(t.INVALID_PARAMS, f"more than {MOST_ANSWERS} answers at once")
        asks = {_key(loaded.state, one): one for one in await open_asks(self._served, loaded.state, caller.host)}
        for key, said in params.input_responses.items():
            if key not in asks:
                continue
            name = f"mcp-{digest_of([loaded.run_id, key, caller.principal, _dumped(said)])}"  # the same answer sent again is one answer
            answered = await self._answered(caller, loaded.run_id, asks[key], said, name)
            if answered is not None and answered.outcome == "refused":
                raise MCPError(t.INVALID_PARAMS, answered.why)
        return {"resultType": "complete"}

    async def cancel(self, ctx: Any, params: TaskParams) -> dict[str, Any]:
        """End a task; one that has ended stays as it is."""
        caller = self._caller_of(ctx, "run")
        loaded = await self._loaded(ctx, params, "run")
        if not loaded.state.terminal:
            try:
                await self._served.engine.cancel(
                    loaded.run_id, by=caller.principal, why="the MCP client cancelled its task", host=caller.host
                )
            except NotAllowedNow:
                pass  # it has ended meanwhile
            except DetentError as error:
                raise MCPError(t.INVALID_PARAMS, told(str(error), self._served.engine.store.url)) from error
        return {"resultType": "complete"}

    async def _loaded(self, ctx: Any, params: TaskParams, role: str) -> Any:
        caller = self._caller_of(ctx, role)
        if ctx.protocol_version not in MODERN_PROTOCOL_VERSIONS:
            raise MCPError(t.METHOD_NOT_FOUND, "tasks are an extension of 2026-07-28; this session has an earlier version")
        if not takes_tasks(ctx):
            raise MCPError(
                t.MISSING_REQUIRED_CLIENT_CAPABILITY,
                f"tasks need the extension {EXTENSION} among the client's capabilities",
                {"requiredCapabilities": {"extensions": {EXTENSION: {}}}},
            )
        try:
            return await self._served.engine.load(params.task_id, host=caller.host)
        except DetentError as error:
            raise MCPError(t.INVALID_PARAMS, told(str(error), self._served.engine.store.url)) from error

    async def _about(self, state: RunState, caller: Caller, asks: bool) -> dict[str, Any]:
        found: dict[str, Any] = {"taskId": state.run_id, "status": _status(state, asks=asks), "ttlMs": None, "pollIntervalMs": POLL_MS}
        for name, at in (("createdAt", state.started_at), ("lastUpdatedAt", state.updated_at)):
            found[name] = at.isoformat() if at is not None else ""
        if state.terminal:
            found["statusMessage"] = state.status.replace("_", " ")
        elif state.status == "running":
            found["statusMessage"] = f"turn {max(1, state.usage.iterations)}"
        else:
            found["statusMessage"] = f"waits for {await waits_for(self._served, state, caller.host)}"
        return found


async def open_asks(served: Served, state: RunState, host: Host) -> Sequence[OpenAsk]:
    """Return the questions that a run, or those below it, ask its user, each with the run that asks."""
    asking = (
        (state,) if state.status == "waiting_for_user" else await asking_below(served, state.run_id, host) if state.status == BELOW else ()
    )
    return [(one.run_id, ask) for one in asking for ask in one.asks.values() if ask.to == "user" or one is not state]


def _key(state: RunState, asked: OpenAsk) -> str:
    run_id, ask = asked
    return ask.ask_id if run_id == state.run_id else f"{run_id}/{ask.ask_id}"


def _status(state: RunState, *, asks: bool) -> str:
    """Return the status of a task. A run that failed is a result that says so: `failed` is for calls that could not be made."""
    if state.terminal:
        return "cancelled" if state.reason == "cancelled" else "completed"
    return "input_required" if asks else "working"


def _dumped(value: Any) -> dict[str, Any]:
    return value.model_dump(by_alias=True, mode="json", exclude_none=True)
