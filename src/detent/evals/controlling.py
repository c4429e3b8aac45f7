"""Looking at an evaluation and steering it, from any process, while others work on it: what is in progress, requeue, cancel, grade again.

Rule: nothing is done silently. A requeued trial counts as a further attempt, a cancelled one is counted apart, and the log of every run stays.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime
from typing import Literal

import msgspec

from detent.core.errors import ConfigError, DetentError, Explained, RunBusy, UnknownName
from detent.core.state import TERMINAL
from detent.engine import Engine
from detent.evals.evaluating import Work
from detent.evals.graders import graders_of
from detent.evals.grades import Judge
from detent.evals.sharing import INDEX, Begun, Book, Kept, Key, Order, read_begun
from detent.evals.suites import Suite
from detent.evals.trials import Setting, Trial, first_of_trial, graded_trial, is_of, last_run, place_in, runs_of, trial_id, trial_of_run
from detent.ports import wake_workers
from detent.running.conversing import session_of_run
from detent.running.fleet import cards_of
from detent.running.people import me


class InProgress(msgspec.Struct, metaclass=Explained, frozen=True, kw_only=True):
    """A trial in progress: CASE/VARIANT/NUMBER, its run and that run's status, its attempt, for how long, and what it cost so far.

    `where` is the process that works on it, "" while nobody does.
    """

    trial: str
    run_id: str
    status: str
    attempt: int
    seconds: float
    turns: int
    cost_usd: float
    where: str = ""


class Process(msgspec.Struct, metaclass=Explained, frozen=True, kw_only=True):
    """A process that works on the evaluation: how many trials it works on, and how long ago it said so."""

    name: str
    trials: int
    seen_s: float
    silent: bool = False


class Standings(msgspec.Struct, metaclass=Explained, frozen=True, kw_only=True):
    """How far an evaluation is. `ended` counts its trials that ended by how they came out; the others are in progress or wait."""

    id: str
    suite: str
    begun: datetime
    at: datetime
    status: Literal["running", "stopped", "cancelled", "ended"]
    trials: int
    ended: dict[str, int]
    retried: int
    cost_usd: float
    processes: tuple[Process, ...] = ()
    in_progress: tuple[InProgress, ...] = ()


async def evaluations(engine: Engine) -> tuple[list[Begun], dict[str, DetentError]]:
    """Return the evaluations of the engine's store, the latest first, and by id why others cannot be read."""
    await engine.runtime.open()
    found, broken = list[Begun](), dict[str, DetentError]()
    for name in await engine.store.list_blobs(INDEX):
        try:
            found.append(read_begun(await engine.store.get_blob(INDEX, name), name))
        except DetentError as error:
            broken[name] = error
    return sorted(found, key=lambda one: (one.at, one.id), reverse=True), broken


async def evaluation(engine: Engine, id: str = "", *, open_only: bool = False) -> Begun:  # noqa: A002 - as everywhere
    """Return the evaluation with this id or this beginning of one; without an id the latest. Raise `UnknownName`, `ConfigError`."""
    if id:
        await engine.runtime.open()
        names = await engine.store.list_blobs(INDEX)
        found = [name for name in names if name == id] or [name for name in names if name.startswith(id)]
        if not found:
            raise UnknownName("evaluation", id, names)
        if len(found) > 1:
            raise ConfigError(f"{len(found)} evaluations begin with {id!r}: {', '.join(found[:10])}; give more of the id")
        return read_begun(await engine.store.get_blob(INDEX, found[0]), found[0])
    every = [one for one in (await evaluations(engine))[0] if not (open_only and one.ended)]
    if not every:
        raise ConfigError(
            f"no evaluation in {engine.store.url} {'is unfinished' if open_only else 'exists'}; begin one: detent eval run suite.toml"
        )
    return every[0]


def name_of(key: Key) -> str:
    """Return a trial as people write it: CASE/VARIANT/NUMBER, and CASE/NUMBER where the suite has one variant without a name."""
    case, variant, number = key
    return f"{case}/{variant}/{number}" if variant else f"{case}/{number}"


def key_of(begun: Begun, said: str) -> Key:
    """Return the trial that somebody names, by its run or as `name_of` writes it. Raise `UnknownName`."""
    known: dict[str, list[Key]] = {}
    for key in begun.keys:
        known.setdefault(name_of(key), []).append(key)
    if len(named := known.get(said, ())) > 1:
        raise ConfigError(
            f"{said!r} is the name of {len(named)} trials of evaluation {begun.id}; name it by its run, as `detent eval top` prints it"
        )
    if named:
        return named[0]
    at = first_of_trial(said)
    if is_of(begun.id, at):
        for key in begun.keys:
            if trial_id(begun.id, key[1], key[0], key[2]) == at:
                return key
    raise UnknownName(f"trial of evaluation {begun.id}", said, known)


async def standings(engine: Engine, begun: Begun) -> Standings:
    """Return how far an evaluation is, and which of its trials are in progress, where, for how long, at what cost."""
    book = Book(engine, begun)
    await book.refresh()
    now = engine.runtime.parts.clock.now()
    heads = await runs_of(engine.store, begun.id)
    trials = {trial_id(begun.id, key[1], key[0], key[2]): key for key in begun.keys}
    current = {book.next(key)[1]: key for key in begun.keys if not book.done(key)}
    cards = [card for card in await cards_of(engine.store) if any(is_of(begun.id, at) for at in card.runs)]
    where = {run_id: card.name for card in reversed(cards) if not card.silent for run_id in card.runs}
    found = [
        InProgress(
            trial=name_of(current[trial_of_run(head.run_id)]),
            run_id=head.run_id,
            status=head.status,
            attempt=book.next(current[trial_of_run(head.run_id)])[0],
            seconds=max(0.0, (now - head.created_at).total_seconds()),
            turns=head.iterations,
            cost_usd=head.cost_usd,
            where=where.get(trial_of_run(head.run_id), ""),
        )
        for head in heads
        if (head.run_id in current or session_of_run(head.run_id) in current) and head.status not in TERMINAL
    ]
    kept = [one.trial for key in begun.keys if (one := book.kept(key)) is not None and book.done(key)]
    counts = Counter(trial.standing for trial in kept)
    counts["cancelled"] += sum(book.is_cancelled(key) and book.kept(key) is None for key in trials.values())
    works = any(not card.silent for card in cards)
    return Standings(
        id=begun.id,
        suite=begun.suite.name,
        begun=begun.at,
        at=now,
        status="cancelled" if book.cancelled else "ended" if begun.ended else "running" if works else "stopped",
        trials=len(trials),
        ended={name: count for name, count in counts.items() if count},
        retried=sum(trial.attempts - 1 for trial in kept),
        cost_usd=book.spent({head.run_id: head.cost_usd for head in heads}),
        processes=tuple(
            Process(name=card.name, trials=card.active, seen_s=card.seen_s, silent=card.silent) for card in cards if not card.silent
        ),
        in_progress=tuple(sorted(found, key=lambda one: -one.seconds)),
    )


async def requeue(engine: Engine, begun: Begun, key: Key, *, by: str = "") -> int:
    """Have a trial begun anew, whatever it came to, and return the number of the attempt that begins. What it cost so far stays counted.

    One in progress is ended first. A process that works on the evaluation begins it, or the next one that does.
    """
    book = Book(engine, begun)
    await book.refresh()
    attempt, run_id = book.next(key)
    began = bool(await last_run(engine.store, run_id))
    last = attempt if began else attempt - 1
    await book.order(Order(kind="requeue", at=engine.runtime.parts.clock.now(), by=by or me(), trial=key, attempt=last))
    await _leave(engine, book, key, run_id if began else "")
    await book.end(ended=False)
    await wake_workers(engine.store)
    return last + 1


async def cancel(engine: Engine, begun: Begun, key: Key | None = None, *, by: str = "") -> int:
    """End a trial, or every trial of the evaluation that has not ended; return how many. They count as cancelled, and not as failures of the agent.

    Raise `ConfigError` where nothing is left to end.
    """
    book = Book(engine, begun)
    await book.refresh()
    left = [one for one in ([key] if key is not None else begun.keys) if not book.done(one)]
    if not left:
        kept = book.kept(key) if key is not None else None
        what = (
            f"evaluation {begun.id} has ended"
            if key is None
            else f"trial {name_of(key)} has ended: {kept.trial.standing if kept else 'cancelled'}"
        )
        raise ConfigError(f"{what}; nothing is left to cancel")
    runs = {one: book.next(one)[1] for one in left}
    await book.order(Order(kind="cancel", at=engine.runtime.parts.clock.now(), by=by or me(), trial=key))
    await wake_workers(engine.store)
    heads = await runs_of(engine.store, begun.id)
    began = {trial_of_run(head.run_id) for head in heads}
    for one in left:
        if runs[one] in began:
            await _leave(engine, book, one, runs[one])
    return len(left)


async def _leave(engine: Engine, book: Book, key: Key, run_id: str) -> None:
    """End the run of a trial; if nobody works on it, keep what it came to. Nothing with an effect begins in it after this."""
    if not run_id:
        return
    with suppress(DetentError):  # it has ended meanwhile
        await engine.cancel(await last_run(engine.store, run_id) or run_id, by="evaluation", why="its trial was cancelled or requeued")
    with suppress(RunBusy):
        async with book.claimed(key):
            place = place_in(book.begun.suite, key, run_id)
            trial = await graded_trial(engine, place, lambda: (place.case, ()))
            attempt = int(found[1]) + 1 if (found := re.search(r"-again(\d+)$", run_id)) else 1
            if trial.standing == "cancelled":
                await book.keep(Kept(trial=msgspec.structs.replace(trial, attempts=attempt)))


async def regrade(
    engine: Engine,
    begun: Begun,
    key: Key | None = None,
    *,
    suite: Suite | None = None,
    graders: Mapping[str, Judge] | None = None,
    by: str = "",
) -> int:
    """Grade again what has ended, by its logs: a trial, or all; return how many. Nothing is run.

    `suite` has the graders, and what its cases expect; without one, the graders are those that the evaluation has. For all trials, it counts from now on for
    those that have not ended, too. Graders of files say what they said, because a workspace does not outlive its trial. Raises `ConfigError`, and `RunBusy`
    for a trial that a process works on.
    """
    own, book = dict(graders or {}), Book(engine, begun)
    for table in (suite.graders, *(case.graders for case in suite.cases)) if suite is not None else ():
        graders_of(table, own, where="the suite")
    await book.refresh()
    if key is None and suite is not None:
        await book.order(Order(kind="regrade", at=engine.runtime.parts.clock.now(), by=by or me(), suite=suite))
    trusted = suite or msgspec.structs.replace(begun.suite, graders=(), cases=())
    work = Work(Setting(id=begun.id, suite=trusted, engine=engine, agents={}), book, own)
    count = await work.regrade(key, suite)
    if key is not None and not count:
        raise ConfigError(f"trial {name_of(key)} has not ended; it is graded when it does")
    await wake_workers(engine.store)
    return count


async def results(engine: Engine, begun: Begun) -> list[Trial]:
    """Return every trial of an evaluation as it is now; those that have not ended are `not_run`."""
    book = Book(engine, begun)
    await book.refresh()
    return Work(Setting(id=begun.id, suite=begun.suite, engine=engine, agents={}), book, {}).result()
