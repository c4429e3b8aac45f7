"""A process may die before and after every write while a message is queued, interrupts, or rolls back, and of a fork: none is lost or doubled."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from amounts import crossed, in_check, sampled
from detent import Engine
from detent.core.events import MessageReceived
from detent.testing.faults import Crash, CrashingStore
from laws.places import Effects, Place
from sessions.talks import call, engine_of
from sessions.test_processes import payer
from sessions.test_rules import Held

WRITES = ("append", "claim", "post", "put_blob", "release")


async def beside(engine: Engine, held: Held, agent: Any, rule: Any) -> None:
    """Send `hold`, and `pay` while its run is in progress; what a sender could not do is done when the messages are sent again."""
    first = asyncio.create_task(engine.session(agent, "trip").send("hold", message_id="m0"))
    began = asyncio.create_task(held.began.wait())
    await asyncio.wait([first, began], return_when=asyncio.FIRST_COMPLETED)
    second = asyncio.create_task(engine.session(agent, "trip").send("pay", message_id="m1", rule=rule))
    while rule == "enqueue" and not second.done() and not await noticed(engine):
        await asyncio.sleep(0)
    if rule != "enqueue":  # the first one is held until it was rolled back, or the process is dead
        await asyncio.wait([second])
    held.go.set()
    began.cancel()
    for one in await asyncio.gather(first, second, return_exceptions=True):
        if isinstance(one, BaseException):
            raise one


async def noticed(engine: Engine) -> bool:
    """Whether the message is in the inbox or the log of the run in progress."""
    if (await engine.store.signals(["trip.1"])).get("trip.1"):
        return True
    return any(isinstance(record.event, MessageReceived) for record in await engine.records("trip.1"))


async def queued(engine: Engine, held: Held, agent: Any) -> None:
    """The second message is the next run."""
    await beside(engine, held, agent, "enqueue")


async def rolled_back(engine: Engine, held: Held, agent: Any) -> None:
    """The second message takes the place of the first."""
    await beside(engine, held, agent, "rollback")


async def interrupted(engine: Engine, held: Held, agent: Any) -> None:
    """The second message ends the run of the first, which stays in the conversation."""
    await beside(engine, held, agent, "interrupt")


async def forked(engine: Engine, held: Held, agent: Any) -> None:
    """The second message goes to a session that continues from the first one."""
    held.go.set()
    session = engine.session(agent, "trip")
    await session.send("hold", message_id="m0")
    await session.send("left behind", message_id="m1")
    fork = (await session.fork(at="m1", id="other")).session
    await fork.send("pay", message_id="m2")


Scene = Callable[[Engine, Held, Any], Awaitable[None]]


async def talk(scene: Scene, store: Any, effects: Effects) -> None:
    """Do a scene in one process; done again, it goes on."""
    held = Held("hold", pay=[call("pay", who="bob")])
    async with engine_of(held, store) as engine:
        await scene(engine, held, payer(effects))


async def check(scene: Scene, store: Any, effects: Effects) -> str:
    """Check everything that must hold, wherever a process died; return how the first run ended."""
    async with engine_of(Held(), store) as engine:
        agent = payer(effects)
        heads = await engine.session(agent, "trip").runs()
        assert [head.run_id for head in heads] == ["trip.1", "trip.2"]
        last = engine.session(agent, "other" if scene is forked else "trip")
        said = [(m.kind, m.text) for m in await last.messages() if m.kind != "tool"]
        answered = [("user", "pay"), ("model", "answer to pay")]
        if scene is rolled_back and heads[0].status != "completed":
            assert said == answered, "what was rolled back is left out"
        elif scene is interrupted and heads[0].status != "completed":
            assert said == [("user", "hold"), ("note", "no answer was given: cancelled"), *answered]
        else:
            assert said == [("user", "hold"), ("model", "answer to hold"), *answered]
        assert set(effects.all()) == {"paid-bob"}
        for head in [*heads, *(await last.runs())]:
            again = await engine.replay(head.run_id)
            assert again.identical, again.divergence
            assert (await engine.verify(head.run_id)).ok
        return heads[0].status


@crossed
@pytest.mark.parametrize("scene", [queued, rolled_back, interrupted, forked])
@pytest.mark.parametrize("kind", ["sqlite", "file", pytest.param("postgres", marks=in_check)])
def test_a_death_at_any_write_loses_and_doubles_no_message(kind: str, scene: Scene, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """Whoever sends the messages again, with their ids, comes to the conversation that nothing happened to."""
    database = request.getfixturevalue("postgres_url") if kind == "postgres" else ""

    async def main() -> None:
        (tmp_path / "whole").mkdir()
        place = Place(kind, tmp_path / "whole", database=database)
        counted, effects = CrashingStore(place.store(), operations=WRITES), Effects(tmp_path / "whole" / "effects")
        await talk(scene, counted, effects)
        assert await check(scene, place.store(), effects) == ("stopped" if scene in (rolled_back, interrupted) else "completed")
        await place.close()
        points = [(at, when) for at in range(1, counted.calls + 1) for when in ("before", "after")]
        tried, died = sampled(points, few=2), 0
        for at, when in tried:
            directory = tmp_path / f"{when}{at}"
            directory.mkdir()
            place, effects = Place(kind, directory, database=database), Effects(directory / "effects")
            store: Any = CrashingStore(place.store(), at=at, when=when, operations=WRITES)
            try:
                with suppress(Crash):  # a process that waits for a claim may try it more or less often, so the last points may not be there
                    await talk(scene, store, effects)
                died += store.crashed
                await place.close()
                await talk(scene, place.store(), effects)
                await check(scene, place.store(), effects)
            except BaseException as error:
                error.add_note(f"crash {when} write {at} of {counted.calls}, {counted.done[at - 1]}")
                raise
            finally:
                await place.close()
        assert died >= len(tried) - 2

    asyncio.run(main())
