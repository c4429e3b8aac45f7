"""Writes llms.txt, the map of the documentation for language models: each page with its title and its first sentence.

    python scripts/llms.py            write it
    python scripts/llms.py --check    only report whether it is out of date, and exit 1 if it is
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
PLACE = ROOT / "llms.txt"
HEAD = """# Detent

> Detent runs LLM agents durably and keeps a complete, verifiable record of what they did. A run is a log; its state is a fold of that log. Kill the
> process at any moment: another one resumes from the log, and nothing that is already recorded runs twice. Python 3.11 or newer, version 0.1.

Facts that help to write correct code:

- Import from `detent` (Agent, Engine, Plan, ToolCall, FinalAnswer, View, tool), `detent.extend` (seams, events, errors), `detent.testing` (fakes).
- `@tool(side_effect="none" | "read" | "write" | "destructive")`. Without it a tool counts as destructive and asks a person first.
- `Engine(store="sqlite:///runs.db")`, `"postgresql://..."`, `"file:DIR"` or `"ram:"`. Use `async with Engine(...) as engine`.
- `result = await engine.run(agent, goal)`. `result.status` is `completed`, `failed`, `stopped` or `waiting_for_...`; `result.output` is the answer.
- An agent plans with `model="openai:gpt-5"`, with `rules=[...]`, or with the engine's `planner=`, an object with `async def plan(self, view) -> Plan`.
- A planner may not read the clock, random numbers or the environment: the same log must give the same plan.
- Tests need no model: `ScriptedPlanner`, `FakeModel`, `FakeTool`, `simulate`.
"""
SECTIONS = (
    ("Start", "start"),
    ("Learn", "learn"),
    ("How to", "howto"),
    ("Reference", "reference"),
    ("Operate", "operate"),
    ("Why", "why"),
)


def about(page: Path) -> tuple[str, str]:
    """Return the title of a page, and its first sentence as plain text."""
    text = re.sub(r"^```.*?^```$|^<!--.*?-->$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    title, _, body = text.lstrip().partition("\n")
    said = [" ".join(part.split()) for part in body.split("\n\n") if re.match(r"\s*[A-Z`*\[]", part)]
    plain = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", said[0]) if said else ""
    first = re.match(r".+?[.?!:](?= |$)", plain.replace("**", ""))
    return title.removeprefix("# ").strip(), first[0].removesuffix(":") if first else ""


def line(page: Path) -> str:
    """Return the line of a page."""
    title, first = about(page)
    return f"- [{title}]({page.relative_to(ROOT).as_posix()})" + (f": {first}" if first else "")


def text() -> str:
    """Return what llms.txt should be."""
    parts = [HEAD]
    for title, folder in SECTIONS:
        pages = sorted((DOCS / folder).rglob("*.md"), key=lambda page: (page.parent.as_posix(), page.name != "index.md", page.name))
        parts.append("\n".join([f"## {title}\n", *map(line, pages)]) + "\n")
    examples = sorted([*(ROOT / "examples").glob("*.py"), *(ROOT / "examples" / "extending").glob("*.py")])
    said = [f"- [{e.name}]({e.relative_to(ROOT).as_posix()}): {e.read_text(encoding='utf-8')[3:].splitlines()[0].strip()}" for e in examples]
    parts.append("\n".join(["## Examples\n", *said]) + "\n")
    return "\n".join(parts)


def main(arguments: list[str]) -> int:
    """Write the file, or say whether it is current; return the exit code."""
    if arguments == ["--check"]:
        current = PLACE.exists() and PLACE.read_text(encoding="utf-8") == text()
        print("llms.txt is current" if current else "llms.txt is out of date: python scripts/llms.py")
        return 0 if current else 1
    PLACE.write_text(text(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
