"""How failed model calls are shown: a line without the reason during retries, and the reason once, when it is known what happened next.

Rule: a reason that ends the run is shown only in the last line of the run.
"""

from __future__ import annotations

from typing import Any

import msgspec

from detent.cli.output import clean
from detent.core import events as e
from detent.expressions.display import shortened

WIDTH = 160
PROVIDER = 40
"""How many characters of a provider's name are shown."""
SHORT = {
    "rate_limited": "rate limit reached",
    "timeout": "no answer in time",
    "connection": "connection failed",
    "server": "the provider failed",
}
"""The text for each kind of failure that is tried again."""


class Failed(msgspec.Struct, kw_only=True):
    """A model call whose latest attempt failed; `again`: another attempt follows."""

    iteration: int
    kind: str
    error: str
    again: bool = False


class Retries:
    """Keeps the failures that were not shown yet. Each method returns lasting lines."""

    def __init__(self) -> None:
        self._open: dict[str, Failed] = {}
        self._models: dict[str, str] = {}

    def started(self, event: e.ModelCallStarted) -> list[str]:
        """Show earlier final failures when a call begins: they did not end the run."""
        self._models[event.call] = event.model
        return self._shown([call for call, failed in self._open.items() if call != event.call and not failed.again])

    def failed(self, event: e.ModelCallFailed, iteration: int) -> None:
        """Keep a failed attempt."""
        self._open[event.call] = Failed(iteration=iteration, kind=event.kind, error=event.error)

    def again(self, content: dict[str, Any], *, why: bool) -> str:
        """Return the text before the countdown while a call waits for its next attempt; `why` adds the reason in a word or two."""
        failed = self._open.get(content["call"])
        said = "failed"
        if failed is not None:
            failed.again = True
            refused = failed.kind == "connection" and "connection refused" in failed.error
            said = ("connection refused" if refused else SHORT.get(failed.kind, failed.kind)) if why else said
        return f"{self._name(content['call'])}: {clean(said)}, try {content['attempt']} of {content['of']}"

    def finished(self, event: e.ModelCallFinished) -> list[str]:
        """Show the failures of a call once, when it has its answer."""
        return self._shown([event.call], "answered after a retry")

    def ended(self, error: str = "") -> list[str]:
        """Show the remaining failures when the run ends or is left, except those that its `error` contains."""
        self._open = {call: failed for call, failed in self._open.items() if failed.error[:200] not in error}
        return self._shown(list(self._open))

    def _shown(self, calls: list[str], what: str = "model call failed") -> list[str]:
        found = [failed for call in calls if (failed := self._open.pop(call, None)) is not None]
        return [f"{one.iteration:>4}  {what} ({clean(one.kind)}): {shortened(one.error, WIDTH)}" for one in found]

    def _name(self, call: str) -> str:
        model = self._models.get(call, "")
        return shortened(model.partition(":")[0] or "the model", PROVIDER)
