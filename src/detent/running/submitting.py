"""Submitting: a run is started durably and left to a worker, with its place among the runs that wait for one.

Rule: what two submissions agree on is in the store. Those with one `dedupe_key` are decided one after another, under a claim that stands for the key.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from datetime import timedelta
from hashlib import sha256
from typing import Any, Literal

import msgspec

from detent.config.agents import Agent
from detent.config.planners import NoPlanner
from detent.core.agent import Host
from detent.core.durations import seconds
from detent.core.errors import ConfigError, NotAllowedNow, RunBusy, RunContextMismatch, StoreBusy
from detent.core.events import Queued
from detent.core.records import RunHead
from detent.core.state import WAITING
from detent.ports import RunQuery, unstorable
from detent.ports.options import check_is
from detent.running import answering, starting
from detent.running.advancing import Advancing
from detent.running.runtime import Runtime, pass_on

OnSame = Literal["queue", "skip", "replace", "latest"]
RULES: tuple[OnSame, ...] = ("queue", "skip", "replace", "latest")
MOST_PRIORITY, MOST_WEIGHT = 1_000_000_000, 1_000_000

PATIENCE_S, AGAIN_S = 30.0, 0.01
"""How long a submission waits for others with its `dedupe_key`, and how often it tries."""


async def submit(
    runtime: Runtime,
    agent: Agent | str,
    goal: str,
    *,
    priority: int = 0,
    fair_key: str = "",
    weight: int = 1,
    dedupe_key: str = "",
    on_same: OnSame = "queue",
    debounce: float | str | None = None,
    request: str = "",
    **options: Any,
) -> str:
    """Start a run durably, leave it to a worker (`work`, `detent worker`) and return its id; `options` as for `run`, except observers, turns.

    Only the worker calls its model and needs the key. If a run with this id exists, nothing is started. Raises as `run` does.

    Runs of different keys take turns, `weight` runs of a key a turn. `fair_key` is the key, by default the tenant's name. `priority` orders the runs
    of one key, lower values first.

    `on_same` says what happens to unfinished runs of the tenant that were submitted with the same `dedupe_key`: `queue`: they stay, and this run is
    started too. `skip`: nothing is started, and the id of the oldest one is returned. `replace`: all of them are cancelled. `latest`: those that no
    worker has begun are cancelled. `debounce` seconds: the run does not begin earlier, and a later submission with its `dedupe_key` takes its place
    (`latest`).

    `request` is the digest of what somebody asked for under this `run_id`: where the run was submitted with another one, `RunContextMismatch` is raised.
    """
    if wrong := options.keys() & {"observers", "turns", "queued"}:
        raise ConfigError(f"submit takes no {' and no '.join(sorted(wrong))}: a worker advances the run; observers are given to `work`")
    check_is(Host, host=options.get("host"))
    queued = _checked(
        runtime, priority=priority, fair_key=fair_key, weight=weight, dedupe_key=dedupe_key, on_same=on_same, debounce=debounce
    )
    if request:
        queued = msgspec.structs.replace(queued or Queued(), request=request)
    if on_same == "queue" and debounce is None:
        return await _started(runtime, agent, goal, queued, options)
    await runtime.open()
    host: Host = options.get("host") or Host()
    async with _alone(runtime, host.tenant, dedupe_key):
        query = RunQuery(status=("running", *WAITING), tenant=host.tenant, dedupe_key=dedupe_key)
        given = options.get("run_id")
        same = [head for head in await runtime.store.list_runs(query) if given is None or head.run_id != await runtime.kept_as(given, host)]
        if same and on_same == "skip":
            return same[-1].run_id
        run_id = await _started(runtime, agent, goal, queued, options)
        for head in same if on_same in ("replace", "latest") or debounce is not None else ():
            if on_same == "replace" or not _begun(head):
                with suppress(NotAllowedNow, RunBusy):  # it has ended, or was cancelled by somebody else
                    await answering.cancel(runtime, head.run_id, why=f"run {run_id} takes its place", host=options.get("host"))
        return run_id


async def _started(runtime: Runtime, agent: Agent | str, goal: str, queued: Queued | None, options: dict[str, Any]) -> str:
    result = await starting.run(runtime, agent, goal, turns=0, queued=queued, **options)
    run_id, known = result.run_id, result.state.queued or Queued()
    if queued is not None and known.request != queued.request:
        raise RunContextMismatch(run_id, [{"field": "request", "expected": known.request, "received": queued.request}])
    await pass_on(runtime, run_id)
    return run_id


def _begun(head: RunHead) -> bool:
    """Whether a worker has begun a submitted run: something was recorded after its start."""
    return head.records > 1


def _checked(
    runtime: Runtime, *, priority: Any, fair_key: Any, weight: Any, dedupe_key: Any, on_same: Any, debounce: float | str | None
) -> Queued | None:
    """Return the place of a run, None for the usual one. Raise `ConfigError`, which names the option."""
    if type(priority) is not int or abs(priority) > MOST_PRIORITY:
        raise ConfigError(
            f"priority is {priority!r}; give a whole number from -{MOST_PRIORITY:,} to {MOST_PRIORITY:,}, lower ones come first"
        )
    if type(weight) is not int or not 1 <= weight <= MOST_WEIGHT:
        raise ConfigError(f"weight is {weight!r}; give how many runs of the key a turn has: 1 to {MOST_WEIGHT:,}")
    for name, text in (("fair_key", fair_key), ("dedupe_key", dedupe_key)):
        check_is(str, **{name: text})
        if (problem := unstorable(text)) or not text.isprintable() or len(text) > 200:
            raise ConfigError(f"{name} {text[:80]!r} {problem or 'must be at most 200 printable characters'}")
    if on_same not in RULES:
        raise ConfigError(f"on_same is {on_same!r}; give one of {', '.join(RULES)}")
    if not dedupe_key and (on_same != "queue" or debounce is not None):
        raise ConfigError("on_same and debounce are about submissions with the same dedupe_key; give one")
    pause_s = None if debounce is None else seconds(debounce, "debounce")
    if pause_s is not None and not (isinstance(pause_s, (int, float)) and 0 < pause_s < 10**9):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ConfigError(f"debounce is {debounce!r}; give more than 0 seconds, or leave it out")
    if pause_s is not None and on_same in ("skip", "replace"):
        raise ConfigError(f"debounce lets the latest submission count, and on_same is {on_same!r}; leave one of them out")
    not_before = None if pause_s is None else runtime.parts.clock.now() + timedelta(seconds=pause_s)
    queued = Queued(fair_key=fair_key, priority=priority, weight=weight, dedupe_key=dedupe_key, not_before=not_before)
    return None if queued == Queued() else queued


@asynccontextmanager
async def _alone(runtime: Runtime, tenant: str, dedupe_key: str) -> AsyncGenerator[None]:
    """Keep out other submissions with this key, in every process. Raise `StoreBusy` if that takes too long."""
    name = f"_same-{sha256(f'{tenant} {dedupe_key}'.encode()).hexdigest()[:40]}"
    loop = asyncio.get_running_loop()
    until = loop.time() + PATIENCE_S
    async with AsyncExitStack() as stack:
        while True:
            try:
                await stack.enter_async_context(Advancing(runtime.parts, name, NoPlanner))
                break
            except RunBusy:
                if loop.time() > until:
                    why = f"other submissions with dedupe_key {dedupe_key!r} have been in progress for {PATIENCE_S:g} s; nothing was recorded, try again"
                    raise StoreBusy(why) from None
                await asyncio.sleep(AGAIN_S)
        yield
