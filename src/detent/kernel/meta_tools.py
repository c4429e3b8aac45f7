"""Meta-tools: calls that are answered from state inside the kernel, without the tool seam (row S1-6).

A meta-tool passes guards and policy like any call. It is neither work nor progress: its answer is a `MetaToolAnswered`, and nothing is
started. The handler must be a pure function of its arguments and the state, because a resumed or replayed turn answers again.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import msgspec

from detent.core.errors import DetentError
from detent.core.events import MetaToolAnswered
from detent.core.state import CallState, KernelState
from detent.ports import ToolContext, ToolOutcome, ToolSpec

if TYPE_CHECKING:
    from detent.kernel.context import KernelContext


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What a meta-tool says to the planner."""

    content: str
    success: bool = True


class MetaTool(msgspec.Struct, frozen=True, kw_only=True):
    """A declared meta-tool; `make_kernel(meta_tools=(...,))` offers it to agents that list its name."""

    spec: ToolSpec
    handler: Callable[[dict[str, Any], KernelState, Any], Awaitable[Answer]]

    def check(self, args: dict[str, Any]) -> dict[str, Any]:
        """Return the arguments as they are; the handler says what it cannot use."""
        return args

    async def run(self, args: dict[str, Any], context: ToolContext) -> ToolOutcome:
        """Refuse: a meta-tool never passes the tool seam."""
        return ToolOutcome(kind="failed", error_code="handler_error", message=f"{self.spec.name} is a meta-tool and is not run")

    async def settle(self, context: ToolContext) -> ToolOutcome | None:
        """Nothing is ever started, so nothing is in doubt."""
        return None


async def answer(call: CallState, tool: MetaTool, context: KernelContext) -> None:
    """Answer one call from state and put the answer on record."""
    try:
        said = await tool.handler(msgspec.json.decode(msgspec.json.encode(call.args)), context.state, context)
    except Exception as error:  # noqa: BLE001 - foreign code: a handler that fails has answered badly
        text = str(error) if isinstance(error, DetentError) else f"{type(error).__name__}: {error}"
        said = Answer(content=text, success=False)
    content = await context.run.world.scrub(said.content)
    context.run.record(context.scope, MetaToolAnswered(call=call.call_id, tool=call.tool, content=content, success=said.success))
