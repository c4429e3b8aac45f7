"""The list of runs: filters that answer questions, one page at a time, by cursor."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import urlencode

import msgspec
from starlette.responses import Response

from detent.core.records import RunHead
from detent.core.state import WAITING
from detent.history.trees import without_children
from detent.ports import RunQuery
from detent.server.pages.visits import Page, Visit
from detent.server.problems import Refused

PAGE = 50


class View(msgspec.Struct, frozen=True, kw_only=True):
    """A ready filter: its name in the address, what it is called, and the runs that it shows."""

    name: str
    label: str
    status: tuple[str, ...] = ()
    reasons: tuple[str, ...] = ()


SPANS = (("", "any time"), ("1h", "the last hour"), ("24h", "the last day"), ("7d", "the last week"), ("30d", "the last 30 days"))
"""Ready ranges of time."""
VIEWS = (
    View(name="", label="All"),
    View(
        name="needs-me",
        label="Needs a person",
        status=("waiting_for_approval", "waiting_for_user", "waiting_for_reconciliation", "waiting_for_operator"),
    ),
    View(name="in-flight", label="In flight", status=("running", *sorted(WAITING))),
    View(name="failed", label="Failed", status=("failed",)),
    View(name="over-budget", label="Over budget", status=("stopped",), reasons=("max_iterations", "budget_exhausted")),
    View(name="repeated", label="Repeated", status=("stopped",), reasons=("no_progress", "failure_threshold")),
    View(name="completed", label="Completed", status=("completed",)),
)


async def found(visit: Visit) -> tuple[list[RunHead], str, View]:
    """Return the page of runs that the address asks for, and the cursor of the next one ("" at the end)."""
    asked = visit.asked
    view = next((one for one in VIEWS if one.name == asked.get("view", "")), VIEWS[0])
    engine, host = visit.served.engine, visit.caller.host
    since, until = _time(asked.get("since", ""), "since"), _time(asked.get("until", ""), "until")
    wanted = asked.get("find", "").strip().lower()
    tenant, agent, after = visit.caller.tenant, asked.get("agent") or None, asked.get("after") or None
    query = RunQuery(status=view.status, since=since, until=until, agent=agent, after=after, tenant=tenant, limit=PAGE + 1)

    async def listed(query: RunQuery) -> list[RunHead]:
        return await engine.list_runs(query, host=host)

    if not (view.reasons or wanted):
        runs = await (listed(query) if asked.get("children") else without_children(listed, query, PAGE + 1))
        more = len(runs) > PAGE
        return runs[:PAGE], runs[PAGE - 1].run_id if more else "", view
    matching: list[RunHead] = []
    query, looked = msgspec.structs.replace(query, limit=1_000), 0
    while len(matching) <= PAGE and looked < 20_000:
        heads = await listed(query)
        looked += len(heads)
        matching += [one for one in heads if _fits(one, view, wanted)]
        if len(heads) < 1_000:
            return matching[:PAGE], matching[PAGE - 1].run_id if len(matching) > PAGE else "", view
        query = msgspec.structs.replace(query, after=heads[-1].run_id)
    return matching[:PAGE], matching[PAGE - 1].run_id if len(matching) > PAGE else query.after or "", view


def _time(text: str, name: str) -> datetime | None:
    """Return a time: `7d` ago, or a date; None for no text. Raise `Refused` for anything else."""
    if not text:
        return None
    try:
        if text[-1] in "mhd" and text[:-1].isdigit():
            return datetime.now(UTC) - timedelta(**{{"m": "minutes", "h": "hours", "d": "days"}[text[-1]]: int(text[:-1])})
        at = datetime.fromisoformat(text)
    except (ValueError, OverflowError) as error:
        raise Refused(422, "bad_time", f"{name} is {text[:40]!r}; write 30m, 12h, 7d, or a date such as 2026-01-31") from error
    return at if at.tzinfo else at.replace(tzinfo=UTC)


def _fits(head: RunHead, view: View, wanted: str) -> bool:
    said = f"{head.goal}\n{head.title}\n{head.run_id}\n{head.agent}".lower()
    return (not view.reasons or head.reason in view.reasons) and wanted in said


async def runs_page(visit: Visit) -> Response:
    """Show the runs. The part of the page with the rows is fetched again every few seconds while it is looked at."""
    runs, after, view = await found(visit)
    part = visit.request.headers.get("hx-request") == "true"
    values: dict[str, Any] = {
        "runs": runs,
        "view": view,
        "views": VIEWS,
        "after": after,
        "spans": SPANS,
        "agents": sorted(visit.served.engine.agents),
    }
    return visit.page("runs_rows.html" if part else "runs.html", again=address(visit), more=address(visit, after=after), **values)


def address(visit: Visit, **changed: str) -> str:
    """Return the address of this list with something changed."""
    kept = {
        name: value
        for name, value in {**visit.asked, **changed}.items()
        if value and name in ("view", "find", "agent", "since", "until", "children", "after")
    }
    return "/?" + urlencode(kept) if kept else "/"


PAGES = (Page(path="/", handle=runs_page),)
