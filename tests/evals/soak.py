"""An evaluation whose processes are killed (SIGKILL) again and again: every trial is run exactly once, and whoever stays has the whole result."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from detent.core import events as e
from detent.core.codec import read_log
from detent.stores import open_store
from evals.trying import Ledger

HERE = Path(__file__).resolve()


def start(url: str, directory: Path, **how: Any) -> subprocess.Popen[str]:
    """Start a process of the evaluation."""
    path = os.pathsep.join([str(HERE.parent.parent), str(HERE.parents[2] / "src"), os.environ.get("PYTHONPATH", "")])
    words = [sys.executable, str(HERE.parent / "trying.py"), url, str(directory), json.dumps(how)]
    return subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": path})


def stormed(url: str, directory: Path, *, trials: int, kills: int, seed: int, say: Callable[[str], None] = print) -> str:
    """Run an evaluation of so many trials and kill so many of its processes; raise `AssertionError` for whatever is wrong."""
    drawing, ledger, begun = random.Random(seed), Ledger(directory), time.monotonic()
    how = {"cases": trials // 5, "trials": 5, "parallel": 8, "pause_s": 0.01}
    living = [start(url, directory, **how) for _ in range(2)]
    marks = sorted(drawing.sample(range(1, trials), kills))
    taken = 0
    for number, mark in enumerate(marks, 1):
        while len(ledger.lines()) < mark and any(process.poll() is None for process in living):
            with suppress(subprocess.TimeoutExpired):
                living[0].wait(0.002 + 0.03 * drawing.random())
        dies = living.pop(drawing.randrange(len(living)))
        taken += dies.poll() is None
        dies.send_signal(signal.SIGKILL)
        dies.communicate()
        living.append(start(url, directory, **how))
        if number % 10 == 0:
            say(f"{number} killed after {len(ledger.lines())} of {trials} trials, {time.monotonic() - begun:.0f} s")
    answers = [process.communicate()[0] for process in living]
    assert [process.returncode for process in living] == [0, 0], [process.returncode for process in living]
    results = [json.loads(answer) for answer in answers]
    for result in results:
        assert result["standings"] == {"passed": trials}, result["standings"]
        assert result["attempts"] == {"1": trials}, result["attempts"]
        assert result["runs"] == results[0]["runs"]
    runs = set(results[0]["runs"])
    effects = ledger.counts()
    assert set(effects) == runs, (len(effects), len(runs))
    assert set(effects.values()) == {1}, [run for run, count in effects.items() if count != 1]
    starts, resumed = asyncio.run(_logged(url))
    assert set(starts) == runs, "no other run was begun"
    assert set(starts.values()) == {1}
    assert taken == kills, f"only {taken} processes were alive when they were killed"
    told = f"each was run once, {resumed} were taken over while in progress"
    return f"{trials} trials in {time.monotonic() - begun:.0f} s, {kills} processes killed: {told}"


async def _logged(url: str) -> tuple[Counter[str], int]:
    """Return how often each run in the store was begun, and how often runs were resumed."""
    store = open_store(url)
    await store.open()
    try:
        from detent.ports import RunQuery

        starts, resumed = Counter[str](), 0
        for head in await store.list_runs(RunQuery()):
            records = list(read_log(head.run_id, await store.read(head.run_id)))
            starts[head.run_id] += sum(isinstance(record.event, e.RunStarted) for record in records)
            resumed += any(isinstance(record.event, e.RunResumed) for record in records)
        return starts, resumed
    finally:
        await store.close()
