"""Comparisons: in one word, over the chosen clusters, with margins, and never more errors than promised."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import msgspec
import pytest

from amounts import in_check, times
from cli.desk import Desk
from detent.core.errors import ConfigError
from detent.evals import Case, Evaluation, Suite, compare, load_suite, summarised, writing
from detent.evals.trials import Trial


def trial(case: int, number: int, *, passed: bool, cost: float = 1.0, variant: str = "", cluster: str = "") -> Trial:
    """Return a trial."""
    standing: Any = "passed" if passed else "failed"
    return Trial(
        case=str(case), cluster=cluster or str(case), variant=variant, number=number, run_id=f"r{case}-{number}{variant}", standing=standing,
        latency_s=1.0, turns=3, cost_usd=cost,
    )  # fmt: skip


def drawn(seed: int, rate: float, *, cases: int = 40, trials: int = 3, cost: float = 1.0) -> list[Trial]:
    """Return trials with a success rate, and costs that vary a little."""
    drawing = random.Random(seed)
    return [
        trial(case, number, passed=drawing.random() < rate, cost=cost * (1 + drawing.uniform(-0.05, 0.05)))
        for case in range(cases)
        for number in range(1, trials + 1)
    ]


def test_so_many_more_trials_are_enough_for_the_exchange_of_signs() -> None:
    """Five clear differences are in one of 16 exchanges, and four metrics are compared: eight are needed."""
    a = [trial(case, 1, passed=False) for case in range(5)]
    b = [trial(case, 1, passed=case < 4) for case in range(5)]
    more = compare(a, b).metrics[0].more_clusters
    assert more is not None and 5 + more >= 8
    both = [[trial(case, 1, passed=passed) for case in range(8)] for passed in (False, True)]
    assert compare(*both).word == "better" and compare(both[0][:7], both[1][:7]).word == "not enough data"


def test_better_worse_and_the_cases_that_changed() -> None:
    a, b = drawn(1, 0.3), drawn(2, 0.9)
    found = compare(a, b)
    assert (found.word, compare(b, a).word) == ("better", "worse") and len(found.gained) > 20 and set(found.gained).isdisjoint(found.lost)
    assert found.metrics[0].difference.value == pytest.approx(
        sum(t.standing == "passed" for t in b) / len(b) - sum(t.standing == "passed" for t in a) / len(a)
    )
    assert found.metrics[0].p <= 4 * 1 / 10_001 + 1e-9, "Holm: four times the smallest p-value that 10,000 exchanges give"


@in_check
def test_where_quality_is_not_lower_the_cost_decides() -> None:
    """All trials pass in both; b costs half. Within the margin of cost it decides nothing."""
    a = [trial(case, 1, passed=True, cost=1.0) for case in range(200)]
    cheap, dear, near = ([trial(case, 1, passed=True, cost=cost) for case in range(200)] for cost in (0.5, 1.5, 1.05))
    assert compare(a, cheap).told == "b is better: it costs less, and its quality is at most 2.0% lower"
    assert compare(a, dear).told == "b is worse: it costs more, and its quality is at most 2.0% higher"
    assert compare(a, near).word == "tied" and compare(a, near).metrics[1].word == "worse", "significant, but within the margin"
    assert (
        compare(a, near, cost_margin=0.01).word == "worse"
        and compare(near, a).word == "tied"
        and compare(near, a, cost_margin=0.01).word == "better"
    )


@in_check
def test_cases_that_all_come_out_alike_do_not_show_that_nothing_differs() -> None:
    """A always passes, b in 93 of 100: of 20 cases a quarter of all results shows no failure. At most 2.5 of 100 may say that b is not worse by 0.02."""
    a = [trial(case, 1, passed=True, cost=1.0) for case in range(20)]
    drawing = random.Random(1)
    tried = [compare(a, [trial(case, 1, passed=drawing.random() < 0.93, cost=0.5) for case in range(20)]) for _ in range(times(200))]
    assert sum(one.metrics[0].not_worse for one in tried) <= len(tried) * 0.025
    same = compare(a, a)
    assert (same.word, same.metrics[0].more_clusters) == ("not enough data", 189 - 20)
    enough = [trial(case, 1, passed=True) for case in range(189)]
    assert compare(enough, enough).word == "tied" and compare(enough[1:], enough[1:]).word == "not enough data"


def test_a_cheaper_version_that_may_be_worse_is_not_better() -> None:
    """With a margin that the interval does not leave it is."""
    a, b = drawn(3, 0.8, cases=60), drawn(4, 0.8, cases=60, cost=0.5)
    strict, wide = compare(a, b), compare(a, b, margin=0.2)
    assert strict.word == "not enough data" and not strict.metrics[0].not_worse and strict.metrics[1].word == "better"
    assert wide.word == "better" and wide.metrics[0].not_worse
    assert strict.metrics[0].more_clusters and strict.metrics[0].more_trials == 3 * strict.metrics[0].more_clusters
    assert f"about {strict.metrics[0].more_trials} more trials" in strict.told


def test_the_p_values_are_corrected_for_the_number_of_metrics() -> None:
    """Quality differs in all of six cases: 2 of 64 exchanges are as extreme, four times that is no longer below 0.05."""
    found = compare([trial(n, 1, passed=False) for n in range(6)], [trial(n, 1, passed=True) for n in range(6)])
    assert found.metrics[0].p == pytest.approx(4 * 2 / 64) and found.word == "not enough data"
    assert [one.p for one in found.metrics[1:]] == [1.0, 1.0, 1.0]


def test_without_a_difference_the_word_is_rarely_wrong() -> None:
    """Of 200 comparisons of equal versions at most 5 in 100, and what chance adds to that, find one: all four metrics together."""
    words = [compare(drawn(2 * n, 0.7, cases=8, trials=2), drawn(2 * n + 1, 0.7, cases=8, trials=2)) for n in range(200)]
    wrong = sum(any(one.word in ("better", "worse") for one in found.metrics) for found in words)
    assert wrong <= 10 + 2 * (200 * 0.05 * 0.95) ** 0.5


def test_pairs_are_made_by_case_and_counted_by_cluster() -> None:
    """Ten cases of one customer are one cluster: what is certain for cases is not for customers."""
    a = [trial(case, 1, passed=False, cluster=f"customer {case // 10}") for case in range(40)]
    b = [trial(case, 1, passed=True, cluster=f"customer {case // 10}") for case in range(40)]
    found = compare(a, b)
    assert found.clusters == 4 and found.word == "not enough data" and len(found.gained) == 40
    assert compare([trial(c, 1, passed=False) for c in range(40)], [trial(c, 1, passed=True) for c in range(40)]).word == "better"
    missing = compare(a, b[:5] + b[20:])
    assert missing.clusters == 3 + 0 and len(missing.gained) == 25, "a case that only one of them has is not counted"


def test_a_case_that_only_one_of_them_has_graded_is_named() -> None:
    """Half of b is unknown, which does not make it as good without a word. A case that b never had is not missed."""
    a = [trial(case, 1, passed=case < 10) for case in range(20)]
    b = [one if index < 15 else msgspec.structs.replace(one, standing="unknown") for index, one in enumerate(a[:18])]
    assert compare(a, b).left_out == ("15", "16", "17") and compare(b, a).left_out == ("15", "16", "17")
    assert compare(a, a).left_out == ()
    told = (compare(a, b), summarised("s", "a", a))
    for text in (writing.html(summarised("s", "b", b), {}, told), writing.markdown(summarised("s", "b", b), told)):
        assert "because one has no graded trial: 15, 16, 17" in text


def test_variants_are_compared_by_name_or_one_by_one() -> None:
    both = [trial(n, 1, passed=v == "new", variant=v) for n in range(20) for v in ("old", "new")]
    assert compare(both, both, margin=0.2).word == "tied" and compare(both, both).word == "not enough data"
    old, new = ([one for one in both if one.variant == name] for name in ("old", "new"))
    assert compare(old, new).word == "better"
    with pytest.raises(ConfigError, match="FILE#VARIANT"):
        compare(both, new)
    with pytest.raises(ConfigError, match="margin"):
        compare(both, both, margin=-1)
    assert compare([], []).word == "not enough data"


def test_the_suite_chooses_the_cluster() -> None:
    tags = [("b", "a"), ("a", "b"), ("a", "b"), ("a", "b")]
    cases = tuple(
        Case(id=str(n), goal="x", variables={"customer": n // 2}, tags=tags[n], cluster="own" if n == 3 else "") for n in range(4)
    )
    by = {key: [case.cluster for case in Suite(name="s", cases=cases, cluster=key).cases] for key in ("variables.customer", "tags", "")}
    assert by["variables.customer"] == ["variables.customer 0", "variables.customer 0", "variables.customer 1", "own"]
    assert len(set(by["tags"])) == 2 and by[""] == ["", "", "", "own"]
    for key, said in (("variables.none", "no variable 'none'"), ("customer", "variables.NAME"), ("variables.", "variables.NAME")):
        with pytest.raises(ConfigError, match=said):
            Suite(name="s", cases=cases, cluster=key)


def test_the_command_compares_variants_with_margins_and_writes_the_difference(tmp_path: Path) -> None:
    pytest.importorskip("jinja2")
    desk = Desk(tmp_path)
    trials = [trial(n, 1, passed=True, cost=1.0 if v == "old" else 1.05, variant=v) for n in range(20) for v in ("old", "new")]
    summarised("s", "one", trials).write(tmp_path / "a.json")
    both = ("eval", "compare", "a.json#old", "a.json#new", "--margin", "0.2")
    assert desk.detent(*both).out.startswith("tied")
    worse = desk.detent(*both, "--cost-margin", "0.01", "--out", "d.html", "--out", "d.md", "--out", "d.json")
    assert worse.code == 1 and worse.out.startswith("b is worse: it costs more"), worse
    assert "b is worse" in (tmp_path / "d.html").read_text() and "B is worse" in (tmp_path / "d.md").read_text()
    assert '"word": "worse"' in (tmp_path / "d.json").read_text()
    assert "has no variant 'x'" in desk.detent("eval", "compare", "a.json#x", "a.json").err
    assert "margin is from 0" in desk.detent(*both[:-1], "2").err
    assert Evaluation.read(tmp_path / "a.json").figures["old"].graded == 20
    desk.write(
        "suite.toml",
        'name = "s"\ncluster = "variables.c"\n[[graders]]\nkind = "exact"\n[[cases]]\nid = "a"\ngoal = "x"\nvariables = {c = 1}\n',
    )
    assert load_suite(tmp_path / "suite.toml").cases[0].cluster == "variables.c 1"
