"""The think phase: the turn gets a plan."""

from __future__ import annotations

from detent.core.state import KernelState
from detent.kernel.context import KernelContext


async def think(state: KernelState, context: KernelContext) -> KernelState:
    """Give the turn a plan. Without one, either the attempts are used up or the pass has failed because there is no planner."""
    await context.plan()
    return context.state
