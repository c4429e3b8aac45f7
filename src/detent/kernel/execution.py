"""Execution: decide every call of the plan, then execute in order, then observe. The single path to any tool (DESIGN law 7).

    decide:  every call of the plan (`deciding`)
    execute: consecutive read-only, concurrency-safe calls together; any other alone; an open approval or doubt holds back what follows

Each decision and each outcome is its own record, so a resumed run can continue between any two of them.
"""

from __future__ import annotations

from functools import partial
from hashlib import sha256

import msgspec

from detent.core import events as e
from detent.core.actions import FinalAnswer, ToolCall, is_blank
from detent.core.codec import digest_of
from detent.core.fold import answer_in
from detent.core.state import CallState
from detent.kernel.context import KernelContext
from detent.kernel.deciding import decide, refuse
from detent.kernel.meta_tools import answer
from detent.ports import MetaTool, Tool, ToolOutcome, ToolSpec, children_full
from detent.ports.outside import BoundReached, Interrupted, error_in, finished

RETRY_CODES = ("timeout", "handler_error")


async def carry_out(context: KernelContext) -> None:
    """Execute the turn's plan as far as possible now. Raise `BoundReached`."""
    state = context.state
    plan = state.plan
    if plan is None or state.ended:
        return
    if plan.embedded is None and not isinstance(plan.actions[0], ToolCall):
        if not state.acted:
            await context.run.control(plan.actions[0], context)
        return
    for call in state.calls.values():
        if call.status == "started":
            await _settle(call, context)
            state = context.state
    digests: dict[str, str] = {}
    for call in state.calls.values():
        if call.status == "planned" and not call.refused and not context.state.ended:
            digests[call.call_id] = decide(call, context)
    asked = context.run.journal.state.approvals
    if asked and any(c in asked for c in context.state.calls):
        await context.commit(durable=True)
    await _execute(context, digests)


# Execute ----------------------------------------------------------------------------------------------------------------------


async def _execute(context: KernelContext, digests: dict[str, str]) -> None:
    """Run the allowed calls in order until something holds back the rest. `digests` has the known digests of this turn's arguments."""
    together: list[CallState] = []
    over = away = False  # a call that ends the turn has run; a child is away
    for call_id in tuple(context.state.calls):
        state = context.state
        call = state.calls[call_id]
        if call.status in ("finished", "delegated"):
            over, away = over or call.ends_turn, away or call.status == "delegated"
            continue
        tool = context.tools.get(call.tool)
        spec = None if tool is None else tool.spec
        delegates = spec is not None and spec.delegates
        alone = spec is None or not ((spec.read_only and spec.concurrency_safe) or delegates) or spec.ends_turn
        # planned: its answer came while those before it ran, and the next turn of the loop decides it
        held = call.status in ("asked", "in_doubt") or (call.status == "planned" and not call.refused)
        waits = held or (delegates and children_full(state, context.run.state, len(together)))
        if alone or waits or (together and context.tools[together[-1].tool].spec.delegates != delegates):
            await _run_group(together, context, digests)
            together = []
            state = context.state
            away = away or any(one.status == "delegated" for one in state.calls.values())
        if await context.run.world.cancels(call_id):
            raise Interrupted  # no later phase may continue from calls that were not begun: a replay could not tell why
        if state.ended or waits or (away and not delegates):
            break
        call = state.calls[call_id]
        refusal = await _refusal(call, tool, context, over=over)
        if refusal is not None or tool is None:
            code, why = refusal or ("tool_not_found", f"there is no tool {call.tool!r} here any more")
            over = over or code in ("batch_failed", "answer_refused")
            refuse(call, context, code, why)
        elif isinstance(tool, MetaTool):
            await _run_group(together, context, digests)
            together = []
            await answer(call, tool, context)
            if context.state.ended:
                _skip_rest(context)
        elif alone:
            over = tool.spec.ends_turn
            await _run_group([call], context, digests)
            now = context.state.calls[call_id]
            if now.status == "in_doubt":
                break
            if over and now.item is not None and now.item.ok:
                _skip_rest(context)
                break
        else:
            together.append(call)
    else:
        await _run_group(together, context, digests)


async def _refusal(call: CallState, tool: Tool | None, context: KernelContext, *, over: bool) -> tuple[str, str] | None:
    """Return the code and reason why a decided call is not run; None if it is run. `over`: an earlier call ended the turn."""
    if over:
        return "not_run", "not run: the call before it ended the turn"
    if call.refused:
        return call.refused, f"{call.refused}: {call.why}" if call.why else call.refused
    if tool is None or not tool.spec.ends_turn:
        return None
    if any(c.item is not None and not c.item.ok for c in context.state.calls.values()):
        return "batch_failed", f"{call.tool} is not run: an earlier call of this batch failed"
    answer, run = call.args.get("answer"), context.run
    objection = "" if isinstance(tool, MetaTool) else run.objection(FinalAnswer(content=answer), context)
    objection = objection or ("" if answer is None else await run.answers.judge(answer, context))
    return ("answer_refused", objection) if objection else None


def _skip_rest(context: KernelContext) -> None:
    """Record the observations of the calls after one that ended the turn."""
    for call in list(context.state.calls.values()):
        if call.status != "finished":
            refuse(call, context, "not_run", "not run: the call before it ended the turn")


async def _run_group(calls: list[CallState], context: KernelContext, digests: dict[str, str]) -> None:
    """Run calls together, or a single one. If calls wait for their turn, a single call waits before its intent is recorded."""
    if len(calls) == 1 and context.run.world.scheduled:
        await context.run.world.together([(calls[0], partial(_begin, calls, context, digests))], context)
    elif calls:
        await _begin(calls, context, digests)


async def _begin(calls: list[CallState], context: KernelContext, digests: dict[str, str]) -> None:
    """Begin calls. If a bound allows only the first of them, those still get their observations."""
    ready: list[tuple[CallState, str]] = []
    if (held := None if context.run.world.quiet else await context.run.world.weigh(context, calls)) is None:
        refused = _started(calls, context, digests, ready)
    else:
        async with held:
            refused = _started(calls, context, digests, ready)
        if refused is not None and not ready:  # the current state: others continued meanwhile, and their records come first
            refused = _started(calls, context, digests, ready)
    if ready and context.tools[ready[0][0].tool].spec.delegates:
        await context.run.world.delegate([call for call, _ in ready], context)
    elif len(calls) > 1 and ready:
        await context.run.world.together([(call, partial(_attempts, call, digest, context)) for call, digest in ready], context)
    elif ready:
        await _attempts(*ready[0], context)
    if refused is not None:
        raise refused


def _started(
    calls: list[CallState], context: KernelContext, digests: dict[str, str], ready: list[tuple[CallState, str]]
) -> BoundReached | None:
    """Record the beginning of calls and add those that begin to `ready`. Return the bound that refuses the rest."""
    run, unrecorded = context.run.journal.state, 0
    account = run.passes[context.scope].balance
    # other passes, and other runs of a tenant, count only what is recorded
    alone = len(run.passes) == 1 or len(run.open_passes) == 1
    quietly = alone and (account is None or account.limits.max_tool_calls is None)
    for call in calls:
        spec = context.tools[call.tool].spec
        digest = digests.get(call.call_id) or digest_of([call.tool, call.args])
        quiet = call.attempt == 0 and quietly and begins_quietly(spec)
        try:
            context.run.world.proceed()
            if call.attempt == 0 or spec.cost_usd is not None:  # a further attempt is no further call, but it costs again
                context.refuse_past_bound(*("tool_calls", "cost_usd")[call.attempt > 0 :], begun=unrecorded, cost=spec.cost_usd)
            if call.attempt == 0 and run.budget.max_calls_of:
                context.refuse_past_calls_of(call.tool, begun=ready)
        except BoundReached as error:
            return error
        unrecorded += quiet
        if not quiet:
            _start(call, spec, context, digest)
        ready.append((call, digest if quiet else ""))
    return None


def begins_quietly(tool: ToolSpec) -> bool:
    """Whether the first attempt of a call needs no record: it costs and changes nothing, and only its outcome counts."""
    return tool.side_effect in ("none", "read") and tool.cost_usd is None and not (tool.volatile or tool.ends_turn)


def _start(
    call: CallState, spec: ToolSpec, context: KernelContext, digest: str, previous: e.ToolError | None = None, *, untold: bool = False
) -> None:
    """Record the next attempt of `call`."""
    known = context.state.calls[call.call_id]
    context.run.record(
        context.scope,
        e.ToolStarted(
            call=call.call_id,
            tool=call.tool,
            key=call.key or key_of(context.run.state.run_id, call.call_id, digest),
            digest=digest,
            attempt=max(known.attempt, previous is not None) + 1,
            side_effect=spec.side_effect,
            idempotent=spec.idempotent,
            volatile=spec.volatile,
            ends_turn=spec.ends_turn,
            cost_usd=spec.cost_usd,
            trust=spec.trust,
            previous=previous,
            untold=untold,
        ),
    )


def key_of(run_id: str, call_id: str, digest: str) -> str:
    """Return the idempotency key: the same for attempts, resume, takeover and approval (DESIGN 5)."""
    return sha256(f"{run_id} {call_id} {digest}".encode()).hexdigest()[:32]


async def _attempts(call: CallState, digest: str, context: KernelContext) -> None:
    """Try a call until it has an outcome. The intent of a call with side effects is durable first (law 2).

    `digest` is given if the first attempt has no record.
    """
    tool, world = context.tools[call.tool], context.run.world
    spec, known = tool.spec, context.state.calls[call.call_id]
    effect = not spec.read_only or spec.cost_usd is not None
    left = spec.retries
    while True:
        refused = await world.intend(context, known) if effect else None
        outcome = refused or await world.attempt(tool, known, context)
        outcome = await world.keep(call.call_id, outcome)
        harmless = (spec.read_only or spec.idempotent) and outcome.kind == "failed" and outcome.error_code in RETRY_CODES
        if outcome.final or left == 0 or world.cancelled or not (harmless or outcome.kind == "not_executed"):
            break
        left -= 1
        await world.pause(min(5.0, 0.1 * 2 ** (spec.retries - left)), known)
        if world.cancelled or (spec.cost_usd is not None and context.past_bound("cost_usd", cost=spec.cost_usd)):
            break
        world.proceed()
        _start(call, spec, context, digest or known.digest, error_in(outcome), untold=bool(digest))
        digest, known = "", context.state.calls[call.call_id]
    if spec.read_only and outcome.kind == "in_doubt":
        outcome = msgspec.structs.replace(outcome, kind="failed", error_code=outcome.error_code or "in_doubt")
    await _finish(call, digest, spec, outcome, context, effect=effect)


async def _finish(call: CallState, digest: str, spec: ToolSpec, outcome: ToolOutcome, context: KernelContext, *, effect: bool) -> None:
    """Record the outcome. After an effect it is durable before anything else happens."""
    event: e.ToolFinished | e.ToolInDoubt
    if outcome.kind == "in_doubt":
        event = e.ToolInDoubt(call=call.call_id, why=outcome.message, latency_ms=round(outcome.latency_ms, 3))
    else:
        event = finished(call.call_id, outcome, digest, spec.trust if digest else "untrusted")
        answers = event.error is None and (spec.ends_turn or call.provenance == "text")
        if answers and is_blank(answer_in(msgspec.json.decode(event.result) if event.result else None)):
            error = e.ToolError(code="handler_error", message="the answer is empty")
            event = e.ToolFinished(call=call.call_id, digest=digest, error=error, latency_ms=event.latency_ms)
    context.run.journal.put(event, context.scope)
    if not effect:
        return
    await context.commit(durable=True)
    if isinstance(event, e.ToolInDoubt):
        await _settle(context.state.calls[call.call_id], context)


def give_up(context: KernelContext, why: str, code: str = "budget_exhausted") -> bool:
    """Record the observation of every call of the turn that has not begun. Return whether none is left open."""
    for call in list(context.state.calls.values()):
        if call.status in ("planned", "allowed"):
            refuse(call, context, code, f"not run: {why}")
    return all(call.status == "finished" for call in context.state.calls.values())


# In doubt ---------------------------------------------------------------------------------------------------------------------


async def _settle(call: CallState, context: KernelContext) -> None:
    """Settle a call that is in doubt, or whose attempt was open when its worker ended (DESIGN 5, in doubt).

    A call that is known not to have happened runs again if its worker ended. If the tool itself ended in doubt, the planner is told and nothing is
    retried.
    """
    tool, record = context.tools.get(call.tool), partial(context.run.record, context.scope)
    doubted = call.status == "in_doubt"
    if not doubted and (call.read_only or call.idempotent):
        record(e.ToolReconciled(call=call.call_id, outcome="again", source="retry"))
        return
    known = await context.run.world.settle(tool, call) if tool is not None else None
    if known is not None:
        record(msgspec.structs.replace(known, outcome="not_happened") if doubted and known.outcome == "again" else known)
    elif context.run.state.agent.on_unknown == "tell":
        record(e.ToolReconciled(call=call.call_id, outcome="told", source="agent"))
    elif not doubted:
        record(e.ToolInDoubt(call=call.call_id, why="its worker ended while it was running"))
    await context.commit(durable=True)
