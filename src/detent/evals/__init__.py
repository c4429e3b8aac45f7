"""Evaluation: how often an agent succeeds, what it costs, and whether today's version is better than yesterday's, on runs that survive.

Rule: every trial is an ordinary run in an ordinary store, and a grade follows from its log. A failure of the machinery is not a failure of the agent.
Start with `suites`, which says what is tried; `evaluating` runs it, in any number of processes (`sharing`), `graders` judge, `statistics` says what may be
believed.
"""

from detent.evals.comparing import Comparison, compare
from detent.evals.controlling import cancel, evaluation, evaluations, regrade, requeue, results, standings
from detent.evals.evaluating import evaluate
from detent.evals.graders import GRADERS
from detent.evals.grades import Grade, Graded, Grader
from detent.evals.judging import agreement, judge
from detent.evals.labels import Label, add_label, read_labels
from detent.evals.reports import Evaluation, summarised
from detent.evals.suites import Case, Suite, User, Variant, cases_of, load_suite
from detent.evals.trials import grade_runs
from detent.evals.worlds import state_of

__all__ = [
    "GRADERS",
    "Case",
    "Comparison",
    "Evaluation",
    "Grade",
    "Graded",
    "Grader",
    "Label",
    "Suite",
    "User",
    "Variant",
    "add_label",
    "agreement",
    "cancel",
    "cases_of",
    "compare",
    "evaluate",
    "evaluation",
    "evaluations",
    "grade_runs",
    "judge",
    "load_suite",
    "read_labels",
    "regrade",
    "requeue",
    "results",
    "standings",
    "state_of",
    "summarised",
]
