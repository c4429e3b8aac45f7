"""The runner and the seed's contract of it: rows S0-1 to S0-10, the runner tests of 3.1, T10 to T18, R1 to R6, K4 to K11, K54 to K63."""

from __future__ import annotations

import re
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

import detent
from detent import Abstain, Budget, FinalAnswer, Plan, PushGoal, Stop, Thought, ToolContext, Usage, View
from detent.core import events as e
from detent.core.errors import BudgetRefused, ConfigError
from detent.core.state import KernelState
from detent.kernel.context import KernelContext
from detent.kernel.kernel import make_kernel
from detent.ports import KernelHooks
from detent.testing.clocks import EPOCH, FakeClock
from kernel.runs import END, Desk, call, ran

SOURCE = Path(detent.__file__).parent


# The loop ---------------------------------------------------------------------------------------------------------------------


def test_a_kernel_that_is_done_at_once_is_called_once() -> None:
    """S0-2 and 3.1.1: one turn, no tool, the output of its one plan."""
    turns: list[int] = []

    async def once(state: KernelState, context: KernelContext) -> KernelState:
        turns.append(state.iteration)
        await context.plan()
        return context.state

    done = ran([END], kernel=make_kernel(phases=(once,)), replays=False)
    assert (done.why, done.result.output, turns, done.result.iterations) == (("completed", "final_answer"), "the end", [1], 1)


def test_iterations_and_steps_add_up() -> None:
    """3.1.2, T11, T18: the first turn is 1, an answer's turn counts; results stand in order with their arguments."""
    desk = Desk()
    done = ran([call(n=1), call(n=2), Thought(content="hm"), END], *desk.all)
    assert (done.result.iterations, done.result.usage.iterations, done.main.iteration) == (4, 4, 4)
    assert [(i.iteration, i.tool, i.args, i.content, i.ok) for i in done.items] == [
        (1, "look", {"n": 1}, {"n": 1}, True),
        (2, "look", {"n": 2}, {"n": 2}, True),
    ]
    assert done.main.tools_used == {"look"} and [i.call_id for i in done.items] == ["main.1.0", "main.2.0"]


def test_the_records_of_a_tool_turn_come_in_the_order_of_the_loop() -> None:
    """R1 and K3: plan, decision, start, end, and the termination with its reason."""
    done = ran([call("put", n=1), END], *Desk().all)
    assert done.names == [
        "RunStarted", "PassStarted", "TurnStarted", "Planned", "PolicyDecided", "ToolStarted", "ToolFinished", "TurnStarted", "Planned", "PassFinished",
        "RunFinished",
    ]  # fmt: skip


def test_a_turn_stands_in_the_transcript_as_the_plan_with_its_calls_and_then_one_item_a_call() -> None:
    """T12: goal, plan, observations by call id, plan; each item knows its turn."""
    plan = Plan(actions=(call("look", n=1), call("put", n=2)), text="I look and put.", thinking="hm", provider_data={"id": 1})
    done = ran([plan, END], *Desk().all)
    items = done.views[1].transcript
    assert [(i.kind, i.iteration, i.call_id, i.text) for i in items] == [
        ("user", 0, "", "go"),
        ("model", 1, "", "I look and put."),
        ("tool", 1, "main.1.0", ""),
        ("tool", 1, "main.1.1", ""),
    ]
    said = items[1].plan
    assert said is not None and (said.actions, said.thinking, said.provider_data) == (plan.actions, "hm", {"id": 1})
    assert list(done.views[1].results) == list(items[2:]) == list(done.items)


@pytest.mark.parametrize(
    ("script", "options", "reason"),
    [
        ([END], {}, "final_answer"),
        ([lambda view: call(n=view.iteration)] * 9, {"budget": Budget(max_iterations=2)}, "max_iterations"),
        ([call("end")], {}, "fatal_tool_error"),
        ([Thought(content="hm")] * 20, {}, "no_progress"),
        ([Stop(reason="enough")], {}, "stop_action"),
    ],
)
def test_every_way_to_stop_persists_one_end_with_its_reason(script: Any, options: Any, reason: str) -> None:
    """R3: in the log, in the listing, in the result."""
    done = ran(script, *Desk().all, **options)
    (end,) = done.all(e.RunFinished)
    assert (end.reason, done.result.reason, done.records[-1].envelope.reason) == (reason, reason, reason)
    assert done.records[-1].envelope.status == done.result.status == end.status


def test_every_record_names_run_goal_and_iteration() -> None:
    """R2, R9, R17, R18: traceable by goal id; UTC; readable as JSON by a person."""
    done = ran([call(n=1), END], *Desk().all)
    for record in done.records:
        assert record.envelope.run == record.envelope.goal_id == done.result.run_id and record.envelope.at.utcoffset() == timedelta(0)
        assert record.envelope.iteration == (
            0 if record.envelope.seq < 3 or record.envelope.scope == "" else 1 if record.envelope.seq < 7 else 2
        )
    assert msgspec.json.decode(done.lines[3])["body"] == {
        "type": "planned",
        "actions": [{"type": "tool_call", "tool": "look", "args": {"n": 1}}],
        "latency_ms": 0.0,
    }


def test_the_cap_stops_a_run_and_no_hook_says_done() -> None:
    """3.1.3, T15, R16: N plans, then stopped, output None, best text as partial."""
    said: list[Any] = []
    hooks = KernelHooks(on_done=lambda *a: said.append("done"), on_error=lambda state, error: said.append(error))
    endless = [lambda view: Plan(actions=(call(n=view.iteration),), text=f"look {view.iteration}")] * 9
    done = ran(endless, *Desk().all, budget=Budget(max_iterations=3), hooks=hooks)
    assert done.why == ("stopped", "max_iterations") and (done.result.output, done.result.partial) == (None, "look 3")
    assert (len(done.views), done.result.iterations, len(done.items), done.main.status) == (3, 3, 3, "failed")
    assert said == ["max_iterations is 3, used 3"]
    assert (done.state.dimension, done.state.limit, done.state.used) == ("iterations", 3, 3)


def test_a_cap_of_one_gives_one_plan() -> None:
    """R16."""
    done = ran([call(n=1), END], *Desk().all, budget=Budget(max_iterations=1))
    assert done.why == ("stopped", "max_iterations") and len(done.views) == 1


@pytest.mark.parametrize("field", ["max_iterations", "max_model_calls", "max_tool_calls", "max_total_tokens"])
def test_a_bound_of_zero_is_refused_before_anything_is_recorded(field: str) -> None:
    """T15 and R16 as DESIGN has them: 0 is no way to lift a bound."""
    with pytest.raises(BudgetRefused, match=f"budget.{field} is 0"):
        ran([END], budget=Budget(**{field: 0}))
    with pytest.raises(BudgetRefused, match=f"budget.{field} is -1"):
        ran([END], agent={"budget": Budget(**{field: -1})})


def test_the_ceiling_holds_for_run_and_agent_and_only_the_engine_raises_it() -> None:
    """K7, law 4."""
    for options in ({"budget": Budget(max_iterations=1001)}, {"agent": {"budget": Budget(max_iterations=1001)}}):
        with pytest.raises(BudgetRefused, match="above the ceiling of 1000"):
            ran([END], **options)
    assert ran([END], budget=Budget(max_iterations=1001), ceiling=2000).why == ("completed", "final_answer")
    with pytest.raises(BudgetRefused, match="above the ceiling of 10"):
        ran([END], budget=Budget(max_iterations=11), ceiling=10)


def test_the_budget_of_a_run_is_merged_over_agent_engine_and_defaults() -> None:
    """Field by field; it stands in the log."""
    given = Budget(max_iterations=9, max_tool_calls=10, max_failures=11)
    done = ran([END], budget=Budget(max_iterations=7), agent={"budget": Budget(max_iterations=8, max_tool_calls=9)}, engine_budget=given)
    (first,) = done.all(e.RunStarted)
    assert (first.budget.max_iterations, first.budget.max_tool_calls, first.budget.max_failures, first.budget.max_model_calls) == (
        7,
        9,
        11,
        200,
    )


def test_the_default_cap_is_fifty_turns() -> None:
    """Law 4: without configuration."""
    done = ran([lambda view: call(n=view.iteration)] * 60, *Desk().all)
    assert done.why == ("stopped", "max_iterations") and done.result.iterations == 50


def test_distinct_successes_put_no_pressure_on_a_run() -> None:
    """Lesson L6: 45 distinct successful calls in 45 turns; no reflection, no stop."""
    done = ran([*[lambda view: call(n=view.iteration)] * 45, END], *Desk().all)
    assert done.why == ("completed", "final_answer") and done.all(e.Reflected) == []


# Failures ---------------------------------------------------------------------------------------------------------------------


def test_a_tool_error_is_told_and_the_run_goes_on() -> None:
    """T14, R6: the model sees code and message."""
    done = ran([call("slip", n=1), END], *Desk().all)
    assert done.why == ("completed", "final_answer") and done.codes == ["handler_error"]
    item = done.views[1].transcript[-1]
    assert (item.kind, item.ok, item.content) == ("tool", False, None) and item.error is not None and item.error.message == "slipped on 1"


def test_three_failed_turns_in_a_row_end_a_run() -> None:
    """R6: no silent loop; the reason is the threshold."""
    desk = Desk()
    done = ran([lambda view: call("slip", n=view.iteration)] * 9, *desk.all)
    assert done.why == ("stopped", "failure_threshold") and len(desk.ran) == 3 and "3 turns in a row" in str(done.result.error)


def test_a_success_ends_the_row_of_failures_and_a_batch_with_one_success_is_none() -> None:
    """DESIGN 6."""
    two = [lambda view: call("slip", n=view.iteration)] * 2
    batch = [lambda view: (call("slip", n=view.iteration), call("look", n=view.iteration))] * 5
    assert ran([*two, call("look", n=1), *two, *batch, END], *Desk().all).why == ("completed", "final_answer")


def test_failures_in_total_are_a_budget() -> None:
    """`budget_exhausted` names the dimension; `failure_threshold` is only consecutive failed turns."""
    script = [lambda view: (call("slip", n=view.iteration), call("look", n=view.iteration))] * 9
    done = ran(script, *Desk().all, budget=Budget(max_failures=4))
    assert done.why == ("stopped", "budget_exhausted") and (done.state.dimension, done.result.iterations) == ("failures", 4)


@pytest.mark.parametrize("batch", [False, True])
def test_a_fatal_tool_error_ends_the_run_at_once(batch: bool) -> None:
    """R3: also in the middle of a batch, whose later calls are not run."""
    desk = Desk()
    done = ran([(call("end"), call("put", n=1)) if batch else call("end"), END], *desk.all)
    assert done.why == ("failed", "fatal_tool_error") and done.result.error == "the disk is gone" and desk.ran == [("end", 0)]


# Progress ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("base", "reflected", "stopped"), [(3, [3, 6, 9], 12), (2, [2, 4, 6], 8)])
def test_a_stalled_run_reflects_and_then_stops(base: int, reflected: list[int], stopped: int) -> None:
    """K59, K60 as changed: the planner is told in the next view and in the log; after three reflections the run stops."""
    done = ran([Thought(content="hm")] * 40, budget=Budget(max_non_progress=base))
    assert done.why == ("stopped", "no_progress") and done.result.iterations == stopped
    at = [r.envelope.iteration for r in done.records if isinstance(r.event, e.Reflected)]
    assert at == reflected
    told = [v.iteration for v in done.views if v.guidance]
    assert told == [n + 1 for n in reflected]
    for n in reflected:
        (hint,) = done.views[n].guidance
        assert f"no progress for {n} turns" in hint and hint in [i.text for i in done.views[n].transcript if i.kind == "note"]


def test_the_same_call_with_the_same_result_is_no_progress_and_with_others_it_is() -> None:
    """3.1.8: repeated identical calls end a run, different arguments do not."""
    same = ran([call(n=7)] * 40, *Desk().all)
    assert same.why == ("stopped", "no_progress") and same.result.iterations == 13
    assert ran([*[lambda view: call(n=view.iteration)] * 30, END], *Desk().all).why == ("completed", "final_answer")


def test_a_polling_tool_may_be_asked_for_ever() -> None:
    """A successful call of a volatile tool is neither progress nor stagnation."""

    @detent.tool(side_effect="none", volatile=True)
    async def poll() -> str:
        """Say whether it is done."""
        return "not yet"

    done = ran([*[call("poll")] * 40, END], poll)
    assert done.why == ("completed", "final_answer") and done.all(e.Reflected) == []


def test_an_always_failing_tool_ends_soon_whatever_the_planner_does() -> None:
    """K63: always terminates; the mean is small."""
    for parallel in (1, 2, 5):
        done = ran([lambda view, p=parallel: tuple(call("slip", n=i + 10 * view.iteration) for i in range(p))] * 50, *Desk().all)
        assert done.why == ("stopped", "failure_threshold") and done.result.iterations == 3


# Bounds, one script a dimension -----------------------------------------------------------------------------------------------

SPENT = Usage(input_tokens=10, output_tokens=5, cost_usd=0.5)


def spending(view: View) -> Plan:
    """Plan a new look, and use something."""
    return Plan(actions=(call(n=view.iteration),), usage=SPENT, model="m")


@pytest.mark.parametrize(
    ("limits", "dimension", "turns"),
    [
        ({"max_model_calls": 3}, "model_calls", 3),
        ({"max_tool_calls": 2}, "tool_calls", 2),
        ({"max_input_tokens": 20}, "input_tokens", 2),
        ({"max_input_tokens": 21}, "input_tokens", 3),
        ({"max_output_tokens": 11}, "output_tokens", 3),
        ({"max_total_tokens": 30}, "total_tokens", 2),
        ({"max_cost_usd": 0.9}, "cost_usd", 2),
    ],
)
def test_each_bound_stops_a_run_and_is_named(limits: Any, dimension: str, turns: int) -> None:
    """K54, K55: reason budget_exhausted, with dimension, limit and use in the log."""
    done = ran([spending] * 20, *Desk().all, budget=Budget(**limits))
    (end,) = done.all(e.RunFinished)
    assert (end.status, end.reason, end.dimension, done.result.iterations) == ("stopped", "budget_exhausted", dimension, turns)
    assert end.limit == next(iter(limits.values())) and end.used is not None and end.used >= end.limit and f"max_{dimension}" in end.error


def test_a_batch_is_clamped_at_the_bound_of_tool_calls() -> None:
    """K56: a round does not overshoot; those before the bound have their observations, those after never ran."""
    for name in ("look", "put"):
        desk = Desk()
        done = ran([tuple(call(name, n=n) for n in range(5))], *desk.all, budget=Budget(max_tool_calls=2))
        assert done.why == ("stopped", "budget_exhausted") and done.state.dimension == "tool_calls"
        assert desk.ran == [(name, 0), (name, 1)] and [i.ok for i in done.items] == [True, True] and done.result.usage.tool_calls == 2


def test_goal_depth_is_bounded() -> None:
    """`push_goal` for ever ends by name."""
    done = ran([lambda view: PushGoal(goal=f"g{view.iteration}")] * 20, budget=Budget(max_goal_depth=4, max_non_progress=40))
    assert done.why == ("stopped", "budget_exhausted") and (done.state.dimension, len(done.state.goals)) == ("goal_depth", 5)


@pytest.mark.parametrize("field", ["max_running_s", "max_total_s"])
def test_time_is_bounded_by_recorded_readings(field: str) -> None:
    """The clock moves 10 s a call of the tool; the third turn finds the time used up. What is left is the deadline of each call."""
    clock, left = FakeClock(), list[float | None]()

    @detent.tool(side_effect="read")
    async def wait(n: int, context: ToolContext) -> int:
        """Let time go by."""
        left.append(context.remaining_s())
        clock.advance(10)
        return n

    done = ran([lambda view: call("wait", n=view.iteration)] * 9, wait, clock=clock, budget=Budget(**{field: 20.0}))
    assert done.why == ("stopped", "budget_exhausted") and (done.state.dimension, len(done.items)) == (field.removeprefix("max_"), 2)
    assert [seconds is not None and seconds < most for seconds, most in zip(left, (20.1, 10.1), strict=True)] == [True, True]
    assert [t.running_ms for t in done.all(e.TurnStarted)] == [0, 10_000, 20_000] and done.records[-1].envelope.at == EPOCH + timedelta(
        seconds=20
    )


def test_the_view_says_what_is_left() -> None:
    """`budget_remaining`, for planners that economise."""
    done = ran([spending, spending, END], *Desk().all, budget=Budget(max_iterations=5, max_total_tokens=100))
    assert [(v.budget_remaining.max_iterations, v.budget_remaining.max_total_tokens) for v in done.views] == [(4, 100), (3, 85), (2, 70)]


# Ends -------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("action", "why", "error"),
    [
        (Stop(reason="enough"), ("stopped", "stop_action"), "enough"),
        (Abstain(reason="no data", missing=("prices",)), ("stopped", "abstained"), "no data (missing: prices)"),
    ],
)
def test_a_planner_may_end_without_an_answer(action: Any, why: Any, error: str) -> None:
    """K13, K15: no output; the reason given is the error."""
    done = ran([action])
    assert (done.why, done.result.output, done.result.error) == (why, None, error)


@pytest.mark.parametrize("answer", [{"n": 1}, [1, 2], 0, False, "text"])
def test_an_answer_may_be_any_json(answer: Any) -> None:
    """What was answered is the output, type and all."""
    done = ran([FinalAnswer(content=answer)])
    assert done.why == ("completed", "final_answer") and done.result.output == answer and type(done.result.output) is type(answer)


def test_a_finished_run_has_one_end_and_a_result_that_says_so() -> None:
    """Law 6."""
    done = ran([call(n=1), END], *Desk().all)
    assert len(done.all(e.RunFinished)) == 1 and done.names[-1] == "RunFinished" and done.result.error is None and done.result.partial == ""


@pytest.mark.parametrize("goal", ["", "  ", "\n"])
def test_an_empty_goal_is_refused(goal: str) -> None:
    """Before anything is recorded."""
    with pytest.raises(ConfigError, match="the goal is empty"):
        ran([END], goal=goal)


# The code itself --------------------------------------------------------------------------------------------------------------


def test_tool_execution_exists_once() -> None:
    """S0-18, law 7: one place calls `tool.run`, one records `ToolStarted`; no phase, strategy or planner does.

    Suites that try a tool alone are no part of a run.
    """
    found: dict[str, list[str]] = {}
    for path in SOURCE.rglob("*.py"):
        if path.is_relative_to(SOURCE / "testing"):
            continue
        text = path.read_text()
        for needle in (r"await tool\.run\(", r"e\.ToolStarted\($|record\(\s*e?\.?ToolStarted", r"\.attempt\(tool"):
            if re.search(needle, text, re.MULTILINE):
                found.setdefault(needle, []).append(str(path.relative_to(SOURCE)))
    assert found[r"await tool\.run\("] == ["running/calling.py"]
    assert found[r"e\.ToolStarted\($|record\(\s*e?\.?ToolStarted"] == ["kernel/execution.py"]
