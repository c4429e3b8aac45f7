"""Read-only commands: list, show, tail, verify, replay, export, approvals, tools."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from detent.cli import options as o
from detent.cli.approving import request_lines
from detent.cli.conversations import exported, find_session, session_of
from detent.cli.invocation import Invocation
from detent.cli.operations import RunOrWhere, Where, over_many, refuse_both, with_code
from detent.cli.option_sets import Without
from detent.cli.output import FAILED, as_json, clean, code_of_status, style_of
from detent.cli.pausing import say_holds
from detent.cli.progress import Progress
from detent.cli.rendering import render
from detent.cli.standing import answers, headline, next_commands, waits_for, whom
from detent.core.errors import ConfigError, CorruptLog, Divergence
from detent.core.records import Record, RunHead
from detent.core.state import RunState
from detent.engine import Engine
from detent.expressions.display import as_text, counted, plain, shortened
from detent.history.selecting import since_of, statuses_of
from detent.history.traces import Trace, make_trace
from detent.history.trees import looks_at_tree, without_children
from detent.ports import ERASED, PARENT_ERASED, RunQuery, ToolSpec
from detent.ports.holding import Hold
from detent.ports.private_files import private_file
from detent.running.conversing import session_of_run
from detent.running.overseeing import Wait
from detent.running.results import Approval, Replay
from detent.running.snapshots import base_of

POLL_S = 0.2
QUIET_S = 10.0
"""After this many seconds without a record, `tail` prints possible reasons."""


def list_runs(
    *,
    status: Annotated[
        list[str] | None, typer.Option("--status", metavar="STATUS", help="running, waiting, completed, failed, ... Repeatable.")
    ] = None,
    tenant: Annotated[str | None, typer.Option("--tenant", metavar="NAME", help="Only runs of this tenant.")] = None,
    goal: Annotated[
        str | None, typer.Option("--goal", metavar="TEXT", help="Only runs with this goal id, or with this text in the goal or title.")
    ] = None,
    agent: Annotated[
        str | None, typer.Option("--agent", metavar="NAME", help="Only runs of this agent.", autocompletion=o.complete_agent)
    ] = None,
    since: Annotated[str | None, typer.Option("--since", metavar="WHEN", help="Only runs started since: 30m, 12h, 7d, or a date.")] = None,
    session: Annotated[
        str | None,
        typer.Option(
            "--session", metavar="ID", help=f"Only the runs of this session: {o.SESSION_HELP}.", autocompletion=o.complete_session
        ),
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="Also list the runs that other runs started, below these.")] = False,
    limit: Annotated[int, typer.Option("--limit", metavar="N", help="List at most N runs; 0 lists all.", min=0)] = 50,
    setup: o.Looking,
) -> int:
    """List runs, newest first. A message of a session is a run. Runs that other runs started are in `detent tree`."""
    invocation = Invocation(setup, bare=True)
    most = limit or None
    query = RunQuery(
        status=statuses_of(status or []),
        tenant=tenant,
        agent=agent,
        since=since_of(since) if since else None,
        limit=None if goal or session else most,
    )

    held: list[Hold] = []

    async def work(engine: Engine) -> tuple[list[RunHead], dict[str, RunState], list[Approval], dict[str, list[Wait]]]:
        held.extend(await engine.holds() if invocation.there else ())
        if session is not None:
            wanted = (await find_session(invocation, session)).id
            found = await invocation.heads(msgspec.structs.replace(query, starts_with=(f"{wanted.partition('@')[0]}.",)))
            found = [h for h in found if session_of_run(h.run_id) == wanted][:most]
        else:
            found = await (invocation.heads(query) if everything else without_children(invocation.heads, query, query.limit))
        if goal:
            found = [h for h in found if h.goal_id == goal or goal.lower() in f"{h.goal}\n{h.title}".lower()][:most]
        await invocation.name(*(h.run_id for h in found))
        dead: dict[str, RunState] = {
            h.run_id: await engine.load(h.run_id)
            for h in found
            if h.status == "waiting_for_operator" and h.reason not in (ERASED, PARENT_ERASED)
        }
        told = await engine.store.signals([h.run_id for h in found if h.status == "waiting_for_approval"])
        asked = [one for run_id, signals in told.items() if signals for one in await engine.approvals(run_id=run_id)]
        below = {h.run_id: await engine.waits(h.run_id) for h in found if h.status == "waiting_for_subagent"}
        return found, dead, [one for one in asked if one.answered_by], below

    heads, dead, answered, below = invocation.drive(work) if session is not None else invocation.drive(work, missing=([], {}, [], {}))
    more = {name: {"why": state.dead_letter} for name, state in dead.items()} | {
        name: {"waits_for": found} for name, found in below.items()
    }
    invocation.output.document([{**plain(h), **more[h.run_id]} if h.run_id in more else h for h in heads])
    if not heads:
        where = invocation.engine.store.url
        invocation.output.say(f"no matching runs in {where}" if invocation.there else f"no runs yet: {where} does not exist")
        say_holds(held, invocation.output)
        return 0
    rows = [
        (invocation.short(h.run_id), _status(h, below), str(h.iterations), f"{h.created_at:%Y-%m-%d %H:%M:%S}", h.agent, _about(h))
        for h in heads
    ]
    head = ("RUN", "STATUS", "TURNS", "STARTED (UTC)", "AGENT", "GOAL")
    invocation.output.table(head, rows, [style_of(h.status) for h in heads], spare=("STARTED (UTC)", "TURNS", "AGENT"))
    say_holds(held, invocation.output)
    for state in dead.values():
        invocation.output.say(f"run {invocation.short(state.run_id)}: {waits_for(state)[-1]}", style_of(state.status))
        invocation.output.say(f"  next: {invocation.command('reopen', state.run_id)}")
    persons = {(wait.run_id, wait.about): (run_id, wait) for run_id, waits in below.items() for wait in waits if wait.on == "person"}
    for run_id, wait in persons.values():
        invocation.output.say(f"run {invocation.short(run_id)}: {whom(wait)}", style_of(wait.status))
        invocation.output.say(f"  next: {answers(wait, invocation)}")
    for asked in answered:
        invocation.output.say(f"run {invocation.short(asked.run_id)}: call {asked.call_id} was {_answered(asked)}")
        invocation.output.say(f"  next: {invocation.command('resume', asked.run_id)}")
    if most is not None and len(heads) == most:
        invocation.output.say(f"the newest {most}; --limit 0 shows all")
    return 0


def _status(head: RunHead, below: dict[str, list[Wait]]) -> str:
    """Return the status of a run in the list. Of one that waits for children, say whether one of these waits for a person."""
    needs = any(wait.on == "person" for wait in below.get(head.run_id, ()))
    return f"{head.status}: person" if needs else head.status


def _about(head: RunHead) -> str:
    """Return the text of a run in the column GOAL."""
    about = head.title or head.goal
    return f"{about} (continues from an erased run)".strip() if head.reason == PARENT_ERASED else about or "(erased)"


def show(
    run: o.RunArgument,
    *,
    iteration: Annotated[int | None, typer.Option("--iteration", "-i", metavar="N", help="Show only this iteration.")] = None,
    full: Annotated[bool, typer.Option("--verbose", "-v", help="Show everything: input and output of each call, bounds, digests.")] = False,
    setup: o.Looking,
) -> int:
    """Show what a run did, one line per call, and how and why it ended. -v shows everything, -i one iteration."""
    invocation = Invocation(setup, bare=True)

    async def work(engine: Engine) -> tuple[Trace, RunState]:
        run_id = await invocation.find(run)
        invocation.waits = await engine.waits(run_id)
        return await traced(engine, run_id)

    trace, state = invocation.drive(work)
    trace.waits_for = invocation.waits
    if iteration is not None and all(turn.iteration != iteration for turn in trace.iterations):
        raise ConfigError(f"run {trace.run_id!r} has {len(trace.iterations)} iterations; there is no number {iteration}")
    if iteration is not None:
        trace.iterations = [turn for turn in trace.iterations if turn.iteration == iteration]
    invocation.output.document(trace)
    if not invocation.output.json:
        render(trace, state, invocation, full=full, only=iteration)
    return 0


async def traced(engine: Engine, run_id: str) -> tuple[Trace, RunState]:
    """Return what a run did, and its state."""
    base = await base_of(engine.store, run_id, await engine.store.read(run_id, limit=1))
    return make_trace(await engine.records(run_id), base), await engine.load(run_id)


def tail(
    run: o.RunArgument,
    *,
    events: Annotated[
        bool, typer.Option("--events", help="Write each record of the run and of all runs below it to stdout, as one line of JSON.")
    ] = False,
    setup: Annotated[o.Setup, Without("workspace", "json_wanted")],
) -> int:
    """Follow a run that another process advances, with the runs below it, until it ends, and exit with its exit code.

    Ctrl-C stops following, not the run.
    """
    invocation = Invocation(setup, bare=True)
    progress = Progress(invocation.output, verbosity=invocation.verbosity, shown=True)

    def show(record: Record, then: RunState) -> None:
        if events:
            invocation.output.show(as_json(_event(record, then), indent=None))
        else:
            progress.on_record(record, then)

    async def work(engine: Engine) -> RunState:
        return await _follow(engine, await invocation.find(run), invocation, show)

    state = invocation.drive(work)
    if state.output is not None and not events:
        invocation.output.show(as_text(state.output).rstrip("\n"))
    invocation.output.say(f"{headline(state)} · run {invocation.short(state.run_id)}", style_of(state.status))
    return code_of_status(state.status)


def _event(record: Record, then: RunState) -> dict[str, Any]:
    """Return a record as one line of a tree's stream of events."""
    place = record.envelope
    known = {"run": then.run_id, "parent": then.parent, "root": then.goal_id, "agent": then.agent.name, "iteration": place.iteration}
    return {**known, "sequence": place.seq, "at": place.at, "status": then.status, "event": record.event}


async def _follow(engine: Engine, run_id: str, invocation: Invocation, show: Callable[[Record, RunState], None]) -> RunState:
    """Show the records of a run and of those below it as they are committed, until it ends; return its state."""
    state, told = RunState(run_id=run_id), ""
    clock = asyncio.get_running_loop().time
    quiet_from: float | None = clock()  # None: already reported
    async for states, new in looks_at_tree(engine.store, run_id, POLL_S):
        state, quiet_from = states[run_id], clock() if new else quiet_from
        for record, then in new:
            show(record, then)
        if state.status != told and state.status.startswith("waiting"):
            for line in [headline(state), *waits_for(state), *(f"next: {c}" for c in next_commands(state, invocation))]:
                invocation.output.say(f"  {line}", "magenta")
        if state.status == "running" and quiet_from is not None and clock() - quiet_from >= QUIET_S:
            invocation.output.say(f"  nothing new for {QUIET_S:g} s: a call is slow, or the process that advanced the run is gone;")
            invocation.output.say(
                f"  then {invocation.command('resume', run_id)} continues it (if a process still works on it, that command reports so and does nothing)"
            )
            quiet_from = None
        told = state.status
    return state


def replay(run: RunOrWhere = None, *, where: Where = None, yes: o.Yes = False, setup: o.Quiet) -> int:
    """Execute a run's log again with the current code and report the first difference. No tool or model is called.

    With --where, it replays every run that matches, with the agents of this directory. `detent operations` lists the verdicts.
    """
    refuse_both(run, where)
    if run is None:
        return over_many(with_code(setup), "replay", where or (), yes=yes)
    named, invocation = run, Invocation(setup)

    async def work(engine: Engine) -> Replay:
        state = await invocation.outfit(named)
        return await engine.replay(state.run_id)

    found = invocation.drive(work)
    invocation.output.document(found)
    if found.judged_by:
        invocation.output.show(f"judged again by what the run was opened with: {', '.join(found.judged_by)}")
    for calls, what in (
        (found.not_judged, "policy not applied again, because another policy had decided"),
        (found.not_checked, "arguments not checked again, because the declaration of the tool has changed"),
    ):
        if calls:
            some = ", ".join(calls[:5]) + (", ..." if len(calls) > 5 else "")
            invocation.output.show(f"{what}: {len(calls)} calls ({some})")
    if found.divergence is None:
        invocation.output.show(f"identical: {found.records} records", "green")
        return 0
    invocation.output.show(f"differs at record {found.divergence.sequence}", "red")
    invocation.output.show(f"  the log has      {shortened(found.divergence.expected, 400)}")
    invocation.output.show(f"  this code gives  {shortened(found.divergence.actual, 400)}")
    return 1


def export(
    run: Annotated[
        str | None,
        typer.Argument(metavar="[RUN]", help=f"{o.RUN_HELP} Not with --session.", show_default=False, autocompletion=o.complete_run),
    ] = None,
    *,
    session: Annotated[
        str | None,
        typer.Option(
            "--session",
            metavar="ID",
            help=f"Write the conversation of a session as Markdown instead: {o.SESSION_HELP}.",
            autocompletion=o.complete_session,
        ),
    ] = None,
    as_data: Annotated[bool, typer.Option("--json", help="With --session: write one JSON document.")] = False,
    file: Annotated[Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write to FILE instead of stdout.")] = None,
    script: Annotated[
        bool, typer.Option("--script", help="Write the run's plans as a script for tests (detent.testing.RecordedPlanner) instead.")
    ] = False,
    by_sequence: Annotated[
        bool, typer.Option("--by-sequence", help="With --script: write only the plans in order, without what the planner was shown.")
    ] = False,
    artifact: Annotated[
        str,
        typer.Option("--artifact", metavar="KEY", help="Write this artifact instead: a file that a model made, or a complete tool result."),
    ] = "",
    workspace: o.Workspace = None,
    store: o.Store = None,
    config: o.ConfigFile = None,
    trust: o.Trust = False,
) -> int:
    """Write a run's records as they are stored, one JSON object per line, or a session's conversation.

    Of a damaged log, write the readable part.
    """
    invocation = Invocation(o.Setup(store=store, config=config, workspace=workspace, trust=trust), bare=not script)
    if session is not None:
        if run is not None or script or by_sequence or artifact:
            raise ConfigError("--session writes a conversation; leave out RUN, --script, --by-sequence and --artifact")
        return _export_session(invocation, session, file, as_data=as_data)
    if run is None:
        raise ConfigError("export needs a RUN, or --session ID; `detent list` and `detent sessions` list them")
    if as_data:
        raise ConfigError("--json is an option of --session; the records of a run are JSON anyway")
    if artifact and (script or by_sequence):
        raise ConfigError("--artifact writes a file that the run names, --script its plans; give one of them")
    if artifact:
        return _export_artifact(invocation, run, file, key=artifact)
    if script or by_sequence:
        if not script:
            raise ConfigError("--by-sequence is an option of --script; add --script")
        return _export_script(invocation, run, file, by_sequence=by_sequence)

    async def work(engine: Engine) -> tuple[list[bytes], CorruptLog | None]:
        return await _readable(engine, await invocation.find(run))

    lines, damage = invocation.drive(work)
    written(invocation, file, b"".join(line + b"\n" for line in lines), f"{len(lines)} records")
    if damage is not None:
        raise damage
    return 0


def _export_session(invocation: Invocation, asked: str, file: Path | None, *, as_data: bool) -> int:
    """Write a session's conversation."""

    async def work(engine: Engine) -> bytes:
        found = await find_session(invocation, asked)
        return await exported(session_of(engine, await engine.load(found.last)), as_data=as_data)

    written(invocation, file, invocation.drive(work), "the conversation")
    return 0


def _export_artifact(invocation: Invocation, run: str, file: Path | None, *, key: str) -> int:
    """Write an artifact of the run."""

    async def work(engine: Engine) -> bytes:
        return await engine.artifact(await invocation.find(run), key)

    data = invocation.drive(work)
    written(invocation, file, data, f"{len(data)} bytes")
    return 0


def _export_script(invocation: Invocation, run: str, file: Path | None, *, by_sequence: bool) -> int:
    """Write the run's plans as a script for tests."""
    from detent.testing.recorded import Script, record_script

    async def work(engine: Engine) -> Script:
        if by_sequence:
            return await record_script(engine, await invocation.find(run), by_sequence=True)
        state = await invocation.outfit(run)
        try:
            return await record_script(engine, state.run_id)
        except Divergence:
            invocation.output.say("what the planner was shown cannot be rebuilt: `detent replay` shows why; --by-sequence does not need it")
            raise

    made = invocation.drive(work)
    written(invocation, file, made.to_json(), counted(len(made.entries), "plan"))
    return 0


def written(invocation: Invocation, file: Path | None, data: bytes, what: str) -> None:
    """Write to the file, or to stdout without one; raise `ConfigError`."""
    if file is None:
        invocation.output.write(data)
        return
    try:
        if file.exists() and not file.is_file():  # a pipe, a terminal
            file.write_bytes(data)
        else:
            with private_file(file) as out:
                out.write(data)
    except OSError as error:
        raise ConfigError(f"cannot write {file}: {error.strerror}; name another file with --output") from error
    invocation.output.say(f"wrote {what} to {file}")


async def _readable(engine: Engine, run_id: str) -> tuple[list[bytes], CorruptLog | None]:
    """Return the lines of a run. In a damaged store: the lines before the first unreadable one, and the error."""
    try:
        return await engine.store.read(run_id), None
    except CorruptLog as error:
        lines: list[bytes] = []
        while True:
            try:
                line = await engine.store.read(run_id, after=len(lines), limit=1)
            except CorruptLog:
                return lines, error
            if not line:
                return lines, error
            lines += line


def approvals(
    run: Annotated[
        str | None,
        typer.Argument(metavar="[RUN]", help="List only the calls of this run.", show_default=False, autocompletion=o.complete_run),
    ] = None,
    *,
    setup: o.Looking,
) -> int:
    """List the calls that wait for approval."""
    invocation = Invocation(setup, bare=True)

    async def work(engine: Engine) -> list[Approval]:
        waiting = await engine.approvals(run_id=await invocation.find(run) if run is not None else None)
        await invocation.name(*(asked.run_id for asked in waiting))
        return waiting

    found = invocation.drive(work) if run is not None else invocation.drive(work, missing=[])
    invocation.output.document(found)
    if not found:
        invocation.output.say("no call waits for approval")
    for asked in found:
        invocation.output.show(f"{invocation.short(asked.run_id)}  {asked.call_id}  {clean(asked.tool)}  ({clean(asked.reason)})", "bold")
        for line in request_lines(asked):
            invocation.output.show(line)
        if asked.answered_by:
            invocation.output.show(f"  {_answered(asked)}: {invocation.command('resume', asked.run_id)}")
            if len(asked.answered_by) + len(asked.approved_by) >= asked.approvers:
                continue
        invocation.output.show(f"  {invocation.command('approve', asked.run_id, asked.call_id, '--digest', asked.digest)}")
        invocation.output.show(f"  {invocation.command('deny', asked.run_id, asked.call_id)}")
    return 0


def _answered(asked: Approval) -> str:
    """Return who has answered a call whose run has not continued since."""
    return f"answered by {clean(', '.join(asked.answered_by))}, decided when the run continues"


def tools(agent: o.AgentFile = None, *, setup: Annotated[o.Setup, Without("store", "verbose")]) -> int:
    """List the available tools of the workspace, the agent file and MCP servers. This starts the servers."""
    invocation = Invocation(setup, agent=agent)
    specs = invocation.tool_specs()
    served, problems = invocation.server_tools()
    told = [{**plain(tool.spec), "server": tool.server, "level": tool.level.source} for tool in served]
    invocation.output.document([*specs, *told])
    rows = [(spec.name, spec.side_effect, _first_line(spec)) for spec in specs]
    invocation.output.table(("TOOL", "SIDE EFFECT", "WHAT IT DOES"), rows)
    if served:
        of_servers = [(t.name, t.server, _level(t.spec), t.level.source, _first_line(t.spec)) for t in served]
        invocation.output.show()
        invocation.output.table(("TOOL", "MCP SERVER", "SIDE EFFECT", "BECAUSE OF", "WHAT IT DOES"), of_servers)
    for problem in problems.values():
        invocation.output.say(f"error: {shortened(problem, None)}", "red")
    return FAILED if problems else 0


def _level(spec: ToolSpec) -> str:
    return f"{spec.side_effect}, idempotent" if spec.idempotent else spec.side_effect


def _first_line(spec: ToolSpec) -> str:
    return spec.description.strip().split("\n")[0]


# Values -------------------------------------------------------------------------------------------------------------------------
