"""What a fork begins with: its parent's state, made the beginning of a new run and changed by the edits. Pure.

Waits, questions to people, and charges belong to the parent and stay there. A control action whose wait was open is executed again, and a call that
has not begun is decided again. Finished passes and recorded values are kept, so the strategy gets back to where it was without doing anything twice.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, cast

import msgspec

from detent.config.profile import sized
from detent.config.verifying import entries_of
from detent.core.actions import AskUser, JoinSubagent, Schedule, SpawnSubagent
from detent.core.agent import AgentSpec
from detent.core.budget import NOTHING, Budget, Usage
from detent.core.errors import ConfigError, UnknownName
from detent.core.events import CANCELLED, TITLE, AnyEvent, Forked, ToolError, ToolFinished, UserReplied, failure_of
from detent.core.fold import again_from, answer_in, continuing, evolve
from detent.core.history import Seq
from detent.core.records import Envelope, Record
from detent.core.state import CLOSED, CallState, Child, Item, KernelState, RunState
from detent.ports import json_problem

replace = msgspec.structs.replace

OF_AGENT = tuple(field for field in AgentSpec.__struct_fields__ if field not in ("name", "budget", "meta"))
EDITABLE = ("goal", "budget", "variables", "results", "replies", *OF_AGENT)
"""What edits may name beside the parts of the agent."""

NOT_INHERITED = "not_inherited"
"""The status of a child, in a fork, that was open when the fork was branched: it is its parent's."""
_DECIDED = ("policy_stopped", "approval_rejected", "approval_expired")
_BY_CALL = ("fatal_tool_error", "policy_denied", "done_tool")
_BEGINNING = datetime(1970, 1, 1, tzinfo=UTC)


# The base of a fork -----------------------------------------------------------------------------------------------------------------------


def branch(state: RunState, forked: Forked, run_id: str) -> RunState:
    """Return the state that the first record of the fork `run_id` is folded onto; `state` is that of the parent after record `forked.sequence`.

    Raise `IllegalEvent` for edits that do not fit it.
    """
    reopened = state.status in ("failed", "stopped")
    again = continuing(state, repeats=forked.repeats) if reopened else set[str]()
    anew = {f"-1:{timer}:0" for timer in state.timers} | ({TITLE} if "goal" in forked.edits else set[str]())
    failed = state.reason == "kernel_error"  # and what failed then is made again
    state = _outcomes(replace(state, status="running", budget=_budget(state, forked)), forked)
    passes = {scope: _branched(known, state, forked, again=scope in again) for scope, known in state.passes.items()}
    repeated = forked.repeats and (reopened or state.openings > 1)
    if repeated or forked.edits.keys() - {"budget"}:  # the strategy may give its passes other input, on purpose
        passes = {scope: replace(known, digest="") for scope, known in passes.items()}
    base = replace(
        state,
        run_id=run_id,
        seq=0,
        digest="",
        started_at=None,
        passes=passes,
        ancestors=(state.run_id, *state.ancestors),
        inherited=state.inherited.plus(_used(state)),
        interventions=tuple([replace(one, seq=0) for one in state.interventions]),
        fork_effects=forked.effects,
        fork_edits={},
        usage=NOTHING,
        calls_of={},
        running_ms=0.0,
        away_ms=0.0,
        read_at=None,
        openings=1,
        reserved={},
        approvals={},
        asks={},
        timers={},
        children={name: _inherited(child) for name, child in state.children.items()},
        held=NOTHING,
        effects=state.effects.only(lambda key, value: key not in anew and not (failed and key in again and failure_of(value) is not None)),
        unanswered=() if reopened else state.unanswered,
        cancel=None,
        dead_letter="",
        reason="",
        dimension="",
        limit=None,
        used=None,
        output=None,
        partial="",
        error="",
    )
    return _changed(base, forked.edits)


def _inherited(child: Child) -> Child:
    """Return a child as the fork knows it: what it gave is inherited, and an open one stays its parent's."""
    return child if child.status != "open" else replace(child, status=NOT_INHERITED, held=NOTHING, waits="")


def _used(state: RunState) -> Usage:
    """Return the parent's usage without readings that had begun and have no outcome: the fork makes them, and counts them."""
    begun = sum(call.status == "started" for known in state.passes.values() for call in known.calls.values())
    return replace(state.usage, tool_calls=state.usage.tool_calls - begun) if begun else state.usage


def _branched(known: KernelState, state: RunState, forked: Forked, *, again: bool) -> KernelState:
    """Return a pass as the fork begins with it; `again`: it failed with its run, and continues."""
    calls = {call_id: call if call.status == "finished" else _undecided(call) for call_id, call in known.calls.items()}
    now = replace(
        known,
        effects={key: value for key, value in known.effects.items() if key != CANCELLED},
        calls=calls,
        usage=NOTHING,
        balance=None,
        balance_at=NOTHING,
        metered=False,
        refused=0,
        wrapping_up=False,
        acted=known.acted and not _waits(known, state),
    )
    if again:
        return replace(again_from(now), effects=now.effects) if forked.repeats else again_from(now)
    unfinished = any(call.status != "finished" for call in calls.values())
    if unfinished and known.status not in CLOSED and known.ended in _DECIDED:
        return replace(now, ended="", error="", output=None)
    return now


def _undecided(call: CallState) -> CallState:
    """Return a call without an outcome as it was before anybody decided on it."""
    return replace(call, status="planned", attempt=0, key="", digest="", refused="", approved_by=(), why="")


def _waits(known: KernelState, state: RunState) -> bool:
    """Whether the pass waits for the result of its control action; the fork asks for it again."""
    if known.plan is None or not known.plan.actions or known.status in CLOSED:
        return False
    match known.plan.actions[0]:
        case AskUser():
            return f"{known.scope}.{known.iteration}" in state.asks
        case Schedule():
            return f"{known.scope}.{known.iteration}" in state.timers
        case SpawnSubagent() | JoinSubagent():
            return any(child.status == "open" and child.join and child.scope == known.scope for child in state.children.values())
        case _:
            return False


# Edits ------------------------------------------------------------------------------------------------------------------------------------


def checked_edits(edits: Mapping[str, Any], agent: AgentSpec) -> dict[str, Any]:
    """Return edits as the log records them, as plain JSON data. Raise `ConfigError` for invalid edits, `BudgetRefused`."""
    for name in edits:
        if name not in EDITABLE:
            raise UnknownName("part of a run to edit", name, EDITABLE)
    if problem := json_problem(dict(edits)):
        raise ConfigError(f"edits must be JSON data, because the log records them: {problem}")
    plain: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(edits))
    for name, wanted in (("variables", dict), ("results", dict), ("replies", dict), ("budget", dict), ("goal", str)):
        if name in plain and not isinstance(plain[name], wanted):
            raise ConfigError(f"the edit of {name!r} is {plain[name]!r}; give {'text' if wanted is str else 'an object'}")
    if "goal" in plain and not plain["goal"].strip():
        raise ConfigError("the edited goal is empty; say what to achieve")
    if "budget" in plain:
        unknown = [field for field in plain["budget"] if field not in Budget.__struct_fields__]
        if unknown:
            raise UnknownName("bound", unknown[0], Budget.__struct_fields__)
        plain["budget"] = {field: value for field, value in plain["budget"].items() if value is not None}
        try:
            msgspec.convert(plain["budget"], Budget)
        except msgspec.ValidationError as error:
            raise ConfigError(f"the edit of 'budget' does not fit: {error}") from error
    if isinstance(plain.get("profile"), dict):
        plain["profile"] = sized(plain["profile"], str(plain.get("model", agent.model)))
    if "verify" in plain:
        plain["verify"] = entries_of(plain["verify"], "the edit of the agent")[0]
    try:
        edited_agent(agent, plain)
    except msgspec.ValidationError as error:
        raise ConfigError(f"the edit of the agent does not fit: {error}") from error
    return plain


def edited_agent(agent: AgentSpec, edits: Mapping[str, Any]) -> AgentSpec:
    """Return the agent with the edits of its parts; raise `msgspec.ValidationError`."""
    parts = {field: edits[field] for field in OF_AGENT if field in edits}
    if not parts:
        return agent
    return replace(agent, **{field: getattr(msgspec.convert({"name": "", field: parts[field]}, AgentSpec), field) for field in parts})


def _budget(state: RunState, forked: Forked) -> Budget:
    edit = forked.edits.get("budget")
    return state.budget if edit is None else msgspec.convert(edit, Budget).over(state.budget)


def _outcomes(state: RunState, forked: Forked) -> RunState:
    """Fill in the open questions and the calls without an outcome that the edits name."""
    events: list[tuple[str, AnyEvent]] = []
    for ask, reply in forked.edits.get("replies", {}).items():
        if ask in state.asks:
            events.append((state.asks[ask].scope, UserReplied(ask_id=ask, reply=reply, by="fork")))
    for call, value in forked.edits.get("results", {}).items():
        known = state.call(call)
        if known is not None and known.status != "finished":
            result, error = outcome_of(value)
            events.append((call.rsplit(".", 2)[0], ToolFinished(call=call, result=result, error=error)))
    for scope, event in events:
        at = state.updated_at or _BEGINNING
        envelope = Envelope(run=state.run_id, seq=state.seq + 1, at=at, scope=scope)
        state = replace(evolve(state, Record(envelope, event, state.digest)), seq=state.seq, status="running")
    return state


def outcome_of(value: Any) -> tuple[msgspec.Raw, ToolError | None]:
    """Return what an edited result means: a JSON value, or {"error": TEXT or {"code", "message"}} for a failure."""
    if not isinstance(value, dict) or set(cast("dict[str, Any]", value)) != {"error"}:
        return msgspec.Raw(msgspec.json.encode(value)), None
    said = cast("dict[str, Any]", value)["error"]
    if isinstance(said, dict):
        known = cast("dict[str, Any]", said)
        return msgspec.Raw(), ToolError(code=str(known.get("code") or "handler_error"), message=str(known.get("message", "")))
    return msgspec.Raw(), ToolError(code="handler_error", message=str(said))


def _changed(base: RunState, edits: Mapping[str, Any]) -> RunState:
    """Apply the edits of the run as a whole, and of existing outcomes."""
    goal = edits.get("goal", base.goal)
    agent = edited_agent(base.agent, edits)
    passes = base.passes
    if goal != base.goal:
        passes = {scope: replace(known, steps=_told(known.steps, base.goal, goal)) for scope, known in passes.items()}
    for call, value in edits.get("results", {}).items():
        scope = call.rsplit(".", 2)[0]
        if scope in passes:
            passes = {**passes, scope: _with_result(passes[scope], call, value)}
    for ask, reply in edits.get("replies", {}).items():
        scope, _, iteration = ask.rpartition(".")
        if scope in passes and iteration.isdigit():
            passes = {**passes, scope: _with_reply(passes[scope], int(iteration), reply)}
    return replace(
        base,
        goal=goal,
        agent=agent,
        strategy=agent.strategy if "strategy" in edits else base.strategy,
        output_schema=agent.output_schema if "output_schema" in edits else base.output_schema,
        variables={**base.variables, **edits["variables"]} if "variables" in edits else base.variables,
        passes=passes,
    )


def _told(steps: Seq[Item], old: str, new: str) -> Seq[Item]:
    """Return a transcript that begins with the present goal. If it begins with a task of its own, that stays."""
    if not steps or steps[0].text != old:
        return steps
    return Seq([replace(steps[0], text=new), *steps[1:]])


def _with_reply(known: KernelState, iteration: int, reply: Any) -> KernelState:
    """Return the pass with the user's words of that turn replaced."""
    text = reply if isinstance(reply, str) else msgspec.json.encode(reply).decode()
    return replace(
        known,
        steps=Seq([replace(item, text=text) if item.kind == "user" and item.iteration == iteration else item for item in known.steps]),
    )


def _with_result(known: KernelState, call_id: str, value: Any) -> KernelState:
    """Return the pass with another outcome for a call that had one."""
    old = next((item for item in known.results if item.call_id == call_id), None)
    current = known.calls.get(call_id)
    old = current.item if old is None and current is not None else old
    if old is None:
        return known
    result, error = outcome_of(value)
    item = replace(old, ok=error is None, result=result, error=error, artifact=None)
    now = replace(
        known,
        steps=Seq([item if one.kind == "tool" and one.call_id == call_id else one for one in known.steps]),
        results=Seq([item if one.call_id == call_id else one for one in known.results]),
    )
    if current is None or current.item is None:
        return now
    better = int(error is None) - int(bool(old.ok))
    now = replace(
        now, calls={**now.calls, call_id: replace(current, item=item)}, turn_ok=now.turn_ok + better, turn_bad=now.turn_bad - better
    )
    if now.status in CLOSED or now.ended not in _BY_CALL:
        return now
    if now.ended == "done_tool" and current.ends_turn and error is None:
        return replace(now, output=answer_in(item.content))
    return replace(now, ended="", error="", output=None)
