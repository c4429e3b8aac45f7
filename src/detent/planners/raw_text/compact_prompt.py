"""The texts of a raw-text prompt: a system text that is the same bytes for the whole run, and one rendering for each past item.

system      what the agent is, how to answer, tools, actions, examples   (stable)
user        the goal and its attachments                                 (stable)
assistant   an earlier action, as JSON   } one block a turn,
user        its result                   } append-only
...
user        ... and, at the end of the last one, the current facts       (the dynamic tail)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, cast

import msgspec

from detent.core.actions import AnyAction, FinalAnswer, ToolCall, snake
from detent.core.state import Item
from detent.planners.text.surrogates import whole_text
from detent.planners.trimming import clipped, observed, recalled
from detent.ports import ResultCompression, ToolSpec, View

ToolStyle = Literal["names", "names-and-types", "full"]

RULES = (
    "You work in turns. Answer each turn with exactly one JSON object of the kinds below, and nothing else. "
    "After a tool call, wait: the next message says what came of it. Never make an observation up. "
    "Earlier steps may be left out of what you see."
)

SHAPES = {
    "tool_call": '{"type": "tool_call", "tool": "NAME", "args": {...}}  use a tool',
    "final_answer": '{"type": "final_answer", "content": "..."}  the goal is achieved: give the answer',
    "ask_user": '{"type": "ask_user", "question": "..."}  only the user can say',
    "stop": '{"type": "stop", "reason": "..."}  it cannot be done',
    "thought": '{"type": "thought", "content": "..."}  think before you go on',
    "abstain": '{"type": "abstain", "missing": ["..."]}  no honest answer is possible; say what is missing',
    "push_goal": '{"type": "push_goal", "goal": "..."}  open a sub-goal',
    "complete_goal": '{"type": "complete_goal", "outcome": "..."}  the innermost sub-goal is achieved',
    "schedule": '{"type": "schedule", "delay_s": 60}  wait, in seconds',
}

_canonical = msgspec.json.Encoder(order="sorted").encode


class Example(msgspec.Struct, frozen=True, kw_only=True):
    """A few-shot example: a goal, and steps of an action and its result (the last step, the answer, has none)."""

    goal: str
    steps: tuple[tuple[AnyAction, str], ...]


def system_text(
    *,
    instructions: str,
    tools: Sequence[ToolSpec],
    actions: Sequence[str],
    output_schema: dict[str, Any] | None = None,
    style: ToolStyle = "names-and-types",
    examples: Sequence[Example] = (),
) -> str:
    """Return the system text. It is a pure function of its arguments, so a server's prompt cache can hold it for the whole run."""
    parts = [instructions.strip(), RULES]
    if tools and "tool_call" in actions:
        parts.append("Tools:\n" + "\n".join(tool_line(tool, style) for tool in tools))
    shown = [a for a in actions if a != "tool_call" or tools]
    parts.append("Actions:\n" + "\n".join(SHAPES[a] for a in shown))
    if output_schema is not None:
        parts.append("The content of final_answer must fit this JSON Schema:\n" + _canonical(output_schema).decode())
    parts += [_example(number, example) for number, example in enumerate(examples, 1)]
    return "\n\n".join(part for part in parts if part)


def tool_line(tool: ToolSpec, style: ToolStyle) -> str:
    """Return a tool in one line: `name(p1, p2): description`; a `?` marks an optional parameter."""  # row K123
    properties: dict[str, Any] = tool.input_schema.get("properties") or {}
    required: list[str] = tool.input_schema.get("required") or []
    shown: list[str] = []
    for name, schema in properties.items():
        mark = "" if name in required else "?"
        shown.append(f"{name}{mark}" if style == "names" else f"{name}{mark}: {_type_of(schema)}")
    line = f"- {tool.name}({', '.join(shown)})"
    description = " ".join(tool.description.split())
    line += f": {description}" if description else ""
    return line if style != "full" else f"{line}\n  args: {_canonical(tool.input_schema).decode()}"


def _type_of(schema: Any) -> str:
    """Return a type in as few words as possible."""
    if not isinstance(schema, dict):
        return "any"
    fields = cast("dict[str, Any]", schema)
    if "enum" in fields:
        return "|".join(_canonical(value).decode() for value in fields["enum"][:8])
    if "const" in fields:
        return _canonical(fields["const"]).decode()
    for union in ("anyOf", "oneOf"):
        if union in fields:
            return "|".join(dict.fromkeys(_type_of(part) for part in fields[union]))
    kind: Any = fields.get("type", "object" if "properties" in fields or "$ref" in fields else "any")
    if kind == "array" and isinstance(fields.get("items"), dict):
        return f"list of {_type_of(fields['items'])}"
    return "|".join(str(k) for k in cast("list[Any]", kind)) if isinstance(kind, list) else str(kind)


def _example(number: int, example: Example) -> str:
    lines = [f"Example {number}", f"Goal: {example.goal}"]
    for action, observation in example.steps:
        lines.append(action_text(action))
        lines += [f"Observation: {observation}"] if observation else []
    return "\n".join(lines)


def action_text(action: AnyAction) -> str:
    """Return an action as a model should write it. The same action gives the same bytes, before and after a resume."""
    match action:
        case ToolCall(tool=tool, args=args):
            shown = args if isinstance(args, str) else _canonical(args).decode()
            return f'{{"type": "tool_call", "tool": {_canonical(tool).decode()}, "args": {shown}}}'
        case FinalAnswer(content=content):
            return f'{{"type": "final_answer", "content": {_canonical(content).decode()}}}'
        case _:
            fields = {k: v for k, v in msgspec.to_builtins(action).items() if k != "type" and v not in ("", None)}
            body = "".join(f", {_canonical(k).decode()}: {_canonical(v).decode()}" for k, v in fields.items())
            return f'{{"type": "{snake(type(action).__name__)}"{body}}}'


def plan_text(item: Item) -> str:
    """Return the model's answer of an earlier turn: its actions, one a line."""
    return "\n".join(action_text(action) for action in item.plan.actions) if item.plan is not None else item.text


def outcome_text(item: Item, compression: ResultCompression, *, recalls: bool) -> str:
    """Return the text of a past item for the model: an observation (see `trimming.observed`), a reply, a note."""
    if item.kind == "user":
        return f"User: {item.text}"
    if item.kind == "memory":
        return recalled(item)
    if item.kind != "tool":
        return f"Note: {item.text}"
    text = observed(item, compression, recalls=recalls)
    return (
        f"Observation ({item.tool}): {text}" if item.ok else f"Observation ({item.tool} failed): {clipped(text, compression.budget_chars)}"
    )


def goal_text(view: View) -> str:
    """Return the goal and its attachments, which are the same for the whole run."""
    first = view.transcript[0] if view.transcript else None
    task = first.text if first is not None and first.kind == "user" else view.goal
    if task == view.goal or (first is not None and first.meta):  # `meta`: compaction has cut it
        parts = [f"Goal: {task}"]
    else:
        parts = [f"Goal: {clipped(view.goal, 4000)}", f"Task: {task}"]
    if view.variables:
        parts.append(f"Variables: {_canonical(view.variables).decode()}")
    parts += [_attachment(number, value) for number, value in enumerate(view.attachments, 1)]
    return whole_text("\n".join(parts))


def _attachment(number: int, value: Any) -> str:
    """Return an attachment's text, or a note about one that a text model cannot see."""
    if isinstance(value, str):
        return f"Attachment {number}: {clipped(value, 4000)}"
    if not isinstance(value, dict):
        return f"Attachment {number}: {clipped(_canonical(value).decode(), 400)}"
    fields = cast("dict[str, Any]", value)
    name = fields.get("name") or fields.get("filename") or fields.get("media_type") or ""
    if isinstance(fields.get("text"), str):
        return f"Attachment {number} {name}: {clipped(fields['text'], 4000)}"
    return f"Attachment {number} {name}: not text; this model cannot see it"


def tail_text(view: View) -> str:
    """Return the facts that change from turn to turn; they come at the very end."""
    parts: list[str] = []
    if view.goals:
        parts.append("Open sub-goals: " + "; ".join(goal for _, goal in view.goals))
    if view.memory:
        parts.append("Remembered: " + clipped(_canonical(list(view.memory)).decode(), 2000))
    if view.scratchpad:
        parts.append("Notes: " + clipped(_canonical(dict(view.scratchpad)).decode(), 2000))
    last = view.transcript[-1].text if view.transcript else ""
    parts += [f"Note: {said}" for said in view.guidance if said != last]
    left = view.budget_remaining.max_iterations
    if left is not None and left <= 1:
        parts.append("This is the last turn: give the final answer now.")
    return whole_text("\n".join(parts))
