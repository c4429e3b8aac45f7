"""The real actions of tools in a simulated run, observed from outside: every tool call, whether or not its outcome was recorded.

A `Ledger` belongs to one trial, with all workers of one run. A read-only call is listed but never counts as an effect.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec

from detent.core.codec import encode
from detent.ports import ToolOutcome, ToolSpec

Probe = Callable[[], Iterable[Any]]
"""Returns the effects in the world so far, each as JSON data or text. Called before and after every tool call."""

RAN = ("result_not_serializable", "output_schema_failed")
"""Codes of failed calls that had their effect but no usable result."""


class Doing(msgspec.Struct, kw_only=True):
    """One call of a tool's own code. `life` numbers the workers of the run from 1; `real` is its real outcome, None while it runs.

    `told` is what the kernel was told instead (a timeout). `caused` has the new effects in the world afterwards, if they are visible.
    """

    number: int
    life: int
    tool: ToolSpec
    args: dict[str, Any]
    call_id: str
    key: str
    attempt: int
    real: ToolOutcome | None = None
    told: ToolOutcome | None = None
    caused: tuple[str, ...] = ()
    key_read: bool = False

    @property
    def what(self) -> str:
        """The tool and its arguments as one text: equal texts mean the same effect."""
        return f"{self.tool.name}({shown_args(self.args)})"

    @property
    def answered(self) -> str:
        """How the call ended, in a few words."""
        if self.real is None:
            return "not run" if self.told is not None else "not finished"
        if self.real.kind == "ok":
            return f"answered {short(self.real.result.decode())}"
        return f"ended {self.real.error_code or self.real.kind}: {short(self.real.message)}"


class Effect(msgspec.Struct, frozen=True, kw_only=True):
    """One effect and the calls that may have caused it, oldest first. `in_world`: the probe shows it."""

    what: str
    times: int
    by: tuple[Doing, ...]
    in_world: bool = False


class Ledger:
    """The calls of one trial. `probe` reads the world (None: only the tools' answers are known)."""

    def __init__(self, probe: Probe | None = None) -> None:
        self.doings: list[Doing] = []
        self._probe = probe
        self._before = self._after = self._world()

    def _world(self) -> Counter[str]:
        if self._probe is None:
            return Counter()
        return Counter(one if isinstance(one, str) else encode(one).decode() for one in self._probe())

    def begin(self, tool: ToolSpec, args: dict[str, Any], *, life: int, call_id: str, key: str, attempt: int) -> Doing:
        """Note that a tool is about to be called."""
        doing = Doing(
            number=len(self.doings) + 1,
            life=life,
            tool=tool,
            args=msgspec.json.decode(encode(args)),
            call_id=call_id,
            key=key,
            attempt=attempt,
        )
        self.doings.append(doing)
        return doing

    def watch(self) -> Counter[str]:
        """Return the current effects in the world, for `end`."""
        return self._world()

    def end(self, doing: Doing, outcome: ToolOutcome, before: Counter[str]) -> None:
        """Note how a call ended."""
        doing.real = outcome
        doing.caused = tuple((self._world() - before).elements())

    def close(self) -> None:
        """Note the effects in the world at the end of the trial."""
        self._after = self._world()

    @property
    def seen(self) -> frozenset[str]:
        """The tools with an effect visible in the world."""
        return frozenset(doing.tool.name for doing in self.doings if doing.caused)

    def happened(self, doing: Doing, seen: frozenset[str]) -> bool | None:
        """Return whether a call had its effect, None if unknown; `seen` are the tools whose effects the probe shows."""
        if doing.tool.name in seen:
            return bool(doing.caused)
        if doing.real is None:
            return False
        if doing.real.kind == "ok" or doing.real.error_code in RAN:
            return True
        return None if doing.real.kind == "in_doubt" else False

    def truth(self, key: str, seen: frozenset[str]) -> tuple[bool | None, Any]:
        """Return whether the call with this key had its effect (None: unknown), and its result or None."""
        known: bool | None = False
        for doing in self.doings:
            if doing.key != key:
                continue
            happened = self.happened(doing, seen)
            if happened and doing.real is not None:
                raw = doing.real.full or doing.real.result
                return True, msgspec.json.decode(raw) if doing.real.kind == "ok" else None
            known = None if happened is None else known
        return known, None

    def times(self, key: str) -> int:
        """Return how often the call with this key had its effect, as far as the tools' own answers tell; see `effects`."""
        same: list[Doing] = []
        times = 0
        for doing in self.doings:
            if doing.key == key and self.happened(doing, frozenset()):
                times += not self._is_the_same(doing, same)
                same.append(doing)
        return times

    def effects(self, seen: frozenset[str]) -> dict[str, Effect]:
        """Return the effects by their text.

        For a tool in `seen`: what the probe shows. For any other tool: each successful call. If a tool declared idempotent was called again with the
        same key and gave the same result, this counts as one effect.
        """
        found: dict[str, list[Doing]] = {}
        times: Counter[str] = Counter()
        for doing in self.doings:
            if doing.tool.read_only or doing.tool.name in seen:
                continue
            if not self.happened(doing, seen):
                continue
            same = found.setdefault(doing.what, [])
            times[doing.what] += not self._is_the_same(doing, same)
            same.append(doing)
        world = self._after - self._before
        for what, count in world.items():
            found[what] = [doing for doing in self.doings if what in doing.caused]
            times[what] += count
        return {what: Effect(what=what, times=times[what], by=tuple(by), in_world=what in world) for what, by in found.items()}

    @staticmethod
    def _is_the_same(doing: Doing, earlier: Sequence[Doing]) -> bool:
        if not doing.tool.idempotent:
            return False
        return any(one.key == doing.key and one.real and doing.real and one.real.result == doing.real.result for one in earlier)

    def unproven(self, seen: frozenset[str]) -> list[tuple[Doing, Doing]]:
        """Return pairs of calls with one key that count as one effect although the tool never read the key."""
        found: list[tuple[Doing, Doing]] = []
        first: dict[tuple[str, str], Doing] = {}
        for doing in self.doings:
            if doing.tool.read_only or not doing.tool.idempotent or doing.tool.name in seen or not self.happened(doing, seen):
                continue
            one = first.setdefault((doing.tool.name, doing.key), doing)
            if one is not doing and self._is_the_same(doing, [one]) and not (one.key_read or doing.key_read):
                found.append((one, doing))
        return found


def shown_args(args: dict[str, Any]) -> str:
    """Return arguments as in a Python call, in a fixed order."""
    return ", ".join(f"{name}={encode(args[name]).decode()}" for name in sorted(args))


def short(text: str, most: int = 80) -> str:
    """Return the text, cut after `most` characters."""
    text = " ".join(text.split())
    return text if len(text) <= most else f"{text[: most - 1]}…"
