"""Processes that share a session, or die in the middle of it: no message is lost, doubled or interleaved."""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from amounts import PROFILE, crossed, in_check, sampled, times
from crash.processes import answer_of, command, end
from detent import Agent, Engine, Result, tool
from detent.stores.urls import open_store
from detent.testing.faults import Crash, CrashingStore
from forked import fork
from laws.places import KINDS, Effects, Place
from sessions.soak import hold
from sessions.talks import AGENT, Clerk, call, engine_of

pytestmark = crossed

HERE = Path(__file__).resolve().parent
WRITES = ("append", "claim", "put_blob", "release")
TEXTS = ("one", "pay", "three")


def start(url: str) -> Any:
    """Start a process that sends messages."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE.parent), os.environ.get("PYTHONPATH", "")])}
    return fork([str(HERE / "child.py"), url], env=environment, stdin=subprocess.PIPE, stderr=subprocess.PIPE, imports=["sessions.talks"])


@pytest.mark.parametrize("kind", ["file", "sqlite", pytest.param("postgres", marks=in_check)])
def test_two_processes_send_to_one_session_at_once(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """Otherwise two servers could answer one user in two voices, each without the other's answer. `scripts/soak --matrices` tries it 125 times."""
    place = Place(kind, tmp_path, database=request.getfixturevalue("postgres_url") if kind == "postgres" else "")
    children = [start(place.url) for _ in range(2)]
    try:
        for child in children:
            assert answer_of(child) == {"ready": True}
        for n in range(times(25)):
            for which, child in enumerate(children):
                command(child, session=f"s{n}", text=f"text {which}")
            told = [answer_of(child) for child in children]
            ran = sorted(one["run"] for one in told if "run" in one)
            assert all(one.get("error", "session_busy") == "session_busy" for one in told), told
            assert ran in ([f"s{n}.1"], [f"s{n}.1", f"s{n}.2"])
            for child in children:
                command(child, session=f"m{n}", text="hello", message_id="m1")
            told = [answer_of(child) for child in children]
            assert told == [{"run": f"m{n}.1", "output": "answer to hello"}] * 2
            for which, child in enumerate(children):
                command(child, session=f"q{n}", text=f"text {which}", rule="enqueue")
            told = [answer_of(child) for child in children]
            assert sorted(one["run"] for one in told) == [f"q{n}.1", f"q{n}.2"], told
            assert sorted(one["output"] for one in told) == ["answer to text 0", "answer to text 1"]
    finally:
        end(*children)


def payer(effects: Effects) -> Agent:
    """Return an agent whose tool has an effect outside of the store, and may run again with the same key."""

    @tool(side_effect="write", idempotent=True)
    async def pay(who: str) -> str:
        """Pay somebody."""
        effects.add(f"paid-{who}")
        return f"paid {who}"

    return Agent(name="clerk", tools=[pay])


async def converse(store: Any, effects: Effects, texts: tuple[str, ...] = TEXTS, *, rule: Any = "reject") -> list[Result]:
    """Send each message with an id of its own, and return the results."""
    clerk = Clerk(pay=[call("pay", who="bob")])
    async with engine_of(clerk, store) as engine:
        session = engine.session(payer(effects), "trip", rule=rule)
        return [await session.send(text, message_id=f"m{n}") for n, text in enumerate(texts)]


async def check(store: Any, effects: Effects, texts: tuple[str, ...]) -> None:
    """Everything that must hold for a conversation of these messages, whatever happened on the way."""
    async with Engine(store=store, planner=Clerk(), approver="caller") as engine:
        session = engine.session(payer(effects), "trip")
        heads = await session.runs()
        assert [head.run_id for head in heads] == [f"trip.{n}" for n in range(1, len(texts) + 1)]
        said = [(m.kind, m.text) for m in await session.messages() if m.kind != "tool"]
        assert said == [pair for text in texts for pair in (("user", text), ("model", f"answer to {text}"))]
        for head in heads[-3:]:
            assert (await engine.replay(head.run_id)).identical
            found = await engine.verify(head.run_id)
            assert found.ok, found
        await engine.gc()
        last = (await engine.load(heads[-1].run_id)).state.session
        assert last is not None
        kept = [key for key in await engine.store.list_blobs(heads[-1].run_id) if len(key) == 64]
        assert kept == [last.conversation.key] if last.conversation is not None else []


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("kind", [*KINDS, pytest.param("postgres", marks=in_check)])
def test_a_crash_at_any_write_of_a_session_loses_and_doubles_nothing(
    kind: str, when: Any, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """The claims, the artifact, and every record of the start of a run: the next process finds a session that it can continue."""
    url = request.getfixturevalue("postgres_url") if kind == "postgres" else ""

    async def main() -> None:
        counted = Place("ram", tmp_path / "whole")
        counting = CrashingStore(counted.store(), operations=WRITES)
        (tmp_path / "whole").mkdir()
        await converse(counting, Effects(tmp_path / "whole" / "effects"))
        for at in sampled(range(1, counting.calls + 1), few=4):
            directory = tmp_path / str(at)
            directory.mkdir()
            place, effects = Place(kind, directory), Effects(directory / "effects")
            new: Callable[[], Any] = place.store if not url else lambda: open_store(url)
            inner = new()
            try:
                with pytest.raises(Crash):
                    await converse(CrashingStore(inner, at=at, when=when, operations=WRITES), effects)
                await inner.close()
                store = new()
                await converse(store, effects)
                await check(store, effects, TEXTS)
                await clear(store)
                await store.close()
            except BaseException as error:
                error.add_note(f"crash {when} write {at} of {counting.calls}")
                raise
            await place.close()

    asyncio.run(main())


async def clear(store: Any) -> None:
    """Remove the session, so that the next one begins in an empty place."""
    async with Engine(store=store, planner=Clerk(), approver="caller") as engine:
        await engine.session(AGENT, "trip").delete()


@in_check
def test_a_long_conversation_survives_many_deaths(tmp_path: Path) -> None:
    """A process that dies anywhere, again and again, is followed by one that continues with the same message."""
    messages, deaths = (500, 50) if PROFILE == "soak" else (30, 6)
    texts = tuple(f"message {n}" for n in range(messages))
    chance = random.Random(17)

    async def main() -> None:
        place, effects, died, sent = Place("sqlite", tmp_path), Effects(tmp_path / "effects"), 0, 0
        while sent < messages:
            store = CrashingStore(place.store(), at=chance.randint(1, 14 * messages // deaths) if died < deaths else 0, operations=WRITES)
            try:
                async with engine_of(Clerk(), store) as engine:
                    session = engine.session(AGENT, "trip")
                    while sent < messages:
                        result = await session.send(texts[sent], message_id=f"m{sent}")
                        assert (result.run_id, result.output) == (f"trip.{sent + 1}", f"answer to {texts[sent]}")
                        sent += 1
            except Crash:
                died += 1
            await place.close()
        assert died >= min(deaths, 3)
        store = place.store()
        await check(store, effects, texts)
        await store.close()

    asyncio.run(main())


@in_check
@pytest.mark.timeout(900)
def test_a_conversation_with_compactions_survives_processes_that_are_killed(tmp_path: Path) -> None:
    """Messages, payments, prompts and replays are as if nobody had died; `scripts/soak --conversation` is the long version."""
    messages, deaths = (500, 50) if PROFILE == "soak" else (16, 3)
    outcome = hold(tmp_path, messages=messages, deaths=deaths, seed=17)
    assert (outcome.messages, outcome.killed) == (messages, deaths)
    assert outcome.compactions >= 3
    assert outcome.summaries
    assert outcome.dropped
