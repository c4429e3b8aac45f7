"""An MCP server over HTTP with its authorisation server, made by hand, so that either can do what it should not.

with Guarded() as it:
    McpServer(url=it.url)
"""

from __future__ import annotations

import json
import secrets
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

TOOLS = [{"name": "look", "description": "Looks.", "inputSchema": {"type": "object"}, "annotations": {"readOnlyHint": True}}]


class Guarded:
    """`seen` are (path, Authorization, form) of each request; `tokens` those that are accepted. What can be set says what it does."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, str, dict[str, str]]] = []
        self.tokens: set[str] = set()
        self.refresh_tokens: set[str] = set()
        self.leads_to = ""
        """The authorisation server that it names, "" for itself."""
        self.moved_to = ""
        """Where its answers redirect to, "" for nowhere."""
        self.expires_in = 3600
        self.scopes: dict[str, str] = {}
        self._lock = threading.Lock()
        guarded = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def log_message(self, *_: Any, **__: Any) -> None: ...

            def do_GET(self) -> None:
                guarded.note(self, {})
                guarded.get(self, urlsplit(self.path))

            def do_DELETE(self) -> None:
                guarded.note(self, {})
                guarded.send(self, 405)

            def do_POST(self) -> None:
                data = self.rfile.read(int(self.headers["Content-Length"])).decode()
                form = {name: values[0] for name, values in parse_qs(data).items()} if not data.startswith("{") else {}
                guarded.note(self, form)
                guarded.post(self, urlsplit(self.path).path, form, json.loads(data) if data.startswith("{") else {})

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._http.daemon_threads = True
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.01,), daemon=True)
        self.origin = f"http://127.0.0.1:{self._http.server_address[1]}"
        self.url = f"{self.origin}/mcp"

    def note(self, handler: BaseHTTPRequestHandler, form: dict[str, str]) -> None:
        """Note a request."""
        self.seen.append((handler.path, handler.headers.get("Authorization", ""), form))

    def forms(self, path: str) -> list[dict[str, str]]:
        """Return the forms that were posted to a path."""
        return [form for where, _, form in self.seen if where == path]

    def send(self, handler: BaseHTTPRequestHandler, status: int, body: Any = None, **headers: str) -> None:
        """Answer."""
        data = b"" if body is None else json.dumps(body).encode()
        handler.send_response(status)
        for name, value in {**headers, "Content-Type": "application/json", "Content-Length": str(len(data))}.items():
            handler.send_header(name.replace("_", "-"), value)
        handler.end_headers()
        handler.wfile.write(data)

    def get(self, handler: BaseHTTPRequestHandler, target: Any) -> None:
        """Answer a GET."""
        query = {name: values[0] for name, values in parse_qs(target.query).items()}
        match target.path:
            case "/.well-known/oauth-protected-resource/mcp":
                self.send(handler, 200, {"resource": self.url, "authorization_servers": [self.leads_to or self.origin]})
            case "/.well-known/oauth-authorization-server":
                ends = {f"{end}_endpoint": f"{self.origin}/{end}" for end in ("authorization", "token", "registration")}
                self.send(handler, 200, {"issuer": self.origin, **ends, "code_challenge_methods_supported": ["S256"]})
            case "/authorization":
                self.scopes["code"] = query.get("scope", "")
                back = urlencode({"code": "code", "state": query["state"]})
                self.send(handler, 302, Location=f"{query['redirect_uri']}?{back}")
            case _:
                self.send(handler, 405 if target.path == "/mcp" else 404)

    def post(self, handler: BaseHTTPRequestHandler, path: str, form: dict[str, str], message: dict[str, Any]) -> None:
        """Answer a POST."""
        if path == "/registration":
            self.send(handler, 201, {**message, "client_id": "registered", "token_endpoint_auth_method": "none"})
        elif path == "/token":
            self.send(handler, *self.token(form))
        elif self.moved_to:
            self.send(handler, 307, Location=self.moved_to)
        elif handler.headers.get("Authorization", "").removeprefix("Bearer ") not in self.tokens:
            where = f'Bearer resource_metadata="{self.origin}/.well-known/oauth-protected-resource/mcp"'
            self.send(handler, 401, {}, WWW_Authenticate=where)
        else:
            self.send(handler, *self.answer(message))

    def token(self, form: dict[str, str]) -> tuple[int, Any]:
        """Return a new token; a refresh token counts once."""
        with self._lock:
            if form["grant_type"] == "refresh_token":
                if form["refresh_token"] not in self.refresh_tokens:
                    return 400, {"error": "invalid_grant"}
                self.refresh_tokens.remove(form["refresh_token"])
            token, refresh = (f"sk-{kind}-{secrets.token_hex(8)}" for kind in ("access", "refresh"))
            self.tokens, self.refresh_tokens = {token}, {refresh}
            return 200, {"access_token": token, "token_type": "Bearer", "expires_in": self.expires_in, "refresh_token": refresh}

    def answer(self, message: dict[str, Any]) -> tuple[int, Any]:
        """Return the answer to a message of MCP."""
        if "id" not in message:
            return 202, None
        info = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": {"name": "guarded", "version": "1"}}
        results = {"initialize": info, "tools/list": {"tools": TOOLS}, "tools/call": {"content": [{"type": "text", "text": "seen"}]}}
        if message["method"] not in results:
            return 200, {"jsonrpc": "2.0", "id": message["id"], "error": {"code": -32601, "message": "Method not found"}}
        return 200, {"jsonrpc": "2.0", "id": message["id"], "result": results[message["method"]]}

    def __enter__(self) -> Guarded:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._http.shutdown()
        self._http.server_close()
