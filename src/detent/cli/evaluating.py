"""The command eval: run a suite, continue one that was killed, grade stored runs, compare two results, write reports."""

from __future__ import annotations

import os
import secrets
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from detent.cli import options as o
from detent.cli.evaluation_control import cancel, list_evaluations, one_or_none, regrade, requeue, top
from detent.cli.evaluation_options import Action, Which
from detent.cli.evaluation_progress import Progress
from detent.cli.evaluation_results import FORMATS, check_out, compare, tell
from detent.cli.governance import selection
from detent.cli.invocation import Invocation, engine_on
from detent.cli.output import SUSPENDED, clean
from detent.core.errors import ConfigError, Suspended
from detent.engine import Agent, Engine
from detent.expressions.display import counted
from detent.running.starting import know

if TYPE_CHECKING:
    from detent.evals.sharing import Begun
    from detent.evals.trials import Trial


def evaluate(
    action: Annotated[
        Action,
        typer.Argument(
            metavar="ACTION",
            help="run, resume, list, top, requeue, cancel, regrade, grade, label, compare, report or from-runs.",
            show_default=False,
        ),
    ],
    target: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[WHAT]...",
            help="run, grade: a suite. resume, top: an evaluation. requeue: a trial. cancel, regrade: either. compare: two results. report, label: one.",
            show_default=False,
        ),
    ] = None,
    *,
    which: Which,
    setup: o.Setup,
) -> int:
    """Evaluate agents: run a suite of cases many times, grade every trial, and say what may be believed.

    Every trial is an ordinary run. `run SUITE` begins an evaluation. `resume [ID]` continues one that was killed, or joins one that runs: the trials are
    divided among the processes, and no finished trial is run or paid for again.

    While it runs, from any terminal: `list` and `top [ID]` show it, `requeue TRIAL` begins a trial anew, `cancel TRIAL` or `cancel ID` ends it, and
    `regrade TRIAL` or `regrade ID` grades again by the log. A trial is CASE/NUMBER, CASE/VARIANT/NUMBER, or its run, as `top` prints it.

    `grade SUITE` judges runs that the store has, `from-runs` makes cases of them, `label RESULT` asks you to judge answers, one after the other, `compare A B`
    says in one word whether the second result is better, `report RESULT` writes a result in another format.
    """
    which.only(action)
    if which.require is not None:
        from detent.evals.writing import check_required

        check_required(which.require)
    if action not in (Action.LABEL, Action.FROM_RUNS):
        check_out(which.out or (), (".html", ".json", ".md") if action is Action.COMPARE else FORMATS)
    return DO[action](list(target or ()), which, setup)


def _named(given: list[str], many: int, what: str) -> list[str]:
    if len(given) != many:
        raise ConfigError(f"name {what}")
    return given


def _run(given: list[str], which: Which, setup: o.Setup) -> int:
    from detent.evals import Evaluation, load_suite
    from detent.evals.faults import checked
    from detent.evals.writing import check_required

    path = Path(_named(given, 1, "the suite: detent eval run suite.toml")[0])
    invocation = _invocation(setup)
    _ = invocation.engine  # refuses a directory that is not trusted before it reads anything in it
    suite = load_suite(path)
    failed = None if which.only_failed is None else [t.case for t in Evaluation.read(which.only_failed).trials if t.standing != "passed"]
    suite = suite.only(limit=which.limit, tags=which.tag or (), ids=failed, sample=which.sample)
    if not suite.cases:
        raise ConfigError("no case is left; --limit, --sample, --tag and --only-failed leave none")
    said: dict[str, Any] = {"trials": which.trials, "require": which.require, "stop": which.stop, "fault_rate": which.fault_rate}
    said["faults"] = None if which.faults is None else tuple([name for one in which.faults.split(",") if (name := one.strip())])
    suite = msgspec.structs.replace(suite, **{name: value for name, value in said.items() if value is not None})
    check_required(suite.require)
    if which.fault_rate is not None and not suite.faults:
        raise ConfigError("--fault-rate is given, and there is no fault: name some, as in --faults kill,timeout")
    checked(suite.faults, "--faults" if which.faults is not None else str(path))
    suite = suite.with_faults()
    named = f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(3)}"

    async def begin(engine: Engine) -> Begun:
        from detent.evals.sharing import begin

        return await begin(engine, suite, named, agents=which.agent or ())

    return _go_on(begin, invocation, which)


def _resume(given: list[str], which: Which, setup: o.Setup) -> int:
    """Continue an evaluation, or join it. Its suite is what the store says, which starts no command that this directory's files do not name."""
    from detent.evals import load_suite
    from detent.evals.evaluating import commands_of

    named, invocation = one_or_none(given, "one evaluation: detent eval resume ID"), _invocation(setup)
    _ = invocation.engine
    known = commands_of(load_suite(which.suite)) if which.suite is not None else set[tuple[str, ...]]()

    async def find(engine: Engine) -> Begun:
        from detent.evals.controlling import evaluation

        begun = await evaluation(engine, named, open_only=True)
        for case in begun.suite.cases:
            if any(isinstance(one, dict) and "path" in one for one in case.attachments):
                raise ConfigError(
                    f"case {case.id!r} of evaluation {begun.id} reads a file, as the store says; no evaluation says so: begin another one"
                )
        if foreign := set(begun.agents) - set(which.agent or ()):
            raise ConfigError(
                f"evaluation {begun.id} was begun with the agent file {min(foreign)}, as the store says; name it, too: {_again(invocation, begun)}"
            )
        if unknown := commands_of(begun.suite) - known:
            raise ConfigError(
                f"evaluation {begun.id} grades with the command {' '.join(min(unknown))!r}, as the store says; name the suite that says so, too: "
                f"detent eval resume {begun.id} --suite suite.toml"
            )
        return begun

    return _go_on(find, invocation, which)


def _again(invocation: Invocation, begun: Begun) -> str:
    """Return the command that continues an evaluation. It names the agents' files: what the store names is not executed for that."""
    return invocation.command("eval", "resume", begun.id, *(word for file in begun.agents for word in ("--agent", file)))


def _go_on(begin: Callable[[Engine], Awaitable[Begun]], invocation: Invocation, which: Which) -> int:
    from detent.evals import evaluate as evaluated
    from detent.evals import summarised
    from detent.evals.controlling import results

    async def work(engine: Engine) -> tuple[Begun, list[Trial]]:
        begun = await begin(engine)
        made, known = _agents(invocation, begun)
        named.append(_again(invocation, begun))
        suite = begun.suite
        invocation.output.say(
            f"{suite.name}: {counted(len(begun.keys), 'trial')}, evaluation {begun.id}; "
            f"`{_again(invocation, begun)}` continues it or joins it"
        )
        with Progress(begun, await results(engine, begun), invocation.output) as progress:
            trials = await evaluated(
                engine,
                suite,
                id=begun.id,
                agents=known,
                concurrency=which.parallel or 8,
                engine_for=lambda workspace: engine_on(invocation, engine.store, made, root=str(workspace)),
                make_engine=lambda store: engine_on(invocation, store, made),
                on_trial=progress,
            )
        return begun, trials

    named: list[str] = []
    try:
        begun, trials = invocation.drive(work)
    except Suspended as error:
        if not named:
            raise
        again = named[0]
        invocation.output.say(f"suspended ({error.why}); nothing is lost\n  next: {again}", "red")
        invocation.output.document(
            {"error": {"code": error.code, "message": f"suspended ({error.why}): `{again}` continues it"}}, indent=None
        )
        return SUSPENDED
    found = summarised(begun.suite.name, begun.id, trials)
    return tell(found, invocation, msgspec.structs.replace(which, require=which.require or begun.suite.require or None))


def _agents(invocation: Invocation, begun: Begun) -> tuple[list[Agent[Any]], dict[str, Agent[Any]]]:
    """Return the agents of the configuration and those that the evaluation was begun with, and by name those that the engine does not have."""
    names = [*(invocation.config.agents or {}), *begun.agents]
    made = [invocation.agent(named=name) for name in names] or [invocation.agent()]
    know(invocation.engine.runtime, made)
    if len(made) == 1 and not begun.agents:
        return made, {}
    known = {**dict(zip(names, made, strict=False)), **{one.name: one for one in made}}
    return made, {name: agent for name, agent in known.items() if name not in invocation.engine.agents}


def _label(given: list[str], which: Which, setup: o.Setup) -> int:
    from detent.cli.labelling import Labelling, label
    from detent.evals.grades import LABELS

    if len(given) > 1 or bool(given) is bool(which.runs):
        raise ConfigError("name the result, or runs: detent eval label evals/ID.json, or detent eval label --runs agent=clerk")
    query, only = selection(which.runs or "")
    return label(
        Labelling(
            result=Path(given[0]) if given else None,
            query=query,
            only=only,
            grader=which.grader or "",
            by=which.by or "",
            labels=which.out[0] if which.out else Path(LABELS),
        ),
        _invocation(setup),
    )


def _compare(given: list[str], which: Which, setup: o.Setup) -> int:
    return compare(_named(given, 2, "the two results to compare: detent eval compare a.json b.json"), which, _invocation(setup))


def _report(given: list[str], which: Which, setup: o.Setup) -> int:
    from detent.evals import Evaluation

    path = _named(given, 1, "the result: detent eval report evals/ID.json --out report.html")[0]
    found = Evaluation.read(Path(path))
    return tell(found, _invocation(setup), msgspec.structs.replace(which, out=which.out or (Path(path).with_suffix(".html"),)))


def _grade(given: list[str], which: Which, setup: o.Setup) -> int:
    from detent.evals import grade_runs, load_suite, summarised
    from detent.evals.grades import JUDGES
    from detent.evals.writing import check_required

    if (which.policy or which.guard) and not which.replay:
        raise ConfigError("--policy and --guard are for --replay: detent eval grade suite.toml --runs ... --replay --policy FILE")
    path = _named(given, 1, "the suite with the graders: detent eval grade suite.toml --runs agent=clerk")[0]
    suite = load_suite(Path(path), cases=False)
    check_required(suite.require)
    query, only = selection(which.runs or "")
    invocation = _invocation(setup)
    judged = any(table.get("kind") in JUDGES for table in suite.graders)
    names = [*(invocation.config.agents or {} if judged else ()), *(which.agent or ())]
    know(invocation.engine.runtime, [invocation.agent(named=name) for name in names])

    async def work(engine: Engine) -> list[Trial]:
        replay = None
        if which.replay:
            invocation.tool_specs()
            replay = await engine.backtest(which.policy, guards=which.guard or (), query=query, only=only)
        processes = min(8, os.cpu_count() or 1)
        return await grade_runs(engine, suite.graders, query, only=only, replay=replay, cluster=suite.cluster, processes=processes)

    found = summarised(suite.name, "", invocation.drive(work, missing=[]))
    code = tell(found, invocation, msgspec.structs.replace(which, require=which.require or suite.require or None))
    for trial in found.trials:
        for one in trial.otherwise:
            decisions = f"{one.old} ({one.old_rule or 'no rule'}) -> {one.new} ({one.new_rule or 'no rule'})"
            invocation.output.say(f"{clean(trial.run_id)}  {one.call_id}  {clean(one.tool)}  {clean(decisions)}", "yellow")
    return code


def _from_runs(given: list[str], which: Which, setup: o.Setup) -> int:
    from detent.evals.trials import cases_from

    _named(given, 0, "the runs with --runs: detent eval from-runs --runs agent=clerk")
    query, only = selection(which.runs or "")
    invocation = _invocation(setup)

    async def work(engine: Engine) -> list[dict[str, Any]]:
        return await cases_from(engine, query, only=only)

    cases = invocation.drive(work, missing=[])
    text = "".join(f"{msgspec.json.encode(case).decode()}\n" for case in cases)
    if which.out:
        try:
            which.out[0].parent.mkdir(parents=True, exist_ok=True)
            which.out[0].write_text(text, encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"--out {which.out[0]} cannot be written: {error}") from error
        invocation.output.say(f"{counted(len(cases), 'case')} written to {which.out[0]}")
    else:
        invocation.output.show(text.rstrip())
    return 0


def _invocation(setup: o.Setup) -> Invocation:
    return Invocation(setup, changes=True)


DO: dict[Action, Callable[[list[str], Which, o.Setup], int]] = {
    Action.RUN: _run,
    Action.RESUME: _resume,
    Action.GRADE: _grade,
    Action.COMPARE: _compare,
    Action.LABEL: _label,
    Action.REPORT: _report,
    Action.FROM_RUNS: _from_runs,
    Action.LIST: list_evaluations,
    Action.TOP: top,
    Action.REQUEUE: requeue,
    Action.CANCEL: cancel,
    Action.REGRADE: regrade,
}
