"""A full disk: the append fails with `StoreFull`, all before it is intact, and it goes on when there is room."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from amounts import crossed

pytestmark = crossed

BODY = """
import asyncio, os, resource, sys
from pathlib import Path
from datetime import UTC, datetime
from detent.core.errors import StoreFull
from detent.core.records import RunHead
from detent.ports import Signal
from detent.stores import open_store

url, place, ballast, durable, step = sys.argv[1], sys.argv[2], sys.argv[3], sys.argv[4] == "durable", 40

def head(n):
    return RunHead(run_id="run", goal_id="run", records=n, created_at=datetime(2026, 1, 1, tzinfo=UTC), updated_at=datetime(2026, 1, 1, tzinfo=UTC))

def line(n):
    return b'{"n":%d,"text":"%b"}' % (n, b"x" * 2000)

async def fill(store, seq):
    while seq < 100_000:
        try:
            await store.append("run", seq, [line(n) for n in range(seq, seq + step)], head=head(seq + step), durable=durable)
        except StoreFull as error:
            return seq, error
        seq += step
    raise SystemExit("never full")

async def main():
    store = open_store(url)
    await store.open()
    await store.append("run", 0, [line(n) for n in range(step)], head=head(step))
    seq, error = await fill(store, step)
    assert "room" in str(error), error
    for _ in range(3):
        assert (await fill(store, seq))[0] == seq
    assert await store.read("run") == [line(n) for n in range(seq)]
    assert (await store.head("run")).records == seq
    await store.close()
    assert not list(Path(place).rglob("*.torn"))
    again = open_store(url)
    await again.open()
    assert await again.read("run") == [line(n) for n in range(seq)]
    if ballast == "limit":
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    else:
        os.unlink(ballast)
    await again.append("run", seq, [line(seq)], head=head(seq + 1), durable=durable)
    assert not list(Path(place).rglob("*.torn"))
    await again.post("run", Signal(id="s", kind="cancel"))
    assert await again.read("run") == [line(n) for n in range(seq + 1)]
    await again.close()
    assert seq >= step
    print("kept", seq)

if ballast == "limit":
    resource.setrlimit(resource.RLIMIT_FSIZE, (3 << 20, resource.RLIM_INFINITY))
asyncio.run(main())
"""

URLS = ["file:{}/runs", "sqlite:///{}/runs.db"]


def run(url: str, place: Path, ballast: str, durability: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", BODY, url.format(place), str(place), ballast, durability], capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("kept")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 8 MB."""
    place = tmp_path / "disk"
    place.mkdir()
    if os.geteuid() or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", place], capture_output=True).returncode:
        pytest.skip("mounting a small file system needs root")
    yield place
    subprocess.run(["umount", "-l", place], check=True)


@pytest.mark.parametrize("durability", ["ordinary", "durable"])
@pytest.mark.parametrize("url", URLS)
def test_a_full_disk_stops_the_append_and_keeps_what_was_there(small_disk: Path, url: str, durability: str) -> None:
    """`StoreFull` each time, nothing half written; with room again the same log goes on."""
    ballast = small_disk / "ballast"
    ballast.write_bytes(b"x" * (4 << 20))
    run(url, small_disk, str(ballast), durability)


@pytest.mark.parametrize("durability", ["ordinary", "durable"])
@pytest.mark.parametrize("url", URLS)
def test_a_file_that_may_not_grow_stops_the_append_and_keeps_what_was_there(tmp_path: Path, url: str, durability: str) -> None:
    """The same where the limit is on the size of files."""
    run(url, tmp_path, "limit", durability)
