"""One HTTP call of a text generator, streamed line by line. Failures become a `ModelCallFailure` of their class.

Nothing is retried here: the run's gateway does that, and records each attempt.

No library reads the events. httpx-sse (9 ms, 56 kB) needs httpx, another 1.5 MB. `httpx2.EventSource` (1 ms, already installed) drops an event
that the end of the answer cut off, and refuses other content types. Ollama's lines of JSON need a reader of lines anyway, and `aiter_lines` of
httpx2 also splits at U+2028, which is valid in JSON. An event is one line here; the rest of the format is the prefix `data:`.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, cast
from urllib.parse import urlsplit

import msgspec

from detent.core.errors import ConfigError, ModelCallFailure
from detent.expressions.spellings import without_keys
from detent.ports.http_failures import kind_of_status, seconds_asked

_SHORTEST_SECRET = 8
"""Fewest characters of a secret header value: a shorter one would match ordinary words."""
_JSON = {"Content-Type": "application/json"}
LONGEST_LINE = 16_000_000
"""Most characters of one line from a server."""


class Endpoint:
    """The connection to a server at `base_url`. `timeout_s` limits the silence between two pieces, not the whole answer."""

    def __init__(self, base_url: str, *, api_key: str = "", headers: Mapping[str, str] | None = None, timeout_s: float = 300.0) -> None:
        """Raise `ConfigError` for an invalid URL, and if the HTTP client is not installed."""
        from importlib.util import find_spec

        try:
            parts = urlsplit(base_url)
        except ValueError:  # half an address in brackets
            parts = urlsplit("")
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError(f"base_url is {base_url!r}; give an http or https URL, such as http://127.0.0.1:11434")
        if timeout_s <= 0:
            raise ConfigError(f"timeout_s is {timeout_s}; give a time above 0")
        if find_spec("httpx2") is None:
            raise ConfigError('a text generator over HTTP needs httpx2: pip install "detent[on-device]"')
        self.base_url = base_url.rstrip("/")
        self._headers = {**({"Authorization": f"Bearer {api_key}"} if api_key else {}), **(headers or {})}
        self._shown = parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl().rstrip("/")
        values = [value.removeprefix("Bearer ") for value in self._headers.values()] + [parts.password or ""]
        self._secrets = tuple(value for value in values if len(value) >= _SHORTEST_SECRET)
        self._timeout_s = timeout_s
        self._local = parts.hostname in ("localhost", "127.0.0.1", "::1")
        self._verify: Any = False if parts.scheme == "http" else None

    async def lines(self, path: str, body: Mapping[str, Any], *, model: str) -> AsyncIterator[str]:
        """POST `body` and yield the lines of the answer as they come. Raise `ModelCallFailure`."""
        async with self._answered(path, model, content=msgspec.json.encode(body), headers=_JSON) as response:
            async for line in _lines(response.aiter_bytes()):
                yield line

    async def form(
        self, path: str, fields: Mapping[str, Any], files: Mapping[str, tuple[str, bytes, str]], *, model: str
    ) -> dict[str, Any]:
        """POST a form with files (name, bytes, media type) and return the JSON object of the answer. Raise `ModelCallFailure`."""
        whole = b""
        async with self._answered(path, model, data=dict(fields), files=dict(files)) as response:
            async for chunk in response.aiter_bytes():
                whole += chunk
                if len(whole) > LONGEST_LINE:
                    raise ModelCallFailure(f"model {model!r} at {self._shown}{path}: the answer does not end", kind="server")
        try:
            return msgspec.json.decode(whole, type=dict[str, Any])
        except (msgspec.DecodeError, RecursionError, ValueError) as error:
            raise ModelCallFailure(f"model {model!r} at {self._shown}{path}: the answer is not a JSON object", kind="server") from error

    @contextlib.asynccontextmanager
    async def _answered(self, path: str, model: str, **sent: Any) -> AsyncGenerator[Any]:
        """POST and yield the answer while it is read. Raise `ModelCallFailure`."""
        import httpx2

        where = f"{self._shown}{path}"
        try:
            async with self._client() as client, client.stream("POST", f"{self.base_url}{path}", **sent) as response:
                if response.status_code >= 400:
                    said = self.without_secrets((await response.aread())[:20_000].decode("utf-8", "replace"))
                    raise refused(response.status_code, said, model=model, where=where, retry_after=response.headers.get("retry-after"))
                yield response
        except httpx2.TimeoutException as error:
            raise ModelCallFailure(f"model {model!r} at {where}: no answer for {self._timeout_s:g} s", kind="timeout") from error
        except (httpx2.HTTPError, httpx2.StreamError, OSError) as error:
            said = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
            hint = "" if not isinstance(error, httpx2.ConnectError) else "; is the server running there?"
            raise ModelCallFailure(f"model {model!r} at {where}: the connection failed ({said}){hint}", kind="connection") from error

    def without_secrets(self, text: str) -> str:
        """Return the server's message without the key and other header values: it may repeat them, and messages are recorded."""
        return without_keys(text, self._secrets)

    def _client(self) -> Any:
        import httpx2

        if self._verify is None:
            self._verify = httpx2.create_ssl_context()
        return httpx2.AsyncClient(headers=self._headers, timeout=self._timeout_s, verify=self._verify, trust_env=not self._local)


async def _lines(chunks: AsyncIterator[bytes]) -> AsyncGenerator[str]:
    """Yield the lines of a body (only line feeds end one). Raise `ModelCallFailure` for one that never ends."""
    held = b""
    async for chunk in chunks:
        *lines, held = (held + chunk).split(b"\n")
        for line in lines:
            yield line.decode("utf-8", "replace").rstrip("\r")
        if len(held) > LONGEST_LINE:
            raise ModelCallFailure("the server sent a line that does not end", kind="server")
    if held:
        yield held.decode("utf-8", "replace").rstrip("\r")


async def closing(lines: AsyncIterator[str]) -> AsyncGenerator[str]:
    """Yield `lines`, and close their connection whatever happens to the reader."""
    async with contextlib.aclosing(cast("AsyncGenerator[str]", lines)) as open_lines:
        async for line in open_lines:
            yield line


def data_of(line: str, *, model: str, hidden: Callable[[str], str] = str) -> dict[str, Any] | None:
    """Return the object of a line of JSON, or of server-sent events; None for a line without one. Raise for an error that it reports.

    `hidden` removes secrets from the part of the line that an error shows.
    """
    text = line[5:].strip() if line.startswith("data:") else line.strip()
    if not text or text == "[DONE]" or text[0] == ":" or re.match(r"(event|id|retry):", text):
        return None
    try:
        value: Any = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError, ValueError) as error:
        raise ModelCallFailure(f"model {model!r}: the server sent invalid JSON: {hidden(text[:2000])[:200]!r}", kind="server") from error
    if not isinstance(value, dict):
        raise ModelCallFailure(f"model {model!r}: the server sent {type(value).__name__} where an object belongs", kind="server")
    fields = cast("dict[str, Any]", value)
    if fields.get("error"):
        raise refused(_status_in(fields["error"]), hidden(text), model=model, where="the stream")
    return fields


def _status_in(error: Any) -> int:
    code: Any = cast("dict[str, Any]", error).get("code") if isinstance(error, dict) else None
    return code if isinstance(code, int) and 400 <= code < 600 else 500


def refused(status: int, body: str, *, model: str, where: str, retry_after: str | None = None) -> ModelCallFailure:
    """Return the failure for an HTTP status and its body."""
    said = " ".join(_message_in(body).split())[:400]
    kind = kind_of_status(status, body)
    hints = {
        "auth": "; give the key with api_key=...",
        "unknown_model": "; check the model's name and the URL (is it pulled or loaded there?)",
        "context_overflow": "; lower max_prompt_tokens, or start the server with a larger context",
    }
    after = seconds_asked(retry_after, datetime.now(UTC))
    return ModelCallFailure(f"model {model!r} at {where}: HTTP {status}: {said}{hints.get(kind, '')}", kind=kind, retry_after_s=after)


def _message_in(body: str) -> str:
    with contextlib.suppress(msgspec.DecodeError, RecursionError):
        value: Any = msgspec.json.decode(body)
        for said in _messages(value):
            return said
    return body


def _messages(value: Any) -> Iterator[str]:
    """Yield the messages of an error body, in the forms of various servers."""
    if isinstance(value, str):
        yield value
    if isinstance(value, dict):
        fields = cast("dict[str, Any]", value)
        for name in ("error", "message", "detail"):
            yield from _messages(fields.get(name))
