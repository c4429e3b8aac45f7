"""The statistics of evaluations, against closed forms, tables, and a thousand simulated suites with a known truth."""

from __future__ import annotations

import math
import random
from statistics import fmean, quantiles, stdev
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amounts import in_check, times
from detent.core.errors import ConfigError
from detent.evals import statistics as stats


def test_all_of_k_and_one_of_k_are_the_closed_forms() -> None:
    assert [stats.pass_hat(4, 3, k) for k in (1, 2, 3, 4)] == [0.75, 0.5, 0.25, 0.0]
    assert [stats.pass_at(4, 1, k) for k in (1, 2, 3, 4)] == [0.25, 0.5, 0.75, 1.0]
    assert stats.pass_hat(2, 2, 3) is None and stats.pass_at(2, 0, 3) is None
    for wrong in ((3, 4, 1), (3, -1, 1), (3, 1, 0)):
        with pytest.raises(ConfigError):
            stats.pass_hat(*wrong)


@given(st.integers(1, 12), st.integers(1, 12), st.floats(0, 1))
def test_all_of_k_is_without_bias(n: int, k: int, p: float) -> None:
    """Its mean over all outcomes of n trials is p to the k."""
    if k > n:
        return
    expected = sum(math.comb(n, c) * p**c * (1 - p) ** (n - c) * (stats.pass_hat(n, c, k) or 0.0) for c in range(n + 1))
    assert expected == pytest.approx(p**k, abs=1e-9)


@pytest.mark.parametrize(
    ("freedom", "share", "wanted"),
    [(1, 0.975, 12.7062), (2, 0.975, 4.30265), (5, 0.95, 2.01505), (19, 0.975, 2.09302), (199, 0.975, 1.97196), (1_000, 0.995, 2.58076)],
)
def test_quantiles_of_student_are_those_of_the_tables(freedom: int, share: float, wanted: float) -> None:
    assert stats.student(share, freedom) == pytest.approx(wanted, rel=1e-5)


def test_the_score_interval_is_that_of_the_books() -> None:
    found = stats.wilson(8, 10)
    assert (found.value, round(found.low or 0, 4), round(found.high or 0, 4)) == (0.8, 0.4902, 0.9433)
    assert stats.wilson(0, 0).value is None and stats.wilson(0, 5).low == 0.0


@in_check
@pytest.mark.parametrize("cases", [20, 200])
def test_intervals_cover_the_truth_in_93_to_97_of_100_suites(cases: int) -> None:
    """Cases have success rates of their own, so trials of one case depend on each other."""
    drawing, covered = random.Random(7), 0
    for _ in range(1_000):
        rates = [drawing.betavariate(4, 2) for _ in range(cases)]
        found = stats.clustered_mean([[float(drawing.random() < rate) for _ in range(5)] for rate in rates])
        covered += (found.low or 0) <= 4 / 6 <= (found.high or 0)
    assert 930 <= covered <= 970


def test_without_a_difference_few_comparisons_say_that_there_is_one() -> None:
    drawing = random.Random(11)
    values = [stats.permutation([drawing.choice((-1.0, 0.0, 1.0)) for _ in range(20)], rounds=400, seed=n) for n in range(times(600))]
    for level in (0.01, 0.05, 0.2):
        share = fmean(float(value <= level) for value in values)
        assert share <= level + 2.6 * math.sqrt(level * (1 - level) / len(values))
    assert stats.permutation([]) == 1.0 and stats.permutation([1.0] * 10) == 2 / 2**10


def test_several_questions_are_corrected() -> None:
    assert stats.holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])


def test_the_bootstrap_draws_whole_clusters() -> None:
    same = [[1.0] * 50, [0.0] * 50]
    (found,) = stats.bootstrap(same, [0.5], seed=3)
    assert (found.value, found.low, found.high) == (0.5, 0.0, 1.0)
    assert stats.bootstrap([], [0.5, 0.9]) == [stats.UNKNOWN, stats.UNKNOWN]


@in_check
def test_intervals_of_percentiles_cover_the_truth() -> None:
    """Durations are exponential, so their median is the logarithm of 2."""
    drawing, covered = random.Random(4), 0
    for seed in range(120):
        clusters = [[drawing.expovariate(1.0)] for _ in range(60)]
        (found,) = stats.bootstrap(clusters, [0.5], rounds=200, seed=seed)
        covered += (found.low or 0) <= math.log(2) <= (found.high or 0)
    assert 106 <= covered <= 120


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=40), st.floats(0, 1))
def test_a_percentile_lies_among_the_values(values: list[float], share: float) -> None:
    assert min(values) - 1e-6 <= stats.percentile(values, share) <= max(values) + 1e-6


def test_more_data_is_asked_for_where_it_would_decide() -> None:
    drawing = random.Random(5)
    few = [0.1 + drawing.gauss(0, 0.4) for _ in range(10)]
    needed = stats.clusters_needed(few, 0.02)
    assert needed is not None and needed > 10
    assert stats.clusters_needed([0.1], 0.02) is None


@given(st.lists(st.floats(-1e3, 1e3), min_size=2, max_size=40))
def test_figures_equal_those_of_other_calculations(values: list[float]) -> None:
    """Percentiles are those of the standard library, and over clusters of one the interval is the ordinary one of Student."""
    for found, wanted in zip((0.25, 0.5, 0.75), quantiles(values, n=4, method="inclusive"), strict=True):
        assert stats.percentile(values, found) == pytest.approx(wanted, abs=1e-6)
    found = stats.clustered_mean([[value] for value in values])
    half = stats.student(0.975, len(values) - 1) * stdev(values) / math.sqrt(len(values))
    assert found.value == pytest.approx(fmean(values), abs=1e-9)
    assert (found.high or 0) - (found.value or 0) == pytest.approx(half, rel=1e-6, abs=1e-6)


def test_an_interval_over_equal_clusters_is_that_of_their_means() -> None:
    drawing = random.Random(2)
    clusters = [[drawing.gauss(n, 1) for _ in range(4)] for n in range(9)]
    one, other = stats.clustered_mean(clusters), stats.clustered_mean([[fmean(cluster)] for cluster in clusters])
    assert (one.low, one.high) == pytest.approx((other.low, other.high))


@pytest.mark.parametrize(
    ("freedom", "closed"), [(1, lambda p: math.tan(math.pi * (p - 0.5))), (2, lambda p: (2 * p - 1) * math.sqrt(2 / (4 * p * (1 - p))))]
)
def test_quantiles_of_student_are_the_closed_forms(freedom: int, closed: Any) -> None:
    for share in (0.6, 0.9, 0.975, 0.995, 0.9999):
        assert stats.student(share, freedom) == pytest.approx(closed(share), rel=1e-8)


def test_variances_within_and_between_cases_are_without_bias() -> None:
    """Their means over many draws are the true ones, 1 within and 4 between, though cases have different numbers of trials."""
    drawing = random.Random(9)
    found = [
        stats.variances(
            [[middle + drawing.gauss(0, 1) for _ in range(size)] for size in (1, 2, 3, 5, 8, 8) for middle in [drawing.gauss(0, 2)]]
        )
        for _ in range(1_500)
    ]
    assert fmean(within or 0 for within, _ in found) == pytest.approx(1.0, abs=0.03)
    assert fmean(between or 0 for _, between in found) == pytest.approx(4.0, abs=0.18)
    assert stats.variances([[1.0, 0.0], [1.0, 0.0]]) == (0.5, 0.0) and stats.variances([[1.0]]) == (None, None)


@pytest.mark.parametrize("size", range(1, 9))
def test_a_small_number_of_pairs_keeps_its_error_rate_exactly(size: int) -> None:
    """Of all 2^n signs of n differences, at most a share a has p <= a; so no rate is exceeded without a difference."""
    amounts = [1.0 + n / 3 for n in range(size)]
    values = [stats.permutation([a if mask >> n & 1 else -a for n, a in enumerate(amounts)]) for mask in range(1 << size)]
    for level in values:
        assert fmean(float(value <= level) for value in values) <= level + 1e-12


def test_as_many_more_cases_as_are_asked_for_decide_four_times_in_five() -> None:
    """The closed form against a simulation: with so many clusters the interval excludes 0 in about 80 of 100 evaluations."""
    needed = stats.clusters_needed([0.1 + 0.3 * side for side in (-1, 1)] * 50, 0.02)
    assert needed is not None and 70 <= needed <= 73
    drawing = random.Random(3)
    intervals = [stats.clustered_mean([[drawing.gauss(0.1, 0.3)] for _ in range(needed)]) for _ in range(400)]
    assert 0.74 <= fmean(float((one.low or 0) > 0) for one in intervals) <= 0.86
