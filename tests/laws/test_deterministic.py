"""Law 5: the same log gives the same next decision; replay re-executes against the log and names the first divergence."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated, Any

import pytest
from pydantic import AfterValidator

from amounts import crossed
from crash.workload import EXPECTED, RUN, make_tools, plan, work, worker
from detent import FinalAnswer, NotExecuted, Thought, ToolCall, ToolFailed, View, tool
from detent.core import events as e
from detent.core.actions import AskUser, CompleteGoal, Schedule
from detent.core.codec import read_log
from detent.core.fold import fold
from detent.core.settle import settle
from detent.kernel.act import act as act_phase
from detent.kernel.kernel import make_kernel
from detent.kernel.think import think
from detent.policies.tiers import TieredPolicy
from detent.running.states import dump_state
from detent.testing import ScriptedPlanner
from detent.testing.clocks import FakeClock, SequentialIds
from laws.checks import check_laws
from laws.places import KINDS, Effects, Place, PurePlanner, agent_of, engine_on

pytestmark = crossed


def test_with_a_fake_clock_and_sequential_ids_two_runs_write_the_same_bytes(tmp_path: Path) -> None:
    """Nothing else comes from a clock, a random source, the process or the order of a hash: records, salts, digests are equal on every store."""
    logs: list[list[bytes]] = []

    async def main(kind: str, n: int) -> None:
        directory = tmp_path / f"{kind}{n}"
        directory.mkdir()
        place, effects = Place(kind, directory), Effects(directory / "effects")
        async with worker(place.store(), effects, clock=FakeClock(tick_s=0.001), ids=SequentialIds()) as engine:
            assert (await work(engine, effects)).state.output == EXPECTED
        logs.append(await place.lines(RUN))
        await place.close()

    for kind in KINDS:
        for n in range(2):
            asyncio.run(main(kind, n))
    assert all(log == logs[0] for log in logs)


def test_the_same_prefix_gives_the_same_view_and_the_same_verdict(tmp_path: Path) -> None:
    """Whoever folds a prefix decides the same as the live engine did: end, wait, go on; and plans from the same view."""
    views: list[str] = []

    def looking(view: View) -> Any:
        views.append(repr([(i.kind, i.text, i.content) for i in view.transcript]) + repr(view.budget_remaining))
        return plan(view)

    async def main() -> None:
        place, effects = Place("ram", tmp_path), Effects(tmp_path / "effects")
        clock = FakeClock()
        async with engine_on(place.store(), PurePlanner(looking), make_tools(effects), clock=clock) as engine:
            await work(engine, effects)
        lines = await place.lines(RUN)
        records = list(read_log(RUN, lines))
        for k in range(3, len(records)):
            one, two = fold(records[:k]), fold(read_log(RUN, lines[:k]))
            assert dump_state(one) == dump_state(two)
            verdicts = [
                settle(s, s.passes["main"], running_s=s.running_ms / 1000, turn_over=over) for s in (one, two) for over in (False, True)
            ]
            assert verdicts[:2] == verdicts[2:]
        live = list(views)
        views.clear()
        # a fresh engine over each prefix that ends with a TurnStarted plans from the same view
        for k, record in enumerate(records, 1):
            if isinstance(record.event, e.TurnStarted):
                copy = Place("ram", tmp_path).store()
                await copy.append(RUN, 0, lines[:k], head=await engine.store.head(RUN))  # type: ignore[arg-type]
                for key in await engine.store.list_blobs(RUN):
                    await copy.put_blob(RUN, key, await engine.store.get_blob(RUN, key) or b"")
                async with engine_on(copy, PurePlanner(looking), make_tools(effects), clock=clock) as engine2:
                    await engine2.step(run_id=RUN)
        assert set(views) == set(live)

    asyncio.run(main())


def flaky(name: str, error: Any, **options: Any) -> Any:
    """Return a tool whose first attempt of each call raises."""

    async def function(n: int, context: Any) -> str:
        if context.attempt == 1:
            raise error
        return f"{name} {n}"

    from detent import ToolContext

    function.__annotations__["context"] = ToolContext
    function.__doc__ = "Fail the first time."
    return tool(function, name=name, **options)


CASES: dict[str, tuple[list[Any], list[Any]]] = {
    "not_executed_retried": ([ToolCall(tool="t", args={"n": 1})], [flaky("t", NotExecuted("no"), side_effect="write", retries=1)]),
    "not_executed_in_vain": ([ToolCall(tool="t", args={"n": 1})], [flaky("t", NotExecuted("no"), side_effect="write")]),
    "not_executed_timeout": (
        [ToolCall(tool="t", args={"n": 1})],
        [flaky("t", NotExecuted("no thread", error_code="timeout"), side_effect="write", retries=2)],
    ),
    "idempotent_retried": (
        [ToolCall(tool="t", args={"n": 1})],
        [flaky("t", OSError("x"), side_effect="write", idempotent=True, retries=1)],
    ),
    "read_retried": ([ToolCall(tool="t", args={"n": 1})], [flaky("t", ToolFailed("x"), side_effect="read", retries=1)]),
    "strange_name": ([ToolCall(tool="t", args={"n": 1})], [flaky("t", ToolFailed("a\udcff"), side_effect="write")]),
    "note": ([CompleteGoal(goal_id="none"), Schedule(at="tomorrow"), Thought(content="x")], []),
    "group": (
        [tuple(ToolCall(tool="t", args={"n": n}) for n in range(4))],
        [flaky("t", OSError("x"), side_effect="read", retries=1, concurrency_safe=True)],
    ),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("steps", [False, True], ids=["run", "steps"])
def test_what_ran_replays(case: str, steps: bool, tmp_path: Path) -> None:
    """Retries, refusals, notes and groups come out of the log again, also of a run that was taken a turn at a time."""
    script, tools = CASES[case]

    async def main() -> None:
        place = Place("ram", tmp_path)

        def planned(view: View) -> Any:
            return script[view.iteration - 1] if view.iteration <= len(script) else FinalAnswer(content="done")

        async with engine_on(place.store(), planned, tools) as engine:
            result = await (engine.step if steps else engine.run)(agent_of(*tools), "go", run_id="run")
            while not result.state.terminal:
                result = await engine.step(run_id="run")
            assert result.status == "completed"
            again = await engine.replay("run")
            assert again.identical, again.divergence
        check_laws(await place.lines("run"))

    asyncio.run(main())


class Changed(TieredPolicy):
    """Another policy than the run had."""

    version = "changed-1"

    def decide(self, call: Any, state: Any) -> Any:
        """Deny looking."""
        from detent.ports import Verdict

        if call.tool.name == "look":
            return Verdict(decision="deny", rule="blind", reason="no looking")
        return super().decide(call, state)


async def chatty(state: Any, context: Any) -> Any:
    """A phase that the run did not have."""
    from detent.core.state import transition

    return transition(context.state, scratchpad={"turn": str(state.iteration)})


def refused(n: int) -> int:
    """Refuse every number."""
    raise ValueError("no number will do")


@pytest.mark.parametrize("change", ["policy", "kernel", "tool"])
def test_replay_names_the_first_record_that_comes_out_otherwise(change: str, tmp_path: Path) -> None:
    """With other code in policy, kernel or tool: not identical, at that sequence, with what the log has and what the code gives."""

    async def main() -> None:
        place, effects = Place("ram", tmp_path), Effects(tmp_path / "effects")
        async with worker(place.store(), effects) as engine:
            await work(engine, effects)
        tools = make_tools(effects)
        options: dict[str, Any] = {}
        if change == "policy":
            options["policy"] = Changed()
        elif change == "kernel":
            options["kernel"] = make_kernel((think, chatty, act_phase))
        else:

            async def put(n: Annotated[int, AfterValidator(refused)]) -> int:
                """Is declared as it was, and refuses what it took."""
                return n

            tools = [t if t.name != "put" else tool(put, side_effect="write") for t in tools]
        async with engine_on(place.store(), ScriptedPlanner([]), tools, **options) as engine:
            before = effects.all()
            again = await engine.replay(RUN)
            assert not again.identical
            assert again.divergence is not None
            records = await place.records(RUN)
            expected = {"policy": e.PolicyDecided, "kernel": e.PolicyDecided, "tool": e.PolicyDecided}[change]
            assert isinstance(records[again.divergence.sequence - 1].event, expected)
            assert again.divergence.expected != again.divergence.actual
            assert effects.all() == before

    asyncio.run(main())


def test_a_wait_fires_by_the_recorded_time_and_not_by_the_clock_of_whoever_looks(tmp_path: Path) -> None:
    """A schedule is due by the log's time; resuming before changes nothing, after it goes on, and both replay."""

    def planned(view: View) -> Any:
        return (Schedule(delay_s=60.0), AskUser(question="well?"), FinalAnswer(content="done"))[view.iteration - 1]

    async def main() -> None:
        place, clock = Place("sqlite", tmp_path), FakeClock()
        async with engine_on(place.store(), planned, clock=clock) as engine:
            assert (await engine.run(agent_of(), "wait", run_id="run")).status == "waiting_for_schedule"
            clock.advance(59)
            assert (await engine.resume("run")).status == "waiting_for_schedule"
            clock.advance(1)
            assert (await engine.resume("run")).status == "waiting_for_user"
            clock.set_now(clock.now().replace(year=2020))
            assert (await engine.reply("run", {"yes": True})).output == "done"
            assert (await engine.replay("run")).identical
        check_laws(await place.lines("run"))
        await place.close()

    asyncio.run(main())
