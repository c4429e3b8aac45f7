"""Shared by the policies: combining verdicts, matching tool patterns, and delegations as calls."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol, cast

import msgspec

from detent.core.events import Decision
from detent.core.state import RunState
from detent.expressions.patterns import names
from detent.ports import Call, Policy, ToolSpec, Verdict
from detent.ports.governance import shown_to
from detent.ports.raised import raised_by

RANK: dict[Decision, int] = {"allow": 0, "require_approval": 1, "deny": 2, "stop": 3}
"""The strength of each decision."""  # row K30
SPAWN, STARTS = "spawn_agent", "agent_"
"""A delegation is a call of the tool `spawn_agent`, whose argument `agent` names who is started, or of a tool `agent_NAME`."""

NO_RULE = Verdict(decision="deny", rule="no_policy_rule_matched", reason="no rule of the policy matches this call")
"""The verdict if nothing else decides."""  # row K30


def delegates(tool: ToolSpec) -> bool:
    """Whether each call of the tool starts an agent."""
    return tool.delegates and tool.side_effect == "write" and (tool.name == SPAWN or tool.name.startswith(STARTS))


class Stage(Protocol):
    """A policy that may leave a call undecided: `judge` then returns None."""

    version: str

    def judge(self, call: Call, state: RunState) -> Verdict | None: ...


def judged(policy: Policy | Stage, call: Call, state: RunState) -> Verdict | None:
    """Return the verdict of one stage. A stage that raises denies, so it does not hide a stronger verdict of another stage.

    A policy whose `decide` returns no verdict denies too: only a stage with `judge` may leave a call undecided.
    """
    try:
        judge: Callable[[Call, RunState], Verdict | None] | None = getattr(policy, "judge", None)
        about = shown_to(policy, call, state)
        said = judge(*about) if judge is not None else cast("Policy", policy).decide(*about)
        if isinstance(said, Verdict) or (said is None and judge is not None):
            return said
        why = f"the policy {policy.version!r} answered {type(said).__name__}, which is not a Verdict"
        return Verdict(decision="deny", rule="policy_error", reason=why)
    except Exception as error:  # noqa: BLE001 - foreign code: a policy that fails denies
        said = raised_by(error, f"the policy {policy.version!r}")
        return Verdict(decision="deny", rule="policy_error", reason=f"the policy {policy.version!r} failed: {said}")


def strongest(verdicts: Sequence[Verdict]) -> Verdict:
    """Return the strongest verdict, the first of equals. Approval requests are merged to the strictest. At least one verdict is needed.

    If several rules matched, `facts["matched"]` names them all.
    """
    if len(verdicts) == 1:
        return verdicts[0]
    best = max(verdicts, key=lambda v: RANK[v.decision])
    facts = {**best.facts, "matched": [v.rule for v in verdicts]}
    if best.decision != "require_approval":
        return msgspec.structs.replace(best, facts=facts)
    asking = [v for v in verdicts if v.decision == "require_approval"]
    times = [v.expires_s for v in asking if v.expires_s is not None]
    return msgspec.structs.replace(
        best,
        facts=facts,
        reason="; ".join(dict.fromkeys(v.reason for v in asking if v.reason)),
        sources=tuple(dict.fromkeys(source for v in asking for source in v.sources)),
        approvers=max(v.approvers for v in asking),
        expires_s=min(times) if times else None,
        on_reject="stop" if any(v.on_reject == "stop" for v in asking) else best.on_reject,
    )


def named_by(patterns: Iterable[str]) -> Callable[[str], bool]:
    """Return whether a name matches one of the patterns: `*` and `?` as in file names, everything else literally."""
    listed = tuple(patterns)
    plain = frozenset(p for p in listed if not any(c in p for c in "*?["))
    globs = [p for p in listed if p not in plain]
    if not globs:
        return plain.__contains__
    matches = names(globs).fullmatch
    return lambda name: name in plain or matches(name) is not None
