"""A session is runs that follow each other: what each knows of those before, how it is named, and what a sender gets."""

from __future__ import annotations

import asyncio
from pathlib import Path

from detent import Session
from sessions.talks import AGENT, Clerk, engine_of


def test_each_message_is_a_run_that_knows_the_ones_before() -> None:
    """Otherwise the agent forgets between two messages, or a run depends on the logs of others."""
    clerk = Clerk()

    async def main() -> None:
        async with engine_of(clerk) as engine:
            session = engine.session(AGENT, "trip")
            assert isinstance(session, Session)
            results = [await session.send(text) for text in ("one", "two", "three")]
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
