"""`OnDevicePlanner`: a raw-text model as a planner. All help for a weak model is inside `plan()`.

    view -> prompt (stable prefix, turns, tail) -> generate -> read -> [told what was wrong, generate again] -> verify -> Plan

The planner is a function of the view and of the generator's output. It keeps only renderings between two calls, so a run that resumes in a fresh
process sends the same bytes. Every generation passes the run's gateway (`view.models`) if there is one, including repairs and guided
retries. Without a gateway the plan has their usage.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any, Literal

import msgspec

from detent.core.actions import Abstain, AnyAction, FinalAnswer, Thought, ToolCall, is_blank
from detent.core.agent import AgentSpec
from detent.core.errors import ConfigError, MalformedPlan, UnknownName
from detent.core.state import Item
from detent.planners.raw_text.action_schema import SchemaChecks, action_schema
from detent.planners.raw_text.asking import Asked, Asking, asked_as
from detent.planners.raw_text.blocks import Renderer, earlier_messages, whole
from detent.planners.raw_text.compact_prompt import Example, ToolStyle, goal_text, system_text, tail_text
from detent.planners.raw_text.generation import Message, Request, TextGenerator
from detent.planners.text.json_objects import as_written, mends_in
from detent.planners.text.offers import ACTIONS, DEFAULT_ACTIONS, Offer
from detent.planners.text.reading import Reading, read
from detent.planners.trimming import CountTokens, clipped, count_by_length
from detent.planners.verifiers import Verifier, verify
from detent.ports import Plan, ToolSpec, View
from detent.ports.options import checked_options
from detent.ports.planning import with_files

log = logging.getLogger("detent")

STOP_AT = ("\nObservation", "\nUser:")
"""Where a model that does not stop begins to invent observations."""

SHOWN_BAD_OUTPUT = 1500
"""Characters of a bad answer that are shown to the model."""


class Repair(msgspec.Struct, frozen=True, kw_only=True):
    """One repair turn: the `attempt` (1, 2, ...), the `problem` in the words for the model, and the `output` that had it."""

    attempt: int
    problem: str
    output: str


class _Prefix(msgspec.Struct, frozen=True, kw_only=True):
    """The parts that are the same as long as agent, tools and output schema are."""

    agent: AgentSpec
    tools: tuple[ToolSpec, ...]
    output_schema: dict[str, Any] | None
    system: str
    system_tokens: int
    schema: dict[str, Any] | None
    offer: Offer


class OnDevicePlanner:
    """Plans with a raw-text model behind `generate` (see `TextGenerator`).

    `actions`: the model's possible answers, from `text.offers.ACTIONS`; by default a call, an answer, a thought and the agent's
    `actions` (if it lists none: a question to the user and a stop). `max_repairs`: how often in one plan the model is shown its
    mistake; `on_repair` is called each time. `max_prompt_tokens`, `max_output_tokens`: sizes, counted by `count_tokens`. `constrain`: pass the
    action schema to the generator. `tool_style`: how much the prompt says about a tool. `verify`: a check of the final answer (`verifiers`). An
    answer that fails it is requested once more; if that fails too, `on_unverified` decides: `reject` (no plan), `accept` (marked in the
    plan's `provider_data`) or `abstain`. `prose`: whether text without an action is the answer. `model`: its name in the log; by default
    the generator's, else the agent's. `examples`: few-shot examples.

    Raises `ConfigError` for invalid options. `plan` raises `MalformedPlan` when repairs are used up, and `PlannerFailed`
    (`context_overflow`) if the prompt is larger than `max_prompt_tokens`: the run is then compacted, and the planner called once more.
    """

    asks_only_its_own = True
    """See `ports.asks_only_its_own`."""

    @checked_options
    def __init__(
        self,
        generate: TextGenerator,
        *,
        model: str = "",
        actions: Sequence[str] | None = None,
        max_repairs: int = 2,
        max_prompt_tokens: int = 3500,
        max_output_tokens: int = 1024,
        count_tokens: CountTokens = count_by_length,
        constrain: bool = True,
        tool_style: ToolStyle = "names-and-types",
        max_observation_chars: int = 4000,
        verify: Verifier | None = None,
        on_unverified: Literal["reject", "accept", "abstain"] = "reject",
        prose: bool = True,
        examples: Sequence[Example] = (),
        on_repair: Callable[[Repair], Any] | None = None,
    ) -> None:
        _check_options(generate, DEFAULT_ACTIONS if actions is None else actions, max_repairs, max_prompt_tokens, max_output_tokens)
        self.model = model
        self._generate, self._repairs = generate, max_repairs
        self._actions = None if actions is None else tuple(actions)
        self._prompt_tokens, self._output_tokens, self._count = max_prompt_tokens, max_output_tokens, count_tokens
        self._style: ToolStyle = tool_style
        self._constrain, self._prose = constrain, prose
        self._verify, self._on_unverified = verify, on_unverified
        self._examples, self._on_repair = tuple(examples), on_repair
        self._renderer = Renderer(count=count_tokens, longest=max_observation_chars)
        self._prefix: _Prefix | None = None

    def models_asked(self, agent: AgentSpec) -> list[tuple[str, str]]:
        """Return the model that is called for the agent; see `ports.models_asked`."""
        return [asked_as(self._generate, self.model, agent)]

    def prompt_limits(self, agent: AgentSpec) -> tuple[int, Callable[[Item], int] | None]:
        """See `ports.prompt_limits`. Each prompt is counted here, so no window is named."""
        return 0, self._renderer.tokens_of

    async def plan(self, view: View) -> Plan:
        """Return the model's next action. Raise `MalformedPlan` if repairs do not help."""
        prefix = self._prefix_of(view)
        asking = Asking(
            self._generate, view, model=self.model, count=self._count, limit=self._output_tokens, stop=() if self._constrain else STOP_AT
        )
        return await self._next_action(view, prefix, asking)

    def request(self, view: View, told: Sequence[Message] = ()) -> Request:
        """Return the request for this view, with the corrections `told` after it.

        A pure function of these. Corrections that do not fit are left out, the oldest first.
        """
        prefix = self._prefix_of(view)
        rendered, last = self._renderer.render(view)
        messages, used = whole(
            prefix.system,
            goal_text(view),
            rendered,
            last,
            tail_text(view),
            earlier=earlier_messages(view, self._renderer.longest),
            budget=self._prompt_tokens,
            count=self._count,
            system_tokens=prefix.system_tokens,
        )
        while used + (size := sum(self._count(message.content) for message in told)) > self._prompt_tokens:
            told = told[2:]
        return Request(messages=(*messages, *told), tokens=used + size, max_tokens=self._output_tokens, schema=prefix.schema)

    def _prefix_of(self, view: View) -> _Prefix:
        """Return the parts made from the view's agent, tools and output schema; they are made again if those change."""
        known = self._prefix
        if known is not None and known.tools == view.tools and known.agent == view.agent and known.output_schema == view.output_schema:
            return known
        actions = self._actions or _actions_of(view.agent)
        system = system_text(
            instructions=view.agent.instructions,
            tools=view.tools,
            actions=actions,
            output_schema=view.output_schema,
            style=self._style,
            examples=self._examples,
        )
        checks = SchemaChecks(view.tools, view.output_schema)
        offer = Offer(
            tools={tool.name: tool for tool in view.tools},
            actions=actions,
            output_schema=view.output_schema,
            problem_of=checks.arguments,
            answer_problem=checks.answer,
            prose=self._prose,
            stop=() if self._constrain else STOP_AT,
        )
        schema = action_schema(view.tools, actions=actions, output_schema=view.output_schema) if self._constrain else None
        self._prefix = _Prefix(
            agent=view.agent,
            tools=view.tools,
            output_schema=view.output_schema,
            system=system,
            system_tokens=self._count(system),
            schema=schema,
            offer=offer,
        )
        return self._prefix

    # One plan ---------------------------------------------------------------------------------------------------------------------

    async def _next_action(self, view: View, prefix: _Prefix, asking: Asking) -> Plan:
        """Request an action, repair what cannot be read, verify an answer."""
        told: list[Message] = []

        def request() -> Request:
            return self.request(view, told)

        reading, asked = await self._readable(request, told, prefix, asking)
        unverified = ""
        if self._verify is not None and (answer := _answer_of(reading.actions)) is not None:
            problem = await verify(self._verify, answer.content, view)
            if problem:
                told += self._correction(asking, f"the answer was checked, and {problem}", asked)
                reading, asked = await self._readable(request, told, prefix, asking)
                answer = _answer_of(reading.actions)
                unverified = await verify(self._verify, answer.content, view) if answer is not None else ""
        if unverified and self._on_unverified == "reject":
            raise MalformedPlan(f"the answer was checked twice, and {unverified}", raw=asked.text, usage=asking.usage())
        actions = as_written(reading.actions, asked.text) if reading.mended else reading.actions
        if unverified and self._on_unverified == "abstain":
            actions = (Abstain(missing=(unverified,), reason="the answer could not be verified"),)
        note = {"mended": list(mends_in(asked.text))} if reading.mended else {}
        typed = prefix.output_schema is not None  # such an answer has its own form
        return asking.plan(
            actions if typed else tuple([with_files(action, asked.files) for action in actions]),
            text=_text_of(actions),
            thinking=_both(asked.thinking, reading.thinking),
            note={**note, "unverified": unverified} if unverified else note,
        )

    async def _readable(
        self, request: Callable[[], Request], told: list[Message], prefix: _Prefix, asking: Asking
    ) -> tuple[Reading, Asked]:
        """Request until the answer can be read; corrections are added to `told`. Raise `MalformedPlan` when repairs are used up."""
        while True:
            asked = await asking.ask(request())
            reading = read(asked.text, prefix.offer, finish=asked.finish, told=asking.was_told)
            if asked.files and is_blank(asked.text) and prefix.output_schema is None:  # the files are the answer
                reading = msgspec.structs.replace(reading, actions=(FinalAnswer(content=""),))
            if reading.actions:
                return reading, asked
            if reading.cut and asked.finish == "length" and asking.raise_limit():
                continue
            if len(asking.repairs) >= self._repairs:
                if reading.unfit:  # valid JSON that does not fit: the kernel refuses it, and the refusal is an observation
                    return msgspec.structs.replace(reading, actions=reading.unfit), asked
                raise MalformedPlan(reading.problem, raw=asked.text, usage=asking.usage())
            told += self._correction(asking, reading.problem, asked)

    def _correction(self, asking: Asking, problem: str, asked: Asked) -> list[Message]:
        """Return the messages that show the model its mistake, and call the listener."""
        asking.repairs.append(problem)
        if self._on_repair is not None:
            try:
                self._on_repair(Repair(attempt=len(asking.repairs), problem=problem, output=asked.text))
            except Exception:  # foreign code: a listener must not make the plan fail
                log.warning("on_repair failed", exc_info=True)
        shorter = " Be much shorter." if asked.finish == "length" else ""
        said = f"That was not accepted: {problem}.{shorter} Answer again with one JSON object and nothing else."
        return [Message("assistant", clipped(asked.text, SHOWN_BAD_OUTPUT) or "(nothing)"), Message("user", said)]


def _actions_of(agent: AgentSpec) -> tuple[str, ...]:
    """Return the possible answers of an agent's model. If it can open a sub-goal, it can also close one."""
    if not agent.actions:
        return DEFAULT_ACTIONS
    listed = [name for name in agent.actions if name in ACTIONS]
    closing = ["complete_goal"] if "push_goal" in listed else []
    return tuple(dict.fromkeys(["tool_call", "final_answer", "thought", *listed, *closing]))


def _check_options(generate: Any, actions: Sequence[str], repairs: int, prompt: int, output: int) -> None:
    if not callable(generate):
        raise ConfigError(f"OnDevicePlanner(generate=...) is {type(generate).__name__}; give a callable that takes a Request")
    for action in actions:
        if action not in ACTIONS:
            raise UnknownName("action", action, ACTIONS)
    if not {"final_answer", "stop", "abstain", "tool_call"} & set(actions):
        raise ConfigError("OnDevicePlanner(actions=...) has no action that ends a run; add final_answer")
    for name, value, least in (("max_repairs", repairs, 0), ("max_prompt_tokens", prompt, 1), ("max_output_tokens", output, 1)):
        if value < least:
            raise ConfigError(f"OnDevicePlanner({name}={value}): give at least {least}")


def _answer_of(actions: Sequence[AnyAction]) -> FinalAnswer | None:
    return next((a for a in actions if isinstance(a, FinalAnswer)), None)


def _text_of(actions: Sequence[AnyAction]) -> str:
    """Return the readable part of a plan: an answer or a thought, without markup."""
    match actions[0]:
        case FinalAnswer(content=str() as said) | Thought(content=said):
            return said
        case ToolCall(reason=reason):
            return reason
        case _:
            return ""


def _both(first: str, second: str) -> str:
    return "\n".join(part for part in (first.strip(), second.strip()) if part)
