"""When a run is ticked next: what a tick of a host over Restate answers. No server is asked here."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from itertools import pairwise
from typing import Any

import pytest

import virtual_time
from detent.core.errors import RunBusy
from detent.ports import Advanced
from detent.testing.conformance.worker_backlog import Pile
from detent.workers.restate import RestateHost
from detent.workers.restate import host as host_module
from detent.workers.restate.endpoint import crowded_of
from detent.workers.restate.host import GRID, MOST_CROWDED_S, ROOM_S, Shift


class Waiting(Pile):
    """A pile whose runs come to what a test says."""

    came_to = Advanced(status="completed")

    async def advance(self, run_id: str, *, within_s: float | None = None) -> Advanced:
        """See the class."""
        await super().advance(run_id, within_s=within_s)
        self.add(run_id)
        return self.came_to


def shift_of(pile: Pile, **options: Any) -> Shift:
    """Return a worker of this pile."""
    return Shift(RestateHost(**options), pile)


def test_an_ended_run_and_one_that_waits_for_somebody_have_no_next_tick() -> None:
    """What moves them passes them on."""

    async def main() -> None:
        pile = Waiting()
        shift = shift_of(pile)
        for came_to in (Advanced(status="completed"), Advanced(status="waiting_for_user", waits_for="user")):
            pile.came_to = came_to
            assert await shift.tick(pile.add("r")) is None
        assert await shift.tick("nobody's") is not None, "its failure cannot be recorded: it is looked at again"

    virtual_time.run(main())


def test_a_timer_has_one_tick_however_often_its_run_is_ticked() -> None:
    """Its token is that of the run and the deadline, so that Restate drops the others; it begins no earlier than the timer is due."""

    async def main() -> None:
        pile = Waiting()
        shift, due = shift_of(pile), pile.now() + timedelta(hours=1)
        pile.came_to = Advanced(status="waiting_for_schedule", waits_for="schedule", not_before=due)
        found = [await shift.tick(pile.add("r")) for _ in range(3)]
        assert found[0] is not None
        after_s, token, crowded = found[0]
        assert (found[1], found[2], crowded) == (found[0], found[0], 0)
        assert 3600 <= after_s < 3601
        assert "r at" in token
        pile.clock.advance(3599.9)
        last = await shift.tick(pile.add("r"))
        assert last is not None
        assert last[1] != token, "that of the tick in progress: Restate would drop it, and the timer with it"

    virtual_time.run(main())


def test_a_run_that_is_not_to_begin_yet_is_ticked_at_its_time() -> None:
    """One submission that waits for others like it (`debounce`): its status is `running`, and nothing is in progress."""

    async def main() -> None:
        pile = Waiting()
        pile.came_to = Advanced(status="running", not_before=pile.now() + timedelta(seconds=60))
        found = await asyncio.wait_for(shift_of(pile).tick(pile.add("r")), 5)
        assert found is not None
        assert 60 <= found[0] < 61
        assert pile.taken == ["r"]

    virtual_time.run(main())


def test_a_tick_that_finds_no_room_is_passed_on_after_a_growing_pause() -> None:
    """Another worker may have room; a thousand ticks must not ask all the time."""

    async def main() -> None:
        pile, gate = Pile(), asyncio.Event()
        shift = shift_of(pile, concurrency=1)
        first = asyncio.create_task(shift.tick(pile.add("hangs", gate=gate)))
        await asyncio.sleep(0.1)
        pauses: list[float] = []
        crowded = 0
        for _ in range(9):
            found = await shift.tick(pile.add("r"), crowded)
            assert found is not None
            pauses.append(found[0])
            crowded = found[2]
        assert pile.taken == ["hangs"]
        assert crowded == 9
        assert pauses[0] <= 2 / GRID
        assert all(after + 1 / GRID >= before for before, after in pairwise(pauses))
        assert MOST_CROWDED_S <= pauses[-1] <= MOST_CROWDED_S + 1 / GRID
        found = await shift.tick("r", 5000)
        assert found is not None
        assert found[0] <= MOST_CROWDED_S + 1 / GRID, "after so many ticks in vain, a run has no other"
        gate.set()
        assert await first is None
        await asyncio.sleep(0.1)
        assert pile.taken == ["hangs", "r"], "there is room, and it need not wait for its next tick"
        await shift.stop()

    virtual_time.run(main())


def test_ticks_without_room_come_back_one_after_another_as_fast_as_runs_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise each run of a long queue is ticked in vain again and again; but none pauses for long, because another worker may come."""
    monkeypatch.setattr(host_module, "CROWD", 0)

    async def main() -> None:
        pile = Pile()
        shift = shift_of(pile, concurrency=1)

        async def ends(run_id: str) -> None:
            gate = asyncio.Event()
            asyncio.get_running_loop().call_later(0.5, gate.set)
            assert await shift.tick(pile.add(run_id, gate=gate)) is None

        for n in range(40):
            await ends(f"r{n}")
        last = asyncio.create_task(shift.tick(pile.add("hangs", gate=asyncio.Event())))
        await asyncio.sleep(0)
        found = await asyncio.gather(*(shift.tick(pile.add(f"q{n}")) for n in range(60)))
        pauses = sorted(one[0] for one in found if one is not None)
        assert len(pauses) == 60
        early = [pause for pause in pauses if pause < host_module.MOST_TURN_S - 1]
        assert len(early) > 10
        assert all(after - before >= 0.25 for before, after in pairwise(early)), pauses
        assert pauses[-1] <= host_module.MOST_TURN_S + 2 / GRID
        last.cancel()
        await shift.stop()

    virtual_time.run(main())


def test_a_run_that_was_turned_away_is_advanced_as_soon_as_there_is_room() -> None:
    """A burst is submitted slowly and ends fast: the turns that its ticks were given would leave the worker with nothing to do."""

    async def main() -> None:
        pile, gate = Waiting(), asyncio.Event()
        shift = shift_of(pile, concurrency=1)
        pile.came_to = Advanced(status="waiting_for_schedule", waits_for="schedule", not_before=pile.now() + timedelta(hours=1))
        first = asyncio.create_task(shift.tick(pile.add("hangs", gate=gate)))
        await asyncio.sleep(0.1)
        assert all([await shift.tick(pile.add(run_id)) for run_id in ("a", "b", "c")])
        assert pile.taken == ["hangs"]
        again = asyncio.create_task(shift.tick("b"))  # its own tick waits for room, and comes before those that were turned away
        await asyncio.sleep(0.1)
        gate.set()
        assert await first is not None
        assert await again is not None
        await asyncio.sleep(1)
        assert pile.taken == ["hangs", "b", "a", "c"]
        timer = await shift.tick("a")
        assert timer is not None and "a at" in timer[1], "the tick of its turn comes, and sees to its timer"
        await shift.stop()

    virtual_time.run(main())


def test_whatever_ends_together_all_room_is_used_for_runs_that_were_turned_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two runs end in the same moment, and one tick waits: it has one place, and a run that was turned away the other. A worker remembers so many of them."""
    monkeypatch.setattr(host_module, "MOST_TURNED_AWAY", 2)

    async def main() -> None:
        pile, first, second = Pile(), asyncio.Event(), asyncio.Event()
        shift = shift_of(pile, concurrency=2)
        ticks = [asyncio.create_task(shift.tick(pile.add(run_id, gate=first))) for run_id in ("r", "s")]
        await asyncio.sleep(0.1)
        for run_id in ("a", "b", "c"):
            assert await shift.tick(pile.add(run_id, gate=second)) is not None
        ticks.append(asyncio.create_task(shift.tick(pile.add("w", gate=second))))
        await asyncio.sleep(0.1)
        first.set()
        await asyncio.sleep(0.1)
        assert set(pile.running) == {"w", "a"}
        second.set()
        assert await asyncio.gather(*ticks) == [None] * 3
        await asyncio.sleep(0.1)
        assert pile.ended[-1] == "b" and "c" not in pile.taken
        await shift.stop()

    virtual_time.run(main())


@pytest.mark.parametrize(("crowd", "waits_s"), [(256, MOST_CROWDED_S), (1, ROOM_S)])
def test_ticks_wait_for_room_where_runs_end_unless_too_many_do(monkeypatch: pytest.MonkeyPatch, crowd: int, waits_s: float) -> None:
    """Passing a tick on costs more than waiting; but each one that waits has a connection, and its worker does not have thousands."""
    monkeypatch.setattr(host_module, "CROWD", crowd)

    async def main() -> None:
        pile, loop = Pile(), asyncio.get_running_loop()
        shift = shift_of(pile, concurrency=1)
        gates = {pile.add(f"r{n}", gate=(gate := asyncio.Event())): gate for n in range(20)}

        def one_ends() -> None:
            for run_id in pile.running:
                gates[run_id].set()
            loop.call_later(0.9, one_ends)

        one_ends()
        begun, waited = loop.time(), dict[str, float]()

        async def tick(run_id: str) -> None:
            if await shift.tick(run_id) is not None:
                waited[run_id] = loop.time() - begun

        await asyncio.gather(*(tick(run_id) for run_id in list(pile.runs)))
        assert max(waited.values()) == pytest.approx(waits_s, abs=0.2)
        assert pile.at_once == 1
        await shift.stop()

    virtual_time.run(main())


@pytest.mark.parametrize(
    ("asked", "count"),
    [({}, 0), ({"crowded": 7}, 7), ({"crowded": -1}, 0), ({"crowded": "9"}, 0), ({"crowded": True}, 0), (None, 0), ([1], 0)],
)
def test_whatever_a_tick_was_asked_with_it_is_no_failure_that_restate_repeats(asked: Any, count: int) -> None:
    """Whoever reaches the ingress may ask; one that fails for ever would block all later ticks of its run."""
    assert crowded_of(asked) == count


def test_ticks_of_one_run_join_and_never_take_the_token_of_the_one_in_progress() -> None:
    """A second tick of a run that is in progress waits for it: there is one attempt."""

    async def main() -> None:
        pile, gate = Pile(), asyncio.Event()
        shift = shift_of(pile)
        pile.add("r", gate=gate)
        both = [asyncio.create_task(shift.tick("r")) for _ in range(2)]
        await asyncio.sleep(0)
        gate.set()
        assert await asyncio.gather(*both) == [None, None]
        assert (pile.taken, pile.wrong) == (["r"], [])
        pile.add("busy")
        pile.runs["busy"].busy = RunBusy("busy", "another")
        looks = [await shift.tick("busy") for _ in range(2)]
        tokens = [found[1] for found in looks if found is not None]
        assert len(tokens) == 2
        times = [float(token.rpartition(" ")[2]) * GRID for token in tokens]
        assert times == [int(time) for time in times], "looks of one run do not meet"

    virtual_time.run(main())


def test_a_run_that_another_worker_has_is_looked_at_less_and_less_often() -> None:
    """A thousand runs may wait because few of their key may be active; each looks after a second at first, and after eight in the end."""

    async def main() -> None:
        pile, crowded, pauses = Pile(), 0, list[float]()
        shift = shift_of(pile)
        pile.add("busy")
        pile.runs["busy"].busy = RunBusy("busy", "another")
        for _ in range(9):
            found = await shift.tick("busy", crowded)
            assert found is not None
            pauses.append(found[0])
            crowded = found[2]
        assert 1 <= pauses[0] <= 1 + 1 / GRID
        assert MOST_CROWDED_S <= pauses[-1] <= MOST_CROWDED_S + 1 / GRID
        pile.runs["busy"].busy = None
        assert await shift.tick("busy", crowded) is None
        assert pile.ended == ["busy"]

    virtual_time.run(main())


def test_a_worker_that_stops_passes_its_ticks_on() -> None:
    """It advances nothing more, and Restate asks another one."""

    async def main() -> None:
        pile = Pile()
        shift = shift_of(pile)
        await shift.stop()
        found = await shift.tick(pile.add("r"))
        assert found is not None
        assert found[0] <= 2 / GRID
        assert pile.taken == []

    virtual_time.run(main())
