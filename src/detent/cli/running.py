"""Commands that take runs on: run, resume, reopen, cancel, and the answers approve, deny, reconcile, reply."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from typing import Annotated, Any

import typer

from detent.cli import options as o
from detent.cli.asked import Asked
from detent.cli.output import as_text, clean, code_of_status, shortened
from detent.cli.progress import Progress
from detent.cli.session import Session, operator
from detent.cli.standing import document, report
from detent.cli.values import json_object, json_or_text, parse_variables
from detent.clock import RandomIds, SystemClock
from detent.config.environment import parse_budget
from detent.core.agent import Host
from detent.core.errors import ConfigError
from detent.engine import Engine
from detent.running.admission import new_run_id
from detent.running.results import Approval, Result, approvals_of
from detent.secrecy.redact import Redactor

Work = Callable[[Engine, Progress], Awaitable[Result]]


def run(
    goal: o.Goal = None,
    *,
    agent: o.AgentFile = None,
    model: o.Model = None,
    small_model: o.SmallModel = None,
    temperature: o.Temperature = None,
    base_url: o.BaseUrl = None,
    api_key_env: o.KeyVariable = None,
    planner: o.PlannerKind = None,
    tool_calls: o.ToolCalls = None,
    no_stream: o.NoStream = False,
    tools: o.Tools = None,
    store: o.Store = None,
    workspace: o.Workspace = None,
    config: o.ConfigFile = None,
    max_iterations: o.MaxIterations = None,
    budget: o.Bounds = None,
    var: o.Variables = None,
    run_id: o.OwnRunId = None,
    tenant: o.ForTenant = None,
    principal: o.ForPrincipal = None,
    scope: o.Scopes = None,
    credential: o.Credentials = None,
    json_wanted: o.Json = False,
    verbose: o.Verbose = 0,
) -> int:
    """Work on a goal until it is reached, or the run stops, or waits for somebody.

    The agent is that of --agent, or ./agent.toml; options about the model go before what it says. With --model and no agent file an agent
    of its own works, without tools, with those of --tools, or with all tools of the directory that --workspace names.
    """
    session = Session(store=store, config=config, workspace=workspace, agent=agent, verbose=verbose, json_wanted=json_wanted)
    asked = Asked(
        model=model,
        small_model=small_model,
        planner=planner,
        tool_calls=tool_calls,
        temperature=temperature,
        base_url=base_url,
        api_key_env=api_key_env,
        no_stream=no_stream,
        tools=tools,
    )
    host = host_of(tenant, principal, scope, credential)
    order = ordered(session, goal, asked, host, max_iterations=max_iterations, budget=budget, var=var, run_id=run_id)

    async def work(engine: Engine, progress: Progress) -> Result:
        return await engine.run(**order, observers=[progress])

    return advance(session, work)


def host_of(
    tenant: str | None, principal: str | None = None, scopes: list[str] | None = None, credentials: list[str] | None = None
) -> Host | None:
    """Return for whom a run is; None where nothing is said: it is the operator's. Raise `ConfigError` for an empty name.

    Such as that of a shell variable that is not set: the run of a tenant would be the operator's, with all secrets.
    """
    for option, name in (("--tenant", tenant), ("--principal", principal)):
        if name is not None and not name.strip():
            raise ConfigError(f"{option} is empty; name one, or leave the option out to be the operator")
    if not (tenant or principal or scopes or credentials):
        return None
    return Host(tenant=tenant or "", principal=principal or "", scopes=tuple(scopes or ()), credential_refs=tuple(credentials or ()))


def ordered(
    session: Session,
    goal: list[str] | None,
    asked: Asked,
    host: Host | None,
    *,
    max_iterations: int | None,
    budget: list[str] | None,
    var: list[str] | None,
    run_id: str | None,
) -> dict[str, Any]:
    """Return what `Engine.run` and `Engine.submit` are called with for what was typed; raise `ConfigError`."""
    text = " ".join(goal or ()).strip()
    if not text:
        raise ConfigError('no goal was given\nsay what is to be achieved, after the options: "Count the text files here"')
    if run_id is not None and not run_id.strip():
        raise ConfigError("--run-id is empty; leave it out for an id made of time and goal")
    bounds = parse_budget(budget or ()).over(session.budget)
    if max_iterations is not None:
        bounds = parse_budget([f"max_iterations={max_iterations}"], "--max-iterations").over(bounds)
    agent = session.agent(asked)
    variables = parse_variables(var or [], agent)
    public = Redactor((*agent.redact, *(session.config.redact or ())), b"").without(
        text
    )  # a run id is made of it, and ids are seen everywhere
    session.run_id = run_id or new_run_id(public, SystemClock().now(), RandomIds().token(6))
    session.begins = True
    return {"agent": agent, "goal": text, "run_id": session.run_id, "host": host, "budget": bounds, "variables": variables}


def resume(
    run: o.RunArgument,
    *,
    agent: o.AgentFile = None,
    budget: o.Bounds = None,
    by: o.By = None,
    store: o.Store = None,
    workspace: o.Workspace = None,
    config: o.ConfigFile = None,
    json_wanted: o.Json = False,
    verbose: o.Verbose = 0,
) -> int:
    """Take a run on from where its log ends: after a crash, a suspension, or an answer that was only recorded."""
    session = Session(store=store, config=config, workspace=workspace, verbose=verbose, json_wanted=json_wanted, changes=True)
    bounds = parse_budget(budget) if budget else None

    async def work(engine: Engine, progress: Progress) -> Result:
        state = await session.outfit(run, agent_file=agent)
        return await engine.resume(state.run_id, budget=bounds, by=by or operator(), observers=[progress])

    return advance(session, work)


def reopen(
    run: o.RunArgument,
    *,
    budget: o.Bounds = None,
    why: o.Why = "",
    by: o.By = None,
    no_resume: Annotated[bool, typer.Option("--no-resume", help="Leave the run to a worker; do not take it on here.")] = False,
    store: o.Store = None,
    workspace: o.Workspace = None,
    config: o.ConfigFile = None,
    json_wanted: o.Json = False,
    verbose: o.Verbose = 0,
) -> int:
    """Open a failed or stopped run again, or one that its workers gave up; use so far is kept, so a bound that is reached must be raised."""
    session = Session(store=store, config=config, workspace=workspace, verbose=verbose, json_wanted=json_wanted, changes=True)
    bounds = parse_budget(budget) if budget else None

    async def work(engine: Engine, progress: Progress) -> Result:
        state = await session.outfit(run)
        return await engine.reopen(state.run_id, by=by or operator(), why=why, budget=bounds, resume=not no_resume, observers=[progress])

    if not no_resume:
        return advance(session, work)
    result = watched(session, work)
    session.output.document(document(result, session))
    session.output.say(f"run {result.run_id} is open again; a worker takes it on")
    return 0


def cancel(
    run: o.RunArgument,
    *,
    why: o.Why = "",
    by: o.By = None,
    store: o.Store = None,
    workspace: o.Workspace = None,
    config: o.ConfigFile = None,
    json_wanted: o.Json = False,
) -> int:
    """End a run: at once where it waits or is suspended, else through the process that advances it."""
    session = Session(store=store, config=config, workspace=workspace, json_wanted=json_wanted, changes=True, bare=True)

    async def work(engine: Engine) -> Result:
        run_id = await session.find(run)  # ending a run needs none of its tools
        return await engine.cancel(run_id, by=by or operator(), why=why)

    result = session.drive(work)
    if result.state.terminal:
        report(result, session)
        return code_of_status(result.status)
    if session.output.json:
        report(result, session)
    session.output.say(f"run {result.run_id} is told to end; the process that advances it stops within seconds")
    return 0


def approve(
    run: o.RunArgument,
    call: o.CallArgument,
    *,
    args: Annotated[
        str | None, typer.Option("--args", metavar="JSON", help="Approve with these arguments instead; they are checked again.")
    ] = None,
    by: o.By = None,
    no_resume: o.NoResume = False,
    store: o.Store = None,
    workspace: o.Workspace = None,
    config: o.ConfigFile = None,
    json_wanted: o.Json = False,
    verbose: o.Verbose = 0,
) -> int:
    """Approve exactly the call that waits, and take the run on."""
    session = Session(
        store=store, config=config, workspace=workspace, verbose=verbose, json_wanted=json_wanted, changes=True, bare=no_resume
    )
    edited = json_object(args, "--args") if args is not None else None

    async def work(engine: Engine) -> Result:
        state = await session.outfit(run)
        return await engine.approve(state.run_id, call, by=by or operator(), args=edited, resume=False)

    return _answered(session, work, run, said=f"approved call {call} of", resume=not no_resume)


def deny(
    run: o.RunArgument,
    call: o.CallArgument,
    *,
    reason: Annotated[str, typer.Option("--reason", metavar="TEXT", help="Told to the planner.")] = "",
    by: o.By = None,
    no_resume: o.NoResume = False,
    store: o.Store = None,
    workspace: o.Workspace = None,
    config: o.ConfigFile = None,
    json_wanted: o.Json = False,
    verbose: o.Verbose = 0,
) -> int:
    """Refuse a call that waits, and take the run on."""
    session = Session(
        store=store, config=config, workspace=workspace, verbose=verbose, json_wanted=json_wanted, changes=True, bare=no_resume
    )

    async def work(engine: Engine) -> Result:
        state = await session.outfit(run)
        return await engine.deny(state.run_id, call, by=by or operator(), reason=reason, resume=False)

    return _answered(session, work, run, said=f"denied call {call} of", resume=not no_resume)


def reconcile(
    run: o.RunArgument,
    call: o.CallArgument,
    *,
    happened: Annotated[str | None, typer.Option("--happened", metavar="RESULT", help="It happened; RESULT is JSON, or text.")] = None,
    did_not: Annotated[bool, typer.Option("--not", help="It did not happen; it is run now, with the same key.")] = False,
    by: o.By = None,
    no_resume: o.NoResume = False,
    store: o.Store = None,
    workspace: o.Workspace = None,
    config: o.ConfigFile = None,
    json_wanted: o.Json = False,
    verbose: o.Verbose = 0,
) -> int:
    """Settle a call of which nobody knows whether it happened, and take the run on."""
    session = Session(
        store=store, config=config, workspace=workspace, verbose=verbose, json_wanted=json_wanted, changes=True, bare=no_resume
    )
    if (happened is None) == (not did_not):
        raise ConfigError("reconcile needs one of --happened RESULT (look at what the call did) and --not")

    async def work(engine: Engine) -> Result:
        state = await session.outfit(run)
        result = json_or_text(happened) if happened is not None else None
        return await engine.reconcile(state.run_id, call, happened=happened is not None, result=result, by=by or operator(), resume=False)

    return _answered(session, work, run, said=f"settled call {call} of", resume=not no_resume)


def reply(
    run: o.RunArgument,
    text: Annotated[
        list[str], typer.Argument(metavar="TEXT...", help="The reply; JSON where the question expects it.", show_default=False)
    ],
    *,
    ask: Annotated[str, typer.Option("--ask", metavar="ID", help="Which question, where several are open.")] = "",
    by: o.By = None,
    no_resume: o.NoResume = False,
    store: o.Store = None,
    workspace: o.Workspace = None,
    config: o.ConfigFile = None,
    json_wanted: o.Json = False,
    verbose: o.Verbose = 0,
) -> int:
    """Answer the question that a run asked, and take it on."""
    session = Session(
        store=store, config=config, workspace=workspace, verbose=verbose, json_wanted=json_wanted, changes=True, bare=no_resume
    )

    async def work(engine: Engine) -> Result:
        state = await session.outfit(run)
        asked = state.asks.get(ask) or (next(iter(state.asks.values())) if len(state.asks) == 1 else None)
        said: Any = " ".join(text)
        if asked is not None and asked.expected is not None and asked.expected.get("type") != "string":
            said = json_or_text(said)
        return await engine.reply(state.run_id, said, by=by or operator(), ask_id=ask, resume=False)

    return _answered(session, work, run, said="replied to", resume=not no_resume)


# Taking on ----------------------------------------------------------------------------------------------------------------------


def advance(session: Session, work: Work) -> int:
    """Do `work` with live progress, ask for approvals on a terminal, report, and return the exit code."""
    result = watched(session, work)
    while result.status == "waiting_for_approval" and _attended(session) and (answers := _ask(session, result)):

        async def answered(engine: Engine, progress: Progress, answers: dict[str, bool] = answers) -> Result:
            for call, approved in answers.items():
                decide = engine.approve if approved else engine.deny
                await decide(session.run_id, call, by=operator(), resume=False)
            return await engine.resume(session.run_id, observers=[progress])

        result = watched(session, answered)
    report(result, session)
    return code_of_status(result.status)


def watched(session: Session, work: Work) -> Result:
    """Do `work` with live progress."""
    shown = session.config.output.progress is not False
    with Progress(session.output, verbosity=session.verbosity, shown=shown) as progress:
        return session.drive(lambda engine: work(engine, progress))


def _answered(session: Session, work: Callable[[Engine], Awaitable[Result]], run: str, *, said: str, resume: bool) -> int:
    """Record an answer; then take the run on, unless that is not wanted."""
    result = session.drive(work)
    if resume:

        async def go_on(engine: Engine, progress: Progress) -> Result:
            return await engine.resume(session.run_id, observers=[progress])

        return advance(session, go_on)
    if session.output.json:
        report(result, session)
    session.output.say(f"{said} run {session.run_id}; it is taken up when the run goes on")
    session.output.say(f"  next: {session.command('resume', session.run_id)}")
    return 0


def _attended(session: Session) -> bool:
    return not session.output.json and sys.stdin.isatty() and sys.stderr.isatty()


def _ask(session: Session, result: Result) -> dict[str, bool]:
    """Ask the person at the terminal about each call that waits; what is put off is left out."""
    answers: dict[str, bool] = {}
    for request in approvals_of(result.state):
        answer = _ask_one(session, request)
        if answer is not None:
            answers[request.call_id] = answer
    return answers


def _ask_one(session: Session, request: Approval) -> bool | None:
    say = session.output.say
    say(f"\n{clean(request.tool)} wants to run ({clean(request.reason)}):", "bold")
    say(f"  {shortened(as_text(request.args), None)}")
    while True:
        sys.stderr.write("approve this call? [y]es / [n]o / [l]ater: ")
        sys.stderr.flush()
        try:
            line = sys.stdin.readline()
        except KeyboardInterrupt:
            line = ""
        match line.strip().lower():
            case "y" | "yes":
                return True
            case "n" | "no":
                return False
            case "l" | "later":
                return None
            case _ if not line:
                say()
                return None
            case _:
                say("  y, n or l")
