"""The contract of a `Memory`, first part: who sees what. Every method is tried as another tenant."""

# ruff: noqa: S101 - these are tests

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from detent.core.errors import ItemNotFound, ItemRefused
from detent.ports.remembering import Found, Memory, MemoryItem, Origin
from detent.testing.conformance.promises import Maker, documented

START = datetime(2026, 3, 1, 12, tzinfo=UTC)
LATER = START + timedelta(days=1)


class MemoryMaker(Maker):
    """Makes memories. All memories of one maker keep the same items; `persistent`: the items outlive them."""

    persistent: bool = True

    def memory(self) -> Memory:
        """Return another memory at the place of this maker."""
        raise NotImplementedError

    async def with_paraphrases(self) -> Memory | None:
        """Return a memory that ranks by meaning, too, for which "my flat" means "the apartment" and nothing else; None if there is none."""
        return None


def item(name: str, content: str = "The invoice is due on Friday.", **fields: Any) -> MemoryItem:
    """Return an item of the tenant "acme"."""
    known: dict[str, Any] = {"scope": "acme", "created_at": START}
    return MemoryItem(id=name, content=content, **{**known, **fields})


def names(found: list[Found]) -> list[str]:
    """Return the ids of what was found, best first."""
    return [one.item.id for one in found]


async def _refused(call: Any) -> str:
    """Return the message of a call that finds no such item."""
    with pytest.raises(ItemNotFound) as raised:
        await call
    return str(raised.value)


@documented(page="howto/memory/stores.md#scopes", port="Memory")
class ScopeContract:
    """What a memory promises about scopes and tenants."""

    async def test_an_item_is_visible_at_and_below_its_prefix(self, maker: MemoryMaker) -> None:
        """A search of `acme/shop` finds `acme/shop` and `acme/shop/clerk`, and not `acme` or `acme/other`."""
        memory = maker.memory()
        for n, scope in enumerate(("acme", "acme/shop", "acme/shop/clerk", "acme/other")):
            await memory.write(item(f"i{n}", scope=scope), host="acme")
        assert sorted(names(await memory.search("invoice", host="acme"))) == ["i0", "i1", "i2", "i3"]
        assert sorted(names(await memory.search("invoice", host="acme", scope="acme/shop"))) == ["i1", "i2"]
        assert sorted(names(await memory.search("invoice", host="acme/shop"))) == ["i1", "i2"]
        assert sorted(names(await memory.search("invoice", host="acme/shop", scope="acme"))) == ["i1", "i2"]
        assert [one.id for one in await memory.list("acme/shop", host="acme")] == ["i1", "i2"]
        assert sorted(names(await memory.search("invoice", host=""))) == ["i0", "i1", "i2", "i3"]
        await memory.close()

    async def test_a_prefix_ends_at_a_slash(self, maker: MemoryMaker) -> None:
        """`a/b` does not match `a/bc`, nor does any character in it match another one."""
        memory = maker.memory()
        for n, scope in enumerate(("a/b", "a/bc", "a/b0", "a/b-", "a/b%", "a/_", "A/b", "a/B", "a%/b")):
            await memory.write(item(f"i{n}", scope=scope), host="")
        for scope, found in (("a/b", ["i0"]), ("a/b%", ["i4"]), ("a/_", ["i5"]), ("a%", ["i8"]), ("a/*", []), ("A", ["i6"]), ("%", [])):
            assert names(await memory.search("invoice", host="", scope=scope)) == found, f"search in {scope!r}"
            assert names(await memory.search("invoice", host=scope)) == found, f"search as {scope!r}"
            assert [one.id for one in await memory.list(scope, host="")] == found, f"list {scope!r}"
            assert [one.id for one in await memory.export(host=scope)] == found, f"export as {scope!r}"
        await memory.close()

    async def test_a_scope_of_another_tenant_is_empty(self, maker: MemoryMaker) -> None:
        """Naming another tenant's scope finds nothing; it does not raise, because that would tell that it exists."""
        memory = maker.memory()
        await memory.write(item("a"), host="acme")
        assert await memory.search("invoice", host="evil", scope="acme") == []
        assert await memory.search("", host="evil", scope="acme") == []
        assert await memory.list("acme", host="evil") == []
        assert await memory.export(host="evil", scope="acme") == []
        await memory.close()

    async def test_another_tenant_sees_nothing(self, maker: MemoryMaker) -> None:
        """No reading method returns another tenant's item, and each answers as if it did not exist, by its id and by its key."""
        memory = maker.memory()
        await memory.write(item("a", kind="preference", origin=Origin(run_id="r1", labels=("web",), person="ann")), host="acme")
        assert await memory.search("invoice friday", host="evil") == []
        assert await memory.search("", host="evil", as_of=LATER) == []
        assert await memory.list(host="evil") == []
        assert await memory.export(host="evil") == []
        assert await memory.lineage(host="evil", run_id="r1", label="web", person="ann", item_ids=("a", "acme/a")) == []
        for name in ("a", "acme/a"):
            assert await memory.get(name, host="evil") is None
            theirs = await _refused(memory.explain(name, host="evil"))
            assert theirs.replace(name, "b") == await _refused(memory.explain("b", host="evil"))
        await memory.close()

    async def test_another_tenant_changes_nothing(self, maker: MemoryMaker) -> None:
        """No changing method reaches another tenant's item, and each refuses as if it did not exist."""
        memory = maker.memory()
        await memory.write(item("a"), host="acme")
        await memory.write(item("p", proposed=True), host="acme")
        before = await memory.export(host="acme")
        for name in ("a", "acme/a", "p"):
            await _refused(memory.tombstone(name, why="gone", at=LATER, host="evil"))
            await _refused(memory.supersede(name, item("b", "Mine now.", scope="evil"), why="wrong", host="evil"))
            await _refused(memory.review(name, at=LATER, host="evil"))
            await _refused(memory.review(name, refused="no", at=LATER, host="evil"))
        with pytest.raises(ItemRefused):
            await memory.write(item("c"), host="evil")
        with pytest.raises(ItemRefused):
            await memory.import_([item("c", scope="evil"), item("d")], host="evil")
        assert await memory.export(host="acme") == before
        assert await memory.export(host="evil") == []
        await memory.close()

    async def test_an_id_of_another_tenant_is_free(self, maker: MemoryMaker) -> None:
        """Two tenants, or two workspaces, may use the same id: a refusal would tell that the other one has it."""
        memory = maker.memory()
        for scope in ("acme", "evil", "acme/shop", "acme/other"):
            assert (await memory.write(item("a", f"The invoice of {scope}.", scope=scope), host=scope)).scope == scope
        for scope in ("evil", "acme/shop", "acme/other"):
            found = await memory.get("a", host=scope)
            assert found is not None
            assert found.content == f"The invoice of {scope}."
        assert await memory.import_([item("b", scope="evil")], host="evil") == 1
        assert await memory.import_([item("b", scope="acme")], host="acme") == 1
        await memory.tombstone("a", why="gone", at=LATER, host="evil")
        assert names(await memory.search("invoice", host="acme/shop")) == ["a"]
        await memory.close()

    async def test_the_items_of_another_tenant_change_no_score(self, maker: MemoryMaker) -> None:
        """Scores and order are the same whatever other tenants keep: a rare word's weight would tell whether they use it."""
        memory = maker.memory()
        for n, text in enumerate(("The merger with Bolt is secret.", "The merger is on Friday.", "Bolt sells screws on Friday.", "Lunch.")):
            await memory.write(item(f"a{n}", text), host="acme")
        before = await memory.search("Bolt merger Friday", host="acme")
        for n in range(12):
            await memory.write(item(f"e{n}", "Bolt, Bolt and Bolt again, a long story about nothing else.", scope="evil"), host="evil")
        assert await memory.search("Bolt merger Friday", host="acme") == before
        await memory.close()
