"""A program of a model on its way through a run: each of its calls is answered from the log, or made now.

Theory of operation. A program is deterministic, so its text and the answers of its calls say everything. Where it came to is recorded after each move,
as an effect of the strategy: the call, or a digest of its end. After a crash or a wait it runs again from its top, and must come to the same; another
move is a `Divergence`. Limits of time and memory may strike elsewhere next time, so their record counts and the program is not run to them again.

A snapshot saves computing and nothing else. It is kept beside the log, is made at a call if the program has computed for long, and is dropped if the
version of the interpreter or the program is another, or if it does not come back to its call. A replay uses none.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec

from detent.core.codec import digest_of
from detent.core.errors import ConfigError, Suspended
from detent.ports.interpreting import Interpreter, ProgramAnswer, ProgramLimits, ProgramMove
from detent.ports.outside import World

AGAIN = 10
"""How many times as long a program may compute when it runs again: it is known that it came to its next call."""
MOST_KEPT = 8 * 2**20
"""The largest snapshot, in bytes."""


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """A program at one of its calls. `calls` are all so far; it waits at the last one. `program` is a digest of what it must fit."""

    version: str
    program: str
    calls: list[ProgramMove]
    dump: str


class Course:
    """One program on its way. `name` is the label of its moves, `number` counts the programs of the run."""

    def __init__(
        self,
        name: str,
        text: str,
        functions: Sequence[str],
        limits: ProgramLimits,
        *,
        run_id: str,
        number: int,
        world: World,
        interpreter: Interpreter,
        effect: Callable[[str, Callable[[], Awaitable[Any]]], Awaitable[Any]],
        parted: Callable[[str, str], BaseException],
    ) -> None:
        self._name, self._text, self._functions, self._limits, self._number = name, text, tuple(functions), limits, number
        self._run_id = run_id
        self._world, self._interpreter, self._effect, self._parted = world, interpreter, effect, parted
        self._calls: list[ProgramMove] = []
        self._answers: list[ProgramAnswer] = []
        self._known: Snapshot | None = None
        self._shortcut, self._there = f"{name}-{number}", False
        self._begun = self._live = False
        self._kept_s = 0.0

    async def run(self, answer: Callable[[ProgramMove], Awaitable[ProgramAnswer]]) -> ProgramMove:
        """Run the program to its end and return that; `answer` makes each call. Raise `Suspended` if it cannot run here, and what `parted` returns."""
        try:
            await self._interpreter.ready()
        except ConfigError as error:
            raise Suspended(self._run_id, str(error)) from None
        self._known = await self._snapshot()
        moved = await self._move()
        while moved.call:
            self._calls.append(moved)
            if self._live:
                await self._keep()
            self._answers.append(await answer(moved))
            moved = await self._move()
        if self._there:
            await self._world.keep_shortcut(self._shortcut, b"")
        return moved

    async def _move(self) -> ProgramMove:
        """Return where the program comes to next: worked out now and recorded, or worked out again and compared with the record."""
        made: ProgramMove | None = None

        async def make() -> Any:
            nonlocal made
            made = await self._next(self._limits)
            return _record(made)

        logged = await self._effect(self._name, make)
        self._live = made is not None
        if made is not None:
            return made
        if logged.get("stopped"):
            return msgspec.convert(logged, ProgramMove)
        moved = await self._next(msgspec.structs.replace(self._limits, seconds=self._limits.seconds * AGAIN))
        if moved.stopped:
            raise self._not_here(moved)
        if (now := _record(moved)) != logged:
            raise self._parted(f"move {len(self._calls) + 1} of program {self._number}: {_told(logged)}", _told(now))
        return moved

    async def _next(self, limits: ProgramLimits) -> ProgramMove:
        """Move the program on from the calls that are answered."""
        done = len(self._answers)
        if self._known is not None and done < len(self._known.calls):
            return self._known.calls[done]
        if self._begun:
            return await self._interpreter.answer(limits, self._answers[-1])
        self._begun = True
        if self._known is not None:
            at = self._known.calls[-1]
            if await self._interpreter.start(self._text, self._functions, limits, at=at, dump=self._known.dump) == at:
                return await self._interpreter.answer(limits, self._answers[-1])
        moved = await self._interpreter.start(self._text, self._functions, limits)
        for number, (call, given) in enumerate(zip(self._calls, self._answers, strict=True), 1):
            if moved.stopped:
                raise self._not_here(moved)
            if moved != call:
                raise self._parted(f"move {number} of program {self._number}: {_told(_record(call))}", _told(_record(moved)))
            moved = await self._interpreter.answer(limits, given)
        return moved

    def _not_here(self, moved: ProgramMove) -> Suspended:
        """Return the error for a program that does not get as far as the record says: perhaps it does elsewhere, or later."""
        return Suspended(self._run_id, f"program {self._number} did not get as far as before: {moved.error}")

    def _fits(self) -> str:
        return digest_of([self._number, self._text, list(self._functions)])

    async def _snapshot(self) -> Snapshot | None:
        """Return the snapshot of this program, if there is one that counts."""
        data = await self._world.shortcut(self._shortcut)
        if data is None:
            return None
        self._there = True
        try:
            kept = msgspec.json.decode(data, type=Snapshot)
        except msgspec.DecodeError:
            return None
        return kept if kept.calls and kept.program == self._fits() and kept.version == await self._interpreter.ready() else None

    async def _keep(self) -> None:
        """Make a snapshot if the program has computed for long since the last one."""
        if (computed := self._interpreter.computed_s) - self._kept_s < self._limits.snapshot_s:
            return
        version, dump = await self._interpreter.ready(), await self._interpreter.dump()
        self._kept_s = computed
        data = msgspec.json.encode(Snapshot(version=version, program=self._fits(), calls=self._calls, dump=dump))
        if dump and len(data) <= MOST_KEPT:
            self._there = True
            await self._world.keep_shortcut(self._shortcut, data)


def _record(moved: ProgramMove) -> dict[str, Any]:
    """Return what the log keeps of a move: the call, or the end with a digest of its value."""
    if moved.call:
        return {"call": moved.call, "line": moved.line}
    kept = msgspec.to_builtins(msgspec.structs.replace(moved, value=None))
    return kept if moved.stopped else {**kept, "ended": digest_of([moved.value])}


def _told(record: dict[str, Any]) -> str:
    return f"a call of {record['call']} in line {record['line']}" if "call" in record else "its end"
