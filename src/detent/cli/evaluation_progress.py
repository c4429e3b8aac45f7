"""How far an evaluation is, while it runs: a table that is renewed in place on a terminal, a line now and then in a pipe."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from detent.cli.output import Output, coloured, lasted
from detent.cli.top import Line, Screen, table_lines

if TYPE_CHECKING:
    from detent.evals.sharing import Begun
    from detent.evals.trials import Trial

EVERY_S = 5.0
"""How often a line is written where there is no terminal."""
PER_SECOND = 4


class Progress:
    """Use as `with Progress(...) as progress:`, and call it with each trial that ended; `before` are those that had ended before."""

    def __init__(self, begun: Begun, before: Sequence[Trial], output: Output) -> None:
        self._begun, self._output, self._live = begun, output, None
        self._trials = {_key(trial): trial for trial in before if trial.standing != "not_run"}
        self._count, self._before = len(before), len(self._trials)
        self._since = self._said = time.monotonic()

    def __enter__(self) -> Progress:
        if sys.stderr.isatty() and not self._output.json:
            from rich.console import Console
            from rich.live import Live

            console = Console(stderr=True, highlight=False, markup=False, no_color=not coloured(sys.stderr))
            self._live = Live(self, console=console, refresh_per_second=PER_SECOND, transient=True, redirect_stdout=False)
            self._live.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        if self._live is not None:
            self._live.__exit__(*error)

    def __call__(self, trial: Trial) -> None:
        """Count a trial, or count it again as it is now."""
        self._trials[_key(trial)] = trial
        now = time.monotonic()
        if self._live is None and now - self._said >= EVERY_S and len(self._trials) < self._count:
            self._said = now
            self._output.say(self._line())

    def _line(self) -> str:
        passed = sum(trial.standing == "passed" for trial in self._trials.values())
        left = self.left_s()
        about = "" if left is None else f", about {lasted(left)} left"
        return f"{len(self._trials)} of {self._count}, {passed} passed, {self._cost()}{about}"

    def _cost(self) -> str:
        cost, most = sum(trial.all_cost_usd for trial in self._trials.values()), self._begun.suite.max_cost_usd
        return f"{cost:.4f} USD" + (f" of {most:g}" if most is not None else "")

    def left_s(self) -> float | None:
        """Return how long the rest will take, from how long the trials took that ended since this process began; None before the first."""
        ended = sum(trial.standing != "not_run" for trial in self._trials.values()) - self._before
        return None if ended <= 0 else (time.monotonic() - self._since) / ended * (self._count - len(self._trials))

    def __rich_console__(self, console: Any, options: Any) -> Iterator[Any]:
        yield from Screen(self.lines()).__rich_console__(console, options)

    def lines(self) -> list[Line]:
        """Return the table as it is now."""
        suite, left = self._begun.suite, self.left_s()
        rows: list[tuple[str, ...]] = []
        for name in suite.variants:
            trials = [trial for trial in self._trials.values() if trial.variant == name]
            counts = Counter(trial.standing for trial in trials)
            others = ", ".join(f"{n} {what.replace('_', ' ')}" for what, n in counts.items() if what not in ("passed", "failed"))
            cost = sum(trial.all_cost_usd for trial in trials)
            rows.append(
                (name or "-", f"{len(trials)} of {self._count // len(suite.variants)}", str(counts["passed"]), str(counts["failed"]), others,
                 f"{cost:.4f} USD" if cost else "")
            )  # fmt: skip
        about = "" if left is None or len(self._trials) == self._count else f", about {lasted(left)} left"
        done = len(self._trials) * 20 // max(1, self._count)
        head = f"{'#' * done}{'.' * (20 - done)}  {len(self._trials)} of {self._count}{about}, {self._cost()}"
        return [(head, "cyan"), *table_lines(("VARIANT", "ENDED", "PASSED", "FAILED", "NOT GRADED", "COST"), rows, [""] * len(rows))]


def _key(trial: Trial) -> tuple[str, str, int]:
    return trial.case, trial.variant, trial.number
