"""A server on loopback that speaks OpenAI's chat completions as a script says: answers, refusals, failures, streams that break."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Answer = dict[str, Any]
Entry = Answer | Callable[[dict[str, Any]], Answer]


def says(text: str | None = "", *calls: tuple[str, str, Any], finish: str = "", **more: Any) -> Answer:
    """Return a good answer: text and calls (id, tool, arguments as text or data); usage of 100 input and 10 output tokens."""
    message: dict[str, Any] = {"role": "assistant", "content": text}
    if calls:
        message["tool_calls"] = [
            {"id": i, "type": "function", "function": {"name": tool, "arguments": args if isinstance(args, str) else json.dumps(args)}}
            for i, tool, args in calls
        ]
    usage = more.pop(
        "usage", {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110, "prompt_tokens_details": {"cached_tokens": 40}}
    )
    message |= more
    return {"message": message, "finish": finish or ("tool_calls" if calls else "stop"), "usage": usage}


def fails(status: int, message: str = "no", *, code: str = "", **headers: str) -> Answer:
    """Return an HTTP failure with an error body in OpenAI's shape; header names are written with underscores."""
    error = {"message": message, "type": code or "error", "code": code or None}
    return {"status": status, "body": json.dumps({"error": error}), "headers": {k.replace("_", "-"): v for k, v in headers.items()}}


HANGS_UP: Answer = {"hang_up": True}
"""The connection is closed before any answer."""


def never(until: threading.Event, *, drips: bool = False) -> Answer:
    """Return what answers nothing before a test says so; `drips`: a piece of nothing every now and then, so that nobody takes it for silence."""
    return {"until": until, "drips": drips}


class ChatServer:
    """Answers each request with the next entry of its script (the last one again and again), and keeps what was asked."""

    def __init__(self, script: Iterable[Entry]) -> None:
        self.script = list(script)
        self.requests: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self._lock = threading.Lock()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def do_POST(self) -> None:
                outer._answer(self)

            def log_message(self, *args: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}/v1"

    def __enter__(self) -> ChatServer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def _answer(self, handler: Any) -> None:
        asked = json.loads(handler.rfile.read(int(handler.headers["Content-Length"])))
        with self._lock:
            entry = self.script[min(len(self.requests), len(self.script) - 1)]
            self.requests.append(asked)
            self.headers.append({k.lower(): v for k, v in handler.headers.items()})
        answer = entry(asked) if callable(entry) else entry
        if answer.get("hang_up"):
            handler.close_connection = True
            handler.connection.close()
        elif "until" in answer:
            _drip(handler, answer["until"], answer["drips"])
        elif "status" in answer:
            _send(handler, answer["status"], answer["body"], {"Content-Type": "application/json", **answer.get("headers", {})})
        elif asked.get("stream"):
            _stream(handler, answer)
        else:
            choice = {"index": 0, "message": answer["message"], "finish_reason": answer["finish"]}
            body = {
                "id": "cmpl-1",
                "object": "chat.completion",
                "created": 1,
                "model": "served",
                "choices": [choice],
                "usage": answer["usage"],
            }
            _send(handler, 200, json.dumps(body), {"Content-Type": "application/json"})


def _send(handler: Any, status: int, body: str, headers: dict[str, str]) -> None:
    data = body.encode()
    handler.send_response(status)
    for name, value in headers.items():
        handler.send_header(name, value)
    handler.send_header("Content-Length", str(len(data)))
    handler.end_headers()
    handler.wfile.write(data)


def _drip(handler: Any, until: threading.Event, drips: bool) -> None:
    handler.close_connection = True
    if drips:
        handler.send_response(200)
        handler.send_header("Content-Type", "text/event-stream")
        handler.send_header("Connection", "close")
        handler.end_headers()
    while not until.wait(0.02):
        if drips:
            try:
                handler.wfile.write(b"\n")
            except OSError:  # whoever asked has gone
                return


def _stream(handler: Any, answer: Answer) -> None:
    """Send the answer in small pieces; `break_after` chunks, or `cut_at` bytes, the connection is closed, without an end."""
    handler.send_response(200)
    handler.send_header("Content-Type", "text/event-stream")
    handler.send_header("Connection", "close")
    handler.end_headers()
    if "cut_at" in answer:
        handler.wfile.write(streamed(answer)[: answer["cut_at"]])
        handler.close_connection = True
        return
    chunks = list(_chunks(answer))
    for chunk in chunks[: answer.get("break_after", len(chunks))]:
        handler.wfile.write(f"data: {json.dumps(chunk)}\n\n".encode())
    if "break_after" not in answer:
        handler.wfile.write(b"data: [DONE]\n\n")
    handler.close_connection = True


def streamed(answer: Answer) -> bytes:
    """Return an answer as the bytes of a whole stream."""
    return b"".join(f"data: {json.dumps(chunk)}\n\n".encode() for chunk in _chunks(answer)) + b"data: [DONE]\n\n"


def _chunks(answer: Answer) -> Iterable[dict[str, Any]]:
    message = answer["message"]

    def chunk(delta: dict[str, Any], finish: str | None = None, **more: Any) -> dict[str, Any]:
        choices = [{"index": 0, "delta": delta, "finish_reason": finish}]
        return {"id": "cmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "served", "choices": choices, **more}

    text, thinking = message.get("content") or "", message.get("reasoning_content") or ""
    for i in range(0, len(thinking), 4):
        yield chunk({"reasoning_content": thinking[i : i + 4]})
    for i in range(0, len(text), 4):
        yield chunk({"role": "assistant", "content": text[i : i + 4]})
    if message.get("refusal"):
        yield chunk({"refusal": message["refusal"]})
    for index, call in enumerate(message.get("tool_calls", [])):
        arguments = call["function"]["arguments"]
        yield chunk(
            {
                "tool_calls": [
                    {"index": index, "id": call["id"], "type": "function", "function": {"name": call["function"]["name"], "arguments": ""}}
                ]
            }
        )
        for i in range(0, len(arguments), 5):
            yield chunk({"tool_calls": [{"index": index, "function": {"arguments": arguments[i : i + 5]}}]})
    yield chunk({}, answer["finish"])
    yield {**chunk({}), "choices": [], "usage": answer["usage"]}
