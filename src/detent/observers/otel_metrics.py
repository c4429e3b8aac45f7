"""The metrics of runs and of their store, as instruments of OpenTelemetry: counted from records, and asked of an engine now and then."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncGenerator, Iterator
from typing import Any

from opentelemetry import metrics

from detent.core import events as e
from detent.core.errors import DetentError
from detent.core.state import RunState
from detent.observers import otel_names as n

__all__ = ["watched"]
log = logging.getLogger("detent.observers")
_BOUNDS = (
    ("iterations", "max_iterations", "iterations"),
    ("model_calls", "max_model_calls", "model_calls"),
    ("tool_calls", "max_tool_calls", "tool_calls"),
    ("failures", "max_failures", "failures"),
    ("tokens", "max_total_tokens", "total_tokens"),
    ("cost", "max_cost_usd", "cost_usd"),
)
"""A dimension of a budget, its bound, and what of the usage counts."""


class Instruments:
    """What is counted as records come."""

    def __init__(self, meter_provider: Any, schema_url: str) -> None:
        meter = metrics.get_meter("detent", meter_provider=meter_provider, schema_url=schema_url)
        self.tokens = meter.create_histogram(n.TOKEN_USAGE, "{token}", explicit_bucket_boundaries_advisory=n.TOKEN_BOUNDS)
        self.durations = meter.create_histogram(n.DURATION, "s", explicit_bucket_boundaries_advisory=n.DURATION_BOUNDS)
        self.active = meter.create_up_down_counter("detent.runs.active", "{run}", "Runs that this process advances")
        self.waiting = meter.create_counter("detent.runs.waits", "{wait}", "How often runs began to wait")
        self.ended = meter.create_counter("detent.runs.ended", "{run}")
        self.decisions = meter.create_counter("detent.policy.decisions", "{decision}")
        self.doubts = meter.create_counter("detent.calls.in_doubt", "{call}")
        self.cost = meter.create_counter("detent.cost", "USD")
        self.approvals = meter.create_histogram("detent.approval.wait", "s", "From the request to the decision")
        self.reserved = meter.create_up_down_counter("detent.budget.reserved", "{token}", "Tokens that open model calls have reserved")
        self.used = meter.create_histogram(
            "detent.budget.used", "1", "The part of a bound that a run has used when it ends or waits",
            explicit_bucket_boundaries_advisory=tuple(k / 10 for k in range(1, 11)),
        )  # fmt: skip

    def reserve(self, event: e.ModelCallStarted, *, sign: int = 1) -> None:
        """Count what a model call reserves, or (sign -1) gives back."""
        if tokens := event.reserved.total_tokens:
            self.reserved.add(sign * tokens, {n.REQUEST_MODEL: event.model})


def used_of(state: RunState) -> Iterator[tuple[str, float]]:
    """Yield each dimension in which a run is bounded, and which part of the bound it has used."""
    for name, bound, counted in _BOUNDS:
        most, used = getattr(state.budget, bound), getattr(state.usage, counted)
        if most:
            yield name, (used or 0) / most


@contextlib.asynccontextmanager
async def watched(engine: Any, *, meter_provider: Any = None, every_s: float = 15.0) -> AsyncGenerator[None]:
    """Report the work in an engine's store while the block runs: `async with watched(engine):`.

    Every `every_s` seconds: runs by status (`detent.runs`), the queue (`detent.queue.depth`, `detent.queue.age`), the age of the oldest approval
    (`detent.approval.age`), how long the store needs for one small question (`detent.store.latency`), and the workers that live (`detent.workers`).
    One process of a store is enough.
    """
    meter = metrics.get_meter("detent", meter_provider=meter_provider, schema_url=n.SCHEMA_URL)
    gauges = {
        name: meter.create_gauge(name, unit)
        for name, unit in (
            ("detent.runs", "{run}"), ("detent.queue.depth", "{run}"), ("detent.queue.age", "s"), ("detent.approval.age", "s"),
            ("detent.workers", "{worker}"),
        )
    }  # fmt: skip
    latency = meter.create_histogram("detent.store.latency", "s", explicit_bucket_boundaries_advisory=n.LATENCY_BOUNDS)
    seen: set[str] = set()

    async def look() -> None:
        begun = time.perf_counter()
        await engine.store.head("_")
        latency.record(time.perf_counter() - begun)
        found = await engine.fleet()
        tally = found.tally
        for status in seen | set(tally.statuses):  # a status that no run has any more is 0, not gone
            gauges["detent.runs"].set(tally.statuses.get(status, 0), {n.STATUS: status})
        seen.update(tally.statuses)
        oldest = tally.oldest.get("waiting_for_approval")
        gauges["detent.queue.depth"].set(tally.queued)
        gauges["detent.queue.age"].set(tally.queued_s or 0.0)
        gauges["detent.approval.age"].set(max(0.0, (found.at - oldest).total_seconds()) if oldest is not None else 0.0)
        gauges["detent.workers"].set(len(found.living))

    async def watch() -> None:
        while True:
            try:
                await look()
            except (DetentError, OSError) as error:
                log.warning("the store cannot be watched now: %s", error)
            await asyncio.sleep(every_s)

    task = asyncio.create_task(watch(), name="metrics of the store")
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
