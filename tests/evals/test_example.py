"""The clerk of examples/evaluation: its report in the documentation is what comes out."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from amounts import in_check
from commands import in_process
from detent.evals import Evaluation, writing

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "howto" / "test" / "evaluate-under-faults.md"


@in_check
@pytest.mark.timeout(600)
def test_the_figures_of_the_whole_example_are_those_of_its_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """20 cases, 5 trials, undisturbed and under all eight faults: the same figures in every evaluation, and nothing repeated or lost."""
    pytest.importorskip("jinja2")
    work = tmp_path / "evaluation"
    shutil.copytree(ROOT / "examples" / "evaluation", work, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setenv("DETENT_TRUST", str(work))
    assert in_process(["memory", "import", "memory.jsonl"], cwd=work, env=os.environ)[0] == 0
    words = ["eval", "run", "suite.toml", "--out", "r.json", "--out", "r.html", "--require", "repeated == 0 && lost == 0"]
    code, _, said = in_process(words, cwd=work, env=os.environ)
    assert code == 0, said
    found = Evaluation.read(work / "r.json")
    shown = [line.split("  ") for line in PAGE.read_text().partition("VARIANT")[2].partition("```")[0].splitlines()[1:]]
    assert [[cell.strip() for cell in row if cell.strip()] for row in shown] == [[*row[:4], row[5]] for row in writing.rows(found)[1:]]
    struck = {name: figures.under.struck for name, figures in found.figures.items() if figures.under}
    assert all(struck.values()) and (struck["kill"], struck["timeout"]) == (62, 31)
    assert {trial.status for trial in found.trials} <= {"completed", "stopped"} and "Under faults" in (work / "r.html").read_text()
