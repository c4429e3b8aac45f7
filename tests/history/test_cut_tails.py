"""A log that lost its end: what was durable is known outside of it, so that no effect that was acknowledged runs again. DESIGN 4."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from detent import Agent, AskUser, Engine, FinalAnswer, tool
from detent.core.errors import CorruptLog
from history.test_removing import url_of
from kernel.runs import Script, call, run_async

AGENT = Agent(name="w", tools=["pay"])


class Payments:
    """A tool that counts what it did."""

    def __init__(self) -> None:
        self.made = 0

    def engine(self, url: str, *entries: object) -> Engine:
        """Return an engine that pays and asks, or does something else."""

        @tool(side_effect="write")
        async def pay() -> str:
            """Pay."""
            self.made += 1
            return "paid"

        return Engine(store=url, planner=Script(list(entries) or [call("pay"), AskUser(question="?")]), tools=[pay])


def cut_file(log: Path, mark: bytes) -> None:
    """Cut a file log after the last commit before the first line with `mark`."""
    data = log.read_bytes()
    end = data.rfind(b'\n["commit",', 0, data.index(mark))
    log.write_bytes(data[: data.index(b"\n", end + 1) + 1])


def cut_database(path: Path, mark: bytes) -> None:
    """Remove the records of a SQLite store from the first with `mark` on."""
    with sqlite3.connect(path) as db:
        keys = [key for key, data in db.execute("SELECT key, data FROM records ORDER BY key").fetchall() if mark in data]
        db.execute("DELETE FROM records WHERE key>=?", (keys[0],))
    db.close()


@pytest.mark.parametrize("kind", ["file", "sqlite"])
def test_a_log_that_was_cut_is_named_and_not_resumed(kind: str, tmp_path: Path) -> None:
    """What is left is a sound log: resumed, it would pay again."""

    async def main() -> None:
        payments = Payments()
        async with payments.engine(url_of(kind, tmp_path)) as engine:
            await engine.run(AGENT, "go", run_id="r")
            assert (await engine.verify("r")).ok
        if kind == "file":
            cut_file(tmp_path / "logs" / "r.jsonl", b"tool_started")
        else:
            cut_database(tmp_path / "runs.db", b"tool_started")
        async with payments.engine(url_of(kind, tmp_path)) as engine:
            checked = await engine.verify("r")
            assert not checked.ok
            with pytest.raises(CorruptLog, match="were durable: the end was cut off" if kind == "file" else "the record is missing"):
                await engine.resume("r")
            with pytest.raises(CorruptLog):
                await engine.run(AGENT, "go", run_id="r")
        assert payments.made == 1 and checked.problem

    run_async(main)


def test_a_log_that_is_gone_is_not_begun_again(tmp_path: Path) -> None:
    """Its id is known by what was sealed: a run of that id is not a new one."""

    async def main() -> None:
        payments = Payments()
        async with payments.engine(url_of("file", tmp_path)) as engine:
            await engine.run(AGENT, "go", run_id="r")
        (tmp_path / "logs" / "r.jsonl").unlink()
        async with payments.engine(url_of("file", tmp_path)) as engine:
            for verb in (lambda: engine.run(AGENT, "go", run_id="r"), lambda: engine.resume("r"), lambda: engine.verify("r")):
                with pytest.raises(CorruptLog, match="its log is empty or missing"):
                    await verb()
        assert payments.made == 1

    run_async(main)


def test_another_log_of_the_same_length_is_damage(tmp_path: Path) -> None:
    """The chain of a copy from before is sound; its digest is not the one that was durable."""

    async def main() -> None:
        ends = []
        for place in ("one", "other"):
            async with Payments().engine(url_of("sqlite", tmp_path / place)) as engine:
                ends.append((await engine.run(AGENT, "go", run_id="r")).state.digest)
        with sqlite3.connect(tmp_path / "other" / "runs.db") as db:
            lines = db.execute("SELECT key, data FROM records").fetchall()
        db.close()
        with sqlite3.connect(tmp_path / "one" / "runs.db") as db:
            db.executemany("UPDATE records SET data=? WHERE key=?", [(data, key) for key, data in lines])
        db.close()
        async with Payments().engine(url_of("sqlite", tmp_path / "one")) as engine:
            checked = await engine.verify("r")
            assert (checked.digest, ends[0] in checked.problem) == (ends[1], True)
            with pytest.raises(CorruptLog, match="the durable one"):
                await engine.resume("r")

    run_async(main)


@pytest.mark.parametrize("seal", ["older", "torn", "none"])
def test_what_was_sealed_may_be_older_than_the_log(seal: str, tmp_path: Path) -> None:
    """A crash may come after the log is written and before its seal is, or in the middle of that; a log of an earlier version has none."""

    async def main() -> None:
        payments, path = Payments(), tmp_path / "logs" / "r.sealed"
        async with payments.engine(url_of("file", tmp_path)) as engine:
            await engine.run(AGENT, "go", run_id="r")
            data = path.read_bytes()
            await engine.reply("r", "yes", resume=False)
            older = min((data[:512], data[512:]), key=lambda one: int(one[1:].partition(b",")[0]))
            if seal == "none":
                path.unlink()
            else:
                path.write_bytes((older + b" " * 511 + b"\n") if seal == "older" else older + b"[9" + b" " * 509 + b"\n")
        async with payments.engine(url_of("file", tmp_path), FinalAnswer(content="done")) as engine:
            assert (await engine.verify("r")).ok and (await engine.resume("r")).status == "completed"
            assert (await engine.verify("r")).ok and payments.made == 1
            records = len(await engine.store.read("r"))
            assert await engine.store.sealed("r") == (records, (await engine.load("r")).digest)

    run_async(main)


def test_a_seal_that_cannot_be_read_is_damage(tmp_path: Path) -> None:
    """Both of its slots: no crash does that."""

    async def main() -> None:
        async with Payments().engine(url_of("file", tmp_path)) as engine:
            await engine.run(AGENT, "go", run_id="r")
            (tmp_path / "logs" / "r.sealed").write_bytes(b"x" * 1024)
            with pytest.raises(CorruptLog, match=r"r\.sealed, which has the length of its log, cannot be read"):
                await engine.resume("r")
            checked = await engine.verify("r")
            assert not checked.ok and "r.sealed" in checked.problem

    run_async(main)
