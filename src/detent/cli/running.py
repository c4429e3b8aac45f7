"""Commands that advance runs: run, resume, reopen, cancel, and the answers approve, deny, reconcile, reply."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Generator
from functools import partial
from typing import Annotated, Any

import msgspec
import typer

from detent.cli import options as o
from detent.cli.approving import diff_lines, refuse_unseen, request_lines
from detent.cli.drawing import diff_of, present
from detent.cli.invocation import Invocation, operator
from detent.cli.operations import RunOrWhere, Where, over_many, refuse_both, with_code
from detent.cli.orders import Order
from detent.cli.output import clean, code_of_status
from detent.cli.pausing import end_pause
from detent.cli.progress import Progress
from detent.cli.questions import Later, reply_to
from detent.cli.standing import document, headline, report
from detent.cli.trusting import attended
from detent.cli.values import json_object, json_or_text
from detent.config.environment import parse_budget
from detent.core.errors import ConfigError, NotAllowedNow, RunBusy
from detent.core.state import RunState
from detent.engine import Engine
from detent.ports.holding import held_name
from detent.running.answering import refuse_not_here, saying_posted
from detent.running.results import Answered, Approval, Result, approvals_of

Work = Callable[[Engine, Progress], Awaitable[Result]]
Answer = Callable[[Engine], Awaitable[Result]]
ASKED = ("waiting_for_approval", "waiting_for_user")
"""The statuses of a run that waits for the person at the terminal."""


def run(goal: o.Goal = None, *, order: Order, verbose: o.Verbose = 0) -> int:
    """Work on a goal until it is reached, the run stops, or it waits for somebody.

    The agent comes from --agent or ./agent.toml. Model options override the agent file. With --model and no agent file, a default agent runs:
    without tools, with the tools of --tools, or with all workspace tools if you give --workspace.
    """
    invocation = order.invocation(verbose=verbose)
    arguments = order.arguments(invocation, goal)

    async def work(engine: Engine, progress: Progress) -> Result:
        return await engine.run(**arguments, observers=[progress])

    return advance(invocation, work)


def resume(
    run: Annotated[
        str | None,
        typer.Argument(
            metavar="[RUN | KIND:NAME]",
            help=f"{o.RUN_HELP}; or what `detent pause` stopped: agent:NAME, tenant:NAME, tool:NAME, provider:NAME.",
            show_default=False,
            autocompletion=o.complete_run,
        ),
    ] = None,
    *,
    where: Where = None,
    yes: o.Yes = False,
    agent: o.AgentFile = None,
    budget: o.Bounds = None,
    accept_level: Annotated[
        list[str] | None,
        typer.Option(
            "--accept-level",
            metavar="TOOL=LEVEL",
            help="Accept that a tool now declares a lower side-effect level than the run has recorded. Repeatable.",
        ),
    ] = None,
    upgrade: Annotated[
        bool, typer.Option("--upgrade", help="Move the run to the version of the code here, also a pinned one, if it can continue with it.")
    ] = False,
    why: Annotated[
        str, typer.Option("--why", metavar="TEXT", help="With agent:NAME, tenant:NAME, tool:NAME or provider:NAME: why the pause ends.")
    ] = "",
    by: o.By = None,
    setup: o.Setup,
) -> int:
    """Continue a run from the end of its log: after a crash, a suspension, or an answer given with --no-resume.

    With agent:NAME, tenant:NAME, tool:NAME or provider:NAME: end its pause, for all workers of the store.

    With --where, it continues every run that matches and waits or was interrupted, with the agents of this directory. It first shows
    how many there are, and asks. `detent operations` lists what was done, and resumes it.
    """
    refuse_both(run, where)
    if run is None:
        if agent is not None or budget or accept_level or upgrade:
            raise ConfigError("--agent, --budget, --accept-level and --upgrade are for one run; leave them out with --where")
        return over_many(with_code(setup), "resume", where or (), yes=yes, by=by)
    named = run
    if held_name(run) is not None:
        if agent is not None or budget or accept_level:
            raise ConfigError(f"{run} is not a run: --agent, --budget and --accept-level are for runs; leave them out")
        return end_pause(run, setup, by=by or operator(), why=why)
    if why:
        raise ConfigError(f"--why is for ending a pause (agent:NAME, tenant:NAME, ...), and {run} is a run; leave it out")
    invocation = Invocation(setup, changes=True)
    bounds = parse_budget(budget) if budget else None
    pairs = [one.partition("=") for one in accept_level or ()]
    levels: dict[str, Any] = {tool: level for tool, _, level in pairs}

    async def work(engine: Engine, progress: Progress) -> Result:
        state = await invocation.outfit(named, agent_file=agent)
        options: dict[str, Any] = {"budget": bounds, "accept_levels": levels, "upgrade": upgrade, "by": by or operator()}
        return await engine.resume(state.run_id, **options, observers=[progress])

    return advance(invocation, work)


def reopen(
    run: RunOrWhere = None,
    *,
    where: Where = None,
    yes: o.Yes = False,
    budget: o.Bounds = None,
    why: o.Why = "",
    by: o.By = None,
    no_resume: Annotated[bool, typer.Option("--no-resume", help="Leave the run to a worker; do not continue it here.")] = False,
    setup: o.Setup,
) -> int:
    """Open a failed, stopped or given-up run again. Its usage so far still counts, so raise a limit that was reached (--budget).

    With --where, it opens every run that matches and leaves them to workers. It first shows how many there are, and asks. `detent operations` lists what
    was done, and resumes it.
    """
    refuse_both(run, where)
    bounds = parse_budget(budget) if budget else None
    if run is None:
        bare = Invocation(setup, changes=True, bare=True)
        return over_many(bare, "reopen", where or (), yes=yes, why=why, by=by, budget=bounds)
    named, invocation = run, Invocation(setup, changes=True)

    async def work(engine: Engine, progress: Progress) -> Result:
        state = await invocation.outfit(named)
        return await engine.reopen(state.run_id, by=by or operator(), why=why, budget=bounds, resume=not no_resume, observers=[progress])

    if not no_resume:
        return advance(invocation, work)
    result = watched(invocation, work)
    invocation.output.document(document(result, invocation))
    invocation.output.say(f"run {invocation.short(result.run_id)} is open again; a worker will pick it up")
    return 0


def cancel(
    run: RunOrWhere = None,
    *,
    where: Where = None,
    yes: o.Yes = False,
    tree: Annotated[
        bool,
        typer.Option("--tree", help="Also cancel the children that the run's end would wait for, or leave to themselves, at any depth."),
    ] = False,
    why: o.Why = "",
    by: o.By = None,
    setup: o.Quiet,
) -> int:
    """End a run. A waiting or suspended run ends at once; else the process that advances it stops. An ended run stays as it is.

    With --where, it ends every unfinished run that matches. It first shows how many there are, and asks. `detent operations` lists what was done, and
    resumes it.
    """
    refuse_both(run, where)
    invocation = Invocation(setup, changes=True, bare=True)
    if run is None:
        if tree:
            raise ConfigError("--tree is for one run; with --where children end as their parents' agents say")
        return over_many(invocation, "cancel", where or (), yes=yes, why=why, by=by)
    named = run

    async def work(engine: Engine) -> Result:
        run_id = await invocation.find(named)  # cancelling needs no tools
        before = await invocation.result(run_id)
        if before.state.terminal and before.reason != "cancelled":
            ended = f"nothing to cancel: run {invocation.short(run_id)} has already ended, {headline(before.state)}"
            raise NotAllowedNow(run_id, ended, reason_code="run_finished")
        return await engine.cancel(run_id, by=by or operator(), why=why, tree=tree)

    result = invocation.drive(work)
    if result.state.terminal:
        report(result, invocation)
        return code_of_status(result.status)
    if invocation.output.json:
        report(result, invocation)
    decided = result.answered is not None and result.answered.outcome == "accepted"
    how = "accepted" if decided else "posted, not decided yet"
    invocation.output.say(
        f"run {invocation.short(result.run_id)} is told to end: {how}. No call with a side effect starts from now on; the process that advances it stops"
    )
    return 0


def approve(
    run: o.RunArgument,
    call: o.CallArgument,
    *,
    args: Annotated[
        str | None, typer.Option("--args", metavar="JSON", help="Approve with these arguments instead. They are checked again.")
    ] = None,
    digest: Annotated[
        str, typer.Option("--digest", metavar="DIGEST", help="Refuse unless the call has this digest, as `detent approvals` showed it.")
    ] = "",
    how: o.Answering,
) -> int:
    """Approve exactly this waiting call, and continue the run."""
    edited = json_object(args, "--args") if args is not None else None

    async def decide(invocation: Invocation, engine: Engine, state: RunState) -> Result:
        return await approve_call(invocation, engine, state, call, args=edited, digest=digest, by=how.by)

    return _answered(run, how, decide, said=f"approved call {call} of")


def deny(
    run: o.RunArgument,
    call: o.CallArgument,
    *,
    reason: Annotated[str, typer.Option("--reason", metavar="TEXT", help="The reason, shown to the planner.")] = "",
    how: o.Answering,
) -> int:
    """Refuse a waiting call, and continue the run."""

    async def decide(invocation: Invocation, engine: Engine, state: RunState) -> Result:
        return await engine.deny(state.run_id, call, by=how.by or operator(), reason=reason, resume=False)

    return _answered(run, how, decide, said=f"denied call {call} of")


def reconcile(
    run: o.RunArgument,
    call: o.CallArgument,
    *,
    happened: Annotated[
        str | None, typer.Option("--happened", metavar="RESULT", help="The call happened. RESULT is its result, as JSON or text.")
    ] = None,
    did_not: Annotated[bool, typer.Option("--not", help="The call did not happen. It runs now, with the same idempotency key.")] = False,
    how: o.Answering,
) -> int:
    """Say whether an in-doubt call really happened, then continue the run."""
    if (happened is None) == (not did_not):
        raise ConfigError("reconcile needs --happened RESULT or --not; check first what the call did")

    async def decide(invocation: Invocation, engine: Engine, state: RunState) -> Result:
        result = json_or_text(happened) if happened is not None else None
        return await engine.reconcile(
            state.run_id, call, happened=happened is not None, result=result, by=how.by or operator(), resume=False
        )

    return _answered(run, how, decide, said=f"settled call {call} of")


def reply(
    run: o.RunArgument,
    text: Annotated[list[str], typer.Argument(metavar="TEXT...", help="The reply; JSON if the question expects it.", show_default=False)],
    *,
    ask: Annotated[str, typer.Option("--ask", metavar="ID", help="Which question, if several are open.")] = "",
    how: o.Answering,
) -> int:
    """Answer a question of a run, and continue the run."""

    async def decide(invocation: Invocation, engine: Engine, state: RunState) -> Result:
        asked = state.asks.get(ask) or (next(iter(state.asks.values())) if len(state.asks) == 1 else None)
        said: Any = " ".join(text)
        if asked is not None and asked.expected is not None and asked.expected.get("type") != "string":
            said = json_or_text(said)
        return await engine.reply(state.run_id, said, by=how.by or operator(), ask_id=ask, resume=False)

    return _answered(run, how, decide, said="replied to")


# Advancing ----------------------------------------------------------------------------------------------------------------------


def advance(invocation: Invocation, work: Work) -> int:
    """Do `work` with live progress, ask the person at a terminal for the answers that the run waits for, report, and return the exit code."""
    result = watched(invocation, work)
    while (
        result.status in ASKED and attended(invocation.output) and (answers := [*_ask(invocation, result), *_replies(invocation, result)])
    ):

        async def answered(engine: Engine, progress: Progress, answers: list[Answer] = answers) -> Result:
            for answer in answers:
                await answer(engine)
            with saying_posted(invocation.run_id):
                return await engine.resume(invocation.run_id, observers=[progress])

        result = watched(invocation, answered)
    report(result, invocation)
    return code_of_status(result.status)


def watched(invocation: Invocation, work: Work) -> Result:
    """Do `work` with live progress."""

    async def done(engine: Engine) -> Result:
        result = await work(engine, progress)
        invocation.waits = await engine.waits(result.run_id) if result.status == "waiting_for_subagent" else []
        return result

    with shown(invocation) as progress:
        return invocation.drive(done)


@contextlib.contextmanager
def shown(invocation: Invocation, *, names: bool = True) -> Generator[Progress]:
    """Show the runs that the block advances; with `names` also their ids."""
    with Progress(
        invocation.output,
        verbosity=invocation.verbosity,
        shown=invocation.config.output.progress is not False,
        redact=_hidden(invocation),
        finishing=invocation.stops.finishing,
        names=names,
    ) as progress:
        invocation.stops.drawn = progress.drawing
        try:
            yield progress
        finally:
            invocation.stops.drawn = False


def _hidden(invocation: Invocation) -> tuple[str, ...]:
    return invocation.config.redact or ()


def _answered(run: str, how: o.Answering, decide: Callable[[Invocation, Engine, RunState], Awaitable[Result]], *, said: str) -> int:
    """Record an answer; then continue the run, unless --no-resume is given."""
    invocation = Invocation(how.setup, changes=True, bare=how.no_resume)

    async def work(engine: Engine) -> Result:
        state = await invocation.outfit(run)
        if not how.no_resume:
            refuse_not_here(engine.runtime, state)
        return await decide(invocation, engine, state)

    given = invocation.drive(work)
    told = given.answered
    if not how.no_resume:

        async def go_on(engine: Engine, progress: Progress) -> Result:
            nonlocal told
            result = await continued(invocation, engine, progress, told)
            told = result.answered
            return result

        code = advance(invocation, go_on)
        invocation.output.say(f"{told.outcome if told else 'accepted'}: {said} run {invocation.short(invocation.run_id)}")
        return code
    if invocation.output.json:
        report(given, invocation)
    if told is not None and told.outcome == "accepted":
        invocation.output.say(f"accepted: {said} run {invocation.short(invocation.run_id)}")
        return 0
    invocation.output.say(
        f"{said} run {invocation.short(invocation.run_id)}: posted, not decided yet; it is decided when the run continues"
    )
    invocation.output.say(f"  next: {invocation.command('resume', invocation.run_id)}")
    return 0


async def approve_call(
    invocation: Invocation, engine: Engine, state: RunState, call: str, *, args: Any = None, digest: str = "", by: str | None = None
) -> Result:
    """Approve a waiting call, with other `args` if given, and show it. Raise `NotAllowedNow` if it was not shown as a whole and has no digest."""
    request = next((asked for asked in approvals_of(state) if asked.call_id == call), None)
    if request is not None and args is None:
        refuse_unseen(invocation, request, digest)
    bound = digest or (request.digest if request is not None else "")
    result = await engine.approve(state.run_id, call, by=by or operator(), args=args, digest=bound, resume=False)
    if request is not None:  # whether the answer counts is decided when the run continues
        other = " with other arguments" if args is not None else ""
        invocation.output.say(f"approving call {call}{other}: {clean(request.reason)}", "bold")
        shown = request if args is None else msgspec.structs.replace(request, args=args, origins={}, differs=None, healed=None)
        invocation.output.page(request_lines(shown))
    return result


async def continued(invocation: Invocation, engine: Engine, progress: Progress, told: Answered | None) -> Result:
    """Continue a run that was answered. Return its result and whether the answer counted. Raise `NotAllowedNow` if it was refused."""
    try:
        with saying_posted(invocation.run_id):
            result = await engine.resume(invocation.run_id, observers=[progress])
    except RunBusy:  # a worker has picked it up because of the answer
        result = await invocation.result(invocation.run_id)
    if told is not None:
        told = await engine.decided(invocation.run_id, told.signal)
    if told is not None and told.outcome == "refused":
        asks = bool(approvals_of(result.state))
        look = f"; look at what waits now: `{invocation.command('approvals', invocation.run_id)}`" if asks else ""
        raise NotAllowedNow(invocation.run_id, f"{told.why}{look}", reason_code=told.code)
    return msgspec.structs.replace(result, answered=told)


def _ask(invocation: Invocation, result: Result) -> list[Answer]:
    """Ask the person at the terminal about each waiting call; leave out postponed ones."""
    asked = [(request, _ask_one(invocation, request, result.state)) for request in approvals_of(result.state)]
    return [partial(_decide, invocation, request, approved) for request, approved in asked if approved is not None]


async def _decide(invocation: Invocation, request: Approval, approved: bool, engine: Engine) -> Result:
    decide = engine.approve if approved else engine.deny
    return await decide(invocation.run_id, request.call_id, by=operator(), digest=request.digest, resume=False)


def _replies(invocation: Invocation, result: Result) -> list[Answer]:
    """Ask the person at the terminal the run's questions; leave out postponed ones."""
    found: list[Answer] = []
    for ask in result.state.asks.values():
        with contextlib.suppress(Later):
            found.append(partial(_reply, invocation, ask.ask_id, reply_to(invocation.output, invocation.run_id, ask)))
    return found


async def _reply(invocation: Invocation, ask_id: str, said: Any, engine: Engine) -> Result:
    return await engine.reply(invocation.run_id, said, by=operator(), ask_id=ask_id, resume=False)


def _ask_one(invocation: Invocation, request: Approval, state: RunState) -> bool | None:
    """Show the call and the change that it makes in a file, and ask. The person can approve only if all of it was shown."""
    output = invocation.output
    output.say(f"\n{clean(request.tool)} wants to run ({clean(request.reason)}):", "bold")
    changes = diff_of(
        request.tool, request.args, present(state.agent.meta.get("workspace"), request.args, (*state.agent.redact, *_hidden(invocation)))
    )
    seen = output.page([*request_lines(request), *diff_lines(changes)]) and not request.too_long
    question = "approve this call? [y]es / [n]o / [l]ater: " if seen else "not all of it was shown. [n]o / [l]ater: "
    while True:
        line = output.ask(question)
        match line.strip().lower():
            case "y" | "yes" if seen:
                return True
            case "n" | "no":
                return False
            case "l" | "later":
                return None
            case _ if not line:
                output.say()
                return None
            case _:
                output.say(
                    "  y, n or l" if seen else "  n or l; `detent approvals` shows the whole call, and `detent approve` takes its digest"
                )
