"""How long runs are kept: by age and status, carried out by workers and `detent gc`, and never under the feet of who advances a run."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from detent import AskUser, FinalAnswer, ToolCall, View
from detent.cli.main import run as detent
from detent.config.groups import Bounds
from detent.config.loading import load_config
from detent.config.retention import Retention
from detent.core.agent import Host
from detent.core.errors import ConfigError, RunErased
from detent.engine import Engine
from detent.history.moving import archive_path, bring_back, head_in, read_archive
from detent.ports import EventStore, RunQuery
from detent.stores import open_store
from detent.stores.ram import RamStore
from detent.testing.clocks import FakeClock
from laws.places import agent_of, engine_on

DAY_S = 86_400.0


def plan(view: View) -> Any:
    """Do what the goal's first word says."""
    match view.goal.split()[0], view.iteration:
        case "ask", 1:
            return AskUser(question="which?")
        case "fail", _:
            return ToolCall(tool="nothing", args={})
        case _:
            return FinalAnswer(content=f"the word is {view.goal.split()[-1]}")


def kept(store: EventStore | str, clock: FakeClock, **ages: Any) -> Engine:
    """Return an engine that keeps runs as long as `ages` say."""
    return engine_on(store, plan, clock=clock, bounds=Bounds(retention=Retention(**ages), goal_words_in_ids=False))


def with_runs(body: Callable[[RamStore, FakeClock], Awaitable[None]]) -> None:
    """Do `body` ten days after one run completed, one failed, and one began to wait."""

    async def main() -> None:
        store, clock = RamStore(), FakeClock(tick_s=0.25)
        engine = kept(store, clock)
        for run_id, goal in (("done", "say marzipan"), ("stuck", "fail marzipan"), ("asked", "ask marzipan")):
            await engine.run(agent_of(), goal, run_id=run_id)
        clock.advance(10 * DAY_S)
        await body(store, clock)

    asyncio.run(main())


async def statuses(store: EventStore) -> dict[str, str]:
    """Return how each run that is there stands: erased, or its status."""
    return {head.run_id: head.reason if head.reason == "erased" else head.status for head in await store.list_runs(RunQuery())}


def test_finished_runs_are_erased_at_their_age_and_waiting_ones_only_by_name() -> None:
    """What was promised to be gone after a year would stay; or a run that somebody is about to answer would be gone."""

    async def body(store: RamStore, clock: FakeClock) -> None:
        assert (await kept(store, clock, erase_after="11d").retain()).erased == ()
        would = await kept(store, clock, erase_after="9d").retain(dry=True)
        assert set(would.erased) == {"done", "stuck"} and "erased" not in (await statuses(store)).values()
        assert set((await kept(store, clock, erase_after="9d").retain()).erased) == {"done", "stuck"}
        assert await statuses(store) == {"done": "erased", "stuck": "erased", "asked": "waiting_for_user"}
        clock.advance(30 * DAY_S)
        assert (await kept(store, clock, erase_after="9d").retain()).erased == (), "a run is erased once"
        assert (await kept(store, clock, erase_after={"waiting_for_user": "9d"}).retain()).erased == ("asked",)

    with_runs(body)


def test_the_age_goes_by_status() -> None:
    """Failures are kept longer than successes, for whoever looks into them."""

    async def body(store: RamStore, clock: FakeClock) -> None:
        engine = kept(store, clock, erase_after={"completed": "1w", "stopped": "2w"})
        assert ((await engine.retain()).erased, (await engine.load("stuck")).status) == (("done",), "stopped")
        with pytest.raises(RunErased):
            await engine.load("done")

    with_runs(body)


def test_archives_are_written_and_later_erased_too(tmp_path: Path) -> None:
    """The words of a run that was to be erased would live on in its archive."""

    async def body(store: RamStore, clock: FakeClock) -> None:
        ages = {"archive_after": {"completed": "9d"}, "archive_to": str(tmp_path), "erase_after": {"completed": "30d"}}
        assert (await kept(store, clock, **ages).retain()).archived == ("done",)
        assert set(await statuses(store)) == {"stuck", "asked"}
        path = archive_path(tmp_path, "done")
        digest = read_archive(path).digest
        assert b"marzipan" in gzip.decompress(path.read_bytes())
        (tmp_path / "other.jsonl.gz").write_bytes(b"no archive")
        clock.advance(30 * DAY_S)
        engine = kept(store, clock, **ages)
        assert (await engine.retain()).erased == ("done",)
        assert b"marzipan" not in gzip.decompress(path.read_bytes())
        assert ((await engine.retain()).erased, head_in(path).reason) == ((), "erased")
        await bring_back(store, path)
        assert (await engine.verify("done", head=digest)).ok

    with_runs(body)


def test_a_run_that_somebody_advances_is_left_for_the_next_time() -> None:
    """Its worker would find its log erased under its feet."""

    async def body(store: RamStore, clock: FakeClock) -> None:
        other = store.sibling()
        await other.claim("done")
        engine = kept(store, clock, erase_after="9d")
        done = await engine.retain()
        assert (done.erased, list(done.left)) == (("stuck",), ["done"])
        await other.release("done")
        assert (await engine.retain()).erased == ("done",)

    with_runs(body)


def test_a_worker_carries_it_out_for_its_tenant_and_gc_for_all() -> None:
    """The option would be read by nobody."""

    async def body(store: RamStore, clock: FakeClock) -> None:
        engine = kept(store, clock, erase_after={"completed": "9d"})
        await engine.work(until_idle=True, host=Host(tenant="other"))
        assert (await statuses(store))["done"] == "completed"
        await engine.work(until_idle=True)
        assert (await statuses(store))["done"] == "erased"
        await kept(store, clock, erase_after={"stopped": "9d"}).gc()
        assert (await statuses(store))["stuck"] == "erased"

    with_runs(body)


def test_gc_says_beforehand_what_it_removes(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Somebody who wants to free space would erase runs without having been told."""
    url, clock = f"sqlite:///{tmp_path}/runs.db", FakeClock(tick_s=0.25)

    async def prepare() -> None:
        async with kept(url, clock) as engine:
            await engine.run(agent_of(), "say marzipan", run_id="done")

    asyncio.run(prepare())
    config = tmp_path / "outside" / "detent.toml"
    config.parent.mkdir()
    config.write_text('[retention]\nerase_after = "1s"\n')
    said = ["gc", "--store", url, "--config", str(config)]
    assert detent(said) == 2
    assert "erase 1 run and archive 0" in capfd.readouterr().err
    assert detent([*said, "--yes"]) == 0
    assert "erased 1 run" in "".join(capfd.readouterr())
    assert detent(["verify", "done", "--store", url]) == 0


@pytest.mark.parametrize("kind", ["file", "sqlite"])
def test_no_word_of_an_erased_goal_is_left_in_the_store(kind: str, tmp_path: Path) -> None:
    """A listing, an index or a free page would still tell what the run was about."""
    url = f"sqlite:///{tmp_path}/runs.db" if kind == "sqlite" else f"file:{tmp_path}/runs"

    async def main() -> None:
        store, clock = open_store(url), FakeClock(tick_s=0.25)
        await store.open()
        engine = kept(store, clock, erase_after="1d")
        await engine.run(agent_of(), "say marzipan", run_id="done")
        await engine.run(agent_of(), "ask marzipan", run_id="asked")
        await engine.reply("asked", "marzipan", by="ann", resume=False)
        await engine.erase("asked")
        clock.advance(2 * DAY_S)
        assert (await engine.retain()).erased == ("done",)
        await engine.gc()
        await store.close()

    asyncio.run(main())
    left = [path for path in tmp_path.rglob("*") if path.is_file() and b"marzipan" in path.read_bytes()]
    assert left == []


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ({"erase_after": "soon"}, "retention.erase_after: 'soon' is not an age; write a number and a unit"),
        ({"erase_after": {"running": "1d"}}, "retention.erase_after.running: runs of this status are not removed; known: completed"),
        ({"archive_after": {"waiting_for_user": "1d"}, "archive_to": "x"}, "archive_after.waiting_for_user"),
        ({"archive_after": "1d"}, "retention.archive_after needs a directory"),
    ],
)
def test_what_is_no_age_or_status_is_refused(said: dict[str, Any], why: str) -> None:
    """A word that is misspelt would keep runs for ever, or remove them at once."""
    with pytest.raises(ConfigError, match=why):
        Retention(**said)


def test_only_the_operator_says_how_long_runs_are_kept(tmp_path: Path) -> None:
    """An agent that may write the project's file would have the traces of what it did erased."""
    (file := tmp_path / "detent.toml").write_text('[retention]\narchive_after = "30d"\narchive_to = "old"\n')
    with pytest.raises(ConfigError, match="retention: only the operator may set this"):
        load_config(file)
    assert load_config(file, operators=True).retention.archive_to == str(tmp_path / "old")


def test_the_last_run_of_a_session_is_kept_until_the_session_is_ended() -> None:
    """Otherwise the next message would begin the session anew, with ids that it had before."""

    async def main() -> None:
        clock, store = FakeClock(), RamStore()
        async with kept(store, clock, erase_after="9d") as engine:
            session = engine.session(agent_of(), "trip")
            for text in "abc":
                await session.send(f"say {text}")
            clock.advance(10 * DAY_S)
            assert set((await engine.retain(dry=True)).erased) == set((await engine.retain()).erased) == {"trip.1", "trip.2"}
            assert (await session.send("say d")).run_id == "trip.4"
            await session.end(by="ann")
            clock.advance(10 * DAY_S)
            assert set((await engine.retain()).erased) == {"trip.3", "trip.4"}

    asyncio.run(main())
