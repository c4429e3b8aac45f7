"""Erasing, deleting and collecting: what is gone is gone from the bytes, what must stay stays. DESIGN 4 and 5."""

from __future__ import annotations

import asyncio
from hashlib import sha256
from pathlib import Path

import msgspec
import psycopg
import pytest

from detent import Agent, AskUser, Engine, FinalAnswer, tool
from detent.config.groups import Bounds
from detent.core.codec import read_log
from detent.core.errors import NotAllowedNow, RunBusy, RunErased, RunNotFound
from detent.history.examining import examine
from detent.ports import Signal
from detent.stores.ram import RamStore
from kernel.runs import END, Desk, Script, call, engine_for, run_async

SECRET = "the-launch-code-is-7421"


def bytes_below(directory: Path) -> bytes:
    """Return everything that is stored in a directory."""
    return b"".join(path.read_bytes() for path in sorted(directory.rglob("*")) if path.is_file())


def url_of(kind: str, directory: Path) -> str:
    """Return a store's URL in a directory."""
    return f"file:{directory / 'logs'}" if kind == "file" else f"sqlite:///{directory / 'runs.db'}"


@pytest.mark.parametrize("kind", ["file", "sqlite"])
def test_an_erased_run_keeps_its_chain_and_nothing_of_its_content(kind: str, tmp_path: Path) -> None:
    """DESIGN 4: log, snapshot, inbox and artifacts; the text is not in the store's bytes any more; the head still verifies."""

    async def main() -> None:
        @tool(side_effect="read", max_result_bytes=200)
        async def dump() -> list[str]:
            """Give a lot."""
            return [f"{SECRET} {n}" for n in range(200)]

        url = url_of(kind, tmp_path)
        async with Engine(store=url, planner=Script([call("dump"), FinalAnswer(content=SECRET)]), tools=[dump]) as engine:
            other = await engine.run(Agent(name="w", tools=["dump"]), "keep me")
            result = await engine.run(Agent(name="w", tools=["dump"]), f"find {SECRET}", run_id="r", variables={"x": SECRET})
            assert SECRET.encode() in bytes_below(tmp_path)
            digests = [r.digest for r in await engine.records("r")]
            await engine.delete(other.run_id)
            await engine.erase("r", by="ann", why="asked to")
            checked = await engine.verify("r")
            assert (checked.ok, checked.erased, checked.records) == (True, True, result.state.seq + 1)
            lines = await engine.store.read("r")
            assert [r.digest for r in read_log("r", lines)][:-1] == digests and await engine.store.list_blobs("r") == []
            (head,) = await engine.list_runs()
            assert (head.run_id, head.status, head.tenant, head.goal) == ("r", "completed", "", "")
            for verb in (engine.load, engine.resume, engine.replay):
                with pytest.raises(RunErased, match="run 'r' was erased"):
                    await verb("r")
            await engine.gc()
        assert SECRET.encode() not in bytes_below(tmp_path)

    run_async(main)


@pytest.mark.parametrize("kind", ["file", "sqlite", "postgresql"])
def test_no_word_of_an_erased_goal_is_left_in_the_store(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    """Listing entry, columns, snapshot, inbox, fork, free pages, write-ahead log, what a dead process left half written: all, and before any gc."""
    word = "zyzzyva"

    async def main() -> bytes:
        url = request.getfixturevalue("postgres_url") if kind == "postgresql" else url_of(kind, tmp_path)
        bounds = Bounds(goal_words_in_ids=False)
        async with Engine(store=url, planner=Script([AskUser(question=f"which {word}?")]), bounds=bounds) as engine:
            result = await engine.run(Agent(name="w"), f"find the {word}", variables={"x": word})
            fork = await engine.fork(result.run_id, resume=False, edits={"goal": f"find another {word}"})
            await engine.cancel(fork.run_id, by="ann")
            await engine.store.put_snapshot(result.run_id, 2, word.encode())
            await engine.store.put_blob(result.run_id, "k", word.encode())
            await engine.store.post(result.run_id, Signal(id="s", kind="timer", payload={"text": word}))
            if kind == "file":
                (tmp_path / "logs" / ".tmp-1-ab").write_bytes(word.encode())
            assert word.encode() in await raw(url)
            for head in await engine.list_runs():
                assert (await engine.erase(head.run_id, by="ann")).ids_with_goal_words == ()
            return await raw(url)

    async def raw(url: str) -> bytes:
        if kind != "postgresql":
            return bytes_below(tmp_path)
        tables = ("runs", "records", "inbox", "snapshots", "blobs", "spent", "reserved", "claims")
        async with await psycopg.AsyncConnection.connect(url.partition("&schema")[0]) as db:
            rows = [await (await db.execute(f"SELECT * FROM detent.{table}")).fetchall() for table in tables]  # type: ignore[arg-type]
        return b"".join(one if isinstance(one, bytes) else str(one).encode() for found in rows for row in found for one in row)

    assert word.encode() not in run_async(main)


@pytest.mark.parametrize("kind", ["file", "sqlite"])
def test_an_answer_that_comes_just_after_its_run_was_erased_is_refused(kind: str, tmp_path: Path) -> None:
    """Whoever gives it has read the run before. Otherwise its words would stay in the inbox of a run that nobody can read."""

    async def main() -> None:
        url, agent = url_of(kind, tmp_path), Agent(name="w")
        async with Engine(store=url, planner=Script([AskUser(question="which?")])) as engine, Engine(store=url) as other:
            await engine.run(agent, "go", run_id="r")
            await other.store.open()
            post = other.store.post

            async def late(run_id: str, signal: Signal) -> None:
                await engine.erase("r")
                await post(run_id, signal)

            other.store.post = late  # type: ignore[method-assign]
            with pytest.raises(RunErased):
                await other.reply("r", SECRET, resume=False)
            assert await engine.store.signals(["r"]) == {} and (await engine.verify("r")).ok
        assert SECRET.encode() not in bytes_below(tmp_path)

    run_async(main)


@pytest.mark.parametrize("kind", ["file", "sqlite"])
def test_signals_that_an_earlier_version_left_with_an_erased_run_are_left_over_and_collected(kind: str, tmp_path: Path) -> None:
    """`doctor` names them, they are no damage, and nothing of them stays in the store's bytes."""

    async def main() -> None:
        url = url_of(kind, tmp_path)
        async with Engine(store=url, planner=Script([AskUser(question="which?")])) as engine:
            await engine.run(Agent(name="w"), "go", run_id="r")
            await engine.erase("r")
            head, digest = await engine.store.head("r"), (await engine.verify("r")).digest
            assert head is not None
            for reason in ("", "erased"):
                entry = msgspec.structs.replace(head, reason=reason, digest=digest)
                await engine.store.append("r", head.records, [], head=entry, durable=True)
                if not reason:
                    await engine.store.post("r", Signal(id="s", kind="reply", payload={"reply": SECRET}))
            assert SECRET.encode() in bytes_below(tmp_path)
            found = await examine(engine.runtime)
            assert [(fault.damage, fault.mend, "inbox" in fault.what) for fault in found.faults] == [(False, "gc", True)]
            await engine.gc()
            assert (await engine.verify("r")).ok and (await examine(engine.runtime)).faults == ()
        assert SECRET.encode() not in bytes_below(tmp_path)

    run_async(main)


def test_only_a_finished_or_waiting_run_is_erased() -> None:
    """A running one is refused by name; a waiting one is erased and never wakes."""

    async def main() -> None:
        engine = engine_for(Script([call("look", n=1), AskUser(question="?")]), *Desk().all)
        await engine.step(Agent(name="w", tools=["look"]), "go", run_id="r")
        with pytest.raises(NotAllowedNow, match="is running; finish or cancel it") as caught:
            await engine.erase("r")
        assert caught.value.reason_code == "still_running" and (await engine.resume("r")).status == "waiting_for_user"
        await engine.erase("r")
        with pytest.raises(RunErased):
            await engine.reply("r", "x")

    run_async(main)


def test_a_run_that_is_being_advanced_is_neither_erased_nor_deleted() -> None:
    """Not under the feet of its worker, here or elsewhere."""

    async def main() -> None:
        place, begun, gate = RamStore(), asyncio.Event(), asyncio.Event()

        @tool(side_effect="read", timeout_s=None)
        async def work() -> str:
            """Work until let go."""
            begun.set()
            await gate.wait()
            return "ok"

        engine, outside = engine_for(Script([call("work"), END]), work, store=place), engine_for(Script([]), work, store=place.sibling())
        running = asyncio.create_task(engine.run(Agent(name="w", tools=["work"]), "go", run_id="r"))
        await begun.wait()
        for one in (engine, outside):
            for verb in (one.erase, one.delete):
                with pytest.raises(RunBusy):
                    await verb("r")
        gate.set()
        assert (await running).status == "completed"
        await outside.delete("r")
        with pytest.raises(RunNotFound):
            await engine.load("r")

    run_async(main)


@pytest.mark.parametrize("verb", ["erase", "gc"])
def test_a_run_that_is_being_removed_or_collected_is_not_advanced_beside_that(verb: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The store would grant its engine the claim twice; who is done first would give it up under the other, and two workers could advance."""

    async def main() -> None:
        reached, go_on = asyncio.Event(), asyncio.Event()

        @tool(side_effect="read", max_result_bytes=100)
        async def dump() -> list[str]:
            """Give more than the cap."""
            return ["much"] * 100

        async with Engine(store=(store := RamStore()), planner=Script([call("dump"), AskUser(question="?"), END]), tools=[dump]) as engine:
            await engine.run(Agent(name="w", tools=["dump"]), "look", run_id="r")
            read = store.read

            async def slow(run_id: str, *, after: int = 0, limit: int | None = None) -> list[bytes]:
                reached.set()
                await go_on.wait()
                return await read(run_id, after=after, limit=limit)

            monkeypatch.setattr(store, "read", slow)
            removing = asyncio.ensure_future(engine.gc() if verb == "gc" else engine.erase("r"))
            await reached.wait()
            monkeypatch.setattr(store, "read", read)
            with pytest.raises(RunBusy, match="this engine"):
                await engine.resume("r")
            go_on.set()
            await removing
            if verb == "gc":
                assert (await engine.reply("r", "yes")).status == "completed", "it is free again"

    run_async(main)


@pytest.mark.parametrize("kind", ["file", "sqlite"])
def test_gc_drops_artifacts_that_no_record_names_and_keeps_the_others(kind: str, tmp_path: Path) -> None:
    """As a crash between artifact and record leaves them."""

    async def main() -> None:
        @tool(side_effect="read", max_result_bytes=200)
        async def dump() -> str:
            """Give a lot."""
            return "x" * 5000

        async with Engine(store=url_of(kind, tmp_path), planner=Script([call("dump"), END]), tools=[dump], redact=["zzz"]) as engine:
            result = await engine.run(Agent(name="w", tools=["dump"]), "go zzz", run_id="r")
            named = result.tool_calls[0].artifact
            assert named is not None
            kept = set(await engine.store.list_blobs("r"))
            await engine.store.put_blob("r", sha256(b"left over" * 100).hexdigest(), b"left over" * 100)
            await engine.store.put_blob("r", "f" * 64, b"left over and altered")
            freed = await engine.gc()
            assert freed >= 900 and set(await engine.store.list_blobs("r")) == kept and named.key in kept and len(kept) >= 3
            assert (await engine.load("r")).status == "completed"

    run_async(main)
