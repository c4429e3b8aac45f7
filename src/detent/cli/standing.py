"""The status of a run, as text and as data, with the exact command that continues it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from detent.cli.approving import request_lines
from detent.cli.drawing import show_answer
from detent.cli.invocation import Invocation
from detent.cli.output import clean, style_of
from detent.core.budget import Exhausted
from detent.core.events import ArtifactRef
from detent.core.state import RunState
from detent.expressions.display import FURTHER, as_text, counted, shortened
from detent.history.model_calls import reserved, spent
from detent.running.delegating import BACKGROUND
from detent.running.overseeing import Wait
from detent.running.results import Result, approvals_of, doubts_of


def whom(wait: Wait) -> str:
    """Return what a run below another waits for, and whether that needs a person."""
    who = f"{clean(' > '.join(wait.path))} (run {wait.run_id})"
    if wait.on == "work":
        return f"{who}, which needs no person: it works"
    about = f" ({wait.about})" if wait.status == "waiting_for_approval" else ""
    said = f"{shortened(wait.what, 200)}{about}"
    if wait.on == "person":
        return f"{who}, which waits for a person: {said}"
    return f"{who}, which needs no person: it waits for {'its parent: ' if wait.on == 'parent' else ''}{said}"


def answers(wait: Wait, invocation: Invocation) -> str:
    """Return the command with which a person answers what a run below another waits for."""
    if wait.status == "waiting_for_approval":
        return invocation.command("approvals", wait.run_id)
    return (
        invocation.command("reply", wait.run_id, "TEXT") if wait.status == "waiting_for_user" else invocation.command("show", wait.run_id)
    )


def below(state: RunState, waits: Sequence[Wait]) -> list[Wait]:
    """Return those of what a run waits for that runs below it wait for."""
    return [wait for wait in waits if wait.run_id != state.run_id]


def document(result: Result, invocation: Invocation) -> dict[str, Any]:
    """Return a result as the one JSON document of a command."""
    state = result.state
    return {
        "run_id": result.run_id,
        "status": result.status,
        "reason": result.reason,
        "output": result.output,
        "artifacts": result.artifacts,
        "partial": result.partial,
        "error": result.error,
        "traceback": result.traceback,
        "iterations": result.iterations,
        "usage": result.usage,
        "reserved": state.held,
        "dimension": state.dimension,
        "limit": state.limit,
        "used": state.used,
        "in_doubt": state.in_doubt,
        "approvals": approvals_of(state),
        "questions": [{"ask_id": a.ask_id, "question": a.question} for a in state.asks.values()],
        "waits_for": invocation.waits,
        "records": state.seq,
        "digest": state.digest,
        "receipt": result.receipt,
        "next": next_commands(state, invocation),
        **({"answered": result.answered} if result.answered else {}),
    }


def report(result: Result, invocation: Invocation) -> None:
    """Write the answer to stdout, and the status and what to do next to stderr; with `--json` only the document."""
    output = invocation.output
    if output.json:
        output.document(document(result, invocation))
        return
    if result.output is not None:
        show_answer(output, result.output, by_model=result.usage.model_calls > 0)
    usage = result.usage
    failed = f", {usage.failures} failed" if usage.failures else ""
    counts = f"{counted(usage.iterations, 'iteration')}, {counted(usage.tool_calls, 'call')}{failed}"
    if usage.model_calls:
        told = f": {spent(usage)}" if usage.total_tokens else ", no tokens reported"
        counts += f" · {counted(usage.model_calls, 'model call')}{told}"
    output.say(f"{headline(result.state)} · {counts} · run {invocation.short(result.run_id)}", style_of(result.status))
    if held := reserved(result.state.held):
        output.say(f"  reserved for children that have not ended: {held}")
    if result.partial and result.output is None:
        output.say(f"  best text so far: {shortened(result.partial, 200)}")
    for line in (*made_files(result.artifacts, result.run_id, invocation), *waits_for(result.state, invocation.waits)):
        output.say(f"  {line}")
    commands = next_commands(result.state, invocation)
    if commands and invocation.engine.store.url == "ram:":
        output.say("  the store is in memory, so the run ends with this command; give --store URL to keep it")
        commands = []
    for command in commands:
        output.say(f"  next: {command}")
    if why := why_waiting(result.state, invocation.waits):
        output.say(why, style_of(result.status))


def headline(state: RunState) -> str:
    """Return the run's status and its reason on one line."""
    if state.status == "completed":
        return f"completed ({state.reason})"
    if state.terminal:
        bound = f" {state.dimension}" if state.dimension and state.reason == "budget_exhausted" else ""
        bound += " of a pass, which its strategy sets" if _of_a_pass(state) else ""
        return f"{state.status}: {state.reason}{bound}" + (f": {shortened(state.error, None)}" if state.error else "")
    return "suspended, can be resumed" if state.status == "running" else state.status.replace("_", " ")


def why_waiting(state: RunState, waits: Sequence[Wait] = ()) -> str:
    """Return one line that says what a waiting run waits for, "" for any other run."""
    if not state.status.startswith("waiting"):
        return ""
    calls = [f"{clean(asked.tool)} (call {asked.call_id}): {clean(asked.reason)}" for asked in approvals_of(state)]
    reasons = [f"approval of {'; '.join(calls)}"] if calls else []
    reasons += [f"an answer: {shortened(ask.question, 200)}" for ask in state.asks.values()]
    reasons += [f"someone to check whether call {call} happened" for call in state.in_doubt]
    reasons += [f"someone to accept {clean(name)} as {level}" for name, level in state.lowered.items()]
    reasons += [f"{due:%Y-%m-%d %H:%M:%S} UTC" for due in sleeps(state)]
    children = [f"child run {child.child}" for child in state.children.values() if child.status == "open"]
    reasons += [whom(wait) for wait in below(state, waits)] or children
    reasons += [f"an operator, because its workers gave up: {shortened(state.dead_letter, 200)}"] if state.dead_letter else []
    return f"the run waits for {' and '.join(reasons)}" if reasons else headline(state)


def sleeps(state: RunState) -> list[datetime]:
    """Return the times that a run sleeps until; not those after which a call waits no longer."""
    return [] if state.terminal else [due for name, due in state.timers.items() if not name.endswith(BACKGROUND)]


def waits_for(state: RunState, waits: Sequence[Wait] = ()) -> list[str]:
    """Return a line for each thing that an unfinished run waits for; for an ended run, its calls in doubt."""
    lines: list[str] = []
    for asked in approvals_of(state):
        lines += [
            f"approve? {clean(asked.tool)}  (call {asked.call_id}: {clean(asked.reason)})",
            *request_lines(asked, margin=len(FURTHER)),
        ]
    for ask in () if state.terminal else state.asks.values():
        lines.append(f"question: {shortened(ask.question, None)}")
        if ask.expected is not None:
            lines.append(f"  answer with: {shortened(as_text(ask.expected), 200)}")
    for doubt in doubts_of(state):
        what = f"{clean(doubt.tool)} {shortened(as_text(doubt.args), 200)}: {shortened(doubt.why, None)}"
        lines.append(f"in doubt: call {doubt.call_id}: {what}; check whether it happened")
    for name, level in ({} if state.terminal else state.lowered).items():
        lines.append(f"tool {clean(name)} is declared {level} now; {state.levels[name]} holds until a person accepts the lower level")
    lines += [f"sleeps until {due:%Y-%m-%d %H:%M:%S} UTC" for due in sleeps(state)]
    children = [f"child run {child.child}: {child.status}" for child in state.children.values() if child.status == "open"]
    lines += [f"child {whom(wait)}" for wait in below(state, waits)] or children
    if state.dead_letter and not state.terminal:
        lines.append(f"given up by its workers: {shortened(state.dead_letter, None)}")
    return lines


def made_files(files: Sequence[ArtifactRef], run_id: str, invocation: Invocation) -> list[str]:
    """Return a line for each file that models made, with the command that exports it."""
    return [
        f"made      {clean(file.media_type)}, {file.size_bytes} bytes: {invocation.command('export', run_id, '--artifact', file.key, '-o', 'FILE')}"
        for file in files
    ]


def next_commands(state: RunState, invocation: Invocation) -> list[str]:
    """Return the exact commands that continue the run, the most likely first; none for a completed run."""
    run, command = state.run_id, invocation.command
    if state.status == "completed":
        return []
    if state.terminal:
        again = command("reopen", run)
        tenants = state.dimension.startswith("tenant_")  # no option of the run raises that
        if _of_a_pass(state):
            return [command("show", run)]  # a higher bound of the run would end it the same way
        if state.dimension and not tenants and state.reason in ("max_iterations", "budget_exhausted"):
            again = command("reopen", run, "--budget", f"{Exhausted(state.dimension, 0, 0).option}={_more(state)}")
        return [command("show", run), again]
    found: list[str] = []
    for call in state.in_doubt:
        found += [command("reconcile", run, call, "--happened", "RESULT"), command("reconcile", run, call, "--not")]
    for call, asked in state.approvals.items():
        found += [command("approve", run, call, "--digest", asked.digest), command("deny", run, call)]
    found += [command("reply", run, "TEXT") for _ in state.asks]
    found += [command("resume", run, "--accept-level", f"{name}={level}") for name, level in state.lowered.items()]
    if state.dead_letter:
        return [command("show", run), command("reopen", run), command("cancel", run)]
    found += dict.fromkeys(answers(wait, invocation) for wait in below(state, invocation.waits) if wait.on == "person")
    return found or [command("resume", run)]


def _of_a_pass(state: RunState) -> bool:
    """Whether a bound ended the run that a strategy gave to one of its passes."""
    own = (state.dimension, state.limit, state.used)
    bounds = [bound for one in state.passes.values() if (bound := one.bound) is not None and bound.of == "pass"]
    return any((bound.dimension, bound.limit, bound.used) == own for bound in bounds) and state.limit != _bound(state)


def _bound(state: RunState) -> float | None:
    kind, _, tool = state.dimension.partition(":")
    return state.budget.calls_of(tool) if tool else getattr(state.budget, f"max_{kind}", None)


def _more(state: RunState) -> str:
    """Return a bound twice as large as the limit or the usage, whichever is larger."""
    most = max(state.limit or 0, state.used or 0)
    return f"{most * 2:g}" if most else "N"
