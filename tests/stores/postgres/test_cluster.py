"""The server of the tests ends with the tests, however they end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from itertools import product
from pathlib import Path

import pytest

from amounts import in_check, sampled
from stores.postgres.cluster import MISSING, programs


@in_check  # it is of the tests themselves
@pytest.mark.parametrize(("end", "number"), sampled(product((os.kill, os.killpg), (signal.SIGKILL, signal.SIGTERM)), few=2))
def test_a_killed_test_process_leaves_no_server_behind(end: Callable[[int, int], None], number: int) -> None:
    """Its folder is removed after the server was ended, although nobody could tidy up; also where it is ended with all that it started."""
    if programs() is None:
        pytest.skip(MISSING)
    tests = str(Path(__file__).resolve().parents[2])
    source = (
        f"import sys; sys.path.insert(0, {tests!r}); from stores.postgres.cluster import new_cluster\n"
        "made = new_cluster(); print(made.directory, flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", source],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        text=True,
    ) as child:
        assert child.stdout is not None
        directory = child.stdout.readline().strip()
        assert (Path(directory) / "data" / "postmaster.pid").exists()
        end(child.pid, number)
        child.wait()
        child.stdout.read()  # ends when the watch, which has this pipe too, has done its work
    assert not Path(directory).exists()
