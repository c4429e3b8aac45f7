"""The universal loop around a kernel; every strategy runs passes through it and none has a loop of its own.

    signals → settle (all counts) → TurnStarted → settle (time) → one kernel turn → record state changes → commit → repeat

A run is re-entered at any record boundary: the open turn is gone through again, and what it recorded is found instead of made.
"""

from __future__ import annotations

import asyncio
import logging

from detent.core import events as e
from detent.core.codec import digest_of
from detent.core.errors import DetentError, Divergence, RunError, StoreError
from detent.core.settle import Reflect, Settled, Verdict, Wait, finish, reached, settle, waits
from detent.core.state import CLOSED, KernelState, RunState
from detent.kernel.context import KernelContext, Run, make_context
from detent.kernel.inbox import absorb
from detent.kernel.kernel import Kernel
from detent.kernel.outside import BoundReached

log = logging.getLogger("detent")

YIELD_EVERY = 16

REFLECTION = (
    "You have made no progress for {turns} turns: no new successful observation. Look at what was tried, do something different, "
    "or say honestly what is missing."
)


async def advance(run: Run, kernel: Kernel, *, scope: str = "main", turns: int | None = None) -> None:
    """Take the run on until it finishes, waits, or `turns` more turns are begun and done; its state says which."""
    await absorb(run, fresh=True)
    if scope not in run.state.passes and not run.state.terminal:
        digest = digest_of([kernel.name, kernel.version, run.state.goal])
        run.journal.record(e.PassStarted(key=scope, kernel=kernel.name, digest=digest), scope=scope)
    await run.journal.commit()
    if run.state.terminal:
        return
    context = make_context(run, scope)
    while not run.state.terminal:
        verdict = await run_kernel(kernel, context, turns=turns)
        if verdict is None:
            return
        if isinstance(verdict, Settled):
            _close(run, context, verdict)
            await run.journal.commit(durable=True)
            return
        assert isinstance(verdict, Wait)  # noqa: S101 - run_kernel returns nothing else
        if run.state.status != verdict.status:
            run.journal.record(e.RunWaiting(status=verdict.status, running_ms=run.world.running_ms()))
        await run.journal.commit(durable=True)
        if not await absorb(run, fresh=True):
            return


async def run_kernel(kernel: Kernel, context: KernelContext, *, turns: int | None = None) -> Verdict:
    """Run turns of one pass until it is settled or waits; None when `turns` are used up."""
    run = context.run
    turn_over = context.state.iteration == 0
    while True:
        run.world.proceed()
        await absorb(run, fresh=False)
        verdict = _settle(run, context.state, turn_over=turn_over)
        if isinstance(verdict, Reflect):
            context.run.record(context.scope, e.Reflected(message=REFLECTION.format(turns=verdict.turns)))
            continue
        if verdict is not None:
            return verdict
        if turn_over:
            if turns is not None:
                if turns == 0:
                    await run.journal.commit()
                    return None
                turns -= 1
            context.run.record(context.scope, e.TurnStarted(iteration=context.state.iteration + 1, running_ms=run.world.running_ms()))
            if (late := _time(run, context.state)) is not None:
                return late
        before = run.state.seq
        verdict = await _turn(kernel, context)
        if verdict is not None:
            return verdict
        await run.journal.commit()
        state = context.state
        if state.iteration % YIELD_EVERY == 0:
            await asyncio.sleep(0)  # a store in memory never yields; other runs and the watcher need their turn
        turn_over = all(c.status == "finished" for c in state.calls.values())
        if not turn_over and not state.ended and run.state.seq == before and not (waits(run.state, state) or run.world.cancelled):
            stuck = ", ".join(c.call_id for c in state.calls.values() if c.status != "finished")
            context.run.record(
                context.scope,
                _failed(f"kernel {kernel.name!r} leaves calls without an outcome: {stuck}; add the act phase, or execute them"),
            )


async def _turn(kernel: Kernel, context: KernelContext) -> Verdict:
    """One turn; what a phase raises ends the pass as `kernel_error` and never escapes (row S0-2)."""
    try:
        await kernel.turn(context, _moved)
    except BoundReached as reached_bound:
        bound = reached_bound.bound
        return Settled(reason="budget_exhausted", error=str(reached_bound), bound=bound)
    except (StoreError, Divergence):
        raise
    except Exception as error:  # foreign code: a phase may raise anything
        if isinstance(error, RunError) and error.code == "suspended":
            raise
        said = str(error) if isinstance(error, DetentError) else f"{type(error).__name__}: {error}"
        if context.state.status not in CLOSED:
            context.run.record(context.scope, _failed(await context.run.world.scrub(said)))
    return None


def _failed(why: str) -> e.PassFinished:
    return e.PassFinished(status="failed", reason="kernel_error", error=why)


def _moved(state: RunState) -> bool:
    return state.cancel is not None or state.terminal


def _settle(run: Run, state: KernelState, *, turn_over: bool) -> Verdict:
    return settle(run.state, state, running_s=run.state.running_ms / 1000, now=None, turn_over=turn_over)


def _time(run: Run, state: KernelState) -> Settled | None:
    """Check the bounds of time against what `TurnStarted` has just recorded."""
    at = run.state.updated_at
    bound = reached(run.state, state, running_s=run.state.running_ms / 1000, now=at, turn_over=False)
    if bound is None:
        return None
    return Settled(reason="budget_exhausted", error=f"{bound.option} is {bound.limit:g} s, used {bound.used:.1f} s", bound=bound)


def _close(run: Run, context: KernelContext, settled: Settled) -> None:
    """Record the end of the pass and the one exit of the run; an effect that is still open is in doubt from here on."""
    for call in context.state.calls.values():
        if call.status == "started" and not call.read_only:
            context.run.record(context.scope, e.ToolInDoubt(call=call.call_id, why="the run ended before its outcome was known"))
    event = finish(run.state, settled)
    if context.state.status not in CLOSED:
        done = event.status == "completed"
        finished = e.PassFinished(
            status="done" if done else "failed", reason=settled.reason, output=event.output, error="" if done else settled.error
        )
        context.run.record(context.scope, finished)
    run.journal.record(finish(run.state, settled))
