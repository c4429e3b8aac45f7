"""Waiting runs are resumed when their time has come or their answer is there, by workers that look for nothing else."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from cli.desk import Desk as CommandDesk
from detent import Agent, AskUser, Engine, FinalAnswer, Host, Schedule, View
from detent.cli.standing import waits_for
from detent.core import events as e
from detent.core.errors import NotAllowedNow
from detent.ports import Signal, Verdict
from detent.stores.ram import RamStore
from detent.stores.sqlite.store import SqliteStore
from detent.testing.clocks import EPOCH, FakeClock, SequentialIds
from kernel.runs import Decide, Desk, Script, call, engine_for, run_async
from laws.places import PurePlanner
from running.waiting import due, resumed

AGENT = Agent(name="w", tools=["put"])
HOUR = 3600.0


def sleeper(view: View) -> Any:
    """Wait as the goal says, do one thing, and end."""
    said = {"for": Schedule(delay_s=HOUR), "until": Schedule(at="2026-01-01T02:00:00+00:00"), "ask": AskUser(question="which?")}
    if view.iteration == 1 and view.goal in said:
        return said[view.goal]
    return FinalAnswer(content="done") if view.results else call("put", n=1)


def sleeping(store: Any, clock: FakeClock, desk: Desk, **options: Any) -> Engine:
    return engine_for(PurePlanner(sleeper), desk.put, store=store, clock=clock, **options)


def test_runs_become_due_at_their_time_and_not_before() -> None:
    """A schedule for a duration, one until a time, one without a zone (UTC); each is due from its moment on, the oldest first."""

    async def main() -> None:
        clock, desk, store = FakeClock(), Desk(), RamStore()
        made = sleeping(store, clock, desk)
        await made.run(AGENT, "for", run_id="a")
        await made.run(AGENT, "until", run_id="b")
        clock.advance(HOUR - 0.001)
        assert (await due(made), await resumed(made)) == ([], [])
        clock.advance(0.001)
        assert await due(made) == ["a"]
        clock.advance(HOUR)
        assert await due(made) == ["a", "b"]
        results = await resumed(made)
        assert [(r.run_id, r.status) for r in results] == [("a", "completed"), ("b", "completed")]
        assert [what for what, _ in desk.ran] == ["put", "put"]
        assert (await due(made), await resumed(made)) == ([], [])
        for run_id in ("a", "b"):
            assert (await made.replay(run_id)).identical
            assert [type(r.event).__name__ for r in await made.records(run_id)].count("ScheduleFired") == 1

    asyncio.run(main())


def test_a_worker_for_waiting_runs_leaves_all_others_alone() -> None:
    """One that was submitted, and one whose process died, stay as they are; a worker for everything advances them."""

    async def main() -> None:
        clock, desk, store = FakeClock(), Desk(), RamStore()
        made = sleeping(store, clock, desk)
        await made.submit(AGENT, "go", run_id="submitted")
        await made.run(AGENT, "go", run_id="died", turns=0)
        await made.run(AGENT, "for", run_id="waiting")
        clock.advance(HOUR)
        before = [await store.read(run_id) for run_id in ("submitted", "died")]
        assert [(r.run_id, r.status) for r in await resumed(made)] == [("waiting", "completed")]
        assert [await store.read(run_id) for run_id in ("submitted", "died")] == before
        assert (await made.work(until_idle=True)).came_to == {"completed": 2}

    asyncio.run(main())


def test_a_run_that_is_woken_before_its_time_by_resume_waits_on() -> None:
    """Nothing is recorded, nothing runs."""

    async def main() -> None:
        clock, desk, store = FakeClock(), Desk(), RamStore()
        made = sleeping(store, clock, desk)
        await made.run(AGENT, "for", run_id="a")
        before = len(await made.records("a"))
        assert (await made.resume("a")).status == "waiting_for_schedule"
        assert (len(await made.records("a")), desk.ran) == (before, [])

    asyncio.run(main())


def test_an_approval_that_nobody_gave_in_time_is_due_and_ends_the_run() -> None:
    """Before its time the run is not due; from then on it ends as expired, and nothing ran."""

    async def main() -> None:
        clock, desk, store = FakeClock(), Desk(), RamStore()
        policy = Decide(lambda _: Verdict(decision="require_approval", rule="r", expires_s=60))
        made = sleeping(store, clock, desk, policy=policy)
        await made.run(AGENT, "go", run_id="a")
        clock.advance(59.9)
        assert await due(made) == []
        clock.advance(0.1)
        assert await due(made) == ["a"]
        with pytest.raises(NotAllowedNow):
            await made.approve("a", "main.1.0", by="late")
        (result,) = await resumed(made)
        assert (result.status, result.reason, desk.ran) == ("stopped", "approval_expired", [])
        assert (await made.replay("a")).identical

    asyncio.run(main())


def test_an_answer_that_waits_makes_its_run_due() -> None:
    """A reply or an approval posted without taking the run on; of two runs only the answered one."""

    async def main() -> None:
        clock, desk, store = FakeClock(), Desk(), RamStore()
        made = sleeping(store, clock, desk)
        for name in ("a", "b"):
            await made.run(AGENT, "ask", run_id=name)
        await made.reply("b", "this one", by="ann", resume=False)
        assert await due(made) == ["b"]
        (result,) = await resumed(made)
        assert (result.run_id, result.status) == ("b", "completed")
        assert await due(made) == []

    asyncio.run(main())


def test_a_run_that_another_worker_has_is_left_to_it_and_the_others_go_on(caplog: pytest.LogCaptureFixture) -> None:
    """The claim decides; nothing of it is recorded here, and nothing is wrong with that."""

    async def main() -> None:
        clock, desk, store = FakeClock(), Desk(), RamStore()
        made = sleeping(store, clock, desk)
        for name in ("a", "b"):
            await made.run(AGENT, "for", run_id=name)
        clock.advance(HOUR)
        other = store.sibling()
        await other.claim("a")
        assert [(r.run_id, r.status) for r in await resumed(made)] == [("b", "completed")]
        assert caplog.text == ""
        await other.release("a")
        assert [(r.run_id, r.status) for r in await resumed(made)] == [("a", "completed")]

    asyncio.run(main())


def test_a_run_that_cannot_go_on_here_holds_up_no_other(caplog: pytest.LogCaptureFixture) -> None:
    """One whose tool is not registered in this program is named in the log, and stays as it is."""

    async def main() -> None:
        clock, desk, store = FakeClock(), Desk(), RamStore()
        made = engine_for(PurePlanner(sleeper), *desk.all, store=store, clock=clock)
        await made.run(Agent(name="x", tools=["put", "wipe"]), "for", run_id="a")
        await made.run(AGENT, "for", run_id="b")
        clock.advance(HOUR)
        poorer = sleeping(store, clock, desk, ids=SequentialIds(5000))
        assert [(r.run_id, r.status) for r in await resumed(poorer)] == [("b", "completed")]
        assert "run a is due but cannot be resumed" in caplog.text
        assert await due(made) == ["a"]

    asyncio.run(main())


def test_two_workers_that_wake_at_once_take_each_run_on_once() -> None:
    """Whoever comes second finds the run busy, or finished; each effect is there once."""

    async def main() -> None:
        clock, desk, store = FakeClock(), Desk(), RamStore()
        one = sleeping(store, clock, desk)
        two = sleeping(store.sibling(), clock, desk, ids=SequentialIds(5000))
        for n in range(6):
            await one.run(AGENT, "for", run_id=f"r{n}")
        clock.advance(HOUR)
        results = await asyncio.gather(resumed(one), resumed(two))
        assert len(desk.ran) == 6
        assert {r.run_id for part in results for r in part} == {f"r{n}" for n in range(6)}
        for n in range(6):
            assert (await one.load(f"r{n}")).status == "completed"
            assert [type(r.event).__name__ for r in await one.records(f"r{n}")].count("ScheduleFired") == 1

    run_async(main)


def test_a_host_wakes_only_its_own_runs() -> None:
    """Those of other tenants stay as they are."""

    async def main() -> None:
        clock, desk, store = FakeClock(), Desk(), RamStore()
        made = sleeping(store, clock, desk)
        for tenant in ("acme", "other"):
            await made.run(AGENT, "for", run_id=tenant, host=Host(tenant=tenant))
        clock.advance(HOUR)
        assert [r.run_id for r in await resumed(made, host=Host(tenant="acme"))] == ["acme@acme"]
        assert await due(made) == ["other@other"]

    asyncio.run(main())


SHAPE = {"type": "object", "properties": {"n": {"type": "integer", "minimum": 1}}, "required": ["n"], "additionalProperties": False}


def test_a_reply_must_satisfy_the_shape_that_was_asked_for() -> None:
    """What does not is refused with what is wrong and nothing is recorded; a text that is fitting JSON counts; then the run goes on."""

    async def main() -> None:
        desk, store = Desk(), RamStore()
        made = engine_for(Script([AskUser(question="how many?", expected=SHAPE), FinalAnswer(content="thanks")]), desk.put, store=store)
        await made.run(AGENT, "go", run_id="a")
        before = await store.read("a")
        for bad, said in (("many", "n"), ({"n": 0}, "minimum"), ({"n": 1, "m": 2}, "m"), ({}, "n"), ([1], "object")):
            with pytest.raises(NotAllowedNow, match=said) as refused:
                await made.reply("a", bad)
            assert refused.value.reason_code == "reply_not_as_expected"
        assert await store.read("a") == before
        result = await made.reply("a", '{"n": 3}', by="ann")
        assert result.status == "completed"
        (replied,) = [r.event for r in await made.records("a") if isinstance(r.event, e.UserReplied)]
        assert (replied.reply, replied.by) == ({"n": 3}, "ann")
        assert (await made.replay("a")).identical

    asyncio.run(main())


def test_a_reply_to_what_nobody_asked_or_was_answered_is_refused() -> None:
    """With the open questions in the message."""

    async def main() -> None:
        desk, store = Desk(), RamStore()
        made = engine_for(Script([AskUser(question="?"), FinalAnswer(content="x")]), desk.put, store=store)
        await made.run(AGENT, "go", run_id="a")
        with pytest.raises(NotAllowedNow, match=r"no open question 'other' \(open: main\.1\)"):
            await made.reply("a", "x", ask_id="other")
        await made.reply("a", "x")
        with pytest.raises(NotAllowedNow, match="open: none"):
            await made.reply("a", "again")

    asyncio.run(main())


def test_a_reply_to_a_run_that_was_cancelled_is_refused_and_counts_once_it_asks_again() -> None:
    """Nobody would take it up: the question is asked anew when the run is opened again."""

    async def main() -> None:
        made = sleeping(store := RamStore(), FakeClock(), Desk())
        await made.run(AGENT, "ask", run_id="a")
        assert (await made.cancel("a")).status == "stopped"
        for resume in (True, False):
            with pytest.raises(NotAllowedNow, match=r"has no open question \(open: none\): the run is stopped") as caught:
                await made.reply("a", "x", resume=resume)
            assert caught.value.reason_code == "not_asked"
        assert await store.signals(["a"]) == {}
        assert (await made.reopen("a", by="ann")).status == "waiting_for_user"
        assert (await made.reply("a", "x")).status == "completed"

    asyncio.run(main())


def test_a_second_reply_before_the_first_is_taken_up_is_refused() -> None:
    """It would be dropped silently: the first one counts."""

    async def main() -> None:
        made = sleeping(RamStore(), FakeClock(), Desk())
        await made.run(AGENT, "ask", run_id="a")
        await made.reply("a", "x", by="ann", resume=False)
        with pytest.raises(NotAllowedNow, match="was answered by ann already") as caught:
            await made.reply("a", "y", resume=False)
        assert caught.value.reason_code == "already_replied"
        await made.reply("a", "x", by="ann", resume=False)  # she does not know that it arrived
        assert (await made.resume("a")).status == "completed"
        with pytest.raises(NotAllowedNow, match=r"has no open question \(open: none\)"):
            await made.reply("a", "z")

    asyncio.run(main())


def test_what_a_run_waits_for_is_said_while_it_waits_and_not_after() -> None:
    """A question with the shape of its answer; a run that was cancelled sleeps and asks no more."""

    async def main() -> None:
        shape = {"type": "integer"}
        made = engine_for(Script([AskUser(question="how many?", expected=shape)]), Desk().put)
        asked = await made.run(AGENT, "go", run_id="q")
        assert waits_for(asked.state) == ["question: how many?", '  answer with: {"type": "integer"}']
        assert waits_for((await made.cancel("q")).state) == []
        asleep = sleeping(RamStore(), FakeClock(), Desk())
        assert waits_for((await asleep.run(AGENT, "for", run_id="a")).state)[0].startswith("sleeps until ")
        assert waits_for((await asleep.cancel("a")).state) == []

    asyncio.run(main())


def test_an_answer_that_is_posted_twice_is_taken_up_once() -> None:
    """The id of the signal decides, in the inbox and on the log."""

    async def main() -> None:
        clock, desk, store = FakeClock(), Desk(), RamStore()
        made = sleeping(store, clock, desk)
        await made.run(AGENT, "ask", run_id="a")
        reply = Signal(id="one", kind="reply", by="ann", payload={"ask_id": "main.1", "reply": "x"})
        for _ in range(3):
            await made.signal("a", reply)
        assert (await resumed(made))[0].status == "completed"
        assert [type(r.event).__name__ for r in await made.records("a")].count("UserReplied") == 1

    asyncio.run(main())


# The command line ----------------------------------------------------------------------------------------------------------------


def test_a_worker_for_waiting_runs_resumes_what_is_due_and_leaves_the_rest(tmp_path: Path) -> None:
    """Two wait for approval, one was approved; a third was approved and is in another process's hands; a fourth was only submitted."""
    desk = CommandDesk(tmp_path)
    only_waiting = ("worker", "--waiting-only", "--until-idle")
    assert "nothing left to do: there is no store yet" in desk.detent(*only_waiting).err
    desk.steps("wipe", "answer")
    for name in ("first", "second", "third"):
        assert desk.detent("run", "--agent", "agent.toml", "--run-id", name, "tidy").code == 3
    assert desk.detent("submit", "--agent", "agent.toml", "--run-id", "fourth", "tidy").code == 0
    assert "nothing left to do: no runs" in desk.detent(*only_waiting).err
    for name in ("second", "third"):
        assert desk.detent("approve", name, "main.1.0", "--no-resume").code == 0

    async def held() -> Any:
        store = SqliteStore(desk.store)
        await store.open()
        await store.claim("second")
        try:
            return await asyncio.to_thread(desk.detent, *only_waiting, "--json")
        finally:
            await store.close()

    done = asyncio.run(held())
    assert (done.json["came_to"], done.code, desk.notes) == ({"completed": 1}, 0, ["wiped x"]), done.err
    assert [run["run_id"] for run in desk.detent("list", "--status", "completed", "--json").json] == ["third"]
    again = desk.detent(*only_waiting, "--json")
    assert (again.json["came_to"], again.code, desk.notes) == ({"completed": 1}, 0, ["wiped x", "wiped x"])
    assert desk.detent("list", "--status", "waiting_for_approval", "--json").json[0]["run_id"] == "first"
    assert desk.detent("list", "--status", "running", "--json").json[0]["run_id"] == "fourth"


def test_detent_resume_with_a_budget_says_so_in_the_log(tmp_path: Path) -> None:
    """The bound is raised before it is reached, and `show` names it."""
    desk = CommandDesk(tmp_path)
    desk.steps("wipe", "second", "answer")
    assert desk.detent("run", "--agent", "agent.toml", "--run-id", "r", "--budget", "max_iterations=1", "tidy").code == 3
    desk.detent("approve", "r", "main.1.0", "--no-resume")
    done = desk.detent("resume", "r", "--budget", "max_iterations=9", "--budget", "max_calls_of.note=4")
    assert (done.code, desk.notes) == (0, ["wiped x", "two"])
    shown = desk.detent("show", "r", "--json").json
    assert "BudgetChanged" in str(shown) or "max_iterations" in str(shown)


def test_time_of_an_approval_is_the_runs_own_clock() -> None:
    """What is recorded decides: the request's expiry is its recorded time and the rule's seconds."""

    async def main() -> None:
        clock, desk, store = FakeClock(), Desk(), RamStore()
        made = sleeping(store, clock, desk, policy=Decide(lambda _: Verdict(decision="require_approval", expires_s=60)))
        await made.run(AGENT, "go", run_id="a")
        (asked,) = (await made.load("a")).approvals.values()
        assert asked.expires_at == EPOCH + timedelta(seconds=60)

    asyncio.run(main())
