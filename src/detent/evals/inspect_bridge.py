"""Detent agents as agents of Inspect AI: `inspect eval` runs them, Detent's store holds the runs, and Inspect's log has the messages and tool calls.

Rule: models are called through Inspect, so `--model`, its limits, its cache and its count of tokens hold, and Detent's log has the same calls. Tools, policy,
approvals and the log are Detent's. Import it only where Inspect runs: it needs the extra `inspect`.
"""

# pyright: basic, reportMissingImports=false
# inspect-ai is not in the environment that the source is checked in: it asks for older releases of what other extras bring (boto3).

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from detent.config.agents import Agent
from detent.core.actions import ToolCall as Planned
from detent.core.errors import ConfigError
from detent.core.events import Planned as PlanMade
from detent.core.records import Record
from detent.core.state import TERMINAL, RunState
from detent.engine import Engine
from detent.expressions.display import as_text
from detent.history.traces import Call, Tracer

try:
    from inspect_ai.agent import Agent as InspectAgent
    from inspect_ai.agent import AgentState
    from inspect_ai.agent import agent as inspect_agent
    from inspect_ai.event import ToolEvent
    from inspect_ai.log import transcript
    from inspect_ai.model import (
        ChatMessage,
        ChatMessageAssistant,
        ChatMessageSystem,
        ChatMessageTool,
        ChatMessageUser,
        ContentText,
        GenerateConfig,
        ModelOutput,
        get_model,
    )
    from inspect_ai.tool import ToolCall, ToolCallError, ToolInfo, ToolParams
    from inspect_ai.util import LimitExceededError
    from inspect_ai.util import store as kept
    from pydantic_ai import messages as m
    from pydantic_ai.models.function import AgentInfo, FunctionModel
    from pydantic_ai.profiles import ModelProfile
    from pydantic_ai.usage import RequestUsage
except ImportError as error:  # pragma: no cover - without the extra
    raise ConfigError(f"agents in Inspect need the extra: pip install 'detent[inspect]' ({error})") from error

FAILED = ("planner_error", "kernel_error")
"""The reasons of runs that ended because something around the agent failed: an error of the sample, and no wrong answer."""
SETTINGS = ("temperature", "max_tokens", "top_p", "seed", "frequency_penalty", "presence_penalty")


@inspect_agent(name="detent")
def detent_agent(agent: Agent[Any], *, store: str, **engine: Any) -> InspectAgent:
    """Return an agent for Inspect, as a task's solver, with `as_tool` or `handoff`.

    Each sample is a run in `store` (a URL). Its goal is the last message of the user; earlier messages are context. The run's id is in the sample's
    store as `detent_run_id`. `engine` are further options of `Engine`: `approver` answers requests for approval; with `planner` the model is not Inspect's.
    A run that waits for something, or that the machinery failed, is an error of the sample.
    """

    async def execute(state: AgentState) -> AgentState:
        goal, before = _asked(state.messages)
        model = _Model()
        async with Engine(store=store, **{"planner": model.planner(), **engine}) as made:
            watch = _Watch()
            session = made.session(agent, context=before)
            try:
                result = await session.send(goal, observers=[watch])
            finally:
                if watch.state is not None:
                    kept().set("detent_run_id", watch.state.run_id)
                    transcript().info(
                        {"run_id": watch.state.run_id, "status": watch.state.status, "store": made.store.url}, source="detent"
                    )
        watch.left()
        state.messages.extend(watch.messages())
        if model.limit is not None:
            raise model.limit
        if result.status not in TERMINAL:
            raise RuntimeError(
                f"run {result.run_id} is {result.status}: `detent show {result.run_id} --store {store}` tells for what it waits"
            )
        if result.status == "failed" and result.reason in FAILED:
            raise RuntimeError(f"run {result.run_id} failed: {result.reason}: {result.error or ''}")
        answer = result.state.output if result.state.output is not None else result.state.partial
        state.output = ModelOutput.from_content(str(get_model()), as_text(answer) if answer is not None else "")
        state.messages.append(state.output.message)
        return state

    return execute


def _asked(messages: Sequence[ChatMessage]) -> tuple[str, list[str]]:
    """Return the goal, and the messages before it. Raise `ConfigError` for what a goal cannot be."""
    last = next((n for n in range(len(messages) - 1, -1, -1) if isinstance(messages[n], ChatMessageUser)), -1)
    if last < 0:
        raise ConfigError("the sample has no message of a user; its input is the goal of the run")
    for message in messages:
        if any(not isinstance(part, ContentText) for part in message.content if not isinstance(message.content, str)):
            raise ConfigError("a message of the sample has an image, a sound or another file; a run in Inspect is asked with text only")
    return messages[last].text, [f"{one.role}: {one.text}" for n, one in enumerate(messages) if n != last and one.text]


class _Called(FunctionModel):
    """What the planner calls; logs name it `inspect:MODEL`."""

    @property
    def system(self) -> str:
        """The provider, as Detent's log names it."""
        return "inspect"


class _Model:
    """Inspect's model, as the planner's. `limit` is the limit of Inspect that ended it."""

    def __init__(self) -> None:
        self.limit: LimitExceededError | None = None

    def planner(self) -> Any:
        """Return a planner that asks it."""
        from detent.planners.model.planner import ModelPlanner

        profile = ModelProfile(supports_json_schema_output=False, supports_json_object_output=False)
        return ModelPlanner(_Called(self._answer, model_name=str(get_model()), profile=profile))

    async def _answer(self, messages: list[m.ModelMessage], info: AgentInfo) -> m.ModelResponse:
        tools = [
            ToolInfo(name=one.name, description=one.description or "", parameters=_params(one))
            for one in (*info.function_tools, *info.output_tools)
        ]
        said: dict[str, Any] = dict(info.model_settings or {})
        config = GenerateConfig(**{name: said[name] for name in SETTINGS if said.get(name) is not None})
        asked: list[ChatMessage] = [ChatMessageSystem(content=info.instructions)] if info.instructions else []
        for message in messages:
            asked += _rendered(message)
        try:
            output = await get_model().generate(asked, tools, None if info.allow_text_output or not tools else "any", config)
        except LimitExceededError as error:
            self.limit = error
            raise
        return _response(output)


def _params(tool: Any) -> ToolParams:
    schema: dict[str, Any] = tool.parameters_json_schema
    return ToolParams.model_validate({name: schema[name] for name in ("properties", "required", "additionalProperties") if name in schema})


def _rendered(message: m.ModelMessage) -> list[ChatMessage]:
    """Return a message of pydantic-ai as those of Inspect."""
    if isinstance(message, m.ModelResponse):
        calls = [
            ToolCall(id=p.tool_call_id, function=p.tool_name, arguments=p.args_as_dict())
            for p in message.parts
            if isinstance(p, m.ToolCallPart)
        ]
        return [ChatMessageAssistant(content=message.text or "", tool_calls=calls or None)]
    found: list[ChatMessage] = []
    for part in message.parts:
        match part:
            case m.SystemPromptPart(content=text):
                found.append(ChatMessageSystem(content=text))
            case m.ToolReturnPart():
                found.append(ChatMessageTool(content=part.model_response_str(), tool_call_id=part.tool_call_id, function=part.tool_name))
            case m.RetryPromptPart(tool_name=str(name)):
                found.append(ChatMessageTool(content=part.model_response(), tool_call_id=part.tool_call_id, function=name))
            case m.RetryPromptPart():
                found.append(ChatMessageUser(content=part.model_response()))
            case m.UserPromptPart(content=str(text)):
                found.append(ChatMessageUser(content=text))
            case m.UserPromptPart(content=several):
                texts = [getattr(one, "content", one) for one in several]
                if not all(isinstance(text, str) for text in texts):
                    raise ConfigError("the prompt has an attachment, which this bridge does not pass to Inspect's model; leave it out")
                found += [ChatMessageUser(content=str(text)) for text in texts]
            case _:
                raise ConfigError(f"the prompt has a {type(part).__name__}, which this bridge does not pass to Inspect's model")
    return found


def _response(output: ModelOutput) -> m.ModelResponse:
    if output.error:
        raise RuntimeError(output.error)
    parts: list[Any] = [m.TextPart(output.completion)] if output.completion else []
    calls = output.message.tool_calls or ()
    parts += [m.ToolCallPart(one.function, "" if one.parse_error else one.arguments, one.id) for one in calls]
    used, usage = output.usage, RequestUsage()
    if used is not None:
        read, written = used.input_tokens_cache_read or 0, used.input_tokens_cache_write or 0
        usage = RequestUsage(
            input_tokens=used.input_tokens + read + written,
            output_tokens=used.output_tokens,
            cache_read_tokens=read,
            cache_write_tokens=written,
        )
    finish: Any = {"max_tokens": "length", "tool_calls": "tool_call", "content_filter": "content_filter"}.get(output.stop_reason, "stop")
    return m.ModelResponse(parts=parts, usage=usage, model_name=output.model, finish_reason=finish)


class _Watch:
    """Writes the calls of a run into Inspect's transcript as they end, and keeps its messages."""

    def __init__(self) -> None:
        self.state: RunState | None = None
        self._tracer: Tracer | None = None
        self._ids: dict[str, str] = {}
        self._told: set[str] = set()

    def on_chunk(self, chunk: Any) -> None:
        """Nothing: Inspect has the whole answer."""

    def on_record(self, record: Record, state: RunState) -> None:
        """Take in a record."""
        self.state = state
        self._tracer = self._tracer or Tracer(record.envelope.run, None)
        self._tracer.read(record)
        if isinstance(record.event, PlanMade):
            for call in state.passes[record.envelope.scope].calls.values():
                planned = record.event.actions[min(call.index, len(record.event.actions) - 1)]
                self._ids[call.call_id] = (planned.provider_id if isinstance(planned, Planned) else "") or call.call_id
        ended = self._tracer.calls.get(getattr(record.event, "call", ""))
        if ended is not None and ended.outcome and ended.call_id not in self._told:
            self._tell(ended, record)

    def _tell(self, call: Call, record: Record | None) -> None:
        self._told.add(call.call_id)
        made: dict[str, Any] = {"id": self._ids.get(call.call_id, call.call_id), "function": call.tool, "arguments": _table(call.args)}
        if record is not None:
            end = record.envelope.at
            made |= {"timestamp": end - timedelta(milliseconds=call.latency_ms), "completed": end, "working_time": call.latency_ms / 1000}
        error = _error(call)
        told = ToolEvent(**made, result="" if error else as_text(call.output), error=error, metadata={"detent_call_id": call.call_id})
        transcript()._event(told)  # there is no public way to report a call that Inspect did not execute

    def left(self) -> None:
        """Tell the calls that were never executed: refused, or open when the run ended."""
        for call in self._tracer.calls.values() if self._tracer is not None else ():
            if call.call_id not in self._told:
                self._tell(call, None)

    def messages(self) -> list[ChatMessage]:
        """Return what the run's model said and what its calls returned, without its answer."""
        found: list[ChatMessage] = []
        for turn in self._tracer.iterations if self._tracer is not None else ():
            if not turn.calls:
                continue
            calls = [ToolCall(id=self._ids[one.call_id], function=one.tool, arguments=_table(one.args)) for one in turn.calls]
            found.append(ChatMessageAssistant(content=turn.text, tool_calls=calls))
            for one in turn.calls:
                error = _error(one)
                found.append(
                    ChatMessageTool(
                        content="" if error else as_text(one.output), tool_call_id=self._ids[one.call_id], function=one.tool, error=error
                    )
                )
        return found


def _table(args: Any) -> dict[str, Any]:
    return args if isinstance(args, dict) else {"arguments": args}  # pyright: ignore[reportUnknownVariableType]


def _error(call: Call) -> ToolCallError | None:
    if call.outcome == "ok":
        return None
    refused = call.outcome == "refused" or call.decision in ("deny", "stop")
    return ToolCallError("permission" if refused else "unknown", call.error or call.decided or call.outcome or "not executed")
