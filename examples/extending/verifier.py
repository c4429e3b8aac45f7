"""A verifier of your own: it says what is wrong with an answer before the answer counts. The planner is told, and has another turn.

It prints:

    turn 2 was told: This answer is not accepted: say what is on the list
    completed: the list has milk
"""

from __future__ import annotations

from typing import Any

from detent import Agent, Engine, FinalAnswer, View
from detent.extend import AnswerView, grounded
from detent.testing import ScriptedPlanner


def names_the_list(answer: Any, view: AnswerView) -> str | None:
    """Return what is wrong with the answer, or nothing."""
    return None if "the list has" in str(answer) else "say what is on the list"


def corrected(view: View) -> FinalAnswer:
    """Give the answer that was asked for."""
    print(f"turn {view.iteration} was told:", view.transcript[-1].text)
    return FinalAnswer(content="the list has milk")


if __name__ == "__main__":
    planner = ScriptedPlanner([FinalAnswer(content="done"), corrected])
    result = Engine(planner=planner).run_sync(Agent(name="clerk", verify=[names_the_list, grounded()]), "What is on the list?")
    print(f"{result.status}: {result.output}")
