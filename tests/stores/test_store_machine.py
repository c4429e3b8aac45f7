"""Any sequence of operations leaves a store as it leaves a dict of lists, also when it is closed and opened again between them."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Awaitable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from amounts import times
from detent.core.errors import Conflict, RunNotFound
from detent.core.records import RunHead
from detent.ports import EventStore, RunQuery, Signal
from detent.stores import open_store

START = datetime(2026, 1, 1, tzinfo=UTC)
RUNS = st.sampled_from(["a", "b", "c.d", "E-1"])
IDS = st.sampled_from(["s1", "s2", "ñ"])
LINES = st.lists(st.dictionaries(st.text(max_size=3), st.text(max_size=5), max_size=2), min_size=1, max_size=4)


class StoreMachine(RuleBasedStateMachine):
    """One store against plain dicts."""

    scheme = "ram:"

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.records: dict[str, list[bytes]] = {}
        self.heads: dict[str, RunHead] = {}
        self.inboxes: dict[str, dict[str, Signal]] = {}
        self.spent: dict[str, set[str]] = {}
        self.blobs: dict[str, dict[str, bytes]] = {}
        self.directory = Path(tempfile.mkdtemp())
        self.store: EventStore

    def do(self, action: Awaitable[Any]) -> Any:
        return self.loop.run_until_complete(action)

    @initialize()
    def begin(self) -> None:
        self.store = open_store(self.scheme.format(self.directory))
        self.do(self.store.open())

    @rule(
        run=RUNS,
        lines=LINES,
        durable=st.booleans(),
        consumed=st.lists(IDS, max_size=2),
        off=st.sampled_from([0, 0, 0, 1, -1]),
        iteration=st.integers(0, 9),
    )
    def append(self, run: str, lines: list[dict[str, str]], durable: bool, consumed: list[str], off: int, iteration: int) -> None:
        there = self.records.get(run, [])
        expected = max(0, len(there) + off)
        encoded = [msgspec.json.encode(line) for line in lines]
        head = RunHead(run_id=run, goal_id=run, iterations=iteration, records=expected + len(lines), created_at=START, updated_at=START)
        attempt = self.store.append(run, expected, encoded, head=head, durable=durable, consumed=consumed)
        if expected != len(there):
            with pytest.raises(Conflict):
                self.do(attempt)
            return
        self.do(attempt)
        self.records[run] = [*there, *encoded]
        self.heads[run] = head
        for signal_id in consumed:
            self.inboxes.setdefault(run, {}).pop(signal_id, None)
            self.spent.setdefault(run, set()).add(signal_id)

    @rule(run=RUNS, signal_id=IDS)
    def post(self, run: str, signal_id: str) -> None:
        signal = Signal(id=signal_id, kind="reply", payload={"run": run})
        if run not in self.records:
            with pytest.raises(RunNotFound):
                self.do(self.store.post(run, signal))
            return
        self.do(self.store.post(run, signal))
        if signal_id not in self.spent.get(run, ()):
            self.inboxes.setdefault(run, {}).setdefault(signal_id, signal)

    @rule(run=RUNS, key=st.sampled_from(["k", "../k", ""]), data=st.binary(max_size=9))
    def put_blob(self, run: str, key: str, data: bytes) -> None:
        self.do(self.store.put_blob(run, key, data))
        self.blobs.setdefault(run, {})[key] = data

    @rule(run=RUNS, key=st.sampled_from(["k", "../k"]))
    def delete_blob(self, run: str, key: str) -> None:
        self.do(self.store.delete_blob(run, key))
        self.blobs.get(run, {}).pop(key, None)

    @rule(run=RUNS)
    def erase(self, run: str) -> None:
        if run not in self.records:
            return
        head = RunHead(run_id=run, goal_id="erased", records=len(self.records[run]), created_at=START, updated_at=START)
        self.do(self.store.erase(run, lambda line: b'{"length":%d}' % len(line), head=head))
        self.records[run] = [b'{"length":%d}' % len(line) for line in self.records[run]]
        self.heads[run] = head
        self.spent.setdefault(run, set()).update(self.inboxes.pop(run, {}))
        self.blobs.pop(run, None)

    @rule(run=RUNS)
    def delete(self, run: str) -> None:
        if run not in self.records and not self.blobs.get(run):
            return
        self.do(self.store.delete(run))
        for part in (self.records, self.heads, self.inboxes, self.spent, self.blobs):
            part.pop(run, None)  # type: ignore[attr-defined]

    @rule()
    def gc(self) -> None:
        self.do(self.store.gc())

    @precondition(lambda self: self.scheme != "ram:")
    @rule()
    def reopen(self) -> None:
        self.do(self.store.close())
        self.begin()

    @rule(run=RUNS, after=st.integers(0, 9), limit=st.integers(0, 9))
    def read_a_part(self, run: str, after: int, limit: int) -> None:
        assert self.do(self.store.read(run, after=after, limit=limit)) == self.records.get(run, [])[after : after + limit]

    @invariant()
    def the_store_is_as_the_dicts_say(self) -> None:
        for run in ("a", "b", "c.d", "E-1"):
            assert self.do(self.store.read(run)) == self.records.get(run, [])
            assert self.do(self.store.head(run)) == self.heads.get(run)
            assert self.do(self.store.list_blobs(run)) == sorted(self.blobs.get(run, ()))
        waiting = {run: list(inbox.values()) for run, inbox in self.inboxes.items() if inbox}
        assert self.do(self.store.signals(["a", "b", "c.d", "E-1"])) == waiting
        listed = self.do(self.store.list_runs(RunQuery()))
        assert [head.run_id for head in listed] == sorted(self.heads, reverse=True)

    def teardown(self) -> None:
        self.do(self.store.close())
        self.loop.close()
        shutil.rmtree(self.directory)


class FileStoreMachine(StoreMachine):
    scheme = "file:{}/runs"


class SqliteStoreMachine(StoreMachine):
    scheme = "sqlite:///{}/runs.db"


_FEW = settings(max_examples=times(12), stateful_step_count=25)
TestRamStoreMachine = StoreMachine.TestCase
TestFileStoreMachine = FileStoreMachine.TestCase
TestSqliteStoreMachine = SqliteStoreMachine.TestCase
TestFileStoreMachine.settings = _FEW
TestSqliteStoreMachine.settings = _FEW
