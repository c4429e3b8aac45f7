"""The planner that calls a model with native tool calls, over the providers of pydantic-ai.

Rule: the request follows from the view alone; the model is reached only through `view.models`, the run's gateway.
Start with `planner`. `prompt` and `messages` build the request, `exchange` sends it, `turn` turns the answer into a plan.
"""

from __future__ import annotations

TYPE_CHECKING = False

if TYPE_CHECKING:
    from detent.planners.model.planner import ModelPlanner

__all__ = ["ModelPlanner"]


def __getattr__(name: str) -> object:
    if name != "ModelPlanner":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from detent.planners.model.planner import ModelPlanner

    return ModelPlanner
