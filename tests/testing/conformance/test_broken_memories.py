"""The contract of a memory can fail: each memory here breaks one promise, and the suite says so."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

import pytest
from msgspec.structs import replace

from amounts import thinned
from detent.core.errors import ItemNotFound
from detent.memories.lifecycle import utcnow
from detent.memories.ram import RamMemory
from detent.ports import Found, Memory, MemoryItem, key_of, standing_of
from detent.testing.conformance.memory import MemoryContract, MemoryMaker
from testing.conformance.rejecting import failing

pytestmark = thinned


class PrefixesAreText(RamMemory):
    """`a/b` matches `a/bc`."""

    async def search(self, query: str, *, host: str, scope: str = "", **options: Any) -> list[Found]:
        found = await super().search(query, host="", **{**options, "limit": 1_000})
        return [one for one in found if one.item.scope.startswith(host) and one.item.scope.startswith(scope)][: options.get("limit", 10)]


class GetsForAll(RamMemory):
    async def get(self, item_id: str, *, host: str) -> MemoryItem | None:
        return await super().get(item_id, host="")


class ListsForAll(RamMemory):
    async def list(self, prefix: str = "", *, host: str, **options: Any) -> list[MemoryItem]:
        return await super().list(prefix, host="", **options)


class ForgetsForAll(RamMemory):
    async def tombstone(self, *item_ids: str, why: str, at: datetime, host: str) -> list[MemoryItem]:
        return await super().tombstone(*item_ids, why=why, at=at, host="")


class TellsThatItExists(RamMemory):
    async def explain(self, item_id: str, *, host: str, now: datetime | None = None) -> Any:
        if await self.get(item_id, host="") is not None and await self.get(item_id, host=host) is None:
            raise ItemNotFound(f"{item_id} of somebody else")
        return await super().explain(item_id, host=host, now=now)


class OneIdForAll(RamMemory):
    """An id is taken once another tenant has it."""

    async def write(self, item: MemoryItem, *, host: str, **options: Any) -> MemoryItem:
        if (there := next((one for one in self._items.values() if one.id == item.id and one.scope != item.scope), None)) is not None:
            return there
        return await super().write(item, host=host, **options)


class WritesTwice(RamMemory):
    """A repeated write overwrites."""

    async def write(self, item: MemoryItem, *, host: str, **options: Any) -> MemoryItem:
        self._items.pop(key_of(item), None)
        return await super().write(item, host=host, **options)


class ResurrectsOnImport(RamMemory):
    async def import_(self, items: Sequence[MemoryItem], *, host: str, **options: Any) -> int:
        for item in items:
            if (there := self._items.get(key_of(item))) is not None and there.tombstoned_at is not None:
                del self._items[key_of(item)]
        return await super().import_(items, host=host, **options)


class BelievesImports(RamMemory):
    async def import_(self, items: Sequence[MemoryItem], *, host: str, vouched: bool = False, **options: Any) -> int:
        return await super().import_(items, host=host, vouched=True, **options)


class RecallsSuperseded(RamMemory):
    """Ignores what became of items."""

    async def search(self, query: str, *, host: str, **options: Any) -> list[Found]:
        found = await super().search(query, host=host, **options)
        words = set(query.split())
        more = [
            Found(item=one, score=0, reasons=("old",))
            for one in self._items.values()
            if one.superseded_at and words & set(one.content.split())
        ]
        return found + [one for one in more if one.item.scope.startswith(host)]


class RecallsExpired(RamMemory):
    async def search(self, query: str, *, host: str, now: datetime | None = None, **options: Any) -> list[Found]:
        return await super().search(query, host=host, now=datetime.min.replace(tzinfo=utcnow().tzinfo), **options)


class RecallsTooEarly(RamMemory):
    """What holds later is found now."""

    async def search(self, query: str, *, host: str, **options: Any) -> list[Found]:
        later = [one for one in self._items.values() if one.held_from and one.held_from > (options.get("now") or utcnow())]
        more = [Found(item=one, score=1.0) for one in later if not options.get("as_of")]
        return await super().search(query, host=host, **options) + more


class ShowsAgain(RamMemory):
    """Ignores what shall be left out."""

    async def search(self, query: str, *, host: str, without: Any = (), **options: Any) -> list[Found]:
        return await super().search(query, host=host, **options)


class RecallsProposals(RamMemory):
    async def write(self, item: MemoryItem, *, host: str, **options: Any) -> MemoryItem:
        return await super().write(replace(item, proposed=False), host=host, **options)


class KeepsForgottenWords(RamMemory):
    """A tombstone keeps the metadata."""

    async def tombstone(self, *item_ids: str, why: str, at: datetime, host: str) -> list[MemoryItem]:
        before = dict(self._items)
        gone = await super().tombstone(*item_ids, why=why, at=at, host=host)
        for one in gone:
            self._items[key_of(one)] = replace(self._items[key_of(one)], metadata=before[key_of(one)].metadata)
        return [self._items[key_of(one)] for one in gone]


class ForgetsOneByOne(RamMemory):
    async def tombstone(self, *item_ids: str, why: str, at: datetime, host: str) -> list[MemoryItem]:
        return [one for name in item_ids for one in await super(ForgetsOneByOne, self).tombstone(name, why=why, at=at, host=host)]


class LineageIsOneStep(RamMemory):
    async def lineage(self, *, host: str, run_id: str = "", **options: Any) -> list[MemoryItem]:
        found = await super().lineage(host=host, run_id=run_id, **options)
        return [one for one in found if one.origin.run_id == run_id]


class GivesItsOwn(RamMemory):
    """Returned items are those that it keeps."""

    async def get(self, item_id: str, *, host: str) -> MemoryItem | None:
        found = await super().get(item_id, host=host)
        return None if found is None else self._items[key_of(found)]


class KeepsAnything(RamMemory):
    def __init__(self) -> None:
        super().__init__(max_item_bytes=10**9)


class Overfills(RamMemory):
    async def search(self, query: str, *, host: str, limit: int = 10, **options: Any) -> list[Found]:
        return await super().search(query, host=host, limit=limit + 1, **options)


class ScoresTellOfOthers(RamMemory):
    async def search(self, query: str, *, host: str, **options: Any) -> list[Found]:
        found = await super().search(query, host=host, **options)
        return [Found(item=one.item, score=one.score / len(self._items), reasons=one.reasons) for one in found]


class WhyIsASecret(RamMemory):
    async def search(self, query: str, *, host: str, **options: Any) -> list[Found]:
        return [Found(item=one.item, score=one.score) for one in await super().search(query, host=host, **options)]


class ForgetsPreferences(RamMemory):
    async def search(self, query: str, *, host: str, **options: Any) -> list[Found]:
        return [one for one in await super().search(query, host=host, **options) if one.score or not query.strip()]


class LosesTheOldOne(RamMemory):
    """A superseded item is removed."""

    async def supersede(self, item_id: str, replacement: MemoryItem, *, why: str, host: str, **options: Any) -> MemoryItem:
        made = await super().supersede(item_id, replacement, why=why, host=host, **options)
        for key in [key for key, one in self._items.items() if standing_of(one, utcnow()) == "superseded"]:
            del self._items[key]
        return made


class BrokenMaker(MemoryMaker):
    persistent = False

    def __init__(self, made: type[RamMemory]) -> None:
        self._memory = made()

    def memory(self) -> Memory:
        return self._memory


BROKEN: dict[type[RamMemory], str] = {
    PrefixesAreText: "a_prefix_ends_at_a_slash",
    GetsForAll: "another_tenant_sees_nothing",
    ListsForAll: "another_tenant_sees_nothing",
    ForgetsForAll: "another_tenant_changes_nothing",
    TellsThatItExists: "another_tenant_sees_nothing",
    OneIdForAll: "an_id_of_another_tenant_is_free",
    WritesTwice: "a_repeated_write_gives_one_item",
    ResurrectsOnImport: "forgetting_is_for_good",
    BelievesImports: "an_import_raises_no_trust",
    RecallsSuperseded: "a_superseded_item_is_kept_and_not_recalled",
    RecallsExpired: "an_expired_item_is_not_recalled",
    RecallsTooEarly: "what_holds_only_later_is_not_found_before",
    ShowsAgain: "what_is_left_out_takes_no_place",
    RecallsProposals: "a_proposal_is_recalled_once_it_is_accepted",
    KeepsForgottenWords: "a_tombstone_has_no_content",
    ForgetsOneByOne: "several_are_forgotten_together_or_not_at_all",
    LineageIsOneStep: "lineage_follows_everything_derived",
    GivesItsOwn: "what_is_returned_is_the_callers_own",
    KeepsAnything: "what_cannot_be_kept_is_refused",
    Overfills: "no_more_than_the_limit",
    ScoresTellOfOthers: "the_items_of_another_tenant_change_no_score",
    WhyIsASecret: "more_fitting_items_come_first",
    ForgetsPreferences: "preferences_are_always_included",
    LosesTheOldOne: "a_superseded_item_is_kept_and_not_recalled",
}
"""What is broken, and a check that must say so."""


@pytest.mark.parametrize("broken", BROKEN)
def test_the_suite_rejects_it(broken: type[RamMemory]) -> None:
    """Each of these would pass as a memory if the suite did not try it."""
    make: Callable[[], MemoryMaker] = lambda: BrokenMaker(broken)  # noqa: E731
    assert f"test_{BROKEN[broken]}" in failing(MemoryContract, make)


def test_the_suite_accepts_a_sound_one() -> None:
    """The same memory without a break keeps the contract, so what rejects the others is the break."""
    assert failing(MemoryContract, lambda: BrokenMaker(RamMemory)) == set()
