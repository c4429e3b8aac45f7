"""Detent's compactors keep their contract; broken ones are found out, each by the checks about what it breaks."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from detent.extend import Compactor, Dropped, Measured
from detent.memories.compactors import ExtractiveCompactor, NoCompactor, SummaryCompactor
from detent.testing.conformance.compactor import CompactorContract, CompactorMaker
from testing.conformance.rejecting import checks_of, failing


class Compactors(CompactorMaker):
    def __init__(self, kind: Any, summary: str = "The pages are alike.") -> None:
        self.kind, self.summary = kind, summary

    def compactor(self) -> Compactor:
        return self.kind()


@pytest.mark.parametrize("kind", [NoCompactor, ExtractiveCompactor, SummaryCompactor])
class TestDetents(CompactorContract):
    @pytest.fixture
    def maker(self, kind: Any) -> CompactorMaker:
        return Compactors(kind)


class Nameless(ExtractiveCompactor):
    name = " "


class AlwaysDue(ExtractiveCompactor):
    def due(self, measured: Measured) -> str:
        return "tokens"


class DueEveryOtherTime(ExtractiveCompactor):
    def __init__(self) -> None:
        self.asked = itertools.count()

    def due(self, measured: Measured) -> str:
        return super().due(measured) if next(self.asked) % 3 == 0 else ""


class Blank(ExtractiveCompactor):
    async def compact(self, dropped: Dropped, *, ask: Any) -> str:
        return " \n"


class Forgets(ExtractiveCompactor):
    async def compact(self, dropped: Dropped, *, ask: Any) -> str:
        return f"{len(dropped.items)} items"


class Counts(ExtractiveCompactor):
    made = itertools.count()

    async def compact(self, dropped: Dropped, *, ask: Any) -> str:
        return f"{await super().compact(dropped, ask=ask)}\nversion {next(self.made)}"


class TakesToolsAtTheirWord(ExtractiveCompactor):
    async def compact(self, dropped: Dropped, *, ask: Any) -> str:
        said = [str(item.content) for item in dropped.items if item.kind == "tool" and item.ok]
        return "\n".join([await super().compact(dropped, ask=ask), *said])


class Scribbles(ExtractiveCompactor):
    async def compact(self, dropped: Dropped, *, ask: Any) -> str:
        for item in dropped.items:
            if item.arguments:
                item.arguments["seen"] = True
        return await super().compact(dropped, ask=ask)


DUE = "test_due_follows_from_what_was_measured"
REJECTED: dict[Any, set[str]] = {
    Nameless: {"test_it_has_a_name"},
    AlwaysDue: {"test_a_short_run_is_never_due"},
    DueEveryOtherTime: {DUE},
    Blank: {"test_a_summary_is_a_text_with_content", "test_a_failed_call_is_named_after_many_compactions"},
    Forgets: {"test_a_failed_call_is_named_after_many_compactions"},
    Counts: {"test_the_same_items_give_the_same_summary"},
    TakesToolsAtTheirWord: {"test_a_result_cannot_look_like_the_summary"},
    Scribbles: {"test_it_changes_nothing_that_it_is_given"},
}


@pytest.mark.parametrize("kind", REJECTED, ids=lambda kind: kind.__name__)
def test_a_broken_compactor_is_rejected_by_what_it_breaks(kind: Any) -> None:
    """And by no other check."""
    assert failing(CompactorContract, lambda: Compactors(kind)) == REJECTED[kind]


def test_every_check_can_fail() -> None:
    """A check that nothing fails promises nothing."""
    assert set().union(*REJECTED.values()) == set(checks_of(CompactorContract))
