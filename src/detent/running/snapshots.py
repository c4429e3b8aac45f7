"""Snapshots: the state at some record without its histories, so that a long run is ready for its next step at once.

Theory of operation. The log stays the only truth. A snapshot is `RunState` without the parts that grow with steps (transcript, results, fingerprints
of what was seen). It is written every `EVERY` records, best effort. Loading still reads every line and checks every digest. The snapshot counts only
if it has this version of the fold and the chain has its digest at its sequence. The histories are gathered from the records before it, with the
functions of the fold; only records after it are folded. Records that do anything else to a history (replies, notes, reconciled calls) are not
gathered: then the whole log is folded, as without a snapshot. Either way the state is the fold of the log (law 1).
"""

from __future__ import annotations

import contextlib
import gc
import logging
from collections.abc import Awaitable, Generator, Iterable, Sequence
from hashlib import sha256
from itertools import pairwise
from types import CoroutineType
from typing import Any

import msgspec

from detent.core import events as e
from detent.core.actions import ToolCall, snake
from detent.core.codec import STATE_VERSION, decode_envelope, decode_event, links, read_log
from detent.core.errors import CorruptLog, RunNotFound
from detent.core.fold import fingerprint, fold, item_of
from detent.core.history import Map, Seq
from detent.core.state import CallState, Item, RunState
from detent.kernel.journal import Journal, Sink
from detent.metering.tenants import Tenants, spent_between
from detent.ports import Clock, EventStore, Ids
from detent.running.artifacts import read_whole, refuse_damaged
from detent.running.branching import branch
from detent.running.effects import Effects
from detent.running.lineage import Segment, forked_of, segments
from detent.running.posting import posts_of
from detent.running.states import dump_state, load_state

replace = msgspec.structs.replace

log = logging.getLogger("detent")

_VERSIONED = b',"v":'
"""Appears in the envelope of a record of another format version; a quote inside a JSON string is escaped."""

EVERY = 1000
"""How many records lie between two snapshots."""


def dump_snapshot(state: RunState) -> bytes:
    """Return the snapshot of a state, with its own digest after it: no record covers a snapshot."""
    bare = {scope: replace(known, steps=Seq(), results=Seq(), seen=Map()) for scope, known in state.passes.items()}
    data = dump_state(replace(state, passes=bare))
    return b"%b\n%b" % (data, sha256(data).hexdigest().encode())


async def load_run(store: EventStore, run_id: str, *, artifacts: bool = False) -> RunState:
    """Return the state of a run, from its snapshot if that counts. Raise `RunNotFound`, `CorruptLog`, `NewerVersion`, `RunErased`.

    `artifacts`: also check those that its log names.
    """
    lines = await read_whole(store, run_id)
    if not lines:
        raise RunNotFound(run_id, store.url)
    base = await base_of(store, run_id, lines)
    if artifacts:
        await refuse_damaged(store, run_id, lines)
    known = await store.get_snapshot(run_id) if base is None and len(lines) >= EVERY else None
    return state_of(run_id, lines, known, base)


async def base_of(store: EventStore, run_id: str, lines: Sequence[bytes]) -> RunState | None:
    """Return the state that the records of a fork are folded onto; None for other runs. Raise `CorruptLog`, `NewerVersion`, `RunErased`."""
    found = await segments(store, run_id, lines)
    state: RunState | None = None
    for one, below in pairwise([*found, Segment(run_id, lines, 0)]):
        used, forked = one.lines[: one.used], forked_of(below.lines[0])
        known = await store.get_snapshot(one.run_id) if state is None and len(used) >= EVERY else None
        state = state_of(one.run_id, used, known, state)
        if forked is None:
            raise CorruptLog(below.run_id, 1, f"it continues from run {one.run_id!r}, but does not say from which record")
        state = branch(state, forked, below.run_id)
    return state


def state_of(run_id: str, lines: Sequence[bytes], snapshot: tuple[int, bytes] | None, base: RunState | None = None) -> RunState:
    """Return the fold of a log, a fork's onto its `base`; the result is the same with a snapshot and without.

    Raise `CorruptLog`, `NewerVersion`, `RunErased`.
    """
    with uncollected():
        state = restored(run_id, lines, *snapshot) if snapshot is not None else None
        if state is None:
            return fold(read_log(run_id, lines), base)
        return fold(read_log(run_id, lines[state.seq :], previous=state.digest, after=state.seq), state)


@contextlib.contextmanager
def uncollected() -> Generator[None]:
    """Keep the garbage collector from scanning a history again and again while it is built: all of it stays."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


def restored(run_id: str, lines: Sequence[bytes], seq: int, data: bytes) -> RunState | None:
    """Return the state at the snapshot, with its histories; None if the snapshot does not count."""
    data, _, digest = data.rpartition(b"\n")
    if not data.startswith(b'{"v":%d,' % STATE_VERSION) or not 0 < seq <= len(lines) or sha256(data).hexdigest().encode() != digest:
        return None
    try:
        state = load_state(data, RunState)
    except ValueError as error:
        log.debug("the snapshot of run %s is not used: %s", run_id, error)
        return None
    if (state.run_id, state.seq) != (run_id, seq) or not lines[seq - 1].endswith(b'"digest":"%b"}' % state.digest.encode()):
        return None
    try:
        gathered = gather(state, links(run_id, lines[:seq]))
    except (LookupError, ValueError):  # msgspec's errors are ValueErrors; the fold will report the fault
        return None
    if gathered is None or gathered.keys() != state.passes.keys():
        return None
    passes = {
        scope: replace(known, steps=Seq(gathered[scope].steps), results=Seq(gathered[scope].results), seen=gathered[scope].seen)
        for scope, known in state.passes.items()
    }
    return replace(state, passes=passes)


class Histories:
    """The history of one pass so far; `calls` are those of its current turn, `outcomes` their items by index."""

    __slots__ = ("calls", "observed", "outcomes", "results", "seen", "steps")

    def __init__(self, first: Item) -> None:
        self.steps: list[Item] = [first]
        self.results: list[Item] = []
        self.seen: Map[str, bool] = Map()
        self.calls: dict[str, CallState] = {}
        self.outcomes: list[Item | None] = []
        self.observed = 0

    def planned(self, event: e.Planned, scope: str, iteration: int) -> None:
        """Begin a turn's calls."""
        self.steps.append(Item(kind="model", iteration=iteration, text=event.text, plan=event))
        wanted = [action for action in event.actions if isinstance(action, ToolCall)]
        ids = [f"{scope}.{iteration}.{i}" for i in range(len(wanted))]
        self.calls = {ids[i]: CallState(call_id=ids[i], index=i, tool=call.tool, args=call.args) for i, call in enumerate(wanted)}
        self.outcomes = [None for _ in wanted]
        self.observed = 0

    def change(self, call_id: str, **changes: Any) -> None:
        """Note a fact about a call before its outcome."""
        self.calls[call_id] = replace(self.calls[call_id], **changes)

    def finished(self, event: e.ToolFinished, iteration: int) -> None:
        """Add an outcome; it becomes visible once those of all earlier calls are there."""
        call = self.calls[event.call]
        if event.digest and not call.attempt:
            call = self.calls[event.call] = replace(call, digest=event.digest, attempt=1, trust=event.trust, side_effect="read")
        item = item_of(
            call, iteration, result=event.result, artifact=event.artifact, error=event.error, latency_ms=event.latency_ms, meta=event.meta
        )
        if event.error is None and not call.volatile and (fresh := fingerprint(call, item)) not in self.seen:
            self.seen = self.seen.put(fresh, True)
        self.outcomes[call.index] = item
        while self.observed < len(self.outcomes) and (item := self.outcomes[self.observed]) is not None:
            self.steps.append(item)
            self.results.append(item)
            self.observed += 1


_UNTOUCHED = tuple(
    b'{"type":"%b"' % snake(kind.__name__).encode()
    for kind in (
        *(e.PolicyDecided, e.TurnStarted, e.ModelCallStarted, e.StateChanged, e.EffectRecorded, e.ModelCallFailed),
        *(e.RunStarted, e.RunResumed, e.RunReopened, e.RunWaiting, e.RunFinished, e.BudgetChanged, e.StrategySwitched, e.PassFinished),
        *(e.GuardBlocked, e.ApprovalRequested, e.ApprovalResolved, e.ApprovalExpired, e.ToolInDoubt, e.ContextCompacted, e.CancelRequested),
        *(e.TenantBalance, e.AnswerRefused, e.LevelsAccepted),
    )
)
"""The beginnings of the events that leave all histories unchanged, in any state; the most frequent first."""


def gather(run: RunState, records: Iterable[tuple[bytes, bytes | None, str]]) -> dict[str, Histories] | None:
    """Return the histories of each pass after these records; None if one of them needs the fold.

    Raise `LookupError` or `ValueError` if a record is malformed.
    """
    passes: dict[str, Histories] = {}
    for head, body, _ in records:
        if body is None or _VERSIONED in head:
            return None
        if body.startswith(_UNTOUCHED):
            continue
        match event := decode_event(body):
            case e.ToolFinished():
                scope, iteration, _ = event.call.rsplit(".", 2)
                passes[scope].finished(event, int(iteration))
            case e.ToolStarted():
                begun = {"digest": event.digest, "attempt": event.attempt, "volatile": event.volatile, "trust": event.trust}
                passes[event.call.rsplit(".", 2)[0]].change(event.call, **begun, side_effect=event.side_effect)
            case e.Planned(embedded=None, dropped=(), refused=""):
                envelope = decode_envelope(head)
                if not envelope.iteration:
                    return None
                passes[envelope.scope].planned(event, envelope.scope, envelope.iteration)
            case e.CallHealed():
                passes[event.call.rsplit(".", 2)[0]].change(event.call, tool=event.tool, args=event.args)
            case e.MemoryRecalled():
                envelope = decode_envelope(head)
                if event.memory and event.items:
                    recalled = Item(kind="memory", iteration=envelope.iteration, arguments=list(event.items))
                    passes[envelope.scope].steps.append(recalled)
            case e.ApprovalEdited():
                passes[event.call.rsplit(".", 2)[0]].change(event.call, args=event.args, edited=True)
            case e.PassStarted():
                passes[event.key] = Histories(Item(kind="user", text=event.input or run.goal))
            case _:
                return None
    return passes


class SnapshotJournal(Journal):
    """A journal that writes a snapshot every so many records; if that fails, the run does without."""

    __slots__ = ("_due", "_effects", "_tenants")

    def __init__(
        self,
        store: EventStore,
        state: RunState,
        effects: Effects,
        *,
        clock: Clock,
        ids: Ids,
        sinks: Sequence[Sink] = (),
        claim: int | None = None,
        tenants: Tenants | None = None,
    ) -> None:
        super().__init__(store, state, clock=clock, ids=ids, sinks=sinks, claim=claim)
        self._effects = effects
        self._due, self._tenants = state.seq + EVERY, tenants or None

    def _beside(self, before: RunState, state: RunState, lines: Sequence[bytes]) -> dict[str, Any]:
        """Charge the run's tenant, reserve in its account (`detent.metering.tenants`), and tell the runs of its family what concerns them (`posts_of`).

        A run without a tenant is charged only if the engine bounds such runs.
        """
        posts = posts_of(state, lines) if state.children or state.delegated is not None else ()
        more: dict[str, Any] = {"posts": posts} if posts else {}
        if self._tenants is not None and before.reserved is not state.reserved:
            more |= self._tenants.kept_between(before, state)
        if (not state.host.tenant and self._tenants is None) or (before.seq and state.usage == before.usage):
            return more
        spent = spent_between(before.usage, state, lines, first=not before.seq)
        return more if spent is None else {"spent": spent, **more}

    def commit(self, *, durable: bool = False, intent: bool = False) -> CoroutineType[Any, Any, None]:
        """See `Journal.commit`."""
        committed = super().commit(durable=durable, intent=intent)
        if self._effects.by_task and not intent:
            committed = self._recorded(committed)
        return committed if self.state.seq < self._due else self._kept(committed)

    async def _recorded(self, committed: Awaitable[None]) -> None:
        """Note that an outcome is recorded. Raise `CancelledError` if the run stops."""
        await committed
        self._effects.committed()

    async def _kept(self, committed: Awaitable[None]) -> None:
        await committed
        state = self.state
        self._due = state.seq + EVERY
        try:
            await self._store.put_snapshot(state.run_id, state.seq, dump_snapshot(state))
        except Exception as error:  # noqa: BLE001 - an optimisation: whatever goes wrong with it, the log is whole
            log.debug("no snapshot of run %s at record %s: %s", state.run_id, state.seq, error)
