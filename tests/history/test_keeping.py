"""Looking at runs and removing them: tenants, listing, load, verify, replay, signals, erase, delete, gc. DESIGN 4, 5, 8."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from detent import Agent, AskUser, Budget, Host, tool
from detent.core import events as e
from detent.core.codec import read_log
from detent.core.errors import NotAllowedNow, RunNotFound
from detent.core.fold import fold
from detent.ports import RunQuery, Signal
from detent.stores.ram import RamStore
from detent.testing.clocks import FakeClock
from kernel.runs import END, Desk, Script, call, engine_for, run_async

ACME, OTHER = Host(tenant="acme"), Host(tenant="other")
SECRET = "the-launch-code-is-7421"


# Tenants ----------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("verb", "args"),
    [
        ("resume", {}), ("reopen", {}), ("cancel", {}), ("load", {}), ("records", {}), ("replay", {}), ("verify", {}), ("erase", {}), ("delete", {}),
        ("approve", {"call_id": "main.1.0", "by": "b"}), ("deny", {"call_id": "main.1.0", "by": "b"}), ("reply", {"reply": "r"}),
        ("reconcile", {"call_id": "main.1.0", "happened": True}), ("signal", {"signal": Signal(id="s", kind="cancel")}),
    ],
)  # fmt: skip
def test_another_tenants_run_is_not_found_by_any_verb(verb: str, args: dict[str, Any]) -> None:
    """DESIGN 8: calls with a host see and touch only that tenant; the run is as before."""

    async def main() -> None:
        desk = Desk()
        engine = engine_for(Script([call("wipe", n=1)]), *desk.all)
        await engine.run(Agent(name="w", tools=["wipe"]), "go", run_id="r", host=ACME)
        before = await engine.store.read("r")
        for host in (OTHER, Host()):
            with pytest.raises(RunNotFound, match="no run 'r'"):
                await getattr(engine, verb)("r", host=host, **args)
        assert await engine.store.read("r") == before and await engine.store.signals(["r"]) == {} and desk.ran == []

    run_async(main)


def test_a_step_or_a_run_with_the_id_of_another_tenants_run_does_not_touch_it() -> None:
    """Neither taken on nor told what it is."""

    async def main() -> None:
        engine = engine_for(Script([END]))
        await engine.run(Agent(name="w"), "a secret goal", run_id="r", host=ACME)
        before = await engine.store.read("r@acme")
        with pytest.raises(RunNotFound):
            await engine.step(run_id="r", host=OTHER)
        begun = await engine.run(Agent(name="w"), "go", run_id="r", host=OTHER, turns=0)
        assert (begun.run_id, begun.state.goal) == ("r@other", "go")
        assert await engine.store.read("r@acme") == before

    run_async(main)


def test_listing_and_approvals_show_a_host_its_own_and_an_operator_all() -> None:
    """Calls without a host are the operator's."""

    async def main() -> None:
        engine = engine_for(Script([call("wipe", n=1)]), *Desk().all)
        for tenant in ("acme", "other", ""):
            await engine.run(Agent(name="w", tools=["wipe"]), "go", run_id=f"r{tenant}", host=Host(tenant=tenant))
        assert {h.run_id for h in await engine.list_runs()} == {"racme@acme", "rother@other", "r"}
        assert [h.run_id for h in await engine.list_runs(host=ACME)] == ["racme@acme"]
        assert [h.run_id for h in await engine.list_runs(RunQuery(tenant="other"), host=ACME)] == ["racme@acme"], (
            "a host cannot ask for another's"
        )
        assert {a.run_id for a in await engine.approvals()} == {"racme@acme", "rother@other", "r"} and [
            a.run_id for a in await engine.approvals(host=OTHER)
        ] == ["rother@other"]
        assert (await engine.load("racme", host=ACME)).host == ACME

    run_async(main)


# Listing ----------------------------------------------------------------------------------------------------------------------


def test_runs_are_listed_newest_first_with_filters_and_pages() -> None:
    """Status, agent, goal, time; `after` is the last of the page before."""

    async def main() -> None:
        clock = FakeClock()
        engine = engine_for(Script([lambda view: AskUser(question="?") if view.goal == "ask" else END]), clock=clock)
        for n in range(5):
            clock.advance(60)
            await engine.run(Agent(name="even" if n % 2 == 0 else "odd"), "ask" if n == 3 else "go", run_id=f"r{n}")

        async def ids(**filters: Any) -> list[str]:
            return [h.run_id for h in await engine.list_runs(**filters)]

        assert await ids() == ["r4", "r3", "r2", "r1", "r0"] and await ids(agent="odd") == ["r3", "r1"]
        assert await ids(status=("waiting_for_user",)) == ["r3"] and await ids(goal_id="r2") == ["r2"]
        assert await ids(limit=2) == ["r4", "r3"] and await ids(limit=2, after="r3") == ["r2", "r1"]
        heads = await engine.list_runs()
        assert await ids(since=heads[1].created_at) == ["r4", "r3"]
        assert (heads[0].status, heads[0].reason, heads[0].iterations, heads[0].goal) == ("completed", "final_answer", 1, "go")

    run_async(main)


def test_the_listing_says_what_the_log_says() -> None:
    """Head and fold agree at every step of a run."""

    async def main() -> None:
        engine = engine_for(Script([call("look", n=1), AskUser(question="?"), END]), *Desk().all)
        result = await engine.step(Agent(name="w", tools=["look"]), "go", run_id="r")
        while True:
            (head,) = await engine.list_runs()
            assert (head.status, head.reason, head.iterations, head.records) == (
                result.status,
                result.reason,
                result.iterations,
                result.state.seq,
            )
            if result.state.terminal:
                break
            result = await (engine.reply("r", "x", resume=False) if result.status == "waiting_for_user" else engine.step(run_id="r"))
            result = await engine.step(run_id="r")

    run_async(main)


# Verify and replay ------------------------------------------------------------------------------------------------------------


def test_verify_names_the_head_and_the_first_record_that_is_not_sound() -> None:
    """Tamper-evident against a head kept elsewhere."""

    async def main() -> None:
        store = RamStore()
        engine = engine_for(Script([call("look", n=1), END]), *Desk().all, store=store)
        result = await engine.run(Agent(name="w", tools=["look"]), "go", run_id="r")
        sound = await engine.verify("r", head=result.state.digest)
        assert (sound.ok, sound.records, sound.digest, sound.sequence, sound.erased) == (
            True,
            result.state.seq,
            result.state.digest,
            None,
            False,
        )
        cut = await engine.verify("r", head="0" * 64)
        assert not cut.ok and "the log ends with digest" in cut.problem and cut.sequence == result.state.seq
        lines = await store.read("r")
        head = await store.head("r")
        assert head is not None
        await store.delete("r")
        lines[4] = lines[4].replace(b"main.1.0", b"main.9.0")
        await store.append("r", 0, lines, head=head)
        broken = await engine.verify("r")
        assert (broken.ok, broken.sequence, broken.records) == (False, 5, 4) and "digest does not match" in broken.problem
        for verb in (engine.load, engine.resume, engine.replay):
            with pytest.raises(Exception, match="damaged at record 5"):
                await verb("r")

    run_async(main)


def test_a_replay_calls_nothing_and_names_the_first_difference() -> None:
    """Same code, same log; other guards, other decisions: sequence, expected, actual."""

    async def main() -> None:
        from detent.kernel.kernel import make_kernel
        from detent.ports import Block

        store, desk = RamStore(), Desk()
        planner = Script([call("put", n=1), END])
        engine = engine_for(planner, *desk.all, store=store)
        result = await engine.run(Agent(name="w", tools=["put"]), "go", run_id="r")
        before = await store.read("r")
        same = await engine.replay("r")
        assert (same.identical, same.divergence, same.records, desk.ran, len(planner.views)) == (
            True,
            None,
            result.state.seq,
            [("put", 1)],
            2,
        )

        def never(call: Any, state: Any, run: Any) -> Block:
            return Block("never")

        other = await engine_for(Script([]), *desk.all, store=store, kernel=make_kernel(guards=(never,))).replay("r")
        assert not other.identical and other.divergence is not None and other.divergence.sequence == 5
        assert "policy_decided" in other.divergence.expected and "guard_blocked" in other.divergence.actual
        assert await store.read("r") == before and desk.ran == [("put", 1)]

    run_async(main)


def test_a_run_that_is_not_finished_replays_as_far_as_it_goes() -> None:
    """Waiting and running ones."""

    async def main() -> None:
        engine = engine_for(Script([call("look", n=1), call("wipe", n=1), END]), *Desk().all)
        agent = Agent(name="w", tools=["look", "wipe"])
        await engine.step(agent, "go", run_id="r")
        assert (await engine.replay("r")).identical
        await engine.resume("r")
        again = await engine.replay("r")
        assert again.identical and again.records == len(await engine.records("r"))

    run_async(main)


# Signals ----------------------------------------------------------------------------------------------------------------------


def test_a_signal_is_taken_up_once_whoever_posts_it_how_often() -> None:
    """Posting an id twice is one signal; the record consumes it."""

    async def main() -> None:
        engine = engine_for(Script([AskUser(question="?"), AskUser(question="again?"), END]))
        await engine.run(Agent(name="w"), "go", run_id="r")
        said = Signal(id="s1", kind="reply", by="ann", payload={"ask_id": "main.1", "reply": "yes"})
        for _ in range(3):
            await engine.signal("r", said)
        result = await engine.resume("r")
        assert (result.status, result.iterations) == ("waiting_for_user", 2) and await engine.store.signals(["r"]) == {}
        await engine.signal("r", said)
        assert (await engine.resume("r")).status == "waiting_for_user"
        assert len([r for r in await engine.records("r") if isinstance(r.event, e.UserReplied)]) == 1

    run_async(main)


def test_a_signal_that_means_nothing_is_dropped_and_the_run_goes_on() -> None:
    """Out of date, unknown, or unreadable."""

    async def main() -> None:
        engine = engine_for(Script([AskUser(question="?"), END]))
        await engine.run(Agent(name="w"), "go", run_id="r")
        for n, (kind, payload) in enumerate(
            [
                ("approval", {}),
                ("approval", {"call": "x", "decision": "approved"}),
                ("reply", {"ask_id": [1]}),
                ("reconcile", {"call": 5}),
                ("timer", {}),
                ("child", {}),
            ]
        ):
            await engine.store.post("r", Signal(id=f"s{n}", kind=kind, payload=payload))  # type: ignore[arg-type]
        assert (await engine.resume("r")).status == "waiting_for_user" and await engine.store.signals(["r"]) == {}
        refused = [r.event.code for r in await engine.records("r") if isinstance(r.event, e.AnswerRefused)]
        assert refused == ["unreadable", "approval_unknown", "unreadable", "unreadable", "unreadable", "unreadable"]
        assert (await engine.reply("r", "yes")).status == "completed"

    run_async(main)


def test_answers_can_be_posted_without_going_on() -> None:
    """`resume=False`: the signal is in the inbox; whoever resumes takes it up."""

    async def main() -> None:
        desk = Desk()
        engine = engine_for(Script([call("wipe", n=1), END]), *desk.all)
        await engine.run(Agent(name="w", tools=["wipe"]), "go", run_id="r")
        still = await engine.approve("r", "main.1.0", by="ann", resume=False)
        assert (still.status, desk.ran) == ("waiting_for_approval", []) and len((await engine.store.signals(["r"]))["r"]) == 1
        assert (await engine.resume("r")).status == "completed" and desk.ran == [("wipe", 1)]
        with pytest.raises(NotAllowedNow, match="does not wait for approval") as caught:
            await engine.approve("r", "main.1.0", by="bob")
        assert caught.value.reason_code == "approval_not_pending"

    run_async(main)


def test_a_reply_needs_a_question_that_is_open() -> None:
    """By id where several are open; the error lists them."""

    async def main() -> None:
        engine = engine_for(Script([AskUser(question="?"), END]))
        await engine.run(Agent(name="w"), "go", run_id="r")
        with pytest.raises(NotAllowedNow, match="has no open question 'other'") as caught:
            await engine.reply("r", "x", ask_id="other")
        assert caught.value.reason_code == "not_asked" and (await engine.reply("r", "x")).status == "completed"
        with pytest.raises(NotAllowedNow):
            await engine.reply("r", "x")

    run_async(main)


def test_a_signal_reaches_a_run_that_is_being_advanced() -> None:
    """The watcher hands it over; another store instance posted it."""

    async def main() -> None:
        place, begun = RamStore(), asyncio.Event()

        @tool(side_effect="read", timeout_s=None)
        async def hang(context: Any = None) -> str:
            """Hang."""
            begun.set()
            await asyncio.Event().wait()
            return ""

        engine, outside = engine_for(Script([call("hang"), END]), hang, store=place), engine_for(Script([]), hang, store=place.sibling())
        running = asyncio.create_task(engine.run(Agent(name="w", tools=["hang"]), "go", run_id="r"))
        await begun.wait()
        control: Any = engine.runtime.parts.watcher.control("r")
        control.grace_s = 0.0
        told = (await outside.cancel("r", by="ann", why="enough")).answered
        assert told is not None and told.outcome == "accepted"
        result = await running
        assert (result.status, result.reason, result.error) == ("stopped", "cancelled", "enough")

    run_async(main)


# State ------------------------------------------------------------------------------------------------------------------------


def test_load_is_the_fold_of_the_stored_lines() -> None:
    """Law 1, from outside."""

    async def main() -> None:
        engine = engine_for(Script([(call("look", n=1), call("slip", n=2)), call("put", n=1), END]), *Desk().all)
        result = await engine.run(Agent(name="w", tools=["look", "put", "slip"]), "go", run_id="r", budget=Budget(max_iterations=5))
        assert await engine.load("r") == fold(read_log("r", await engine.store.read("r"))) == result.state
        assert msgspec.structs.asdict(result)["state"] is result.state

    run_async(main)
