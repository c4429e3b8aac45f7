"""What an evaluation found: figures with intervals for each variant, and the document that keeps all of it (`schema` 1)."""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from itertools import combinations
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any

import msgspec

from detent.core.errors import ConfigError
from detent.evals import effects
from detent.evals import statistics as stats
from detent.evals.graders import verdict_of
from detent.evals.grades import Agreement, Grade, Grader, Measured, written
from detent.evals.judging import agreement
from detent.evals.labels import Label, said_by_people
from detent.evals.statistics import Interval
from detent.evals.trials import Trial
from detent.expressions.display import counted

SCHEMA = 1
MOST_WRONG = 50
"""How many repeated and lost effects of a variant are named."""


class UnderFaults(msgspec.Struct, frozen=True, kw_only=True):
    """What the faults of a variant did. `undisturbed` is the variant to compare with, None if the suite has none.

    `struck` counts the trials that a fault struck. `repeated` and `lost` count effects (`detent.evals.effects`); both are None where no trial got so far
    that they are known, and `lost` where there is nothing to compare with. `more` is what an average trial needs more than an undisturbed one of the same
    case, in `turns`, `cost_usd` and `seconds` of the run's own time, with an interval over clusters. `wrong` names the first effects that were repeated or
    lost, with their runs.
    """

    faults: tuple[str, ...]
    undisturbed: str | None = None
    struck: int = 0
    repeated: int | None = 0
    lost: int | None = None
    more: dict[str, Interval] = {}
    wrong: tuple[str, ...] = ()


GRADED = ("passed", "failed")
ENDED = (*GRADED, "unknown")


class Judging(msgspec.Struct, frozen=True, kw_only=True):
    """How the judges of one grader did: `verdicts` that cost `cost_usd`, which is not the agent's, and measuring them `measuring_usd`.

    A verdict that several trials share counts once; one that also served to measure its judge is in both costs. `between` is the agreement of several
    judges with each other (the mean over their pairs), `itself` the share of pairs of samples that agree, `measured` how far each judge agrees with
    people, and with itself.
    """

    verdicts: int
    cost_usd: float
    measuring_usd: float = 0.0
    between: Agreement | None = None
    itself: float | None = None
    measured: tuple[Measured, ...] = ()


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of one variant.

    `passed` is the share of graded trials that passed, by case. `pass_at` and `pass_hat` are by k from 1; None where some case has fewer than k graded
    trials. `unknown`, `machinery`, `open`, `cancelled` and `not_run` count trials that are not graded; they are not failures of the agent. `latency_s` has
    p50, p95 and p99, and `latency_range` their intervals. `within` and `between` are the variances of success within cases and between them. `users` has the
    verdicts on simulated users by grader, and `users_cost_usd` what these cost, apart from the other costs.
    """

    variant: str
    trials: int
    graded: int
    passed: Interval
    pass_at: dict[int, Interval]
    pass_hat: dict[int, Interval]
    unknown: int = 0
    machinery: int = 0
    open: int = 0
    cancelled: int = 0
    not_run: int = 0
    retried: int = 0
    latency_s: dict[str, float] = {}
    turns: Interval = stats.UNKNOWN
    tokens: Interval = stats.UNKNOWN
    cost_usd: Interval = stats.UNKNOWN
    total_cost_usd: float = 0.0
    reasons: dict[str, int] = {}
    latency_range: dict[str, Interval] = {}
    within: float | None = None
    between: float | None = None
    graders: dict[str, dict[str, int]] = {}
    under: UnderFaults | None = None
    """What its faults did; None for a variant without faults."""
    judges: dict[str, Judging] = {}
    users: dict[str, dict[str, int]] = {}
    users_cost_usd: float = 0.0


class Evaluation(msgspec.Struct, frozen=True, kw_only=True):
    """A whole evaluation: what was tried, every trial, and the figures by variant."""

    schema: int = SCHEMA
    suite: str
    id: str
    at: Annotated[datetime, msgspec.Meta(tz=True)]
    trials: tuple[Trial, ...]
    figures: dict[str, Figures]

    def write(self, path: Path) -> None:
        """Write it as JSON; whoever reads the file meanwhile finds all of it, or what was there."""
        beside = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            beside.write_bytes(msgspec.json.format(msgspec.json.encode(self), indent=1))
            beside.replace(path)
        finally:
            beside.unlink(missing_ok=True)

    @classmethod
    def read(cls, path: Path) -> Evaluation:
        """Read it back. Raise `ConfigError` for a file of another kind or of a newer schema."""
        try:
            data = path.read_bytes()
            known = msgspec.json.decode(data, type=dict[str, Any]).get("schema")
            if known != SCHEMA:
                raise ConfigError(f"{path} has the schema {known!r}; this version reads {SCHEMA}")
            found = msgspec.json.decode(data, type=cls)
            if unknown := {trial.variant for trial in found.trials} - set(found.figures):
                raise ConfigError(f"{path} has trials of {min(unknown)!r}, and no figures of it; it is not as an evaluation writes it")
            return found
        except (OSError, msgspec.DecodeError, RecursionError) as error:
            raise ConfigError(f"{path} is not a result of an evaluation: {error}") from error


def summarised(suite: str, id: str, trials: Sequence[Trial]) -> Evaluation:  # noqa: A002 - as everywhere
    """Return the evaluation of these trials."""
    variants = dict.fromkeys(trial.variant for trial in trials)
    by_variant = {name: [trial for trial in trials if trial.variant == name] for name in variants}
    undisturbed = {name: by_variant.get(base, ()) for name, found in by_variant.items() if (base := found[0].undisturbed) is not None}
    figures = {name: figures_of(name, found, undisturbed.get(name, ())) for name, found in by_variant.items()}
    return Evaluation(suite=suite, id=id, at=datetime.now(UTC), trials=tuple(trials), figures=figures)


def relabelled(of: Evaluation, labels: Sequence[Label]) -> Evaluation:
    """Return an evaluation whose grades by people are those of the labels now."""
    trials: list[Trial] = []
    for trial in of.trials:
        people = [grade for grade in trial.grades if grade.rater == "person"]
        if not people or trial.standing not in ENDED:
            trials.append(trial)
            continue
        made = {
            one.grader: said_by_people(
                Grader(kind="person", name=one.grader, expected=one.question or None, required=one.required),
                labels,
                trial.run_id,
                written(trial.output),
            )
            for one in people
        }
        grades = tuple(made[one.grader] if one.rater == "person" else one for one in trial.grades)
        trials.append(msgspec.structs.replace(trial, grades=grades, standing=verdict_of(grades)))
    return msgspec.structs.replace(summarised(of.suite, of.id, trials), at=of.at)


def by_cluster(trials: Sequence[Trial]) -> dict[str, list[Trial]]:
    """Return the graded trials by cluster."""
    found: dict[str, list[Trial]] = {}
    for trial in trials:
        if trial.standing in ("passed", "failed"):
            found.setdefault(trial.cluster, []).append(trial)
    return found


def figures_of(name: str, trials: Sequence[Trial], undisturbed: Sequence[Trial] = ()) -> Figures:
    """Return the figures of one variant; `undisturbed` are the trials of the one that it would be without its faults."""
    counts = Counter(trial.standing for trial in trials)
    ended = [trial for trial in trials if trial.standing in ("passed", "failed", "unknown")]
    clusters = by_cluster(trials)
    right = {cluster: [float(trial.standing == "passed") for trial in found] for cluster, found in clusters.items()}
    by_case = [[float(one.standing == "passed") for one in found if one.standing in GRADED] for found in _by_case(trials).values()]
    within, between = stats.variances(by_case)
    groups = _grouped(ended)
    most = max((len(found) for found in _by_case(trials).values()), default=0)
    played = [trial.user for trial in ended if trial.user is not None]
    graders = _verdicts(grade for trial in ended for grade in trial.grades)
    seconds: dict[str, Interval] = dict(
        zip(("p50", "p95", "p99"), stats.bootstrap([[t.latency_s for t in g] for g in groups], (0.5, 0.95, 0.99)), strict=True)
    )
    return Figures(
        variant=name,
        trials=len(trials),
        graded=counts["passed"] + counts["failed"],
        passed=_share(list(right.values())),
        pass_at={k: _of_k(trials, k, stats.pass_at) for k in range(1, most + 1)},
        pass_hat={k: _of_k(trials, k, stats.pass_hat) for k in range(1, most + 1)},
        unknown=counts["unknown"],
        machinery=counts["machinery"],
        open=counts["open"],
        cancelled=counts["cancelled"],
        not_run=counts["not_run"],
        retried=sum(max(0, trial.attempts - 1) for trial in trials),
        latency_s={name: one.value for name, one in seconds.items() if one.value is not None},
        latency_range=seconds if ended else {},
        turns=stats.clustered_mean([[float(t.turns) for t in g] for g in groups]),
        tokens=stats.clustered_mean([[float(t.tokens) for t in g] for g in groups]),
        cost_usd=stats.clustered_mean([[t.cost_usd for t in g] for g in groups]),
        total_cost_usd=sum(trial.cost_usd for trial in trials),
        reasons=dict(Counter(trial.reason or trial.status or trial.standing for trial in trials)),
        within=within,
        between=between,
        graders=graders,
        users=_verdicts(grade for user in played for grade in user.grades),
        users_cost_usd=sum(user.cost_usd for user in played),
        under=_under_faults(trials, undisturbed) if trials and trials[0].faults else None,
        judges={grader: judged for grader in graders if (judged := judging_of(grader, ended)) is not None},
    )


def judging_of(grader: str, trials: Sequence[Trial]) -> Judging | None:
    """Return how the judges of a grader did; None if it has none."""
    grades = [grade for trial in trials for grade in trial.grades if grade.grader == grader and grade.rater == "judge"]
    if not grades:
        return None
    votes = {vote.run_id: vote for grade in grades for vote in grade.votes}
    measured = {one.judge: one for grade in grades for one in grade.measured}
    pairs, alike, samples = dict[tuple[str, str], list[tuple[bool, bool]]](), 0, 0
    for grade in grades:
        by_judge: dict[str, list[bool]] = {}
        for vote in grade.votes:
            by_judge.setdefault(vote.judge, []).append(vote.share > 0.5)
        for said in by_judge.values():
            yes, count = sum(said), len(said)
            alike, samples = alike + math.comb(yes, 2) + math.comb(count - yes, 2), samples + math.comb(count, 2)
        most = {judge: sum(said) * 2 > len(said) for judge, said in by_judge.items()}
        for pair in combinations(most, 2):
            pairs.setdefault(pair, []).append((most[pair[0]], most[pair[1]]))
    agreed = [agreement(*zip(*said, strict=True)) for said in pairs.values()]
    return Judging(
        verdicts=len(votes),
        cost_usd=sum(vote.cost_usd for vote in votes.values()),
        measuring_usd=sum(one.cost_usd for one in measured.values()),
        between=_mean(agreed) if agreed else None,
        itself=alike / samples if samples else None,
        measured=tuple(measured.values()),
    )


def _mean(of: Sequence[Agreement]) -> Agreement:
    kappas = [one.kappa for one in of if one.kappa is not None]
    return Agreement(
        share=fmean(one.share for one in of),
        kappa=fmean(kappas) if kappas else None,
        base_rate=fmean(one.base_rate for one in of),
        count=sum(one.count for one in of),
    )


def _under_faults(trials: Sequence[Trial], undisturbed: Sequence[Trial]) -> UnderFaults:
    """Return what the faults of a variant did to these trials."""
    base, usual = trials[0].undisturbed, _by_case(undisturbed)
    seen = any(trial.effects is not None for trial in trials)
    wrong: list[str] = []
    repeated = lost = 0
    for trial in trials:
        if (made := trial.effects) is None:
            continue
        others = usual.get(trial.case, ())
        right = [one for one in others if one.standing == "passed"]
        claims = trial.standing == "passed" or (trial.status == "completed" and any(one.output == trial.output for one in right))
        more = effects.repeated(made, [one.effects for one in others if one.effects is not None])
        less = effects.missing(made, [one.effects for one in right if one.effects is not None]) if claims else {}
        repeated += sum(more.values())
        lost += sum(less.values()) + len(made.denied)
        place = f"case {trial.case}, trial {trial.number} (run {trial.run_id})"
        wrong += [f"repeated {counted(count, 'time')} more: {what}; {place}" for what, count in more.items()]
        wrong += [f"lost {counted(count, 'time')}: {tool}; {place}" for tool, count in less.items()]
        wrong += [f"lost: {what} succeeded by the log, but not by its tool; {place}" for what in made.denied]
    return UnderFaults(
        faults=trials[0].faults,
        undisturbed=base,
        struck=sum(bool(trial.struck) for trial in trials),
        repeated=repeated if seen else None,
        lost=lost if lost or (base is not None and seen) else None,
        more={
            "turns": _more(trials, undisturbed, lambda trial: float(trial.turns)),
            "cost_usd": _more(trials, undisturbed, lambda trial: trial.cost_usd),
            "seconds": _more(trials, undisturbed, lambda trial: trial.latency_s),
        },
        wrong=tuple(wrong[:MOST_WRONG]),
    )


def _more(trials: Sequence[Trial], undisturbed: Sequence[Trial], of: Callable[[Trial], float]) -> Interval:
    """Return the mean difference to undisturbed trials of the same cluster, with Student's interval over the clusters."""
    ours, theirs = ({g[0].cluster: fmean(map(of, g)) for g in _grouped([t for t in ts if t.status]) if g} for ts in (trials, undisturbed))
    return stats.clustered_mean([[ours[cluster] - theirs[cluster]] for cluster in ours if cluster in theirs])


def _verdicts(grades: Iterable[Grade]) -> dict[str, dict[str, int]]:
    """Return how often each grader gave each verdict."""
    found: dict[str, Counter[str]] = {}
    for grade in grades:
        found.setdefault(grade.grader, Counter())[grade.verdict] += 1
    return {grader: dict(counts) for grader, counts in found.items()}


def _share(clusters: Sequence[Sequence[float]]) -> Interval:
    """Return a share with its interval. Where all clusters are alike Student knows no spread, and Wilson's interval over the clusters stands for it."""
    found = stats.clustered_mean(clusters)
    if found.value is None or found.low is None or found.high is None or found.high - found.low > 1e-9:  # sums of floats are not exact
        return found
    score = stats.wilson(round(found.value * len(clusters)), len(clusters))
    return Interval(value=found.value, low=score.low, high=score.high)


def _grouped(trials: Sequence[Trial]) -> list[list[Trial]]:
    found: dict[str, list[Trial]] = {}
    for trial in trials:
        found.setdefault(trial.cluster, []).append(trial)
    return list(found.values())


def _by_case(trials: Sequence[Trial]) -> dict[str, list[Trial]]:
    found: dict[str, list[Trial]] = {}
    for trial in trials:
        found.setdefault(trial.case, []).append(trial)
    return found


def _of_k(trials: Sequence[Trial], k: int, of: Callable[[int, int, int], float | None]) -> Interval:
    """Return the mean over cases of pass@k or pass^k; unknown if some case has fewer than k graded trials."""
    values: dict[str, list[float]] = {}
    for found in _by_case(trials).values():
        known = [trial for trial in found if trial.standing in ("passed", "failed")]
        value = of(len(known), sum(trial.standing == "passed" for trial in known), k)
        if value is None:
            return stats.UNKNOWN
        values.setdefault(found[0].cluster, []).append(value)
    return _share(list(values.values()))
