"""The command that takes on every run that can move: what a timer of the operating system calls."""

from __future__ import annotations

from detent.cli import options as o
from detent.cli.output import code_of_error, code_of_status
from detent.cli.progress import Progress
from detent.cli.running import watched
from detent.cli.session import Session
from detent.cli.standing import document, report
from detent.core.errors import DetentError, RunBusy, Suspended
from detent.engine import Engine
from detent.running.results import Result


def wake(
    *,
    setup: o.Setup,
) -> int:
    """Take on every waiting run that can move: its time has come, or an answer is there. Meant to be called every minute or so.

    A run that cannot go on here is named, and the others go on; one that another worker has is left to it. The exit code is that of the
    run that fared worst: 0 where all completed or wait again for something else.
    """
    first = Session(setup, changes=True)
    due = first.drive(lambda engine: engine.due(), missing=[])
    results: list[Result] = []
    failed = 0
    for run_id in due:
        session = Session(setup, changes=True)

        async def work(engine: Engine, progress: Progress, session: Session = session, run_id: str = run_id) -> Result:
            state = await session.outfit(run_id)
            return await engine.resume(state.run_id, observers=[progress])

        try:
            results.append(watched(session, work))
        except RunBusy:
            continue  # whoever has it takes it on
        except Suspended:
            raise
        except DetentError as error:  # the other runs have no part in it
            failed = max(failed, code_of_error(error))
            first.output.say(f"error: run {run_id}: {error}", "red")
            continue
        if not setup.json_wanted:
            report(results[-1], session)
    if setup.json_wanted:
        first.output.document([document(result, first) for result in results])
    elif not due:
        first.output.say("no run is due")
    return max((code_of_status(r.status) for r in results if not r.status.startswith("waiting")), default=0) or failed
