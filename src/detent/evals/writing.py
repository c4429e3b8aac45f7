"""An evaluation as text: for a terminal, as Markdown, as JUnit's XML, and as one HTML file that needs no network; and what it must reach."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

from detent.core.errors import ConfigError
from detent.evals.comparing import Comparison, Difference
from detent.evals.deciding import K_OF
from detent.evals.grades import Agreement
from detent.evals.reports import Evaluation, Figures, figures_of
from detent.evals.statistics import Interval
from detent.evals.transcripts import Transcript, bounded
from detent.evals.trials import Trial
from detent.expressions import compiled
from detent.expressions.display import clean

MOST_ROWS, MOST_TRANSCRIPTS, MOST_CHANGED = 20_000, 1_000, 100
SKIPPED = ("cancelled", "not_run")


def share(of: Interval) -> str:
    """Return a proportion with its interval, in per cent."""
    if of.value is None:
        return "unknown"
    if of.low is None or of.high is None:
        return f"{of.value:.1%}"
    return f"{of.value:.1%} ({max(0.0, of.low):.1%} to {min(1.0, of.high):.1%})"


def rows(of: Evaluation) -> list[tuple[str, ...]]:
    """Return the table of an evaluation: a head, and a row a variant; with a column about simulated users where there are any."""
    found: list[tuple[str, ...]] = [("VARIANT", "TRIALS", "PASSED", "ALL OF K", "P95", "COST", "NOT GRADED")]
    for name, figures in of.figures.items():
        cost = f"{figures.total_cost_usd:.4f} USD" if figures.total_cost_usd else ""
        p95 = f"{figures.latency_s['p95']:.2f} s" if figures.latency_s else ""
        found.append((name or "-", str(figures.trials), share(figures.passed), all_of_k(figures), p95, cost, not_graded(figures)))
    if any(figures.users for figures in of.figures.values()):
        last = ("USERS", *(users(figures) for figures in of.figures.values()))
        found = [(*row, cell) for row, cell in zip(found, last, strict=True)]
    return found


def users(of: Figures) -> str:
    """Return how the simulated users of a variant did, and what they cost, "" without any."""
    told = [f"{name.replace('_', ' ')} {found.get('passed', 0)} of {sum(found.values())}" for name, found in of.users.items()]
    return ", ".join(told + ([f"{of.users_cost_usd:.4f} USD"] if of.users_cost_usd else []))


NOT_GRADED = ("unknown", "machinery", "open", "cancelled", "not_run")


def not_graded(figures: Figures) -> str:
    """Return how many trials were not graded, and why, in words."""
    counts = {name: getattr(figures, name) for name in NOT_GRADED}
    return ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in counts.items() if count)


def all_of_k(figures: Figures) -> str:
    """Return pass^k for the largest k, with its interval."""
    k = max(figures.pass_hat, default=0)
    return f"pass^{k} {share(figures.pass_hat[k])}" if k else ""


def fault_rows(of: Evaluation) -> list[tuple[str, ...]]:
    """Return the table of what faults did: a head, and a row a variant with faults; nothing if there is none."""
    found: list[tuple[str, ...]] = []
    for name, figures in of.figures.items():
        if (under := figures.under) is not None:
            more = [more_of(under.more[what], of=unit) for what, unit in (("turns", ""), ("cost_usd", "USD"), ("seconds", "s"))]
            repeated, lost = ("unknown" if count is None else str(count) for count in (under.repeated, under.lost))
            found.append((name or "-", f"{under.struck} of {figures.trials}", repeated, lost, *more))
    return [("UNDER", "STRUCK", "REPEATED", "LOST", "MORE TURNS", "MORE COST", "MORE TIME"), *found] if found else []


def more_of(value: Interval, *, of: str) -> str:
    """Return a difference with its interval, in this unit."""
    if value.value is None:
        return "unknown"
    places = {"USD": 5, "s": 1}.get(of, 2)
    told, *ends = (f"{round(one, places) + 0.0:+.{places}f}" for one in (value.value, value.low, value.high) if one is not None)
    if {told, *ends} == {f"{0:+.{places}f}"}:
        return "0"
    return f"{told}{f' {of}' if of else ''}" + (f" ({' to '.join(ends)})" if ends else "")


def wrong(figures: Figures) -> bool:
    """Return whether faults repeated or lost effects of a variant."""
    return figures.under is not None and bool(figures.under.repeated or figures.under.lost)


Compared = tuple[Comparison, Evaluation]
"""A comparison, and the earlier result that the one that is written was compared with."""


def markdown(of: Evaluation, compared: Compared | None = None) -> str:
    """Return the evaluation as Markdown, with the comparison if there is one."""
    lines = [f"# {_cell(of.suite)}", "", f"{len(of.trials)} trials, {of.at:%Y-%m-%d %H:%M} UTC.", ""]
    for head, *body in filter(None, (rows(of), fault_rows(of))):
        lines += [_row(head), _row(["---"] * len(head)), *map(_row, body), ""]
    if bad := [line for figures in of.figures.values() if figures.under for line in figures.under.wrong]:
        lines += ["## Effects repeated or lost", "", *(f"- {_cell(line)}" for line in bad), ""]
    lines.pop()
    if compared is not None:
        found, _ = compared
        told = [(one.metric, difference(one), f"{one.p:.3g}", one.word) for one in found.metrics]
        lines += ["", "## Compared", "", _cell(f"{found.told}.".capitalize()), ""]
        lines += [_row(("metric", "difference, b - a", "p, corrected", "verdict")), _row(["---"] * 4), *map(_row, told)]
        for name, cases in (
            ("Gained", found.gained),
            ("Lost", found.lost),
            ("Not compared, because one has no graded trial", found.left_out),
        ):
            lines += ["", f"{name}: {_cell(', '.join(cases[:200]))}"] if cases else []
    if judges := judged(of):
        lines += ["", "## Judges", "", _row(JUDGED), _row(["---"] * len(JUDGED)), *map(_row, judges)]
    failed = [trial for trial in of.trials if trial.standing == "failed"]
    if failed:
        lines += ["", "## What failed", "", _row(("case", "variant", "trial", "why", "run")), _row(["---"] * 5)]
        lines += [_row((t.case, t.variant or "-", str(t.number), why(t), t.run_id)) for t in failed[:200]]
    return "\n".join(lines) + "\n"


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(map(_cell, cells)) + " |"


def _cell(text: str) -> str:
    return re.sub(r"([\\`*_\[\]<>|#!&~@$]|:(?=//)|(?<=www)\.)", r"\\\1", clean(text)) if text != "---" else text


JUDGED = ("VARIANT", "GRADER", "JUDGE", "WITH PEOPLE", "WITH ITSELF", "AMONG JUDGES", "VERDICTS", "COST")


def judged(of: Evaluation) -> list[tuple[str, ...]]:
    """Return the table of judges: a row for each judge of each grader. Their cost is not the agent's."""
    found: list[tuple[str, ...]] = []
    for name, figures in of.figures.items():
        for grader, judging in figures.judges.items():
            cost = f"{judging.cost_usd:.4f} USD, {judging.measuring_usd:.4f} to measure"
            samples = "" if judging.itself is None else f"{judging.itself:.0%} of samples agree"
            for one in judging.measured:
                people = "not measured" if one.people is None else kappa(one.people)
                itself = samples if one.itself is None else kappa(one.itself)
                among = "" if judging.between is None else kappa(judging.between)
                found.append((name or "-", grader, one.judge, people, itself, among, str(judging.verdicts), cost))
    return found


def kappa(of: Agreement) -> str:
    """Return an agreement in words."""
    shown = "unknown" if of.kappa is None else f"{of.kappa:.2f}"
    return f"{of.share:.0%} agree, kappa {shown} of {of.count} (base rate {of.base_rate:.0%})"


def difference(of: Difference) -> str:
    """Return how one metric differs, with its interval."""
    one = of.difference
    if one.value is None:
        return "unknown"
    return f"{one.value:+.4g}" if one.low is None or one.high is None else f"{one.value:+.4g} ({one.low:+.4g} to {one.high:+.4g})"


def why(trial: Trial) -> str:
    """Return why a trial did not pass, in one line."""
    said = next((f"{grade.grader}: {grade.reason}" for grade in trial.grades if grade.verdict != "passed" and grade.required), "")
    return said or trial.error or trial.reason or trial.status or trial.standing.replace("_", " ")


def junit(of: Evaluation) -> bytes:
    """Return the evaluation as JUnit's XML: a test case for each trial; what is not graded is an error, no failure, and what was not run is skipped."""
    root = ET.Element("testsuites")
    for name in of.figures:
        trials = [trial for trial in of.trials if trial.variant == name]
        counts = {
            "failures": sum(t.standing == "failed" for t in trials),
            "errors": sum(t.standing in ("unknown", "machinery", "open") for t in trials),
            "skipped": sum(t.standing in SKIPPED for t in trials),
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
                kind = "failure" if trial.standing == "failed" else "skipped" if trial.standing in SKIPPED else "error"
                ET.SubElement(case, kind, message=_xml(why(trial)), type=trial.standing).text = _xml(f"run {trial.run_id}")
    return ET.tostring(root, encoding="utf-8", xml_declaration=True)


def _xml(text: str) -> str:
    """Return text without what XML cannot have, or what would disguise it: `clean` writes all of that as escapes."""
    return clean(text)


def html(of: Evaluation, transcripts: Mapping[str, Transcript] | None = None, compared: Compared | None = None) -> str:
    """Return the evaluation as one HTML page that needs no network. Raise `ConfigError` without the extra `evals`.

    `transcripts` are those of its trials by run, and of the earlier result where two are `compared`.
    """
    try:
        from jinja2 import Environment, FileSystemLoader, StrictUndefined
    except ImportError as error:
        raise ConfigError("the HTML report needs the extra: pip install 'detent[evals]'") from error
    made: Any = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_shown,
    )
    made.filters |= {
        "share": share,
        "not_graded": not_graded,
        "why": why,
        "users": users,
        "text": bounded,
        "kappa": kappa,
        "difference": difference,
    }
    disturbed = [figures for figures in of.figures.values() if figures.under]
    faults = [(row, all_of_k(figures), wrong(figures)) for row, figures in zip(fault_rows(of)[1:], disturbed, strict=True)]
    told = transcripts or {}
    ordered = sorted((trial for trial in of.trials if trial.standing != "not_run"), key=lambda trial: trial.standing == "passed")
    return made.get_template("report.html").render(
        played=any(one.users for one in of.figures.values()),
        ks=sorted({k for one in of.figures.values() for k in one.pass_hat if k > 1})[:8],
        of=of,
        faults=faults,
        fault_head=[name.capitalize() for name in (fault_rows(of) or [()])[0]],
        comparison=compared[0] if compared else None,
        before=compared[1] if compared else None,
        changed=_changed(of, *compared) if compared else (),
        cells=_cells(of, compared[1] if compared else None),
        points=_points(of),
        bars=_bars(of),
        judges=judged(of),
        judge_head=JUDGED,
        told=[(one, told.get(one.run_id)) for one in ordered if one.run_id in told or one.standing != "passed"][:MOST_TRANSCRIPTS],
        transcripts=told,
        trials=of.trials[:MOST_ROWS],
    )


def _changed(b: Evaluation, comparison: Comparison, a: Evaluation) -> list[dict[str, Any]]:
    """Return the cases that came out otherwise: how often each passed, and an answer of both with what differs between them."""
    found: list[dict[str, Any]] = []
    for case in (*comparison.lost, *comparison.gained)[:MOST_CHANGED]:
        pair = [[one for one in of.trials if one.case == case and one.standing in ("passed", "failed")] for of in (a, b)]
        wanted = "failed" if case in comparison.lost else "passed"
        other = "passed" if wanted == "failed" else "failed"
        one = next((t for t in pair[0] if t.standing == other), pair[0][0])
        two = next((t for t in pair[1] if t.standing == wanted), pair[1][0])
        counts = [f"{sum(t.standing == 'passed' for t in them)} of {len(them)}" for them in pair]
        parts = _differing(bounded(one.output), bounded(two.output))
        found.append({"case": case, "lost": wanted == "failed", "counts": counts, "a": one, "b": two, "parts": parts})
    return found


def _shown(value: Any) -> Any:
    """Return a value as the page writes it: text cleaned; what the template made itself stays."""
    return clean(value, lines=True) if isinstance(value, str) and not hasattr(value, "__html__") else value


def _differing(a: str, b: str) -> list[tuple[str, str]]:
    """Return two texts as parts, word by word: `same`, `gone` or `new`."""
    one, two = (re.findall(r"\s+|[^\s]+", text) for text in (a, b))
    found: list[tuple[str, str]] = []
    for kind, a0, a1, b0, b1 in SequenceMatcher(None, one, two, autojunk=False).get_opcodes():
        if kind == "equal":
            found.append(("same", "".join(one[a0:a1])))
            continue
        found += [(name, text) for name, text in (("gone", "".join(one[a0:a1])), ("new", "".join(two[b0:b1]))) if text]
    return found


Cell = tuple[int, int, float | None]


def _cells(of: Evaluation, before: Evaluation | None = None) -> list[tuple[str, list[Cell]]]:
    """Return the matrix: for each case how many of its trials passed, by variant; with an earlier result its variants come first."""
    columns: list[dict[str, tuple[int, int]]] = []
    for one in (before, of) if before is not None else (of,):
        by_variant: dict[str, dict[str, tuple[int, int]]] = {name: {} for name in one.figures}
        for trial in one.trials:
            right, graded = by_variant[trial.variant].get(trial.case, (0, 0))
            by_variant[trial.variant][trial.case] = (
                right + (trial.standing == "passed"),
                graded + (trial.standing in ("passed", "failed")),
            )
        columns += by_variant.values()
    found: list[tuple[str, list[Cell]]] = []
    for case in dict.fromkeys(trial.case for trial in of.trials):
        row = [column.get(case, (0, 0)) for column in columns]
        found.append((case, [(right, graded, right / graded if graded else None) for right, graded in row]))
    return found


def _points(of: Evaluation) -> list[dict[str, Any]]:
    """Return cost against pass^k, a point a variant with its interval, in units of a square of 100."""
    most = max((f.cost_usd.value or 0.0 for f in of.figures.values()), default=0.0) or 1.0
    found: list[dict[str, Any]] = []
    for name, figures in of.figures.items():
        k = max((k for k, one in figures.pass_hat.items() if one.value is not None), default=0)
        if k:
            hat, cost = figures.pass_hat[k], figures.cost_usd.value or 0.0
            value = hat.value or 0.0
            low, high = (value if end is None else min(1.0, max(0.0, end)) for end in (hat.low, hat.high))
            found.append(
                {
                    "name": name or "-",
                    "x": round(14 + 78 * cost / most, 1),
                    **{key: round(88 - 82 * share, 1) for key, share in (("y", value), ("low", low), ("high", high))},
                    "k": k,
                    "value": value,
                    "cost": cost,
                    "most": most,
                }
            )
    return found


PARTS = 20


def _bars(of: Evaluation) -> list[dict[str, Any]]:
    """Return the distributions of durations, turns and costs, by variant, in twenty parts up to the highest of all variants."""
    found: list[dict[str, Any]] = []
    ended = [trial for trial in of.trials if trial.standing in ("passed", "failed", "unknown")]
    for what, field, unit in (("Durations", "latency_s", "s"), ("Turns", "turns", ""), ("Costs", "cost_usd", "USD")):
        top = max((float(getattr(trial, field)) for trial in ended), default=0.0)
        if not top:
            continue
        for name in of.figures:
            counts = [0] * PARTS
            for trial in ended:
                if trial.variant == name:
                    counts[max(0, min(PARTS - 1, int(PARTS * (getattr(trial, field) / top))))] += 1
            high = max(counts) or 1
            found.append(
                {
                    "what": what if name == "" else f"{what}: {name}",
                    "top": f"{top:.4g} {unit}".strip(),
                    "bars": [(round(36 * count / high, 1), count) for count in counts],
                }
            )
    return found


# What it must reach -----------------------------------------------------------------------------------------------------------------------


def required(source: str, figures: Figures) -> bool:
    """Return whether an expression over the figures of a variant is true, such as `pass_hat(3) >= 0.9 && p95_s < 20`. What is unknown is not true.

    It may use pass_hat(K), pass_at(K), passed, p50_s, p95_s, p99_s, cost_usd (of a trial), total_cost_usd, turns, tokens, trials, graded, unknown,
    machinery, open, cancelled, not_run and judges_cost_usd; and of faults repeated, lost, struck, more_turns, more_cost_usd and more_s, which are 0 for a
    variant without faults. Raises `ConfigError` for an expression that cannot be read.
    """
    wanted = {(kind, int(k)) for kind, k in K_OF.findall(source)}
    known: dict[str, Any] = {
        "passed": figures.passed.value, "cost_usd": figures.cost_usd.value, "total_cost_usd": figures.total_cost_usd, "turns": figures.turns.value,
        "tokens": figures.tokens.value, "trials": figures.trials, "graded": figures.graded, "unknown": figures.unknown, "machinery": figures.machinery,
        "open": figures.open, "cancelled": figures.cancelled, "not_run": figures.not_run, **_under(figures),
        "judges_cost_usd": sum(one.cost_usd for one in figures.judges.values()), **{f"p{p}_s": figures.latency_s.get(f"p{p}") for p in (50, 95, 99)},
    }  # fmt: skip
    for kind, k in wanted:
        of = figures.pass_hat if kind == "hat" else figures.pass_at
        known[f"pass_{kind}_{k}"] = of[k].value if k in of else None
    names = compiled.Names(variables=tuple(known), members={})
    expression = compiled.compile_expression(K_OF.sub(r"pass_\1_\2", source), where="--require", names=names)
    try:
        return compiled.evaluate(expression, lambda name, _: known[name]) is True
    except compiled.ExpressionFailed:
        return False


def check_required(source: str) -> None:
    """Raise `ConfigError` for what `required` cannot read; "" requires nothing."""
    if source:
        required(source, figures_of("", []))


def _under(figures: Figures) -> dict[str, Any]:
    """Return what an expression may use of the faults of a variant."""
    under = figures.under
    if under is None:
        return {"repeated": 0, "lost": 0, "struck": 0, "more_turns": 0.0, "more_cost_usd": 0.0, "more_s": 0.0}
    more = {f"more_{name}": under.more[what].value for name, what in (("turns", "turns"), ("cost_usd", "cost_usd"), ("s", "seconds"))}
    return {"repeated": under.repeated, "lost": under.lost, "struck": under.struck, **more}
