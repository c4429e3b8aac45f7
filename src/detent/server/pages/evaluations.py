"""Evaluations: those that the store has, by the ids of their trials, and the results that `detent eval` left in the folder `evals`.

A result says how trials were graded, and concerns every tenant, so it is for who operates the whole store. Without one the page shows the runs that the
visitor may see, not graded.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from urllib.parse import urlencode

import msgspec
from starlette.responses import Response

from detent.core.errors import ConfigError
from detent.evals import Evaluation, summarised
from detent.evals.trials import Trial, trial_in
from detent.evals.writing import rows, why
from detent.ports import RunQuery
from detent.server.pages.run import number_of
from detent.server.pages.visits import Page, Visit
from detent.server.problems import Refused

FOLDER = Path("evals")
"""Where `detent eval` writes its results, below the directory of the server."""
RESULTS, RUNS, PAGE = 50, 20_000, 200
"""So many results and runs are looked at for the list, and so many cases and trials are shown at once."""


class Cell(msgspec.Struct, frozen=True, kw_only=True):
    """The trials of a case with a variant: what became of them in words, what that means to the eye, and the address that lists them."""

    said: str
    tone: str
    address: str


async def evaluations(visit: Visit) -> Response:
    """List evaluations, the newest first: their figures if there is a result, else how many trials the store has."""
    results, broken, left = await asyncio.to_thread(_results) if visit.of_all else ({}, [], [])
    stored, more = await _stored(visit)
    found = sorted(({name: (one, "") for name, one in stored.items()} | results).items(), key=lambda one: one[1][0].at, reverse=True)
    shown = [{"name": file or name, "known": one, "graded": bool(file), "rows": rows(one)[1:]} for name, (one, file) in found]
    return visit.page("evaluations.html", found=shown, broken=broken, left=left, more=more)


def _results() -> tuple[dict[str, tuple[Evaluation, str]], list[str], list[str]]:
    """Return the latest results by evaluation, each with the name of its file; the files that are none; and the evaluations that are open."""
    found: dict[str, tuple[Evaluation, str]] = {}
    broken: list[str] = []
    for path in sorted(FOLDER.glob("*.json"), reverse=True)[:RESULTS]:
        try:
            known = Evaluation.read(path)
        except ConfigError:
            broken.append(path.name)
            continue
        found.setdefault(known.id or path.stem, (known, path.stem))
    return found, broken, sorted(path.stem for path in FOLDER.glob("*.open"))


async def _stored(visit: Visit, name: str = "") -> tuple[dict[str, Evaluation], str]:
    """Return the evaluations in the store, or one, as far as their runs say, and where older runs begin ("" if there are none).

    Of a trial that was begun anew only the last attempt counts.
    """
    query = RunQuery(starts_with=(f"eval-{name}-" if name else "eval-",), limit=RUNS, after=visit.asked.get("older") or None)
    heads = await visit.served.engine.list_runs(query, host=visit.caller.host)
    found: dict[str, dict[str, Trial]] = {}
    at: dict[str, datetime] = {}
    for head in heads:
        if (of := trial_in(head)) is None:
            continue
        evaluation, trial = of
        trials, place = found.setdefault(evaluation, {}), trial.run_id.partition("-again")[0]
        if place not in trials or trials[place].attempts < trial.attempts:
            trials[place] = trial
        at.setdefault(evaluation, head.created_at)
    made = {each: summarised(each, each, list(trials.values())) for each, trials in found.items()}
    return {each: msgspec.structs.replace(one, at=at[each]) for each, one in made.items()}, heads[-1].run_id if len(heads) == RUNS else ""


async def evaluation(visit: Visit) -> Response:
    """Show an evaluation: its figures, its cases by variant, and its trials, those first that did not pass. `case` and `variant` choose a cell."""
    name, after = visit.path["name"], number_of(visit, "after", 0)
    known = await asyncio.to_thread(_result, name) if visit.of_all else None
    graded, more = known is not None, ""
    if known is None:
        stored, more = await _stored(visit, name)
        if name not in stored:
            raise Refused(
                404,
                "not_found",
                f"there is no evaluation {name[:100]!r}: the store has no trial of it that you may see, and {FOLDER} no result",
            )
        known = stored[name]
    case, variant = visit.asked.get("case"), visit.asked.get("variant")
    chosen = [one for one in known.trials if case in (None, one.case) and variant in (None, one.variant)]
    ordered = sorted(chosen, key=lambda trial: (trial.standing == "passed", trial.case, trial.variant, trial.number))
    head, *body = rows(known)
    return visit.page(
        "evaluation.html", known=known, name=name, graded=graded, older=more, head=head, body=body, variants=list(known.figures), matrix=_matrix(known)[:PAGE],
        several=len({one.case for one in known.trials}), case=case, variant=variant, shown=[(one, why(one)) for one in ordered[after : after + PAGE]],
        next=urlencode({**visit.asked, "after": after + PAGE}) if after + PAGE < len(ordered) else "", PAGE=PAGE,
    )  # fmt: skip


def _result(name: str) -> Evaluation | None:
    """Return the result in the file of this name; None if there is none."""
    return next((Evaluation.read(path) for path in FOLDER.glob("*.json") if path.stem == name), None)


def _matrix(of: Evaluation) -> list[tuple[str, list[Cell | None]]]:
    """Return a row for each case, with a cell for each variant."""
    cells: dict[str, dict[str, list[Trial]]] = {}
    for trial in of.trials:
        cells.setdefault(trial.case, {}).setdefault(trial.variant, []).append(trial)
    return [(case, [_cell(case, name, row[name]) if name in row else None for name in of.figures]) for case, row in cells.items()]


def _cell(case: str, variant: str, trials: Sequence[Trial]) -> Cell:
    passed, graded = (sum(one.standing in kinds for one in trials) for kinds in (("passed",), ("passed", "failed")))
    ended = sum(one.standing != "open" for one in trials)
    said = f"{passed} of {graded} passed" if graded else f"{ended} of {len(trials)} ended"
    if graded and graded < len(trials):
        said += f", {len(trials) - graded} not graded"
    tone = "quiet" if not graded else "good" if passed == len(trials) else "bad" if not passed else "waits"
    return Cell(said=said, tone=tone, address=f"?{urlencode({'case': case, 'variant': variant})}#trials")


PAGES = (Page(path="/ui/evaluations", handle=evaluations), Page(path="/ui/evaluations/{name}", handle=evaluation))
