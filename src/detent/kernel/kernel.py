"""A kernel: an ordered tuple of phases, one turn of the loop.

`make_kernel()` is ReAct: think, then act. Phases run left to right each turn; one may be put before, between or after the default two, and
any number is allowed (row S1-3). A phase is `async (state, context) -> state`; it returns the state as it should be from then on. The
kernel compares that with the fold: changes of `meta`, `scratchpad` and `guidance` become one `StateChanged`; any other difference is
refused (`running.foreign`), because no event made it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from detent.core.errors import UnrecordedChange
from detent.core.events import CANCELLED, StateChanged
from detent.core.state import KernelState
from detent.kernel.act import act
from detent.kernel.context import KernelContext
from detent.kernel.guards import default_guards
from detent.kernel.think import think
from detent.ports import Guard, MetaTool, json_problem

Phase = Callable[[KernelState, Any], Awaitable[KernelState]]

OWNED = ("meta", "scratchpad", "guidance")
FACTS = tuple(f for f in KernelState.__struct_fields__ if f not in OWNED)


class Kernel(msgspec.Struct, frozen=True, kw_only=True):
    """How one turn works. `guards` are checked before every call; `name` and `version` stand in the log."""

    phases: tuple[Phase, ...] = (think, act)
    guards: tuple[Guard, ...] = default_guards
    meta_tools: tuple[MetaTool, ...] = ()
    name: str = "react"
    version: int = 1

    async def turn(self, context: KernelContext) -> None:
        """Run the phases once; stop early where the pass is settled, or the run cancelled or at its end."""
        for number, phase in enumerate(self.phases):
            run = context.run.journal.state
            state = run.passes[context.scope]
            if state.ended or run.terminal or (CANCELLED in state.effects if state.marks else run.cancel is not None):
                return
            if number in state.phases_done:
                continue
            returned = await phase(state, context)
            if returned is not context.run.journal.state.passes[context.scope]:
                record_changes(number, returned, context)


def make_kernel(
    phases: tuple[Phase, ...] | None = None,
    guards: tuple[Guard, ...] | None = None,
    *,
    meta_tools: tuple[MetaTool, ...] = (),
    name: str = "react",
    version: int = 1,
) -> Kernel:
    """Return a kernel of these phases, guards and meta-tools; the default is ReAct with the default guards (rows S1-1, S1-5)."""
    return Kernel(
        phases=(think, act) if phases is None else tuple(phases),
        guards=default_guards if guards is None else tuple(guards),
        meta_tools=tuple(meta_tools),
        name=name,
        version=version,
    )


def record_changes(number: int, returned: KernelState, context: KernelContext) -> None:
    """Put what a phase changed of its own on record; raise `UnrecordedChange` for what is no JSON data. Facts are looked at in `running.foreign`."""
    now = context.state
    changes: dict[str, Any] = {}
    for field in ("meta", "scratchpad"):
        before, after = getattr(now, field), getattr(returned, field)
        changes[field] = {k: v for k, v in after.items() if k not in before or before[k] != v}
        changes[f"removed_{field}"] = tuple(k for k in before if k not in after)
    if returned.guidance != now.guidance:
        changes["guidance"] = returned.guidance
    if any(changes.values()) or "guidance" in changes:
        if problem := json_problem(changes, escaping=True):
            why = f"phase {number} changed its state to what is no JSON data, which the log cannot keep: {problem}"
            raise UnrecordedChange(context.run.state.run_id, why)
        context.run.record(context.scope, StateChanged(phase=number, **changes))
