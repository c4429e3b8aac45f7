"""What foreign code raised: in words for the log, and its traceback for the person who wrote that code.

Whoever catches an exception of foreign code says so here. While a run is advanced, its world keeps the traceback with the run
(`running.tracebacks`); elsewhere it only reaches the log of the process. A planner may be told the words, and never a traceback.
"""

from __future__ import annotations

import logging
import re
import traceback
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from pathlib import Path
from types import TracebackType

from detent.core.errors import DetentError, EffectFailed, PlannerFailed

OWN = str(Path(__file__).resolve().parents[1])
"""The directory of this package: frames in it are not the user's."""

log = logging.getLogger("detent")


def tell(who: str, error: str, at: str, text: str) -> None:
    """Tell the log of the process of a traceback that no run keeps."""
    log.error("%s raised %s (%s)\n%s", who, error, at, text)


def unheard(who: str, error: str, at: str, text: str) -> None:
    """Keep nothing and tell nobody: a re-execution raises what the live run has raised, and has kept."""


KEEP: ContextVar[Callable[[str, str, str, str], None]] = ContextVar("detent_traceback", default=tell)
"""What keeps a traceback with the run that the current task advances: who raised, the exception in words, where, and the traceback."""


def raised_by(error: BaseException, who: str, *, scrubbed: Callable[[str], str] = str) -> str:
    """Return in words what foreign code (`who`: "the planner", "the tool 'pay'") raised, and keep its traceback with the run.

    `scrubbed` takes out of the traceback what only its catcher knows to be secret. None is kept of an error of Detent's own in which nothing
    of the user's took part, nor of what a planner states (`PlannerFailed`) or an effect has left behind (`EffectFailed`).
    """
    if not isinstance(error, (PlannerFailed, EffectFailed)) and not (isinstance(error, DetentError) and all(map(_is_own, _frames(error)))):
        KEEP.get()(who, scrubbed(in_words(error)), place_of(error), scrubbed(trace_of(error)))
    return in_words(error)


def in_words(error: BaseException) -> str:
    """Return an exception in one line: a message of ours as it is, another with its type."""
    try:
        said = str(error)
    except Exception as other:  # noqa: BLE001 - foreign code: how an exception shows itself
        said = f"(its __str__ raised {type(other).__name__})"
    return said if isinstance(error, DetentError) else f"{type(error).__name__}: {said}"


def trace_of(error: BaseException) -> str:
    """Return the traceback as Python shows it, from the first frame that is not Detent's on."""
    first = next((trace for trace in _frames(error) if not _is_own(trace)), error.__traceback__)
    shown = "".join(traceback.format_exception(type(error), error, first))
    return (
        re.sub(r"^(?:  )*[|+] ?", "", shown, flags=re.MULTILINE) if isinstance(error, BaseExceptionGroup) else shown
    )  # a secret may have lines


def place_of(error: BaseException) -> str:
    """Return file, line and function of the last frame that is not Detent's, such as `app.py:31 in plan`; "" where there is none."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}:{error.lineno}"
    theirs = [trace for trace in _frames(error) if not _is_own(trace)]
    if not theirs:
        return ""
    code = theirs[-1].tb_frame.f_code
    return f"{code.co_filename}:{theirs[-1].tb_lineno} in {code.co_name}"


def _frames(error: BaseException) -> Iterator[TracebackType]:
    trace = error.__traceback__
    while trace is not None:
        yield trace
        trace = trace.tb_next


def _is_own(trace: TracebackType) -> bool:
    return trace.tb_frame.f_code.co_filename.startswith(OWN)
