"""A server over streamable HTTP, made by hand: `answers` decides, by method, how a request is answered.

with OddHttp({"tools/call": Answer(status=502)}) as odd:
McpServer(url=odd.url)
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import msgspec

TOOLS = [
    {"name": "read", "inputSchema": {"type": "object"}, "annotations": {"readOnlyHint": True}},
    {"name": "write", "inputSchema": {"type": "object"}, "annotations": {"readOnlyHint": False, "destructiveHint": False}},
]


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """A response; `drop` closes the connection instead, `hang` keeps it until the server closes."""

    status: int = 200
    body: Any = None
    kind: str = "application/json"
    headers: dict[str, str] = {}
    drop: bool = False
    hang: bool = False


class OddHttp:
    """The server, in a thread; `seen` are (HTTP method, JSON-RPC method, headers) of each request."""

    def __init__(self, answers: dict[str, Answer | Callable[[dict[str, Any]], Answer]] | None = None) -> None:
        self.answers = answers or {}
        self.seen: list[tuple[str, str, dict[str, str]]] = []
        self.closing = threading.Event()
        odd = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def log_message(self, *_: Any) -> None: ...

            def do_POST(self) -> None:
                message = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                odd.seen.append(("POST", message.get("method", ""), dict(self.headers)))
                odd.respond(self, odd.answer(message))

            def do_GET(self) -> None:
                odd.seen.append(("GET", "", dict(self.headers)))
                odd.respond(self, Answer(status=405))

            def do_DELETE(self) -> None:
                odd.seen.append(("DELETE", "", dict(self.headers)))
                odd.respond(self, odd.plain("DELETE", {}))

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._http.daemon_threads = True
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.01,), daemon=True)

    @property
    def url(self) -> str:
        """Where it is."""
        return f"http://127.0.0.1:{self._http.server_address[1]}/mcp"

    def methods(self) -> list[str]:
        """Return the JSON-RPC methods that came."""
        return [method for kind, method, _ in self.seen if kind == "POST"]

    def plain(self, method: str, message: dict[str, Any]) -> Answer:
        """Return the answer that was given for `method`, else an empty one."""
        given = self.answers.get(method, Answer(status=202))
        return given(message) if callable(given) else given

    def answer(self, message: dict[str, Any]) -> Answer:
        """Return how a message is answered."""
        method = message.get("method", "")
        if method in self.answers or "id" not in message:
            return self.plain(method, message)
        info = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": {"name": "odd", "version": "1"}}
        results = {"initialize": info, "tools/list": {"tools": TOOLS}, "tools/call": {"content": [{"type": "text", "text": "done"}]}}
        if method not in results:
            return Answer(body={"jsonrpc": "2.0", "id": message["id"], "error": {"code": -32601, "message": "Method not found"}})
        session = {"Mcp-Session-Id": f"s{self.methods().count('initialize')}"} if method == "initialize" else {}
        return Answer(body={"jsonrpc": "2.0", "id": message["id"], "result": results[method]}, headers=session)

    def respond(self, handler: BaseHTTPRequestHandler, answer: Answer) -> None:
        """Send an answer."""
        if answer.hang:
            self.closing.wait()
        if answer.drop or answer.hang:
            handler.close_connection = True
            return
        data = b"" if answer.body is None else answer.body if isinstance(answer.body, bytes) else json.dumps(answer.body).encode()
        handler.send_response(answer.status)
        for name, value in {**answer.headers, "Content-Type": answer.kind, "Content-Length": str(len(data))}.items():
            handler.send_header(name, value)
        handler.end_headers()
        handler.wfile.write(data)

    def __enter__(self) -> OddHttp:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.closing.set()
        self._http.shutdown()
        self._http.server_close()
