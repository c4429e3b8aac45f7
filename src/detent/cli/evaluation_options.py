"""The actions of `detent eval`, and the options that each of them takes."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Literal

import typer

from detent.cli.option_sets import Options
from detent.core.errors import ConfigError

FIGURES = (
    "passed, pass_hat(K), pass_at(K), p50_s, p95_s, p99_s, cost_usd, total_cost_usd, turns, tokens, trials, graded, "
    "unknown, machinery, open, cancelled, not_run, repeated, lost, struck, more_turns, more_cost_usd, more_s, "
    "judges_cost_usd"
)


class Action(StrEnum):
    """What to do."""

    RUN = "run"
    RESUME = "resume"
    LIST = "list"
    TOP = "top"
    REQUEUE = "requeue"
    CANCEL = "cancel"
    REGRADE = "regrade"
    GRADE = "grade"
    COMPARE = "compare"
    REPORT = "report"
    FROM_RUNS = "from-runs"
    LABEL = "label"


TAKES: dict[Action, tuple[str, ...]] = {
    Action.RUN: ("agent", "trials", "limit", "sample", "tag", "only_failed", "faults", "fault_rate", "parallel", "require", "stop", "out"),
    Action.RESUME: ("agent", "suite", "parallel", "require", "out"),
    Action.LIST: (),
    Action.TOP: ("once",),
    Action.REQUEUE: ("of",),
    Action.CANCEL: ("of",),
    Action.REGRADE: ("of", "suite", "require", "out"),
    Action.GRADE: ("runs", "agent", "replay", "policy", "guard", "require", "out"),
    Action.LABEL: ("runs", "grader", "by", "out"),
    Action.COMPARE: ("margin", "cost_margin", "out"),
    Action.REPORT: ("require", "out"),
    Action.FROM_RUNS: ("runs", "out"),
}
"""The options of each action, beside those that every action has."""

_TRIED, _DONE, _LATER = "What is tried (run)", "How, and the result", "While it runs"


class Which(Options, frozen=True, kw_only=True):
    """The options of the actions. None: not given."""

    agent: Annotated[
        list[str] | None,
        typer.Option("--agent", metavar="FILE", help="An agent that variants name, or the only one. Repeatable.", rich_help_panel=_TRIED),
    ] = None
    trials: Annotated[
        int | None,
        typer.Option(
            "--trials", metavar="N", help="How often each case is tried. Default: as the suite says.", min=1, rich_help_panel=_TRIED
        ),
    ] = None
    tag: Annotated[
        list[str] | None, typer.Option("--tag", metavar="TAG", help="Only cases with this tag. Repeatable.", rich_help_panel=_TRIED)
    ] = None
    only_failed: Annotated[
        Path | None,
        typer.Option("--only-failed", metavar="RESULT", help="Only the cases that failed in this result.", rich_help_panel=_TRIED),
    ] = None
    limit: Annotated[
        int | None, typer.Option("--limit", metavar="N", help="Only the first N of these cases.", min=1, rich_help_panel=_TRIED)
    ] = None
    sample: Annotated[
        int | None,
        typer.Option("--sample", metavar="N", help="Only N of these cases, drawn by the suite's seed.", min=1, rich_help_panel=_TRIED),
    ] = None
    faults: Annotated[
        str | None,
        typer.Option(
            "--faults",
            metavar="NAMES",
            help="By commas: kill, tool_error, timeout, slow, rate_limit, malformed_plan, injection, stale_memory. Each is one more column.",
            rich_help_panel=_TRIED,
        ),
    ] = None
    fault_rate: Annotated[
        float | None,
        typer.Option(
            "--fault-rate",
            metavar="RATE",
            help="How likely a fault strikes at a place. Default: as the suite says, else 0.2.",
            min=0.0,
            max=1.0,
            rich_help_panel=_TRIED,
        ),
    ] = None
    stop: Annotated[
        Literal["decided"] | None,
        typer.Option(
            "--stop", metavar="decided", help="Begin no trial that cannot change whether --require is true.", rich_help_panel=_TRIED
        ),
    ] = None
    parallel: Annotated[
        int | None,
        typer.Option(
            "--parallel", metavar="N", help="How many trials this process works on at once. Default: 8.", min=1, rich_help_panel=_DONE
        ),
    ] = None
    require: Annotated[
        str | None,
        typer.Option(
            "--require",
            metavar="EXPR",
            help=f"Exit with 1 unless it is true of every variant. It may use {FIGURES}.",
            rich_help_panel=_DONE,
        ),
    ] = None
    out: Annotated[
        list[Path] | None,
        typer.Option(
            "--out",
            metavar="FILE",
            help="Write the result: .json, .md, .xml (JUnit) or .html. Repeatable. Default: evals/ID.json. label: the labels.",
            rich_help_panel=_DONE,
        ),
    ] = None
    runs: Annotated[
        str | None,
        typer.Option(
            "--runs",
            metavar="FILTER",
            help="grade, label, from-runs: prefixes of ids, or status=, agent=, since=; by commas.",
            rich_help_panel=_DONE,
        ),
    ] = None
    replay: Annotated[
        bool | None,
        typer.Option("--replay", help="grade: decide every recorded call again, and grade what would be the same.", rich_help_panel=_DONE),
    ] = None
    policy: Annotated[
        Path | None,
        typer.Option(
            "--policy", metavar="FILE", help="With --replay: the policy to try. Default: that of detent.toml.", rich_help_panel=_DONE
        ),
    ] = None
    guard: Annotated[
        list[str] | None, typer.Option("--guard", metavar="NAME", help="With --replay: a further guard. Repeatable.", rich_help_panel=_DONE)
    ] = None
    grader: Annotated[
        str | None,
        typer.Option(
            "--grader",
            metavar="NAME",
            help="label: the grader to label for. Default: the only one of people or judges.",
            rich_help_panel=_DONE,
        ),
    ] = None
    by: Annotated[
        str | None, typer.Option("--by", metavar="NAME", help="label: your name. Default: the login name.", rich_help_panel=_DONE)
    ] = None
    margin: Annotated[
        float | None,
        typer.Option(
            "--margin",
            metavar="SHARE",
            help="compare: a difference of quality up to this counts as none. Default: 0.02.",
            rich_help_panel=_DONE,
        ),
    ] = None
    cost_margin: Annotated[
        float | None,
        typer.Option(
            "--cost-margin",
            metavar="SHARE",
            help="compare: the same for cost, time and turns, as a share of the first. Default: 0.1.",
            rich_help_panel=_DONE,
        ),
    ] = None
    of: Annotated[
        str | None,
        typer.Option(
            "--of", metavar="ID", help="Whose trial it is, if it is not named by its run. Default: the latest evaluation.",
            rich_help_panel=_LATER,
        ),
    ] = None  # fmt: skip
    suite: Annotated[
        Path | None,
        typer.Option(
            "--suite",
            metavar="FILE",
            help="regrade: the suite with the graders; default: those that it has. resume: the suite, where the store's executes commands.",
            rich_help_panel=_LATER,
        ),
    ] = None
    once: Annotated[bool | None, typer.Option("--once", help="top: print what there is now, and exit.", rich_help_panel=_LATER)] = None

    def only(self, action: Action) -> None:
        """Raise `ConfigError` for an option that the action does not take."""
        for field in self.__struct_fields__:
            if getattr(self, field) is not None and field not in TAKES[action]:
                where = ", ".join(one for one, fields in TAKES.items() if field in fields)
                raise ConfigError(f"detent eval {action.value} takes no --{field.replace('_', '-')}; that is an option of {where}")
