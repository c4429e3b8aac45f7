"""A store of your own: all runs in one file, which is replaced as a whole by each write.

A write holds a lock, reads the file, changes what it read, and puts a new file in the old one's place: readers see all of it or nothing, and so
does whoever comes after a crash. That is slow with many runs, and correct; `docs/howto/extend/write-a-store.md` runs the contract suite against it.

It prints:

completed: 4
2 claims of one run: RunBusy
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import secrets
import socket
import tempfile
import time
import weakref
from collections.abc import Callable, Generator, Sequence
from functools import reduce
from pathlib import Path
from typing import IO

import msgspec

from detent import Agent, Engine, FinalAnswer, ToolCall, tool
from detent.extend import (
    Balance,
    Conflict,
    DueQuery,
    DueRuns,
    Posts,
    Reservation,
    RunBusy,
    RunHead,
    RunNotFound,
    RunQuery,
    Signal,
    Spent,
    StoreError,
    due_among,
    intact,
    is_erased,
    refuse_behind_cancel,
    refuse_erased,
    refuse_overfull,
    refuse_without_claim,
)
from detent.testing import ScriptedPlanner

LEASE_S = 30.0


class Run(msgspec.Struct):
    """What is kept of a run."""

    head: RunHead
    records: list[bytes] = []
    inbox: dict[str, Signal] = {}
    consumed: set[str] = set()
    snapshot: tuple[int, bytes] | None = None
    sealed: tuple[int, str] | None = None


class Claim(msgspec.Struct):
    """Who may advance a run, under which number, and when it last said so: by the wall clock, and by the clock that all of its host share."""

    holder: str
    host: str
    number: int
    renewed: float
    renewed_here: float


class Shelf(msgspec.Struct):
    """The whole file."""

    runs: dict[str, Run] = {}
    blobs: dict[str, dict[str, bytes]] = {}
    claims: dict[str, Claim] = {}
    spent: list[Spent] = []
    reserved: list[tuple[str, str, float, Spent]] = []


class OneFileStore:
    """Keeps all runs in the file `path`. Each instance is a holder of claims, and lives as long as it has its own lock file locked."""

    def __init__(
        self,
        path: str | Path,
        *,
        now: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
        host: str | None = None,
    ) -> None:
        self.path, self._now, self._monotonic, self._host = Path(path), now, monotonic, host or socket.gethostname()
        self.url = f"one-file:{path}"
        self._name = secrets.token_hex(8)
        self._alive: IO[bytes] | None = None
        self._held: set[str] = set()
        me = weakref.ref(self)
        os.register_at_fork(after_in_child=lambda: (store := me()) and store._become_another())

    def _become_another(self) -> None:
        """Be another holder in a forked child: what is held, and the lock that shows that its holder lives, are the parent's."""
        self._name, self._held = secrets.token_hex(8), set()
        if self._alive is not None:
            self._alive.close()
            self._alive = None

    def _life_of(self, holder: str) -> Path:
        return self.path.with_name(f"{self.path.name}.{holder}.alive")

    async def open(self) -> None:
        if self._alive is None:
            self._alive = self._life_of(self._name).open("wb")
            fcntl.flock(self._alive, fcntl.LOCK_EX)  # the system lets it go when the process dies

    async def close(self) -> None:
        if self._alive is not None:
            with self._changing() as shelf:
                for run_id in [run_id for run_id, claim in shelf.claims.items() if claim.holder == self._name]:
                    del shelf.claims[run_id]
            self._held.clear()
            self._alive.close()
            self._alive = None
            self._life_of(self._name).unlink()

    # The file ---------------------------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _locked(self) -> Generator[None]:
        if self._alive is None:
            raise StoreError(f"the store {self.url} is closed; call open() first")
        with self.path.with_name(self.path.name + ".lock").open("wb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _read(self) -> Shelf:
        if not self.path.exists():
            return Shelf()
        try:
            return msgspec.msgpack.decode(self.path.read_bytes(), type=Shelf)
        except msgspec.DecodeError as error:
            raise StoreError(f"{self.path} is not a file of this store ({error}); restore it from a copy") from error

    @contextlib.contextmanager
    def _changing(self, *, durable: bool = False) -> Generator[Shelf]:
        """Give the shelf to be changed; it is written when the block ends well, and else nothing happens."""
        with self._locked():
            shelf = self._read()
            yield shelf
            new = self.path.with_name(self.path.name + ".new")
            with new.open("wb") as file:
                file.write(msgspec.msgpack.encode(shelf))
                if durable:
                    file.flush()
                    os.fsync(file.fileno())
            new.replace(self.path)
            if durable:
                directory = os.open(self.path.parent, os.O_RDONLY)
                os.fsync(directory)
                os.close(directory)

    def _looking(self) -> Shelf:
        with self._locked():
            return self._read()

    # Records ------------------------------------------------------------------------------------------------------------------------

    async def append(
        self,
        run_id: str,
        expected_seq: int,
        records: Sequence[bytes],
        *,
        head: RunHead,
        durable: bool = False,
        consumed: Sequence[str] = (),
        spent: Spent | None = None,
        released: Sequence[str] | None = (),
        reserved: Reservation | None = None,
        intent: bool = False,
        claim: int | None = None,
        posts: Posts = (),
    ) -> None:
        with self._changing(durable=durable) as shelf:
            refuse_without_claim(run_id, claim, shelf.claims[run_id].number if run_id in shelf.claims else None)
            run = shelf.runs.get(run_id)
            there = len(run.records) if run else 0
            if there != expected_seq:
                raise Conflict(run_id, expected_seq, there)
            run = shelf.runs.setdefault(run_id, Run(head=head))
            if intent:
                refuse_behind_cancel(run_id, run.inbox.values(), consumed)
            run.head, run.sealed = head, (expected_seq + len(records), head.digest)
            run.records.extend(records)
            run.consumed.update(consumed)
            for signal_id in consumed:
                run.inbox.pop(signal_id, None)
            for name, signal in posts:
                other = shelf.runs.get(name)
                if other is not None and not is_erased(other.head) and signal.id not in other.consumed:
                    other.inbox.setdefault(signal.id, signal)
            if spent is not None:
                others = [s for s in shelf.spent if (s.tenant, s.day) != (spent.tenant, spent.day)]
                same = [s for s in shelf.spent if (s.tenant, s.day) == (spent.tenant, spent.day)]
                shelf.spent = [*others, reduce(Spent.plus, same, spent)]
            shelf.reserved = [r for r in shelf.reserved if r[0] != run_id or (released is not None and r[1] not in released)]
            if reserved is not None:
                self._keep(shelf, run_id, reserved)

    async def spent(self, tenant: str, since: str) -> Spent:
        return self._spent(self._looking(), tenant, since)

    def _spent(self, shelf: Shelf, tenant: str, since: str) -> Spent:
        found = [s for s in shelf.spent if s.tenant == tenant and s.day >= since]
        return reduce(Spent.plus, found, Spent(tenant=tenant, day=since))

    async def reserve(self, asked: Reservation) -> Balance:
        with self._changing() as shelf:
            now = self._now()
            shelf.reserved = [r for r in shelf.reserved if r[2] > now]
            held = [(run_id, name, amount) for run_id, name, _, amount in shelf.reserved if amount.tenant == asked.tenant]
            balance = asked.balance(self._spent(shelf, asked.tenant, asked.since), held)
            if balance.granted:
                self._keep(shelf, asked.run_id, asked)
        return balance

    def _keep(self, shelf: Shelf, run_id: str, asked: Reservation) -> None:
        shelf.reserved = [r for r in shelf.reserved if r[0] != run_id or r[1] not in asked.amounts]
        shelf.reserved += [(run_id, name, self._now() + asked.lasts_s, amount) for name, amount in asked.amounts.items()]

    async def read(self, run_id: str, *, after: int = 0, limit: int | None = None) -> list[bytes]:
        run = self._looking().runs.get(run_id)
        return [] if run is None else run.records[after : None if limit is None else after + limit]

    async def head(self, run_id: str) -> RunHead | None:
        run = self._looking().runs.get(run_id)
        return None if run is None else run.head

    async def sealed(self, run_id: str) -> tuple[int, str] | None:
        run = self._looking().runs.get(run_id)
        return None if run is None else run.sealed

    async def list_runs(self, query: RunQuery) -> list[RunHead]:
        heads = {run_id: run.head for run_id, run in self._looking().runs.items()}
        if query.after is not None and query.after not in heads:
            raise RunNotFound(query.after)
        found = [
            head
            for head in heads.values()
            if (not query.status or head.status in query.status)
            and (
                not (query.starts_with or query.ends_with)
                or head.run_id.startswith(query.starts_with)
                or head.run_id.endswith(query.ends_with)
            )
            and query.tenant in (None, head.tenant)
            and query.goal_id in (None, head.goal_id)
            and query.agent in (None, head.agent)
            and query.dedupe_key in (None, head.queued.dedupe_key if head.queued else "")
            and query.version in (None, head.version)
            and (query.since is None or head.created_at >= query.since)
            and (query.until is None or head.created_at < query.until)
            and (query.rested_since is None or (head.status != "running" and head.updated_at >= query.rested_since))
        ]
        found.sort(key=lambda head: (head.created_at, head.run_id), reverse=True)
        if query.after is not None:
            last = heads[query.after]
            found = [head for head in found if (head.created_at, head.run_id) < (last.created_at, last.run_id)]
        return found if query.limit is None else found[: query.limit]

    async def due(self, query: DueQuery) -> DueRuns:
        shelf = self._looking()
        alive = [run_id for run_id, claim in shelf.claims.items() if self._lives(claim)]
        others = sum(claim.holder != self._name for claim in shelf.claims.values())
        return due_among(((run.head, run.inbox.values()) for run in shelf.runs.values()), query, claimed=alive, held=others)

    # Claims -------------------------------------------------------------------------------------------------------------------------

    def _lives(self, claim: Claim) -> bool:
        if claim.host != self._host:
            return self._now() - claim.renewed < LEASE_S
        try:
            with self._life_of(claim.holder).open("rb") as alive:
                fcntl.flock(alive, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except FileNotFoundError:
            return False
        except BlockingIOError:  # its process is there; whether it goes on is another matter
            return self._monotonic() - claim.renewed_here < LEASE_S
        return False

    async def claim(self, run_id: str) -> int:
        with self._changing() as shelf:
            known = shelf.claims.get(run_id)
            if known is not None and known.holder != self._name and self._lives(known):
                raise RunBusy(run_id, known.holder)
            number = known.number if known is not None and known.holder == self._name else secrets.randbits(62)
            shelf.claims[run_id] = Claim(self._name, self._host, number, self._now(), self._monotonic())
        self._held.add(run_id)
        return number

    async def release(self, run_id: str) -> None:
        with self._changing() as shelf:
            if run_id in shelf.claims and shelf.claims[run_id].holder == self._name:
                del shelf.claims[run_id]
        self._held.discard(run_id)

    async def renew(self) -> list[str]:
        with self._changing() as shelf:
            mine = {run_id for run_id, claim in shelf.claims.items() if claim.holder == self._name}
            for run_id in mine:
                shelf.claims[run_id].renewed, shelf.claims[run_id].renewed_here = self._now(), self._monotonic()
        lost, self._held = sorted(self._held - mine), mine
        return lost

    # Inbox, blobs, snapshots ----------------------------------------------------------------------------------------------------------

    @staticmethod
    def _run(shelf: Shelf, run_id: str) -> Run:
        if run_id not in shelf.runs:
            raise RunNotFound(run_id)
        return shelf.runs[run_id]

    async def post(self, run_id: str, signal: Signal) -> None:
        with self._changing(durable=True) as shelf:
            run = self._run(shelf, run_id)
            refuse_erased(run.head)
            if signal.id not in run.consumed and signal.id not in run.inbox:
                refuse_overfull(run_id, signal, run.inbox.values())
                run.inbox[signal.id] = signal

    async def signals(self, run_ids: Sequence[str]) -> dict[str, list[Signal]]:
        runs = self._looking().runs
        return {run_id: list(runs[run_id].inbox.values()) for run_id in run_ids if run_id in runs and runs[run_id].inbox}

    async def put_blob(self, run_id: str, key: str, data: bytes) -> None:
        with self._changing(durable=True) as shelf:
            shelf.blobs.setdefault(run_id, {})[key] = data

    async def get_blob(self, run_id: str, key: str) -> bytes | None:
        return intact(run_id, key, self._looking().blobs.get(run_id, {}).get(key))

    async def list_blobs(self, run_id: str) -> list[str]:
        return sorted(self._looking().blobs.get(run_id, {}))

    async def delete_blob(self, run_id: str, key: str) -> None:
        with self._changing() as shelf:
            shelf.blobs.get(run_id, {}).pop(key, None)

    async def put_snapshot(self, run_id: str, seq: int, data: bytes) -> None:
        with self._changing() as shelf:
            run = self._run(shelf, run_id)
            if run.snapshot is None or run.snapshot[0] <= seq:
                run.snapshot = seq, data

    async def get_snapshot(self, run_id: str) -> tuple[int, bytes] | None:
        run = self._looking().runs.get(run_id)
        return None if run is None else run.snapshot

    # Removing -------------------------------------------------------------------------------------------------------------------------

    async def erase(self, run_id: str, tombstone: Callable[[bytes], bytes], *, head: RunHead, claim: int | None = None) -> None:
        with self._changing(durable=True) as shelf:
            run = self._run(shelf, run_id)
            refuse_without_claim(run_id, claim, shelf.claims[run_id].number if run_id in shelf.claims else None)
            run.records = [tombstone(line) for line in run.records]
            run.head, run.inbox, run.snapshot = head, {}, None
            shelf.blobs.pop(run_id, None)

    async def delete(self, run_id: str) -> None:
        with self._changing(durable=True) as shelf:
            self._run(shelf, run_id)
            del shelf.runs[run_id]
            shelf.blobs.pop(run_id, None)
            shelf.claims.pop(run_id, None)
            shelf.reserved = [r for r in shelf.reserved if r[0] != run_id]

    async def gc(self) -> int:
        with self._changing() as shelf:
            shelf.claims = {run_id: claim for run_id, claim in shelf.claims.items() if self._lives(claim)}
        return 0


def runs_here() -> OneFileStore:
    """Return the store of the directory in which a command is started; `detent.toml` names it."""
    return OneFileStore("runs")


@tool(side_effect="write")
def double(n: int) -> int:
    """Double a number."""
    return 2 * n


async def main() -> None:
    with tempfile.TemporaryDirectory() as place:
        store, other = OneFileStore(f"{place}/runs"), OneFileStore(f"{place}/runs")
        await store.open()
        await other.open()
        planner = ScriptedPlanner([ToolCall(tool="double", args={"n": 2}), lambda view: FinalAnswer(content=str(view.results[0].content))])
        async with Engine(store=store, planner=planner) as engine:
            result = await engine.run(Agent(name="doubler", tools=[double]), "Double 2")
            print(f"{result.status}: {result.output}")
        await store.claim("run")
        try:
            await other.claim("run")
        except RunBusy as error:
            print(f"2 claims of one run: {type(error).__name__}")
        await store.close()
        await other.close()


if __name__ == "__main__":
    asyncio.run(main())
