"""`simulate`: runs your agent once for every place where something may go wrong, and compares each run with an undisturbed one."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Awaitable, Callable, Generator, Sequence
from typing import Any

from detent.config.agents import Agent
from detent.core.errors import ConfigError
from detent.engine import Engine
from detent.ports import EventStore
from detent.running.results import Approval
from detent.testing.disturbing import FAULTS, UNDISTURBED, Fault, FaultName, checked_faults
from detent.testing.ends import ended, same_end
from detent.testing.fake_tools import FakeTool
from detent.testing.judging import findings_of
from detent.testing.ledgers import Probe, short, shown_args
from detent.testing.reports import Report, Trial
from detent.testing.trials import Attempt, Setting


async def simulate(
    make_engine: Callable[[EventStore], Engine | Awaitable[Engine]],
    agent: Agent,
    goal: str,
    *,
    faults: Sequence[str] = FAULTS,
    effects: Probe | None = None,
    reset: Callable[[], Any] | None = None,
    approve: bool | Callable[[Approval], Any] = True,
    reply: Any = None,
    at_most: int | None = None,
    slow_s: float = 60.0,
    patience_s: float = 60.0,
    **options: Any,
) -> Report:
    """Run `agent` on `goal` once undisturbed and once for each fault point; return which effects were repeated, lost or in doubt.

    `make_engine(store)` creates the engine as in production, on the given store; it is called once for each worker. `effects` returns what happened in
    the world (rows, messages); it exposes a tool that is not idempotent although it is declared so. Without it, a tool's own answers count. `reset` is
    called before each run and restores the world. `approve` decides on requests for approval; `reply` is the answer of the agent's user (a value, or
    a function of the question). `at_most` limits the fault points of each kind, spread evenly. `slow_s` is how long a slow model takes,
    by the clock of the run; `patience_s` is the real time that one trial may take. `options` are those of `Engine.run`.

    Runs are kept in memory. Their clock stands still unless a fault or a wait moves it, and pauses between attempts take no time. Raises
    `UnknownName` for an unknown fault, and `ConfigError` if the undisturbed run does not finish or `make_engine` uses another store.
    """
    wanted = checked_faults(faults)
    effects, reset = _with_fakes(agent, effects, reset)
    if at_most is not None and at_most < 1:
        raise ConfigError(f"at_most is {at_most}; give at least 1, or leave it out for all fault points")
    for name in ("run_id", "turns"):
        if name in options:
            raise ConfigError(f"simulate does not take {name}: every run has the same id and runs to its end")
    setting = Setting(
        make_engine=make_engine,
        agent=agent,
        goal=goal,
        options=options,
        effects=effects,
        reset=reset,
        approve=approve,
        reply=reply,
        slow_s=slow_s,
        patience_s=patience_s,
    )
    with _each_line_once():
        return await _all_trials(setting, wanted, at_most)


async def _all_trials(setting: Setting, wanted: Sequence[FaultName], at_most: int | None) -> Report:
    whole, again = await _undisturbed(setting), await _undisturbed(setting)
    seen = whole.ledger.seen | again.ledger.seen
    uneven = _uneven(whole, again, seen)
    points, notes = _points(whole, wanted, at_most)
    trials = [await _trial(setting, fault, whole, seen, steady=not uneven) for fault in points]
    return Report(
        agent=setting.agent.name,
        goal=setting.goal,
        undisturbed=_told(whole, whole, (), seen, fault=""),
        trials=tuple(trials),
        notes=(*([uneven] if uneven else []), *notes),
    )


@contextlib.contextmanager
def _each_line_once() -> Generator[None]:
    """Log each warning of Detent once, not once for each trial."""
    said: set[str] = set()

    def is_new(record: logging.LogRecord) -> bool:
        line = record.getMessage()
        new = line not in said
        said.add(line)
        return new

    loggers = [logging.getLogger(name) for name in ("detent", "detent.tools", "detent.mcp")]
    for logger in loggers:
        logger.addFilter(is_new)
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeFilter(is_new)


def _with_fakes(agent: Agent, effects: Probe | None, reset: Callable[[], Any] | None) -> tuple[Probe | None, Callable[[], Any] | None]:
    """Return the probe and the reset, extended by those of the agent's fake tools."""
    fakes = [tool for tool in agent.tools if isinstance(tool, FakeTool)]
    if not fakes:
        return effects, reset

    def seen() -> list[Any]:
        return [*(f"{one['tool']}({shown_args(one['args'])})" for fake in fakes for one in fake.effects), *(effects() if effects else ())]

    def begun_anew() -> Any:
        for fake in fakes:
            fake.reset()
        return reset() if reset is not None else None

    return seen, begun_anew


async def _undisturbed(setting: Setting) -> Attempt:
    """Run the agent undisturbed. Raise what it raises, and `ConfigError` if it does not finish."""
    attempt = await Attempt(setting, UNDISTURBED).run()
    if attempt.error is not None:
        raise attempt.error
    if attempt.state is None or not attempt.state.terminal:
        raise ConfigError(
            f"agent {setting.agent.name!r} does not finish even undisturbed: {attempt.problem or ended(attempt)}. "
            "Fix that first, or provide what it waits for"
        )
    attempt.disturbance.struck = True
    return attempt


def _uneven(whole: Attempt, again: Attempt, seen: frozenset[str]) -> str:
    """Return the differences between two undisturbed runs, or ""."""
    effects = [{what: effect.times for what, effect in one.ledger.effects(seen).items()} for one in (whole, again)]
    what = ""
    if not same_end(whole, again):
        what = f"one {ended(whole)}, the other {ended(again)}"
    elif effects[0] != effects[1]:
        what = f"their effects differ ({', '.join(effects[0]) or 'none'}; {', '.join(effects[1]) or 'none'})"
    elif len(whole.disturbance.writes) != len(again.disturbance.writes):
        what = f"one wrote {len(whole.disturbance.writes)} times, the other {len(again.disturbance.writes)} times"
    if not what:
        return ""
    return (
        f"two undisturbed runs did not behave the same: {what}. So answers and effects are not compared; "
        "give reset= to restore the world before each run, and a planner that decides only by the view"
    )


async def _trial(setting: Setting, fault: Fault, whole: Attempt, seen: frozenset[str], *, steady: bool) -> Trial:
    attempt = await Attempt(setting, fault).run()
    found = findings_of(attempt, whole, seen=seen | attempt.ledger.seen, steady=steady)
    return _told(attempt, whole, found, seen, fault=fault.kind)


def _told(attempt: Attempt, whole: Attempt, found: Sequence[Any], seen: frozenset[str], *, fault: str) -> Trial:
    state = attempt.state
    return Trial(
        fault=fault,
        how=attempt.fault.how if fault else "",
        place=attempt.fault.place,
        status=state.status if state else "",
        reason=state.reason if state else "",
        output=state.output if state else None,
        error=state.error if state else "",
        same_answer=same_end(attempt, whole),
        injected=attempt.disturbance.struck,
        workers=attempt.workers,
        effects={what: effect.times for what, effect in attempt.ledger.effects(seen | attempt.ledger.seen).items()},
        findings=tuple(found),
        log=attempt.log,
    )


# Fault points -------------------------------------------------------------------------------------------------------------------


def _points(whole: Attempt, wanted: Sequence[FaultName], at_most: int | None) -> tuple[list[Fault], list[str]]:
    """Return the places for each kind of fault in the undisturbed run, and notes on what is left out and why."""
    makers = {
        "crash": _crashes,
        "tool_timeout": _timeouts,
        "duplicate": _duplicates,
        "store_conflict": _conflicts,
        "slow_model": _slow,
        "malformed_model": _malformed,
    }
    points: list[Fault] = []
    notes: list[str] = []
    for kind in wanted:
        if kind in ("slow_model", "malformed_model") and whole.setting.agent.rules:
            notes.append(f"{kind}: left out, the agent plans by rules and asks no model")
            continue
        found, note = makers[kind](whole)
        if at_most is not None and len(found) > at_most:
            notes.append(f"{kind}: {at_most} of {len(found)} fault points were tried (at_most)")
            found = [found[i * len(found) // at_most] for i in range(at_most)]
        notes += [f"{kind}: {note}"] if note else []
        points += found
    return points, notes


def _crashes(whole: Attempt) -> tuple[list[Fault], str]:
    writes = whole.disturbance.writes
    return [
        Fault(
            kind="crash",
            how=how,
            at=at,
            place=f"{how} write {at} of {len(writes)} ({write.operation}{', ' + write.says if write.says else ''})",
        )
        for at, write in enumerate(writes, 1)
        for how in ("before", "after")
    ], ""


def _called(doing: Any) -> str:
    return f"call {doing.call_id}, {doing.tool.name}({short(shown_args(doing.args), 60)})"


def _timeouts(whole: Attempt) -> tuple[list[Fault], str]:
    doings = whole.ledger.doings
    able = [doing for doing in doings if doing.tool.timeout_s is not None]
    without = sorted({doing.tool.name for doing in doings} - {doing.tool.name for doing in able})
    points = [
        Fault(kind="tool_timeout", how=how, at=doing.number, place=f"{how} the effect of {_called(doing)}")
        if not doing.tool.read_only
        else Fault(kind="tool_timeout", how=how, at=doing.number, place=_called(doing))
        for doing in able
        for how in (("before",) if doing.tool.read_only else ("before", "after"))
    ]
    return points, f"{', '.join(without)} left out: timeout_s is None, such a tool never times out" if without else ""


def _duplicates(whole: Attempt) -> tuple[list[Fault], str]:
    points = [
        Fault(kind="duplicate", how="worker", at=doing.number, place=f"a second worker during {_called(doing)}")
        for doing in whole.ledger.doings
        if not doing.tool.read_only
    ]
    points += (
        []
        if whole.setting.agent.rules
        else [
            Fault(kind="duplicate", how="answer", at=at, place=f"{', '.join(asked.tools)} asked for twice at once in {asked.where}")
            for at, asked in enumerate(whole.disturbance.plans, 1)
            if asked.tools
        ]
    )
    return points, "" if points else "no call to double"


def _conflicts(whole: Attempt) -> tuple[list[Fault], str]:
    writes = whole.disturbance.writes
    return [
        Fault(kind="store_conflict", how="takeover", at=at, place=f"taken over before write {number} ({writes[number - 1].says})")
        for at, number in enumerate(whole.disturbance.appends, 1)
    ], ""


def _slow(whole: Attempt) -> tuple[list[Fault], str]:
    seconds = f"{whole.setting.slow_s:g} s"
    through_gateway = any(asked.of_model for asked in whole.disturbance.plans)
    hows = {"slow": f"takes {seconds}", "timeout": "times out once"}
    points = [
        Fault(kind="slow_model", how=how, at=at, place=f"the model {words} in {asked.where}")
        for at, asked in enumerate(whole.disturbance.plans, 1)
        for how, words in hows.items()
        if how == "slow" or asked.of_model
    ]
    return points, "" if through_gateway else "no request times out, the planner asks no model through the run's gateway"


def _malformed(whole: Attempt) -> tuple[list[Fault], str]:
    hows = {
        "no_plan": "no plan at first in",
        "blank": "a blank answer at first in",
        "unknown_tool": "an unknown tool in",
        "cut_arguments": "arguments cut off in",
    }
    return [
        Fault(kind="malformed_model", how=how, at=at, place=f"{words} {asked.where}")
        for at, asked in enumerate(whole.disturbance.plans, 1)
        for how, words in hows.items()
        if how != "cut_arguments" or asked.tools
    ], ""
