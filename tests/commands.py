"""The command line in this process: what a command does, without what a process costs.

`in_process(words)` does what `python -m detent WORDS` does, on the same file descriptors, in the same directory and environment, and leaves this
process as it was. A process takes four times as long, so only tests of processes start one (`forked`): of their start, signals, pipes,
terminals and deaths, and of several at once.
"""

from __future__ import annotations

import logging
import os
import sys
import tempfile
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any

import detent.__main__ as entry
from detent.cli.main import run
from detent.config import imports
from detent.metering import pricing
from detent.ports import governing_files


def in_process(words: Sequence[str], *, cwd: Path, env: Mapping[str, str], together: bool = False) -> tuple[int, str, str]:
    """Run a command without standard input and return its exit code, and what it wrote on stdout and stderr, or `together` on stdout."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        with ExitStack() as state:
            for kept in (_place(cwd, env), _modules(cwd), _logging(), _streams(out, out if together else err), _warnings()):
                state.enter_context(kept)
            state.enter_context(_changed(sys, "argv", [str(entry.__file__), *words]))
            code = run(words)
        return code, _text(out), _text(err)


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode().replace("\r\n", "\n")


@contextmanager
def _changed(owner: Any, name: str, value: Any) -> Iterator[None]:
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


@contextmanager
def _place(cwd: Path, env: Mapping[str, str]) -> Iterator[None]:
    """Be in this directory with this environment."""
    before, wanted, there = dict(os.environ), dict(env), os.open(".", os.O_RDONLY)
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(wanted)
    try:
        yield
    finally:
        os.fchdir(there)
        os.close(there)
        os.environ.clear()
        os.environ.update(before)


@contextmanager
def _modules(cwd: Path) -> Iterator[None]:
    """Forget what is imported from this directory, where else modules may be found, and what governs what runs."""
    path, roots, governing, loaded = list(sys.path), list(imports._roots), set(governing_files._governing), set(sys.modules)
    sys.path.insert(0, str(cwd))
    pricing.WARNED.clear()
    try:
        yield
    finally:
        sys.path[:], imports._roots[:] = path, roots
        governing_files._governing.intersection_update(governing)
        for name in sys.modules.keys() - loaded:
            if str(getattr(sys.modules[name], "__file__", None) or "").startswith(str(cwd.resolve())):
                del sys.modules[name]


@contextmanager
def _logging() -> Iterator[None]:
    """Log as a program does that configures nothing."""
    root, last = logging.getLogger(), logging._StderrHandler(logging.WARNING)
    level, handlers = root.level, root.handlers
    root.handlers = []
    root.setLevel(logging.WARNING)
    try:
        with _changed(logging, "lastResort", last):
            yield
    finally:
        for handler in root.handlers:
            handler.close()
        root.handlers = handlers
        root.setLevel(level)


@contextmanager
def _streams(*written: IO[bytes]) -> Iterator[None]:
    """Read nothing, and write standard output and standard error to these files."""
    with Path(os.devnull).open("rb") as nothing, ExitStack() as state:
        for number, (name, file) in enumerate(zip(("stdin", "stdout", "stderr"), (nothing, *written), strict=True)):
            stream = getattr(sys, name)
            if number:
                stream.flush()
            before = os.dup(number)
            state.callback(os.close, before)
            os.dup2(file.fileno(), number)
            state.callback(os.dup2, before, number)
            own = os.fdopen(
                number, "w" if number else "r", encoding="utf-8", closefd=False, errors="backslashreplace" if number == 2 else None
            )
            state.callback(own.close)
            state.enter_context(_changed(sys, name, own))
            state.enter_context(_changed(sys, f"__{name}__", own))
        yield


@contextmanager
def _warnings() -> Iterator[None]:
    """Warn as the interpreter does that was told nothing, on standard error."""
    with warnings.catch_warnings():
        warnings.resetwarnings()
        for kind in (ResourceWarning, ImportWarning, PendingDeprecationWarning, DeprecationWarning):
            warnings.simplefilter("ignore", kind)
        warnings.showwarning = lambda *told: sys.stderr.write(warnings.formatwarning(*told[:4]))
        yield
