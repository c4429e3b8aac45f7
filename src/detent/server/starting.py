"""Starting a run for a request, once however often the request is sent."""

from __future__ import annotations

import contextlib
import re
from typing import Any

import msgspec

from detent.core.errors import RunBusy, RunNotFound
from detent.ports import wait_for_news
from detent.server.keys import another
from detent.server.operations import Call


class Started(msgspec.Struct, frozen=True, kw_only=True):
    """A run to start. `run_id` is that of the request's key, or the caller's own, or None; `request` is the digest of the request."""

    agent: str
    goal: str
    run_id: str | None
    request: str
    options: dict[str, Any]


_TRACEPARENT = re.compile(r"00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")


def traceparent_in(call: Call) -> str:
    """Return the trace that a request belongs to (W3C Trace Context), "" if it names none."""
    said = call.request.headers.get("traceparent", "")
    return said if _TRACEPARENT.fullmatch(said) else ""


async def submitted(call: Call, run: Started) -> str:
    """Submit the run, or find the one that the same request has started, perhaps just now. Raise `Refused` for a key of another request."""
    engine, host = call.served.engine, msgspec.structs.replace(call.caller.host, trace_id=traceparent_in(call))
    options = {name: value for name, value in run.options.items() if value is not None and value != ""}
    if not call.key or run.run_id is None:
        return await engine.submit(run.agent, run.goal, host=host, run_id=run.run_id, **options)
    while True:
        with contextlib.suppress(RunNotFound):
            there = await engine.load(run.run_id, host=host)
            if there.state.queued is None or there.state.queued.request != run.request:
                raise another(call.key)
            return there.run_id
        try:
            return await engine.submit(run.agent, run.goal, host=host, run_id=run.run_id, request=run.request, **options)
        except RunBusy:
            await wait_for_news(engine.store, 0.05, records=True)  # another request with this key is starting it
