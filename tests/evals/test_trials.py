"""Evaluations on real stores: each trial a run, nothing run twice, failures of the machinery apart, graders that fail."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest

from amounts import in_check
from detent import Agent, Engine, FinalAnswer, ToolCall, tool
from detent.core.codec import encode_event, read_log, seal, tombstone
from detent.core.errors import ConfigError, CorruptLog, PlannerFailed
from detent.core.fold import fold
from detent.evals import Case, Evaluation, Suite, User, Variant, compare, evaluate, folding, grade_runs, load_suite, summarised
from detent.evals import trials as trials_module
from detent.evals.folding import ended
from detent.evals.grades import Grade, Graded, Grader
from detent.evals.reports import _share  # pyright: ignore[reportPrivateUsage]
from detent.evals.suites import load_cases
from detent.evals.trials import Trial, traced
from detent.evals.writing import html
from detent.history.traces import Tracer
from detent.ports import RunQuery
from detent.stores import open_store
from detent.testing import Crash, CrashingStore, FakeClock, ScriptedPlanner

BEGUN: Counter[str] = Counter()


@tool(side_effect="write")
def note(text: str) -> str:
    """Write something down."""
    BEGUN[text] += 1
    return f"noted {text}"


class Sums:
    """Adds two numbers; every third sum is wrong. Notes it first."""

    async def plan(self, view: Any) -> Any:
        """Return the next step."""
        a, b = (int(word) for word in view.goal.split(" and "))
        wrong = (a + b) % 3 == 0
        step: Any = FinalAnswer(content=str(a + b + wrong)) if view.results else ToolCall(tool="note", args={"text": f"{view.run_id}"})
        return await ScriptedPlanner([step]).plan(view)


ADDER = Agent(name="adder", tools=[note])
SUITE = Suite(
    name="sums",
    cases=tuple(Case(id=f"{n} and 1", goal=f"{n} and 1", expected=n + 1) for n in range(6)),
    graders=({"kind": "numeric"}, {"kind": "no_repeats"}, {"kind": "at_most", "most": 1}),
    trials=3,
)


def engine_of(store: Any, planner: Any = None, **options: Any) -> Engine:
    """Return an engine with the adder."""
    return Engine(store=store, agents=[ADDER], planner=planner or Sums(), **options)


def test_without_an_id_another_agent_is_another_evaluation() -> None:
    async def run() -> None:
        async with engine_of("ram:") as engine:
            first = await evaluate(engine, SUITE)
            assert {t.run_id for t in await evaluate(engine, SUITE)} == {t.run_id for t in first}
        other = Agent(name="adder", tools=[note], instructions="Add slowly.")
        async with Engine(store="ram:", agents=[other], planner=Sums()) as engine:
            assert not {t.run_id for t in await evaluate(engine, SUITE)} & {t.run_id for t in first}

    asyncio.run(run())


@pytest.mark.parametrize("user", [None, User(script=("5 and 1", "6 and 1"))])
def test_the_latency_has_the_last_turn(user: User | None) -> None:
    """The clock of a run is read when a turn begins."""
    clock = FakeClock()

    class Slow(Sums):
        async def plan(self, view: Any) -> Any:
            clock.advance(3)
            return await super().plan(view)

    async def run() -> None:
        suite = Suite(name="slow", cases=(Case(id="a", goal="4 and 1", expected=5, user=user),), graders=({"kind": "completed"},))
        async with engine_of("ram:", Slow(), clock=clock) as engine:
            (trial,) = await evaluate(engine, suite)
            assert (trial.turns, trial.latency_s) == ((2, 6.0) if user is None else (6, 18.0))
            (again,) = await grade_runs(engine, [{"kind": "completed"}], RunQuery(starts_with=(trial.run_id,)))
            assert again.latency_s == 6.0

    asyncio.run(run())


def test_every_trial_is_a_run_and_the_figures_are_those_of_the_trials(tmp_path: Path) -> None:
    async def run() -> None:
        async with engine_of(f"sqlite:///{tmp_path}/runs.db") as engine:
            trials = await evaluate(engine, SUITE)
            assert len(trials) == 18 and {trial.run_id for trial in trials} == {head.run_id for head in await engine.list_runs()}
            found = summarised("sums", "one", trials).figures[""]
            assert (found.graded, found.passed.value) == (18, 4 / 6)
            assert found.pass_hat[3].value == found.pass_at[3].value == 4 / 6
            assert found.within == 0.0 and found.reasons == {"final_answer": 18}
            assert found.graders["numeric"] == {"passed": 12, "failed": 6} and found.graders["no_repeats"] == {"passed": 18}
            failed = next(trial for trial in trials if trial.standing == "failed")
            assert "against" in failed.grades[0].reason and failed.grades[0].excerpt

    asyncio.run(run())


def test_the_same_evaluation_goes_on_and_runs_nothing_twice(tmp_path: Path) -> None:
    """It is killed at a random write again and again."""

    async def run() -> None:
        BEGUN.clear()
        kills, at = 0, 3
        while True:
            inner = open_store(f"sqlite:///{tmp_path}/runs.db")
            store = CrashingStore(inner, at=at)
            engine = engine_of(store)
            try:
                trials = await evaluate(engine, SUITE, id="x", concurrency=3)
                break
            except* Crash:
                kills, at = kills + 1, at + 11
            finally:
                with contextlib.suppress(Crash):
                    await engine.close()
                await inner.close()
        assert kills >= 4 and len(trials) == 18
        assert set(BEGUN.values()) == {1}, "no note was written twice"
        async with engine_of(f"sqlite:///{tmp_path}/runs.db") as engine:
            again = await evaluate(engine, SUITE, id="x")
            assert [trial.run_id for trial in again] == [trial.run_id for trial in trials] and set(BEGUN.values()) == {1}

    asyncio.run(run())


def test_a_failure_of_the_machinery_is_begun_anew_and_is_none_of_the_agent() -> None:
    class Flaky(Sums):
        """Fails the first time that it sees a run, and always for one case."""

        def __init__(self) -> None:
            self.seen: set[str] = set()

        async def plan(self, view: Any) -> Any:
            """Return the next step."""
            if view.goal.startswith("2") or (not view.run_id.endswith(("-again1", "-again2")) and view.goal.startswith("1")):
                raise PlannerFailed("the provider is away")
            return await super().plan(view)

    async def run() -> None:
        async with engine_of("ram:", Flaky()) as engine:
            trials = await evaluate(engine, SUITE.only(limit=4))
            found = summarised("sums", "one", trials).figures[""]
            assert (found.machinery, found.graded) == (3, 9) and found.pass_hat[3].value is None
            assert {trial.attempts for trial in trials if trial.case == "1 and 1"} == {2}
            assert {trial.standing for trial in trials if trial.case == "2 and 1"} == {"machinery"}

    asyncio.run(run())


def test_a_grader_that_raises_does_not_know_and_ends_nothing() -> None:
    def breaks(grader: Grader, of: Graded) -> Grade:
        raise RuntimeError(f"no idea of {of.case.id}")

    async def run() -> None:
        async with engine_of("ram:") as engine:
            suite = Suite(name="x", cases=SUITE.cases[:3], graders=({"kind": "breaks"}, {"kind": "numeric"}))
            trials = await evaluate(engine, suite, graders={"breaks": breaks})
            standings = {trial.case: trial.standing for trial in trials}
            assert standings == {"0 and 1": "unknown", "1 and 1": "unknown", "2 and 1": "failed"}
            assert trials[0].grades[0].reason == "RuntimeError: no idea of 0 and 1"

    asyncio.run(run())


def test_an_approval_is_given_and_a_question_answered_from_the_script(tmp_path: Path) -> None:
    from detent import AskUser

    @tool(side_effect="destructive")
    def wipe() -> str:
        """Wipe it."""
        return "wiped"

    async def run() -> None:
        class Asks:
            """Asks, wipes, and is done."""

            async def plan(self, view: Any) -> Any:
                """Return the next step."""
                steps: list[Any] = [AskUser(question="Which one?"), ToolCall(tool="wipe"), FinalAnswer(content="done")]
                return await ScriptedPlanner([steps[view.iteration - 1]]).plan(view)

        planner = Asks()
        async with Engine(store=f"sqlite:///{tmp_path}/runs.db", agents=[Agent(name="a", tools=[wipe])], planner=planner) as engine:
            case = Case(id="1", goal="Wipe", user=User(script=("that one",)), expected="done")
            (trial,) = await evaluate(engine, Suite(name="x", cases=(case,), graders=({"kind": "exact"},)))
            assert (trial.standing, trial.tool_calls) == ("passed", 1)
            no = Case(id="2", goal="Wipe", expected="done")
            (open_one,) = await evaluate(engine, Suite(name="y", cases=(no,), graders=({"kind": "exact"},)))
            assert open_one.standing == "open"

    asyncio.run(run())


def test_stored_runs_are_graded_without_running_anything(tmp_path: Path) -> None:
    async def run() -> None:
        async with engine_of(f"sqlite:///{tmp_path}/runs.db") as engine:
            await evaluate(engine, SUITE)
            before = len(await engine.list_runs())
            trials = await grade_runs(
                engine, [{"kind": "grounded"}, {"kind": "cel", "expected": "usage.tool_calls <= 1 && 'note' in trace.tools"}]
            )
            assert {trial.grades[1].verdict for trial in trials} == {"passed"} and len(await engine.list_runs()) == before == 18
            loose = {trial.grades[0].reason for trial in trials if trial.grades[0].verdict == "failed"}
            assert loose and all(reason.startswith("not observed: ") for reason in loose)

    asyncio.run(run())


def test_a_fork_is_graded_with_what_it_took_from_its_parent_and_a_damaged_log_ends_nothing(tmp_path: Path) -> None:
    """A fork does not repeat its parent's records, and its grade rests on them; it ends where `load` ends."""

    async def run() -> None:
        async with engine_of(f"sqlite:///{tmp_path}/runs.db") as engine:
            await engine.run(ADDER, "1 and 1", run_id="parent")
            at = next(r.envelope.seq for r in await engine.records("parent") if type(r.event).__name__ == "ToolFinished")
            fork = (await engine.fork("parent", at=at)).run_id
            graders = [{"kind": "tools_used", "expected": ["note"]}, {"kind": "at_most", "most": 1}]
            found = {trial.run_id: trial for trial in await grade_runs(engine, graders)}
            assert {trial.standing for trial in found.values()} == {"passed"} and found.keys() == {"parent", fork}
            records, tracer = await traced(engine.store, fork)
            assert tracer.state == (await engine.load(fork)).state and {r.envelope.run for r in records} == {"parent", fork}
        with sqlite3.connect(tmp_path / "runs.db") as db:
            db.execute(
                "UPDATE records SET data = CAST(replace(data, '1 and 1', '1 and 2') AS BLOB) WHERE key = (SELECT min(key) FROM records)"
            )
        async with engine_of(f"sqlite:///{tmp_path}/runs.db") as engine:
            await engine.run(ADDER, "3 and 1", run_id="sound")
            after = {trial.run_id: trial for trial in await grade_runs(engine, graders)}
            assert {name: trial.standing for name, trial in after.items()} == {"parent": "machinery", fork: "machinery", "sound": "passed"}
            assert "is damaged at record 1: its digest" in after["parent"].error

    asyncio.run(run())


@pytest.mark.parametrize("store", ["ram:", "sqlite:///{}/runs", "file:{}"])
def test_the_state_of_this_process_is_graded_only_if_it_is_that_of_the_log(store: str, tmp_path: Path) -> None:
    """What graders see is the same whether the log is folded or not. A state that the log does not end with, and one of a fork, is not used."""

    async def run() -> None:
        async with engine_of(store.format(tmp_path)) as engine:
            made = (await engine.run(ADDER, "1 and 1", run_id="one")).state
            other = (await engine.run(ADDER, "3 and 1", run_id="two")).state
            records, read = await ended(engine.store, "one", made) or ([], None)
            again, tracer = await traced(engine.store, "one")
            assert read is not None and read.state is made
            assert (records, read.state, read.calls, read.trace()) == (again, tracer.state, tracer.calls, tracer.trace())
            assert [(turn.calls, turn.events) for turn in read.iterations] == [(turn.calls, turn.events) for turn in tracer.iterations]
            for stale in (fold(records[:-1]), other, msgspec.structs.replace(made, digest="")):
                assert await ended(engine.store, "one", stale) is None
            fork = (await engine.fork("one", at=len(records) - 1)).run_id
            forked = (await engine.resume(fork)).state
            assert await ended(engine.store, fork, forked) is None and (await traced(engine.store, fork))[1].state == forked
            await engine.erase("two")
            assert await ended(engine.store, "two", other) is None

    asyncio.run(run())


def test_a_state_behind_which_a_snapshot_may_be_is_folded_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        async with engine_of("ram:") as engine:
            made = (await engine.run(ADDER, "1 and 1", run_id="one")).state
            monkeypatch.setattr(folding, "EVERY", made.seq)
            assert await ended(engine.store, "one", made) is None
            monkeypatch.setattr(folding, "EVERY", made.seq + 1)
            assert await ended(engine.store, "one", made) is not None

    asyncio.run(run())


def test_a_log_that_was_changed_after_its_run_ended_is_no_trial_that_passed(tmp_path: Path) -> None:
    """A changed record and a missing end are found, although this process knows how the run ended; another log with sound digests is what is graded."""
    path = tmp_path / "runs.db"

    async def run() -> None:
        async with engine_of(f"sqlite:///{path}") as engine:
            made = (await engine.run(ADDER, "1 and 1", run_id="one")).state
            known = await engine.store.read("one")
            for change, why in (
                ("UPDATE records SET data = CAST(replace(data, 'noted', 'wrote') AS BLOB)", "its digest does not match"),
                ("DELETE FROM records WHERE key = (SELECT max(key) FROM records)", "the record is missing"),
            ):
                with sqlite3.connect(path) as db:
                    kept = db.execute("SELECT key, data FROM records").fetchall()
                    db.execute(change)
                with pytest.raises(CorruptLog, match=why):
                    await ended(engine.store, "one", made)
                with sqlite3.connect(path) as db:
                    db.executemany("INSERT OR REPLACE INTO records (key, data) VALUES (?, ?)", kept)
            with sqlite3.connect(path) as db:
                db.execute("UPDATE records SET data=? WHERE data=?", (tombstone(known[4]), known[4]))
            assert await ended(engine.store, "one", made) is None
            previous, lines = "", list[bytes]()
            for record in read_log("one", known):
                body = encode_event(record.event).replace(b"noted", b"wrote")  # type: ignore[arg-type]
                line, previous = seal(record.envelope, body, previous=previous, salt="00")
                lines.append(line)
            with sqlite3.connect(path) as db:
                keys = [key for (key,) in db.execute("SELECT key FROM records ORDER BY key")]
                db.executemany("UPDATE records SET data=? WHERE key=?", [*zip(lines, keys, strict=True)])
                db.execute("UPDATE runs SET head = CAST(replace(head, ?, ?) AS BLOB)", (made.digest, previous))
            _, tracer = await ended(engine.store, "one", made) or await traced(engine.store, "one")
            assert isinstance(tracer, Tracer) and [call.output for call in tracer.calls.values()] == ["wrote one"]

    asyncio.run(run())


@in_check
def test_many_runs_are_read_by_pages_and_graded_alike_by_several_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        async with engine_of(f"sqlite:///{tmp_path}/runs.db") as engine:
            await evaluate(engine, SUITE)
            monkeypatch.setattr(trials_module, "PAGE", 4)
            graders = [{"kind": "cel", "expected": "size(trace.tools) == 1"}, {"kind": "grounded"}]
            here = await grade_runs(engine, graders)
            assert [trial.run_id for trial in here] == [head.run_id for head in await engine.list_runs()] and len(here) == 18
            assert [trial.run_id for trial in await grade_runs(engine, graders, RunQuery(limit=6))] == [t.run_id for t in here[:6]]
            monkeypatch.setattr(trials_module, "traced", None)  # nothing is read in this process
            assert await grade_runs(engine, graders, processes=2) == here

    asyncio.run(run())


def test_two_versions_are_compared_in_one_word() -> None:
    class Right(Sums):
        """Adds without mistakes."""

        async def plan(self, view: Any) -> Any:
            """Return the next step."""
            a, b = (int(word) for word in view.goal.split(" and "))
            return await ScriptedPlanner([FinalAnswer(content=str(a + b))]).plan(view)

    async def run() -> None:
        suite = Suite(
            name="s", cases=tuple(Case(id=str(n), goal=f"{n} and 1", expected=n + 1) for n in range(30)), graders=({"kind": "numeric"},)
        )
        async with engine_of("ram:") as one, engine_of("ram:", Right()) as other:
            a, b = await evaluate(one, suite), await evaluate(other, suite)
        better, worse, same = compare(a, b), compare(b, a), compare(a, a, margin=0.2)
        assert (better.word, worse.word, same.word) == ("better", "worse", "tied")
        assert better.told == "b is better" and len(better.gained) == 10 and not better.lost
        few = compare(a[:4], b[:4])
        assert few.word == "not enough data" and (few.metrics[0].more_clusters or 0) > 0

    asyncio.run(run())


CASES = {
    "cases.jsonl": '{"id": "a", "goal": "2 and 1", "expected": 3}\n{"question": "1 and 1", "answer": 2, "level": "easy"}\n',
    "cases.json": '{"rows": [{"row": {"id": "a", "goal": "2 and 1", "expected": 3}}, {"row": {"input": "1 and 1", "target": 2, "level": "easy"}}]}',
    "cases.csv": "id,goal,expected,level\na,2 and 1,3,\n2,1 and 1,2,easy\n",
    "cases.toml": '[[cases]]\nid = "a"\ngoal = "2 and 1"\nexpected = 3\n[[cases]]\nprompt = "1 and 1"\nexpected_output = 2\nlevel = "easy"\n',
    "cases.yaml": "- {id: a, goal: 2 and 1, expected: 3}\n- {inputs: 1 and 1, expected: 2, level: easy}\n",
}


@pytest.mark.parametrize("name", CASES)
def test_cases_come_from_files_of_many_kinds(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text(CASES[name])
    cases = load_cases(tmp_path / name)
    assert [(case.id, case.goal) for case in cases] == [("a", "2 and 1"), ("2", "1 and 1")]
    assert cases[1].variables["level"] == "easy" and float(cases[1].expected) == 2
    (tmp_path / "suite.toml").write_text(
        f'name = "s"\ntrials = 2\ncases = "{name}"\n[[graders]]\nkind = "numeric"\n[variants.now]\nagent = "adder"\n'
    )
    suite = load_suite(tmp_path / "suite.toml")
    assert (suite.trials, len(suite.cases), suite.variants) == (2, 2, {"now": Variant(agent="adder")})


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("name = 1", "name"), ("name = 's'", "no cases"), ("name = 's'\ncases = 'none.jsonl'", "cannot be read"), ("[", "not TOML"),
        ("name = 's'\n[[cases]]\nid = 'a'\ngoal = 'x'\n[[cases]]\nid = 'a'\ngoal = 'y'", "two cases have the id 'a'"),
        ("name = 's'\n[[cases]]\nid = 'a'\ngoal = 'x'\nfiles = {'../x' = 'y'}", "outside the workspace"), ("name = 's'\ntrails = 3", "trails"),
        ("name = 's'\n[[cases]]\nid = 'a'\ngoal = 'x'\nfiles = {'x' = 'y', 'x/z' = 'y'}", "folder of another"),
        ("name = 's'\n[[cases]]\nid = 'a'\ngoal = 'x'\nfiles = {'' = 'y'}", "cannot be one"),
        ("name = 's'\n[[cases]]\nid = 'a'\ngoal = 'x'\nfiles = {\"a\\u0000\" = 'y'}", "cannot be one"),
        ("name = 's'\n[variants]\n", "no variants"), ("name = 's'\nmax_cost_usd = -1.0", "max_cost_usd is -1"),
        ("name = 's'\n[variants.x]\nrate = 2.0", "rate is 2"),
    ],
)  # fmt: skip
def test_a_wrong_suite_is_named(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "suite.toml").write_text(text)
    with pytest.raises(ConfigError, match=said):
        load_suite(tmp_path / "suite.toml")


def test_an_unknown_grader_is_named_before_anything_runs() -> None:
    async def run() -> None:
        async with engine_of("ram:") as engine:
            with pytest.raises(ConfigError, match=r"no grader 'numerik'.*numeric"):
                await evaluate(engine, Suite(name="x", cases=SUITE.cases, graders=({"kind": "numerik"},)))
            assert await engine.list_runs() == []

    asyncio.run(run())


def test_a_result_is_read_back(tmp_path: Path) -> None:
    async def run() -> None:
        async with engine_of("ram:") as engine:
            made = summarised("sums", "one", await evaluate(engine, SUITE))
        made.write(tmp_path / "r.json")
        assert Evaluation.read(tmp_path / "r.json") == made
        (tmp_path / "r.json").write_text('{"schema": 2}')
        with pytest.raises(ConfigError, match="schema 2"):
            Evaluation.read(tmp_path / "r.json")

    asyncio.run(run())


def test_a_result_that_nests_without_end_is_no_result(tmp_path: Path) -> None:
    (tmp_path / "deep.json").write_text('{"schema": 1, "trials": ' + "[" * 100_000 + "]" * 100_000 + "}")
    with pytest.raises(ConfigError, match="not a result of an evaluation"):
        Evaluation.read(tmp_path / "deep.json")


def test_a_result_that_somebody_wrote_otherwise_is_shown_or_refused_and_breaks_nothing(tmp_path: Path) -> None:
    one = Trial(case="a", cluster="a", variant="", number=1, run_id="r", standing="passed", latency_s=1.0)
    odd = (msgspec.structs.replace(one, latency_s=-5.0), msgspec.structs.replace(one, cost_usd=1e308, turns=10**18))
    found = summarised("s", "e", [one, *odd])
    found.write(tmp_path / "odd.json")
    assert "<svg" in html(Evaluation.read(tmp_path / "odd.json"))
    msgspec.structs.replace(found, figures={}).write(tmp_path / "none.json")
    with pytest.raises(ConfigError, match="no figures of it"):
        Evaluation.read(tmp_path / "none.json")


@pytest.mark.parametrize("share", [0.1, 0.3, 1 / 3, 0.7])
def test_clusters_that_are_alike_have_an_interval_whatever_floats_add_up_to(share: float) -> None:
    """Each of three to thirty cases has the same pass^k. The sum of 0.1 and 0.1 and 0.1 is not 0.3, which is no spread."""
    for cases in range(3, 31):
        found = _share([[share]] * cases)
        assert found.low is not None and found.high is not None and found.high - found.low > 0.1, (cases, found)
