"""Shows the result of an evaluation, writes it, and says whether it is what was required."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from detent.cli.evaluation_options import Which
from detent.cli.invocation import Invocation
from detent.cli.output import clean
from detent.core.errors import ConfigError
from detent.expressions.display import shortened

if TYPE_CHECKING:
    from detent.evals import Comparison, Evaluation
    from detent.evals.transcripts import Transcript
    from detent.evals.trials import Trial

FORMATS = (".json", ".md", ".xml", ".html")


def tell(found: Evaluation, invocation: Invocation, which: Which) -> int:
    """Show an evaluation, write it, and return whether it is what is required."""
    from detent.evals import writing

    output = invocation.output
    place = Path("evals")
    for path in which.out or ((place / f"{found.id}.json",) if found.id else ()):
        _write(found, path, _transcripts(found.trials, path, invocation))
        output.say(f"written: {path}")
    output.document(msgspec.to_builtins(found))
    head, *rows = writing.rows(found)
    output.table(head, rows, [""] * len(rows))
    if judges := writing.judged(found):
        output.table(writing.JUDGED, judges, [""] * len(judges))
    if disturbed := [figures for figures in found.figures.values() if figures.under is not None]:
        head, *rows = writing.fault_rows(found)
        output.table(head, rows, ["red" if writing.wrong(figures) else "" for figures in disturbed])
        for line in [line for figures in disturbed if figures.under for line in figures.under.wrong][:10]:
            output.say(clean(line), "red")
    for trial in [one for one in found.trials if one.standing not in ("passed", "not_run", "cancelled")][:10]:
        column = f", {trial.variant}" if trial.variant else ""
        output.say(f"{trial.standing}: {clean(trial.case + column)}, trial {trial.number}: {shortened(writing.why(trial), 200)}")
        output.say(f"  {invocation.command('show', trial.run_id)}")
    if which.require is None:
        return 0
    short = [name or "-" for name, figures in found.figures.items() if not writing.required(which.require, figures)]
    if short or not found.figures:
        output.say(f"not reached by {', '.join(map(clean, short)) or 'anything'}: {clean(which.require)}", "red")
        return 1
    output.say(f"reached: {clean(which.require)}", "green")
    return 0


def compare(paths: Sequence[str], which: Which, invocation: Invocation) -> int:
    """Compare two results, or variants of them; show and write how they differ, and return whether the second one is not worse."""
    from detent.evals import compare

    a, b = map(_variant_of, paths)
    margins = {"margin": which.margin, "cost_margin": which.cost_margin}
    found = compare(a.trials, b.trials, **{name: value for name, value in margins.items() if value is not None})
    output = invocation.output
    for path in which.out or ():
        _write(b, path, _transcripts([*a.trials, *b.trials], path, invocation), compared=(found, a))
        output.say(f"written: {path}")
    output.document(msgspec.to_builtins(found))
    output.show(found.told, {"better": "green", "worse": "red"}.get(found.word, "yellow"))
    rows = [(one.metric, _about(one.difference.value), f"{one.p:.3g}", "yes" if one.not_worse else "", one.word) for one in found.metrics]
    output.table(("METRIC", "DIFFERENCE", "P", "WITHIN MARGIN", "VERDICT"), rows, [""] * len(rows))
    for name, cases in (("gained", found.gained), ("lost", found.lost), ("not compared, because one has no graded trial", found.left_out)):
        if cases:
            output.say(f"{name}: {clean(', '.join(cases[:40]))}")
    return 1 if found.word == "worse" else 0


def _about(value: float | None) -> str:
    return "unknown" if value is None else f"{value:+.4g}"


def _variant_of(named: str) -> Evaluation:
    """Return a result, or what one variant of it has: FILE#VARIANT."""
    from detent.evals import Evaluation

    path, _, variant = (named, "", "") if Path(named).exists() else named.rpartition("#")
    found = Evaluation.read(Path(path or named))
    if not variant:
        return found
    if variant not in found.figures:
        raise ConfigError(f"{path} has no variant {variant!r}; it has {', '.join(found.figures)}")
    trials = tuple(trial for trial in found.trials if trial.variant == variant)
    return msgspec.structs.replace(found, trials=trials, figures={variant: found.figures[variant]})


def _transcripts(trials: Sequence[Trial], path: Path, invocation: Invocation) -> dict[str, Transcript]:
    """Return the transcripts of trials for a report that shows them, as far as the store has their runs."""
    from detent.evals.transcripts import transcripts

    if path.suffix.lower() != ".html":
        return {}
    return invocation.drive(lambda engine: transcripts(engine, trials), missing={})


def check_out(paths: Sequence[Path], ends: Sequence[str] = FORMATS) -> None:
    """Raise `ConfigError` for a file that cannot be written, before anything runs."""
    for path in paths:
        if path.suffix.lower() not in ends:
            raise ConfigError(f"--out {path}: give a file that ends in {', '.join(ends)}")
        if path.suffix.lower() == ".html" and find_spec("jinja2") is None:
            raise ConfigError(f"--out {path}: the HTML report needs the extra: pip install 'detent[evals]'")


def _write(found: Evaluation, path: Path, told: dict[str, Transcript], compared: tuple[Comparison, Evaluation] | None = None) -> None:
    from detent.evals import writing

    check_out([path])
    makers: dict[str, Callable[[], bytes]] = {
        ".json": lambda: msgspec.json.format(msgspec.json.encode(found if compared is None else compared[0]), indent=1),
        ".md": lambda: writing.markdown(found, compared).encode(),
        ".html": lambda: writing.html(found, told, compared).encode(),
        ".xml": lambda: writing.junit(found),
    }
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(makers[path.suffix.lower()]())
    except OSError as error:
        raise ConfigError(f"--out {path} cannot be written: {error}") from error
