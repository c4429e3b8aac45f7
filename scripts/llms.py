"""Makes llms.txt, the map of the documentation for language models: facts that help to write correct code, and the list of `docs/index.md`.

`scripts/docs.py` writes it with everything else that is generated.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
HEAD = """# Detent

> Detent runs LLM agents durably and keeps a complete, verifiable record of what they did. A run is a log; its state is a fold of that log. Kill the
> process at any moment: another one resumes from the log, and nothing that is already recorded runs twice. Python 3.11 or newer.

Facts that help to write correct code:

- Import from `detent` (Agent, Engine, Plan, ToolCall, FinalAnswer, View, tool), `detent.extend` (seams, events, errors), `detent.testing` (fakes).
- `@tool(side_effect="none")`, `"read"`, `"write"` or `"destructive"`. Without it a tool counts as destructive and asks a person first.
- `Engine(store="sqlite:///runs.db")`, `"postgresql://HOST/DATABASE"`, `"file:DIR"` or `"ram:"`. Use `async with Engine(...) as engine`.
- `result = await engine.run(agent, goal)`. `result.status` is `completed`, `failed`, `stopped` or `waiting_for_...`; `result.output` is the answer.
- An agent plans with `model="openai:gpt-5"`, with `rules=[...]`, or with the engine's `planner=`, an object with `async def plan(self, view) -> Plan`.
- A planner may not read the clock, random numbers or the environment: the same log must give the same plan.
- Tests need no model: `ScriptedPlanner`, `FakeModel`, `FakeTool`, `simulate`.
"""


def text() -> str:
    """Return what llms.txt should be: links lead from the root of the repository."""
    index = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    listed = index[index.index("\n## ") + 1 :]
    led = re.sub(r"(?<=\]\()[^)\s:#]+", lambda to: posixpath.normpath(posixpath.join("docs", to[0])), listed)
    return f"{HEAD}\n{led}"
