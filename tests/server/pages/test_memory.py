"""Memory in the inspector: what is found, where it came from, what a review and forgetting do, and to whom it is shown."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from detent import Agent, Engine, FinalAnswer, Host, ToolCall
from detent.core.events import Hop, Origin, Source
from detent.ports.remembering import MemoryItem, key_of
from detent.server.pages.memory import places_of
from detent.testing import ScriptedPlanner
from server.pages.visiting import EVIL, Visitor, visited, words

CLERK = Agent(name="clerk", tools=["remember"], memory={})


def office(tmp_path: Path, **options: Any) -> Engine:
    plans = [ToolCall(tool="remember", args={"content": f"Hansen has the account DE02 {EVIL}"}), FinalAnswer(content="kept")]
    return Engine(
        store=f"sqlite:///{tmp_path}/runs.db",
        agents=[CLERK],
        planner=ScriptedPlanner(plans),
        **{"memory": f"sqlite:///{tmp_path}/memory.db", **options},
    )


async def proposed(engine: Engine, number: int) -> MemoryItem:
    """Return a proposal that waits for a review."""
    memory = engine.runtime.parts.memories.named("")[1]
    item = MemoryItem(id=f"p{number}", scope="-/clerk", content=f"proposal {number} {EVIL}", proposed=True, created_at=datetime.now(UTC))
    return await memory.write(item, host="")


def test_an_item_is_found_and_leads_to_the_record_that_wrote_it(tmp_path: Path) -> None:
    """The link opens that record."""

    async def body(engine: Engine, visitor: Callable[[str], Visitor]) -> None:
        run_id = (await engine.run(CLERK, "keep it", host=Host(principal="ann"))).run_id
        (item,) = await engine.memory.list()
        ann = visitor("ann")
        for path in ("/ui/memory", "/ui/memory?find=account", "/ui/memory?view=all&scope=-/clerk"):
            assert "Hansen has the account DE02 <script>" in words(await ann.see(path)), path
        assert "Nothing that is remembered fits" in words(await ann.see("/ui/memory?find=zebra"))
        page = await ann.see(f"/ui/memory/items/{key_of(item)}")
        assert f"written in run {run_id} by call" in words(page) and "current" in words(page)
        at = f"/ui/runs/{run_id}/records/{item.origin.sequence}"
        assert f'href="{at}"' in page
        assert "remember" in words(await ann.see(at))
        await ann.see("/ui/memory/items/-/clerk/nothing", status=404)

    visited(office(tmp_path), body)


def test_each_source_of_an_item_leads_to_the_call_and_to_the_records_that_it_came_through() -> None:
    """Names of runs and calls cannot make an address of their own."""
    hop = Hop(item="memory:abc", run_id="r0", sequence=9, digest="d" * 64)
    fetched = Source(label="web", tool="fetch", origin="main.1.0", run_id="r0", said='{"url": "x"}', via=(hop,))
    asked = Source(label="user", origin="goal", run_id="r/../0?")
    origin = Origin(run_id="r1", sequence=5, call_id="main.2.0", sources=(fetched, asked))
    found = places_of(MemoryItem(id="m", scope="-/clerk", content="x", origin=origin))
    assert [one.at for one in found] == [
        "/ui/runs/r1/records/5", "/ui/runs/r0/records/9", "/ui/runs/r0/calls/main.1.0", "/ui/runs/r%2F..%2F0%3F",
    ]  # fmt: skip
    assert "fetch" in found[2].said and "goal" in found[3].said


def test_a_correction_shows_its_history_in_both_directions(tmp_path: Path) -> None:
    """The old item leads to the new one, and the new one to the old."""

    async def body(engine: Engine, visitor: Callable[[str], Visitor]) -> None:
        old = await engine.memory.add("invoices in EUR", scope="-/clerk", by="ann")
        new = await engine.memory.correct(old.id, "invoices in DKK", by="ann", why="a new contract")
        ann = visitor("ann")
        page = await ann.see(f"/ui/memory/items/{key_of(old)}")
        assert "superseded" in words(page) and f"/ui/memory/items/{key_of(new)}" in page
        page = await ann.see(f"/ui/memory/items/{key_of(new)}")
        assert "a new contract" in words(page) and f"/ui/memory/items/{key_of(old)}" in page and "invoices in EUR" in words(page)

    visited(office(tmp_path), body)


def test_a_proposal_is_accepted_or_refused_and_the_memory_says_by_whom(tmp_path: Path) -> None:
    """The page that follows shows what the memory has."""

    async def body(engine: Engine, visitor: Callable[[str], Visitor]) -> None:
        good, bad = await proposed(engine, 1), await proposed(engine, 2)
        ann = visitor("ann")
        assert "proposal 1 <script>" in words(await ann.see("/ui/memory?view=proposed"))
        assert "Accept" in words(await ann.see(f"/ui/memory/items/{key_of(good)}"))
        assert "current" in words(await ann.submit("/ui/memory/review", item=key_of(good), verdict="accept"))
        said = words(await ann.submit("/ui/memory/review", item=key_of(bad), verdict="refuse", why=f"wrong {EVIL}"))
        assert "Refused: wrong <script>" in said and "(by ann)" in said and "Accept" not in said
        await ann.submit("/ui/memory/review", expect=422, item=key_of(bad), verdict="perhaps")
        assert [(await engine.memory.get(one.id)).refused != "" for one in (good, bad)] == [False, True]
        assert "No proposals" in words(await ann.see("/ui/memory?view=proposed"))

    visited(office(tmp_path), body)


def test_forgetting_shows_first_what_goes_and_then_what_is_gone_and_what_remains(tmp_path: Path) -> None:
    """The run that wrote the item is named: its log still has the words."""

    async def body(engine: Engine, visitor: Callable[[str], Visitor]) -> None:
        run_id = (await engine.run(CLERK, "keep it", host=Host(principal="ann"))).run_id
        (item,) = await engine.memory.list()
        ann, at = visitor("ann"), f"/ui/memory/forget?item={key_of(item)}"
        said = words(await ann.see(at))
        assert "Forget 1 item?" in said and run_id in said and "would keep its words" in said
        assert (await engine.memory.get(item.id)).content != "", "a preview"
        said = words(await ann.submit("/ui/memory/forget", item=key_of(item), why=f"asked {EVIL}"))
        assert "Forgotten: 1 item" in said and "by ann" in said and "still have its words" in said and run_id in said, said
        assert (await engine.memory.get(item.id)).content == ""
        assert "The content was forgotten" in words(await ann.see(f"/ui/memory/items/{key_of(item)}"))
        assert "Nothing is left to forget" in words(await ann.see(at))

    visited(office(tmp_path), body)


def test_who_may_not_changes_nothing_and_another_tenant_sees_nothing(tmp_path: Path) -> None:
    """Bob and Cal read; Eve's memory is another one."""

    async def body(engine: Engine, visitor: Callable[[str], Visitor]) -> None:
        item = await proposed(engine, 1)
        key = key_of(item)
        for who in ("bob", "cal"):
            one = visitor(who)
            said = words(await one.see(f"/ui/memory/items/{key}"))
            assert "proposal 1" in said and "Accept" not in said and "Forget" not in said
            await one.submit("/ui/memory/review", expect=403, item=key, verdict="accept")
            await one.submit("/ui/memory/forget", expect=403, item=key)
            await one.see(f"/ui/memory/forget?item={key}", status=403)
        eve, ann = visitor("eve"), visitor("ann")
        assert "proposal" not in words(await eve.see("/ui/memory?view=all")) and "proposal" not in words(
            await eve.see("/ui/memory?find=proposal")
        )
        await eve.see(f"/ui/memory/items/{key}", status=404)
        await eve.submit("/ui/memory/review", expect=404, item=key, verdict="accept")
        await eve.submit("/ui/memory/forget", expect=404, item=key)
        for path in ("review", "forget"):
            assert (await ann.post(f"/ui/memory/{path}", data={"item": key, "verdict": "accept"})).status_code == 403, "without the code"
        assert (await engine.memory.get("p1")).proposed

    visited(office(tmp_path), body)


def test_an_engine_without_memory_says_so_and_one_of_several_is_chosen_by_name(tmp_path: Path) -> None:
    """A name that there is not is refused."""

    async def none(engine: Engine, visitor: Callable[[str], Visitor]) -> None:
        ann = visitor("ann")
        assert "has no memory" in words(await ann.see("/ui/memory"))
        await ann.see("/ui/memory/items/a/b", status=404)

    async def two(engine: Engine, visitor: Callable[[str], Visitor]) -> None:
        await engine.memory.add("in the first", scope="-/clerk", by="ann", name="first")
        item = await engine.memory.add("in the second", scope="-/clerk", by="ann", name="second")
        ann = visitor("ann")
        page = await ann.see("/ui/memory?memory=second")
        assert "in the second" in words(page) and "in the first" not in words(page)
        assert f"/ui/memory/items/{key_of(item)}?memory=second" in page
        assert "in the second" in words(await ann.see(f"/ui/memory/items/{key_of(item)}?memory=second"))
        await ann.see("/ui/memory?memory=third", status=404)

    visited(office(tmp_path, memory=None), none)
    visited(office(tmp_path, memory={"first": "ram:", "second": "ram:"}), two)
