"""The tracebacks of a run: what the user's own code raised, kept in the log outside of what is replayed, and shown to people only.

Each is an effect of the phase `ASIDE`: a replay takes it as it is, it is erased with the run, and no planner sees it. It is redacted and bounded, and
equal ones are kept once. A run keeps its first `MOST`, and the same number of those that end a pass.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence

import msgspec

from detent.core.events import ASIDE, EffectRecorded
from detent.core.state import RunState
from detent.kernel.journal import Journal
from detent.ports import Tool
from detent.secrecy.redact import hidden, sensitive_fields

log = logging.getLogger("detent")

LABEL = "traceback"
MOST = 20
ENDING = ("the planner", "the strategy", "a phase", "the effect")
"""The sources whose exception ends a pass; after an exception of a tool, a guard, a policy or a hook the run continues."""
LONGEST = 8000
"""How many characters of a traceback are kept: its beginning and its end."""


class Traceback(msgspec.Struct, frozen=True, kw_only=True):
    """An exception of the user's own code while the run was advanced.

    `who` raised it ("the planner", "the tool 'pay', call main.1.0"), `error` is its type and message, `at` the last place in the user's code
    (`/app/agent.py:31 in plan`, "" if there is none), `text` the traceback as Python prints it. `number` counts the run's tracebacks from 1.
    """

    number: int
    who: str
    error: str
    at: str
    text: str


def tracebacks(state: RunState) -> list[Traceback]:
    """Return the tracebacks stored with a run, in the order in which they were raised."""
    found: list[Traceback] = []
    while (kept := state.effects.get(f"{ASIDE}:{LABEL}:{len(found)}")) is not None:
        found.append(msgspec.convert({**kept, "number": len(found) + 1}, Traceback))
    return found


def traceback_behind(state: RunState, error: str) -> int:
    """Return the number of the traceback behind an error of the run, 0 if none is stored."""
    kept, kind = tracebacks(state)[::-1], error.partition(":")[0]
    exact = [one.number for one in kept if one.error in error]
    alike = [one.number for one in kept if one.error.partition(":")[0] == kind]  # if words of it are hidden in one of them
    return next(iter([*exact, *alike]), 0) if error else 0


class Keeper:
    """Stores tracebacks with the run of a journal. It hides matches of `patterns`, and the sensitive fields of its `tools`."""

    def __init__(self, journal: Journal, patterns: Sequence[str], tools: Iterable[Tool]) -> None:
        self._journal, self._patterns, self._tools = journal, patterns, tools

    def keep(self, who: str, error: str, at: str, text: str) -> None:
        """Record a traceback, and write it to the log of the process."""
        state = self._journal.state
        said: dict[str, str] = {"who": who, "error": _cut(error, 50 * LONGEST), "at": at, "text": _cut(text, 50 * LONGEST)}
        said = hidden(
            said, self._patterns, sensitive_fields(tool.spec for tool in self._tools)
        )  # before it is cut: half a match is not found
        value = {**said, "error": _bounded(said["error"], 500), "text": _bounded(said["text"], LONGEST)}
        log.error("run %s: %s raised %s (%s)\n%s", state.run_id, who, value["error"], value["at"], value["text"])
        known = tracebacks(state)
        most = 2 * MOST if who.startswith(ENDING) else MOST
        if not state.terminal and len(known) < most and value["text"] not in [one.text for one in known]:
            self._journal.record(EffectRecorded(label=LABEL, occurrence=len(known), phase=ASIDE, value=value))


def _cut(text: str, most: int) -> str:
    """Return the part of a text that is searched: no more, because searching takes time."""
    return text if len(text) <= most else f"{text[:most]}…"


def _bounded(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most // 4]}\n… {len(text) - most} characters left out …\n{text[-(most - most // 4) :]}"
