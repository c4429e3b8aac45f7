"""Derives a run's listing entry from its log, for comparison: no digest covers the entry, and its tenant decides who sees the run."""

from __future__ import annotations

import math

from detent.core.budget import Usage
from detent.core.events import ASIDE, EffectRecorded, Forked, LeftByParent, RunResumed, RunStarted, SubagentJoined, ToolStarted, TurnStarted
from detent.core.records import Envelope, Record, RunHead
from detent.ports.heads import CODE


class Said:
    """What the records so far say about their run; `differs` compares it with a listing entry.

    `reason` is the entry's reason for something that the run's own records do not say, "" if there is none.
    """

    first: Envelope
    last: Envelope

    def __init__(self) -> None:
        self.reason = ""
        self._words: dict[str, str] = {}
        self._turns, self._cost = 0, 0.0
        self._version: str | None = ""

    def hear(self, record: Record) -> None:
        """Take in the next record. Begin with the first."""
        if record.envelope.seq == 1:
            self.first = record.envelope
        self.last = record.envelope
        if isinstance(used := getattr(record.event, "usage", None), Usage):
            self._cost += used.charged().cost_usd or 0.0
        if isinstance(record.event, Forked):
            self._version = None  # that of the run above it, until it is resumed
        match record.event:
            case SubagentJoined(usage=joined):
                self._turns += joined.iterations
            case ToolStarted(cost_usd=price):
                self._cost += price or 0.0
            case None:
                self._words = {"goal": "", "title": "", "reason": "erased"}
            case RunStarted(goal=goal, digests=digests):
                self._words = {"goal": goal[:120], "title": ""}
                self._version = digests.get(CODE, "")
            case RunResumed(digests=digests) if CODE in digests:
                self._version = digests[CODE]
            case Forked(edits={"goal": str(goal)}):
                self._words = {"goal": goal[:120]}
            case TurnStarted():
                self._turns += 1
            case LeftByParent():
                self._words["parent"] = ""
            case EffectRecorded(label="title", phase=phase, value=title) if phase == ASIDE and not self._words.get("title"):
                self._words["title"] = title or ""
            case _:
                pass

    def differs(self, head: RunHead) -> str:
        """Return where a listing entry disagrees with the records; "" if they agree."""
        first, last = self.first, self.last
        there: dict[str, object] = {
            "run_id": first.run,
            "tenant": first.tenant,
            "agent": first.agent,
            "goal_id": first.goal_id,
            "parent": first.parent,
            "records": last.seq,
            "status": last.status or "running",
            "created_at": first.at,
            "updated_at": last.at,
            "reason": self.reason or last.reason,
            **self._words,
        }
        erased = self._words.get("reason") == "erased"  # the contents of erased records are unknown, also whether its parent has left it
        for name, value in there.items():
            if getattr(head, name) != value and not (erased and name == "parent" and not head.parent):
                return f"the listing entry says {name} {getattr(head, name)!s}, and the log says {value!s}"
        if self._version is not None and head.version != self._version and not erased:
            return f"the listing entry says version {head.version}, and the log says {self._version or 'none'}"
        known = (
            head.cost_usd and last.status and not erased
        )  # an earlier Detent wrote none, and a store may write it together with the status only
        if known and not math.isclose(head.cost_usd, self._cost, rel_tol=1e-9):
            return f"the listing entry says cost_usd {head.cost_usd:g}, and the log says {self._cost:g}"
        if not erased and head.iterations != self._turns:
            return f"the listing entry says iterations {head.iterations}, and the log says {self._turns}"
        return ""
