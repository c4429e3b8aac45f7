"""Branches a run: copies it up to a record, changes something, and continues as a new run.

The new log begins with `Forked` and repeats no earlier record (`lineage`). No effect may be open at that record: the outcome of a call that has begun
is not known there, and the fork could only guess. This check does not fold the parent. The parent's last snapshot names the calls that were open
there, and only the records after it are read. Whoever loads the fork checks the whole chain.
"""

from __future__ import annotations

import contextlib
import difflib
import os
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Literal

import msgspec

from detent.config.adapters import narrowed, one_of
from detent.core.actions import ToolCall
from detent.core.agent import AgentSpec, Host
from detent.core.budget import Budget
from detent.core.codec import STATE_VERSION, read_record
from detent.core.errors import ConfigError, Conflict, NotAllowedNow, RunErased, RunNotFound
from detent.core.events import Erased, Forked, Planned, RunStarted, UserAsked
from detent.core.records import RunHead
from detent.core.state import TERMINAL, RunState
from detent.ports import EventStore, Observer
from detent.ports.options import checked
from detent.running import admission
from detent.running.admission import new_run_id
from detent.running.advancing import Advancing, bounds_after
from detent.running.artifacts import refuse_damaged
from detent.running.branching import checked_edits, edited_agent
from detent.running.delegating import names_below
from detent.running.hiding import KEY_BLOB, blob_of
from detent.running.lineage import body_of, ends_with, forked_of, refuse_gone, segments
from detent.running.results import Result
from detent.running.runtime import Runtime, pass_on
from detent.running.snapshots import load_run
from detent.running.states import load_state
from detent.secrecy.placing import USER, kept_of
from detent.secrecy.redact import Redactor

Effects = Literal["dry_run", "reuse", "redo"]
EFFECTS: tuple[Effects, ...] = ("dry_run", "reuse", "redo")

_CALLS = (b'{"type":"tool_started"', b'{"type":"tool_finished"', b'{"type":"tool_in_doubt"', b'{"type":"tool_reconciled"')
_BEGAN = (b'{"type":"subagent_spawned"', b'{"type":"subagent_awaited"')
_DIGEST = 77
"""The number of bytes of a line after its body (`codec.seal`)."""
_TURN = b'","body":{"type":"turn_started"'
_BOUNDS = (b'{"type":"budget_changed"', b'{"type":"run_reopened"', b'{"type":"forked"')


class Open(msgspec.Struct, frozen=True):
    """A call with side effects that has begun and has no outcome; `doubt`: it may or may not have happened."""

    call: str
    tool: str
    doubt: bool = False


class There(msgspec.Struct, frozen=True, kw_only=True):
    """The facts about a run at some record: its owner, its agent and bounds by then, the record's digest, the open effects."""

    agent: AgentSpec
    budget: Budget
    host: Host
    digest: str
    open: Sequence[Open]


class _CallRecord(msgspec.Struct, frozen=True):
    type: str
    call: str = ""
    tool: str = ""
    side_effect: str = "destructive"
    outcome: str = ""


async def fork(
    runtime: Runtime,
    run_id: str,
    *,
    at: int | None = None,
    edits: Mapping[str, Any] | None = None,
    effects: Effects = "dry_run",
    child_id: str | None = None,
    by: str = "",
    host: Host | None = None,
    resume: bool = True,
    observers: Sequence[Observer] = (),
) -> Result:
    """Copy a run up to record `at`, change something, and continue from there unless `resume` is false.

    Without `at`: from the end of an unfinished run, or from before the last turn of a finished one. `edits` are the changes: parts of the agent by
    their names, `goal`, `budget`, `variables`, `results` ({call id: value, or {"error": ...}}) and `replies` ({question id: reply}). `effects` says
    what to do with a call that is not read-only: `dry_run` answers it with the recorded outcome of an equal call, else with a stub; `reuse` answers
    it with that outcome, else executes it; `redo` executes it. The fork shows what the parent used (`state.inherited`) and is not charged for it. It
    does not inherit what the parent waits for. `by` is who makes it, for the log; by default the host's principal. With a host, a policy among the
    edits can only tighten: it applies together with the engine's (or the tiers if the engine has none) and the agent's. Raises `NotAllowedNow` naming
    the call if an effect is open at `at`, `ConfigError` for a record, an edit or an agent that does not fit, `RunErased`, `RunNotFound`.
    """
    admission.checked_run_id(child_id)
    run_id = await runtime.visible(run_id, host)
    if child_id is not None:
        admission.checked_run_id(child_id, child_id := await runtime.kept_as(child_id, host))
    made = await _made(runtime, run_id, at=at, edits=edits, effects=effects, child_id=child_id, host=host)
    forked = msgspec.structs.replace(made.forked, by=by or ("" if host is None else host.principal))
    made = msgspec.structs.replace(made, forked=forked)
    observers = one_of(observers)
    task = runtime.take_on(made.bare.run_id, partial(_begin, runtime, made=made, resume=resume), observers, slot=resume)
    state = await runtime.reached(task)
    if resume:
        return await runtime.answered(state, observers, turns=None)
    await pass_on(runtime, state.run_id)
    return runtime.result(state)


class Made(msgspec.Struct, frozen=True, kw_only=True):
    """A fork before it is written: its first record, the state that envelope and listing are made from, and hidden values."""

    forked: Forked
    bare: RunState
    secrets: dict[str, bytes]


async def _made(
    runtime: Runtime,
    run_id: str,
    *,
    at: int | None,
    edits: Mapping[str, Any] | None,
    effects: Effects,
    child_id: str | None,
    host: Host | None,
) -> Made:
    """Return a fork that is allowed. Raise as `fork` does."""
    parts, store = runtime.parts, runtime.store
    if effects not in EFFECTS:
        raise ConfigError(f"effects={effects!r} is not known: choose one of {', '.join(EFFECTS)}")
    head = await store.head(run_id)
    if head is None:
        raise RunNotFound(run_id, store.url)
    at = await _boundary(store, head, at)
    there = await look(store, run_id, at)
    if host is not None:
        admission.same_host(run_id, there.host, host)
    plain = checked_edits(edits or {}, there.agent)
    if host is not None and "policy" in plain:
        plain["policy"] = narrowed(there.agent.policy, plain["policy"], there.agent.name)
    if host is not None:
        _refuse_commands(plain.get("verify", ()), there.agent)
    budget = checked(msgspec.convert(plain.get("budget", {}), Budget), ceiling=runtime.ceiling)
    edited = edited_agent(there.agent, plain)
    if edited != there.agent:
        runtime.refuse_unusable(edited)
    admission.refuse_bounds_of_unknown(budget, [*names_below(edited, runtime.agents), *parts.tools.names()])
    parts.affordable(edited, budget.over(there.budget), there.host)
    await _known(store, run_id, at, plain)
    refuse_open_effects(run_id, at, there)
    await refuse_damaged(store, run_id, await store.read(run_id, limit=at))
    patterns = (*parts.redact, *edited.redact)
    plain, secrets = await _hidden(store, run_id, plain, patterns)
    goal = Redactor(patterns, b"").without(plain.get("goal", head.goal))
    child_id = child_id or new_run_id(goal if runtime.goal_words_in_ids else None, parts.clock.now(), parts.ids.token(6))
    forked = Forked(parent=run_id, sequence=at, digest=there.digest, edits=plain, effects=effects, repeats=False)
    bare = RunState(
        run_id=child_id,
        goal_id=head.goal_id,
        goal=plain.get("goal", head.goal),
        agent=edited,
        host=there.host,
        openings=1,
        ancestors=(head.run_id,),
    )
    await _refuse_existing(store, child_id)
    return Made(forked=forked, bare=bare, secrets=secrets)


async def _begin(runtime: Runtime, advancing: Advancing, *, made: Made, resume: bool) -> RunState:
    """Write the fork under its claim. With `resume`, continue it under the same claim, so that no worker gets it in between."""
    parts, child_id = runtime.parts, made.bare.run_id
    await _refuse_existing(parts.store, child_id)
    async with parts.tenants.starting(made.bare.host.tenant) if parts.tenants else contextlib.nullcontext():
        for name, value in made.secrets.items():
            await parts.store.put_blob(child_id, name, value)
        await _write(advancing, made)
    if not resume:
        return await load_run(parts.store, child_id)
    await runtime.reach_servers(child_id, news=False)
    return await advancing.resume()


async def _refuse_existing(store: EventStore, child_id: str) -> None:
    """Raise `NotAllowedNow` if a run with the id of the fork exists."""
    if await store.head(child_id) is not None:
        raise NotAllowedNow(child_id, f"run {child_id!r} already exists; give the fork another id", reason_code="run_exists")


async def _made_durable(store: EventStore, run_id: str, at: int) -> None:
    """Append nothing to the parent, so that the store keeps it up to record `at` through a power failure, as it keeps the fork."""
    while ((sealed := await store.sealed(run_id)) is None or sealed[0] < at) and (head := await store.head(run_id)) is not None:
        last = [read_record(line) for line in await store.read(run_id, after=head.records - 1, limit=1)]
        if not last or isinstance(
            last[0].event, Erased | None
        ):  # it is durable already, and this entry would restore the words of the goal
            return
        head = msgspec.structs.replace(head, digest=last[0].digest)
        with contextlib.suppress(Conflict):  # the process that advances it was faster
            await store.append(run_id, head.records, (), head=head, durable=True)
            return


async def _write(advancing: Advancing, made: Made) -> None:
    """Append the record that creates the fork."""
    store, child_id = advancing.parts.store, made.bare.run_id
    journal = advancing.journal(made.bare, told=False)
    await _made_durable(store, made.forked.parent, made.forked.sequence)
    journal.record(made.forked)
    await journal.commit(durable=True)
    try:
        await refuse_gone(store, child_id, made.forked.parent)
    except (NotAllowedNow, RunErased, RunNotFound):
        await store.delete(child_id)
        raise


# The point ------------------------------------------------------------------------------------------------------------------------------------


def _refuse_commands(entries: Sequence[Mapping[str, Any]], agent: AgentSpec) -> None:
    """Raise `ConfigError` if a tenant's edit starts a program that the run's agent does not start: nobody approves checks."""
    for entry in entries:
        if "command" in entry and entry not in agent.verify:
            raise ConfigError(f"the edit of 'verify' starts {entry['command']!r}; only the operator may add commands to an agent's checks")


async def _boundary(store: EventStore, head: RunHead, at: int | None) -> int:
    """Return the record that the fork continues from. Raise `ConfigError` if it does not exist."""
    if at is not None:
        if isinstance(at, bool) or not isinstance(at, int) or not 0 < at <= head.records:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigError(f"run {head.run_id!r} has {head.records} records; fork it at one of 1 to {head.records}, not at {at!r}")
        return at
    if head.status not in TERMINAL:
        return head.records
    lines = await store.read(head.run_id)
    turns = [seq for seq, line in enumerate(lines, 1) if _TURN in line]
    return max(1, turns[-1] - 1) if turns else 1


async def look(store: EventStore, run_id: str, at: int) -> There:
    """Return the facts about the parent at record `at`, from its snapshot and the relevant records after it."""
    since, state = await _snapshot(store, run_id, at)
    start = max(0, since - 1)
    lines = await store.read(run_id, after=start, limit=at - start)
    if len(lines) < at - start:
        raise RunNotFound(run_id, store.url)
    if state is not None and not ends_with(lines[0], state.digest):  # it belongs to another log
        state, lines = None, await store.read(run_id, limit=at)
    if not body_of(lines[-1]):
        raise RunErased(run_id)
    digest = read_record(lines[-1]).digest
    if state is None:
        started, agent, above = await _origin(store, run_id, lines[0])
        bounds = _bounds(started.budget, [*above, *lines])
        return There(agent=agent, budget=bounds, host=started.host, digest=digest, open=open_effects(lines))
    calls = [call for one in state.passes.values() for call in one.calls.values() if not call.read_only]
    begun = [call for call in calls if call.status in ("started", "in_doubt", "again")]
    known = [Open(call.call_id, call.tool, call.status == "in_doubt") for call in begun]
    bounds = _bounds(state.budget, lines[1:])
    return There(agent=state.agent, budget=bounds, host=state.host, digest=digest, open=open_effects(lines[1:], known))


def _bounds(budget: Budget, lines: Sequence[bytes]) -> Budget:
    """Return the bounds after these lines."""
    return bounds_after(budget, (read_record(line).event for line in lines if body_of(line).startswith(_BOUNDS)))


async def _snapshot(store: EventStore, run_id: str, at: int) -> tuple[int, RunState | None]:
    """Return the run's snapshot (it holds no transcript) if it can be read and is not after record `at`; else (0, None)."""
    found = await store.get_snapshot(run_id)
    if found is None or not 0 < found[0] <= at or not found[1].startswith(b'{"v":%d,' % STATE_VERSION):
        return 0, None
    try:
        return found[0], load_state(found[1], RunState)
    except ValueError:
        return 0, None


async def _origin(store: EventStore, run_id: str, first: bytes) -> tuple[RunStarted, AgentSpec, list[bytes]]:
    """Return how the first ancestor was started, the run's agent (with the edits of every fork since), and the lines before the run's own."""
    above = await segments(store, run_id, [first])
    logs = [*(one.lines[0] for one in above), first]
    started = read_record(logs[0]).event
    if not isinstance(started, RunStarted):
        raise RunErased(run_id)
    agent = started.agent
    for line in logs[1:]:
        forked = forked_of(line)
        agent = edited_agent(agent, forked.edits) if forked is not None else agent
    return started, agent, [line for one in above for line in one.lines[: one.used]]


def refuse_open_effects(run_id: str, at: int, there: There) -> None:
    """Raise `NotAllowedNow` naming the call, if an effect had begun and had no outcome after record `at`."""
    for one in there.open:
        how = "is in doubt" if one.doubt else "has begun and has no outcome"
        raise NotAllowedNow(
            run_id,
            f"run {run_id!r} cannot be forked at record {at}: call {one.call} ({one.tool}) {how} there. Fork before its ToolStarted or after "
            f"its outcome (`detent explain {run_id} {one.call}` shows both), or settle the call first",
            reason_code="effect_open",
        )


def open_effects(lines: Sequence[bytes], known: Sequence[Open] = ()) -> list[Open]:
    """Return the effects that are open after these lines; `known` were open before them."""
    found = {one.call: one for one in known}
    for line in lines:
        body = body_of(line)
        if not body.startswith((*_CALLS, *_BEGAN)):
            continue
        record = msgspec.json.decode(body[:-_DIGEST], type=_CallRecord)
        match record.type:
            case "tool_started" if record.side_effect not in ("none", "read"):
                found[record.call] = Open(record.call, record.tool)
            case "tool_in_doubt" if record.call in found:
                found[record.call] = msgspec.structs.replace(found[record.call], doubt=True)
            case "tool_finished" | "subagent_spawned" | "subagent_awaited":  # a call that waits for a child: what is open is another run
                found.pop(record.call, None)
            case "tool_reconciled" if record.outcome != "again":
                found.pop(record.call, None)
            case "tool_reconciled" if record.call in found:
                found[record.call] = msgspec.structs.replace(found[record.call], doubt=False)
            case _:
                pass
    return list(found.values())


# The edits ------------------------------------------------------------------------------------------------------------------------


async def _known(store: EventStore, run_id: str, at: int, edits: Mapping[str, Any]) -> None:
    """Raise `ConfigError` for an edit of a call or question that does not exist before the fork."""
    wanted = {"results": "call", "replies": "question"}
    if not any(edits.get(name) for name in wanted):
        return
    lines = await store.read(run_id, limit=at)
    every = [line for one in await segments(store, run_id, lines) for line in one.lines[: one.used]] + list(lines)
    there: dict[str, list[str]] = {"results": [], "replies": []}
    for line in every:
        record = read_record(line)
        match record.event:
            case Planned() as event:
                calls = len(event.dropped) + (1 if event.embedded else sum(isinstance(action, ToolCall) for action in event.actions))
                there["results"] += [f"{record.envelope.scope}.{record.envelope.iteration}.{i}" for i in range(calls)]
            case UserAsked(ask_id=ask):
                there["replies"].append(ask)
            case _:
                pass
    for name, what in wanted.items():
        named: dict[str, Any] = edits.get(name, {})
        for asked in named:
            if asked not in there[name]:
                near = difflib.get_close_matches(asked, there[name], n=1)
                hint = f"did you mean {near[0]!r}?" if near else f"it has {', '.join(there[name][-5:]) or 'none'}"
                raise ConfigError(f"run {run_id!r} has no {what} {asked!r} up to record {at}; {hint}")


async def _hidden(
    store: EventStore, run_id: str, edits: dict[str, Any], patterns: Sequence[str]
) -> tuple[dict[str, Any], dict[str, bytes]]:
    """Return the edits with placeholders for sensitive values, and the blobs that hold these values."""
    if not edits or not patterns:
        return edits, {}
    key = await store.get_blob(run_id, KEY_BLOB)
    for one in reversed(await segments(store, run_id, await store.read(run_id, limit=1))) if key is None else ():
        key = key or await store.get_blob(one.run_id, KEY_BLOB)
    key = os.urandom(32) if key is None else key
    redactor = Redactor(patterns, key)
    redactor.whose = USER
    hidden = redactor.data(edits)
    kept = {blob_of(name): msgspec.json.encode(kept) for name, kept in kept_of(redactor).items()}
    return hidden, {KEY_BLOB: key, **kept} if kept else {}
