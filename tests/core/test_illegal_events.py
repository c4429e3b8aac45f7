"""What cannot follow a log is refused by `IllegalEvent`, which says what and why; after its end a run takes only what may follow."""

from __future__ import annotations

from typing import Any

import pytest

from core.golden_logs import GOLDEN
from core.logs import (
    Log,
    begun,
    calls,
    ended,
    finished_call,
    in_doubt,
    opened,
    planned,
    settled,
    started,
    started_call,
    stopped,
    turn,
)
from detent.core import events as e
from detent.core.actions import FinalAnswer
from detent.core.errors import IllegalEvent, RunErased
from detent.core.fold import evolve, fold
from detent.core.records import Envelope, Record
from detent.core.state import RunState
from detent.testing.clocks import EPOCH


def asked_call() -> Log:
    """Return a run whose first call waits for approval."""
    return turn(opened()).add(calls(0), e.ApprovalRequested(call="main.1.0", tool="look", digest="d"))


def completed() -> Log:
    """Return a run that is completed."""
    return turn(opened()).add(planned(FinalAnswer(content="x")), e.RunFinished(status="completed", reason="final_answer", output="x"))


ILLEGAL: list[tuple[str, Any, Any, str]] = [
    ("a second start", opened, started, "run 'run' was started already"),
    ("a pass twice", opened, lambda: e.PassStarted(key="main", kernel="k"), "pass 'main' was started already"),
    ("a turn that skips one", opened, lambda: e.TurnStarted(iteration=2), "turn 2 of pass 'main' follows turn 0"),
    ("the same turn again", lambda: turn(opened()), lambda: e.TurnStarted(iteration=1), "turn 1 of pass 'main' follows turn 1"),
    ("a second plan", lambda: turn(opened()).add(calls(0)), lambda: calls(1), "turn 1 of pass 'main' has a plan already"),
    ("the start of no call", lambda: turn(opened()), lambda: begun("main.1.5"), "has no call 'main.1.5' in a current turn"),
    ("the end of no call", started_call, lambda: ended("main.1.7"), "has no call 'main.1.7'"),
    ("the start of a finished call", finished_call, begun, "call main.1.0 already has an outcome"),
    ("a second outcome", finished_call, ended, "call main.1.0 already has an outcome"),
    (
        "a decision on a finished call",
        finished_call,
        lambda: e.PolicyDecided(call="main.1.0", decision="allow"),
        "call main.1.0 already has an outcome",
    ),
    (
        "a block of a finished call",
        finished_call,
        lambda: e.GuardBlocked(call="main.1.0", guard="g", reason="r"),
        "call main.1.0 already has an outcome",
    ),
    (
        "a healed finished call",
        finished_call,
        lambda: e.CallHealed(call="main.1.0", tool="look", args={}),
        "call main.1.0 already has an outcome",
    ),
    ("doubt about a finished call", finished_call, lambda: e.ToolInDoubt(call="main.1.0", why="w"), "call main.1.0 already has an outcome"),
    ("settlement of a finished call", finished_call, lambda: settled("person"), "call main.1.0 is settled already"),
    (
        "a second settlement",
        lambda: in_doubt().add(settled("retry", "again")),
        lambda: settled("retry", "again"),
        "call main.1.0 is settled already",
    ),
    (
        "a second request",
        asked_call,
        lambda: e.ApprovalRequested(call="main.1.0", tool="look", digest="d"),
        "approval of call main.1.0 is requested already",
    ),
    (
        "an approval nobody asked for",
        started_call,
        lambda: e.ApprovalResolved(call="main.1.0", decision="approved", by="a"),
        "no open approval of call 'main.1.0'",
    ),
    (
        "an edit nobody asked for",
        started_call,
        lambda: e.ApprovalEdited(call="main.1.0", args={}, digest="d", by="a"),
        "no open approval of call 'main.1.0'",
    ),
    ("an expiry of nothing", started_call, lambda: e.ApprovalExpired(call="main.1.0"), "no open approval of call 'main.1.0'"),
    ("a reply to no question", opened, lambda: e.UserReplied(ask_id="q", reply="r"), "has no open question 'q'"),
    ("a timer that was not set", opened, lambda: e.ScheduleFired(timer_id="t"), "has no open timer 't'"),
    ("the end of no child", opened, lambda: e.SubagentJoined(child="c", status="completed"), "has no open child 'c'"),
    ("the cancellation of no child", opened, lambda: e.SubagentCancelled(child="c"), "has no open child 'c'"),
    ("the completion of no goal", opened, lambda: e.GoalCompleted(goal_id="g"), "there is no open goal 'g'"),
    ("a wait that is none", opened, lambda: e.RunWaiting(status="completed"), "'completed' is not a waiting status"),
    ("the reopening of a running run", opened, e.RunReopened, "run 'run' is running; only a failed or stopped run is opened again"),
    ("the reopening of a completed run", completed, e.RunReopened, "run 'run' is completed; only a failed or stopped run"),
    (
        "completed without output",
        opened,
        lambda: e.RunFinished(status="completed", reason="final_answer"),
        "cannot be completed with output None",
    ),
    (
        "completed with a blank",
        opened,
        lambda: e.RunFinished(status="completed", reason="final_answer", output=" \n"),
        "cannot be completed with output",
    ),
    (
        "stopped with an output",
        opened,
        lambda: e.RunFinished(status="stopped", reason="cancelled", output="x"),
        "cannot be stopped with output 'x'",
    ),
    (
        "failed with an output",
        opened,
        lambda: e.RunFinished(status="failed", reason="kernel_error", output=0),
        "cannot be failed with output 0",
    ),
    (
        "a second end",
        stopped,
        lambda: e.RunFinished(status="stopped", reason="cancelled"),
        r"run 'run' is stopped: RunFinished\(status=stopped\) cannot follow",
    ),
    (
        "the end of a pass twice",
        lambda: turn(opened()).add(e.PassFinished(status="done")),
        lambda: e.PassFinished(status="failed"),
        "cannot go from 'done' to 'failed'",
    ),
    (
        "a turn after the end of its pass",
        lambda: turn(opened()).add(e.PassFinished(status="done")),
        lambda: e.TurnStarted(iteration=2),
        "cannot go from 'done'",
    ),
]


@pytest.mark.parametrize(("make", "event", "says"), [case[1:] for case in ILLEGAL], ids=[case[0] for case in ILLEGAL])
def test_an_event_that_cannot_follow_is_refused_and_the_message_says_why(make: Any, event: Any, says: str) -> None:
    """Nothing of it is kept: state and log are as before."""
    log = make()
    before, lines = log.state, len(log.lines)
    with pytest.raises(IllegalEvent, match=says) as caught:
        log.add(event())
    assert caught.value.run_id == "run" and log.state is before and len(log.lines) == lines


@pytest.mark.parametrize(
    "event",
    [
        e.TurnStarted(iteration=1), e.StateChanged(phase=0), e.PassFinished(status="done"), e.Reflected(message="m"), calls(0), e.PlanRejected(problem="p"),
        begun("aside.1.0"), e.ContextCompacted(items=1, summary="s"), e.MemoryRecalled(query="q"),
    ],
    ids=lambda event: type(event).__name__,
)  # fmt: skip
def test_what_belongs_to_a_pass_needs_that_pass(event: Any) -> None:
    """It is named."""
    with pytest.raises(IllegalEvent, match=r"run 'run' has no (pass 'aside'|call 'aside.1.0')"):
        opened().add(event, scope="aside")


@pytest.mark.parametrize("name", GOLDEN)
def test_after_its_end_a_run_takes_only_what_may_follow(name: str) -> None:
    """Terminal rule: only a few events may follow, and those of memory and of sessions; every other event of the golden logs is refused."""
    after_end = (
        e.RunReopened,
        e.AnswerRefused,
        e.ToolReconciled,
        e.Erased,
        e.MemoryProposed,
        e.MemoryWritten,
        e.MemorySuperseded,
        e.MemoryTombstoned,
        e.MessageReceived,
        e.SessionEnded,
        e.ConversationErased,
    )
    for event in GOLDEN[name]().events:
        log = stopped()
        if isinstance(event, after_end):
            continue
        with pytest.raises(
            IllegalEvent, match=rf"run 'run' is stopped: {type(event).__name__}.* cannot follow \(only a reopened run continues\)"
        ):
            log.add(event)


def test_memories_erasure_and_settlements_may_follow_the_end() -> None:
    """And none of them changes how the run ended."""
    log = in_doubt().add(e.RunFinished(status="stopped", reason="cancelled", error="enough", in_doubt=("main.1.0",)))
    log.add(settled("person"), e.MemoryProposed(item_id="m", item={}), e.MemoryWritten(item_id="m"), e.Erased(by="ann"))
    assert (log.state.status, log.state.reason, log.state.in_doubt, log.state.memories) == ("stopped", "cancelled", (), {"m": "written"})
    assert log.main.ended == "" and [(i.ok, i.content) for i in log.main.results] == [(True, "r")]


def test_records_must_follow_each_other() -> None:
    """A gap or a repetition is refused by number."""
    log = opened()
    for seq in (2, 4, 1):
        with pytest.raises(IllegalEvent, match=f"record {seq} of run 'run' follows record 2"):
            evolve(log.state, Record(Envelope(run="run", seq=seq, at=EPOCH), e.CancelRequested(), ""))


def test_an_empty_log_and_an_erased_one_have_no_state() -> None:
    """Each is said in its own words."""
    with pytest.raises(IllegalEvent, match="an empty log has no state"):
        fold([])
    with pytest.raises(RunErased, match="run 'run' was erased"):
        evolve(RunState(run_id="run"), Record(Envelope(run="run", seq=1, at=EPOCH), None, ""))
