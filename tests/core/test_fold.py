"""The fold: what each event does, what cannot follow and why, and that a batch is observed by index whatever completes first."""

from __future__ import annotations

import itertools
from datetime import timedelta
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.golden_logs import GOLDEN
from core.logs import (
    Log,
    begun,
    calls,
    ended,
    failed,
    finished_call,
    in_doubt,
    opened,
    planned,
    raw,
    settled,
    turn,
    worked,
)
from detent.core import events as e
from detent.core.actions import FinalAnswer, Stop, Thought, ToolCall
from detent.core.budget import Budget, Usage
from detent.core.codec import read_log
from detent.core.fold import evolve, fold
from detent.core.records import Envelope, Record
from detent.core.state import RunState
from detent.testing.clocks import EPOCH

DUE = EPOCH + timedelta(hours=1)


# Folding ----------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", GOLDEN)
def test_a_fold_can_be_cut_anywhere(name: str) -> None:
    """fold(a + b) == fold(b, from fold(a)); and what was folded before is not changed by going on."""
    log = GOLDEN[name]()
    records = list(read_log(log.state.run_id, log.lines))
    for cut in range(1, len(records) + 1):
        part = fold(records[:cut])
        assert part == log.states[cut - 1] and part.seq == cut and part.digest == records[cut - 1].digest
        assert fold(records[cut:], part) == log.state
        assert part == log.states[cut - 1]


def test_two_branches_of_one_state_do_not_see_each_other() -> None:
    """A fork folds on from a state that the live run has left behind."""
    log = turn(opened())
    before = log.state

    def grown(text: str) -> RunState:
        return evolve(before, Record(Envelope(run="run", seq=before.seq + 1, at=EPOCH, scope="main"), e.NoteWritten(text=text), text))

    one, other = grown("one"), grown("other")
    assert [[i.text for i in s.passes["main"].steps] for s in (before, one, other)] == [["count"], ["count", "one"], ["count", "other"]]


@given(st.permutations([0, 1, 2, 3]), st.lists(st.booleans(), min_size=4, max_size=4))
def test_a_batch_is_observed_by_call_index_whatever_the_order_of_completion(order: list[int], good: list[bool]) -> None:
    """State, transcript and results are the same for every order; an outcome waits for those before it."""

    def run(order: list[int]) -> Log:
        log = turn(opened()).add(calls(0, 1, 2, 3), *(begun(f"main.1.{n}", digest=str(n)) for n in range(4)))
        shown: list[int] = []
        for n in order:
            log.add(ended(f"main.1.{n}", n) if good[n] else failed(f"main.1.{n}"))
            shown.append(log.main.observed)
        arrived = [max(k for k in range(5) if set(range(k)) <= set(order[: i + 1])) for i in range(4)]
        assert shown == arrived
        return log

    one, straight = run(order), run([0, 1, 2, 3])
    assert [i.call_id for i in one.main.results] == [f"main.1.{n}" for n in range(4)]
    same = ("steps", "results", "tools_used", "turn_ok", "turn_bad", "progressed", "usage", "status", "observed", "calls")
    assert [getattr(one.main, f) == getattr(straight.main, f) for f in same] == [True] * len(same)
    assert one.main.status == "observing" and set(one.main.seen) == set(straight.main.seen)


def test_a_status_moves_with_the_turn() -> None:
    """thinking, acting while calls are open, observing when all have their outcome, thinking again (row 1.2)."""
    log = opened()
    seen = [log.main.status]
    turn(log).add(calls(0))
    seen.append(log.main.status)
    log.add(begun(), ended())
    seen.append(log.main.status)
    turn(log)
    seen.append(log.main.status)
    log.add(planned(Thought(content="hm")))
    assert [*seen, log.main.status] == ["thinking", "acting", "observing", "thinking", "observing"]


def test_the_transcript_begins_with_the_goal_and_tells_what_happened_in_order() -> None:
    """DESIGN 11: items of kind user, model, tool, note."""
    log = worked(opened(), 1)
    log.add(e.NoteWritten(text="n"), e.UserAsked(ask_id="q", question="?"), e.UserReplied(ask_id="q", reply={"a": 1}))
    turn(log).add(e.PlanRejected(problem="bad"))
    kinds = [(i.kind, i.iteration, i.text) for i in log.main.steps]
    assert kinds[:5] == [("user", 0, "count"), ("model", 1, ""), ("tool", 1, ""), ("note", 1, "n"), ("user", 1, '{"a":1}')]
    assert kinds[5][0] == "note" and "That was not a plan: bad" in kinds[5][2]
    assert [i.kind for i in log.main.results] == ["tool"]


def test_a_note_without_a_pass_goes_to_every_open_one() -> None:
    """An operator speaks to the run; what is said in one pass stays there."""
    log = opened().add(e.PassStarted(key="aside", kernel="react"), e.PassStarted(key="over", kernel="react"))
    log.add(e.PassFinished(status="done"), scope="over").add(e.NoteWritten(text="hear"), scope="")
    assert {k: [i.text for i in p.steps][1:] for k, p in log.state.passes.items()} == {"main": ["hear"], "aside": ["hear"], "over": []}
    log.add(e.NoteWritten(text="you"), scope="aside")
    assert {k: [i.text for i in p.steps][1:] for k, p in log.state.passes.items()} == {
        "main": ["hear"],
        "aside": ["hear", "you"],
        "over": [],
    }


def test_tools_that_were_denied_or_failed_are_not_among_those_used() -> None:
    """DESIGN 6: denied calls are observations, never in `tools_used`."""
    log = turn(opened()).add(planned(*(ToolCall(tool=t, args={}) for t in ("a", "b", "c", "d"))))
    log.add(failed("main.1.0", "policy_denied"), begun("main.1.1", tool="b"), failed("main.1.1"))
    log.add(e.MetaToolAnswered(call="main.1.2", tool="c", content="x"), begun("main.1.3", tool="d"), ended("main.1.3"))
    assert log.main.tools_used == {"d"} and [i.ok for i in log.main.results] == [False, False, True, True]
    assert [i.executed for i in log.main.results] == [False, True, False, True]


def test_usage_counts_what_was_started_what_failed_and_what_was_said() -> None:
    """Attempts are not calls; a call that was not run is no failure; a plan that names a model counts as a model call."""
    log = turn(opened()).add(
        planned(*(ToolCall(tool="look", args={}) for _ in range(3)), usage=Usage(input_tokens=2, output_tokens=1), model="m")
    )
    log.add(begun(), begun(attempt=2), failed(), failed("main.1.1", "policy_denied"), failed("main.1.2", "not_run"))
    expected = Usage(iterations=1, model_calls=1, tool_calls=1, failures=2, input_tokens=2, output_tokens=1)
    assert log.state.usage == expected == log.main.usage
    turn(log).add(e.PlanRejected(problem="p", usage=Usage(input_tokens=1)), planned(Thought(content="hm")))
    assert log.state.usage.model_calls == 2 and log.state.usage.failures == 3


def test_a_recorded_model_call_is_not_counted_twice() -> None:
    """Its usage comes with the plan; a failed one keeps what it cost."""
    log = turn(opened()).add(
        e.ModelCallStarted(model="m"), e.ModelCallFailed(error="x", usage=Usage(input_tokens=1)), e.ModelCallStarted(model="m")
    )
    log.add(planned(Thought(content="hm"), usage=Usage(input_tokens=2), model="m"))
    assert (log.state.usage.model_calls, log.state.usage.input_tokens, log.state.reserved) == (2, 3, {})


def test_a_model_call_that_a_crash_left_open_is_charged_at_its_reservation() -> None:
    """Marked as estimated, once."""
    log = turn(opened()).add(e.ModelCallStarted(model="m", reserved=Usage(output_tokens=9, cost_usd=0.5)), e.RunResumed(), e.RunResumed())
    assert (log.state.usage.output_tokens, log.state.usage.cost_usd, log.state.usage.estimated, log.state.reserved) == (9, 0.5, True, {})


def test_the_usage_of_a_child_is_the_runs_too() -> None:
    """No failed or delegated work is lost from the sum (lesson L13)."""
    log = opened().add(
        e.SubagentSpawned(child="c", agent="a", goal="g"), e.SubagentJoined(child="c", status="failed", usage=Usage(output_tokens=7))
    )
    assert log.state.usage.output_tokens == 7 and log.state.children["c"].status == "failed"


def test_reopening_clears_consecutive_counters_and_keeps_usage() -> None:
    """DESIGN 4: failures in a row, stagnation, reflections, the end and the cancellation are cleared; budgets merge."""
    log = worked(worked(opened(), 0, ok=False), 0, ok=False).add(e.Reflected(message="m"), e.CancelRequested(why="enough"))
    log.add(
        e.PassFinished(status="failed", reason="cancelled", error="enough"),
        e.RunFinished(status="stopped", reason="cancelled", error="enough", partial="p"),
    )
    usage = log.state.usage
    log.add(e.RunReopened(budget=Budget(max_iterations=99)))
    state, main = log.state, log.main
    assert (state.status, state.reason, state.error, state.partial, state.cancel, state.openings) == ("running", "", "", "", None, 2)
    assert (main.status, main.ended, main.consecutive_failed_turns, main.turns_without_progress, main.reflections) == (
        "thinking",
        "",
        0,
        0,
        0,
    )
    assert state.usage == usage and state.budget.max_iterations == 99 and state.budget.max_model_calls == 200
    turn(log)
    assert log.main.iteration == 3


def test_a_plan_with_dropped_calls_observes_them_as_not_run() -> None:
    """DESIGN 4: where a model mixes them, the control action wins and the calls are recorded as not run."""
    log = turn(opened()).add(planned(Stop(reason="enough"), dropped=(ToolCall(tool="look", args={"n": 1}),)))
    (item,) = log.main.results
    assert (item.call_id, item.ok, item.error and item.error.code, item.args) == ("main.1.0", False, "not_run", {"n": 1})
    assert log.main.ended == "stop_action" and log.state.usage.failures == 0 and not log.main.turn_failed


def test_guidance_is_shown_once() -> None:
    """It is cleared by the plan that saw it (lesson L2)."""
    log = turn(opened()).add(e.StateChanged(phase=0, guidance=("hint",)))
    assert log.main.guidance == ("hint",)
    assert log.add(calls(0)).main.guidance == ()


def test_a_state_change_adds_replaces_and_removes() -> None:
    """`meta` and `scratchpad`; the phase is done for this turn."""
    log = turn(opened()).add(
        e.StateChanged(phase=0, meta={"a": 1, "b": 1}, scratchpad={"x": "1"}),
        e.StateChanged(phase=1, meta={"a": 2}, removed_meta=("b",), removed_scratchpad=("x",)),
    )
    assert (log.main.meta, log.main.scratchpad, log.main.phases_done) == ({"a": 2}, {}, {0, 1})
    assert turn(log).main.phases_done == frozenset()


@pytest.mark.parametrize(
    ("outcome", "ok", "code"),
    [("happened", True, None), ("told", False, "tool_result_unknown_after_resume"), ("not_happened", False, "not_executed")],
)
def test_a_doubt_is_settled_into_an_observation(outcome: Any, ok: bool, code: str | None) -> None:
    """Each way out of doubt; `again` makes the call ready to run with the same key."""
    log = in_doubt().add(e.ToolReconciled(call="main.1.0", outcome=outcome, source="person", result=raw("r") if ok else e.NO_RESULT))
    (item,) = log.main.results
    assert (item.ok, item.error.code if item.error else None, log.state.in_doubt) == (ok, code, ())


def test_a_call_that_is_run_again_keeps_its_key_and_is_counted_once() -> None:
    """DESIGN 5: the same key over attempts, resume and takeover."""
    log = in_doubt().add(settled("retry", "again"))
    call = log.main.calls["main.1.0"]
    assert (call.status, call.key, call.attempt, log.state.in_doubt) == ("again", "key-main.1.0", 1, ())
    log.add(begun(attempt=2), ended())
    assert log.state.usage.tool_calls == 1 and log.main.calls["main.1.0"].status == "finished"


@pytest.mark.parametrize("make", [finished_call, lambda: worked(opened(), 1)], ids=["in its turn", "after its turn"])
def test_the_word_of_a_late_worker_changes_nothing_that_was_settled(make: Any) -> None:
    """The log then shows both facts."""
    log = make()
    before = log.state
    log.add(settled("late_worker"))
    assert msgspec.structs.replace(log.state, seq=before.seq, digest=before.digest, updated_at=before.updated_at) == before


def test_the_word_of_a_late_worker_settles_what_was_in_doubt() -> None:
    """It knows what happened."""
    log = in_doubt().add(settled("late_worker"))
    assert [(i.ok, i.content) for i in log.main.results] == [(True, "r")]


def test_the_word_of_a_late_worker_is_about_its_own_attempt() -> None:
    """While another one is open it says nothing of that: its effect would be nowhere when its worker dies. One that does not say which closes it."""
    log = in_doubt().add(settled("retry", "again"), begun(attempt=2))
    assert log.add(settled("late_worker", attempt=1)).main.calls["main.1.0"].status == "started"
    assert log.add(settled("late_worker", attempt=2)).main.calls["main.1.0"].status == "finished"
    older = in_doubt().add(settled("retry", "again"), begun(attempt=2), settled("late_worker"))
    assert older.main.calls["main.1.0"].status == "finished"


@pytest.mark.parametrize(
    "wake",
    [
        lambda log: log.add(e.CancelRequested()),
        lambda log: log.add(e.UserReplied(ask_id="q", reply="r")),
        lambda log: log.add(e.ScheduleFired(timer_id="t")),
        lambda log: log.add(e.SubagentCancelled(child="c")),
    ],
)
def test_an_answer_from_outside_wakes_a_waiting_run(wake: Any) -> None:
    """Its status is running again, until the next decision."""
    log = opened().add(
        e.UserAsked(ask_id="q", question="?"), e.ScheduleSet(timer_id="t", due=DUE), e.SubagentSpawned(child="c", agent="a", goal="g")
    )
    log.add(e.RunWaiting(status="waiting_for_user"))
    assert log.state.status == "waiting_for_user"
    wake(log)
    assert log.state.status == "running"


def test_embedded_and_dropped_calls_have_indices_of_their_own() -> None:
    """No two calls of a turn share an id."""
    text = planned(FinalAnswer(content="look({})"), embedded=ToolCall(tool="look"), dropped=(ToolCall(tool="a"), ToolCall(tool="b")))
    log = turn(opened()).add(text)
    assert [(c.call_id, c.tool, c.provenance) for c in log.main.calls.values()] == [
        ("main.1.0", "look", "text"), ("main.1.1", "a", "text"), ("main.1.2", "b", "text"),
    ]  # fmt: skip
    assert log.main.ended == "" and log.add(begun(), ended(result="found")).main.output == "found"


def test_a_step_costs_the_same_late_in_a_run() -> None:
    """Storage of steps and results is shared by all states of one branch (DESIGN 4); nothing is copied."""
    log = opened()
    for n in range(200):
        worked(log, n)
    first, last = log.states[20].passes["main"], log.main
    for field in ("steps", "results"):
        assert getattr(first, field)._items is getattr(last, field)._items
    assert first.seen._index is last.seen._index


def test_no_order_of_three_independent_signals_is_lost() -> None:
    """Replies, timers and children may come in any order."""
    answers = [e.UserReplied(ask_id="q", reply="r"), e.ScheduleFired(timer_id="t"), e.SubagentJoined(child="c", status="completed")]
    for order in itertools.permutations(answers):
        log = opened().add(
            e.UserAsked(ask_id="q", question="?"), e.ScheduleSet(timer_id="t", due=DUE), e.SubagentSpawned(child="c", agent="a", goal="g")
        )
        log.add(*order)
        assert (log.state.asks, log.state.timers, [c.status for c in log.state.children.values()]) == ({}, {}, ["completed"])
