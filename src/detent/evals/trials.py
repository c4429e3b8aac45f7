"""Trials: a case with a variant, tried as an ordinary run whose id follows from the evaluation, and graded by its log.

Rule: what a trial came to is what its run's log says. A run that has ended is graded; one that has not is resumed like any run. `evaluating` does so with all
trials of a suite.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import signal
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from hashlib import sha256
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Literal

import msgspec

from detent.core.agent import Host
from detent.core.codec import digest_of
from detent.core.errors import ConfigError, Conflict, DetentError, RunBusy, RunErased, StoreError, Suspended
from detent.core.records import Record, RunHead
from detent.core.state import TERMINAL, RunState
from detent.engine import Agent, Engine
from detent.evals.effects import Effects, effects_of
from detent.evals.faults import OURS, Chance, MakeEngine, disturbed
from detent.evals.folding import Ended, ended, traced, traced_talk, worked_ms
from detent.evals.graders import graded, graders_of, verdict_of
from detent.evals.grades import JUDGES, Grade, Graded, Grader, Judge, Verdict
from detent.evals.judging import is_judge, judges_of
from detent.evals.replayed import changes_in, replayed
from detent.evals.suites import Case, Suite, Variant, clustered
from detent.evals.users import Simulated, Talking, left
from detent.history.backtest import Backtest, Change
from detent.history.traces import Tracer
from detent.ports import EventStore, RunQuery, look_at
from detent.running.conversing import run_of
from detent.stores import open_store

Standing = Literal["passed", "failed", "unknown", "machinery", "open", "cancelled", "not_run"]
"""How a trial came out: by its graders; `machinery`: something failed that is not the agent; `open`: its run waits for somebody; `cancelled`: a person ended
it; `not_run`: it was not begun, because of the budget or because it could not change the verdict."""
MACHINERY = ("planner_error", "kernel_error")
"""The reasons of runs that ended because something around the agent failed."""
MOST_ANSWERS = 200
PAGE = 1000
"""How many listing entries are read at once, and how many runs a process grades at once; fewer are not worth the start of another one."""


class Trial(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One trial, graded. `number` counts from 1. `run_id` is its run, of which `detent show` tells everything, "" if none was begun.

    `attempts` is how often it was begun: again after a failure of the machinery, and when somebody requeues it. With a simulated user, `run_id` is the last
    run of the session, `output` its answer, and turns, calls, tokens, cost and latency are those of all of its runs.
    """

    case: str
    cluster: str
    variant: str
    number: int
    run_id: str
    standing: Standing
    grades: tuple[Grade, ...] = ()
    status: str = ""
    reason: str = ""
    latency_s: float = 0.0
    turns: int = 0
    tool_calls: int = 0
    tokens: int = 0
    cost_usd: float = 0.0
    attempts: int = 1
    faults: tuple[str, ...] = ()
    """The faults that could strike it."""
    struck: tuple[str, ...] = ()
    """The faults that struck it."""
    undisturbed: str | None = None
    """The variant that its own is without the faults."""
    effects: Effects | None = None
    """What happened because of it, in a suite with faults."""
    otherwise: tuple[Change, ...] = ()
    """Of a replay: the calls that would be decided otherwise."""
    output: Any = None
    error: str = ""
    user: Simulated | None = None
    """How its simulated user did."""

    @property
    def all_cost_usd(self) -> float:
        """What it cost with its user."""
        return self.cost_usd + (self.user.cost_usd if self.user is not None else 0.0)


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """Which trial it is: a case with a variant, the number among its trials, and the id of the run; `faults` and `undisturbed` as in `Trial`."""

    case: Case
    variant: str
    number: int
    run_id: str
    faults: tuple[str, ...] = ()
    undisturbed: str | None = None

    def trial(self, standing: Standing, **facts: Any) -> Trial:
        """Return the trial at this place."""
        cluster = self.case.cluster or self.case.id
        return Trial(
            case=self.case.id, cluster=cluster, variant=self.variant, number=self.number, run_id=self.run_id, standing=standing,
            faults=self.faults, undisturbed=self.undisturbed, **facts,
        )  # fmt: skip


def place_in(suite: Suite, key: tuple[str, str, int], run_id: str) -> Place:
    """Return a place in a suite: a case, a variant, and a number."""
    case = next(case for case in suite.cases if case.id == key[0])
    faults, undisturbed = suite.variants[key[1]].faults, suite.undisturbed(key[1])
    return Place(case=case, variant=key[1], number=key[2], run_id=run_id, faults=faults, undisturbed=undisturbed)


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """What trials are made of. `engine_for` gives an engine for a workspace (None: a case without files); the caller closes it."""

    id: str
    suite: Suite
    engine: Engine
    agents: Mapping[str, Agent[Any]]
    approve: bool = True
    engine_for: Callable[[Path], Engine] | None = None
    make_engine: MakeEngine | None = None


Grading = Callable[[], tuple[Case, Sequence[tuple[Grader, Judge]]]]
"""Returns the case and the graders of a trial as they are when it is graded."""


def trial_id(evaluation: str, variant: str, case: str, number: int, attempt: int = 0) -> str:
    """Return the id of the run of a trial."""
    place = sha256(msgspec.json.encode([variant, case])).hexdigest()[:12]
    return f"eval-{evaluation}-{place}-{number}" + (f"-again{attempt}" if attempt else "")


def is_of(evaluation: str, run_id: str) -> bool:
    """Whether a run belongs to an evaluation, by its id: also one that plays a user. Another evaluation's id may begin with this one's."""
    return re.match(rf"eval-{re.escape(evaluation)}-[0-9a-f]{{12}}-[0-9]+(?![0-9A-Za-z_])", run_id) is not None


async def runs_of(store: EventStore, evaluation: str) -> list[RunHead]:
    """Return the listing entries of an evaluation's runs, without their children, whose cost is part of theirs."""
    heads = await store.list_runs(RunQuery(starts_with=(f"eval-{evaluation}-",)))
    return [head for head in heads if is_of(evaluation, head.run_id) and _CHILD.search(head.run_id) is None]


_TRIAL = re.compile(r"eval-.+-[0-9a-f]{12}-[0-9]{1,9}(-again[0-9]{1,9})?(@.*)?")
"""What `trial_id` writes, with the tenant that a store adds; runs that play a user are none."""
_CHILD = re.compile(r"\.c[0-9a-f]{12}(?![0-9A-Za-z_])")
_PLAYS = re.compile(r"eval-.+-[0-9a-f]{12}-[0-9]+(-again[0-9]+)?-(user[0-9]+|review)(@.*)?")
_OF_TALK = re.compile(r"(\.[1-9]\d*|-user\d+|-review)$")


def trial_of_run(run_id: str) -> str:
    """Return the id of the trial that a run is of: that of its own run, or of the session with its user."""
    return _OF_TALK.sub("", run_id)


def first_of_trial(run_id: str) -> str:
    """Return the id of the first attempt at the trial that a run is of, which `trial_id` gives."""
    return re.sub(r"-again[0-9]+$", "", trial_of_run(run_id))


def talk_of_run(run_id: str) -> str:
    """Return the id of the talk that a run is a message of, "" for a run that is none of a trial with a user."""
    talk = trial_of_run(run_id)
    return talk if talk != run_id and _TRIAL.fullmatch(talk) is not None and not is_ours(run_id) else ""


def is_ours(run_id: str) -> bool:
    """Whether a run is a verdict of a judge or plays a user, by its id: it is of the evaluation, and no work of an agent."""
    return is_judge(run_id) or _PLAYS.fullmatch(run_id) is not None


async def last_run(store: EventStore, of_trial: str) -> str:
    """Return the id of a trial's last run, "" if it has none: with a user, that of the last message."""
    if await store.head(of_trial) is not None:
        return of_trial
    number = 0
    while await store.head(run_of(of_trial, number + 1)) is not None:
        number += 1
    return run_of(of_trial, number) if number else ""


async def tried(setting: Setting, place: Place, workspace: Path | None, grading: Grading) -> Trial:
    """Run a trial to its end and grade it. A failure of the machinery is returned as one.

    Raises `ConfigError`, and `RunBusy` or `Suspended` for a run that belongs to somebody else or is to be left now.
    """
    engine = setting.engine if workspace is None or setting.engine_for is None else setting.engine_for(workspace)
    suite, variant = setting.suite, setting.suite.variants[place.variant]
    seed = f"{suite.seed} {place.run_id.removeprefix(f'eval-{setting.id}')}"  # the same in every evaluation, so that two are compared under the same faults
    chance = Chance(faults=variant.faults, rate=variant.rate, seed=seed, attacks=suite.attacks)
    user = known = None
    try:
        try:
            if variant.faults and setting.make_engine is not None:
                user, known = await disturbed(
                    chance, engine.store, setting.make_engine, lambda other: _ended(setting, other, place, chance)
                )
            else:
                user, known = await _ended(setting, engine, place, chance)
        except (DetentError, OSError) as error:
            if _leaves(error) or place.case.user is not None or not await has_ended(setting.engine, place.run_id):
                raise
        place, records, tracer = await _told(engine.store, place, known)
        case, graders = grading()
        trial = await trial_of(msgspec.structs.replace(place, case=case), records, tracer, graders, workspace)
        trial = msgspec.structs.replace(trial, user=user) if user is not None else trial
        if all(not one.faults for one in suite.variants.values()):
            return trial
        effects = await effects_of(records, tracer.state, engine, chance.ledger)
        return msgspec.structs.replace(trial, struck=tuple(chance.struck), effects=effects)
    except (DetentError, OSError) as error:
        if _leaves(error):
            raise
        return place.trial("machinery", error=f"{type(error).__name__}: {error}"[:1000])
    finally:
        if engine is not setting.engine:
            await engine.close()


async def has_ended(engine: Engine, run_id: str) -> bool:
    """Whether a run exists and has ended."""
    head = await engine.store.head(await last_run(engine.store, run_id) or run_id)
    return head is not None and head.status in TERMINAL


def _leaves(error: Exception) -> bool:
    """Whether an error does not count as a failure of a trial: the evaluation is wrong, or the run is left to somebody else or to later."""
    of_store = isinstance(error.__cause__, StoreError) and not isinstance(error.__cause__, Conflict)
    return isinstance(error, (ConfigError, RunBusy)) or (isinstance(error, Suspended) and not of_store)


async def graded_trial(engine: Engine, place: Place, grading: Grading, *, workspace: Path | None = None) -> Trial:
    """Return a trial, graded by its run's log, or by those of all runs of its talk."""
    place, records, tracer = await _told(engine.store, place)
    case, graders = grading()
    return await trial_of(msgspec.structs.replace(place, case=case), records, tracer, graders, workspace)


async def _told(store: EventStore, place: Place, known: RunState | None = None) -> tuple[Place, list[Record], Tracer | Ended]:
    """Return what a trial's run, or all runs of its talk, say; the place has the id of the last one. Raise `RunNotFound` without any."""
    if place.case.user is None:
        found = None if known is None else await ended(store, place.run_id, known)
        records, read = found or await traced(store, place.run_id)
        return place, records, read
    records, tracer = await traced_talk(store, trial_of_run(place.run_id))
    return msgspec.structs.replace(place, run_id=tracer.state.run_id), records, tracer


def agent_of(setting: Setting, engine: Engine, variant: Variant) -> Agent[Any]:
    """Return the agent of a variant. Raise `ConfigError` if there is none."""
    known = {**setting.engine.agents, **setting.agents}
    known |= {name: agent for name, agent in engine.agents.items() if name in known}  # in a workspace of its own
    if not variant.agent and len({id(one) for one in known.values()}) != 1:
        raise ConfigError(
            f'the variant names no agent, and there are {len(known)}: write agent = "..."; known: {", ".join(known) or "none"}'
        )
    name = variant.agent or next(iter(known))
    if name not in known:
        raise ConfigError(f"there is no agent {name!r}; known: {', '.join(known) or 'none'}")
    changes: dict[str, Any] = {field: getattr(variant, field) for field in ("model", "strategy", "policy") if getattr(variant, field)}
    if not changes:
        return known[name]
    made = known[name]
    return Agent(**{**{field: getattr(made, field) for field in made.__struct_fields__}, **changes})


async def _ended(setting: Setting, engine: Engine, place: Place, chance: Chance) -> tuple[Simulated | None, RunState | None]:
    """Run a trial, or talk with its simulated user, to the end, or until it waits for something else. Return how the user did, or the state of the run."""
    case, variant, run_id = place.case, setting.suite.variants[place.variant], place.run_id
    agent = agent_of(setting, engine, variant)
    if case.user is not None:
        talking = Talking(
            engine,
            setting.engine,
            agent,
            case,
            run_id,
            budget=variant.budget,
            approve=setting.approve,
            settle=lambda state: _settled(engine, state, chance),
        )
        return await talking.talked(), None
    options: dict[str, Any] = {"variables": case.variables or None, "attachments": case.attachments, "budget": variant.budget}
    result = await engine.run(agent, case.goal, run_id=run_id, **options)
    for _ in range(MOST_ANSWERS):
        state: RunState = result.state
        if not state.approvals and not await _settled(engine, state, chance):
            break
        for call, asked in state.approvals.items():
            decide = engine.approve if setting.approve else engine.deny
            await decide(run_id, call, digest=asked.digest, by="evaluation", resume=False)
        result = await engine.resume(run_id)
    return None, result.state


async def _settled(engine: Engine, state: RunState, chance: Chance) -> bool:
    """Settle the calls in doubt, in place of a person, by how they really ended; return whether there was one that is known."""
    known = 0
    for call_id in state.in_doubt:
        call = state.call(call_id)
        if call is None or not any(doing.key == call.key for doing in chance.ledger.doings):
            continue
        happened, result = chance.ledger.truth(call.key, frozenset())
        if happened is not None:
            await engine.reconcile(state.run_id, call_id, happened=happened, result=result, by="evaluation", resume=False)
            known += 1
    return known > 0


async def trial_of(
    place: Place, records: Sequence[Record], tracer: Tracer | Ended, graders: Sequence[tuple[Grader, Judge]], workspace: Path | None
) -> Trial:
    """Return the graded trial of a run. One that a fault ended, as the machinery could have, has failed."""
    state = tracer.state
    grades: tuple[Grade, ...] = ()
    standing: Standing
    if state.status == "failed" and state.reason in MACHINERY:
        standing = "failed" if OURS in state.error else "machinery"
    elif state.status not in TERMINAL:
        standing = "open"
    elif state.reason == "cancelled" and not left(records):
        standing = "cancelled"
    else:
        grades = await graded(Graded(case=place.case, records=records, state=state, read=tracer, workspace=workspace), graders)
        verdict: Verdict = verdict_of(grades)
        standing = verdict
    return place.trial(
        standing,
        grades=grades,
        status=state.status,
        reason=state.reason,
        **spent(records, state),
        output=state.output if state.output is not None else state.partial or None,
        error=state.error,
    )


def spent(records: Sequence[Record], state: RunState) -> dict[str, Any]:
    """Return what a run has used, as the fields of its trial."""
    usage = state.usage
    return {
        "latency_s": worked_ms(records, state) / 1000,
        "turns": usage.iterations,
        "tool_calls": usage.tool_calls,
        "tokens": usage.total_tokens,
        "cost_usd": usage.cost_usd or 0.0,
    }


async def grade_runs(
    engine: Engine,
    graders: Sequence[Mapping[str, Any]],
    query: RunQuery | None = None,
    *,
    own: Mapping[str, Judge] | None = None,
    agents: Mapping[str, Agent[Any]] | None = None,
    host: Host | None = None,
    only: Callable[[str], bool] = lambda run_id: True,
    replay: Backtest | None = None,
    cluster: str = "",
    on_trial: Callable[[Trial], Any] | None = None,
    processes: int = 1,
) -> list[Trial]:
    """Grade runs that the store has. Nothing is run but judges: the case of each is its goal, with its variables. Runs of judges and of simulated users
    and erased runs are left out.

    A run whose log cannot be read counts as `machinery`. `replay` (`Engine.backtest`) says what another policy would have decided: its runs are graded up to
    the first call that is decided otherwise. `cluster` is that of a suite; by default runs of one goal belong together. `processes`: many runs are graded in
    so many processes at once, which open the store by its URL; a program that asks for more than one needs the usual `if __name__ == "__main__":`. With
    graders of your own (`own`), judges or a replay it is always this one. Raises `ConfigError`.
    """
    known = graders_of(graders, {**judges_of(engine, agents or {}), **(own or {})}, where="the graders")
    ids = await _ids(engine, query, host, only)
    batches = [ids[first : first + PAGE] for first in range(0, len(ids), PAGE)]
    here = bool(own) or replay is not None or any(grader.kind in JUDGES for grader, _ in known) or engine.store.url == "ram:"
    several = processes > 1 and len(batches) > 1 and not here
    found: list[Trial] = []
    trials = (
        _in_processes(engine.store.url, known, batches, cluster, processes)
        if several
        else _graded(engine.store, known, ids, cluster, replay)
    )
    async for trial in trials:
        found.append(trial)
        if on_trial is not None:
            on_trial(trial)
    return found


async def _graded(
    store: EventStore, graders: Sequence[tuple[Grader, Judge]], ids: Iterable[str], cluster: str, replay: Backtest | None = None
) -> AsyncGenerator[Trial]:
    """Yield the trials of stored runs, without those that were erased or deleted."""
    changed = {} if replay is None else {(change.run_id, change.sequence): change for change in replay.changes}
    for run_id in ids:
        await asyncio.sleep(0)  # nothing else here need ever wait, and somebody may want to stop it
        try:
            records, tracer = await traced(store, run_id)
        except RunErased:
            continue
        except DetentError as error:
            lost = Place(case=Case(id=run_id[:100], goal="-"), variant="", number=1, run_id=run_id)
            yield lost.trial("machinery", error=f"{type(error).__name__}: {error}"[:1000])
            continue
        if records:
            state = tracer.state
            goal = state.goal if state.goal.strip() else "-"
            case = clustered(Case(id=run_id[:100], goal=goal, variables=state.variables, cluster="" if cluster else state.goal_id), cluster)
            place = Place(case=case, variant=state.agent.name, number=1, run_id=run_id)
            if replay is not None and run_id in replay.skipped:
                yield place.trial("unknown", error=f"its decisions cannot be made again: {replay.skipped[run_id]}"[:1000])
            elif changed and (changes := changes_in(records, changed)):
                grades, cut = await replayed(case, records, graders, changes)
                yield place.trial(
                    verdict_of(grades), grades=grades, reason="decided_otherwise", otherwise=tuple(changes), **spent(records, cut)
                )
            else:
                yield await trial_of(place, records, tracer, graders, None)


async def _in_processes(
    url: str, graders: Sequence[tuple[Grader, Judge]], batches: Sequence[Sequence[str]], cluster: str, processes: int
) -> AsyncGenerator[Trial]:
    """Yield the trials of stored runs, in their order. Ctrl-C is for this process; the others end with it."""
    ignored = (signal.SIGINT, signal.SIG_IGN)
    pool = ProcessPoolExecutor(min(processes, len(batches)), get_context("spawn"), initializer=signal.signal, initargs=ignored)
    try:
        loop = asyncio.get_running_loop()
        for batch in [loop.run_in_executor(pool, _graded_apart, url, graders, ids, cluster) for ids in batches]:
            for trial in await batch:
                yield trial
    except BrokenProcessPool as error:
        raise StoreError("a process that graded runs has died; it may have been short of memory: grade fewer runs at once") from error
    finally:
        pool.shutdown(cancel_futures=True)


def _graded_apart(url: str, graders: Sequence[tuple[Grader, Judge]], ids: Sequence[str], cluster: str) -> list[Trial]:
    """Be one of the processes: grade a batch."""

    async def work() -> list[Trial]:
        store = open_store(url)
        await look_at(store)
        try:
            return [trial async for trial in _graded(store, graders, ids, cluster)]
        finally:
            await store.close()

    return asyncio.run(work())


async def _ids(engine: Engine, query: RunQuery | None, host: Host | None, only: Callable[[str], bool]) -> list[str]:
    """Return the ids of the runs that match, newest first. Their listing entries are read by pages, because there may be many."""
    query = query or RunQuery()
    found: list[str] = []
    left = query.limit
    while left is None or left > 0:
        page = await engine.list_runs(msgspec.structs.replace(query, limit=PAGE if left is None else min(PAGE, left)), host=host)
        found += [head.run_id for head in page if only(head.run_id) and not is_ours(head.run_id)]
        if len(page) < PAGE:
            break
        query, left = msgspec.structs.replace(query, after=page[-1].run_id), None if left is None else left - PAGE
    return found


async def cases_from(
    engine: Engine, query: RunQuery | None = None, *, host: Host | None = None, only: Callable[[str], bool] = lambda run_id: True
) -> list[dict[str, Any]]:
    """Return completed runs as cases: what they were asked, and what they answered as what is expected. Runs of judges and users are left out."""
    found: list[dict[str, Any]] = []
    for run_id in await _ids(engine, query, host, only):
        with contextlib.suppress(RunErased):
            state = (await engine.load(run_id, host=host)).state
            if state.status == "completed":
                case: dict[str, Any] = {"id": digest_of([run_id])[:12], "goal": state.goal, "expected": state.output}
                found.append({**case, "variables": state.variables} if state.variables else case)
    return found
