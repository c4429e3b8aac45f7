"""What is shown of a run while it is advanced: a line for each call that ended, and on a terminal a live line below them.

An observer like any other: it is told after the commit of each record, and what it shows is what is in the log.
"""

from __future__ import annotations

import json
import sys
import time
from contextlib import AbstractContextManager
from typing import Any, cast

from detent.cli.output import Output, as_text, clean, coloured, fault, shortened
from detent.core import events as e
from detent.core.records import Record
from detent.core.state import Item, RunState
from detent.ports import Chunk

WIDTH = 160


class Progress:
    """Shows a run on stderr; `verbosity` as in `OutputConfig`. Use as `with Progress(...) as progress:`."""

    def __init__(self, output: Output, *, verbosity: int, shown: bool) -> None:
        self._output, self._verbosity, self._shown = output, verbosity, shown
        self._live: Any = None
        self._doing = "starting"
        self._since = time.monotonic()

    def __enter__(self) -> Progress:
        if self._shown and sys.stderr.isatty():
            self._live = _live_line(self)
            self._live.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        if self._live is not None:
            self._live.__exit__(*error)
            self._live = None

    def __rich__(self) -> Any:
        from rich.text import Text

        mark = "|/-\\"[int(time.monotonic() * 8) % 4]
        return Text(
            f"{mark} {self._doing} · {time.monotonic() - self._since:.1f} s",
            style="cyan" if coloured(sys.stderr) else "",
            overflow="ellipsis",
        )

    # Observer ---------------------------------------------------------------------------------------------------------------------

    def on_record(self, record: Record, state: RunState) -> None:
        """Show what the record means."""
        if not self._shown:
            return
        event = record.event
        if self._verbosity > 1:
            self._line(f"{record.envelope.seq:>5}  {type(event).__name__}  {shortened(_fields(event), WIDTH)}", "dim")
        iteration = record.envelope.iteration
        match event:
            case e.RunStarted():
                self._line(f"run {state.run_id}", "dim")
            case e.RunResumed():
                self._line(
                    f"run {state.run_id} goes on after {_steps(state)}"
                    + (f"; changed since: {', '.join(event.changed)}" if event.changed else ""),
                    "dim",
                )
            case e.TurnStarted():
                self._now(f"iteration {iteration} · planning")
            case e.ToolStarted(tool=tool):
                self._now(f"iteration {iteration} · {clean(tool)}" + (f" (attempt {event.attempt})" if event.attempt > 1 else ""))
            case e.PlanRejected(problem=problem):
                self._line(f"{iteration:>4}  plan rejected: {shortened(clean(problem), WIDTH)}", "yellow")
            case e.ModelCallFailed(error=error, kind=kind):
                self._line(f"{iteration:>4}  model call failed ({kind}): {shortened(clean(error), WIDTH)}", "yellow")
            case e.Reflected():
                self._line(f"{iteration:>4}  no progress: told to reflect", "yellow")
            case e.ToolFinished(call=call) | e.ToolReconciled(call=call):
                self._call(call, iteration, state)
            case e.ToolInDoubt(call=call, why=why):
                self._line(f"{iteration:>4}  in doubt: call {call}: {shortened(clean(why), WIDTH)}", "magenta")
            case _:
                pass

    def on_chunk(self, chunk: Chunk) -> None:
        """Show a tool's own report of its progress."""
        if chunk.kind == "progress":
            self._doing = f"iteration {chunk.iteration} · {shortened(as_text(chunk.content), 60)}"

    # Lines ------------------------------------------------------------------------------------------------------------------------

    def _now(self, doing: str) -> None:
        self._doing, self._since = doing, time.monotonic()

    def _call(self, call_id: str, iteration: int, state: RunState) -> None:
        call = state.call(call_id)
        item = call.item if call is not None else None
        if call is None or item is None:
            return
        self._now(f"iteration {iteration} · {clean(call.tool)} is done, going on")
        mark, style = ("ok", "") if item.ok else ("failed", "red")
        said = f"{iteration:>4}  {clean(call.tool)} {mark}" + (f" {item.latency_ms:.0f} ms" if item.executed else "")
        if self._verbosity == 0:
            said += f"  {shortened(_gist(call.args), 70)}" if item.ok else f"  {shortened(_problem(item), WIDTH)}"
        self._line(said, style)
        if self._verbosity > 0:
            self._line(f"        in   {shortened(as_text(call.args), WIDTH)}", "dim")
            out = as_text(item.content) if item.ok else _problem(item)
            self._line(f"        out  {shortened(out, WIDTH)}", "dim")

    def _line(self, text: str, style: str = "") -> None:
        if self._live is not None:
            from rich.text import Text

            self._live.console.print(Text(text, style=style if coloured(sys.stderr) else ""), soft_wrap=True)
        else:
            self._output.say(text, style)


def _live_line(progress: Progress) -> AbstractContextManager[Any]:
    from rich.console import Console
    from rich.live import Live

    console = Console(stderr=True, highlight=False, markup=False, no_color=not coloured(sys.stderr))
    return Live(progress, console=console, refresh_per_second=8, transient=True, redirect_stdout=False, redirect_stderr=False)


def _fields(event: Any) -> str:
    return as_text(event) if event is not None else "erased"


def _steps(state: RunState) -> str:
    return f"{state.usage.iterations} iterations, {state.usage.tool_calls} calls"


def _gist(args: Any) -> str:
    """Return what tells most about a call: its first text, then its numbers and truth values by name."""
    if not isinstance(args, dict):
        return ""
    given = cast("dict[str, Any]", args)
    texts = [value for value in given.values() if isinstance(value, str)]
    figures = [f"{name}={json.dumps(value)}" for name, value in given.items() if isinstance(value, (int, float))]
    return clean(" ".join([*(shortened(text, 50) for text in texts[:1]), *figures]))


def _problem(item: Item) -> str:
    return clean(fault(item.error))
