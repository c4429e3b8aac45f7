"""Governance: the verdict on a call, and who gives it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, Protocol

import msgspec

from detent.core.events import Decision
from detent.core.state import KernelState, RunState
from detent.ports.tools import ToolSpec


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
