"""Waiting runs, as a worker finds and resumes them: `Engine.work(waiting_only=True)`."""

from __future__ import annotations

from typing import Any

from detent import Engine, Host
from detent.core.records import Record
from detent.core.state import RunState
from detent.running.results import Result, result_of
from detent.running.working import StoreBacklog


async def due(engine: Engine, *, host: Host | None = None) -> list[str]:
    """Return the waiting runs that can move, the oldest first; nothing is changed."""
    backlog = StoreBacklog(engine.hand(), tenant=host.tenant if host else None, waiting_only=True)
    return [one.run_id for one in (await backlog.due()).runs]


async def resumed(engine: Engine, *, host: Host | None = None) -> list[Result]:
    """Let a worker resume the waiting runs that can move; return how they are now, in the order in which it began them."""
    begun: dict[str, None] = {}

    class Begun:
        def on_record(self, record: Record, state: RunState) -> None:
            begun.setdefault(state.run_id)

        def on_chunk(self, chunk: Any) -> None:
            """Nothing of it is wanted."""

    await engine.work(waiting_only=True, until_idle=True, host=host, observers=[Begun()])
    return [result_of(await engine.load(run_id)) for run_id in begun]
