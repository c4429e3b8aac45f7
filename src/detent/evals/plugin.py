"""A pytest plugin: a suite as a test. Name it in conftest.py: `pytest_plugins = ["detent.evals.plugin"]`.

def test_sums(detent_eval):
detent_eval("suite.toml", make_engine, require="pass_hat(3) >= 0.9")
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from detent.engine import Engine
    from detent.evals.reports import Evaluation


@pytest.fixture
def detent_eval() -> Callable[..., Evaluation]:
    """Run a suite and fail unless its figures are what is required, by default as the suite says, or that every trial passed.

    Takes the suite's file, a function that creates an engine, `require` as `detent eval --require`, and further options of `detent.evals.evaluate`
    (for a suite with faults `make_engine=`, a function that creates one on a store).
    Each call tries the suite anew; with `id=` it continues the evaluation of that name. Returns the evaluation. Raises `ConfigError`.
    """

    def run(suite: str | Path, make_engine: Callable[[], Engine], /, *, require: str = "", **options: Any) -> Evaluation:
        from detent.evals.evaluating import evaluate
        from detent.evals.reports import summarised
        from detent.evals.suites import load_suite
        from detent.evals.writing import check_required, required, why

        known = load_suite(suite)
        wanted = require or known.require or "passed == 1.0 && graded == trials"
        check_required(wanted)
        named: dict[str, Any] = {
            "id": f"{known.digest}-{secrets.token_hex(6)}",
            **options,
        }  # a test tries the agent as it is now, whatever the store has

        async def tried() -> Evaluation:
            async with make_engine() as engine:
                return summarised(known.name, named["id"], await evaluate(engine, known, **named))

        found = asyncio.run(tried())
        short = [name or "-" for name, figures in found.figures.items() if not required(wanted, figures)]
        if short:
            failed = "\n".join(f"  {t.case}, trial {t.number}: {why(t)} (run {t.run_id})" for t in found.trials if t.standing != "passed")
            pytest.fail(f"{known.name}: not reached by {', '.join(short)}: {wanted}\n{failed}", pytrace=False)
        return found

    return run
