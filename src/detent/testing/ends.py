"""How a trial's run ended: in words, and compared with the undisturbed run."""

from __future__ import annotations

from detent.core import events as e
from detent.core.codec import encode
from detent.testing.ledgers import short
from detent.testing.trials import Attempt

IN_TIME = ("running_s", "total_s", "max_running_s", "max_total_s")
"""The budget dimensions of time."""


def ended(attempt: Attempt) -> str:
    """Return how a run ended, in a few words."""
    state = attempt.state
    if state is None:
        return "before its first record"
    if state.status == "completed":
        return f"completed with {short(encode(state.output).decode())}"
    return f"{state.status} ({state.reason})" if state.reason else state.status


def same_end(attempt: Attempt, whole: Attempt) -> bool:
    """Whether both ended the same way with the same answer."""
    one, other = attempt.state, whole.state
    return one is not None and other is not None and (one.status, one.reason, one.output) == (other.status, other.reason, other.output)


def past(said: str) -> str:
    """Return `ended` as the rest of a sentence about the run."""
    return said if said.startswith("completed") else f"ended {said}"


def must_be_the_same(attempt: Attempt) -> bool:
    """Whether the agent does not notice the fault: it is not told of it, every call ended with a result, and time did not run out."""
    told = any(isinstance(record.event, e.ToolReconciled) and record.event.outcome == "told" for record in attempt.records)
    return attempt.fault.strict and not told and not attempt.guessed and not out_of_time(attempt)


def out_of_time(attempt: Attempt) -> bool:
    """Whether a time limit ended the run."""
    state = attempt.state
    return state is not None and state.reason == "budget_exhausted" and state.dimension in IN_TIME
