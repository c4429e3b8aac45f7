"""Two workers at one run: one of them advances it, the other says why it stopped, and nothing is done twice."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from amounts import crossed, thinned, times
from crash.child import RACER, race_plan, race_tools
from crash.processes import Gate, answer_of, command, end, start
from detent import FinalAnswer, ToolCall, View, tool
from detent.core import events as e
from detent.core.errors import Conflict, RunBusy
from detent.ports import Passed, StrategyRun
from detent.testing.faults import Crash, CrashingStore
from detent.tools.functions.settlement import NotHappened
from laws.checks import check_laws
from laws.places import KINDS, Effects, Place, agent_of, engine_on

pytestmark = [crossed, thinned]

Pair = tuple[Place, Effects, Any, Any]


@pytest.fixture(params=["file", "sqlite"])
def pair(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Pair]:
    """Two processes on one store."""
    place = Place(request.param, tmp_path)
    children = [start(place.url, tmp_path, do="race") for _ in range(2)]
    for child in children:
        assert answer_of(child) == {"ready": True}
    yield place, Effects(tmp_path / "effects"), *children
    end(*children)


def race_answer(child: Any) -> dict[str, Any]:
    """Return how a race ended for a child."""
    while "running" in (answer := answer_of(child)):
        pass
    return answer


class DiesAtTheOutcome(CrashingStore):
    """A store whose process dies when it is to keep the outcome of a tool."""

    async def append(self, run_id: str, expected_seq: int, records: Sequence[bytes], **options: Any) -> None:
        """Append, unless there is an outcome."""
        if any(b'"tool_finished"' in line for line in records):
            self.crashed = True
        await super().append(run_id, expected_seq, records, **options)


async def leave_behind(place: Place, effects: Effects, run: str, how: str) -> None:
    """Leave a run to the racers: with nothing done yet, or by a worker that died between the effect of its tool and the record of it."""
    if how == "begun":
        async with engine_on(place.store(), race_plan, race_tools(effects)) as engine:
            await engine.run(RACER, "race", run_id=run, variables={"tool": "hold", "gate": ""}, turns=0)
    else:
        store = DiesAtTheOutcome(place.store())
        with pytest.raises(Crash):
            await engine_on(store, race_plan, race_tools(effects)).run(
                RACER, "race", run_id=run, variables={"tool": "keep" if how == "again" else "hold", "gate": ""}
            )
    await place.close()


@pytest.mark.parametrize("how", ["begun", "again", "doubt"])
def test_two_processes_resume_one_run_at_once_again_and_again(pair: Pair, how: str) -> None:
    """Each time one takes it on, the other is told that it is busy, lost, or how the run stands; no effect is repeated silently.

    The run was only begun; or its worker died after the effect of an idempotent tool, which runs again once, with the same key; or of
    one that is not, which is in doubt for both and does not run.
    """
    place, effects, one, two = pair
    for n in range(times(17)):
        run, before = f"run{n}", len(effects.all())
        asyncio.run(leave_behind(place, effects, run, how))
        for child in (one, two) if n % 2 else (two, one):
            command(child, do="resume", run=run)
        answers = [race_answer(one), race_answer(two)]
        stands = "waiting_for_reconciliation" if how == "doubt" else "completed"
        won = [a for a in answers if a.get("status") == stands]
        assert won, answers
        for answer in answers:
            if answer not in won:
                assert answer["error"] in ("run_busy", "conflict"), answer
                assert run in answer["message"]
                assert "is being advanced by" in answer["message"] or "another worker appended first" in answer["message"]
        assert len(effects.all()) - before == {"begun": 1, "again": 2, "doubt": 1}[how]
        check_laws(asyncio.run(place.lines(run)))


def test_a_run_whose_tool_is_running_is_not_taken_by_another_process(pair: Pair) -> None:
    """Whoever tries meanwhile is told who holds it; the tool runs once, of whatever kind it is."""
    place, effects, one, two = pair
    for n, name in enumerate(["hold", "keep", "gaze", "hold"]):
        run, gate = f"run{n}", Gate(place.directory / f"gate{n}")
        command(one, do="start", run=run, tool=name, gate=str(gate.path))
        assert answer_of(one) == {"running": name}
        if name == "gaze":
            gate.open()
            assert answer_of(one)["status"] == "completed"
            continue
        for _ in range(5):
            command(two, do="resume", run=run)
            answer = answer_of(two)
            assert answer["error"] == "run_busy"
            assert str(one.pid) in answer["message"], "the message names the holder"
        gate.open()
        assert answer_of(one)["status"] == "completed"
        assert sum(line.endswith(str(gate.path)) for line in effects.all()) == 1
        check_laws(asyncio.run(place.lines(run)))


def test_a_run_is_cancelled_from_another_process_while_its_tool_runs(pair: Pair) -> None:
    """The holder sees the signal, asks its tool to stop, and finishes the run when it has ended."""
    place, _, one, two = pair
    gate = Gate(place.directory / "gate")
    command(one, do="start", run="run", tool="hold", gate=str(gate.path))
    assert answer_of(one) == {"running": "hold"}
    command(two, do="cancel", run="run")
    assert answer_of(two)["status"] == "running"
    gate.open()
    answer = answer_of(one)
    assert (answer["status"], answer["reason"]) in (("stopped", "cancelled"), ("completed", "final_answer"))
    check_laws(asyncio.run(place.lines("run")))


class UnclaimedStore(CrashingStore):
    """A store on which everybody believes to have the claim: what a network partition looks like to its victims."""

    async def claim(self, run_id: str) -> None:
        """Let everybody in."""

    async def release(self, run_id: str) -> None:
        """There is nothing to give up."""


def plan_one_call(view: View) -> Any:
    """One call, then the answer."""
    if not view.results:
        return ToolCall(tool="act", args={})
    last = view.results[-1]
    return FinalAnswer(content=last.content if last.ok else last.error.code)


async def one_pass(run: StrategyRun) -> Passed:
    """One pass, whose label has a dot, as call ids have."""
    return await run.kernel("step 1.2")


@pytest.mark.parametrize("strategy", ["reactive", "one_pass"])
@pytest.mark.parametrize("kind", KINDS[1:])  # in memory the simulation tries it
def test_a_late_worker_puts_its_outcome_on_the_log(kind: str, strategy: str, tmp_path: Path) -> None:
    """A worker whose claim was taken while its tool ran loses the append after the effect, and the log shows both facts, in the pass of the call."""

    async def main() -> None:
        place, effects = Place(kind, tmp_path), Effects(tmp_path / "effects")
        began, go = asyncio.Event(), asyncio.Event()

        @tool(side_effect="write")
        async def act() -> str:
            """Act."""
            began.set()
            await go.wait()
            effects.add("act")
            return "acted"

        engines = [engine_on(UnclaimedStore(place.store()), plan_one_call, [act], strategies={"one_pass": one_pass}) for _ in range(2)]
        async with engines[0] as late, engines[1] as early:
            first = asyncio.create_task(late.run(agent_of("act", strategy=strategy), "act", run_id="run"))
            await began.wait()
            taken = await early.resume("run")
            assert taken.status == "waiting_for_reconciliation"
            go.set()
            with pytest.raises(Conflict, match="another worker appended first"):
                await first
            told = [r.event for r in await place.records("run") if isinstance(r.event, e.ToolReconciled)]
            assert [(t.source, t.outcome, t.attempt) for t in told] == [("late_worker", "happened", 1)]
            result = await early.resume("run")
            assert (result.status, result.output) == ("completed", "acted")
            assert (await early.replay("run")).identical
        assert effects.all() == ["act"]
        check_laws(await place.lines("run"))
        await place.close()

    asyncio.run(main())


@pytest.mark.parametrize("kind", KINDS[1:])  # in memory the simulation tries it
def test_a_late_outcome_after_the_end_stays_on_the_log_and_changes_nothing(kind: str, tmp_path: Path) -> None:
    """The other worker was told that it did not happen, and finished; the log still shows that it did."""

    async def main() -> None:
        place, effects = Place(kind, tmp_path), Effects(tmp_path / "effects")
        began, go = asyncio.Event(), asyncio.Event()

        @tool(side_effect="write")
        async def act() -> str:
            """Act."""
            began.set()
            await go.wait()
            effects.add("act")
            return "acted"

        engines = [engine_on(UnclaimedStore(place.store()), plan_one_call, [act]) for _ in range(2)]
        async with engines[0] as late, engines[1] as early:
            first = asyncio.create_task(late.run(agent_of("act", on_unknown="tell"), "act", run_id="run"))
            await began.wait()
            result = await early.resume("run")
            assert (result.status, result.output) == ("completed", "tool_result_unknown_after_resume")
            go.set()
            with pytest.raises(Conflict):
                await first
            records = await place.records("run")
            assert isinstance(records[-1].event, e.ToolReconciled)
            assert records[-1].event.source == "late_worker"
            after = await early.load("run")
            assert (after.status, after.output) == ("completed", result.output)
            assert (await early.replay("run")).identical
        check_laws(await place.lines("run"))
        await place.close()

    asyncio.run(main())


@pytest.mark.parametrize("kind", KINDS)
def test_one_engine_does_not_advance_a_run_twice_at_once(kind: str, tmp_path: Path) -> None:
    """A second resume in the same program is refused like one in another: a running tool is not asked what became of it."""

    async def main() -> None:
        place, effects = Place(kind, tmp_path), Effects(tmp_path / "effects")
        began, go = asyncio.Event(), asyncio.Event()

        @tool(side_effect="write", reconcile=lambda _key: NotHappened())
        async def act() -> str:
            """Act."""
            began.set()
            await go.wait()
            effects.add("act")
            return "acted"

        async with engine_on(place.store(), plan_one_call, [act]) as engine:
            first = asyncio.create_task(engine.run(agent_of("act"), "act", run_id="run"))
            await began.wait()
            for again in (engine.resume("run"), engine.step(run_id="run"), engine.run(agent_of("act"), "act", run_id="run")):
                with pytest.raises(RunBusy, match="'run' is being advanced by"):
                    await again
            go.set()
            assert (await first).output == "acted"
        assert effects.all() == ["act"]
        await place.close()

    asyncio.run(main())


@pytest.mark.parametrize("kind", KINDS)
def test_a_claim_is_given_back_whatever_happens(kind: str, tmp_path: Path) -> None:
    """After an answer, a wait, a suspension and an error the run can be taken by another store at once."""

    async def main() -> None:
        place = Place(kind, tmp_path)
        began = asyncio.Event()

        @tool(side_effect="write", idempotent=True)
        async def act() -> str:
            """Wait for ever."""
            began.set()
            await asyncio.Event().wait()
            return "never"

        async with engine_on(place.store(), plan_one_call, [act]) as engine:
            task = asyncio.create_task(engine.run(agent_of("act"), "act", run_id="run"))
            await began.wait()
            engine.suspend("for a test", drain_s=0)
            (stopped,) = await asyncio.gather(task, return_exceptions=True)
            assert type(stopped).__name__ == "Suspended"
            other = place.store()
            await other.open()
            await other.claim("run")
            with pytest.raises(RunBusy):
                await engine.resume("run")
            await other.release("run")
        await place.close()

    asyncio.run(main())
