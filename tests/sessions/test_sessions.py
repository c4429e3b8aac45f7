"""A session is runs that follow each other: what each knows of those before, how it is named, and what a sender gets."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from detent import Agent, Budget, Engine, FinalAnswer, Host, Session, ToolCall
from detent.core.errors import ConfigError, CorruptLog, NotAllowedNow, RunContextMismatch, SessionWaiting
from detent.core.state import Child, RunState
from detent.history.sending import question_of
from detent.running.conversing import digest_of_id
from sessions.talks import AGENT, Clerk, Ledger, asks, call, engine_of


def test_each_message_is_a_run_that_knows_the_ones_before() -> None:
    """Otherwise the agent forgets between two messages, or a run depends on the logs of others."""
    clerk = Clerk()

    async def main() -> None:
        async with engine_of(clerk) as engine:
            session = engine.session(AGENT, "trip")
            assert isinstance(session, Session)
            results = [await session.send(text, by="ann") for text in ("one", "two", "three")]
            assert [result.run_id for result in results] == ["trip.1", "trip.2", "trip.3"]
            assert [result.output for result in results] == ["answer to one", "answer to two", "answer to three"]
            first, second = results[0].state, results[1].state.session
            assert second is not None
            assert (second.id, second.number, second.before, second.sequence, second.digest) == (
                "trip",
                2,
                "trip.1",
                first.seq,
                first.digest,
            )
            assert second.by == "ann"
            assert session.usage.iterations == 3
            for head in await session.runs():
                assert (await engine.verify(head.run_id)).ok
                assert (await engine.replay(head.run_id)).identical

    asyncio.run(main())
    assert clerk.saw == [
        [],
        [("user", "one"), ("model", "answer to one")],
        [("user", "one"), ("model", "answer to one"), ("user", "two"), ("model", "answer to two")],
    ]


def test_a_run_is_complete_without_the_runs_before_it(tmp_path: Path) -> None:
    """Otherwise deleting an old run would change, or end, the conversation after it."""
    clerk = Clerk()

    async def main() -> None:
        async with engine_of(clerk, f"sqlite:///{tmp_path}/runs.db") as engine:
            session = engine.session(AGENT, "trip")
            for text in ("one", "two"):
                await session.send(text)
            await engine.delete("trip.1")
            await session.send("three")
            assert (await engine.replay("trip.2")).identical
            assert [m.text for m in await session.messages()] == [
                "one",
                "answer to one",
                "two",
                "answer to two",
                "three",
                "answer to three",
            ]

    asyncio.run(main())
    assert clerk.saw[-1] == [("user", "one"), ("model", "answer to one"), ("user", "two"), ("model", "answer to two")]


def test_a_message_with_an_id_is_one_message_however_often_it_is_sent() -> None:
    """Otherwise a sender that repeats a request after a lost answer gets two runs."""

    async def main() -> None:
        async with engine_of(Clerk()) as engine:
            session = engine.session(AGENT, "trip")
            first = await session.send("one", message_id="m1")
            await session.send("two")
            again = await engine.session(AGENT, "trip").send("one", message_id="m1")
            assert (again.run_id, again.output) == (first.run_id, first.output)
            assert [head.run_id for head in await session.runs()] == ["trip.1", "trip.2"]

    asyncio.run(main())


def test_a_session_that_waits_for_a_reply_takes_the_message_as_the_reply() -> None:
    """Otherwise an agent that asks back could never be answered in a conversation."""
    clerk = Clerk(book=[asks("Which day?"), lambda view: FinalAnswer(content=f"booked {view.transcript[-1].text}")])

    async def main() -> None:
        async with engine_of(clerk) as engine:
            session = engine.session(AGENT, "trip")
            asked = await session.send("book")
            assert asked.status == "waiting_for_user"
            answered = await session.send("Monday", message_id="m2", by="ann")
            assert (answered.run_id, answered.output) == ("trip.1", "booked Monday")
            assert (await session.send("Monday", message_id="m2")).run_id == "trip.1"
            assert [(m.kind, m.text) for m in await session.messages()] == [
                ("user", "book"),
                ("model", "Which day?"),
                ("user", "Monday"),
                ("model", "booked Monday"),
            ]
            await session.send("thanks")
            assert (await session.send("Monday", message_id="m2")).run_id == "trip.1"

    asyncio.run(main())
    assert clerk.saw[-1][:3] == [("user", "book"), ("model", "Which day?"), ("user", "Monday")]


def test_a_session_that_waits_for_something_else_names_it_and_records_nothing() -> None:
    """Otherwise a message could be taken for an approval, or be lost behind one."""
    ledger = Ledger()
    agent = Agent(name="clerk", tools=ledger.tools())

    async def main() -> None:
        async with engine_of(Clerk(clean=[call("wipe", what="disk")])) as engine:
            session = engine.session(agent, "trip")
            waiting = await session.send("clean")
            for rule in ("reject", "enqueue", "steer", "interrupt", "rollback"):
                with pytest.raises(SessionWaiting, match=r"approval of call main\.1\.0.*detent approve trip\.1 main\.1\.0`") as raised:
                    await session.send("next", rule=rule)
                assert raised.value.wait == "waiting_for_approval"
            assert len(await engine.records("trip.1")) == waiting.state.seq
            await engine.approve("trip.1", "main.1.0", by="ann")
            assert (await session.send("next")).run_id == "trip.2"

    asyncio.run(main())
    assert ledger.paid == ["wiped disk"]


def test_what_an_earlier_run_did_is_shown_where_the_agent_asks_for_it() -> None:
    """Otherwise `conversation` would be an option that nothing reads."""
    ledger = Ledger()

    async def shown(how: str) -> list[tuple[str, str]]:
        clerk = Clerk(pay=[call("pay", who="bob"), call("look", what="book")])
        agent = Agent(name="clerk", tools=ledger.tools(), conversation=how)  # type: ignore[arg-type]
        async with engine_of(clerk) as engine:
            session = engine.session(agent, "trip")
            await session.send("pay")
            await session.send("and now?")
            (last,) = [view for view in clerk.views if view.goal == "and now?"]
            return [(m.kind, m.tool or m.text) for m in last.conversation]

    assert asyncio.run(shown("answers")) == [("user", "pay"), ("model", "answer to pay")]
    assert asyncio.run(shown("calls")) == [("user", "pay"), ("tool", "pay"), ("tool", "look"), ("model", "answer to pay")]


def test_the_oldest_entries_are_dropped_and_their_number_is_told() -> None:
    """Otherwise a long conversation would not fit, or would lose its beginning in silence."""
    clerk = Clerk()
    agent = Agent(name="clerk", profile={"window_tokens": 600})

    async def main() -> None:
        async with engine_of(clerk) as engine:
            session = engine.session(agent, "trip")
            for n in range(12):
                await session.send(f"message {n}")
            assert len(await session.messages()) == 24

    asyncio.run(main())
    note, *left = clerk.saw[-1]
    assert note == ("note", f"{22 - len(left)} earlier entries of this conversation left out")
    assert 0 < len(left) < 22
    assert left[-1] == ("model", "answer to message 10")


def test_a_session_has_a_budget_over_all_its_runs() -> None:
    """Otherwise a conversation could use any amount, a little at a time."""

    async def main() -> None:
        async with engine_of(Clerk()) as engine:
            session = engine.session(AGENT, "trip", budget=Budget(max_iterations=2))
            assert (await session.send("one")).state.budget.max_iterations == 2
            assert (await session.send("two")).state.budget.max_iterations == 1
            with pytest.raises(NotAllowedNow, match="has used 2 of max_iterations=2 over all its runs"):
                await engine.session(AGENT, "trip").send("three")
            assert (await engine.session(AGENT, "trip", budget=Budget(max_iterations=9)).send("three")).run_id == "trip.3"

    asyncio.run(main())


def test_a_session_that_was_ended_takes_no_message_from_anybody() -> None:
    """Otherwise the end would hold only in the process that said it."""

    async def main() -> None:
        async with engine_of(Clerk()) as engine:
            session = engine.session(AGENT, "trip")
            assert session.status == "unspecified"
            await session.send("one", message_id="m1")
            assert session.status == "active"
            await session.end(by="ann")
            await session.end(by="ann")
            assert session.status == "completed"
            again = engine.session(AGENT, "trip")
            with pytest.raises(NotAllowedNow, match="was ended"):
                await again.send("two")
            assert (await again.send("one", message_id="m1")).run_id == "trip.1"
            assert (await engine.replay("trip.1")).identical
            await again.delete()
            assert await again.runs() == []

    asyncio.run(main())


def test_a_fork_continues_from_before_a_message_and_lists_what_stays() -> None:
    """Otherwise going back would hide what was done in the world meanwhile, or change the conversation that it came from."""
    ledger, clerk = Ledger(), Clerk(pay=[call("pay", who="bob")])
    agent = Agent(name="clerk", tools=ledger.tools())

    async def main() -> None:
        async with engine_of(clerk) as engine:
            session = engine.session(agent, "trip")
            for text in ("one", "pay", "three"):
                await session.send(text)
            said = await session.messages()
            forked = await session.fork(at=next(m for m in said if m.text == "pay"))
            assert [(item.tool, item.args) for item in forked.effects] == [("pay", {"who": "bob"})]
            result = await forked.session.send("other")
            place = result.state.session
            assert place is not None
            assert (place.number, place.before) == (1, "trip.1")
            assert clerk.saw[-1] == [("user", "one"), ("model", "answer to one")]
            assert (await engine.replay(result.run_id)).identical
            assert await session.messages() == said
            assert [m.text for m in await forked.session.messages()] == ["one", "answer to one", "other", "answer to other"]
            with pytest.raises(ConfigError, match="has no message 9"):
                await session.fork(at=9)

    asyncio.run(main())


def test_context_is_put_before_the_next_message_of_any_process() -> None:
    """Otherwise what a service knows of its user would have to be said in the user's name."""
    clerk = Clerk()

    async def main() -> None:
        async with engine_of(clerk) as engine:
            session = engine.session(AGENT, "trip", context=[{"key": "user", "content": "Ann"}])
            await session.inject(["it is May"])
            await session.send("one")
            await session.inject([{"key": "weather", "content": {"rain": True}}], by="service")
            await engine.session(AGENT, "trip").send("two")
            with pytest.raises(ConfigError, match="context has the entry 7"):
                await session.inject([7])

    asyncio.run(main())
    start = [("note", "user: Ann"), ("note", "it is May")]
    assert clerk.saw == [start, [*start, ("user", "one"), ("model", "answer to one"), ("note", 'weather: {"rain":true}')]]


def test_a_session_belongs_to_the_tenant_of_its_host() -> None:
    """Otherwise a tenant could read, or continue, the conversation of another with the same id."""
    ann, bob = Host(tenant="acme", principal="ann"), Host(tenant="other", principal="bob")

    async def main() -> None:
        clerk = Clerk()
        async with engine_of(clerk) as engine:
            mine = engine.session(AGENT, "trip", host=ann)
            assert (await mine.send("one")).run_id == "trip.1@acme"
            theirs = engine.session(AGENT, "trip", host=bob)
            assert await theirs.messages() == []
            assert (await theirs.send("one")).run_id == "trip.1@other"
            assert clerk.saw[-1] == []
            with pytest.raises(ConfigError, match="not one of this host's tenant"):
                engine.session(AGENT, "trip@acme", host=bob)
            with pytest.raises(RunContextMismatch):
                await engine.session(AGENT, "trip", host=Host(tenant="acme", principal="eve")).send("two")
            assert (await engine.session(AGENT, "trip@acme", host=ann).send("two")).run_id == "trip.2@acme"
            assert [head.run_id for head in await engine.session(AGENT, "trip@acme").runs()] == ["trip.1@acme", "trip.2@acme"]

    asyncio.run(main())


def test_an_altered_or_missing_conversation_is_refused() -> None:
    """Otherwise whoever can write to the store could change what was said, and the run would act on it."""

    async def main() -> None:
        async with engine_of(Clerk(two=[asks("Sure?")])) as engine:
            session = engine.session(AGENT, "trip")
            await session.send("one")
            asked = await session.send("two")
            place = asked.state.session
            assert place is not None
            assert place.conversation is not None
            key = place.conversation.key
            kept = await engine.store.get_blob("trip.2", key)
            assert kept is not None
            await engine.store.put_blob("trip.2", key, kept.replace(b"one", b"two"))
            for doing in (session.send("yes"), engine.replay("trip.2")):
                with pytest.raises(CorruptLog, match="is not what was stored"):
                    await doing
            assert not (await engine.verify("trip.2")).ok
            await engine.store.delete_blob("trip.2", key)
            with pytest.raises(CorruptLog, match="missing"):
                await session.send("yes")
            assert "missing" in (await engine.verify("trip.2")).problem

    asyncio.run(main())


def test_what_a_session_cannot_be_is_refused_before_anything_is_recorded() -> None:
    """Otherwise a mistake would be found when the conversation is under way."""

    async def main() -> None:
        async with engine_of(Clerk()) as engine:
            for wrong in ("a.b", "-x", "a b", "a/b", "x" * 151, 5):
                with pytest.raises(ConfigError, match=r"session.id"):
                    engine.session(AGENT, wrong)  # type: ignore[arg-type]
            with pytest.raises(ConfigError, match="rule 'later' is not known"):
                engine.session(AGENT, "trip", rule="later")  # type: ignore[arg-type]
            session = engine.session(AGENT, "trip")
            for text in ("", "  "):
                with pytest.raises(ConfigError, match="the message is empty"):
                    await session.send(text)
            for wrong_id in ("", 5):
                with pytest.raises(ConfigError, match="message_id"):
                    await session.send("x", message_id=wrong_id)  # type: ignore[arg-type]
            for context in ("one text", {"content": "x"}, 5):
                with pytest.raises(ConfigError, match="give a list"):
                    await session.inject(context)  # type: ignore[arg-type]
            await engine.run(AGENT, "not a message", run_id="other.1")
            with pytest.raises(ConfigError, match="belongs to no session"):
                await engine.session(AGENT, "other").send("x")
            assert await session.runs() == []

    asyncio.run(main())


def test_programs_without_an_event_loop_send_too() -> None:
    """Otherwise a script would need asyncio for a conversation."""
    engine = Engine(planner=Clerk(), approver="caller")
    session = engine.session(AGENT, "trip")
    assert session.send_sync("one").output == "answer to one"


def test_a_session_is_read_where_nothing_was_sent_yet() -> None:
    """Otherwise another process would show a conversation that has used nothing, or could not continue a run without a message."""
    clerk = Clerk(book=[asks("Which day?")])

    async def main() -> None:
        async with engine_of(clerk) as engine:
            session = engine.session(AGENT, "trip")
            assert await session.resume() is None
            await session.send("one")
            other = engine.session(None, "trip")
            with pytest.raises(ConfigError, match="has not been read yet"):
                _ = other.usage
            assert (await other.refresh()).usage.iterations == 1
            await other.send("book")
            resumed = await engine.session(None, "trip").resume()
            assert resumed is not None
            assert (resumed.run_id, resumed.status, resumed.state.agent.name) == ("trip.2", "waiting_for_user", "clerk")
            with pytest.raises(ConfigError, match="has no message yet"):
                await engine.session(None, "new").send("one")

    asyncio.run(main())


def test_a_fork_of_a_fork_without_messages_reaches_into_its_base() -> None:
    """Otherwise going back twice would be refused, because the new session has no message yet."""
    clerk = Clerk()

    async def main() -> None:
        async with engine_of(clerk) as engine:
            session = engine.session(AGENT, "trip")
            for text in ("one", "two", "three"):
                await session.send(text)
            once = (await session.fork(at=3)).session
            twice = (await once.fork(at=2)).session
            await twice.send("other")
            assert clerk.saw[-1] == [("user", "one"), ("model", "answer to one")]
            whole = (await once.fork()).session
            await whole.send("again")
            assert [text for _, text in clerk.saw[-1]] == ["one", "answer to one", "two", "answer to two"]

    asyncio.run(main())


def test_what_a_child_asks_its_user_is_answered_by_the_message() -> None:
    """Otherwise a conversation that was handed off could not be continued where it is."""
    clerk = Clerk(book=[asks("Which day?"), lambda view: FinalAnswer(content=f"booked {view.transcript[-1].text}")])

    async def main() -> None:
        async with engine_of(clerk) as engine:
            await engine.run(AGENT, "book", run_id="child")
            state = (await engine.load("child")).state
            parent = RunState(
                run_id="trip.1", status="waiting_for_subagent", children={"child": Child(child="child", agent="clerk", goal="book")}
            )
            found = await question_of(engine.runtime, parent)
            assert found is not None
            assert (found[0].run_id, found[1]) == ("child", next(iter(state.asks)))
            above = RunState(run_id="top", status="waiting_for_approval", children={"x": Child(child="trip", agent="a", goal="g")})
            assert await question_of(engine.runtime, above) is None

    asyncio.run(main())


def test_a_message_is_not_taken_for_sent_because_a_model_wrote_its_id() -> None:
    """Otherwise a model that guesses the id of the next message could make it vanish: its sender would get the answer of an earlier run."""

    async def story() -> None:
        planted = {"what": "it", "signal": f"message:{digest_of_id('m-2')}"}
        clerk = Clerk(first=[ToolCall(tool="look", args=planted)])
        async with engine_of(clerk, tools=Ledger().tools()) as engine:
            session = engine.session(Agent(name="clerk", tools=["look"]), "S")
            await session.send("first", message_id="m-1")
            assert (await session.send("second", message_id="m-2")).output == "answer to second"

    asyncio.run(story())


def test_a_fork_before_the_first_message_of_a_fork_knows_each_message_once() -> None:
    """Otherwise each /undo in a session that was itself taken back would double the conversation."""
    clerk = Clerk()

    async def story() -> None:
        async with engine_of(clerk) as engine:
            session = engine.session(AGENT, "trip")
            for text in ("one", "two"):
                await session.send(text)
            once = (await session.fork(at=2)).session
            await once.send("other")
            await (await once.fork(at=1)).session.send("again")
            assert clerk.saw[-1] == [("user", "one"), ("model", "answer to one")]

    asyncio.run(story())


@pytest.mark.parametrize("gone", ["delete", "erase"])
def test_a_session_is_forked_at_a_message_whose_run_before_is_gone(gone: str) -> None:
    """Otherwise a message whose run is complete by itself could not be taken back once the run before it was cleaned up."""
    clerk = Clerk()

    async def story() -> None:
        async with engine_of(clerk) as engine:
            session = engine.session(AGENT, "trip", context=["in May"])
            for text in ("one", "two", "three"):
                await session.send(text)
            await getattr(engine, gone)("trip.1")
            forked = (await session.fork(at=2)).session
            await forked.send("other")
            left = [] if gone == "erase" else [("user", "one"), ("model", "answer to one")]
            assert [entry for entry in clerk.saw[-1] if entry[0] != "note"] == left
            assert ("note", "in May") in clerk.saw[-1]
            assert (await forked.runs())[0].goal == "other"

    asyncio.run(story())


def test_a_fork_keeps_the_budget_of_its_session_and_context_that_nobody_was_shown_yet() -> None:
    """Otherwise a fork from a process that did not give the budget would be unbounded, and one before the first message would lose its context."""
    clerk = Clerk()

    async def story() -> None:
        async with engine_of(clerk) as engine:
            await engine.session(AGENT, "trip", budget=Budget(max_iterations=1)).send("one")
            forked = (await engine.session(AGENT, "trip").fork()).session
            await forked.send("two")
            with pytest.raises(NotAllowedNow, match="max_iterations"):
                await forked.send("three")
            fresh = (await engine.session(AGENT, "new", context=["in May"]).fork()).session
            await fresh.send("four")
            assert clerk.saw[-1] == [("note", "in May")]

    asyncio.run(story())


def test_an_operator_continues_and_forks_the_session_of_a_tenant_as_that_tenants() -> None:
    """Otherwise an operator's message would lock the tenant out of its own session, or carry its words out of the tenant."""
    clerk, host = Clerk(), Host(tenant="acme", principal="ann")

    async def story() -> None:
        async with engine_of(clerk) as engine:
            theirs = engine.session(AGENT, "trip", host)
            await theirs.send("one")
            operators = engine.session(AGENT, theirs.id)
            assert (await operators.send("two")).state.host == host
            assert (await theirs.send("three")).state.run_id == "trip.3@acme"
            forked = (await operators.fork(at=3)).session
            assert (await forked.send("other")).state.host == host
            assert forked.id.endswith("@acme")
            with pytest.raises(ConfigError, match="is a tenant's"):
                await engine.session(AGENT, "new@acme").send("one")
            assert (await engine.session(AGENT, "new", host).send("one")).status == "completed"

    asyncio.run(story())


def test_a_fork_of_a_run_is_no_message_whatever_its_id() -> None:
    """Otherwise a fork with the id of the next run would take what was said since out of the conversation."""

    async def story() -> None:
        async with engine_of(Clerk()) as engine:
            session = engine.session(AGENT, "trip")
            await session.send("one")
            await session.send("two")
            await engine.fork("trip.1", child_id="trip.3")
            with pytest.raises(ConfigError, match="belongs to no session"):
                await session.send("three")
            await engine.delete("trip.3")
            assert (await session.send("three")).run_id == "trip.3"

    asyncio.run(story())
