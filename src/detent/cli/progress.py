"""Shows a run while it is advanced: a line for each call that ended, and on a terminal live lines below them.

It is a normal observer: it is called after the commit of each record, so the lasting lines show what is in the log. The live lines show what
streams (a model's text and thinking, calls in progress). They disappear when it is recorded; the answer then goes to stdout.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

from detent.cli.drawing import diff_of, present, style_of_line
from detent.cli.live_lines import LiveLines
from detent.cli.output import Output, clean, coloured
from detent.cli.retries import Retries
from detent.core import events as e
from detent.core.actions import ToolCall
from detent.core.records import Record
from detent.core.state import Item, RunState
from detent.expressions.display import as_text, counted, fault, gist, shortened
from detent.history.traces import compacted_told
from detent.ports import Chunk

WIDTH = 160
NAME = 80
"""The most characters shown of a tool's name, because models may call tools by endless invented names."""
THOUGHT_LINES = 4
"""How many lines of thinking stay on a terminal; with --verbose all."""


CHANGED_LINES = 20
"""How many lines of the diff of a write stay on a terminal; with --verbose all."""


class Progress:
    """Shows a run on stderr. `verbosity` as in `OutputConfig`; diffs leave out what matches `redact`. Use as `with Progress(...) as progress:`."""

    only_reads = True

    def __init__(
        self,
        output: Output,
        *,
        verbosity: int,
        shown: bool,
        redact: Sequence[str] = (),
        finishing: Callable[[], list[str]] = list,
        names: bool = True,
    ) -> None:
        """See `LiveLines` for `finishing`. With `names`, the id of each run is shown."""
        self._output, self._verbosity, self._shown, self._finishing = output, verbosity, shown, finishing
        self._live: LiveLines | None = None
        self._known: set[str] = set()
        self._top, self._mark = "", ""
        self._below: dict[str, Progress] = {}
        self._before: dict[str, str | None] = {}
        self._retries = Retries()
        self._redact, self._names = redact, names

    def __enter__(self) -> Progress:
        if self._shown and sys.stderr.isatty():
            self._live = LiveLines(self._finishing)
            self._live.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        for line in self._retries.ended():
            self._line(line, "yellow")
        if self._live is not None:
            self._live.__exit__(*error)
            self._live = None

    @property
    def drawing(self) -> bool:
        """Whether there are live lines."""
        return self._live is not None

    # Observer ---------------------------------------------------------------------------------------------------------------------

    def on_record(self, record: Record, state: RunState) -> None:
        """Show what the record means."""
        if self._shown:
            self._of(state.run_id, state.agent.name)._record(record, state)

    def _of(self, run_id: str, agent: str) -> Progress:
        """Return what shows this run: a child of the first one is shown by lines with its agent's name."""
        self._top = self._top or run_id
        if run_id == self._top:
            return self
        if run_id not in self._below:
            self._below[run_id] = below = Progress(self._output, verbosity=self._verbosity, shown=self._shown, redact=self._redact)
            below._top, below._mark, below._live, below._known = run_id, f"{clean(agent)} ", self._live, {run_id}
        return self._below[run_id]

    def _record(self, record: Record, state: RunState) -> None:
        event = record.event
        if self._verbosity > 1:
            self._line(f"{record.envelope.seq:>5}  {type(event).__name__}  {shortened(_fields(event), WIDTH)}", "dim")
        iteration = record.envelope.iteration
        match event:
            case e.RunStarted():
                self._announce(state.run_id)
            case e.RunResumed(stopped=""):
                self._known.add(state.run_id)
                self._line(
                    f"run {state.run_id} continues after {_steps(state)}"
                    + (f"; changed since: {', '.join(event.changed)}" if event.changed else ""),
                    "dim",
                )
            case e.TurnStarted():
                self._now(f"iteration {iteration} · planning")
            case e.Planned():
                self._planned(event)
            case e.ToolStarted(tool=tool, call=call, attempt=attempt):
                self._begun(call, tool, gist(_args(state, call)), attempt)
                self._keep(call, tool, state)
            case e.PlanRejected(problem=problem):
                self._silence()
                self._line(f"{iteration:>4}  plan rejected: {shortened(problem, WIDTH)}", "yellow")
            case e.ModelCallStarted() | e.ModelCallFailed() | e.ModelCallFinished() | e.RunFinished():
                self._model(event, iteration)
            case e.AnswerRefused(code=code, reason=reason):
                self._line(f"{iteration or '':>4}  answer refused ({clean(event.kind)}, {code}): {shortened(reason, WIDTH)}", "yellow")
            case e.AnswerObjected(by=by, why=why):
                self._silence()
                self._line(f"{iteration:>4}  answer not accepted ({clean(by) or 'a phase'}): {shortened(why, WIDTH)}", "yellow")
            case e.ContextCompacted() | e.Reflected():
                said = "no progress: told to reflect" if isinstance(event, e.Reflected) else compacted_told(event)
                self._line(f"{iteration:>4}  {said}", "yellow")
            case e.ToolFinished() | e.ToolReconciled() | e.SubagentJoined() | e.SubagentReleased():
                self._call(event, iteration or int(event.call.split(".")[-2] or 0) if event.call else 0, state)
            case e.ToolInDoubt(call=call, why=why):
                self._ended(call)
                self._line(f"{iteration:>4}  in doubt: call {call}: {shortened(why, WIDTH)}", "magenta")
            case _:
                pass

    def on_chunk(self, chunk: Chunk) -> None:
        """Show what a model says, which calls run, and how tools report their progress. Without a terminal, show only retries."""
        if chunk.kind == "retry":
            self._again(chunk.iteration, chunk.content)
            return
        if self._live is not None:
            self._of(chunk.run_id, chunk.agent)._chunk(chunk, self._live)

    def _chunk(self, chunk: Chunk, live: LiveLines) -> None:
        self._announce(chunk.run_id)
        match chunk.kind:
            case "model":
                self._asking(chunk.iteration, chunk.content["model"], chunk.content["attempt"])
            case "text" | "thinking":
                live.say(chunk.kind, (chunk.run_id, chunk.scope), str(chunk.content))
            case "tool":
                self._begun(chunk.call_id, chunk.content["tool"], gist(chunk.content["args"]), chunk.content["attempt"])
            case "progress":
                live.report(f"{self._top}{chunk.call_id}", shortened(as_text(chunk.content), 60))
            case "retry":
                pass  # shown by `on_chunk`

    # Lines ------------------------------------------------------------------------------------------------------------------------

    def _announce(self, run_id: str) -> None:
        """Print the run's id, once."""
        if self._names and run_id not in self._known:
            self._known.add(run_id)
            self._line(f"run {run_id}", "dim")

    def _asking(self, iteration: int, model: str, attempt: int) -> None:
        self._silence()
        self._now(f"iteration {iteration} · asking {model}" + (f" (attempt {attempt})" if attempt > 1 else ""))

    def _model(self, event: e.Event, iteration: int) -> None:
        """Show a failed model call as soon as it is known what happened next."""
        lines: list[str] = []
        match event:
            case e.ModelCallStarted():
                lines = self._retries.started(event)
            case e.ModelCallFailed():
                self._silence()
                self._retries.failed(event, iteration)
            case e.ModelCallFinished():
                lines = self._retries.finished(event)
            case e.RunFinished(error=error):
                lines = self._retries.ended(error)
            case _:
                pass
        for line in lines:
            self._line(line, "yellow")

    def _again(self, iteration: int, content: dict[str, Any]) -> None:
        """Show that a model call is tried again: on a terminal in the live line, else one line per retry."""
        said, seconds = self._retries.again(content, why=self._live is not None), content["in_s"]
        if self._live is not None:
            self._live.until(f"{said} in", seconds)
        elif self._shown:
            self._line(f"{iteration:>4}  {said} in {seconds:.0f} s")

    def _now(self, doing: str) -> None:
        if self._live is not None and not self._mark:
            self._live.now(doing)

    def _begun(self, call: str, tool: str, gist: str, attempt: int) -> None:
        if self._live is not None:
            said = f"{self._mark}{shortened(tool, NAME)}  {shortened(gist, 70)}" + (f" (attempt {attempt})" if attempt > 1 else "")
            self._live.begin(f"{self._top}{call}", said)

    def _keep(self, call: str, tool: str, state: RunState) -> None:
        """Keep the content of a file before it is overwritten, for the diff."""
        if self._live is not None and tool == "write_file":
            self._before[call] = present(state.agent.meta.get("workspace"), _args(state, call), (*state.agent.redact, *self._redact))

    def _ended(self, call: str) -> None:
        if self._live is not None:
            self._live.end(f"{self._top}{call}")

    def _silence(self) -> None:
        if self._live is not None:
            self._live.silence()

    def _planned(self, event: e.Planned) -> None:
        """Show a model's thinking, dimmed, and its text next to calls; the answer is shown when the run has ended."""
        self._silence()
        thinking, calls = event.thinking.strip(), isinstance(event.actions[0], ToolCall)
        if thinking and (self._live is not None or self._verbosity > 0):
            lines = clean(thinking, lines=True).split("\n")
            most = len(lines) if self._verbosity > 0 else THOUGHT_LINES
            more = [f"… {len(lines) - most} more lines, shown with -v"] if len(lines) > most else []
            for line in [*lines[:most], *more]:
                self._line(f"      {line}", "dim")
        if calls and event.text.strip() and (self._live is not None or self._verbosity > 0):
            for line in clean(event.text.strip(), lines=True).split("\n"):
                self._line(f"      {line}")

    def _call(
        self, event: e.ToolFinished | e.ToolReconciled | e.SubagentJoined | e.SubagentReleased, iteration: int, state: RunState
    ) -> None:
        call_id = event.call
        self._ended(call_id)
        call = state.call(call_id)
        if isinstance(event, e.ToolReconciled) and event.outcome == "again":
            self._line(f"{iteration:>4}  settled ({event.source}): call {call_id} did not happen, and is made again", "magenta")
        item = call.item if call is not None else None
        if call is None or item is None:
            return
        self._now(f"iteration {iteration} · {shortened(call.tool, NAME)} is done, continuing")
        mark, style = ("ok", "") if item.ok else ("failed", "red")
        said = f"{iteration:>4}  {shortened(call.tool, NAME)} {mark}" + (
            f" {item.latency_ms:.0f} ms" if item.executed and item.latency_ms else ""
        )
        if self._verbosity == 0:
            said += f"  {shortened(gist(call.args), 70)}" if item.ok else f"  {shortened(_problem(item), WIDTH)}"
        self._line(said, style)
        if self._live is not None and item.ok:
            self._changes(diff_of(call.tool, call.args, self._before.pop(call_id, None)))
        if self._verbosity > 0:
            self._line(f"        in   {shortened(as_text(call.args), WIDTH)}", "dim")
            out = as_text(item.content) if item.ok else _problem(item)
            self._line(f"        out  {shortened(out, WIDTH)}", "dim")

    def _changes(self, lines: list[str]) -> None:
        """Show what a write changed, as a diff."""
        most = len(lines) if self._verbosity > 0 else CHANGED_LINES
        for line in lines[:most]:
            self._line(f"      | {shortened(line.expandtabs(4), WIDTH)}", style_of_line(line))
        if len(lines) > most:
            self._line(f"      | … {len(lines) - most} more lines, shown with -v", "dim")

    def _line(self, text: str, style: str = "") -> None:
        text = f"{self._mark}{text}"
        if self._live is not None:
            self._live.print(text, style if coloured(sys.stderr) else "")
        else:
            self._output.say(text, style)


def _fields(event: Any) -> str:
    return as_text(event) if event is not None else "erased"


def _steps(state: RunState) -> str:
    return f"{counted(state.usage.iterations, 'iteration')}, {counted(state.usage.tool_calls, 'call')}"


def _args(state: RunState, call_id: str) -> Any:
    call = state.call(call_id)
    return call.args if call is not None else None


def _problem(item: Item) -> str:
    return clean(fault(item.error))
