"""What runs of one agent have in common is kept once: ten thousand of them in progress hold one copy of their specification.

Runs are alike where agent, host, budget and digests are the same JSON. What is shared is for reading: planners, strategies and policies see it
(`view.agent`), and one that writes to it is told so, instead of reaching into the runs of others.
"""

from __future__ import annotations

from typing import Any, NoReturn, cast

import msgspec

from detent.core.agent import AgentSpec
from detent.core.state import RunState

MOST = 32
"""So many different ones are remembered, the oldest are forgotten first."""


def _refuse(*_: object, **__: object) -> NoReturn:
    raise TypeError("the agent of a run is for reading, and shared by runs; copy what you want to change: dict(...), list(...)")


class KeptDict(dict[str, Any]):
    """A dictionary that cannot be changed; a copy of it can."""

    __slots__ = ()
    __setitem__ = __delitem__ = __ior__ = clear = pop = popitem = setdefault = update = _refuse

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (dict(self),)


class KeptList(list[Any]):
    """A list that cannot be changed; a copy of it can."""

    __slots__ = ()
    __setitem__ = __delitem__ = __iadd__ = __imul__ = append = clear = extend = insert = pop = remove = reverse = sort = _refuse

    def __reduce__(self) -> tuple[Any, ...]:
        return list, (list(self),)


def kept(value: Any) -> Any:
    """Return JSON data, or a tuple of it, as what cannot be changed."""
    if isinstance(value, dict):
        return KeptDict({name: kept(part) for name, part in cast("dict[str, Any]", value).items()})
    if isinstance(value, list):
        return KeptList(map(kept, cast("list[Any]", value)))
    return tuple(map(kept, cast("tuple[Any, ...]", value))) if isinstance(value, tuple) else value


class Alike:
    """The common parts of the runs that began here of late, by their JSON."""

    __slots__ = ("_encode", "_known")

    def __init__(self) -> None:
        self._encode = msgspec.json.Encoder().encode
        self._known: dict[bytes, dict[str, Any]] = {}

    def shared(self, state: RunState) -> RunState:
        """Return the state with the parts that an earlier run like it has, too."""
        key = self._encode((state.agent, state.host, state.budget, state.digests, state.levels))
        if (known := self._known.get(key)) is None:
            agent = AgentSpec(**{field: kept(getattr(state.agent, field)) for field in AgentSpec.__struct_fields__})
            self._known[key] = known = {"agent": agent, "host": state.host, "budget": state.budget, "digests": kept(state.digests)}
            known["levels"] = kept(state.levels)
            if len(self._known) > MOST:
                del self._known[next(iter(self._known))]
        return msgspec.structs.replace(state, **known)
