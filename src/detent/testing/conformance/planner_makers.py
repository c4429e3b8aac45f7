"""The makers of planners for the contract tests, and shared helpers: views, and a counting gateway."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Literal

import msgspec

from detent.core.agent import AgentSpec
from detent.core.budget import Budget
from detent.core.events import Planned
from detent.core.state import Item
from detent.ports import ModelAnswer, Models, Plan, Planner, ToolSpec, View
from detent.testing.conformance.promises import Maker

Wish = Literal["echo", "look", "garbage", "broken", "hang"]

LOOK = ToolSpec(
    name="look",
    description="Look at a thing.",
    side_effect="read",
    input_schema={
        "type": "object",
        "properties": {"x": {"type": "integer", "description": "Which thing."}},
        "required": ["x"],
        "additionalProperties": False,
    },
    concurrency_safe=True,
)
SEEN = "seen-41"
"""The result of `look`."""


class PlannerMaker(Maker):
    """Makes planners with a given behaviour, whatever they ask: a model, rules, a script.

    asks_models    they ask models, and so must do it through `view.models`
    asked()        how many requests have reached the asked model, rules or script
    limits()       how many output tokens each of these requests allowed, None if not given
    """

    asks_models: bool = False
    agent: AgentSpec = AgentSpec(name="desk")

    def planner(self, wish: Wish) -> Planner | None:
        """Return a new planner, None if there is none with this behaviour.

        echo     gives a final answer that contains the goal of the view
        look     calls the tool `look` with {"x": 7}, and then gives a final answer that contains its result
        garbage  the answer that it gets is not a plan
        broken   its request fails
        hang     its request is never answered
        """
        raise NotImplementedError

    def asked(self) -> int:
        """Return how many requests have reached what the planners ask."""
        return 0

    def limits(self) -> Sequence[int | None]:
        """Return the limit of output tokens of each request."""
        return ()


class Refused(Exception):
    """The exception by which the gateway of a run ends a turn; a planner must not handle it."""


class Gateway:
    """A run's gateway for tests: it forwards requests and keeps them.

    `refuses`: it lets nothing pass and raises `Refused`. `limit`: the most output tokens that a request may ask for.
    """

    def __init__(self, *, refuses: bool = False, limit: int | None = None) -> None:
        self.refuses, self.limit = refuses, limit
        self.purposes: list[str] = []
        self.sent = 0
        self.answers: list[ModelAnswer] = []
        self.emitted: list[tuple[str, Any]] = []

    async def call(
        self,
        model: str,
        send: Callable[[int | None], Awaitable[ModelAnswer]],
        *,
        provider: str = "",
        purpose: str = "plan",
        input_tokens: int = 0,
        max_output_tokens: int | None = None,
    ) -> ModelAnswer:
        """Send once, or refuse."""
        self.purposes.append(purpose)
        if self.refuses:
            raise Refused("the budget is used up")
        asked = [limit for limit in (max_output_tokens, self.limit) if limit is not None]
        self.sent += 1
        answer = await send(min(asked) if asked else None)
        self.answers.append(answer)
        return answer

    def emit(self, kind: Literal["text", "thinking"], content: str) -> None:
        """Keep the piece."""
        self.emitted.append((kind, content))


def view(maker: PlannerMaker, goal: str, *items: Item, models: Models | None = None, run_id: str = "run", **fields: Any) -> View:
    """Return a new view of a run on `goal` after these items."""
    return View(
        goal=goal,
        agent=maker.agent,
        iteration=1 + sum(item.kind == "model" for item in items),
        variables={},
        transcript=[Item(kind="user", text=goal), *items],
        results=[item for item in items if item.kind == "tool"],
        tools=(LOOK,),
        budget_remaining=Budget(max_iterations=20),
        run_id=run_id,
        models=Gateway() if models is None else models,
        **fields,
    )


def observed(plan: Plan, content: Any = SEEN) -> list[Item]:
    """Return the items of a turn in which the call `plan` was executed and returned `content`."""
    call: Any = plan.actions[0]
    recorded = Planned(actions=plan.actions, text=plan.text, thinking=plan.thinking, model=plan.model, provider_data=plan.provider_data)
    observation = Item(
        kind="tool",
        iteration=1,
        call_id="main.1.0",
        tool=call.tool,
        arguments=call.args,
        ok=True,
        result=msgspec.Raw(msgspec.json.encode(content)),
        executed=True,
    )
    return [Item(kind="model", iteration=1, plan=recorded), observation]
