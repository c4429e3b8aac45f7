"""The receipt of a run: its evidence, its products, who intervened, why it ended. Derived from the state; it does not certify the truth."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from detent.core.actions import Abstain
from detent.core.state import Intervention, Item, RunState
from detent.running.endings import missing_tools, produced, work

Standing = Literal["", "grounded", "partially", "ungrounded", "abstained", "failed"]


class Used(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How often calls of a tool succeeded and failed (refused ones count as failed)."""

    ok: int = 0
    failed: int = 0


class Deliverable(msgspec.Struct, frozen=True, kw_only=True):
    """A declared product of the work, and whether it was produced."""

    kind: str
    name: str
    produced: bool


class Receipt(msgspec.Struct, frozen=True, kw_only=True):
    """What a run's log alone tells about the run.

    `verdict`: "" while the run is not over; `abstained`; `failed` (also stopped without an answer); `partially` if a deliverable is missing, the last
    call of some tool failed, or no call succeeded; `grounded` if calls succeeded; `ungrounded` if nothing was called. `missing`: required tools,
    deliverables, and what the planner said it would have needed. `agreement`: the share of voters that gave the answer, if there was a vote.
    """

    run_id: str
    verdict: Standing
    ended_by: str
    error: str
    tools: dict[str, Used]
    calls_ok: int
    calls_failed: int
    deliverables: tuple[Deliverable, ...]
    missing: tuple[str, ...]
    interventions: tuple[Intervention, ...]
    agreement: float | None = None


def receipt_of(state: RunState) -> Receipt:
    """Return the present receipt of a run."""
    used: dict[str, Used] = {}
    last: dict[str, Item] = {}
    for item in work(state):
        before = used.get(item.tool, Used())
        used[item.tool] = Used(ok=before.ok + bool(item.ok), failed=before.failed + (not item.ok))
        last[item.tool] = item
    answer = state.output if state.output is not None else state.partial
    made = tuple(
        Deliverable(kind=kind, name=name, produced=produced(state, one, answer))
        for one in state.agent.deliverables
        for kind, name in one.items()
    )
    ok, failed = sum(u.ok for u in used.values()), sum(u.failed for u in used.values())
    missing = [*missing_tools(state), *(one.name for one in made if not one.produced), *_wanting(state)]
    return Receipt(
        run_id=state.run_id,
        verdict=_verdict(state, made, last, ok=ok),
        ended_by=state.reason + (f": {state.dimension}" if state.dimension else ""),
        error=state.error,
        tools=used,
        calls_ok=ok,
        calls_failed=failed,
        deliverables=made,
        missing=tuple(dict.fromkeys(missing)),
        interventions=state.interventions,
        agreement=_agreement(state),
    )


def _agreement(state: RunState) -> float | None:
    """Return the value that the last vote has recorded."""
    found = [value for key, value in state.effects.items() if key.startswith("-1:agreement:")]
    return float(found[-1]) if found and isinstance(found[-1], (int, float)) else None


def _verdict(state: RunState, made: tuple[Deliverable, ...], last: dict[str, Item], *, ok: int) -> Standing:
    if not state.terminal:
        return ""
    if state.status != "completed":
        return "abstained" if state.reason == "abstained" else "failed"
    achieved = bool(made) and all(one.produced for one in made)
    unresolved = any(not item.ok for item in last.values())
    if (made and not achieved) or (unresolved and not achieved) or (last and not ok):
        return "partially"
    return "grounded" if ok else "ungrounded"


def _wanting(state: RunState) -> tuple[str, ...]:
    """Return what the planner said it lacked when it abstained."""
    actions: list[Any] = [action for known in state.passes.values() if known.plan is not None for action in known.plan.actions]
    return (
        tuple(name for action in actions if isinstance(action, Abstain) for name in action.missing) if state.reason == "abstained" else ()
    )


def lines_of(receipt: Receipt) -> list[str]:
    """Return a receipt as lines of text."""
    tools = ", ".join(f"{name} {use.ok} ok" + (f" {use.failed} failed" if use.failed else "") for name, use in receipt.tools.items())
    lines = [
        f"{receipt.verdict or 'not over'}: {receipt.calls_ok} calls ok, {receipt.calls_failed} failed" + (f" ({tools})" if tools else "")
    ]
    lines += [f"{'produced' if one.produced else 'missing'}: {one.kind} {one.name}" for one in receipt.deliverables]
    rest = [name for name in receipt.missing if all(name != one.name for one in receipt.deliverables)]
    lines += [f"missing: {', '.join(rest)}"] if rest else []
    lines += [f"agreement: {receipt.agreement:.0%}"] if receipt.agreement is not None else []
    for one in receipt.interventions:
        lines.append(
            f"{one.kind.replace('_', ' ')}{f' by {who(one.by, one.via)}' if one.by or one.via else ''}"
            f"{f' ({one.about})' if one.about else ''}{f': {one.code}' if one.code else ''}"
        )
    return lines


def who(by: str, via: str) -> str:
    """Return who answered, and through what: the description that the sending process gave of itself."""
    return f"{by or 'nobody'} via {via}" if via else by
