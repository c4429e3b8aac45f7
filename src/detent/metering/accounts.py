"""The accounts that all processes of a store share: which providers, tools, agents and tenants are held, and who closes a provider's account.

Theory of operation. What is held is kept in the store (`ports.holding`). An engine reads it before a run begins, with every look for work, and
whenever its watcher looks at the inboxes. In between it is known here, so a call costs no round trip. Who closes an account wakes everybody.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta

from detent.core.errors import ModelCallFailure, StoreError
from detent.core.state import KernelState, RunState
from detent.ports import Clock, EventStore, wake_workers
from detent.ports.holding import HELD_AS, HeldKind, Hold, keep_hold, kept_holds

log = logging.getLogger("detent")

FRESH_S = 1.0
"""How old a reading may be on which a run begins, in seconds."""
MOST_CLOSED_S = 3600.0
"""The longest time for which a provider's answer closes its account; then one more call may ask."""
CLOSES = ("rate_limited", "server")
"""The classes of failure after which a provider's wish for a pause closes its account."""
AGAIN_S = (5.0, 300.0)
"""How soon a worker checks a run again that somebody holds: the shortest and the longest time. Whoever resumes it also makes it due."""


class Accounts:
    """What is held in one store, as this engine last read it."""

    __slots__ = ("_read_at", "clock", "holds", "store")

    def __init__(self, store: EventStore, clock: Clock) -> None:
        self.store, self.clock = store, clock
        self.holds: tuple[Hold, ...] = ()
        self._read_at = -math.inf

    @property
    def alone(self) -> bool:
        """Whether no other process can use the store."""
        return self.store.url.startswith("ram:")

    async def read(self, *, fresh_s: float = 0.0) -> Sequence[Hold]:
        """Return everything that is held; read it, unless the last reading is that fresh. Raise `StoreError`.

        The clock is read only if something is held: how often an engine looks is left to chance, and must not show in the times of its runs.
        """
        now = asyncio.get_running_loop().time()
        if not 0 <= now - self._read_at < fresh_s:
            kept = await self.store.list_blobs(HELD_AS)
            self.holds, self._read_at = await kept_holds(self.store, self.clock.now(), tidy=True) if kept else (), now
        return self.holds

    def on(self, of: HeldKind, name: str) -> Hold | None:
        """Return what holds this, the longest hold first; None if nothing does."""
        for hold in self.holds:
            if hold.of == of and hold.name == name and hold.left_s(self.clock.now()):
                return hold
        return None

    def all_of(self, of: HeldKind) -> tuple[str, ...]:
        """Return the names of everything of a kind that is held."""
        return tuple(sorted({hold.name for hold in self.holds if hold.of == of and hold.left_s(self.clock.now())}))

    def stops(self, state: RunState, tools: Iterable[str] = ()) -> Hold | None:
        """Return what holds a run that wants to continue, or to call one of these tools; None if nothing does."""
        if not self.holds or state.cancel is not None:
            return None
        found = self.on("agent", state.agent.name) or self.on("tenant", state.host.tenant)
        return found or next((hold for tool in tools if (hold := self.on("tool", tool)) is not None), None)

    def holding(self, state: RunState) -> Hold | None:
        """Return what holds a run at its next step, whatever model it asks; None if nothing does."""
        return held_by(state, self.holds, self.clock.now(), models=False) if self.holds else None

    def left_s(self, hold: Hold) -> float:
        """Return the seconds that are left of a hold."""
        return hold.left_s(self.clock.now())

    def again(self, hold: Hold) -> datetime:
        """Return when it is worth trying again: the end of the hold; of a pause, the longer it lasts the later."""
        now = self.clock.now()
        if hold.until is not None:
            return hold.until
        return now + timedelta(seconds=min(AGAIN_S[1], max(AGAIN_S[0], (now - hold.at).total_seconds())))

    async def close(self, provider: str, failure: ModelCallFailure, *, by: str) -> datetime | None:
        """Close the account of a provider that asked for a pause, for everybody, until then. Return until when; None if it did not ask."""
        if not provider or not failure.retry_after_s or failure.kind not in CLOSES:
            return None
        now = self.clock.now()
        until = now + timedelta(seconds=min(failure.retry_after_s, MOST_CLOSED_S))
        known = self.on("provider", provider)
        if known is None or (known.until is not None and known.until < until):
            hold = Hold(
                of="provider", name=provider, by=by, why=f"{failure.kind}: it asked for {failure.retry_after_s:g} s", at=now, until=until
            )
            self.holds = (hold, *self.holds)
            try:
                await keep_hold(self.store, hold)
                await wake_workers(self.store)
            except StoreError as error:  # here it is closed, and whoever asks next elsewhere closes it there
                log.warning("%s, and the store could not be told: %s", hold.said, error)
        return until


def held_by(state: RunState, holds: Sequence[Hold], now: datetime, *, models: bool = True) -> Hold | None:
    """Return what holds a run at its next step; None if nothing does, or if it has ended or is to end.

    Its agent or tenant; the tool of the call that begins next; or (`models`) the provider of its model, if that is asked next. A planner may have
    another model to fall back to. A run with several passes is held if each of them is.
    """
    there: dict[tuple[str, str], Hold] = {(hold.of, hold.name): hold for hold in reversed(holds) if hold.left_s(now)}
    if not there or state.terminal or state.cancel is not None:
        return None
    if (found := there.get(("agent", state.agent.name)) or there.get(("tenant", state.host.tenant))) is not None:
        return found
    provider = there.get(("provider", provider_of(state.agent.model))) if models else None
    passes = [_held_pass(one, there, provider) for one in state.open_passes]
    return passes[0] if passes and all(passes) else provider if not state.passes else None


def _held_pass(one: KernelState, there: dict[tuple[str, str], Hold], provider: Hold | None) -> Hold | None:
    """Return what holds a pass: the tool of the first call that has not begun, or the provider of its model if it plans next."""
    waiting = next((call for call in one.calls.values() if call.status in ("planned", "allowed")), None)
    if waiting is not None:
        return there.get(("tool", waiting.tool))
    return provider if one.plan is None else None


def provider_of(model: str) -> str:
    """Return the provider in the name of a model, "" if it names none."""
    return model.partition(":")[0] if ":" in model else ""
