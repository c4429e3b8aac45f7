"""What the engine answers: plain frozen data."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec

from detent.core.budget import Usage
from detent.core.state import Item, RunState
from detent.running.receipts import Receipt, receipt_of
from detent.running.titles import title_of


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """How a run stands. `completed` has an output; `failed` and `stopped` have none, and their best text so far is `partial`.

    `tool_calls` holds every executed or refused call that got an observation, in index order, those of meta-tools not.
    """

    run_id: str
    status: str
    reason: str
    output: Any
    partial: str
    error: str | None
    usage: Usage
    iterations: int
    state: RunState

    @property
    def steps(self) -> tuple[Item, ...]:
        """The transcript of all passes, in the order in which they began (row S0-16)."""
        return tuple(item for p in self.state.passes.values() for item in p.steps)

    @property
    def tools_used(self) -> frozenset[str]:
        """The tools of which a call succeeded."""
        return frozenset(name for p in self.state.passes.values() for name in p.tools_used)

    @property
    def title(self) -> str:
        """What the run is called in lists, "" without a title (`Engine(models=Models(titles=True))`)."""
        return title_of(self.state)

    @property
    def receipt(self) -> Receipt:
        """What the run rested on, what it produced, who intervened, what ended it."""
        return receipt_of(self.state)

    @property
    def total_tokens(self) -> int:
        """Input and output tokens of all model calls."""
        return self.usage.total_tokens

    @property
    def tool_calls(self) -> tuple[Item, ...]:
        """The observed calls of all passes."""
        return tuple(item for p in self.state.passes.values() for item in p.results if not item.meta)


def result_of(state: RunState) -> Result:
    """Return the result that `state` means."""
    return Result(
        run_id=state.run_id,
        status=state.status,
        reason=state.reason,
        output=state.output,
        partial=state.partial,
        error=state.error or None,
        usage=state.usage,
        iterations=state.usage.iterations,
        state=state,
    )


class Approval(msgspec.Struct, frozen=True, kw_only=True):
    """A call that waits for a person: approve or deny exactly this.

    `digest` is that of the arguments: given back with the answer, it makes sure that nothing changed in between. `rule` and `policy` say
    who asks, `facts` what the decision was based on, `approved_by` who of the `approvers` people that must approve has done so.
    """

    run_id: str
    call_id: str
    tool: str
    args: Any
    reason: str
    requested_at: datetime | None
    digest: str = ""
    rule: str = ""
    policy: str = ""
    facts: dict[str, Any] = {}
    approvers: int = 1
    approved_by: tuple[str, ...] = ()
    expires_at: datetime | None = None


def approvals_of(state: RunState) -> list[Approval]:
    """Return the open approvals of a run."""
    found: list[Approval] = []
    for call_id, asked in () if state.terminal else state.approvals.items():
        call = state.call(call_id)
        args = msgspec.json.decode(msgspec.json.encode(call.args)) if call else None
        found.append(
            Approval(
                run_id=state.run_id,
                call_id=call_id,
                tool=asked.tool,
                args=args,
                reason=asked.reason,
                requested_at=asked.requested_at,
                digest=asked.digest,
                rule=asked.rule,
                policy=asked.policy,
                facts=asked.facts,
                approvers=asked.approvers,
                approved_by=call.approved_by if call else (),
                expires_at=asked.expires_at,
            )
        )
    return found


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """Where a re-execution parts from the log: the sequence, what the log has, what the code gives (JSON text)."""

    sequence: int
    expected: str
    actual: str


class Replay(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of re-executing a log: identical, or the first divergence; `records` were gone through."""

    run_id: str
    identical: bool
    divergence: Difference | None
    records: int


class Verification(msgspec.Struct, frozen=True, kw_only=True):
    """Whether a log is sound: number of records and head digest, or the first record that is not (`sequence`) and why (`problem`)."""

    run_id: str
    ok: bool
    records: int
    digest: str
    erased: bool = False
    sequence: int | None = None
    problem: str = ""
