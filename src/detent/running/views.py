"""What a planner sees: built anew for each plan, from the state alone."""

from __future__ import annotations

from functools import reduce

import msgspec

from detent.core.budget import Usage, remaining
from detent.core.events import ContextCompacted
from detent.core.history import Seq
from detent.core.state import Item, KernelState
from detent.kernel.context import KernelContext
from detent.ports import View
from detent.ports.copies import Copies, fresh
from detent.ports.tools import shown_tools


class Views:
    """Builds the views of one run. What is shown of a compacted pass is kept, and new items are added to it, so a turn costs the same at any length."""

    __slots__ = ("_shown",)

    def __init__(self) -> None:
        self._shown: dict[str, tuple[ContextCompacted, int, Seq[Item]]] = {}

    def __call__(self, context: KernelContext) -> View:
        """Return what the planner of a pass sees now."""
        run = context.run.journal.state
        state = run.passes[context.scope]
        used = reduce(Usage.plus, run.reserved.values(), run.usage) if run.reserved else run.usage
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
            budget_remaining=remaining(run.budget, used, running_s=run.running_ms / 1000, total_s=run.total_s),
            scratchpad=dict(state.scratchpad),
            guidance=(*context.input.guidance, *state.guidance) if context.input.guidance else state.guidance,
            attachments=tuple(fresh(run.attachments)) if run.attachments else (),
            conversation=context.run.world.conversation,
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
            known = told, told.steps, Seq(compacted(state.steps, told, reader=reader_in(context)))
        shown = known[2]
        for item in state.steps[known[1] :]:
            shown = shown.append(item)
        self._shown[context.scope] = told, len(state.steps), shown
        return shown


def compacted(steps: Seq[Item], told: ContextCompacted, *, reader: str) -> list[Item]:
    """Return what is left of a transcript: the goal, the items kept of those before `items`, the summary, the others up to the compaction."""
    cleared = frozenset(told.cleared)
    left: list[Item] = [steps[0], *(steps[position] for position in told.kept)]
    if told.summary:
        left.append(Item(kind="note", text=told.summary))
    for item in steps[max(1, told.items) : told.steps]:
        if item.call_id in cleared:
            left.append(msgspec.structs.replace(item, result=handle(item, reader=reader), artifact=None, meta=True))
        elif item.call_id in told.clamped:
            left.append(clamped(item, told.clamped[item.call_id], reader=reader))
        else:
            left.append(item)
    return left


def reader_in(context: KernelContext) -> str:
    """Return the tool with which the planner can read what is not shown any more, "" without one."""
    return next((name for name in ("recall", "recall_turn") if name in context.tools), "")


def handle(item: Item, *, reader: str) -> msgspec.Raw:
    """Return what stands for a cleared result: how long it is, and how it can be read again."""
    size = item.artifact.size_bytes if item.artifact is not None else len(item.result)
    return _raw(f"[cleared: {size:,} bytes; {again(item, reader=reader)}]")


def clamped(item: Item, characters: int, *, reader: str) -> Item:
    """Return an item with the beginning of its result."""
    whole = bytes(item.result)
    text: str = msgspec.json.decode(whole) if whole[:1] == b'"' else whole.decode("utf-8", "replace")
    begins = beginning(text, characters)
    cut = f"{begins}\n[cut: {len(text) - len(begins):,} more characters; {again(item, reader=reader)}]"
    return msgspec.structs.replace(item, result=_raw(cut), artifact=None, meta=True)


def beginning(text: str, most: int) -> str:
    """Return the beginning of a text that takes at most `most` bytes of JSON: some characters take more than one."""
    begins = text[:most]
    while (size := len(msgspec.json.encode(begins)) - 2) > most:
        begins = begins[: len(begins) * most // size]
    return begins


def again(item: Item, *, reader: str) -> str:
    """Return how a result can be read again."""
    if reader == "recall":
        return f'recall with key "{item.call_id}" reads it again'
    if reader:
        return f"{reader} with turn {item.iteration} reads it again"
    return "the log keeps it" if item.changes else f"call {item.tool} again if you need it"


def _raw(text: str) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode(text))
