"""An evaluation as text: for a terminal, as Markdown, as JUnit's XML, and as one HTML file that needs no network; and what it must reach."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

from detent.core.errors import ConfigError
from detent.evals.comparing import Comparison
from detent.evals.reports import Evaluation, Figures
from detent.evals.statistics import Interval
from detent.evals.trials import Trial
from detent.expressions import compiled
from detent.expressions.display import as_text, clean

MOST_ROWS, MOST_TRANSCRIPTS = 20_000, 300
_K = re.compile(r"pass_(hat|at)\(\s*(\d+)\s*\)")


def share(of: Interval) -> str:
    """Return a proportion with its interval, in per cent."""
    if of.value is None:
        return "unknown"
    if of.low is None or of.high is None:
        return f"{of.value:.1%}"
    return f"{of.value:.1%} ({max(0.0, of.low):.1%} to {min(1.0, of.high):.1%})"


def rows(of: Evaluation) -> list[tuple[str, ...]]:
    """Return the table of an evaluation: a head, and a row a variant."""
    found: list[tuple[str, ...]] = [("VARIANT", "TRIALS", "PASSED", "ALL OF K", "P95", "COST", "NOT GRADED")]
    for name, figures in of.figures.items():
        k = max(figures.pass_hat, default=0)
        hat = f"pass^{k} {share(figures.pass_hat[k])}" if k else ""
        left = figures.unknown + figures.machinery + figures.open
        cost = f"{figures.total_cost_usd:.4f} USD" if figures.total_cost_usd else ""
        p95 = f"{figures.latency_s['p95']:.2f} s" if figures.latency_s else ""
        found.append((name or "-", str(figures.trials), share(figures.passed), hat, p95, cost, str(left) if left else ""))
    return found


def markdown(of: Evaluation) -> str:
    """Return the evaluation as Markdown."""
    head, *body = rows(of)
    lines = [f"# {_cell(of.suite)}", "", f"{len(of.trials)} trials, {of.at:%Y-%m-%d %H:%M} UTC.", "", _row(head), _row(["---"] * len(head))]
    lines += [_row(one) for one in body]
    failed = [trial for trial in of.trials if trial.standing == "failed"]
    if failed:
        lines += ["", "## What failed", "", _row(("case", "variant", "trial", "why", "run")), _row(["---"] * 5)]
        lines += [_row((t.case, t.variant or "-", str(t.number), why(t), t.run_id)) for t in failed[:200]]
    return "\n".join(lines) + "\n"


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(map(_cell, cells)) + " |"


def _cell(text: str) -> str:
    return re.sub(r"([\\`*_\[\]<>|])", r"\\\1", clean(text)) if text != "---" else text


def why(trial: Trial) -> str:
    """Return why a trial did not pass, in one line."""
    said = next((f"{grade.grader}: {grade.reason}" for grade in trial.grades if grade.verdict != "passed" and grade.required), "")
    return said or trial.error or trial.reason or trial.status


def junit(of: Evaluation) -> bytes:
    """Return the evaluation as JUnit's XML: a test case for each trial; what is not graded is an error, no failure."""
    root = ET.Element("testsuites")
    for name in of.figures:
        trials = [trial for trial in of.trials if trial.variant == name]
        counts = {
            "failures": sum(t.standing == "failed" for t in trials),
            "errors": sum(t.standing not in ("passed", "failed") for t in trials),
        }
        told = {
            "name": _xml(f"{of.suite} {name}".strip()),
            "tests": str(len(trials)),
            **{kind: str(count) for kind, count in counts.items()},
        }
        suite = ET.SubElement(root, "testsuite", told)
        for trial in trials:
            case = ET.SubElement(suite, "testcase", classname=_xml(trial.case), name=f"trial {trial.number}", time=f"{trial.latency_s:.3f}")
            if trial.standing != "passed":
                kind = "failure" if trial.standing == "failed" else "error"
                ET.SubElement(case, kind, message=_xml(why(trial)), type=trial.standing).text = _xml(f"run {trial.run_id}")
    return ET.tostring(root, encoding="utf-8", xml_declaration=True)


def _xml(text: str) -> str:
    return re.sub(r"[^\t\n\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]", "?", text)


def html(of: Evaluation, comparison: Comparison | None = None) -> str:
    """Return the evaluation as one HTML page. Raise `ConfigError` without the extra `evals`."""
    try:
        from jinja2 import Environment, FileSystemLoader, StrictUndefined
    except ImportError as error:
        raise ConfigError("the HTML report needs the extra: pip install 'detent[evals]'") from error
    made: Any = Environment(
        loader=FileSystemLoader(Path(__file__).parent), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    made.filters |= {"share": share, "why": why, "text": as_text, "clean": clean}
    told = [t for t in of.trials if t.standing != "passed"][:MOST_TRANSCRIPTS]
    return made.get_template("report.html").render(
        ks=sorted({k for one in of.figures.values() for k in one.pass_hat})[:8],
        of=of,
        comparison=comparison,
        cells=_cells(of),
        points=_points(of),
        bars=_bars(of),
        told=told,
        trials=of.trials[:MOST_ROWS],
    )


def _cells(of: Evaluation) -> list[tuple[str, list[tuple[int, int, float | None]]]]:
    """Return the matrix: for each case how many of its trials passed, by variant."""
    counts: dict[tuple[str, str], tuple[int, int]] = {}
    for trial in of.trials:
        right, graded = counts.get((trial.case, trial.variant), (0, 0))
        graded += trial.standing in ("passed", "failed")
        counts[trial.case, trial.variant] = right + (trial.standing == "passed"), graded
    cases = dict.fromkeys(trial.case for trial in of.trials)
    found: list[tuple[str, list[tuple[int, int, float | None]]]] = []
    for case in cases:
        row = [counts.get((case, name), (0, 0)) for name in of.figures]
        found.append((case, [(right, graded, right / graded if graded else None) for right, graded in row]))
    return found


def _points(of: Evaluation) -> list[dict[str, Any]]:
    """Return cost against pass^k, a point a variant, in units of a square of 100."""
    most = max((f.cost_usd.value or 0.0 for f in of.figures.values()), default=0.0) or 1.0
    found: list[dict[str, Any]] = []
    for name, figures in of.figures.items():
        k = max((k for k, one in figures.pass_hat.items() if one.value is not None), default=0)
        if k:
            value, cost = figures.pass_hat[k].value or 0.0, figures.cost_usd.value or 0.0
            found.append(
                {
                    "name": name or "-",
                    "x": round(5 + 85 * cost / most, 1),
                    "y": round(95 - 90 * value, 1),
                    "k": k,
                    "value": value,
                    "cost": cost,
                }
            )
    return found


def _bars(of: Evaluation) -> list[dict[str, Any]]:
    """Return the distribution of durations, by variant, in twenty parts."""
    found: list[dict[str, Any]] = []
    for name in of.figures:
        values = [t.latency_s for t in of.trials if t.variant == name and t.standing in ("passed", "failed", "unknown")]
        top = max(values, default=0.0) or 1.0
        counts = [0] * 20
        for value in values:
            counts[min(19, int(20 * value / top))] += 1
        high = max(counts) or 1
        found.append({"name": name or "-", "top": top, "heights": [round(38 * count / high, 1) for count in counts], "counts": counts})
    return found


# What it must reach -----------------------------------------------------------------------------------------------------------------------


def required(source: str, figures: Figures) -> bool:
    """Return whether an expression over the figures of a variant is true, such as `pass_hat(3) >= 0.9 && p95_s < 20`. What is unknown is not true.

    It may use pass_hat(K), pass_at(K), passed, p50_s, p95_s, p99_s, cost_usd (of a trial), total_cost_usd, turns, tokens, trials, graded, unknown,
    machinery and open. Raises `ConfigError` for an expression that cannot be read.
    """
    wanted = {(kind, int(k)) for kind, k in _K.findall(source)}
    known: dict[str, Any] = {
        "passed": figures.passed.value, "cost_usd": figures.cost_usd.value, "total_cost_usd": figures.total_cost_usd, "turns": figures.turns.value,
        "tokens": figures.tokens.value, "trials": figures.trials, "graded": figures.graded, "unknown": figures.unknown, "machinery": figures.machinery,
        "open": figures.open, **{f"p{p}_s": figures.latency_s.get(f"p{p}") for p in (50, 95, 99)},
    }  # fmt: skip
    for kind, k in wanted:
        of = figures.pass_hat if kind == "hat" else figures.pass_at
        known[f"pass_{kind}_{k}"] = of[k].value if k in of else None
    names = compiled.Names(variables=tuple(known), members={})
    expression = compiled.compile_expression(_K.sub(r"pass_\1_\2", source), where="--require", names=names)
    try:
        return compiled.evaluate(expression, lambda name, _: known[name]) is True
    except compiled.ExpressionFailed:
        return False
