"""The command `pause`, and the end of a pause: what no worker of a store uses, by whom and why."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from detent.cli import options as o
from detent.cli.invocation import Invocation, operator
from detent.cli.output import Output, clean
from detent.core.errors import ConfigError
from detent.engine import Engine
from detent.expressions.display import plain
from detent.ports.holding import Hold


def pause(
    what: Annotated[
        str | None,
        typer.Argument(
            metavar="[KIND:NAME]",
            help="agent:NAME, tenant:NAME, tool:NAME or provider:NAME. Without it: list what is paused or closed.",
            show_default=False,
        ),
    ] = None,
    *,
    ended: Annotated[bool, typer.Option("--ended", help="List what somebody has ended lately instead, with who did and why.")] = False,
    why: o.Why = "",
    by: o.By = None,
    setup: o.Setup,
) -> int:
    """Stop an agent, a tenant, a tool or a provider for all workers of the store, until `detent resume KIND:NAME`.

    Runs in progress stop at their next record. Runs that need it wait as rows, and no attempt is counted. Without an argument, list what is held.
    """
    if ended and what is not None:
        raise ConfigError(f"--ended lists, and {what} is to be paused: leave one of them out")
    invocation = Invocation(setup, changes=what is not None, bare=True)

    async def work(engine: Engine) -> tuple[Hold, ...]:
        return await engine.holds(ended=ended) if what is None else (await engine.pause(what, by=by or operator(), why=why),)

    found = invocation.drive(work, missing=()) if what is None else invocation.drive(work)
    invocation.output.document([*map(plain, found)] if what is None else plain(found[0]))
    say_holds(found, invocation.output)
    if what is not None:
        invocation.output.say(f"  next: {invocation.command('resume', what)} ends the pause")
    elif not found:
        invocation.output.say("nobody has ended a pause" if ended else "nothing is paused, and no provider's account is closed")
    return 0


def end_pause(what: str, setup: o.Setup, *, by: str, why: str) -> int:
    """End everything that holds `what`."""
    invocation = Invocation(setup, changes=True, bare=True)

    async def work(engine: Engine) -> tuple[Hold, ...]:
        return await engine.unpause(what, by=by, why=why)

    found = invocation.drive(work, missing=())
    invocation.output.document([plain(hold) for hold in found])
    for hold in found:
        invocation.output.say(clean(hold.said))
    if not found:
        invocation.output.say(f"{clean(what)} was not paused; `detent pause` lists what is")
    return 0


def say_holds(holds: Sequence[Hold], output: Output) -> None:
    """Print what is held, a line each."""
    for hold in holds:
        output.say(clean(hold.said), "yellow")
