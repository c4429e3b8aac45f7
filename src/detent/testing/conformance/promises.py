"""Shared code of the suites: a failed check shows the promise and where it is documented; coroutine checks get their own event loop."""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any, TypeVar, cast

import msgspec
import pytest

T = TypeVar("T")
ContractT = TypeVar("ContractT", bound=type)


class Maker:
    """Makes the adapters of one test; the root of what the fixture `maker` of a suite returns.

    `open` and `close` are awaited on the test's event loop around it: for servers that the adapters need. `patience_s` is how long a check
    waits for something that must happen before it fails.
    """

    patience_s: float = 30.0

    async def open(self) -> None:
        """Get ready; called before a test."""

    async def close(self) -> None:
        """Tidy up; called after a test, however it went."""


def documented(*, page: str, port: str) -> Callable[[ContractT], ContractT]:
    """Make failed checks of a suite show the promise (their docstring) and where it is documented: a page of `docs` and a name in `ports`."""

    def decorate(suite: ContractT) -> ContractT:
        for name, check in list(vars(suite).items()):
            if name.startswith("test_"):
                setattr(suite, name, _explained(check, page, port))
        return suite

    return decorate


def _explained(check: Callable[..., Any], page: str, port: str) -> Callable[..., Any]:
    promised = " ".join((check.__doc__ or "").split())

    @functools.wraps(check)
    def explained(*args: Any, **options: Any) -> None:
        __tracebackhide__ = True
        try:
            if inspect.iscoroutinefunction(check):
                makers = [one for one in (*args, *options.values()) if isinstance(one, Maker)]
                asyncio.run(_between(makers, check(*args, **options)))
            else:
                check(*args, **options)
        except pytest.skip.Exception:
            raise
        except (Exception, pytest.fail.Exception) as error:
            error.add_note(f"promised: {promised}\ndocumented: docs/{page}, and `{port}` in detent.ports")
            raise

    vars(explained).update(page=page, port=port)
    return explained


async def _between(makers: list[Maker], body: Coroutine[Any, Any, None]) -> None:
    """Run the body of a check after its makers were opened, and close them."""
    opened: list[Maker] = []
    try:
        for maker in makers:
            await maker.open()
            opened.append(maker)
        await body
    finally:
        body.close()
        for maker in reversed(opened):
            await maker.close()


def as_bytes(value: Any) -> bytes:
    """Return a state or another struct as JSON with plain sequences and maps, to detect changes."""
    return msgspec.json.encode(value, enc_hook=_plain)


def _plain(owned: Any) -> Any:
    return dict(cast("Mapping[Any, Any]", owned)) if isinstance(owned, Mapping) else list(owned)


async def soon(work: Awaitable[T], maker: Maker, what: str) -> T:
    """Return the result of `work`; fail the test if it takes longer than the maker's patience."""
    task = asyncio.ensure_future(work)
    done, _ = await asyncio.wait((task,), timeout=maker.patience_s)
    if not done:
        task.cancel()
        pytest.fail(f"{what} had not ended after {maker.patience_s:g} s")
    return task.result()


async def until(true: Callable[[], object], maker: Maker) -> None:
    """Wait until something is true, at most for the maker's patience, and then give pending work some turns of the loop."""
    loop = asyncio.get_running_loop()
    end, turns = loop.time() + maker.patience_s, 0
    while turns < 20 or not true():
        if loop.time() > end:
            return
        turns += 1
        await asyncio.sleep(0 if turns < 20 else 0.001)


def made(adapter: T | None, wish: str) -> T:
    """Return the adapter; skip the test if the maker has none with this behaviour."""
    if adapter is None:
        pytest.skip(f"there is no adapter here that does this: {wish}")
    return adapter
