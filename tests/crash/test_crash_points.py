"""A process may die between any two writes, and between an effect and its record: nothing is repeated, nothing is lost, nothing is guessed."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from amounts import crossed, sampled
from crash.workload import EXPECTED, RUN, Inside, Outcome, open_calls, story, work, worker
from detent.core import events as e
from detent.testing.faults import Crash, CrashingStore
from laws.checks import check_laws
from laws.places import KINDS, Effects, Place

pytestmark = crossed

WRITES = ("append", "claim", "put_blob", "post", "release")


async def uninterrupted(kind: str, directory: Path) -> tuple[list[bytes], int]:
    """Return the story of a run that nothing happens to, and how many writes it takes."""
    directory.mkdir()
    place, effects = Place(kind, directory), Effects(directory / "effects")
    store = CrashingStore(place.store(), operations=WRITES)
    async with worker(store, effects) as engine:
        outcome = await work(engine, effects)
    assert (outcome.state.status, outcome.state.output) == ("completed", EXPECTED)
    told = story(await place.records(RUN))
    await place.close()
    return told, store.calls


async def die_and_go_on(
    place: Place, effects: Effects, store: Any, inside: Inside | None = None, **agent: Any
) -> tuple[Outcome, list[str]]:
    """Let a worker die, then let a fresh one go on to the end; return how it ended and the calls that the death left open."""
    with pytest.raises(Crash):
        await work(worker(store, effects, inside), effects, **agent)
    await place.close()
    left = await place.lines(RUN)
    doubtful = open_calls(await place.records(RUN)) if left else []
    async with worker(place.store(), effects) as engine:
        outcome = await work(engine, effects, **agent)
        again = await engine.replay(RUN)
        assert again.identical, again.divergence
    return outcome, doubtful


async def check_death(place: Place, effects: Effects, outcome: Outcome, doubtful: list[str], told: list[bytes]) -> None:
    """Everything that must hold however the first worker died."""
    lines = await place.lines(RUN)
    check_laws(lines, every=9)
    assert (outcome.state.status, outcome.state.output) == ("completed", EXPECTED)
    assert list(outcome.reported) == doubtful, "in doubt is reported exactly when the death fell between intent and outcome"
    assert story(await place.records(RUN)) == told, "the log is that of a run to which nothing happened"
    happened = [line for line in effects.all() if not line.startswith("set:")]
    assert len(happened) == len(set(happened)) == 5, "every effect happened, and none of a tool that is not idempotent twice"
    assert len({line for line in effects.all() if line.startswith("set:")}) == 1, "an idempotent tool ran again with the same key"


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("kind", KINDS[1:])  # in memory the simulation tries it
def test_a_crash_at_any_write_repeats_nothing(kind: str, when: Any, tmp_path: Path) -> None:
    """The resumed log equals the uninterrupted one apart from resume records and times, and no tool ran twice."""

    async def main() -> None:
        told, writes = await uninterrupted(kind, tmp_path / "whole")
        assert writes > 20
        for at in sampled(range(1, writes + 1), few=5):
            directory = tmp_path / str(at)
            directory.mkdir()
            place, effects = Place(kind, directory), Effects(directory / "effects")
            store = CrashingStore(place.store(), at=at, when=when, operations=WRITES)
            try:
                outcome, doubtful = await die_and_go_on(place, effects, store)
                await check_death(place, effects, outcome, doubtful, told)
            except BaseException as error:
                error.add_note(f"crash {when} write {at} of {writes}: {store.done}")
                raise
            finally:
                await place.close()

    asyncio.run(main())


class DiesInside(Inside):
    """Dies inside the body of one tool call."""

    def __init__(self, name: str, n: int, *, after: bool) -> None:
        self.where, self.is_after = (name, n), after

    def before(self, name: str, n: int) -> None:
        """Die before the effect."""
        if (name, n) == self.where and not self.is_after:
            raise Crash

    def after(self, name: str, n: int) -> None:
        """Die after it."""
        if (name, n) == self.where and self.is_after:
            raise Crash


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("kind", KINDS[1:])
def test_a_crash_around_an_effect_is_settled_by_what_the_tool_declares(kind: str, after: bool, tmp_path: Path) -> None:
    """A person is asked, or the tool's reconcile, or an idempotent tool runs again with the same key; the answer is the same."""

    async def main() -> None:
        told, _ = await uninterrupted(kind, tmp_path / "whole")
        for name, n, person in (
            ("put", 2, True),
            ("put", 7, True),
            ("put", 11, True),
            ("wipe", 10, True),
            ("set", 5, False),
            ("file", 6, False),
        ):
            directory = tmp_path / f"{name}{n}"
            directory.mkdir()
            place, effects = Place(kind, directory), Effects(directory / "effects")
            outcome, doubtful = await die_and_go_on(place, effects, place.store(), DiesInside(name, n, after=after))
            await check_death(place, effects, outcome, doubtful, told)
            assert bool(outcome.reported) == person
            times = 2 if name == "set" and after else 1
            assert sum(line.startswith(f"{name}:{n}:") for line in effects.all()) == times
            settled = [r.event for r in await place.records(RUN) if isinstance(r.event, e.ToolReconciled)]
            source = "person" if person else {"set": "retry", "file": "reconcile"}[name]
            assert [s.source for s in settled] == [source]
            await place.close()

    asyncio.run(main())


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("kind", KINDS[1:])
def test_an_agent_may_be_told_that_nobody_knows(kind: str, after: bool, tmp_path: Path) -> None:
    """With on_unknown="tell" the call in doubt becomes an observation, nobody is asked and nothing is run again."""

    async def main() -> None:
        place, effects = Place(kind, tmp_path), Effects(tmp_path / "effects")
        outcome, doubtful = await die_and_go_on(place, effects, place.store(), DiesInside("put", 7, after=after), on_unknown="tell")
        assert doubtful == ["main.5.1"]
        assert outcome.reported == ()
        assert outcome.state.output == [x if x != "put 7" else "tool_result_unknown_after_resume" for x in EXPECTED]
        assert sum(line.startswith("put:7:") for line in effects.all()) == int(after)
        check_laws(await place.lines(RUN), every=9)
        await place.close()

    asyncio.run(main())


def test_two_deaths_at_the_same_call_are_no_more_than_one(tmp_path: Path) -> None:
    """A run that dies again while its in-doubt call is settled goes on from there; the effect is there once."""

    async def main() -> None:
        place, effects = Place("sqlite", tmp_path), Effects(tmp_path / "effects")
        with pytest.raises(Crash):
            await work(worker(place.store(), effects, DiesInside("file", 6, after=True)), effects)
        await place.close()
        for at in sampled(range(1, 8), few=3):
            with pytest.raises(Crash):
                await work(worker(CrashingStore(place.store(), at=at, when="after"), effects), effects)
            await place.close()
        async with worker(place.store(), effects) as engine:
            outcome = await work(engine, effects)
            assert (await engine.replay(RUN)).identical
        assert outcome.state.output == EXPECTED
        assert sum(line.startswith("file:") for line in effects.all()) == 1
        check_laws(await place.lines(RUN), every=9)
        await place.close()

    asyncio.run(main())


@pytest.mark.parametrize("kind", KINDS[1:])  # in memory the simulation tries it
def test_a_resumed_run_repeats_no_recorded_plan(kind: str, tmp_path: Path) -> None:
    """After a crash the planner is asked only for turns whose plan is not on record."""

    async def main() -> None:
        for at in (4, 7, 10):
            directory = tmp_path / str(at)
            directory.mkdir()
            place, effects = Place(kind, directory), Effects(directory / "effects")
            with pytest.raises(Crash):
                await work(worker(CrashingStore(place.store(), at=at, when="after"), effects), effects)
            await place.close()
            planned = sum(isinstance(r.event, e.Planned) for r in await place.records(RUN))
            assert planned
            async with worker(place.store(), effects) as engine:
                await work(engine, effects)
                assert engine.planner.calls == 10 - planned  # type: ignore[union-attr]
            await place.close()

    asyncio.run(main())


def test_the_story_of_a_log_notices_a_difference(tmp_path: Path) -> None:
    """The comparison that these tests stand on is not blind: another result, or a record more, is another story."""

    async def main() -> None:
        place, effects = Place("ram", tmp_path), Effects(tmp_path / "effects")
        async with worker(place.store(), effects) as engine:
            await work(engine, effects)
        told = story(await place.records(RUN))
        assert len(set(told)) == len(told)
        shorter = [line for line in told if b'"put 7"' not in line]
        assert len(shorter) == len(told) - 4, "its result, the answer, the end of the pass and the end of the run say so"

    asyncio.run(main())
