"""What happens before a plan: compaction of what the planner is shown, if it is due, and recall from memory, if the query changed.

Both are records of the run, so a replay takes them from the log (`history.replay_world`). Runs without memory and compaction have no `Preparing`.
"""

from __future__ import annotations

from detent.kernel.context import KernelContext


class Preparing:
    """The memory and the compactor of one run."""

    async def prepare(self, context: KernelContext) -> None:
        """Compact if due, then recall if the query changed; each is recorded and committed with the plan."""

    async def makes_room(self, context: KernelContext) -> bool:
        """Compact because the provider found the prompt too long. Return whether that removed anything."""
        return False
