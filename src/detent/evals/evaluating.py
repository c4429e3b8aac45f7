"""Runs an evaluation: divides its trials among tasks and processes, begins anew what the machinery failed, and stops where nothing more may or needs to run.

A process has one task for each trial that it works on at once, and one that watches what other processes and people did (`sharing`). A task takes the next
trial, claims it, and looks again whether it is done. What another process works on is put aside and looked at later, so it is taken over if that one dies.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import msgspec

from detent.core.codec import digest_of
from detent.core.errors import ConfigError, DetentError, RunBusy, RunErased, RunNotFound, StoreError, Suspended
from detent.engine import Agent, Engine
from detent.evals import workspaces
from detent.evals.deciding import decided
from detent.evals.faults import MakeEngine, checked
from detent.evals.graders import GRADERS, graders_of, verdict_of
from detent.evals.grades import Grade, Graded, Grader, Judge
from detent.evals.judging import judges_of
from detent.evals.sharing import Book, Kept, Key, begin, place_of
from detent.evals.suites import Case, Suite
from detent.evals.trials import Place, Setting, Trial, agent_of, graded_trial, has_ended, last_run, runs_of, tried
from detent.evals.users import refuse_unplayable
from detent.ports import wait_for_news
from detent.running.cards import MOST_RUNS, WorkerCard, announcing
from detent.running.watcher import LOST

TOGETHER_S = 0.02
"""How long a trial that ended waits for others, to be kept with them."""
LOOK_S = 0.5
"""How often a process looks at what others did, unless the store wakes it."""
_IN_FILES = ("file", "command", "world")
"""The graders that look at the workspace, which is gone when a trial is graded again."""
COMMANDS = ("command", "world")
"""The graders that execute a command."""
_PARTS = 500
"""A large suite is looked at after each such part of it, to see whether its verdict is decided."""

log = logging.getLogger("detent")


async def evaluate(
    engine: Engine,
    suite: Suite,
    *,
    id: str = "",  # noqa: A002 - as everywhere
    agents: Mapping[str, Agent[Any]] | None = None,
    graders: Mapping[str, Judge] | None = None,
    concurrency: int = 8,
    approve: bool = True,
    retries: int = 2,
    engine_for: Callable[[Path], Engine] | None = None,
    make_engine: MakeEngine | None = None,
    on_trial: Callable[[Trial], Any] | None = None,
) -> list[Trial]:
    """Run and grade every trial of a suite that has not ended yet, and return all of them.

    `id` names the evaluation: the same id continues it, or joins it while other processes work on it; by default it follows from the suite and from what its
    agents are declared to be, not from the code of their tools. `agents` are those that variants name, beside those of the engine. `graders` are further ones
    by kind. `approve` answers requests for approval. A trial that fails because of the machinery is begun anew up to `retries` times, over all processes, and
    counted. `engine_for` gives an engine on the same store for the fresh workspace of a case with files. `make_engine` gives an engine on a store, for variants
    with `faults`, whose processes die. `on_trial` is called with each trial that ended, whoever ran it. Raises `ConfigError`, and `Suspended` when the engine
    is stopped.
    """
    own = {**judges_of(engine, agents or {}), **(graders or {})}
    digest, suite = suite.digest, suite.with_faults()
    _check(engine, suite, own, engine_for=engine_for is not None, make_engine=make_engine is not None)
    setting = Setting(
        id=id, suite=suite, engine=engine, agents=dict(agents or {}), approve=approve, engine_for=engine_for, make_engine=make_engine
    )
    if not id:
        specs = {name: msgspec.to_builtins(agent_of(setting, engine, variant).spec()) for name, variant in suite.variants.items()}
        setting = msgspec.structs.replace(setting, id=digest_of([digest, specs])[:16])
    begun = await begin(engine, suite, setting.id, retries=retries)
    work = Work(setting, Book(engine, begun, told=on_trial), own, concurrency=concurrency)
    await work.all_of_it()
    return work.result()


def _check(engine: Engine, suite: Suite, own: Mapping[str, Judge], *, engine_for: bool, make_engine: bool) -> None:
    """Raise `ConfigError` for a suite that cannot be run, before anything is."""
    graders_of(suite.graders, own, where=f"suite {suite.name!r}")
    for case in suite.cases:
        graders_of(case.graders, own, where=f"case {case.id!r}")
        refuse_unplayable(engine, case)
        if case.files and not engine_for:
            raise ConfigError(f"case {case.id!r} has files, so each of its trials needs a workspace: give engine_for=")
    for name, variant in suite.variants.items():
        checked(variant.faults, f"variant {name!r}")
        if variant.faults and not make_engine:
            raise ConfigError(f"variant {name!r} has faults, so its trials need engines of their own: give make_engine=")


def commands_of(suite: Suite) -> set[tuple[str, ...]]:
    """Return the commands that the graders of a suite execute."""
    tables = [*suite.graders, *(table for case in suite.cases for table in case.graders)]
    return {tuple(map(str, table.get("command", ()))) for table in tables if table.get("kind") in COMMANDS}


class Work:
    """One process's part in an evaluation."""

    def __init__(self, setting: Setting, book: Book, own: Mapping[str, Judge], *, concurrency: int = 8) -> None:
        self._setting, self._book, self._own = setting, book, own
        self._keys = book.begun.keys
        self._concurrency = max(1, min(concurrency, len(self._keys)))
        self._ahead, self._aside, self._here = deque[Key](), set[Key](), dict[Key, str]()
        self._settled: dict[Key, tuple[int, Trial]] = {}
        self._suspended = ""
        self._changed, self._card_changed = asyncio.Event(), asyncio.Event()
        self._trusted = commands_of(setting.suite)
        self._cases: list[dict[str, Case]] = []
        self._faults = {name: (one.faults, book.begun.suite.undisturbed(name)) for name, one in book.begun.suite.variants.items()}
        self._decided: dict[str, tuple[int, bool]] = {}
        self._costs, self._costs_at = dict[str, float](), -math.inf

    async def all_of_it(self) -> None:
        """Work until every trial is done, here or elsewhere. Raise `Suspended` if the engine was stopped before."""
        try:
            async with asyncio.TaskGroup() as group:
                beside = [group.create_task(self._watch()), group.create_task(self._announce())]
                try:
                    while not self._suspended and await self._anything():
                        async with asyncio.TaskGroup() as workers:
                            for _ in range(self._concurrency):
                                workers.create_task(self._worker(workers))
                finally:
                    for task in beside:
                        task.cancel()
        except BaseExceptionGroup as several:
            raise _first(several) from None
        if self._suspended:
            raise Suspended("", self._suspended)
        await self._book.end(ended=not any(trial.standing == "open" for trial in self.result()))

    def result(self) -> list[Trial]:
        """Return every trial as it is now."""
        return [self._trial(key) for key in self._keys]

    def _trial(self, key: Key) -> Trial:
        kept, settled = self._book.kept(key), self._settled.get(key)
        if self._book.is_cancelled(key) and (kept is None or kept.trial.standing == "machinery"):
            return self._place(key, kept.trial.run_id if kept else "").trial("cancelled", attempts=kept.trial.attempts if kept else 0)
        if kept is not None and (settled is not None or self._book.done(key)):
            return kept.trial
        return settled[1] if settled is not None else self._place(key, "").trial("not_run", attempts=0)

    # Dividing ---------------------------------------------------------------------------------------------------------------------

    async def _worker(self, group: asyncio.TaskGroup) -> None:
        while not self._suspended:
            changed = self._changed
            if (key := self._take()) is not None:
                self._here[key], over = "", asyncio.Event()
                group.create_task(self._one(key, over))
                await over.wait()
            elif self._ahead or self._aside or self._here:
                await changed.wait()
            else:
                return

    def _take(self) -> Key | None:
        while self._ahead:
            key = self._ahead.popleft()
            if key not in self._here and not self._book.done(key) and key not in self._settled:
                return key
        return None

    def _notify(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()
        self._card_changed.set()

    async def _one(self, key: Key, over: asyncio.Event) -> None:
        """Do what is to be done next for a trial, unless another process does. `over`: another trial may begin, while this one is only kept."""
        again = False
        try:
            async with self._book.claimed(key):
                kept = self._book.kept(key)
                if self._suspended or self._book.done(key):
                    return
                if kept is not None and self._book.stale(kept):
                    await self._regrade(key, kept)
                elif not await self._may(key):
                    self._settle(key, kept.trial if kept else self._place(key, "").trial("not_run", attempts=0))
                else:
                    await self._attempt(key, over)
                again = not self._book.done(key) and key not in self._settled
        except RunBusy:
            self._aside.add(key)
        except Suspended as error:
            if error.until is not None or error.why.startswith(LOST):
                self._aside.add(key)  # its agent is paused, or another process has the run
            else:
                self._suspended = error.why
        finally:
            over.set()
            del self._here[key]
            self._ahead.extendleft([key] if again else ())
            self._notify()

    def _settle(self, key: Key, trial: Trial) -> None:
        """Note what a trial is for this process: nothing more is done for it here, unless somebody requeues it."""
        self._settled[key] = self._book.next(key)[0], trial
        self._book.tell(trial)

    async def _anything(self) -> bool:
        """Whether something is left to do, also by what a person ordered while the last trial ended."""
        await self._book.refresh()
        if self._book.ordered:
            self._book.ordered = False
            await self._obey()
        self._ahead = deque(key for key in self._keys if not self._book.done(key) and key not in self._settled)
        return bool(self._ahead)

    async def _watch(self) -> None:
        """See what other processes and people did, now and then."""
        while True:
            await wait_for_news(self._book.store, LOOK_S)
            try:
                await self._book.refresh()
                if self._book.ordered:
                    self._book.ordered = False
                    await self._obey()
            except StoreError as error:
                log.warning("cannot read what others did in evaluation %s now (%s); trying again", self._setting.id, error)
                await asyncio.sleep(LOOK_S)
                continue
            self._ahead.extendleft(self._aside)
            self._aside.clear()
            self._notify()

    async def _obey(self) -> None:
        """Begin again what a person wants to, and end runs of trials that were cancelled or requeued."""
        for key, (attempt, _) in list(self._settled.items()):
            if self._book.next(key)[0] > attempt:
                del self._settled[key]
        known = {*self._ahead, *self._aside, *self._here, *self._settled}
        self._ahead.extend(key for key in self._keys if key not in known and not self._book.done(key))
        for key, run_id in list(self._here.items()):
            if run_id and (self._book.is_cancelled(key) or run_id != self._book.next(key)[1]):
                with contextlib.suppress(DetentError):  # it has not begun, or has ended
                    await self._setting.engine.cancel(
                        await last_run(self._setting.engine.store, run_id) or run_id,
                        by="evaluation",
                        why="its trial was cancelled or requeued",
                    )

    async def _announce(self) -> None:
        parts = self._setting.engine.runtime.parts
        host, _, pid = parts.worker.rpartition(":")
        known = WorkerCard(
            name=parts.worker, host=host, pid=int(pid) if pid.isdigit() else 0, started=parts.clock.now(), concurrency=self._concurrency
        )

        def card() -> WorkerCard:
            runs = [run_id for run_id in self._here.values() if run_id]
            return msgspec.structs.replace(known, active=len(runs), runs=tuple(runs[:MOST_RUNS]))

        await announcing(self._book.store, card, self._card_changed)

    # One trial --------------------------------------------------------------------------------------------------------------------

    async def _attempt(self, key: Key, over: asyncio.Event) -> None:
        """Run and grade the next attempt at a trial."""
        attempt, run_id = self._book.next(key)
        engine, place, graded_with = self._setting.engine, self._place(key, run_id), list[int]()
        workspace, kept_at = None, place_of(self._setting.id)

        def grading() -> tuple[Case, Sequence[tuple[Grader, Judge]]]:
            graded_with.append(len(self._book.suites) - 1)
            return self._graders(key)

        self._here[key] = run_id
        self._card_changed.set()
        if place.case.files:
            workspace = await workspaces.found(self._book.store, kept_at, run_id)
            if workspace is None and await engine.store.head(run_id) is None:
                workspace = await workspaces.made(self._book.store, kept_at, run_id, place.case)
            elif workspace is None and not await has_ended(engine, run_id):
                await engine.cancel(run_id, by="evaluation", why="its workspace is not on this host")
                why = "its workspace ended with the process that ran it, so it is begun anew"
                await self._book.keep(Kept(trial=place.trial("machinery", error=why, attempts=attempt)))
                return
        trial = msgspec.structs.replace(await tried(self._setting, place, workspace, grading), attempts=attempt)
        if trial.standing == "open":
            self._settle(key, trial)
            return
        continues = trial.standing == "machinery" and place.case.user is None and not await has_ended(engine, run_id)
        over.set()
        await self._book.keep(Kept(trial=trial, graders=graded_with[-1] if graded_with else 0, continues=continues), together_s=TOGETHER_S)
        if place.case.files and not continues:
            await workspaces.removed(self._book.store, kept_at, run_id)

    async def _regrade(self, key: Key, kept: Kept, *, graders: int | None = None) -> None:
        """Grade an attempt again by its log. Graders of its files say what they said, because the files are gone."""
        graders = len(self._book.suites) - 1 if graders is None else graders
        old, place = kept.trial, self._place(key, kept.trial.run_id)
        trial = old
        with contextlib.suppress(RunErased, RunNotFound):
            new = await graded_trial(self._setting.engine, place, lambda: self._graders(key))
            said = {grade.grader: grade for grade in old.grades}
            in_files = {grader.label for grader, _ in self._graders(key)[1] if grader.kind in _IN_FILES}
            grades = tuple(said.get(grade.grader, grade) if grade.grader in in_files else grade for grade in new.grades)
            trial = msgspec.structs.replace(old, grades=grades, standing=verdict_of(grades) if grades else new.standing)
        await self._book.keep(msgspec.structs.replace(kept, trial=trial, revision=kept.revision + 1, graders=graders))

    async def regrade(self, key: Key | None, suite: Suite | None) -> int:
        """Grade a trial again that has ended, or all of them, by the graders of a suite or as they were; return how many that is. Nothing is run."""
        book = self._book
        every = [(one, book.kept(one)) for one in ([key] if key is not None else self._keys)]
        ended = [one for one, kept in every if kept is not None and kept.trial.standing not in ("machinery", "cancelled")]
        for one in ended:
            with contextlib.suppress(*(() if key is not None else (RunBusy,))):  # whoever has it grades it by the same order
                async with book.claimed(one):
                    kept, graders = book.kept(one), len(book.suites) - 1
                    if kept is None or (key is None and suite is not None and not book.stale(kept)):
                        continue
                    if key is not None and suite is not None:  # for this trial alone
                        book.suites.append(suite)
                    try:
                        await self._regrade(one, kept, graders=graders)
                    finally:
                        del book.suites[graders + 1 :]
        return len(ended)

    def _place(self, key: Key, run_id: str) -> Place:
        faults, undisturbed = self._faults[key[1]]
        return Place(case=self._case(0, key), variant=key[1], number=key[2], run_id=run_id, faults=faults, undisturbed=undisturbed)

    def _case(self, of: int, key: Key) -> Case:
        while len(self._cases) < len(self._book.suites):
            self._cases.append({case.id: case for case in self._book.suites[len(self._cases)].cases})
        return self._cases[of].get(key[0]) or self._cases[0][key[0]]

    def _graders(self, key: Key) -> tuple[Case, Sequence[tuple[Grader, Judge]]]:
        """Return the case and the graders of a trial as they are now."""
        suites = self._book.suites
        case = self._case(len(suites) - 1, key)
        own = {**self._own, **dict.fromkeys(COMMANDS, self._command)}
        suite = suites[0]  # the texts that were put into its trials, whoever grades them again by what
        injected = [{"kind": "injection", "expected": list(suite.attacks)}] if "injection" in suite.variants[key[1]].faults else []
        try:
            return case, [
                *graders_of(injected, {}, where="the fault injection"),
                *graders_of(suites[-1].graders, own, where="the suite"),
                *graders_of(case.graders, own, where=f"case {case.id!r}"),
            ]
        except ConfigError as error:
            if len(suites) == 1:
                raise
            why = str(error)  # somebody ordered graders that this process does not have
            return case, [(Grader(kind="regrade"), lambda grader, _: Grade(grader=grader.label, verdict="unknown", reason=why))]

    async def _command(self, grader: Grader, of: Graded) -> Grade:
        """Execute the command of a grader, if this process was started with it: what others write into the store starts nothing here."""
        judge = self._own.get(grader.kind)
        if judge is None and tuple(grader.command) not in self._trusted:
            raise ConfigError(f"this process was not started with the command {' '.join(grader.command)!r}, so it does not execute it")
        told = (judge or GRADERS[grader.kind])(grader, of)
        return told if isinstance(told, Grade) else await told

    # What may be begun --------------------------------------------------------------------------------------------------------------

    async def _may(self, key: Key) -> bool:
        """Whether a trial may run here. What was begun is finished; nothing is begun over the budget, or when it cannot change the verdict."""
        if not (await self._over() or self._is_decided(key[1])):
            return True
        return bool(await last_run(self._book.store, self._book.next(key)[1]))

    async def _over(self) -> bool:
        """Whether the runs of the evaluation cost its budget, over all processes and attempts."""
        most = self._setting.suite.max_cost_usd
        if most is None:
            return False
        now = asyncio.get_running_loop().time()
        if now - self._costs_at >= LOOK_S:  # what trials in progress have cost so far; of those that ended, the book knows it
            self._costs, self._costs_at = {head.run_id: head.cost_usd for head in await runs_of(self._book.store, self._setting.id)}, now
        return self._book.spent(self._costs) >= most

    def _is_decided(self, variant: str) -> bool:
        suite = self._setting.suite
        if suite.stop != "decided":
            return False
        at, known = self._decided.get(variant, (-1, False))
        if at < 0 or self._book.changes - at >= max(1, len(self._keys) // _PARTS):
            known = decided(suite.require, [self._trial(key) for key in self._keys if key[1] == variant])
            self._decided[variant] = self._book.changes, known
        return known


def _first(several: BaseExceptionGroup[BaseException]) -> BaseException:
    """Return the first error of a group, the one that ended it."""
    first = several.exceptions[0]
    return _first(cast("BaseExceptionGroup[BaseException]", first)) if isinstance(first, BaseExceptionGroup) else first
