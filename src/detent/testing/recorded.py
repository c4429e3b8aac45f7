"""A run's log as a test: replays the recorded plans of a model against the current tools and prompts of an agent.

    planner = RecordedPlanner.from_file("census.script.json")          # from `detent export --script RUN --output census.script.json`
    result = await Engine(planner=planner).run(agent, planner.script.goal)
    planner.done()

In strict mode it compares the planner's input with the recorded one, turn by turn. At the first difference it refuses to plan: a changed instruction,
tool, result or order. By sequence, it returns plan after plan whatever the input is.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal, cast

import msgspec

from detent.core.actions import AnyAction
from detent.core.agent import AgentSpec
from detent.core.codec import encode
from detent.core.errors import ConfigError, MalformedPlan, PlannerFailed
from detent.core.events import Planned, PlanRejected
from detent.core.state import Item
from detent.engine import Engine
from detent.ports import Plan, View

_SECRET = re.compile(r"<secret:[^<>]*>")
_MISSING = object()


class Entry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One answer of the planner: its new input since the previous entry of the pass, and its plan, or the malformed answer."""

    scope: str
    iteration: int
    attempt: int = 1
    shown: dict[str, Any] = {}
    actions: tuple[AnyAction, ...] = ()
    text: str = ""
    thinking: str = ""
    model: str = ""
    rejected: str = ""
    raw: str = ""


class Script(msgspec.Struct, frozen=True, kw_only=True):
    """A recorded run; `by_sequence` selects how to follow it."""

    format: Literal["detent-script"] = "detent-script"
    version: Literal[1] = 1
    run_id: str
    agent: str
    goal: str
    by_sequence: bool = False
    entries: tuple[Entry, ...]

    def to_json(self) -> bytes:
        """Return the script as the content of a file."""
        return msgspec.json.format(encode(self), indent=1) + b"\n"


async def record_script(engine: Engine, run_id: str, *, by_sequence: bool = False) -> Script:
    """Return a run as a script. Raise `Divergence` if no strict script is possible, because a replay here gives another log."""
    state = await engine.load(run_id)
    entries = await _in_order(engine, run_id) if by_sequence else _shown_entries(await engine.plans(run_id))
    return Script(run_id=run_id, agent=state.agent.name, goal=state.goal, by_sequence=by_sequence, entries=tuple(entries))


async def _in_order(engine: Engine, run_id: str) -> list[Entry]:
    """Return the answers from the log without the planner's input."""
    entries: list[Entry] = []
    for record in await engine.records(run_id):
        where: dict[str, Any] = {"scope": record.envelope.scope, "iteration": record.envelope.iteration}
        match record.event:
            case Planned() as plan:
                answer = Plan(actions=(*plan.actions, *plan.dropped), text=plan.text, thinking=plan.thinking, model=plan.model)
                entries.append(_entry(answer, **where))
            case PlanRejected(problem=problem, raw=raw, attempt=attempt):
                entries.append(_entry(MalformedPlan(problem, raw=raw), attempt=attempt, **where))
            case _:
                pass
    return entries


def _shown_entries(asked: Sequence[tuple[View, Plan | MalformedPlan]]) -> list[Entry]:
    """Return the answers, each with the planner's new input."""
    before: dict[str, dict[str, Any]] = {}
    entries: list[Entry] = []
    for view, answer in asked:
        now = seen(view)
        new = _new(before.get(view.scope, {}), now)
        before[view.scope] = now
        entries.append(_entry(answer, scope=view.scope, iteration=view.iteration, attempt=view.attempt, shown=new))
    return entries


def _entry(answer: Plan | MalformedPlan, **where: Any) -> Entry:
    if isinstance(answer, MalformedPlan):
        return Entry(**where, rejected=answer.problem, raw=answer.raw)
    return Entry(**where, actions=answer.actions, text=answer.text, thinking=answer.thinking, model=answer.model)


# What a planner is shown --------------------------------------------------------------------------------------------------------


def seen(view: View) -> dict[str, Any]:
    """Return the parts of a prompt as JSON data that two equal runs share: no ids, times, amounts or secrets."""
    data: dict[str, Any] = {
        "goal": view.goal,
        "task": view.task,
        "instructions": view.agent.instructions,
        "actions": view.agent.actions,
        "variables": view.variables,
        "tools": [{"name": tool.name, "description": tool.description, "input": tool.input_schema} for tool in view.tools],
        "output_schema": view.output_schema,
        "memory": view.memory,
        "notes": dict(view.scratchpad),
        "guidance": view.guidance,
        "goals": [goal for _, goal in view.goals],
        "attachments": [_attachment(one) for one in view.attachments],
        "transcript": [_item(item) for item in view.transcript],
    }
    return msgspec.json.decode(_SECRET.sub("<secret>", encode(data).decode()))


def _item(item: Item) -> dict[str, Any]:
    """Return an entry of the transcript as the planner sees it."""
    if item.kind != "tool":
        return {"kind": item.kind, "text": item.text}
    shown: dict[str, Any] = {"kind": "tool", "tool": item.tool, "args": item.args, "ok": item.ok}
    if item.error is not None:
        return {**shown, "error": {"code": item.error.code, "message": item.error.message}}
    return {**shown, "content": item.content}


def _attachment(one: Any) -> Any:
    """Return an attachment with a digest instead of its data."""
    if not isinstance(one, dict):
        return one
    said = cast("dict[str, Any]", one)
    if not isinstance(said.get("data"), str):
        return said
    return {**said, "data": "sha256:" + sha256(said["data"].encode()).hexdigest()}


def _new(before: dict[str, Any], now: dict[str, Any]) -> dict[str, Any]:
    """Return the differences to `before`; for the transcript, the items after the common part."""
    changed = {name: value for name, value in now.items() if name != "transcript" and before.get(name, _MISSING) != value}
    old, items = before.get("transcript", []), now["transcript"]
    same = next((i for i, (a, b) in enumerate(zip(old, items, strict=False)) if a != b), min(len(old), len(items)))
    return {**changed, "transcript": {"after": same, "items": items[same:]}}


def _whole(before: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """Undo `_new`: return the whole value."""
    said = dict(new)
    told = said.pop("transcript", {"after": 0, "items": []})
    return {**before, **said, "transcript": [*before.get("transcript", [])[: told["after"]], *told["items"]]}


def difference(expected: Any, actual: Any, path: str = "") -> str:
    """Return where and how two values first differ, or ""."""
    if isinstance(expected, dict) and isinstance(actual, dict):
        one, other = cast("dict[str, Any]", expected), cast("dict[str, Any]", actual)
        for name in [*one, *(name for name in other if name not in one)]:
            found = difference(one.get(name, _MISSING), other.get(name, _MISSING), f"{path}.{name}" if path else name)
            if found:
                return found
        return ""
    if isinstance(expected, list) and isinstance(actual, list):
        mine, theirs = cast("list[Any]", expected), cast("list[Any]", actual)
        for index in range(max(len(mine), len(theirs))):
            one_item, other_item = (part[index] if index < len(part) else _MISSING for part in (mine, theirs))
            found = difference(one_item, other_item, f"{path}[{index}]")
            if found:
                return found
        return ""
    return "" if _same(expected, actual) else f"{path}: recorded {_told(expected)}, now {_told(actual)}"


def _same(one: Any, other: Any) -> bool:
    """Whether two values are equal in a prompt: true is not 1, and a missing value equals nothing."""
    return isinstance(other, one.__class__) and isinstance(one, other.__class__) and one is not _MISSING and bool(one == other)


def _told(value: Any) -> str:
    if value is _MISSING:
        return "nothing"
    text = encode(value).decode()
    return text if len(text) <= 300 else f"{text[:300]}… ({len(text)} characters)"


# Following a script ---------------------------------------------------------------------------------------------------------------


class RecordedPlanner:
    """A planner that returns the plans of a recorded run. A resumed run continues at its turn.

    `plan` raises `PlannerFailed` with the first difference (strict), or if the recording has no further plan; the run then fails with that message.
    `done` raises `AssertionError` with it, or if plans are left over. `by_sequence` overrides the script's own mode.
    """

    def __init__(self, script: Script, *, by_sequence: bool | None = None) -> None:
        self.script = script
        self.by_sequence = script.by_sequence if by_sequence is None else by_sequence
        if not self.by_sequence and script.by_sequence:
            raise ConfigError("this script was made with --by-sequence and has no planner input; it cannot be followed strictly")
        self.problem = ""
        self._used: set[int] = set()
        self._next: dict[tuple[str, str], int] = {}
        self._expected: dict[int, dict[str, Any]] = {}
        before: dict[str, dict[str, Any]] = {}
        for index, entry in enumerate(script.entries):
            before[entry.scope] = self._expected[index] = _whole(before.get(entry.scope, {}), entry.shown)

    @classmethod
    def from_file(cls, path: str | Path, *, by_sequence: bool | None = None) -> RecordedPlanner:
        """Return a planner that follows the script in a file. Raise `ConfigError` if the file has no script."""
        try:
            script = msgspec.json.decode(Path(path).read_bytes(), type=Script)
        except OSError as error:
            raise ConfigError(f"cannot read the script {str(path)!r}: {error.strerror or error}") from None
        except msgspec.DecodeError as error:
            raise ConfigError(
                f"{str(path)!r} is not a script of a run: {error}; `detent export --script RUN --output FILE` makes one"
            ) from None
        return cls(script, by_sequence=by_sequence)

    def models_asked(self, agent: AgentSpec) -> tuple[tuple[str, str], ...]:
        """Return nothing: a recording calls no model; see `ports.models_asked`."""
        return ()

    def begin_run(self, run_id: str) -> None:
        """Find the place in the script again; called by an engine that starts or resumes the run."""
        for key in [key for key in self._next if key[0] == run_id]:
            del self._next[key]

    async def plan(self, view: View) -> Plan:
        """Return the recorded plan for this view. Raise `MalformedPlan` if the recorded answer was not a plan, or `PlannerFailed`."""
        index = self._place(view)
        entry = self.script.entries[index]
        if not self.by_sequence and (found := difference(self._expected[index], seen(view))):
            raise self._refused(f"turn {view.iteration} of pass {view.scope!r} has another input than in run {self.script.run_id}: {found}")
        self._used.add(index)
        if entry.rejected:
            raise MalformedPlan(entry.rejected, raw=entry.raw)
        return Plan(actions=entry.actions, text=entry.text, thinking=entry.thinking, model=entry.model)

    def done(self) -> None:
        """Raise `AssertionError` if the input differed, or if part of the script was not used."""
        if self.problem:
            raise AssertionError(self.problem)
        left = [entry for index, entry in enumerate(self.script.entries) if index not in self._used]
        if left:
            first = left[0]
            raise AssertionError(
                f"{len(left)} of {len(self.script.entries)} recorded plans were not used, the first is that of turn {first.iteration} "
                f"of pass {first.scope!r}"
            )

    def _place(self, view: View) -> int:
        """Return the matching entry: that of the same turn and attempt, or the next one of the pass."""
        mine = [index for index, entry in enumerate(self.script.entries) if entry.scope == view.scope]
        if not self.by_sequence:
            for index in mine:
                entry = self.script.entries[index]
                if (entry.iteration, entry.attempt) == (view.iteration, view.attempt):
                    return index
        else:
            key = (view.run_id, view.scope)
            position = self._next.get(key, sum(self.script.entries[index].iteration < view.iteration for index in mine))
            if position < len(mine):
                self._next[key] = position + 1
                return mine[position]
        raise self._refused(
            f"run {self.script.run_id} has no plan for turn {view.iteration} of pass {view.scope!r}, attempt {view.attempt}: "
            f"{len(mine)} plans of that pass were recorded"
        )

    def _refused(self, problem: str) -> PlannerFailed:
        self.problem = self.problem or problem
        return PlannerFailed(problem)
