"""What can happen in a run: a closed tagged union of facts in the past tense.

Every event here has a case in `fold.evolve`; `INPUTS` are those that come from outside (a person, a clock, another run), the rest is
what the kernel decides or observes. Fields ending in `_ms` are measurements: replay takes them from the log and does not compare them.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal, cast, final

import msgspec

from detent.core.actions import Abstain, AnyAction, FinalAnswer, ToolCall, snake, type_tag
from detent.core.agent import AgentSpec, Host
from detent.core.budget import NOTHING, UNBOUNDED, Budget, Usage

Raw = msgspec.Raw
NO_RESULT = Raw()
"""Stands where there is no result; false, and left out of the JSON."""
SideEffect = Literal["none", "read", "write", "destructive"]
Trust = Literal["trusted", "untrusted"]
"""What a tool declares of its output: whether what it says may be believed like the user's own words."""
Decision = Literal["allow", "deny", "stop", "require_approval"]


class Event(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False, tag_field=type_tag, tag=snake):
    """The root of all events."""


class ToolError(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """Why a call failed: a stable `code` (row K80 and DESIGN 11), a message for the model and for people, and data."""

    code: str
    message: str
    details: dict[str, Any] | None = None


class ArtifactRef(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """What is stored apart, a result that was too large (its observation has only a preview) or a file that a model made: key (SHA-256) and size."""

    key: str
    size_bytes: int
    media_type: str = "application/json"


# Run ------------------------------------------------------------------------------------------------------------------------


class RunStarted(Event, frozen=True, kw_only=True):
    """The run was opened; `digests` holds those of tool schemas, policy and kernel at this moment.

    `policy` is what the engine's policy is made of, where it is data and not the plain tiers; a replay judges by it again. It is left out where
    `redact` matches something in it.

    `declared`: by name, what MCP servers declared of the tools that the run was offered, as the fields of a `ToolSpec` that differ from its
    defaults. A re-execution reads it here, and starts no server.
    """

    goal: str
    agent: AgentSpec
    budget: Budget
    host: Host = Host()
    variables: dict[str, Any] = {}
    strategy: str = "reactive"
    strategy_version: int = 1
    parent: str = ""
    seed_memory: tuple[Any, ...] = ()
    attachments: tuple[Any, ...] = ()
    output_schema: dict[str, Any] | None = None
    digests: dict[str, str] = {}
    declared: dict[str, Any] = {}
    levels: dict[str, SideEffect] = {}
    policy: dict[str, Any] = {}


class RunResumed(Event, frozen=True, kw_only=True):
    """A worker took the run up again; `changed` names what differs in code since it was taken up last, `digests` is what it has now.

    `declared` has those of them that are of MCP servers, `policy` the engine's policy as `RunStarted` has it, if it is another one.

    Calls of a tool that changed and that have not begun are decided again, and what people approved of them is void. `levels` hold from
    here on: those of new tools, and raised ones. `lowered`: a tool is declared with a lower level now; the stricter one stays until a
    person accepts that (`LevelsAccepted`).
    `stopped`: it was stopped in good order before anything came of that, and why. This record is then the second about the same taking up.
    """

    worker: str = ""
    running_ms: float = 0.0
    changed: tuple[str, ...] = ()
    digests: dict[str, str] = {}
    levels: dict[str, SideEffect] = {}
    lowered: dict[str, SideEffect] = {}
    stopped: str = ""
    declared: dict[str, Any] = {}
    policy: dict[str, Any] = {}


class LevelsAccepted(Event, frozen=True, kw_only=True):
    """A person accepts that tools have a lower side-effect level than the run was held to: these hold from here on."""

    levels: dict[str, SideEffect]
    by: str
    via: str = ""


class RunReopened(Event, frozen=True, kw_only=True):
    """A failed or stopped run was opened again: consecutive counters are cleared, usage is kept.

    `repeats`: failed passes continue that the strategy had dealt with, too, as in the logs of 0.1.0.
    """

    by: str = ""
    why: str = ""
    budget: Budget | None = None
    via: str = ""
    repeats: bool = True


class RunWaiting(Event, frozen=True, kw_only=True):
    """No pass can move; `status` says what the run waits for."""

    status: str
    running_ms: float = 0.0


class RunFinished(Event, frozen=True, kw_only=True):
    """The one exit of an opening: status and reason of the closed tables, and the calls that are still in doubt.

    `traceback` says which of the tracebacks that are kept with the run the error comes from, counted from 1; 0: none.
    """

    status: Literal["completed", "failed", "stopped"]
    reason: str
    dimension: str = ""
    limit: float | None = None
    used: float | None = None
    output: Any = None
    partial: str = ""
    error: str = ""
    in_doubt: tuple[str, ...] = ()
    traceback: int = 0


class DeadLettered(Event, frozen=True, kw_only=True):
    """Workers gave up on the run; it waits for an operator."""

    why: str
    attempts: int = 0


class Forked(Event, frozen=True, kw_only=True):
    """The run was branched from record `sequence` of `parent`, whose digest is `digest`; its first record.

    What comes after is folded onto what the parent had come to there, changed by `edits`: parts of the agent by name, `goal`, `budget`,
    `variables`, `results` by call id, `replies` by the id of the question. `effects` says what becomes of a call that is not read-only:
    `dry_run` answers it with the recorded outcome of an equal call, else with a stub; `reuse` with the recorded outcome, else it is
    executed; `redo` executes it. `repeats`: see `RunReopened`.
    """

    parent: str
    sequence: int
    digest: str
    edits: dict[str, Any] = {}
    effects: Literal["dry_run", "reuse", "redo"] = "dry_run"
    repeats: bool = True


class Erased(Event, frozen=True, kw_only=True):
    """The content of the run was removed; the chain of hashes stays."""

    by: str = ""
    why: str = ""


class BudgetChanged(Event, frozen=True, kw_only=True):
    """The bounds of the run were changed from outside."""

    budget: Budget
    by: str = ""
    via: str = ""


# Turn and pass ----------------------------------------------------------------------------------------------------------------


class PassStarted(Event, frozen=True, kw_only=True):
    """A kernel began to run inside a strategy; `key` is its scope, `digest` covers kernel, limits and input.

    `model`, `planner` and `settings` are those that the strategy gave this pass alone.
    `holds`: an answer does not end the pass by itself; it is checked first, and accepted (`PassFinished`) or not (`AnswerObjected`).
    `marks`: the pass runs beside others, and records where it found that the run is cancelled (an `EffectRecorded` of the phase -3).
    """

    key: str
    kernel: str
    limits: Budget = UNBOUNDED
    digest: str = ""
    input: str = ""
    meta: dict[str, Any] = {}
    model: str = ""
    planner: str = ""
    settings: dict[str, Any] = {}
    holds: bool = False
    marks: bool = False


class PassFinished(Event, frozen=True, kw_only=True):
    """The pass ended with this status and output; `dimension`, `limit` and `used` name the bound of its own that it reached."""

    status: Literal["done", "failed"]
    reason: str = ""
    output: Any = None
    error: str = ""
    dimension: str = ""
    limit: float | None = None
    used: float | None = None


class StrategySwitched(Event, frozen=True, kw_only=True):
    """Another strategy took the run over."""

    old: str
    new: str
    why: str = ""


@final
class TurnStarted(Event, frozen=True, kw_only=True):
    """A turn of the kernel began; the only clock reading that bounds use. `wrap_up`: why it is the last, in which no work is done."""

    iteration: int
    running_ms: float = 0.0
    wrap_up: str = ""


class StateChanged(Event, frozen=True, kw_only=True):
    """Phase number `phase` of the kernel returned with these changes of `meta`, `scratchpad` and guidance."""

    phase: int
    meta: dict[str, Any] = {}
    scratchpad: dict[str, str] = {}
    guidance: tuple[str, ...] | None = None
    removed_meta: tuple[str, ...] = ()
    removed_scratchpad: tuple[str, ...] = ()


ASIDE = -2
"""The phase of an effect that stands beside what is re-executed, such as the run's title: a replay takes it as it is."""
TITLE = f"{ASIDE}:title:0"
"""Where the title stands among the effects of a run."""


STOOD = -3
"""The phase of what a pass beside others records when it finds that the run is cancelled: where it stood."""
CANCELLED = f"{STOOD}:cancelled:0"
"""Where that stands among the effects of its pass."""


class EffectRecorded(Event, frozen=True, kw_only=True):
    """A value that cannot be computed again (a clock, a random number, a call of `ask`) was recorded under its label.

    The value `{"effect_failed": "TimeoutError: ..."}` says what was raised instead of making one.
    """

    label: str
    occurrence: int = 0
    phase: int = -1
    value: Any = None
    usage: Usage = NOTHING


FAILED = "effect_failed"


def failure_of(value: Any) -> str | None:
    """Return what was raised instead of making the value of an effect, None where it was made."""
    return cast("dict[str, str]", value)[FAILED] if isinstance(value, dict) and cast("dict[str, Any]", value).keys() == {FAILED} else None


# Planning ---------------------------------------------------------------------------------------------------------------------


class ContextCompacted(Event, frozen=True, kw_only=True):
    """The first `items` transcript items are shown to the planner as `summary` from now on."""

    items: int
    summary: str
    usage: Usage = NOTHING


class MemoryRecalled(Event, frozen=True, kw_only=True):
    """Memory was searched; `items` are what the view holds until the next recall."""

    query: str
    items: tuple[Any, ...] = ()


class TenantBalance(Event, frozen=True, kw_only=True):
    """What the run's tenant had used in the current window, in all its runs, as the store said; the run's own use since then comes on top.

    `window` is `day` or `month`, `since` its first day in UTC. Only the bounds of `limits` that are set hold.
    """

    tenant: str
    window: str
    since: str
    limits: Budget
    used: Usage = NOTHING


class ModelCallStarted(Event, frozen=True, kw_only=True):
    """A model call is about to be made; the reservation is charged if a crash leaves it open.

    `call` is `scope.iteration.mN`, the same over attempts. Usage of a plan is charged with it only where no call with the purpose `plan`
    came before it. `held` is what other runs of the tenant had reserved at that moment; the call was given what they left.
    """

    model: str
    call: str = ""
    attempt: int = 1
    purpose: str = "plan"
    reserved: Usage = NOTHING
    held: Usage = NOTHING


class ModelCallFinished(Event, frozen=True, kw_only=True):
    """The model call `call` gave an answer; what it used is charged here and nowhere else."""

    call: str = ""
    model: str = ""
    usage: Usage = NOTHING
    request_id: str = ""
    finish: str = ""
    latency_ms: float = 0.0


class ModelCallFailed(Event, frozen=True, kw_only=True):
    """The model call `call` ended without an answer that can be used; `kind` is the class of the failure, `cancelled`, `abandoned` or `error`.

    `provider_code` is the provider's own word for it, such as "MALFORMED_FUNCTION_CALL", where it has one.
    """

    call: str = ""
    error: str
    kind: str = ""
    provider_code: str = ""
    usage: Usage = NOTHING
    latency_ms: float = 0.0


@final
class Planned(Event, frozen=True, kw_only=True):
    """The planner answered with one control action or with a batch of tool calls.

    `dropped` are calls that came beside a control action and are not run, `dropped_meta` the meta-tools among them; `embedded` is the call
    that a final answer consists of. `refused`: why the answer or abstention is not accepted yet; it goes to the planner, and the run goes on.
    `files` are what its model made, whatever the actions are.
    """

    actions: tuple[AnyAction, ...]
    text: str = ""
    thinking: str = ""
    usage: Usage = NOTHING
    model: str = ""
    latency_ms: float = 0.0
    provider_data: Any = None
    dropped: tuple[ToolCall, ...] = ()
    dropped_meta: tuple[str, ...] = ()
    embedded: ToolCall | None = None
    refused: str = ""
    files: tuple[ArtifactRef, ...] = ()


class PlanRejected(Event, frozen=True, kw_only=True):
    """What the planner answered is not a plan; attempt number `attempt` of the turn."""

    problem: str
    raw: str = ""
    attempt: int = 1
    usage: Usage = NOTHING
    model: str = ""
    latency_ms: float = 0.0


class Reflected(Event, frozen=True, kw_only=True):
    """The run stalled and the planner is told so; the allowance grows (DESIGN 6)."""

    message: str


class AnswerObjected(Event, frozen=True, kw_only=True):
    """An answer that was held does not count, and the planner is told `why`; `by` is the verifier, hook or phase that objects."""

    why: str
    by: str = ""


# Acting -----------------------------------------------------------------------------------------------------------------------


class CallHealed(Event, frozen=True, kw_only=True):
    """A call was repaired before validation: the tool and arguments that count from now on, and each repair made."""

    call: str
    tool: str
    args: dict[str, Any]
    repairs: tuple[str, ...] = ()


class GuardBlocked(Event, frozen=True, kw_only=True):
    """A guard refused the call; the reason goes to the planner."""

    call: str
    guard: str
    reason: str


@final
class PolicyDecided(Event, frozen=True, kw_only=True):
    """The policy decided on the call; recorded for every call that reaches it."""

    call: str
    decision: Decision
    rule: str = ""
    reason: str = ""
    sources: tuple[str, ...] = ()
    policy: str = ""
    facts: dict[str, Any] = {}


class ApprovalRequested(Event, frozen=True, kw_only=True):
    """`approvers` different people must approve exactly this call: `digest` is that of its arguments and of its tool's declaration.

    An answer carries it. `args_digest` is the digest of the arguments alone, "" in older logs, where `digest` is that. `rule` asked for it,
    `policy` is the version of the policy, `facts` what it showed for its decision; `sandbox` says where what the tool starts would run, ""
    where it starts nothing; `on_reject` says what a rejection does ("": as the agent says).
    """

    call: str
    tool: str
    digest: str
    reason: str = ""
    rule: str = ""
    facts: dict[str, Any] = {}
    sandbox: str = ""
    approvers: int = 1
    on_reject: Literal["", "observe", "stop"] = ""
    requested_at: datetime | None = None
    expires_at: datetime | None = None
    policy: str = ""
    args_digest: str = ""


class ApprovalResolved(Event, frozen=True, kw_only=True):
    """A person decided; once enough approved, the current policy decides again and the call runs as it was asked for.

    `by` is the name in its normal form, which is compared. `via` is what the process that sent the answer says about itself: the user and
    host of the operating system, and the program; nobody checks it.
    """

    call: str
    decision: Literal["approved", "denied"]
    by: str
    reason: str = ""
    via: str = ""
    signal: str = ""


class ApprovalEdited(Event, frozen=True, kw_only=True):
    """A person approved the call with other arguments; it is authorised again."""

    call: str
    args: dict[str, Any]
    digest: str
    by: str
    via: str = ""
    signal: str = ""


class ApprovalExpired(Event, frozen=True, kw_only=True):
    """Nobody decided in time."""

    call: str
    signal: str = ""


class AnswerRefused(Event, frozen=True, kw_only=True):
    """Something that came for the run from outside does not count and was dropped: `code` and `reason` say why.

    `kind` is that of the signal, `about` the call, question, timer or child run that it named. Of a run, the first 100 are recorded.
    """

    kind: str
    code: str
    reason: str
    about: str = ""
    by: str = ""
    via: str = ""
    signal: str = ""


@final
class ToolStarted(Event, frozen=True, kw_only=True):
    """Attempt number `attempt` of the call begins: durable before anything happens unless the tool only reads.

    The first attempt of a call that only reads has none where no other pass runs beside its own: nothing needs to be known of it before it
    ends. `untold`: the attempt before this one had none.

    `key` is the idempotency key, the same over attempts, resume, takeover and approval; `digest` is that of the frozen arguments;
    `cost_usd` is charged for the attempt whatever becomes of it.
    """

    call: str
    tool: str
    key: str
    digest: str
    attempt: int = 1
    side_effect: SideEffect = "destructive"
    idempotent: bool = False
    volatile: bool = False
    ends_turn: bool = False
    cost_usd: float | None = None
    trust: Trust = "untrusted"
    previous: ToolError | None = None
    untold: bool = False


@final
class ToolFinished(Event, frozen=True, kw_only=True):
    """The call has an outcome: a result, or an error.

    It was executed where a `ToolStarted` came before, or where `digest` (of the frozen arguments) stands here: a call that only reads.
    `source` says that it was not: in a fork, the outcome was `recorded` by a run that it was branched from, or is a `stub`. `meta`: it was
    a meta-tool that was refused; one that was answered has a `MetaToolAnswered`.
    """

    call: str
    digest: str = ""
    trust: Trust = "untrusted"
    result: Raw = NO_RESULT
    artifact: ArtifactRef | None = None
    error: ToolError | None = None
    fatal: bool = False
    source: Literal["", "recorded", "stub"] = ""
    meta: bool = False
    latency_ms: float = 0.0


class ToolInDoubt(Event, frozen=True, kw_only=True):
    """The call may or may not have happened; it is settled explicitly, never repeated silently."""

    call: str
    why: str
    latency_ms: float = 0.0


class ToolReconciled(Event, frozen=True, kw_only=True):
    """What became of a call in doubt: `again` (run it again with the same key), `happened` (with a result), `not_happened`, `told`.

    `attempt` is which of its attempts that is about (0: not said): the outcome of a worker that had lost the run says nothing of a later one.
    """

    call: str
    outcome: Literal["again", "happened", "not_happened", "told"]
    source: Literal["retry", "reconcile", "person", "late_worker", "agent"]
    result: Raw = NO_RESULT
    error: ToolError | None = None
    by: str = ""
    via: str = ""
    signal: str = ""
    attempt: int = 0


class MetaToolAnswered(Event, frozen=True, kw_only=True):
    """A meta-tool was answered from state; it is neither work nor progress.

    `notes` are kept in the pass (null removes one); `action` ends it. `code` is the error code where it is not `handler_error`.
    """

    call: str
    tool: str
    content: str
    success: bool = True
    code: str = ""
    notes: dict[str, Any] = {}
    action: FinalAnswer | Abstain | None = None


# Goals, notes, waits ----------------------------------------------------------------------------------------------------------


class GoalPushed(Event, frozen=True, kw_only=True):
    """A sub-goal was opened."""

    goal_id: str
    goal: str


class GoalCompleted(Event, frozen=True, kw_only=True):
    """A sub-goal was closed."""

    goal_id: str
    outcome: str = ""


class NoteWritten(Event, frozen=True, kw_only=True):
    """A text was put into the transcript for the planner."""

    text: str
    author: str = "kernel"


class UserAsked(Event, frozen=True, kw_only=True):
    """The run needs a reply from its user."""

    ask_id: str
    question: str
    expected: dict[str, Any] | None = None


class UserReplied(Event, frozen=True, kw_only=True):
    """The user replied."""

    ask_id: str
    reply: Any
    by: str = ""
    via: str = ""
    signal: str = ""


class ScheduleSet(Event, frozen=True, kw_only=True):
    """The run sleeps until `due`."""

    timer_id: str
    due: datetime


class ScheduleFired(Event, frozen=True, kw_only=True):
    """The time has come."""

    timer_id: str
    signal: str = ""


class CancelRequested(Event, frozen=True, kw_only=True):
    """Somebody wants the run to end."""

    by: str = ""
    why: str = ""
    via: str = ""
    signal: str = ""


# Children and memory ----------------------------------------------------------------------------------------------------------


class SubagentSpawned(Event, frozen=True, kw_only=True):
    """A child run was started."""

    child: str
    agent: str
    goal: str
    join: bool = True


class SubagentJoined(Event, frozen=True, kw_only=True):
    """A child run ended and gave this result."""

    child: str
    status: str
    output: Any = None
    usage: Usage = NOTHING
    signal: str = ""


class SubagentCancelled(Event, frozen=True, kw_only=True):
    """A child run was cancelled."""

    child: str
    why: str = ""


class MemoryProposed(Event, frozen=True, kw_only=True):
    """Something worth remembering was proposed."""

    item_id: str
    item: dict[str, Any]


class MemoryWritten(Event, frozen=True, kw_only=True):
    """A proposal was accepted."""

    item_id: str


class MemorySuperseded(Event, frozen=True, kw_only=True):
    """A memory was replaced by another."""

    item_id: str
    by_id: str
    why: str = ""


class MemoryTombstoned(Event, frozen=True, kw_only=True):
    """A memory was withdrawn."""

    item_id: str
    why: str = ""


AnyEvent = (
    RunStarted
    | RunResumed
    | LevelsAccepted
    | RunReopened
    | RunWaiting
    | RunFinished
    | DeadLettered
    | Forked
    | Erased
    | BudgetChanged
    | PassStarted
    | PassFinished
    | StrategySwitched
    | TurnStarted
    | StateChanged
    | EffectRecorded
    | ContextCompacted
    | MemoryRecalled
    | TenantBalance
    | ModelCallStarted
    | ModelCallFinished
    | ModelCallFailed
    | Planned
    | PlanRejected
    | Reflected
    | AnswerObjected
    | CallHealed
    | GuardBlocked
    | PolicyDecided
    | ApprovalRequested
    | ApprovalResolved
    | ApprovalEdited
    | ApprovalExpired
    | AnswerRefused
    | ToolStarted
    | ToolFinished
    | ToolInDoubt
    | ToolReconciled
    | MetaToolAnswered
    | GoalPushed
    | GoalCompleted
    | NoteWritten
    | UserAsked
    | UserReplied
    | ScheduleSet
    | ScheduleFired
    | CancelRequested
    | SubagentSpawned
    | SubagentJoined
    | SubagentCancelled
    | MemoryProposed
    | MemoryWritten
    | MemorySuperseded
    | MemoryTombstoned
)

INPUTS: tuple[type[Event], ...] = (
    RunResumed,
    LevelsAccepted,
    RunReopened,
    BudgetChanged,
    DeadLettered,
    Erased,
    ApprovalResolved,
    ApprovalEdited,
    ApprovalExpired,
    AnswerRefused,
    ToolReconciled,
    UserReplied,
    ScheduleFired,
    CancelRequested,
    SubagentJoined,
)
"""Events that come from outside the kernel; replay takes them from the log."""
