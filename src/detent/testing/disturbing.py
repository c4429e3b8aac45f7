"""The faults that `simulate` injects into the seams of an engine: its store, its tools, its planner.

A fault is one disturbance at one counted place: the n-th write, the n-th call of a tool, the n-th plan of an undisturbed run. Only the first worker of
a trial is disturbed, not those that resume the run after it. Nothing here waits in real time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Literal

import msgspec

from detent.core.actions import FinalAnswer, ToolCall
from detent.core.codec import encode, read_record
from detent.core.errors import MalformedPlan, ModelCallFailure, UnknownName
from detent.core.events import Planned
from detent.core.records import RunHead
from detent.ports import (
    EventStore,
    Plan,
    Planner,
    Reservation,
    Spent,
    Tool,
    ToolContext,
    ToolOutcome,
    View,
)
from detent.ports.stores import Posts
from detent.testing.clocks import FakeClock
from detent.testing.faults import CrashingStore
from detent.testing.ledgers import Doing, Ledger
from detent.testing.wrapping import DISTURBED, Through, WrappedPlanner, WrappedTool, timed_out

replace = msgspec.structs.replace

FaultName = Literal["crash", "tool_timeout", "duplicate", "store_conflict", "slow_model", "malformed_model"]
FAULTS: tuple[FaultName, ...] = ("crash", "tool_timeout", "duplicate", "store_conflict", "slow_model", "malformed_model")
WRITES = ("append", "claim", "put_blob", "post", "release")
"""The store operations before and after which a worker may die."""


class Fault(msgspec.Struct, frozen=True, kw_only=True):
    """One disturbance: its kind, its variant, and its place (from 1) in the undisturbed run; `place` describes it in words.

    crash            before, after       write `at`
    tool_timeout     before, after       call `at` of a tool: the time is up before or after its effect
    duplicate        worker              a second worker picks up the run while call `at` of a tool runs
                     answer              plan `at` asks for each of its calls twice
    store_conflict   takeover            before append `at` another worker takes over the run and finishes it
    slow_model       slow                plan `at` takes long
                     timeout             the request for plan `at` times out once
    malformed_model  no_plan, blank      the first answer for plan `at` is not a plan, or has no text
                     cut_arguments       the arguments of the last call of plan `at` are cut off
                     unknown_tool        plan `at` calls a tool that does not exist
    """

    kind: FaultName
    how: str
    at: int
    place: str = ""

    @property
    def strict(self) -> bool:
        """Whether the run must give the same answer: the agent does not notice this fault."""
        return self.how in ("before", "after", "takeover", "worker", "slow", "timeout", "no_plan", "blank") and self.kind != "tool_timeout"


UNDISTURBED = Fault(kind="crash", how="never", at=0)


def checked_faults(names: Sequence[str]) -> tuple[FaultName, ...]:
    """Return the names, each once. Raise `UnknownName` with the nearest name for an unknown fault."""
    for name in [names] if isinstance(names, str) else names:
        if name not in FAULTS:
            raise UnknownName("fault", name, FAULTS)
    wanted = [names] if isinstance(names, str) else names
    return tuple(name for name in FAULTS if name in wanted)


class Write(msgspec.Struct, frozen=True, kw_only=True):
    """A write of the undisturbed run: its operation, and what it recorded."""

    operation: str
    says: str


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """A plan of the undisturbed run: its turn, the called tools, and whether a recorded model call made it."""

    where: str
    tools: tuple[str, ...] = ()
    of_model: bool = False


class Disturbance:
    """Shared by the workers of one trial: the fault, whether it has struck, and the counters.

    `intrude` starts another worker on the same run and lets it run as far as it gets. It gets the first worker's store to take the claim from, or
    None if the claim must hold.
    """

    def __init__(self, fault: Fault, ledger: Ledger, clock: FakeClock, *, slow_s: float) -> None:
        self.fault, self.ledger, self.clock, self.slow_s = fault, ledger, clock, slow_s
        self.struck = False
        self.life = 0
        self.plans: list[Asked] = []
        self.writes: list[Write] = []
        self.appends: list[int] = []
        self.tools: dict[str, str] = {}
        self.intrude: Callable[[EventStore | None], Awaitable[str]]

    def strikes(self, kind: FaultName, count: int, life: int) -> bool:
        """Whether the fault is of this kind and its place is reached. It strikes once, and only the first worker."""
        if self.struck or life != 1 or self.fault.kind != kind or self.fault.at != count:
            return False
        self.struck = True
        return True

    def told(self, lines: Sequence[bytes]) -> str:
        """Describe in words what an append records."""
        records = [read_record(line) for line in lines]
        for record in records:
            event, where = record.event, f"{record.envelope.scope}.{record.envelope.iteration}"
            if isinstance(event, Planned):
                self.tools |= {f"{where}.{i}": one.tool for i, one in enumerate(event.actions) if isinstance(one, ToolCall)}
            elif (tool := getattr(event, "tool", "")) and (call := getattr(event, "call", "")):
                self.tools[call] = tool
        words = [self._named(record.event) for record in records]
        shown = words if len(words) <= 4 else [words[0], "…", *words[-2:]]
        first, last = records[0].envelope.seq, records[-1].envelope.seq
        return f"record {first}: {shown[0]}" if first == last else f"records {first}-{last}: {', '.join(shown)}"

    def _named(self, event: Any) -> str:
        call = getattr(event, "call", "")
        tool = self.tools.get(call, "")
        return f"{type(event).__name__} {tool} {call}" if tool else type(event).__name__


class DisturbedStore(CrashingStore):
    """The store of one worker. That of the first worker dies, or finds that another worker appended first, as the fault demands."""

    def __init__(self, inner: EventStore, disturbance: Disturbance, life: int) -> None:
        fault = disturbance.fault
        crash = fault.kind == "crash" and life == 1
        when: Literal["before", "after"] = "after" if fault.how == "after" else "before"
        super().__init__(inner, at=fault.at if crash else 0, when=when, operations=WRITES)
        self._disturbance, self._life = disturbance, life

    async def _do(self, operation: str, call: Callable[[], Awaitable[Any]]) -> Any:
        if self._life == 1 and operation in WRITES and operation != "append" and not self.dead:
            self._disturbance.writes.append(Write(operation=operation, says=""))
        try:
            return await super()._do(operation, call)
        finally:
            self._disturbance.struck |= self.crashed

    async def append(
        self,
        run_id: str,
        expected_seq: int,
        records: Sequence[bytes],
        *,
        head: RunHead,
        durable: bool = False,
        consumed: Sequence[str] = (),
        spent: Spent | None = None,
        released: Sequence[str] | None = (),
        reserved: Reservation | None = None,
        intent: bool = False,
        claim: int | None = None,
        posts: Posts = (),
    ) -> None:
        """See `EventStore.append`."""
        shared = self._disturbance
        if self._life == 1 and not self.dead:
            shared.writes.append(Write(operation="append", says=shared.told(records) if records else "signals"))
            shared.appends.append(len(shared.writes))
            if shared.strikes("store_conflict", len(shared.appends), 1):
                await shared.intrude(self.inner)
        given: dict[str, Any] = {"durable": durable, "consumed": consumed, "spent": spent, "released": released, "intent": intent}
        given |= {"claim": claim, "posts": posts, "reserved": reserved}
        await super().append(run_id, expected_seq, records, head=head, **given)


class WatchedTool(WrappedTool):
    """A tool whose calls are noted in the ledger. One of them may time out."""

    def __init__(self, inner: Tool, disturbance: Disturbance, life: int) -> None:
        super().__init__(inner)
        self._disturbance, self._life = disturbance, life

    async def run(self, args: dict[str, Any], context: ToolContext) -> ToolOutcome:
        """See `Tool.run`."""
        shared, ledger = self._disturbance, self._disturbance.ledger
        key = context.idempotency_key
        doing = ledger.begin(self.spec, args, life=self._life, call_id=context.call_id, key=key, attempt=context.attempt)
        _note_reads(context, doing)
        out_of_time = shared.strikes("tool_timeout", doing.number, self._life)
        if shared.fault.how == "worker" and shared.strikes("duplicate", doing.number, self._life):
            await shared.intrude(None)
        if out_of_time and shared.fault.how == "before":
            doing.told = self._timed_out()
            return doing.told
        before = ledger.watch()
        try:
            outcome = await self._inner.run(args, context)
        except asyncio.CancelledError:
            ledger.end(doing, ToolOutcome(kind="in_doubt", message="cancelled"), before)
            raise
        ledger.end(doing, outcome, before)
        if out_of_time:
            outcome = doing.told = self._timed_out()
        return outcome

    def _timed_out(self) -> ToolOutcome:
        """Return the outcome of a call that timed out."""
        seconds = self.spec.timeout_s or 0.0
        self._disturbance.clock.advance(seconds)
        return timed_out(self.spec, f"Tool timed out after {seconds:g} s")


def _note_reads(context: ToolContext, doing: Doing) -> None:
    """Make the context note when its key is read."""
    key = doing.key

    def read() -> str:
        doing.key_read = True
        return key

    context._key = read  # pyright: ignore[reportPrivateUsage]


class DisturbedPlanner(WrappedPlanner):
    """A planner whose n-th plan comes late or is changed."""

    def __init__(self, inner: Planner, disturbance: Disturbance, life: int) -> None:
        super().__init__(inner)
        self._disturbance, self._life = disturbance, life

    async def plan(self, view: View) -> Plan:
        """Return the next plan, changed by the fault if it is due."""
        shared, fault = self._disturbance, self._disturbance.fault
        if self._life == 1:
            shared.plans.append(Asked(where=f"turn {view.iteration} of pass {view.scope!r}"))
        number = len(shared.plans)
        self.place(view)
        if shared.strikes("slow_model", number, self._life):
            return await self._slow(view, fault.how)
        if shared.strikes("malformed_model", number, self._life):
            return await self._malformed(view, fault.how)
        models = None if view.models is None else Through(view.models)
        plan = await self._inner.plan(view if models is None else replace(view, models=models))
        if self._life == 1:
            called = tuple(action.tool for action in plan.actions if isinstance(action, ToolCall))
            asked = models is not None and models.calls > 0
            shared.plans[number - 1] = replace(shared.plans[number - 1], tools=called, of_model=asked)
        if fault.how == "answer" and shared.strikes("duplicate", number, self._life):
            plan = replace(plan, actions=tuple(a for action in plan.actions for a in _twice(action)))
        return plan

    async def _slow(self, view: View, how: str) -> Plan:
        """Return the plan late, or after its first request timed out."""
        if how == "slow":
            self._disturbance.clock.advance(self._disturbance.slow_s)
            return await self._inner.plan(view)
        late = None if view.models is None else Through(view.models, _times_out)
        try:
            return await self._inner.plan(view if late is None else replace(view, models=late))
        finally:
            self._disturbance.struck = late is not None and late.calls > 0

    async def _malformed(self, view: View, how: str) -> Plan:
        """Return a useless answer."""
        if how == "no_plan":
            raise MalformedPlan("the answer is not a plan", raw='{"tool": "')
        if how == "blank":
            return Plan(actions=(FinalAnswer(content="  "),), model=DISTURBED)
        if how == "unknown_tool":
            return Plan(actions=(ToolCall(tool="no_such_tool", args={}),), model=DISTURBED)
        plan = await self._inner.plan(view)
        last = plan.actions[-1] if plan.actions else None
        if not isinstance(last, ToolCall):
            self._disturbance.struck = False
            return plan
        whole = encode(last.args).decode()
        cut = replace(last, args=whole[: max(1, len(whole) - 2)])
        return replace(plan, actions=(*plan.actions[:-1], cut), model=DISTURBED, provider_data=None)


def _twice(action: Any) -> tuple[Any, ...]:
    return (action, action) if isinstance(action, ToolCall) else (action,)


def _times_out(model: str) -> None:
    raise ModelCallFailure(f"model {model!r} did not answer in time", kind="timeout")
