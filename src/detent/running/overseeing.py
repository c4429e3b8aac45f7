"""What runs wait for, down to the run that a person or nobody has to answer, and the tool with which an agent looks at its children."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import Any, Literal

import msgspec

from detent.config.agents import STATUS
from detent.core.agent import AgentSpec
from detent.core.budget import Usage
from detent.core.errors import DetentError, Explained, InvalidArguments, RunNotFound
from detent.core.state import Ask, Child, RunState
from detent.ports import EventStore, Tool, ToolContext, ToolOutcome, ToolSpec
from detent.running.delegating import tool_for
from detent.running.posting import PARENT, asked_parent
from detent.running.snapshots import load_run

LAST_WORDS = 2_000
"""How many characters of what a child said last, or asks, its parent is shown."""


class Wait(msgspec.Struct, metaclass=Explained, frozen=True, kw_only=True, omit_defaults=True):
    """What an unfinished run waits for: a `person`, its `parent`, a `time`, or that a child continues to `work`.

    `run_id` is the run that waits for it: the run itself or one below it, whose `status` it is. `path` has the agents from the root to that run. `what`
    says it in words, `about` is the call or the question.
    """

    run_id: str
    on: Literal["person", "parent", "time", "work"]
    status: str
    what: str
    about: str = ""
    path: tuple[str, ...] = ()


async def waits_of(store: EventStore, state: RunState) -> list[Wait]:
    """Return what a run waits for. If that is its children, return what these wait for, at any depth."""
    if state.terminal:
        return []
    wait = partial(Wait, run_id=state.run_id, path=path_of(state))
    person = partial(wait, on="person")
    found = [person(status="waiting_for_approval", what=f"approval of {one.tool}", about=call) for call, one in state.approvals.items()]
    for name, ask in state.asks.items():
        on = "parent" if await _listens(store, state, ask) else "person"
        found.append(wait(on=on, status="waiting_for_user", what=f"an answer: {ask.question}", about=name))
    found += [
        person(status="waiting_for_reconciliation", what="someone to check whether a call happened", about=one) for one in state.in_doubt
    ]
    if state.dead_letter:
        found.append(person(status="waiting_for_operator", what="an operator: its workers gave it up"))
    if state.status == "waiting_for_schedule":
        found += [
            wait(on="time", status=state.status, what=f"{due:%Y-%m-%d %H:%M:%S} UTC", about=name) for name, due in state.timers.items()
        ]
    for child in state.children.values() if state.status == "waiting_for_subagent" else ():
        if child.status == "open":
            found += await _below(store, child, path_of(state))
    return found


async def _below(store: EventStore, child: Child, path: tuple[str, ...]) -> list[Wait]:
    """Return what an open child waits for, or that it works."""
    works = [Wait(run_id=child.child, on="work", status="running", what="its work", path=(*path, child.agent))]
    try:
        head = await store.head(child.child)
        return works if head is None or head.status == "running" else await waits_of(store, await load_run(store, child.child)) or works
    except DetentError:  # erased or damaged: whoever loads it reports that
        return works


def path_of(state: RunState) -> tuple[str, ...]:
    """Return the agents from the root of the tree to this run."""
    return (state.agent.name,) if state.delegated is None else state.delegated.path


async def unanswered(store: EventStore, run_id: str) -> Ask | None:
    """Return what a child asks its parent, unless a message of its parent is on its way. Raise as `load_run`."""
    waiting = (await store.signals([run_id])).get(run_id, ())
    if any(one.kind == "message" and one.via == PARENT for one in waiting):
        return None
    return asked_parent(await load_run(store, run_id))


def listens(parent: RunState) -> bool:
    """Whether a parent can answer its children; otherwise only a person can."""
    return "message_agent" in parent.agent.tools and bool(parent.open_passes)


async def _listens(store: EventStore, state: RunState, ask: Ask) -> bool:
    if ask.to == "user" or asked_parent(state) is None:
        return False
    with suppress(DetentError):
        return listens(await load_run(store, state.parent))
    return False


def last_words(state: RunState) -> str:
    """Return the last text that the planner of a run gave with its actions."""
    return state.partial or next((one.partial for one in reversed(state.passes.values()) if one.partial), "")


class Status(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What `agent_status` says of a child. `last_words` and `asks` are the child's own words."""

    child: str
    agent: str
    status: str
    turns: int
    usage: Usage
    last_words: str = ""
    asks: str = ""
    waits_for: tuple[Wait, ...] = ()


class Asked(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The arguments of `agent_status`."""

    child: str = ""


class StatusTool:
    """Reads the logs of the children of a run. What it returns is untrusted: a child wrote a part of it."""

    spec = ToolSpec(
        name=STATUS,
        description="Look at a child that was started before, or (child left out) at all: status, turns, usage, its last words, and what it waits for.",
        input_schema={"type": "object", "properties": {"child": {"type": "string"}}, "additionalProperties": False},
        side_effect="read",
        concurrency_safe=True,
        volatile=True,
        sinks=(),
    )

    def __init__(self, store: EventStore | None) -> None:
        self._store = store

    @property
    def name(self) -> str:
        """The name that agents list."""
        return self.spec.name

    def check(self, args: dict[str, Any]) -> dict[str, Any]:
        """Return the arguments; raise `InvalidArguments`."""
        try:
            msgspec.convert(args, Asked)
        except msgspec.ValidationError as error:
            raise InvalidArguments(f"{STATUS}: {error}") from None
        return args

    async def run(self, args: dict[str, Any], context: ToolContext) -> ToolOutcome:
        """Return the status of one child, or of all."""
        assert self._store is not None  # noqa: S101 - only a replay has none, and runs nothing
        state = await load_run(self._store, context.run_id)
        if (one := args.get("child", "")) and one not in state.children:
            known = ", ".join(state.children) or "none"
            return ToolOutcome(kind="failed", error_code="unknown_child", message=f"this run has no child {one!r} (it has: {known})")
        found = [await _status(self._store, child) for name, child in state.children.items() if one in ("", name)]
        return ToolOutcome(kind="ok", result=msgspec.json.encode(found[0] if one else found))

    async def settle(self, context: ToolContext) -> ToolOutcome | None:
        """Return None: it only reads."""
        return None


def tool_of(name: str, agent: AgentSpec, store: EventStore | None) -> Tool | None:
    """Return the tool of this name by which the agent starts, steers, ends or looks at children; None if it has none. `store` has their logs."""
    looks = name == STATUS and bool(agent.subagents) and name in agent.tools
    return StatusTool(store) if looks else tool_for(name, agent)


async def _status(store: EventStore, child: Child) -> Status:
    """Return what a child's log says; before it has one, what its parent's says."""
    try:
        state = await load_run(store, child.child)
    except (RunNotFound, DetentError):
        began = "not begun" if child.status == "open" else child.status
        return Status(child=child.child, agent=child.agent, status=began, turns=0, usage=Usage())
    asks = await unanswered(store, child.child)
    return Status(
        child=child.child,
        agent=child.agent,
        status=state.status if child.status == "open" else child.status,
        turns=state.usage.iterations,
        usage=state.usage,
        last_words=last_words(state)[:LAST_WORDS],
        asks="" if asks is None else asks.question[:LAST_WORDS],
        waits_for=tuple(await waits_of(store, state)),
    )
