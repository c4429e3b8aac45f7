"""Deciding a call: parse → validate → scopes → freeze, digest, key → guards → policy → approval? Each decision is a record of its own."""

from __future__ import annotations

from typing import Any, cast

from detent.core import events as e
from detent.core.codec import digest_of, encode
from detent.core.errors import InvalidArguments
from detent.core.state import CallState
from detent.kernel.context import KernelContext
from detent.kernel.guards import in_doubt_guard
from detent.ports import UNREADABLE, Call, MetaTool, Tool, read_json
from detent.ports.copies import copied, ours
from detent.ports.governance import blocked, guard_name, must_ask, request_of, verdict_on


def decide(call: CallState, context: KernelContext) -> str:
    """Record whether `call` may run. A refused call gets its observation at once. Return the digest of the frozen arguments."""
    if context.run.heal is not None and (healed := context.run.heal(call, context)) is not None:
        context.run.record(context.scope, healed)
        call = context.state.calls[call.call_id]
    try:
        frozen = _frozen(call, context)
    except InvalidArguments as error:
        refuse(call, context, error.error_code, str(error), error.details)
        return ""
    if context.state.wrapping_up and not frozen.tool.ends_turn:
        refuse(call, context, "budget_exhausted", "not run: this is the last turn, in which no work is done; answer with what you have")
        return frozen.digest
    for guard in context.guards if in_doubt_guard in context.guards else (in_doubt_guard, *context.guards):
        if (block := blocked(guard, frozen, context.state, context.run.state)) is not None:
            context.run.record(context.scope, e.GuardBlocked(call=call.call_id, guard=guard_name(guard), reason=block.reason))
            refuse(call, context, "guard_blocked", block.reason)
            return frozen.digest
    run = context.run
    verdict = verdict_on(frozen, call, run.policy, run.journal.state)
    decided = e.PolicyDecided(
        call=call.call_id,
        decision=verdict.decision,
        rule=verdict.rule,
        reason=verdict.reason,
        sources=verdict.sources,
        facts=verdict.facts,
        policy=run.policy.version,
    )
    run.journal.put(decided, context.scope)
    if verdict.decision == "deny":
        refuse(call, context, "policy_denied", f"policy_denied: {verdict.reason}")
    elif verdict.decision == "require_approval":
        context.run.record(context.scope, request_of(frozen, verdict, run.journal.state, policy=run.policy.version))
    return frozen.digest


def _frozen(call: CallState, context: KernelContext) -> Call:
    """Return the call as it will be decided and run. Raise `InvalidArguments` with an error code."""
    tool = context.tools.get(call.tool)
    if tool is None:
        known = ", ".join(sorted(context.tools)) or "none"
        raise InvalidArguments(f"there is no tool {call.tool!r} here; offered: {known}", error_code="tool_not_found")
    args = _checked(call, tool, context)
    if tool.spec.scopes and (missing := [s for s in tool.spec.scopes if s not in context.run.state.host.scopes]):
        raise InvalidArguments(f"{call.tool} needs scopes that this host does not have: {', '.join(missing)}", error_code="missing_scopes")
    if problem := context.run.world.misplaced(call.call_id, tool, args):
        raise InvalidArguments(problem, error_code="placeholder_not_allowed")
    digest, asks = digest_of([call.tool, args]), must_ask(tool, args)
    said = context.run.world.conversation
    return Call(call_id=call.call_id, tool=tool.spec, args=args, digest=digest, provenance=call.provenance, asks=asks, conversation=said)


def _checked(call: CallState, tool: Tool, context: KernelContext) -> dict[str, Any]:
    """Return parsed and validated arguments. Record them if they differ from the requested ones."""
    try:
        args = read_json(call.args or "{}") if isinstance(call.args, str) else call.args
    except UNREADABLE as error:
        raise InvalidArguments(f"the arguments of {call.tool} are not JSON: {error}") from error
    if not isinstance(args, dict):
        raise InvalidArguments(f"the arguments of {call.tool} must be a JSON object, not {type(args).__name__}")
    given = cast("dict[str, Any]", args)
    args = tool.check(given if ours(tool) and not isinstance(tool, MetaTool) else copied(given))
    if encode(args) != encode(call.args):  # 5 and 5.0 are equal, and not the same
        repair = "parsed from text" if isinstance(call.args, str) else "sanitised"
        context.run.record(context.scope, e.CallHealed(call=call.call_id, tool=call.tool, args=args, repairs=(repair,)))
    return args


def refuse(call: CallState, context: KernelContext, code: str, message: str, details: dict[str, Any] | None = None) -> None:
    """Record the observation of `call`, which is not run."""
    refused = e.ToolFinished(
        call=call.call_id,
        meta=isinstance(context.tools.get(call.tool), MetaTool),
        error=e.ToolError(code=code, message=message, details=details),
    )
    context.run.record(context.scope, refused)
