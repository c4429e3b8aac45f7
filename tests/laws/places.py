"""Where runs are kept in these tests, and what they leave behind outside: stores that can be opened again, planners, a file of effects."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from detent import Agent, Engine, Plan, View
from detent.core.codec import read_log
from detent.core.records import Record
from detent.core.state import RunState
from detent.ports import Chunk, EventStore
from detent.stores.ram import RamStore
from detent.stores.urls import open_store

KINDS = ("ram", "file", "sqlite")


class Place:
    """A place for logs that outlives the stores opened on it, as a disk outlives processes. `database`: where it is in PostgreSQL, one schema each."""

    def __init__(self, kind: str, directory: Path, *, database: str = "") -> None:
        self.kind, self.directory, self._database = kind, directory, database
        self._ram = RamStore()
        self.opened: list[EventStore] = []

    @property
    def url(self) -> str:
        """The URL, for another process."""
        if self.kind == "postgres":
            return f"{self._database}&schema=s_{self.directory.name}"
        return f"file:{self.directory / 'logs'}" if self.kind == "file" else f"sqlite:///{self.directory / 'runs.db'}"

    def store(self) -> EventStore:
        """Return another store on this place: another holder of claims."""
        store: EventStore = self._ram.sibling() if self.kind == "ram" else open_store(self.url)
        self.opened.append(store)
        return store

    async def close(self) -> None:
        """Close every store that was opened, as the end of their processes would."""
        for store in self.opened:
            await store.close()
        self.opened.clear()

    async def lines(self, run_id: str) -> list[bytes]:
        """Return the stored lines of a run, through a store of its own."""
        store = self.store()
        await store.open()
        try:
            return await store.read(run_id)
        finally:
            await store.close()
            self.opened.remove(store)

    async def records(self, run_id: str) -> list[Record]:
        """Return the verified records of a run."""
        return list(read_log(run_id, await self.lines(run_id)))


class PurePlanner:
    """Answers with a pure function of the view, so that whoever resumes plans the same."""

    def __init__(self, function: Callable[[View], Any]) -> None:
        self.function = function
        self.calls = 0

    async def plan(self, view: View) -> Plan:
        """Return what the function says, as a plan."""
        self.calls += 1
        answer = self.function(view)
        if isinstance(answer, Plan):
            return answer
        return Plan(actions=answer if isinstance(answer, tuple) else (answer,))


class Effects:
    """An append-only file outside of any store: what really happened."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def add(self, what: object) -> None:
        """Let an effect happen; it is there even if the process dies right after."""
        fd = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            os.write(fd, f"{what}\n".encode())
        finally:
            os.close(fd)

    def all(self) -> list[str]:
        """Return what happened so far, in order."""
        return self.path.read_text().split() if self.path.exists() else []


class Told:
    """An observer that keeps what it was told: the live states."""

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.states: list[RunState] = []

    def on_record(self, record: Record, state: RunState) -> None:
        """Keep it."""
        self.records.append(record)
        self.states.append(state)

    def on_chunk(self, chunk: Chunk) -> None:
        """Chunks are not looked at."""


def engine_on(store: EventStore | str, planner: Any, tools: Iterable[Any] = (), **options: Any) -> Engine:
    """Return an engine that this program answers for."""
    if callable(planner):
        planner = PurePlanner(planner)
    return Engine(store=store, planner=planner, tools=tools, approver=options.pop("approver", "caller"), **options)


def agent_of(*tools: Any, **options: Any) -> Agent:
    """Return an agent with these tools."""
    return Agent(name="worker", tools=list(tools), **options)
