"""The one loop that drives a run until it ends or waits."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from detent.core import events as e
from detent.core.budget import NOTHING
from detent.core.errors import Divergence, PassFailed, RunError, StoreError
from detent.core.settle import Settled, waits
from detent.core.state import CLOSED, RunState
from detent.kernel.context import Run
from detent.kernel.kernel import Kernel
from detent.ports import Passed, Strategy, json_problem
from detent.ports.copies import ours
from detent.ports.outside import BoundReached, Interrupted, Turns
from detent.ports.raised import raised_by
from detent.running.endings import finish, honest
from detent.running.gathering import Waits
from detent.running.parting import departures, held, holding, waited_for
from detent.running.passes import Ends, StrategyPasses, TurnsUsed, end_pass

BOUNDS = ("max_iterations", "budget_exhausted")
"""The reasons that do not win over a recorded cancellation."""


async def drive(run: Run, strategy: Strategy, kernels: Mapping[str, Kernel] | Callable[[str], Kernel], *, turns: int | None = None) -> None:
    """Advance the run until it finishes, waits, or `turns` more turns are done. Its state says which."""
    get = kernels if callable(kernels) else kernels.__getitem__
    await run.world.absorb(run, fresh=True)
    if run.state.terminal:
        await run.journal.commit()
    left = Turns(turns)
    while not run.state.terminal:
        began = run.state.seq
        try:
            settled = held(run.state) or await _settled(run, strategy, StrategyPasses(run, get, left))
        except TurnsUsed:
            await run.journal.commit()
            return
        except Ends as end:
            settled = end.settled
        except Waits as wait:
            if run.state.cancel is None:
                if run.state.seq > began and _woken(run.state) and not run.world.stays:
                    continue
                if not await _waited(run, wait.status):
                    return
                continue
            settled = Settled(reason="cancelled", error=run.state.cancel)
        if settled.reason in BOUNDS and run.state.cancel is not None and any(known.marks for known in run.state.passes.values()):
            settled = Settled(reason="cancelled", error=run.state.cancel)  # recorded by one pass before another reached a bound
        if run.state.children and (news := holding(run.state, settled)):
            run.journal.record(*news)
            await run.journal.commit(durable=True)
        if run.state.children and waited_for(run.state):
            if not await _waited(run, "waiting_for_subagent"):
                return
            continue
        if run.state.held is not NOTHING:
            await run.world.children_begun(run)
        _close(run, settled)
        await run.journal.commit(durable=True)


async def _waited(run: Run, status: str) -> bool:
    """Wait for children that are advanced here; otherwise record what the run waits for. Return whether there is something to continue with."""
    if status == "waiting_for_subagent" and await run.world.children_move(run):
        return True
    if run.state.status != status:
        run.journal.record(e.RunWaiting(status=status, running_ms=run.world.running_ms()))
    await run.journal.commit(durable=True)
    return await run.world.absorb(run, fresh=True)


def _woken(state: RunState) -> bool:
    """Whether a pass that waited can continue: what it waited for arrived while another pass beside it continued and picked it up."""
    return any(known.status not in CLOSED and not waits(state, known) for known in state.passes.values())


async def _settled(run: Run, strategy: Strategy, passes: StrategyPasses) -> Settled:
    """Run the strategy from its top. Return what its end means for the run."""
    try:
        work = strategy(passes)
        returned = await passes.presented(await (work if ours(strategy) else run.world.attend(work, passes.hold)))
        passes.all_asked_for("the end of the strategy")
    except PassFailed as failed:
        return Settled(reason=failed.passed.reason, error=failed.passed.error or str(failed))
    except (StoreError, Divergence):
        raise
    except Interrupted:
        await run.world.absorb(run, fresh=False)
        return Settled(reason="cancelled", error=run.state.cancel or "cancelled")
    except BoundReached as late:
        return Settled(reason="budget_exhausted", error=str(late), bound=late.bound)
    except Exception as error:  # foreign code: a strategy may raise anything
        if isinstance(error, RunError) and error.code == "suspended":
            raise
        return Settled(reason="kernel_error", error=await run.world.scrub(raised_by(error, f"the strategy {run.state.agent.strategy!r}")))
    if not isinstance(returned, Passed) and (problem := json_problem(returned, escaping=True)):
        return Settled(reason="kernel_error", error=f"the strategy returned a value that is not JSON: {problem}")
    if isinstance(returned, Passed):
        return Settled(reason=returned.reason, output=returned.output, error=returned.error, bound=returned.bound)
    return Settled(reason="final_answer", output=returned)


def _close(run: Run, settled: Settled) -> None:
    """Record the end of every open pass and the one exit of the run. An effect that is still open is in doubt from here on."""
    settled = honest(run.state, settled)
    for scope in run.state.passes:
        end_pass(run, scope, settled)
    run.journal.record(*departures(run.state))
    run.journal.record(finish(run.state, settled))
