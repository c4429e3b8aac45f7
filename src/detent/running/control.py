"""How the outside reaches a run that is being advanced: signals are handed over, and a call in progress is interrupted.

A cancelled run asks its tool to stop (its context's `cancelled` flag). After the grace it cancels the tool's task, and what the tool may have
done is in doubt.

A run that stops (`drain`) begins nothing more. It cuts off reads and model calls at once, and lets calls with an effect finish. Such a call is in
progress from before its intent is recorded until its outcome is (`effects`). When the last of them is recorded, or the time is up, or somebody
stops the run again, it is cut (`suspend`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from detent.config.groups import DRAIN_S, GRACE_S
from detent.ports import Cancellation, Signal
from detent.running.effects import Effect, Effects
from detent.running.rules import cancels

log = logging.getLogger("detent")
CALLER_GONE = "its caller was cancelled"
"""Why a run stops whose caller hears of a cancellation, and not of a suspension."""
CUT_OFF = "; cut off: "
"""Between the reason why a run is suspended and its calls that did not finish."""

_NONE: frozenset[str] = frozenset()


def _unbounded() -> None:
    """Return None: a run that has no world yet has no time either."""


class Section:
    """What may be interrupted, in the task that has entered it. `pending` is a cancellation of its own that nobody has taken back."""

    __slots__ = ("_control", "grace_s", "pending", "task")

    def __init__(self, control: Control, grace_s: float | None) -> None:
        self._control, self.grace_s, self.pending = control, grace_s, False

    def __enter__(self) -> None:
        self.task = asyncio.current_task()
        self._control.enter(self)

    def __exit__(self, *_: object) -> None:
        self._control.sections.remove(self)
        if self.pending and self.task is not None:
            self.task.uncancel()  # it was swallowed: who awaits this task next is not to take it for somebody else's


class Finishing(NamedTuple):
    """A call that a stopping run still waits for, and for how long at most."""

    run_id: str
    call: Effect
    left_s: float


class Control:
    """One run's line to the outside while it is being advanced in this process; `sections` are those that are open."""

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
        "grace_s",
        "late",
        "ready",
        "run_id",
        "sections",
        "stop",
        "time_left",
        "told",
    )

    def __init__(self, run_id: str = "", *, grace_s: float = GRACE_S, drain_s: float = DRAIN_S, doing: str = "") -> None:
        """`doing` says for what a run is held that is not advanced."""
        self.run_id, self.cancelled, self.doing = run_id, Cancellation(), doing
        self.grace_s, self.drain_s = grace_s, drain_s
        self.stop: str = ""
        self.effects = Effects()
        self._until = 0.0
        self.ready = False
        self.sections: list[Section] = []
        self._signals: dict[str, Signal] = {}
        self._taken = _NONE
        self._task: asyncio.Task[Any] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self.told: dict[Callable[[], None], None] = {}
        self.forget_time()

    def forget_time(self) -> None:
        """Have no bound of time, until the world of the run sets one: `time_left` is in seconds, `late` what to raise where it is up."""
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
        """The run is not advanced any more: forget its time and its calls."""
        self.forget_time()
        self.effects.clear()
        if self._timer is not None:
            self._timer.cancel()

    def deliver(self, signals: Sequence[Signal]) -> None:
        """Hand signals over; a cancellation interrupts the calls in progress, and those in `told` are called."""
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
        """Hand over what waits in the inbox, once the run is `ready`: who takes it on decides first what of that concerns this opening."""
        if self.ready:
            self.deliver(signals)

    def drop(self, signals: Sequence[Signal]) -> list[Signal]:
        """Never hand these signals over; return those that were not handed over before."""
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
        """Return and forget what was delivered; what is `early` is forgotten, too, and delivered again."""
        if not self._signals:
            return []
        taken = [signal for signal in self._signals.values() if not early(signal)]
        self._taken |= {signal.id for signal in taken}
        self._signals.clear()
        return taken

    def during(self, grace_s: float | None = None) -> Section:
        """Use as `with control.during(grace):` around what may be interrupted in this task, after that grace."""
        return Section(self, grace_s)

    def enter(self, section: Section) -> None:
        """Begin a section; where the run is cancelled already, it is interrupted, too."""
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
        """A call with an effect is over. The task of the last one ends by itself; the run's own task is cut if it is another one."""
        if not self.effects.awaited() and self._task is not asyncio.current_task():
            self.suspend(self.stop)

    def drain(self, why: str, drain_s: float | None = None) -> None:
        """Begin nothing more, let calls with an effect finish for at most `drain_s` seconds, then suspend. A run that stops already is left alone."""
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
        """Stop advancing the run now; nothing is finished."""
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
        """Cancel the task of a section that it is still in: what else goes on, a commit of a pass beside it, is none of this."""
        if section.task is not None and section in self.sections:
            section.task.cancel()
            section.pending = True

    def interrupted(self) -> bool:
        """Whether a `CancelledError` that just arrived is this control's own; if so it is spent."""
        if not self.cancelled or self.stop:
            return False
        if (task := asyncio.current_task()) is not None:
            task.uncancel()
            for section in self.sections:
                section.pending = section.pending and section.task is not task
        return True
