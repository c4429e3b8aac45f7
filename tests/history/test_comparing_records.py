"""What each kind of record counts for when two runs are compared: told of records alone, one kind at a time."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from detent import FinalAnswer, ToolCall
from detent.core import events as e
from detent.core.actions import PushGoal
from detent.core.records import Envelope, Record
from detent.core.state import RunState
from detent.history.comparing import bisect, diff

LOOK = ToolCall(tool="look", args={"n": 1})
OTHER = ToolCall(tool="look", args={"n": 2})


def told(*events: Any, run: str, planned: e.Planned | None = None) -> list[Record]:
    """Return the history of a run of one turn, in which these events follow the plan."""
    every = [e.TurnStarted(iteration=1), planned or e.Planned(actions=(LOOK,)), *events]
    at = datetime(2026, 3, 1, tzinfo=UTC)
    return [Record(Envelope(run=run, seq=n, at=at, scope="main", iteration=1), event, f"{run}{n}") for n, event in enumerate(every, 1)]


def result(value: Any) -> msgspec.Raw:
    """Return a result as it stands in the log."""
    return msgspec.Raw(msgspec.json.encode(value))


def differs(a: list[Record], b: list[Record]) -> list[tuple[str, str]]:
    """Return what differs between two histories, each with its call; bisect finds something where diff does."""
    found = [(one.what, one.call) for one in diff(a, b, RunState(run_id="a"), RunState(run_id="b")).differences]
    assert bool(found) == (bisect(a, b) is not None)
    return found


DONE = e.ToolFinished(call="main.1.0", result=result("seen"))
ARTIFACT = e.ArtifactRef(key="k" * 64, size_bytes=7)
HAPPENED = e.ToolReconciled(call="main.1.0", outcome="happened", source="person", result=result("written"))


@pytest.mark.parametrize(
    ("mine", "theirs", "what"),
    [
        ((e.GuardBlocked(call="main.1.0", guard="duplicate", reason="again"),), (), "policy"),
        ((e.CallHealed(call="main.1.0", tool="look", args={"n": 3}),), (), "arguments"),
        ((e.CallHealed(call="main.1.0", tool="see", args={"n": 1}),), (), "tool"),
        ((e.ApprovalEdited(call="main.1.0", args={"n": 3}, digest="d", by="ann"),), (), "arguments"),
        ((HAPPENED,), (), "result"),
        ((e.ToolInDoubt(call="main.1.0", why="timeout"),), (), "result"),
        ((e.ToolFinished(call="main.1.0", error=e.ToolError(code="gone", message="no")),), (DONE,), "result"),
        ((e.ToolFinished(call="main.1.0", artifact=ARTIFACT),), (e.ToolFinished(call="main.1.0"),), "result"),
        (
            (e.MetaToolAnswered(call="main.1.0", tool="look", content="a"),),
            (e.MetaToolAnswered(call="main.1.0", tool="look", content="b"),),
            "result",
        ),
    ],
)
def test_what_became_of_a_call_is_a_difference_of_that_call(mine: tuple[Any, ...], theirs: tuple[Any, ...], what: str) -> None:
    """Which tool with what, who let it, and what came of it; whichever record says so, and on whichever side."""
    a, b = told(*mine, run="a"), told(*theirs, run="b")
    assert differs(a, b) == [(what, "main.1.0")]
    assert differs(b, a) == [(what, "main.1.0")]


def test_an_attempt_that_is_made_again_is_no_outcome() -> None:
    """What it came to in the end is."""
    again = e.ToolReconciled(call="main.1.0", outcome="again", source="retry")
    found = diff(told(again, DONE, run="a"), told(DONE, run="b"), RunState(run_id="a"), RunState(run_id="b"))
    assert found.differences == ()


def test_a_reply_is_a_difference_of_its_question() -> None:
    """The same question, answered otherwise."""
    a, b = (told(e.UserReplied(ask_id="main.1", reply=reply), run=run) for run, reply in (("a", "blue"), ("b", "red")))
    (found,) = diff(a, b, RunState(run_id="a"), RunState(run_id="b")).differences
    assert (found.what, found.call, found.a, found.b, found.a_at, found.b_at) == ("reply", "main.1", "blue", "red", 3, 3)


def test_calls_in_text_and_calls_that_were_not_run_are_compared_too() -> None:
    """An answer that was one call; and what stood beside a control action."""
    text = [e.Planned(actions=(FinalAnswer(content="look"),), embedded=call) for call in (LOOK, OTHER)]
    assert differs(told(run="a", planned=text[0]), told(run="b", planned=text[1]))[0] == ("arguments", "main.1.0")
    beside = [e.Planned(actions=(PushGoal(goal="g"),), dropped=(call,)) for call in (LOOK, OTHER)]
    assert differs(told(run="a", planned=beside[0]), told(run="b", planned=beside[1])) == [("arguments", "main.1.0")]


def test_how_runs_ended_is_a_difference() -> None:
    """Status and reason, also where the output is the same; the reason of an end is a step of its own."""
    ends = [e.RunFinished(status="stopped", reason=reason) for reason in ("cancelled", "no_progress")]
    a, b = told(ends[0], run="a"), told(ends[1], run="b")
    states = RunState(run_id="a", status="stopped", reason="cancelled"), RunState(run_id="b", status="failed", reason="no_progress")
    assert [one.what for one in diff(a, b, *states).differences] == ["status", "reason"]
    parting = bisect(a, b)
    assert parting is not None and (parting.a["reason"], parting.b["reason"], parting.a_at) == ("cancelled", "no_progress", 3)
