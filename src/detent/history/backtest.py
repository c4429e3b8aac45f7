"""Applies a candidate policy (and budget, and guards) to recorded history: every recorded decision is made again, and nothing is executed.

Each log is folded once. Before a `PolicyDecided` is folded, the state is the one that the decision was made on, and the call is rebuilt from it.
After a decision that differs, later decisions are still judged as recorded: the run would have continued differently, but nobody can tell how. A tool
is known by its installed declaration, else by what the log has of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from detent.config.adapters import bound_guard
from detent.core import events as e
from detent.core.budget import Budget, exhausted
from detent.core.codec import digest_of, read_log
from detent.core.errors import CorruptLog, IllegalEvent, NewerVersion, RunErased
from detent.core.fold import evolve
from detent.core.records import Record
from detent.core.settle import Settled, settle
from detent.core.state import CallState, RunState
from detent.ports import Call, EventStore, Guard, Policy, RunQuery, ToolSpec, Verdict
from detent.ports.conversing import Message
from detent.ports.governance import ASKED_BY_TOOL, PolicyOf, blocked, verdict_on
from detent.running.conversing import shown_of
from detent.running.parts import links_of
from detent.running.snapshots import base_of

REFUSING = ("deny", "stop")


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """A decision that would differ: the call, the recorded decision and the new one. `sequence` is that of the recorded decision.

    `succeeded`: the call was executed and succeeded.
    """

    run_id: str
    sequence: int
    call_id: str
    tool: str
    args: Any
    old: e.Decision
    old_rule: str
    new: e.Decision
    new_rule: str
    reason: str
    sources: tuple[str, ...] = ()
    succeeded: bool = False

    @property
    def breaks(self) -> bool:
        """Whether the change would refuse something that succeeded."""
        return self.succeeded and self.new in REFUSING


class Backtest(msgspec.Struct, frozen=True, kw_only=True):
    """What a candidate would have decided for `decisions` decisions of `runs` runs.

    `skipped` names the runs that could not be judged, and why. `guessed` names the tools that neither the toolbox nor the log describes; they were
    judged as destructive.
    """

    policy: str
    runs: int
    decisions: int
    changes: tuple[Change, ...]
    skipped: dict[str, str] = {}
    guessed: tuple[str, ...] = ()

    @property
    def broken(self) -> tuple[Change, ...]:
        """The changes that would refuse something that succeeded."""
        return tuple(change for change in self.changes if change.breaks)


async def backtest(
    store: EventStore,
    policy_of: PolicyOf,
    *,
    version: str = "",
    tools: Mapping[str, ToolSpec] | None = None,
    budget: Budget | None = None,
    guards: Mapping[str, Guard] | None = None,
    query: RunQuery | None = None,
    only: Callable[[str], bool] = lambda run_id: True,
) -> Backtest:
    """Return every decision of the stored runs that `policy_of` (a policy for each agent), `budget` and `guards` would change; reads only.

    `guards` are further ones by name: a call that one of them blocks counts as denied by the rule `guard:NAME`. `query` and `only` (a run's id) select the
    runs.
    """
    changes: list[Change] = []
    skipped: dict[str, str] = {}
    guessed: set[str] = set()
    runs = decisions = 0
    for head in await store.list_runs(query or RunQuery()):
        if not only(head.run_id):
            continue
        try:
            lines = await store.read(head.run_id)
            records = list(read_log(head.run_id, lines))
            base = await base_of(store, head.run_id, lines)
            began = base or (evolve(RunState(run_id=head.run_id), records[0]) if records else RunState(run_id=head.run_id))
            judge = _Judge(
                records, policy_of, tools or {}, budget, base, guards=guards or {}, conversation=await shown_of(store, began, records)
            )
            judge.run()
        except (RunErased, CorruptLog, NewerVersion, IllegalEvent) as error:
            skipped[head.run_id] = str(error)
            continue
        runs, decisions = runs + 1, decisions + judge.decisions
        changes += judge.changes()
        guessed |= judge.guessed
    return Backtest(policy=version, runs=runs, decisions=decisions, changes=tuple(changes), skipped=skipped, guessed=tuple(sorted(guessed)))


class _Judge:
    """One run and its new judgement."""

    def __init__(
        self,
        records: Sequence[Record],
        policy_of: PolicyOf,
        tools: Mapping[str, ToolSpec],
        budget: Budget | None,
        base: RunState | None,
        *,
        guards: Mapping[str, Guard],
        conversation: Sequence[Message],
    ) -> None:
        self._conversation = conversation
        self._records, self._policy_of, self._budget, self._base = records, policy_of, budget, base
        self._tools = {**_declared(records), **tools}
        self._guards = {name: bound_guard(guard, self._tools) for name, guard in guards.items()}
        self._only_read = {r.event.call for r in records if isinstance(r.event, e.ToolFinished) and r.event.digest}
        self._found: list[Change] = []
        self._well: set[str] = set()
        self._over: Verdict | None = None
        self.decisions = 0
        self.guessed: set[str] = set()

    def run(self) -> None:
        """Fold the log and judge each decision on the way. Raise what the fold raises."""
        state = self._base or RunState(run_id=self._records[0].envelope.run if self._records else "")
        policy: Policy | None = None
        for record in self._records:
            event = record.event
            match event:
                case e.PolicyDecided():
                    policy = policy or self._policy_of(state.agent, [{**one, "engine": None} for one in links_of(state) if "policy" in one])
                    self._decided(record.envelope.seq, event, policy, state)
                case e.TurnStarted() if self._budget is not None:
                    self._over = self._over or self._turn(record, event, state)
                case e.RunReopened():
                    self._over = None
                case e.ToolFinished(call=call, error=None) | e.ToolReconciled(call=call, outcome="happened", error=None):
                    self._well.add(call)
                case e.MetaToolAnswered(call=call, success=True):
                    self._well.add(call)
                case _:
                    pass
            state = evolve(state, record)

    def changes(self) -> list[Change]:
        """Return the decisions that would differ, each with how its call ended."""
        return [msgspec.structs.replace(c, succeeded=c.call_id in self._well) for c in self._found]

    def _decided(self, sequence: int, event: e.PolicyDecided, policy: Policy, state: RunState) -> None:
        known = state.call(event.call)
        if known is None:
            return
        self.decisions += 1
        call = Call(
            call_id=known.call_id,
            tool=self._spec(known),
            args=known.args,
            digest=digest_of([known.tool, known.args]),
            provenance=known.provenance,
            asks=event.reason if ASKED_BY_TOOL in f"{event.rule} {event.reason}" else "",
            conversation=self._conversation,
        )
        verdict = self._over or self._bound(call, state) or self._blocked(call, state) or verdict_on(call, known, policy, state)
        if verdict.decision == event.decision:
            return
        change = Change(
            run_id=state.run_id,
            sequence=sequence,
            call_id=known.call_id,
            tool=known.tool,
            args=known.args,
            old=event.decision,
            old_rule=event.rule,
            new=verdict.decision,
            new_rule=verdict.rule,
            reason=verdict.reason,
            sources=verdict.sources,
        )
        self._found.append(change)

    def _blocked(self, call: Call, state: RunState) -> Verdict | None:
        """Return how a guard would block this call, or None."""
        for name, guard in self._guards.items():
            if (block := blocked(guard, call, state.passes[call.call_id.rsplit(".", 2)[0]], state)) is not None:
                return Verdict(decision="deny", rule=f"guard:{name}", reason=block.reason)
        return None

    def _spec(self, known: CallState) -> ToolSpec:
        spec = self._tools.get(known.tool)
        if spec is not None:
            return spec
        if known.call_id in self._only_read:
            return ToolSpec(name=known.tool, side_effect="read")
        self.guessed.add(known.tool)
        return ToolSpec(name=known.tool)

    def _turn(self, record: Record, event: e.TurnStarted, state: RunState) -> Verdict | None:
        """Return how the budget would end the run before this turn, or None."""
        known = state.passes.get(record.envelope.scope)
        if self._budget is None or known is None:
            return None
        bounded = msgspec.structs.replace(state, budget=self._budget, cancel=None)
        bare = msgspec.structs.replace(known, ended="")
        settled = settle(
            bounded, bare, running_s=event.running_ms / 1000, total_s=(event.running_ms + bounded.away_ms) / 1000, turn_over=True
        )
        if not isinstance(settled, Settled):
            return None
        return Verdict(decision="stop", rule=f"budget:{settled.bound.option if settled.bound else settled.reason}", reason=settled.error)

    def _bound(self, call: Call, state: RunState) -> Verdict | None:
        """Return how the budget would stop this call from beginning, or None; earlier calls of the turn count."""
        if self._budget is None:
            return None
        siblings = state.passes[call.call_id.rsplit(".", 2)[0]].calls.values()
        pending = [c.tool for c in siblings if c.status == "allowed" and c.attempt == 0]
        limit, name = self._budget.calls_of(call.tool.name), call.tool.name
        if limit is not None and (made := state.calls_of.get(name, 0) + pending.count(name)) >= limit:
            return Verdict(decision="stop", rule="budget:max_calls_of", reason=f"max_calls_of {name} is {limit}, used {made}")
        used = msgspec.structs.replace(state.usage, tool_calls=state.usage.tool_calls + len(pending))
        bound = exhausted(self._budget, used, only=("tool_calls", "cost_usd"))
        if bound is None:
            return None
        return Verdict(decision="stop", rule=f"budget:{bound.option}", reason=f"{bound.option} is {bound.limit:g}, used {bound.used:g}")


def _declared(records: Iterable[Record]) -> dict[str, ToolSpec]:
    """Return what the log has about the tools that were executed."""
    found: dict[str, ToolSpec] = {}
    for record in records:
        match record.event:
            case e.ToolStarted() as event:
                found[event.tool] = ToolSpec(
                    name=event.tool,
                    side_effect=event.side_effect,
                    idempotent=event.idempotent,
                    volatile=event.volatile,
                    ends_turn=event.ends_turn,
                    cost_usd=event.cost_usd,
                    trust=event.trust,
                )
            case _:
                pass
    return found
