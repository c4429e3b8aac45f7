"""The page of one run: its head, its line of time, its turns in blocks that are fetched as they are scrolled to, and its news as they happen."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, AsyncIterator
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlencode

import msgspec
from sse_starlette import EventSourceResponse, ServerSentEvent
from starlette.responses import Response

from detent.core.codec import read_record
from detent.core.state import TERMINAL
from detent.history.traces import Iteration, Trace
from detent.running.overseeing import waits_of
from detent.server.pages.reading import BLOCK, Reading, Readings
from detent.server.pages.rendering import render
from detent.server.pages.timeline import Timeline, drawn
from detent.server.pages.visits import HEADERS, Page, Visit
from detent.server.problems import Refused
from detent.server.served import Reader, Served


async def reading_of(visit: Visit) -> Reading:
    """Return the run of the address as the store has it now."""
    served = visit.served
    readings: Readings = served.readings
    return await readings.of(served.engine, visit.path["run_id"], host=visit.caller.host)


def depth_of(visit: Visit) -> str:
    """Return how deep the page goes: `story`, in words, or `engineer`, with everything."""
    return "engineer" if visit.asked.get("depth") == "engineer" else "story"


KINDS = (
    ("", "Everything"),
    ("needs-me", "Needs a person"),
    ("in-flight", "In flight"),
    ("failed", "Failed"),
    ("over-budget", "Over budget"),
    ("repeated", "Repeated"),
)
"""The ready filters inside a run."""


async def run_page(visit: Visit) -> Response:
    """Show a run. `at` is the sequence of a record to begin at; `only`, `from` and `to` choose turns."""
    reading = await reading_of(visit)
    at = number_of(visit, "at", 0)
    turns = chosen(visit, reading)
    blocks = max(1, -(-len(turns) // BLOCK))
    first = min(reading.block_of(at), blocks - 1) if at else 0
    values = await head_of(visit, reading)
    return visit.page(
        "run.html",
        blocks=blocks,
        shown=sorted({first, blocks - 1}),
        at=at,
        line_of_time=_line(visit, reading),
        turns=turns,
        kinds=KINDS,
        chosen=urlencode({name: visit.asked[name] for name in ("only", "from", "to") if visit.asked.get(name)}),
        **values,
    )


def _line(visit: Visit, reading: Reading) -> Timeline:
    first, last = number_of(visit, "from", 0), number_of(visit, "to", 0)
    begin = next((turn.at for turn in reading.turns if turn.iteration >= first), None) if first else None
    end = next((turn.at for turn in reading.turns if turn.iteration > last), None) if last else None
    spans = [one for one in reading.spans if (begin is None or one.start >= begin) and (end is None or one.start < end)]
    return drawn(spans, datetime.now(UTC))


def chosen(visit: Visit, reading: Reading) -> list[tuple[int, Iteration]]:
    """Return the turns that the address asks for, each with its place among all."""
    only, first, last = visit.asked.get("only", ""), number_of(visit, "from", 0), number_of(visit, "to", 0)
    return [
        (place, turn)
        for place, turn in enumerate(reading.turns)
        if (not first or turn.iteration >= first) and (not last or turn.iteration <= last) and _is(only, turn, reading)
    ]


def _is(kind: str, turn: Iteration, reading: Reading) -> bool:
    match kind:
        case "needs-me":
            return any((call.approval and "decision" not in call.approval) or call.outcome == "in doubt" for call in turn.calls)
        case "in-flight":
            return any(not call.outcome and call.decision not in ("deny", "stop") for call in turn.calls)
        case "over-budget":
            return any("budget_exhausted" in call.error for call in turn.calls) or (
                reading.state.reason in ("max_iterations", "budget_exhausted") and turn is reading.turns[-1]
            )
        case "failed":
            return any(call.outcome in ("failed", "refused", "in doubt") for call in turn.calls) or any(
                model.outcome not in ("ok", "") for model in turn.models
            )
        case "repeated":
            return any(call.call_id in reading.repeats for call in turn.calls)
        case _:
            return True


async def head_of(visit: Visit, reading: Reading) -> dict[str, Any]:
    """Return what the head of a run's page shows."""
    trace: Trace = reading.tracer.trace()
    waits = await waits_of(visit.served.engine.store, reading.state)
    return {
        "run": trace, "state": reading.state, "waits": waits, "depth": depth_of(visit), "BLOCK": BLOCK, "roles": visit.caller.roles,
        "over": reading.state.status in TERMINAL, "low": low_of(visit), "repeats": reading.repeats, "gaps": reading.gaps,
    }  # fmt: skip


def low_of(visit: Visit) -> frozenset[str]:
    """Return the tools whose calls are of low importance."""
    return frozenset(spec.name for spec in visit.served.engine.runtime.tools.list() if spec.importance == "low")


def _turns(reading: Reading) -> list[tuple[int, Any]]:
    return list(enumerate(reading.turns))


async def block(visit: Visit) -> Response:
    """Return one block of turns."""
    reading = await reading_of(visit)
    number = whole(visit.path["number"], "block")
    if not 0 <= number <= len(reading.turns) // BLOCK:
        raise Refused(404, "not_found", f"the run has no block {number}")
    return visit.page("run_block.html", number=number, turns=chosen(visit, reading), at=0, **await head_of(visit, reading))


async def line_of_time(visit: Visit) -> Response:
    """Return the line of time."""
    reading = await reading_of(visit)
    return visit.page("run_time.html", line_of_time=_line(visit, reading), **await head_of(visit, reading))


async def verified(visit: Visit) -> Response:
    """Return whether the log is what was written."""
    return visit.page("run_verified.html", found=await visit.served.engine.verify(visit.path["run_id"], host=visit.caller.host))


async def record(visit: Visit) -> Response:
    """Show one record as it is stored."""
    engine = visit.served.engine
    run_id = await engine.runtime.visible(visit.path["run_id"], visit.caller.host)
    sequence = whole(visit.path["sequence"], "record")
    lines = await engine.store.read(run_id, after=sequence - 1, limit=1) if sequence > 0 else []
    head = await engine.store.head(run_id)
    if not lines or head is None:  # None: it was deleted just now
        raise Refused(404, "not_found", f"run {run_id} has no record {sequence}")
    known = read_record(lines[0])
    shown = msgspec.json.format(lines[0].decode(), indent=2)
    return visit.page("record.html", run_id=run_id, record=known, raw=shown, last=head.records)


def number_of(visit: Visit, name: str, default: int) -> int:
    """Return a number of the query; raise `Refused` for something else."""
    given = visit.asked.get(name, "")
    return whole(given, name) if given else default


def whole(text: str, name: str) -> int:
    """Return a number that somebody wrote; raise `Refused` (422) for anything else."""
    if not (text.isascii() and text.isdigit() and len(text) < 16):
        raise Refused(422, "not_a_number", f"{name} is {text[:40]!r}; give a number")
    return int(text)


async def live(visit: Visit) -> Response:
    """Send the parts of the page that change as records are committed, until the run has ended or the server stops."""
    reading = await reading_of(visit)
    served = visit.served
    served.refuse_full(visit.caller)
    after = visit.request.headers.get("last-event-id", "") or visit.asked.get("after", "0")
    known = int(after) if after.isascii() and after.isdigit() and len(after) < 16 else 0

    async def news() -> AsyncGenerator[ServerSentEvent]:
        sent, here = known, reading
        with served.hub.reading("run", reading.run_id) as news_of:
            stopper = asyncio.create_task(_stopped(served, news_of))
            try:
                looked = time.monotonic()
                while not served.stopping.is_set():
                    if time.monotonic() - looked > served.settings.heartbeat_s:
                        looked = time.monotonic()
                        try:
                            now = await served.caller(visit.token)
                        except Refused:  # the token is over, or was removed
                            return
                        if now.tenant != visit.caller.tenant or "see" not in now.roles:
                            return
                    here = await served.readings.of(served.engine, here.run_id, host=visit.caller.host)
                    if here.sequence > sent:
                        parts = await _parts(visit, here, sent)
                        sent = here.sequence
                        yield ServerSentEvent(parts, id=str(sent), event="news")
                    if here.state.status in TERMINAL:
                        yield ServerSentEvent("", event="over")
                        return
                    await news_of.take(served.settings.heartbeat_s)
            finally:
                stopper.cancel()

    async def counted() -> AsyncIterator[ServerSentEvent]:
        with served.streaming(visit.caller):
            async with contextlib.aclosing(news()) as items:
                async for one in items:
                    yield one

    settings = served.settings
    return EventSourceResponse(counted(), sep="\n", ping=settings.heartbeat_s, send_timeout=settings.send_s, headers={**HEADERS})


async def _stopped(served: Served, reader: Reader) -> None:
    await served.stopping.wait()
    reader.look()


async def _parts(visit: Visit, reading: Reading, sent: int) -> str:
    """Return what a page that has the records up to `sent` lacks: its head, and its new and changed turns."""
    new = [(number, turn) for number, turn in _turns(reading) if turn.seq > sent]
    changed = [(number, turn) for number, turn in _turns(reading) if turn.seq <= sent < reading.touched[number]]
    values = await head_of(visit, reading)
    return render("run_news.html", new=new, changed=changed, caller=visit.caller, code=visit.code, at=0, asked=visit.asked, **values)


async def tree(visit: Visit) -> Response:
    """Show a run with all runs below it."""
    found = await visit.served.engine.tree(visit.path["run_id"], host=visit.caller.host)
    part = visit.request.headers.get("hx-request") == "true"
    return visit.page("tree_rows.html" if part else "tree.html", tree=found, run_id=visit.path["run_id"])


PAGES = (
    Page(path="/ui/runs/{run_id}/tree", handle=tree),
    Page(path="/ui/runs/{run_id}", handle=run_page),
    Page(path="/ui/runs/{run_id}/blocks/{number}", handle=block),
    Page(path="/ui/runs/{run_id}/time", handle=line_of_time),
    Page(path="/ui/runs/{run_id}/verified", handle=verified),
    Page(path="/ui/runs/{run_id}/records/{sequence}", handle=record),
    Page(path="/ui/runs/{run_id}/live", handle=live),
)
