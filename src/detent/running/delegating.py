"""Children as calls: the tools by which a run starts, awaits and ends child runs, and what such a call records. Pure.

A child is a run of its own. `agent_NAME` starts one and waits for its result; `spawn_agent`, `join_agent` and `cancel_agent` do this step by step. These
are calls like any other, so guards, policy, approval, budget and journal apply. What a call records follows from the run's state alone: a replay makes
it again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from hashlib import sha256
from typing import Annotated, Any, Literal

import msgspec

from detent.config.agents import PREFIX, Agent, entry_of
from detent.config.groups import ChildBounds
from detent.config.output_types import refuse_unusable
from detent.core import events as e
from detent.core.actions import AnyAction, CancelSubagent, JoinSubagent, SpawnSubagent, ToolCall, is_blank
from detent.core.agent import AgentSpec
from detent.core.budget import FIELDS, Budget, Usage, remaining
from detent.core.errors import DetentError, InvalidArguments, unknown_arguments
from detent.core.state import CallState, Child, RunState
from detent.ports import Plan, Tool, ToolContext, ToolOutcome, ToolSpec
from detent.ports.clocks import due_at
from detent.ports.outside import taken
from detent.running.branching import NOT_INHERITED
from detent.running.lineage import stub

SUMS = ("iterations", "model_calls", "tool_calls", "failures", "input_tokens", "output_tokens", "total_tokens", "cost_usd")
"""The dimensions that add up over runs side by side; times and depths do not."""
_LIMITS = -4, "children"
"""The phase and the label of the value that has the limits of an engine that are not the usual ones."""


MANAGING = ("spawn_agent", "join_agent", "cancel_agent", "message_agent")
"""The tools beside `agent_NAME`. An agent has those that it lists."""
BACKGROUND = "#background.1"
"""The end of the id of a timer whose call waits no longer for its child; no pass waits for it."""


class Started(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The arguments of `agent_NAME`. `tools` and `scopes` leave the child only these of what it would have."""

    goal: str
    variables: dict[str, Any] = {}
    budget: dict[str, Any] = {}
    on_parent_end: e.OnParentEnd | None = None
    tools: tuple[str, ...] | None = None
    scopes: tuple[str, ...] | None = None


class Patient(Started, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The arguments of `agent_NAME` where `join_agent` collects a child later: after `auto_background` seconds the call waits no longer."""

    auto_background: Annotated[float, msgspec.Meta(gt=0)] | None = None


class Spawned(Started, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The arguments of `spawn_agent`."""

    agent: str
    output_schema: dict[str, Any] | None = None


class Joined(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The arguments of `join_agent`; after `auto_background` seconds the call waits no longer."""

    child: str
    auto_background: Annotated[float, msgspec.Meta(gt=0)] | None = None


class Told(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The arguments of `message_agent`."""

    child: str
    text: str


class Cancelled(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The arguments of `cancel_agent`; `wait`: for nothing, until the child has taken the cancellation, or until it has ended."""

    child: str
    why: str = ""
    wait: Literal["none", "accepted", "ended"] = "none"


class Refused(DetentError):
    """A call about children cannot be carried out; it has a failed observation with this code."""

    def __init__(self, code: str, why: str) -> None:
        self.error_code = code
        super().__init__(why)


class AgentTool:
    """A tool that the kernel carries out by starting, awaiting or ending child runs."""

    def __init__(self, name: str, description: str, kind: type[msgspec.Struct], *, sinks: tuple[str, ...] | None = None) -> None:
        shape = msgspec.json.schema(kind)["$defs"][kind.__name__]
        schema = {key: value for key, value in shape.items() if key not in ("title", "description")}
        self._kind = kind
        self.spec = ToolSpec(
            name=name,
            description=description,
            input_schema=schema,
            side_effect="write",
            idempotent=True,
            timeout_s=None,
            delegates=True,
            sinks=sinks,
            trust="trusted",  # of what a child returned, its origin tells
        )

    @property
    def name(self) -> str:
        """The name that agents list."""
        return self.spec.name

    def check(self, args: dict[str, Any]) -> dict[str, Any]:
        """Return the arguments; raise `InvalidArguments`."""
        try:
            given = msgspec.convert(args, self._kind)
            if isinstance(given, Told) and is_blank(given.text):
                raise InvalidArguments("the text is blank; say what the child is to know")
            if isinstance(given, Started):
                if not given.goal.strip():
                    raise InvalidArguments("the goal is empty; say what to achieve")
                if unknown := unknown_arguments("budget", given.budget, Budget.__struct_fields__):
                    raise InvalidArguments(unknown)
                msgspec.convert(given.budget, Budget)
            if isinstance(given, Spawned) and given.output_schema:
                refuse_unusable(given.output_schema, "output_schema")
        except (msgspec.ValidationError, DetentError) as error:
            raise InvalidArguments(f"{self.name}: {error}") from None
        return args

    async def run(self, args: dict[str, Any], context: ToolContext) -> ToolOutcome:
        """Raise: the kernel carries out these calls itself and never calls this."""
        return ToolOutcome(kind="failed", error_code="handler_error", message=f"{self.name} is carried out by the kernel")

    async def settle(self, context: ToolContext) -> ToolOutcome | None:
        """Return None: what a child has done is in its own log."""
        return None


@cache
def managing(name: str) -> AgentTool:
    """Return the tool of this name that the kernel carries out; its child is one of the run's own, so its id needs no proof."""
    match name:
        case "spawn_agent":
            return AgentTool(name, "Start an agent on a goal and continue meanwhile. Returns the id of the child.", Spawned)
        case "join_agent":
            return AgentTool(name, "Wait for a child that was started before, and return its result.", Joined, sinks=())
        case "cancel_agent":
            return AgentTool(name, "Cancel a child. It ends with what it has so far.", Cancelled, sinks=())
        case _:
            return AgentTool(name, "Tell a child something, or answer its question. It sees the text at its next turn.", Told, sinks=())


def subagents_of(agent: AgentSpec) -> dict[str, AgentSpec | str]:
    """Return who the agent may start, by name: as data, or as the name of an agent that the engine knows."""
    said = {name: entry_of(one)[0] for name, one in agent.subagents.items()}
    return {name: one if isinstance(one, str) else msgspec.convert(one, AgentSpec) for name, one in said.items()}


def tool_for(name: str, agent: AgentSpec) -> Tool | None:
    """Return the tool of this name by which the agent starts, awaits, tells or ends children; None if it has none."""
    if not agent.subagents:
        return None
    if name in MANAGING and name in agent.tools:
        return managing(name)
    one = name.removeprefix(PREFIX)
    if not name.startswith(PREFIX) or one not in agent.subagents:
        return None
    said, _ = entry_of(agent.subagents[one])
    what = said if isinstance(said, str) else said.get("instructions", "")
    how = Patient if "join_agent" in agent.tools else Started
    return AgentTool(name, f"Let the agent {one!r} work on a goal, and wait for its result. {what}".strip(), how)


def names_below(agent: AgentSpec, known: Mapping[str, Agent[Any]], seen: frozenset[str] = frozenset()) -> set[str]:
    """Return the names of all tools that an agent, or one that it may start at any depth, can call by its declaration. `known`: the engine's agents.

    A strategy calls `spawn_agent` though its agent does not list it.
    """
    found = {*agent.tools, *(f"{PREFIX}{name}" for name in agent.subagents), *(["spawn_agent"] if agent.subagents else [])}
    for one in subagents_of(agent).values():
        if not isinstance(one, str):
            found |= names_below(one, known, seen)
        elif one in known and one not in seen:
            found |= names_below(known[one].spec(), known, seen | {one})
    return found


def child_id(run_id: str, call_id: str) -> str:
    """Return the id of the child that a call starts: it follows from the parent, its pass and the call."""
    plain, at, tenant = run_id.partition("@")
    return f"{plain[:150]}.c{sha256(f'{run_id} {call_id}'.encode()).hexdigest()[:12]}{at}{tenant}"


def depth_of(state: RunState) -> int:
    """Return how many runs are above this one."""
    return 0 if state.delegated is None else state.delegated.depth


def records(calls: Sequence[CallState], state: RunState) -> list[e.AnyEvent]:
    """Return what these calls, which have begun, record. The sums that a run has left are shared by the children of a batch."""
    starts = [call for call in calls if _starts(call) and child_id(state.run_id, call.call_id) not in state.children]
    made: list[e.AnyEvent] = []
    count, first = len(state.children), left_of(state, taken(state), state.calls_of)
    used, calls_of, left = taken(state), dict(state.calls_of), first
    waits = {child.child: child.waits for child in state.children.values() if child.status == "open" and _waiting(state, child.waits)}
    for call in calls:
        try:
            if _starts(call):
                found = _spawn(call, state, first, left, parts=len(starts), count=count)
                if isinstance(found[0], e.SubagentSpawned):
                    used, count = used.plus(found[0].reserved), count + 1
                    bounds: dict[str, int] = dict(found[0].budget.max_calls_of or ())
                    for tool, most in bounds.items():
                        calls_of[tool] = calls_of.get(tool, 0) + most
                    left = left_of(state, used, calls_of)
            else:
                found = _about(call, state)
                if isinstance(last := found[-1], e.SubagentAwaited) and waits.setdefault(last.child, call.call_id) != call.call_id:
                    raise Refused("joined_already", f"call {waits[last.child]!r} waits for child {last.child!r} and gets its result")
        except Refused as refused:
            found = [e.ToolFinished(call=call.call_id, error=e.ToolError(code=refused.error_code, message=str(refused)))]
        made += found
    return made


def in_two(calls: Sequence[CallState], state: RunState) -> tuple[list[e.AnyEvent], list[e.ToolFinished], set[str]]:
    """Return what these calls record now, what they record once children have taken a cancellation, and these children."""
    accepted = {call.call_id: call.args["child"] for call in calls if call.tool == "cancel_agent" and call.args.get("wait") == "accepted"}
    made = records(calls, state)
    later = [event for event in made if isinstance(event, e.ToolFinished) and event.call in accepted and event.error is None]
    return [event for event in made if event not in later], later, {accepted[event.call] for event in later}


def left_of(state: RunState, used: Usage, calls_of: dict[str, int]) -> Budget:
    """Return what is left of the bounds of a run that has used this much."""
    left = remaining(state.budget, used, running_s=state.running_ms / 1000, total_s=state.total_s)
    most: dict[str, int] = dict(state.budget.max_calls_of or ())
    return msgspec.structs.replace(left, max_calls_of={tool: max(0, n - calls_of.get(tool, 0)) for tool, n in most.items()} or None)


def as_calls(plan: Plan, agent: AgentSpec) -> Plan:
    """Return a plan in which the control actions about children are calls of the tools that mean the same: there is one path to a child."""
    if not agent.subagents or not any(isinstance(action, (SpawnSubagent, JoinSubagent, CancelSubagent)) for action in plan.actions):
        return plan
    return msgspec.structs.replace(plan, actions=tuple([_as_call(action) for action in plan.actions]))


def _as_call(action: AnyAction) -> AnyAction:
    match action:
        case SpawnSubagent(agent=agent, goal=goal, budget=budget):
            ends = {} if action.on_parent_end is None else {"on_parent_end": action.on_parent_end}
            said = {"goal": goal, **({"budget": budget} if budget else {}), **ends}
            return (
                ToolCall(tool=f"{PREFIX}{agent}", args=said) if action.join else ToolCall(tool="spawn_agent", args={"agent": agent, **said})
            )
        case JoinSubagent(child=child):
            return ToolCall(tool="join_agent", args={"child": child})
        case CancelSubagent(child=child, why=why, wait=wait):
            return ToolCall(tool="cancel_agent", args={"child": child, "why": why, "wait": wait})
        case _:
            return action


def limits_of(state: RunState) -> ChildBounds:
    """Return how many children the run may start, and how deep: what its log has of the engine's limits, else the usual ones."""
    said = state.effects.get(f"{_LIMITS[0]}:{_LIMITS[1]}:0")
    return ChildBounds() if said is None else msgspec.convert(said, ChildBounds)


def changed_limits(state: RunState, limits: ChildBounds) -> list[e.EffectRecorded]:
    """Return the record of an engine's limits if the run's log has others; how many advance at once decides nothing that is recorded."""
    limits = msgspec.structs.replace(limits, at_once=ChildBounds().at_once)
    if limits == limits_of(state):
        return []
    return [e.EffectRecorded(phase=_LIMITS[0], label=_LIMITS[1], value=msgspec.to_builtins(limits))]


def says_limits(event: e.AnyEvent | None) -> bool:
    """Whether a record is one of `changed_limits`."""
    return isinstance(event, e.EffectRecorded) and (event.phase, event.label) == _LIMITS


def _waiting(state: RunState, call_id: str) -> bool:
    call = state.call(call_id) if call_id else None
    return call is not None and call.status != "finished"


def _starts(call: CallState) -> bool:
    return call.tool == "spawn_agent" or call.tool.startswith(PREFIX)


def _spawn(call: CallState, state: RunState, first: Budget, left: Budget, *, parts: int, count: int) -> list[e.AnyEvent]:
    """Return what a call that starts a child records. `first` was left when the batch began, `left` is left beside the children before this one."""
    child, waits = child_id(state.run_id, call.call_id), call.tool != "spawn_agent"
    name = call.tool.removeprefix(PREFIX) if waits else str(call.args["agent"])
    known = subagents_of(state.agent)
    done: list[e.AnyEvent] = [] if waits else [_finished(call, {"child": child})]
    if child in state.children:  # its worker died after it was spawned
        return done or [e.SubagentAwaited(child=child, call=call.call_id)]
    entry = entry_of(state.agent.subagents[name])[1] if name in known else {}
    if state.fork_effects == "dry_run":
        if open_there := [child for one in state.ancestors if (child := state.children.get(child_id(one, call.call_id))) is not None]:
            raise _not_inherited(open_there[0])
        answered = stub(call.tool)
        return [e.ToolFinished(call=call.call_id, result=msgspec.Raw(answered.result), source=answered.source)]
    if name not in known:
        raise Refused("unknown_agent", f"there is no agent {name!r} to start; this agent may start: {', '.join(known)}")
    limits = limits_of(state)
    if depth_of(state) >= limits.depth:
        raise Refused(
            "too_deep", f"this run is {depth_of(state)} levels below the root, and may start no children: {limits.depth} are allowed"
        )
    if count >= limits.per_run:
        raise Refused("too_many_children", f"this run has started {count} children, {limits.per_run} are allowed")
    said, tools, scopes = known[name], call.args.get("tools"), call.args.get("scopes")
    if isinstance(said, AgentSpec) and (other := [tool for tool in tools or () if tool not in said.tools]):
        raise Refused("tools_not_allowed", f"agent {name!r} has no tools {', '.join(other)}; it has: {', '.join(said.tools) or 'none'}")
    if other := [scope for scope in scopes or () if scope not in state.host.scopes]:
        raise Refused("scopes_not_allowed", f"this run has no scopes {', '.join(other)}, so its children have none of these")
    own = said.budget if isinstance(said, AgentSpec) else Budget()
    asked = msgspec.convert(call.args.get("budget", {}), Budget).over(own)
    budget = portion(first, left, asked, parts)
    if empty := next((f"max_{one}" for one in SUMS if getattr(budget, f"max_{one}") == 0), ""):
        raise Refused("budget_exhausted", f"nothing of {empty} is left for a child")
    spawned = e.SubagentSpawned(
        child=child,
        agent=name,
        goal=call.args["goal"],
        join=waits,
        call=call.call_id,
        budget=budget,
        reserved=sums_of(budget),
        variables=call.args.get("variables", {}),
        output_schema=call.args.get("output_schema"),
        on_parent_end=call.args.get("on_parent_end") or entry.get("on_parent_end", "cancel"),
        tools=None if tools is None else tuple(tools),
        scopes=None if scopes is None else tuple(scopes),
    )
    lasts = call.args.get("auto_background") or (entry.get("auto_background") if "join_agent" in state.agent.tools else None)
    return [spawned, *(_timed(call, lasts, state) if waits else ()), *done]


def _timed(call: CallState, lasts: float | None, state: RunState) -> list[e.AnyEvent]:
    """Return the timer of a call that waits for its child no longer than that; the log's last record has the time."""
    due = None if lasts is None else due_at("", lasts, state.updated_at)
    return [] if due is None else [e.ScheduleSet(timer_id=f"{call.call_id}{BACKGROUND}", due=due)]


def _about(call: CallState, state: RunState) -> list[e.AnyEvent]:
    """Return what `join_agent`, `message_agent` and `cancel_agent` record."""
    child = call.args["child"]
    known = state.children.get(child)
    if known is None:
        raise Refused("unknown_child", f"this run has no child {child!r} (it has: {', '.join(state.children) or 'none'})")
    if call.tool == "cancel_agent":
        cancelled = (
            []
            if known.status != "open" or known.cancel
            else [e.SubagentCancelled(child=child, why=call.args.get("why", ""), call=call.call_id)]
        )
        if known.status == "open" and call.args.get("wait") == "ended":
            return [*cancelled, e.SubagentAwaited(child=child, call=call.call_id)]
        return [*cancelled, _finished(call, {"child": child, "status": known.status if known.status != "open" else "cancelling"})]
    if call.tool == "message_agent":
        if known.status == NOT_INHERITED:
            raise Refused(NOT_INHERITED, f"child {child!r} belongs to the run above this fork")
        if known.status != "open" or known.cancel:
            ended = f"has ended ({known.status})" if known.status != "open" else f"was cancelled ({known.cancel})"
            raise Refused("child_ended", f"child {child!r} {ended}, so nobody would read the text")
        told = e.SubagentMessaged(child=child, text=call.args["text"], call=call.call_id)
        return [told, _finished(call, {"child": child, "status": "sent"})]
    if known.status == "open":
        return [*_timed(call, call.args.get("auto_background"), state), e.SubagentAwaited(child=child, call=call.call_id)]
    if known.status == NOT_INHERITED:
        return _again(call, known, state)
    if known.result is None:
        raise Refused("joined_already", f"child {child!r} has ended ({known.status}), and another call has its result")
    result = msgspec.Raw(msgspec.json.encode(known.result.output)) if known.result.error is None else e.NO_RESULT
    return [e.ToolFinished(call=call.call_id, result=result, error=known.result.error, artifact=known.result.artifact)]


def _again(call: CallState, known: Child, state: RunState) -> list[e.AnyEvent]:
    """Return what a fork records that joins a child which was open when it was branched: the child is started again where effects are."""
    if state.fork_effects == "dry_run":
        raise _not_inherited(known)
    said = known.spawned
    args = {"goal": known.goal, "variables": said.variables, "budget": msgspec.to_builtins(said.budget)}
    args |= {"tools": said.tools, "scopes": said.scopes, "on_parent_end": said.on_parent_end}
    left = left_of(state, taken(state), state.calls_of)
    anew = msgspec.structs.replace(call, tool=f"{PREFIX}{known.agent}", args=args)
    return _spawn(anew, state, left, left, parts=1, count=len(state.children))


def _not_inherited(child: Child) -> Refused:
    why = f"child {child.child!r} of the run above had not returned when this fork was branched, and the fork starts nothing (effects: dry_run)"
    return Refused("not_inherited", why)


def _finished(call: CallState, result: dict[str, Any]) -> e.ToolFinished:
    return e.ToolFinished(call=call.call_id, result=msgspec.Raw(msgspec.json.encode(result)))


def portion(first: Budget, left: Budget, asked: Budget, parts: int) -> Budget:
    """Return the bound of one of `parts` children: what is asked for, else an equal part of what was left at `first`, with one for the parent.

    `left` is what is left now. Sums are never above that; times and depths are the smaller ones. A part may be 0.
    """
    said: dict[str, Any] = {}
    for name in FIELDS:
        rest, own, whole = getattr(left, name), getattr(asked, name), getattr(first, name)
        if rest is None:
            continue
        if name.removeprefix("max_") in SUMS and own is None:
            said[name] = min(rest, whole / (parts + 1) if name == "max_cost_usd" else whole // (parts + 1))
        else:
            said[name] = rest if own is None else min(rest, own)
    most: dict[str, int] = dict(first.max_calls_of or ())
    rests: dict[str, int] = dict(left.max_calls_of or ())
    wanted: dict[str, int] = dict(asked.max_calls_of or ())
    shares = {tool: min(rests[tool], wanted.get(tool, limit // (parts + 1))) for tool, limit in most.items()}
    return _fitting(msgspec.structs.replace(asked, **said, max_calls_of={**wanted, **shares} or None))


def _fitting(budget: Budget) -> Budget:
    """Return the budget with bounds on tokens that one usage can reach together: input and output are at most the total."""
    total, given, output = budget.max_total_tokens, budget.max_input_tokens, budget.max_output_tokens
    if total is None:
        return budget
    if given is not None and output is not None and given + output > total:
        given = given * total // (given + output)
        output = total - given
    bounds = {name: None if bound is None else min(bound, total) for name, bound in (("input", given), ("output", output))}
    return msgspec.structs.replace(budget, **{f"max_{name}_tokens": bound for name, bound in bounds.items()})


def sums_of(budget: Budget) -> Usage:
    """Return the usage that reaches the sums of a budget: what is reserved for a child with this bound. Unset bounds reserve nothing."""
    total, given, output = budget.max_total_tokens or 0, budget.max_input_tokens, budget.max_output_tokens
    output = max(0, total - (given or 0)) if output is None else output
    given = max(0, total - output) if given is None else given
    return Usage(
        iterations=budget.max_iterations or 0,
        model_calls=budget.max_model_calls or 0,
        tool_calls=budget.max_tool_calls or 0,
        failures=budget.max_failures or 0,
        input_tokens=given,
        output_tokens=output,
        cost_usd=budget.max_cost_usd,
    )
