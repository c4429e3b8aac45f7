"""Detent's schedulers keep their contract; broken ones are found out, each by the checks about what it breaks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest

import virtual_time
from amounts import thinned
from detent.ports import Job, Scheduler
from detent.testing.conformance.scheduler import SchedulerContract, SchedulerMaker
from detent.tools import Bounded, Together
from testing.conformance.rejecting import checks_of, failing

pytestmark = thinned


class Schedulers(SchedulerMaker):
    def __init__(self, make: Callable[[], Any], one: Callable[[], Any] | None = None) -> None:
        self._make, self._one = make, one

    def scheduler(self) -> Scheduler:
        return self._make()

    def one_at_a_time(self) -> Scheduler | None:
        return None if self._one is None else self._one()


class TestTogether(SchedulerContract):
    @pytest.fixture
    def maker(self) -> SchedulerMaker:
        return Schedulers(Together)


@pytest.mark.parametrize(
    ("make", "one"),
    [
        (lambda: Bounded(1), lambda: Bounded(1)),
        (lambda: Bounded(3, per_tool={"look": 2}), lambda: Bounded(per_tool={"look": 1})),
        (lambda: Bounded(100), lambda: Bounded(2, per_tool={"look": 1})),
    ],
    ids=["one", "per tool", "many"],
)
class TestBounded(SchedulerContract):
    @pytest.fixture
    def maker(self, make: Any, one: Any) -> SchedulerMaker:
        return Schedulers(make, one)


class Turns:
    """A scheduler that keeps the contract: so many at a time, and calls inside of calls without waiting."""

    def __init__(self, places: int = 2) -> None:
        self.places = places

    async def run(self, jobs: Sequence[Job]) -> Sequence[Any]:
        return await self.gather([partial(self.one, job) for job in jobs])

    async def gather(self, work: Sequence[Any]) -> Sequence[Any]:
        return await asyncio.gather(*(one() for one in work), return_exceptions=True)

    async def one(self, job: Job) -> Any:
        return await job.start()


class LeavesTheLastOut(Turns):
    async def run(self, jobs: Sequence[Job]) -> Sequence[Any]:
        return await super().run(jobs[:-1] if len(jobs) > 6 else jobs)


class BeginsTheFirstTwice(Turns):
    async def one(self, job: Job) -> Any:
        if job.call_id in ("c0", "a0"):
            await job.start()
        return await job.start()


class GivesWhatEndsFirst(Turns):
    async def gather(self, work: Sequence[Any]) -> Sequence[Any]:
        found: list[Any] = []

        async def note(one: Any) -> None:
            try:
                found.append(await one())
            except Exception as error:  # noqa: BLE001 - whatever a job raises
                found.append(error)

        await asyncio.gather(*(note(one) for one in work))
        return found


class PutsFailuresLast(Turns):
    async def gather(self, work: Sequence[Any]) -> Sequence[Any]:
        found = await super().gather(work)
        return sorted(found, key=lambda one: isinstance(one, BaseException))


class RaisesTheFirstFailure(Turns):
    async def gather(self, work: Sequence[Any]) -> Sequence[Any]:
        return await asyncio.gather(*(one() for one in work))


class StopsAtTheFirstFailure(Turns):
    """One after another, and none after one that failed."""

    async def gather(self, work: Sequence[Any]) -> Sequence[Any]:
        found: list[Any] = []
        for one in work:
            if found and isinstance(found[-1], Exception):
                found.append(RuntimeError("not run"))
                continue
            found += await asyncio.gather(one(), return_exceptions=True)
        return found


class ForgetsThemOnCancellation(Turns):
    """Leaves what runs to itself."""

    async def one(self, job: Job) -> Any:
        return await asyncio.shield(asyncio.ensure_future(super().one(job)))


class DoesNotWaitForThem(Turns):
    """Cancels what runs, and ends at once."""

    async def gather(self, work: Sequence[Any]) -> Sequence[Any]:
        tasks = [asyncio.ensure_future(one()) for one in work]
        try:
            await asyncio.wait(tasks) if tasks else None
        except asyncio.CancelledError:
            for task in tasks:
                task.cancel()
            raise
        return await asyncio.gather(*tasks, return_exceptions=True)


class SwallowsCancellation(Turns):
    async def gather(self, work: Sequence[Any]) -> Sequence[Any]:
        try:
            return await super().gather(work)
        except asyncio.CancelledError:
            return [None] * len(work)


class RunsOnAfterCancellation(Turns):
    """One after another; a cancelled one is taken for one that failed."""

    async def gather(self, work: Sequence[Any]) -> Sequence[Any]:
        found: list[Any] = []
        try:
            for one in work:
                found += await asyncio.gather(one(), return_exceptions=True)
        except asyncio.CancelledError:
            await asyncio.gather(*(one() for one in work[len(found) + 1 :]))
            raise
        return found


class MixesGroups(Turns):
    """Gives what was made last, whoever asked."""

    last: Sequence[Any] = ()

    async def gather(self, work: Sequence[Any]) -> Sequence[Any]:
        self.last = [None] * len(work)
        self.last = await super().gather(work)
        await asyncio.sleep(0)
        return self.last


class OneGroupAtATime(Turns):
    """A group inside of a group waits for the one around it."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()

    async def gather(self, work: Sequence[Any]) -> Sequence[Any]:
        async with self.lock:
            return await super().gather(work)


class KeepsPlacesOfTheCancelled(Turns):
    """Counts a place back only when its job ends well."""

    def __init__(self, places: int = 60) -> None:
        self.free = asyncio.Semaphore(places)

    async def one(self, job: Job) -> Any:
        await self.free.acquire()
        found = await job.start()
        self.free.release()
        return found


class HasWorkersOfItsOwn(Turns):
    """Jobs run in tasks that were made before, so in the context of whoever came first."""

    workers: Any = None

    async def one(self, job: Job) -> Any:
        import contextvars

        self.workers = self.workers or contextvars.copy_context()
        return await asyncio.get_running_loop().create_task(job.start(), context=self.workers)  # type: ignore[arg-type]


class BindsToItsFirstLoop(Turns):
    loop: Any = None

    async def gather(self, work: Sequence[Any]) -> Sequence[Any]:
        self.loop = self.loop or asyncio.get_running_loop()
        if self.loop is not asyncio.get_running_loop():
            raise RuntimeError("bound to a different event loop")
        return await super().gather(work)


class SkipsWhatWrites(Turns):
    async def one(self, job: Job) -> Any:
        return await job.start() if job.tool.read_only else None


class BoundsEachGroupAlone(Turns):
    """One at a time, of each group."""

    async def gather(self, work: Sequence[Any]) -> Sequence[Any]:
        lock = asyncio.Lock()

        async def turn(one: Any) -> Any:
            async with lock:
                return await one()

        return await super().gather([partial(turn, one) for one in work])


class CannotBeLeft(Turns):
    """One at a time; who waits for a turn waits until it comes, and is told of a cancellation then."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()

    async def one(self, job: Job) -> Any:
        turn = asyncio.ensure_future(self.lock.acquire())
        try:
            await asyncio.wait((turn,))
        except asyncio.CancelledError:
            await turn
            self.lock.release()
            raise
        try:
            return await job.start()
        finally:
            self.lock.release()


ONCE = "test_every_job_begins_once"
ORDER = "test_results_stand_in_the_order_of_the_jobs"
FAILS = "test_what_one_job_raises_ends_no_other"
CANCELLED = "test_a_cancellation_reaches_every_job_and_is_waited_for"
APART = "test_two_groups_at_once_stay_apart"
NESTED = "test_a_job_may_have_a_group_of_its_own"
CONTEXT = "test_jobs_run_in_the_context_of_who_gave_them"
PLACES = "test_what_was_cancelled_or_failed_leaves_its_place"
WAITS = "test_what_waits_for_its_turn_can_be_cancelled"
LOOPS = "test_one_event_loop_after_another_is_served"
SAME = "test_a_run_is_the_same_with_and_without_it"
BOUNDS = "test_bounds_hold_over_groups"

REJECTED: dict[type[Turns], set[str]] = {
    LeavesTheLastOut: {ONCE, PLACES, LOOPS},
    BeginsTheFirstTwice: {ONCE},
    GivesWhatEndsFirst: {ORDER},
    PutsFailuresLast: {FAILS},
    RaisesTheFirstFailure: {FAILS, APART, PLACES},
    StopsAtTheFirstFailure: {FAILS},
    ForgetsThemOnCancellation: {CANCELLED},
    DoesNotWaitForThem: {CANCELLED},
    SwallowsCancellation: {CANCELLED},
    RunsOnAfterCancellation: {CANCELLED, APART, PLACES},
    MixesGroups: {APART, NESTED, LOOPS},
    OneGroupAtATime: {NESTED, LOOPS},
    KeepsPlacesOfTheCancelled: {PLACES},
    HasWorkersOfItsOwn: {CONTEXT},
    BindsToItsFirstLoop: {LOOPS},
    SkipsWhatWrites: {SAME},
}
REJECTED_AS_ONE_AT_A_TIME: dict[type[Turns], set[str]] = {
    BoundsEachGroupAlone: {WAITS, BOUNDS},
    CannotBeLeft: {WAITS, BOUNDS, NESTED},
}


@pytest.fixture
def no_time_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A scheduler that hangs is found out at once, and one that does not has all the patience of the suite."""
    monkeypatch.setattr(asyncio, "run", virtual_time.run)


@pytest.mark.usefixtures("no_time_passes")
@pytest.mark.parametrize("kind", REJECTED)
def test_the_suite_rejects_a_scheduler_that_is_broken(kind: Any) -> None:
    """The checks about the broken promise fail, and no other."""
    assert failing(SchedulerContract, lambda: Schedulers(kind)) == REJECTED[kind]


@pytest.mark.usefixtures("no_time_passes")
@pytest.mark.parametrize("kind", REJECTED_AS_ONE_AT_A_TIME)
def test_the_suite_rejects_a_bound_that_is_broken(kind: Any) -> None:
    """The checks about the broken promise fail, and no other."""
    assert failing(SchedulerContract, lambda: Schedulers(Turns, kind)) == REJECTED_AS_ONE_AT_A_TIME[kind]


def test_the_suite_accepts_a_scheduler_that_is_sound() -> None:
    """What rejects the broken schedulers is what was broken in them."""
    assert failing(SchedulerContract, lambda: Schedulers(Turns)) == set()


def test_every_check_of_schedulers_rejects_something() -> None:
    """No check of the suite is there for nothing."""
    known = set[str]().union(*REJECTED.values(), *REJECTED_AS_ONE_AT_A_TIME.values())
    assert set(checks_of(SchedulerContract)) - known == set()
