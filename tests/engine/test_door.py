"""The engine is a door: its methods are functions of the rooms, and look from outside as methods written here would."""

from __future__ import annotations

import asyncio
import inspect

import pytest

from detent import Agent, Engine

AWAITED = ("run", "step", "resume", "reopen", "fork", "submit", "work", "approve", "reply", "cancel", "load", "replay", "verify", "erase")


@pytest.mark.parametrize("name", AWAITED)
def test_an_awaited_method_is_known_as_one(name: str) -> None:
    """For whoever asks before calling it: frameworks, fakes, and readers of `help(Engine)`."""
    method = getattr(Engine, name)
    assert asyncio.iscoroutinefunction(method)
    assert next(iter(inspect.signature(method).parameters)) == "self"
    assert (method.__qualname__, method.__module__, bool(method.__doc__)) == (f"Engine.{name}", "detent.engine", True)


def test_run_sync_runs_what_run_does() -> None:
    """Also where a program has wrapped `run` in an engine of its own."""

    class Mine(Engine):
        async def run(self, agent: Agent, goal: str, **options: object) -> str:  # type: ignore[override]
            return f"mine: {goal}"

    assert Mine(store="ram:").run_sync(Agent(name="a"), "go") == "mine: go"
