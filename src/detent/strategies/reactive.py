"""ReAct, the default: one pass, until it has an answer."""

from __future__ import annotations

from detent.ports import Passed, StrategyRun


async def reactive(run: StrategyRun) -> Passed:
    """Let the kernel think and act until the goal is achieved."""
    return await run.kernel("main")
