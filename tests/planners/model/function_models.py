"""Models made of a function, and views by hand, for planners that ask a model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from pydantic_ai.messages import ModelMessage, ModelMessagesTypeAdapter, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from detent.core.agent import AgentSpec
from detent.core.state import Item
from detent.ports import ToolSpec, View

Answers = Sequence[ModelResponse | str | Callable[[list[ModelMessage], AgentInfo], ModelResponse]]


class Asked:
    """A model that gives its answers in turn (the last one again and again) and keeps what it was asked."""

    def __init__(self, answers: Answers, **options: Any) -> None:
        self.answers = list(answers)
        self.messages: list[list[ModelMessage]] = []
        self.infos: list[AgentInfo] = []
        self.model = FunctionModel(self._answer, **options)

    def _answer(self, messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        answer = self.answers[min(len(self.messages), len(self.answers) - 1)]
        self.messages.append(list(messages))
        self.infos.append(info)
        if isinstance(answer, str):
            return ModelResponse(parts=[TextPart(answer)])
        return answer(messages, info) if callable(answer) else answer

    @property
    def head(self) -> str:
        """The system prompt of the last request."""
        return self.infos[-1].instructions or ""

    def said(self, at: int = -1) -> str:
        """Everything in the messages of a request, as one text."""
        return dumped(self.messages[at])


def dumped(messages: list[ModelMessage]) -> str:
    return ModelMessagesTypeAdapter.dump_json(messages).decode()


def calls(*wanted: tuple[str, Any], text: str = "") -> ModelResponse:
    """Return an answer with calls (tool, arguments), numbered c0, c1, ..."""
    parts: list[Any] = [TextPart(text)] if text else []
    return ModelResponse(parts=parts + [ToolCallPart(tool, args, f"c{i}") for i, (tool, args) in enumerate(wanted)])


def a_view(transcript: Sequence[Item] = (), *, agent: AgentSpec = AgentSpec(name="a"), **fields: Any) -> View:  # noqa: B008 - frozen
    """Return a view with the goal "g" and whatever `fields` say."""
    given: dict[str, Any] = {"goal": "g", "iteration": 1, "variables": {}, "results": [], "tools": (), **fields}
    return View(agent=agent, transcript=list(transcript) or [Item(kind="user", text=given["goal"])], **given)


LOOK = ToolSpec(
    name="look",
    description="Look at a thing.",
    side_effect="read",
    input_schema={
        "type": "object",
        "title": "Look",
        "properties": {"x": {"type": "integer", "description": "Which.", "default": 0}, "description": {"type": "string"}},
        "required": ["x"],
    },
)
