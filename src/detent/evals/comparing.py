"""Is one version better than another? Paired by case, clustered, corrected for the number of questions, and answered in one word."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import Literal

import msgspec

from detent.evals import statistics as stats
from detent.evals.statistics import Interval
from detent.evals.trials import Trial

Word = Literal["better", "worse", "tied", "not enough data"]
METRICS = ("quality", "cost_usd", "latency_s", "turns")
"""What is compared. Of `quality` more is better, of the others less."""


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """How one metric differs: the mean of b minus a over clusters, the corrected p-value, the margin within which it counts as tied, and the word."""

    metric: str
    difference: Interval
    p: float
    margin: float
    word: Word
    more_clusters: int | None = None
    """So many more clusters would probably decide; None if it is decided, or nobody can say."""


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """Two results compared: the word for the quality of b against a, each metric, and the cases that came out otherwise."""

    word: Word
    metrics: tuple[Difference, ...]
    clusters: int
    gained: tuple[str, ...]
    lost: tuple[str, ...]

    @property
    def told(self) -> str:
        """The comparison in one sentence."""
        quality = self.metrics[0]
        more = f"; about {quality.more_clusters} more cases would decide" if quality.more_clusters else ""
        return f"b is {self.word}{more}" if self.word in ("better", "worse") else f"{self.word}{more}"


def compare(
    a: Sequence[Trial], b: Sequence[Trial], *, margin: float = 0.02, cost_margin: float = 0.1, level: float = stats.LEVEL
) -> Comparison:
    """Compare two results over the clusters that both have. `margin` is for quality, `cost_margin` a share of a's mean for everything else.

    A metric is `better` or `worse` when the exchange of signs, corrected by Holm over the metrics, says so; `tied` when the whole interval lies within
    the margin; else there is not enough data.
    """
    one, other = _clusters(a), _clusters(b)
    both = [name for name in one if name in other]
    pairs = {metric: [_value(other[name], metric) - _value(one[name], metric) for name in both] for metric in METRICS}
    corrected = stats.holm([stats.permutation(pairs[metric]) for metric in METRICS])
    metrics: list[Difference] = []
    for metric, p in zip(METRICS, corrected, strict=True):
        near = margin if metric == "quality" else cost_margin * abs(fmean([_value(one[name], metric) for name in both]) if both else 0.0)
        metrics.append(_judged(metric, pairs[metric], p, near, level))
    a_right, b_right = _right(a), _right(b)
    changed = [case for case in a_right if case in b_right and a_right[case] != b_right[case]]
    return Comparison(
        word=metrics[0].word,
        metrics=tuple(metrics),
        clusters=len(both),
        gained=tuple(case for case in changed if b_right[case] > a_right[case]),
        lost=tuple(case for case in changed if b_right[case] < a_right[case]),
    )


def _judged(metric: str, differences: Sequence[float], p: float, margin: float, level: float) -> Difference:
    interval = stats.clustered_mean([[d] for d in differences], level)
    value, low, high = interval.value, interval.low, interval.high
    word: Word = "not enough data"
    if value is not None and p <= 1 - level:
        word = "better" if (value > 0) == (metric == "quality") else "worse"
    elif low is not None and high is not None and -margin <= low and high <= margin:
        word = "tied"
    needed = stats.clusters_needed(differences, margin, level=level) if word == "not enough data" else None
    more = max(1, needed - len(differences)) if needed is not None else None
    return Difference(metric=metric, difference=interval, p=p, margin=margin, word=word, more_clusters=more)


def _clusters(trials: Sequence[Trial]) -> dict[str, list[Trial]]:
    found: dict[str, list[Trial]] = {}
    for trial in trials:
        if trial.standing in ("passed", "failed"):
            found.setdefault(trial.cluster, []).append(trial)
    return found


def _value(trials: Sequence[Trial], metric: str) -> float:
    if metric == "quality":
        return fmean(float(trial.standing == "passed") for trial in trials)
    return fmean(float(getattr(trial, metric)) for trial in trials)


def _right(trials: Sequence[Trial]) -> dict[str, float]:
    found: dict[str, list[float]] = {}
    for trial in trials:
        if trial.standing in ("passed", "failed"):
            found.setdefault(trial.case, []).append(float(trial.standing == "passed"))
    return {case: fmean(values) for case, values in found.items()}
