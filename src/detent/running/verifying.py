"""Decides whether an answer counts: the agent's verifiers, the `answer` hook, and the end of a pass that holds its answer (`PassStarted.holds`).

Theory of operation. If an answer is to be checked before it counts, the pass holds it: the answer does not end the turn, and the phases after `act`
see it (`state.answering`, `state.output`). When they are done, `conclude` calls each verifier and then the hook. Each verdict is an `EffectRecorded`
of the turn: it is requested once, and a resume or replay of the turn finds it. The first objection is an `AnswerObjected`: the planner is told, and
has another turn. A call that would end the turn (`done`) is judged before it runs (`judge`).

If the worker died before a verdict was recorded, the verdict is requested again, like every effect: verifiers decide, they do not act.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from detent.core.actions import FinalAnswer, is_blank
from detent.core.agent import AgentSpec
from detent.core.budget import NOTHING, Usage
from detent.core.codec import digest_of
from detent.core.errors import EffectFailed
from detent.core.events import AnswerObjected, EffectRecorded, PassFinished, Planned, failure_of
from detent.core.settle import REASONS, Settled
from detent.core.state import KernelState
from detent.expressions.markup import clean
from detent.kernel.act import act
from detent.kernel.context import KernelContext, Run
from detent.kernel.kernel import Kernel, Phase, make_kernel
from detent.kernel.think import think
from detent.ports import Passed, Plan, json_problem
from detent.ports.copies import fresh
from detent.ports.verifying import AnswerView, Verifier, verdict_label, verifier_name, verify
from detent.running.endings import REFUSED, answers_goal, finished, honest, is_for, last_turn
from detent.running.phase_hooks import ANSWER, HOOK, decided, phase_name

PRESENT = "present"
"""The kernel of a pass that only has an answer checked."""
MOST_CHARACTERS = 2000
"""How much of an objection is recorded, and told to the planner."""

VerifierOf = Callable[[AgentSpec, dict[str, Any]], Verifier]


def holds(kernel: Kernel, run: Run, task: str) -> bool:
    """Whether answers of a pass are checked before they count: by a phase after `act`, or, for the run's goal, by a hook or a verifier."""
    last, goal = phase_name(kernel.phases[-1]) if kernel.phases else "act", run.state.goal
    return last not in ("think", "act") or (_checked(run) and is_for(task or goal, goal))


def _checked(run: Run) -> bool:
    return bool(run.state.agent.verify) or ANSWER in run.hooks.before


# Verdicts -----------------------------------------------------------------------------------------------------------------------


class Answers:
    """Decides on answers (`ports.verifying.Answers`), for all runs of an engine; `verifier_of` returns the verifier of an agent's entry."""

    __slots__ = ("verifier_of",)

    def __init__(self, verifier_of: VerifierOf) -> None:
        self.verifier_of = verifier_of

    async def judge(self, answer: Any, context: KernelContext) -> str:
        """Return the first verifier's objection to an answer, "" without one. Raise `EffectFailed` if a verifier fails."""
        by, why = await _objection(self.verifier_of, answer, context)
        return f"This answer is not accepted ({by}): {why}" if why else ""

    async def conclude(self, context: KernelContext) -> None:
        """Accept or refuse the answer that the turn would end with, if it has one. End the pass if no further turn may follow."""
        state = context.state
        if state.ended:
            return
        if state.answering:
            by, why = await _decision(self.verifier_of, context)
            if context.state.ended:
                return
            context.run.record(context.scope, AnswerObjected(why=why, by=by))
        elif state.refused and _refused_now(state):
            last = state.steps[-1]
            by, why = "", last.text or (last.error.message if last.error is not None else "")
        else:
            return
        refused = context.state.refused
        if refused > context.agent.max_corrections or _no_turn_left(context):
            by = f" ({by})" if by else ""
            error = f"{refused} answer{'s were' if refused > 1 else ' was'} refused, and none may follow; the last one{by}: {why}"
            context.run.record(context.scope, PassFinished(status="failed", reason=REFUSED, error=error))


async def _objection(verifier_of: VerifierOf, answer: Any, context: KernelContext) -> tuple[str, str]:
    """Return the verifier that objects, and its reason; ("", "") if none does."""
    if not (context.state.holds and answers_goal(context)):
        return "", ""
    answer = clean(answer)
    digest = digest_of(answer)
    for number, entry in enumerate(context.agent.verify, 1):
        usage = Usage(tool_calls=1) if "command" in entry else NOTHING
        make = partial(_asked, verifier_of, entry, answer, context)
        verdict = await _verdict(context, verdict_label(number, entry, digest), make, usage)
        if (failure := failure_of(verdict)) is not None:
            raise EffectFailed(f"the check {verifier_name(entry)!r} failed, so the answer does not count: {failure}")
        if why := verdict.get("objection", ""):
            return verifier_name(entry), why
    return "", ""


async def _verdict(context: KernelContext, label: str, make: Callable[[], Any], usage: Usage) -> dict[str, Any]:
    """Return the verdict of this turn under the label, or request and record it now; `usage` is charged with it."""
    run, key = context.run, f"{HOOK}:{label}:0"
    if key not in context.state.effects:
        if usage.tool_calls:
            context.refuse_past_bound("tool_calls")
        await run.journal.commit()
        value = await run.world.effect(make, label, 0, HOOK)
        run.record(context.scope, EffectRecorded(label=label, value=value, usage=usage))
        await run.journal.commit()
    return context.state.effects[key]


async def _asked(verifier_of: VerifierOf, entry: dict[str, Any], answer: Any, context: KernelContext) -> dict[str, Any]:
    """Call one verifier. Return its verdict, with sensitive values hidden."""
    view = _seen(context)
    try:
        said = await verify(verifier_of(context.agent, entry), fresh(answer), view)
    finally:
        if (close := getattr(view.models, "close", None)) is not None:
            close()
    if not said:
        return {"accepted": True}
    hidden = await context.run.world.scrub(said, known=context.known)
    return {"accepted": False, "objection": hidden[:MOST_CHARACTERS]}


def _seen(context: KernelContext) -> AnswerView:
    """Return what a verifier sees."""
    view, run = context.view(), context.run.state
    fields: dict[str, Any] = {name: getattr(view, name) for name in view.__struct_fields__}
    fields["results"] = [item for known in run.passes.values() for item in known.results]
    return AnswerView(**fields, usage=run.usage, running_s=run.running_ms / 1000)


# The end of a pass that holds its answer ----------------------------------------------------------------------------------------


async def _decision(verifier_of: VerifierOf, context: KernelContext) -> tuple[str, str]:
    """Return who objects to the answer that the pass holds, and why. If nobody does, or the hook aborts, end the pass."""
    state = context.state
    by, why = await _objection(verifier_of, state.output, context)
    hook = context.hooks.before.get(ANSWER) if answers_goal(context) else None
    if not why and hook is not None:
        by, (kind, why) = "the answer hook", await decided(hook, f"before {ANSWER}", context)
        if kind == "abort":
            context.run.record(context.scope, PassFinished(status="failed", reason="policy_stopped", error=why))
        why = why or kind  # a hook without a reason refuses all the same
    if not why:
        settled = Settled(reason=state.answering, output=state.output)
        context.run.record(context.scope, finished(honest(context.run.state, settled, only=None if answers_goal(context) else ())))
    return by, why


def _refused_now(state: KernelState) -> bool:
    """Whether the current turn had an answer that was refused: by a phase, before it ran, or before a crash."""
    plan = state.plan
    if plan is not None and isinstance(plan.actions[0], FinalAnswer) and plan.embedded is None:
        return not plan.refused and not state.answering
    items = [call.item for call in state.calls.values() if call.item is not None]
    return any(item.error is not None and item.error.code == REFUSED for item in items)


def _no_turn_left(context: KernelContext) -> bool:
    state = context.state
    return last_turn(context.run.state, state) and (state.wrapping_up or not context.agent.wrap_up)


# An answer that no pass gave ----------------------------------------------------------------------------------------------------


def behind_act(kernel: Kernel) -> tuple[Phase, ...]:
    """Return the phases of a kernel that see an answer before it counts."""
    after = [number for number, phase in enumerate(kernel.phases, 1) if phase_name(phase) in ("think", "act")]
    return kernel.phases[after[-1] :] if after else ()


def unchecked(run: Run, returned: Any, *, behind: tuple[Phase, ...] = ()) -> bool:
    """Whether a strategy returned an answer that no pass had checked; `behind` are the phases of the run's kernel that would check it."""
    output, state = returned.output if isinstance(returned, Passed) else returned, run.state
    if not (_checked(run) or behind) or (isinstance(returned, Passed) and REASONS[returned.reason] != "completed"):
        return False
    if json_problem(output, escaping=True) or is_blank(output):
        return False
    answers = [known for known in state.passes.values() if known.status == "done" and known.holds and known.kernel_type != PRESENT]
    answers = [known for known in answers if is_for(known.steps[0].text, state.goal)]
    return not any(known.output == output for known in answers)


def presenting(output: Any, behind: tuple[Phase, ...]) -> Kernel:
    """Return the kernel of a pass whose first answer is this output, with these phases after `act`. The planner corrects a refused answer."""

    async def present(state: KernelState, context: KernelContext) -> KernelState:
        if state.plan is None and state.iteration == 1 and not state.rejected:
            plan = await context.run.world.hide(Plan(actions=(FinalAnswer(content=output),)), context.known)
            context.run.record(context.scope, Planned(actions=plan.actions, text=output if isinstance(output, str) else ""))
        return context.state

    return make_kernel(phases=(present, think, act, *behind), name=PRESENT)
