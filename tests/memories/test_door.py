"""`engine.memory`: people search, review, correct and forget; forgetting is complete, and no tenant sees another's items."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime
from functools import wraps
from pathlib import Path
from typing import Any

import pytest

from detent import Agent, Engine, FinalAnswer, Host, ToolCall, tool
from detent.config.remembering import MemorySettings
from detent.core.errors import ConfigError, DetentError, ItemNotFound, ItemRefused, NotAllowedNow
from detent.core.events import Origin, Source
from detent.memories.files.memory import FileMemory
from detent.memories.ram import RamMemory
from detent.memories.sqlite.memory import SqliteMemory
from detent.ports.remembering import Memory, MemoryItem, scope_of
from detent.testing import ScriptedPlanner

ACME, OTHER = Host(tenant="acme", principal="ann"), Host(tenant="other")
SCOPE = scope_of("acme", "", "helper")
TOOLS = ("remember", "correct", "forget")


def in_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run a test in an event loop of its own."""

    @wraps(test)
    def run(*args: Any, **options: Any) -> None:
        asyncio.run(test(*args, **options))

    return run


def engine_on(memory: Any, *steps: Any, **options: Any) -> Engine:
    return Engine(memory=memory, approver="caller", planner=ScriptedPlanner([*steps, FinalAnswer(content="done")]), **options)


def helper(**memory: Any) -> Agent:
    return Agent(name="helper", memory=memory, tools=TOOLS)


async def item(memory: RamMemory, item_id: str, **fields: Any) -> MemoryItem:
    return await memory.write(MemoryItem(**{"id": item_id, "scope": SCOPE, "content": f"content of {item_id}", **fields}), host="")


@in_loop
async def test_a_proposal_waits_for_a_review_and_is_recalled_only_after_it_was_accepted() -> None:
    """What a model proposes is not known until a person said so."""
    memory = RamMemory()
    async with engine_on(memory, ToolCall(tool="remember", args={"content": "the harbour is closed"})) as engine:
        await engine.run(helper(write_policy="proposal_only"), "go", host=ACME)
        [proposal] = await engine.memory.proposals(host=ACME)
        assert proposal.content == "the harbour is closed"
        assert not await engine.memory.search("harbour")
        accepted = await engine.memory.review(proposal.id, accept=True, by="bob")
        assert accepted.origin == proposal.origin, "a review does not change where it came from"
        assert [found.item.id for found in await engine.memory.search("harbour")] == [proposal.id]
        assert not await engine.memory.proposals()


@in_loop
async def test_a_refused_proposal_is_never_recalled_and_still_explained() -> None:
    """With who refused it, and why."""
    memory = RamMemory()
    await item(memory, "p", proposed=True)
    async with engine_on(memory) as engine:
        refused = await engine.memory.review("p", accept=False, by="bob", why="not true")
        assert refused.refused == "not true (by bob)"
        assert not await engine.memory.search("content")
        assert (await engine.memory.explain("p")).standing == "refused"


@in_loop
async def test_an_accepted_proposal_to_forget_forgets_and_leaves_nothing_to_recall() -> None:
    """Neither the items nor the proposal that named them."""
    memory = RamMemory()
    for n in range(4):
        await item(memory, f"i{n}")
    async with engine_on(memory, ToolCall(tool="forget", args={"items": [f"i{n}" for n in range(4)], "why": "old"})) as engine:
        await engine.run(helper(), "go", host=ACME)
        [proposal] = await engine.memory.proposals()
        await engine.memory.review(proposal.id, accept=True, by="bob")
        assert {(await engine.memory.explain(f"i{n}")).standing for n in range(4)} == {"tombstoned"}
        assert not await engine.memory.search("") and not await engine.memory.proposals()


@in_loop
async def test_forgetting_shows_all_that_came_from_a_run_first_and_then_says_what_was_removed_and_what_remains() -> None:
    """A summary, a proposal and a correction made from the item go with it; the logs of the runs that used it are named."""
    memory = RamMemory()
    async with engine_on(memory, ToolCall(tool="remember", args={"content": "the payee is Mallory"})) as engine:
        first = await engine.run(helper(), "go", host=ACME)
        [wrote] = await engine.memory.list()
        origin = Origin(items=(wrote.id,))
        await item(memory, "summary", kind="summary", content="it was about Mallory", origin=origin)
        await item(memory, "proposal", content="pay Mallory", origin=Origin(items=("summary",)), proposed=True)
        await item(memory, "apart", content="boats are blue")
        engine.planner = ScriptedPlanner([FinalAnswer(content="Mallory")])
        second = await engine.run(helper(), "who is the payee?", host=ACME)
        shown = await engine.memory.forget(run=first.run_id, preview=True, host=ACME)
        assert not shown.done and {one.content for one in shown.items} == {"the payee is Mallory", "it was about Mallory", "pay Mallory"}
        assert len([one for one in await engine.memory.list() if one.content]) == 4, "a preview changes nothing"
        receipt = await engine.memory.forget(run=first.run_id, by="ann", why="asked to", host=ACME)
        assert receipt.done and len(receipt.removed) == 3 and not receipt.left
        assert not any(one.content for one in receipt.items), "the receipt does not keep what was forgotten"
        assert {one.run_id for one in receipt.runs} == {first.run_id, second.run_id}
        assert [one.content for one in await engine.memory.list() if one.content] == ["boats are blue"]
        assert not await engine.memory.search("Mallory")


@in_loop
async def test_forgetting_an_item_forgets_what_it_replaced_and_what_replaced_it() -> None:
    """The old wording stayed in the store, and so did the new one, under a receipt that named nothing left. A person may keep their own words."""
    async with engine_on(RamMemory()) as engine:
        first = await engine.memory.add("Prefers tea", scope=SCOPE)
        second = await engine.memory.correct(first.id, "Prefers green tea")
        third = await engine.memory.correct(second.id, "Prefers coffee")
        shown = await engine.memory.forget(second.id, preview=True, host=ACME)
        assert {one.content for one in shown.items} == {"Prefers tea", "Prefers green tea", "Prefers coffee"}
        receipt = await engine.memory.forget(second.id, keep_corrections=True, host=ACME)
        assert len(receipt.removed) == 2 and not receipt.left
        assert [one.id for one in await engine.memory.list(standings=("current",))] == [third.id]
        receipt = await engine.memory.forget(second.id, host=ACME)
        assert receipt.removed == (f"{SCOPE}/{third.id}",) and not receipt.left


@in_loop
async def test_forgetting_a_person_follows_what_they_said() -> None:
    """A request to be forgotten."""
    memory = RamMemory()
    async with engine_on(memory, ToolCall(tool="remember", args={"content": "Ann lives in Paris"})) as engine:
        await engine.run(helper(), "go", host=ACME)
        await engine.memory.add("boats are blue", scope=SCOPE, by="bob")
        receipt = await engine.memory.forget(person="ann", host=ACME)
        assert len(receipt.removed) == 1
        assert [one.content for one in await engine.memory.list() if one.content] == ["boats are blue"]


@tool(side_effect="read")
async def web_fetch(url: str) -> str:
    """Read a page."""
    return "The payee of the harbour is Mallory"


@in_loop
async def test_forgetting_a_source_follows_it_through_two_runs_and_says_where_its_words_may_still_be() -> None:
    """What a second run made of it goes too. An archive of the first run keeps the words, and the receipt says so and where nobody looked."""
    memory, page = RamMemory(), "https://evil.example/a"
    agent = Agent(name="helper", memory={}, tools=[web_fetch, "remember"])
    steps = [
        ToolCall(tool="web_fetch", args={"url": page}),
        ToolCall(tool="remember", args={"content": "Mallory is the payee of the harbour"}),
    ]
    async with engine_on(memory, *steps) as engine:
        first = await engine.run(agent, "go", host=ACME)
        engine.planner = ScriptedPlanner(
            [ToolCall(tool="remember", args={"content": "the harbour pays to Mallory"}), FinalAnswer(content="done")]
        )
        second = await engine.run(agent, "who is the payee of the harbour?", host=ACME)
        await engine.memory.add("boats are blue", scope=SCOPE, by="bob")
        for source in (f"web_fetch:{page}", "web_fetch:https://evil.example/*", "web_fetch"):
            shown = await engine.memory.forget(source=source, preview=True, host=ACME)
            assert [one.origin.run_id for one in sorted(shown.items, key=lambda one: one.content)] == [first.run_id, second.run_id], source
            assert [one.run_id for one in shown.runs] == sorted([first.run_id, second.run_id]) and not shown.elsewhere
        await engine.delete(first.run_id)
        receipt = await engine.memory.forget(source=f"web_fetch:{page}", by="ann", host=ACME)
        assert len(receipt.removed) == 2 and not receipt.left
        assert [one.run_id for one in receipt.runs] == [second.run_id] and receipt.elsewhere == (first.run_id,)
        assert {"archives", "exports", "backups"} < set(receipt.not_searched) and "1 runs in the store" in receipt.searched
        assert [one.content for one in await engine.memory.list() if one.content] == ["boats are blue"]
        assert not (await engine.memory.forget(source="web_fetch", host=ACME)).items


@in_loop
async def test_a_tombstone_does_not_name_the_person_who_vouched_for_it() -> None:
    """A person who is forgotten is not kept as a source."""
    memory = RamMemory()
    async with engine_on(memory) as engine:
        kept = await engine.memory.add("Zoe lives in Paris", scope=SCOPE, by="zoe", trusted=True)
        assert "zoe" in str(kept.origin.sources)
        await engine.memory.forget(person="zoe")
    [gone] = await memory.list(host="")
    assert "zoe" not in str(gone).lower()


@in_loop
async def test_another_tenant_can_use_no_method_on_an_item() -> None:
    """And no answer differs from that for an item that does not exist."""
    memory = RamMemory()
    kept = await item(memory, "i1")
    await item(memory, "p1", proposed=True)
    async with engine_on(memory) as engine:
        door = engine.memory
        assert not await door.search("content", host=OTHER) and not await door.list(host=OTHER) and not await door.export(host=OTHER)
        assert (
            not await door.proposals(host=OTHER)
            and not await door.list(SCOPE, host=OTHER)
            and not await door.search("", scope=SCOPE, host=OTHER)
        )
        tries: list[Callable[[str], Coroutine[Any, Any, Any]]] = [
            lambda name: door.get(name, host=OTHER),
            lambda name: door.explain(name, host=OTHER),
            lambda name: door.correct(name, "mine", host=OTHER),
            lambda name: door.review(name, accept=True, host=OTHER),
            lambda name: door.forget(name, host=OTHER),
        ]
        for attempt in tries:
            said: list[str] = []
            for name in ("i1", "p1", "nothing"):
                with pytest.raises(ItemNotFound) as error:
                    await attempt(name)
                said.append(str(error.value).replace(name, "NAME"))
            assert len(set(said)) == 1
        assert not (await door.forget(person="ann", host=OTHER)).items
        with pytest.raises(ItemRefused):
            await door.import_([kept], host=OTHER)
        added = await door.add("mine", scope=SCOPE, host=OTHER)
        assert added.scope.startswith("other/")
        assert await memory.get("i1", host="") == kept


@in_loop
async def test_an_import_keeps_history_and_proves_nothing() -> None:
    """Otherwise an exported file would launder whatever somebody wrote into it."""
    memory, elsewhere = RamMemory(), RamMemory()
    await item(memory, "i1", origin=Origin(labels=("user",), trusted=True))
    async with engine_on(memory) as engine, engine_on(elsewhere) as other:
        await engine.memory.correct("i1", "better", why="moved", by="ann")
        exported = await engine.memory.export()
        assert await other.memory.import_(exported) == 2 and await other.memory.import_(exported) == 0
        there = await other.memory.list()
        assert {one.content for one in there} == {"content of i1", "better"} and not any(one.origin.trusted for one in there)
        with pytest.raises(DetentError, match="vouch"):
            await other.memory.import_(exported, vouched=True, host=ACME)


@in_loop
async def test_as_of_finds_what_held_then() -> None:
    """Two times: when a fact held, and when it was learnt."""
    memory = RamMemory()
    await item(memory, "i1", content="the office is in Paris", held_from=datetime(2025, 1, 1, tzinfo=UTC))
    async with engine_on(memory) as engine:
        await engine.memory.correct("i1", "the office is in Rome", held_from=datetime(2026, 1, 1, tzinfo=UTC))
        now = [found.item.content for found in await engine.memory.search("office")]
        then = [found.item.content for found in await engine.memory.search("office", as_of=datetime(2025, 6, 1, tzinfo=UTC))]
        assert (now, then) == (["the office is in Rome"], ["the office is in Paris"])
        result = await engine.run(helper(as_of="2025-06-01"), "where is the office?", host=ACME)
        recalled = [one for record in await engine.records(result.run_id) for one in getattr(record.event, "items", ()) or ()]
        assert [one["content"] for one in recalled] == ["the office is in Paris"]


@in_loop
async def test_erasing_a_run_names_what_it_taught_and_forgets_it_if_asked() -> None:
    """Otherwise the words of an erased run would live on in memory."""
    memory = RamMemory()
    for forgets in (False, True):
        async with engine_on(memory, ToolCall(tool="remember", args={"content": f"Ann said {forgets}"})) as engine:
            result = await engine.run(helper(), "go", host=ACME)
            erased = await engine.erase(result.run_id, memory=forgets)
            [there] = [one for one in await memory.list(host="") if one.origin.run_id == result.run_id]
            assert erased.remembered == (() if forgets else (f"{SCOPE}/{there.id}",))
            assert bool(there.content) is not forgets


@in_loop
async def test_what_a_person_adds_obeys_the_same_rules() -> None:
    """Secrets stay out, sources are kept out, and a tenant cannot write where the operator allows nothing."""
    memory = RamMemory()
    settings = MemorySettings(url=memory, policies={"acme": "read_only"}, admit=[{"source": "person:mallory"}])
    async with engine_on(settings, redact=["sk-[0-9]+"]) as engine:
        for refused in (
            engine.memory.add("the key is sk-123", scope=SCOPE),
            engine.memory.add("hello", scope=SCOPE, by="mallory"),
            engine.memory.add("hello", host=ACME),
        ):
            with pytest.raises(ItemRefused):
                await refused
        for vouched in (
            engine.memory.add("hello", scope=scope_of("other"), host=OTHER, trusted=True),
            engine.memory.correct("i1", "hello", host=OTHER, trusted=True),
        ):
            with pytest.raises(NotAllowedNow, match="only the operator may vouch"):
                await vouched
        with pytest.raises(ConfigError, match="scope is empty"):
            await engine.memory.add("hello")
        assert (await engine.memory.add("hello", scope=SCOPE, by="ann", trusted=True)).origin.trusted


def memories(tmp_path: Path) -> dict[str, Memory]:
    return {"ram": RamMemory(), "files": FileMemory(tmp_path / "files"), "sqlite": SqliteMemory(tmp_path / "memory.db")}


@pytest.mark.parametrize("of", ["ram", "files", "sqlite"])
@in_loop
async def test_no_imported_item_replaces_or_forgets_another_tenants_whoever_reviews_it(of: str, tmp_path: Path) -> None:
    """Else a tenant could import a harmless text, and the operator who accepts it would destroy what another one knows."""
    memory, theirs = memories(tmp_path)[of], scope_of("other", "", "helper")
    key = f"{theirs}/prices"
    await memory.write(MemoryItem(id="prices", scope=theirs, content="Tea is 3 euros"), host="")
    async with engine_on(memory) as engine:
        with pytest.raises(ItemRefused, match="outside"):
            await engine.memory.import_([MemoryItem(id="x", scope=SCOPE, content="tea", supersedes=(key,))], host=ACME)
        items = [
            MemoryItem(id="bare", scope=SCOPE, content="tea", supersedes=("prices",)),
            MemoryItem(id="replaces", scope=SCOPE, content="I like tea", proposed=True, supersedes=("prices",)),
            MemoryItem(id="forgets", scope=SCOPE, content="I like tea too", proposed=True, metadata={"forget": [key]}),
        ]
        await engine.memory.import_(items, host=ACME)
        for proposal in ("replaces", "forgets"):
            with pytest.raises(ItemNotFound):
                await engine.memory.review(proposal, accept=True)
        assert (await engine.memory.explain(key)).standing == "current"
    await memory.close()


@in_loop
async def test_forgetting_one_tenants_item_leaves_what_another_one_made_from_an_item_of_that_name() -> None:
    """Names of files are alike in many tenants."""
    memory, theirs = RamMemory(), scope_of("other", "", "helper")
    await item(memory, "prices")
    await item(memory, "mine", origin=Origin(items=("prices",)))
    await item(memory, "prices", scope=theirs)
    await item(memory, "made", scope=theirs, origin=Origin(items=("prices",)))
    async with engine_on(memory) as engine:
        found = await engine.memory.forget(f"{SCOPE}/prices", preview=True)
        assert [one.id for one in found.items] == ["mine", "prices"]


@pytest.mark.parametrize("of", ["ram", "files", "sqlite"])
@pytest.mark.parametrize("why", ["\ud800", "x" * 100_000], ids=["surrogate", "huge"])
@in_loop
async def test_a_reason_that_cannot_be_kept_is_refused(of: str, why: str, tmp_path: Path) -> None:
    """And not reported as a damaged file, or kept in a file that is too large to be read again."""
    memory = memories(tmp_path)[of]
    await memory.write(MemoryItem(id="i", scope=SCOPE, content="tea"), host="")
    await memory.write(MemoryItem(id="p", scope=SCOPE, content="proposal", proposed=True), host="")
    async with engine_on(memory) as engine:
        with pytest.raises(ItemRefused, match="reason"):
            await engine.memory.forget("i", why=why)
        with pytest.raises(ItemRefused, match="reason"):
            await engine.memory.review("p", accept=False, why=why)
        assert [one.content for one in await engine.memory.list()] == ["tea", "proposal"]
    await memory.close()


@pytest.mark.parametrize(
    "said", ['{"urls":["https://good.example","https://evil.example/a"]}', '{"n":1,"url":"https://evil.example/?q=\\"a\\""}']
)
@in_loop
async def test_a_source_is_found_by_any_text_among_the_arguments(said: str) -> None:
    """In a list, and with quotes in it, too: else what a bad page said would be admitted, and stay when its source is forgotten."""
    source = Source(label="untrusted", tool="web_fetch", said=said)
    memory = RamMemory()
    await item(memory, "i", origin=Origin(labels=("untrusted",), sources=(source,)))
    async with engine_on(MemorySettings(url=memory, admit=[{"source": "web_fetch:https://evil.example*"}])) as engine:
        assert [one.id for one in (await engine.memory.forget(source="web_fetch:https://evil.example/*", preview=True)).items] == ["i"]
        with pytest.raises(ItemRefused, match="not admitted"):
            await engine.memory.import_(await engine.memory.export())


@in_loop
async def test_the_receipt_names_the_later_runs_of_a_session_too() -> None:
    """Their conversations hold what an earlier run said of the item."""
    memory = RamMemory()
    await item(memory, "i", content="the harbour is closed")
    steps = (FinalAnswer(content="It is closed"), FinalAnswer(content="You are welcome"))
    async with Engine(memory=memory, planner=ScriptedPlanner(list(steps))) as engine:
        session = engine.session(helper(), host=ACME)
        first, second = await session.send("Is the harbour open?"), await session.send("Thanks")
        receipt = await engine.memory.forget("i")
        assert [one.run_id for one in receipt.runs] == [first.run_id, second.run_id]


@in_loop
async def test_a_tenant_imports_nothing_where_its_memory_is_read_only() -> None:
    """Else an import would be the way around what the operator set."""
    memory = RamMemory()
    async with engine_on(MemorySettings(url=memory, policies={"acme": "read_only"})) as engine:
        with pytest.raises(ItemRefused, match="read-only"):
            await engine.memory.import_([MemoryItem(id="i", scope=SCOPE, content="tea")], host=ACME)
        assert not await engine.memory.list()


@in_loop
async def test_the_receipt_leaves_out_a_run_that_was_erased() -> None:
    """It has no words any more."""
    memory = RamMemory()
    async with engine_on(memory, ToolCall(tool="remember", args={"content": "the harbour is closed"})) as engine:
        result = await engine.run(helper(), "go", host=ACME)
        await engine.erase(result.run_id)
        receipt = await engine.memory.forget(run=result.run_id)
        assert len(receipt.removed) == 1 and receipt.runs == ()
