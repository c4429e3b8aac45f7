"""Control actions that do not end the pass: a question, a sub-goal, a timer. If one is not possible, the planner is told."""

from __future__ import annotations

from typing import Any

from detent.core import events as e
from detent.core.actions import Abstain, AskUser, CompleteGoal, FinalAnswer, PushGoal, Schedule, Stop, Thought
from detent.kernel.context import KernelContext
from detent.ports.clocks import due_at
from detent.ports.delegation import has_parent


async def control(action: Any, context: KernelContext) -> None:
    """Execute a control action that does not end the pass."""
    state, run = context.state, context.run.state
    name = f"{context.scope}.{state.iteration}"
    match action:
        case AskUser(to="parent") if not has_parent(run):
            _tell(context, "This run has no parent to ask.")
        case AskUser(question=question, expected=expected, to=to):
            context.run.record(context.scope, e.UserAsked(ask_id=name, question=question, expected=expected, to=to))
            await context.commit(durable=True)
        case PushGoal(goal=goal):
            context.run.record(context.scope, e.GoalPushed(goal_id=name, goal=goal))
        case CompleteGoal(goal_id=goal_id, outcome=outcome):
            wanted = goal_id or (run.goals[-1].goal_id if run.goals else "")
            if any(g.goal_id == wanted for g in run.goals):
                context.run.record(context.scope, e.GoalCompleted(goal_id=wanted, outcome=outcome))
            else:
                _tell(context, f"There is no open goal {wanted!r} to complete.")
        case Schedule(at=at, delay_s=delay):
            due = due_at(at, delay, run.updated_at)
            if due is None:
                _tell(
                    context,
                    f"The schedule was not set: at={at!r} is not an ISO 8601 time and delay_s={delay} is none that can be waited for.",
                )
                return
            context.run.record(context.scope, e.ScheduleSet(timer_id=name, due=due))
            await context.commit(durable=True)
        case Thought() | FinalAnswer() | Stop() | Abstain():
            return
        case _:
            _tell(context, f"{type(action).__name__} is not available in this run.")


def _tell(context: KernelContext, text: str) -> None:
    """Answer a control action with a note. It then counts as executed."""
    context.run.record(context.scope, e.NoteWritten(text=text, author="control"))
