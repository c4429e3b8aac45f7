"""One plan of a model: the request, repeated requests and their limits, and the answer read as a plan.

An empty answer is requested twice more, with a hint. A cut answer is never requested with the same limit again: the limit is
raised once, then the model is told. For a typed answer that does not fit, the model is shown the problem, twice.
"""

from __future__ import annotations

import json
import re
from typing import Any, cast

import msgspec

from detent.core import actions as a
from detent.core.budget import NOTHING, Usage
from detent.core.errors import MalformedPlan, ModelCallFailure, PlannerFailed
from detent.planners.model import control_tools
from detent.planners.model.exchange import Exchange, Reply
from detent.planners.model.messages import Rendering
from detent.planners.model.prompt import Head, tail, tail_parts
from detent.planners.model.provider_parts import EPOCH, Pieces, provider_data, sayable, take_apart, unused
from detent.planners.model.typed_answers import read_arguments, writable
from detent.planners.text.json_objects import as_written
from detent.planners.text.mentions import was_told
from detent.planners.text.reading import Reading, read
from detent.planners.text.surrogates import whole_text
from detent.planners.trimming import tokens_of
from detent.ports import MadeFile, Plan, View
from detent.ports.embedded_calls import call_in
from detent.ports.planning import with_files

RETRIES = 2
"""How often an empty answer, or a typed one that does not fit, is requested again."""
GROWTH = 4
"""The factor by which the output limit of a cut answer is raised, once."""
EMPTY = "Your last answer was empty. Call a tool, or answer the user."
TOO_LONG = "the answer was cut off at {limit}, so nothing of it counts; answer in fewer words, or do less in one step"


class Turn:
    """The attempts of one plan. `raised` is the raised output limit of this pass, None if it was not raised."""

    def __init__(self, exchange: Exchange, view: View, head: Head, rendering: Rendering, *, raised: int | None) -> None:
        self.exchange, self.view, self.head, self.rendering = exchange, view, head, rendering
        self.raised = raised
        self._limit = exchange.max_tokens if raised is None else raised
        self._empty = self._unfit = 0
        self._hints: list[str] = []
        self._follow: list[Any] = []
        self._files: list[MadeFile] = []
        self._usage = NOTHING

    async def plan(self) -> Plan:
        """Return the plan; raise `MalformedPlan`, `ModelCallFailure`, `PlannerFailed`."""
        while True:
            reply = await self._ask()
            if reply.response.finish_reason == "length":
                self._cut_off(reply)
                continue
            pieces = take_apart(reply.response)
            self._files += pieces.files
            reading = (
                None if pieces.calls else read(pieces.text, self.head.offer, told=was_told(self.view.transcript), results=self.view.results)
            )
            if reading is not None and a.is_blank(reading.said) and not pieces.files:
                self._was_empty()
                continue
            plan = self._read(pieces, reading, reply.response)
            if plan is not None:
                return plan

    async def _ask(self) -> Reply:
        said = tail(self.view, extra=self._hints)
        messages = [*self.rendering.messages(tail_parts(said)), *self._follow]
        size = tokens_of(self.head.chars + self.rendering.chars + len(said))
        try:
            reply = await self.exchange.ask(
                self.view.models, messages, self.head.params, purpose="plan", input_tokens=size, limit=self._limit
            )
        except ModelCallFailure as failure:
            if failure.kind == "malformed":  # the model gets its provider's message, and tries again
                used = self._usage if failure.usage is None or self.view.models is not None else self._usage.plus(failure.usage)
                raise MalformedPlan(str(failure), usage=None if used == NOTHING else used) from failure
            if failure.kind == "bad_request" and self.raised is not None:  # the provider rejects so high a limit
                raise MalformedPlan(TOO_LONG.format(limit="what the model can say at once"), usage=self._told()) from failure
            raise
        self._usage = self._usage.plus(reply.usage)
        return reply

    def _cut_off(self, reply: Reply) -> None:
        """Raise the output limit for one more request, or tell the model by raising `MalformedPlan`."""
        sent = reply.limit or reply.response.usage.output_tokens or 0
        most = self.exchange.most_output_tokens
        wanted = sent * GROWTH if most is None else min(sent * GROWTH, most)
        clamped = self._limit is not None and reply.limit is not None and reply.limit < self._limit  # the budget leaves no more
        if self.raised is not None or clamped or wanted <= sent:
            raise MalformedPlan(TOO_LONG.format(limit=f"{sent} tokens"), raw=reply.response.text or "", usage=self._told())
        self.raised = self._limit = wanted

    def _was_empty(self) -> None:
        self._empty += 1
        if self._empty > RETRIES:
            told = f"model {self.exchange.name!r} gave {self._empty} empty answers in a row"
            raise ModelCallFailure(told, kind="empty", usage=self._told())
        self._hints = [EMPTY]

    def _read(self, pieces: Pieces, reading: Reading | None, response: Any) -> Plan | None:
        """Return the plan of an answer. None if its typed answer does not fit and is to be given again.

        `reading` is the content of its text, None if it makes calls.
        """
        actions: list[a.AnyAction] = []
        controls: dict[int, tuple[str, Any]] = {}
        problem = ""
        if reading is not None and self.head.names:
            reading = msgspec.structs.replace(reading, actions=tuple(map(self.head.in_own_names, reading.actions)))
        for number, call in enumerate(pieces.calls):
            args = read_arguments(call.args)
            if self.head.offer.answer_tool and call.tool_name == self.head.offer.answer_tool:
                controls[number] = (call.tool_name, args)
                answer, problem = self._typed(args)
                actions.append(a.FinalAnswer(content=answer))
            elif call.tool_name in self.head.controls:
                controls[number] = (call.tool_name, args)
                actions.append(self._control(call.tool_name, args))
            else:
                actions.append(a.ToolCall(tool=self.head.own_name(call.tool_name), args=args, provider_id=call.tool_call_id))
        if reading is not None:
            problem = reading.problem
            said = as_written(reading.actions, pieces.text) if reading.mended else reading.actions
            own_form = self.head.offer.output_schema is not None or self._call_that_is(reading) is not None
            actions += said if own_form else [with_files(action, pieces.files) for action in said]
        if problem and self.head.offer.output_schema is None:
            raise MalformedPlan(problem, raw=pieces.text, usage=self._told())
        if problem:
            self._does_not_fit(problem, pieces, response)
            return None
        safe = "" if reading is None else self._in_words_that_can_be_hidden(reading)
        data = None if safe else provider_data(pieces, controls, system=self.exchange.system, model=self.exchange.model_name)
        return Plan(
            actions=tuple(actions),
            text=safe or pieces.text,
            thinking="\n\n".join(filter(None, (pieces.thinking, reading.thinking if reading is not None else ""))),
            usage=self._usage,
            model=response.model_name or self.exchange.model_name,
            files=tuple(self._files),
            provider_data=data,
        )

    def _in_words_that_can_be_hidden(self, reading: Reading) -> str:
        """Return a call that a text makes as `name({...})`, so that redaction finds sensitive fields; "" if the text can be kept as it is."""
        found = self._call_that_is(reading)
        return found.string if found is not None and self.head.offer.tools[found["tool"]].sensitive else ""

    def _call_that_is(self, reading: Reading) -> re.Match[str] | None:
        """Return the call that an answer consists of or ends in, which the kernel searches in its text; None without one."""
        content: Any = next((action.content for action in reading.actions if isinstance(action, a.FinalAnswer)), None)
        found = call_in(content, self.head.offer.tools) if isinstance(content, str) else None
        return None if found is None else found[1]

    def _control(self, name: str, args: Any) -> a.AnyAction:
        try:
            return control_tools.action_of(name, args)
        except MalformedPlan as error:
            raise MalformedPlan(error.problem, raw=error.raw, usage=self._told()) from None

    def _typed(self, args: Any) -> tuple[Any, str]:
        """Return the typed answer in a call's arguments, and its problem."""
        if not isinstance(args, dict):
            return None, "the arguments are no JSON object"
        given = cast("dict[str, Any]", args)
        answer = given.get("answer") if self.head.wrapped else given
        problem = self.head.offer.answer_problem(answer)
        if problem and self.head.wrapped and "answer" not in given:
            problem = f"the arguments have no 'answer', which must hold the answer (given: {', '.join(given)[:200] or 'nothing'})"
        return answer, problem

    def _does_not_fit(self, problem: str, pieces: Pieces, response: Any) -> None:
        """Show the model the problem of its typed answer. Raise `PlannerFailed` after the last try."""
        from pydantic_ai import messages as m

        self._unfit += 1
        if self._unfit > RETRIES:
            raise PlannerFailed(
                f"model {self.exchange.name!r} gave no answer that fits the output schema in {self._unfit} tries; the last problem: {problem}",
                reason="output_schema_failed",
            )
        told = f"This is not accepted: {problem}. Give the whole answer again."
        taken: set[str] = set()
        for call in pieces.calls:
            call.tool_call_id, call.tool_name = unused(call.tool_call_id, taken), sayable(call.tool_name)
            call.args = _sendable(writable(call.args))
        parts: list[Any] = [
            m.ToolReturnPart(call.tool_name, told if n == 0 else "Not run.", call.tool_call_id, timestamp=EPOCH, outcome="retried")
            for n, call in enumerate(pieces.calls)
        ]
        self._follow += [response, m.ModelRequest(parts=parts or [m.UserPromptPart(told, timestamp=EPOCH)], timestamp=EPOCH)]

    def _told(self) -> Usage | None:
        """Return the usage for an error: None if the gateway counted it already."""
        return None if self._usage == NOTHING else self._usage


def _sendable(args: Any) -> Any:
    """Return arguments that can be sent back: half a surrogate pair cannot."""
    text = args if isinstance(args, str) else json.dumps(args, ensure_ascii=False)
    sound = whole_text(text)
    if sound == text:
        return args
    return sound if isinstance(args, str) else json.loads(sound)
