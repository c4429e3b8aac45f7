"""Every error that Detent raises, in one tree; a message says what, which, why and what to do next.

DetentError
├── ConfigError            a file, option or argument is wrong
│   ├── UnknownName        no such tool, agent, store, planner, ... (names the nearest one)
│   ├── UnknownModel       a model's name that no provider takes
│   └── BudgetRefused      a bound is zero, negative or above the engine's ceiling
├── RunError               about one run; carries `run_id`
│   ├── RunNotFound        no such run (or it belongs to another tenant)
│   ├── RunContextMismatch another agent, goal, host or kernel than the run was started with
│   ├── RunBusy            another worker holds the claim
│   │   └── SessionBusy    a run of the session is in progress, or another message came first
│   ├── RunErased          its content was erased, or that of a run that it was forked from
│   ├── NotAllowedNow      the command does not fit the run's status (approve twice, reopen a completed run, ...)
│   │   └── SessionWaiting the last run of the session waits for something other than a reply
│   ├── ToolsMissing       tools that the run needs are not registered
│   ├── Suspended          stopped advancing, the run has not ended, resumable
│   ├── Divergence         re-execution does not match the log
│   ├── IllegalEvent       a record cannot follow the log so far
│   ├── PassFailed         a pass of a strategy gave nothing
│   └── UnrecordedChange   a phase changed a kernel fact without an event
├── StoreError
│   ├── Conflict           another writer appended first
│   │   └── ClaimLost      another worker has taken the run over
│   ├── CancelWaits        a cancellation came before the intent of a call
│   ├── CorruptLog         stored bytes do not decode or their digest does not match
│   ├── NewerVersion       written by a newer Detent
│   ├── StoreBusy          locked for too long
│   └── StoreFull          no room
├── ItemNotFound           no memory item that the caller may see has this id
├── ItemConflict           a memory item cannot change like this: another content, or replaced already
├── ItemRefused            a memory item cannot be kept: too large, malformed, or outside of the caller's scopes
├── EffectFailed           a recorded value could not be made
├── PlannerFailed          a planner could not give a plan
│   ├── MalformedPlan      it answered, but not with a plan
│   └── ModelCallFailure   a model call gave no answer; `kind` says of which class the failure is
│       └── AccountClosed  nobody may call the provider now; no request was sent
└── ToolRaised             raised by tools
    ├── NotExecuted        it did not happen: safe to try again
    ├── ToolFailed         it failed in a known way
    ├── InvalidArguments   the arguments do not fit; raised before anything runs
    └── FatalToolError     the run must end
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import msgspec

_make: Any = msgspec.StructMeta.__call__


class Explained(msgspec.StructMeta):
    """The metaclass of structs that programs create. An error about a missing or unknown argument names the class and the nearest name."""

    if not TYPE_CHECKING:  # type checkers read the fields

        def __call__(self, *args: Any, **fields: Any) -> Any:
            """Make one; raise `TypeError`."""
            try:
                return _make(self, *args, **fields)  # `super()` takes a fifth longer
            except TypeError:
                if problem := _misused(self, args, fields):
                    raise TypeError(problem) from None
                raise


def _misused(struct: Any, args: tuple[Any, ...], fields: dict[str, Any]) -> str:
    """Return what is wrong with the arguments for a struct; "" if they are not the problem."""
    name, known = struct.__name__, struct.__struct_fields__
    needed = [field.name for field in msgspec.structs.fields(struct) if field.required]
    positional: tuple[str, ...] = struct.__match_args__
    if args and not positional:
        return f"{name} takes no positional arguments; write {name}({(needed or known)[0]}=...)"
    needed = [field for field in needed if field not in positional[: len(args)]]
    missing = [repr(field) for field in needed if field not in fields]
    unknown = unknown_arguments(name, fields, known)
    return unknown or (f"{name} needs {', '.join(missing)}" if missing else "")


def unknown_arguments(what: str, given: Iterable[str], known: Sequence[str]) -> str:
    """Return the message about the first argument that `what` does not have, with the nearest one that it has; "" if it has all."""
    for name in given:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            return f"{what} has no argument {name!r}; " + (f"did you mean {near[0]!r}?" if near else f"it has: {', '.join(known)}")
    return ""


class DetentError(Exception):
    """The root; `code` is stable and machine-readable, `retryable` says whether the same call may succeed later."""

    code: ClassVar[str] = "detent_error"
    retryable: bool = False


class ConfigError(DetentError):
    code = "config_error"


class UnknownName(ConfigError):
    """`kind` has no entry `name`; the message lists the nearest of `known`. `where` is the file with the name, if it is in one."""

    code = "unknown_name"

    def __init__(self, kind: str, name: str, known: Iterable[str], *, where: str = "") -> None:
        self.kind, self.name, self.known = kind, name, sorted(known)
        near = difflib.get_close_matches(name, self.known, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(self.known) or 'none'}"
        super().__init__(f"{f'{where}: ' if where else ''}unknown {kind} {name!r}; {hint}")


class UnknownModel(ConfigError):
    """A model name without a provider, or with a provider that does not exist."""

    code = "unknown_model"


class BudgetRefused(ConfigError):
    code = "budget_refused"


class RunError(DetentError):
    code = "run_error"

    def __init__(self, run_id: str, message: str) -> None:
        self.run_id = run_id
        super().__init__(message)


class RunNotFound(RunError):
    code = "run_not_found"

    def __init__(self, run_id: str, where: str = "this store") -> None:
        super().__init__(run_id, f"no run {run_id!r} in {where}; `detent list` shows the runs that are there")


class RunContextMismatch(RunError):
    """`mismatches` is a list of {field, expected, received} (row K8)."""

    code = "run_context_mismatch"

    def __init__(self, run_id: str, mismatches: list[dict[str, Any]]) -> None:
        self.mismatches = mismatches
        said = "; ".join(f"{m['field']}: started with {m['expected']!r}, got {m['received']!r}" for m in mismatches)
        super().__init__(run_id, f"run {run_id!r} exists with another context ({said}); use another run id, or the original values")


class RunBusy(RunError):
    code = "run_busy"
    retryable = True

    def __init__(self, run_id: str, holder: str, *, doing: str = "", forked: str = "") -> None:
        self.holder = holder
        which = f"run {run_id!r}, which continues from run {forked!r}," if forked else f"run {run_id!r}"
        what = f"{which} is being {doing or 'advanced'} by {holder}; nothing was done here. Wait for it"
        super().__init__(run_id, what + ("" if doing else ", or cancel the run"))


class SessionBusy(RunBusy):
    """A run of the session is in progress, or another message came first. The message was not recorded."""

    code = "session_busy"

    def __init__(self, session: str, run_id: str, holder: str) -> None:
        self.session = session
        super().__init__(run_id, holder)
        said = (
            f"session {session!r} is busy: its run {run_id!r} is in progress ({holder}), and the message was not recorded. Send it again when that run "
            'has ended, or send it with rule="enqueue", "steer", "interrupt" or "rollback"'
        )
        self.args = (said,)


class RunErased(RunError):
    """The content of the run was erased, or that of the run `parent` from which it was forked."""

    code = "run_erased"

    def __init__(self, run_id: str, *, parent: str = "") -> None:
        said = f"run {run_id!r} was erased: its digest chain can still be verified, its content is gone"
        if parent:
            said = (
                f"run {run_id!r} continues from run {parent!r}, which was erased: what they share is gone, and it can neither be read nor resumed."
                f" `detent erase {run_id}` removes what it has of its own"
            )
        super().__init__(run_id, said)


class NotAllowedNow(RunError):
    """The run's current status does not allow the command. `reason_code` distinguishes the cases."""

    code = "not_allowed_now"

    def __init__(self, run_id: str, message: str, *, reason_code: str = "not_allowed_now") -> None:
        self.reason_code = reason_code
        super().__init__(run_id, message)


class SessionWaiting(NotAllowedNow):
    """The last run of the session waits for something other than its user's reply. `wait` is the run's status."""

    code = "session_waiting"

    def __init__(self, session: str, run_id: str, wait: str, message: str) -> None:
        self.session, self.wait = session, wait
        super().__init__(run_id, message, reason_code=wait)


class ToolsMissing(RunError):
    code = "tools_missing"

    def __init__(self, run_id: str, names: Iterable[str]) -> None:
        self.names = sorted(names)
        super().__init__(
            run_id,
            f"run {run_id!r} needs tools that are not registered here: {', '.join(self.names)}; pass them to Engine(tools=...) or Agent(tools=...), "
            "in a shell name them in detent.toml (tools)",
        )


class Suspended(RunError):
    """Advancing stopped (Ctrl-C, SIGTERM, a busy or full store, something that is held). `why` has the reason. The run can be resumed.

    `until`: nobody needs to try before this time (None: any time).
    """

    code = "suspended"
    retryable = True

    def __init__(self, run_id: str, why: str, *, until: datetime | None = None) -> None:
        self.why, self.until = why, until
        what = f"run {run_id!r} is suspended ({why}); nothing is lost: `detent resume {run_id}` continues it"
        super().__init__(run_id, what if run_id else f"suspended ({why}); nothing is lost: the same again continues it")


class Divergence(RunError):
    """Re-execution differs from the log at `sequence`."""

    code = "divergence"

    def __init__(self, run_id: str, sequence: int, expected: str, actual: str) -> None:
        self.sequence, self.expected, self.actual = sequence, expected, actual
        super().__init__(
            run_id, f"run {run_id!r} diverges at record {sequence}: the log has {expected}, this code gives {actual}; nothing was recorded"
        )


class IllegalEvent(RunError):
    code = "illegal_event"


class PassFailed(RunError):
    """A pass of a strategy failed; `passed` has the reason. If the strategy does not catch this error, the run ends with that reason.

    The text names no run, because a strategy may pass it to another pass, and a fork must produce the same text.
    """

    code = "pass_failed"

    def __init__(self, run_id: str, passed: Any) -> None:
        self.passed = passed
        super().__init__(run_id, f"pass {passed.scope!r} failed ({passed.reason}): {passed.error or 'no more is known'}")


class UnrecordedChange(RunError):
    code = "unrecorded_change"


class StoreError(DetentError):
    code = "store_error"


class Conflict(StoreError):
    code = "conflict"

    def __init__(self, run_id: str, expected: int, actual: int) -> None:
        self.run_id, self.expected, self.actual = run_id, expected, actual
        super().__init__(
            f"run {run_id!r} has {actual} records, not {expected}: another worker appended first; this worker stops, nothing was recorded"
        )


class ClaimLost(Conflict):
    code = "claim_lost"

    def __init__(self, run_id: str) -> None:
        self.run_id = run_id
        StoreError.__init__(
            self,
            f"run {run_id!r} was given to another worker while this one showed no sign of life, or gave it up; this worker stops, nothing was recorded",
        )


class CancelWaits(StoreError):
    code = "cancel_waits"

    def __init__(self, run_id: str) -> None:
        self.run_id = run_id
        super().__init__(f"a cancellation waits in the inbox of run {run_id!r}: the intent of a call was not recorded behind it")


class CorruptLog(StoreError):
    code = "corrupt_log"

    def __init__(self, run_id: str, sequence: int, why: str) -> None:
        self.run_id, self.sequence, self.why = run_id, sequence, why
        super().__init__(
            f"run {run_id!r} is damaged{f' at record {sequence}' if sequence else ''}: {why}; it is not resumed. "
            f"`detent verify {run_id}` shows how far it is sound, `detent export {run_id}` saves what can be read"
        )


class NewerVersion(StoreError):
    code = "newer_version"


class StoreBusy(StoreError):
    code = "store_busy"
    retryable = True


class StoreFull(StoreError):
    code = "store_full"
    retryable = True


class ItemNotFound(DetentError):
    """No memory item that the caller may see has this id."""

    code = "item_not_found"

    def __init__(self, item_id: str) -> None:
        self.item_id = item_id
        super().__init__(f"no memory item {item_id!r} is visible here; `detent memory list` shows the items")


class ItemConflict(DetentError):
    """A memory item or a schedule cannot change like this: its id has another content, or what it replaces was already replaced or forgotten."""

    code = "item_conflict"


class ItemRefused(DetentError):
    """A memory item cannot be kept: it is too large, malformed, or outside of the scopes that the caller may see."""

    code = "item_refused"


class EffectFailed(DetentError):
    """The function behind an `effect` raised; the message has its exception. After a crash and in a replay it is raised again."""

    code = "effect_failed"


class PlannerFailed(DetentError):
    """There is no plan. `reason` is the reason with which the run ends (one of `settle.REASONS`).

    With `context_overflow`, the prompt had `tokens`, and `window` would have fit; both are 0 if they are not known.
    """

    code = "planner_error"

    def __init__(self, message: str, *, reason: str = "planner_error", tokens: int = 0, window: int = 0) -> None:
        self.reason, self.tokens, self.window = reason, tokens, window
        super().__init__(message)


class MalformedPlan(PlannerFailed):
    """The planner's answer is not a plan. `raw` is the answer, `usage` what it cost."""

    code = "malformed_plan"

    def __init__(self, problem: str, *, raw: str = "", usage: Any = None) -> None:
        self.problem, self.raw, self.usage = problem, raw, usage
        super().__init__(problem)


ModelFailureKind = Literal[
    "rate_limited", "timeout", "connection", "server", "auth", "unknown_model", "quota", "refused", "content_filter", "context_overflow",
    "truncated", "empty", "malformed", "queued", "bad_request",
]  # fmt: skip
RETRYABLE_KINDS: tuple[str, ...] = ("rate_limited", "timeout", "connection", "server")
_REASON_OF_KIND = {
    "refused": "model_refused", "content_filter": "model_refused", "context_overflow": "context_overflow", "malformed": "malformed_plan",
}  # fmt: skip


class ModelCallFailure(PlannerFailed):
    """A model call gave no usable answer. `kind` is the class of the failure, `retry_after_s` the wait that the provider asked for, `usage` the cost.

    `provider_code` is the provider's own code, if it has one. `left_s` is the rest of the time for the whole request (None: no limit). No
    further attempt begins after it.
    """

    code = "model_call_failure"

    def __init__(
        self,
        message: str,
        *,
        kind: ModelFailureKind,
        retry_after_s: float | None = None,
        usage: Any = None,
        provider_code: str = "",
        left_s: float | None = None,
    ) -> None:
        self.kind, self.retry_after_s, self.usage, self.provider_code, self.left_s = kind, retry_after_s, usage, provider_code, left_s
        self.retryable = kind in RETRYABLE_KINDS
        super().__init__(message, reason=_REASON_OF_KIND.get(kind, "planner_error"))


class AccountClosed(ModelCallFailure):
    """The account of a model's provider is closed or paused: no request was sent. `until`: nobody needs to try before this time."""

    code = "account_closed"

    def __init__(self, message: str, *, until: datetime, retry_after_s: float | None = None) -> None:
        super().__init__(message, kind="rate_limited", retry_after_s=retry_after_s)
        self.retryable, self.until = False, until


class ToolRaised(DetentError):
    """The root of what a tool may raise; `error_code` becomes the observation's code, `details` its data."""

    code = "tool_raised"
    default_error_code: ClassVar[str] = "handler_error"

    def __init__(self, message: str, *, error_code: str | None = None, details: dict[str, Any] | None = None) -> None:
        self.error_code = error_code or self.default_error_code
        self.details = details
        super().__init__(message)


class NotExecuted(ToolRaised):
    """Raise it in a tool when the effect did not happen. The call may then be tried again, whatever the tool."""

    code = "not_executed"
    default_error_code = "not_executed"


class ToolFailed(ToolRaised):
    """Raise it in a tool for a known failure. The planner sees it, and nothing is in doubt."""

    code = "tool_failed"


class InvalidArguments(ToolRaised):
    code = "invalid_arguments"
    default_error_code = "schema_validation_failed"


class FatalToolError(ToolRaised):
    """Raise it in a tool when the run must end at once."""

    code = "fatal_tool_error"
    default_error_code = "fatal_tool_error"
