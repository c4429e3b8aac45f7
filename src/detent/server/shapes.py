"""What requests and answers of the API consist of. Each struct is a schema of the OpenAPI document."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Literal

import msgspec

from detent.core.agent import AgentSpec
from detent.core.budget import Budget, Usage
from detent.core.events import ArtifactRef
from detent.core.records import RunHead
from detent.core.state import RunState
from detent.running.overseeing import Wait
from detent.running.results import Answered, Approval, Doubt, approvals_of, doubts_of


class Strict(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A body: a field that it does not have is refused by name."""


class StartRun(Strict, frozen=True, kw_only=True):
    """A new run. `wait_s`: answer when it has ended or waits, at most so many seconds later; 0 answers once it is recorded."""

    agent: str
    goal: str
    variables: dict[str, Any] = {}
    budget: Budget | None = None
    output_schema: dict[str, Any] | None = None
    run_id: str = ""
    wait_s: float = 0.0
    priority: int = 0
    fair_key: str = ""
    weight: int = 1
    dedupe_key: str = ""
    on_same: Literal["queue", "skip", "replace", "latest"] = "queue"
    debounce: float | None = None


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """What a run asks its user."""

    ask_id: str
    question: str


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """A run as it stands. `output` is set once it has completed; `partial` is the best text so far. `records` is the sequence of its last record."""

    run_id: str
    goal_id: str
    goal: str
    agent: str
    status: str
    reason: str
    output: Any
    partial: str
    error: str | None
    iterations: int
    usage: Usage
    records: int
    digest: str
    created_at: datetime | None
    updated_at: datetime | None
    artifacts: Sequence[ArtifactRef]
    approvals: Sequence[Approval]
    questions: Sequence[Question]
    doubts: Sequence[Doubt]
    answered: Answered | None = None


def run_of(outcome: Any, *, answered: Answered | None = None) -> Run:
    """Return a result, or a loaded run, as the API shows it."""
    state: RunState = outcome.state
    return Run(
        run_id=outcome.run_id,
        goal_id=state.goal_id,
        goal=state.goal,
        agent=state.agent.name,
        status=outcome.status,
        reason=outcome.reason,
        output=outcome.output,
        partial=outcome.partial,
        error=outcome.error,
        iterations=outcome.iterations,
        usage=outcome.usage,
        records=state.seq,
        digest=state.digest,
        created_at=state.started_at,
        updated_at=state.updated_at,
        artifacts=outcome.artifacts,
        approvals=approvals_of(state),
        questions=[Question(ask_id=ask.ask_id, question=ask.question) for ask in state.asks.values()],
        doubts=doubts_of(state),
        answered=answered,
    )


class Runs(msgspec.Struct, frozen=True, kw_only=True):
    """A page of runs, newest first. `after` continues it, "" at the end."""

    runs: Sequence[RunHead]
    after: str = ""


class ListRuns(Strict, frozen=True, kw_only=True):
    """Which runs; `after` is that of the page before. Without `status`, all."""

    status: tuple[str, ...] = ()
    agent: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    limit: int = 50
    after: str | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.limit <= 1000:
            raise ValueError(f"limit is {self.limit}; give 1 to 1000")


class Records(msgspec.Struct, frozen=True, kw_only=True):
    """Records of a run in their order: envelope, event and digest each. `after` continues, 0 at the end."""

    records: Sequence[dict[str, Any]]
    after: int = 0


class ReadRecords(Strict, frozen=True, kw_only=True):
    """From behind record `after`, at most `limit`."""

    after: int = 0
    limit: int = 200

    def __post_init__(self) -> None:
        if self.after < 0 or not 1 <= self.limit <= 1000:
            raise ValueError("after counts from 0, and limit is 1 to 1000")


class Cancel(Strict, frozen=True, kw_only=True):
    """`tree`: also the children that would be waited for or left."""

    why: str = ""
    tree: bool = False


class Approve(Strict, frozen=True, kw_only=True):
    """`digest` is that of what you saw (`Approval.digest`). `args` replaces the arguments."""

    call_id: str
    digest: str
    args: dict[str, Any] | None = None


class Deny(Strict, frozen=True, kw_only=True):
    """A refused call; the planner gets the reason."""

    call_id: str
    digest: str = ""
    reason: str = ""


class Reply(Strict, frozen=True, kw_only=True):
    """The answer to a question; `ask_id` may be left out if only one is open."""

    reply: Any
    ask_id: str = ""


class Reconcile(Strict, frozen=True, kw_only=True):
    """Whether a call in doubt happened, and with which result."""

    call_id: str
    happened: bool
    result: Any = None


class Resume(Strict, frozen=True, kw_only=True):
    """`budget` changes the bounds that it names."""

    budget: Budget | None = None


class Reopen(Strict, frozen=True, kw_only=True):
    """Open a failed, stopped or given up run again."""

    why: str = ""
    budget: Budget | None = None


class Erase(Strict, frozen=True, kw_only=True):
    """Remove the content of a finished or waiting run for good. `keep_later`: later runs of its session keep its words.

    `memory`: what came from the run is forgotten, too.
    """

    why: str = ""
    keep_later: bool = False
    memory: bool = False


class Fork(Strict, frozen=True, kw_only=True):
    """Copy a run up to record `at`, change something (`edits`), and continue from there unless `resume` is false."""

    at: int | None = None
    edits: dict[str, Any] = {}
    effects: Literal["dry_run", "reuse", "redo"] = "dry_run"
    resume: bool = True


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """The calls that wait for a person."""

    approvals: Sequence[Approval]
    doubts: Sequence[Doubt]


class Waits(msgspec.Struct, frozen=True, kw_only=True):
    """What a run waits for."""

    waits: Sequence[Wait]


class AgentShown(msgspec.Struct, frozen=True, kw_only=True):
    """An agent that this server can run."""

    name: str
    description: str = ""
    model: str = ""
    strategy: str = ""
    tools: Sequence[str] = ()


class Agents(msgspec.Struct, frozen=True, kw_only=True):
    """The agents of this server."""

    agents: Sequence[AgentShown]


def shown(name: str, spec: AgentSpec) -> AgentShown:
    """Return an agent as the API shows it."""
    first = spec.instructions.strip().partition("\n")[0][:200]
    return AgentShown(name=name, description=first, model=spec.model, strategy=spec.strategy, tools=tuple(spec.tools))
