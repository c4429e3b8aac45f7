"""Tools: their declaration, their context and their outcome; also meta-tools, credentials and capabilities."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Literal, Protocol, cast

import msgspec

from detent.core.actions import Abstain, AskUser, FinalAnswer
from detent.core.agent import AgentSpec, Host
from detent.core.errors import ConfigError, Explained, ToolFailed
from detent.core.events import ArtifactRef, SideEffect
from detent.core.state import KernelState
from detent.ports.models import Models
from detent.ports.options import check_fields
from detent.ports.remembering import RunMemory
from detent.ports.tracing import traceparent


class ToolSpec(msgspec.Struct, metaclass=Explained, frozen=True, kw_only=True):
    """The declaration of a tool, for planners, policies and the kernel. Times are in seconds, sizes in bytes.

    - `side_effect`: the level that policies use
    - `sensitive`: argument fields whose values stay out of the log
    - `volatile`: marks polling tools, whose successful calls are neither progress nor stagnation
    - `trust`: how far a later policy may trust the output
    - `sinks`: the arguments where a wrong value would do harm (None: a policy guesses them from the names)
    - `sandboxed`: whether a sandbox confines the tool
    - `confinement`: tells a person who approves a call where the started program runs
    - `credentials`: the names of the secrets that it may read from its context
    - `server`: the MCP server that offers the tool
    - `delegates`: the tool starts children, waits for them or ends them; the kernel carries it out (`World.delegate`)
    - `importance`: how pages show its calls; those of low importance are folded, but never one that failed
    - `writes_in`: the directory that the tool is confined to and that its paths are relative to; a store of runs must not be in it if the tool writes
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
    confinement: str = ""
    credentials: tuple[str, ...] = ()
    server: str = ""
    writes_in: str = ""
    delegates: bool = False
    importance: Literal["normal", "low"] = "normal"

    __post_init__ = check_fields

    @property
    def read_only(self) -> bool:
        """Whether the tool changes nothing outside."""
        return self.side_effect in ("none", "read")


class ToolContext:
    """What a running tool may know and do.

    - `idempotency_key`: the same over attempts, resume and takeover; pass it to services that accept one
    - `cancelled`: set when the run is cancelled or the deadline has passed; a tool that checks it can stop cleanly
    - `deadline`: in the event loop's time, which is `time.monotonic` (None: no limit); `remaining_s()` returns the remaining time
    - `secret(name)`: the only way to a credential
    - `models`: the run's gateway; model calls through it are recorded, priced and limited like those of the planner (None: no gateway)
    - `attachments`: the attachments of the run
    - `memory`: the run's memory, for this call; None if its agent has none
    - `approved_by`: the people who approved this call
    - `traceparent`: tells a service that it is called by this call (W3C Trace Context); send it as the header of that name
    """

    __slots__ = (
        "_attachments",
        "_goal_id",
        "_key",
        "_memory",
        "_models",
        "_progress",
        "_results",
        "_secrets",
        "approved_by",
        "attempt",
        "call_id",
        "cancelled",
        "deadline",
        "host",
        "run_id",
        "tool",
    )

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
        models: Callable[[], Models] | None = None,
        attachments: Callable[[], Sequence[Any]] = tuple,
        memory: Callable[[ToolContext], RunMemory] | None = None,
        approved_by: tuple[str, ...] = (),
        goal_id: str = "",
    ) -> None:
        self._results, self._models, self._attachments = results, models, attachments
        self.run_id, self.call_id, self.tool, self.host = run_id, call_id, tool, host
        self._memory, self.approved_by = memory, approved_by
        self._key, self.attempt, self.deadline = idempotency_key, attempt, deadline
        self.cancelled = Cancellation() if cancelled is None else cancelled
        self._progress, self._secrets = progress, secrets
        self._goal_id = goal_id or run_id

    @property
    def traceparent(self) -> str:
        """The trace of the run, and this call in it, as others are told."""
        return traceparent(self.host, self._goal_id, f"{self.run_id}:{self.call_id}")

    @property
    def idempotency_key(self) -> str:
        """The key by which a service that accepts one recognises this call."""
        return self._key if isinstance(self._key, str) else self._key()

    @property
    def models(self) -> Models | None:
        """The way to models for this attempt, for use in the event loop; None outside of a run."""
        return None if self._models is None else self._models()

    @property
    def memory(self) -> RunMemory | None:
        """The memory that this call may write to, under the policies of the agent, the scope and the items; None without one."""
        return None if self._memory is None else self._memory(self)

    @property
    def attachments(self) -> Sequence[Any]:
        """A copy of the run's attachments."""
        return self._attachments()

    def progress(self, event: Any) -> None:
        """Report the call's progress to observers, at once and best effort; `event` is JSON."""
        if self._progress is not None:
            self._progress(event if self._secrets is None else self._secrets.data(event))

    async def result(self, call_id: str) -> Any:
        """Return the whole result of an earlier successful call of this run; raise `ToolFailed` (`result_not_found`)."""
        if self._results is None:
            raise ToolFailed(f"cannot read the result of {call_id!r}: this context has no results", error_code="result_not_found")
        return await self._results(call_id)

    def secret(self, name: str) -> str:
        """Return the credential `name`, which the tool declared (`credentials`) and the run's host was given (`credential_refs`).

        Use it at once and do not keep it: Detent replaces it in whatever the tool returns, raises or streams, but not in what the tool writes elsewhere.
        Raises `ToolFailed` (`credential_not_declared`, `credential_not_granted`, `credential_missing`, `credential_unusable`). May be
        called from any thread.
        """
        if self._secrets is None:
            raise ToolFailed(f"cannot read the secret {name!r}: this context has no secrets", error_code="credential_missing")
        return self._secrets.get(name, self.tool)

    def scrubbed(self, text: str) -> str:
        """Return `text` without the values of secrets that the tool has read; for text that does not go into the result."""
        return text if self._secrets is None else self._secrets.data(text)

    def remaining_s(self) -> float | None:
        """Seconds until the deadline, never below 0; None without a deadline. May be called from any thread."""
        return None if self.deadline is None else max(0.0, self.deadline - time.monotonic())


class Secrets(Protocol):
    """The secrets of one run. Its tools may read them; they are kept out of everything else. Each context has one."""

    def get(self, name: str, tool: ToolSpec) -> str:
        """Return the secret for this tool; raise `ToolFailed` if the tool may not have it."""
        ...

    def data(self, value: Any) -> Any:
        """Return JSON data in which the values of secrets that tools have read are replaced."""
        ...


class SecretSource(Protocol):
    """Where secrets are kept. Called from any thread when a tool needs a secret; must not block for long."""

    def names(self) -> Sequence[str]:
        """Return the names of the secrets that this source may have."""
        ...

    def get(self, name: str, host: Host) -> str | None:
        """Return the value for this host, which may differ by tenant; None if there is none."""
        ...


class Denied(msgspec.Struct, metaclass=Explained, frozen=True, kw_only=True):
    """A capability that a host may not use; `reason` is, for example, `missing_required_credential:github`."""  # row K87

    id: str
    reason: str


class Resolution(msgspec.Struct, metaclass=Explained, frozen=True, kw_only=True):
    """The resolved capabilities with their dependencies: "id@version" -> digest of the descriptor; the missing ones; the denied ones."""

    resolved: dict[str, str]
    missing: tuple[str, ...] = ()
    denied: tuple[Denied, ...] = ()


class Capabilities(Protocol):
    """Knows the available capabilities."""

    def resolve(self, wanted: Sequence[str], host: Host) -> Resolution:
        """Resolve "id" (the highest version) and "id@version" for a host."""
        ...


class Cancellation:
    """A flag that is set once and may be read from any thread; it also counts as set while its `parent` is."""

    __slots__ = ("_parent", "_why")

    def __init__(self, parent: Cancellation | None = None) -> None:
        self._why, self._parent = "", parent

    @property
    def why(self) -> str:
        """The first reason, "" while the flag is not set."""
        return self._why or (self._parent.why if self._parent is not None else "")

    def __bool__(self) -> bool:
        return bool(self._why or self._parent)

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
        """Ask the tool's `reconcile(key)` for the outcome of an earlier attempt; None if the tool has no such function or does not know.

        The outcome's `kind` is then `ok`, `failed` (known failure) or `not_executed`.
        """
        ...


class Answer(msgspec.Struct, metaclass=Explained, frozen=True, kw_only=True):
    """What a meta-tool answers to the planner.

    `notes` are kept in the pass (`state.meta["meta_tools"]`; None removes one). `action` ends the pass with an answer or an abstention, or
    asks the user. It is checked like the same action of the planner.
    """

    content: str
    success: bool = True
    notes: dict[str, Any] = {}
    action: FinalAnswer | Abstain | AskUser | None = None


def as_given(args: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments as they are."""
    return args


class MetaTool(msgspec.Struct, metaclass=Explained, frozen=True, kw_only=True):
    """A tool that the kernel answers from state. Agents that list its name may use it (`make_kernel(meta_tools=(...,))`, or as a tool).

    `handler(args, state, context)` is a pure function of arguments and state. `validate` returns the checked arguments, or raises
    `InvalidArguments`; without it the handler itself reports what it cannot use.
    """

    spec: ToolSpec
    handler: Callable[[dict[str, Any], KernelState, Any], Awaitable[Answer]]
    validate: Callable[[dict[str, Any]], dict[str, Any]] = as_given

    def __post_init__(self) -> None:
        if not isinstance(cast("Any", self.spec), ToolSpec) or not callable(self.handler):
            raise ConfigError(
                f"MetaTool: spec is {self.spec!r}, handler {self.handler!r}; expected a ToolSpec and a function (args, state, context)"
            )

    @property
    def name(self) -> str:
        """The name that agents list."""
        return self.spec.name

    def check(self, args: dict[str, Any]) -> dict[str, Any]:
        """Return the checked arguments."""
        return self.validate(args)

    async def run(self, args: dict[str, Any], context: ToolContext) -> ToolOutcome:
        """Raise: the kernel answers a meta-tool itself and never calls this."""
        return ToolOutcome(kind="failed", error_code="handler_error", message=f"{self.spec.name} is a meta-tool and is not run")

    async def settle(self, context: ToolContext) -> ToolOutcome | None:
        """Nothing is ever started, so nothing is in doubt."""
        return None


class ToolOutcome(msgspec.Struct, metaclass=Explained, frozen=True, kw_only=True):
    """How one attempt ended.

    `kind`: `ok` (with `result`: JSON bytes), `failed` (known failure), `not_executed` (it did not happen), `fatal` (the run must end),
    `in_doubt` (it may or may not have happened). `full` is the whole result if `result` is only a preview; the kernel sets `artifact`
    when it has stored it. `final`: do not try again, whatever the kind. `source`: nothing was executed; the outcome comes from the run that
    this one was forked from (`recorded`), or is a `stub`.
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


def shown_tools(state: KernelState, specs: Sequence[ToolSpec], tools: Mapping[str, Any], agent: AgentSpec) -> tuple[ToolSpec, ...]:
    """Return the offered tools that the planner is shown. In the last turn: those that answer. With `discover_tools`: those that it has found."""
    if state.wrapping_up:
        return tuple(spec for spec in specs if spec.ends_turn)
    if "discover_tools" not in tools:
        return tuple(specs)
    found = (*state.meta.get("meta_tools", {}).get("discovered", ()), *agent.required_tools)
    return tuple(s for s in specs if s.name in found or s.ends_turn or isinstance(tools[s.name], MetaTool))
