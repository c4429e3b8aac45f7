"""`detent top`, and a worker whose health is served."""

from __future__ import annotations

import asyncio
import http.client
import os
import re
import signal
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from amounts import in_check
from cli.desk import Desk, ended
from cli.terminals import at_a_terminal
from detent import Engine
from detent.cli.top import screen
from detent.config.state_directory import store_url
from detent.ports import Tally
from detent.running.cards import SILENT_S, WorkerCard
from detent.running.fleet import Fleet

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    desk = Desk(tmp_path)
    desk.steps("held", "answer")
    return desk


def status_of(url: str, path: str) -> int:
    """Ask a worker for a path, and return the status of its answer."""
    connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=60)
    try:
        connection.request("GET", path)
        return connection.getresponse().status
    finally:
        connection.close()


@in_check
def test_top_shows_the_queue_and_the_worker_that_empties_it(desk: Desk) -> None:
    """Before, while and after a worker has the run; `--json` is one document; without a store there is nothing to show and nothing is made."""
    assert desk.detent("top").code == 0
    assert desk.detent("top", "--json").json is None
    assert not any(desk.home.rglob("*.db"))
    os.mkfifo(desk.home / "begun")
    run_id = desk.detent("submit", "one").out.strip()
    shown = desk.detent("top").out
    assert re.search(r"^QUEUE +1 run waits for a worker, the first for [\d.]+ m?s$", shown, re.MULTILINE), shown
    assert "no worker is announced" in shown
    worker = desk.start("worker", "--health", "127.0.0.1:0", "--drain", "20")
    (desk.home / "begun").read_text()
    said = ""
    while "/healthz" not in said:
        said = worker.stderr.readline()  # type: ignore[union-attr]
    url = said.split()[0].removesuffix("/healthz,")
    found = desk.detent("top", "--json").json
    while not (found["workers"] and found["workers"][0]["runs"] == [run_id]):
        found = desk.detent("top", "--json").json
    assert (found["tally"]["active"], found["tally"]["queued"], found["workers"][0]["pid"]) == (1, 0, worker.pid)
    assert status_of(url, "/readyz") == 200
    worker.send_signal(signal.SIGTERM)
    while status_of(url, "/readyz") == 200:
        pass
    assert (status_of(url, "/readyz"), status_of(url, "/healthz")) == (503, 200)
    desk.write("go", "")
    assert ended(worker).code == 0
    assert "no worker is announced" in desk.detent("top").out
    assert desk.notes == ["held"], "the drain let the call finish"


@in_check
def test_top_at_a_terminal_redraws_until_ctrl_c(desk: Desk) -> None:
    """It shows what changes, gives the screen back, and exits with 0."""

    async def submit() -> None:
        async with Engine(store=store_url(desk.home)) as engine:
            from detent.config.loading import load_agent

            await engine.submit(load_agent(desk.home / "agent.toml"), "two")

    desk.detent("submit", "one")
    left = ["submit", "stop"]

    def types(shown: str) -> str:
        if left == ["submit", "stop"] and "1 run waits" in shown:
            left.pop(0)
            asyncio.run(submit())
        elif left == ["stop"] and "2 runs wait" in shown:
            left.pop(0)
            return "\x03"
        return ""

    environment = {**desk.environment, "TERM": "xterm-256color", "COLUMNS": "100", "LINES": "30"}
    sat = at_a_terminal(
        "top", "--every", "100ms", types=types, env=environment, cwd=desk.home, rows=30, columns=100, group=True, forks=None
    )
    assert (sat.code, left) == (0, []), sat.shown
    assert "\x1b[?1049h" in sat.shown
    assert "\x1b[?1049l" in sat.shown


def test_a_picture_shows_trouble_first_and_steers_no_terminal() -> None:
    """Silent and stopping workers are told apart from those that work; what a card says is text."""
    workers = (
        WorkerCard(
            name="b:2", started=NOW - timedelta(minutes=5), concurrency=4, active=1, runs=("r",), per_minute={"completed": 3, "attempts": 5}
        ),
        WorkerCard(name="a:1\x1b]0;evil\x07", started=NOW, concurrency=4, stopping="SIGTERM", per_minute={"failed_attempts": 1}),
        WorkerCard(name="c:3", started=NOW, concurrency=9, seen_s=SILENT_S + 1, per_minute={"completed": 90}),
    )
    tally = Tally(
        statuses={"waiting_for_operator": 2, "odd\nstatus": 1},
        oldest={"waiting_for_operator": NOW - timedelta(days=3)},
        active=1,
        queued=1_500,
        queued_s=90.0,
    )
    lines = screen(Fleet(store="sqlite:///x", at=NOW, tally=tally, workers=workers, took_ms=3.2))
    text = "\n".join(line for line, _ in lines)
    assert "QUEUE         1,500 runs wait for a worker, the first for 2 min" in text
    assert "ACTIVE        1 of 4" in text, "stopping and silent workers are no capacity"
    assert "PER MINUTE    3 ended, 5 attempts, 1 failed" in text
    assert re.search(r"^waiting_for_operator +2 +3.0 d$", text, re.MULTILINE)
    states = [re.split(r" {2,}", line)[-1] for line, _ in lines if re.match(r"[abc]:\d", line)]
    assert states == ["stopping: SIGTERM", "works", "silent for 21.0 s"]
    assert not any("\x1b" in line or "\n" in line for line, _ in lines)
