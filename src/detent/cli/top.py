"""`detent top`: the workers, the runs that they advance, and the queue, in place on a terminal.

Rule: looking costs the store little. It answers at most every `--every` seconds, and at most a twentieth of the time.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Annotated, Any, TypeVar

import typer

from detent.cli import options as o
from detent.cli.invocation import Invocation
from detent.cli.output import clean, coloured, lasted, style_of
from detent.cli.values import duration
from detent.core.errors import DetentError
from detent.engine import Engine
from detent.expressions.display import shortened
from detent.running.cards import WorkerCard
from detent.running.fleet import Fleet

EVERY = "2"
SHARE = 20.0
"""A question that took long is asked again only after so many times as long."""
RUNS = 12
"""How many runs are shown."""
GIVEN_UP = "waiting_for_operator"

T = TypeVar("T")
Line = tuple[str, str]
"""A line of the screen and its style."""


def top(
    *,
    every: Annotated[str, typer.Option("--every", metavar="DURATION", help="Look again after this time: 2, 500ms. Default: 2.")] = EVERY,
    once: Annotated[bool, typer.Option("--once", help="Print what there is now, and exit.")] = False,
    setup: o.Looking,
) -> int:
    """Watch workers, the runs that they advance, and what waits for them. Ctrl-C ends it.

    QUEUE counts runs that could move now and that no worker has. Rates count what workers did in the last minute. A worker that has said nothing for
    20 seconds is shown as silent: it was killed, hangs, or cannot reach the store.

    Without a terminal, and with --json, it prints once.
    """
    every_s = duration(every, "--every")
    invocation = Invocation(setup, bare=True)
    live = not (once or invocation.output.json) and sys.stdout.isatty()

    async def work(engine: Engine) -> Fleet:
        return await (watched(lambda: engine.fleet(runs=RUNS), screen, max(every_s, 0.1)) if live else engine.fleet(runs=RUNS))

    found = invocation.drive(work, missing=None)
    if found is None:
        invocation.output.document(None)
        invocation.output.say(f"no runs yet: {invocation.engine.store.url} does not exist")
        return 0
    invocation.output.document(found)
    for text, style in () if live else screen(found):
        invocation.output.show(text, style)
    return 0


async def watched(look: Callable[[], Awaitable[T]], draw: Callable[[T], Sequence[Line]], every_s: float) -> T:
    """Show what `look` finds in place until Ctrl-C; return what was shown last."""
    from rich.console import Console
    from rich.live import Live

    begun = time.monotonic()
    found, problem = await look(), ""
    took_s = time.monotonic() - begun
    console = Console(highlight=False, markup=False, no_color=not coloured(sys.stdout))
    with Live(Screen(draw(found), problem), console=console, screen=True, auto_refresh=False) as live:
        while True:
            live.update(Screen(draw(found), problem), refresh=True)
            begun = time.monotonic()
            try:
                await asyncio.sleep(max(every_s, SHARE * took_s))
                begun = time.monotonic()
                found, problem = await look(), ""
                took_s = time.monotonic() - begun
            except asyncio.CancelledError:  # Ctrl-C is how it ends
                return found
            except DetentError as error:
                problem = f"no answer for {lasted(time.monotonic() - begun)}: {error}"


class Screen:
    """One picture, cut to the size of the terminal."""

    def __init__(self, lines: Sequence[Line], problem: str = "") -> None:
        self._lines, self._problem = lines, problem

    def __rich_console__(self, console: Any, options: Any) -> Iterator[Any]:
        from rich.text import Text

        width, height = options.max_width, options.height or console.height
        lines = [*([(self._problem, "red")] if self._problem else []), *self._lines]
        if len(lines) > height:
            lines = [*lines[: height - 1], (f"... {len(lines) - height + 1} more lines", "dim")]
        for text, style in lines:
            shown = Text(clean(text), style=style, no_wrap=True)
            shown.truncate(width, overflow="ellipsis")
            yield shown


def screen(found: Fleet) -> list[Line]:
    """Return the lines of a picture."""
    tally, rate = found.tally, found.per_minute
    given_up, capacity = tally.statuses.get(GIVEN_UP, 0), sum(max(0, worker.concurrency) for worker in found.living if not worker.stopping)
    waits = "" if tally.queued_s is None else f", the first for {lasted(tally.queued_s)}"
    counts = {
        "ended": sum(rate(status) for status in ENDS),
        "attempts": rate("attempts"),
        "failed": rate("failed_attempts"),
        "taken over": rate("takeovers"),
        "calls in doubt": rate("in_doubt"),
    }
    troubled = counts["failed"] or counts["calls in doubt"]
    lines = [
        (f"{found.store} at {found.at:%H:%M:%S} UTC, counted in {found.took_ms:.0f} ms", "dim"),
        ("", ""),
        (
            f"QUEUE         {_runs(tally.queued)} {'waits' if tally.queued == 1 else 'wait'} for a worker{waits}",
            "bold" * bool(tally.queued),
        ),
        (f"ACTIVE        {tally.active} of {capacity}", ""),
        (f"PER MINUTE    {', '.join(f'{count} {what}' for what, count in counts.items())}", "yellow" if troubled else ""),
        (f"DEAD LETTERS  {given_up}", "red" if given_up else ""),
        ("", ""),
    ]
    rows = [(status, str(count), _age(found, status)) for status, count in sorted(tally.statuses.items())]
    styles = [style_of(status) if status in STATUSES else "" for status in sorted(tally.statuses)]
    lines += [*table_lines(("OPEN RUNS", "COUNT", "OLDEST"), rows, styles), ("", "")]
    workers = sorted(found.workers, key=lambda worker: (worker.silent, worker.name))
    lines += table_lines(WORKER, [_worker(worker, found) for worker in workers], [_style(worker) for worker in workers])
    if not workers:
        lines.append(("no worker is announced; `detent worker` starts one", "yellow" if tally.queued else "dim"))
    if found.runs:
        names = {run_id: worker.name for worker in found.living for run_id in worker.runs}
        rows = [
            (
                shortened(head.run_id, 40),
                shortened(head.agent, 20),
                str(head.iterations),
                lasted(_since(found, head.created_at)),
                shortened(names.get(head.run_id, ""), 30),
            )
            for head in found.runs
        ]
        lines += [("", ""), *table_lines(("RUN", "AGENT", "TURNS", "STARTED", "WORKER"), rows, [""] * len(rows))]
    return lines


ENDS = ("completed", "failed", "stopped")
WORKER = ("WORKER", "VERSION", "ACTIVE", "ENDED/MIN", "FAILED/MIN", "UP", "STATE")
STATUSES = (
    "running",
    "waiting_for_reconciliation",
    "waiting_for_approval",
    "waiting_for_user",
    "waiting_for_subagent",
    "waiting_for_schedule",
    GIVEN_UP,
)


def _runs(count: int) -> str:
    return f"{count:,} run" if count == 1 else f"{count:,} runs"


def _age(found: Fleet, status: str) -> str:
    oldest = found.tally.oldest.get(status)
    return "" if oldest is None else lasted(_since(found, oldest))


def _since(found: Fleet, at: Any) -> float:
    return max(0.0, (found.at - at).total_seconds())


def _worker(worker: WorkerCard, found: Fleet) -> tuple[str, ...]:
    state = (
        f"silent for {lasted(worker.seen_s)}"
        if worker.silent
        else f"stopping: {shortened(worker.stopping, 40)}"
        if worker.stopping
        else "works"
    )
    return (
        shortened(worker.name, 40),
        shortened(worker.version, 12),
        f"{worker.active}/{worker.concurrency}",
        str(sum(worker.per_minute.get(status, 0) for status in ENDS)),
        str(worker.per_minute.get("failed_attempts", 0)),
        lasted(_since(found, worker.started)),
        state,
    )


def _style(worker: WorkerCard) -> str:
    return "red" if worker.silent else "yellow" if worker.stopping else ""


def table_lines(head: Sequence[str], rows: Sequence[Sequence[str]], styles: Sequence[str]) -> list[Line]:
    """Return aligned columns with their head."""
    from rich.cells import cell_len, set_cell_size

    lines = [tuple(head), *(tuple(clean(cell) for cell in row) for row in rows)]
    widths = [max(cell_len(line[i]) for line in lines) for i in range(len(head))]
    texts = ["  ".join(set_cell_size(cell, widths[i]) for i, cell in enumerate(line)).rstrip() for line in lines]
    return [(text, "bold" if number == 0 else styles[number - 1]) for number, text in enumerate(texts)]
