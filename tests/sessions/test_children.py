"""A child of a session's run that asks the user: its question is the session's, at any depth."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from detent import Agent, AskUser, FinalAnswer, ToolCall
from sessions.talks import engine_of

LOW = Agent(name="low")
MIDDLE = Agent(name="middle", subagents={"low": LOW})
BOSS = Agent(name="boss", subagents={"middle": MIDDLE})
BELOW = {"boss": "agent_middle", "middle": "agent_low"}


class Asking:
    """Each agent starts the one below it; the last one asks the user."""

    async def plan(self, view: Any) -> Any:
        """Return the next action."""
        if (below := BELOW.get(view.agent.name)) is not None:
            return FinalAnswer(content=view.results[-1].content) if view.results else ToolCall(tool=below, args={"goal": "ask"})
        said = [item.text for item in view.transcript if item.kind == "user"]
        return AskUser(question="which?") if len(said) < 2 else FinalAnswer(content=said[-1])


def test_a_message_answers_the_question_of_a_grandchild_and_wakes_the_runs_above(tmp_path: Path) -> None:
    """In a new process, too. Otherwise the session would wait for a child that nobody can answer."""

    async def main() -> None:
        store = f"sqlite:///{tmp_path / 'runs.db'}"
        async with engine_of(Asking(), store) as engine:
            assert (await engine.session(BOSS, "trip").send("hello")).status == "waiting_for_subagent"
        async with engine_of(Asking(), store) as engine:
            done = await engine.session(BOSS, "trip").send("blue")
            assert (done.status, done.output, done.run_id) == ("completed", "blue", "trip.1")
            assert (await engine.replay("trip.1")).identical

    asyncio.run(main())
