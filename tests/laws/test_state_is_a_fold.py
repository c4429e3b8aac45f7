"""Law 1: the state is the fold of the log, after every record and on every branch; nothing a decision depends on lives outside of it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest

from crash.workload import RUN, work, worker
from detent import FinalAnswer, Plan, ToolCall, View, tool
from detent.core import events as e
from detent.core.codec import STATE_VERSION, decode_event, encode, read_log, read_record, seal
from detent.core.errors import NewerVersion
from detent.core.fold import evolve, fold
from detent.core.state import KernelState, RunState
from detent.running.states import dump_state, load_state
from laws.checks import check_fold, check_laws
from laws.places import KINDS, Effects, Place, Told, agent_of, engine_on


async def a_run(place: Place) -> tuple[list[bytes], Told]:
    """Return the lines of the workload's run, and what an observer was told meanwhile."""
    told, effects = Told(), Effects(place.directory / "effects")
    async with worker(place.store(), effects, observers=[told]) as engine:
        outcome = await work(engine, effects)
        assert outcome.state.status == "completed"
    lines = await place.lines(RUN)
    await place.close()
    return lines, told


@pytest.mark.parametrize("kind", KINDS)
def test_the_live_state_is_the_fold_of_the_log_after_every_record(kind: str, tmp_path: Path) -> None:
    """What an observer is told beside a record equals the fold of the stored log up to it; every record is told once, in order."""
    lines, told = asyncio.run(a_run(Place(kind, tmp_path)))
    assert [s.seq for s in told.states] == list(range(1, len(lines) + 1))
    for k, state in enumerate(told.states, 1):
        assert fold(read_log(RUN, lines[:k])) == state
    check_laws(lines, live=told.states)


def test_every_prefix_survives_serialisation_and_leads_on_to_the_same_end(tmp_path: Path) -> None:
    """A snapshot of any prefix, of the run and of a pass, is read back equal, and folding the rest gives the same state."""
    lines, _ = asyncio.run(a_run(Place("ram", tmp_path)))
    records = list(read_log(RUN, lines))
    states = check_fold(RUN, lines, records)
    for state in states:
        data = dump_state(state)
        assert dump_state(load_state(data, RunState)) == data, "the same bytes again: sets are sorted"
        for one in state.passes.values():
            assert load_state(dump_state(one), KernelState) == one


def test_branches_of_one_state_do_not_see_each_other(tmp_path: Path) -> None:
    """From any prefix two different continuations can be folded, in any order, and neither changes the prefix nor the other."""
    lines, _ = asyncio.run(a_run(Place("ram", tmp_path)))
    records = list(read_log(RUN, lines))
    whole = fold(records)
    state = RunState(run_id=RUN)
    for record in records:
        before = dump_state(state)
        if state.open_passes:
            note = msgspec.structs.replace(record, event=e.NoteWritten(text="another branch"))
            branch = evolve(state, note)
            assert [i.text for i in branch.passes["main"].steps][-1] == "another branch"
            assert dump_state(state) == before
        state = evolve(state, record)
    assert state == whole
    assert all(item.text != "another branch" for item in state.passes["main"].steps)


def test_a_state_that_does_not_depend_on_the_log_alone_is_noticed(tmp_path: Path) -> None:
    """The check can fail: a log in which one outcome differs folds to another state than the live one."""
    lines, told = asyncio.run(a_run(Place("ram", tmp_path)))
    forged: list[bytes] = []
    previous = ""
    for line in lines:
        record = read_record(line)
        body = encode(record.event)
        if isinstance(record.event, e.ToolFinished) and record.event.call == "main.1.1":
            body = body.replace(b"put 2", b"put 3")
            decode_event(body)
        sealed, previous = seal(record.envelope, body, previous=previous, salt="x")
        forged.append(sealed)
    with pytest.raises(AssertionError, match="is not the fold of the log"):
        check_laws(forged, live=told.states)


def test_a_state_of_a_newer_version_is_refused() -> None:
    """It is not read as if it were ours."""
    data = dump_state(RunState(run_id="run"))
    with pytest.raises(NewerVersion, match="newer Detent"):
        load_state(data.replace(b'"v":%d,' % STATE_VERSION, b'"v":99,'), RunState)
    with pytest.raises(ValueError, match="not a serialised RunState"):
        load_state(b"{}", RunState)


@pytest.mark.parametrize("kind", KINDS)
def test_a_turn_is_in_the_store_before_the_next_one_is_planned(kind: str, tmp_path: Path) -> None:
    """Also one that only reads and uses no tokens: whatever a planner decides from can be read by who takes the run on."""
    place, stored = Place(kind, tmp_path), list[int]()

    @tool(side_effect="read")
    async def look(n: int) -> int:
        """Look."""
        return n

    class Looks:
        async def plan(self, view: View) -> Plan:
            """Look into the store, through a connection of its own."""
            if view.iteration > 1:
                stored.append(len([r for r in await place.records("run") if isinstance(r.event, e.ToolFinished)]))
            return Plan(actions=(ToolCall(tool="look", args={"n": view.iteration}) if view.iteration < 4 else FinalAnswer(content="done"),))

    async def main() -> None:
        async with engine_on(place.store(), Looks(), [look]) as engine:
            assert (await engine.run(agent_of(look), "look", run_id="run")).output == "done"
        await place.close()

    asyncio.run(main())
    assert stored == [1, 2, 3]
