"""What a planner sees: built anew for each plan, from the state alone."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, TypeVar

import msgspec

from detent.core.actions import Action
from detent.core.budget import remaining
from detent.core.codec import walk
from detent.core.events import ContextCompacted
from detent.core.history import Seq
from detent.core.state import Item, KernelState
from detent.kernel.context import KernelContext
from detent.ports import View
from detent.ports.copies import Copies, fresh
from detent.ports.outside import taken
from detent.ports.tools import shown_tools
from detent.running.estimating import earlier_of, json_size

A = TypeVar("A", bound=Action)

LEAST = 80
"""A text that is this much longer than allowed is shown whole: the mark would take as much."""


class Views:
    """Builds the views of one run. What is shown of a compacted pass is kept, and new items are added to it, so a turn costs the same at any length."""

    __slots__ = ("_shown",)

    def __init__(self) -> None:
        self._shown: dict[str, tuple[ContextCompacted, int, Seq[Item]]] = {}

    def __call__(self, context: KernelContext) -> View:
        """Return what the planner of a pass sees now."""
        run = context.run.journal.state
        state = run.passes[context.scope]
        return View(
            goal=run.goal,
            task=context.input.task,
            agent=context.agent,
            iteration=state.iteration,
            variables=fresh(context.input.variables) if context.input.variables else {},
            transcript=Copies(state.steps if not state.compacted and state.compaction is None else self._left(context, state)),
            results=Copies(state.results),
            tools=shown_tools(state, context.specs, context.tools, context.agent),
            memory=tuple(fresh(state.memory)) if state.memory else (),
            budget_remaining=remaining(run.budget, taken(run), running_s=run.running_ms / 1000, total_s=run.total_s),
            scratchpad=dict(state.scratchpad),
            guidance=(*context.input.guidance, *state.guidance) if context.input.guidance else state.guidance,
            attachments=tuple(fresh(run.attachments)) if run.attachments else (),
            conversation=earlier_of(context),
            output_schema=None if context.input.output_schema is None else fresh(context.input.output_schema),
            small=context.input.small,
            profile=context.profile,
            compression=context.compression,
            goals=tuple([(g.goal_id, g.goal) for g in run.goals]) if run.goals else (),
            host=run.host,
            run_id=run.run_id,
            scope=context.scope,
            attempt=state.rejected + 1,
            full=context.run.world.full,
            models=context.run.world.models(context),
        )

    def _left(self, context: KernelContext, state: KernelState) -> Seq[Item]:
        """Return what a compacted pass is shown of its transcript."""
        told = state.compaction
        if told is None or (told.items, told.summary) != (state.compacted, state.summary):  # a phase compacted it
            return Seq([Item(kind="note", text=state.summary), *state.steps[state.compacted :]])
        known = self._shown.get(context.scope)
        if known is None or known[0] is not told or known[1] > len(state.steps):
            known = told, told.steps, Seq(compacted(state.steps, told, readers=readers_in(context)))
        shown = known[2]
        for item in state.steps[known[1] :]:
            shown = shown.append(item)
        self._shown[context.scope] = told, len(state.steps), shown
        return shown


def compacted(steps: Seq[Item], told: ContextCompacted, *, readers: Sequence[str]) -> list[Item]:
    """Return what is left of a transcript: the goal, the items kept of those before `items`, the summary, the others up to the compaction."""
    cleared = frozenset(told.cleared)

    def left(position: int) -> Item:
        item = steps[position]
        if item.call_id in cleared:
            return msgspec.structs.replace(item, result=handle(item, readers=readers), artifact=None, meta=True)
        most = told.cut.get(position) or told.clamped.get(item.call_id)
        return shortened(item, most, readers=readers) if most else item

    summary = [Item(kind="note", text=told.summary)] if told.summary else []
    return [*map(left, (0, *told.kept)), *summary, *map(left, range(max(1, told.items), told.steps))]


def readers_in(context: KernelContext) -> Sequence[str]:
    """Return the tools with which the planner can read what is not shown any more."""
    return [name for name in ("recall", "recall_turn") if name in context.tools]


def handle(item: Item, *, readers: Sequence[str]) -> msgspec.Raw:
    """Return what stands for a cleared result: how long it is, and how it can be read again."""
    size = item.artifact.size_bytes if item.artifact is not None else len(item.result)
    return _raw(f"[cleared: {size:,} bytes; {again(item, readers=readers)}]")


def shortened(item: Item, most: int, *, readers: Sequence[str]) -> Item:
    """Return the goal, a reply, a note, a result or a plan in about `most` bytes. `meta` marks an item that is not shown whole."""
    how = again(item, readers=readers)
    if item.kind == "tool":
        whole = bytes(item.result)
        text = msgspec.json.decode(whole) if whole[:1] == b'"' else whole.decode("utf-8", "replace")
        return msgspec.structs.replace(item, result=_raw(ends_of(text, most, how)), artifact=None, meta=True)
    if item.plan is None:
        return msgspec.structs.replace(item, text=ends_of(item.text, most, how), meta=True)
    plan, each = item.plan, most // max(1, len(item.plan.actions) + len(item.plan.dropped))
    text = ends_of(item.text, each, how)
    made = msgspec.structs.replace(
        plan,
        actions=tuple([_cut(action, each, how) for action in plan.actions]),
        dropped=tuple([_cut(action, each, how) for action in plan.dropped]),
        text=text,
        provider_data=plan.provider_data if text == plan.text else None,  # it points into the text
    )
    return msgspec.structs.replace(item, plan=made, text=text, meta=True)


def _cut(action: A, most: int, how: str) -> A:
    """Return an action whose texts and arguments take at most about `most` bytes each."""
    changed: dict[str, Any] = {}
    for name in action.__struct_fields__:
        value = getattr(action, name)
        if name != "provider_id" and isinstance(value, (str, dict, list)) and json_size(value) > most:
            changed[name] = ends_of(value, most, how) if isinstance(value, str) else _cut_value(value, most, how)
    return msgspec.structs.replace(action, **changed) if changed else action


def _cut_value(value: Any, most: int, how: str) -> Any:
    """Return JSON data in its form with long texts cut, or its beginning as text if it is large without them."""
    longest = most
    while longest > LEAST:
        longest //= 2
        made = walk(value, partial(ends_of, most=longest, how=how))
        if json_size(made) <= most:
            return made
    return {"cut": ends_of(msgspec.json.encode(value).decode(), most, how)}


def ends_of(text: str, most: int, how: str) -> str:
    """Return a text, or its beginning and its end in about `most` bytes of JSON, with how the rest can be read between them."""
    if json_size(text) - 2 <= most + LEAST:
        return text
    head, tail = beginning(text, most * 2 // 3), beginning(text[::-1], most // 3)[::-1]
    return f"{head}\n[cut: {len(text) - len(head) - len(tail):,} characters are left out here; {how}]\n{tail}"


def beginning(text: str, most: int) -> str:
    """Return the beginning of a text that takes at most `most` bytes of JSON: some characters take more than one."""
    begins = text[:most]
    while (size := len(msgspec.json.encode(begins)) - 2) > most:
        begins = begins[: len(begins) * most // size]
    return begins


def again(item: Item, *, readers: Sequence[str]) -> str:
    """Return how an item can be read again."""
    if item.call_id and "recall" in readers:
        return f'recall with key "{item.call_id}" reads it again'
    if "recall_turn" in readers:
        return f"recall_turn with turn {item.iteration} reads it again"
    return "the log keeps it" if item.changes or not item.call_id else f"call {item.tool} again if you need it"


def _raw(text: str) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode(text))
