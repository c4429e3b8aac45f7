"""One call to the agent's small model beside its turns: for a title, or for a summary. It goes through the run's gateway and is counted."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Literal

import msgspec

from detent.core.errors import PlannerFailed
from detent.core.state import Item
from detent.ports import ModelAnswer, Models, View


def aside(view: View, task: str, models: Models, *, scope: str) -> View:
    """Return the view that asks for a text: the task, and nothing that the agent works with. The small model answers it."""
    return msgspec.structs.replace(
        view,
        goal=task,
        task=task,
        agent=msgspec.structs.replace(view.agent, instructions="", actions=(), tools=(), output_schema=None),
        variables={},
        transcript=(Item(kind="user", text=task),),
        results=(),
        tools=(),
        memory=(),
        scratchpad={},
        guidance=(),
        attachments=(),
        conversation=(),
        output_schema=None,
        goals=(),
        run_id="",
        scope=scope,
        attempt=1,
        small=True,
        models=models,
    )


class Once:
    """The access to models for one call with this purpose and at most so many output tokens; observers see no text of it."""

    def __init__(self, models: Models, purpose: str, most_tokens: int) -> None:
        self._models, self._purpose, self._most, self._called = models, purpose, most_tokens, False

    async def call(
        self,
        model: str,
        send: Callable[[int | None], Awaitable[ModelAnswer]],
        *,
        provider: str = "",
        purpose: str = "",
        input_tokens: int = 0,
        max_output_tokens: int | None = None,
    ) -> ModelAnswer:
        """Make the call. Raise `PlannerFailed` for a second one."""
        if self._called:
            raise PlannerFailed(f"the first answer was not a {self._purpose}")
        self._called = True
        limit = min(max_output_tokens or self._most, self._most)
        return await self._models.call(
            model, send, provider=provider, purpose=self._purpose, input_tokens=input_tokens, max_output_tokens=limit
        )

    def emit(self, kind: Literal["text", "thinking"], content: str) -> Any:
        """Do nothing: this is not an answer."""
