"""Control actions that wait or change goals, cancellation, and what happens to a run that is left alone. Rows K4, K5, K14, K21, K22, T16, DESIGN 4 and 6."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from detent import Agent, AskUser, Budget, CompleteGoal, PushGoal, Schedule, SpawnSubagent, Thought, ToolContext, tool
from detent.core import events as e
from detent.core.errors import NotAllowedNow
from detent.testing.clocks import FakeClock
from kernel.runs import END, Desk, Script, call, engine_for, go, look, ran, run_async


def test_a_question_waits_without_a_worker_and_the_reply_is_in_the_next_view() -> None:
    """K14: any process may reply and go on; the ask used one iteration."""

    async def main() -> None:
        planner = Script([AskUser(question="how many?", expected={"type": "integer"}), END])
        engine = engine_for(planner)
        first = await engine.run(Agent(name="w"), "go")
        assert (first.status, first.reason, first.iterations) == ("waiting_for_user", "", 1)
        assert [a.question for a in first.state.asks.values()] == ["how many?"]
        assert (await engine.resume(first.run_id)).status == "waiting_for_user" and len(planner.views) == 1
        done = await look(engine, await engine.reply(first.run_id, 3, by="ann"), planner)
        assert done.why == ("completed", "final_answer") and done.result.iterations == 2
        assert [(i.kind, i.text) for i in planner.views[1].transcript][-1] == ("user", "3")
        (replied,) = done.all(e.UserReplied)
        assert (replied.reply, replied.by) == (3, "ann")

    run_async(main)


def test_a_schedule_waits_until_its_time_by_the_runs_clock() -> None:
    """K22: a delay or a time; resumed before it, nothing happens."""

    async def main() -> None:
        clock = FakeClock()
        planner = Script([Schedule(delay_s=60), Schedule(at="2026-01-01T01:00:00Z"), END])
        engine = engine_for(planner, clock=clock)
        first = await engine.run(Agent(name="w"), "go")
        assert first.status == "waiting_for_schedule"
        clock.advance(59)
        assert (await engine.resume(first.run_id)).status == "waiting_for_schedule" and len(planner.views) == 1
        clock.advance(1)
        second = await engine.resume(first.run_id)
        assert second.status == "waiting_for_schedule" and len(planner.views) == 2
        clock.advance(3600)
        done = await look(engine, await engine.resume(first.run_id), planner)
        assert done.why == ("completed", "final_answer") and len(done.all(e.ScheduleFired)) == 2

    run_async(main)


@pytest.mark.parametrize("action", [Schedule(), Schedule(at="tomorrow"), Schedule(delay_s=-1), Schedule(delay_s=1e300)])
def test_a_schedule_that_means_nothing_is_told_and_the_run_goes_on(action: Any) -> None:
    """A note for the planner, no exception."""
    done = ran([action, END])
    assert done.why == ("completed", "final_answer") and "The schedule was not set" in done.views[1].transcript[-1].text


def test_goals_are_pushed_and_completed() -> None:
    """K21: the innermost without an id; completing what is not open is told."""
    done = ran([PushGoal(goal="a"), PushGoal(goal="b"), CompleteGoal(outcome="ok"), CompleteGoal(goal_id="main.1"), CompleteGoal(), END])
    assert [[g for _, g in v.goals] for v in done.views] == [[], ["a"], ["a", "b"], ["a"], [], []]
    assert [(g.goal_id, g.outcome) for g in done.all(e.GoalCompleted)] == [("main.2", "ok"), ("main.1", "")]
    assert "There is no open goal '' to complete." in done.views[5].transcript[-1].text


def test_what_this_run_cannot_do_is_told() -> None:
    """An action without a seam behind it is a note, never silently dropped."""
    done = ran([SpawnSubagent(agent="x", goal="g"), END])
    assert "SpawnSubagent is not available in this run." in done.views[1].transcript[-1].text and done.why == ("completed", "final_answer")


def test_a_control_action_is_carried_out_once_over_steps() -> None:
    """Each turn taken by another call of the engine gives the same log."""

    async def main() -> None:
        script = [PushGoal(goal="a"), CompleteGoal(goal_id="x"), Thought(content="hm"), call("put", n=1), END]
        planner = Script(script)
        engine = engine_for(planner, *Desk().all)
        result = await engine.step(Agent(name="w", tools=["put"]), "go")
        while result.status == "running":
            result = await engine.step(run_id=result.run_id)
        done = await look(engine, result, planner)
        whole = await go(script, *Desk().all)
        assert [n for n in done.names if n != "RunResumed"] == whole.names and len(planner.views) == 5

    run_async(main)


# Cancel -----------------------------------------------------------------------------------------------------------------------


def test_cancel_ends_a_waiting_run_at_once() -> None:
    """T16: stopped, cancelled, with who and why; further answers are refused."""

    async def main() -> None:
        planner = Script([call("wipe", n=1)])
        engine = engine_for(planner, *Desk().all)
        first = await engine.run(Agent(name="w", tools=["wipe"]), "go")
        done = await look(engine, await engine.cancel(first.run_id, by="ann", why="enough"), planner)
        assert done.why == ("stopped", "cancelled") and done.result.error == "enough" and done.all(e.CancelRequested)[0].by == "ann"
        with pytest.raises(NotAllowedNow):
            await engine.approve(first.run_id, "main.1.0", by="ann")
        again = await engine.cancel(first.run_id)
        assert again.status == "stopped" and len(await engine.records(first.run_id)) == len(done.records)

    run_async(main)


def test_cancel_asks_the_running_call_to_stop_and_lets_it() -> None:
    """DESIGN 6: a tool that looks at `cancelled` ends in good order; its outcome is in the log; nothing further runs."""

    async def main() -> None:
        begun, flags = asyncio.Event(), []

        @tool(side_effect="write", timeout_s=None)
        async def work(context: ToolContext) -> str:
            """Work until asked to stop."""
            begun.set()
            while not context.cancelled:
                await asyncio.sleep(0.001)
            flags.append(context.cancelled.why)
            return "stopped in good order"

        planner = Script([(call("work"), call("put", n=1)), END])
        desk = Desk()
        engine = engine_for(planner, work, *desk.all)
        running = asyncio.create_task(engine.run(Agent(name="w", tools=["work", "put"]), "go", run_id="r"))
        await begun.wait()
        await engine.cancel("r", by="ann", why="enough")
        done = await look(engine, await running, planner)
        assert done.why == ("stopped", "cancelled") and [i.content for i in done.items] == ["stopped in good order"]
        assert flags == ["enough"] and desk.ran == [] and done.state.in_doubt == ()

    run_async(main)


@pytest.mark.parametrize(("side_effect", "in_doubt"), [("write", ("main.1.0",)), ("read", ())])
def test_cancel_of_a_call_that_does_not_stop_leaves_an_effect_in_doubt(side_effect: Any, in_doubt: tuple[str, ...]) -> None:
    """After the grace the task is cancelled; what only reads is no doubt; the end of the log lists the call."""

    async def main() -> None:
        begun = asyncio.Event()

        @tool(side_effect=side_effect, timeout_s=None)
        async def deaf() -> str:
            """Never end."""
            begun.set()
            await asyncio.Event().wait()
            return ""

        planner = Script([call("deaf"), END])
        engine = engine_for(planner, deaf)
        running = asyncio.create_task(engine.run(Agent(name="w", tools=["deaf"]), "go", run_id="r"))
        await begun.wait()
        control: Any = engine.runtime.parts.watcher.control("r")
        control.grace_s = 0.0
        await engine.cancel("r", why="enough")
        done = await look(engine, await running, planner)
        assert done.why == ("stopped", "cancelled") and done.all(e.RunFinished)[0].in_doubt == in_doubt == done.state.in_doubt

    run_async(main)


def test_cancel_interrupts_a_planner() -> None:
    """A model call that hangs holds nothing up."""

    async def main() -> None:
        begun = asyncio.Event()

        async def hangs(view: Any) -> Any:
            begun.set()
            await asyncio.Event().wait()

        planner = Script([hangs, END])
        engine = engine_for(planner)
        running = asyncio.create_task(engine.run(Agent(name="w"), "go", run_id="r"))
        await begun.wait()
        await engine.cancel("r", why="enough")
        done = await look(engine, await running, planner)
        assert done.why == ("stopped", "cancelled") and len(planner.views) == 1

    run_async(main)


def test_a_planner_that_takes_too_long_meets_the_time_bound() -> None:
    """The remaining time is the deadline of every call."""

    async def hangs(view: Any) -> Any:
        await asyncio.Event().wait()

    done = ran([hangs, END], budget=Budget(max_running_s=0.05), clock=None)
    assert done.why == ("stopped", "budget_exhausted") and done.state.dimension == "running_s"


# Reopen -----------------------------------------------------------------------------------------------------------------------


def test_a_stopped_run_is_opened_again_with_a_higher_bound() -> None:
    """DESIGN 4: usage is kept; refused while the bound is still exhausted, naming the option."""

    async def main() -> None:
        planner = Script([*[lambda view: call(n=view.iteration)] * 5, END])
        engine = engine_for(planner, *Desk().all)
        first = await engine.run(Agent(name="w", tools=["look"]), "go", budget=Budget(max_iterations=3))
        assert first.reason == "max_iterations"
        with pytest.raises(NotAllowedNow, match="max_iterations=3; raise it with Budget") as caught:
            await engine.reopen(first.run_id, by="ann")
        assert caught.value.reason_code == "bound_exhausted"
        done = await look(engine, await engine.reopen(first.run_id, by="ann", why="more", budget=Budget(max_iterations=9)), planner)
        assert done.why == ("completed", "final_answer") and done.result.iterations == 6 and len(done.all(e.RunFinished)) == 2
        assert done.state.openings == 2 and done.all(e.RunReopened)[0].by == "ann"
        with pytest.raises(NotAllowedNow, match="is completed; only a failed or stopped run") as refused:
            await engine.reopen(first.run_id)
        assert refused.value.reason_code == "not_reopenable"

    run_async(main)


@pytest.mark.parametrize("happened", [True, False])
def test_a_doubt_is_settled_by_a_person(happened: bool) -> None:
    """It happened (with a result), or it did not: it then runs, with the same key."""

    async def main() -> None:
        keys: list[str] = []

        @tool(side_effect="write")
        async def pay(context: ToolContext) -> str:
            """Pay."""
            keys.append(context.idempotency_key)
            if len(keys) == 1:
                raise OSError("connection lost")
            return "paid now"

        planner = Script([call("pay"), END])
        engine = engine_for(planner, pay)
        first = await engine.run(Agent(name="w", tools=["pay"]), "go")
        assert first.status == "waiting_for_reconciliation" and first.state.in_doubt == ("main.1.0",)
        with pytest.raises(NotAllowedNow, match="is not in doubt"):
            await engine.reconcile(first.run_id, "main.1.7", happened=True)
        done = await look(
            engine, await engine.reconcile(first.run_id, "main.1.0", happened=happened, result="paid before", by="ann"), planner
        )
        assert done.why == ("completed", "final_answer") and [i.content for i in done.items] == ["paid before" if happened else "paid now"]
        assert len(keys) == (1 if happened else 2) and len(set(keys)) == 1 and done.result.usage.tool_calls == 1

    run_async(main)


def test_an_agent_may_have_its_model_told_about_a_doubt_that_a_crash_left() -> None:
    """`on_unknown="tell"`: tool_result_unknown_after_resume."""

    async def main() -> None:
        from detent.stores.ram import RamStore
        from detent.testing.faults import Crash, CrashingStore

        place, desk = RamStore(), Desk()
        agent = Agent(name="w", tools=["put"], on_unknown="tell")
        dying = CrashingStore(place, at=3, operations=("append",))
        with pytest.raises(Crash):
            await engine_for(Script([call("put", n=1), END]), *desk.all, store=dying).run(agent, "go", run_id="r")
        await place.release("r")
        assert desk.ran == [("put", 1)]
        planner = Script([END])
        engine = engine_for(planner, *desk.all, store=place)
        done = await look(engine, await engine.resume("r"), planner)
        assert done.why == ("completed", "final_answer") and done.codes == ["tool_result_unknown_after_resume"] and desk.ran == [("put", 1)]

    run_async(main)
