"""Tools: what is declared of one, what it is given, what came of it; meta-tools, credentials and capabilities."""

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


class ToolSpec(msgspec.Struct, metaclass=Explained, frozen=True, kw_only=True):
    """What is declared of a tool: read by planners, policies and the kernel. Times in seconds, sizes in bytes.

    `side_effect` is the level that policies use; `sensitive` names argument fields whose values stay out of the log; `volatile` marks
    polling tools, whose successful calls are neither progress nor stagnation; `trust` says what a later policy may believe of the output;
    `sinks` names the arguments where a wrong value would do harm (None: a policy goes by their names).
    `sandboxed`: what the tool does is confined by a sandbox; `confinement` says to a person who approves a call where what it starts runs.
    `credentials`: the secrets that it may ask its context for, by name.
    `server`: the MCP server whose tool it is.
    `writes_in`: the directory that it is confined to, from which it sees its paths; where it writes, no store of runs may lie there.
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

    __post_init__ = check_fields

    @property
    def read_only(self) -> bool:
        """Whether the tool changes nothing outside."""
        return self.side_effect in ("none", "read")


class ToolContext:
    """What a running tool may know and do.

    `idempotency_key` is the same over attempts, resume and takeover: hand it to services that accept one. `cancelled` is set when the run
    is cancelled or the deadline has passed; a tool that looks at it can stop in good order. `deadline` is in the event loop's time, which
    is `time.monotonic` (None: no limit); `remaining_s()` is what is left of it. `secret(name)` is the only way to a credential.
    `models` is the run's gateway: a model that a tool asks through it is recorded, priced and bounded like those of the planner (None: there is
    none). `attachments` are those of the run.
    """

    __slots__ = (
        "_attachments",
        "_key",
        "_models",
        "_progress",
        "_results",
        "_secrets",
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
    ) -> None:
        self._results, self._models, self._attachments = results, models, attachments
        self.run_id, self.call_id, self.tool, self.host = run_id, call_id, tool, host
        self._key, self.attempt, self.deadline = idempotency_key, attempt, deadline
        self.cancelled = Cancellation() if cancelled is None else cancelled
        self._progress, self._secrets = progress, secrets

    @property
    def idempotency_key(self) -> str:
        """The key under which a service that accepts one recognises this call."""
        return self._key if isinstance(self._key, str) else self._key()

    @property
    def models(self) -> Models | None:
        """The way to models for this attempt, for use in the event loop; None outside of a run."""
        return None if self._models is None else self._models()

    @property
    def attachments(self) -> Sequence[Any]:
        """What was attached to the run, as a copy."""
        return self._attachments()

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


class Denied(msgspec.Struct, metaclass=Explained, frozen=True, kw_only=True):
    """A capability that a host may not use; `reason` is such as `missing_required_credential:github` (row K87)."""

    id: str
    reason: str


class Resolution(msgspec.Struct, metaclass=Explained, frozen=True, kw_only=True):
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
        """Ask the tool's `reconcile(key)` what became of an earlier attempt; None when it has none or does not know.

        The outcome's `kind` is then `ok`, `failed` (known failure) or `not_executed`.
        """
        ...


class Answer(msgspec.Struct, metaclass=Explained, frozen=True, kw_only=True):
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


class MetaTool(msgspec.Struct, metaclass=Explained, frozen=True, kw_only=True):
    """A tool that the kernel answers from state; offered to agents that list its name (`make_kernel(meta_tools=(...,))`, or as a tool).

    `handler(args, state, context)` is a pure function of arguments and state. `validate` returns the arguments checked, or raises
    `InvalidArguments`; without it the handler says what it cannot use.
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
        """Return the arguments checked."""
        return self.validate(args)

    async def run(self, args: dict[str, Any], context: ToolContext) -> ToolOutcome:
        """Refuse: a meta-tool never passes the tool seam."""
        return ToolOutcome(kind="failed", error_code="handler_error", message=f"{self.spec.name} is a meta-tool and is not run")

    async def settle(self, context: ToolContext) -> ToolOutcome | None:
        """Nothing is ever started, so nothing is in doubt."""
        return None


class ToolOutcome(msgspec.Struct, metaclass=Explained, frozen=True, kw_only=True):
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


def shown_tools(state: KernelState, specs: Sequence[ToolSpec], tools: Mapping[str, Any], agent: AgentSpec) -> tuple[ToolSpec, ...]:
    """Return which of the offered tools the planner is shown: in the last turn those that answer; with `discover_tools`, those it has found."""
    if state.wrapping_up:
        return tuple(spec for spec in specs if spec.ends_turn)
    if "discover_tools" not in tools:
        return tuple(specs)
    found = (*state.meta.get("meta_tools", {}).get("discovered", ()), *agent.required_tools)
    return tuple(s for s in specs if s.name in found or s.ends_turn or isinstance(tools[s.name], MetaTool))
