"""The contract of worker hosts can fail: each host here breaks one promise, and the suite says which."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest
from msgspec.structs import replace

from amounts import in_check, thinned
from detent.core.errors import RunBusy, StoreBusy, StoreError
from detent.ports import Advanced, Backlog, Tries, Work, WorkerHost
from detent.ports.working import NOT_HERE
from detent.testing.conformance.worker_host import BacklogContract, PullingContract, PullingHostContract, WorkerHostMaker
from detent.testing.conformance.worker_runs import RunsContract
from detent.workers.in_process import InProcessHost
from testing.conformance.rejecting import checks_of, failing

pytestmark = thinned


class Around:
    """A backlog with something changed on the way."""

    def __init__(self, inner: Backlog) -> None:
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


class Wraps(InProcessHost):
    """Works on the backlog through `Through`."""

    Through: type[Around] = Around

    async def work(self, backlog: Backlog, *, until_idle: bool = False) -> None:
        around: Any = self.Through(backlog)
        await super().work(around, until_idle=until_idle)


class RunsTwice(Wraps):
    class Through(Around):
        async def advance(self, run_id: str, *, within_s: float | None = None) -> Advanced:
            first, _ = await asyncio.gather(self.inner.advance(run_id), self.inner.advance(run_id))
            return first


class LosesARun(Wraps):
    class Through(Around):
        async def due(self, after: str = "", *, beside: int = 0) -> Work:
            found = await self.inner.due(after, beside=beside)
            return replace(found, runs=tuple(due for due in found.runs if not due.run_id.endswith("7") and "half" not in due.run_id))


class RetriesWithoutPause(InProcessHost):
    def pause_s(self, attempts: int) -> float:
        return 0.0


class PausesAlwaysTheSame(InProcessHost):
    def pause_s(self, attempts: int) -> float:
        return self.retry_pause_s if attempts else 0.0


class ForgetsAttemptsOfOthers(Wraps):
    class Through(Around):
        async def look(self, run_id: str) -> Tries:
            await self.inner.look(run_id)
            return Tries()


class NeverGivesUp(Wraps):
    class Through(Around):
        async def give_up(self, run_id: str, why: str, attempts: int) -> None:
            return


class GivesUpSilently(Wraps):
    class Through(Around):
        async def give_up(self, run_id: str, why: str, attempts: int) -> None:
            await self.inner.give_up(run_id, "it failed", attempts)


class TakesEveryErrorForAFailure(Wraps):
    class Through(Around):
        async def advance(self, run_id: str, *, within_s: float | None = None) -> Advanced:
            try:
                return await self.inner.advance(run_id)
            except Exception as error:  # whatever an attempt raises
                raise RuntimeError(str(error)) from error


class AdvancesPastItsBound(InProcessHost):
    def __init__(self, **options: Any) -> None:
        super().__init__(**options | {"concurrency": options["concurrency"] + 1})


class OneAtATime(InProcessHost):
    def __init__(self, **options: Any) -> None:
        super().__init__(**options | {"concurrency": 1})


class TakesBusyForFailed(Wraps):
    class Through(Around):
        async def look(self, run_id: str) -> Tries:
            try:
                return await self.inner.look(run_id)
            except RunBusy as error:
                raise RuntimeError(str(error)) from error


class EndsWithTheFirstFailure(Wraps):
    class Through(Around):
        failure: Exception | None = None

        async def due(self, after: str = "", *, beside: int = 0) -> Work:
            if self.failure is not None:
                raise self.failure
            return await self.inner.due(after, beside=beside)

        async def advance(self, run_id: str, *, within_s: float | None = None) -> Advanced:
            try:
                return await self.inner.advance(run_id)
            except Exception as error:  # whatever an attempt raises
                self.failure = StoreError(str(error))
                raise


class GivesUpWhatIsNotHere(Wraps):
    class Through(Around):
        async def advance(self, run_id: str, *, within_s: float | None = None) -> Advanced:
            try:
                return await self.inner.advance(run_id)
            except NOT_HERE as error:
                await self.inner.give_up(run_id, str(error), 1)
                raise


class YoungestFirst(Wraps):
    class Through(Around):
        async def due(self, after: str = "", *, beside: int = 0) -> Work:
            found = await self.inner.due(after, beside=beside)
            return replace(found, runs=found.runs[::-1])


class SeesNoKeys(Wraps):
    class Through(Around):
        async def due(self, after: str = "", *, beside: int = 0) -> Work:
            found = await self.inner.due(after, beside=beside)
            return replace(found, runs=tuple(replace(due, key="") for due in found.runs))


class SeesNoPriorities(Wraps):
    class Through(Around):
        async def due(self, after: str = "", *, beside: int = 0) -> Work:
            found = await self.inner.due(after, beside=beside)
            return replace(found, runs=tuple(replace(due, priority=0) for due in found.runs))


class SeesNoWeights(Wraps):
    class Through(Around):
        async def due(self, after: str = "", *, beside: int = 0) -> Work:
            found = await self.inner.due(after, beside=beside)
            return replace(found, runs=tuple(replace(due, weight=1) for due in found.runs))


class InterruptsInsteadOfSuspending(Wraps):
    """Cancels what is in progress, as a crash would."""

    class Through(Around):
        def suspend(self, why: str) -> None:
            for task in asyncio.all_tasks() - {asyncio.current_task()}:
                if "_take" in repr(task):
                    task.cancel()


class IgnoresStop(InProcessHost):
    async def work(self, backlog: Backlog, *, until_idle: bool = False) -> None:
        working = asyncio.ensure_future(super().work(backlog, until_idle=until_idle))
        while not working.done():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait((working,), timeout=0.05)
        await working


class LeavesWithoutWaiting(InProcessHost):
    async def work(self, backlog: Backlog, *, until_idle: bool = False) -> None:
        await asyncio.shield(asyncio.ensure_future(super().work(backlog, until_idle=until_idle)))


class EndsWhenThereIsNothing(InProcessHost):
    async def work(self, backlog: Backlog, *, until_idle: bool = False) -> None:
        await super().work(backlog, until_idle=True)


class AdvancesWhatIsSubmitted(InProcessHost):
    """Hands each run to whoever worked last, at once, and keeps it in memory until then."""

    async def work(self, backlog: Backlog, *, until_idle: bool = False) -> None:
        self.mine: list[str] = getattr(self, "mine", [])
        for run_id in self.mine:
            with contextlib.suppress(Exception):
                await backlog.advance(run_id)
        self.mine.clear()
        if not until_idle:
            await asyncio.Event().wait()

    async def submit(self, run_id: str) -> None:
        self.mine = [*getattr(self, "mine", []), run_id]


class EndsWithABusyStore(Wraps):
    class Through(Around):
        async def due(self, after: str = "", *, beside: int = 0) -> Work:
            try:
                return await self.inner.due(after, beside=beside)
            except StoreError as error:
                raise StoreError(str(error)) from error


class TakesABusyStoreForAnEmptyOne(Wraps):
    class Through(Around):
        async def due(self, after: str = "", *, beside: int = 0) -> Work:
            try:
                return await self.inner.due(after, beside=beside)
            except StoreBusy:
                return Work()


class NeverSaysThatTheStoreIsGone(Wraps):
    class Through(Around):
        async def due(self, after: str = "", *, beside: int = 0) -> Work:
            try:
                return await self.inner.due(after, beside=beside)
            except StoreError:
                return Work()


class Makers(WorkerHostMaker):
    def __init__(self, kind: type[InProcessHost]) -> None:
        super().__init__()
        self._kind = kind
        self.patience_s = 0.3

    def host(self, *, concurrency: int = 4, max_attempts: int = 3, retry_pause_s: float = 60.0) -> WorkerHost:
        return self._kind(concurrency=concurrency, max_attempts=max_attempts, retry_pause_s=retry_pause_s, poll_s=0.005)


def checks(*words: str) -> set[str]:
    """Return the checks whose names hold these words."""
    return {next(name for name in checks_of(PullingHostContract) if word in name) for word in words}


class Backlogs(BacklogContract, PullingContract):
    """The checks with a backlog in memory."""


PAUSES, COUNTS, STOPS = "pause_that_grows", "killed_too_many", "cancelled_it_suspends"

BY_THE_BACKLOG: dict[type[InProcessHost], set[str]] = {
    LosesARun: checks("advanced_once", "at_once_as_it_was_told", "longest_untouched", "in_each_round"),
    RetriesWithoutPause: checks(PAUSES),
    PausesAlwaysTheSame: checks(PAUSES),
    ForgetsAttemptsOfOthers: checks(PAUSES, COUNTS),
    NeverGivesUp: checks("given_up_with_the_reason", COUNTS),
    GivesUpSilently: checks("given_up_with_the_reason"),
    GivesUpWhatIsNotHere: checks("never_given_up"),
    TakesEveryErrorForAFailure: checks("suspended_run", "never_given_up", STOPS),
    TakesBusyForFailed: checks("is_free"),
    EndsWithTheFirstFailure: checks("that_fails", "never_given_up", PAUSES, "given_up_with_the_reason", "suspended_run"),
    AdvancesPastItsBound: checks("at_once_as_it_was_told", STOPS),
    OneAtATime: checks("at_once_as_it_was_told", "that_hangs", STOPS),
    YoungestFirst: checks("tenants_take_turns", "longest_untouched", "priority_orders"),
    SeesNoKeys: checks("tenants_take_turns", "priority_orders", "in_each_round"),
    SeesNoPriorities: checks("priority_orders"),
    SeesNoWeights: checks("in_each_round"),
    InterruptsInsteadOfSuspending: checks(STOPS),
    IgnoresStop: checks(STOPS, "that_hangs", "waits_for_more"),
    LeavesWithoutWaiting: checks(STOPS),
    EndsWhenThereIsNothing: checks("waits_for_more", "has_no_time"),
    TakesABusyStoreForAnEmptyOne: checks("has_no_time"),
    EndsWithABusyStore: checks("has_no_time"),
    NeverSaysThatTheStoreIsGone: checks("has_no_time"),
}
"""What rejects them of the checks with a backlog in memory. `RunsTwice` fails nearly all of them."""

BY_RUNS: dict[type[InProcessHost], set[str]] = {
    LosesARun: checks("begun_and_abandoned", "two_workers"),
    GivesUpSilently: checks("dead_letter"),
    IgnoresStop: checks("stopped_worker"),
    AdvancesWhatIsSubmitted: set(checks_of(RunsContract)),
}
"""What rejects them of the checks with real runs."""


@in_check
@pytest.mark.parametrize("kind", BY_THE_BACKLOG)
def test_the_suite_rejects_a_host_that_is_broken(kind: type[InProcessHost]) -> None:
    """The checks about the broken promise fail, and no other."""
    assert failing(Backlogs, lambda: Makers(kind)) == BY_THE_BACKLOG[kind]


@in_check
@pytest.mark.parametrize("kind", BY_RUNS)
def test_the_suite_rejects_a_host_that_breaks_runs(kind: type[InProcessHost]) -> None:
    """Also where only the whole of submitting, claims, logs and workers shows it."""
    assert failing(RunsContract, lambda: Makers(kind)) == BY_RUNS[kind]


def test_the_suite_rejects_a_host_that_advances_a_run_twice_at_once() -> None:
    """Whatever else it does right."""
    assert failing(Backlogs, lambda: Makers(RunsTwice)) >= checks("advanced_once", "that_hangs", "tenants_take_turns")


def test_every_check_of_worker_hosts_rejects_something() -> None:
    """No check of the suite is there for nothing."""
    assert set(checks_of(PullingHostContract)) - set().union(*BY_THE_BACKLOG.values(), *BY_RUNS.values()) == set()
