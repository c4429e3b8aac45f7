"""Evaluations: the results that `detent eval` left in the folder `evals`, each with its figures and with every trial as a run."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from starlette.responses import Response

from detent.core.errors import ConfigError
from detent.evals import Evaluation
from detent.evals.writing import rows, why
from detent.server.pages.run import number_of
from detent.server.pages.visits import Page, Visit
from detent.server.problems import Refused

FOLDER = Path("evals")
"""Where `detent eval` writes its results, below the directory of the server."""
MOST, PAGE = 200, 500


async def evaluations(visit: Visit) -> Response:
    """List the results, the newest first."""
    visit.need_all()
    return visit.page("evaluations.html", **await asyncio.to_thread(_all))


def _all() -> dict[str, Any]:
    found: list[dict[str, Any]] = []
    broken: list[str] = []
    for path in sorted(FOLDER.glob("*.json"), reverse=True)[:MOST]:
        try:
            known = Evaluation.read(path)
        except ConfigError:
            broken.append(path.name)
            continue
        found.append({"name": path.stem, "suite": known.suite, "at": known.at, "trials": len(known.trials), "rows": rows(known)[1:]})
    return {"found": found, "broken": broken, "left": sorted(path.stem for path in FOLDER.glob("*.open"))}


async def evaluation(visit: Visit) -> Response:
    """Show one result: its figures, and its trials, those first that did not pass."""
    visit.need_all()
    name, after = visit.path["name"], number_of(visit, "after", 0)
    known = await asyncio.to_thread(_one, name)
    ordered = sorted(known.trials, key=lambda trial: trial.standing == "passed")
    shown = [(trial, why(trial)) for trial in ordered[after : after + PAGE]]
    more = after + PAGE if after + PAGE < len(ordered) else 0
    head, *body = rows(known)
    return visit.page("evaluation.html", known=known, head=head, body=body, shown=shown, more=more, name=name)


def _one(name: str) -> Evaluation:
    path = FOLDER / f"{name}.json"
    if path.parent != FOLDER or not path.is_file():
        raise Refused(404, "not_found", f"there is no result {name!r} in {FOLDER}")
    return Evaluation.read(path)


PAGES = (Page(path="/ui/evaluations", handle=evaluations), Page(path="/ui/evaluations/{name}", handle=evaluation))
