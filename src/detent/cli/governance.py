"""Commands about past and possible decisions on calls: backtest, explain."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from detent.cli import options as o
from detent.cli.invocation import Invocation
from detent.cli.output import clean
from detent.config.environment import parse_budget
from detent.core.errors import ConfigError
from detent.engine import Engine
from detent.expressions.display import as_text, counted, shortened
from detent.history.backtest import Backtest
from detent.history.explaining import Explanation, Step, follow
from detent.history.explaining import explain as explained
from detent.history.selecting import since_of, statuses_of
from detent.ports import RunQuery
from detent.running.lineage import history

STYLES = {"guard_blocked": "yellow", "approval_requested": "magenta", "tool_in_doubt": "magenta"}
_STANDING = {
    "": "",
    "there": "; that run is in this store",
    "erased": "; that run was erased",
    "changed": "; that record was changed since",
    "gone": "; that run is not in this store",
}


def backtest(
    *,
    policy: Annotated[
        Path | None, typer.Option("--policy", metavar="FILE", help="The policy file to try. Default: the policy of detent.toml.")
    ] = None,
    budget: o.Bounds = None,
    runs: Annotated[
        str,
        typer.Option(
            "--runs", metavar="FILTER", help="Which runs: prefixes of ids, or status=, agent=, tenant=, since=; separated by commas."
        ),
    ] = "",
    store: o.Store = None,
    config: o.ConfigFile = None,
    workspace: o.Workspace = None,
    agent: o.AgentFile = None,
    trust: o.Trust = False,
    json_wanted: o.Json = False,
) -> int:
    """Apply a policy and a budget to all recorded decisions. Nothing is executed. Exits with 1 if a call that succeeded would be refused."""
    invocation = Invocation(o.Setup(store=store, config=config, workspace=workspace, trust=trust, json_wanted=json_wanted), agent=agent)
    bounds = parse_budget(budget or [])
    query, only = selection(runs)

    async def work(engine: Engine) -> Backtest:
        invocation.tool_specs()
        tried = await engine.backtest(policy, budget=bounds if budget else None, query=query, only=only)
        await invocation.name(*(change.run_id for change in tried.changes), *tried.skipped)
        return tried

    found = invocation.drive(work, missing=Backtest(policy="", runs=0, decisions=0, changes=()))
    invocation.output.document({**msgspec.structs.asdict(found), "broken": len(found.broken)})
    if runs and not found.runs and not found.skipped:
        invocation.output.say(f"no run matches --runs {runs}; `detent list` shows the runs", "yellow")
    _show(found, invocation)
    return 1 if found.broken else 0


def _show(found: Backtest, invocation: Invocation) -> None:
    output = invocation.output
    for change in found.changes:
        decisions = f"{change.old} ({change.old_rule or 'no rule'}) -> {change.new} ({change.new_rule or 'no rule'})"
        style = "red" if change.breaks else "yellow"
        output.show(f"{invocation.short(change.run_id)}  {change.call_id}  {clean(change.tool)}  {clean(decisions)}", style)
        output.show(f"  {shortened(as_text(change.args), 400)}")
        why = clean(change.reason or "no reason given") + (f" ({', '.join(change.sources)})" if change.sources else "")
        output.show(f"  {why}{'; it succeeded' if change.breaks else ''}")
    for run_id, why in found.skipped.items():
        output.say(f"skipped {invocation.short(run_id)}: {clean(why)}", "yellow")
    if found.guessed:
        output.say(
            f"neither the available tools nor the log declare a side effect for these tools, so they count as destructive: {', '.join(found.guessed)}",
            "yellow",
        )
    would = f"{len(found.changes)} would differ, {len(found.broken)} of them refuse what succeeded"
    output.show(f"{counted(found.decisions, 'decision')} of {counted(found.runs, 'run')} under {found.policy or 'no policy'}: {would}")


def explain(run: o.RunArgument, call: o.CallArgument, *, setup: o.Looking) -> int:
    """Show why one call happened, or did not: its plan, repairs, guards, policy, approvals, attempts and outcome."""
    invocation = Invocation(setup, bare=True)

    async def work(engine: Engine) -> Explanation:
        return await follow(explained(await history(engine.store, await invocation.find(run)), call), engine.store)

    found = invocation.drive(work)
    invocation.output.document(found)
    invocation.output.show(f"{found.call_id}  {clean(found.tool)}  {found.outcome or 'no outcome yet'}", "bold")
    invocation.output.show(f"  {shortened(as_text(found.args), 2000)}")
    for step in found.steps:
        invocation.output.show(f"{step.sequence:>6}  {step.at:%Y-%m-%d %H:%M:%S}  {shortened(step.said, None)}", _style(step))
        for line in _details(step):
            invocation.output.show(f"        {line}")
    for place in found.earlier:
        invocation.output.show(f"{clean(place.path)}: {shortened(place.said, None)}{_STANDING[place.standing]}")
    invocation.output.show(f"policy {found.policy or 'unknown'}")
    return 0


def _details(step: Step) -> list[str]:
    """Return further values of a record that help to understand it."""
    data = step.data
    wanted = {"planned": ("args", "text"), "call_healed": ("args",), "policy_decided": ("facts",), "approval_edited": ("args",)}
    wanted |= {
        "approval_requested": ("digest", "policy"),
        "tool_started": ("digest",),
        "tool_finished": ("result",),
        "tool_reconciled": ("result",),
    }
    return [f"{key}: {shortened(as_text(data[key]), 600)}" for key in wanted.get(step.kind, ()) if data.get(key) not in (None, "", {})]


def _style(step: Step) -> str:
    if step.kind == "policy_decided":
        return {"allow": "green", "require_approval": "magenta"}.get(step.data["decision"], "red")
    if step.kind in ("tool_finished", "meta_tool_answered"):
        return "red" if step.data.get("error") or step.data.get("success") is False else "green"
    return STYLES.get(step.kind, "")


def selection(said: str) -> tuple[RunQuery, Callable[[str], bool]]:
    """Return the runs that a filter selects by prefixes of ids or `key=value` parts; raise `ConfigError`."""
    query: dict[str, Any] = {}
    begins: list[str] = []
    for part in filter(None, (p.strip() for p in said.split(","))):
        key, equals, value = part.partition("=")
        if not equals:
            begins.append(part)
        elif key == "status":
            query["status"] = (*query.get("status", ()), *statuses_of([value]))
        elif key == "since":
            query["since"] = since_of(value)
        elif key in ("agent", "tenant", "goal_id"):
            query[key] = value
        else:
            raise ConfigError(
                f"--runs {part!r}: unknown part; known: status=, agent=, tenant=, goal_id=, since=, or the beginning of run ids"
            )
    return RunQuery(**query), (lambda run_id: run_id.startswith(tuple(begins))) if begins else (lambda run_id: True)
