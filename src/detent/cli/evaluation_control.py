"""`detent eval list`, `top`, `requeue`, `cancel` and `regrade`: look at an evaluation and steer it, while processes work on it."""

from __future__ import annotations

import sys
from datetime import datetime
from typing import TYPE_CHECKING

import msgspec

from detent.cli import options as o
from detent.cli.evaluation_options import Which
from detent.cli.evaluation_results import tell
from detent.cli.invocation import Invocation, operator
from detent.cli.output import clean, lasted
from detent.cli.top import Line, table_lines, watched
from detent.core.errors import ConfigError
from detent.engine import Engine
from detent.expressions.display import counted, plain, shortened

if TYPE_CHECKING:
    from detent.evals import Evaluation
    from detent.evals.controlling import Standings
    from detent.evals.sharing import Begun, Key

EVERY_S = 1.0
UNNAMED_S = 10.0
"""A process names a trial that it works on within seconds; after this time nobody does."""


def one_or_none(given: list[str], what: str) -> str:
    """Return the one word that was given, "" if none was."""
    if len(given) > 1:
        raise ConfigError(f"name {what}, or nothing for the latest")
    return given[0] if given else ""


def list_evaluations(given: list[str], which: Which, setup: o.Setup) -> int:
    """List the evaluations in the store, the latest first."""
    from detent.evals.controlling import evaluations, standings

    if given:
        raise ConfigError("detent eval list takes nothing; `detent eval top ID` shows one")
    invocation = Invocation(setup, bare=True)

    async def work(engine: Engine) -> list[Standings]:
        known, broken = await evaluations(engine)
        for name, error in broken.items():
            invocation.output.say(f"evaluation {clean(name)} cannot be read: {clean(str(error))}", "red")
        return [await standings(engine, begun) for begun in known]

    found = invocation.drive(work, missing=[])
    invocation.output.document([plain(one) for one in found])
    if not found:
        invocation.output.say(f"no evaluations in {invocation.engine.store.url}")
        return 0
    rows = [
        (one.id, one.status, f"{sum(one.ended.values())} of {one.trials}", _counts(one), _cost(one.cost_usd), _at(one.begun), one.suite)
        for one in found
    ]
    invocation.output.table(("ID", "STATUS", "TRIALS", "ENDED", "COST", "BEGUN (UTC)", "SUITE"), rows, spare=("BEGUN (UTC)", "COST"))
    return 0


def top(given: list[str], which: Which, setup: o.Setup) -> int:
    """Show which trials are in progress, where, for how long, and what they cost; in place on a terminal."""
    from detent.evals.controlling import evaluation, standings

    named = one_or_none(given, "one evaluation: detent eval top ID")
    invocation = Invocation(setup, bare=True)
    live = not (which.once or invocation.output.json) and sys.stdout.isatty()

    async def work(engine: Engine) -> Standings:
        begun = await evaluation(engine, named)

        async def look() -> Standings:
            return await standings(engine, await evaluation(engine, begun.id))

        return await (watched(look, screen, EVERY_S) if live else look())

    found = invocation.drive(work)
    invocation.output.document(plain(found))
    for text, style in () if live else screen(found):
        invocation.output.show(text, style)
    return 0


def screen(found: Standings) -> list[Line]:
    """Return the lines of a picture."""
    ended = sum(found.ended.values())
    lines: list[Line] = [
        (f"{found.suite}, evaluation {found.id}: {found.status}, begun {_at(found.begun)} UTC", "bold"),
        (f"ENDED        {ended} of {counted(found.trials, 'trial')}{f': {_counts(found)}' if ended else ''}", ""),
        (f"AGAIN        {counted(found.retried, 'further attempt')}", "yellow" if found.retried else "dim"),
        (f"COST         {found.cost_usd:.4f} USD", ""),
        ("", ""),
    ]
    rows = [(shortened(one.name, 40), str(one.trials), lasted(one.seen_s)) for one in found.processes]
    lines += table_lines(("PROCESS", "TRIALS", "SEEN"), rows, [""] * len(rows)) if rows else []
    if found.status == "stopped":
        lines.append((f"no process works on it; detent eval resume {found.id}", "yellow"))
    if found.in_progress:
        rows = [
            (
                shortened(one.trial, 40),
                f"{one.status}{f', attempt {one.attempt}' if one.attempt > 1 else ''}",
                lasted(one.seconds),
                str(one.turns),
                _cost(one.cost_usd),
                shortened(one.where, 30) or ("nobody" if not found.processes or one.seconds > UNNAMED_S else ""),
                one.run_id,
            )
            for one in found.in_progress
        ]
        lines += [("", ""), *table_lines(("TRIAL", "STATUS", "SINCE", "TURNS", "COST", "WHERE", "RUN"), rows, [""] * len(rows))]
    return lines


def _counts(found: Standings) -> str:
    return ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in found.ended.items())


def _cost(usd: float) -> str:
    return f"{usd:.4f} USD" if usd else ""


def _at(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M:%S}"


# Steering -------------------------------------------------------------------------------------------------------------------------------


async def _meant(engine: Engine, said: str, of: str | None) -> tuple[Begun, Key | None]:
    """Return the evaluation that somebody means, and the trial of it unless the whole is meant."""
    from detent.evals.controlling import evaluation, evaluations, key_of
    from detent.evals.trials import is_of

    if of is None:
        every, _ = await evaluations(engine)
        for begun in every:
            if said == begun.id:
                return begun, None
            if is_of(begun.id, said):
                return begun, key_of(begun, said)
        if "/" not in said and any(begun.id.startswith(said) for begun in every):
            return await evaluation(engine, said), None
    begun = await evaluation(engine, of or "")
    return begun, key_of(begun, said)


def _named(given: list[str], action: str) -> str:
    if len(given) != 1 or not given[0]:
        raise ConfigError(f"name a trial{'' if action == 'requeue' else ' or an evaluation'}: detent eval {action} CASE/VARIANT/NUMBER")
    return given[0]


def requeue(given: list[str], which: Which, setup: o.Setup) -> int:
    """Have a trial begun anew."""
    from detent.evals import controlling

    said, invocation = _named(given, "requeue"), Invocation(setup, changes=True, bare=True)

    async def work(engine: Engine) -> tuple[Begun, Key, int]:
        begun, key = await _meant(engine, said, which.of)
        if key is None:
            raise ConfigError(f"{said!r} is an evaluation; name one of its trials: detent eval requeue CASE/VARIANT/NUMBER --of {begun.id}")
        return begun, key, await controlling.requeue(engine, begun, key, by=operator())

    begun, key, attempt = invocation.drive(work)
    invocation.output.document({"evaluation": begun.id, "trial": controlling.name_of(key), "attempt": attempt})
    again = invocation.command("eval", "resume", begun.id)
    invocation.output.say(f"{controlling.name_of(key)} is begun anew, as attempt {attempt}; if no process works on the evaluation: {again}")
    return 0


def cancel(given: list[str], which: Which, setup: o.Setup) -> int:
    """End a trial, or an evaluation."""
    from detent.evals import controlling

    said, invocation = _named(given, "cancel"), Invocation(setup, changes=True, bare=True)

    async def work(engine: Engine) -> tuple[Begun, int]:
        begun, key = await _meant(engine, said, which.of)
        return begun, await controlling.cancel(engine, begun, key, by=operator())

    begun, count = invocation.drive(work)
    invocation.output.document({"evaluation": begun.id, "cancelled": count})
    invocation.output.say(f"{counted(count, 'trial')} of evaluation {begun.id} cancelled; what has ended stays as it is")
    return 0


def regrade(given: list[str], which: Which, setup: o.Setup) -> int:
    """Grade again what has ended, and show the result as it is then."""
    from detent.evals import controlling, load_suite, summarised

    said, invocation = _named(given, "regrade"), Invocation(setup, changes=True)
    suite = load_suite(which.suite) if which.suite is not None else None

    async def work(engine: Engine) -> tuple[int, Evaluation, str]:
        begun, key = await _meant(engine, said, which.of)
        count = await controlling.regrade(engine, begun, key, suite=suite, by=operator())
        return count, summarised(begun.suite.name, begun.id, await controlling.results(engine, begun)), begun.suite.require

    count, found, wanted = invocation.drive(work)
    invocation.output.say(f"{counted(count, 'trial')} graded again; nothing was run")
    return tell(found, invocation, msgspec.structs.replace(which, require=which.require or wanted or None))
