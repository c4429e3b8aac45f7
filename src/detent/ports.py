"""The seams: what the kernel needs from the world, as Protocols and the plain data that crosses them (DESIGN 7).

The kernel knows these and nothing behind them. Every Protocol has an in-process reference and a contract suite in
`detent.testing.conformance`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, Literal, Protocol, TypeVar, runtime_checkable

import msgspec

from detent.core.actions import Abstain, AnyAction, AskUser, FinalAnswer, ToolCall
from detent.core.agent import AgentSpec, Host
from detent.core.budget import NOTHING, Budget, Usage
from detent.core.errors import StoreError, ToolFailed
from detent.core.events import ArtifactRef, Decision, SideEffect
from detent.core.records import Record, RunHead
from detent.core.state import Item, KernelState, RunState

# Planning -------------------------------------------------------------------------------------------------------------------


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What a planner answers: one control action, or a batch of tool calls.

    `thinking` is kept apart from the answer; `provider_data` is what a provider needs back, stored and returned unchanged.
    """

    actions: tuple[AnyAction, ...]
    text: str = ""
    thinking: str = ""
    usage: Usage = NOTHING
    model: str = ""
    provider_data: Any = None


class ToolSpec(msgspec.Struct, frozen=True, kw_only=True):
    """What is declared of a tool: read by planners, policies and the kernel. Times in seconds, sizes in bytes.

    `side_effect` is the level that policies use; `sensitive` names argument fields whose values stay out of the log; `volatile` marks
    polling tools, whose successful calls are neither progress nor stagnation; `trust` says what a later policy may believe of the output;
    `sinks` names the arguments where a wrong value would do harm (None: a policy goes by their names).
    `sandboxed`: what the tool does is confined by a sandbox. `credentials`: the secrets that it may ask its context for, by name.
    """

    name: str
    description: str = ""
    input_schema: dict[str, Any] = msgspec.field(default_factory=dict[str, Any])
    side_effect: SideEffect = "destructive"
    scopes: tuple[str, ...] = ()
    timeout_s: float | None = 120.0
    retries: int = 0
    idempotent: bool = False
    concurrency_safe: bool = False
    volatile: bool = False
    result_schema: dict[str, Any] | None = None
    max_result_bytes: int = 65_536
    sensitive: tuple[str, ...] = ()
    sinks: tuple[str, ...] | None = None
    trust: Literal["trusted", "untrusted"] = "untrusted"
    cost_usd: float | None = None
    ends_turn: bool = False
    sandboxed: bool = False
    credentials: tuple[str, ...] = ()

    @property
    def read_only(self) -> bool:
        """Whether the tool changes nothing outside."""
        return self.side_effect in ("none", "read")


class ContextProfile(msgspec.Struct, frozen=True, kw_only=True):
    """Thresholds by model size. `window_tokens` is the model's context; characters count what one result may show inline."""

    tier: str = "mid"
    tool_result_max_chars: int = 1200
    preview_items: int = 5
    schema_detail: Literal["names", "names-and-types", "full"] = "full"
    temperature: float = 0.5
    window_tokens: int = 32_768


class ResultCompression(msgspec.Struct, frozen=True, kw_only=True):
    """How a large result is shown: at most `budget_chars`, the first `preview_items` of a list; the full value stays in the log."""

    budget_chars: int = 1200
    preview_items: int = 5
    auto_store: bool = True


class View(msgspec.Struct, frozen=True, kw_only=True):
    """What a planner sees, built anew for each plan. Nothing in it is shared with the run: changing it changes nothing.

    `transcript` items have `kind` (`user`, `model`, `tool`, `note`); a tool item has `call_id`, `tool`, `args`, `ok`, `content`, `error`.
    `results` are all tool items of the pass, never compacted. `await full(item)` gives the whole value of a tool item whose `content` is
    only a preview.
    """

    goal: str
    agent: AgentSpec
    task: str = ""
    iteration: int
    variables: dict[str, Any]
    transcript: Sequence[Item]
    results: Sequence[Item]
    tools: tuple[ToolSpec, ...]
    memory: tuple[Any, ...] = ()
    budget_remaining: Budget = Budget()
    scratchpad: Mapping[str, str] = msgspec.field(default_factory=dict[str, str])
    guidance: tuple[str, ...] = ()
    attachments: tuple[Any, ...] = ()
    output_schema: dict[str, Any] | None = None
    goals: tuple[tuple[str, str], ...] = ()
    host: Host = Host()
    run_id: str = ""
    scope: str = "main"
    attempt: int = 1
    small: bool = False
    profile: ContextProfile = ContextProfile()
    compression: ResultCompression = ResultCompression()
    full: Callable[[Item], Awaitable[Any]] | None = None
    models: Models | None = None


class ModelAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What one model call gave: `value` is the adapter's own; `model` the name that the provider reports.

    `finish` is why the model stopped: `stop`, `length`, `tool_call`, `content_filter` or `error`. An unknown `usage.cost_usd` is filled
    in by the gateway from the price list.
    """

    value: Any
    usage: Usage = NOTHING
    model: str = ""
    request_id: str = ""
    finish: str = ""


class Models(Protocol):
    """The run's gateway to models (DESIGN 7): every model call of a run passes through it and stands in the log."""

    async def call(
        self,
        model: str,
        send: Callable[[int | None], Awaitable[ModelAnswer]],
        *,
        provider: str = "",
        purpose: str = "plan",
        input_tokens: int = 0,
        max_output_tokens: int | None = None,
    ) -> ModelAnswer:
        """Make one model call and return its answer; retryable failures are tried again with backoff, each attempt on record.

        `send(limit)` makes one request; `limit` is the most output tokens that it may ask for: `max_output_tokens` clamped to what the
        run's budget leaves (None: no limit; where none is named and tokens or cost are bounded, a usual one). It raises `ModelCallFailure`
        for what the provider refused or broke. `input_tokens` is an estimate of the prompt's size, for the reservation. `provider` names
        what concurrency and rate limits are shared by (else what stands before the colon of `model`). `purpose` says what the call is for;
        usage that a plan reports is charged only where no call with the purpose `plan` came before it. Raises `ModelCallFailure` when
        attempts are used up or the failure is not retryable, `BoundReached` where no budget is left.
        """
        ...

    def emit(self, kind: Literal["text", "thinking"], content: str) -> None:
        """Stream a piece of what the model says to observers: at once, best effort, never stored."""
        ...


@runtime_checkable
class Planner(Protocol):
    """Proposes what to do next.

    Raise `MalformedPlan` for an answer that is no plan (it is retried twice) and `PlannerFailed` when there is none.
    """

    async def plan(self, view: View) -> Plan: ...


# Tools ----------------------------------------------------------------------------------------------------------------------


class ToolContext:
    """What a running tool may know and do.

    `idempotency_key` is the same over attempts, resume and takeover: hand it to services that accept one. `cancelled` is set when the run
    is cancelled or the deadline has passed; a tool that looks at it can stop in good order. `deadline` is in the event loop's time, which
    is `time.monotonic` (None: no limit); `remaining_s()` is what is left of it. `secret(name)` is the only way to a credential.
    """

    __slots__ = ("_key", "_progress", "_results", "_secrets", "attempt", "call_id", "cancelled", "deadline", "host", "run_id", "tool")

    def __init__(
        self,
        *,
        run_id: str,
        call_id: str,
        tool: ToolSpec,
        host: Host,
        idempotency_key: str | Callable[[], str],
        attempt: int = 1,
        deadline: float | None = None,
        cancelled: Cancellation | None = None,
        progress: Callable[[Any], None] | None = None,
        secrets: Secrets | None = None,
        results: Callable[[str], Awaitable[Any]] | None = None,
    ) -> None:
        self._results = results
        self.run_id, self.call_id, self.tool, self.host = run_id, call_id, tool, host
        self._key, self.attempt, self.deadline = idempotency_key, attempt, deadline
        self.cancelled = Cancellation() if cancelled is None else cancelled
        self._progress, self._secrets = progress, secrets

    @property
    def idempotency_key(self) -> str:
        """The key under which a service that accepts one recognises this call."""
        return self._key if isinstance(self._key, str) else self._key()

    def progress(self, event: Any) -> None:
        """Tell observers, at once and best effort, how far the call is; `event` is JSON."""
        if self._progress is not None:
            self._progress(event if self._secrets is None else self._secrets.data(event))

    async def result(self, call_id: str) -> Any:
        """Return the whole result of an earlier successful call of this run; raise `ToolFailed` (`result_not_found`)."""
        if self._results is None:
            raise ToolFailed(f"there are no results here to take {call_id!r} from", error_code="result_not_found")
        return await self._results(call_id)

    def secret(self, name: str) -> str:
        """Return the credential `name`, which the tool declared (`credentials`) and the run's host was given (`credential_refs`).

        Use it at once and keep it nowhere: what the tool returns, raises or streams has it replaced, what it writes elsewhere has not.
        Raises `ToolFailed` (`credential_not_declared`, `credential_not_granted`, `credential_missing`, `credential_unusable`). May be
        called from any thread.
        """
        if self._secrets is None:
            raise ToolFailed(f"there are no secrets here to take {name!r} from", error_code="credential_missing")
        return self._secrets.get(name, self.tool)

    def scrubbed(self, text: str) -> str:
        """Return `text` without the values of secrets that were given out; for what goes elsewhere than into the result."""
        return text if self._secrets is None else self._secrets.data(text)

    def remaining_s(self) -> float | None:
        """Seconds until the deadline, never below 0; None without one. May be called from any thread."""
        return None if self.deadline is None else max(0.0, self.deadline - time.monotonic())


class Secrets(Protocol):
    """The secrets of one run: given to its tools, kept out of all else. A context has one."""

    def get(self, name: str, tool: ToolSpec) -> str:
        """Return the secret for this tool; raise `ToolFailed` where it may not have it."""
        ...

    def data(self, value: Any) -> Any:
        """Return JSON data with the values of secrets that were given out replaced."""
        ...


class SecretSource(Protocol):
    """Where secrets are kept. Asked when a tool needs one, from any thread; must not block for long."""

    def names(self) -> Sequence[str]:
        """Return the names of the secrets that it may have."""
        ...

    def get(self, name: str, host: Host) -> str | None:
        """Return the value for this host, which may be another for each tenant; None when there is none."""
        ...


class Denied(msgspec.Struct, frozen=True, kw_only=True):
    """A capability that a host may not use; `reason` is such as `missing_required_credential:github` (row K87)."""

    id: str
    reason: str


class Resolution(msgspec.Struct, frozen=True, kw_only=True):
    """What wanted capabilities and their dependencies came to: "id@version" -> digest of the descriptor; what is missing; what is denied."""

    resolved: dict[str, str]
    missing: tuple[str, ...] = ()
    denied: tuple[Denied, ...] = ()


class Capabilities(Protocol):
    """Knows what an agent may rely on."""

    def resolve(self, wanted: Sequence[str], host: Host) -> Resolution:
        """Return what "id" (the highest version) and "id@version" come to for a host."""
        ...


class Cancellation:
    """A flag that is set once and may be read from any thread; it is also set while that of its `parent` is."""

    __slots__ = ("_parent", "_why")

    def __init__(self, parent: Cancellation | None = None) -> None:
        self._why, self._parent = "", parent

    @property
    def why(self) -> str:
        """The first reason that was given, "" while the flag is not set."""
        return self._why or (self._parent.why if self._parent is not None else "")

    def __bool__(self) -> bool:
        return bool(self._why) or bool(self._parent)

    def set(self, why: str) -> None:
        """Set the flag (not its parent's); the first reason stays."""
        self._why = self._why or why


class Tool(Protocol):
    """A tool: its declaration, the check of its arguments, and one attempt to run it."""

    @property
    def spec(self) -> ToolSpec: ...

    def check(self, args: dict[str, Any]) -> dict[str, Any]:
        """Return the arguments sanitised and validated, as plain JSON data; raise `InvalidArguments` (with an error code)."""
        ...

    async def run(self, args: dict[str, Any], context: ToolContext) -> ToolOutcome:
        """Make one attempt; never raises for what the tool did, only `asyncio.CancelledError`."""
        ...

    async def settle(self, context: ToolContext) -> ToolOutcome | None:
        """Ask the tool's `reconcile(key)` what became of an earlier attempt; None when it has none or does not know.

        The outcome's `kind` is then `ok`, `failed` (known failure) or `not_executed`.
        """
        ...


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What a meta-tool says to the planner.

    `notes` are kept in the pass (`state.meta["meta_tools"]`; None removes one). `action` ends the pass with an answer or an abstention, or
    asks the user: it is held to the same as when the planner asks for it itself.
    """

    content: str
    success: bool = True
    notes: dict[str, Any] = {}
    action: FinalAnswer | Abstain | AskUser | None = None


def as_given(args: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments as they are."""
    return args


class MetaTool(msgspec.Struct, frozen=True, kw_only=True):
    """A tool that the kernel answers from state; offered to agents that list its name (`make_kernel(meta_tools=(...,))`, or as a tool).

    `handler(args, state, context)` is a pure function of arguments and state. `validate` returns the arguments checked, or raises
    `InvalidArguments`; without it the handler says what it cannot use.
    """

    spec: ToolSpec
    handler: Callable[[dict[str, Any], KernelState, Any], Awaitable[Answer]]
    validate: Callable[[dict[str, Any]], dict[str, Any]] = as_given

    @property
    def name(self) -> str:
        """The name that agents list."""
        return self.spec.name

    def check(self, args: dict[str, Any]) -> dict[str, Any]:
        """Return the arguments checked."""
        return self.validate(args)

    async def run(self, args: dict[str, Any], context: ToolContext) -> ToolOutcome:
        """Refuse: a meta-tool never passes the tool seam."""
        return ToolOutcome(kind="failed", error_code="handler_error", message=f"{self.spec.name} is a meta-tool and is not run")

    async def settle(self, context: ToolContext) -> ToolOutcome | None:
        """Nothing is ever started, so nothing is in doubt."""
        return None


class ToolOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """How one attempt ended.

    `kind`: `ok` (with `result`: JSON bytes), `failed` (known failure), `not_executed` (it did not happen), `fatal` (the run must end),
    `in_doubt` (nobody knows). `full` is the whole result where `result` is only a preview; the kernel sets `artifact`
    when it has stored it. `final`: not to be tried again whatever its kind. `source`: nothing was executed, the outcome is one that a run
    has on record that this one was branched from (`recorded`), or a `stub`.
    """

    kind: Literal["ok", "failed", "not_executed", "fatal", "in_doubt"]
    result: bytes = b"null"
    full: bytes | None = None
    artifact: ArtifactRef | None = None
    final: bool = False
    source: Literal["", "recorded", "stub"] = ""
    error_code: str = ""
    message: str = ""
    details: dict[str, Any] | None = None
    latency_ms: float = 0.0


class Toolbox(Protocol):
    """The tools that an engine knows, by name."""

    def get(self, name: str) -> Tool:
        """Return the tool; raise `UnknownName`."""
        ...

    def names(self) -> Sequence[str]: ...


# Governance -----------------------------------------------------------------------------------------------------------------


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """A call that is about to be decided: its arguments are validated, frozen and digested."""

    call_id: str
    tool: ToolSpec
    args: dict[str, Any]
    digest: str
    provenance: Literal["planner", "text", "program"] = "planner"


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """What a policy decided, by which rule, and why (row K26).

    Of a request for approval: `approvers` is how many different people must approve, `expires_s` how long it stands, `on_reject` what a
    rejection does ("": as the agent says).
    """

    decision: Decision
    rule: str = ""
    reason: str = ""
    sources: tuple[str, ...] = ()
    approvers: int = 1
    expires_s: float | None = None
    on_reject: Literal["", "observe", "stop"] = ""
    facts: dict[str, Any] = {}


class Policy(Protocol):
    """Decides on calls. Pure: the same call and state give the same verdict. `version` is recorded with every decision."""

    version: str

    def decide(self, call: Call, state: RunState) -> Verdict: ...

    def may_ask(self, tool: ToolSpec) -> bool:
        """Return whether some call of this tool may need approval."""
        ...


def offered(policy: Policy, tool: ToolSpec, state: RunState) -> bool:
    """Return whether the planner is shown the tool: not where the policy has a method `offers(tool, state)` and that says no.

    A policy says no only for a tool of which it would deny every call.
    """
    offers: Callable[[ToolSpec, RunState], bool] | None = getattr(policy, "offers", None)
    try:
        return True if offers is None else bool(offers(tool, state))
    except Exception:  # noqa: BLE001 - foreign code; `decide`, whose failure denies, has the last word
        return True


class Block(msgspec.Struct, frozen=True):
    """A guard's refusal."""

    reason: str


Guard = Callable[[Call, KernelState, RunState], "Block | None"]
"""A synchronous check of one call: None allows, `Block(reason)` refuses; the first block wins (row S1-4)."""


# Strategies -------------------------------------------------------------------------------------------------------------------


class Branch(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One pass as a strategy asks for it. What is not said is as the agent and the run have it.

    `task` is what the pass is to do in words ("": the run's goal), `instructions` who works on it, `kernel` the name of a kernel, `limits`
    bounds below the run's own, `tools` the names of the tools that it may use (() for none), `guards` names of guards beside the run's,
    `guidance` what the planner is told in every turn, `output_schema` what the answer must satisfy ({}: nothing), `small` whether the small
    model will do, `meta` the strategy's own data. With `calls` no planner is asked: the pass carries these calls out as one batch and is
    `done` when all of them succeeded, without an output; its `results` are theirs, in this order.
    """

    label: str
    task: str = ""
    instructions: str | None = None
    kernel: str = ""
    limits: Budget = Budget()
    tools: tuple[str, ...] | None = None
    guards: tuple[str, ...] = ()
    guidance: tuple[str, ...] = ()
    output_schema: dict[str, Any] | None = None
    small: bool = False
    meta: dict[str, Any] = {}
    calls: tuple[ToolCall, ...] = ()


class Passed(msgspec.Struct, frozen=True, kw_only=True):
    """What came of a pass: `done` with an output, or `failed` with the reason (`core.settle.REASONS`), an error and the best text so far.

    `text` is what the planner said beside its last calls, `results` are the observations of the pass.
    """

    label: str
    scope: str
    status: Literal["done", "failed"]
    reason: str
    output: Any = None
    error: str = ""
    partial: str = ""
    text: str = ""
    usage: Usage = NOTHING
    tools_used: frozenset[str] = frozenset()
    results: Sequence[Item] = ()
    bound: Any = None


OptionsT = TypeVar("OptionsT", bound=msgspec.Struct)


class StrategyRun(Protocol):
    """What a strategy works with: passes and recorded values, memoised by parent scope, label and occurrence (DESIGN 6).

    A strategy reads nothing else that may differ the next time: no clock, no random source, no environment.
    """

    @property
    def goal(self) -> str: ...

    @property
    def agent(self) -> AgentSpec: ...

    @property
    def variables(self) -> dict[str, Any]: ...

    @property
    def output_schema(self) -> dict[str, Any] | None: ...

    @property
    def tools(self) -> tuple[ToolSpec, ...]: ...

    @property
    def budget_remaining(self) -> Budget: ...

    async def kernel(self, label: str, **options: Any) -> Passed:
        """Run one pass; `options` are the fields of `Branch`. A pass that has ended is not run again."""
        ...

    def options(self, kind: type[OptionsT]) -> OptionsT:
        """Return the agent's `strategy_options` as a `kind`; raise `ConfigError` naming the option that does not fit."""
        ...

    async def ask(
        self, label: str, prompt: str, schema: dict[str, Any] | None = None, *, instructions: str | None = None, small: bool = True
    ) -> Any:
        """Make one model call (`small`: the small model's, where there is one) and return its answer; raise `PassFailed`."""
        ...

    async def full(self, item: Item) -> Any:
        """Return the whole value of a tool item, also where its `content` is only a preview."""
        ...

    async def parallel(self, *branches: Branch) -> tuple[Passed, ...]:
        """Run passes side by side, each with an equal share of what is left of the budget; return their results in order."""
        ...

    async def effect(self, label: str, make: Callable[[], Awaitable[Any]]) -> Any:
        """Return the recorded JSON value, or make and record it."""
        ...

    async def now(self) -> float: ...

    async def random(self) -> float: ...

    async def sleep(self, seconds: float) -> None: ...

    async def switch(self, name: str, why: str = "") -> None:
        """Put on record that the strategy `name` takes over."""
        ...


Strategy = Callable[[StrategyRun], Awaitable[Any]]
"""An async function that decides which passes run; it returns a `Passed`, or the run's output. See `strategy`."""


def strategy(*, options: type[msgspec.Struct] | None = None, version: int = 1) -> Callable[[Strategy], Strategy]:
    """Declare what options a strategy takes (none) and its version (1), which stands in the log; a decorator.

    `options` is a struct whose fields all have defaults: agents give them as `strategy_options`, and they are checked before a run starts.
    """

    def declared(function: Strategy) -> Strategy:
        vars(function).update(options=options, version=version)
        return function

    return declared


# Log ------------------------------------------------------------------------------------------------------------------------


class Signal(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A message from outside to a run, kept in its inbox until the record that takes it up is committed. Posting an id twice is one signal."""

    id: str
    kind: Literal["approval", "reply", "cancel", "timer", "child", "reconcile"]
    by: str = ""
    payload: dict[str, Any] = {}


class Spent(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a tenant has used on a `day` (such as 2026-03-01, UTC), or since then; `tokens` are those of input and output."""

    tenant: str
    day: str
    runs: int = 0
    model_calls: int = 0
    tool_calls: int = 0
    tokens: int = 0
    cost_usd: float = 0.0

    def plus(self, other: Spent) -> Spent:
        """Return the sum, for the tenant and day of this one."""
        return Spent(
            tenant=self.tenant,
            day=self.day,
            runs=self.runs + other.runs,
            model_calls=self.model_calls + other.model_calls,
            tool_calls=self.tool_calls + other.tool_calls,
            tokens=self.tokens + other.tokens,
            cost_usd=self.cost_usd + other.cost_usd,
        )


class RunQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Which runs to list, newest first. `after` is the run id that ended the previous page."""

    status: tuple[str, ...] = ()
    tenant: str | None = None
    goal_id: str | None = None
    agent: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    limit: int | None = None
    after: str | None = None


class EventStore(Protocol):
    """Keeps logs as bytes, and what goes with them: claims, inboxes, blobs, snapshots.

    Records are opaque lines (see `core.records`); their order and number are the store's promise. Errors: `Conflict`, `RunBusy`,
    `RunNotFound`, `StoreBusy`, `StoreFull`, `CorruptLog` (a stored line that cannot be read).
    """

    url: str

    async def open(self) -> None: ...

    async def close(self) -> None: ...

    async def append(
        self,
        run_id: str,
        expected_seq: int,
        records: Sequence[bytes],
        *,
        head: RunHead,
        durable: bool = False,
        consumed: Sequence[str] = (),
        spent: Spent | None = None,
    ) -> None:
        """Add `records` after `expected_seq` records, and drop the signals `consumed`, in one transaction.

        In the same transaction `spent` is added to what its tenant has used on its day. `head` is the run's listing entry from now on.
        `durable` survives power loss, otherwise process death. Raise `Conflict` when the run does not have exactly `expected_seq` records
        (0 creates it).
        """
        ...

    async def spent(self, tenant: str, since: str) -> Spent:
        """Return what the appends of all runs have added for the tenant on the day `since` (UTC) and later; it is there also for deleted runs."""
        ...

    async def read(self, run_id: str, *, after: int = 0, limit: int | None = None) -> list[bytes]:
        """Return the lines of records `after + 1`, `after + 2`, ...; empty for an unknown run."""
        ...

    async def head(self, run_id: str) -> RunHead | None: ...

    async def list_runs(self, query: RunQuery) -> list[RunHead]: ...

    async def claim(self, run_id: str) -> None:
        """Take the right to advance the run for this store instance; raise `RunBusy` while another living holder has it.

        It is free when the former holder released it, is dead (same host), or its lease expired (other hosts). Idempotent for the holder.
        The run need not exist yet.
        """
        ...

    async def release(self, run_id: str) -> None:
        """Give the claim up; nothing happens if it is not held."""
        ...

    async def renew(self) -> list[str]:
        """Extend the leases of all claims held here; return the runs whose claim was lost."""
        ...

    async def post(self, run_id: str, signal: Signal) -> None:
        """Put a signal into the run's inbox; raise `RunNotFound` for an unknown run."""
        ...

    async def signals(self, run_ids: Sequence[str]) -> dict[str, list[Signal]]:
        """Return the waiting signals of these runs, oldest first; runs without any are left out. Cheap: it is polled."""
        ...

    async def put_blob(self, run_id: str, key: str, data: bytes) -> None:
        """Keep `data` under (run, key), durably; writing the same key again replaces it."""
        ...

    async def get_blob(self, run_id: str, key: str) -> bytes | None: ...

    async def list_blobs(self, run_id: str) -> list[str]: ...

    async def delete_blob(self, run_id: str, key: str) -> None: ...

    async def put_snapshot(self, run_id: str, seq: int, data: bytes) -> None:
        """Keep one snapshot a run, the latest; an optimisation that may be lost."""
        ...

    async def get_snapshot(self, run_id: str) -> tuple[int, bytes] | None: ...

    async def erase(self, run_id: str, tombstone: Callable[[bytes], bytes], *, head: RunHead) -> None:
        """Replace every line by `tombstone(line)` and remove blobs, snapshot and inbox, in one transaction."""
        ...

    async def delete(self, run_id: str) -> None:
        """Remove the run with all that belongs to it; raise `RunNotFound`."""
        ...

    async def gc(self) -> int:
        """Give unused space back and drop leftovers of dead holders; return the bytes freed, as far as known."""
        ...


@runtime_checkable
class Wakes(Protocol):
    """What a store may have beside the `EventStore`: it wakes who waits for news. Without it, and beside it, the store is polled."""

    async def changed(self, timeout_s: float, *, records: bool = False) -> None:
        """Return when a signal was posted by anyone (`records`: when anything was recorded), at the latest after so many seconds.

        A hint: it may come without cause or be missed. Raise `StoreError` where it cannot wait.
        """
        ...


async def wait_for_news(store: EventStore, timeout_s: float, *, records: bool = False) -> None:
    """Wait until the store says that there may be news, at the latest so many seconds; one that cannot say so lets the time pass."""
    if isinstance(store, Wakes):
        try:
            await store.changed(timeout_s, records=records)
            return
        except StoreError:  # polling goes on, and says what is wrong
            pass
    await asyncio.sleep(timeout_s)


# Observation, time, ids -------------------------------------------------------------------------------------------------------


class Chunk(msgspec.Struct, frozen=True, kw_only=True):
    """Something streamed while it happens: immediate, best effort, never stored.

    `text` and `thinking` of a model, `progress` of a call as the tool tells it. `tool` when an attempt of a call begins (content: `tool`,
    `args`, `attempt`; a reading call's start stands in no record), `model` when a model is asked (`model`, `attempt`, `purpose`; the record
    of that is often committed with the answer).
    """

    kind: Literal["text", "thinking", "model", "tool", "progress"]
    run_id: str
    goal_id: str
    agent: str
    scope: str
    iteration: int
    content: Any
    call_id: str = ""
    parent: str = ""


class Observer(Protocol):
    """Is told what happened. Called in order, after the commit of each record; it can never fail a run."""

    def on_record(self, record: Record, state: RunState) -> Any:
        """Take a committed record and the state after it; may be a coroutine function."""
        ...

    def on_chunk(self, chunk: Chunk) -> None:
        """Take a streamed chunk."""
        ...


def _nothing(*_: Any) -> None:
    return None


class Skip(msgspec.Struct, frozen=True):
    """What a hook before a phase answers to leave the phase out; the calls that `act` would have run are refused for this reason."""

    reason: str


class Abort(msgspec.Struct, frozen=True):
    """What a hook before or after a phase answers to stop the run (`policy_stopped`)."""

    reason: str


PhaseHook = Callable[[KernelState], Any]
"""A plain or coroutine function of a copy of the state; it returns None, `Skip` (before a phase only) or `Abort`."""


class KernelHooks(msgspec.Struct, frozen=True, kw_only=True):
    """The lifecycle hooks of a kernel; each does nothing unless given, and what it raises is reported and fails no run.

    on_thought      a plan was recorded                      (state, text)
    on_action       an attempt of a tool call begins         (state, tool, call id)
    on_observation  a call has an outcome                    (state, result as JSON text or error, success, call)
    on_done         the pass ended well                      (state)
    on_error        the pass ended badly                     (state, error)

    `state` is the `KernelState` after the record. A hook is a plain or a coroutine function.

    `before` and `after` are hooks of phases by name (`think`, `act`, those of one's own kernel). What they decide stands in the log: a
    resumed turn or a replay does not ask again. They see copies: arguments can be refused and never changed. Where the hook before `act`
    fails, the calls are refused.
    """

    on_thought: Callable[..., Any] = _nothing
    on_action: Callable[..., Any] = _nothing
    on_observation: Callable[..., Any] = _nothing
    on_done: Callable[..., Any] = _nothing
    on_error: Callable[..., Any] = _nothing
    before: Mapping[str, PhaseHook] = {}
    after: Mapping[str, PhaseHook] = {}


noop_hooks = KernelHooks()
"""Hooks that do nothing (row S0-14)."""


class Clock(Protocol):
    """Time. `now` is UTC; `monotonic` is in seconds."""

    def now(self) -> datetime: ...

    def monotonic(self) -> float: ...


class Ids(Protocol):
    """Random names: run ids, salts."""

    def token(self, length: int) -> str:
        """Return `length` random characters of [a-z0-9]."""
        ...


# Embeddings -------------------------------------------------------------------------------------------------------------------


class Embeddings(msgspec.Struct, frozen=True, kw_only=True):
    """Vectors for texts, in the order of the texts, all of one length; `model` is what made them, which must match to compare them."""

    vectors: tuple[tuple[float, ...], ...]
    model: str
    usage: Usage = NOTHING


class Embedder(Protocol):
    """Turns texts into vectors whose closeness is closeness of meaning. `model` names what makes them."""

    @property
    def model(self) -> str: ...

    async def embed(
        self, texts: Sequence[str], *, purpose: Literal["document", "query"] = "document", models: Models | None = None
    ) -> Embeddings:
        """Return one vector a text; none for no texts. `purpose`: what is stored, or what is searched with.

        With a run's gateway in `models` the call stands in the log and is charged there (`usage` is then NOTHING). Raises
        `ModelCallFailure`.
        """
        ...
