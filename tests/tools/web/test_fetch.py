"""fetch and http_request: what is listed, what addresses are refused, redirects, sizes, contents. Real servers on loopback; no other network."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import gzip
import ipaddress
import shutil
import socket
import ssl
import subprocess
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from detent import Host, ToolContext
from detent.capabilities import FunctionSecrets
from detent.core.errors import ConfigError, ToolFailed
from detent.ports import ToolOutcome
from detent.secrecy.vault import Vault
from detent.tools.web import addresses
from detent.tools.web.addresses import Pattern, networks, parse_url, why_refused
from detent.tools.web.fetch import HeaderSecret, fetch_tool, http_request_tool

LOOPBACK = ("127.0.0.0/8",)
Reply = Callable[[str, dict[str, str], bytes], bytes]


def reply(body: bytes = b"", *, status: str = "200 OK", headers: str = "", kind: str = "text/plain") -> bytes:
    return f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n{headers}\r\n".encode() + body


class Server:
    """An HTTP server on loopback that remembers what it was asked."""

    def __init__(self, answer: Reply, address: str) -> None:
        self.answer, self.address = answer, address
        self.asked: list[tuple[str, dict[str, str], bytes]] = []
        self.port = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            first = (await reader.readuntil(b"\r\n\r\n")).decode()
            line, *rest = first.split("\r\n")
            headers = {k.lower(): v for k, _, v in (h.partition(": ") for h in rest if h)}
            body = await reader.readexactly(int(headers.get("content-length", 0)))
            self.asked.append((line, headers, body))
            writer.write(self.answer(line.split()[1], headers, body))
            await writer.drain()
        writer.close()


@contextlib.asynccontextmanager
async def serving(answer: Reply, *, address: str = "127.0.0.1", tls: ssl.SSLContext | None = None) -> AsyncIterator[Server]:
    server = Server(answer, address)
    listening = await asyncio.start_server(server.serve, address, 0, ssl=tls)
    server.port = listening.sockets[0].getsockname()[1]
    try:
        yield server
    finally:
        listening.close()
        await listening.wait_closed()


async def call(tool: Any, *, vault: Vault | None = None, **args: Any) -> ToolOutcome:
    context = ToolContext(run_id="r", call_id="c", tool=tool.spec, host=Host(), idempotency_key="key-1", secrets=vault)
    return await tool.run(tool.check(args), context)


def value(outcome: ToolOutcome) -> Any:
    assert outcome.kind == "ok", (outcome.error_code, outcome.message)
    return msgspec.json.decode(outcome.result)


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[list[str]]]:
    """A directory of names, each with what it resolves to the first time, the second time, ...; the last stays."""
    known: dict[str, list[list[str]]] = {}
    real = asyncio.BaseEventLoop.getaddrinfo

    async def getaddrinfo(self: Any, host: Any, port: Any, **options: Any) -> Any:
        if host not in known:
            assert ipaddress.ip_address(host), "no name is looked up outside"
            return await real(self, host, port, **options)
        answers = known[host]
        found = answers.pop(0) if len(answers) > 1 else answers[0]
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in found]

    monkeypatch.setattr(asyncio.BaseEventLoop, "getaddrinfo", getaddrinfo)
    return known


# What is listed ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pattern", "url", "allowed"),
    [
        ("example.com", "https://example.com/x", True),
        ("example.com", "http://EXAMPLE.com./", True),
        ("example.com", "https://sub.example.com/", False),
        ("example.com", "https://example.com:8443/", False),
        ("example.com:8443", "https://example.com:8443/", True),
        ("example.com", "https://example.com.evil.org/", False),
        ("example.com", "https://notexample.com/", False),
        ("*.example.com", "https://a.b.example.com/", True),
        ("*.example.com", "https://example.com/", False),
        ("*.example.com", "https://evilexample.com/", False),
        ("https://example.com", "http://example.com/", False),
        ("https://example.com/api/*", "https://example.com/api/v1?q=1", True),
        ("https://example.com/api/*", "https://example.com/apis", False),
        ("https://example.com/api/*", "https://example.com/api/../admin", False),
        ("https://example.com/api/*", "https://example.com/api/%2e%2e/admin", False),
        ("https://example.com/api/*", "https://example.com/api/..%2fadmin", False),
        ("https://example.com/api/*", "https://example.com/api//admin", False),
        ("https://example.com/[a]", "https://example.com/a", False),
        ("[2001:db8::1]", "http://[2001:DB8:0::1]/", True),
    ],
)
def test_a_pattern_allows_what_it_says(pattern: str, url: str, allowed: bool) -> None:
    """Hosts whole or below, ports exact, paths as they are sent."""
    assert Pattern(pattern).matches(*parse_url(url)) is allowed


@pytest.mark.parametrize(
    "pattern", ["", "*", "[::z]", "ftp://a", "https://*", "a b", "user@host", "EXAMPLE.com", "exa*mple.com", "https://"]
)
def test_what_is_no_pattern_is_refused(pattern: str) -> None:
    """No pattern allows everything by mistake."""
    with pytest.raises(ConfigError, match="allow"):
        fetch_tool([pattern])
    with pytest.raises(ConfigError, match="must be a list"):
        fetch_tool("example.com")


def test_nothing_is_allowed_without_a_list() -> None:
    """An empty list allows nothing; the message names what would do."""

    async def main() -> None:
        refused = await call(fetch_tool([]), url="https://example.com/")
        assert (refused.kind, refused.error_code) == ("failed", "not_allowed")
        refused = await call(fetch_tool(["example.com"]), url="https://example.org/")
        assert refused.error_code == "not_allowed" and "example.com" in refused.message

    asyncio.run(main())


# Addresses --------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "address",
    [
        *(
            "127.0.0.1",
            "127.255.0.9",
            "10.1.2.3",
            "172.16.0.1",
            "192.168.1.1",
            "169.254.169.254",
            "192.0.0.192",
            "192.88.99.1",
            "3fff::1",
            "168.63.129.16",
            "::5efe:10.0.0.1",
            "2600::200:5efe:127.0.0.1",
            "2600::5efe:192.168.0.1",
            "fe80::5efe:8.8.8.8",
            "100.64.0.1",
            "100.127.255.254",
            "0.0.0.0",
        ),
        *("224.0.0.1", "240.0.0.1", "255.255.255.255", "192.0.2.1", "198.18.0.1", "192.0.0.1", "203.0.113.5"),
        *("::1", "::", "fe80::1", "fc00::1", "fd00:ec2::254", "fec0::1", "ff02::1", "2001:db8::1"),
        *(
            "::ffff:127.0.0.1",
            "::ffff:169.254.169.254",
            "::127.0.0.1",
            "64:ff9b::7f00:1",
            "64:ff9b::a9fe:a9fe",
            "2002:7f00:1::",
            "2002:a00:1::",
        ),
    ],
)
def test_an_address_that_is_not_public_is_refused(address: str) -> None:
    """Loopback, private, link-local and metadata, shared, multicast, reserved, and IPv6 addresses that stand for one of these."""
    assert why_refused(ipaddress.ip_address(address), ()) != ""


@pytest.mark.parametrize("address", ["1.1.1.1", "93.184.216.34", "2606:4700::1111", "::ffff:1.1.1.1", "64:ff9b::101:101"])
def test_a_public_address_is_allowed(address: str) -> None:
    """Also through the forms of IPv6 that stand for a public IPv4 address."""
    assert why_refused(ipaddress.ip_address(address), ()) == ""


def test_an_allowed_range_allows_exactly_itself() -> None:
    """One address, in all forms that stand for it, and no neighbour."""
    allowed = networks(["127.0.0.1/32"])
    for address, fine in (("127.0.0.1", True), ("127.0.0.2", False), ("10.0.0.1", False), ("::ffff:127.0.0.1", True), ("::1", False)):
        assert (why_refused(ipaddress.ip_address(address), allowed) == "") is fine, address
    with pytest.raises(ConfigError, match="allow_private"):
        fetch_tool([], allow_private=("localhost",))


@pytest.mark.parametrize(
    "url",
    [
        *("http://2130706433/", "http://0x7f000001/", "http://0177.0.0.1/", "http://127.1/", "http://0x7f.1/", "http://127.0.0.01/"),
        *(
            "http://1.2.3.4.5/",
            "http://[::1/",
            "http://[::1%25eth0]/",
            "http://a b/",
            "http://a\\b/",
            "http://a\tb/",
            "http://ex\x00/",
            "//host/",
        ),
        *(
            "file:///etc/passwd",
            "ftp://example.com/",
            "gopher://x/",
            "http:///x",
            "http://",
            "http://host:99999/",
            "http://host:0/",
            "http://-a/",
        ),
        *("http://①②⑦.⓪.⓪.①:0/", "http://a..b/"),
    ],
)
def test_a_url_that_could_mean_two_things_is_refused(url: str) -> None:
    """Addresses in decimal, octal and hexadecimal forms, other schemes, broken hosts."""
    with pytest.raises(ToolFailed) as refused:
        parse_url(url)
    assert refused.value.error_code == "invalid_url"


def test_an_address_in_other_digits_is_still_that_address() -> None:
    """Unicode digits are read as digits before anything is decided."""
    assert parse_url("http://①②⑦.⓪.⓪.①/")[1] == "127.0.0.1"
    assert parse_url("http://EXAMPLE.com。/")[1] == "example.com"


@pytest.mark.parametrize(
    "url", ["http://user:pw@example.com/", "http://user@example.com/", "http://@example.com/", "http://example.com@127.0.0.1/"]
)
def test_credentials_in_a_url_are_refused(url: str) -> None:
    """They would stand in logs, and hide the host; the message does not repeat them."""
    with pytest.raises(ToolFailed) as refused:
        parse_url(url)
    assert refused.value.error_code == "credentials_in_url" and "pw" not in str(refused.value)


def test_loopback_is_refused_unless_it_is_allowed_by_address(names: dict[str, list[list[str]]]) -> None:
    """By number and by name, with a server that would answer; it hears nothing."""

    async def main() -> None:
        async with serving(lambda *_: reply(b"secret")) as server:
            names["inside.example.com"] = [["127.0.0.1"]]
            names["both.example.com"] = [["93.184.216.34", "127.0.0.1"]]
            hosts = ("127.0.0.1", "inside.example.com", "both.example.com", "[::ffff:127.0.0.1]")
            tool = fetch_tool([f"{host}:{server.port}" for host in hosts])
            for host in hosts:
                refused = await call(tool, url=f"http://{host}:{server.port}/")
                assert (refused.kind, refused.error_code) == ("failed", "address_refused"), host
            assert server.asked == []
            allowed = fetch_tool([f"127.0.0.1:{server.port}"], allow_private=("127.0.0.1/32",))
            assert value(await call(allowed, url=f"http://127.0.0.1:{server.port}/"))["text"] == "secret"

    asyncio.run(main())


def test_the_address_that_was_checked_is_the_one_that_is_used(names: dict[str, list[list[str]]]) -> None:
    """A name that leads elsewhere the second time (rebinding) is asked once; host and TLS name stay the name."""

    async def main() -> None:
        async with serving(lambda *_: reply(b"right")) as right, serving(lambda *_: reply(b"wrong"), address="127.0.0.2") as wrong:
            wrong_port_same = f"rebind.example.com:{right.port}"
            names["rebind.example.com"] = [["127.0.0.1"], ["127.0.0.2"]]
            tool = fetch_tool([wrong_port_same], allow_private=("127.0.0.1/32",))
            assert value(await call(tool, url=f"http://{wrong_port_same}/"))["text"] == "right"
            assert right.asked[0][1]["host"] == wrong_port_same
            assert (await call(tool, url=f"http://{wrong_port_same}/")).error_code == "address_refused"
            assert wrong.asked == []

    asyncio.run(main())


def test_proxies_and_cookies_have_no_say(monkeypatch: pytest.MonkeyPatch) -> None:
    """Variables of the environment do not send a request elsewhere, and nothing is remembered from one call to the next."""

    async def main() -> None:
        async with serving(lambda *_: reply(b"ok", headers="Set-Cookie: a=1\r\n")) as server:
            for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
                monkeypatch.setenv(name, "http://127.0.0.1:1")
            tool = fetch_tool([f"127.0.0.1:{server.port}"], allow_private=LOOPBACK)
            for _ in range(2):
                assert value(await call(tool, url=f"http://127.0.0.1:{server.port}/"))["text"] == "ok"
            assert all("cookie" not in headers for _, headers, _ in server.asked)

    asyncio.run(main())


# Redirects --------------------------------------------------------------------------------------------------------------------


def test_each_redirect_is_checked_like_the_first_url(names: dict[str, list[list[str]]]) -> None:
    """To a place that is not listed, to an address that is not public, with credentials, to another scheme: refused."""

    async def main() -> None:
        def answer(path: str, *_: Any) -> bytes:
            return reply(status="302 Found", headers=f"Location: {targets[path]}\r\n")

        async with serving(answer) as server, serving(lambda *_: reply(b"secret"), address="127.0.0.2") as inner:
            names["inner.example.com"] = [["127.0.0.2"]]
            targets = {
                "/listed": ("https://example.org/", "not_allowed"),
                "/inner": (f"http://inner.example.com:{inner.port}/", "address_refused"),
                "/number": (f"http://127.0.0.2:{inner.port}/", "address_refused"),
                "/login": (f"http://u:p@127.0.0.1:{server.port}/", "credentials_in_url"),
                "/file": ("file:///etc/passwd", "invalid_url"),
                "/loop": ("/loop", "too_many_redirects"),
            }
            codes = {path: code for path, (_, code) in targets.items()}
            targets = {path: target for path, (target, _) in targets.items()}
            allow = [f"127.0.0.1:{server.port}", f"inner.example.com:{inner.port}", f"127.0.0.2:{inner.port}"]
            tool = fetch_tool(allow, allow_private=("127.0.0.1/32",))
            for path, code in codes.items():
                refused = await call(tool, url=f"http://127.0.0.1:{server.port}{path}")
                assert (refused.kind, refused.error_code) == ("failed", code), path
            assert inner.asked == []
            assert [line.split()[1] for line, _, _ in server.asked].count("/loop") == 6

    asyncio.run(main())


def test_a_redirect_within_the_list_is_followed_and_headers_stay_with_their_origin() -> None:
    """What the call sent goes to the same origin again, and nowhere else; the way is told."""

    async def main() -> None:
        async with serving(lambda *_: reply(b"there")) as there:

            def answer(path: str, *_: Any) -> bytes:
                target = "/b" if path == "/a" else f"http://127.0.0.1:{there.port}/c"
                return reply(status="301 Moved", headers=f"Location: {target}\r\n")

            async with serving(answer) as here:
                tool = fetch_tool([f"127.0.0.1:{here.port}", f"127.0.0.1:{there.port}"], allow_private=LOOPBACK)
                got = value(await call(tool, url=f"http://127.0.0.1:{here.port}/a", headers={"X-Api-Key": "k"}))
            assert (got["text"], got["url"]) == ("there", f"http://127.0.0.1:{there.port}/c")
            assert got["redirects"] == [f"http://127.0.0.1:{here.port}/b", f"http://127.0.0.1:{there.port}/c"]
            assert [headers.get("x-api-key") for _, headers, _ in here.asked] == ["k", "k"]
            assert "x-api-key" not in there.asked[0][1]

    asyncio.run(main())


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    """A certificate for tls.example.com, with its key, signed by itself."""
    if shutil.which("openssl") is None:
        pytest.skip("TLS is NOT TESTED here: openssl is not installed")
    both = tmp_path / "both.pem"
    options = [
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:prime256v1",
        "-nodes",
        "-subj",
        "/CN=t",
        "-addext",
        "subjectAltName=DNS:tls.example.com",
    ]
    command = ["openssl", "req", "-x509", *options, "-days", "2", "-keyout", str(tmp_path / "key"), "-out", str(tmp_path / "cert")]
    subprocess.run(command, check=True, capture_output=True)
    both.write_text((tmp_path / "key").read_text() + (tmp_path / "cert").read_text())
    return both


def test_tls_is_for_the_name_and_neither_leads_out_of_it_nor_takes_secrets_along(
    names: dict[str, list[list[str]]], certificate: Path
) -> None:
    """The certificate is checked against the name, not the address; a redirect to http is refused; a secret goes to its own place only."""
    names |= {"tls.example.com": [["127.0.0.1"]], "other.example.com": [["127.0.0.1"]]}
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(certificate)
    trust = ssl.create_default_context(cafile=str(certificate))
    vault = Vault(FunctionSecrets(lambda name, host: "s3cret-token", names=("api",)), Host(credential_refs=("api",)))

    async def main() -> None:
        async with serving(lambda *_: reply(b"open")) as plain:

            def answer(path: str, *_: Any) -> bytes:
                return (
                    reply(b"closed")
                    if path == "/"
                    else reply(status="302 Found", headers=f"Location: http://tls.example.com:{plain.port}/\r\n")
                )

            async with serving(answer, tls=tls) as server:
                here = f"https://tls.example.com:{server.port}"
                allow = [here, f"https://other.example.com:{server.port}", f"tls.example.com:{plain.port}"]
                secrets = (HeaderSecret(to=here, secret="api"),)
                tool = fetch_tool(allow, allow_private=LOOPBACK, verify=trust, secrets=secrets)
                assert value(await call(tool, vault=vault, url=f"{here}/"))["text"] == "closed"
                assert server.asked[0][1]["authorization"] == "Bearer s3cret-token"
                assert (await call(tool, vault=vault, url=f"{here}/out")).error_code == "insecure_redirect"
                other = await call(tool, vault=vault, url=f"https://other.example.com:{server.port}/")
                assert (other.kind, other.error_code) == ("not_executed", "connection_failed") and "certificate" in other.message.lower()
                assert value(await call(tool, vault=vault, url=f"http://tls.example.com:{plain.port}/"))["text"] == "open"
            assert len(plain.asked) == 1 and "authorization" not in plain.asked[0][1]

    asyncio.run(main())


# Contents ---------------------------------------------------------------------------------------------------------------------


def test_contents_come_as_what_they_are() -> None:
    """Text in its character set, JSON parsed, broken JSON as text, anything else as Base64; compressed ones decompressed."""
    bodies = {
        "/latin": reply("café".encode("latin-1"), kind="text/plain; charset=ISO-8859-1"),
        "/odd": reply("é".encode(), kind="text/plain; charset=rot13"),
        "/json": reply(b'{"a": [1]}', kind="application/problem+json"),
        "/broken": reply(b'{"a"', kind="application/json"),
        "/bytes": reply(b"\x00\xff", kind="application/octet-stream"),
        "/gzip": reply(gzip.compress(b"packed"), headers="Content-Encoding: gzip\r\n"),
        "/none": b"HTTP/1.1 204 No Content\r\n\r\n",
    }

    async def main() -> None:
        async with serving(lambda path, *_: bodies[path]) as server:
            tool = fetch_tool([f"127.0.0.1:{server.port}"], allow_private=LOOPBACK)
            got = {path: value(await call(tool, url=f"http://127.0.0.1:{server.port}{path}")) for path in bodies}
            assert (got["/latin"]["text"], got["/odd"]["text"], got["/gzip"]["text"]) == ("café", "é", "packed")
            assert got["/json"]["json"] == {"a": [1]}
            assert got["/broken"]["text"] == '{"a"'
            assert base64.b64decode(got["/bytes"]["base64"]) == b"\x00\xff" and got["/bytes"]["size_bytes"] == 2
            assert (got["/none"]["status"], got["/none"]["text"]) == (204, "")

    asyncio.run(main())


def test_too_much_is_refused_also_when_it_is_compressed() -> None:
    """The cap counts what comes out; neither an endless body nor a small file that unpacks into a huge one is kept."""
    bomb = gzip.compress(b"0" * 50_000_000)

    async def main() -> None:
        async with serving(
            lambda path, *_: reply(bomb, headers="Content-Encoding: gzip\r\n") if path == "/bomb" else reply(b"x" * 2001)
        ) as server:
            tool = fetch_tool([f"127.0.0.1:{server.port}"], allow_private=LOOPBACK, max_bytes=2000)
            for path in ("/bomb", "/big"):
                refused = await call(tool, url=f"http://127.0.0.1:{server.port}{path}")
                assert (refused.kind, refused.error_code) == ("failed", "too_large"), path

    asyncio.run(main())


def test_failures_have_codes() -> None:
    """Statuses, a server that hangs, one that talks nonsense, one that is not there."""

    async def main() -> None:
        answers = {
            "/gone": reply(b"no such page", status="404 Not Found"),
            "/nonsense": b"hello\r\n\r\n",
            "/br": reply(b"x", headers="Content-Encoding: br\r\n"),
        }
        async with serving(lambda path, *_: answers[path]) as server:
            tool = fetch_tool([f"127.0.0.1:{server.port}", "127.0.0.1:1"], allow_private=LOOPBACK)
            url = f"http://127.0.0.1:{server.port}"
            gone = await call(tool, url=f"{url}/gone")
            assert (gone.kind, gone.error_code) == ("failed", "http_404") and "no such page" in gone.message
            assert gone.details is not None and gone.details["status"] == 404
            assert (await call(tool, url=f"{url}/nonsense")).error_code == "connection_failed"
            assert (await call(tool, url=f"{url}/br")).error_code == "bad_encoding"
            away = await call(tool, url="http://127.0.0.1:1/")
            assert (away.kind, away.error_code) == ("not_executed", "connection_failed")
        with socket.create_server(("127.0.0.1", 0)) as silent:
            port = silent.getsockname()[1]
            slow = fetch_tool([f"127.0.0.1:{port}"], allow_private=LOOPBACK, timeout_s=0.05)
            assert (await call(slow, url=f"http://127.0.0.1:{port}/")).error_code == "timeout"

    asyncio.run(main())


@pytest.mark.parametrize(
    "header",
    [
        *("Host", "authorization", "Cookie", "Content-Length", "Content_Length", "Proxy-Authorization", "X-Forwarded-For", "a b", ""),
        *("X-HTTP-Method-Override", "x-http-method", "X-Method-Override", "X_HTTP_Method_Override", "X-Original-Method", "X-Original-URL"),
    ],
)
def test_headers_that_steer_the_connection_are_refused(header: str) -> None:
    """And so are values with line breaks, which would begin another header."""
    tool = fetch_tool(["example.com"])
    assert asyncio.run(call(tool, url="https://example.com/", headers={header: "x"})).error_code == "invalid_header"
    for text in ("a\r\nHost: evil", "a\nb", "\x00", "é"):
        assert asyncio.run(call(tool, url="https://example.com/", headers={"X": text})).error_code == "invalid_header"


# Sending ----------------------------------------------------------------------------------------------------------------------


def test_a_request_that_writes_is_declared_as_such_and_carries_its_key() -> None:
    """`write`, `destructive` with DELETE; JSON or text; only declared methods; a redirect is an answer."""

    async def main() -> None:
        async with serving(lambda path, *_: reply(b"{}", kind="application/json", status="303 See", headers="Location: /x\r\n")) as server:
            tool = http_request_tool([f"127.0.0.1:{server.port}"], allow_private=LOOPBACK)
            assert (tool.spec.side_effect, tool.spec.idempotent) == ("write", False)
            url = f"http://127.0.0.1:{server.port}/orders"
            got = value(await call(tool, url=url, json={"n": 1}))
            assert (got["status"], got["headers"]["location"]) == (303, "/x")
            ((line, headers, body),) = server.asked
            assert line == "POST /orders HTTP/1.1" and body == b'{"n":1}'
            assert (headers["content-type"], headers["idempotency-key"]) == ("application/json", "key-1")
            assert (await call(tool, url=url, method="DELETE")).error_code == "method_not_allowed"
            assert (await call(tool, url=url, json=1, body="x")).error_code == "invalid_arguments"

    asyncio.run(main())
    assert http_request_tool([], methods=["DELETE"]).spec.side_effect == "destructive"
    assert fetch_tool([]).spec.side_effect == "read"
    with pytest.raises(ConfigError, match="GET"):
        http_request_tool([], methods=["GET"])


def test_a_lost_answer_to_a_request_that_writes_is_in_doubt() -> None:
    """A server that fails, or closes, or hangs may have done it; one that refuses has not; one that is not there was never asked."""

    async def main() -> None:
        answers = {"/500": reply(status="500 Oops"), "/503": reply(status="503 Busy"), "/400": reply(status="400 Bad"), "/closed": b""}
        async with serving(lambda path, *_: answers[path]) as server:
            tool = http_request_tool([f"127.0.0.1:{server.port}", "127.0.0.1:1"], allow_private=LOOPBACK)
            kinds = {path: (await call(tool, url=f"http://127.0.0.1:{server.port}{path}", body="x")).kind for path in answers}
            assert kinds == {"/500": "in_doubt", "/503": "failed", "/400": "failed", "/closed": "in_doubt"}
            assert (await call(tool, url="http://127.0.0.1:1/", body="x")).kind == "not_executed"
        with socket.create_server(("127.0.0.1", 0)) as silent:
            port = silent.getsockname()[1]
            slow = http_request_tool([f"127.0.0.1:{port}"], allow_private=LOOPBACK, timeout_s=0.05)
            assert (await call(slow, url=f"http://127.0.0.1:{port}/", body="x")).kind == "in_doubt"

    asyncio.run(main())


# Secrets ----------------------------------------------------------------------------------------------------------------------


def test_a_secret_is_for_https_and_declared_by_the_tool() -> None:
    """A pattern without https is refused when the tool is made; policies see the credential's name."""
    tool = fetch_tool(["api.example.com"], secrets=(HeaderSecret(to="https://api.example.com", secret="api"),))
    assert tool.spec.credentials == ("api",)
    with pytest.raises(ConfigError, match="https only"):
        HeaderSecret(to="api.example.com", secret="api")
    with pytest.raises(ConfigError, match="once"):
        HeaderSecret(to="https://api.example.com", secret="api", form="Bearer")


def test_the_library_is_named_when_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the line that installs it."""
    import sys

    monkeypatch.setitem(sys.modules, "httpx2", None)
    with pytest.raises(ConfigError, match=r"pip install 'detent\[http\]'"):
        fetch_tool([])


def test_addresses_of_interfaces_are_not_kept() -> None:
    """A scope (fe80::1%eth0) is no way round the check."""
    with pytest.raises(ToolFailed):
        asyncio.run(addresses.resolve("fe80::1", 80, ()))
