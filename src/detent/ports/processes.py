"""What a process that was forked does with the objects that it inherited.

Threads do not come along, sockets and locks are shared, and what the parent's event loop was about to do is done by the parent. So whoever has any
of these says how it becomes new in the child: empty, closed, and holding nothing. Nothing is said to anybody on the way, or to a server.
"""

from __future__ import annotations

import os
import weakref
from typing import Any, Protocol


class Inherited(Protocol):
    """What a forked child makes new."""

    def forked(self) -> None:
        """Become as if just made, in the child, before anything else happens there. It may wait for nothing and must not raise."""
        ...


_known: weakref.WeakSet[Inherited] = weakref.WeakSet()


def renew_in_children(thing: Inherited) -> None:
    """Have `thing.forked()` called in every process that is forked from this one, as long as it is there."""
    _known.add(thing)


_kept: list[Any] = []


def keep(*things: Any) -> None:
    """Never let go of these: they were inherited, or left behind with an event loop, and would say goodbye to a server that they share."""
    _kept.extend(things)


def _renew() -> None:
    for thing in list(_known):
        thing.forked()


os.register_at_fork(after_in_child=_renew)
