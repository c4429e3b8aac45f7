"""An observer of your own: it is told every record after it was stored, and can never fail a run.

It prints:

    TurnStarted, Planned, ToolStarted, ToolFinished
    completed: the list has milk
"""

from __future__ import annotations

from detent import Agent, Engine, ToolCall
from detent.extend import Chunk, Record, RunState, events
from detent.testing import ScriptedPlanner


class Diary:
    """Keeps what happened in the first turn."""

    def __init__(self) -> None:
        self.happened: list[str] = []

    def on_record(self, record: Record, state: RunState) -> None:
        """Hear of a record."""
        if record.envelope.iteration == 1 and not isinstance(record.event, events.PolicyDecided):
            self.happened.append(type(record.event).__name__)

    def on_chunk(self, chunk: Chunk) -> None:
        """Hear of a piece of text while a model writes it; it is never stored."""


if __name__ == "__main__":
    from tool import answer, remember

    diary = Diary()
    planner = ScriptedPlanner([ToolCall(tool="remember", args={"text": "milk"}), answer])
    result = Engine(planner=planner, observers=[diary]).run_sync(Agent(name="clerk", tools=[remember]), "Remember the milk")
    print(", ".join(diary.happened[:4]))
    print(f"{result.status}: {result.output}")
