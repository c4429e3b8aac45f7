"""What a session waits for: a question or something else of its last run, and messages that wait for their run."""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Generator, Sequence
from typing import Any

from detent.core.errors import ConfigError, NotAllowedNow, RunNotFound, SessionWaiting, ToolsMissing
from detent.core.state import RunState
from detent.ports import EventStore
from detent.running.hiding import blob_of
from detent.running.overseeing import Wait
from detent.running.results import Result
from detent.running.runtime import Runtime
from detent.running.snapshots import load_run
from detent.secrecy.placing import USER, kept_in
from detent.secrecy.redact import hidden, placeholders, resolve


async def question_of(runtime: Runtime, state: RunState) -> tuple[RunState, str] | None:
    """Return the run that asks its user something, and the id of its oldest open question: the run itself, or a child of it at any depth."""
    if state.terminal:
        return None
    if state.asks:
        return state, next(iter(state.asks))
    for child in state.children.values():
        if child.status == "open":
            with contextlib.suppress(RunNotFound):
                if (found := await question_of(runtime, await load_run(runtime.store, child.child))) is not None:
                    return found
    return None


_WAITS = {
    "waiting_for_reconciliation": "call {names} is in doubt; settle it with `detent reconcile {run} {call}{at}` and --happened RESULT or --not",
    "waiting_for_approval": "approval of call {names}; decide with `detent approve {run} {call}{at}` or `detent deny {run} {call}{at}`",
    "waiting_for_subagent": "child run {names}",
    "waiting_for_schedule": "timer {names}",
    "waiting_for_operator": "an operator: its workers gave it up; `detent reopen {run}{at}`",
}


def waits_for(session_id: str, result: Result, waits: Sequence[Wait], *, queued: bool = False) -> SessionWaiting:
    """Return the error that names what the last run waits for, with the command that decides it; `waits` are those of the runs below it, too."""
    state = result.state
    names = {
        "waiting_for_reconciliation": state.in_doubt,
        "waiting_for_approval": tuple(state.approvals),
        "waiting_for_subagent": tuple(name for name, child in state.children.items() if child.status == "open"),
        "waiting_for_schedule": tuple(state.timers),
    }.get(state.status, ())
    what = _WAITS.get(state.status, state.status).format(
        names=", ".join(names) or "?",
        run=shlex.quote(state.run_id),
        call=names[0] if len(names) == 1 else "CALL",
        at=f" --store {shlex.quote(result.store)}" if result.store not in ("", "ram:") else "",
    )
    below = [f"{' > '.join(wait.path)} ({wait.run_id}) waits for a person: {wait.what}" for wait in waits if wait.on == "person"]
    if state.status == "waiting_for_subagent":
        what += f"; {'; '.join(below)}" if below else ", which needs no person"
    then = "Your message is recorded, and is the next run after that" if queued else "The message was not recorded"
    return SessionWaiting(
        session_id, state.run_id, state.status, f"session {session_id!r} waits: its run {state.run_id!r} waits for {what}. {then}"
    )


async def unhidden(store: EventStore, runs: Sequence[str], said: Any, patterns: Sequence[str]) -> Any:
    """Return the words of a message with the values that the run it came to has hidden, so that its own run can hide and use them.

    Only values that users gave are put back, and only those that `patterns` hide in its own run too. `runs` are looked at in this order.
    """
    found: dict[str, Any] = {}
    for name in placeholders(said):
        for run_id in runs:
            if (data := await store.get_blob(run_id, blob_of(name))) is not None:
                kept = kept_in(data)
                if any(given.by == USER for given in kept.given) and hidden(kept.value, patterns) != kept.value:
                    found[name] = kept.value
                break
    return resolve(said, found) if found else said


@contextlib.contextmanager
def naming(message_id: str, by: str) -> Generator[None]:
    """Name the message that comes before the sender's own in what it raises: nothing overtakes it."""
    try:
        yield
    except (ConfigError, NotAllowedNow, ToolsMissing) as error:
        who = f" of {by}" if by else ""
        then = "Send where it can begin, or fork the session: a fork has no waiting messages"
        error.args = (f"message {message_id!r}{who} comes before yours and cannot begin here: {error}. {then}",)
        raise
