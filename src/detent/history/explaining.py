"""The decision trail of one call, from its log: plan, healing, guards, policy, approvals, attempts, outcome. Pure."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any, Literal, cast

import msgspec

from detent.config.adapters import traced
from detent.core import events as e
from detent.core.actions import ToolCall
from detent.core.codec import read_record
from detent.core.errors import ConfigError, CorruptLog
from detent.core.events import Source
from detent.core.records import Record
from detent.ports import EventStore
from detent.ports.remembering import told
from detent.running.conversing import shown_of
from detent.running.lineage import forked_of
from detent.running.receipts import who
from detent.running.snapshots import state_of


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """One record about the call. `said` is text for people, `data` holds the record's fields; `kind` is the event's tag."""

    sequence: int
    at: datetime
    kind: str
    said: str
    data: dict[str, Any]


class Earlier(msgspec.Struct, frozen=True, kw_only=True):
    """A place where the value of the argument at `path` was before: a memory item, an entry of a conversation, or, last, its source.

    `standing` tells what `follow` found: the record of run `run_id` is `there`, `erased`, `changed` (its digest is another one) or `gone` from this
    store; "" if no record is named. A value may have several sources: places with the same number in `source` lead to one of them.
    """

    path: str
    said: str
    source: int = 0
    run_id: str = ""
    call_id: str = ""
    sequence: int = 0
    digest: str = ""
    standing: Literal["", "there", "erased", "changed", "gone"] = ""


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """Why a call happened, or did not. `tool` and `args` are the final ones; `outcome` is "" until there is one.

    `policy` is the version of the policy that decided. `earlier` is how values of the arguments came from earlier runs.
    """

    run_id: str
    call_id: str
    tool: str
    args: Any
    outcome: str
    policy: str
    steps: tuple[Step, ...]
    earlier: tuple[Earlier, ...] = ()


def explain(records: Sequence[Record], call_id: str) -> Explanation:
    """Return the trail of a call. Raise `ConfigError` with the nearest calls if the run has no such call."""
    run_id = records[-1].envelope.run if records else ""
    planned = _planned(records)
    if call_id not in planned:
        near = difflib.get_close_matches(call_id, planned, n=3, cutoff=0.5)
        hint = f"did you mean {' or '.join(near)}?" if near else f"it has {len(planned)} calls; `detent show {run_id}` lists them"
        raise ConfigError(f"run {run_id!r} has no call {call_id!r}; {hint}")
    record, call = planned[call_id]
    steps = [_planning(record, call, call_id)]
    tool, args, policy = call.tool, call.args, ""
    outcome = "not run" if _dropped(record, call) else ""
    started = next((r.event for r in records if isinstance(r.event, e.RunStarted)), None)
    for record in records:
        event = record.event
        if getattr(event, "call", None) != call_id or isinstance(event, (e.ModelCallStarted, e.ModelCallFinished, e.ModelCallFailed)):
            continue
        said, outcome = _said(event), _outcome(event, outcome)
        if isinstance(event, (e.CallHealed, e.ApprovalEdited)):
            args = event.args
            tool = event.tool if isinstance(event, e.CallHealed) else tool
        if isinstance(event, e.PolicyDecided):
            policy = event.policy or policy or (started.digests.get("policy", "") if started else "")
        steps.append(_step(record, said))
    return Explanation(
        run_id=run_id, call_id=call_id, tool=tool, args=args, outcome=outcome, policy=policy, steps=tuple(steps), earlier=_earlier(steps)
    )


async def follow(found: Explanation, store: EventStore) -> Explanation:
    """Return the explanation with what this store still has of the earlier runs that values came from.

    If the policy that decided does not trace values, they are traced here, except in a fork.
    """
    decided = [step for step in found.steps if step.kind == "policy_decided"]
    earlier: tuple[Earlier, ...] = found.earlier
    given: Any = found.args
    if decided and isinstance(given, dict) and "args" not in decided[-1].data.get("facts", {}):
        lines = await store.read(found.run_id, limit=decided[-1].sequence)
        if lines and forked_of(lines[0]) is None:
            state = state_of(found.run_id, lines, None)
            args = cast("dict[str, Any]", given)
            with suppress(CorruptLog):  # without its conversation
                earlier = _of_facts({"args": traced(args, state, found.call_id, await shown_of(store, state))})
    return msgspec.structs.replace(found, earlier=tuple([await _standing(place, store) for place in earlier]))


_RUN_ID = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._@-]{0,199}")
_MOST_RECORDS = 2**31


async def _standing(place: Earlier, store: EventStore) -> Earlier:
    if not place.run_id:
        return place
    if (
        not _RUN_ID.fullmatch(place.run_id) or place.sequence > _MOST_RECORDS
    ):  # a policy's facts may say anything, and stores refuse what cannot be
        return msgspec.structs.replace(place, standing="gone")
    lines = await store.read(place.run_id, after=max(place.sequence, 1) - 1, limit=1)
    try:
        record = read_record(lines[0]) if lines else None
    except (msgspec.MsgspecError, ValueError):
        return msgspec.structs.replace(place, standing="changed")
    if record is None:
        return msgspec.structs.replace(place, standing="gone")
    same = not place.digest or record.digest == place.digest
    return msgspec.structs.replace(place, standing="changed" if not same else "erased" if record.event is None else "there")


class _Leaf(msgspec.Struct):
    sources: tuple[Source, ...] = ()


class _Facts(msgspec.Struct):
    args: dict[str, _Leaf] = {}


def _earlier(steps: Iterable[Step]) -> tuple[Earlier, ...]:
    """Return where the last decision found the values of the arguments, in the runs before this one."""
    facts = [step.data.get("facts", {}) for step in steps if step.kind == "policy_decided"]
    return _of_facts(facts[-1] if facts else {})


def _of_facts(facts: Any) -> tuple[Earlier, ...]:
    try:
        args = msgspec.convert(facts, _Facts).args
    except msgspec.ValidationError:  # the facts of another policy
        return ()
    found: list[Earlier] = []
    for path, leaf in args.items():
        for number, source in enumerate(leaf.sources):
            for hop, line in zip((*source.via, None), told(source), strict=True):
                place = Earlier(path=path, said=line, source=number, run_id=source.run_id, call_id=source.origin if source.tool else "")
                if hop is not None:
                    at: dict[str, Any] = {"run_id": hop.run_id, "call_id": hop.call_id, "sequence": hop.sequence, "digest": hop.digest}
                    place = Earlier(path=path, said=line, source=number, **at)
                found.append(place)
    return tuple(found)


def _planned(records: Iterable[Record]) -> dict[str, tuple[Record, ToolCall]]:
    """Return each call by its id, with the record of its plan, including calls that were dropped beside a control action."""
    found: dict[str, tuple[Record, ToolCall]] = {}
    for record in records:
        if isinstance(record.event, e.Planned):
            event, head = record.event, record.envelope
            wanted = (event.embedded,) if event.embedded else tuple(a for a in event.actions if isinstance(a, ToolCall))
            for index, call in enumerate((*wanted, *event.dropped)):
                found[f"{head.scope}.{head.iteration}.{index}"] = record, call
    return found


def _planning(record: Record, call: ToolCall, call_id: str) -> Step:
    event = record.event
    assert isinstance(event, e.Planned)  # noqa: S101 - `_planned` takes nothing else
    batch = len([a for a in event.actions if isinstance(a, ToolCall)]) + len(event.dropped)
    who = f"model {event.model}" if event.model else "the planner"
    said = f"{who} asked for {call.tool}" + (f" because: {call.reason}" if call.reason else "")
    said += f", call {int(call_id.rsplit('.', 1)[1]) + 1} of {batch}" if batch > 1 else ""
    said += "; it was found in the text of an answer" if event.embedded is call else ""
    said += f"; it was written with broken JSON ({'; '.join(call.mends)}): {call.written}" if call.mends else ""
    said += "; it came beside a control action and was not run" if _dropped(record, call) else ""
    data: dict[str, Any] = {"tool": call.tool, "args": call.args, "reason": call.reason, "text": event.text, "model": event.model}
    head = record.envelope
    return Step(sequence=head.seq, at=head.at, kind="planned", said=said, data={k: v for k, v in data.items() if v not in ("", None)})


def _dropped(record: Record, call: ToolCall) -> bool:
    return isinstance(record.event, e.Planned) and any(call is dropped for dropped in record.event.dropped)


def _step(record: Record, said: str) -> Step:
    data: dict[str, Any] = msgspec.to_builtins(msgspec.json.decode(msgspec.json.encode(record.event)))
    kind = data.pop("type")
    data.pop("call", None)
    return Step(sequence=record.envelope.seq, at=record.envelope.at, kind=kind, said=said, data=data)


def _said(event: Any) -> str:  # noqa: PLR0911 - one case an event
    match event:
        case e.CallHealed(repairs=repairs):
            return f"repaired before it was checked: {'; '.join(repairs)}"
        case e.GuardBlocked(guard=guard, reason=reason):
            return f"guard {guard} blocked it: {reason}"
        case e.PolicyDecided(decision=decision, rule=rule, reason=reason):
            return f"policy: {decision} by {rule or 'no rule'}" + (f": {reason}" if reason else "") + _listed("from", event.sources)
        case e.ApprovalRequested(reason=reason, approvers=approvers, expires_at=expires):
            people = f"{approvers} people were asked" if approvers > 1 else "approval was requested"
            return f"{people}: {reason}" + (f"; until {expires:%Y-%m-%d %H:%M:%S} UTC" if expires else "")
        case e.ApprovalResolved(decision=decision, by=by, reason=reason):
            return f"{who(by, event.via)} {decision} it" + (f": {reason}" if reason else "")
        case e.ApprovalEdited(by=by):
            return f"{who(by, event.via)} approved it with other arguments"
        case e.ApprovalExpired():
            return "nobody decided in time"
        case e.ToolStarted(attempt=attempt, previous=previous):
            again = f", after {previous.code}: {previous.message}" if previous else ""
            return f"attempt {attempt} began, key {event.key}{again}"
        case e.ToolFinished(source=source) if source:
            how = "succeeded" if event.error is None else f"failed: {_fault(event.error)}"
            said = "answered with the recorded outcome of an ancestor" if source == "recorded" else "answered by a stub"
            return f"it was not executed: {said}, it {how}"
        case e.ToolFinished(error=None):
            return f"it succeeded in {event.latency_ms:g} ms"
        case e.ToolFinished(error=error):
            return f"it failed: {_fault(error)}"
        case e.ToolInDoubt(why=why):
            return f"it may or may not have happened (in doubt): {why}"
        case e.ToolReconciled(outcome=outcome, source=source, by=by):
            return f"settled by {by or source}: {outcome.replace('_', ' ')}" + (f" ({_fault(event.error)})" if event.error else "")
        case e.MetaToolAnswered(success=success):
            return "answered from state" if success else "could not be answered from state"
        case _:
            return type(event).__name__


def _outcome(event: Any, before: str) -> str:
    match event:
        case e.ToolFinished(error=None) | e.MetaToolAnswered(success=True):
            return "succeeded"
        case e.ToolFinished(error=error) if error is not None:
            return f"failed: {error.code}"
        case e.MetaToolAnswered():
            return "failed: handler_error"
        case e.ToolInDoubt():
            return "in doubt"
        case e.ToolReconciled(outcome=outcome, error=error):
            settled = {"happened": "succeeded", "not_happened": "did not happen", "told": "unknown, and the planner was told", "again": ""}
            return f"failed: {error.code}" if error is not None and outcome == "happened" else settled[outcome]
        case _:
            return before


def _fault(error: e.ToolError | None) -> str:
    if error is None:
        return ""
    return error.message if error.message.startswith(error.code) else f"{error.code}: {error.message}"


def _listed(word: str, names: Sequence[str]) -> str:
    return f" ({word} {', '.join(names)})" if names else ""
