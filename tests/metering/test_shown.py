"""What people see of model calls: in the trace of a run, and from the console observer."""

from __future__ import annotations

import asyncio
import io
from typing import Any

from detent.core.codec import read_log
from detent.history.model_calls import told
from detent.history.traces import make_trace
from detent.observers.console import ConsoleObserver
from detent.stores.ram import RamStore
from metering.providers import Caller, Provider, answer, failure, run, used

PROVIDER = (
    failure("rate_limited", "slow down"),
    answer(value=None, usage=used(1200, 34, cached_tokens=800, reasoning_tokens=12), model="one-2026"),
    answer(usage=used(10, 5), finish="length"),
)


def traced() -> tuple[Any, str]:
    """Return the trace of a run with a retry and a rejected plan, and what the console said of it."""
    store, said = RamStore(), io.StringIO()

    async def main() -> Any:
        console = ConsoleObserver(said, level="verbose", width=400)
        result, _ = await run(Caller(Provider(*PROVIDER), input_tokens=9, max_output_tokens=2000), store=store, observers=[console])
        return make_trace(list(read_log(result.run_id, await store.read(result.run_id))))

    return asyncio.run(main()), said.getvalue()


def test_a_trace_has_each_attempt_with_tokens_cost_and_outcome() -> None:
    """Failures say their class; cached and reasoning tokens are told apart."""
    trace, _ = traced()
    (turn,) = trace.iterations
    assert [told(call).rsplit(", ", 1)[0] if call.outcome == "ok" else told(call) for call in turn.models] == [
        "fake:one: rate_limited: slow down",
        "one-2026, attempt 2  1,200 in (800 cached), 34 out (12 reasoning), 1.5400 USD",
        "fake:one  10 in, 5 out, 0.0600 USD, 0 ms",
    ]
    assert turn.models[2].finish == "length" and told(turn.models[2]).endswith("cut off (length)")


def test_an_open_call_shows_its_reservation() -> None:
    """As a crash leaves it."""
    trace, _ = traced()
    call = trace.iterations[0].models[1]
    call.outcome = ""
    assert told(call) == "one-2026, attempt 2: no answer yet, 9 in, 2,000 out, 20.0090 USD reserved"


def test_the_console_tells_each_call_in_a_sentence() -> None:
    """Asked, failed, answered."""
    _, said = traced()
    lines = [line.split(" ", 3)[-1].strip() for line in said.splitlines() if "model" in line]
    assert any(line.endswith("model fake:one is asked (main.1.m1)") for line in lines)
    assert any("model call main.1.m1 failed: rate_limited: slow down" in line for line in lines)
    assert any(line.endswith("model fake:one is asked (main.1.m1, attempt 2)") for line in lines)
    assert any("model one-2026 answered main.1.m1: 1200 tokens in, 34 out, 1.5400 USD in 0 ms" in line for line in lines)
