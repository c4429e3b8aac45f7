"""The universal loop around a kernel. Every strategy runs its passes through it, and none has its own loop.

    signals → settle (all counts) → TurnStarted → settle (time) → one kernel turn → record state changes → commit → repeat

A run can resume at any record boundary: the open turn runs again, and finds what it already recorded instead of doing it twice.
"""

from __future__ import annotations

import logging

from detent.core import events as e
from detent.core.errors import Divergence, RunError, StoreError
from detent.core.settle import Reflect, Settled, Verdict, WrapUp, reached, settle, waits, wraps_up
from detent.core.state import CLOSED, KernelState
from detent.kernel.context import KernelContext, Run
from detent.kernel.execution import give_up
from detent.kernel.kernel import Kernel
from detent.ports.outside import BRANCH, BoundReached, Interrupted, Turns
from detent.ports.raised import raised_by

log = logging.getLogger("detent")

YIELD_EVERY = 16

REFLECTION = (
    "You have made no progress for {turns} turns: no new successful observation. Look at what was tried, do something different, "
    "or say honestly what is missing."
)

WRAP_UP = "This is your last turn: {option} is {limit:g} and it is used up. Answer now with what you have; say honestly what is missing."


async def run_kernel(kernel: Kernel, context: KernelContext, turns: Turns) -> Verdict:
    """Run turns of one pass until it is settled or waits. None if `turns` are used up."""
    run = context.run
    turn_over = context.state.iteration == 0
    budget, limits = run.state.budget, context.state.limits
    beside = bool(BRANCH.get())
    timed = any(bound is not None for bound in (budget.max_running_s, budget.max_total_s, limits.max_running_s, limits.max_total_s))
    while True:
        run.world.proceed()
        if not run.world.quiet:
            await run.world.absorb(run, fresh=False)
            await run.world.weigh(context)
        now = run.journal.state
        total_s = 0.0 if turn_over else now.total_s  # for an open turn that is resumed; a new one gets its own reading
        verdict = settle(
            now, now.passes[context.scope], running_s=now.running_ms / 1000, total_s=total_s, turn_over=turn_over, beside=beside
        )
        if isinstance(verdict, Reflect):
            context.run.record(context.scope, e.Reflected(message=REFLECTION.format(turns=verdict.turns)))
            continue
        last = WRAP_UP.format(option=verdict.bound.option, limit=verdict.bound.limit) if isinstance(verdict, WrapUp) else ""
        if verdict is not None and not last:
            return verdict
        if turn_over:
            if turns.left is not None and not turns.take():
                await run.journal.commit()
                return None
            turn = e.TurnStarted(iteration=now.passes[context.scope].iteration + 1, running_ms=run.world.running_ms(), wrap_up=last)
            run.journal.put(turn, context.scope)
            if timed and (late := _time(run, context.state)) is not None:
                return late
        before = run.journal.state.seq
        verdict = await _turn(kernel, context)
        if isinstance(verdict, Settled) and verdict.bound and wraps_up(run.state, context.state, verdict.bound):
            verdict = None if give_up(context, verdict.error) else verdict
        if verdict is not None:
            return verdict
        del now  # while a run waits for its commit it holds its state, and not the one before
        await run.journal.commit()
        if context.state.iteration % YIELD_EVERY == 0:
            await run.world.breathe()  # a store in memory never yields; other runs and the watcher need their turn
        turn_over = _turn_over(kernel, context, before)


def _turn_over(kernel: Kernel, context: KernelContext, before: int) -> bool:
    """Return whether every call of the turn has its outcome. A turn that has advanced none of them since record `before` fails the pass."""
    run, state = context.run, context.state
    turn_over = state.observed == len(state.calls)
    if not turn_over and not state.ended and run.state.seq == before and not (waits(run.state, state) or run.world.cancelled):
        stuck = ", ".join(c.call_id for c in state.calls.values() if c.status != "finished")
        run.record(
            context.scope, _failed(f"kernel {kernel.name!r} leaves calls without an outcome: {stuck}; add the act phase, or execute them")
        )
    return turn_over


async def _turn(kernel: Kernel, context: KernelContext) -> Verdict:
    """Run one turn. An exception of a phase ends the pass as `kernel_error` and never escapes (row S0-2)."""
    try:
        await kernel.turn(context)
        if context.state.holds:
            await context.run.answers.conclude(context)
    except BoundReached as reached_bound:
        bound = reached_bound.bound
        return Settled(reason="budget_exhausted", error=str(reached_bound), bound=bound)
    except Interrupted:
        return None  # the next turn finds the cancellation
    except (StoreError, Divergence):
        raise
    except Exception as error:  # foreign code: a phase may raise anything
        if isinstance(error, RunError) and error.code == "suspended":
            raise
        said = raised_by(error, "a phase of the kernel")
        if context.state.status not in CLOSED:
            context.run.record(context.scope, _failed(await context.run.world.scrub(said)))
    return None


def _failed(why: str) -> e.PassFinished:
    return e.PassFinished(status="failed", reason="kernel_error", error=why)


def _time(run: Run, state: KernelState) -> Settled | None:
    """Check the time bounds against the new `TurnStarted` record."""
    bound = reached(run.state, state, running_s=run.state.running_ms / 1000, total_s=run.state.total_s, turn_over=False)
    if bound is None:
        return None
    return Settled(reason="budget_exhausted", error=f"{bound.option} is {bound.limit:g} s, used {bound.used:.1f} s", bound=bound)
