"""The directory of a file store: opening it, and running one action per run at a time."""

from __future__ import annotations

import asyncio
import errno
import functools
import os
import re
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from detent.core.errors import ConfigError, RunNotFound, StoreBusy, StoreError, StoreFull
from detent.ports import Signal
from detent.ports.processes import renew_in_children
from detent.ports.stores import refuse_erased
from detent.stores.bells import Bell, News
from detent.stores.daemon_threads import Threads
from detent.stores.files.logs import Logs
from detent.stores.files.parts import Claims, Inboxes, Recorded, sync_directory
from detent.stores.files.reserved import Reserved
from detent.stores.heartbeat import LEASE_S, STUCK_S
from detent.stores.locks import BUSY_TIMEOUT_S, Holder
from detent.stores.unreleased import Owed

RUN_ID = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._@-]{0,199}")

_THREADS = 4


class StoreDirectory:
    """Uses threads for whatever waits for a disk or another process. See `FileStore`."""

    def __init__(
        self,
        path: str | Path,
        *,
        busy_timeout_s: float = BUSY_TIMEOUT_S,
        lease_s: float = LEASE_S,
        stuck_s: float = STUCK_S,
        now: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
        host: str | None = None,
    ) -> None:
        self.path = Path(path).absolute()
        self.url = f"file:{path}"
        self._busy_timeout_s = busy_timeout_s
        self._claims = Claims(Holder(self.path / ".claims", host=host, lease_s=lease_s, stuck_s=stuck_s, now=now, monotonic=monotonic))
        self._claims.holder.give_back = self._let_go
        self._logs = Logs(self.path)
        self._reserved = Reserved(self.path / ".reserved", now=now)
        self._inboxes = Inboxes(self.path / ".inbox", self._logs.consumed, self._logs.consumed_on_disk, self._logs.has)
        self._bell, self._appends = Bell(self.path / ".bells"), 0
        self._news = News(lambda: self._appends, elsewhere=False)
        self._open = False
        self._owed = Owed(self._give_up)
        self._pending: dict[str, asyncio.Future[Any]] = {}
        self._threads = Threads(count=_THREADS, name="detent-files")
        renew_in_children(self)

    def forked(self) -> None:
        """Start closed: in a forked child the open files belong to the parent."""
        self._open, self._pending = False, {}
        for part in (self._owed, self._threads, self._logs):
            part.forked()

    async def open(self) -> None:
        """Create the directory if it is missing."""
        if self._open:
            return
        with self._errors():
            new = [path for path in (self.path, *self.path.parents) if not path.exists()]
            self.path.mkdir(parents=True, exist_ok=True, mode=0o700)
            for path in new:
                sync_directory(path.parent)
            if not os.access(self.path, os.R_OK | os.W_OK | os.X_OK):
                raise StoreError(f"the directory {str(self.path)!r} cannot be written; check its permissions")
        self._open = True

    async def look(self, *, upgrade: bool = False) -> bool:
        """Open the directory if it exists, even a read-only one, and return whether it does. It never needs an upgrade."""
        with self._errors():
            try:
                os.scandir(self.path).close()
            except FileNotFoundError:
                return False
        self._open = True
        return True

    def _file(self, run_id: str, ending: str) -> Path:
        """Return the path of a file of the run; raise `ConfigError` for an id that cannot be a file name."""
        if not self._open:
            raise StoreError(f"the store {self.url} is not open; call open() first")
        if not RUN_ID.fullmatch(run_id):
            raise ConfigError(
                f"run id {run_id[:80]!r} cannot be kept in files: use letters, digits, '_', '-' and '.', at most 200, not '.' first"
            )
        return self.path / f"{run_id}{ending}"

    @contextmanager
    def _errors(self) -> Generator[None, None, None]:
        """Translate errors of the operating system into store errors."""
        try:
            yield
        except BlockingIOError:
            raise
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
                raise StoreFull(
                    f"no room left in {str(self.path)!r} ({error.strerror}); nothing was recorded. Free some space and resume"
                ) from error
            raise StoreError(
                f"{error.filename or str(self.path)!r}: {error.strerror}; check the path, its permissions and the disk"
            ) from error

    async def _do(self, run_id: str, action: Callable[[float], Any], *, threaded: bool = False) -> Any:
        """Run an action on a run after its pending actions; in a thread if it has to wait for a disk or another process.

        `action` gets the number of seconds that it may wait for a lock, and then raises `BlockingIOError`.
        """
        while (before := self._pending.get(run_id)) is not None and not before.get_loop().is_closed():
            await asyncio.wait([before])
        if not threaded:
            try:
                with self._errors():
                    return action(0.0)
            except BlockingIOError:
                pass
        future = self._pending[run_id] = self._threads.run(functools.partial(self._waiting, action))
        future.add_done_callback(functools.partial(self._over, run_id))
        return await asyncio.shield(future)

    def _over(self, run_id: str, action: asyncio.Future[Any]) -> None:
        if self._pending.get(run_id) is action:
            del self._pending[run_id]

    async def _settled(self) -> None:
        """Wait for all pending actions that can still report their end."""
        here = asyncio.get_running_loop()
        if going_on := [future for future in self._pending.values() if future.get_loop() is here]:
            await asyncio.wait(going_on)

    def _waiting(self, action: Callable[[float], Any]) -> Any:
        try:
            with self._errors():
                return action(self._busy_timeout_s)
        except BlockingIOError:
            raise StoreBusy(
                f"a file in {str(self.path)!r} stayed locked by another process for {self._busy_timeout_s:g} s; nothing was recorded, try again"
            ) from None

    def _let_go(self, run_id: str) -> None:
        taken = self._claims.holder.runs.get(run_id)
        if self._open and taken is not None and taken.stranded:
            del self._claims.holder.runs[run_id]
            self._owed.begin(run_id)

    async def _give_up(self, run_id: str) -> None:
        def action(wait_s: float) -> None:
            if run_id in self._owed:  # else it was used again meanwhile
                self._claims.release(run_id, wait_s)

        await self._do(run_id, action)

    def _post(self, run_id: str, signal: Signal, wait_s: float, after: Recorded | None = None) -> None:
        """Write a signal into an inbox file; `after` is explained at `Inboxes`. Raise `RunNotFound`, `RunErased`."""

        def check() -> None:
            head = self._logs.head(run_id)
            if head is None:
                raise RunNotFound(run_id, self.url)
            refuse_erased(head)

        check()  # before a file exists
        self._inboxes.post(run_id, signal, wait_s, check, after=after)

    def _posted(self, run_id: str, signal: Signal, wait_s: float) -> None:
        """Wake waiters now that the signal counts. On return, no append that has not seen a cancellation is under way."""
        self._bell.ring()
        if signal.kind == "cancel":
            with self._logs.still(run_id, wait_s):
                pass  # appends that have not seen it are over
