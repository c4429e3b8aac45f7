"""Governance: policies, guards and their verdicts on calls. A verdict of foreign code is validated first; an invalid one denies the call."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any, Literal, Protocol, TypeVar

import msgspec

from detent.core.agent import AgentSpec
from detent.core.codec import digest_of
from detent.core.errors import Explained
from detent.core.events import ApprovalRequested, Decision
from detent.core.state import CallState, KernelState, RunState
from detent.ports.copies import Copier, copied, ours
from detent.ports.raised import raised_by
from detent.ports.tools import Tool, ToolSpec

T = TypeVar("T")


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """A call before its decision. Its arguments are validated, frozen and digested.

    `asks` is the reason why the tool wants a person's approval for it, whatever the policy allows. `conversation` has the earlier messages of the
    run's session.
    """

    call_id: str
    tool: ToolSpec
    args: dict[str, Any]
    digest: str
    provenance: Literal["planner", "text", "program"] = "planner"
    asks: str = ""
    conversation: Sequence[Any] = ()


class Verdict(msgspec.Struct, metaclass=Explained, frozen=True, kw_only=True):
    """What a policy decided, by which rule, and why.

    For a request for approval: `approvers` different people must approve, it is open for `expires_s` seconds, and `on_reject` is the effect
    of a rejection ("": the agent's setting).
    """  # row K26

    decision: Decision
    rule: str = ""
    reason: str = ""
    sources: tuple[str, ...] = ()
    approvers: int = 1
    expires_s: float | None = None
    on_reject: Literal["", "observe", "stop"] = ""
    facts: dict[str, Any] = {}


ASKED_BY_TOOL = "tool_asks"
"""The rule name for a call that the policy allows but whose tool asks for approval."""

LONGEST_S = 10 * 365 * 86_400
"""The longest time that a request for approval may be open, in seconds."""


class Policy(Protocol):
    """Decides on calls. Pure: the same call and state give the same verdict. `version` is recorded with every decision."""

    version: str

    def decide(self, call: Call, state: RunState) -> Verdict: ...

    def may_ask(self, tool: ToolSpec) -> bool:
        """Return whether some call of this tool may need approval."""
        ...


class PolicyOf(Protocol):
    """Returns the policy for the runs of an agent."""

    def __call__(self, spec: AgentSpec, above: Sequence[Mapping[str, Any]] = ()) -> Policy:
        """Return the policy. `above` has a link for each run above, the root's first: their policies decide too. Raise `ConfigError`."""
        ...

    def link(self, spec: AgentSpec, *, whole: bool = True) -> dict[str, Any]:
        """Return what the children of an agent's runs record of its policy: data as data (as far as `whole`), functions by name and digest."""
        ...


def shown_to(policy: Any, about: T, state: RunState) -> tuple[T, RunState]:
    """Return the call or tool and the state that a policy decides on. A policy of foreign code gets copies."""
    return (about, state) if ours(policy) else (copied(about), copied(state))


def data_of(policy: Any) -> dict[str, Any]:
    """Return the definition of a policy that is only data. {} if a function decides: data alone cannot repeat its decisions."""
    return getattr(policy, "data", {}) if ours(type(policy)) else {}


def offered(policy: Policy, tool: ToolSpec, state: RunState) -> bool:
    """Return whether the planner is shown the tool. A policy can hide it with a method `offers(tool, state)` that returns False.

    It should do so only for a tool whose every call it would deny.
    """
    offers: Callable[[ToolSpec, RunState], bool] | None = getattr(policy, "offers", None)
    try:
        return True if offers is None else bool(offers(*shown_to(policy, tool, state)))
    except Exception:  # noqa: BLE001 - foreign code; `decide`, whose failure denies, has the last word
        return True


class Block(msgspec.Struct, metaclass=Explained, frozen=True):
    """A guard's refusal."""

    reason: str


Guard = Callable[[Call, KernelState, RunState], Block | None]
"""A synchronous check of one call: None allows, `Block(reason)` refuses; the first block wins."""  # row S1-4


def guarding(guard: Guard) -> Guard:
    """Return the guard. One of foreign code is wrapped, so that it gets copies."""
    if ours(guard):
        return guard
    copier = Copier()

    def asked(call: Call, state: KernelState, run: RunState) -> Block | None:
        shown = copier.copied(run)
        return guard(copied(call), shown.passes.get(state.scope) or copied(state), shown)

    asked.__name__ = guard_name(guard)
    return asked


def guard_name(guard: Guard) -> str:
    """Return the name of a guard in the log."""
    return getattr(guard, "__name__", type(guard).__name__)


def blocked(guard: Guard, call: Call, state: KernelState, run: RunState) -> Block | None:
    """Return a guard's verdict on a call. A guard that raises or returns an invalid value blocks the call."""
    try:
        said: Any = guard(call, state, run)
    except Exception as error:  # noqa: BLE001 - foreign code: a guard that fails blocks
        return Block(f"guard failed: {raised_by(error, f'the guard {guard_name(guard)!r}')}")
    if said is None or (isinstance(said, Block) and isinstance(said.reason, str)):  # pyright: ignore[reportUnnecessaryIsInstance]
        return said
    return Block(f"guard {guard_name(guard)!r} answered {type(said).__name__}, which is neither None nor a Block with a reason in words")


def asks_of(tool: Tool) -> Callable[[dict[str, Any]], str] | None:
    """Return the tool's function that decides whether a call must be approved whatever the policy allows (option `asks`). None for most tools."""
    return getattr(tool, "asks", None)


def must_ask(tool: Tool, args: dict[str, Any]) -> str:
    """Return why the tool wants this call to be approved, or "". If its function raises, the call must be approved."""
    asks = asks_of(tool)
    if asks is None:
        return ""
    try:
        return str(asks(msgspec.json.decode(msgspec.json.encode(args))))
    except Exception as error:  # noqa: BLE001 - foreign code: one that fails asks
        return f"{tool.spec.name} failed to say whether it asks: {raised_by(error, f'`asks` of the tool {tool.spec.name!r}')}"


def verdict_on(frozen: Call, call: CallState, policy: Policy, state: RunState) -> Verdict:
    """Return the policy's verdict. A call found in text needs approval unless it only reads; a person's approval decides that."""
    try:
        verdict = policy.decide(*shown_to(policy, frozen, state))
    except Exception as error:  # noqa: BLE001 - foreign code: a policy that fails denies
        return Verdict(decision="deny", rule="policy_error", reason=f"the policy failed: {raised_by(error, 'the policy')}")
    if not isinstance(verdict, Verdict):  # pyright: ignore[reportUnnecessaryIsInstance] - a policy is foreign code
        return Verdict(decision="deny", rule="policy_error", reason=f"the policy answered {type(verdict).__name__}, which is not a Verdict")
    if not _plain(verdict):
        try:
            verdict = checked(verdict)
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            return Verdict(decision="deny", rule="policy_error", reason=f"the policy's verdict cannot be used: {error}")
    if verdict.decision == "allow" and call.provenance == "text" and not frozen.tool.read_only:
        verdict = Verdict(decision="require_approval", rule="embedded_call", reason="the call was found in the text of an answer")
    if verdict.decision == "allow" and frozen.asks:
        verdict = Verdict(decision="require_approval", rule=ASKED_BY_TOOL, reason=frozen.asks)
    same = call.edited or call.digest == frozen.digest  # people approved exactly these arguments
    if verdict.decision == "require_approval" and same and 0 < verdict.approvers <= len(call.approved_by):
        return Verdict(decision="allow", rule="approval_granted", reason=f"{call.why} ({verdict.rule})", facts=verdict.facts)
    return verdict


def _plain(verdict: Verdict) -> bool:
    """Whether it is a plain allowance that needs no further checks. Called for every call, so it must be fast."""
    return verdict.decision == "allow" and type(verdict.rule) is type(verdict.reason) is str and not (verdict.facts or verdict.sources)


def checked(verdict: Verdict) -> Verdict:
    """Return a copy of the verdict of foreign code. Raise `ValueError` or `TypeError` if a field is not valid."""
    verdict = msgspec.json.decode(msgspec.json.encode(verdict), type=Verdict)
    if verdict.decision == "require_approval" and verdict.approvers < 1:
        raise ValueError(f"approvers is {verdict.approvers}; it must be at least 1")
    if verdict.expires_s is not None and not 0 < verdict.expires_s <= LONGEST_S:
        raise ValueError(f"expires_s is {verdict.expires_s:g}; it must be above 0 and at most ten years")
    return verdict


def request_of(call: Call, verdict: Verdict, state: RunState, *, policy: str) -> ApprovalRequested:
    """Return the event that asks a person for this call, as `verdict` of the policy of this version wants it."""
    declared = state.digests.get(f"tool:{call.tool.name}") if call.tool.name in state.levels else ""  # nothing is known of it in older logs
    now = state.updated_at
    return ApprovalRequested(
        call=call.call_id,
        tool=call.tool.name,
        digest=digest_of([call.digest, declared]) if declared else call.digest,
        reason=verdict.reason,
        rule=verdict.rule,
        facts=verdict.facts,
        sandbox=call.tool.confinement,
        approvers=max(1, verdict.approvers),
        on_reject=verdict.on_reject,
        expires_at=now + timedelta(seconds=verdict.expires_s) if now and verdict.expires_s else None,
        policy=policy,
        requested_at=now,
        args_digest=call.digest if declared else "",
    )
