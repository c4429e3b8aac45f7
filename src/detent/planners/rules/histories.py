"""The history of rules, read from a view: which fired, and with what result.

A rule's actions have `rule:NAME` or `rule:NAME:INDEX` as their reason, and the log has that. So no other memory is needed: a fresh
process, a fork and a replay all read the same past.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from detent.core.actions import AskUser, Stop, Thought, ToolCall
from detent.core.errors import PlannerFailed
from detent.core.state import Item
from detent.ports import View

_REASON = re.compile(r"rule:([A-Za-z][\w-]*)(?::(\d+))?(?:: |$)")

FINAL = frozenset(
    {
        "policy_denied",
        "approval_rejected",
        "approval_expired",
        "guard_blocked",
        "in_doubt",
        "tool_result_unknown_after_resume",
        "tool_not_found",
        "schema_validation_failed",
    }
)
"""Error codes after which the same call is not made again: it was refused, or it is in doubt."""


class Firing(msgspec.Struct, kw_only=True):
    """One action of a rule. `index` is the item's index in a `for_each` rule, else 0. `void`: a stop has since answered its failure."""

    rule: str
    index: int
    action: Any
    item: Item | None = None
    reply: Any = None
    replied: bool = False
    void: bool = False

    @property
    def ok(self) -> bool:
        """Whether it succeeded: a call with a result, a question with a reply."""
        if isinstance(self.action, ToolCall):
            return self.item is not None and bool(self.item.ok)
        return self.replied if isinstance(self.action, AskUser) else True

    @property
    def failed(self) -> bool:
        """Whether it was a call that ended with an error."""
        return self.item is not None and not self.item.ok

    @property
    def again(self) -> bool:
        """Whether its failure is worth a retry."""
        return self.failed and self.item is not None and self.item.error is not None and self.item.error.code not in FINAL

    @property
    def error(self) -> dict[str, Any] | None:
        """The error of a failed call, as `code` and `message`."""
        error = self.item.error if self.item is not None else None
        return None if error is None else {"code": error.code, "message": error.message}

    @property
    def apart(self) -> bool:
        """Whether the result is stored separately and the transcript has only a preview."""
        return self.item is not None and bool(self.item.ok) and self.item.artifact is not None

    def value(self, whole: Mapping[str, Any]) -> Any:
        """Return the call's result, the reply, or the recorded thought. `whole` has separately stored results, by call id."""
        if self.item is not None:
            return None if not self.item.ok else whole[self.item.call_id] if self.apart else self.item.content
        return self.action.content if isinstance(self.action, Thought) else self.reply


def reason_for(rule: str, index: int | None = None, why: str = "") -> str:
    """Return the reason that marks an action as the rule's."""
    return f"rule:{rule}" + (f":{index}" if index is not None else "") + (f": {why}" if why else "")


def read_history(view: View) -> list[Firing]:
    """Return the rules' actions in this pass, in order. Raise `PlannerFailed` if the transcript is not complete."""
    outcomes = {(item.iteration, _index(item)): item for item in view.results}
    firings: list[Firing] = []
    asked: Firing | None = None
    planned: set[int] = set()
    for item in view.transcript:
        if item.kind == "user" and asked is not None:
            asked.reply, asked.replied, asked = _reply(asked.action, item.text), True, None
        if item.kind != "model" or item.plan is None:
            continue
        planned.add(item.iteration)
        calls = 0
        for action in item.plan.actions:
            outcome = outcomes.get((item.iteration, calls)) if isinstance(action, ToolCall) else None
            calls += isinstance(action, ToolCall)
            match = _REASON.match(action.reason)
            if match is None:
                continue
            fired = Firing(rule=match.group(1), index=int(match.group(2) or 0), action=action, item=outcome)
            if isinstance(action, Stop):
                _void(firings, fired.rule)
            asked = fired if isinstance(action, AskUser) else asked
            firings.append(fired)
    if missing := sorted({iteration for iteration, _ in outcomes} - planned):
        raise PlannerFailed(
            f"the plan of iteration {missing[0]} is not in the transcript, so rules cannot tell what they did; "
            "rules need a transcript that is not compacted: turn compaction off for this agent"
        )
    return firings


def _void(firings: list[Firing], rule: str) -> None:
    """Clear the rule's failures after a stop for them was reopened: they no longer count."""
    for firing in firings:
        if firing.rule == rule and firing.failed:
            firing.void = True


def _index(item: Item) -> int:
    tail = item.call_id.rsplit(".", 1)[-1]
    return int(tail) if tail.isdigit() else 0


def _reply(ask: AskUser, said: str) -> Any:
    """Return the reply: JSON if the question expected something other than text."""
    if ask.expected is None or ask.expected.get("type") == "string":
        return said
    try:
        return msgspec.json.decode(said)
    except msgspec.DecodeError:
        return said
