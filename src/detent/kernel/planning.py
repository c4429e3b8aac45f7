"""Planning: call the planner, check the form of its answer, record `Planned` or `PlanRejected` (1 + 2 attempts).

Only the form is checked here: it decodes, has one control action or calls, and no blank answer. Unknown tools and bad arguments pass on to `act`
and become failed observations (DESIGN 6).
"""

from __future__ import annotations

from typing import Any

import msgspec

from detent.core.actions import Action, ToolCall
from detent.core.budget import NOTHING, Usage
from detent.core.errors import Divergence, MalformedPlan, PlannerFailed, StoreError, Suspended
from detent.core.events import PassFinished, Planned, PlanRejected
from detent.kernel.context import KernelContext
from detent.ports import MetaTool, Plan, written
from detent.ports.embedded_calls import embedded_call
from detent.ports.outside import BoundReached, Interrupted
from detent.ports.raised import raised_by

ATTEMPTS = 3
_CALLS = {ToolCall}


async def propose(context: KernelContext) -> Planned | None:
    """Return the turn's plan. If there is none yet, call the planner; None if this turn gets no plan.

    Every answer is recorded. So a turn calls the planner at most three times, whoever calls this function, and never again once it has a plan.
    """
    world = context.run.world
    while (state := context.state).plan is None and state.rejected < ATTEMPTS and not state.ended and not await world.cancels("plan"):
        context.refuse_past_bound("model_calls", "input_tokens", "output_tokens", "total_tokens", "cost_usd")
        started = world.running_ms()
        try:
            if world.prepares and not state.rejected:
                await world.prepare(context)
            answer = await _ask(context)
        except Interrupted:
            break
        except (BoundReached, Divergence, StoreError, Suspended):
            raise
        except MalformedPlan as error:
            await _reject(context, error.problem, raw=error.raw, usage=error.usage, started=started)
        except Exception as error:  # noqa: BLE001 - foreign code: a planner may raise anything (row K6)
            failed = error
            if getattr(error, "reason", "") == "context_overflow" and (failed := await world.makes_room(context, error)) is None:
                continue
            said = await world.scrub(raised_by(failed, "the planner"), known=context.known)
            reason = failed.reason if isinstance(failed, PlannerFailed) else PlannerFailed.code
            context.run.record(context.scope, PassFinished(status="failed", reason=reason, error=said))
        else:
            problem, event = check(answer, context, latency_ms=round(world.running_ms() - started, 3))
            problem = problem if event is None else recorded(event, context)
            if problem:
                await _reject(context, problem, raw=written(answer), usage=getattr(answer, "usage", NOTHING), started=started)
        if context.run.journal.state.usage.model_calls:
            await context.commit()
    return context.state.plan


async def _ask(context: KernelContext) -> Plan:
    """Call the planner once and return its redacted answer. Raise whatever it raises."""
    world = context.run.world
    return await world.hide(await world.plan(context.view(), context.time_left()), context.known)


async def _reject(context: KernelContext, problem: str, *, raw: str, usage: Any, started: float) -> None:
    """Record that the answer is not a plan, with sensitive values in it replaced."""
    world = context.run.world
    said = await world.scrub([problem, raw[:4000]], known=context.known)
    elapsed = round(world.running_ms() - started, 3)
    used = usage if isinstance(usage, Usage) else NOTHING
    event = PlanRejected(problem=said[0], raw=said[1], attempt=context.state.rejected + 1, usage=used, latency_ms=elapsed)
    context.run.record(context.scope, event)


def check(answer: Any, context: KernelContext, *, latency_ms: float) -> tuple[str, Planned | None]:
    """Return ("", event) for a valid plan, otherwise the problem as a text."""
    if not isinstance(answer, Plan):
        return f"expected a Plan, got {type(answer).__name__}; return Plan(actions=(...,)), or one action", None
    actions = answer.actions
    if not actions:
        return "it holds no action", None
    calls: tuple[Any, ...] = actions
    controls: tuple[Any, ...] = ()
    if set(map(type, actions)) != _CALLS:
        strange = [a for a in actions if not isinstance(a, Action)]  # type: ignore[redundant-expr]
        if strange:
            return f"{type(strange[0]).__name__} is not an action", None
        calls = tuple([a for a in actions if isinstance(a, ToolCall)])
        controls = tuple([a for a in actions if not isinstance(a, ToolCall)])
    if len(controls) > 1:
        return f"it holds {len(controls)} control actions ({', '.join(type(c).__name__ for c in controls)}); one is allowed", None
    if not all(call.tool.strip() for call in calls):
        return "a tool call names no tool", None
    embedded = embedded_call(controls, context.tools)
    if isinstance(embedded, str):
        return embedded, None
    event = Planned(
        actions=controls or calls,
        text=answer.text,
        thinking=answer.thinking,
        usage=answer.usage,
        model=answer.model,
        latency_ms=latency_ms,
        provider_data=answer.provider_data,
        files=answer.files,  # type: ignore[arg-type] - `hide` has stored them
        dropped=calls if controls else (),
        dropped_meta=tuple([c.tool for c in calls if isinstance(context.tools.get(c.tool), MetaTool)]) if controls else (),
        embedded=embedded,
        refused=context.run.objection(controls[0], context) if controls and embedded is None else "",
    )
    return "", event


def recorded(event: Planned, context: KernelContext) -> str:
    """Record a plan. If it contains something that is not JSON data, return the problem as a text."""
    try:
        context.run.journal.put(event, context.scope)
    except msgspec.ValidationError as error:  # a field of another type
        return f"it is not a plan: {error}"
    except (NotImplementedError, TypeError, ValueError, OverflowError, RecursionError) as error:
        # the encoder's; the first: a foreign object
        return f"it is not JSON data: {error}"
    return ""
