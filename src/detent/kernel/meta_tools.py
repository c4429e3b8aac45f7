"""Meta-tools: calls that the kernel answers from the state, without the tool seam (row S1-6; `ports.MetaTool`).

A meta-tool passes guards and policy like any call. It is neither work nor progress: its answer is a `MetaToolAnswered`, and nothing is started.
The handler must be a pure function of its arguments and the state, because a resumed or replayed turn calls it again.
"""

from __future__ import annotations

import msgspec

from detent.core.actions import Abstain, AskUser, FinalAnswer
from detent.core.events import MetaToolAnswered, UserAsked
from detent.core.state import CallState
from detent.kernel.context import KernelContext
from detent.ports import Answer, MetaTool
from detent.ports.outside import BoundReached, Interrupted
from detent.ports.raised import raised_by


async def answer(call: CallState, tool: MetaTool, context: KernelContext) -> None:
    """Answer one call from the state and record the answer with its notes and action."""
    code = ""
    try:
        said = await tool.handler(msgspec.json.decode(msgspec.json.encode(call.args)), context.state, context)
    except (BoundReached, Interrupted):
        raise
    except Exception as error:  # noqa: BLE001 - foreign code: a handler that fails has answered badly
        said = Answer(content=raised_by(error, f"the meta-tool {tool.name!r}"), success=False)
    if said.action is not None and (objection := context.run.objection(said.action, context)):
        said, code = Answer(content=objection, success=False), "answer_refused"
    asked, world = said.action if isinstance(said.action, AskUser) else None, context.run.world
    ends = None if asked is not None else msgspec.to_builtins(said.action)
    content, notes, ends = await world.scrub([said.content, said.notes, ends])
    ends = msgspec.convert(ends, FinalAnswer | Abstain | None)
    event = MetaToolAnswered(call=call.call_id, tool=call.tool, content=content, success=said.success, code=code, notes=notes, action=ends)
    context.run.record(context.scope, event)
    if asked is not None:
        question = await world.scrub(asked.question)
        context.run.record(context.scope, UserAsked(ask_id=call.call_id, question=question, expected=asked.expected, to=asked.to))
        await context.commit(durable=True)
