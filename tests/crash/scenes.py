"""What the tests of stopping share: every store, one call and an answer, and a coroutine run to its end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from detent import FinalAnswer, ToolCall, View
from laws.places import KINDS, Place

every_store = pytest.mark.parametrize("kind", KINDS)


def one_call(view: View) -> Any:
    """One call of `act`, then the answer."""
    if not view.results:
        return ToolCall(tool="act", args={})
    last = view.results[-1]
    return FinalAnswer(content=last.content if last.ok else last.error.code)


def run_main(place: Place, main: Callable[[], Any]) -> None:
    """Run a test's coroutine function and close the place."""

    async def whole() -> None:
        try:
            await main()
        finally:
            await place.close()

    asyncio.run(whole())
