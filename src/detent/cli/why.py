"""`detent why RUN`: why a run does not move."""

from __future__ import annotations

from detent.cli import options as o
from detent.cli.invocation import Invocation
from detent.cli.output import clean
from detent.engine import Engine
from detent.history.why import Why


def why(run: o.RunArgument, *, setup: o.Looking) -> int:
    """Explain why a run does not move now: who has it, what it waits for, when it is due, what its workers lack, what comes first."""
    invocation = Invocation(setup, changes=True, bare=True)

    async def work(engine: Engine) -> Why:
        found = await engine.why(await invocation.find(run))
        await invocation.name(*(word for reason in found.reasons for word in reason.command[1:]))
        return found

    found = invocation.drive(work)
    invocation.output.document(found)
    invocation.output.show(f"run {invocation.short(found.run_id)} is {found.status.replace('_', ' ')}")
    for reason in found.reasons:
        invocation.output.show(f"  {clean(reason.what)}")
    for words in dict.fromkeys(reason.command for reason in found.reasons if reason.command):
        invocation.output.say(f"  next: {invocation.command(*words)}")
    return 0
