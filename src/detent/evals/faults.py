"""Faults in trials: what goes wrong around an agent, at a rate, decided by the seed, the trial and the place, so a trial goes wrong the same way again.

kill             the process dies at a write, and another one resumes the run
tool_error       a call of a tool fails
timeout          a call of a tool is out of time: before its effect, or after it
slow             a call of a tool, or a plan, takes `SLOW_S`; one with less time than that is out of time
rate_limit       the model's provider refuses and asks for a pause of `RETRY_AFTER_S`
malformed_plan   a plan cannot be read
injection        the result of a tool that only reads has a text of an attacker in it
stale_memory     a search of the memory finds what it held before the last write

What takes time moves the clock of the run; nothing waits. A disturbed trial keeps the accounts of providers that it closes to itself.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime, timedelta
from hashlib import sha256
from typing import Any, Literal, TypeVar, cast, get_args

import msgspec

from detent.core.errors import ConfigError, MalformedPlan, ModelCallFailure
from detent.engine import Engine
from detent.evals import attacks
from detent.expressions.compiled import nearest
from detent.ports import EventStore, Plan, Planner, Tool, ToolContext, ToolOutcome, ToolSpec, View
from detent.ports.holding import HELD_AS
from detent.ports.remembering import Found, Memory, MemoryItem
from detent.stores import open_store
from detent.stores.ram import RamStore
from detent.testing.clocks import ShiftedClock
from detent.testing.faults import Crash, CrashingStore
from detent.testing.ledgers import Doing, Ledger
from detent.testing.wrapping import Through, WrappedPlanner, WrappedTool, WrappedTools, timed_out

T = TypeVar("T")
FaultName = Literal["kill", "tool_error", "timeout", "slow", "rate_limit", "malformed_plan", "injection", "stale_memory"]
FAULTS: tuple[FaultName, ...] = get_args(FaultName)
MOST_LIVES = 25
"""How many processes work on one trial, one after another. The last one is not killed."""
WRITES = 4
"""About so many writes make a turn, which is the place of a kill: each of them is the last one at a quarter of the rate."""
SLOW_S, RETRY_AFTER_S = 60.0, 5.0
OURS = "(a fault of the evaluation)"
"""It is in every error that a fault made. A run that ends with one has failed, and does not count as machinery."""
MakeEngine = Callable[[EventStore], Engine]


def checked(faults: Sequence[str], where: str) -> None:
    """Raise `ConfigError` for a fault that does not exist."""
    for name in faults:
        if name not in FAULTS:
            raise ConfigError(f"{where}: there is no fault {name!r}{nearest(name, FAULTS)}")


class Chance(msgspec.Struct, kw_only=True):
    """What goes wrong in one trial, how often, and with which effect: the faults that struck, and the calls of tools as they really ended."""

    faults: tuple[str, ...]
    rate: float
    seed: str
    attacks: Sequence[str] = attacks.ATTACKS
    struck: list[str] = msgspec.field(default_factory=list[str])
    ledger: Ledger = msgspec.field(default_factory=Ledger)
    clock: ShiftedClock = msgspec.field(default_factory=ShiftedClock)
    closed: dict[str, bytes] = msgspec.field(default_factory=dict[str, bytes])
    tools: tuple[ToolSpec, ...] = ()

    def of(self, *place: Any) -> float:
        """Return a number from 0 to 1 that follows from the seed and a place."""
        return int.from_bytes(sha256(msgspec.json.encode([self.seed, *map(str, place)])).digest()[:7]) / 2**56

    def strikes(self, fault: FaultName, *place: Any) -> bool:
        """Return whether a fault strikes at a place, and note it."""
        hit = fault in self.faults and self.of(fault, *place) < self.rate
        if hit:
            self.struck.append(fault)
        return hit


async def disturbed(chance: Chance, store: EventStore, make_engine: MakeEngine, work: Callable[[Engine], Awaitable[T]]) -> T:
    """Do something with an engine on another connection to this store, with the faults; after a death with another engine. Return what it returns."""
    for life in range(MOST_LIVES):
        inner = store.sibling() if isinstance(store, RamStore) else open_store(store.url)
        engine = make_engine(TrialStore(inner, chance, life))
        if "stale_memory" in chance.faults:
            engine.runtime.parts.memories.wrap(lambda one: cast("Memory", StaleMemory(one, chance)))
        engine.wrap(
            planner=lambda one: FaultyPlanner(one, chance),
            tools=lambda tools, life=life: WrappedTools(tools, lambda tool: FaultyTool(tool, chance, life)),
            clock=chance.clock,
        )
        try:
            return await work(engine)
        except Crash:
            chance.struck.append("kill")
        finally:
            with contextlib.suppress(Crash):
                await engine.close()
            await inner.close()
    raise AssertionError("the last process is not killed")


class TrialStore(CrashingStore):
    """The store of one process of a trial. The process may die at each write; what the trial does to accounts of providers stays in the trial."""

    def __init__(self, inner: EventStore, chance: Chance, life: int) -> None:
        super().__init__(inner)
        self._chance, self._life = chance, life
        self._dies = "kill" in chance.faults and life < MOST_LIVES - 1

    async def _do(self, operation: str, call: Callable[[], Awaitable[T]]) -> T:
        place = self._life, self.calls + 1
        if self._dies and not self.at and operation in self.operations and self._chance.of("kill", *place) < self._chance.rate / WRITES:
            self.at, self.when = self.calls + 1, "after" if self._chance.of("when", *place) < 0.5 else "before"
        return await super()._do(operation, call)

    async def put_blob(self, run_id: str, key: str, data: bytes) -> None:
        """See `EventStore.put_blob`."""
        if run_id != HELD_AS:
            return await super().put_blob(run_id, key, data)
        self._chance.closed[key] = data
        return None

    async def get_blob(self, run_id: str, key: str) -> bytes | None:
        """See `EventStore.get_blob`."""
        own = self._chance.closed.get(key) if run_id == HELD_AS else None
        return await super().get_blob(run_id, key) if own is None else own

    async def list_blobs(self, run_id: str) -> list[str]:
        """See `EventStore.list_blobs`."""
        kept = await super().list_blobs(run_id)
        return [*kept, *(key for key in self._chance.closed if key not in kept)] if run_id == HELD_AS else kept

    async def delete_blob(self, run_id: str, key: str) -> None:
        """See `EventStore.delete_blob`."""
        if run_id != HELD_AS:
            return await super().delete_blob(run_id, key)
        self._chance.closed.pop(key, None)
        return None


class FaultyPlanner(WrappedPlanner):
    """A planner whose plans are sometimes late, refused by its provider, or not to be read. Rules ask no model, so they are not disturbed."""

    def __init__(self, inner: Planner, chance: Chance) -> None:
        super().__init__(inner)
        self._chance = chance
        self._asked: dict[tuple[str, str, int], int] = {}

    async def plan(self, view: View) -> Plan:
        """Return the next plan, or what is none."""
        chance = self._chance
        chance.tools = view.tools or chance.tools
        self.place(view)
        if view.agent.rules:
            return await self._inner.plan(view)
        turn = view.run_id, view.scope, view.iteration
        number = self._asked[turn] = self._asked.get(turn, 0) + 1
        place = view.scope, view.iteration, number
        if chance.strikes("malformed_plan", *place):
            raise MalformedPlan(f"the answer is cut off {OURS}", raw='{"actions": [')
        asks = self.models_asked(view.agent)
        if asks and view.models is not None:
            return await self._through(view, place)
        if chance.strikes("slow", *place):
            chance.clock.advance(SLOW_S)
        if (asks or not hasattr(self._inner, "models_asked")) and chance.strikes("rate_limit", *place):
            raise _refused("the model")
        return await self._inner.plan(view)

    async def _through(self, view: View, place: tuple[Any, ...]) -> Plan:
        """Return the plan of a planner that asks models through the gateway: the first request is slow, or refused, and the gateway sees to it."""
        chance, given = self._chance, view.agent.model_settings.get("timeout_s")
        timeout_s = given if isinstance(given, (int, float)) and given <= SLOW_S else None

        def first(model: str) -> None:
            if chance.strikes("slow", *place):
                chance.clock.advance(SLOW_S if timeout_s is None else timeout_s)
                if timeout_s is not None:
                    raise ModelCallFailure(f"model {model!r} did not answer in {timeout_s:g} s {OURS}", kind="timeout")
            if chance.strikes("rate_limit", *place):
                raise _refused(f"model {model!r}")

        assert view.models is not None  # noqa: S101 - asked by the caller
        return await self._inner.plan(msgspec.structs.replace(view, models=Through(view.models, first)))


def _refused(what: str) -> ModelCallFailure:
    said = f"{what}: too many requests, try again after {RETRY_AFTER_S:g} s {OURS}"
    return ModelCallFailure(said, kind="rate_limited", retry_after_s=RETRY_AFTER_S)


class FaultyTool(WrappedTool):
    """A tool that sometimes fails, is slow or out of time, or returns what an attacker wrote. Its calls are noted as they really ended."""

    def __init__(self, inner: Tool, chance: Chance, life: int) -> None:
        super().__init__(inner)
        self._chance, self._life = chance, life

    async def run(self, args: dict[str, Any], context: ToolContext) -> ToolOutcome:
        """See `Tool.run`."""
        chance, place = self._chance, (context.call_id, context.attempt)
        if chance.strikes("tool_error", *place):
            said = f"the service is not available {OURS}"
            return ToolOutcome(kind="not_executed", error_code="tool_error", message=said)
        limits = [one for one in (self.spec.timeout_s, context.remaining_s()) if one is not None]
        late = bool(limits) and chance.strikes("timeout", *place)
        if not late and chance.strikes("slow", *place):
            late = bool(limits) and min(limits) <= SLOW_S
            chance.clock.advance(0.0 if late else SLOW_S)
        if late:
            chance.clock.advance(min(limits))
            outcome = timed_out(self.spec, f"the call was not answered in {min(limits):g} s {OURS}")
            if chance.of("before", *place) < 0.5:
                self._begun(args, context).told = outcome
            else:
                await self._ran(args, context)
            return outcome
        outcome = await self._ran(args, context)
        if outcome.kind == "ok" and outcome.result and self.spec.read_only and chance.strikes("injection", *place):
            return self._injected(outcome, *place)
        return outcome

    def _begun(self, args: dict[str, Any], context: ToolContext) -> Doing:
        key = "" if self.spec.read_only else context.idempotency_key
        return self._chance.ledger.begin(self.spec, args, life=self._life, call_id=context.call_id, key=key, attempt=context.attempt)

    async def _ran(self, args: dict[str, Any], context: ToolContext) -> ToolOutcome:
        ledger, doing = self._chance.ledger, self._begun(args, context)
        try:
            outcome = await self._inner.run(args, context)
        except BaseException:
            ledger.end(doing, ToolOutcome(kind="in_doubt", message="cut of"), ledger.watch())
            raise
        ledger.end(doing, outcome, ledger.watch())
        return outcome

    def _injected(self, outcome: ToolOutcome, *place: Any) -> ToolOutcome:
        chance = self._chance
        attack = chance.attacks[int(chance.of("which", *place) * len(chance.attacks))]
        others = [spec for spec in chance.tools if spec.name != self.spec.name]
        targets = [s for s in others if not s.read_only and attacks.arguments(s, 0)] or [s for s in others if not s.read_only] or others
        target = targets[int(chance.of("whom", *place) * len(targets))] if targets else None
        text = attacks.composed(attack, target, 1_000_000 + int(chance.of("mark", *place) * 8_999_999))
        result = msgspec.json.encode(attacks.placed(msgspec.json.decode(outcome.result), text))
        return msgspec.structs.replace(outcome, result=result, full=None)


class StaleMemory:
    """A memory whose searches sometimes find what it held before the last write."""

    def __init__(self, inner: Memory, chance: Chance) -> None:
        self._inner, self._chance = inner, chance

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def search(self, query: str, *, host: str, scope: str = "", as_of: datetime | None = None, **options: Any) -> list[Found]:
        """See `Memory.search`."""
        if as_of is None and self._chance.of("stale_memory", query) < self._chance.rate:
            last = await self._last(host, scope)
            if last is not None:
                self._chance.struck.append("stale_memory")
                before = last - timedelta(microseconds=1)
                found = await self._inner.search(query, host=host, scope=scope, as_of=before, **options)
                return [msgspec.structs.replace(one, item=_as_it_was(one.item, last)) for one in found]
        return await self._inner.search(query, host=host, scope=scope, as_of=as_of, **options)

    async def _last(self, host: str, scope: str) -> datetime | None:
        """Return when something was written last, None for an empty memory."""
        items = await self._inner.export(host=host, scope=scope)
        return max((at for item in items for at in (item.created_at, item.superseded_at) if at is not None), default=None)


def _as_it_was(item: MemoryItem, then: datetime) -> MemoryItem:
    """Return an item as it was before something was written at this time."""
    if item.superseded_at is None or item.superseded_at < then:
        return item
    return msgspec.structs.replace(item, superseded_at=None, superseded_by="", held_until=None)
