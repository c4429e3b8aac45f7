"""A kernel: an ordered tuple of phases, one turn of the loop.

`make_kernel()` is ReAct: think, then act. The phases run left to right each turn. You can add any number before, between or after the default two
(row S1-3). A phase is `async (state, context) -> state` and returns the new state. The kernel compares it with the fold: changes of `meta`,
`scratchpad` and `guidance` become one `StateChanged`. Any other difference is refused (`running.foreign`), because no event made it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from detent.core.events import CANCELLED
from detent.core.state import KernelState
from detent.kernel.act import act
from detent.kernel.context import KernelContext
from detent.kernel.guards import default_guards
from detent.kernel.think import think
from detent.ports import Guard, MetaTool

Phase = Callable[[KernelState, Any], Awaitable[KernelState]]

OWNED = ("meta", "scratchpad", "guidance")
FACTS = tuple(f for f in KernelState.__struct_fields__ if f not in OWNED)


class Kernel(msgspec.Struct, frozen=True, kw_only=True):
    """How one turn works. `guards` are checked before every call. The log has `name` and `version`."""

    phases: tuple[Phase, ...] = (think, act)
    guards: tuple[Guard, ...] = default_guards
    meta_tools: tuple[MetaTool, ...] = ()
    name: str = "react"
    version: int = 1

    async def turn(self, context: KernelContext) -> None:
        """Run the phases once. Stop early if the pass is settled, or if the run is cancelled or finished."""
        for number, phase in enumerate(self.phases):
            run = context.run.journal.state
            state = run.passes[context.scope]
            if state.ended or run.terminal or (CANCELLED in state.effects if state.marks else run.cancel is not None):
                return
            if number in state.phases_done:
                continue
            returned = await phase(state, context)
            if returned is not context.run.journal.state.passes[context.scope]:
                context.run.changed(number, returned, context)


def make_kernel(
    phases: tuple[Phase, ...] | None = None,
    guards: tuple[Guard, ...] | None = None,
    *,
    meta_tools: tuple[MetaTool, ...] = (),
    name: str = "react",
    version: int = 1,
) -> Kernel:
    """Return a kernel of these phases, guards and meta-tools. The default is ReAct with the default guards."""  # rows S1-1, S1-5
    return Kernel(
        phases=(think, act) if phases is None else tuple(phases),
        guards=default_guards if guards is None else tuple(guards),
        meta_tools=tuple(meta_tools),
        name=name,
        version=version,
    )
