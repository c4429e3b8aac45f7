"""Limits hold over all processes of a store: real workers, one of which is killed."""

from __future__ import annotations

import asyncio
import itertools
import math
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from amounts import in_check
from forked import fork
from metering.sharing import AGENT, AT_ONCE, engine

RUNS = 24
MOST_TRIES = 5
KINDS = ("tool", "model")
LEASE_S = 5.0
SOON_S = 60.0


def overlap(file: Path, kind: str, *, since: float = 0.0, until: float = math.inf, worker: int | None = None) -> int:
    """Return how many calls of a kind were open at once, of those of all workers or of one that began in this time."""
    calls: dict[tuple[int, int], list[float]] = {}
    for line in file.read_text().splitlines():
        _, what, who, number, at = line.split()
        if what == kind and int(who) == (worker or int(who)):
            calls.setdefault((int(who), int(number)), []).append(float(at))
    inside = [times for times in calls.values() if since <= times[0] <= until]
    marks = sorted([(times[-1] if times[1:] else math.inf, -1) for times in inside] + [(times[0], 1) for times in inside])
    return max(itertools.accumulate(step for _, step in marks), default=0)


@pytest.mark.parametrize("kind", ["sqlite", pytest.param("postgres", marks=in_check)])
def test_two_workers_share_the_limits_and_a_killed_one_gives_its_share_back(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """Two calls at once over both, of a tool and of a model; both workers get some; all runs end although one worker is killed."""
    url = f"sqlite:///{tmp_path / 'runs.db'}" if kind == "sqlite" else request.getfixturevalue("postgres_url")
    file = tmp_path / "calls"
    file.touch()

    async def submit(first: int, last: int) -> None:
        async with engine(url, file) as made:
            for number in range(first, last):
                await made.submit(AGENT, f"go {number}", run_id=f"r{number}")

    async def ended() -> int:
        async with engine(url, file) as made:
            return sum(head.status == "completed" for head in await made.list_runs())

    asyncio.run(submit(0, RUNS))
    command = [str(Path(__file__).with_name("sharing.py")), url, str(file), str(LEASE_S)]
    workers = [fork(command, imports=["metering.sharing"]) for _ in range(2)]
    try:
        for worker in workers:
            assert worker.stdout is not None
            assert worker.stdout.readline() == "ready\n"
        dead, alive = workers
        _wait(lambda: all(overlap(file, what, worker=worker.pid) for worker in workers for what in KINDS))
        killed_at = time.monotonic()
        dead.kill()
        dead.wait()
        for number in itertools.count(1):
            asyncio.run(submit(RUNS * number, RUNS * (number + 1)))
            _wait(lambda: asyncio.run(ended()) == RUNS * (number + 1))  # noqa: B023 - called here
            if all(overlap(file, what, since=killed_at, worker=alive.pid) == AT_ONCE for what in KINDS):
                break
            assert number < MOST_TRIES, "the survivor never got the share of the killed worker"
    finally:
        for worker in workers:
            with worker:
                worker.kill()
    for what in KINDS:
        assert overlap(file, what, until=killed_at) == AT_ONCE, "together they used all that they may, and no more"
        assert overlap(file, what, since=killed_at, worker=alive.pid) == AT_ONCE


def _wait(holds: Callable[[], bool]) -> None:
    until, pause = time.monotonic() + SOON_S, threading.Event()
    while not holds():
        assert time.monotonic() < until, "it did not come to that"
        pause.wait(0.05)
