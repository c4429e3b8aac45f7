"""The statistics of evaluations. Pure functions of numbers, with seeds where chance is used.

Trials of one case resemble each other, so they are not independent: every interval is over clusters (the cases, unless another key is chosen). Student's
quantile is our own twenty lines, because the library that has it is a hundred times larger than this package.
"""  # rows K134, K135, L3

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from functools import lru_cache
from statistics import NormalDist, fmean

import msgspec

from detent.core.errors import ConfigError

LEVEL = 0.95


class Interval(msgspec.Struct, frozen=True, kw_only=True):
    """A value with the interval that holds the truth in `level` of all evaluations like this one. `low` and `high` are None where it is not known."""

    value: float | None
    low: float | None = None
    high: float | None = None
    level: float = LEVEL


UNKNOWN = Interval(value=None)
"""Nothing was measured."""


def pass_at(n: int, successes: int, k: int) -> float | None:
    """Return the probability that at least one of k trials succeeds, without bias, from n trials; None with fewer than k (row K134)."""
    _checked(n, successes, k)
    return None if n < k else 1.0 - math.comb(n - successes, k) / math.comb(n, k)


def pass_hat(n: int, successes: int, k: int) -> float | None:
    """Return the probability that all of k trials succeed (pass^k), without bias, from n trials; None with fewer than k (row K134)."""
    _checked(n, successes, k)
    return None if n < k else math.comb(successes, k) / math.comb(n, k)


def _checked(n: int, successes: int, k: int) -> None:
    if k < 1 or n < 0 or not 0 <= successes <= n:
        raise ConfigError(f"{successes} successes of {n} trials, k = {k}: give k from 1, and 0 to n successes")


def wilson(successes: int, n: int, level: float = LEVEL) -> Interval:
    """Return a proportion of independent trials with Wilson's score interval."""
    if not n:
        return Interval(value=None, level=level)
    z = NormalDist().inv_cdf(0.5 + level / 2)
    share = successes / n
    middle = (share + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    return Interval(value=share, low=max(0.0, middle - half), high=min(1.0, middle + half), level=level)


def clustered_mean(clusters: Sequence[Sequence[float]], level: float = LEVEL) -> Interval:
    """Return the mean of all values with Student's interval over clusters: clusters - 1 degrees of freedom.

    The variance is that of the clusters' totals about the mean, so trials of one case may depend on each other in any way.
    """
    kept = [cluster for cluster in clusters if cluster]
    count = sum(map(len, kept))
    if not count:
        return Interval(value=None, level=level)
    mean = sum(map(sum, kept)) / count
    groups = len(kept)
    if groups < 2:
        return Interval(value=mean, level=level)
    off = sum((sum(cluster) - len(cluster) * mean) ** 2 for cluster in kept)
    error = math.sqrt(off * groups / (groups - 1)) / count
    half = student(0.5 + level / 2, groups - 1) * error
    return Interval(value=mean, low=mean - half, high=mean + half, level=level)


def bootstrap(
    clusters: Sequence[Sequence[float]], shares: Sequence[float], *, level: float = LEVEL, rounds: int = 1_000, seed: int = 0
) -> list[Interval]:
    """Return percentiles of all values with the percentile interval of the cluster bootstrap: whole clusters are drawn again.

    Fewer rounds are drawn for more than 2,000 values, at least 100, so that it stays in proportion to the evaluation.
    """
    kept = [cluster for cluster in clusters if cluster]
    every = sorted(value for cluster in kept for value in cluster)
    if not every:
        return [Interval(value=None, level=level) for _ in shares]
    if len(kept) < 2:
        return [Interval(value=_between(every, share), level=level) for share in shares]
    drawing = random.Random(seed)
    rounds = max(min(rounds, 100), min(rounds, rounds * 2_000 // len(every)))
    drawn = [sorted(v for cluster in drawing.choices(kept, k=len(kept)) for v in cluster) for _ in range(rounds)]
    tail, found = (1 - level) / 2, list[Interval]()
    for share in shares:
        values = sorted(_between(one, share) for one in drawn)
        low, high = values[int(tail * (rounds - 1))], values[math.ceil((1 - tail) * (rounds - 1))]
        found.append(Interval(value=_between(every, share), low=low, high=high, level=level))
    return found


def percentile(values: Sequence[float], share: float) -> float:
    """Return a percentile of values, between neighbours in proportion."""
    return _between(sorted(values), share)


def _between(ordered: Sequence[float], share: float) -> float:
    at = share * (len(ordered) - 1)
    below = math.floor(at)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (at - below) * (ordered[above] - ordered[below])


def variances(clusters: Sequence[Sequence[float]]) -> tuple[float | None, float | None]:
    """Return the variance within clusters and that between them, both without bias; None where it is not known.

    The means of clusters vary also because of what varies within them; that part is taken off (analysis of variance with one random effect), and what is
    left is not below 0.
    """
    kept = [cluster for cluster in clusters if cluster]
    free = sum(len(cluster) - 1 for cluster in kept)
    means = [fmean(cluster) for cluster in kept]
    within = sum((v - m) ** 2 for cluster, m in zip(kept, means, strict=True) for v in cluster) / free if free else None
    if within is None or len(kept) < 2:
        return within, None
    count = sum(map(len, kept))
    middle = sum(map(sum, kept)) / count
    square = sum(len(cluster) * (m - middle) ** 2 for cluster, m in zip(kept, means, strict=True)) / (len(kept) - 1)
    size = (count - sum(len(cluster) ** 2 for cluster in kept) / count) / (len(kept) - 1)
    return within, max(0.0, (square - within) / size)


def permutation(differences: Sequence[float], *, rounds: int = 10_000, seed: int = 0) -> float:
    """Return how likely a mean difference as large as this one is if there is none: signs are exchanged, one for each cluster.

    Up to 12 clusters every exchange is tried; beyond that `rounds` are drawn and the observed one counts as one of them, so P(p <= a) <= a.
    """
    given = [d for d in differences if d]
    if not given:
        return 1.0
    observed = abs(sum(given)) * (1 - 1e-12)
    if len(given) <= 12:
        hits = sum(abs(sum(d if mask >> place & 1 else -d for place, d in enumerate(given))) >= observed for mask in range(1 << len(given)))
        return hits / (1 << len(given))
    drawing = random.Random(seed)
    hits = sum(
        abs(sum(d if bits >> place & 1 else -d for place, d in enumerate(given))) >= observed
        for bits in (drawing.getrandbits(len(given)) for _ in range(rounds))
    )
    return (hits + 1) / (rounds + 1)


def holm(values: Sequence[float]) -> list[float]:
    """Return p-values corrected for their number (Holm), in the order given."""
    corrected = [0.0] * len(values)
    highest = 0.0
    for rank, place in enumerate(sorted(range(len(values)), key=values.__getitem__)):
        highest = max(highest, min(1.0, values[place] * (len(values) - rank)))
        corrected[place] = highest
    return corrected


def clusters_needed(differences: Sequence[float], margin: float, *, level: float = LEVEL, power: float = 0.8) -> int | None:
    """Return how many clusters in all would probably decide whether the mean difference is beyond 0 or within `margin`; None if nobody can say."""
    if len(differences) < 2:
        return None
    mean = fmean(differences)
    spread = math.sqrt(sum((d - mean) ** 2 for d in differences) / (len(differences) - 1))
    size = max(abs(mean), margin - abs(mean))
    if not spread or size <= 0:
        return None
    z = NormalDist().inv_cdf(0.5 + level / 2) + NormalDist().inv_cdf(power)
    return math.ceil((z * spread / size) ** 2)


@lru_cache(maxsize=4_096)
def student(share: float, freedom: int) -> float:
    """Return the quantile of Student's t."""
    low, high = 0.0, 1.0
    while _student_below(high, freedom) < share:
        high *= 2
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if _student_below(middle, freedom) < share else (low, middle)
    return (low + high) / 2


def _student_below(t: float, freedom: int) -> float:
    return 1 - _beta(freedom / (freedom + t * t), freedom / 2, 0.5) / 2


def _beta(x: float, a: float, b: float) -> float:
    """Return the regularised incomplete beta function, by its continued fraction (Lentz)."""
    if x <= 0 or x >= 1:
        return 0.0 if x <= 0 else 1.0
    if x > (a + 1) / (a + b + 2):
        return 1 - _beta(1 - x, b, a)
    front = math.exp(math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)) / a
    tiny = 1e-300
    c, d = 1.0, 1 / max(1 - (a + b) * x / (a + 1), tiny)
    total = d
    for m in range(1, 500):
        for n in (m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)), -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))):
            d = 1 / (1 + n * d or tiny)
            c = 1 + n / c or tiny
            total *= c * d
        if abs(c * d - 1) < 1e-15:
            break
    return front * total
