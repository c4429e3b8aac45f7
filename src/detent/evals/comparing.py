"""Is one version better than another? Paired by case, clustered, corrected for the number of questions, and answered in one word."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist, fmean
from typing import Literal

import msgspec

from detent.core.errors import ConfigError
from detent.evals import statistics as stats
from detent.evals.statistics import Interval
from detent.evals.trials import Trial

Word = Literal["better", "worse", "tied", "not enough data"]
METRICS = ("quality", "cost_usd", "latency_s", "turns")
"""What is compared. Of `quality` more is better, of the others less."""


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """How one metric differs: the mean of b minus a over clusters, the corrected p-value, the margin within which it counts as tied, and the word.

    `not_worse`: the whole interval shows that b is at most the margin worse (non-inferiority).
    """

    metric: str
    difference: Interval
    p: float
    margin: float
    word: Word
    not_worse: bool = False
    more_clusters: int | None = None
    """So many more clusters would probably decide; None if it is decided, or nobody can say."""
    more_trials: int | None = None
    """So many trials of each result are in that many clusters."""


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """Two results compared: the word for b against a, why it is that, each metric, and the cases that came out otherwise.

    `left_out` are the cases that both have and one of them has no graded trial of: nothing is known of them, which may be why b looks well.
    """

    word: Word
    because: str
    metrics: tuple[Difference, ...]
    clusters: int
    gained: tuple[str, ...]
    lost: tuple[str, ...]
    left_out: tuple[str, ...] = ()

    @property
    def told(self) -> str:
        """The comparison in one sentence."""
        quality = self.metrics[0]
        if self.word == "not enough data" and quality.more_clusters:
            return f"not enough data; about {quality.more_trials} more trials ({quality.more_clusters} clusters) would decide"
        said = f"b is {self.word}" if self.word in ("better", "worse") else self.word
        return f"{said}: {self.because}" if self.because else said


def compare(
    a: Sequence[Trial], b: Sequence[Trial], *, margin: float = 0.02, cost_margin: float = 0.1, level: float = stats.LEVEL
) -> Comparison:
    """Compare two results over the cases that both have, a difference a cluster. `margin` is for quality, `cost_margin` a share of a's mean for the others.

    A metric is `better` or `worse` when the exchange of signs, corrected by Holm over the metrics, says so; `tied` when the whole interval lies within
    the margin; else there is not enough data. The word for all is that of the quality, but where b is not worse (at most `margin`) and costs less by more
    than `cost_margin`, it is better; and where it is not better by more than `margin` and costs that much more, it is worse. Variants are compared by
    name if both results have the same ones. Raises `ConfigError`.
    """
    if not 0 <= margin < 1 or not 0 <= cost_margin < math.inf or not 0.5 <= level < 1:
        raise ConfigError(
            f"margin is from 0 to below 1, cost_margin 0 or more, level from 0.5 to below 1; not {margin}, {cost_margin} and {level}"
        )
    one, other = _by_case(a), _by_case(b)
    by_variant = {variant for _, variant in one} == {variant for _, variant in other}
    if not by_variant:
        one, other = _without_variants(one, "a"), _without_variants(other, "b")
    both = [key for key in one if key in other]
    clusters: dict[str, list[tuple[str, str]]] = {}
    for key in both:
        clusters.setdefault(one[key][0].cluster, []).append(key)
    pairs = {
        metric: [fmean(_value(other[key], metric) - _value(one[key], metric) for key in keys) for keys in clusters.values()]
        for metric in METRICS
    }
    size = sum(len(one[key]) for key in both) / len(clusters) if clusters else 1.0
    corrected = stats.holm([stats.permutation(pairs[metric]) for metric in METRICS])
    metrics: list[Difference] = []
    for metric, p in zip(METRICS, corrected, strict=True):
        near = margin if metric == "quality" else cost_margin * (fmean(_value(one[key], metric) for key in both) if both else 0.0)
        metrics.append(_judged(metric, pairs[metric], p, margin=near, level=level, size=size))
    word, because = _decided(metrics[0], metrics[1])
    a_right, b_right, tried = _right(one, both), _right(other, both), {trial.case for trial in b}
    return Comparison(
        word=word,
        because=because,
        metrics=tuple(metrics),
        clusters=len(clusters),
        gained=tuple(case for case in a_right if b_right[case] > a_right[case]),
        lost=tuple(case for case in a_right if b_right[case] < a_right[case]),
        left_out=tuple(case for case in dict.fromkeys(trial.case for trial in a) if case in tried and case not in a_right),
    )


def _judged(metric: str, differences: Sequence[float], p: float, *, margin: float, level: float, size: float) -> Difference:
    interval = stats.clustered_mean([[d] for d in differences], level)
    if alike := metric == "quality" and interval.low is not None and interval.high is not None and interval.high - interval.low < _NEAR:
        interval = _alike(fmean(differences), len(differences), level)
    value, low, high = interval.value, interval.low, interval.high
    low, high = -math.inf if low is None else low, math.inf if high is None else high
    word: Word = "not enough data"
    if value is not None and p <= 1 - level + 1e-12:
        word = "better" if (value > 0) == (metric == "quality") else "worse"
    elif -margin <= low and high <= margin:
        word = "tied"
    needed = _needed_alike(abs(value or 0.0), margin, level) if alike else stats.clusters_needed(differences, margin, level=level)
    if needed is not None and not alike:  # with fewer, no exchange of signs is rare enough after Holm's correction
        needed = max(needed, math.ceil(1 + math.log2(len(METRICS) / (1 - level))))
    needed = needed if word == "not enough data" else None
    more = max(1, needed - len(differences)) if needed is not None else None
    return Difference(
        metric=metric,
        difference=interval,
        p=p,
        margin=margin,
        word=word,
        not_worse=low >= -margin if metric == "quality" else high <= margin,
        more_clusters=more,
        more_trials=None if more is None else math.ceil(more * size),
    )


_NEAR = 1e-9


def _alike(value: float, clusters: int, level: float) -> Interval:
    """Return the interval of a quality that differs alike in all clusters: so many more may differ as Wilson's interval for none of them allows.

    Student knows no spread there, and would hold as certain what five cases without a difference show.
    """
    room = stats.wilson(0, clusters, level).high or 1.0
    return Interval(value=value, low=max(-1.0, value - room), high=min(1.0, value + room), level=level)


def _needed_alike(value: float, margin: float, level: float) -> int | None:
    """Return of how many clusters that are alike the interval lies within the margin; None if of no number."""
    z = NormalDist().inv_cdf(0.5 + level / 2)
    return math.ceil(z * z * (1 / (margin - value) - 1)) if value < margin else None


def _decided(quality: Difference, cost: Difference) -> tuple[Word, str]:
    """Return the word for both: that of the quality, unless the cost decides where the quality is not inferior."""
    if quality.word in ("better", "worse"):
        return quality.word, ""
    low, high = cost.difference.low, cost.difference.high
    not_better = quality.difference.high is not None and quality.difference.high <= quality.margin
    if quality.not_worse and cost.word == "better" and high is not None and high < -cost.margin:
        return "better", f"it costs less, and its quality is at most {quality.margin:.1%} lower"
    if not_better and cost.word == "worse" and low is not None and low > cost.margin:
        return "worse", f"it costs more, and its quality is at most {quality.margin:.1%} higher"
    return quality.word, ""


Key = tuple[str, str]


def _by_case(trials: Sequence[Trial]) -> dict[Key, list[Trial]]:
    """Return the graded trials by case and variant."""
    found: dict[Key, list[Trial]] = {}
    for trial in trials:
        if trial.standing in ("passed", "failed"):
            found.setdefault((trial.case, trial.variant), []).append(trial)
    return found


def _without_variants(of: dict[Key, list[Trial]], which: str) -> dict[Key, list[Trial]]:
    names = sorted({variant for _, variant in of})
    if len(names) > 1:
        raise ConfigError(f"{which} has the variants {', '.join(names)}, which the other result does not have; choose one: FILE#VARIANT")
    return {(case, ""): trials for (case, _), trials in of.items()}


def _value(trials: Sequence[Trial], metric: str) -> float:
    if metric == "quality":
        return fmean(float(trial.standing == "passed") for trial in trials)
    return fmean(float(getattr(trial, metric)) for trial in trials)


def _right(trials: dict[Key, list[Trial]], keys: Sequence[Key]) -> dict[str, float]:
    """Return how often each case came out right; with several variants all of them together."""
    found: dict[str, list[float]] = {}
    for key in keys:
        found.setdefault(key[0], []).extend(float(trial.standing == "passed") for trial in trials[key])
    return {case: fmean(values) for case, values in found.items()}
