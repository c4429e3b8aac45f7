"""The law of a tree's budget: no bound of any run is exceeded at any record, in the order in which the records of all runs were committed."""

from __future__ import annotations

from collections.abc import Iterable

from detent.core import events as e
from detent.core.budget import Budget, Usage
from detent.core.fold import evolve
from detent.core.records import Record
from detent.core.state import RunState
from detent.running.delegating import SUMS


class Prefix:
    """The runs of a tree up to some record, and what each has used without its joined children."""

    def __init__(self) -> None:
        self.states: dict[str, RunState] = {}
        self.own: dict[str, Usage] = {}
        self._below: dict[str, Usage] = {}

    def add(self, record: Record) -> None:
        """Add the next record. Raise `AssertionError` if now the run, or one above it, has used or counts more than its bound."""
        run_id = record.envelope.run
        before = self.states.get(run_id, RunState(run_id=run_id))
        state = self.states[run_id] = evolve(before, record)
        assert not (wrong := over(state.counted, state.budget)), (run_id, record.envelope.seq, "counts", wrong)
        used = minus(state.usage, before.usage)
        if isinstance(record.event, e.SubagentJoined):
            used = minus(used, record.event.usage)
            if record.event.outcome == "lost" or not record.event.sequence:
                return  # what is counted for it may never have been used
        self.own[run_id] = self.own.get(run_id, Usage()).plus(used)
        for one in self._above(run_id):
            self._below[one] = self._below.get(one, Usage()).plus(used)
            assert not (wrong := over(self._below[one], self.states[one].budget)), (run_id, record.envelope.seq, one, wrong)

    def _above(self, run_id: str) -> Iterable[str]:
        """Return the run, its parent, and so on to the root. What a child uses that was left is no longer its parent's, but was reserved there."""
        while run_id in self.states:
            yield run_id
            state = self.states[run_id]
            run_id = state.parent if state.delegated is not None else ""


def in_order(logs: Iterable[Iterable[Record]]) -> list[Record]:
    """Return the records of runs in the order of their times: all processes of a machine have one clock."""
    return sorted((record for log in logs for record in log), key=lambda record: (record.envelope.at, record.envelope.seq))


def minus(used: Usage, before: Usage) -> Usage:
    """Return the sums that were used since."""
    since = {name: (getattr(used, name) or 0) - (getattr(before, name) or 0) for name in SUMS if name != "total_tokens"}
    return Usage(**since)


def over(used: Usage, bounds: Budget) -> list[str]:
    """Return the sums that are above their bounds. Failures are not among them: a batch whose calls all fail is known only when it is over."""
    return [
        f"{name}: {value} of {bound}"
        for name in SUMS
        if name != "failures"
        if (bound := getattr(bounds, f"max_{name}")) is not None and (value := getattr(used, name) or 0) > bound + 1e-9
    ]
