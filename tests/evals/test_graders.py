"""Each grader with right, wrong, odd and huge values: it says passed, failed or unknown with a reason, within a bound, and never ends the evaluation."""

from __future__ import annotations

import asyncio
import os
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import pytest

from detent import Agent, Engine, FinalAnswer, ToolCall, tool
from detent.core.errors import ConfigError
from detent.evals import GRADERS, Case, Graded, Grader, state_of
from detent.evals.folding import Ended
from detent.evals.graders import grade_by, graders_of, normal, numbers, verdict_of
from detent.evals.grades import MOST_SHOWN
from detent.history.traces import make_trace
from detent.running.lineage import history
from detent.testing import ScriptedPlanner
from detent.tools.workspace.sandbox import probe

HUGE = "word 1,234 " * 60_000
DEEP = "[" * 100_000


@tool(side_effect="write")
def pay(to: str, amount: int) -> str:
    """Pay."""
    return f"paid {amount} to {to}, balance 1,250.50"


@tool(side_effect="read")
def look() -> str:
    """Look."""
    return "it is 12 degrees"


@tool(side_effect="destructive")
def wipe() -> str:
    """Wipe."""
    return "wiped"


@cache
def run() -> tuple[Any, Any]:
    """Return the records and the state of a run that looks, pays twice, and is not allowed to wipe."""

    async def ran() -> tuple[Any, Any]:
        agent = Agent(
            name="a",
            tools=[pay, look, wipe],
            policy=[{"id": "never", "decision": "deny", "tool": "wipe"}, {"id": "rest", "decision": "allow", "tool": "*"}],
        )
        twice = [ToolCall(tool="pay", args={"to": "ann", "amount": 5})] * 2
        steps = [ToolCall(tool="look"), *twice, ToolCall(tool="wipe"), FinalAnswer(content="x")]
        async with Engine(store="ram:", agents=[agent], planner=ScriptedPlanner(steps)) as engine:
            result = await engine.run("a", "pay 5 to ann", variables={"city": "Bern"})
            return await history(engine.store, result.run_id), result.state

    return asyncio.run(ran())


def of(answer: Any, *, expected: Any = None, workspace: Path | None = None) -> Graded:
    """Return a trial with this answer."""
    records, state = run()
    state = msgspec.structs.replace(state, output=answer)
    return Graded(
        case=Case(id="c", goal=state.goal, expected=expected), records=records, state=state, read=Ended(records, state), workspace=workspace
    )


def graded(table: dict[str, Any], graded: Graded) -> Any:
    """Return what a grader says."""
    ((grader, judge),) = graders_of([table], {}, where="here")
    return asyncio.run(grade_by(grader, judge, graded))


P, F, U = "passed", "failed", "unknown"
ANSWERS: list[tuple[str, dict[str, Any], list[tuple[Any, str]]]] = [
    ("exact", {"expected": 3}, [(3, P), (4, F), (3.0, F), ("3", F), (None, F), (True, F), ([3], F), (HUGE, F)]),
    ("exact", {"expected": [1, {"a": True}]}, [([1, {"a": True}], P), ([1, {"a": 1}], F), ([], F)]),
    ("exact", {}, [("a", U)]),
    ("normalised", {"expected": "The  Blue—one."}, [("the blue—one", P), ("Blue—one!", P), ("blue two", F), ("", F), (None, F), (HUGE, F)]),
    ("normalised", {"expected": "A"}, [("A", P), ("(a)", P), ("the", F), ("", F), ("B", F)]),
    ("normalised", {"expected": "-5"}, [("-5.", P), ("\u22125", P), ("5", F)]),
    ("normalised", {"expected": "!!"}, [("!!", P), ("", F), ("??", F)]),
    ("contains", {"expected": ["Paid", "ann"]}, [("ANN was paid", P), ("ann", F), ({"to": "ann", "x": "paid"}, P), (None, F), (HUGE + "ann paid", P)]),
    ("contains", {"expected": ""}, [("a", U)]),
    ("contains", {"expected": []}, [("a", U)]),
    ("regex", {"expected": r"\d{3}-\d{4}"}, [("call 555-1234", P), ("none", F), (None, F), (HUGE, F)]),
    ("regex", {"expected": "("}, [("a", U)]),
    ("regex", {"expected": "(a+)+$"}, [("a" * 50_000 + "b", F)]),
    ("numeric", {"expected": 1250.5}, [("It is 1,250.50 USD", P), (1250.5, P), ("1 250.5", P), ("12 then 1250.5", P), ("none", F), (None, F), (True, F),
     (1250, F), ("1250.5 or 3", F), (10**400, F), ("9" * 100_000, F), (float("1e308"), F), (HUGE, F)]),
    ("numeric", {"expected": 100, "tolerance": 1}, [(101, P), (101.01, F)]),
    ("numeric", {"expected": -5}, [("it is -5", P), ("\u22125", P), ("5", F), ("2020-5", F)]),
    ("numeric", {"expected": "many"}, [(5, U)]),
    ("numeric", {"expected": "nan"}, [(5, U)]),
    ("schema", {"expected": {"type": "object", "required": ["a"]}}, [({"a": 1}, P), ('{"a": 1}', P), ("a", F), ({}, F), (None, F), (DEEP, F), (HUGE, F)]),
    ("schema", {"expected": {"type": "nonsense"}}, [({}, U)]),
    ("schema", {"expected": {"type": "string"}}, [("plain words", P)]),
    ("json_path", {"path": "a[1].b", "expected": 2}, [({"a": [0, {"b": 2}]}, P), ('{"a": [0, {"b": 2}]}', P), ({"a": [0, {"b": 2.0}]}, F), ({"a": "xyz"}, F),
     ({"a": []}, F), ("words", F), (None, F), (DEEP, F)]),
    ("f1", {"expected": ["ann", "bob"]}, [(["bob", "Ann"], P), ("ann, bob", P), ('["ann", "bob"]', P), (["ann"], F), ([], F), (None, F), (HUGE, F)]),
    ("f1", {"expected": ["ann", "bob"], "at_least": 0.6}, [(["ann"], P), (["eve"], F)]),
    ("f1", {"expected": ["A", "B"]}, [("A, B", P), ("B", F)]),
    ("f1", {"expected": []}, [([], P), (["x"], F)]),
    ("cel", {"expected": "result.output == 'x' && usage.tool_calls == 3"}, [("x", P), ("y", F)]),
    ("cel", {"expected": "case.expected"}, [("x", U)]),
    ("cel", {"expected": "1.0 / 0.0"}, [("x", U)]),
    ("cel", {"expected": "0.5", "at_least": 0.5}, [("x", P)]),
    ("cel", {"expected": "result.nothing.at.all"}, [("x", U)]),
    ("cel", {"expected": "5"}, [("x", U)]),
    ("grounded", {}, [("12 degrees, 1250.50 left, 5 paid", P), ("13 degrees", F), ("no figure", P), (None, P), ({"t": 12}, P), (HUGE, F)]),
    ("completed", {}, [("x", P)]),
    ("completed", {"expected": "failed"}, [("x", F)]),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "options", "answers"), ANSWERS, ids=[f"{kind} {str(options)[:30]}" for kind, options, _ in ANSWERS])
@pytest.mark.timeout(20)
def test_graders_of_the_answer(kind: str, options: dict[str, Any], answers: list[tuple[Any, str]]) -> None:
    for answer, verdict in answers:
        grade = graded({"kind": kind, **options}, of(answer))
        assert grade.verdict == verdict, (str(answer)[:60], grade)
        assert grade.reason and len(grade.reason) <= MOST_SHOWN + 1 and len(grade.excerpt) <= MOST_SHOWN + 1
        assert grade.score is None or 0 <= grade.score <= 1


@pytest.mark.parametrize(
    ("table", "verdict"),
    [
        ({"kind": "tools_used", "expected": ["look", "pay"]}, P), ({"kind": "tools_used", "expected": ["wipe"]}, F),
        ({"kind": "tools_used", "expected": "look"}, P),
        ({"kind": "tools_used", "expected": []}, U), ({"kind": "tools_used"}, U), ({"kind": "tools_used", "expected": [3]}, F),
        ({"kind": "order", "expected": ["look", "pay"]}, P), ({"kind": "order", "expected": ["pay", "look"]}, F), ({"kind": "order", "expected": "pay"}, P),
        ({"kind": "arguments", "path": "pay", "expected": {"amount": 5}}, P), ({"kind": "arguments", "path": "pay", "expected": {"amount": 5.0}}, F),
        ({"kind": "arguments", "path": "pay", "expected": {"note": None}}, F), ({"kind": "arguments", "path": "pay", "expected": [5]}, U),
        ({"kind": "arguments", "expected": {"a": 1}}, U), ({"kind": "forbidden", "expected": ["wipe"]}, P), ({"kind": "forbidden", "expected": ["pay"]}, F),
        ({"kind": "forbidden", "expected": ["nothing"] * 10_000}, P), ({"kind": "at_most", "most": 4}, P), ({"kind": "at_most", "most": 3}, F),
        ({"kind": "at_most", "most": 2, "path": "pay"}, P), ({"kind": "at_most"}, U), ({"kind": "no_repeats"}, F), ({"kind": "no_violations"}, F),
        ({"kind": "person", "labels": "/nowhere/labels.jsonl"}, U), ({"kind": "file", "path": "a"}, U), ({"kind": "command", "command": ["true"]}, U),
        ({"kind": "world", "command": ["true"]}, U),
    ],
    ids=str,
)  # fmt: skip
def test_graders_of_the_trajectory_and_those_without_a_workspace(table: dict[str, Any], verdict: str) -> None:
    grade = graded(table, of("x"))
    assert grade.verdict == verdict and grade.reason, grade


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A workspace that an agent has left: a report, a link out of it, a pipe, and something huge."""
    (tmp_path / "secret.txt").write_text("hidden words")
    place = tmp_path / "work"
    place.mkdir()
    (place / "report.md").write_text("all is paid\n")
    (place / "world.json").write_text('{"accounts": [{"balance": 1250}]}')
    (place / "out").symlink_to(tmp_path / "secret.txt")
    os.mkfifo(place / "pipe")
    with (place / "huge").open("wb") as file:
        file.truncate(30_000_000)
    return place


@pytest.mark.parametrize(
    ("options", "verdict"),
    [
        ({"path": "report.md"}, P), ({"path": "report.md", "expected": "paid"}, P), ({"path": "report.md", "expected": "owed"}, F), ({"path": "none"}, F),
        ({"path": "out", "expected": "hidden"}, F), ({"path": "../secret.txt"}, F), ({"path": "/etc/passwd"}, F), ({"path": "pipe"}, F), ({"path": "."}, F),
        ({"path": "huge"}, P), ({"path": "huge", "expected": "x"}, U), ({"path": "a\0b"}, F),
    ],
    ids=str,
)  # fmt: skip
def test_files_of_the_workspace(place: Path, options: dict[str, Any], verdict: str) -> None:
    grade = graded({"kind": "file", **options}, of("x", workspace=place))
    assert grade.verdict == verdict and "hidden words" not in grade.excerpt, grade


COMMANDS: list[tuple[dict[str, Any], str, str]] = [
    ({"command": ["grep", "-q", "paid", "report.md"]}, P, "exited with 0"),
    ({"command": ["sh", "-c", "exit 3"]}, F, "exited with 3"),
    ({"command": ["cat", "../secret.txt"]}, F, "exited with 1"),
    ({"command": ["sh", "-c", 'test -n "$SECRET_KEY"']}, F, "exited with 1"),
    ({"command": ["sh", "-c", "exec sleep 60"], "timeout_s": 0.3}, F, "not ended"),
    ({"command": ["sh", "-c", "yes | head -c 9000000"]}, P, "exited with 0"),
    ({"command": ["there-is-none"]}, U, "there-is-none"),
    ({"command": ["sh", "-c", "getent hosts example.com || exec 3<>/dev/tcp/127.0.0.1/1"]}, F, "exited"),
]


@pytest.mark.skipif(not probe().program, reason=probe().why)
@pytest.mark.parametrize(("options", "verdict", "why"), COMMANDS, ids=[str(one[0]["command"]) for one in COMMANDS])
def test_a_command_runs_in_the_sandbox_only(
    place: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], verdict: str, why: str
) -> None:
    """It sees the workspace and the system, neither files beside it nor the environment of whoever evaluates."""
    monkeypatch.setenv("SECRET_KEY", "hush")
    grade = graded({"kind": "command", **options}, of("x", workspace=place))
    assert grade.verdict == verdict and why in grade.reason and "hidden words" not in grade.excerpt, grade


def test_without_a_sandbox_no_command_is_run(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(place))
    grade = graded({"kind": "command", "command": ["/bin/touch", "touched"]}, of("x", workspace=place))
    assert grade.verdict == "unknown" and "bubblewrap" in grade.reason and not (place / "touched").exists()


@pytest.mark.skipif(not probe().program, reason=probe().why)
@pytest.mark.parametrize(
    ("options", "verdict"),
    [
        ({"path": "accounts[0].balance", "expected": 1250}, P), ({"path": "accounts[0].balance", "expected": 1250.0}, F),
        ({"path": "accounts[9]", "expected": 1}, F), ({"command": ["echo", "no json"], "expected": 1}, U), ({"command": ["false"], "expected": 1}, U),
        ({"command": ["sh", "-c", "yes 1 | head -c 999999"], "expected": 1}, U),
    ],
    ids=str,
)  # fmt: skip
def test_the_state_of_a_world_is_what_a_command_prints(place: Path, options: dict[str, Any], verdict: str) -> None:
    grade = graded({"kind": "world", "command": ["cat", "world.json"], **options}, of("x", workspace=place))
    assert grade.verdict == verdict and grade.reason, grade


def test_the_state_of_a_world_is_what_a_function_returns() -> None:
    """The world belongs to a tool in this process; the function finds that of the trial by its run."""

    async def balances(graded: Graded) -> Any:
        return {"ann": sum(call.args["amount"] for call in graded.calls if call.tool == "pay")}

    for expected, verdict in ((10, P), (5, F)):
        ((grader, judge),) = graders_of([{"kind": "bank", "path": "ann", "expected": expected}], {"bank": state_of(balances)}, where="here")
        assert asyncio.run(grade_by(grader, judge, of("x"))).verdict == verdict


class _Odd(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


def _raises(error: BaseException) -> Any:
    def grade(grader: Grader, of: Graded) -> Any:
        raise error

    return grade


@pytest.mark.parametrize(
    "judge",
    [
        _raises(ValueError("x" * 10_000)), _raises(_Odd()), _raises(SystemExit(3)), _raises(RecursionError()), _raises(pytest.fail.Exception("no")),
        lambda grader, of: None, lambda grader, of: True, lambda grader, of: asyncio.sleep(0),
    ],
)  # fmt: skip
def test_a_grader_that_raises_or_returns_anything_does_not_know_and_ends_nothing(judge: Any) -> None:
    ((grader, made),) = graders_of([{"kind": "mine", "required": False}], {"mine": judge}, where="here")
    grade = asyncio.run(grade_by(grader, made, of("x")))
    assert (grade.verdict, grade.required, grade.grader) == ("unknown", False, "mine") and 0 < len(grade.reason) <= MOST_SHOWN + 1
    assert verdict_of([grade]) == "unknown"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("1,234.5 and 12", [1234.5, 12]), ("2024 500", [2024, 500]), ("1 000 000", [1e6]), ("1'000", [1000]), ("1,2,3", [1, 2, 3]), ("10-12", [10, 12]),
        (".5 or -.5", [0.5, -0.5]), ("1.2.3", [1.2, 3]), ("1e3", [1000]), ("x2 and v-3", [2, 3]), ("1e999", []), ("\u22127", [-7]), ("", []),
    ],
)  # fmt: skip
def test_numbers_in_a_text(text: str, found: list[float]) -> None:
    assert numbers(text) == found


@pytest.mark.parametrize(
    ("text", "plain"),
    [("The A-team!", "a-team"), ("an", "an"), ("C++", "c++"), ("5 %", "5 %"), ("\uff21\uff22\u00a01", "ab 1"), ("...", "")],
)
def test_what_does_not_matter_is_left_out(text: str, plain: str) -> None:
    assert normal(text) == plain


def test_every_kind_is_tested_here() -> None:
    kinds = {kind for kind, _, _ in ANSWERS} | {"tools_used", "order", "arguments", "forbidden", "at_most", "no_repeats", "no_violations"}
    assert kinds | {"person", "file", "command", "world", "injection"} == set(GRADERS)


def test_a_wrong_option_is_named() -> None:
    for table, said in (
        ({"kind": "numeric", "tolerance": -1}, "tolerance"),
        ({"kind": "numeric", "tolerence": 1}, "tolerence"),
        ({"kind": "x"}, "no grader 'x'"),
    ):
        with pytest.raises(ConfigError, match=said):
            graders_of([{"kind": "numeric", **table}], {}, where="here")


def test_a_grader_sees_the_state_after_each_turn_although_it_is_folded_for_nobody_else() -> None:
    records, _ = run()
    seen = of("x")
    assert seen.trace == make_trace(records) and seen.trace is seen.trace
    assert seen.calls == [call for turn in seen.trace.iterations for call in turn.calls]
    assert [turn.state["tool_calls"] for turn in seen.trace.iterations] == [1, 2, 3, 3, 3]
