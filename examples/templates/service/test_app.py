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
SIGNED_IN = {"authorization": "Bearer a secret"}


class Service:
    """A service that runs, as its clients see it."""

    def __init__(self, port: int, process: subprocess.Popen[bytes]) -> None:
        self._port, self.process = port, process

    def ask(self, path: str, body: Any = None) -> tuple[int, Any]:
        """Return the status and the answer to a request; with a body it is a POST."""
        with closing(HTTPConnection("127.0.0.1", self._port, timeout=60)) as connection:
            sent = None if body is None else json.dumps(body)
            connection.request("GET" if body is None else "POST", path, sent, {"content-type": "application/json", **SIGNED_IN})
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read())

    def start(self, goal: str) -> Any:
        """Start a run, and return it once it waits or has ended."""
        return self.ask("/runs", {"agent": "support", "goal": goal, "wait_s": 30})[1]

    def until(self, run_id: str, *wanted: str) -> Any:
        """Follow a run until it has one of these statuses, and return the run."""
        with closing(HTTPConnection("127.0.0.1", self._port, timeout=60)) as connection:
            connection.request("GET", f"/runs/{run_id}/events", headers=SIGNED_IN)
            for line in connection.getresponse():
                if line.startswith(b"data: ") and json.loads(line[6:]).get("envelope", {"status": wanted[0]}).get("status") in wanted:
                    run = self.ask(f"/runs/{run_id}")[1]
                    if run["status"] in wanted:
                        return run
        raise AssertionError(f"the stream ended, and the run is none of {wanted}")


@contextmanager
def service(place: Path, listener: socket.socket) -> Iterator[Service]:
    """Run the service in a directory. It is killed in the end, as by a machine that goes away."""
    environment = {name: value for name, value in os.environ.items() if name != "MODEL"} | {"TOKEN": "a secret"}
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
            started = first.start("Close the account of bob")
            run_id = started["run_id"]
            assert started["status"] == "waiting_for_approval"
        with service(place, listener) as second:
            (asked,) = second.ask("/approvals")[1]["approvals"]
            assert (asked["run_id"], asked["tool"], asked["args"]) == (run_id, "close_account", {"address": "bob@example.com"})
            assert not (place / "closed.txt").exists()
            approve = f"/runs/{run_id}/approve"
            assert second.ask(approve, {"call_id": asked["call_id"], "digest": "0" * 32})[0] == 409, "this is not what ann saw"
            second.ask(approve, {"call_id": asked["call_id"], "digest": asked["digest"]})
            assert second.until(run_id, "completed")["output"] == "closed bob@example.com"
            denied = second.start("Close the account of ann")
            (asked,) = denied["approvals"]
            second.ask(f"/runs/{denied['run_id']}/deny", {"call_id": asked["call_id"], "digest": asked["digest"]})
            assert second.until(denied["run_id"], "stopped", "completed", "failed")["status"] == "stopped"
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
            started = first.start("Close the account of bob")
            run_id, (asked,) = started["run_id"], started["approvals"]
            with suppress(OSError, HTTPException):  # the service may be gone before it has answered
                first.ask(f"/runs/{run_id}/approve", {"call_id": asked["call_id"], "digest": asked["digest"]})
            first.process.wait(60)
        (place / "tools.py").write_text(tools)
        with service(place, listener) as second:
            second.until(run_id, "waiting_for_reconciliation")
            (doubt,) = second.ask("/approvals")[1]["doubts"]
            assert (doubt["run_id"], doubt["tool"], doubt["args"]) == (run_id, "close_account", {"address": "bob@example.com"})
            assert second.ask(f"/runs/{run_id}/reconcile", {"call_id": "none", "happened": True})[0] == 409, "no such call is in doubt"
            found = {"call_id": doubt["call_id"], "happened": True, "result": "closed bob@example.com"}
            assert second.ask(f"/runs/{run_id}/reconcile", found)[0] == 200
            assert second.until(run_id, "completed")["output"] == "closed bob@example.com"
            assert second.ask("/approvals") == (200, {"approvals": [], "doubts": []})
            assert (place / "closed.txt").read_text() == "bob@example.com\n"
