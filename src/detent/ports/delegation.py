"""The seam of delegation: who advances the children of a run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from detent.core.state import RunState


class Children(Protocol):
    """Advances child runs: in this process, or by submitting them to workers."""

    def begin(self, state: RunState) -> None:
        """Begin with the open children of a run that are not advanced yet, as many at once as may be; the others follow when one has ended."""
        ...

    async def moved(self, run_id: str, news: Callable[[], bool]) -> bool:
        """Wait while children of the run are advanced in this process. Return whether one of them stopped, or there are `news` for the run."""
        ...
