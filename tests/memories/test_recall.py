"""Recall: an agent with memory is shown what was learnt before, once, from the log ever after."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime
from functools import wraps
from pathlib import Path
from typing import Any

import pytest

from amounts import PROFILE, in_check, times
from detent import Agent, AskUser, Budget, Engine, FinalAnswer, Host, Plan, ToolCall, View, tool
from detent.config.remembering import MemorySettings
from detent.core import events as e
from detent.core.errors import ConfigError, RunNotFound
from detent.memories.ram import RamMemory
from detent.memories.sqlite.memory import SqliteMemory
from detent.ports.remembering import Found, MemoryItem, Origin, scope_of
from detent.testing import ScriptedPlanner
from laws.places import PurePlanner

ACME = Host(tenant="acme")


def in_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run a test in an event loop of its own."""

    @wraps(test)
    def run(*args: Any, **options: Any) -> None:
        asyncio.run(test(*args, **options))

    return run


@tool(side_effect="read")
async def look(at: str) -> str:
    """Look at something."""
    return f"{at} is near the harbour"


async def kept(*contents: str, scope: str = "", memory: RamMemory | None = None, **fields: Any) -> RamMemory:
    memory = memory or RamMemory()
    there = len(await memory.list(host=""))
    for number, content in enumerate(contents, there):
        await memory.write(MemoryItem(id=f"i{number}", scope=scope or scope_of("acme", "", "helper"), content=content, **fields), host="")
    return memory


def helper(**fields: Any) -> Agent:
    return Agent(**{"name": "helper", "memory": {}, "tools": [look], **fields})


def recalled(records: Any) -> list[e.MemoryRecalled]:
    return [record.event for record in records if isinstance(record.event, e.MemoryRecalled)]


@in_loop
async def test_an_agent_with_memory_recalls_before_its_first_plan_and_the_log_says_what_and_why() -> None:
    """Otherwise the planner would decide on something that the log does not have."""
    memory = await kept("Ann's favourite colour is teal", "The office closes at six")
    seen: list[Any] = []

    def plan(view: View) -> FinalAnswer:
        seen.extend(item.args for item in view.transcript if item.kind == "memory")
        return FinalAnswer(content="teal")

    async with Engine(memory=memory, planner=ScriptedPlanner([plan])) as engine:
        result = await engine.run(helper(), "What is Ann's favourite colour?", host=ACME)
        [event] = recalled(await engine.records(result.run_id))
        assert event.query == "What is Ann's favourite colour?"
        assert [item["content"] for item in event.items] == ["Ann's favourite colour is teal"]
        assert event.items[0]["reasons"] and event.items[0]["score"] > 0 and event.items[0]["id"]
        assert [[item["content"] for item in items] for items in seen] == [["Ann's favourite colour is teal"]]
        assert (await engine.replay(result.run_id)).identical


@in_loop
async def test_a_replay_takes_what_was_recalled_from_the_log_though_the_memory_has_changed_since() -> None:
    """Otherwise a replay would plan on what is known today."""
    memory = await kept("Ann's favourite colour is teal")
    async with Engine(memory=memory, planner=ScriptedPlanner([FinalAnswer(content="teal")])) as engine:
        result = await engine.run(helper(), "What is Ann's favourite colour?", host=ACME)
        for item in await memory.list(host=""):
            await memory.tombstone(item.id, why="gone", at=datetime.now(UTC), host="")
        await kept("Ann's favourite colour is red", memory=memory)
        replayed = await engine.replay(result.run_id)
        assert replayed.identical and replayed.records == result.state.seq


@in_loop
async def test_a_session_replays_though_its_memory_has_changed_since() -> None:
    """Each message recalls anew, and its run keeps what it was shown: corrected, forgotten and new items change no replay, nor the conversation."""
    memory, views = await kept("boats are blue", "the harbour is open"), list[View]()

    def plan(view: View) -> Any:
        views.append(view)
        return FinalAnswer(content=f"known: {[item.args[0]['content'] for item in view.transcript if item.kind == 'memory']}")

    async with Engine(memory=memory, planner=PurePlanner(plan)) as engine:
        session = engine.session(helper(), "talk", host=ACME)
        results = [await session.send("boats?"), await session.send("and the harbour?")]
        new = MemoryItem(id="new", scope=scope_of("acme", "", "helper"), content="boats are red")
        await memory.supersede("i0", new, why="painted", host="")
        await memory.tombstone("i1", why="", at=datetime.now(UTC), host="")
        results.append(await session.send("boats now?"))
        assert [result.output for result in results] == [
            "known: ['boats are blue']",
            "known: ['the harbour is open']",
            "known: ['boats are red']",
        ]
        assert [message.text for message in views[-1].conversation if message.kind == "model"] == [results[0].output, results[1].output]
        for result in results:
            assert (await engine.replay(result.run_id)).identical
            assert (await engine.verify(result.run_id)).ok


@in_loop
async def test_recall_asks_again_only_when_the_query_changed_and_shows_no_item_twice() -> None:
    """Otherwise each turn pays for a search, and the prompt repeats itself."""
    memory = await kept("The harbour is closed on Mondays", "Ann's favourite colour is teal")
    steps = [ToolCall(tool="look", args={"at": "Ann's boat"}), ToolCall(tool="nothing", args={}), FinalAnswer(content="done")]
    async with Engine(memory=memory, planner=ScriptedPlanner(steps)) as engine:
        result = await engine.run(helper(), "Find Ann's favourite boat", host=ACME)
        first, second = recalled(await engine.records(result.run_id))  # the third turn saw no new success
        assert [item["content"] for item in first.items] == ["Ann's favourite colour is teal"]
        assert second.query == "Find Ann's favourite boat\nAnn's boat is near the harbour"
        assert [item["content"] for item in second.items] == ["The harbour is closed on Mondays"]
        assert (await engine.replay(result.run_id)).identical


@in_loop
async def test_a_run_sees_only_what_is_below_its_own_tenant_and_scope() -> None:
    """A run without a tenant is not the operator: it must not see the items of tenants."""
    memory = await kept("the word is alpha")
    await kept("the word is beta", scope=scope_of("other", "", "helper"), memory=memory)
    await kept("the word is gamma", scope=scope_of("", "", "helper"), memory=memory)
    await kept("the word is delta", scope=scope_of("acme", "", "helper2"), memory=memory)
    found: dict[str, list[str]] = {}
    for name, host in (("acme", ACME), ("other", Host(tenant="other")), ("", None)):
        async with Engine(memory=memory, planner=ScriptedPlanner([FinalAnswer(content="ok")])) as engine:
            result = await engine.run(helper(), "Which word is it?", host=host)
            found[name] = [item["content"] for event in recalled(await engine.records(result.run_id)) for item in event.items]
    assert found == {"acme": ["the word is alpha"], "other": ["the word is beta"], "": ["the word is gamma"]}


@in_loop
async def test_what_is_recalled_is_bounded_in_items_and_tokens() -> None:
    """Otherwise a large memory fills the prompt."""
    memory = await kept(*(f"fact {n} about boats " + "x" * 400 for n in range(9)))
    async with Engine(memory=memory, planner=ScriptedPlanner([FinalAnswer(content="ok")])) as engine:
        result = await engine.run(helper(memory={"items": 4, "tokens": 250}), "boats?", host=ACME)
        [event] = recalled(await engine.records(result.run_id))
        assert len(event.items) == 2
        assert sum(len(item["content"]) for item in event.items) <= 4 * 250


@in_loop
async def test_what_compaction_dropped_leaves_room_for_what_is_recalled_later() -> None:
    """`run_tokens` bounds what a prompt has of the memory. Counted for the whole run, a long one recalls nothing more after its first hours."""
    memory = await kept(*(f"boat {n} lies in the harbour {'x' * 100}" for n in range(40)))

    def turn(view: View) -> Any:
        return FinalAnswer(content="done") if view.iteration > 40 else ToolCall(tool="look", args={"at": f"boat {view.iteration}"})

    agent = helper(
        memory={"items": 1, "run_tokens": 150},
        budget=Budget(max_iterations=50),
        compaction={"window_tokens": 2000, "turns": 8, "min_items": 1},
    )
    async with Engine(memory=memory, planner=PurePlanner(turn)) as engine:
        result = await engine.run(agent, "Look at all boats", host=ACME)
        assert result.status == "completed", result.error
        records = list(await engine.records(result.run_id))
        found = [record.envelope.seq for record in records if isinstance(record.event, e.MemoryRecalled) and record.event.items]
        last = max(r.envelope.seq for r in records if isinstance(r.event, e.ContextCompacted))
        assert len(found) > 10
        assert found[-1] > last
        assert (await engine.replay(result.run_id)).identical


@in_loop
async def test_a_memory_that_fails_costs_the_run_nothing_but_its_memory_and_the_log_says_so() -> None:
    """Otherwise a broken index ends every run."""

    class Broken(RamMemory):
        async def search(self, *args: Any, **options: Any) -> Any:
            raise OSError("the disk is gone")

    async with Engine(memory=Broken(), planner=ScriptedPlanner([FinalAnswer(content="ok")])) as engine:
        result = await engine.run(helper(), "boats?", host=ACME)
        assert result.status == "completed"
        [event] = recalled(await engine.records(result.run_id))
        assert event.items == () and "the disk is gone" in event.error
        assert (await engine.replay(result.run_id)).identical


@in_loop
async def test_an_agent_without_memory_has_no_word_of_it_in_its_log() -> None:
    """Runs that use no memory keep their bytes."""
    async with Engine(memory=await kept("boats"), planner=ScriptedPlanner([FinalAnswer(content="ok")])) as engine:
        result = await engine.run(helper(memory=None), "boats?", host=ACME)
        assert not recalled(await engine.records(result.run_id))
        assert b"memory" not in b"".join(await engine.store.read(result.run_id))


@pytest.mark.parametrize(
    ("said", "problem"),
    [
        ({"itms": 3}, "itms"),
        ({"items": 0}, "memory.items is 0"),
        ({"items": "many"}, "memory.items"),
        ({"kinds": ["fact", "gossip"]}, "memory.kinds"),
        ({"write_policy": "anything"}, "memory.write_policy"),
        ({"as_of": "yesterday"}, "as_of"),
    ],
)
def test_a_mistake_in_the_table_is_named_when_the_agent_is_made(said: dict[str, Any], problem: str) -> None:
    """Otherwise it would be found in the middle of a run, or never."""
    with pytest.raises(ConfigError, match=problem):
        Agent(name="helper", memory=said)


@in_loop
async def test_an_agent_that_needs_a_memory_is_refused_where_there_is_none() -> None:
    """Before anything is recorded, with the way out."""
    async with Engine(planner=ScriptedPlanner([])) as engine:
        with pytest.raises(ConfigError, match=r"Engine\(memory="):
            await engine.run(helper(), "boats?")
        assert not await engine.list_runs()


@in_loop
async def test_seed_memory_is_still_given_beside_what_is_recalled() -> None:
    """Recall adds to what the caller forces in, and does not replace it."""
    views: list[View] = []

    def plan(view: View) -> FinalAnswer:
        views.append(view)
        return FinalAnswer(content="ok")

    async with Engine(memory=await kept("boats are blue"), planner=ScriptedPlanner([plan])) as engine:
        await engine.run(helper(), "boats?", host=ACME, seed_memory=["Ann is in charge"], budget=Budget(max_iterations=2))
    assert views[0].memory == ("Ann is in charge",)
    assert [item.args[0]["content"] for item in views[0].transcript if item.kind == "memory"] == ["boats are blue"]


@in_check
@in_loop
async def test_what_one_of_many_runs_learnt_is_recalled_by_the_next(tmp_path: Path) -> None:
    """Recall still finds the one item among those of all runs before, and only what fits. `scripts/check` keeps 1,000 in SQLite."""
    memory: Any = RamMemory() if PROFILE == "default" else SqliteMemory(tmp_path / "memory.db")
    runs = times(1000, soak=1000)
    towns = ("Brest", "Nantes", "Lorient", "Vannes", "Quimper")

    def learn(view: View) -> Any:
        number = int(view.goal.rsplit(" ", 1)[-1])
        said = f"boat number {number} lies in {towns[number % 5]} under captain c{number}x"
        return ToolCall(tool="remember", args={"content": said}) if not view.results else FinalAnswer(content="ok")

    async with Engine(memory=memory, planner=PurePlanner(learn)) as engine:
        agent = helper(tools=["remember"], memory={"recall": False})
        for number in range(runs):
            await engine.run(agent, f"learn about number {number}", host=ACME)
        assert len(await memory.list(host="", limit=2 * runs)) == runs
        engine.planner = ScriptedPlanner([FinalAnswer(content="ok")])
        wanted = runs // 3
        result = await engine.run(helper(), f"who is c{wanted}x?", host=ACME)
        [event] = recalled(await engine.records(result.run_id))
        assert event.items[0]["content"].startswith(f"boat number {wanted} lies in")
        assert len(event.items) <= 5 and (await engine.replay(result.run_id)).identical
        with pytest.raises(RunNotFound):
            await engine.replay(result.run_id, host=Host(tenant="other"))
    await memory.close()


@in_loop
async def test_a_run_can_be_cancelled_where_its_memory_is_not() -> None:
    """Continuing it there is refused, and ending it needs no memory."""
    steps = [AskUser(question="Which?"), FinalAnswer(content="ok")]
    async with Engine(memory=await kept("boats are blue"), approver="caller", planner=ScriptedPlanner(steps)) as engine:
        waiting = await engine.run(helper(), "boats?", host=ACME)
        assert waiting.status == "waiting_for_user"
        async with Engine(store=engine.store, tools=[look], planner=ScriptedPlanner(steps)) as other:
            with pytest.raises(ConfigError, match=r"Engine\(memory="):
                await other.reply(waiting.run_id, "blue", by="ann")
            assert (await other.cancel(waiting.run_id, by="ann")).status == "stopped"


@pytest.mark.parametrize(
    "found", [[None], [1], [Found(item=MemoryItem(id="i", scope="acme/helper", content="x", metadata={"a": object()}), score=1.0)]]
)
@in_loop
async def test_a_memory_that_returns_something_odd_fails_no_run(found: Any) -> None:
    """A memory is foreign code. The log says that nothing was recalled, and why."""

    class Odd(RamMemory):
        async def search(self, query: str, **asked: Any) -> Any:
            return found

    async with Engine(memory=Odd(), planner=ScriptedPlanner([FinalAnswer(content="done")])) as engine:
        result = await engine.run(helper(), "What is near?", host=ACME)
        assert result.status == "completed"
        [event] = recalled(await engine.records(result.run_id))
        assert event.error and not event.items


@in_loop
async def test_what_came_from_a_source_that_is_kept_out_is_not_recalled_either() -> None:
    """It may have been written before the rule."""
    memory = await kept("boats are blue", origin=Origin(person="mallory"))
    settings = MemorySettings(url=memory, admit=[{"source": "person:mallory"}])
    async with Engine(memory=settings, planner=ScriptedPlanner([FinalAnswer(content="ok")])) as engine:
        result = await engine.run(helper(), "boats?", host=ACME)
        [event] = recalled(await engine.records(result.run_id))
        assert event.items == ()


@in_loop
async def test_items_that_are_kept_out_take_no_places_of_others() -> None:
    """Else whoever plants a few of them switches the memory off."""
    memory = await kept("the harbour is closed on Mondays")
    await kept(*[f"the harbour is closed on Mondays, says page {n}" for n in range(8)], memory=memory, origin=Origin(labels=("untrusted",)))
    settings = MemorySettings(url=memory, admit=[{"source": "untrusted"}])
    async with Engine(memory=settings, planner=ScriptedPlanner([FinalAnswer(content="done")])) as engine:
        [event] = recalled(await engine.records((await engine.run(helper(), "is the harbour closed?", host=ACME)).run_id))
        assert [item["id"] for item in event.items] == ["i0"]


@in_loop
async def test_what_was_shown_takes_no_places_of_others_and_one_search_a_turn_is_enough() -> None:
    """The best were found again and dropped, so a turn recalled nothing although more would fit."""
    searches: list[int] = []

    class Counting(RamMemory):
        async def search(self, query: str, **asked: Any) -> Any:
            searches.append(asked["limit"])
            return await super().search(query, **asked)

    memory = await kept(*(f"fact {n} about boats" for n in range(5)), memory=Counting())
    steps = [*(ToolCall(tool="look", args={"at": f"boats {n}"}) for n in range(3)), FinalAnswer(content="done")]
    async with Engine(memory=memory, planner=ScriptedPlanner(steps)) as engine:
        result = await engine.run(helper(memory={"items": 2}), "boats?", host=ACME)
        events = recalled(await engine.records(result.run_id))
    assert [len(event.items) for event in events] == [2, 2, 1, 0] and searches == [2, 2, 2, 2]
    assert len({item["id"] for event in events for item in event.items}) == 5


@in_loop
async def test_a_preference_is_recalled_though_rules_keep_many_items_out() -> None:
    """It fits by no word, so it came last among those that were looked at instead, and was cut off."""
    memory = await kept(*(f"the harbour is closed, says page {n}" for n in range(60)), origin=Origin(labels=("untrusted",)))
    await kept(*(f"the harbour is closed on day {n}" for n in range(9)), memory=memory)
    await kept("answers in verse", memory=memory, kind="preference")
    settings = MemorySettings(url=memory, admit=[{"source": "untrusted"}])
    async with Engine(memory=settings, planner=ScriptedPlanner([FinalAnswer(content="done")])) as engine:
        [event] = recalled(await engine.records((await engine.run(helper(), "is the harbour closed?", host=ACME)).run_id))
        found = [item["content"] for item in event.items]
        assert len(found) == 5 and "answers in verse" in found


@in_loop
async def test_two_items_with_one_id_in_two_scopes_are_two_items() -> None:
    """Names of files are alike in many directories."""
    memory = RamMemory()
    for part, content in (("a", "the lighthouse is white"), ("b", "boats are near the harbour")):
        await memory.write(MemoryItem(id="notes", scope=f"acme/helper/{part}", content=content), host="")
    steps = [ToolCall(tool="look", args={"at": "it"}), FinalAnswer(content="done")]
    async with Engine(memory=memory, planner=ScriptedPlanner(steps)) as engine:
        events = recalled(await engine.records((await engine.run(helper(), "Which colour has the lighthouse?", host=ACME)).run_id))
        assert [[item["scope"] for item in event.items] for event in events] == [["acme/helper/a"], ["acme/helper/b"]]


@in_loop
async def test_what_was_recalled_is_in_the_store_before_the_planner_sees_it() -> None:
    """Else a process that dies in the plan leaves a plan, or a model call, whose prompt the log does not have."""
    stored: list[bool] = []

    class Looking:
        async def plan(self, view: View) -> Plan:
            stored.append(any(b'"type":"memory_recalled"' in line for line in await engine.store.read(view.run_id)))
            return Plan(actions=(FinalAnswer(content="blue"),))

    async with Engine(memory=await kept("boats are blue"), planner=Looking()) as engine:
        await engine.run(helper(), "boats?", host=ACME)
    assert stored == [True]
