"""The statistics of evaluations, against closed forms, tables, and a thousand simulated suites with a known truth."""

from __future__ import annotations

import math
import random
from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st

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
    values = [stats.permutation([drawing.choice((-1.0, 0.0, 1.0)) for _ in range(20)], rounds=400, seed=n) for n in range(600)]
    for level in (0.01, 0.05, 0.2):
        share = fmean(float(value <= level) for value in values)
        assert share <= level + 2.6 * math.sqrt(level * (1 - level) / 600)
    assert stats.permutation([]) == 1.0 and stats.permutation([1.0] * 10) == 2 / 2**10


def test_several_questions_are_corrected() -> None:
    assert stats.holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])


def test_the_bootstrap_draws_whole_clusters() -> None:
    same = [[1.0] * 50, [0.0] * 50]
    found = stats.bootstrap(same, fmean, seed=3)
    assert (found.value, found.low, found.high) == (0.5, 0.0, 1.0)
    assert stats.bootstrap([], fmean).value is None


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=40), st.floats(0, 1))
def test_a_percentile_lies_among_the_values(values: list[float], share: float) -> None:
    assert min(values) - 1e-6 <= stats.percentile(values, share) <= max(values) + 1e-6


def test_more_data_is_asked_for_where_it_would_decide() -> None:
    drawing = random.Random(5)
    few = [0.1 + drawing.gauss(0, 0.4) for _ in range(10)]
    needed = stats.clusters_needed(few, 0.02)
    assert needed is not None and needed > 10
    assert stats.clusters_needed([0.1], 0.02) is None
