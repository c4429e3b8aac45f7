"""The command eval: run a suite, continue one that was killed, grade stored runs, compare two results, write reports."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from detent.cli import options as o
from detent.cli.governance import selection
from detent.cli.invocation import Invocation
from detent.cli.output import clean
from detent.core.errors import ConfigError
from detent.engine import Engine
from detent.expressions.display import counted, shortened
from detent.running.starting import know

if TYPE_CHECKING:
    from detent.evals import Evaluation, Suite
    from detent.evals.trials import Trial

FIGURES = "passed, pass_hat(K), pass_at(K), p50_s, p95_s, p99_s, cost_usd, total_cost_usd, turns, tokens, graded, unknown, machinery, open"


class Action(StrEnum):
    """What to do."""

    RUN = "run"
    RESUME = "resume"
    GRADE = "grade"
    COMPARE = "compare"
    REPORT = "report"
    FROM_RUNS = "from-runs"


def evaluate(
    action: Annotated[
        Action, typer.Argument(metavar="ACTION", help="run, resume, grade, compare, report or from-runs.", show_default=False)
    ],
    target: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[FILE]...", help="The suite; for compare two results, for report one; for resume nothing.", show_default=False
        ),
    ] = None,
    *,
    agent: Annotated[
        list[str] | None, typer.Option("--agent", metavar="FILE", help="An agent that variants name, or the only one. Repeatable.")
    ] = None,
    trials: Annotated[
        int | None, typer.Option("--trials", metavar="N", help="How often each case is tried. Default: as the suite says.", min=1)
    ] = None,
    limit: Annotated[int | None, typer.Option("--limit", metavar="N", help="Only the first N cases.", min=1)] = None,
    tag: Annotated[list[str] | None, typer.Option("--tag", metavar="TAG", help="Only cases with this tag. Repeatable.")] = None,
    only_failed: Annotated[
        Path | None, typer.Option("--only-failed", metavar="RESULT", help="Only the cases that failed in this result.")
    ] = None,
    runs: Annotated[
        str,
        typer.Option("--runs", metavar="FILTER", help="With grade and from-runs: prefixes of ids, or status=, agent=, since=; by commas."),
    ] = "",
    parallel: Annotated[int, typer.Option("--parallel", metavar="N", help="How many trials at once.", min=1)] = 8,
    require: Annotated[
        str | None, typer.Option("--require", metavar="EXPR", help=f"Exit with 1 unless it is true of every variant. It may use {FIGURES}.")
    ] = None,
    out: Annotated[
        list[Path] | None,
        typer.Option(
            "--out", metavar="FILE", help="Write the result: .json, .md, .xml (JUnit) or .html. Repeatable. Default: evals/ID.json."
        ),
    ] = None,
    setup: o.Setup,
) -> int:
    """Evaluate agents: run a suite of cases many times, grade every trial, and say what may be believed.

    Every trial is an ordinary run. `detent eval resume` continues an evaluation that was killed: no finished trial is run or paid for again. `grade`
    judges runs that the store has, `from-runs` makes cases of them, `compare` says in one word whether the second result is better.
    """
    given = target or []
    wanted = _Wanted(
        agents=agent or (),
        trials=trials,
        limit=limit,
        tags=tag or (),
        failed=only_failed,
        runs=runs,
        parallel=parallel,
        require=require,
        out=out or (),
    )
    match action:
        case Action.COMPARE:
            return _compare(_named(given, 2, "the two results to compare: detent eval compare a.json b.json"), setup)
        case Action.REPORT:
            return _report(_named(given, 1, "the result: detent eval report evals/ID.json --out report.html")[0], wanted, setup)
        case Action.FROM_RUNS:
            return _from_runs(wanted, setup)
        case Action.GRADE:
            return _grade(_named(given, 1, "the suite with the graders: detent eval grade suite.toml --runs agent=clerk")[0], wanted, setup)
        case Action.RESUME:
            return _resume(wanted, setup)
        case Action.RUN:
            return _run(Path(_named(given, 1, "the suite: detent eval run suite.toml")[0]), wanted, setup)


class _Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """The options of the command."""

    agents: Sequence[str] = ()
    trials: int | None = None
    limit: int | None = None
    tags: Sequence[str] = ()
    failed: Path | None = None
    runs: str = ""
    parallel: int = 8
    require: str | None = None
    out: Sequence[Path] = ()


class _Begun(msgspec.Struct, frozen=True, kw_only=True):
    """What an evaluation needs to continue: its suite as it was, and its agents."""

    id: str
    suite: dict[str, Any]
    agents: tuple[str, ...]
    require: str | None = None


def _named(given: list[str], many: int, what: str) -> list[str]:
    if len(given) != many:
        raise ConfigError(f"name {what}")
    return given


def _run(path: Path, wanted: _Wanted, setup: o.Setup) -> int:
    from detent.evals import Evaluation, load_suite

    invocation = _invocation(setup)
    _ = invocation.engine  # refuses a directory that is not trusted before it reads anything in it
    suite = load_suite(path)
    failed = None if wanted.failed is None else [t.case for t in Evaluation.read(wanted.failed).trials if t.standing != "passed"]
    suite = suite.only(limit=wanted.limit, tags=wanted.tags, ids=failed)
    if not suite.cases:
        raise ConfigError("no case is left; --limit, --tag and --only-failed leave none")
    if wanted.trials is not None:
        suite = msgspec.structs.replace(suite, trials=wanted.trials)
    named = f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(3)}"
    begun = _Begun(id=named, suite=msgspec.to_builtins(suite), agents=tuple(wanted.agents), require=wanted.require)
    place = _folder()
    place.mkdir(exist_ok=True)
    (place / f"{named}.open").write_bytes(msgspec.json.encode(begun))
    return _go_on(begun, suite, invocation, wanted)


def _resume(wanted: _Wanted, setup: o.Setup) -> int:
    from detent.evals import Suite

    left = sorted(_folder().glob("*.open"))
    if not left:
        raise ConfigError("no evaluation of this directory was left open; start one: detent eval run suite.toml")
    try:
        begun = msgspec.json.decode(left[-1].read_bytes(), type=_Begun)
        suite = msgspec.convert(begun.suite, Suite)
    except (OSError, msgspec.DecodeError) as error:
        raise ConfigError(f"{left[-1]} cannot be read ({error}); remove it, and start again") from error
    return _go_on(begun, suite, _invocation(setup), msgspec.structs.replace(wanted, require=wanted.require or begun.require))


def _go_on(begun: _Begun, suite: Suite, invocation: Invocation, wanted: _Wanted) -> int:
    from detent.evals import evaluate as evaluated
    from detent.evals import summarised

    count = len(suite.cases) * len(suite.variants) * suite.trials
    names = [*(invocation.config.agents or {}), *begun.agents]
    made = [invocation.agent(named=name) for name in names] or [invocation.agent()]
    known = {**dict(zip(names, made, strict=False)), **{one.name: one for one in made}}
    know(invocation.engine.runtime, made)
    invocation.output.say(f"{suite.name}: {counted(count, 'trial')}, evaluation {begun.id}; `detent eval resume` continues it")
    progress = _Progress(count, invocation)

    async def work(engine: Engine) -> list[Trial]:
        agents = {name: known[name] for name in known if name not in engine.agents}
        return await evaluated(
            engine,
            suite,
            id=begun.id,
            agents=agents if len(made) > 1 or begun.agents else {},
            concurrency=wanted.parallel,
            on_trial=progress,
        )

    found = summarised(suite.name, begun.id, invocation.drive(work))
    (_folder() / f"{begun.id}.open").unlink(missing_ok=True)
    return _tell(found, invocation, wanted)


class _Progress:
    """Says how far an evaluation is, now and then."""

    def __init__(self, count: int, invocation: Invocation) -> None:
        self._count, self._invocation = count, invocation
        self._done, self._passed, self._cost = 0, 0, 0.0
        self._begun = datetime.now(UTC)
        self._said = self._begun

    def __call__(self, trial: Trial) -> None:
        """Count a trial."""
        self._done += 1
        self._passed += trial.standing == "passed"
        self._cost += trial.cost_usd
        now = datetime.now(UTC)
        if (now - self._said).total_seconds() < 5 or self._done == self._count:
            return
        self._said = now
        left = (now - self._begun).total_seconds() / self._done * (self._count - self._done)
        self._invocation.output.say(f"{self._done} of {self._count}, {self._passed} passed, {self._cost:.4f} USD, about {left:.0f} s left")


def _tell(found: Evaluation, invocation: Invocation, wanted: _Wanted) -> int:
    """Show an evaluation, write it, and return whether it is what is required."""
    from detent.evals import writing

    output = invocation.output
    place = _folder()
    for path in wanted.out or ((place / f"{found.id}.json",) if found.id else ()):
        _write(found, path)
        output.say(f"written: {path}")
    output.document(msgspec.to_builtins(found))
    head, *rows = writing.rows(found)
    output.table(head, rows, [""] * len(rows))
    for trial in [one for one in found.trials if one.standing != "passed"][:10]:
        output.say(f"{trial.standing}: {clean(trial.case)}, trial {trial.number}: {shortened(writing.why(trial), 200)}")
        output.say(f"  {invocation.command('show', trial.run_id)}")
    if wanted.require is None:
        return 0
    short = [name or "-" for name, figures in found.figures.items() if not writing.required(wanted.require, figures)]
    if short or not found.figures:
        output.say(f"not reached by {', '.join(map(clean, short)) or 'anything'}: {clean(wanted.require)}", "red")
        return 1
    output.say(f"reached: {clean(wanted.require)}", "green")
    return 0


def _write(found: Evaluation, path: Path) -> None:
    from detent.evals import writing

    makers: dict[str, Callable[[], bytes]] = {
        ".json": lambda: msgspec.json.format(msgspec.json.encode(found), indent=1),
        ".md": lambda: writing.markdown(found).encode(),
        ".xml": lambda: writing.junit(found),
        ".html": lambda: writing.html(found).encode(),
    }
    make = makers.get(path.suffix.lower())
    if make is None:
        raise ConfigError(f"--out {path}: give a file that ends in {', '.join(makers)}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(make())
    except OSError as error:
        raise ConfigError(f"--out {path} cannot be written: {error}") from error


def _compare(paths: list[str], setup: o.Setup) -> int:
    from detent.evals import Evaluation, compare

    a, b = (Evaluation.read(Path(path)) for path in paths)
    found = compare(a.trials, b.trials)
    output = _invocation(setup).output
    output.document(msgspec.to_builtins(found))
    output.show(found.told, {"better": "green", "worse": "red"}.get(found.word, "yellow"))
    rows = [(one.metric, _about(one.difference.value), f"{one.p:.3g}", one.word) for one in found.metrics]
    output.table(("METRIC", "DIFFERENCE", "P", "VERDICT"), rows, [""] * len(rows))
    for name, cases in (("gained", found.gained), ("lost", found.lost)):
        if cases:
            output.say(f"{name}: {clean(', '.join(cases[:40]))}")
    return 1 if found.word == "worse" else 0


def _about(value: float | None) -> str:
    return "unknown" if value is None else f"{value:+.4g}"


def _report(path: str, wanted: _Wanted, setup: o.Setup) -> int:
    from detent.evals import Evaluation

    found = Evaluation.read(Path(path))
    return _tell(found, _invocation(setup), msgspec.structs.replace(wanted, out=wanted.out or (Path(path).with_suffix(".html"),)))


def _grade(path: str, wanted: _Wanted, setup: o.Setup) -> int:
    from detent.evals import grade_runs, load_suite, summarised

    suite = load_suite(Path(path))
    query, only = selection(wanted.runs)
    invocation = _invocation(setup)

    async def work(engine: Engine) -> list[Trial]:
        return await grade_runs(engine, suite.graders, query, only=only)

    found = summarised(suite.name, "", invocation.drive(work, missing=[]))
    return _tell(found, invocation, wanted)


def _from_runs(wanted: _Wanted, setup: o.Setup) -> int:
    from detent.evals.trials import cases_from

    query, only = selection(wanted.runs)
    invocation = _invocation(setup)

    async def work(engine: Engine) -> list[dict[str, Any]]:
        return await cases_from(engine, query, only=only)

    cases = invocation.drive(work, missing=[])
    text = "".join(f"{msgspec.json.encode(case).decode()}\n" for case in cases)
    if wanted.out:
        wanted.out[0].write_text(text)
        invocation.output.say(f"{counted(len(cases), 'case')} written to {wanted.out[0]}")
    else:
        invocation.output.show(text.rstrip())
    return 0


def _invocation(setup: o.Setup) -> Invocation:
    return Invocation(setup, changes=True)


def _folder() -> Path:
    """Return where the evaluations of this directory are kept."""
    return Path("evals")
