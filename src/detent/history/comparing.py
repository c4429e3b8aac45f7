"""Compares two runs: all their differences (`diff`), and the first step at which they part (`bisect`). Pure.

Both use the whole history of a run: a fork's history begins with the records of its ancestors. Turns are compared by pass and iteration, calls by
their index. Only decisions and outcomes count. Times, digests, idempotency keys, the wording beside a call, and who resumed when do not.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import zip_longest
from typing import Any, cast

import msgspec

from detent.core import events as e
from detent.core.actions import ToolCall
from detent.core.budget import Usage
from detent.core.records import Record
from detent.core.state import RunState
from detent.running.branching import outcome_of

NEUTRAL = ("reason", "provider_id")
"""The parts of an action that explain and do not decide."""


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """One difference. `what` names the part, with its pass, iteration and call; `a` and `b` are its values (None: absent).

    `what` is `goal`, `variables`, `agent.NAME`, `budget.NAME`, `turn`, `decision`, `tool`, `arguments`, `policy`, `result`, `reply`, `status`,
    `reason` or `output`. `a_at` and `b_at` are the sequences of the records that have these values, 0 if no single record does.
    """

    what: str
    scope: str = ""
    iteration: int = 0
    call: str = ""
    a: Any = None
    b: Any = None
    a_at: int = 0
    b_at: int = 0


class Diff(msgspec.Struct, frozen=True, kw_only=True):
    """The differences between the runs `a` and `b` in order; they have `shared` records in common.

    `tools_added` and `tools_removed` count the additional and the missing calls of `b`, by tool. Usage includes that of the ancestors.
    """

    a: str
    b: str
    shared: int
    differences: tuple[Difference, ...]
    tools_added: dict[str, int]
    tools_removed: dict[str, int]
    a_usage: Usage
    b_usage: Usage

    @property
    def identical(self) -> bool:
        """Whether the runs did the same, with the same number of tokens and the same cost."""
        return not self.differences and self.a_usage == self.b_usage

    @property
    def first(self) -> Difference | None:
        """The first difference."""
        return self.differences[0] if self.differences else None


class Parting(msgspec.Struct, frozen=True, kw_only=True):
    """The first step at which two runs part: the records `a_at` and `b_at` (0: the run has ended) of the runs `a_run` and `b_run`.

    Both are of pass `scope` and its turn `iteration`; `a` and `b` are their contents as data. The pass has `common` equal steps before.
    """

    scope: str
    iteration: int
    common: int
    a_run: str
    b_run: str
    a_at: int
    b_at: int
    a: Any
    b: Any


# Side by side -----------------------------------------------------------------------------------------------------------------------------


class SideCall(msgspec.Struct):
    """A call on one side of a comparison. `policy` and `outcome` are what decides; the three numbers are the records that have them."""

    tool: str
    args: Any
    policy: Any = None
    outcome: Any = None
    at: int = 0
    policy_at: int = 0
    outcome_at: int = 0


class SideTurn(msgspec.Struct):
    """A turn on one side of a comparison, with its calls by id."""

    scope: str
    iteration: int
    at: int
    decision: Any = None
    said_at: int = 0
    calls: dict[str, SideCall] = {}


class Side:
    """A history, split into turns by pass and iteration."""

    def __init__(self, records: Iterable[Record]) -> None:
        self.turns: dict[tuple[str, int], SideTurn] = {}
        self.calls: dict[str, SideCall] = {}
        self.replies: dict[str, tuple[Any, int]] = {}
        for record in records:
            self._take(record)

    def _take(self, record: Record) -> None:
        at, envelope = record.envelope.seq, record.envelope
        match record.event:
            case e.TurnStarted(iteration=iteration):
                self.turns[envelope.scope, iteration] = SideTurn(scope=envelope.scope, iteration=iteration, at=at, calls={})
            case e.Planned() as event:
                self._planned(event, self.turns.get((envelope.scope, envelope.iteration)), at)
            case e.UserReplied(ask_id=ask, reply=reply):
                self.replies[ask] = reply, at
            case e.Forked(edits=edits):
                for call, value in edits.get("results", {}).items():
                    if call in self.calls:
                        self.calls[call].outcome, self.calls[call].outcome_at = _came_to(*outcome_of(value)), at
                self.replies |= {ask: (reply, at) for ask, reply in edits.get("replies", {}).items()}
            case event:
                call = self.calls.get(getattr(event, "call", ""))
                if call is not None:
                    _happened(call, event, at)

    def _planned(self, event: e.Planned, turn: SideTurn | None, at: int) -> None:
        if turn is None:
            return
        wanted = (event.embedded,) if event.embedded else tuple(a for a in event.actions if isinstance(a, ToolCall))
        control = [a for a in event.actions if not isinstance(a, ToolCall)]
        turn.decision = [_bare(action) for action in control] or ([{"type": "tool_calls", "calls": len(wanted)}] if wanted else [])
        turn.said_at = at
        for index, action in enumerate((*wanted, *event.dropped)):
            call_id = f"{turn.scope}.{turn.iteration}.{index}"
            self.calls[call_id] = turn.calls[call_id] = SideCall(tool=action.tool, args=action.args, at=at)


def _happened(call: SideCall, event: Any, at: int) -> None:
    match event:
        case e.CallHealed(tool=tool, args=args):
            call.tool, call.args, call.at = tool, args, at
        case e.ApprovalEdited(args=args):
            call.args, call.at = args, at
        case e.PolicyDecided(decision=decision, rule=rule):
            call.policy, call.policy_at = {"decision": decision, "rule": rule}, at
        case e.GuardBlocked(guard=guard):
            call.policy, call.policy_at = {"decision": "deny", "rule": f"guard {guard}"}, at
        case e.ToolFinished() | e.ToolReconciled():
            if not (isinstance(event, e.ToolReconciled) and event.outcome == "again"):
                call.outcome, call.outcome_at = _outcome(event), at
        case e.ToolInDoubt():
            call.outcome, call.outcome_at = {"error": "in_doubt"}, at
        case e.MetaToolAnswered(content=content, success=success):
            call.outcome, call.outcome_at = {"result" if success else "error": content}, at
        case _:
            pass


def _outcome(event: e.ToolFinished | e.ToolReconciled) -> Any:
    artifact = event.artifact if isinstance(event, e.ToolFinished) else None
    if artifact is not None:
        return {"artifact": artifact.key, "bytes": artifact.size_bytes}
    return _came_to(event.result, event.error)


def _came_to(result: msgspec.Raw, error: e.ToolError | None) -> Any:
    if error is not None:
        return {"error": error.code, "message": error.message}
    return {"result": msgspec.json.decode(result) if result else None}


def _bare(action: Any) -> dict[str, Any]:
    return {k: v for k, v in cast("dict[str, Any]", _plain(action)).items() if k not in NEUTRAL}


def _plain(value: Any) -> Any:
    return msgspec.json.decode(msgspec.json.encode(value))


# Differences ------------------------------------------------------------------------------------------------------------------------------


def diff(a: Sequence[Record], b: Sequence[Record], a_state: RunState, b_state: RunState) -> Diff:
    """Return the differences between two histories and between their final states."""
    shared = _shared(a, b)
    one, other = Side(a), Side(b)
    made, makes = Counter(c.tool for c in one.calls.values()), Counter(c.tool for c in other.calls.values())
    found = [*_beginnings(a_state, b_state), *_turns(one, other), *_ends(a, b, a_state, b_state)]
    return Diff(
        a=a_state.run_id,
        b=b_state.run_id,
        shared=shared,
        differences=tuple(found),
        tools_added=dict(sorted((makes - made).items())),
        tools_removed=dict(sorted((made - makes).items())),
        a_usage=a_state.inherited.plus(a_state.usage),
        b_usage=b_state.inherited.plus(b_state.usage),
    )


def _shared(a: Sequence[Record], b: Sequence[Record]) -> int:
    count = 0
    for one, other in zip(a, b, strict=False):
        if one.digest != other.digest:
            break
        count += 1
    return count


def _beginnings(a: RunState, b: RunState) -> Iterator[Difference]:
    """Yield the differences in what the runs were told."""
    if a.goal != b.goal:
        yield Difference(what="goal", a=a.goal, b=b.goal)
    for name in sorted({*a.variables, *b.variables}):
        if a.variables.get(name) != b.variables.get(name):
            yield Difference(what=f"variables.{name}", a=a.variables.get(name), b=b.variables.get(name))
    pairs: tuple[tuple[str, Any, Any], ...] = (("agent", a.agent, b.agent), ("budget", a.budget, b.budget))
    for part, mine, theirs in pairs:
        for field in type(mine).__struct_fields__:
            one, other = getattr(mine, field), getattr(theirs, field)
            if one != other and (part, field) not in (("agent", "budget"), ("agent", "meta")):
                yield Difference(what=f"{part}.{field}", a=_plain(one), b=_plain(other))


def _turns(one: Side, other: Side) -> Iterator[Difference]:
    """Yield the differences turn by turn, in the order of the first run, then the turns that only the second has."""
    for key in dict.fromkeys((*one.turns, *other.turns)):
        mine, theirs = one.turns.get(key), other.turns.get(key)
        if mine is None or theirs is None:
            yield Difference(
                what="turn", scope=key[0], iteration=key[1], a=_told(mine), b=_told(theirs), a_at=mine.at if mine else 0, b_at=theirs.at if theirs else 0
            )  # fmt: skip
            continue
        if mine.decision != theirs.decision:
            yield Difference(
                what="decision",
                scope=key[0],
                iteration=key[1],
                a=mine.decision,
                b=theirs.decision,
                a_at=mine.said_at or mine.at,
                b_at=theirs.said_at or theirs.at,
            )
        for call in dict.fromkeys((*mine.calls, *theirs.calls)):
            yield from _calls(call, mine.calls.get(call), theirs.calls.get(call), key)
        ask = f"{key[0]}.{key[1]}"
        (reply, at), (answer, there) = one.replies.get(ask, (None, 0)), other.replies.get(ask, (None, 0))
        if reply != answer:
            yield Difference(what="reply", scope=key[0], iteration=key[1], call=ask, a=reply, b=answer, a_at=at, b_at=there)


def _told(turn: SideTurn | None) -> Any:
    if turn is None:
        return None
    return [c.tool for c in turn.calls.values()] or turn.decision


def _calls(call: str, mine: SideCall | None, theirs: SideCall | None, key: tuple[str, int]) -> Iterator[Difference]:
    """Yield the first difference of one call: the tool, else the arguments, else the decision and the outcome."""

    def differs(what: str, a: Any, b: Any, a_at: int, b_at: int) -> Difference:
        return Difference(what=what, scope=key[0], iteration=key[1], call=call, a=a, b=b, a_at=a_at, b_at=b_at)

    if mine is None or theirs is None or mine.tool != theirs.tool:
        one, other = (None if c is None else {"tool": c.tool, "args": c.args} for c in (mine, theirs))
        yield differs("tool", one, other, mine.at if mine else 0, theirs.at if theirs else 0)
        return
    if mine.args != theirs.args:
        yield differs("arguments", mine.args, theirs.args, mine.at, theirs.at)
    if mine.policy != theirs.policy:
        yield differs("policy", mine.policy, theirs.policy, mine.policy_at, theirs.policy_at)
    if mine.outcome != theirs.outcome:
        yield differs("result", mine.outcome, theirs.outcome, mine.outcome_at, theirs.outcome_at)


def _ends(a: Sequence[Record], b: Sequence[Record], a_state: RunState, b_state: RunState) -> Iterator[Difference]:
    for what in ("status", "reason", "output"):
        mine, theirs = getattr(a_state, what), getattr(b_state, what)
        if mine != theirs:
            at, there = (records[-1].envelope.seq if records else 0 for records in (a, b))
            yield Difference(what=what, a=mine, b=theirs, a_at=at, b_at=there)


# The first step ---------------------------------------------------------------------------------------------------------------------------

_SILENT = (e.RunResumed, e.ModelCallStarted, e.ModelCallFinished, e.ModelCallFailed, e.TenantBalance, e.RunWaiting)
"""Records about how a run was resumed, not about what it did."""
_MEASURED = ("key", "signal", "by", "usage", "reserved", "policy", "facts", "requested_at", "expires_at", "due", "digest", "digests", "host",
             "source", "text", "thinking", "provider_data", "model", "reason", "strategy_version", "parent", "trust", "untold",
             "via", "levels", "args_digest")  # fmt: skip
"""Fields that may differ between runs that do the same. At the end of a run, the reason counts."""


def bisect(a: Sequence[Record], b: Sequence[Record]) -> Parting | None:
    """Return the first step at which two histories part; None if they do the same throughout."""
    mine, theirs = _steps(a), _steps(b)
    found: list[tuple[float, Parting]] = []
    for scope in dict.fromkeys((*mine, *theirs)):
        for common, (one, other) in enumerate(zip_longest(mine.get(scope, ()), theirs.get(scope, ()))):
            if one is not None and other is not None and one[2] == other[2]:
                continue
            place = min(step[0] for step in (one, other) if step is not None)
            found.append((place, _parting(scope, common, one, other)))
            break
    return min(found, key=lambda pair: pair[0])[1] if found else None


_Step = tuple[int, Record, Any]


def _parting(scope: str, common: int, one: _Step | None, other: _Step | None) -> Parting:
    mine, theirs = (None if step is None else step[1].envelope for step in (one, other))
    known = mine or theirs
    return Parting(
        scope=scope,
        iteration=known.iteration if known else 0,
        common=common,
        a_run=mine.run if mine else "",
        b_run=theirs.run if theirs else "",
        a_at=mine.seq if mine else 0,
        b_at=theirs.seq if theirs else 0,
        a=None if one is None else one[2],
        b=None if other is None else other[2],
    )


def _steps(records: Sequence[Record]) -> dict[str, list[_Step]]:
    """Return the steps of each pass, each with its position in the history. A turn that a fork began again counts once."""
    found: dict[str, list[_Step]] = {}
    forked = False
    for place, record in enumerate(records):
        said, before = _said(record.event), found.setdefault(record.envelope.scope, [])
        forked = forked or isinstance(record.event, e.Forked)
        if said is None or (forked and any(known[2] == said for known in _of_turn(before, record))):
            continue
        before.append((place, record, said))
    return found


def _of_turn(steps: Sequence[_Step], record: Record) -> Iterator[_Step]:
    """Yield the steps of the record's turn, if this is the turn's last record."""
    for step in reversed(steps):
        if step[1].envelope.iteration != record.envelope.iteration:
            return
        yield step


def _said(event: Any) -> Any:
    """Return a record reduced to what counts, or None if the record does not count."""
    if event is None or isinstance(event, _SILENT):
        return None
    if isinstance(event, e.EffectRecorded) and (event.label == "now" or event.phase == e.ASIDE):
        return None
    data = cast("dict[str, Any]", _plain(event))
    match event:
        case e.ToolStarted(attempt=1, side_effect="none" | "read"):  # it has a record of its own only if passes run side by side
            return None
        case e.Forked():
            return {"type": data["type"], "edits": event.edits} if event.edits else None
        case e.Planned():
            actions = [_bare(action) for action in (*event.actions, *((event.embedded,) if event.embedded else ()))]
            return {"type": data["type"], "actions": actions, "dropped": [_bare(call) for call in event.dropped]}
        case _:
            ends = isinstance(event, (e.RunFinished, e.PassFinished))
            return {k: v for k, v in data.items() if not k.endswith("_ms") and (k not in _MEASURED or (ends and k == "reason"))}
