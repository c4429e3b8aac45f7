"""Recall: before a plan, at most once a turn, and only when the query changed (row K67)."""

from __future__ import annotations

from detent.kernel.context import KernelContext


class Recalling:
    """The memory of one run."""

    async def recall(self, context: KernelContext) -> None:
        """Record `MemoryRecalled` if the query of this turn differs from that of the last recall."""
