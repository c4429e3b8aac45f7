"""How a forked process renews the objects that it inherited.

A child inherits no threads, shares sockets and locks, and must leave the work of the parent's event loop to the parent. An object with any of
these registers how it becomes new in the child: empty, closed and holding nothing. It must not contact anyone while it does so, servers included.
"""

from __future__ import annotations

import os
import weakref
from typing import Any, Protocol


class Inherited(Protocol):
    """Something that a forked child renews."""

    def forked(self) -> None:
        """Become as if just made, in the child, before anything else happens there. Must not wait and must not raise."""
        ...


_known: weakref.WeakSet[Inherited] = weakref.WeakSet()


def renew_in_children(thing: Inherited) -> None:
    """Call `thing.forked()` in every process forked from this one, as long as `thing` exists."""
    _known.add(thing)


_kept: list[Any] = []


def keep(*things: Any) -> None:
    """Keep these alive for ever. They are shared with a parent process or a closed event loop; on deletion they would close a shared connection."""
    _kept.extend(things)


def _renew() -> None:
    for thing in list(_known):
        thing.forked()


os.register_at_fork(after_in_child=_renew)
