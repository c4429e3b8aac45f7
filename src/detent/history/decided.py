"""What stands where the policy stands while a log is re-executed: it judges again what it decided itself, and nothing else.

A run may have been resumed under another policy. What that one decided cannot be judged by this one, so such a decision is taken from the
log, and named (`taken`). Which version decided is recorded with every decision; a decision of this version must come out again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from detent.core.agent import AgentSpec
from detent.core.events import ApprovalRequested, PolicyDecided
from detent.core.state import RunState
from detent.history.interruptions import Interruptions
from detent.ports import Call, Policy, ToolSpec, Verdict
from detent.ports.governance import shown_to


class Decided:
    """The decisions of a log, `at` what has been gone through of it; with `judges` false none of them is judged again."""

    def __init__(self, at: Interruptions, policy_of: Callable[[AgentSpec], Policy], *, judges: bool) -> None:
        self._at, self._policy_of, self.judges = at, policy_of, judges
        self.taken: dict[str, None] = {}

    def of(self, agent: AgentSpec) -> Policy:
        """Return what decides on the calls of an agent."""
        return Judging(self._policy_of(agent), self)

    def next(self, call: str) -> tuple[PolicyDecided, ApprovalRequested | None] | None:
        """Return the next decision on a call, and the request for approval that it led to; None where the log has no further one."""
        found: PolicyDecided | None = None
        for index in range(self._at.cursor, len(self._at.records)):
            event = self._at.records[index].event
            if isinstance(event, (PolicyDecided, ApprovalRequested)) and event.call == call:
                if found is not None:
                    return found, event if isinstance(event, ApprovalRequested) else None
                found = event if isinstance(event, PolicyDecided) else None
                if found is not None and found.decision != "require_approval":
                    break
        return None if found is None else (found, None)


class Judging:
    """The policy of an agent, as it is replayed."""

    def __init__(self, policy: Policy, decided: Decided) -> None:
        self._policy, self._decided = policy, decided
        self.version = policy.version

    def decide(self, call: Call, state: RunState) -> Verdict:
        """Return what the policy says where it has decided on the call, else what the log says."""
        found, own = self._decided.next(call.call_id), self._policy.version
        if found is None or (self._decided.judges and found[0].policy in ("", own)):
            self.version = own
            return self._policy.decide(*shown_to(self._policy, call, state))
        event, asked = found
        self.version = event.policy
        self._decided.taken[call.call_id] = None
        until = asked.expires_at - asked.requested_at if asked is not None and asked.expires_at and asked.requested_at else None
        return Verdict(
            decision=event.decision,
            rule=event.rule,
            reason=event.reason,
            sources=event.sources,
            facts=event.facts if asked is None else asked.facts,
            approvers=asked.approvers if asked is not None else 1,
            expires_s=until.total_seconds() if until is not None else None,
            on_reject=asked.on_reject if asked is not None else "",
        )

    def may_ask(self, tool: ToolSpec) -> bool:
        """Return what the policy says: nobody is asked here."""
        return self._policy.may_ask(tool)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._policy, name)

        def offers(tool: ToolSpec, state: RunState) -> Any:
            return found(*shown_to(self._policy, tool, state))

        return offers if name == "offers" else found
