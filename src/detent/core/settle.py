"""The one decision about termination: does this run continue, wait or end, and why (DESIGN law 6, section 4).

`settle` is pure, and every exit of a run passes through it. The order of precedence: the end of a pass, cancellation, failed turns, exhausted
bounds, stagnation, then waits in the order of `WAITING`. A waiting parallel pass keeps waiting, whatever the others use meanwhile and even if the
run is cancelled; the cancellation ends it from outside. Bounds of the run are checked only where a turn begins, because the log shows no other
time.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from detent.core.budget import UNBOUNDED, Budget, Exhausted, Usage, exhausted
from detent.core.events import CANCELLED, TenantBalance
from detent.core.state import KernelState, RunState

Outcome = Literal["completed", "failed", "stopped"]

REASONS: dict[str, Outcome] = {
    "final_answer": "completed",
    "done_tool": "completed",
    "max_iterations": "stopped",
    "budget_exhausted": "stopped",
    "no_progress": "stopped",
    "failure_threshold": "stopped",
    "policy_stopped": "stopped",
    "approval_rejected": "stopped",
    "approval_expired": "stopped",
    "cancelled": "stopped",
    "abstained": "stopped",
    "stop_action": "stopped",
    "fatal_tool_error": "failed",
    "policy_denied": "failed",
    "malformed_plan": "failed",
    "answer_refused": "failed",
    "model_refused": "failed",
    "context_overflow": "failed",
    "output_schema_failed": "failed",
    "missing_required_tool": "failed",
    "planner_error": "failed",
    "kernel_error": "failed",
}
"""The closed list of reasons and the status that each gives."""

CALLS = "calls"
"""The name of the kernel that executes the calls that a strategy makes."""
CALLS_USE = ("iterations", "tool_calls", "failures")
"""The bounds of its own that end a pass of that kernel. It asks no model: a share without model calls binds only what its tools ask."""


class Settled(msgspec.Struct, frozen=True, kw_only=True):
    """The end of a pass and its run: the reason, with the output or error."""

    reason: str
    output: Any = None
    error: str = ""
    bound: Exhausted | None = None


class Reflect(msgspec.Struct, frozen=True):
    """The run stalls, and the planner must be told. `turns` counts the turns without progress."""

    turns: int


class Wait(msgspec.Struct, frozen=True):
    """The run cannot move. `status` names what it waits for."""

    status: str


class WrapUp(msgspec.Struct, frozen=True):
    """A bound is reached, and the agent gets one more turn, without tools, to answer with what it has."""

    bound: Exhausted


Verdict = Settled | Reflect | Wait | WrapUp | None

WRAPPED_UP = ("iterations", "tool_calls", "failures")
"""The bounds after which a last turn can be granted: bounds of work. A last turn would itself use time, tokens and money."""


def wraps_up(run: RunState, state: KernelState, bound: Exhausted) -> bool:
    """Whether the pass is granted its last turn because of `bound`."""
    return run.agent.wrap_up and not state.wrapping_up and bound.dimension.partition(":")[0] in WRAPPED_UP


def settle(run: RunState, state: KernelState, *, running_s: float, total_s: float = 0.0, turn_over: bool, beside: bool = False) -> Verdict:
    """Return how the run continues. None means with the next turn, or with the rest of the open one (`turn_over` false).

    `running_s` and `total_s` are recorded readings. Bounds that only limit a new turn are not checked while a turn is open. `beside`: this is a
    parallel pass. For it, a cancellation counts from where the pass has recorded that it found it.
    """
    if state.ended:
        return Settled(reason=state.ended, output=state.output, error=state.error)
    if beside and (waiting := waits(run, state)):
        return Wait(waiting)
    if run.cancel is not None and (CANCELLED in state.effects or not state.marks):
        return Settled(reason="cancelled", error=run.cancel)
    if beside and not turn_over:
        return None
    if turn_over:
        failed = run.budget.max_failed_turns
        if failed is not None and state.consecutive_failed_turns >= failed:
            if state.plan is None:
                return Settled(reason="malformed_plan", error=f"{failed} turns in a row without a valid plan. {state.steps[-1].text}")
            return Settled(reason="failure_threshold", error=f"{failed} turns in a row in which no call succeeded")
    bound = reached(run, state, running_s=running_s, total_s=total_s, turn_over=turn_over)
    if bound is not None and turn_over and wraps_up(run, state, bound):
        return WrapUp(bound)
    if bound is not None:
        reason = "max_iterations" if bound.dimension == "iterations" else "budget_exhausted"
        return Settled(reason=reason, error=bound.said, bound=bound)
    if turn_over and (stalled := _stalled(run.budget, state)) is not None:
        return stalled
    waiting = waits(run, state)
    return Wait(waiting) if waiting else None


def reached(
    run: RunState,
    state: KernelState,
    *,
    running_s: float = 0.0,
    total_s: float = 0.0,
    turn_over: bool = True,
    only: tuple[str, ...] | None = None,
    begun: int = 0,
) -> Exhausted | None:
    """Return the first reached bound of the run or the pass. `only` limits the check to these dimensions.

    `begun` calls are added to those already counted.
    """
    only = only or (None if turn_over else ("running_s", "total_s"))
    used, mine = _with_calls(run.counted, begun), _with_calls(state.usage, begun)
    bound = exhausted(run.budget, used, goal_depth=len(run.goals), running_s=running_s, total_s=total_s, only=only)
    if bound is None and turn_over and only is None and run.budget.max_calls_of:
        bound = _refused_tool(run, state)
    if bound is None and (balance := state.balance) is not None:
        bound = tenants(exhausted(balance.limits, charged(run, state, balance, _with_calls(run.usage, begun)), only=only), balance)
    if bound is not None or not turn_over or state.limits is UNBOUNDED:
        return bound
    if state.refused:  # turns that correct an answer count for the run, not for the pass's share
        mine = msgspec.structs.replace(mine, iterations=mine.iterations - state.refused)
    bound = exhausted(state.limits, mine.plus(run.held_in(state.scope)), only=only or (CALLS_USE if state.kernel_type == CALLS else only))
    return bound and msgspec.structs.replace(bound, of="pass")


def _refused_tool(run: RunState, state: KernelState) -> Exhausted | None:
    """Return the bound of a single tool that kept a call of this turn from running, while that bound holds."""
    for call in state.calls.values():
        if call.item is not None and call.item.error is not None and call.item.error.code == "budget_exhausted":
            limit, used = run.budget.calls_of(call.tool), run.calls_of.get(call.tool, 0)
            if limit is not None and used >= limit:
                return Exhausted(f"tool_calls:{call.tool}", limit, used)
    return None


def charged(run: RunState, state: KernelState, balance: TenantBalance, used: Usage | None = None) -> Usage:
    """Return what the run's tenant has used: the store's report, plus what the run has used since (`used` includes calls that have begun)."""
    return balance.used.plus((used or run.usage).since(state.balance_at))


def tenants(bound: Exhausted | None, balance: TenantBalance) -> Exhausted | None:
    """Return a bound of the tenant's account as one of the run."""
    account = f" a {balance.window} for tenant {balance.tenant!r} (this one began on {balance.since}, UTC)"
    return bound and msgspec.structs.replace(bound, dimension=f"tenant_{bound.dimension}", of="run", account=account)


def _with_calls(usage: Usage, begun: int) -> Usage:
    return msgspec.structs.replace(usage, tool_calls=usage.tool_calls + begun) if begun else usage


def waits(run: RunState, state: KernelState) -> str:
    """Return the waiting status that `state` gives to `run`, or "". What another pass asked or scheduled does not hold this one back."""
    held = [c.status for c in state.calls.values() if c.status != "finished"]
    if held and held[0] in ("asked", "in_doubt"):  # calls before the first one that is held back can still run
        doubt = any(c.status == "in_doubt" for c in state.calls.values())
        return "waiting_for_reconciliation" if doubt else "waiting_for_approval"
    if run.asks and any(ask.scope == state.scope for ask in run.asks.values()):
        return "waiting_for_user"
    if run.children and any(c.join and c.status == "open" and c.scope == state.scope for c in run.children.values()):
        return "waiting_for_subagent"
    if run.timers and any(timer.rpartition(".")[0] in ("", state.scope) for timer in run.timers):
        return "waiting_for_schedule"
    return "waiting_for_operator" if run.dead_letter else ""


def _stalled(budget: Budget, state: KernelState) -> Settled | Reflect | None:
    base, most, own = budget.max_non_progress, budget.max_reflections, state.limits.max_reflections
    most = own if most is None else min(most, most if own is None else own)
    turns = state.turns_without_progress
    if base is None or turns < base * (state.reflections + 1):
        return None
    if most is not None and state.reflections >= most:
        return Settled(
            reason="no_progress", error=f"{turns} turns without a new successful observation, after {state.reflections} reflections"
        )
    return Reflect(turns)
