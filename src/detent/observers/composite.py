"""Several observers as one: each is told everything, in order, whatever becomes of the others."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any

from detent.core.errors import ConfigError
from detent.core.records import Record
from detent.core.state import RunState
from detent.ports import Chunk, Observer
from detent.ports.options import takes
from detent.ports.telling import Fan, Listener


class CompositeObserver(Fan):
    """Tells its observers one after the other; None among them is left out, one that fails is reported once and told on.

    Raise `ConfigError` for what is not an observer.
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


_TOLD = {"on_record(record, state)": 2, "on_chunk(chunk)": 1}


def _checked(observer: Any) -> Observer:
    if isinstance(observer, type):
        raise ConfigError(f"an observer is the class {observer.__name__}; give an object of it: {observer.__name__}(...)")
    missing = [said for said, count in _TOLD.items() if not _takes(getattr(observer, said.partition("(")[0], None), count)]
    if missing:
        raise ConfigError(
            f"an observer is {observer!r}, which has no {' and no '.join(missing)}; detent.extend.Observer says what one must have"
        )
    return observer


def _takes(method: Any, count: int) -> bool:
    return callable(method) and not takes(method, count)
