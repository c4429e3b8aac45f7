"""A suite whose trials leave a mark outside of the store, and processes that work on it: `python tests/evals/trying.py STORE DIRECTORY OPTIONS`."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from detent import Agent, Engine, FinalAnswer, ToolCall, ToolContext, tool
from detent.evals import Case, Suite, evaluate
from detent.testing import ScriptedPlanner
from detent.tools import Happened, NotHappened


def suite_of(cases: int, trials: int, **more: Any) -> Suite:
    """Return a suite of sums."""
    every = tuple(Case(id=str(n), goal=f"{n} and 1", expected=n + 1) for n in range(cases))
    return Suite(name="sums", cases=every, graders=({"kind": "numeric"}, {"kind": "no_repeats"}), trials=trials, **more)


class Ledger:
    """The effects: a line each in a file that all processes append to, with the run, the call's key and the process."""

    def __init__(self, directory: Path) -> None:
        self.file = directory / "effects"

    def lines(self) -> list[list[str]]:
        """Return what was done, each as run, key and process; a line that a dying process left unfinished is none."""
        text = self.file.read_text() if self.file.exists() else ""
        return [line.split("\t") for line in text.split("\n")[:-1]]

    def add(self, run_id: str, key: str) -> None:
        """Do something, in one write."""
        at = os.open(self.file, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        try:
            os.write(at, f"{run_id}\t{key}\t{os.getpid()}\n".encode())
        finally:
            os.close(at)

    def counts(self) -> Counter[str]:
        """Return how often each run did it."""
        return Counter(line[0] for line in self.lines())


class Adds:
    """Does something first, then adds; `pause_s` is how long each turn takes; a run whose goal begins with `held` goes no further after that."""

    def __init__(self, *, pause_s: float = 0.0, held: str = "") -> None:
        self._pause_s, self._held = pause_s, held

    async def plan(self, view: Any) -> Any:
        """Return the next step."""
        if self._pause_s:
            await asyncio.sleep(self._pause_s)
        if self._held and view.results and view.goal.startswith(self._held):
            print("held", flush=True)
            await asyncio.Event().wait()
        a, b = (int(word) for word in view.goal.split(" and "))
        step: Any = FinalAnswer(content=str(a + b)) if view.results else ToolCall(tool="put", args={"run": view.run_id})
        return await ScriptedPlanner([step]).plan(view)


def engine_of(store: Any, directory: Path, planner: Any = None, **how: Any) -> Engine:
    """Return an engine whose agent adds."""
    ledger = Ledger(directory)

    def done(key: str) -> Happened | NotHappened:
        return Happened("put") if any(line[1] == key for line in ledger.lines()) else NotHappened()

    @tool(side_effect="write", reconcile=done)
    async def put(run: str, context: ToolContext) -> str:
        """Put something down."""
        ledger.add(run, context.idempotency_key)
        return "put"

    return Engine(store=store, agents=[Agent(name="adder", tools=[put])], planner=planner or Adds(**how))


async def tried(url: str, directory: Path, *, cases: int, trials: int, parallel: int = 8, **how: Any) -> dict[str, Any]:
    """Work on the evaluation until it has ended; return what it came to."""
    async with engine_of(url, directory, **how) as engine:
        found = await evaluate(engine, suite_of(cases, trials), id="shared", concurrency=parallel)
    return {
        "standings": Counter(trial.standing for trial in found),
        "attempts": Counter(str(trial.attempts) for trial in found),
        "runs": sorted(trial.run_id for trial in found),
    }


def main(url: str, directory: str, how: str) -> None:
    """Be one process of an evaluation; print what it came to."""
    print(json.dumps(asyncio.run(tried(url, Path(directory), **json.loads(how)))), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
