"""Evaluation: how often an agent succeeds, what it costs, and whether today's version is better than yesterday's, on runs that survive.

Rule: every trial is an ordinary run in an ordinary store, and a grade follows from its log. A failure of the machinery is not a failure of the agent.
Start with `suites`, which says what is tried; `trials` runs it, `graders` judge, `statistics` says what may be believed.
"""

from detent.evals.comparing import Comparison, compare
from detent.evals.graders import GRADERS, Grade, Grader
from detent.evals.judging import agreement, judge
from detent.evals.reports import Evaluation, summarised
from detent.evals.suites import Case, Suite, Variant, load_suite
from detent.evals.trials import evaluate, grade_runs

__all__ = [
    "GRADERS",
    "Case",
    "Comparison",
    "Evaluation",
    "Grade",
    "Grader",
    "Suite",
    "Variant",
    "agreement",
    "compare",
    "evaluate",
    "grade_runs",
    "judge",
    "load_suite",
    "summarised",
]
