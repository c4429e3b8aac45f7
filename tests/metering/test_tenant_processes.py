"""Several processes and many runs of one tenant at once, for real: the limit is passed by no more than one call of each run."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from detent.stores.urls import open_store
from forked import fork

HERE = Path(__file__).resolve().parent
RUNS, LIMIT = 4, 40


def start(url: str, name: str) -> Any:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE.parent), os.environ.get("PYTHONPATH", "")])}
    words = [str(HERE / "tenant_worker.py"), url, name, str(RUNS), str(LIMIT)]
    return fork(words, env=environment, stdin=subprocess.PIPE, imports=["laws.places"])


@pytest.mark.parametrize("scheme", ["sqlite:///{}/runs.db", "file:{}/logs"])
def test_two_processes_pass_a_limit_by_no_more_than_one_call_of_each_run(scheme: str, tmp_path: Path) -> None:
    """Each run is ended by the tenant's bound, and the account is the sum of what the runs did."""
    url = scheme.format(tmp_path)
    children = [start(url, name) for name in "ab"]
    try:
        for child in children:
            assert child.stdout is not None
            assert child.stdout.readline() == "ready\n"
        for child in children:
            assert child.stdin is not None
            child.stdin.write("go\n")
            child.stdin.flush()
        ended = [one for child in children for one in json.loads(child.stdout.readline())]  # type: ignore[union-attr]
    finally:
        for child in children:
            with child:
                child.kill()
    assert [(status, dimension) for status, dimension, _ in ended] == [("stopped", "tenant_tool_calls")] * (2 * RUNS)
    made = sum(calls for _, _, calls in ended)
    assert LIMIT <= made <= LIMIT + 2 * RUNS - 1, "each run may have had one call under way when the limit was reached"
    assert len({calls for _, _, calls in ended}) > 0 and max(calls for *_, calls in ended) < LIMIT, "both processes took part"

    async def spent() -> tuple[int, int]:
        store = open_store(url)
        await store.open()
        said = await store.spent("acme", "2000-01-01")
        await store.close()
        return said.tool_calls, said.runs

    assert asyncio.run(spent()) == (made, 2 * RUNS)
