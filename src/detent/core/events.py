"""What can happen in a run: a closed tagged union of facts in the past tense.

Every event has a case in `fold.evolve`. `INPUTS` are the events from outside (a person, a clock, another run); the kernel decides or observes
the others. Fields ending in `_ms` are measurements: replay takes them from the log and does not compare them.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal, cast, final

import msgspec

from detent.core.actions import Abstain, AnyAction, FinalAnswer, ToolCall, snake, type_tag
from detent.core.agent import AgentSpec, Host
from detent.core.budget import NOTHING, UNBOUNDED, Budget, Usage
from detent.core.errors import Explained

Raw = msgspec.Raw
NO_RESULT = Raw()
"""Marks a missing result. It is falsy and left out of the JSON."""
SideEffect = Literal["none", "read", "write", "destructive"]
Trust = Literal["trusted", "untrusted"]
OnParentEnd = Literal["cancel", "wait", "leave"]
"""What happens to an open child when its parent ends: it is cancelled, the parent's end waits for it, or it becomes a root of its own."""
"""What a tool declares about its output: whether it can be trusted like the user's own words."""
Decision = Literal["allow", "deny", "stop", "require_approval"]


class Event(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False, tag_field=type_tag, tag=snake):
    """The root of all events."""


class ToolError(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """Why a call failed: a stable `code`, a message for the model and for people, and data."""  # row K80 and DESIGN 11

    code: str
    message: str
    details: dict[str, Any] | None = None


class ArtifactRef(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """A separately stored large result (its observation has only a preview) or file that a model made: key (SHA-256) and size."""

    key: str
    size_bytes: int
    media_type: str = "application/json"


class Hop(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """What carried content from one run into a later one: a memory item or an entry of a conversation (`item`), and the record that wrote it."""

    item: str
    run_id: str = ""
    call_id: str = ""
    sequence: int = 0
    digest: str = ""


class Source(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """One source of some content, in the run where it was seen first.

    `label` is that of the provenance policy. `origin` is the call, or `goal`, `agent`, ... of run `run_id`; a call has its `tool` and `said`, the
    beginning of its arguments. `via` is how the content came from there, the last hop first. `whole`: the source proves all of the content; else it
    proves `values`, parts of it.
    """

    label: str
    origin: str = ""
    run_id: str = ""
    tool: str = ""
    said: str = ""
    via: tuple[Hop, ...] = ()
    whole: bool = False
    values: tuple[str, ...] = ()


class Origin(msgspec.Struct, metaclass=Explained, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """Where the content of a memory item or of an entry of a conversation came from, and the record of the run that wrote it.

    `labels` are those of its sources, as the provenance policy names them; `sources` also name those in earlier runs. `trusted` is false unless none
    of them is untrusted. `items` are the ids of the items that the content was derived from, `person` the principal of the run. `seal` is a digest of
    the content and of this: content that was changed later is untrusted.

    `also` are names of sources that `sources` has no room for: a name as it is, or `KIND#` and digests of names that begin with `KIND:`. `more`: not
    even these are all.
    """

    run_id: str = ""
    sequence: int = 0
    digest: str = ""
    call_id: str = ""
    labels: tuple[str, ...] = ()
    trusted: bool = False
    items: tuple[str, ...] = ()
    person: str = ""
    sources: tuple[Source, ...] = ()
    also: tuple[str, ...] = ()
    more: bool = False
    seal: str = ""


NO_ORIGIN = Origin()
"""The origin of content of which nothing is known."""


# Run ------------------------------------------------------------------------------------------------------------------------


class InSession(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """The place of a run in its session: message number `number` of session `id`.

    `before` is the run of the message before, `sequence` and `digest` name its last record when this run began. `conversation` is what this run
    knows of the earlier messages: an artifact of this run, so the run is complete by itself. `by` is who sent the message, as the sender said.
    """

    id: str
    number: int
    by: str = ""
    message_id: str = ""
    before: str = ""
    sequence: int = 0
    digest: str = ""
    conversation: ArtifactRef | None = None


class Delegated(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """How a run became a child: the `root` of its tree, its parent's call, and the parent's record before the child was spawned (`sequence`, `digest`).

    `depth` counts from the root (1: its child), `path` has the agents from the root to this run. `policies` are those of the runs above, which are
    asked before the child's own. `origin` says where the goal came from. `conversation` is what the
    child sees of its parent's messages. `left`: the parent has ended and left the run, which is a root of its own now.
    """

    root: str
    call: str
    sequence: int
    digest: str
    depth: int = 1
    path: tuple[str, ...] = ()
    policies: tuple[dict[str, Any], ...] = ()
    origin: Origin = NO_ORIGIN
    left: bool = False
    conversation: ArtifactRef | None = None


class Queued(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """The place of a submitted run among those that wait for a worker.

    Keys take turns, `weight` runs a turn; `fair_key` "" is the tenant. `priority` orders the runs of one key, lower values first. Not before `not_before`.
    `request` is the digest of the request that submitted it, "" if there was none.
    """

    fair_key: str = ""
    priority: int = 0
    weight: int = 1
    dedupe_key: str = ""
    not_before: datetime | None = None
    request: str = ""


class RunStarted(Event, frozen=True, kw_only=True):
    """The run was started. `digests` has the digests of tool schemas, policy and kernel at this moment.

    `policy` is the engine's policy if it is data other than the plain tiers; a replay decides by it again. It is left out if `redact` matches
    something in it.

    `declared` has, by tool name, what MCP servers declared about the offered tools: the fields of a `ToolSpec` that differ from its defaults. A
    re-execution reads them here and starts no server.
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
    session: InSession | None = None
    delegated: Delegated | None = None
    queued: Queued | None = None


class RunResumed(Event, frozen=True, kw_only=True):
    """A worker resumed the run. `changed` names what differs in the code since the run was last opened; `digests` has the current digests.

    `declared` has the declarations of MCP tools, `policy` the engine's policy as in `RunStarted`, if they changed.

    Calls of a changed tool that have not begun are decided again, and their approvals are void. `levels` hold from here on: those of new tools
    and raised ones. `lowered`: tools that now declare a lower level; the stricter one stays until a person accepts it (`LevelsAccepted`).
    `stopped`: why the run was suspended again before it made progress. This record is then the second one of the same resumption.
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
    """A person accepted lower side-effect levels of tools. They hold from here on."""

    levels: dict[str, SideEffect]
    by: str
    via: str = ""


class RunReopened(Event, frozen=True, kw_only=True):
    """A failed or stopped run was opened again. Consecutive counters are cleared, usage is kept.

    `repeats`: failed passes continue even if the strategy had already dealt with them, as in logs of 0.1.0. `operation`: the id of the operation over
    many runs, or of the request, that opened it.
    """

    by: str = ""
    why: str = ""
    budget: Budget | None = None
    via: str = ""
    repeats: bool = True
    operation: str = ""


class RunWaiting(Event, frozen=True, kw_only=True):
    """No pass can move; `status` says what the run waits for."""

    status: str
    running_ms: float = 0.0


class RunFinished(Event, frozen=True, kw_only=True):
    """The one exit of an opening: status and reason from the closed tables, and the calls that are still in doubt.

    `traceback` is the number of the error's traceback among those kept with the run, counted from 1; 0: none.
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
    """The first record of a fork: the run continues from record `sequence` of `parent`, whose digest is `digest`.

    The following records are folded onto the parent's state there, changed by `edits`: parts of the agent by name, `goal`, `budget`,
    `variables`, `results` by call id, `replies` by the id of the question. `effects` is the rule for calls with side effects: `dry_run` answers
    with the recorded outcome of an equal call, otherwise with a stub; `reuse` answers with the recorded outcome, otherwise it executes the
    call; `redo` executes the call. `repeats`: see `RunReopened`. `by` made the fork; "" in older logs.
    """

    parent: str
    sequence: int
    digest: str
    edits: dict[str, Any] = {}
    effects: Literal["dry_run", "reuse", "redo"] = "dry_run"
    repeats: bool = True
    by: str = ""


class Erased(Event, frozen=True, kw_only=True):
    """The content of the run was removed. The chain of hashes stays."""

    by: str = ""
    why: str = ""


class BudgetChanged(Event, frozen=True, kw_only=True):
    """The bounds of the run were changed from outside. `request` is the id of the request that did it, if it had one."""

    budget: Budget
    by: str = ""
    via: str = ""
    request: str = ""


# Turn and pass ----------------------------------------------------------------------------------------------------------------


class PassStarted(Event, frozen=True, kw_only=True):
    """A kernel began to run inside a strategy; `key` is its scope, `digest` covers kernel, limits and input.

    `model`, `planner` and `settings` are the ones that the strategy chose for this pass only.
    `holds`: an answer does not end the pass. It is checked first, and accepted (`PassFinished`) or not (`AnswerObjected`).
    `marks`: the pass is a parallel one, and records its position when it finds that the run is cancelled (an `EffectRecorded` of the phase -3).
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
    """The pass ended with this status and output. `dimension`, `limit` and `used` describe the pass's own bound that it reached."""

    status: Literal["done", "failed"]
    reason: str = ""
    output: Any = None
    error: str = ""
    dimension: str = ""
    limit: float | None = None
    used: float | None = None


class StrategySwitched(Event, frozen=True, kw_only=True):
    """The run switched to another strategy."""

    old: str
    new: str
    why: str = ""


@final
class TurnStarted(Event, frozen=True, kw_only=True):
    """A turn of the kernel began. Its clock reading is the only one that bounds use. `wrap_up`: why this is the last turn, without work."""

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
"""The phase number of effects outside of re-execution, such as the run's title. A replay takes them from the log."""
TITLE = f"{ASIDE}:title:0"
"""The label of the title among the effects of a run."""


STOOD = -3
"""The phase number of the position that a parallel pass records when it finds that the run is cancelled."""
CANCELLED = f"{STOOD}:cancelled:0"
"""The label of that position among the effects of its pass."""


class EffectRecorded(Event, frozen=True, kw_only=True):
    """A value that cannot be computed again (a clock, a random number, a call of `ask`) was recorded under its label.

    The value `{"effect_failed": "TimeoutError: ..."}` is the exception that was raised instead.
    """

    label: str
    occurrence: int = 0
    phase: int = -1
    value: Any = None
    usage: Usage = NOTHING


FAILED = "effect_failed"


def failure_of(value: Any) -> str | None:
    """Return the exception recorded in place of an effect's value; None if there is a value."""
    return cast("dict[str, str]", value)[FAILED] if isinstance(value, dict) and cast("dict[str, Any]", value).keys() == {FAILED} else None


# Planning ---------------------------------------------------------------------------------------------------------------------


class ContextCompacted(Event, frozen=True, kw_only=True):
    """From now on the planner sees `summary` in place of the first `items` transcript items.

    The other fields belong to a run's own compaction. `compactor` names its last tier (`clear`, `clamp`, or the compactor that wrote the summary), ""
    for one that a phase recorded. Then the goal stays, and each record states everything that is in force: `kept` are the positions of earlier items
    that stay, `cleared` the calls whose results are shown as a handle, `cut` the bytes shown of a long item, by position (older logs: `clamped`, of a
    result, by call). The oldest `earlier` messages of the session's conversation are left out. `why` it was due (`tokens`, `turns`, `overflow`), when
    the transcript had `steps` items. `tokens_before` and `tokens_after` are estimates of the prompt, `window` is the model's context, lowered after a
    refused prompt. `failed` is the compactor's failure, `failures` counts those in a row. `idle` counts compactions in a row without a gain: they freed
    nothing, or the run only read again what the one before had dropped.
    """

    items: int
    summary: str
    usage: Usage = NOTHING
    compactor: str = ""
    why: str = ""
    kept: tuple[int, ...] = ()
    cleared: tuple[str, ...] = ()
    clamped: dict[str, int] = {}
    cut: dict[int, int] = {}
    earlier: int = 0
    steps: int = 0
    tokens_before: int = 0
    tokens_after: int = 0
    window: int = 0
    failed: str = ""
    failures: int = 0
    idle: int = 0


class MemoryRecalled(Event, frozen=True, kw_only=True):
    """A memory was searched before a plan, because the query had changed.

    With `memory`, the name of the engine's memory, `items` are those that the pass had not been shown yet: id, content, kind, scope, origin, score,
    reasons. They join the transcript and stay there. `as_of`: what held at that time was searched. `error`: the memory could not be searched. Without
    `memory` a phase recorded it, and the view shows `items` until the next recall.
    """

    query: str
    items: tuple[Any, ...] = ()
    memory: str = ""
    as_of: datetime | None = None
    error: str = ""


class TenantBalance(Event, frozen=True, kw_only=True):
    """What all runs of the tenant had used in the current window, as reported by the store. The run's own use since then is added to it.

    `window` is `day` or `month`, `since` its first day in UTC. Only the bounds set in `limits` hold.
    """

    tenant: str
    window: str
    since: str
    limits: Budget
    used: Usage = NOTHING


class ModelCallStarted(Event, frozen=True, kw_only=True):
    """A model call is about to begin. If a crash leaves it open, the reservation is charged.

    `call` is `scope.iteration.mN`, the same for all attempts. A plan's own usage is charged only if no call with the purpose `plan` came before
    it. `held` is what other runs of the tenant had reserved at that moment; this call could use the rest.
    """

    model: str
    call: str = ""
    attempt: int = 1
    purpose: str = "plan"
    reserved: Usage = NOTHING
    held: Usage = NOTHING


class ModelCallFinished(Event, frozen=True, kw_only=True):
    """The model call `call` gave an answer. Its usage is charged here and nowhere else."""

    call: str = ""
    model: str = ""
    usage: Usage = NOTHING
    request_id: str = ""
    finish: str = ""
    latency_ms: float = 0.0


class ModelCallFailed(Event, frozen=True, kw_only=True):
    """The model call `call` ended without a usable answer. `kind` is the class of the failure, `cancelled`, `abandoned` or `error`.

    `provider_code` is the provider's own code, such as "MALFORMED_FUNCTION_CALL", if it has one. `closed_until`: the provider asked for a pause, so
    its account was closed until then, for all workers of the store.
    """

    call: str = ""
    error: str
    kind: str = ""
    provider_code: str = ""
    closed_until: datetime | None = None
    usage: Usage = NOTHING
    latency_ms: float = 0.0


@final
class Planned(Event, frozen=True, kw_only=True):
    """The planner answered with one control action or with a batch of tool calls.

    `dropped` are calls beside a control action, which are not run; `dropped_meta` are the meta-tools among them. `embedded` is the call that a
    final answer consists of. `refused`: why the answer or abstention is not accepted yet; the planner sees it, and the run continues. `files`
    are files that the model made. `provenance`: whether a program that a model wrote made the calls.
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
    provenance: Literal["planner", "program"] = "planner"

    @property
    def wanted(self) -> tuple[ToolCall, ...]:
        """The calls that the turn makes: the embedded one, or the batch."""
        if self.embedded is not None:
            return (self.embedded,)
        return cast("tuple[ToolCall, ...]", self.actions) if isinstance(self.actions[0], ToolCall) else ()


class PlanRejected(Event, frozen=True, kw_only=True):
    """The planner's answer is not a plan. `attempt` counts the answers of the turn."""

    problem: str
    raw: str = ""
    attempt: int = 1
    usage: Usage = NOTHING
    model: str = ""
    latency_ms: float = 0.0


class Reflected(Event, frozen=True, kw_only=True):
    """The run stalled, and the planner is told so. It gets more turns."""  # DESIGN 6

    message: str


class AnswerObjected(Event, frozen=True, kw_only=True):
    """An answer was checked and refused. The planner is told `why`; `by` is the verifier, hook or phase that objected."""

    why: str
    by: str = ""


# Acting -----------------------------------------------------------------------------------------------------------------------


class CallHealed(Event, frozen=True, kw_only=True):
    """A call was repaired before validation. `tool` and `args` count from now on, and each repair is listed."""

    call: str
    tool: str
    args: dict[str, Any]
    repairs: tuple[str, ...] = ()


class GuardBlocked(Event, frozen=True, kw_only=True):
    """A guard refused the call. The planner sees the reason."""

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

    An answer must contain it. `args_digest` is the digest of the arguments alone ("" in older logs, where `digest` is that). `rule` is the rule
    that asks, `policy` the version of the policy, `facts` what its decision rests on. `sandbox` describes where a program started by the tool
    would run ("" if it starts none). `on_reject` is the effect of a rejection ("": the agent's setting).
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
    """A person decided. Once enough people have approved, the current policy decides again and the call runs as it was shown.

    `by` is the name in its normal form, which is compared. `via` is what the sending process reports about itself, unchecked: user and host of
    the operating system, and the program.
    """

    call: str
    decision: Literal["approved", "denied"]
    by: str
    reason: str = ""
    via: str = ""
    signal: str = ""


class ApprovalEdited(Event, frozen=True, kw_only=True):
    """A person approved the call with other arguments. It is authorised again."""

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
    """A signal from outside does not count and was dropped. `code` and `reason` say why.

    `kind` is the kind of the signal, `about` the call, question, timer or child run that it named. A run records the first 100.
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

    The first attempt of a reading call has no such record if no other pass runs in parallel. `untold`: the attempt before this one had none.

    `key` is the idempotency key, the same for attempts, resume, takeover and approval. `digest` is the digest of the frozen arguments.
    `cost_usd` is charged for the attempt whatever its outcome.
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

    The call was executed if it has a `ToolStarted`, or if `digest` (of the frozen arguments) is set here, as for a reading call. `source` means
    that a fork did not execute it: its outcome was `recorded` by an ancestor, or is a `stub`. `meta`: the call is a refused meta-tool (an
    answered one has a `MetaToolAnswered`).
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
    """The call may or may not have happened. It is settled explicitly, never repeated silently."""

    call: str
    why: str
    latency_ms: float = 0.0


class ToolReconciled(Event, frozen=True, kw_only=True):
    """How a call in doubt was settled: `again` (run it again with the same key), `happened` (with a result), `not_happened`, `told`.

    `attempt` is the attempt that this is about (0: unknown). The late outcome of a worker that had lost the run does not settle a later attempt.
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
    """A meta-tool was answered from state. It is neither work nor progress.

    `notes` are kept in the pass (null removes one). `action` ends the pass. `code` is the error code if it is not `handler_error`.
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
    """The run needs a reply from its user, or (`to`) from the run that started it. A person may answer that, too."""

    ask_id: str
    question: str
    expected: dict[str, Any] | None = None
    to: Literal["user", "parent"] = "user"


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
    """Somebody wants the run to end. `about` is `tree` if open children that would be waited for, or left, are to end too."""

    by: str = ""
    why: str = ""
    via: str = ""
    signal: str = ""
    about: Literal["", "tree"] = ""


# Children and memory ----------------------------------------------------------------------------------------------------------


class MessageReceived(Event, frozen=True, kw_only=True):
    """Somebody sent something to the run's session while the run was in progress, or after it; or its parent sent it something.

    `rule`: with `steer`, the run sees `text` as its user's words at the next turn; with `enqueue`, `interrupt` and `rollback`, it is the next run;
    `context` is put before the next message. `parent`: the run sees it as its parent's words, which its parent wrote in `call`; `ask_id` is the question
    that it answers, and `origin` says where the words came from.
    """

    rule: Literal["enqueue", "steer", "interrupt", "rollback", "context", "parent"]
    text: str
    message_id: str = ""
    attachments: tuple[Any, ...] = ()
    variables: dict[str, Any] = {}
    by: str = ""
    via: str = ""
    signal: str = ""
    call: str = ""
    ask_id: str = ""
    origin: Origin = NO_ORIGIN


class SessionEnded(Event, frozen=True, kw_only=True):
    """The run's session was ended after this run: it takes no further message."""

    by: str = ""
    via: str = ""


class ConversationErased(Event, frozen=True, kw_only=True):
    """The words of the earlier run `run` were erased from this run's conversation; `kept` is what is left of it."""

    run: str
    kept: ArtifactRef | None = None
    by: str = ""


class ConversationCompacted(Event, frozen=True, kw_only=True):
    """Before the first plan, a summary by `compactor` took the place of the `messages` oldest entries of the session's conversation.

    `kept` is the conversation from now on. `failed` says why the agent's own compactor did not write the summary.
    """

    kept: ArtifactRef
    messages: int
    compactor: str
    failed: str = ""


class SubagentSpawned(Event, frozen=True, kw_only=True):
    """A child run was decided on by `call`; it begins after this record is durable.

    `budget` is the child's bound. Its sums are `reserved` from what this run has left until the child is joined. `join`: the call waits for the child.
    `tools` and `scopes`: the child has no others of those that it could have (None: all of these).
    """

    child: str
    agent: str
    goal: str
    join: bool = True
    call: str = ""
    budget: Budget = Budget()
    reserved: Usage = NOTHING
    variables: dict[str, Any] = {}
    on_parent_end: OnParentEnd = "cancel"
    output_schema: dict[str, Any] | None = None
    tools: tuple[str, ...] | None = None
    scopes: tuple[str, ...] | None = None


class SubagentAwaited(Event, frozen=True, kw_only=True):
    """A call waits for a child run that was started before."""

    child: str
    call: str


class SubagentJoined(Event, frozen=True, kw_only=True):
    """A child run ended; its record `sequence` with `digest` says so. What it used replaces what was reserved for it.

    `outcome` is `completed`, `failed`, `cancelled`, `bound_reached`, or `lost`: it was given up, and nothing is given back. `call` is the call that
    waited for it and has this result, or error. `partial` is what the child had so far.
    """

    child: str
    status: str
    output: Any = None
    usage: Usage = NOTHING
    signal: str = ""
    outcome: str = ""
    reason: str = ""
    partial: str = ""
    call: str = ""
    calls_of: dict[str, int] = {}
    sequence: int = 0
    digest: str = ""
    artifact: ArtifactRef | None = None
    error: ToolError | None = None
    origin: Origin = NO_ORIGIN


class SubagentReleased(Event, frozen=True, kw_only=True):
    """The call `call` waits for its child no longer and returns `result`; the child continues.

    It took longer than `auto_background` of the call, or (`question`) it asks its parent something.
    """

    child: str
    call: str
    result: dict[str, Any]
    question: str = ""
    signal: str = ""


class SubagentMessaged(Event, frozen=True, kw_only=True):
    """The run told its child something by `call`. The child sees it at its next turn."""

    child: str
    text: str
    call: str


class SubagentCancelled(Event, frozen=True, kw_only=True):
    """A child run is to be cancelled. It stays open until its end is joined."""

    child: str
    why: str = ""
    call: str = ""


class LeftByParent(Event, frozen=True, kw_only=True):
    """The parent of this run has ended and left it: the run is a root of its own from now on, with what was reserved for it."""

    parent: str
    signal: str = ""


class MemoryProposed(Event, frozen=True, kw_only=True):
    """Something worth remembering was proposed to a memory: by `call`, or after the run's end. `refused`: the governor's reason why it is not kept.

    After the end, the last one has no item: it says how many were proposed, or why none was, and what the model used for it.
    """

    item_id: str
    item: dict[str, Any]
    memory: str = ""
    call: str = ""
    refused: str = ""
    usage: Usage = NOTHING


class MemoryWritten(Event, frozen=True, kw_only=True):
    """An item was written to a memory, by `call`."""

    item_id: str
    memory: str = ""
    call: str = ""


class MemorySuperseded(Event, frozen=True, kw_only=True):
    """A memory was replaced by another."""

    item_id: str
    by_id: str
    why: str = ""
    memory: str = ""
    call: str = ""


class MemoryTombstoned(Event, frozen=True, kw_only=True):
    """A memory was withdrawn."""

    item_id: str
    why: str = ""
    memory: str = ""
    call: str = ""


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
    | MessageReceived
    | SessionEnded
    | ConversationErased
    | ConversationCompacted
    | SubagentSpawned
    | SubagentAwaited
    | SubagentJoined
    | SubagentReleased
    | SubagentMessaged
    | SubagentCancelled
    | LeftByParent
    | MemoryProposed
    | MemoryWritten
    | MemorySuperseded
    | MemoryTombstoned
)

INPUTS: tuple[type[Event], ...] = (
    LeftByParent,
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
    SubagentReleased,
    MessageReceived,
    SessionEnded,
    ConversationErased,
)
"""Events that come from outside the kernel; replay takes them from the log."""
