"""`detent versions`: what runs on which version of the code, and how many of the new runs begin on which."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from detent.cli import options as o
from detent.cli.forking import checked, tell
from detent.cli.invocation import Invocation, operator
from detent.cli.output import clean
from detent.core.errors import ConfigError
from detent.engine import Engine
from detent.expressions.display import counted, plain
from detent.history.upgrading import Upgrade, open_runs
from detent.history.versions import VersionUse
from detent.running.versions import Shares


def versions(
    shares: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[VERSION=PERCENT]...", help="How many of the new runs begin on a version; 0 drains it.", show_default=False
        ),
    ] = None,
    *,
    unchecked: Annotated[
        bool, typer.Option("--unchecked", help="Do not check the unfinished runs with the code of a new version.")
    ] = False,
    by: o.By = None,
    setup: o.Quiet,
) -> int:
    """Show each version of the code with its share of the new runs and its unfinished runs. With VERSION=PERCENT, set the shares.

    A new version gets a share where its code is installed: all unfinished runs are checked with it first (`detent check-upgrade`), and those that cannot
    continue are listed; they stay on their version. 20 is a ramp: of the new runs, 20 % begin there. 0 drains a version: its workers finish its runs,
    and a run that can continue on a version with a share moves there, unless its agent is pinned. If one other version has a share, it gets the rest.
    """
    if not shares:
        return _show(Invocation(setup, bare=True))
    said = dict(map(_pair, shares))
    invocation = Invocation(setup, changes=True, bare=True)
    version = invocation.engine.runtime.parts.version
    found = None if unchecked or not said.get(version) else _check(invocation, setup)

    async def work(engine: Engine) -> tuple[Shares, Sequence[VersionUse]]:
        done = await engine.roll_out(said, by=by or operator(), check=not unchecked, found=found)
        return done, await engine.versions()

    done, uses = invocation.drive(work)
    invocation.output.document({**plain(done), "versions": uses})
    _table(invocation, uses)
    if done.stranded:
        stay = counted(done.stranded, "unfinished run")
        invocation.output.say(
            f"{stay} of {done.checked} cannot continue on version {version}: keep workers of the others until they end", "yellow"
        )
    return 0


def _check(invocation: Invocation, setup: o.Setup) -> Upgrade | None:
    """Check the unfinished runs with the code here, and list those that cannot continue."""

    async def others(engine: Engine) -> list[str]:
        return await open_runs(engine.store)

    found = Upgrade(runs=tuple(checked(run_id, setup) for run_id in invocation.drive(others, missing=[])))
    for one in found.stranded:
        tell(one, invocation)
    return found


def _pair(text: str) -> tuple[str, int]:
    name, equals, share = text.rpartition("=")
    if not equals or not name or not share.removesuffix("%").isdigit():
        raise ConfigError(f"{text!r}: write it as VERSION=PERCENT, such as 2026-11=20")
    return name, int(share.removesuffix("%"))


def _show(invocation: Invocation) -> int:
    uses = invocation.drive(lambda engine: engine.versions(), missing=[])
    invocation.output.document(uses)
    if not any(one.version for one in uses):
        runs = counted(sum(one.open for one in uses), "unfinished run")
        invocation.output.say(
            f"no version of the code is in use, {runs}; `version` in [worker] of detent.toml, or DETENT_VERSION, names one"
        )
        return 0
    _table(invocation, uses)
    return 0


def _table(invocation: Invocation, uses: Sequence[VersionUse]) -> None:
    rows = [
        (
            clean(one.version) or "(any)",
            "" if one.share is None else f"{one.share} %",
            str(one.open),
            f"{one.oldest:%Y-%m-%d %H:%M}" if one.oldest else "",
            ", ".join(filter(None, ["draining" if one.draining else "", "this one" if one.here else ""])),
            ", ".join(f"{count} {status.replace('_', ' ')}" for status, count in sorted(one.runs.items())),
        )
        for one in uses
    ]
    invocation.output.table(("VERSION", "NEW RUNS", "OPEN", "OLDEST (UTC)", "STATE", "RUNS"), rows, spare=("OLDEST (UTC)",))
