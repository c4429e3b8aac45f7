"""Evaluations of the store: how far each is, what it found, its cases by variants, and its trials, which lead to their runs.

An evaluation concerns the whole store, and its grades quote what runs of any tenant said. So it is shown to those who operate the whole store; others are
told so, and find the runs that they may see in the list of runs.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Any
from urllib.parse import quote, urlencode

import msgspec
from starlette.responses import Response

from detent.core.errors import DetentError
from detent.evals import Evaluation, summarised
from detent.evals.controlling import InProgress, Standings, evaluation, results, standings
from detent.evals.controlling import evaluations as stored
from detent.evals.reports import Figures
from detent.evals.sharing import INDEX, Begun
from detent.evals.trials import Trial, first_of_trial, trial_id
from detent.evals.writing import JUDGED, fault_rows, judged, rows, why
from detent.server.pages.run import number_of
from detent.server.pages.visits import Page, Visit
from detent.server.problems import Refused, told

LISTED, LIST_S = 25, 1.0
"""So many evaluations are listed at once, and fewer if reading them takes longer than this."""
PAGE = 200
"""So many cases and trials are shown at once."""
_ORDER = ("failed", "machinery", "unknown", "open", "in_progress", "passed", "cancelled", "not_run")
"""In which order trials are shown: first what somebody has to look at."""
_TONES = {"passed": "good", "failed": "bad", "machinery": "bad", "open": "waits", "in_progress": "live"}
_STATES = {"running": "live", "stopped": "waits", "cancelled": "quiet", "ended": "good"}
_FIGURES: OrderedDict[bytes, dict[str, Figures]] = OrderedDict()
"""Figures by the digest of the trials that they follow from: intervals of thousands of trials take half a second to draw."""
_MOST_FIGURES = 200


class Cell(msgspec.Struct, frozen=True, kw_only=True):
    """The trials of a case with a variant: their result in words, what that means to the eye, and the address that lists them."""

    said: str
    tone: str
    address: str


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """A trial as the page shows it: its standing, what that means to the eye, why it is so, and the run to look at, "" if none was begun."""

    trial: Trial
    kind: str
    tone: str
    why: str
    run_id: str


async def evaluations(visit: Visit) -> Response:
    """List evaluations, the latest first, with their figures."""
    if not visit.of_all:
        return visit.page("evaluations.html", all=False, found=(), broken=(), next="")
    after, since = number_of(visit, "after", 0), time.monotonic()
    known, wrong = await stored(visit.served.engine)
    broken = [(name, _said(visit, error)) for name, error in wrong.items()]
    found: list[dict[str, Any]] = []
    for begun in known[after : after + LISTED]:
        if found and time.monotonic() - since > LIST_S:
            break
        try:
            far = await standings(visit.served.engine, begun)
            of = await _evaluation(begun, await results(visit.served.engine, begun))
        except DetentError as error:
            found.append({"begun": begun, "far": None, "rows": ((),), "problem": _said(visit, error)})
            continue
        found.append({"begun": begun, "far": far, "rows": rows(of)[1:], "problem": ""})
    more = after + len(found)
    return visit.page("evaluations.html", all=True, found=found, broken=broken, states=_STATES, next=more if more < len(known) else "")


def _said(visit: Visit, error: DetentError) -> str:
    return told(str(error), visit.served.engine.store.url)


async def evaluation_page(visit: Visit) -> Response:
    """Show an evaluation: how far it is, its figures, its cases by variant, and its trials. `case` and `variant` choose a cell.

    How far it is, is fetched again while it is open.
    """
    visit.need_all()
    name, engine = visit.path["name"], visit.served.engine
    if name not in await engine.store.list_blobs(INDEX):
        raise Refused(404, "not_found", f"there is no evaluation {name[:100]!r} in this store; /ui/evaluations lists all of them")
    begun = await evaluation(engine, name)
    far = await standings(engine, begun)
    if visit.request.headers.get("hx-request") == "true":
        return visit.page("evaluation_now.html", begun=begun, far=far, states=_STATES, again=_again(visit), refreshed=True)
    of = await _evaluation(begun, await results(engine, begun))
    case, variant = visit.asked.get("case"), visit.asked.get("variant")
    shown = [one for one in _rows(begun, of, far) if case in (None, one.trial.case) and variant in (None, one.trial.variant)]
    after, cases = number_of(visit, "after", 0), number_of(visit, "cases", 0)
    matrix = _matrix(of)
    tables = [("Figures", rows(of)), ("Under faults", fault_rows(of)), ("Judges", [JUDGED, *found] if (found := judged(of)) else [])]
    return visit.page(
        "evaluation.html", begun=begun, far=far, states=_STATES, again=_again(visit), refreshed=False, known=of,
        tables=[one for one in tables if one[1]], matrix=matrix[cases : cases + PAGE], several=len(matrix), first=cases, case=case, variant=variant,
        shown=shown[after : after + PAGE], of_shown=len(shown),
        next=urlencode({**visit.asked, "after": after + PAGE}) if after + PAGE < len(shown) else "",
        next_cases=urlencode({**visit.asked, "cases": cases + PAGE}) if cases + PAGE < len(matrix) else "",
    )  # fmt: skip


def _again(visit: Visit) -> str:
    return f"/ui/evaluations/{quote(visit.path['name'], safe='')}"


async def _evaluation(begun: Begun, trials: Sequence[Trial]) -> Evaluation:
    """Return an evaluation with its figures; those of the same trials are computed once."""
    digest = sha256(msgspec.json.encode(trials)).digest()
    figures = _FIGURES.pop(digest, None)
    if figures is None:
        figures = (await asyncio.to_thread(summarised, begun.suite.name, begun.id, trials)).figures
    _FIGURES[digest] = figures
    if len(_FIGURES) > _MOST_FIGURES:
        _FIGURES.popitem(last=False)
    return Evaluation(suite=begun.suite.name, id=begun.id, at=begun.ended or begun.at, trials=tuple(trials), figures=figures)


def _rows(begun: Begun, of: Evaluation, far: Standings) -> list[Row]:
    """Return the trials, those first that somebody has to look at, then in the order of the suite."""
    moving = {first_of_trial(one.run_id): one for one in far.in_progress}
    found = [_row(trial, moving.get(trial_id(begun.id, trial.variant, trial.case, trial.number))) for trial in of.trials]
    places = {case.id: place for place, case in enumerate(begun.suite.cases)}
    variants = list(of.figures)
    return sorted(
        found,
        key=lambda one: (_ORDER.index(one.kind), places.get(one.trial.case, 0), variants.index(one.trial.variant), one.trial.number),
    )


def _row(trial: Trial, moving: InProgress | None) -> Row:
    kind, reason, run_id, attempts = trial.standing, why(trial), trial.run_id, trial.attempts
    if moving is not None:
        kind = "open" if moving.status.startswith("wait") else "in_progress"
        reason, run_id, attempts = moving.status.replace("_", " "), moving.run_id, moving.attempt
    again = [f"attempt {attempts}"] if attempts > 1 else []
    shown = [reason] if kind not in ("passed", "in_progress", "not_run") else []
    return Row(trial=trial, kind=kind, tone=_TONES.get(kind, "quiet"), why="; ".join(shown + again), run_id=run_id)


def _matrix(of: Evaluation) -> list[tuple[str, list[Cell]]]:
    """Return a row for each case, with a cell for each variant."""
    cells: dict[str, dict[str, list[Trial]]] = {}
    for trial in of.trials:
        cells.setdefault(trial.case, {}).setdefault(trial.variant, []).append(trial)
    return [(case, [_cell(case, name, row) for name in of.figures]) for case, row in cells.items()]


def _cell(case: str, variant: str, row: Mapping[str, Sequence[Trial]]) -> Cell:
    trials = row.get(variant, ())
    counts = {kind: sum(one.standing == kind for one in trials) for kind in ("passed", "failed", "not_run")}
    graded = counts["passed"] + counts["failed"]
    parts = [f"{counts['passed']} of {graded} passed"] if graded else []
    parts += [f"{others} not graded"] if (others := len(trials) - graded - counts["not_run"]) else []
    parts += [f"{counts['not_run']} to come"] if counts["not_run"] else []
    tone = "quiet" if not graded else "good" if counts["passed"] == len(trials) else "bad" if not counts["passed"] else "waits"
    return Cell(said=", ".join(parts), tone=tone, address=f"?{urlencode({'case': case, 'variant': variant})}#trials")


PAGES = (Page(path="/ui/evaluations", handle=evaluations), Page(path="/ui/evaluations/{name}", handle=evaluation_page))
