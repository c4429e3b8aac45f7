"""Calling foreign code that may fail without letting it: each offender is reported once, through stdlib logging (row K9)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from detent.ports import PATIENCE

log = logging.getLogger("detent")


class Fan:
    """What tells others and gives each of them time of its own."""


class Reporter:
    """Calls observers and handlers, and reports the first failure of each; later ones are counted in `failures`."""

    def __init__(self) -> None:
        self.failures: dict[int, int] = {}

    def call(self, who: Any, function: Callable[..., Any], *args: Any) -> Awaitable[Any] | None:
        """Call `function`; return what must still be awaited (with `wait`), None when it is done or has failed."""
        try:
            answer = function(*args)
        except asyncio.CancelledError as error:
            self._failed(who, error)
            return None
        except Exception as error:  # noqa: BLE001 - foreign code: an observer never fails a run
            self._failed(who, error)
            return None
        return answer if isinstance(answer, Awaitable) else None  # type: ignore[return-value]

    async def wait(self, who: Any, answer: Awaitable[Any]) -> None:
        """Await what `call` returned, as long as the run has patience; only a cancellation of the awaiting task itself comes through."""
        try:
            await (answer if isinstance(who, Fan) else PATIENCE.get()(answer))
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            self._failed(who, error)
        except Exception as error:  # noqa: BLE001 - foreign code: an observer never fails a run
            self._failed(who, error)

    def forget(self, who: Any) -> None:
        """Stop counting for `who`, which will not be called again."""
        self.failures.pop(id(who), None)

    def _failed(self, who: Any, error: BaseException) -> None:
        count = self.failures[id(who)] = self.failures.get(id(who), 0) + 1
        if count == 1:
            name = getattr(who, "__qualname__", None) or type(who).__qualname__
            log.error("%s failed; the run goes on, and further failures of it are not reported", name, exc_info=error)
