"""The one termination decision, row by row: every reason from a small state, precedence, reflection numbers, the exit event."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from core.logs import Log, begun, bounded, calls, decide, ended, failed, opened, planned, rejected, stalled, turn, worked
from detent.core import events as e
from detent.core.actions import Abstain, AskUser, FinalAnswer, PushGoal, Stop, Thought
from detent.core.budget import DEFAULT, Budget, Usage
from detent.core.settle import REASONS, Settled, Wait, settle, waits
from detent.running.endings import finish
from detent.testing.clocks import EPOCH

replace = msgspec.structs.replace


def done_with(reason: str) -> Log:
    """Return a run whose pass was ended by its phase or planner, for this reason."""
    return turn(opened()).add(e.PassFinished(status="failed", reason=reason, error="why"))


def said_done() -> Log:
    """Return a run that called its tool `done`."""
    log = turn(opened()).add(calls(0, tool="done"), begun(tool="done", ends_turn=True))
    return log.add(ended(result={"status": "done", "answer": "yes"}))


def expired() -> Log:
    """Return a run whose approval nobody gave."""
    return turn(opened()).add(calls(0), e.ApprovalRequested(call="main.1.0", tool="look", digest="d"), e.ApprovalExpired(call="main.1.0"))


def denied(**agent: Any) -> Log:
    """Return a run whose one call was denied by a person."""
    asked = e.ApprovalRequested(call="main.1.0", tool="look", digest="d")
    return turn(opened(**agent)).add(calls(0), asked, e.ApprovalResolved(call="main.1.0", decision="denied", by="ann", reason="not now"))


CASES: dict[str, tuple[Any, str, str]] = {
    # reason: (how to get there, what the error holds, the dimension)
    "final_answer": (lambda: turn(opened()).add(planned(FinalAnswer(content="yes"))), "", ""),
    "done_tool": (said_done, "", ""),
    "max_iterations": (lambda: worked(worked(bounded(max_iterations=2), 1), 2), "max_iterations is 2, used 2", "iterations"),
    "budget_exhausted": (lambda: worked(bounded(max_tool_calls=1), 1), "max_tool_calls is 1, used 1", "tool_calls"),
    "no_progress": (lambda: stalled(12), "12 turns without a new successful observation, after 3 reflections", ""),
    "failure_threshold": (
        lambda: worked(worked(worked(opened(), 0, ok=False), 0, ok=False), 0, ok=False),
        "3 turns in a row in which no call",
        "",
    ),
    "policy_stopped": (
        lambda: turn(opened()).add(calls(0), e.PolicyDecided(call="main.1.0", decision="stop", reason="enough")),
        "enough",
        "",
    ),
    "approval_rejected": (lambda: denied(on_reject="stop"), "not now", ""),
    "approval_expired": (expired, "approval of call main.1.0 expired", ""),
    "cancelled": (lambda: turn(opened()).add(e.CancelRequested(by="ann")), "cancelled by ann", ""),
    "abstained": (lambda: turn(opened()).add(planned(Abstain(reason="no data", missing=("a", "b")))), "no data (missing: a, b)", ""),
    "stop_action": (lambda: turn(opened()).add(planned(Stop(reason="enough"))), "enough", ""),
    "fatal_tool_error": (
        lambda: turn(opened()).add(calls(0), begun(), failed(code="fatal_tool_error", fatal=True)),
        "no: fatal_tool_error",
        "",
    ),
    "policy_denied": (lambda: turn(opened(on_deny="fail")).add(calls(0), failed(code="policy_denied")), "no: policy_denied", ""),
    "malformed_plan": (lambda: rejected(rejected(rejected(opened()))), "3 turns in a row without a valid plan. That was not a plan: ", ""),
    **{
        reason: (lambda reason=reason: done_with(reason), "why", "")
        for reason in (
            "answer_refused",
            "model_refused",
            "context_overflow",
            "output_schema_failed",
            "missing_required_tool",
            "planner_error",
            "kernel_error",
        )
    },
}


@pytest.mark.parametrize("reason", REASONS)
def test_every_reason_is_reached_from_a_small_state_and_gives_its_status(reason: str) -> None:
    """The closed table of DESIGN 4: reason, status, error, dimension; and what is recorded can follow the log."""
    make, error, dimension = CASES[reason]
    log = make()
    verdict = decide(log)
    assert isinstance(verdict, Settled) and verdict.reason == reason and error in verdict.error
    event = finish(log.state, verdict)
    assert (event.status, event.reason, event.dimension) == (REASONS[reason], reason, dimension)
    assert (event.output is not None) == (event.status == "completed")
    after = log.add(event).state
    assert after.terminal and after.reason == reason


def test_the_table_of_reasons_is_that_of_the_design() -> None:
    """Closed: nothing more, nothing less; and each stands in the cases above."""
    assert set(CASES) == set(REASONS)
    by_status = {status: {r for r, s in REASONS.items() if s == status} for status in ("completed", "failed", "stopped")}
    assert by_status["completed"] == {"final_answer", "done_tool"}
    assert by_status["failed"] == {
        "fatal_tool_error", "policy_denied", "malformed_plan", "answer_refused", "model_refused",
        "context_overflow", "output_schema_failed", "missing_required_tool",
        "planner_error", "kernel_error",
    }  # fmt: skip


# Going on ---------------------------------------------------------------------------------------------------------------------


def test_a_run_with_nothing_against_it_goes_on() -> None:
    """Before the first turn, within a turn, after a good one."""
    assert decide(opened()) is None and decide(turn(opened()), turn_over=False) is None and decide(worked(opened(), 1)) is None


@pytest.mark.parametrize(
    "make", [lambda: worked(worked(bounded(max_iterations=2), 1), 2), lambda: stalled(12), lambda: rejected(rejected(rejected(opened())))]
)
def test_what_bounds_a_new_turn_does_not_end_an_open_one(make: Any) -> None:
    """A batch that is waiting for its approval is not cut off by its own turn."""
    assert decide(make(), turn_over=False) is None


@pytest.mark.parametrize("failures", [0, 1, 2])
def test_fewer_failed_turns_than_the_threshold_go_on(failures: int) -> None:
    """Three in a row end a run, by default."""
    log = opened()
    for _ in range(failures):
        worked(log, 0, ok=False)
    assert decide(log) is None


def test_a_turn_with_one_success_is_no_failed_turn_and_a_success_ends_the_row() -> None:
    """DESIGN 6: a turn fails when it had calls and none succeeded."""
    log = opened()
    for n in range(6):
        turn(log).add(
            calls(0, 1), begun(f"main.{n + 1}.0"), failed(f"main.{n + 1}.0"), begun(f"main.{n + 1}.1"), ended(f"main.{n + 1}.1", n)
        )
    assert decide(log) is None
    log = worked(worked(worked(worked(opened(), 0, ok=False), 0, ok=False), 1), 0, ok=False)
    assert log.main.consecutive_failed_turns == 1 and decide(log) is None


def test_a_turn_without_calls_is_neither_failed_nor_does_it_excuse() -> None:
    """A thought ends the row of failed turns, as a valid plan did come."""
    log = turn(worked(worked(opened(), 0, ok=False), 0, ok=False)).add(planned(Thought(content="hm")))
    assert log.main.consecutive_failed_turns == 0
    assert worked(log, 0, ok=False).main.consecutive_failed_turns == 1


def test_the_last_failed_turn_says_which_of_the_two_reasons_it_is() -> None:
    """Mixed rows: malformed_plan if the last was that, else failure_threshold."""
    one, two = rejected(worked(worked(opened(), 0, ok=False), 0, ok=False)), worked(rejected(rejected(opened())), 0, ok=False)
    assert [v.reason for v in (decide(one), decide(two)) if isinstance(v, Settled)] == ["malformed_plan", "failure_threshold"]


@pytest.mark.parametrize("threshold", [1, 2, 5])
def test_the_failure_threshold_is_an_option(threshold: int) -> None:
    """`max_failed_turns`."""
    log = bounded(max_failed_turns=threshold, max_non_progress=50)
    for _ in range(threshold):
        assert decide(log) is None
        worked(log, 0, ok=False)
    verdict = decide(log)
    assert isinstance(verdict, Settled) and verdict.reason == "failure_threshold"


# Bounds -----------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dimension", "use"),
    [
        ("model_calls", Usage(model_calls=3)),
        ("input_tokens", Usage(input_tokens=3)),
        ("output_tokens", Usage(output_tokens=3)),
        ("total_tokens", Usage(input_tokens=1, output_tokens=2)),
        ("cost_usd", Usage(cost_usd=3.5)),
    ],
)
def test_each_dimension_of_planning_stops_a_run_by_name(dimension: str, use: Usage) -> None:
    """Rows K54 and K55."""
    log = turn(bounded(**{f"max_{dimension}": 3})).add(planned(Thought(content="hm"), usage=use))
    verdict = decide(log)
    assert isinstance(verdict, Settled) and verdict.bound is not None and verdict.bound.dimension == dimension
    event = finish(log.state, verdict)
    assert (event.status, event.reason, event.dimension, event.limit) == ("stopped", "budget_exhausted", dimension, 3)


def test_failures_in_total_goal_depth_and_time_stop_a_run_by_name() -> None:
    """The dimensions that are not planning; time is looked at within a turn too."""
    failures = worked(worked(bounded(max_failures=2), 0, ok=False), 0, ok=False)
    deep = turn(bounded(max_goal_depth=1)).add(planned(PushGoal(goal="g")), e.GoalPushed(goal_id="a", goal="g"))
    assert decide(deep) is None
    deep.add(e.GoalPushed(goal_id="b", goal="g"))
    slow = turn(bounded(max_running_s=2.0))
    old = turn(bounded(max_total_s=60))
    verdicts = (
        decide(failures),
        decide(deep),
        decide(slow, running_s=2.0, turn_over=False),
        decide(old, total_s=60, turn_over=False),
    )
    assert [v.bound.dimension for v in verdicts if isinstance(v, Settled) and v.bound] == ["failures", "goal_depth", "running_s", "total_s"]
    assert decide(slow, running_s=1.9) is None and decide(old, total_s=59.9) is None


def test_the_limits_of_a_pass_bound_it_too() -> None:
    """Its own use against its own limits; the run's come first."""
    log = Log().add(
        e.RunStarted(goal="g", agent=opened().state.agent, budget=DEFAULT),
        e.PassStarted(key="main", kernel="react", limits=Budget(max_iterations=1)),
    )
    assert decide(log) is None
    verdict = decide(worked(log, 1))
    assert isinstance(verdict, Settled) and verdict.reason == "max_iterations" and verdict.bound is not None and verdict.bound.limit == 1


# Precedence -------------------------------------------------------------------------------------------------------------------


def waiting(log: Log) -> Log:
    """Let the run wait for its user as well."""
    return log.add(e.UserAsked(ask_id="q", question="?"))


def test_a_pass_beside_others_waits_on_whatever_came_about_beside_it() -> None:
    """A bound of the run or its cancellation ends the run, and not this pass at a moment that no log tells."""
    log = waiting(bounded(max_iterations=1))
    worked(log, 1).add(e.CancelRequested())
    for state in (log.state, replace(log.state, cancel=None)):
        verdict = settle(state, state.passes["main"], running_s=0, turn_over=True, beside=True)
        assert isinstance(verdict, Wait) and verdict.status == "waiting_for_user"
        assert isinstance(settle(state, state.passes["main"], running_s=0, turn_over=True), Settled)


def test_what_a_pass_has_ended_with_comes_first_then_cancellation_then_failures_bounds_stagnation_waits() -> None:
    """DESIGN 6: cancel and exhausted bounds finish a run, otherwise a wait wins."""
    everything = waiting(bounded(max_iterations=12, max_non_progress=1, max_reflections=1, max_failed_turns=12))
    for _ in range(12):
        worked(everything, 0, ok=False)
    everything.add(e.CancelRequested())
    state = everything.state
    main = replace(everything.main, ended="stop_action")
    layers: list[str] = []

    def layer(state: Any, main: Any) -> None:
        verdict = settle(state, main, running_s=0, turn_over=True)
        layers.append(verdict.reason if isinstance(verdict, Settled) else type(verdict).__name__)

    layer(state, main)
    layer(state, main := replace(main, ended=""))
    layer(state := replace(state, cancel=None), main)
    layer(state, main := replace(main, failed_turns=0))
    layer(state := replace(state, budget=replace(state.budget, max_iterations=50)), replace(main, reflections=1))
    layer(state, main)
    layer(replace(state, budget=replace(state.budget, max_non_progress=None)), main)
    assert layers == ["stop_action", "cancelled", "failure_threshold", "max_iterations", "no_progress", "Reflect", "Wait"]


def test_waits_have_an_order_and_several_may_be_open() -> None:
    """Reconciliation, approval, user, subagent, schedule, operator."""
    log = turn(opened()).add(calls(0, 1), begun(), e.ToolInDoubt(call="main.1.0", why="crash"))
    log.add(e.ApprovalRequested(call="main.1.1", tool="look", digest="d"), e.UserAsked(ask_id="q", question="?"))
    log.add(e.SubagentSpawned(child="c", agent="a", goal="g"), e.ScheduleSet(timer_id="t", due=EPOCH), e.DeadLettered(why="gave up"))
    found: list[str] = []
    answers = [
        e.ToolReconciled(call="main.1.0", outcome="told", source="agent"),
        e.ApprovalResolved(call="main.1.1", decision="approved", by="ann"),
        e.UserReplied(ask_id="q", reply="r"),
        e.SubagentJoined(child="c", status="completed"),
        e.ScheduleFired(timer_id="t"),
    ]
    for answer in [None, *answers]:
        if answer is not None:
            log.add(answer)
        verdict = decide(log, turn_over=False)
        assert isinstance(verdict, Wait) and verdict.status == waits(log.state, log.main)
        found.append(verdict.status.removeprefix("waiting_for_"))
    assert found == ["reconciliation", "approval", "user", "subagent", "schedule", "operator"]


def test_a_child_that_is_not_joined_is_not_waited_for() -> None:
    """`join` says whether to wait now."""
    log = turn(opened()).add(e.SubagentSpawned(child="c", agent="a", goal="g", join=False))
    assert decide(log) is None


def test_a_bound_ends_a_run_that_would_only_wait() -> None:
    """And so does a cancellation; the wait itself is kept for whoever opens the run again."""
    log = turn(bounded(max_iterations=1)).add(planned(AskUser(question="?")), e.UserAsked(ask_id="q", question="?"))
    assert [type(decide(log, turn_over=over)).__name__ for over in (True, False)] == ["Settled", "Wait"]


# Exit -------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("blank", [None, "", "  ", "\n\t "])
def test_a_blank_output_never_counts_as_completed(blank: Any) -> None:
    """Law 6, lesson L4: it is a failure of the planner, with the best text so far as partial."""
    log = turn(opened()).add(planned(FinalAnswer(content="x"), text="so far"))
    event = finish(log.state, Settled(reason="final_answer", output=blank))
    assert (event.status, event.reason, event.output, event.partial, event.error) == (
        "failed",
        "planner_error",
        None,
        "so far",
        "the answer is empty",
    )


@pytest.mark.parametrize("answer", ["0", 0, False, [], {}, {"a": None}])
def test_an_answer_may_be_any_json_that_says_something(answer: Any) -> None:
    """Zero and false are answers."""
    event = finish(opened().state, Settled(reason="final_answer", output=answer))
    assert event.status == "completed" and event.output == answer


def test_a_run_that_does_not_complete_has_no_output_but_its_best_text() -> None:
    """A draft does not leak; the latest text of a pass is the partial."""
    log = turn(turn(opened()).add(planned(Thought(content="a"), text="first"))).add(planned(Thought(content="b"), text="second"))
    turn(log).add(planned(Thought(content="c")))
    event = finish(log.state, Settled(reason="cancelled", output="draft", error="enough"))
    assert (event.output, event.partial, event.error) == (None, "second", "enough")


def test_the_exit_lists_the_calls_that_are_in_doubt() -> None:
    """Whoever reads the end of a log sees what is open."""
    log = turn(opened()).add(calls(0, 1), begun(), e.ToolInDoubt(call="main.1.0", why="crash"))
    assert finish(log.state, Settled(reason="cancelled")).in_doubt == ("main.1.0",)
