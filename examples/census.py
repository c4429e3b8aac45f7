"""A planner of your own: two calls that run together, one that writes, an answer.

It prints:

    population {'city': 'Paris'} -> 2100000
    population {'city': 'Lyon'} -> 520000
    publish {'text': '2,620,000 people'} -> published
    completed: 2,620,000 people
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from detent import Agent, Engine, FinalAnswer, Plan, ToolCall, View, tool

BOARD = Path(tempfile.mkdtemp(prefix="detent-census-"), "board.txt")


@tool(side_effect="read")
async def population(city: str) -> int:
    """How many people live in `city`."""
    return {"Paris": 2_100_000, "Lyon": 520_000}[city]


@tool(side_effect="write")
def publish(text: str) -> str:
    """Put a text on the board."""
    with BOARD.open("a", encoding="utf-8") as board:
        board.write(f"{text}\n")
    return "published"


class Census:
    """Decides what comes next from the view alone, so that any process can take a run of it on."""

    async def plan(self, view: View) -> Plan:
        """Ask for what is not known yet; then publish the sum; then answer."""
        known = {item.args["city"]: item.content for item in view.results if item.tool == "population" and item.ok}
        missing = [city for city in view.variables["cities"] if city not in known]
        if missing:
            return Plan(actions=tuple(ToolCall(tool="population", args={"city": city}) for city in missing))
        said = f"{sum(known.values()):,} people"
        if not any(item.tool == "publish" for item in view.results):
            return Plan(actions=(ToolCall(tool="publish", args={"text": said}),))
        return Plan(actions=(FinalAnswer(content=said),))


if __name__ == "__main__":
    agent = Agent(name="census", tools=[population, publish])
    engine = Engine(store="ram:", planner=Census())
    result = engine.run_sync(agent, "How many people live there?", variables={"cities": ["Paris", "Lyon"]})
    for call in result.tool_calls:
        print(f"{call.tool} {call.args} -> {call.content}")
    print(f"{result.status}: {result.output}")
