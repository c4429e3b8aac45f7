"""A plan as data: steps, their dependencies, and `{{step_id}}` for the result of a step.

In the arguments of a call this is the whole value, never a preview. In a task, which is a prompt, it is as much as fits (`told`).
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Literal, cast

import msgspec

from detent.ports import MOST_NESTED, ToolSpec, nests_too_deep
from detent.strategies.calls import meant
from detent.strategies.showing import shown

MOST_STEPS = 20
FORM: dict[str, Any] = {
    "type": "object",
    "properties": {
        "steps": {
            "type": "array",
            "minItems": 1,
            "maxItems": MOST_STEPS,
            "items": {
                "type": "object",
                "properties": {
                    "id": {"type": "string", "pattern": "^[A-Za-z0-9_-]{1,40}$"},
                    "kind": {"enum": ["tool", "analysis", "work"]},
                    "task": {"type": "string"},
                    "tool": {"type": "string"},
                    "args": {"type": "object"},
                    "after": {"type": "array", "items": {"type": "string"}},
                },
                "required": ["id", "kind"],
            },
        }
    },
    "required": ["steps"],
}
"""The schema of a plan."""
RULES = (
    "Kinds of steps: `tool` calls one tool with `tool` and `args`; `analysis` answers `task` by thinking alone; `work` does `task` with tools, "
    "where what to call is not known yet. Write {{ID}} where a step needs what the earlier step ID gave (whole in `args`; in `task` as far as there is "
    "room), {{ID.field}} for a part of it; "
    "list in `after` the steps that must come first for another reason. Steps that need nothing of each other run at the same time. "
    "Use as few steps as will do."
)

MOST_DIGITS = 9
"""The maximum number of digits in a list index."""
MOST_DEPTH = 100
"""How deep the arguments of a step may nest."""
_ID = re.compile(r"[A-Za-z0-9_-]{1,40}")
_REFERENCE = re.compile(r"\{\{\s*([A-Za-z0-9_-]+)((?:\.[A-Za-z0-9_-]+)*)\s*\}\}")


class Unresolved(Exception):
    """A reference names something that is not in the step's result."""


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """One step of a plan; see `RULES`."""

    id: str
    kind: Literal["tool", "analysis", "work"]
    task: str = ""
    tool: str = ""
    args: dict[str, Any] = {}
    after: tuple[str, ...] = ()

    @property
    def needs(self) -> frozenset[str]:
        """The steps that must come before this one."""
        return references([self.task, self.args]) | set(self.after)


class _Plan(msgspec.Struct, frozen=True, kw_only=True):
    steps: tuple[Step, ...]


def read_plan(said: Any, *, tools: Collection[str], known: Collection[str] = (), calls: bool = False) -> tuple[tuple[Step, ...], str]:
    """Return (steps, "") for a planner's answer, or ((), the problem). `known` are the completed steps. `calls`: every step must call a tool."""
    if isinstance(said, str) and nests_too_deep(said.encode("utf-8", "surrogatepass")):
        return (), f"the plan has not the right form: it nests deeper than {MOST_NESTED} levels"
    try:
        steps = msgspec.json.decode(said.strip().strip("`").removeprefix("json"), type=_Plan).steps if isinstance(said, str) else None
        steps = msgspec.convert(said, _Plan).steps if steps is None else steps
    except (msgspec.ValidationError, msgspec.DecodeError, UnicodeEncodeError) as error:
        return (), f"the plan has not the right form: {error}"
    except RecursionError:
        return (), "the plan has not the right form: it nests too deep"
    if not 1 <= len(steps) <= MOST_STEPS:
        return (), f"the plan has {len(steps)} steps; give 1 to {MOST_STEPS}"
    before = set(known)
    if calls:
        steps = tuple([msgspec.structs.replace(step, tool=meant(step.tool, tools)) for step in steps])
        if thinking := [step.id for step in steps if step.kind != "tool"]:
            return (), f"step {thinking[0]!r}: it calls no tool"
    for step in steps:
        if problem := _problem(step, tools, before):
            return (), f"step {step.id!r}: {problem}"
        before.add(step.id)
    return steps, ""


def _problem(step: Step, tools: Collection[str], before: Collection[str]) -> str:
    if not _ID.fullmatch(step.id):
        return "its id must be letters, digits, '_' and '-', at most 40"
    if step.id in before:
        return "another step has this id"
    if step.kind == "tool" and step.tool not in tools:
        near = difflib.get_close_matches(step.tool, tools, n=1)
        return f"there is no tool {step.tool!r}; {f'did you mean {near[0]!r}?' if near else 'there are: ' + (', '.join(tools) or 'none')}"
    if step.kind != "tool" and not step.task.strip():
        return "it says no task"
    if _deeper(step.args, MOST_DEPTH):
        return f"its arguments nest deeper than {MOST_DEPTH}"
    late = sorted(step.needs - set(before))
    return f"it needs {late[0]!r}, which is not a step before it" if late else ""


def _deeper(value: Any, most: int) -> bool:
    """Whether JSON data nests deeper than `most` levels."""
    level: list[Any] = [value]
    for _ in range(most):
        level = [part for one in level for part in _parts(one)]
        if not level:
            return False
    return True


def _parts(value: Any) -> Sequence[Any]:
    if isinstance(value, dict):
        return list(cast("dict[str, Any]", value).values())
    return cast("list[Any]", value) if isinstance(value, list) else ()


def references(value: Any) -> frozenset[str]:
    """Return the ids of the steps that JSON data refers to."""
    if isinstance(value, str):
        return frozenset(found[1] for found in _REFERENCE.finditer(value))
    return frozenset[str]().union(*(references(part) for part in _parts(value)))


def resolved(value: Any, done: Mapping[str, Any]) -> Any:
    """Return JSON data with references replaced. A text that is only a reference becomes the value; inside a text it becomes text. Raise `Unresolved`."""
    if isinstance(value, dict):
        return {key: resolved(part, done) for key, part in cast("dict[str, Any]", value).items()}
    if isinstance(value, list):
        return [resolved(part, done) for part in cast("list[Any]", value)]
    if not isinstance(value, str):
        return value
    if whole := _REFERENCE.fullmatch(value.strip()):
        return _value(whole, done)
    return _REFERENCE.sub(lambda found: shown(_value(found, done)), value)


def told(task: str, done: Mapping[str, Any], show: Callable[[Any, str, int], str]) -> str:
    """Return a task with each reference replaced by `show(value, step id, number of references)`. Raise `Unresolved`."""
    count = len(_REFERENCE.findall(task))
    return _REFERENCE.sub(lambda found: show(_value(found, done), found[1], count), task)


def _value(found: re.Match[str], done: Mapping[str, Any]) -> Any:
    value, way = done[found[1]], found[1]
    for key in found[2].split(".")[1:]:
        inner: Any = value
        if isinstance(value, dict) and key in value:
            value = inner[key]
        elif isinstance(value, list) and key.isdigit() and len(key) <= MOST_DIGITS and int(key) < len(inner):
            value = inner[int(key)]
        else:
            raise Unresolved(f"{way} has no {key!r}")
        way += f".{key}"
    return value


def listed(tools: Sequence[ToolSpec]) -> str:
    """Return the tools that a plan may use, one per line."""
    return "\n".join(f"- {t.name}: {' '.join(t.description.split())} args: {shown(t.input_schema)}" for t in tools)
