"""The think phase: the turn gets a plan."""

from __future__ import annotations

from detent.core.state import KernelState
from detent.kernel.context import KernelContext


async def think(state: KernelState, context: KernelContext) -> KernelState:
    """Leave the turn with a plan, or with the attempts used up, or with the pass failed because there is no planner to ask."""
    await context.plan()
    return context.state
