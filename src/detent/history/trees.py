"""A run with its children, their children, and so on: listed without any log, or followed record by record."""

from __future__ import annotations

import heapq
import re
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping
from typing import Any

import msgspec

from detent.core.agent import Host
from detent.core.budget import NOTHING, Usage
from detent.core.codec import read_log
from detent.core.errors import RunErased, RunNotFound
from detent.core.events import SubagentJoined
from detent.core.fold import evolve
from detent.core.records import Record, RunHead
from detent.core.state import TERMINAL, WAITING, RunState
from detent.ports import EventStore, RunQuery, is_erased, wait_for_news
from detent.running.runtime import Runtime
from detent.running.snapshots import base_of, load_run

POLL_S = 0.2
PAGE = 100
"""How many listing entries are read at a time."""
_CHILD = re.compile(r"(.+)\.c[0-9a-f]{12}")
_BELOW = re.compile(r"(\.c[0-9a-f]{12})+")


class Branch(msgspec.Struct, frozen=True, kw_only=True):
    """One run of a tree; `depth` counts from the run that was asked for. A child begins after its parent."""

    run_id: str
    parent: str
    agent: str
    status: str
    reason: str
    depth: int
    iterations: int
    cost_usd: float
    goal: str
    head: RunHead


class Tree(msgspec.Struct, frozen=True, kw_only=True):
    """A run and all runs below it, parents before their children. `root` is the run at the top, which may be above the first one here."""

    root: str
    runs: tuple[Branch, ...]

    @property
    def ended(self) -> bool:
        """Whether all of them have ended."""
        return all(one.status in TERMINAL for one in self.runs)


def is_child(head: RunHead) -> bool:
    """Whether a run was started by a call of another run; a fork was not."""
    said = _CHILD.fullmatch(head.run_id.partition("@")[0])
    return bool(said) and head.goal_id != head.run_id and said[1] == head.parent.partition("@")[0][:150]


def is_below(run_id: str, above: str) -> bool:
    """Whether a run is, by the ids, below another one."""
    (one, _, tenant), (other, _, same) = run_id.partition("@"), above.partition("@")
    return tenant == same and len(one) > len(other) and bool(_BELOW.fullmatch(one.removeprefix(other[:150])))


async def without_children(
    listed: Callable[[RunQuery], Awaitable[list[RunHead]]], query: RunQuery, most: int | None = None
) -> list[RunHead]:
    """Return the runs that match and that no other run started, at most so many, newest first. `listed` reads a page of the listing."""
    found: list[RunHead] = []
    query = msgspec.structs.replace(query, limit=None if most is None else max(PAGE, most))
    while True:
        page = await listed(query)
        found += [head for head in page if not is_child(head)]
        if query.limit is None or len(page) < query.limit or (most is not None and len(found) >= most):
            return found[:most]
        query = msgspec.structs.replace(query, after=page[-1].run_id)


async def tree(runtime: Runtime, run_id: str, *, host: Host | None = None) -> Tree:
    """Return a run with all runs below it, in the order in which they began. Raise `RunNotFound`."""
    return await tree_at(runtime.store, await runtime.visible(run_id, host))


async def tree_at(store: EventStore, run_id: str) -> Tree:
    """Return the tree below a run that exists."""
    head = await store.head(run_id)
    assert head is not None  # noqa: S101 - it is visible
    found: dict[str, list[RunHead]] = {}
    for one in await store.list_runs(RunQuery(goal_id=head.goal_id)):
        if is_child(one):
            found.setdefault(one.parent, []).append(one)
    return Tree(root=head.goal_id, runs=tuple(_branches(msgspec.structs.replace(head, run_id=run_id), found)))


def _branches(top: RunHead, children: dict[str, list[RunHead]]) -> Iterable[Branch]:
    left = [(top, 0)]
    while left:
        head, depth = left.pop()
        left += [(one, depth + 1) for one in children.get(head.run_id, ())]  # the listing is newest first, so the first child is on top
        yield Branch(
            run_id=head.run_id,
            parent=head.parent if is_child(head) else "",
            agent=head.agent,
            status=head.status,
            reason=head.reason,
            depth=depth,
            iterations=head.iterations,
            cost_usd=head.cost_usd,
            goal=head.title or head.goal,
            head=head,
        )


async def grows(runtime: Runtime, run_id: str, *, host: Host | None = None) -> AsyncGenerator[Tree]:
    """Yield the tree of a run now, and each time that it has changed, until all its runs have ended."""
    before: Tree | None = None
    while True:
        began = time.monotonic()
        now = await tree(runtime, run_id, host=host)
        looked_s = time.monotonic() - began
        if now != before:
            yield now
        if now.ended:
            return
        before = now
        await wait_for_news(runtime.store, POLL_S, records=True, looked_s=looked_s)


async def looks_at_tree(
    store: EventStore, run_id: str, every_s: float = POLL_S
) -> AsyncGenerator[tuple[dict[str, RunState], list[tuple[Record, RunState]]]]:
    """Yield, for each look at a run and all runs below it until the first has ended, their states and the new records, each with the state after it.

    Each log is in its order, and all of them in the order of their times. Raise `RunNotFound` and `CorruptLog`, and `RunErased` if the first run was
    erased; an erased child is left out.
    """
    states = {run_id: await base_of(store, run_id, await store.read(run_id, limit=1)) or RunState(run_id=run_id)}
    while True:
        began, ended, found = time.monotonic(), states[run_id].terminal, list[list[tuple[Record, RunState]]]()
        if await store.head(run_id) is None:
            raise RunNotFound(run_id, store.url)
        for one in (await tree_at(store, run_id)).runs:
            state = states.get(one.run_id) or RunState(run_id=one.run_id)
            if one.run_id != run_id and (one.head.records <= state.seq or is_erased(one.head)):
                continue
            found.append([])
            for record in read_log(state.run_id, await store.read(state.run_id, after=state.seq), previous=state.digest, after=state.seq):
                state = evolve(state, record)
                found[-1].append((record, state))
            states[one.run_id] = state
        looked_s = time.monotonic() - began
        yield states, list(heapq.merge(*found, key=lambda item: item[0].envelope.at))
        if ended:  # the look before may have read a child before its last record
            return
        if not states[run_id].terminal:
            await wait_for_news(store, every_s, records=True, looked_s=looked_s)


def at_rest(run_id: str, states: Mapping[str, RunState]) -> bool:
    """Whether a run has ended, or waits for something else than children that continue."""
    state = states.get(run_id)
    if state is None or state.status != "waiting_for_subagent":
        return state is not None and (state.terminal or state.status in WAITING)
    below = [child.child for child in state.children.values() if child.status == "open"]
    return all(child in states and not states[child].terminal and at_rest(child, states) for child in below)


class Cost(msgspec.Struct, frozen=True, kw_only=True):
    """What one run of a tree has used: `own` without its children, `reserved` what it holds for open ones."""

    run_id: str
    agent: str
    depth: int
    own: Usage
    whole: Usage
    reserved: Usage


async def costs(runtime: Runtime, run_id: str, *, host: Host | None = None) -> list[Cost]:
    """Return what each run of a tree has used, parents before their children. The sum of `own` is what all of them used.

    Of a child that was erased, or is not in this store any more, its parent knows what it used together with its own children. Raise `RunErased` if the
    first run was erased.
    """
    found: list[Cost] = []
    ends: dict[str, Usage] = {}
    gone: set[str] = set()
    branches = (await tree(runtime, run_id, host=host)).runs
    listed = {one.run_id for one in branches}
    for one in branches:
        if one.parent in gone:
            gone.add(one.run_id)
            continue
        try:
            state, joined = await load_run(runtime.store, one.run_id), NOTHING
        except RunErased:
            if one.run_id not in ends:
                raise
            gone.add(one.run_id)
            found.append(_of_end(one.run_id, one.agent, one.depth, ends[one.run_id]))
            continue
        for record in read_log(one.run_id, await runtime.store.read(one.run_id)) if state.children else ():
            if isinstance(record.event, SubagentJoined):
                ends[record.event.child] = record.event.usage
                joined = joined.plus(record.event.usage)
        own = less(state.usage, joined)
        found.append(Cost(run_id=one.run_id, agent=one.agent, depth=one.depth, own=own, whole=state.usage, reserved=state.held))
        away = [child for child in state.children.values() if child.child in ends and child.child not in listed]
        found += [_of_end(child.child, child.agent, one.depth + 1, ends[child.child]) for child in away]
    return found


def _of_end(run_id: str, agent: str, depth: int, used: Usage) -> Cost:
    return Cost(run_id=run_id, agent=agent, depth=depth, own=used, whole=used, reserved=NOTHING)


def less(whole: Usage, part: Usage) -> Usage:
    """Return what is left of a usage without a part of it."""
    counts = [name for name in Usage.__struct_fields__ if name not in ("cost_usd", "estimated")]
    numbers: dict[str, Any] = {name: getattr(whole, name) - getattr(part, name) for name in counts}
    cost = None if whole.cost_usd is None else max(0.0, whole.cost_usd - (part.cost_usd or 0.0))
    return Usage(**numbers, cost_usd=cost, estimated=whole.estimated)
