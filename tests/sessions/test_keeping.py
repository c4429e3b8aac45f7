"""What becomes of a session when its runs are erased, archived, moved or deleted."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest

from amounts import in_check, thinned
from detent import Agent, Engine, ToolCall, View, tool
from detent.core.errors import NotAllowedNow, RunErased, SessionBusy
from detent.core.records import RunHead
from detent.history.moving import archive, copy
from detent.ports import RunQuery
from detent.stores.ram import RamStore
from sessions.talks import AGENT, Clerk, Ledger, asks, call, engine_of

pytestmark = thinned


async def stored(engine: Engine, run_id: str) -> bytes:
    """Return everything that the store has of a run."""
    keys = await engine.store.list_blobs(run_id)
    blobs = [await engine.store.get_blob(run_id, key) or b"" for key in keys]
    return b"\n".join([*await engine.store.read(run_id), *blobs])


def test_the_words_of_an_erased_run_leave_the_later_runs_of_its_session() -> None:
    """Otherwise what somebody asked to be erased would stay, in every conversation after it."""
    clerk = Clerk()

    async def main() -> None:
        async with engine_of(clerk) as engine:
            session = engine.session(AGENT, "trip")
            for text in ("secret", "two", "three"):
                await session.send(text)
            forked = (await session.fork(at=3)).session
            await forked.send("other")
            erased = await engine.erase("trip.1", by="ann")
            assert erased.later == ("trip.2", f"{forked.id}.1", "trip.3")
            for run_id in ("trip.1", "trip.2", "trip.3", f"{forked.id}.1"):
                assert b"secret" not in await stored(engine, run_id)
                found = await engine.verify(run_id)
                assert found.ok, found
            for run_id in ("trip.2", "trip.3"):
                assert (await engine.replay(run_id)).identical
            assert await engine.gc() == 0
            await session.send("four")
            assert (await engine.verify("trip.4")).ok
            with pytest.raises(RunErased):
                await engine.load("trip.1")

    asyncio.run(main())
    assert clerk.saw[-1] == [
        ("note", "2 earlier entries of this conversation left out"),
        ("user", "two"),
        ("model", "answer to two"),
        ("user", "three"),
        ("model", "answer to three"),
    ]


def test_a_list_says_of_each_session_what_the_session_says_of_itself() -> None:
    """`completed` was the status of the last run in the list, and an ended session in Python."""

    async def main() -> None:
        async with engine_of(Clerk(), tools=()) as engine:
            for name, ended in (("open", False), ("over", True)):
                session = engine.session(AGENT, name)
                await session.send("one")
                if ended:
                    await session.end(by="ann")
                (head,) = await engine.sessions(starts_with=name)
                assert (head.status, head.last_status) == (session.status, "completed")
                assert session.status == ("completed" if ended else "active")

    asyncio.run(main())


def test_later_conversations_stay_where_that_is_asked_for() -> None:
    """Otherwise `keep_later` would be an option that nothing reads."""

    async def main() -> None:
        async with engine_of(Clerk()) as engine:
            session = engine.session(AGENT, "trip")
            for text in ("secret", "two"):
                await session.send(text)
            assert (await engine.erase("trip.1", by="ann", keep_later=True)).later == ()
            assert b"secret" in await stored(engine, "trip.2")
            assert [m.text for m in await session.messages()] == ["secret", "answer to secret", "two", "answer to two"]

    asyncio.run(main())


def test_a_run_is_not_erased_while_a_later_run_of_its_session_is_open() -> None:
    """Otherwise a run would continue with words that its log names and nobody has."""

    async def main() -> None:
        async with engine_of(Clerk(two=[asks("Sure?")])) as engine:
            session = engine.session(AGENT, "trip")
            for text in ("secret", "two"):
                await session.send(text)
            before = await stored(engine, "trip.1"), await stored(engine, "trip.2")
            with pytest.raises(NotAllowedNow, match=r"later run 'trip\.2' is waiting_for_user") as raised:
                await engine.erase("trip.1", by="ann")
            assert raised.value.reason_code == "session_open"
            assert before == (await stored(engine, "trip.1"), await stored(engine, "trip.2"))
            await session.send("yes")
            assert (await engine.erase("trip.1", by="ann")).later == ("trip.2",)

    asyncio.run(main())


def test_a_run_of_a_session_is_moved_with_its_conversation(tmp_path: Path) -> None:
    """Otherwise a run in an archive, or in another store, would not be complete."""

    async def main() -> None:
        async with engine_of(Clerk(), f"sqlite:///{tmp_path}/a.db") as engine, engine_of(Clerk(), f"sqlite:///{tmp_path}/b.db") as other:
            session = engine.session(AGENT, "trip")
            for text in ("one", "two"):
                await session.send(text)
            await other.list_runs()
            await copy(engine.store, other.store, "trip.2")
            assert (await other.verify("trip.2")).ok
            assert (await other.replay("trip.2")).identical
            assert (await other.session(AGENT, "trip").send("three")).run_id == "trip.3"

    asyncio.run(main())


def test_a_run_that_a_forked_session_continues_is_moved_and_archived_too(tmp_path: Path) -> None:
    """Otherwise what a run remembers of the sessions that were forked from it would keep it where it is."""

    async def main() -> None:
        async with engine_of(Clerk(), f"sqlite:///{tmp_path}/a.db") as engine, engine_of(Clerk(), f"sqlite:///{tmp_path}/b.db") as other:
            session = engine.session(AGENT, "trip")
            for text in ("secret", "two"):
                await session.send(text)
            forked = (await session.fork()).session
            await forked.send("other")
            await other.list_runs()
            await copy(engine.store, other.store, "trip.2", move=True)
            assert (await other.verify("trip.2")).ok
            await copy(engine.store, other.store, f"{forked.id}.1", move=True)
            assert (await other.replay(f"{forked.id}.1")).identical
            moved = await archive(other.store, tmp_path / "old", "trip.2")
            assert moved.run_id == "trip.2"
            assert (await other.session(AGENT, forked.id).send("more")).run_id == f"{forked.id}.2"

    asyncio.run(main())


def test_nothing_that_is_redacted_reaches_the_conversation() -> None:
    """Otherwise a value that the log of a run does not have would be in the artifacts of the next one."""
    clerk = Clerk()
    agent = Agent(name="clerk", redact=["k-[0-9]+"])

    async def main() -> None:
        async with engine_of(clerk) as engine:
            session = engine.session(agent, "trip", context=["the key is k-111"])
            await session.send("use k-222")
            await session.inject(["or k-333"])
            await session.send("and?")
            for run_id in ("trip.1", "trip.2"):
                state = (await engine.load(run_id)).state
                assert state.session is not None
                assert state.session.conversation is not None
                kept = await engine.store.get_blob(run_id, state.session.conversation.key) or b""
                assert not re.search(rb"k-[0-9]{3}", b"\n".join([kept, *await engine.store.read(run_id)]))

    asyncio.run(main())
    assert all("k-" not in text for saw in clerk.saw for _, text in saw)


def test_a_message_from_inside_its_own_run_is_refused() -> None:
    """Otherwise a tool that talks to its own session would wait for the end of the run that waits for it."""
    told: list[str] = []

    async def main() -> None:
        async with engine_of(Clerk(go=[call("talk")])) as engine:

            @tool(side_effect="read")
            async def talk() -> str:
                """Send a message to the session that this call belongs to."""
                for rule in ("reject", "enqueue", "steer", "interrupt", "rollback"):
                    try:
                        await engine.session(None, "trip").send("more", rule=rule)
                    except SessionBusy:
                        told.append(rule)
                return "done"

            result = await engine.session(Agent(name="clerk", tools=[talk]), "trip").send("go")
            assert result.status == "completed"
            assert len(await engine.session(None, "trip").runs()) == 1

    asyncio.run(main())
    assert told == ["reject", "enqueue", "steer", "interrupt", "rollback"]


@pytest.mark.parametrize("gone", ["delete", "erase", "archive"])
def test_words_leave_a_forked_session_though_the_run_that_it_continues_is_gone(gone: str, tmp_path: Path) -> None:
    """Otherwise what a person asked to erase would stay in every session that was forked later, and nobody would know."""

    async def main() -> None:
        async with engine_of(Clerk(), f"sqlite:///{tmp_path}/a.db") as engine:
            session = engine.session(AGENT, "trip")
            for text in ("secret", "two"):
                await session.send(text)
            forked = (await session.fork(id="other")).session
            await forked.send("three")
            again = (await forked.fork(id="again")).session
            await again.send("four")
            for run_id in ("trip.2", "other.1"):
                if gone == "archive":
                    await archive(engine.store, tmp_path / "old", run_id)
                else:
                    await getattr(engine, gone)(run_id)
            await again.send("five")
            await engine.erase("trip.1", by="ann")
            for run_id in ("again.1", "again.2"):
                assert b"secret" not in await stored(engine, run_id)
                assert (await engine.verify(run_id)).ok

    asyncio.run(main())


def test_a_message_is_the_next_one_though_a_run_in_between_was_removed(tmp_path: Path) -> None:
    """Otherwise a process that saw the session earlier would give a removed number again, and its message would be lost to the conversation."""
    clerk = Clerk()

    async def main() -> None:
        async with engine_of(clerk, f"sqlite:///{tmp_path}/a.db") as engine, engine_of(Clerk(), f"sqlite:///{tmp_path}/a.db") as other:
            session = engine.session(AGENT, "trip")
            await session.send("one")
            theirs = other.session(AGENT, "trip")
            for text in ("two", "three", "four"):
                await theirs.send(text)
            await other.delete("trip.3")
            await other.delete("trip.2")
            assert (await session.send("five")).run_id == "trip.5"
            assert [text for kind, text in clerk.saw[-1] if kind == "user"] == ["one", "two", "three", "four"]

    asyncio.run(main())


@pytest.mark.parametrize("gone", [(1,), (1, 2, 3), (5,), (4, 5), (2, 5, 6), (9,), (8, 9)])
def test_the_end_of_a_session_is_found_whatever_was_removed(gone: tuple[int, ...], tmp_path: Path) -> None:
    """Otherwise a process that never saw the session would give an old number again: it does not list all runs to find the last one."""

    async def main() -> None:
        async with engine_of(Clerk(), f"sqlite:///{tmp_path}/a.db") as engine:
            session = engine.session(AGENT, "trip")
            for n in range(1, 11):
                await session.send(str(n))
            for n in gone:
                await engine.delete(f"trip.{n}")
        async with engine_of(clerk := Clerk(), f"sqlite:///{tmp_path}/a.db") as fresh:
            assert (await fresh.session(AGENT, "trip").send("next")).run_id == "trip.11"
            assert [text for kind, text in clerk.saw[-1] if kind == "user"] == [str(n) for n in range(1, 11)]

    asyncio.run(main())


@in_check
def test_the_last_run_of_a_long_session_is_found_without_a_list() -> None:
    """Otherwise the first message of a process costs more, the longer the conversation is."""

    class Counting(RamStore):
        lists = looks = 0

        async def list_runs(self, query: RunQuery) -> list[RunHead]:
            self.lists += 1
            return await super().list_runs(query)

        async def head(self, run_id: str) -> RunHead | None:
            self.looks += 1
            return await super().head(run_id)

    async def looked(messages: int) -> tuple[int, int]:
        store = Counting()
        async with engine_of(Clerk(), store) as engine:
            session = engine.session(AGENT, "trip")
            for n in range(messages):
                await session.send(str(n))
        async with engine_of(Clerk(), store) as fresh:
            store.lists = store.looks = 0
            assert (await fresh.session(AGENT, "trip").send("next")).run_id == f"trip.{messages + 1}"
        return store.lists, store.looks

    few, many = asyncio.run(looked(10)), asyncio.run(looked(150))
    assert (few[0], many[0]) == (0, 0)
    assert many[1] <= few[1] + 10


def test_words_are_erased_though_an_eraser_died_before_it_removed_them() -> None:
    """Otherwise they would stay in the store for good: the log names their artifact, and nobody looks at it again."""

    async def main() -> None:
        async with engine_of(Clerk()) as engine:
            session = engine.session(AGENT, "trip")
            for text in ("secret", "two", "three"):
                await session.send(text)
            blobs = {key: await engine.store.get_blob("trip.3", key) or b"" for key in await engine.store.list_blobs("trip.3")}
            await engine.erase("trip.1", by="ann")
            for key, data in blobs.items():
                await engine.store.put_blob("trip.3", key, data)  # as if the process had died before it removed them
            assert b"secret" in await stored(engine, "trip.3")
            await engine.erase("trip.2", by="ann")
            assert b"secret" not in await stored(engine, "trip.3")
            assert (await engine.verify("trip.3")).ok

    asyncio.run(main())


def test_no_tool_gets_the_placeholder_of_a_value_that_an_earlier_run_was_given() -> None:
    """Otherwise a payment would go to `<secret:...>`, and its receipt would say that all went well."""
    ledger = Ledger()

    def pays(view: View) -> ToolCall:
        (name,) = re.findall(r"<secret:\w+>", view.conversation[0].text)
        return call("pay", who=name)

    async def main() -> None:
        async with engine_of(Clerk(pay=[pays]), tools=ledger.tools(), redact=[r"acct-\d+"]) as engine:
            session = engine.session(Agent(name="clerk", tools=["pay"]), "trip")
            await session.send("my account is acct-77")
            result = await session.send("pay")
            assert ledger.paid == []
            (error,) = [item.error for item in result.state.passes["main"].steps if item.kind == "tool"]
            assert error is not None
            assert (error.code, "earlier run of this session" in error.message) == ("placeholder_not_allowed", True)
            assert (await engine.replay(result.run_id)).identical

    asyncio.run(main())
