"""Snapshots: from any of them, the state is what the whole log folds to; whatever is wrong with one, it is not used."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings

from amounts import thinned, times
from core.golden_logs import GOLDEN
from detent import Agent, Budget, Engine, FinalAnswer, Plan, ToolCall, View, tool
from detent.core import events as e
from detent.core.agent import AgentSpec
from detent.core.budget import DEFAULT
from detent.core.codec import STATE_VERSION, decode_event, encode, read_log, read_record, seal
from detent.core.errors import CorruptLog
from detent.core.events import AnyEvent, TurnStarted
from detent.core.fold import evolve, fold
from detent.core.records import Envelope
from detent.core.state import RunState
from detent.running.snapshots import EVERY, dump_snapshot, restored, state_of
from detent.stores.ram import RamStore
from detent.testing.clocks import EPOCH, FakeClock, SequentialIds
from properties.scripts import CautiousPolicy, Example, drive, examples, make_tools, planner_for

pytestmark = thinned


def states_of(lines: Sequence[bytes]) -> list[RunState]:
    """Return the state after each record."""
    run_id = read_record(lines[0]).envelope.run
    states = [RunState(run_id=run_id)]
    for record in read_log(run_id, lines):
        states.append(evolve(states[-1], record))
    return states[1:]


def from_every_prefix(lines: Sequence[bytes]) -> int:
    """Check that a snapshot after any record leads to the state of the whole log; return how many were used."""
    states, used = states_of(lines), 0
    for state in states:
        snapshot = (state.seq, dump_snapshot(state))
        assert state_of(state.run_id, lines, snapshot) == states[-1], f"a snapshot after record {state.seq} leads to another state"
        again = restored(state.run_id, lines, *snapshot)
        assert again is None or again == state, f"the state at record {state.seq} is not what it was"
        used += again is not None
    return used


def stamped(events: Sequence[tuple[AnyEvent, str]], run_id: str) -> list[bytes]:
    """Return the log of these events, with the iterations that a journal writes into envelopes."""
    lines: list[bytes] = []
    digest, turns = "", dict[str, int]()
    for seq, (event, scope) in enumerate(events, 1):
        if isinstance(event, TurnStarted):
            turns[scope] = event.iteration
        envelope = Envelope(run=run_id, seq=seq, at=EPOCH, scope=scope, iteration=turns.get(scope, 0))
        line, digest = seal(envelope, encode(event), previous=digest, salt=f"{seq:016d}")
        assert decode_event(encode(event)) == event
        lines.append(line)
    return lines


@pytest.mark.parametrize("name", GOLDEN)
def test_from_any_record_of_the_golden_logs_the_state_is_the_same(name: str) -> None:
    """Whether what lies before can be gathered or has to be folded."""
    log = GOLDEN[name]()
    from_every_prefix(log.lines)
    records = [read_record(line) for line in log.lines]
    events = [(record.event, record.envelope.scope) for record in records if record.event is not None]
    assert from_every_prefix(stamped(events, log.state.run_id)) >= 1


def test_what_can_be_gathered_is_gathered_as_it_is_folded() -> None:
    """A batch that ends out of order, a healed and an edited call, a polling tool, a failed one; a note ends it."""
    calls = tuple(ToolCall(tool="look", args={"n": n}) for n in range(4))
    started = [e.ToolStarted(call=f"main.1.{i}", tool="look", key=f"k{i}", digest=f"d{i}", volatile=i == 0) for i in range(3)]
    events: list[Any] = [
        e.RunStarted(goal="look", agent=AgentSpec(name="a"), budget=DEFAULT),
        e.PassStarted(key="main", kernel="react"),
        TurnStarted(iteration=1),
        e.Planned(actions=calls, text="I look."),
        e.CallHealed(call="main.1.0", tool="see", args={"n": 7}),
        e.ApprovalRequested(call="main.1.1", tool="look", digest="d1"),
        e.ApprovalEdited(call="main.1.1", args={"n": 8}, digest="d1", by="ann"),
        *started,
        e.ToolFinished(call="main.1.2", result=msgspec.Raw(b"2")),
        e.ToolFinished(call="main.1.3", error=e.ToolError(code="policy_denied", message="no"), meta=True),
        e.ToolFinished(call="main.1.0", result=msgspec.Raw(b"0")),
        e.ToolFinished(call="main.1.1", result=msgspec.Raw(b"1")),
        TurnStarted(iteration=2),
        e.Planned(actions=(ToolCall(tool="look", args={"n": 1}),)),
    ]
    lines = stamped([(event, "main") for event in events], "run")
    assert from_every_prefix(lines) == len(lines)
    told = stamped([(event, "main") for event in (*events, e.NoteWritten(text="hurry"))], "run")
    assert from_every_prefix(told) == len(lines)


async def lines_of(example: Example) -> list[bytes]:
    """Drive an example in memory and return its log."""
    clock, store = FakeClock(tick_s=0.001), RamStore()
    engine = Engine(
        store=store,
        planner=planner_for(example),
        tools=make_tools(),
        policy=CautiousPolicy(),
        clock=clock,
        ids=SequentialIds(),
        approver="caller",
    )
    async with engine:
        await drive(engine, example, clock)
        return await store.read("run")


@settings(max_examples=times(40))
@given(examples)
def test_from_any_record_of_any_run_the_state_is_the_same(example: Example) -> None:
    """Random plans, tools that end in every way, approvals, edits, waits, replies."""
    from_every_prefix(asyncio.run(lines_of(example)))


class Counting:
    """Asks for the tool `n` times, then answers."""

    def __init__(self, n: int) -> None:
        self.n = n

    async def plan(self, view: View) -> Plan:
        """Return the plan of this iteration."""
        if view.iteration > self.n:
            return Plan(actions=(FinalAnswer(content="done"),))
        return Plan(actions=(ToolCall(tool="same", args={"i": view.iteration}), ToolCall(tool="same", args={"i": -view.iteration})))


@tool(side_effect="read")
async def same(i: int) -> int:
    """Return the number."""
    return i


async def long_run(store: RamStore) -> Any:
    """Do a run that is long enough for a snapshot."""
    async with Engine(store=store, planner=Counting(190), tools=[same], ids=SequentialIds()) as engine:
        result = await engine.run(Agent(name="a", tools=["same"], budget=Budget(max_iterations=900)), "count", run_id="run")
        return result, await store.read("run"), await store.get_snapshot("run")


def test_a_long_run_leaves_a_snapshot_without_its_history() -> None:
    """It is small, and it is used."""
    result, lines, snapshot = asyncio.run(long_run(RamStore()))
    assert snapshot is not None and snapshot[0] >= EVERY and len(snapshot[1]) < 3_000
    assert restored("run", lines, *snapshot) == states_of(lines)[snapshot[0] - 1]
    assert state_of("run", lines, snapshot) == fold(read_log("run", lines)) == result.state


def test_a_store_that_cannot_keep_snapshots_fails_no_run() -> None:
    """They are an optimisation."""

    class Forgetful(RamStore):
        async def put_snapshot(self, run_id: str, seq: int, data: bytes) -> None:
            raise OSError("no space left")

    result, lines, snapshot = asyncio.run(long_run(Forgetful()))
    assert (result.status, snapshot) == ("completed", None)
    assert result.state == fold(read_log("run", lines))


def test_a_snapshot_that_does_not_fit_is_not_used() -> None:
    """Another version of the fold, another digest, another run, damage, a record that is not there."""
    _, lines, snapshot = asyncio.run(long_run(RamStore()))
    assert snapshot is not None
    seq, data = snapshot
    full = states_of(lines)[-1]
    state = states_of(lines)[seq - 1]
    wrong = [
        (seq, data.replace(b'{"v":%d,' % STATE_VERSION, b'{"v":%d,' % (STATE_VERSION + 1), 1)),
        (seq, data.replace(b'{"v":%d,' % STATE_VERSION, b'{"v":%d,' % (STATE_VERSION - 1), 1)),
        (seq, data[:-9]),
        (seq, dump_snapshot(msgspec.structs.replace(state, digest="0" * 64))),
        (seq, dump_snapshot(msgspec.structs.replace(state, run_id="other"))),
        (seq, dump_snapshot(msgspec.structs.replace(state, passes={}))),
        (seq - 1, data),
        (len(lines) + 1, dump_snapshot(msgspec.structs.replace(state, seq=len(lines) + 1))),
    ]
    for bad in wrong:
        assert restored("run", lines, *bad) is None
        assert state_of("run", lines, bad) == full


@pytest.mark.parametrize("seq", [1, 3, 500, 1000])
def test_a_damaged_record_before_the_snapshot_is_named(seq: int) -> None:
    """Nothing is believed because it was believed before."""
    _, lines, snapshot = asyncio.run(long_run(RamStore()))
    lines[seq - 1] = lines[seq - 1].replace(b'"at":"2', b'"at":"3', 1)
    with pytest.raises(CorruptLog) as caught:
        state_of("run", lines, snapshot)
    assert caught.value.sequence == seq
