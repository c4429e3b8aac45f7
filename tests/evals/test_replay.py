"""Replay of decisions: what another policy, guard or budget would have decided, and what graders may still say of it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from cli.desk import Desk
from detent import Agent, Engine, FinalAnswer, ToolCall, tool
from detent.core.errors import UnknownName
from detent.evals import Evaluation, grade_runs
from detent.ports.governance import Block
from detent.testing import ScriptedPlanner


@tool(side_effect="write")
def note(text: str) -> str:
    """Write something down."""
    return f"noted {text}"


@tool(side_effect="destructive")
def wipe() -> str:
    """Wipe it."""
    return "wiped"


AGENT = Agent(
    name="a",
    tools=[note, wipe],
    policy=[{"id": "none", "decision": "deny", "tool": "wipe"}, {"id": "all", "decision": "allow", "tool": "*"}],
)
GRADERS: list[dict[str, Any]] = [
    {"kind": "exact", "expected": "done"},
    {"kind": "tools_used", "expected": ["note"]},
    {"kind": "forbidden", "expected": ["wipe"]},
    {"kind": "no_violations", "required": False},
    {"kind": "at_most", "most": 1},
]


def no_two(call: Any, state: Any, run: Any) -> Block | None:
    """Block a second note."""
    return Block("one is enough") if call.tool.name == "note" and call.args["text"] == "two" else None


async def recorded(engine: Engine) -> None:
    """Leave a run that notes twice, and one that notes once."""
    await engine.run("a", "Two", run_id="two")
    await engine.run("a", "One", run_id="one")


class Planner:
    """Notes as the goal says."""

    async def plan(self, view: Any) -> Any:
        """Return the next step."""
        texts = ["one", "two"] if view.goal == "Two" else ["one"]
        made = len(view.results)
        step: Any = ToolCall(tool="note", args={"text": texts[made]}) if made < len(texts) else FinalAnswer(content="done")
        return await ScriptedPlanner([step]).plan(view)


def tried(**options: Any) -> dict[str, Any]:
    """Return the trials of the recorded runs under another policy or guards, by run."""

    async def run() -> dict[str, Any]:
        async with Engine(store="ram:", agents=[AGENT], planner=Planner()) as engine:
            await recorded(engine)
            before = [len(await engine.records(name)) for name in ("one", "two")]
            replay = await engine.backtest(**options)
            trials = await grade_runs(engine, GRADERS, replay=replay)
            assert len(await engine.list_runs()) == 2 and before == [len(await engine.records(name)) for name in ("one", "two")]
            return {trial.run_id: trial for trial in trials}

    return asyncio.run(run())


def verdicts(trial: Any) -> dict[str, str]:
    """Return the verdict of each grader."""
    return {grade.grader: grade.verdict for grade in trial.grades}


def test_what_is_decided_alike_is_graded_as_it_was() -> None:
    trials = tried()
    assert {trial.standing for trial in trials.values()} == {"passed", "failed"} and not trials["one"].otherwise
    assert verdicts(trials["two"])["at_most"] == "failed" and trials["one"].standing == "passed"


def test_a_guard_that_blocks_a_call_ends_what_is_known_there() -> None:
    """What came before it still counts: one note was written, none was forbidden, and the refusal itself is a violation."""
    trials = tried(guards=[no_two])
    assert trials["one"].standing == "passed" and not trials["one"].otherwise
    two = trials["two"]
    (change,) = two.otherwise
    assert (change.tool, change.args, change.old, change.new, change.new_rule) == ("note", {"text": "two"}, "allow", "deny", "guard:no_two")
    assert verdicts(two) == {
        "exact": "unknown",
        "tools_used": "passed",
        "forbidden": "unknown",
        "no_violations": "failed",
        "at_most": "failed",
    }
    assert "what would come after it is unknown" in two.grades[0].reason and (two.output, two.reason) == (None, "decided_otherwise")


def test_a_fork_is_replayed_and_graded_with_what_it_took_from_its_parent() -> None:
    async def run() -> None:
        async with Engine(store="ram:", agents=[AGENT], planner=Planner()) as engine:
            await recorded(engine)
            fork = await engine.fork("two", at=(await engine.records("two"))[-3].envelope.seq)
            for guards, forbidden in (((), "passed"), ((no_two,), "unknown")):
                found = {trial.run_id: trial for trial in await grade_runs(engine, GRADERS, replay=await engine.backtest(guards=guards))}
                assert verdicts(found[fork.run_id])["forbidden"] == forbidden and len(found) == 3

    asyncio.run(run())


def test_guards_are_known_by_name_too() -> None:
    assert not tried(guards=["duplicate"])["two"].otherwise
    with pytest.raises(UnknownName, match="dublicate"):
        tried(guards=["dublicate"])


RULES = """
version = "strict"
[[rules]]
id = "no-two"
decision = "deny"
tool = "note"
when = 'args.text == "two"'
[[rules]]
id = "rest"
decision = "allow"
tool = "*"
"""


def test_the_command_replays_stored_runs_under_a_policy_file(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    desk.steps("note", "second", "answer")
    assert desk.detent("run", "Note it").code == 0
    desk.write("strict.toml", RULES)
    desk.write("suite.toml", 'name = "s"\n[[graders]]\nkind = "completed"\n[[graders]]\nkind = "no_violations"\n')
    plain = desk.detent("eval", "grade", "suite.toml", "--runs", "status=completed", "--out", "a.json")
    assert plain.code == 0 and Evaluation.read(tmp_path / "a.json").trials[0].standing == "passed", plain
    done = desk.detent("eval", "grade", "suite.toml", "--replay", "--policy", "strict.toml", "--out", "b.json")
    (trial,) = Evaluation.read(tmp_path / "b.json").trials
    assert done.code == 0 and trial.standing == "failed" and [one.tool for one in trial.otherwise] == ["note"], done
    assert "note  allow" in done.err and "-> deny (no-two)" in done.err and len(desk.notes) == 2
    wrong = desk.detent("eval", "grade", "suite.toml", "--policy", "strict.toml")
    assert wrong.code == 2 and "--replay" in wrong.err
