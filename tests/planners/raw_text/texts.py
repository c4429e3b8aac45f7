"""What tests of raw-text models share: generators that say what they are told to, views, a model server."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

import msgspec

from detent import Agent, tool
from detent.core.actions import AnyAction, ToolCall
from detent.core.agent import AgentSpec
from detent.core.events import Planned, ToolError
from detent.core.state import Item
from detent.planners.raw_text.generation import Generation, Request
from detent.ports import ToolSpec, View


class Says:
    """A generator that gives its answers one after the other (the last one again and again) and keeps what it was asked."""

    model = "says"

    def __init__(self, *answers: str | Generation) -> None:
        self.answers, self.asked = answers, list[Request]()

    def __call__(self, request: Request) -> str | Generation:
        self.asked.append(request)
        return self.answers[min(len(self.asked), len(self.answers)) - 1]

    @property
    def prompts(self) -> list[str]:
        """What each request said, with the roles."""
        return ["\n".join(f"[{m.role}] {m.content}" for m in request.messages) for request in self.asked]


READ = ToolSpec(
    name="read_file",
    description="Read a file.",
    side_effect="read",
    input_schema={
        "type": "object",
        "properties": {"path": {"type": "string"}, "lines": {"type": "integer", "minimum": 1}},
        "required": ["path"],
        "additionalProperties": False,
    },
)
ADD = ToolSpec(
    name="add",
    description="Add two numbers.",
    side_effect="none",
    input_schema={
        "type": "object",
        "properties": {"a": {"type": "number"}, "b": {"type": "number"}},
        "required": ["a", "b"],
        "additionalProperties": False,
    },
)


def view(*items: Item, tools: Sequence[ToolSpec] = (READ, ADD), goal: str = "find it", instructions: str = "", **fields: Any) -> View:
    """Return a view with these items after the goal."""
    transcript = (Item(kind="user", text=goal), *items)
    given: dict[str, Any] = {
        "goal": goal,
        "agent": AgentSpec(name="desk", instructions=instructions),
        "iteration": 1 + sum(item.kind == "model" for item in items),
        "variables": {},
        "transcript": transcript,
        "results": tuple(item for item in items if item.kind == "tool"),
        "tools": tuple(tools),
        "run_id": "r1",
    }
    return View(**{**given, **fields})


def turn(iteration: int, action: AnyAction, result: Any = None, *, error: str = "") -> list[Item]:
    """Return the items of a turn: the plan, and the observation where the action is a call."""
    items = [Item(kind="model", iteration=iteration, plan=Planned(actions=(action,)))]
    if isinstance(action, ToolCall):
        fields: dict[str, Any] = {"kind": "tool", "iteration": iteration, "tool": action.tool, "arguments": action.args}
        fields["call_id"] = f"main.{iteration}.0"
        if error:
            items.append(Item(ok=False, error=ToolError(code=error, message="no"), **fields))
        else:
            items.append(Item(ok=True, result=msgspec.Raw(msgspec.json.encode(result)), **fields))
    return items


def call(tool_name: str, **args: Any) -> str:
    """Return a call as a model writes it."""
    return json.dumps({"type": "tool_call", "tool": tool_name, "args": args})


def final(content: Any) -> str:
    """Return an answer as a model writes it."""
    return json.dumps({"type": "final_answer", "content": content})


def recording_tools(ran: list[tuple[str, dict[str, Any]]]) -> list[Any]:
    """Return tools of each kind, that put what they got on `ran`."""

    @tool(side_effect="read")
    async def read_file(path: str, lines: int = 10) -> str:
        """Read a file."""
        ran.append(("read_file", {"path": path, "lines": lines}))
        return f"contents of {path}"

    @tool(side_effect="write")
    async def write_file(path: str, content: str) -> int:
        """Write a file."""
        ran.append(("write_file", {"path": path, "content": content}))
        return len(content)

    @tool(side_effect="none")
    async def add(a: float, b: float) -> float:
        """Add two numbers."""
        ran.append(("add", {"a": a, "b": b}))
        return a + b

    return [read_file, write_file, add]


def agent_of(tools: Sequence[Any], **fields: Any) -> Agent:
    """Return an agent with these tools."""
    return Agent(name="desk", tools=list(tools), **fields)


# A model server ---------------------------------------------------------------------------------------------------------------


class Exchange:
    """One request to the server: its path, headers and body (JSON, or the bytes of a form), and the way to answer."""

    def __init__(self, path: str, headers: dict[str, str], body: Any, writer: asyncio.StreamWriter) -> None:
        self.path, self.headers, self.body, self._writer = path, headers, body, writer

    async def answer(self, data: Any, *, status: int = 200, headers: dict[str, str] | None = None) -> None:
        """Send a whole answer: JSON, or text as it is."""
        raw = data.encode() if isinstance(data, str) else json.dumps(data).encode()
        lines = [
            f"HTTP/1.1 {status} X",
            f"content-length: {len(raw)}",
            "connection: close",
            *(f"{k}: {v}" for k, v in (headers or {}).items()),
        ]
        await self.send("\r\n".join(lines).encode() + b"\r\n\r\n" + raw)

    async def begin(self) -> None:
        """Begin a streamed answer, which ends when the connection does."""
        await self.send(b"HTTP/1.1 200 X\r\nconnection: close\r\n\r\n")

    async def send(self, raw: bytes) -> None:
        """Send bytes now."""
        self._writer.write(raw)
        await self._writer.drain()

    async def stream(self, dialect: str, pieces: Sequence[str], *, finish: str = "stop") -> None:
        """Stream an answer to its end, in the dialect of `ollama` or of chat completions."""
        await self.begin()
        if dialect == "ollama":
            for piece in pieces:
                await self.send(
                    json.dumps({"model": "m", "message": {"role": "assistant", "content": piece}, "done": False}).encode() + b"\n"
                )
            end = {"model": "m", "message": {"content": ""}, "done": True, "done_reason": finish, "prompt_eval_count": 11, "eval_count": 7}
            await self.send(json.dumps(end).encode() + b"\n")
            return
        for piece in pieces:
            await self.send(
                b"data: " + json.dumps({"id": "x1", "model": "m", "choices": [{"delta": {"content": piece}}]}).encode() + b"\n\n"
            )
        await self.send(b"data: " + json.dumps({"choices": [{"delta": {}, "finish_reason": finish}]}).encode() + b"\n\n")
        await self.send(b"data: " + json.dumps({"choices": [], "usage": {"prompt_tokens": 11, "completion_tokens": 7}}).encode() + b"\n\n")
        await self.send(b"data: [DONE]\n\n")


Handler = Callable[[Exchange], Awaitable[None]]


@contextlib.asynccontextmanager
async def model_server(handler: Handler) -> AsyncIterator[str]:
    """Serve `handler` on loopback; yields the URL."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(writer), contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
            headers = {k.lower(): v for k, _, v in (line.partition(": ") for line in head[1:] if line)}
            raw = await reader.readexactly(int(headers.get("content-length", "0")))
            body = raw if headers.get("content-type", "").startswith("multipart/") else json.loads(raw or b"null")
            await handler(Exchange(head[0].split(" ")[1], headers, body, writer))

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        await server.wait_closed()


async def pieces(*given: str) -> AsyncGenerator[str]:
    """Yield pieces of text."""
    for piece in given:
        yield piece
