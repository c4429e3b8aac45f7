"""Text that no store can keep and numbers that JSON cannot say: refused by name where they come in, never a traceback, never a silent null."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from detent import Agent, AskUser, Engine, FinalAnswer, Host, Plan, Schedule, ToolCall, View
from detent.cli.main import run
from detent.core.errors import ConfigError, RunNotFound
from detent.core.events import EffectRecorded, NoteWritten, PlanRejected
from detent.core.state import KernelState, transition
from detent.kernel.act import act
from detent.kernel.context import KernelContext
from detent.kernel.kernel import make_kernel
from detent.kernel.think import think
from detent.ports import RunQuery, Signal, StrategyRun, json_problem, strategy
from detent.testing import ScriptedPlanner
from kernel.runs import END, Desk, ran, run_async
from laws.places import PurePlanner

HALF = "half \ud800"
NAN = float("nan")
ASK = AskUser(question="Which?")


@pytest.mark.parametrize("kind", ["ram", "sqlite", "file", "postgresql"])
def test_text_that_no_store_can_keep_is_refused_at_the_door(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    """Half a surrogate pair, or a NUL in a name: `ConfigError` names the field, a run that is called so is not there, nothing is recorded."""
    url = {"ram": "ram:", "sqlite": f"sqlite:///{tmp_path}/runs.db", "file": f"file:{tmp_path}/runs"}.get(kind) or request.getfixturevalue(
        "postgres_url"
    )
    plain = Agent(name="a", tools=[])

    async def main() -> None:
        async with Engine(store=url, planner=ScriptedPlanner([ASK]), approver="caller") as engine:
            asked = await engine.run(plain, "go", run_id="asked")
            attempts: dict[str, Callable[[], Any]] = {
                "goal": lambda: engine.run(plain, HALF),
                "run id": lambda: engine.run(plain, "go", run_id=HALF),
                r"agent\.name": lambda: engine.run(Agent(name="a\0b"), "go"),
                "instructions": lambda: engine.run(Agent(name="a", instructions=HALF), "go"),
                r"meta\.x\[1\]\.y": lambda: engine.run(Agent(name="a", meta={"x": [1, {"y": HALF}]}), "go"),
                r"host\.tenant": lambda: engine.run(plain, "go", host=Host(tenant="a\0b")),
                "principal": lambda: engine.run(plain, "go", host=Host(principal=HALF)),
                "variables": lambda: engine.run(plain, "go", variables={HALF: 1}),
                "reply must": lambda: engine.reply("asked", HALF),
                "by must": lambda: engine.reply("asked", "x", by=HALF),
                "why must": lambda: engine.cancel("asked", why=HALF),
                r"signal\.id": lambda: engine.signal("asked", Signal(id="\0", kind="cancel")),
                "payload": lambda: engine.signal("asked", Signal(id="s", kind="reply", payload={"reply": HALF})),
                "edits": lambda: engine.fork("asked", edits={"goal": HALF}),
                r"erase|why": lambda: engine.erase("asked", why=HALF),
                "tenant=": lambda: engine.list_runs(RunQuery(tenant="a\0b")),
                "agent=": lambda: engine.list_runs(RunQuery(agent=HALF)),
                "after=": lambda: engine.list_runs(RunQuery(after=HALF)),
            }
            for named, attempt in attempts.items():
                with pytest.raises(ConfigError, match=named):
                    await attempt()
            for name in (HALF, "a\0b"):
                for look in (
                    engine.load,
                    engine.records,
                    engine.verify,
                    engine.replay,
                    engine.resume,
                    engine.delete,
                    engine.erase,
                    engine.reopen,
                ):
                    with pytest.raises(RunNotFound):
                        await look(name)
                with pytest.raises(RunNotFound):
                    await engine.cancel(name)
                with pytest.raises(RunNotFound):
                    await engine.fork(name)
            assert [head.run_id for head in await engine.list_runs()] == ["asked"]
            assert await engine.store.signals(["asked"]) == {}
            assert (await engine.load("asked")).seq == asked.state.seq

    run_async(main)


def test_numbers_that_json_cannot_say_are_refused_at_the_door() -> None:
    """NaN and infinities are named with their place, wherever a program hands data over; a null stays a null."""

    async def main() -> None:
        async with Engine(store="ram:", planner=ScriptedPlanner([ASK]), approver="caller") as engine:
            plain = Agent(name="a", tools=[])
            await engine.run(plain, "go", run_id="asked", variables={"a": None})
            attempts: dict[str, Callable[[], Any]] = {
                r"variables .* a\.b\[1\] is nan": lambda: engine.run(plain, "go", variables={"a": {"b": [None, NAN]}}),
                r"agent .* meta\.x is inf": lambda: engine.run(Agent(name="a", meta={"x": float("inf")}), "go"),
                r"seed_memory .* \[0\]\.score is -inf": lambda: engine.run(plain, "go", seed_memory=[{"score": float("-inf")}]),
                r"output_schema .* minimum is nan": lambda: engine.run(plain, "go", output_schema={"minimum": NAN}),
                "reply .* it is nan": lambda: engine.reply("asked", NAN),
                r"edits .* variables\.x is nan": lambda: engine.fork("asked", edits={"variables": {"x": NAN}}),
                r"edits .* results\.main\.1\.0 is nan": lambda: engine.fork("asked", edits={"results": {"main.1.0": NAN}}),
                r"signal .* payload\.reply is nan": lambda: engine.signal("asked", Signal(id="s", kind="reply", payload={"reply": NAN})),
            }
            for said, attempt in attempts.items():
                with pytest.raises(ConfigError, match=said):
                    await attempt()

    run_async(main)


def phase_that(leave: Callable[[KernelContext], KernelState]) -> Any:
    """Return a phase that leaves the state that the function returns."""

    async def phase(state: KernelState, context: KernelContext) -> KernelState:
        return leave(context)

    return phase


async def nan() -> float:
    """Measure nothing."""
    return NAN


async def half() -> dict[str, Any]:
    """Name a file whose name is not UTF-8."""
    return {"path": HALF, "size": None}


LEAVES: dict[str, Callable[[KernelContext], Any]] = {
    r"meta\.rate is nan": lambda c: transition(c.state, meta={**c.state.meta, "rate": NAN}),
    r"scratchpad\.seen\[1\] is inf": lambda c: transition(c.state, scratchpad={"seen": [1, float("inf")]}),
    r"EffectRecorded .* value is nan": lambda c: c.record(EffectRecorded(label="x", phase=0, value=NAN)),
}


@pytest.mark.parametrize("said", LEAVES)
def test_what_a_phase_leaves_is_never_a_silent_null(said: str) -> None:
    """A number that JSON cannot say in meta, scratchpad or an event ends the run as `kernel_error`, and the error names its place."""
    done = ran([END], kernel=make_kernel(phases=(phase_that(LEAVES[said]), think, act)))
    assert (done.state.status, done.state.reason) == ("failed", "kernel_error")
    assert re.search(said, done.state.error), done.state.error


def test_an_effect_that_came_to_no_number_is_named_and_one_with_half_a_pair_is_escaped() -> None:
    """In a phase and in a strategy: the error names the effect and the place; text is kept, escaped, as everywhere on record."""

    async def measure(state: KernelState, context: KernelContext) -> KernelState:
        assert await context.effect(0, "name", half) == {"path": "half \\ud800", "size": None}
        await context.effect(0, "rate", nan)
        return context.state

    done = ran([END], kernel=make_kernel(phases=(measure, think, act)))
    assert (done.state.reason, "effect 'rate'" in done.state.error, "it is nan" in done.state.error) == ("kernel_error", True, True)

    @strategy(version=1)
    async def measuring(run: StrategyRun) -> Any:
        await run.effect("rate", nan)

    @strategy(version=1)
    async def returning(run: StrategyRun) -> Any:
        return {"rate": NAN}

    for made, words in ((measuring, "effect 'rate'"), (returning, "rate is nan")):
        done = ran([END], strategies={"own": made}, agent={"strategy": "own"})
        assert (done.state.reason, words in done.state.error) == ("kernel_error", True), done.state.error


def test_an_answer_with_no_number_is_no_plan() -> None:
    """The planner is told which number of its answer JSON cannot say, and asked again; the run never completes with null in its place."""
    done = ran([FinalAnswer(content={"rate": [1, NAN]}), FinalAnswer(content=NAN), FinalAnswer(content={"rate": None})])
    assert (done.state.status, done.state.output) == ("completed", {"rate": None})
    problems = [r.event.problem for r in done.records if type(r.event).__name__ == "PlanRejected"]
    assert ["rate[1] is nan" in problems[0], "it is nan" in problems[1]] == [True, True]


def nested(depth: int) -> Any:
    """Return lists in lists."""
    inside: Any = 1
    for _ in range(depth):
        inside = [inside]
    return inside


UNSAYABLE: dict[str, Any] = {
    r"^look is not JSON data: args\.n is nan": ToolCall(tool="look", args={"n": NAN}),
    r"args\.n\[1\] is -inf": ToolCall(tool="look", args={"n": [None, float("-inf")]}),
    "^Schedule .* delay_s is nan": Schedule(delay_s=NAN),
    "look .* nested too deeply": ToolCall(tool="look", args={"n": nested(3_000)}),
    "answer .* nested too deeply": FinalAnswer(content=nested(3_000)),
    "answer .* nested too deeply: ": FinalAnswer(content=[HALF, nested(250)]),
    "look .*4300 digits": ToolCall(tool="look", args={"n": 10**5_000}),
    "answer .*4300 digits": FinalAnswer(content=[10**5_000]),
}


@pytest.mark.parametrize("redact", [(), ("secret-\\d+",)], ids=["", "redacting"])
@pytest.mark.parametrize("said", UNSAYABLE)
def test_a_plan_that_cannot_be_kept_as_it_is_said_is_rejected_by_name(said: str, redact: tuple[str, ...]) -> None:
    """Never null in place of a number, never the end of the run: the planner is told what is wrong with its plan, and asked again."""
    done = ran([UNSAYABLE[said], END], *Desk().all, agent={"redact": redact})
    assert (done.why, done.items) == (("completed", "final_answer"), ()), done.state.error
    assert [bool(re.search(said, event.problem)) for event in done.all(PlanRejected)] == [True], done.all(PlanRejected)


def test_what_a_planner_answers_is_shown_whatever_it_is() -> None:
    """Data without an end, and an object that cannot even be printed: no plan, and the run goes on."""

    class Shy:
        def __repr__(self) -> str:
            raise OSError("not today")

    class Odd(PurePlanner):
        async def plan(self, view: View) -> Any:
            return (await super().plan(view)).actions[0].content

    async def main() -> None:
        odd = [nested(3_000), Shy()]
        planner = Odd(lambda _: FinalAnswer(content=odd.pop() if odd else Plan(actions=(END,))))
        async with Engine(store="ram:", planner=planner) as engine:
            result = await engine.run(Agent(name="a", tools=[]), "go")
            assert result.output == "the end"
            raw = [r.event.raw for r in await engine.records(result.run_id) if isinstance(r.event, PlanRejected)]
            assert raw == ["a Shy that cannot be written", "a list that cannot be written"]

    run_async(main)


def test_a_pass_that_a_strategy_begins_with_no_number_is_named() -> None:
    """Calls that a strategy brings are no plan of a planner's; `kernel_error` names the place, and no tool has run with null."""

    @strategy(version=1)
    async def bringing(run: StrategyRun) -> Any:
        await run.kernel("work", calls=(ToolCall(tool="look", args={"n": NAN}),))

    done = ran([END], *Desk().all, strategies={"own": bringing}, agent={"strategy": "own"})
    assert (done.why, done.items) == (("failed", "kernel_error"), ())
    assert "'work'" in done.state.error and "calls[0].args.n is nan" in done.state.error


def test_bytes_of_a_command_line_that_are_no_text_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    """A goal, a variable, a host and an id with bytes that are not UTF-8, as a shell hands them over: two lines and exit code 2."""
    monkeypatch.chdir(tmp_path)
    Path("agent.toml").write_text('name = "a"\nrules = "rules.yaml"\n')
    Path("rules.yaml").write_text("- name: end\n  answer: ok\n")
    assert run(["run", "go", "--store", "sqlite:///runs.db"]) == 0
    capsys.readouterr()
    for words, named in (
        (["run", "a\udcff"], "goal"),
        (["run", "--tenant", "\udcff", "go"], "host.tenant"),
        (["run", "--principal", "\udcff", "go"], "principal"),
        (["run", "--var", "x=\udcff", "go"], "variables"),
        (["run", "--run-id", "\udcff", "go"], "run id"),
        (["show", "\udcff"], "no run"),
        (["list", "--tenant", "\udcff"], "tenant"),
    ):
        assert run([*words, "--store", "sqlite:///runs.db"]) == 2, words
        said = capsys.readouterr().err
        assert named in said, (words, said)
        assert "Traceback" not in said


def test_data_is_json_or_it_is_said_where_it_is_not() -> None:
    """Names, nesting, foreign objects; nulls, big numbers and both halves of a pair together are data."""
    loop: list[Any] = []
    loop.append(loop)
    assert json_problem({"a": [None, 1e308, "\U0001f600", {"b": None}]}) == ""
    assert json_problem({"a": HALF, "b": None}, escaping=True) == ""
    assert "name" in json_problem({"a": {HALF: 1}}, escaping=True)
    assert json_problem({"a": {"b": (1, NAN)}}) == "a.b[1] is nan, which JSON cannot say"
    assert "contains itself" in json_problem(loop)
    assert "object" in json_problem({"a": object()})
    assert "half a surrogate" in json_problem({"a": HALF, "b": object()})
    assert json_problem({"a": msgspec.Raw(b"null")}) == ""
    assert json_problem({1: None, "a": (None, {None}), "b": b"null", "c": 10**4000}) == ""
    assert json_problem(NoteWritten(text=HALF)).startswith("text holds half a surrogate pair at character 5")
