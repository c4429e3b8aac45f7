"""`final_answer`, `abstain`, `ask_user`, `ask_parent`: the control actions as tools, for planners that can only call tools."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from detent.core.actions import Abstain, AskUser, FinalAnswer, is_blank
from detent.core.state import KernelState
from detent.expressions.json_schema import UnusableSchema, misfit
from detent.meta_tools.declaring import declared, refused
from detent.ports import UNREADABLE, Answer, read_json
from detent.ports.delegation import has_parent


class FinalAnswerArgs(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The arguments of `final_answer`."""

    answer: Annotated[Any, Meta(description="The whole answer for the user.")]
    format: Annotated[Literal["text", "markdown", "json", "csv", "html"], Meta(description="What the answer is written in.")] = "text"


async def _final_answer(args: FinalAnswerArgs, state: KernelState, context: Any) -> Answer:
    answer: Any = args.answer
    if is_blank(answer):
        return refused("final_answer: the answer is blank; say what the result is")
    schema: dict[str, Any] | None = context.input.output_schema
    if isinstance(answer, str) and (args.format == "json" or schema is not None):
        try:
            answer = read_json(answer)
        except UNREADABLE as error:
            return refused(f"final_answer: the answer is not JSON: {error}")
    try:
        problem = "" if schema is None else misfit(answer, schema)
    except UnusableSchema as error:
        problem = f"output_schema {error}"
    if problem:
        return refused(f"final_answer: {problem}")
    return Answer(content="accepted", action=FinalAnswer(content=answer))


final_answer = declared(
    "final_answer",
    "Give the final answer and end the work. Call it alone or as the last call.",
    FinalAnswerArgs,
    _final_answer,
    ends_turn=True,
)


class AbstainArgs(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The arguments of `abstain`."""

    reason: Annotated[str, Meta(min_length=1, description="Why an honest answer is not possible.")]
    missing: Annotated[tuple[str, ...], Meta(description="What would be needed.")] = ()


async def _abstain(args: AbstainArgs, state: KernelState, context: Any) -> Answer:
    return Answer(content="accepted", action=Abstain(reason=args.reason, missing=args.missing))


abstain = declared("abstain", "End the work because an honest answer is not possible, and say what is missing.", AbstainArgs, _abstain)


class AskUserArgs(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The arguments of `ask_user`."""

    question: Annotated[str, Meta(min_length=1, description="One clear question.")]
    choices: Annotated[tuple[str, ...], Meta(description="The possible answers, if there are only these.")] = ()


async def _ask_user(args: AskUserArgs, state: KernelState, context: Any) -> Answer:
    if is_blank(args.question):
        return refused("ask_user: the question is blank; say what you want to know")
    expected: dict[str, Any] | None = {"enum": list(args.choices)} if args.choices else None
    return Answer(content="the question was put to the user; the reply follows", action=AskUser(question=args.question, expected=expected))


class AskParentArgs(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The arguments of `ask_parent`."""

    question: Annotated[str, Meta(min_length=1, description="One clear question.")]


async def _ask_parent(args: AskParentArgs, state: KernelState, context: Any) -> Answer:
    if is_blank(args.question):
        return refused("ask_parent: the question is blank; say what you want to know")
    if not has_parent(context.run.state):
        return refused("ask_parent: this run has no parent to ask")
    return Answer(content="the question was put to your parent; the answer follows", action=AskUser(question=args.question, to="parent"))


ask_parent = declared(
    "ask_parent",
    "Ask the agent that started you a question and wait for the answer. Only for what no tool can tell you.",
    AskParentArgs,
    _ask_parent,
)
ask_user = declared(
    "ask_user", "Ask the user a question and wait for the reply. Only for what no tool can tell you.", AskUserArgs, _ask_user
)
