"""The service's test: python -m pytest. It starts the service on this machine, kills it, starts it again, and uses it as a client would."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent


class Service:
    """A service that runs, as its clients see it."""

    def __init__(self, port: int, process: subprocess.Popen[bytes]) -> None:
        self._port, self.process = port, process

    def ask(self, path: str, body: Any = None) -> tuple[int, Any]:
        """Return the status and the answer to a request; with a body it is a POST."""
        with closing(HTTPConnection("127.0.0.1", self._port, timeout=60)) as connection:
            sent = None if body is None else json.dumps(body)
            connection.request("GET" if body is None else "POST", path, sent, {"content-type": "application/json"})
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read())

    def until(self, run_id: str, *wanted: str) -> Any:
        """Follow a run until it has one of these statuses, and return its status."""
        with closing(HTTPConnection("127.0.0.1", self._port, timeout=60)) as connection:
            connection.request("GET", f"/runs/{run_id}/events")
            for line in connection.getresponse():
                if line.startswith(b"data: ") and (said := json.loads(line[6:])).get("status") in wanted:
                    return said
        raise AssertionError(f"the stream ended, and the run is none of {wanted}")


@contextmanager
def service(place: Path, listener: socket.socket) -> Iterator[Service]:
    """Run the service in a directory. It is killed in the end, as by a machine that goes away."""
    environment = {name: value for name, value in os.environ.items() if name != "MODEL"}
    command = [sys.executable, "-m", "uvicorn", "app:app", "--fd", str(listener.fileno()), "--log-level", "warning"]
    process = subprocess.Popen(command, cwd=place, env=environment, pass_fds=[listener.fileno()])
    try:
        yield Service(listener.getsockname()[1], process)
    finally:
        process.kill()
        process.wait()


def copied(to: Path) -> Path:
    """Return a copy of the project, without its runs."""
    return shutil.copytree(HERE, to / "here", ignore=shutil.ignore_patterns("runs.db*", "closed.txt", "__pycache__", ".*"))


def test_runs_and_approvals_survive_a_restart(tmp_path: Path) -> None:
    """A run waits for its approval while the service is killed and started again; then the call runs, once."""
    place = copied(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        with service(place, listener) as first:
            status, started = first.ask("/runs", {"goal": "Close the account of bob"})
            assert status == 202
            run_id = started["run_id"]
            first.until(run_id, "waiting_for_approval")
        with service(place, listener) as second:
            _, (asked,) = second.ask("/approvals")
            assert (asked["run_id"], asked["tool"], asked["args"]) == (run_id, "close_account", {"address": "bob@example.com"})
            assert not (place / "closed.txt").exists()
            decide = f"/runs/{run_id}/approvals/{asked['call_id']}"
            assert second.ask(decide, {"approved": True, "digest": "0" * 32, "by": "ann"})[0] == 409, "this is not what ann saw"
            second.ask(decide, {"approved": True, "digest": asked["digest"], "by": "ann"})
            assert second.until(run_id, "completed")["output"] == "closed bob@example.com"
            denied = second.ask("/runs", {"goal": "Close the account of ann"})[1]["run_id"]
            second.until(denied, "waiting_for_approval")
            _, (asked,) = second.ask("/approvals")
            second.ask(f"/runs/{denied}/approvals/{asked['call_id']}", {"approved": False, "digest": asked["digest"], "by": "ann"})
            assert second.until(denied, "completed", "failed", "stopped")["status"] == "stopped"
            assert second.ask("/runs/none")[0] == 404
            assert (place / "closed.txt").read_text() == "bob@example.com\n"


def test_a_call_in_doubt_waits_for_a_person(tmp_path: Path) -> None:
    """The machine goes away inside the call, which may or may not have closed the account. Nothing is closed again before somebody has looked."""
    place = copied(tmp_path)
    tools = (place / "tools.py").read_text()
    dies = tools.replace("    return f", "    __import__('os').kill(__import__('os').getpid(), 9)\n    return f")
    (place / "tools.py").write_text(dies)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        with service(place, listener) as first:
            run_id = first.ask("/runs", {"goal": "Close the account of bob"})[1]["run_id"]
            first.until(run_id, "waiting_for_approval")
            _, (asked,) = first.ask("/approvals")
            with suppress(OSError, HTTPException):  # the service may be gone before it has answered
                first.ask(f"/runs/{run_id}/approvals/{asked['call_id']}", {"approved": True, "digest": asked["digest"], "by": "ann"})
            first.process.wait(60)
        (place / "tools.py").write_text(tools)
        with service(place, listener) as second:
            second.until(run_id, "waiting_for_reconciliation")
            _, (doubt,) = second.ask("/doubts")
            assert (doubt["run_id"], doubt["tool"], doubt["args"]) == (run_id, "close_account", {"address": "bob@example.com"})
            assert second.ask(f"/runs/{run_id}/doubts/none", {"happened": True, "by": "ann"})[0] == 409, "no such call is in doubt"
            found = {"happened": True, "result": "closed bob@example.com", "by": "ann"}
            assert second.ask(f"/runs/{run_id}/doubts/{doubt['call_id']}", found)[0] == 202
            assert second.until(run_id, "completed")["output"] == "closed bob@example.com"
            assert second.ask("/doubts") == (200, [])
            assert (place / "closed.txt").read_text() == "bob@example.com\n"
