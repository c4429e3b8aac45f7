"""Commands that branch and compare runs, and check whether they survive an upgrade: fork, diff, bisect, check-upgrade."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Annotated, Any, Literal, get_origin

import msgspec
import typer

from detent.cli import options as o
from detent.cli.invocation import Invocation
from detent.cli.output import clean
from detent.cli.progress import Progress
from detent.cli.running import advance
from detent.cli.standing import report
from detent.config.environment import parse_budget, parse_text
from detent.core.agent import AgentSpec
from detent.core.budget import Usage
from detent.core.errors import ConfigError, DetentError, UnknownName
from detent.engine import Engine
from detent.expressions.display import as_text, shortened
from detent.history.comparing import Diff, Difference, Parting
from detent.history.upgrading import Upgrade, Upgraded, open_runs
from detent.running.branching import EDITABLE, OF_AGENT
from detent.running.people import me
from detent.running.results import Result

LIMIT = 300

First = Annotated[str, typer.Argument(metavar="A", help=o.RUN_HELP, show_default=False, autocompletion=o.complete_run)]
Second = Annotated[str, typer.Argument(metavar="B", help="The run to compare it with.", show_default=False, autocompletion=o.complete_run)]


# Fork -------------------------------------------------------------------------------------------------------------------------------------


def fork(
    run: o.RunArgument,
    *,
    at: Annotated[
        int | None,
        typer.Option(
            "--at",
            metavar="N",
            help="The record to continue from. Default: the end of an unfinished run; the start of the last turn of a finished one.",
        ),
    ] = None,
    change: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="K=V", help="What to change: model=..., goal=..., budget.max_iterations=5, variables.x=1. Repeatable."
        ),
    ] = None,
    result: Annotated[
        list[str] | None,
        typer.Option("--result", metavar="CALL=JSON", help='Replace the result of a call: a value, or {"error": ...}. Repeatable.'),
    ] = None,
    answer: Annotated[
        list[str] | None, typer.Option("--reply", metavar="ASK=TEXT", help="Replace the user's reply to a question. Repeatable.")
    ] = None,
    effects: Annotated[
        Literal["dry-run", "reuse", "redo"],
        typer.Option(
            "--effects",
            help="What to do with side effects. dry-run: recorded result or a stub; reuse: recorded result or run it; redo: run it again.",
        ),
    ] = "dry-run",
    child: Annotated[str | None, typer.Option("--run-id", metavar="ID", help="The id of the fork. Default: generated.")] = None,
    no_resume: Annotated[bool, typer.Option("--no-resume", help="Only create the fork; do not continue it here.")] = False,
    setup: o.Setup,
) -> int:
    """Copy a run up to a record, change something, and continue from there."""
    edits = parse_edits(change or (), result or (), answer or ())
    invocation = Invocation(
        setup, changes=True, bare=no_resume and not edits.keys() & set(OF_AGENT)
    )  # a changed agent is checked with its tools
    policy: Any = effects.replace("-", "_")

    async def branch(engine: Engine) -> Result:
        parent = await invocation.outfit(run)
        made = await engine.fork(parent.run_id, at=at, edits=edits, effects=policy, child_id=child, by=me(), resume=False)
        invocation.run_id = made.run_id
        await invocation.name(*made.state.ancestors[:1])
        return made

    made = invocation.drive(branch)
    invocation.output.say(f"forked: run {invocation.short(made.run_id)} continues from {invocation.short(made.state.ancestors[0])}")
    if no_resume:
        report(made, invocation)
        return 0

    async def go_on(engine: Engine, progress: Progress) -> Result:
        return await engine.resume(made.run_id, observers=[progress])

    return advance(invocation, go_on)


def parse_edits(changes: Iterable[str], results: Iterable[str], replies: Iterable[str]) -> dict[str, Any]:
    """Return the edits in `K=V` texts; raise `ConfigError`."""
    edits: dict[str, Any] = {}
    bounds: list[str] = []
    for pair in changes:
        key, value = _pair("--set", pair)
        part, _, name = key.partition(".")
        if part == "budget" and name:
            bounds.append(f"{name}={value}")
        elif part == "variables" and name:
            edits.setdefault("variables", {})[name] = _json_or_text(value)
        elif part in ("model_settings", "profile") and name:
            edits.setdefault(part, {})[name] = _json_or_text(value)
        elif key in EDITABLE and key not in ("results", "replies"):
            edits[key] = _typed(key, value)
        else:
            raise UnknownName("--set", key, [*(name for name in EDITABLE if name not in ("results", "replies")), "budget.max_iterations"])
    if bounds:
        said = msgspec.to_builtins(parse_budget(bounds, "--set budget"))
        edits["budget"] = {**edits.get("budget", {}), **said}
    for pair in results:
        call, value = _pair("--result", pair)
        edits.setdefault("results", {})[call] = _json_or_text(value)
    for pair in replies:
        ask, value = _pair("--reply", pair)
        edits.setdefault("replies", {})[ask] = value
    return edits


def _pair(option: str, pair: str) -> tuple[str, str]:
    key, equals, value = pair.partition("=")
    if not equals or not key.strip():
        raise ConfigError(f"{option} {pair!r}: write it as NAME=VALUE")
    return key.strip(), value


def _typed(key: str, value: str) -> Any:
    """Return the value of an edit with the type of that part of the agent; objects and lists are JSON."""
    if key in ("goal", "budget", "variables"):
        return value if key == "goal" else _json_or_text(value)
    kind: Any = next(field.type for field in msgspec.structs.fields(AgentSpec) if field.name == key)
    if kind is str or get_origin(kind) is Literal:
        return value
    if kind is bool:
        return parse_text(value, bool, f"--set {key}")
    if get_origin(kind) is Sequence and not value.lstrip().startswith("["):
        return [part.strip() for part in value.split(",") if part.strip()]
    return _json_or_text(value)


def _json_or_text(value: str) -> Any:
    try:
        return json.loads(value)
    except ValueError:
        return value


# Compare ----------------------------------------------------------------------------------------------------------------------------------


def diff(a: First, b: Second, *, setup: o.Looking) -> int:
    """Show what differs between two runs, pass by pass and turn by turn. Exits with 0 in both cases."""
    invocation = Invocation(setup, bare=True)

    async def work(engine: Engine) -> Diff:
        return await engine.diff(await invocation.find(a), await invocation.find(b))

    found = invocation.drive(work)
    first = found.first
    invocation.output.document({**msgspec.structs.asdict(found), "identical": found.identical, "first": first})
    if found.identical:
        invocation.output.show(f"no difference: {invocation.short(found.a)} and {invocation.short(found.b)} did the same", "green")
        return 0
    out = invocation.output
    out.show(f"a  {invocation.short(found.a)}")
    out.show(f"b  {invocation.short(found.b)}")
    if found.shared:
        out.show(f"   the first {found.shared} records are shared")
    for one in found.differences:
        _show(one, invocation)
    for said, tools in (("more", found.tools_added), ("less", found.tools_removed)):
        if tools:
            out.show(f"b calls {said}: " + ", ".join(f"{clean(tool)} ({count})" for tool, count in tools.items()))
    for line in _figures(found.a_usage, found.b_usage):
        out.show(line)
    return 0


def _show(one: Difference, invocation: Invocation) -> None:
    where = f"iteration {one.iteration}" + (f" of {clean(one.scope)}" if one.scope not in ("", "main") else "") if one.iteration else "run"
    what = one.what + (f" of {one.call}" if one.call else "")
    invocation.output.show(f"{where}: {what}", "yellow")
    for name, value, at in (("a", one.a, one.a_at), ("b", one.b, one.b_at)):
        said = "-" if value is None else shortened(as_text(value), LIMIT)
        invocation.output.show(f"  {name}  {said}" + (f"  (record {at})" if at else ""))


def _figures(a: Usage, b: Usage) -> Iterable[str]:
    """Yield a line for each figure that differs."""
    names = ("iterations", "model_calls", "tool_calls", "failures", "input_tokens", "output_tokens", "cost_usd")
    for name in names:
        mine, theirs = getattr(a, name), getattr(b, name)
        if mine != theirs:
            yield f"{name.replace('_', ' ')}: {_figure(mine)} -> {_figure(theirs)} ({(theirs or 0) - (mine or 0):+g})"


def _figure(value: float | None) -> str:
    return "unknown" if value is None else f"{value:g}"


def bisect(a: First, b: Second, *, setup: o.Looking) -> int:
    """Find the first step where two runs differ. Exits with 0 in both cases."""
    invocation = Invocation(setup, bare=True)

    async def work(engine: Engine) -> Parting | None:
        return await engine.bisect(await invocation.find(a), await invocation.find(b))

    found = invocation.drive(work)
    invocation.output.document({"parting": found})
    if found is None:
        invocation.output.show("no difference: both runs did the same", "green")
        return 0
    scope = f" of pass {clean(found.scope)}" if found.scope else ""
    turn = f"iteration {found.iteration}{scope}" if found.iteration else f"the run itself{scope}"
    invocation.output.show(f"they differ from {turn} on, after {found.common} equal steps", "yellow")
    for name, run_id, at, said in (("a", found.a_run, found.a_at, found.a), ("b", found.b_run, found.b_at, found.b)):
        where = f"record {at} of {invocation.short(run_id)}" if at else "nothing more"
        invocation.output.show(f"  {name}  {where}" + (f": {shortened(as_text(said), LIMIT)}" if at else ""))
    return 0


# Upgrade ----------------------------------------------------------------------------------------------------------------------------------


def check_upgrade(
    *,
    run: Annotated[
        str | None,
        typer.Argument(metavar="[RUN]", help="Check only this run. Default: every unfinished run.", autocompletion=o.complete_run),
    ] = None,
    setup: o.Quiet,
) -> int:
    """Execute the log of each open run with the current code and list the runs that could not continue. Exits with 1 if there are any.

    Nothing is recorded.
    """
    first = Invocation(setup)

    async def named(engine: Engine) -> list[str]:
        found = [await first.find(run)] if run is not None else await open_runs(engine.store)
        await first.name(*found)
        return found

    wanted = first.drive(named) if run is not None else first.drive(named, missing=[])
    found = [checked(run_id, setup) for run_id in wanted]
    first.output.document({"runs": [{**msgspec.structs.asdict(one), "goes_on": one.goes_on} for one in found]})
    for one in found:
        tell(one, first)
    stranded = len(Upgrade(runs=tuple(found)).stranded)
    first.output.show(f"{len(found)} open runs, {stranded} cannot continue", "red" if stranded else "green")
    return 1 if stranded else 0


def checked(run_id: str, setup: o.Setup) -> Upgraded:
    """Check one run in its own invocation, because each run has its own tools."""
    invocation = Invocation(setup)

    async def work(engine: Engine) -> Upgraded:
        problem = ""
        try:
            await invocation.outfit(run_id)
        except DetentError as error:
            problem = str(error)
        (found,) = (await engine.check_upgrade(run_id)).runs
        return msgspec.structs.replace(found, problem=found.problem or problem) if found.missing else found

    return invocation.drive(work)


def tell(one: Upgraded, invocation: Invocation) -> None:
    """Print whether a run can continue with the code here, and what keeps it from that."""
    out = invocation.output
    out.show(f"{invocation.short(one.run_id)}  {one.status.replace('_', ' ')}, {one.records} records: {'can continue' if one.goes_on else 'cannot continue'}",
             "green" if one.goes_on else "red")  # fmt: skip
    if one.missing:
        out.show(f"  missing tools: {', '.join(clean(name) for name in one.missing)}")
    if one.problem:
        out.show(f"  {shortened(one.problem, None)}")
    if one.divergence is not None:
        out.show(f"  differs at record {one.divergence.sequence}")
        out.show(f"    the log has      {shortened(one.divergence.expected, LIMIT)}")
        out.show(f"    this code gives  {shortened(one.divergence.actual, LIMIT)}")
    if one.changed:
        out.show(f"  changed since the run was opened: {', '.join(clean(name) for name in one.changed)}")
