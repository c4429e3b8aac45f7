"""Runs that move: between stores, into archives and back, byte for byte, and never two of one that can be advanced."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec
import pytest

from amounts import thinned
from detent.core.codec import read_log, seal, tombstone
from detent.core.errors import ConfigError, CorruptLog, NewerVersion, NotAllowedNow, RunBusy, RunNotFound
from detent.core.events import Forked
from detent.core.records import Envelope
from detent.history import moving
from detent.ports import EventStore, RunQuery, Signal
from detent.running.lineage import segments
from detent.stores import open_store
from detent.stores.ram import RamStore
from detent.testing.conformance.store_places import head_of
from detent.testing.faults import Crash, CrashingStore, When
from laws.places import agent_of, engine_on

pytestmark = thinned

HERE = Path(__file__).resolve().parent
KINDS = ("ram", "file", "sqlite", "postgresql")
FAR = datetime(2100, 1, 1, tzinfo=UTC)
SIGNAL = Signal(id="s", kind="cancel")


def url_of(kind: str, directory: Path, postgres_url: Callable[[], str]) -> str:
    """Return the URL of a store of this kind."""
    match kind:
        case "ram":
            return "ram:"
        case "file":
            return f"file:{directory}/logs"
        case "sqlite":
            return f"sqlite:///{directory}/runs.db"
        case _:
            return postgres_url()


async def finished(store: EventStore, run_id: str, *, turns: int | None = None) -> None:
    """Leave a run behind that reads, writes an artifact and answers; with `turns` it is not finished."""
    from detent import FinalAnswer, ToolCall, tool

    @tool(side_effect="read", max_result_bytes=100)
    async def big(n: int) -> list[str]:
        """Give more than the cap."""
        return [f"{run_id} ñ {k}" for k in range(n)]

    def plan(view: Any) -> Any:
        return ToolCall(tool="big", args={"n": 50 + view.iteration}) if view.iteration < 4 else FinalAnswer(content=f"done {run_id}")

    async with engine_on(store, plan, [big]) as engine:
        await engine.run(agent_of("big"), "work", run_id=run_id, turns=turns)


async def whole(store: EventStore, run_id: str) -> tuple[Any, ...]:
    """Return everything that a store holds of a run, signals included."""
    blobs = {key: await store.get_blob(run_id, key) for key in await store.list_blobs(run_id)}
    return await store.read(run_id), await store.head(run_id), blobs, await store.signals([run_id])


def with_stores(body: Callable[..., Coroutine[Any, Any, Any]], *urls: str) -> None:
    """Run the body of a test with open stores."""

    async def main() -> None:
        stores = [open_store(url) for url in urls]
        for store in stores:
            await store.open()
        try:
            await body(*stores)
        finally:
            for store in stores:
                await store.close()

    asyncio.run(main())


# From store to store --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kinds", [(a, b) for a in KINDS for b in KINDS if a != b or a == "sqlite"], ids="-to-".join)
def test_a_copy_is_the_run_byte_for_byte(kinds: tuple[str, str], tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """Lines, listing entry, artifacts and waiting signals; the copy folds, verifies and can be opened again; the original is as it was."""
    first, second = tmp_path / "a", tmp_path / "b"
    first.mkdir()
    second.mkdir()

    def postgres() -> str:
        return request.getfixturevalue("postgres_url")

    async def body(source: EventStore, target: EventStore) -> None:
        await finished(source, "run")
        await source.post("run", Signal(id="s", kind="reconcile", payload={"ñ": 1}))
        before = await whole(source, "run")
        moved = await moving.copy(source, target, "run")
        assert await whole(source, "run") == before == await whole(target, "run")
        assert (moved.records, moved.added, moved.removed) == (len(before[0]), len(before[0]), False)
        assert moved.blobs == len(before[2]) >= 3
        assert moved.digest == list(read_log("run", before[0]))[-1].digest
        assert (await moving.copy(source, target, "run")).added == 0
        async with engine_on(target, None) as engine:
            assert (await engine.load("run")).output == "done run"
            assert (await engine.verify("run", head=moved.digest)).ok

    with_stores(body, url_of(kinds[0], first, postgres), url_of(kinds[1], second, postgres))


def test_an_unfinished_run_is_moved_and_goes_on_there(tmp_path: Path) -> None:
    """A copy is refused, because two of it could be advanced; moved, it is gone here, and goes on there."""

    async def body(source: EventStore, target: EventStore) -> None:
        await finished(source, "run", turns=2)
        with pytest.raises(NotAllowedNow, match="--move"):
            await moving.copy(source, target, "run")
        assert await target.head("run") is None
        assert (await moving.copy(source, target, "run", move=True)).removed
        assert await source.head("run") is None
        await finished(target, "run")
        head = await target.head("run")
        assert head is not None
        assert head.status == "completed"

    with_stores(body, f"sqlite:///{tmp_path}/a.db", f"file:{tmp_path}/b")


def test_a_run_that_somebody_advances_is_not_moved(tmp_path: Path) -> None:
    """`RunBusy`, whether it is held where it is or where it should go, and nothing has changed."""

    async def body(source: EventStore, holder: EventStore, target: EventStore, there: EventStore) -> None:
        await finished(source, "run")
        for other in (holder, there):
            await other.claim("run")
            with pytest.raises(RunBusy):
                await moving.copy(source, target, "run", move=True)
            await other.release("run")
        assert (await source.head("run"), await target.head("run"))[1] is None
        await moving.copy(source, target, "run", move=True)

    a, b = f"sqlite:///{tmp_path}/a.db", f"sqlite:///{tmp_path}/b.db"
    with_stores(body, a, a, b, b)


def test_a_target_with_another_log_is_refused_unchanged(tmp_path: Path) -> None:
    """The message says at which record they part."""

    async def body(source: EventStore, target: EventStore) -> None:
        for store in (source, target):
            await finished(store, "run")
        before = await whole(target, "run")
        with pytest.raises(NotAllowedNow, match="differ from record 1"):
            await moving.copy(source, target, "run", move=True)
        assert await whole(target, "run") == before
        assert await source.head("run") is not None

    with_stores(body, f"sqlite:///{tmp_path}/a.db", f"sqlite:///{tmp_path}/b.db")


def test_a_copy_goes_on_with_what_is_there(tmp_path: Path) -> None:
    """The beginning of the log, and some artifacts, are there from an earlier attempt: the rest is added; more than the log is left alone."""

    async def body(source: EventStore, target: EventStore) -> None:
        await finished(source, "run")
        lines, head, blobs, _ = await whole(source, "run")
        await target.append("run", 0, lines[:3], head=msgspec.structs.replace(head, records=3))
        await target.put_blob("run", next(iter(blobs)), b"half")
        moved = await moving.copy(source, target, "run")
        assert (moved.added, await whole(target, "run")) == (len(lines) - 3, (lines, head, blobs, {}))
        async with engine_on(target, None) as engine:
            state = await engine.load("run")
            assert state.terminal

    with_stores(body, f"sqlite:///{tmp_path}/a.db", f"file:{tmp_path}/b")


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize(("which", "operation", "at"), [(1, "put_blob", 1), (1, "put_blob", 2), (1, "append", 1), (0, "delete", 1)])
def test_a_move_that_dies_at_any_write_is_finished_by_doing_it_again(which: int, operation: str, at: int, when: When) -> None:
    """Wherever it stops, the run is whole in at least one store, half of it nowhere, and the second attempt ends the move."""

    async def main() -> None:
        stores: list[EventStore] = [open_store("ram:"), open_store("ram:")]
        await finished(stores[0], "run", turns=3)
        before = await stores[0].read("run")
        dying = list(stores)
        dying[which] = CrashingStore(stores[which], at=at, when=when, operations=(operation,))
        with pytest.raises(Crash):
            await moving.copy(dying[0], dying[1], "run", move=True)
        there = [await store.read("run") for store in stores]
        assert before in there
        assert all(lines in ([], before) for lines in there)
        if there[0]:
            await moving.copy(stores[0], stores[1], "run", move=True)
        assert (await stores[0].head("run"), await stores[1].read("run")) == (None, before)

    asyncio.run(main())


def test_what_a_run_took_up_is_not_posted_again(tmp_path: Path) -> None:
    """A signal that the log has consumed stays consumed in the new store."""

    async def body(source: EventStore, target: EventStore) -> None:
        from detent import AskUser, FinalAnswer

        def plan(view: Any) -> Any:
            return AskUser(question="which?") if view.iteration == 1 else FinalAnswer(content="thanks")

        async with engine_on(source, plan) as engine:
            await engine.run(agent_of(), "ask", run_id="run")
            await engine.reply("run", "that one")
            state = await engine.load("run")
        assert state.terminal
        signals = [r.event.signal for r in read_log("run", await source.read("run")) if getattr(r.event, "signal", "")]  # type: ignore[union-attr]
        assert len(signals) == 1
        await moving.copy(source, target, "run", move=True)
        await target.post("run", Signal(id=signals[0], kind="reply"))
        assert await target.signals(["run"]) == {}

    with_stores(body, f"sqlite:///{tmp_path}/a.db", f"file:{tmp_path}/b")


def test_a_damaged_run_is_not_moved(tmp_path: Path) -> None:
    """`CorruptLog` before anything is written; an unknown run is `RunNotFound`; a store is not copied to itself."""

    async def body(source: EventStore, target: EventStore) -> None:
        await finished(source, "run")
        lines, head, _, _ = await whole(source, "run")
        await source.append("bad", 0, [*lines[:2], lines[3]], head=head)
        with pytest.raises(CorruptLog):
            await moving.copy(source, target, "bad")
        with pytest.raises(RunNotFound):
            await moving.copy(source, target, "nowhere")
        with pytest.raises(ConfigError, match="itself"):
            await moving.copy(source, source, "run")
        assert await target.list_runs(RunQuery()) == []

    with_stores(body, f"sqlite:///{tmp_path}/a.db", f"file:{tmp_path}/b")


def test_an_erased_run_moves_as_its_tombstones(tmp_path: Path) -> None:
    """The chain verifies in the other store, and there is still nothing of its content."""

    async def body(source: EventStore, target: EventStore) -> None:
        await finished(source, "run")
        async with engine_on(source, None) as engine:
            await engine.erase("run")
        moved = await moving.copy(source, target, "run", move=True)
        lines = await target.read("run")
        assert lines == [tombstone(line) for line in lines]
        assert moved.digest == list(read_log("run", lines))[-1].digest

    with_stores(body, f"sqlite:///{tmp_path}/a.db", f"file:{tmp_path}/b")


# Archives -------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["file", "sqlite", "postgresql"])
def test_finished_runs_are_archived_removed_and_brought_back(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """Each is one compressed file; runs that are open or younger stay; what comes back is what left, byte for byte."""

    async def body(store: EventStore) -> None:
        for name in ("old", "older", "open"):
            await finished(store, name, turns=1 if name == "open" else None)
        before = {name: await whole(store, name) for name in ("old", "older")}
        assert [m async for m in moving.archive_before(store, tmp_path / "out", datetime.now(UTC) - timedelta(days=1))] == []
        done = [m async for m in moving.archive_before(store, tmp_path / "out", FAR)]
        assert [m.run_id for m in done if isinstance(m, moving.Moved)] == ["old", "older"]
        assert [head.run_id for head in await store.list_runs(RunQuery())] == ["open"]
        assert await store.list_blobs("old") == []
        archives = moving.archives_in(tmp_path / "out")
        assert [path.name for path in archives] == ["old.jsonl.gz", "older.jsonl.gz"]
        for path in archives:
            assert (await moving.bring_back(store, path)).added > 0
            assert (await moving.bring_back(store, path)).added == 0
        assert {name: await whole(store, name) for name in before} == before

    with_stores(body, url_of(kind, tmp_path, lambda: request.getfixturevalue("postgres_url")))


def test_an_archive_is_lines_that_people_can_read(tmp_path: Path) -> None:
    """A manifest, then the records exactly as they were stored, then the artifacts."""

    async def body(store: EventStore) -> None:
        await finished(store, "run")
        lines = await store.read("run")
        await moving.archive(store, tmp_path, "run")
        text = gzip.decompress((tmp_path / "run.jsonl.gz").read_bytes()).split(b"\n")
        manifest = msgspec.json.decode(text[0])
        assert (manifest["detent_archive"], manifest["records"], manifest["head"]["run_id"]) == (1, len(lines), "run")
        assert text[1 : len(lines) + 1] == lines
        assert len(text) == 1 + len(lines) + len(manifest["blobs"]) + 1

    with_stores(body, "ram:")


def test_archiving_that_was_interrupted_before_the_removal_is_done_again(tmp_path: Path) -> None:
    """The file is there and the run, too, perhaps grown since: the file is written anew and the run removed. Another run's file is kept."""

    async def body(store: EventStore, other: EventStore) -> None:
        await finished(store, "run")
        held = await moving.take(store, "run")
        end = list(read_log("run", held.lines[:-2]))[-1]
        last = end.envelope
        head = msgspec.structs.replace(held.head, records=last.seq, status=last.status or "running", reason=last.reason, updated_at=last.at)
        early = msgspec.structs.replace(held, head=head, lines=held.lines[:-2], digest=end.digest)
        moving.write_archive(tmp_path / "run.jsonl.gz", early)
        await moving.archive(store, tmp_path, "run")
        assert moving.read_archive(tmp_path / "run.jsonl.gz") == held
        await finished(other, "run")
        with pytest.raises(NotAllowedNow, match="another run"):
            await moving.archive(other, tmp_path, "run")
        assert await other.head("run") is not None
        assert moving.read_archive(tmp_path / "run.jsonl.gz") == held

    with_stores(body, f"sqlite:///{tmp_path}/a.db", f"sqlite:///{tmp_path}/b.db")


def test_an_unfinished_run_is_not_archived() -> None:
    """It says how it stands, and nothing is written or removed."""

    async def body(store: EventStore) -> None:
        await finished(store, "run", turns=1)
        with pytest.raises(NotAllowedNow, match="running"):
            await moving.archive(store, HERE / "nowhere", "run")
        assert await store.head("run") is not None
        assert not (HERE / "nowhere").exists()

    with_stores(body, "ram:")


def test_an_archive_of_a_run_that_is_not_finished_is_not_imported(tmp_path: Path) -> None:
    """Nobody made it by archiving, and the run may still go on elsewhere: there would be two of it."""

    async def body(store: EventStore, other: EventStore) -> None:
        await finished(store, "run", turns=1)
        path = moving.archive_path(tmp_path, "run")
        moving.write_archive(path, await moving.take(store, "run"))
        with pytest.raises(NotAllowedNow, match=r"which is running.*copy --move"):
            await moving.bring_back(other, path)
        assert await other.head("run") is None

    with_stores(body, "ram:", "ram:")


def test_what_does_not_arrive_as_it_left_is_not_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A store that gives back something else than was written to it, and a file that holds something else: the run stays where it is."""

    class Forgetful(RamStore):
        async def read(self, run_id: str, *, after: int = 0, limit: int | None = None) -> list[bytes]:
            return (await super().read(run_id, after=after, limit=limit))[:-1]

    real = moving.write_archive
    monkeypatch.setattr(moving, "write_archive", lambda path, held: real(path, msgspec.structs.replace(held, signals=(SIGNAL,))))

    async def body(store: EventStore) -> None:
        await finished(store, "run")
        target = Forgetful()
        await target.open()
        with pytest.raises(CorruptLog, match="does not return what was written"):
            await moving.copy(store, target, "run", move=True)
        with pytest.raises(CorruptLog, match="does not return what was written"):
            await moving.archive(store, tmp_path, "run")
        assert await store.head("run") is not None

    with_stores(body, f"sqlite:///{tmp_path}/runs.db")


def test_a_run_that_was_changed_after_the_date_is_not_archived(tmp_path: Path) -> None:
    """Whenever it was started; one whose last change was before is."""

    async def body(store: EventStore) -> None:
        for name in ("1-first", "2-second"):
            await finished(store, name)
        first, second = await store.head("1-first"), await store.head("2-second")
        assert first is not None and second is not None
        between = second.created_at + (second.updated_at - second.created_at) / 2
        assert first.updated_at < between
        done = [what.run_id async for what in moving.archive_before(store, tmp_path / "out", between)]  # type: ignore[union-attr]
        assert done == ["1-first"] and await store.head("2-second") is not None

    with_stores(body, "ram:")


def test_one_run_that_cannot_be_archived_keeps_no_other_from_it(tmp_path: Path) -> None:
    """One is damaged, one is held by somebody: each is left with the reason, and those after it are archived."""

    async def body(store: EventStore) -> None:
        for name in ("1-damaged", "2-whole", "3-held", "4-whole"):
            await finished(store, name)
        lines = await store.read("1-damaged")
        head = await store.head("1-damaged")
        assert head is not None
        await store.delete("1-damaged")
        await store.append("1-damaged", 0, [*lines[:-1], lines[-1].replace(b"run_finished", b"run_fiNished")], head=head)
        other = open_store(store.url)
        await other.open()
        await other.claim("3-held")
        became = {what.run_id: type(what).__name__ async for what in moving.archive_before(store, tmp_path / "out", FAR)}  # type: ignore[union-attr]
        assert became == {"1-damaged": "CorruptLog", "2-whole": "Moved", "3-held": "RunBusy", "4-whole": "Moved"}
        assert sorted(head.run_id for head in await store.list_runs(RunQuery())) == ["1-damaged", "3-held"]
        await other.close()

    with_stores(body, f"sqlite:///{tmp_path}/runs.db")


async def fork_of(store: EventStore, parent: str, name: str) -> None:
    """Leave a run behind that was branched from the third record of `parent`."""
    digest = list(read_log(parent, await store.read(parent)))[2].digest
    body = msgspec.json.encode(Forked(parent=parent, sequence=3, digest=digest))
    stored, _ = seal(Envelope(run=name, seq=1, at=datetime(2026, 1, 1, tzinfo=UTC)), body, previous="", salt="salt")
    await store.append(name, 0, [stored], head=head_of(name, 1, parent=parent))


@pytest.mark.parametrize("how", ["move", "archive"])
def test_forks_are_given_what_they_refer_to_before_a_run_is_removed(how: str, tmp_path: Path) -> None:
    """A fork still finds the records that it goes on from when the run has been moved away or archived."""

    async def body(store: EventStore, target: EventStore) -> None:
        await finished(store, "run")
        beginning = (await store.read("run"))[:3]
        await fork_of(store, "run", "branch")
        if how == "move":
            await moving.copy(store, target, "run", move=True)
        else:
            await moving.archive(store, tmp_path / "out", "run")
        assert await store.head("run") is None
        found = await segments(store, "branch", await store.read("branch"))
        assert [(one.run_id, list(one.lines[: one.used])) for one in found] == [("run", beginning)]

    with_stores(body, f"sqlite:///{tmp_path}/a.db", f"file:{tmp_path}/b")


def test_a_fork_that_is_moved_takes_along_what_it_refers_to(tmp_path: Path) -> None:
    """In the other store, where its parent is not, it finds the records that it goes on from."""

    async def body(store: EventStore, target: EventStore) -> None:
        await finished(store, "run")
        beginning = (await store.read("run"))[:3]
        await fork_of(store, "run", "branch")
        await moving.copy(store, target, "branch", move=True)
        assert await target.head("run") is None
        found = await segments(target, "branch", await target.read("branch"))
        assert [(one.run_id, list(one.lines[: one.used])) for one in found] == [("run", beginning)]

    with_stores(body, f"sqlite:///{tmp_path}/a.db", f"file:{tmp_path}/b")


def _changed(manifest: dict[str, Any], field: str) -> dict[str, Any]:
    """Return a manifest in whose listing entry one thing is another."""
    changed = {"status": "failed", "iterations": 10**30, "created_at": "2026-01-01T00:00:00", "updated_at": "0001-01-01T00:00:00Z"}
    return {**manifest, "head": {**manifest["head"], field: changed.get(field, "other")}}


def _damaged(data: bytes, how: str) -> bytes:
    lines = gzip.decompress(data).split(b"\n")
    match how:
        case "cut":
            return data[: len(data) // 2]
        case "no gzip":
            return b"plain text"
        case "newer":
            lines[0] = lines[0].replace(b'"detent_archive":1', b'"detent_archive":2')
        case "manifest":
            lines[0] = b'{"something":"else"}'
        case "record":
            lines[2] = lines[2].replace(b"run", b"ruN", 1)
        case "missing record":
            del lines[2]
        case "tenant" | "goal_id" | "status" | "parent" | "iterations" | "created_at" | "updated_at":
            lines[0] = msgspec.json.encode(_changed(msgspec.json.decode(lines[0]), how))
        case "nothing":
            manifest = {**msgspec.json.decode(lines[0]), "records": 0, "records_sha256": sha256(b"").hexdigest(), "digest": "", "blobs": {}}
            lines = [msgspec.json.encode(manifest), b""]
        case "digest":
            lines[0] = msgspec.json.encode({**msgspec.json.decode(lines[0]), "digest": "0" * 64})
        case "version 0":
            lines[0] = lines[0].replace(b'"detent_archive":1', b'"detent_archive":0')
        case "artifact":
            lines[-2] = lines[-2].replace(b'"data":"', b'"data":"AAAA')
        case _:
            del lines[-2]
    return gzip.compress(b"\n".join(lines))


@pytest.mark.parametrize(
    ("how", "error"),
    [
        ("cut", ConfigError),
        ("no gzip", ConfigError),
        ("newer", NewerVersion),
        ("manifest", ConfigError),
        ("record", CorruptLog),
        ("missing record", CorruptLog),
        ("artifact", CorruptLog),
        ("missing artifact", CorruptLog),
        ("tenant", CorruptLog),
        ("goal_id", CorruptLog),
        ("status", CorruptLog),
        ("parent", CorruptLog),
        ("iterations", CorruptLog),
        ("created_at", CorruptLog),
        ("updated_at", CorruptLog),
        ("nothing", CorruptLog),
        ("digest", CorruptLog),
        ("version 0", ConfigError),
    ],
)
def test_a_damaged_archive_is_refused_and_nothing_is_imported(how: str, error: type[Exception], tmp_path: Path) -> None:
    """Whatever part of the file was changed, what is wrong with which file is said."""

    async def body(store: EventStore) -> None:
        await finished(store, "run")
        await moving.archive(store, tmp_path, "run")
        path = tmp_path / "run.jsonl.gz"
        path.write_bytes(_damaged(path.read_bytes(), how))
        with pytest.raises(error, match=r"run\.jsonl\.gz"):
            await moving.bring_back(store, path)
        assert await store.list_runs(RunQuery()) == []

    with_stores(body, "ram:")


def test_archives_of_every_released_version_can_be_imported() -> None:
    """The golden files, one a version of the format, written by that version."""
    golden = sorted((HERE / "golden").glob("*.jsonl.gz"))
    assert len(golden) >= 1

    async def body(store: EventStore) -> None:
        for path in golden:
            moved = await moving.bring_back(store, path)
            async with engine_on(store, None) as engine:
                state = await engine.load(moved.run_id)
                assert (state.status, state.output) == ("completed", f"done {moved.run_id}")
                assert (await engine.verify(moved.run_id)).ok

    with_stores(body, "ram:")


def test_what_names_no_archive_is_said(tmp_path: Path) -> None:
    """A missing file, and a directory without any."""
    with pytest.raises(ConfigError, match="no archive"):
        moving.read_archive(tmp_path / "none.jsonl.gz")
    with pytest.raises(ConfigError, match="no archive"):
        moving.archives_in(tmp_path)
