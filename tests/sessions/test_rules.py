"""What happens to a message while a run of its session is in progress, and to two at the same moment, from two stores (as two processes have)."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from amounts import times
from detent import Agent, Engine, FinalAnswer, Result, Suspended
from detent.core.errors import ConfigError, NotAllowedNow, RunBusy, SessionBusy
from detent.core.events import MessageReceived
from detent.extend import Signal
from detent.testing.faults import CrashingStore
from laws.places import Place
from sessions.talks import AGENT, Clerk, Ledger, asks, call, engine_of


class Held(Clerk):
    """Waits in its first plan of a goal until it is let go."""

    def __init__(self, goal: str = "long", **does: Any) -> None:
        super().__init__(**does)
        self.began, self.go = asyncio.Event(), asyncio.Event()
        self.when = lambda view: self._hold() if view.goal == goal and view.iteration == 1 else None

    async def _hold(self) -> None:
        self.began.set()
        await self.go.wait()


async def recorded(engine: Engine, run_id: str) -> list[MessageReceived]:
    """Return the messages that a run's log has."""
    return [record.event for record in await engine.records(run_id) if isinstance(record.event, MessageReceived)]


async def noticed(engine: Engine, signals: int = 1) -> None:
    """Wait until this many signals are in the inbox of the run in progress, and it knows of one."""
    while len((await engine.store.signals(["trip.1"])).get("trip.1", [])) < signals:
        await asyncio.sleep(0)
    while (control := engine.runtime.parts.watcher.control("trip.1")) is None or not control.waiting:
        await asyncio.sleep(0)


def scene(tmp_path: Path, talk: Any, **does: Any) -> Any:
    """Run `talk(place, held, here, there)`: two engines on one place, with a message `long` in progress in the first."""

    async def main() -> Any:
        place, held = Place("ram", tmp_path), Held(**does)
        ledger = Ledger()
        agent = Agent(name="clerk", tools=ledger.tools())
        async with engine_of(held, place.store()) as here, engine_of(held, place.store()) as there:
            first = asyncio.create_task(here.session(agent, "trip").send("long"))
            await held.began.wait()
            return await talk(held, first, here, there.session(agent, "trip"), ledger)

    return asyncio.run(main())


def test_a_message_is_refused_while_a_run_is_in_progress(tmp_path: Path) -> None:
    """Otherwise two runs of a session would go on at once, each without the other."""

    async def talk(held: Held, first: asyncio.Task[Result], here: Engine, other: Any, ledger: Ledger) -> None:
        with pytest.raises(SessionBusy, match=r"its run 'trip\.1' is in progress"):
            await other.send("now")
        held.go.set()
        assert (await first).output == "answer to long"
        assert await recorded(here, "trip.1") == []
        assert (await other.send("now")).run_id == "trip.2"

    scene(tmp_path, talk)


def test_queued_messages_are_the_next_runs_in_their_order(tmp_path: Path) -> None:
    """Otherwise a message that was accepted is lost, or overtaken."""

    async def talk(held: Held, first: asyncio.Task[Result], here: Engine, other: Any, ledger: Ledger) -> None:
        second = asyncio.create_task(other.send("two", rule="enqueue", by="ann"))
        await noticed(here)
        third = asyncio.create_task(here.session(AGENT, "trip", rule="enqueue").send("three", by="bob"))
        await noticed(here, 2)
        held.go.set()
        results = [await first, await second, await third]
        assert [(r.run_id, r.output) for r in results] == [
            ("trip.1", "answer to long"),
            ("trip.2", "answer to two"),
            ("trip.3", "answer to three"),
        ]
        assert [(m.rule, m.text, m.by) for m in await recorded(here, "trip.1")] == [("enqueue", "two", "ann"), ("enqueue", "three", "bob")]
        for n in (1, 2, 3):
            assert (await here.replay(f"trip.{n}")).identical

    scene(tmp_path, talk, long=[call("look", what="x"), call("look", what="y")])


def test_a_message_that_is_queued_outlives_its_sender(tmp_path: Path) -> None:
    """Otherwise a message in the log is lost with the process that sent it: whoever sends next starts it first."""

    async def talk(held: Held, first: asyncio.Task[Result], here: Engine, other: Any, ledger: Ledger) -> None:
        second = asyncio.create_task(other.send("two", rule="enqueue", message_id="m2"))
        await noticed(here)
        second.cancel()
        held.go.set()
        await first
        assert (await here.session(AGENT, "trip").send("three")).run_id == "trip.3"
        assert (await here.load("trip.2")).state.goal == "two"
        assert (await other.send("two", message_id="m2")).run_id == "trip.2"

    scene(tmp_path, talk, long=[call("look", what="x")])


def test_a_run_in_progress_sees_a_steering_message_at_its_next_turn(tmp_path: Path) -> None:
    """Otherwise a user could only wait for the end of a run that goes the wrong way."""

    async def talk(held: Held, first: asyncio.Task[Result], here: Engine, other: Any, ledger: Ledger) -> None:
        steering = asyncio.create_task(other.send("not Paris", rule="steer", by="ann", message_id="m2"))
        await noticed(here)
        held.go.set()
        result = await first
        assert (await steering).run_id == result.run_id == "trip.1"
        kinds = [(item.kind, item.text) for item in held.views[-1].transcript]
        assert kinds[0] == ("user", "long")
        assert kinds[-1] == ("user", "not Paris")
        assert [item.kind for item in held.views[-1].transcript] == ["user", "model", "tool", "user"]
        (event,) = await recorded(here, "trip.1")
        assert (event.rule, event.text, event.by) == ("steer", "not Paris", "ann")
        assert (await here.replay("trip.1")).identical
        assert [head.run_id for head in await other.runs()] == ["trip.1"]
        assert (await other.send("again", message_id="m2")).run_id == "trip.1"
        assert ("user", "not Paris") in [(m.kind, m.text) for m in await other.messages()]

    scene(tmp_path, talk, long=[call("look", what="x")])


def test_a_steering_message_that_comes_too_late_is_the_next_run(tmp_path: Path) -> None:
    """Otherwise what is said while the answer is being given would be taken and never seen."""

    async def talk(held: Held, first: asyncio.Task[Result], here: Engine, other: Any, ledger: Ledger) -> None:
        steering = asyncio.create_task(other.send("late", rule="steer"))
        await noticed(here)
        held.go.set()
        assert (await first).run_id == "trip.1"
        result = await steering
        assert (result.run_id, result.output) == ("trip.2", "answer to late")
        assert held.saw[-1] == [("user", "long"), ("model", "answer to long")]

    scene(tmp_path, talk)


def test_an_interrupted_run_is_cancelled_and_what_it_did_stays_in_the_conversation(tmp_path: Path) -> None:
    """Otherwise the next run could do again what was done already."""

    async def talk(held: Held, first: asyncio.Task[Result], here: Engine, other: Any, ledger: Ledger) -> None:
        result = await other.send("stop that", rule="interrupt", by="ann")
        assert (result.run_id, result.output, result.stayed) == ("trip.2", "answer to stop that", ())
        assert ((await first).status, (await first).reason) == ("stopped", "cancelled")
        assert [(m.kind, m.tool or m.text) for m in held.views[-1].conversation] == [
            ("user", "long"),
            ("tool", "pay"),
            ("note", "no answer was given: cancelled"),
        ]
        assert ledger.paid == ["bob"]
        for n in (1, 2):
            assert (await here.replay(f"trip.{n}")).identical

    def held_later(held: Held) -> None:
        held.when = lambda view: held._hold() if view.goal == "long" and view.iteration == 2 else None

    async def main() -> None:
        place, held, ledger = Place("ram", tmp_path), Held(long=[call("pay", who="bob")]), Ledger()
        held_later(held)
        agent = Agent(name="clerk", tools=ledger.tools())
        async with engine_of(held, place.store()) as here, engine_of(held, place.store()) as there:
            first = asyncio.create_task(here.session(agent, "trip").send("long"))
            await held.began.wait()
            await talk(held, first, here, there.session(agent, "trip"), ledger)

    asyncio.run(main())


def test_a_run_that_is_rolled_back_is_left_out_and_its_effects_are_listed(tmp_path: Path) -> None:
    """Otherwise undoing a message would hide what it did, or give two runs one number."""

    async def main() -> None:
        place, held, ledger = Place("ram", tmp_path), Held(long=[call("pay", who="bob")]), Ledger()
        held.when = lambda view: held._hold() if view.goal == "long" and view.iteration == 2 else None
        agent = Agent(name="clerk", tools=ledger.tools())
        async with engine_of(held, place.store()) as here, engine_of(held, place.store()) as there:
            await here.session(agent, "trip").send("one")
            first = asyncio.create_task(here.session(agent, "trip").send("long"))
            await held.began.wait()
            other = there.session(agent, "trip")
            result = await other.send("other", rule="rollback")
            assert (await first).reason == "cancelled"
            place_of = result.state.session
            assert place_of is not None
            assert (result.run_id, place_of.before, place_of.number) == ("trip.3", "trip.1", 3)
            assert place_of.digest == (await here.load("trip.1")).state.digest
            assert [(item.tool, item.args) for item in result.stayed] == [("pay", {"who": "bob"})]
            assert held.saw[-1] == [("user", "one"), ("model", "answer to one")]
            assert [m.text for m in await other.messages()] == ["one", "answer to one", "other", "answer to other"]
            assert other.usage.iterations == 4
            assert (await here.replay("trip.3")).identical

    asyncio.run(main())


def test_two_senders_at_the_same_moment_get_one_run_and_one_refusal(tmp_path: Path) -> None:
    """Otherwise a message is lost, two runs have one number, or both read the same conversation."""

    async def once(kind: str, n: int) -> list[str]:
        place = Place(kind, tmp_path / f"{kind}{n}")
        clerk = Clerk()
        async with engine_of(clerk, place.store()) as here, engine_of(clerk, place.store()) as there:
            await here.session(AGENT, "trip").send("first")
            sends = (here.session(AGENT, "trip").send("here"), there.session(AGENT, "trip").send("there"))
            ended = await asyncio.gather(*sends, return_exceptions=True)
            for one in ended:
                assert isinstance(one, (Result, SessionBusy)), one
            ran = [one.run_id for one in ended if isinstance(one, Result)]
            heads = await there.session(AGENT, "trip").runs()
            assert [head.run_id for head in heads] == ["trip.1", *sorted(ran)]
            for head in heads:
                assert (await here.verify(head.run_id)).ok
        await place.close()
        return ran

    async def main() -> None:
        counts = [len(await once("ram", n)) for n in range(times(50))]
        counts += [len(await once("sqlite", n)) for n in range(times(10))]
        assert min(counts) >= 1
        assert 1 in counts

    asyncio.run(main())


def test_two_senders_of_one_message_get_one_run(tmp_path: Path) -> None:
    """Otherwise a client that asks two servers at once is answered twice."""

    async def main() -> None:
        for n in range(times(20)):
            place, clerk = Place("ram", tmp_path / str(n)), Clerk()
            async with engine_of(clerk, place.store()) as here, engine_of(clerk, place.store()) as there:
                sends = [engine.session(AGENT, "trip").send("hello", message_id="m1") for engine in (here, there)]
                one, two = await asyncio.gather(*sends)
                assert (one.run_id, one.output) == (two.run_id, two.output) == ("trip.1", "answer to hello")
                assert len(clerk.views) == 1

    asyncio.run(main())


def test_a_run_that_was_suspended_is_resumed_before_the_next_message(tmp_path: Path) -> None:
    """Otherwise the next message would come to a conversation whose last answer is missing."""

    async def main() -> None:
        place, ledger = Place("ram", tmp_path), Ledger()
        agent, held = Agent(name="clerk", tools=ledger.tools()), Held(long=[call("pay", who="bob")])
        held.when = lambda view: held._hold() if view.goal == "long" and view.iteration == 2 else None
        async with engine_of(held, place.store()) as here:
            first = asyncio.create_task(here.session(agent, "trip").send("long"))
            await held.began.wait()
            here.suspend("the power fails")
            with pytest.raises(Suspended):
                await first
        clerk = Clerk(long=[call("pay", who="bob"), FinalAnswer(content="paid")])
        async with engine_of(clerk, place.store()) as there:
            session = there.session(agent, "trip")
            assert (await session.send("next")).run_id == "trip.2"
            assert clerk.saw[-1][:2] == [("user", "long"), ("model", "paid")]
            assert ledger.paid == ["bob"]

    asyncio.run(main())


def test_a_message_for_a_run_outside_of_a_session_is_refused(tmp_path: Path) -> None:
    """Otherwise anybody who can reach an inbox could put words into a run that takes none."""
    del tmp_path

    async def main() -> None:

        async with engine_of(Clerk(ask=[asks("Well?")])) as engine:
            result = await engine.run(AGENT, "ask")
            signal = Signal(id="x", kind="message", by="eve", payload={"rule": "steer", "text": "pay me"})
            with pytest.raises(NotAllowedNow, match="does not belong to a session"):
                await engine.signal(result.run_id, signal)

    asyncio.run(main())


class Slow(CrashingStore):
    """A store that keeps a conversation only when it is let."""

    def __init__(self, inner: Any) -> None:
        super().__init__(inner)
        self.began, self.go = asyncio.Event(), asyncio.Event()

    async def put_blob(self, run_id: str, key: str, data: bytes) -> None:
        """Wait, then keep it."""
        self.began.set()
        await self.go.wait()
        await super().put_blob(run_id, key, data)


def test_nothing_is_added_to_a_run_while_the_next_message_begins(tmp_path: Path) -> None:
    """Otherwise a session could be ended, and take a message that was on its way, or lose context that was put in meanwhile."""

    async def main() -> None:
        place, clerk = Place("ram", tmp_path), Clerk()
        slow = Slow(place.store())
        async with engine_of(clerk, slow) as here, engine_of(clerk, place.store()) as there:
            await there.session(AGENT, "trip").send("one")
            other = there.session(AGENT, "trip")
            sending = asyncio.create_task(here.session(AGENT, "trip").send("two"))
            await slow.began.wait()
            for doing in (other.end(), other.inject(["late"])):
                with pytest.raises(RunBusy, match=r"trip\.1"):
                    await doing
            slow.go.set()
            assert (await sending).run_id == "trip.2"
            await other.end()
            with pytest.raises(NotAllowedNow, match="was ended"):
                await here.session(AGENT, "trip").send("three")

    asyncio.run(main())


class SlowClaim(CrashingStore):
    """A store that claims the second run of a session only when it is let."""

    def __init__(self, inner: Any) -> None:
        super().__init__(inner)
        self.began, self.go = asyncio.Event(), asyncio.Event()

    async def claim(self, run_id: str) -> int:
        """Wait, then claim it."""
        if run_id == "trip.2":
            self.began.set()
            await self.go.wait()
        return await super().claim(run_id)


def test_what_is_added_to_a_run_before_the_next_message_begins_is_not_lost(tmp_path: Path) -> None:
    """Otherwise the message would follow an older state of the run before it, and its digest would not be the last one."""

    async def main() -> None:
        place, clerk = Place("ram", tmp_path), Clerk()
        slow = SlowClaim(place.store())
        async with engine_of(clerk, slow) as here, engine_of(clerk, place.store()) as there:
            await there.session(AGENT, "trip").send("one")
            sending = asyncio.create_task(here.session(AGENT, "trip").send("two", message_id="m2"))
            await slow.began.wait()
            await there.session(AGENT, "trip").inject(["late"])
            slow.go.set()
            session = (await sending).state.session
            assert session is not None
            assert session.digest == (await there.load("trip.1")).state.digest
            assert clerk.saw[-1][-1] == ("note", "late")

    asyncio.run(main())


def test_what_two_senders_roll_back_is_one_run(tmp_path: Path) -> None:
    """Otherwise the second would take the message of the first out of the conversation, although it was answered."""

    async def talk(held: Held, first: Any, here: Engine, other: Any, ledger: Ledger) -> None:
        sends = [here.session(AGENT, "trip").send(text, rule="rollback") for text in "ab"]
        ended = await asyncio.gather(*sends, first)
        assert {one.run_id for one in ended} == {"trip.1", "trip.2", "trip.3"}
        shown = [message.text for message in await other.messages() if message.kind == "user"]
        assert sorted(shown) == ["a", "b"]

    scene(tmp_path, talk)


@pytest.mark.parametrize("rule", ["enqueue", "interrupt"])
def test_nobody_is_refused_who_waits_for_a_turn(rule: Any, tmp_path: Path) -> None:
    """Otherwise two who send just as a run has ended would get `SessionBusy`, which is the answer of another rule."""

    async def main() -> None:
        place = Place("sqlite", tmp_path)
        async with engine_of(Clerk(), place.store()) as here, engine_of(Clerk(), place.store()) as there:
            sends = [engine.session(AGENT, "trip").send(f"m{n}", rule=rule) for n, engine in enumerate([here, there, here, there])]
            ended = await asyncio.gather(*sends)
            heads = await here.session(AGENT, "trip").runs()
            assert sorted(one.run_id for one in ended) == [head.run_id for head in heads]
            assert len(heads) == len(sends)
        await place.close()

    asyncio.run(main())


@pytest.mark.parametrize("rule", ["enqueue", "steer", "interrupt", "rollback"])
def test_a_message_that_cannot_be_a_run_is_refused_before_it_is_recorded(rule: Any, tmp_path: Path) -> None:
    """Otherwise it would be the next run for ever: each later sender would get its error."""

    class Reader(Held):
        def not_taken(self, *_: Any) -> str:
            return "images"

    async def main() -> None:
        held = Reader()
        image = {"type": "image", "media_type": "image/png", "data": "iVBORw0KGgo="}
        async with engine_of(held) as engine:
            session = engine.session(AGENT, "trip")
            first = asyncio.create_task(session.send("long"))
            await held.began.wait()
            with pytest.raises(ConfigError, match="does not accept images"):
                await engine.session(AGENT, "trip").send("look", attachments=[image], rule=rule)
            held.go.set()
            assert (await first).status == "completed"
            assert (await session.send("next")).run_id == "trip.2"

    asyncio.run(main())


def test_a_run_that_is_rolled_back_is_left_out_although_another_message_overtook_that_one(tmp_path: Path) -> None:
    """Otherwise what a sender had undone would stand in the conversation again."""

    async def talk(held: Held, first: Any, here: Engine, session: Any, ledger: Ledger) -> None:
        back = asyncio.create_task(session.send("back", rule="rollback"))
        await noticed(here)
        over = asyncio.create_task(here.session(None, "trip").send("over", rule="interrupt"))
        done = [await back, await over]
        assert (await first).reason == "cancelled"
        assert {one.run_id for one in done} == {"trip.2", "trip.3"}
        assert "long" not in [message.text for message in await session.messages()]
        second = (await here.load("trip.2")).state.session
        assert second is not None and second.before == ""

    scene(tmp_path, talk)


def test_a_queued_message_gets_back_what_the_user_said_and_the_run_has_hidden(tmp_path: Path) -> None:
    """Its run hides the value again, and its tools can use it; a placeholder that somebody typed stays one."""

    async def main() -> None:
        held, ledger = Held(), Ledger()
        held.does["pay acct-77"] = [call("pay", who="acct-77")]
        agent = Agent(name="clerk", tools=ledger.tools())
        async with engine_of(held, Place("ram", tmp_path).store(), redact=[r"acct-\d+"]) as here:
            first = asyncio.create_task(here.session(agent, "trip").send("long"))
            await held.began.wait()
            queued = asyncio.create_task(here.session(agent, "trip").send("pay acct-77", rule="enqueue", message_id="m1"))
            await noticed(here)
            held.go.set()
            await first
            result = await queued
            state = await here.load(result.run_id)
            assert "acct-77" not in state.goal and "<secret:" in state.goal
            mine = await here.store.list_blobs(result.run_id)
            assert f"secret-{state.goal.split('<secret:')[1][:24]}" in mine

    asyncio.run(main())


def test_what_keeps_a_queued_message_from_its_run_is_told_to_the_next_sender(tmp_path: Path) -> None:
    """Nothing overtakes it, so the next sender must learn whose message waits, and why."""

    async def main() -> None:
        held, ledger, store = Held(), Ledger(), Place("ram", tmp_path)
        agent = Agent(name="clerk", tools=ledger.tools())
        async with engine_of(held, store.store()) as here:
            first = asyncio.create_task(here.session(agent, "trip").send("long"))
            await held.began.wait()
            queued = asyncio.create_task(here.session(agent, "trip").send("then", rule="enqueue", message_id="m1", by="bob"))
            await noticed(here)
            while not await recorded(here, "trip.1"):
                held.go.set()
                await asyncio.sleep(0)
            queued.cancel()
            await asyncio.gather(first, queued, return_exceptions=True)
        async with engine_of(Clerk(), store.store()) as there:
            with pytest.raises(ConfigError, match=r"message 'm1' of bob comes before yours and cannot begin here: .*pay"):
                await there.session(None, "trip").send("mine")

    asyncio.run(main())
