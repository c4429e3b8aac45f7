"""The content of a log without the faults that it survived, so that two logs of the same work can be compared."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from detent.core import events as e
from detent.core.codec import encode
from detent.core.records import Record


def story(records: Sequence[Record]) -> list[tuple[int, bytes]]:
    """Return the content of a log without faults, each part with its record number.

    Left out: resumptions, doubts and their settlement, later attempts, times, signals and their arrival, measurements.
    """
    told: list[tuple[int, bytes]] = []
    for record in records:
        event: Any = record.event
        match event:
            case None | e.RunResumed() | e.ToolInDoubt() | e.RunWaiting(status="waiting_for_reconciliation"):
                continue
            case e.ToolReconciled(outcome="again") | e.PlanRejected() | e.ModelCallStarted() | e.ModelCallFailed():
                continue
            case e.ToolStarted(attempt=attempt) if attempt > 1:
                continue
            case e.ToolReconciled(call=call, result=result):
                event = e.ToolFinished(call=call, result=result)
            case _:
                pass
        changes: dict[str, Any] = {field: 0.0 for field in event.__struct_fields__ if field.endswith("_ms")}
        changes |= {field: None for field in event.__struct_fields__ if field in ("requested_at", "expires_at")}
        changes |= {name: "" for name in ("signal", "via") if name in event.__struct_fields__}
        told.append((record.envelope.seq, encode(msgspec.structs.replace(event, **changes))))
    return told
