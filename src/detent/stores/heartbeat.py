"""One thread per process that renews the claims of its stores, even while their event loops are blocked. It runs only while something is claimed.

Theory of operation. A claim lasts as long as its holder's lease, on the same host and between hosts. The event loop cannot be relied on to renew
it: a tool may block the loop for longer than the lease. A thread can, and it stops when the process stops (SIGSTOP, a frozen container); detecting
that is the purpose of a lease. A loop that hangs must not keep its claims for ever. So the thread asks each loop for an answer. After half of
`stuck_s` without one it logs a warning with the line at which the loop hangs; after `stuck_s` it stops renewing the loop's claims. Time in which
the thread itself did not run does not count.

A closed loop advances nothing. Its claims are released in another loop of the same holder. If there is none, the holder `rests`, and others can
take its claims at once.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import sys
import threading
import time
import traceback
import weakref
from collections.abc import Callable, Set
from contextlib import suppress

from detent.core.errors import ConfigError
from detent.ports.processes import renew_in_children

LEASE_S = 30.0
"""How long a holder is believed to live after its last sign of life."""

STUCK_S = 300.0
"""How long an event loop may hang before the thread stops renewing its claims."""

LOOK_S = 1.0
"""The longest time between two checks of the thread. It ends this long after the last claim, so that the next run can still use it."""

log = logging.getLogger("detent")


def new_number() -> int:
    """Return a number that is unique among claims."""
    return secrets.randbits(62) + 1


class Taken:
    """A held claim: its number, and the event loop that advances its run."""

    __slots__ = ("loop", "number")

    def __init__(self, number: int) -> None:
        self.number, self.loop = number, weakref.ref(asyncio.get_running_loop())

    @property
    def stranded(self) -> bool:
        """Whether that loop is closed. A closed loop stays closed."""
        loop = self.loop()
        return loop is None or loop.is_closed()


class Leased:
    """A holder of claims. The thread renews its lease with `sign`; `runs` has the claimed runs.

    `monotonic` is the clock of leases on this host. If the caller gives its own clocks (`beats` is false), only `EventStore.renew` renews.
    """

    def __init__(self, *, lease_s: float, stuck_s: float, monotonic: Callable[[], float], beats: bool) -> None:
        for name, value in (("lease_s", lease_s), ("stuck_s", stuck_s)):
            if not value > 0:
                raise ConfigError(f"{name} is {value!r}; it must be above 0")
        self.lease_s, self.stuck_s, self.monotonic, self.beats = lease_s, stuck_s, monotonic, beats
        self.every_s = lease_s / 6  # a renewal may be late twice and more
        self.runs: dict[str, Taken] = {}
        self.give_back: Callable[[str], None] | None = None
        """Releases the claim of a stranded run; called in an event loop. The store sets it."""
        self.signed = float("-inf")
        self.taken_over = 0  # claims taken from holders that had died
        self.warned = 0

    def has_taken(self, run_id: str, number: int) -> None:
        """Remember a granted claim and renew it from now on. A claim that is already held in an open loop stays unchanged."""
        held = self.runs.get(run_id)
        if held is None or held.number != number or held.stranded:
            self.runs[run_id] = Taken(number)
        if self.beats:
            HEARTBEAT.keep(self)

    @property
    def due(self) -> bool:
        """Whether the last sign of life is old enough for a new one."""
        return self.monotonic() - self.signed >= self.every_s

    def sign(self) -> None:
        """Show that this holder lives. Runs in the thread, may take until the next sign is due, and may raise anything."""
        raise NotImplementedError

    def rest(self) -> None:
        """Let others take the claims: none is left, or only those of closed loops. Called in the thread, which may end afterwards."""

    def strands(self) -> list[str]:
        """Return the runs that were claimed in closed loops."""
        return [run_id for run_id, taken in list(self.runs.items()) if taken.stranded]

    def loops(self) -> Set[asyncio.AbstractEventLoop]:
        """Return the open event loops that have claims here."""
        return {loop for taken in list(self.runs.values()) if (loop := taken.loop()) is not None and not loop.is_closed()}


class _Turns:
    """Watches one event loop: how long it has not answered, and in which thread it runs."""

    __slots__ = ("asked", "silent_s", "thread")

    def __init__(self) -> None:
        self.asked, self.silent_s, self.thread = False, 0.0, threading.get_ident()

    def look(self, loop: asyncio.AbstractEventLoop, passed_s: float) -> None:
        """Add the time without an answer; if there was an answer, ask again."""
        if self.asked:
            self.silent_s += passed_s
            return
        self.asked = True
        with suppress(RuntimeError):  # it was closed
            loop.call_soon_threadsafe(self._answer)

    def _answer(self) -> None:
        self.asked, self.silent_s, self.thread = False, 0.0, threading.get_ident()

    def where(self) -> str:
        """Return the line at which the loop's thread hangs, and its callers."""
        frame = sys._current_frames().get(self.thread)  # pyright: ignore[reportPrivateUsage] - the only way to see another thread's stack
        if frame is None:
            return "its thread has ended"
        calls = (f"{call.filename}:{call.lineno} in {call.name}" for call in reversed(traceback.extract_stack(frame)[-5:]))
        return f"it hangs at {', called from '.join(calls)}"


class Heartbeat:
    """The thread and the holders that it renews. A forked child has neither until it claims a run."""

    def __init__(self) -> None:
        self.forked()
        renew_in_children(self)

    def forked(self) -> None:
        """Start without a thread and without holders."""
        self._lock, self._wake = threading.Lock(), threading.Event()
        self._holders: weakref.WeakSet[Leased] = weakref.WeakSet()
        self._turns: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Turns] = weakref.WeakKeyDictionary()
        self._thread: threading.Thread | None = None

    def keep(self, holder: Leased) -> None:
        """Renew the claims of a holder until it has none; called in the event loop that has just claimed."""
        with self._lock:
            self._turns.setdefault(asyncio.get_running_loop(), _Turns())
            self._holders.add(holder)
            if self._thread is None:
                self._wake.clear()
                self._thread = threading.Thread(target=self._renew, name="detent-heartbeat", daemon=True)
                self._thread.start()
            elif holder.every_s < LOOK_S:
                self._wake.set()  # it may wait for longer

    def leave(self, holder: Leased) -> None:
        """Stop renewing for a holder whose store closes; without other holders end at once. The thread still calls `rest`."""
        with self._lock:
            if holder in self._holders:
                holder.runs.clear()
                self._wake.set()

    def _renew(self) -> None:
        look_s, last = LOOK_S, time.monotonic()
        while holders := self._left():
            now = time.monotonic()
            passed_s, last = min(now - last, 2 * look_s), now  # it may have been stopped in between
            looked: set[asyncio.AbstractEventLoop] = set()
            for holder in holders:
                loops = holder.loops()
                _give_back(holder, loops)
                for loop in loops - looked:
                    self._turns.setdefault(loop, _Turns()).look(loop, passed_s)
                looked |= loops
                slowest = max((self._turns[loop] for loop in loops), key=lambda turns: turns.silent_s, default=None)
                if slowest is not None and not _stuck(holder, slowest) and holder.due:
                    _sign(holder)
            look_s = min(LOOK_S, *(holder.every_s for holder in holders))
            self._wake.wait(look_s)
            self._wake.clear()

    def _left(self) -> list[Leased]:
        """Return the holders that have claims. If there is none, the process forgets this thread."""
        with self._lock:
            idle = [holder for holder in self._holders if not holder.loops()]
            self._holders.difference_update(idle)
        for holder in idle:
            with suppress(Exception):  # a connection to say goodbye to
                holder.rest()
        with self._lock:
            left = list(self._holders)
            if not left:
                self._thread = None
            return left


def _give_back(holder: Leased, loops: Set[asyncio.AbstractEventLoop]) -> None:
    """Release the claims of closed loops in an open loop of the holder."""
    if (give_back := holder.give_back) is not None:
        for run_id in holder.strands() if loops else ():
            with suppress(RuntimeError):  # that one was closed now, too
                next(iter(loops)).call_soon_threadsafe(give_back, run_id)


def _stuck(holder: Leased, turns: _Turns) -> bool:
    """Whether a loop has hung for too long; log it, once at half the time and once then."""
    level = min(int(2 * turns.silent_s / holder.stuck_s), 2)
    if level and level > holder.warned:
        runs = ", ".join(sorted(holder.runs)[:5])
        if level == 1:
            log.warning(
                "the event loop has been blocked for %.3g s, %s. If it stays blocked, other workers may take its runs (%s) after %g s"
                " (`stuck_s`)",
                turns.silent_s,
                turns.where(),
                runs,
                holder.stuck_s,
            )
        else:
            log.error(
                "the event loop has been blocked for %.3g s, %s: the claims on its runs (%s) are no longer renewed, other workers may take them",
                turns.silent_s,
                turns.where(),
                runs,
            )
    holder.warned = level
    return level >= 2


def _sign(holder: Leased) -> None:
    try:
        holder.sign()
    except Exception as error:  # noqa: BLE001 - the thread lives on: whatever a store meets, it may be over at the next look
        if holder.monotonic() - holder.signed >= holder.lease_s / 2:
            log.warning("the claims of this process cannot be renewed and are lost when their lease ends: %s; trying again", error)


HEARTBEAT = Heartbeat()
"""The heartbeat of this process."""
