"""On completion a run may propose what to remember: never on the path of its answer, and only from what its user and tools said."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import wraps
from typing import Any

import msgspec
import pytest

from detent import Agent, AskUser, Engine, FinalAnswer, Host, Plan, ToolCall, Usage, View, tool
from detent.core import events as e
from detent.core.errors import ToolFailed
from detent.core.history import Seq
from detent.core.state import Item, KernelState, RunState
from detent.memories.ram import RamMemory
from detent.ports.remembering import MemoryItem, scope_of
from detent.running.extracting import said_in
from detent.stores.ram import RamStore
from detent.testing import FakeModel, ScriptedPlanner, calls, says
from detent.testing.faults import Crash, CrashingStore

ACME = Host(tenant="acme")
SCOPE = scope_of("acme", "", "helper")


def in_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run a test in an event loop of its own."""

    @wraps(test)
    def run(*args: Any, **options: Any) -> None:
        asyncio.run(test(*args, **options))

    return run


@tool(side_effect="read")
async def look(at: str) -> str:
    """Look at something."""
    if at == "nothing":
        raise ToolFailed("the secret way that failed")
    return f"{at} is near the harbour"


@tool(side_effect="read")
async def read_file(path: str) -> str:
    """Read a file."""
    return f"words of {path}"


def helper(extract: str = "rule", **fields: Any) -> Agent:
    return Agent(**{"name": "helper", "memory": {"extract": extract}, "tools": [look, read_file, "remember"], **fields})


def call(tool: str, **args: Any) -> ToolCall:
    return ToolCall(tool=tool, args=args)


async def ran(engine: Engine, *, agent: Agent | None = None, goal: str = "Where is the boat?") -> Any:
    """Run, wait until the engine has closed, and return the result."""
    async with engine:
        return await engine.run(agent or helper(), goal, host=ACME)


def proposed(records: Any) -> list[e.MemoryProposed]:
    return [record.event for record in records if isinstance(record.event, e.MemoryProposed)]


@in_loop
async def test_a_run_proposes_after_its_answer_what_its_user_and_tools_said_and_it_waits_for_a_review() -> None:
    """The proposal is in the log behind the end, and the run replays."""
    memory = RamMemory()
    engine = Engine(
        memory=memory, planner=ScriptedPlanner([call("look", at="the boat"), FinalAnswer(content="an answer in the model's words")])
    )
    result = await ran(engine)
    [item] = await memory.list(host="")
    assert item.proposed and (item.kind, item.confidence, item.write_policy) == ("summary", 0.5, "proposal_only")
    assert "Where is the boat?" in item.content and "the boat is near the harbour" in item.content
    assert "the model's words" not in item.content
    assert item.origin.run_id == result.run_id and not item.origin.trusted
    records = await engine.records(result.run_id)
    end = next(n for n, record in enumerate(records) if isinstance(record.event, e.RunFinished))
    assert [type(record.event) for record in records[end + 1 :]] == [e.MemoryProposed, e.MemoryProposed]
    assert (await engine.replay(result.run_id)).identical and (await engine.verify(result.run_id)).ok
    assert result.state.seq == end + 1, "the answer did not wait for it"


@in_loop
async def test_nothing_is_read_that_was_recalled_instructed_remembered_or_failed() -> None:
    """Otherwise a memory would feed on itself, and instructions would become facts."""
    memory = RamMemory()
    await memory.write(MemoryItem(id="old", scope=SCOPE, content="the boat was sold in May"), host="")
    steps = [
        call("look", at="nothing"),
        call("read_file", path="docs/AGENTS.md"),
        call("remember", content="a thing to keep"),
        call("look", at="the quay"),
        FinalAnswer(content="done"),
    ]
    agent = helper(instructions="Always be brief.")
    await ran(Engine(memory=memory, planner=ScriptedPlanner(steps)), agent=agent)
    [item] = [item for item in await memory.list(host="") if item.proposed]
    assert "the quay is near the harbour" in item.content
    for stranger in ("sold in May", "secret way", "words of", "thing to keep", "be brief", "done"):
        assert stranger not in item.content


@in_loop
async def test_what_the_user_said_later_counts_too() -> None:
    """Replies are the user's words."""
    memory = RamMemory()
    steps = [lambda view: AskUser(question="Which boat?") if view.iteration == 1 else call("look", at="it"), FinalAnswer(content="done")]
    async with Engine(memory=memory, planner=ScriptedPlanner(steps)) as engine:
        result = await engine.run(helper(), "Where is it?", host=ACME)
        await engine.reply(result.run_id, "the Marie", by="ann")
    [item] = await memory.list(host="")
    assert "the Marie" in item.content and "Which boat?" not in item.content


@pytest.mark.parametrize(
    ("steps", "agent", "why"),
    [
        ([FinalAnswer(content="done")], helper(), "no tool of it returned anything"),
        (
            [call("look", at="it"), FinalAnswer(content="done")],
            helper(memory={"extract": "rule", "write_policy": "read_only"}),
            "read-only",
        ),
        ([call("look", at="it"), FinalAnswer(content="done")], helper("model"), "no model"),
    ],
)
@in_loop
async def test_the_log_says_why_a_run_proposed_nothing(steps: list[Any], agent: Agent, why: str) -> None:
    """Row K74: below the threshold, and where nothing may be proposed."""
    memory = RamMemory()
    engine = Engine(memory=memory, planner=ScriptedPlanner(steps))
    result = await ran(engine, agent=agent)
    [event] = proposed(await engine.records(result.run_id))
    assert why in event.refused and event.item == {} and not await memory.list(host="")


class Modelled:
    """A planner with a model: scripted turns, and an answer to what the small model is asked."""

    def __init__(self, steps: list[Any], answer: Any) -> None:
        self._script, self._answer, self.asked = ScriptedPlanner(steps), answer, list[View]()

    def models_asked(self, agent: Any) -> list[tuple[str, str]]:
        return [("fake:small", "fake")]

    async def plan(self, view: View) -> Plan:
        if view.scope != "memory":
            return await self._script.plan(view)
        self.asked.append(view)
        answer = self._answer() if callable(self._answer) else self._answer
        said = await answer if asyncio.iscoroutine(answer) else answer
        return Plan(actions=(FinalAnswer(content=said),), usage=Usage(model_calls=1, input_tokens=100, output_tokens=10))


@in_loop
async def test_the_small_model_proposes_and_is_counted() -> None:
    """What it used is the run's usage, though it came after the end."""
    memory = RamMemory()
    said = 'Here it is: [{"content": "The boat lies near the harbour", "kind": "fact"}, {"content": "Ann likes boats", "kind": "preference"}, 7]'
    planner = Modelled([call("look", at="the boat"), FinalAnswer(content="done")], said)
    engine = Engine(memory=memory, planner=planner)
    result = await ran(engine, agent=helper("model"))
    assert sorted(item.content for item in await memory.list(host="", standings=("proposed",))) == [
        "Ann likes boats",
        "The boat lies near the harbour",
    ]
    assert (await engine.load(result.run_id)).usage.input_tokens == result.usage.input_tokens + 100
    [asked] = planner.asked
    assert asked.small and not asked.tools and "the boat is near the harbour" in asked.goal
    assert (await engine.replay(result.run_id)).identical


@pytest.mark.parametrize("answer", ["no JSON at all", "[", '{"content": 1}', "", lambda: 1 / 0])
@in_loop
async def test_a_model_that_gives_nonsense_or_fails_changes_nothing_of_the_run(answer: Any) -> None:
    """A failure of the memory is not the run's."""
    memory = RamMemory()
    engine = Engine(memory=memory, planner=Modelled([call("look", at="it"), FinalAnswer(content="done")], answer))
    result = await ran(engine, agent=helper("model"))
    assert result.status == "completed" and not await memory.list(host="")
    assert (await engine.load(result.run_id)).status == "completed" and (await engine.replay(result.run_id)).identical


@in_loop
async def test_a_memory_that_fails_after_the_end_does_not_fail_the_run() -> None:
    """The answer is there already."""

    class Broken(RamMemory):
        async def write(self, *args: Any, **options: Any) -> Any:
            raise OSError("the disk is full")

    engine = Engine(memory=Broken(), planner=ScriptedPlanner([call("look", at="it"), FinalAnswer(content="done")]))
    result = await ran(engine)
    assert result.status == "completed" and not proposed(await engine.records(result.run_id))


@in_loop
async def test_the_answer_comes_before_the_model_is_asked_what_to_remember() -> None:
    """Otherwise every answer waits for a second model."""
    memory, asked, goes_on = RamMemory(), asyncio.Event(), asyncio.Event()

    async def slow() -> str:
        asked.set()
        await goes_on.wait()
        return '[{"content": "kept", "kind": "fact"}]'

    async with Engine(memory=memory, planner=Modelled([call("look", at="it"), FinalAnswer(content="done")], slow)) as engine:
        result = await engine.run(helper("model"), "go", host=ACME)
        assert result.output == "done" and not goes_on.is_set()
        await asked.wait()
        goes_on.set()
    assert [item.content for item in await memory.list(host="")] == ["kept"]


@in_loop
async def test_nothing_is_proposed_before_the_run_is_released() -> None:
    """Else the answer waits for it, and the run is held by the work that comes after it."""
    order: list[str] = []

    class Slow(RamStore):
        async def release(self, *args: Any, **options: Any) -> None:
            if not order:
                for _ in range(200):
                    await asyncio.sleep(0)  # others go first
            order.append("released")
            await super().release(*args, **options)

    class Told(RamMemory):
        async def write(self, *args: Any, **options: Any) -> Any:
            order.append("written")
            return await super().write(*args, **options)

    engine = Engine(memory=Told(), store=Slow(), planner=ScriptedPlanner([call("look", at="it"), FinalAnswer(content="done")]))
    await ran(engine)
    assert order[:2] == ["released", "written"]


def test_run_sync_does_not_wait_for_the_model_and_the_run_can_propose_later() -> None:
    """A program that only wants the answer gets it; what was left out can be made up for, once."""
    memory = RamMemory()

    async def never() -> str:
        await asyncio.Event().wait()
        return ""

    planner = Modelled([call("look", at="it"), FinalAnswer(content="done")], never)
    engine = Engine(memory=memory, planner=planner)
    result = engine.run_sync(helper("model"), "go", host=ACME)
    assert result.output == "done" and not asyncio.run(memory.list(host=""))

    async def later() -> None:
        async with Engine(memory=memory, store=engine.store, planner=Modelled([], '[{"content": "kept"}]')) as other:
            assert [item.content for item in await other.memory.propose(result.run_id)] == ["kept"]
            assert not await other.memory.propose(result.run_id)
            assert len(await memory.list(host="")) == 1

    asyncio.run(later())


def test_a_branch_that_the_answer_did_not_come_from_is_not_read() -> None:
    """What was tried and given up is no fact of the run."""

    def known(scope: str, output: str) -> KernelState:
        result = Item(kind="tool", tool="look", ok=True, executed=True, result=msgspec.Raw(msgspec.json.encode(f"seen in {scope}")))
        return KernelState(scope=scope, status="done", output=output, results=Seq([result]))

    state = RunState(run_id="r", goal="go", output="right", passes={"left": known("left", "wrong"), "main": known("main", "right")})
    assert [one["said"] for one in said_in(state)] == ["go", "seen in main"]


@in_loop
async def test_what_a_model_writes_into_a_call_is_not_read_either() -> None:
    """It may repeat what was recalled, or what a model made up: no tool said that."""
    memory = RamMemory()
    await memory.write(MemoryItem(id="old", scope=SCOPE, content="the boat was sold in May"), host="")
    steps = [call("count", of="the boat was sold in May"), FinalAnswer(content="done")]
    await ran(Engine(memory=memory, planner=ScriptedPlanner(steps)), agent=helper(tools=[count]))
    [item] = [item for item in await memory.list(host="") if item.proposed]
    assert "24 letters" in item.content and "sold in May" not in item.content


@tool(side_effect="read")
async def count(of: str) -> str:
    """Count letters."""
    return f"{len(of)} letters"


@in_loop
async def test_what_was_proposed_before_a_crash_is_recorded_though_the_model_says_something_else_now() -> None:
    """Otherwise a review would find proposals that no log has: each has its record, and none is there twice."""
    memory = RamMemory()
    answers = [["the boat is blue", "the quay is closed", "Ann has the key"], ["Ann has the key"]]

    def turn(view: View) -> Any:
        if view.scope == "memory":
            return says(json.dumps([{"content": text, "kind": "fact"} for text in answers.pop(0)]))
        return says("done") if view.results else calls(("look", {"at": "the boat"}))

    store = RamStore()
    crashing = CrashingStore(store.sibling(), operations=("claim",), at=2)  # the second claim is for the record of the proposals
    with suppress(Crash):
        async with Engine(store=crashing, memory=memory, planner=FakeModel(turn)) as engine:
            await engine.run(helper("model"), "Where is the boat?", run_id="r", host=ACME)
    await crashing.inner.close()
    assert len(await memory.list(host="")) == 3
    async with Engine(store=store, memory=memory, planner=FakeModel(turn)) as engine:
        found = await engine.memory.propose("r@acme")
        records = proposed(await engine.records("r@acme"))
        assert sorted(item.content for item in found) == ["Ann has the key", "the boat is blue", "the quay is closed"]
        assert [event.item_id for event in records if event.item] == [item.id for item in found]
        assert len(await engine.memory.proposals(host=ACME)) == 3
