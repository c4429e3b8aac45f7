"""A whole store examined and mended (`detent doctor --store`): what is damaged, what is left over, and what a repair does and leaves."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from detent import Agent, AskUser, Engine, FinalAnswer, tool
from detent.history.examining import Mended, Report, examine, mend, planned
from detent.ports import RunQuery, Signal
from detent.stores import open_store
from history.test_removing import bytes_below, url_of
from kernel.runs import Script, call, run_async

KEY = sha256(b"1").hexdigest()


@tool(side_effect="read", max_result_bytes=200)
async def dump() -> str:
    """Give a lot."""
    return "x" * 600


async def two_runs(url: str) -> None:
    """Write a run that is finished and one that waits."""
    agent = Agent(name="w", tools=["dump"])
    async with Engine(store=url, planner=Script([call("dump"), FinalAnswer(content="done")]), tools=[dump]) as engine:
        await engine.run(agent, "the first goal", run_id="done")
    async with Engine(store=url, planner=Script([AskUser(question="?")]), tools=[dump]) as engine:
        await engine.run(agent, "the second goal", run_id="waits")


async def examined(url: str) -> Report:
    """Examine with an engine of its own."""
    async with Engine(store=url) as engine:
        return await examine(engine.runtime)


async def mended(url: str, found: Report) -> tuple[Mended, Report]:
    """Mend with an engine of its own, without grace, and examine again."""
    async with Engine(store=url) as engine:
        return await mend(engine.runtime, found.faults, examined_at=0.0, grace_s=0.0), await examine(engine.runtime)


def execute(path: Path, *statements: str) -> None:
    """Change a SQLite store behind its back."""
    with sqlite3.connect(path) as db:
        for statement in statements:
            assert db.execute(statement).rowcount
    db.close()


def spoil(path: Path, change: Callable[[bytes], bytes]) -> None:
    """Change a file."""
    data = path.read_bytes()
    path.write_bytes(change(data))
    assert path.read_bytes() != data


def page_of(path: Path, table: str) -> int:
    """Return where the root page of a table or index begins."""
    with sqlite3.connect(path) as db:
        ((page,),) = db.execute("SELECT rootpage FROM sqlite_master WHERE name=?", (table,)).fetchall()
    db.close()
    return (page - 1) * 4096


@pytest.mark.parametrize("kind", ["file", "sqlite"])
def test_a_sound_store_has_no_fault_and_is_not_changed(kind: str, tmp_path: Path) -> None:
    """Not even what is being used: another process has it open, and holds a claim."""

    async def main() -> None:
        url = url_of(kind, tmp_path)
        await two_runs(url)
        before = bytes_below(tmp_path)
        found = await examined(url)
        assert (found.ok, found.runs, found.sound, found.artifacts, found.faults) == (True, 2, 2, 1, ())
        assert bytes_below(tmp_path) == before and planned(found.faults) == []
        other = open_store(url)
        await other.open()
        await other.claim("waits")
        assert (await examined(url)).faults == ()
        await other.close()

    run_async(main)


@pytest.mark.parametrize("kind", ["file", "sqlite"])
def test_a_listing_entry_is_written_again_from_the_log_and_a_busy_run_is_left(kind: str, tmp_path: Path) -> None:
    """Under the run's claim, and without a record more."""

    async def main() -> None:
        url = url_of(kind, tmp_path)
        await two_runs(url)
        if kind == "file":
            spoil(tmp_path / "logs" / "done.jsonl", lambda data: b"stopped!!".join(data.rsplit(b"completed", 1)))
        else:
            execute(tmp_path / "runs.db", "UPDATE runs SET head=replace(cast(head AS text), 'completed', 'stopped!!'), status='stopped!!'")
            execute(
                tmp_path / "runs.db",
                "UPDATE runs SET head=cast(head AS blob)",
                "UPDATE runs SET status='waiting_for_user' WHERE run_id='waits'",
            )
        found = await examined(url)
        assert [(fault.run_id, fault.mend, fault.damage) for fault in found.faults] == [("done", "relist", True)]
        assert planned(found.faults) == ["write the listing entry of run done again from its log"]
        holder = open_store(url)
        await holder.open()
        await holder.claim("done")
        left, after = await mended(url, found)
        assert left.done == () and "'done' is being advanced by" in left.left[0] and not after.ok
        await holder.close()
        records = found.records
        done, after = await mended(url, found)
        assert (done.left, after.ok, after.records, after.faults) == ((), True, records, ())

    run_async(main)


@pytest.mark.parametrize("kind", ["file", "sqlite"])
def test_a_damaged_log_is_kept_as_it_is(kind: str, tmp_path: Path) -> None:
    """Nothing is cut, and nothing is collected that a damaged record may have named."""

    async def main() -> None:
        url = url_of(kind, tmp_path)
        await two_runs(url)
        async with Engine(store=url) as engine:
            (key,) = await engine.store.list_blobs("done")
        swapped = key.replace(key[0], "f" if key[0] != "f" else "e")
        if kind == "file":
            path = tmp_path / "logs" / "done.jsonl"
            spoil(path, lambda data: data.replace(key.encode(), swapped.encode()))
        else:
            with sqlite3.connect(tmp_path / "runs.db") as db:
                for at, data in db.execute("SELECT key, data FROM records").fetchall():
                    db.execute("UPDATE records SET data=? WHERE key=?", (data.replace(key.encode(), swapped.encode()), at))
            db.close()
        found = await examined(url)
        (fault,) = [fault for fault in found.faults if fault.damage]
        assert (fault.run_id, fault.mend) == ("done", "") and "digest" in fault.what and "export" in fault.advice
        async with Engine(store=url) as engine:
            lines = await engine.store.read("done")
            await engine.gc()
            assert await engine.store.read("done") == lines and await engine.store.list_blobs("done") == [key]

    run_async(main)


@pytest.mark.parametrize("kind", ["file", "sqlite"])
def test_what_belongs_to_nothing_is_removed_when_it_is_old_enough(kind: str, tmp_path: Path) -> None:
    """A fork writes its artifacts before its log: what has changed since it was looked at stays."""

    async def main() -> None:
        url = url_of(kind, tmp_path)
        await two_runs(url)
        store = open_store(url)
        await store.open()
        await store.put_blob("gone", KEY, b"1")
        await store.put_blob("begins", KEY, b"1")
        await store.put_blob("done", KEY, b"1")
        if kind == "file":
            (tmp_path / "logs" / ".inbox").mkdir(exist_ok=True)
            (tmp_path / "logs" / ".inbox" / "gone.jsonl").write_bytes(b"{}\n")
            (tmp_path / "logs" / ".tmp-1-ab").write_bytes(b"half")
        else:
            execute(
                tmp_path / "runs.db",
                "INSERT INTO inbox (n, run, id, signal) VALUES (99, 77, 'x', x'00')",
                "INSERT INTO snapshots VALUES (77, 1, x'00')",
            )
        found = await examined(url)
        assert found.ok and {fault.run_id for fault in found.faults if fault.mend == "delete"} == {"gone", "begins"}
        assert "done" in [fault.run_id for fault in found.faults if fault.mend == "gc"] and not any(fault.damage for fault in found.faults)
        await one_more(store)  # it has begun meanwhile
        done, after = await mended(url, found)
        assert "removed what was left of gone" in done.done
        assert ["begins" in line and "has changed" in line for line in done.left] == [True]
        assert after.faults == () and await store.get_blob("begins", KEY) == b"1"
        assert await store.list_blobs("gone") == [] and KEY not in await store.list_blobs("done")
        await store.close()

    async def one_more(store: Any) -> None:
        async with Engine(store=store, planner=Script([AskUser(question="?")]), tools=[dump]) as engine:
            await engine.run(Agent(name="w", tools=["dump"]), f"look at {KEY}", run_id="begins")
        await store.open()

    run_async(main)


def test_a_log_that_is_gone_keeps_what_belongs_to_it(tmp_path: Path) -> None:
    """Its seal says that there was one: artifacts and inbox are there for who restores the log."""

    async def main() -> None:
        url = url_of("file", tmp_path)
        await two_runs(url)
        (tmp_path / "logs" / "done.jsonl").unlink()
        found = await examined(url)
        assert [(fault.run_id, fault.mend, fault.damage) for fault in found.faults] == [("done", "", True)]
        _, after = await mended(url, found)
        assert after.faults == found.faults and (tmp_path / "logs" / "done.blobs").exists()

    run_async(main)


def test_an_index_is_made_again_while_others_have_the_store_open(tmp_path: Path) -> None:
    """The rows are sound: a list that left a run out shows it again."""

    async def main() -> None:
        url, path = url_of("sqlite", tmp_path), tmp_path / "runs.db"
        await two_runs(url)
        at = page_of(path, "runs_by_status")
        spoil(path, lambda data: data[:at] + data[at : at + 4096].replace(b"completed", b"complftfd") + data[at + 4096 :])
        other = open_store(url)
        await other.open()
        found = await examined(url)
        assert "reindex" in [fault.mend for fault in found.faults] and not found.ok
        done, after = await mended(url, found)
        assert (done.left, after.faults) == ((), ())
        assert [head.run_id for head in await other.list_runs(RunQuery(status=("completed",)))] == ["done"]
        await other.close()

    run_async(main)


def test_a_damaged_file_is_written_anew_by_who_alone_has_it_open_and_is_kept(tmp_path: Path) -> None:
    """Every row is in the new file; the damaged one is beside it, and nobody loses what another process writes."""

    async def main() -> None:
        url, path = url_of("sqlite", tmp_path), tmp_path / "runs.db"
        await two_runs(url)
        at = page_of(path, "runs_by_status")
        spoil(path, lambda data: data[:at] + bytes([data[at] ^ 4]) + data[at + 1 :])
        found = await examined(url)
        assert [fault.mend for fault in found.faults if fault.mend] == ["rebuild"]
        other = open_store(url)
        await other.open()
        left, _ = await mended(url, found)
        assert "open in another process" in left.left[0]
        assert not [*tmp_path.glob("*rebuilt*"), *tmp_path.glob("*damaged*")]
        await other.close()
        done, after = await mended(url, found)
        (kept,) = tmp_path.glob("*damaged*")
        assert (done.left, after.ok, after.sound, after.records) == ((), True, 2, found.records)
        assert [kept.name in fault.what and not fault.mend for fault in after.faults] == [True]
        assert kept.name in done.done[0] and kept.stat().st_size >= 4096

    run_async(main)


def test_what_cannot_be_read_whole_is_not_written_anew(tmp_path: Path) -> None:
    """A new file without the rows of a damaged page would be a log that was cut."""

    async def main() -> None:
        url, path = url_of("sqlite", tmp_path), tmp_path / "runs.db"
        await two_runs(url)
        at = page_of(path, "records")
        spoil(path, lambda data: data[:at] + b"\0" + data[at + 1 :])
        before = path.read_bytes()
        found = await examined(url)
        assert "rebuild" in [fault.mend for fault in found.faults]
        done, after = await mended(url, found)
        assert "nothing was changed" in done.left[0] and not after.ok
        assert path.read_bytes()[4096:] == before[4096:] and len(list(tmp_path.glob("*.db*"))) == 1 + 1

    run_async(main)


@pytest.mark.parametrize("table", ["inbox", "runs", "blobs"])
def test_rows_that_a_damaged_page_hides_are_named_and_the_file_is_not_called_whole(table: str, tmp_path: Path) -> None:
    """A page that counts one row less than it has is read without an error: an answer would be gone, and nobody told."""

    async def main() -> None:
        url, path = url_of("sqlite", tmp_path), tmp_path / "runs.db"
        await two_runs(url)
        async with Engine(store=url) as engine:
            await engine.store.post("waits", Signal(id="answer", kind="reply"))
            await engine.store.put_blob("waits", "key", b"1")
        at = page_of(path, table)
        spoil(path, lambda data: data[: at + 3] + (int.from_bytes(data[at + 3 : at + 5], "big") - 1).to_bytes(2, "big") + data[at + 5 :])
        found = await examined(url)
        assert "rebuild" in [fault.mend for fault in found.faults]
        done, _ = await mended(url, found)
        (said,) = done.left
        assert {"inbox": "signal 'answer' of run 'waits'", "runs": "the listing entry of run", "blobs": "blob"}[table] in said
        assert "damaged-" in said and not done.done

    run_async(main)


def test_an_index_that_names_more_than_its_table_has_is_made_again_and_what_is_gone_is_named(tmp_path: Path) -> None:
    """SQLite says no more of it than that the numbers differ."""

    async def main() -> None:
        url, path = url_of("sqlite", tmp_path), tmp_path / "runs.db"
        await two_runs(url)
        async with Engine(store=url) as engine:
            await engine.store.post("waits", Signal(id="answer", kind="reply"))
        at = page_of(path, "sqlite_autoindex_inbox_1")
        index = path.read_bytes()[at : at + 4096]
        execute(path, "DELETE FROM inbox")
        spoil(path, lambda data: data[:at] + index + data[at + 4096 :])
        found = await examined(url)
        assert [fault.mend for fault in found.faults if fault.mend] == ["reindex"]
        done, after = await mended(url, found)
        assert "signal 'answer' of run 'waits'" in done.left[0] and after.ok

    run_async(main)


def test_a_run_that_was_put_back_is_contradicted_by_what_was_forked_from_it_later(tmp_path: Path) -> None:
    """Log and seal of an earlier moment are a sound run: only what lies outside of both can say that there was more."""

    async def main() -> None:
        url, logs = url_of("file", tmp_path), tmp_path / "logs"
        await two_runs(url)
        earlier = {name: (logs / name).read_bytes() for name in ("waits.jsonl", "waits.sealed")}
        async with Engine(store=url, planner=Script([FinalAnswer(content="yes")]), tools=[dump]) as engine:
            digest = (await engine.reply("waits", "yes")).state.digest
            fork = await engine.fork("waits", resume=False)
        for name, data in earlier.items():
            (logs / name).write_bytes(data)
        found = await examined(url)
        assert [(fault.run_id, fault.damage) for fault in found.faults] == [(fork.run_id, True)]
        assert "run 'waits', which is not in" in found.faults[0].what
        async with Engine(store=url) as engine:
            assert (await engine.verify("waits")).ok and not (await engine.verify("waits", head=digest)).ok

    run_async(main)


def test_artifacts_are_kept_while_the_listing_entry_of_a_run_is_gone(tmp_path: Path) -> None:
    """Its records are there, and do not say outside of themselves whose they are: what seems to belong to nothing may be theirs."""

    async def main() -> None:
        url = url_of("sqlite", tmp_path)
        await two_runs(url)
        execute(tmp_path / "runs.db", "DELETE FROM runs WHERE run_id='done'")
        found = await examined(url)
        assert [(fault.damage, fault.mend) for fault in found.faults] == [(True, ""), (False, "")]
        assert "records exist" in found.faults[0].what
        await mended(url, found)
        async with Engine(store=url) as engine:
            await engine.gc()
            assert len(await engine.store.list_blobs("done")) == 1
        assert (await examined(url)).faults[0] == found.faults[0]

    run_async(main)
