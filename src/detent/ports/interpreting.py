"""Programs that a model wrote: how far one came, its limits, and who runs it."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any, Protocol

import msgspec

from detent.core.errors import ConfigError, Explained


def refuse_without_interpreter() -> None:
    """Raise `ConfigError` if programs cannot run here, because the extra is not installed."""
    if find_spec("pydantic_monty") is None:
        raise ConfigError("code-action runs programs with pydantic-monty, which is not installed: pip install 'detent[code]'")


class ProgramLimits(msgspec.Struct, metaclass=Explained, frozen=True, kw_only=True):
    """The bounds of one program.

    - `steps`: how often it may ask for something outside
    - `seconds`: how long it may compute, without the time of its calls
    - `memory_bytes`: how much memory it may use
    - `output`: how many characters of its output are kept
    - `snapshot_s`: after how many seconds of computing a snapshot is made at the next call
    """

    steps: int = 200
    seconds: float = 10.0
    memory_bytes: int = 64 * 2**20
    output: int = 4_000
    snapshot_s: float = 0.5


class ProgramMove(msgspec.Struct, metaclass=Explained, frozen=True, kw_only=True, omit_defaults=True):
    """Where a program came to: a call of a function (`call`), or its end.

    `printed` is what it has printed so far, and `cut` how many characters more it printed. `refused`: why the call cannot be made; the program gets
    that as an error. An end has a `value` or an `error`. `stopped` names a limit that may strike elsewhere next time (`time`, `memory`, `crash`).
    `line` and `source` say where; `asked` counts what it asked for.
    """

    call: str = ""
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    refused: str = ""
    value: Any = None
    error: str = ""
    stopped: str = ""
    line: int = 0
    source: str = ""
    printed: str = ""
    cut: int = 0
    asked: int = 0


class ProgramAnswer(msgspec.Struct, metaclass=Explained, frozen=True, kw_only=True, omit_defaults=True):
    """What a call gives a program: its JSON `value`, or the `error` that it raises there."""

    value: Any = None
    error: str = ""


class Interpreter(Protocol):
    """Runs one program at a time. Used as `async with`; at the end nothing of it is left.

    The same program with the same answers must move the same way: no clock, no chance, no order of hashes. `computed_s` is the time that the program has
    computed here.
    """

    computed_s: float

    async def __aenter__(self) -> Interpreter: ...

    async def __aexit__(self, *_: object) -> None: ...

    async def ready(self) -> str:
        """Return the version, to which snapshots are bound. Raise `ConfigError` if programs cannot run here."""
        ...

    async def start(
        self, program: str, functions: Sequence[str], limits: ProgramLimits, *, at: ProgramMove | None = None, dump: str = ""
    ) -> ProgramMove:
        """Run a program to its first call, or restore it at the call `at` from a `dump`; return where it is. Never raise for the program."""
        ...

    async def answer(self, limits: ProgramLimits, given: ProgramAnswer) -> ProgramMove:
        """Answer the call that the program waits at, and run it to the next call or its end."""
        ...

    async def dump(self) -> str:
        """Return the program as it waits at its call, as text."""
        ...
