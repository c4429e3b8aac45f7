"""Archives that an older version wrote are imported for ever: the bytes stay, the chain verifies, the fold is what it was."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from detent.cli.main import run as detent
from detent.core import codec
from detent.core.codec import links, read_log, seal
from detent.core.errors import CorruptLog, NewerVersion
from detent.core.records import VERSION, Envelope
from detent.core.state import RunState
from detent.engine import Engine
from detent.history.moving import ARCHIVE_VERSION, Held, archive, bring_back, read_archive, write_archive
from detent.running.states import dump_state, load_state
from detent.stores import open_store
from detent.stores.ram import RamStore
from history.golden_archive import GOLDEN_DIR, RUN

replace = msgspec.structs.replace
OLD_NAMES = {"run_started": ("goal", "task"), "tool_finished": ("result", "value"), "planned": ("actions", "moves")}
"""The made-up version 0: what some events called their fields, by their present names."""


def golden(version: int) -> Path:
    """Return the golden archive of a version."""
    return GOLDEN_DIR / f"archive-v{version}.jsonl.gz"


def expected(version: int = ARCHIVE_VERSION) -> bytes:
    """Return the state that the golden archive folds to."""
    return golden(version).with_name(f"archive-v{version}.state.txt").read_bytes().rstrip(b"\n")


def unpacked(path: Path) -> bytes:
    """Return the lines of an archive; how they are compressed may change with the library."""
    return gzip.decompress(path.read_bytes())


def resealed(held: Held, version: int, body: Callable[[dict[str, Any]], dict[str, Any]]) -> Held:
    """Return the run as if another version had written it: other envelopes and bodies, a chain of its own."""
    lines, digest = list[bytes](), ""
    for n, (head, stored, _) in enumerate(links(RUN, held.lines)):
        envelope = replace(msgspec.json.decode(head, type=Envelope), v=version)
        data = msgspec.json.encode(body(msgspec.json.decode(stored or b"{}")))
        line, digest = seal(envelope, data, previous=digest, salt=f"{n:016d}")
        lines.append(line)
    return replace(held, lines=tuple(lines), digest=digest)


def renamed(data: dict[str, Any], *, back: bool = False) -> dict[str, Any]:
    """Return a body of this version as version 0 had it, or the other way round."""
    names = OLD_NAMES.get(data["type"])
    old, new = (names[::-1] if back else names) if names else ("", "")
    return {new if name == old else name: value for name, value in data.items()}


def with_store(url: str, body: Callable[[Any], Awaitable[None]]) -> None:
    """Do `body` with an open store."""

    async def main() -> None:
        store: Any = RamStore() if url == "ram:" else open_store(url)
        await store.open()
        try:
            await body(store)
        finally:
            await store.close()

    asyncio.run(main())


@pytest.mark.parametrize("version", range(1, ARCHIVE_VERSION + 1))
@pytest.mark.parametrize("kind", ["ram", "file", "sqlite", "postgresql"])
def test_the_golden_archive_of_each_version_is_imported_and_given_back(
    kind: str, version: int, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Lines and artifacts byte for byte, the state that was stored with it; archived again it is the same archive."""
    url = {"ram": "ram:", "file": f"file:{tmp_path}/runs", "sqlite": f"sqlite:///{tmp_path}/runs.db"}.get(kind) or request.getfixturevalue(
        "postgres_url"
    )
    stored = unpacked(golden(version)).split(b"\n")

    async def body(store: Any) -> None:
        moved = await bring_back(store, golden(version))
        lines = await store.read(RUN)
        assert lines == stored[1 : moved.records + 1]
        engine = Engine(store=store)
        assert (await engine.verify(RUN, head=moved.digest)).ok
        state = await engine.load(RUN)
        assert dump_state(state) == expected(version)
        item = state.passes["main"].results[0]
        assert item.artifact is not None
        assert len(msgspec.json.decode(await store.get_blob(RUN, item.artifact.key) or b"")) == 40
        assert (await bring_back(store, golden(version))).added == 0
        await archive(store, tmp_path, RUN)
        assert unpacked(tmp_path / f"{RUN}.jsonl.gz") == unpacked(golden(version))

    with_store(url, body)


def test_there_is_a_golden_archive_of_every_version() -> None:
    """A version without one would not be guarded."""
    there = {path.name for path in GOLDEN_DIR.glob("archive-*")}
    assert there == {f"archive-v{v}.{end}" for v in range(1, ARCHIVE_VERSION + 1) for end in ("jsonl.gz", "state.txt")}


def test_an_archive_with_records_of_an_older_version_is_imported_end_to_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    """With its upcaster: the chain over the stored bytes verifies, the fold is that of today, and `export` gives back the old bytes."""
    monkeypatch.setitem(codec.UPCASTERS, VERSION - 1, lambda data: renamed(data, back=True))
    old = resealed(read_archive(golden(ARCHIVE_VERSION)), VERSION - 1, renamed)
    assert b'"task":"keep a run"' in old.lines[0]
    assert b'"v":0' in old.lines[0]
    write_archive(path := tmp_path / f"{RUN}.jsonl.gz", old)
    url = f"sqlite:///{tmp_path}/runs.db"
    assert detent(["import", str(path), "--store", url]) == 0
    assert detent(["verify", RUN, "--head", old.digest, "--store", url]) == 0
    capfdbinary.readouterr()
    assert detent(["export", RUN, "--store", url]) == 0
    assert capfdbinary.readouterr().out.splitlines() == list(old.lines)
    assert detent(["show", RUN, "-v", "--store", url]) == 0
    assert "put a" in capfdbinary.readouterr().out.decode()

    async def body(store: Any) -> None:
        state = await Engine(store=store).load(RUN)
        assert replace(state, digest="") == replace(load_state(expected(), RunState), digest="")
        assert state.digest == old.digest
        await archive(store, tmp_path / "again", RUN)
        assert unpacked(tmp_path / "again" / f"{RUN}.jsonl.gz") == unpacked(path)

    with_store(url, body)


def test_records_that_no_upcaster_reads_and_those_of_a_newer_version_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the version that they have, before anything is written; an upcaster that does not fit damages nothing."""
    held = read_archive(golden(ARCHIVE_VERSION))

    async def body(store: Any) -> None:
        write_archive(path := tmp_path / "older.jsonl.gz", resealed(held, VERSION - 1, renamed))
        with pytest.raises(CorruptLog, match=f"format {VERSION - 1} is older than any that this Detent reads"):
            await bring_back(store, path)
        with monkeypatch.context() as patch:
            patch.setitem(codec.UPCASTERS, VERSION - 1, lambda data: {**data, "goal": data["words"]})
            with pytest.raises(CorruptLog, match="words"):
                await bring_back(store, path)
        write_archive(path := tmp_path / "newer.jsonl.gz", resealed(held, VERSION + 1, lambda data: data))
        with pytest.raises(NewerVersion, match=f"format {VERSION + 1} was written by a newer Detent"):
            await bring_back(store, path)
        lines = unpacked(golden(ARCHIVE_VERSION)).split(b"\n")
        manifest = {**msgspec.json.decode(lines[0]), "detent_archive": ARCHIVE_VERSION + 1}
        (path := tmp_path / "manifest.jsonl.gz").write_bytes(gzip.compress(b"\n".join([msgspec.json.encode(manifest), *lines[1:]])))
        with pytest.raises(NewerVersion, match=f"archive version {ARCHIVE_VERSION + 1}"):
            await bring_back(store, path)
        assert await store.head(RUN) is None

    with_store("ram:", body)


def test_every_event_of_an_older_version_comes_through_an_upcaster(monkeypatch: pytest.MonkeyPatch) -> None:
    """Results, times and actions are what they were, whatever the event: an upcaster works on plain data."""
    monkeypatch.setitem(codec.UPCASTERS, VERSION - 1, lambda data: data)
    seen: set[str] = set()
    for path in GOLDEN_DIR.glob(f"v{VERSION}-*.jsonl"):
        lines = path.read_bytes().splitlines()
        run_id = codec.read_record(lines[0]).envelope.run
        for record, line in zip(read_log(run_id, lines), lines, strict=True):
            old = line.replace(b'"seq"', b'"v":%d,"seq"' % (VERSION - 1), 1)
            again = codec.read_record(old)
            assert (again.envelope.v, again.event) == (VERSION - 1, record.event), line
            seen.add(type(record.event).__name__)
    assert len(seen) > 40
