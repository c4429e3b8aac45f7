"""Detent's observers keep the contract of observers."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from amounts import thinned
from detent.core.records import Record
from detent.observers import CompositeObserver, ConsoleObserver, EventBus, InMemoryObserver, NoopObserver, StreamingObserver
from detent.ports import Observer
from detent.testing.conformance.observer import ObserverContract, ObserverMaker

Told = Sequence[tuple[str, int]]


class Made(ObserverMaker):
    def __init__(self, make: Callable[[], Any], told: Callable[[Any], Told] | None = None, *, one_run: bool = False) -> None:
        self._make, self._told, self.one_run = make, told, one_run

    def observer(self) -> Observer:
        return self._make()

    def told(self, observer: Observer) -> Told | None:
        return None if self._told is None else self._told(observer)


def where(record: Record) -> tuple[str, int]:
    return record.envelope.run, record.envelope.seq


class Waiting(InMemoryObserver):
    """One that must be awaited."""

    async def on_record(self, record: Any, state: Any) -> None:  # type: ignore[override]
        await asyncio.sleep(0)
        super().on_record(record, state)


class Lines(ConsoleObserver):
    """Writes JSON lines into a text of its own."""

    def __init__(self) -> None:
        self.text = io.StringIO()
        super().__init__(self.text, json=True, level="verbose")

    def told(self) -> Told:
        lines = [json.loads(line) for line in self.text.getvalue().splitlines()]
        return [(line["run"], line["seq"]) for line in lines if line["seq"] is not None]


class Collecting(EventBus):
    """A bus with one subscriber."""

    def __init__(self) -> None:
        super().__init__()
        self.events: list[Any] = []
        self.subscribe(self._take)

    async def _take(self, event: Any, state: Any) -> None:
        self.events.append(event)


def streamed(observer: StreamingObserver) -> Told:
    observer.close()
    return [where(item) for item in observer._items if isinstance(item, Record)]


MAKERS: dict[str, Callable[[], ObserverMaker]] = {
    "noop": lambda: Made(NoopObserver),
    "in-memory": lambda: Made(InMemoryObserver, lambda o: [where(r) for r in o.records]),
    "waiting": lambda: Made(Waiting, lambda o: [where(r) for r in o.records]),
    "console": lambda: Made(lambda: ConsoleObserver(io.StringIO(), level="verbose")),
    "console-json": lambda: Made(Lines, Lines.told),
    "streaming": lambda: Made(StreamingObserver, streamed, one_run=True),
    "bus": lambda: Made(Collecting),
    "composite": lambda: Made(
        lambda: CompositeObserver(NoopObserver(), Waiting(), None, InMemoryObserver()),
        lambda o: [where(r) for r in o.observers[-1].records],
    ),
    "composite-with-one-that-fails": lambda: Made(
        lambda: CompositeObserver(Failing(), InMemoryObserver()), lambda o: [where(r) for r in o.observers[-1].records]
    ),
}


class Failing:
    """Fails at everything, which a composite keeps from the others."""

    async def on_record(self, record: Any, state: Any) -> None:
        raise RuntimeError("no")

    def on_chunk(self, chunk: Any) -> None:
        raise RuntimeError("no")


@pytest.mark.parametrize("name", MAKERS)
@thinned
class TestObservers(ObserverContract):
    @pytest.fixture
    def maker(self, name: str) -> ObserverMaker:
        return MAKERS[name]()
