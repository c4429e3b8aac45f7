"""The act phase: the turn's plan is carried out as far as it can go now."""

from __future__ import annotations

from detent.core.state import KernelState
from detent.kernel.context import KernelContext


async def act(state: KernelState, context: KernelContext) -> KernelState:
    """Leave every call of the plan with an outcome, or held back by an approval or a doubt; or the control action carried out."""
    await context.execute()
    return context.state
