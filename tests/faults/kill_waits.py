"""A run with approvals and waits, killed by SIGKILL before and after each of its writes, and taken on by a fresh process; run by hand.

    python tests/faults/kill_waits.py [--stores file sqlite postgres] [--every 1] [--from 1]

The run asks its user, waits for a time, asks for approvals of a batch, for one of two people, and for one that an approver edits and two people
give. One process works on it until it dies at the write (an append of records, a claim, a post, a release); another goes on to the end. Then
every effect must have happened once and every decision stand in the log once, with the answer of the run to which nothing happened, and the
replay must be identical. Every process is forked from this one, which has the imports. Exits 1 when anything is wrong.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests")]

from detent.testing.clocks import FakeClock  # noqa: E402
from laws.places import Effects, Place  # noqa: E402
from running import waits  # noqa: E402 - found through the path above
from running.test_waits_killed import check  # noqa: E402

MOST = 500
"""More writes than the run has."""


class Somewhere(Place):
    """A place by its URL."""

    def __init__(self, url: str, directory: Path) -> None:
        super().__init__("other", directory)
        self._url = url

    @property
    def url(self) -> str:
        """The URL."""
        return self._url


class Wrong(Exception):
    """A process ended as it should not."""


def forked(main: Callable[[], Coroutine[Any, Any, None]], told: Path) -> bool:
    """Run `main` in a process of its own, which writes to `told`; return whether it came to its end, False where it was killed."""
    pid = os.fork()
    if not pid:
        code = 1
        try:
            os.dup2(os.open(told, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 1)
            asyncio.run(main())
            sys.stdout.flush()
            code = 0
        except BaseException:  # noqa: BLE001 - whatever it is ends this process, and the other says so
            traceback.print_exc()
        finally:
            os._exit(code)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if status not in (0, -signal.SIGKILL):
        raise Wrong(f"it ended with {status}; see above")
    return status == 0


async def look(place: Place, said: dict[str, Any]) -> None:
    """Check what the processes have left."""
    effects = Effects(place.directory / "effects")
    await check(place, effects, said["status"], said["output"])
    store = place.store()
    await store.open()
    again = await waits.engine_of(store, effects, FakeClock()).replay(waits.RUN)
    await place.close()
    if not again.identical:
        raise Wrong(f"the replay differs: {again.divergence}")


def killed(url: str, directory: Path, write: int, when: str) -> bool:
    """Let one process die at that write and another finish; return whether there was such a write."""
    told = directory / "told"
    over = forked(lambda: waits.main(url, directory, write, when), told)
    if not over and not forked(lambda: waits.main(url, directory, 0, when), told):
        raise Wrong("the second process was killed, too")
    said = json.loads(told.read_text())
    if not forked(lambda: look(Somewhere(url, directory), said), directory / "looked"):
        raise Wrong("the process that looks was killed")
    return not over


def matrix(name: str, url_of: Callable[[Path], str], *, first: int, every: int) -> int:
    """Kill at every `every`th write, before and after; return how many processes were killed."""
    deaths = 0
    for when in ("before", "after"):
        for write in range(first, MOST, every):
            with tempfile.TemporaryDirectory(prefix="detent-kill-") as directory:
                try:
                    there = killed(url_of(Path(directory)), Path(directory), write, when)
                except Wrong as error:
                    raise Wrong(f"{name}: SIGKILL {when} write {write}: {error}") from None
            if not there:
                break
            deaths += 1
    return deaths


def main() -> int:
    """Do what the arguments ask for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stores", nargs="+", choices=("file", "sqlite", "postgres"), default=["file", "sqlite", "postgres"])
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--from", dest="first", type=int, default=1)
    asked = parser.parse_args()
    cluster: Any = None
    try:
        asyncio.run(warm())
        for name in asked.stores:
            if name == "postgres":
                cluster = _cluster()
            deaths = matrix(name, _urls(name, cluster), first=asked.first, every=asked.every)
            print(f"{name}: {deaths} processes killed, {deaths} runs whole", flush=True)
    except Wrong as error:
        sys.stderr.write(f"WRONG: {error}\n")
        return 1
    finally:
        if cluster is not None:
            cluster.remove()
    return 0


async def warm() -> None:
    """Run once without a crash, in memory: what is imported on the way is there for every process that is forked."""
    with tempfile.TemporaryDirectory(prefix="detent-kill-") as directory:
        place, clock = Place("ram", Path(directory)), FakeClock()
        effects = Effects(place.directory / "effects")
        state = await waits.work(waits.engine_of(place.store(), effects, clock), effects, clock)
        await look(place, {"status": state.status, "output": state.output})


def _cluster() -> Any:
    from stores.postgres.cluster import MISSING, Cluster, programs

    found = programs()
    if found is None:
        raise Wrong(MISSING)
    made = Cluster(found)
    made.create()
    return made


def _urls(name: str, cluster: Any) -> Callable[[Path], str]:
    """Return what gives the URL of an empty store."""

    def url(directory: Path) -> str:
        if name != "postgres":
            return Place(name, directory).url
        cluster.empty()
        return cluster.url("tests")

    return url


if __name__ == "__main__":
    sys.exit(main())
