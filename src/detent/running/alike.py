"""Shares the common parts of an agent's runs: ten thousand runs in progress hold one copy of their specification.

Runs share these parts if agent, host, budget and digests are the same JSON. The shared parts are read-only: planners, strategies and policies see
them (`view.agent`). Writing to them raises an error instead of changing other runs.
"""

from __future__ import annotations

from typing import Any

import msgspec

from detent.core.agent import AgentSpec
from detent.core.state import RunState
from detent.ports.copies import kept

MOST = 32
"""How many different ones are remembered; the oldest are forgotten first."""


class Alike:
    """The common parts of the runs that began here recently, by their JSON."""

    __slots__ = ("_encode", "_known")

    def __init__(self) -> None:
        self._encode = msgspec.json.Encoder().encode
        self._known: dict[bytes, dict[str, Any]] = {}

    def shared(self, state: RunState) -> RunState:
        """Return the state, sharing the parts that an earlier similar run has."""
        key = self._encode((state.agent, state.host, state.budget, state.digests, state.levels))
        if (known := self._known.get(key)) is None:
            agent = AgentSpec(**{field: kept(getattr(state.agent, field)) for field in AgentSpec.__struct_fields__})
            self._known[key] = known = {"agent": agent, "host": state.host, "budget": state.budget, "digests": kept(state.digests)}
            known["levels"] = kept(state.levels)
            if len(self._known) > MOST:
                del self._known[next(iter(self._known))]
        return msgspec.structs.replace(state, **known)
