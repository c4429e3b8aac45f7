"""The policy during a replay: each decision is judged again by the policy that made it, or taken from the log.

A run may have been resumed under another policy. Each decision records the version that made it. A policy that is data was stored with the run when
it was opened (`RunStarted.policy`, `RunResumed.policy`), and judges its decisions again (`judged`). A policy that is a function judges again if the
engine has its version. All other decisions are taken from the log, and named (`taken`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import msgspec

from detent.config.adapters import governing, policy_made_of
from detent.core.agent import AgentSpec
from detent.core.errors import ConfigError
from detent.core.events import AnyEvent, ApprovalRequested, PolicyDecided, RunResumed, RunStarted
from detent.core.state import RunState
from detent.history.interruptions import Interruptions
from detent.ports import Call, Policy, ToolSpec, Verdict
from detent.ports.governance import PolicyOf, shown_to


class Decided:
    """The decisions of a log; `at` is how far it was read. If `judges` is false, none is judged again."""

    def __init__(self, at: Interruptions, policy_of: PolicyOf, above: Iterable[AnyEvent | None] = (), *, judges: bool) -> None:
        """Set up the decisions; `above` are the events of a fork's ancestors."""
        self._at, self._policy_of, self.judges = at, policy_of, judges
        events = [*above, *(record.event for record in at.records)]
        said = [event.policy for event in events if isinstance(event, (RunStarted, RunResumed)) and event.policy] if judges else []
        self._kept = [policy for one in said if (policy := _made(one)) is not None]
        self.taken: dict[str, None] = {}
        self.judged: dict[str, None] = {}

    def __call__(self, spec: AgentSpec, above: Sequence[Mapping[str, Any]] = ()) -> Policy:
        """Return the policy for the calls of an agent. If one of the runs above is not here, its decisions are taken from the log."""
        made = {house.version if house else "": _combined(governing(house), spec, above) for house in (None, *self._kept)}
        hand, opened = _combined(self._policy_of, spec, above) or governing(None)(spec), self._at.state.digests.get("policy", "")
        kept = {policy.version: policy for policy in made.values() if policy is not None} if self.judges else {}
        return Judging(hand, self, kept, (made.get(opened) if opened else None) or hand)

    def link(self, spec: AgentSpec, *, whole: bool = True) -> dict[str, Any]:
        """Return the link of a run to its children; a replay starts none."""
        return self._policy_of.link(spec, whole=whole)

    def next(self, call: str) -> tuple[PolicyDecided, ApprovalRequested | None] | None:
        """Return the next decision on a call and the request for approval that followed; None if the log has no more."""
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


def _combined(policy_of: PolicyOf, spec: AgentSpec, above: Sequence[Mapping[str, Any]]) -> Policy | None:
    with suppress(ConfigError):
        return policy_of(spec, above)
    return None


def _made(said: Mapping[str, Any]) -> Policy | None:
    """Return a stored policy; None if this version of Detent cannot load it, and its decisions are then taken from the log."""
    with suppress(ConfigError):
        return policy_made_of(said)
    return None


class Judging:
    """The policy of an agent in a replay. `hand` is the engine's, `kept` has stored ones by version, `now` held at this opening."""

    def __init__(self, hand: Policy, decided: Decided, kept: Mapping[str, Policy], now: Policy) -> None:
        self._hand, self._decided, self._kept, self._now = hand, decided, kept, now
        self.version = hand.version

    def decide(self, call: Call, state: RunState) -> Verdict:
        """Return the verdict of the policy that decided on the call, if it is available; else the one in the log."""
        found, hand = self._decided.next(call.call_id), self._hand
        if found is None or (self._decided.judges and found[0].policy in ("", hand.version)):
            self.version = hand.version
            return _placed(hand.decide(*shown_to(hand, call, state)), found)
        event, asked = found
        self.version = event.policy
        if (policy := self._kept.get(event.policy)) is not None:
            self._decided.judged[event.policy] = None
            return _placed(policy.decide(*shown_to(policy, call, state)), found)
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
        """Return the policy's verdict; nobody is asked here."""
        return self._now.may_ask(tool)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._now, name)

        def offers(tool: ToolSpec, state: RunState) -> Any:
            return found(*shown_to(self._now, tool, state))

        return offers if name == "offers" else found


def _placed(verdict: Verdict, found: tuple[PolicyDecided, ApprovalRequested | None] | None) -> Verdict:
    """Return the verdict of a rule with the position that the rule had: a version covers a whole policy except the positions in its files."""
    if found is None or not (found[0].sources and verdict.sources) or found[0].sources == verdict.sources:
        return verdict
    same = (found[0].decision, found[0].rule) == (verdict.decision, verdict.rule)
    reason = found[0].reason if verdict.facts.get("failed") else verdict.reason
    return msgspec.structs.replace(verdict, sources=found[0].sources, reason=reason) if same else verdict
