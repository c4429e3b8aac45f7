"""The agent's tools. The types and the docstring of a function are what a model is told."""

from __future__ import annotations

from detent import ToolFailed, tool

PEOPLE = {"Berlin": 3_660_000, "Lyon": 520_000, "Paris": 2_100_000}


@tool(side_effect="read")
def population(city: str) -> int:
    """Return how many people live in a city.

    Args:
        city: Its English name.
    """
    if city not in PEOPLE:
        raise ToolFailed(f"{city!r} is not known; known are {', '.join(PEOPLE)}")
    return PEOPLE[city]
