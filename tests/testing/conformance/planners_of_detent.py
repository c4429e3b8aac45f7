"""Detent's own planners as the contract wants them: doing what a test wishes, whatever it is that they ask."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Sequence
from typing import Any

from detent.core.actions import FinalAnswer, ToolCall
from detent.core.errors import MalformedPlan, PlannerFailed
from detent.planners import RulePlanner
from detent.planners.fallback import FallbackPlanner
from detent.planners.model.planner import ModelPlanner
from detent.planners.raw_text.generators import ChatCompletionsGenerator
from detent.planners.raw_text.planner import OnDevicePlanner
from detent.ports import Plan, Planner, View
from detent.testing import RecordedPlanner, ScriptedPlanner
from detent.testing.conformance.planner_makers import SEEN, PlannerMaker, Wish
from detent.testing.recorded import Entry, Script
from planners.model.chat_server import HANGS_UP, Answer, ChatServer, fails, says

GOAL = re.compile(r"goal-\d+(?:-of-\d+)?")


class Rules(PlannerMaker):
    """Rules, which ask nobody."""

    def planner(self, wish: Wish) -> Planner | None:
        match wish:
            case "echo":
                return RulePlanner.from_rules([{"name": "say", "answer": "said: ${goal}"}])
            case "look":
                return RulePlanner.from_rules(
                    [
                        {"name": "look", "when": "!results.seen.ok", "as": "seen", "call": {"tool": "look", "args": {"x": 7}}},
                        {"name": "say", "when": "results.seen.ok", "answer": "it gave ${results.seen.value}"},
                    ]
                )
            case "broken":
                return RulePlanner.from_rules([{"name": "say", "answer": "${variables.missing}"}])
            case _:
                return None


class Scripts(PlannerMaker):
    """A script of functions of the view."""

    def planner(self, wish: Wish) -> Planner | None:
        def entry(view: View) -> Any:
            if wish == "garbage":
                raise MalformedPlan("that is no plan", raw="))((")
            if wish == "broken":
                raise PlannerFailed("nobody answers")
            if wish == "look" and not view.results:
                return ToolCall(tool="look", args={"x": 7})
            return FinalAnswer(content=f"{view.goal} gave {[item.content for item in view.results]}")

        async def never(view: View) -> Any:
            import asyncio

            await asyncio.Event().wait()

        return ScriptedPlanner([never if wish == "hang" else entry] * 20)


class Recordings(PlannerMaker):
    """Recorded plans, by sequence: what is shown does not matter."""

    def planner(self, wish: Wish) -> Planner | None:
        where: dict[str, Any] = {"scope": "main"}
        entries = {
            "look": (
                Entry(iteration=1, actions=(ToolCall(tool="look", args={"x": 7}),), **where),
                Entry(iteration=2, actions=(FinalAnswer(content=f"it gave {SEEN}"),), **where),
            ),
            "garbage": (Entry(iteration=1, rejected="that is no plan", raw="))((", **where),),
            "broken": (),
        }.get(wish)
        return None if entries is None else RecordedPlanner(Script(run_id="r", agent="desk", goal="g", by_sequence=True, entries=entries))


class Served(PlannerMaker):
    """Planners that ask a model server on loopback; `make` makes one for a URL."""

    asks_models = True

    def __init__(self, make: Callable[[str], Planner], *, raw: bool = False) -> None:
        self._make, self._raw = make, raw
        self._wish: Wish = "echo"
        self._made: list[Any] = []
        self._freed = threading.Event()
        self._server = ChatServer([self._answer])
        self._server.__enter__()

    def end(self) -> None:
        """Stop the server."""
        self._freed.set()
        self._server.__exit__()

    def planner(self, wish: Wish) -> Planner | None:
        if wish == "garbage" and not self._raw:
            return None  # what a provider does not mark as a call is text, and text is an answer
        self._wish = wish
        self._made.append(self._make(self._server.url))
        return self._made[-1]

    async def close(self) -> None:
        for planner in self._made:
            if hasattr(planner, "close"):
                await planner.close()

    def asked(self) -> int:
        return len(self._server.requests)

    def limits(self) -> Sequence[int | None]:
        return [r.get("max_completion_tokens", r.get("max_tokens")) for r in self._server.requests]

    def _answer(self, asked: dict[str, Any]) -> Answer:
        said = json.dumps(asked["messages"])
        if self._wish == "hang":
            self._freed.wait()
            return HANGS_UP
        if self._wish == "broken":
            return fails(401, "no such key")
        if self._wish == "garbage":
            return says('{"type": "tool_call", "tool": ')
        if self._wish == "look" and SEEN not in said:
            if self._raw:
                return says(json.dumps({"type": "tool_call", "tool": "look", "args": {"x": 7}}))
            return says("I look.", ("c1", "look", {"x": 7}))
        text = f"it gave {SEEN}" if self._wish == "look" else f"said: {GOAL.findall(said)[-1]}"
        return says(json.dumps({"type": "final_answer", "content": text}) if self._raw else text)


def chat_model(url: str) -> Any:
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    return OpenAIChatModel("served", provider=OpenAIProvider(api_key="sk-test", base_url=url))


def streamed(url: str) -> Planner:
    return ModelPlanner(chat_model(url), settings={"max_tokens": 1000})


def at_once(url: str) -> Planner:
    return ModelPlanner(chat_model(url), settings={"stream": False, "max_tokens": 1000})


def on_device(url: str) -> Planner:
    return OnDevicePlanner(ChatCompletionsGenerator("served", base_url=url), max_repairs=1)


class _Down:
    """A planner whose model is never reached."""

    async def plan(self, view: View) -> Plan:
        from detent.core.errors import ModelCallFailure

        raise ModelCallFailure("nobody answers", kind="connection")


def fallback(url: str) -> Planner:
    return FallbackPlanner([_Down(), at_once(url)])
