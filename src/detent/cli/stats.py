"""`detent stats`: the outcomes, durations and cost of runs, by agent and by day.

Rule: read the listing once, and no log. The listing has the status of each run, the times of its first and last record, and its cost.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import median
from typing import Annotated, Any

import typer

from detent.cli import options as o
from detent.cli.invocation import Invocation
from detent.cli.output import clean, lasted
from detent.core.records import RunHead
from detent.core.state import TERMINAL
from detent.engine import Engine
from detent.history.selecting import since_of
from detent.history.trees import is_child
from detent.ports import RunQuery

DAYS = "30d"


class Figures:
    """The figures of several runs."""

    def __init__(self) -> None:
        self.runs, self.turns, self.cost = 0, 0, 0.0
        self.counts: dict[str, int] = {"completed": 0, "failed": 0, "stopped": 0, "open": 0}
        self._seconds: list[float] = []

    def add(self, head: RunHead) -> None:
        """Count a run. A run that has not ended is open and has no duration yet."""
        self.runs += 1
        self.turns += head.iterations
        self.cost += head.cost_usd
        self.counts[head.status if head.status in TERMINAL else "open"] += 1
        if head.status in TERMINAL:
            self._seconds.append((head.updated_at - head.created_at).total_seconds())

    def told(self) -> dict[str, Any]:
        """Return the figures. `success` is the share of completed runs among ended ones, None if none has ended."""
        seconds = sorted(self._seconds)
        return {
            "runs": self.runs,
            **self.counts,
            "success": self.counts["completed"] / len(seconds) if seconds else None,
            "median_s": median(seconds) if seconds else None,
            "p95_s": seconds[min(int(len(seconds) * 0.95), len(seconds) - 1)] if seconds else None,
            "turns": self.turns,
            "cost_usd": self.cost,
        }


def stats(
    *,
    since: Annotated[
        str, typer.Option("--since", metavar="WHEN", help="Only runs started since: 12h, 7d, a date, or `all`. Default: 30d.")
    ] = DAYS,
    agent: Annotated[
        str | None, typer.Option("--agent", metavar="NAME", help="Only runs of this agent.", autocompletion=o.complete_agent)
    ] = None,
    tenant: Annotated[str | None, typer.Option("--tenant", metavar="NAME", help="Only runs of this tenant.")] = None,
    setup: o.Looking,
) -> int:
    """Show how many runs completed, how long they took and what they cost, by agent and by day (UTC).

    SUCCESS is the share of completed runs among all ended runs. Durations run from the first to the last record and include waits. Cost
    includes only models with a known price. A run counts with the runs that it started; --agent NAME counts those too.
    """
    invocation = Invocation(setup, bare=True)
    query = RunQuery(agent=agent, tenant=tenant, since=None if since == "all" else since_of(since))

    async def work(_: Engine) -> list[RunHead]:
        heads = await invocation.heads(query)
        return heads if agent else [head for head in heads if not is_child(head)]  # the figures of a run include those of its children

    heads = invocation.drive(work, missing=[])
    whole, agents, days = tallied(heads)
    invocation.output.document({"since": query.since, "all": whole, "by_agent": agents, "by_day": days})
    if not heads:
        invocation.output.say("no runs fit" if invocation.there else f"no runs yet: {invocation.engine.store.url} does not exist")
        return 0
    table = invocation.output.table
    spare = ("TURNS", "P95", "OPEN", "STOPPED")
    table(("AGENT", *_HEAD), _rows([*agents.items(), *([("all", whole)] if len(agents) > 1 else [])]), spare=spare)
    invocation.output.show()
    table(("DAY", *_HEAD), _rows(days.items()), spare=spare)
    return 0


def tallied(heads: Sequence[RunHead]) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """Return the figures of all runs, of each agent by name, and of each day, newest first."""
    whole = Figures()
    agents: dict[str, Figures] = {}
    days: dict[str, Figures] = {}
    for head in heads:
        day = head.created_at.date().isoformat()
        for figures in (whole, agents.setdefault(head.agent, Figures()), days.setdefault(day, Figures())):
            figures.add(head)
    return (
        whole.told(),
        {name: agents[name].told() for name in sorted(agents)},
        {day: days[day].told() for day in sorted(days, reverse=True)},
    )


_HEAD = ("RUNS", "COMPLETED", "FAILED", "STOPPED", "OPEN", "SUCCESS", "MEDIAN", "P95", "TURNS", "COST (USD)")


def _rows(figures: Iterable[tuple[str, dict[str, Any]]]) -> list[tuple[str, ...]]:
    return [
        (
            clean(name),
            *(str(told[key]) for key in ("runs", "completed", "failed", "stopped", "open")),
            "-" if told["success"] is None else f"{told['success']:.0%}",
            lasted(told["median_s"]),
            lasted(told["p95_s"]),
            str(told["turns"]),
            f"{told['cost_usd']:.4f}" if told["cost_usd"] else "-",
        )
        for name, told in figures
    ]
