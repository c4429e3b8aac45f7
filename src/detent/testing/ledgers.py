"""What tools really did while a run was simulated, seen from outside of the run: every call of a tool, whatever became of its record.

A `Ledger` belongs to one trial: to all the workers of one run. A call that only reads is listed and never counted as an effect.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec

from detent.core.codec import encode
from detent.ports import ToolOutcome, ToolSpec

Probe = Callable[[], Iterable[Any]]
"""Returns what happened in the world so far, each effect as JSON data or text; asked before and after every call of a tool."""

RAN = ("result_not_serializable", "output_schema_failed")
"""Codes of failed calls that did what they do, and whose result cannot be used."""


class Doing(msgspec.Struct, kw_only=True):
    """One call of a tool's own code. `life` numbers the workers of the run from 1; `real` is how it ended, None while it has not.

    `told` is what the kernel was told instead (a time-out), `caused` what the world had more of afterwards, where that can be seen.
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
        """The tool and its arguments, as one text: what makes two effects the same."""
        return f"{self.tool.name}({shown_args(self.args)})"

    @property
    def answered(self) -> str:
        """How it ended, in a few words."""
        if self.real is None:
            return "not run" if self.told is not None else "not finished"
        if self.real.kind == "ok":
            return f"answered {short(self.real.result.decode())}"
        return f"ended {self.real.error_code or self.real.kind}: {short(self.real.message)}"


class Effect(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that happened, and the calls that may have done it, oldest first. `in_world`: the probe shows it."""

    what: str
    times: int
    by: tuple[Doing, ...]
    in_world: bool = False


class Ledger:
    """The calls of one trial. `probe` looks at the world (None: only what the tools answer is known)."""

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
        """Return what there is in the world, to be given to `end`."""
        return self._world()

    def end(self, doing: Doing, outcome: ToolOutcome, before: Counter[str]) -> None:
        """Note how a call ended."""
        doing.real = outcome
        doing.caused = tuple((self._world() - before).elements())

    def close(self) -> None:
        """Note how the world is at the end of the trial."""
        self._after = self._world()

    @property
    def seen(self) -> frozenset[str]:
        """The tools of which an effect was seen in the world."""
        return frozenset(doing.tool.name for doing in self.doings if doing.caused)

    def happened(self, doing: Doing, seen: frozenset[str]) -> bool | None:
        """Return whether a call had its effect, None where nobody can know; `seen` are the tools whose effects the probe shows."""
        if doing.tool.name in seen:
            return bool(doing.caused)
        if doing.real is None:
            return False
        if doing.real.kind == "ok" or doing.real.error_code in RAN:
            return True
        return None if doing.real.kind == "in_doubt" else False

    def truth(self, key: str, seen: frozenset[str]) -> tuple[bool | None, Any]:
        """Return what became of the call with this key (True, False, None: unknown), and its result, None where there is none."""
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

    def effects(self, seen: frozenset[str]) -> dict[str, Effect]:
        """Return what happened, by what it was.

        Of a tool in `seen`, as the probe shows it. Of another one, each call that went well, with one exception: a tool declared idempotent
        that was called again under the same key and gave the same result is believed to have done it once.
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
        """Return pairs of calls under one key that are believed to be one effect although the tool never looked at the key."""
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
    """Return arguments as a call in Python shows them, in an order of their own."""
    return ", ".join(f"{name}={encode(args[name]).decode()}" for name in sorted(args))


def short(text: str, most: int = 80) -> str:
    """Return the text, cut where it is longer than `most` characters."""
    text = " ".join(text.split())
    return text if len(text) <= most else f"{text[: most - 1]}…"
