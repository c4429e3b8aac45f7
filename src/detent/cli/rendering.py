"""A trace as text."""

from __future__ import annotations

from typing import Any

from detent.cli.invocation import Invocation
from detent.cli.output import INDENT, Output, clean, style_of
from detent.cli.standing import headline, made_files, next_commands, waits_for
from detent.core.budget import Exhausted
from detent.core.state import RunState
from detent.expressions.display import as_text, counted, gist, shortened
from detent.history.model_calls import reserved, spent, told
from detent.history.traces import Audit, Call, Iteration, Trace
from detent.running.receipts import lines_of, who

SHORT = 240
LONG = 2_000
LINE = 100
"""How many characters of a step the overview shows."""
NAME = 60
CHILDREN = 16
"""How many children the overview lists."""
_OUTCOMES = {"open": "", "completed": "green", "cancelled": "yellow"}


def render(trace: Trace, state: RunState, invocation: Invocation, *, full: bool, only: int | None = None) -> None:
    """Write the trace to stdout: the head, a line for each call, the run's status, and what to do next.

    With `full`, everything is shown completely. With `only`, only the iteration with that number is shown, shortened to a few lines.
    """
    out, limit = invocation.output, None if full else SHORT
    if not full and only is None:
        _overview(trace, state, invocation)
        return
    out.show(f"run       {trace.run_id}", "bold")
    if trace.title:
        out.show(f"title     {shortened(trace.title, limit)}")
    out.show(f"goal      {shortened(trace.goal, limit)}")
    tenant = f" · tenant {clean(trace.tenant)}" if trace.tenant else ""
    out.show(f"agent     {clean(trace.agent)}{tenant}")
    _above(out, trace)
    out.show(f"started   {_at(trace.started_at)}")
    if trace.variables:
        out.show(f"variables {shortened(as_text(trace.variables), limit)}")
    for line in trace.before:
        out.show(f"          {shortened(line, limit)}")
    for turn in trace.iterations:
        if only is None or turn.iteration == only:
            _iteration(out, turn, limit)
    out.show()
    _audit(out, trace, limit)
    _below(out, trace)
    _receipt(out, trace, limit)
    _what_next(trace, state, invocation)


def _what_next(trace: Trace, state: RunState, invocation: Invocation) -> None:
    out = invocation.output
    for line in made_files(trace.artifacts, trace.run_id, invocation):
        out.show(f"  {line}")
    for line in waits_for(state, invocation.waits):
        out.show(f"  {'' if line.startswith(' ') else 'waits':<9} {line}")
    for command in next_commands(state, invocation):
        if command == invocation.command("show", state.run_id):
            continue
        out.show(f"  next      {command}")


def _overview(trace: Trace, state: RunState, invocation: Invocation) -> None:
    """Write an overview: what a person wants to know first."""
    out, audit = invocation.output, trace.audit
    out.show(f"run       {trace.run_id}", "bold")
    for name, text in (("title", trace.title), ("goal", trace.goal)):
        if text:
            out.show(f"{name:<9} {shortened(text, SHORT)}")
    out.show(f"agent     {clean(trace.agent)}" + (f" · tenant {clean(trace.tenant)}" if trace.tenant else ""))
    _above(out, trace)
    out.show(f"started   {_at(trace.started_at)}")
    out.show()
    several = len({turn.scope for turn in trace.iterations}) > 1
    for turn in trace.iterations:
        _steps(out, turn, answers=several)
    out.show()
    out.show(f"status    {headline(state)} · {_amounts(state)} · {audit.running_ms / 1000:.1f} s", style_of(audit.status))
    _ended(out, audit, trace, SHORT, margin="")
    _below(out, trace)
    _receipt(out, trace, SHORT, margin="")
    _what_next(trace, state, invocation)
    invocation.output.say(f"everything: {invocation.command('show', trace.run_id, '-v')}; one iteration: -i N", "dim")


def _amounts(state: RunState) -> str:
    usage = state.usage
    parts = [counted(usage.iterations, "iteration"), counted(usage.tool_calls, "call")]
    return ", ".join([*parts, *([f"{usage.failures} failed"] if usage.failures else [])]) + (
        f" · {spent(usage)}" if usage.total_tokens else ""
    )


def _above(out: Output, trace: Trace) -> None:
    """Write whose child the run is."""
    if (above := trace.parent) is not None:
        out.show(f"parent    run {above['run']}, call {above['call']} ({clean(' > '.join(above['path']))})")
        if above["root"] != above["run"]:
            out.show(f"root      run {above['root']}")


def _below(out: Output, trace: Trace) -> None:
    """Write the run's children, and what is reserved for the open ones."""
    for one in trace.children[:CHILDREN]:
        out.show(
            f"child     {clean(one['agent'])} {one['status']}  run {one['run']}  {shortened(one['goal'], NAME)}",
            _OUTCOMES.get(one["status"], "red"),
        )
    if len(trace.children) > CHILDREN:
        out.show(f"          and {len(trace.children) - CHILDREN} more: `detent tree` lists them")
    if held := reserved(trace.reserved):
        out.show(f"reserved  {held}, until its open children have ended")


def _steps(out: Output, turn: Iteration, *, answers: bool) -> None:
    """Write an iteration: one line for each call, or one line in all. `answers` says whether final answers are shown, too."""
    scope = f" {clean(turn.scope)}:" if turn.scope != "main" else ""
    head = f"{turn.iteration:>4} {scope}"
    for asked in turn.models:
        if asked.error:
            out.show(f"{head} model call failed: {shortened(asked.error, LINE)}", "yellow")
    for number, line in enumerate([*turn.events, ""]):
        for call in turn.calls:
            if (call.after if call.outcome else 0) == number:
                _step(out, head, call)
        if number == 0 and not turn.calls and turn.decision and (answers or not turn.decision.startswith("final answer")):
            out.show(f"{head} {shortened(turn.decision, LINE)}")
        if line:
            out.show(f"{head} {shortened(line, LINE)}", "dim")


def _step(out: Output, head: str, call: Call) -> None:
    said = {"ok": "ok", "": "no outcome yet"}.get(call.outcome, "failed")
    took = f" {call.latency_ms:.0f} ms" if call.latency_ms else ""
    approval = call.approval or {}
    notes = [f"{approval['decision']} by {clean(approval['by'])}"] if approval.get("decision") and approval.get("by") else []
    notes += [clean(note) for note in call.notes if note.startswith("settled")]
    by = f" ({'; '.join(notes)})" if notes else ""
    what = f"{call.outcome}: {call.error}" if said == "failed" else gist(call.args)
    out.show(f"{head} {shortened(call.tool, NAME)} {said}{took}{by}  {shortened(what, LINE)}".rstrip(), "red" if said == "failed" else "")


def _iteration(out: Output, turn: Iteration, limit: int | None) -> None:
    scope = f" · {clean(turn.scope)}" if turn.scope != "main" else ""
    out.show()
    out.show(f"iteration {turn.iteration}{scope} · {turn.at:%H:%M:%S.%f}"[:-3], "bold")
    if turn.decision:
        out.show(f"  decision  {shortened(turn.decision, limit)}" + (f"  [{clean(turn.model)}]" if turn.model else ""))
    for name, text in (("text", turn.text), ("thinking", turn.thinking)):
        if text:
            out.show(f"  {name:<9} {shortened(text, limit)}")
    for asked in turn.models:
        out.show(f"  model     {shortened(told(asked), limit)}", "red" if asked.error else "dim")
    for call in turn.calls:
        _call(out, call, limit)
    for line in turn.events:
        out.show(f"  ·         {shortened(line, limit)}")
    figures = turn.state
    tokens = f" · {figures['tokens']} tokens" if figures["tokens"] else ""
    cost = f" · {figures['cost_usd']:.4f} USD" if figures["cost_usd"] else ""
    out.show(
        f"  state     {figures['status']} · {counted(figures['tool_calls'], 'call')}, {figures['failures']} failed · failed turns {figures['failed_turns']}"
        f" · without progress {figures['without_progress']}{tokens}{cost}",
        "dim",
    )


def _call(out: Output, call: Call, limit: int | None) -> None:
    decided = f"{call.decision} by {call.rule}" if call.decision and call.rule else call.decision
    facts = [fact for fact in (call.side_effect, decided, f"{call.latency_ms:.1f} ms" if call.latency_ms else "") if fact]
    out.show(f"  tool      {clean(call.tool)}  {call.call_id}" + (f"  [{' · '.join(facts)}]" if facts else ""), "cyan")
    out.show(f"    input   {shortened(as_text(call.args), limit)}")
    if call.approval is not None:
        out.show(f"    asked   {_approval(call.approval)}")
    for note in call.notes:
        out.show(f"    ·       {shortened(note, limit)}")
    if call.outcome == "ok":
        stored = f"  ({call.artifact_bytes} bytes, stored apart)" if call.artifact_bytes is not None else ""
        out.show(f"    output  {shortened(as_text(call.output), limit)}{stored}")
    elif call.outcome:
        out.show(f"    error   {call.outcome}: {shortened(call.error, limit)}", "red")
    else:
        out.show("    output  none yet", "dim")


def _approval(asked: dict[str, Any]) -> str:
    said = f"requested {_at(asked.get('requested_at'))}"
    if "decision" in asked:
        by = f" by {clean(who(asked['by'], asked['via']))}" if asked["by"] else ""
        said += f", {asked['decision']}{by} {_at(asked['at'])}"
        said += f": {clean(asked['said'])}" if asked["said"] else ""
    return said + (f" ({clean(asked['reason'])})" if asked.get("reason") else "")


def _audit(out: Output, trace: Trace, limit: int | None) -> None:
    audit = trace.audit
    out.show("termination audit" if audit.status in ("completed", "failed", "stopped") else "current status", "bold")
    out.show(f"  status    {audit.status.replace('_', ' ')}" + (f" · {audit.reason}" if audit.reason else ""), style_of(audit.status))
    _ended(out, audit, trace, limit)
    _bounds(out, audit)
    out.show(f"  in doubt  {', '.join(audit.in_doubt) or 'none'}")
    for asked in audit.approvals:
        out.show(f"  approval  {asked['call']} {clean(asked['tool'])}: {_approval(asked)}")
    for taken in audit.resumptions:
        changed = f"; changed since: {', '.join(taken['changed'])}" if taken["changed"] else ""
        out.show(f"  resumed   {_at(taken['at'])} by {clean(taken['worker'])}{changed}")
    for opened in audit.openings:
        why = f": {clean(opened['why'])}" if opened["why"] else ""
        bounds = f" with {as_text(opened['budget'])}" if opened["budget"] else ""
        out.show(f"  reopened  {_at(opened['at'])} by {clean(who(opened['by'], opened['via'])) or 'the operator'}{bounds}{why}")
    out.show(f"  running   {audit.running_ms / 1000:.3f} s, without waits and downtime")
    out.show(f"  log       {audit.records} records, head {audit.digest}")


def _ended(out: Output, audit: Audit, trace: Trace, limit: int | None, margin: str = INDENT) -> None:
    """Write why the run ended, and its result."""
    further = f"\n{margin}          "
    if audit.dimension:
        option = Exhausted(audit.dimension, 0, 0).option + (" of the tenant" if audit.dimension.startswith("tenant_") else "")
        out.show(
            f"{margin}bound     {option}: limit {audit.limit:g}, used {audit.used:g}"
            if audit.limit is not None and audit.used is not None
            else f"{margin}bound     {option}"
        )
    if audit.error:
        out.show(f"{margin}error     {shortened(audit.error, limit)}")
    for kept in audit.tracebacks:
        out.show(f"{margin}raised    by {clean(kept.who)}: {shortened(kept.error, limit)}" + (f" ({clean(kept.at)})" if kept.at else ""))
        if limit is None or kept is audit.tracebacks[-1]:
            out.show(further[1:] + clean(kept.text, lines=True).rstrip("\n").replace("\n", further))
    if trace.output is not None:
        answer = as_text(trace.output).rstrip("\n")
        answer = answer if limit is None or len(answer) <= LONG else f"{answer[:LONG]}…"
        out.show(f"{margin}output    " + answer.replace("\n", further))
    if trace.partial and trace.output is None:
        out.show(f"{margin}partial   {shortened(trace.partial, limit)}")


def _receipt(out: Output, trace: Trace, limit: int | None, margin: str = INDENT) -> None:
    for number, line in enumerate(lines_of(trace.receipt)):
        out.show(f"{margin}{'receipt' if number == 0 else '':<9} {shortened(line, limit)}")


def _bounds(out: Output, audit: Audit) -> None:
    used = [f"{b['bound'].removeprefix('max_')} {_figure(b['used'])}/{_figure(b['limit'])}" for b in audit.bounds]
    for start in range(0, len(used), 4):
        out.show(f"  {'used' if start == 0 else '':<9} {' · '.join(used[start : start + 4])}")


def _figure(value: float | None) -> str:
    return "?" if value is None else f"{value:g}" if isinstance(value, int) else f"{value:.3g}"


def _at(value: Any) -> str:
    return f"{value:%Y-%m-%d %H:%M:%S} UTC" if value else "at an unknown time"
