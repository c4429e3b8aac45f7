"""How a trial's run ended, in words and held against the undisturbed one."""

from __future__ import annotations

from detent.core import events as e
from detent.core.codec import encode
from detent.testing.ledgers import short
from detent.testing.trials import Attempt

IN_TIME = ("running_s", "total_s", "max_running_s", "max_total_s")
"""The dimensions of a budget that time uses up."""


def ended(attempt: Attempt) -> str:
    """Return how a run ended, in a few words."""
    state = attempt.state
    if state is None:
        return "before its first record"
    if state.status == "completed":
        return f"completed with {short(encode(state.output).decode())}"
    return f"{state.status} ({state.reason})" if state.reason else state.status


def same_end(attempt: Attempt, whole: Attempt) -> bool:
    """Return whether both ended the same, with the same answer."""
    one, other = attempt.state, whole.state
    return one is not None and other is not None and (one.status, one.reason, one.output) == (other.status, other.reason, other.output)


def past(said: str) -> str:
    """Return how a run ended (`ended`) as the rest of a sentence about it."""
    return said if said.startswith("completed") else f"ended {said}"


def must_be_the_same(attempt: Attempt) -> bool:
    """Whether the fault is none of the agent's business: it is not told of it, no call ended without a result, and it has its time."""
    told = any(isinstance(record.event, e.ToolReconciled) and record.event.outcome == "told" for record in attempt.records)
    return attempt.fault.strict and not told and not attempt.guessed and not out_of_time(attempt)


def out_of_time(attempt: Attempt) -> bool:
    """Whether a bound of time ended the run."""
    state = attempt.state
    return state is not None and state.reason == "budget_exhausted" and state.dimension in IN_TIME
