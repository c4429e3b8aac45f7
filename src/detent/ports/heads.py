"""The listing entry of a run: what every append of its log gives to the store."""

from __future__ import annotations

from datetime import datetime, timedelta

from detent.core.events import TITLE
from detent.core.records import RunHead
from detent.core.state import RunState

CODE = "version"
"""Among the digests of a run: the version of the code that it needs."""

ASK_S = 1.0
"""How long a worker waits before it asks a tool again about a call in doubt; then twice as long each time."""


def head_of(state: RunState) -> RunHead:
    """Return the listing entry of a run. A child whose parent has left it is listed as a root."""
    return RunHead(
        run_id=state.run_id,
        goal_id=state.goal_id,
        goal=state.goal[:120],
        title=(TITLE in state.effects and state.effects[TITLE]) or "",
        agent=state.agent.name,
        tenant=state.host.tenant,
        parent=state.ancestors[0] if state.ancestors else "" if state.delegated is not None and state.delegated.left else state.parent,
        status=state.status,
        reason=state.reason,
        iterations=state.usage.iterations,
        records=state.seq,
        cost_usd=state.usage.cost_usd or 0.0,
        created_at=state.started_at or state.updated_at,  # type: ignore[arg-type]
        updated_at=state.updated_at,  # type: ignore[arg-type]
        wake_at=wakes_at(state),
        queued=state.queued,
        version=state.digests.get(CODE, ""),
        digest=state.digest,
    )


def wakes_at(state: RunState) -> datetime | None:
    """Return when the run can move by itself: its `wake_at`. None if it cannot: it has ended, or waits for a signal.

    A run that somebody advances, or should, has the same time at every record, so a store need not write it again. A time that is too early
    is harmless: whoever resumes the run then finds nothing to do.
    """
    if state.terminal or state.status == "waiting_for_operator":
        return None
    if state.status == "running":
        return (state.queued.not_before if state.queued is not None else None) or state.started_at or state.updated_at
    times = deadlines(state)
    if state.status == "waiting_for_reconciliation" and state.updated_at is not None:
        times.append(state.updated_at + timedelta(seconds=ASK_S))
    return min(times, default=None)


def deadlines(state: RunState) -> list[datetime]:
    """Return when the timers and the requests for approval of a run are due."""
    return [*state.timers.values(), *(one.expires_at for one in state.approvals.values() if one.expires_at is not None)]
