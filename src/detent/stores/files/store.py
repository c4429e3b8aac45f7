"""The store of plain files: one JSONL file per run (see `log`), readable with any tool. Several processes of one host may use it at once.

An append locks the run's file, checks that nobody appended meanwhile, and adds records and commit line in one write. A half-written append of a dead
process is never read; the next append moves it to `<run>.torn`.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import os
import shutil
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from detent.core.errors import CorruptLog, NewerVersion, RunErased, RunNotFound, StoreError
from detent.core.records import RunHead
from detent.ports import Balance, Reservation, RunQuery, Signal, Spent, intact
from detent.ports.examining import Examined
from detent.ports.stores import Posts
from detent.stores.files.directory import RUN_ID
from detent.stores.files.due import FileDue
from detent.stores.files.examining import examine
from detent.stores.files.parts import TEMPORARY, blob_key, blob_name, fingerprint, remove_temporary, replace_file, sync_directory
from detent.stores.listing import named, select
from detent.stores.locks import remove_dead

log = logging.getLogger("detent.stores.files.store")


class FileStore(FileDue):
    """An `EventStore` in the directory `path`, which is created if it is missing. Files are readable only by their owner.

    `busy_timeout_s` is how long to wait for another process before `StoreBusy`. `lease_s` is how long others consider this holder alive after its
    last renewal; `stuck_s` is how long it keeps renewing while its event loop hangs. `now` and `monotonic` are the clocks of leases, for other hosts
    and for this host. `host` is the identity of this machine. Run ids have at most 200 letters, digits, `_`, `-` and `.`.
    """

    # Opening and closing ----------------------------------------------------------------------------------------------------------

    async def close(self) -> None:
        """Wait for pending actions, release all claims, and close. The store can be opened again."""
        if not self._open:
            return
        await self._settled()
        for run_id in list(self._claims.holder.runs):
            try:
                await self.release(run_id)
            except StoreError as error:
                log.warning("closing without releasing the claim of run %r, which ends with this process: %s", run_id, error)
        await self._owed.close()
        await self._settled()
        self._open = False
        self._bell.close()
        self._claims.holder.drop()
        self._threads.stop()
        self._logs.close()

    # Logs -------------------------------------------------------------------------------------------------------------------------

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
        """Add records; see `EventStore.append`. A cancelled call takes effect entirely or not at all."""
        self._file(run_id, ".jsonl")
        for line in records:
            if line[:1] != b"{" or b"\n" in line:
                raise ValueError(f"a record must be one JSON object on one line, not {line[:80]!r}")
        durable = durable or bool(consumed or posts)  # signals are durable in another file: none may leave it for a log that is not

        def action(wait_s: float) -> None:
            after = (run_id, expected_seq + len(records), fingerprint(records[-1])) if posts else None
            for name, signal in posts:
                with suppress(RunNotFound, RunErased):
                    self._post(name, signal, wait_s, after)
            with self._reserved.changing(run_id, released, wait_s, reserved):
                self._logs.append(
                    run_id,
                    expected_seq,
                    records,
                    head=head,
                    durable=durable,
                    consumed=consumed,
                    wait_s=wait_s,
                    spent=spent,
                    held=functools.partial(self._claims.refuse_without, run_id, claim) if claim is not None else None,
                    check=functools.partial(self._inboxes.refuse_behind_cancel, run_id, consumed) if intent else None,
                )
            for name, signal in posts:
                self._posted(name, signal, wait_s)

        await self._do(run_id, action, threaded=durable)
        self._appends += 1

    async def spent(self, tenant: str, since: str) -> Spent:
        """Return what the tenant has used since that day, in all processes."""
        self._file("_", "")
        with self._errors():
            return self._logs.ledger.sum(tenant, since)

    async def reserve(self, asked: Reservation) -> Balance:
        """Reserve amounts in a tenant's account; see `EventStore.reserve`."""
        self._file(asked.run_id, "")
        return await self._do(asked.run_id, lambda wait_s: self._reserved.reserve(asked, self._logs.ledger.sum, wait_s))

    async def read(self, run_id: str, *, after: int = 0, limit: int | None = None) -> list[bytes]:
        """Return record lines; see `EventStore.read`. Raise `CorruptLog`, `NewerVersion`."""
        self._file(run_id, ".jsonl")

        lines: list[bytes] = await self._do(run_id, functools.partial(self._logs.read, run_id))
        return lines[after:] if limit is None else lines[after : after + limit]

    async def head(self, run_id: str) -> RunHead | None:
        """Return the run's listing entry; None for an unknown run."""
        self._file(run_id, ".jsonl")
        return await self._do(run_id, lambda _wait_s: self._logs.head(run_id))

    async def sealed(self, run_id: str) -> tuple[int, str] | None:
        """Return the seal of the last durable append, from `RUN.sealed`; see `EventStore.sealed`."""
        self._file(run_id, "")
        with self._errors():
            return self._logs.seals.read(run_id)

    async def list_runs(self, query: RunQuery) -> list[RunHead]:
        """Return the page of runs that match the query, newest first. A run with an unreadable file is left out and logged."""
        self._file("_", "")
        heads: dict[str, RunHead] = {}
        with self._errors():
            for name in os.listdir(self.path):  # noqa: PTH208 - names are enough, paths cost as much as reading
                run_id = name[: -len(".jsonl")]
                if not (named(run_id, query) or run_id == query.after) or not name.endswith(".jsonl") or not RUN_ID.fullmatch(run_id):
                    continue
                try:
                    head = self._logs.head(run_id)
                except (CorruptLog, NewerVersion) as error:
                    log.warning("left out of the listing: %s", error)
                    continue
                if head is not None:
                    heads[run_id] = head
        return select(heads.values(), query, after=heads.get(query.after) if query.after is not None else None)

    # Claims -----------------------------------------------------------------------------------------------------------------------

    async def claim(self, run_id: str) -> int:
        """Claim the run for this store instance and return the claim's number. Raise `RunBusy` while another living holder has it."""
        self._file(run_id, "")
        had = run_id in self._claims.holder.runs
        owed = self._owed.forget(run_id)
        try:
            number: int = await self._do(
                run_id, lambda wait_s: self._claims.take(run_id, wait_s, functools.partial(self._logs.still, run_id, wait_s))
            )
        except BaseException as error:
            if (owed or isinstance(error, asyncio.CancelledError)) and not had and self._open:
                self._owed.begin(run_id)
            raise
        self._claims.holder.has_taken(run_id, number)
        return number

    async def release(self, run_id: str) -> None:
        """Release the claim if it is held."""
        self._file(run_id, "")
        if run_id in self._claims.holder.runs:
            del self._claims.holder.runs[run_id]
            await asyncio.shield(self._owed.begin(run_id))

    async def renew(self) -> list[str]:
        """Extend the lease of all claims held here; return the runs whose claim was lost."""
        self._file("_", "")
        holder = self._claims.holder
        if not holder.runs:
            return []
        with self._errors():
            holder.renewed()
            lost = sorted(run_id for run_id, taken in holder.runs.items() if self._claims.number(run_id) != taken.number)
        for run_id in lost:
            del holder.runs[run_id]
        return lost

    async def wrong_with_claim(self, run_id: str) -> str:
        """Return the faults of the claim on a run; see `ReadsClaims`."""
        self._file(run_id, "")
        return await self._do(run_id, functools.partial(self._claims.wrong, run_id))

    # Inbox, blobs, snapshots --------------------------------------------------------------------------------------------------------

    async def post(self, run_id: str, signal: Signal) -> None:
        """Put a signal into the inbox, durably and once; raise `RunNotFound`, `RunErased`."""

        def action(wait_s: float) -> None:
            self._post(run_id, signal, wait_s)
            self._posted(run_id, signal, wait_s)

        self._file(run_id, "")
        await self._do(run_id, action, threaded=True)

    async def changed(self, timeout_s: float, *, records: bool = False) -> None:
        """Wait until a process of this host posts a signal, or this one records something, at most so many seconds; see `Wakes`."""
        self._file("_", "")
        await (self._news if records else self._bell).wait(timeout_s)

    async def signals(self, run_ids: Sequence[str]) -> dict[str, list[Signal]]:
        """Return the waiting signals of these runs, oldest first. If no signal waits anywhere, this lists one directory."""
        self._file("_", "")
        names = self._inboxes.names()
        with self._errors():
            return {run_id: waiting for run_id in run_ids if run_id in names and (waiting := self._inboxes.waiting(run_id))}

    async def put_blob(self, run_id: str, key: str, data: bytes) -> None:
        """Store a blob durably; the run need not exist yet."""
        path = self._file(run_id, ".blobs") / blob_name(key)

        def action(_wait_s: float) -> None:
            if not path.parent.exists():
                path.parent.mkdir(exist_ok=True, mode=0o700)
                sync_directory(self.path)
            replace_file(path, data, durable=True)

        await self._do(run_id, action, threaded=True)

    async def get_blob(self, run_id: str, key: str) -> bytes | None:
        """Return a blob; None when there is none under that key. Raise `CorruptLog` for an artifact that was altered."""
        path = self._file(run_id, ".blobs") / blob_name(key)
        return intact(run_id, key, await self._do(run_id, lambda _wait_s: _content(path) if path.exists() else None))

    async def list_blobs(self, run_id: str) -> list[str]:
        """Return the keys of the run's blobs, sorted."""
        path = self._file(run_id, ".blobs")
        names: list[str] = await self._do(run_id, lambda _wait_s: [file.name for file in path.iterdir()] if path.exists() else [])
        return sorted(blob_key(name) for name in names if not name.startswith(TEMPORARY))

    async def delete_blob(self, run_id: str, key: str) -> None:
        """Remove a blob, if there is one."""
        path = self._file(run_id, ".blobs") / blob_name(key)
        await self._do(run_id, lambda _wait_s: path.unlink(missing_ok=True))

    async def put_snapshot(self, run_id: str, seq: int, data: bytes) -> None:
        """Store the run's snapshot unless a later one exists. For an unknown run nothing is stored."""
        path = self._file(run_id, ".snapshot")

        def action(_wait_s: float) -> None:
            there = _snapshot(path)
            if self._logs.head(run_id) is not None and (there is None or there[0] <= seq):
                replace_file(path, b"%d\n%b" % (seq, data), durable=False)

        await self._do(run_id, action)

    async def get_snapshot(self, run_id: str) -> tuple[int, bytes] | None:
        """Return (sequence, data) of the snapshot; None when there is none."""
        path = self._file(run_id, ".snapshot")
        return await self._do(run_id, lambda _wait_s: _snapshot(path))

    # Removing -----------------------------------------------------------------------------------------------------------------------

    async def erase(self, run_id: str, tombstone: Callable[[bytes], bytes], *, head: RunHead, claim: int | None = None) -> None:
        """Replace the log atomically by tombstones, then remove blobs, snapshot, inbox, torn bytes and half-written files of dead processes.

        Raise `RunNotFound`, `ClaimLost`. A disk may keep old blocks until it writes over them.
        """
        self._file(run_id, "")

        def action(wait_s: float) -> None:
            spent = {signal.id for signal in self._inboxes.waiting(run_id)}
            held = functools.partial(self._claims.refuse_without, run_id, claim) if claim is not None else None
            self._logs.erase(run_id, tombstone, head, spent=spent, wait_s=wait_s, held=held)
            self._remove_parts(run_id, wait_s)
            remove_temporary(self.path)  # of any run: their names do not tell which

        await self._do(run_id, action, threaded=True)

    async def delete(self, run_id: str) -> None:
        """Remove the run and everything that belongs to it; raise `RunNotFound`."""
        path = self._file(run_id, ".jsonl")

        def action(wait_s: float) -> None:
            with self._reserved.changing(run_id, None, wait_s), self._logs.locked(run_id, wait_s, create=False) as entry:
                if (entry is None or entry.tail is None) and not any(path.exists() for path in self._parts(run_id)):
                    raise RunNotFound(run_id, self.url)
                self._claims.remove(run_id, wait_s)
                self._logs.seals.remove(run_id)
                path.unlink(missing_ok=True)
                sync_directory(self.path)
                self._remove_parts(run_id, wait_s)  # last: if a reader finds no blob but a log, nobody was deleting the run

        await self._do(run_id, action, threaded=True)

    def _remove_parts(self, run_id: str, wait_s: float) -> None:
        """Remove all files of a run except its log and its claim."""
        shutil.rmtree(self._file(run_id, ".blobs"), ignore_errors=True)
        for path in self._parts(run_id)[1:-1]:
            path.unlink(missing_ok=True)
        self._inboxes.remove(run_id, wait_s)
        sync_directory(self.path)

    def _parts(self, run_id: str) -> list[Path]:
        """Return the possible files of a run except log, seal and claim; blobs first, inbox last."""
        return [*(self._file(run_id, ending) for ending in (".blobs", ".snapshot", ".torn")), self._inboxes.path(run_id)]

    async def examine(self) -> Examined:
        """Look for missing logs and for files that belong to nothing; see `Examines`."""
        self._file("_", "")
        with self._errors():
            return examine(self._logs, self._inboxes, self._claims, self._reserved.directory)

    async def gc(self) -> int:
        """Remove leftovers of dead processes: claims, lock files, half-written files. Return the bytes freed."""
        self._file("_", "")
        with self._errors():
            return (
                self._claims.remove_dead()
                + remove_dead(self._claims.holder.directory, self._claims.holder.host)
                + remove_temporary(self.path)
                + remove_temporary(self._reserved.directory)
            )


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return b""


def _snapshot(path: Path) -> tuple[int, bytes] | None:
    seq, newline, data = _content(path).partition(b"\n")
    return (int(seq), data) if newline and seq.isdigit() else None
