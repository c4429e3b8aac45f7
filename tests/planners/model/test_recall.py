"""What a model sees of a long result, and how it gets at the rest."""

from __future__ import annotations

import asyncio
from typing import Any

from detent import Agent, Engine, tool
from detent.planners.model.planner import ModelPlanner
from planners.model.function_models import Asked, calls


@tool(side_effect="read")
async def entries() -> list[str]:
    """Give many entries."""
    return [f"entry {n}" for n in range(500)]


def asked_for(tools: list[Any]) -> Asked:
    """Return the model after a run in which it looked, recalled, and answered."""
    recall = calls(("recall", {"key": "main.1.0", "full": True}))
    asked = Asked([calls(("entries", {})), *([recall] if len(tools) > 1 else []), "fine"])

    async def main() -> None:
        async with Engine(planner=ModelPlanner(asked.model)) as engine:
            result = await engine.run(Agent(name="a", tools=tools, profile={"tier": "frontier"}), "go")
            assert result.output == "fine" and (await engine.replay(result.run_id)).identical

    asyncio.run(main())
    return asked


def test_a_preview_says_how_the_rest_is_read_and_recall_shows_it_whole() -> None:
    """With a profile a long result is cut; with `recall` listed the key stands below it, and what is recalled is not cut again."""
    asked = asked_for([entries, "recall"])
    assert "entry 499" not in asked.said(1) and 'recall with key \\"main.1.0\\" gives the rest' in asked.said(1)
    assert "entry 499" in asked.said(2)


def test_without_recall_nothing_is_promised() -> None:
    """The preview only says what is missing."""
    asked = asked_for([entries])
    assert "entry 499" not in asked.said(1) and "recall" not in asked.said(1)
