"""exec: a program with its arguments, without a shell, in a directory of the workspace.

Own code: psutil (8 ms to import, 0.9 MB) loses children whose parent has ended; asyncio and os.killpg start and end a group in two lines.

In a sandbox (see `sandbox`) the program sees and changes only what it is given, and nothing that it starts outlives it. Without a sandbox it may do
everything that the operating system allows this process. It gets its own process group, and the rest of the group is killed when the program ends, at
the timeout, and when the call is cancelled. Only a process that starts its own session escapes.
"""

from __future__ import annotations

import asyncio
import codecs
import errno
import os
import signal
import time
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from detent.core.errors import NotExecuted, ToolRaised
from detent.tools.failures import failed, refused_argument, shown, translated
from detent.tools.workspace import sandbox as boxes
from detent.tools.workspace.confine import Place, Workspace
from detent.tools.workspace.shield import Shield

if TYPE_CHECKING:
    from detent.ports import Cancellation

T = TypeVar("T")

DEFAULT_TIMEOUT_S = 30.0
INHERITED = ("PATH", "HOME", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "TMPDIR", "USER", "LOGNAME", "SHELL")
POLL_S = 0.1
REAP_S = 5.0
CHUNK_BYTES = 65_536


class Executed(msgspec.Struct, frozen=True, kw_only=True):
    """How a program ended. `code` is its exit code. For a signal it is the signal number: negative, or in a sandbox plus 128. `success` means code 0
    before the timeout (false does not make the call failed: only a result that also has a text `error` is a failure).

    The `_truncated` flags are true only if there was more than the limit; the rest is dropped. `sandboxed` tells whether it ran in a sandbox,
    `not_sandboxed` why not. `killed_for` is the sandbox limit that it was killed for, or "". `refused` are governing files that it created: each is
    now called NAME.refused, and a link that had the name before is restored. If some hosts are allowed, `connections` counts the connections to
    them, and `refused_hosts` are the hosts that were refused.
    """

    stdout: str
    stderr: str
    code: int
    success: bool
    timed_out: bool
    duration_ms: int
    stdout_truncated: bool
    stderr_truncated: bool
    sandboxed: bool = False
    not_sandboxed: str = ""
    killed_for: str = ""
    refused: tuple[str, ...] = ()
    connections: int = 0
    refused_hosts: tuple[str, ...] = ()


class _Capture:
    """Keeps the first `cap` bytes of a stream and reads the rest too, so the program never waits for a reader."""

    def __init__(self, cap: int) -> None:
        self.cap = cap
        self.kept = bytearray()
        self.truncated = False

    async def read(self, stream: asyncio.StreamReader) -> None:
        """Read to the end."""
        while chunk := await stream.read(CHUNK_BYTES):
            room = self.cap - len(self.kept)
            self.kept += chunk[:room]
            self.truncated = self.truncated or len(chunk) > room

    def text(self) -> str:
        """Return the kept text. Bytes that are not UTF-8 become replacement characters; a partial character at the cut is left out."""
        return codecs.getincrementaldecoder("utf-8")("replace").decode(bytes(self.kept), final=not self.truncated)


async def execute(
    workspace: Workspace,
    command: str,
    args: Sequence[str] = (),
    *,
    cwd: str = ".",
    timeout_s: float = DEFAULT_TIMEOUT_S,
    stdin: str | None = None,
    env: Mapping[str, str] | None = None,
    inherit: Sequence[str] | None = INHERITED,
    cancelled: Cancellation | None = None,
    sandbox: boxes.Sandbox | None = None,
) -> Executed:
    """Run `command` with `args` in the directory `cwd`, in `sandbox` if given. Return how it ended. A code other than 0 is not an error.

    The environment is `inherit` (names of this process's variables to pass; None: all), overridden by `env`. Without `stdin` the program reads end of
    file. Raise `ToolFailed` if it cannot be started (`command_not_found`, `permission_denied`, ...) or was cancelled (`cancelled`, with the output so
    far). Raise `NotExecuted` if it was not started because resources were missing or the sandbox could not be created.
    """
    _check(workspace, command, args, timeout_s=timeout_s, env=env, stdin=stdin)
    environment = {name: value for name, value in os.environ.items() if inherit is None or name in inherit} | dict(env or {})
    if cancelled:
        raise NotExecuted(f"{shown(command)} was not started: {cancelled.why}", error_code="cancelled")
    began = time.monotonic()
    wants_input = stdin is not None
    ended = partial(_finish, workspace, stdin=stdin, began=began, until=began + timeout_s, cancelled=cancelled)
    if sandbox is None:
        with workspace.directory(cwd) as place:
            started = await _uninterrupted(
                _start(command, args, _reachable(workspace, place), environment, wants_input=wants_input), _stopped
            )
        return await ended(started, command)
    with workspace.directory(cwd) as place:
        inside = place.path
    shield = await _uninterrupted(asyncio.to_thread(Shield, workspace), _unshielded)
    refused: tuple[str, ...] = ()
    try:
        work = boxes.start(
            sandbox,
            [command, *args],
            root=workspace.root,
            cwd=inside,
            environment=environment,
            wants_input=wants_input,
            shield=shield,
        )
        started = await _uninterrupted(work, _stopped)
        done = await ended(started, command)
    finally:
        refused = await _shielded(asyncio.to_thread(shield.close))
    return msgspec.structs.replace(done, refused=refused)


async def _uninterrupted(work: Coroutine[Any, Any, T], undo: Callable[[asyncio.Future[T]], Coroutine[Any, Any, None]]) -> T:
    """Return the result of `work`. If the call is cancelled meanwhile, undo it."""
    making = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(making)
    except asyncio.CancelledError:
        await undo(making)
        raise


async def _unshielded(making: asyncio.Future[Shield]) -> None:
    with suppress(ToolRaised):
        shield = await making
        await asyncio.to_thread(shield.close)


async def _stopped(starting: asyncio.Future[Any]) -> None:
    """Kill the starting program if the call is cancelled meanwhile."""
    with suppress(ToolRaised):
        started: Process | boxes.Boxed = await starting
        process = started.process if isinstance(started, boxes.Boxed) else started
        _kill_group(process)
        await process.wait()
        if isinstance(started, boxes.Boxed):
            started.close()
            if started.proxy is not None:
                await started.proxy.close()


def _reachable(workspace: Workspace, place: Place) -> str:
    """Return a path to the open directory. It goes through the descriptor if the system has such paths, so no swap can redirect it."""
    through = Path(f"/proc/self/fd/{place.directory}")
    return str(through if through.is_dir() else Path(workspace.root) / place.path)


def _check(
    workspace: Workspace, command: str, args: Sequence[str], *, timeout_s: float, env: Mapping[str, str] | None, stdin: str | None
) -> None:
    if not command:
        raise refused_argument("command is empty; give the program's name, and its arguments in args")
    if not 0 < timeout_s <= workspace.limits.exec_timeout_s:
        raise refused_argument(f"timeout_s is {timeout_s}; it must be above 0 and at most {workspace.limits.exec_timeout_s:g}")
    texts = [command, *args, *(env or {}), *(env or {}).values()]
    if any("\0" in text or _has_surrogate(text) for text in texts) or (stdin is not None and _has_surrogate(stdin)):
        raise refused_argument(
            "command, args, env and stdin must be valid Unicode, and only stdin may contain NUL characters; pass other data in a file"
        )
    for name in env or {}:
        if not name or "=" in name:
            raise refused_argument(f"env has the name {name!r}; a name must not be empty or contain '='")


def _has_surrogate(text: str) -> bool:
    return any("\ud800" <= c <= "\udfff" for c in text)


async def _start(command: str, args: Sequence[str], directory: str, environment: dict[str, str], *, wants_input: bool) -> Process:
    source = PIPE if wants_input else DEVNULL
    try:
        return await asyncio.create_subprocess_exec(
            command, *args, stdin=source, stdout=PIPE, stderr=PIPE, cwd=directory, env=environment, start_new_session=True
        )
    except OSError as error:
        raise _unstarted(error, command) from error


def _unstarted(error: OSError, command: str) -> ToolRaised:
    if error.errno == errno.ENOENT:
        hint = "args takes its arguments, one element each" if " " in command else "check its spelling and that it is installed"
        return failed(
            "command_not_found", f"program {shown(command)} was not found on PATH or in the directory; {hint}", command=command[:200]
        )
    return translated(error, command)


async def _finish(
    workspace: Workspace,
    started: Process | boxes.Boxed,
    command: str,
    *,
    stdin: str | None,
    began: float,
    until: float,
    cancelled: Cancellation | None,
) -> Executed:
    """Feed, read and wait. When this returns or raises, the program and all that it started are dead and reaped."""
    boxed = started if isinstance(started, boxes.Boxed) else None
    process = started.process if isinstance(started, boxes.Boxed) else started
    out, err = _Capture(workspace.limits.stdout_bytes), _Capture(workspace.limits.stderr_bytes)
    if process.stdout is None or process.stderr is None:
        raise failed("io_error", f"{shown(command)} has no output pipes")
    streams = [asyncio.create_task(out.read(process.stdout)), asyncio.create_task(err.read(process.stderr))]
    if process.stdin is not None:
        streams.append(asyncio.create_task(_feed(process.stdin, (stdin or "").encode())))
    try:
        ended, over = await _wait(process, until, cancelled, boxed.over if boxed else None)
        code = process.returncode if ended else None
    finally:
        _kill_group(process)
        await _shielded(_reap(process, streams))
        killed = boxed.killed() if boxed else ""
        proxy = boxed.proxy if boxed else None
        if proxy is not None:
            await _shielded(proxy.close())
        ran = boxed is None or boxed.ran()
    if ended and not ran:
        raise boxes.unstarted(command, err.text())
    stopped = not ended and not over and bool(cancelled)
    result = Executed(
        stdout=out.text(),
        stderr=err.text(),
        code=code if code is not None else process.returncode if process.returncode is not None else -signal.SIGKILL,
        success=ended and code == 0,
        timed_out=not ended and not stopped and not over,
        duration_ms=round((time.monotonic() - began) * 1000),
        stdout_truncated=out.truncated,
        stderr_truncated=err.truncated,
        sandboxed=boxed is not None,
        killed_for=over or (killed if code != 0 else ""),
        connections=proxy.connections if proxy else 0,
        refused_hosts=tuple(proxy.refused) if proxy else (),
    )
    if stopped and cancelled:
        message = f"{shown(command)} was killed ({cancelled.why}) after {result.duration_ms} ms; what it had done until then is done"
        raise failed("cancelled", message, **msgspec.to_builtins(result))
    return result


async def _wait(process: Process, until: float, cancelled: Cancellation | None, over: Callable[[], str] | None) -> tuple[bool, str]:
    """Wait for the program itself. Return whether it ended (false at the time `until` or when cancelled), and the limit that it is `over`."""
    waiting = asyncio.ensure_future(process.wait())
    poll = POLL_S if over is None else boxes.LOOK_S
    try:
        while True:
            left = until - time.monotonic()
            # In some versions of asyncio wait() ends only when the pipes close, but a child of the program may hold them: check the code too.
            await asyncio.wait({waiting}, timeout=max(0.0, min(left, poll)))
            if process.returncode is not None:
                return True, ""
            passed = over() if over is not None else ""
            if passed or cancelled or time.monotonic() >= until:
                return False, passed
    finally:
        waiting.cancel()


def _kill_group(process: Process) -> None:
    """Kill the rest of the program's group. The group has the program's id, which stays in use while one member lives."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)


async def _reap(process: Process, streams: list[asyncio.Task[None]]) -> None:
    """Wait for the end of the killed program and its output, but not for a process outside the group that holds the pipes."""
    waiting = asyncio.ensure_future(process.wait())
    _, left = await asyncio.wait([waiting, *streams], timeout=REAP_S)
    for task in left:
        task.cancel()
    await asyncio.gather(waiting, *streams, return_exceptions=True)


async def _shielded(work: Coroutine[Any, Any, T]) -> T:
    """Finish `work` even if this task is cancelled meanwhile, then pass the cancellation on."""
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await task
        raise


async def _feed(pipe: asyncio.StreamWriter, data: bytes) -> None:
    """Write the input and close it. A program that does not read all of it is not an error."""
    with suppress(BrokenPipeError, ConnectionResetError):
        pipe.write(data)
        await pipe.drain()
    pipe.close()
    with suppress(BrokenPipeError, ConnectionResetError):
        await pipe.wait_closed()
