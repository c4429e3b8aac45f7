"""Several observers as one: each is told everything, in order, whatever becomes of the others."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any

from detent.core.records import Record
from detent.core.state import RunState
from detent.observers.reporting import Fan, Reporter
from detent.ports import Chunk, Observer


class CompositeObserver(Fan):
    """Tells its observers one after the other; None among them is left out, one that fails is reported once and told on.

    Raise `TypeError` for what is no observer.
    """

    def __init__(self, *observers: Observer | None) -> None:
        self.observers = tuple(_checked(o) for o in observers if o is not None)
        self._reporter = Reporter()

    def on_record(self, record: Record, state: RunState) -> Awaitable[None] | None:
        """Tell everybody; the answer must be awaited when there is one (some observer is asynchronous)."""
        return self._from(0, record, state)

    def _from(self, first: int, record: Record, state: RunState) -> Awaitable[None] | None:
        observers = self.observers
        for number in range(first, len(observers)):
            observer = observers[number]
            answer = self._reporter.call(observer, _on_record, observer, record, state)
            if answer is not None:
                return self._after(number, answer, record, state)
        return None

    async def _after(self, number: int, answer: Awaitable[Any], record: Record, state: RunState) -> None:
        await self._reporter.wait(self.observers[number], answer)
        rest = self._from(number + 1, record, state)
        if rest is not None:
            await rest

    def on_chunk(self, chunk: Chunk) -> None:
        """Tell everybody."""
        for observer in self.observers:
            self._reporter.call(observer, _on_chunk, observer, chunk)


def _checked(observer: Observer) -> Observer:
    for name in ("on_record", "on_chunk"):
        if not callable(getattr(observer, name, None)):
            raise TypeError(f"{observer!r} is no observer: it has no {name}; see detent.ports.Observer")
    return observer


def _on_record(observer: Observer, record: Record, state: RunState) -> Any:
    return observer.on_record(record, state)


def _on_chunk(observer: Observer, chunk: Chunk) -> None:
    observer.on_chunk(chunk)
