"""`fetch` and `http_request`: HTTP for agents, only to listed places, and never to this machine or its private network.

    URL → is it listed? → resolve the name → is every address public? → connect to the address that was checked → redirect? from the start

The connection goes to the checked address itself, with the name in `Host` and TLS. The name is not resolved again, so its address cannot change in
between. Proxies, cookies, netrc files and environment variables are ignored. Redirects are followed here and checked like the first URL. Headers of the
call are sent only to the origin that they were meant for.
"""

from __future__ import annotations

import asyncio
import base64
import codecs
import re
import ssl
import zlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import SplitResult, urljoin

import msgspec

from detent.core.durations import Seconds, in_seconds, usually
from detent.core.errors import ConfigError, Explained, NotExecuted
from detent.ports import ToolContext
from detent.ports.options import checked_options
from detent.tools.failures import failed, shown
from detent.tools.functions.function import Tool, tool
from detent.tools.web.addresses import Pattern, networks, parse_url, resolve, url_port

if TYPE_CHECKING:
    import httpx2

AnyTool = Tool[..., Any]
Method = Literal["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"]
WRITING: tuple[Method, ...] = ("POST", "PUT", "PATCH", "DELETE")

REDIRECTS = (301, 302, 303, 307, 308)
NOT_DONE = (501, 503, 505)
"""Server errors that mean that the request was not executed. After other server errors the call is in doubt."""
FIXED_HEADERS = (
    "authorization",
    "connection",
    "content-length",
    "cookie",
    "expect",
    "host",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
)
STEERING = re.compile(
    r"proxy-.*|sec-.*|(x-)?forwarded(-.*)?|(.*-)?(original|override|rewrite|rewritten)(-.*)?|(.*-)?(method|verb)|(.*-)?(host|path|uri|url)"
    r"|(.*-)?destination.*|x-accel-.*|x-sendfile.*|x-middleware-.*"
)
"""Headers that change the request for servers behind a proxy: another method (X-HTTP-Method-Override), another place."""

SHOWN_HEADERS = ("content-disposition", "content-language", "etag", "last-modified", "link", "location", "retry-after")
SHOWN_BODY = 2_000


class HeaderSecret(msgspec.Struct, metaclass=Explained, frozen=True, kw_only=True):
    """A secret that is sent as a header to places that match `to` (a pattern with https). `form` contains `{secret}` once."""

    to: str
    secret: str
    header: str = "Authorization"
    form: str = "Bearer {secret}"

    def __post_init__(self) -> None:
        if not self.to.startswith("https://"):
            raise ConfigError(f"secret {self.secret!r} may be sent over https only, not to {self.to!r}; write 'https://host'")
        if self.form.count("{secret}") != 1:
            raise ConfigError(f"secret {self.secret!r}: form {self.form!r} must contain '{{secret}}' once")


class Places(msgspec.Struct, frozen=True, kw_only=True):
    """Where requests may go, and their limits. An empty `allow` allows nothing.

    `allow`: patterns, see `addresses.Pattern`. `allow_private`: private address ranges that are allowed anyway, such as "127.0.0.1/32". Sizes are in
    bytes, after decompression. `timeout_s` is for one call with all its redirects.
    """

    allow: tuple[str, ...]
    allow_private: tuple[str, ...] = ()
    secrets: tuple[HeaderSecret, ...] = ()
    max_bytes: int = 5_000_000
    timeout_s: Seconds[float] = usually(30.0)
    max_redirects: int = 5
    verify: ssl.SSLContext | None = None

    def __post_init__(self) -> None:
        in_seconds(self, "")


@checked_options
def fetch_tool(allow: Sequence[str], *, name: str = "fetch", **options: Any) -> AnyTool:
    """Return a tool that reads from the listed places with GET or HEAD. `options` are those of `Places`. Raise `ConfigError`."""
    client = _Client(Places(allow=_texts(allow), **options))
    credentials = tuple(dict.fromkeys(entry.secret for entry in client.places.secrets))

    @tool(name=name, side_effect="read", timeout_s=client.places.timeout_s + 5, retries=1, credentials=credentials)
    async def fetch(
        url: str, *, context: ToolContext, method: Literal["GET", "HEAD"] = "GET", headers: dict[str, str] | None = None
    ) -> dict[str, Any]:
        """Read a web page or an API over HTTP, from listed places only. Returns status, url, content_type and text, json or base64.

        A status of 400 and more is a failed call with the code http_STATUS.

        Args:
            url: http or https, without user name and password.
            method: HEAD for the headers alone.
            headers: further request headers, such as Accept.
        """
        return await client.request(method, url, headers or {}, None, context)

    return fetch


@checked_options
def http_request_tool(
    allow: Sequence[str], *, methods: Sequence[Method] = ("POST",), name: str = "http_request", **options: Any
) -> AnyTool:
    """Return a tool that sends to the listed places with the listed methods. `options` are those of `Places`. Raise `ConfigError`.

    It is `write`, or `destructive` if the methods include DELETE. Each request carries the call's key as `Idempotency-Key`. Redirects are not
    followed. If the answer is lost or the server fails, the call is in doubt.
    """
    wrong = [method for method in methods if method not in WRITING]
    if wrong or not methods:
        raise ConfigError(f"methods: {', '.join(map(repr, wrong)) or 'none'}; choose from {', '.join(WRITING)}")
    client = _Client(Places(allow=_texts(allow), **options))
    credentials = tuple(dict.fromkeys(entry.secret for entry in client.places.secrets))
    level = "destructive" if "DELETE" in methods else "write"

    @tool(name=name, side_effect=level, timeout_s=client.places.timeout_s + 5, credentials=credentials)
    async def http_request(
        url: str,
        *,
        context: ToolContext,
        method: Method = methods[0],
        json: Any = None,
        body: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> dict[str, Any]:
        """Send a request that changes something to an API, at listed places only. Returns status, url, content_type and text, json or base64.

        Args:
            url: http or https, without user name and password.
            method: what to do.
            json: data to send as JSON.
            body: text to send instead; give its Content-Type in headers.
            headers: further request headers.
        """
        if method not in methods:
            raise failed("method_not_allowed", f"{method} is not allowed here; allowed: {', '.join(methods)}")
        if json is not None and body is not None:
            raise failed("invalid_arguments", "json and body were both given; give one")
        sent = dict(headers or {})
        data = b"" if body is None else body.encode()
        if json is not None:
            data = msgspec.json.encode(json)
            sent.setdefault("Content-Type", "application/json")
        return await client.request(method, url, sent, data, context)

    return http_request


def _texts(allow: Sequence[str]) -> tuple[str, ...]:
    if isinstance(allow, str):
        raise ConfigError(f"allow: expected a list of patterns, found the text {allow!r}; write [{allow!r}]")
    return tuple(allow)


class _Client:
    """Makes requests to its listed places."""

    def __init__(self, places: Places) -> None:
        _library()
        self.places = places
        self._allowed = [Pattern(text) for text in places.allow]
        self._private = networks(places.allow_private)
        self._secrets = [(Pattern(entry.to), entry) for entry in places.secrets]
        self._tls = places.verify or ssl.create_default_context()

    async def request(
        self, method: Method, url: str, headers: Mapping[str, str], body: bytes | None, context: ToolContext
    ) -> dict[str, Any]:
        """Make one request with its redirects and return the result. Raise typed errors, and other exceptions if the call is in doubt."""
        sent = _checked_headers(headers)
        if body is not None:
            sent["Idempotency-Key"] = context.idempotency_key
        left = context.remaining_s()
        seconds = self.places.timeout_s if left is None else min(self.places.timeout_s, left)
        try:
            async with asyncio.timeout(seconds):
                return await self._follow(method, url, sent, body, context)
        except TimeoutError:
            if body is not None:
                raise
            raise failed("timeout", f"{shown(url)} did not answer in {seconds:g} s") from None

    async def _follow(self, method: Method, text: str, headers: dict[str, str], body: bytes | None, context: ToolContext) -> dict[str, Any]:
        redirects: list[str] = []
        while True:
            url, host = parse_url(text)
            self._require_listed(url, host, text)
            place = _Place(text=text, host=host, port=url_port(url), usual_port=url.port is None)
            answer = await self._once(method, place, {**headers, **self._secret_headers(url, host, context)}, body)
            location = answer.headers.get("location") if answer.status in REDIRECTS else None
            if location is None or body is not None:
                return _result(answer, text, redirects, sent=body is not None)
            if len(redirects) >= self.places.max_redirects:
                raise failed("too_many_redirects", f"{shown(text)} redirects again after {len(redirects)} redirects")
            text = urljoin(text, location)
            target, other = parse_url(text)
            if url.scheme == "https" and target.scheme != "https":
                raise failed(
                    "insecure_redirect",
                    f"a redirect from https to {shown(text)} is refused, because the request would be readable on the way",
                )
            if (target.scheme, other, url_port(target)) != (url.scheme, host, url_port(url)):
                headers = {}
            redirects.append(text)

    def _require_listed(self, url: SplitResult, host: str, text: str) -> None:
        if not any(pattern.matches(url, host) for pattern in self._allowed):
            listed = ", ".join(pattern.text for pattern in self._allowed[:20]) or "nothing is"
            raise failed("not_allowed", f"{shown(text)} is not on the list of allowed places ({listed}); use one of those, or ask a person")

    def _secret_headers(self, url: SplitResult, host: str, context: ToolContext) -> dict[str, str]:
        return {
            entry.header: entry.form.replace("{secret}", context.secret(entry.secret))
            for pattern, entry in self._secrets
            if pattern.matches(url, host)
        }

    async def _once(self, method: Method, place: _Place, headers: dict[str, str], body: bytes | None) -> _Answer:
        """Make one request to one checked address of the place."""
        http = _library()
        text, host = place.text, place.host
        named = f"[{host}]" if ":" in host else host
        own = {"Host": named if place.usual_port else f"{named}:{place.port}", "Accept-Encoding": "gzip, identity", "User-Agent": "detent"}
        problem: Exception | None = None
        for address in await resolve(host, place.port, self._private):
            async with http.AsyncClient(trust_env=False, verify=self._tls, timeout=self.places.timeout_s) as client:
                target = http.URL(text).copy_with(host=address, fragment=None)
                request = client.build_request(method, target, headers={**own, **headers}, content=body, extensions={"sni_hostname": host})
                try:
                    response = await client.send(request, stream=True, follow_redirects=False)
                    try:
                        answer = await _read(response, head=method == "HEAD", most=self.places.max_bytes)
                    finally:
                        await response.aclose()
                except (http.ConnectError, http.ConnectTimeout) as error:
                    problem = error  # nothing was sent: try the next address
                    continue
                except (http.HTTPError, http.InvalidURL) as error:
                    if body is None:
                        raise failed("connection_failed", f"{shown(text)}: {type(error).__name__}: {error}") from None
                    raise
            return answer
        raise NotExecuted(f"{shown(text)} could not be reached: {problem}", error_code="connection_failed")


class _Place(msgspec.Struct, frozen=True, kw_only=True):
    """A listed URL and its host."""

    text: str
    host: str
    port: int
    usual_port: bool


class _Answer(msgspec.Struct, frozen=True, kw_only=True):
    """A response that was read to its end."""

    status: int
    headers: dict[str, str]
    body: bytes


def _library() -> Any:
    try:
        import httpx2
    except ImportError:
        raise ConfigError("HTTP tools need the library httpx2: pip install 'detent[http]'") from None
    return httpx2


def _checked_headers(headers: Mapping[str, str]) -> dict[str, str]:
    for name, value in headers.items():
        if not name or not all(c.isascii() and (c.isalnum() or c in "!#$%&'*+-.^_`|~") for c in name):
            raise failed("invalid_header", f"{shown(name)} is not a header name")
        known = name.lower().replace("_", "-")  # some servers treat the two as the same
        if known in FIXED_HEADERS or STEERING.fullmatch(known):
            raise failed("invalid_header", f"the header {name} cannot be set by a call, because it would change the request; leave it out")
        if any((ord(c) < 32 and c != "\t") or ord(c) == 127 or not c.isascii() for c in value):
            raise failed("invalid_header", f"the value of the header {name} may contain only visible ASCII characters")
    return dict(headers)


async def _read(response: httpx2.Response, *, head: bool, most: int) -> _Answer:
    """Read the body, decompressed, up to `most` bytes; raise `ToolFailed` (`too_large`, `bad_encoding`) otherwise."""
    headers = {name.lower(): value for name, value in response.headers.items()}
    encoding = headers.get("content-encoding", "identity").strip().lower()
    if encoding not in ("", "identity", "gzip", "x-gzip", "deflate"):
        raise failed("bad_encoding", f"the answer is encoded as {encoding!r}, which was not asked for")
    inflate = None if encoding in ("", "identity") else zlib.decompressobj(47)
    body = bytearray()
    if not head:
        async for chunk in response.aiter_raw():
            try:
                body += chunk if inflate is None else inflate.decompress(chunk, most + 1 - len(body))
            except zlib.error as error:
                raise failed("bad_encoding", f"the answer cannot be decompressed: {error}") from None
            if len(body) > most:
                raise failed("too_large", f"the answer is larger than {most} bytes; ask for less of it", limit_bytes=most)
    return _Answer(status=response.status_code, headers=headers, body=bytes(body))


def _result(answer: _Answer, url: str, redirects: list[str], *, sent: bool) -> dict[str, Any]:
    """Return the answer as data. Raise `ToolFailed` for a status that means failure, and another error if the status leaves that open."""
    kind = answer.headers.get("content-type", "")
    said: dict[str, Any] = {
        "status": answer.status,
        "url": url,
        "content_type": kind,
        "size_bytes": len(answer.body),
        "redirects": redirects,
        "headers": {name: answer.headers[name] for name in SHOWN_HEADERS if name in answer.headers},
        **_content(answer.body, kind),
    }
    if sent and answer.status >= 500 and answer.status not in NOT_DONE:
        raise RuntimeError(f"{shown(url)} answered {answer.status}")  # not a typed error: the request may or may not have been executed
    if answer.status >= 400:
        text = str(said.get("text", said.get("json", "")))[:SHOWN_BODY]
        details = {name: said[name] for name in ("status", "url", "content_type", "headers")}
        raise failed(f"http_{answer.status}", f"{shown(url)} answered {answer.status}: {text}", **details)
    return said


def _content(body: bytes, content_type: str) -> dict[str, Any]:
    """Return the body as `json`, `text` or `base64`, by its declared type. If it cannot be read as declared, use the next form."""
    media, *parameters = [part.strip() for part in content_type.split(";")]
    media = media.lower()
    charset = next((p.partition("=")[2].strip("\"' ") for p in parameters if p.lower().startswith("charset=")), "")
    if media == "application/json" or media.endswith("+json"):
        try:
            return {"json": msgspec.json.decode(body)}
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            pass
    textual = media.startswith("text/") or media.endswith(
        ("+xml", "+json", "/xml", "/json", "/javascript", "/yaml", "x-www-form-urlencoded")
    )
    if not body or textual or charset:
        return {"text": _decoded(body, charset)}
    if not media:
        try:
            return {"text": body.decode("utf-8")}
        except UnicodeDecodeError:
            pass
    return {"base64": base64.b64encode(body).decode()}


def _decoded(body: bytes, charset: str) -> str:
    try:
        codec = codecs.lookup(charset or "utf-8")
        if not getattr(codec, "_is_text_encoding", True):
            raise LookupError(charset)
        return codec.decode(body, "replace")[0]
    except (LookupError, UnicodeError):
        return body.decode("utf-8", "replace")
