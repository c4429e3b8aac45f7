"""Shows a worker: a line when it picks up a run, a line when the run ends or waits, and on a terminal the runs in progress below.

It observes all runs of the worker and is called after the commit of each record.
"""

from __future__ import annotations

import sys
from types import TracebackType

from detent.cli.invocation import Invocation
from detent.cli.live_lines import LiveLines
from detent.cli.output import style_of
from detent.cli.standing import headline, waits_for
from detent.core import events as e
from detent.core.records import Record
from detent.core.state import RunState
from detent.expressions.display import counted, shortened
from detent.ports import Chunk

WIDTH = 160


class WorkerLines:
    """Use as `with WorkerLines(invocation, shown=...) as lines:`. With -v every call has a line, with -vv every record."""

    only_reads = True

    def __init__(self, invocation: Invocation, *, shown: bool) -> None:
        self._invocation, self._shown = invocation, shown
        self._live: LiveLines | None = None
        self.in_progress: set[str] = set()
        """The runs that were picked up and have not ended or started to wait."""

    def __enter__(self) -> WorkerLines:
        if self._shown and sys.stderr.isatty():
            self._live = LiveLines(self._invocation.stops.finishing)
            self._live.__enter__()
            self._invocation.stops.drawn = True
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._live is not None:
            self._live.__exit__(kind, error, trace)
            self._live = None

    def begin(self, concurrency: int, *, health: str = "") -> None:
        """Print what the worker works on, and where its health is served."""
        self._line(f"working on {self._invocation.engine.store.url}, {counted(concurrency, 'run')} at once; Ctrl-C stops", "dim")
        if health:
            self._line(f"  {health}/healthz, /readyz, /metrics", "dim")
        if self._live is not None:
            self._live.now("waiting for runs")

    def on_record(self, record: Record, state: RunState) -> None:
        """Show what the record means for the run."""
        event, run, verbosity = record.event, self._invocation.short(state.run_id), self._invocation.verbosity
        if verbosity > 1:
            self._line(f"{run}  {record.envelope.seq:>5}  {type(event).__name__}", "dim")
        match event:
            case e.RunResumed(stopped=""):
                self.in_progress.add(state.run_id)
                self._line(f"run {run} picked up: {shortened(state.goal, 80)}", "dim")
                self._now(run, "begins")
            case e.TurnStarted(iteration=iteration):
                self._now(run, f"iteration {iteration} · planning")
            case e.ToolFinished(call=call, error=error) if verbosity > 0:
                self._line(f"run {run}  {call}  {'ok' if error is None else error.code}", "" if error is None else "yellow")
            case e.RunFinished() | e.RunWaiting() | e.DeadLettered():
                self._over(state)
            case _:
                pass

    def on_chunk(self, chunk: Chunk) -> None:
        """Show which model or tool a run is calling. Streams are not shown, because there are several runs."""
        if chunk.kind == "model":
            self._now(self._invocation.short(chunk.run_id), f"iteration {chunk.iteration} · asking {chunk.content['model']}")
        elif chunk.kind == "tool":
            self._now(self._invocation.short(chunk.run_id), f"iteration {chunk.iteration} · {chunk.content['tool']}")

    def _now(self, run: str, doing: str) -> None:
        if self._live is not None:
            self._live.begin(run, f"{run} · {doing}")

    def _over(self, state: RunState) -> None:
        self.in_progress.discard(state.run_id)
        if self._live is not None:
            self._live.end(self._invocation.short(state.run_id))
        usage = state.usage
        counts = f"{counted(usage.iterations, 'iteration')}, {counted(usage.tool_calls, 'call')}"
        self._line(f"run {self._invocation.short(state.run_id)} {shortened(headline(state), WIDTH)} · {counts}", style_of(state.status))
        for line in waits_for(state):
            self._line(f"  {shortened(line, WIDTH)}")

    def _line(self, text: str, style: str = "") -> None:
        if self._live is not None:
            self._live.print(text, style)
        elif self._shown:
            self._invocation.output.say(text, style)
