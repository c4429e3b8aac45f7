"""Search in messages, arguments and results: in one run, or in all runs that the visitor may see, the newest first.

There is no index of contents: logs are read, within a bound on time, and the page says how far it got and continues from there.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import Any
from urllib.parse import urlencode

import msgspec
from starlette.responses import Response

from detent.core.codec import read_record
from detent.core.errors import DetentError
from detent.core.records import Record
from detent.expressions.display import as_text, clean
from detent.ports import RunQuery
from detent.server.pages.visits import Page, Visit
from detent.server.problems import Refused

MOST_S, MOST_HITS, PAGE, AROUND = 1.5, 100, 50, 90
"""How long one look lasts, what it shows at most, how many runs it reads at once, and how many characters around a hit it shows."""


class Hit(msgspec.Struct, frozen=True, kw_only=True):
    """A record with the text: before it, the text as it is there, and after it."""

    run_id: str
    goal: str
    sequence: int
    kind: str
    before: str
    found: str
    after: str


async def search(visit: Visit) -> Response:
    """Show the records that have a text in messages, arguments or results."""
    wanted, one = visit.asked.get("find", "").strip(), visit.asked.get("run", "")
    if len(wanted) > 200:
        raise Refused(422, "too_long", "look for at most 200 characters")
    hits: list[Hit] = []
    looked, after = 0, ""
    if wanted and one:
        run_id = await visit.served.engine.runtime.visible(one, visit.caller.host)
        head = await visit.served.engine.store.head(run_id)
        hits = await _in_run(visit, run_id, "" if head is None else head.title or head.goal, wanted)
        looked = 1
    elif wanted:
        hits, looked, after = await _in_all(visit, wanted)
    more = "/ui/search?" + urlencode({"find": wanted, "after": after}) if after else ""
    values: dict[str, Any] = {"hits": hits, "wanted": wanted, "run": one, "looked": looked, "more": more, "full": len(hits) >= MOST_HITS}
    return visit.page("search.html", **values)


async def _in_all(visit: Visit, wanted: str) -> tuple[list[Hit], int, str]:
    """Return hits, how many runs were read, and the run to continue behind ("" if these were all)."""
    engine, host, begun = visit.served.engine, visit.caller.host, time.monotonic()
    hits: list[Hit] = []
    looked, after = 0, visit.asked.get("after") or None
    while True:
        heads = await engine.list_runs(RunQuery(tenant=visit.caller.tenant, limit=PAGE, after=after), host=host)
        for head in heads:
            with contextlib.suppress(DetentError, msgspec.MsgspecError, ValueError):  # damaged, or gone meanwhile: its own page says so
                hits += await _in_run(visit, head.run_id, head.title or head.goal, wanted)
            looked, after = looked + 1, head.run_id
            if len(hits) >= MOST_HITS or time.monotonic() - begun > MOST_S:
                return hits[:MOST_HITS], looked, after
        if len(heads) < PAGE:
            return hits, looked, ""


async def _in_run(visit: Visit, run_id: str, goal: str, wanted: str) -> list[Hit]:
    needle = wanted.lower()
    inside = msgspec.json.encode(wanted)[1:-1].lower()
    hits: list[Hit] = []
    for number, line in enumerate(await visit.served.engine.store.read(run_id)):
        if not number % 500:
            await asyncio.sleep(0)
        if inside in line.lower() or not wanted.isascii():
            hit = _hit(read_record(line), run_id, goal, needle)
            if hit is not None:
                hits.append(hit)
                if len(hits) >= MOST_HITS:
                    break
    return hits


def _hit(record: Record, run_id: str, goal: str, needle: str) -> Hit | None:
    """Return where a record's event has the text; None if only its frame does."""
    if record.event is None:
        return None
    for said in _texts(msgspec.to_builtins(msgspec.json.decode(msgspec.json.encode(record.event)))):
        at = said.lower().find(needle)
        if at >= 0:
            end = at + len(needle)
            before = said[max(0, at - AROUND) : at]
            return Hit(
                run_id=run_id,
                goal=goal,
                sequence=record.envelope.seq,
                kind=type(record.event).__name__,
                before=clean(("…" if at > AROUND else "") + before),
                found=clean(said[at:end]),
                after=clean(said[end : end + AROUND] + ("…" if len(said) > end + AROUND else "")),
            )
    return None


SILENT = ("type", "digest", "digests", "key", "call", "policy", "rule", "signal", "request_id", "provider_id")
"""Fields that nobody said."""


def _texts(value: Any) -> Any:
    """Yield the texts in JSON data, without those of the machinery."""
    match value:
        case str():
            yield value
        case dict():
            for name, below in value.items():  # pyright: ignore[reportUnknownVariableType]
                if name not in SILENT:
                    yield from _texts(below)
        case list():
            for below in value:  # pyright: ignore[reportUnknownVariableType]
                yield from _texts(below)
        case int() | float() if not isinstance(value, bool):
            yield as_text(value)
        case _:
            pass


PAGES = (Page(path="/ui/search", handle=search),)
