"""Values that redaction keeps apart from a run's log: its forks resolve them, keep them when it goes, and lose them when it is erased."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from amounts import crossed
from detent import Agent, Engine, FinalAnswer, ToolCall, View
from detent.core.errors import RunErased
from detent.history import moving
from detent.running.lineage import SECRET
from detent.stores import open_store
from history.family import run_async
from laws.places import PurePlanner
from secrecy.test_redaction import CARD, CARDS, GRANT, HIDDEN, Bank

pytestmark = crossed

AGENT = Agent(name="teller", tools=["card_of", "charge"], grants=[GRANT])
OTHER = CARD[::-1]


def plan(view: View) -> Any:
    """Look the card up, charge it by its placeholder, and end; the goal may hold another one."""
    if view.iteration == 1:
        return ToolCall(tool="card_of", args={"user": "ann"})
    if view.iteration == 2:
        return ToolCall(tool="charge", args={"card": view.results[0].content["cards"][0]})
    return FinalAnswer(content=f"charged, says {view.goal}")


def teller(store: Any, bank: Bank) -> Engine:
    """Return an engine that hides cards."""
    return Engine(store=store, planner=PurePlanner(plan), tools=bank.all, approver="caller", redact=[CARDS])


def secrets_in(keys: list[str]) -> list[str]:
    """Return the keys of values that were replaced by placeholders."""
    return [key for key in keys if key.startswith(SECRET)]


async def branched(engine: Engine) -> None:
    """Leave a parent, a fork of it before the charge that nobody has taken on, and a fork of that with a card of its own."""
    done = await engine.run(AGENT, "go", run_id="parent")
    assert done.status == "completed"
    turns = [r.envelope.seq for r in await engine.records("parent") if type(r.event).__name__ == "TurnStarted"]
    await engine.fork("parent", at=turns[1] - 1, child_id="fork", effects="redo", resume=False)
    await engine.fork("parent", at=turns[1] - 1, child_id="own", edits={"goal": f"use {OTHER}"}, effects="redo", resume=False)
    assert secrets_in(await engine.store.list_blobs("parent"))


@pytest.mark.parametrize("kind", ["ram", "sqlite", "postgresql"])
@pytest.mark.parametrize("how", ["there", "deleted", "archived"])
def test_a_fork_charges_the_card_that_only_its_parent_saw(how: str, kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """From the parent while it is there; from a copy once it was deleted or archived; no log shows the card."""
    url = {"ram": "ram:", "sqlite": f"sqlite:///{tmp_path}/runs.db"}.get(kind) or request.getfixturevalue("postgres_url")

    async def main() -> None:
        bank, store = Bank(), open_store(url)
        await store.open()
        async with teller(store, bank) as engine:
            await branched(engine)
            if how == "deleted":
                await engine.delete("parent")
            elif how == "archived":
                await moving.archive(store, tmp_path / "old", "parent")
            bank.got.clear()
            for fork in ("fork", "own"):
                assert (await engine.resume(fork)).status == "completed"
                assert (await engine.replay(fork)).identical
                lines = b"".join(await store.read(fork))
                assert CARD.encode() not in lines
                assert OTHER.encode() not in lines
                assert HIDDEN.search(lines.decode())
            assert bank.got == [CARD, CARD]
            state = await engine.load("own")
            assert HIDDEN.search(state.goal)
        await store.close()

    run_async(main)


def test_erasing_a_parent_takes_its_values_from_its_forks(tmp_path: Path) -> None:
    """The copies that forks were given go with it, also from the bytes of the file; a fork's own value stays with that fork until it is erased."""

    async def main() -> None:
        bank, store, away = Bank(), open_store(f"sqlite:///{tmp_path}/runs.db"), open_store("ram:")
        for one in (store, away):
            await one.open()
        async with teller(store, bank) as engine:
            await branched(engine)
            for fork in ("fork", "own"):  # away and back: with copies of what they refer to
                await moving.copy(store, away, fork, move=True)
                await moving.copy(away, store, fork, move=True)
            (of_parent,) = secrets_in(await store.list_blobs("parent"))
            assert secrets_in(await store.list_blobs("fork")) == [of_parent]
            assert len(secrets_in(await store.list_blobs("own"))) == 2
            await engine.erase("parent")
            assert await store.list_blobs("parent") == []
            assert secrets_in(await store.list_blobs("fork")) == []
            (of_own,) = secrets_in(await store.list_blobs("own"))
            assert of_own != of_parent
            assert OTHER.encode() in (await store.get_blob("own", of_own) or b"")
            for fork in ("fork", "own"):
                with pytest.raises(RunErased):
                    await engine.resume(fork)
                assert (await engine.verify(fork)).ok
            with contextlib.closing(sqlite3.connect(tmp_path / "runs.db")) as db:
                stored = b"\n".join(bytes(data) for (data,) in db.execute("SELECT data FROM blobs"))
            assert CARD.encode() not in stored
        for one in (store, away):
            await one.close()
        assert CARD.encode() not in (tmp_path / "runs.db").read_bytes()

    run_async(main)
