"""Synchronous checks of one call, in order; the first block wins and its reason is in the next prompt (rows S1-4, S1-5).

Only the guards that durability needs are here. `policies` has the others (section 7 of the composable-kernel catalogue).
"""

from __future__ import annotations

from detent.core.state import KernelState, RunState
from detent.ports import Block, Call, Guard


def in_doubt_guard(call: Call, state: KernelState, run: RunState) -> Block | None:
    """Refuse a call with the same tool and arguments as a call in doubt (DESIGN 5)."""
    for other in run.passes.values():
        for known in other.calls.values():
            if known.status == "in_doubt" and known.call_id != call.call_id and (known.tool, known.digest) == (call.tool.name, call.digest):
                return Block(f"the same call ({known.call_id}) is in doubt; it must be settled first")
    return None


default_guards: tuple[Guard, ...] = (in_doubt_guard,)
"""The guards of every kernel that is not given others."""
