"""Plan, then execute: a small model first writes a list of steps, and is shown in every later turn where in it the run stands (row K125).

Nothing is remembered here: the list stands in the plan that was recorded, and a step is done when a turn after it had a successful tool
call. A run that is resumed in another process finds both in its transcript.
"""

from __future__ import annotations

from typing import Any, cast

import msgspec

from detent.core.actions import Thought
from detent.core.state import Item
from detent.planners.raw_text.json_objects import objects_in, plain_json
from detent.planners.think_blocks import split_thinking
from detent.ports import View

MARK = "on_device"
MOST_STEPS = 12
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"steps": {"type": "array", "items": {"type": "string", "minLength": 1}, "minItems": 1, "maxItems": MOST_STEPS}},
    "required": ["steps"],
    "additionalProperties": False,
}
ASK = (
    'Do not act yet. First plan: answer with {"steps": ["...", "..."]}, one short sentence for each tool call that the goal needs, '
    "in order, at most 8."
)


class Standing(msgspec.Struct, frozen=True, kw_only=True):
    """Where a run stands in its list: `done` steps of `steps`."""

    steps: tuple[str, ...]
    done: int = 0


def standing(view: View) -> Standing | None:
    """Return the run's latest list and how far it is, None when it has none yet."""
    done: set[int] = set()
    for index in range(len(view.transcript) - 1, -1, -1):
        item = view.transcript[index]
        if item.kind == "tool" and item.ok:
            done.add(item.iteration)
        if item.kind == "model" and (steps := _steps_of(item)):
            return Standing(steps=steps, done=min(len(done), len(steps)))
    return None


def _steps_of(item: Item) -> tuple[str, ...]:
    data: Any = item.plan.provider_data if item.plan is not None else None
    if not isinstance(data, dict):
        return ()
    mine: Any = cast("dict[str, Any]", data).get(MARK)
    steps: Any = cast("dict[str, Any]", mine).get("steps") if isinstance(mine, dict) else None
    return tuple(str(step) for step in cast("list[Any]", steps)) if isinstance(steps, (list, tuple)) else ()


def reminder(now: Standing) -> str:
    """Return what the model is told of its list."""
    marks = ["done" if i < now.done else "now" if i == now.done else "later" for i in range(len(now.steps))]
    lines = [f"{i}. {step} ({mark})" for i, (step, mark) in enumerate(zip(now.steps, marks, strict=True), 1)]
    todo = "All steps are done: give the final answer." if now.done >= len(now.steps) else f"Do step {now.done + 1} now."
    return "Your plan:\n" + "\n".join(lines) + f"\n{todo}"


def thought_of(steps: tuple[str, ...]) -> Thought:
    """Return the list as the thought that is put on record."""
    return Thought(content="Plan:\n" + "\n".join(f"{i}. {step}" for i, step in enumerate(steps, 1)))


def read_steps(text: str, *, finish: str = "") -> tuple[tuple[str, ...], str, str]:
    """Return (steps, problem, thinking) of what a model answered to `ASK`."""
    thinking, said = split_thinking(text)
    if finish == "length":
        return (), "the plan was cut off; write fewer and shorter steps", thinking
    for found in objects_in(said):
        value: Any = found.value
        if isinstance(value, dict):
            fields = cast("dict[str, Any]", value)
            value = fields.get("steps") or fields.get("plan")
        if isinstance(value, list) and found.whole:
            entries = [_step(entry) for entry in cast("list[Any]", value)]
            steps = tuple(entry for entry in entries if entry)
            if steps and plain_json(list(steps)):
                return steps[:MOST_STEPS], "", thinking
    if steps := _bare_list(said):
        return steps, "", thinking
    lines = [line.strip() for line in said.splitlines()]
    numbered = [rest.strip(" .)") for line in lines if line[:1].isdigit() and (rest := line.lstrip("0123456789").strip(" .)"))]
    if numbered and "{" not in said:
        return tuple(numbered[:MOST_STEPS]), "", thinking
    return (), 'there is no list of steps; answer with {"steps": ["...", "..."]}', thinking


def _bare_list(said: str) -> tuple[str, ...]:
    """Return the steps of a plain list of texts, () where none stands there."""
    try:
        value: Any = msgspec.json.decode(said[said.find("[") : said.rfind("]") + 1])
    except (msgspec.DecodeError, RecursionError):
        return ()
    entries = cast("list[Any]", value) if isinstance(value, list) else []
    return tuple(step for entry in entries[:MOST_STEPS] if (step := _step(entry)))


def _step(entry: Any) -> str:
    if isinstance(entry, dict):
        fields = cast("dict[str, Any]", entry)
        entry = fields.get("step") or fields.get("description") or fields.get("title") or ""
    return entry.strip()[:300] if isinstance(entry, str) else ""
