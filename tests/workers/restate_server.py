"""A real Restate server for tests: one node on free ports of loopback, in a temporary folder, from npm (`scripts/node-tools`)."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tools.mcp.desks import node_tool
from workers.waiting import soon

_WATCH = """
import os, pathlib, shutil, signal, sys
place = pathlib.Path(sys.argv[1])
sys.stdin.read()
try:
    os.kill(int((place / "pid").read_text()), signal.SIGKILL)
except (OSError, ValueError):
    pass
shutil.rmtree(place, ignore_errors=True)
"""
"""Waits until the process of the tests is gone, however it ended, and then ends the server and removes its folder."""


class RestateServer:
    """One node. `ingress` and `admin` are its URLs; they stay the same over `restart`. `settings`: more than a node needs that is alone."""

    def __init__(self, settings: Mapping[str, str] | None = None, *, ports: tuple[int, ...] = ()) -> None:
        (wrapper,) = {Path(node_tool("restate-server")).resolve()}
        packages = next(parent for parent in wrapper.parents if parent.name == "@restatedev")
        found = [path / "bin" / "restate-server" for path in packages.glob("restate-server-*")]
        self._program = next((path for path in found if path.exists()), wrapper)
        self.directory = Path(tempfile.mkdtemp(prefix="detent-restate-"))
        self._ports, self._settings = ports or tuple(free_ports(3)), settings or {}
        self.ingress, self.admin = (f"http://127.0.0.1:{port}" for port in self._ports[:2])
        self._watch = subprocess.Popen([sys.executable, "-c", _WATCH, str(self.directory)], stdin=subprocess.PIPE, start_new_session=True)
        self.begin()

    def start(self) -> None:
        """Start the server, and wait until it answers."""
        self.begin()
        self.ready()

    def begin(self) -> None:
        """Start the server."""
        ingress, admin, node = (f"127.0.0.1:{port}" for port in self._ports)
        settings = {
            "RESTATE_INGRESS__BIND_ADDRESS": ingress,
            "RESTATE_ADMIN__BIND_ADDRESS": admin,
            "RESTATE_BIND_ADDRESS": node,
            "RESTATE_LISTEN_MODE": "tcp",
            "RESTATE_DEFAULT_NUM_PARTITIONS": "2",
            "RESTATE_DISABLE_TELEMETRY": "true",
            "RESTATE_LOG_FILTER": "error",
            "DO_NOT_TRACK": "1",
            "RESTATE_NODE_NAME": "tests",
            **self._settings,
        }
        words = [str(self._program), "--base-dir", str(self.directory / "data"), "--no-logo"]
        with (self.directory / "log").open("ab") as log:
            options: Any = {"stdout": log, "stderr": log, "start_new_session": True}
            self.process = subprocess.Popen(words, env={**os.environ, **settings}, **options)
        (self.directory / "pid").write_text(str(self.process.pid))

    def ready(self) -> None:
        """Wait until it answers."""
        soon(lambda: self._answers(f"{self.ingress}/restate/health") and self._answers(f"{self.admin}/health"), 60)

    def _answers(self, url: str) -> bool:
        assert self.process.poll() is None, (self.directory / "log").read_text()[-2000:]
        try:
            with urllib.request.urlopen(url, timeout=5) as answer:  # noqa: S310 - an URL of this server
                return answer.status == 200
        except (OSError, urllib.error.URLError):
            return False

    def kill(self) -> None:
        """End it as a crash does."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def restart(self) -> None:
        """Let it crash, and start it again."""
        self.kill()
        self.start()

    def remove(self) -> None:
        """End it, and remove everything."""
        self.kill()
        self._watch.communicate()
        shutil.rmtree(self.directory, ignore_errors=True)


def new_server() -> RestateServer:
    """Return a server that answers, to be removed by the caller; skip the test where there is none."""
    made = RestateServer()
    made.ready()
    return made


class RestateCluster:
    """Three nodes, of which each record is on two. `nodes` are their servers."""

    def __init__(self) -> None:
        ports = [tuple(free_ports(3)) for _ in range(3)]
        addresses = json.dumps([f"http://127.0.0.1:{node}" for _, _, node in ports])
        shared = {
            "RESTATE_CLUSTER_NAME": "tests",
            "RESTATE_METADATA_CLIENT__ADDRESSES": addresses,
            "RESTATE_DEFAULT_REPLICATION": "2",
            "RESTATE_ROCKSDB_TOTAL_MEMORY_SIZE": "512 MiB",
        }
        self.nodes: list[RestateServer] = []
        try:
            for n, own in enumerate(ports):
                settings = {
                    "RESTATE_NODE_NAME": f"node-{n}",
                    "RESTATE_AUTO_PROVISION": str(n == 0).lower(),
                    "RESTATE_ADVERTISED_ADDRESS": f"http://127.0.0.1:{own[2]}",
                }
                self.nodes.append(RestateServer(shared | settings, ports=own))
            for node in self.nodes:
                node.ready()
        except BaseException:
            self.remove()
            raise

    def remove(self) -> None:
        """End all nodes, and remove everything."""
        for node in self.nodes:
            node.remove()


def free_ports(count: int) -> list[int]:
    """Return ports of loopback that nobody listens at."""
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


@pytest.fixture(scope="session")
def restate() -> Iterator[RestateServer]:
    """The server of this process's tests; a test that kills it takes `own_restate`."""
    made = new_server()
    yield made
    made.remove()


@pytest.fixture
def own_restate() -> Iterator[RestateServer]:
    """A server of the test's own."""
    made = new_server()
    yield made
    made.remove()
