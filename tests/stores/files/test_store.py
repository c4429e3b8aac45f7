"""The store of plain files: torn ends, damage, ids that would leave the directory, what lies on the disk."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import logging
import os
import stat
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from itertools import islice
from pathlib import Path

import msgspec
import pytest

from detent.core.errors import ClaimLost, ConfigError, Conflict, CorruptLog, NewerVersion, RunBusy, RunNotFound, StoreBusy
from detent.core.records import RunHead
from detent.ports import RunQuery, Signal
from detent.stores.due import microseconds
from detent.stores.files.store import FileStore
from detent.stores.files.waking import Wakes
from detent.stores.locks import lock_file, unlock
from forked import fork

START = datetime(2026, 1, 1, tzinfo=UTC)


def head_of(run_id: str, records: int) -> RunHead:
    return RunHead(run_id=run_id, goal_id=run_id, goal="tidy up", iterations=records, records=records, created_at=START, updated_at=START)


def line(number: int) -> bytes:
    return b'{"n":%d}' % number


async def write(store: FileStore, numbers: range, *, durable: bool = False, consumed: tuple[str, ...] = ()) -> None:
    lines = [line(number) for number in numbers]
    await store.append("run", numbers[0] - 1, lines, head=head_of("run", numbers[-1]), durable=durable, consumed=consumed)


def written(directory: Path) -> tuple[bytes, int]:
    """Write two appends; return the file and the offset where the second begins."""

    async def test() -> int:
        store = FileStore(directory)
        await store.open()
        await write(store, range(1, 4))
        size = (directory / "run.jsonl").stat().st_size
        await store.post("run", Signal(id="s", kind="cancel"))
        await write(store, range(4, 6), consumed=("s",))
        await store.close()
        return size

    offset = asyncio.run(test())
    return (directory / "run.jsonl").read_bytes(), offset


def test_a_file_cut_at_any_byte_of_the_last_append_is_the_log_before_it(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Reading, listing and the inbox see the log before the torn append; it is reported once, kept aside, and the next append fits."""
    whole, offset = written(tmp_path)

    async def check(cut: int) -> None:
        directory = tmp_path / str(cut)
        directory.mkdir()
        (directory / ".inbox").mkdir()
        (directory / ".inbox" / "run.jsonl").write_bytes(b'{"id":"s","kind":"cancel"}\n')
        (directory / "run.jsonl").write_bytes(whole[:cut])
        store, other = FileStore(directory), FileStore(directory)
        await store.open()
        await other.open()
        caplog.clear()
        for _ in range(2):
            assert await store.read("run") == [line(n) for n in range(1, 4)]
        torn = cut - offset
        assert len(caplog.records) == (torn > 0)
        if torn:
            assert "'run'" in caplog.text
            assert f"{torn} bytes" in caplog.text
        assert await store.head("run") == head_of("run", 3)
        assert await store.list_runs(RunQuery()) == [head_of("run", 3)]
        assert list(await store.signals(["run"])) == ["run"]
        with pytest.raises(Conflict):
            await write(other, range(6, 7))
        await write(other, range(4, 5))
        assert await store.read("run") == [line(n) for n in range(1, 5)]
        aside = directory / "run.torn"
        assert (aside.read_bytes() if aside.exists() else b"") == whole[offset:cut]
        await store.close()
        await other.close()

    with caplog.at_level(logging.WARNING):
        for cut in range(offset, len(whole)):
            asyncio.run(check(cut))


def test_a_first_append_cut_at_any_byte_never_happened(tmp_path: Path) -> None:
    """The run is unknown, and can begin."""
    whole, offset = written(tmp_path)

    async def check(cut: int) -> None:
        directory = tmp_path / str(cut)
        directory.mkdir()
        (directory / "run.jsonl").write_bytes(whole[:cut])
        store = FileStore(directory)
        await store.open()
        assert await store.read("run") == []
        assert await store.head("run") is None
        assert await store.list_runs(RunQuery()) == []
        await write(store, range(1, 3), durable=cut % 2 == 0)
        assert await store.read("run") == [line(1), line(2)]
        await store.close()

    for cut in range(offset):
        asyncio.run(check(cut))


def test_damage_in_the_middle_is_named_and_never_cut_off(tmp_path: Path) -> None:
    """A missing record, a broken commit line, a foreign first line: `CorruptLog` with a sequence, and the file stays as it is."""
    whole, _ = written(tmp_path)
    lines = whole.splitlines(keepends=True)
    damaged = {
        "a record is missing": (b"".join([*lines[:2], *lines[3:]]), 2),
        "a commit in the middle is broken": (whole.replace(b'["commit",3', b'["comit",3'), 4),
        "the last commit is broken": (whole.replace(b'["commit",5', b'["comit",5'), 3),
        "the first line is foreign": (whole.replace(b'["detent"', b'["tetend"'), 0),
        "a record became something else": (whole.replace(b'{"n":2}', b'"n":2}}'), 2),
    }

    async def check(content: bytes, sequence: int) -> None:
        (tmp_path / "run.jsonl").write_bytes(content)
        store = FileStore(tmp_path)
        await store.open()
        with pytest.raises(CorruptLog) as caught:
            await store.read("run")
        assert caught.value.sequence == sequence
        await store.close()
        assert (tmp_path / "run.jsonl").read_bytes() == content

    for content, sequence in damaged.values():
        asyncio.run(check(content, sequence))


def test_a_damaged_run_hides_no_other_from_the_listing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It is left out and logged."""

    async def test() -> None:
        store = FileStore(tmp_path)
        await store.open()
        await write(store, range(1, 3))
        (tmp_path / "bad.jsonl").write_bytes(b'nonsense\n["commit",1,{}]\n')
        assert [head.run_id for head in await store.list_runs(RunQuery())] == ["run"]
        await store.close()

    asyncio.run(test())
    assert "'bad'" in caplog.text


def test_a_log_of_a_newer_format_is_refused(tmp_path: Path) -> None:
    """`NewerVersion`, and nothing is changed."""
    whole, _ = written(tmp_path)
    newer = whole.replace(b'["detent",1', b'["detent",2', 1)
    (tmp_path / "run.jsonl").write_bytes(newer)

    async def test() -> None:
        store = FileStore(tmp_path)
        await store.open()
        for attempt in (store.read("run"), store.head("run"), write(store, range(6, 7)), write(store, range(6, 7), durable=True)):
            with pytest.raises(NewerVersion):
                await attempt
        await store.close()

    asyncio.run(test())
    assert (tmp_path / "run.jsonl").read_bytes() == newer


@pytest.mark.parametrize("run_id", ["../x", "..", ".", "", "a/b", "/etc/passwd", ".hidden", "a\x00b", "a b", "x" * 201, "ñ"])
def test_no_id_leads_out_of_the_directory(tmp_path: Path, run_id: str) -> None:
    """Every call refuses an id that is not a plain name, and leaves nothing outside or inside."""

    async def test() -> None:
        store = FileStore(tmp_path / "runs")
        await store.open()
        head = head_of(run_id, 1)
        for attempt in (
            store.append(run_id, 0, [line(1)], head=head),
            store.read(run_id),
            store.head(run_id),
            store.claim(run_id),
            store.post(run_id, Signal(id="s", kind="cancel")),
            store.put_blob(run_id, "k", b""),
            store.get_blob(run_id, "k"),
            store.put_snapshot(run_id, 1, b""),
            store.erase(run_id, bytes, head=head),
            store.delete(run_id),
        ):
            with pytest.raises(ConfigError):
                await attempt
        await store.close()

    asyncio.run(test())
    assert [path.name for path in tmp_path.rglob("*")] == ["runs"]


def test_files_belong_to_their_owner_alone_and_every_line_is_json(tmp_path: Path) -> None:
    """Mode 0600 for files, 0700 for directories; any JSON tool can read a log."""

    async def test() -> None:
        store = FileStore(tmp_path / "runs")
        await store.open()
        await store.claim("run")
        await write(store, range(1, 4))
        await store.put_blob("run", "k", b"1")
        await store.put_snapshot("run", 1, b"1")
        await store.post("run", Signal(id="s", kind="cancel"))
        for path in (tmp_path / "runs", *(tmp_path / "runs").rglob("*")):
            assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path
        await store.close()

    asyncio.run(test())
    parsed = [json.loads(text) for text in (tmp_path / "runs" / "run.jsonl").read_text().splitlines()]
    assert [entry["n"] for entry in parsed if isinstance(entry, dict)] == [1, 2, 3]


def test_a_commit_costs_few_bytes(tmp_path: Path) -> None:
    """What an append adds beside its records stays under 120 bytes, at the thousandth as at the second."""

    async def test() -> None:
        store = FileStore(tmp_path)
        await store.open()
        sizes: list[int] = []
        for n in range(1, 1001):
            await write(store, range(n, n + 1))
            sizes.append((tmp_path / "run.jsonl").stat().st_size)
        extra = [after - before - len(line(n)) - 1 for n, (before, after) in enumerate(itertools.pairwise(sizes), start=2)]
        assert max(extra) <= 120
        await store.close()

    asyncio.run(test())


def test_erased_content_is_in_no_file(tmp_path: Path) -> None:
    """Not in the log, blobs, snapshot, inbox, nor in what was torn off."""

    async def test() -> None:
        store = FileStore(tmp_path)
        await store.open()
        await store.append("run", 0, [b'{"a":"SECRET"}'], head=head_of("run", 1))
        await store.put_blob("run", "k", b"SECRET")
        await store.put_snapshot("run", 1, b"SECRET")
        await store.post("run", Signal(id="s", kind="reply", payload={"a": "SECRET"}))
        with (tmp_path / "run.jsonl").open("ab") as file:
            file.write(b'{"torn":"SECRET')
        await store.append("run", 1, [b'{"a":"SECRET"}'], head=head_of("run", 2))
        assert b"SECRET" in (tmp_path / "run.torn").read_bytes()
        await store.erase("run", lambda _: b"{}", head=head_of("run", 2))
        await store.close()

    asyncio.run(test())
    assert [path for path in tmp_path.rglob("*") if path.is_file() and b"SECRET" in path.read_bytes()] == []


def test_a_file_that_another_process_keeps_locked_is_waited_for_and_then_busy(tmp_path: Path) -> None:
    """The event loop goes on meanwhile; after the timeout it is `StoreBusy` and nothing was recorded; later it works."""
    written(tmp_path)
    source = (
        f"import fcntl; file = open({str(tmp_path / 'run.jsonl')!r}, 'r+b'); fcntl.flock(file, fcntl.LOCK_EX);"
        " print('locked', flush=True); input()"
    )
    locker = subprocess.Popen([sys.executable, "-c", source], stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    async def test() -> None:
        assert locker.stdout is not None
        assert locker.stdin is not None
        locker.stdout.readline()
        store = FileStore(tmp_path, busy_timeout_s=0.05)
        await store.open()
        with pytest.raises(StoreBusy):
            await write(store, range(6, 7))
        patient = FileStore(tmp_path)
        await patient.open()
        waiting = asyncio.ensure_future(write(patient, range(6, 7)))
        await store.append("other", 0, [line(1)], head=head_of("other", 1))
        assert not waiting.done()
        locker.stdin.write(b"\n")
        locker.stdin.flush()
        await waiting
        assert len(await store.read("run")) == 6
        await store.close()
        await patient.close()

    with locker:
        try:
            asyncio.run(test())
        finally:
            locker.kill()


def test_a_claim_that_could_not_be_given_up_is_when_it_can_be(tmp_path: Path) -> None:
    """Who released it is told, once; a process that lives on does not hold it for ever. One that was taken again stays."""

    async def main(*, again: bool) -> None:
        store, other = FileStore(tmp_path, busy_timeout_s=0.01), FileStore(tmp_path)
        for one in (store, other):
            await one.open()
        await store.claim("run")
        held = lock_file(tmp_path / ".claims" / "run.claim")
        with pytest.raises(StoreBusy):
            await store.release("run")
        os.close(held)
        if again:
            await store.claim("run")
            await asyncio.gather(*store._owed._tasks)
            with pytest.raises(RunBusy):
                await other.claim("run")
        while not again:
            with contextlib.suppress(RunBusy):
                await other.claim("run")
                break
            await asyncio.sleep(0)
        for one in (other, store):
            await one.close()

    for again in (False, True):
        asyncio.run(asyncio.wait_for(main(again=again), 60))


def test_a_forked_child_holds_none_of_its_parents_claims(tmp_path: Path) -> None:
    """A child that outlives its killed parent keeps no run busy."""
    source = f"""
import asyncio, os, signal, sys
from detent.stores import open_store

async def main():
    store = open_store("file:{tmp_path}")
    await store.open()
    await store.claim("run")
    if os.fork() == 0:
        print("forked", flush=True)
        sys.stdin.read()
        os._exit(0)
    await asyncio.sleep(600)

asyncio.run(main())
"""

    async def test(process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        assert process.stdout.readline() == b"forked\n"
        store = FileStore(tmp_path)
        await store.open()
        with pytest.raises(RunBusy):
            await store.claim("run")
        process.kill()
        process.wait()
        await store.claim("run")
        await store.close()

    with subprocess.Popen([sys.executable, "-c", source], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            asyncio.run(test(process))
        finally:
            process.kill()


def test_gc_removes_what_dead_processes_left(tmp_path: Path) -> None:
    """Claims, lock files and half-written files; the living keep theirs."""
    source = (
        "import asyncio, os, signal\nfrom detent.stores import open_store\n"
        f"async def main():\n    store = open_store('file:{tmp_path}')\n    await store.open()\n    await store.claim('run')\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\nasyncio.run(main())"
    )
    subprocess.run([sys.executable, "-c", source], check=False)
    (tmp_path / ".tmp-1-a").write_bytes(b"half")
    left = list((tmp_path / ".claims").iterdir())
    assert len(left) == 2

    async def test() -> None:
        store = FileStore(tmp_path)
        await store.open()
        await store.claim("mine")
        assert await store.gc() > 4
        assert not any(path.exists() for path in left)
        assert not (tmp_path / ".tmp-1-a").exists()
        assert len(list((tmp_path / ".claims").iterdir())) == 2
        await store.close()

    asyncio.run(test())


def test_a_run_is_not_taken_over_amid_an_append(tmp_path: Path) -> None:
    """A holder that stands still inside of an append may have looked who has the claim: it would write after the new one has read the log."""
    here = [0.0]

    async def main() -> None:
        zombie, other = (FileStore(tmp_path, busy_timeout_s=0.05, monotonic=lambda: here[0]) for _ in range(2))
        for store in (zombie, other):
            await store.open()
        number = await zombie.claim("run")
        await zombie.append("run", 0, [line(1)], head=head_of("run", 1), claim=number)
        with pytest.raises(ClaimLost):
            await zombie.append("other", 0, [line(1)], head=head_of("other", 1), claim=number)
        assert not (tmp_path / "other.jsonl").exists(), "nothing was recorded, and a log was begun"
        here[0] += 31
        amid = lock_file(tmp_path / "run.jsonl")
        with pytest.raises(StoreBusy):
            await other.claim("run")
        await zombie.close()
        unlock(amid)
        assert await other.claim("run") != number
        await other.close()

    asyncio.run(main())


DELETES = """
import asyncio, os, sys
from pathlib import Path
from detent.stores.files.store import FileStore

directory, left = Path(sys.argv[1]), int(sys.argv[2])

def dies(event, args):
    global left
    if event in ("os.remove", "os.rmdir") and deleting:
        left -= 1
        if left < 0:
            os._exit(9)

async def main():
    global deleting
    store = FileStore(directory)
    await store.open()
    await store.claim("run")
    deleting = True
    await store.delete("run")
    deleting = False
    await store.close()

deleting = False
sys.addaudithook(dies)
asyncio.run(main())
"""


def test_a_deletion_that_is_cut_off_anywhere_left_the_run_whole_or_can_be_done_again(tmp_path: Path) -> None:
    """Its process died between two of its files: whoever has the log has all that belongs to it, and what is left of the others goes with a second try."""

    async def made(directory: Path) -> dict[str, object]:
        async with contextlib.AsyncExitStack() as stack:
            store = FileStore(directory)
            await store.open()
            stack.push_async_callback(store.close)
            await write(store, range(1, 4), durable=True)
            await store.put_blob("run", "key", b"blob")
            await store.put_snapshot("run", 3, b"snapshot")
            await store.post("run", Signal(id="s", kind="cancel"))
            return await held(store)

    async def held(store: FileStore) -> dict[str, object]:
        blobs = {key: await store.get_blob("run", key) for key in await store.list_blobs("run")}
        return {
            "records": await store.read("run"),
            "blobs": blobs,
            "snapshot": await store.get_snapshot("run"),
            "inbox": await store.signals(["run"]),
        }

    async def left(directory: Path, whole: dict[str, object]) -> bool:
        store = FileStore(directory)
        await store.open()
        there = await held(store)
        gone = not there["records"]
        assert gone or there == whole
        assert (await store.head("run") is None, await store.list_runs(RunQuery())) == (gone, []) or not gone
        with contextlib.suppress(RunNotFound):
            await store.delete("run")
        await write(store, range(1, 2))
        assert await held(store) == {"records": [line(1)], "blobs": {}, "snapshot": None, "inbox": {}}
        assert await store.sealed("run") is None
        await store.close()
        return gone

    seen: list[bool] = []
    for step in itertools.count():
        directory = tmp_path / str(step)
        whole = asyncio.run(made(directory))
        process = fork(["-c", DELETES, str(directory), str(step)])
        _, said = process.communicate()
        assert process.returncode in (0, 9), said
        seen.append(asyncio.run(left(directory, whole)))
        if process.returncode == 0:
            break
    assert set(seen) == {True, False}
    assert len(seen) > 4, seen


def test_the_first_due_runs_of_a_long_line_are_found_by_listing_few_names(tmp_path: Path) -> None:
    """They are in the first directories of their line, however many wait behind them."""

    class Counting(Wakes):
        listed = 0

        def _listed(self, place: str) -> list[str]:
            names = super()._listed(place)
            self.listed += len(names)
            return names

    wakes, begun = Counting(tmp_path / ".wake", lambda _: None), START + timedelta(days=1)
    for n in range(900):
        head = msgspec.structs.replace(head_of(f"run-{n:03}", 1), created_at=begun, wake_at=START + timedelta(milliseconds=100 * n))
        wakes.before(None, head)
    wakes.before(None, msgspec.structs.replace(head_of("other", 1), created_at=begun, wake_at=START, version="2"))
    now = microseconds(begun)
    lines, listed = wakes.lines(), wakes.listed
    first = [[run_id for _, _, run_id in islice(wakes.of_line(line, now), 12)] for line in lines]
    assert sorted(first) == [["other"], [f"run-{n:03}" for n in range(12)]]
    assert wakes.listed - listed < 150, f"{wakes.listed - listed} names were listed for 12 of 900"
    assert len(list(wakes.all_due(now))) == 901
