"""Trials: every case with every variant, so many times, each as an ordinary run whose id follows from the evaluation.

Rule: an evaluation keeps nothing but its suite. Which trials have ended is what the store says, so one that was killed continues where it stopped: a trial that
has ended is not run or paid for again, and one in progress is resumed like any run.
"""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal

import msgspec

from detent.core.agent import Host
from detent.core.codec import digest_of
from detent.core.errors import ConfigError, DetentError, RunErased
from detent.core.records import Record
from detent.core.state import TERMINAL, RunState
from detent.engine import Agent, Engine
from detent.evals.faults import Chance, MakeEngine, checked, disturbed
from detent.evals.graders import Grade, Grader, Judge, Verdict, graded, graders_of, verdict_of
from detent.evals.suites import Case, Suite, Variant
from detent.ports import RunQuery
from detent.running.lineage import history

Standing = Literal["passed", "failed", "unknown", "machinery", "open"]
"""How a trial came out: by its graders, or `machinery` (something failed that is not the agent), or it has not ended."""
MACHINERY = ("planner_error", "kernel_error")
"""The reasons of runs that ended because something around the agent failed."""
MOST_ANSWERS = 200


class Trial(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One trial, graded. `number` counts from 1. `run_id` is its run, of which `detent show` tells everything; `attempts` how often it was begun anew."""

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
    struck: tuple[str, ...] = ()
    """The faults that struck it."""
    output: Any = None
    error: str = ""


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """Which trial it is: a case with a variant, the number among its trials, and the id of the run."""

    case: Case
    variant: str
    number: int
    run_id: str

    def trial(self, standing: Standing, **facts: Any) -> Trial:
        """Return the trial at this place."""
        cluster = self.case.cluster or self.case.id
        return Trial(
            case=self.case.id, cluster=cluster, variant=self.variant, number=self.number, run_id=self.run_id, standing=standing, **facts
        )


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """What trials are made of. `engine_for` gives an engine for a workspace (None: a case without files); the caller closes it."""

    id: str
    suite: Suite
    engine: Engine
    agents: Mapping[str, Agent[Any]]
    graders: Sequence[tuple[Grader, Judge]]
    own: Mapping[str, Judge]
    approve: bool = True
    retries: int = 2
    engine_for: Callable[[Path], Engine] | None = None
    make_engine: MakeEngine | None = None
    on_trial: Callable[[Trial], Any] | None = None


def trial_id(evaluation: str, variant: str, case: str, number: int, attempt: int = 0) -> str:
    """Return the id of the run of a trial."""
    place = sha256(msgspec.json.encode([variant, case])).hexdigest()[:12]
    return f"eval-{evaluation}-{place}-{number}" + (f"-again{attempt}" if attempt else "")


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
    required: Callable[[Sequence[Trial]], bool] | None = None,
) -> list[Trial]:
    """Run and grade every trial of a suite that has not ended yet, and return all of them.

    `id` names the evaluation: the same id continues it; by default it follows from the suite, so the same suite is the same evaluation. `agents` are those
    that variants name, beside those of the engine. `graders` are further ones by kind. `approve` answers requests for approval. A trial that fails because of
    the machinery is begun anew up to `retries` times, and counted. `engine_for` gives an engine on the same store for the fresh workspace of a case with
    files. `make_engine` gives an engine on a store, for variants with `faults`, whose processes die. `required` sees the trials so far, and says whether
    further ones could change anything; where it says no, the evaluation ends. Raises `ConfigError`.
    """
    own = dict(graders or {})
    named = id or suite.digest
    setting = Setting(
        id=named, suite=suite, engine=engine, agents=dict(agents or {}), graders=graders_of(suite.graders, own, where=f"suite {suite.name!r}"),
        own=own, approve=approve, retries=retries, engine_for=engine_for, make_engine=make_engine, on_trial=on_trial,
    )  # fmt: skip
    for case in suite.cases:
        graders_of(case.graders, own, where=f"case {case.id!r}")
        if case.files and engine_for is None:
            raise ConfigError(f"case {case.id!r} has files, so each of its trials needs a workspace: give engine_for=")
    for name, variant in suite.variants.items():
        checked(variant.faults, f"variant {name!r}")
        if variant.faults and make_engine is None:
            raise ConfigError(f"variant {name!r} has faults, so its trials need engines of their own: give make_engine=")
    work = [(case, name, number) for number in range(1, suite.trials + 1) for case in suite.cases for name in suite.variants]
    done: dict[int, Trial] = {}
    spent = 0.0
    ahead = iter(enumerate(work))
    stopped = False

    async def worker() -> None:
        nonlocal spent, stopped
        for place, (case, name, number) in ahead:
            over = suite.max_cost_usd is not None and spent >= suite.max_cost_usd
            if stopped or over:
                return
            trial = await one_trial(setting, case, name, number)
            spent += trial.cost_usd
            done[place] = trial
            if on_trial is not None:
                on_trial(trial)
            stopped = stopped or (required is not None and not required([done[one] for one in sorted(done)]))

    async with asyncio.TaskGroup() as group:
        for _ in range(max(1, min(concurrency, len(work)))):
            group.create_task(worker())
    return [done[place] for place in sorted(done)]


async def one_trial(setting: Setting, case: Case, name: str, number: int) -> Trial:
    """Run a trial to its end and grade it; begin anew, within bounds, when the machinery fails."""
    trial: Trial | None = None
    for attempt in range(setting.retries + 1):
        place = Place(case=case, variant=name, number=number, run_id=trial_id(setting.id, name, case.id, number, attempt))
        with contextlib.ExitStack() as kept:
            workspace = None
            if case.files:
                workspace = Path(kept.enter_context(tempfile.TemporaryDirectory(prefix="detent-eval-")))
                for path, text in case.files.items():
                    (workspace / path).parent.mkdir(parents=True, exist_ok=True)
                    (workspace / path).write_text(text)
            trial = await _tried(setting, place, workspace)
        trial = msgspec.structs.replace(trial, attempts=attempt + 1)
        if trial.standing != "machinery":
            break
    assert trial is not None  # noqa: S101 - there is at least one attempt
    return trial


async def _tried(setting: Setting, place: Place, workspace: Path | None) -> Trial:
    engine = setting.engine if workspace is None or setting.engine_for is None else setting.engine_for(workspace)
    variant, struck = setting.suite.variants[place.variant], list[str]()
    try:
        if variant.faults and setting.make_engine is not None:
            chance = Chance(faults=variant.faults, rate=variant.rate, seed=f"{setting.suite.seed} {place.run_id}", struck=struck)
            result = await disturbed(chance, engine.store.url, setting.make_engine, lambda other: _ended(setting, other, place))
        else:
            result = await _ended(setting, engine, place)
        records = await history(engine.store, result.run_id)
        graders = [*setting.graders, *graders_of(place.case.graders, setting.own, where=f"case {place.case.id!r}")]
        trial = await trial_of(place, records, result.state, graders, workspace)
        return msgspec.structs.replace(trial, struck=tuple(struck))
    except (DetentError, OSError) as error:
        if isinstance(error, ConfigError):
            raise
        return place.trial("machinery", error=f"{type(error).__name__}: {error}"[:1000])
    finally:
        if engine is not setting.engine:
            await engine.close()


def _agent(setting: Setting, variant: Variant) -> Agent[Any] | str:
    known = {**setting.engine.agents, **setting.agents}
    if not variant.agent and len(known) != 1:
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


async def _ended(setting: Setting, engine: Engine, place: Place) -> Any:
    """Return the result of the trial's run, answering what it asks; one that waits for something else is returned as it stands."""
    case, variant, run_id = place.case, setting.suite.variants[place.variant], place.run_id
    options: dict[str, Any] = {"variables": case.variables or None, "attachments": case.attachments, "budget": variant.budget}
    result = await engine.run(_agent(setting, variant), case.goal, run_id=run_id, **options)
    script = list(case.user.get("script", ()))
    for number in range(MOST_ANSWERS):
        state: RunState = result.state
        if state.approvals:
            for call, asked in state.approvals.items():
                decide = engine.approve if setting.approve else engine.deny
                await decide(run_id, call, digest=asked.digest, by="evaluation", resume=False)
        elif asks := [ask for ask in state.asks.values() if ask.to == "user"]:
            said = script.pop(0) if script else await _simulated(setting, engine, place, asks[0].question, number)
            if said is None:
                break
            await engine.reply(run_id, said, ask_id=asks[0].ask_id, by="evaluation", resume=False)
        else:
            break
        result = await engine.resume(run_id)
    return result


async def _simulated(setting: Setting, engine: Engine, place: Place, question: str, number: int) -> Any:
    """Return what the case's simulated user answers: an agent that plays them, in a run of its own; None if there is none, or they give up."""
    user = place.case.user
    if "agent" not in user:
        return None
    known = {**setting.engine.agents, **setting.agents}
    if user["agent"] not in known:
        raise ConfigError(
            f"the user of case {place.case.id!r} is played by {user['agent']!r}, which is not known; known: {', '.join(known) or 'none'}"
        )
    told = {name: user[name] for name in ("goal", "persona", "knows") if name in user}
    asked = (
        f"You are a user, and talk with an assistant. Play this person: {msgspec.json.encode(told).decode()}\n"
        f"The assistant asks: {question}\nAnswer as this person, or say GIVE UP."
    )
    result = await engine.run(known[user["agent"]], asked, run_id=f"{place.run_id}-user{number}")
    return None if result.status != "completed" or "GIVE UP" in str(result.output) else result.output


async def trial_of(
    place: Place, records: Sequence[Record], state: RunState, graders: Sequence[tuple[Grader, Judge]], workspace: Path | None
) -> Trial:
    """Return the graded trial of a run."""
    grades: tuple[Grade, ...] = ()
    standing: Standing
    if state.status == "failed" and state.reason in MACHINERY:
        standing = "machinery"
    elif state.status not in TERMINAL:
        standing = "open"
    else:
        grades = await graded(place.case, records, graders, workspace=workspace, state=state)
        verdict: Verdict = verdict_of(grades)
        standing = verdict
    usage = state.usage
    return place.trial(
        standing,
        grades=grades,
        status=state.status,
        reason=state.reason,
        latency_s=state.running_ms / 1000,
        turns=usage.iterations,
        tool_calls=usage.tool_calls,
        tokens=usage.total_tokens,
        cost_usd=usage.cost_usd or 0.0,
        output=state.output if state.output is not None else state.partial or None,
        error=state.error,
    )


async def grade_runs(
    engine: Engine,
    graders: Sequence[Mapping[str, Any]],
    query: RunQuery | None = None,
    *,
    own: Mapping[str, Judge] | None = None,
    host: Host | None = None,
    only: Callable[[str], bool] = lambda run_id: True,
    on_trial: Callable[[Trial], Any] | None = None,
) -> list[Trial]:
    """Grade runs that the store has. Nothing is run: the case of each is its goal, with its variables. Erased runs are left out."""
    known = graders_of(graders, own or {}, where="the graders")
    found: list[Trial] = []
    for head in await engine.list_runs(query, host=host):
        if not only(head.run_id):
            continue
        try:
            records = await history(engine.store, head.run_id)
            state = (await engine.load(head.run_id, host=host)).state
        except RunErased:
            continue
        case = Case(id=head.run_id[:100], goal=state.goal or "-", variables=state.variables, cluster=state.goal_id)
        place = Place(case=case, variant=state.agent.name, number=1, run_id=head.run_id)
        trial = await trial_of(place, records, state, known, None)
        found.append(trial)
        if on_trial is not None:
            on_trial(trial)
    return found


async def cases_from(
    engine: Engine, query: RunQuery | None = None, *, host: Host | None = None, only: Callable[[str], bool] = lambda run_id: True
) -> list[dict[str, Any]]:
    """Return completed runs as cases: what they were asked, and what they answered as what is expected."""
    found: list[dict[str, Any]] = []
    for head in await engine.list_runs(query, host=host):
        if not only(head.run_id):
            continue
        with contextlib.suppress(RunErased):
            state = (await engine.load(head.run_id, host=host)).state
            if state.status == "completed":
                case: dict[str, Any] = {"id": digest_of([head.run_id])[:12], "goal": state.goal, "expected": state.output}
                found.append({**case, "variables": state.variables} if state.variables else case)
    return found
