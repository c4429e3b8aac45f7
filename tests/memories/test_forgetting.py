"""Forgetting is complete: whatever many sources content came from, each is found, kept out and forgotten; and the receipt says what remains where."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from detent import Agent, Bounds, Engine, FinalAnswer, ToolCall, tool
from detent.config.remembering import MemorySettings
from detent.config.retention import Retention
from detent.core.errors import ItemRefused
from detent.core.events import Origin, Source
from detent.core.records import RunHead
from detent.history import forgetting
from detent.memories.ram import RamMemory
from detent.policies.provenance.lasting import MOST_SOURCES, SHOWN
from detent.ports.remembering import MemoryItem, came_from, coded, packed
from detent.testing import ScriptedPlanner
from memories.test_door import ACME, SCOPE, engine_on, helper, in_loop, item, web_fetch

PAGES = MOST_SOURCES + 4
START = datetime(2026, 1, 1, tzinfo=UTC)
READER = Agent(name="helper", memory={}, tools=[web_fetch, "remember"])


def page(number: int) -> str:
    return f"https://page.example/{number}/{'x' * SHOWN}"


def reading(words: str = "what all of the pages say in other words") -> list[Any]:
    pages = [ToolCall(tool="web_fetch", args={"url": page(number)}) for number in range(PAGES)]
    return [*pages, ToolCall(tool="remember", args={"content": words})]


@in_loop
async def test_each_of_many_sources_is_found_however_long_its_name() -> None:
    """The sources behind the first 16, and arguments behind the first 200 characters, were found by nobody."""
    memory = RamMemory()
    async with engine_on(memory, *reading()) as engine:
        await engine.run(READER, "go", host=ACME)
        [kept] = await engine.memory.list()
        assert len(kept.origin.sources) == MOST_SOURCES and len(json.dumps([*kept.origin.also])) < 1_000
        for number in range(PAGES):
            assert (await engine.memory.forget(source=f"web_fetch:{page(number)}", preview=True)).items == (kept,), number
        assert not (await engine.memory.forget(source=f"web_fetch:{page(PAGES)}", preview=True)).items
        assert not (await engine.memory.forget(source="mail:*", preview=True)).unsure


@in_loop
async def test_a_source_that_is_kept_out_stays_out_behind_many_others() -> None:
    """An attacker's page only had to be the 17th. A pattern that may match a name that is not all known keeps out too."""
    for source in (f"web_fetch:{page(PAGES - 1)}", f"web_fetch:https://page.example/{PAGES - 1}/*"):
        memory = RamMemory()
        async with engine_on(MemorySettings(url=memory, admit=[{"source": source}]), *reading()) as engine:
            result = await engine.run(READER, "go", host=ACME)
            assert not await memory.list(host="") and "not admitted" in str(result.tool_calls[-1].error)


@in_loop
async def test_a_later_run_keeps_the_names_of_all_sources_also_of_items_that_are_gone() -> None:
    """Else what was made from an item in another run would not be found once the item itself is forgotten."""
    memory, people = RamMemory(), ("ann", "bob")
    async with engine_on(memory, *reading()) as engine:
        await engine.run(READER, "go", host=ACME)
        [first] = await engine.memory.list()
        engine.planner = ScriptedPlanner([ToolCall(tool="remember", args={"content": "something new of it"}), FinalAnswer(content="done")])
        await engine.run(READER, "what do all of the pages say?", host=replace(ACME, principal="bob"))
        [second] = [one for one in await engine.memory.list() if one.id != first.id]
        await memory.tombstone(first.id, why="", at=first.created_at or second.created_at, host="")  # type: ignore[arg-type]
        for wanted in ({"source": f"web_fetch:{page(PAGES - 1)}"}, *({"person": name} for name in people), {"run": first.origin.run_id}):
            assert (await engine.memory.forget(**wanted, preview=True)).items == (second,), wanted


@in_loop
async def test_what_was_made_from_more_items_than_an_origin_names_is_found_from_each() -> None:
    """A summary of twenty items named sixteen."""
    memory = RamMemory()
    for number in range(PAGES):
        await item(
            memory, f"i{number}", content=f"the harbour has pier {number}", origin=Origin(labels=("untrusted",), person=f"p{number}")
        )
    agent = helper(items=PAGES, tokens=10_000)
    async with engine_on(memory, ToolCall(tool="remember", args={"content": "many piers, all told"})) as engine:
        await engine.run(agent, "the harbour has which pier?", host=ACME)
        for number in range(PAGES):
            found = [one.content for one in (await engine.memory.forget(f"i{number}", preview=True)).items]
            assert found == [f"the harbour has pier {number}", "many piers, all told"], number
            assert len((await engine.memory.forget(person=f"p{number}", preview=True)).items) == 2


@in_loop
async def test_content_whose_sources_are_not_all_known_is_kept_out_and_listed() -> None:
    """It perhaps came from there. It is not forgotten on a guess: a person names it."""
    memory = RamMemory()
    unknown = await item(memory, "i", origin=Origin(labels=("untrusted",), more=True))
    also, _ = packed([coded("web_fetch:https://a.example/"), "web_fetch"], 100)
    await item(memory, "j", origin=Origin(labels=("untrusted",), also=also))
    for source, unsure in (("web_fetch:https://b*", ["i", "j"]), ("web_fetch:https://b/", ["i"]), ("mail:*", ["i"]), ("mail", ["i"])):
        async with engine_on(MemorySettings(url=memory, admit=[{"source": source}])) as engine:
            found = await engine.memory.forget(source=source)
            assert not found.items and [one.id for one in found.unsure] == unsure, source
            with pytest.raises(ItemRefused, match="not all sources"):
                await engine.memory.import_([unknown])
    async with engine_on(MemorySettings(url=memory, admit=[{"source": "mail", "admit": True}, {"source": "*"}])) as engine:
        with pytest.raises(ItemRefused, match="not admitted"):
            await engine.memory.import_([unknown])


def test_names_that_have_no_room_are_not_known() -> None:
    """An origin stays small, and says so."""
    also, left = packed([coded(f"web_fetch:{page(number)}") for number in range(1_000)], 2_400)
    assert left and len("".join(also)) <= 2_400
    origin = Origin(also=also, more=left)
    assert came_from(origin, f"web_fetch:{page(1)}") and came_from(origin, f"web_fetch:{page(999)}") is None
    assert came_from(replace(origin, more=False), f"web_fetch:{page(999)}") is False


# What remains ------------------------------------------------------------------------------------------------------------------


@tool(side_effect="read")
async def long_page(url: str) -> str:
    """Read a long page."""
    return "The harbour is closed. " * 5_000


@in_loop
async def test_the_receipt_names_forks_and_artifacts_and_erase_removes_them() -> None:
    """The large page that an item came from is not in the log but beside it, and a fork has the same words."""
    memory = RamMemory()
    agent = Agent(name="helper", memory={}, tools=[long_page, "remember"])
    steps = [ToolCall(tool="long_page", args={"url": "https://a.example/"}), ToolCall(tool="remember", args={"content": "closed harbour"})]
    async with engine_on(memory, *steps) as engine:
        above = await engine.run(Agent(name="other"), "go", run_id="above", host=ACME)
        result = await engine.run(agent, "go", run_id="reader", host=ACME)
        fork = await engine.fork(result.run_id)
        receipt = await engine.memory.forget(source="long_page", preview=True)
        there = {one.run_id: one for one in receipt.runs}
        assert set(there) == {result.run_id, fork.run_id} and there[result.run_id].artifacts == 1 and above.run_id not in there
        for one in receipt.runs:
            await engine.erase(one.run_id, host=ACME)
        assert not (await engine.memory.forget(source="long_page")).runs


def test_words_reach_children_parents_and_later_messages() -> None:
    """A child got them in its task, its parent in its answer, and a later message in its conversation. Siblings and earlier messages have none."""
    parents = {
        "root": "",
        "wrote": "root",
        "child": "wrote",
        "grandchild": "child",
        "sibling": "root",
        "talk.1": "",
        "talk.2": "",
        "talk.3": "",
    }
    parents |= {"chat.1": "", "chat.2": "", "under": "chat.1", "part": "under", "talk.3.1": "talk.3"}
    every = {
        run_id: RunHead(run_id=run_id, goal_id="root", parent=parent, created_at=START, updated_at=START)
        for run_id, parent in parents.items()
    }
    for start, reached in (
        ("wrote", {"root", "wrote", "child", "grandchild"}),
        ("talk.2", {"talk.2", "talk.3", "talk.3.1"}),
        ("part", {"part", "under", "chat.1", "chat.2"}),
    ):
        assert forgetting._reached(every, {start}) == reached


@in_loop
async def test_the_receipt_names_the_archives_that_keep_the_words(tmp_path: Path) -> None:
    """They are not in the store, and were not looked at: an archive of a run that wrote the item, and of one that only recalled it."""
    memory = RamMemory()
    bounds = Bounds(retention=Retention(archive_after="0s", archive_to=str(tmp_path / "kept")))
    async with Engine(
        memory=memory,
        bounds=bounds,
        planner=ScriptedPlanner([ToolCall(tool="remember", args={"content": "closed harbour"}), FinalAnswer(content="x")]),
    ) as engine:
        await engine.run(helper(), "go", run_id="wrote", host=ACME)
        engine.planner = ScriptedPlanner([FinalAnswer(content="x")])
        await engine.run(helper(), "is the harbour closed?", run_id="recalled", host=ACME)
        await engine.run(Agent(name="other"), "go", run_id="other", host=ACME)
        await engine.gc()
        assert len(list((tmp_path / "kept").iterdir())) == 3
        (tmp_path / "kept" / "damaged.jsonl.gz").write_bytes(b"no archive")
        [kept] = await engine.memory.list()
        receipt = await engine.memory.forget(kept.id)
        assert [one.run_id for one in receipt.runs] == ["recalled@acme", "wrote@acme"] and not receipt.elsewhere
        assert all(Path(one.archive).is_file() for one in receipt.runs)
        assert any("3 archives" in one for one in receipt.searched) and any("damaged" in one for one in receipt.not_searched)


def test_an_item_of_an_earlier_version_is_read() -> None:
    """Fields that it has not are what they were."""
    old = MemoryItem(id="i", scope=SCOPE, content="tea", origin=Origin(labels=("user",), run_id="r"))
    assert (old.origin.also, old.origin.more) == ((), False) and came_from(old.origin, "mail:*", pattern=True) is False


def of_call(url: str, *, label: str = "untrusted", run: str = "r", **more: Any) -> Source:
    return Source(label=label, tool="web_fetch", run_id=run, said=json.dumps({"url": url, **more}, separators=(",", ":")))


GOOD, BAD, GOAL = of_call("https://good.example/a"), of_call("https://evil.example/b"), Source(label="user", origin="goal", run_id="r")
LETS_IN = {"source": "web_fetch:https://good.example/*", "admit": True}
ONLY_GOOD = [LETS_IN, {"source": "web_fetch*"}, {"source": "untrusted"}]


@pytest.mark.parametrize(
    ("rules", "admitted", "sources", "more"),
    [
        (ONLY_GOOD, True, [GOOD], {}),
        (ONLY_GOOD, False, [BAD], {}),
        (ONLY_GOOD, False, [GOOD, BAD], {}),
        (ONLY_GOOD, True, [GOOD, GOAL], {}),
        ([LETS_IN, {"source": "*"}], True, [GOOD], {"run_id": "r", "person": "ann", "items": ("i",)}),
        ([LETS_IN, {"source": "*"}], False, [GOOD, GOAL], {}),
        ([LETS_IN, {"source": "user", "admit": True}, {"source": "*"}], True, [GOOD, GOAL], {}),
        (ONLY_GOOD, False, [of_call("https://evil.example/", note="https://good.example/")], {}),
        (ONLY_GOOD, False, [GOOD], {"also": packed([coded("web_fetch:https://evil.example/b")], 100)[0]}),
        (ONLY_GOOD, False, [GOOD], {"also": ("mail",), "labels": ("untrusted", "user")}),
        (ONLY_GOOD, False, [GOOD], {"more": True}),
        ([LETS_IN, {"source": "*"}], False, [GOOD], {"labels": ("untrusted", "unknown")}),
        ([{"source": "person:ann", "admit": True}, {"source": "web_fetch*"}], False, [BAD], {"person": "ann"}),
        ([{"source": "person:ann", "admit": True}, {"source": "person:*"}], True, [BAD], {"person": "ann"}),
        ([{"source": "person:ann", "admit": True}, {"source": "person:*"}], False, [BAD], {"person": "ann", "also": ("person#abcdefgh",)}),
        ([LETS_IN, {"source": "run:r"}], False, [GOOD], {}),
        ([{"source": "run:r", "admit": True}, {"source": "untrusted"}], True, [GOOD], {}),
        ([{"source": "run:r", "admit": True}, {"source": "untrusted"}], False, [GOOD, of_call("https://c.example", run="s")], {}),
        ([{"source": "*", "admit": True}, {"source": "person:mallory"}], True, [BAD], {"person": "mallory"}),
        ([{"source": "*"}], False, [], {"person": "ann"}),
        ([{"source": "*mallory"}], False, [GOOD], {"person": "mallory"}),
        ([LETS_IN, {"source": "mail*"}], True, [GOOD], {"also": packed([coded("web_fetch:https://evil.example/b")], 100)[0]}),
        ([{"source": "web_*", "admit": True}, {"source": "web_fetch:*"}], True, [GOOD], {"also": ("web_fetch#abcdefgh",)}),
    ],
)
def test_each_source_of_some_content_must_be_let_in(
    rules: list[dict[str, Any]], admitted: bool, sources: list[Source], more: dict[str, Any]
) -> None:
    """One good page let in all that was mixed with it, and a good address among the arguments let in the page of another."""
    origin = Origin(sources=tuple(sources), **{"labels": tuple({source.label: None for source in sources}), **more})
    assert (MemorySettings(admit=rules).admits(origin) == "") is admitted


@in_loop
async def test_a_page_that_is_let_in_brings_no_other_page_with_it() -> None:
    """What a run wrote after it had read both came from both."""
    for read, kept in ((["https://good.example/a"], 1), (["https://good.example/a", "https://evil.example/b"], 0)):
        memory = RamMemory()
        steps = [
            *(ToolCall(tool="web_fetch", args={"url": url}) for url in read),
            ToolCall(tool="remember", args={"content": "what they say"}),
        ]
        async with engine_on(MemorySettings(url=memory, admit=ONLY_GOOD), *steps) as engine:
            await engine.run(READER, "go", host=ACME)
            assert len(await memory.list(host="")) == kept
