"""Model calls as text: model, purpose, tokens, cost, time and failure."""

from __future__ import annotations

import msgspec

from detent.core import events as e
from detent.core.budget import NOTHING, Usage
from detent.expressions.display import counted


class ModelCall(msgspec.Struct, kw_only=True):
    """One attempt of a model call. `outcome` is "" while it is in progress, then `ok` or the class of its failure."""

    call: str
    model: str
    purpose: str = "plan"
    attempt: int = 1
    reserved: Usage = NOTHING
    usage: Usage = NOTHING
    outcome: str = ""
    error: str = ""
    finish: str = ""
    request_id: str = ""
    latency_ms: float = 0.0


def take_model_call(calls: list[ModelCall], event: e.ModelCallStarted | e.ModelCallFinished | e.ModelCallFailed) -> None:
    """Add an event about a model call to the list of model calls of its turn."""
    if isinstance(event, e.ModelCallStarted):
        shown = ModelCall(call=event.call, model=event.model, purpose=event.purpose, attempt=event.attempt, reserved=event.reserved)
        calls.append(shown)
        return
    known = next((call for call in reversed(calls) if call.call == event.call), None)
    if known is None:
        return
    known.usage, known.latency_ms = event.usage, event.latency_ms
    if isinstance(event, e.ModelCallFinished):
        known.outcome, known.finish, known.request_id = "ok", event.finish, event.request_id
        known.model = event.model or known.model
    else:
        known.outcome, known.error = event.kind or "failed", event.error


def spent(usage: Usage) -> str:
    """Return tokens and cost as text: `1,200 in (800 cached), 34 out (12 reasoning), 0.0041 USD`."""
    into = f"{usage.input_tokens:,} in" + (f" ({usage.cached_tokens:,} cached)" if usage.cached_tokens else "")
    out = f"{usage.output_tokens:,} out" + (f" ({usage.reasoning_tokens:,} reasoning)" if usage.reasoning_tokens else "")
    cost = "" if usage.cost_usd is None else f", {usage.cost_usd:.4f} USD"
    return f"{into}, {out}{cost}" + (", estimated" if usage.estimated else "")


def reserved(held: Usage) -> str:
    """Return what a run holds for children that have not ended; "" for nothing."""
    parts = [
        counted(number, what)
        for number, what in ((held.iterations, "turn"), (held.tool_calls, "call"), (held.model_calls, "model call"))
        if number
    ]
    parts += [f"{held.total_tokens:,} tokens"] if held.total_tokens else []
    parts += [f"{held.cost_usd:.4f} USD"] if held.cost_usd else []
    return ", ".join(parts)


def told(call: ModelCall) -> str:
    """Return a model call on one line."""
    what = "" if call.purpose == "plan" else f" for {call.purpose}"
    tried = f", attempt {call.attempt}" if call.attempt > 1 else ""
    said = f"{call.model}{what}{tried}"
    if not call.outcome:
        return f"{said}: no answer yet, {spent(call.reserved)} reserved"
    used = f"  {spent(call.usage)}" if call.usage != NOTHING else ""
    if call.outcome != "ok":
        return f"{said}: {call.outcome}: {call.error}{used}"
    return f"{said}{used}, {call.latency_ms:.0f} ms" + (f", cut off ({call.finish})" if call.finish == "length" else "")
