"""Forks and what becomes of the runs that they were branched from: deleted, archived, moved, erased, collected. DESIGN 8."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from amounts import crossed, in_check, thinned
from detent.core import events as e
from detent.core.codec import read_record
from detent.core.errors import CorruptLog, NotAllowedNow, RunBusy, RunErased, RunNotFound
from detent.history import moving
from detent.ports import EventStore, Signal
from detent.running.lineage import LEAVING, PREFIX_BLOB, forks_of
from detent.stores import open_store
from detent.testing.faults import Crash, CrashingStore, T, When
from history.family import Tools, finish, make_engine, open_at, parent_of, run_async
from laws.places import KINDS, Place

pytestmark = [crossed, thinned]


async def family(engine: Any) -> str:
    """Leave a parent, a fork of it that is not finished, one that is, and a fork of that; return the parent's output."""
    parent = await parent_of(engine)
    early = next(r.envelope.seq for r in await engine.records("parent") if isinstance(r.event, e.GoalPushed))
    late = max(r.envelope.seq for r in await engine.records("parent") if isinstance(r.event, e.ToolFinished))
    await engine.fork("parent", at=early, child_id="open", resume=False)
    await finish(engine, (await engine.fork("parent", at=late, child_id="ended", resume=False)).run_id)
    await engine.fork("ended", at=3, child_id="below", resume=False)
    return parent.output


async def whole(engine: Any, output: str, effects: list[str], tools: Tools) -> None:
    """Check that every fork is as it was, and goes on."""
    assert (await engine.load("ended")).output == output
    assert (await engine.replay("ended")).identical
    for child in ("open", "below"):
        result = await finish(engine, child)
        assert (result.output, tools.effects) == (output, effects), child
        assert (await engine.replay(child)).identical


@pytest.mark.parametrize("kind", KINDS)
def test_forks_outlive_the_runs_that_they_came_from(kind: str, tmp_path: Path) -> None:
    """Deleted one after the other, with what they were branched from given to them first; collecting removes nothing that they need."""

    async def main() -> None:
        place, tools = Place(kind, tmp_path), Tools()
        async with make_engine(place.store(), tools) as engine:
            output, effects = await family(engine), tools.effects
            before = {name: await engine.load(name) for name in ("open", "ended", "below")}
            assert await forks_of(engine.store, "parent") == ["ended", "open"]
            await engine.delete("parent")
            await engine.gc()
            assert {name: await engine.load(name) for name in before} == before
            await engine.delete("ended")
            await engine.gc()
            assert await engine.load("below") == before["below"]
            for child in ("open", "below"):
                assert (await finish(engine, child)).output == output
                assert tools.effects == effects, "what its ancestors have on record is there, too"
                assert (await engine.replay(child)).identical
                again = await engine.fork(child)
                assert again.output == output
        await place.close()

    run_async(main)


def test_archiving_and_moving_a_parent_keeps_its_forks(tmp_path: Path) -> None:
    """Both give to the forks what they refer to; brought back, the parent is what it was."""

    async def main() -> None:
        tools = Tools()
        stores: list[EventStore] = [open_store(f"sqlite:///{tmp_path}/a.db"), open_store(f"file:{tmp_path}/b")]
        for store in stores:
            await store.open()
        async with make_engine(stores[0], tools) as engine:
            output, effects = await family(engine), tools.effects
            lines = await stores[0].read("parent")
            await moving.archive(stores[0], tmp_path / "out", "parent")
            await moving.copy(stores[0], stores[1], "ended", move=True)
            await moving.bring_back(stores[1], tmp_path / "out" / "parent.jsonl.gz")
            assert await stores[1].read("parent") == lines
            for child in ("open", "below"):
                assert (await finish(engine, child)).output == output
                assert (await engine.replay(child)).identical
            assert tools.effects == effects
        for store in stores:
            await store.close()

    run_async(main)


def test_a_fork_takes_what_it_needs_along(tmp_path: Path) -> None:
    """Copied or archived alone it is whole elsewhere: it loads, replays and goes on where its ancestors never were."""

    async def main() -> None:
        tools = Tools()
        stores: list[EventStore] = [open_store("ram:"), open_store(f"sqlite:///{tmp_path}/b.db"), open_store("ram:")]
        for store in stores:
            await store.open()
        async with make_engine(stores[0], tools) as engine:
            output, effects = await family(engine), tools.effects
        for name in ("ended", "open"):
            await moving.copy(stores[0], stores[1], name, move=name == "open")
        await moving.archive(stores[0], tmp_path, "ended")
        await moving.copy(stores[0], stores[1], "below", move=True)
        await moving.bring_back(stores[2], tmp_path / "ended.jsonl.gz")
        async with make_engine(stores[1], tools) as engine:
            await whole(engine, output, effects, tools)
        async with make_engine(stores[2], tools) as engine:
            assert (await engine.load("ended")).output == output
        for store in stores:
            await store.close()

    run_async(main)


def test_a_fork_without_its_parent_says_so() -> None:
    """Lines that were put somewhere without the run that they go on from, or beside another run of that id, are not resumed."""

    async def main() -> None:
        tools = Tools()
        async with make_engine("ram:", tools) as engine, make_engine("ram:", tools) as other:
            await family(engine)
            head = await engine.store.head("ended")
            assert head is not None
            await other.store.append("ended", 0, await engine.store.read("ended"), head=head)
            with pytest.raises(CorruptLog, match=r"continues from record \d+ of run 'parent', which is not in ram:; copy or import"):
                await other.resume("ended")
            await parent_of(other)
            with pytest.raises(CorruptLog, match="is not the one that it was branched from"):
                await other.resume("ended")

    run_async(main)


def test_erasing_a_parent_takes_its_content_from_its_forks() -> None:
    """Also copies that forks brought back with them, artifacts included; the chains still verify."""

    async def main() -> None:
        tools = Tools()
        async with make_engine("ram:", tools) as engine, make_engine("ram:", tools) as other:
            await family(engine)
            await moving.copy(engine.store, other.store, "parent")
            for name in ("ended", "below", "open"):
                await moving.copy(engine.store, other.store, name, move=True)
            assert PREFIX_BLOB in await other.store.list_blobs("below")
            await other.erase("parent")
            for name in ("ended", "below", "open"):
                with pytest.raises(RunErased):
                    await other.load(name)
                assert (await other.verify(name)).ok
                assert PREFIX_BLOB not in await other.store.list_blobs(name)
                assert [key for key in await other.store.list_blobs(name) if len(key) == 64] == []

    run_async(main)


def test_a_run_is_not_erased_while_somebody_advances_a_fork_of_it() -> None:
    """It has what is to be erased in its memory, and would write words of the goal again. Which fork it is, is said; once it rests all is erased."""

    async def main() -> None:
        place, tools = Place("ram", Path()), Tools()
        other = place.store()
        async with make_engine(place.store(), tools) as engine:
            await family(engine)
            await other.claim("below")
            with pytest.raises(RunBusy, match="run 'below', which continues from run 'ended', is being advanced"):
                await engine.erase("parent")
            for name in ("parent", "ended", "open", "below"):
                await engine.load(name)
                assert LEAVING not in await engine.store.list_blobs(name)
            await other.release("below")
            await engine.erase("parent")
            assert {head.goal for head in await engine.list_runs()} == {""}
        await place.close()

    run_async(main)


def test_what_goes_on_from_an_erased_run_says_so_and_can_be_erased_itself() -> None:
    """It is sound, it is read and resumed no more, a list says why, and what it has of its own can go, too."""

    async def main() -> None:
        place, tools, word = Place("ram", Path()), Tools(), "zyzzyva"
        async with make_engine(place.store(), tools) as engine:
            await family(engine)
            await engine.fork("parent", at=3, child_id="own", edits={"goal": f"find the {word}"}, resume=False)
            await engine.erase("parent")
            for name, goal in (("ended", ""), ("below", ""), ("own", f"find the {word}")):
                checked, head = await engine.verify(name), await engine.store.head(name)
                assert head is not None and (head.reason, head.goal) == ("parent_erased", goal)
                assert (checked.ok, checked.erased, checked.parent_erased) == (True, False, "parent"), checked
                with pytest.raises(RunErased, match=f"neither be read nor resumed.*detent erase {name if name != 'below' else 'ended'}"):
                    await engine.resume(name)
                with pytest.raises(RunErased):
                    await engine.store.post(name, Signal(id="s", kind="reply", payload={"reply": word}))
            assert (await engine.erase("own")).ids_with_goal_words == ()
            assert word.encode() not in b"".join(await engine.store.read("own"))
            checked, head = await engine.verify("own"), await engine.store.head("own")
            assert checked.ok and checked.erased and head is not None and (head.goal, head.reason) == ("", "erased")
            with pytest.raises(RunErased, match="run 'own' was erased"):
                await engine.erase("own")
        await place.close()

    run_async(main)


@pytest.mark.parametrize("at", range(1, 8))
def test_an_erasure_that_dies_at_any_write_is_done_again(at: int) -> None:
    """Whatever was done: the second attempt leaves no word of the goal, in no fork."""

    async def main() -> None:
        place, tools = Place("ram", Path()), Tools()
        async with make_engine(place.store(), tools) as engine:
            await family(engine)
        async with make_engine(CrashingStore(place.store(), at=at, operations=("put_blob", "append", "erase")), tools) as engine:
            with contextlib.suppress(Crash):
                await engine.erase("parent")
        await place.close()
        async with make_engine(place.store(), tools) as engine:
            with contextlib.suppress(RunErased):
                await engine.erase("parent")
            for head in await engine.list_runs():
                assert (head.goal, head.title) == ("", ""), head
                assert (await engine.verify(head.run_id)).ok
                assert LEAVING not in await engine.store.list_blobs(head.run_id)
        await place.close()

    run_async(main)


def test_an_erased_fork_leaves_its_parent_and_its_place_in_the_listing() -> None:
    """Its first record says whose it is, of which agent and run, in the envelope, which stays."""

    async def main() -> None:
        tools = Tools()
        async with make_engine("ram:", tools) as engine:
            output = await family(engine)
            await engine.erase("ended")
            envelope = read_record((await engine.store.read("ended", limit=1))[0]).envelope
            assert (envelope.parent, envelope.agent, envelope.goal_id) == ("parent", "worker", "parent")
            with pytest.raises(RunErased, match="'ended' was erased"):
                await engine.load("ended")
            with pytest.raises(RunErased):
                await engine.load("below")
            assert (await engine.load("parent")).output == output
            assert (await finish(engine, "open")).output == output

    run_async(main)


def test_an_outcome_that_comes_too_late_is_put_on_a_forks_log_too() -> None:
    """Another worker appended while the effect ran: the loser reads the fork again, with what it goes on from, and tells what happened."""

    async def main() -> None:
        from detent import FinalAnswer, ToolCall, View, tool
        from detent.clock import RandomIds, SystemClock
        from detent.core.errors import Conflict
        from detent.kernel.journal import Journal
        from detent.running.snapshots import load_run
        from detent.stores.ram import RamStore
        from laws.places import agent_of, engine_on

        store = RamStore()
        begun = asyncio.Event()

        @tool(side_effect="write")
        async def send(n: int) -> str:
            """Let somebody else append in the middle."""
            if n == 2:
                other = Journal(store.sibling(), await load_run(store, "child"), clock=SystemClock(), ids=RandomIds())
                other.record(e.RunResumed(worker="another"))
                await other.commit()
                begun.set()
            return f"sent {n}"

        def plan(view: View) -> Any:
            return ToolCall(tool="send", args={"n": view.iteration}) if view.iteration < 3 else FinalAnswer(content="done")

        async with engine_on(store, plan, [send]) as engine:
            first = await engine.run(agent_of("send"), "send", run_id="parent", turns=1)
            with pytest.raises(Conflict):
                await engine.fork("parent", at=first.state.seq, child_id="child", effects="redo")
            assert begun.is_set()
            late = (await engine.records("child"))[-1].event
            assert isinstance(late, e.ToolReconciled) and late.source == "late_worker" and late.call == "main.2.0"
            assert (await engine.resume("child")).output == "done"
            assert (await engine.replay("child")).identical

    run_async(main)


def test_effects_that_are_open_are_found_from_a_snapshot_as_from_the_whole_log() -> None:
    """Wherever the parent's last snapshot is; one that is not of this log is not believed."""

    async def main() -> None:
        from detent.core.errors import NotAllowedNow
        from detent.core.fold import evolve
        from detent.core.state import RunState
        from detent.history import forking
        from detent.running.snapshots import dump_snapshot
        from detent.stores.ram import RamStore

        tools = Tools()
        async with make_engine("ram:", tools) as engine:
            await parent_of(engine)
            records = await engine.records("parent")
            refused = open_at(records)
            lines = await engine.store.read("parent")
            states = [RunState(run_id="parent")]
            for record in records:
                states.append(evolve(states[-1], record))
            opened = dump_snapshot(states[min(refused)])
            for state in states[1:]:
                for data in (dump_snapshot(state), b"nonsense", opened):
                    store = RamStore()
                    await store.append("parent", 0, lines, head=(await engine.store.head("parent")))  # type: ignore[arg-type]
                    await store.put_snapshot("parent", state.seq, data)
                    for at in range(max(1, state.seq - 3), len(records) + 1):
                        try:
                            forking.refuse_open_effects("parent", at, await forking.look(store, "parent", at))
                        except NotAllowedNow:
                            assert at in refused
                        else:
                            assert at not in refused

    run_async(main)


@pytest.mark.parametrize("at", range(1, 12))
def test_a_removal_that_dies_at_any_write_is_done_again(at: int) -> None:
    """While it gives to the forks what they need: the parent is there still, the forks are whole, and the second attempt ends it."""

    async def main() -> None:
        place, tools = Place("ram", Path()), Tools()
        async with make_engine(place.store(), tools) as engine:
            output, effects = await family(engine), tools.effects
        async with make_engine(CrashingStore(place.store(), at=at, operations=("put_blob", "delete")), tools) as engine:
            with contextlib.suppress(Crash):
                await engine.delete("parent")
                await engine.delete("ended")
        await place.close()
        async with make_engine(place.store(), tools) as engine:
            for name in ("parent", "ended"):
                if await engine.store.head(name) is not None:
                    await engine.delete(name)
            for child in ("open", "below"):
                assert ((await finish(engine, child)).output, tools.effects) == (output, effects)
                assert (await engine.replay(child)).identical
        await place.close()

    run_async(main)


class Meanwhile(CrashingStore):
    """A store at which something else happens, once, around one of its operations on a run."""

    def __init__(self, inner: EventStore, operation: str, when: When) -> None:
        super().__init__(inner)
        self.operation, self.where = operation, when
        self.happens: Callable[[], Awaitable[Any]] | None = None

    async def _do(self, operation: str, call: Callable[[], Awaitable[T]]) -> T:
        happens = self.happens if operation == self.operation else None
        if happens is not None:
            self.happens = None
        if happens is not None and self.where == "before":
            await happens()
        answer = await super()._do(operation, call)
        if happens is not None and self.where == "after":
            await happens()
        return answer


async def _removed_beside_a_fork(place: Any, verb: str, operation: str, *, by: str, when: When) -> None:
    """Remove a run and fork it; one of them, `by`, does all that it does around one operation of the other."""
    tools = Tools()
    store = Meanwhile(place.store(), operation, when)
    async with make_engine(store, tools) as outer, make_engine(place.store(), tools) as inner:
        await parent_of(outer)
        refused: list[BaseException] = []
        left: list[RunBusy] = []

        async def fork(engine: Any) -> None:
            try:
                await engine.fork("parent", child_id="child", resume=False)
            except (NotAllowedNow, RunNotFound, RunErased) as error:
                refused.append(error)

        async def remove(engine: Any) -> None:
            if verb == "archive":
                await moving.archive(engine.store, place.directory, "parent")
            else:
                try:
                    await getattr(engine, verb)("parent")
                except RunBusy as error:  # a fork is just being made: nothing was erased
                    left.append(error)

        first, second = (remove, fork) if by == "fork" else (fork, remove)
        store.happens = lambda: second(inner)
        await first(outer)
        assert store.happens is None, "nothing happened meanwhile"
        if refused:
            assert await inner.store.head("child") is None, "a fork that was refused is not there"
            assert await inner.store.list_blobs("child") == []
        elif left:
            assert verb == "erase" and "continues from run 'parent'" in str(left[0])
            assert await inner.load("parent") and await inner.load("child")
        elif verb == "erase":
            assert (await inner.store.head("child")).goal == "", "words of an erased goal"
        else:
            await inner.load("child")
            assert (await inner.verify("child")).ok


RACES: tuple[tuple[str, str, When], ...] = (
    ("fork", "list_runs", "before"),
    ("fork", "list_runs", "after"),
    ("fork", "delete", "before"),
    ("fork", "erase", "before"),
    ("fork", "erase", "after"),
    ("removal", "append", "before"),
    ("removal", "append", "after"),
    ("removal", "get_blob", "after"),
)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("verb", ["delete", "archive", "erase"])
def test_a_run_that_is_removed_beside_a_fork_of_it_leaves_a_whole_fork_or_none(kind: str, verb: str, tmp_path: Path) -> None:
    """Wherever the one comes between the steps of the other. Otherwise there is a fork that nobody can load, or one with an erased goal's words."""

    async def main() -> None:
        for number, (by, operation, when) in enumerate(RACES):
            if by == "fork" and operation in ("delete", "erase") and (operation == "erase") != (verb == "erase"):
                continue
            directory = tmp_path / str(number)
            directory.mkdir()
            place = Place(kind, directory)
            await _removed_beside_a_fork(place, verb, operation, by=by, when=when)
            await place.close()

    run_async(main)


class Unsealed(Meanwhile):
    """Of which nobody knows what is durable: who forks a run has it made durable."""

    async def sealed(self, run_id: str) -> None:
        """See `EventStore.sealed`."""


def test_a_fork_beside_an_erasure_brings_no_word_of_the_goal_back() -> None:
    """It has read the parent's entry before that was erased, and makes the parent durable after: an append of nothing writes the entry again."""

    async def main() -> None:
        place, tools = Place("ram", Path()), Tools()
        erasing, forking_ = Meanwhile(place.store(), "erase", "before"), Unsealed(place.store(), "append", "before")
        reached, goes_on = asyncio.Event(), asyncio.Event()
        async with make_engine(erasing, tools) as remover, make_engine(forking_, tools) as forker:
            await parent_of(remover)

            async def pause() -> None:
                reached.set()
                await goes_on.wait()

            async def fork_until_it_appends() -> None:
                forks.append(asyncio.create_task(forker.fork("parent", at=20, child_id="child", resume=False)))
                await reached.wait()

            forks: list[asyncio.Task[Any]] = []
            erasing.happens, forking_.happens = fork_until_it_appends, pause
            await remover.erase("parent")
            goes_on.set()
            with pytest.raises(RunErased):
                await forks[0]
            head = await place.store().head("parent")
            assert head is not None and (head.goal, head.reason) == ("", "erased")
            assert (await remover.verify("parent")).ok
            assert await place.store().head("child") is None
        await place.close()

    run_async(main)


def test_a_removal_that_died_keeps_its_run_from_being_forked_until_it_is_collected() -> None:
    """Who forks it is told what to do; the mark does not go into copies of the run."""

    async def main() -> None:
        place, tools = Place("ram", Path()), Tools()
        async with make_engine(place.store(), tools) as engine:
            await parent_of(engine)
        async with make_engine(CrashingStore(place.store(), at=1, operations=("delete",)), tools) as engine:
            with contextlib.suppress(Crash):
                await engine.delete("parent")
        await place.close()
        async with make_engine(place.store(), tools) as engine:
            with pytest.raises(NotAllowedNow, match="gc") as refused:
                await engine.fork("parent", child_id="child", resume=False)
            assert refused.value.reason_code == "being_removed"
            assert LEAVING not in (await moving.take(engine.store, "parent")).blobs
            await engine.gc()
            await engine.fork("parent", child_id="child", resume=False)
            assert LEAVING not in await engine.store.list_blobs("child")
        await place.close()

    run_async(main)


@in_check
def test_forks_live_in_postgresql_too(postgres_url: str) -> None:
    """Made, taken on, compared and kept after their parent is gone."""

    async def main() -> None:
        tools = Tools()
        async with make_engine(postgres_url, tools) as engine:
            output, effects = await family(engine), tools.effects
            assert (await engine.diff("parent", "ended")).identical
            await engine.delete("parent")
            await whole(engine, output, effects, tools)

    run_async(main)
