"""A tool of your own: a typed function, and a declaration of what it does.

`remember` changes something outside, so a crash in the middle leaves a call in doubt unless `reconcile` can say what happened.

It prints:

    remember({'text': 'milk'}) -> noted as 1
    an empty note: failed, nothing_to_note
    completed: the list has milk
"""

from __future__ import annotations

from typing import Any

from detent import Agent, Engine, FinalAnswer, ToolCall, ToolContext, ToolFailed, tool
from detent.extend import Happened, NotHappened
from detent.testing import ScriptedPlanner

NOTES: dict[str, str] = {}


def noted(key: str) -> Happened | NotHappened:
    """Return the outcome of an earlier attempt: the key of a call is the same after a crash."""
    return Happened(f"noted as {list(NOTES).index(key) + 1}") if key in NOTES else NotHappened()


@tool(side_effect="write", reconcile=noted, timeout_s="10s")
async def remember(text: str, context: ToolContext) -> str:
    """Put a note on the list.

    Args:
        text: what to remember
    """
    if not text.strip():
        raise ToolFailed("the note is empty", error_code="nothing_to_note")
    NOTES[context.idempotency_key] = text
    return f"noted as {len(NOTES)}"


def answer(view: Any) -> FinalAnswer:
    """Say what is on the list."""
    return FinalAnswer(content=f"the list has {', '.join(NOTES.values())}")


if __name__ == "__main__":
    planner = ScriptedPlanner([ToolCall(tool="remember", args={"text": "milk"}), ToolCall(tool="remember", args={"text": " "}), answer])
    result = Engine(planner=planner).run_sync(Agent(name="clerk", tools=[remember]), "Remember the milk")
    first, second = result.tool_calls
    print(f"{first.tool}({first.args}) -> {first.content}")
    print("an empty note: failed,", second.error.code if second.error else "")
    print(f"{result.status}: {result.output}")
