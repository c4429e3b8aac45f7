"""The only writer of a run's log.

Theory of operation. `record` stamps events, folds them and buffers their lines. It folds what was encoded, so the live state is always the fold
of the log. `commit` appends the buffer in one transaction, fenced by sequence. Nothing leaves the kernel before the commit that records it, and
observers and hooks are called after it. Durable commits survive power loss, the others survive process death:

1. durable before each attempt of a tool that is not read-only, and when it ends
2. ordinary right after a model call that used tokens or money
3. durable before anything leaves the kernel: answer, wait, approval request, child
4. at the end of every turn at the latest
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from detent.core.codec import decode_event, encode, encode_event, seal
from detent.core.events import AnyEvent, DeadLettered, Forked, RunFinished, RunStarted, RunWaiting, TurnStarted
from detent.core.fold import evolve
from detent.core.records import Envelope, Record
from detent.core.state import RunState
from detent.ports import Clock, EventStore, Ids
from detent.ports.gates import Gate
from detent.ports.heads import head_of
from detent.ports.telling import Fan, Listener

replace = msgspec.structs.replace

Sink = Callable[[Record, RunState], Any]


_NOBODY = Fan()
"""Shared by all runs without listeners: without listeners there are no failures to count."""


class Journal:
    """The log of one run while this process advances it under `claim`.

    `state` is the fold of everything recorded, `kept` that of what is committed: other runs may rely on that alone.
    """

    __slots__ = (
        "_clock",
        "_consumed",
        "_fan",
        "_fence",
        "_gate",
        "_ids",
        "_lines",
        "_released",
        "_sinks",
        "_store",
        "_telling",
        "_then",
        "_told",
        "_under",
        "kept",
        "state",
    )

    def __init__(
        self, store: EventStore, state: RunState, *, clock: Clock, ids: Ids, sinks: Sequence[Sink] = (), claim: int | None = None
    ) -> None:
        self.state = state
        self._store, self._clock, self._ids, self._fence = store, clock, ids, {} if claim is None else {"claim": claim}
        self._fan, self._sinks = Fan() if sinks else _NOBODY, tuple(Listener(sink, patient=False) for sink in sinks)
        self.kept = state
        self._lines: list[bytes] = []
        self._told: list[tuple[Record, RunState]] = []
        self._consumed: list[str] = []
        self._released = False
        self._then: tuple[Callable[[], None], ...] = ()
        self._under = False, False  # whether the last append was durable, and whether it was an intent
        self._gate, self._telling = Gate(), asyncio.Lock()

    def record(self, *events: AnyEvent, scope: str = "") -> None:
        """Stamp, fold and buffer `events`. Raise `IllegalEvent` for one that cannot follow; it is not kept."""
        for event in events:
            self.put(event, scope)

    def put(self, event: AnyEvent, scope: str) -> None:
        """Stamp, fold and buffer one event; see `record`. Raise the encoder's error if it is not JSON data."""
        before, kind = self.state, type(event)
        try:
            body = encode(event)
        except UnicodeEncodeError:
            body = encode_event(event)
        if kind is not TurnStarted:  # which holds nothing that could differ
            event = decode_event(body)  # what is folded is what was encoded
        iteration = event.iteration if isinstance(event, TurnStarted) else before.passes[scope].iteration if scope in before.passes else 0
        goal = "" if before.goal_id == before.run_id else before.goal_id
        envelope = Envelope(run=before.run_id, seq=before.seq + 1, at=self._clock.now(), goal=goal, scope=scope, iteration=iteration)
        salt = self._ids.token(16)
        if before.status == "running" and kind not in _LABELLED:
            line, digest = seal(envelope, body, previous=before.digest, salt=salt)
            self.state = evolve(before, Record(envelope, event, digest))
        else:
            after = evolve(before, Record(envelope, event, ""))
            envelope = _labelled(envelope, event, after)
            line, digest = seal(envelope, body, previous=before.digest, salt=salt)
            self.state = replace(after, digest=digest)
        self._lines.append(line)
        if self._sinks:
            self._told.append((Record(envelope, event, digest), self.state))

    def consume(self, signal_id: str) -> None:
        """Drop a signal from the inbox with the next commit."""
        self._consumed.append(signal_id)

    def release(self) -> None:
        """Release all the run's reservations with the next commit."""
        self._released = True

    def then(self, done: Callable[[], None]) -> None:
        """Call `done` once what is recorded so far is committed, or is dropped."""
        self._then += (done,)

    def dropped(self) -> None:
        """Nothing that is not committed by now will be."""
        waiting, self._then = self._then, ()
        for done in waiting:
            done()

    @property
    def uncommitted(self) -> tuple[int, Sequence[bytes]]:
        """How many records the log has, and the lines that no commit has appended to them."""
        return self.kept.seq, tuple(self._lines)

    async def commit(self, *, durable: bool = False, intent: bool = False) -> None:
        """Append what was recorded since the last commit. Raise `Conflict`, `StoreBusy` or `StoreFull`; nothing was appended then.

        `intent`: a call with an effect begins; this can also raise `CancelWaits`. If another pass has already appended these records with a weaker
        promise, an append of no records makes them durable.
        """
        self._gate.closed = not self._gate.closed or await self._gate.turn()
        try:
            as_good = durable <= self._under[0] and intent <= self._under[1]
            if not self._lines and not self._consumed and not self._released and as_good:
                return
            lines, consumed, released, waiting, state = self._lines, self._consumed, self._released, self._then, self.state
            self._lines, self._consumed, self._released, self._then = [], [], False, ()
            try:
                more: dict[str, Any] = self._beside(self.kept, state, lines) | ({"released": None} if released else {})
                more |= self._fence | ({"intent": True} if intent else {})
                await self._store.append(
                    state.run_id, self.kept.seq, lines, head=head_of(state), durable=durable, consumed=consumed, **more
                )
            except BaseException:
                self._lines, self._consumed = lines + self._lines, consumed + self._consumed
                self._released, self._then = self._released or released, waiting + self._then
                raise
            self.kept, self._under = state, (durable, intent)
            for done in waiting:
                done()
        finally:
            self._gate.leave()
        if self._sinks and self._told:
            async with self._telling:
                await self._tell_in_order()

    def _beside(self, before: RunState, state: RunState, lines: Sequence[bytes]) -> dict[str, Any]:
        """Return what else the append of `lines`, which lead from `before` to `state`, does in the store."""
        return {}

    async def _tell_in_order(self) -> None:
        told = [pair for pair in self._told if pair[0].envelope.seq <= self.kept.seq]
        self._told = self._told[len(told) :]
        for pair in told:
            answer = self._fan.tell(self._sinks, *pair)
            if answer is not None:
                await answer


_LABELLED = frozenset((RunStarted, Forked, RunWaiting, RunFinished, DeadLettered))
"""Events that change the run's status or name its owner. Their envelope is known only after the fold."""


def _labelled(envelope: Envelope, event: AnyEvent, after: RunState) -> Envelope:
    """Add what listings need: a status other than running, and on the first record the owner."""
    status = "" if after.status == "running" else after.status
    if isinstance(event, (RunStarted, Forked)):
        return replace(envelope, status=status, tenant=after.host.tenant, agent=after.agent.name, parent=event.parent)
    return replace(envelope, status=status, reason=after.reason)
