"""The tool `done`: the agent reports that its work is finished, and gives the result."""

from __future__ import annotations

from typing import Any

from detent.tools.failures import refused_argument
from detent.tools.functions.function import Tool, tool


def done_tool() -> Tool[..., Any]:
    """Return the tool that ends the run with an answer."""

    @tool(side_effect="none", ends_turn=True, trust="trusted", concurrency_safe=False)
    async def done(answer: Any) -> dict[str, Any]:
        """Finish: give the final answer. Call it alone or as the last call, and only when the work is done.

        Args:
            answer: the answer, usually text; not empty.
        """
        if answer is None or (isinstance(answer, str) and not answer.strip()):
            raise refused_argument("answer is empty; say what the result is")
        return {"status": "done", "answer": answer}

    return done
