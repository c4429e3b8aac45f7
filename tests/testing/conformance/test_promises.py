"""What all suites have in common: every check promises something, says where that is documented, and fails saying both."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from typing import Any

import pytest

import detent.ports
from detent.testing.conformance.promises import Maker, documented, made, soon
from docs.pages import DOCS, anchors
from testing.conformance.rejecting import checks_of

NAMES = (
    "approver",
    "basics",
    "capabilities",
    "compactor",
    "memory",
    "observer",
    "planner",
    "policy",
    "scheduler",
    "store",
    "tool",
    "worker_host",
)
SUITES: list[type] = [
    suite
    for name in NAMES
    for module in [importlib.import_module(f"detent.testing.conformance.{name}")]
    for suite in vars(module).values()
    if isinstance(suite, type) and suite.__name__.endswith("Contract") and suite.__name__ in getattr(module, "__all__", ())
]


@pytest.mark.parametrize("suite", SUITES, ids=lambda suite: suite.__name__)
def test_every_check_promises_something_that_is_documented(suite: type) -> None:
    """Its docstring is a promise; the page and the heading are there, and so is the name in `detent.ports`."""
    assert checks_of(suite)
    for name in checks_of(suite):
        check: Any = getattr(suite, name)
        assert (check.__doc__ or "").strip().endswith("."), f"{suite.__name__}.{name} promises nothing"
        page, _, heading = check.page.partition("#")
        assert (DOCS / page).exists(), f"{suite.__name__}.{name} names {page}"
        assert not heading or heading in anchors(DOCS / page), f"{page} has no heading {heading}"
        assert hasattr(detent.ports, check.port), f"detent.ports has no {check.port}"


def test_every_suite_of_the_kit_is_looked_at() -> None:
    """The modules that name a contract in their `__all__` are those above, and the guide has all of them."""
    folder = Path(importlib.import_module("detent.testing.conformance").__file__ or "").parent
    exporting = {
        path.stem for path in folder.glob("*.py") if re.search(r"__all__ = .*Contract", path.read_text(encoding="utf-8"), re.DOTALL)
    }
    assert exporting == set(NAMES)
    guide = (DOCS / "howto" / "extend" / "conformance.md").read_text(encoding="utf-8")
    assert [suite.__name__ for suite in SUITES if f"`{suite.__name__}`" not in guide] == []


class Lamp(Maker):
    """Notes when it is opened and closed."""

    def __init__(self) -> None:
        self.said: list[str] = []

    async def open(self) -> None:
        self.said.append("open")

    async def close(self) -> None:
        self.said.append("close")


@documented(page="howto/extend/conformance.md", port="Planner")
class LampContract:
    """Checks that end in each way there is."""

    async def test_passes(self, maker: Lamp) -> None:
        """It is open."""
        assert maker.said == ["open"]

    async def test_fails(self, maker: Lamp) -> None:
        """It never
        fails.
        """
        assert maker.said == []

    def test_raises(self, maker: Lamp) -> None:
        """It raises nothing."""
        raise ValueError("broken")

    async def test_skips(self, maker: Lamp) -> None:
        """It is there."""
        made(None, "shines")

    async def test_hangs(self, maker: Lamp) -> None:
        """It ends."""
        import asyncio

        maker.patience_s = 0.05
        await soon(asyncio.Event().wait(), maker, "the wait")


@pytest.mark.parametrize(
    ("name", "error", "said"),
    [
        ("test_fails", AssertionError, "It never fails."),
        ("test_raises", ValueError, "It raises nothing."),
        ("test_hangs", pytest.fail.Exception, "It ends."),
    ],
)
def test_a_check_that_fails_says_what_is_promised_and_where(name: str, error: type[BaseException], said: str) -> None:
    """Whatever was raised stays what it is, with a note; the maker is closed again."""
    maker = Lamp()
    with pytest.raises(error) as caught:
        getattr(LampContract(), name)(maker)
    assert caught.value.__notes__ == [f"promised: {said}\ndocumented: docs/howto/extend/conformance.md, and `Planner` in detent.ports"]
    assert maker.said == ([] if name == "test_raises" else ["open", "close"])


def test_a_check_that_passes_or_is_skipped_opens_and_closes_its_maker() -> None:
    """A skip names what there is no adapter for, and is no failure."""
    passing, skipping = Lamp(), Lamp()
    contract: Any = LampContract()
    contract.test_passes(passing)
    with pytest.raises(pytest.skip.Exception, match="shines") as caught:
        contract.test_skips(skipping)
    assert not hasattr(caught.value, "__notes__")
    assert passing.said == skipping.said == ["open", "close"]
