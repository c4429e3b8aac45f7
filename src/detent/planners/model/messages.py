"""The transcript as messages for a model: rendered once, append-only, and the same bytes in every process.

Theory of operation. Items are rendered in order. A plan becomes one `ModelResponse`. The items between two plans (observations, replies, notes)
become one `ModelRequest`; its tool results come first, in the order of the calls. Later items never change rendered messages. So the messages of
one turn are a prefix of those of the next, and a provider can keep them cached. `Rendering` keeps finished messages, keyed by the items themselves:
it saves time and changes no byte.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import msgspec

from detent.core import actions as a
from detent.core.events import Planned
from detent.core.history import Seq
from detent.core.state import Item
from detent.expressions.previews import shown_result
from detent.planners.earlier import spoken
from detent.planners.model import control_tools
from detent.planners.model.attachments import content_of, is_attachment, split_result
from detent.planners.model.provider_parts import EPOCH, rebuilt, sayable, unused, usable
from detent.planners.model.typed_answers import writable
from detent.planners.trimming import observed, recalled
from detent.ports import ResultCompression, View

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelMessage

replace = msgspec.structs.replace

UNKNOWN_RESULT = "No result of this call is known."
_REFUSED = ("policy_denied", "approval_rejected", "approval_expired", "guard_blocked")
_MARK, _TYPE, _SOURCES = b"media_type", b'"type"', (b'"url"', b'"data"')


class Rendering:
    """The rendered part of one pass: closed messages, and the open request at their end."""

    __slots__ = ("_called", "_items", "chars", "closed", "count", "notes", "results")

    def __init__(self) -> None:
        self.closed: list[ModelMessage] = []
        self.results: dict[str, Any] = {}
        self.notes: list[Any] = []
        self.chars = 0
        self.count = 0
        self._called: dict[str, tuple[str, str]] = {}
        self._items: Sequence[Item] = ()

    def covers(self, transcript: Sequence[Item]) -> bool:
        """Whether the rendered items are a prefix of `transcript`."""
        if len(transcript) < self.count:
            return False
        if isinstance(transcript, Seq) and isinstance(self._items, Seq) and transcript.continues(self._items):
            return True
        return list(transcript[: self.count]) == list(self._items)

    def remember(self, transcript: Sequence[Item]) -> None:
        """Note which items are rendered."""
        self._items = transcript if isinstance(transcript, Seq) else list(transcript)
        self.count = len(transcript)

    def messages(self, tail: Sequence[Any] = ()) -> list[ModelMessage]:
        """Return all messages. The open request is completed for now, with `tail` (parts) at its end."""
        from pydantic_ai.messages import ModelRequest

        parts = [*self._results_in_order(), *self.notes, *tail]
        return [*self.closed, ModelRequest(parts=parts, timestamp=EPOCH)] if parts else list(self.closed)

    def answer(self, response: Any, called: dict[str, tuple[str, str]]) -> None:
        """Close the open request and add a model's answer. `called` maps call ids to (tool, provider's id)."""
        self._close()
        self.closed.append(response)
        self._called = called

    def named(self, call_id: str) -> tuple[str, str] | None:
        """Return the tool and the provider's id of a call of the last answer, None if the answer has no such call."""
        return self._called.get(call_id)

    def _close(self) -> None:
        from pydantic_ai.messages import ModelRequest

        parts = [*self._results_in_order(), *self.notes]
        if parts:
            self.closed.append(ModelRequest(parts=parts, timestamp=EPOCH))
        self.results, self.notes, self._called = {}, [], {}

    def _results_in_order(self) -> list[Any]:
        """Return one result for each call of the last answer: providers refuse a call without one."""
        from pydantic_ai.messages import ToolReturnPart

        return [
            self.results.get(call_id) or ToolReturnPart(tool, UNKNOWN_RESULT, provider_id, timestamp=EPOCH, outcome="interrupted")
            for call_id, (tool, provider_id) in self._called.items()
        ]


class Renderer:
    """Renders views for one model. `system` and `model` decide which provider data is sent back, `names` are the provider's tool names.

    `profile` says which files the model takes.
    """

    def __init__(
        self,
        *,
        system: str,
        model: str,
        compression: ResultCompression,
        names: Mapping[str, str] | None = None,
        profile: Mapping[str, Any] | None = None,
    ) -> None:
        self.system, self.model, self.compression, self._names = system, model, compression, names or {}
        self._profile = profile

    async def extend(self, done: Rendering, view: View) -> None:
        """Render the items that `done` does not have yet."""
        transcript = view.transcript
        new = transcript[done.count :] if done.count else transcript
        if done.count == 0:
            _converse(done, view, self.compression)
        if done.count == 0 and not (len(transcript) and transcript[0].kind == "user"):
            self._goal(done, view, view.task or view.goal)  # a compacted transcript begins with its summary
        for position, item in enumerate(new, done.count):
            match item.kind:
                case "user":
                    self._goal(done, view, item.text) if position == 0 else _said(done, _reply(item.text, self._profile))
                case "model":
                    self._model(done, item, view.scope)
                case "tool":
                    await self._tool(done, item, view)
                case "note":
                    _said(done, [f"[note] {item.text}"])
                case "memory":
                    _said(done, [recalled(item)])
        done.remember(transcript)

    def _goal(self, done: Rendering, view: View, text: str) -> None:
        content: list[Any] = [text]
        if view.variables:
            content.append(f"Given with it, as data:\n{msgspec.json.encode(view.variables).decode()}")
        for attachment in view.attachments:
            if not is_attachment(attachment):
                content.append(f"[attachment] {_json(attachment)}")
                continue
            heard = attachment["type"] == "audio" and any(spec.name == "transcribe" for spec in view.tools)
            instead = "; call transcribe to read what is said" if heard else ""
            content += content_of(attachment, paths=True, urls=True, profile=self._profile, instead=instead)
        _said(done, content)

    def _model(self, done: Rendering, item: Item, scope: str) -> None:
        plan = item.plan
        if plan is None:
            return
        calls = tuple([replace(call, tool=self._names.get(call.tool) or sayable(call.tool)) for call in _calls(plan)])
        ids = _ids(calls, item.iteration)
        data = usable(plan, system=self.system, model=self.model)
        response = rebuilt(plan, data, calls, ids) if data is not None else _portable(plan, calls, ids, item.iteration)
        numbered = {provider_id: f"{scope}.{item.iteration}.{i}" for i, provider_id in enumerate(ids)}
        made: list[Any] = [part for part in response.parts if part.part_kind == "tool-call"]
        done.answer(response, {numbered.get(p.tool_call_id, f"control {p.tool_call_id}"): (p.tool_name, p.tool_call_id) for p in made})
        done.chars += len(plan.text) + sum(len(str(call.args)) + len(call.tool) for call in calls)
        for part in made:
            if part.tool_call_id not in numbered:
                told = control_tools.RETURNS.get(part.tool_name, "Noted.")
                done.results[f"control {part.tool_call_id}"] = _returned(part.tool_name, part.tool_call_id, told)
                done.chars += len(told)

    async def _tool(self, done: Rendering, item: Item, view: View) -> None:
        content, failed = await self._observed(item, view)
        called = done.named(item.call_id)
        if called is None:  # a call from the text of an answer, or one whose plan was compacted
            head = f"[result] {item.tool}({_json(item.arguments)}): "
            _said(done, [head, *content] if not isinstance(content, str) else [head + content])
            return
        outcome = "success" if not failed else "denied" if item.error is not None and item.error.code in _REFUSED else "failed"
        done.results[item.call_id] = _returned(called[0], called[1], content, outcome)
        done.chars += len(content) if isinstance(content, str) else sum(len(c) if isinstance(c, str) else 4000 for c in content)

    async def _observed(self, item: Item, view: View) -> tuple[Any, bool]:
        """Return the model's text for an outcome (or a list with files), and whether it is a failure."""
        raw = bytes(item.result)
        if item.error is None and (_MARK in raw or (_TYPE in raw and any(source in raw for source in _SOURCES))):
            value = await view.full(item) if item.artifact is not None and view.full is not None else msgspec.json.decode(raw)
            rest, files = split_result(value)
            if files:
                trusted = any(spec.name == item.tool and spec.trust == "trusted" for spec in view.tools)
                content: list[Any] = [] if rest is None else [shown_result(_json(rest), self.compression)]
                for file in files:
                    content += content_of(file, paths=False, urls=trusted)
                return content, False
        return observed(item, self.compression, recalls="recall" in view.agent.tools), item.error is not None


def _converse(done: Rendering, view: View, compression: ResultCompression) -> None:
    """Render the earlier messages of the run's session."""
    from pydantic_ai.messages import ModelResponse, TextPart

    for side, texts in spoken(view.conversation, compression):
        if side == "model":
            done.answer(ModelResponse(parts=[TextPart(text) for text in texts], timestamp=EPOCH), {})
            done.chars += sum(map(len, texts))
        else:
            for text in texts:
                _said(done, [text])


def _said(done: Rendering, content: list[Any]) -> None:
    from pydantic_ai.messages import UserPromptPart

    only = content[0] if len(content) == 1 and isinstance(content[0], str) else content
    done.notes.append(UserPromptPart(only, timestamp=EPOCH))
    done.chars += sum(len(part) if isinstance(part, str) else 4000 for part in content)


def _reply(text: str, profile: Mapping[str, Any] | None = None) -> list[Any]:
    """Return a user's reply as content: `{"text": ..., "attachments": [...]}` or an attachment becomes text and files."""
    if not text.startswith(("{", "[")) or '"type"' not in text:
        return [text]
    try:
        rest, files = split_result(msgspec.json.decode(text))
    except msgspec.DecodeError:
        return [text]
    if not files:
        return [text]
    said: Any = rest
    if isinstance(rest, dict) and set(given := cast("dict[str, Any]", rest)) == {"text"}:
        said = given["text"]
    content: list[Any] = [] if said is None else [said if isinstance(said, str) else _json(said)]
    for file in files:
        content += content_of(file, paths=False, urls=True, profile=profile)
    return content


def _returned(tool: str, provider_id: str, content: Any, outcome: Any = "success") -> Any:
    from pydantic_ai.messages import ToolReturnPart

    return ToolReturnPart(tool, content, provider_id, timestamp=EPOCH, outcome=outcome)


def _calls(plan: Planned) -> tuple[a.ToolCall, ...]:
    """Return the tool calls of a plan in the order of their call ids; without calls from text, which the model did not make natively."""
    wanted = () if plan.embedded is not None else tuple(action for action in plan.actions if isinstance(action, a.ToolCall))
    return wanted + plan.dropped


def _ids(calls: tuple[a.ToolCall, ...], iteration: int) -> list[str]:
    """Return an id for each call: the provider's own unless it is missing or already used in this answer."""
    given = {call.provider_id for call in calls}
    ids: list[str] = []
    for i, call in enumerate(calls):
        own = call.provider_id
        ids.append(own if own and own not in ids else unused(f"call_{iteration}_{i}", given))
    return ids


def _portable(plan: Planned, calls: tuple[a.ToolCall, ...], ids: list[str], iteration: int) -> Any:
    """Return a plan in a form for any model: its text, its calls, and its other actions as a call or as text."""
    from pydantic_ai import messages as m

    parts: list[Any] = [m.TextPart(plan.text)] if plan.text else []
    taken = set(ids)
    for action in plan.actions:
        if isinstance(action, a.ToolCall):
            continue
        known = control_tools.portable(action)
        if known is not None:
            parts.append(m.ToolCallPart(known[0], known[1], unused(f"control_{iteration}", taken)))
        elif not plan.text:
            said = action.content if isinstance(action, a.FinalAnswer | a.Thought) else msgspec.to_builtins(action)
            parts.append(m.TextPart(said if isinstance(said, str) else _json(said)))
    parts += [m.ToolCallPart(call.tool, writable(call.args), ids[i]) for i, call in enumerate(calls)]
    return m.ModelResponse(parts=parts or [m.TextPart("...")], timestamp=EPOCH)


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()
