"""What an engine answers to a supervisor and to a monitoring system: whether it lives, whether it is ready, and its metrics.

Rule: however often it is asked, the store is asked at most about once a second, by one question at a time, and for at most a twentieth of the time.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Generic, TypeVar

import msgspec

from detent.core.errors import DetentError, Explained
from detent.core.state import WAITING
from detent.running.cards import WorkerCard
from detent.running.fleet import Fleet, fleet
from detent.running.runtime import Runtime
from detent.version import __version__

T = TypeVar("T")

FRESH_S = 1.0
"""How long an answer of the store is good."""
SHARE = 20.0
"""An answer that took long is good for so many times as long."""
STORE_S = 2.0
"""How long readiness waits for the store."""
TALLY_S = 10.0
"""How long metrics wait for the store."""
_GIVEN_UP = "waiting_for_operator"


class HealthAnswer(msgspec.Struct, metaclass=Explained, frozen=True, kw_only=True):
    """An answer for HTTP: its status, the type of its content, and the content."""

    status: int = 200
    content_type: str = "text/plain; charset=utf-8"
    text: str = ""


class Fresh(Generic[T]):
    """The last answer to one question, asked again only when it is old. All who ask meanwhile wait for the same answer."""

    def __init__(self, ask: Callable[[], Awaitable[T]], within_s: float) -> None:
        self._ask, self._within_s = ask, within_s
        self._answer: tuple[float, T] | None = None
        self._asking: asyncio.Task[T] | None = None

    async def get(self) -> T:
        """Return an answer, or raise what the question raised."""
        if self._answer is not None and time.monotonic() < self._answer[0]:
            return self._answer[1]
        if self._asking is None or self._asking.done() or self._asking.get_loop() is not asyncio.get_running_loop():
            self._asking = asyncio.create_task(self._asked())
            self._asking.add_done_callback(_look_at)
        return await asyncio.shield(self._asking)

    async def _asked(self) -> T:
        begun = time.monotonic()
        async with asyncio.timeout(self._within_s):
            answer = await self._ask()
        ended = time.monotonic()
        self._answer = ended + max(FRESH_S, SHARE * (ended - begun)), answer
        return answer


def _look_at(task: asyncio.Task[object]) -> None:
    if not task.cancelled():
        task.exception()  # who asked has it, if they are still there


class Vitals:
    """Answers for one engine."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._store = Fresh(self._probe, STORE_S)
        self._fleet = Fresh(lambda: fleet(runtime), TALLY_S)

    async def answer(self, path: str) -> HealthAnswer:
        """See `health`."""
        match path:
            case "/healthz":
                return HealthAnswer(text="ok\n")
            case "/readyz":
                why = await self._unready()
                return HealthAnswer(status=503 if why else 200, text=f"{why or 'ready'}\n")
            case "/metrics":
                return HealthAnswer(content_type="text/plain; version=0.0.4; charset=utf-8", text=await self._metrics())
            case _:
                return HealthAnswer(status=404, text="not found: there are /healthz, /readyz and /metrics\n")

    async def _probe(self) -> float:
        """Return how many seconds the store needs to find an entry that is not there."""
        begun = time.perf_counter()
        await self._runtime.store.head("_")
        return time.perf_counter() - begun

    async def _unready(self) -> str:
        """Return why this engine is not to get work, or ""."""
        if any(card.stopping for card in _cards(self._runtime)):
            return "draining: calls with side effects may finish, nothing new begins"
        try:
            await self._store.get()
        except TimeoutError:
            return f"the store has not answered for {STORE_S:g} s"
        except (DetentError, OSError) as error:
            return f"the store cannot be reached: {type(error).__name__}"  # its message may name what not everybody may know
        return ""

    async def _metrics(self) -> str:
        lines, reached = list(own_metrics(self._runtime)), 0
        with suppress(DetentError, OSError, TimeoutError):  # what this process knows is told nevertheless
            lines += _metric(
                "detent_store_seconds", "How long the store needs for one small question.", "gauge", {"": await self._store.get()}
            )
            reached = 1
            lines += fleet_metrics(await self._fleet.get())
        lines += _metric("detent_store_up", "Whether the store answers.", "gauge", {"": reached})
        return "\n".join(lines) + "\n"


async def health(runtime: Runtime, path: str) -> HealthAnswer:
    """Answer `/healthz`, `/readyz` or `/metrics`, for a web application that serves them; `detent worker --health` does.

    `/healthz` is 200 as long as the event loop turns. `/readyz` is 503 while a worker of this engine drains, or the store does not answer. `/metrics` has
    the work in the store and what the workers of this engine did, as text for Prometheus.
    """
    underway = runtime.underway
    if underway.vitals is None:
        underway.vitals = Vitals(runtime)
    return await underway.vitals.answer(path)


def own_metrics(runtime: Runtime) -> Iterator[str]:
    """Yield what the workers of this process know without a store."""
    yield from _metric("detent_info", "The version of Detent.", "gauge", {_label("version", __version__): 1})
    cards = _cards(runtime)
    if not cards:
        return
    counts: dict[str, int] = {}
    for card in cards:
        for what, count in card.counts.items():
            counts[what] = counts.get(what, 0) + count
    stopping = any(card.stopping for card in cards)
    yield from _metric("detent_worker_draining", "Whether this worker stops.", "gauge", {"": int(stopping)})
    yield from _metric("detent_worker_concurrency", "How many runs it advances at once.", "gauge", {"": sum(c.concurrency for c in cards)})
    yield from _metric("detent_worker_active_runs", "How many runs it advances now.", "gauge", {"": sum(c.active for c in cards)})
    for what, said in _COUNTED.items():
        yield from _metric(f"detent_worker_{what}_total", said, "counter", {"": counts.pop(what, 0)})
    reached = {_label("status", status): count for status, count in sorted(counts.items())}
    yield from _metric("detent_worker_runs_total", "How many runs of this worker reached which status.", "counter", reached)


def _cards(runtime: Runtime) -> list[WorkerCard]:
    """Return what the workers of this engine say about themselves."""
    return [shift.card() for shift in runtime.underway.shifts if shift.card is not None]


_COUNTED = {
    "attempts": "How often it began to advance a run.",
    "failed_attempts": "How many of these attempts failed.",
    "takeovers": "How many runs it took over from workers that had died.",
    "dead_letters": "How many runs it gave up.",
    "in_doubt": "How many calls of its runs were left in doubt.",
}


def fleet_metrics(found: Fleet) -> Iterator[str]:
    """Yield what holds for the whole store: every worker says the same, so do not add it up."""
    tally = found.tally
    now = found.at
    statuses = {
        _label("status", status): count for status, count in sorted({**dict.fromkeys(("running", *WAITING), 0), **tally.statuses}.items())
    }
    ages = {_label("status", status): max(0.0, (now - at).total_seconds()) for status, at in sorted(tally.oldest.items())}
    yield from _metric("detent_runs", "Unfinished runs.", "gauge", statuses)
    yield from _metric("detent_runs_oldest_seconds", "How long ago the oldest of them was started.", "gauge", ages)
    yield from _metric("detent_runs_active", "Runs that somebody advances.", "gauge", {"": tally.active})
    yield from _metric("detent_queue_depth", "Runs that could move now and that nobody advances.", "gauge", {"": tally.queued})
    yield from _metric("detent_queue_oldest_seconds", "How long the first of these has waited.", "gauge", {"": tally.queued_s or 0.0})
    yield from _metric("detent_dead_letters", "Runs that workers gave up.", "gauge", {"": tally.statuses.get(_GIVEN_UP, 0)})
    yield from _metric("detent_workers", "Workers that are announced.", "gauge", {"": len(found.living)})
    capacity = sum(max(0, worker.concurrency) for worker in found.living if not worker.stopping)
    yield from _metric("detent_workers_concurrency", "How many runs these advance at once.", "gauge", {"": capacity})
    yield from _metric("detent_tally_seconds", "How long the store needed to count.", "gauge", {"": found.took_ms / 1e3})


def _label(name: str, value: str) -> str:
    """Return a label of Prometheus; the value comes from a store, which somebody else may have written."""
    escaped = value[:100].replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'{name}="{escaped}"'


def _metric(name: str, said: str, kind: str, values: Mapping[str, float]) -> Iterable[str]:
    """Return a metric in Prometheus' text format."""
    labelled = [f"{name}{f'{{{labels}}}' if labels else ''} {value:.9g}" for labels, value in values.items()]
    return [f"# HELP {name} {said}", f"# TYPE {name} {kind}", *labelled]


__all__ = ["HealthAnswer", "Vitals", "health"]
