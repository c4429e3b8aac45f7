"""Evaluations in the inspector: figures, cases and trials as the store has them, for who operates the whole store."""

from __future__ import annotations

import asyncio
import html
import html.parser
import re
from pathlib import Path
from typing import Any

from detent import Engine
from detent.evals import Case, Suite, Variant, evaluate
from detent.evals.sharing import INDEX, place_of
from detent.evals.trials import trial_id
from server.pages import visiting
from server.pages.visiting import HOSTILE, Visitor, shown


class Gated(visiting.Planner):
    """Counts, but no turn of a goal that ends with 9 begins before the gate is open."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()

    async def plan(self, view: Any) -> Any:
        if view.goal.endswith("9"):
            await self.gate.wait()
        return await super().plan(view)


def counting(odd: str = "odd") -> Suite:
    """Return a suite with a case that fails and one that passes, each tried twice."""
    cases = tuple(Case(id=name, goal=goal, expected="counted to 1") for name, goal in ((odd, "count to 9"), ("fine", "count to 1")))
    return Suite(
        name=f"counts {HOSTILE[0]}", cases=cases, graders=({"kind": "exact"},), variants={HOSTILE[0]: Variant(agent="counter")}, trials=2
    )


def test_an_evaluation_leads_from_its_figures_over_its_cases_to_its_runs(tmp_path: Path) -> None:
    """What `evaluate` kept in the store is enough, and cases, variants and suites may be called anything."""
    odd = f"odd % _ {HOSTILE[0]}"

    async def body(engine: Engine, url: str) -> None:
        trials = await evaluate(engine, counting(odd), id="x")
        await evaluate(engine, counting("other"), id="x-2")
        async with Visitor(url, "ann") as ann:
            page, one = await ann.see("/ui/evaluations"), await ann.see("/ui/evaluations/x")
            assert page.count('data-label="Passed">50.0%') == 2 and [
                page.count(f'href="/ui/evaluations/{name}"') for name in ("x", "x-2")
            ] == [1, 1]
            assert ">ended</span>" in one and "4 of 4 trials ended" in one and "expected counted to 1" in one
            cells = dict(re.findall(r'href="([^"]*)#trials">(\d of \d \w+)<', html.unescape(one)))
            assert sorted(cells.values()) == ["0 of 2 passed", "2 of 2 passed"]
            for address, said in cells.items():
                runs = [trial.run_id for trial in trials if (trial.standing == "passed") == said.startswith("2")]
                seen = await ann.see(f"/ui/evaluations/x{address}")
                assert sorted(re.findall(r'href="/ui/runs/(eval-[^"]*)"', seen)) == sorted(runs), address
            assert "None." in await ann.see("/ui/evaluations/x?case=gone") and "None." in await ann.see("/ui/evaluations/x?after=9")
            for path in ("%25", "x" * 5_000, "%00", "..%2fx", "eval", "x-", "x?after=-1", "x?cases=z", "x-3"):
                answer = await ann.get(f"/ui/evaluations/{path}")
                assert answer.status_code in (404, 422), (path, answer.status_code)

    shown(tmp_path, body, works=False)


def test_only_who_operates_the_whole_store_sees_evaluations_and_others_are_told_so(tmp_path: Path) -> None:
    """Not even whether there is one of a name is told to others."""

    async def body(engine: Engine, url: str) -> None:
        await evaluate(engine, counting(), id="x")
        for who in ("bob", "cal", "eve"):
            async with Visitor(url, who) as visitor:
                page = await visitor.see("/ui/evaluations")
                assert "shown to those who operate" in page and "counts" not in page and "ui/evaluations/" not in page, who
                told = [html.unescape((await visitor.get(f"/ui/evaluations/{name}")).text) for name in ("x", "none")]
                assert told[0] == told[1] and "not allowed" in told[0].lower(), who
                assert (await visitor.part("/ui/evaluations/x")).status_code == 403, who

    shown(tmp_path, body, works=False)


def test_an_evaluation_shows_its_progress_and_the_runs_of_the_trials_that_have_not_ended(tmp_path: Path) -> None:
    async def body(engine: Engine, url: str) -> None:
        engine.planner = planner = Gated()
        task = asyncio.create_task(evaluate(engine, counting(), id="x"))
        async with Visitor(url, "ann") as ann:
            async with asyncio.timeout(30):
                while "2 of 4 trials ended" not in (page := await ann.see("/ui/evaluations/x")) or page.count(">in progress<") < 2:
                    await asyncio.sleep(0.01)
            running = {trial_id("x", HOSTILE[0], "odd", number) for number in (1, 2)}
            assert running < set(re.findall(r'href="/ui/runs/(eval-[^"]*)"', page)) and "2 to come" in page and "data-again" in page
            assert "2 of 4" in await ann.see("/ui/evaluations")
            part = (await ann.part("/ui/evaluations/x")).text
            assert "<h1>" not in part and "as it was when you opened" in part and set(re.findall(r"eval-[\w-]+", part)) >= running
            planner.gate.set()
            await task
            part = (await ann.part("/ui/evaluations/x")).text
            assert "4 of 4 trials ended" in part and "data-again" not in part and "In progress" not in part

    shown(tmp_path, body, works=False)


def test_an_evaluation_that_cannot_be_read_is_named_beside_the_others(tmp_path: Path) -> None:
    async def body(engine: Engine, url: str) -> None:
        for name in ("x", "y", "z"):
            await evaluate(engine, counting(), id=name)
        await engine.store.put_blob(INDEX, "x", b"<b>")
        await engine.store.put_blob(INDEX, "<b>", b'{"id": "<b>"}')
        await engine.store.put_blob(place_of("y"), "trials-a", b"[{}]")
        async with Visitor(url, "ann") as ann:
            page = await ann.see("/ui/evaluations")
            assert "50.0%" in page and 'href="/ui/evaluations/z"' in page and page.count("cannot be read") == 3 and "<b>" not in page
            for name in ("x", "y"):
                assert "cannot be read" in (await ann.get(f"/ui/evaluations/{name}")).text

    shown(tmp_path, body, works=False)
