"""Damage of what is kept beside the log: found on every read, named by `verify`, and never built upon. DESIGN 4."""

from __future__ import annotations

import asyncio
import os
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from detent import Agent, AskUser, Engine, FinalAnswer, ToolContext, View, tool
from detent.core.errors import CorruptLog
from detent.history import moving
from detent.ports import Signal, posted_to
from detent.stores.locks import lock_path
from detent.stores.ram import RamStore
from detent.stores.sqlite.store import SqliteStore
from history.test_removing import url_of
from kernel.runs import Script, call, run_async

AGENT = Agent(name="w", tools=["dump", "look"])


@tool(side_effect="read", max_result_bytes=200)
async def dump() -> str:
    """Give a lot."""
    return "x" * 5000


@tool(side_effect="read")
async def look(n: int) -> int:
    """Look at something."""
    return n


def altered(kind: str, directory: Path, key: str, change: Callable[[bytes], bytes | None]) -> None:
    """Change the artifact of run `r` behind the store's back; None removes it."""
    if kind == "file":
        path = directory / "logs" / "r.blobs" / key
        data = change(path.read_bytes())
        path.unlink() if data is None else path.write_bytes(data)
        return
    with sqlite3.connect(directory / "runs.db") as db:
        ((before,),) = db.execute("SELECT data FROM blobs WHERE run_id='r' AND key=?", (key,)).fetchall()
        data = change(before)
        if data is None:
            db.execute("DELETE FROM blobs WHERE key=?", (key,))
        else:
            db.execute("UPDATE blobs SET data=? WHERE key=?", (data, key))
    db.close()


def flipped(data: bytes) -> bytes:
    """Return the bytes with one bit flipped: the artifact is still valid JSON, and says something else."""
    return data[:100] + bytes([data[100] ^ 1]) + data[101:]


def engine_of(kind: str, directory: Path, *entries: Any) -> Engine:
    """Return an engine that dumps, asks, and then goes on as told."""
    return Engine(store=url_of(kind, directory), planner=Script([call("dump"), AskUser(question="?"), *entries]), tools=[dump, look])


@pytest.mark.parametrize("change", [flipped, lambda data: None], ids=["altered", "missing"])
@pytest.mark.parametrize("kind", ["file", "sqlite"])
def test_a_run_with_a_damaged_artifact_is_named_and_never_continued(
    kind: str, change: Callable[[bytes], bytes | None], tmp_path: Path
) -> None:
    """One flipped bit reached a final answer: `verify`, `copy`, `fork` and replay all passed it."""

    async def main() -> None:
        async with engine_of(kind, tmp_path) as engine:
            waits = await engine.run(AGENT, "go", run_id="r")
            key = waits.tool_calls[0].artifact.key
            altered(kind, tmp_path, key, change)
            checked = await engine.verify("r")
            assert not checked.ok and key in checked.problem and checked.sequence is not None and checked.further == ()
            records = len(await engine.store.read("r"))
            for verb in (lambda: engine.reply("r", "yes"), lambda: engine.replay("r"), lambda: engine.fork("r", resume=False)):
                with pytest.raises(CorruptLog, match=key):
                    await verb()
            with pytest.raises(CorruptLog, match=key):
                await moving.copy(engine.store, RamStore(), "r", move=True)
            assert len(await engine.store.read("r")) == records and len(await engine.list_runs()) == 1
            assert (await engine.load("r")).status == "waiting_for_user"  # it can still be looked at

    run_async(main)


@pytest.mark.parametrize("kind", ["file", "sqlite"])
def test_damage_that_comes_while_a_run_is_advanced_ends_its_advance(kind: str, tmp_path: Path) -> None:
    """Whoever reads it, a planner, a verifier or a tool, gets no altered value, and the run goes no further."""

    async def main() -> None:
        async def reads(view: View) -> Any:
            (item,) = [item for item in view.results if item.artifact is not None]
            altered(kind, tmp_path, item.artifact.key, flipped)
            assert view.full is not None
            return FinalAnswer(content=await view.full(item))

        class Reader(Script):
            async def plan(self, view: View) -> Any:
                if view.iteration == 2:
                    return await reads(view)
                return await super().plan(view)

        async with Engine(store=url_of(kind, tmp_path), planner=Reader([call("dump")]), tools=[dump, look]) as engine:
            with pytest.raises(CorruptLog, match="is not what was stored"):
                await engine.run(AGENT, "go", run_id="r")
            assert (await engine.load("r")).status == "running" and not (await engine.verify("r")).ok

    run_async(main)


def test_a_tool_that_reads_a_damaged_result_ends_the_advance() -> None:
    """The error of the tool that read it would be one more observation, and the run would go on."""

    async def main() -> None:
        store = RamStore()

        @tool(side_effect="read")
        async def again(call_id: str, context: ToolContext) -> str:
            """Read the whole result of an earlier call."""
            (key,) = await store.list_blobs("r")
            await store.put_blob("r", key, b'"altered"')
            return str(await context.result(call_id))

        planner = Script([call("dump"), call("again", call_id="main.1.0"), FinalAnswer(content="done")])
        async with Engine(store=store, planner=planner, tools=[dump, again]) as engine:
            with pytest.raises(CorruptLog, match="is not what was stored"):
                await engine.run(Agent(name="w", tools=["dump", "again"]), "go", run_id="r")
            assert (await engine.load("r")).status == "running"

    run_async(main)


def test_a_hidden_value_that_was_altered_reaches_no_tool() -> None:
    """Its placeholder is a keyed hash of it: what is kept under it is compared before a tool gets it, and by `verify`."""

    async def main() -> None:
        got: list[str] = []

        @tool(side_effect="write", sensitive=("code",))
        async def enter(code: str) -> str:
            """Use a code."""
            got.append(code)
            return "in"

        store = RamStore()
        async with Engine(store=store, planner=Script([AskUser(question="?"), call("enter", code="4711-a")]), tools=[enter]) as engine:
            await engine.run(Agent(name="w", tools=["enter"]), "go", run_id="r")
            await engine.reply("r", "go on")
            assert got == ["4711-a"] and (await engine.verify("r")).ok
            (name,) = [key for key in await store.list_blobs("r") if key.startswith("secret-")]
            kept = await store.get_blob("r", name)
            assert kept is not None
            await store.put_blob("r", name, kept.replace(b"4711-a", b"4712-a"))
            checked = await engine.verify("r")
            assert not checked.ok and f"<secret:{name[7:]}>" in checked.problem
            await store.delete_blob("r", name)
            assert ((await engine.verify("r")).ok, (await engine.verify("r")).missing) == (True, 1)

    run_async(main)


@pytest.mark.parametrize("kind", ["file", "sqlite"])
def test_verify_reads_the_inbox(kind: str, tmp_path: Path) -> None:
    """A posted answer that cannot be read any more is a word that was lost; one that was taken up must not wait again."""

    async def main() -> None:
        async with engine_of(kind, tmp_path, AskUser(question="again?")) as engine:
            waits = await engine.run(AGENT, "go", run_id="r")
            assert waits.status == "waiting_for_user"
            await engine.store.post("r", Signal(id="one", kind="reply", payload={"reply": "x"}))
            assert (await engine.verify("r")).ok
            if kind == "file":
                path = tmp_path / "logs" / ".inbox" / "r.jsonl"
                path.write_bytes(b"\x00" + path.read_bytes()[1:])
            else:
                with sqlite3.connect(tmp_path / "runs.db") as db:
                    db.execute("UPDATE inbox SET signal=CAST('?' AS BLOB)||substr(signal, 2) WHERE signal IS NOT NULL")
                db.close()
            checked = await engine.verify("r")
            assert not checked.ok and "inbox" in checked.problem and "cannot be read" in checked.problem

    run_async(main)


def in_inbox(kind: str, directory: Path, change: Callable[[bytes], bytes]) -> None:
    """Change what waits in the inbox of run `r` behind the store's back."""
    if kind == "file":
        path = directory / "logs" / ".inbox" / "r.jsonl"
        path.write_bytes(change(path.read_bytes()))
        return
    with sqlite3.connect(directory / "runs.db") as db:
        for number, data in db.execute("SELECT rowid, signal FROM inbox WHERE signal IS NOT NULL").fetchall():
            db.execute("UPDATE inbox SET signal=? WHERE rowid=?", (change(data), number))
    db.close()


@pytest.mark.parametrize("kind", ["file", "sqlite"])
def test_an_answer_that_was_altered_in_the_inbox_is_named_and_does_not_count(kind: str, tmp_path: Path) -> None:
    """One flipped bit of a reply reached the planner as what the user had said; and who said it could be made another."""

    async def main() -> None:
        async with engine_of(kind, tmp_path, FinalAnswer(content="done")) as engine:
            await engine.run(AGENT, "go", run_id="r")
            said = (await engine.reply("r", "yes", by="ann", resume=False)).answered
            assert said is not None and (await engine.verify("r")).ok
            in_inbox(kind, tmp_path, lambda data: data.replace(b'"yes"', b'"yds"'))
            checked = await engine.verify("r")
            assert not checked.ok and said.signal in checked.problem and "altered" in checked.problem
            assert (await engine.resume("r")).status == "waiting_for_user"
            became = await engine.decided("r", said.signal)
            assert (became.outcome, became.code) == ("refused", "altered")
            assert (await engine.reply("r", "yes", by="ann")).output == "done"
            assert (await engine.verify("r")).ok and (await engine.replay("r")).identical

    run_async(main)


@pytest.mark.parametrize("change", [lambda data: data.replace(b'"ann"', b'"bob"'), lambda data: data], ids=["altered", "of another run"])
def test_a_cancellation_that_is_not_what_was_posted_ends_no_run(change: Callable[[bytes], bytes], tmp_path: Path) -> None:
    """Neither one in which another name was written, nor one that was put into the inbox of another run."""

    async def main() -> None:
        async with engine_of("file", tmp_path, FinalAnswer(content="done")) as engine:
            await engine.run(AGENT, "go", run_id="r")
            to = "r" if change(b'"ann"') != b'"ann"' else "another"
            await engine.store.post("r", posted_to(to, Signal(id="one", kind="cancel", by="ann")))
            in_inbox("file", tmp_path, change)
            assert "altered" in (await engine.verify("r")).problem
            assert (await engine.resume("r")).status == "waiting_for_user"
            assert (await engine.decided("r", "one")).code == "altered"
            assert (await engine.cancel("r", by="ann")).reason == "cancelled"

    run_async(main)


def test_a_cancellation_that_was_meant_for_another_run_interrupts_nothing() -> None:
    """The process that advances the run sees it at once, and goes on."""

    async def main() -> None:
        begun, gate, store = asyncio.Event(), asyncio.Event(), RamStore()

        @tool(side_effect="write", timeout_s=None)
        async def work(context: ToolContext) -> str:
            """Work until let go."""
            begun.set()
            await gate.wait()
            return "cancelled" if context.cancelled else "done"

        engine = Engine(store=store, planner=Script([call("work"), FinalAnswer(content="done")]), tools=[work])
        running = asyncio.create_task(engine.run(Agent(name="w", tools=["work"]), "go", run_id="r"))
        await begun.wait()
        await store.post("r", posted_to("another", Signal(id="one", kind="cancel", by="ann")))
        control = engine.runtime.parts.watcher.control("r")
        assert control is not None
        control.notify((await store.signals(["r"]))["r"])
        gate.set()
        result = await running
        assert (result.status, result.tool_calls[0].content) == ("completed", "done")
        assert (await engine.decided("r", "one")).code == "altered"

    run_async(main)


FILED: dict[str, tuple[bytes, bytes | None, str]] = {
    "nonsense": (b"nobody", None, "cannot be read"),
    "not text": (b'["\xff","h"]', None, "cannot be read"),
    "no process": (b'["me","me/b",7]', None, "not a process name"),
    "no number": (b'["there:7:0123456789ab","there/b",0]', None, "has the number '0'"),
    "another host": (b'["here:7:0123456789ab","there/b",7]', None, "host 'there/b'"),
    "a lease for ever": (b'["there:7:0123456789ab","there/b",7]', b"99999999999999999.000 00000000000000001.000\n", "ends at"),
    "a former lease for ever": (b'["there:7:0123456789ab","there/b"]', b"99999999999999999.000\n", "ends at"),
    "no lease": (b'["there:7:0123456789ab","there/b",7]', b"not a number........\n", "cannot be read"),
}
ROWS: dict[str, tuple[str, str]] = {
    "no number": ("UPDATE claims SET number='many'", "has the number 'many'"),
    "no process": ("UPDATE claims SET holder='me'", "not a process name"),
    "no text": ("UPDATE claims SET holder=x'00'", "not a process name"),
    "another host": ("UPDATE claims SET host='there/b'", "host 'there/b'"),
}
LEASES = {
    "for ever": (b"00000000000000001.000 99999999999999999.000\n", "ends at"),
    "for ever elsewhere": (b"99999999999999999.000 00000000000000001.000\n", "ends at"),
    "at no time": (b"00000000000000001.000 nan\n", "ends at"),
    "none": (b"soon", "cannot be read"),
}


@pytest.mark.parametrize("how", FILED)
def test_verify_reads_the_claim_in_files(how: str, tmp_path: Path) -> None:
    """A claim that no process can have written keeps everybody from the run, or nobody; `verify` did not look at it."""

    async def main() -> None:
        async with engine_of("file", tmp_path) as engine:
            await engine.run(AGENT, "go", run_id="r")
            await engine.store.claim("r")
            assert (await engine.verify("r")).ok
            (claim,) = (tmp_path / "logs").rglob("r.claim")
            written, lease, said = FILED[how]
            claim.write_bytes(written)
            if lease is not None:
                lock_path(claim.parent, "there:7:0123456789ab", "there/b").write_bytes(lease)
            checked = await engine.verify("r")
            assert not checked.ok and checked.sequence is None and said in checked.problem

    run_async(main)


@pytest.mark.parametrize("how", ROWS)
def test_verify_reads_the_claim_in_sqlite(how: str, tmp_path: Path) -> None:
    """The same of the rows of a database."""

    async def main() -> None:
        async with engine_of("sqlite", tmp_path) as engine:
            await engine.run(AGENT, "go", run_id="r")
            await engine.store.claim("r")
            assert (await engine.verify("r")).ok
            with sqlite3.connect(tmp_path / "runs.db") as db:
                db.execute(ROWS[how][0])
            db.close()
            checked = await engine.verify("r")
            assert not checked.ok and checked.sequence is None and ROWS[how][1] in checked.problem

    run_async(main)


@pytest.mark.parametrize("how", LEASES)
@pytest.mark.parametrize("kind", ["file", "sqlite"])
def test_verify_reads_the_lease_of_a_claim(kind: str, how: str, tmp_path: Path) -> None:
    """The lease of who has the run on this host stands in its lock file."""

    async def main() -> None:
        async with engine_of(kind, tmp_path) as engine:
            await engine.run(AGENT, "go", run_id="r")
            await engine.store.claim("r")
            assert (await engine.verify("r")).ok
            (lock,) = tmp_path.rglob("*.lock")
            lock.write_bytes(LEASES[how][0])
            checked = await engine.verify("r")
            assert not checked.ok and checked.sequence is None and LEASES[how][1] in checked.problem

    run_async(main)


@pytest.mark.parametrize(
    ("holder", "said"), [("there:7:0123456789ab", ""), ("me", "the claim is held by 'me', which is not a process name")]
)
def test_a_claim_of_an_earlier_version_is_read(holder: str, said: str, tmp_path: Path) -> None:
    """Who only looks leaves the tables as they are: without numbers, and with the holders in a table of their own."""

    async def main() -> None:
        async with engine_of("sqlite", tmp_path) as engine:
            await engine.run(AGENT, "go", run_id="r")
        with sqlite3.connect(tmp_path / "runs.db") as db:
            db.execute("ALTER TABLE claims DROP COLUMN host")
            db.execute("ALTER TABLE claims DROP COLUMN number")
            db.execute("CREATE TABLE holders (name TEXT PRIMARY KEY, host TEXT NOT NULL, expires REAL NOT NULL) WITHOUT ROWID")
            db.execute("INSERT INTO claims VALUES ('r', ?)", (holder,))
            db.execute("PRAGMA user_version=4")
        db.close()
        store = SqliteStore(tmp_path / "runs.db")
        assert await store.look()
        assert await store.wrong_with_claim("r") == said
        await store.close()

    run_async(main)


def test_every_problem_is_named(tmp_path: Path) -> None:
    """Who repairs a store must not find the damage one by one."""

    async def main() -> None:
        async with engine_of("file", tmp_path) as engine:
            waits = await engine.run(AGENT, "go", run_id="r")
            altered("file", tmp_path, waits.tool_calls[0].artifact.key, lambda data: None)
            inbox = tmp_path / "logs" / ".inbox"
            inbox.mkdir(exist_ok=True)
            (inbox / "r.jsonl").write_bytes(b"nothing\n")
            checked = await engine.verify("r")
            assert "artifact" in checked.problem and ["inbox" in one for one in checked.further] == [True]
            assert os.fspath(tmp_path) not in checked.problem

    run_async(main)


def test_a_fork_whose_prefix_is_gone_is_reported_and_not_raised() -> None:
    """`verify` raised what it is asked to report, and advised to ask `verify`."""

    async def main() -> None:
        store = RamStore()
        async with Engine(store=store, planner=Script([FinalAnswer(content="done"), FinalAnswer(content="again")])) as engine:
            await engine.run(Agent(name="a"), "go", run_id="r")
            await engine.fork("r", child_id="f", resume=False)
            await store.delete("r")
            checked = await engine.verify("f")
            assert not checked.ok and "continues from record" in checked.problem

    run_async(main)
