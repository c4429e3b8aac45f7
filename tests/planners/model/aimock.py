"""aimock on loopback: a server of the tests that speaks the protocols of OpenAI, Anthropic and Google as a table of fixtures says.

It is started with fixtures alone, never in its recording mode, and without any address to forward to. `scripts/node-tools` installs it;
where it is missing the tests that need it are skipped, saying so.
"""

from __future__ import annotations

import http.client
import json
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tools.mcp.desks import listening, node_tool

KEYS = ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "GOOGLE_API_KEY")
MODELS = {
    "openai-chat": "openai-chat:gpt-4.1",
    "openai-responses": "openai-responses:gpt-4.1",
    "anthropic": "anthropic:claude-sonnet-4-6",
    "google": "google:gemini-2.5-pro",
}
"""A model of each protocol."""


class Mock:
    """A running server; its journal says what was asked."""

    def __init__(self, url: str) -> None:
        self.url = url

    @property
    def environment(self) -> dict[str, str]:
        """The variables that lead the vendors' clients here, with keys that are none."""
        bases = {"OPENAI_BASE_URL": f"{self.url}/v1", "ANTHROPIC_BASE_URL": self.url, "GOOGLE_GEMINI_BASE_URL": self.url}
        return {**bases, **dict.fromkeys(KEYS, "no-key")}

    def requests(self, about: str = "") -> list[dict[str, Any]]:
        """Return the requests for answers so far, oldest first; `about` is text that must stand in them."""
        connection = http.client.HTTPConnection(self.url.removeprefix("http://"), timeout=60)
        connection.request("GET", "/__aimock/journal")
        entries: list[dict[str, Any]] = json.loads(connection.getresponse().read())
        connection.close()
        return [entry for entry in entries if about in json.dumps(entry["body"])]


def when(text: str, response: dict[str, Any], *, after_tools: bool = False, nth: int | None = None, **more: Any) -> dict[str, Any]:
    """Return a fixture: what is answered when the user's message holds `text`, before or after a tool's result, the n-th time (from 0)."""
    match: dict[str, Any] = {"userMessage": text, "hasToolResult": after_tools}
    if nth is not None:
        match["sequenceIndex"] = nth
    return {"match": match, "response": response, **more}


def calls(*named: tuple[str, Any], **more: Any) -> dict[str, Any]:
    """Return an answer of tool calls: names with arguments (data, or text that need not be JSON)."""
    return {"toolCalls": [{"name": name, "arguments": args, "id": f"call_{i}"} for i, (name, args) in enumerate(named)], **more}


@contextmanager
def aimock(fixtures: Sequence[dict[str, Any]], home: Path) -> Generator[Mock]:
    """Start the server with these fixtures, kept in `home`; what none of them answers is an error of the test."""
    file = home / "fixtures.json"
    file.write_text(json.dumps({"fixtures": list(fixtures)}))
    command = [node_tool("llmock"), "--port", "{port}", "--host", "127.0.0.1", "--fixtures", str(file), "--strict", "--log-level", "silent"]
    with listening(command) as (_, port):
        yield Mock(f"http://127.0.0.1:{port}")
