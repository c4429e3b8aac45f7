"""What a planner sees: built anew for each plan, from the state alone."""

from __future__ import annotations

from functools import reduce

from detent.core.budget import Usage, remaining
from detent.core.history import Seq
from detent.core.state import Item
from detent.kernel.context import KernelContext
from detent.ports import View
from detent.ports.copies import Copies, fresh
from detent.ports.tools import shown_tools


def view_of(context: KernelContext) -> View:
    """Return what the planner of a pass sees now."""
    run = context.run.journal.state
    state = run.passes[context.scope]
    used = reduce(Usage.plus, run.reserved.values(), run.usage) if run.reserved else run.usage
    transcript = state.steps
    if state.compacted:
        transcript = Seq([Item(kind="note", text=state.summary), *state.steps[state.compacted :]])
    return View(
        goal=run.goal,
        task=context.input.task,
        agent=context.agent,
        iteration=state.iteration,
        variables=fresh(context.input.variables) if context.input.variables else {},
        transcript=Copies(transcript),
        results=Copies(state.results),
        tools=shown_tools(state, context.specs, context.tools, context.agent),
        memory=tuple(fresh(state.memory)) if state.memory else (),
        budget_remaining=remaining(run.budget, used, running_s=run.running_ms / 1000, total_s=run.total_s),
        scratchpad=dict(state.scratchpad),
        guidance=(*context.input.guidance, *state.guidance) if context.input.guidance else state.guidance,
        attachments=tuple(fresh(run.attachments)) if run.attachments else (),
        conversation=context.run.world.conversation,
        output_schema=None if context.input.output_schema is None else fresh(context.input.output_schema),
        small=context.input.small,
        profile=context.profile,
        compression=context.compression,
        goals=tuple([(g.goal_id, g.goal) for g in run.goals]) if run.goals else (),
        host=run.host,
        run_id=run.run_id,
        scope=context.scope,
        attempt=state.rejected + 1,
        full=context.run.world.full,
        models=context.run.world.models(context),
    )
