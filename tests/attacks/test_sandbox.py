"""Attacks from inside the sandbox: on the network beyond the hosts that are allowed, and on the machine's memory."""

from __future__ import annotations

import asyncio
import json
import shutil
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from detent.core.agent import Host
from detent.core.errors import ConfigError
from detent.ports import ToolContext
from detent.tools.web.fetch import http_request_tool
from detent.tools.workspace import memory_group
from detent.tools.workspace import sandbox as boxes
from detent.tools.workspace.confine import Workspace
from detent.tools.workspace.process import Executed, execute
from detent.tools.workspace.proxy import PORT, Hosts
from detent.tools.workspace.sandbox import Sandbox, SandboxLimits

WHY_NOT = boxes.probe().why
sandboxed = pytest.mark.skipif(bool(WHY_NOT), reason=f"there is no sandbox here: {WHY_NOT}")
LOOPBACK = ("127.0.0.1/32", "::1/128")
MIB = 1 << 20


class Server(BaseHTTPRequestHandler):
    """Says what it was asked for, and closes."""

    def do_GET(self) -> None:
        """Answer."""
        said = json.dumps([self.path, self.headers.get("Host"), self.headers.get("Proxy-Secret")]).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(said)))
        self.end_headers()
        self.wfile.write(said)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - its name there
        """Say nothing."""


@pytest.fixture
def port() -> Iterator[int]:
    """A server on this machine's loopback."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Server) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        yield server.server_address[1]
        server.shutdown()
        thread.join()


def boxed(tmp_path: Path, box: Sandbox, code: str, *args: str) -> Executed:
    """Run Python code in a sandbox."""
    return asyncio.run(execute(Workspace(tmp_path), sys.executable, ["-c", code, *args], sandbox=box))


ASK = f"""
import http.client, socket, sys, json
def tunnel(host, port, path='/'):
    try:
        line = http.client.HTTPConnection('127.0.0.1', {PORT}, timeout=10)
        line.set_tunnel(host, port)
        line.request('GET', path, headers={{'Host': f'{{host}}:{{port}}'}})
        return line.getresponse().read().decode()
    except OSError as error:
        return str(error)
def plain(url, **headers):
    line = http.client.HTTPConnection('127.0.0.1', {PORT}, timeout=10)
    line.request('GET', url, headers=headers)
    answer = line.getresponse()
    return f'{{answer.status}} {{answer.read().decode()}}'
port = int(sys.argv[1])
"""


# Network ----------------------------------------------------------------------------------------------------------------------


@sandboxed
def test_a_program_reaches_what_is_not_allowed(tmp_path: Path, port: int) -> None:
    """A program with a list of hosts asks the proxy for others, for addresses, other ports, other spellings, or goes around the proxy."""
    code = f"""{ASK}
import os
assert os.environ['HTTPS_PROXY'] == 'http://127.0.0.1:{PORT}'
print(tunnel('localhost', port, '/through'))
print(plain(f'http://localhost:{{port}}/plain', Host='elsewhere', **{{'Proxy-Secret': 'x'}}))
for host, other in (('127.0.0.1', port), ('localhost', 22), ('evil-localhost', port), ('localhost.evil', port), ('2130706433', port),
                    ('0x7f.1', port), ('::1', port), ('169.254.169.254', 80), ('a.rebound.test', 80), ('user@localhost', port)):
    said = tunnel(f'[{{host}}]' if ':' in host else host, other)
    assert '403' in said or '400' in said, (host, said)
for url in ('http://127.0.0.1:%d/' % port, 'http://localhost:22/', 'https://localhost/', 'file:///etc/passwd', '/x', 'ftp://localhost/'):
    assert plain(url)[:3] in ('403', '400'), url
for family, place in ((socket.AF_INET, ('127.0.0.1', port)), (socket.AF_INET, ('10.0.0.1', 80)), (socket.AF_INET6, ('2001:db8::1', 80))):
    with socket.socket(family) as around:
        around.settimeout(2)
        try:
            around.connect(place)
            print('AROUND', place)
        except OSError:
            pass
"""
    done = boxed(tmp_path, Sandbox(network=(f"localhost:{port}", "*.rebound.test"), allow_private=LOOPBACK), code, str(port))
    assert done.code == 0, done.stderr
    assert done.stdout == f'["/through", "localhost:{port}", null]\n200 ["/plain", "localhost:{port}", null]\n'
    assert done.connections == 2
    assert f"127.0.0.1:{port}" in done.refused_hosts and "localhost:22" in done.refused_hosts


@sandboxed
def test_a_plain_request_names_another_host(tmp_path: Path, port: int) -> None:
    """A program hides a `Host` of its choice from the proxy: behind a bare line feed, in the version, in a second request, behind odd headers."""
    code = f"""{ASK}
url = f'http://localhost:{{port}}/'
for text in ('GET URL HTTP/1.1\\r\\nX: a\\nHost: evil\\r\\n\\r\\n', 'GET URL HTTP/1.1\\nHost:evil\\r\\n\\r\\n',
             'GET URL HTTP/1.1\\r\\nX: a\\rHost: evil\\r\\n\\r\\n',
             'GET URL HTTP/1.1\\r\\nConnection : keep-alive\\r\\n\\r\\nGET /4 HTTP/1.1\\r\\nHost: evil\\r\\n\\r\\n', 'GET URL HTTP/2.0\\r\\n\\r\\n',
             'GET URL HTTP/1.1\\r\\nX: a\\r\\n Host: evil\\r\\n\\r\\n', 'GET URL HTTP/1.1\\r\\nHost : evil\\r\\n\\r\\n',
             'POST URL HTTP/1.1\\r\\nTransfer-Encoding: chunked\\r\\nContent-Length: 5\\r\\n\\r\\n0\\r\\n\\r\\nGET /evil HTTP/1.1\\r\\n\\r\\n',
             'GET URL HTTP/1.1\\r\\nA: b\\r\\n\\r\\nGET /second HTTP/1.1\\r\\nHost: evil\\r\\n\\r\\n'):
    with socket.create_connection(('127.0.0.1', {PORT})) as line:
        line.sendall(text.replace('URL', url).encode())
        said = b''
        try:
            while chunk := line.recv(999):
                said += chunk
        except OSError:
            pass
        print(said.split(b' ')[1].decode(), b'evil' in said, said.count(b'HTTP/1'))
"""
    done = boxed(tmp_path, Sandbox(network=(f"localhost:{port}",), allow_private=LOOPBACK), code, str(port))
    assert done.stdout == "400 False 1\n" * 8 + "200 False 1\n", done.stdout + done.stderr


@sandboxed
def test_an_allowed_name_leads_to_this_machine(tmp_path: Path, port: int) -> None:
    """A name that is allowed has an address that is not public, as a name server of an attacker's may say at any time."""
    done = boxed(tmp_path, Sandbox(network=(f"localhost:{port}",)), f"{ASK}\nprint(tunnel('localhost', port))", str(port))
    assert "403" in done.stdout and done.connections == 0, done.stdout + done.stderr


@sandboxed
@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_a_common_program_uses_the_way_that_is_left_open(tmp_path: Path, port: int) -> None:
    """What is left open: curl reaches an allowed host by its environment, and no other."""
    box = Sandbox(network=(f"localhost:{port}",), allow_private=LOOPBACK)

    def curl(url: str) -> Executed:
        words = ["-sS", "--noproxy", "", "--max-time", "10", "--fail-with-body", url]
        return asyncio.run(execute(Workspace(tmp_path), "curl", words, sandbox=box))

    assert curl(f"http://localhost:{port}/x").stdout.startswith('["/x"')
    assert "not in sandbox_network" in curl(f"http://other.example:{port}/x").stdout


@sandboxed
def test_the_way_out_stays_open(tmp_path: Path, port: int) -> None:
    """A connection that a program opened is used after the program, and the proxy, have ended."""
    box = Sandbox(network=(f"localhost:{port}",), allow_private=LOOPBACK)

    async def main() -> None:
        before = asyncio.all_tasks()
        code = f"{ASK}\nimport os\nprint(tunnel('localhost', port))\nif os.fork() == 0:\n    socket.create_connection(('127.0.0.1', {PORT})).recv(1)"
        done = await execute(Workspace(tmp_path), sys.executable, ["-c", code, str(port)], sandbox=box)
        assert done.connections == 1
        assert asyncio.all_tasks() == before

    asyncio.run(main())


@pytest.mark.parametrize(
    "entry",
    [
        "https://pypi.org",
        "pypi.org/simple",
        "PyPI.org",
        "*",
        "a*.org",
        "pypi.org:0",
        "pypi.org:99999",
        "*.*.org",
        "",
        "127.0.0.1",
        "127.1:80",
        "2130706433",
        "0x7f.0x1",
        "*.1",
    ],
)
def test_a_wrong_entry_of_the_list_allows_more_than_it_says(entry: str) -> None:
    """A list of hosts that is written wrongly is refused, and never read as a wider one."""
    with pytest.raises(ConfigError, match="sandbox_network"):
        Sandbox(network=(entry,))


def test_a_pattern_matches_more_than_its_names() -> None:
    """A name that only ends like an allowed one, or the bare domain of `*.domain`, is reached."""
    hosts = Hosts.of(["pypi.org", "*.example.com", "db.example.org:5432"])
    asked = (("pypi.org", 443), ("a.example.com", 80), ("a.b.example.com", 443), ("db.example.org", 5432))
    refused = (
        ("evilpypi.org", 443),
        ("pypi.org.evil", 443),
        ("example.com", 443),
        ("xexample.com", 443),
        ("pypi.org", 22),
        ("db.example.org", 443),
    )
    assert all(hosts.allow(*place) for place in asked) and not any(hosts.allow(*place) for place in refused)


# Memory -----------------------------------------------------------------------------------------------------------------------


@sandboxed
def test_memory_is_taken_that_no_process_maps(tmp_path: Path) -> None:
    """A program fills files in memory (memfd) and large segments of shared memory, which no limit of a process counts."""
    code = """
import ctypes, os
kept = []
try:
    kept.append(os.memfd_create('x'))
    print('MEMFD')
except OSError as error:
    print(error.strerror)
libc = ctypes.CDLL(None, use_errno=True)
print(libc.shmget(0, 1 << 30, 0o1600), libc.shmget(0, 4096, 0o1600) >= 0)
"""
    assert boxed(tmp_path, Sandbox(), code).stdout == "Function not implemented\n-1 True\n"


@sandboxed
@pytest.mark.skipif(bool(memory_group.why_none()), reason="no memory control group can be made here")
def test_memory_is_taken_in_sockets(tmp_path: Path) -> None:
    """A program fills the buffers of sockets, which no process maps, beyond the bound of all its memory."""
    code = """
import socket, time
kept = []
for _ in range(400):
    pair = socket.socketpair()
    for end in pair:
        end.setblocking(False)
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 << 20)
        try:
            while True:
                end.send(b'x' * 65536)
        except BlockingIOError:
            pass
    kept.append(pair)
print('FULL')
"""
    done = boxed(tmp_path, Sandbox(limits=SandboxLimits(memory_bytes=48 * MIB)), code)
    assert (done.stdout, done.killed_for) == ("", f"more than {48 * MIB} bytes of memory"), done.stderr


# Methods ----------------------------------------------------------------------------------------------------------------------


HEADERS = (
    "X-HTTP-Method-Override x-http-method X-Method-Override X_HTTP_METHOD_OVERRIDE X-Verb X-Requested-Method X-Original-URI X-Original-Host"
    " X-Original-Path X-Envoy-Original-Path X-Override-URL X-HTTP-Path-Override X-Host Forwarded X-Forwarded-Host X-Forwarded X-HTTP-DestinationURL"
    " X-HTTP-Host-Override X-Proxy-URL Request-Uri X-Request-URI X-Middleware-Subrequest X-Accel-Redirect X-Rewrite-URL X-Sendfile Destination"
)


@pytest.mark.parametrize("header", HEADERS.split())
def test_a_post_is_made_a_delete(header: str) -> None:
    """A call of http_request with POST asks the server by a header to take it for a DELETE, or for a request to another place."""
    tool = http_request_tool(["example.com"], methods=["POST"])
    context = ToolContext(run_id="r", call_id="c", tool=tool.spec, host=Host(), idempotency_key="k")
    args = tool.check({"method": "POST", "url": "https://example.com/", "headers": {header: "x"}})
    assert asyncio.run(tool.run(args, context)).error_code == "invalid_header"
