"""The history of a pass for guards: which calls succeeded, what changed something since, what repeats itself.

Theory of operation. Everything follows from the results of the passes (`KernelState.results`) and from the declarations of the tools, so guards
stay pure. If every call read every result again, the cost of a run would grow with the square of its length. So a `Past` reads each result once and
continues from there. It starts over if the results are not those that it has read (a fork, another run). A call is identified by its tool and the
digest of its arguments; the order of keys does not matter.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec

from detent.core.codec import digest_of
from detent.core.history import Seq
from detent.core.state import CallState, Item, KernelState, RunState
from detent.ports import Call, ToolSpec

NOT_TRIED = ("guard_blocked", "not_run", "batch_failed")
"""Codes of observations that are not about the call itself."""


class Same(msgspec.Struct, frozen=True):
    """The number of times in a row that a call gave the same outcome, up to result `index`."""

    count: int
    outcome: bytes
    index: int


class Past:
    """The index of the results of one pass. `tools` are the declarations that tell reading tools from changing ones."""

    __slots__ = ("_seen", "_tools", "done", "effect", "meta", "meta_count", "other_effect", "same")

    def __init__(self, tools: Mapping[str, ToolSpec]) -> None:
        self._tools = tools
        self._begin()

    def _begin(self) -> None:
        self._seen: Seq[Item] = Seq()
        self.done: dict[str, int] = {}  # digest -> where it last succeeded
        self.effect: tuple[int, str] = (-1, "")  # the last call that may have changed something: where, digest
        self.other_effect = -1  # the index of the last one with a different digest
        self.same: dict[str, Same] = {}
        self.meta, self.meta_count = "", 0

    def read(self, results: Seq[Item]) -> Past:
        """Read the results since the last time."""
        if results is self._seen:
            return self
        if not results.continues(self._seen):
            self._begin()
        begin = len(self._seen)
        for index, item in enumerate(results[begin:], begin):
            self._take(index, item)
        self._seen = results
        return self

    def _take(self, index: int, item: Item) -> None:
        code = item.error.code if item.error is not None else ""
        if code in NOT_TRIED:
            return
        digest = digest_of([item.tool, item.arguments])
        if item.meta:
            self.meta_count = self.meta_count + 1 if self.meta == digest else 1
            self.meta = digest
            return
        self.meta, self.meta_count = "", 0
        outcome = _outcome(item)
        before = self.same.get(digest)
        again = before is not None and before.outcome == outcome and self.changed_by_others(digest) < before.index
        self.same[digest] = Same(before.count + 1 if before is not None and again else 1, outcome, index)
        if item.ok:
            self.done[digest] = index
        if item.executed and not self.reads(item.tool):
            at, by = self.effect
            self.other_effect = self.other_effect if by == digest else at
            self.effect = (index, digest)

    def reads(self, tool: str) -> bool:
        """Return whether a tool is known to change nothing outside."""
        spec = self._tools.get(tool)
        return spec is not None and spec.read_only

    def changed_by_others(self, digest: str) -> int:
        """Return the index of the last other call that may have changed something, or -1."""
        at, by = self.effect
        return self.other_effect if by == digest else at

    def repeated(self, digest: str) -> int:
        """Return how often in a row the call gave the same outcome while no other call changed anything."""
        known = self.same.get(digest)
        return 0 if known is None or self.changed_by_others(digest) > known.index else known.count


class Pasts:
    """The pasts of a run's passes, by scope. Each opening of a run has one object, created with the tools of its agent."""

    def __init__(self, tools: Mapping[str, ToolSpec]) -> None:
        self._tools = tools
        self._of: dict[str, Past] = {}

    def of(self, state: KernelState) -> Past:
        """Return the updated past of a pass."""
        known = self._of.get(state.scope)
        if known is None:
            known = self._of[state.scope] = Past(self._tools)
        return known.read(state.results)

    def others(self, state: KernelState, run: RunState) -> Iterator[tuple[KernelState, Past]]:
        """Yield the other passes of the run with their pasts."""
        for scope, other in run.passes.items():
            if scope != state.scope:
                yield other, self.of(other)

    def reads(self, tool: str) -> bool:
        """Return whether a tool is known to change nothing outside."""
        spec = self._tools.get(tool)
        return spec is not None and spec.read_only


def before_in_turn(call: Call, state: KernelState) -> list[CallState]:
    """Return the calls of this turn before `call` that are not refused and have no result yet, the nearest first."""
    if len(state.calls) < 2:
        return []
    found: list[CallState] = []
    for known in state.calls.values():
        if known.call_id == call.call_id:
            break
        if known.index >= state.observed and not known.refused and (known.item is None or known.item.ok):
            found.append(known)
    return found[::-1]


def equal(call: Call, known: CallState) -> bool:
    """Whether two calls have the same tool and arguments, in any order of keys."""
    if known.tool != call.tool.name or known.args != call.args:
        return False
    return (known.digest or digest_of([known.tool, known.args])) == call.digest


def _outcome(item: Item) -> bytes:
    if item.error is not None:
        return f"{item.error.code} {item.error.message}".encode()
    return item.artifact.key.encode() if item.artifact is not None else bytes(item.result)
