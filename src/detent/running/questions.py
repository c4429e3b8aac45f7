"""Questions from a strategy to the user: a pass without a planner asks, and a fitting reply answers.

The pass is one turn: its plan is the question, its outcome the reply. It waits as rows in a store, like a question of a model. The reply is read from
state: the replies of a pass are items of its transcript, and `RunState.interventions` has the questions that they answer, in the same order.
"""

from __future__ import annotations

from typing import Any

import msgspec

from detent.core import events as e
from detent.core.actions import AskUser, is_blank
from detent.core.errors import ConfigError, NotAllowedNow
from detent.core.state import Item, KernelState, RunState
from detent.expressions.json_schema import UnusableSchema, check_schema, errors_of
from detent.kernel.act import act
from detent.kernel.context import KernelContext
from detent.kernel.kernel import Kernel, make_kernel
from detent.running.admission import fitting_reply


def refuse_unanswerable(question: AskUser) -> None:
    """Raise `ConfigError` for a blank question, or one whose expected schema is not a valid JSON Schema: no reply could fit it."""
    if is_blank(question.question):
        raise ConfigError("a question to the user is blank; say what you want to know")
    try:
        check_schema(question.expected or {}, foreign=True)
        errors_of(question.expected or {}, foreign=True)
    except UnusableSchema as error:
        raise ConfigError(f"the question {question.question!r}: what it expects {error}") from None


def asking(question: AskUser) -> Kernel:
    """Return the kernel that asks this question and ends with the reply as its output."""

    async def plan(state: KernelState, context: KernelContext) -> KernelState:
        if state.plan is None and state.iteration == 1:
            world = context.run.world
            said = await world.scrub(question.question)
            await world.breathe()  # passes beside this one continue here, live and in a replay alike
            context.run.record(context.scope, e.Planned(actions=(msgspec.structs.replace(question, question=said),)))
        return context.state

    async def conclude(state: KernelState, context: KernelContext) -> KernelState:
        run = context.run
        said = replies(run.state, context.state)
        if said and not state.ended:
            await run.world.breathe()
            output = _typed(run.state.run_id, next(iter(said.values())), question.expected)
            run.record(context.scope, e.PassFinished(status="done", reason="done_tool", output=output))
        return context.state

    return make_kernel(phases=(plan, act, conclude), name="question")


def asked(run: RunState, scope: str) -> bool:
    """Whether a question of this pass has no reply yet."""
    return any(ask.scope == scope for ask in run.asks.values())


def replies(run: RunState, state: KernelState) -> dict[str, str]:
    """Return the replies to the questions of a pass that is one turn: the question's id -> the reply as text."""
    calls = {item.call_id for item in state.results}
    questions = [
        one.about for one in run.interventions if one.kind == "user_replied" and (one.about in calls or one.about == f"{state.scope}.1")
    ]
    said = [item.text for item in list(state.steps)[1:] if item.kind == "user"]
    return dict(zip(questions, said, strict=False))


def replied(run: RunState, state: KernelState) -> tuple[Item, ...]:
    """Return the results of a pass, with replies in place of the results of the calls that asked for them."""
    said = replies(run, state)
    return tuple(
        [msgspec.structs.replace(item, result=_raw(said[item.call_id])) if item.call_id in said else item for item in state.results]
    )


def _raw(text: str) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode(text))


def _typed(run_id: str, said: str, expected: dict[str, Any] | None) -> Any:
    """Return the reply as JSON if the question expects something other than text. A reply that a fork edited may not fit, and is text."""
    try:
        return fitting_reply(run_id, said, expected)
    except NotAllowedNow:
        return said
