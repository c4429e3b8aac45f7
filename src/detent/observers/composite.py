"""Several observers as one: each gets everything, in order, even if others fail."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any

from detent.core.errors import ConfigError
from detent.core.records import Record
from detent.core.state import RunState
from detent.ports import Chunk, Observer
from detent.ports.copies import ours
from detent.ports.options import takes
from detent.ports.telling import Fan, Listener


class CompositeObserver(Fan):
    """Calls its observers one after the other and skips None. A failing observer is reported once and still called.

    Raise `ConfigError` for an object that is not an observer.
    """

    def __init__(self, *observers: Observer | None) -> None:
        super().__init__()
        self.observers = tuple(_checked(o) for o in observers if o is not None)
        self._records = tuple(Listener(o.on_record, o) for o in self.observers)
        self._chunks = tuple(Listener(o.on_chunk, o) for o in self.observers)

    @property
    def only_reads(self) -> bool:
        """Whether all of them are our own, and neither keep nor pass on what they are given: these get no copies."""
        return all(ours(type(one)) and ours(one.on_record) and getattr(one, "only_reads", False) for one in self.observers)

    def on_record(self, record: Record, state: RunState) -> Awaitable[None] | None:
        """Call all observers. If this returns an awaitable (some observer is asynchronous), you must await it."""
        return self.tell(self._records, record, state)

    def on_chunk(self, chunk: Chunk) -> None:
        """Call all observers."""
        for listener in self._chunks:
            self.call(listener, (chunk,))


_TOLD = {"on_record(record, state)": 2, "on_chunk(chunk)": 1}


def _checked(observer: Any) -> Observer:
    if isinstance(observer, type):
        raise ConfigError(f"an observer is the class {observer.__name__}; pass an instance: {observer.__name__}(...)")
    missing = [said for said, count in _TOLD.items() if not _takes(getattr(observer, said.partition("(")[0], None), count)]
    if missing:
        raise ConfigError(
            f"an observer is {observer!r}, which has no {' and no '.join(missing)}; see detent.extend.Observer for what it needs"
        )
    return observer


def _takes(method: Any, count: int) -> bool:
    return callable(method) and not takes(method, count)
