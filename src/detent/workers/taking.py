"""One tick of a worker with one run: attempts, pauses between them, and the end of patience. The same for every host.

Rule: attempts are counted in the run's log, and nothing that an attempt raises leaves `Patience.take`.
"""

from __future__ import annotations

import logging
from datetime import datetime, timedelta

import msgspec

from detent.core.durations import seconds
from detent.core.errors import ConfigError, Conflict, RunBusy, RunErased, RunNotFound, StoreBusy, StoreFull, Suspended
from detent.ports.working import NOT_HERE, Advanced, Backlog, Tries

CONCURRENCY, MAX_ATTEMPTS, RETRY_PAUSE_S = 4, 5, 1.0

MAX_PAUSE_S = 300.0
"""The longest pause before another attempt."""
LEFT_S = 60.0
"""How long a run is left alone that cannot be resumed here."""
BUSY_S = 1.0
"""How long a run of another worker is left alone: if that one dies, this is when it is noticed."""

log = logging.getLogger("detent")


class Taken(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a tick: what `advance` came to (None: it was not called, or raised), and when the run is to be tried again (None: never).

    `busy`: another worker has the run, and may release it earlier.
    """

    came_to: Advanced | None = None
    again: datetime | None = None
    busy: bool = False


class Patience:
    """How many runs a host advances at once, how often it tries one, and how long it waits in between."""

    def __init__(self, *, concurrency: int, max_attempts: int, retry_pause_s: float | str) -> None:
        retry_pause_s = seconds(retry_pause_s, "retry_pause_s")
        for name, value in (("concurrency", concurrency), ("max_attempts", max_attempts)):
            if value < 1:
                raise ConfigError(f"{name} of a worker is {value}; give at least 1")
        refuse_no_pause(retry_pause_s=retry_pause_s)
        self.concurrency, self.max_attempts, self.retry_pause_s = concurrency, max_attempts, retry_pause_s

    def pause_s(self, attempts: int) -> float:
        """Return the seconds between that many failed attempts and the next one."""
        return min(MAX_PAUSE_S, self.retry_pause_s * 2.0 ** min(attempts - 1, 64)) if attempts else 0.0

    async def take(self, backlog: Backlog, run_id: str, *, within_s: float | None = None) -> Taken:
        """Advance one run, unless its pause is not over; errors do not leave this function."""
        try:
            tries = await backlog.look(run_id)
            if tries.count >= self.max_attempts:
                why = f"resumed {tries.count} times without any progress: its workers died"
                await backlog.give_up(run_id, why, tries.count)
                return Taken()
            until = self._paused(backlog, tries)
            return Taken(again=until) if until else Taken(came_to=await backlog.advance(run_id, within_s=within_s))
        except (RunBusy, Conflict):
            return Taken(again=backlog.now() + timedelta(seconds=BUSY_S), busy=True)
        except (Suspended, StoreBusy, StoreFull) as stopped:
            log.info("run %s is left for now: %s", run_id, stopped)
            return _later(backlog, self.retry_pause_s)
        except (RunNotFound, RunErased):
            return Taken()
        except NOT_HERE as error:
            log.warning("run %s is due but cannot be resumed here; it is left to other workers: %s", run_id, error)
            return _later(backlog, LEFT_S)
        except Exception as error:  # noqa: BLE001 - the worker loop: a run that fails, in whatever way, holds up no other
            return await self._failed(backlog, run_id, error)

    def _paused(self, backlog: Backlog, tries: Tries) -> datetime | None:
        """Return until when it is too early for another attempt, or None."""
        if tries.last is None:
            return None
        until = tries.last + timedelta(seconds=self.pause_s(tries.count))
        return until if tries.last <= backlog.now() < until else None  # a clock that was set back must not make a pause hours long

    async def _failed(self, backlog: Backlog, run_id: str, error: Exception) -> Taken:
        """Note a failed attempt; after too many, give the run up."""
        said = f"{type(error).__name__}: {error}"
        try:
            tries = await backlog.failed(run_id, error)
            if tries.count >= self.max_attempts:
                log.error("run %s is given up after %s attempts: %s", run_id, tries.count, said)
                await backlog.give_up(run_id, said, tries.count)
                return Taken()
            log.warning("run %s failed (attempt %s of %s): %s", run_id, tries.count, self.max_attempts, said)
            return Taken(again=self._paused(backlog, tries) or backlog.now())
        except Exception as problem:  # noqa: BLE001 - a log that cannot even be written: the run is shown to whoever looks, and left alone
            log.error("run %s failed, and the failure cannot be recorded (%s): %s", run_id, problem, said)  # noqa: TRY400 - said in full
            return _later(backlog, BUSY_S if isinstance(problem, (RunBusy, Conflict)) else LEFT_S)


def refuse_no_pause(**pauses: float) -> None:
    """Raise `ConfigError` for a pause of 0 seconds or less."""
    for name, pause in pauses.items():
        if not pause > 0:
            raise ConfigError(f"{name} of a worker is {pause}; give more than 0 seconds")


def _later(backlog: Backlog, pause_s: float) -> Taken:
    return Taken(again=backlog.now() + timedelta(seconds=pause_s))


__all__ = ["BUSY_S", "CONCURRENCY", "LEFT_S", "MAX_ATTEMPTS", "RETRY_PAUSE_S", "Patience", "Taken", "refuse_no_pause"]
