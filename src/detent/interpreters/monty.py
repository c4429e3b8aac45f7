"""The parent's side of the sandbox: starts the process in which programs run (`sandbox`), and moves a program from call to call.

The process knows nothing of this one's environment, and is killed with everything in it when its user leaves: a run that waits holds none.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import msgspec

from detent.core.errors import ConfigError
from detent.ports.interpreting import ProgramAnswer, ProgramLimits, ProgramMove, refuse_without_interpreter

GRACE_S = 10.0
"""How much longer than the program's own time the process may take for an answer, in seconds. Then it is killed."""
START_S = 60.0
LONGEST = 2**28
"""The most bytes that an answer of the process may have."""
PASSED_ON = ("PATH", "HOME", "LANG", "TMPDIR", "LD_LIBRARY_PATH", "SYSTEMROOT", "MONTY_BIN")
"""What the process gets of this one's environment: what Python and the library need to start."""
_CRASHED = "the interpreter crashed"


class MontyInterpreter:
    """One process, and one program at a time. Use it as `async with`."""

    def __init__(self) -> None:
        self.version = ""
        self.computed_s = 0.0
        self._process: Process | None = None
        self._killed: list[Process] = []

    async def __aenter__(self) -> MontyInterpreter:
        return self

    async def __aexit__(self, *raised: object) -> None:
        self._kill()
        if raised[0] is not GeneratorExit:
            for process in self._killed:
                await process.wait()

    async def start(
        self, program: str, functions: Sequence[str], limits: ProgramLimits, *, at: ProgramMove | None = None, dump: str = ""
    ) -> ProgramMove:
        """Run a program to its first call, or restore it at the call `at`. Raise `ConfigError` if the library is missing."""
        await self.ready()
        self.computed_s = 0.0
        kept = {} if at is None else {"printed": at.printed, "cut": at.cut, "asked": at.asked, "line": at.line}
        bounds = {"steps": limits.steps, "seconds": limits.seconds, "memory": limits.memory_bytes, "output": limits.output}
        return await self._moved({"do": "start", "program": program, "functions": list(functions), "dump": dump, **bounds, **kept}, limits)

    async def answer(self, limits: ProgramLimits, given: ProgramAnswer) -> ProgramMove:
        """Answer the call that the program waits at; run to the next call or the end."""
        return await self._moved({"do": "answer", "value": given.value, "error": given.error}, limits)

    async def dump(self) -> str:
        """Return the program as it waits at its call, in base64."""
        return str((await self._exchanged({"do": "dump"}, START_S))["dump"])

    async def _moved(self, frame: dict[str, Any], limits: ProgramLimits) -> ProgramMove:
        began = asyncio.get_running_loop().time()
        try:
            said = await self._exchanged(frame, limits.seconds + GRACE_S)
        except TimeoutError:
            return ProgramMove(stopped="time", error=f"TimeoutError: it computed for more than {limits.seconds:g} s")
        except (EOFError, OSError, ValueError):
            return ProgramMove(stopped="crash", error=_CRASHED)
        self.computed_s += asyncio.get_running_loop().time() - began
        return msgspec.convert(said, ProgramMove)

    async def ready(self) -> str:
        """Start the process, if there is none, and return the version of the library. Raise `ConfigError` if it is missing."""
        if self._process is not None and self._process.returncode is None:
            return self.version
        refuse_without_interpreter()
        environment = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
        command = (sys.executable, "-I", str(Path(__file__).with_name("sandbox.py")), *_folder())
        self._process = await asyncio.create_subprocess_exec(
            *command, stdin=PIPE, stdout=PIPE, stderr=DEVNULL, env=environment, start_new_session=True
        )
        try:
            self.version = str((await self._exchanged(None, START_S))["version"])
        except (TimeoutError, EOFError, OSError, ValueError) as error:
            raise ConfigError(f"the process for programs did not start ({type(error).__name__}); {' '.join(command)} shows why") from None
        return self.version

    async def _exchanged(self, frame: dict[str, Any] | None, within_s: float) -> dict[str, Any]:
        """Send a frame and return the answer. Whatever goes wrong kills the process: it cannot be asked again."""
        process = self._process
        assert process is not None and process.stdin is not None and process.stdout is not None  # noqa: S101, PT018 - started by `ready`
        try:
            async with asyncio.timeout(within_s):
                if frame is not None:
                    data = json.dumps(frame).encode()
                    process.stdin.write(len(data).to_bytes(4, "big") + data)
                    await process.stdin.drain()
                size = int.from_bytes(await process.stdout.readexactly(4), "big")
                if size > LONGEST:
                    raise ValueError(f"an answer of {size} bytes")
                return json.loads(await process.stdout.readexactly(size))
        except BaseException:
            self._kill()
            raise

    def _kill(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            self._killed.append(process)
        if process is not None and process.returncode is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                if hasattr(os, "killpg"):
                    os.killpg(process.pid, signal.SIGKILL)
                else:
                    process.kill()


def _folder() -> Sequence[str]:
    """Return where the library is, for a Python that does not look there itself (`PYTHONPATH` counts only here)."""
    spec = find_spec("pydantic_monty")
    return [str(Path(spec.origin).parents[1])] if spec is not None and spec.origin is not None else []
