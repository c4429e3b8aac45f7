"""What happens before a plan: compaction of what the planner is shown, if it is due, then recall from memory, if the query changed.

Both are records of the run, so a replay takes them from the log (`history.replay_world`). A run without memory and compaction has no
`Preparing`, and loads neither.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from detent.config.compaction import compacts, window_of
from detent.config.names import Names
from detent.config.remembering import Memories
from detent.core.state import RunState
from detent.kernel.context import KernelContext
from detent.ports import Planner
from detent.ports.compacting import Compactor

if TYPE_CHECKING:
    from detent.running.compacting import Compacting
    from detent.running.recalling import Recalling


def preparing_of(memories: Memories, compactors: Names[Compactor], state: RunState, planner: Planner) -> Preparing | None:
    """Return what a run does before its plans, None if nothing. Raise `UnknownName`, and `ConfigError` if its memory is not here."""
    options = compacts(state.agent)
    if options is None and state.agent.memory is None:
        return None
    from detent.running.compacting import Compacting
    from detent.running.recalling import recalling_of

    recalling = recalling_of(memories, state)
    compacting = None if options is None else Compacting(options, compactors, planner, window=window_of(state.agent, options))
    return None if recalling is None and compacting is None else Preparing(compacting, recalling)


class Preparing:
    """The compactor and the memory of one run."""

    __slots__ = ("_compacting", "_recalling")

    def __init__(self, compacting: Compacting | None, recalling: Recalling | None) -> None:
        self._compacting, self._recalling = compacting, recalling

    async def prepare(self, context: KernelContext) -> None:
        """Compact if due, then recall if the query changed. The records are committed with the plan."""
        if self._compacting is not None:
            await self._compacting.compact_if_due(context)
        if self._recalling is not None:
            await self._recalling.recall(context)

    async def makes_room(self, context: KernelContext, error: Exception) -> Exception | None:
        """See `World.makes_room`."""
        return error if self._compacting is None else await self._compacting.makes_room(context, error)
