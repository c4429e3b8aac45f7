"""Several processes work on one evaluation, are killed, and are told what to do: every trial is run once, and counted as what it came to."""

from __future__ import annotations

import asyncio
import json
import shutil
import signal
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest

from amounts import in_check, sampled
from detent import Agent, Engine, FinalAnswer, Plan, ToolCall
from detent.core.errors import ConfigError, CorruptLog, PlannerFailed, RunBusy, Suspended, UnknownName
from detent.core.state import Usage
from detent.evals import Case, Suite, Variant, controlling, evaluate, summarised, workspaces
from detent.evals.controlling import evaluation, evaluations
from detent.evals.sharing import INDEX, Begun, Book, Kept, Order, begin, place_of
from detent.evals.trials import Trial, is_of, runs_of, trial_id
from detent.stores import open_store
from detent.stores.ram import RamStore
from detent.testing import Crash, CrashingStore
from evals.soak import stormed
from evals.trying import Ledger, engine_of, suite_of, tried
from forked import fork

HERE = Path(__file__).resolve().parent
ADDER = Agent(name="adder", tools=())


def standings(trials: list[Trial]) -> dict[str, int]:
    """Return how many trials came out how."""
    return dict(Counter(trial.standing for trial in trials))


class Costly:
    """Adds at 0.25 USD, and does what `first` says before it plans."""

    def __init__(self, first: Callable[[Any], Any] = lambda view: None) -> None:
        self.first, self.goals = first, list[str]()

    async def plan(self, view: Any) -> Plan:
        """Return the sum."""
        self.goals.append(view.goal)
        if (done := self.first(view)) is not None:
            await done
        a, b = (int(word) for word in view.goal.split(" and "))
        return Plan(actions=(FinalAnswer(content=str(a + b)),), usage=Usage(cost_usd=0.25, model_calls=1), model="m")


def adding(url: str, planner: Any, **options: Any) -> Engine:
    """Return an engine that adds by this planner."""
    return Engine(store=url, agents=[ADDER], planner=planner, **options)


# Killed ---------------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("at", sampled(range(1, 40), few=2))
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_crash_around_any_write_repeats_no_trial(tmp_path: Path, at: int, when: Any) -> None:
    url, ledger, suite = f"sqlite:///{tmp_path}/runs.db", Ledger(tmp_path), suite_of(3, 1)

    async def run() -> list[Trial]:
        inner = open_store(url)
        async with engine_of(inner, tmp_path):  # the tables exist
            pass
        await inner.open()
        dying = engine_of(CrashingStore(inner, at=at, when=when), tmp_path)
        try:
            async with dying:
                await evaluate(dying, suite, id="e", concurrency=2)
        except Crash:
            pass
        await inner.close()
        async with engine_of(url, tmp_path) as engine:
            return await evaluate(engine, suite, id="e", concurrency=2)

    trials = asyncio.run(run())
    assert standings(trials) == {"passed": 3}
    assert {trial.attempts for trial in trials} == {1}
    assert ledger.counts() == {trial.run_id: 1 for trial in trials}


def test_a_trial_whose_process_was_killed_is_taken_over(tmp_path: Path) -> None:
    url, how = f"sqlite:///{tmp_path}/runs.db", {"cases": 3, "trials": 1}
    child = fork(
        [str(HERE / "trying.py"), url, str(tmp_path), json.dumps({**how, "held": "1 "})],
        imports=["detent.evals.evaluating", "evals.trying"],
    )
    with child:
        assert child.stdout.readline() == "held\n"
        child.send_signal(signal.SIGKILL)
        child.wait(30)
    found = asyncio.run(tried(url, tmp_path, **how))
    assert (found["standings"], found["attempts"]) == ({"passed": 3}, {"1": 3})
    assert Ledger(tmp_path).counts() == dict.fromkeys(found["runs"], 1)


@in_check
def test_an_evaluation_whose_processes_are_killed_runs_each_trial_once(tmp_path: Path) -> None:
    """`scripts/soak --evals` does this with 2,000 trials and 50 deaths."""
    stormed(f"sqlite:///{tmp_path}/runs.db", tmp_path, trials=60, kills=4, seed=1)


# Shared ---------------------------------------------------------------------------------------------------------------------------------


def test_two_processes_share_the_trials_and_both_have_the_whole_result(tmp_path: Path) -> None:
    url, suite = f"sqlite:///{tmp_path}/runs.db", suite_of(4, 3)
    both = asyncio.Barrier(2)
    first = {"a": True, "b": True}

    def meets(name: str) -> Callable[[Any], Any]:
        def wait(view: Any) -> Any:
            before, first[name] = first[name], False
            return both.wait() if before else None

        return wait

    async def run() -> None:
        a, b = Costly(meets("a")), Costly(meets("b"))
        async with adding(url, a) as one, adding(url, b) as other:
            told: list[Trial] = []
            results = await asyncio.gather(
                evaluate(one, suite, id="e", concurrency=1, on_trial=told.append), evaluate(other, suite, id="e", concurrency=1)
            )
            runs = [head.run_id for head in await one.list_runs()]
        assert results[0] == results[1]
        assert standings(results[0]) == {"passed": 12}
        assert sorted(runs) == sorted(trial.run_id for trial in results[0])
        assert len(a.goals) + len(b.goals) == 12
        assert a.goals and b.goals, "both worked"
        assert {(trial.case, trial.number) for trial in told} == {(trial.case, trial.number) for trial in results[0]}

    asyncio.run(run())


def test_what_another_process_works_on_is_waited_for_and_taken_over_when_that_one_stops(tmp_path: Path) -> None:
    url, suite = f"sqlite:///{tmp_path}/runs.db", suite_of(3, 1)

    async def run() -> None:
        gate, ended = Gate("1 and 1"), asyncio.Event()
        async with adding(url, Costly(gate)) as one, adding(url, taking := Costly()) as other:
            first = asyncio.create_task(evaluate(one, suite, id="e", concurrency=1))
            await gate.reached.wait()

            def told(trial: Trial) -> None:
                if trial.case == "2":
                    ended.set()

            second = asyncio.create_task(evaluate(other, suite, id="e", concurrency=1, on_trial=told))
            await ended.wait()
            assert taking.goals == ["2 and 1"] and not second.done()
            one.runtime.suspend("SIGTERM")
            with pytest.raises(Suspended):
                await first
            trials = await second
            assert (standings(trials), [trial.attempts for trial in trials]) == ({"passed": 3}, [1, 1, 1])
            assert taking.goals == ["2 and 1", "1 and 1"] and len(await other.list_runs()) == 3

    asyncio.run(run())


def test_one_process_has_a_trial_and_knows_what_was_kept_of_it(tmp_path: Path) -> None:
    url, key = f"sqlite:///{tmp_path}/runs.db", ("0", "", 1)

    async def run() -> None:
        async with adding(url, Costly()) as one, adding(url, Costly()) as other:
            begun = await begin(one, suite_of(1, 1), "e")
            a, b, same = Book(one, begun), Book(other, begun), Book(one, begun)
            await b.refresh()
            async with a.claimed(key):
                for book in (b, same):
                    with pytest.raises(RunBusy):
                        async with book.claimed(key):
                            pass
                await asyncio.gather(*(a.keep(Kept(trial=trial_at(n))) for n in range(1, 4)))
            assert not b.done(key)
            async with b.claimed(key):
                assert b.done(key) and b.next(key) == (4, trial_id("e", "", "0", 1, 3))
            assert len(await one.store.list_blobs(place_of("e"))) == 1, "what is kept at the same moment is written at once"

    asyncio.run(run())


def trial_at(attempt: int) -> Trial:
    """Return a trial as it is after so many attempts."""
    return Trial(case="0", cluster="0", variant="", number=1, run_id=f"r{attempt}", standing="passed", attempts=attempt)


def test_the_same_id_is_not_another_suite(tmp_path: Path) -> None:
    async def run() -> None:
        async with adding("ram:", Costly()) as engine:
            await evaluate(engine, suite_of(1, 1), id="e")
            with pytest.raises(ConfigError, match="'e' is of another suite"):
                await evaluate(engine, suite_of(1, 2), id="e")
            with pytest.raises(ConfigError, match=r"'\.\./e'"):
                await evaluate(engine, suite_of(1, 1), id="../e")

    asyncio.run(run())


def test_a_budget_holds_over_processes_and_restarts_and_the_rest_counts_as_not_run(tmp_path: Path) -> None:
    url, suite = f"sqlite:///{tmp_path}/runs.db", suite_of(10, 1, max_cost_usd=1.0)

    async def run() -> None:
        def stops(view: Any) -> None:
            if view.goal == "2 and 1" and not stopped.goals.count("stopped"):
                stopped.goals.append("stopped")
                engine.runtime.suspend("SIGTERM")

        stopped = Costly(stops)
        async with adding(url, stopped) as engine:
            with pytest.raises(Suspended):
                await evaluate(engine, suite, id="e", concurrency=1)
        planner = Costly()
        async with adding(url, planner) as other:
            trials = await evaluate(other, suite, id="e", concurrency=1)
        assert planner.goals == ["2 and 1", "3 and 1"]
        assert standings(trials) == {"passed": 4, "not_run": 6}
        figures = summarised("s", "e", trials).figures[""]
        assert (figures.not_run, figures.graded, figures.total_cost_usd, figures.pass_hat[1].value) == (6, 4, 1.0, None)

    asyncio.run(run())


def test_the_budget_is_of_this_evaluation_and_of_all_that_its_attempts_cost() -> None:
    """An attempt that failed does not know what its runs cost, a child's cost is part of its parent's, and `e-2` is another evaluation than `e`."""

    async def run() -> None:
        async with adding("ram:", Costly()) as engine:
            await evaluate(engine, suite_of(2, 1), id="e-2")
            begun = await begin(engine, suite_of(2, 1), "e")
            book = Book(engine, begun)
            assert await runs_of(engine.store, "e") == [] and len(await runs_of(engine.store, "e-2")) == 2
            assert (await controlling.standings(engine, begun)).cost_usd == 0
            name = trial_id("e", "", "0", 1)
            failed = Trial(case="0", cluster="0", variant="", number=1, run_id=name, standing="machinery", attempts=1)
            async with book.claimed(("0", "", 1)):
                await book.keep(Kept(trial=failed))
            assert book.spent({f"{name}.1": 0.5, f"{name}-user1": 0.25}) == 0.75
            assert all(is_of("e", f"{name}{end}") for end in ("", "-again2", "-again1.3", ".1", "-user1", "-review", "@tenant"))
            await engine.run(ADDER, "1 and 1", run_id=f"{name}.c0123456789ab")
            assert await runs_of(engine.store, "e") == []

    asyncio.run(run())


def test_retries_of_the_machinery_are_bounded_over_restarts(tmp_path: Path) -> None:
    url, suite = f"sqlite:///{tmp_path}/runs.db", suite_of(1, 1)

    async def run() -> None:
        async def fails(view: Any) -> None:
            raise PlannerFailed("the provider is away")

        async def stops(view: Any) -> None:
            if len(planner.goals) == 2:
                engine.runtime.suspend("SIGTERM")
                await asyncio.sleep(0)
            raise PlannerFailed("the provider is away")

        planner = Costly(stops)
        async with adding(url, planner) as engine:
            try:
                trials = await evaluate(engine, suite, id="e")
            except Suspended:
                trials = []
        again = Costly(fails)
        async with adding(url, again) as other:
            trials = await evaluate(other, suite, id="e")
            assert [(trial.standing, trial.attempts) for trial in trials] == [("machinery", 3)]
            calls = len(again.goals)
            assert trials == await evaluate(other, suite, id="e")
            assert len(again.goals) == calls, "nothing was begun again"
            assert summarised("s", "e", trials).figures[""].retried == 2

    asyncio.run(run())


# Told what to do ------------------------------------------------------------------------------------------------------------------------


class Gate:
    """Holds the runs of one goal until it is opened, and says when one is held."""

    def __init__(self, goal: str) -> None:
        self.goal, self.reached, self.opened = goal, asyncio.Event(), asyncio.Event()

    def __call__(self, view: Any) -> Any:
        """Hold."""
        if view.goal != self.goal:
            return None
        self.reached.set()
        return self.opened.wait()


@in_check
def test_what_is_in_progress_is_shown(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/runs.db"

    async def run() -> None:
        gate = Gate("1 and 1")
        async with adding(url, Costly(gate)) as engine, adding(url, Costly()) as looks:
            work = asyncio.create_task(evaluate(engine, suite_of(2, 1), id="e"))
            await gate.reached.wait()
            begun = await evaluation(looks)
            while not (found := await controlling.standings(looks, begun)).processes or found.ended != {"passed": 1}:
                await asyncio.sleep(0)
            (one,) = found.in_progress
            assert (found.status, found.trials, found.cost_usd) == ("running", 2, 0.25)
            assert (one.trial, one.status, one.attempt, one.where) == ("1/1", "running", 1, engine.runtime.parts.worker)
            assert controlling.key_of(begun, one.run_id) == controlling.key_of(begun, "1/1") == ("1", "", 1)
            with pytest.raises(UnknownName, match="trial of evaluation e"):
                controlling.key_of(begun, "1/2")
            gate.opened.set()
            await work
            assert (await controlling.standings(looks, await evaluation(looks))).status == "ended"

    asyncio.run(run())


def test_evaluations_whose_ids_begin_alike_have_nothing_in_common(tmp_path: Path) -> None:
    """Neither the cost of `nightly-2` nor the process that works on it counts for `nightly`."""

    async def run() -> None:
        gate = asyncio.Event()
        gate.set()
        async with adding(f"sqlite:///{tmp_path}/runs.db", Costly(lambda _: gate.wait())) as engine:
            await evaluate(engine, suite_of(2, 2), id="nightly-2")
            found = await evaluate(engine, suite_of(1, 1, max_cost_usd=0.5), id="nightly")
            assert standings(found) == {"passed": 1}
            begun, other = [await evaluation(engine, name) for name in ("nightly", "nightly-2")]
            assert [(await controlling.standings(engine, one)).cost_usd for one in (begun, other)] == [0.25, 1.0]
            gate.clear()
            await controlling.requeue(engine, begun, ("0", "", 1))
            await controlling.requeue(engine, other, ("0", "", 1))
            task = asyncio.create_task(evaluate(engine, suite_of(2, 2), id="nightly-2"))
            async with asyncio.timeout(30):
                while (
                    not (there := await controlling.standings(engine, await evaluation(engine, "nightly-2"))).in_progress
                    or not there.processes
                ):
                    await asyncio.sleep(0.02)
            mine = await controlling.standings(engine, await evaluation(engine, "nightly"))
            assert (mine.status, mine.processes, len(there.in_progress)) == ("stopped", (), 1)
            gate.set()
            await task

    asyncio.run(run())


def test_a_trial_in_progress_is_requeued_and_counted(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/runs.db"

    async def run() -> None:
        gate = Gate("1 and 1")
        planner = Costly(gate)
        async with adding(url, planner) as engine, adding(url, Costly()) as person:
            work = asyncio.create_task(evaluate(engine, suite_of(2, 1), id="e"))
            await gate.reached.wait()
            gate.reached.clear()
            assert await controlling.requeue(person, await evaluation(person), ("1", "", 1), by="ada") == 2
            await gate.reached.wait()  # the further attempt began
            gate.opened.set()
            trials = await work
            assert [(trial.standing, trial.attempts) for trial in trials] == [("passed", 1), ("passed", 2)]
            assert trials[1].run_id.endswith("-again1")
            before = (await person.load(trials[1].run_id.removesuffix("-again1"))).state
            assert (before.status, before.reason) == ("stopped", "cancelled")

    asyncio.run(run())


def test_an_ended_trial_is_requeued_and_run_by_whoever_works_next() -> None:
    async def run() -> None:
        planner = Costly()
        async with adding("ram:", planner) as engine:
            suite = suite_of(2, 1)
            first = await evaluate(engine, suite, id="e")
            assert await controlling.requeue(engine, await evaluation(engine), ("0", "", 1)) == 2
            assert (await evaluation(engine, open_only=True)).id == "e"
            again = await evaluate(engine, suite, id="e")
            assert [trial.attempts for trial in again] == [2, 1] and again[1] == first[1]
            assert sorted(planner.goals) == ["0 and 1", "0 and 1", "1 and 1"]

    asyncio.run(run())


def test_what_is_kept_is_put_together(tmp_path: Path) -> None:
    """Whoever looks at an evaluation lists what is kept of it for each trial."""

    async def run() -> None:
        async with adding(f"sqlite:///{tmp_path}/runs.db", Costly()) as engine:
            begun = await begin(engine, suite_of(1, 200), "e")
            book, other = Book(engine, begun), Book(engine, begun)
            for number in range(1, 201):
                one = Trial(case="0", cluster="0", variant="", number=number, run_id=f"r{number}", standing="passed", output="x" * 1000)
                await book.keep(Kept(trial=one))
            assert len(await engine.store.list_blobs(place_of("e"))) < 50
            await other.refresh()
            assert all(other.done(key) for key in begun.keys)

    asyncio.run(run())


def test_what_is_put_together_while_it_is_read_is_found() -> None:
    """A reader has the names of blobs that are gone when it comes to them: what they had is in a further one."""
    moved = list[int]()

    class Moving(RamStore):
        async def get_blob(self, run_id: str, key: str) -> bytes | None:
            if run_id == place_of("e") and not moved:
                moved.append(1)
                await keeps(2, 60)
            return await super().get_blob(run_id, key)

    async def keeps(first: int, last: int) -> None:
        for number in range(first, last + 1):
            one = Trial(case="0", cluster="0", variant="", number=number, run_id=f"r{number}", standing="passed", output="x" * 1000)
            await book.keep(Kept(trial=one))

    async def run() -> None:
        nonlocal book
        async with adding(Moving(), Costly()) as engine:
            begun = await begin(engine, suite_of(1, 60), "e")
            book, other = Book(engine, begun), Book(engine, begun)
            await keeps(1, 1)
            await other.refresh()
            assert moved and other.done(("0", "", 1))

    book: Any = None
    asyncio.run(run())


@pytest.mark.parametrize("whole", [False, True])
def test_a_cancelled_trial_is_counted_apart(tmp_path: Path, whole: bool) -> None:
    url = f"sqlite:///{tmp_path}/runs.db"

    async def run() -> None:
        gate = Gate("1 and 1")
        async with adding(url, Costly(gate)) as engine, adding(url, Costly()) as person:
            kept = asyncio.Event()
            work = asyncio.create_task(evaluate(engine, suite_of(4, 1), id="e", concurrency=1, on_trial=lambda trial: kept.set()))
            await gate.reached.wait()
            await kept.wait()  # the first one ended before
            count = await controlling.cancel(person, await evaluation(person), None if whole else ("1", "", 1))
            gate.opened.set()  # a model's answer that comes too late changes nothing
            trials = await work
            assert (count, standings(trials)) == ((3, {"passed": 1, "cancelled": 3}) if whole else (1, {"passed": 3, "cancelled": 1}))
            figures = summarised("s", "e", trials).figures[""]
            assert figures.passed.value == 1.0 and figures.cancelled == count
            with pytest.raises(ConfigError, match="1/1 has ended: cancelled"):
                await controlling.cancel(person, await evaluation(person), ("1", "", 1))
            with pytest.raises(ConfigError, match="evaluation e has ended; nothing is left to cancel"):
                await controlling.cancel(person, await evaluation(person))

    asyncio.run(run())


def test_a_run_that_began_while_its_trial_was_cancelled_is_ended_by_its_process(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/runs.db"

    async def run() -> None:
        gate = Gate("1 and 1")
        async with adding(url, Costly(gate)) as engine, adding(url, Costly()) as person:
            work = asyncio.create_task(evaluate(engine, suite_of(2, 1), id="e"))
            await gate.reached.wait()
            order = Order(
                kind="cancel", at=datetime(2026, 3, 1, tzinfo=UTC), trial=("1", "", 1)
            )  # and nothing else, as before there was a run
            await Book(person, await evaluation(person)).order(order)
            assert standings(await work) == {"passed": 1, "cancelled": 1}, "the gate was never opened"

    asyncio.run(run())


def test_a_cancelled_evaluation_that_nobody_works_on_stays_cancelled(tmp_path: Path) -> None:
    url, suite = f"sqlite:///{tmp_path}/runs.db", suite_of(3, 1)

    async def run() -> None:
        planner = Costly(lambda view: engine.runtime.suspend("SIGTERM") and None)
        async with adding(url, planner) as engine:
            with pytest.raises(Suspended):
                await evaluate(engine, suite, id="e", concurrency=1)
        async with adding(url, again := Costly()) as other:
            assert await controlling.cancel(other, await evaluation(other)) == 3
            trials = await evaluate(other, suite, id="e")
            assert standings(trials) == {"cancelled": 3} and not again.goals
            assert [head.status for head in await other.list_runs()] == ["stopped"]

    asyncio.run(run())


def test_ended_trials_are_graded_again_and_those_in_progress_by_the_new_graders(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/runs.db"
    wrong = Suite(name="s", cases=tuple(Case(id=str(n), goal=f"{n} and 1", expected=7) for n in range(2)), graders=({"kind": "numeric"},))
    right = msgspec.structs.replace(wrong, cases=suite_of(2, 1).cases)

    async def run() -> None:
        gate = Gate("1 and 1")
        async with adding(url, planner := Costly(gate)) as engine, adding(url, Costly()) as person:
            ended = asyncio.Event()
            work = asyncio.create_task(evaluate(engine, wrong, id="e", on_trial=lambda trial: ended.set()))
            await gate.reached.wait()
            await ended.wait()
            begun = await evaluation(person)
            assert standings(await controlling.results(person, begun)) == {"failed": 1, "not_run": 1}
            with pytest.raises(ConfigError, match="1/1 has not ended"):
                await controlling.regrade(person, begun, ("1", "", 1))
            assert await controlling.regrade(person, begun, suite=right, by="ada") == 1
            gate.opened.set()
            trials = await work
            assert standings(trials) == {"passed": 2} and len(planner.goals) == 2, "nothing was run again"
            alone = msgspec.structs.replace(right, graders=({"kind": "contains", "expected": "nothing like this"},))
            assert await controlling.regrade(person, begun, ("0", "", 1), suite=alone) == 1
            assert [trial.standing for trial in await evaluate(engine, wrong, id="e")] == ["failed", "passed"]

    asyncio.run(run())


def test_a_name_that_two_trials_have_is_no_name() -> None:
    """Trial 1 of the case `a/b`, and trial 1 of the case `a` with the variant `b`."""
    cases = (Case(id="a", goal="x"), Case(id="a/b", goal="x"))
    begun = Begun(id="e", suite=Suite(name="s", cases=cases, variants={"": Variant(), "b": Variant()}), at=datetime.now(UTC))
    with pytest.raises(ConfigError, match="'a/b/1' is the name of 2 trials"):
        controlling.key_of(begun, "a/b/1")
    assert controlling.key_of(begun, trial_id("e", "b", "a", 1)) == ("a", "b", 1)


def test_what_is_ordered_while_the_last_trial_ends_counts_too(tmp_path: Path) -> None:
    """Its process had not looked yet. Nothing is run again, and no trial counts as not run."""
    url = f"sqlite:///{tmp_path}/runs.db"
    wrong = Suite(name="s", cases=tuple(Case(id=str(n), goal=f"{n} and 1", expected=7) for n in range(2)), graders=({"kind": "numeric"},))
    right = msgspec.structs.replace(wrong, cases=suite_of(2, 1).cases)

    async def run() -> None:
        async def orders(view: Any) -> None:
            begun = await evaluation(person)
            await Book(person, begun).order(Order(kind="regrade", at=datetime.now(UTC), suite=right))

        planner = Costly(lambda view: orders(view) if view.goal == "1 and 1" else None)
        async with adding(url, planner) as engine, adding(url, Costly()) as person:
            trials = await evaluate(engine, wrong, id="e", concurrency=1)
            assert standings(trials) == {"passed": 2} and len(planner.goals) == 2
            assert standings(await controlling.results(person, await evaluation(person))) == {"passed": 2}

    asyncio.run(run())


# What the store says --------------------------------------------------------------------------------------------------------------------


def test_what_others_wrote_into_the_store_starts_no_command_and_is_named_where_it_cannot_be_read(tmp_path: Path) -> None:
    async def run() -> None:
        async with adding("ram:", Costly()) as engine:
            suite = suite_of(1, 1)
            begun = await begin(engine, suite, "e")
            order = {"kind": "regrade", "at": "2026-03-01T00:00:00Z", "suite": {"name": "s", "graders": [
                {"kind": "command", "command": ["touch", str(tmp_path / "done")]}, {"kind": "no such thing"}]}}  # fmt: skip
            await engine.store.put_blob(place_of("e"), "order-1", json.dumps(order).encode())
            (trial,) = await evaluate(engine, suite, id="e")
            assert trial.standing == "unknown" and "no such thing" in trial.grades[0].reason
            order["suite"] = {"name": "s", "graders": [{"kind": "command", "command": ["touch", str(tmp_path / "done")]}]}
            await engine.store.put_blob(place_of("e"), "order-2", json.dumps(order).encode())
            (trial,) = await evaluate(engine, suite, id="e")
            assert trial.standing == "unknown" and "was not started with the command" in trial.grades[0].reason
            assert not (tmp_path / "done").exists()
            await engine.store.put_blob(INDEX, "f", msgspec.json.encode(begun))
            known, broken = await evaluations(engine)
            assert [one.id for one in known] == ["e"] and "is 'e' by its own words" in str(broken["f"]), (
                "one that cannot be read hides no other"
            )
            await engine.store.put_blob(INDEX, "f", b"{")
            with pytest.raises(CorruptLog, match="evaluation 'f' cannot be read"):
                await evaluation(engine, "f")

    asyncio.run(run())


# Workspaces -----------------------------------------------------------------------------------------------------------------------------

IN_FILES = Suite(
    name="files",
    cases=(Case(id="1", goal="1 and 1", files={"todo.txt": "1 and 1"}),),
    graders=({"kind": "file", "path": "done.txt", "expected": "yes"},),
)


class Writing:
    """Writes a file into the workspace, says that it did, and answers."""

    def __init__(self, written: Callable[[], Any] = lambda: None) -> None:
        self.written = written

    async def plan(self, view: Any) -> Plan:
        """Return the next step."""
        if not view.results:
            return Plan(actions=(ToolCall(tool="write_file", args={"path": "done.txt", "content": "yes"}),))
        if (done := self.written()) is not None:
            await done
        return Plan(actions=(FinalAnswer(content="done"),))


def in_workspaces(url: str, planner: Any, seen: list[Path]) -> tuple[Engine, Callable[[Path], Engine]]:
    """Return an engine, and what gives one for a workspace."""
    agent = Agent(name="writer", tools=("write_file",))

    def engine_for(workspace: Path) -> Engine:
        seen.append(workspace)
        return Engine(store=url, agents=[agent], planner=planner, workspace=workspace)

    return Engine(store=url, agents=[agent], planner=planner, workspace="."), engine_for


@in_check
@pytest.mark.parametrize("gone", [False, True])
def test_a_trial_goes_on_in_its_workspace_and_is_begun_anew_where_that_is_gone(tmp_path: Path, gone: bool) -> None:
    url = f"sqlite:///{tmp_path}/runs.db"

    async def run() -> None:
        reached, seen = asyncio.Event(), list[Path]()

        def holds() -> Any:
            reached.set()
            return asyncio.Event().wait()

        engine, engine_for = in_workspaces(url, Writing(holds), seen)
        async with engine:
            work = asyncio.create_task(evaluate(engine, IN_FILES, id="e", engine_for=engine_for))
            await reached.wait()
            work.cancel()
            await asyncio.gather(work, return_exceptions=True)
        assert (seen[0] / "done.txt").read_text() == "yes" and (seen[0] / "todo.txt").read_text() == "1 and 1"
        if gone:
            shutil.rmtree(seen[0].parent)
        other, other_for = in_workspaces(url, Writing(), seen)
        async with other:
            (trial,) = await evaluate(other, IN_FILES, id="e", engine_for=other_for)
            assert trial.standing == "passed", trial
            assert trial.attempts == (2 if gone else 1)
            assert (seen[0] == seen[1]) is not gone
            assert not any(path.parent.exists() for path in seen), "a workspace does not outlive its trial"
            assert {head.status for head in await other.list_runs()} == ({"completed", "stopped"} if gone else {"completed"})
            assert await controlling.regrade(other, await evaluation(other), ("1", "", 1)) == 1
            (again,) = await controlling.results(other, await evaluation(other))
            assert again.grades == trial.grades, "the files are gone, and what their graders said holds"

    asyncio.run(run())


def test_a_finished_trial_whose_workspace_is_gone_is_not_run_again(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/runs.db"

    async def run() -> None:
        seen = list[Path]()
        engine, engine_for = in_workspaces(url, Writing(), seen)
        async with engine:
            (trial,) = await evaluate(engine, IN_FILES, id="e", engine_for=engine_for)
            assert trial.standing == "passed"
            for key in await engine.store.list_blobs(place_of("e")):  # as if the process had died before it kept the trial
                await engine.store.delete_blob(place_of("e"), key)
            (again,) = await evaluate(engine, IN_FILES, id="e", engine_for=engine_for)
            assert (again.standing, again.attempts, again.run_id) == ("unknown", 1, trial.run_id)
            assert "no workspace" in again.grades[0].reason and len(seen) == 1

    asyncio.run(run())


def test_a_workspace_that_the_store_names_counts_only_where_the_directory_says_the_same(tmp_path: Path) -> None:
    async def run() -> None:
        store = open_store("ram:")
        await store.open()
        (tmp_path / "files").mkdir()
        (tmp_path / "files" / "precious").write_text("x")
        for mark in ("", "another run"):
            (tmp_path / "trial").write_text(mark)
            await store.put_blob("p", "files-r", str(tmp_path).encode())
            assert await workspaces.found(store, "p", "r") is None
            await workspaces.removed(store, "p", "r")
            assert (tmp_path / "files" / "precious").exists()
        for odd in (b"", b"\xff\xfe", b"/dev/null", b"a\0b", b"x" * 10_000):
            await store.put_blob("p", "files-r", odd)
            assert await workspaces.found(store, "p", "r") is None

    asyncio.run(run())
