"""States and their legal moves: rows S0-3 to S0-6, and row 1.3 of the kernel catalogue."""

from __future__ import annotations

from typing import get_args

import msgspec
import pytest

from detent.core.budget import NOTHING, Usage
from detent.core.errors import IllegalEvent
from detent.core.events import ToolError
from detent.core.history import Seq
from detent.core.state import (
    CLOSED,
    LEGAL_PASS,
    LEGAL_RUN,
    TERMINAL,
    WAITING,
    CallState,
    Item,
    KernelState,
    PassStatus,
    RunState,
    RunStatus,
    describe,
    move,
    transition,
)

RUN = get_args(RunStatus)
PASS = get_args(PassStatus)

# DESIGN 4: a run waits or ends from anywhere it can be; only failed and stopped ones are opened again.
RUN_MOVES = {
    *((a, b) for a in ("running", *WAITING) for b in RUN if a != b),
    ("failed", "running"),
    ("stopped", "running"),
}
PASS_MOVES = {
    *((a, b) for a in ("thinking", "acting") for b in PASS if a != b),
    ("observing", "thinking"),
    ("observing", "done"),
    ("observing", "failed"),
    ("failed", "thinking"),
}


@pytest.mark.parametrize("after", RUN)
@pytest.mark.parametrize("before", RUN)
def test_a_run_moves_as_the_table_says_and_no_other_way(before: RunStatus, after: RunStatus) -> None:
    """Every pair of statuses; to stay is always allowed."""
    state = RunState(run_id="r", status=before)
    if before == after or (before, after) in RUN_MOVES:
        assert move(state, after, reason="x") == RunState(run_id="r", status=after, reason="x")
    else:
        with pytest.raises(IllegalEvent, match=f"run 'r' cannot go from '{before}' to '{after}'"):
            move(state, after)


@pytest.mark.parametrize("after", PASS)
@pytest.mark.parametrize("before", PASS)
def test_a_pass_moves_as_the_table_says_and_no_other_way(before: PassStatus, after: PassStatus) -> None:
    """Every pair of statuses; to stay is always allowed."""
    state = KernelState(status=before)
    if before == after or (before, after) in PASS_MOVES:
        assert transition(state, status=after).status == after
    else:
        with pytest.raises(IllegalEvent, match=f"pass 'main' cannot go from '{before}' to '{after}'"):
            transition(state, status=after)


def test_the_tables_name_every_status_and_nothing_else() -> None:
    """A status without a row, or a row without a status, would be a hole."""
    assert set(LEGAL_RUN) == {"", *RUN} and set(LEGAL_PASS) == set(PASS)
    assert {s for moves in LEGAL_RUN.values() for s in moves} == set(RUN) and {s for moves in LEGAL_PASS.values() for s in moves} == set(
        PASS
    )
    assert set(TERMINAL) | set(WAITING) | {"running"} == set(RUN) and set(CLOSED) == {"done", "failed"}


def test_waits_stand_in_the_order_of_precedence() -> None:
    """DESIGN 4: reconciliation first, the operator last."""
    names = ("reconciliation", "approval", "user", "subagent", "schedule", "operator")
    assert tuple(f"waiting_for_{name}" for name in names) == WAITING


def test_a_state_cannot_be_changed() -> None:
    """Row S0-3: mutation raises, and the old state is as before after a transition."""
    state = KernelState(meta={"a": 1})
    with pytest.raises(AttributeError):
        state.iteration = 5  # type: ignore[misc]
    later = transition(state, status="acting", iteration=1, meta={"b": 2})
    assert (state.status, state.iteration, state.meta) == ("thinking", 0, {"a": 1})
    assert (later.status, later.iteration, later.meta) == ("acting", 1, {"b": 2}) and later is not state


def test_the_seed_fields_of_a_state_are_there() -> None:
    """Row S0-4: task, strategy, kernel, steps, tools used, scratchpad, iteration, tokens, cost, status, output, error, meta."""
    names = (
        "task_id", "strategy", "kernel_type", "steps", "tools_used", "scratchpad", "iteration", "tokens", "cost", "status", "output", "error", "meta",
    )  # fmt: skip
    state = KernelState()
    assert [name for name in names if not hasattr(state, name)] == []


def test_an_initial_state_thinks_and_holds_nothing() -> None:
    """Rows S0-6 and 1.3: status thinking, iteration 0, output None, collections empty; the options are taken over."""
    state = KernelState(strategy="plan", kernel_type="own", task_id="t", scope="s", meta={"limit": 3})
    assert (state.status, state.iteration, state.output, state.error, state.usage) == ("thinking", 0, None, "", NOTHING)
    assert (list(state.steps), state.tools_used, state.scratchpad, state.calls, state.tokens, state.cost) == ([], frozenset(), {}, {}, 0, 0)
    assert (state.strategy, state.kernel_type, state.task_id, state.scope, state.meta) == ("plan", "own", "t", "s", {"limit": 3})


def test_what_a_transition_does_not_name_is_carried_over() -> None:
    """Row 1.3: steps, scratchpad and tools used stay, by identity."""
    state = KernelState(steps=Seq([Item(kind="note", text="n")]), scratchpad={"k": "v"}, tools_used=frozenset({"look"}))
    later = transition(state, status="acting")
    assert later.steps is state.steps and later.scratchpad is state.scratchpad and later.tools_used is state.tools_used


def test_a_failed_pass_has_no_output_unless_one_is_given() -> None:
    """Row 1.3: no leak of a rejected draft."""
    draft = KernelState(output="draft")
    assert transition(draft, status="failed").output is None
    assert transition(draft, status="failed", output="said so").output == "said so"
    assert transition(draft, status="done").output == "draft"


def test_tokens_and_cost_are_those_of_the_usage() -> None:
    """An unknown cost counts as 0."""
    assert KernelState(usage=Usage(input_tokens=2, output_tokens=3, cost_usd=0.5)).tokens == 5
    assert KernelState(usage=Usage(cost_usd=0.5)).cost == 0.5 and KernelState().cost == 0.0


def test_args_and_content_of_an_item_are_fresh_copies() -> None:
    """Changing what a planner was given changes nothing in the run."""
    item = Item(kind="tool", arguments={"a": [1]}, result=msgspec.Raw(b'{"b":[2]}'), ok=True)
    item.args["a"].append(9)
    item.content["b"].append(9)
    assert (item.args, item.content) == ({"a": [1]}, {"b": [2]})
    assert Item(kind="tool", error=ToolError(code="c", message="m"), ok=False).content is None
    assert Item(kind="user", text="hello").content == "hello"


def test_calls_know_whether_they_only_read_and_runs_what_is_open() -> None:
    """The questions that decisions ask of a state."""
    call = CallState(call_id="main.1.0", index=0, tool="t", args={}, side_effect="read", status="in_doubt")
    assert call.read_only and not msgspec.structs.replace(call, side_effect="write").read_only
    run = RunState(run_id="r", passes={"main": KernelState(calls={"main.1.0": call}), "old": KernelState(scope="old", status="done")})
    assert run.in_doubt == ("main.1.0",) and [p.scope for p in run.open_passes] == ["main"]
    assert run.call("main.1.0") is call and run.call("main.9.9") is None and run.call("nowhere.1.0") is None
    assert [RunState(run_id="r", status=s).terminal for s in ("running", "failed", "waiting_for_user")] == [False, True, False]


def test_an_event_is_described_by_its_most_telling_field() -> None:
    """For messages: the name alone where there is none."""
    from detent.core.events import CancelRequested, GuardBlocked, TurnStarted

    said = [describe(GuardBlocked(call="main.1.0", guard="g", reason="r")), describe(TurnStarted(iteration=3)), describe(CancelRequested())]
    assert said == ["GuardBlocked(call=main.1.0)", "TurnStarted(iteration=3)", "CancelRequested"]
