"""A program of a model whose worker is killed at a write, and another process that continues it."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from amounts import in_check, sampled
from crash.programs_child import ANSWER, work
from detent.stores.urls import open_store
from detent.testing.faults import CrashingStore
from source_code import SRC, TESTS


def child(url: str, effects: Path, when: str, at: int) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(TESTS / "crash" / "programs_child.py"), url, str(effects), when, str(at)]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join((str(SRC), str(TESTS)))}
    return subprocess.run(command, capture_output=True, text=True, env=env)


def finished(url: str, effects: Path) -> Any:
    return asyncio.run(work(open_store(url), effects))


@in_check
@pytest.mark.parametrize("kind", ["sqlite", pytest.param("file", marks=in_check)])
def test_a_killed_worker_s_program_continues_in_another_process_and_nothing_happens_twice(kind: str, tmp_path: Path) -> None:
    """At each write, before it and after it, with a snapshot at every call and an approval in between: the same answer, each effect once."""
    url = {"sqlite": "sqlite:///{}/runs.db", "file": "file://{}/runs"}[kind]
    counting = CrashingStore(open_store(url.format(tmp_path / "whole")), operations=("append", "put_blob", "delete_blob"))
    assert asyncio.run(work(counting, tmp_path / "whole.txt")) == ("completed", ANSWER, True)
    points = [(when, at) for at in range(1, counting.calls + 1) for when in ("before", "after")]
    for when, at in sampled(points[1:-1], few=1):
        place = tmp_path / f"{when}-{at}"
        place.mkdir()
        where, effects = url.format(place), place / "effects.txt"
        killed = child(where, effects, when, at)
        assert killed.returncode == -signal.SIGKILL, killed.stderr
        assert finished(where, effects) == ("completed", ANSWER, True), (when, at)
        done = effects.read_text().splitlines()
        assert [line.split()[1] for line in done] == ["move", "pay"] and len({line.split()[0] for line in done}) == 2, (when, at, done)
