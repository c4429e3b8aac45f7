"""Requests to a text generator for one plan: the run's gateway or the plan counts every generation, and each is streamed as it comes."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from detent.core.actions import AnyAction
from detent.core.agent import AgentSpec
from detent.core.budget import NOTHING, Usage
from detent.planners.deadlines import Deadline
from detent.planners.raw_text.generation import Generation, Request, TextGenerator, generate
from detent.planners.text.mentions import was_told
from detent.planners.text.think_blocks import ThinkingSplitter
from detent.planners.trimming import CountTokens
from detent.ports import MadeFile, ModelAnswer, Plan, View

MARK = "on_device"
"""The key in a plan's `provider_data` for facts that the log should have about its origin."""
RAISED = 2
"""The factor by which the limit of a cut answer is raised, once a plan."""


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one generation; `limit` is its token limit."""

    text: str
    thinking: str = ""
    finish: str = ""
    limit: int | None = None
    files: tuple[MadeFile, ...] = ()


def asked_as(generator: Any, model: str, agent: AgentSpec) -> tuple[str, str]:
    """Return the model and the provider under which a generator's calls are counted. `model` is the name given for it."""
    return model or getattr(generator, "model", "") or agent.model or "on-device", getattr(generator, "provider", "") or "on-device"


class Asking:
    """The generations of one plan: how to make them, their usage, their repairs."""

    def __init__(self, generator: TextGenerator, view: View, *, model: str, count: CountTokens, limit: int, stop: tuple[str, ...]) -> None:
        self._generator, self._view, self._count, self._stop = generator, view, count, stop
        self._model, self._provider = asked_as(generator, model, view.agent)
        self._limit, self._last_limit, self._raised = limit, limit, False
        self._used, self._told_model = NOTHING, ""
        self.repairs: list[str] = []
        self._files: list[MadeFile] = []

    async def ask(self, request: Request) -> Asked:
        """Make one generation. Raise what the generator or the gateway raises."""
        whole = msgspec.structs.replace(request, max_tokens=self._limit, stop=(*request.stop, *self._stop))
        deadline = Deadline(getattr(self._generator, "timeout_s", None))

        async def send(limit: int | None) -> ModelAnswer:
            return await deadline.bound(self._send(whole, limit), model=self._model)

        if self._view.models is None:
            answer = await send(self._limit)
            self._used = self._used.plus(msgspec.structs.replace(answer.usage, model_calls=1))
            self._told_model = answer.model or self._told_model
        else:
            answer = await self._view.models.call(
                self._model,
                send,
                provider=self._provider,
                input_tokens=whole.tokens,
                max_output_tokens=self._limit,
            )
        self._files += answer.value.files
        return answer.value

    def raise_limit(self) -> bool:
        """Allow longer answers from now on. Return False if that was done already, or if the run's budget cut the answer off."""
        if self._raised or self._last_limit < self._limit:
            return False
        self._raised, self._limit = True, self._limit * RAISED
        return True

    @property
    def was_told(self) -> bool:
        """Whether the model was told how to show a call without making it."""
        return was_told(self._view.transcript, self.repairs)

    def usage(self) -> Usage:
        """Return the usage to charge with the plan: none if the gateway has charged it."""
        return self._used

    def plan(self, actions: tuple[AnyAction, ...], *, text: str = "", thinking: str = "", note: dict[str, Any] | None = None) -> Plan:
        """Return the plan, with the facts for the log about its origin."""
        data = {**(note or {}), **({"repairs": self.repairs} if self.repairs else {})}
        return Plan(
            actions=actions,
            text=text,
            thinking=thinking,
            usage=self._used,
            model="" if self._view.models is not None else self._told_model or self._model,
            provider_data={MARK: data} if data else None,
            files=tuple(self._files),
        )

    async def _send(self, request: Request, limit: int | None) -> ModelAnswer:
        self._last_limit = self._limit if limit is None else limit
        given = await self._streamed(msgspec.structs.replace(request, max_tokens=limit))
        usage = given.usage
        if usage == NOTHING:
            usage = Usage(
                input_tokens=request.tokens,
                output_tokens=self._count(given.text) + self._count(given.thinking),
                estimated=True,
            )
        asked = Asked(text=given.text, thinking=given.thinking, finish=given.finish, limit=limit, files=given.files)
        return ModelAnswer(
            value=asked, usage=usage, model=given.model or self._model, request_id=given.request_id, finish=given.finish or "stop"
        )

    async def _streamed(self, request: Request) -> Generation:
        """Generate, and separate text from thinking in the stream."""
        models, splitter = self._view.models, ThinkingSplitter()

        def emit(kind: Literal["text", "thinking"], content: str) -> None:
            if models is None:
                return
            if kind == "thinking":
                models.emit(kind, content)
                return
            for told, piece in splitter.feed(content):
                models.emit(told, piece)

        given = await generate(self._generator, request, emit)
        if models is not None:
            for told, piece in splitter.end():
                models.emit(told, piece)
        return given
