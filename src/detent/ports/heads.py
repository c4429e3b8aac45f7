"""The listing entry of a run: what every append of its log gives to the store."""

from __future__ import annotations

from detent.core.events import TITLE
from detent.core.records import RunHead
from detent.core.state import RunState


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
        digest=state.digest,
    )
