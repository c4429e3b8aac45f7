"""Pausing agents, tenants, tools and providers for every worker of a store, and saying what holds a run."""

from __future__ import annotations

from contextlib import suppress

from detent.core.agent import Host
from detent.core.errors import ConfigError, DetentError
from detent.metering.accounts import held_by
from detent.ports import RunQuery, wake_workers
from detent.ports.heads import head_of, wakes_at
from detent.ports.holding import Ended, Hold, end_holds, ended_holds, keep_hold, kept_holds, named
from detent.running.runtime import Runtime, pass_on
from detent.running.snapshots import load_run


async def pause(runtime: Runtime, what: str, *, by: str, why: str = "") -> Hold:
    """Pause `agent:NAME`, `tenant:NAME`, `tool:NAME` or `provider:NAME` for every worker of the store, until `unpause`. Return what is kept.

    Runs of a paused agent or tenant are not begun and not resumed; those in progress stop at their next record boundary. Before a call of a paused
    tool, or of a model of a paused provider, a run stops and waits as rows. Nothing counts as a failed attempt, and a call in progress ends as usual.
    Only a cancellation ends such a run. A second pause replaces the first one. Raise `ConfigError` for anything else, or without a name.
    """
    of, name = named(what)
    if not by.strip():
        raise ConfigError(f"pausing {what} needs a name: whoever meets it must know whom to ask. Give by=")
    await runtime.open()
    hold = await keep_hold(runtime.store, Hold(of=of, name=name, by=by, why=why, at=runtime.parts.clock.now()))
    await runtime.parts.accounts.read()
    await wake_workers(runtime.store)
    return hold


async def unpause(runtime: Runtime, what: str, *, by: str, why: str = "") -> tuple[Hold, ...]:
    """End everything that holds `agent:NAME`, `tenant:NAME`, `tool:NAME` or `provider:NAME`, also an account that a provider's answer has closed.

    The runs that it held are due at once. The store remembers who ended it and why (`holds(ended=True)`). Return what was ended; nothing if it was not
    held. Raise `ConfigError` for anything else, or without a name.
    """
    of, name = named(what)
    if not by.strip():
        raise ConfigError(f"ending the pause of {what} needs a name: whoever paused it must know whom to ask. Give by=")
    await runtime.open()
    now = runtime.parts.clock.now()
    held = [hold for hold in await kept_holds(runtime.store, now) if (hold.of, hold.name) == (of, name)]
    ended = await end_holds(runtime.store, held, Ended(by=by, why=why, at=now))
    await runtime.parts.accounts.read()
    if ended:
        await _make_due(
            runtime, RunQuery(status=("running",), agent=name if of == "agent" else None, tenant=name if of == "tenant" else None)
        )
        await wake_workers(runtime.store)
    return ended


async def holds(runtime: Runtime, *, ended: bool = False) -> tuple[Hold, ...]:
    """Return everything that is paused, and every provider's account that is closed now. With `ended`: what somebody has ended lately, the last first."""
    await runtime.open()
    return await ended_holds(runtime.store) if ended else await kept_holds(runtime.store, runtime.parts.clock.now())


async def held(runtime: Runtime, run_id: str, *, host: Host | None = None) -> Hold | None:
    """Return what holds a run at its next step: its agent, its tenant, the tool that it calls next or the provider that it asks next. None: nothing.

    With a host, without who holds it and why: that may name other tenants' runs. Raise `RunNotFound`, `RunErased`.
    """
    state = await runtime.standing(run_id, host)
    hold = held_by(state, await kept_holds(runtime.store, runtime.parts.clock.now()), runtime.parts.clock.now())
    return hold if hold is None or host is None else hold.unsigned


async def _make_due(runtime: Runtime, query: RunQuery) -> None:
    """Let runs continue that were put off because something held them. If one is advanced or changed meanwhile, it needs nothing."""
    now = runtime.parts.clock.now()
    for head in await runtime.store.list_runs(query):
        begins = head.queued.not_before if head.queued is not None else None
        if head.wake_at is None or head.wake_at <= now or head.wake_at == begins:
            continue
        with suppress(DetentError):
            state = await load_run(runtime.store, head.run_id)
            if state.status == "running" and wakes_at(state) != head.wake_at:
                await runtime.store.append(state.run_id, state.seq, [], head=head_of(state))
                await pass_on(runtime, state.run_id)
