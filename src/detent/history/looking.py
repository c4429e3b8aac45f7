"""What a program can read about runs through an engine. Nothing here records anything, or calls a planner or a tool."""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from detent.config.adapters import governing, policy_at
from detent.core.agent import Host
from detent.core.budget import Budget
from detent.core.codec import read_log
from detent.core.errors import DetentError, RunErased, RunNotFound, UnknownName
from detent.core.fold import evolve
from detent.core.records import Record, RunHead
from detent.core.state import WAITING, RunState
from detent.history import backtest as backtesting
from detent.history import comparing, replaying, upgrading
from detent.history.backtest import Backtest
from detent.history.comparing import Diff, Parting
from detent.history.replaying import Answer
from detent.history.trees import at_rest, looks_at_tree
from detent.history.upgrading import Upgrade, Upgraded
from detent.ports import EventStore, Guard, Policy, RunQuery, View, wait_for_news
from detent.ports.governance import guard_name
from detent.ports.observing import placed
from detent.ports.options import check_is
from detent.ports.passwords import without_password
from detent.running import advancing, artifacts
from detent.running.lineage import history
from detent.running.overseeing import Wait, waits_of
from detent.running.results import LoadedRun, Replay, Result, files_of, loaded
from detent.running.runtime import Runtime
from detent.running.snapshots import base_of, load_run

POLL_S = 0.2
"""How often a followed run is read, in seconds, if its store cannot signal news."""


async def load(runtime: Runtime, run_id: str, *, host: Host | None = None) -> LoadedRun:
    """Return the state of a run, including everything in a `Result` (see `Outcome`). Raise `RunNotFound`, `RunErased`, `CorruptLog`."""
    state = await runtime.standing(run_id, host)
    return loaded(state, runtime.verifiers.made(state.output, state.agent), without_password(runtime.store.url))


async def waits(runtime: Runtime, run_id: str, *, host: Host | None = None) -> list[Wait]:
    """Return what a run waits for: a person, its parent, a time. If that is its children, return what they wait for, or that they work.

    `Wait.path` has the agents from the root of the tree to the run that waits, at any depth. Raise as `load`.
    """
    return await waits_of(runtime.store, await runtime.standing(run_id, host))


async def records(runtime: Runtime, run_id: str, *, host: Host | None = None) -> list[Record]:
    """Return the verified records of a run."""
    run_id = await runtime.visible(run_id, host)
    return await advancing.load(runtime.store, run_id)


async def follow(
    runtime: Runtime,
    run_id: str,
    *,
    after: int | Mapping[str, int] = 0,
    through_waits: bool = False,
    tree: bool = False,
    host: Host | None = None,
) -> AsyncGenerator[Record | Result]:
    """Yield the verified records of a run after their commit, whoever advances it; the `Result` is last.

    `after`: begin after the record of this sequence. `through_waits`: continue while the run waits, until it has ended. `tree`: also yield the records of
    all runs below it, each with its agent and parent in the envelope; `after` may then give the sequences by run. It only reads: leaving early, or
    cancelling the reader, changes nothing. If nobody advances the run, it waits. Raises `RunNotFound`, also if the run is deleted meanwhile,
    `RunErased` and `CorruptLog`.
    """
    state = await runtime.standing(run_id, host)
    known = after if isinstance(after, Mapping) else {state.run_id: after}
    if tree:
        async with contextlib.aclosing(looks_at_tree(runtime.store, top := state.run_id)) as trees:
            async for states, new in trees:
                for record, then in new:
                    if record.envelope.seq > known.get(record.envelope.run, 0):
                        yield placed(record, then.agent.name, then.parent)
                state = states[top]
                if not (through_waits or state.terminal) and at_rest(top, states):
                    break
        yield runtime.result(state)
        return
    async with contextlib.aclosing(looks(runtime.store, state.run_id)) as found:
        async for state, new in found:
            for record, _ in new:
                if record.envelope.seq > known.get(state.run_id, 0):
                    yield record
            if state.status in WAITING and not through_waits:
                break
    yield runtime.result(state)


async def looks(store: EventStore, run_id: str, every_s: float = POLL_S) -> AsyncGenerator[tuple[RunState, list[tuple[Record, RunState]]]]:
    """Yield, for each look at a run until it has ended, its state and its new records (or none), each with the state after it.

    Raise as `follow` does.
    """
    state = await base_of(store, run_id, await store.read(run_id, limit=1)) or RunState(run_id=run_id)
    while True:
        began, new = time.monotonic(), list[tuple[Record, RunState]]()
        for record in read_log(run_id, await store.read(run_id, after=state.seq), previous=state.digest, after=state.seq):
            state = evolve(state, record)
            new.append((record, state))
        if not new and await store.head(run_id) is None:
            raise RunNotFound(run_id, store.url)
        looked_s = time.monotonic() - began
        yield state, new
        if state.terminal:
            return
        await wait_for_news(store, every_s, records=True, looked_s=looked_s)


async def artifact(runtime: Runtime, run_id: str, key: str, *, host: Host | None = None) -> bytes:
    """Return the bytes of an artifact of a run by its key: a file that a model created (`Result.artifacts`), or a result that was too large.

    Raise `UnknownName` if the run's log names no such artifact, and `CorruptLog` if the artifact is not what was stored.
    """
    state = await runtime.standing(run_id, host)
    results = (item.artifact for p in state.passes.values() for item in p.results)
    known = [ref.key for ref in (*files_of(state), *results) if ref is not None]
    if key not in known:
        raise UnknownName("artifact", key, known)
    return await artifacts.artifact(runtime.store, state, key)


async def list_runs(runtime: Runtime, query: RunQuery | None = None, *, host: Host | None = None, **filters: Any) -> list[RunHead]:
    """Return runs, newest first; filters as in `RunQuery`: status, tenant, goal_id, agent, since, until, limit, after."""
    await runtime.open()
    return await runtime.store.list_runs(await _of_tenant(runtime, query or RunQuery(**filters), host))


async def _of_tenant(runtime: Runtime, query: RunQuery, host: Host | None) -> RunQuery:
    """Return the query restricted to what the host may see. Its page cannot begin after another tenant's run."""
    check_is(Host, host=host)
    if host is None:
        return query
    after = query.after if query.after is None else await runtime.visible(query.after, host)
    return msgspec.structs.replace(query, tenant=host.tenant, after=after)


async def replay(runtime: Runtime, run_id: str, *, host: Host | None = None) -> Replay:
    """Replay a run's log with the installed code and tools: identical, or the first divergence. No planner and no tool is called.

    No MCP server is started: the log has their declarations.
    """
    return await replaying.replay(await records(runtime, run_id, host=host), runtime.parts)


async def plans(runtime: Runtime, run_id: str, *, host: Host | None = None) -> list[tuple[View, Answer]]:
    """Return each view that the run's planner had, in order, with the plan (or the `MalformedPlan`) that it answered.

    They come from a replay of the log. Raises `Divergence` if this code does not reproduce the log.
    """
    return await replaying.plans_of(await records(runtime, run_id, host=host), runtime.parts)


async def _prepare(runtime: Runtime, run_id: str) -> None:
    if runtime.servers:
        await runtime.servers.prepare((await load_run(runtime.store, run_id)).agent.tools, resuming=True)


async def backtest(
    runtime: Runtime,
    policy: Policy | str | Path | None = None,
    *,
    budget: Budget | None = None,
    guards: Sequence[str | Guard] = (),
    query: RunQuery | None = None,
    only: Callable[[str], bool] = lambda run_id: True,
    host: Host | None = None,
) -> Backtest:
    """Apply a candidate policy (or policy file; None: this engine's policy), budget and guards to every recorded decision. Nothing is executed.

    The candidate is combined with the policy of each run's agent, as in an engine with that policy. `guards` are further guards, by name or as functions.
    `query` and `only` (an id) select the runs. Raises `UnknownName` for a guard.
    """
    await runtime.open()
    candidate = policy_at(policy)
    wanted = await _of_tenant(runtime, query or RunQuery(), host)
    return await backtesting.backtest(
        runtime.store,
        runtime.parts.policy_of if candidate is None else governing(candidate),
        version=(candidate or runtime.parts.policy).version,
        tools={spec.name: spec for spec in runtime.tools.list()},
        budget=budget,
        guards={
            one if isinstance(one, str) else guard_name(one): runtime.guards.get(one) if isinstance(one, str) else one for one in guards
        },
        query=wanted,
        only=only,
    )


async def diff(runtime: Runtime, a: str, b: str, *, host: Host | None = None) -> Diff:
    """Return the differences between two runs, by pass and iteration; none if they did the same."""
    one, other = [(await _history(runtime, run_id, host), await runtime.standing(run_id, host)) for run_id in (a, b)]
    return comparing.diff(one[0], other[0], one[1], other[1])


async def bisect(runtime: Runtime, a: str, b: str, *, host: Host | None = None) -> Parting | None:
    """Return the first step at which two runs part; None if they do the same throughout."""
    return comparing.bisect(await _history(runtime, a, host), await _history(runtime, b, host))


async def _history(runtime: Runtime, run_id: str, host: Host | None) -> list[Record]:
    run_id = await runtime.visible(run_id, host)
    records = await history(runtime.store, run_id)
    if any(record.event is None for record in records):
        raise RunErased(run_id)
    return records


async def check_upgrade(runtime: Runtime, run_id: str | None = None, *, host: Host | None = None) -> Upgrade:
    """Fold and replay every unfinished run (or this one) with the installed code, and report which ones could not continue.

    Nothing is recorded, and no planner or tool is called.
    """
    await runtime.open()
    if run_id is not None:
        run_id = await runtime.visible(run_id, host)
    wanted = [run_id] if run_id is not None else await upgrading.open_runs(runtime.store, tenant=host.tenant if host else None)
    found: list[Upgraded] = []
    for name in wanted:
        with contextlib.suppress(DetentError):  # the check reports what cannot be read or reached
            await _prepare(runtime, name)
        found.append(
            await upgrading.check_run(runtime.parts, name, partial(runtime.planner_of_run, check=False), runtime.verifiers.changed)
        )
    return Upgrade(runs=tuple(found))
