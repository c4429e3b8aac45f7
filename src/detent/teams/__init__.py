"""Teams: agents that work on one goal together. Each file has one plain async function over `StrategyRun`, and a ready strategy.

Rule: a team starts agents only by `run.agent` and `run.agents`, and the agents only that its own agent declares (`subagents`). A file is short, so that
you can copy it and change it. A branch that fails is a result.
Start with `parallel`; `task_graph` is the most general. `members` has what they share.
"""

from __future__ import annotations

from detent.ports import Strategy
from detent.teams import debate, handoff, map_reduce, parallel, pipeline, planner_worker_critic, route, task_graph, vote

READY: dict[str, Strategy] = {
    "debate": debate.ready,
    "handoff": handoff.ready,
    "map-reduce": map_reduce.ready,
    "parallel": parallel.ready,
    "pipeline": pipeline.ready,
    "planner-worker-critic": planner_worker_critic.ready,
    "route": route.ready,
    "task-graph": task_graph.ready,
    "vote": vote.ready,
}
"""The teams that every engine knows as strategies."""
