"""Compaction: when it is due, and what is dropped, decided from what the log has."""

from __future__ import annotations

from detent.kernel.context import KernelContext


class Compacting:
    """The compactor of one run."""

    async def compact_if_due(self, context: KernelContext) -> None:
        """Record `ContextCompacted` if that is due."""

    async def makes_room(self, context: KernelContext) -> bool:
        """Compact because the provider found the prompt too long. Return whether a smaller prompt can be tried."""
        return False
