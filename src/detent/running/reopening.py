"""Opens failed, stopped and given-up runs again."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from detent.core.agent import Host
from detent.core.budget import Budget
from detent.core.errors import RunBusy
from detent.core.events import RunReopened
from detent.ports import Observer, wait_for_news
from detent.ports.options import check_is
from detent.running import admission
from detent.running.advancing import ADVANCED
from detent.running.answering import FIRST_LOOK_S, HEARD_S, LONGEST_LOOK_S, refuse_reopening
from detent.running.delegating import names_below
from detent.running.joining import refuse_unreserved
from detent.running.people import me, poster
from detent.running.results import Result
from detent.running.rules import named
from detent.running.runtime import Runtime, pass_on
from detent.running.snapshots import load_run


async def reopen(
    runtime: Runtime,
    run_id: str,
    *,
    by: str = "",
    why: str = "",
    budget: Budget | None = None,
    resume: bool = True,
    request: str = "",
    host: Host | None = None,
    observers: Sequence[Observer] = (),
) -> Result:
    """Open a failed, stopped or given up (`waiting_for_operator`) run again. `request` is the id of the request, if it has one.

    Refused while a bound is still exhausted; the message names the option that raises it. A run that has just ended is held until its observers and
    hooks have its end: this waits for that, for at most 2 s.
    """
    run_id = await runtime.same_host(run_id, host)
    return await reopened(runtime, run_id, by=by, why=why, budget=budget, resume=resume, operation=request, observers=observers)


async def reopened(
    runtime: Runtime,
    run_id: str,
    *,
    by: str = "",
    why: str = "",
    budget: Budget | None = None,
    resume: bool = False,
    operation: str = "",
    observers: Sequence[Observer] = (),
) -> Result:
    """Open a run again, as `reopen` does; `operation` is that over many runs, or the request, which does it."""
    admission.refuse_what_is_not_json(by=by, why=why)
    check_is(Budget, budget=budget)
    loop = asyncio.get_running_loop()
    until, pause_s = loop.time() + HEARD_S, FIRST_LOOK_S
    while True:
        state = await load_run(runtime.store, run_id)
        await refuse_unreserved(runtime.store, state, budget or Budget())
        refuse_reopening(state, budget or Budget(), runtime.parts.clock.now(), ceiling=runtime.ceiling)
        admission.refuse_bounds_of_unknown(budget or Budget(), [*names_below(state.agent, runtime.agents), *runtime.tools.names()])
        if budget is not None and budget.max_cost_usd is not None:
            runtime.refuse_unpriced(state.agent, budget, state.host)
        who = named(by or me(), run_id, what="a command")
        event = RunReopened(by=who, why=why, budget=budget, via=poster(), repeats=False, operation=operation)
        try:
            result = await runtime.go_on(run_id, event, advance=resume, observers=observers)
        except RunBusy:
            if ADVANCED.get() == run_id or loop.time() >= until:
                raise
        else:
            if not resume:
                await pass_on(runtime, run_id)
            return result
        await wait_for_news(runtime.store, pause_s, records=True)
        pause_s = min(2 * pause_s, LONGEST_LOOK_S)
