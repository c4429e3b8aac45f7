"""Checks whether unfinished runs can continue with the installed code: each is folded and replayed, and nothing is recorded.

What a resume does about changed code: different tools and another policy are recorded (`RunResumed.changed`) and hold from then on. A kernel or
strategy that would give another pass raises `Divergence`, a missing tool raises `ToolsMissing`: then nothing is recorded, and the run stays as it is.
The policy's past decisions stay valid, so here they are taken from the log (`backtest` asks a policy about them again).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import msgspec

from detent.config.planners import NoPlanner
from detent.core.agent import AgentSpec
from detent.core.errors import ConfigError, DetentError
from detent.core.events import RunResumed, RunStarted
from detent.core.state import WAITING, RunState
from detent.history.replaying import replay
from detent.ports import EventStore, Planner, RunQuery
from detent.running.advancing import Advancing, load
from detent.running.lineage import history
from detent.running.parts import Parts, digests_of, kernel_of, tools_of, ways_of
from detent.running.results import Difference
from detent.running.runtime import Runtime
from detent.running.snapshots import load_run
from detent.running.strategy_options import version_of
from detent.running.versions import code_of, is_other

OPEN = ("running", *WAITING)


class Upgraded(msgspec.Struct, frozen=True, kw_only=True):
    """Whether one open run could continue with the installed code.

    `missing` are tools that are not registered here, `changed` names what differs since the run was opened (`tool:NAME`, `policy`, `kernel`,
    `strategy`, `output type NAME`), `divergence` is the first record that is not reproduced, `problem` is what keeps the run from being read or executed.
    """

    run_id: str
    status: str
    records: int
    missing: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    divergence: Difference | None = None
    problem: str = ""

    @property
    def goes_on(self) -> bool:
        """Whether a resume continues the run."""
        return self.divergence is None and not self.missing and not self.problem


class Upgrade(msgspec.Struct, frozen=True, kw_only=True):
    """The effect of the installed code on every open run, oldest first."""

    runs: tuple[Upgraded, ...]

    @property
    def stranded(self) -> tuple[Upgraded, ...]:
        """The runs that could not continue."""
        return tuple(run for run in self.runs if not run.goes_on)


async def open_runs(store: EventStore, *, tenant: str | None = None) -> list[str]:
    """Return the runs that are not finished, oldest first."""
    return [head.run_id for head in reversed(await store.list_runs(RunQuery(status=OPEN, tenant=tenant)))]


async def check_run(
    parts: Parts, run_id: str, planner_for: Callable[[AgentSpec], Planner], types_changed: Callable[[AgentSpec], tuple[str, ...]]
) -> Upgraded:
    """Return whether a run could continue; reads only. `planner_for` raises `ConfigError` if nobody here plans for an agent.

    `types_changed` names the types of its answers that differ here: its answers are still checked by the recorded schema.
    """
    head = await parts.store.head(run_id)
    known: dict[str, Any] = {"run_id": run_id, "status": head.status if head else "unknown", "records": head.records if head else 0}
    try:
        state = await load_run(parts.store, run_id)
        changed = (*await _changed(parts, state), *types_changed(state.agent))
        there = tools_of(state, parts, missing_ok=True)
        missing = tuple(name for name in state.agent.tools if name not in there)
        if missing:
            return Upgraded(**known, missing=missing, changed=changed)
        planner_for(state.agent)
        records = await load(parts.store, run_id)
        found = await replay(records, parts, judges=False)
    except DetentError as error:
        return Upgraded(**known, problem=str(error))
    except Exception as error:  # noqa: BLE001 - foreign code: a strategy, kernel or policy that fails on this run is what is asked about
        return Upgraded(**known, problem=f"{type(error).__name__}: {error}")
    return Upgraded(**known, changed=changed, divergence=found.divergence)


async def move(runtime: Runtime, run_id: str, *, pinned: bool = False, must: bool = False) -> bool:
    """Move a run to the version of the code here, if it can continue with it, and return whether it has that version now. `pinned` ones only on request.

    The check and the record of the move happen under one claim. A run that has not begun moves without a check, a pinned one too. Raise `RunBusy`, and
    with `must` `ConfigError` if it cannot move.
    """
    parts = runtime.parts
    with suppress(DetentError):  # the check reports what cannot be reached
        if runtime.servers:
            await runtime.servers.prepare((await load_run(parts.store, run_id)).agent.tools, resuming=True)
    async with Advancing(parts, run_id, NoPlanner) as held:
        state = await load_run(parts.store, run_id)
        if state.terminal or not is_other(state, parts.version):
            return True
        begun = state.seq > 1
        if not parts.version or (begun and state.agent.upgrade == "pinned" and not pinned):
            return _stays(state, "it is pinned" if parts.version else "this process has no version", must=must)
        found = await check_run(parts, run_id, partial(runtime.planner_of_run, check=False), runtime.verifiers.changed)
        if not found.goes_on:
            why = f"it lacks {', '.join(found.missing)}" if found.missing else found.problem or f"{found.divergence}"
            return _stays(state, f"version {parts.version!r} cannot continue it: {why}", must=must)
        moved = RunResumed(worker=parts.worker, running_ms=state.running_ms, stopped=f"it moved to version {parts.version}")
        await held.resume(moved, advance=False)
        return True


def _stays(state: RunState, why: str, *, must: bool) -> bool:
    """Return False, or raise `ConfigError` with the reason."""
    if must:
        raise ConfigError(f"run {state.run_id!r} stays on version {code_of(state)!r}: {why}")
    return False


async def _changed(parts: Parts, state: RunState) -> tuple[str, ...]:
    """Return the differences in code since the run was opened. Raise `UnknownName` for a strategy or kernel that is not here."""
    strategy, _ = ways_of(state, parts)
    kernel_of(state.agent, parts)
    tools = tools_of(state, parts, missing_ok=True)
    then = {name: digest for name, digest in state.digests.items() if not name.startswith("capability:")}
    now = {name: digest for name, digest in digests_of(tools, parts, {}).items() if name in then}
    different = [name for name in then if now.get(name, "") != then[name]]
    version = next((r.event.strategy_version for r in await history(parts.store, state.run_id) if isinstance(r.event, RunStarted)), 1)
    return tuple(sorted([*different, *(["strategy"] if version != version_of(strategy) else [])]))
