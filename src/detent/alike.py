"""What runs of one agent have in common is kept once: ten thousand of them in progress hold one copy of their specification.

Runs are alike where agent, host, budget and digests are the same JSON. These parts of a state are for reading; should somebody write to them
all the same, runs that begin afterwards get a copy of their own again.
"""

from __future__ import annotations

from typing import Any

import msgspec

from detent.core.state import RunState

MOST = 32
"""So many different ones are remembered, the oldest are forgotten first."""


class Alike:
    """The common parts of the runs that began here of late, by their JSON."""

    __slots__ = ("_encode", "_known")

    def __init__(self) -> None:
        self._encode = msgspec.json.Encoder().encode
        self._known: dict[bytes, dict[str, Any]] = {}

    def shared(self, state: RunState) -> RunState:
        """Return the state with the parts that an earlier run like it has, too."""
        parts = {"agent": state.agent, "host": state.host, "budget": state.budget, "digests": state.digests}
        key = self._encode(parts)
        known = self._known.get(key)
        if known is None or self._encode(known) != key:
            self._known.pop(key, None)
            self._known[key] = known = parts
            if len(self._known) > MOST:
                del self._known[next(iter(self._known))]
        return msgspec.structs.replace(state, **known)
