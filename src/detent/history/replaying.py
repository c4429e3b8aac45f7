"""Replays a run's log with the installed code and tools, without a live call."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

import msgspec

from detent.core import events as e
from detent.core.errors import ConfigError, Divergence, IllegalEvent, MalformedPlan
from detent.core.records import Record
from detent.core.state import describe
from detent.history.decided import Decided
from detent.history.interruptions import aside
from detent.history.replay_journal import LogEnded, ReplayJournal, Unwind
from detent.history.replay_tools import RecordedTools
from detent.history.replay_world import ReplayWorld
from detent.ports import Plan, View
from detent.ports.outside import BRANCH
from detent.ports.raised import KEEP, tell, unheard
from detent.running.artifacts import artifact, refuse_damaged
from detent.running.conversing import shown_of
from detent.running.driving import drive
from detent.running.lineage import history
from detent.running.parts import Parts, make_run, tools_of, ways_of
from detent.running.phase_hooks import missing_hooks
from detent.running.results import Difference, Replay
from detent.running.snapshots import base_of

Answer = Plan | MalformedPlan
"""A planner's answer: a plan, or an answer that is not a valid plan."""


Blob = Callable[[str], Awaitable[bytes]]
MakeWorld = Callable[[ReplayJournal, Blob], ReplayWorld]


class Listening(ReplayWorld):
    """Keeps the planner's views and its answers."""

    asked: list[tuple[View, Answer]]

    async def plan(self, view: View, deadline_s: float | None) -> Plan:
        """Answer as the planner did."""
        try:
            plan = await super().plan(view, deadline_s)
        except MalformedPlan as error:
            self.asked.append((view, error))
            raise
        self.asked.append((view, plan))
        return plan


async def plans_of(records: Sequence[Record], parts: Parts) -> list[tuple[View, Answer]]:
    """Return each view of the run's planner with its answer. Raise `Divergence` if the log is not reproduced."""
    asked: list[tuple[View, Answer]] = []

    def world(journal: ReplayJournal, blob: Blob) -> ReplayWorld:
        made = Listening(journal, blob)
        made.asked = asked
        return made

    found = await replay(records, parts, make_world=world)
    if found.divergence is not None:
        raise Divergence(found.run_id, found.divergence.sequence, found.divergence.expected, found.divergence.actual)
    return asked


async def replay(records: Sequence[Record], parts: Parts, *, make_world: MakeWorld = ReplayWorld, judges: bool = True) -> Replay:
    """Return whether the log is reproduced, record by record, or where it first is not.

    A policy that was stored with the run, or that the engine has, judges its decisions again (`judges` false: nothing is judged). Other decisions are
    taken from the log. So are the findings about calls of tools whose declaration has changed. Raise `ToolsMissing`, and `ConfigError` if phase hooks
    that decided something are not here.
    """
    token = BRANCH.set("")  # the caller may be a tool of a pass that runs beside others of its own run
    try:
        return await _replayed(records, parts, make_world, judges=judges)
    finally:
        BRANCH.reset(token)


async def _replayed(records: Sequence[Record], parts: Parts, make_world: MakeWorld, *, judges: bool) -> Replay:
    run_id = records[0].envelope.run
    await refuse_damaged(parts.store, run_id, await parts.store.read(run_id))
    journal = ReplayJournal(records, await base_of(parts.store, run_id, await parts.store.read(run_id, limit=1)))
    world = make_world(journal, lambda key: artifact(parts.store, journal.state, key))
    world.conversation = await shown_of(parts.store, journal.state, records)
    earlier = (await history(parts.store, run_id))[: -len(records)] if isinstance(records[0].event, e.Forked) else ()
    above = [record.event for record in earlier]
    recorded = RecordedTools(parts.tools, parts.digest, above, journal)
    decided = Decided(journal, parts.policy_of, above, judges=judges)
    parts = msgspec.structs.replace(parts, tools=recorded, policy_of=decided)
    difference: Difference | None = None
    try:
        while journal.next is not None:
            before = journal.cursor
            if journal.state.terminal and aside(journal.next):  # what it proposed to its memory after its end
                journal.accept()
                continue
            await world.absorb(None, fresh=True)
            if journal.next is None:  # pyright: ignore[reportUnnecessaryComparison] - `absorb` moved the cursor
                break
            if not isinstance(journal.next, e.INPUTS) and journal.state.terminal:
                raise journal.diverged("the end of the run")
            try:
                recorded.take_up(record.event for record in records[: journal.cursor])
                journal.state = parts.alike.shared(journal.state)  # for reading, as in the run
                tools = tools_of(journal.state, parts)
                strategy, kernels = ways_of(journal.state, parts)
                run = make_run(journal, world, parts, tools)
                run = msgspec.structs.replace(run, heal=recorded.heal) if run.heal is not None else run
                KEEP.set(unheard)
                try:
                    await drive(run, strategy, kernels)
                finally:
                    KEEP.set(tell)
            except Unwind:
                journal.accept()
                continue
            if journal.cursor == before:
                raise journal.diverged("nothing: the run cannot move here")
    except LogEnded:
        pass
    except Divergence as error:
        if isinstance(journal.next, (e.EffectRecorded, e.PassStarted)) and (
            missing := missing_hooks(records[journal.cursor :], parts.hooks)
        ):
            raise ConfigError(
                f"run {run_id!r} had phase hooks that are not here ({', '.join(missing)}), and record {error.sequence} holds a decision of one of "
                "them: replay it in an engine with Engine(hooks=KernelHooks(before=..., after=...)) that names them"
            ) from error
        difference = Difference(sequence=error.sequence, expected=error.expected, actual=error.actual)
    except IllegalEvent as error:
        expected = journal.next
        difference = Difference(sequence=journal.cursor + 1, expected=describe(expected) if expected else "the end", actual=str(error))
    return Replay(
        run_id=run_id,
        identical=difference is None,
        divergence=difference,
        records=journal.cursor,
        not_judged=(*decided.taken,),
        judged_by=(*decided.judged,),
        not_checked=(*recorded.taken,),
    )
