"""How the outside reaches a run that is being advanced: it delivers signals and interrupts a call in progress.

A cancelled run asks its tool to stop (its context's `cancelled` flag). After the grace it cancels the tool's task, and the tool's effect is in doubt.

A run that stops (`drain`) begins nothing more. It cuts off reads and model calls at once, and lets calls with an effect finish. Such a call is in
progress from before its intent is recorded until its outcome is (`effects`). When the last of them is recorded, or the time is up, or somebody stops
the run again, it is cut (`suspend`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from detent.config.groups import DRAIN_S, GRACE_S
from detent.core.state import RunState
from detent.ports import Cancellation, Signal
from detent.running.effects import Effect, Effects
from detent.running.rules import cancels

log = logging.getLogger("detent")
CALLER_GONE = "its caller was cancelled"
"""The reason for stopping a run whose caller gets a cancellation instead of a suspension."""
CUT_OFF = "; cut off: "
"""Separates the reason of a suspension from the calls that did not finish."""

_NONE: frozenset[str] = frozenset()


def _unbounded() -> None:
    """Return None: a run without a world has no time limit yet."""


class Section:
    """A part of the task that entered it, which may be interrupted. `pending` is its own cancellation that nobody has taken back."""

    __slots__ = ("_control", "grace_s", "pending", "task")

    def __init__(self, control: Control, grace_s: float | None) -> None:
        self._control, self.grace_s, self.pending = control, grace_s, False

    def __enter__(self) -> None:
        self.task = asyncio.current_task()
        self._control.enter(self)

    def __exit__(self, *_: object) -> None:
        self._control.sections.remove(self)
        if self.pending and self.task is not None:
            self.task.uncancel()  # it was swallowed: whoever awaits this task next must not take it for someone else's


class Finishing(NamedTuple):
    """A call that a stopping run still waits for, and the longest wait."""

    run_id: str
    call: Effect
    left_s: float


class Control:
    """One run's connection to the outside while this process advances it; `sections` are the open ones."""

    __slots__ = (
        "__weakref__",
        "_signals",
        "_taken",
        "_task",
        "_timer",
        "_until",
        "cancelled",
        "doing",
        "drain_s",
        "effects",
        "ends",
        "grace_s",
        "late",
        "put_off",
        "ready",
        "run_id",
        "sections",
        "stop",
        "time_left",
        "told",
    )

    def __init__(self, run_id: str = "", *, grace_s: float = GRACE_S, drain_s: float = DRAIN_S, doing: str = "") -> None:
        """Set up the control. `doing` names the reason for holding a run that is not advanced."""
        self.run_id, self.cancelled, self.doing = run_id, Cancellation(), doing
        self.grace_s, self.drain_s = grace_s, drain_s
        self.stop: str = ""
        self.effects = Effects()
        self.ends: dict[str, RunState] = {}
        """The children that have ended in this process, until the run has taken the signals of that."""
        self._until = 0.0
        self.ready = False
        self.sections: list[Section] = []
        self._signals: dict[str, Signal] = {}
        self._taken = _NONE
        self.put_off = False
        self._task: asyncio.Task[Any] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self.told: dict[Callable[[], None], None] = {}
        self.forget_time()

    def forget_time(self) -> None:
        """Have no time limit until the run's world sets one: `time_left` is in seconds, `late` returns the error to raise when it is up."""
        self.time_left: Callable[[], float | None] = _unbounded
        self.late: Callable[[], BaseException | None] = _unbounded

    def attach(self) -> None:
        """Make the current task the one that a suspension cancels."""
        self._task = asyncio.current_task()

    @property
    def attached(self) -> bool:
        """Whether a task advances the run."""
        return self._task is not None

    def detach(self) -> None:
        """Forget the run's time and calls: it is not advanced any more."""
        self.forget_time()
        self.effects.clear()
        if self._timer is not None:
            self._timer.cancel()

    def deliver(self, signals: Sequence[Signal]) -> None:
        """Deliver signals. A cancellation interrupts the calls in progress, and the functions in `told` are called."""
        for signal in signals:
            if signal.id in self._taken:
                continue
            self._signals.setdefault(signal.id, signal)
            if not self.cancelled and cancels(signal, self.run_id):
                self.cancelled.set(signal.payload.get("why") or "cancelled")
                for section in self.sections:
                    self._interrupt(section)
                for tell in tuple(self.told):
                    tell()

    def notify(self, signals: Sequence[Signal]) -> None:
        """Deliver what waits in the inbox once the run is `ready`: the process that resumes it first decides which signals concern this opening."""
        if self.ready:
            self.deliver(signals)

    def drop(self, signals: Sequence[Signal]) -> list[Signal]:
        """Never deliver these signals. Return those that were not delivered before."""
        dropped = [signal for signal in signals if signal.id not in self._taken]
        self._taken |= {signal.id for signal in dropped}
        for signal in dropped:
            self._signals.pop(signal.id, None)
        return dropped

    @property
    def waiting(self) -> bool:
        """Whether signals were delivered and not taken yet."""
        return bool(self._signals)

    def take(self, early: Callable[[Signal], bool]) -> list[Signal]:
        """Return and forget the delivered signals. `early` ones are forgotten too, and delivered again; `put_off`: a message is among them."""
        self.put_off = False
        if not self._signals:
            return []
        taken = [signal for signal in self._signals.values() if not early(signal)]
        self.put_off = any(signal.kind == "message" and signal not in taken for signal in self._signals.values())
        self._taken |= {signal.id for signal in taken}
        self._signals.clear()
        return taken

    def during(self, grace_s: float | None = None) -> Section:
        """Mark a part of this task that may be interrupted, after that grace. Use as `with control.during(grace):`."""
        return Section(self, grace_s)

    def enter(self, section: Section) -> None:
        """Begin a section. If the run is cancelled already, interrupt it too."""
        self.sections.append(section)
        if self.cancelled:
            self._interrupt(section)

    # Stopping ---------------------------------------------------------------------------------------------------------------------

    def finishing(self) -> list[Finishing]:
        """Return the calls that a stopping run waits for."""
        if not self._until or self._task is None:
            return []
        left_s = max(0.0, self._until - self._task.get_loop().time())
        return [Finishing(self.run_id, effect, left_s) for effect in self.effects.awaited()]

    def _ended(self) -> None:
        """Note that a call with an effect is over. The task of the last one ends by itself; the run's own task is cut if it is another one."""
        if not self.effects.awaited() and self._task is not asyncio.current_task():
            self.suspend(self.stop)

    def drain(self, why: str, drain_s: float | None = None) -> None:
        """Begin nothing more, let calls with an effect finish for at most `drain_s` seconds, then suspend. A stopping run is left alone."""
        drain_s = self.drain_s if drain_s is None else drain_s
        if self.stop:
            return
        if self._task is None or drain_s <= 0 or not (effects := self.effects.awaited()):
            self.suspend(why)
            return
        self.stop, self.effects.stopping, loop = why, self._ended, self._task.get_loop()
        self._until, self._timer = loop.time() + drain_s, loop.call_later(drain_s, self.suspend, why)
        for section in self.sections:
            if section.task is not None and section.task not in self.effects.by_task:
                section.task.cancel()
        for tell in tuple(self.told):
            tell()
        said = ", ".join(map(str, effects))
        log.warning("run %s stops (%s): finishing %s, for at most %g s", self.run_id, why, said, drain_s, extra={"drain_s": drain_s})

    def suspend(self, why: str) -> None:
        """Stop advancing the run now; unfinished work stays unfinished."""
        cut = ", ".join(str(one.call) for one in self.finishing())
        self.stop = f"{why}{CUT_OFF}{cut}" if cut else self.stop or why
        self._until = 0.0
        if self._task is not None:
            with suppress(RuntimeError):  # its loop was closed
                self._task.cancel()

    def _interrupt(self, section: Section) -> None:
        grace_s = self.grace_s if section.grace_s is None else section.grace_s
        asyncio.get_running_loop().call_later(grace_s, self._cancel_if_open, section)

    def _cancel_if_open(self, section: Section) -> None:
        """Cancel the task of a section if it is still inside: its other work, such as a commit of a pass beside it, is not affected."""
        if section.task is not None and section in self.sections:
            section.task.cancel()
            section.pending = True

    def interrupted(self) -> bool:
        """Return whether a `CancelledError` that just arrived is this control's own. If so, it is used up."""
        if not self.cancelled or self.stop:
            return False
        if (task := asyncio.current_task()) is not None:
            task.uncancel()
            for section in self.sections:
                section.pending = section.pending and section.task is not task
        return True
