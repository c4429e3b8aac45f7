"""The accounts of the file store: a line beside the log for each append, right whatever a process died of between the two."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

from detent.core.errors import StoreFull
from detent.ports import Reservation, RunQuery, Spent
from detent.stores.files import logs as file_logs
from detent.stores.files.spent import Ledger
from detent.stores.files.store import FileStore
from detent.testing.conformance.store_places import head_of, line

DAY = "2026-03-01"
ONE = Spent(tenant="acme", day=DAY, tool_calls=1, cost_usd=0.5)


def on_store(path: Path, body: Callable[[FileStore], Awaitable[None]]) -> None:
    async def main() -> None:
        store = FileStore(path)
        await store.open()
        await body(store)
        await store.close()

    asyncio.run(main())


def test_an_append_that_came_to_nothing_after_its_charge_is_charged_once_when_it_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when the disk is full, or the process dies, between the account and the log; also for a reader that saw the first line."""
    whole = file_logs.write_all

    def full(fd: int, data: bytes, offset: int) -> None:
        raise OSError(28, "No space left on device")

    async def body(store: FileStore) -> None:
        await store.append("run", 0, [line(1)], head=head_of("run", 1), spent=ONE)
        for _ in range(3):
            monkeypatch.setattr(file_logs, "write_all", full)
            with pytest.raises(StoreFull):
                await store.append("run", 1, [line(2)], head=head_of("run", 2), spent=ONE)
            assert (await store.spent("acme", DAY)).tool_calls == 2, "at worst too early, never forgotten"
        monkeypatch.setattr(file_logs, "write_all", whole)
        await store.append("run", 1, [line(2)], head=head_of("run", 2), spent=ONE)
        await store.append("run", 2, [line(3)], head=head_of("run", 3), spent=ONE)
        assert await store.spent("acme", DAY) == Spent(tenant="acme", day=DAY, tool_calls=3, cost_usd=1.5)

    on_store(tmp_path / "logs", body)


def test_a_charge_of_a_dead_process_is_taken_back_by_an_append_that_charges_nothing(tmp_path: Path) -> None:
    """The process that resumes the run begins with a record of that. A run whose processes die again and again would else be charged each time."""
    path, day = tmp_path / "logs", datetime.fromisoformat(f"{DAY}T12:00:00+00:00")
    of = partial(head_of, "run", tenant="acme", updated_at=day)

    async def before(store: FileStore) -> None:
        await store.append("run", 0, [line(1)], head=of(1), spent=ONE)
        await store.append("run", 1, [line(2)], head=of(2))

    async def after(store: FileStore) -> None:
        Ledger(path / ".spent").add(of(3), 2, ONE, durable=False)  # and then it died
        assert (await store.spent("acme", DAY)).tool_calls == 2
        await store.append("run", 2, [line(3)], head=of(3))
        assert (await store.spent("acme", DAY)).tool_calls == 1
        await store.append("run", 3, [line(4)], head=of(4), spent=ONE)
        await store.append("run", 4, [line(5)], head=of(5))
        assert (await store.spent("acme", DAY)).tool_calls == 2

    on_store(path, before)
    on_store(path, after)


def test_half_a_line_that_a_dying_process_left_spoils_nothing(tmp_path: Path) -> None:
    """It counts for nothing, and the line after it stands alone."""
    path = tmp_path / "logs"

    async def before(store: FileStore) -> None:
        await store.append("run", 0, [line(1)], head=head_of("run", 1), spent=ONE)

    async def after(store: FileStore) -> None:
        (file,) = (path / ".spent" / "acme").iterdir()
        with file.open("ab") as torn:
            torn.write(b'\n["run 2026",1,0,0')
        assert (await store.spent("acme", DAY)).tool_calls == 1
        await store.append("run", 1, [line(2)], head=head_of("run", 2), spent=ONE)
        assert (await store.spent("acme", DAY)).tool_calls == 2

    on_store(path, before)
    on_store(path, after)


def test_accounts_are_readable_by_their_owner_alone_and_no_runs(tmp_path: Path) -> None:
    """Whatever a tenant is called, its file lies below the store's directory; listings and `gc` leave it alone."""
    path = tmp_path / "logs"

    async def body(store: FileStore) -> None:
        for n, tenant in enumerate(("../../evil", "a/b", "", "ü" * 90)):
            await store.append(f"r{n}", 0, [line(1)], head=head_of(f"r{n}", 1), spent=Spent(tenant=tenant, day=DAY, runs=1))
        await store.gc()
        assert len(await store.list_runs(RunQuery())) == 4
        for tenant in ("../../evil", "a/b", "", "ü" * 90):
            assert (await store.spent(tenant, DAY)).runs == 1

    on_store(path, body)
    files: list[Any] = [file for file in path.rglob("*.jsonl") if ".spent" in file.parts]
    assert len(files) == 4
    assert {file.stat().st_mode & 0o777 for file in files} == {0o600}
    assert [entry.name for entry in tmp_path.iterdir()] == ["logs"]


RESERVING = Reservation(run_id="run", tenant="acme", since=DAY, amounts={"a": ONE}, limits={"tool_calls": 2}, lasts_s=30)


@pytest.mark.parametrize("torn", [b"", b'[["other","a",9', b"\xff\xfe", b'[["\xff","a",9e9,{}]]', b"{}"])
def test_a_torn_list_of_reservations_is_dropped_and_said_once(torn: bytes, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """As a power cut may leave it: whoever reserves, gives back or deletes goes on."""
    path = tmp_path / "logs"

    async def body(store: FileStore) -> None:
        await store.reserve(RESERVING)
        (path / ".reserved" / "reserved.json").write_bytes(torn)
        nothing = msgspec.structs.replace(RESERVING, amounts={})
        for _ in range(2):
            assert (await store.reserve(nothing)).granted
        assert len(caplog.records) == 1
        assert "reserved.json cannot be read" in caplog.records[0].getMessage()
        assert (await store.reserve(RESERVING)).granted
        (path / ".reserved" / "reserved.json").write_bytes(torn)
        await store.append("run", 0, [line(1)], head=head_of("run", 1), spent=ONE, released=["a"])
        assert len(await store.read("run")) == 1
        assert len(caplog.records) == 2

    on_store(path, body)


def test_an_append_that_is_written_succeeds_whatever_becomes_of_giving_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it had reserved lapses."""

    def full(*_: Any, **__: Any) -> None:
        raise StoreFull("no space")

    async def body(store: FileStore) -> None:
        await store.reserve(msgspec.structs.replace(RESERVING, amounts={"a": ONE, "b": ONE}))
        monkeypatch.setattr("detent.stores.files.reserved.replace_file", full)
        await store.append("run", 0, [line(1)], head=head_of("run", 1), spent=ONE, released=["a"])
        assert len(await store.read("run")) == 1

    on_store(tmp_path / "logs", body)
