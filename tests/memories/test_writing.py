"""Writing: `remember`, `correct` and `forget` are ordinary tools under the strictest policy of agent, scope and item."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any

import pytest

from detent import Agent, Engine, FinalAnswer, Host, Result, ToolCall
from detent.config.remembering import MemorySettings
from detent.core import events as e
from detent.core.errors import ConfigError
from detent.memories.governing import DefaultGovernor
from detent.memories.ram import RamMemory
from detent.ports.remembering import MemoryItem, Origin, WritePolicy, scope_of
from detent.testing import ScriptedPlanner

ACME = Host(tenant="acme", principal="ann")
SCOPE = scope_of("acme", "", "helper")
TOOLS = ("remember", "correct", "forget")
OF_MEMORY = (e.MemoryProposed, e.MemoryWritten, e.MemorySuperseded, e.MemoryTombstoned)


def in_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run a test in an event loop of its own."""

    @wraps(test)
    def run(*args: Any, **options: Any) -> None:
        asyncio.run(test(*args, **options))

    return run


def call(tool: str, **args: Any) -> ToolCall:
    return ToolCall(tool=tool, args=args)


def helper(**memory: Any) -> Agent:
    return Agent(name="helper", memory={"recall": False, **memory}, tools=TOOLS)


async def ran(
    *steps: Any, memory: Any, goal: str = "go", agent: Agent | None = None, host: Host = ACME, **options: Any
) -> tuple[Result, list[Any]]:
    """Run the steps, and return the result and what the log says of memory. Every run must replay."""
    async with Engine(
        memory=memory, approver="caller", planner=ScriptedPlanner([*steps, FinalAnswer(content="done")]), **options
    ) as engine:
        result = await engine.run(agent or helper(), goal, host=host)
        for approval in await engine.approvals():
            result = await engine.approve(result.run_id, approval.call_id, by="bob")
        records = await engine.records(result.run_id)
        assert (await engine.replay(result.run_id)).identical
    return result, [record.event for record in records if isinstance(record.event, OF_MEMORY)]


def outcomes(result: Result) -> list[Any]:
    return [item.content if item.error is None else item.error.code for item in result.tool_calls if item.error or item.content]


async def item(memory: RamMemory, item_id: str = "i1", **fields: Any) -> MemoryItem:
    return await memory.write(MemoryItem(**{"id": item_id, "scope": SCOPE, "content": f"content of {item_id}", **fields}), host="")


@in_loop
async def test_remember_writes_one_item_with_where_it_came_from_and_the_log_says_so() -> None:
    """Without the record nobody could tell which run taught the memory this."""
    memory = RamMemory()
    result, events = await ran(call("remember", content="Ann likes teal", kind="preference"), memory=memory, goal="Ann likes teal")
    [kept] = await memory.list(host="")
    assert (kept.scope, kept.kind, kept.content, kept.visibility) == (SCOPE, "preference", "Ann likes teal", "private")
    assert (kept.origin.run_id, kept.origin.call_id, kept.origin.person) == (result.run_id, "main.1.0", "ann")
    assert kept.origin.sequence and kept.origin.digest
    assert events == [e.MemoryWritten(item_id=kept.id, memory="memory", call="main.1.0")]
    assert outcomes(result) == [{"status": "written", "id": kept.id}]


@in_loop
async def test_correct_keeps_both_items_and_both_times() -> None:
    """What was believed before must stay readable."""
    memory = RamMemory()
    old = await item(memory)
    _, events = await ran(call("correct", items=["i1"], content="better", why="it moved", held_from="2026-01-31"), memory=memory)
    new, was = sorted(await memory.list(host=""), key=lambda one: bool(one.superseded_by))
    assert (new.content, was.content, was.superseded_by) == ("better", old.content, new.id)
    assert new.held_from is not None and was.held_until == new.held_from and was.superseded_at is not None
    assert [type(event).__name__ for event in events] == ["MemoryWritten", "MemorySuperseded"]
    assert (events[1].item_id, events[1].by_id, events[1].why) == ("i1", new.id, "it moved")


@in_loop
async def test_forget_removes_the_content() -> None:
    """A tombstone without content is all that stays."""
    memory = RamMemory()
    await item(memory)
    _, events = await ran(call("forget", items=["i1"], why="asked to"), memory=memory)
    [gone] = await memory.list(host="")
    assert gone.tombstoned_at is not None and gone.content == ""
    assert events == [e.MemoryTombstoned(item_id="i1", why="asked to", memory="memory", call="main.1.0")]


@in_loop
async def test_a_write_that_retires_more_than_three_items_is_a_proposal_also_one_by_one() -> None:
    """Otherwise a fooled agent could empty a memory."""
    memory = RamMemory()
    for n in range(5):
        await item(memory, f"i{n}")
    _, events = await ran(call("correct", items=["i0", "i1", "i2", "i3"], content="all of it"), memory=memory)
    assert [type(event) for event in events] == [e.MemoryProposed]
    assert sum(one.superseded_at is not None for one in await memory.list(host="")) == 0
    result, events = await ran(*(call("forget", items=[f"i{n}"], why=f"{n}") for n in range(5)), memory=memory)
    assert [type(event).__name__ for event in events] == ["MemoryTombstoned"] * 3 + ["MemoryProposed"] * 2
    assert sum(one.tombstoned_at is not None for one in await memory.list(host="")) == 3
    assert result.status == "completed"


@pytest.mark.parametrize("where", ["agent", "scope", "item"])
@pytest.mark.parametrize(
    ("policy", "became"),
    [("read_only", "memory_read_only"), ("proposal_only", "proposed"), ("human_approved", "approved"), ("agent_write", "written")],
)
@in_loop
async def test_the_stricter_policy_counts_wherever_it_is_set(where: str, policy: WritePolicy, became: str) -> None:
    """An agent must not loosen what the operator set, nor an item what its scope allows."""
    memory = RamMemory()
    await item(memory, write_policy=policy if where == "item" else "agent_write")
    settings = MemorySettings(url=memory, policies={"acme": policy} if where == "scope" else {})
    agent = helper(**({"write_policy": policy} if where == "agent" else {}), recall=True)
    steps = [call("correct", items=["i1"], content="better")]
    asked: list[str] = []
    async with Engine(memory=settings, approver="caller", planner=ScriptedPlanner([*steps, FinalAnswer(content="done")])) as engine:
        result = await engine.run(agent, "what is the content of i1?", host=ACME)
        asked = [approval.tool for approval in await engine.approvals()]
        old = await memory.get("i1", host="")
        assert old is not None and (not asked or old.superseded_at is None), "nothing is written before the approval"
        if asked:
            result = await engine.approve(result.run_id, "main.1.0", by="bob")
        assert (await engine.replay(result.run_id)).identical
    [said] = [item.error.code if item.error else item.content["status"] for item in result.tool_calls]
    old = await memory.get("i1", host="")
    assert (asked, said) == ((["correct"], "written") if became == "approved" else ([], became))
    assert old is not None and (old.superseded_at is not None) is (said == "written")


@pytest.mark.parametrize("where", ["agent", "scope"])
@in_loop
async def test_remember_waits_for_an_approval_wherever_the_policy_says_so_whatever_was_recalled(where: str) -> None:
    """It changes no item, so the policy of agent and scope decides alone, and the log has it from the start."""
    memory = RamMemory()
    settings = MemorySettings(url=memory, policies={"acme": "human_approved"} if where == "scope" else {})
    agent = helper(**({"write_policy": "human_approved"} if where == "agent" else {}))
    steps = [call("remember", content="the office is in Rome"), FinalAnswer(content="done")]
    async with Engine(memory=settings, approver="caller", planner=ScriptedPlanner(steps)) as engine:
        waiting = await engine.run(agent, "go", host=ACME)
        (asked,) = await engine.approvals()
        assert asked.tool == "remember" and not await memory.list(host="")
        result = await engine.approve(waiting.run_id, asked.call_id, by="bob")
        assert outcomes(result)[0]["status"] == "written" and [one.proposed for one in await memory.list(host="")] == [False]
        assert (await engine.replay(result.run_id)).identical


@pytest.mark.parametrize("named", ["i1", f"{scope_of('acme', '', 'shared')}/i1"])
@pytest.mark.parametrize("policy", ["human_approved", "proposal_only", "read_only"])
@pytest.mark.parametrize("tool", ["correct", "forget"])
@in_loop
async def test_the_policy_of_the_scope_that_an_item_is_in_counts_for_an_agent_that_sees_more(
    tool: str, policy: WritePolicy, named: str
) -> None:
    """An agent of the whole tenant must not change what the operator closed below it, by id or by key."""
    memory, below = RamMemory(), scope_of("acme", "", "shared")
    await item(memory, scope=below)
    settings = MemorySettings(url=memory, policies={below: policy})
    step = call(tool, items=[named], **({"content": "better"} if tool == "correct" else {}))
    async with Engine(memory=settings, approver="caller", planner=ScriptedPlanner([step, FinalAnswer(content="done")])) as engine:
        result = await engine.run(helper(scope="", recall=True), "what is the content of i1?", host=ACME)
        asked = [approval.call_id for approval in await engine.approvals()]
        old = await memory.get("i1", host="")
        assert old is not None and old.content and old.superseded_at is None
        assert bool(asked) is (policy == "human_approved")
        for call_id in asked:
            result = await engine.approve(result.run_id, call_id, by="bob")
        (said,) = [one.error.code if one.error else one.content["status"] for one in result.tool_calls]
        wanted = {"human_approved": "written" if tool == "correct" else "forgotten", "proposal_only": "proposed"}
        assert said == wanted.get(policy, "memory_read_only")
        assert (await engine.replay(result.run_id)).identical


@in_loop
async def test_an_item_that_needs_an_approval_and_was_not_recalled_is_not_changed_without_one() -> None:
    """The policy decides from the log; an item that the log does not have is proposed instead."""
    memory = RamMemory()
    await item(memory, write_policy="human_approved")
    _, events = await ran(call("correct", items=["i1"], content="better"), memory=memory)
    assert [type(event) for event in events] == [e.MemoryProposed]


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("content  OF i1", "repeats i1"),
        ("content of\u200b i1!", "repeats i1"),
        ("x" * 8001, "8,001 bytes"),
        ("the key is <secret:0123456789abcdef01234567>", "must not be kept"),
    ],
)
@in_loop
async def test_the_default_governor_refuses(content: str, why: str) -> None:
    """What repeats, hides or floods does not get into the memory, and the log says why."""
    memory = RamMemory()
    await item(memory)
    result, events = await ran(call("remember", content=content), memory=memory)
    assert len(await memory.list(host="")) == 1
    if events:  # a placeholder is refused before
        assert why in events[0].refused and isinstance(events[0], e.MemoryProposed)
    assert outcomes(result)[0] in ("memory_refused", "placeholder_not_allowed")


@in_loop
async def test_a_proposal_that_repeats_a_waiting_one_is_refused() -> None:
    """Else a person reviews the same thing again and again. One that may be written is not held up by what somebody has proposed."""
    memory = RamMemory()
    agent = helper(write_policy="proposal_only")
    await ran(call("remember", content="boats are blue"), memory=memory, agent=agent)
    again, events = await ran(call("remember", content="Boats are  blue!"), memory=memory, agent=agent)
    assert outcomes(again) == ["memory_refused"]
    [waiting] = await memory.list(host="")
    assert isinstance(events[0], e.MemoryProposed) and events[0].refused == f"it repeats {waiting.id}, which waits for a review"
    await ran(call("remember", content="boats are blue"), memory=memory)
    assert len(await memory.list(host="", standings=("current",))) == 1


@pytest.mark.parametrize(("before", "trusted", "refused"), [(False, True, True), (False, False, False), (True, True, False)])
@pytest.mark.parametrize("link", ["supersedes", "made from"])
@in_loop
async def test_the_default_governor_refuses_what_would_raise_trust(link: str, before: bool, trusted: bool, refused: bool) -> None:
    """Whoever proposes it, a program too: what nobody vouched for does not become trusted by being replaced, or put into other words."""
    memory = RamMemory()
    await item(memory, origin=Origin(trusted=before, labels=("user",)))
    origin = Origin(trusted=trusted, labels=("user",), items=() if link == "supersedes" else ("i1",))
    proposal = MemoryItem(
        id="new", scope=SCOPE, content="in other words", origin=origin, supersedes=("i1",) if link == "supersedes" else ()
    )
    why = await DefaultGovernor().refuses(proposal, memory, host=SCOPE)
    assert ("raise trust: i1" in why) is refused and bool(why) is refused


@in_loop
async def test_a_secret_of_the_run_never_reaches_the_memory() -> None:
    """The pattern hides it in the log; the memory outlives the log."""
    memory = RamMemory()
    agent = Agent(name="helper", memory={}, tools=TOOLS, redact=["sk-[0-9]+"])
    await ran(call("remember", content="the key is sk-12345"), memory=memory, agent=agent)
    assert not await memory.list(host="")


@in_loop
async def test_an_agent_cannot_reach_the_items_of_another_scope_or_tenant() -> None:
    """Neither by id nor by key, and the answer does not tell whether the item exists."""
    memory = RamMemory()
    for scope in (scope_of("other", "", "helper"), scope_of("acme", "", "helper2")):
        await memory.write(MemoryItem(id="theirs", scope=scope, content="theirs"), host="")
    names = ["theirs", f"{scope_of('other', '', 'helper')}/theirs", f"{scope_of('acme', '', 'helper2')}/theirs", "nothing"]
    steps = [step for name in names for step in (call("correct", items=[name], content="mine"), call("forget", items=[name]))]
    result, events = await ran(*steps, memory=memory, agent=helper())
    assert set(outcomes(result)) == {"memory_not_found"} and not events
    assert all(one.content == "theirs" for one in await memory.list(host=""))


@in_loop
async def test_a_source_that_is_not_admitted_stays_out() -> None:
    """`admit` rules hold for what is written and for what is recalled."""
    memory = RamMemory()
    settings = MemorySettings(url=memory, admit=[{"source": "person:ann", "admit": False}])
    result, events = await ran(call("remember", content="Ann likes teal"), memory=settings)
    assert outcomes(result) == ["memory_refused"] and not events and not await memory.list(host="")


def test_the_tools_of_memory_need_a_memory_and_an_agent_that_has_one() -> None:
    """Otherwise the first call would fail in the middle of a run."""
    engine = Engine(memory="ram:", planner=ScriptedPlanner([]))
    with pytest.raises(ConfigError, match="has no table memory"):
        engine.run_sync(Agent(name="helper", tools=["remember"]), "go")
    engine = Engine(planner=ScriptedPlanner([]))
    with pytest.raises(ConfigError, match=r"Engine\(memory="):
        engine.run_sync(Agent(name="helper", tools=["remember"], memory={}), "go")


@pytest.mark.parametrize(("tool", "args"), [("forget", {}), ("correct", {"content": "something else"})])
@pytest.mark.parametrize("why", ["<secret:0123456789abcdef01234567>", "x" * 100_000], ids=["secret", "huge"])
@in_loop
async def test_a_reason_keeps_no_secret_and_is_not_huge(tool: str, args: dict[str, Any], why: str) -> None:
    """A reason stays in the memory, in tombstones too. A huge one would make the file of an item too large to be read again."""
    memory = RamMemory()
    await memory.write(MemoryItem(id="i", scope=SCOPE, content="the harbour is closed"), host="")
    result, _ = await ran(call(tool, items=["i"], why=why, **args), memory=memory)
    assert outcomes(result) == ["memory_refused"]
    kept = await memory.get("i", host="")
    assert kept is not None and (kept.content, kept.why, kept.superseded_by) == ("the harbour is closed", "", "")


@in_loop
async def test_a_governor_decides_on_proposals_to_forget_too() -> None:
    """Else what it refuses would still reach the reviewers."""
    memory = RamMemory()
    await memory.write(MemoryItem(id="i", scope=SCOPE, content="the harbour is closed"), host="")
    result, events = await ran(
        call("forget", items=["i"]), memory=MemorySettings(url=memory, governor=Refuses()), agent=helper(write_policy="proposal_only")
    )
    assert outcomes(result) == ["memory_refused"] and events[0].refused == "no"
    assert not await memory.list(host="", standings=["proposed"])


class Refuses:
    """A governor that refuses everything."""

    async def refuses(self, proposal: MemoryItem, memory: Any, *, host: str) -> str:
        """Return "no"."""
        return "no"


@pytest.mark.parametrize("name", ["i1", f"{SCOPE}/i1"])
@in_loop
async def test_a_recalled_item_that_needs_an_approval_waits_for_one_whatever_it_is_called(name: str) -> None:
    """By its id or by its key."""
    memory = RamMemory()
    await item(memory, write_policy="human_approved")
    _, events = await ran(call("correct", items=[name], content="better"), memory=memory, goal="content of i1", agent=helper(recall=True))
    assert [type(event) for event in events] == [e.MemoryWritten, e.MemorySuperseded]


@pytest.mark.parametrize("scope", ["acme/", "/acme", "acme//helper", "acme/*"])
def test_a_policy_for_what_is_no_scope_is_refused(scope: str) -> None:
    """It would protect nothing, and the operator would not know."""
    with pytest.raises(ConfigError, match="protect nothing"):
        MemorySettings(url="ram:", policies={scope: "read_only"})
