"""What an evaluation found: figures with intervals for each variant, and the document that keeps all of it (`schema` 1)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from detent.core.errors import ConfigError
from detent.evals import statistics as stats
from detent.evals.statistics import Interval
from detent.evals.trials import Trial

SCHEMA = 1


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of one variant.

    `passed` is the share of graded trials that passed, by case. `pass_at` and `pass_hat` are by k from 1; None where some case has fewer than k graded
    trials. `unknown`, `machinery` and `open` count trials that are not graded; they are not failures of the agent.
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
    retried: int = 0
    latency_s: dict[str, float] = {}
    turns: Interval = stats.UNKNOWN
    tokens: Interval = stats.UNKNOWN
    cost_usd: Interval = stats.UNKNOWN
    total_cost_usd: float = 0.0
    reasons: dict[str, int] = {}
    within: float | None = None
    between: float | None = None
    graders: dict[str, dict[str, int]] = {}


class Evaluation(msgspec.Struct, frozen=True, kw_only=True):
    """A whole evaluation: what was tried, every trial, and the figures by variant."""

    schema: int = SCHEMA
    suite: str
    id: str
    at: datetime
    trials: tuple[Trial, ...]
    figures: dict[str, Figures]

    def write(self, path: Path) -> None:
        """Write it as JSON."""
        path.write_bytes(msgspec.json.format(msgspec.json.encode(self), indent=1))

    @classmethod
    def read(cls, path: Path) -> Evaluation:
        """Read it back. Raise `ConfigError` for a file of another kind or of a newer schema."""
        try:
            data = path.read_bytes()
            known = msgspec.json.decode(data, type=dict[str, Any]).get("schema")
            if known != SCHEMA:
                raise ConfigError(f"{path} has the schema {known!r}; this version reads {SCHEMA}")
            return msgspec.json.decode(data, type=cls)
        except (OSError, msgspec.DecodeError) as error:
            raise ConfigError(f"{path} is not a result of an evaluation: {error}") from error


def summarised(suite: str, id: str, trials: Sequence[Trial]) -> Evaluation:  # noqa: A002 - as everywhere
    """Return the evaluation of these trials."""
    variants = dict.fromkeys(trial.variant for trial in trials)
    figures = {name: figures_of(name, [trial for trial in trials if trial.variant == name]) for name in variants}
    return Evaluation(suite=suite, id=id, at=datetime.now(UTC), trials=tuple(trials), figures=figures)


def by_cluster(trials: Sequence[Trial]) -> dict[str, list[Trial]]:
    """Return the graded trials by cluster."""
    found: dict[str, list[Trial]] = {}
    for trial in trials:
        if trial.standing in ("passed", "failed"):
            found.setdefault(trial.cluster, []).append(trial)
    return found


def figures_of(name: str, trials: Sequence[Trial]) -> Figures:
    """Return the figures of one variant."""
    counts = Counter(trial.standing for trial in trials)
    ended = [trial for trial in trials if trial.standing in ("passed", "failed", "unknown")]
    clusters = by_cluster(trials)
    right = {cluster: [float(trial.standing == "passed") for trial in found] for cluster, found in clusters.items()}
    within, between = stats.variances(list(right.values()))
    groups = _grouped(ended)
    most = max((len(found) for found in _by_case(trials).values()), default=0)
    graders: dict[str, Counter[str]] = {}
    for trial in ended:
        for grade in trial.grades:
            graders.setdefault(grade.grader, Counter())[grade.verdict] += 1
    seconds = [trial.latency_s for trial in ended]
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
        retried=sum(trial.attempts - 1 for trial in trials),
        latency_s={f"p{p}": stats.percentile(seconds, p / 100) for p in (50, 95, 99)} if seconds else {},
        turns=stats.clustered_mean([[float(t.turns) for t in g] for g in groups]),
        tokens=stats.clustered_mean([[float(t.tokens) for t in g] for g in groups]),
        cost_usd=stats.clustered_mean([[t.cost_usd for t in g] for g in groups]),
        total_cost_usd=sum(trial.cost_usd for trial in trials),
        reasons=dict(Counter(trial.reason or trial.status or "none" for trial in trials)),
        within=within,
        between=between,
        graders={grader: dict(found) for grader, found in graders.items()},
    )


def _share(clusters: Sequence[Sequence[float]]) -> Interval:
    """Return a share with its interval. Where all clusters are alike Student knows no spread, and Wilson's interval over the clusters stands for it."""
    found = stats.clustered_mean(clusters)
    if found.value is None or found.low != found.high:
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
