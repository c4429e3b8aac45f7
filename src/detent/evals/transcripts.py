"""Transcripts: what a run was asked and did, as bounded text for people. The log is redacted when it is written, so they are too."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from detent.core.errors import CorruptLog, RunErased, RunNotFound
from detent.engine import Engine
from detent.evals.folding import folded, traced_talk
from detent.evals.grades import written
from detent.evals.talks import talk_of
from detent.evals.trials import Trial, talk_of_run
from detent.expressions.display import as_text, clean
from detent.history.traces import Call, Trace
from detent.ports import EventStore
from detent.running.lineage import history

MOST_CALLS, MOST_TEXT = 60, 1_500
"""How many calls are shown of a run, and how many characters of each text."""
MOST_RUNS, MOST_CHARACTERS = 1_000, 6_000_000
"""Of how many runs a report has a transcript, and how long all of them are together."""


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """One call: the tool, its arguments, how it ended, and what it returned or why it failed."""

    tool: str
    args: str
    outcome: str
    result: str


class Transcript(msgspec.Struct, frozen=True, kw_only=True):
    """What a run was asked, or the messages of a talk, its calls, what it answered, and how many calls are left out."""

    run_id: str
    goal: str
    steps: tuple[Step, ...]
    answer: str
    left_out: int = 0

    @property
    def length(self) -> int:
        """How many characters it has, about."""
        return len(self.goal) + len(self.answer) + sum(len(one.tool) + len(one.args) + len(one.result) + 80 for one in self.steps)


def transcript_of(trace: Trace) -> Transcript:
    """Return the transcript of a run."""
    calls = [call for turn in trace.iterations for call in turn.calls]
    head = calls if len(calls) <= MOST_CALLS else [*calls[: MOST_CALLS // 2], *calls[-MOST_CALLS // 2 :]]
    return Transcript(
        run_id=trace.run_id,
        goal=bounded(trace.goal),
        steps=tuple(map(_step, head)),
        answer=bounded(answer_of(trace)),
        left_out=len(calls) - len(head),
    )


def answer_of(trace: Trace) -> Any:
    """Return the answer of a run, or the text that it had so far."""
    return trace.output if trace.output is not None else trace.partial


def _step(call: Call) -> Step:
    refused = (
        f"{call.decision} by {call.rule or 'policy'}: {call.decided}" if call.decision not in ("", "allow") and not call.attempts else ""
    )
    kept = f"{call.artifact_bytes:,} bytes, kept as an artifact" if call.artifact_bytes else ""
    result = call.error or refused or kept or ("" if call.output is None else call.output)
    return Step(tool=clean(call.tool), args=bounded(call.args), outcome=call.outcome or "open", result=bounded(result))


def bounded(value: Any) -> str:
    """Return a value as text that is safe to show, of at most `MOST_TEXT` characters."""
    text = value if isinstance(value, str) else written(value)
    left = len(text) - MOST_TEXT
    return as_text(text[:MOST_TEXT]) + (f" … ({left:,} more characters)" if left > 0 else "")


async def told_of(store: EventStore, run_id: str) -> tuple[Transcript, Trace] | None:
    """Return the transcript of a run, and what it follows from; of a talk with a user what all of it said and did. None if the store does not have it."""
    try:
        if talk := talk_of_run(run_id):
            records, tracer = await traced_talk(store, talk)
            trace = tracer.trace()
            said = "\n".join(f"{line.who}: {line.text}" for line in talk_of(records))
            return msgspec.structs.replace(transcript_of(trace), run_id=run_id, goal=bounded(said)), trace
        if records := await history(store, run_id):
            trace = folded(records).trace()
            return transcript_of(trace), trace
    except (RunNotFound, RunErased, CorruptLog):
        pass
    return None


async def transcripts(engine: Engine, trials: Iterable[Trial]) -> dict[str, Transcript]:
    """Return the transcripts of trials by run, those first that did not pass, as many as a report may have."""
    found: dict[str, Transcript] = {}
    length = 0
    for trial in sorted(trials, key=lambda one: one.standing == "passed"):
        if len(found) >= MOST_RUNS or length > MOST_CHARACTERS:
            break
        if (told := await told_of(engine.store, trial.run_id)) is not None:
            found[trial.run_id] = told[0]
            length += told[0].length
    return found
