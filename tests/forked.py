"""Python processes for tests that need many of them: forked from one that has imported the package, they begin at once.

`fork(words)` is `subprocess.Popen([sys.executable, *words])` with pipes: a process of its own with its own streams, environment and folder,
that real signals end. What it saves is the imports, and taking all that was imported apart again, which are nine tenths of what a short command
takes. The process that is forked from
(one a process of the tests, started when first asked) imports, and does nothing else; it ends when the tests do, with all that runs. Where there is no
Linux, or what processes execute is being measured, they are started in the ordinary way. A few tests start real ones on any system.
"""

from __future__ import annotations

import atexit
import fcntl
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import termios
import threading
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import IO, Any

ALWAYS = (
    *("asyncio", "html", "mimetypes", "resource", "secrets", "sqlite3", "sysconfig", "yaml", "zoneinfo", "rich.console", "rich.progress"),
    *(
        "pydantic.fields",
        "pydantic.functional_validators",
        "pydantic.json_schema",
        "pydantic.plugin",
        "pydantic.type_adapter",
        "pydantic.types",
    ),
    *("detent.cli.main", "detent.engine", "detent.capabilities.secrets", "detent.meta_tools", "detent.observers.console"),
    *("detent.planners.model.attachments", "detent.policies", "detent.policies.rules", "detent.strategies", "detent.testing.faults"),
    *("detent.stores.files.store", "detent.stores.ram", "detent.stores.listing", "detent.stores.sqlite.store", "detent.stores.urls"),
    *(
        "detent.tools.mcp.servers",
        "detent.tools.workspace.tools",
        "detent.config.own_store",
        "detent.policies.combining",
        "detent.policies.guards",
    ),
    *("detent.cli.chat", "detent.cli.forking", "detent.cli.memory", "detent.cli.moving", "detent.cli.working", "detent.config.assembly"),
    *("detent.cli.completion", "detent.cli.governance", "detent.cli.where", "detent.extend", "detent.policies.provenance.lasting"),
    *("detent.cli.rolling", "detent.cli.top", "detent.cli.why", "detent.teams"),
    *("detent.memories.compactors", "detent.memories.governing", "detent.memories.urls", "detent.running.compacting"),
    *("detent.policies.provenance.policy", "detent.running.recalling", "detent.running.reducing"),
    *(
        "detent.memories.sqlite.memory",
        "detent.planners.providers",
        "detent.tools.mcp.secrets",
        "detent.tools.remembering",
        "detent.workers.in_process",
    ),
    *("cel", "concurrent.futures.thread", "http.client", "shlex"),
    *("pydantic._internal._dataclasses", "pydantic.plugin._loader", "typer._adapters", "typer._click.decorators"),
)
"""What every process finds imported."""


def asking(vendor: str) -> tuple[str, ...]:
    """Return what processes import besides that ask a model of this vendor."""
    own = ("openai.resources.chat",) if vendor == "openai" else ()
    return ("anyio._backends._asyncio", "detent.planners.model.planner", "genai_prices.data", f"pydantic_ai.models.{vendor}", *own)


class Forked:
    """A running process; it is asked and told as `subprocess.Popen` is."""

    def __init__(self, pid: int, status: int, pipes: Sequence[IO[Any] | None]) -> None:
        self.pid, self._status = pid, status
        self.returncode: int | None = None
        self.stdin, self.stdout, self.stderr = pipes

    def poll(self) -> int | None:
        """Return the exit code, the negative signal that ended it, or None while it runs."""
        return self._ended(0)

    def wait(self, timeout: float | None = None) -> int:
        """Return how it ended; raise `subprocess.TimeoutExpired` when it does not within `timeout` seconds."""
        code = self._ended(timeout)
        if code is None:
            raise subprocess.TimeoutExpired(str(self.pid), timeout or 0)
        return code

    def _ended(self, timeout: float | None) -> int | None:
        if self.returncode is None and select.select([self._status], [], [], timeout)[0]:
            said = os.read(self._status, 100)
            os.close(self._status)
            assert said, "what processes are forked from is gone"
            self.returncode = int(said)
        return self.returncode

    def communicate(self, timeout: float | None = None) -> tuple[Any, Any]:
        """Close its standard input, and return what it has written and not been asked for, when it has ended."""
        if self.stdin is not None and not self.stdin.closed:
            self.stdin.close()
        said: dict[int, Any] = {}
        streams = (self.stdout, self.stderr)

        def read(n: int, stream: IO[Any]) -> None:
            said[n] = stream.read()
            stream.close()

        threads = [threading.Thread(target=read, args=(n, stream), daemon=True) for n, stream in enumerate(streams) if stream is not None]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout)
            if thread.is_alive():
                raise subprocess.TimeoutExpired(str(self.pid), timeout or 0)
        self.wait(timeout)
        return said.get(0), said.get(1)

    def send_signal(self, number: int) -> None:
        """Send a signal, unless it is known to have ended."""
        if self.poll() is None:
            with suppress(ProcessLookupError):  # it has ended, which is told next
                os.kill(self.pid, number)

    def kill(self) -> None:
        """End it."""
        self.send_signal(signal.SIGKILL)

    def __enter__(self) -> Forked:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for stream in (self.stdin, self.stdout, self.stderr):
            if stream is not None:
                stream.close()
        self.wait()


def fork(
    words: Sequence[str],
    *,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    stdin: int = subprocess.DEVNULL,
    stdout: int = subprocess.PIPE,
    stderr: int | None = None,
    imports: Sequence[str] = (),
    terminal: int | None = None,
    piped: bool = False,
    text: bool = True,
) -> Any:
    """Start `python WORDS` (`-m MODULE ...`, `-c PROGRAM ...` or `SCRIPT ...`, perhaps after `-W error`) with text pipes and return it.

    `stdout` and `stderr` may be descriptors of files; without `text`, the pipes are of bytes.
    `imports` names what it would import besides. `terminal` is a terminal that it has instead of the pipes, in a session of its own; with `piped`
    its standard output is a pipe all the same.
    """
    environment = dict(os.environ if env is None else env)
    if sys.platform != "linux" or any(name.startswith("COVERAGE_PROCESS") for name in environment):
        command = [sys.executable, *words]
        if terminal is not None:
            return subprocess.Popen(
                command, cwd=cwd, env=environment, stdin=terminal, stdout=subprocess.PIPE if piped else terminal, stderr=terminal,
                text=True, start_new_session=True, preexec_fn=_has_a_terminal,  # noqa: PLW1509 - no threads here
            )  # fmt: skip
        return subprocess.Popen(command, cwd=cwd, env=environment, stdin=stdin, stdout=stdout, stderr=stderr, text=text)
    mine: list[IO[Any] | None] = []
    theirs: list[int] = []
    for number, wanted in enumerate((stdin, stdout, stderr)):
        if terminal is not None and not (piped and number == 1):
            give = os.dup(terminal)
            mine.append(None)
        elif wanted == subprocess.PIPE:
            read, write = os.pipe()
            keep, give = (write, read) if number == 0 else (read, write)
            mode = "w" if number == 0 else "r"
            mine.append(os.fdopen(keep, mode, encoding="utf-8") if text else os.fdopen(keep, f"{mode}b"))
        else:
            same = theirs[1] if wanted == subprocess.STDOUT else number if wanted is None or wanted < 0 else wanted
            give = os.open(os.devnull, os.O_RDWR) if wanted == subprocess.DEVNULL else os.dup(same)
            mine.append(None)
        theirs.append(give)
    status, told = os.pipe()
    theirs.append(told)
    job = {"words": list(words), "cwd": str(cwd or Path.cwd()), "env": environment, "imports": list(imports), "leads": terminal is not None}
    body = json.dumps(job).encode()
    server = _server()
    socket.send_fds(server, [len(body).to_bytes(8, "big")], theirs)
    server.sendall(body)
    for descriptor in theirs:
        os.close(descriptor)
    pid = b""
    while not pid.endswith(b"\n"):
        piece = os.read(status, 1)
        assert piece, "what processes are forked from is gone"
        pid += piece
    return Forked(int(pid), status, mine)


def _has_a_terminal() -> None:
    """Make standard input the terminal of this session."""
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


_servers: dict[int, socket.socket] = {}


def _server() -> socket.socket:
    """Return the connection to the process that is forked from: it is started now if there is none."""
    if os.getpid() not in _servers:
        here, there = socket.socketpair()
        process = subprocess.Popen([sys.executable, __file__, str(there.fileno())], pass_fds=[there.fileno()], stdin=subprocess.DEVNULL)
        there.close()

        def end() -> None:
            here.close()
            process.wait()

        atexit.register(end)
        _servers[os.getpid()] = here
    return _servers[os.getpid()]


# In the process that is forked from ------------------------------------------------------------------------------------------------


def prepare(modules: Sequence[str]) -> None:
    """Import what processes will need; what cannot be imported is theirs to say."""
    for name in modules:
        if name not in sys.modules:
            with suppress(Exception):
                importlib.import_module(name)
    gc.freeze()


def serve(server: socket.socket) -> dict[str, Any]:
    """Fork a process a request until the tests end; returns in each of them, with what it has to do."""
    running: dict[int, tuple[int, int]] = {}  # by what becomes readable when it ends: the process, and where that is told
    while True:
        for ready in select.select([server.fileno(), *running], [], [])[0]:
            if ready in running:
                pid, told = running.pop(ready)
                os.write(told, b"%d" % os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
                os.close(told)
                os.close(ready)
                continue
            size, given, _, _ = socket.recv_fds(server, 8, 4)
            if not size:
                for pid, _ in running.values():
                    os.kill(pid, signal.SIGKILL)
                sys.exit()
            body = b""
            while len(body) < int.from_bytes(size, "big"):
                body += server.recv(1 << 20)
            job = json.loads(body)
            prepare(job["imports"])
            pid = os.fork()
            if pid == 0:
                for number, descriptor in enumerate(given[:3]):
                    os.dup2(descriptor, number)
                os.closerange(3, 1024)
                signal.signal(signal.SIGHUP, signal.SIG_DFL)  # tests that were started with nohup ignore it
                if job["leads"]:
                    os.setsid()
                    _has_a_terminal()
                return job
            os.write(given[3], b"%d\n" % pid)
            running[os.pidfd_open(pid)] = (pid, given[3])
            for descriptor in given[:3]:
                os.close(descriptor)


def run(job: dict[str, Any], paths: Sequence[str]) -> None:
    """Do what `python WORDS` does in this process, which is new; `paths` are those that every interpreter has."""
    os.chdir(job["cwd"])
    os.environ.clear()
    os.environ.update(job["env"])
    sys.stdout.reconfigure(line_buffering=sys.stdout.isatty())  # type: ignore[union-attr]
    words = job["words"]
    if words[:2] == ["-W", "error"]:
        warnings.simplefilter("error")
        sys.warnoptions.append("error")
        words = words[2:]
    kind, words = (words[0], words[1:]) if words[0] in {"-m", "-c"} else ("", words)
    first = job["cwd"] if kind else str(Path(words[0]).parent)
    sys.path[:] = [first, *filter(None, job["env"].get("PYTHONPATH", "").split(os.pathsep)), *paths]
    importlib.invalidate_caches()
    sys.argv = ["-c", *words[1:]] if kind == "-c" else list(words)
    if kind == "-m":
        runpy.run_module(words[0], run_name="__main__", alter_sys=True)
    elif kind == "-c":
        exec(words[0], {"__name__": "__main__"})  # noqa: S102 - a program of the tests
    else:
        runpy.run_path(words[0], run_name="__main__")


def leave(code: int) -> None:
    """End as an interpreter does, but without taking apart what was imported: wait for threads, do what was left for the end, say all that was said."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):  # nobody reads it any more: the interpreter has an exit code for that
            sys.exit(code)
    os._exit(code)


if __name__ == "__main__":
    every = [path for path in sys.path[1:] if path not in os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    prepare(ALWAYS)
    importlib.import_module("pydantic").TypeAdapter(int)  # which looks once through all that is installed for its plugins
    job = serve(socket.socket(fileno=int(sys.argv[1])))
    try:
        run(job, every)
    except SystemExit as end:
        if end.code is not None and not isinstance(end.code, int):
            raise
        leave((end.code or 0) & 0xFF)
    leave(0)
