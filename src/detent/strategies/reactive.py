"""ReAct, the default: one pass that runs until it has an answer."""

from __future__ import annotations

from detent.ports import Passed, StrategyRun


async def reactive(run: StrategyRun) -> Passed:
    """Run one pass of the kernel until it has an answer."""
    return await run.kernel("main")
