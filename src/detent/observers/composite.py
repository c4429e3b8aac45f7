"""Several observers as one: each is told everything, in order, whatever becomes of the others."""

from __future__ import annotations

from collections.abc import Awaitable

from detent.core.records import Record
from detent.core.state import RunState
from detent.ports import Chunk, Observer
from detent.ports.telling import Fan, Listener


class CompositeObserver(Fan):
    """Tells its observers one after the other; None among them is left out, one that fails is reported once and told on.

    Raise `TypeError` for what is no observer.
    """

    def __init__(self, *observers: Observer | None) -> None:
        super().__init__()
        self.observers = tuple(_checked(o) for o in observers if o is not None)
        self._records = tuple(Listener(o.on_record, o) for o in self.observers)
        self._chunks = tuple(Listener(o.on_chunk, o) for o in self.observers)

    def on_record(self, record: Record, state: RunState) -> Awaitable[None] | None:
        """Tell everybody; the answer must be awaited when there is one (some observer is asynchronous)."""
        return self.tell(self._records, record, state)

    def on_chunk(self, chunk: Chunk) -> None:
        """Tell everybody."""
        for listener in self._chunks:
            self.call(listener, (chunk,))


def _checked(observer: Observer) -> Observer:
    for name in ("on_record", "on_chunk"):
        if not callable(getattr(observer, name, None)):
            raise TypeError(f"{observer!r} is no observer: it has no {name}; see detent.ports.Observer")
    return observer
