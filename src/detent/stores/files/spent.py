"""The usage of tenants, beside the logs of a file store: one file per tenant and day. Every append that charges adds a line.

A line is written before its append, under the lock of the run's log, and names run and position. If the append never happens, the next one
starts from the same position, and its line replaces the earlier one: that of nothing, if it charges nothing. So the sum is right however a process
dies. At worst it counts one append that a run was about to make when it was abandoned.
"""

from __future__ import annotations

import os
import threading
from hashlib import sha256
from pathlib import Path

import msgspec

from detent.core.records import RunHead
from detent.ports import Spent
from detent.stores.files.parts import blob_name, sync_directory

_encode = msgspec.json.Encoder().encode
_NAME_BYTES = 80
_Line = tuple[str, int, int, int, int, int, float]


class _Day:
    """One file as far as it was read: the sum, and the last line of each run. A later line from the same position replaces it."""

    __slots__ = ("last", "offset", "total")

    def __init__(self, tenant: str, day: str) -> None:
        self.offset = 0
        self.total = Spent(tenant=tenant, day=day)
        self.last: dict[str, tuple[int, Spent]] = {}

    def take(self, line: bytes) -> None:
        """Count a line, unless a dying process left it half written."""
        try:
            run, position, runs, model_calls, tool_calls, tokens, cost_usd = msgspec.json.decode(line, type=_Line)
        except ValueError:  # msgspec's errors are ValueErrors
            return
        whose = self.total
        spent = Spent(
            tenant=whose.tenant, day=whose.day, runs=runs, model_calls=model_calls, tool_calls=tool_calls, tokens=tokens, cost_usd=cost_usd
        )
        known = self.last.get(run)
        if known is not None and known[0] == position and position:  # 0: a new run with the id of a deleted one
            self.total = self.total.plus(_negative(known[1]))
        self.last[run] = position, spent
        self.total = self.total.plus(spent)


class Ledger:
    """The files in one directory. Used by any thread."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.forked()

    def forked(self) -> None:
        """Start with nothing read."""
        self._days: dict[tuple[str, str], _Day] = {}
        self._lock = threading.Lock()

    def add(self, head: RunHead, position: int, spent: Spent, *, durable: bool) -> None:
        """Charge the append that follows `position` records of the run."""
        path = self._path(spent.tenant, spent.day)
        new = not path.exists()
        if new and not path.parent.exists():
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            sync_directory(self.directory.parent)
            sync_directory(self.directory)
        line = _encode((_run(head), position, spent.runs, spent.model_calls, spent.tool_calls, spent.tokens, spent.cost_usd))
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            if new:
                sync_directory(path.parent)
            data = b"\n%b\n" % line  # starts a new line even after a half-written one
            while data:
                data = data[os.write(fd, data) :]
            if durable:
                os.fsync(fd)
        finally:
            os.close(fd)

    def take_back(self, head: RunHead, position: int, *, durable: bool) -> None:
        """Take back what a process charged this day for an append after `position` records, and died before it made it."""
        day = head.updated_at.date().isoformat()
        if not self._path(head.tenant, day).exists():
            return
        nothing = Spent(tenant=head.tenant, day=day)
        with self._lock:
            self._read(head.tenant, day)
            known = self._days[head.tenant, day].last.get(_run(head))
        if known is not None and known[0] == position and known[1] != nothing:
            self.add(head, position, nothing, durable=durable)

    def sum(self, tenant: str, since: str) -> Spent:
        """Return what the tenant has used since that day; reads only what was added since the last call."""
        total = Spent(tenant=tenant, day=since)
        with self._lock:
            try:
                names = os.listdir(self._path(tenant, since).parent)  # noqa: PTH208 - names are enough
            except FileNotFoundError:
                return total
            for name in sorted(names):
                day = name.removesuffix(".jsonl")
                if day >= since:
                    total = total.plus(self._read(tenant, day))
        return total

    def _read(self, tenant: str, day: str) -> Spent:
        known = self._days.setdefault((tenant, day), _Day(tenant, day))
        with self._path(tenant, day).open("rb") as file:
            file.seek(known.offset)
            data = file.read()
        end = data.rfind(b"\n") + 1
        for line in data[:end].split(b"\n"):
            if line:
                known.take(line)
        known.offset += end
        return known.total

    def _path(self, tenant: str, day: str) -> Path:
        name = tenant if len(tenant.encode()) <= _NAME_BYTES else sha256(tenant.encode()).hexdigest()
        return self.directory / blob_name(name) / f"{day}.jsonl"


def _run(head: RunHead) -> str:
    return f"{head.run_id} {head.created_at.isoformat()}"


def _negative(spent: Spent) -> Spent:
    return Spent(
        tenant=spent.tenant,
        day=spent.day,
        runs=-spent.runs,
        model_calls=-spent.model_calls,
        tool_calls=-spent.tool_calls,
        tokens=-spent.tokens,
        cost_usd=-spent.cost_usd,
    )
