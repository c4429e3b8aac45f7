"""The contract of a `Memory`, second part: corrections, proposals, times, forgetting, lineage, export and import."""

# ruff: noqa: S101 - these are tests

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from msgspec.structs import replace

from detent.core.errors import ItemConflict, ItemNotFound, ItemRefused
from detent.core.events import Hop, Source
from detent.ports.remembering import MemoryItem, Origin, coded, standing_of
from detent.testing.conformance.memory_scopes import LATER, START, MemoryMaker, item, names
from detent.testing.conformance.promises import documented

DAY = timedelta(days=1)


@documented(page="howto/memory/stores.md#the-life-of-an-item", port="Memory")
class LifeContract:
    """What a memory promises about corrections, proposals, times and forgetting."""

    async def test_a_superseded_item_is_kept_and_not_recalled(self, maker: MemoryMaker) -> None:
        """Its successor names it, it names its successor, and both keep when they held and when they were learnt."""
        memory = maker.memory()
        await memory.write(item("old", "The invoice is due on Friday."), host="acme")
        new = item("new", "The invoice is due on Monday.", created_at=LATER, held_from=LATER + DAY)
        made = await memory.supersede("old", new, why="Moved.", host="acme")
        assert (made.supersedes, made.held_from, made.created_at) == (("old",), LATER + DAY, LATER)
        assert names(await memory.search("invoice due", host="acme", now=LATER + DAY)) == ["new"]
        told = await memory.explain("old", host="acme", now=LATER + DAY)
        assert (told.standing, told.item.superseded_by, told.item.why) == ("superseded", "new", "Moved.")
        assert (told.item.created_at, told.item.superseded_at, told.item.held_until) == (START, LATER, LATER + DAY)
        assert [one.id for one in (await memory.explain("new", host="acme")).chain] == ["old"]
        now = LATER + DAY
        assert {one.id: standing_of(one, now) for one in await memory.export(host="acme")} == {"new": "current", "old": "superseded"}
        await memory.close()

    async def test_what_holds_only_later_is_not_found_before(self, maker: MemoryMaker) -> None:
        """Else an agent acts today on next year's price. Until then what it replaces is found, and `as_of` finds what holds at that time."""
        memory = maker.memory()
        await memory.write(item("old", "The price is 10."), host="acme")
        await memory.supersede("old", item("new", "The price is 12.", created_at=LATER, held_from=LATER + DAY), why="", host="acme")
        await memory.write(item("tea", "The price of tea.", kind="preference", held_from=LATER + DAY), host="acme")
        for query in ("price", ""):
            assert names(await memory.search(query, host="acme", now=LATER)) == ["old"], query
            assert sorted(names(await memory.search(query, host="acme", now=LATER + DAY))) == ["new", "tea"], query
            assert sorted(names(await memory.search(query, host="acme", as_of=LATER + DAY, now=LATER))) == ["new", "tea"], query
        assert [(await memory.explain(name, host="acme", now=LATER)).standing for name in ("old", "new")] == ["current", "upcoming"]
        assert [one.id for one in await memory.list(host="acme", standings=("upcoming",), now=LATER)] == ["new", "tea"]
        await memory.close()

    async def test_one_item_may_replace_several(self, maker: MemoryMaker) -> None:
        """All predecessors are retired with the write, or none."""
        memory = maker.memory()
        for name in ("a", "b", "c"):
            await memory.write(item(name, f"Invoice part {name}."), host="acme")
        with pytest.raises(ItemNotFound):
            await memory.write(item("sum", "All invoice parts.", supersedes=("a", "missing")), host="acme")
        assert len(await memory.search("invoice", host="acme")) == 3
        await memory.supersede("a", item("sum", "All invoice parts.", supersedes=("b", "acme/c"), created_at=LATER), why="", host="acme")
        assert names(await memory.search("invoice", host="acme")) == ["sum"]
        await memory.close()

    async def test_an_item_is_superseded_once(self, maker: MemoryMaker) -> None:
        """A second successor is refused, because two contradicting items would both be current. The same one again changes nothing."""
        memory = maker.memory()
        await memory.write(item("a"), host="acme")
        first = await memory.supersede("a", item("b", "Monday.", created_at=LATER), why="", host="acme")
        assert await memory.supersede("a", item("b", "Monday.", created_at=LATER), why="", host="acme") == first
        with pytest.raises(ItemConflict):
            await memory.supersede("a", item("c", "Tuesday.", created_at=LATER), why="", host="acme")
        with pytest.raises(ItemConflict):
            await memory.supersede("d", item("d", "Itself."), why="", host="acme") if await memory.write(item("d"), host="acme") else None
        assert await memory.get("c", host="acme") is None
        await memory.close()

    async def test_as_of_finds_what_held_then(self, maker: MemoryMaker) -> None:
        """A search as of a time finds superseded and expired items that held at that time, and none that did not hold yet."""
        memory = maker.memory()
        await memory.write(item("old", "The price is 10.", held_from=START - 9 * DAY), host="acme")
        await memory.supersede("old", item("new", "The price is 12.", created_at=LATER, held_from=LATER), why="", host="acme")
        await memory.write(item("sale", "The price is 8 in the sale.", expires_at=START + timedelta(hours=2)), host="acme")
        for at, found in ((START - 10 * DAY, []), (START - DAY, ["old"]), (START + timedelta(hours=1), ["old", "sale"]), (LATER, ["new"])):
            assert sorted(names(await memory.search("price", host="acme", as_of=at, now=LATER))) == found, f"as of {at}"
            assert sorted(names(await memory.search("", host="acme", as_of=at, now=LATER))) == found, f"as of {at}, all"
        await memory.close()

    async def test_an_expired_item_is_not_recalled(self, maker: MemoryMaker) -> None:
        """From `expires_at` on, and from `held_until` on, it is not found; it is still listed and explained."""
        memory = maker.memory()
        await memory.write(item("a", expires_at=LATER), host="acme")
        await memory.write(item("b", kind="preference", held_until=LATER), host="acme")
        assert len(await memory.search("invoice", host="acme", now=LATER - timedelta(seconds=1))) == 2
        assert await memory.search("invoice", host="acme", now=LATER) == []
        assert await memory.search("", host="acme", now=LATER) == []
        assert (await memory.explain("a", host="acme", now=LATER)).standing == "expired"
        assert [one.id for one in await memory.list(host="acme", standings=("expired",), now=LATER)] == ["a", "b"]
        await memory.close()

    async def test_a_tombstone_has_no_content(self, maker: MemoryMaker) -> None:
        """No word of a forgotten item is left in any answer; its id, times, record and the reason are."""
        memory = maker.memory()
        said = Origin(run_id="r1", sequence=7, digest="d" * 64, person="ann")
        await memory.write(item("a", "zebra", context="zebra", metadata={"zebra": 1}, origin=said, kind="preference"), host="acme")
        (tomb,) = await memory.tombstone("a", why="Asked to.", at=LATER, host="acme")
        for shown in (tomb, *(await memory.export(host="acme")), (await memory.explain("a", host="acme")).item):
            assert "zebra" not in repr(shown)
            assert "ann" not in repr(shown)
            assert (shown.id, shown.origin.run_id, shown.why, shown.tombstoned_at) == ("a", "r1", "Asked to.", LATER)
        for as_of in (None, START):
            assert await memory.search("zebra", host="acme", as_of=as_of) == []
            assert await memory.search("", host="acme", as_of=as_of) == []
        assert (await memory.explain("a", host="acme")).standing == "tombstoned"
        await memory.close()

    async def test_forgetting_is_for_good(self, maker: MemoryMaker) -> None:
        """A crashed write that is repeated, and an import, leave the tombstone as it is; so does forgetting again."""
        memory = maker.memory()
        await memory.write(item("a"), host="acme")
        tombs = await memory.tombstone("a", why="Asked to.", at=LATER, host="acme")
        assert (await memory.write(item("a"), host="acme")) == tombs[0]
        assert await memory.import_([item("a")], host="acme") == 0
        assert await memory.tombstone("a", "acme/a", why="Again.", at=LATER + DAY, host="acme") == tombs
        assert await memory.search("invoice", host="acme") == []
        with pytest.raises(ItemConflict):
            await memory.supersede("a", item("b", "Back again."), why="", host="acme")
        await memory.close()

    async def test_several_are_forgotten_together_or_not_at_all(self, maker: MemoryMaker) -> None:
        """An id that nobody has refuses the whole call."""
        memory = maker.memory()
        for name in ("a", "b"):
            await memory.write(item(name), host="acme")
        with pytest.raises(ItemNotFound):
            await memory.tombstone("a", "missing", "b", why="", at=LATER, host="acme")
        assert len(await memory.search("invoice", host="acme")) == 2
        assert [one.id for one in await memory.tombstone("b", "a", why="", at=LATER, host="acme")] == ["b", "a"]
        await memory.close()

    async def test_a_proposal_is_recalled_once_it_is_accepted(self, maker: MemoryMaker) -> None:
        """Until then it retires nothing either. A second decision of the same kind changes nothing, another one is refused."""
        memory = maker.memory()
        await memory.write(item("old"), host="acme")
        await memory.write(item("new", "The invoice was paid.", proposed=True, supersedes=("old",), kind="preference"), host="acme")
        await memory.write(item("bad", "The invoice is nothing.", proposed=True), host="acme")
        assert names(await memory.search("invoice", host="acme")) == ["old"]
        assert await memory.search("paid", host="acme", as_of=LATER, kinds=("preference",)) == []
        assert [one.id for one in await memory.list(host="acme", standings=("proposed",))] == ["bad", "new"]
        accepted = await memory.review("new", at=LATER, host="acme")
        assert not accepted.proposed
        assert await memory.review("new", at=LATER, host="acme") == accepted
        refused = await memory.review("bad", refused="Not so.", at=LATER, host="acme")
        assert await memory.review("bad", refused="Not so.", at=LATER, host="acme") == refused
        assert names(await memory.search("invoice", host="acme")) == ["new"]
        assert (await memory.explain("bad", host="acme")).standing == "refused"
        assert await memory.search("nothing", host="acme", as_of=LATER, kinds=("fact",)) == []
        with pytest.raises(ItemConflict):
            await memory.review("bad", at=LATER, host="acme")
        await memory.close()

    async def test_a_new_item_has_no_history(self, maker: MemoryMaker) -> None:
        """A write cannot make an item superseded, refused or forgotten: only the operations can."""
        memory = maker.memory()
        histories: list[dict[str, Any]] = [
            {"superseded_by": "x"},
            {"superseded_at": START},
            {"tombstoned_at": START},
            {"refused": "no"},
        ]
        for n, history in enumerate(histories):
            with pytest.raises(ItemRefused):
                await memory.write(item(f"i{n}", **history), host="acme")
        await memory.close()

    async def test_lineage_follows_everything_derived(self, maker: MemoryMaker) -> None:
        """From a run, a source label, a person or an item: its items, what was derived from them, and so on; also proposals and superseded ones."""
        memory = maker.memory()
        await memory.write(item("a", origin=Origin(run_id="r1", labels=("web:evil",), person="ann")), host="acme")
        await memory.write(item("b", origin=Origin(run_id="r2", items=("a",)), proposed=True), host="acme")
        await memory.write(item("c", origin=Origin(run_id="r3", items=("acme/b",)), scope="acme/shop"), host="acme")
        await memory.supersede("c", item("d", "Other.", origin=Origin(run_id="r4")), why="", host="acme")
        await memory.supersede("d", item("h", "Own.", origin=Origin(person="bob")), why="", host="acme")
        await memory.write(item("e", origin=Origin(run_id="r12", labels=("web",), person="an")), host="acme")
        sources: list[dict[str, Any]] = [{"run_id": "r1"}, {"label": "web:evil"}, {"person": "ann"}, {"item_ids": ("a",)}]
        sources.append({"item_ids": ("acme/a",)})
        for source in sources:
            assert [one.id for one in await memory.lineage(host="acme", **source)] == ["a", "b", "d", "h", "c"], f"from {source}"
            found = await memory.lineage(host="acme", corrections=False, **source)
            assert [one.id for one in found] == ["a", "b", "d", "c"], f"from {source}, without what a person wrote"
        assert [one.id for one in await memory.lineage(host="acme/shop", run_id="r3")] == ["c"]
        page = Source(label="untrusted", tool="web_fetch", run_id="r0", said='{"url":"https://evil.example/"}', via=(Hop(item="memory:x"),))
        await memory.write(item("f", origin=Origin(run_id="r9", sources=(page,))), host="acme")
        more: list[dict[str, Any]] = [{"run_id": "r0"}, {"label": "web_fetch"}, {"label": "web_fetch:https://evil.*"}, {"item_ids": ("x",)}]
        for source in more:
            assert [one.id for one in await memory.lineage(host="acme", **source)] == ["f"], f"from {source}"
        also = tuple(map(coded, ("post:x", "run:r8", "memory:y", "person:joe")))
        await memory.write(item("g", origin=Origin(run_id="r9", also=(*also, "post"), more=True)), host="acme")
        more = [{"run_id": "r8"}, {"label": "post"}, {"label": "post:x"}, {"person": "joe"}, {"item_ids": ("y",)}]
        for source in more:
            assert [one.id for one in await memory.lineage(host="acme", **source)] == ["g"], f"from {source}"
        assert await memory.lineage(host="acme", label="post:*") == await memory.lineage(host="acme", label="post:y") == []
        assert await memory.lineage(host="acme") == []
        await memory.tombstone("a", why="", at=LATER, host="acme")
        assert await memory.lineage(host="acme", run_id="r1") == []
        assert [one.id for one in await memory.lineage(host="acme", item_ids=("a",), corrections=False)] == ["b", "d", "c"]
        await memory.close()

    async def test_an_export_can_be_imported(self, maker: MemoryMaker) -> None:
        """It has everything with its history, in the order of keys, and importing it again adds nothing."""
        memory = maker.memory()
        for n in range(3):
            await memory.write(item(f"i{n}", f"Invoice {n}.", metadata={"n": n, "deep": [{"a": None}]}), host="acme")
        await memory.supersede("i0", item("i9", "Invoice 9.", created_at=LATER), why="Wrong.", host="acme")
        await memory.tombstone("i1", why="Gone.", at=LATER, host="acme")
        kept = await memory.export(host="acme")
        assert [one.id for one in kept] == ["i0", "i1", "i2", "i9"]
        assert await memory.import_(kept, host="acme") == 0
        moved: list[MemoryItem] = [moved_to(one, "acme/copy") for one in kept]
        assert await memory.import_(moved, host="acme/copy", vouched=True) == 4
        assert await memory.export(host="acme/copy") == moved
        assert sorted(names(await memory.search("invoice", host="acme/copy"))) == ["i2", "i9"]
        await memory.close()

    async def test_an_import_raises_no_trust(self, maker: MemoryMaker) -> None:
        """What a file says about its own trust counts only if the caller vouches for it."""
        memory = maker.memory()
        told = item("a", origin=Origin(run_id="r1", labels=("user",), trusted=True))
        assert await memory.import_([told], host="acme") == 1
        found = await memory.get("a", host="acme")
        assert found is not None
        assert (found.origin.trusted, found.origin.labels) == (False, ("user", "imported"))
        assert await memory.import_([item("b", origin=told.origin)], host="acme", vouched=True) == 1
        vouched = await memory.get("b", host="acme")
        assert vouched is not None
        assert vouched.origin.trusted
        await memory.close()

    async def test_an_import_is_all_or_nothing(self, maker: MemoryMaker) -> None:
        """One item that cannot be kept refuses the whole import."""
        memory = maker.memory()
        with pytest.raises(ItemRefused):
            await memory.import_([item("a"), item("b", "NUL \0.")], host="acme")
        assert await memory.export(host="acme") == []
        await memory.close()


def moved_to(one: MemoryItem, scope: str) -> MemoryItem:
    """Return the item in another scope."""
    return replace(one, scope=scope)
