"""One bit anywhere in a store: it is named as damage, or it changes nothing that anybody reads. Sampled; `scripts/soak` flips in every byte."""

from __future__ import annotations

import asyncio
import random
import shutil
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from amounts import PROFILE, sampled
from detent import Agent, AskUser, Engine, FinalAnswer, tool
from detent.core.errors import DetentError
from detent.history.examining import examine
from detent.ports import Signal, read_signal, written_signal
from kernel.runs import Script, call

RUNS = ("done", "waits", "open")
PARTS = 4 if PROFILE == "soak" else 1
"""In so many tests every byte is tried: some 100,000."""
HEADER_BYTES = 100
"""So many the header of a SQLite file has; page sizes, versions and counters are in it."""


@tool(side_effect="read", max_result_bytes=200)
async def dump() -> str:
    """Give a lot."""
    return "x" * 600


async def write_store(url: str) -> None:
    """Write a run that is finished, one that waits with an answer in its inbox, and one that was never taken further than its first turn."""
    agent = Agent(name="w", tools=["dump"])
    async with Engine(store=url, planner=Script([call("dump"), FinalAnswer(content="done")]), tools=[dump]) as engine:
        await engine.run(agent, "the first goal", run_id="done")
    async with Engine(store=url, planner=Script([AskUser(question="?")]), tools=[dump]) as engine:
        await engine.run(agent, "the second goal", run_id="waits")
        await engine.store.post("waits", Signal(id="sig", kind="reply", by="ann", payload={"text": "yes"}))
        await engine.run(agent, "the third goal", run_id="open", turns=0)


async def read_all(url: str) -> tuple[list[str], dict[Any, Any]]:
    """Return what was named as damage, and everything that was read."""
    named, seen = list[str](), dict[Any, Any]()

    async def read(key: Any, reading: Any) -> None:
        try:
            seen[key] = await reading
        except DetentError as error:
            named.append(str(error))

    engine = Engine(store=url)
    try:
        async with engine:
            for filters in ({}, {"status": ("completed",)}, {"agent": "w"}, {"goal_id": "done"}, {"tenant": ""}, {"limit": 2}):
                await read(str(filters), engine.list_runs(**filters))
            for run_id in RUNS:
                await read(("state", run_id), engine.load(run_id))
                await read(("lines", run_id), engine.store.read(run_id))
                await read(("signals", run_id), engine.store.signals([run_id]))
                await read(("blobs", run_id), engine.store.list_blobs(run_id))
                for key in seen.get(("blobs", run_id), ()):
                    await read(("blob", run_id, key), engine.store.get_blob(run_id, key))
            await read("report", examine(engine.runtime))
    except DetentError as error:
        named.append(str(error))
    if (report := seen.pop("report", None)) is not None:
        named += [fault.what for fault in report.faults if fault.damage]
    return named, seen


def flipped(data: bytes, at: int) -> bytes:
    """Return the bytes with one bit of that one flipped, another one each time."""
    return data[:at] + bytes([data[at] ^ 1 << random.Random(at).randrange(8)]) + data[at + 1 :]


@pytest.fixture(scope="module", params=["sqlite", "file"])
def store(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path, dict[Any, Any]]:
    """A store, its place, and what is read in it."""
    home = tmp_path_factory.mktemp(request.param)
    kind, place = ("file:", home / "logs") if request.param == "file" else ("sqlite:///", home / "runs.db")
    asyncio.run(write_store(f"{kind}{place}"))
    named, seen = asyncio.run(read_all(f"{kind}{place}"))
    assert (named, len(seen)) == ([], 6 + 4 * len(RUNS) + 1)
    return kind, place, seen


def check(kind: str, place: Path, seen: dict[Any, Any]) -> None:
    """Read a damaged store."""
    named, read = asyncio.run(asyncio.wait_for(read_all(f"{kind}{place}"), 60))
    assert all(named), "a name of damage says something"
    if not named:
        assert read == seen


@pytest.mark.parametrize("part", range(PARTS))
def test_a_flipped_bit_is_named_or_changes_nothing(part: int, store: tuple[str, Path, dict[Any, Any]], tmp_path: Path) -> None:
    """Flips in the header of a SQLite file hung the opening of it, or ended in a traceback; those in an inbox changed who had answered."""
    kind, place, seen = store
    files = [place] if place.is_file() else sorted(path for path in place.rglob("*") if path.is_file())
    points = [(path, at) for path in files for at in range(path.stat().st_size)]
    header = range(HEADER_BYTES) if place.is_file() else ()
    chosen = {*sampled(header, few=6), *sampled(range(len(points)), few=20)} if header else sampled(range(len(points)), few=16)
    for number in sorted(chosen)[part::PARTS]:
        path, at = points[number]
        copy = tmp_path / str(number) / place.name
        copy.parent.mkdir()
        (shutil.copytree if place.is_dir() else shutil.copyfile)(place, copy)
        spoilt = copy / path.relative_to(place) if place.is_dir() else copy
        spoilt.write_bytes(flipped(path.read_bytes(), at))
        try:
            check(kind, copy, seen)
        except BaseException as error:
            error.add_note(f"byte {at} of {path.name}, page {at // 4096 + 1}")
            raise
        shutil.rmtree(copy.parent)


@pytest.mark.parametrize("store", ["sqlite"], indirect=True)
@pytest.mark.parametrize("at", [18, 60])
def test_a_damaged_header_is_no_store_that_is_not_there(at: int, store: tuple[str, Path, dict[Any, Any]], tmp_path: Path) -> None:
    """Versions of the format and of the store: "there is no store yet" would have somebody begin another one in its place."""
    data, said = store[1].read_bytes(), list[str]()
    for bit in range(8 if PROFILE == "soak" else 2):
        (tmp_path / "runs.db").write_bytes(data[:at] + bytes([data[at] ^ 1 << bit]) + data[at + 1 :])

        async def look() -> list[str]:
            async with Engine(store=f"sqlite:///{tmp_path / 'runs.db'}") as engine:
                return [head.run_id for head in await engine.list_runs()]

        try:
            assert asyncio.run(look()) == ["open", "waits", "done"]
        except DetentError as error:
            said.append(str(error))
        assert (tmp_path / "runs.db").stat().st_size == len(data)
    assert all("runs.db" in one for one in said)


def test_a_copy_without_a_write_ahead_log_is_the_store(tmp_path: Path) -> None:
    """As `VACUUM INTO` makes one: it was a store that is not there."""
    asyncio.run(write_store(f"sqlite:///{tmp_path / 'runs.db'}"))
    with sqlite3.connect(tmp_path / "runs.db") as db:
        db.execute("PRAGMA journal_mode=DELETE")
    db.close()
    named, seen = asyncio.run(read_all(f"sqlite:///{tmp_path / 'runs.db'}"))
    assert named == [] and len(seen["{}"]) == len(RUNS)


def test_an_altered_signal_is_no_other_answer() -> None:
    """Whose it is and what it says has no digest in the log before it is taken up; one of an earlier version is read as it is."""
    signal = Signal(id="sig", kind="approval", by="ann", payload={"call": "main.1.0", "check": "0123456789abcdef"})
    data = written_signal(signal)
    assert read_signal(data, "sig") == signal
    assert read_signal(data.rpartition(b',"check"')[0] + b"}", "sig") == signal
    assert read_signal(data, "other") == Signal(id="other", kind="unreadable")
    for at in range(len(data)):
        for bit in range(8):
            read = read_signal(data[:at] + bytes([data[at] ^ 1 << bit]) + data[at + 1 :], "sig")
            assert read in (signal, Signal(id="sig", kind="unreadable")), (at, bit)
