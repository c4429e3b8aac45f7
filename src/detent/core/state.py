"""The fold of a log prefix: `RunState` for the whole run, `KernelState` for one pass. Frozen; `transition` returns the next one.

Data that grows with the steps is in owned structures (`history`), so a step costs the same at 100,000 steps as at 100. Nothing here is ever
changed in place, and no decision depends on anything else (DESIGN law 1).
"""

from __future__ import annotations

import json
from datetime import datetime
from functools import reduce
from typing import Any, Literal

import msgspec

from detent.core.actions import AskUser
from detent.core.agent import AgentSpec, Host
from detent.core.brief import brief
from detent.core.budget import NOTHING, UNBOUNDED, Budget, Exhausted, Usage
from detent.core.errors import IllegalEvent
from detent.core.events import (
    NO_ORIGIN,
    NO_RESULT,
    AnyEvent,
    ApprovalRequested,
    ArtifactRef,
    ContextCompacted,
    Delegated,
    InSession,
    Origin,
    Planned,
    Queued,
    SideEffect,
    SubagentJoined,
    SubagentSpawned,
    TenantBalance,
    ToolError,
    Trust,
)
from detent.core.history import NO_ENTRIES, Map, Seq

RunStatus = Literal[
    "running",
    "waiting_for_reconciliation",
    "waiting_for_approval",
    "waiting_for_user",
    "waiting_for_subagent",
    "waiting_for_schedule",
    "waiting_for_operator",
    "completed",
    "failed",
    "stopped",
]
PassStatus = Literal["thinking", "acting", "observing", "done", "failed"]

WAITING: tuple[str, ...] = (
    "waiting_for_reconciliation",
    "waiting_for_approval",
    "waiting_for_user",
    "waiting_for_subagent",
    "waiting_for_schedule",
    "waiting_for_operator",
)
"""In order of precedence."""
TERMINAL: tuple[str, ...] = ("completed", "failed", "stopped")
CLOSED: tuple[str, ...] = ("done", "failed")

LEGAL_RUN: dict[str, tuple[str, ...]] = {
    "": ("running",),
    "running": ("running", *WAITING, *TERMINAL),
    **dict.fromkeys(WAITING, ("running", *WAITING, *TERMINAL)),
    "completed": (),
    "failed": ("running",),
    "stopped": ("running",),
}
LEGAL_PASS: dict[str, tuple[str, ...]] = {
    "thinking": ("thinking", "acting", "observing", "done", "failed"),
    "acting": ("acting", "observing", "thinking", "done", "failed"),
    "observing": ("observing", "thinking", "done", "failed"),
    "done": (),
    "failed": ("thinking",),
}
"""The legal changes of a status. Only `RunReopened` leaves a terminal one."""
NOT_MEASURED = 0.0
"""The latency of a call that did not run. Being this very object, it is left out of a serialised state."""


class Item(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """One entry of the transcript: what a planner sees of the past.

    `kind`: `user` (the goal, replies), `model` (a plan), `tool` (an observation), `note` (told by kernel, phase, operator, or the run's parent, whose
    message is in `arguments`), `memory` (what was recalled: `arguments` are the items).
    A tool item has `call_id`, `tool`, `args`, `ok`, `content` (the JSON result, None on failure) and `error`. If the result was over the tool's
    cap, `artifact` is set and `content` is a preview. `meta`: a meta-tool, answered or refused. `changes`: executed by a tool with side
    effects. `args` and `content` are fresh copies at each access; `arguments` is read-only.
    """

    kind: Literal["user", "model", "tool", "note", "memory"]
    iteration: int = 0
    text: str = ""
    call_id: str = ""
    tool: str = ""
    arguments: Any = None
    ok: bool | None = None
    result: msgspec.Raw = NO_RESULT
    error: ToolError | None = None
    artifact: ArtifactRef | None = None
    plan: Planned | None = None
    executed: bool = False
    trust: Trust = "untrusted"
    edited: bool = False
    meta: bool = False
    changes: bool = False
    latency_ms: float = NOT_MEASURED

    @property
    def args(self) -> Any:
        """The arguments of the call."""
        return _copy(self.arguments)

    @property
    def content(self) -> Any:
        """The content of the item: text, or the JSON result of a tool."""
        if self.kind != "tool":
            return self.text
        return msgspec.json.decode(self.result) if self.result else None

    @property
    def questions(self) -> tuple[str, ...]:
        """What the plan asks the user."""
        return tuple([action.question for action in self.plan.actions if isinstance(action, AskUser)]) if self.plan is not None else ()


CallStatus = Literal["planned", "asked", "allowed", "started", "delegated", "in_doubt", "again", "finished"]


class CallState(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """One call of the current turn. `tool` and `args` are the current ones, after healing and edits. `repairs` are those of healing."""

    call_id: str
    index: int
    tool: str
    args: Any
    status: CallStatus = "planned"
    digest: str = ""
    key: str = ""
    attempt: int = 0
    provenance: Literal["planner", "text", "program"] = "planner"
    side_effect: SideEffect = "destructive"
    idempotent: bool = False
    volatile: bool = False
    ends_turn: bool = False
    refused: str = ""
    trust: Trust = "untrusted"
    approved_by: tuple[str, ...] = ()
    edited: bool = False
    repairs: tuple[str, ...] = ()
    why: str = ""
    item: Item | None = None

    @property
    def read_only(self) -> bool:
        """Whether the tool changes nothing outside."""
        return self.side_effect in ("none", "read")


class KernelState(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """One pass of a kernel.

    `steps` has all transcript items, `results` the tool items among them, `calls` the calls of the current turn. `meta`, `scratchpad` and
    `guidance` belong to phases and strategies. `prompt` is the size of the last prompt in tokens, and the number of `steps` in it;
    `asked` is the last model call for a plan, which counts it. Every other field is
    a kernel fact that only events change.
    """  # rows S0-3 to S0-7

    task_id: str = ""
    strategy: str = "reactive"
    kernel_type: str = "react"
    scope: str = "main"
    steps: Seq[Item] = msgspec.field(default_factory=Seq[Item])
    results: Seq[Item] = msgspec.field(default_factory=Seq[Item])
    tools_used: frozenset[str] = frozenset()
    scratchpad: dict[str, str] = {}
    iteration: int = 0
    usage: Usage = NOTHING
    limits: Budget = UNBOUNDED
    digest: str = ""
    status: PassStatus = "thinking"
    ended: str = ""
    output: Any = None
    error: str = ""
    meta: dict[str, Any] = {}
    guidance: tuple[str, ...] = ()
    memory: tuple[Any, ...] = ()
    recalled: bool = False
    query: str = ""
    wrapping_up: bool = False
    bound: Exhausted | None = None
    balance: TenantBalance | None = None
    balance_at: Usage = NOTHING
    holds: bool = False
    marks: bool = False
    refused: int = 0
    compacted: int = 0
    summary: str = ""
    compaction: ContextCompacted | None = None
    prompt: tuple[int, int] = (0, 0)
    partial: str = ""
    # the current turn
    plan: Planned | None = None
    answering: str = ""
    calls: dict[str, CallState] = {}
    observed: int = 0
    acted: bool = False
    turn_ok: int = 0
    turn_bad: int = 0
    rejected: int = 0
    metered: bool = False
    asked: str = ""
    progressed: bool = False
    polled: bool = False
    phases_done: frozenset[int] = frozenset()
    effects: dict[str, Any] = {}
    # over turns
    failed_turns: int = 0
    since_progress: int = 0
    reflections: int = 0
    seen: Map[str, bool] = msgspec.field(default_factory=lambda: NO_ENTRIES)

    __repr__ = brief

    @property
    def tokens(self) -> int:
        """Input and output tokens of this pass."""
        return self.usage.total_tokens

    @property
    def cost(self) -> float:
        """Cost of this pass in USD, 0 if unknown."""
        return self.usage.cost_usd or 0.0

    @property
    def turn_failed(self) -> bool:
        """Whether the current turn had calls and none succeeded, or gave no valid plan."""
        if self.plan is None:
            return self.rejected > 0
        return self.turn_bad > 0 and self.turn_ok == 0

    @property
    def consecutive_failed_turns(self) -> int:
        """Failed turns in a row, the current one included."""
        return self.failed_turns + 1 if self.turn_failed else (0 if self.plan is not None else self.failed_turns)

    @property
    def turns_without_progress(self) -> int:
        """Turns since the last progress, the current one included."""  # c of DESIGN 6
        if self.progressed:
            return 0
        return self.since_progress + (0 if self.polled or self.iteration == 0 else 1)


class Ask(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A question to the user, or to the run's parent, that has no reply yet."""

    ask_id: str
    question: str
    expected: dict[str, Any] | None = None
    scope: str = ""
    to: Literal["user", "parent"] = "user"


class Goal(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A sub-goal."""

    goal_id: str
    goal: str


class Child(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A child run. `status` is `open` until its end is joined, then its outcome. `join`: the call `waits` waits for it, or else the whole
    pass `scope`. `held` are the sums of its bound, which count as used while it is open. `result` is its end, if no call waited for it, and `origin`
    says where what it returned came from. `freed` are calls that waited for it and returned before it had ended.
    """

    child: str
    agent: str
    goal: str
    join: bool = True
    status: str = "open"
    scope: str = ""
    waits: str = ""
    freed: tuple[str, ...] = ()
    spawned: SubagentSpawned = SubagentSpawned(child="", agent="", goal="")
    held: Usage = NOTHING
    cancel: str = ""
    result: SubagentJoined | None = None
    origin: Origin = NO_ORIGIN


class Intervention(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a person or process outside did to the run: `approved`, `denied`, or the tag of the event. `about` is the call or question.

    `via` is what the sending process reports about itself, `code` why it does not count (`answer_refused`).
    """

    kind: str
    by: str = ""
    about: str = ""
    seq: int = 0
    via: str = ""
    code: str = ""


class RunState(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """The whole run: who, what, how far, and what it waits for. `seq` and `digest` name the log prefix of which this is the fold.

    For a fork, `ancestors` are the runs that it comes from, the nearest first, and `inherited` is what they had used, which is not charged to
    it. `levels` are the side-effect levels in force, `lowered` those that tools declare and nobody has accepted yet. `fork_effects` is the rule
    for calls with side effects (`Forked`). `read_at` is the wall time of the last reading of `running_ms`. `unanswered` names the failed passes
    and values after which the strategy has recorded nothing. They continue when the run is opened again; the others stay as they are.
    """

    run_id: str
    goal_id: str = ""
    goal: str = ""
    agent: AgentSpec = AgentSpec(name="")
    host: Host = Host()
    parent: str = ""
    strategy: str = "reactive"
    variables: dict[str, Any] = {}
    seed_memory: tuple[Any, ...] = ()
    attachments: tuple[Any, ...] = ()
    output_schema: dict[str, Any] | None = None
    session: InSession | None = None
    digests: dict[str, str] = {}
    levels: dict[str, SideEffect] = {}
    lowered: dict[str, SideEffect] = {}
    budget: Budget = Budget()
    seq: int = 0
    digest: str = ""
    started_at: datetime | None = None
    updated_at: datetime | None = None
    status: RunStatus = "running"
    reason: str = ""
    dimension: str = ""
    limit: float | None = None
    used: float | None = None
    output: Any = None
    partial: str = ""
    error: str = ""
    usage: Usage = NOTHING
    running_ms: float = 0.0
    away_ms: float = 0.0
    read_at: datetime | None = None
    openings: int = 0
    calls_of: dict[str, int] = {}
    passes: dict[str, KernelState] = {}
    approvals: dict[str, ApprovalRequested] = {}
    asks: dict[str, Ask] = {}
    timers: dict[str, datetime] = {}
    children: dict[str, Child] = {}
    held: Usage = NOTHING
    delegated: Delegated | None = None
    queued: Queued | None = None
    goals: tuple[Goal, ...] = ()
    effects: Map[str, Any] = msgspec.field(default_factory=lambda: NO_ENTRIES)
    unanswered: tuple[str, ...] = ()
    cancel: str | None = None
    dead_letter: str = ""
    reserved: dict[str, Usage] = {}
    fork_edits: dict[str, Any] = {}
    fork_effects: str = ""
    ancestors: tuple[str, ...] = ()
    inherited: Usage = NOTHING
    memories: dict[str, str] = {}
    interventions: tuple[Intervention, ...] = ()

    __repr__ = brief

    @property
    def total_s(self) -> float:
        """Seconds since the run was started: monotonic within each opening, by the wall clock between them."""
        return (self.running_ms + self.away_ms) / 1000

    @property
    def terminal(self) -> bool:
        """Whether the run has finished."""
        return self.status in TERMINAL

    @property
    def open_passes(self) -> tuple[KernelState, ...]:
        """The passes that have not ended."""
        return tuple(p for p in self.passes.values() if p.status not in CLOSED)

    @property
    def in_doubt(self) -> tuple[str, ...]:
        """The calls in doubt: they may or may not have happened."""
        return tuple(c.call_id for p in self.passes.values() for c in p.calls.values() if c.status == "in_doubt")

    @property
    def counted(self) -> Usage:
        """What counts against the bounds: the usage, and what is reserved for open children."""
        return self.usage if self.held is NOTHING else self.usage.plus(self.held)

    def held_in(self, scope: str) -> Usage:
        """Return what is reserved for the open children of one pass."""
        return reduce(Usage.plus, [one.held for one in self.children.values() if one.status == "open" and one.scope == scope], NOTHING)

    def call(self, call_id: str) -> CallState | None:
        """Return the call of a current turn with this id."""
        state = self.passes.get(call_id.rsplit(".", 2)[0])
        return state.calls.get(call_id) if state else None


def transition(state: KernelState, **changes: Any) -> KernelState:
    """Return a new state with `changes`; a move to `failed` drops the output. Raise `IllegalEvent` for an illegal status."""  # row 1.3
    status = changes.get("status")
    if status is not None and status != state.status:
        if status not in LEGAL_PASS[state.status]:
            raise IllegalEvent(state.task_id, f"pass {state.scope!r} cannot go from {state.status!r} to {status!r}")
        if status == "failed":
            changes.setdefault("output", None)
    return msgspec.structs.replace(state, **changes)


def move(state: RunState, status: RunStatus, **changes: Any) -> RunState:
    """Return the run with another status; raise `IllegalEvent` where `LEGAL_RUN` does not allow the move."""
    if status != state.status and status not in LEGAL_RUN[state.status]:
        raise IllegalEvent(state.run_id, f"run {state.run_id!r} cannot go from {state.status!r} to {status!r}")
    return msgspec.structs.replace(state, status=status, **changes)


def describe(event: AnyEvent) -> str:
    """Return the event's name and its most telling field, for messages."""
    name = type(event).__name__
    for field in ("call", "ask_id", "timer_id", "child", "goal_id", "status", "iteration"):
        value = getattr(event, field, None)
        if value:
            return f"{name}({field}={value})"
    return name


def _copy(value: Any) -> Any:
    return json.loads(json.dumps(value)) if isinstance(value, (dict, list)) else value
