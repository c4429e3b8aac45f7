"""A verdict that is decided is the verdict of the whole evaluation, whatever the trials that are left come to."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from amounts import in_check, thinned
from detent import Agent, Engine, FinalAnswer
from detent.core.errors import ConfigError
from detent.evals import Case, Suite, Variant, evaluate, summarised, writing
from detent.evals.deciding import decided
from detent.evals.reports import figures_of
from detent.evals.trials import Trial
from detent.evals.writing import required
from detent.testing import ScriptedPlanner

ENDS: tuple[tuple[Any, float], ...] = (
    ("passed", 0.0),
    ("passed", 50.0),
    ("failed", 0.0),
    ("failed", 50.0),
    ("unknown", 1.0),
    ("machinery", 0.0),
)
"""How a trial that is left may end: its standing, and what it costs, takes and needs."""


def trial(case: int, number: int, standing: Any, amount: float = 1.0) -> Trial:
    """Return a trial."""
    return Trial(
        case=str(case), cluster=str(case), variant="", number=number, run_id="r", standing=standing, latency_s=amount, cost_usd=amount, turns=int(amount)
    )  # fmt: skip


def completions(trials: Sequence[Trial]) -> Iterator[list[Trial]]:
    """Yield every way in which the trials that are left can end."""
    left = [n for n, one in enumerate(trials) if one.standing == "not_run"]
    for ends in product(ENDS, repeat=len(left)):
        whole = list(trials)
        for n, (standing, amount) in zip(left, ends, strict=True):
            whole[n] = msgspec.structs.replace(whole[n], standing=standing, latency_s=amount, cost_usd=amount, turns=int(amount))
        yield whole


def verdict(source: str, trials: Sequence[Trial]) -> bool:
    """Return the verdict of an evaluation."""
    return required(source, figures_of("", trials))


COMPARED = st.one_of(
    st.tuples(
        st.sampled_from(["pass_hat(1)", "pass_hat(2)", "pass_at(2)", "passed"]), st.sampled_from(["0.0", "0.4", "0.5", "0.9", "1.0"])
    ),
    st.tuples(st.sampled_from(["p50_s", "p95_s", "cost_usd", "total_cost_usd", "turns"]), st.sampled_from(["0.5", "1.0", "2.0", "30.0"])),
    st.tuples(st.sampled_from(["graded", "unknown", "machinery", "trials"]), st.sampled_from(["0", "1", "3", "6"])),
).flatmap(lambda pair: st.sampled_from([f"{pair[0]} {op} {pair[1]}" for op in (">=", "<=", ">", "<", "==", "!=")]))
CONDITIONS = st.recursive(
    COMPARED,
    lambda inner: st.one_of(
        inner.map(lambda one: f"!({one})"),
        st.tuples(inner, st.sampled_from(["&&", "||"]), inner).map(lambda t: f"({t[0]}) {t[1]} ({t[2]})"),
    ),
    max_leaves=3,
)


@in_check
@given(
    st.lists(st.sampled_from(["passed", "failed", "unknown"]), min_size=6, max_size=6),
    st.integers(min_value=3, max_value=6),
    CONDITIONS,
)  # fmt: skip
def test_a_decided_verdict_is_that_of_every_completion(standings: list[Any], known: int, source: str) -> None:
    trials = [trial(n % 2, n // 2 + 1, one if n < known else "not_run") for n, one in enumerate(standings)]
    if decided(source, trials):
        now = verdict(source, trials)
        assert all(verdict(source, whole) is now for whole in completions(trials)), source


@thinned
@pytest.mark.parametrize(
    ("source", "ends", "expected"),
    [
        ("passed == 1.0 && graded == trials", "ppf...", True),
        ("passed == 1.0 && graded == trials", "ppppp.", False),
        ("pass_hat(3) >= 0.5", "ppfppf", True),
        ("pass_hat(3) >= 0.9", "ff....", True),
        ("pass_hat(2) >= 0.5 || p95_s > 1000", "ff....", False),
        ("pass_at(2) >= 0.5", "pp.p..", False),
        ("pass_at(1) > 0.1", "pppp..", True),
        ("pass_hat(7) >= 0.0", "pppp..", True),
        ("total_cost_usd < 2.0", "pppp..", True),
        ("total_cost_usd < 9.0", "pppp..", False),
        ("p50_s < 0.5", "ppppp.", True),
        ("1.0 - passed < 0.9", "pppp..", True),
        ("passed >= 0.5 ? true : false", "ffffff", True),
        ("passed >= 0.5 ? true : false", "fffff.", False),
        ("!passed > 0", "pppp..", False),
    ],
)  # fmt: skip
def test_what_is_decided_when(source: str, ends: str, expected: bool) -> None:
    names = {"p": "passed", "f": "failed", ".": "not_run"}
    trials = [trial(n % 2, n // 2 + 1, names[end]) for n, end in enumerate(ends)]
    assert decided(source, trials) is expected
    assert not expected or len({verdict(source, whole) for whole in completions(trials)}) == 1


class Wrong:
    """Answers wrong where the goal says so."""

    async def plan(self, view: Any) -> Any:
        """Return the answer."""
        return await ScriptedPlanner([FinalAnswer(content="no" if "wrong" in view.goal else "yes")]).plan(view)


def test_no_trial_is_begun_that_cannot_change_the_verdict() -> None:
    cases = tuple(Case(id=str(n), goal="be wrong" if n == 2 else "be right", expected="yes") for n in range(10))
    suite = Suite(name="s", cases=cases, graders=({"kind": "exact"},), trials=3, require="pass_hat(3) >= 0.95", stop="decided")

    async def run() -> None:
        async with Engine(store="ram:", agents=[Agent(name="a", tools=())], planner=Wrong()) as engine:
            trials = await evaluate(engine, suite, concurrency=1)
            assert [one.standing for one in trials[:4]] == ["passed", "passed", "failed", "not_run"] and len(trials) == 30
            assert len(await engine.list_runs()) == 3
            told = summarised("s", "e", trials)
            assert writing.junit(told).count(b'<skipped message="not run"') == 27 and b'errors="0" skipped="27"' in writing.junit(told)
            assert writing.rows(told)[1][-1] == "27 not run" and "27 not run" in writing.html(told)
            whole = await evaluate(engine, msgspec.structs.replace(suite, stop=""), id="whole")
            assert verdict(suite.require, trials) is verdict(suite.require, whole) is False
            low = msgspec.structs.replace(
                suite, require="pass_hat(1) >= 0.6 && total_cost_usd >= 0.0", variants={"a": Variant(), "b": Variant()}
            )
            enough = await evaluate(engine, low, id="low", concurrency=1)
            begun = sum(one.standing != "not_run" for one in enough)
            assert 20 <= begun < 60 and required(low.require, figures_of("a", [one for one in enough if one.variant == "a"]))

    asyncio.run(run())


def test_stopping_needs_something_to_decide() -> None:
    with pytest.raises(ConfigError, match="needs what is to be decided"):
        Suite(name="s", stop="decided")


@given(st.integers(min_value=1, max_value=12), st.integers(min_value=0, max_value=1_000), st.randoms())
def test_a_sample_is_drawn_by_the_seed_and_the_ids_alone(many: int, seed: int, drawing: Any) -> None:
    cases = [Case(id=str(n), goal="x", tags=("even",) if n % 2 == 0 else ()) for n in range(12)]
    suite = Suite(name="s", cases=tuple(cases), seed=seed)
    drawn = [case.id for case in suite.only(sample=many).cases]
    assert len(drawn) == many and drawn == sorted(drawn, key=int)
    drawing.shuffle(cases)
    assert {case.id for case in Suite(name="s", cases=tuple(cases), seed=seed).only(sample=many).cases} == set(drawn)
    composed = suite.only(tags=["even"], limit=4, sample=many)
    assert len(composed.cases) == min(4, many) and {case.id for case in composed.cases} <= {"0", "2", "4", "6"}
