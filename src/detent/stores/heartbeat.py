"""One thread a process that renews the claims of its stores, also while their event loops are blocked; there is none while nothing is claimed.

Theory of operation. A claim lasts as long as its holder's lease, on the same host as between hosts. A loop cannot be relied on to renew it: a tool
may block it for longer than that. A thread can, and it stands still where the process does (SIGSTOP, a frozen container), which is what a lease is
to find out. So that a loop that never turns again keeps nothing for ever, the thread asks each loop for an answer: without one for half of
`stuck_s` it says loudly where the loop stands, and after `stuck_s` it renews nothing that the loop has claimed. Time in which the thread itself
did not run counts for nobody.

A loop that was closed advances nothing any more. What was claimed in it is given back in another loop of the same holder; where there is none, the
holder `rests`, and others take its claims at once.
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
"""How long an event loop may stand still before the claims that it has taken are not renewed any more."""

LOOK_S = 1.0
"""How often the thread looks at least: when nothing is claimed any more it ends as soon, and a run that follows at once finds it still there."""

log = logging.getLogger("detent")


def new_number() -> int:
    """Return a number that no other claim has."""
    return secrets.randbits(62) + 1


class Taken:
    """A claim that is held: its number, and the event loop that advances its run."""

    __slots__ = ("loop", "number")

    def __init__(self, number: int) -> None:
        self.number, self.loop = number, weakref.ref(asyncio.get_running_loop())

    @property
    def stranded(self) -> bool:
        """Whether that loop was closed: it does not come back."""
        loop = self.loop()
        return loop is None or loop.is_closed()


class Leased:
    """A holder of claims whose lease the thread renews with `sign`; `runs` are those that it has taken.

    `monotonic` is the clock of leases on this host. With clocks of the caller's own (`beats` false) no thread renews, only `EventStore.renew`.
    """

    def __init__(self, *, lease_s: float, stuck_s: float, monotonic: Callable[[], float], beats: bool) -> None:
        for name, value in (("lease_s", lease_s), ("stuck_s", stuck_s)):
            if not value > 0:
                raise ConfigError(f"{name} is {value!r}; it must be above 0")
        self.lease_s, self.stuck_s, self.monotonic, self.beats = lease_s, stuck_s, monotonic, beats
        self.every_s = lease_s / 6  # a renewal may be late twice and more
        self.runs: dict[str, Taken] = {}
        self.give_back: Callable[[str], None] | None = None
        """Gives the claim of a stranded run up; called in an event loop. The store sets it."""
        self.signed = float("-inf")
        self.warned = 0

    def has_taken(self, run_id: str, number: int) -> None:
        """Remember a claim that was granted, and renew it from now on; one that is held in an open loop already stays what it is."""
        held = self.runs.get(run_id)
        if held is None or held.number != number or held.stranded:
            self.runs[run_id] = Taken(number)
        if self.beats:
            HEARTBEAT.keep(self)

    @property
    def due(self) -> bool:
        """Whether the last sign of life is so old that there should be another."""
        return self.monotonic() - self.signed >= self.every_s

    def sign(self) -> None:
        """Show that this holder lives, from the thread: it may take as long as the next sign is due, and raise whatever it likes."""
        raise NotImplementedError

    def rest(self) -> None:
        """Nothing is claimed any more, or in loops alone that were closed: see that others can have it. Called in the thread, which may end after it."""

    def strands(self) -> list[str]:
        """Return the runs that were claimed in loops that were closed."""
        return [run_id for run_id, taken in list(self.runs.items()) if taken.stranded]

    def loops(self) -> Set[asyncio.AbstractEventLoop]:
        """Return the event loops that have claims here, without those that were closed."""
        return {loop for taken in list(self.runs.values()) if (loop := taken.loop()) is not None and not loop.is_closed()}


class _Turns:
    """Whether an event loop turns: how long it has owed an answer, and in which thread it runs."""

    __slots__ = ("asked", "silent_s", "thread")

    def __init__(self) -> None:
        self.asked, self.silent_s, self.thread = False, 0.0, threading.get_ident()

    def look(self, loop: asyncio.AbstractEventLoop, passed_s: float) -> None:
        """Count the time that has passed without an answer; ask again where there was one."""
        if self.asked:
            self.silent_s += passed_s
            return
        self.asked = True
        with suppress(RuntimeError):  # it was closed
            loop.call_soon_threadsafe(self._answer)

    def _answer(self) -> None:
        self.asked, self.silent_s, self.thread = False, 0.0, threading.get_ident()

    def where(self) -> str:
        """Return the line at which the loop's thread stands, and from where it came there."""
        frame = sys._current_frames().get(self.thread)  # pyright: ignore[reportPrivateUsage] - the only way to see another thread's stack
        if frame is None:
            return "its thread has ended"
        calls = (f"{call.filename}:{call.lineno} in {call.name}" for call in reversed(traceback.extract_stack(frame)[-5:]))
        return f"it stands at {', called from '.join(calls)}"


class Heartbeat:
    """The thread, and the holders that it renews. A forked child has neither, until it claims something itself."""

    def __init__(self) -> None:
        self.forked()
        renew_in_children(self)

    def forked(self) -> None:
        """Have no thread and no holder."""
        self._lock, self._wake = threading.Lock(), threading.Event()
        self._holders: weakref.WeakSet[Leased] = weakref.WeakSet()
        self._turns: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Turns] = weakref.WeakKeyDictionary()
        self._thread: threading.Thread | None = None

    def keep(self, holder: Leased) -> None:
        """Renew what a holder has taken, from the event loop that has just claimed it, until it has nothing any more."""
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
        """Renew nothing of a holder whose store is closing, and end at once where there is no other; `rest` is still called in the thread."""
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
        """Return the holders that have claims; without any the thread is the process's no more."""
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
    """Have an open loop of the holder give up what was claimed in loops that were closed."""
    if (give_back := holder.give_back) is not None:
        for run_id in holder.strands() if loops else ():
            with suppress(RuntimeError):  # that one was closed now, too
                next(iter(loops)).call_soon_threadsafe(give_back, run_id)


def _stuck(holder: Leased, turns: _Turns) -> bool:
    """Whether a loop has not turned for too long; say so, once before and once then."""
    level = min(int(2 * turns.silent_s / holder.stuck_s), 2)
    if level and level > holder.warned:
        runs = ", ".join(sorted(holder.runs)[:5])
        if level == 1:
            log.warning(
                "the event loop has not turned for %.3g s, %s: something blocks it. Unless it turns, other workers may take its runs (%s) after %g s"
                " (`stuck_s`)",
                turns.silent_s,
                turns.where(),
                runs,
                holder.stuck_s,
            )
        else:
            log.error(
                "the event loop has not turned for %.3g s, %s: its runs (%s) are not kept any more, other workers may take them",
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
            log.warning("the claims of this process cannot be renewed, and are lost when their lease ends: %s; trying again", error)


HEARTBEAT = Heartbeat()
"""The process's."""
