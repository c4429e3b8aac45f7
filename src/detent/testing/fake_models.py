"""`FakeModel`: a model that follows a scenario, called through the real `ModelPlanner` and the run's gateway, with the quirks of real models.

    model = FakeModel([calls(("price", {"item": "bolts"})), fails("rate_limited"), says("12 Euro")])
    engine = Engine(planner=model)

Needs the extra `models`, which is imported on the first call. `ScriptedPlanner` needs no extra and calls no model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextvars import ContextVar
from typing import Any, Literal, TypedDict, Unpack, cast, get_args

import msgspec

from detent.core.agent import AgentSpec
from detent.core.codec import encode
from detent.core.errors import ConfigError, ModelCallFailure, ModelFailureKind, PlannerFailed
from detent.ports import Plan, View
from detent.testing.clocks import FakeClock

Quirk = Literal[
    "text_call", "tagged_call", "fenced_call", "duplicate_ids", "duplicate_calls", "cut_arguments", "quoted_arguments", "unknown_argument",
    "wrong_tool", "thinking_tags", "empty", "blank", "cut_off", "refusal",
]  # fmt: skip
QUIRKS: tuple[Quirk, ...] = get_args(Quirk)
KINDS: tuple[ModelFailureKind, ...] = get_args(ModelFailureKind)
_NO_PLAN = ("empty", "blank", "cut_off", "refusal")
"""Quirks after which the model is called again for the same turn, or the run ends."""


class Turn(msgspec.Struct, frozen=True, kw_only=True):
    """One answer of a model, or a failure to answer (`failure`); created by `says`, `calls` and `fails`."""

    text: str = ""
    thinking: str = ""
    calls: tuple[tuple[str, dict[str, Any]], ...] = ()
    quirk: str = ""
    failure: str = ""
    retry_after_s: float | None = None
    after_s: float = 0.0
    input_tokens: int | None = None
    output_tokens: int | None = None

    @property
    def gives_a_plan(self) -> bool:
        """Whether the run can continue with this answer."""
        return not self.failure and self.quirk not in _NO_PLAN


Answer = str | Turn
Scenario = Sequence[Answer] | Callable[[View], Answer]


class Tokens(TypedDict, total=False):
    """The usage of a turn; estimated if it is not given."""

    input_tokens: int
    output_tokens: int


def says(text: str, *, thinking: str = "", quirk: Quirk | Literal[""] = "", after_s: float = 0.0, **tokens: Unpack[Tokens]) -> Turn:
    """Return a turn with text: the final answer."""
    return _checked(Turn(text=text, thinking=thinking, quirk=quirk, after_s=after_s, **tokens))


def calls(
    *wanted: tuple[str, Mapping[str, Any]],
    text: str = "",
    thinking: str = "",
    quirk: Quirk | Literal[""] = "",
    after_s: float = 0.0,
    **tokens: Unpack[Tokens],
) -> Turn:
    """Return a turn that calls tools: `calls(("price", {"item": "bolts"}), ...)`, with a text if one is given."""
    if not wanted:
        raise ConfigError('calls() needs a call: calls(("tool", {"argument": 1}), ...)')
    made = tuple((name, dict(args)) for name, args in wanted)
    return _checked(Turn(calls=made, text=text, thinking=thinking, quirk=quirk, after_s=after_s, **tokens))


def fails(kind: ModelFailureKind, *, retry_after_s: float | None = None, after_s: float = 0.0) -> Turn:
    """Return a turn without an answer: `rate_limited`, `timeout`, `connection`, `server` (tried again), `auth`, `quota`, ..."""
    if kind not in KINDS:
        raise ConfigError(f"{kind!r} is not a failure of a model call; give one of {', '.join(KINDS)}")
    return Turn(failure=kind, retry_after_s=retry_after_s, after_s=after_s)


def _checked(turn: Turn) -> Turn:
    if turn.quirk and turn.quirk not in QUIRKS:
        raise ConfigError(f"{turn.quirk!r} is not a quirk; give one of {', '.join(QUIRKS)}")
    needs_call = ("text_call", "tagged_call", "fenced_call", "duplicate_ids", "duplicate_calls", "cut_arguments", "quoted_arguments")
    if turn.quirk in (*needs_call, "unknown_argument", "wrong_tool") and not turn.calls:
        raise ConfigError(f"the quirk {turn.quirk!r} needs a call; write calls((...), quirk={turn.quirk!r})")
    return turn


class Prompt(msgspec.Struct, frozen=True, kw_only=True):
    """A request to the model: the system prompt, all messages as JSON text, and the names of the offered tools."""

    instructions: str
    messages: str
    tools: tuple[str, ...]
    scope: str
    iteration: int


class FakeModel:
    """A planner with a model that follows a scenario: `Engine(planner=FakeModel([...]))`.

    `turns` are answers in order (a text means `says(text)`), or a function of the view that returns one. Each pass of a run follows the scenario from
    its beginning and finds its place by the answers in the transcript. So a resumed run continues where it was, even with a new `FakeModel`. If a turn
    gives no plan (a failure, an empty answer), the next call of the model gets the next turn. After the last turn the run fails with
    `planner_error`. `prompts` keeps the requests. `after_s` of a turn moves `clock` forward. `settings` are those of `Agent.model_settings`.
    """

    def __init__(
        self, turns: Scenario, *, name: str = "fake-model", clock: FakeClock | None = None, settings: dict[str, Any] | None = None
    ) -> None:
        self.name, self.prompts = name, list[Prompt]()
        self._clock, self._settings = clock, dict(settings or {})
        self._function: Callable[[View], Answer] | None = None
        self._steps: tuple[tuple[Turn, ...], ...] = ()
        if callable(turns):
            self._function = turns
        else:
            self._steps = _steps([self._admitted(turn) for turn in turns])
        self._tried: dict[tuple[str, str, int], int] = {}
        self._planner: Any = None

    def begin_run(self, run_id: str) -> None:
        """Forget earlier failures in this run; called by an engine that starts or resumes it."""
        self._tried = {key: tried for key, tried in self._tried.items() if key[0] != run_id}
        if self._planner is not None:
            self._planner.begin_run(run_id)

    def models_asked(self, agent: AgentSpec) -> list[tuple[str, str]]:
        """Return the one model by its name in the usage counts; see `ports.models_asked`."""
        return [(f"function:{self.name}", "function")]

    def check(self, agent: AgentSpec) -> None:
        """Raise `ConfigError` without the extra `models`; an engine asks before a run begins."""
        if self._planner is None:
            self._planner = self._made()

    async def close(self) -> None:
        """Close the model."""
        if self._planner is not None:
            await self._planner.close()

    async def plan(self, view: View) -> Plan:
        """Return the model's next plan, as `ModelPlanner` reads it."""
        self.check(view.agent)
        if view.agent.small_model:  # this model replaces any other
            view = msgspec.structs.replace(view, agent=msgspec.structs.replace(view.agent, small_model=""))
        token = _view.set(view)
        try:
            return await self._planner.plan(view)
        finally:
            _view.reset(token)

    def _made(self) -> Any:
        try:
            from pydantic_ai.models.function import FunctionModel
        except ImportError as error:
            raise ConfigError('FakeModel needs pydantic-ai: pip install "detent[models]"; ScriptedPlanner needs nothing') from error
        from detent.planners.model.planner import ModelPlanner

        return ModelPlanner(FunctionModel(self._answer, model_name=self.name), settings=self._settings)

    def _admitted(self, turn: Answer) -> Turn:
        given = Turn(text=turn) if isinstance(turn, str) else turn
        if not isinstance(given, Turn):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigError(f"a turn is text, says(...), calls(...) or fails(...), not {turn!r}")
        if given.after_s and self._clock is None:
            raise ConfigError(
                f"a turn comes after {given.after_s:g} s, but there is no clock; give FakeModel(clock=...) and the engine the same one"
            )
        return given

    async def _answer(self, messages: list[Any], info: Any) -> Any:
        """Answer a request; pydantic-ai calls this function."""
        view = _view.get()
        self._keep(view, messages, info)
        turn = self._admitted(self._function(view)) if self._function is not None else self._next(view)
        if turn.after_s and self._clock is not None:
            self._clock.advance(turn.after_s)
        if turn.failure:
            kind = cast("ModelFailureKind", turn.failure)
            raise ModelCallFailure(f"model {self.name!r}: {turn.failure} (fake)", kind=kind, retry_after_s=turn.retry_after_s)
        return _response(turn, f"{view.scope}.{view.iteration}")

    def _next(self, view: View) -> Turn:
        """Return the next turn. The transcript has the place; turns without a plan are counted here."""
        place = sum(item.kind == "model" and item.plan is not None and item.plan.model == self.name for item in view.transcript)
        key = (view.run_id, view.scope, place)
        tried = self._tried.get(key, 0)
        step = self._steps[place] if place < len(self._steps) else ()
        if not step or (tried >= len(step) and not step[-1].gives_a_plan):
            raise PlannerFailed(
                f"the scenario of {sum(map(len, self._steps))} turns is used up: turn {view.iteration} of pass {view.scope!r} asks for another; "
                "add one, or let the last one be an answer"
            )
        self._tried[key] = tried + 1
        return step[min(tried, len(step) - 1)]

    def _keep(self, view: View, messages: list[Any], info: Any) -> None:
        from pydantic_ai.messages import ModelMessagesTypeAdapter

        self.prompts.append(
            Prompt(
                instructions=info.instructions or "",
                messages=ModelMessagesTypeAdapter.dump_json(messages).decode(),
                tools=tuple(tool.name for tool in info.function_tools),
                scope=view.scope,
                iteration=view.iteration,
            )
        )


_view: ContextVar[View] = ContextVar("view")


def _steps(turns: Iterable[Turn]) -> tuple[tuple[Turn, ...], ...]:
    """Return the turns in groups. Each group except perhaps the last ends with a turn that gives a plan."""
    steps: list[tuple[Turn, ...]] = []
    open_step: list[Turn] = []
    for turn in turns:
        open_step.append(turn)
        if turn.gives_a_plan:
            steps.append(tuple(open_step))
            open_step = []
    return (*steps, tuple(open_step)) if open_step else tuple(steps)


# Quirks -------------------------------------------------------------------------------------------------------------------------


def _response(turn: Turn, where: str) -> Any:
    """Return the turn as pydantic-ai's response, with its quirk."""
    from pydantic_ai.messages import ModelResponse, TextPart, ThinkingPart, ToolCallPart
    from pydantic_ai.usage import RequestUsage

    text, finish = _text(turn), "tool_call" if turn.calls else "stop"
    native = turn.quirk not in ("text_call", "tagged_call", "fenced_call", *_NO_PLAN)
    wanted = [(name, _arguments(name, args, turn, last=i == len(turn.calls) - 1)) for i, (name, args) in enumerate(turn.calls)]
    if turn.quirk == "duplicate_calls":
        wanted = [one for one in wanted for _ in range(2)]
    parts: list[Any] = [ThinkingPart(turn.thinking)] if turn.thinking and turn.quirk != "thinking_tags" else []
    parts += [TextPart(text)] if text else []
    if native:
        ids = ["call" if turn.quirk == "duplicate_ids" else f"fake-{where}.{i}" for i in range(len(wanted))]
        parts += [ToolCallPart(_name(name, turn), args, tool_call_id=call) for (name, args), call in zip(wanted, ids, strict=True)]
    if turn.quirk == "cut_off":
        finish = "length"
    elif turn.quirk == "refusal":
        finish = "content_filter"
    counted = turn.input_tokens is not None or turn.output_tokens is not None
    usage = RequestUsage(input_tokens=turn.input_tokens or 0, output_tokens=turn.output_tokens or 0) if counted else RequestUsage()
    return ModelResponse(parts=parts, finish_reason=cast("Any", finish), usage=usage)


def _text(turn: Turn) -> str:
    match turn.quirk:
        case "empty":
            return ""
        case "blank":
            return " \n"
        case "cut_off":
            return turn.text[: max(1, len(turn.text) // 2)]
        case "thinking_tags":
            return f"<think>{turn.thinking or 'Let me see.'}</think>\n{turn.text}"
        case "text_call":
            return "\n".join([*([turn.text] if turn.text else []), *(f"{name}({encode(args).decode()})" for name, args in turn.calls)])
        case "tagged_call" | "fenced_call":
            spoken = [encode({"name": name, "arguments": args}).decode() for name, args in turn.calls]
            marks = ("<tool_call>", "</tool_call>") if turn.quirk == "tagged_call" else ("```json\n", "\n```")
            return "\n".join([*([turn.text] if turn.text else []), *(f"{marks[0]}{one}{marks[1]}" for one in spoken)])
        case _:
            return turn.text


def _name(name: str, turn: Turn) -> str:
    """Return a tool's name; with the quirk, misspelt as models do it: `find_stock` becomes `findStock`, `stock` becomes `Stock_`."""
    if turn.quirk != "wrong_tool":
        return name
    first, *rest = name.split("_")
    return first + "".join(part.capitalize() for part in rest) if rest else f"{name.capitalize()}_"


def _arguments(name: str, args: dict[str, Any], turn: Turn, *, last: bool) -> Any:
    """Return a call's arguments, spoilt if that is the quirk."""
    whole = encode(args).decode()
    match turn.quirk:
        case "cut_arguments" if last:
            return whole[: max(1, len(whole) - 3)]
        case "quoted_arguments":
            return encode(whole).decode()
        case "unknown_argument" if last:
            return {**args, "explanation": f"why {name}"}
        case _:
            return args
