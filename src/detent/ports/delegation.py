"""The seam of delegation: who advances the children of a run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from detent.core.state import RunState


class Children(Protocol):
    """Advances child runs: in this process, or by submitting them to workers."""

    @property
    def limits(self) -> Any:
        """The engine's limits of teams (`Bounds.children`)."""
        ...

    def begin(self, state: RunState) -> None:
        """Begin with the open children of a run that are not advanced yet, as many at once as may be; the others follow when one has ended."""
        ...

    async def moved(self, run_id: str, news: Callable[[], bool]) -> bool:
        """Wait while children of the run are advanced in this process. Return whether one of them stopped, or there are `news` for the run."""
        ...

    def left(self, run_id: str, why: str) -> None:
        """Forget a run that this process no longer advances. If it was suspended (`why`), suspend its children here too."""
        ...

    def ended(self, state: RunState) -> None:
        """Continue the parent of a run that has just ended here, unless somebody advances it."""
        ...

    async def woken(self, state: RunState) -> None:
        """Wait for the runs above this one that `ended` continues, as far as they come."""
        ...
