"""The contract of a `Memory`, as tests.

A project with a memory writes a `MemoryMaker` for it and a class with one fixture:

    class RedisMemoryMaker(MemoryMaker):
        def memory(self):
            return RedisMemory(self.url)

    class TestRedisMemory(MemoryContract):
        @pytest.fixture
        def maker(self):
            return RedisMemoryMaker(...)

Each test gets its own maker. All memories of one maker keep the same items.
"""

# ruff: noqa: S101 - these are tests

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta

import pytest

from detent.core.errors import ItemConflict, ItemRefused
from detent.ports.remembering import MemoryItem, Origin
from detent.testing.conformance.memory_lives import LifeContract
from detent.testing.conformance.memory_scopes import START, MemoryMaker, ScopeContract, item, names
from detent.testing.conformance.promises import documented, made

__all__ = ["MemoryContract", "MemoryMaker", "item", "names"]

HOSTILE = (
    '"', '""', "'", "invoice OR", "AND", "NOT invoice", "NEAR(invoice friday)", "content:invoice", "invoice*", "^invoice", "(invoice", "-invoice",
    "invoice AND (", "{content} : invoice", "% _ *", "'; DROP TABLE memory_items; --", "a & b | !c <-> d", ":*", "\0", "\ud800", "\u202e", "invoice\0",
    "+", "?", "invoice " * 5_000, "🦓 日本語 اختبار", "\\", "<->", "\t\n",
)  # fmt: skip
"""Queries that are syntax somewhere."""

WHOLE = MemoryItem(
    id="20260301-pay-7k3f9q.main.1.0",
    scope="acme/shop/clerk",
    kind="lesson",
    content='Ask Zoë: "pay?" first.\n\n---\nid: x\n# ünïcode 🦓 \u2028 %_* \ttab, \\n, and trailing spaces  \n\n',
    context="about payments\nof last week",
    metadata={"n": 1, "list": [1.5, None, {"a": "b\nc"}], "---": "é"},
    origin=Origin(
        run_id="r", sequence=3, digest="d" * 64, call_id="main.1.0", labels=("user", "web:x"), trusted=True, items=("i",), person="ann"
    ),
    visibility="team",
    confidence=0.5,
    write_policy="human_approved",
    created_at=START.replace(microsecond=123456),
    held_from=START - timedelta(days=9),
    held_until=START + timedelta(days=9_000),
    expires_at=START + timedelta(days=9_999),
    why="said so",
)


@documented(page="howto/memory/stores.md", port="Memory")
class MemoryContract(ScopeContract, LifeContract):
    """The promises of a `Memory`. A subclass gives the fixture `maker`."""

    async def test_an_item_comes_back_as_it_was_written(self, maker: MemoryMaker) -> None:
        """Every field, also in another memory at the same place."""
        memory = maker.memory()
        assert await memory.write(WHOLE, host="acme") == WHOLE
        assert await memory.get(WHOLE.id, host="acme") == WHOLE
        assert [one.item for one in await memory.search("pay", host="acme", now=START)] == [WHOLE]
        await memory.close()
        if maker.persistent:
            other = maker.memory()
            assert await other.get(f"acme/shop/clerk/{WHOLE.id}", host="acme/shop") == WHOLE
            assert [one.item for one in await other.search("pay", host="acme", now=START)] == [WHOLE]
            await other.close()

    async def test_a_closed_memory_can_be_used_again(self, maker: MemoryMaker) -> None:
        """Closing twice is fine, and so is closing one that was never used."""
        memory = maker.memory()
        await memory.close()
        await memory.write(item("a"), host="acme")
        await memory.close()
        await memory.close()
        assert names(await memory.search("invoice", host="acme")) == ["a"]
        await memory.close()

    async def test_a_repeated_write_gives_one_item(self, maker: MemoryMaker) -> None:
        """After a crash the same item is written again: the first one stays. Another content under its id is refused."""
        memory, other = maker.memory(), maker.memory()
        first = await memory.write(item("a"), host="acme")
        assert await other.write(item("a", created_at=START + timedelta(days=1)), host="acme") == first
        with pytest.raises(ItemConflict):
            await memory.write(item("a", "Pay at once."), host="acme")
        assert await memory.export(host="acme") == [first]
        await memory.close()
        await other.close()

    async def test_writers_at_once_lose_nothing(self, maker: MemoryMaker) -> None:
        """Of many equal writes one item comes, of many different ones all; of two successors one."""
        memory, other = maker.memory(), maker.memory()
        await asyncio.gather(*(where.write(item("same"), host="acme") for where in (memory, other) for _ in range(5)))
        await asyncio.gather(*((memory, other)[n % 2].write(item(f"i{n}", f"Invoice {n}."), host="acme") for n in range(10)))
        assert len(await other.export(host="acme")) == 11
        successors = (item(f"s{n}", f"Successor {n}.") for n in range(4))
        outcomes = await asyncio.gather(
            *((memory, other)[n % 2].supersede("same", one, why="", host="acme") for n, one in enumerate(successors)),
            return_exceptions=True,
        )
        assert sorted(type(outcome).__name__ for outcome in outcomes) == ["ItemConflict"] * 3 + ["MemoryItem"]
        await memory.close()
        await other.close()

    async def test_a_time_is_given_to_an_item_without_one(self, maker: MemoryMaker) -> None:
        """An item that does not say when it was learnt was learnt now."""
        memory = maker.memory()
        made_at = (await memory.write(item("a", created_at=None), host="acme")).created_at
        assert made_at is not None
        assert made_at.tzinfo is not None
        await memory.close()

    async def test_what_is_returned_is_the_callers_own(self, maker: MemoryMaker) -> None:
        """Changing the metadata of an item that was written or returned changes nothing that is kept."""
        memory = maker.memory()
        mine = item("a", metadata={"list": [1]})
        await memory.write(mine, host="acme")
        found = await memory.search("invoice", host="acme")
        for one in (mine, *(hit.item for hit in found), *(await memory.export(host="acme")), await memory.get("a", host="acme")):
            assert one is not None
            one.metadata["list"].append(2)
        kept = await memory.get("a", host="acme")
        assert kept is not None
        assert kept.metadata == {"list": [1]}
        await memory.close()

    async def test_what_cannot_be_kept_is_refused(self, maker: MemoryMaker) -> None:
        """Nothing of it is kept, and no id or scope reaches anything outside: no path, no pattern, no other item."""
        memory = maker.memory()
        long = "x" * 8_001
        contents = ("", " \n", "a\0b", "\ud800", long, "é" * 4_001)
        ids = ("", "a/b", "../a", "..", ".a", "a\0b", "a\nb", "\ud800", "x" * 300, "a\\b")
        scopes = (
            "",
            "/",
            "acme/",
            "/acme",
            "acme//b",
            "acme/..",
            "acme/../evil",
            "acme/.git",
            "acme/\0",
            "acme/\ud800",
            "acme/" + "y" * 700,
        )
        bad = [item("a", content) for content in contents]
        bad += [item(name) for name in ids]
        bad += [item("a", scope=scope) for scope in scopes]
        bad += [item("a", context=long), item("a", metadata={"a": "\0"}), item("a", metadata={"a": "x" * 20_000})]
        bad += [item("a", created_at=datetime(2026, 1, 1)), item("a", origin=Origin(person="\ud800"))]  # noqa: DTZ001 - without a zone
        for one in bad:
            with pytest.raises(ItemRefused):
                await memory.write(one, host="")
        assert await memory.export(host="") == []
        await memory.close()

    async def test_no_query_is_syntax(self, maker: MemoryMaker) -> None:
        """Whatever a query holds, it is words to search for; it raises nothing and finds no more than its words."""
        memory = maker.memory()
        await memory.write(item("a"), host="acme")
        await memory.write(item("b", "Lunch at noon."), host="acme")
        for query in HOSTILE:
            found = names(await memory.search(query, host="acme"))
            assert "b" not in found or not query.strip(), f"{query[:40]!r} found {found}"
            assert ("a" in found) == ("invoice" in query or not query.strip()), f"{query[:40]!r} found {found}"
        await memory.close()

    async def test_more_fitting_items_come_first(self, maker: MemoryMaker) -> None:
        """An item with more words of the query comes before one with fewer, and one with none is not found."""
        memory = maker.memory()
        texts = ("Lunch was good.", "The invoice of Bolt is due on Friday.", "Bolt sells screws.", "The invoice of Bolt was paid.")
        for n, text in enumerate(texts):
            await memory.write(item(f"i{n}", text), host="acme")
        found = await memory.search("When is the invoice of Bolt due?", host="acme")
        assert names(found) == ["i1", "i3", "i2"]
        assert [one.score for one in found] == sorted((one.score for one in found), reverse=True)
        assert all(one.reasons for one in found), "a found item says why it was found"
        await memory.close()

    async def test_forms_of_a_word_fit(self, maker: MemoryMaker) -> None:
        """Capitals, accents and the commonest endings make no difference."""
        memory = maker.memory()
        await memory.write(item("a", "Zoë was painting in the mountains."), host="acme")
        for query in ("painted", "MOUNTAIN", "zoe", "Zoë's paintings"):
            assert names(await memory.search(query, host="acme")) == ["a"], query
        await memory.close()

    async def test_among_equals_the_newer_comes_first(self, maker: MemoryMaker) -> None:
        """The same words: the item that was learnt later."""
        memory = maker.memory()
        for n in (1, 2, 0):
            await memory.write(item(f"i{n}", created_at=START + timedelta(days=n)), host="acme")
        assert names(await memory.search("invoice", host="acme")) == ["i2", "i1", "i0"]
        await memory.close()

    async def test_no_more_than_the_limit(self, maker: MemoryMaker) -> None:
        """The best ones; ten if the caller gives no limit, none if it is 0."""
        memory = maker.memory()
        for n in range(12):
            await memory.write(item(f"i{n}", "invoice " * (n + 1)), host="acme")
        assert len(await memory.search("invoice", host="acme")) == 10
        assert len(await memory.search("invoice", host="acme", limit=3)) == 3
        assert await memory.search("invoice", host="acme", limit=0) == []
        assert len(await memory.search("invoice", host="acme", limit=100)) == 12
        await memory.close()

    async def test_what_is_left_out_takes_no_place(self, maker: MemoryMaker) -> None:
        """Else a run that was shown the best items would be shown nothing more. Names are whole: another item may have the same id elsewhere."""
        memory = maker.memory()
        for n in range(6):
            await memory.write(item(f"i{n}", f"Invoice {n} is due.", kind="preference" if n == 0 else "fact"), host="acme")
        await memory.write(item("i5", "Invoice 5 is due.", scope="acme/shop"), host="acme")
        without = [f"acme/i{n}" for n in range(2, 6)]
        for query in ("invoice", "", "nothing of it"):
            found = names(await memory.search(query, host="acme", limit=3, without=without))
            assert sorted(found) == (["i0"] if query.startswith("nothing") else ["i0", "i1", "i5"]), query
        await memory.close()

    async def test_only_the_kinds_that_were_asked_for(self, maker: MemoryMaker) -> None:
        """Without kinds, all of them."""
        memory = maker.memory()
        for kind in ("fact", "lesson", "preference"):
            await memory.write(item(kind, kind=kind), host="acme")
        assert sorted(names(await memory.search("invoice", host="acme", kinds=("fact", "lesson")))) == ["fact", "lesson"]
        assert names(await memory.search("lunch", host="acme", kinds=("fact",))) == []
        assert len(await memory.search("invoice", host="acme")) == 3
        await memory.close()

    async def test_preferences_are_always_included(self, maker: MemoryMaker) -> None:
        """Also those that no word of the query fits, but in at most half of the places if there are other items to show."""
        memory = maker.memory()
        for n in range(6):
            await memory.write(item(f"f{n}"), host="acme")
            await memory.write(item(f"p{n}", "Speak plainly.", kind="preference", created_at=START + timedelta(days=n)), host="acme")
        found = names(await memory.search("invoice", host="acme", limit=4))
        assert (found[:2] != [], sorted(found[2:])) == (True, ["p4", "p5"]), found
        assert names(await memory.search("nothing fits", host="acme", limit=4)) == ["p5", "p4", "p3", "p2"]
        await memory.close()

    async def test_an_empty_query_returns_the_newest(self, maker: MemoryMaker) -> None:
        """The newest first, of all kinds."""
        memory = maker.memory()
        for n in range(4):
            await memory.write(item(f"i{n}", created_at=START + timedelta(days=n)), host="acme")
        for query in ("", "  \n"):
            assert names(await memory.search(query, host="acme", limit=3)) == ["i3", "i2", "i1"]
        await memory.close()

    async def test_a_listing_is_read_page_by_page(self, maker: MemoryMaker) -> None:
        """Each item once, ordered by scope and id, whatever the size of a page."""
        memory = maker.memory()
        keys = [(scope, f"i{n}") for scope in ("acme", "acme/a", "acme/b") for n in range(3)]
        for scope, name in reversed(keys):
            await memory.write(item(name, scope=scope), host="acme")
        seen: list[tuple[str, str]] = []
        while page := await memory.list(host="acme", limit=2, after="/".join(seen[-1]) if seen else ""):
            seen += [(one.scope, one.id) for one in page]
        assert seen == keys
        await memory.close()

    async def test_a_paraphrase_is_found_by_meaning(self, maker: MemoryMaker) -> None:
        """Where texts are embedded, an item that shares no word with the query is found; a forgotten one is not, and its vector is gone."""
        memory = made(await maker.with_paraphrases(), "ranks by meaning")
        await memory.write(item("a", "The apartment has three rooms."), host="acme")
        await memory.write(item("b", "Lunch is at noon."), host="acme")
        await memory.write(item("e", "The apartment is mine.", scope="evil"), host="evil")
        assert names(await memory.search("my flat", host="acme"))[:1] == ["a"]
        assert "e" not in names(await memory.search("my flat", host="acme"))
        await memory.tombstone("a", why="", at=START, host="acme")
        assert "a" not in names(await memory.search("my flat", host="acme"))
        await memory.close()
