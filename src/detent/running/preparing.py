"""What happens before a plan: compaction of what the planner is shown, if it is due, then recall from memory, if the query changed.

Both are records of the run, so a replay takes them from the log (`history.replay_world`). A run without memory and compaction has no
`Preparing`, and loads neither.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from detent.config.compaction import compacts, window_of
from detent.config.names import Names
from detent.config.remembering import Memories
from detent.core.state import RunState
from detent.kernel.context import KernelContext
from detent.ports import Planner, prompt_limits
from detent.ports.compacting import Compactor

if TYPE_CHECKING:
    from detent.running.compacting import Compacting
    from detent.running.condensing import Condensing
    from detent.running.recalling import Recalling


def preparing_of(memories: Memories, compactors: Names[Compactor], state: RunState, planner: Planner) -> Preparing | None:
    """Return what a run does before its plans, None if nothing. Raise `UnknownName`, and `ConfigError` if its memory is not here."""
    options = compacts(state.agent, planner)
    if options is None and state.agent.memory is None:
        return None
    recalling = None
    if state.agent.memory is not None:
        from detent.running.recalling import recalling_of

        recalling = recalling_of(memories, state)
    if options is None:
        return None if recalling is None else Preparing(None, recalling)
    window, count = prompt_limits(planner, state.agent)
    window = window_of(state.agent, options, window)
    preparing = Preparing(partial(_compacting, options, compactors, planner, window=window, count=count), recalling)
    if window or state.agent.compaction or any(known.compaction is not None for known in state.passes.values()):
        preparing.begin()
    return preparing


def _compacting(*args: Any, **options: Any) -> Compacting:
    from detent.running.compacting import Compacting

    return Compacting(*args, **options)


class Preparing:
    """The compactor and the memory of one run. A run whose window is not known has no compactor (`begin`) until a prompt is refused."""

    __slots__ = ("_compacting", "_make", "_recalling", "condensing")

    def __init__(self, make: Callable[[], Compacting] | None, recalling: Recalling | None) -> None:
        self._compacting: Compacting | None = None
        self._make, self._recalling = make, recalling
        self.condensing: Condensing | None = None

    def __bool__(self) -> bool:
        """Whether there is anything to do before a plan."""
        return self._compacting is not None or self._recalling is not None or self.condensing is not None

    def begin(self) -> Compacting | None:
        """Return the compactor, made at the first call."""
        if self._compacting is None and self._make is not None:
            self._compacting = self._make()
        return self._compacting

    async def prepare(self, context: KernelContext) -> None:
        """Compact if due, first the conversation, then recall if the query changed. The records are committed with the plan."""
        if self.condensing is not None and (compacting := self.begin()) is not None:
            await self.condensing.condense(context, compacting)
            self.condensing = None
        if self._compacting is not None:
            await self._compacting.compact_if_due(context)
        if self._recalling is not None:
            await self._recalling.recall(context)

    async def makes_room(self, context: KernelContext, error: Exception) -> Exception | None:
        """See `World.makes_room`."""
        compacting = self.begin()
        return error if compacting is None else await compacting.makes_room(context, error)
